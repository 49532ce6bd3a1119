"""The schemas of other libraries: ``schema.pbtxt``, ``features.json``, messages, and feature specs.

Modules: api.schemas, dataset.read.schema_sources, dataset.read.inferred_schema, schema.tfds,
schema.tensorflow_schemas, feed.feature_specs.
"""

import base64
import collections
import datetime
import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem
from other_writers import features_of, fill

import dask_tfrecord
from dask_tfrecord import NotFoundError, Schema, SchemaError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.feed import RecordTable
from dask_tfrecord_launcher import main

pytestmark = pytest.mark.usefixtures("one_thread")


def table(path: Any, **keywords: Any) -> pa.Table:
    return dask_tfrecord.open_dataset(path, **keywords).to_table()


SCHEMA = "SchemaGen/schema/2/schema.pbtxt"


def comparable(value: Any) -> Any:
    """A value of ``_expected.json``, and a value of a column in the same form: a list of stored values."""
    if value is None or isinstance(value, list):
        return value and [base64.b64decode(one["b64"]) if isinstance(one, dict) else one for one in value]
    if isinstance(value, datetime.datetime):
        return [pd.Timestamp(value).value // 10**9]
    return [value.encode() if isinstance(value, str) else value]


@pytest.mark.parametrize("name", ["taxi", "sparse"])
def test_the_rows_of_every_sample_are_those_of_tfx(data: Path, name: str) -> None:
    root = data / "tfds" / name
    expected = json.loads((data / "tfds" / "_tfx_expected.json").read_text())["directories"][name]
    for split, of_split in expected["splits"].items():
        wanted = of_split["rows_tfx_bsl"]
        found = table(root, split=split, schema=root / SCHEMA)
        if name == "taxi":
            assert found.schema.field("company").type == pa.dictionary(pa.int32(), pa.string())
            assert found.schema.field("when").type == pa.timestamp("s")
        columns = found.to_pydict()
        assert {*columns} == {column for column in wanted[0] if column != "old"}
        for column, values in columns.items():
            if column == "flag_s":
                values = ["yes" if one else "no" for one in values]
            expected_values = [comparable(row[column]) for row in wanted]
            assert [comparable(one) for one in values] == expected_values, column


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
    path = tmp_path / "schema.pbtxt"
    path.write_text(TEXT)
    for is_indexed in (False, True):
        if is_indexed:
            open_dataset(tmp_path, schema=path).add_snapshot()
        found = table(tmp_path, schema=str(path))
        assert found.to_pylist() == [
            {"free": None, "text": "é", "small": -3, "day": datetime.date(1970, 1, 2), "open": "new"}
            | {"pair": [1.0, 2.0], "grid": [[5], [6]], "flags": [True, False], "label": 1}
            | {"ragged": [[1.0, 2.0], [], [3.0]]},
            {"free": [b"\xff", b""], "text": None, "small": None, "day": None, "open": "a"}
            | {"pair": [3.0, 4.0], "grid": None, "flags": None, "label": None, "ragged": []},
        ]
    assert found.schema.field("small").type == pa.int8()
    assert found.schema.field("ragged").type == pa.list_(pa.list_(pa.float32()))
    assert table(tmp_path).equals(found)  # the snapshot keeps the columns
    schema = Schema.from_tfmd(path)
    assert Schema.from_json(schema.to_json()) == schema == pickle.loads(pickle.dumps(schema))


def test_a_schema_reads_the_features_of_a_snapshot(tmp_path: Path) -> None:
    for number in (0, 3):
        row = {"values": [1.0, 2.0, 3.0], "lengths": [number, 3 - number], "label": [number]}
        fill(tmp_path, {f"{number}.tfrecord": oracle.features_file([features_of(row)])})
    open_dataset(tmp_path).add_snapshot()
    path = tmp_path / "schema.pbtxt"
    path.write_text("".join(TEXT.splitlines(keepends=True)[9:]))
    assert table(tmp_path, schema=path).column_names == ["label", "ragged"]
    found = read_tfrecord(tmp_path, filters=[("label", ">", 1)], schema=path)
    assert found.npartitions == 1
    assert found.compute()["ragged"].tolist() == [[[1.0, 2.0, 3.0], []]]
    path.write_text(TEXT)
    with pytest.raises(SchemaError, match="'free': no record and no directory has the column"):
        read_tfrecord(tmp_path, schema=path)


def test_every_reader_takes_the_path_of_a_schema(data: Path, tmp_path: Path) -> None:
    root = data / "tfds" / "taxi" / "CsvExampleGen/examples/1/Split-eval"
    schema = data / "tfds" / "taxi" / SCHEMA
    names = Schema.from_tfmd(schema).names
    ddf = read_tfrecord(root, schema=schema)
    assert list(ddf.columns) == names
    assert len(pickle.loads(pickle.dumps(ddf)).compute()) == 3
    assert RecordTable(root, schema=schema)[0:2].schema.names == names
    assert next(iter(dask_tfrecord.feed.iter_batches(root, 2, schema=str(schema)))).schema.names == names
    assert list(read_tfrecord(root, schema=schema.parent).columns) == names  # the directory of the artifact
    printed = CliRunner().invoke(main, ["schema", str(root), "--schema", str(schema)]).output
    assert "flag_s: bool" in printed
    dtypes = read_tfrecord(root, schema=schema, dtype_backend="numpy").dtypes
    assert dtypes["hour"] == "int64"  # required features have no nulls
    shutil.copytree(root, tmp_path / "copy")
    open_dataset(tmp_path / "copy", schema=schema).add_snapshot()
    assert Snapshot.open(tmp_path / "copy").schema.names == names


EXPORTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False]),
    "small": (pa.uint8(), [1, 255]),
    "text": (pa.string(), ["a", "é"]),
    "raw": (pa.binary(), [b"\xff", b""]),
    "lists": (pa.list_(pa.int16()), [[], [1, 2]]),
    "pair": (pa.list_(pa.float32(), 2), [[1.0, 2.0], [3.0, 4.0]]),
}
OF_TFDS = {
    "half": (pa.float16(), [np.float16(0.5), np.float16(2)]),
    "wide": (pa.float64(), [0.5, 2.0]),
    "words": (pa.list_(pa.string()), [["a"], []]),
}
OF_TFX = {
    "when": (pa.timestamp("us"), [0, 1]),
    "day": (pa.date32(), [3, 4]),
    "maybe": (pa.int64(), [None, 4]),
}


@pytest.mark.parametrize(("format", "more"), [("tfds", OF_TFDS), ("tfmd", OF_TFX)])
def test_what_was_exported_reads_back_alike(tmp_path: Path, format: Any, more: dict[str, Any]) -> None:
    columns = {name: pa.array(values, type_) for name, (type_, values) in {**EXPORTED, **more}.items()}
    dask_tfrecord.to_tfrecord(pa.table(columns), tmp_path, lossy="allow")
    open_dataset(tmp_path).export(format)
    shutil.rmtree(tmp_path / "_tfrecord")
    if format == "tfds":
        assert table(tmp_path, split="train").equals(pa.table(columns))
    else:
        for schema in (tmp_path / "schema.pbtxt", tmp_path):
            assert table(tmp_path, schema=schema).equals(pa.table(columns))


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


RAGGED_TEXT = """tensor_representation_group { value { tensor_representation { key: "r" value {
  ragged_tensor { } } } } } feature { name: "x" type: INT }"""


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
        (RAGGED_TEXT, "r", "holds the values"),
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
        ('feature { name: "s" type: BYTES bool_domain { true_value: "y" } }', "s", "for False and True"),
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


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("none.pbtxt", None, "no such file"),
        ("none.json", None, "no such file"),
        ("", None, "no snapshot"),
        ("none", None, "is not a schema"),
        ("schema.pb", "\n\0", "binary message"),
        ("other.json", '{"a": 1}', "other.json: the file describes no features; pass the features.json"),
        ("list.json", "[]", "not a JSON object"),
    ],
)
def test_a_path_without_a_schema_raises(tmp_path: Path, name: str, content: str | None, problem: str) -> None:
    fill(tmp_path, {"a.tfrecord": oracle.features_file([{"n": ("int64", [1])}])})
    if content is not None:
        (tmp_path / name).write_text(content)
    expected = NotFoundError if "no s" in problem else SchemaError
    with pytest.raises(expected, match=problem):
        read_tfrecord(tmp_path, schema=tmp_path / name)


def test_a_schema_may_be_on_another_filesystem(tmp_path: Path) -> None:
    fill(tmp_path, {"a.tfrecord": oracle.features_file([{"n": ("int64", [1])}])})
    MemoryFileSystem().pipe_file("/tfx/schema.pbtxt", REQUIRED.encode())
    assert list(read_tfrecord(tmp_path, schema="memory://tfx/schema.pbtxt").columns) == ["n"]


def rows_for_specs() -> list[dict[str, list[Any]]]:
    rng = random.Random(0)
    rows = []
    for number in range(60):
        inner = [rng.randrange(3) for _ in range(rng.randrange(4))]
        splits = [sum(inner[:at]) for at in range(len(inner) + 1)]
        outer = sorted({0, rng.randrange(len(inner) + 1), len(inner)})
        row: dict[str, list[Any]] = {
            "v": [rng.randrange(100) for _ in range(sum(inner))],
            "splits": splits,
            "lengths": inner,
            "starts": splits[:-1],
            "limits": splits[1:],
            "ids": [at for at, size in enumerate(inner) for _ in range(size)],
            "outer": outer,
            "pairs": [float(rng.randrange(9)) for _ in range(2 * rng.randrange(3))],
            "doubles": [0.5, 2.0] * rng.randrange(3),
            "grid": [1, 2, 3, 4, 5, number],
            "text": [b"t%d" % number],
            "maybe": [number] * (number % 2),
            "words": [b"a"] * rng.randrange(3),
            "at": sorted(rng.sample(range(10), 3)),
            "weight": [0.5, 1.5, 2.5],
        }
        rows.append({name: values for name, values in row.items() if values})
    return rows


@pytest.mark.tensorflow
def test_feature_specs_read_what_tensorflow_parses(tmp_path: Path) -> None:
    tf: Any = pytest.importorskip("tensorflow")
    io = tf.io
    content = oracle.features_file([features_of(row) for row in rows_for_specs()])
    fill(tmp_path, {"a.tfrecord": content})
    ragged = io.RaggedFeature
    kinds = {"splits": "RowSplits", "lengths": "RowLengths", "starts": "RowStarts", "limits": "RowLimits"}
    by_kind = {f"by {key}": getattr(ragged, kind)(key) for key, kind in kinds.items()}
    by_kind["by ids"] = ragged.ValueRowIds("ids")
    specs = {
        "grid": io.FixedLenFeature([2, 3], tf.int64),
        "text": io.FixedLenFeature([], tf.string),
        "maybe": io.FixedLenFeature([], tf.int64, default_value=-1),
        "words": io.VarLenFeature(tf.string),
        "pairs": io.FixedLenSequenceFeature([2], tf.float32, allow_missing=True),
        "v": ragged(tf.int64),
        "same": ragged(tf.int64, value_key="v"),
        "uniform": ragged(tf.float32, value_key="doubles", partitions=[ragged.UniformRowLength(2)]),
        "deep": ragged(tf.int64, "v", [ragged.RowSplits("outer"), ragged.RowLengths("lengths")]),
        **{name: ragged(tf.int64, "v", [one]) for name, one in by_kind.items()},
        "sparse": io.SparseFeature("at", "weight", tf.float32, 10),
    }
    parsed = io.parse_example([*oracle.frames(content)], specs)
    found = table(tmp_path, schema=specs)
    assert set(found.column_names) == {*specs, "at", "weight"} - {"sparse"}
    for name in found.column_names:
        got = found[name].to_pylist()
        if name in ("at", "weight"):
            flat = [one for row in got for one in row]
            tensor = parsed["sparse"]
            assert flat == (tensor.indices[:, 1] if name == "at" else tensor.values).numpy().tolist()
            continue
        tensor = parsed[name]
        if isinstance(tensor, tf.SparseTensor):
            tensor = tf.RaggedTensor.from_sparse(tensor)
        wanted = tensor.to_list() if hasattr(tensor, "to_list") else tensor.numpy().tolist()
        if name == "pairs":  # TensorFlow pads the rows of a batch
            wanted = [row[: len(one or ())] for row, one in zip(wanted, got, strict=True)]
        absent = -1 if name == "maybe" else []
        assert [absent if one is None else one for one in got] == wanted, name
    ddf = read_tfrecord(tmp_path, schema=specs)
    assert len(pickle.loads(pickle.dumps(ddf)).compute()) == 60
    # What is written is in the same features, so the same specs parse the same values.
    for number, rows in enumerate((ddf, ddf.compute(), open_dataset(tmp_path, schema=specs).to_table())):
        to_tfrecord(rows, tmp_path / f"_written{number}")
        assert open_dataset(tmp_path / f"_written{number}").record_type == "example"
        [written] = (tmp_path / f"_written{number}").glob("part-*")
        again = io.parse_example([*oracle.frames(written.read_bytes())], specs)
        for name, tensor in again.items():
            assert _listed(tensor) == _listed(parsed[name]), name


def _listed(tensor: Any) -> Any:
    if hasattr(tensor, "indices"):
        return tensor.indices.numpy().tolist(), tensor.values.numpy().tolist()
    return tensor.to_list() if hasattr(tensor, "to_list") else tensor.numpy().tolist()


def spec(kind: str, **content: Any) -> Any:
    """An object that looks like a spec of TensorFlow, which need not be installed."""
    class_ = collections.namedtuple(kind, list(content))  # type: ignore[misc]  # mypy wants a literal
    class_.__module__ = "tensorflow.python.ops.parsing_config"
    return class_(**content)


def fixed(dtype: str = "int64", shape: Any = (), default: Any = None) -> Any:
    return spec("FixedLenFeature", shape=shape, dtype=dtype, default_value=default)


def test_specs_are_recognised_by_their_names(tmp_path: Path) -> None:
    fill(tmp_path, {"a.tfrecord": oracle.features_file([{"n": ("int64", [1]), "m": ("bytes", [b"x"])}])})
    specs = {
        "m": fixed("string"),
        "none": fixed("float32", default=0.0),
        "n": spec("VarLenFeature", dtype="int64"),
        "again": ragged("n"),
    }
    assert table(tmp_path, schema=specs).to_pylist() == [{"m": b"x", "none": None, "n": [1], "again": [1]}]
    with pytest.raises(SchemaError, match="the record lacks the feature") as caught:
        table(tmp_path, schema={"absent": fixed()})
    assert caught.value.feature == "absent"


def ragged(value_key: Any, *partitions: Any) -> Any:
    return spec("RaggedFeature", dtype="int64", value_key=value_key, partitions=partitions)


SPARSE = spec("SparseFeature", dtype="int64", value_key="x", index_key=["i"])


@pytest.mark.parametrize(
    ("specs", "problem"),
    [
        ({"x": fixed("int32")}, "cannot hold int32"),
        ({"x": fixed(shape=[None])}, "unknown dimension"),
        ({"y": pa.int64(), "x": fixed()}, "is not a feature spec"),
        ({"x": fixed(), "y": ragged("x")}, "different types or with different numbers"),
        ({"x": fixed(), "y": SPARSE}, "two specs describe this column"),
        ({"x": ragged(None, fixed())}, "cannot be read"),
    ],
)
def test_specs_that_no_column_can_express_are_named(
    tmp_path: Path, specs: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SchemaError, match=problem) as caught:
        read_tfrecord(tmp_path, schema=specs)
    assert caught.value.feature == ("y" if "y" in specs and "feature spec" in problem else "x")
    assert caught.value.advice


@pytest.mark.parametrize(
    ("kind", "good", "integers", "problem"),
    [
        ("RowSplits", [0, 3], [1, 3], "begins at 1 instead of 0"),
        ("RowStarts", [0], [0, 4], "contradict the number of values"),
        ("RowLimits", [3], [2, 2], "contradict the number of values"),
        ("RowLimits", [3], [4, 3], "contradict the number of values"),
        ("RowLengths", [3], [2], "contradict the number of values"),
        ("ValueRowIds", [0, 0, 0], [0, 1], "3 values have 2 row numbers"),
        ("ValueRowIds", [0, 0, 0], [1, 0, 1], "not in ascending order"),
        ("ValueRowIds", [0, 0, 0], [0, 0, 2**40], "sequences"),
    ],
)
def test_integers_that_contradict_the_values_raise(
    tmp_path: Path, kind: str, good: list[int], integers: list[int], problem: str
) -> None:
    rows = [{"v": [1, 2, 3], "i": one} for one in (good, integers)]
    fill(tmp_path, {"a.tfrecord": oracle.features_file([features_of(row) for row in rows])})
    with pytest.raises(SchemaError, match=problem) as caught:
        read_tfrecord(tmp_path, schema={"x": ragged("v", spec(kind, key="i"))}).compute()
    assert (caught.value.feature, caught.value.record) == ("x", 1)
