"""Every cast by `schema=` is exact, is a rounding that `lossy=` allows, or raises and names the row.

Modules: schema.conversion, schema.fields.
"""

from array import array
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from cast_table import OBJECTS, SOURCES, TARGETS, Value, array_of
from encoded import encoded_views
from strides import sampled

from dask_tfrecord.codec import Decoder, Encoder
from dask_tfrecord.collection.frames.pandas_to_arrow import to_table
from dask_tfrecord.collection.frames.schema_plan import plan_schema
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.conversion import convert
from dask_tfrecord.schema.fields import Lossy, Schema
from dask_tfrecord.schema.logical_types import is_list, is_lossy
from dask_tfrecord.schema.storage_values import MisfitError


def through_records(frame: pd.DataFrame, type_: pa.DataType, lossy: Lossy) -> pa.Array:
    """The column "x" after a write as this type and a read."""
    schema = Schema.from_arrow(pa.schema([("x", type_)]), "sequence_example")
    table = to_table(frame, schema, write_index=False, lossy=lossy)
    table.validate(full=True)
    (batch,) = table.combine_chunks().to_batches()
    encoder = Encoder(schema.columns, schema.record_type)
    file = b"".join(bytes(view) for view in encoded_views(encoder, schema.to_storage(batch, lossy=lossy)))
    decoded = Decoder(schema.columns, schema.record_type).decode(file, final=True)
    return schema.from_storage(decoded.batch).column(0)


def refused_or(frame: pd.DataFrame, type_: pa.DataType, lossy: Lossy = "raise") -> pa.Array | None:
    """The values of a read after the write; None if the write rejects the value of row 1."""
    try:
        return through_records(frame, type_, lossy)
    except SchemaError as error:
        where = (error.record, error.feature)
    assert where == (1, "x")
    return None


def backed_by_arrow(array: pa.Array) -> pd.DataFrame:
    return pd.DataFrame({"x": pd.Series(pd.arrays.ArrowExtensionArray(array))})


def outcome(frame: pd.DataFrame, before: Value, type_: pa.DataType, lossy: Lossy) -> str:
    found = refused_or(frame, type_, lossy)
    if found is None:
        return "refused"
    assert found.type == Schema.from_arrow(pa.schema([("x", type_)])).arrow.field("x").type
    assert not found[0].is_valid
    assert found[1].is_valid
    return "exact" if before.equals(Value(found, 1)) else "changed"


def objects(*values: Any) -> pd.DataFrame:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return pd.DataFrame({"x": pd.Series(column, dtype=object)})


@pytest.mark.parametrize("value", OBJECTS, ids=lambda v: f"{type(v).__name__} {v}")
def test_an_object_is_stored_as_an_equal_value_or_refused(value: Any) -> None:
    for target in sampled(TARGETS, len(str(value))):
        found = refused_or(objects(None, value), target)
        assert found is None or Value(found, 1).is_object(value), target


SEQUENCES: list[Any] = [pd.Series, pd.Index, pd.array, partial(array, "d"), deque]
ODD: list[tuple[Any, pa.DataType]] = [
    (range(2), pa.list_(pa.date32())),
    (pd.Index([1, 2]), pa.list_(pa.duration("s"))),
    (pd.Series(["a"]), pa.list_(pa.binary())),
    (pd.Series([b"a"], dtype=object), pa.list_(pa.string())),
    (np.void(b"ab"), pa.list_(pa.int64())),
    (np.timedelta64(1, "M"), pa.int64()),
    (np.timedelta64(5, "ps"), pa.uint8()),
    (np.array([1]), pa.int64()),
    *((make([1.5, 2.0]), pa.list_(type_)) for make in SEQUENCES for type_ in (pa.int64(), pa.date32())),
]


@pytest.mark.parametrize(("value", "type_"), ODD, ids=[f"{value!r} {type_}" for value, type_ in ODD])
def test_objects_that_arrow_takes_for_other_values_are_refused(value: Any, type_: pa.DataType) -> None:
    assert refused_or(objects(None, value), type_) is None


@pytest.mark.parametrize("make", SEQUENCES)
def test_sequences_of_other_classes_are_cast_as_lists_are(make: Any) -> None:
    for values, lossy in (([1.5, 2.0], "raise"), ([0.1], "allow")):
        stored = refused_or(objects(None, make(values)), pa.list_(pa.float32()), lossy)  # type: ignore[arg-type]  # a literal
        assert stored is not None
        assert stored.to_pylist() == [None, np.float32(values).tolist()]


def _all_of(partitions: list[pd.DataFrame], names: list[str]) -> Iterator[pd.DataFrame]:
    return (frame[names] for frame in partitions)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("first", "one"), list(enumerate(OBJECTS)), ids=[f"{type(one).__name__} {one}" for one in OBJECTS]
)
@pytest.mark.parametrize("together", [True, False], ids=["one partition", "two partitions"])
def test_objects_of_two_kinds_stay_equal_or_are_refused(first: int, one: Any, together: bool) -> None:
    """Any two kinds meet in both orders: in one order in one partition, in the other in two partitions."""
    for second, other in sampled(list(enumerate(OBJECTS)), first):
        if first != second and (first < second) ^ (first + second) % 2 != together:
            continue
        partitions = [objects(one, other)] if together else [objects(one), objects(other)]
        try:
            schema = plan_schema(
                partitions[0].iloc[:0],
                schema=None,
                record_type="example",
                write_index=False,
                sample=partial(_all_of, partitions),
            )
            tables = [to_table(frame, schema, write_index=False, lossy="raise") for frame in partitions]
        except SchemaError:
            continue
        found = pa.concat_tables(tables)["x"].combine_chunks()
        assert Value(found, 0).is_object(one), other
        assert Value(found, 1).is_object(other), other


VIEWS = (pa.string_view(), pa.binary_view(), pa.null())


def converted(array: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Cast the array to the type; None if the second row is rejected."""
    try:
        return convert(array, type_)
    except MisfitError as error:
        row = error.row
    except pa.ArrowException:
        return None
    assert row == 1
    return None


@pytest.mark.parametrize(("source", "values"), SOURCES, ids=lambda v: str(v)[:30])
def test_a_value_is_exact_or_refused(source: pa.DataType, values: list[Any]) -> None:
    """Each value is cast to each type. A third of the casts, with each pair of types, go through records."""
    for number, value in enumerate(values):
        array = array_of(value, source)
        before = Value(array, 1)
        for at, target in sampled(list(enumerate(TARGETS)), number):
            is_only_cast = (number + at) % 3 and target not in (source, *VIEWS)
            if is_only_cast and not pa.types.is_dictionary(target):
                cast = converted(array, target)
                seen = "refused" if cast is None else "exact" if before.equals(Value(cast, 1)) else "changed"
            else:
                seen = outcome(backed_by_arrow(array), before, target, "raise")
            assert seen != "changed", f"{value!r} of {source} as {target}"


NUMBERS = [one for one in SOURCES if pa.types.is_floating(one[0]) or is_lossy(one[0])]


@pytest.mark.parametrize(("source", "values"), NUMBERS, ids=lambda v: str(v)[:30])
def test_only_floats_are_rounded_and_to_the_nearest(source: pa.DataType, values: list[Any]) -> None:
    for number, value in enumerate(values):
        array = array_of(value, source)
        before = Value(array, 1)
        for target in sampled(TARGETS, number):
            found = refused_or(backed_by_arrow(array), target, "allow")
            if found is not None and not before.equals(Value(found, 1)):
                assert is_lossy(target) or pa.types.is_floating(target), target
                stored = np.float16 if target == pa.float16() else np.float32
                assert found[1].as_py() == float(stored(before.stored)) or pa.types.is_decimal(target), target


SHAPES = ("list", "fixed", "nested", "category")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("source", "values"), SOURCES, ids=lambda v: str(v)[:30])
def test_lists_and_categories_follow_their_values(source: pa.DataType, values: list[Any], shape: str) -> None:
    plain = [type_ for type_ in TARGETS if not pa.types.is_dictionary(type_) and type_ not in VIEWS]
    if shape == "category":  # Arrow cannot make categories of short decimals
        plain = [type_ for type_ in plain if not pa.types.is_decimal(type_) or type_.bit_width > 64]
        if pa.types.is_decimal(source) and source.bit_width <= 64:
            return
    # Each value is cast to each type in one of the shapes; every shape has every pair of types.
    first = SHAPES.index(shape)
    for number, target in sampled(list(enumerate(plain)), first):
        for value in values[(number + first) % len(SHAPES) % len(values) :: len(SHAPES)]:
            scalar = converted(array_of(value, source), target)
            array, type_ = wrapped(array_of(value, source), target, shape)
            found = converted(array, type_)
            assert (found is None) == (scalar is None), (value, target)
            if found is None or scalar is None:
                continue
            while is_list(found.type):
                found = found.flatten()
            inner = found.dictionary_decode() if shape == "category" else found
            assert inner.type == scalar.type
            assert Value(inner.drop_null(), 0).exact == Value(scalar, 1).exact


def wrapped(array: pa.Array, target: pa.DataType, shape: str) -> tuple[pa.Array, pa.DataType]:
    """Wrap the value into lists or categories beside a null, and the target type into the same shape."""
    if shape == "category":
        return array.dictionary_encode(), pa.dictionary(pa.int32(), target)
    value = array.slice(1)
    if shape == "fixed":
        twice = pa.concat_arrays([value] * 4)
        mask = pa.array([True, False])
        return pa.FixedSizeListArray.from_arrays(twice, 2, mask=mask), pa.list_(target, 2)
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 1], pa.int32()), value, mask=pa.array([True, False]))
    if shape == "list":
        return lists, pa.large_list(target)
    outer = pa.array([0, 0, 1], pa.int32())
    return pa.ListArray.from_arrays(outer, lists.slice(1), mask=pa.array([True, False])), pa.list_(
        pa.list_(target)
    )


@pytest.mark.parametrize(("source", "values"), SOURCES, ids=lambda v: str(v)[:30])
def test_what_features_hold_is_read_exactly_or_refused(source: pa.DataType, values: list[Any]) -> None:
    """`schema=` of a read: every type of a kind is used for the features that another type has written."""
    own = Schema.from_arrow(pa.schema([("x", source)])).fields[0]
    kind = own.kind
    stored = {"int64": pa.int64(), "float": pa.float32(), "bytes": pa.binary(), "string": pa.string()}[kind]
    for number, value in enumerate(values):
        try:
            storage = through_records(backed_by_arrow(array_of(value, source)), source, "allow")
        except SchemaError:  # an unsigned integer above 2^63 - 1, or a decimal far from any float
            continue
        wire = own.store(storage, lossy="allow").cast(stored)
        for target in sampled(TARGETS, number):
            field = Schema.from_arrow(pa.schema([("x", target)])).fields[0]
            if field.kind != kind or pa.types.is_null(target):
                continue
            try:
                found = field.load(wire)
            except SchemaError as error:
                where = error.record
            else:
                assert Value(wire, 1).equals(Value(found, 1)), (value, target)
                continue
            assert where == 1


def test_a_float_between_two_decimals_is_refused() -> None:
    """Arrow's own cast takes the decimal -77260.87 for this float."""
    array = pa.array([None, -77260.875], pa.float32())
    assert refused_or(backed_by_arrow(array), pa.decimal128(20, 2)) is None
    assert refused_or(backed_by_arrow(array), pa.decimal128(20, 3)) is not None
