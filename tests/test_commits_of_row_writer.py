"""A Writer appends rows that arrive over time: each commit is whole, and no row is lost or doubled.

Modules: row_writer.
"""

import datetime
import errno
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from small_frames import values

from dask_tfrecord import (
    SchemaError,
    Snapshot,
    TFRecordError,
    Writer,
    index,
    read_tfrecord,
    to_tfrecord,
    verify,
)
from dask_tfrecord.dataset.write import append_schema, transaction
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

NUMBERS = pa.schema({"n": pa.int64()})


def rows(*values: int) -> list[dict[str, Any]]:
    return [{"n": value} for value in values]


def test_readers_see_the_rows_of_a_commit_with_their_metadata(place: str) -> None:
    with Writer(place, NUMBERS) as writer:
        assert writer.snapshot is None
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
    assert Snapshot.history(place)["mode"].tolist() == ["append"] * 3
    with pytest.raises(TFRecordError, match="closed"):
        writer.write(rows(4))


@pytest.mark.parametrize("keys", [None, "key"])
def test_the_version_in_memory_is_the_stored_version(
    tmp_path: Path, keys: str | None, appended_snapshots: str
) -> None:
    to_tfrecord(pa.table({"n": [0], "key": [5]}), tmp_path, partition_on=keys)
    with Writer(tmp_path, max_rows_per_file=1) as writer:
        for commit in range(6):
            writer.write(pa.table({"n": [commit, commit + 1], "key": [5 - commit, 0]}))
            writer.commit()
            stored, known = Snapshot.open(tmp_path), writer.snapshot
            assert known == stored
            assert known is not None
            assert known.stored is not None
            assert stored.stored is not None
            assert known.stored.base == stored.stored.base
            assert known.stored.added.num_rows == stored.stored.added.num_rows
            assert known.file_list.select(stored.file_list.column_names).equals(stored.file_list)
    assert verify(tmp_path)["agrees"].all()


def test_a_list_of_many_chunks_is_copied_into_one(tmp_path: Path) -> None:
    with patch.object(transaction, "_MOST_CHUNKS", 2), Writer(tmp_path) as writer:
        for number in range(8):
            writer.write(rows(number))
            writer.commit()
    assert values(tmp_path) == [*range(8)]


@pytest.mark.parametrize(
    ("every", "versions"), [(3, [0, 0, 1, 1, 1, 2]), ("20 B", [0, 0, 1, 1, 1, 2]), (None, [0] * 6)]
)
def test_rows_are_committed_after_a_number_of_rows_or_bytes(
    tmp_path: Path, every: Any, versions: list[int]
) -> None:
    found = []
    with Writer(tmp_path, commit_every=every) as writer:
        for number in range(6):
            writer.write(pa.table({"n": pa.array([number])}))
            found.append(writer.snapshot.number if writer.snapshot else 0)
    assert found == versions
    assert values(tmp_path) == [*range(6)]


def test_rows_are_committed_after_a_time_that_no_change_of_the_clock_affects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    monkeypatch.setattr(time, "time", lambda: -clock)  # jumps back all the time
    with Writer(tmp_path, commit_every=datetime.timedelta(seconds=2)) as writer:
        writer.write(rows(1))
        clock += 1.9
        writer.write(rows(2))
        assert writer.snapshot is None
        clock += 0.1
        writer.write([])
        assert values(tmp_path) == [1, 2]
        writer.write(rows(3))
        assert writer.uncommitted_rows == 1


def test_files_roll_by_size_and_wait_in_staging(tmp_path: Path) -> None:
    table = pa.table({"n": range(1000)})
    with Writer(tmp_path, max_bytes_per_file="4 KB") as writer:
        writer.write(table)
        staged = list((tmp_path / "_tfrecord/staging").rglob("part-*"))
        assert len(staged) > 5
        writer.write(table)
    sizes = [file.bytes for file in Snapshot.open(tmp_path).files]
    assert max(sizes) <= 4000
    assert values(tmp_path) == [*range(1000)] * 2
    assert not (tmp_path / "_tfrecord/staging").exists()


# -- Failures ------------------------------------------------------------------------------------------------


def test_an_exception_drops_what_is_not_committed_and_says_what_is(place: str) -> None:
    def fail() -> None:
        with Writer(place, max_bytes_per_file=1) as writer:
            writer.write(rows(1, 2))
            writer.commit(custom_metadata={"offset": "2"})
            writer.write(rows(3))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fail()
    (note,) = caught.value.__notes__
    assert "committed 2 rows in 1 commits, dropped 1 rows" in note
    assert "version 1, {'offset': '2'}" in note
    assert values(place) == [1, 2]
    assert not Store.at(place).names("_tfrecord/staging")


@pytest.mark.parametrize("failures", [1, 3])
def test_a_full_disk_in_a_roll_loses_and_doubles_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    original, left = Store._open_new, [3, failures]

    def failing(store: Store, path: str) -> Any:
        left[0] -= 1
        if left[0] < 0 and left[1]:
            left[1] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(store, path)

    with Writer(tmp_path, max_rows_per_file=1) as writer:
        writer.write(rows(1))
        writer.commit()
        writer.write(rows(2, 3, 4, 5))
        monkeypatch.setattr(Store, "_open_new", failing)
        for _ in range(failures):
            with pytest.raises(OSError, match="No space left"):
                writer.commit(custom_metadata={"offset": "5"})
            assert values(tmp_path) == [1]
        writer.write(rows(6))
    assert values(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert Snapshot.open(tmp_path).custom_metadata == {"offset": "5"}
    assert verify(tmp_path)["agrees"].all()


@pytest.mark.parametrize("done", [0, 3])
def test_a_call_of_many_tables_is_taken_as_a_whole_if_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    batches = [pa.record_batch({"n": [2 * at, 2 * at + 1]}) for at in range(10)]
    original, calls = WriteRun.write, list[int]()

    def failing(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == done + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args)

    monkeypatch.setattr(WriteRun, "write", failing)
    with Writer(tmp_path, NUMBERS, max_bytes_per_file=16, commit_every=30) as writer:
        with pytest.raises(OSError, match="No space left"):
            writer.write(pa.Table.from_batches(batches), custom_metadata={"offset": "20"})
        assert writer.uncommitted_rows == 20
        for again in (pa.Table.from_batches(batches), []):
            with pytest.raises(TFRecordError, match=r"20 rows wait; call commit\(\)"):
                writer.write(again)
        found = writer.commit()
        assert found is not None
        assert (found.records, found.custom_metadata) == (20, {"offset": "20"})
        assert len(calls) == 11
        writer.write([])
    assert values(tmp_path) == [*range(20)]


def test_no_row_is_taken_if_the_existing_data_cannot_be_read(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        with (
            patch.object(append_schema, "check_existing_data", side_effect=OSError("no answer")),
            pytest.raises(TFRecordError, match="no row was taken: no answer"),
        ):
            writer.write(rows(1))
        writer.write(rows(1))
    assert values(tmp_path) == [1]


@pytest.mark.parametrize("created", [False, True])
@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_rows_are_committed_once_if_creating_the_version_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, created: bool, attempts: int
) -> None:
    original, left = Store.create_exclusively, attempts

    def failing(store: Store, path: str, data: bytes) -> None:
        nonlocal left
        left -= 1
        if left < 0 or created:
            original(store, path, data)
        if left >= 0:
            raise ConnectionError("lost")

    with Writer(tmp_path) as writer:
        writer.write(rows(1))
        writer.commit()
        monkeypatch.setattr(Store, "create_exclusively", failing)
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
    assert (
        "committed 2 rows in 2 commits, dropped 0 rows; the dataset has version 2"
        in (caught.value.__notes__[0])
    )
    assert values(tmp_path) == [1, 2]


def test_a_writer_that_is_not_closed_warns(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(rows(1))
    with pytest.warns(ResourceWarning, match="1 rows not committed"):
        del writer


# -- Several writers -----------------------------------------------------------------------------------------


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
            for number in range(first, first + 10):
                writer.write(rows(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(0, 40, 10)))
    assert sorted(values(place)) == [*range(40)]
    assert Snapshot.open(place).number == 20


def test_threads_may_share_a_writer(place: str) -> None:
    with Writer(place, NUMBERS, commit_every=3) as writer, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: writer.write(rows(number)), range(40)))
    assert sorted(values(place)) == [*range(40)]
    assert verify(place)["agrees"].all()


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
            os.utime(next((tmp_path / "here").glob("part-*")), (0, 0))
            index(tmp_path / "here")
        else:
            for _ in range(1 + (change == "two overwrites")):
                to_tfrecord(other, tmp_path / "here", overwrite=True)
    first = [1] if change == "index" else [100, 101, 102]
    assert values(tmp_path / "here") == [*first, 2]
    assert verify(tmp_path / "here")["agrees"].all()


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
    assert "dropped 1 rows" in caught.value.__notes__[0]
    assert read_tfrecord(tmp_path)["m"].compute().tolist() == ["x"]
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 3
