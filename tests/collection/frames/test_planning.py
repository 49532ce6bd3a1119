"""The plan of a write, the Arrow type of every pandas column, and partitions as tables of the planned schema.

Modules: collection.frames.schema_plan, collection.frames.pandas_to_arrow.
"""

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from planned_frames import NAN, arrow_backed, convert, frame_of, objects, plan, planned, sample_of

from dask_tfrecord.collection.frames.arrow_to_pandas import empty_meta
from dask_tfrecord.collection.frames.pandas_to_arrow import to_table
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.fields import Schema

WHEN = pd.DatetimeIndex(["2020-07-01 12:00", None], tz="Europe/Vienna").as_unit("us")


@pytest.mark.parametrize(
    ("dtype", "type_"),
    [
        *(
            (name, getattr(pa, name)())
            for name in ("int8", "int64", "uint16", "uint64", "float32", "float64")
        ),
        *((name, getattr(pa, name.lower())()) for name in ("Int8", "UInt64", "Float32", "Float64")),
        ("float16", pa.float16()),
        ("bool", pa.bool_()),
        ("boolean", pa.bool_()),
        ("string", pa.string()),
        (pd.StringDtype("python"), pa.string()),
        (pd.StringDtype("pyarrow"), pa.string()),
        ("datetime64[ns]", pa.timestamp("ns")),
        ("datetime64[s]", pa.timestamp("s")),
        (pd.DatetimeTZDtype("us", "Europe/Vienna"), pa.timestamp("us", "Europe/Vienna")),
        ("timedelta64[ms]", pa.duration("ms")),
        (pd.CategoricalDtype(["a"]), pa.dictionary(pa.int32(), pa.string())),
        (pd.CategoricalDtype([1, 2], ordered=True), pa.dictionary(pa.int32(), pa.int64(), ordered=True)),
        (pd.ArrowDtype(pa.large_string()), pa.large_string()),
        (pd.ArrowDtype(pa.list_(pa.list_(pa.binary()))), pa.list_(pa.list_(pa.binary()))),
        (pd.ArrowDtype(pa.decimal128(5, 2)), pa.decimal128(5, 2)),
    ],
    ids=str,
)
def test_the_dtype_tells_the_type(dtype: Any, type_: pa.DataType) -> None:
    assert plan(frame_of([], dtype)).arrow.field("x").type == type_


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([None, "a", NAN], pa.string()),
        ([None, b"\xff"], pa.binary()),
        ([True, None], pa.bool_()),
        ([None, [1, 2], []], pa.list_(pa.int64())),
        ([np.array([1.5], np.float32), None], pa.list_(pa.float32())),
        ([[[1], []], None], pa.list_(pa.list_(pa.int64()))),
        ([[b"a"]], pa.list_(pa.binary())),
        ([dt.date(2020, 1, 1), None], pa.date32()),
    ],
)
def test_object_columns_show_their_type_in_the_first_partition_with_a_value(
    values: list[Any], type_: pa.DataType
) -> None:
    asked = []

    def sample(names: list[str]) -> Iterable[pd.DataFrame]:
        for partition in (objects(), objects(None, NAN), objects([], None), objects(*values)):
            asked.append(names)
            yield partition.assign(c=pd.Series([b"s"] * len(partition), dtype=object))[names]
        raise AssertionError("one partition too many")

    found = plan(objects().assign(c=objects()["x"], n=[]), {"c": pa.binary()}, sample=sample).arrow
    assert found.field("x").type == type_
    assert found.field("c").type == pa.binary()
    assert asked == [["x"]] * 4


def test_decimals_get_enough_digits_for_all_partitions() -> None:
    partitions = sample_of(*(objects(Decimal(text)) for text in ("1.5", "12345678.5", "1.255")))
    assert plan(objects(), sample=partitions).arrow.field("x").type == pa.decimal128(11, 3)


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([{"a": None}, None, {"a": 1}], pa.struct({"a": pa.int64()})),
        ([{"a": {"b": []}}, {"a": {"b": [b"x"]}}], pa.struct({"a": pa.struct({"b": pa.list_(pa.binary())})})),
        ([{"a": None}, {"a": None}], pa.struct({"a": pa.null()})),
    ],
)
def test_dicts_get_the_types_of_all_their_keys(values: list[Any], type_: pa.DataType) -> None:
    partitions = sample_of(*map(objects, values))
    assert plan(objects(), sample=partitions).arrow.field("x").type == type_


UNKNOWN = frame_of([], pd.CategoricalDtype(["__UNKNOWN_CATEGORIES__"], ordered=True))


LOW_HIGH = pd.CategoricalDtype(["low", "high"], ordered=True)


@pytest.mark.parametrize(
    ("meta", "partitions", "type_", "categories"),
    [
        (objects(), [objects(NAN), objects(None, pd.NaT)], pa.null(), None),
        (frame_of([None], pd.ArrowDtype(pa.null())), [], pa.null(), None),
        (frame_of([], pd.CategoricalDtype(["b", "a", "never"])), [], pa.string(), ["b", "a", "never"]),
        (UNKNOWN, [frame_of(["high"], LOW_HIGH)], pa.string(), ["low", "high"]),
        # Unordered categories take only their type from the first partition with categories.
        (
            empty_meta(planned(pa.dictionary(pa.int32(), pa.string()))),
            [frame_of([None], "category"), frame_of([3, None], "category")],
            pa.int64(),
            None,
        ),
    ],
)
def test_a_sample_shows_categories_and_columns_without_a_value(
    meta: pd.DataFrame, partitions: list[pd.DataFrame], type_: pa.DataType, categories: list[str] | None
) -> None:
    (field,) = plan(meta, sample=sample_of(*partitions)).fields
    assert getattr(field.type, "value_type", field.type) == type_
    assert getattr(field.type, "ordered", False) == (meta is UNKNOWN)
    assert (field.categories and field.categories.to_pylist()) == categories


CODED = pa.dictionary(pa.int32(), pa.int64())


NOON = pd.CategoricalDtype(pd.DatetimeIndex(["2020-01-01", "2020-01-01 12:00"]))


@pytest.mark.parametrize(
    ("frame", "schema", "problem"),
    [
        (objects([]), None, r"feature 'x': no partition has a value.*pass schema="),
        (objects(1, "a"), None, "feature 'x': values of the dtype object cannot be stored"),
        (frame_of([], "complex128"), None, "feature 'x'"),
        (frame_of([], "period[D]"), None, "feature 'x'"),
        (frame_of([], "interval[int64]"), None, "feature 'x'"),
        (frame_of([1]), {"y": pa.int64()}, r"do not exist: \['y'\]; the columns are \['x'\]"),
        (frame_of([1]), {"x": "object"}, "no valid type for the column: 'object' is not an Arrow type"),
        (frame_of([1]), {"x": pa.list_(pa.null())}, "no value has the type"),
        (objects(), {"x": pa.dictionary(pa.int32(), pa.string(), ordered=True)}, "are ordered.*categorize"),
        (frame_of([], pd.CategoricalDtype(["a"])), {"x": CODED}, "the categories are .*string, .* int64"),
        (frame_of([], NOON), {"x": pa.dictionary(pa.int32(), pa.date32())}, "are timestamp.* would become"),
        (pd.DataFrame([[1]], columns=[1]), None, "must be strings, not 1; rename"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), None, "several columns"),
        (pd.DataFrame([[1]], columns=pd.Index([("a", "b")], tupleize_cols=False)), None, "strings"),
    ],
)
def test_what_cannot_be_planned_is_named_before_anything_is_written(
    frame: pd.DataFrame, schema: Any, problem: str
) -> None:
    with pytest.raises(SchemaError, match=problem):
        plan(frame, schema, sample=sample_of(frame))


def test_bytes_that_dask_made_text_are_named() -> None:
    meta = frame_of([], pd.StringDtype("pyarrow"))
    with pytest.warns(
        UserWarning, match=r"gives 'x' a bytes or list type, .*dataframe.convert-string.*ArrowDtype"
    ):
        plan(meta, {"x": pa.binary()})
    plan(meta, {"x": pa.large_string()})
    with pytest.raises(SchemaError, match="convert-string"):
        convert(frame_of(["[1, 2]"], "string"), pa.list_(pa.int64()))


def test_object_categories_are_exact_or_refused() -> None:
    when = pd.Timestamp("2020-01-01 00:00:00.000000001")
    found = convert(frame_of(pd.Categorical(pd.Index([when, when], dtype=object))), pa.timestamp("ns"))
    assert found == [when, when]
    mixed = pd.Index([dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 12)], dtype=object)
    with pytest.raises(SchemaError, match="feature 'x'"):
        plan(frame_of(pd.Categorical.from_codes([0, 1], mixed)))


@pytest.mark.parametrize(
    ("frame", "type_", "expected"),
    [
        (frame_of([1.0, NAN, 3.0]), pa.int64(), [1, None, 3]),
        (frame_of([1.0, NAN]), pa.float64(), [1.0, None]),
        (frame_of([1, None], "Int64"), pa.int8(), [1, None]),
        (frame_of([True, None], "boolean"), pa.bool_(), [True, None]),
        (objects(True, None, False), pa.bool_(), [True, None, False]),
        (objects(1, NAN, None), pa.int64(), [1, None, None]),
        (objects("a", None, NAN, pd.NA, pd.NaT), pa.string(), ["a", None, None, None, None]),
        (objects(b"\xff", None, NAN), pa.binary(), [b"\xff", None, None]),
        (objects([1, 2], None, (), np.array([3])), pa.list_(pa.int64()), [[1, 2], None, [], [3]]),
        (objects(np.array([1.5, 2]), NAN), pa.list_(pa.float32(), 2), [[1.5, 2.0], None]),
        (objects([np.array([1]), [2, 3]]), pa.list_(pa.list_(pa.int16())), [[[1], [2, 3]]]),
        (objects([b"a", b""], None), pa.list_(pa.binary()), [[b"a", b""], None]),
        (frame_of(["a", None], "string"), pa.string(), ["a", None]),
        (frame_of(["a", None], pd.StringDtype("python")), pa.large_string(), ["a", None]),
        (frame_of(["a", None], "string"), pa.dictionary(pa.int32(), pa.string()), ["a", None]),
        (frame_of(["b", None], "category"), pa.dictionary(pa.int32(), pa.string()), ["b", None]),
        (frame_of([None], "category"), pa.dictionary(pa.int32(), pa.string()), [None]),
        (frame_of([3, 1], "category"), pa.dictionary(pa.int32(), pa.int64()), [3, 1]),
        (frame_of(pd.Series(WHEN)), pa.timestamp("us", "Europe/Vienna"), [WHEN[0].to_pydatetime(), None]),
        (arrow_backed(pa.array([1, None])), pa.int8(), [1, None]),
        (arrow_backed(pa.array([[1], None])), pa.list_(pa.float32()), [[1.0], None]),
        (arrow_backed(pa.array(["a", None])), pa.dictionary(pa.int32(), pa.string()), ["a", None]),
        (
            arrow_backed(pa.array(["a", None]).dictionary_encode()),
            pa.dictionary(pa.int32(), pa.string()),
            ["a", None],
        ),
        (frame_of([], "float64"), pa.int64(), []),
        (objects(), pa.list_(pa.int64()), []),
        (objects(None, None), pa.int64(), [None, None]),
    ],
)
def test_values_are_brought_to_the_type(frame: pd.DataFrame, type_: pa.DataType, expected: list[Any]) -> None:
    assert convert(frame, type_) == expected


def test_nan_is_a_value_where_missing_is_something_else() -> None:
    assert np.isnan(convert(arrow_backed(pa.array([NAN, None])), pa.float64())[0])
    assert np.isnan(convert(objects([1.0, NAN]), pa.list_(pa.float64()))[0][1])
    assert np.isnan(convert(objects(np.array([NAN])), pa.list_(pa.float64()))[0][0])


def test_chunked_columns() -> None:
    frame = pd.concat([arrow_backed(pa.array([[1], None])), arrow_backed(pa.array([[2, 3]]))])
    assert convert(frame, pa.list_(pa.int64())) == [[1], None, [2, 3]]
    assert convert(frame.iloc[1:], pa.large_list(pa.int8())) == [None, [2, 3]]
    assert convert(frame.iloc[:0], pa.list_(pa.int64())) == []


@pytest.mark.parametrize("narrow", [pa.float16(), pa.float32()])
@pytest.mark.parametrize("nested", [False, True])
def test_no_number_becomes_infinite(narrow: pa.DataType, nested: bool) -> None:
    values = [1.0, None, np.inf, 1e300]
    type_ = pa.list_(narrow) if nested else narrow
    rows = [value if value is None or not nested else [0.0, value] for value in values]
    wide = pa.list_(pa.float64()) if nested else pa.float64()
    for frame in (objects(*rows), arrow_backed(pa.array(rows, wide))):
        assert convert(frame.iloc[:3], type_) == rows[:3]
        with pytest.raises(SchemaError, match=r"record 3: feature 'x': .*infinite"):
            convert(frame, type_)


@pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
def test_views_of_lists(view: Any) -> None:
    values = [[["a"]], [], None, [["b", "c"], []]]
    type_ = view(view(pa.string_view()))
    frame = arrow_backed(pa.array(values, type_))
    for rows in (slice(None), slice(1, None), slice(0, 0)):
        assert convert(frame.iloc[rows], type_) == values[rows]


def test_lists_become_tensors() -> None:
    tensor = pa.fixed_shape_tensor(pa.float32(), (2, 2))
    for frame in (objects(np.arange(4.0), None), arrow_backed(pa.array([[0.0, 1.0, 2.0, 3.0], None]))):
        column = to_table(frame, planned(tensor), write_index=False).column("x")
        assert column.type == tensor
        assert pa.array(column.chunk(0).storage).to_pylist() == [[0, 1, 2, 3], None]


@pytest.mark.parametrize(
    ("frame", "type_"),
    [
        (frame_of([1.0, NAN, 1.5, 2.5]), pa.int64()),
        (objects("a", None, 1), pa.string()),
        (objects([1], None, ["a"]), pa.list_(pa.int64())),
        (objects(None, NAN, "abc"), pa.list_(pa.string())),
        (objects(None, NAN, b"abc", b"d"), pa.list_(pa.binary())),
        (frame_of([1, None, 300], "Int64"), pa.int8()),
        (frame_of([1, None, 300], "category"), pa.int8()),
        (arrow_backed(pa.array([1, None, 300])), pa.int8()),
        (objects(np.zeros(1), None, np.zeros((2, 2))), pa.list_(pa.float64())),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_row(frame: pd.DataFrame, type_: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="a value does not fit") as caught:
        convert(frame, type_)
    assert (caught.value.record, caught.value.feature) == (2, "x")


@pytest.mark.parametrize(
    ("index", "names"),
    [
        (pd.RangeIndex(2), ["index"]),
        (pd.Index([b"a", b"b"], dtype=object), ["index"]),
        (pd.DatetimeIndex(["2020", "2021"], name="when"), ["when"]),
        (pd.MultiIndex.from_tuples([(1, "a"), (2, "b")]), ["level_0", "level_1"]),
        (pd.MultiIndex.from_tuples([(1, 5), (2, 6)], names=["n", None]), ["n", "level_1"]),
    ],
)
def test_levels_become_the_first_columns_if_asked_for(index: "pd.Index[Any]", names: list[str]) -> None:
    frame = pd.DataFrame({"x": [1, 2]}, index=index)
    schema = plan(frame, write_index=True, sample=sample_of(frame))
    table = to_table(frame, schema, write_index=True)
    assert table.column_names == [*names, "x"]
    assert table.column(0).to_pylist() == list(index.get_level_values(0))
    assert to_table(frame, plan(frame), write_index=False).column_names == ["x"]
    with pytest.raises(
        SchemaError, match=rf"'{names[0]}', which already exists; rename .* write_index=False"
    ):
        plan(frame.assign(**{names[0]: 1}), write_index=True, sample=sample_of(frame))


def test_columns_follow_the_plan_and_missing_or_extra_ones_raise() -> None:
    schema = Schema.from_arrow(pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    frame = pd.DataFrame({"b": [1], "a": [2]})
    assert to_table(frame, schema, write_index=False).to_pydict() == {"a": [2], "b": [1]}
    for wrong in (frame[["a"]], frame.assign(c=1)):
        with pytest.raises(
            SchemaError, match=r"a partition has the columns .*, the collection's meta \['a', 'b'\]"
        ):
            to_table(wrong, schema, write_index=False)
