"""Columns without any value are absent features; `lossy=` covers the rounding to shorter floats.

Modules: schema.fields, schema.conversion, schema.logical_types.
"""

import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import SchemaError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot

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
        {"shuffle": True, "seed": 1},
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
    assert open_dataset(tmp_path / "b").take([0, -1])["x"].null_count == 2


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
    assert read_tfrecord(tmp_path, dtype_backend="pyarrow").compute()["x"].dtype == NULL


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


# --- `lossy=` ---


def rounded() -> dd.DataFrame:
    frame = pd.DataFrame({"x": [0.1, 0.5, float("nan"), float("-inf")], "n": range(4)})
    frame["d"] = pd.array([Decimal("0.10"), None, Decimal("1.25"), None], pd.ArrowDtype(pa.decimal128(9, 2)))
    return dd.from_pandas(frame, npartitions=2)


def objects(*values: Any) -> dd.DataFrame:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_pandas(pd.DataFrame({"x": pd.Series(column, dtype=object)}), npartitions=1)


@pytest.mark.parametrize("backend", ["pyarrow", "numpy"])
@pytest.mark.parametrize("lossy", ["warn", "raise"])
def test_what_was_read_is_written_without_a_word(tmp_path: Path, backend: Any, lossy: Any) -> None:
    to_tfrecord(rounded(), tmp_path / "a", lossy="allow")
    ddf = read_tfrecord(tmp_path / "a", dtype_backend=backend)
    moved = ddf[ddf["n"] != 1].repartition(npartitions=1)[["d", "x", "n"]].assign(n=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_tfrecord(ddf, tmp_path / "b", lossy=lossy)
        to_tfrecord(moved, tmp_path / "c", lossy=lossy)
    one, other = (read_tfrecord(tmp_path / name, dtype_backend=backend).compute() for name in "ab")
    pd.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize(
    "change",
    [
        lambda ddf: ddf.assign(x=ddf["x"] / 3),
        lambda ddf: ddf.assign(x=ddf["n"] / 3),
        lambda ddf: ddf.map_partitions(lambda part: part),
        lambda ddf: ddf.rename(columns={"n": "x", "x": "n"}),
        lambda ddf: dd.concat([ddf, ddf]),
    ],
)
def test_columns_that_may_have_changed_are_warned_of(tmp_path: Path, change: Any) -> None:
    to_tfrecord(rounded(), tmp_path / "a", lossy="allow")
    with pytest.warns(UserWarning, match="are rounded"):
        to_tfrecord(change(read_tfrecord(tmp_path / "a")), tmp_path / "b")


def test_a_partition_column_was_never_rounded(tmp_path: Path) -> None:
    to_tfrecord(rounded()[["x", "n"]], tmp_path / "a", partition_on="x")
    ddf = read_tfrecord(tmp_path / "a")
    with pytest.warns(UserWarning, match="the values of 'x' are rounded"):
        to_tfrecord(ddf, tmp_path / "b")
    with pytest.raises(SchemaError, match=r"0\.1 would come back as 0\.1000000"):
        to_tfrecord(ddf, tmp_path / "c", lossy="raise")


@pytest.mark.parametrize("type_", [pa.float32(), pa.float16()])
def test_a_cast_to_shorter_floats_is_covered(tmp_path: Path, type_: pa.DataType) -> None:
    ddf = rounded()[["x"]]
    with pytest.warns(UserWarning, match="the values of 'x' are rounded"):
        to_tfrecord(ddf, tmp_path / "warn", schema={"x": type_})
    with pytest.raises(
        SchemaError, match=r"record 0: feature 'x': .*0\.1 would become 0\.09|0\.100"
    ) as caught:
        to_tfrecord(ddf, tmp_path / "raise", schema={"x": type_}, lossy="raise")
    assert 'lossy="allow"' in str(caught.value)
    to_tfrecord(ddf, tmp_path / "allow", schema={"x": type_}, lossy="allow")
    expected = np.array([0.1, 0.5], type_.to_pandas_dtype())
    assert read_tfrecord(tmp_path / "allow")["x"].compute().tolist()[:2] == expected.tolist()


def test_shorter_floats_from_objects_are_warned_of_where_a_value_changes(tmp_path: Path) -> None:
    lists = {"x": pa.list_(pa.float32())}
    to_tfrecord(objects(np.float32([0.1]), [0.5, 1], None), tmp_path / "exact", schema=lists)
    with pytest.warns(UserWarning, match=r"'x' are rounded to .*, in row 1 0\.1 would become 0\.1000000"):
        to_tfrecord(objects([0.5], [0.25, 0.1]), tmp_path / "warn", schema=lists)
    with pytest.raises(SchemaError, match=r"record 1: feature 'x': .*0\.1 would become"):
        to_tfrecord(objects([0.5], [0.25, 0.1]), tmp_path / "raise", schema=lists, lossy="raise")
    to_tfrecord(objects([0.5], [0.25, 0.1]), tmp_path / "allow", schema=lists, lossy="allow")


@pytest.mark.parametrize("lossy", ["warn", "allow", "raise"])
@pytest.mark.parametrize("type_", [pa.int64(), pa.bool_(), pa.decimal128(9, 2)])
def test_nothing_but_floats_is_ever_rounded(tmp_path: Path, lossy: Any, type_: pa.DataType) -> None:
    frame = pd.DataFrame({"x": [1.0, 1.555]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(SchemaError, match=r"record 1: feature 'x': .*1\.555"):
            to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path, schema={"x": type_}, lossy=lossy)
