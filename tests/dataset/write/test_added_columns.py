"""An append with schema_change="add" adds columns and widens types, and the rows are those of pandas.

Modules: dataset.write.transaction, schema.conversion.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import (
    RecordTable,
    SchemaError,
    Snapshot,
    TFRecordError,
    Writer,
    compact,
    delete,
    iter_batches,
    read_tfrecord,
    to_tfrecord,
    verify,
)
from dask_tfrecord.dataset.maintenance import rewrites
from dask_tfrecord.dataset.write.transaction import commit
from dask_tfrecord.schema.conversion import widened

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
BOTH = pa.concat_tables([OLD, NEW], promote_options="permissive").select(NEW.column_names)


def read(place: Any, **options: Any) -> pa.Table:
    return pa.Table.from_pandas(read_tfrecord(place, **options).compute(), preserve_index=False)


@pytest.mark.parametrize("keys", [None, "text"])
def test_older_rows_are_null_in_added_columns_and_keep_their_values(place: str, keys: str | None) -> None:
    old = OLD.append_column("text", pa.array(["x", "y", "x"])) if keys else OLD
    to_tfrecord(old, place, partition_on=keys)
    snapshot = to_tfrecord(NEW, place, partition_on=keys, append=True, schema_change="add")
    assert snapshot == Snapshot.open(place)
    assert {item.name: item.type for item in snapshot.columns.fields} == dict(
        zip(NEW.column_names, NEW.schema.types, strict=True)
    )
    assert read_tfrecord(place, version=1).columns.tolist() == old.column_names
    found = read(place).select(NEW.column_names).replace_schema_metadata()
    expected = BOTH if keys is None else pa.concat_tables([old, NEW], promote_options="permissive")
    assert sorted(map(str, found.to_pylist())) == sorted(
        map(str, expected.select(NEW.column_names).to_pylist())
    )


def test_statistics_filters_divisions_and_feeds_know_of_the_added_columns(
    tmp_path: Path, opened: list[str]
) -> None:
    to_tfrecord(OLD, tmp_path)
    to_tfrecord(NEW, tmp_path, append=True, schema_change="add")
    old, new = ({one.name: one for one in file.statistics} for file in Snapshot.open(tmp_path).files)
    assert (old["text"].nulls, old["text"].min, old["text"].max) == (3, None, None)
    assert (old["items"].nulls, old["items"].min_length) == (3, None)
    assert (old["n"].min, old["n"].max, new["n"].max) == (1, 3, 2**40)
    assert read(tmp_path, filters=[("text", "==", "x")])["n"].to_pylist() == [2**40]
    assert len({*opened}) == 1
    assert read(tmp_path, filters=[("n", ">=", 3)])["n"].to_pylist() == [3, 2**40, 5]
    assert (
        read_tfrecord(tmp_path, columns=["text"], dtype_backend="numpy").compute()["text"].isna().sum() == 4
    )
    assert verify(tmp_path)["agrees"].all()
    (batch,) = iter_batches(tmp_path, 5)
    assert pa.table(batch).to_pylist() == BOTH.to_pylist()
    assert RecordTable(tmp_path).batch(np.arange(5)).num_rows == 5


def test_an_append_after_added_columns_uses_a_base_again(tmp_path: Path, appended_snapshots: str) -> None:
    to_tfrecord(OLD, tmp_path)
    to_tfrecord(NEW, tmp_path, append=True, schema_change="add")
    to_tfrecord(NEW, tmp_path, append=True)
    assert (
        read(tmp_path).to_pylist() == pa.concat_tables([BOTH, NEW], promote_options="permissive").to_pylist()
    )


def test_rows_of_narrower_types_take_the_types_of_the_dataset(tmp_path: Path) -> None:
    to_tfrecord(NEW.select(["n", "text"]), tmp_path)
    to_tfrecord(
        OLD.select(["n"]).append_column("text", pa.nulls(3)), tmp_path, append=True, schema_change="add"
    )
    with Writer(tmp_path, {"n": "int8"}, schema_change="add") as writer:
        writer.write([{"n": 7}])
    assert read(tmp_path)["n"].to_pylist() == [2**40, 5, 1, None, 3, 7]
    assert read(tmp_path, filters=[("n", "<", 5)])["n"].to_pylist() == [1, 3]
    (statistics, *_) = Snapshot.open(tmp_path).files[-1].statistics
    assert (statistics.name, statistics.min, statistics.max) == ("n", 7, 7)


@pytest.mark.parametrize("compacts_too", [False, True])
@pytest.mark.parametrize("rewrite", [compact, lambda path: delete(path, [("n", "==", 1)])])
def test_columns_that_are_added_during_a_rewrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewrite: Callable[[Path], Any], compacts_too: bool
) -> None:
    for rows in (OLD, OLD.slice(1)):
        to_tfrecord(rows, tmp_path, append=True)

    def write_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        to_tfrecord(NEW, tmp_path, append=True, schema_change="add")
        if compacts_too:
            compact(tmp_path)
        return commit(*arguments)

    for module in (rewrites, rewrites):
        monkeypatch.setattr(module, "commit", write_first)
    rewrite(tmp_path)
    expected = pa.concat_tables([OLD, OLD.slice(1), NEW], promote_options="permissive")
    expected = expected.select(NEW.column_names).to_pylist()[int(rewrite != compact) :]
    assert read(tmp_path).to_pylist() == expected
    for name, value in (("n", 3), ("text", "x")):
        found = read(tmp_path, filters=[(name, "==", value)]).to_pylist()
        assert found == [row for row in expected if row[name] == value]
    nulls = read(tmp_path, filters=[("text", "is", None)]).to_pylist()
    assert nulls == [row for row in expected if row["text"] is None]
    assert verify(tmp_path)["agrees"].all()


def test_concurrent_appends_may_add_different_columns(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"n": [1]}), tmp_path)
    frame = dd.from_pandas(pd.DataFrame({"n": [2], "a": [7]}), npartitions=1)
    lazy = frame.to_tfrecord(tmp_path, append=True, schema_change="add", compute=False)
    to_tfrecord(pa.table({"n": [3], "b": [8]}), tmp_path, append=True, schema_change="add")
    lazy.compute()
    assert read(tmp_path).to_pylist() == [
        {"n": 1, "b": None, "a": None},
        {"n": 3, "b": 8, "a": None},
        {"n": 2, "b": None, "a": 7},
    ]


def test_a_writer_adds_the_columns_of_its_schema(tmp_path: Path) -> None:
    to_tfrecord(OLD.select(["n"]), tmp_path)
    with Writer(tmp_path, {"text": "string", "n": "int64"}, schema_change="add") as writer:
        writer.write([{"n": 2**40, "text": "x"}])
        writer.commit()
        to_tfrecord(pa.table({"n": [5], "text": ["y"], "m": [6]}), tmp_path, append=True, schema_change="add")
        writer.write([{"n": 7}])
    with Writer(tmp_path, schema_change="add") as writer:
        writer.write([{"n": 8}])
    assert read(tmp_path).to_pylist() == [
        {"n": 1, "text": None, "m": None},
        {"n": None, "text": None, "m": None},
        {"n": 3, "text": None, "m": None},
        {"n": 2**40, "text": "x", "m": None},
        {"n": 5, "text": "y", "m": 6},
        {"n": 7, "text": None, "m": None},
        {"n": 8, "text": None, "m": None},
    ]
    with pytest.raises(SchemaError, match=r"'n'.*string.*int64"):
        Writer(tmp_path, {"n": "string"}, schema_change="add")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (pa.table({"n": ["x"]}), "'n'.*string.*int32"),
        (pa.table({"n": pa.array([1], pa.float32())}), "'n'.*float.*int32"),
        (pa.table({"m": [1]}), "'n'.*the DataFrame does not"),
    ],
)
def test_other_changes_than_schema_change_allows_are_refused_with_both_types(
    tmp_path: Path, rows: pa.Table, message: str
) -> None:
    to_tfrecord(OLD.select(["n"]), tmp_path)
    with pytest.raises(SchemaError, match=message):
        to_tfrecord(rows, tmp_path, append=True, schema_change="add")
    with pytest.raises(TFRecordError, match="schema_change='add' is for appends"):
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
