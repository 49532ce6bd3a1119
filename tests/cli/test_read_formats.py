"""CSV and JSON lines are read exactly, in blocks of any size.

Modules: cli.read_formats, cli.detect_format, cli.write_formats.
"""

import gzip
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import SchemaError
from dask_tfrecord.cli.detect_format import Format, list_files
from dask_tfrecord.cli.read_formats import read_text

CSV = 'x,name,at\n1,"a",2024-01-31\n,"",2024-02-01\n3,,\n40,"a,""b""",2024-02-29\n'
JSONL = '{"x": 1, "l": ["a"], "at": "2024-01-31T00:00:00Z"}\n{"x": null, "at": "b"}\n{"l": [], "x": 3}\n'


def _read(
    path: Path,
    format: Format,
    blocksize: int | None = 1 << 26,
    types: Any = None,
    nulls: tuple[str, ...] = (),
) -> pd.DataFrame:
    files = [*list_files(str(path), None)]
    return read_text(files, format, types or {}, nulls, blocksize=blocksize).compute(scheduler="sync")


@pytest.mark.parametrize("blocksize", [1, 2, 5, 13, 30, 1000, None])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_csv_in_blocks_of_any_size(tmp_path: Path, blocksize: int | None, ending: str, last: bool) -> None:
    text = CSV if last else CSV.removesuffix("\n")
    (tmp_path / "a.csv").write_bytes(text.replace("\n", ending).encode())
    frame = _read(tmp_path, "csv", blocksize)
    assert frame["x"].tolist() == [1, pd.NA, 3, 40]
    assert frame["name"].tolist() == ["a", "", pd.NA, 'a,"b"']
    assert frame.dtypes.astype(str).tolist() == ["int64[pyarrow]", "string[pyarrow]", "date32[day][pyarrow]"]


@pytest.mark.parametrize("blocksize", [1, 7, 50, 60, None])
def test_json_lines_in_blocks_of_any_size(tmp_path: Path, blocksize: int | None) -> None:
    (tmp_path / "a.jsonl").write_text(JSONL)
    frame = _read(tmp_path, "jsonl", blocksize)
    assert frame["x"].tolist() == [1, pd.NA, 3]
    assert [None if one is pd.NA else list(one) for one in frame["l"]] == [["a"], None, []]
    assert frame["at"].tolist() == ["2024-01-31T00:00:00Z", "b", pd.NA]


def test_text_that_looks_like_a_time_stays_text_without_a_type(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"at": "2024-01-31T00:00:00+02:00"}\n')
    assert _read(tmp_path, "jsonl")["at"].tolist() == ["2024-01-31T00:00:00+02:00"]
    typed = _read(tmp_path, "jsonl", types={"at": pa.timestamp("s", "UTC")})["at"]
    assert typed.tolist() == [pd.Timestamp("2024-01-30 22:00", tz="UTC")]


def test_na_is_text_unless_it_is_named_as_null(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("country,x\nNA,NA\nCH,1\n")
    assert _read(tmp_path, "csv")["country"].tolist() == ["NA", "CH"]
    frame = _read(tmp_path, "csv", nulls=("NA",))
    assert frame["country"].tolist() == [pd.NA, "CH"]
    assert frame["x"].tolist() == [pd.NA, 1]


def test_a_later_value_of_another_type_raises(tmp_path: Path) -> None:
    rows = "".join(f"{number}\n" for number in range(400_000))
    (tmp_path / "a.csv").write_text(f"x\n{rows}1.5\n")
    with pytest.raises(SchemaError, match=r"a\.csv.*pass --type COLUMN=TYPE"):
        _read(tmp_path, "csv")
    (tmp_path / "a.csv").unlink()
    rows = "".join(f'{{"x": {number}}}\n' for number in range(400_000))
    (tmp_path / "a.jsonl").write_text(f'{rows}{{"x": 1, "more": 2}}\n')
    with pytest.raises(SchemaError, match=r"unexpected field.*--type"):
        _read(tmp_path, "jsonl")


def test_files_with_other_columns_raise(tmp_path: Path) -> None:
    for number, header in enumerate(["x,y", "x,y", "x,z", "x,y", "x,y"]):
        (tmp_path / f"{number}.csv").write_text(f"{header}\n1,2\n")
    with pytest.raises(SchemaError, match=r"'[yz]'"):
        _read(tmp_path, "csv")


def test_a_line_break_in_quotes_is_read_or_raises(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,y\n1,"a\nb"\n2,"c\n\nd"\n')
    expected = ["a\nb", "c\n\nd"]
    for blocksize in range(1, 25):
        try:
            found = _read(tmp_path, "csv", blocksize)["y"].tolist()
        except SchemaError as error:
            found = str(error)
        assert found == expected or "--blocksize none" in found
    assert _read(tmp_path, "csv", None)["y"].tolist() == expected


def test_a_compressed_file_is_one_block(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write(CSV)
    assert len(_read(tmp_path, "csv", 1)) == 4


def test_an_unknown_column_in_the_types_raises(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    with pytest.raises(SchemaError, match="'nothing'"):
        _read(tmp_path, "csv", types={"nothing": pa.int8()})
