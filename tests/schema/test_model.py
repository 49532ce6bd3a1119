"""Schemas: what they refuse, and every type's way to the kernel's storage and back."""

import datetime as dt
import json
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dask_tfrecord.codec import Column, RecordType
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.model import Field, Lossy, Schema

INT64, FLOAT, BYTES, STRING = "int64", "float", "bytes", "string"

# Type, its feature's kind, values, and what they are in the feature (by the format's definition).
SCALARS: list[tuple[pa.DataType, str, list[Any], list[Any]]] = [
    (pa.bool_(), INT64, [True, False], [1, 0]),
    (pa.int8(), INT64, [-128, 127], [-128, 127]),
    (pa.int16(), INT64, [-(2**15), 2**15 - 1], [-(2**15), 2**15 - 1]),
    (pa.int32(), INT64, [-(2**31), 2**31 - 1], [-(2**31), 2**31 - 1]),
    (pa.int64(), INT64, [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
    (pa.uint8(), INT64, [0, 255], [0, 255]),
    (pa.uint16(), INT64, [0, 2**16 - 1], [0, 2**16 - 1]),
    (pa.uint32(), INT64, [0, 2**32 - 1], [0, 2**32 - 1]),
    (pa.uint64(), INT64, [0, 2**63 - 1], [0, 2**63 - 1]),
    (pa.float32(), FLOAT, [1.5, float("-inf")], [1.5, float("-inf")]),
    (pa.float64(), FLOAT, [0.5, float("inf")], [0.5, float("inf")]),
    (pa.decimal128(6, 2), FLOAT, [Decimal("1.25"), Decimal("-9999.50")], [1.25, -9999.5]),
    (pa.decimal256(50, 3), FLOAT, [Decimal("0.125"), Decimal("4.000")], [0.125, 4.0]),
    (pa.date32(), INT64, [dt.date(1969, 12, 31), dt.date(1970, 1, 2)], [-1, 1]),
    (pa.date64(), INT64, [dt.date(1969, 12, 31), dt.date(1970, 1, 2)], [-86_400_000, 86_400_000]),
    (pa.time32("s"), INT64, [dt.time(0, 0, 1), dt.time(23, 59, 59)], [1, 86_399]),
    (pa.time32("ms"), INT64, [dt.time(0, 0, 1), dt.time(0)], [1000, 0]),
    (pa.time64("us"), INT64, [dt.time(0, 0, 0, 7), dt.time(0)], [7, 0]),
    (pa.time64("ns"), INT64, [dt.time(0, 0, 0, 7), dt.time(0)], [7000, 0]),
    (pa.timestamp("s"), INT64, [dt.datetime(1970, 1, 1, 0, 1), dt.datetime(1969, 12, 31)], [60, -86_400]),
    (
        pa.timestamp("us", "UTC"),
        INT64,
        [dt.datetime(1970, 1, 1, 0, 0, 0, 5, dt.UTC), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)],
        [5, 0],
    ),
    (pa.duration("ms"), INT64, [dt.timedelta(seconds=-1), dt.timedelta(milliseconds=3)], [-1000, 3]),
    (pa.string(), STRING, ["é", ""], ["é", ""]),
    (pa.large_string(), STRING, ["é", ""], ["é", ""]),
    (pa.binary(), BYTES, [b"\xff\x00", b""], [b"\xff\x00", b""]),
    (pa.large_binary(), BYTES, [b"\xff\x00", b""], [b"\xff\x00", b""]),
    (pa.binary(2), BYTES, [b"\xff\x00", b"ab"], [b"\xff\x00", b"ab"]),
]
VIEWS = [
    (pa.string_view(), STRING, ["a value that is not inlined", ""], pa.string()),
    (pa.binary_view(), BYTES, [b"a value that is not inlined", b""], pa.binary()),
]
UNSUPPORTED = [
    (pa.struct([("a", pa.int64())]), "each of its fields a column"),
    (pa.map_(pa.string(), pa.int64()), "two list columns"),
    (pa.dense_union([pa.field("a", pa.int64())]), "leave the column out"),
    (pa.month_day_nano_interval(), "leave the column out"),
    (pa.list_(pa.null()), "schema="),
    (pa.list_(pa.struct([("a", pa.int64())])), "each of its fields a column"),
    (pa.decimal128(5, -2), "leave the column out"),
    (pa.binary(0), "leave the column out"),
    (pa.list_(pa.int64(), 0), "leave the column out"),
    (pa.fixed_shape_tensor(pa.float32(), [2, 0]), "leave the column out"),
    (pa.dictionary(pa.int32(), pa.list_(pa.int64())), "leave the column out"),
    (pa.run_end_encoded(pa.int32(), pa.int64()), "leave the column out"),
]
scalars = pytest.mark.parametrize(("type_", "kind", "values", "stored"), SCALARS, ids=lambda v: str(v)[:20])


def batch_of(array: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([array], names=["x"])


def schema_of(type_: pa.DataType, record_type: RecordType = "sequence_example", **known: pa.Array) -> Schema:
    return Schema.from_arrow(pa.schema([("x", type_)]), record_type, categories=known)


def to_storage(array: pa.Array, lossy: Lossy = "allow") -> pa.Array:
    stored = schema_of(array.type).to_storage(batch_of(array), lossy=lossy).column(0)
    stored.validate(full=True)
    return stored


def from_storage(array: pa.Array, type_: pa.DataType, **known: pa.Array) -> pa.Array:
    loaded = schema_of(type_, **known).from_storage(batch_of(array)).column(0)
    loaded.validate(full=True)
    return loaded


def kernel_type(type_: pa.DataType) -> pa.DataType:
    """What the decoder makes of a stored type: 32-bit offsets, and only one kind of list."""
    if hasattr(type_, "value_type"):
        return pa.list_(kernel_type(type_.value_type))
    narrow = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return narrow.get(type_, type_)


def round_trip(array: pa.Array, type_: pa.DataType | None = None) -> pa.Array:
    stored = to_storage(array)
    decoded = pa.array(stored.to_pylist(), kernel_type(stored.type))
    return from_storage(decoded, type_ or array.type)


class TestColumns:
    @scalars
    def test_kind_and_depth(
        self, type_: pa.DataType, kind: str, values: list[Any], stored: list[Any]
    ) -> None:
        assert schema_of(type_).columns == (Column("x", kind, 0),)
        assert schema_of(pa.large_list(type_)).columns == (Column("x", kind, 1),)
        assert schema_of(pa.list_(pa.list_(type_, 3))).columns == (Column("x", kind, 2),)

    def test_a_category_is_its_values(self) -> None:
        assert schema_of(pa.dictionary(pa.int8(), pa.string())).columns == (Column("x", "string", 0),)

    def test_a_tensor_is_a_list(self) -> None:
        tensor = pa.fixed_shape_tensor(pa.float32(), (2, 3))
        assert schema_of(tensor, "example").columns == (Column("x", "float", 1),)

    def test_select_keeps_the_order_that_is_asked_for(self) -> None:
        schema = Schema.from_arrow(pa.schema([("a", pa.int8()), ("b", pa.string()), ("c", pa.bool_())]))
        assert schema.select(["c", "a"]).arrow == pa.schema([("c", pa.bool_()), ("a", pa.int8())])

    def test_select_of_nothing_keeps_the_rows(self) -> None:
        decoded = batch_of(pa.array([1, 2])).select([])
        assert schema_of(pa.int64()).select([]).from_storage(decoded).num_rows == 2

    def test_select_of_an_unknown_name_lists_the_known(self) -> None:
        with pytest.raises(SchemaError, match=r"'y'.*'x'"):
            schema_of(pa.int64()).select(["y"])

    def test_lossy_names(self) -> None:
        types = {
            "a": pa.float64(),
            "b": pa.float32(),
            "c": pa.list_(pa.decimal128(5, 2)),
            "d": pa.dictionary(pa.int32(), pa.float64()),
            "e": pa.fixed_shape_tensor(pa.float64(), (2,)),
        }
        assert Schema.from_arrow(pa.schema(list(types.items()))).lossy_names == ["a", "c", "d", "e"]

    def test_schemas_pickle_compare_and_hash(self) -> None:
        schema = schema_of(pa.dictionary(pa.int32(), pa.string()), x=pa.array(["a", "b"]))
        copy = pickle.loads(pickle.dumps(schema))
        assert copy == schema
        assert hash(copy) == hash(schema)


class TestRefusals:
    @pytest.mark.parametrize(("type_", "advice"), UNSUPPORTED, ids=str)
    def test_a_type_without_a_feature_names_column_and_way_out(self, type_: pa.DataType, advice: str) -> None:
        with pytest.raises(SchemaError, match=f"feature 'x': TFRecord has no feature .*{advice}"):
            schema_of(type_)

    def test_nested_lists_in_examples_say_sequence_example(self) -> None:
        with pytest.raises(SchemaError, match='pass record_type="sequence_example"'):
            schema_of(pa.list_(pa.list_(pa.int64())), "example")

    @pytest.mark.parametrize("record_type", ["example", "sequence_example"])
    def test_three_levels_fit_nowhere(self, record_type: RecordType) -> None:
        with pytest.raises(SchemaError, match="flatten the lists"):
            schema_of(pa.list_(pa.list_(pa.list_(pa.int64()))), record_type)

    @pytest.mark.parametrize(
        ("names", "problem"),
        [([], "no columns"), ([""], "empty name"), (["x", "y", "x"], "several columns are named 'x'")],
    )
    def test_names(self, names: list[str], problem: str) -> None:
        with pytest.raises(SchemaError, match=problem):
            Schema.from_arrow(pa.schema([(name, pa.int64()) for name in names]))

    @pytest.mark.parametrize("types", [[pa.int64()], [pa.binary(), pa.binary()], [pa.list_(pa.binary())]])
    def test_bytes_records_are_one_binary_column(self, types: list[pa.DataType]) -> None:
        fields = [(f"c{i}", type_) for i, type_ in enumerate(types)]
        with pytest.raises(SchemaError, match="exactly one binary or string column"):
            Schema.from_arrow(pa.schema(fields), "bytes")

    def test_unknown_record_type_lists_the_known(self) -> None:
        record_type: Any = "Example"
        with pytest.raises(SchemaError, match=r"'Example'.*'example', 'sequence_example', 'bytes'"):
            Schema.from_arrow(pa.schema([("x", pa.int64())]), record_type)

    def test_values_of_another_type(self) -> None:
        with pytest.raises(SchemaError, match="feature 'x': the values are int32, the column is int64"):
            schema_of(pa.int64()).to_storage(batch_of(pa.array([1], pa.int32())), lossy="allow")

    def test_other_columns(self) -> None:
        with pytest.raises(SchemaError, match="'x' instead of 'y'"):
            Schema((Field("y", pa.int64()),)).to_storage(batch_of(pa.array([1])), lossy="allow")


class TestBothWays:
    @scalars
    def test_scalars(self, type_: pa.DataType, kind: str, values: list[Any], stored: list[Any]) -> None:
        array = pa.array([None, *values, None], type_)
        assert to_storage(array, "raise").to_pylist() == [None, *stored, None]
        assert round_trip(array).equals(array)

    @scalars
    @pytest.mark.parametrize("make", [pa.list_, pa.large_list])
    def test_lists(
        self, type_: pa.DataType, kind: str, values: list[Any], stored: list[Any], make: Any
    ) -> None:
        array = pa.array([values, None, [], values[:1]], make(type_))
        assert to_storage(array, "raise").to_pylist() == [stored, None, [], stored[:1]]
        assert round_trip(array).equals(array)

    @scalars
    def test_lists_of_one_size(
        self, type_: pa.DataType, kind: str, values: list[Any], stored: list[Any]
    ) -> None:
        array = pa.array([None, values, None, values[::-1]], pa.list_(type_, 2))
        assert to_storage(array, "raise").to_pylist() == [None, stored, None, stored[::-1]]
        assert round_trip(array).equals(array)

    @scalars
    def test_lists_of_lists(
        self, type_: pa.DataType, kind: str, values: list[Any], stored: list[Any]
    ) -> None:
        array = pa.array([[values, []], None, [], [values[:1]]], pa.list_(pa.large_list(type_)))
        assert to_storage(array, "raise").to_pylist() == [[stored, []], None, [], [stored[:1]]]
        assert round_trip(array).equals(array)

    @scalars
    def test_slices(self, type_: pa.DataType, kind: str, values: list[Any], stored: list[Any]) -> None:
        flat = pa.array([*values, None, *values], type_).slice(1, 2)
        lists = pa.array([values, None, values[:1], []], pa.list_(type_)).slice(1, 2)
        assert to_storage(flat).to_pylist() == [stored[1], None]
        assert to_storage(lists).to_pylist() == [None, stored[:1]]
        assert from_storage(to_storage(lists), lists.type).equals(lists)

    @scalars
    def test_empty_and_all_null(
        self, type_: pa.DataType, kind: str, values: list[Any], stored: list[Any]
    ) -> None:
        for wrapped in (type_, pa.list_(type_), pa.list_(type_, 2), pa.list_(pa.list_(type_))):
            assert len(round_trip(pa.nulls(0, wrapped))) == 0
            assert round_trip(pa.nulls(3, wrapped)).null_count == 3

    @pytest.mark.parametrize(("type_", "kind", "values", "plain"), VIEWS, ids=str)
    def test_views_come_back_plain(
        self, type_: pa.DataType, kind: str, values: list[Any], plain: pa.DataType
    ) -> None:
        assert schema_of(type_).fields[0].kind == kind
        assert round_trip(pa.array([None, *values], type_), plain).equals(pa.array([None, *values], plain))
        views = pa.array([[], values, None, values[:1]], pa.list_view(type_)).slice(1)
        assert to_storage(views).to_pylist() == [values, None, values[:1]]
        assert schema_of(views.type).arrow.field("x").type == pa.list_(plain)

    def test_half_floats_are_exact(self) -> None:
        array = pa.array(np.array([0.1, 65504, np.inf, np.nan, -0.0], np.float16))
        stored = to_storage(array, "raise")
        assert stored.type == pa.float32()
        back = from_storage(stored, pa.float16()).to_numpy()
        np.testing.assert_array_equal(back.view(np.uint16), array.to_numpy().view(np.uint16))

    def test_nan_is_a_value_and_never_lossy(self) -> None:
        stored = to_storage(pa.array([float("nan"), None]), "raise")
        assert stored.null_count == 1
        assert np.isnan(stored[0].as_py())

    def test_decimals_round_to_the_nearest_float(self) -> None:
        digits = np.random.default_rng(0).integers(-(10**10), 10**10, 500)
        values = [Decimal(int(n)).scaleb(-2) for n in digits]
        expected = np.array([float(value) for value in values]).astype(np.float32)
        np.testing.assert_array_equal(to_storage(pa.array(values, pa.decimal128(12, 2))).to_numpy(), expected)

    def test_tensors_keep_their_shape(self) -> None:
        type_ = pa.fixed_shape_tensor(pa.float32(), (2, 2), dim_names=["row", "column"])
        array = pa.ExtensionArray.from_storage(
            type_, pa.array([[1, 2, 3, 4], None, [5, 6, 7, 8]], type_.storage_type)
        )
        assert to_storage(array).to_pylist() == [[1, 2, 3, 4], None, [5, 6, 7, 8]]
        back = round_trip(array)
        assert back.type == type_
        assert back.equals(array)

    def test_names_and_nullability_of_list_items_are_kept(self) -> None:
        type_ = pa.list_(pa.field("element", pa.int64(), nullable=False))
        assert round_trip(pa.array([[1], []], type_)).type == type_

    def test_ready_columns_are_not_copied(self) -> None:
        array = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))
        assert to_storage(array).values.buffers()[1].address == array.values.buffers()[1].address

    def test_a_null_element_that_no_list_refers_to_is_harmless(self) -> None:
        array = pa.array([[1, None], [2]]).slice(1)
        assert to_storage(array).to_pylist() == [[2]]

    def test_an_overflow_under_a_missing_list_is_harmless(self) -> None:
        values = pa.array([2**64 - 1, 2**64 - 1, 1, 2], pa.uint64())
        array = pa.FixedSizeListArray.from_arrays(values, 2, mask=pa.array([True, False]))
        assert to_storage(array).to_pylist() == [None, [1, 2]]

    def test_a_column_of_the_null_type_is_only_missing(self) -> None:
        assert schema_of(pa.null()).columns == (Column("x", "bytes", 1),)
        assert to_storage(pa.nulls(2)).equals(pa.nulls(2, pa.list_(pa.binary())))
        assert from_storage(pa.array([None, []], pa.list_(pa.binary())), pa.null()).equals(pa.nulls(2))


class TestCategories:
    def test_the_values_are_stored(self) -> None:
        array = pa.array(["b", "a", None, "b"]).dictionary_encode()
        assert to_storage(array).equals(pa.array(["b", "a", None, "b"]))
        assert round_trip(array).equals(array)

    @pytest.mark.parametrize(
        "values", [[3, 1], [dt.date(1970, 1, 2)], [b"\xff"], [True], [Decimal("1.5")], [dt.timedelta(1)]]
    )
    def test_categories_of_any_scalar(self, values: list[Any]) -> None:
        array = pa.array([*values, None, *values]).dictionary_encode()
        assert round_trip(array).to_pylist() == [*values, None, *values]

    def test_known_categories_come_first_and_others_may_follow(self) -> None:
        type_ = pa.dictionary(pa.int32(), pa.string())
        array = from_storage(pa.array(["c", "z", None]), type_, x=pa.array(["a", "c"]))
        assert array.dictionary.to_pylist() == ["a", "c", "z"]
        assert array.to_pylist() == ["c", "z", None]

    def test_order_is_kept(self) -> None:
        type_ = pa.dictionary(pa.int32(), pa.string(), ordered=True)
        array = from_storage(pa.array(["high", None]), type_, x=pa.array(["low", "high"]))
        assert array.type.ordered
        assert array.dictionary.to_pylist() == ["low", "high"]

    def test_an_unknown_value_has_no_place_in_an_order(self) -> None:
        type_ = pa.dictionary(pa.int32(), pa.string(), ordered=True)
        schema = schema_of(type_, x=pa.array(["low", "high"]))
        with pytest.raises(SchemaError, match=r"record 1: feature 'x': 'mid' is not one of"):
            schema.from_storage(batch_of(pa.array(["low", "mid"])))
        with pytest.raises(SchemaError, match=r"record 1: feature 'x': 'mid' is not one of"):
            schema.to_storage(batch_of(pa.array(["low", "mid"]).cast(type_)), lossy="allow")

    def test_codes_are_as_wide_as_needed_on_reading(self) -> None:
        words = pa.array([str(i) for i in range(1000)])
        assert from_storage(words, pa.dictionary(pa.int8(), pa.string())).to_pylist() == words.to_pylist()

    def test_lists_of_categories(self) -> None:
        codes = pa.array(["a", "b", "a"]).dictionary_encode()
        array = pa.ListArray.from_arrays([0, 2, 3], codes)
        assert round_trip(array).to_pylist() == [["a", "b"], ["a"]]


class TestValuesThatDoNotFit:
    @pytest.mark.parametrize(
        ("array", "problem"),
        [
            (pa.array([1, None, 2**63], pa.uint64()), "9223372036854775808 is above"),
            (pa.array([1.0, None, -1e39]), r"-1e\+39 is too large"),
            (pa.array([None, None, Decimal("1e40")], pa.decimal256(50, 0)), "would become inf"),
            (pa.array([None, Decimal(0), Decimal("99999999.99")], pa.decimal128(10, 2)), "cannot hold"),
            (pa.array([[1], [], [2, None]]), "the list holds a null"),
            (pa.array([[[1]], [], [[2], None]]), "the list holds a null"),
            (pa.array([[[1]], [], [[2, None]]]), "the list holds a null"),
            (pa.array([[1, 2], None, [2, None]], pa.list_(pa.int64(), 2)), "the list holds a null"),
            (pa.array([[1], [2, 3], [4, 2**64 - 1]], pa.list_(pa.uint64())), "is above"),
            (pa.array([None, [[1]], [[], [2, 1e300]]], pa.list_(pa.list_(pa.float64()))), "is too large"),
        ],
    )
    def test_storing_names_the_row(self, array: pa.Array, problem: str) -> None:
        for offset in (0, 1):
            with pytest.raises(SchemaError, match=problem) as caught:
                to_storage(array.slice(offset))
            assert (caught.value.record, caught.value.feature) == (2 - offset, "x")
            assert caught.value.advice

    @pytest.mark.parametrize(
        ("array", "problem"),
        [
            (pa.array([0.5, None, 0.1]), "0.1 would come back as 0.10000000149011612"),
            (pa.array([None, [0.5], [0.25, 2**24 + 1.0]]), "16777217"),
            (pa.array([None, Decimal(1), Decimal(16777217)], pa.decimal128(12, 2)), "16777217.00 would come"),
        ],
    )
    def test_raise_refuses_what_would_change(self, array: pa.Array, problem: str) -> None:
        to_storage(array, "warn")
        with pytest.raises(SchemaError, match=problem) as caught:
            to_storage(array, "raise")
        assert caught.value.record == 2
        assert 'lossy="allow"' in str(caught.value)

    @pytest.mark.parametrize(
        ("values", "type_"),
        [
            ([0, None, 300], pa.int8()),
            ([0, None, -1], pa.uint64()),
            ([0, None, 2], pa.bool_()),
            ([0, None, 2**31], pa.date32()),
            ([0, None, 86_400], pa.time32("s")),
            ([0, None, -1], pa.time64("ns")),
            ([0.0, None, 65520.0], pa.float16()),
            ([0.0, None, 100.0], pa.decimal128(4, 2)),
            ([0.0, None, float("nan")], pa.decimal128(4, 2)),
            ([b"ab", None, b"abc"], pa.binary(2)),
        ],
    )
    def test_loading_names_the_row(self, values: list[Any], type_: pa.DataType) -> None:
        stored = pa.array(values, pa.float32() if isinstance(values[0], float) else None)
        present = [value for value in values if value is not None]
        nested = pa.array([present[:1], [], present], pa.list_(stored.type))
        for array, target in ((stored, type_), (nested, pa.list_(type_))):
            with pytest.raises(SchemaError) as caught:
                from_storage(array, target)
            assert (caught.value.record, caught.value.feature) == (2, "x")
            assert "schema=" in str(caught.value)

    def test_a_list_of_another_size(self) -> None:
        with pytest.raises(
            SchemaError, match=r"record 2: .*holds 3 values, the column 2; pass pa.list_\(int64"
        ):
            from_storage(pa.array([[1, 2], None, [1, 2, 3]]), pa.list_(pa.int64(), 2))

    def test_a_value_where_none_was_ever_seen(self) -> None:
        with pytest.raises(
            SchemaError, match=r"record 1: feature 'x': the record holds bytes, the column is null"
        ):
            from_storage(pa.array([None, [b"a"]], pa.list_(pa.binary())), pa.null())


class TestJson:
    @pytest.mark.parametrize(
        "type_",
        [
            *(row[0] for row in SCALARS),
            pa.null(),
            pa.dictionary(pa.int32(), pa.timestamp("s")),
            pa.list_(pa.field("element", pa.decimal256(60, 3), nullable=False), 4),
            pa.fixed_shape_tensor(pa.uint8(), (2, 3), permutation=[1, 0]),
        ],
        ids=str,
    )
    def test_every_type_survives(self, type_: pa.DataType) -> None:
        schema = schema_of(type_)
        assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema

    def test_it_is_readable_by_people(self) -> None:
        text = schema_of(pa.list_(pa.timestamp("us", "UTC")), "example").to_json()
        column = {"name": "x", "type": "list<item: timestamp[us, tz=UTC]>", "kind": "int64", "depth": 1}
        assert text["columns"] == [column]
        assert text["record_type"] == "example"

    @pytest.mark.parametrize("values", [["low", "high"], [dt.date(2020, 1, 1)], [b"\xff", b""]])
    def test_known_categories_survive(self, values: list[Any]) -> None:
        known = pa.array(values)
        schema = schema_of(pa.dictionary(pa.int32(), known.type, ordered=True), x=known)
        assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema

    @pytest.mark.parametrize(
        "change",
        [
            {"arrow": "no base64"},
            {"arrow": "AAAA"},
            {"arrow": None},
            {"record_type": "pickle"},
            {"known_categories": ["x"]},
            {"known_categories": ["nope"]},
            {"known_categories": None},
        ],
        ids=str,
    )
    def test_anything_else_is_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(SchemaError, match="the stored schema is not readable"):
            Schema.from_json({**schema_of(pa.int64()).to_json(), **change})

    def test_a_missing_key_is_refused(self) -> None:
        with pytest.raises(SchemaError, match="the stored schema is not readable"):
            Schema.from_json({})


class TestPrinting:
    def test_a_schema_prints_each_column_with_its_type_and_feature(self) -> None:
        schema = Schema.from_arrow(
            pa.schema({"a": pa.int8(), "s": pa.list_(pa.list_(pa.string()))}), "sequence_example"
        )
        assert repr(schema).splitlines() == [
            "Schema of sequence_example records:",
            "  a: int8 (int64_list)",
            "  s: list<item: list<item: string>> (feature list of bytes_list)",
        ]

    def test_a_notebook_shows_a_table_with_escaped_names(self) -> None:
        text = Schema.from_arrow(pa.schema({"<b>": pa.float32()}))._repr_html_()
        assert text.startswith("<table>")
        assert "<td>&lt;b&gt;</td><td>float</td><td>float_list</td>" in text

    def test_a_field_prints_its_categories(self) -> None:
        type_ = pa.dictionary(pa.int32(), pa.string())
        assert repr(Field("c", type_, pa.array(["x", "y"]))).endswith("categories=['x', 'y'])")
