"""Appends: types that differ only in memory layout, columns of nulls, and columns that were added meanwhile.

Modules: dataset.write.append_schema, dataset.write.operations, dataset.shuffle.table_stream,
schema.conversion.
"""

import ctypes
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import (
    SchemaError,
    TFRecordDataset,
    Writer,
    compact,
    delete,
    read_tfrecord,
    to_tfrecord,
    verify,
)

TEXTS, BYTES, LISTS = ["a", None, "c"], [b"a", None, b"c"], [["a"], [], ["b", "c"]]
FAMILIES = {
    "text": [pa.array(TEXTS, type_) for type_ in (pa.string(), pa.large_string(), pa.string_view())],
    "bytes": [pa.array(BYTES, type_) for type_ in (pa.binary(), pa.large_binary(), pa.binary_view())],
    "lists": [
        pa.array(LISTS, type_)
        for type_ in (
            *(pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.large_string())),
            pa.large_list(pa.string()),
        )
    ],
    "structs": [
        pa.array([{"f": one} for one in TEXTS], pa.struct([("f", type_)]))
        for type_ in (pa.string(), pa.large_string())
    ],
    "categories": [
        pa.array(TEXTS, values).dictionary_encode().cast(pa.dictionary(codes, values))
        for values, codes in (
            (pa.string(), pa.int32()),
            (pa.string(), pa.int8()),
            (pa.large_string(), pa.int64()),
        )
    ],
}
PAIRS = [(name, *pair) for name, arrays in FAMILIES.items() for pair in permutations(arrays, 2)]


def rows_of(path: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = TFRecordDataset(path).to_table().to_pydict()
    return found


def by_writer(table: pa.Table, path: Path, **keywords: Any) -> None:
    with Writer(path) as writer:
        writer.write(table)


def by_append(table: pa.Table, path: Path, **keywords: Any) -> None:
    to_tfrecord(table, path, append=True, **keywords)


def by_adding(table: pa.Table, path: Path, **keywords: Any) -> None:
    to_tfrecord(table, path, append=True, schema_change="add", **keywords)


@pytest.mark.parametrize("add", [by_append, by_adding, by_writer])
@pytest.mark.parametrize(("family", "first", "second"), PAIRS)
def test_rows_are_appended_whose_type_differs_only_in_memory_layout(
    tmp_path: Path, family: str, first: pa.Array, second: pa.Array, add: Any
) -> None:
    to_tfrecord(pa.table({"n": [1, 2, 3], "x": first}), tmp_path)
    add(pa.table({"n": [4, 5, 6], "x": second}), tmp_path)
    expected = first.to_pylist() * 2
    assert rows_of(tmp_path)["x"] == expected
    assert delete(tmp_path, [("n", "==", 4)]).rows == 1
    compact(tmp_path)
    assert rows_of(tmp_path) == {"n": [1, 2, 3, 5, 6], "x": expected[:3] + expected[4:]}
    assert not verify(tmp_path)["damaged"].any()


@pytest.mark.parametrize("mode", [{"append": True}, {"overwrite": "partitions"}])
@pytest.mark.parametrize(
    ("family", "first", "second"), [pair for pair in PAIRS if pair[0] in ("text", "bytes")]
)
def test_partition_values_are_appended_whose_type_differs_only_in_memory_layout(
    tmp_path: Path, family: str, first: pa.Array, second: pa.Array, mode: dict[str, Any]
) -> None:
    to_tfrecord(pa.table({"n": [1], "x": first[:1]}), tmp_path, partition_on="x")
    to_tfrecord(pa.table({"n": [2], "x": second[2:]}), tmp_path, partition_on="x", **mode)
    assert rows_of(tmp_path) == {"n": [1, 2], "x": [first[0].as_py(), first[2].as_py()]}


def test_a_type_that_differs_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"x": pa.array(TEXTS)}), tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for array in (pa.array(BYTES), pa.array([1]), pa.array(LISTS), pa.array(TEXTS).dictionary_encode()):
        with pytest.raises(SchemaError, match="'x'"):
            to_tfrecord(pa.table({"x": array}), tmp_path, append=True)
    assert sorted(tmp_path.rglob("*")) == before


VALUES = [
    (pa.nulls(1), pa.array(["x"]), pa.array([1])),
    (pa.nulls(1), pa.array(["x"]).dictionary_encode(), pa.array([1])),
    (pa.nulls(1), pa.array([[1.5]], pa.list_(pa.float32())), pa.array(["x"])),
    (pa.array([{"f": None}]), pa.array([{"f": 7}]), pa.array([{"f": "x"}])),
]


@pytest.mark.parametrize("add", [by_append, by_adding, by_writer])
@pytest.mark.parametrize(("nulls", "values", "others"), VALUES, ids=lambda array: str(array.type))
def test_a_column_of_nulls_gets_the_type_of_its_first_values(
    tmp_path: Path, nulls: pa.Array, values: pa.Array, others: pa.Array, add: Any
) -> None:
    to_tfrecord(pa.table({"n": [1], "x": nulls}), tmp_path)
    add(pa.table({"n": [2], "x": nulls}), tmp_path)
    add(pa.table({"n": [3], "x": values}), tmp_path)
    add(pa.table({"n": [4], "x": nulls}), tmp_path)
    expected = [*nulls.to_pylist() * 2, *values.to_pylist(), *nulls.to_pylist()]
    assert rows_of(tmp_path) == {"n": [1, 2, 3, 4], "x": expected}
    with pytest.raises(SchemaError, match=r"feature 'x"):
        by_append(pa.table({"n": [5], "x": others}), tmp_path)


def test_a_writer_gives_columns_of_nulls_a_type_within_one_commit(tmp_path: Path) -> None:
    with Writer(tmp_path, max_bytes_per_file=1) as writer:
        writer.write({"n": 1, "x": None})
        writer.write([{"n": 2, "x": "a"}, {"n": 3, "x": None}])
    with Writer(tmp_path, schema={"x": pa.string()}) as writer:
        writer.write({"n": 4, "x": "b"})
    assert rows_of(tmp_path) == {"n": [1, 2, 3, 4], "x": [None, "a", None, "b"]}


@pytest.mark.parametrize("keywords", [{}, {"schema": {"n": pa.int64()}}])
def test_an_idle_writer_of_a_new_dataset_writes_nothing(tmp_path: Path, keywords: dict[str, Any]) -> None:
    with Writer(tmp_path / "data", **keywords) as writer:
        writer.write([])
        writer.write((), custom_metadata={})
        assert writer.commit() is None
        writer.write({"n": 1})
    assert rows_of(tmp_path / "data") == {"n": [1]}


def _bytes_at(buffer: pa.Buffer) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * buffer.size).from_address(buffer.address))


CATEGORIES = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array([0, 10, 20]))
KEPT = {
    "numbers": pa.array([1, 2, 3]),
    "texts": pa.array(["a", "bb", "ccc"]),
    "categories": CATEGORIES,
    "texts of categories": pa.array(["a", "bb", "ccc"]).dictionary_encode(),
    "lists": pa.array([[1], [2, 3], []]),
    "lists of categories": pa.ListArray.from_arrays([0, 1, 1, 3], CATEGORIES),
    "structs": pa.array([{"f": 1}, {"f": 2}, {"f": 3}]),
    "pandas": pa.array(pd.Categorical(["x", "y", "x"])),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_caller_may_reuse_the_memory_of_written_rows(tmp_path: Path, name: str) -> None:
    table = pa.table({"x": KEPT[name]})
    copy = pa.ipc.open_stream(_stream(table)).read_all()
    expected = copy["x"].to_pylist()
    with Writer(tmp_path) as writer:
        writer.write(copy)
        for column in copy.columns:
            for chunk in column.chunks:
                for buffer in _buffers(chunk):
                    _bytes_at(buffer)[:] = 0
    found = read_tfrecord(tmp_path).compute()["x"]
    assert pa.array(found).to_pylist() == expected


def _stream(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.py_buffer(bytearray(sink.getvalue().to_pybytes()))


def _buffers(array: pa.Array) -> Iterator[pa.Buffer]:
    """The buffers of values of an array, of its categories and of its items."""
    if pa.types.is_dictionary(array.type):
        yield from _buffers(array.dictionary)
        yield from _buffers(array.indices)
    elif pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from _buffers(child)
    elif pa.types.is_list(array.type):
        yield from _buffers(array.values)
    else:
        yield from (buffer for buffer in array.buffers()[1:] if buffer is not None and buffer.size)


def stream_during(path: Path, rows: pa.Table, other: Any) -> pa.RecordBatchReader:
    """Rows between which another write commits."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows.slice(0, 1).to_batches()
        other()
        yield from rows.slice(1).to_batches()

    return pa.RecordBatchReader.from_batches(rows.schema, batches())


def test_an_append_that_another_column_overtakes_is_kept(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"n": [1]}), tmp_path)
    adds = lambda: to_tfrecord(pa.table({"n": [3], "x": [1]}), tmp_path, append=True, schema_change="add")  # noqa: E731
    to_tfrecord(stream_during(tmp_path, pa.table({"n": [2, 4]}), adds), tmp_path, append=True)
    with Writer(tmp_path) as writer:
        writer.write({"n": 5, "x": 2})
        to_tfrecord(pa.table({"n": [6], "x": [3], "y": ["a"]}), tmp_path, append=True, schema_change="add")
    found = pd.DataFrame(rows_of(tmp_path)).sort_values("n")
    assert found["n"].tolist() == [1, 2, 3, 4, 5, 6]
    assert found["x"].fillna(0).tolist() == [0, 0, 1, 0, 2, 3]
    assert found["y"].fillna("").tolist() == ["", "", "", "", "", "a"]


def test_an_append_that_a_type_for_nulls_overtakes_is_kept_or_refused(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"n": [1], "x": pa.nulls(1)}), tmp_path)
    texts = lambda: to_tfrecord(pa.table({"n": [3], "x": ["a"]}), tmp_path, append=True)  # noqa: E731
    rows = pa.table({"n": [2, 4], "x": pa.nulls(2)})
    to_tfrecord(stream_during(tmp_path, rows, texts), tmp_path, append=True)
    assert sorted(rows_of(tmp_path)["n"]) == [1, 2, 3, 4]
    numbers = pa.table({"n": [5, 6], "x": [1, 2]})
    with pytest.raises(SchemaError, match="'x'"):
        to_tfrecord(numbers, tmp_path, append=True)


def test_an_append_that_a_wider_type_overtakes_is_kept(tmp_path: Path) -> None:
    def rows(type_: pa.DataType, *keys: int) -> pa.Table:
        lists = pa.array([[key] for key in keys], pa.list_(type_))
        return pa.table({"n": pa.array(keys, type_), "x": lists})

    def widen() -> None:
        to_tfrecord(rows(pa.int64(), 2**40), tmp_path, append=True, schema_change="add")

    to_tfrecord(rows(pa.int32(), 0), tmp_path)
    to_tfrecord(stream_during(tmp_path, rows(pa.int32(), 1, 3), widen), tmp_path, append=True)
    found = TFRecordDataset(tmp_path).to_table().sort_by("n")
    assert found.schema.types == [pa.int64(), pa.list_(pa.int64())]
    assert found["n"].to_pylist() == [0, 1, 3, 2**40]
    assert found["x"].to_pylist() == [[0], [1], [3], [2**40]]
    assert read_tfrecord(tmp_path, filters=[("n", ">=", 3)]).compute()["n"].tolist() == [2**40, 3]
    with pytest.raises(SchemaError, match="in the dataset it is"):
        to_tfrecord(rows(pa.int32(), 1), tmp_path, append=True)
