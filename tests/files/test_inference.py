"""The schema of files that carry none: what is concluded from what protobuf wrote."""

import pickle
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import hypothesis.strategies as st
import oracle
import pyarrow as pa
import pytest
from hypothesis import given
from oracle import Feature, Record

from dask_tfrecord import index, read_tfrecord
from dask_tfrecord.codec import Column, Encoder
from dask_tfrecord.dataset.discovery import ReadRequest, one_by_one, open_dataset
from dask_tfrecord.dataset.sampling import sample_all, take_sample
from dask_tfrecord.errors import CorruptRecordError, CorruptRecordWarning, SchemaError, TFRecordError
from dask_tfrecord.files.inference import AskedType, RecordPosition, Sample
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.storage.listing import list_files
from dask_tfrecord.schema.model import Schema


def infer(tmp_path: Path, *files: bytes, **options: Any) -> Schema:
    """What is inferred from files of this content."""
    for number, content in enumerate(files):
        (tmp_path / f"{number}.tfrecord").write_bytes(content)
    return open_dataset(tmp_path, ReadRequest(**options)).schema


def types(schema: Schema) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in schema.fields}


def file_of(*records: dict[str, tuple[str | None, list[Any]]]) -> bytes:
    return oracle.features_file(records)


def sequence_file(*records: Record) -> bytes:
    return oracle.records_file([oracle.serialize(record, "sequence_example") for record in records])


@pytest.mark.parametrize(
    ("kind", "values", "type_"),
    [
        ("int64", [[1], [2]], pa.int64()),
        ("float", [[oracle.float_bits(0.5)]], pa.float32()),
        ("bytes", [["ż".encode()], [b""]], pa.string()),
        ("bytes", [[b"text"], [b"\xff"]], pa.binary()),
        ("int64", [[1], []], pa.int64()),
        ("int64", [[], []], pa.int64()),
        ("bytes", [[], []], pa.binary()),
        ("int64", [[1], [1, 2]], pa.list_(pa.int64())),
        ("int64", [[1, 2], []], pa.list_(pa.int64())),
        ("bytes", [[b"a", b"b"]], pa.list_(pa.string())),
        ("bytes", [[b"a", b"\xff"]], pa.list_(pa.binary())),
    ],
)
def test_a_features_type(
    tmp_path: Path, kind: str | None, values: Sequence[list[Any]], type_: pa.DataType
) -> None:
    schema = infer(tmp_path, file_of(*({"a": (kind, value)} for value in values)))
    assert types(schema) == {"a": type_}
    assert schema.record_type == "example"


@pytest.mark.parametrize("at", [0, 1, 7, 8, 15, 16, 40])
@pytest.mark.parametrize("sign", range(129))
def test_values_with_control_characters_are_binary(tmp_path: Path, sign: int, at: int) -> None:
    """Such as packed numbers, which are often valid UTF-8."""
    text = ("a" * at + chr(sign) + "é" * (at % 3)).encode()
    type_ = pa.string() if oracle.is_text(text) else pa.binary()
    assert types(infer(tmp_path, file_of({"a": ("bytes", [b"x" * 9, text])}))) == {"a": pa.list_(type_)}


@pytest.mark.parametrize("values", [[1, 2, 3], [7], [0.0, 1.0], [2.5]])
def test_packed_numbers_are_binary(tmp_path: Path, values: list[Any]) -> None:
    packed = struct.pack(f"<{len(values)}{'q' if isinstance(values[0], int) else 'f'}", *values)
    assert types(infer(tmp_path, file_of({"a": ("bytes", [packed])}))) == {"a": pa.binary()}


def test_a_string_column_holds_control_characters_where_the_sample_did_not(tmp_path: Path) -> None:
    files = [file_of({"a": ("bytes", [b"text"])})] * 40
    files[23] = file_of({"a": ("bytes", [b"\x01\x02"])})
    assert types(infer(tmp_path, *files)) == {"a": pa.string()}
    assert set(read_tfrecord(tmp_path)["a"].compute(scheduler="sync")) == {"text", "\x01\x02"}
    assert types(infer(tmp_path, *files, infer="all")) == {"a": pa.binary()}


def test_a_feature_may_come_late_or_in_some_records_only(tmp_path: Path) -> None:
    schema = infer(
        tmp_path,
        file_of({"a": ("int64", [1])}, {}, {"b": (None, [])}),
        file_of({"b": ("int64", [1]), "c": ("float", [0])}),
    )
    assert types(schema) == {"a": pa.int64(), "b": pa.int64(), "c": pa.float32()}


def test_columns_come_in_the_order_first_seen(tmp_path: Path) -> None:
    records = [{"z": ("int64", [1])}, {"b": ("int64", [1])}, {"a": ("int64", [1])}]
    assert infer(tmp_path, file_of(*records)).names == ["z", "b", "a"]


def test_a_sequence_example(tmp_path: Path) -> None:
    record = Record(
        {"id": Feature("int64", [1]), "tags": Feature("bytes", [b"a", b"b"])},
        {
            "steps": [Feature("float", [0, 0]), Feature("float", [])],
            "single": [Feature("int64", [1])],
            "none": [],
            "kindless": [Feature()],
        },
    )
    schema = infer(tmp_path, sequence_file(Record(), record))
    assert schema.record_type == "sequence_example"
    nothing = pa.list_(pa.list_(pa.binary()))
    assert types(schema) == {
        "id": pa.int64(),
        "tags": pa.list_(pa.string()),
        "steps": pa.list_(pa.list_(pa.float32())),
        "single": pa.list_(pa.list_(pa.int64())),
        "none": nothing,
        "kindless": nothing,
    }


def test_a_context_alone_is_an_example_unless_asked_otherwise(tmp_path: Path) -> None:
    content = sequence_file(Record({"id": Feature("int64", [1])}))
    assert infer(tmp_path, content).record_type == "example"
    assert infer(tmp_path, content, record_type="sequence_example").record_type == "sequence_example"


@pytest.mark.parametrize("whole", [True, False])
def test_a_list_of_lists_that_is_given_makes_sequence_examples(tmp_path: Path, whole: bool) -> None:
    """The sample need not hold any."""
    content = sequence_file(Record({"id": Feature("int64", [1])}))
    steps = {"id": pa.int64(), "steps": pa.list_(pa.list_(pa.int64()))}
    schema = infer(tmp_path, content, schema=pa.schema(steps) if whole else steps)
    assert (schema.record_type, types(schema)) == ("sequence_example", steps)
    with pytest.raises(SchemaError, match=r'pass record_type="sequence_example"'):
        infer(tmp_path, content, schema=steps, record_type="example")


def test_feature_lists_are_left_out_when_examples_are_asked_for(tmp_path: Path) -> None:
    record = Record({"id": Feature("int64", [1])}, {"steps": [Feature("int64", [1])]})
    assert infer(tmp_path, sequence_file(record), record_type="example").names == ["id"]


def test_records_in_which_no_feature_has_a_value_are_bytes_and_that_is_said(tmp_path: Path) -> None:
    content = file_of({"a": (None, [])}, {"a": (None, []), "b": (None, [])})
    with pytest.warns(UserWarning, match=r'no feature has a value; pass record_type="bytes"'):
        assert infer(tmp_path, content).record_type == "bytes"
    schema = infer(tmp_path, content, record_type="example")
    assert types(schema) == {"a": pa.null(), "b": pa.null()}
    with pytest.warns(UserWarning, match="no feature has a value") as caught:
        assert len(read_tfrecord(tmp_path)) == 2
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore:the records do not look like Examples")
@pytest.mark.parametrize("payloads", [[b"no message", b"at all"], [b"\x68\x01"], [b"", b"\xff"]])
def test_records_that_are_no_messages_are_bytes(tmp_path: Path, payloads: list[bytes]) -> None:
    schema = infer(tmp_path, oracle.records_file(payloads))
    assert schema.record_type == "bytes"
    assert types(schema) == {"record": pa.binary()}


def test_bytes_are_not_looked_at_when_asked_for(tmp_path: Path) -> None:
    schema = infer(tmp_path, file_of({"a": ("int64", [1])}), record_type="bytes")
    assert types(schema) == {"record": pa.binary()}
    schema = infer(tmp_path, b"not TFRecord", record_type="bytes", schema={"line": pa.string()})
    assert types(schema) == {"line": pa.string()}


@pytest.mark.parametrize("files", [[b""], [b"", b""], [oracle.frame(b"")]])
def test_records_without_features_have_no_columns(tmp_path: Path, files: list[bytes]) -> None:
    schema = infer(tmp_path, *files)
    assert (schema.names, schema.record_type) == ([], "example")


def test_the_last_file_is_looked_at(tmp_path: Path) -> None:
    one, other = file_of({"a": ("int64", [1])}), file_of({"b": ("int64", [1])})
    assert infer(tmp_path, *[one] * 9, other).names == ["a", "b"]


def test_the_same_files_give_the_same_schema(tmp_path: Path) -> None:
    files = [file_of({f"f{number}": ("int64", [1])}) for number in range(40)]
    first = infer(tmp_path, *files)
    assert first == open_dataset(tmp_path).schema
    assert 2 < len(first.names) < 10


def test_the_sample_of_a_large_file_is_bounded(tmp_path: Path) -> None:
    large = oracle.frame(oracle.serialize(Record({"a": Feature("bytes", [bytes(100_000)])})))
    late = file_of({"late": ("int64", [1])})
    assert infer(tmp_path, large * 100 + late).names == ["a"]


def test_a_record_longer_than_the_sample_is_read_whole(tmp_path: Path) -> None:
    payload = oracle.serialize(Record({"a": Feature("bytes", [bytes(5 << 20)]), "b": Feature("int64", [1])}))
    (framed,) = Encoder([Column("record", "bytes", 0)], "bytes").encode(
        pa.record_batch({"record": [payload]})
    )
    assert sorted(infer(tmp_path, bytes(framed)).names) == ["a", "b"]


def test_two_kinds_are_refused_with_both_places(tmp_path: Path) -> None:
    one = file_of({"a": ("int64", [1])}, {"a": ("int64", [1])})
    other = file_of({"b": ("int64", [1])}, {"a": ("float", [1])})
    with pytest.raises(SchemaError) as caught:
        infer(tmp_path, one, other)
    error = caught.value
    assert (error.path, error.record, error.offset, error.feature) == (f"{tmp_path}/0.tfrecord", 0, 0, "a")
    assert f"holds int64 here and float in {tmp_path}/1.tfrecord, record 1" in str(error)


def test_two_kinds_in_one_file_are_refused(tmp_path: Path) -> None:
    content = file_of({"b": ("int64", [1])}, {"a": ("bytes", [b"1"])}, {"a": ("int64", [1])})
    with pytest.raises(SchemaError, match=r"holds bytes here and int64 in .*0.tfrecord, record 2") as caught:
        infer(tmp_path, content)
    assert caught.value.record == 1
    assert content[: caught.value.offset] == file_of({"b": ("int64", [1])})


def test_a_name_in_context_and_feature_lists_is_refused_unless_given(tmp_path: Path) -> None:
    content = sequence_file(Record({"a": Feature("int64", [1])}, {"a": [Feature("float", [0])]}))
    with pytest.raises(SchemaError, match="both"):
        infer(tmp_path, content)
    assert types(infer(tmp_path, content, schema={"a": pa.int64()})) == {"a": pa.int64()}


@pytest.mark.parametrize("whole", [True, False])
def test_a_type_that_looks_where_the_feature_is_not_is_refused(tmp_path: Path, whole: bool) -> None:
    """It would find nothing, and all of the column would be missing."""
    record = Record({"id": Feature("int64", [1])}, {"steps": [Feature("int64", [1])]})
    wrong = {
        "id": (pa.list_(pa.list_(pa.int64())), r'a feature of the context.*"id": pa.int64\(\)'),
        "steps": (pa.list_(pa.int64()), r'a feature list.*"steps": pa.list_\(pa.list_\(pa.int64\(\)\)\)'),
    }
    for name, (type_, message) in wrong.items():
        schema = pa.schema({name: type_}) if whole else {name: type_}
        with pytest.raises(SchemaError, match=message) as caught:
            infer(tmp_path, sequence_file(record), schema=schema)
        assert (caught.value.feature, caught.value.record, caught.value.offset) == (name, 0, 0)


def test_given_types_go_before_inferred_ones(tmp_path: Path) -> None:
    content = file_of({"a": ("int64", [1]), "b": ("int64", [1])}, {"a": ("float", [1])})
    known = {"a": pa.list_(pa.float32()), "rare": pa.timestamp("s")}
    schema = infer(tmp_path, content, schema=known)
    assert types(schema) == {"a": pa.list_(pa.float32()), "b": pa.int64(), "rare": pa.timestamp("s")}


def test_a_whole_schema_is_all_there_is(tmp_path: Path) -> None:
    content = file_of({"a": ("int64", [1]), "b": ("int64", [1])}, {"b": ("float", [1])})
    whole = pa.schema({"c": pa.bool_(), "a": pa.int8()})
    assert infer(tmp_path, content, schema=whole).arrow == whole
    assert infer(tmp_path, b"not looked at", schema=whole, record_type="example").arrow == whole


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_compressed_files_are_sampled(tmp_path: Path, compression: str) -> None:
    content = oracle.compress(file_of({"a": ("int64", [1])}), compression)
    assert infer(tmp_path, content).names == ["a"]


def test_damage_in_the_sample_says_where(tmp_path: Path) -> None:
    content = file_of({"a": ("int64", [1])}, {"a": ("int64", [2])})
    half = len(content) // 2
    with pytest.raises(CorruptRecordError) as caught:
        infer(tmp_path, content, content[:-1])
    error = caught.value
    assert (error.path, error.record, error.offset) == (f"{tmp_path}/1.tfrecord", 1, half)


def test_a_broken_message_among_messages_is_damage(tmp_path: Path) -> None:
    content = file_of({"a": ("int64", [1])}) + oracle.frame(b"no message")
    with pytest.raises(CorruptRecordError) as caught:
        infer(tmp_path, content)
    assert caught.value.record == 1
    assert caught.value.path == f"{tmp_path}/0.tfrecord"


def test_a_message_that_breaks_off_after_a_new_feature_is_damage(tmp_path: Path) -> None:
    usual = file_of({"a": ("int64", [1])})
    late = file_of({"late": ("int64", [1])})[12:-4] + b"\x07"
    with pytest.raises(CorruptRecordError) as caught:
        infer(tmp_path, usual * 2 + oracle.frame(late) + usual)
    assert (caught.value.record, caught.value.offset) == (2, 2 * len(usual))
    ddf = read_tfrecord(tmp_path, on_corrupt="skip")
    with pytest.warns(CorruptRecordWarning, match="skipped 1 "):
        assert ddf["a"].compute(scheduler="sync").tolist() == [1, 1, 1]


# --- every record --------------------------------------------------------------------------------------


def sampled(tmp_path: Path, record_type: AskedType, *files: bytes, everything: bool = True) -> Sample:
    """What files of this content hold, by all their records or by a sample."""
    tmp_path.mkdir(exist_ok=True)
    for number, content in enumerate(files):
        (tmp_path / f"{number:02d}.tfrecord").write_bytes(content)
    store, found, *_ = list_files(tmp_path)
    if not everything:
        return take_sample(store, found, record_type=record_type, options=ReadOptions())
    return sample_all(store, found, record_type=record_type, options=ReadOptions(), compute_each=one_by_one)


FEATURES = st.one_of(
    st.builds(Feature, st.just("int64"), st.lists(st.integers(0, 9), max_size=3)),
    st.builds(Feature, st.just("bytes"), st.lists(st.sampled_from([b"", b"a", b"\xff"]), max_size=3)),
    st.just(Feature()),
)
RECORDS = st.builds(
    Record,
    st.dictionaries(st.sampled_from("abc"), FEATURES, max_size=3),
    st.dictionaries(st.sampled_from("cde"), st.lists(FEATURES, max_size=3), max_size=2),
)


@pytest.mark.parametrize("record_type", ["infer", "example", "sequence_example"])
@given(st.lists(st.lists(RECORDS, max_size=4), min_size=1, max_size=5))
def test_samples_of_files_merge_to_that_of_one_file(
    tmp_path_factory: pytest.TempPathFactory, record_type: AskedType, parts: list[list[Record]]
) -> None:
    tmp_path = tmp_path_factory.mktemp("files")
    if record_type == "example":  # a record of feature lists only is no Example
        parts = [[replace(record, lists={}) for record in part] for part in parts]
    contents = [sequence_file(*part) for part in parts]
    divided = sampled(tmp_path / "divided", record_type, *contents)
    together = sampled(tmp_path / "together", record_type, b"".join(contents))
    assert facts(divided) == facts(together)
    assert places(divided, tmp_path / "divided", contents) == places(
        together, tmp_path / "together", [b"".join(contents)]
    )


def facts(sample: Sample) -> list[Any]:
    """All but where records are."""
    return [
        (sample.record_type, sample.records, sample.payload),
        *(replace(one, path="", kinds=dict.fromkeys(one.kinds)) for one in sample.features),
    ]


def places(sample: Sample, root: Path, contents: list[bytes]) -> list[dict[str, int]]:
    """For each feature where its kinds come first, in bytes from the first file's start."""
    starts = {f"{root}/{n:02d}.tfrecord": sum(map(len, contents[:n])) for n in range(len(contents))}
    return [
        {kind: starts[place.path] + place.offset for kind, place in one.kinds.items()}
        for one in sample.features
    ]


def test_a_kinds_place_is_its_records(tmp_path: Path) -> None:
    """Also beyond the first window, and in a compressed file."""
    padding = file_of({"a": ("bytes", [bytes(1 << 20)])})
    content = padding * 9 + file_of({"a": ("int64", [1])})
    for compression in (None, "gzip"):
        sample = sampled(tmp_path, "infer", oracle.compress(content, compression))
        path = f"{tmp_path}/00.tfrecord"
        assert sample.features[0].kinds == {
            "bytes": RecordPosition(path, 0, 0),
            "int64": RecordPosition(path, 9, 9 * len(padding)),
        }


def test_everything_is_looked_at_when_asked_for(tmp_path: Path) -> None:
    common = file_of({"a": ("int64", [1])})
    files = [common] * 40
    files[23] = common * 3 + file_of({"a": ("int64", [1, 2]), "late": ("bytes", [b"\xff"])})
    assert types(infer(tmp_path, *files)) == {"a": pa.int64()}
    schema = infer(tmp_path, *files, infer="all")
    assert types(schema) == {"a": pa.list_(pa.int64()), "late": pa.binary()}


def test_everything_is_looked_at_in_tasks_of_many_files(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number:04d}").write_bytes(file_of({"a": ("int64", [1])}))
    tasks: list[Any] = []

    def noting(function: Any, arguments: Any) -> list[Any]:
        tasks.extend(arguments)
        return [pickle.loads(pickle.dumps(function))(argument) for argument in tasks]

    assert open_dataset(tmp_path, ReadRequest(infer="all"), compute_each=noting).schema.names == ["a"]
    assert 1 < len(tasks) < 20
    assert [split.file.path[-4:] for task in tasks for split in task] == [f"{n:04d}" for n in range(1000)]


def test_two_kinds_far_apart_are_refused_with_both_places(tmp_path: Path) -> None:
    common = file_of({"a": ("int64", [1])})
    files = [common] * 40
    files[17] = common * 5 + file_of({"a": ("float", [0])})
    with pytest.raises(SchemaError) as caught:
        infer(tmp_path, *files, infer="all")
    assert "holds int64 here and float in" in str(caught.value)
    assert "/17.tfrecord, record 5" in str(caught.value)


def test_a_message_among_no_messages_is_damage_and_not_bytes(tmp_path: Path) -> None:
    strange, usual = oracle.frame(b"no message"), file_of({"a": ("int64", [1])})
    for files in ((strange, usual), (usual, strange)):
        with pytest.raises(CorruptRecordError) as caught:
            infer(tmp_path, *files)
        assert caught.value.path == f"{tmp_path}/{files.index(strange)}.tfrecord"
        assert (caught.value.record, caught.value.offset) == (0, 0)


def test_damage_anywhere_is_found_when_everything_is_looked_at(tmp_path: Path) -> None:
    common = file_of({"a": ("int64", [1])})
    files = [common * 9] * 40
    files[17] = common * 9 + common[:-1]
    infer(tmp_path, *files)
    with pytest.raises(CorruptRecordError) as caught:
        infer(tmp_path, *files, infer="all")
    assert (caught.value.record, caught.value.offset) == (9, 9 * len(common))


def test_lengths_and_absence_are_noted(tmp_path: Path) -> None:
    sample = sampled(
        tmp_path,
        "infer",
        file_of({"fixed": ("int64", [1, 2]), "ragged": ("int64", [1])}),
        file_of(
            {"fixed": ("int64", [3, 4]), "ragged": ("int64", []), "rare": ("int64", [1]), "unset": (None, [])}
        ),
    )
    lengths = {one.name: one.length for one in sample.features}
    assert lengths == {"fixed": 2, "ragged": None, "rare": 1, "unset": None}
    nullable = {one.name for one in sample.features if sample.is_nullable(one)}
    assert nullable == {"rare", "unset"}


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_empty_files_are_not_sampled_where_others_are(tmp_path: Path, compression: str | None) -> None:
    """As Spark leaves them: a file for each task, most of them without rows."""
    empty = oracle.compress(b"", compression)
    content = oracle.compress(file_of({"a": ("int64", [1])}), compression)
    assert infer(tmp_path, *[empty] * 20, content, *[empty] * 20).names == ["a"]


def test_a_sample_is_bounded_in_records_too(tmp_path: Path) -> None:
    many = oracle.frame(b"") * 100_000
    usual = file_of({"a": ("int64", [1])}) * 200_000
    assert sampled(tmp_path, "example", usual, everything=False).records == 100_000
    (tmp_path / "00.tfrecord").unlink()
    assert infer(tmp_path, many + file_of({"late": ("int64", [1])})).names == ["late"]  # none before it


def test_a_feature_list_that_the_sample_did_not_hold_raises_and_says_how_to_read_it(tmp_path: Path) -> None:
    """As an example, which the sample tells it is, the record would lose it without a word."""
    files = [sequence_file(Record({"a": Feature("int64", [1])}))] * 40
    files[23] += sequence_file(Record({"a": Feature("int64", [2])}, {"steps": [Feature("int64", [3])]}))
    assert types(infer(tmp_path, *files)) == {"a": pa.int64()}
    with dask.config.set(scheduler="sync"):
        with pytest.raises(
            SchemaError, match=r'schema=\{"steps": pa.list_\(pa.list_\(pa.int64\(\)\)\)\}'
        ) as caught:
            read_tfrecord(tmp_path).compute()
        assert (caught.value.path, caught.value.record) == (f"{tmp_path}/23.tfrecord", 1)
        assert caught.value.feature == "steps"
        given = {"steps": pa.list_(pa.list_(pa.int64()))}
        steps = read_tfrecord(tmp_path, schema=given)["steps"].compute().dropna()
        assert [[list(step) for step in record] for record in steps] == [[[3]]]
        assert len(read_tfrecord(tmp_path, extra="ignore").compute()) == 41
        assert len(read_tfrecord(tmp_path, record_type="example").compute()) == 41


BOTH = Record({"a": Feature("int64", [1]), "x": Feature("int64", [2])}, {"x": [Feature("int64", [3])]})
IN_CONTEXT = Record({"a": Feature("int64", [1]), "x": Feature("int64", [2])})
IN_LISTS = Record({"a": Feature("int64", [1])}, {"x": [Feature("int64", [3])]})


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("usual", [IN_CONTEXT, IN_LISTS], ids=["context", "lists"])
@pytest.mark.parametrize("strange", [BOTH, None], ids=["both", "the other"])
def test_a_column_in_the_other_place_of_a_record_outside_the_sample_raises(
    tmp_path: Path, usual: Record, strange: Record | None
) -> None:
    """The context and the feature lists are two maps: a name known in one is unknown in the other."""
    other = IN_LISTS if usual is IN_CONTEXT else IN_CONTEXT
    files = [sequence_file(usual)] * 40
    files[23] += sequence_file(strange or other)
    for number, content in enumerate(files):
        (tmp_path / f"{number}.tfrecord").write_bytes(content)
    here, there = (
        ("the feature lists", "the context") if usual is IN_CONTEXT else ("the context", "the feature lists")
    )
    with pytest.raises(
        SchemaError, match=f"record has the feature in {here}, the column reads it from {there}"
    ) as caught:
        read_tfrecord(tmp_path).compute()
    assert (caught.value.path, caught.value.record) == (f"{tmp_path}/23.tfrecord", 1)
    assert caught.value.feature == "x"
    # What the message offers: one place only, or a choice of the two.
    kept = read_tfrecord(tmp_path, extra="ignore")["x"].compute()
    assert len(kept) == 41
    assert kept.isna().sum() == (strange is None)
    if strange is None:
        return
    with pytest.raises(
        SchemaError, match=r'both a feature of the context and a feature list.*extra="ignore"'
    ):
        read_tfrecord(tmp_path, infer="all")
    for type_, value, nulls in (
        (pa.int64(), 2, 0 if usual is IN_CONTEXT else 40),
        (pa.list_(pa.list_(pa.int64())), [[3]], 40 if usual is IN_CONTEXT else 0),
    ):
        chosen = read_tfrecord(tmp_path, infer="all", schema={"x": type_}, extra="ignore")["x"].compute()
        assert chosen.isna().sum() == nulls
        assert pa.array(chosen.dropna(), type_).to_pylist() == [value] * (41 - nulls)


@pytest.mark.usefixtures("one_thread")
def test_a_choice_of_one_of_two_places_does_not_drop_the_other_in_silence(tmp_path: Path) -> None:
    path = infer_path(tmp_path, sequence_file(BOTH, IN_CONTEXT, IN_LISTS))
    for type_ in (pa.int64(), pa.list_(pa.list_(pa.int64()))):
        with pytest.raises(SchemaError, match="feature 'x': the record has the feature in"):
            read_tfrecord(path, schema={"x": type_}).compute()
    context, lists = (
        read_tfrecord(path, schema={"x": type_}, extra="ignore")["x"].compute()
        for type_ in (pa.int64(), pa.list_(pa.list_(pa.int64())))
    )
    assert context.isna().tolist() == [False, False, True]
    assert lists.isna().tolist() == [False, True, False]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("type_", [pa.int64(), pa.list_(pa.list_(pa.int64()))], ids=["context", "lists"])
def test_a_snapshot_of_one_of_two_places_does_not_drop_the_other_in_silence(
    tmp_path: Path, type_: pa.DataType
) -> None:
    index(infer_path(tmp_path, sequence_file(BOTH)), schema={"x": type_})
    with pytest.raises(SchemaError, match="feature 'x': the record has the feature in"):
        read_tfrecord(tmp_path).compute()
    value = 2 if type_ == pa.int64() else [[3]]
    for options in ({"extra": "ignore"}, {"columns": ["x"]}, {"columns": ["a", "x"], "extra": "ignore"}):
        assert pa.array(read_tfrecord(tmp_path, **options)["x"].compute(), type_).to_pylist() == [value]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["path", "offset"])
def test_a_feature_called_as_the_column_of_places_raises_outside_the_sample_too(
    tmp_path: Path, name: str
) -> None:
    files = [file_of({"a": ("int64", [1])})] * 40
    files[23] += file_of({"a": ("int64", [1]), name: ("int64", [7])})
    for number, content in enumerate(files):
        (tmp_path / f"{number}.tfrecord").write_bytes(content)
    ddf = read_tfrecord(tmp_path, include_path_column=name == "path", include_offset_column=name == "offset")
    with pytest.raises(SchemaError, match="has the name of another column; pass another name") as caught:
        ddf.compute()
    assert (caught.value.path, caught.value.record) == (f"{tmp_path}/23.tfrecord", 1)


# --- schema= -------------------------------------------------------------------------------------------


def test_a_misspelled_name_is_refused_where_that_is_certain(tmp_path: Path) -> None:
    content = file_of({"image": ("bytes", [b"x"])}, {"label": ("int64", [1])})
    with pytest.raises(SchemaError, match="schema= names; did you mean 'image'") as caught:
        infer(tmp_path, content, schema={"imgae": pa.binary()}, infer="all")
    assert caught.value.feature == "imgae"
    with pytest.raises(SchemaError, match="there are 'image', 'label'"):
        infer(tmp_path, content, schema={"zzz": pa.binary()}, infer="all")


def test_a_misspelled_name_warns_where_it_may_be_a_rare_feature(tmp_path: Path) -> None:
    content = file_of({"image": ("bytes", [b"x"])}, {"label": ("int64", [1])})
    with pytest.warns(UserWarning, match="no record of the sample has; did you mean 'image'") as caught:
        assert read_tfrecord(infer_path(tmp_path, content), schema={"imgae": pa.binary()}).columns.size == 3
    assert caught[0].filename == __file__
    assert infer(tmp_path, content, schema={"zzz": pa.binary()}).names == ["image", "label", "zzz"]


def infer_path(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "0.tfrecord").write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("given", [{"a": "int65"}, ["a"], "a", {"a": object()}])
def test_a_schema_that_is_none_is_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(
        TFRecordError, match=r"schema=.* does not map names to types.*; pass a mapping, such as schema=\{"
    ):
        infer(tmp_path, file_of({"a": ("int64", [1])}), schema=given)


def test_inference_is_only_of_two_kinds(tmp_path: Path) -> None:
    with pytest.raises(TFRecordError, match=r"unknown infer 'some'; pass one of 'sample', 'all'"):
        read_tfrecord(infer_path(tmp_path, b""), infer="some")


def test_tasks_look_at_everything_by_the_active_scheduler(tmp_path: Path) -> None:
    path = infer_path(tmp_path, file_of({"a": ("int64", [1])}))
    ran: list[Any] = []

    def scheduler(graph: Any, keys: Any, **options: Any) -> Any:
        ran.append(keys)
        return dask.get(graph, keys, **options)

    with dask.config.set(scheduler=scheduler):
        assert list(read_tfrecord(path, infer="sample").columns) == ["a"]
        assert not ran
        assert list(read_tfrecord(path, infer="all").columns) == ["a"]
        assert ran


# --- damage that is passed over ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sample", "all"])
@pytest.mark.parametrize("at", ["length", "payload", "message"])
def test_damage_that_is_passed_over_is_so_when_looking_too(tmp_path: Path, how: Any, at: str) -> None:
    usual, late = file_of({"a": ("int64", [1])}), file_of({"late": ("int64", [1])})
    damaged = bytearray(oracle.frame(b"no message") if at == "message" else usual)
    if at != "message":
        damaged[0 if at == "length" else 13] ^= 1
    for content in (bytes(damaged) + usual * 3 + late, usual + bytes(damaged) + usual * 2 + late):
        path = infer_path(tmp_path, content)
        if at == "message" and content.startswith(damaged):
            assert list(read_tfrecord(path, infer=how).columns) == ["record"]  # all of its bytes
        else:
            with pytest.raises(CorruptRecordError):
                read_tfrecord(path, infer=how)
        ddf = read_tfrecord(path, infer=how, on_corrupt="skip")
        assert list(ddf.columns) == ["a", "late"]
        with pytest.warns(CorruptRecordWarning, match="skipped 1 "):
            assert len(ddf.compute(scheduler="sync")) == 4


def test_a_file_of_another_format_is_passed_over_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,b\n1,2\n" * 99)
    ddf = read_tfrecord(infer_path(tmp_path, file_of({"a": ("int64", [1])})), on_corrupt="skip")
    assert list(ddf.columns) == ["a"]
    with pytest.warns(CorruptRecordWarning, match=r"a.csv: skipped 1 .* 792 bytes"):
        assert ddf["a"].compute(scheduler="sync").tolist() == [1]
