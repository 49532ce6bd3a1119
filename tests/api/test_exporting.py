"""`export`: its files follow the definitions of other libraries, and disturb no read or write.

If TensorFlow Datasets, TensorFlow Metadata and the tfrecord package are installed, they check the files.

Modules: dataset.export, schema.tfds, schema.tensorflow_schemas.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from small_frames import flip

import dask_tfrecord
from dask_tfrecord import CorruptRecordError, DestinationError, SchemaError, TFRecordError, open_dataset
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.storage.store import Store

ROWS = 90


def frame() -> pd.DataFrame:
    numbers = np.arange(ROWS)
    pixels = pa.FixedSizeListArray.from_arrays(pa.array((numbers[:, None] + np.arange(6)).ravel()), 6)
    columns = {
        "id": pa.array(numbers),
        "small": pa.array(numbers % 100, pa.int8()),
        "even": pa.array(numbers % 2 == 0),
        "half": pa.array(numbers / 2, pa.float32()),
        "name": pa.array([f"é{number}" for number in numbers]),
        "raw": pa.array([bytes([number, 255]) for number in numbers]),
        "day": pa.array(numbers, pa.int32()).cast(pa.date32()),
        "some": pa.array([list(range(number % 4)) for number in numbers], pa.list_(pa.int32())),
        "words": pa.array([["a"] * (number % 3) for number in numbers]),
        "pair": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * ROWS), pa.float32()), 2),
        "image": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int64(), [2, 3]), pixels),
    }
    return pd.DataFrame({name: pd.arrays.ArrowExtensionArray(array) for name, array in columns.items()})


def with_splits() -> pd.DataFrame:
    return frame().assign(split=["train", "train", "eval"] * 30)


Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a dataset, and return its path."""

    def write(data: pd.DataFrame | None = None, npartitions: int = 3, **keywords: Any) -> str:
        if data is None:
            data = with_splits() if "partition_on" in keywords else frame()
        path = str(tmp_path / "My data")
        ddf = dd.from_pandas(data, npartitions=npartitions, sort=False)
        dask_tfrecord.to_tfrecord(ddf, path, **keywords)
        return path

    return write


def exported(path: str, format: Any) -> Any:
    return json.loads(Path(open_dataset(path).export(format)[0]).read_text())["featuresDict"]["features"]


@pytest.mark.parametrize("window", [50, None])
def test_an_index_locates_records(write: Write, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if window:  # records are larger
        monkeypatch.setattr("dask_tfrecord.files.record_file.WINDOW_BYTES", window)
    path = write(write_options={"max_rows_per_file": 20})
    written = open_dataset(path).export("idx")
    files = Snapshot.open(path).files
    assert written == [f"{path}/_idx/{file.path}.idx" for file in files]
    for file, index in zip(files, written, strict=True):
        data = Path(path, file.path).read_bytes()
        spans = [tuple(map(int, line.split(" "))) for line in Path(index).read_text().splitlines()]
        assert [data[start + 12 : start + size - 4] for start, size in spans] == oracle.frames(data)


def test_index_files_on_a_store_are_written_beside_the_data() -> None:
    ddf = dd.from_dict({"x": [1, 2]}, npartitions=1)
    dask_tfrecord.to_tfrecord(ddf, "memory://export/dataset", overwrite=True)
    (written,) = open_dataset("memory://export/dataset").export("idx")
    assert Store.at(written).fs.cat_file(written).split()[0] == b"0"
    assert dask_tfrecord.read_tfrecord("memory://export/dataset")["x"].compute().tolist() == [1, 2]


def test_damaged_files_get_no_index(write: Write) -> None:
    path = write()
    file = Path(path, Snapshot.open(path).files[1].path)
    flip(file, 0)
    with pytest.raises(CorruptRecordError, match=re.escape(file.name)):
        open_dataset(path).export("idx")


def test_compressed_files_are_refused(write: Write) -> None:
    path = write(compression="gzip")
    for format, reader in (("idx", "a reader with an index"), ("tfds", "TensorFlow Datasets")):
        with pytest.raises(TFRecordError, match=f"compressed with gzip, which {reader} cannot read; write"):
            open_dataset(path).export(format)
    assert open_dataset(path).export("tfmd") == [f"{path}/schema.pbtxt"]


SHAPES: dict[str, dict[str, Any]] = {
    "one file per partition": {},
    "splits": {"partition_on": "split"},
    "splits of one file": {"partition_on": "split", "colocate": True},
    "splits of files of one task": {
        "partition_on": "split",
        "colocate": True,
        "write_options": {"max_rows_per_file": 7},
    },
    "files that did not roll over": {"partition_on": "split", "write_options": {"max_rows_per_file": 1000}},
    "one task that rolled over": {"npartitions": 1, "write_options": {"max_rows_per_file": 20}},
    "names": {"npartitions": 1, "name_function": lambda number: f"part{number}"},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_description_names_the_files_of_each_split(write: Write, shape: str) -> None:
    keywords = SHAPES[shape]
    path = write(**keywords)
    assert open_dataset(path).export("tfds") == [f"{path}/features.json", f"{path}/dataset_info.json"]
    info = json.loads(Path(path, "dataset_info.json").read_text())
    assert (info["name"], info["version"], info["fileFormat"]) == ("my_data", "1.0.0", "tfrecord")
    found: dict[str, int] = {}
    for split in info["splits"]:
        count = len(split["shardLengths"])
        for number, length in enumerate(split["shardLengths"]):
            index = f"{number:05d}"
            parts = {"SHARD_X_OF_Y": f"{index}-of-{count:05d}", "SHARD_INDEX": index}
            name = split["filepathTemplate"].format(**parts, FILEFORMAT="tfrecord")
            assert len(oracle.read_payloads(Path(path, name))) == int(length)
            found[name] = int(length)
    assert found == {file.path: file.records for file in Snapshot.open(path).files}
    expected = {"train": 60, "eval": 30} if "partition_on" in keywords else {"train": 90}
    assert {split["name"]: sum(map(int, split["shardLengths"])) for split in info["splits"]} == expected
    if find_spec("tensorflow_datasets"):
        _check_with_tensorflow_datasets(path)


def _check_with_tensorflow_datasets(path: str) -> None:
    import tensorflow_datasets as tfds

    data = frame()
    builder = tfds.builder_from_directory(path)
    rows = [row for split in builder.info.splits for row in tfds.as_numpy(builder.as_dataset(split=split))]
    assert sum(split.num_examples for split in builder.info.splits.values()) == len(rows) == ROWS
    for row in rows:
        number = row["id"]
        expected = {name: data[name][number] for name in ("small", "even", "half", "raw")}
        assert {name: row[name] for name in expected} == expected
        assert row["name"].decode() == f"é{number}"
        assert row["some"].tolist() == list(range(number % 4))
        assert row["words"].tolist() == [b"a"] * (number % 3)
        assert row["pair"].tolist() == [2 * number, 2 * number + 1]
        assert row["image"].tolist() == (number + np.arange(6).reshape(2, 3)).tolist()


def test_a_column_of_each_type_has_its_feature(write: Write) -> None:
    features = exported(write(), "tfds")
    kinds = {name: feature["pythonClassName"].rpartition(".")[2] for name, feature in features.items()}
    dtypes = {name: feature["tensor"]["dtype"] for name, feature in features.items() if "tensor" in feature}
    scalars = dict.fromkeys(["id", "small", "even", "half", "raw", "day"], "Scalar")
    sequences = dict.fromkeys(["some", "words"], "Sequence")
    assert kinds == scalars | sequences | {"name": "Text", "pair": "Tensor", "image": "Tensor"}
    numbers = {"id": "int64", "small": "int8", "even": "bool", "half": "float32", "day": "int64"}
    assert dtypes == numbers | {"raw": "string", "pair": "float32", "image": "int64"}
    assert features["image"]["tensor"]["shape"] == {"dimensions": ["2", "3"]}


def structs(*values: Any) -> pd.DataFrame:
    type_ = pa.struct({"b": pa.list_(pa.int64()), "c": pa.struct({"d": pa.float32(), "e": pa.string()})})
    return pd.DataFrame({"x": pd.array(values, pd.ArrowDtype(type_))})


def test_a_struct_is_a_dict_of_features(write: Write) -> None:
    data = structs(*[{"b": [1], "c": {"d": 0.5, "e": "f"}}, {"b": [], "c": {"d": 1.5, "e": "g"}}] * 2)
    path = write(data, npartitions=1)
    columns = ["x/b", "x/c/d", "x/c/e"]
    assert [*schema(path)] == columns
    features = exported(path, "tfds")
    assert [*features["x"]["featuresDict"]["features"]["c"]["featuresDict"]["features"]] == ["d", "e"]
    found = dask_tfrecord.read_tfrecord(path, columns=columns, use_snapshot=False).compute()
    pd.testing.assert_frame_equal(found, dask_tfrecord.read_tfrecord(path, columns=columns).compute())


NESTED = pd.DataFrame({"x": pd.array([[[1]], [[2], []]], pd.ArrowDtype(pa.list_(pa.list_(pa.int64()))))})
SPLIT = {"partition_on": "split"}


@pytest.mark.parametrize(
    ("data", "keywords", "error", "message"),
    [
        (pd.DataFrame({"x": pd.array([1, None])}), {}, SchemaError, "feature 'x'.*no nulls.*1 nulls"),
        (pd.DataFrame({"a/b": [1]}), {}, SchemaError, "feature 'a/b'.*nesting"),
        (structs({"b": [1]}), {}, SchemaError, "feature 'x/c': .*all fields of the struct may be null"),
        (structs({"b": [1], "c": {"d": 1}}), {}, SchemaError, "feature 'x/c/e': .*no nulls.*1 nulls"),
        (NESTED, {"record_type": "sequence_example"}, TFRecordError, "Examples only"),
        (
            with_splits(),
            {"write_options": {"max_rows_per_file": 7}},
            TFRecordError,
            r"split 'train' has others.*colocate",
        ),
        (with_splits(), {"partition_on": ["split", "even"]}, TFRecordError, r"\['split', 'even'\]"),
        (pd.DataFrame({"x": [1], "split": ["a b"]}), SPLIT, TFRecordError, "'a b'"),
        (pd.DataFrame({"x": [1], "split": [None]}), SPLIT, TFRecordError, "value None of"),
    ],
)
def test_what_tfds_cannot_express_is_refused_by_name(
    write: Write, data: pd.DataFrame, keywords: dict[str, Any], error: type[TFRecordError], message: str
) -> None:
    path = write(data.convert_dtypes(dtype_backend="pyarrow") if "x" not in data else data, **keywords)
    with pytest.raises(error, match=message):
        open_dataset(path).export("tfds")
    assert not Path(path, "features.json").exists()


def schema(path: str) -> dict[str, dict[str, str]]:
    """The fields of each feature in an exported schema, as protobuf's text format prints them."""
    text = Path(*open_dataset(path).export("tfmd")).read_text()
    found: dict[str, dict[str, str]] = {}
    for block in re.findall(r"^feature \{\n(.*?)^\}\n", text, re.DOTALL | re.MULTILINE):
        fields = dict(re.findall(r"^  (\w+):? (.*)$", block, re.MULTILINE))
        found[json.loads(fields.pop("name"))] = fields
    return found


def test_the_schema_says_types_presence_and_shapes(write: Write) -> None:
    features = schema(write(frame().assign(gap=pd.array([None, 1, 2] * 30, pd.ArrowDtype(pa.int64())))))
    always = "{ min_fraction: 1.0 min_count: 1 }"
    assert features["id"] == {"type": "INT", "presence": always, "shape": "{  }"}
    assert features["small"]["int_domain"] == "{ min: -128 max: 127 }"
    assert features["even"]["bool_domain"] == "{ }"
    assert features["image"]["shape"] == "{ dim { size: 2 } dim { size: 3 } }"
    assert features["words"] == {"type": "BYTES", "presence": always, "value_count": "{ min: 0 }"}
    assert features["gap"]["presence"] == "{ min_count: 0 }"
    assert features["gap"]["value_count"] == "{ min: 1 max: 1 }"
    assert [features[name]["type"] for name in ("half", "name", "raw")] == ["FLOAT", "BYTES", "BYTES"]


@pytest.mark.parametrize(
    ("mode", "rows"), [({"overwrite": True}, 30), ({"overwrite": "partitions"}, 90), ({"append": True}, 120)]
)
def test_exports_disturb_no_read_and_an_overwrite_removes(
    write: Write, mode: dict[str, Any], rows: int
) -> None:
    path = write(partition_on="split")
    for format in ("idx", "tfds", "tfmd"):
        open_dataset(path).export(format)
    assert len(dask_tfrecord.read_tfrecord(path)) == ROWS
    assert len(dask_tfrecord.read_tfrecord(path, use_snapshot=False)) == ROWS
    assert sorted(dask_tfrecord.open_dataset(path).verify()["rows"]) == [10, 10, 10, 20, 20, 20]
    data = with_splits()
    write(data[data["split"] == "eval"], npartitions=1, partition_on="split", **mode)
    assert len(dask_tfrecord.read_tfrecord(path)) == rows
    left = {str(file.relative_to(path)) for file in Path(path).rglob("*") if file.is_file()}
    others = left - {file.path for file in Snapshot.open(path).files}
    if "append" not in mode:
        assert others == {"_SUCCESS", "_tfrecord/00000002.parquet"}
        assert not Path(path, "_idx").exists()
    else:
        assert {"dataset_info.json", "features.json", "schema.pbtxt"} < others
        with pytest.raises(TFRecordError, match="in one run"):
            open_dataset(path).export("tfds")


def test_descriptions_of_others_are_no_data_and_are_never_removed(write: Write) -> None:
    path = write()
    Path(path, "features.json").write_text("{}")
    assert len(dask_tfrecord.read_tfrecord(path)) == ROWS
    with pytest.raises(DestinationError, match=r"features\.json"):
        write(overwrite=True)
    assert Path(path, "features.json").read_text() == "{}"


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(TFRecordError, match="unknown format 'lmdb'; pass one of 'idx', 'tfds', 'tfmd'"):
        open_dataset(tmp_path).export("lmdb")
    with pytest.raises(TFRecordError, match="call to_csv of the result of read_tfrecord"):
        open_dataset(tmp_path).export("csv")
    with pytest.raises(FileNotFoundError, match="no snapshot"):
        open_dataset(tmp_path).export("idx")


@pytest.mark.filterwarnings("ignore")
def test_tensorflow_metadata_parses_the_schema(write: Write) -> None:
    schema_pb2 = pytest.importorskip("tensorflow_metadata.proto.v0.schema_pb2")
    from google.protobuf import text_format

    kinds = pd.Categorical(["a", "b"] * 45, ["b", 'a"\\\n'.strip(), "a"], ordered=True)
    data = frame().assign(**{'é"\\': 1, "kind": kinds})
    parsed = text_format.Parse(
        Path(*open_dataset(write(data)).export("tfmd")).read_text(), schema_pb2.Schema()
    )
    assert [feature.name for feature in parsed.feature] == list(data.columns)
    by_name = {feature.name: feature for feature in parsed.feature}
    assert [size.size for size in by_name["image"].shape.dim] == [2, 3]
    assert list(by_name["kind"].string_domain.value) == list(kinds.categories)
    assert by_name["small"].int_domain.max == 127


# A separate process, because the package and TensorFlow register messages of the same names.
TFRECORD_PACKAGE = """
import json, sys, tfrecord
path, index, shard = sys.argv[1:]
rows = tfrecord.tfrecord_loader(path, index, {"id": "int"}, json.loads(shard))
print(json.dumps([int(row["id"][0]) for row in rows]))
"""


# CI installs the tfrecord package, which checks the index; the test extra does not install it.
@pytest.mark.skipif(find_spec("tfrecord") is None, reason="the tfrecord package is not installed")
@pytest.mark.parametrize(("shard", "expected"), [(None, (0, 90)), ((0, 2), (0, 45)), ((1, 2), (45, 90))])
def test_the_tfrecord_package_reads(
    write: Write, shard: tuple[int, int] | None, expected: tuple[int, int]
) -> None:
    path = write(npartitions=1)
    (index,) = open_dataset(path).export("idx")
    (file,) = Snapshot.open(path).files
    command = [sys.executable, "-c", TFRECORD_PACKAGE, f"{path}/{file.path}", index, json.dumps(shard)]
    found = json.loads(subprocess.check_output(command))
    if shard is None:  # begins anywhere, and wraps around
        found.sort()
    assert found == list(range(*expected))


@pytest.mark.parametrize("deleted", ["no row", "rows of one split"])
def test_an_export_over_the_files_of_tensorflow_datasets_keeps_what_only_they_tell(
    data: Path, tmp_path: Path, deleted: str
) -> None:
    path = tmp_path / "images"
    shutil.copytree(data / "tfds" / "images" / "1.0.0", path)
    before = json.loads((path / "dataset_info.json").read_text())
    open_dataset(path).add_snapshot()
    rows = {"test": 2, "train": 4}
    if deleted != "no row":
        rows["train"] -= 2
        label = (path / "label.labels.txt").read_text().split()[0]
        open_dataset(path).delete([("split", "==", "train"), ("label", "==", label)], keep_versions=False)
    open_dataset(path).export("tfds")
    after = json.loads((path / "dataset_info.json").read_text())
    names = ("description", "citation", "redistributionInfo", "supervisedKeys")
    assert [after.get(name) for name in names] == [before.get(name) for name in names]
    assert after["moduleName"] == "dask_tfrecord"
    shutil.rmtree(path / "_tfrecord")
    copy = open_dataset(path)
    assert (copy.splits, copy.supervised_keys, copy.count_rows()) == (
        rows,
        ("png", "label"),
        sum(rows.values()),
    )
