"""TensorFlow: specs for its own parser, and two engines that yield the same elements.

Modules: feed.tensorflow.
"""

import datetime
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
from dask_tfrecord import SchemaError, TFRecordError

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow", reason="TensorFlow has no wheel for this platform")

ROWS = 203
TYPES: dict[str, Any] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "uint16": pa.uint16(),
    "uint64": pa.uint64(),
    "half": pa.float16(),
    "double": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "time": pa.timestamp("ms"),
    "date": pa.date32(),
    "ragged": pa.list_(pa.int32()),
    "fixed": pa.list_(pa.float32(), 3),
    "words": pa.list_(pa.string()),
}


def value(name: str, row: int) -> Any:
    return {
        "bool": row % 2 == 0,
        "int8": row % 100 - 50,
        "uint16": row + 65000,
        "uint64": row + 2**62,
        "half": row / 4,
        "double": row / 2,
        "text": f"t{row}é",
        "bytes": bytes([row % 256, 0, 255]),
        "time": datetime.datetime(2026, 1, 1) + datetime.timedelta(hours=row),
        "date": datetime.date(2026, 1, 1) + datetime.timedelta(days=row),
        "ragged": list(range(row % 4)),
        "fixed": [row, row / 2, 0.5],
        "words": [f"w{word}" for word in range(row % 3)],
    }[name]


def frame(**more: Any) -> pd.DataFrame:
    columns = {name: [value(name, row) for row in range(ROWS)] for name in TYPES}
    data = {
        name: pd.array(pa.array(column, TYPES[name]), pd.ArrowDtype(TYPES[name]))
        for name, column in columns.items()
    }
    return pd.DataFrame({"id": np.arange(ROWS), **data, **more})


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip": {"compression": "gzip"},
    "partitioned": {"partition_on": ["key"], "compression": "zlib"},
}


@pytest.fixture(scope="module", params=FORMS)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("tensorflow") / "dataset")
    key = pd.array([f"k{row % 3}" for row in range(ROWS)], pd.ArrowDtype(pa.string()))
    ddf = dd.from_pandas(frame(key=key), npartitions=3)
    dask_tfrecord.to_tfrecord(ddf, path, lossy="allow", **FORMS[request.param])
    return path


def rows(elements: Any) -> list[dict[str, Any]]:
    """All rows of a dataset of batches, as plain values."""
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
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    ours, native = (tensorflow_dataset(dataset, 32, engine=engine) for engine in ("kernel", "native"))
    assert dtypes(ours) == dtypes(native)
    assert dtypes(ours)["int8"] == tf.int8
    assert rows(ours) == rows(native)
    assert int(ours.cardinality()) == int(native.cardinality()) == 7
    assert [batch["id"].shape[0] for batch in native] == [32] * 6 + [11]


@pytest.mark.parametrize("batch_size", [32, 190])
def test_columns_without_lists_give_the_same_rows(dataset: str, batch_size: int) -> None:
    """Such columns take another way: several of one type travel as one tensor, and text as Python objects."""
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    names = ["text", "id", "double", "bool", "bytes", "time", "int8", "date"]
    ours, native = (
        tensorflow_dataset(dataset, batch_size, names, engine=engine) for engine in ("kernel", "native")
    )
    assert list(ours.element_spec) == names
    assert [spec.shape.as_list() for spec in ours.element_spec.values()] == [[None]] * len(names)
    assert dtypes(ours) == dtypes(native)
    assert rows(ours) == rows(native)


def test_null_in_columns_that_travel_together(tmp_path: Path) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    frame = pd.DataFrame(
        {
            "a": pd.array([1, None, 3], "Int64"),
            "b": pd.array([None, 5, 6], "Int64"),
            "c": [0.5, None, 1.5],
            "d": [None, 2.5, 3.5],
        }
    )
    path = str(tmp_path / "dataset")
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), path, lossy="allow")
    [batch] = tensorflow_dataset(path, 3, engine="kernel", fill_nulls={"a": -1, "b": -2, "d": 9.0})
    assert batch["a"].numpy().tolist() == [1, -1, 3]
    assert batch["b"].numpy().tolist() == [-2, 5, 6]
    np.testing.assert_array_equal(batch["c"].numpy(), [0.5, np.nan, 1.5])
    assert batch["d"].numpy().tolist() == [9.0, 2.5, 3.5]
    with pytest.raises(tf.errors.InvalidArgumentError, match="fill_nulls="):
        list(tensorflow_dataset(path, 3, engine="kernel", fill_nulls={"a": -1}))


def test_the_rows_are_those_of_the_dataset(dataset: str) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

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


@pytest.mark.parametrize("engine", ["kernel", "native"])
def test_every_row_is_in_one_shard(dataset: str, engine: Any) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    found: list[int] = []
    for index in range(3):
        shard = tensorflow_dataset(dataset, 16, ["id"], engine=engine, shard=(index, 3), shuffle=1)
        found += [row["id"] for row in rows(shard)]
    assert sorted(found) == list(range(ROWS))


@pytest.mark.parametrize("engine", ["kernel", "native"])
def test_epochs_are_shuffled_differently(dataset: str, engine: Any) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    elements = tensorflow_dataset(dataset, 16, ["id"], engine=engine, shuffle=5, shuffle_buffer=100)
    first, second = ([row["id"] for row in rows(elements)] for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second) == list(range(ROWS))


@pytest.mark.parametrize("engine", ["kernel", "native"])
def test_a_label_is_the_second_part(dataset: str, engine: Any) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    elements = tensorflow_dataset(dataset, 100, ["id"], "int8", engine=engine, batch_mode="drop")
    batches = list(elements)
    assert len(batches) == int(elements.cardinality()) == 2
    for features, label in batches:
        assert list(features) == ["id"]
        assert label.dtype == tf.int8


@pytest.mark.parametrize("lists", ["ragged", "padded", "sparse"])
def test_lists_take_the_form_that_is_asked_for(dataset: str, lists: Any) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    first = [
        next(iter(tensorflow_dataset(dataset, 20, ["ragged", "words"], engine=engine, lists=lists)))
        for engine in ("kernel", "native")
    ]
    for name in ("ragged", "words"):
        ours, native = (batch[name] for batch in first)
        assert type(ours) is type(native)
        if lists == "sparse":
            ours, native = tf.sparse.to_dense(ours), tf.sparse.to_dense(native)
        if lists == "ragged":
            assert ours.to_list() == native.to_list()
        else:
            assert ours.numpy().tolist() == native.numpy().tolist()


def test_the_code_of_a_spec_is_the_spec(dataset: str) -> None:
    from dask_tfrecord.feed.tensorflow import feature_spec

    spec = feature_spec(dataset)
    assert eval(spec.code(), {"tf": tf}) == spec.context


def test_missing_values_have_a_default_or_are_refused(tmp_path: Path) -> None:
    from dask_tfrecord.feed.tensorflow import feature_spec, tensorflow_dataset

    data = {
        "x": pa.array([1, None, 3]),
        "y": pa.array([0.5, None, 2], pa.float32()),
        "z": pa.array(["a", None, "c"]),
        "l": pa.array([[1], None, [2, 3]]),
    }
    frame = pd.DataFrame({name: pd.array(one, pd.ArrowDtype(one.type)) for name, one in data.items()})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "d")
    with pytest.raises(SchemaError, match=r"feature 'x'.*fill_nulls="):
        feature_spec(tmp_path / "d")
    for engine in ("kernel", "native"):
        elements = tensorflow_dataset(tmp_path / "d", 3, engine=engine, fill_nulls={"x": -1})
        (batch,) = elements
        assert batch["x"].numpy().tolist() == [1, -1, 3]
        assert np.isnan(batch["y"].numpy()).tolist() == [False, True, False]
        assert batch["z"].numpy().tolist() == [b"a", b"", b"c"]
        assert batch["l"].to_list() == [[1], [], [2, 3]]


def test_sequence_examples(tmp_path: Path) -> None:
    from dask_tfrecord.feed.tensorflow import feature_spec, tensorflow_dataset

    type_ = pd.ArrowDtype(pa.list_(pa.list_(pa.string())))
    frame = pd.DataFrame({"x": [1, 2], "s": pd.array([[["a"], ["b", "c"]], []], type_)})
    ddf = dd.from_pandas(frame, npartitions=1)
    dask_tfrecord.to_tfrecord(ddf, tmp_path / "d", record_type="sequence_example")
    spec = feature_spec(tmp_path / "d")
    assert list(spec.sequence) == ["s"]
    found = [
        next(iter(tensorflow_dataset(tmp_path / "d", 2, engine=engine))) for engine in ("kernel", "native")
    ]
    for batch in found:
        assert batch["s"].to_list() == [[[b"a"], [b"b", b"c"]], []]
        assert batch["x"].numpy().tolist() == [1, 2]


def test_large_images_are_read_by_tensorflow(tmp_path: Path) -> None:
    from dask_tfrecord.feed import tensorflow as module

    type_ = pd.ArrowDtype(pa.binary())
    frame = pd.DataFrame({"image": pd.array([b"x" * 300_000, b"y" * 300_000], type_), "id": [1, 2]})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "d")
    dataset, _ = module.open_columns(tmp_path / "d", None, None, {})
    assert module._best_engine(dataset, dataset.schema) == "native"
    (batch,) = module.tensorflow_dataset(tmp_path / "d", 2)
    assert batch["id"].numpy().tolist() == [1, 2]


def test_what_tensorflow_cannot_read_is_named(tmp_path: Path) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    with pytest.warns(UserWarning, match="TensorFlow"):
        dask_tfrecord.to_tfrecord(dd.from_dict({"x": [1]}, npartitions=1), tmp_path / "d", compression="zstd")
    with pytest.raises(TFRecordError, match="cannot decompress zstd"):
        tensorflow_dataset(tmp_path / "d", 1, engine="native")
    (batch,) = tensorflow_dataset(tmp_path / "d", 1)
    assert batch["x"].numpy().tolist() == [1]


@pytest.mark.parametrize("lists", ["ragged", "padded", "sparse"])
@pytest.mark.parametrize("batch_size", [3, 7, 64])
def test_both_engines_join_the_lists_of_several_files(tmp_path: Path, lists: Any, batch_size: int) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    lengths = [0, 4, 1, 2, 0, 3, 1, 0, 2, 5, 1]
    table = pa.table({"x": pa.array([list(range(length)) for length in lengths], pa.list_(pa.int64()))})
    ddf = dd.from_pandas(table.to_pandas(types_mapper=pd.ArrowDtype), npartitions=4)
    dask_tfrecord.to_tfrecord(ddf, tmp_path / "d")

    def plain(tensor: Any) -> Any:
        if isinstance(tensor, tf.SparseTensor):
            return tensor.dense_shape.numpy().tolist(), tf.sparse.to_dense(tensor).numpy().tolist()
        return tensor.to_list() if isinstance(tensor, tf.RaggedTensor) else tensor.numpy().tolist()

    ours, native = (
        [
            plain(batch["x"])
            for batch in tensorflow_dataset(tmp_path / "d", batch_size, engine=engine, lists=lists)
        ]
        for engine in ("kernel", "native")
    )
    assert ours == native


def test_both_engines_agree_about_decimals_and_missing_rows_of_a_fixed_size(tmp_path: Path) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    columns = {
        "price": pa.array([Decimal("29.99"), Decimal("-7.33"), None], pa.decimal128(9, 2)),
        "point": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "code": pa.array([b"abc", None, b"def"], pa.binary(3)),
    }
    frame = pd.DataFrame({name: pd.arrays.ArrowExtensionArray(column) for name, column in columns.items()})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "d", lossy="allow")
    ours, native = (
        rows(tensorflow_dataset(tmp_path / "d", 3, engine=engine)) for engine in ("kernel", "native")
    )
    assert str(ours) == str(native)
    assert ours[0] == {"price": 29.99, "point": [1.0, 2.0], "code": b"abc"}
    assert str(ours[1]["point"]) == "[nan, nan]"


@pytest.mark.parametrize("engine", ["kernel", "native"])
def test_a_dataset_without_rows(tmp_path: Path, engine: Any) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    frame = pd.DataFrame({"x": np.zeros(0, np.int64)})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "d")
    elements = tensorflow_dataset(tmp_path / "d", 4, engine=engine)
    assert list(elements) == []
    assert int(elements.cardinality()) == 0


@pytest.mark.parametrize("engine", ["kernel", "native"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"shuffle": False}, "shuffle=False"),
        ({"shuffle_buffer": 0}, "shuffle_buffer=0"),
        ({"shard": (2, 2)}, "shard="),
        ({"batch_mode": "auto"}, "batch_mode"),
        ({"fill_nulls": {"ids": -1}}, "fill_nulls= names the column 'ids'"),
    ],
)
def test_wrong_arguments_are_named(
    dataset: str, engine: Any, arguments: dict[str, Any], message: str
) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    with pytest.raises(TFRecordError, match=message):
        tensorflow_dataset(dataset, **{"batch_size": 10, "engine": engine, **arguments})


def test_missing_values_of_a_spec_are_checked(dataset: str) -> None:
    from dask_tfrecord.feed.tensorflow import feature_spec

    with pytest.raises(TFRecordError, match="fill_nulls= names the column 'ids'"):
        feature_spec(dataset, fill_nulls={"ids": -1})


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


@pytest.mark.parametrize("dataset", ["plain"], indirect=True)
def test_iterators_that_a_program_leaves_open_are_dropped_before_python_ends(dataset: str) -> None:
    # Otherwise Python waits forever if a thread of TensorFlow is reading when Python ends, which is rare.
    command = [sys.executable, "-c", OPEN_AT_EXIT, dataset]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert (ended.stdout, ended.returncode) == ("{} {} 0\n", 0)
