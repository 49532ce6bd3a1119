"""Columns without any value: they are written as absent features and come back with the null type.

Modules: schema.fields, schema.conversion.
"""

from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import SchemaError, Snapshot, read_tfrecord, take, to_tfrecord

pytestmark = pytest.mark.usefixtures("one_thread")

NULL = pd.ArrowDtype(pa.null())


def collection() -> dd.DataFrame:
    nothing = pd.Series([None] * 4, dtype=NULL)
    return dd.from_pandas(pd.DataFrame({"x": nothing, "n": range(4), "k": list("abab")}), npartitions=2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"record_type": "sequence_example"},
        {"compression": "gzip"},
        {"shuffle": 1},
        {"partition_on": "x"},
        {"partition_on": ["k", "x"]},
        {"partition_on": "k", "colocate": True},
        {"schema": {"x": pa.null()}},
        {"schema": pa.schema([("x", pa.null())])},
    ],
    ids=str,
)
def test_a_null_column_comes_back(tmp_path: Path, options: dict[str, Any]) -> None:
    to_tfrecord(collection(), tmp_path, **options)
    ddf = read_tfrecord(tmp_path)
    assert ddf.dtypes["x"] == NULL
    found = ddf.compute()
    assert found["x"].isna().all()
    assert sorted(zip(found["n"], found["k"], strict=True)) == [(0, "a"), (1, "b"), (2, "a"), (3, "b")]


def test_it_is_absent_from_the_records_and_can_be_written_again(tmp_path: Path) -> None:
    to_tfrecord(collection(), tmp_path / "a")
    (first, _) = sorted((tmp_path / "a").glob("part-*"))
    found = [sorted(oracle.parse(payload).features) for payload in oracle.read_payloads(first)]
    assert found == [["k", "n"]] * 2
    (statistics,) = (one for one in Snapshot.open(tmp_path / "a").files[0].statistics if one.name == "x")
    assert statistics.nulls == 2
    to_tfrecord(read_tfrecord(tmp_path / "a"), tmp_path / "b")
    to_tfrecord(collection(), tmp_path / "b", append=True)
    assert read_tfrecord(tmp_path / "b").compute()["x"].dtype == NULL
    assert len(read_tfrecord(tmp_path / "b")) == 8
    assert take(tmp_path / "b", [0, -1])["x"].isna().all()


def test_it_is_added_to_a_column_of_another_type(tmp_path: Path) -> None:
    to_tfrecord(collection().assign(x=7), tmp_path)
    to_tfrecord(collection(), tmp_path, append=True)
    to_tfrecord(collection(), tmp_path, append=True, schema={"x": pa.int64()})
    found = read_tfrecord(tmp_path)["x"].compute()
    assert found.dtype == pd.ArrowDtype(pa.int64())
    assert found.sum() == 28
    assert found.isna().sum() == 8


def test_objects_that_are_all_missing_are_a_null_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": pd.Series([None, np.nan, None], dtype=object), "n": [1, 2, 3]})
    with dask.config.set({"dataframe.convert-string": False}):
        to_tfrecord(dd.from_pandas(frame, npartitions=2), tmp_path)
    assert read_tfrecord(tmp_path).compute()["x"].dtype == NULL


@pytest.mark.parametrize(
    ("values", "dtype", "type_", "problem"),
    [
        ([None, None], "string", pa.null(), None),
        ([None, "a"], "string", pa.null(), r"record 1: feature 'x': a value does not fit null"),
        ([None, "a"], object, pa.null(), r"record 1: feature 'x': a value does not fit null"),
        (
            ["a", "a"],
            "string",
            pa.map_(pa.string(), pa.int64()),
            r"feature 'x': .* no feature for the type map",
        ),
    ],
)
def test_text_is_written_as_null_only_if_all_of_it_is_missing(
    tmp_path: Path, values: list[str | None], dtype: Any, type_: pa.DataType, problem: str | None
) -> None:
    with dask.config.set({"dataframe.convert-string": False}):
        ddf = dd.from_pandas(pd.DataFrame({"x": pd.Series(values, dtype=dtype), "n": [1, 2]}), npartitions=1)
    if problem:
        with pytest.raises(SchemaError, match=problem):
            to_tfrecord(ddf, tmp_path, schema={"x": type_})
        return
    to_tfrecord(ddf, tmp_path, schema={"x": type_})
    assert read_tfrecord(tmp_path).compute()["x"].dtype == NULL
