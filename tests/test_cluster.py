"""Workers and schedulers without the package, or with another version, cause an error that names them.

Everything that needs no cluster works without `distributed`.

Modules: collection.scheduler.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import operations
import pytest
from distributed import Client, LocalCluster

from dask_tfrecord import TFRecordError, read_tfrecord, to_tfrecord

# Python runs this code first in a process that must not be able to import a package.
WITHOUT = """
import importlib.metadata, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "PACKAGE":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
installed = importlib.metadata.version

def version(name):
    if name == "PACKAGE".replace("_", "-"):
        raise importlib.metadata.PackageNotFoundError(name)
    return installed(name)

importlib.metadata.version = version
"""

WRITE_SHUFFLE_READ = """
import dask_tfrecord
from dask import dataframe as dd

ddf = dd.from_dict({"n": list(range(20)), "name": ["x", "y"] * 10}, npartitions=4)
assert ddf.to_tfrecord("plain").rows == 20
assert dask_tfrecord.to_tfrecord(ddf, "shuffled", shuffle=True).rows == 20
assert dask_tfrecord.to_tfrecord(ddf, "colocated", partition_on="name", colocate=True).files == 2
for path in ("plain", "shuffled", "colocated"):
    back = dd.read_tfrecord(path)
    assert back.n.sum().compute() == 190
    assert len(back[back.n > 9]) == 10
assert dask_tfrecord.open_dataset("plain").verify().agrees.all()
assert "distributed" not in sys.modules
"""


def test_writes_shuffles_and_reads_work_without_distributed(tmp_path: Path) -> None:
    """The package is imported before `dask.dataframe`, which has the spellings nevertheless."""
    code = WITHOUT.replace("PACKAGE", "distributed") + WRITE_SHUFFLE_READ
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path)


def without(folder: Path) -> Path:
    """A directory that makes the package impossible to import if it is on PYTHONPATH."""
    (folder / "sitecustomize.py").write_text(WITHOUT.replace("PACKAGE", "dask_tfrecord"))
    return folder


def other_version(folder: Path) -> Path:
    """A directory that makes another version of the package appear installed if it is on PYTHONPATH."""
    info = folder / "dask_tfrecord-0.0.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dask-tfrecord\nVersion: 0.0.7\n")
    return folder


@contextmanager
def process(command: str, *args: str, path: Path | None = None) -> Iterator[None]:
    environment = os.environ | ({} if path is None else {"PYTHONPATH": str(path)})
    options: dict[str, Any] = {"env": environment, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-m", f"distributed.cli.{command}", *args], **options) as found:
        try:
            yield
        finally:
            found.terminate()


@contextmanager
def worker(client: Client, name: str, path: Path | None = None) -> Iterator[None]:
    """A worker process of a cluster."""
    count = len(client.nthreads())
    options = ("--no-nanny", "--no-dashboard", "--nthreads", "1", "--name", name)
    with process("dask_worker", client.scheduler.address, *options, path=path):
        client.wait_for_workers(count + 1, timeout=60)
        yield


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a cluster without workers, which Dask uses by default."""
    with LocalCluster(n_workers=0, dashboard_address=":0") as found, Client(found) as client:
        yield client


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with dask.config.set(scheduler="sync"):
        to_tfrecord(frame(), tmp_path / "data")
    return tmp_path / "data"


def frame() -> dd.DataFrame:
    return dd.from_dict({"n": range(6)}, npartitions=2)


CALLS: dict[str, Callable[[Path], Any]] = {
    "read": lambda root: read_tfrecord(root).compute(),
    "write": lambda root: to_tfrecord(frame(), root.parent / "new"),
    "a lazy write": lambda root: to_tfrecord(frame(), root.parent / "new", compute=False).compute(),
    "verify": operations.verify,
    "infer": lambda root: read_tfrecord(root, use_snapshot=False, read_options={"infer": "all"}),
}


def test_every_call_names_a_worker_without_the_package(client: Client, data: Path, tmp_path: Path) -> None:
    """One cluster serves all calls, because its workers take seconds to start."""
    with worker(client, "good"), worker(client, "bare", without(tmp_path)):
        names = client.run(lambda dask_worker: dask_worker.name)
        [bare] = [address for address, name in names.items() if name == "bare"]
        for name, call in CALLS.items():
            with pytest.raises(TFRecordError, match="is not installed on worker tcp://") as caught:
                call(data)
            assert bare in str(caught.value), name
            assert str(caught.value).count("tcp://") == 1, name
            assert not (tmp_path / "new").exists(), name
        with dask.config.set(scheduler="sync"):
            assert len(read_tfrecord(data).compute()) == 6


def test_a_worker_with_another_version_is_named_with_it(client: Client, data: Path, tmp_path: Path) -> None:
    problem = r"is version 0\.0\.7 on worker tcp://.*install dask-tfrecord 0"
    with worker(client, "old", other_version(tmp_path)), pytest.raises(TFRecordError, match=problem):
        read_tfrecord(data)


def test_a_worker_that_joins_later_is_asked_once_before_it_gets_tasks(
    client: Client, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    run = Client.get_versions

    def counting(self: Client, *args: Any, **options: Any) -> Any:
        asked.append(1)
        return run(self, *args, **options)

    ddf = read_tfrecord(data)  # while there are none
    monkeypatch.setattr(Client, "get_versions", counting)
    with worker(client, "good"):
        for _ in range(3):
            assert len(ddf.compute()) == len(read_tfrecord(data).compute()) == 6
        assert len(asked) == 1
        with worker(client, "bare", without(tmp_path)), pytest.raises(TFRecordError, match="on worker tcp"):
            ddf.n.sum().compute()
        to_tfrecord(ddf, tmp_path / "new")


@pytest.mark.parametrize(("harm", "problem"), [(without, "is not installed"), (other_version, r"0\.0\.7")])
def test_a_scheduler_is_named(data: Path, tmp_path: Path, harm: Callable[[Path], Path], problem: str) -> None:
    file = str(tmp_path / "scheduler.json")
    options = ("--no-dashboard", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", file)
    with process("dask_scheduler", *options, path=harm(tmp_path)), Client(scheduler_file=file):
        for call in (lambda: read_tfrecord(data), lambda: to_tfrecord(frame(), tmp_path / "new")):
            with pytest.raises(TFRecordError, match=f"{problem} on the scheduler;"):
                call()


def test_nothing_is_asked_in_a_task(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that already runs the package proves that its worker can."""

    def read() -> int:
        return len(read_tfrecord(data).compute(scheduler="sync"))

    with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as found, Client(found) as client:
        monkeypatch.setattr(Client, "get_versions", None)
        assert client.submit(read).result() == 6


def test_a_client_of_an_event_loop_is_left_alone(data: Path) -> None:
    async def read() -> Any:
        options = {"n_workers": 1, "processes": False, "dashboard_address": ":0", "asynchronous": True}
        async with LocalCluster(**options) as found, Client(found, asynchronous=True) as client:
            return await client.compute(read_tfrecord(data))

    assert len(asyncio.run(read())) == 6
