"""The decoder's fast paths at the end of a message, a record, a window or a buffer.

The fast paths predict an entry from the record before. So the tests put the record under test after similar
records, and the buffers end at a page that cannot be read.

Modules: codec.
"""

from collections.abc import Iterator
from typing import Any

import oracle
import pytest
from damaged_files import header
from decoded import BOUNDARY_INTEGERS, decoded_rows
from guard import exact
from oracle import block, bytes_list, entry, example_of, float_list, int64_list, packed, tag, varint

from dask_tfrecord.codec import MAX_RECORD_BYTES, Column, Decoder, Inference, scan


def _shapes() -> Iterator[tuple[str, Column, bytes, Any]]:
    """Yield for each shape of a feature its name, the column that reads it, the Feature, and the value."""
    for number in BOUNDARY_INTEGERS:
        yield f"int {number}", Column("", "int64", 0), int64_list(packed(number)), number
    for n in (0, 1, 2, 11, 16, 40, 70):
        values = list(range(100, 100 + n))
        yield f"{n} ints", Column("", "int64", 1), int64_list(packed(*values)), values
        yield f"{n} bytes", Column("", "bytes", 0), bytes_list(block(1, b"v" * n)), b"v" * n
        yield f"list of {n} bytes", Column("", "string", 1), bytes_list(block(1, b"v" * n)), ["v" * n]
    for n in (0, 1, 2, 3, 4, 10):
        values = [float(i) for i in range(n)]
        feature = float_list(block(1, b"".join(map(_float, values))))
        yield f"{n} floats", Column("", "float", 1), feature, values
    yield "float", Column("", "float", 0), float_list(block(1, _float(1.5))), 1.5


def _float(value: float) -> bytes:
    return int(oracle.float_bits(value)).to_bytes(4, "little")


SHAPES = {name: (column, feature, value) for name, column, feature, value in _shapes()}
shapes = pytest.mark.parametrize(("column", "feature", "value"), SHAPES.values(), ids=SHAPES.keys())


def named(name: str, column: Column, *, wanted: bool = True) -> list[Column]:
    return [column._replace(name=name)] if wanted else []


@pytest.mark.sampled
@shapes
@pytest.mark.parametrize("wanted", [True, False])
def test_an_entry_that_its_message_cuts_off_is_damage_whatever_follows(
    column: Column, feature: bytes, value: Any, *, wanted: bool
) -> None:
    """The next bytes of the buffer would complete the entry."""
    for name in ("x", "a name of thirty letters or so."):
        whole = entry(name, feature)
        columns = named(name, column, wanted=wanted)
        decoder = Decoder(columns, "example")
        for cut in range(1, len(whole)):
            payload = example_of(whole[:-cut])
            for after in ([], [example_of(whole)] * 3):
                file = oracle.records_file([example_of(whole)] * 3 + [payload, *after])
                decoded = decoder.decode(exact(file), final=True)
                assert decoded.damage is not None, cut
                assert (decoded.records, decoded.damage.record) == (3, 3)
                records, _, damage = Inference("example").feed(exact(file), final=True)
                assert (records, damage is None) == (3, False)


@pytest.mark.sampled
@shapes
@pytest.mark.parametrize("wanted", [True, False])
def test_records_that_end_at_the_end_of_memory_or_next_to_it_are_read(
    column: Column, feature: bytes, value: Any, *, wanted: bool
) -> None:
    expected = value if wanted else None
    for length in (1, 2, 12, 13, *range(22, 30), *range(44, 66)):
        columns = named("k" * length, column, wanted=wanted)
        file = oracle.records_file([example_of(entry("k" * length, feature))] * 3)
        one = len(file) // 3
        assert decoded_rows(columns, file) == ([expected] * 3, len(file))
        assert decoded_rows(columns, file[:-1], final=False) == ([expected] * 2, 2 * one)
        assert decoded_rows(columns, file + b"\0", final=False) == ([expected] * 3, len(file))
        assert Inference("example").feed(exact(file), final=True) == (3, len(file), None)


@shapes
def test_what_follows_a_value_does_not_become_part_of_it(column: Column, feature: bytes, value: Any) -> None:
    """The decoder reads whole words, also if a value ends inside a word."""
    for after in (b"\x7f" * 8, b"\xff" * 8, b"\x01" + b"\x80" * 7):
        # An unknown field right after the entry: the bytes begin with its tag and length.
        payload = example_of(entry("x", feature), block(15, after), entry("x2", int64_list(packed(1))))
        last = example_of(entry("x", feature))
        for payloads in ([payload] * 4, [last] * 4, [last, payload, last, payload]):
            assert decoded_rows(named("x", column), oracle.records_file(payloads))[0] == [value] * 4


def test_groups_nest_as_deep_as_protobuf_lets_them() -> None:
    for depth in range(90, 104):
        payload = tag(9, 3) * depth + tag(9, 4) * depth + example_of(entry("x", int64_list(packed(1))))
        try:
            oracle.parse(payload)
        except oracle.DecodeError:
            assert depth > 100
        else:
            assert depth <= 100
        damage = Decoder([], "example").decode(exact(oracle.frame(payload)), final=True).damage
        assert (damage is None) == (depth <= 100), depth


@pytest.mark.parametrize("limit", [0, 1, 30, MAX_RECORD_BYTES, 2**31, 2**64 - 1])
def test_the_largest_record_that_is_allowed_is_read_and_one_byte_more_is_not(limit: int) -> None:
    """A record that is too long is damage before its payload is there. No limit exceeds that of protobuf."""
    for size in (min(limit, MAX_RECORD_BYTES), min(limit, MAX_RECORD_BYTES) + 1):
        is_whole = limit <= 30
        frame = oracle.frame(b"x" * size) if is_whole else header(size)
        reason = "record is longer than max_record_bytes" if size > min(limit, MAX_RECORD_BYTES) else None
        for data in (frame, frame[:12]):
            is_read = is_whole and data is frame and not reason
            for found in (
                Decoder([], "bytes", max_record_bytes=limit).decode(exact(data), final=is_read),
                Inference("bytes", max_record_bytes=limit).feed(exact(data), final=is_read),
                scan(exact(data), final=is_read, max_record_bytes=limit),
            ):
                assert (found.damage and found.damage.reason, found.records) == (reason, int(is_read))


# --- feature lists -------------------------------------------------------------------------------------

STEPS = {
    "none": (),
    "nulls": (b"", b""),
    "mixed": (b"", int64_list(packed(1, 2)), b"", int64_list(), int64_list(packed(3))),
    "one": (int64_list(packed(4)),),
}
BYTE_STEPS = {
    "none": (),
    "nulls": (b"", b""),
    "mixed": (b"", bytes_list(block(1, b"ab"), block(1)), b"", bytes_list(), bytes_list(block(1, b"c"))),
    "one": (bytes_list(block(1, b"d")),),
}


_WRONG_KIND = block(1, block(1, b"x"), block(2, block(1, float_list(block(1, bytes(4))))))


@pytest.mark.parametrize(("kind", "steps"), [("int64", STEPS), ("bytes", BYTE_STEPS)])
@pytest.mark.parametrize("bad", [b"", block(1, b"\x1a\x05"), _WRONG_KIND])
def test_feature_lists_that_are_given_again_or_end_in_damage_leave_nothing_behind(
    kind: Any, steps: dict[str, tuple[bytes, ...]], bad: bytes
) -> None:
    """Only the last value of a key counts, and a damaged record has no values."""
    lists = {
        name: block(1, block(1, b"x"), block(2, *(block(1, step) for step in of)))
        for name, of in steps.items()
    }
    usual = block(2, lists["mixed"])
    for first in lists.values():
        for last in lists.values():
            for payload in (
                block(2, first, last),
                block(2, first) + block(2, last),
                block(2, first, first, last),
            ):
                payloads = [usual, payload, usual, payload]
                file = oracle.records_file(payloads + ([block(2, first, bad)] if bad else []) + [usual])
                decoded = Decoder([Column("x", kind, 2)], "sequence_example").decode(exact(file), final=True)
                assert (decoded.damage is not None) == bool(bad)
                decoded.batch.validate(full=True)
                records = [oracle.parse(p, "sequence_example") for p in payloads + ([] if bad else [usual])]
                found = [oracle.canonical(row) for row in decoded.batch["x"].to_pylist()]
                assert found == oracle.column_values(records, "x", 2)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 65])
@pytest.mark.parametrize("depth", [0, 1])
def test_text_that_is_not_utf8_is_damage_wherever_it_stands(n: int, depth: int) -> None:
    columns = [Column("x", "string", depth)]
    for at in range(n):
        bad = b"a" * at + b"\xff" + b"a" * (n - 1 - at)
        for values in ([b"ok", bad], ["é".encode() * n, b"", bad, b"ok"]):
            payloads = [example_of(entry("x", bytes_list(block(1, value)))) for value in values]
            file = exact(oracle.records_file(payloads))
            decoded = Decoder(columns, "example").decode(file, final=True)
            assert decoded.damage is not None
            assert (decoded.damage.reason, decoded.damage.record) == (
                "invalid UTF-8 value",
                values.index(bad),
            )
            inference = Inference("example")
            inference.feed(file, final=True)
            assert not inference.features()[0].utf8


@pytest.mark.parametrize(("character", "at"), [(c, at) for c in "é€🙂" for at in range(1, len(c.encode()))])
def test_a_character_that_goes_on_in_the_next_value_is_not_text(character: str, at: int) -> None:
    parts = character.encode()[:at], character.encode()[at:]
    halves = [bytes_list(block(1, part)) for part in parts]
    both = bytes_list(*(block(1, part) for part in parts))
    for features, depth in ((halves, 0), (halves, 1), ([both], 1)):
        file = oracle.records_file([example_of(entry("x", feature)) for feature in features])
        damage = Decoder([Column("x", "string", depth)], "example").decode(exact(file), final=True).damage
        assert damage is not None
        assert (damage.reason, damage.record) == ("invalid UTF-8 value", 0)


@pytest.mark.parametrize("length", [1, 5, 21, 22, 40, 60])
@pytest.mark.parametrize(
    ("kind", "feature"), [("int64", int64_list(packed(1))), ("float", float_list(block(1, bytes(4))))]
)
def test_names_that_differ_in_one_bit_are_distinguished(length: int, kind: Any, feature: bytes) -> None:
    usual = b"k" * length
    for at in range(length):
        for bit in range(7):
            other = usual[:at] + bytes([usual[at] ^ 1 << bit]) + usual[at + 1 :]
            columns = [Column(name.decode(), kind, 0) for name in (usual, other)]
            names = [usual, usual, other, usual, other, other]
            file = oracle.records_file([example_of(entry(name, feature)) for name in names])
            decoded = Decoder(columns, "example").decode(exact(file), final=True)
            for name, column in zip((usual, other), decoded.batch.columns, strict=True):
                assert column.is_null().to_pylist() == [one != name for one in names]


def test_a_key_that_ends_with_the_memory_is_compared_up_to_there() -> None:
    """The checksum after the cut key continues the expected name, and the buffer ends with the checksum."""
    for number in range(10_000):
        start = f"{number:_<40}".encode()
        length = len(start) + 4 + 20  # the checksum and 20 letters continue the name
        payload = block(1, block(1, tag(1, 2) + varint(length) + start))
        cut = oracle.records_file([payload])
        if max(cut[-4:]) < 0x80:
            break
    name = (start + cut[-4:]).decode() + 20 * "x"
    whole = example_of(entry(name, int64_list(packed(1))))
    decoded = Decoder([Column(name, "int64", 0)], "example").decode(
        exact(oracle.records_file([whole] * 3) + cut), final=True
    )
    assert decoded.damage is not None
    assert (decoded.records, decoded.damage.record) == (3, 3)
