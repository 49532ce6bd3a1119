"""`elastic=n`: equal global batches for every number of ranks and workers, before and after every resume.

Modules: feed.batches, feed.rows.epoch_order, feed.rows.resume_position, feed.rows.sequence_reader,
feed.torch, feed.tensorflow.
"""

import gzip
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from elastic_oracle import (
    Configuration,
    Elastic,
    check_chain,
    configuration,
    in_order,
    ranges,
)
from hypothesis import settings
from small_blocks import small_blocks

import dask_tfrecord
from dask_tfrecord import TFRecordError
from dask_tfrecord.errors import RemedyWarning
from dask_tfrecord.feed.batches import Batches, iter_batches
from dask_tfrecord.feed.rows import epoch_order
from dask_tfrecord.feed.rows.epoch_order import plan_batches
from dask_tfrecord.feed.rows.sources import DatasetSource

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning", "ignore:This DataLoader will create"
)

# The rows, the files, the options of the writer and those of the reader.
FORMS: dict[str, tuple[int, int, dict[str, Any], dict[str, Any]]] = {
    "plain": (403, 9, {}, {}),
    "gzip": (403, 5, {"compression": "gzip"}, {}),
    "tiny": (25, 2, {}, {}),
    "one row": (1, 1, {}, {}),
    "partitioned": (300, 3, {"partition_on": ["key"]}, {}),
    "filtered": (403, 4, {}, {"filters": [("id", ">=", 100)]}),
    "foreign gzip": (200, 3, {}, {}),
}
SHUFFLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "buffer": {"shuffle": True, "seed": 3, "shuffle_buffer": 96},
    "blocks": {"shuffle": "blocks", "seed": 3},
}


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with small_blocks(window_bytes=6000, group_blocks=4):
        yield


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("elastic")
    for form, (rows, files, options, _) in FORMS.items():
        lists = pd.array([[i / 2] * (i % 4) for i in range(rows)], pd.ArrowDtype(pa.list_(pa.float32())))
        frame = pd.DataFrame({"id": np.arange(rows), "key": np.arange(rows) % 2, "x": lists})
        dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=files), root / form, **options)
    (root / "foreign gzip" / "_tfrecord").rename(root / "away")  # gzip in one member cannot be divided
    for file in (root / "foreign gzip").glob("part-*"):
        file.write_bytes(gzip.compress(file.read_bytes()))
    return {form: str(root / form) for form in FORMS}


@pytest.fixture(scope="module")
def sizes(paths: dict[str, str]) -> dict[str, int]:
    return {form: len(all_rows(paths, form)) for form in FORMS}


def all_rows(paths: dict[str, str], form: str) -> list[int]:
    read: dict[str, Any] = FORMS[form][3]
    return dask_tfrecord.read_tfrecord(paths[form], **read).compute()["id"].tolist()


def ids(batch: Any) -> list[int]:
    return batch["id"].to_pylist()


def plan_of(paths: dict[str, str], config: Configuration, batch_size: int) -> Any:
    options = config.options | FORMS[config.form][3]
    return plan_batches(
        paths[config.form], batch_size, surface=iter_batches, elastic=config.sequences, **options
    )


def sequences_of(paths: dict[str, str], config: Configuration) -> list[list[int]]:
    """Read each sequence alone, and check which rows it has, and how far they are from their places."""
    every = {**config.options, "batch_mode": "keep", "prefetch": 0}
    config = Configuration(config.form, config.sequences, every, config.epoch)
    plan, count = plan_of(paths, config, 16), config.sequences
    found = [
        [row for batch in Batches(plan, config.epoch, (number, count)) for row in ids(batch)]
        for number in range(count)
    ]
    seed = config.options["seed"] if config.options["shuffle"] else None
    order = in_order(all_rows(paths, config.form), plan.source.counts, seed, config.epoch)
    places = ranges(len(order), count, config.options["uneven"])
    for rows, place in zip(found, places, strict=True):
        expected = [order[position] for position in place]
        if not config.options["shuffle"]:
            assert rows == expected
        assert sorted(rows) == sorted(expected)
        if config.options["shuffle"] in (True, "buffer"):
            window = max(1, config.options["shuffle_buffer"] // count) + max(plan.source.counts)
            position = {row: at for at, row in enumerate(expected)}
            assert all(abs(at - position[row]) < window for at, row in enumerate(rows))
    return found


def check_configuration(paths: dict[str, str], config: Configuration) -> None:
    """Compare each batch of each part of an epoch, and the rest of the epoch, with the oracle."""
    check_chain(lambda size: plan_of(paths, config, size), config, Elastic(sequences_of(paths, config)))


EXAMPLES = settings().max_examples


@pytest.mark.parametrize("seed", range(max(12, EXAMPLES // 4) if EXAMPLES < 500 else EXAMPLES))
def test_every_batch_of_a_chain_of_resumes_is_that_of_the_oracle(
    paths: dict[str, str], sizes: dict[str, int], seed: int
) -> None:
    check_configuration(paths, configuration(seed, [*FORMS], sizes))


@pytest.mark.parametrize("count", [1, 4])
def test_the_shuffle_buffer_counts_the_rows_of_all_sequences(
    paths: dict[str, str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_order, "WINDOW_BYTES", 1 << 20)  # only the rows limit a window
    options = {"shuffle": True, "seed": 3, "shuffle_buffer": 120, "uneven": "keep"}
    found = sequences_of(paths, Configuration("plain", count, options, 0))
    assert found != sequences_of(paths, Configuration("plain", count, options, 1))


# -- The same global batches for all ranks, workers and loaders ----------------------------------------------


def global_batches(loaders: list[Any], rows_of: Any) -> list[list[int]]:
    """Return the rows of the steps of all ranks."""
    steps = [[rows_of(batch) for batch in loader] for loader in loaders]
    assert len({len(one) for one in steps}) == 1
    return [sorted(row for batch in step for row in batch) for step in zip(*steps, strict=True)]


@pytest.mark.parametrize(
    ("shuffle", "ranks", "workers"),
    [
        ("plain", 2, 3),
        ("plain", 24, 0),
        ("buffer", 1, 3),
        ("buffer", 6, 1),
        ("blocks", 3, 0),
        ("blocks", 4, 1),
    ],
)
def test_a_data_loader_has_the_global_batches(
    paths: dict[str, str], shuffle: str, ranks: int, workers: int
) -> None:
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    from dask_tfrecord.feed.torch import TFRecordBatches

    how: dict[str, Any] = {"elastic": 24, **SHUFFLES[shuffle]}
    plan = plan_batches(paths["gzip"], 48, surface=iter_batches, columns=["id"], uneven="drop", **how)
    expected = [sorted(ids(batch)) for batch in Batches(plan, 1)]
    loaders = []
    for rank in range(ranks):
        batches = TFRecordBatches(paths["gzip"], 48 // ranks, ["id"], rank=rank, world_size=ranks, **how)
        batches.set_epoch(1)
        assert len(batches) == len(expected)
        loaders.append(data.DataLoader(batches, batch_size=None, num_workers=workers))
    assert global_batches(loaders, lambda batch: batch["id"].tolist()) == expected


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("shuffle", "ranks"), [("plain", 1), ("plain", 8), ("buffer", 2), ("buffer", 24), ("blocks", 3)]
)
def test_a_dataset_of_tensorflow_has_the_global_batches(
    paths: dict[str, str], shuffle: str, ranks: int
) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    how: dict[str, Any] = {"elastic": 24, "uneven": "drop", **SHUFFLES[shuffle]}
    plan = plan_batches(paths["gzip"], 48, surface=iter_batches, columns=["id"], **how)
    expected = [sorted(ids(batch)) for batch in Batches(plan, 0)]
    loaders = [
        tensorflow_dataset(paths["gzip"], 48 // ranks, "id", shard=(rank, ranks), **how)
        for rank in range(ranks)
    ]

    def rows(batch: Any) -> list[int]:
        column = batch["id"] if isinstance(batch, dict) else batch
        return column.numpy().tolist()

    assert global_batches(loaders, rows) == expected


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_one_sequence_has_the_order_of_the_plain_feed(paths: dict[str, str], shuffle: str) -> None:
    plain, elastic = (
        [*iter_batches(paths["plain"], 30, epoch=2, **SHUFFLES[shuffle], **how)]
        for how in ({}, {"elastic": 1})
    )
    assert elastic == plain


# -- What is refused ----------------------------------------------------------------------


Grid = list[list[Batches]]  # of each rank and worker


def grid_of(path: str, ranks: int, workers: int, each: int, **how: Any) -> Grid:
    """Begin the batches of each rank and worker. A step takes ``each`` rows of each sequence."""
    plan = plan_batches(path, each * how["elastic"] // ranks, surface=iter_batches, **how)
    return [
        [Batches(plan, 1, (rank, ranks), (worker, workers)) for worker in range(workers)]
        for rank in range(ranks)
    ]


def states_of(grid: Grid) -> list[dict[str, Any]]:
    return [one.state for workers in grid for one in workers]


@pytest.mark.parametrize(
    ("how", "fits"),
    [
        ({"shard": (0, 5)}, "read 1, 2, 3, 4, 6, 8, 12 or 24 shards"),
        ({"batch_size": 30}, [("batch_size", 24), ("batch_size", 48)]),
        ({"batch_size": 5, "shard": (0, 2)}, [("batch_size", 12)]),
        ({"batch_mode": "auto"}, [("batch_mode", "keep")]),
        ({"elastic": 404}, "more sequences than there are rows"),
        ({"elastic": 0}, "elastic"),
        ({"elastic": True}, "elastic"),
        ({"source": dd.from_dict({"id": range(9)}, npartitions=3)}, "needs a path"),
    ],
)
def test_an_error_names_what_fits_elastic(
    paths: dict[str, str], how: dict[str, Any], fits: str | list[tuple[str, Any]]
) -> None:
    with pytest.raises(TFRecordError) as caught:
        iter_batches(**{"source": paths["plain"], "batch_size": 24, "elastic": 24, **how})
    if isinstance(fits, str):
        assert fits in str(caught.value)
    else:
        assert [remedy[:2] for remedy in caught.value.remedies][: len(fits)] == fits


def test_states_that_do_not_belong_together_are_refused(paths: dict[str, str]) -> None:
    path, how = paths["plain"], {"elastic": 6, "shuffle": True, "seed": 1}

    def error(start: Any, size: int = 6, **others: Any) -> str:
        with pytest.raises(TFRecordError) as raised:
            iter_batches(path, size, epoch=1, start=start, **{**how, **others})
        return str(raised.value)

    grid = grid_of(path, 2, 2, 1, **how)
    for one, other in grid:  # the workers of a rank return its batches in turns
        next(one), next(other), next(one)
    given = states_of(grid)
    assert "state of shard 1 of 2 is missing" in error(given[:2])
    assert "state of shard 0, part 1 of 2 is missing" in error([given[0], *given[2:]])
    next(grid[1][1])
    assert "states of different steps" in error([*given[:2], *states_of(grid)[2:]])
    assert "different states of one part" in error([*given, *states_of(grid)])
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


def test_parts_that_left_out_a_batch_are_refused(paths: dict[str, str]) -> None:
    """Part 0 has returned the steps 0 and 3, and no part the steps 1 and 2."""
    path, how = paths["tiny"], {"elastic": 2}
    [parts] = grid = grid_of(path, 1, 3, 1, **how)
    next(parts[0])
    next(parts[0])
    plan = parts[0]._plan
    for workers in (1, 2, 3):
        with pytest.raises(TFRecordError, match="states of different steps of shard 0"):
            Batches(plan, 1, (0, 1), (0, workers), states_of(grid))
    next(parts[1])
    next(parts[2])
    assert len(Batches(plan, 1, start=states_of(grid))) == 9


@pytest.mark.parametrize("prefetch", [None, 0])
@pytest.mark.parametrize("shuffle", [False, True, "blocks"])
def test_sequences_of_one_rank_read_a_piece_that_they_share_once(
    paths: dict[str, str], monkeypatch: pytest.MonkeyPatch, shuffle: Any, prefetch: Any
) -> None:
    read, original = list[int](), DatasetSource.read_encoded

    def recorded(source: DatasetSource, piece: int, *others: Any) -> Any:
        read.append(piece)
        return original(source, piece, *others)

    monkeypatch.setattr(DatasetSource, "read_encoded", recorded)
    batches = iter_batches(paths["gzip"], 80, elastic=40, shuffle=shuffle, prefetch=prefetch)
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


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("mode", ["keep", "drop"])
def test_a_finished_epoch_resumes_as_finished(paths: dict[str, str], mode: Any, workers: int) -> None:
    """The 25 rows are in sequences of 8 and 9 rows, so with ``batch_mode="drop"`` one row is dropped."""
    plan = plan_batches(paths["tiny"], 3, surface=iter_batches, elastic=3, batch_mode=mode)
    running = [Batches(plan, part=(worker, workers)) for worker in range(workers)]
    assert sum(len(ids(batch)) for one in running for batch in one) == (25 if mode == "keep" else 24)
    states = [one.state for one in running]
    for ranks in (1, 3):
        again = plan_batches(paths["tiny"], 3 // ranks, surface=iter_batches, elastic=3, batch_mode=mode)
        assert [len(Batches(again, 0, (rank, ranks), start=states)) for rank in range(ranks)] == [0] * ranks
