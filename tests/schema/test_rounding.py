"""`lossy=` covers the rounding to shorter floats, and warns only if a column can be rounded.

Modules: schema.conversion, schema.logical_types.
"""

import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import SchemaError, read_tfrecord, to_tfrecord

pytestmark = pytest.mark.usefixtures("one_thread")


def collection() -> dd.DataFrame:
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
    to_tfrecord(collection(), tmp_path / "a", lossy="allow")
    ddf = read_tfrecord(tmp_path / "a", dtype_backend=backend)
    moved = ddf[ddf["n"] != 1].repartition(npartitions=1)[["d", "x", "n"]].assign(n=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_tfrecord(ddf, tmp_path / "b", lossy=lossy)
        to_tfrecord(moved, tmp_path / "c", lossy=lossy)
    one, other = (read_tfrecord(tmp_path / name).compute() for name in "ab")
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
    to_tfrecord(collection(), tmp_path / "a", lossy="allow")
    with pytest.warns(UserWarning, match="are rounded"):
        to_tfrecord(change(read_tfrecord(tmp_path / "a")), tmp_path / "b")


def test_a_partition_column_was_never_rounded(tmp_path: Path) -> None:
    to_tfrecord(collection()[["x", "n"]], tmp_path / "a", partition_on="x")
    ddf = read_tfrecord(tmp_path / "a")
    with pytest.warns(UserWarning, match="the values of 'x' are rounded"):
        to_tfrecord(ddf, tmp_path / "b")
    with pytest.raises(SchemaError, match=r"0\.1 would come back as 0\.1000000"):
        to_tfrecord(ddf, tmp_path / "c", lossy="raise")


@pytest.mark.parametrize("type_", [pa.float32(), pa.float16()])
def test_a_cast_to_shorter_floats_is_covered(tmp_path: Path, type_: pa.DataType) -> None:
    ddf = collection()[["x"]]
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
