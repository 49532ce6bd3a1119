"""Provide a Keras 3 `PyDataset` of batches, which can shuffle all rows in each epoch."""

import os
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Literal, Unpack, get_args

import keras
import numpy as np

from dask_tfrecord.codec import Ints
from dask_tfrecord.errors import Remedy, RemedyWarning, SchemaError, warn_caller
from dask_tfrecord.feed.batch_statistics import BatchStatistics
from dask_tfrecord.feed.epochs import Epochs
from dask_tfrecord.feed.numpy_columns import (
    Array,
    Ragged,
    checked_fill_nulls,
    numpy_columns,
)
from dask_tfrecord.feed.record_table import RecordTable
from dask_tfrecord.feed.rows.epoch_order import (
    Span,
    check_sequences,
    checked_shard,
    rows_of_sequence,
    stream,
    total_size,
)
from dask_tfrecord.feed.rows.resume_position import count_steps, rows_of_each
from dask_tfrecord.feed.rows.sources import check_label, checked_names
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import LastBatch, TableKeywords, Uneven
from dask_tfrecord.keywords.public_functions import calling, public_function
from dask_tfrecord.storage.paths import PathLike

# Threads that request batches hold this lock while they read or change a row order. The lock is not an
# attribute of the dataset, because that is copied to worker processes.
_ORDERS = Lock()
if hasattr(os, "register_at_fork"):  # no thread holds the lock when the process is forked
    os.register_at_fork(
        before=_ORDERS.acquire, after_in_parent=_ORDERS.release, after_in_child=_ORDERS.release
    )

# Keras reads at most this many batches to determine the shapes of a model's inputs.
_MOST_LOOKED_AT = 2


class TFRecordPyDataset(keras.utils.PyDataset):
    """Feed the batches of a dataset to ``model.fit``, with any Keras backend.

    Parameters
    ----------
    path : str, path-like or list of these
        A path that `RecordTable` accepts. Uncompressed local files are read fastest.
    batch_size : int
        The number of rows in each batch of this process.
    columns : str or list of str, optional
        The columns of an element, besides the label. By default, all columns are read. A single name gives
        one array of features, and a list a dict of arrays.
    label : str, optional
        The column that becomes the second part of an element, ``(features, label)``. Without a label, an
        element consists of the features.
    shuffle : bool or "blocks", optional
        If True, all rows are shuffled in each epoch. By default, they are not shuffled. "blocks" gives the
        order of `RecordTable.block_order`, in which compressed files are read much faster; pass
        ``shuffle=False`` to ``fit`` then, because the batches that follow each other share blocks.
    seed : int, default 0
        The seed of the random row order.
    shard : tuple of int, default (0, 1)
        The index of the shard to return, counted from 0, and the number of shards. Each of several processes
        that train a model reads one, such as ``(jax.process_index(), jax.process_count())``.
    elastic : int, optional
        Divide the rows into this number of sequences, as in `iter_batches`. The k-th batches of all shards
        together then contain the same rows for every number of shards that divides ``elastic``.
    uneven : "drop", "pad" or "keep", default "drop"
        What to do if the rows cannot be divided equally among the shards, as in `TFRecordBatches`: "drop"
        leaves out rows, and "pad" repeats rows, so that all shards have the same number of batches. "keep"
        returns every row once.
    batch_mode : "keep" or "drop", default "keep"
        What to do with an incomplete last batch: "keep" returns it, and "drop" omits it.
    epoch : int, default 0
        The first epoch, counted from 0. Pass the ``initial_epoch`` of ``fit``, so that a resumed run has the
        same row orders as an uninterrupted one.
    step : int, default 0
        The number of batches to skip from the beginning of ``epoch`` on. To resume a run at any batch, pass
        the number of batches with which the model was trained, such as ``int(model.optimizer.iterations)``,
        and the first epoch of the run as ``epoch``.

        Keras counts the batches only once. If the dataset begins in the middle of an epoch, each Keras epoch
        therefore consists of the rest of an epoch and the first batches of the next. To end the epoch first,
        pass the number of its remaining batches to ``fit`` as ``steps_per_epoch``, and call `set_epoch`
        before the next ``fit``.
    fill_nulls : mapping of str to value, optional
        The value that replaces the nulls of each column, as `dask_tfrecord.feed.numpy_columns.numpy_columns`
        describes.
    workers, use_multiprocessing, max_queue_size
        As in `keras.utils.PyDataset`. Use workers only with the backend TensorFlow: with other backends,
        Keras repeats the batches that they read while it builds the model.
    cache, cache_bytes
        A directory on a local disk that keeps blocks of remote files, and its limit, as in `iter_batches`.
    **read
        Keywords of `read_tfrecord` that control what is read, such as ``schema``, ``filters`` and
        ``version``.

    Raises
    ------
    SchemaError
        If a column has lists of any length, because no array can contain such lists.
    TFRecordError
        If an argument has a wrong type or value, or if there are more shards than rows.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> import keras
    >>> from dask_tfrecord.feed.keras import TFRecordPyDataset
    >>> ddf = dd.from_dict({"x": [1, 2, 3], "y": [2, 4, 6]}, npartitions=1)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "train")
    >>> batches = TFRecordPyDataset("train", 2, "x", "y", shuffle=True, seed=7)
    >>> sum(len(x) for x, y in batches)
    3
    """

    @public_function
    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        batch_size: int,
        columns: str | Sequence[str] | None = None,
        label: str | None = None,
        *,
        shuffle: bool | Literal["blocks"] | None = None,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
        elastic: int | None = None,
        uneven: Uneven = "drop",
        batch_mode: LastBatch = "keep",
        epoch: int = 0,
        step: int = 0,
        fill_nulls: Mapping[str, Any] | None = None,
        workers: int = 1,
        use_multiprocessing: bool = False,
        max_queue_size: int = 10,
        **read: Unpack[TableKeywords],
    ) -> None:
        super().__init__(workers, use_multiprocessing, max_queue_size)
        arguments.number("batch_size", batch_size)
        arguments.seed_of(shuffle, seed, ["blocks"])
        arguments.choice("uneven", uneven, get_args(Uneven))
        arguments.choice("batch_mode", batch_mode, get_args(LastBatch))
        arguments.number("epoch", epoch, 0)
        step = arguments.number("step", step, 0)
        if keras.config.backend() != "tensorflow" and (workers > 1 or (workers and use_multiprocessing)):
            _warn_of_workers()
        self.table = RecordTable(path, checked_names(columns, label), **read)
        self._features = columns
        self._label = label
        self._fill_nulls = checked_fill_nulls(fill_nulls, self.table.schema)
        check_label(label, self.table.schema)
        self._shuffle, self._seed, self._uneven = shuffle, seed, uneven
        self._divide(batch_size, checked_shard(shard), arguments.count("elastic", elastic), batch_mode)
        # A Keras epoch begins with the batch `_first` of an epoch.
        epochs, self._first = divmod(step, max(1, len(self)))
        self._epochs = Epochs(epoch + epochs)
        self._orders: dict[int, list[Ints]] = {}  # The rows of the sequences in each epoch, in order.
        self._requested: set[int] = set()  # The batches requested so far in the current order, by index.
        # True if the row order must change after the last batch of this order was requested.
        self._is_due = False
        # True if the row order changed when the last batch of the previous order was requested.
        self._is_ahead = False
        self._is_new = True  # True until the first call of `on_epoch_end`.
        self._has_begun = False  # True from `on_epoch_begin` to `on_epoch_end`.
        self._epoch = self._epochs.begin().start.epoch

    def _divide(
        self, batch_size: int, shard: tuple[int, int], elastic: int | None, batch_mode: LastBatch
    ) -> None:
        """Determine the sequences that this shard reads, and the number of its batches in an epoch."""
        rows = len(self.table)
        self.table._epoch_order(0, 0).check_shards(shard[1])
        self._elastic = elastic or 1
        self._size, self._sequences = batch_size, [shard]  # The rows of each sequence in a batch.
        if elastic is not None:
            check_sequences(elastic, rows)
            self._size = rows_of_each(batch_size, elastic, shard)
            self._sequences = [(index, elastic) for index in range(shard[0], elastic, shard[1])]
        lengths = [total_size(self._rows_of(one)) for one in self._sequences]
        # Sequence 0 is a shortest one, so every number of shards drops the same incomplete batch.
        shortest = lengths[0] if elastic is None else total_size(self._rows_of((0, elastic)))
        self._count = count_steps(shortest, max(lengths), self._size, batch_mode)

    def _rows_of(self, sequence: tuple[int, int]) -> list[Span]:
        return rows_of_sequence(len(self.table), sequence, self._uneven)

    @property
    def statistics(self) -> BatchStatistics:
        """The cost of the batches so far in this process, as `RecordTable.statistics` describes it."""
        return self.table.statistics

    def __len__(self) -> int:
        """Return the number of batches of this shard in an epoch."""
        return self._count

    @calling(__init__)
    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index:,} of {len(self):,} batches")
        columns = numpy_columns(self.table.batch(self._rows_for(index)), self._fill_nulls)
        arrays = {name: _dense(name, column) for name, column in columns.items()}
        label = None if self._label is None else arrays[self._label]
        if isinstance(self._features, str):
            features: Any = arrays[self._features]
        else:
            features = {name: array for name, array in arrays.items() if name != self._label}
        return features if label is None else (features, label)

    def _rows_for(self, index: int) -> Ints:
        with _ORDERS:
            later, batch = divmod(self._first + index, len(self))
            sequences = self._order_of(self._epoch + later)
            self._requested.add(index)
            if self._is_due and len(self._requested) == len(self):
                self._advance(self._first)
                self._is_ahead = True
        start = batch * self._size
        return np.concatenate([rows[start : start + self._size] for rows in sequences])

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads, from its first batch on.

        With ``shuffle``, each epoch has a different row order.
        """
        with _ORDERS:
            self._epochs.choose(epoch)
            self._advance(first=0)

    def on_epoch_begin(self) -> None:
        """Note that an epoch of Keras begins. Keras calls `on_epoch_end` at other times, too."""
        with _ORDERS:
            self._has_begun = True

    def on_epoch_end(self) -> None:
        """Advance to the next epoch, which has a different row order.

        With ``fit(steps_per_epoch=...)``, Keras may call this method before all batches have been returned.
        If batches of the epoch remain, the order changes after the last batch, or when ``fit`` is called
        again. Keras calls the method even before the first epoch of ``fit``, after reading some batches for
        their shapes. These batches are returned again.
        """
        with _ORDERS:
            has_begun, self._has_begun = self._has_begun, False
            is_before, self._is_new = self._is_new, False
            count = len(self._requested)
            if self._is_ahead and not count:
                self._is_ahead = False
            # Worker processes request batches from copies of this object.
            elif count == len(self) or (not count and has_begun):
                self._advance(self._first)
            elif (is_before and count <= _MOST_LOOKED_AT) or not (has_begun or self._is_due):
                self._requested.clear()
            # Keras begins with the first batch if `fit` is called again, and in each epoch with several
            # workers, even if batches of this epoch remain.
            elif not has_begun or self.workers > 1:
                self._advance(first=0)
            else:
                self._is_due = True

    def _advance(self, first: int) -> None:
        """Begin the next epoch, or the chosen one, with the batch ``first``."""
        self._epoch, self._first = self._epochs.begin().start.epoch, first
        self._requested, self._is_due, self._is_ahead = set(), False, False

    def _order_of(self, epoch: int) -> list[Ints]:
        """Return the row indices of each sequence of this shard in an epoch."""
        if epoch not in self._orders:
            kept = range(self._epoch, self._epoch + 2)
            self._orders = {one: order for one, order in self._orders.items() if one in kept}
            self._orders[epoch] = self._ordered(epoch)
        return self._orders[epoch]

    def _ordered(self, epoch: int) -> list[Ints]:
        spans = [self._rows_of(one) for one in self._sequences]
        if self._shuffle == "blocks":
            order = self.table._epoch_order(self._seed, epoch, self._elastic)
            return [order.rows(one, self.table.block_starts) for one in spans]
        rows = np.arange(len(self.table))
        if self._shuffle:
            rows = stream("rows", self._seed, epoch).permutation(len(rows))
        return [np.concatenate([rows[one.start : one.stop] for one in each]) for each in spans]


def _warn_of_workers() -> None:
    """Warn of Keras' workers, which read ahead while it builds the model (seen with Keras 3.15)."""
    problem = (
        f"with workers and the backend {keras.config.backend()!r}, Keras repeats batches that workers read "
        "while it builds the model, and leaves out as many other batches of each epoch"
    )
    warn_caller(RemedyWarning(problem, [Remedy("workers", 0, "read each batch when it is needed")]))


def _dense(name: str, column: Array | Ragged) -> Array:
    if isinstance(column, Ragged):
        raise SchemaError(
            "the column has lists of any length, which no array holds",
            "leave the column out with columns=, or give it a fixed length with "
            f'schema={{"{name}": pa.list_(pa.float32(), 8)}} when it is written',
            feature=name,
        )
    return column
