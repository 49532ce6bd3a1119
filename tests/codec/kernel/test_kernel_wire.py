"""The kernel decodes odd and damaged messages as protobuf does.

Modules: codec.
"""

from typing import Any

import oracle
import pytest
from guard import exact
from hypothesis import assume, given
from hypothesis import strategies as st
from judge import seen_by
from oracle import block, bytes_list, entry, example_of, float_list, int64_list, packed
from wire_messages import (
    ACCEPTED,
    ONE,
    REFUSED,
    SEQUENCES,
    UNKNOWN,
)

from dask_tfrecord.codec import Column, Damage, Decoder, Inference, RecordType

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


@pytest.mark.parametrize("payload", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_oddities_of_the_wire_mean_what_protobuf_says(payload: bytes) -> None:
    found, damage = decode(payload)
    assert damage is None
    assert found == judge(payload)


def seen(payload: bytes, record_type: RecordType) -> tuple[oracle.Inferred, Damage | None]:
    """What an inference sees in one message, and the damage."""
    inference = Inference(record_type)
    _, _, damage = inference.feed(exact(oracle.frame(payload)), final=True)
    return seen_by(inference), damage


@pytest.mark.parametrize("payload", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_inference_sees_the_kinds_that_protobuf_keeps(payload: bytes) -> None:
    """The last value of a repeated key and the last kind of a Feature count."""
    assert seen(payload, "example") == (oracle.inferred([oracle.parse(payload)]), None)


@given(st.lists(st.sampled_from(sorted(SEQUENCES)), min_size=1, max_size=4))
def test_inference_sees_what_protobuf_merges(names: list[str]) -> None:
    """Sequence examples one after the other are one message, whose repeated keys replace each other."""
    payload = b"".join(SEQUENCES[name] for name in names)
    expected = oracle.inferred([oracle.parse(payload, "sequence_example")])
    assert seen(payload, "sequence_example") == (expected, None)


@pytest.mark.parametrize("payload", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_an_oddity_between_ordinary_records_disturbs_neither(payload: bytes) -> None:
    """The decoder predicts keys from the record before, and must not reuse the values of that record."""
    number = entry("f", float_list(block(1, bytes(4))))
    plain = example_of(entry("a", ONE), number, entry("s", bytes_list(block(1, b"q"))))
    payloads = [plain, plain, payload, plain, payload, payload, plain]
    decoded = Decoder(COLUMNS, "example").decode(exact(oracle.records_file(payloads)), final=True)
    assert decoded.damage is None
    expected = [oracle.parse(p) for p in payloads]
    for column in COLUMNS:
        values = oracle.canonical(decoded.batch[column.name].to_pylist())
        assert values == oracle.column_values(expected, column.name, 1)


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
    """The runtimes of protobuf disagree: Python drops the entry, C++ keeps it."""
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
def test_another_kind_than_the_columns_is_damage_of_its_own(
    payload: bytes, reason: str, column: int, found: str
) -> None:
    _, damage = decode(payload)
    assert damage is not None
    assert (damage.reason, damage.column, damage.found) == (reason, column, found)


def test_several_values_in_a_scalar_column_are_damage_of_their_own() -> None:
    _, damage = decode(example_of(entry("a", int64_list(packed(1, 2, 3)))), [Column("a", "int64", 0)])
    assert damage is not None
    assert (damage.reason, damage.column, damage.found) == ("not a scalar", 0, "3")


def test_text_that_is_not_utf8_is_damage_of_its_own_in_a_string_column() -> None:
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
    # A long record at the end, so that the shortcuts for the end of the data are not taken.
    longer = example_of(entry("b", int64_list(packed(*range(90)))))
    frames = [oracle.frame(payload) for payload in (unset, number_0, longer)]
    records, _, damage = Inference("example").feed(exact(b"".join(frames)), final=True)
    assert (records, damage and damage.offset) == (1, len(frames[0]))
