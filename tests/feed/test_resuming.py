"""A state resumes with other numbers of shards and parts, and on the version of the dataset that it names.

Modules: feed.rows.resume_position, feed.rows.epoch_order.
"""

import json
import logging
import random
import shutil
from collections.abc import Iterator
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
from dask_tfrecord.feed.batches import Batches, iter_batches
from dask_tfrecord.feed.rows.epoch_order import plan_batches

ROWS = 403


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with small_blocks(window_bytes=3000, group_blocks=4):
        yield


def frame(rows: int, first: int = 0) -> pd.DataFrame:
    lists = pd.array([[i / 2] * (i % 4) for i in range(rows)], pd.ArrowDtype(pa.list_(pa.float32())))
    return pd.DataFrame({"id": np.arange(first, first + rows), "x": lists})


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    ddf = dd.from_pandas(frame(ROWS), npartitions=9)
    found: dict[str, Any] = {"collection": ddf}
    for name, options in {"plain": {}, "gzip": {"compression": "gzip"}}.items():
        found[name] = str(tmp_path_factory.mktemp("data") / name)
        dask_tfrecord.to_tfrecord(ddf, found[name], **options)
    return found


def ids(batches: Any, count: int = 10**9) -> list[int]:
    """Return the rows of the next batches, or of all batches."""
    return [row for _, batch in zip(range(count), batches, strict=False) for row in batch["id"].to_pylist()]


def check_elastic_run(sources: dict[str, Any], seed: int) -> None:
    """Continue an epoch several times with random numbers of shards and parts, until all rows are read."""
    draw = random.Random(seed)
    name = draw.choice(["plain", "plain", "gzip", "collection"])
    uneven = "keep" if name == "collection" else draw.choice(["keep", "keep", "drop", "pad"])
    shuffle = draw.choice([None, True, "buffer"] if name == "collection" else [False, True, "blocks"])
    options: dict[str, Any] = {"shuffle": shuffle, "uneven": uneven}
    options |= {"prefetch": draw.choice([0, 2])}
    if shuffle in (True, "buffer"):
        options["shuffle_buffer"] = draw.choice([1, 40, 1000])

    def begin(ranks: int, workers: int, start: Any = None) -> list[Batches]:
        plan = plan_batches(sources[name], batch_size, surface=iter_batches, batch_mode=mode, **options)
        shares = [((rank, ranks), (worker, workers)) for rank in range(ranks) for worker in range(workers)]
        return [Batches(plan, 2, *share, start) for share in shares]

    found: list[int] = []
    states, uneven_rows = None, 0
    for _ in range(draw.choice([1, 2, 3])):
        batch_size, mode = draw.choice([1, 7, 30]), draw.choice(["keep", "keep", "auto"])
        ranks, workers = draw.choice([1, 2, 3, 5, 8]), draw.choice([1, 2, 3])
        uneven_rows += ranks - 1
        running = begin(ranks, workers, states)
        for one in running:
            found += ids(one, draw.choice([0, 1, 3, 20]))
        states = [json.loads(json.dumps(one.state)) for one in running]
        if draw.random() < 0.2:  # also the states that have resumed without reading anything
            states = [one.state for one in begin(ranks, workers, states)]
        draw.shuffle(states)
    continued = [ids(one) for one in running]
    assert [ids(one) for one in begin(ranks, workers, states)] == continued
    rest = [row for one in begin(draw.choice([1, 4]), draw.choice([1, 5]), states) for row in ids(one)]
    for rows in ([row for one in continued for row in one], rest):
        every = sorted(found + rows)
        if uneven == "keep":
            assert every == list(range(ROWS))
        assert set(every) <= set(range(ROWS))
        assert ROWS - len(set(every)) <= (uneven_rows + 3 if uneven == "drop" else 0)
        assert len(every) - len(set(every)) <= (uneven_rows + 3 if uneven == "pad" else 0)


@settings(max_examples=max(10, settings().max_examples // 4))
@given(seed=st.integers(0, 1 << 32))
def test_every_row_once_with_other_numbers_of_shards_and_parts(sources: dict[str, Any], seed: int) -> None:
    check_elastic_run(sources, seed)


def test_the_states_of_one_shard_suffice_for_other_parts(sources: dict[str, Any]) -> None:
    plan = plan_batches(sources["plain"], 7, surface=iter_batches, shuffle=True, seed=1, shuffle_buffer=40)
    parts = [Batches(plan, 0, (1, 3), (part, 2)) for part in range(2)]
    found = ids(parts[0], 3) + ids(parts[1], 5)
    states = [one.state for one in parts]
    for part in range(5):
        found += ids(Batches(plan, 0, (1, 3), (part, 5), states))
    assert sorted(found) == sorted(ids(Batches(plan, 0, (1, 3))))
    for wrong in (states[:1], [states[0], states[0]]):
        with pytest.raises(TFRecordError, match="state of shard 1, part 1 of 2 is missing"):
            Batches(plan, 0, (1, 3), (0, 5), wrong)


def test_states_that_do_not_belong_together_are_refused(sources: dict[str, Any]) -> None:
    def running(count: int, start: Any = None, **options: Any) -> list[Batches]:
        return [
            iter_batches(
                sources["plain"],
                7,
                start=start,
                shard=(shard, count),
                **{"shuffle": True, "seed": 1, **options},
            )
            for shard in range(count)
        ]

    first = running(3)
    ids(first[0], 2)
    states = [one.state for one in first]
    second = [one.state for one in running(2, states)]
    third = [one.state for one in running(3, second)]
    assert iter_batches(sources["plain"], 7, shuffle=True, seed=1, start=second).rows == ROWS - 14
    ids(first[1], 1)
    for wrong, message in (
        (states[:2], "state of shard 2 of 3 is missing"),
        (states[:1], "state of shard 1 of 3 is missing"),
        ([*states[:2], third[2]], "different divisions into shards"),
        ([*states, second[0]], "numbers of shards: shard 0 of 2, shard 0 of 3, shard 1 of 3, shard 2 of 3"),
        ([*states, first[1].state], "two different states of shard 1"),
        ([], "list of states is empty"),
        ([states], "is not a state"),
    ):
        with pytest.raises(TFRecordError, match=message):
            iter_batches(sources["plain"], 7, shuffle=True, seed=1, start=wrong)
    for options, remedy in (
        ({"seed": 2}, ("seed", 1)),
        ({"shuffle": "blocks"}, ("shuffle", "buffer")),
        ({"shuffle_buffer": 9}, ("shuffle_buffer", 65_536)),
        ({"epoch": 3}, ("epoch", 0)),
    ):
        with pytest.raises(TFRecordError) as raised:
            running(3, states, **options)
        assert [tuple(one)[:2] for one in raised.value.remedies] == [remedy]


def test_states_of_shares_that_overlap_are_refused(sources: dict[str, Any]) -> None:
    """Parts are cut after whole batches, and ``uneven`` moves the ends of shards."""
    plans = [
        plan_batches(sources["plain"], size, surface=iter_batches, shuffle=True, seed=1, uneven=uneven)
        for size, uneven in ((7, "keep"), (9, "keep"), (7, "pad"))
    ]
    parts = [Batches(plan, 0, (0, 1), (part, 2)).state for part, plan in enumerate(plans[:2])]
    with pytest.raises(TFRecordError, match="different divisions into shard 0, parts"):
        Batches(plans[0], 0, (0, 2), start=parts)
    shards = [Batches(plan, 0, (shard, 2)).state for shard, plan in enumerate((plans[0], plans[2]))]
    with pytest.raises(TFRecordError, match="different divisions into shards"):
        Batches(plans[0], 0, (0, 3), start=shards)


def test_a_last_whole_batch_is_read_after_resuming_and_dropped_rows_do_not_come_back(
    sources: dict[str, Any],
) -> None:
    def start(size: int, **options: Any) -> Batches:
        return iter_batches(sources["plain"], size, batch_mode="drop", **options)

    size = ROWS // 13
    assert 13 * size == ROWS
    running = start(size)
    read = ids(running, 12)
    assert read + ids(start(size, start=running.state)) == list(range(ROWS))
    shards = [start(30, shard=(shard, 3)) for shard in range(3)]
    assert [len(ids(one)) for one in shards] == [120, 120, 120]
    assert ids(start(30, start=[one.state for one in shards])) == []


def test_an_epoch_ends_on_its_version_after_an_append(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dask_tfrecord")
    path = tmp_path / "data"

    def start(**options: Any) -> Batches:
        return iter_batches(path, 10, **{"shuffle": True, "seed": 1, **options})

    dask_tfrecord.to_tfrecord(frame(100), path)
    batches = start()
    found = ids(batches, 3)
    state = batches.state
    dask_tfrecord.to_tfrecord(frame(50, 100), path, append=True)
    assert ids(start(version=1, start=state)) == ids(batches)
    shards = [start(start=state, shard=(shard, 2)) for shard in range(2)]
    assert sorted(found + [row for one in shards for row in ids(one)]) == list(range(100))
    assert "continues with version 1 of the dataset, whose newest version is 2" in caplog.text
    assert sorted(ids(start(epoch=1))) == list(range(150))
    with pytest.raises(TFRecordError, match="to version 1 of this dataset; pass version=1 to continue"):
        start(version=2, start=state)
    dask_tfrecord.to_tfrecord(frame(10), path, overwrite=True, keep_versions=True)
    assert sorted(found + ids(start(start=state))) == list(range(100))
    dask_tfrecord.to_tfrecord(frame(100), path, overwrite=True)
    with pytest.raises(TFRecordError, match=r"version 1, which cannot be read.*; begin the next epoch"):
        start(start=state)
    few = start(filters=[("id", "<", 50)]).state
    with pytest.raises(TFRecordError, match="another dataset"):  # with as many rows
        start(filters=[("id", ">=", 50)], start=few)
    shutil.rmtree(path)
    for rows in (100, 10):
        dask_tfrecord.to_tfrecord(frame(rows), path, overwrite=True, keep_versions=True)
    with pytest.raises(TFRecordError, match="another dataset, or to version 1, which cannot be read"):
        start(start=state)  # of another version 1


@pytest.mark.parametrize("mode", ["keep", "drop"])
def test_parts_that_resume_with_another_batch_size_end_with_one_incomplete_batch(
    sources: dict[str, Any], mode: Any
) -> None:
    def plan(size: int) -> Any:
        return plan_batches(sources["plain"], size, surface=iter_batches, batch_mode=mode)

    parts = [Batches(plan(10), part=(number, 4)) for number in range(4)]
    first = [ids(part, 3) for part in parts]
    states = [part.state for part in parts]
    rest = [Batches(plan(16), part=(number, 4), start=states) for number in range(4)]
    sizes = [batch.num_rows for part in rest for batch in part]
    left = ROWS - sum(map(len, first))
    assert sizes == [16] * (left // 16) + ([left % 16] if mode == "keep" else [])
