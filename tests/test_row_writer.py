"""A Writer takes rows of all kinds, and refuses calls whose rows do not fit the dataset as a whole.

Modules: row_writer.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from small_frames import values

from dask_tfrecord import (
    DestinationError,
    SchemaError,
    Snapshot,
    TFRecordError,
    Writer,
    inspect,
    read_tfrecord,
    to_tfrecord,
)

pytestmark = pytest.mark.usefixtures("one_thread")

TABLE = pa.table(
    {
        "n": pa.array(range(6)),
        "name": ["a", None, "c", "a", "b", None],
        "items": pa.array([[n] * (n % 3) for n in range(6)], pa.list_(pa.int32())),
        "half": pa.array([n / 2 for n in range(6)], pa.float32()),
    }
)
NUMBERS = pa.schema({"n": pa.int64()})


def rows(*values: int) -> list[dict[str, Any]]:
    return [{"n": value} for value in values]


def failing_stream(batches: list[dict[str, Any]], error: Exception | None = None) -> pa.RecordBatchReader:
    def stream() -> Iterator[pa.RecordBatch]:
        yield from (pa.record_batch(batch).cast(schema) for batch in batches)
        if error is not None:
            raise error

    schema = pa.schema({"n": pa.float64()})
    return pa.RecordBatchReader.from_batches(schema, stream())


def same_rows(place: str, other: str) -> bool:
    """Compare two datasets, except for the names of files and the times."""

    def described(path: str) -> tuple[Any, ...]:
        found = Snapshot.open(path)
        files = [replace(file, path=os.path.dirname(file.path), stamp="") for file in found.files]
        return files, found.schema, found.partitioning, found.order, found.index, found.compression

    return described(place) == described(other)


@pytest.mark.parametrize(
    "given",
    [
        lambda table: table,
        lambda table: table.to_reader(2),
        lambda table: table.to_batches()[0],
        lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
        lambda table: pytest.importorskip("polars").from_arrow(table),
        lambda table: table.to_pylist(),
        lambda table: table.select([*reversed(table.column_names)]),
        lambda table: table.set_column(0, "n", table["n"].cast(pa.int16())),
    ],
    ids=["Table", "stream", "RecordBatch", "pandas", "polars", "dicts", "other order", "narrower"],
)
@pytest.mark.parametrize("keys", [None, ["name"]])
def test_all_kinds_of_rows_are_written_as_to_tfrecord_writes_a_table(
    place: str, tmp_path: Path, given: Callable[[pa.Table], Any], keys: list[str] | None
) -> None:
    with Writer(place, TABLE.schema, partition_on=keys, compression="gzip", lossy="raise") as writer:
        writer.write(TABLE)
        writer.commit()
        writer.write(given(TABLE))
    other = str(tmp_path / "other")
    for appends in (False, True):
        to_tfrecord(TABLE, other, partition_on=keys, compression="gzip", append=appends)
    assert same_rows(place, other)


def test_dicts_may_lack_keys_and_bytes_are_whole_records(tmp_path: Path) -> None:
    dicts: list[dict[str, Any]] = [{"a": 1}, {"b": ["x"]}, {}]
    with Writer(tmp_path / "dicts") as writer:
        writer.write(dicts)
        writer.write({"a": 2, "b": None})
        writer.write([])
    found = read_tfrecord(tmp_path / "dicts").compute()
    assert found["a"].tolist() == [1, pd.NA, pd.NA, 2]
    with Writer(tmp_path / "bytes") as writer:
        writer.write([b"one", b""])
        writer.write(b"three")
    files = sorted((tmp_path / "bytes").glob("part-*"))
    assert [payload for path in files for payload in oracle.read_payloads(path)] == [b"one", b"", b"three"]


@pytest.mark.parametrize("kind", ["pandas", "Arrow"])
def test_memory_of_rows_may_be_reused_after_the_call(tmp_path: Path, kind: str) -> None:
    memory = np.arange(3)
    with Writer(tmp_path) as writer:
        for number in range(3):
            memory[:] = np.arange(3) + 10 * number
            made = pd.DataFrame({"n": memory}, copy=False) if kind == "pandas" else pa.table({"n": memory})
            writer.write(made)
    assert values(tmp_path) == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_values_of_pandas_in_dicts_keep_their_nanoseconds(tmp_path: Path) -> None:
    nested = {"times": [pd.Timestamp(3, tz="UTC"), pd.Timestamp(4, tz="UTC")]}
    given: list[dict[str, Any]] = [
        {"at": pd.Timestamp(1), "took": pd.Timedelta(2), "all": nested, "n": 1},
        {"at": pd.NaT, "took": None, "all": None, "n": pd.NA},
    ]
    with Writer(tmp_path / "ns") as writer:
        writer.write(given)
    (first, second) = next(inspect(tmp_path / "ns").iter_tables()).to_pylist()
    assert first == given[0]
    assert {*second.values()} == {None}
    with Writer(tmp_path / "us", {"at": pa.timestamp("us")}) as writer:
        with pytest.raises(SchemaError, match="'at'"):
            writer.write({"at": pd.Timestamp(1)})
        writer.write({"at": pd.Timestamp(1_000)})


def test_dicts_of_a_struct_may_lack_keys_and_have_any_order(tmp_path: Path) -> None:
    type_ = pa.struct({"x": pa.int64(), "inner": pa.struct({"a": pa.string(), "b": pa.float32()})})
    rows: list[dict[str, Any]] = [{"s": None}, {"s": {"inner": None, "x": 1}}, {"s": {}}]
    with Writer(tmp_path, {"s": type_}, lossy="raise") as writer:
        writer.write({"s": {"inner": {"b": 0.5}}})
        writer.write(rows)
        with pytest.raises(SchemaError, match="'s'"):
            writer.write({"s": {"other": 1}})
    assert read_tfrecord(tmp_path)["s"].compute().array._pa_array.to_pylist() == [
        {"x": None, "inner": {"a": None, "b": 0.5}},
        None,
        {"x": 1, "inner": None},
        {"x": None, "inner": None},
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([*rows(1), {"m": 1}], "'m': the rows have this column, the dataset does not"),
        (pa.table({"m": [1]}), "'m': the rows have this column"),
        (pa.table({"n": [1], "m": [1]}), "'m': the rows have this column"),
        (pd.DataFrame({"m": [1]}), "'m': the rows have this column"),
        (pd.DataFrame({"n": [1]}, index=pd.Index(["x"], name="m")), "'m': the rows have this column"),
        ([{"n": 1}, {"n": "x"}], "record 1.*'n'"),
        (rows(1, 2**63), "record 1.*'n'"),
        (pa.table({"n": [0.0, 1.5]}), "record 1.*'n'"),
        ([{"n": 1}, "x"], "holds str"),
        (7, "int is not"),
        (dd.from_dict({"n": [1]}, npartitions=1), "Dask collection.*call ddf.to_tfrecord"),
        (pa.table([[1], [2]], ["n", "n"]), "'n': the rows have several"),
        ([b"record"], "whole records.*'example' records"),
        ([{1: 2}], "'1': a key is not a string"),
        (failing_stream([{"n": [1]}], ConnectionError("gone")), "failed after 1 rows.*gone"),
        (failing_stream([{"n": [1]}, {"n": [1.5]}]), "record 1.*'n'"),
    ],
)
def test_rows_of_other_columns_or_types_are_refused_as_a_whole(
    tmp_path: Path, given: Any, message: str
) -> None:
    with Writer(tmp_path, NUMBERS) as writer:
        writer.write(rows(1))
        with pytest.raises(TFRecordError, match=f"(?s){message}"):
            writer.write(given, custom_metadata={"offset": "7"})
        assert writer.uncommitted_rows == 1
        writer.write(rows(2))
    assert values(tmp_path) == [1, 2]
    assert not Snapshot.open(tmp_path).custom_metadata


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"schema": {"n": "int32"}}, SchemaError, "'n'.*says int32.*is int64"),
        ({"schema": {"m": "int64"}}, SchemaError, "'m'"),
        ({"partition_on": "n"}, SchemaError, "partitioned on"),
        ({"record_type": "bytes"}, SchemaError, "'bytes' records"),
        ({"commit_every": 0}, TFRecordError, "commit_every=0"),
        ({"commit_every": "5"}, TFRecordError, "commit_every='5'"),
        ({"commit_every": "soon"}, TFRecordError, "commit_every='soon'"),
        ({"commit_every": "-1 s"}, TFRecordError, "commit_every"),
        ({"max_bytes_per_file": "many"}, TFRecordError, "max_bytes_per_file"),
    ],
)
def test_a_directory_of_another_schema_and_wrong_arguments_are_refused_at_once(
    tmp_path: Path, keywords: dict[str, Any], error: type[Exception], message: str
) -> None:
    to_tfrecord(pa.table({"n": [1]}), tmp_path)
    with pytest.raises(error, match=message):
        Writer(tmp_path, **keywords)
    assert Snapshot.open(tmp_path).number == 1


def test_a_path_inside_a_dataset_is_refused(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"n": [1]}), tmp_path)
    with pytest.raises(DestinationError, match="lies inside"):
        Writer(tmp_path / "below")


def test_files_of_other_tools_are_adopted(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"n": [1]}), tmp_path)
    shutil.rmtree(tmp_path / "_tfrecord")
    next(tmp_path.glob("part-*")).rename(tmp_path / "a.tfrecord")
    with Writer(tmp_path) as writer:
        with pytest.raises(SchemaError, match="'m'"):
            writer.write([{"m": 1}])
        writer.write(rows(2))
    assert values(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    ("column", "given"),
    [
        (pa.array([0, 2**63 - 1], pa.uint64()), pa.array([1, 2**63], pa.uint64())),
        (pa.array([[1], []]), pa.array([[1], [None]])),
        (pa.array([0.5, 1.0]), pa.array([0.5, 0.1])),
    ],
)
def test_a_value_that_a_record_cannot_hold_is_refused_with_its_call(
    tmp_path: Path, column: pa.Array, given: pa.Array
) -> None:
    with Writer(tmp_path, lossy="raise") as writer:
        with pytest.raises(SchemaError, match=r"record 0.*Writer takes lossy"):
            writer.write(pa.table({"other": [0.1]}))
        writer.write(pa.table({"n": column}))
        with pytest.raises(SchemaError, match=r"record 1.*'n'"):
            writer.write(pa.table({"n": given}))
    assert Snapshot.open(tmp_path).records == 2


@pytest.mark.parametrize(
    ("keywords", "given", "message"),
    [
        ({"record_type": "bytes"}, ["", None], "record 1.*'n'.*null"),
        ({"record_type": "example", "partition_on": "n"}, ["", "x" * 300], "'n'.*directory name"),
    ],
)
def test_a_missing_record_and_a_long_directory_name_are_refused_with_their_call(
    tmp_path: Path, keywords: dict[str, Any], given: list[str], message: str
) -> None:
    others = {"m": [0, 1]} if keywords["record_type"] == "example" else {}
    with Writer(tmp_path, **keywords) as writer:
        writer.write(pa.table({"n": [b"a", b"b"], **others}))
        with pytest.raises(SchemaError, match=message):
            writer.write(pa.table({"n": pa.array(given, pa.binary()), **others}))
    assert Snapshot.open(tmp_path).records == 2


@pytest.mark.parametrize("is_new", [False, True])
def test_each_rounded_column_warns_once(tmp_path: Path, is_new: bool) -> None:
    if not is_new:
        to_tfrecord(pa.table({"x": pa.array([0.5], pa.float32())}), tmp_path)
    with Writer(tmp_path, {"x": pa.float32()}) as writer:
        with pytest.warns(UserWarning, match="'x' are rounded"):
            writer.write({"x": 0.1})
        writer.write({"x": 0.1})
    assert read_tfrecord(tmp_path)["x"].compute().tolist()[-1] == np.float32(0.1)
