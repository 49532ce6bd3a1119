"""Keras: a PyDataset with every row in each epoch.

Modules: feed.keras.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dask_tfrecord import TFRecordError, to_tfrecord
from dask_tfrecord.feed.record_table import RecordTable

pytestmark = pytest.mark.tensorflow
keras = pytest.importorskip("keras")

from dask_tfrecord.feed.keras import TFRecordPyDataset  # noqa: E402

ROWS = 103


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("keras") / "dataset")
    pairs = pa.array([[i, i / 2] for i in range(ROWS)], pa.list_(pa.float32(), 2))
    table = pa.table({"id": range(ROWS), "x": pairs, "l": [[1] * (i % 3) for i in range(ROWS)]})
    to_tfrecord(table, path, write_options={"max_rows_per_file": 60})
    return path


def test_a_py_dataset_has_the_order_of_its_epoch_and_of_blocks(dataset: str) -> None:
    batches = TFRecordPyDataset(dataset, 10, "x", "id", shuffle="blocks", seed=3, epoch=1)
    for epoch in (1, 2):
        features, labels = zip(*(batches[at] for at in range(len(batches))), strict=True)
        assert np.concatenate(features).shape == (ROWS, 2)
        assert np.concatenate(features)[:, 0].tolist() == np.concatenate(labels).tolist()
        assert np.concatenate(labels).tolist() == RecordTable(dataset).block_order(3, epoch).tolist()
        batches.on_epoch_end()


def test_statistics_count_the_batches(dataset: str) -> None:
    batches = TFRecordPyDataset(dataset, 10, "x")
    rows = sum(len(batches[index]) for index in range(2))
    assert (batches.statistics.batches, batches.statistics.rows) == (2, rows)


def test_a_resumed_fit_is_the_uninterrupted_fit(dataset: str) -> None:
    def fit(*runs: tuple[int, int]) -> Any:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(1e-6), "mse")
        for first, last in runs:
            batches = TFRecordPyDataset(dataset, 10, "x", "id", shuffle=True, seed=1, epoch=first, workers=2)
            model.fit(batches, initial_epoch=first, epochs=last, shuffle=False, verbose=0)
        return model.get_weights()[0].tolist()

    assert fit((0, 1), (1, 3)) == fit((0, 3)) != fit((0, 2), (0, 1))


@pytest.mark.parametrize(
    ("is_built", "keywords"),
    [(False, {}), (True, {"shuffle": False}), (False, {"steps_per_epoch": 2, "shuffle": False})],
)
def test_each_pass_of_fit_has_every_row_in_one_order(
    dataset: str, is_built: bool, keywords: dict[str, Any]
) -> None:
    """Keras looks at batches before the first epoch, and may shuffle the batches of an epoch."""
    trained: list[tuple[int, ...]] = []

    class Model(keras.Model):  # type: ignore[misc]  # Keras has no types
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

        def train_step(self, data: Any) -> dict[str, float]:
            trained.append(tuple(data[1].numpy().tolist()))
            return {"loss": 0.0}

    model = Model()
    model.compile("sgd", "mse", run_eagerly=True)
    if is_built:
        model(np.zeros((1, 2), "float32"))
    model.fit(
        TFRecordPyDataset(dataset, 26, "x", "id", shuffle=True, seed=1), epochs=6, verbose=0, **keywords
    )
    passes = [set(trained[at : at + 4]) for at in range(0, len(trained) - 3, 4)]
    assert all(sorted(row for one in each for row in one) == list(range(ROWS)) for each in passes)
    epochs = []
    for epoch in range(12):
        expected = TFRecordPyDataset(dataset, 26, "id", shuffle=True, seed=1, epoch=epoch)
        epochs.append({tuple(expected[at].tolist()) for at in range(4)})
    found = [epochs.index(each) for each in passes]
    if "steps_per_epoch" not in keywords:
        assert found == list(range(6))
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shuffle": 7}, "pass shuffle=True and seed=7"),
        ({"shuffle": "buffer"}, "unknown shuffle 'buffer'"),
        ({"seed": 7}, "seed=7 has no effect"),
        ({"epoch": -1}, "epoch=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"fill_nulls": {"ids": -1}}, "fill_nulls= names the column 'ids'"),
        ({"fill_nulls": -1}, "fill_nulls="),
        ({"columns": None, "label": "nothing"}, "label="),
        ({"columns": None}, "feature 'l'"),  # ragged lists are no array
    ],
)
def test_wrong_arguments_are_named(dataset: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TFRecordError, match=message):
        TFRecordPyDataset(dataset, **{"batch_size": 10, "columns": "x", **arguments})[0]


@pytest.mark.parametrize("index", [11, -1])
def test_a_batch_that_is_not_there_raises(dataset: str, index: int) -> None:
    with pytest.raises(IndexError, match="of 11 batches"):
        TFRecordPyDataset(dataset, 10, "x")[index]
