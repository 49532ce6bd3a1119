"""Python objects in object columns come back equal and of Python's types, or the write refuses them.

Modules: collection.frames.object_arrays, collection.frames.arrow_to_pandas.
"""

import datetime as dt
import enum
from array import array
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from planned_frames import objects

from dask_tfrecord import SchemaError, TFRecordError, Writer, open_dataset, read_tfrecord, to_tfrecord

pytestmark = pytest.mark.usefixtures("one_thread")

BIG = 2**60 + 1  # no float64 has this value
NANOS = pd.Timestamp("2024-01-01 00:00:00.123456789")
ZONED = dt.datetime(2024, 7, 1, tzinfo=dt.UTC)

# Values of each Python type that a dict may contain.
VALUES: dict[str, list[Any]] = {
    "int": [BIG, -BIG],
    "bool": [True, False],
    "float": [0.5, -1.5],
    "text": ["zażółć", ""],
    "bytes": [b"\xff", b""],
    "decimal": [Decimal("1.25"), Decimal("-2.50")],
    "date": [dt.date(2024, 2, 29), dt.date(1, 1, 1)],
    "time": [dt.time(1, 2, 3), dt.time(23, 59, 59, 999_999)],
    "datetime": [dt.datetime(2024, 1, 1), dt.datetime(1, 1, 1, 1)],
    "zoned": [ZONED, ZONED + dt.timedelta(hours=1)],
    "nanoseconds": [NANOS, NANOS + pd.Timedelta(1, "ns")],
    "timedelta": [dt.timedelta(microseconds=1), dt.timedelta(days=-1)],
    "timedelta of nanoseconds": [pd.Timedelta(1, "ns"), pd.Timedelta(2, "s")],
}

# How a column nests one value, or None for a null.
NESTINGS: dict[str, Callable[[Any], Any]] = {
    "dict": lambda value: {"id": value, "other": 1},
    "dict in dict": lambda value: {"a": {"id": value, "n": None}, "b": "x"},
    "dict of lists": lambda value: {"ids": None if value is None else [value, value]},
}


def frame_of(values: list[Any], way: str) -> Any:
    frame = objects(*values)
    if way == "pandas":
        return frame
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_pandas(frame, npartitions=len(values))


def types_in(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: types_in(one) for key, one in value.items()}
    return [*map(types_in, value)] if isinstance(value, list) else type(value)


def same(found: Any, expected: Any) -> bool:
    return bool(found == expected and types_in(found) == types_in(expected))


@pytest.mark.sampled
@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize(
    ("kind", "way"), [(kind, ("pandas", "dask")[n % 2]) for n, kind in enumerate(VALUES)]
)
def test_dicts_with_nulls_come_back_exactly(tmp_path: Path, kind: str, way: str, nesting: str) -> None:
    nest, (first, second) = NESTINGS[nesting], VALUES[kind]
    # The first partition of a Dask collection shows no type.
    rows = [nest(None), nest(first), None, nest(second)]
    to_tfrecord(frame_of(rows, way), tmp_path / "a", lossy="allow")
    ddf = read_tfrecord(tmp_path / "a")
    assert pd.api.types.is_object_dtype(ddf.dtypes["x"])
    assert same(ddf.compute()["x"].tolist(), rows)
    assert same(ddf["x"].head(2, npartitions=-1).tolist(), rows[:2])
    for backend in ("numpy", "numpy_nullable", "pyarrow"):
        found = read_tfrecord(tmp_path / "a", dtype_backend=backend).compute()["x"]
        assert found.array.__arrow_array__().to_pylist() == rows
    assert open_dataset(tmp_path / "a").take([3, 0])["x"].to_pylist() == [rows[3], rows[0]]
    to_tfrecord(ddf, tmp_path / "b", lossy="raise")
    assert same(read_tfrecord(tmp_path / "b").compute()["x"].tolist(), rows)
    field = "x/a/id" if nesting == "dict in dict" else f"x/{next(iter(nest(None)))}"
    found = read_tfrecord(tmp_path / "b", columns=[field]).compute()[field]
    assert found.array.__arrow_array__().to_pylist()[1] == (
        [first, first] if nesting == "dict of lists" else first
    )


@pytest.mark.parametrize("rows", [[{"id": None}, {"id": BIG}], [{"id": {"n": BIG}}, {"id": {"n": None}}]])
def test_a_writer_stores_dicts_exactly(tmp_path: Path, rows: list[Any]) -> None:
    with Writer(tmp_path) as writer:
        writer.write(objects(*rows))
        writer.write(objects(*rows))
    assert same(read_tfrecord(tmp_path).compute()["x"].tolist(), rows * 2)


def test_lists_of_zoned_times_keep_their_zone(tmp_path: Path) -> None:
    to_tfrecord(objects([ZONED], [], None), tmp_path)
    found = read_tfrecord(tmp_path).compute()["x"].tolist()
    assert [None if value is None else value.tolist() for value in found] == [[ZONED], [], None]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"t": NANOS.to_datetime64()}, {"t": NANOS}),
        ({"t": np.timedelta64(3, "ns")}, {"t": pd.Timedelta(3, "ns")}),
        ({"t": NANOS, "old": dt.datetime(1, 1, 1)}, {"t": NANOS, "old": dt.datetime(1, 1, 1)}),
        ({"t": (1, 2)}, {"t": [1, 2]}),
        ({"t": np.arange(3)}, {"t": [0, 1, 2]}),
        ({"t": np.array(["2024-02-29"], "M8[D]")}, {"t": [dt.date(2024, 2, 29)]}),
        ({"t": [NANOS]}, {"t": [NANOS]}),
        ({"t": pd.NaT, "n": pd.NA}, {"t": None, "n": None}),
        ({"t": np.int8(3)}, {"t": 3}),
        (OrderedDict(a=1), {"a": 1}),
    ],
    ids=str,
)
def test_values_in_dicts_are_stored_like_values_in_columns(tmp_path: Path, value: Any, stored: Any) -> None:
    to_tfrecord(objects(value, value), tmp_path)
    assert same(read_tfrecord(tmp_path).compute()["x"].tolist(), [stored, stored])


def test_a_nan_in_a_dict_is_a_value(tmp_path: Path) -> None:
    to_tfrecord(objects({"x": float("nan")}, {"x": None}), tmp_path, lossy="allow")
    first, second = read_tfrecord(tmp_path).compute()["x"]
    assert np.isnan(first["x"])
    assert second == {"x": None}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"t": [1, "a"]}, "the key 't'"),
        ({"t": np.zeros((2, 2))}, "the key 't'.* 1-dimensional"),
        ({"t": {"u": np.ma.masked_array([1, 2], [0, 1])}}, "the key 't': the values of the key 'u'"),
        ({"t": 1j}, "the key 't'.*complex"),
        (np.array(["2024", "NaT"], "M8[ns]"), "the list holds a null"),
        (dt.time(1, tzinfo=dt.UTC), "no Arrow type holds all details of the time objects"),
        (Decimal("Infinity"), "infinite decimals"),
        ({1: 2}, "a key that is not a string"),
        ({"id": float("nan"), "n": [1.5, BIG]}, f"the key 'n': Integer value {BIG} is outside of the range"),
    ],
    ids=str,
)
def test_a_refused_dict_gets_the_true_reason(tmp_path: Path, value: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        to_tfrecord(objects(value), tmp_path)


def test_a_time_that_python_cannot_represent_raises(tmp_path: Path) -> None:
    far = pa.array([{"t": 2**60}], pa.struct({"t": pa.int64()})).cast(pa.struct({"t": pa.timestamp("s")}))
    to_tfrecord(objects({"t": dt.datetime(2024, 1, 1)}), tmp_path, schema={"x": far.type})
    with pytest.raises(SchemaError, match=r"cannot represent.*dtype_backend"):
        to_pandas_of(far, tmp_path)


def to_pandas_of(values: pa.Array, path: Path) -> None:
    """Read the values with the dtype object, as if they were the values of a dataset."""
    from dask_tfrecord.collection.frames.arrow_to_pandas import to_pandas
    from dask_tfrecord.schema.fields import Schema

    to_pandas(
        pa.table({"x": values}), Schema.from_arrow(pa.schema({"x": values.type})), dtypes={"x": "object"}
    )


# -- Objects that equal no stored value ----------------------------------------------------------------------


class Level(enum.IntEnum):
    HIGH = 3


class Name(str):
    """A subclass of str, whose objects equal strings."""


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (Level.HIGH, 3),
        (Name("a"), "a"),
        (Pair(1, 2), [1, 2]),
        ([Level.HIGH, 2], [3, 2]),
        (bytearray(b"a"), b"a"),
        ({"a": Level.HIGH, "b": Name("x")}, {"a": 3, "b": "x"}),
    ],
    ids=str,
)
def test_subclasses_are_stored_as_the_equal_value(tmp_path: Path, value: Any, stored: Any) -> None:
    to_tfrecord(objects(value, None), tmp_path)
    assert open_dataset(tmp_path).to_table()["x"].to_pylist() == [stored, None]


VALUES_OF_SEQUENCES: list[Any] = [
    {3, 1},
    frozenset({3, 1}),
    deque([1, 3]),
    range(1, 5, 2),
    array("q", [1, 3]),
    pd.Index([1, 3]),
]


@pytest.mark.parametrize("way", ["pandas", "dask"])
@pytest.mark.parametrize("value", VALUES_OF_SEQUENCES, ids=str)
def test_sets_and_sequences_are_refused_with_advice_that_stores_a_list(
    tmp_path: Path, value: Any, way: str
) -> None:
    ddf = frame_of([value, None], way)
    with pytest.raises(SchemaError) as caught:
        to_tfrecord(ddf, tmp_path / "refused")
    expression = str(caught.value.advice).rpartition(", with ")[2]
    to_tfrecord(ddf.assign(x=eval(expression, {"ddf": ddf})), tmp_path / "written")
    assert open_dataset(tmp_path / "written").to_table()["x"].to_pylist() == [[1, 3], None]


NESTED_SETS: list[Any] = [
    [{1}],
    {"a": {1}},
    {"a": {"b": [{1}]}},
    [[1], {1}],
    np.array([{1}, None], dtype=object),
    ({1},),
    {"a": frozenset()},
]


@pytest.mark.parametrize("value", NESTED_SETS, ids=str)
def test_sets_inside_of_values_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(SchemaError, match="set"):
        to_tfrecord(objects(value), tmp_path, record_type="sequence_example")
    with (
        pytest.raises(TFRecordError, match="set"),
        Writer(tmp_path, record_type="sequence_example") as writer,
    ):
        writer.write([{"x": value}])


def test_a_set_is_refused_for_a_list_type_and_in_the_rows_of_a_writer(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="a set has no order"):
        to_tfrecord(objects({1}), tmp_path, schema={"x": pa.list_(pa.int64())})
    with (
        pytest.raises(SchemaError, match=r"record 1: feature 'x'.* a set has no order"),
        Writer(tmp_path) as w,
    ):
        w.write([{"x": [1]}, {"x": {1}}])


# -- Arrays of several dimensions ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["pandas", "dask"])
def test_the_advice_for_arrays_of_several_dimensions_works(tmp_path: Path, way: str) -> None:
    image = np.arange(6, dtype="float32").reshape(2, 3)
    ddf = frame_of([image, None, image + 1], way)
    with pytest.raises(SchemaError) as caught:
        to_tfrecord(ddf, tmp_path / "refused")
    keyword, _, flattened = str(caught.value.advice).partition(", or flatten")
    schema = eval(keyword.removeprefix("pass schema=").partition(" to keep")[0], {"pa": pa})
    to_tfrecord(ddf, tmp_path / "kept", schema=schema)
    tensors = open_dataset(tmp_path / "kept").to_table()["x"].combine_chunks().drop_null()
    assert tensors.to_numpy_ndarray().tolist() == [image.tolist(), (image + 1).tolist()]
    flat = eval(flattened.rpartition(", with ")[2], {"ddf": ddf, "numpy": numpy})
    to_tfrecord(ddf.assign(x=flat), tmp_path / "flat")
    assert open_dataset(tmp_path / "flat").to_table()["x"].to_pylist()[0] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([np.zeros((2, 3)), np.zeros((3, 2))], r"record 1: .*shape \(3, 2\), the column \(2, 3\)"),
        ([[[1, 2, 3], [4, 5, 6]], [[1, 2], [3, 4]]], r"record 1: .*shape \(2, 2\), the column \(2, 3\)"),
        ([np.zeros(6), np.zeros(5)], "record 1: .*5 values"),
    ],
)
def test_arrays_of_another_shape_do_not_fit_a_tensor(tmp_path: Path, values: list[Any], problem: str) -> None:
    tensor = {"x": pa.fixed_shape_tensor(pa.float64(), (2, 3))}
    with pytest.raises(SchemaError, match=problem):
        to_tfrecord(objects(*values), tmp_path / "refused", schema=tensor, lossy="allow")
    to_tfrecord(objects(values[0], None), tmp_path / "a", schema=tensor, lossy="allow")
    to_tfrecord(objects(values[0]), tmp_path / "a", append=True, lossy="allow")
    assert open_dataset(tmp_path / "a").to_table()["x"].null_count == 1


def test_arrays_of_several_dimensions_become_lists_of_lists(tmp_path: Path) -> None:
    nested = {"x": pa.list_(pa.list_(pa.int64()))}
    values = [np.arange(6).reshape(2, 3), np.zeros((0, 2), int), [[1], []]]
    to_tfrecord(objects(*values), tmp_path, schema=nested, record_type="sequence_example")
    found = open_dataset(tmp_path).to_table()["x"].to_pylist()
    assert found == [[[0, 1, 2], [3, 4, 5]], [], [[1], []]]
