"""pandas partitions and Arrow tables, brought to one planned schema."""

import datetime as dt
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pyarrow as pa
import pytest
from dask.dataframe.utils import has_known_categories

from dask_tfrecord.codec import RecordType
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.frames.arrow_to_pandas import empty_meta, to_pandas
from dask_tfrecord.frames.pandas_to_arrow import to_table
from dask_tfrecord.frames.planning import plan_schema
from dask_tfrecord.schema.model import Schema

Sample = Callable[[list[str]], Iterable[pd.DataFrame]]

NAN = float("nan")


def never(names: list[str]) -> Iterable[pd.DataFrame]:
    raise AssertionError(f"no sample is needed, but one of {names} was asked for")


def sample_of(*partitions: pd.DataFrame) -> Sample:
    return lambda names: (partition[names] for partition in partitions)


def plan(
    meta: pd.DataFrame,
    schema: Any = None,
    *,
    record_type: RecordType = "sequence_example",
    write_index: bool = False,
    sample: Sample = never,
) -> Schema:
    return plan_schema(
        meta.iloc[:0], schema=schema, record_type=record_type, write_index=write_index, sample=sample
    )


def frame_of(values: Any, dtype: Any = None) -> pd.DataFrame:
    return pd.DataFrame({"x": pd.Series(values, dtype=dtype)})


def objects(*values: Any) -> pd.DataFrame:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return frame_of(column, object)


def planned(type_: pa.DataType) -> Schema:
    return Schema.from_arrow(pa.schema([("x", type_)]), "sequence_example")


def convert(frame: pd.DataFrame, type_: pa.DataType) -> list[Any]:
    table = to_table(frame, planned(type_), write_index=False)
    table.validate(full=True)
    assert table.schema == planned(type_).arrow
    return list(table.column("x").to_pylist())


def arrow_backed(array: pa.Array) -> pd.DataFrame:
    return pd.DataFrame({"x": pd.Series(pd.arrays.ArrowExtensionArray(array))})


class TestPlan:
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
    def test_the_dtype_tells_the_type(self, dtype: Any, type_: pa.DataType) -> None:
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
            ([Decimal("1.25")], pa.decimal128(3, 2)),
        ],
    )
    def test_object_columns_show_their_type_in_the_first_partition_with_a_value(
        self, values: list[Any], type_: pa.DataType
    ) -> None:
        asked = []

        def sample(names: list[str]) -> Iterable[pd.DataFrame]:
            for partition in (objects(), objects(None, NAN), objects([], None), objects(*values)):
                asked.append(names)
                yield partition
            raise AssertionError("one partition too many")

        assert plan(objects(), sample=sample).arrow.field("x").type == type_
        assert asked == [["x"]] * 4

    def test_only_columns_without_a_type_are_sampled(self) -> None:
        frame = pd.DataFrame(
            {"a": [1], "b": pd.Series(["s"], dtype=object), "c": pd.Series([b"s"], dtype=object)}
        )
        asked: list[list[str]] = []

        def sample(names: list[str]) -> Iterable[pd.DataFrame]:
            asked.append(names)
            yield frame[names]

        schema = plan(frame, {"c": pa.binary()}, sample=sample)
        assert asked == [["b"]]
        assert schema.arrow == pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.binary())])

    @pytest.mark.parametrize("partitions", [[], [objects(None)], [objects(NAN), objects(None, pd.NaT)]])
    def test_a_column_without_any_value_has_the_null_type(self, partitions: list[pd.DataFrame]) -> None:
        assert plan(objects(), sample=sample_of(*partitions)).arrow.field("x").type == pa.null()

    def test_a_column_of_empty_lists_only_asks_for_its_type(self) -> None:
        with pytest.raises(SchemaError, match=r"feature 'x': no partition has a value.*pass schema="):
            plan(objects(), sample=sample_of(objects([]), objects(None)))

    def test_the_null_dtype_needs_no_sample(self) -> None:
        frame = frame_of([None, None], pd.ArrowDtype(pa.null()))
        assert plan(frame).arrow.field("x").type == pa.null()
        assert convert(frame, pa.null()) == [None, None]

    def test_mixed_values_ask_for_a_type(self) -> None:
        with pytest.raises(SchemaError, match=r"feature 'x': the dtype object shows no single type"):
            plan(objects(), sample=sample_of(objects(1, "a")))

    @pytest.mark.parametrize("dtype", ["complex128", "period[D]", "interval[int64]"])
    def test_dtypes_without_a_feature_are_refused(self, dtype: Any) -> None:
        with pytest.raises(SchemaError, match="feature 'x'"):
            plan(frame_of([], dtype), sample=sample_of())

    def test_a_whole_schema_of_the_user_needs_no_sample(self) -> None:
        assert plan(objects(), pa.schema([("x", pa.list_(pa.int8()))])).arrow.field("x").type == pa.list_(
            pa.int8()
        )

    @pytest.mark.parametrize(
        ("schema", "problem"),
        [
            ({"y": pa.int64()}, r"do not exist: \['y'\]; the columns are \['x'\]"),
            ({"x": "object"}, "no valid type for the column: 'object' is not an Arrow type"),
            ({"x": pa.list_(pa.null())}, "no value has the type"),
        ],
    )
    def test_bad_overrides(self, schema: Any, problem: str) -> None:
        with pytest.raises(SchemaError, match=problem):
            plan(frame_of([1]), schema)

    @pytest.mark.parametrize(
        ("columns", "problem"),
        [
            ([1], r"must be strings, not 1; rename"),
            (["a", "a"], "several columns"),
            ([("a", "b")], "strings"),
        ],
    )
    def test_bad_names(self, columns: list[Any], problem: str) -> None:
        with pytest.raises(SchemaError, match=problem):
            plan(pd.DataFrame([range(len(columns))], columns=pd.Index(columns, tupleize_cols=False)))

    def test_bytes_that_dask_made_text_are_told(self) -> None:
        meta = frame_of([], pd.StringDtype("pyarrow"))
        with pytest.warns(
            UserWarning, match=r"gives 'x' a bytes or list type, .*dataframe.convert-string.*ArrowDtype"
        ):
            plan(meta, {"x": pa.binary()})

    def test_text_that_stays_text_is_not_warned_of(self) -> None:
        plan(frame_of([], pd.StringDtype("pyarrow")), {"x": pa.large_string()})


class TestCategoriesInThePlan:
    def test_unknown_categories_take_their_type_from_the_first_that_are_known(self) -> None:
        unknown = empty_meta(planned(pa.dictionary(pa.int32(), pa.string())))
        partitions = [frame_of([None], "category"), frame_of([3, None], "category")]
        schema = plan(unknown, sample=sample_of(*partitions))
        assert schema.arrow.field("x").type.value_type == pa.int64()
        assert schema.fields[0].categories is None

    def test_known_categories_are_kept(self) -> None:
        (field,) = plan(frame_of([], pd.CategoricalDtype(["b", "a", "never"]))).fields
        assert field.categories.to_pylist() == ["b", "a", "never"]

    def test_an_order_is_taken_from_the_sample(self) -> None:
        ordered = pd.CategoricalDtype(["low", "high"], ordered=True)
        unknown = frame_of([], pd.CategoricalDtype(["__UNKNOWN_CATEGORIES__"], ordered=True))
        (field,) = plan(unknown, sample=sample_of(frame_of(["high"], ordered))).fields
        assert field.type.ordered
        assert field.categories.to_pylist() == ["low", "high"]

    def test_an_order_of_unknown_categories_is_refused(self) -> None:
        with pytest.raises(SchemaError, match=r"feature 'x': the categories are ordered.*categorize"):
            plan(objects(), {"x": pa.dictionary(pa.int32(), pa.string(), ordered=True)})

    def test_categories_of_another_type_than_asked_for(self) -> None:
        with pytest.raises(SchemaError, match=r"feature 'x': the categories are .*string, .* int64"):
            plan(frame_of([], pd.CategoricalDtype(["a"])), {"x": pa.dictionary(pa.int32(), pa.int64())})

    def test_a_category_may_be_written_as_its_values(self) -> None:
        schema = plan(frame_of([], pd.CategoricalDtype(["a"])), {"x": pa.string()})
        assert schema.arrow.field("x").type == pa.string()
        assert convert(frame_of(["a", None], "category"), pa.string()) == ["a", None]

    def test_object_categories_are_exact_or_refused(self) -> None:
        when = pd.Timestamp("2020-01-01 00:00:00.000000001")
        found = convert(frame_of(pd.Categorical(pd.Index([when, when], dtype=object))), pa.timestamp("ns"))
        assert found == [when, when]
        mixed = pd.Index([dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 12)], dtype=object)
        with pytest.raises(SchemaError, match="feature 'x'"):
            plan(frame_of(pd.Categorical.from_codes([0, 1], mixed)))

    def test_categories_that_would_change_are_refused_before_anything_is_written(self) -> None:
        when = pd.CategoricalDtype(pd.DatetimeIndex(["2020-01-01", "2020-01-01 12:00"]))
        with pytest.raises(SchemaError, match=r"feature 'x': the categories are timestamp.* would become"):
            plan(frame_of([], when), {"x": pa.dictionary(pa.int32(), pa.date32())})


class TestIndex:
    def test_it_is_dropped_unless_asked_for(self) -> None:
        frame = pd.DataFrame({"x": [1]}, index=pd.Index(["i"], name="key"))
        assert plan(frame).names == ["x"]
        assert to_table(frame, plan(frame), write_index=False).column_names == ["x"]

    @pytest.mark.parametrize(
        ("index", "names"),
        [
            (pd.RangeIndex(2), ["index"]),
            (pd.DatetimeIndex(["2020", "2021"], name="when"), ["when"]),
            (pd.MultiIndex.from_tuples([(1, "a"), (2, "b")]), ["level_0", "level_1"]),
            (pd.MultiIndex.from_tuples([(1, 5), (2, 6)], names=["n", None]), ["n", "level_1"]),
        ],
    )
    def test_levels_become_the_first_columns(self, index: "pd.Index[Any]", names: list[str]) -> None:
        frame = pd.DataFrame({"x": [1, 2]}, index=index)
        schema = plan(frame, write_index=True, sample=sample_of(frame))
        table = to_table(frame, schema, write_index=True)
        assert table.column_names == [*names, "x"]
        assert table.column(0).to_pylist() == list(index.get_level_values(0))

    def test_an_object_index_is_sampled(self) -> None:
        frame = pd.DataFrame({"x": [1]}, index=pd.Index([b"key"], dtype=object))
        asked = []

        def sample(names: list[str]) -> Iterable[pd.DataFrame]:
            asked.append(names)
            yield frame[names]

        assert plan(frame, write_index=True, sample=sample).arrow.field("index").type == pa.binary()
        assert asked == [[]]

    def test_a_clash_is_refused(self) -> None:
        frame = pd.DataFrame({"index": [1]})
        with pytest.raises(SchemaError, match=r"'index', which already exists; rename .* write_index=False"):
            plan(frame, write_index=True)


class TestToTable:
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
    def test_values_are_brought_to_the_type(
        self, frame: pd.DataFrame, type_: pa.DataType, expected: list[Any]
    ) -> None:
        assert convert(frame, type_) == expected

    def test_nan_is_a_value_where_missing_is_something_else(self) -> None:
        assert np.isnan(convert(arrow_backed(pa.array([NAN, None])), pa.float64())[0])
        assert np.isnan(convert(objects([1.0, NAN]), pa.list_(pa.float64()))[0][1])
        assert np.isnan(convert(objects(np.array([NAN])), pa.list_(pa.float64()))[0][0])

    def test_instants_keep_their_zone(self) -> None:
        when = pd.Timestamp("2020-07-01 12:00", tz="Europe/Vienna")
        frame = frame_of(pd.Series([when, pd.NaT], dtype=pd.DatetimeTZDtype("us", "Europe/Vienna")))
        assert convert(frame, pa.timestamp("us", "Europe/Vienna")) == [when.to_pydatetime(), None]

    def test_chunked_columns(self) -> None:
        frame = pd.concat([arrow_backed(pa.array([[1], None])), arrow_backed(pa.array([[2, 3]]))])
        assert convert(frame, pa.list_(pa.int64())) == [[1], None, [2, 3]]
        assert convert(frame.iloc[1:], pa.large_list(pa.int8())) == [None, [2, 3]]
        assert convert(frame.iloc[:0], pa.list_(pa.int64())) == []

    @pytest.mark.parametrize("narrow", [pa.float16(), pa.float32()])
    @pytest.mark.parametrize("nested", [False, True])
    def test_no_number_becomes_infinite(self, narrow: pa.DataType, nested: bool) -> None:
        values = [1.0, None, np.inf, 1e300]
        type_ = pa.list_(narrow) if nested else narrow
        rows = [value if value is None or not nested else [0.0, value] for value in values]
        wide = pa.list_(pa.float64()) if nested else pa.float64()
        for frame in (objects(*rows), arrow_backed(pa.array(rows, wide))):
            assert convert(frame.iloc[:3], type_) == rows[:3]
            with pytest.raises(SchemaError, match=r"record 3: feature 'x': .*infinite"):
                convert(frame, type_)

    @pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
    def test_views_of_lists(self, view: Any) -> None:
        values = [[["a"]], [], None, [["b", "c"], []]]
        type_ = view(view(pa.string_view()))
        frame = arrow_backed(pa.array(values, type_))
        for rows in (slice(None), slice(1, None), slice(0, 0)):
            assert convert(frame.iloc[rows], type_) == values[rows]

    def test_lists_become_tensors(self) -> None:
        tensor = pa.fixed_shape_tensor(pa.float32(), (2, 2))
        for frame in (objects(np.arange(4.0), None), arrow_backed(pa.array([[0.0, 1.0, 2.0, 3.0], None]))):
            column = to_table(frame, planned(tensor), write_index=False).column("x")
            assert column.type == tensor
            assert pa.array(column.chunk(0).storage).to_pylist() == [[0, 1, 2, 3], None]

    def test_columns_follow_the_plan_not_the_partition(self) -> None:
        schema = Schema.from_arrow(pa.schema([("a", pa.int64()), ("b", pa.int64())]))
        table = to_table(pd.DataFrame({"b": [1], "a": [2]}), schema, write_index=False)
        assert table.to_pydict() == {"a": [2], "b": [1]}

    @pytest.mark.parametrize("frame", [pd.DataFrame({"y": [1]}), pd.DataFrame({"x": [1], "y": [1]})])
    def test_missing_or_extra_columns(self, frame: pd.DataFrame) -> None:
        with pytest.raises(
            SchemaError, match=r"a partition has the columns .*, the collection's meta \['x'\]"
        ):
            to_table(frame, planned(pa.int64()), write_index=False)

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
    def test_a_value_that_does_not_fit_is_named_with_its_row(
        self, frame: pd.DataFrame, type_: pa.DataType
    ) -> None:
        with pytest.raises(SchemaError, match=r"a value does not fit .*pass schema=\{\"x\"") as caught:
            convert(frame, type_)
        assert (caught.value.record, caught.value.feature) == (2, "x")

    def test_lists_that_dask_made_text_are_told(self) -> None:
        with pytest.raises(SchemaError, match="convert-string"):
            convert(frame_of(["[1, 2]"], "string"), pa.list_(pa.int64()))


ALL_TYPES: list[pa.Array] = [
    pa.array([True, None]),
    *(
        pa.array([1, None], getattr(pa, f"{sign}int{bits}")())
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    ),
    pa.array([1.5, None], pa.float32()),
    pa.array([0.1, None], pa.float64()),
    pa.array([Decimal("1.25"), None]),
    pa.array([dt.date(2020, 1, 1), None]),
    pa.array([dt.time(12), None]),
    pa.array([dt.datetime(2020, 1, 1), None], pa.timestamp("ns", "Europe/Vienna")),
    pa.array([dt.timedelta(1), None]),
    pa.array(["a", None]),
    pa.array(["a", None], pa.large_string()),
    pa.array([b"\xff", None]),
    pa.array([b"ab", None], pa.binary(2)),
    pa.array([[1, 2], None]),
    pa.array([["a"], None], pa.large_list(pa.string())),
    pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
    pa.array([[[1], []], None]),
    pa.array(["a", None]).dictionary_encode(),
    pa.array([3, None]).dictionary_encode(),
]


class TestToPandas:
    @pytest.mark.parametrize("array", ALL_TYPES, ids=lambda array: str(array.type))
    def test_there_and_back_again(self, array: pa.Array) -> None:
        schema = planned(array.type)
        frame = to_pandas(pa.table([array], schema.arrow), schema)
        assert to_table(frame, schema, write_index=False).column("x").combine_chunks().equals(array)
        pdt.assert_frame_equal(to_pandas(to_table(frame, schema, write_index=False), schema), frame)

    @pytest.mark.parametrize("array", ALL_TYPES, ids=lambda array: str(array.type))
    def test_the_meta_has_the_partitions_dtypes(self, array: pa.Array) -> None:
        schema = planned(array.type)
        frame, meta = to_pandas(pa.table([array], schema.arrow), schema), empty_meta(schema)
        assert len(meta) == 0
        if isinstance(meta["x"].dtype, pd.CategoricalDtype):
            assert isinstance(frame["x"].dtype, pd.CategoricalDtype)
            assert not has_known_categories(meta["x"])
        else:
            assert meta["x"].dtype == frame["x"].dtype == pd.ArrowDtype(array.type)

    def test_chunks_of_different_categories(self) -> None:
        batches = [pa.record_batch({"x": pa.array([v]).dictionary_encode()}) for v in ("a", "b")]
        frame = to_pandas(pa.Table.from_batches(batches), planned(batches[0].column(0).type))
        assert frame["x"].tolist() == ["a", "b"]
        assert frame["x"].cat.categories.tolist() == ["a", "b"]

    @pytest.mark.parametrize("value", ["a", b"a", 1, 0.5, dt.date(2024, 1, 1)], ids=repr)
    @pytest.mark.parametrize("ordered", [False, True])
    @pytest.mark.parametrize("none", [[], [None]])
    def test_partitions_without_a_category_go_together_with_others(
        self, value: Any, ordered: bool, none: list[Any]
    ) -> None:
        encoded = [pa.array(values, pa.scalar(value).type).dictionary_encode() for values in ([value], none)]
        arrays = [pa.DictionaryArray.from_arrays(e.indices, e.dictionary, ordered=ordered) for e in encoded]
        some, nothing = (to_pandas(pa.table({"x": one}), planned(one.type))["x"] for one in arrays)
        assert nothing.cat.categories.dtype == some.cat.categories.dtype
        assert nothing.cat.ordered == ordered

    def test_an_order_holds_in_meta_partitions_and_empty_partitions(self) -> None:
        dtype = pd.CategoricalDtype(["low", "high"], ordered=True)
        frame = frame_of(["high", None, "low"], dtype)
        schema = plan(frame)
        table = to_table(frame, schema, write_index=False)
        for some in (to_pandas(table, schema), to_pandas(table.slice(0, 0), schema), empty_meta(schema)):
            assert some["x"].cat.ordered
            assert some["x"].cat.categories.tolist() == ["low", "high"]

    def test_tensors(self) -> None:
        type_ = pa.fixed_shape_tensor(pa.float32(), (2, 2))
        array = pa.ExtensionArray.from_storage(type_, pa.array([[1, 2, 3, 4], None], type_.storage_type))
        frame = to_pandas(pa.table({"x": array}), planned(type_))
        assert frame["x"].dtype == empty_meta(planned(type_))["x"].dtype
        assert frame["x"].isna().tolist() == [False, True]
        assert to_table(frame, planned(type_), write_index=False).column("x").chunk(0).equals(array)

    def test_no_columns_keep_the_rows(self) -> None:
        schema = planned(pa.int64()).select([])
        assert to_pandas(pa.table({"x": [1, 2]}).select([]), schema).shape == (2, 0)
        assert empty_meta(schema).shape == (0, 0)
