"""The schema that is inferred from records, which protobuf wrote.

Modules: files.inference.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import oracle
import pandas as pd
import pyarrow as pa
import pytest
from inferred import directory_of, file_of, infer, sequence_file, types
from oracle import Feature, Record, block, bytes_list, entry, example_of, int64_list, packed

from dask_tfrecord import index, read_tfrecord
from dask_tfrecord.errors import CorruptRecordError, CorruptRecordWarning, SchemaError, TFRecordError


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


@pytest.mark.parametrize("sign", range(129))
def test_values_with_control_characters_are_binary(tmp_path: Path, sign: int) -> None:
    """Packed numbers have control characters, and are often valid UTF-8."""
    places = [0, 1, 7, 8, 15, 16, 40]
    texts = {f"at {at}": ("a" * at + chr(sign) + "é" * (at % 3)).encode() for at in places}
    found = types(infer(tmp_path, file_of({at: ("bytes", [b"x" * 9, text]) for at, text in texts.items()})))
    assert found == {
        at: pa.list_(pa.string() if oracle.is_text(text) else pa.binary()) for at, text in texts.items()
    }


@pytest.mark.parametrize("values", [[1, 2, 3], [7], [0.0, 1.0], [2.5]])
def test_packed_numbers_are_binary(tmp_path: Path, values: list[Any]) -> None:
    packed = struct.pack(f"<{len(values)}{'q' if isinstance(values[0], int) else 'f'}", *values)
    assert types(infer(tmp_path, file_of({"a": ("bytes", [packed])}))) == {"a": pa.binary()}


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
    """The sample may hold no feature list."""
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


def test_two_kinds_are_refused_with_both_records(tmp_path: Path) -> None:
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
    """A column that reads the wrong map would be all null."""
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


def test_a_message_among_no_messages_is_damage_and_not_bytes(tmp_path: Path) -> None:
    strange, usual = oracle.frame(b"no message"), file_of({"a": ("int64", [1])})
    for files in ((strange, usual), (usual, strange)):
        with pytest.raises(CorruptRecordError) as caught:
            infer(tmp_path, *files)
        assert caught.value.path == f"{tmp_path}/{files.index(strange)}.tfrecord"
        assert (caught.value.record, caught.value.offset) == (0, 0)


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
        assert read_tfrecord(directory_of(tmp_path, content), schema={"imgae": pa.binary()}).columns.size == 3
    assert caught[0].filename == __file__
    assert infer(tmp_path, content, schema={"zzz": pa.binary()}).names == ["image", "label", "zzz"]


@pytest.mark.parametrize("given", [{"a": "int65"}, ["a"], "a", {"a": object()}])
def test_a_schema_that_is_none_is_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(
        TFRecordError, match=r"schema=.* does not map names to types.*; give a mapping, such as \{"
    ):
        infer(tmp_path, file_of({"a": ("int64", [1])}), schema=given)


def test_inference_is_only_of_two_kinds(tmp_path: Path) -> None:
    with pytest.raises(TFRecordError, match=r"unknown infer 'some'; pass one of 'sample', 'all'"):
        read_tfrecord(directory_of(tmp_path, b""), infer="some")


# --- damage that is passed over ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sample", "all"])
@pytest.mark.parametrize("at", ["length", "payload", "message"])
def test_damage_that_is_passed_over_is_so_when_looking_too(tmp_path: Path, how: Any, at: str) -> None:
    usual, late = file_of({"a": ("int64", [1])}), file_of({"late": ("int64", [1])})
    damaged = bytearray(oracle.frame(b"no message") if at == "message" else usual)
    if at != "message":
        damaged[0 if at == "length" else 13] ^= 1
    for content in (bytes(damaged) + usual * 3 + late, usual + bytes(damaged) + usual * 2 + late):
        path = directory_of(tmp_path, content)
        if at == "message" and content.startswith(damaged):
            assert list(read_tfrecord(path, infer=how).columns) == ["record"]  # all records are read as bytes
        else:
            with pytest.raises(CorruptRecordError):
                read_tfrecord(path, infer=how)
        ddf = read_tfrecord(path, infer=how, on_corrupt="skip")
        assert list(ddf.columns) == ["a", "late"]
        with pytest.warns(CorruptRecordWarning, match="skipped 1 "):
            assert len(ddf.compute(scheduler="sync")) == 4


def test_a_file_of_another_format_is_passed_over_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_bytes(b"a,b\n1,2\n" * 99)
    ddf = read_tfrecord(directory_of(tmp_path, file_of({"a": ("int64", [1])})), on_corrupt="skip")
    assert list(ddf.columns) == ["a"]
    with pytest.warns(CorruptRecordWarning, match=r"a.dat: skipped 1 .* 792 bytes"):
        assert ddf["a"].compute(scheduler="sync").tolist() == [1]


# --- what a read decodes, inference sees ----------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"infer": "all"}, {"schema": {"id": pa.int64()}}])
def test_a_feature_that_a_record_has_twice_is_its_last_value(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    first = block(
        1, *(entry("id", value) for value in (bytes_list(block(1, b"\xff")), int64_list(packed(1, 2))))
    )
    payloads = [
        first + example_of(entry("id", int64_list(packed(7)))),
        example_of(entry("id", int64_list(packed(8)))),
    ]
    assert [oracle.parse(payload).features["id"].values for payload in payloads] == [[7], [8]]
    ddf = read_tfrecord(directory_of(tmp_path, oracle.records_file(payloads)), **arguments)
    assert ddf.dtypes["id"] == pd.ArrowDtype(pa.int64())
    assert ddf["id"].compute(scheduler="sync").tolist() == [7, 8]


@pytest.mark.parametrize("infer", ["sample", "all"])
def test_a_name_with_control_characters_does_not_make_bytes_of_examples(tmp_path: Path, infer: Any) -> None:
    payload = example_of(entry("id", int64_list(packed(7))), entry("a\1", b""), block(1, block(1, b"b\1")))
    ddf = read_tfrecord(directory_of(tmp_path, oracle.records_file([payload])), infer=infer)
    assert ddf["id"].compute(scheduler="sync").tolist() == [7]


# --- many features --------------------------------------------------------------------------------------


@pytest.mark.parametrize("infer", ["sample", "all"])
@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_more_features_than_max_features_raise_and_name_the_record(
    tmp_path: Path, infer: Any, on_corrupt: Any
) -> None:
    many = {f"n{number}": ("int64", [1]) for number in range(12)}
    path = directory_of(tmp_path, file_of({"n1": ("int64", [0])}), file_of({"n1": ("int64", [0])}, many))
    read = {"infer": infer, "on_corrupt": on_corrupt}
    with pytest.raises(SchemaError, match=r"record 1\b.* 13 features.*max_features=13") as caught:
        read_tfrecord(path, **read, max_features=11)
    assert caught.value.path is not None
    for limit in (12, 13, None):
        assert len(read_tfrecord(path, **read, max_features=limit).columns) == 12


@pytest.mark.parametrize("infer", ["sample", "all"])
def test_the_features_of_all_files_count_together(tmp_path: Path, infer: Any) -> None:
    files = [file_of({f"{letter}{number}": ("int64", [1]) for number in range(5)}) for letter in "abc"]
    with pytest.raises(SchemaError, match=r"15 features.*max_features=15"):
        read_tfrecord(directory_of(tmp_path, *files), infer=infer, max_features=14)
    assert len(read_tfrecord(tmp_path, infer=infer, max_features=15).columns) == 15


def test_ten_thousand_features_are_the_default_limit_and_schemas_have_none(tmp_path: Path) -> None:
    record = {f"n{number:05}": ("int64", [number]) for number in range(10_001)}
    path = directory_of(tmp_path, file_of(record))
    with pytest.raises(SchemaError, match="max_features=10001"):
        read_tfrecord(path)
    index(path)
    assert len(read_tfrecord(path).columns) == 10_001
