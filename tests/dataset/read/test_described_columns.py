"""Directories of TensorFlow Datasets: ``features.json`` gives the columns, their types and their shapes.

Modules: schema.stored_form, dataset.read.columns.
"""

import base64
import json
import math
import shutil
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from other_writers import fill

import dask_tfrecord
from dask_tfrecord import (
    CorruptRecordError,
    DestinationError,
    Schema,
    SchemaError,
    TFRecordError,
    open_dataset,
    read_tfrecord,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def plain(value: Any) -> Any:
    """Convert a value of ``_expected.json`` to Python values."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return float(value) if value in ("inf", "-inf", "nan") else value
    if "b64" in value:
        return base64.b64decode(value["b64"])
    if "values" in value:
        flat = np.empty(len(value["values"]), object)
        flat[:] = [plain(one) for one in value["values"]]
        return flat.reshape(value["shape"]).tolist()
    for key in ("ragged", "dataset", "value"):
        if key in value:
            return plain(value[key])
    return {key: plain(one) for key, one in value.items()}


def pick(row: Any, path: tuple[str, ...]) -> Any:
    """Return the value of a column from the nested row of TensorFlow Datasets."""
    if isinstance(row, list):
        return [pick(one, path) for one in row]
    for end in range(len(path), 0, -1):  # a name may contain a slash
        if isinstance(row, dict) and (name := "/".join(path[:end])) in row:
            return pick(row[name], path[end:]) if path[end:] else row[name]
    raise KeyError(path)


def alike(value: Any) -> Any:
    """Make values comparable: text as bytes, NaN as text, tensors with a shape of their own as lists."""
    if isinstance(value, dict):
        return np.array(value["data"], object).reshape(value["shape"]).tolist()
    if isinstance(value, list):
        return [alike(one) for one in value]
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value.encode() if isinstance(value, str) else value


def expected(root: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each split of a sample with the rows that TensorFlow Datasets returns."""
    ((_, of_directory),) = json.loads((root / "_expected.json").read_text())["directories"].items()
    for split, found in of_directory["splits"].items():
        # TensorFlow's reader has no null, the NumPy reader has.
        rows = found.get("rows_numpy_reader") or found.get("rows_with_encoded_images") or found["rows"]
        yield split, [plain(row) for row in rows]


SAMPLES = ["scalars", "tensors", "sequences", "mixed", "images", "labels"]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_rows_of_every_sample_are_those_of_tensorflow_datasets(
    data: Path, tmp_path: Path, name: str, indexed: bool
) -> None:
    root = tmp_path / name
    shutil.copytree(data / "tfds" / name / "1.0.0", root)
    if indexed:
        dask_tfrecord.open_dataset(root).add_snapshot()
    everything = read_tfrecord(root).compute()
    for split, wanted in expected(data / "tfds" / name):
        described = open_dataset(root, split=split)
        table = described.to_table()
        assert table.num_rows == len(wanted) == len(read_tfrecord(root, split=split))
        assert (everything["split"] == split).sum() == len(wanted)
        for column in described.schema.names:
            values = table[column].combine_chunks()
            names = classes(root, column)
            got = [alike(coded(value, names)) for value in values.to_pylist()]
            assert got == [alike(pick(row, tuple(column.split("/")))) for row in wanted], column
    assert dask_tfrecord.open_dataset(root).verify()["agrees"].all() or not indexed


def classes(root: Path, column: str) -> list[str]:
    path = root / f"{column.replace('/', '-')}.labels.txt"
    return [line.strip() for line in path.read_text().split("\n") if line.strip()] if path.exists() else []


def coded(value: Any, names: list[str]) -> Any:
    """Convert the names of classes to their numbers."""
    if not names or isinstance(value, bytes):  # a labelled image has names, too
        return value
    if isinstance(value, list):
        return [coded(one, names) for one in value]
    return -1 if value is None else names.index(value)


def test_a_group_of_columns_is_read_by_its_name(data: Path) -> None:
    root = data / "tfds" / "mixed"
    members = ["objects/bbox", "objects/label"]
    assert list(read_tfrecord(root, columns="objects").compute().columns) == members
    assert open_dataset(root, columns=["path", "objects"]).schema.names == ["path", *members]
    assert dask_tfrecord.feed.RecordTable(root, columns=["objects"])[0:2].schema.names == members
    assert next(iter(dask_tfrecord.feed.iter_batches(root, 2, columns="objects"))).schema.names == members
    assert read_tfrecord(root, columns="path").name == "path"


def test_labels_are_names_or_numbers(data: Path, tmp_path: Path) -> None:
    root = data / "tfds" / "labels"
    named = read_tfrecord(root, split="train").compute()["label"]
    assert isinstance(named.dtype, pd.CategoricalDtype)
    assert set(named.cat.categories) == set(classes(root / "1.0.0", "label"))
    filtered = read_tfrecord(root, filters=[("label", "==", named[0])]).compute()["label"]
    assert set(filtered) == {named[0]}
    indexed = shutil.copytree(root / "1.0.0", tmp_path / "indexed")
    dask_tfrecord.open_dataset(indexed).add_snapshot()
    for path in (root, indexed):
        label = read_tfrecord(path, blocksize=None)["label"]
        parts = [one.compute() for one in label.partitions]
        assert len(parts) > 1
        assert {tuple(one.cat.categories) for one in (label, *parts)} == {
            tuple(classes(root / "1.0.0", "label"))
        }
        numbers = read_tfrecord(path, split="train", labels="codes").compute()["label"]
        assert numbers.tolist() == named.cat.codes.tolist()
    with pytest.raises(TFRecordError, match="unknown labels 'name'"):
        read_tfrecord(root, labels="name")  # type: ignore[arg-type]  # an invalid value
    dask_tfrecord.to_tfrecord(read_tfrecord(indexed), indexed, append=True, partition_on="split")
    twice = read_tfrecord(indexed, split="train").compute()["label"]
    assert twice.tolist() == [*named, *named]


def test_a_description_shows_splits_and_the_caller_overrides_its_types(data: Path) -> None:
    described = open_dataset(data / "tfds" / "scalars")
    assert described.splits == {"train": 7, "test": 3, "validation": 4}
    assert described.supervised_keys == ("int64", "flag")
    assert open_dataset(data / "tfds" / "taxi").splits == {"eval": None, "train": None}
    root = data / "tfds" / "tensors"
    schema = {"m23": pa.list_(pa.int64()), "u64": None, "nn_zlib/value": pa.binary()}
    frame = read_tfrecord(root, split="train", schema=schema).compute()
    assert {"u64", "nn_zlib"}.isdisjoint(frame.columns)
    assert all(len(value) == 6 for value in frame["m23"])
    with pytest.raises(SchemaError, match="m32"):
        read_tfrecord(root, schema={"m32": pa.int64()})
    whole = read_tfrecord(root, schema=pa.schema({"m23": pa.list_(pa.int64())}))
    assert list(whole.columns) == ["m23", "split"]


@pytest.mark.parametrize("name", ["sequences", "tensors", "labels"])
def test_a_schema_of_a_description_reads_files_without_one(data: Path, tmp_path: Path, name: str) -> None:
    root = data / "tfds" / name / "1.0.0"
    for path in root.glob("*-train.tfrecord-*"):
        shutil.copy(path, tmp_path)
    schema = Schema.from_tfds(root)
    assert Schema.from_json(schema.to_json()) == schema
    expected = str(read_tfrecord(root, split="train").compute().to_dict())
    for source in (schema, root, root / "features.json", str(root / "features.json")):
        assert str(read_tfrecord(tmp_path, schema=source).compute().to_dict()) == expected
    if name == "labels":
        codes = read_tfrecord(tmp_path, schema=root / "features.json", labels="codes")
        assert codes.dtypes["label"] == pd.ArrowDtype(pa.int64())
    with pytest.raises(FileNotFoundError, match=r"features\.json"):
        Schema.from_tfds(tmp_path)
    with pytest.raises(TFRecordError, match="unknown labels 'kodes'"):
        Schema.from_tfds(root, labels="kodes")


INT = {"tensor": {"dtype": "int64", "shape": {}}}
LABEL = {"classLabel": {"numClasses": "2"}}


def dataset(root: Path, features: Any, record: Any, lengths: list[int] | None = None) -> Path:
    """Write a dataset of TensorFlow Datasets with one file, whose two records are the same."""
    fill(root, {"x-train.tfrecord-00000-of-00001": oracle.features_file([record]) * 2})
    splits = [{"name": "train", "shardLengths": [str(length) for length in lengths or [2]]}]
    (root / "dataset_info.json").write_text(json.dumps({"name": "x", "splits": splits}))
    (root / "features.json").write_text(json.dumps({"featuresDict": {"features": features}}))
    return root


def tensor(dtype: str, *shape: int, **more: Any) -> dict[str, Any]:
    dimensions = {"dimensions": [str(size) for size in shape]} if shape else {}
    return {"tensor": {"dtype": dtype, "shape": dimensions, **more}}


NESTED = {"sequence": {"feature": {"sequence": {"feature": INT}}}}
RAGGED = {"x/ragged_flat_values": ("int64", [1, 2]), "x/ragged_row_lengths_0": ("int64", [1, 2])}


@pytest.mark.parametrize(
    ("feature", "stored", "problem"),
    [
        (tensor("float32"), ("int64", [1]), "holds int64"),
        (tensor("int8"), ("int64", [300]), "300 does not fit int8"),
        (tensor("int64", 3), ("int64", [1, 2]), r"number of values is 2, .* shape \(3\)"),
        (tensor("int64", -1, 3), ("int64", [1] * 4), r"number of values is 4, .* shape \(any, 3\)"),
        (tensor("int64"), None, "lacks the feature"),
        (tensor("float64", 2, encoding="bytes"), ("bytes", [b"\0" * 12]), "12 bytes are no array of double"),
        (tensor("int8", 2, encoding="zlib"), ("bytes", [b"no"]), "not compressed with zlib"),
        (tensor("int8", 2, encoding="zlib"), ("bytes", [zlib.compress(bytes(3))]), "more than 2 bytes"),
        (tensor("int8", 2, encoding="zlib"), ("bytes", [zlib.compress(bytes(2))[:-1]]), "truncated"),
        ({"sequence": {"feature": INT, "length": "2"}}, ("int64", [1, 2, 3]), r"shape \(2\)"),
        ({"sequence": {"feature": tensor("int64", 2)}}, ("int64", [1, 2, 3]), r"shape \(2\)"),
        (NESTED, RAGGED, "lengths of the inner sequences"),
        (LABEL, ("int64", [2]), "the number of the class is 2, but 2 classes have names"),
    ],
    ids=str,
)
def test_a_contradiction_names_the_file_the_record_and_the_feature(
    tmp_path: Path, feature: dict[str, Any], stored: Any, problem: str
) -> None:
    record = {"n": ("int64", [1])}
    record |= stored if isinstance(stored, dict) else {"x": stored} if stored else {}
    root = dataset(tmp_path, {"n": INT, "x": feature}, record)
    (root / "x.labels.txt").write_text("a\nb")
    with pytest.raises(SchemaError, match=problem) as caught:
        read_tfrecord(root).compute()
    assert caught.value.feature == "x"
    assert (caught.value.path, caught.value.record) == (str(root / "x-train.tfrecord-00000-of-00001"), 0)
    assert read_tfrecord(root, columns=["n"]).compute()["n"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("feature", "rows"),
    [
        (tensor("uint8", 3), [[1, 2, 3], [1, 2, 300]]),
        (tensor("uint8", optional=True), [None, None, [300]]),
        ({"sequence": {"feature": tensor("uint8")}}, [[], [1, 2], [1, 300]]),
    ],
    ids=["tensor", "optional", "sequence"],
)
def test_errors_name_the_record_and_the_types_that_read_it(
    tmp_path: Path, feature: dict[str, Any], rows: list[Any]
) -> None:
    root = dataset(tmp_path, {"x": feature}, {}, [len(rows)])
    records = [{"n": ("int64", [1])} | ({} if row is None else {"x": ("int64", row)}) for row in rows]
    (root / "x-train.tfrecord-00000-of-00001").write_bytes(oracle.features_file(records))
    with pytest.raises(SchemaError) as caught:
        read_tfrecord(root, extra="ignore").compute()
    assert caught.value.record == len(rows) - 1
    with pytest.raises(SchemaError):
        dask_tfrecord.feed.RecordTable(root, extra="ignore")[[0, len(rows) - 1]]
    ((keyword, types, _),) = caught.value.remedies
    assert len(read_tfrecord(root, extra="ignore", **{keyword: types}).compute()) == len(rows)


def test_each_tensor_needs_a_shape_of_its_own(tmp_path: Path) -> None:
    root = dataset(tmp_path, {"x": tensor("int8", -1, -1, encoding="bytes")}, {})
    records: list[Any] = [
        {"x/shape": ("int64", shape), "x/value": ("bytes", [value])}
        for shape, value in (([1], bytes(2)), ([2, 1, 3], bytes(3)))
    ]
    (root / "x-train.tfrecord-00000-of-00001").write_bytes(oracle.features_file(records))
    with pytest.raises(SchemaError, match="1 tensors have 1 sizes"):
        read_tfrecord(root).compute()
    with pytest.raises(DestinationError, match="no snapshot"):
        dask_tfrecord.to_tfrecord(dd.from_dict({"x": [1]}, npartitions=1), root, append=True)


def test_a_misspelt_column_is_noticed_beside_unknown_features(tmp_path: Path) -> None:
    features = {"x": {"jsonFeature": {}}, "objects/label": INT}
    root = dataset(tmp_path, features, {"x": ("int64", [1]), "objects/label": ("int64", [1])})
    with pytest.warns(UserWarning, match="did you mean 'objects/label'"):
        read_tfrecord(root, schema={"objectz/label": pa.int64()})


@pytest.mark.parametrize(
    ("names", "expected"),
    [("a\nb\n", ["b", "b"]), ("a\nb\nc", [1, 1]), ("a\na\n", [1, 1]), (None, [1, 1])],
)
def test_labels_without_a_name_for_each_class_keep_their_numbers(
    tmp_path: Path, names: str | None, expected: list[Any]
) -> None:
    root = dataset(tmp_path, {"x": LABEL}, {"x": ("int64", [1])})
    if names is not None:
        (root / "x.labels.txt").write_text(names)
    warns = names not in (None, "a\nb\n")
    message = 'for 2 classes, .*labels="codes"'
    with pytest.warns(UserWarning, match=message) if warns else nullcontext():
        assert read_tfrecord(root).compute()["x"].tolist() == expected
    assert read_tfrecord(root, labels="codes").compute()["x"].tolist() == [1, 1]


@pytest.mark.parametrize("length", [1, 3])
def test_a_file_with_another_number_of_records_raises(tmp_path: Path, length: int) -> None:
    root = dataset(tmp_path, {"x": INT}, {"x": ("int64", [1])}, [length])
    assert len(read_tfrecord(root)) == length
    message = f"2 records, but .*dataset_info.json says {length}"
    with pytest.raises(CorruptRecordError, match=message):
        read_tfrecord(root).compute()
    with pytest.raises(CorruptRecordError, match=message):
        read_tfrecord(root, blocksize=20).compute()


def test_features_of_unknown_classes_keep_their_stored_types(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = {"jsonFeature": {"json": "{}"}, "pythonClassName": "elsewhere.Feature"}
    features = {"n": tensor("int8"), "x": unknown, "y": tensor("bfloat16")}
    record = {"n": ("int64", [1]), "x": ("int64", [1, 2]), "y": ("float", [0x3FC00000])}
    schema = open_dataset(dataset(tmp_path, features, record)).schema
    assert (schema.field("n").type, schema.field("y").type) == (pa.int8(), pa.float32())
    assert schema.field("x").type == pa.list_(pa.int64())
    assert "keep their stored types: 'x', 'y'" in caplog.text


def of_features(features: Any) -> str:
    return json.dumps({"featuresDict": {"features": features}})


INVALID = r"features\.json: the description of the features is not valid"
TWO = {"a": {"featuresDict": {"features": {"b": INT}}}, "a/b": INT}


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("features.json", "{", INVALID),
        ("features.json", "[]", INVALID),
        ("features.json", of_features({"x": tensor("int8", 10**11)}), INVALID),
        ("features.json", of_features({"x": 1}), INVALID),
        ("features.json", of_features(TWO), "two features with this name"),
        ("x.labels.txt", "caf\xe9\nb", r"x\.labels\.txt is not valid UTF-8.*labels=\"codes\""),
        ("dataset_info.json", '{"fileFormat": "array_record"}', "the format 'array_record'"),
        ("dataset_info.json", '{"fileFormat": "parquet"}', "the format 'parquet'"),
        ("dataset_info.json", '{"fileFormat": "riegeli"}', "the format 'riegeli'"),
    ],
)
def test_an_invalid_description_raises(tmp_path: Path, name: str, content: str, problem: str) -> None:
    root = dataset(tmp_path, {"x": LABEL}, {"x": ("int64", [1])})
    (root / name).write_text(content, "latin-1")
    with pytest.raises(TFRecordError, match=problem):
        read_tfrecord(root)


def test_the_form_before_version_4_4_is_read(tmp_path: Path) -> None:
    def old(kind: str, content: Any, proto: str = "") -> dict[str, Any]:
        found = {"type": f"tensorflow_datasets.core.features.{kind}", "content": content}
        return found | ({"proto_cls": f"tensorflow_datasets.{proto}"} if proto else {})

    label = old("class_label_feature.ClassLabel", {"num_classes": 2}, "ClassLabel")
    steps = old(
        "sequence_feature.Sequence",
        {"feature": old("tensor_feature.Tensor", {"shape": [2], "dtype": "int8"}), "length": None},
    )
    tree = old("features_dict.FeaturesDict", {"label": label, "steps": steps})
    root = dataset(tmp_path, {}, {"label": ("int64", [1]), "steps": ("int64", [1, 2, 3, 4])})
    (root / "features.json").write_text(json.dumps(tree))
    frame = read_tfrecord(root, split="train").compute()
    assert frame["label"].tolist() == [1, 1]
    assert [[list(pair) for pair in value] for value in frame["steps"]] == [[[1, 2], [3, 4]]] * 2
