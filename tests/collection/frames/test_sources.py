"""Rows of pandas and Arrow are written without Dask, with the types, rows and errors of a Dask write.

Modules: collection.frames.table_sources, dataset.shuffle.table_stream.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import dask
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pytest
from cast_table import SOURCES, array_of
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_tfrecord
from dask_tfrecord import SchemaError, TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.collection.frames import table_sources
from dask_tfrecord.dataset.shuffle import table_stream
from dask_tfrecord.dataset.snapshot.model import Snapshot

pytestmark = pytest.mark.usefixtures("one_thread")

TABLE = pa.table(
    {
        "n": pa.array(range(10)),
        "name": [f"x{number % 3}" for number in range(10)],
        "items": pa.array([[number] * (number % 3) for number in range(10)], pa.list_(pa.int32())),
    }
)


class Exported:
    """An object that only exports an Arrow stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class ExportedArray:
    """An object that only exports one Arrow array."""

    def __init__(self, table: pa.Table) -> None:
        [self._batch] = table.combine_chunks().to_batches()

    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        return self._batch.__arrow_c_array__(requested_schema)


def csv_stream(table: pa.Table) -> Any:
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(table, sink)
    options = pa.csv.ReadOptions(block_size=64)
    types = {item.name: item.type for item in table.schema}
    return pa.csv.open_csv(
        pa.BufferReader(sink.getvalue()), options, convert_options=pa.csv.ConvertOptions(column_types=types)
    )


def polars_frame(table: pa.Table) -> Any:
    return pytest.importorskip("polars").from_arrow(table)


def duckdb_relation(table: pa.Table) -> Any:
    return pytest.importorskip("duckdb").from_arrow(table)


SOURCES_OF_ROWS: list[Callable[[pa.Table], Any]] = [
    lambda table: table,
    lambda table: table.to_pandas(),
    lambda table: table.to_reader(max_chunksize=3),
    lambda table: table.combine_chunks().to_batches()[0],
    Exported,
    ExportedArray,
    csv_stream,
    polars_frame,
    duckdb_relation,
]


def contents(path: Any) -> list[tuple[Any, ...]]:
    """What the files of a dataset hold, in the order of their names, and which directory each is in."""
    files = sorted(Snapshot.open(path).files, key=lambda file: file.path)
    return [(file.path.rpartition("/")[0], file.records, file.crc32c) for file in files if file.records]


def read(path: Path) -> pa.Table:
    frame = read_tfrecord(path, dtype_backend="pyarrow").compute()
    return pa.table({name: pa.array(frame[name]) for name in frame.columns})


@pytest.mark.parametrize("made", SOURCES_OF_ROWS)
def test_rows_of_any_object_come_back(tmp_path: Path, made: Callable[[pa.Table], Any]) -> None:
    table = TABLE.select(["n", "name"]) if made is csv_stream else TABLE
    to_tfrecord(made(table), tmp_path / "all", compression="gzip")
    snapshot = Snapshot.open(tmp_path / "all")
    found = read(tmp_path / "all")
    assert snapshot.records == 10
    assert found.column_names == table.column_names
    assert found.to_pylist() == table.to_pylist()
    assert found["name"].type == pa.string()
    if isinstance(made(table), pa.Table | pd.DataFrame):
        for name, options in {
            "a": {},
            "b": {"shuffle": True, "seed": 1},
            "c": {"partition_on": "name"},
        }.items():
            to_tfrecord(made(table.slice(0, 0).select(["n", "name"])), tmp_path / name, **options)
            assert read(tmp_path / name).equals(
                pa.table({"n": pa.array([], "int64"), "name": pa.array([], "string")})
            )


@st.composite
def columns(draw: Callable[..., Any], rows: int) -> pa.Array:
    type_, values = draw(st.sampled_from(SOURCES))
    found = [array_of(draw(st.none() | st.sampled_from(values)), type_).slice(1) for _ in range(rows)]
    return pa.concat_arrays(found)


def outcome(write: Callable[[Path], Any]) -> tuple[Any, ...]:
    """The contents, the schema and the rows of the dataset that a function writes, or its error."""
    with TemporaryDirectory() as place:
        try:
            write(Path(place) / "data")
        except SchemaError as error:
            return type(error), error.feature, error.record
        snapshot = Snapshot.open(Path(place) / "data")
        return contents(Path(place) / "data"), snapshot.columns, snapshot.custom_metadata, snapshot.partitions


@settings(max_examples=max(10, settings().max_examples * 6 // 10))
@given(data=st.data(), rows=st.integers(1, 8))
def test_a_stream_gives_what_dask_gives(data: st.DataObject, rows: int) -> None:
    """In tables of any size; a shuffle moves the rows of each table as Dask moves those of a partition."""
    drawn = {f"c{number}": data.draw(columns(rows)) for number in range(data.draw(st.integers(1, 3)))}
    table = pa.table({"row": np.arange(rows), **drawn})
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(1, rows), max_size=2))})
    parts = [table.slice(start, stop - start) for start, stop in pairwise(cuts)]
    key = data.draw(st.sampled_from([None, *drawn]))
    shuffle = data.draw(st.booleans())
    options: dict[str, Any] = {"partition_on": key, "shuffle": shuffle, "lossy": "raise"}
    options["split"] = data.draw(st.none() | st.just({"a": 0.5, "b": 0.5}))
    options["colocate"] = bool(key or options["split"]) and data.draw(st.booleans())
    moves = options["colocate"] or shuffle
    options["write_options"] = {}
    if options["split"]:  # a seed numbers the rows of each partition
        options["write_options"]["split_by"] = "row" if moves else 5
    if not moves:
        options["write_options"]["max_rows_per_file"] = data.draw(st.sampled_from([2, 100]))
    frames = [pa.Table.to_pandas(part, types_mapper=pd.ArrowDtype) for part in (parts if moves else [table])]
    ddf = dd.from_map(lambda number: frames[number], range(len(frames)), meta=frames[0].iloc[:0])
    expected = outcome(lambda path: to_tfrecord(ddf, path, **options))

    def rows_of() -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield part.combine_chunks().to_batches()[0]

    with patch.object(table_stream, "_CHUNK_BYTES", 1 if moves else 1 << 26):
        batches = pa.RecordBatchReader.from_batches(table.schema, rows_of())
        found = outcome(lambda path: to_tfrecord(batches, path, **options))
    if moves and len(expected) == 3:  # Dask numbers the rows in their partition
        expected, found = expected[:2], found[:2]
    assert found == expected


@pytest.mark.parametrize(
    ("index", "write_index"),
    [(None, None), (None, True), (pd.Index(list("cba"), name="key"), None), (pd.Index([7, 8, 9]), False)],
)
def test_a_frame_gives_what_its_single_partition_gives(
    tmp_path: Path, index: pd.Index | None, write_index: bool | None
) -> None:
    columns = {
        "text": ["a", None, "ż"],
        "nothing": pd.Series([None, None, None], dtype=object),
        "number": [1.5, np.nan, -0.0],
        "int": pd.array([1, None, 3], dtype="Int16"),
        "kind": pd.Categorical(["b", None, "a"], categories=["c", "b", "a"], ordered=True),
        "time": pd.to_datetime(["2026-01-01", None, "1969-12-31"]),
    }
    frame = pd.DataFrame(columns).set_axis(index if index is not None else pd.RangeIndex(3))
    ddf = dd.from_pandas(frame, npartitions=1, sort=False)
    options: dict[str, Any] = {"write_index": write_index, "lossy": "allow", "custom_metadata": {"a": "b"}}
    expected = outcome(lambda path: to_tfrecord(ddf, path, **options))
    assert outcome(lambda path: to_tfrecord(frame, path, **options)) == expected
    with patch.object(table_sources, "_ROWS", 2), patch.object(table_stream, "_CHUNK_BYTES", 1):
        to_tfrecord(frame, tmp_path, **options)
        snapshot = Snapshot.open(tmp_path)
    assert (snapshot.columns, len(snapshot.files)) == (expected[1], 2)


def test_objects_are_written_without_the_advice_about_dask(tmp_path: Path) -> None:
    frame = pd.DataFrame({"data": [b"\xff", None], "items": [np.array([1, 2]), [3]], "text": ["a", "ż"]})
    to_tfrecord(frame.astype({"text": "string"}), tmp_path, schema={"text": pa.binary()})
    assert read(tmp_path).to_pylist() == [
        {"data": b"\xff", "items": [1, 2], "text": b"a"},
        {"data": None, "items": [3], "text": "ż".encode()},
    ]


@pytest.mark.parametrize("made", [lambda table: table, lambda table: table.to_pandas()])
def test_records_that_were_read_as_bytes(tmp_path: Path, made: Callable[[pa.Table], Any]) -> None:
    records = made(pa.table({"record": [b"first", b"second"]}))
    with pytest.warns(UserWarning, match='pass record_type="bytes" to write whole records'):
        to_tfrecord(records, tmp_path / "features")
    to_tfrecord(records, tmp_path / "records", record_type="bytes")
    snapshot = Snapshot.open(tmp_path / "records")
    assert snapshot.bytes == len(b"first" + b"second") + 2 * 16


def test_categories_in_a_view_type_are_converted_and_split(tmp_path: Path) -> None:
    """Polars exports such categories; Arrow cannot decode them."""
    names = pa.array(["a", "b"], pa.string_view())
    coded = pa.DictionaryArray.from_arrays([0, 1, None, 1], names)
    table = pa.table({"n": range(4), "kind": coded})
    splits = {"split": {"x": 0.5, "y": 0.5}, "write_options": {"split_by": "kind"}}
    found = outcome(lambda path: to_tfrecord(table, path, schema={"kind": pa.string()}, **splits))
    text = table.set_column(1, "kind", pa.array(["a", "b", None, "b"]))
    assert found == outcome(lambda path: to_tfrecord(text, path, **splits))
    to_tfrecord(table, tmp_path)
    assert read_tfrecord(tmp_path)["kind"].compute().cat.categories.tolist() == ["a", "b"]


def test_a_dataset_is_overwritten_by_its_own_rows(tmp_path: Path) -> None:
    with patch.object(table_stream, "_CHUNK_BYTES", 1):
        to_tfrecord(TABLE.to_reader(3), tmp_path)
        to_tfrecord(dask_tfrecord.feed.iter_batches(tmp_path, 4), tmp_path, overwrite=True)
        snapshot = Snapshot.open(tmp_path)
        assert [file.records for file in snapshot.files] == [4, 4, 2]
        to_tfrecord(dask_tfrecord.open_dataset(tmp_path), tmp_path, overwrite=True)
    assert read(tmp_path).equals(TABLE)


@pytest.mark.parametrize(
    ("is_pandas", "options"),
    [(True, {}), (True, {"shuffle": True, "seed": 1}), (False, {}), (False, {"partition_on": "name"})],
)
def test_an_error_names_the_row_of_the_stream(
    tmp_path: Path, is_pandas: bool, options: dict[str, Any]
) -> None:
    inexact = TABLE.append_column("f", pa.array([0.5] * 8 + [0.1, 0.5]))
    too_large = TABLE.append_column("f", pa.array([1] * 8 + [300, 1]))
    for table, more in [(inexact, {"lossy": "raise"}), (too_large, {"schema": {"f": "int8"}})]:
        rows = table.to_pandas() if is_pandas else table.to_reader(3)
        with (
            patch.object(table_stream, "_CHUNK_BYTES", 1),
            patch.object(table_sources, "_ROWS", 3),
            pytest.raises(SchemaError) as raised,
        ):
            to_tfrecord(rows, tmp_path / "data", **more, **options)
        assert (raised.value.record, raised.value.feature) == (8, "f")
        kind = "DataFrame" if is_pandas else "RecordBatchReader"
        assert str(raised.value).startswith(f"{tmp_path / 'data'}, {kind}, record 8: feature 'f'")
        assert not dask_tfrecord.exists(tmp_path / "data")


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 1}])
def test_a_stream_that_fails_leaves_the_old_rows(place: str, options: dict[str, Any]) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from TABLE.to_batches(3)
        raise ZeroDivisionError("on purpose")

    to_tfrecord(TABLE.slice(0, 2), place)
    store = Snapshot.open(place)
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, failing())
    with patch.object(table_stream, "_CHUNK_BYTES", 1), pytest.raises(TFRecordError) as raised:
        to_tfrecord(reader, place, overwrite=True, **options)
    assert "RecordBatchReader failed after 10 rows" in str(raised.value)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert Snapshot.open(place) == store
    assert dask_tfrecord.open_dataset(place).cleanup(older_than="0s") == []


def test_a_failed_write_leaves_no_generator_and_no_connection_open(tmp_path: Path) -> None:
    """Without garbage collection."""
    closed = []

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from TABLE.to_batches(3)
        finally:
            closed.append(True)

    gc.disable()
    try:
        with suppress(SchemaError), patch.object(table_stream, "_CHUNK_BYTES", 1):
            reader = pa.RecordBatchReader.from_batches(TABLE.schema, batches())
            to_tfrecord(reader, tmp_path, schema={"n": "bool"})
        del reader
        assert closed
    finally:
        gc.enable()
    connection = pytest.importorskip("duckdb").connect()
    for options in ({"partition_on": "q"}, {"schema": {"n": "bool"}}):
        with pytest.raises(SchemaError):
            to_tfrecord(connection.sql("select range as n from range(1000000)"), tmp_path / "data", **options)
        assert connection.execute("select 1").fetchall() == [(1,)]
    reader = TABLE.to_reader(3)
    with pytest.raises(SchemaError):
        to_tfrecord(reader, tmp_path, partition_on="q")
    assert to_tfrecord(reader, tmp_path).rows == len(TABLE)  # nothing was read


@pytest.mark.parametrize(
    ("made", "options", "problem"),
    [
        (lambda: TABLE, {"compute": False}, "^compute=.*is for Dask collections, and this Table"),
        (lambda: TABLE, {"compute_kwargs": {}}, "^compute_kwargs=.*is for Dask collections, and this Table"),
        (
            lambda: TABLE,
            {"compute_kwargs": {"retries": 0}},
            "^compute_kwargs=.*is for Dask collections, and this Table",
        ),
        (
            lambda: TABLE,
            {"write_options": {"npartitions": 2}},
            "^npartitions=.*is for Dask collections, and this Table",
        ),
        (lambda: TABLE, {"write_index": True}, "write_index=True needs an index, and Table has none"),
        (
            lambda: dask.bag.from_sequence([{"n": 1}]),
            {},
            r"Bag is not a Dask DataFrame.*pass bag\.to_dataframe",
        ),
        (lambda: [{"n": 1}], {}, r"list is not a Dask DataFrame.* pyarrow\.Table\.from_pylist"),
        (
            lambda: pa.chunked_array([[1]]),
            {},
            "ChunkedArray gives no stream of Arrow tables: .*non-struct type",
        ),
        (lambda: iter(TABLE.to_batches()), {}, r"pass pyarrow\.RecordBatchReader\.from_batches\(schema"),
        (lambda: pa.dataset.dataset(TABLE), {}, r"pass dataset\.scanner\(\)\.to_reader\(\)"),
        (lambda: pa.dataset.dataset(TABLE).scanner(), {}, r"pass scanner\.to_reader\(\)"),
        (
            lambda: polars_frame(TABLE).lazy(),
            {},
            r"LazyFrame is not a Dask DataFrame.* pass frame\.collect\(\)",
        ),
        (
            lambda: polars_frame(TABLE)["n"],
            {},
            r'Series is one column, .* pass column\.to_frame\("n"\)',
        ),
    ],
)
def test_other_objects_and_keywords_of_dask_are_refused_with_advice(
    tmp_path: Path, made: Callable[[], Any], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TFRecordError, match=problem):
        to_tfrecord(made(), tmp_path / "a", **options)
    assert not (tmp_path / "a").exists()


def test_a_stream_becomes_numbered_full_files_of_one_partition(tmp_path: Path) -> None:
    with patch.object(table_stream, "_CHUNK_BYTES", 1):
        to_tfrecord(TABLE.to_reader(4), tmp_path, partition_on="name", name_function=str)
        snapshot = Snapshot.open(tmp_path)
    names = [file.path.rpartition("/")[2].split("-", 2)[2] for file in snapshot.files]
    assert sorted(names) == [f"00000-of-00001-0000{number}-0.tfrecord" for number in range(8)]
    # Without the snapshot, the files are a complete write.
    found = read_tfrecord(tmp_path, use_snapshot=False)
    assert sorted(found["n"].compute()) == list(range(10))
    with patch.object(table_stream, "_CHUNK_BYTES", 24):
        reader = TABLE.select(["n"]).to_reader(2)
        to_tfrecord(reader, tmp_path, write_options={"max_rows_per_file": 3}, overwrite=True)
        snapshot = Snapshot.open(tmp_path)
    assert [file.records for file in snapshot.files] == [3, 3, 3, 1]
    assert read(tmp_path).equals(TABLE.select(["n"]))
