"""PyTorch with ``elastic=``: one order for any number of ranks and workers, and through resumes with others.

Modules: feed.torch, feed.epochs.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.utils.data import DataLoader  # noqa: E402

import dask_tfrecord  # noqa: E402
from dask_tfrecord import TFRecordError  # noqa: E402
from dask_tfrecord.feed.rows import epoch_order  # noqa: E402
from dask_tfrecord.feed.torch import TFRecordBatches  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning", "ignore:This DataLoader will create", "ignore:.*set_vital.*"
)

ROWS, SEQUENCES, GLOBAL = 1007, 12, 48

Steps = list[set[int]]  # the rows of each global batch


@pytest.fixture(autouse=True, scope="module")
def small_windows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch_order, "BLOCK_BYTES", 1 << 9)
        patch.setattr(epoch_order, "_SHUFFLED_BYTES", 1 << 9)
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("elastic") / "dataset")
    frame = pd.DataFrame({"id": np.arange(ROWS)})
    dask_tfrecord.to_tfrecord(frame, path, write_options={"max_rows_per_file": 60})
    return path


def rank_of(path: str, rank: int, ranks: int, shuffle: Any = None, size: int = GLOBAL, **given: Any) -> Any:
    options = {} if shuffle is None else {"shuffle": shuffle, "seed": 3}
    if shuffle is True:
        options["shuffle_buffer"] = 240
    options |= {"rank": rank, "world_size": ranks, "elastic": SEQUENCES, **given}
    return TFRecordBatches(path, size // ranks, **options)


def loader_of(batches: Any, workers: int = 0, states: Any = None, loader: Any = DataLoader) -> Any:
    if states is not None:
        batches.load_state_dict(states)
    return loader(batches, batch_size=None, num_workers=workers)


def steps_of(loaders: list[Any], count: int | None = None) -> Steps:
    """The rows of the next global batches of all ranks."""
    iterators = [iter(loader) for loader in loaders]
    found: Steps = []
    while len(found) != count:
        batches = [next(iterator, None) for iterator in iterators]
        if batches[0] is None:
            assert batches == [None] * len(batches)  # all ranks make the same number of steps
            break
        found.append({row for batch in batches for row in batch["id"].tolist()})
        assert len(found[-1]) == sum(len(batch["id"]) for batch in batches)
    return found


def steps_of_one(path: str, shuffle: Any, **given: Any) -> Steps:
    return steps_of([rank_of(path, 0, 1, shuffle, **given)])


def test_the_order_of_one_rank_does_not_depend_on_its_workers(path: str) -> None:
    batches = rank_of(path, 1, 2, "blocks")
    expected = [batch["id"].tolist() for batch in batches]
    batches.set_epoch(0)
    assert [batch["id"].tolist() for batch in loader_of(batches, 3)] == expected


def saved(loader: Any) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("shuffle", [None, True, "blocks"])
def test_other_ranks_and_workers_continue_the_order(path: str, shuffle: Any) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    expected = steps_of_one(path, shuffle)
    found: Steps = []
    states: Any = None
    for ranks, workers, count in ((2, 2, 5), (3, 0, 4), (4, 0, 0), (1, 3, 10), (2, 2, 1), (6, 0, None)):
        loaders = [
            loader_of(rank_of(path, rank, ranks, shuffle), workers, states, stateful.StatefulDataLoader)
            for rank in range(ranks)
        ]
        found += steps_of(loaders, count)
        states = [saved(loader) for loader in loaders]
    assert found == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_resumes_in_the_middle_and_at_the_end(path: str, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def loader() -> Any:
        batches = rank_of(path, 0, 1, True)
        keep = {"num_workers": workers, "persistent_workers": workers > 0}
        return stateful.StatefulDataLoader(batches, batch_size=None, **keep)

    def rows(loader: Any) -> list[list[int]]:
        return [batch["id"].tolist() for batch in loader]

    whole = loader()
    epochs: list[list[list[int]]] = [[]]
    states: dict[int | None, Any] = {}
    for batch in whole:
        epochs[0].append(batch["id"].tolist())
        states[len(epochs[0])] = saved(whole)
    states[None] = saved(whole)
    epochs.append(rows(whole))
    assert epochs[0] != epochs[1]
    for stop in (1, 6, len(epochs[0]), None):
        resumed = loader()
        resumed.load_state_dict(states[stop])
        if stop is not None:
            assert rows(resumed) == epochs[0][stop:]
        assert rows(resumed) == epochs[1]


def test_a_worker_that_knows_only_its_own_state_keeps_the_batch_size(path: str) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    loaders = [
        loader_of(rank_of(path, 0, 1, size=size), 2, loader=stateful.StatefulDataLoader) for size in (48, 24)
    ]
    found = steps_of(loaders[:1], 3)
    state = saved(loaders[0])
    loaders[1].load_state_dict(state)
    with pytest.raises(TFRecordError, match="to load_state_dict of the dataset"):
        next(iter(loaders[1]))
    batches = rank_of(path, 0, 1, size=24)
    assert set().union(*found, *steps_of([loader_of(batches, 2, [state])])) == set().union(
        *steps_of_one(path, None)
    )


@pytest.mark.parametrize("elastic", [None, 6])
def test_a_mixture_has_one_order_and_resumes_in_workers(
    path: str, tmp_path: Path, elastic: int | None
) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    other = str(tmp_path / "other")
    frame = pd.DataFrame({"id": np.arange(5000, 5200)})
    dask_tfrecord.to_tfrecord(frame, other, write_options={"max_rows_per_file": 60})

    def loader(workers: int, states: Any = None) -> Any:
        given: dict[str, Any] = {"until": "all", "shuffle": True, "seed": 1, "elastic": elastic}
        batches = TFRecordBatches({path: 0.75, other: 0.25}, 60, shuffle_buffer=200, **given)
        return loader_of(batches, workers, states, stateful.StatefulDataLoader)

    whole = loader(0)
    expected = [batch["id"].tolist() for batch in whole]
    drawn = whole.dataset.drawn
    assert list(drawn) == [path, other]
    assert sum(drawn.values()) == sum(map(len, expected)) >= ROWS
    assert drawn[other] == sum(row >= 5000 for batch in expected for row in batch)
    assert drawn[other] == pytest.approx(sum(drawn.values()) / 4, abs=12)
    assert {row for batch in expected for row in batch} == {*range(ROWS), *range(5000, 5200)}
    first = loader(2)
    iterator = iter(first)
    assert [next(iterator)["id"].tolist() for _ in range(5)] == expected[:5]
    state = saved(first)
    with pytest.raises(TFRecordError, match="only they know their positions"):
        _ = first.dataset.drawn
    for resumed in (loader(1, [state]), loader(0, state)):
        assert [batch["id"].tolist() for batch in resumed] == expected[5:]
    own = loader(2)
    own.load_state_dict(state)
    assert [batch["id"].tolist() for batch in own] == expected[5:]


def test_what_was_drawn_needs_a_mixture(path: str) -> None:
    with pytest.raises(TFRecordError, match="of a mixture"):
        _ = rank_of(path, 0, 1).drawn
