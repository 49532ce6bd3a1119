"""Appends of other types: equal but for the memory layout, null, wider, and new columns; also meanwhile.

Modules: dataset.write.append_schema, dataset.write.operations, dataset.write.transaction,
dataset.shuffle.table_stream, schema.conversion.
"""

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import operations
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import SchemaError, TFRecordError, Writer, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.rewrite import compact, delete
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.transaction import commit
from dask_tfrecord.schema.conversion import widened

TEXTS, BYTES, LISTS = ["a", None, "c"], [b"a", None, b"c"], [["a"], [], ["b", "c"]]


def arrays(values: list[Any], *types: pa.DataType) -> list[pa.Array]:
    return [pa.array(values, type_) for type_ in types]


def categories(values: pa.DataType, codes: pa.DataType) -> pa.Array:
    return pa.array(TEXTS, values).dictionary_encode().cast(pa.dictionary(codes, values))


STRUCTS = [pa.struct([("f", type_)]) for type_ in (pa.string(), pa.large_string())]
FAMILIES = {
    "text": arrays(TEXTS, pa.string(), pa.large_string(), pa.string_view()),
    "bytes": arrays(BYTES, pa.binary(), pa.large_binary(), pa.binary_view()),
    "lists": arrays(
        LISTS, pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.large_list(pa.string())
    ),
    "structs": arrays([{"f": one} for one in TEXTS], *STRUCTS),
    "categories": [
        categories(pa.string(), pa.int32()),
        categories(pa.string(), pa.int8()),
        categories(pa.large_string(), pa.int64()),
    ],
}
PAIRS = [(name, *pair) for name, arrays in FAMILIES.items() for pair in permutations(arrays, 2)]


def rows_of(path: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = dask_tfrecord.open_dataset(path).to_table().to_pydict()
    return found


def by_writer(table: pa.Table, path: Path) -> None:
    with Writer(path) as writer:
        writer.write(table)


def by_append(table: pa.Table, path: Path) -> None:
    to_tfrecord(table, path, append=True)


def by_adding(table: pa.Table, path: Path) -> None:
    to_tfrecord(table, path, append=True, schema_change="add")


ADDS = [by_append, by_adding, by_writer]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("family", "first", "second", "add"), [(*pair, ADDS[at % 3]) for at, pair in enumerate(PAIRS)]
)
def test_rows_are_appended_whose_type_differs_only_in_memory_layout(
    tmp_path: Path, family: str, first: pa.Array, second: pa.Array, add: Any
) -> None:
    to_tfrecord(pa.table({"n": [1, 2, 3], "x": first}), tmp_path)
    add(pa.table({"n": [4, 5, 6], "x": second}), tmp_path)
    expected = first.to_pylist() * 2
    assert rows_of(tmp_path)["x"] == expected
    assert dask_tfrecord.open_dataset(tmp_path).delete([("n", "==", 4)]).details["deleted_rows"] == 1
    open_dataset(tmp_path).compact()
    assert rows_of(tmp_path) == {"n": [1, 2, 3, 5, 6], "x": expected[:3] + expected[4:]}
    assert not open_dataset(tmp_path).verify()["damaged"].any()


@pytest.mark.parametrize(
    ("first", "second"),
    [pair[1:] for pair in PAIRS if pair[0] in ("text", "bytes")],
    ids=lambda one: str(one.type),
)
def test_partition_values_are_appended_whose_type_differs_only_in_memory_layout(
    tmp_path: Path, first: pa.Array, second: pa.Array
) -> None:
    to_tfrecord(pa.table({"n": [1], "x": first[:1]}), tmp_path, partition_on="x")
    to_tfrecord(pa.table({"n": [2], "x": second[2:]}), tmp_path, partition_on="x", append=True)
    to_tfrecord(pa.table({"n": [3], "x": second[2:]}), tmp_path, partition_on="x", overwrite="partitions")
    assert rows_of(tmp_path) == {"n": [1, 3], "x": [first[0].as_py(), first[2].as_py()]}


VALUES = [
    (pa.nulls(1), pa.array(["x"]), pa.array([1])),
    (pa.nulls(1), pa.array(["x"]).dictionary_encode(), pa.array([1])),
    (pa.nulls(1), pa.array([[1.5]], pa.list_(pa.float32())), pa.array(["x"])),
    (pa.array([{"f": None}]), pa.array([{"f": 7}]), pa.array([{"f": "x"}])),
]


@pytest.mark.parametrize(
    ("nulls", "values", "others", "add"), [(*one, ADDS[at % 3]) for at, one in enumerate(VALUES)]
)
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
    with Writer(tmp_path, write_options={"max_bytes_per_file": 1}) as writer:
        writer.write({"n": 1, "x": None})
        writer.write([{"n": 2, "x": "a"}, {"n": 3, "x": None}])
    with Writer(tmp_path, schema={"x": pa.string()}) as writer:
        writer.write({"n": 4, "x": "b"})
    assert rows_of(tmp_path) == {"n": [1, 2, 3, 4], "x": [None, "a", None, "b"]}


@pytest.mark.parametrize("keywords", [{}, {"schema": {"n": pa.int64()}}])
def test_an_idle_writer_of_a_new_dataset_writes_nothing(tmp_path: Path, keywords: dict[str, Any]) -> None:
    with Writer(tmp_path, **keywords) as writer:
        writer.write([])
        writer.write((), custom_metadata={})
        assert writer.commit() is None
        writer.write({"n": 1})
    assert rows_of(tmp_path) == {"n": [1]}


CATEGORIES = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array([0, 10, 20]))
KEPT = {
    "texts": pa.array(["a", "bb", "ccc"]),
    "categories": CATEGORIES,
    "texts of categories": pa.array(["a", "bb", "ccc"]).dictionary_encode(),
    "lists of categories": pa.ListArray.from_arrays([0, 1, 1, 3], CATEGORIES),
    "structs": pa.array([{"f": 1}, {"f": 2}, {"f": 3}]),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_caller_may_reuse_the_memory_of_written_rows(tmp_path: Path, name: str) -> None:
    copy = pa.ipc.open_stream(_stream(pa.table({"x": KEPT[name]}))).read_all()
    expected = copy["x"].to_pylist()
    with Writer(tmp_path) as writer:
        writer.write(copy)
        for chunk in copy["x"].chunks:
            for buffer in _buffers(chunk):
                np.ctypeslib.as_array((ctypes.c_uint8 * buffer.size).from_address(buffer.address))[:] = 0
    assert pa.array(read_tfrecord(tmp_path).compute()["x"]).to_pylist() == expected


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


def stream_during(rows: pa.Table, other: Callable[[], Any]) -> pa.RecordBatchReader:
    """Rows between which another write commits."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows.slice(0, 1).to_batches()
        other()
        yield from rows.slice(1).to_batches()

    return pa.RecordBatchReader.from_batches(rows.schema, batches())


def test_an_append_that_another_column_overtakes_is_kept(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"n": [1]}), tmp_path)
    adds = partial(by_adding, pa.table({"n": [3], "x": [1]}), tmp_path)
    by_append(stream_during(pa.table({"n": [2, 4]}), adds), tmp_path)
    with Writer(tmp_path) as writer:
        writer.write({"n": 5, "x": 2})
        by_adding(pa.table({"n": [6], "x": [3], "y": ["a"]}), tmp_path)
    found = pd.DataFrame(rows_of(tmp_path)).sort_values("n")
    assert found["n"].tolist() == [1, 2, 3, 4, 5, 6]
    assert found["x"].fillna(0).tolist() == [0, 0, 1, 0, 2, 3]
    assert found["y"].fillna("").tolist() == ["", "", "", "", "", "a"]


def test_an_append_that_a_type_for_nulls_overtakes_is_kept_or_refused(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"n": [1], "x": pa.nulls(1)}), tmp_path)
    texts = partial(by_append, pa.table({"n": [3], "x": ["a"]}), tmp_path)
    by_append(stream_during(pa.table({"n": [2, 4], "x": pa.nulls(2)}), texts), tmp_path)
    assert sorted(rows_of(tmp_path)["n"]) == [1, 2, 3, 4]
    with pytest.raises(SchemaError, match="'x'"):
        by_append(pa.table({"n": [5, 6], "x": [1, 2]}), tmp_path)


def test_an_append_that_a_wider_type_overtakes_is_kept(tmp_path: Path) -> None:
    def rows(type_: pa.DataType, *keys: int) -> pa.Table:
        return pa.table({"n": pa.array(keys, type_), "x": pa.array([[key] for key in keys], pa.list_(type_))})

    to_tfrecord(rows(pa.int32(), 0), tmp_path)
    widen = partial(by_adding, rows(pa.int64(), 2**40), tmp_path)
    by_append(stream_during(rows(pa.int32(), 1, 3), widen), tmp_path)
    found = dask_tfrecord.open_dataset(tmp_path).to_table().sort_by("n")
    assert found.schema.types == [pa.int64(), pa.list_(pa.int64())]
    assert found.to_pydict() == {"n": [0, 1, 3, 2**40], "x": [[0], [1], [3], [2**40]]}
    assert read_tfrecord(tmp_path, filters=[("n", ">=", 3)]).compute()["n"].tolist() == [2**40, 3]
    with pytest.raises(SchemaError, match="in the dataset it is"):
        by_append(rows(pa.int32(), 1), tmp_path)


pytestmark = pytest.mark.usefixtures("one_thread")

OLD = pa.table({"n": pa.array([1, None, 3], pa.int32()), "half": pa.array([0.5, 1, 2], pa.float16())})
NEW = pa.table(
    {
        "n": pa.array([2**40, 5]),
        "half": pa.array([0.1, 3], pa.float32()),
        "text": ["x", None],
        "items": pa.array([[1], []], pa.list_(pa.int16())),
        "point": pa.array([{"x": 1, "y": None}, None], pa.struct({"x": pa.int64(), "y": pa.string()})),
    }
)


def read(place: Any, **options: Any) -> list[dict[str, Any]]:
    frame = read_tfrecord(place, **options).compute()
    found: list[dict[str, Any]] = pa.Table.from_pandas(frame, preserve_index=False).to_pylist()
    return found


def add(rows: pa.Table, place: Any, **options: Any) -> Snapshot:
    to_tfrecord(rows, place, append=True, schema_change="add", **options)
    return Snapshot.open(place)


def joined(*tables: pa.Table) -> list[dict[str, Any]]:
    rows = pa.concat_tables(tables, promote_options="permissive").select(NEW.column_names)
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


@pytest.mark.parametrize("keys", [None, "text"])
def test_older_rows_are_null_in_added_columns_and_keep_their_values(place: str, keys: str | None) -> None:
    old = OLD.append_column("text", pa.array(["x", "y", "x"])) if keys else OLD
    to_tfrecord(old, place, partition_on=keys)
    snapshot = add(NEW, place, partition_on=keys)
    assert snapshot == Snapshot.open(place)
    types = dict(zip(NEW.column_names, NEW.schema.types, strict=True))
    assert {item.name: item.type for item in snapshot.columns.fields} == types
    assert read_tfrecord(place, version=1).columns.tolist() == old.column_names
    assert sorted(str(sorted(row.items())) for row in read(place)) == sorted(
        str(sorted(row.items())) for row in joined(old, NEW)
    )


def test_statistics_filters_divisions_and_feeds_know_of_the_added_columns(
    tmp_path: Path, opened: list[str]
) -> None:
    to_tfrecord(OLD, tmp_path)
    add(NEW, tmp_path)
    old, new = ({one.name: one for one in file.statistics} for file in Snapshot.open(tmp_path).files)
    assert (old["text"].nulls, old["text"].min, old["text"].max) == (3, None, None)
    assert (old["items"].nulls, old["items"].min_length) == (3, None)
    assert (old["n"].min, old["n"].max, new["n"].max) == (1, 3, 2**40)
    assert [row["n"] for row in read(tmp_path, filters=[("text", "==", "x")])] == [2**40]
    assert len({*opened}) == 1
    assert [row["n"] for row in read(tmp_path, filters=[("n", ">=", 3)])] == [3, 2**40, 5]
    assert [row["text"] for row in read(tmp_path, columns=["text"], dtype_backend="numpy")].count(None) == 4
    assert open_dataset(tmp_path).verify()["agrees"].all()
    (batch,) = dask_tfrecord.feed.iter_batches(tmp_path, 5)
    assert pa.table(batch).to_pylist() == joined(OLD, NEW)
    assert dask_tfrecord.feed.RecordTable(tmp_path).batch(np.arange(5)).num_rows == 5


def test_an_append_after_added_columns_uses_a_base_again(tmp_path: Path, appended_snapshots: str) -> None:
    to_tfrecord(OLD, tmp_path)
    add(NEW, tmp_path)
    to_tfrecord(NEW, tmp_path, append=True)
    assert read(tmp_path) == joined(OLD, NEW, NEW)


def test_rows_of_narrower_types_take_the_types_of_the_dataset(tmp_path: Path) -> None:
    to_tfrecord(NEW.select(["n", "text"]), tmp_path)
    add(OLD.select(["n"]).append_column("text", pa.nulls(3)), tmp_path)
    with Writer(tmp_path, {"n": "int8"}, schema_change="add") as writer:
        writer.write([{"n": 7}])
    assert [row["n"] for row in read(tmp_path)] == [2**40, 5, 1, None, 3, 7]
    assert [row["n"] for row in read(tmp_path, filters=[("n", "<", 5)])] == [1, 3]
    (statistics, *_) = Snapshot.open(tmp_path).files[-1].statistics
    assert (statistics.name, statistics.min, statistics.max) == ("n", 7, 7)


@pytest.mark.parametrize("compacts_too", [False, True])
@pytest.mark.parametrize(
    "rewrite", [operations.compact, lambda path: dask_tfrecord.open_dataset(path).delete([("n", "==", 1)])]
)
def test_columns_that_are_added_during_a_rewrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewrite: Callable[[Path], Any], compacts_too: bool
) -> None:
    for rows in (OLD, OLD.slice(1)):
        to_tfrecord(rows, tmp_path, append=True)

    def write_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        add(NEW, tmp_path)
        if compacts_too:
            open_dataset(tmp_path).compact()
        return commit(*arguments)

    monkeypatch.setattr(compact, "commit", write_first)
    monkeypatch.setattr(delete, "commit", write_first)
    rewrite(tmp_path)
    expected = joined(OLD, OLD.slice(1), NEW)[int(rewrite != operations.compact) :]
    assert read(tmp_path) == expected
    for name, value in (("n", 3), ("text", "x")):
        found = read(tmp_path, filters=[(name, "==", value)])
        assert found == [row for row in expected if row[name] == value]
    nulls = [row for row in expected if row["text"] is None]
    assert read(tmp_path, filters=[("text", "is", None)]) == nulls
    assert open_dataset(tmp_path).verify()["agrees"].all()


def test_a_writer_adds_the_columns_of_its_schema(tmp_path: Path) -> None:
    to_tfrecord(OLD.select(["n"]), tmp_path)
    with Writer(tmp_path, {"text": "string", "n": "int64"}, schema_change="add") as writer:
        writer.write([{"n": 2**40, "text": "x"}])
        writer.commit()
        add(pa.table({"n": [5], "text": ["y"], "m": [6]}), tmp_path)
        writer.write([{"n": 7}])
    with Writer(tmp_path, schema_change="add") as writer:
        writer.write([{"n": 8}])
    given = {2**40: {"text": "x"}, 5: {"text": "y", "m": 6}}
    numbers = [1, None, 3, 2**40, 5, 7, 8]
    assert read(tmp_path) == [{"n": n, "text": None, "m": None} | given.get(n, {}) for n in numbers]
    with pytest.raises(SchemaError, match=r"'n'.*string.*int64"):
        Writer(tmp_path, {"n": "string"}, schema_change="add")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (pa.table({"n": ["x"]}), "'n'.*string.*int32"),
        (pa.table({"n": pa.array([1.5], pa.float32())}), "'n'.*does not fit int32.*1.5"),
        (pa.table({"m": [1]}), "'n'.*the rows do not"),
    ],
)
def test_other_changes_than_schema_change_allows_are_refused_with_both_types(
    tmp_path: Path, rows: pa.Table, message: str
) -> None:
    to_tfrecord(OLD.select(["n"]), tmp_path)
    with pytest.raises(SchemaError, match=message):
        add(rows, tmp_path)
    with pytest.raises(dask_tfrecord.TFRecordError, match="schema_change='add' is for writes that keep"):
        to_tfrecord(rows, tmp_path, overwrite=True, schema_change="add")


@pytest.mark.parametrize(
    ("one", "other", "wider"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int16(), pa.int16()),
        (pa.int8(), pa.uint16(), None),
        (pa.uint32(), pa.int32(), None),
        (pa.float16(), pa.float64(), pa.float64()),
        (pa.int8(), pa.float32(), None),
        (pa.bool_(), pa.int8(), None),
        (pa.null(), pa.list_(pa.string()), pa.list_(pa.string())),
        (pa.list_(pa.int8()), pa.list_(pa.int16()), pa.list_(pa.int16())),
        (pa.list_(pa.int8()), pa.list_(pa.int8(), 2), None),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int16(), 3), None),
        (pa.struct({"a": pa.int8()}), pa.struct({"a": pa.int64()}), pa.struct({"a": pa.int64()})),
        (pa.struct({"a": pa.int8()}), pa.struct({"b": pa.int8()}), None),
        (pa.timestamp("s"), pa.timestamp("ms"), None),
        (pa.date32(), pa.timestamp("s"), None),
    ],
)
def test_a_type_is_wider_if_it_holds_all_values_in_the_same_form(
    one: pa.DataType, other: pa.DataType, wider: pa.DataType | None
) -> None:
    assert widened(one, other) == widened(other, one) == wider


KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "Dask": lambda frame: dd.from_pandas(frame, npartitions=2),
    "Arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "stream": lambda frame: pa.Table.from_pandas(frame, preserve_index=False).to_reader(),
    "dicts": lambda frame: frame.to_dict("records"),
}
EXISTING = pd.DataFrame({"day": ["mon", "tue"], "n": [1, 2], "text": ["a", "b"], "x": [1.5, 2.5]})
MORE = pd.DataFrame({"day": ["tue", "wed"], "n": [3, 4], "text": ["c", "d"], "x": [3.5, 4.5], "y": [5, 6]})
CHANGES = {"new": MORE, "absent": MORE[["day", "n"]], "new and absent": MORE[["y", "n", "day"]]}
WAYS = [(mode, kind) for mode in ("append", "partitions") for kind in KINDS if kind != "dicts"]
WAYS += [("Writer", kind) for kind in KINDS if kind != "Dask"]


@pytest.mark.sampled
@pytest.mark.parametrize(("mode", "kind"), WAYS)
@pytest.mark.parametrize("change", CHANGES)
def test_new_columns_are_added_and_absent_columns_are_null(
    tmp_path: Path, mode: str, kind: str, change: str
) -> None:
    """In an append, an overwrite of partitions and a Writer, whatever brings the rows."""
    frame = CHANGES[change]
    to_tfrecord(EXISTING, tmp_path, partition_on="day", lossy="allow")
    if mode == "Writer":
        schema = {"y": pa.int64()} if "y" in frame else None
        with Writer(tmp_path, schema, schema_change="add", lossy="allow") as writer:
            writer.write(KINDS[kind](frame))
    else:
        how: Any = {"append": True} if mode == "append" else {"overwrite": "partitions"}
        rows, how = KINDS[kind](frame), how | {"schema_change": "add", "lossy": "allow"}
        to_tfrecord(rows, tmp_path, partition_on="day", **how)
    kept = EXISTING[EXISTING["day"] != "tue"] if mode == "partitions" else EXISTING
    expected = [*kept.to_dict("records"), *frame.to_dict("records")]
    names = {*EXISTING.columns, *frame.columns}
    found = open_dataset(tmp_path).to_table().to_pylist()
    assert len(found) == len(expected)
    assert {row["n"]: row for row in found} == {row["n"]: dict.fromkeys(names) | row for row in expected}
    without = read_tfrecord(tmp_path, filters=[("x", "is", np.nan)]).compute()
    assert sorted(without["n"]) == ([] if "x" in frame else [3, 4])
    assert open_dataset(tmp_path).verify()["agrees"].all()


@pytest.mark.parametrize("overwrite", [True, "partitions"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("given", [None, "add"])
def test_no_message_advises_an_append_to_an_overwrite(
    tmp_path: Path, overwrite: Any, change: str, given: Any
) -> None:
    """Followed, it doubled the partitions that the write was to replace."""
    to_tfrecord(EXISTING, tmp_path, partition_on="day", lossy="allow")
    keywords: Any = {"partition_on": "day", "overwrite": overwrite, "schema_change": given, "lossy": "allow"}
    error = None
    try:
        to_tfrecord(CHANGES[change], tmp_path, **keywords)
    except TFRecordError as raised:
        error = raised
    if error is not None:
        assert "append" not in str(error)
        [remedy] = error.remedies
        to_tfrecord(CHANGES[change], tmp_path, **keywords | {remedy.keyword: remedy.value})
    assert sorted(rows_of(tmp_path)["n"]) == ([3, 4] if overwrite is True else [1, 3, 4])


@pytest.mark.parametrize("absent", ["day", "i"])
def test_a_writer_does_not_fill_partition_columns_and_the_index(tmp_path: Path, absent: str) -> None:
    rows = pd.DataFrame({"day": ["mon"], "n": [1]}, index=pd.Index([7], name="i"))
    to_tfrecord(rows, tmp_path, partition_on="day")
    with Writer(tmp_path, schema_change="add") as writer, pytest.raises(SchemaError, match="the rows do not"):
        writer.write(rows.reset_index().drop(columns=absent))
