"""Shared by all tests: the hypothesis profile, the files of other writers, places to write to."""

import faulthandler
import gc
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, settings
from list_rules import RULES
from servers import LinkedStore, linked_s3_server
from strides import EXAMPLES, IS_FULL, IS_QUICK

from dask_tfrecord.dataset.snapshot import entry_log
from dask_tfrecord.files import small_columns
from dask_tfrecord.files.record_file import RecordFile
from dask_tfrecord.storage import range_requests
from dask_tfrecord.storage.store import Store

# The log messages of TensorFlow's start would hide the output of a failing test.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

# TensorFlow does not survive a fork: a child must not delete the objects of earlier tests.
os.register_at_fork(after_in_child=gc.freeze)

# A run fails only because of a change. ``--hypothesis-profile=random`` tries other examples in every run.
for profile, is_repeatable in (("repeatable", True), ("random", False)):
    settings.register_profile(
        profile,
        deadline=None,
        derandomize=is_repeatable,
        max_examples=EXAMPLES,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
settings.load_profile("repeatable")

# The directories whose single tests take longest.
SLOW = ("cli", "stores")

# The seconds after which a test has hung, with its fixtures. The whole suite takes half of this time on two
# cores, except the sweeps over all faults and kills.
LIMIT = float(os.environ.get("DASK_TFRECORD_TEST_SECONDS", "14400" if IS_FULL else "1200"))

# The stderr of this process, as a file descriptor. While a test runs, pytest captures what is written to 2.
STDERR = pytest.StashKey[int]()

# The platforms for which tensorflow-cpu has a wheel; the `test` extra installs it only there.
TENSORFLOW = sys.platform == "linux" and platform.machine() == "x86_64"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tensorflow: needs TensorFlow, which has no wheel for every platform")
    config.addinivalue_line("markers", "sampled: if few random examples are wanted, a third of the cases")
    config.addinivalue_line("markers", "seconds(more): the test runs for this time, if nothing hangs")
    config.stash[STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """If the test hangs, print the stacks of all threads, and end the process.

    With pytest-xdist, the test then fails, and a new process runs the other tests. The watchdog of
    `faulthandler` is a thread of C: it needs no lock that a hanging thread of Python may hold.
    """
    more = sum(mark.args[0] for mark in item.iter_markers("seconds"))
    faulthandler.dump_traceback_later(LIMIT + more, file=item.config.stash[STDERR], exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_enter_pdb() -> None:
    faulthandler.cancel_dump_traceback_later()


def _is_in_sample(number: int) -> bool:
    """Return whether a sample contains a case. All values of two or three inner parameters occur in it."""
    return (number + number // 3) % 3 == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if IS_QUICK:
        cases: Counter[str] = Counter()
        left_out = []
        for item in items:
            if item.get_closest_marker("sampled"):
                test = item.nodeid.partition("[")[0]
                if not _is_in_sample(cases[test]):
                    left_out.append(item)
                cases[test] += 1
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    # Long tests come first, so that no process of pytest-xdist waits for one at the end.
    items.sort(key=lambda item: item.path.parent.name not in SLOW)
    if TENSORFLOW:
        return
    # Everything but TensorFlow works on these platforms, so the other tests still run.
    missing = pytest.mark.skip(reason="tensorflow-cpu has wheels for Linux on x86-64 only")
    for item in items:
        if "tensorflow" in item.keywords:
            item.add_marker(missing)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()  # what the imports of all tests made stays, so that no garbage collection needs to look at it


@pytest.fixture(scope="session")
def data() -> Path:
    """The directory of files that other writers made."""
    return Path(__file__).parent / "data"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute with Dask in this thread, so that tasks run in the same order every time."""
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat a request that failed for a passing reason at once."""
    monkeypatch.setattr(range_requests, "_PAUSES", (0.0,) * len(range_requests._PAUSES))


@pytest.fixture(params=["full", "delta"])
def appended_snapshots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let every append store all entries again, or only those that it adds."""
    monkeypatch.setattr(entry_log, "_kept_lists", RULES[request.param])
    return request.param


@pytest.fixture
def column_files_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small files also get column files by default, with columns as large as the records together."""
    monkeypatch.setattr(small_columns, "LEAST_FILE_BYTES", 1)
    monkeypatch.setattr(small_columns, "_PART", 1)


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory that does not exist yet."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    return f"{tmp_path}/place" if request.param == "local" else "memory://bucket/place"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the data files that the test opens, in order."""
    found: list[str] = []
    original, read_at_once = Store.open, RecordFile.read_stored

    @contextmanager
    def opening(self: Store, path: str, *args: Any, **options: Any) -> Iterator[Any]:
        found.append(path)
        with original(self, path, *args, **options) as source:
            yield source

    def reading(self: RecordFile, buffer: memoryview) -> memoryview | None:
        found.append(self.split.file.path)
        return read_at_once(self, buffer)

    monkeypatch.setattr(Store, "open", opening)
    monkeypatch.setattr(RecordFile, "read_stored", reading)
    return found


@pytest.fixture(scope="session")
def linked() -> Iterator[LinkedStore]:
    """An S3 server (moto) behind a link that counts, delays, holds and spoils requests."""
    with linked_s3_server() as found:
        yield found


@contextmanager
def _cluster() -> Iterator[Any]:
    """A client of a new cluster of two worker processes."""
    from distributed import Client, LocalCluster  # takes a second, and few tests need it

    config = {
        "distributed.scheduler.allowed-failures": 10,
        # LocalCluster gives up a killed worker that is not back after this time. On a busy machine, a start
        # may take longer than the default of 15 seconds, and the test would wait forever.
        "distributed.deploy.lost-worker-timeout": "1 day",
        # Workers that wait for the next test take no time for measurements of themselves.
        "distributed.worker.profile.enabled": False,
        "distributed.admin.system-monitor.interval": "10 s",
    }
    with (
        dask.config.set(config),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """A client of the cluster that all tests share which kill no workers."""
    with _cluster() as client:
        yield client


@pytest.fixture(scope="module")
def mortals() -> Iterator[Any]:
    """A client of a cluster whose workers the tests kill."""
    with _cluster() as client:
        yield client
