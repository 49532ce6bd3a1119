"""TensorFlow reads our files with the same values, also in the same process.

Modules: codec, writer.
"""

import datetime
import json
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("one_thread")]

COMPRESSIONS = {None: "", "gzip": "GZIP", "zlib": "ZLIB"}
ROWS = 40
BAD = Path(__file__).parents[1] / "data" / "bad"


@pytest.fixture(scope="module")
def tf() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow
    return tensorflow


def _table() -> pa.Table:
    """A column of every kind and shape of an Example; every third value is null, lists are ragged."""
    rows = range(ROWS)
    day = datetime.date(2024, 2, 27)
    columns = {
        "id": pa.array(rows, pa.int64()),
        "flag": pa.array([n % 2 == 0 if n % 3 else None for n in rows]),
        "small": pa.array([n - 20 if n % 3 else None for n in rows], pa.int8()),
        "large": pa.array([2**63 - 1 - n if n % 3 else None for n in rows], pa.uint64()),
        "half": pa.array([n / 2 if n % 3 else None for n in rows], pa.float16()),
        "real": pa.array([math.sqrt(n) if n % 3 else None for n in rows], pa.float32()),
        "double": pa.array([n / 4 if n % 3 else None for n in rows], pa.float64()),
        "day": pa.array([day + datetime.timedelta(n) if n % 3 else None for n in rows]),
        "when": pa.array([10**18 + n if n % 3 else None for n in rows], pa.timestamp("ns", "Europe/Warsaw")),
        "text": pa.array([f"nº {n}" if n % 3 else None for n in rows]),
        "blob": pa.array([bytes([n, 0, 255]) if n % 3 else None for n in rows], pa.binary()),
        "category": pa.array([f"c{n % 4}" if n % 3 else None for n in rows]).dictionary_encode(),
        "ints": pa.array([list(range(-1, n % 5)) if n % 3 else None for n in rows], pa.list_(pa.int64())),
        "reals": pa.array([[n / 8] * (n % 4) for n in rows], pa.list_(pa.float32())),
        "texts": pa.array([[f"{n}", ""] * (n % 3) for n in rows], pa.list_(pa.string())),
        "pair": pa.array([[n, -n] for n in rows], pa.list_(pa.int32(), 2)),
    }
    return pa.table(columns)


TABLE = _table()
# The values that TensorFlow must read: temporal types as integers, the rest as Python values.
EXPECTED: dict[str, list[Any]] = {
    **{name: TABLE[name].to_pylist() for name in TABLE.column_names},
    "day": TABLE["day"].cast(pa.int32()).to_pylist(),
    "when": TABLE["when"].cast(pa.int64()).to_pylist(),
}


def _frame(table: pa.Table) -> dd.DataFrame:
    frame = table.to_pandas(types_mapper=lambda t: None if pa.types.is_dictionary(t) else pd.ArrowDtype(t))
    return dd.from_pandas(frame, npartitions=3, sort=False)


def _write(table: pa.Table, path: Path, **options: Any) -> list[str]:
    """Write the table in three partitions, and return the files in order."""
    dask_tfrecord.to_tfrecord(_frame(table), str(path), lossy="allow", **options)
    files = sorted(str(file) for file in path.iterdir() if file.name.startswith("part-"))
    assert len(files) == 3
    return files


def _raw(tf: Any, files: list[str], compression: str | None) -> Any:
    """All records as one string tensor, read by TensorFlow."""
    dataset = tf.data.TFRecordDataset(files, compression_type=COMPRESSIONS[compression])
    return tf.constant([record.numpy() for record in dataset])


def _feature_type(tf: Any, name: str) -> Any:
    type_ = TABLE.schema.field(name).type
    leaf = type_.value_type if hasattr(type_, "value_type") else type_
    if pa.types.is_floating(leaf):
        return tf.float32
    is_text = pa.types.is_string(leaf) or pa.types.is_binary(leaf)
    return tf.string if is_text else tf.int64


def _reported(values: list[Any], missing: Any) -> list[Any]:
    """The expected values as TensorFlow has them: a default for null, text as bytes, float32."""
    filled = [missing if value is None else value for value in values]
    return [oracle.canonical(value) if not isinstance(value, bool) else int(value) for value in filled]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_tensorflow_reads_examples_with_the_same_values(
    tf: Any, tmp_path: Path, compression: str | None
) -> None:
    serialized = _raw(tf, _write(TABLE, tmp_path / "out", compression=compression), compression)
    assert serialized.shape == (ROWS,)
    defaults = {tf.int64: -99, tf.float32: -99.0, tf.string: b"missing"}
    spec = {}
    for name in TABLE.column_names:
        type_ = _feature_type(tf, name)
        if name == "pair":
            spec[name] = tf.io.FixedLenFeature([2], type_)
        elif pa.types.is_list(TABLE.schema.field(name).type):
            spec[name] = tf.io.RaggedFeature(type_)
        else:
            spec[name] = tf.io.FixedLenFeature([], type_, default_value=defaults[type_])
    parsed = tf.io.parse_example(serialized, spec)
    for name in TABLE.column_names:
        is_list = isinstance(spec[name], tf.io.RaggedFeature)
        found = parsed[name].to_list() if is_list else parsed[name].numpy().tolist()
        missing = [] if is_list else defaults[_feature_type(tf, name)]
        assert oracle.canonical(found) == _reported(EXPECTED[name], missing), name


def test_tensorflow_reads_missing_as_nothing_in_sparse_features(tf: Any, tmp_path: Path) -> None:
    serialized = _raw(tf, _write(TABLE, tmp_path / "out"), None)
    parsed = tf.io.parse_example(serialized, {n: tf.io.VarLenFeature(_feature_type(tf, n)) for n in EXPECTED})
    for name, values in EXPECTED.items():
        rows: list[list[Any]] = [[] for _ in range(ROWS)]
        for (row, _), value in zip(
            parsed[name].indices.numpy(), parsed[name].values.numpy().tolist(), strict=True
        ):
            rows[row].append(value)
        nested = [v if isinstance(v, list) else [] if v is None else [v] for v in values]
        assert oracle.canonical(rows) == [_reported(row, None) for row in nested], name


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_tensorflow_reads_sequence_examples_with_the_same_values(
    tf: Any, tmp_path: Path, compression: str | None
) -> None:
    tokens = [[[f"t{n}", "é"], [], ["x"]][: n % 4] for n in range(ROWS)]
    scores = [[[float(step)] * 2 for step in range(n % 3)] for n in range(ROWS)]
    ids = [[[n, -n]] * (n % 3) for n in range(ROWS)]
    table = pa.table(
        {
            "label": pa.array(range(ROWS), pa.int64()),
            "weights": pa.array([[n / 2] * (n % 3) for n in range(ROWS)], pa.list_(pa.float32())),
            "tokens": pa.array(tokens, pa.list_(pa.list_(pa.string()))),
            "scores": pa.array(scores, pa.list_(pa.list_(pa.float32()))),
            "ids": pa.array(ids, pa.list_(pa.list_(pa.int64()))),
        }
    )
    files = _write(table, tmp_path / "out", record_type="sequence_example", compression=compression)
    context, sequences, _ = tf.io.parse_sequence_example(
        _raw(tf, files, compression),
        context_features={
            "label": tf.io.FixedLenFeature([], tf.int64),
            "weights": tf.io.RaggedFeature(tf.float32),
        },
        sequence_features={
            "tokens": tf.io.RaggedFeature(tf.string),
            "scores": tf.io.RaggedFeature(tf.float32),
            "ids": tf.io.FixedLenSequenceFeature([2], tf.int64),
        },
    )
    assert context["label"].numpy().tolist() == list(range(ROWS))
    assert context["weights"].to_list() == table["weights"].to_pylist()
    assert sequences["tokens"].to_list() == oracle.canonical(tokens)
    assert sequences["scores"].to_list() == scores
    steps = sequences["ids"].numpy().tolist()
    assert [row[: len(ids[n])] for n, row in enumerate(steps)] == ids


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_tensorflow_reads_plain_records(tf: Any, tmp_path: Path, compression: str | None) -> None:
    payloads = [bytes([n]) * n for n in range(ROWS)]
    table = pa.table({"record": pa.array(payloads, pa.binary())})
    files = _write(table, tmp_path / "out", record_type="bytes", compression=compression)
    assert _raw(tf, files, compression).numpy().tolist() == payloads


def test_tensorflow_reads_a_partition_without_rows(tf: Any, tmp_path: Path) -> None:
    empty = _frame(TABLE.select(["id"]))
    dask_tfrecord.to_tfrecord(empty[empty["id"] < 0], str(tmp_path / "out"))
    files = sorted(str(file) for file in (tmp_path / "out").glob("part-*"))
    assert list(tf.data.TFRecordDataset(files)) == []


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_we_read_what_tensorflow_writes(tf: Any, tmp_path: Path, compression: str | None) -> None:
    path = tmp_path / "theirs"
    with tf.io.TFRecordWriter(str(path), options=COMPRESSIONS[compression]) as writer:
        for n in range(ROWS):
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[n] * (n % 3)))
            features = tf.train.Features(feature={"x": feature})
            writer.write(tf.train.Example(features=features).SerializeToString())
    frame = dask_tfrecord.read_tfrecord(str(path)).compute()
    assert pa.array(frame["x"]).to_pylist() == [[n] * (n % 3) for n in range(ROWS)]


BOTH = """
import sys
import {first}
import {second}
import dask, dask.dataframe as dd, pandas as pd, tensorflow as tf, dask_tfrecord

dask.config.set(scheduler="sync")
frame = pd.DataFrame({{"x": pd.array([1, 2, 3], "int64[pyarrow]")}})
dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), sys.argv[1])
files = tf.io.gfile.glob(sys.argv[1] + "/part-*")
spec = {{"x": tf.io.FixedLenFeature([], tf.int64)}}
rows = [tf.io.parse_single_example(r, spec)["x"].numpy().item() for r in tf.data.TFRecordDataset(files)]
assert rows == [1, 2, 3], rows
assert tf.train.Example.FromString(next(iter(tf.data.TFRecordDataset(files))).numpy()).features.feature["x"]
assert dask_tfrecord.read_tfrecord(sys.argv[1]).compute()["x"].tolist() == rows
print("both")
"""


@pytest.mark.parametrize("order", [("tensorflow", "dask_tfrecord"), ("dask_tfrecord", "tensorflow")])
def test_tensorflow_and_we_live_in_one_process_in_both_import_orders(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    code = BOTH.format(first=order[0], second=order[1])
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (result.returncode, result.stdout.strip()) == (0, "both"), result.stderr


# --- where TensorFlow's parser differs from protobuf, which is what we follow --------------------------

_ENTRY = "refuses what protobuf skips or merges in a map entry"
_UNKNOWN = "refuses an unknown field here"
_CHECKS_LESS = "does not check what protobuf checks"
KNOWN_PARSER_DIVERGENCES = {
    "protobad_byteslist_value_as_varint.tfrecord": _UNKNOWN,
    "protobad_features_feature_wrong_wire_type_varint.tfrecord": _UNKNOWN,
    "protobad_floatlist_value_as_fixed64_double.tfrecord": _UNKNOWN,
    "protobad_floatlist_value_as_varint.tfrecord": _UNKNOWN,
    "protobad_int64list_value_as_fixed32.tfrecord": _UNKNOWN,
    "protobad_map_key_wrong_wire_type_varint.tfrecord": _ENTRY,
    "protobad_unknown_group_in_feature.tfrecord": _UNKNOWN,
    "protobad_unknown_group_in_features.tfrecord": _UNKNOWN,
    "protobad_unknown_group_in_int64list.tfrecord": _UNKNOWN,
    "protoodd_feature_bytes_list_then_int64_list_oneof.tfrecord": "the first kind of a oneof wins",
    "protoodd_feature_int64_list_then_bytes_list_oneof.tfrecord": "the first kind of a oneof wins",
    "protoodd_feature_int64_list_twice.tfrecord": "a repeated list is not merged",
    "protoodd_map_entry_empty_entry.tfrecord": _ENTRY,
    "protoodd_map_entry_key_twice_z_then_a.tfrecord": _ENTRY,
    "protoodd_map_entry_no_value.tfrecord": _ENTRY,
    "protoodd_map_entry_value_twice_float_then_int.tfrecord": _ENTRY,
    "protoodd_map_entry_value_twice_same_kind.tfrecord": _ENTRY,
    "protoodd_non_canonical_tag_varint_8a_00.tfrecord": "a tag is one byte",
    "protoodd_packed_unpacked_mixed_float.tfrecord": "only the first chunk is read",
    "protoodd_packed_unpacked_mixed_int64.tfrecord": "only the first chunk is read",
    "protoodd_two_packed_chunks_int64.tfrecord": "only the first chunk is read",
    "protoodd_unknown_field_in_byteslist.tfrecord": _UNKNOWN,
    "protoodd_unknown_len_field_in_feature_before_kind.tfrecord": _UNKNOWN,
    "protoodd_unknown_len_field_in_int64list_before.tfrecord": _UNKNOWN,
    "protoodd_unknown_len_field_in_map_entry_last.tfrecord": _ENTRY,
    "protobad_field_number_0_in_example.tfrecord": _CHECKS_LESS,
    "protobad_invalid_utf_8_key_ff_fe.tfrecord": _CHECKS_LESS,
    "protobad_invalid_utf_8_key_surrogate_ed_a0_80.tfrecord": _CHECKS_LESS,
    "protobad_nested_length_overrun_entry_longer_than_features.tfrecord": _CHECKS_LESS,
    "protobad_nested_length_overrun_features_longer_than_example.tfrecord": _CHECKS_LESS,
    "protobad_nested_length_overrun_packed_longer_than_int64list.tfrecord": _CHECKS_LESS,
}


def _parsed_by_tensorflow(tf: Any, payload: bytes) -> dict[str, list[Any]] | None:
    """The features a, f and s of a message that hold values; None if TensorFlow rejects the message."""
    found = {}
    for name, type_ in (("a", tf.int64), ("f", tf.float32), ("s", tf.string)):
        spec = {name: tf.io.VarLenFeature(type_)}
        try:
            values = tf.io.parse_single_example(payload, spec)[name].values.numpy().tolist()
        except tf.errors.InvalidArgumentError as error:
            if "Data types don't match" in error.message:
                continue
            return None
        except UnicodeDecodeError:  # TensorFlow's message contains the bytes of the record
            return None
        if values:
            found[name] = oracle.canonical(values)
    return found


@pytest.mark.parametrize("name", sorted(path.name for path in BAD.glob("proto*.tfrecord")))
def test_known_divergences_from_tensorflows_parser_are_all_there_are(tf: Any, name: str) -> None:
    """A message that both parsers read alike must not be in the list."""
    payload = oracle.read_payloads(BAD / name)[1]
    kinds = {"a": "int64", "f": "float", "s": "bytes"}
    try:
        features = oracle.parse(payload).features
        judged = {n: f.values for n, f in features.items() if f.values and f.kind == kinds.get(n)}
    except oracle.DecodeError:
        judged = None
    assert (_parsed_by_tensorflow(tf, payload) == judged) == (name not in KNOWN_PARSER_DIVERGENCES)


def test_the_list_of_divergences_names_only_files_that_are_there() -> None:
    assert set(KNOWN_PARSER_DIVERGENCES) <= {
        case["file"] for case in json.loads((BAD / "bad.json").read_text())
    }
