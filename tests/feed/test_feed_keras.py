"""Keras: a PyDataset with every row in each epoch. Grain: a RecordTable is a random-access source.

Modules: feed.keras.
"""

from pathlib import Path
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
def test_a_py_dataset_has_the_order_of_blocks(dataset: str) -> None:
    pytest.importorskip("keras")
    from dask_tfrecord.feed.keras import TFRecordPyDataset

    batches = TFRecordPyDataset(dataset, 10, "id", shuffle="blocks", seed=3, epoch=1)
    for epoch in (1, 2):
        found = [number for at in range(len(batches)) for number in batches[at].tolist()]
        assert found == RecordTable(dataset).block_order(3, epoch).tolist()
        batches.on_epoch_end()


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
@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize("keywords", [{}, {"shuffle": False}, {"steps_per_epoch": 2, "shuffle": False}])
def test_each_pass_of_fit_has_every_row_in_one_order(
    dataset: str, is_built: bool, keywords: dict[str, Any]
) -> None:
    """Keras looks at batches before the first epoch, and may shuffle the batches of an epoch."""
    keras = pytest.importorskip("keras")
    from dask_tfrecord.feed.keras import TFRecordPyDataset

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
    batches = TFRecordPyDataset(dataset, 26, "x", "id", shuffle=1)
    model.fit(batches, epochs=6, verbose=0, **keywords)
    passes = [set(trained[at : at + 4]) for at in range(0, len(trained) - 3, 4)]
    assert all(sorted(row for one in each for row in one) == list(range(ROWS)) for each in passes)
    epochs = []
    for epoch in range(12):
        expected = TFRecordPyDataset(dataset, 26, "id", shuffle=1, epoch=epoch)
        epochs.append({tuple(expected[at].tolist()) for at in range(4)})
    found = [epochs.index(each) for each in passes]
    if "steps_per_epoch" not in keywords:
        assert found == list(range(6))
    assert len(set(found)) == len(found)


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
        ({"shuffle": "rows"}, "'rows'"),
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


def test_grain_resumes_after_every_batch_and_at_ends(dataset: str) -> None:
    grain: Any = pytest.importorskip("grain.python", reason="grain is not installed")

    def begin(is_loader: bool) -> Any:
        source = RecordTable(dataset, ["id", "x"])
        if not is_loader:
            elements = grain.MapDataset.source(source).seed(1).shuffle().batch(10).repeat(2)
            return iter(elements.to_iter_dataset())
        sampler = grain.IndexSampler(len(source), grain.NoSharding(), shuffle=True, num_epochs=2, seed=1)
        return iter(grain.DataLoader(data_source=source, sampler=sampler, operations=[grain.Batch(10)]))

    for is_loader in (False, True):
        iterator = begin(is_loader)
        found, states = [], []
        for element in iterator:
            found.append(element["id"].tolist())
            states.append(iterator.get_state())
        assert sorted(number for batch in found for number in batch) == sorted([*range(ROWS)] * 2)
        for count, state in enumerate(states, 1):
            resumed = begin(is_loader)
            resumed.set_state(state)
            assert [element["id"].tolist() for element in resumed] == found[count:]


def test_the_text_of_a_table_tells_datasets_and_versions_apart(tmp_path: Path) -> None:
    """Grain's DataLoader compares the texts of data sources before it continues from a state."""
    path = tmp_path / "data"
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": [1, 2]}), path)
    first = repr(RecordTable(path))
    assert first == repr(RecordTable(path)) == f"RecordTable({str(path)!r}, 2 records, version 1)"
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": [3]}), path, append=True)
    assert repr(RecordTable(path)) != first == repr(RecordTable(path, version=1))
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": [3, 4]}), path, overwrite=True)
    assert repr(RecordTable(path)) != first


def test_grain_reads_batches_in_the_order_of_blocks(dataset: str) -> None:
    grain: Any = pytest.importorskip("grain.python", reason="grain is not installed")
    table = RecordTable(dataset, ["id", "x"])
    order = table.block_order(seed=1)
    batches = grain.MapDataset.source(order).batch(10).map(table.batch)
    found = [number for batch in batches.to_iter_dataset() for number in batch["id"].to_pylist()]
    assert found == order.tolist()
