"""The calls that raise the messages of the package, and the data on which the remedies are executed."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import oracle
import pandas as pd
import pyarrow as pa
import yaml
from inferred import sequence_file
from oracle import Feature, Record
from other_writers import fill

from dask_tfrecord import open_dataset, to_tfrecord


@dataclass(frozen=True)
class Case:
    """A call that raises or warns, what a user does who follows the text, and the packages for it.

    ``follows`` are remedies of the message that ``then`` passes, as the source of the package writes them.
    """

    code: str
    then: str = ""
    follows: Sequence[str] = ()
    needs: Sequence[str] = ()


NUMBER = oracle.features_file([{"a": ("int64", [1])}])
TEXT = oracle.features_file([{"a": ("bytes", [b"x"])}])
OTHER = oracle.features_file([{"a": ("int64", [1]), "b": ("int64", [1, 2])}])


def tfds_features(dtype: str) -> bytes:
    """The description of TensorFlow Datasets of a column "a" of numbers."""
    leaf = {
        "pythonClassName": "tensorflow_datasets.core.features.scalar.Scalar",
        "tensor": {"dtype": dtype, "encoding": "none", "shape": {}},
    }
    kind = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    return json.dumps({"featuresDict": {"features": {"a": leaf}}, "pythonClassName": kind}).encode()


def _cut(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at:][1:]


FILES = {
    "raw": {"a": NUMBER, "b": NUMBER},
    "damaged_record": {"a": NUMBER + _cut(NUMBER, 14) + NUMBER},
    "damaged_length": {"a": NUMBER + _cut(NUMBER, 9) + NUMBER},
    "no_values": {"a": oracle.frame(b"\n\x07\n\x05\n\x01a\x12\x00")},
    "no_message": {"a": oracle.frame(b"no message")},
    "no_message_later": {"a": NUMBER + oracle.frame(b"no message")},
    "two_kinds": {"a": NUMBER, "b": TEXT},
    "int_and_float": {"a": NUMBER, "b": oracle.features_file([{"a": ("float", [0x40000000])}])},
    "two_maps": {
        "a": sequence_file(Record({"a": Feature("int64", [1])})),
        "b": sequence_file(Record({}, {"a": [Feature("int64", [1])]})),
    },
    "unsampled": {f"{n:02d}": OTHER if n == 17 else NUMBER for n in range(40)},
    "key_and_feature": {"a=1/a": NUMBER},
    "lists": {"a": OTHER},
    "raw_days": {"day=mo/a": NUMBER},
    "numbered": {"day=1/b": NUMBER},
    "record_day": {"record=1/a": oracle.frame(b"x")},
    "split_feature": {"split=train/a": oracle.features_file([{"split": ("int64", [1])}])},
    "raw_sequences": {"a": sequence_file(Record({}, {"a": [Feature("int64", [1])]}))},
    "unsampled_lists": {
        f"{n:02d}": sequence_file(Record({}, {"b": [Feature("int64", [1])]})) if n == 17 else NUMBER
        for n in range(40)
    },
    "unsampled_map": {
        f"{n:02d}": sequence_file(
            Record({}, {"a": [Feature("int64", [1])]}) if n == 17 else Record({"a": Feature("int64", [1])})
        )
        for n in range(40)
    },
    "train_eval": {"train/a": NUMBER, "eval/a": NUMBER},
    "raw_splits": {"split=train/a": NUMBER, "split=eval/a": NUMBER},
    "inexact": {"a": oracle.features_file([{"a": ("int64", [2**60 + 1])}])},
    "no_columns": {"a": oracle.features_file([{}])},
    "tfds_small": {
        "x-train.tfrecord-00000-of-00001": oracle.features_file([{"a": ("int64", [300])}]),
        "features.json": tfds_features("uint8"),
    },
    "tfds_unknown": {
        "x-train.tfrecord-00000-of-00001": NUMBER,
        "features.json": tfds_features("uint7"),
    },
    "tfds_other_format": {
        "dataset_info.json": json.dumps({"fileFormat": "array_record"}).encode(),
        "a": NUMBER,
    },
}


def write_data(root: Path) -> Path:
    """Write each dataset to a directory of ``root``."""
    for name, content in FILES.items():
        fill(root / name, content)
    rows = {"k": [1, 2, 3], "a": [2, 3, 4], "l": [[1, 2], [3], [4, 5]], "text": ["a", "b", "c"]}
    to_tfrecord(pa.table(rows), root / "numbers")
    pairs = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
    to_tfrecord(pa.table({"n": pa.array([1, None, 3]), "f": pairs}), root / "nulls")
    frame = pd.DataFrame({"day": ["mo", "tu"], "x": [1, 2]})
    to_tfrecord(frame, root / "days", partition_on="day")
    to_tfrecord(frame.assign(split=["train", "eval"]), root / "splits", partition_on="split")
    to_tfrecord(pd.DataFrame({"x": [1.5, 2.5]}), root / "floats")
    to_tfrecord(pa.table({"x": [1]}), root / "gzip", compression="gzip")
    to_tfrecord(pa.table({"x": [[[1]]]}), root / "sequences", record_type="sequence_example")
    to_tfrecord(pa.table({"a": [300]}), root / "big")
    to_tfrecord(pa.table({"a": pa.array([1], pa.int8())}), root / "small")
    to_tfrecord(pa.table({"s": [{"f": 1, "g": 2}]}), root / "two_fields")
    to_tfrecord(pa.table({"record": [b"x"]}), root / "payloads", record_type="bytes")
    to_tfrecord(pa.table({"x": pa.array([1.5]).cast(pa.decimal128(4, 2))}), root / "decimals", lossy="allow")
    to_tfrecord(pa.table({"s": [{"f": 1}], "x": [1]}), root / "structs")
    to_tfrecord(pa.table({"l": [[1], [1, 2]]}), root / "ragged")
    wide = pa.array([1]).cast(pa.decimal256(40, 2))
    to_tfrecord(pa.table({"a": wide, "b": [1]}), root / "wide", lossy="allow")
    fill(root / "payload_day", {"payload=1/a": oracle.frame(b"x")})
    for name in ("missing", "resized", "rewritten", "several_files"):
        to_tfrecord(pd.DataFrame({"x": [1, 2]}), root / name)
        if name != "rewritten":
            to_tfrecord(pd.DataFrame({"x": [3]}), root / name, append=True)
    file = min((root / "missing").glob("part-*"))
    file.unlink()
    file = min((root / "resized").glob("part-*"))
    file.write_bytes(file.read_bytes() * 2)
    file = min((root / "rewritten").glob("part-*"))
    to_tfrecord(pd.DataFrame({"x": [2, 1]}), root / "swapped")
    file.write_bytes(min((root / "swapped").glob("part-*")).read_bytes())
    to_tfrecord(pd.DataFrame({"text": ["1", "a"]}), root / "words")
    to_tfrecord(pd.DataFrame({"x": [1]}), root / "lost_version")
    open_dataset(root / "lost_version").compact(target_bytes=1)
    to_tfrecord(pd.DataFrame({"x": [2]}), root / "lost_version", overwrite=True, keep_versions=True)
    for file in (root / "lost_version").rglob("part-*"):
        if (root / "lost_version") != file.parent:
            file.unlink()
    fill(root / "resized_raw", {"a": NUMBER, "b": NUMBER})
    open_dataset(root / "resized_raw").add_snapshot()
    (root / "resized_raw" / "a").write_bytes(NUMBER * 2)
    fill(root / "rewritten_raw", {"a": NUMBER})
    open_dataset(root / "rewritten_raw").add_snapshot()
    tfds = Path(__file__).parents[1] / "data" / "tfds"
    for name in ("tfds_repeated", "tfds_not_text"):
        shutil.copytree(tfds / "labels" / "1.0.0", root / name)
    (root / "tfds_repeated" / "file.labels.txt").write_text("a\na\nb\n")
    (root / "tfds_not_text" / "file.labels.txt").write_bytes(b"\xff\na\nb\n")
    shutil.copytree(tfds / "tensors" / "1.0.0", root / "tfds_tensors")
    shutil.copytree(tfds / "scalars" / "1.0.0", root / "tfds_missing")
    min((root / "tfds_missing").glob("*-train*")).unlink()
    labels = pd.DataFrame({"x": [n // 200 for n in range(10_000)]})
    to_tfrecord(labels, root / "sorted", write_options={"max_rows_per_file": 200})
    (root / "rewritten_raw" / "a").write_bytes(oracle.features_file([{"a": ("int64", [2])}]))
    return root


_FILE = yaml.safe_load((Path(__file__).parents[1] / "data" / "remedies.yaml").read_text())
CASES = {area: [Case(**case) for case in cases] for area, cases in _FILE["cases"].items()}

# Remedies that no test executes, and why.
NOT_EXECUTED = {text: reason for reason, texts in _FILE["not_executed"].items() for text in texts}
