"""Every type of the type table is encoded and decoded; google.protobuf judges the records between.

Modules: codec.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import oracle
import pyarrow as pa
import pytest
from encoded import encoded_views
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Feature, Record

from dask_tfrecord.codec import Decoder, Encoder, RecordType
from dask_tfrecord.schema.fields import Schema


@dataclass(frozen=True)
class Leaf:
    """A scalar type: the kind of its feature, the stored values it can hold, and the Python value of each.

    Stored values are as the oracle represents them: integers, the bits of floats, bytes.
    """

    type: pa.DataType
    kind: str
    wire: st.SearchStrategy[Any]
    logical: Callable[[Any], Any] = lambda wire: wire

    def __str__(self) -> str:
        return str(self.type)


def _integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


SIGNED_64 = _integers(64, signed=True)
FLOATS = st.floats(width=32).map(oracle.float_bits)
HALVES = st.floats(width=16).map(oracle.float_bits)
QUARTERS = st.integers(-(2**20), 2**20).map(lambda n: oracle.float_bits(n / 4))
DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
WORDS = st.text(st.characters(codec="utf-8"), max_size=10).map(str.encode)


def _decimal(bits: int) -> Decimal:
    return Decimal(oracle.float_of(bits))


LEAVES = [
    Leaf(pa.bool_(), "int64", st.integers(0, 1), bool),
    *[
        Leaf(pa.type_for_alias(f"int{bits}"), "int64", _integers(bits, signed=True))
        for bits in (8, 16, 32, 64)
    ],
    *[Leaf(pa.type_for_alias(f"uint{bits}"), "int64", _integers(bits, signed=False)) for bits in (8, 16, 32)],
    Leaf(pa.uint64(), "int64", st.integers(0, 2**63 - 1)),
    Leaf(pa.float16(), "float", HALVES, oracle.float_of),
    Leaf(pa.float32(), "float", FLOATS, oracle.float_of),
    Leaf(pa.float64(), "float", FLOATS, oracle.float_of),
    Leaf(pa.decimal32(9, 2), "float", QUARTERS, _decimal),
    Leaf(pa.decimal64(15, 2), "float", QUARTERS, _decimal),
    Leaf(pa.decimal128(20, 2), "float", QUARTERS, _decimal),
    Leaf(pa.decimal256(40, 2), "float", QUARTERS, _decimal),
    Leaf(pa.date32(), "int64", _integers(32, signed=True)),
    Leaf(pa.date64(), "int64", st.integers(-(10**5), 10**5).map(lambda day: day * DAY["ms"])),
    *[Leaf(pa.time32(unit), "int64", st.integers(0, DAY[unit] - 1)) for unit in ("s", "ms")],
    *[Leaf(pa.time64(unit), "int64", st.integers(0, DAY[unit] - 1)) for unit in ("us", "ns")],
    *[Leaf(pa.timestamp(unit), "int64", SIGNED_64) for unit in ("s", "ms", "us", "ns")],
    *[Leaf(pa.timestamp(unit, "Europe/Warsaw"), "int64", SIGNED_64) for unit in ("s", "ms", "us", "ns")],
    Leaf(pa.timestamp("us", "+02:00"), "int64", SIGNED_64),
    *[Leaf(pa.duration(unit), "int64", SIGNED_64) for unit in ("s", "ms", "us", "ns")],
    *[Leaf(t, "bytes", WORDS, bytes.decode) for t in (pa.string(), pa.large_string(), pa.string_view())],
    *[Leaf(t, "bytes", st.binary(max_size=20)) for t in (pa.binary(), pa.large_binary(), pa.binary_view())],
    Leaf(pa.binary(3), "bytes", st.binary(min_size=3, max_size=3)),
]
CATEGORIES = [
    Leaf(pa.dictionary(pa.int8(), pa.string()), "bytes", WORDS, bytes.decode),
    Leaf(pa.dictionary(pa.int32(), pa.string(), ordered=True), "bytes", WORDS, bytes.decode),
    Leaf(pa.dictionary(pa.int16(), pa.int64()), "int64", SIGNED_64),
]
LISTS: list[Callable[[pa.DataType], pa.DataType]] = [
    pa.list_,
    pa.large_list,
    pa.list_view,
    pa.large_list_view,
]


@dataclass(frozen=True)
class Filled:
    """A column: its Arrow array, the array that a read returns, and for each row the stored value or None."""

    array: pa.Array
    back: pa.Array
    kind: str
    depth: int
    wire: list[Any]

    def put(self, record: Record, row: int, name: str) -> None:
        """Set the value that protobuf must read from this row; a null is an absent key."""
        value = self.wire[row]
        if value is None:
            return
        if self.depth == 2:
            record.lists[name] = [Feature(self.kind, step) for step in value]
        else:
            record.features[name] = Feature(self.kind, value if self.depth else [value])


def _deep(function: Callable[[Any], Any], value: Any) -> Any:
    return [_deep(function, item) for item in value] if isinstance(value, list) else function(value)


def _some(values: st.SearchStrategy[Any], nulls: str, rows: int) -> st.SearchStrategy[list[Any]]:
    if nulls == "all":
        return st.just([None] * rows)
    return st.lists(st.none() | values if nulls == "some" else values, min_size=rows, max_size=rows)


@st.composite
def columns(draw: Callable[..., Any], leaf: Leaf, shape: str, rows: int) -> Filled:
    """A column of ``leaf`` in one of the shapes "scalar", "list", "fixed", "tensor", "nested"."""
    type_, wire, depth = leaf.type, leaf.wire, 0
    if shape in ("fixed", "tensor"):
        size = draw(st.sampled_from([1, 2, 6]))
        rows_of_tensor = size // 2 or 1
        type_ = (
            pa.list_(type_, size)
            if shape == "fixed"
            else pa.fixed_shape_tensor(type_, [rows_of_tensor, size // rows_of_tensor], dim_names=["a", "b"])
        )
        wire, depth = st.lists(wire, min_size=size, max_size=size), 1
    for _ in range({"list": 1, "nested": 2}.get(shape, 0)):
        type_, wire, depth = draw(st.sampled_from(LISTS))(type_), st.lists(wire, max_size=4), depth + 1
    values = draw(_some(wire, draw(st.sampled_from(["none", "some", "all"])), rows))
    logical = [None if value is None else _deep(leaf.logical, value) for value in values]
    return Filled(_array(logical, type_), _array(logical, read_back(type_)), leaf.kind, depth, values)


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    """An array with an offset."""
    if isinstance(type_, pa.FixedShapeTensorType):
        return pa.ExtensionArray.from_storage(type_, _array(values, type_.storage_type))
    return pa.array([None, *values], type_)[1:]


def read_back(type_: pa.DataType) -> pa.DataType:
    """The type that a read returns: views become plain types, and categories get 32-bit codes."""
    if type_ in (pa.string_view(), pa.binary_view()):
        return pa.string() if type_ == pa.string_view() else pa.binary()
    if pa.types.is_dictionary(type_):
        return pa.dictionary(pa.int32(), type_.value_type, type_.ordered)
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(read_back(type_.value_type), type_.list_size)
    if pa.types.is_list(type_) or pa.types.is_list_view(type_):
        return pa.list_(read_back(type_.value_type))
    if pa.types.is_large_list(type_) or pa.types.is_large_list_view(type_):
        return pa.large_list(read_back(type_.value_type))
    return type_


def _same(found: pa.Array, expected: pa.Array) -> bool:
    """Equal in type and value, with NaN equal to NaN."""
    if found.type != expected.type:
        return False
    if isinstance(found.type, pa.BaseExtensionType):
        found, expected = found.storage, expected.storage
    return found.equals(expected) or oracle.canonical(found.to_pylist()) == oracle.canonical(
        expected.to_pylist()
    )


def _round_trip(filled: dict[str, Filled], record_type: RecordType, random_: random.Random) -> None:
    batch = pa.record_batch({name: column.array for name, column in filled.items()})
    records = [Record() for _ in range(batch.num_rows)]
    for name, column in filled.items():
        for row, record in enumerate(records):
            column.put(record, row, name)
    schema = Schema.from_arrow(batch.schema, record_type)

    encoder = Encoder(schema.columns, record_type)
    file = b"".join(bytes(view) for view in encoded_views(encoder, schema.to_storage(batch, lossy="raise")))
    assert [oracle.parse(payload, record_type) for payload in oracle.frames(file)] == records

    payloads = []
    for record in records:
        features = list(record.features.items())
        random_.shuffle(features)
        payloads.append(oracle.serialize(Record(dict(features), record.lists), record_type))
    foreign = oracle.records_file(payloads)
    decoded = Decoder(schema.columns, record_type).decode(foreign, final=True)
    assert decoded.damage is None
    back = schema.from_storage(decoded.batch)
    assert back.schema.names == list(filled)
    for name, column in filled.items():
        assert _same(back[name], column.back), name


randoms = st.randoms(use_true_random=False)
# More than a hundred types and shapes share the number of examples of one test.
of_each_type = settings(max_examples=max(10, settings().max_examples // 4))


@pytest.mark.sampled
@pytest.mark.parametrize("leaf", LEAVES + CATEGORIES, ids=str)
@of_each_type
@given(data=st.data(), random_=randoms)
def test_scalars_and_lists_of_any_type(leaf: Leaf, data: st.DataObject, random_: random.Random) -> None:
    shapes = ["scalar"] if leaf in CATEGORIES else ["scalar", "list", "fixed"]
    column = data.draw(columns(leaf, data.draw(st.sampled_from(shapes)), data.draw(st.integers(0, 8))))
    _round_trip({"x": column}, "example", random_)


@given(data=st.data(), random_=randoms)
def test_a_tensor_of_fixed_shape(data: st.DataObject, random_: random.Random) -> None:
    leaf = data.draw(st.sampled_from([leaf for leaf in LEAVES if pa.types.is_floating(leaf.type)]))
    _round_trip({"x": data.draw(columns(leaf, "tensor", 3))}, "example", random_)


@given(data=st.data(), random_=randoms)
def test_any_table_of_any_types(data: st.DataObject, random_: random.Random) -> None:
    record_type: RecordType = data.draw(st.sampled_from(["example", "sequence_example"]))
    shapes = ["scalar", "list", "fixed"] + (["nested"] * 2 if record_type == "sequence_example" else [])
    rows = data.draw(st.integers(0, 6))
    filled = {
        name: data.draw(columns(data.draw(st.sampled_from(LEAVES)), data.draw(st.sampled_from(shapes)), rows))
        for name in data.draw(st.lists(st.text("abcé", min_size=1), min_size=1, max_size=5, unique=True))
    }
    _round_trip(filled, record_type, random_)


@given(st.lists(st.none() | st.floats(-3e38, 3e38) | st.sampled_from([float("nan"), float("-inf")])))
def test_float64_is_stored_as_the_nearest_float32(values: list[float | None]) -> None:
    batch = pa.record_batch({"x": pa.array(values, pa.float64())})
    schema = Schema.from_arrow(batch.schema)
    storage = schema.to_storage(batch, lossy="allow")
    file = b"".join(bytes(view) for view in encoded_views(Encoder(schema.columns, "example"), storage))
    found = oracle.column_values(map(oracle.parse, oracle.frames(file)), "x", depth=0)
    assert found == [None if value is None else oracle.float_bits(value) for value in values]
