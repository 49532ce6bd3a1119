"""Writing and reading under every scheduler, and on a real cluster of processes whose workers die.

Modules: writer, reader, table_operations.
"""

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import every_dtype
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client

from dask_tfrecord import (
    CorruptRecordError,
    FileChangedError,
    SchemaError,
    Snapshot,
    compact,
    delete,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.files import file_writer


@pytest.fixture(params=["sync", "threads", "processes", "distributed"])
def scheduler(request: pytest.FixtureRequest) -> Any:
    """The value of ``scheduler=`` for ``compute``."""
    if request.param == "distributed":
        return request.getfixturevalue("client")
    return request.param


def round_trip(
    frame: pd.DataFrame, path: Path, scheduler: Any, npartitions: int, **options: Any
) -> pd.DataFrame:
    ddf = dd.from_pandas(frame, npartitions=npartitions)
    kwargs = {"scheduler": scheduler}
    snapshot = to_tfrecord(ddf, path, lossy="allow", compute_kwargs=kwargs, **options)
    assert (snapshot.records, len(snapshot.files)) == (len(frame), npartitions)
    found: pd.DataFrame = read_tfrecord(path).compute(scheduler=scheduler).reset_index(drop=True)
    return found


@pytest.fixture(scope="module")
def flights() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every tenth flight, and the frame that a read of them returns."""
    written, expected = (frame[::10].reset_index(drop=True) for frame in every_dtype.flights())
    return written, expected


# Dask warns on a cluster that the graph is large: it contains the table.
@pytest.mark.filterwarnings("ignore:Sending large graph")
def test_flights_come_back_equal(
    tmp_path: Path, scheduler: Any, flights: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    written, expected = flights
    found = round_trip(written, tmp_path, scheduler, 4, compression="gzip")
    pd.testing.assert_frame_equal(found, expected)


def test_every_dtype_comes_back_equal(tmp_path: Path, scheduler: Any) -> None:
    found = round_trip(every_dtype.frame(), tmp_path, scheduler, 3)
    every_dtype.assert_same(found, every_dtype.read_back())


def test_a_lazy_write_is_computed_by_the_scheduler_it_is_given_to(tmp_path: Path, scheduler: Any) -> None:
    lazy = to_tfrecord(numbers(), tmp_path, compute=False)
    assert lazy.compute(scheduler=scheduler).records == 20
    assert read_tfrecord(tmp_path)["n"].sum().compute(scheduler=scheduler) == 190


def numbers() -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"n": range(20)}), npartitions=4)


def test_a_future_of_a_write_gives_the_snapshot(tmp_path: Path, client: Client) -> None:
    lazy = to_tfrecord(numbers(), tmp_path, compute=False)
    assert client.compute(lazy).result().records == 20


def test_damage_names_its_record_under_every_scheduler(tmp_path: Path, scheduler: Any) -> None:
    to_tfrecord(numbers(), tmp_path / "a", compute_kwargs={"scheduler": "sync"})
    path = sorted((tmp_path / "a").glob("part-*"))[2]
    content = bytearray(path.read_bytes())
    record = len(content) // 5
    content[3 * record + 15] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecordError) as caught:
        read_tfrecord(tmp_path / "a").compute(scheduler=scheduler)
    error = caught.value
    assert (error.path, error.record, error.offset) == (str(path), 3, 3 * record)


def test_files_are_compacted_and_rows_are_deleted_under_every_scheduler(
    tmp_path: Path, scheduler: Any
) -> None:
    root = tmp_path / "a"
    with dask.config.set(scheduler="sync"):
        to_tfrecord(numbers(), root)
        to_tfrecord(numbers(), root, append=True)
    with dask.config.set(scheduler=scheduler):
        assert delete(root, [("n", "in", [2, 3, 5, 6, 7, 8, 9])])[1:4] == (2, 2, 14)
        path = root / Snapshot.open(root).files[2].path
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        for call in (compact, lambda root: delete(root, [("n", "==", 11)])):
            with pytest.raises((CorruptRecordError, FileChangedError)) as caught:
                call(root)
            assert caught.value.path == str(path)
        path.write_bytes(content)
        assert compact(root).written == 1
        expected = [0, 1, 4, *range(10, 20)] * 2
        assert read_tfrecord(root)["n"].compute().tolist() == expected


def test_a_value_that_cannot_be_stored_names_its_record_under_every_scheduler(
    tmp_path: Path, scheduler: Any
) -> None:
    lists = pd.array([[1]] * 5 + [[1, None]], pd.ArrowDtype(pa.list_(pa.int64())))
    ddf = dd.from_pandas(pd.DataFrame({"lists": lists}), npartitions=2)
    with pytest.raises(SchemaError, match="null") as caught:
        to_tfrecord(ddf, tmp_path, compute_kwargs={"scheduler": scheduler})
    assert (caught.value.record, caught.value.feature) == (2, "lists")
    assert str(caught.value.path).endswith("-00001-of-00002.tfrecord")
    assert not list(tmp_path.glob("[!_]*"))


def doom(part: pd.DataFrame, marker: str, at: int) -> pd.DataFrame:
    """Kill the worker of this partition in the middle of a file; a second attempt is not killed."""

    def write_a_bit_and_die(self: Any, data: Any, records: int) -> None:
        self._file.write(data[:10])
        self._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    if at in part["n"].tolist() and not os.path.exists(marker):
        Path(marker).touch()
        file_writer.BlockWriter._write = write_a_bit_and_die
    return part


def test_a_worker_killed_mid_write_leaves_exactly_the_committed_rows(tmp_path: Path, mortals: Client) -> None:
    marker = str(tmp_path / "killed")
    ddf = numbers().map_partitions(doom, marker, 17, meta=numbers()._meta)
    before = set(mortals.scheduler_info()["workers"])
    snapshot = to_tfrecord(ddf, tmp_path / "a", compute_kwargs={"scheduler": mortals})
    assert set(mortals.scheduler_info()["workers"]) != before
    assert [file.records for file in snapshot.files] == [5] * 4
    assert len(list((tmp_path / "a").glob("[!_]*"))) == 4
    assert not (tmp_path / "a" / "_tfrecord" / "staging").exists()
    assert sorted(read_tfrecord(tmp_path / "a")["n"].compute(scheduler="sync")) == list(range(20))


def test_a_worker_lost_after_the_commit_changes_nothing(tmp_path: Path, mortals: Client) -> None:
    """Dask computes the commit and the tasks before it again."""
    to_tfrecord(numbers(), tmp_path, compute_kwargs={"scheduler": "sync"})
    ddf = numbers().assign(m=1)
    snapshot = _after_losing_the_result(to_tfrecord(ddf, tmp_path, overwrite=True, compute=False), mortals)
    assert snapshot == Snapshot.open(tmp_path)
    assert len(list(tmp_path.glob("part-*"))) == 4


def test_a_worker_lost_after_the_overwrite_of_its_own_input_fails_a_write_that_is_committed(
    tmp_path: Path, mortals: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason why `to_tfrecord` refuses to overwrite what is read."""
    to_tfrecord(numbers(), tmp_path, compute_kwargs={"scheduler": "sync"})
    monkeypatch.setattr("dask_tfrecord.expr.lineage.check_not_read", lambda ddf, store: None)
    lazy = to_tfrecord(read_tfrecord(tmp_path).assign(m=1), tmp_path, overwrite=True, compute=False)
    with pytest.raises(FileNotFoundError, match="was removed after the dataset was listed"):
        _after_losing_the_result(lazy, mortals)
    assert sorted(read_tfrecord(tmp_path)["n"].compute(scheduler="sync")) == list(range(20))


def _after_losing_the_result(lazy: Any, client: Client) -> Snapshot:
    """Compute a write, restart the worker that holds its result, and ask for the result."""
    future = client.compute(lazy)
    future.result()
    [workers] = client.who_has([future]).values()
    client.restart_workers(list(workers))
    return future.result()


def test_a_plan_travels_without_the_package_being_imported_by_hand(tmp_path: Path, client: Client) -> None:
    to_tfrecord(numbers(), tmp_path / "a", compute_kwargs={"scheduler": "sync"})
    ddf = pickle.loads(pickle.dumps(read_tfrecord(tmp_path / "a")))
    assert client.compute(ddf.n.sum()).result() == 190


def test_persisted_rows_are_written_over_what_they_were_read_from(tmp_path: Path, client: Client) -> None:
    to_tfrecord(numbers(), tmp_path, compute_kwargs={"scheduler": "sync"})
    kept = client.persist(read_tfrecord(tmp_path).assign(m=1))
    assert to_tfrecord(kept, tmp_path, overwrite=True, compute_kwargs={"scheduler": client}).records == 20
    assert sorted(read_tfrecord(tmp_path)["n"].compute(scheduler="sync")) == list(range(20))
