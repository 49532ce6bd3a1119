"""Files of other writers: all values are read, or the error's advice reads them in one step.

Messages of other types parse as Examples with unknown fields; they must raise and give no rows.

Modules: dataset.read.plan, dataset.read.discovery, dataset.read.layouts, codec, files.inference.
"""

import itertools
from pathlib import Path
from typing import Any

import operations
import oracle
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from inferred import file_of, sequence_file, types
from oracle import Feature, Record, block, entry, example_of, int64_list, packed, tag, varint
from other_writers import advised, elwc, events, fill, hide, read

from dask_tfrecord import CorruptRecordError, SchemaError, open_dataset, read_tfrecord
from dask_tfrecord.codec import NOT_AN_EXAMPLE, Column, Decoder, Inference, RecordType
from dask_tfrecord.dataset.read.discovery import open_path
from dask_tfrecord.dataset.snapshot.model import Snapshot

pytestmark = pytest.mark.usefixtures("one_thread")

ONE = oracle.features_file([{"a": ("int64", [1])}])


EMPTY = oracle.frame(b"")


@pytest.fixture
def _blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample no additional files, as in a very large dataset."""
    monkeypatch.setattr("dask_tfrecord.dataset.read.sample._MORE_BYTES", 0)


@pytest.mark.usefixtures("_blind")
@pytest.mark.parametrize(
    ("record_type", "blocksize", "folder"),
    [("infer", "128 MiB", ""), ("example", 20, ""), ("sequence_example", 20, "day=1/")],
)
def test_features_that_no_sampled_record_holds_raise(
    tmp_path: Path, record_type: Any, blocksize: Any, folder: str
) -> None:
    fill(tmp_path, {f"{folder}{n:02d}": EMPTY * 3 for n in range(40)} | {f"{folder}17": EMPTY * 2 + ONE})
    options = {"record_type": record_type, "blocksize": blocksize}
    ddf = read_tfrecord(tmp_path, **options)
    with pytest.raises(SchemaError, match="the record has this feature, the schema does not") as caught:
        ddf.compute()
    assert (caught.value.path, caught.value.record) == (f"{tmp_path}/{folder}17", 2)
    assert [one for one in read(tmp_path, **options, **advised(caught.value))["a"] if one] == [1]
    assert len(read_tfrecord(tmp_path, **options, extra="ignore").compute()) == 120


RANKED: Any = {"relevance": ("int64", [1]), "tokens": ("bytes", [b"some", b"words"])}
LIST, WITH_CONTEXT = elwc([RANKED]), elwc([RANKED] * 3, {"q": ("bytes", [b"x"])})


@pytest.mark.parametrize(
    "payloads", [[LIST] * 4, [WITH_CONTEXT] * 4, oracle.frames(events(9))], ids=["list", "context", "events"]
)
def test_messages_of_another_type_are_read_as_bytes_and_that_is_said(
    tmp_path: Path, payloads: list[bytes]
) -> None:
    fill(tmp_path, dict.fromkeys(["a.tfrecord", "b.tfrecord"], oracle.records_file(payloads)))
    message = r"read as bytes: .*record 0 is a message of another type; pass record_type=\"bytes\""
    with pytest.warns(UserWarning, match=message):
        assert read(tmp_path) == {"record": payloads * 2}
    assert read(tmp_path, record_type="bytes") == {"record": payloads * 2}
    for record_type in ("example", "sequence_example"):
        with pytest.raises(CorruptRecordError, match=r'undamaged record is not .*record_type="bytes"'):
            read(tmp_path, record_type=record_type)
    with pytest.warns(UserWarning, match=message):
        report = open_dataset(tmp_path).verify()
    assert report[["damaged", "drift"]].to_numpy().tolist() == [[0, ""]] * 2
    assert open_dataset(tmp_path, record_type="bytes").verify()["drift"].tolist() == [""] * 2
    assert open_dataset(tmp_path, record_type="example").verify()["damaged"].tolist() == [len(payloads)] * 2


OTHERS = {
    "events": ("events.out.tfevents.17.host", events(9)),
    "ranking": ("ranking.spec", oracle.records_file([WITH_CONTEXT] * 5)),
    "no message": ("notes.rec", oracle.records_file([b"no message"])),
    "text": ("README.tfrecord", b"# Data\n\nSome text.\n"),
    "csv": ("labels.csv.tfrecord", b"a,b\n1,2\n"),
    "json at the end": ("z.tfrecords", b'{"name": "x"}'),
}


@pytest.mark.parametrize(
    ("other", "names", "folder"),
    [
        ("events", "train-{:02d}.tfrecord", ""),
        ("ranking", "part-{:05d}", "logs/"),
        ("no message", "{:02d}", "zzz/deep/"),
        ("text", "x.tfrecord-{:05d}-of-00040", ""),
        ("csv", "{:02d}.gz", "logs/"),
        ("json at the end", "train-{:02d}.tfrecord", "zzz/deep/"),
    ],
)
def test_another_file_beside_examples_is_named_and_can_be_hidden(
    tmp_path: Path, other: str, names: str, folder: str
) -> None:
    name, content = OTHERS[other]
    fill(tmp_path, {names.format(n): ONE for n in range(40)} | {folder + name: content})
    with pytest.raises(CorruptRecordError) as caught:
        read_tfrecord(tmp_path).compute()
    error = caught.value
    assert (error.path, error.record, error.offset) == (f"{tmp_path}/{folder}{name}", 0, 0)
    whole = other in ("events", "ranking", "no message")
    assert error.problem.startswith("the file is a TFRecord file" if whole else "not a TFRecord file")
    assert ('record_type="bytes"' in str(error)) == whole
    report = open_dataset(tmp_path).verify().set_index("path")
    assert report.loc[error.path, "damaged"] > 0
    assert report.drop(error.path)["damaged"].sum() == 0
    with pytest.raises(CorruptRecordError) as indexed:
        open_dataset(tmp_path).add_snapshot()
    hide(indexed.value)
    assert read(tmp_path) == {"a": [1] * 40}
    assert open_dataset(tmp_path).add_snapshot().rows == 40


@pytest.mark.parametrize(
    "content", [block(2, block(1, b"v1")), b"crc\0\0\1", bytes(range(1, 60)), b"\xd0\xcf\x11\xe0" + bytes(50)]
)
def test_a_file_that_looks_like_nothing_known_is_named(tmp_path: Path, content: bytes) -> None:
    fill(tmp_path, {f"train-{n:02d}.tfrecord": ONE for n in range(9)} | {"saved_model.tfr": content})
    with pytest.raises(CorruptRecordError, match="check that it is a TFRecord file") as caught:
        read_tfrecord(tmp_path).compute()
    hide(caught.value)
    assert read(tmp_path) == {"a": [1] * 9}


def taxi(rare: Any, files: int = 12) -> dict[str, bytes]:
    """Like the taxi trips of TFX: one column has a kind in only one record of one file."""
    usual = {"fare": ("float", [oracle.float_bits(1.5)]), "company": (None, []), "miles": ("int64", [1])}
    contents = {f"data_tfrecord-{n:05d}-of-{files:05d}": file_of(*[usual] * 50) for n in range(files)}
    contents[f"data_tfrecord-{files // 2 + 1:05d}-of-{files:05d}"] += file_of({**usual, "company": rare})
    return contents


RARE = [("int64", [7]), ("bytes", [b"text"]), ("bytes", [b"\0\1"]), ("float", [0]), ("int64", [7, 8])]


@pytest.mark.parametrize(("number", "rare"), [*enumerate(RARE)], ids=str)
def test_a_column_that_is_null_in_the_sample_has_the_type_of_its_rare_value(
    tmp_path: Path, number: int, rare: Any
) -> None:
    codec = [None, "gzip"][number % 2]
    fill(tmp_path, {name: oracle.compress(content, codec) for name, content in taxi(rare).items()})
    found = read(tmp_path)["company"]
    assert len(found) == 601
    assert [one for one in found if one is not None] == [rare[1] if len(rare[1]) > 1 else rare[1][0]]
    assert set(open_dataset(tmp_path).verify()["drift"]) == {""}


@pytest.mark.usefixtures("_blind")
@pytest.mark.parametrize("rare", RARE, ids=str)
def test_a_value_in_a_column_that_the_sample_showed_null_raises_with_advice_that_reads_it(
    tmp_path: Path, rare: Any
) -> None:
    fill(tmp_path, taxi(rare))
    with pytest.raises(SchemaError, match=f"record holds {rare[0]}, the column is null because") as caught:
        read_tfrecord(tmp_path).compute()
    assert (caught.value.feature, caught.value.record) == ("company", 50)
    value = rare[1] if len(rare[1]) > 1 else rare[1][0]
    error = caught.value.replaced(remedies=caught.value.remedies[1:])
    assert advised(caught.value) == {"read_options": {"infer": "all"}} != advised(error)
    for options in ({"read_options": {"infer": "all"}}, advised(error)):
        assert [one for one in read(tmp_path, **options)["company"] if one is not None] == [value]


def test_the_search_for_the_type_of_a_null_column_is_bounded(tmp_path: Path, opened: list[str]) -> None:
    fill(tmp_path, {f"{n:04d}": file_of({"null": (None, []), "a": ("int64", [1])}) for n in range(1000)})
    assert types(open_path(tmp_path).schema) == {"a": pa.int64(), "null": pa.null()}
    assert 100 < len(opened) < 300
    opened.clear()
    fill(tmp_path, {f"{n:04d}": ONE for n in range(1000)})
    assert types(open_path(tmp_path).schema) == {"a": pa.int64()}
    assert len(opened) == 5


def test_all_columns_of_a_file_that_differ_are_named_at_once_and_read_in_one_step(tmp_path: Path) -> None:
    names = [f"f{n:02d}" for n in range(14)]
    usual = file_of({name: ("int64", [1]) for name in names})
    strange = file_of(*({name: ("int64", [1, 2])} for name in names), {"new": ("bytes", [b"x"])})
    fill(tmp_path, {f"{n:02d}": usual for n in range(40)} | {"17": usual + strange})
    with pytest.raises(SchemaError) as caught:
        read_tfrecord(tmp_path).compute()
    assert all(name in caught.value.problem or name == caught.value.feature for name in [*names, "new"])
    assert advised(caught.value) == {"read_options": {"infer": "all"}}
    found = read(tmp_path, read_options={"infer": "all"})
    assert all([2 in one for one in found[name] if one].count(True) == 1 for name in names)
    assert b"x" in found["new"]


KINDS = [
    file_of({"a": ("int64", [1]), "good": ("int64", [5])}),
    file_of({"a": ("bytes", [b"1"]), "good": ("int64", [5])}),
]
PLACES = [
    sequence_file(Record({"a": Feature("int64", [1]), "good": Feature("int64", [5])})),
    sequence_file(Record({"good": Feature("int64", [5])}, {"a": [Feature("int64", [1])]})),
]


@pytest.mark.parametrize("pair", [KINDS, PLACES], ids=["kinds", "places"])
@pytest.mark.parametrize("infer", ["sample", "all"])
@pytest.mark.parametrize("name", ["00", "17"], ids=["in the sample", "outside of it"])
def test_a_column_that_nothing_can_read_blocks_no_other(
    tmp_path: Path, infer: Any, pair: list[bytes], name: str
) -> None:
    one, other = pair
    fill(tmp_path, {f"{n:02d}": one for n in range(40)} | {name: other})
    assert read(tmp_path, columns=["good"], read_options={"infer": infer}) == {"good": [5] * 40}
    assert read(tmp_path, schema={"a": None}, read_options={"infer": infer}) == {"good": [5] * 40}
    with pytest.raises(SchemaError) as caught:
        read_tfrecord(tmp_path, read_options={"infer": infer}).compute()
    assert caught.value.feature == "a"
    if pair == KINDS:
        assert ("no type reads values of two kinds" in str(caught.value)) == (
            (infer, name) == ("sample", "17")
        )
        assert advised(caught.value) == {"schema": {"a": None}}
    assert len(read(tmp_path, **{"read_options": {"infer": infer}} | advised(caught.value))["good"]) == 40


def test_a_column_that_nothing_can_read_blocks_no_filter_of_another(tmp_path: Path) -> None:
    fill(tmp_path, dict(zip("ab", KINDS, strict=True)))
    for filters in ([("good", ">", 1)], pc.field("good") > 1):
        assert read(tmp_path, columns=["good"], filters=filters) == {"good": [5, 5]}
    for filters in ([("a", "==", 1)], pc.field("a") == 1):
        with pytest.raises(SchemaError, match="holds int64 here and bytes in") as caught:
            read_tfrecord(tmp_path, columns=["good"], filters=filters)
        assert caught.value.feature == "a"


def test_all_columns_of_two_kinds_are_named_at_once(tmp_path: Path) -> None:
    names = [f"f{n}" for n in range(9)]
    for kind, value in {"int64": 1, "float": 0}.items():
        features = {name: (kind, [value]) for name in names}
        fill(tmp_path, {kind: file_of(features | {"good": ("int64", [1])})})
    for call in (read_tfrecord, operations.add_snapshot):
        with pytest.raises(SchemaError) as caught:
            call(tmp_path)
        assert advised(caught.value) == {"schema": dict.fromkeys(names)}
    assert read(tmp_path, **advised(caught.value)) == {"good": [1, 1]}
    open_dataset(tmp_path, **advised(caught.value)).add_snapshot()
    assert read(tmp_path) == {"good": [1, 1]}


def test_a_key_that_is_a_feature_too_blocks_no_other_column(tmp_path: Path) -> None:
    fill(tmp_path, {"day=1/a": file_of({"day": ("int64", [2]), "good": ("int64", [5])})})
    with pytest.raises(SchemaError, match="day"):
        read_tfrecord(tmp_path)
    assert read(tmp_path, columns=["good"]) == {"good": [5]}
    assert read(tmp_path, schema={"day": None}) == {"good": [5]}


def test_test_files_are_read_with_the_schema_of_the_training_files(tmp_path: Path) -> None:
    train, test = tmp_path / "train", tmp_path / "test"
    fill(train, {"a": file_of({"x": ("int64", [1, 2]), "t": ("bytes", [b"a"])}, {})})
    fill(test, {"a": file_of({"x": ("int64", [1]), "t": ("bytes", [b"\xff"]), "y": ("int64", [1])})})
    assert types(open_path(test).schema)["x"] == pa.int64()
    open_dataset(train, schema={"t": pa.binary()}).add_snapshot()
    snapshot = Snapshot.open(train)
    for schema in (snapshot, snapshot.schema, snapshot.columns):
        assert read(test, schema=schema) == {"x": [[1]], "t": [b"\xff"]}


VALUE = int64_list(packed(1))
EXAMPLE = example_of(entry("a", VALUE), entry("text", oracle.bytes_list(block(1, b"some words"))))


# Events of TensorBoard have a wall_time, which is a double, a step, then file_version or summary.
# tensorflow_serving's ExampleListWithContext { repeated Example examples = 1; Example context = 2; }
MESSAGES = {
    "event with a version": tag(1, 1) + bytes.fromhex("0000c0d2c1e6d841") + block(3, b"brain.Event:2"),
    "event with a summary": tag(1, 1) + bytes(8) + tag(2, 0) + varint(7) + block(5, block(1, b"loss")),
    "a varint": tag(1, 0) + b"\5",
    "a group": tag(1, 3) + tag(1, 4),
    "an unknown message": block(3, b"name") + block(9),
    "ELWC": block(1, EXAMPLE) + block(1, EXAMPLE) + block(2, EXAMPLE),
    "ELWC of one example": block(1, EXAMPLE),
    # The first field looks like the features.
    "a message of numbers": block(1, tag(1, 0) + b"\5"),
    "a message of floats": block(1, tag(1, 5) + bytes(4) + tag(2, 5) + bytes(4)),
    "a message of a string": block(1, block(2, b"hello")),
    "an empty message beside a string": block(1) + block(5, b"hello"),
    "a map of numbers": block(1, block(1, block(1, b"key"), block(2, tag(1, 0) + b"\5"))),
    "a map of floats": block(1, block(1, block(1, b"key"), block(2, tag(2, 5) + bytes(4)))),
}
CONTEXT = {"ELWC of a context": block(2, EXAMPLE)}


WHOLE = {
    "no bytes": b"",
    "empty features": example_of(),
    "unknown fields around features": tag(9, 0) + b"\1" + EXAMPLE + block(8, b"x"),
    "features in two parts": EXAMPLE + example_of(entry("b", VALUE)),
    "a control character in the name of a value": example_of(entry("a\nb", VALUE)),
    "a control character in the name of no kind": example_of(entry("a\nb", b"")),
    "no value and a usual name": example_of(block(1, block(1, b"a"))),
}


@pytest.mark.parametrize("name", MESSAGES | CONTEXT)
@pytest.mark.parametrize("record_type", ["example", "sequence_example"])
def test_a_message_of_another_type_is_damage(name: str, record_type: RecordType) -> None:
    for before, columns, known in itertools.product(
        (0, 1, 3), ([], [Column("a", "int64", 0)]), (None, [("a", False), ("text", False)])
    ):
        file = oracle.records_file([EXAMPLE] * before + [(MESSAGES | CONTEXT)[name]])
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


def test_records_that_hold_none_of_the_columns_are_rows(tmp_path: Path) -> None:
    """A record is an Example if any feature has a kind, or if it has no unknown fields."""
    plain = [EXAMPLE, b"", example_of(), oracle.serialize(Record({"a": Feature("int64", [])}))]
    fill(tmp_path, {"0": oracle.records_file(plain)})
    assert read_tfrecord(tmp_path).compute()["a"].isna().tolist() == [False, True, True, True]
    others = [
        {"other": Feature("int64", [1])},
        {"other": Feature("float", [])},
        {"none": Feature(), "last": Feature("bytes", [b"x"])},
        {"none": Feature()},
    ]
    lists = Record({}, {"empty": [], "steps": [Feature(), Feature("int64", [1])]})
    payloads = [oracle.serialize(Record(one)) for one in others]
    payloads.append(oracle.serialize(lists, "sequence_example"))
    fill(tmp_path, {"1": oracle.records_file(payloads)})
    for columns in (["a"], ["a", "text"]):
        found = read_tfrecord(tmp_path, columns=columns).compute()
        assert found["a"].isna().tolist() == [False, *[True] * 8]
