"""Partition columns return exactly the values that were written, for every type and its edge values.

Modules: dataset.partitioning.
"""

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from cast_table import SOURCES, Value, array_of

from dask_tfrecord import SchemaError, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset import partitioning

pytestmark = pytest.mark.usefixtures("one_thread")


def keyed_by(array: pa.Array) -> dd.DataFrame:
    keys = pd.Series(pd.arrays.ArrowExtensionArray(array))
    frame = pd.DataFrame({"key": keys, "n": range(len(array))})
    return dd.from_map(lambda _: frame, [0], meta=frame.iloc[:0])


def has_python_value(array: pa.Array) -> bool:
    try:
        values = array.to_pylist()
        return pa.types.is_floating(array.type) or pa.array(values, array.type).equals(array)
    except (OverflowError, ValueError):
        return False


@pytest.mark.parametrize(("type_", "values"), SOURCES, ids=lambda v: str(v)[:30])
def test_every_key_comes_back(tmp_path: Path, type_: pa.DataType, values: list[Any]) -> None:
    pairs = [array_of(value, type_) for value in values]
    array = pa.concat_arrays([pa.nulls(1, type_), *(pair[1:] for pair in pairs if has_python_value(pair))])
    to_tfrecord(keyed_by(array), tmp_path, partition_on="key")
    table = pa.Table.from_pandas(read_tfrecord(tmp_path).compute(), preserve_index=False).sort_by("n")
    found = table["key"].combine_chunks()
    assert found.type == type_
    assert not found[0].is_valid
    for row in range(1, len(array)):
        before, after = Value(array, row), Value(found, row)
        assert before.exact == after.exact
        if pa.types.is_floating(type_):
            assert np.signbit(before.stored) == np.signbit(after.stored)


@pytest.mark.parametrize(("type_", "values"), SOURCES, ids=lambda v: str(v)[:30])
def test_a_key_beyond_python_is_refused(tmp_path: Path, type_: pa.DataType, values: list[Any]) -> None:
    for value in values:
        if not has_python_value(array_of(value, type_)):
            with pytest.raises(SchemaError, match="feature 'key': a value of the type"):
                to_tfrecord(keyed_by(array_of(value, type_)), tmp_path / "x", partition_on="key")


@pytest.mark.parametrize("type_", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_zeros_and_infinities_are_keys_of_their_own_and_all_nans_are_one(
    tmp_path: Path, type_: pa.DataType
) -> None:
    numbers = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf], type_.to_pandas_dtype())
    snapshot = to_tfrecord(keyed_by(pa.array(numbers)), tmp_path, partition_on="key")
    names = [file.path.partition("/")[0] for file in snapshot.files]
    assert names == ["key=0", "key=-0", "key=nan", "key=inf", "key=-inf"]


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("1.5", pa.int64()),
        ("300", pa.int8()),
        ("1e300", pa.float32()),
        ("16777217", pa.float32()),
        ("0.1", pa.float16()),
        ("9007199254740993", pa.float64()),
        ("1.555", pa.decimal128(9, 2)),
        ("2020-01-01T10", pa.date32()),
        ("2020-01-01 12:00:00.5", pa.timestamp("s")),
        ("2020-01-01 12:00:00Z", pa.timestamp("s")),
        ("2020-01-01 12:00:00", pa.timestamp("s", "UTC")),
        ("12:00:00.5", pa.time32("s")),
        ("1.5", pa.duration("s")),
        ("2", pa.bool_()),
    ],
)
def test_a_directory_name_is_no_value_of_a_type_that_cannot_hold_it(text: str, type_: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"feature 'k': the directory .* which is no"):
        partitioning.to_values("k", pa.array(["0", text])[1:], type_, [f"k={text}"])


@pytest.mark.parametrize(
    ("keys", "type_"),
    [
        (pa.array([1, 2]), pa.bool_()),
        (pa.array([1, 300]), pa.int8()),
        (pa.array([1.0, 1.5]), pa.int64()),
        (pa.array([0.5, 0.1]), pa.float32()),
        (pa.array([0, 86_400 * 10**9 + 1], pa.timestamp("ns")), pa.date32()),
        (pa.array(["1", "1.50"]), pa.float64()),
    ],
)
def test_a_snapshot_gives_keys_of_another_type_exactly_or_not_at_all(
    tmp_path: Path, keys: pa.Array, type_: pa.DataType
) -> None:
    if pa.types.is_timestamp(keys.type):
        keys = pa.array([0, 86_400 * 10**9 + 1000], keys.type)
    to_tfrecord(keyed_by(keys[:1]), tmp_path / "fits", partition_on="key")
    assert read_tfrecord(tmp_path / "fits", schema={"key": type_}).dtypes["key"] == pd.ArrowDtype(type_)
    to_tfrecord(keyed_by(keys), tmp_path / "does not", partition_on="key")
    with pytest.raises(SchemaError, match="feature 'key': the partition values are"):
        read_tfrecord(tmp_path / "does not", schema={"key": type_})
