"""TensorFlow: specs for its own parser, two engines that yield the same elements, changed files, resuming.

Modules: feed.tensorflow, feed.resume_position.
"""

import datetime
import json
import os
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import SchemaError, TFRecordError, to_tfrecord

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow", reason="TensorFlow has no wheel for this platform")

from dask_tfrecord.feed import tensorflow as module  # noqa: E402
from dask_tfrecord.feed.tensorflow import feature_spec, tensorflow_dataset  # noqa: E402

ROWS = 203


VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "bool": (pa.bool_(), lambda row: row % 2 == 0),
    "int8": (pa.int8(), lambda row: row % 100 - 50),
    "uint16": (pa.uint16(), lambda row: row + 65000),
    "uint64": (pa.uint64(), lambda row: row + 2**62),
    "half": (pa.float16(), lambda row: row / 4),
    "double": (pa.float64(), lambda row: row / 2),
    "text": (pa.string(), lambda row: f"t{row}é"),
    "bytes": (pa.binary(), lambda row: bytes([row % 256, 0, 255])),
    "time": (pa.timestamp("ms"), lambda row: datetime.datetime(2026, 1, 1) + datetime.timedelta(hours=row)),
    "date": (pa.date32(), lambda row: datetime.date(2026, 1, 1) + datetime.timedelta(days=row)),
    "ragged": (pa.list_(pa.int32()), lambda row: list(range(row % 4))),
    "fixed": (pa.list_(pa.float32(), 3), lambda row: [row, row / 2, 0.5]),
    "words": (pa.list_(pa.string()), lambda row: [f"w{word}" for word in range(row % 3)]),
    "key": (pa.string(), lambda row: f"k{row % 3}"),
    "id": (pa.int64(), lambda row: row),
}


def written(
    root: Path, columns: dict[str, pa.Array] | pa.Table, npartitions: int = 1, **options: Any
) -> Path:
    frame = pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)
    to_tfrecord(dd.from_pandas(frame, npartitions=npartitions), root, lossy="allow", **options)
    return root


@pytest.fixture(scope="module", params=["gzip", "zlib"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Every type; the second form has partition directories."""
    path = tmp_path_factory.mktemp("tensorflow") / "dataset"
    columns = {name: pa.array(map(of, range(ROWS)), type_) for name, (type_, of) in VALUES.items()}
    keys = ["key"] if request.param == "zlib" else None
    return str(written(path, columns, 3, partition_on=keys, compression=request.param))


def rows(elements: Any) -> list[dict[str, Any]]:
    found = []
    for batch in elements:
        columns = {
            name: tensor.to_list() if isinstance(tensor, tf.RaggedTensor) else tensor.numpy().tolist()
            for name, tensor in batch.items()
        }
        found += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return found


def dtypes(elements: Any) -> dict[str, Any]:
    return {name: spec.dtype for name, spec in elements.element_spec.items()}


def test_both_engines_give_the_same_rows(dataset: str) -> None:
    ours, native = (tensorflow_dataset(dataset, 32, engine=engine) for engine in ("kernel", "native"))
    assert dtypes(ours) == dtypes(native)
    assert dtypes(ours)["int8"] == tf.int8
    assert rows(ours) == rows(native)
    assert int(ours.cardinality()) == int(native.cardinality()) == 7
    assert [batch["id"].shape[0] for batch in native] == [32] * 6 + [11]


@pytest.mark.parametrize("batch_size", [32, 190])
def test_columns_without_lists_give_the_same_rows(dataset: str, batch_size: int) -> None:
    """Such columns take another way: several of one type travel as one tensor, and text as Python objects."""
    names = ["text", "id", "double", "bool", "bytes", "time", "int8", "date"]
    ours, native = (
        tensorflow_dataset(dataset, batch_size, names, engine=engine) for engine in ("kernel", "native")
    )
    assert list(ours.element_spec) == names
    assert [spec.shape.as_list() for spec in ours.element_spec.values()] == [[None]] * len(names)
    assert dtypes(ours) == dtypes(native)
    assert rows(ours) == rows(native)


def test_null_in_columns_that_travel_together(tmp_path: Path) -> None:
    columns = {
        "a": pa.array([1, None, 3]),
        "b": pa.array([None, 5, 6]),
        "c": pa.array([0.5, None, 1.5], pa.float64()),
        "d": pa.array([None, 2.5, 3.5], pa.float64()),
    }
    path = written(tmp_path / "dataset", columns)
    [batch] = tensorflow_dataset(path, 3, engine="kernel", fill_nulls={"a": -1, "b": -2, "d": 9.0})
    assert batch["a"].numpy().tolist() == [1, -1, 3]
    assert batch["b"].numpy().tolist() == [-2, 5, 6]
    np.testing.assert_array_equal(batch["c"].numpy(), [0.5, np.nan, 1.5])
    assert batch["d"].numpy().tolist() == [9.0, 2.5, 3.5]
    with pytest.raises(tf.errors.InvalidArgumentError, match="fill_nulls="):
        list(tensorflow_dataset(path, 3, engine="kernel", fill_nulls={"a": -1}))


def test_the_rows_are_those_of_the_dataset(dataset: str) -> None:
    table = pa.Table.from_pandas(dask_tfrecord.read_tfrecord(dataset).compute(), preserve_index=False)
    expected = table.set_column(table.schema.get_field_index("time"), "time", table["time"].cast(pa.int64()))
    expected = expected.set_column(
        table.schema.get_field_index("date"), "date", table["date"].combine_chunks().view(pa.int32())
    ).to_pylist()
    found = rows(tensorflow_dataset(dataset, 50, engine="kernel"))
    for one, other in zip(found, expected, strict=True):
        other["text"], other["words"] = other["text"].encode(), [word.encode() for word in other["words"]]
        other["key"] = other["key"].encode() if isinstance(other["key"], str) else other["key"]
        assert one == other


def test_missing_values_have_a_default_or_are_refused(tmp_path: Path) -> None:
    data = {
        "x": pa.array([1, None, 3]),
        "y": pa.array([0.5, None, 2], pa.float32()),
        "z": pa.array(["a", None, "c"]),
        "l": pa.array([[1], None, [2, 3]]),
    }
    path = written(tmp_path / "d", data)
    with pytest.raises(SchemaError, match=r"feature 'x'.*fill_nulls="):
        feature_spec(path)
    with pytest.raises(TFRecordError, match="fill_nulls= names the column 'ids'"):
        feature_spec(path, fill_nulls={"ids": -1})
    spec = feature_spec(path, ["x", "z", "l"], fill_nulls={"x": -1})
    assert eval(spec.code(), {"tf": tf}) == spec.context
    for engine in ("kernel", "native"):
        [batch] = tensorflow_dataset(path, 3, engine=engine, fill_nulls={"x": -1})
        assert batch["x"].numpy().tolist() == [1, -1, 3]
        assert np.isnan(batch["y"].numpy()).tolist() == [False, True, False]
        assert batch["z"].numpy().tolist() == [b"a", b"", b"c"]
        assert batch["l"].to_list() == [[1], [], [2, 3]]


@pytest.mark.parametrize("engine", ["kernel", "native"])
def test_every_row_is_in_one_shard_of_a_shuffled_epoch(dataset: str, tmp_path: Path, engine: Any) -> None:
    found: list[int] = []
    for index in range(3):
        given = {"engine": engine, "shard": (index, 3), "shuffle": True, "seed": 1, "shuffle_buffer": 100}
        elements = tensorflow_dataset(dataset, 16, ["id"], "int8", **given)
        first, second = (
            [row for features, _ in elements for row in features["id"].numpy().tolist()] for _ in range(2)
        )
        assert first != second
        found += first
    assert sorted(found) == list(range(ROWS))
    elements = tensorflow_dataset(dataset, 100, ["id"], "int8", engine=engine, batch_mode="drop")
    assert int(elements.cardinality()) == 2
    assert [(list(features), label.dtype) for features, label in elements] == [(["id"], tf.int8)] * 2
    path = written(tmp_path / "none", {"x": pa.array([], pa.int64())})
    elements = tensorflow_dataset(path, 4, engine=engine)
    assert (list(elements), int(elements.cardinality())) == ([], 0)


def test_sequence_examples(tmp_path: Path) -> None:
    lists = pa.array([[["a"], ["b", "c"]], []], pa.list_(pa.list_(pa.string())))
    path = written(tmp_path / "d", {"x": [1, 2], "s": lists}, record_type="sequence_example")
    assert list(feature_spec(path).sequence) == ["s"]
    for engine in ("kernel", "native"):
        [batch] = tensorflow_dataset(path, 2, engine=engine)
        assert batch["s"].to_list() == [[[b"a"], [b"b", b"c"]], []]
        assert batch["x"].numpy().tolist() == [1, 2]


def test_large_images_are_read_by_tensorflow(tmp_path: Path) -> None:
    path = written(tmp_path / "d", {"image": [b"x" * 300_000, b"y" * 300_000], "id": [1, 2]})
    dataset, _ = module.open_columns(path, None, None, {})
    assert module._best_engine(dataset, dataset.schema) == "native"
    [batch] = tensorflow_dataset(path, 2)
    assert batch["id"].numpy().tolist() == [1, 2]


def test_what_tensorflow_cannot_read_is_named(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="TensorFlow"):
        to_tfrecord(dd.from_dict({"x": [1]}, npartitions=1), tmp_path / "d", compression="zstd")
    with pytest.raises(TFRecordError, match="cannot decompress zstd"):
        tensorflow_dataset(tmp_path / "d", 1, engine="native")
    (batch,) = tensorflow_dataset(tmp_path / "d", 1)
    assert batch["x"].numpy().tolist() == [1]


@pytest.mark.parametrize("batch_size", [3, 64])
@pytest.mark.parametrize("lists", ["ragged", "padded", "sparse"])
def test_both_engines_join_the_lists_of_several_files(tmp_path: Path, lists: Any, batch_size: int) -> None:
    lengths = [0, 4, 1, 2, 0, 3, 1, 0, 2, 5, 1]
    numbers = pa.array([list(range(length)) for length in lengths], pa.list_(pa.int64()))
    words = pa.array([[str(at) for at in range(length)] for length in lengths], pa.list_(pa.string()))
    path = written(tmp_path / "d", {"x": numbers, "words": words}, 4)

    def plain(tensor: Any) -> Any:
        if isinstance(tensor, tf.SparseTensor):
            dense = tf.sparse.to_dense(tensor).numpy().tolist()
            return type(tensor), tensor.dense_shape.numpy().tolist(), dense
        values = tensor.to_list() if isinstance(tensor, tf.RaggedTensor) else tensor.numpy().tolist()
        return type(tensor), values

    ours, native = (
        [
            (plain(batch["x"]), plain(batch["words"]))
            for batch in tensorflow_dataset(path, batch_size, engine=engine, lists=lists)
        ]
        for engine in ("kernel", "native")
    )
    assert ours == native


def test_both_engines_agree_about_decimals_and_missing_rows_of_a_fixed_size(tmp_path: Path) -> None:
    columns = {
        "price": pa.array([Decimal("29.99"), Decimal("-7.33"), None], pa.decimal128(9, 2)),
        "point": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "code": pa.array([b"abc", None, b"def"], pa.binary(3)),
    }
    path = written(tmp_path / "d", columns)
    ours, native = (rows(tensorflow_dataset(path, 3, engine=engine)) for engine in ("kernel", "native"))
    assert str(ours) == str(native)
    assert ours[0] == {"price": 29.99, "point": [1.0, 2.0], "code": b"abc"}
    assert str(ours[1]["point"]) == "[nan, nan]"


@pytest.mark.parametrize("engine", ["kernel", "native"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"shuffle": 0}, "pass shuffle=True and seed=0"),
        ({"shuffle_buffer": 0}, "shuffle_buffer=0"),
        ({"shard": (2, 2)}, "shard="),
        ({"batch_mode": "auto"}, "batch_mode"),
        ({"fill_nulls": {"ids": -1}}, "fill_nulls= names the column 'ids'"),
    ],
)
def test_wrong_arguments_are_named(
    dataset: str, engine: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(TFRecordError, match=message):
        tensorflow_dataset(dataset, **{"batch_size": 10, "engine": engine, **arguments})


OPEN_AT_EXIT = """
import atexit
import sys

from dask_tfrecord.feed import tensorflow as feed

opened = []
for engine in ("kernel", "native"):
    dataset = feed.tensorflow_dataset(sys.argv[1], 10, engine=engine)
    opened.append(iter(dataset))
    next(opened[-1])
    list(iter(dataset))
atexit.unregister(feed._drop_iterators)
atexit.register(lambda: print(*map(vars, opened), len(feed._open)))
atexit.register(feed._drop_iterators)
"""


@pytest.mark.parametrize("dataset", ["gzip"], indirect=True)
def test_iterators_that_a_program_leaves_open_are_dropped_before_python_ends(dataset: str) -> None:
    # Otherwise Python waits forever if a thread of TensorFlow is reading when Python ends, which is rare.
    command = [sys.executable, "-c", OPEN_AT_EXIT, dataset]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert (ended.stdout, ended.returncode) == ("{} {} 0\n", 0)


def test_a_dataset_that_is_overwritten_between_epochs_raises(tmp_path: Path) -> None:
    to_tfrecord(dd.from_dict({"x": [1, 2]}, npartitions=1), tmp_path / "d")
    elements = tensorflow_dataset(tmp_path / "d", 1, engine="kernel")
    assert len(list(elements)) == 2
    to_tfrecord(dd.from_dict({"x": [3, 4, 5]}, npartitions=1), tmp_path / "d", overwrite=True)
    with pytest.raises(tf.errors.OpError, match="removed after the dataset was listed"):
        list(elements)


CHANGES: dict[str, Any] = {
    "replaced": lambda old, new: os.replace(new, old),
    "rewritten": lambda old, new: old.write_bytes(new.read_bytes()),
    "cut": lambda old, new: os.truncate(old, old.stat().st_size // 2),  # between two of the equal records
    "appended to": lambda old, new: old.write_bytes(old.read_bytes() + new.read_bytes()),
    "removed": lambda old, new: old.unlink(),
}


@pytest.mark.parametrize(
    ("change", "moment", "arguments", "has_snapshot"),
    [
        ("replaced", "before", {"shuffle": True, "seed": 1, "shuffle_buffer": 10}, False),
        ("replaced", "during", {}, False),
        ("replaced", "after", {"shard": (1, 2)}, False),
        ("rewritten", "before", {}, False),
        ("rewritten", "during", {"shard": (1, 2)}, False),
        ("rewritten", "after", {"batch_mode": "drop"}, False),
        ("cut", "before", {"shuffle": True, "seed": 1}, False),
        ("cut", "during", {"shard": (1, 2)}, True),
        ("appended to", "before", {"shard": (1, 2)}, True),
        ("appended to", "during", {}, False),
        ("removed", "during", {"shuffle": True, "seed": 1, "shuffle_buffer": 10}, True),
        ("removed", "after", {"shard": (1, 2)}, False),
    ],
)
def test_native_notices_files_that_change_around_an_epoch(
    tmp_path: Path, change: str, moment: str, arguments: dict[str, Any], has_snapshot: bool
) -> None:
    for name in ("old", "new"):
        written(tmp_path / name, {"x": np.arange(200) + 1000}, 2)
    if not has_snapshot:
        shutil.rmtree(tmp_path / "old" / "_tfrecord")
    last, new = (sorted((tmp_path / name).glob("*.tfrecord"))[-1] for name in ("old", "new"))
    os.utime(new, (1e9, 1e9))  # a change within one tick of the clock cannot be noticed
    given = {"fill_nulls": {"x": -1}, "engine": "native", "prefetch": 0, **arguments}
    elements = tensorflow_dataset(tmp_path / "old", 10, **given)
    if moment == "after":
        assert len(list(elements)) == 10 if "shard" in arguments else 20
    iterator = iter(elements)
    if moment == "during":
        next(iterator)
    CHANGES[change](last, new)
    with pytest.raises(tf.errors.OpError, match=r"FileChangedError|FileRemovedError|No such file") as raised:
        list(iterator)
    assert last.name in str(raised.value)


@pytest.mark.parametrize("engine", ["kernel", "native"])
def test_a_kept_version_is_read(engine: Any, tmp_path: Path) -> None:
    to_tfrecord(dd.from_dict({"x": [1, 2, 3]}, npartitions=1), tmp_path / "d")
    dask_tfrecord.open_dataset(tmp_path / "d").delete([("x", "==", 2)], keep_versions=True)
    for version, expected in ((1, [1, 2, 3]), (2, [1, 3])):
        [batch] = tensorflow_dataset(tmp_path / "d", 10, engine=engine, version=version)
        assert batch["x"].numpy().tolist() == expected


def test_native_saves_its_position(tmp_path: Path) -> None:
    path = written(tmp_path / "d", {"x": list(range(100))}, 3)
    iterator, resumed = (iter(tensorflow_dataset(path, 10, engine="native")) for _ in range(2))
    next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "state"))
    tf.train.Checkpoint(iterator=resumed).restore(saved)
    assert [batch["x"].numpy().tolist() for batch in resumed] == [
        batch["x"].numpy().tolist() for batch in iterator
    ]


@pytest.mark.parametrize(
    ("engine", "more"),
    [("native", {}), ("kernel", {"shuffle": True, "seed": 1}), ("native", {"batch_mode": "drop"})],
)
def test_a_read_of_no_file_has_no_batch(engine: Any, more: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "d", {"x": [1, 2], "key": [1, 2], "text": ["a", "b"]}, partition_on=["key"])
    given = {"filters": [("key", ">", 2)], "fill_nulls": {"x": -1, "text": ""}, **more}
    found = tensorflow_dataset(path, 2, engine=engine, **given)
    assert (list(found), found.cardinality().numpy()) == ([], 0)
    assert dtypes(found) == {"x": tf.int64, "key": tf.int64, "text": tf.string}


OPTIONS: dict[str, Any] = {"shuffle": True, "seed": 3, "shuffle_buffer": 20, "prefetch": 4}


@pytest.fixture(scope="module")
def rows_of_100(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("tensorflow") / "data")
    to_tfrecord(
        pa.table({"id": range(100), "y": [row % 2 for row in range(100)]}),
        path,
        write_options={"max_rows_per_file": 9},
    )
    return path


def ids(elements: Any) -> list[list[int]]:
    return [batch["id"].numpy().tolist() for batch in elements]


def test_a_checkpoint_of_the_state_resumes_the_run(rows_of_100: str, tmp_path: Path) -> None:
    whole = tensorflow_dataset(rows_of_100, 7, **OPTIONS)
    expected = [ids(whole), ids(whole), ids(whole)]
    for epoch, stop in ((0, 1), (1, 5), (1, 15), (2, 14)):
        state = tf.Variable("")
        checkpoint = tf.train.Checkpoint(state=state)
        elements = tensorflow_dataset(rows_of_100, 7, state_column="state", epoch=epoch, **OPTIONS)
        for _, batch in zip(range(stop), elements, strict=False):
            state.assign(batch["state"])
        path = checkpoint.save(str(tmp_path / "checkpoint"))

        restored = tf.Variable("")
        tf.train.Checkpoint(state=restored).restore(path).assert_consumed()
        start = json.loads(restored.numpy())
        resumed = tensorflow_dataset(rows_of_100, 7, start=start, **OPTIONS)
        assert ids(resumed) == expected[epoch][stop:]
        if epoch < 2:
            assert ids(resumed) == expected[epoch + 1]


def test_groups_of_blocks_are_shuffled_in_the_order_of_arrow_batches(rows_of_100: str) -> None:
    options: dict[str, Any] = {"shuffle": "blocks", "seed": 4}
    batches = dask_tfrecord.feed.iter_batches(rows_of_100, 7, epoch=1, **options)
    expected, states = [], []
    for batch in batches:
        expected.append(batch["id"].to_pylist())
        states.append(batches.state)
    assert ids(tensorflow_dataset(rows_of_100, 7, epoch=1, **options)) == expected
    assert ids(tensorflow_dataset(rows_of_100, 7, start=states[5], **options)) == expected[6:]
    with pytest.raises(TFRecordError, match="shuffle='blocks' need engine='kernel'"):
        tensorflow_dataset(rows_of_100, 7, engine="native", **options)


def test_other_numbers_of_shards_divide_the_remaining_rows(rows_of_100: str) -> None:
    found, states = [], []
    for shard in range(3):
        elements = tensorflow_dataset(
            rows_of_100, 7, ["id"], label="y", shard=(shard, 3), state_column="at", **OPTIONS
        )
        for _, (features, _) in zip(range(shard + 1), elements, strict=False):
            found += features["id"].numpy().tolist()
            state = json.loads(features["at"].numpy())
        states.append(state)
    for shard in range(2):
        elements = tensorflow_dataset(
            rows_of_100, 7, ["id"], label="y", shard=(shard, 2), start=states, **OPTIONS
        )
        found += [row for features, _ in elements for row in features["id"].numpy().tolist()]
    assert sorted(found) == list(range(100))


def test_what_cannot_be_resumed_is_refused(rows_of_100: str) -> None:
    state = dask_tfrecord.feed.iter_batches(rows_of_100, 7, shuffle=True, seed=3, shuffle_buffer=20).state
    for options in ({"epoch": 0}, {"start": state}, {"state_column": "s"}):
        with pytest.raises(TFRecordError, match="need engine='kernel'"):
            tensorflow_dataset(rows_of_100, 7, engine="native", **OPTIONS, **options)
    with pytest.raises(SchemaError, match="state_column= names a column"):
        tensorflow_dataset(rows_of_100, 7, state_column="y")
    for options, message in (
        ({"seed": 4}, "seed=3, and not seed=4; pass seed=3"),
        ({"epoch": 2}, "belongs to epoch 0, and this is epoch 2; pass epoch=0"),
        ({"columns": ["id"]}, "other arguments"),
    ):
        with pytest.raises(TFRecordError, match=message):
            tensorflow_dataset(rows_of_100, 7, start=state, **{**OPTIONS, **options})
