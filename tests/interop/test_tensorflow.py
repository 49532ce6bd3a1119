"""TensorFlow reads our files with the same values, also in the same process.

Modules: codec, api.write, files.column_files, files.entry.
"""

import datetime
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
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
    null = np.arange(ROWS) % 3 == 0
    day = datetime.date(2024, 2, 27)
    scalars = {
        "flag": pa.array([n % 2 == 0 for n in rows], mask=null),
        "small": pa.array([n - 20 for n in rows], pa.int8(), mask=null),
        "large": pa.array([2**63 - 1 - n for n in rows], pa.uint64(), mask=null),
        "half": pa.array([n / 2 for n in rows], pa.float16(), mask=null),
        "real": pa.array([math.sqrt(n) for n in rows], pa.float32(), mask=null),
        "double": pa.array([n / 4 for n in rows], pa.float64(), mask=null),
        "day": pa.array([day + datetime.timedelta(n) for n in rows], mask=null),
        "when": pa.array([10**18 + n for n in rows], pa.timestamp("ns", "Europe/Warsaw"), mask=null),
        "text": pa.array([f"nº {n}" for n in rows], mask=null),
        "blob": pa.array([bytes([n, 0, 255]) for n in rows], pa.binary(), mask=null),
        "category": pa.array([f"c{n % 4}" for n in rows], mask=null).dictionary_encode(),
    }
    lists = {
        "ints": pa.array([list(range(-1, n % 5)) if n % 3 else None for n in rows], pa.list_(pa.int64())),
        "reals": pa.array([[n / 8] * (n % 4) for n in rows], pa.list_(pa.float32())),
        "texts": pa.array([[f"{n}", ""] * (n % 3) for n in rows], pa.list_(pa.string())),
        "pair": pa.array([[n, -n] for n in rows], pa.list_(pa.int32(), 2)),
    }
    return pa.table({"id": pa.array(rows, pa.int64()), **scalars, **lists})


TABLE = _table()


def _expected(name: str, missing: Any) -> list[Any]:
    """The values as TensorFlow has them: a default for null, times as integers, text as bytes, float32."""
    column = TABLE[name]
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if name == "day" else pa.int64())
    found = [missing if value is None else value for value in column.to_pylist()]
    return [int(value) if isinstance(value, bool) else oracle.canonical(value) for value in found]


def _leaf(tf: Any, name: str) -> Any:
    type_ = TABLE.schema.field(name).type
    leaf = type_.value_type if hasattr(type_, "value_type") else type_
    if pa.types.is_floating(leaf):
        return tf.float32
    return tf.string if pa.types.is_string(leaf) or pa.types.is_binary(leaf) else tf.int64


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


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_tensorflow_reads_the_same_examples(tf: Any, tmp_path: Path, compression: str | None) -> None:
    serialized = _raw(tf, _write(TABLE, tmp_path / "out", compression=compression), compression)
    assert serialized.shape == (ROWS,)
    defaults = {tf.int64: -99, tf.float32: -99.0, tf.string: b"missing"}
    for name in TABLE.column_names:
        type_ = _leaf(tf, name)
        is_list = pa.types.is_list(TABLE.schema.field(name).type)
        shape = [2] if name == "pair" else []
        fixed = tf.io.FixedLenFeature(shape, type_, default_value=None if shape else defaults[type_])
        spec = tf.io.RaggedFeature(type_) if is_list else fixed
        parsed = tf.io.parse_example(serialized, {name: spec})[name]
        found = parsed.to_list() if is_list else parsed.numpy().tolist()
        assert oracle.canonical(found) == _expected(name, [] if is_list else defaults[type_]), name


def test_tensorflow_reads_missing_as_nothing_in_sparse_features(tf: Any, tmp_path: Path) -> None:
    serialized = _raw(tf, _write(TABLE, tmp_path / "out"), None)
    spec = {name: tf.io.VarLenFeature(_leaf(tf, name)) for name in TABLE.column_names}
    for name, parsed in tf.io.parse_example(serialized, spec).items():
        rows: list[list[Any]] = [[] for _ in range(ROWS)]
        for (row, _), value in zip(parsed.indices.numpy(), parsed.values.numpy().tolist(), strict=True):
            rows[row].append(value)
        values = _expected(name, [])
        assert oracle.canonical(rows) == [one if isinstance(one, list) else [one] for one in values], name


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_tensorflow_reads_the_same_sequences(tf: Any, tmp_path: Path, compression: str | None) -> None:
    lists = {
        "tokens": [[[f"t{n}", "é"], [], ["x"]][: n % 4] for n in range(ROWS)],
        "scores": [[[float(step)] * 2 for step in range(n % 3)] for n in range(ROWS)],
        "ids": [[[n, -n]] * (n % 3) for n in range(ROWS)],
    }
    types = {"tokens": pa.string(), "scores": pa.float32(), "ids": pa.int64()}
    context = {"label": list(range(ROWS)), "weights": [[n / 2] * (n % 3) for n in range(ROWS)]}
    table = pa.table(context | {n: pa.array(lists[n], pa.list_(pa.list_(types[n]))) for n in lists})
    files = _write(table, tmp_path / "out", record_type="sequence_example", compression=compression)
    label, ragged = tf.io.FixedLenFeature([], tf.int64), tf.io.RaggedFeature
    steps = {"tokens": ragged(tf.string), "scores": ragged(tf.float32)}
    found, sequences, _ = tf.io.parse_sequence_example(
        _raw(tf, files, compression),
        context_features={"label": label, "weights": ragged(tf.float32)},
        sequence_features=steps | {"ids": tf.io.FixedLenSequenceFeature([2], tf.int64)},
    )
    assert found["label"].numpy().tolist() == context["label"]
    assert found["weights"].to_list() == context["weights"]
    assert sequences["tokens"].to_list() == oracle.canonical(lists["tokens"])
    assert sequences["scores"].to_list() == lists["scores"]
    ids = sequences["ids"].numpy().tolist()
    assert [row[: len(lists["ids"][n])] for n, row in enumerate(ids)] == lists["ids"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_tensorflow_and_we_read_plain_records(tf: Any, tmp_path: Path, compression: str | None) -> None:
    payloads = [bytes([n]) * n for n in range(ROWS)]
    files = _write(pa.table({"record": payloads}), tmp_path, record_type="bytes", compression=compression)
    assert _raw(tf, files, compression).numpy().tolist() == payloads
    with tf.io.TFRecordWriter(f"{tmp_path}/theirs", options=COMPRESSIONS[compression]) as writer:
        for payload in payloads:
            writer.write(payload)
    frame = dask_tfrecord.read_tfrecord(f"{tmp_path}/theirs", record_type="bytes").compute()
    assert frame["record"].tolist() == payloads


def test_tensorflow_reads_the_files_of_a_listing(tf: Any, tmp_path: Path) -> None:
    """Column files, snapshots and older versions lie where readers that list directories do not look."""
    path = tmp_path / "data set"
    table = pa.table({"id": range(ROWS), "key": [("a", "b c", "ü=x")[n % 3] for n in range(ROWS)]})
    options: dict[str, Any] = {"partition_on": "key", "compression": "gzip", "keep_versions": True}
    dask_tfrecord.to_tfrecord(table[:30], path, columnar=["id"], **options)
    dask_tfrecord.to_tfrecord(table[30:], path, append=True, **options)
    dask_tfrecord.open_dataset(path).delete(filters=[("id", "==", 7)], keep_versions=True)
    dask_tfrecord.open_dataset(path).compact(keep_versions=True)
    found = [one.relative_to(path) for one in path.rglob("*") if one.is_file()]
    files = [f"{path}/{one}" for one in found if not any(name[0] in "_." for name in one.parts)]
    assert len([*path.rglob("_tfrecord/columns/*.parquet")]) > 1
    assert all(file.endswith(".tfrecord.gz") for file in files)
    parsed = tf.io.parse_example(_raw(tf, files, "gzip"), {"id": tf.io.FixedLenFeature([], tf.int64)})
    assert sorted(parsed["id"].numpy().tolist()) == [n for n in range(ROWS) if n != 7]


BOTH = """
import sys
import tensorflow as tf
import dask, dask.dataframe as dd, pandas as pd, dask_tfrecord

dask.config.set(scheduler="sync")
frame = pd.DataFrame({"x": pd.array([1, 2, 3], "int64[pyarrow]")})
dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), sys.argv[1])
files = tf.io.gfile.glob(sys.argv[1] + "/part-*")
spec = {"x": tf.io.FixedLenFeature([], tf.int64)}
rows = [tf.io.parse_single_example(r, spec)["x"].numpy().item() for r in tf.data.TFRecordDataset(files)]
assert rows == [1, 2, 3], rows
assert tf.train.Example.FromString(next(iter(tf.data.TFRecordDataset(files))).numpy()).features.feature["x"]
assert dask_tfrecord.read_tfrecord(sys.argv[1]).compute()["x"].tolist() == rows
"""


def test_tensorflow_is_imported_first_and_we_live_in_one_process(tmp_path: Path) -> None:
    """The other tests import this library first."""
    subprocess.run([sys.executable, "-c", BOTH, str(tmp_path / "out")], check=True, cwd=tmp_path)


# The names of files in tests/data/bad, behind "proto". TensorFlow refuses an unknown field in some messages.
_UNKNOWN = (
    "bad_byteslist_value_as_varint bad_features_feature_wrong_wire_type_varint bad_floatlist_value_as_varint "
    "bad_floatlist_value_as_fixed64_double bad_int64list_value_as_fixed32 bad_unknown_group_in_feature "
    "bad_unknown_group_in_features bad_unknown_group_in_int64list odd_unknown_field_in_byteslist "
    "odd_unknown_len_field_in_feature_before_kind odd_unknown_len_field_in_int64list_before"
)
# TensorFlow refuses what protobuf skips or merges in a map entry.
_ENTRY = (
    "bad_map_key_wrong_wire_type_varint odd_map_entry_empty_entry odd_map_entry_key_twice_z_then_a "
    "odd_map_entry_no_value odd_map_entry_value_twice_float_then_int odd_map_entry_value_twice_same_kind "
    "odd_unknown_len_field_in_map_entry_last"
)
# The first kind of a oneof, and the first chunk of a list win; a tag is one byte.
_FIRST = (
    "odd_feature_bytes_list_then_int64_list_oneof odd_feature_int64_list_then_bytes_list_oneof "
    "odd_feature_int64_list_twice odd_packed_unpacked_mixed_float odd_packed_unpacked_mixed_int64 "
    "odd_two_packed_chunks_int64 odd_non_canonical_tag_varint_8a_00"
)
# TensorFlow does not check what protobuf checks.
_CHECKS_LESS = (
    "bad_field_number_0_in_example bad_invalid_utf_8_key_ff_fe bad_invalid_utf_8_key_surrogate_ed_a0_80 "
    "bad_nested_length_overrun_entry_longer_than_features "
    "bad_nested_length_overrun_features_longer_than_example "
    "bad_nested_length_overrun_packed_longer_than_int64list"
)
DIVERGENCES = {f"proto{name}" for names in (_UNKNOWN, _ENTRY, _FIRST, _CHECKS_LESS) for name in names.split()}


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


def test_known_divergences_from_tensorflows_parser_are_all_there_are(tf: Any) -> None:
    """A message that both parsers read alike must not be in the list."""
    kinds = {"a": "int64", "f": "float", "s": "bytes"}
    found = set()
    for path in BAD.glob("proto*.tfrecord"):
        payload = oracle.read_payloads(path)[1]
        try:
            features = oracle.parse(payload).features
            judged = {n: f.values for n, f in features.items() if f.values and f.kind == kinds.get(n)}
        except oracle.DecodeError:
            judged = None
        if _parsed_by_tensorflow(tf, payload) != judged:
            found.add(path.stem)
    assert found == DIVERGENCES
