"""PyTorch: every row once across workers and ranks, exact resuming, tensors of the column values.

Modules: feed.torch.
"""

import json
import random
from types import SimpleNamespace
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.utils.data import DataLoader  # noqa: E402

import dask_tfrecord  # noqa: E402
from dask_tfrecord import TFRecordError  # noqa: E402
from dask_tfrecord.feed.torch import TFRecordBatches, TFRecordTable  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning",
    "ignore:.*prototype stage.*",
    "ignore:This DataLoader will create",
    "ignore:.*set_vital.*",
)

ROWS = 1003

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip": {"compression": "gzip"},
    "partitioned": {"partition_on": ["key"]},
}


@pytest.fixture(scope="module", params=FORMS)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("torch") / "dataset")
    frame = pd.DataFrame(
        {
            "id": np.arange(ROWS),
            "key": pd.array([f"k{i % 3}" for i in range(ROWS)], dtype=pd.ArrowDtype(pa.string())),
            "x": pd.array([[i, i / 2] for i in range(ROWS)], pd.ArrowDtype(pa.list_(pa.float32(), 2))),
        }
    )
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=4), path, **FORMS[request.param])
    return path


def ids(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch["id"].tolist()]


@pytest.mark.parametrize("shuffle", [None, 7])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_every_row_once_over_workers_and_ranks(
    dataset: str, workers: int, ranks: int, shuffle: int | None
) -> None:
    found = []
    for rank in range(ranks):
        batches = TFRecordBatches(
            dataset,
            64,
            ["id"],
            shuffle=shuffle,
            rank=rank,
            world_size=ranks,
            uneven="keep",
            shuffle_buffer=100,
        )
        found += ids(DataLoader(batches, batch_size=None, num_workers=workers))
    assert sorted(found) == list(range(ROWS))


@pytest.mark.parametrize(("uneven", "rows"), [("drop", 501), ("pad", 502)])
def test_ranks_make_the_same_number_of_steps(dataset: str, uneven: Any, rows: int) -> None:
    found = [
        ids(TFRecordBatches(dataset, 64, ["id"], rank=rank, world_size=2, uneven=uneven)) for rank in range(2)
    ]
    assert [len(shard) for shard in found] == [rows, rows]
    assert len(set(found[0] + found[1])) == (ROWS if uneven == "pad" else 2 * rows)


def test_each_epoch_has_its_order(dataset: str) -> None:
    batches = TFRecordBatches(dataset, 64, ["id"], shuffle=1)
    first, second = ids(batches), ids(batches)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(ROWS))
    batches.set_epoch(0)
    assert ids(batches) == first


def test_a_state_resumes_exactly(dataset: str) -> None:
    batches = TFRecordBatches(dataset, 64, ["id"], shuffle=1, shuffle_buffer=100)
    expected = [batch["id"].tolist() for batch in batches]
    for count in range(1, len(expected)):
        begun = TFRecordBatches(dataset, 64, ["id"], shuffle=1, shuffle_buffer=100)
        iterator = iter(begun)
        for _ in range(count):
            next(iterator)
        state = json.loads(json.dumps(begun.state_dict()))
        iterator.close()
        resumed = TFRecordBatches(dataset, 64, ["id"], shuffle=1, shuffle_buffer=100)
        resumed.load_state_dict(state)
        assert [batch["id"].tolist() for batch in resumed] == expected[count:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_resumes_exactly(dataset: str, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def loader() -> Any:
        batches = TFRecordBatches(dataset, 64, ["id"], shuffle=1, shuffle_buffer=100)
        return stateful.StatefulDataLoader(batches, batch_size=None, num_workers=workers)

    expected = [batch["id"].tolist() for batch in loader()]
    for count in (1, 7, len(expected) - 1):
        begun = loader()
        iterator = iter(begun)
        for _ in range(count):
            next(iterator)
        state = begun.state_dict()
        del iterator
        resumed = loader()
        resumed.load_state_dict(state)
        assert [batch["id"].tolist() for batch in resumed] == expected[count:]


Run = list[list[list[int]]]  # the numbers of the rows of each batch of each epoch


@pytest.fixture(scope="module")
def rows_of_50(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("torch") / "small")
    frame = pd.DataFrame({"id": np.arange(50)})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=3), path)
    return path


@pytest.mark.parametrize("seed", range(24))
def test_a_resumed_run_is_the_uninterrupted_run(rows_of_50: str, seed: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    draw = random.Random(seed)
    workers, epochs = [0, 3, 3, 4][seed % 4], 3
    options = {"num_workers": workers, "persistent_workers": workers > 0 and draw.random() < 0.5}
    options["snapshot_every_n_steps"] = draw.choice([1, 1, 3])
    arguments: dict[str, Any] = {"shuffle": draw.choice([None, 7]), "shuffle_buffer": draw.choice([15, 1000])}
    arguments |= {
        "batch_mode": "drop" if draw.random() < 0.3 else "keep",
        "uneven": draw.choice(["drop", "keep", "pad"]),
    }
    arguments |= draw.choice([{}, {"rank": 1, "world_size": 2}])
    size, calls_set_epoch = draw.choice([5, 7, 10]), draw.random() < 0.5

    def loader() -> Any:
        batches = TFRecordBatches(rows_of_50, size, ["id"], **arguments)
        return stateful.StatefulDataLoader(batches, batch_size=None, **options)

    def run(loader: Any, first: int, states: dict[tuple[int, int], str] | None = None) -> Run:
        found: Run = []
        for epoch in range(first, epochs):
            if calls_set_epoch:
                loader.dataset.set_epoch(epoch)
            found.append([])
            for batch in loader:
                found[-1].append(batch["id"].tolist())
                if states is not None:
                    states[epoch, len(found[-1])] = json.dumps(loader.state_dict())
            if states is not None:
                states[epoch + 1, 0] = json.dumps(loader.state_dict())
        return found

    states: dict[tuple[int, int], str] = {}
    expected = run(loader(), 0, states)
    ends = [point for point in states if point[1] == 0]
    for epoch, batch in [*draw.sample(sorted(states), 3), draw.choice(ends)]:
        resumed = loader()
        for _ in range(draw.choice([1, 2])):
            resumed.load_state_dict(json.loads(states[epoch, batch]))
        left = [found[batch if number == epoch else 0 :] for number, found in enumerate(expected)]
        assert run(resumed, epoch) == left[epoch:], (epoch, batch, options, arguments)


@pytest.fixture
def as_worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes this process the first of three workers of a DataLoader, or none."""

    def become(is_worker: bool) -> None:
        info = SimpleNamespace(id=0, num_workers=3) if is_worker else None
        monkeypatch.setattr("dask_tfrecord.feed.torch.get_worker_info", lambda: info)

    return become


def test_a_worker_that_had_ended_goes_on_with_the_next_epoch(rows_of_50: str, as_worker: Any) -> None:
    as_worker(True)
    batches = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=7)
    epochs = [ids(batches) for _ in range(3)]
    again = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=7)
    iterator = iter(again)
    begun = again.state_dict()
    list(iterator)
    ended = again.state_dict()
    for state, first in ((begun, epochs[0]), (ended, [])):
        resumed = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=7)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert [ids(resumed) for _ in range(3)] == [first, *epochs[1:]]


def test_a_state_of_an_end_begins_the_next_epoch(rows_of_50: str) -> None:
    batches = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=7)
    first = ids(batches)
    state = batches.state_dict()
    expected = [ids(batches), ids(batches)]
    resumed = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=7)
    resumed.load_state_dict(state)
    iter(resumed)  # StatefulDataLoader does so, and drops it
    assert [ids(resumed), ids(resumed)] == expected
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert [ids(resumed), ids(resumed)] == [first, expected[0]]


def test_a_loaded_state_keeps_its_epoch(rows_of_50: str) -> None:
    batches = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=7)
    batches.set_epoch(4)
    iterator = iter(batches)
    next(iterator)
    state = batches.state_dict()
    expected = [ids(iterator), ids(batches)]
    for chosen, is_before in ((4, False), (4, True), (6, False), (6, True)):
        resumed = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=7)
        if is_before:
            resumed.set_epoch(chosen)
        resumed.load_state_dict(state)
        if not is_before:
            resumed.set_epoch(chosen)
        assert ids(resumed) == expected[0]
        second = ids(resumed)
        assert second == expected[1] if chosen == 4 else second != expected[1]


def test_an_iteration_that_goes_on_counts_without_a_batch(rows_of_50: str) -> None:
    """A loop that counts its steps itself may have none left in the epoch of the state."""
    batches = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=7)
    next(iter(batches))
    state = batches.state_dict()
    expected = ids(batches)
    resumed = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=7)
    resumed.load_state_dict(state)
    iter(resumed)
    assert ids(resumed) == expected


def test_positions_of_workers_are_not_guessed(rows_of_50: str, as_worker: Any) -> None:
    batches = TFRecordBatches(rows_of_50, 10, ["id"])
    next(iter(DataLoader(batches, batch_size=None, num_workers=1)))
    with pytest.raises(TFRecordError, match="StatefulDataLoader"):
        batches.state_dict()
    iterator = iter(batches)
    next(iterator)
    state = batches.state_dict()
    iterator.close()
    batches.load_state_dict(state)
    assert ids(batches) == list(range(10, 50))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_shuffles_all_rows_of_a_table(dataset: str, workers: int) -> None:
    table = TFRecordTable(dataset)
    loader = DataLoader(table, 50, shuffle=True, collate_fn=table.collate, num_workers=workers)
    found = []
    for batch in loader:
        assert batch["x"][:, 0].tolist() == batch["id"].tolist()
        found += batch["id"].tolist()
    assert sorted(found) == list(range(ROWS))
    assert found != sorted(found)
    assert table[5]["x"].shape == (2,)


def test_two_processes_of_gloo_share_the_rows(dataset: str) -> None:
    import torch.multiprocessing as mp

    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(_rank, (2, dataset, results, _free_port()), nprocs=2)
    counts, totals = zip(*(results.get() for _ in range(2)), strict=True)
    assert counts == (8, 8)
    assert totals == (ROWS * (ROWS - 1) // 2, ROWS * (ROWS - 1) // 2)


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _rank(rank: int, world: int, dataset: str, results: Any, port: int) -> None:
    import os

    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    batches = TFRecordBatches(dataset, 64, ["id"], shuffle=3, uneven="keep")  # before the rank is known
    dist.init_process_group("gloo", rank=rank, world_size=world)
    steps, total = 0, torch.zeros(1, dtype=torch.int64)
    for batch in DataLoader(batches, batch_size=None):
        steps += 1
        total += batch["id"].sum()
    dist.all_reduce(total)
    results.put((steps, int(total)))
    dist.destroy_process_group()


def test_a_rank_needs_the_number_of_ranks(dataset: str) -> None:
    with pytest.raises(TFRecordError, match="world_size"):
        TFRecordBatches(dataset, 64, rank=0)


@pytest.mark.parametrize(
    "state",
    [
        {"row": 3},
        {"epoch": 0, "batches": None},
        {"epoch": 0, "batches": {"row": 3}, "ended": False, "chosen": None},
        {"epoch": 0, "batches": "x", "ended": False, "chosen": None},
    ],
)
def test_a_strange_state_is_refused(dataset: str, state: Any) -> None:
    with pytest.raises(TFRecordError, match="state_dict"):
        TFRecordBatches(dataset, 64).load_state_dict(state)


@pytest.mark.parametrize("epoch", [-1, 1.5, "1"])
def test_a_strange_epoch_is_refused(dataset: str, epoch: Any) -> None:
    with pytest.raises(TFRecordError, match="epoch="):
        TFRecordBatches(dataset, 64).set_epoch(epoch)


@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_reaches_the_workers(dataset: str, persistent: bool) -> None:
    batches = TFRecordBatches(dataset, 64, ["id"], shuffle=1, uneven="keep")
    loader = DataLoader(batches, batch_size=None, num_workers=2, persistent_workers=persistent)
    found = []
    for epoch in (3, 4, 3):
        batches.set_epoch(epoch)
        found.append(ids(loader))
    assert found[0] == found[2] != found[1]
    assert all(sorted(epoch) == list(range(ROWS)) for epoch in found)


def test_persistent_workers_stay_in_the_same_epoch_after_a_break(dataset: str) -> None:
    batches = TFRecordBatches(dataset, 64, ["id"], shuffle=1, shuffle_buffer=100)
    loader = DataLoader(batches, batch_size=None, num_workers=3, persistent_workers=True)
    for stop in (1, 5, 14):  # of 16 batches
        for count, _ in enumerate(loader):
            if count == stop:
                break
        assert sorted(ids(loader)) == list(range(ROWS))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_the_length_is_true_for_any_number_of_workers(dataset: str, workers: int, drop_last: bool) -> None:
    batches = TFRecordBatches(
        dataset, 50, ["id"], batch_mode="drop" if drop_last else "keep", rank=1, world_size=2
    )
    loader = DataLoader(batches, batch_size=None, num_workers=workers)
    assert len(loader) == len(list(loader)) == (10 if drop_last else 11)


def test_more_workers_than_rows(tmp_path: Any) -> None:
    dask_tfrecord.to_tfrecord(dd.from_dict({"id": [1, 2]}, npartitions=1), tmp_path / "d")
    loader = DataLoader(TFRecordBatches(tmp_path / "d", 1), batch_size=None, num_workers=3)
    assert sorted(ids(loader)) == [1, 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_was_overwritten_between_epochs_raises(tmp_path: Any, workers: int) -> None:
    path = tmp_path / "d"
    dask_tfrecord.to_tfrecord(dd.from_dict({"id": [1, 2]}, npartitions=1), path)
    loader = DataLoader(TFRecordBatches(path, 1), batch_size=None, num_workers=workers)
    assert ids(loader) == [1, 2]
    dask_tfrecord.to_tfrecord(dd.from_dict({"id": [3]}, npartitions=1), path, append=True)
    assert ids(loader) == [1, 2]
    dask_tfrecord.to_tfrecord(dd.from_dict({"id": [3]}, npartitions=1), path, overwrite=True)
    with pytest.raises(FileNotFoundError, match="removed after the dataset was listed"):
        ids(loader)


@pytest.mark.parametrize("fill_nulls", [{"ids": -1}, -1])
def test_missing_values_are_checked(dataset: str, fill_nulls: Any) -> None:
    with pytest.raises(TFRecordError, match="fill_nulls="):
        TFRecordBatches(dataset, 10, fill_nulls=fill_nulls)
    with pytest.raises(TFRecordError, match="fill_nulls="):
        TFRecordTable(dataset, fill_nulls=fill_nulls)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_without_the_collation_of_the_table_raises(dataset: str, workers: int) -> None:
    with pytest.raises(TFRecordError, match="pass collate_fn="):
        next(iter(DataLoader(TFRecordTable(dataset), 10, num_workers=workers)))
