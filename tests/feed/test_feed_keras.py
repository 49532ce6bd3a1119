"""Keras: a PyDataset with every row in each epoch. Grain: a RecordTable is a random-access source."""

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import SchemaError, TFRecordError
from dask_tfrecord.feed.record_table import RecordTable

ROWS = 103


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("keras") / "dataset")
    frame = pd.DataFrame(
        {
            "id": np.arange(ROWS),
            "x": pd.array([[i, i / 2] for i in range(ROWS)], pd.ArrowDtype(pa.list_(pa.float32(), 2))),
            "l": pd.array([[1] * (i % 3) for i in range(ROWS)], pd.ArrowDtype(pa.list_(pa.int64()))),
        }
    )
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=2), path)
    return path


@pytest.mark.tensorflow
def test_a_py_dataset_has_every_row_in_each_epoch(dataset: str) -> None:
    pytest.importorskip("keras")
    from dask_tfrecord.feed.keras import TFRecordPyDataset

    batches = TFRecordPyDataset(dataset, 10, "x", "id", shuffle=1)
    epochs = []
    for _ in range(2):
        features, labels = zip(*(batches[at] for at in range(len(batches))), strict=True)
        assert np.concatenate(features).shape == (ROWS, 2)
        assert np.concatenate(features)[:, 0].tolist() == np.concatenate(labels).tolist()
        epochs.append(np.concatenate(labels).tolist())
        batches.on_epoch_end()
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(ROWS))
    assert epochs[0] != epochs[1]


@pytest.mark.tensorflow
def test_a_model_trains_on_it(dataset: str) -> None:
    keras = pytest.importorskip("keras")
    from dask_tfrecord.feed.keras import TFRecordPyDataset

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(TFRecordPyDataset(dataset, 16, "x", "id", shuffle=1, workers=2), epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2


@pytest.mark.tensorflow
def test_a_resumed_fit_is_the_uninterrupted_fit(dataset: str) -> None:
    keras = pytest.importorskip("keras")
    from dask_tfrecord.feed.keras import TFRecordPyDataset

    def fit(*runs: tuple[int, int]) -> Any:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(1e-6), "mse")
        for first, last in runs:
            batches = TFRecordPyDataset(dataset, 10, "x", "id", shuffle=1, epoch=first)
            model.fit(batches, initial_epoch=first, epochs=last, shuffle=False, verbose=0)
        return model.get_weights()[0].tolist()

    assert fit((0, 1), (1, 3)) == fit((0, 3)) != fit((0, 2), (0, 1))


@pytest.mark.tensorflow
def test_ragged_lists_are_refused_by_name(dataset: str) -> None:
    pytest.importorskip("keras")
    from dask_tfrecord.feed.keras import TFRecordPyDataset

    with pytest.raises(SchemaError, match="feature 'l'"):
        TFRecordPyDataset(dataset, 16)[0]
    with pytest.raises(SchemaError, match="label="):
        TFRecordPyDataset(dataset, 16, label="nothing")


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shuffle": False}, "shuffle=False"),
        ({"shuffle": True}, "shuffle=True"),
        ({"epoch": -1}, "epoch=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"fill_nulls": {"ids": -1}}, "fill_nulls= names the column 'ids'"),
        ({"fill_nulls": -1}, "fill_nulls="),
    ],
)
def test_wrong_arguments_are_named(dataset: str, arguments: dict[str, Any], message: str) -> None:
    pytest.importorskip("keras")
    from dask_tfrecord.feed.keras import TFRecordPyDataset

    with pytest.raises(TFRecordError, match=message):
        TFRecordPyDataset(dataset, **{"batch_size": 10, **arguments})


@pytest.mark.tensorflow
@pytest.mark.parametrize("index", [11, -1])
def test_a_batch_that_is_not_there_raises(dataset: str, index: int) -> None:
    pytest.importorskip("keras")
    from dask_tfrecord.feed.keras import TFRecordPyDataset

    with pytest.raises(IndexError, match="of 11 batches"):
        TFRecordPyDataset(dataset, 10, "x")[index]


def test_grain_shuffles_batches_and_resumes(dataset: str) -> None:
    grain: Any = pytest.importorskip("grain.python", reason="grain is not installed")
    source = RecordTable(dataset, ["id", "x"])
    elements = grain.MapDataset.source(source).shuffle(seed=1).batch(10)
    found = [number for at in range(len(elements)) for number in elements[at]["id"].tolist()]
    assert sorted(found) == list(range(ROWS))
    iterator = iter(elements.to_iter_dataset())
    next(iterator)
    state = iterator.get_state()
    expected = next(iterator)["id"].tolist()
    other = iter(elements.to_iter_dataset())
    other.set_state(state)
    assert next(other)["id"].tolist() == expected
