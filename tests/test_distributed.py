"""Writing and reading under every scheduler, and on a real cluster of processes whose workers die.

Modules: api.write, api.read, api.maintenance.
"""

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import every_dtype
import inside_tasks
import operations
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client
from small_frames import flip, values

from dask_tfrecord import (
    CorruptRecordError,
    FileChangedError,
    SchemaError,
    open_dataset,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.dataset.snapshot.model import Commit, Snapshot
from dask_tfrecord.files import file_writer


@pytest.fixture(params=["sync", "threads", "processes", "distributed"])
def scheduler(request: pytest.FixtureRequest) -> Any:
    """The value of ``scheduler=`` for ``compute``."""
    return request.getfixturevalue("client") if request.param == "distributed" else request.param


def numbers() -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"n": range(20)}), npartitions=4)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    to_tfrecord(numbers(), tmp_path / "a", compute_kwargs={"scheduler": "sync"})
    return tmp_path / "a"


def test_every_dtype_comes_back_equal(tmp_path: Path, scheduler: Any) -> None:
    frame = every_dtype.frame()
    options: dict[str, Any] = {"lossy": "allow", "compute_kwargs": {"scheduler": scheduler}}
    to_tfrecord(dd.from_pandas(frame, npartitions=3), tmp_path, compression="gzip", **options)
    snapshot = Snapshot.open(tmp_path)
    assert (snapshot.records, len(snapshot.files)) == (len(frame), 3)
    found = (
        read_tfrecord(tmp_path, dtype_backend="pyarrow").compute(scheduler=scheduler).reset_index(drop=True)
    )
    every_dtype.assert_same(found, every_dtype.read_back())


few = pytest.mark.parametrize("scheduler", ["threads", "distributed"], indirect=True)


def test_writes_with_one_id_that_run_at_once_on_a_cluster_commit_once(tmp_path: Path, client: Client) -> None:
    lazy = [
        to_tfrecord(numbers(), tmp_path, append=True, write_id="day", compute=False),
        to_tfrecord(numbers() + 1, tmp_path, append=True, write_id="day", compute=False),
    ]
    first, second = client.gather([client.compute(one) for one in lazy])
    assert first == second
    assert (first.version, first.details["added_rows"]) == (1, 20)
    assert sorted(values(tmp_path)) in ([*range(20)], [*range(1, 21)])
    assert open_dataset(tmp_path).check().empty


@few  # each computation with "processes" starts processes, which takes seconds
def test_a_lazy_write_is_computed_by_the_scheduler_it_is_given_to(tmp_path: Path, scheduler: Any) -> None:
    lazy = to_tfrecord(numbers(), tmp_path, compute=False)
    assert lazy.compute(scheduler=scheduler).rows == 20
    assert read_tfrecord(tmp_path)["n"].sum().compute(scheduler=scheduler) == 190


def test_damage_names_its_record_under_every_scheduler(written: Path, scheduler: Any) -> None:
    path = sorted(written.glob("part-*"))[2]
    record = path.stat().st_size // 5
    flip(path, 3 * record + 15)
    with pytest.raises(CorruptRecordError) as caught:
        read_tfrecord(written).compute(scheduler=scheduler)
    error = caught.value
    assert (error.path, error.record, error.offset) == (str(path), 3, 3 * record)


@few
def test_files_are_compacted_and_rows_deleted_under_every_scheduler(written: Path, scheduler: Any) -> None:
    with dask.config.set(scheduler="sync"):
        to_tfrecord(numbers(), written, append=True)
    with dask.config.set(scheduler=scheduler):
        assert [*open_dataset(written).delete([("n", "in", [2, 3, 5, 6, 7, 8, 9])]).details.values()][:3] == [
            14,
            2,
            2,
        ]
        path = written / Snapshot.open(written).files[1].path
        flip(path, -1)
        for call in (operations.compact, lambda root: open_dataset(root).delete([("n", "==", 11)])):
            with pytest.raises((CorruptRecordError, FileChangedError)) as caught:
                call(written)
            assert caught.value.path == str(path)
        flip(path, -1)
        assert open_dataset(written).compact().details["written_files"] == 1
        assert values(written) == [0, 1, 4, *range(10, 20)] * 2


def test_a_value_that_cannot_be_stored_names_its_record(tmp_path: Path, scheduler: Any) -> None:
    lists = pd.array([[1]] * 5 + [[1, None]], pd.ArrowDtype(pa.list_(pa.int64())))
    ddf = dd.from_pandas(pd.DataFrame({"lists": lists}), npartitions=2)
    with pytest.raises(SchemaError, match="the list holds a null") as caught:
        to_tfrecord(ddf, tmp_path, compute_kwargs={"scheduler": scheduler})
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.record, error.feature, str(error)) == (2, "lists", str(caught.value))
    assert error.path.endswith("-00001-of-00002.tfrecord")
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
    to_tfrecord(ddf, tmp_path / "a", compute_kwargs={"scheduler": mortals})
    snapshot = Snapshot.open(tmp_path / "a")
    assert set(mortals.scheduler_info()["workers"]) != before
    assert [file.records for file in snapshot.files] == [5] * 4
    assert len(list((tmp_path / "a").glob("[!_]*"))) == 4
    assert not (tmp_path / "a" / "_tfrecord" / "staging").exists()
    assert sorted(read_tfrecord(tmp_path / "a")["n"].compute(scheduler="sync")) == list(range(20))


def _after_losing_the_result(lazy: Any, client: Client) -> Commit:
    """Compute a write, restart the worker that holds its result, and ask for the result."""
    future = client.compute(lazy)
    future.result()
    [workers] = client.who_has([future]).values()
    client.restart_workers(list(workers))
    return future.result()


def test_a_worker_lost_after_the_commit_changes_nothing(written: Path, mortals: Client) -> None:
    """Dask computes the commit and the tasks before it again."""
    lazy = to_tfrecord(numbers().assign(m=1), written, overwrite=True, compute=False)
    assert _after_losing_the_result(lazy, mortals).version == Snapshot.open(written).number
    assert len(list(written.glob("part-*"))) == 4


def test_a_worker_lost_after_the_overwrite_of_its_own_input_fails_a_write_that_is_committed(
    written: Path, mortals: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason why `to_tfrecord` refuses to overwrite what is read."""
    monkeypatch.setattr("dask_tfrecord.collection.expr.lineage.check_not_read", lambda ddf, store: None)
    lazy = to_tfrecord(read_tfrecord(written).assign(m=1), written, overwrite=True, compute=False)
    with pytest.raises(FileNotFoundError, match="was removed after it was listed"):
        _after_losing_the_result(lazy, mortals)
    assert sorted(read_tfrecord(written)["n"].compute(scheduler="sync")) == list(range(20))


def test_persisted_rows_are_written_over_what_they_were_read_from(written: Path, client: Client) -> None:
    plan = pickle.loads(pickle.dumps(read_tfrecord(written)))
    kept = client.persist(plan.assign(m=1))
    assert to_tfrecord(kept, written, overwrite=True, compute_kwargs={"scheduler": client}).rows == 20
    assert sorted(read_tfrecord(written)["n"].compute(scheduler="sync")) == list(range(20))


@pytest.mark.sampled
@pytest.mark.parametrize("use", [*inside_tasks.USES])
def test_tasks_that_fill_all_threads_of_a_cluster_do_not_wait_for_each_other(
    tmp_path: Path, client: Client, use: str
) -> None:
    path = str(tmp_path / "a")
    frame = pd.DataFrame({"n": range(60), "text": ["a", "b", "c"] * 20})
    to_tfrecord(dd.from_pandas(frame, npartitions=20), path, compute_kwargs={"scheduler": "sync"})
    tasks = [client.submit(inside_tasks.USES[use], path, pure=False) for _ in range(3)]
    try:
        assert [task.result(timeout=120) for task in tasks] == [60] * 3
    finally:
        client.cancel(tasks, force=True)
