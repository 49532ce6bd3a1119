"""`BlockSampler`: every row once over ranks and workers, in the order of blocks, and exact resuming.

Modules: feed.block_sampler, feed.torch.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.utils.data import DataLoader  # noqa: E402

import dask_tfrecord  # noqa: E402
from dask_tfrecord import TFRecordError  # noqa: E402
from dask_tfrecord.feed import epoch_order, record_table  # noqa: E402
from dask_tfrecord.feed.torch import BlockSampler, TFRecordBatches, TFRecordTable  # noqa: E402
from dask_tfrecord.files import file_writer  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning", "ignore:This DataLoader will create", "ignore:.*set_vital.*"
)

ROWS = 503


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_writer, "BLOCK_BYTES", 1 << 9)
        patch.setattr(record_table, "BLOCK_BYTES", 1 << 9)
        patch.setattr(epoch_order, "_GROUP_BLOCKS", 4)
        yield


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TFRecordTable:
    path = str(tmp_path_factory.mktemp("sampler") / "dataset")
    ddf = dd.from_pandas(pd.DataFrame({"id": np.arange(ROWS)}), npartitions=2)
    dask_tfrecord.to_tfrecord(ddf, path, compression="gzip", write_options={"max_rows_per_file": 10})
    found = TFRecordTable(path)
    assert len(found.table.block_starts) > 10
    return found


def batches(dataset: TFRecordTable, sampler: Any, workers: int = 0, loader: Any = DataLoader) -> Any:
    return loader(dataset, batch_sampler=sampler, collate_fn=dataset.collate, num_workers=workers)


def ids(batches: Any) -> list[list[int]]:
    """The rows of batches of a loader or of a sampler."""
    return [(batch["id"] if isinstance(batch, dict) else batch).tolist() for batch in batches]


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 2), (5, 7), (60, 2)])
def test_every_row_once_in_batches_of_one_size(dataset: TFRecordTable, ranks: int, workers: int) -> None:
    found = []
    for rank in range(ranks):
        given: dict[str, Any] = {"rank": rank, "world_size": ranks, "workers": workers, "seed": 2}
        sampler = BlockSampler(dataset.table, 10, uneven="keep", **given)
        of_rank = ids(sampler)
        assert len(of_rank) == len(sampler)
        assert all(len(batch) == 10 for batch in of_rank[:-1])
        expected = dataset.table.block_order(2, 0, (rank, ranks)).tolist()
        rows = [row for batch in of_rank for row in batch]
        assert rows == expected if workers < 2 else sorted(rows) == sorted(expected)
        found += rows
        assert len(BlockSampler(dataset.table, 10, batch_mode="drop", **given)) == ROWS // ranks // 10
    assert sorted(found) == list(range(ROWS))


def test_a_worker_of_a_loader_reads_blocks_that_no_other_worker_reads(dataset: TFRecordTable) -> None:
    expected = ids(BlockSampler(dataset.table, 5, workers=2))
    blocks = [np.searchsorted(dataset.table.block_starts, batch, "right") - 1 for batch in expected]
    even, odd = (set(np.concatenate(blocks[worker::2]).tolist()) for worker in range(2))
    assert len(even & odd) <= 2  # the blocks that both parts share
    assert ids(batches(dataset, BlockSampler(dataset.table, 5, workers=2), 2)) == expected


def test_each_iteration_is_the_next_epoch_and_a_state_resumes(dataset: TFRecordTable) -> None:
    sampler = BlockSampler(dataset.table, 50, seed=1, workers=2)
    epochs = [ids(sampler) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    sampler.set_epoch(1)
    assert ids(sampler) == epochs[1]
    for stop in range(1, len(sampler), 2):
        one, other = (BlockSampler(dataset.table, 50, seed=1, workers=2) for _ in range(2))
        one.set_epoch(1)
        iterator = iter(one)
        for _ in range(stop):
            next(iterator)
        other.load_state_dict(one.state_dict())
        other.set_epoch(1)  # as a program does that is started again
        assert [ids(other), ids(other)] == [epochs[1][stop:], epochs[2]]
    other.load_state_dict(sampler.state_dict())  # of an iteration that has ended
    assert ids(other) == epochs[2]


@pytest.mark.parametrize("seed", range(5))
def test_every_row_once_after_other_ranks_and_workers_resumed(dataset: TFRecordTable, seed: int) -> None:
    draw = random.Random(seed)
    found: list[int] = []
    states: list[Any] = []
    ranks, size = 0, 0
    for _ in range(3):
        ranks, workers, size = draw.choice([1, 2, 5]), draw.choice([0, 1, 3]), draw.choice([5, 10])
        given: dict[str, Any] = {"world_size": ranks, "workers": workers, "uneven": "keep"}
        taken = []
        for rank in range(ranks):
            sampler = BlockSampler(dataset.table, size, rank=rank, **given)
            sampler.set_epoch(2)
            if states:
                sampler.load_state_dict(states)
            iterator = iter(sampler)
            batches = [next(iterator, np.zeros(0, np.int64)) for _ in range(draw.choice([0, 1, 4, 7]))]
            found += [row for batch in batches for row in batch.tolist()]
            taken.append(json.loads(json.dumps(sampler.state_dict())))
        states = taken
    for rank in range(ranks + 1):
        sampler = BlockSampler(dataset.table, size, rank=rank, world_size=ranks + 1, uneven="keep")
        sampler.load_state_dict(states)
        found += [row for batch in sampler for row in batch.tolist()]
    assert sorted(found) == list(range(ROWS))


@pytest.mark.parametrize(("size", "other"), [(7, 16), (16, 7), (50, 7)])
def test_every_row_once_after_the_batch_size_changed(dataset: TFRecordTable, size: int, other: int) -> None:
    """The rows of the same workers were cut at multiples of the first batch size."""
    for stop in (0, 1, 4):
        interrupted = BlockSampler(dataset.table, size, workers=2)
        iterator = iter(interrupted)
        found = [row for _ in range(stop) for row in next(iterator).tolist()]
        resumed = BlockSampler(dataset.table, other, workers=2)
        resumed.load_state_dict(interrupted.state_dict())
        batches = ids(resumed)
        assert all(len(batch) == other for batch in batches[:-1])
        assert sorted(found + [row for batch in batches for row in batch]) == list(range(ROWS))


def test_a_state_of_another_table_or_seed_is_refused(dataset: TFRecordTable, tmp_path: Path) -> None:
    state = BlockSampler(dataset.table, 10, rank=0, world_size=2).state_dict()
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": np.arange(ROWS)}), tmp_path / "data")
    other = TFRecordTable(tmp_path / "data")
    for sampler, message in (
        (BlockSampler(other.table, 10), "another dataset"),
        (BlockSampler(dataset.table, 10, seed=4), "seed=0, and not seed=4"),
    ):
        with pytest.raises(TFRecordError, match=message):
            sampler.load_state_dict(state)
    sampler = BlockSampler(dataset.table, 10)
    sampler.load_state_dict(state)
    with pytest.raises(TFRecordError, match="state of shard 1 of 2 is missing"):
        next(iter(sampler))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"seed": -1}, "seed=-1"),
        ({"workers": -1}, "workers=-1"),
        ({"rank": 1}, "belong together"),
        ({"rank": 0, "world_size": ROWS + 1}, "504 shards of a dataset of 503 rows"),
        ({"table": "train"}, "not a RecordTable"),
    ],
)
def test_wrong_arguments_are_named(dataset: TFRecordTable, given: dict[str, Any], message: str) -> None:
    with pytest.raises(TFRecordError, match=message):
        BlockSampler(**{"table": dataset.table, "batch_size": 10, **given})
    with pytest.raises(TFRecordError, match="not a state of BlockSampler"):
        BlockSampler(dataset.table, 10).load_state_dict({"epoch": -1, "batches": 0})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_resumes_after_a_batch(dataset: TFRecordTable, workers: int) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def loader() -> Any:
        sampler = BlockSampler(dataset.table, 60, workers=workers)
        return batches(dataset, sampler, workers, torchdata.StatefulDataLoader)

    whole = loader()
    epochs = [ids(whole), ids(whole)]
    for stop in (1, 4, len(epochs[0])):
        interrupted, resumed = loader(), loader()
        for number, _ in enumerate(interrupted, 1):
            if number == stop:
                break
        resumed.load_state_dict(interrupted.state_dict())
        assert [ids(resumed), ids(resumed)] == [epochs[0][stop:], epochs[1]]
        sampler = BlockSampler(dataset.table, 50, rank=0, world_size=1, workers=3)
        sampler.load_state_dict([interrupted.state_dict()])
        rest = [row for batch in ids(sampler) for row in batch]
        assert sorted(rest) == sorted(row for batch in epochs[0][stop:] for row in batch)


@pytest.fixture(params=["BlockSampler", "TFRecordBatches"])
def new(request: pytest.FixtureRequest, dataset: TFRecordTable) -> Callable[[], Any]:
    """Make a loader of many short batches, which has not been used yet."""
    if request.param == "BlockSampler":
        return lambda: BlockSampler(dataset.table, 50, seed=1)
    path = dataset.table._dataset.store.public()
    return lambda: TFRecordBatches(path, 50, shuffle="blocks", seed=1)


def given_up(loader: Any) -> None:
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)


def not_begun(loader: Any) -> None:
    iter(loader)


@pytest.mark.parametrize("before", [[], [ids], [ids, ids], [given_up], [ids, given_up], [given_up, ids]])
@pytest.mark.parametrize("after", [[], [not_begun]])
def test_a_state_after_set_epoch_is_the_begin_of_that_epoch(
    new: Callable[[], Any], before: list[Any], after: list[Any]
) -> None:
    expected = new()
    epochs = [ids(expected) for _ in range(7)]
    loader, other = new(), new()
    for use in before:
        use(loader)
    loader.set_epoch(3)
    loader.set_epoch(5)
    if isinstance(loader, BlockSampler):  # making an iterator of the other loader begins the epoch
        for use in after:
            use(loader)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    again = other.state_dict()
    assert [ids(loader), ids(loader)] == [ids(other), ids(other)] == epochs[5:]
    other.load_state_dict(again)
    assert ids(other) == epochs[5]


@pytest.mark.parametrize("chosen", [None, 2, 6])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_set_epoch_beside_a_position_chooses_the_epoch_after_it(
    new: Callable[[], Any], chosen: int | None, is_loaded: bool
) -> None:
    epochs = [ids(new_at(new, epoch)) for epoch in range(7)]
    loader = new_at(new, 2)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    if is_loaded:
        state, loader = loader.state_dict(), new()
        loader.load_state_dict(state)
    if chosen is not None:
        loader.set_epoch(chosen)
    other = new()
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    is_repeated = is_loaded and chosen == 2  # as by a program that is started again
    following = 3 if chosen is None or is_repeated else chosen
    assert [ids(other), ids(other)] == [epochs[2][3:], epochs[following]]
    if is_loaded:
        assert [ids(loader), ids(loader)] == [epochs[2][3:], epochs[following]]


def new_at(new: Callable[[], Any], epoch: int) -> Any:
    loader = new()
    loader.set_epoch(epoch)
    return loader
