"""Provide a batch sampler of PyTorch that shuffles the rows of groups of blocks."""

from collections.abc import Iterator
from typing import get_args

import torch
from torch.utils.data import Sampler

from dask_tfrecord import arguments
from dask_tfrecord.errors import Remedy, TFRecordError
from dask_tfrecord.feed.block_order import rows_of_spans
from dask_tfrecord.feed.epoch_order import LastBatch, Order, Span, Uneven, rows_of_part, total_size
from dask_tfrecord.feed.record_table import RecordTable
from dask_tfrecord.public_functions import public_function
from dask_tfrecord.random_access import Numbers


class BlockSampler(Sampler[Numbers]):
    """A batch sampler of PyTorch in the order of `RecordTable.block_order`, for ``DataLoader(dataset,
    batch_sampler=BlockSampler(dataset.table, 256), collate_fn=dataset.collate)``.

    With this order, a table reads and decompresses each block about once in an epoch. With a uniform order, a
    table reads and decompresses a block for almost every row of a compressed file.

    Parameters
    ----------
    table : RecordTable
        The table of the dataset. The table of a `TFRecordTable` is its attribute ``table``.
    batch_size : int
        The number of rows in each batch.
    seed : int, default 0
        The seed of the order.
    uneven : "drop", "pad" or "keep", default "drop"
        What happens if the rows cannot be divided equally among the ranks. "drop" omits, and "pad" repeats,
        fewer rows than there are ranks, so that every rank makes the same number of steps. "keep" returns
        every row once.
    batch_mode : "keep" or "drop", default "keep"
        What happens if the last batch of a rank has fewer rows than ``batch_size``. "keep" returns this
        smaller batch, and "drop" drops this smaller batch.
    rank, world_size : int, optional
        The number of this process and the number of all processes. By default, `torch.distributed` gives both
        numbers when the iteration begins.
    workers : int, default 0
        The ``num_workers`` of the DataLoader, which gives one batch after the other to its workers in turn.
        Each worker then gets batches of different blocks, so that no two workers read the same blocks.

    Notes
    -----
    Each iteration is the next epoch, in another order. The method `set_epoch` chooses the epoch of the next
    iteration. ``state_dict`` and ``load_state_dict`` resume an epoch, also with `torchdata`.

    Lightning replaces the samplers of distributed runs. Pass ``use_distributed_sampler=False`` to its
    ``Trainer``.

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
            raise TFRecordError(
                f"table= is a {type(table).__name__}, not a RecordTable",
                advice="pass the attribute `table` of a TFRecordTable",
            )
        if (rank is None) != (world_size is None):
            raise TFRecordError(
                "rank= and world_size= belong together",
                remedies=[Remedy("rank", 0), Remedy("world_size", 1, "read all rows")],
                function="",
            )
        arguments.count("batch_size", batch_size, 1)
        arguments.count("workers", workers, 0)
        arguments.choice("batch_mode", batch_mode, get_args(LastBatch))
        self._table = table
        self._batch_size = batch_size
        self._seed = seed
        self._uneven: Uneven = uneven
        self._is_dropped = batch_mode == "drop"
        self._shard = None if rank is None or world_size is None else (rank, world_size)
        self._workers = max(1, workers)
        self._next = 0, 0  # the epoch of the next iteration, and the number of batches that it leaves out
        self._position = 0, 0  # the epoch, and the number of its batches that were returned
        len(self)  # a wrong argument raises in this call

    def _spans(self, epoch: int) -> tuple[Order, list[Span]]:
        shard = self._shard or distributed_shard() or (0, 1)
        return self._table.epoch_spans(self._seed, epoch, shard, self._uneven)

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch."""
        full, rest = divmod(total_size(self._spans(0)[1]), self._batch_size)
        return full + (rest > 0 and not self._is_dropped)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. Each epoch has a different row order."""
        arguments.count("epoch", epoch, 0)
        if epoch != self._next[0]:  # the epoch of a loaded state continues
            self._next = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position of the newest iteration as a JSON-compatible dict.

        A DataLoader with workers takes batches from the sampler before it returns them. Its position is in
        the state of the ``StatefulDataLoader`` of torchdata.
        """
        epoch, batches = self._position
        return {"epoch": epoch, "batches": batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next iteration continue at the position that `state_dict` returned.

        The state holds for a sampler of the same table and with the same arguments.
        """
        valid = isinstance(state, dict) and state.keys() == {"epoch", "batches"}
        if not valid or not all(isinstance(one, int) and one >= 0 for one in state.values()):
            raise TFRecordError("this is not a state of BlockSampler", advice="pass the result of state_dict")
        self._next = self._position = state["epoch"], state["batches"]

    def __iter__(self) -> Iterator[Numbers]:
        epoch, begun = self._next
        self._next, self._position = (epoch + 1, 0), self._next
        order, spans = self._spans(epoch)
        # The DataLoader gives batch k to worker k % workers. The parts with the most batches are the first
        # ones, and the last batch of all, which may be smaller, is the last batch of the last part.
        parts = [
            rows_of_part(spans, (worker, self._workers), self._batch_size) for worker in range(self._workers)
        ]
        rows = [
            rows_of_spans(order, part, self._table.block_starts)
            for part in sorted(parts, key=lambda part: -self._batches(part))
        ]
        for number in range(begun, len(self)):
            turn, worker = divmod(number, self._workers)
            self._position = epoch, number + 1
            yield rows[worker][turn * self._batch_size : (turn + 1) * self._batch_size]
        self._position = epoch + 1, 0

    def _batches(self, spans: list[Span]) -> int:
        """Return the number of batches of some rows."""
        return -(-total_size(spans) // self._batch_size)


def distributed_shard() -> tuple[int, int] | None:
    """Return the rank and the number of ranks, or None if `torch.distributed` is not initialized."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None
