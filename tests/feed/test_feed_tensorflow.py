"""TensorFlow: elements that equal those of its own parser, feature specs, changed files, resuming.

Modules: feed.tensorflow, feed.rows.resume_position.
"""

import datetime
import json
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


def parsed(path: Any, batch_size: int, columns: Any = None, codec: str = "", **read: Any) -> Any:
    """The elements that TensorFlow's own reader and parser give with our feature spec."""
    files = dask_tfrecord.open_dataset(path).files["path"].tolist()
    records = tf.data.TFRecordDataset(files, compression_type=codec)
    return records.batch(batch_size).map(feature_spec(path, columns, **read).parse)


@pytest.mark.parametrize("batch_size", [32, 190])
def test_the_elements_are_those_of_the_parser_of_tensorflow(dataset: str, batch_size: int) -> None:
    """Columns of one type travel as one tensor, and text without lists as Python objects."""
    flat = ["text", "id", "double", "bool", "bytes", "time", "int8", "date"]
    lists = ["ragged", "words", "fixed", "uint16", "uint64", "half"]
    codec = dask_tfrecord.open_dataset(dataset).codecs[0].upper()
    for names in (flat, [*lists, *flat]):
        ours = tensorflow_dataset(dataset, batch_size, names)
        theirs = parsed(dataset, batch_size, names, codec)
        assert list(ours.element_spec) == names
        assert dtypes(ours) == dtypes(theirs)
        assert dtypes(ours)["int8"] == tf.int8
        assert rows(ours) == rows(theirs)
        assert int(ours.cardinality()) == -(-ROWS // batch_size)
    assert [batch["id"].shape[0] for batch in ours][-1] == ROWS % batch_size
    assert [spec.shape.as_list() for spec in tensorflow_dataset(dataset, 9, flat).element_spec.values()] == [
        [None]
    ] * len(flat)


def test_null_in_columns_that_travel_together(tmp_path: Path) -> None:
    columns = {
        "a": pa.array([1, None, 3]),
        "b": pa.array([None, 5, 6]),
        "c": pa.array([0.5, None, 1.5], pa.float64()),
        "d": pa.array([None, 2.5, 3.5], pa.float64()),
    }
    path = written(tmp_path / "dataset", columns)
    [batch] = tensorflow_dataset(path, 3, fill_nulls={"a": -1, "b": -2, "d": 9.0})
    assert batch["a"].numpy().tolist() == [1, -1, 3]
    assert batch["b"].numpy().tolist() == [-2, 5, 6]
    np.testing.assert_array_equal(batch["c"].numpy(), [0.5, np.nan, 1.5])
    assert batch["d"].numpy().tolist() == [9.0, 2.5, 3.5]
    with pytest.raises(tf.errors.InvalidArgumentError, match="fill_nulls="):
        list(tensorflow_dataset(path, 3, fill_nulls={"a": -1}))


def test_the_rows_are_those_of_the_dataset(dataset: str) -> None:
    table = pa.Table.from_pandas(dask_tfrecord.read_tfrecord(dataset).compute(), preserve_index=False)
    expected = table.set_column(table.schema.get_field_index("time"), "time", table["time"].cast(pa.int64()))
    expected = expected.set_column(
        table.schema.get_field_index("date"), "date", table["date"].combine_chunks().view(pa.int32())
    ).to_pylist()
    found = rows(tensorflow_dataset(dataset, 50))
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
    for elements in (
        tensorflow_dataset(path, 3, fill_nulls={"x": -1}),
        parsed(path, 3, fill_nulls={"x": -1}),
    ):
        [batch] = elements
        assert batch["x"].numpy().tolist() == [1, -1, 3]
        assert np.isnan(batch["y"].numpy()).tolist() == [False, True, False]
        assert batch["z"].numpy().tolist() == [b"a", b"", b"c"]
        assert batch["l"].to_list() == [[1], [], [2, 3]]


def test_every_row_is_in_one_shard_of_a_shuffled_epoch(dataset: str, tmp_path: Path) -> None:
    found: list[int] = []
    for index in range(3):
        given = {"shard": (index, 3), "shuffle": True, "seed": 1, "shuffle_buffer": 100, "uneven": "keep"}
        elements = tensorflow_dataset(dataset, 16, ["id"], "int8", **given)
        first, second = (
            [row for features, _ in elements for row in features["id"].numpy().tolist()] for _ in range(2)
        )
        assert first != second
        found += first
    assert sorted(found) == list(range(ROWS))
    elements = tensorflow_dataset(dataset, 100, ["id"], "int8", batch_mode="drop")
    assert int(elements.cardinality()) == 2
    assert [(list(features), label.dtype) for features, label in elements] == [(["id"], tf.int8)] * 2
    path = written(tmp_path / "none", {"x": pa.array([], pa.int64())})
    elements = tensorflow_dataset(path, 4)
    assert (list(elements), int(elements.cardinality())) == ([], 0)


def test_sequence_examples(tmp_path: Path) -> None:
    lists = pa.array([[["a"], ["b", "c"]], []], pa.list_(pa.list_(pa.string())))
    path = written(tmp_path / "d", {"x": [1, 2], "s": lists}, record_type="sequence_example")
    assert list(feature_spec(path).sequence) == ["s"]
    for elements in (tensorflow_dataset(path, 2), parsed(path, 2)):
        [batch] = elements
        assert batch["s"].to_list() == [[[b"a"], [b"b", b"c"]], []]
        assert batch["x"].numpy().tolist() == [1, 2]


def test_nested_lists_are_padded_by_map(tmp_path: Path) -> None:
    words = pa.array([[str(at) for at in range(at)] for at in (0, 4, 1, 2, 0)], pa.list_(pa.string()))
    path = written(tmp_path / "d", {"words": words}, 3)
    found = tensorflow_dataset(path, 3).map(lambda row: {"words": row["words"].to_tensor("?")})
    expected = tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True, default_value="?")
    files = dask_tfrecord.open_dataset(path).files["path"].tolist()
    theirs = (
        tf.data.TFRecordDataset(files)
        .batch(3)
        .map(lambda records: tf.io.parse_example(records, {"words": expected}))
    )
    assert [one["words"].numpy().tolist() for one in found] == [
        one["words"].numpy().tolist() for one in theirs
    ]


def test_decimals_and_missing_rows_of_a_fixed_size_are_those_of_the_parser(tmp_path: Path) -> None:
    columns = {
        "price": pa.array([Decimal("29.99"), Decimal("-7.33"), None], pa.decimal128(9, 2)),
        "point": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "code": pa.array([b"abc", None, b"def"], pa.binary(3)),
    }
    path = written(tmp_path / "d", columns)
    ours = rows(tensorflow_dataset(path, 3))
    theirs = rows(parsed(path, 3))
    assert [str(sorted(row.items())) for row in ours] == [str(sorted(row.items())) for row in theirs]
    assert ours[0] == {"price": 29.99, "point": [1.0, 2.0], "code": b"abc"}
    assert str(ours[1]["point"]) == "[nan, nan]"


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
def test_wrong_arguments_are_named(dataset: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TFRecordError, match=message):
        tensorflow_dataset(dataset, **{"batch_size": 10, **arguments})


OPEN_AT_EXIT = """
import atexit
import sys

from dask_tfrecord.feed import tensorflow as feed

dataset = feed.tensorflow_dataset(sys.argv[1], 10)
opened = [iter(dataset)]
next(opened[0])
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
    assert (ended.stdout, ended.returncode) == ("{} 0\n", 0)


def test_a_dataset_that_is_overwritten_between_epochs_raises(tmp_path: Path) -> None:
    to_tfrecord(dd.from_dict({"x": [1, 2]}, npartitions=1), tmp_path / "d")
    elements = tensorflow_dataset(tmp_path / "d", 1)
    assert len(list(elements)) == 2
    to_tfrecord(dd.from_dict({"x": [3, 4, 5]}, npartitions=1), tmp_path / "d", overwrite=True)
    with pytest.raises(tf.errors.OpError, match="removed after it was listed"):
        list(elements)


def test_a_kept_version_is_read(tmp_path: Path) -> None:
    to_tfrecord(dd.from_dict({"x": [1, 2, 3]}, npartitions=1), tmp_path / "d")
    dask_tfrecord.open_dataset(tmp_path / "d").delete([("x", "==", 2)], keep_versions=True)
    for version, expected in ((1, [1, 2, 3]), (2, [1, 3])):
        [batch] = tensorflow_dataset(tmp_path / "d", 10, version=version)
        assert batch["x"].numpy().tolist() == expected


@pytest.mark.parametrize("more", [{"shuffle": True, "seed": 1}, {"batch_mode": "drop"}])
def test_a_read_of_no_file_has_no_batch(more: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "d", {"x": [1, 2], "key": [1, 2], "text": ["a", "b"]}, partition_on=["key"])
    given = {"filters": [("key", ">", 2)], "fill_nulls": {"x": -1, "text": ""}, **more}
    found = tensorflow_dataset(path, 2, **given)
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


@pytest.mark.parametrize("shuffle", [None, True, "blocks"])
def test_other_numbers_of_shards_continue_the_global_batches_of_elastic(
    rows_of_100: str, shuffle: Any
) -> None:
    def steps(count: int, start: Any, number: int) -> tuple[list[list[int]], list[Any]]:
        """The rows of some global batches, and the states after them."""
        found: list[list[int]] = [[] for _ in range(number)]
        states = []
        for shard in range(count):
            how = {"elastic": 4, "shuffle": shuffle, "shard": (shard, count), "start": start}
            elements = tensorflow_dataset(rows_of_100, 8 // count, state_column="at", **how)
            for step, batch in zip(found, elements.take(number), strict=True):
                step += batch["id"].numpy().tolist()
            states.append(json.loads(batch["at"].numpy()))
        return [sorted(step) for step in found], states

    whole, _ = steps(1, None, 13)
    assert sorted(row for step in whole for row in step) == list(range(100))
    found, states = steps(4, None, 3)
    for count, number in ((2, 4), (1, 1), (4, 5)):
        following, states = steps(count, states, number)
        found += following
    assert found == whole


def test_what_cannot_be_resumed_is_refused(rows_of_100: str) -> None:
    state = dask_tfrecord.feed.iter_batches(rows_of_100, 7, shuffle=True, seed=3, shuffle_buffer=20).state
    with pytest.raises(SchemaError, match="state_column= names a column"):
        tensorflow_dataset(rows_of_100, 7, state_column="y")
    for options, message in (
        ({"seed": 4}, "seed=3, and not seed=4; pass seed=3"),
        ({"epoch": 2}, "belongs to epoch 0, and this is epoch 2; pass epoch=0"),
        ({"columns": ["id"]}, "other arguments"),
    ):
        with pytest.raises(TFRecordError, match=message):
            tensorflow_dataset(rows_of_100, 7, start=state, **{**OPTIONS, **options})
