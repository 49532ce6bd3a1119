"""Messages of other types parse as Examples with unknown fields; they must raise and give no rows.

Modules: codec, files.inference.
"""

from pathlib import Path
from typing import Any

import oracle
import pytest
from oracle import Feature, Record, block, entry, example_of, int64_list, packed, tag, varint

from dask_tfrecord import CorruptRecordError, CorruptRecordWarning, read_tfrecord
from dask_tfrecord.codec import NOT_AN_EXAMPLE, Column, Decoder, FeatureKey, Inference, RecordType

ONE = int64_list(packed(1))
EXAMPLE = example_of(entry("a", ONE), entry("text", oracle.bytes_list(block(1, b"some words"))))

# Events of TensorBoard: wall_time is a double, step an int64, then file_version or summary.
EVENT_VERSION = tag(1, 1) + bytes.fromhex("0000c0d2c1e6d841") + block(3, b"brain.Event:2")
EVENT_SUMMARY = tag(1, 1) + bytes(8) + tag(2, 0) + varint(7) + block(5, block(1, block(1, b"loss")))

# tensorflow_serving's ExampleListWithContext { repeated Example examples = 1; Example context = 2; }
ELWC = block(1, EXAMPLE) + block(1, EXAMPLE) + block(2, EXAMPLE)
ELWC_ONE = block(1, EXAMPLE)
ELWC_CONTEXT = block(2, EXAMPLE)

OTHERS = {
    "event with a version": EVENT_VERSION,
    "event with a summary": EVENT_SUMMARY,
    "a varint": tag(1, 0) + b"\5",
    "a group": tag(1, 3) + tag(1, 4),
    "an unknown message": block(3, b"name") + block(9),
    "ELWC": ELWC,
    "ELWC of one example": ELWC_ONE,
    # The first field looks like the features.
    "a message of numbers": block(1, tag(1, 0) + b"\5"),
    "a message of floats": block(1, tag(1, 5) + bytes(4) + tag(2, 5) + bytes(4)),
    "a message of a string": block(1, block(2, b"hello")),
    "an empty message beside a string": block(1) + block(5, b"hello"),
    "a map of numbers": block(1, block(1, block(1, b"key"), block(2, tag(1, 0) + b"\5"))),
    "a map of floats": block(1, block(1, block(1, b"key"), block(2, tag(2, 5) + bytes(4)))),
}
# A reader that parses all features finds these messages malformed.
MALFORMED = {
    "a map of names": block(1, block(1, block(1, b"key"), block(2, block(1, b"value")))),
    "nodes of a graph": block(1, block(1, b"x"), block(2, b"Placeholder")),
}
SEQUENCES_ONLY = {"ELWC of a context": ELWC_CONTEXT}

WHOLE = {
    "no bytes": b"",
    "empty features": example_of(),
    "unknown fields around features": tag(9, 0) + b"\1" + EXAMPLE + block(8, b"x"),
    "features in two parts": EXAMPLE + example_of(entry("b", ONE)),
    "a control character in the name of a value": example_of(entry("a\nb", ONE)),
    "a control character in the name of no kind": example_of(entry("a\nb", b"")),
    "no value and a usual name": example_of(block(1, block(1, b"a"))),
}


@pytest.mark.parametrize("record_type", ["example", "sequence_example"])
@pytest.mark.parametrize("columns", [[], [Column("a", "int64", 0)]], ids=["no column", "a column"])
@pytest.mark.parametrize("known", [None, [("a", False), ("text", False)]], ids=["any known", "few known"])
@pytest.mark.parametrize("name", [*OTHERS, *SEQUENCES_ONLY])
def test_a_message_of_another_type_is_damage(
    name: str, known: list[FeatureKey] | None, columns: list[Column], record_type: RecordType
) -> None:
    payload = (OTHERS | SEQUENCES_ONLY)[name]
    for before in (0, 1, 3):
        file = oracle.records_file([EXAMPLE] * before + [payload])
        damage = Decoder(columns, record_type, known=known).decode(file, final=True).damage
        records, consumed, seen = Inference(record_type).feed(file, final=True)
        assert damage == seen
        assert damage is not None
        assert (damage.record, damage.reason) == (before, NOT_AN_EXAMPLE)
        assert (records, consumed + damage.size) == (before, len(file))
        assert isinstance(damage.error(columns, 0, 0), CorruptRecordError)


@pytest.mark.parametrize("payload", WHOLE.values(), ids=WHOLE.keys())
def test_unknown_fields_beside_known_ones_are_no_damage(payload: bytes) -> None:
    oracle.parse(payload)
    file = oracle.records_file([EXAMPLE, payload, payload])
    assert Decoder([Column("a", "int64", 0)], "example").decode(file, final=True).damage is None
    assert Inference("example").feed(file, final=True)[2] is None


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "options",
    [{}, {"extra": "ignore"}, {"columns": ["a"]}, {"record_type": "example"}, {"filters": [("a", "==", 1)]}],
    ids=str,
)
def test_files_of_another_message_among_examples_make_no_rows(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    """The sample misses these files: they are few, and neither first nor last."""
    for number in range(40):
        (tmp_path / f"part-{number:02d}.tfrecord").write_bytes(oracle.frame(EXAMPLE))
    events = tmp_path / "part-22-events.out.tfevents.1700000000.host"
    events.write_bytes(oracle.records_file([OTHERS[name]] * 3))
    with pytest.raises(CorruptRecordError, match=r"not an Example: .*; move the file elsewhere") as caught:
        read_tfrecord(tmp_path, **options).compute()
    assert (caught.value.path, caught.value.record) == (str(events), 0)
    assert len(read_tfrecord(f"{tmp_path}/*.tfrecord", **options).compute()) == 40
    with pytest.warns(CorruptRecordWarning, match="skipped 3 damaged"):
        assert len(read_tfrecord(tmp_path, on_corrupt="skip", **options).compute()) == 40


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("options", [{}, {"columns": ["a"]}, {"filters": [("a", "==", 1)]}], ids=str)
def test_messages_that_are_malformed_as_examples_make_no_rows_of_some_columns(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    for number in range(40):
        (tmp_path / f"{number:02d}").write_bytes(oracle.frame(EXAMPLE))
    (tmp_path / "17").write_bytes(oracle.frame(MALFORMED[name]))
    with pytest.raises(CorruptRecordError, match="this undamaged record is not an Example") as caught:
        read_tfrecord(tmp_path, **options).compute()
    assert (caught.value.path, caught.value.record) == (f"{tmp_path}/17", 0)


@pytest.mark.usefixtures("one_thread")
def test_records_that_hold_none_of_the_columns_are_rows(tmp_path: Path) -> None:
    """A record is an Example if any feature has a kind, or if it has no unknown fields."""
    others = [
        {"other": Feature("int64", [1])},
        {"other": Feature("float", [])},
        {"none": Feature(), "last": Feature("bytes", [b"x"])},
        {"none": Feature()},
    ]
    payloads = [EXAMPLE, *(oracle.serialize(Record(one)) for one in others)]
    lists = Record({}, {"empty": [], "steps": [Feature(), Feature("int64", [1])]})
    payloads.append(oracle.serialize(lists, "sequence_example"))
    (tmp_path / "0.tfrecord").write_bytes(oracle.records_file(payloads))
    for columns in (["a"], ["a", "text"]):
        found = read_tfrecord(tmp_path, columns=columns).compute()
        assert found["a"].isna().tolist() == [False, *[True] * 5]


@pytest.mark.usefixtures("one_thread")
def test_examples_without_features_are_rows(tmp_path: Path) -> None:
    payloads = [EXAMPLE, b"", example_of(), oracle.serialize(Record({"a": Feature("int64", [])}))]
    (tmp_path / "0.tfrecord").write_bytes(oracle.records_file(payloads))
    frame = read_tfrecord(tmp_path).compute()
    assert frame["a"].isna().tolist() == [False, True, True, True]
