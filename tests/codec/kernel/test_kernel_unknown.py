"""Features without a column: whether the kernel reports one, which one, and the column that would read it.

Modules: codec.
"""

import oracle
import pytest
from guard import exact
from oracle import block, bytes_list, entry, example_of, float_list, int64_list, packed
from wire_messages import ACCEPTED, ONE, SEQUENCES, list_entry, sequence

from dask_tfrecord.codec import Column, Damage, Decoder, FeatureKey, RecordType
from dask_tfrecord.errors import SchemaError

CASES: dict[str, tuple[bytes, RecordType]] = {
    **{name: (payload, "example") for name, payload in ACCEPTED.items()},
    **{f"sequence: {name}": (payload, "sequence_example") for name, payload in SEQUENCES.items()},
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
        (int64_list(packed(1)), "pa.int64()"),
        (int64_list(packed(1), packed(2)), "pa.list_(pa.int64())"),
        (int64_list(), "pa.int64()"),
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
