"""Values of every type, converted to what a feature stores and back.

Modules: schema.storage_values, schema.fields.
"""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from storage_table import batch_of, schema_of

from dask_tfrecord.codec import Column
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.fields import Lossy


def to_storage(array: pa.Array, lossy: Lossy = "allow") -> pa.Array:
    stored = schema_of(array.type).to_storage(batch_of(array), lossy=lossy).column(0)
    stored.validate(full=True)
    return stored


def from_storage(array: pa.Array, type_: pa.DataType, **known: pa.Array) -> pa.Array:
    loaded = schema_of(type_, **known).from_storage(batch_of(array)).column(0)
    loaded.validate(full=True)
    return loaded


def kernel_type(type_: pa.DataType) -> pa.DataType:
    """The type that the decoder returns for a stored type: 32-bit offsets, and only one kind of list."""
    if hasattr(type_, "value_type"):
        return pa.list_(kernel_type(type_.value_type))
    narrow = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return narrow.get(type_, type_)


def round_trip(array: pa.Array, type_: pa.DataType | None = None) -> pa.Array:
    stored = to_storage(array)
    decoded = pa.array(stored.to_pylist(), kernel_type(stored.type))
    return from_storage(decoded, type_ or array.type)


class TestBothWays:
    def test_decimals_round_to_the_nearest_float(self) -> None:
        digits = np.random.default_rng(0).integers(-(10**10), 10**10, 500)
        values = [Decimal(int(n)).scaleb(-2) for n in digits]
        expected = np.array([float(value) for value in values]).astype(np.float32)
        np.testing.assert_array_equal(to_storage(pa.array(values, pa.decimal128(12, 2))).to_numpy(), expected)

    def test_names_and_nullability_of_list_items_are_kept(self) -> None:
        type_ = pa.list_(pa.field("element", pa.int64(), nullable=False))
        assert round_trip(pa.array([[1], []], type_)).type == type_

    def test_what_no_list_refers_to_is_harmless_and_ready_columns_are_not_copied(self) -> None:
        assert to_storage(pa.array([[1, None], [2]]).slice(1)).to_pylist() == [[2]]
        values = pa.array([2**64 - 1, 2**64 - 1, 1, 2], pa.uint64())
        array = pa.FixedSizeListArray.from_arrays(values, 2, mask=pa.array([True, False]))
        assert to_storage(array).to_pylist() == [None, [1, 2]]
        array = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))
        assert to_storage(array).values.buffers()[1].address == array.values.buffers()[1].address

    def test_a_column_of_the_null_type_is_only_missing(self) -> None:
        assert schema_of(pa.null()).columns == (Column("x", "bytes", 1),)
        assert to_storage(pa.nulls(2)).equals(pa.nulls(2, pa.list_(pa.binary())))
        assert from_storage(pa.array([None, []], pa.list_(pa.binary())), pa.null()).equals(pa.nulls(2))


class TestCategories:
    @pytest.mark.parametrize(
        "values", [[3, 1], [dt.date(1970, 1, 2)], [b"\xff"], [True], [Decimal("1.5")], [dt.timedelta(1)]]
    )
    def test_categories_of_any_scalar(self, values: list[Any]) -> None:
        array = pa.array([*values, None, *values]).dictionary_encode()
        assert round_trip(array).to_pylist() == [*values, None, *values]

    @pytest.mark.parametrize("ordered", [False, True])
    def test_known_categories_come_first_and_others_may_follow_without_an_order(self, ordered: bool) -> None:
        type_ = pa.dictionary(pa.int32(), pa.string(), ordered)
        known, values = pa.array(["low", "high"]), ["high", None, *([] if ordered else ["mid"])]
        array = from_storage(pa.array(values), type_, x=known)
        assert array.type == type_
        assert array.dictionary.to_pylist() == ["low", "high", *([] if ordered else ["mid"])]
        assert array.to_pylist() == values
        if ordered:
            schema, mid = schema_of(type_, x=known), pa.array(["low", "mid"])
            with pytest.raises(SchemaError, match=r"record 1: feature 'x': 'mid' is not one of"):
                schema.from_storage(batch_of(mid))
            with pytest.raises(SchemaError, match=r"record 1: feature 'x': 'mid' is not one of"):
                schema.to_storage(batch_of(mid.cast(type_)), lossy="allow")

    def test_codes_are_as_wide_as_needed_on_reading_and_lists_may_have_categories(self) -> None:
        words = pa.array([str(i) for i in range(1000)])
        assert from_storage(words, pa.dictionary(pa.int8(), pa.string())).to_pylist() == words.to_pylist()
        array = pa.ListArray.from_arrays([0, 2, 3], pa.array(["a", "b", "a"]).dictionary_encode())
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
            assert caught.value.advice or caught.value.remedies

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
        ("array", "type_", "problem"),
        [
            (
                pa.array([[1, 2], None, [1, 2, 3]]),
                pa.list_(pa.int64(), 2),
                r'record 2: .*holds 3 values, the column 2; pass schema=\{"x": pa.list_\(pa.int64',
            ),
            (
                pa.array([None, [b"a"]], pa.list_(pa.binary())),
                pa.null(),
                r"record 1: feature 'x': the record holds bytes, the column is null",
            ),
        ],
    )
    def test_a_shape_that_the_type_has_not(self, array: pa.Array, type_: pa.DataType, problem: str) -> None:
        with pytest.raises(SchemaError, match=problem):
            from_storage(array, type_)
