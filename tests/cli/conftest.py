"""Runs of the command line in this process, and a small dataset."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import dask_tfrecord
from dask_tfrecord_cli import main

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Run a subcommand, and check its exit code."""

    def call(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(main, list(map(str, arguments)))
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return call


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let child processes receive SIGINT. They would ignore it if a shell runs pytest in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """A dataset of two files."""
    strings, lists = pd.ArrowDtype(pa.string()), pd.ArrowDtype(pa.list_(pa.string()))
    frame = pd.DataFrame(
        {
            "name": pd.array(["Ada", "Alan", None], strings),
            "born": [1815, 1912, 1906],
            "tags": pd.array([["a"], [], ["b", "c"]], lists),
        }
    )
    path = tmp_path / "people"
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=2), path)
    return path
