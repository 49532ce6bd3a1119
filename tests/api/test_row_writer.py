"""A Writer takes rows of all kinds as they arrive: each commit is whole, and no row is lost or doubled.

Modules: api.writer.
"""

import copy
import datetime
import errno
import math
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

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
    TFRecordError,
    Writer,
    open_dataset,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.api import writer as api_writer
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.files.entry import run_of
from dask_tfrecord.storage import store as stores
from dask_tfrecord.storage.paths import name_of
from dask_tfrecord.storage.store import LocalStore, Store

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


def same_rows(one: str, other: str) -> bool:
    """Compare two datasets, except for the names of files and the times."""

    def described(path: str) -> tuple[Any, ...]:
        found = Snapshot.open(path)
        files = [replace(file, path=os.path.dirname(file.path), stamp="") for file in found.files]
        return files, found.schema, found.partitioning, found.order, found.index, found.compression

    return described(one) == described(other)


@pytest.mark.parametrize(
    ("keys", "given"),
    [
        pytest.param(["name"], lambda table: table, id="Table"),
        pytest.param(None, lambda table: table.to_reader(2), id="stream"),
        pytest.param(None, lambda table: table.to_batches()[0], id="RecordBatch"),
        pytest.param(["name"], lambda table: table.to_pandas(types_mapper=pd.ArrowDtype), id="pandas"),
        pytest.param(None, lambda table: pytest.importorskip("polars").from_arrow(table), id="polars"),
        pytest.param(["name"], lambda table: table.to_pylist(), id="dicts"),
        pytest.param(["name"], lambda table: table.select([*reversed(table.column_names)]), id="order"),
        pytest.param(None, lambda table: table.set_column(0, "n", table["n"].cast("int16")), id="narrower"),
    ],
)
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
    assert values(tmp_path / "dicts", "a") == [1, pd.NA, pd.NA, 2]
    with Writer(tmp_path / "bytes") as writer:
        writer.write([b"one", b""])
        writer.write(b"three")
    files = sorted((tmp_path / "bytes").glob("part-*"))
    assert [payload for path in files for payload in oracle.read_payloads(path)] == [b"one", b"", b"three"]


@pytest.mark.parametrize("made", [lambda memory: pd.DataFrame(memory, copy=False), pa.table])
def test_memory_of_rows_may_be_reused_after_the_call(tmp_path: Path, made: Callable[[Any], Any]) -> None:
    memory = np.arange(3)
    with Writer(tmp_path) as writer:
        for number in range(3):
            memory[:] = np.arange(3) + 10 * number
            writer.write(made({"n": memory}))
    assert values(tmp_path) == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_values_of_pandas_in_dicts_keep_their_nanoseconds(tmp_path: Path) -> None:
    nested = {"times": [pd.Timestamp(3, tz="UTC"), pd.Timestamp(4, tz="UTC")]}
    given: list[dict[str, Any]] = [
        {"at": pd.Timestamp(1), "took": pd.Timedelta(2), "all": nested, "n": 1},
        {"at": pd.NaT, "took": None, "all": None, "n": pd.NA},
    ]
    with Writer(tmp_path / "ns") as writer:
        writer.write(given)
    (first, second) = next(open_dataset(tmp_path / "ns").to_batches()).to_pylist()
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


def failing_stream(batches: list[dict[str, Any]], error: Exception | None = None) -> pa.RecordBatchReader:
    def stream() -> Iterator[pa.RecordBatch]:
        yield from (pa.record_batch(batch).cast(schema) for batch in batches)
        if error is not None:
            raise error

    schema = pa.schema({"n": pa.float64()})
    return pa.RecordBatchReader.from_batches(schema, stream())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([*rows(1), {"m": 1}], "'m': the rows have this column, the dataset does not"),
        (pa.table({"n": [1], "m": [1]}), "'m': the rows have this column"),
        (pd.DataFrame({"n": [1]}, index=pd.Index(["x"], name="m")), "'m': the rows have this column"),
        ([{"n": 1}, {"n": "x"}], "record 1.*'n'"),
        (rows(1, 2**63), "record 1.*'n'"),
        (pa.table({"n": [0.0, 1.5]}), "record 1.*'n'"),
        ([{"n": 1}, "x"], "holds str"),
        (7, "int is not"),
        (dd.from_dict({"n": [1]}, npartitions=1), "Dask collection.*call ddf.to_tfrecord"),
        (pa.table([[1], [2]], ["n", "n"]), "several columns are named 'n'"),
        ([b"record"], "whole records.*'example' records"),
        ([{1: 2}], "'1': a key is not a string"),
        (failing_stream([{"n": [1]}], ConnectionError("gone")), "failed after 1 rows.*gone"),
        (failing_stream([{"n": [1]}, {"n": [1.5]}]), "record 1.*'n'"),
    ],
)
def test_rows_of_other_columns_or_types_are_refused(tmp_path: Path, given: Any, message: str) -> None:
    with Writer(tmp_path, NUMBERS) as writer:
        writer.write(rows(1))
        with pytest.raises(TFRecordError, match=f"(?s){message}"):
            writer.write(given, custom_metadata={"offset": "7"})
        assert writer.uncommitted_rows == 1
        writer.write(rows(2))
    assert values(tmp_path) == [1, 2]
    assert not Snapshot.open(tmp_path).custom_metadata


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("string", 1.5),
        ("string", math.nan),
        ("string", 5),
        ("string", True),
        ("string", datetime.datetime(2026, 1, 1)),
        (pa.timestamp("s"), 5),
        (pa.duration("s"), 5),
        ("int64", "5"),
        ("int64", datetime.timedelta(seconds=5)),
        (pa.list_(pa.string()), [1.5]),
        (pa.struct({"a": pa.string()}), {"a": 1.5}),
    ],
)
@pytest.mark.parametrize("form", ["dicts", "pandas", "arrow"])
def test_numbers_times_and_text_are_not_converted_to_each_other(
    tmp_path: Path, type_: Any, value: Any, form: str
) -> None:
    with Writer(tmp_path, {"n": type_}) as writer:
        writer.write([{"n": None}])
    made: Any = [{"n": value}]
    if form != "dicts":
        made = pa.table({"n": [value]}) if form == "arrow" else pa.table({"n": [value]}).to_pandas()
    is_missing = form == "pandas" and value != value  # NaN is a null in pandas, and a value elsewhere
    with Writer(tmp_path) as writer:
        if is_missing:
            writer.write(made)
        else:
            with pytest.raises(SchemaError, match=r"record 0.*'n'.*never equal"):
                writer.write(made)
        writer.write([{"n": None}])
    assert read_tfrecord(tmp_path).compute()["n"].isna().tolist() == [True] * (2 + is_missing)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"schema": {"n": "int32"}}, SchemaError, "'n'.*says int32.*is int64"),
        ({"schema": {"m": "int64"}}, SchemaError, "'m'"),
        ({"partition_on": "n"}, SchemaError, "partitioned on"),
        ({"record_type": "bytes"}, SchemaError, "'bytes' records"),
        ({"commit_every": 0}, TFRecordError, "commit_every=0"),
        ({"commit_every": "5"}, TFRecordError, "commit_every='5'"),
        ({"commit_every": "-1 s"}, TFRecordError, "commit_every"),
        ({"write_options": {"max_bytes_per_file": "many"}}, TFRecordError, "max_bytes_per_file"),
        ({"path": "below"}, DestinationError, "lies inside"),
    ],
)
def test_a_directory_of_another_schema_and_wrong_arguments_are_refused_at_once(
    tmp_path: Path, keywords: dict[str, Any], error: type[Exception], message: str
) -> None:
    to_tfrecord(pa.table({"n": [1]}), tmp_path)
    with pytest.raises(error, match=message):
        Writer(**keywords | {"path": tmp_path / keywords.get("path", "")})
    assert Snapshot.open(tmp_path).number == 1


LONG = ["", "x" * 300]


@pytest.mark.parametrize(
    ("keywords", "taken", "refused", "message"),
    [
        ({}, pa.array([0, 2**63 - 1], pa.uint64()), pa.array([1, 2**63], pa.uint64()), r"record 1.*'n'"),
        ({}, pa.array([[1], []]), pa.array([[1], [None]]), r"record 1.*'n'"),
        ({}, pa.array([0.5, 1.0]), pa.array([0.5, 0.1]), r"record 1.*'n'.*Writer takes lossy"),
        ({"record_type": "bytes"}, ["a", "b"], ["", None], "record 1.*'n'.*null"),
        ({"partition_on": "n"}, ["a", "b"], LONG, "'n'.*directory name"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused_with_its_call(
    tmp_path: Path, keywords: dict[str, Any], taken: Any, refused: Any, message: str
) -> None:
    others = {"m": [0, 1]} if "partition_on" in keywords else {}
    with Writer(tmp_path, lossy="raise", **keywords) as writer:
        writer.write(pa.table({"n": taken, **others}))
        with pytest.raises(SchemaError, match=message):
            writer.write(pa.table({"n": refused, **others}))
    assert Snapshot.open(tmp_path).records == 2


@pytest.mark.parametrize("is_new", [False, True])
def test_each_rounded_column_warns_once(tmp_path: Path, is_new: bool) -> None:
    if not is_new:
        to_tfrecord(pa.table({"x": pa.array([0.5], pa.float32())}), tmp_path)
    with Writer(tmp_path, {"x": pa.float32()}) as writer:
        with pytest.warns(UserWarning, match="'x' are rounded"):
            writer.write({"x": 0.1})
        writer.write({"x": 0.1})
    assert values(tmp_path, "x")[-1] == np.float32(0.1)


def test_readers_see_the_rows_of_a_commit_and_custom_metadata(place: str) -> None:
    with Writer(place, NUMBERS) as writer:
        assert writer.version is None
        assert writer.commit() is None
        writer.commit(custom_metadata={"source.offset": "0"})
        assert values(place) == []
        writer.write(rows(1, 2), custom_metadata={"source.offset": "2"})
        assert Snapshot.open(place).custom_metadata == {"source.offset": "0"}
        writer.commit(custom_metadata={"by": "test"})
        assert values(place) == [1, 2]
        assert Snapshot.open(place).custom_metadata == {"source.offset": "2", "by": "test"}
        writer.write(rows(3))
    assert values(place) == [1, 2, 3]
    assert open_dataset(place).history()["mode"].tolist() == ["append"] * 3
    with pytest.raises(TFRecordError, match="closed"):
        writer.write(rows(4))


@pytest.mark.usefixtures("appended_snapshots")
@pytest.mark.parametrize("keys", [None, "key"])
def test_the_version_in_memory_is_the_stored_version(tmp_path: Path, keys: str | None) -> None:
    to_tfrecord(pa.table({"n": [0], "key": [5]}), tmp_path, partition_on=keys)
    with Writer(tmp_path, write_options={"max_rows_per_file": 1}) as writer:
        for commit in range(6):
            writer.write(pa.table({"n": [commit, commit + 1], "key": [5 - commit, 0]}))
            writer.commit()
            stored, known = Snapshot.open(tmp_path), writer._snapshot
            assert known == stored
            assert known is not None
            for one, other in zip(known.log.lists, stored.log.lists, strict=True):
                assert one.commits == other.commits
                assert one.content.removed.equals(other.content.removed)
            rows = stored.file_list.rows
            assert known.file_list.select(rows.column_names).rows.equals(rows)
    assert open_dataset(tmp_path).verify()["agrees"].all()


@pytest.mark.parametrize(
    ("every", "versions"), [(3, [0, 0, 1, 1, 1, 2]), ("20 B", [0, 0, 1, 1, 1, 2]), (None, [0] * 6)]
)
def test_rows_are_committed_after_rows_or_bytes(tmp_path: Path, every: Any, versions: list[int]) -> None:
    found = []
    with Writer(tmp_path, commit_every=every) as writer:
        for number in range(6):
            writer.write(pa.table({"n": pa.array([number])}))
            found.append(writer.version or 0)
    assert found == versions
    assert values(tmp_path) == [*range(6)]


def test_rows_are_committed_after_a_time_of_a_steady_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr(api_writer, "monotonic", lambda: clock)
    with Writer(tmp_path, commit_every=datetime.timedelta(seconds=2)) as writer:
        writer.write(rows(1))
        clock += 1.9
        writer.write(rows(2))
        assert writer.version is None
        clock += 0.1
        writer.write([])
        assert values(tmp_path) == [1, 2]
        writer.write(rows(3))
        assert writer.uncommitted_rows == 1


def test_files_roll_by_size_and_wait_in_staging(tmp_path: Path) -> None:
    table = pa.table({"n": range(1000)})
    with Writer(tmp_path, write_options={"max_bytes_per_file": "4 KB"}) as writer:
        writer.write(table)
        assert len(list((tmp_path / "_tfrecord/staging").rglob("part-*"))) > 5
        writer.write(table)
    assert max(file.bytes for file in Snapshot.open(tmp_path).files) <= 4000
    assert values(tmp_path) == [*range(1000)] * 2
    assert not (tmp_path / "_tfrecord/staging").exists()


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Let some calls of a method fail before they do their work, or after."""

    def fail(method: str, calls: Container[int], error: Exception, *, after: bool = False) -> list[int]:
        """Return the numbers of the calls."""
        numbers: list[int] = []
        owner = {"write": WriteRun, "_open_new": LocalStore}.get(method, Store)
        original = getattr(owner, method)

        def failing(*arguments: Any, **keywords: Any) -> Any:
            numbers.append(len(numbers))
            fails = numbers[-1] in calls
            result = original(*arguments, **keywords) if after or not fails else None
            if fails:
                raise error
            return result

        monkeypatch.setattr(owner, method, failing)
        return numbers

    return fail


def test_an_exception_drops_what_is_not_committed_and_says_what_is(place: str) -> None:
    def stop() -> None:
        with Writer(place, write_options={"max_bytes_per_file": 1}) as writer:
            writer.write(rows(1, 2))
            writer.commit(custom_metadata={"offset": "2"})
            writer.write(rows(3))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        stop()
    (note,) = caught.value.__notes__
    assert "committed 2 rows in 1 commit, dropped 1 row;" in note
    assert "version 1, {'offset': '2'}" in note
    assert values(place) == [1, 2]
    assert not Store.at(place).names("_tfrecord/staging")


@pytest.mark.parametrize("failures", [1, 3])
def test_a_full_disk_in_a_roll_loses_no_row(
    tmp_path: Path, fail: Callable[..., list[int]], failures: int
) -> None:
    with Writer(tmp_path, write_options={"max_rows_per_file": 1}) as writer:
        writer.write(rows(1))
        writer.commit()
        writer.write(rows(2, 3, 4, 5))
        fail("_open_new", range(3, 3 + failures), FULL)
        for _ in range(failures):
            with pytest.raises(OSError, match="No space left"):
                writer.commit(custom_metadata={"offset": "5"})
            assert values(tmp_path) == [1]
        writer.write(rows(6))
    assert values(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert Snapshot.open(tmp_path).custom_metadata == {"offset": "5"}
    assert open_dataset(tmp_path).verify()["agrees"].all()


@pytest.mark.parametrize("done", [0, 3])
def test_a_call_of_many_tables_is_taken_as_a_whole_if_the_disk_is_full(
    tmp_path: Path, fail: Callable[..., list[int]], done: int
) -> None:
    given = pa.Table.from_batches([pa.record_batch({"n": [2 * at, 2 * at + 1]}) for at in range(10)])
    calls = fail("write", [done], FULL)
    with Writer(tmp_path, NUMBERS, write_options={"max_bytes_per_file": 16}, commit_every=30) as writer:
        with pytest.raises(OSError, match="No space left"):
            writer.write(given, custom_metadata={"offset": "20"})
        assert writer.uncommitted_rows == 20
        for again in (given, []):
            with pytest.raises(TFRecordError, match=r"20 rows wait; call commit\(\)"):
                writer.write(again)
        found = writer.commit()
        assert found is not None
        assert (found.rows, writer.metadata) == (20, {"offset": "20"})
        assert len(calls) == 11
        writer.write([])
    assert values(tmp_path) == [*range(20)]


@pytest.mark.parametrize("created", [False, True])
@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_rows_are_committed_once_if_creating_the_version_fails(
    tmp_path: Path, fail: Callable[..., list[int]], created: bool, attempts: int
) -> None:
    with Writer(tmp_path) as writer:
        writer.write(rows(1))
        writer.commit()
        fail("create_exclusively", range(attempts), ConnectionError("lost"), after=created)
        writer.write(rows(2))
        for value in (3, 4):
            try:
                writer.commit()
            except ConnectionError:
                assert not created
            writer.write(rows(value))
    assert values(tmp_path) == [1, 2, 3, 4]


def test_an_interrupt_in_a_commit_says_if_the_commit_succeeded(tmp_path: Path) -> None:
    def interrupt() -> None:
        with Writer(tmp_path) as writer:
            writer.write(rows(1))
            writer.commit()
            writer.write(rows(2))
            with patch.object(transaction, "remove_replaced", side_effect=KeyboardInterrupt):
                writer.commit()

    with pytest.raises(KeyboardInterrupt) as caught:
        interrupt()
    [note] = caught.value.__notes__
    assert "committed 2 rows in 2 commits, dropped 0 rows; the dataset has version 2" in note
    assert values(tmp_path) == [1, 2]


def test_a_writer_that_is_not_closed_warns(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(rows(1))
    with pytest.warns(ResourceWarning, match="1 row not committed"):
        del writer


def test_several_writers_are_several_appenders(place: str) -> None:
    with Writer(place, NUMBERS) as one, Writer(place) as other:
        for number in range(0, 20, 4):
            one.write(rows(number))
            other.write(rows(number + 1))
            one.commit(custom_metadata={"one": str(number)})
            other.commit(custom_metadata={"other": str(number)})
            to_tfrecord(pa.table({"n": [number + 2]}), place, append=True)
            other.write(rows(number + 3))
    assert sorted(values(place)) == [*range(20)]
    assert Snapshot.open(place).custom_metadata == {"one": "16", "other": "16"}


def test_writers_of_several_threads_lose_and_double_no_row(place: str) -> None:
    def work(first: int) -> None:
        with Writer(place, NUMBERS, commit_every=2) as writer:
            for number in range(first, first + 6):
                writer.write(rows(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(0, 24, 6)))
    assert sorted(values(place)) == [*range(24)]
    assert Snapshot.open(place).number == 12


def test_threads_may_share_a_writer(place: str) -> None:
    with Writer(place, NUMBERS, commit_every=3) as writer, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: writer.write(rows(number)), range(40)))
    assert sorted(values(place)) == [*range(40)]
    assert open_dataset(place).verify()["agrees"].all()


@pytest.mark.parametrize("change", ["overwrite", "two overwrites", "remove", "index"])
def test_rows_go_to_the_dataset_that_another_write_has_made(tmp_path: Path, change: str) -> None:
    other = pa.table({"n": np.arange(100, 103)})
    with Writer(tmp_path / "here") as writer:
        writer.write(rows(1))
        writer.commit()
        writer.write(rows(2))
        if change == "remove":  # the new dataset has a version of the same number
            shutil.rmtree(tmp_path / "here")
            to_tfrecord(other, tmp_path / "here")
        elif change == "index":
            open_dataset(tmp_path / "here").add_snapshot(columnar=["n"])
        else:
            for _ in range(1 + (change == "two overwrites")):
                to_tfrecord(other, tmp_path / "here", overwrite=True)
    first = [1] if change == "index" else [100, 101, 102]
    assert values(tmp_path / "here") == [*first, 2]
    assert open_dataset(tmp_path / "here").verify()["agrees"].all()


def test_other_columns_of_another_write_are_refused(tmp_path: Path) -> None:
    def commit_after_an_overwrite() -> None:
        with Writer(tmp_path) as writer:
            writer.write(rows(1))
            writer.commit()
            writer.write(rows(2))
            to_tfrecord(pa.table({"m": ["x"]}), tmp_path, overwrite=True)
            writer.commit()

    with pytest.raises(SchemaError, match="'n'") as caught:
        commit_after_an_overwrite()
    assert "dropped 1 row;" in caught.value.__notes__[0]
    assert values(tmp_path, "m") == ["x"]
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("use", ["write", "commit", "close", "enter", "with", "failing with", "nothing"])
def test_a_forked_process_cannot_use_the_writer_of_its_parent(tmp_path: Path, use: str) -> None:
    """Both processes had one id of the next write, so the rows of one replaced those of the other."""
    writer = Writer(tmp_path, NUMBERS, write_options={"max_bytes_per_file": 60})
    writer.write(rows(*range(20)))  # some wait in files, others in memory

    def use_it() -> None:
        if use == "write":
            writer.write(rows(100))
        elif use in ("commit", "close"):
            getattr(writer, use)()
        elif use == "enter":
            writer.__enter__()
        else:
            writer.__exit__(None, None, None)

    with writer._lock:  # as another thread of the parent would hold the lock
        child = os.fork()
        if not child:
            signal.alarm(60)  # ends a child that waits for the lock forever
            try:
                if use == "failing with":
                    writer.__exit__(ValueError, ValueError(), None)
                elif use == "nothing":
                    writer.__del__()  # no warning: the rows are those of the parent
                else:
                    with pytest.raises(TFRecordError, match="make a Writer in each process"):
                        use_it()
                os._exit(0)
            except BaseException:  # whatever happens, the child must not go on with the tests of its parent
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with writer:
        writer.write(rows(200))
    assert values(tmp_path) == [*range(20), 200]
    assert open_dataset(tmp_path).verify()["agrees"].all()


@pytest.mark.parametrize("send", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_writer_is_not_copied_to_another_process(tmp_path: Path, send: Callable[[Writer], Any]) -> None:
    with Writer(tmp_path, NUMBERS) as writer, pytest.raises(TFRecordError, match="a Writer in each process"):
        send(writer)


@pytest.mark.parametrize("place", ["local", "memory"], indirect=True)
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_no_file_of_a_failed_commit_is_seen_after_the_retry(
    place: str, fail: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """More rows shift the numbers of the files, so files that the failed try uploaded keep their names."""
    monkeypatch.setattr(stores, "_UPLOADING", {"memory"})

    def keyed(**keys: list[int]) -> pa.Table:
        pairs = [(key, number) for key, numbers in keys.items() for number in numbers]
        return pa.table({"k": [key for key, _ in pairs], "n": [number for _, number in pairs]})

    with Writer(place, partition_on="k", write_options={"max_rows_per_file": 1}) as writer:
        writer.write(keyed(a=[0]))
        writer.commit()
        writer.write(keyed(b=[1], d=[2], e=[3], f=[4]))
        creations = fail("create", range(failing, failing + 1), FULL)
        with pytest.raises(OSError, match="No space"):
            writer.commit()
        assert len(creations) == failing + 1
        writer.write(keyed(b=[5, 6], c=[7]))
    store = Store.at(place)
    listed = {file.path for file in Snapshot.open(place).files}
    assert {name for name in map(store.relative, store.find_everything()) if "part-" in name} == listed
    assert sorted(values(place)) == [*range(8)]


def test_cleanup_removes_a_file_that_a_task_uploaded_after_the_commit(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the dataset below its root has files with the same names, which stay."""
    monkeypatch.setattr(stores, "_UPLOADING", {"memory"})
    for number in range(2):
        to_tfrecord(pa.table({"k": ["a"], "n": [number]}), place, partition_on="k", append=bool(number))
    store = Store.at(place)
    file = Snapshot.open(place).files[0]
    name = file.path.replace("-of-00001-00000", "-of-00001-00007")
    other = name.replace(run_of(name) or "", "0" * 32)
    content = store.fs.cat_file(store.join(file.path))
    for path in (name, other, f"backup/{name}", f"k=b/{name_of(name)}"):
        with store.create(store.join(path)) as target:
            target.write(content)
    removed = open_dataset(place).cleanup(older_than="0 s")
    assert removed == [name, f"k=b/{name_of(name)}"]
    assert store.fs.exists(store.join(other))
    assert store.fs.exists(store.join(f"backup/{name}"))
    assert values(place) == [0, 1]
