"""The kernel decodes odd and damaged messages as protobuf does, and a refused one leaves nothing behind.

Modules: codec.
"""

from itertools import product
from typing import Any

import oracle
import pytest
from decoded import BOUNDARY_INTEGERS, decoded_rows
from guard import exact
from hypothesis import assume, given
from hypothesis import strategies as st
from judge import seen_by
from oracle import block, bytes_list, entry, example_of, float_list, int64_list, packed
from wire_messages import ACCEPTED, ONE, REFUSED, SEQUENCES, UNKNOWN, list_entry

from dask_tfrecord.codec import Column, Damage, Decoder, Inference, RecordType

INTEGER = Column("a", "int64", 0)
COLUMNS = [Column("a", "int64", 1), Column("f", "float", 1), Column("s", "bytes", 1)]


def decode(payload: bytes, columns: list[Column] = COLUMNS) -> tuple[dict[str, Any], Damage | None]:
    """Decode one message with the kernel: the values as the oracle represents them, and the damage."""
    decoded = Decoder(columns, "example").decode(exact(oracle.frame(payload)), final=True)
    rows = {name: oracle.canonical(values) for name, values in decoded.batch.to_pydict().items()}
    return {name: values[0] for name, values in rows.items() if values}, decoded.damage


def judge(payload: bytes, columns: list[Column] = COLUMNS) -> dict[str, Any]:
    """Decode one message with protobuf: the values as the oracle represents them."""
    record = oracle.parse(payload)
    return {c.name: oracle.column_values([record], c.name, c.depth)[0] for c in columns}


NUMBER = entry("f", float_list(block(1, bytes(4))))
PLAIN = example_of(entry("a", ONE), NUMBER, entry("s", bytes_list(block(1, b"q"))))


@pytest.mark.parametrize("payload", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_oddities_of_the_wire_mean_what_protobuf_says(payload: bytes) -> None:
    """Also between ordinary records: the decoder predicts keys from them, and must not reuse their values."""
    assert seen(payload, "example") == (oracle.inferred([oracle.parse(payload)]), None)
    for payloads in ([payload], [PLAIN, PLAIN, payload, PLAIN, payload, payload, PLAIN]):
        decoded = Decoder(COLUMNS, "example").decode(exact(oracle.records_file(payloads)), final=True)
        assert decoded.damage is None
        records = [oracle.parse(p) for p in payloads]
        for column in COLUMNS:
            values = oracle.canonical(decoded.batch[column.name].to_pylist())
            assert values == oracle.column_values(records, column.name, 1)


def seen(payload: bytes, record_type: RecordType) -> tuple[oracle.Inferred, Damage | None]:
    """What an inference sees in one message, and the damage."""
    inference = Inference(record_type)
    _, _, damage = inference.feed(exact(oracle.frame(payload)), final=True)
    return seen_by(inference), damage


@given(st.lists(st.sampled_from(sorted(SEQUENCES)), min_size=1, max_size=4))
def test_inference_sees_what_protobuf_merges(names: list[str]) -> None:
    """Sequence examples one after the other are one message, whose repeated keys replace each other."""
    payload = b"".join(SEQUENCES[name] for name in names)
    expected = oracle.inferred([oracle.parse(payload, "sequence_example")])
    assert seen(payload, "sequence_example") == (expected, None)


@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED.keys())
def test_what_protobuf_refuses_is_damage(payload: bytes) -> None:
    with pytest.raises(oracle.DecodeError):
        oracle.parse(payload)
    for before in (0, 3):
        file = exact(oracle.records_file([PLAIN] * before + [payload] + [PLAIN] * 3 * bool(before)))
        decoded = Decoder(COLUMNS, "example").decode(file, final=True)
        assert decoded.damage is not None
        found = decoded.records, decoded.damage.record, decoded.damage.size
        assert found == (before, before, len(oracle.frame(payload)))
        assert decoded.damage.reason
        assert Inference("example").feed(file, final=True).damage is not None


@pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=UNKNOWN.keys())
@pytest.mark.parametrize("key", ["a", "no column's"])
def test_an_unknown_field_in_a_map_entry_is_damage(unknown: bytes, key: str) -> None:
    """The runtimes of protobuf disagree: Python drops the entry, C++ keeps it."""
    payload = example_of(block(1, block(1, key.encode()), unknown, block(2, ONE)))
    assert oracle.drops_map_entries(payload)
    _, damage = decode(payload)
    assert damage is not None
    assert "map entry" in damage.reason


SURROGATE = example_of(entry("s", bytes_list(block(1, b"\xed\xa0\x80"))))


@pytest.mark.parametrize(
    ("payload", "columns", "expected"),
    [
        (example_of(entry("f", ONE)), COLUMNS, ("wrong kind", 1, "int64")),
        (example_of(entry("a", bytes_list(block(1, b"x")))), COLUMNS, ("wrong kind", 0, "bytes")),
        (example_of(entry("s", float_list())), COLUMNS, ("wrong kind", 2, "float")),
        (example_of(entry("a", ONE + bytes_list(block(1, b"x")))), COLUMNS, ("wrong kind", 0, "bytes")),
        (example_of(entry("a", int64_list(packed(1, 2, 3)))), [INTEGER], ("not a scalar", 0, "3")),
        (SURROGATE, [Column("s", "string", 0)], ("invalid UTF-8 value", 0, "")),
    ],
)
def test_a_value_that_its_column_cannot_hold_is_damage_of_its_own(
    payload: bytes, columns: list[Column], expected: tuple[str, int, str]
) -> None:
    _, damage = decode(payload, columns)
    assert damage is not None
    assert (damage.reason, damage.column, damage.found or "") == expected
    assert decode(SURROGATE, [Column("s", "bytes", 0)]) == ({"s": b"\xed\xa0\x80"}, None)


def test_a_signalling_nan_keeps_its_bits() -> None:
    bits = bytes.fromhex("0100a07f")
    file = oracle.frame(example_of(entry("f", float_list(block(1, bits)))))
    decoded = Decoder([Column("f", "float", 0)], "example").decode(file, final=True)
    assert decoded.batch["f"].buffers()[1].to_pybytes()[:4] == bits


mutations = st.lists(
    st.tuples(st.sampled_from("rid"), st.integers(0, 10**6), st.binary(min_size=1, max_size=3)), max_size=4
)


def _mutate(payload: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    for how, where, new in changes:
        at = where % (len(payload) + 1)
        kept = at if how == "i" else at + len(new)
        payload = payload[:at] + (b"" if how == "d" else new) + payload[kept:]
    return payload


@given(st.sampled_from(sorted(ACCEPTED)), st.sampled_from(sorted(ACCEPTED)), mutations)
def test_mutated_messages_mean_what_protobuf_says(one: str, other: str, changes: list[Any]) -> None:
    payload = _mutate(ACCEPTED[one] + ACCEPTED[other], changes)
    found, damage = decode(payload)
    try:
        record = oracle.parse(payload)
    except oracle.DecodeError:
        # The kernel skips features without a column unparsed, so it accepts messages that protobuf refuses.
        assert damage is not None or set(found) == {c.name for c in COLUMNS}
        return
    assume(not oracle.is_disputed(payload))
    assert seen(payload, "example") == (oracle.inferred([record]), None)
    fits = all(record.features.get(c.name, oracle.Feature()).kind in (c.kind, None) for c in COLUMNS)
    assert (damage is None) == fits
    if damage is None:
        assert found == judge(payload)
    else:
        assert damage.reason == "wrong kind"


# --- sequence examples ---------------------------------------------------------------------------------


STEPS = [Column("steps", "int64", 2), Column("id", "int64", 0)]


@pytest.mark.parametrize("payload", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_sequence_examples_mean_what_protobuf_says(payload: bytes) -> None:
    """A cut one never reads as more than protobuf sees."""
    for cut in range(len(payload), 0, -1) if payload == SEQUENCES["all kinds of steps"] else [len(payload)]:
        file = oracle.records_file([payload[:cut]] * 2)
        decoded = Decoder(STEPS, "sequence_example").decode(exact(file), final=True)
        try:
            records = [oracle.parse(payload[:cut], "sequence_example")] * 2
        except oracle.DecodeError:
            assert decoded.damage is not None, cut
            continue
        assert decoded.damage is None, cut
        for column in STEPS:
            expected = oracle.column_values(records, column.name, column.depth)
            assert decoded.batch[column.name].to_pylist() == expected, cut


def test_what_follows_the_key_of_a_feature_without_kind_is_looked_at() -> None:
    unset, number_0 = (example_of(entry("a", feature)) for feature in (b"", b"\x02\x03\x0a\x01\x07"))
    # A long record at the end, so that the shortcuts for the end of the data are not taken.
    longer = example_of(entry("b", int64_list(packed(*range(90)))))
    frames = [oracle.frame(payload) for payload in (unset, number_0, longer)]
    records, _, damage = Inference("example").feed(exact(b"".join(frames)), final=True)
    assert (records, damage and damage.offset) == (1, len(frames[0]))


# --- varints ---


@pytest.mark.parametrize("after", [0, 1, 100])
def test_lists_of_integers_of_all_sizes_in_all_orders(after: int) -> None:
    pairs = [[one, other] for one in BOUNDARY_INTEGERS for other in BOUNDARY_INTEGERS]
    lists = [values for pair in pairs for values in (pair, pair * 2)]
    payloads = [example_of(entry("x", int64_list(packed(*values)))) for values in lists]
    file = oracle.records_file(payloads) + oracle.frame(b"") * after
    rows, _ = decoded_rows([Column("x", "int64", 1)], file)
    assert rows == lists + [None] * after
    for values, payload in zip(lists, payloads, strict=True):
        inference = Inference("example")
        assert inference.feed(exact(oracle.records_file([payload] * 2)), final=True)[2] is None
        assert inference.features()[0].max_values == len(values)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("usual", [1, 2**20, 2**55, 2**62, -1])
def test_a_chunk_of_any_bytes_means_what_protobuf_says(depth: int, usual: int) -> None:
    """Varints that do not end, varints longer than needed, and several varints in the place of one."""
    column = Column("x", "int64", depth)
    before = example_of(entry("x", int64_list(packed(usual))))
    for n in range(1, 13):
        for chunk in (
            *(b"\xff" * (n - 1) + bytes([last]) for last in (0, 1, 2, 0x7F, 0x80, 0xFF)),
            b"\x80" * (n - 1) + b"\0",
            b"\1" + b"\x81" * (n - 1),
            *(b"\xff" * at + b"\1" + b"\xff" * (n - 2 - at) + b"\1" for at in range(n - 1)),
        ):
            payload = example_of(entry("x", int64_list(block(1, chunk))))
            file = oracle.records_file([before] * 2 + [payload] + [before] * 2)
            decoded = Decoder([column], "example").decode(exact(file), final=True)
            records, _, seen = Inference("example").feed(exact(file), final=True)
            assert (seen is None, records) == ((True, 5) if _is_whole(chunk) else (False, 2)), chunk
            if not _is_whole(chunk):
                assert decoded.damage is not None, chunk
                assert (decoded.damage.record, decoded.damage.reason) == (2, "malformed protobuf message")
                continue
            values = oracle.parse(payload).features["x"].values
            if depth or len(values) == 1:
                assert decoded.damage is None, chunk
                assert decoded.batch["x"].to_pylist()[2] == (values if depth else values[0]), chunk
            else:
                assert decoded.damage is not None
                assert (decoded.damage.reason, decoded.damage.found) == ("not a scalar", str(len(values)))


def _is_whole(chunk: bytes) -> bool:
    try:
        oracle.parse(example_of(entry("x", int64_list(block(1, chunk)))))
    except oracle.DecodeError:
        return False
    return True


@pytest.mark.parametrize("length", [1, 10, 40])
@pytest.mark.parametrize("kind", ["int64", "float", "bytes", None])
def test_lengths_of_one_byte_that_would_need_two_are_not_taken_as_one(length: int, kind: Any) -> None:
    """The prediction expects lengths of one byte; a byte of 0x80 and above begins a length of two bytes."""
    name = b"k" * length
    text = block(1, name)
    columns = [Column(name.decode(), kind, 1)] if kind else []
    list_tag = {"int64": 0x1A, "float": 0x12}.get(kind, 0x0A)
    usual = {"int64": int64_list(packed(1, 2)), "float": float_list(block(1, bytes(8)))}.get(
        kind, bytes_list(block(1, b"ab"))
    )
    before = example_of(entry(name, usual))
    refused = 0
    for n in range(60, 250):
        if n % 4 and kind == "float":
            continue
        lengths = [len(text) + 5 + n + 1, 4 + n, 2 + n, n]
        if max(lengths) > 255:
            break
        whole, feature, list_, chunk = (bytes([size]) for size in lengths)
        inside = bytes([list_tag]) + list_ + b"\x0a" + chunk + b"\1" * n
        payload = example_of(b"\x0a" + whole + text + b"\x12" + feature + inside)
        decoded = Decoder(columns, "example").decode(
            exact(oracle.records_file([before] * 3 + [payload])), final=True
        )
        try:
            record = oracle.parse(payload)
        except oracle.DecodeError:
            refused += 1
            assert decoded.damage is not None, n
            continue
        assert decoded.damage is None
        if kind:
            found = oracle.canonical(decoded.batch.columns[0].to_pylist()[3])
            assert found == oracle.column_values([record], name.decode(), 1)[0]
    assert refused


# --- what a refused record leaves behind ---

TEXT = bytes_list(block(1, b"text"))
GOOD = block(
    1, entry("id", int64_list(packed(1))), entry("t", TEXT), entry("f", float_list(block(1, b"1234")))
)
GOOD += block(2, list_entry("steps", int64_list(packed(1))))

# What a record adds to the inference before its damage is found.
ADDED_FEATURES = {
    "nothing": b"",
    "a new feature": entry("new", int64_list(packed(1))),
    "two new features": entry("b", TEXT) + entry("a", TEXT),
    "a new feature without a kind": entry("new", b""),
    "another kind": entry("id", TEXT),
    "more values": entry("id", int64_list(packed(1, 2))),
    "more values of one float": entry("f", float_list(block(1, b"12345678"))),
    "the other values first": entry("f", float_list(block(1, b"4321")))
    + entry("id", int64_list(packed(1, 2))),
    "bytes that are not text": entry("t", bytes_list(block(1, b"\0"))),
    "bytes that are not UTF-8": entry("t", bytes_list(block(1, b"\xff"))),
    "several changes of one feature": entry("t", int64_list(packed(1, 2)), bytes_list(block(1, b"\xff"))),
}
ADDED_LISTS = {
    "a new feature list": list_entry("new", int64_list(packed(1))),
    "a feature list without steps": list_entry("new"),
    "another kind of a step": list_entry("steps", TEXT),
    "a longer step": list_entry("steps", int64_list(packed(1, 2))),
}
ADDED = {name: block(1, entries) for name, entries in ADDED_FEATURES.items()} | {
    name: block(2, entries) for name, entries in ADDED_LISTS.items()
}
REFUSED_PARTS = {
    "malformed record": b"\xff",
    "malformed map": block(1, b"\xff"),
    "malformed feature": block(1, entry("id", b"\xff")),
    "malformed list": block(1, entry("id", int64_list(b"\xff"))),
    "malformed step": block(2, list_entry("steps", int64_list(packed(1, 2)), b"\xff")),
    "name that is not UTF-8": block(1, entry(b"\xff", TEXT)),
    "field beside key and value": block(1, block(1, block(1, b"k"), UNKNOWN["varint"])),
}
# A message of another type has no feature with a kind.
OTHER_TYPE = [
    block(1, entry("new", b"")) + UNKNOWN["varint"],
    block(1, entry("id", b""), entry("new", UNKNOWN["varint"])),
    block(2, list_entry("new", b"")) + UNKNOWN["varint"],
    block(1, entry("new", b""), block(1, block(1, b"a\n"))),
]
REFUSED_RECORDS = [
    added + refused for added, refused in product(ADDED.values(), REFUSED_PARTS.values())
] + OTHER_TYPE
AFTER = block(1, *ADDED_FEATURES.values())


@pytest.mark.parametrize("before", [[], [GOOD], [GOOD] * 3], ids=["first", "second", "later"])
def test_a_refused_record_leaves_the_inference_as_it_was(before: list[bytes]) -> None:
    for refused in REFUSED_RECORDS:
        intact = Inference("sequence_example")
        fed, checked = Inference("sequence_example"), Inference("sequence_example")
        for payload in before:
            for one in (intact, fed):
                assert one.feed(exact(oracle.frame(payload)), final=True).damage is None
        damage = fed.feed(exact(oracle.frame(refused)), final=True).damage
        assert damage is not None, refused
        assert fed.features() == intact.features(), refused

        # Later records are also understood as if the refused record had not been there.
        for one in (intact, fed):
            assert one.feed(exact(oracle.records_file([AFTER, GOOD])), final=True).damage is None
        found = checked.check(exact(oracle.records_file([*before, refused, AFTER, GOOD])), final=True)
        assert found.records == len(before) + 2
        assert fed.features() == checked.features() == intact.features(), refused
