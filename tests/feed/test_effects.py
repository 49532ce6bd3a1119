"""Each keyword of the feeds has an effect beside each other keyword, or raises.

Modules: feed.rows.epoch_order, feed.batches, feed.numpy_columns, feed.feature_specs, keywords.arguments.
"""

from collections.abc import Callable
from functools import wraps
from itertools import permutations
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import TFRecordError, to_tfrecord
from dask_tfrecord.feed import flight, iter_batches, stream

ROWS = 103


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("effects") / "dataset")
    table = pa.table(
        {
            "id": range(ROWS),
            "key": [i * 10 // ROWS for i in range(ROWS)],
            "x": pa.array([None if i % 5 else i / 2 for i in range(ROWS)], pa.float32()),
            "t": pa.array([[i] * (i % 4) for i in range(ROWS)], pa.list_(pa.int64())),
        }
    )
    # A shuffle buffer of 5 rows holds the rows of one partition directory.
    to_tfrecord(table, path, partition_on="key")
    return path


Use = Callable[..., Any]


def of_batches(path: str, shard: Any = None, **keywords: Any) -> Any:
    """All shards, because a keyword may change only some of them."""
    shards = [(0, 1)] if shard is None else [(index, shard[1]) for index in range(shard[1])]
    found = []
    for one in shards:
        batches = iter_batches(path, shard=one, **keywords)
        found += [batch.to_pylist() for batch in batches]
        found.append(batches.state["epoch"])
    return found


def of_torch(path: str, world_size: int | None = None, **keywords: Any) -> Any:
    torch = pytest.importorskip("dask_tfrecord.feed.torch", reason="PyTorch is not installed")
    ranks: list[Any] = [{}]
    if world_size is not None:
        ranks = [{"rank": rank, "world_size": world_size} for rank in range(world_size)]
    found = [list(torch.TFRecordBatches(path, columns=["id", "x"], **one, **keywords)) for one in ranks]
    return repr(found)


def of_tensorflow(path: str, **keywords: Any) -> Any:
    tensorflow = pytest.importorskip("dask_tfrecord.feed.tensorflow", reason="TensorFlow is not installed")
    return repr(list(tensorflow.tensorflow_dataset(path, **keywords)))


SHUFFLES: list[tuple[str, Any]] = [
    ("shuffle", True),
    ("shuffle", "blocks"),
    ("seed", 3),
    ("shuffle_buffer", 5),
]
CASES: list[tuple[Use, list[tuple[str, Any]]]] = [
    (
        of_batches,
        [
            *SHUFFLES,
            ("batch_size", 10),
            ("columns", ["id"]),
            ("batch_mode", "drop"),
            ("shard", (0, 3)),
            ("uneven", "drop"),
            ("uneven", "pad"),
            ("epoch", 2),
            ("filters", [("id", "<", 50)]),
        ],
    ),
    (
        of_torch,
        [
            *SHUFFLES,
            ("batch_mode", "drop"),
            ("uneven", "keep"),
            ("uneven", "pad"),
            ("world_size", 3),
            ("fill_nulls", {"x": 0.25}),
            ("convert", lambda batch: batch.to_pylist()),
            ("filters", [("id", "<", 50)]),
        ],
    ),
    (
        of_tensorflow,
        [
            ("fill_nulls", {"x": 0.25}),
            ("label", "t"),
            ("state_column", "state"),
        ],
    ),
]
# A single shard has no rows to drop or to repeat.
NEEDS = {("of_batches", "uneven"): "shard", ("of_torch", "uneven"): "world_size"}


def cached(use: Use) -> Use:
    """Return the function, which is called once for each combination of keywords."""
    known: dict[str, Any] = {}

    @wraps(use)
    def call(path: str, **keywords: Any) -> Any:
        key = repr(sorted(keywords.items(), key=lambda item: item[0]))
        if key not in known:
            known[key] = use(path, **keywords)
        return known[key]

    return call


def same_rows(use: Use, path: str, one: tuple[str, Any], other: tuple[str, Any]) -> bool:
    """Return whether the first keyword changes nothing beside the second keyword."""
    # Each of three shards has 34 or 35 rows, so that one row more completes a batch.
    given: dict[str, Any] = {"batch_size": 7}
    need = NEEDS.get((use.__name__, one[0]))
    if need and need != other[0]:
        given |= dict(item for item in [("shard", (0, 3)), ("world_size", 3)] if item[0] == need)
    if other[0] in ("seed", "shuffle_buffer") and one[0] != "shuffle":
        given["shuffle"] = True  # the second keyword needs it
    before = given | dict([other])
    try:
        return bool(use(path, **before | dict([one])) == use(path, **before))
    except TFRecordError:
        return False


@pytest.mark.parametrize(("use", "keywords"), CASES)
def test_each_keyword_has_an_effect_beside_each_other_keyword_or_raises(
    path: str, use: Use, keywords: list[tuple[str, Any]]
) -> None:
    pairs = [(one, other) for one, other in permutations(keywords, 2) if one[0] != other[0]]
    outcome = cached(use)
    ignored = [pair for pair in pairs if same_rows(outcome, path, *pair)]
    assert ignored == []


@pytest.mark.parametrize(
    ("use", "keywords", "remedy"),
    [
        (iter_batches, {"shuffle_buffer": 5}, ("shuffle", "buffer")),
        (iter_batches, {"shuffle_buffer": 5, "shuffle": "blocks"}, ("shuffle", "buffer")),
        (iter_batches, {"seed": 1}, ("shuffle", True)),
        (iter_batches, {"batch_size": 5, "batch_mode": "auto"}, ("batch_mode", "keep")),
        (flight.serve, {"batch_size": 5, "batch_mode": "auto"}, ("batch_mode", "keep")),
        (stream.serve, {"batch_size": 5, "batch_mode": "auto", "columns": ["id"]}, ("batch_mode", "keep")),
        (stream.serve, {"batch_size": None, "batch_mode": "drop", "columns": ["id"]}, ("batch_mode", "keep")),
    ],
)
def test_a_keyword_without_effect_names_the_keyword_that_gives_it_one(
    path: str, use: Use, keywords: dict[str, Any], remedy: tuple[str, Any]
) -> None:
    with pytest.raises(TFRecordError, match="no effect") as caught:
        use(path, **keywords)
    assert [tuple(one)[:2] for one in caught.value.remedies] == [remedy]
    found = use(path, **keywords | dict([remedy]))  # the advice works
    if use is not iter_batches:
        found.__exit__(None, None, None)


@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_uneven_of_a_collection_raises(uneven: Any) -> None:
    """The rows of a collection are not counted."""
    ddf = dd.from_pandas(pd.DataFrame({"id": np.arange(10)}), npartitions=5)
    with pytest.raises(TFRecordError, match="uneven=") as caught:
        iter_batches(ddf, 2, shard=(0, 2), uneven=uneven)
    assert [tuple(one)[:2] for one in caught.value.remedies] == [("uneven", "keep")]


def test_fill_nulls_of_lists_raises(path: str) -> None:
    """The lists hold no nulls, and `tf.RaggedTensor.to_tensor` pads them."""
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    from dask_tfrecord.feed.tensorflow import feature_spec, tensorflow_dataset

    for use, size in ((tensorflow_dataset, {"batch_size": 3}), (feature_spec, {})):
        with pytest.raises(TFRecordError, match="fill_nulls= has no effect on the lists of 't'"):
            use(path, columns=["t"], fill_nulls={"t": -1}, **size)
