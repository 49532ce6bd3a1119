"""Runs of the command line in this process, and a small dataset."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from command_server import quick_command

import dask_tfrecord
from dask_tfrecord_launcher import main

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _width_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables have the width that they have in a pipe, in whatever terminal the tests run."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def run() -> Run:
    """Run a subcommand, and check its exit code. None accepts every code."""

    def call(*arguments: object, code: int | None = 0, input: str | None = None) -> Result:
        result = CliRunner().invoke(main, list(map(str, arguments)), input)
        assert code is None or result.exit_code == code, (result.output, result.exception)
        return result

    return call


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A script `dask-tfrecord` that starts quickly, because it runs in a fork of one process."""
    script = tmp_path_factory.mktemp("commands") / "dask-tfrecord"
    imported = (f"dask_tfrecord.cli.{name}" for name in ("convert", "maintenance", "serve", "show"))
    with quick_command(script, "dask_tfrecord_launcher", *imported):
        yield script


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let child processes receive SIGINT. They would ignore it if a shell runs pytest in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def written_people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two files."""
    strings, lists = pd.ArrowDtype(pa.string()), pd.ArrowDtype(pa.list_(pa.string()))
    frame = pd.DataFrame(
        {
            "name": pd.array(["Ada", "Alan", None], strings),
            "born": [1815, 1912, 1906],
            "tags": pd.array([["a"], [], ["b", "c"]], lists),
        }
    )
    path = tmp_path_factory.mktemp("written") / "people"
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=2), path)
    return path


@pytest.fixture
def people(written_people: Path, tmp_path: Path) -> Path:
    """A copy of the dataset, which the test may change."""
    return Path(shutil.copytree(written_people, tmp_path / "people"))
