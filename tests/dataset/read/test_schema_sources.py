"""The schemas of other libraries: ``schema.pbtxt``, ``features.json`` and messages.

Modules: dataset.read.schema_sources, dataset.read.inferred_schema, schema.tfds, schema.tensorflow_schemas.
"""

import base64
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem
from other_writers import features_of, fill

from dask_tfrecord import (
    NotFoundError,
    RecordTable,
    Schema,
    SchemaError,
    export,
    index,
    inspect,
    iter_batches,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord_launcher import main

pytestmark = pytest.mark.usefixtures("one_thread")


def table(path: Any, **keywords: Any) -> pa.Table:
    return pa.concat_tables(inspect(path, **keywords).iter_tables())


# --- TFX -----------------------------------------------------------------------------------------------

SCHEMA = "SchemaGen/schema/2/schema.pbtxt"


def comparable(value: Any) -> Any:
    """A value of ``expected.json``, and a value of a column in the same form: a list of stored values."""
    if value is None or isinstance(value, list):
        return value and [base64.b64decode(one["b64"]) if isinstance(one, dict) else one for one in value]
    if isinstance(value, pd.Timestamp):
        return [value.value // 10**9]
    return [value.encode() if isinstance(value, str) else value]


@pytest.mark.parametrize("name", ["taxi", "sparse"])
def test_the_rows_of_every_sample_are_those_of_tfx(data: Path, name: str) -> None:
    root = data / "tfds" / name
    expected = json.loads((data / "tfds" / "tfx_expected.json").read_text())["directories"][name]
    for split, wanted in expected["splits"].items():
        found = table(root, split=split, schema=root / SCHEMA)
        if "flag_s" in found.column_names:
            flags = found["flag_s"].to_pylist()
            found = found.set_column(
                found.column_names.index("flag_s"), "flag_s", [["yes" if one else "no" for one in flags]]
            )
        columns = {column: found[column].to_pandas() for column in found.column_names}
        assert {*columns} == {column for column in wanted["rows_tfx_bsl"][0] if column != "old"}
        for column, values in columns.items():
            got = [None if value is None else value for value in found[column].to_pylist()]
            if str(values.dtype).startswith("datetime"):
                got = [value and pd.Timestamp(value) for value in got]
            assert [comparable(one) for one in got] == [
                comparable(row[column]) for row in wanted["rows_tfx_bsl"]
            ], column


def test_a_schema_of_tfx_gives_types(data: Path) -> None:
    category = pa.dictionary(pa.int32(), pa.string())
    schema = Schema.from_tfmd(data / "tfds" / "taxi" / SCHEMA)
    assert dict(zip(schema.names, schema.arrow.types, strict=True)) == {
        "trip_miles": pa.float32(),
        "fare": pa.float32(),
        "company": category,
        "payment_type": category,
        "tip": pa.bool_(),
        "hour": pa.int64(),
        "when": pa.timestamp("s"),
        "flag_s": pa.bool_(),
    }
    found = read_tfrecord(data / "tfds" / "taxi", schema=schema).compute()
    assert [*found["company"].cat.categories] == ["Blue", "Yellow"]
    assert found["split"].value_counts().to_dict() == {"train": 8, "eval": 3}


TEXT = """
feature { name: "free" type: BYTES }
feature { name: "text" type: BYTES natural_language_domain { } shape { } }
feature { name: "small" type: INT int_domain { min: -128 max: 127 } value_count { min: 1 max: 1 } }
feature { name: "day" type: INT time_domain { integer_format: UNIX_DAYS } value_count { min: 1 max: 1 } }
feature { name: "open" type: BYTES string_domain { value: "a" } shape { dim { size: 1 } } }
feature { name: "pair" type: FLOAT shape { dim { size: 2 } } presence { min_fraction: 1 } }
feature { name: "grid" type: INT shape { dim { size: 2 } dim { size: 1 } } }
feature { name: "flags" type: BYTES bool_domain { true_value: "y" false_value: "n" } }
feature { name: "label" type: INT not_in_environment: "SERVING" presence { min_fraction: 1 } shape { } }
feature { name: "gone" type: INT lifecycle_stage: DEPRECATED }
feature { name: "old" type: INT deprecated: true }
feature { name: "values" type: FLOAT }
feature { name: "lengths" type: INT }
tensor_representation_group { key: "" value { tensor_representation { key: "ragged" value {
  ragged_tensor { feature_path { step: "values" } partition { row_length: "lengths" } } } } } }
"""
LISTS = pa.list_(pa.list_(pa.float32()))


def test_each_construct_of_a_schema_has_a_column(tmp_path: Path) -> None:
    rows = [
        {
            "text": [b"\xc3\xa9"],
            "small": [-3],
            "day": [1],
            "open": [b"new"],
            "pair": [1.0, 2.0],
            "grid": [5, 6],
        }
        | {"flags": [b"y", b"n"], "label": [1], "gone": [1], "values": [1.0, 2.0, 3.0], "lengths": [2, 0, 1]},
        {"pair": [3.0, 4.0], "open": [b"a"], "free": [b"\xff", b""], "unnamed": [1]},
    ]
    fill(tmp_path, {"a.tfrecord": oracle.features_file([features_of(row) for row in rows])})
    (tmp_path / "schema.pbtxt").write_text(TEXT)
    for use in (lambda: None, lambda: index(tmp_path, schema=tmp_path / "schema.pbtxt")):
        use()
        found = table(tmp_path, schema=str(tmp_path / "schema.pbtxt"))
        assert found.to_pylist() == [
            {"free": None, "text": "é", "small": -3, "day": pd.Timestamp("1970-01-02").date(), "open": "new"}
            | {"pair": [1.0, 2.0], "grid": [[5], [6]], "flags": [True, False], "label": 1}
            | {"ragged": [[1.0, 2.0], [], [3.0]]},
            {"free": [b"\xff", b""], "text": None, "small": None, "day": None, "open": "a"}
            | {"pair": [3.0, 4.0], "grid": None, "flags": None, "label": None, "ragged": []},
        ]
    assert found.schema.field("small").type == pa.int8()
    assert found.schema.field("ragged").type == LISTS
    assert table(tmp_path).equals(found)  # the snapshot keeps the columns
    schema = Schema.from_tfmd(tmp_path / "schema.pbtxt")
    assert Schema.from_json(schema.to_json()) == schema == pickle.loads(pickle.dumps(schema))


def test_a_schema_reads_the_features_of_a_snapshot(tmp_path: Path) -> None:
    rows = [
        {"values": [1.0, 2.0, 3.0], "lengths": [number, 3 - number], "label": [number]} for number in (0, 3)
    ]
    for row in rows:
        content = oracle.features_file([features_of(row)])
        fill(tmp_path, {f"{row['label'][0]}.tfrecord": content})
    index(tmp_path)
    (tmp_path / "schema.pbtxt").write_text("".join(TEXT.splitlines(keepends=True)[9:]))
    keywords = {"schema": tmp_path / "schema.pbtxt"}
    assert table(tmp_path, **keywords).column_names == ["label", "ragged"]
    found = read_tfrecord(tmp_path, filters=[("label", ">", 1)], **keywords)
    assert found.npartitions == 1
    assert found.compute()["ragged"].tolist() == [[[1.0, 2.0, 3.0], []]]
    (tmp_path / "schema.pbtxt").write_text(TEXT)
    with pytest.raises(SchemaError, match="'free': no record and no directory has the column"):
        read_tfrecord(tmp_path, **keywords)


def test_every_reader_takes_the_path_of_a_schema(data: Path, tmp_path: Path) -> None:
    root, schema = (
        data / "tfds" / "taxi" / "CsvExampleGen/examples/1/Split-eval",
        data / "tfds" / "taxi" / SCHEMA,
    )
    names = Schema.from_tfmd(schema).names
    ddf = read_tfrecord(root, schema=schema)
    assert list(ddf.columns) == names
    assert len(pickle.loads(pickle.dumps(ddf)).compute(scheduler="synchronous")) == 3
    assert RecordTable(root, schema=schema)[0:2].schema.names == names
    assert next(iter(iter_batches(root, 2, schema=str(schema)))).schema.names == names
    assert list(read_tfrecord(root, schema=schema.parent).columns) == names  # the directory of the artifact
    printed = CliRunner().invoke(main, ["schema", str(root), "--schema", str(schema)]).output
    assert "flag_s: bool" in printed
    as_integers = read_tfrecord(root, schema=schema, dtype_backend="numpy").dtypes
    assert as_integers["hour"] == "int64"  # required features have no nulls
    shutil.copytree(root, tmp_path / "copy")
    assert index(tmp_path / "copy", schema=schema).schema.names == names


def test_what_was_exported_for_tfx_reads_back_alike(tmp_path: Path) -> None:
    types: dict[str, Any] = {
        "flag": (pa.bool_(), [True, False]),
        "small": (pa.uint8(), [1, 255]),
        "text": (pa.string(), ["a", "é"]),
        "raw": (pa.binary(), [b"\xff", b""]),
        "when": (pa.timestamp("us"), [0, 1]),
        "day": (pa.date32(), [3, 4]),
        "lists": (pa.list_(pa.int16()), [[], [1, 2]]),
        "pair": (pa.list_(pa.float32(), 2), [[1.0, 2.0], [3.0, 4.0]]),
        "maybe": (pa.int64(), [None, 4]),
    }
    found = pa.table({name: pa.array(values, type_) for name, (type_, values) in types.items()})
    frame = found.to_pandas(types_mapper=pd.ArrowDtype)
    to_tfrecord(dd.from_pandas(frame, npartitions=1, sort=False), tmp_path, write_index=False)
    export(tmp_path, "tfmd")
    shutil.rmtree(tmp_path / "_tfrecord")
    assert table(tmp_path, schema=tmp_path / "schema.pbtxt").equals(found)
    assert table(tmp_path, schema=tmp_path).equals(found)


@pytest.mark.parametrize("name", ["scalars", "sequences", "tensors", "labels", "taxi"])
def test_what_was_exported_for_tfx_describes_the_features(data: Path, tmp_path: Path, name: str) -> None:
    root = data / "tfds" / name
    shutil.copytree(root / ("1.0.0" if name != "taxi" else "CsvExampleGen"), tmp_path / name)
    stored = index(tmp_path / name, schema=root / SCHEMA if name == "taxi" else None).schema
    export(tmp_path / name, "tfmd")
    found = table(tmp_path / name, schema=tmp_path / name / "schema.pbtxt", use_snapshot=False, split="train")
    assert {*found.column_names} == {one.name for one in stored.columns}
    expected = table(tmp_path / name, split="train")
    for column in ("int64", "flag_s", "fare", "num"):
        if column in expected.column_names:
            assert found[column].equals(expected[column])


def test_a_message_is_a_schema(data: Path) -> None:
    schema_pb2: Any = pytest.importorskip("tensorflow_metadata.proto.v0.schema_pb2")
    text_format = pytest.importorskip("google.protobuf.text_format")
    path = data / "tfds" / "taxi" / SCHEMA
    for text in (path.read_text(), TEXT):
        message = text_format.Parse(text, schema_pb2.Schema())
        assert Schema.from_tfmd(message).names[0] in text
    message = text_format.Parse(path.read_text(), schema_pb2.Schema())
    assert Schema.from_tfmd(message) == Schema.from_tfmd(path)
    assert list(read_tfrecord(data / "tfds" / "taxi", schema=message).columns)[:2] == ["trip_miles", "fare"]


@pytest.mark.parametrize(
    ("text", "feature", "problem"),
    [
        ('feature { name: "x" type: STRUCT }', "x", "has the type STRUCT"),
        ('feature { name: "x" }', "x", "has no type"),
        ('feature { name: "x" type: BYTES bool_domain { } }', "x", "which bytes stand for true"),
        ('feature { name: "x" type: BYTES domain: "d" }', "x", "the domain 'd'"),
        ('feature { name: "x" type: INT shape { dim { } } }', "x", "without a size"),
        ('feature { name: "x" type: 2 value_counts { value_count {} value_count {} } }', "x", "nested"),
        ('feature { name: "x" type: INT } feature { name: "x" type: INT }', "x", "two features"),
        ('feature { name: "x" type: INT value_count: 1 }', None, "not a schema of TensorFlow Metadata"),
        ('feature { name: "x" type: INT ', None, "line 1|missing"),
        ("", None, "describes no features"),
        (
            'tensor_representation_group { value { tensor_representation { key: "r" value { '
            'ragged_tensor { } } } } } feature { name: "x" type: INT }',
            "r",
            "holds the values",
        ),
    ],
)
def test_what_no_column_can_express_is_named(
    tmp_path: Path, text: str, feature: str | None, problem: str
) -> None:
    path = tmp_path / "schema.pbtxt"
    path.write_text(text)
    for use in (lambda: Schema.from_tfmd(path), lambda: read_tfrecord(tmp_path, schema=path)):
        with pytest.raises(SchemaError, match=problem) as caught:
            use()
        assert (caught.value.feature, caught.value.path) == (feature, str(path))
        assert caught.value.advice
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


REQUIRED = 'feature { name: "n" type: INT shape { } presence { min_fraction: 1 } } '


@pytest.mark.parametrize(
    ("text", "feature", "problem"),
    [
        (REQUIRED.replace('"n"', '"m"'), "m", "the record lacks the feature"),
        (REQUIRED.replace("INT", "FLOAT"), "n", "int64"),
        ('feature { name: "w" type: INT value_count { min: 1 max: 1 } }', "w", "2 values"),
        ('feature { name: "w" type: INT shape { dim { size: 3 } } }', "w", "contradicts the shape|2 values"),
        (
            'feature { name: "s" type: BYTES bool_domain { true_value: "y" } }',
            "s",
            "stand for False and True",
        ),
    ],
)
def test_a_schema_that_contradicts_the_data_raises(
    tmp_path: Path, text: str, feature: str, problem: str
) -> None:
    row = {"n": [1], "w": [1, 2], "s": [b"x"]}
    fill(tmp_path, {"a.tfrecord": oracle.features_file([features_of(row)])})
    (tmp_path / "schema.pbtxt").write_text(text)
    ddf = read_tfrecord(tmp_path, schema=tmp_path / "schema.pbtxt")
    with pytest.raises(SchemaError, match=problem) as caught:
        ddf.compute()
    assert (caught.value.feature, caught.value.record) == (feature, 0)
    assert str(caught.value.path).endswith("a.tfrecord")


# --- paths ---------------------------------------------------------------------------------------------


def test_the_files_of_tensorflow_datasets_are_a_schema(data: Path, tmp_path: Path) -> None:
    root = data / "tfds" / "labels" / "1.0.0"
    for file in root.glob("*-train.tfrecord-*"):
        shutil.copy(file, tmp_path)
    for source in (root, root / "features.json", str(root / "features.json")):
        found = table(tmp_path, schema=source)
        assert found.equals(table(root, split="train"))
    codes = table(tmp_path, schema=root / "features.json", labels="codes")
    assert codes["label"].type == pa.int64()


def test_a_path_without_a_schema_raises(tmp_path: Path) -> None:
    fill(tmp_path, {"a.tfrecord": oracle.features_file([{"n": ("int64", [1])}])})
    (tmp_path / "schema.pb").write_bytes(b"\n\x00")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "list.json").write_text("[]")
    for name, problem in {
        "none.pbtxt": "no such file",
        "none.json": "no such file",
        "": "no snapshot",
    }.items():
        with pytest.raises(NotFoundError, match=problem):
            read_tfrecord(tmp_path, schema=tmp_path / name)
    for path, problem in {
        tmp_path / "schema.pb": "binary message",
        tmp_path / "none": "is not a schema",
        tmp_path / "other.json": "other.json: the file describes no features; pass the features.json",
        tmp_path / "list.json": "not a JSON object",
    }.items():
        with pytest.raises(SchemaError, match=problem):
            read_tfrecord(tmp_path, schema=path)


def test_a_schema_may_be_on_another_filesystem(tmp_path: Path) -> None:
    fill(tmp_path, {"a.tfrecord": oracle.features_file([{"n": ("int64", [1])}])})
    MemoryFileSystem().pipe_file("/tfx/schema.pbtxt", REQUIRED.encode())
    assert list(read_tfrecord(tmp_path, schema="memory://tfx/schema.pbtxt").columns) == ["n"]
