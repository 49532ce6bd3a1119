"""The plan of a write: the Arrow type of every pandas column, before anything is written.

Modules: frames.schema_plan, frames.pandas_to_arrow.
"""

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from planned_frames import NAN, convert, frame_of, objects, plan, planned, sample_of

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.frames.arrow_to_pandas import empty_meta
from dask_tfrecord.frames.pandas_to_arrow import to_table


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

    def test_bytes_that_dask_made_text_are_named(self) -> None:
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
