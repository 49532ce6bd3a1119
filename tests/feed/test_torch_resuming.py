"""PyTorch: the states of all ranks and workers resume with other numbers of ranks and workers.

Modules: feed.torch, feed.resume_position.
"""

import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_tfrecord
from dask_tfrecord import TFRecordError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.utils.data import DataLoader  # noqa: E402 - only after the check that PyTorch is installed

from dask_tfrecord.feed.torch import TFRecordBatches  # noqa: E402 - this module imports PyTorch

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning", "ignore:This DataLoader will create", "ignore:.*set_vital.*"
)

ROWS = 60


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("torch") / "data")
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": np.arange(ROWS)}), path, max_rows_per_file=7)
    return path


def ids(elements: Any) -> list[int]:
    return [number for batch in elements for number in batch["id"].tolist()]


def rank_of(dataset: str, rank: int, ranks: int, size: int = 5, **options: Any) -> TFRecordBatches:
    given = {"shuffle": 3, "shuffle_buffer": 20, "uneven": "keep", **options}
    return TFRecordBatches(dataset, size, rank=rank, world_size=ranks, **given)


def begun(loader: Any, count: int) -> tuple[list[int], Any]:
    """Take some batches of a loader or a dataset, and return the rows and the state."""
    iterator = iter(loader)
    found = ids(batch for _, batch in zip(range(count), iterator, strict=False))
    state = json.loads(json.dumps(loader.state_dict()))
    del iterator
    return found, state


@pytest.mark.parametrize("seed", range(6))
def test_every_row_once_with_other_ranks_and_workers(dataset: str, seed: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    draw = random.Random(seed)
    found, states, is_ended = [], [], seed == 3
    ranks, workers = draw.choice([1, 2, 3]), seed % 3
    for rank in range(ranks):
        batches = rank_of(dataset, rank, ranks)
        batches.set_epoch(4)
        loader = stateful.StatefulDataLoader(batches, batch_size=None, num_workers=workers)
        rows, state = begun(loader, 100 if is_ended else draw.choice([0, 1, 2, 5]))
        found += rows
        states.append(state)
    epochs: dict[int, list[int]] = {4: found, 5: [], 6: []}
    ranks, workers = draw.choice([1, 2, 4]), draw.choice([0, 2])
    for rank in range(ranks):
        batches = rank_of(dataset, rank, ranks, size=draw.choice([5, 8]))
        batches.load_state_dict(states)
        loader = draw.choice([DataLoader, stateful.StatefulDataLoader])(batches, None, num_workers=workers)
        for epoch in range(5 if is_ended else 4, 7):
            batches.set_epoch(epoch)
            epochs[epoch] += ids(loader)
    assert [sorted(rows) for rows in epochs.values()] == [list(range(ROWS))] * 3


def test_states_without_workers_resume_in_workers_and_at_ends(dataset: str) -> None:
    whole = [ids(rank_of(dataset, rank, 1)) for rank in range(1)]
    found, states = [], []
    for rank in range(2):
        rows, state = begun(rank_of(dataset, rank, 2), 2 + rank)
        found += rows
        states.append(state)
    one = rank_of(dataset, 0, 1)
    one.load_state_dict(states)
    assert sorted(found + ids(DataLoader(one, None, num_workers=2))) == list(range(ROWS))
    with pytest.raises(TFRecordError, match="only they know their positions"):
        one.state_dict()
    assert sorted(ids(one)) == list(range(ROWS))
    ended = []
    for rank in range(2):
        _, state = begun(rank_of(dataset, rank, 2), 100)
        ended.append(state)
    one.load_state_dict(ended)
    second = ids(one)
    assert sorted(second) == list(range(ROWS))
    assert second != whole[0]
    one.load_state_dict(ended)
    assert sorted(ids(DataLoader(one, None, num_workers=2))) == list(range(ROWS))


def test_a_state_taken_again_before_the_first_batch_is_kept(dataset: str) -> None:
    states = [begun(rank_of(dataset, rank, 2), 1)[1] for rank in range(2)]
    again = []
    for rank in range(3):
        batches = rank_of(dataset, rank, 3)
        batches.load_state_dict(states)
        again.append(batches.state_dict() if rank else begun(batches, 1)[1])
    one = rank_of(dataset, 0, 1)
    one.load_state_dict(again)
    assert len(ids(one)) == ROWS - 15


def test_states_of_different_epochs_or_steps_are_refused(dataset: str) -> None:
    first, second = (rank_of(dataset, rank, 2) for rank in range(2))
    one, other = begun(first, 1)[1], second.state_dict()
    second.set_epoch(7)
    for states in ([one, other], [one, begun(second, 1)[1]]):
        with pytest.raises(TFRecordError, match="different epochs"):
            rank_of(dataset, 0, 1).load_state_dict(states)
    batches = rank_of(dataset, 0, 1)
    batches.load_state_dict(one)
    with pytest.raises(TFRecordError, match="state of shard 1 of 2 is missing"):
        iter(batches)
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    loader = stateful.StatefulDataLoader(first, None, num_workers=2, snapshot_every_n_steps=3)
    with pytest.raises(TFRecordError, match="snapshot_every_n_steps=1"):
        rank_of(dataset, 0, 1).load_state_dict(begun(loader, 2)[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_epoch_reads_the_rows_that_were_appended(tmp_path: Path, workers: int) -> None:
    path = str(tmp_path / "data")
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": np.arange(40)}), path)
    found, state = begun(rank_of(path, 0, 1), 3)
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": np.arange(40, 60)}), path, append=True)
    for options, rows in (({}, 60), ({"version": 1}, 40)):
        batches = rank_of(path, 0, 1, **options)
        batches.load_state_dict(state)
        loader = DataLoader(batches, None, num_workers=workers)
        assert sorted(found + ids(loader)) == list(range(40))
        batches.set_epoch(1)
        assert sorted(ids(loader)) == list(range(rows))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, StopIteration])
def test_a_batch_whose_conversion_fails_is_returned_after_a_resume(
    dataset: str, error: type[BaseException]
) -> None:
    failed: list[bool] = []

    def convert(batch: Any) -> list[int]:
        if len(seen) >= 20 and not failed:
            failed.append(True)
            raise error("once")
        return list(batch["id"].to_pylist())

    seen: list[int] = []
    batches = TFRecordBatches(dataset, 10, "id", convert=convert)
    iterator = iter(batches)
    seen += next(iterator) + next(iterator)
    with pytest.raises(RuntimeError if error is StopIteration else error):
        next(iterator)
    resumed = TFRecordBatches(dataset, 10, "id", convert=convert)
    resumed.load_state_dict(batches.state_dict())
    for batch in resumed:
        seen += batch
    assert seen == list(range(ROWS))


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_dataset_is_pickled_for_workers(dataset: str, context: str) -> None:
    batches = TFRecordBatches(dataset, 10, "id", shuffle=1)
    loader = DataLoader(batches, None, num_workers=1, multiprocessing_context=context)
    assert sorted(ids(loader)) == sorted(ids(pickle.loads(pickle.dumps(batches))))
