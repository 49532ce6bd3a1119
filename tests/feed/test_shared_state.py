"""Threads and processes that share a source, a table or a dataset see each of its states complete.

Modules: feed.rows.sources, feed.record_table, feed.rows.record_buffers, collection.opened_path,
collection.scheduler, lazy, codec.
"""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dask_tfrecord import open_dataset, to_tfrecord
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.feed import RecordTable, iter_batches
from dask_tfrecord.feed.rows.sources import DatasetSource

PIECES, ROWS = 50, 1000

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A compressed dataset of many pieces: no piece contains rows of two partition directories."""
    path = str(tmp_path_factory.mktemp("shared") / "dataset")
    frame = pd.DataFrame(
        {"id": range(ROWS), "key": np.arange(ROWS) % PIECES, "text": ["a", "b"] * (ROWS // 2)}
    )
    to_tfrecord(frame, path, partition_on="key", compression="gzip")
    return path


def in_child(work: Callable[[], bool]) -> bool:
    """Run a function in a forked process, and return its result."""
    child = os.fork()
    if not child:
        signal.alarm(120)  # ends a child that waits forever
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def test_two_threads_read_from_a_source_that_another_process_has_sent(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both threads find the source without a reader, because neither continues before the other begins."""
    source = pickle.loads(pickle.dumps(DatasetSource(path, None, 1 << 20, {})))
    assert source.npieces == PIECES
    both, partitioner = threading.Barrier(2, timeout=60), ReadPlan.partitioner

    def slow(self: ReadPlan, *args: Any, **options: Any) -> Any:
        both.wait()
        return partitioner(self, *args, **options)

    monkeypatch.setattr(ReadPlan, "partitioner", slow)
    tables = together(2, source.read)
    assert sorted(number for table in tables for number in table["id"].to_pylist()) == [
        number for number in range(ROWS) if number % PIECES < 2
    ]


def read_in_threads(source: DatasetSource, table: RecordTable) -> list[list[int]]:
    """Return the ids of all rows, once read piece by piece, and once by number, with three threads each."""
    parts = np.array_split(np.arange(ROWS), PIECES)
    with ThreadPoolExecutor(3) as pool:
        pieces = list(pool.map(source.read, range(PIECES)))
        batches = list(pool.map(table.batch, parts))
    return [[number for part in found for number in part["id"].to_pylist()] for found in (pieces, batches)]


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_threads_of_processes_of_each_start_method_read_many_pieces(path: str, method: str) -> None:
    """The loaders of PyTorch send a source or a table to worker processes, whose threads read ahead."""
    source, table = DatasetSource(path, None, 1 << 20, {}), RecordTable(path)
    expected = read_in_threads(source, table)
    assert [sorted(ids) for ids in expected] == [list(range(ROWS))] * 2
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        found = list(pool.map(read_in_threads, [source] * 4, [table] * 4))
    assert found == [expected] * 4


@forks
@pytest.mark.parametrize("shuffle", [None, True, "blocks"])
def test_batches_of_an_iterator_continue_in_a_forked_process(path: str, shuffle: Any) -> None:
    """The threads that read ahead stay in the parent."""
    batches = iter_batches(path, 30, columns=["id"], shuffle=shuffle)
    first = next(batches)["id"].to_pylist()

    def rest() -> list[int]:
        return [number for batch in batches for number in batch["id"].to_pylist()]

    assert in_child(lambda: sorted(first + rest()) == list(range(ROWS)))
    assert sorted(first + rest()) == list(range(ROWS))


@forks
def test_threads_of_a_forked_process_share_a_table(path: str) -> None:
    table = RecordTable(path)
    table.batch(np.arange(0, ROWS, 7))
    expected = table.batch(np.arange(ROWS))["id"].to_pylist()

    def work(seed: int) -> bool:
        rows = np.random.default_rng(seed).permutation(ROWS)
        found = [table.batch(part)["id"].to_pylist() for part in np.array_split(rows, 20)]
        return [number for part in found for number in part] == [expected[row] for row in rows]

    assert in_child(lambda: all(together(6, work)))


@forks
def test_a_process_forked_while_a_table_is_read_can_read(path: str) -> None:
    table, end = RecordTable(path), threading.Event()

    def read() -> None:
        while not end.is_set():
            table.batch(np.arange(ROWS))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert in_child(
                lambda: table.batch([5, 3])["id"].to_pylist() == table.batch([5, 3])["id"].to_pylist()
            )
    finally:
        end.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def changing(tmp_path: Path) -> Any:
    to_tfrecord(pd.DataFrame({"id": range(ROWS), "key": np.arange(ROWS) % 5}), tmp_path, partition_on="key")
    return open_dataset(tmp_path)


def test_threads_that_share_a_dataset_see_one_version_at_a_time(changing: Any) -> None:
    """The rows, the files and the statistics of each answer belong to one version, while a thread commits."""
    counts, end = {ROWS - 10 * step for step in range(6)}, threading.Event()

    def commit() -> None:
        for step in range(5):
            changing.delete([("id", ">=", 10 * step), ("id", "<", 10 * step + 10)])
        end.set()

    def look(number: int) -> list[Any]:
        if not number:
            commit()
        wrong: list[Any] = []
        while not end.is_set():
            for found in (
                changing.to_table().num_rows,
                changing.count_rows(),
                changing.files["rows"].sum(),
                sum(batch.num_rows for batch in changing.batches(100)),
                sum(fragment.count_rows() for fragment in changing.get_fragments()),
                changing.num_rows,
            ):
                wrong += [] if found in counts else [found]
            assert repr(changing).startswith("Dataset(")
            assert len(changing.statistics) == 2
        return wrong

    assert together(3, look) == [[], [], []]
    assert changing.num_rows == ROWS - 50


# One thread imports `distributed`, and stops in the middle while other threads use the package.
FIRST_USE = """
import sys, threading
import dask_tfrecord
from dask_tfrecord.collection import scheduler

assert "distributed" not in sys.modules
stopped, go_on = threading.Event(), threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "distributed.actor":
            stopped.set()
            go_on.wait()

sys.meta_path.insert(0, Slow())
errors = []

def attempt(use):
    try:
        use()
    except Exception as error:
        errors.append(repr(error))

uses = [
    scheduler.check_cluster,
    scheduler.leave_thread_pool,
    lambda: scheduler.warn_client("a warning"),
    lambda: scheduler.compute_each(abs, [1, 2]),
]
threads = [threading.Thread(target=lambda: __import__("distributed"))]
threads[0].start()
assert stopped.wait(60)
for use in uses:
    threads.append(threading.Thread(target=attempt, args=[use]))
    threads[-1].start()
for thread in threads[1:]:
    thread.join(0.1)  # a thread that does not wait for the import has failed by now
go_on.set()
for thread in threads:
    thread.join()
assert not errors, errors
"""


def test_threads_wait_while_another_thread_imports_distributed() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST_USE], check=True, timeout=120)


AT_EXIT = """
import sys, threading
import numpy as np
from dask_tfrecord.feed import RecordTable, iter_batches

path, has_begun = sys.argv[1], threading.Event()

def use():
    table = RecordTable(path)
    while True:
        for batch in iter_batches(path, 10, shuffle=True):
            table.batch(np.arange(10))
            has_begun.set()

threading.Thread(target=use, daemon=True).start()
assert has_begun.wait(60)
"""


def test_a_daemon_thread_that_reads_at_exit_prints_nothing(path: str) -> None:
    command = [sys.executable, "-c", AT_EXIT, path]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")
