"""What no column reads: messages of other types are refused, and unknown features are reported or skipped.

Modules: codec.
"""

from itertools import product

import oracle
import pytest
from guard import exact
from oracle import block, bytes_list, entry, example_of, float_list, int64_list, packed
from wire_messages import ACCEPTED, ONE, UNKNOWN, list_entry, sequence
from wire_messages import SEQUENCES as ACCEPTED_SEQUENCES

from dask_tfrecord.codec import NOT_AN_EXAMPLE, Column, Damage, Decoder, FeatureKey, Inference, RecordType
from dask_tfrecord.errors import SchemaError

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


# --- features without a column ---

CASES: dict[str, tuple[bytes, RecordType]] = {
    **{name: (payload, "example") for name, payload in ACCEPTED.items()},
    **{f"sequence: {name}": (payload, "sequence_example") for name, payload in ACCEPTED_SEQUENCES.items()},
}


@pytest.mark.parametrize(("payload", "record_type"), CASES.values(), ids=CASES.keys())
def test_a_feature_is_unknown_if_protobuf_sees_it_with_a_kind(
    payload: bytes, record_type: RecordType
) -> None:
    record = oracle.parse(payload, record_type)
    holds = {name for name, feature in record.features.items() if feature.kind is not None}
    holds |= {name for name, steps in record.lists.items() if any(step.kind for step in steps)}
    file = exact(oracle.frame(payload))
    damage = Decoder([], record_type, known=[]).decode(file, final=True).damage
    assert (damage is not None) == bool(holds)
    if damage:
        assert damage.reason == "unknown feature"
        assert damage.unknown is not None
        assert damage.unknown.name in holds
    known = [(name, False) for name in record.features] + [(name, True) for name in record.lists]
    assert Decoder([], record_type, known=known).decode(file, final=True).damage is None


@pytest.mark.parametrize(
    ("feature", "type_"),
    [
        (int64_list(packed(1)), '"int64"'),
        (int64_list(packed(1), packed(2)), "pa.list_(pa.int64())"),
        (int64_list(), '"int64"'),
        (float_list(block(1, bytes(4))), "pa.float32()"),
        (bytes_list(block(1, "é".encode()), block(1, b"")), "pa.list_(pa.string())"),
        (bytes_list(block(1, b"\xff")), "pa.binary()"),
    ],
)
def test_the_error_of_an_unknown_feature_says_what_would_read_it(feature: bytes, type_: str) -> None:
    good = oracle.frame(example_of(entry("a", ONE)))
    columns = [Column("a", "int64", 0)]
    bad = oracle.frame(example_of(entry("a", ONE), entry("new", feature), entry("newer", ONE)))
    decoded = Decoder(columns, "example", known=[("b", False)]).decode(exact(good + bad), final=True)
    assert decoded.batch.to_pydict() == {"a": [1]}
    assert decoded.damage is not None
    error = decoded.damage.error(columns, 10, 1000)
    assert isinstance(error, SchemaError)
    assert str(error) == (
        f"record 11 (byte {1000 + len(good):,}): feature 'new': "
        "the record has this feature, the schema does not; "
        f'pass schema={{"new": {type_}}} to read_tfrecord to read it, '
        'or extra="ignore" to leave out features that have no column'
    )


def test_an_unknown_feature_counts_as_its_last_value_says() -> None:
    """As for columns: the last value of a repeated key counts, and a feature without a kind is absent."""
    for values, is_damage in (([ONE, b""], False), ([b"", ONE], True), ([bytes_list(), ONE], True)):
        payload = example_of(*(entry("new", value) for value in values))
        damage = Decoder([], "example", known=[]).decode(exact(oracle.frame(payload)), final=True).damage
        assert (damage is not None) == is_damage
        assert damage is None or damage.unknown == Column("new", "int64", 0)


def test_an_unknown_feature_is_found_in_every_record_that_holds_it() -> None:
    """Also if the earlier records have more keys than the kernel remembers."""
    names = [f"known{n}" for n in range(5000)]
    usual = example_of(*(entry(name, ONE) for name in names))
    strange = example_of(*(entry(name, ONE) for name in names), entry("new", ONE))
    decoder = Decoder([], "example", known=[(name, False) for name in names])
    for record in [usual, usual, strange, strange, usual, strange]:
        damage = decoder.decode(exact(oracle.frame(record)), final=True).damage
        assert (damage is not None) == (record is strange)


# One name in a record's context, in its feature lists, or in both.
STEPS = list_entry("x", float_list(block(1, bytes(4))))
IN_CONTEXT, IN_LISTS, IN_BOTH = (
    sequence(entry("x", ONE)),
    sequence(b"", STEPS),
    sequence(entry("x", ONE), STEPS),
)
CONTEXT, LISTS = Column("x", "int64", 0), Column("x", "float", 2)


def unknown_in(payloads: list[bytes], columns: list[Column], known: list[FeatureKey]) -> Damage | None:
    """The damage of the last record; the earlier records are whole."""
    decoder = Decoder(columns, "sequence_example", known=known)
    decoded = decoder.decode(exact(oracle.records_file(payloads)), final=True)
    assert decoded.records == len(payloads) - (decoded.damage is not None)
    return decoded.damage


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize(("column", "other"), [(CONTEXT, LISTS), (LISTS, CONTEXT)])
@pytest.mark.parametrize("wanted", [True, False])
def test_a_feature_known_in_one_map_is_unknown_in_the_other(
    column: Column, other: Column, *, wanted: bool, before: int
) -> None:
    columns, known = ([column], []) if wanted else ([], [column.feature])
    good, strange = (IN_CONTEXT, IN_LISTS) if column == CONTEXT else (IN_LISTS, IN_CONTEXT)
    assert unknown_in([good] * 3, columns, known) is None
    for bad in (strange, IN_BOTH):
        damage = unknown_in([good] * before + [bad], columns, known)
        assert damage is not None
        assert (damage.record, damage.reason, damage.unknown) == (before, "unknown feature", other)
        assert unknown_in([bad, good, bad], columns, [*known, other.feature]) is None
        # The error of a column names both places; the error of a feature without a column names a type.
        error = damage.error(columns, 0, 0)
        assert isinstance(error, SchemaError)
        assert error.feature == "x"
        assert 'extra="ignore"' in str(error)
        assert ("the column reads it from" in str(error)) == wanted


def test_both_features_decode_to_their_columns_if_both_are_wanted() -> None:
    decoder = Decoder([CONTEXT, LISTS], "sequence_example", known=[])
    decoded = decoder.decode(exact(oracle.records_file([IN_BOTH, IN_LISTS, IN_CONTEXT])), final=True)
    assert decoded.damage is None
    assert [column.to_pylist() for column in decoded.batch.columns] == [
        [1, None, 1],
        [[[0.0]], [[0.0]], None],
    ]


def test_a_malformed_value_of_an_unknown_feature_is_damage_and_not_a_question_of_schema() -> None:
    payload = example_of(entry("new", int64_list(block(1, b"\x80"))))
    damage = Decoder([], "example", known=[]).decode(exact(oracle.frame(payload)), final=True).damage
    assert damage is not None
    assert damage.reason == "malformed protobuf message"


def test_many_unknown_features_take_time_by_their_number() -> None:
    payload = example_of(*(entry(f"new{n}", ONE) for n in range(50_000)))
    damage = Decoder([], "example", known=[]).decode(exact(oracle.frame(payload)), final=True).damage
    assert damage is not None
    assert damage.unknown == Column("new0", "int64", 0)
