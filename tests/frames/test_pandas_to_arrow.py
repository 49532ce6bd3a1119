"""pandas partitions, converted to Arrow tables of the planned schema.

Modules: frames.pandas_to_arrow.
"""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from planned_frames import NAN, arrow_backed, convert, frame_of, objects, planned

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.frames.pandas_to_arrow import to_table
from dask_tfrecord.schema.fields import Schema


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
        with pytest.raises(SchemaError, match="a value does not fit") as caught:
            convert(frame, type_)
        assert (caught.value.record, caught.value.feature) == (2, "x")

    def test_lists_that_dask_made_text_are_named(self) -> None:
        with pytest.raises(SchemaError, match="convert-string"):
            convert(frame_of(["[1, 2]"], "string"), pa.list_(pa.int64()))
