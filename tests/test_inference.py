"""The schema of files that carry none: what is concluded from what protobuf wrote."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import oracle
import pyarrow as pa
import pytest
from oracle import Feature, Record

from dask_tfrecord.codec import Column, Encoder
from dask_tfrecord.dataset.opening import open_dataset
from dask_tfrecord.errors import CorruptRecordError, SchemaError
from dask_tfrecord.schema import Schema


def infer(tmp_path: Path, *files: bytes, **options: Any) -> Schema:
    """What is inferred from files of this content."""
    for number, content in enumerate(files):
        (tmp_path / f"{number}.tfrecord").write_bytes(content)
    return open_dataset(tmp_path, **options).schema


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
        (None, [[], []], pa.null()),
    ],
)
def test_a_features_type(
    tmp_path: Path, kind: str | None, values: Sequence[list[Any]], type_: pa.DataType
) -> None:
    schema = infer(tmp_path, file_of(*({"a": (kind, value)} for value in values)))
    assert types(schema) == {"a": type_}
    assert schema.record_type == "example"


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


def test_feature_lists_are_left_out_when_examples_are_asked_for(tmp_path: Path) -> None:
    record = Record({"id": Feature("int64", [1])}, {"steps": [Feature("int64", [1])]})
    assert infer(tmp_path, sequence_file(record), record_type="example").names == ["id"]


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


def test_given_types_go_before_inferred_ones(tmp_path: Path) -> None:
    content = file_of({"a": ("int64", [1]), "b": ("int64", [1])}, {"a": ("float", [1])})
    given = {"a": pa.list_(pa.float32()), "rare": pa.timestamp("s")}
    schema = infer(tmp_path, content, schema=given)
    assert types(schema) == {"a": pa.list_(pa.float32()), "b": pa.int64(), "rare": pa.timestamp("s")}


def test_a_whole_schema_is_all_there_is(tmp_path: Path) -> None:
    content = file_of({"a": ("int64", [1]), "b": ("int64", [1])}, {"b": ("float", [1])})
    given = pa.schema({"c": pa.bool_(), "a": pa.int8()})
    assert infer(tmp_path, content, schema=given).arrow == given
    assert infer(tmp_path, b"not looked at", schema=given, record_type="example").arrow == given


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
