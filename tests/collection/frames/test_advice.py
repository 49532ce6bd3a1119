"""The advice of every refusal of a column is followed literally, and then the write succeeds.

Modules: collection.frames.schema_plan, collection.frames.pandas_to_arrow.
"""

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dask_tfrecord import SchemaError, read_tfrecord, to_tfrecord


@pytest.fixture(autouse=True)
def _objects_stay() -> Iterator[None]:
    with dask.config.set({"dataframe.convert-string": False}):
        yield


def collection(values: Any, dtype: Any = None) -> dd.DataFrame:
    if isinstance(values, pa.Array):
        values = pd.arrays.ArrowExtensionArray(pa.chunked_array([values]))
    column = pd.Series(values, dtype=dtype)
    return dd.from_pandas(pd.DataFrame({"x": column, "other": range(len(column))}), npartitions=1)


def refused(ddf: dd.DataFrame, path: Path, **keywords: Any) -> SchemaError:
    with pytest.raises(SchemaError) as caught:
        to_tfrecord(ddf, path, lossy="allow", **keywords)
    assert caught.value.feature == "x"
    return caught.value


def written(ddf: dd.DataFrame, path: Path, **keywords: Any) -> list[Any]:
    to_tfrecord(ddf, path, lossy="allow", **keywords)
    ddf = read_tfrecord(path, dtype_backend="pyarrow")
    result: list[Any] = ddf["x"].compute().array.__arrow_array__().to_pylist()
    return result


def coded(values: pa.Array) -> pa.Array:
    """A dictionary with the first of the values."""
    return pa.DictionaryArray.from_arrays(pa.array([0]), values)


def schema_of(type_: pa.DataType) -> dict[str, Any]:
    return {"schema": {"x": type_}}


BIG = 2**63
LIMIT = r"2\^63-1.*uint64"
NO_FEATURE = "no feature holds such values"
PERIODS = pd.period_range("2020-01", periods=2, freq="M")
MONTHS = [dt.datetime(2020, 1, 1), dt.datetime(2020, 2, 1)]
UUID = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef"], pa.binary(16)))
BOOLS = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8()))
STRUCT = pa.struct({"a": pa.int64(), "b": pa.int64()})
CASES: list[tuple[Any, Any, dict[str, Any], str, list[Any]]] = [
    # values, dtype, keywords of the write, part of the message, what is read back
    ([1 + 2j, 3], complex, {}, NO_FEATURE, [1.0, 3.0]),
    ([1 + 2j, 3j], object, {}, "complex", [1.0, 0.0]),
    ([1 + 2j, 3j], complex, schema_of(pa.float32()), "does not fit float", [1.0, 0.0]),
    (pd.Categorical([1j]), None, {}, NO_FEATURE, ["1j"]),
    ([1.5], np.longdouble, {}, NO_FEATURE, [1.5]),
    ([1.5], np.longdouble, schema_of(pa.float32()), "does not fit", [1.5]),
    ([BIG, 1], object, {}, LIMIT, [str(BIG), "1"]),
    ([2 * BIG, 1], object, schema_of(pa.uint64()), LIMIT, [str(2 * BIG), "1"]),
    ([BIG, 1], object, schema_of(pa.uint64()), LIMIT, [str(BIG), "1"]),
    ([BIG, 1], "uint64", {}, LIMIT, [str(BIG), "1"]),
    ([BIG, 1], "UInt64", {}, LIMIT, [str(BIG), "1"]),
    (PERIODS, None, {}, NO_FEATURE, MONTHS),
    (PERIODS, None, schema_of(pa.timestamp("s")), NO_FEATURE, MONTHS),
    (pd.interval_range(0, 1), None, {}, NO_FEATURE, ["(0, 1]"]),
    (pd.cut([1.0], [0, 1]), None, {}, NO_FEATURE, ["(0, 1]"]),
    (pd.Categorical(PERIODS), None, schema_of(pa.timestamp("s")), "such values", ["2020-01", "2020-02"]),
    ([1, "a"], object, {}, "cannot be stored", ["1", "a"]),
    ([1, "a"], object, schema_of(pa.string()), "does not fit string", ["1", "a"]),
    ([1, "a"], object, schema_of(pa.int64()), "does not fit int64", ["1", "a"]),
    ([np.ones((2, 1))], object, {}, "cannot be stored", [[1.0, 1.0]]),
    ([uuid.UUID(int=5)], object, {}, "extension<arrow.uuid>", [uuid.UUID(int=5).bytes]),
    ([[], []], object, {}, "no partition has a value", [[], []]),
    (pa.array([[], None], pa.list_(pa.int64(), 0)), None, {}, r"list<item: int64>\[0\]", [[], None]),
    (pa.array([b"", None], pa.binary(0)), None, {}, r"fixed_size_binary\[0\]", [b"", None]),
    (pa.array([decimal.Decimal("1.2E3")], pa.decimal128(5, -2)), None, {}, "decimal128", [1200]),
    (pc.run_end_encode(pa.array([1, 1, 2])), None, {}, "run_end_encoded", [1, 1, 2]),
    (UUID, None, {}, "arrow.uuid", [b"0123456789abcdef"]),
    (BOOLS, None, {}, "arrow.bool8", [True, False]),
    (coded(pa.array([[1, 2]])), None, {}, "dictionary<values=list", [[1, 2]]),
    (coded(pa.array([1], pa.decimal32(3, 1))), None, {}, "dictionary<values=decimal32", [decimal.Decimal(1)]),
    (pa.ListArray.from_arrays([0, 2], BOOLS), None, {}, "arrow.bool8", [[True, False]]),
    ([{"a": 1.5}], object, schema_of(pa.struct({"a": pa.int64()})), "struct<a: int64>", [{"a": 1.5}]),
    ([{"a": 1}], object, schema_of(pa.int64()), "never equal", [{"a": 1}]),
    (
        [{"a": 1, "b": 5}, None, {"a": 2}],
        object,
        {},
        "different keys",
        [{"a": 1, "b": 5}, None, {"a": 2, "b": None}],
    ),
    (
        [{"a": 1, "b": 2}, {"a": 2}],
        object,
        schema_of(STRUCT),
        "record 1: .* different",
        [{"a": 1, "b": 2}, {"a": 2, "b": None}],
    ),
    (pa.array([[[1], []]]), None, {}, "nests lists deeper", [[[1], []]]),
    (pd.Categorical([300]), None, schema_of(pa.dictionary(pa.int32(), pa.int8())), "categories", [300]),
]


def followed(error: SchemaError, ddf: dd.DataFrame) -> tuple[dd.DataFrame, dict[str, Any]]:
    """The collection and the keywords after the first remedy of an error, or after the code in its advice."""
    for remedy in error.remedies:
        return ddf, {remedy.keyword: remedy.value}
    names = {"ddf": ddf, "pa": pa, "pd": pd, "numpy": numpy}
    advice = str(error.advice)
    if expression := re.search(r"with (ddf\[.*)", advice):
        return ddf.assign(x=eval(expression[1], names)), {}
    method = re.search(r"with (\.\w+\([\w\"]+\))", advice)
    assert method, advice
    return ddf.assign(x=eval(f'ddf["x"]{method[1]}', names)), {}


@pytest.mark.parametrize("way", ["dask", "pandas"])
@pytest.mark.parametrize(("values", "dtype", "keywords", "problem", "expected"), CASES)
def test_following_the_advice_writes_the_column(
    tmp_path: Path,
    values: Any,
    dtype: Any,
    keywords: dict[str, Any],
    problem: str,
    expected: list[Any],
    way: str,
) -> None:
    ddf = collection(values, dtype)
    if way == "pandas":
        ddf = ddf.compute()
    error = refused(ddf, tmp_path / "refused", **keywords)
    assert re.search(problem, str(error)), error
    converted, remedy = followed(error, ddf)
    assert written(converted, tmp_path / "written", **remedy) == expected


@pytest.mark.parametrize(
    ("type_", "value", "part"),
    [
        (pa.list_(pa.struct([("a", pa.int64())])), [{"a": 5}], lambda rows: [row["a"] for row in rows]),
        (pa.map_(pa.string(), pa.int64()), [("k", 5)], lambda pairs: [key for key, _ in pairs]),
        (pa.month_day_nano_interval(), (1, 2, 3), lambda value: value.months),
    ],
)
def test_a_nested_column_becomes_columns_of_its_parts(
    tmp_path: Path, type_: pa.DataType, value: Any, part: Callable[[Any], Any]
) -> None:
    def parts(column: "pd.Series[Any]") -> "pd.Series[Any]":
        return pd.Series([part(one) for one in column.array.__arrow_array__().to_pylist()])

    ddf = collection(pa.array([value], type_))
    assert "column" in str(refused(ddf, tmp_path / "refused"))
    part_column = ddf["x"].map_partitions(parts, meta=("part", object))
    assert to_tfrecord(ddf[["other"]].assign(part=part_column), tmp_path / "written").rows == 1


def test_values_of_several_kinds_can_be_left_out(tmp_path: Path) -> None:
    ddf = collection([b"a", "b"], object)
    assert str(refused(ddf, tmp_path / "refused")).endswith(
        'give all values of the column one type, or leave it out, with ddf.drop(columns=["x"])'
    )
    assert to_tfrecord(ddf.drop(columns=["x"]), tmp_path / "written").rows == 2


class Image:
    """A class of a user, whose text does not have the value."""


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        ([Image(), None], None),
        ([Image(), Image()], {"x": pa.string()}),
        ([1, Image()], {"x": pa.binary()}),
        (["a", Image()], {"x": pa.string()}),
        ([b"a", Image()], None),
    ],
)
def test_no_advice_turns_objects_into_text_without_their_value(
    tmp_path: Path, values: list[Any], schema: Any
) -> None:
    for column in (pd.Series(values, dtype=object), pd.Series(values, dtype=object).astype("category")):
        error = refused(collection(column), tmp_path, schema=schema)
        assert "astype" not in str(error)
        assert "replace each Image by a value that keeps all of it, such as the bytes of" in str(error)
        assert not error.remedies


@pytest.mark.parametrize(("values", "schema"), [([0, 0, 1], None), ([0.5, np.nan, 0.0], {"x": pa.float32()})])
def test_sparse_columns_are_written(tmp_path: Path, values: list[Any], schema: Any) -> None:
    dense = pd.Series(values)
    sparse = collection(pd.arrays.SparseArray(values))
    expected = written(collection(dense), tmp_path / "dense", schema=schema)
    assert written(sparse, tmp_path / "sparse", schema=schema) == expected


@pytest.mark.parametrize(
    "values",
    [
        [5, None],
        [b"a"],
        [True],
        [dt.date(2020, 1, 1)],
        [decimal.Decimal("1.5")],
        [[1, 2]],
        [[b"a"]],
        [np.ones(2)],
    ],
    ids=str,
)
def test_objects_that_dask_would_convert_to_text_get_the_type_of_the_advice(
    tmp_path: Path, values: list[Any]
) -> None:
    frame = pd.DataFrame({"x": pd.Series(values, dtype=object)})
    with dask.config.set({"dataframe.convert-string": True}):
        message = str(refused(dd.from_pandas(frame, npartitions=1), tmp_path / "refused"))
        call = re.search(r"\.astype\(.*?\)}\)", message)
        assert call, message
        typed = eval(f"frame{call[0]}", {"frame": frame, "pa": pa, "pd": pd})
        assert len(written(dd.from_pandas(typed, npartitions=1), tmp_path / "written")) == len(values)


def test_unknown_ordered_categories_become_known(tmp_path: Path) -> None:
    ddf = collection(pd.Categorical(["a"], ordered=True))
    ddf = ddf.assign(x=ddf["x"].cat.as_unknown())
    ordered = pa.dictionary(pa.int32(), pa.string(), ordered=True)
    error = refused(ddf, tmp_path / "refused", schema={"x": ordered})
    _, remedy = followed(error, ddf)
    assert written(ddf, tmp_path / "schema", **remedy) == ["a"]
    expression = str(error.advice).removeprefix("use ")
    assert to_tfrecord(eval(expression, {"ddf": ddf}), tmp_path / "categorized").rows == 1
