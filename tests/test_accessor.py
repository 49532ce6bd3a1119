"""The spellings `ddf.to_tfrecord` and `dd.read_tfrecord`.

Modules: accessor.
"""

import importlib
import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pytest

import dask_tfrecord
from dask_tfrecord import accessor


@pytest.fixture
def _restored() -> Iterator[None]:
    """Restore the two spellings after the test."""
    yield
    dd.DataFrame.to_tfrecord = dask_tfrecord.to_tfrecord
    dd.read_tfrecord = dask_tfrecord.read_tfrecord


def test_importing_the_package_adds_both_spellings_and_nothing_else(tmp_path: Path) -> None:
    code = (
        "import dask.dataframe as dd, dask.dataframe.indexing;"  # a module that Dask itself imports late
        "before = {*dir(dd), *dir(dd.DataFrame)}, dd.DataFrame.to_parquet;"
        "import dask_tfrecord; after = {*dir(dd), *dir(dd.DataFrame)}, dd.DataFrame.to_parquet;"
        "assert after[0] - before[0] == {'to_tfrecord', 'read_tfrecord'}, after[0] - before[0];"
        "assert after[1] is before[1]"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path)


def test_the_spellings_do_what_the_functions_do(tmp_path: Path) -> None:
    ddf = dd.from_pandas(pd.DataFrame({"a": [1, 2, 3]}), npartitions=2)
    assert ddf.to_tfrecord(tmp_path / "a").records == 3
    assert dd.read_tfrecord(tmp_path / "a")["a"].compute().tolist() == [1, 2, 3]


def test_help_and_signature_are_the_functions() -> None:
    method = dd.DataFrame.to_tfrecord
    assert inspect.signature(method) == inspect.signature(dask_tfrecord.to_tfrecord)
    assert method.__doc__ == dask_tfrecord.to_tfrecord.__doc__
    assert inspect.signature(dd.read_tfrecord) == inspect.signature(dask_tfrecord.read_tfrecord)
    assert dd.read_tfrecord.__doc__ == dask_tfrecord.read_tfrecord.__doc__


def test_a_column_of_the_name_does_not_hide_the_method() -> None:
    ddf = dd.from_pandas(pd.DataFrame({"to_tfrecord": [1]}), npartitions=1)
    assert callable(ddf.to_tfrecord)
    assert ddf["to_tfrecord"].compute().tolist() == [1]


def test_collections_still_pickle() -> None:
    ddf = dd.from_pandas(pd.DataFrame({"a": [1]}), npartitions=1)
    assert pickle.loads(pickle.dumps(ddf)).compute().equals(ddf.compute())


@pytest.mark.usefixtures("_restored")
def test_installing_twice_changes_nothing() -> None:
    accessor.install()
    assert dd.DataFrame.to_tfrecord is dask_tfrecord.to_tfrecord
    assert dd.read_tfrecord is dask_tfrecord.read_tfrecord


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("owner", [dd.DataFrame, dd])
def test_what_is_there_already_stays(owner: Any) -> None:
    name = "read_tfrecord" if owner is dd else "to_tfrecord"
    setattr(owner, name, print)
    with pytest.warns(UserWarning, match=f"{name} exists already and stays; use dask_tfrecord.{name}"):
        accessor.install()
    assert getattr(owner, name) is print


def test_the_public_names() -> None:
    assert all(hasattr(dask_tfrecord, name) for name in dask_tfrecord.__all__)
    assert importlib.import_module("dask_tfrecord").__version__
