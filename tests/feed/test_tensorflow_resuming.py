"""TensorFlow: a state that travels with the batches resumes an epoch, also from a checkpoint.

Modules: feed.tensorflow, feed.resume_position.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_tfrecord
from dask_tfrecord import SchemaError, TFRecordError

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow", reason="TensorFlow has no wheel for this platform")

ROWS = 100
OPTIONS: dict[str, Any] = {"shuffle": 3, "shuffle_buffer": 20, "prefetch": 4}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("tensorflow") / "data")
    rows = pd.DataFrame({"id": np.arange(ROWS), "y": np.arange(ROWS) % 2})
    dask_tfrecord.to_tfrecord(rows, path, max_rows_per_file=9)
    return path


def ids(elements: Any) -> list[list[int]]:
    return [batch["id"].numpy().tolist() for batch in elements]


def test_a_checkpoint_of_the_state_resumes_the_run(dataset: str, tmp_path: Path) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    whole = tensorflow_dataset(dataset, 7, **OPTIONS)
    expected = [ids(whole), ids(whole), ids(whole)]
    for epoch, stop in ((0, 1), (1, 5), (1, 15), (2, 14)):
        state = tf.Variable("")
        checkpoint = tf.train.Checkpoint(state=state)
        elements = tensorflow_dataset(dataset, 7, state_column="state", epoch=epoch, **OPTIONS)
        for _, batch in zip(range(stop), elements, strict=False):
            state.assign(batch["state"])
        path = checkpoint.save(str(tmp_path / "checkpoint"))

        restored = tf.Variable("")
        tf.train.Checkpoint(state=restored).restore(path).assert_consumed()
        start = json.loads(restored.numpy())
        resumed = tensorflow_dataset(dataset, 7, start=start, **OPTIONS)
        assert ids(resumed) == expected[epoch][stop:]
        if epoch < 2:
            assert ids(resumed) == expected[epoch + 1]


def test_groups_of_blocks_are_shuffled_in_the_order_of_arrow_batches(dataset: str) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    options: dict[str, Any] = {"shuffle": "blocks", "seed": 4}
    batches = dask_tfrecord.iter_batches(dataset, 7, epoch=1, **options)
    expected, states = [], []
    for batch in batches:
        expected.append(batch["id"].to_pylist())
        states.append(batches.state)
    assert ids(tensorflow_dataset(dataset, 7, epoch=1, **options)) == expected
    assert ids(tensorflow_dataset(dataset, 7, start=states[5], **options)) == expected[6:]
    with pytest.raises(TFRecordError, match="shuffle='blocks' cannot be combined with engine='native'"):
        tensorflow_dataset(dataset, 7, engine="native", **options)


def test_other_numbers_of_shards_divide_the_remaining_rows(dataset: str) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    found, states = [], []
    for shard in range(3):
        elements = tensorflow_dataset(
            dataset, 7, ["id"], label="y", shard=(shard, 3), state_column="at", **OPTIONS
        )
        for _, (features, _) in zip(range(shard + 1), elements, strict=False):
            found += features["id"].numpy().tolist()
            state = json.loads(features["at"].numpy())
        states.append(state)
    for shard in range(2):
        elements = tensorflow_dataset(
            dataset, 7, ["id"], label="y", shard=(shard, 2), start=states, **OPTIONS
        )
        found += [row for features, _ in elements for row in features["id"].numpy().tolist()]
    assert sorted(found) == list(range(ROWS))


def test_an_epoch_has_a_number(dataset: str) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    batches = dask_tfrecord.iter_batches(dataset, 7, epoch=5, shuffle=3, shuffle_buffer=20)
    expected = [batch["id"].to_pylist() for batch in batches]
    assert ids(tensorflow_dataset(dataset, 7, epoch=5, **OPTIONS)) == expected


def test_what_cannot_be_resumed_is_refused(dataset: str) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    state = dask_tfrecord.iter_batches(dataset, 7, shuffle=3, shuffle_buffer=20).state
    for options in ({"epoch": 0}, {"start": state}, {"state_column": "s"}):
        with pytest.raises(TFRecordError, match="engine='native'"):
            tensorflow_dataset(dataset, 7, engine="native", **OPTIONS, **options)
    with pytest.raises(SchemaError, match="state_column= names a column"):
        tensorflow_dataset(dataset, 7, state_column="y")
    for options, message in (
        ({"shuffle": 4}, "shuffle=3, and not shuffle=4; pass shuffle=3"),
        ({"epoch": 2}, "belongs to epoch 0, and this is epoch 2; pass epoch=0"),
        ({"columns": ["id"]}, "other arguments"),
    ):
        with pytest.raises(TFRecordError, match=message):
            tensorflow_dataset(dataset, 7, start=state, **{**OPTIONS, **options})
