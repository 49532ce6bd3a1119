"""Provide PyTorch datasets, iterable and map-style, that return the records of a dataset as tensors."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from types import FrameType
from typing import Any, TypeAlias, Unpack, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.utils.data import ChainDataset, Dataset, IterableDataset, default_collate, get_worker_info

from dask_tfrecord.errors import Remedy, TFRecordError
from dask_tfrecord.feed.batch_statistics import BatchStatistics
from dask_tfrecord.feed.batches import Batches, as_batch
from dask_tfrecord.feed.epochs import SHARED_NUMBERS, Epochs, Iteration, Start, ended
from dask_tfrecord.feed.numpy_columns import (
    Array,
    Ragged,
    checked_fill_nulls,
    column_to_numpy,
    converted_columns,
    fill_value,
)
from dask_tfrecord.feed.record_table import RecordTable
from dask_tfrecord.feed.rows.epoch_order import checked_ranks, plan_batches
from dask_tfrecord.feed.rows.resume_position import State, checked_states, epoch_of, no_states
from dask_tfrecord.feed.rows.sources import check_label, checked_names
from dask_tfrecord.feed.workers import WorkerStatistics, for_message, jagged
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import BatchKeywords, LastBatch, PathOrMixture, TableKeywords, Uneven
from dask_tfrecord.keywords.public_functions import calling, public_function
from dask_tfrecord.schema.logical_types import is_binary, value_type
from dask_tfrecord.storage.paths import PathLike

Tensors: TypeAlias = dict[str, Any]


def to_tensors(batch: pa.RecordBatch | pa.Table, fill_nulls: Mapping[str, Any] | None = None) -> Tensors:
    """Convert a batch to PyTorch tensors. Columns of numbers without nulls are not copied.

    Parameters
    ----------
    batch : pyarrow.RecordBatch or pyarrow.Table
        The batch to convert.
    fill_nulls : mapping of str to value, optional
        The value that replaces the nulls of each column, as `dask_tfrecord.feed.numpy_columns.numpy_columns`
        describes.

    Returns
    -------
    dict of str to torch.Tensor or list
        A tensor or a list for each column of the batch. Columns of variable-length lists of numbers become
        nested tensors with the jagged layout. Columns of strings become a list of str. Columns of bytes
        become a list of uint8 tensors that share the buffers of the batch.

    Raises
    ------
    SchemaError
        If a column of integers has nulls and no value in ``fill_nulls``, or if no tensor can represent the
        type of a column.

    Notes
    -----
    Do not write to a tensor that shares the memory of a batch.
    """
    return converted_columns(batch, fill_nulls, _tensor)


def _tensor(name: str, column: pa.Array | pa.ChunkedArray, fill: Any) -> Any:
    if is_binary(value_type(column.type)):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return [value for chunk in chunks for value in _bytes(name, chunk, fill)]
    values = column_to_numpy(name, column, fill)
    if isinstance(values, Ragged):
        if isinstance(values.values, Ragged) or values.values.dtype == object:
            # PyTorch supports neither tensors of lists of lists nor tensors of objects.
            return column.to_pylist()
        return jagged(_from_numpy(values.values), _from_numpy(values.offsets))
    return values.tolist() if values.dtype == object else _from_numpy(values)


def _from_numpy(values: Array) -> torch.Tensor:
    """Return a tensor that shares the memory of an array, without PyTorch's warning about read-only
    arrays.
    """
    if values.flags.writeable:
        return torch.from_numpy(values)
    return torch.from_dlpack(pa.array(values.reshape(-1))).reshape(values.shape)


def _bytes(name: str, column: pa.Array, fill: Any) -> list[torch.Tensor]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    column = column.cast(pa.large_binary())  # the result shares the buffer with the bytes of the column
    if column.null_count:
        column = pc.fill_null(column, fill_value(name, pa.binary(), fill))
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    if data is None or not data.size:
        return [torch.empty(0, dtype=torch.uint8) for _ in range(len(column))]
    every = _from_numpy(np.frombuffer(data, np.uint8))
    return [every[start:stop] for start, stop in zip(bounds.tolist(), bounds[1:].tolist(), strict=False)]


# The largest number of DataLoader workers that can read a dataset.
_MAX_WORKERS = 1 << 10


class TFRecordBatches(IterableDataset[Any]):
    """A PyTorch dataset of the batches of a TFRecord dataset, for ``DataLoader(dataset, batch_size=None)``.

    Each row is in exactly one batch of one worker of one rank, unless ``uneven`` or ``batch_mode`` omits or
    repeats rows. Threads read and decode the batches, so most loaders need no DataLoader workers. Workers pay
    off if ``convert`` or the ``collate_fn`` of the loader takes long, for example to decode images.

    Parameters
    ----------
    path : str, path-like, list of these, or dict
        A path that `read_tfrecord` accepts, or the sources of a mixture, as in `mix`.
    batch_size : int
        The number of rows in each batch of this rank.
    columns : str or list of str, optional
        The columns of an element, besides the label. By default, all columns are read.
    label : str, optional
        The column that becomes the second part of an element, ``(features, label)``. Without a label, an
        element is a dict of tensors, as `to_tensors` returns it.
    convert : callable, optional
        Function that converts a `pyarrow.RecordBatch` to an element of the dataset, instead of `to_tensors`.
    shuffle : bool, "buffer" or "blocks", optional
        How the rows are shuffled, as in `iter_batches`. Each epoch has a different row order. By default, the
        rows are not shuffled.
    seed : int, default 0
        The seed of the random row order.
    shuffle_buffer : int, default 65536
        The number of rows that are shuffled together.
    uneven : "drop", "pad" or "keep", default "drop"
        What to do if the rows cannot be divided equally among the ranks. "drop" leaves out rows, and "pad"
        repeats rows, so that every rank makes the same number of steps. The number of rows that "drop" or
        "pad" affects is smaller than the number of ranks, or than ``elastic``. "keep" returns every row once.
        The ranks of a mixture always have equally many rows.
    batch_mode : "keep" or "drop", default "keep"
        What to do with an incomplete last batch of a rank: "keep" returns it, and "drop" omits it.
    elastic : int, optional
        Divide the rows into this number of sequences, as in `iter_batches`, so that the batches of all ranks
        together contain the same rows at every step: for each number of ranks that divides ``elastic``, for
        any number of workers, and after each resume.

        ``batch_size`` must be a multiple of ``elastic // world_size``. Each worker reads the blocks of its
        whole rank, and decodes only its own batches. A DataLoader must return the batches in order, as it
        does by default (``in_order=True``).
    until : "first", "all" or int, optional
        Where an epoch of a mixture ends, as in `mix`.
    rank, world_size : int, optional
        The index of this process, and the number of processes. By default, both come from
        `torch.distributed` when the iteration begins.
    prefetch : int or str, optional
        How far threads read ahead: the number of blocks, or their size in memory, such as "256 MiB", as in
        `iter_batches`. Each DataLoader worker reads ahead this far.
    cache, cache_bytes
        A directory on a local disk that keeps blocks of remote files, and its limit, as in `iter_batches`.
        The ranks and workers of a machine share the directory.
    fill_nulls : mapping of str to value, optional
        The value that replaces the nulls of each column.
    **read
        Keywords of `read_tfrecord` that control what is read, such as ``schema``, ``filters`` and
        ``version``.

    Notes
    -----
    The files are listed once, when the dataset object is created. Rows that are appended later are not read,
    and the iteration raises if the dataset is overwritten.

    With ``state_dict`` and ``load_state_dict``, `torchdata.stateful_dataloader` resumes a run exactly, in the
    middle and at the end of an epoch. The states of all ranks can be loaded by other numbers of ranks and
    workers. To resume with another ``batch_size``, pass them to the `load_state_dict` of the dataset: that of
    `StatefulDataLoader` gives each worker only its own state, so the rows of each worker would end with an
    incomplete batch, which raises with ``elastic``.

    A state of an older version of the dataset continues its epoch with that version. The next epoch reads the
    newer one, unless ``version`` selects the older.

    Each iteration begins the next epoch, or the epoch that `set_epoch` has chosen. Call it before each
    epoch if the workers end with every epoch (``persistent_workers=False``), because they always begin
    with epoch 0. An iteration that continues from a state keeps its epoch, and another choice applies to
    the iteration after it. If the state is from the end of an epoch, an iteration of it returns no batch,
    and any other epoch is read from its beginning. So a resumed program can always call `set_epoch` with
    the saved epoch.

    A worker sends the small tensors of a batch in one buffer, which each of them keeps in memory. If the
    program keeps a tensor of each batch, it should keep a copy (``clone``).

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> from dask_tfrecord.feed.torch import TFRecordBatches
    >>> from torch.utils.data import DataLoader
    >>> ddf = dd.from_dict({"x": [1, 2, 3]}, npartitions=1)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "train")
    >>> loader = DataLoader(TFRecordBatches("train", 2), batch_size=None)
    >>> [batch["x"].tolist() for batch in loader]
    [[1, 2], [3]]
    """

    @public_function
    def __init__(
        self,
        path: PathOrMixture,
        batch_size: int,
        columns: str | Sequence[str] | None = None,
        label: str | None = None,
        *,
        convert: Callable[[pa.RecordBatch], Any] | None = None,
        uneven: Uneven = "drop",
        batch_mode: LastBatch = "keep",
        rank: int | None = None,
        world_size: int | None = None,
        fill_nulls: Mapping[str, Any] | None = None,
        **keywords: Unpack[BatchKeywords],
    ) -> None:
        self._shard = checked_ranks(rank, world_size)
        arguments.choice("batch_mode", batch_mode, get_args(LastBatch))
        self._plan = plan_batches(
            path,
            batch_size,
            surface=TFRecordBatches.__init__,
            columns=checked_names(columns, label),
            batch_mode=batch_mode,
            uneven=uneven,
            **keywords,
        )
        self._convert, self._label = convert, label
        schema = self._plan.source.schema.arrow
        check_label(label, self._plan.source.schema)
        self._fill_nulls = checked_fill_nulls(fill_nulls, schema)
        if convert is not None and fill_nulls:
            problem = "fill_nulls= has no effect with convert=, which receives the nulls"
            raise TFRecordError(problem, "call to_tensors(batch, fill_nulls) in the function")
        if convert is not None and label is not None:
            problem = "label= has no effect with convert=, which receives all columns"
            raise TFRecordError(problem, Remedy("label", None, "return the label from the function"))
        shared = torch.zeros(SHARED_NUMBERS + 2 * _MAX_WORKERS, dtype=torch.int64).share_memory_()
        self._epochs, self._workers = Epochs(shared=shared), WorkerStatistics()
        self._batches: Batches | None = None  # The `Batches` object of the newest iteration of this process.
        len(self)  # This call raises an error for a wrong argument before any worker starts.

    def __getstate__(self) -> dict[str, Any]:
        # A spawned worker process does not know the rank of the parent process.
        return {**vars(self), "_shard": self._shard or _distributed_shard(), "_batches": None}

    def _open(self, start: Start, part: tuple[int, int] = (0, 1)) -> Batches:
        shard = self._shard or _distributed_shard() or (0, 1)
        return Batches(self._plan, start.epoch, shard, part, start.states or None)

    def __len__(self) -> int:
        """Return the number of batches of this rank, which does not depend on the number of workers."""
        return len(self._open(Start(0)))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. With ``shuffle``, each epoch has a different row order."""
        self._epochs.choose(epoch)

    @property
    def statistics(self) -> BatchStatistics:
        """The cost of the newest iteration so far, as `Batches.statistics` describes it.

        With DataLoader workers, each value is the sum over the workers, up to the id 127. A worker waits only
        while it prepares a batch, not while the training loop uses its batches.
        """
        if self._epochs.is_in_workers:
            return self._workers.total()
        return BatchStatistics() if self._batches is None else self._batches.statistics

    @property
    def drawn(self) -> dict[str, int]:
        """How many rows of each source of a mixture the newest iteration of this process has returned.

        Raises
        ------
        TFRecordError
            If the dataset is not a mixture, or if worker processes iterate over it.
        """
        self._refuse_workers()
        return (self._batches or self._open(Start(0))).drawn

    def _refuse_workers(self) -> None:
        if get_worker_info() is None and self._epochs.is_in_workers:
            raise TFRecordError(
                "the workers of a DataLoader read the dataset, and only they know their positions",
                "call the state_dict of torchdata's StatefulDataLoader, or pass num_workers=0",
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the newest iteration as a JSON-compatible dict.

        Raises
        ------
        TFRecordError
            If worker processes iterate over the dataset, because this process does not know the positions of
            the workers.
        """
        self._refuse_workers()
        worker, part = _worker()
        start, batches = self._epochs.waiting(worker), self._batches
        if start is not None:
            batches = self._open(start, part) if start.states else None
        return self._epochs.state([] if batches is None else [batches.state])

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Make the next iteration continue at the position that `state_dict` returned.

        If the saved iteration had ended, the next iteration begins the next epoch.

        Parameters
        ----------
        state : dict or list of dict
            The state of this rank. If the number of ranks or of DataLoader workers has changed, pass a list
            of the states of all ranks. The states may come from `state_dict` or from torchdata's
            `StatefulDataLoader`. A state of `StatefulDataLoader` contains the states of all workers of a
            rank. The remaining rows are divided among the new ranks and workers, and every remaining row is
            returned once.

        Raises
        ------
        TFRecordError
            If an object is not a state, if the states belong to different epochs, or if they were saved with
            another dataset or other arguments.
        """
        given = state if isinstance(state, list | tuple) else [state]
        if not given:
            raise no_states(self._plan)
        states = [one for each in given for one in _states_in(each)]
        loaded = copy(self._epochs)  # if a state is refused, the position does not change
        positions = loaded.load(states, "TFRecordBatches", _worker()[0])
        if positions:
            with calling(self._plan.surface):
                checked_states(self._plan, positions, epoch_of(positions))
        self._epochs, self._batches = loaded, None

    def __iter__(self) -> Iterator[Any]:
        _refuse_second_batching(sys._getframe(1))
        worker, part = _worker()
        start = self._epochs.next(worker)
        batches = self._batches = None if start.is_over else self._open(start, part)
        if batches is None:
            return self._nothing(self._epochs.begin(worker, start))
        self._workers.put(batches)
        return self._elements(self._epochs.begin(worker, start, batches.is_empty), batches)

    @staticmethod
    def _nothing(iteration: Iteration) -> Iterator[Any]:
        iteration.stage = "ended"
        yield from ()

    def _element(self, table: pa.Table) -> Any:
        if self._convert is not None:
            return self._convert(as_batch(table, table.schema))
        tensors = to_tensors(table, self._fill_nulls)
        return tensors if self._label is None else (tensors, tensors.pop(self._label))

    def _elements(self, iteration: Iteration, batches: Batches) -> Iterator[Any]:
        iteration.stage = "running"
        try:
            with batches, suppress(StopIteration):
                while True:
                    element = for_message(batches._next_element(self._element))
                    self._workers.put(batches)
                    yield element
            iteration.stage = "ended"
        finally:
            if iteration.stage != "ended":
                iteration.stage = "left"


def _refuse_second_batching(caller: FrameType | None) -> None:
    """Raise if a DataLoader stacks batches to larger ones.

    A DataLoader does not tell its dataset how it batches. In PyTorch 2 and in torchdata, the object that
    calls `iter` has the attributes ``auto_collation`` and ``collate_fn``. A `ChainDataset` passes the batches
    on.
    """
    while caller is not None and isinstance(caller.f_locals.get("self"), ChainDataset):
        caller = caller.f_back
    fetcher = None if caller is None else caller.f_locals.get("self")
    if getattr(fetcher, "auto_collation", False) and getattr(fetcher, "collate_fn", None) is default_collate:
        raise TFRecordError(
            "TFRecordBatches returns batches, and the DataLoader would batch them again",
            "pass batch_size=None to the DataLoader",
            function="",
        )


class TFRecordTable(Dataset[Any]):
    """A map-style dataset of records, so that ``DataLoader(dataset, shuffle=True)`` shuffles all rows.

    The records of a batch are requested and decoded together. Pass ``collate_fn=dataset.collate`` to the
    DataLoader, because the dataset returns them as a batch. For compressed files, `TFRecordBatches` with
    ``shuffle="blocks"`` is faster, because it reads each block only once.

    Parameters
    ----------
    path : str, path-like or list of these
        A path that `RecordTable` accepts. Uncompressed local files are the fastest to read.
    columns : str or list of str, optional
        The columns to read. By default, all columns are read.
    fill_nulls : mapping of str to value, optional
        The value that replaces the nulls of each column.
    cache, cache_bytes
        A directory on a local disk that keeps blocks of remote files, and its limit, as in `iter_batches`.
    **read
        Keywords of `read_tfrecord` that control what is read, such as ``schema``, ``filters`` and
        ``version``.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> from dask_tfrecord.feed.torch import TFRecordTable
    >>> from torch.utils.data import DataLoader
    >>> ddf = dd.from_dict({"x": [1, 2, 3]}, npartitions=1)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "train")
    >>> dataset = TFRecordTable("train")
    >>> loader = DataLoader(dataset, 2, shuffle=True, collate_fn=dataset.collate)
    >>> sorted(value for batch in loader for value in batch["x"].tolist())
    [1, 2, 3]
    """

    @public_function
    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        columns: str | Sequence[str] | None = None,
        *,
        fill_nulls: Mapping[str, Any] | None = None,
        **read: Unpack[TableKeywords],
    ) -> None:
        self.table = RecordTable(path, columns, **read)
        self._fill_nulls = checked_fill_nulls(fill_nulls, self.table.schema)
        self._workers = WorkerStatistics()

    def __len__(self) -> int:
        return len(self.table)

    @property
    def statistics(self) -> BatchStatistics:
        """The cost of the batches so far: the sum over this process and its newest DataLoader workers.

        `RecordTable.statistics` describes the values.
        """
        return self.table.statistics + self._workers.total()

    @calling(__init__)
    def __getitem__(self, index: int) -> Tensors:
        return {name: values[0] for name, values in self._batch([index]).items()}

    @calling(__init__)
    def __getitems__(self, indices: Sequence[int]) -> Tensors:
        """Return the tensors of a whole batch of records, given the record indices."""
        return _Collated(self._batch(indices))

    def _batch(self, indices: Sequence[int]) -> Tensors:
        tensors = to_tensors(self.table.batch(indices), self._fill_nulls)
        self._workers.put(self.table)
        return tensors

    @staticmethod
    def collate(batch: Any) -> Tensors:
        """Return the batch unchanged, because `__getitems__` has already created the tensors."""
        return cast("Tensors", for_message(dict(batch)))


class _Collated(dict[str, Any]):
    """The tensors of a batch, as a dict that raises a clear error in PyTorch's default collation.

    The default collation expects a list of rows.
    """

    def __missing__(self, key: Any) -> Any:
        if key != 0:
            raise KeyError(key)
        raise TFRecordError(
            "the batch of a TFRecordTable is collated already", "pass collate_fn=dataset.collate"
        )


def _distributed_shard() -> tuple[int, int] | None:
    """Return the rank and the number of ranks, or None if `torch.distributed` is not initialized."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None


def _worker() -> tuple[int | None, tuple[int, int]]:
    """Return the id of this DataLoader worker, or None, and the part of the rows that this process reads."""
    info = get_worker_info()
    return (None, (0, 1)) if info is None else (info.id, (info.id, info.num_workers))


def _states_in(state: Any) -> list[State]:
    """Return the `TFRecordBatches` states in ``state``, which may be the state of a `StatefulDataLoader`."""
    if not isinstance(state, dict) or "_iterator_finished" not in state:
        return [state]
    if state.get("_steps_since_snapshot"):
        raise TFRecordError(
            "the state has the positions of the workers before the last batch",
            "pass snapshot_every_n_steps=1 to the StatefulDataLoader whose state is saved",
        )
    workers = state["_snapshot"]["_worker_snapshots"].values() if "_snapshot" in state else [state]
    found = [worker["dataset_state"] for worker in workers]
    return [ended(one, "TFRecordBatches") for one in found] if state["_iterator_finished"] else found


__all__ = ["TFRecordBatches", "TFRecordTable", "to_tensors"]
