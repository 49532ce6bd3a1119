"""Many records of one layout decode as each record does by itself.

A decoder learns the layout of records and then decodes many at a time. A decoder that has seen no record
decodes field by field. The tests compare the two.

Modules: codec.
"""

import random
from typing import Any

import oracle
import pytest
from guard import exact
from oracle import block, bytes_list, entry, example_of, float_list, int64_list, packed
from wire_messages import ACCEPTED, REFUSED, UNKNOWN

from dask_tfrecord.codec import Column, Decoder, FeatureKey, Kind

# The features of the records. A name of 60 characters is longer than the kernel's fast comparisons.
FEATURES: dict[str, tuple[Kind, int]] = {
    "id": ("int64", 0),
    "small": ("int64", 0),
    "constant": ("int64", 0),
    "price": ("float", 0),
    "name": ("string", 0),
    "blob": ("bytes", 0),
    "country": ("string", 0),
    "feature_of_a_long_name_000": ("float", 0),
    "f" * 60: ("int64", 0),
    "ids": ("int64", 1),
    "vector": ("float", 1),
    "tags": ("string", 1),
    "pair": ("int64", 1),
    "empty": ("bytes", 0),
    "text_of_a_long_name_0000000000": ("string", 0),
}


def feature(name: str, random_: random.Random) -> bytes:
    """A Feature with random values, of constant size for some names."""
    if name == "small":
        return int64_list(packed(random_.randrange(128)))
    if name == "constant":
        return int64_list(packed(random_.randrange(2**56, 2**63)))
    if name == "pair":
        return int64_list(packed(*(random_.randrange(128, 2**14) for _ in range(2))))
    if name == "country":
        return bytes_list(block(1, bytes(random_.choices(b"abc", k=2))))
    if name == "empty":
        return bytes_list(block(1, b""))
    if name == "vector":
        return float_list(block(1, random_.randbytes(4 * 40)))
    kind, depth = FEATURES[name]
    length = random_.choice([0, 1, 3, 20]) if random_.randrange(20) else 150
    if kind == "int64" and not depth:
        return int64_list(
            packed(random_.getrandbits(random_.randrange(1, 65)) - 2**63 * random_.randrange(2))
        )
    if kind == "int64":
        return int64_list(packed(*(random_.getrandbits(20) for _ in range(length))))
    if kind == "float":
        return float_list(block(1, random_.randbytes(4)))
    if depth:
        return bytes_list(*(block(1, b"x" * random_.randrange(9)) for _ in range(min(length, 5))))
    return bytes_list(block(1, bytes(random_.choices(b"xyz", k=length))))


def record(names: list[str], random_: random.Random) -> bytes:
    return example_of(*(entry(name, feature(name, random_)) for name in names))


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


@pytest.mark.parametrize("share", [2, 10, 50])
def test_records_without_some_of_the_features_are_null_there(share: int) -> None:
    random_ = random.Random(share)
    names = sorted(FEATURES)
    payloads = [record([n for n in names if random_.randrange(share)], random_) for _ in range(700)]
    check(payloads, [Column(name, *FEATURES[name]) for name in names])


@pytest.mark.parametrize("at", [20, 21, 22, 23])
def test_every_bit_of_an_expected_record_counts(at: int) -> None:
    """A record that differs from its neighbours in one bit decodes as it does alone.

    Four records are compared at the same time, so that the record is each of the four.
    """
    random_ = random.Random(5)
    names = ["id", "price", "text_of_a_long_name_0000000000", "small", "pair", "country", "empty"]
    wanted = ["id", "country"] if at % 2 else [*reversed(names)]
    columns = [Column(name, *FEATURES[name]) for name in wanted]
    known: list[FeatureKey] = [(name, False) for name in names]
    payloads = [record(names, random_) for _ in range(28)]
    before, after = oracle.records_file(payloads[:at]), oracle.records_file(payloads[at + 1 :])
    for place in range(8 * len(payloads[at])):
        flipped = bytearray(payloads[at])
        flipped[place // 8] ^= 1 << place % 8
        frame = oracle.frame(bytes(flipped))
        together = Decoder(columns, "example", known=known).decode(exact(before + frame + after), final=True)
        alone = Decoder(columns, "example", known=known).decode(exact(frame), final=True)
        if alone.damage is None:
            assert together.damage is None
            row = together.batch.slice(at, 1).to_pylist()
            assert list(map(oracle.canonical, row[0].values())) == list(
                map(oracle.canonical, alone.batch.to_pylist()[0].values())
            )
        else:
            assert together.damage == alone.damage._replace(record=at, offset=len(before))


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kind", ["int64", "float", "bytes"])
def test_an_empty_chunk_that_the_layout_was_learned_from_is_no_value(
    kind: Kind, depth: int, every: int
) -> None:
    """A packed chunk without a number is a list without a number: null in a scalar column."""
    columns = [Column("id", "int64", 0), Column("x", kind, depth), Column("last", "float", 0)]
    lists: Any = {"int64": int64_list, "float": float_list, "bytes": bytes_list}[kind]
    value = {"int64": b"\x07", "float": bytes(4), "bytes": b"text"}[kind]
    payloads = [
        example_of(
            entry("id", int64_list(packed(n))),
            entry("x", lists(block(1, b"" if n % every == 0 else value))),
            entry("last", float_list(block(1, b"\x11" * 4))),
        )
        for n in range(60)
    ]
    rows, damage = at_once(payloads, columns, None)
    assert damage is None
    for found, column in zip(rows, columns, strict=True):
        assert found == oracle.column_values(map(oracle.parse, payloads), column.name, column.depth)


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("name", ["n", "n" * 21, "n" * 22, "n" * 23, "n" * 53])
def test_the_byte_80_is_not_the_length_of_an_entry(name: str, wanted: bool) -> None:
    """It is the first byte of a longer length, although 128 bytes follow."""
    columns = [Column("id", "int64", 0), *([Column(name, "bytes", 0)] * wanted)]
    first = entry("id", int64_list(packed(5)))
    text = block(1, name.encode())
    usual = [example_of(first, entry(name, bytes_list(block(1, b"x" * n)))) for n in range(40)]
    longest = 128 - len(text) - 6  # the length of the value with which the entry has 128 bytes
    for size in range(longest - 2, longest + 3):
        value = bytes_list(block(1, b"z" * size))
        content = text + block(2, value)
        payload = example_of(first, b"\x0a" + bytes([len(content)]) + content)
        rows, damage = at_once([*usual, payload, *usual], columns, None)
        try:
            oracle.parse(payload)
        except oracle.DecodeError:
            assert len(content) >= 128
            assert damage is not None
            assert (damage.record, damage.reason) == (40, "malformed protobuf message")
        else:
            assert len(content) < 128
            assert damage is None
            assert [len(row) for row in rows] == [81] * len(columns)


def test_an_unknown_field_of_the_layout_that_looks_like_an_entry_is_none() -> None:
    content = block(1, b"x") + block(2, int64_list(packed(7)))
    payloads = [example_of(entry("id", int64_list(packed(n))), block(2, content)) for n in range(60)]
    rows, damage = at_once(payloads, [Column("x", "int64", 0), Column("id", "int64", 0)], None)
    assert damage is None
    assert rows == [[None] * 60, [*range(60)]]


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
