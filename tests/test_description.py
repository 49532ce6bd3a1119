"""`inspect` describes a dataset without reading its rows, and iterates over the rows.

Modules: description, exports.
"""

from contextlib import closing
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import CorruptRecordError, CorruptRecordWarning, KeywordError


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """Two files of 100 rows."""
    path = tmp_path / "numbers"
    dask_tfrecord.to_tfrecord(dd.from_pandas(pd.DataFrame({"x": range(200)}), npartitions=2), path)
    return path


def test_the_description_of_a_snapshot_reads_no_data_file(numbers: Path, opened: list[str]) -> None:
    opened.clear()
    found = dask_tfrecord.inspect(numbers)
    assert (found.rows, found.version, len(found.versions), len(found.files)) == (200, 1, 1, 2)
    assert [(column.min, column.max, column.nulls) for column in found.columns] == [(0, 199, 0)]
    assert [path for path in opened if "part-" in path and "_tfrecord" not in path] == []


def test_rows_are_those_of_the_keywords(numbers: Path) -> None:
    found = dask_tfrecord.inspect(numbers, filters=[("x", ">=", 150)])
    assert len(found.files) == 1
    assert pa.concat_tables(found.iter_tables()) == pa.table({"x": range(150, 200)})
    typed = dask_tfrecord.inspect(numbers, schema={"x": pa.int16()})
    assert pa.concat_tables(typed.iter_tables()) == pa.table({"x": pa.array(range(200), pa.int16())})
    rows = pa.concat_tables(dask_tfrecord.inspect(numbers).iter_tables([1]))
    assert rows["x"].to_pylist() == list(range(100, 200))


def test_damage_raises_with_what_helps_here_or_is_reported_at_an_early_end(numbers: Path) -> None:
    file = min(numbers.glob("part-*"))
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="on_corrupt"):
        list(dask_tfrecord.inspect(file, schema={"x": pa.int64()}).iter_tables())
    skipping = dask_tfrecord.inspect(file, on_corrupt="skip").iter_tables()
    with pytest.warns(CorruptRecordWarning, match="skipped 1"), closing(skipping) as tables:
        next(tables)


def test_a_keyword_of_read_tfrecord_alone_is_explained(numbers: Path) -> None:
    with pytest.raises(KeywordError, match="blocksize"):
        dask_tfrecord.inspect(numbers, blocksize=1)  # type: ignore[call-arg]  # on purpose
