"""Keras: a PyDataset with every row in each epoch, for one process or several, from any step on.

Modules: feed.keras.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dask_tfrecord import TFRecordError, to_tfrecord
from dask_tfrecord.errors import RemedyWarning
from dask_tfrecord.feed import iter_batches
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


def labels(dataset: str, batch_size: int, **keywords: Any) -> list[list[int]]:
    batches = TFRecordPyDataset(dataset, batch_size, "x", "id", **keywords)
    return [batches[at][1].tolist() for at in range(len(batches))]


@pytest.mark.sampled
@pytest.mark.parametrize("shuffle", [None, True, "blocks"])
@pytest.mark.parametrize(("uneven", "batch_mode"), [("drop", "keep"), ("keep", "drop"), ("pad", "keep")])
def test_the_global_batches_of_elastic_are_those_of_any_number_of_shards(
    dataset: str, shuffle: Any, uneven: Any, batch_mode: Any
) -> None:
    how = {"elastic": 12, "shuffle": shuffle, "uneven": uneven, "batch_mode": batch_mode, "epoch": 1}
    whole = labels(dataset, 36, **how)
    found = sorted(row for batch in whole for row in batch)
    size = 8 if uneven == "drop" else 9 if uneven == "pad" else 6
    assert len(found) == 12 * size
    assert len(set(found)) == min(12 * size, ROWS)
    if shuffle is None:
        firsts = [
            min(ROWS * at // 12, ROWS - size) if uneven == "pad" else ROWS * at // 12 for at in range(12)
        ]
        assert whole[0] == [first + row for first in firsts for row in range(3)]
    if shuffle == "blocks":
        batches = iter_batches(dataset, 36, columns="id", **how)
        assert whole == [batch["id"].to_pylist() for batch in batches]
    for count in (2, 3, 4, 6, 12):
        ranks = [labels(dataset, 36 // count, shard=(rank, count), **how) for rank in range(count)]
        steps = [sorted(row for batch in step for row in batch) for step in zip(*ranks, strict=True)]
        assert steps == [sorted(batch) for batch in whole]


@pytest.mark.parametrize("shuffle", [None, True, "blocks"])
@pytest.mark.parametrize(("uneven", "rows", "distinct"), [("drop", 100, 100), ("pad", 104, ROWS)])
def test_all_shards_make_the_same_number_of_steps(
    dataset: str, shuffle: Any, uneven: Any, rows: int, distinct: int
) -> None:
    ranks = [labels(dataset, 5, shard=(rank, 4), shuffle=shuffle, uneven=uneven) for rank in range(4)]
    found = [row for batches in ranks for batch in batches for row in batch]
    assert (len(found), len(set(found))) == (rows, distinct)
    assert len({len(batches) for batches in ranks}) == 1


def test_a_dataset_that_begins_at_a_step_has_the_batches_of_the_uninterrupted_run(dataset: str) -> None:
    def passes(count: int, **keywords: Any) -> list[list[int]]:
        batches = TFRecordPyDataset(dataset, 10, "id", shuffle=True, seed=1, shard=(1, 2), **keywords)
        found = []
        for _ in range(count):
            found += [batches[at].tolist() for at in range(len(batches))]
            batches.on_epoch_end()
        return found

    every = passes(4)  # of 6 batches
    for step in (2, 6, 11):
        assert passes(2, step=step) == every[step : step + 12]
        assert passes(2, epoch=step // 6, step=step % 6) == every[step : step + 12]


def test_statistics_count_the_batches(dataset: str) -> None:
    batches = TFRecordPyDataset(dataset, 10, "x")
    rows = sum(len(batches[index]) for index in range(2))
    assert (batches.statistics.batches, batches.statistics.rows) == (2, rows)


@pytest.mark.parametrize("looked_at", [0, 2])
def test_a_second_fit_begins_the_next_epoch_after_the_first_fit_ended_early(
    dataset: str, looked_at: int
) -> None:
    """These are the calls of Keras: some backends look at batches before each `fit`."""
    batches = TFRecordPyDataset(dataset, 10, "id", shuffle=True, seed=1)
    for epoch, count in enumerate((3, 11, 11)):
        expected = TFRecordPyDataset(dataset, 10, "id", shuffle=True, seed=1, epoch=epoch)
        for at in range(looked_at):
            batches[at]
        batches.on_epoch_end()
        batches.on_epoch_begin()
        assert [batches[at].tolist() for at in range(count)] == [expected[at].tolist() for at in range(count)]
        batches.on_epoch_end()


@pytest.mark.parametrize("workers", [1, 2])
def test_fit_ends_a_resumed_epoch_and_goes_on_with_a_chosen_epoch(dataset: str, workers: int) -> None:
    def fit(*runs: tuple[int, list[int]]) -> Any:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(1e-6), "mse")
        for step, counts in runs:
            how: dict[str, Any] = {"shuffle": True, "seed": 1, "step": step, "workers": workers}
            batches = TFRecordPyDataset(dataset, 10, "x", "id", **how)
            for epoch, count in enumerate(counts):
                if epoch:
                    batches.set_epoch(epoch)
                model.fit(batches, steps_per_epoch=count, shuffle=False, verbose=0)
        return model.get_weights()[0].tolist()

    whole = fit((0, [11, 11, 11]))
    assert whole == fit((0, [5]), (5, [6, 11, 11])) != fit((0, [5]), (5, [6, 11, 10]))


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
        ({"step": -1}, "step=-1"),
        ({"shard": (2, 2)}, "shard="),
        ({"shard": (0, ROWS + 1)}, "104 shards of a dataset of 103 rows"),
        ({"elastic": 12, "shard": (0, 5)}, "5 shards cannot share 12 sequences"),
        ({"elastic": 12, "shard": (0, 3)}, "pass batch_size=8"),
        ({"elastic": 104}, "more sequences than there are rows"),
        ({"uneven": "auto"}, "uneven"),
        ({"batch_mode": "auto"}, "batch_mode"),
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


@pytest.mark.parametrize("keywords", [{"workers": 2}, {"use_multiprocessing": True}])
def test_workers_that_let_keras_repeat_batches_warn(
    dataset: str, keywords: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.warns(RemedyWarning, match="Keras repeats batches.*pass workers=0") as caught:
        TFRecordPyDataset(dataset, 10, "x", **keywords)
    assert len(caught) == 1
    TFRecordPyDataset(dataset, 10, "x", **{**keywords, "workers": 0})


@pytest.mark.parametrize("index", [11, -1])
def test_a_batch_that_is_not_there_raises(dataset: str, index: int) -> None:
    with pytest.raises(IndexError, match="of 11 batches"):
        TFRecordPyDataset(dataset, 10, "x")[index]
