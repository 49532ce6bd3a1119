"""Provide a PyTorch batch sampler that shuffles the rows within groups of blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import Sampler

from dask_tfrecord import arguments
from dask_tfrecord.arguments import LastBatch, Uneven
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.feed.epoch_order import (
    Order,
    OrderedRows,
    Plan,
    Prefetch,
    checked_ranks,
    checked_shard,
    total_size,
)
from dask_tfrecord.feed.record_table import RecordTable
from dask_tfrecord.feed.resume_position import (
    Beginning,
    State,
    begin,
    check_sealed,
    checked_states,
    describe,
    divide_parts,
    epoch_of,
    sealed,
)
from dask_tfrecord.public_functions import calling, public_function
from dask_tfrecord.row_selection import Numbers


class BlockSampler(Sampler[Numbers]):
    """Sample batches for a PyTorch DataLoader in the order of `RecordTable.block_order`.

    Use the sampler as in ``DataLoader(dataset, batch_sampler=BlockSampler(dataset.table, 256),
    collate_fn=dataset.collate)``.

    With this sampler, a table reads and decompresses each block about once per epoch. With a uniformly random
    order, a table reads and decompresses a block for almost every row of a compressed file.

    Parameters
    ----------
    table : RecordTable
        The `RecordTable` whose rows are sampled. For a `TFRecordTable`, pass the attribute ``table``.
    batch_size : int
        The number of rows in each batch.
    seed : int, default 0
        The seed of the random order.
    uneven : "drop", "pad" or "keep", default "drop"
        What to do if the rows cannot be divided equally among the ranks. "drop" leaves out rows, and "pad"
        repeats rows, so that every rank makes the same number of steps. The number of rows that "drop" or
        "pad" affects is smaller than the number of ranks. "keep" returns every row once.
    batch_mode : "keep" or "drop", default "keep"
        What to do if the last batch of a rank has fewer rows than ``batch_size``. "keep" returns the
        incomplete last batch, and "drop" omits that batch.
    rank, world_size : int, optional
        The index of this process, and the number of processes. By default, both values come from
        `torch.distributed` when the iteration begins.
    workers : int, default 0
        The ``num_workers`` of the DataLoader, which passes the batches to its workers in turn. The sampler
        orders the batches so that no two workers read the same blocks.

    Notes
    -----
    Each iteration begins the next epoch, which has a different order. The method `set_epoch` chooses the
    epoch of the next iteration. ``state_dict`` and ``load_state_dict`` resume an epoch, even if the numbers
    of ranks and workers change. ``state_dict`` and ``load_state_dict`` work with `torchdata`. An iteration
    that continues from a loaded state keeps the epoch of the state. If `set_epoch` chooses another epoch, the
    chosen epoch applies to the iteration after the resumed one.

    Lightning replaces the samplers of distributed runs. With Lightning, pass
    ``use_distributed_sampler=False`` to the ``Trainer``.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> from dask_tfrecord.feed.torch import BlockSampler, TFRecordTable
    >>> from torch.utils.data import DataLoader
    >>> ddf = dd.from_dict({"x": [1, 2, 3]}, npartitions=1)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "train")
    >>> dataset = TFRecordTable("train")
    >>> sampler = BlockSampler(dataset.table, 2, seed=7)
    >>> loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=dataset.collate)
    >>> sorted(value for batch in loader for value in batch["x"].tolist())
    [1, 2, 3]
    """

    @public_function
    def __init__(
        self,
        table: RecordTable,
        batch_size: int,
        *,
        seed: int = 0,
        uneven: Uneven = "drop",
        batch_mode: LastBatch = "keep",
        rank: int | None = None,
        world_size: int | None = None,
        workers: int = 0,
    ) -> None:
        if not isinstance(table, RecordTable):
            problem = f"table= is a {type(table).__name__}, not a RecordTable"
            raise TFRecordError(problem, "pass the attribute `table` of a TFRecordTable")
        self._shard = checked_ranks(rank, world_size)
        arguments.number("batch_size", batch_size)
        arguments.count("workers", workers, 0)
        arguments.choice("batch_mode", batch_mode, get_args(LastBatch))
        arguments.choice("uneven", uneven, get_args(Uneven))
        self._table = table
        counts = np.diff(table.block_starts).tolist()
        source = _TableSource(table.version, table.fingerprint, counts, table.schema)
        self._plan = Plan(
            cast(Any, source),
            batch_size,
            batch_mode,
            "blocks",
            seed,
            1,
            uneven,
            Prefetch(),
            BlockSampler.__init__,
        )
        self._workers = max(1, workers)
        # The epoch of the next iteration, and the loaded states from which the next iteration continues.
        self._next: tuple[int, list[State]] = 0, []
        # The epoch after the loaded states.
        self._following = 0
        # The newest iteration, or None until the first iteration begins.
        self._running: _Running | None = None
        len(self)  # This call raises an error if an argument is wrong.

    def _begin(self, epoch: int, states: Sequence[State] = ()) -> list[Beginning]:
        """Return the rows of each worker in an epoch, or the rows that remain after ``states``."""
        parts = [(worker, self._workers) for worker in range(self._workers)]
        with calling(BlockSampler.__init__):
            shard, order = checked_shard(self._shard or distributed_shard() or (0, 1)), self._order(epoch)
            begun = [begin(self._plan, order, shard, part, states) for part in parts]
        if self._takes_turns(begun):
            return begun
        # The states were taken with another batch size, which divided the rows at other multiples.
        spans = [span for one in begun for span in one.spans]
        return [divide_parts(self._plan, order, begun[0].shard, spans, part) for part in parts]

    def _takes_turns(self, begun: list[Beginning]) -> bool:
        """Return whether only the last batch is incomplete if the workers return their batches in turn."""
        sizes = [total_size(one.spans) for one in begun]
        batches = [-(-size // self._plan.batch_size) for size in sizes]
        *rests, last = [size % self._plan.batch_size for size in sizes]
        return (
            not any(rests) and (not last or batches[-1] == max(batches)) and max(batches) - min(batches) < 2
        )

    def _order(self, epoch: int) -> Order:
        return self._table.epoch_order(self._plan.seed, epoch)

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch."""
        return self._count(total_size([span for one in self._begin(0) for span in one.spans]))

    def _count(self, rows: int) -> int:
        full, rest = divmod(rows, self._plan.batch_size)
        return full + (rest > 0 and self._plan.batch_mode == "keep")

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. Each epoch has a different row order."""
        arguments.number("epoch", epoch, 0)
        resumed, states = self._next
        if states:
            self._following = resumed + 1 if epoch == resumed else epoch
            return
        self._next = epoch, []
        if self._running is not None and self._running.is_over:
            self._running = None

    def state_dict(self) -> State:
        """Return the position of the newest iteration as a JSON-compatible dict.

        A DataLoader with workers requests batches from the sampler ahead of time. To save the position of a
        DataLoader with workers, use the state of torchdata's ``StatefulDataLoader``.
        """
        epoch, states = self._next
        if self._running is not None:
            parts, ended, following = self._running.parts_of_state(self._plan), self._running.ended, epoch
        else:
            parts = [describe(self._plan, epoch, one, one.spans) for one in self._begin(epoch, states)]
            ended, following = False, self._following if states else epoch + 1
        return sealed({"parts": parts, "ended": ended, "following": following})

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Make the next iteration continue at the position that `state_dict` returned.

        If the number of ranks has changed, pass a list of the states of all ranks. The states may come from
        `state_dict` or from torchdata's `StatefulDataLoader`.

        Raises
        ------
        TFRecordError
            If ``state`` is not a valid state, or was saved with another table or other arguments.
        """
        given = state if isinstance(state, list | tuple) else [state]
        found = [_state_in(one) for one in given]
        parts = [part for one in found for part in one["parts"]]
        epoch = epoch_of(parts)
        with calling(BlockSampler.__init__):
            _, states = checked_states(self._plan, parts, epoch)
        self._following = found[0]["following"]
        self._next = (self._following, []) if all(one["ended"] for one in found) else (epoch, states)
        self._running = None

    def __iter__(self) -> Iterator[Numbers]:
        epoch, states = self._next
        self._next = self._following if states else epoch + 1, []
        order = self._order(epoch)
        # The DataLoader assigns batch k to worker k % workers. The parts with the most batches come first.
        # The epoch ends with the last batch of the last part, which may be incomplete.
        parts = sorted(
            ((one, order.rows(one.spans, self._table.block_starts)) for one in self._begin(epoch, states)),
            key=lambda part: -self._batches(part[1]),
        )
        size = self._plan.batch_size
        running = self._running = _Running(epoch, parts, [0] * len(parts))
        try:
            for number in range(self._count(sum(len(rows.numbers) for _, rows in parts))):
                turn, worker = divmod(number, self._workers)
                running.returned[worker] = (turn + 1) * size
                yield parts[worker][1].numbers[turn * size : (turn + 1) * size]
            running.ended = True
        finally:
            running.is_over = True

    def _batches(self, rows: OrderedRows) -> int:
        return -(-len(rows.numbers) // self._plan.batch_size)


class _TableSource(NamedTuple):
    """The properties of the sampled table with which states are created and checked."""

    version: int | None
    fingerprint: str
    counts: list[int]
    schema: pa.Schema


@dataclass
class _Running:
    """A running iteration: the epoch, the rows of each part, and how many rows of each part were returned.

    ``ended`` is True after the last batch, and ``is_over`` also if the iteration was given up before.
    """

    epoch: int
    parts: list[tuple[Beginning, OrderedRows]]
    returned: list[int]
    ended: bool = False
    is_over: bool = False

    def parts_of_state(self, plan: Plan) -> list[State]:
        return [
            describe(plan, self.epoch, begun, rows.after(count))
            for (begun, rows), count in zip(self.parts, self.returned, strict=True)
        ]


def _state_in(state: Any) -> State:
    """Return the `BlockSampler` state in ``state``, which may be the state of a `StatefulDataLoader`."""
    if isinstance(state, dict) and "_iterator_finished" in state:
        main = state["_snapshot"]["_main_snapshot"] if "_snapshot" in state else state
        state = None if state.get("_steps_since_snapshot") else main["_index_sampler_state"]
    return check_sealed(state, ("parts", "ended", "following"), "BlockSampler")


def distributed_shard() -> tuple[int, int] | None:
    """Return the rank and the number of ranks, or None if `torch.distributed` is not initialized."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None
