"""Categories of a stream come from its first batches, and ordered categories are checked.

Modules: collection.frames.table_sources.
"""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask.dataframe as dd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import Field, SchemaError, read_tfrecord, to_tfrecord

pytestmark = pytest.mark.usefixtures("one_thread")


def categories(*names: str, rows: int = 1, ordered: bool = False) -> pa.ChunkedArray:
    """A chunk for each name, which is the only category of its chunk."""
    parts = [pa.DictionaryArray.from_arrays([0] * rows, [name], ordered=ordered) for name in names]
    return pa.chunked_array(parts)


def test_categories_are_those_of_the_first_batch_and_unordered_ones_are_added(tmp_path: Path) -> None:
    coded = pa.DictionaryArray.from_arrays([1, 0], ["b", "a", "unused"], ordered=True)
    to_tfrecord(pa.table({"n": [1, 2], "kind": coded}), tmp_path)
    found = read_tfrecord(tmp_path).compute()["kind"]
    assert found.tolist() == ["a", "b"]
    assert found.cat.categories.tolist() == ["b", "a", "unused"]
    assert found.cat.ordered
    to_tfrecord(pa.table({"n": [0, 1], "kind": categories("a", "b")}), tmp_path, overwrite=True)
    assert read_tfrecord(tmp_path)["kind"].compute().tolist() == ["a", "b"]


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 1}, {"partition_on": "kind"}])
def test_an_ordered_category_that_the_first_rows_lack_is_refused(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """In a stream and in a Dask collection, also if the category would become a directory."""
    table = pa.table({"n": range(4), "kind": categories("a", "b", rows=2, ordered=True)})
    frames = [table.slice(start, 2).to_pandas() for start in (0, 2)]
    ddf = dd.from_map(lambda number: frames[number], [0, 1], meta=frames[0].iloc[:0])
    for number, (rows, place) in enumerate([(table, "Table, record 2"), (ddf, "partition 1 of 2, record 0")]):
        path = tmp_path / str(number)
        problem = f"{place}: feature 'kind': 'b' is not one of the column's ordered categories"
        with pytest.raises(SchemaError, match=problem):
            to_tfrecord(rows, path, **options)
        assert not dask_tfrecord.exists(path)


def test_a_directory_of_an_unknown_ordered_category_can_be_read_as_text(tmp_path: Path) -> None:
    """Other writers can make such a directory."""
    with patch.object(Field, "check_categories"):
        table = pa.table({"n": [0, 1], "kind": categories("a", "b", ordered=True)})
        to_tfrecord(table, tmp_path, partition_on="kind")
    with pytest.raises(SchemaError, match=r"kind=b/.*: feature 'kind': 'b' is not one of") as raised:
        read_tfrecord(tmp_path).compute()
    [remedy] = raised.value.remedies
    assert read_tfrecord(tmp_path, schema=remedy.value)["kind"].compute().tolist() == ["a", "b"]


def test_categories_after_batches_without_categories(tmp_path: Path) -> None:
    """The first batch has no rows, and the second batch has only nulls in one column."""
    parts = [
        pa.DictionaryArray.from_arrays(
            pa.array(codes, pa.int32()), pa.array(names, pa.string()), ordered=True
        )
        for codes, names in [([], []), ([None], []), ([1], ["b", "a"])]
    ]
    batches = [
        pa.record_batch({"n": [number] * len(part), "kind": part}) for number, part in enumerate(parts)
    ]
    schema = batches[1].schema
    reader = pa.RecordBatchReader.from_batches(schema, [batches[0].cast(schema), *batches[1:]])
    to_tfrecord(reader, tmp_path / "data")
    found = read_tfrecord(tmp_path / "data").compute()
    assert found["n"].tolist() == [1, 2]
    assert found["kind"].cat.categories.tolist() == ["b", "a"]
    assert found["kind"].cat.codes.tolist() == [-1, 1]

    with pytest.raises(SchemaError, match="ordered, but unknown; pass schema=") as raised:
        to_tfrecord(pa.RecordBatchReader.from_batches(schema, []), tmp_path / "none")
    [remedy] = raised.value.remedies
    empty = pa.RecordBatchReader.from_batches(schema, [])
    assert to_tfrecord(empty, tmp_path / "none", schema=remedy.value).rows == 0
