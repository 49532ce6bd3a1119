"""``schema=`` takes feature specs: reads agree with what TensorFlow parses.

Modules: feed.feature_specs, schema.tensorflow_schemas.
"""

import collections
import pickle
import random
from pathlib import Path
from typing import Any

import oracle
import pyarrow as pa
import pytest
from other_writers import features_of, fill

from dask_tfrecord import (
    SchemaError,
    inspect,
    read_tfrecord,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def table(path: Any, **keywords: Any) -> pa.Table:
    return pa.concat_tables(inspect(path, **keywords).iter_tables())


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


def spec(kind: str, **content: Any) -> Any:
    """An object that looks like a spec of TensorFlow, which need not be installed."""
    class_ = collections.namedtuple(kind, list(content))  # type: ignore[misc]  # mypy wants a literal
    class_.__module__ = "tensorflow.python.ops.parsing_config"
    return class_(**content)


def fixed(dtype: str = "int64", shape: Any = (), default: Any = None) -> Any:
    return spec("FixedLenFeature", shape=shape, dtype=dtype, default_value=default)


def test_specs_are_recognised_by_their_names(tmp_path: Path) -> None:
    fill(tmp_path, {"a.tfrecord": oracle.features_file([{"n": ("int64", [1]), "m": ("bytes", [b"x"])}])})
    ragged = {"value_key": "n", "partitions": ()}
    specs = {
        "m": fixed("string"),
        "none": fixed("float32", default=0.0),
        "n": spec("VarLenFeature", dtype="int64"),
        "again": spec("RaggedFeature", dtype="int64", **ragged),
    }
    found = table(tmp_path, schema=specs)
    assert found.to_pylist() == [{"m": b"x", "none": None, "n": [1], "again": [1]}]
    with pytest.raises(SchemaError, match="the record lacks the feature") as caught:
        table(tmp_path, schema={"absent": fixed()})
    assert caught.value.feature == "absent"


@pytest.mark.parametrize(
    ("specs", "feature", "problem"),
    [
        ({"x": fixed("int32")}, "x", "cannot hold int32"),
        ({"x": fixed(shape=[None])}, "x", "unknown dimension"),
        ({"x": fixed(), "y": pa.int64()}, "y", "is not a feature spec"),
        (
            {"x": fixed(), "y": spec("RaggedFeature", dtype="int64", value_key="x", partitions=())},
            "x",
            "different types or with different numbers",
        ),
        (
            {"x": fixed(), "y": spec("SparseFeature", dtype="int64", value_key="x", index_key=["i"])},
            "x",
            "two specs describe this column",
        ),
        (
            {"x": spec("RaggedFeature", dtype="int64", value_key=None, partitions=[fixed()])},
            "x",
            "cannot be read",
        ),
    ],
)
def test_specs_that_no_column_can_express_are_named(
    tmp_path: Path, specs: dict[str, Any], feature: str, problem: str
) -> None:
    with pytest.raises(SchemaError, match=problem) as caught:
        read_tfrecord(tmp_path, schema=specs)
    assert caught.value.feature == feature
    assert caught.value.advice


@pytest.mark.parametrize(
    ("kind", "integers", "problem"),
    [
        ("RowSplits", [1, 3], "begins at 1 instead of 0"),
        ("RowStarts", [0, 4], "contradict the number of values"),
        ("RowLimits", [2, 2], "contradict the number of values"),
        ("RowLimits", [4, 3], "contradict the number of values"),
        ("RowLengths", [2], "contradict the number of values"),
        ("ValueRowIds", [0, 1], "3 values have 2 row numbers"),
        ("ValueRowIds", [1, 0, 1], "not in ascending order"),
        ("ValueRowIds", [0, 0, 2**40], "sequences"),
    ],
)
def test_integers_that_contradict_the_values_raise(
    tmp_path: Path, kind: str, integers: list[int], problem: str
) -> None:
    good = {
        "RowSplits": [0, 3],
        "RowStarts": [0],
        "RowLimits": [3],
        "RowLengths": [3],
        "ValueRowIds": [0, 0, 0],
    }
    rows = [{"v": [1, 2, 3], "i": one} for one in (good[kind], integers)]
    fill(tmp_path, {"a.tfrecord": oracle.features_file([features_of(row) for row in rows])})
    partition = spec(kind, key="i")
    specs = {"x": spec("RaggedFeature", dtype="int64", value_key="v", partitions=[partition])}
    with pytest.raises(SchemaError, match=problem) as caught:
        read_tfrecord(tmp_path, schema=specs).compute()
    assert (caught.value.feature, caught.value.record) == ("x", 1)
