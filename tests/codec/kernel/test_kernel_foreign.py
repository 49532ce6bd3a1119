"""Whether a record is an Example depends on its bytes alone: not on columns, nor on the records before.

Modules: codec.
"""

from itertools import product

import oracle
import pytest
from guard import exact
from oracle import block, entry, example_of, int64_list, packed
from wire_messages import ONE, UNKNOWN, list_entry, sequence

from dask_tfrecord.codec import NOT_AN_EXAMPLE, Column, Decoder, Inference, RecordType

FIELD = UNKNOWN["varint"]

# Records that protobuf parses and that are Examples, because nothing shows another type, or a kind proves it.
EXAMPLES = {
    "ordinary": example_of(entry("id", ONE), entry("k", ONE)),
    "one column only": example_of(entry("id", ONE)),
    "no value": example_of(block(1, block(1, b"k"))),
    "no value of a new name": example_of(block(1, block(1, b"new"))),
    "no kind": example_of(entry("k", b"")),
    "value, then no value": example_of(entry("k", ONE), block(1, block(1, b"k"))),
    "kind in another feature": example_of(entry("k", FIELD), entry("other", ONE)) + FIELD,
    "kind before another without": example_of(entry("id", ONE), entry("k", FIELD)),
    "kind in the first piece": example_of(entry("k", ONE, b""), FIELD),
    "kind in an earlier value": example_of(entry("k", ONE), entry("k", b""), FIELD),
    "empty list": example_of(entry("k", int64_list()), FIELD),
    "unknown field beside a kind": example_of(entry("k", FIELD + ONE)),
    "control characters in a name": example_of(entry("a\n", b"")),
    "control characters and no value before a kind": example_of(block(1, block(1, b"a\n")), entry("id", ONE)),
    "control characters and no value after a kind": example_of(entry("k", ONE), block(1, block(1, b"b\1"))),
    "empty": b"",
    "no features": example_of(),
}
# Records that protobuf parses, without any feature with a kind, and with a part that no Example has.
OTHERS = {
    "unknown field": example_of(entry("k", b"")) + FIELD,
    "unknown field alone": FIELD,
    "unknown field in Features": example_of(entry("k", b""), FIELD),
    "unknown field in Feature": example_of(entry("k", FIELD)),
    "unknown field and no value": example_of(block(1, block(1, b"k")), FIELD),
    "control characters and no value": example_of(block(1, block(1, b"a\n"))),
    "control characters in the last name": example_of(block(1, block(1, b"k"), block(1, b"\1")), entry("id")),
    "value in two pieces without value": example_of(entry("k", b"", FIELD)),
}
SEQUENCES = {
    "ordinary list": sequence(entry("id", ONE), list_entry("k", ONE)),
    "list without steps": sequence(b"", list_entry("k")),
    "list without kind": sequence(b"", list_entry("k", b"")),
    "kind after an unknown field": sequence(b"", list_entry("k", FIELD, ONE)) + FIELD,
}
OTHER_SEQUENCES = {
    "unknown field beside a list": sequence(b"", list_entry("k")) + FIELD,
    "unknown field in FeatureLists": sequence(b"", list_entry("k"), FIELD),
    "unknown field in a step": sequence(b"", list_entry("k", FIELD)),
    "unknown field in FeatureList": sequence(b"", block(1, block(1, b"k"), block(2, FIELD))),
}
COLUMNS = {"id": Column("id", "int64", 0), "k": Column("k", "int64", 1), "a\n": Column("a\n", "float", 1)}


def cases(record_type: str) -> list[tuple[str, bytes, bool]]:
    """Each record with its name, and True if it is an Example."""
    good, bad = (EXAMPLES, OTHERS)
    if record_type == "sequence_example":
        good, bad = good | SEQUENCES, bad | OTHER_SEQUENCES
    return [
        (name, payload, payloads is good) for payloads in (good, bad) for name, payload in payloads.items()
    ]


def accepted(payloads: list[bytes], reader: Decoder | Inference) -> list[bool]:
    """For each record, True if the reader accepts it. The reader goes on after each refused record."""
    data = exact(oracle.records_file(payloads))
    found: list[bool] = []
    at = 0
    while at < len(data):
        fed = reader.feed(data[at:], final=True)
        found += [True] * fed.records
        at += fed.consumed
        if fed.damage:
            assert fed.damage.reason == NOT_AN_EXAMPLE
            found.append(False)
            at += fed.damage.size
    return found


def readers(record_type: RecordType) -> list[Decoder | Inference]:
    """A reader for each projection, with and without known features, and an inference."""
    columns = dict(COLUMNS)
    if record_type == "sequence_example":
        columns["k"] = Column("k", "int64", 2)
    known = [
        (name, is_list) for name in ("id", "k", "a\n", "new", "other", "b\1") for is_list in (False, True)
    ]
    wanted = [[], ["id"], ["k"], ["a\n"], ["k", "id"], ["id", "k", "a\n"]]
    return [
        Inference(record_type),
        *(
            Decoder([columns[name] for name in names], record_type, known=some)
            for names, some in product(wanted, (None, known))
        ),
    ]


@pytest.mark.parametrize("record_type", ["example", "sequence_example"])
def test_the_oracle_parses_each_record(record_type: str) -> None:
    for name, payload, is_example in cases(record_type):
        record = oracle.parse(payload, record_type)
        steps = [step for steps in record.lists.values() for step in steps]
        has_kind = any(feature.kind for feature in [*record.features.values(), *steps])
        assert is_example or not has_kind, name


@pytest.mark.parametrize("record_type", ["example", "sequence_example"])
def test_every_reader_accepts_the_same_records_in_every_order(record_type: RecordType) -> None:
    """Each record follows each other record, as its neighbour and after some records of one layout."""
    judged = cases(record_type)
    usual = [(EXAMPLES["ordinary"], True), (EXAMPLES["one column only"], True)] * 20
    file = [one for _, *before in judged for _, *after in judged for one in (before, after)]
    file += [one for _, *odd in judged for one in (*usual, odd, odd)]
    payloads, expected = zip(*file, strict=True)
    for number, reader in enumerate(readers(record_type)):
        assert accepted(list(payloads), reader) == list(expected), number


@pytest.mark.parametrize("seen", [b"", EXAMPLES["ordinary"]], ids=["first", "later"])
def test_a_malformed_feature_does_not_hide_the_kind_of_another(seen: bytes) -> None:
    """Features without a column are not parsed, so that a malformed feature is damage only if it is read."""
    malformed = entry("bad", int64_list(b"\x0a\x05\x01"))
    proven = [example_of(malformed, entry("id", ONE)), example_of(entry("id", ONE), malformed)]
    for names in ([], ["id"], ["k"], ["id", "k"]):
        columns = [COLUMNS[name] for name in names]
        assert accepted([seen, *proven], Decoder(columns, "example")) == [True] * 3
        assert accepted([seen, example_of(malformed)], Decoder(columns, "example")) == [True, False]


@pytest.mark.parametrize("is_known", [False, True])
def test_each_piece_of_a_value_is_a_whole_message(is_known: bool) -> None:
    """Two halves of a field are no field, although the bytes of both are one."""
    chunk = packed(1, 2)
    whole = int64_list(chunk)
    for at in range(len(whole) + 1):
        payload = example_of(entry("k", whole[:at], whole[at:]))
        before = [oracle.frame(EXAMPLES["ordinary"])] * is_known
        data = exact(b"".join([*before, oracle.frame(payload)]))
        fed = [reader.feed(data, final=True) for reader in readers("example")]
        try:
            oracle.parse(payload)
        except oracle.DecodeError:
            assert all(one.damage for one in fed), at
        else:
            assert at in (0, len(whole))
            assert not any(one.damage for one in fed), at
