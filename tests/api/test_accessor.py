"""The spellings `ddf.to_tfrecord` and `dd.read_tfrecord`.

Modules: api.
"""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pytest

import dask_tfrecord
from dask_tfrecord.api import add_to_dask

spellings = pytest.mark.parametrize(("owner", "name"), [(dd.DataFrame, "to_tfrecord"), (dd, "read_tfrecord")])


def test_importing_the_package_adds_both_spellings_and_nothing_else(tmp_path: Path) -> None:
    code = (
        "import dask.dataframe as dd, dask.dataframe.indexing;"  # a module that Dask itself imports late
        "before = {*dir(dd), *dir(dd.DataFrame)}, dd.DataFrame.to_parquet;"
        "import dask_tfrecord; after = {*dir(dd), *dir(dd.DataFrame)}, dd.DataFrame.to_parquet;"
        "assert after[0] - before[0] == {'to_tfrecord', 'read_tfrecord'}, after[0] - before[0];"
        "assert after[1] is before[1]"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path)


@spellings
def test_a_spelling_is_the_function_also_after_a_second_installation(owner: Any, name: str) -> None:
    assert getattr(owner, name) is getattr(dask_tfrecord, name)
    add_to_dask()
    assert getattr(owner, name) is getattr(dask_tfrecord, name)


@spellings
def test_what_is_there_already_stays(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, print)
    with pytest.warns(UserWarning, match=f"{name} exists already and stays; use dask_tfrecord.{name}"):
        add_to_dask()
    assert getattr(owner, name) is print


def test_a_column_of_the_name_does_not_hide_the_method_of_a_pickled_collection(tmp_path: Path) -> None:
    ddf = dd.from_pandas(pd.DataFrame({"to_tfrecord": [1, 2, 3]}), npartitions=2)
    assert ddf["to_tfrecord"].compute().tolist() == [1, 2, 3]
    assert pickle.loads(pickle.dumps(ddf)).to_tfrecord(tmp_path).rows == 3
    assert dd.read_tfrecord(tmp_path)["to_tfrecord"].compute().tolist() == [1, 2, 3]


def test_the_public_names() -> None:
    assert all(hasattr(dask_tfrecord, name) for name in (*dask_tfrecord.__all__, "__version__"))
