"""Path and offset columns, features without a column, and limits of reads.

Modules: files.record_file.
"""

from pathlib import Path
from typing import Any

import oracle
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import CorruptRecordError, CorruptRecordWarning, SchemaError, TFRecordError, read_tfrecord

pytestmark = pytest.mark.usefixtures("one_thread")


def frames(first: int, count: int) -> list[bytes]:
    numbers = range(first, first + count)
    return [oracle.features_file([{"n": ("int64", [n]), "x": ("bytes", [bytes(n)])}]) for n in numbers]


@pytest.fixture(params=[None, "gzip"])
def two(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Seven and five records in two files."""
    folder = tmp_path / "two"
    folder.mkdir()
    for name, first, count in (("a", 0, 7), ("b", 7, 5)):
        content = b"".join(frames(first, count))
        (folder / name).write_bytes(oracle.compress(content, request.param))
    return folder


def starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:at]) for at in range(len(sizes))]


def origins(folder: Path) -> list[tuple[int, str, int]]:
    """For each record the number that it holds, its file and its offset."""
    found = []
    for name, first, count in (("a", 0, 7), ("b", 7, 5)):
        offsets = starts([len(frame) for frame in frames(first, count)])
        found += [(first + at, str(folder / name), offset) for at, offset in enumerate(offsets)]
    return found


# --- origin --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocksize", [None, "128 MiB"])
def test_each_record_has_its_file_and_its_offset(two: Path, blocksize: str | None) -> None:
    ddf = read_tfrecord(
        two, blocksize=blocksize, include_path_column=True, read_options={"include_offset_column": True}
    )
    assert sorted(ddf.columns[:2]) == ["n", "x"]
    assert list(ddf.columns[2:]) == ["path", "offset"]
    frame = ddf.compute()
    assert list(zip(frame["n"], frame["path"], frame["offset"], strict=True)) == origins(two)
    assert isinstance(ddf.dtypes["path"], pd.CategoricalDtype)
    assert ddf.dtypes["offset"] == frame.dtypes["offset"] == pd.ArrowDtype(pa.int64())
    renamed = read_tfrecord(
        two, include_path_column="file", read_options={"include_offset_column": "at"}
    ).compute()
    assert list(zip(renamed["n"], renamed["file"], renamed["at"], strict=True)) == origins(two)
    for partition in ddf.partitions:
        assert set(partition.compute()["path"].cat.categories) <= {str(two / "a"), str(two / "b")}


@pytest.mark.parametrize("names", [["path"], ["offset"], ["offset", "path"], ["path", "n"], ["n"], []])
def test_include_path_column_and_include_offset_column_read_only_what_they_name(
    two: Path, names: list[str]
) -> None:
    ddf = read_tfrecord(two, include_path_column=True, read_options={"include_offset_column": True})
    expected = pd.DataFrame(origins(two), columns=["n", "path", "offset"])
    chosen = ddf[names].compute().reset_index(drop=True)
    assert list(chosen.columns) == names
    assert len(chosen) == 12
    for name in names:
        assert chosen[name].tolist() == expected[name].tolist()
    assert read_tfrecord(two, columns=["n"], include_path_column=True).compute().columns.tolist() == ["n"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"include_path_column": "n"}, "feature 'n'.*include_path_column="),
        ({"read_options": {"include_offset_column": "x"}}, "feature 'x'.*include_offset_column"),
        (
            {"include_path_column": "z", "read_options": {"include_offset_column": "z"}},
            "feature 'z'.*include_path_column=",
        ),
        *(({"include_path_column": wrong}, r"include_path_column=.*neither") for wrong in (3, "", None)),
    ],
)
def test_names_that_there_are_already_and_no_names_are_refused(
    two: Path, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TFRecordError, match=problem):
        read_tfrecord(two, **options)
    (two / "path=1").mkdir()  # a partition column
    (two / "path=1" / "a").write_bytes(frames(0, 1)[0])
    with pytest.raises(SchemaError, match="feature 'path'"):
        read_tfrecord(two / "*" / "a", include_path_column=True)


# --- features nobody expected ----------------------------------------------------------------------------


@pytest.fixture
def extra(tmp_path: Path) -> Path:
    """Many files; only the sixth has the features y and z."""
    folder = tmp_path / "extra"
    folder.mkdir()
    for number in range(20):
        record: dict[str, Any] = {"n": ("int64", [number])}
        if number == 6:
            record |= {
                "y": ("float", [oracle.float_bits(0.5), oracle.float_bits(1.5)]),
                "z": ("bytes", [b"abc"]),
            }
        (folder / f"{number:02d}").write_bytes(oracle.features_file([{"n": ("int64", [-1])}, record]))
    sampled = read_tfrecord(folder, extra="ignore")
    assert list(sampled.columns) == ["n"]
    return folder


def test_a_feature_that_is_no_column_raises_with_the_schema_that_reads_it(extra: Path) -> None:
    with pytest.raises(SchemaError, match=r"06, record 1 \(byte \d+\): feature '[yz]'.*schema=") as caught:
        read_tfrecord(extra).compute()
    assert 'extra="ignore"' in str(caught.value)
    given = {"y": pa.list_(pa.float32()), "z": pa.string()}
    assert read_tfrecord(extra, schema=given).compute()["y"].dropna().tolist() == [[0.5, 1.5]]
    with pytest.raises(SchemaError, match=r"feature 'z'.*\{\"z\": (\"string\"|pa\.binary\(\))\}"):
        read_tfrecord(extra, schema={"y": pa.list_(pa.float32())}).compute()


def test_an_unexpected_feature_is_ignored_only_if_asked_for(extra: Path) -> None:
    """It is no damage. A read of one column succeeds even if a read of all columns would raise."""
    origin = {"include_path_column": True, "read_options": {"include_offset_column": True}}
    ddf = read_tfrecord(extra, schema={"m": pa.int64()})
    for read in (
        read_tfrecord(extra, extra="ignore"),
        read_tfrecord(extra, extra="ignore", **origin),
        read_tfrecord(extra, schema=pa.schema({"n": pa.int64()})),
        ddf[["n"]],
    ):
        assert len(read.compute()) == 40
    for read in (ddf, read_tfrecord(extra, on_corrupt="skip"), read_tfrecord(extra, **origin)):
        with pytest.raises(SchemaError, match=r"feature '[yz]'"):
            read.compute()


# --- limits ----------------------------------------------------------------------------------------------


def read(path: Path, **options: Any) -> pd.DataFrame:
    schema = pa.schema({"n": pa.int64()})
    return read_tfrecord(path, schema=schema, record_type="example", **options).compute()


def test_verify_crc_off_leaves_checksums_of_payloads_unverified(tmp_path: Path) -> None:
    """The checksums of lengths are always verified."""
    good, other = frames(100, 2)
    damaged = bytearray(good)
    damaged[-1] ^= 1
    (tmp_path / "a").write_bytes(damaged + other)
    with pytest.raises(CorruptRecordError, match="checksum of the record data"):
        read(tmp_path / "a")
    assert read(tmp_path / "a", read_options={"verify_crc": False})["n"].tolist() == [100, 101]
    damaged[8] ^= 1
    (tmp_path / "a").write_bytes(damaged + other)
    with pytest.raises(CorruptRecordError, match="checksum of the record length"):
        read(tmp_path / "a", read_options={"verify_crc": False})


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_record_longer_than_max_record_bytes_raises(tmp_path: Path, compression: str | None) -> None:
    short, long = frames(1, 1)[0], frames(5_000, 1)[0]
    (tmp_path / "a").write_bytes(oracle.compress(short + long + short, compression))
    size = len(long) - 16
    assert len(read(tmp_path / "a", read_options={"max_record_bytes": size})) == 3
    assert len(read(tmp_path / "a", read_options={"max_record_bytes": "1 MB"})) == 3
    with pytest.raises(CorruptRecordError, match="longer than max_record_bytes") as caught:
        read(tmp_path / "a", read_options={"max_record_bytes": size - 1})
    assert (caught.value.record, caught.value.offset) == (1, len(short))
    with pytest.warns(CorruptRecordWarning, match=f"{len(long):,} bytes"):
        found = read(tmp_path / "a", read_options={"max_record_bytes": size - 1}, on_corrupt="skip")
    assert len(found) == 2
    for wrong in (0, -1, 2**31, "3 GiB", "much", None, True):
        with pytest.raises(TFRecordError, match="max_record_bytes="):
            read(tmp_path / "a", read_options={"max_record_bytes": wrong})
