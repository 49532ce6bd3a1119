"""PyTorch: every row once across workers and ranks, resuming with any numbers of these.

Modules: feed.torch, feed.rows.resume_position, feed.workers.
"""

import json
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sftp_server import free_port

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.utils.data import DataLoader  # noqa: E402

import dask_tfrecord  # noqa: E402
from dask_tfrecord import TFRecordError  # noqa: E402
from dask_tfrecord.feed.batch_statistics import BatchStatistics  # noqa: E402
from dask_tfrecord.feed.torch import TFRecordBatches, TFRecordTable  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning",
    "ignore:.*prototype stage.*",
    "ignore:This DataLoader will create",
    "ignore:.*set_vital.*",
)

ROWS = 1003


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("torch") / "dataset")
    pairs = pa.array([[i, i / 2] for i in range(ROWS)], pa.list_(pa.float32(), 2))
    table = pa.table({"id": range(ROWS), "key": [f"k{i % 3}" for i in range(ROWS)], "x": pairs})
    ddf = dd.from_pandas(table.to_pandas(types_mapper=pd.ArrowDtype), npartitions=4)
    dask_tfrecord.to_tfrecord(ddf, path, partition_on=["key"], compression="gzip")
    return path


@pytest.fixture(scope="module")
def rows_of_50(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("torch") / "small")
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": range(50)}), path, write_options={"max_rows_per_file": 7})
    return path


def ids(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch["id"].tolist()]


@pytest.mark.parametrize(("ranks", "workers", "shuffle"), [(1, 1, True), (2, 3, None), (3, 0, "buffer")])
def test_every_row_once_over_workers_and_ranks(dataset: str, ranks: int, workers: int, shuffle: Any) -> None:
    given: dict[str, Any] = {"world_size": ranks, "uneven": "keep", "shuffle": shuffle}
    given |= {"shuffle_buffer": 100} if shuffle else {}
    found = []
    for rank in range(ranks):
        batches = TFRecordBatches(dataset, 64, ["id"], rank=rank, **given)
        found += ids(DataLoader(batches, batch_size=None, num_workers=workers))
    assert sorted(found) == list(range(ROWS))


@pytest.mark.parametrize(("uneven", "rows"), [("drop", 501), ("pad", 502)])
def test_ranks_make_the_same_number_of_steps(dataset: str, uneven: Any, rows: int) -> None:
    found = [
        ids(TFRecordBatches(dataset, 64, ["id"], rank=rank, world_size=2, uneven=uneven)) for rank in range(2)
    ]
    assert [len(shard) for shard in found] == [rows, rows]
    assert len(set(found[0] + found[1])) == (ROWS if uneven == "pad" else 2 * rows)


Run = list[list[list[int]]]  # the numbers of the rows of each batch of each epoch


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(12))
def test_a_resumed_run_is_the_uninterrupted_run(rows_of_50: str, seed: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    draw = random.Random(seed)
    workers, epochs = [0, 3, 3, 4][seed % 4], 3
    options = {"num_workers": workers, "persistent_workers": workers > 0 and draw.random() < 0.5}
    options["snapshot_every_n_steps"] = draw.choice([1, 1, 3])
    arguments: dict[str, Any] = {"shuffle": draw.choice([False, True])}
    buffer = draw.choice([15, 1000])
    arguments |= {"shuffle_buffer": buffer} if arguments["shuffle"] else {}
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
    batches = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=True, seed=7)
    epochs = [ids(batches) for _ in range(3)]
    again = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=True, seed=7)
    iterator = iter(again)
    begun = again.state_dict()
    list(iterator)
    ended = again.state_dict()
    for state, first in ((begun, epochs[0]), (ended, [])):
        resumed = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=True, seed=7)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert [ids(resumed) for _ in range(3)] == [first, *epochs[1:]]


def test_positions_of_workers_are_not_guessed(rows_of_50: str) -> None:
    batches = TFRecordBatches(rows_of_50, 10, ["id"])
    next(iter(DataLoader(batches, batch_size=None, num_workers=1)))
    with pytest.raises(TFRecordError, match=r"only they know their positions.*StatefulDataLoader"):
        batches.state_dict()
    _, state = begun(batches, 1)
    batches.load_state_dict(state)
    assert sorted(ids(DataLoader(batches, batch_size=None, num_workers=2))) == list(range(10, 50))


def test_a_loader_shuffles_all_rows_of_a_table(dataset: str) -> None:
    table = TFRecordTable(dataset)
    found = []
    for batch in DataLoader(table, 50, shuffle=True, collate_fn=table.collate, num_workers=2):
        assert batch["x"][:, 0].tolist() == batch["id"].tolist()
        found += batch["id"].tolist()
    assert sorted(found) == list(range(ROWS))
    assert found != sorted(found)
    assert table[5]["x"].shape == (2,)
    with pytest.raises(TFRecordError, match="pass collate_fn="):
        next(iter(DataLoader(table, 10)))


def test_two_processes_of_gloo_share_the_rows(dataset: str) -> None:
    import torch.multiprocessing as mp

    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(_rank, (2, dataset, results, free_port()), nprocs=2)
    assert [results.get() for _ in range(4)] == [(8, ROWS * (ROWS - 1) // 2)] * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: TFRecordBatches(path, 64, rank=0), "world_size"),
        (lambda path: TFRecordBatches(path, 64, fill_nulls=-1), "fill_nulls="),
        (lambda path: TFRecordBatches(path, 64, label="ids"), "label='ids' names no column.*'id'"),
        (
            lambda path: TFRecordBatches(path, 64, label="id", convert=len),
            "label= has no effect with convert=",
        ),
        (lambda path: TFRecordTable(path, fill_nulls={"ids": -1}), "fill_nulls="),
        *(
            (lambda path, state=state: TFRecordBatches(path, 64).load_state_dict(state), "state_dict")
            for state in (
                {"row": 3},
                {"epoch": 0, "states": None},
                {"epoch": 0, "states": {"row": 3}, "ended": False, "following": 1},
                {"epoch": 0, "states": "x", "ended": False, "following": 1},
            )
        ),
        *(
            (lambda path, epoch=epoch: TFRecordBatches(path, 64).set_epoch(epoch), "epoch=")
            for epoch in (-1, 1.5, "1")
        ),
    ],
)
def test_wrong_arguments_are_named(dataset: str, call: Any, message: str) -> None:
    with pytest.raises(TFRecordError, match=message):
        call(dataset)


def _rank(rank: int, world: int, dataset: str, results: Any, port: int) -> None:
    import os

    import torch.distributed as dist

    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"})
    found = [  # before the rank is known
        TFRecordBatches(dataset, 64, ["id"], shuffle=True, seed=3, uneven="keep", elastic=elastic)
        for elastic in (None, 4)
    ]
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for batches in found:
        steps, total = 0, torch.zeros(1, dtype=torch.int64)
        for batch in DataLoader(batches, batch_size=None):
            steps += 1
            total += batch["id"].sum()
        dist.all_reduce(total)
        results.put((steps, int(total)))
    dist.destroy_process_group()


@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_reaches_the_workers(dataset: str, persistent: bool) -> None:
    batches = TFRecordBatches(dataset, 64, ["id"], shuffle=True, seed=1, uneven="keep")
    loader = DataLoader(batches, batch_size=None, num_workers=2, persistent_workers=persistent)
    found = []
    for epoch in (3, 4, 3):
        batches.set_epoch(epoch)
        found.append(ids(loader))
        next(iter(loader))  # workers stay in the same epoch after a break
    assert found[0] == found[2] != found[1]
    assert all(sorted(epoch) == list(range(ROWS)) for epoch in found)


@pytest.mark.parametrize(
    ("workers", "mode", "batches"), [(0, "drop", 2), (1, "keep", 3), (2, "drop", 2), (4, "keep", 3)]
)
def test_the_length_is_true_for_any_number_of_workers(
    rows_of_50: str, workers: int, mode: Any, batches: int
) -> None:
    found = TFRecordBatches(rows_of_50, 12, ["id"], batch_mode=mode, rank=1, world_size=2)
    loader = DataLoader(found, batch_size=None, num_workers=workers)
    assert len(loader) == len(list(loader)) == batches


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_was_overwritten_between_epochs_raises(tmp_path: Path, workers: int) -> None:
    dask_tfrecord.to_tfrecord(pa.table({"id": [1, 2]}), tmp_path)
    loader = DataLoader(TFRecordBatches(tmp_path, 1), batch_size=None, num_workers=workers)
    assert ids(loader) == [1, 2]
    dask_tfrecord.to_tfrecord(pa.table({"id": [3]}), tmp_path, append=True)
    assert ids(loader) == [1, 2]
    dask_tfrecord.to_tfrecord(pa.table({"id": [3]}), tmp_path, overwrite=True)
    with pytest.raises(FileNotFoundError, match="removed after it was listed"):
        ids(loader)


def rank_of(rows_of_50: str, rank: int, ranks: int, size: int = 5, **options: Any) -> TFRecordBatches:
    given = {"shuffle": True, "seed": 3, "shuffle_buffer": 20, "uneven": "keep", **options}
    return TFRecordBatches(rows_of_50, size, rank=rank, world_size=ranks, **given)


def begun(loader: Any, count: int) -> tuple[list[int], Any]:
    """Take some batches of a loader or a rows_of_50, and return the rows and the state."""
    iterator = iter(loader)
    found = ids(batch for _, batch in zip(range(count), iterator, strict=False))
    state = json.loads(json.dumps(loader.state_dict()))
    del iterator
    return found, state


@pytest.mark.parametrize("seed", range(6))
def test_every_row_once_with_other_ranks_and_workers(rows_of_50: str, seed: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    draw = random.Random(seed)
    found, states, is_ended = [], [], seed == 3
    ranks, workers = draw.choice([1, 2, 3]), seed % 3
    for rank in range(ranks):
        batches = rank_of(rows_of_50, rank, ranks)
        batches.set_epoch(4)
        loader = stateful.StatefulDataLoader(batches, batch_size=None, num_workers=workers)
        rows, state = begun(loader, 100 if is_ended else draw.choice([0, 1, 2, 5]))
        found += rows
        states.append(state)
    epochs: dict[int, list[int]] = {4: found, 5: [], 6: []}
    ranks, workers = draw.choice([1, 2, 4]), draw.choice([0, 2])
    for rank in range(ranks):
        batches = rank_of(rows_of_50, rank, ranks, size=draw.choice([5, 8]))
        batches.load_state_dict(states)
        loader = draw.choice([DataLoader, stateful.StatefulDataLoader])(batches, None, num_workers=workers)
        for epoch in range(5 if is_ended else 4, 7):
            batches.set_epoch(epoch)
            epochs[epoch] += ids(loader)
    assert [sorted(rows) for rows in epochs.values()] == [list(range(50))] * 3


def test_a_state_taken_again_before_the_first_batch_is_kept(rows_of_50: str) -> None:
    states = [begun(rank_of(rows_of_50, rank, 2), 1)[1] for rank in range(2)]
    again = []
    for rank in range(3):
        batches = rank_of(rows_of_50, rank, 3)
        batches.load_state_dict(states)
        again.append(batches.state_dict() if rank else begun(batches, 1)[1])
    one = rank_of(rows_of_50, 0, 1)
    one.load_state_dict(again)
    assert len(ids(one)) == 35


def test_states_of_different_epochs_or_steps_are_refused(rows_of_50: str) -> None:
    first, second = (rank_of(rows_of_50, rank, 2) for rank in range(2))
    one, other = begun(first, 1)[1], second.state_dict()
    second.set_epoch(7)
    for states in ([one, other], [one, begun(second, 1)[1]]):
        with pytest.raises(TFRecordError, match="different epochs"):
            rank_of(rows_of_50, 0, 1).load_state_dict(states)
    batches = rank_of(rows_of_50, 0, 1)
    with pytest.raises(TFRecordError, match="list of states is empty; pass the states of all ranks"):
        batches.load_state_dict([])
    batches.load_state_dict(one)
    for _ in range(2):  # the position is not lost
        with pytest.raises(
            TFRecordError, match=r"state of rank 1 of 2 is missing.*to load_state_dict of the dataset, not"
        ):
            iter(batches)
    with pytest.raises(TFRecordError, match="seed=4, and not seed=3"):
        second.load_state_dict(begun(rank_of(rows_of_50, 1, 2, seed=4), 1)[1])
    assert second.state_dict()["epoch"] == 7
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    loader = stateful.StatefulDataLoader(first, None, num_workers=2, snapshot_every_n_steps=3)
    with pytest.raises(TFRecordError, match="snapshot_every_n_steps=1"):
        rank_of(rows_of_50, 0, 1).load_state_dict(begun(loader, 2)[1])


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
    rows_of_50: str, error: type[BaseException]
) -> None:
    failed: list[bool] = []

    def convert(batch: Any) -> list[int]:
        if len(seen) >= 20 and not failed:
            failed.append(True)
            raise error("once")
        return list(batch["id"].to_pylist())

    seen: list[int] = []
    batches = TFRecordBatches(rows_of_50, 10, "id", convert=convert)
    iterator = iter(batches)
    seen += next(iterator) + next(iterator)
    with pytest.raises(RuntimeError if error is StopIteration else error):
        next(iterator)
    resumed = TFRecordBatches(rows_of_50, 10, "id", convert=convert)
    resumed.load_state_dict(batches.state_dict())
    seen += [row for batch in resumed for row in batch]
    assert seen == list(range(50))


@pytest.mark.parametrize("name", ["torch.utils.data", "torchdata.stateful_dataloader"])
def test_statistics_are_those_of_all_workers(rows_of_50: str, name: str) -> None:
    module = pytest.importorskip(name, reason="torchdata is not installed")
    loader_of = getattr(module, "StatefulDataLoader", DataLoader)
    batches = TFRecordBatches(rows_of_50, 10, "id", shuffle=True)
    assert batches.statistics == BatchStatistics()
    for workers, persistent in ((0, False), (3, True), (2, False), (0, False)):
        loader = loader_of(batches, None, num_workers=workers, persistent_workers=persistent)
        for _ in range(2):
            assert sorted(ids(loader)) == list(range(50))
            found = batches.statistics
            assert (found.batches, found.rows) == (5, 50)
            assert 0 < found.seconds_waited <= found.seconds
            assert found.bytes_read > 0
            assert isinstance(found.bytes_read, int)


def test_statistics_of_a_table_are_those_of_its_workers(rows_of_50: str) -> None:
    table = TFRecordTable(rows_of_50)
    assert table.statistics == BatchStatistics()
    for workers in (3, 2):
        ids(DataLoader(table, 10, collate_fn=table.collate, num_workers=workers))
        found = table.statistics
        assert (found.batches, found.rows) == (5, 50)
        assert found.seconds_waited > 0
    ids(DataLoader(table, 10, collate_fn=table.collate))
    assert table[3]["id"] == 3
    assert (table.statistics.batches, table.statistics.rows) == (11, 101)


def test_statistics_begin_anew_with_each_iteration(rows_of_50: str) -> None:
    batches = TFRecordBatches(rows_of_50, 10, "id")
    ids(DataLoader(batches, None, num_workers=2))
    iterator = iter(batches)
    assert batches.statistics.rows == 0
    next(iterator)
    assert batches.statistics.rows == 10
    assert len(pickle.dumps(batches)) < 50_000


def test_a_dataset_is_pickled_for_workers(rows_of_50: str) -> None:
    batches = TFRecordBatches(rows_of_50, 10, "id", shuffle=True, seed=1)
    loader = DataLoader(batches, None, num_workers=1, multiprocessing_context="spawn")
    assert sorted(ids(loader)) == sorted(ids(pickle.loads(pickle.dumps(batches))))


def test_a_loaded_state_keeps_its_epoch_and_an_ended_one_begins_the_next(rows_of_50: str) -> None:
    def resumed(state: Any) -> TFRecordBatches:
        batches = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=True, seed=7)
        batches.load_state_dict(state)
        return batches

    batches = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=True, seed=7)
    ids(batches)
    ended = batches.state_dict()
    second = ids(batches)
    batches.set_epoch(0)
    iterator = iter(batches)
    next(iterator)
    state = batches.state_dict()
    rest = ids(iterator)
    for chosen in (0, 6):
        one = resumed(state)
        one.set_epoch(chosen)
        assert ids(one) == rest
        assert (ids(one) == second) == (chosen == 0)
    for one in (resumed(ended), resumed(state)):
        iter(one)  # StatefulDataLoader does so, and drops it; a loop may have no step left in the epoch
        assert ids(one) == second
    one = resumed(ended)
    one.set_epoch(0)
    assert [ids(one), ids(one)] == [[], second]


@pytest.mark.parametrize(
    ("given", "workers", "persistent"),
    [
        ("state", 0, False),
        ("state", 2, True),
        ("list", 2, False),
        ("list", 0, False),
        ("again", 2, True),
        ("again", 2, False),
        ("last", 0, False),
        ("last", 2, True),
    ],
)
def test_the_saved_epoch_is_set_again_after_its_end(
    rows_of_50: str, given: str, workers: int, persistent: bool
) -> None:
    """The state is loaded by the loader or by the dataset, or comes from an empty epoch or the last step."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def loader() -> Any:
        batches = TFRecordBatches(rows_of_50, 10, ["id"], shuffle=True, seed=7)
        keep = {"num_workers": workers, "persistent_workers": persistent}
        return stateful.StatefulDataLoader(batches, batch_size=None, **keep)

    def epochs_from(first: int, loader: Any) -> Iterator[list[int]]:
        for epoch in range(first, 4):
            loader.dataset.set_epoch(epoch)
            yield ids(loader)

    def saved(loader: Any) -> Any:
        return json.loads(json.dumps(loader.state_dict()))

    whole = loader()
    expected = epochs_from(0, whole)
    next(expected)
    if given == "last":
        whole.dataset.set_epoch(1)
        *_, state = (saved(whole) for _ in whole)
        expected = epochs_from(2, whole)
    else:
        next(expected)
        state = saved(whole)
    resumed = loader()
    if given == "list":
        resumed.dataset.load_state_dict([state])
    else:
        resumed.load_state_dict(state)
    found = epochs_from(1, resumed)
    assert next(found) == []
    if given == "again":
        state, resumed = saved(resumed), loader()
        resumed.load_state_dict(state)
        found = epochs_from(1, resumed)
        assert next(found) == []
    assert list(found) == list(expected)


@pytest.mark.sampled
@pytest.mark.parametrize("convert", [None, lambda batch: torch.tensor(batch["id"].to_pylist())])
@pytest.mark.parametrize("options", [{}, {"batch_size": 4, "drop_last": True}, {"num_workers": 1}])
@pytest.mark.parametrize("name", ["torch.utils.data", "torchdata.stateful_dataloader", "chain"])
def test_a_loader_that_would_batch_the_batches_again_is_refused(
    rows_of_50: str, name: str, options: dict[str, Any], convert: Any
) -> None:
    batches: Any = TFRecordBatches(rows_of_50, 5, ["id"], convert=convert)
    if name == "chain":
        batches, name = torch.utils.data.ChainDataset([batches]), "torch.utils.data"
    module = pytest.importorskip(name, reason="torchdata is not installed")
    loader = getattr(module, "StatefulDataLoader", DataLoader)
    with pytest.raises(TFRecordError, match="pass batch_size=None to the DataLoader"):
        list(loader(batches, **options))
    workers = {key: value for key, value in options.items() if key == "num_workers"}
    assert len(list(loader(batches, batch_size=None, **workers))) == 10
    own = list(loader(batches, batch_size=5, collate_fn=len, **workers))  # a function of the user
    assert own == [5, 5]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_label_is_the_second_part_of_an_element(dataset: str, workers: int) -> None:
    batches = TFRecordBatches(dataset, 100, ["x"], "id", shuffle=True, seed=1)
    found = []
    for features, label in DataLoader(batches, batch_size=None, num_workers=workers):
        assert type(features) is dict
        assert features.keys() == {"x"}
        assert features["x"][:, 0].tolist() == label.tolist()
        found += label.tolist()
    assert sorted(found) == list(range(ROWS))
    features, label = next(iter(TFRecordBatches(dataset, 5, label="id")))
    assert features.keys() == {"key", "x"}


def given_up(batches: Any) -> None:
    iterator = iter(batches)
    for _ in range(3):
        next(iterator)


def in_blocks(path: str, epoch: int | None = None) -> TFRecordBatches:
    batches = TFRecordBatches(path, 5, shuffle="blocks", seed=1)
    if epoch is not None:
        batches.set_epoch(epoch)
    return batches


@pytest.mark.parametrize("before", [[], [ids], [ids, ids], [given_up], [ids, given_up], [given_up, ids]])
def test_a_state_after_set_epoch_is_the_begin_of_that_epoch(rows_of_50: str, before: list[Any]) -> None:
    expected = [ids(in_blocks(rows_of_50, epoch)) for epoch in (5, 6)]
    batches, other = in_blocks(rows_of_50), in_blocks(rows_of_50)
    for use in before:
        use(batches)
    batches.set_epoch(3)
    batches.set_epoch(5)
    other.load_state_dict(json.loads(json.dumps(batches.state_dict())))
    again = other.state_dict()
    assert [ids(batches), ids(batches)] == [ids(other), ids(other)] == expected
    other.load_state_dict(again)
    assert ids(other) == expected[0]
