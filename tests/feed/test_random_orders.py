"""Random orders: every order is as likely as any other, and no order depends on another one.

Modules: feed.rows.epoch_order, feed.keras, feed.tensorflow.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import count, permutations
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from interrupted import interrupt

from dask_tfrecord import TFRecordError, to_tfrecord
from dask_tfrecord.feed import RecordTable, iter_batches
from dask_tfrecord.feed.rows.epoch_order import make_order
from dask_tfrecord.feed.rows.resume_position import CHECKSUM

LARGE = 1_100_000  # the size of a row that has a block of its own


def check_uniform(orders: Iterable[tuple[int, ...]], rows: int) -> None:
    """Every permutation is found about equally often. The bound is that of one test in a million."""
    counts, every = Counter(orders), list(permutations(range(rows)))
    assert set(counts) <= set(every)
    expected = sum(counts.values()) / len(every)
    chi = sum((counts[order] - expected) ** 2 / expected for order in every)
    degrees = len(every) - 1
    assert chi < degrees + 5 * (2 * degrees) ** 0.5 + 12, counts


@pytest.mark.parametrize(("rows", "vary"), [(2, "seed"), (3, "epoch"), (4, "seed")])
def test_the_order_of_blocks_is_any_permutation(tmp_path: Path, rows: int, vary: str) -> None:
    to_tfrecord(pa.table({"id": range(rows), "image": [bytes(LARGE)] * rows}), tmp_path, columnar=["id"])
    table = RecordTable(tmp_path)
    orders = [
        table.block_order(**{"seed": 5, "epoch": 0} | {vary: number})
        for number in range(60 * factorial(rows))
    ]
    check_uniform((tuple(order.tolist()) for order in orders), rows)
    for number in range(40):
        how = {"shuffle": "blocks" if vary == "seed" else "buffer", "seed": number}
        [*batches] = iter_batches(tmp_path, 1, columns="id", **how)
        orders.append([batch["id"][0].as_py() for batch in batches])
    if rows == 3:
        assert len({*map(tuple, orders[-40:])}) == 6


@pytest.mark.parametrize("pieces", ["of one row", "of all rows"])
@pytest.mark.parametrize("rows", [2, 3, 4])
def test_the_order_of_a_buffer_is_any_permutation(rows: int, pieces: str) -> None:
    counts = [1] * rows if pieces == "of one row" else [rows]
    found = []
    for seed in range(60 * factorial(rows)):
        order = make_order(len(counts), counts, seed, 0, buffer=rows)
        files = np.arange(rows) if len(counts) == 1 else order.pieces
        found.append(tuple(files[order.permutation(0, rows)].tolist()))
    check_uniform(found, rows)


def test_the_orders_of_epochs_and_windows_do_not_depend_on_each_other() -> None:
    """Streams that share a key would give equal permutations."""
    found = set()
    for seed in range(10):
        for epoch in range(10):
            order = make_order(20, [1] * 20, seed, epoch, buffer=20)
            found.add(tuple(order.pieces.tolist()))
            found |= {tuple(order.permutation(start, 20).tolist()) for start in (0, 1, 2)}
    assert len(found) == 400


@pytest.mark.tensorflow
@pytest.mark.parametrize("rows", [2, 3])
def test_keras_has_any_permutation_in_its_epochs(tmp_path: Path, rows: int) -> None:
    keras = pytest.importorskip("dask_tfrecord.feed.keras")
    to_tfrecord(pa.table({"id": range(rows)}), tmp_path)
    found = []
    batches = keras.TFRecordPyDataset(tmp_path, 1, "id", shuffle=True)
    for _ in range(60 * factorial(rows)):
        found.append(tuple(batches[at].item() for at in range(rows)))
        batches.on_epoch_end()
    check_uniform(found, rows)
    batches.on_epoch_end()
    order = []
    for at in range(rows):  # `fit(steps_per_epoch=)` ends epochs before the last batch, and then goes on
        batches.on_epoch_begin()
        order.append(batches[at].item())
        if at + 1 < rows:
            batches.on_epoch_end()
    assert sorted(order) == list(range(rows))


def test_a_weak_shuffle_of_sorted_rows_warns(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(10), 1200)
    texts = pa.array(["x" * 1000] * len(labels))
    rng = np.random.default_rng(0)
    tables = {
        "sorted": (
            pa.table({"label": labels, "text": texts}),
            {"write_options": {"max_rows_per_file": 1200}},
        ),
        "partitions": (pa.table({"label": labels, "text": texts}), {"partition_on": "label"}),
        "random": (
            pa.table({"label": rng.permutation(labels), "text": texts}),
            {"write_options": {"max_rows_per_file": 1200}},
        ),
        "by id": (
            pa.table({"id": range(12_000), "text": texts}),
            {"write_options": {"max_rows_per_file": 1200}},
        ),
    }
    for name, (table, how) in tables.items():
        to_tfrecord(table, tmp_path / name, **how)
    for name in ("sorted", "partitions"):
        with pytest.warns(UserWarning, match="sorted by 'label'.*shuffle=\"blocks\""):
            iter_batches(tmp_path / name, shuffle=True, seed=1, shuffle_buffer=1000)
        iter_batches(tmp_path / name, shuffle=True, seed=1)
        iter_batches(tmp_path / name, shuffle="blocks")
    for name in ("random", "by id"):
        iter_batches(tmp_path / name, shuffle=True, seed=1, shuffle_buffer=1000)


@pytest.mark.parametrize("goes_on", ["the iterator", "a resumed iterator"])
@pytest.mark.parametrize("feed", ["plain", "elastic"])
def test_an_interrupt_at_any_line_loses_no_batch(tmp_path: Path, feed: str, goes_on: str) -> None:
    """Ctrl-C raises between two lines of Python, in the iterator and in all that it calls."""
    to_tfrecord(pa.table({"id": range(40)}), tmp_path)
    how: dict[str, Any] = {"shuffle": True, "seed": 3, "shuffle_buffer": 16}
    how |= {"elastic": 4} if feed == "elastic" else {}
    [*expected] = iter_batches(tmp_path, 8, **how)
    for point in count():
        batches = iter_batches(tmp_path, 8, prefetch=0, **how)
        found = [next(batches)]
        where = interrupt(lambda batches=batches, found=found: found.append(next(batches)), point)
        if where is None:
            break
        rest = batches if goes_on == "the iterator" else iter_batches(tmp_path, 8, start=batches.state, **how)
        assert [*found, *rest] == expected, where
    assert point > 30


def test_a_changed_state_is_refused(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"id": range(103)}), tmp_path)
    batches = iter_batches(tmp_path, 10, shuffle=True, seed=3)
    next(batches)
    state = batches.state
    rest = [
        batch["id"].to_pylist() for batch in iter_batches(tmp_path, 10, shuffle=True, seed=3, start=state)
    ]
    assert rest == [batch["id"].to_pylist() for batch in batches]
    changes = [{key: value} for key in state for value in (None, [], {}, "x", True, -1)]
    changes += [{"remaining": [[[0, 103], [0, 103]]]}, {"remaining": [[[0, 50]]]}, {"epoch": 1}, {"extra": 1}]
    for change in changes:
        if state | change == state:
            continue
        with pytest.raises(TFRecordError) as caught:
            iter_batches(tmp_path, 10, shuffle=True, seed=3, start={**state, **change})
        assert caught.value.advice or caught.value.remedies, change
    with pytest.raises(TFRecordError, match="state"):
        iter_batches(
            tmp_path, 10, shuffle=True, seed=3, start={key: state[key] for key in state if key != CHECKSUM}
        )
