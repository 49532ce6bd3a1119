"""The kernel and google.protobuf read each other's records, for random tables of kernel columns.

Modules: codec.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import oracle
import pyarrow as pa
import pytest
from encoded import encoded_views
from hypothesis import given
from hypothesis import strategies as st
from judge import seen_by
from oracle import Feature, Record

from dask_tfrecord.codec import Column, Decoder, Encoder, Inference, RecordType, _kernel, scan
from dask_tfrecord.errors import SchemaError

MESSAGES: list[RecordType] = ["example", "sequence_example"]

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8) | st.sampled_from(
    ["k" * 130, "é🙂", "a\0b"]
)
INT64 = (
    st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200) | st.sampled_from([1 << n for n in range(63)])
)
FLOAT_BITS = st.floats(width=32).map(oracle.float_bits)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = {
    "int64": INT64,
    "float": FLOAT_BITS,
    "bytes": st.binary(max_size=200),
    "string": TEXT.map(str.encode),
}


@dataclass(frozen=True)
class Table:
    """The columns, and their values as the oracle represents them: floats as bits, text as bytes."""

    record_type: RecordType
    columns: list[Column]
    rows: int
    values: list[list[Any]]

    def records(self) -> list[Record]:
        """The rows as messages; a null is an absent key."""
        return [
            Record(
                {c.name: _feature(c, v[i]) for c, v in self._present(i, nested=False)},
                {c.name: [Feature(_wire(c.kind), s) for s in v[i]] for c, v in self._present(i, nested=True)},
            )
            for i in range(self.rows)
        ]

    def _present(self, row: int, *, nested: bool) -> list[tuple[Column, list[Any]]]:
        pairs = zip(self.columns, self.values, strict=True)
        return [(c, v) for c, v in pairs if v[row] is not None and (c.depth == 2) == nested]

    def batch(self, wide: bool) -> pa.RecordBatch:
        """The rows in the kernel's storage types, with 64-bit offsets if ``wide``."""
        arrays = [storage(c, v, wide) for c, v in zip(self.columns, self.values, strict=True)]
        return pa.record_batch(arrays, names=[c.name for c in self.columns])


def _wire(kind: str) -> str:
    return "bytes" if kind == "string" else kind


def _feature(column: Column, value: Any) -> Feature:
    return Feature(_wire(column.kind), value if column.depth == 1 else [value])


def storage(column: Column, values: Sequence[Any], wide: bool) -> pa.Array:
    """Values of the oracle as the Arrow array that the kernel encodes."""
    leaf = {
        "int64": pa.int64(),
        "float": pa.uint32(),
        "bytes": pa.large_binary() if wide else pa.binary(),
        "string": pa.large_binary() if wide else pa.binary(),
    }[column.kind]
    type_ = leaf
    for _ in range(column.depth):
        type_ = pa.large_list(type_) if wide else pa.list_(type_)
    return _retyped(pa.array(values, type_), column.kind, wide)


def _retyped(array: pa.Array, kind: str, wide: bool) -> pa.Array:
    """View bits as floats and bytes as text. A conversion value by value would change NaNs."""
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        child = _retyped(array.values, kind, wide)
        return type(array).from_arrays(array.offsets, child, mask=array.is_null())
    if kind == "float":
        return array.view(pa.float32())
    return array.view(pa.large_utf8() if wide else pa.utf8()) if kind == "string" else array


def values_of(array: pa.Array) -> list[Any]:
    """The values of an Arrow array as the oracle represents them."""
    return [oracle.canonical(value) for value in array.to_pylist()]


@st.composite
def tables(draw: Callable[..., Any], record_type: RecordType) -> Table:
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    rows = draw(st.integers(0, 12))
    columns, values = [], []
    for name in names:
        column = Column(
            name,
            draw(st.sampled_from(sorted(VALUES))),
            draw(st.integers(0, 2 if record_type == "sequence_example" else 1)),
        )
        value = VALUES[column.kind]
        for _ in range(column.depth):
            value = st.lists(value, max_size=6)
        nulls = draw(st.sampled_from(["none", "some", "all"]))
        if nulls != "none":
            value = st.none() | value if nulls == "some" else st.none()
        columns.append(column)
        values.append(draw(st.lists(value, min_size=rows, max_size=rows)))
    return Table(record_type, columns, rows, values)


any_table = st.sampled_from(MESSAGES).flatmap(tables)


def encode(encoder: Encoder, batch: pa.RecordBatch, buffer_bytes: int = 1 << 20) -> bytes:
    return b"".join(bytes(view) for view in encoded_views(encoder, batch, buffer_bytes))


def decode(columns: Sequence[Column], record_type: RecordType, data: bytes) -> pa.RecordBatch:
    decoded = Decoder(columns, record_type).decode(data, final=True)
    assert decoded.damage is None
    assert decoded.consumed == len(data)
    return decoded.batch


slices = st.just((0, 12)) | st.tuples(st.integers(0, 12), st.integers(0, 12))


@given(any_table, slices, st.booleans(), st.sampled_from([1, 40, 1 << 20]))
def test_protobuf_reads_what_the_kernel_writes(
    table: Table, part: tuple[int, int], wide: bool, buffer_bytes: int
) -> None:
    """Each list is one packed chunk, and no field is written twice: the strictest readers need this.

    The bytes do not depend on the width of offsets, on the size of the buffer, or on earlier batches.
    """
    start, length = part
    encoder = Encoder(table.columns, table.record_type)
    file = encode(encoder, table.batch(wide).slice(start, length), buffer_bytes)
    payloads, records = oracle.frames(file), table.records()[start : start + length]
    assert [oracle.parse(payload, table.record_type) for payload in payloads] == records
    for payload, record in zip(payloads, records, strict=True):
        if record.features and (record.lists or table.record_type == "example"):
            assert len(payload) == len(oracle.serialize(record, table.record_type))
    assert encode(encoder, table.batch(not wide).slice(start, length)) == file


@given(any_table, st.randoms(use_true_random=False))
def test_the_kernel_reads_what_protobuf_writes(table: Table, random_: random.Random) -> None:
    """In any order of features, with any columns in any order, and with nulls in every known encoding.

    tfx-bsl writes a null as a feature without a kind; Ray writes a null scalar as an empty list.
    """
    records = table.records()
    for column, values in zip(table.columns, table.values, strict=True):
        for record, value in zip(records, values, strict=True):
            if value is None and column.depth < 2 and random_.randrange(3):
                unset = column.depth == 1 or random_.randrange(2)
                record.features[column.name] = Feature() if unset else Feature(_wire(column.kind), [])
    payloads = []
    for record in records:
        features = random_.sample(list(record.features.items()), len(record.features))
        payloads.append(oracle.serialize(Record(dict(features), record.lists), table.record_type))
    file = oracle.records_file(payloads)
    wanted = random_.sample(range(len(table.columns)), random_.randint(1, len(table.columns)))
    batch = decode([table.columns[i] for i in wanted], table.record_type, file)
    assert batch.schema.names == [table.columns[i].name for i in wanted]
    assert [values_of(array) for array in batch.columns] == [table.values[i] for i in wanted]

    found = scan(file, final=True, offsets=True)
    assert (found.records, found.consumed, found.damage) == (len(payloads), len(file), None)
    assert found.offsets.to_pylist() == [len(oracle.records_file(payloads[:n])) for n in range(len(payloads))]
    inference = Inference(table.record_type)
    assert inference.feed(file, final=True) == (len(records), len(file), None)
    assert seen_by(inference) == oracle.inferred(records)


@given(any_table)
def test_any_arrow_library_gets_the_batch_that_the_decoder_gives(table: Table) -> None:
    """The batch is passed as Arrow capsules with their schema. A name ends there at its first NUL."""
    file = oracle.records_file([oracle.serialize(record, table.record_type) for record in table.records()])
    decoder = _kernel.Decoder(table.columns, table.record_type)
    decoder.feed(file, final=True)
    batch, ours = pa.record_batch(decoder.take()), decode(table.columns, table.record_type, file)
    assert batch.schema.names == [name.split("\0")[0] for name in ours.schema.names]
    assert batch.schema.types == ours.schema.types
    assert [values_of(array) for array in batch.columns] == [values_of(array) for array in ours.columns]
    batch.validate(full=True)
    ours.validate(full=True)


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_records_of_any_bytes_survive_as_record_type_bytes(payloads: list[bytes]) -> None:
    columns = [Column("record", "bytes", 0)]
    file = encode(Encoder(columns, "bytes"), pa.record_batch([pa.array(payloads, pa.binary())], ["record"]))
    assert oracle.frames(file) == payloads
    assert decode(columns, "bytes", file).column(0).to_pylist() == payloads


def test_a_null_list_of_fixed_size_hides_what_lies_below_it() -> None:
    values = pa.FixedSizeListArray.from_arrays(
        pa.array([1, 2, None, None, 5, 6], pa.int64()), 2, mask=pa.array([False, True, False])
    )
    file = encode(Encoder([Column("x", "int64", 1)], "example"), pa.record_batch([values], ["x"]))
    assert [oracle.parse(p).features for p in oracle.frames(file)] == [
        {"x": Feature("int64", [1, 2])},
        {},
        {"x": Feature("int64", [5, 6])},
    ]


@pytest.mark.parametrize("kind", sorted(VALUES))
@pytest.mark.parametrize("depth", [0, 1])
def test_names_and_values_around_every_length_that_needs_another_byte(kind: str, depth: int) -> None:
    """The head of a feature holds six lengths; each may take one byte or more."""
    values = {
        "int64": [0, 127, 128, 2**14, 2**63 - 1, -1],
        "float": [oracle.float_bits(1.5)],
        "bytes": [
            b"x" * n for n in (0, 1, 15, 16, 17, 80, 110, 116, 118, 120, 122, 124, 126, 127, 128, 16_384)
        ],
    }
    leaves = values[_wire(kind)]
    scalars: list[Any] = [leaf if not depth else [leaf] for leaf in leaves]
    longer: list[Any] = [leaves[:1] * n for n in (0, 2, 30, 120, 130)] if depth else []
    for length in (1, 15, 16, 17, *range(24, 48), *range(90, 132), 16_384):
        column = Column("k" * length, kind, depth)
        table = Table("example", [column], len(scalars + longer), [scalars + longer])
        file = encode(Encoder([column], "example"), table.batch(wide=False))
        assert [oracle.parse(payload) for payload in oracle.frames(file)] == table.records(), length
        assert values_of(decode([column], "example", file)[0]) == table.values[0], length


@pytest.mark.parametrize("bad", [None, 7])
def test_lists_of_which_few_are_encoded_ahead_are_written_like_others(bad: int | None) -> None:
    """Also if a later row cannot be written, which the encoder need not know yet."""
    lengths = [3, 90_000, 0, None, 20_000, 1, 90_000, 5, 40_000, 2]
    lists = [None if n is None else [-i] * n for i, n in enumerate(lengths)]
    columns = (Column("first", "int64", 1), Column("n", "int64", 0), Column("last", "int64", 1))
    last = [[None] if i == bad else [i] * 30_000 for i in range(10)]
    storage = pa.list_(pa.int64())
    batch = pa.record_batch(
        [pa.array(lists, storage), pa.array(range(10)), pa.array(last, storage)], ["first", "n", "last"]
    )
    encoder = Encoder(columns, "example")
    encoder.bind(batch)
    room = bytearray(32 << 20)
    if bad is not None:
        with pytest.raises(SchemaError, match="cannot hold a null") as caught:
            encoder.encode_into(0, room)
        assert (caught.value.record, caught.value.feature) == (bad, "last")
    _, size, _ = encoder.encode_into(0, room, bad)
    found = [oracle.parse(payload).features for payload in oracle.frames(bytes(room[:size]))]
    assert len(found) == (10 if bad is None else bad)
    for i, features in enumerate(found):
        assert (features["first"].values if "first" in features else None) == lists[i]
        assert (features["n"].values, features["last"].values) == ([i], last[i])


@given(any_table, st.randoms(use_true_random=False))
def test_records_anywhere_in_memory_are_decoded_in_the_given_order(
    table: Table, random_: random.Random
) -> None:
    data = encode(Encoder(table.columns, table.record_type), table.batch(wide=False))
    offsets = [*scan(data, final=True, offsets=True).offsets.to_pylist(), len(data)]
    rows = [row for row in range(table.rows) if random_.random() < 0.8]
    random_.shuffle(rows)
    # Each record lies in one of three buffers, which have other bytes around the record.
    buffers = [b"", b"x" * 3 + data, data + b"y"]
    places = [
        (number, offsets[row] + 3 * (number == 1), offsets[row + 1] + 3 * (number == 1))
        for row in range(table.rows)
        for number in [random_.choice([1, 2])]
    ]
    decoder = Decoder(table.columns, table.record_type)
    fed = decoder.feed_records(buffers, np.array(places, np.int64).reshape(-1, 3), np.array(rows, np.int64))
    assert (fed.records, fed.damage) == (len(rows), None)
    assert fed.consumed == sum(offsets[row + 1] - offsets[row] for row in rows)
    assert [values_of(one) for one in decoder.take().columns] == [
        [values[row] for row in rows] for values in table.values
    ]


@pytest.mark.parametrize("size", [10, 1000, 31_000, 32_768, 70_000])
def test_records_of_any_size_are_decoded_up_to_a_damaged_record(size: int) -> None:
    payloads = [bytes([number]) * (size + number) for number in range(24)]
    frames = [oracle.frame(payload) for payload in payloads]
    frames[16] = frames[16][:-1] + bytes([frames[16][-1] ^ 1])
    places = np.array([(number, 0, len(frame)) for number, frame in enumerate(frames)])
    decoder = Decoder((Column("record", "bytes", 0),), "bytes")
    order = np.arange(24)[::-1].copy()
    fed = decoder.feed_records(frames, places, order)
    assert decoder.take()["record"].to_pylist() == payloads[:16:-1]
    assert fed.damage is not None
    assert (fed.records, fed.damage.record) == (7, 7)
    assert fed.consumed == fed.damage.offset == sum(map(len, frames[17:]))
    assert decoder.feed_records(frames, places, order[8:]).records == 16
    assert decoder.take()["record"].to_pylist() == payloads[15::-1]


@pytest.mark.parametrize("place", [(1, 0, 5), (-1, 0, 5), (0, 0, 31), (0, -1, 5), (0, 9, 8)])
def test_a_record_outside_its_buffer_is_refused(place: tuple[int, int, int]) -> None:
    decoder = Decoder((Column("record", "bytes", 0),), "bytes")
    data, places = [oracle.frame(b"fourteen bytes")], np.array([place, (0, 0, 30)])
    assert decoder.feed_records(data, places, np.array([1])).records == 1
    with pytest.raises(IndexError, match="outside the data"):
        decoder.feed_records(data, places, np.array([0]))
    for row in (2, -1):
        with pytest.raises(IndexError, match="outside the places"):
            decoder.feed_records(data, places, np.array([row]))


def test_examples_are_decoded_alike_as_sequence_examples() -> None:
    """Records of the same layout are decoded together, also if they could have feature lists."""
    records = [{"a": ("int64", [n]), "b": ("bytes", [b"%d" % n])} for n in range(500)]
    records[300] |= {"c": ("float", [oracle.float_bits(0.5)])}
    data = oracle.features_file(records)
    lists = oracle.serialize(
        Record({"a": Feature("int64", [7])}, {"l": [Feature("int64", [1, 2])]}), "sequence_example"
    )
    columns = [
        Column("a", "int64", 0),
        Column("b", "bytes", 0),
        Column("c", "float", 0),
        Column("l", "int64", 2),
    ]
    decoder = Decoder(columns, "sequence_example")
    found = decoder.decode(data + oracle.frame(lists) + data, final=True).batch.to_pydict()
    plain = Decoder(columns[:3], "example").decode(data, final=True).batch.to_pydict()
    assert found["l"] == [None] * 500 + [[[1, 2]]] + [None] * 500
    for name, last in (("a", 7), ("b", None), ("c", None)):
        assert found[name] == [*plain[name], last, *plain[name]]
