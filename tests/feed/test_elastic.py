"""With ``elastic=``, the batches of all shards together are the same for any number of shards and parts.

Modules: feed.rows.resume_position, feed.rows.sequence_reader, feed.batches.
"""

import gzip
import json
import os
import random
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_blocks import small_blocks

import dask_tfrecord
from dask_tfrecord import TFRecordError
from dask_tfrecord.errors import RemedyWarning
from dask_tfrecord.feed.batches import Batches, iter_batches
from dask_tfrecord.feed.rows.epoch_order import plan_batches
from dask_tfrecord.feed.rows.sources import DatasetSource

SIZES = [24, 97, 403]


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with small_blocks(window_bytes=24_000):
        yield


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, str]:
    root, found = tmp_path_factory.mktemp("elastic"), {}
    for rows in SIZES:
        for codec in (None, "gzip"):
            frame = pd.DataFrame({"id": np.arange(rows), "text": ["x" * (i % 50) for i in range(rows)]})
            found[rows, codec] = str(root / f"{rows}-{codec}")
            options = {"max_rows_per_file": 150}
            dask_tfrecord.to_tfrecord(frame, found[rows, codec], compression=codec, write_options=options)
    return found


Grid = list[list[Batches]]


def start(path: str, ranks: int, workers: int, rows: int, state: Any = None, **how: Any) -> Grid:
    """Begin the batches of each rank and worker. A step takes ``rows`` rows of each sequence."""
    plan = plan_batches(path, rows * how["elastic"] // ranks, surface=iter_batches, **how)
    return [
        [Batches(plan, 1, (rank, ranks), (worker, workers), state) for worker in range(workers)]
        for rank in range(ranks)
    ]


def steps(grid: Grid, first: int = 0, count: int = 10**9) -> list[list[int]]:
    """Return the rows of all ranks at each step. The workers of a rank return their batches in turns."""
    found = []
    for step in range(first, first + count):
        batches = [next(workers[step % len(workers)], None) for workers in grid]
        if not any(batch is not None for batch in batches):
            break
        found.append(sorted(row for one in batches if one is not None for row in one["id"].to_pylist()))
    return found


def states(grid: Grid) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(one.state)) for workers in grid for one in workers]


def arguments(draw: random.Random, count: int) -> dict[str, Any]:
    how: dict[str, Any] = {"elastic": count, "shuffle": draw.choice([None, True, "blocks"])}
    how |= {"uneven": draw.choice(["keep", "drop", "pad"]), "batch_mode": draw.choice(["keep", "drop"])}
    how |= {"prefetch": draw.choice([0, None, 3])}
    if how["shuffle"] is True:
        how["shuffle_buffer"] = draw.choice([1, 50, 400])
    if draw.random() < 0.2:
        how["filters"] = [("id", ">=", 0), ("text", "!=", "y")]  # the records are decoded before the shuffle
    if draw.random() < 0.2:
        how["columns"] = ["id"]
    return how


@settings(max_examples=max(10, settings().max_examples // 4))
@given(seed=st.integers(0, 1 << 32))
def test_the_steps_are_the_same_for_any_numbers_of_ranks_and_workers(
    paths: dict[Any, str], seed: int
) -> None:
    draw = random.Random(seed)
    total, codec = draw.choice(SIZES), draw.choice([None, "gzip"])
    path, count, rows = paths[total, codec], draw.choice([1, 2, 6, 12, 24]), draw.choice([1, 2, 5])
    ranks = [one for one in range(1, count + 1) if count % one == 0]
    how = arguments(draw, count)
    expected = steps(start(path, 1, 1, rows, **how))
    every = [row for step in expected for row in step]
    if how["batch_mode"] == "keep":
        length = {"keep": total, "drop": total // count * count, "pad": -(-total // count) * count}
        assert len(every) == length[how["uneven"]]
        assert len(set(every)) == min(total, len(every))
    grid = start(path, draw.choice(ranks), draw.choice([1, 2, 3]), rows, **how)
    assert max(sum(map(len, workers)) for workers in grid) == len(expected)
    assert sum(one.rows or 0 for workers in grid for one in workers) == len(every)
    assert steps(grid) == expected

    found: list[list[int]] = []
    given = None
    for _ in range(2):
        grid = start(path, draw.choice(ranks), draw.choice([1, 2, 3]), rows, given, **how)
        first = draw.choice([0, 1, 3, 7])
        found += steps(grid, 0, first)
        if draw.random() < 0.5:  # each worker continues with its own state, as those of a StatefulDataLoader
            plan = grid[0][0]._plan
            grid = [
                [
                    Batches(plan, 1, (rank, len(grid)), (worker, len(workers)), one.state)
                    for worker, one in enumerate(workers)
                ]
                for rank, workers in enumerate(grid)
            ]
            found += steps(grid, first, 2)
        given = states(grid)
        draw.shuffle(given)
    grid = start(path, draw.choice(ranks), draw.choice([1, 2]), rows, given, **how)
    assert found + steps(grid) == expected


def test_another_batch_size_continues_in_the_same_order(paths: dict[Any, str]) -> None:
    path, how = paths[403, None], {"elastic": 4, "shuffle": True, "seed": 1, "shuffle_buffer": 40}
    every = [one["id"].to_pylist() for one in iter_batches(path, 4, epoch=1, **how)]
    grid = start(path, 2, 2, 5, **how)
    found = steps(grid, 0, 7)
    batches = iter_batches(path, 4, epoch=1, start=states(grid), **how)
    assert found == [sorted(chain(*every[at * 5 : at * 5 + 5])) for at in range(7)]
    assert [one["id"].to_pylist() for one in batches] == every[35:]


def test_sequences_that_cannot_be_read_are_refused(paths: dict[Any, str]) -> None:
    path = paths[403, None]

    def error(**how: Any) -> TFRecordError:
        with pytest.raises(TFRecordError) as raised:
            iter_batches(path, **{"batch_size": 24, "elastic": 24, **how})
        return raised.value

    assert "read 1, 2, 3, 4, 6, 8, 12 or 24 shards" in str(error(shard=(0, 5)))
    assert [tuple(one)[:2] for one in error(batch_size=30).remedies] == [
        ("batch_size", 24),
        ("batch_size", 48),
    ]
    assert [tuple(one)[:2] for one in error(batch_size=5, shard=(0, 2)).remedies] == [("batch_size", 12)]
    assert "more sequences than there are rows" in str(error(elastic=404))
    assert error(batch_size=1024, batch_mode="auto").remedies[0][:2] == ("batch_mode", "keep")
    collection = dd.from_pandas(pd.DataFrame({"id": range(9)}), npartitions=3)
    with pytest.raises(TFRecordError, match="needs a path"):
        iter_batches(collection, 2, elastic=2)


def test_states_that_do_not_belong_together_are_refused(paths: dict[Any, str]) -> None:
    path, how = paths[403, None], {"elastic": 6, "shuffle": True, "seed": 1}

    def error(start: Any, size: int = 6, **others: Any) -> str:
        with pytest.raises(TFRecordError) as raised:
            iter_batches(path, size, epoch=1, start=start, **{**how, **others})
        return str(raised.value)

    grid = start(path, 2, 2, 1, **how)
    steps(grid, 0, 3)
    given = states(grid)
    assert "state of shard 1 of 2 is missing" in error(given[:2])
    assert "state of shard 0, part 1 of 2 is missing" in error([given[0], *given[2:]])
    next(grid[1][1])
    assert "states of different steps" in error([*given[:2], *states(grid)[2:]])
    assert "different states of one part" in error([*given, *states(grid)])
    assert "elastic=6" in error(given, elastic=3)
    assert "elastic=6" in error(given, elastic=None)
    assert "uneven='keep'" in error(given, uneven="drop")
    plan = plan_batches(path, 6, surface=iter_batches, **how)
    with pytest.raises(TFRecordError, match="worker 1 of 2 was taken with batch_size=3") as raised:
        Batches(plan, 1, (0, 2), (1, 2), given[1])
    [remedy] = raised.value.remedies
    plan_of_worker = plan_batches(path, remedy.value, surface=iter_batches, **how)
    assert len(Batches(plan_of_worker, 1, (0, 2), (1, 2), given[1])) == len(grid[0][1]) - 1
    with pytest.raises(TFRecordError, match="belongs to shard 0, and not to shard 1"):
        Batches(plan, 1, (1, 2), (1, 2), given[1])


def test_parts_that_left_out_a_batch_are_refused(paths: dict[Any, str]) -> None:
    """Part 0 has returned the steps 0 and 3, and no part the steps 1 and 2."""
    path, how = paths[97, None], {"elastic": 2}
    [parts] = grid = start(path, 1, 3, 1, **how)
    next(parts[0])
    next(parts[0])
    plan = parts[0]._plan
    for workers in (1, 2, 3):
        with pytest.raises(TFRecordError, match="states of different steps of shard 0"):
            Batches(plan, 1, (0, 1), (0, workers), states(grid))
    next(parts[1])
    next(parts[2])
    assert len(Batches(plan, 1, start=states(grid))) == 45


@pytest.mark.parametrize("prefetch", [None, 0])
@pytest.mark.parametrize("shuffle", [False, True, "blocks"])
def test_sequences_of_one_rank_read_a_piece_that_they_share_once(
    paths: dict[Any, str], monkeypatch: pytest.MonkeyPatch, shuffle: Any, prefetch: Any
) -> None:
    read, original = list[int](), DatasetSource.read_encoded

    def recorded(source: DatasetSource, piece: int, *others: Any) -> Any:
        read.append(piece)
        return original(source, piece, *others)

    monkeypatch.setattr(DatasetSource, "read_encoded", recorded)
    batches = iter_batches(paths[403, "gzip"], 80, elastic=40, shuffle=shuffle, prefetch=prefetch)
    found = [row for batch in batches for row in batch["id"].to_pylist()]
    assert sorted(found) == list(range(403))
    assert len(read) > 3
    assert sorted(read) == sorted(set(read))


def test_large_blocks_of_many_sequences_cause_a_warning(tmp_path: Path) -> None:
    """A gzip file of another tool is one block, which cannot be read in parts."""
    rows = 600
    source = tmp_path / "source"
    dask_tfrecord.to_tfrecord(pa.table({"id": range(rows), "bytes": [os.urandom(90)] * rows}), source)
    files = {f"{number}.gz": path.read_bytes() for number, path in enumerate(source.glob("part-*"))}
    for name, content in {**files, "again.gz": b"".join(files.values())}.items():
        (tmp_path / name).write_bytes(gzip.compress(content, 0))
    paths = [str(path) for path in tmp_path.glob("*.gz")]
    with pytest.warns(RemedyWarning, match="keeps up to 2 blocks in memory at the same time") as caught:
        batches = iter_batches(paths, 24, elastic=8)
    assert sorted(row for one in batches for row in one["id"].to_pylist()) == sorted([*range(rows)] * 2)
    [remedy] = caught[0].message.remedies
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iter_batches(paths, 24, **{remedy.keyword: remedy.value})
        iter_batches(source, 24, elastic=8)
