"""Many records of one layout decode as each record does by itself.

A decoder learns the layout of records and then decodes many at a time. A decoder that has seen no record
decodes field by field. The tests compare the two.

Modules: codec.
"""

import struct
from typing import Any

import oracle
import pytest
from guard import exact
from oracle import block, bytes_list, entry, example_of, float_list, int64_list, packed
from wire_messages import ACCEPTED, REFUSED, UNKNOWN

from dask_tfrecord.codec import Column, Decoder, FeatureKey


def one_by_one(payloads: list[bytes], columns: list[Column], known: list[FeatureKey] | None) -> Any:
    """The rows, and the damage, that a new decoder for each record finds."""
    rows: list[list[Any]] = [[] for _ in columns]
    offset = 0
    for number, payload in enumerate(payloads):
        decoded = Decoder(columns, "example", known=known).decode(exact(oracle.frame(payload)), final=True)
        if decoded.damage:
            return rows, decoded.damage._replace(record=number, offset=offset)
        for values, column in zip(rows, decoded.batch.columns, strict=True):
            values += oracle.canonical(column.to_pylist())
        offset += decoded.consumed
    return rows, None


def at_once(payloads: list[bytes], columns: list[Column], known: list[FeatureKey] | None) -> Any:
    decoded = Decoder(columns, "example", known=known).decode(
        exact(oracle.records_file(payloads)), final=True
    )
    decoded.batch.validate(full=True)
    return [oracle.canonical(column.to_pylist()) for column in decoded.batch.columns], decoded.damage


def check(payloads: list[bytes], columns: list[Column], known: list[FeatureKey] | None = None) -> None:
    """Compare the two ways, also for what follows each record that is damaged."""
    while payloads:
        expected = one_by_one(payloads, columns, known)
        assert at_once(payloads, columns, known) == expected
        if not expected[1]:
            return
        payloads = payloads[:9] + payloads[expected[1].record + 1 :] if expected[1].record > 8 else []


@pytest.mark.sampled
@pytest.mark.parametrize("payload", [*ACCEPTED.values(), *REFUSED.values()], ids=[*ACCEPTED, *REFUSED])
def test_an_odd_record_among_many_of_one_layout_disturbs_none(payload: bytes) -> None:
    columns = [Column("a", "int64", 1), Column("f", "float", 1), Column("s", "bytes", 1)]
    usual = [
        example_of(
            entry("a", int64_list(packed(n))),
            entry("f", float_list(block(1, bytes(4)))),
            entry("s", bytes_list(block(1, b"q" * (n % 3)))),
        )
        for n in range(40)
    ]
    check([*usual[:30], payload, *usual], columns)


def record(n: int) -> bytes:
    """A record of many kinds of features. One name is longer than the kernel's fast comparisons."""
    return example_of(
        entry("id", int64_list(packed(n * 3**n - 2**40))),
        entry("price", float_list(block(1, struct.pack("<f", n / 4)))),
        entry("text_of_a_long_name_" + "0" * 40, bytes_list(block(1, b"xyz" * (n % 7)))),
        entry("small", int64_list(packed(n))),
        entry("pair", int64_list(packed(128 + n, 2**14 - n))),
        entry("country", bytes_list(block(1, b"c%d" % (n % 3)))),
        entry("empty", bytes_list(block(1, b""))),
    )


@pytest.mark.parametrize("at", [20, 21, 22, 23])
def test_every_bit_of_an_expected_record_counts(at: int) -> None:
    """A record that differs from its neighbours in one bit decodes as it does alone.

    Four records are compared at the same time, so that the record is each of the four.
    """
    columns = [
        Column("id", "int64", 0),
        Column("country", "string", 0),
        *(
            []
            if at % 2
            else [Column("empty", "bytes", 0), Column("pair", "int64", 1), Column("small", "int64", 0)]
        ),
        *(
            []
            if at % 2
            else [Column("text_of_a_long_name_" + "0" * 40, "string", 0), Column("price", "float", 0)]
        ),
    ]
    payloads = [record(n) for n in range(28)]
    known = [(name, False) for name in oracle.parse(payloads[0]).features]
    before, after = oracle.records_file(payloads[:at]), oracle.records_file(payloads[at + 1 :])
    for bit in range(8 * len(payloads[at])):
        flipped = bytearray(payloads[at])
        flipped[bit // 8] ^= 1 << bit % 8
        frame = oracle.frame(bytes(flipped))
        together = Decoder(columns, "example", known=known).decode(exact(before + frame + after), final=True)
        alone = Decoder(columns, "example", known=known).decode(exact(frame), final=True)
        if alone.damage:
            assert together.damage == alone.damage._replace(record=at, offset=len(before)), bit
        else:
            assert together.damage is None, bit
            found = together.batch.slice(at, 1), alone.batch
            rows = [oracle.canonical([column.to_pylist() for column in batch.columns]) for batch in found]
            assert rows[0] == rows[1], bit


def test_a_feature_that_had_no_kind_in_the_layout_is_unknown_as_soon_as_it_has_one() -> None:
    columns, known = [Column("id", "int64", 0)], [("id", False)]
    first = entry("id", int64_list(packed(5)))
    payloads = [example_of(first, entry("new", feature)) for feature in (b"", UNKNOWN["varint"])] * 30
    bad = example_of(first, entry("new", int64_list(packed(1))))
    rows, damage = at_once([*payloads, bad, *payloads], columns, known)
    assert rows == [[5] * 60]
    assert damage is not None
    assert (damage.record, damage.reason) == (60, "unknown feature")


def test_the_last_record_may_end_anywhere_before_the_end_of_memory() -> None:
    """It lacks the feature with the longest name that is compared at once."""
    columns = [Column("id", "int64", 0), Column("n" * 53, "bytes", 0)]
    first, last = entry("id", int64_list(packed(5))), entry("n" * 53, bytes_list(block(1, b"x")))
    frames = [oracle.frame(example_of(first, last) if n % 2 else example_of(first)) for n in range(31)]
    data = b"".join(frames) + oracle.frame(example_of(first, last) * 2)
    for size in range(sum(map(len, frames)), len(data)):
        decoded = Decoder(columns, "example").decode(exact(data[:size]), final=False)
        assert decoded.damage is None
        assert decoded.batch.column(1).to_pylist() == [b"x" if n % 2 else None for n in range(31)]


@pytest.mark.parametrize("kept", [0, 10, 40])
@pytest.mark.parametrize("wanted", [True, False])
def test_a_layout_is_not_followed_beyond_a_record_that_is_cut(kept: int, wanted: bool) -> None:
    """The record claims more bytes than it has, and the memory ends before them."""
    names = [f"float_{number:02}" for number in range(40)]
    numbers = [entry(name, float_list(block(1, bytes(4)))) for name in names]
    long = [entry("s", bytes_list(block(1, b"x" * size))) for size in (20, 112)]
    columns = [
        Column("id", "int64", 0),
        *[Column(name, "float", 0) for name in names],
        Column("s", "bytes", 0),
    ]
    columns = columns if wanted else columns[:1]
    first = entry("id", int64_list(packed(5)))
    for rest, cut in (([b"".join(numbers)], len(first) + kept), (long, len(first) + 15 + kept)):
        usual = [oracle.frame(example_of(first, rest[n % len(rest)])) for n in range(30)]
        payload = example_of((first + rest[-1])[:cut])
        whole = b"".join([*usual, oracle.frame(payload), oracle.frame(bytes(300))])
        alone = Decoder(columns, "example").decode(exact(oracle.frame(payload)), final=True)
        for size in range(len(whole) - 310, len(whole), 7):
            decoded = Decoder(columns, "example").decode(exact(whole[:size]), final=False)
            if alone.damage is None:  # the record is cut after an entry
                assert decoded.records == 31
            else:
                assert decoded.damage == alone.damage._replace(record=30, offset=sum(map(len, usual)))
