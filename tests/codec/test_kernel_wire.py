"""The kernel against single bytes: odd and damaged wire data, windows, checksums; protobuf is the judge."""

from typing import Any

import oracle
import pytest
from guard import exact
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import block, bytes_list, entry, example_of, float_list, int64_list, packed, tag, varint

from dask_tfrecord.codec import Column, Damage, Decoder, Inference

COLUMNS = [Column("a", "int64", 1), Column("f", "float", 1), Column("s", "bytes", 1)]
ONE = int64_list(packed(1))
UNKNOWN = {
    "varint": tag(9, 0) + varint(300),
    "fixed64": tag(9, 1) + bytes(8),
    "length": block(9, b"\x0a\xff\xff"),
    "fixed32": tag(9, 5) + bytes(4),
    "group": tag(9, 3) + tag(1, 0) + b"\1" + tag(2, 3) + block(7, b"x") + tag(2, 4) + tag(9, 4),
    "empty group": tag(9, 3) + tag(9, 4),
    "large number": tag(2**29 - 1, 0) + b"\1",
}


def decode(payload: bytes, columns: list[Column] = COLUMNS) -> tuple[dict[str, Any], Damage | None]:
    """What the kernel makes of one message, as ``{column: values}`` in the oracle's terms."""
    decoded = Decoder(columns, "example").decode(exact(oracle.frame(payload)), final=True)
    rows = {name: oracle.canonical(values) for name, values in decoded.batch.to_pydict().items()}
    return {name: values[0] for name, values in rows.items() if values}, decoded.damage


def judge(payload: bytes, columns: list[Column] = COLUMNS) -> dict[str, Any]:
    """What protobuf makes of it."""
    record = oracle.parse(payload)
    return {c.name: oracle.column_values([record], c.name, c.depth)[0] for c in columns}


def ints(*parts: bytes) -> bytes:
    """An Example whose one feature is the Int64List "a"."""
    return example_of(entry("a", int64_list(*parts)))


def floats(*parts: bytes) -> bytes:
    """An Example whose one feature is the FloatList "f"."""
    return example_of(entry("f", float_list(*parts)))


def texts(*parts: bytes) -> bytes:
    """An Example whose one feature is the BytesList "s"."""
    return example_of(entry("s", bytes_list(*parts)))


ACCEPTED = {
    "features in any order": example_of(entry("s", bytes_list(block(1, b"x"))), entry("f"), entry("a", ONE)),
    "duplicate key, last wins": example_of(entry("a", ONE), entry("a", int64_list(packed(2, 3)))),
    "duplicate key, last without kind": example_of(entry("a", ONE), entry("a", b"")),
    "duplicate key, last of the wanted kind": example_of(
        entry("a", bytes_list(block(1, b"x"))), entry("a", int64_list(packed(2)))
    ),
    "kind unset": example_of(entry("a", b""), entry("f", b"")),
    "no value in the entry": example_of(block(1, block(1, b"a"))),
    "no key in the entry": example_of(block(1, block(2, ONE))),
    "empty entry": example_of(block(1)),
    "empty key": example_of(entry("", ONE)),
    "value before key": example_of(block(1, block(2, ONE), block(1, b"a"))),
    "value, key, value": example_of(block(1, block(2, ONE), block(1, b"a"), block(2, int64_list(packed(2))))),
    "key twice, last wins": example_of(block(1, block(1, b"f"), block(1, b"a"), block(2, ONE))),
    "value twice merges": example_of(entry("a", ONE, int64_list(packed(2)))),
    "value twice, other kind wins": example_of(entry("a", float_list(block(1, bytes(4))), ONE)),
    "value twice, second empty": example_of(entry("a", ONE, b"")),
    "kind twice merges": example_of(entry("a", ONE + int64_list(packed(2, 3)))),
    "kind back and forth": example_of(entry("a", ONE + bytes_list() + int64_list(packed(5)))),
    "oneof, last wins": example_of(entry("a", bytes_list(block(1, b"x")) + ONE)),
    "oneof, empty last wins": example_of(entry("a", bytes_list(block(1, b"x")) + int64_list())),
    "features twice merge": example_of(entry("a", ONE)) + floats(block(1, bytes(4))),
    "features twice, same key": example_of(entry("a", ONE)) + ints(packed(9)),
    "no features": b"",
    "empty features": example_of(),
    "int64 packed": ints(packed(1, 2**63 - 1, -1, -(2**63))),
    "int64 unpacked": ints(tag(1, 0), varint(1), tag(1, 0), varint(-7)),
    "int64 mixed": ints(tag(1, 0), b"\1", packed(2, 3), tag(1, 0), b"\4", packed(5)),
    "int64 two chunks": ints(packed(1, 2), packed(3)),
    "int64 empty chunk": ints(packed(), packed(), packed(3), packed()),
    "int64 empty list": ints(),
    "int64 as fixed32 is unknown": ints(tag(1, 5), bytes(4), packed(2)),
    "int64 as fixed64 is unknown": ints(tag(1, 1), bytes(8)),
    "float packed": floats(block(1, bytes.fromhex("0000803f000000c0"))),
    "float unpacked": floats(tag(1, 5), bytes.fromhex("0000c07f"), tag(1, 5), bytes(4)),
    "float mixed": floats(tag(1, 5), bytes(4), block(1, bytes.fromhex("0000803f"))),
    "float two chunks": floats(block(1, bytes(8)), block(1, bytes(4))),
    "float as varint is unknown": floats(tag(1, 0), b"\5"),
    "float as double is unknown": floats(tag(1, 1), bytes(8), block(1, bytes(4))),
    "bytes": texts(block(1, b""), block(1, b"\0\xff"), block(1, b"z" * 300)),
    "bytes as varint is unknown": texts(tag(1, 0), b"\5", block(1, b"x")),
    "varint longer than needed": ints(block(1, b"\x81\x00\xff\x80\x80\x00")),
    "varint of ten bytes, high bits lost": ints(block(1, b"\xff" * 9 + b"\x7f")),
    "varint of ten bytes unpacked": ints(tag(1, 0), b"\x80" * 9 + b"\x02"),
    "tag longer than needed": b"\x8a\x00" + varint(len(entry("a", ONE))) + entry("a", ONE),
    "tag of five bytes": b"\x8a\x80\x80\x80\x00" + varint(len(entry("a", ONE))) + entry("a", ONE),
    "length longer than needed": b"\x0a" + bytes([len(entry("a", ONE)) | 0x80, 0x80, 0]) + entry("a", ONE),
    "features as varint is unknown": tag(1, 0) + b"\1" + example_of(entry("a", ONE)),
    "entry as varint is unknown": block(1, tag(1, 0), b"\1", entry("a", ONE)),
    "kind as varint is unknown": example_of(entry("a", tag(3, 0) + b"\1" + ONE)),
    "groups 99 deep": tag(9, 3) * 99 + tag(9, 4) * 99 + example_of(entry("a", ONE)),
    **{f"unknown {k} before features": u + example_of(entry("a", ONE)) for k, u in UNKNOWN.items()},
    **{f"unknown {k} after features": example_of(entry("a", ONE)) + u for k, u in UNKNOWN.items()},
    **{f"unknown {k} in Features": example_of(u, entry("a", ONE), u) for k, u in UNKNOWN.items()},
    **{f"unknown {k} before the kind": example_of(entry("a", u + ONE)) for k, u in UNKNOWN.items()},
    **{f"unknown {k} after the kind": example_of(entry("a", ONE + u)) for k, u in UNKNOWN.items()},
    **{f"unknown {k} in Int64List": ints(u, packed(1), u) for k, u in UNKNOWN.items()},
    **{f"unknown {k} in FloatList": floats(u, block(1, bytes(4)), u) for k, u in UNKNOWN.items()},
    **{f"unknown {k} in BytesList": texts(u, block(1, b"x"), u) for k, u in UNKNOWN.items()},
}


@pytest.mark.parametrize("payload", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_oddities_of_the_wire_mean_what_protobuf_says(payload: bytes) -> None:
    found, damage = decode(payload)
    assert damage is None
    assert found == judge(payload)


@pytest.mark.parametrize("payload", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_an_oddity_between_ordinary_records_disturbs_neither(payload: bytes) -> None:
    """The decoder predicts keys from the record before; what it learnt must not leak into the next."""
    number = entry("f", float_list(block(1, bytes(4))))
    plain = example_of(entry("a", ONE), number, entry("s", bytes_list(block(1, b"q"))))
    payloads = [plain, plain, payload, plain, payload, payload, plain]
    decoded = Decoder(COLUMNS, "example").decode(exact(oracle.records_file(payloads)), final=True)
    assert decoded.damage is None
    expected = [oracle.parse(p) for p in payloads]
    for column in COLUMNS:
        values = oracle.canonical(decoded.batch[column.name].to_pylist())
        assert values == oracle.column_values(expected, column.name, 1)


REFUSED = {
    "11-byte varint": ints(block(1, b"\x80" * 10 + b"\x01")),
    "11-byte varint unpacked": ints(tag(1, 0), b"\x80" * 10 + b"\x01"),
    "varint without end": ints(block(1, b"\x01\x80")),
    "unpacked varint without end": ints(tag(1, 0), b"\x80"),
    "float chunk of 3 bytes": floats(block(1, bytes(3))),
    "float cut": floats(tag(1, 5), bytes(3)),
    "Example cut": example_of(entry("a", ONE))[:-1],
    "Features longer than Example": b"\x0a\x7f" + entry("a", ONE),
    "entry longer than Features": block(1, b"\x0a\x20" + block(1, b"a")),
    "key longer than entry": example_of(block(1, b"\x0a\x09a")),
    "Feature longer than entry": example_of(block(1, block(1, b"a"), b"\x12\x30" + ONE)),
    "list longer than Feature": example_of(entry("a", b"\x1a\x09" + packed(1))),
    "chunk longer than list": ints(b"\x0a\x05\x01"),
    "bytes longer than list": texts(b"\x0a\x05x"),
    "length 2^31": b"\x0a" + varint(2**31),
    "length 2^63": b"\x0a" + varint(2**63),
    "length 2^64 - 1": b"\x0a" + varint(2**64 - 1),
    "length of 11 bytes": b"\x0a" + b"\x80" * 10 + b"\x01",
    "tag of 6 bytes": b"\x8a\x80\x80\x80\x80\x00\x00",
    "field number 0": b"\x02\x00" + example_of(entry("a", ONE)),
    "field number 0 in Feature": example_of(entry("a", b"\x02\x00" + ONE)),
    "wire type 6": b"\x0e",
    "wire type 7": b"\x0f",
    "trailing zero byte": example_of(entry("a", ONE)) + b"\0",
    "trailing ff byte": example_of(entry("a", ONE)) + b"\xff",
    "end group without start": tag(9, 4),
    "group without end": tag(9, 3) + example_of(entry("a", ONE)),
    "group ended by another number": tag(9, 3) + tag(8, 4),
    "groups 101 deep": tag(9, 3) * 101 + tag(9, 4) * 101,
    "groups 100,000 deep": tag(9, 3) * 100_000 + tag(9, 4) * 100_000,
    "unknown field cut": example_of(entry("a", ONE)) + tag(9, 1) + bytes(7),
    "key that is not UTF-8": example_of(entry(b"\xff\xfe", ONE)),
    "key with a surrogate": example_of(entry(b"\xed\xa0\x80", ONE)),
    "key with an overlong slash": example_of(entry(b"\xc0\xaf", ONE)),
    "key beyond U+10FFFF": example_of(entry(b"\xf4\x90\x80\x80", ONE)),
    "key cut inside a character": example_of(entry("é".encode()[:1], ONE)),
}


@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED.keys())
def test_what_protobuf_refuses_is_damage(payload: bytes) -> None:
    with pytest.raises(oracle.DecodeError):
        oracle.parse(payload)
    found, damage = decode(payload)
    assert found == {}
    assert damage is not None
    assert (damage.record, damage.size) == (0, len(oracle.frame(payload)))
    assert damage.reason


@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED.keys())
def test_what_protobuf_refuses_stops_inference_too(payload: bytes) -> None:
    _, _, damage = Inference("example").feed(exact(oracle.frame(payload)), final=True)
    assert damage is not None


@pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=UNKNOWN.keys())
@pytest.mark.parametrize("key", ["a", "no column's"])
def test_an_unknown_field_in_a_map_entry_is_damage(unknown: bytes, key: str) -> None:
    """Protobuf's runtimes disagree about it: Python drops the entry, C++ keeps it."""
    payload = example_of(block(1, block(1, key.encode()), unknown, block(2, ONE)))
    assert oracle.drops_map_entries(payload)
    _, damage = decode(payload)
    assert damage is not None
    assert "map entry" in damage.reason


@pytest.mark.parametrize(
    ("payload", "reason", "column", "found"),
    [
        (example_of(entry("f", ONE)), "wrong kind", 1, "int64"),
        (example_of(entry("a", bytes_list(block(1, b"x")))), "wrong kind", 0, "bytes"),
        (example_of(entry("s", float_list())), "wrong kind", 2, "float"),
        (example_of(entry("a", ONE + bytes_list(block(1, b"x")))), "wrong kind", 0, "bytes"),
    ],
)
def test_another_kind_than_the_columns_is_told_apart(
    payload: bytes, reason: str, column: int, found: str
) -> None:
    _, damage = decode(payload)
    assert damage is not None
    assert (damage.reason, damage.column, damage.found) == (reason, column, found)


def test_several_values_in_a_scalar_column_are_told_apart() -> None:
    _, damage = decode(example_of(entry("a", int64_list(packed(1, 2, 3)))), [Column("a", "int64", 0)])
    assert damage is not None
    assert (damage.reason, damage.column, damage.found) == ("not a scalar", 0, "3")


def test_text_that_is_not_utf8_is_told_apart_in_a_string_column() -> None:
    payload = example_of(entry("s", bytes_list(block(1, b"\xed\xa0\x80"))))
    _, damage = decode(payload, [Column("s", "string", 0)])
    assert damage is not None
    assert (damage.reason, damage.column) == ("invalid UTF-8 value", 0)
    assert decode(payload, [Column("s", "bytes", 0)]) == ({"s": b"\xed\xa0\x80"}, None)


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
        # Features that no column wants are skipped unparsed, so not every refusal of protobuf is seen.
        assert damage is not None or set(found) == {c.name for c in COLUMNS}
        return
    assume(not oracle.is_disputed(payload))
    fits = all(record.features.get(c.name, oracle.Feature()).kind in (c.kind, None) for c in COLUMNS)
    assert (damage is None) == fits
    if damage is None:
        assert found == judge(payload)
    else:
        assert damage.reason == "wrong kind"


# --- sequence examples ---------------------------------------------------------------------------------

STEPS = [int64_list(packed(1, 2)), int64_list(), b"", int64_list(tag(1, 0), b"\3", packed(4))]


def sequence(context: bytes, *lists: bytes) -> bytes:
    return block(1, context) + block(2, *lists)


def list_entry(key: str, *steps: bytes) -> bytes:
    return block(1, block(1, key.encode()), block(2, *(block(1, step) for step in steps)))


SEQUENCES = {
    "all kinds of steps": sequence(entry("id", ONE), list_entry("steps", *STEPS)),
    "no steps": sequence(entry("id", ONE), list_entry("steps")),
    "no list": sequence(entry("id", ONE)),
    "nothing": b"",
    "lists before context": block(2, list_entry("steps", ONE)) + block(1, entry("id", ONE)),
    "lists twice merge": block(2, list_entry("other", ONE)) + block(2, list_entry("steps", ONE)),
    "list given twice, last wins": sequence(b"", list_entry("steps", ONE), list_entry("steps", ONE, ONE)),
    "list value twice merges": block(
        2, block(1, block(1, b"steps"), block(2, block(1, ONE)), block(2, block(1, ONE)))
    ),
    "value before key": block(2, block(1, block(2, block(1, ONE)), block(1, b"steps"))),
    "unknown fields everywhere": b"".join(UNKNOWN.values())
    + block(2, *UNKNOWN.values(), list_entry("steps", *(u + ONE for u in UNKNOWN.values()))),
    "step with the kind twice": block(2, list_entry("steps", ONE + int64_list(packed(7)))),
    "same name in context": sequence(entry("steps", ONE), list_entry("steps", ONE)),
}


@pytest.mark.parametrize("payload", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_sequence_examples_mean_what_protobuf_says(payload: bytes) -> None:
    columns = [Column("steps", "int64", 2), Column("id", "int64", 0)]
    file = oracle.records_file([payload, payload])
    decoded = Decoder(columns, "sequence_example").decode(exact(file), final=True)
    assert decoded.damage is None
    records = [oracle.parse(payload, "sequence_example")] * 2
    for column in columns:
        expected = oracle.column_values(records, column.name, column.depth)
        assert decoded.batch[column.name].to_pylist() == expected


@pytest.mark.parametrize("cut", range(1, len(SEQUENCES["all kinds of steps"])))
def test_a_cut_sequence_example_never_reads_as_more_than_protobuf_sees(cut: int) -> None:
    payload = SEQUENCES["all kinds of steps"][:cut]
    columns = [Column("steps", "int64", 2), Column("id", "int64", 0)]
    decoded = Decoder(columns, "sequence_example").decode(exact(oracle.frame(payload)), final=True)
    try:
        record = oracle.parse(payload, "sequence_example")
    except oracle.DecodeError:
        assert decoded.damage is not None
    else:
        assert decoded.damage is None
        assert decoded.batch["id"].to_pylist() == oracle.column_values([record], "id", 0)
        assert decoded.batch["steps"].to_pylist() == oracle.column_values([record], "steps", 2)


def test_what_follows_the_key_of_a_feature_without_kind_is_looked_at() -> None:
    unset, number_0 = (example_of(entry("a", feature)) for feature in (b"", b"\x02\x03\x0a\x01\x07"))
    longer = example_of(entry("b", int64_list(packed(*range(90)))))  # so that no shortcut ends with the data
    frames = [oracle.frame(payload) for payload in (unset, number_0, longer)]
    records, _, damage = Inference("example").feed(exact(b"".join(frames)), final=True)
    assert (records, damage and damage.offset) == (1, len(frames[0]))
