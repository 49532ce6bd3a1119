"""The schema that is inferred from records, which protobuf wrote.

Modules: files.inference.
"""

import struct
from pathlib import Path
from typing import Any

import oracle
import pyarrow as pa
import pytest
from inferred import directory_of, file_of, infer, sequence_file, types
from oracle import Feature, Record

from dask_tfrecord import open_dataset, read_tfrecord
from dask_tfrecord.errors import CorruptRecordError, CorruptRecordWarning, SchemaError, TFRecordError
from dask_tfrecord.files.file_options import ReadOptions

ONE: tuple[str, list[Any]] = ("int64", [1])
ID, STEPS = {"id": Feature("int64", [1])}, {"steps": [Feature("int64", [1])]}
NOTHING = pa.list_(pa.list_(pa.binary()))
SEQUENCE = Record(
    {"id": Feature("int64", [1]), "tags": Feature("bytes", [b"a", b"b"])},
    {
        "steps": [Feature("float", [0, 0]), Feature("float", [])],
        "single": [Feature("int64", [1])],
        "none": [],
        "kindless": [Feature()],
    },
)
IN_SEQUENCE = {
    "id": pa.int64(),
    "tags": pa.list_(pa.string()),
    "steps": pa.list_(pa.list_(pa.float32())),
    "single": pa.list_(pa.list_(pa.int64())),
    "none": NOTHING,
    "kindless": NOTHING,
}
BOTH = {"id": pa.int64(), "steps": pa.list_(pa.list_(pa.int64()))}
KNOWN = {"a": pa.list_(pa.float32()), "rare": pa.timestamp("s")}
WHOLE = pa.schema({"c": pa.bool_(), "a": pa.int8()})
MIXED = file_of({"a": ONE, "b": ONE}, {"a": ("float", [1])})


def values_of(kind: str, *values: list[Any]) -> list[bytes]:
    """A file with a record for each of the values."""
    return [file_of(*({"a": (kind, value)} for value in values))]


# The files, the options, and the types and the record type that are inferred.
INFERRED: dict[str, tuple[list[bytes], dict[str, Any], dict[str, pa.DataType], str]] = {
    "integers": (values_of("int64", [1], [2]), {}, {"a": pa.int64()}, "example"),
    "floats": (values_of("float", [oracle.float_bits(0.5)]), {}, {"a": pa.float32()}, "example"),
    "text": (values_of("bytes", ["ż".encode()], [b""]), {}, {"a": pa.string()}, "example"),
    "not UTF-8": (values_of("bytes", [b"text"], [b"\xff"]), {}, {"a": pa.binary()}, "example"),
    "a value missing": (values_of("int64", [1], []), {}, {"a": pa.int64()}, "example"),
    "no integers": (values_of("int64", [], []), {}, {"a": pa.int64()}, "example"),
    "no bytes": (values_of("bytes", [], []), {}, {"a": pa.binary()}, "example"),
    "one and two": (values_of("int64", [1], [1, 2]), {}, {"a": pa.list_(pa.int64())}, "example"),
    "two and none": (values_of("int64", [1, 2], []), {}, {"a": pa.list_(pa.int64())}, "example"),
    "texts": (values_of("bytes", [b"a", b"b"]), {}, {"a": pa.list_(pa.string())}, "example"),
    "not all text": (values_of("bytes", [b"a", b"\xff"]), {}, {"a": pa.list_(pa.binary())}, "example"),
    "in some records, in the order first seen": (
        [file_of({"z": ONE}, {}, {"b": (None, [])}), file_of({"b": ONE, "a": ("float", [0])})],
        {},
        {"z": pa.int64(), "b": pa.int64(), "a": pa.float32()},
        "example",
    ),
    "sequence examples": ([sequence_file(Record(), SEQUENCE)], {}, IN_SEQUENCE, "sequence_example"),
    "a context alone": ([sequence_file(Record(ID))], {}, {"id": pa.int64()}, "example"),
    "a context alone, asked for": (
        [sequence_file(Record(ID))],
        {"record_type": "sequence_example"},
        {"id": pa.int64()},
        "sequence_example",
    ),
    # The sample may hold no feature list
    "lists of lists given": ([sequence_file(Record(ID))], {"schema": BOTH}, BOTH, "sequence_example"),
    "all given": ([sequence_file(Record(ID))], {"schema": pa.schema(BOTH)}, BOTH, "sequence_example"),
    "examples asked for": (
        [sequence_file(Record(ID, STEPS))],
        {"record_type": "example", "options": ReadOptions(extra="ignore")},
        {"id": pa.int64()},
        "example",
    ),
    "bytes asked for": ([MIXED], {"record_type": "bytes"}, {"record": pa.binary()}, "bytes"),
    "a name in both, given": (
        [sequence_file(Record({"a": Feature("int64", [1])}, {"a": [Feature("float", [0])]}))],
        {"schema": {"a": pa.int64()}},
        {"a": pa.int64()},
        "sequence_example",
    ),
    "lines asked for": (
        [b"not TFRecord"],
        {"record_type": "bytes", "schema": {"line": pa.string()}},
        {"line": pa.string()},
        "bytes",
    ),
    "an empty file": ([b""], {}, {}, "example"),
    "empty files": ([b"", b""], {}, {}, "example"),
    "an empty record": ([oracle.frame(b"")], {}, {}, "example"),
    "given types": ([MIXED], {"schema": KNOWN}, {"a": KNOWN["a"], "b": pa.int64()} | KNOWN, "example"),
    "a whole schema": (
        [MIXED],
        {"schema": WHOLE},
        dict(zip(WHOLE.names, WHOLE.types, strict=True)),
        "example",
    ),
}


@pytest.mark.parametrize(("files", "options", "expected", "record_type"), INFERRED.values(), ids=INFERRED)
def test_the_schema_of_files(
    tmp_path: Path,
    files: list[bytes],
    options: dict[str, Any],
    expected: dict[str, pa.DataType],
    record_type: str,
) -> None:
    schema = infer(tmp_path, *files, **options)
    assert (types(schema), schema.record_type) == (expected, record_type)


def test_columns_are_sorted_by_name(tmp_path: Path) -> None:
    assert infer(tmp_path, file_of({"z": ONE}, {"b": ONE}, {"a": ONE})).names == ["a", "b", "z"]


def test_values_with_control_characters_are_binary(tmp_path: Path) -> None:
    """Packed numbers have control characters, and are often valid UTF-8."""
    texts = {
        f"{sign} at {at}": ("a" * at + chr(sign) + "é" * (at % 3)).encode()
        for sign in range(129)
        for at in (0, 1, 7, 8, 15, 16, 40)
    }
    texts |= {str(packed): struct.pack("<3q", *packed) for packed in ([1, 2, 3], [7, 0, 0])}
    texts |= {str(packed): struct.pack("<2f", *packed) for packed in ([0.0, 1.0], [2.5, 0.0])}
    found = types(infer(tmp_path, file_of({at: ("bytes", [b"x" * 9, text]) for at, text in texts.items()})))
    assert found == {
        at: pa.list_(pa.string() if oracle.is_text(text) else pa.binary()) for at, text in texts.items()
    }


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


def test_two_kinds_are_refused_with_both_records(tmp_path: Path) -> None:
    one = file_of({"a": ("int64", [1])}, {"a": ("int64", [1])})
    other = file_of({"b": ("int64", [1])}, {"a": ("float", [1])})
    with pytest.raises(SchemaError) as caught:
        infer(tmp_path, one, other)
    error = caught.value
    assert (error.path, error.record, error.offset, error.feature) == (f"{tmp_path}/0.tfrecord", 0, 0, "a")
    assert f"holds int64 here and float in {tmp_path}/1.tfrecord, record 1" in str(error)


def test_two_kinds_in_one_file_or_two_maps_are_refused(tmp_path: Path) -> None:
    content = file_of({"b": ONE}, {"a": ("bytes", [b"1"])}, {"a": ONE})
    with pytest.raises(SchemaError, match=r"holds bytes here and int64 in .*0.tfrecord, record 2") as caught:
        infer(tmp_path, content)
    assert caught.value.record == 1
    assert content[: caught.value.offset] == file_of({"b": ONE})
    content = sequence_file(Record({"a": Feature("int64", [1])}, {"a": [Feature("float", [0])]}))
    with pytest.raises(SchemaError, match="both"):
        infer(tmp_path, content)


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64(), pa.list_(pa.float32())])
@pytest.mark.parametrize("late", [False, True])
def test_a_float_type_reads_integers_and_floats(tmp_path: Path, type_: pa.DataType, late: bool) -> None:
    """One of the kinds may be outside the sample."""
    values: list[list[Any]] = [[1], [2.5], [-(2**24)], [], [0]]
    records = [
        {"x": ("float", [oracle.float_bits(one) for one in row]) if row and row[0] == 2.5 else ("int64", row)}
        for row in values
    ]
    usual = file_of({"x": ("float", [oracle.float_bits(0.5)])})
    root = directory_of(tmp_path, *([usual] * 30 if late else []), file_of(*records), *[usual] * 30 * late)
    expected = [row if pa.types.is_list(type_) else (row or [None])[0] for row in values]
    for schema in ({"x": type_}, pa.schema({"x": type_})):
        found = open_dataset(root, schema=schema).to_table()["x"].to_pylist()
        assert [one for one in found if one not in (0.5, [0.5])] == expected
    with pytest.raises(SchemaError, match="records hold integers and floats, and a column of a snapshot"):
        open_dataset(root, schema={"x": type_}).add_snapshot()
    with pytest.raises(SchemaError, match="int64") as caught:
        open_dataset(root).to_table()
    suggested = [
        one for one in caught.value.other_remedies or caught.value.remedies if one.keyword == "schema"
    ]
    assert any(value == {"x": pa.float64()} for value in (one.value for one in suggested))


@pytest.mark.parametrize("value", [2**24 + 1, -(2**24) - 1, 2**63 - 1, -(2**63) + 1])
def test_an_integer_that_no_float_equals_raises(tmp_path: Path, value: int) -> None:
    directory_of(tmp_path, file_of({"x": ONE}, {"x": ("int64", [value])}))
    with pytest.raises(SchemaError, match=f"the record holds the integer {value}, which no") as caught:
        open_dataset(tmp_path, schema={"x": "float64"}).to_table()
    assert (caught.value.feature, caught.value.record) == ("x", 1)
    assert open_dataset(tmp_path, schema={"x": "int64"}).to_table()["x"].to_pylist() == [1, value]


@pytest.mark.parametrize("whole", [True, False])
def test_a_type_that_looks_where_the_feature_is_not_is_refused(tmp_path: Path, whole: bool) -> None:
    """A column that reads the wrong map would be all null."""
    record = Record({"id": Feature("int64", [1])}, {"steps": [Feature("int64", [1])]})
    wrong = {
        "id": (pa.list_(pa.list_(pa.int64())), r'a feature of the context.*"id": "int64"'),
        "steps": (pa.int64(), r'a feature list.*"steps": pa.list_\(pa.list_\(pa.int64\(\)\)\)'),
    }
    for name, (type_, message) in wrong.items():
        schema = pa.schema({name: type_}) if whole else {name: type_}
        with pytest.raises(SchemaError, match=message) as caught:
            infer(tmp_path, sequence_file(record), schema=schema)
        assert (caught.value.feature, caught.value.record, caught.value.offset) == (name, 0, 0)


USUAL, LATE, STRANGE = file_of({"a": ONE}), file_of({"late": ONE}), oracle.frame(b"no message")


@pytest.mark.parametrize(
    ("files", "number", "record", "offset"),
    [
        ([USUAL + STRANGE], 0, 1, len(USUAL)),
        # A message that breaks off after a new feature
        ([USUAL * 2 + oracle.frame(LATE[12:-4] + b"\x07") + USUAL], 0, 2, 2 * len(USUAL)),
        ([STRANGE, USUAL], 0, 0, 0),
        ([USUAL, STRANGE], 1, 0, 0),
    ],
)
def test_a_broken_message_among_messages_is_damage(
    tmp_path: Path, files: list[bytes], number: int, record: int, offset: int
) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        infer(tmp_path, *files)
    error = caught.value
    assert (error.path, error.record, error.offset) == (f"{tmp_path}/{number}.tfrecord", record, offset)
    ddf = read_tfrecord(tmp_path, on_corrupt="skip")
    with pytest.warns(CorruptRecordWarning, match="skipped 1 "):
        assert set(ddf["a"].compute(scheduler="sync")) == {1}


# --- schema= -------------------------------------------------------------------------------------------


def test_a_misspelled_name_is_refused_where_that_is_certain(tmp_path: Path) -> None:
    """It may be a rare feature if only a sample is read."""
    content = file_of({"image": ("bytes", [b"x"])}, {"label": ONE})
    with pytest.raises(SchemaError, match="schema= names; did you mean 'image'") as caught:
        infer(tmp_path, content, schema={"imgae": pa.binary()}, infer="all")
    assert caught.value.feature == "imgae"
    with pytest.raises(SchemaError, match="there are 'image', 'label'"):
        infer(tmp_path, content, schema={"zzz": pa.binary()}, infer="all")
    with pytest.warns(UserWarning, match="no record of the sample has; did you mean 'image'") as warned:
        assert read_tfrecord(directory_of(tmp_path, content), schema={"imgae": pa.binary()}).columns.size == 3
    assert warned[0].filename == __file__
    assert infer(tmp_path, content, schema={"zzz": pa.binary()}).names == ["image", "label", "zzz"]


@pytest.mark.parametrize("given", [{"a": "int65"}, ["a"], "a", {"a": object()}])
def test_a_schema_that_is_none_is_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(
        TFRecordError, match=r"schema=.* does not map names to types.*; give a mapping, such as \{"
    ):
        infer(tmp_path, file_of({"a": ("int64", [1])}), schema=given)
    with pytest.raises(TFRecordError, match=r"unknown infer 'some'; pass one of 'sample', 'all'"):
        read_tfrecord(tmp_path, read_options={"infer": "some"})


# --- damage that is passed over ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sample", "all"])
@pytest.mark.parametrize("at", ["length", "payload", "message"])
def test_damage_that_is_passed_over_is_so_when_looking_too(tmp_path: Path, how: Any, at: str) -> None:
    damaged = bytearray(STRANGE if at == "message" else USUAL)
    if at != "message":
        damaged[0 if at == "length" else 13] ^= 1
    for content in (bytes(damaged) + USUAL * 3 + LATE, USUAL + bytes(damaged) + USUAL * 2 + LATE):
        path = directory_of(tmp_path, content)
        if at == "message" and content.startswith(damaged):
            assert list(read_tfrecord(path, read_options={"infer": how}).columns) == [
                "record"
            ]  # all records are read as bytes
        else:
            with pytest.raises(CorruptRecordError):
                read_tfrecord(path, read_options={"infer": how})
        ddf = read_tfrecord(path, read_options={"infer": how}, on_corrupt="skip")
        assert list(ddf.columns) == ["a", "late"]
        with pytest.warns(CorruptRecordWarning, match="skipped 1 "):
            assert len(ddf.compute(scheduler="sync")) == 4


# --- what a read decodes, inference sees ----------------------------------------------------------------


# --- many features --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("infer", "on_corrupt"), [("sample", "raise"), ("sample", "skip"), ("all", "raise"), ("all", "skip")]
)
def test_more_features_than_max_features_raise_and_name_the_record(
    tmp_path: Path, infer: Any, on_corrupt: Any
) -> None:
    """The features of all files count together."""
    many = {f"n{number}": ONE for number in range(12)}
    path = directory_of(tmp_path, file_of({"n1": ONE}), file_of({"n1": ONE}, many), file_of({"m": ONE}))

    def read(limit: int | None) -> Any:
        options: Any = {"infer": infer, "max_features": limit}
        return read_tfrecord(path, on_corrupt=on_corrupt, read_options=options)

    with pytest.raises(SchemaError, match=r"record 1\b.* 1\d features.*max_features\": 1\d") as caught:
        read(10)
    assert caught.value.path is not None
    with pytest.raises(SchemaError, match=r"13 features.*max_features\": 13"):
        read(12)
    for limit in (13, 14, None):
        assert len(read(limit).columns) == 13


def test_ten_thousand_features_are_the_default_limit_and_schemas_have_none(tmp_path: Path) -> None:
    path = directory_of(tmp_path, file_of({f"n{number:05}": ONE for number in range(10_001)}))
    with pytest.raises(SchemaError, match='"max_features": 10001'):
        read_tfrecord(path)
    open_dataset(directory_of(tmp_path, file_of({f"n{number}": ONE for number in range(9)}))).add_snapshot()
    assert len(read_tfrecord(path, read_options={"max_features": 1}).columns) == 9
