"""Provide a Keras 3 `PyDataset` of batches, which can shuffle all rows anew in each epoch."""

import os
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Literal, Unpack

import keras
import numpy as np

from dask_tfrecord import arguments
from dask_tfrecord.arguments import TableKeywords
from dask_tfrecord.codec import Ints
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.feed.batch_sources import check_label, checked_names
from dask_tfrecord.feed.batch_statistics import BatchStatistics
from dask_tfrecord.feed.epoch_order import stream
from dask_tfrecord.feed.numpy_columns import (
    Array,
    Ragged,
    check_fill_of_lists,
    checked_fill_nulls,
    numpy_columns,
)
from dask_tfrecord.feed.record_table import RecordTable
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.public_functions import calling, public_function

# Threads that request batches hold this lock while they read or change a row order. The lock is not an
# attribute of the dataset, because the dataset is copied to worker processes.
_ORDERS = Lock()
if hasattr(os, "register_at_fork"):  # no thread holds the lock when the process is forked
    os.register_at_fork(
        before=_ORDERS.acquire, after_in_parent=_ORDERS.release, after_in_child=_ORDERS.release
    )

# Keras reads at most this many batches to determine the shapes of a model's inputs.
_MOST_LOOKED_AT = 2


class TFRecordPyDataset(keras.utils.PyDataset):
    """Feed the batches of a dataset to ``model.fit``, with any backend of Keras.

    Parameters
    ----------
    path : str, path-like or list of these
        A path that `RecordTable` accepts. Uncompressed local files are read fastest.
    batch_size : int
        Number of rows in each batch.
    columns : str or list of str, optional
        The columns that become features. By default, all columns except the label become features. If
        ``columns`` is a single name and not a list, the features are one array. If ``columns`` is a list of
        names, the features are a dict of arrays.
    label : str, optional
        The column that contains the labels. Without ``label``, an element consists of features only.
    shuffle : bool or "blocks", optional
        If True, all rows are shuffled anew in each epoch. By default, the rows are not shuffled. If
        ``shuffle`` is "blocks", the rows have the order of `RecordTable.block_order`, which makes reads of
        compressed files much faster. With "blocks", pass ``shuffle=False`` to ``fit``. If Keras also shuffled
        the batches, successive batches would read different blocks.
    seed : int, default 0
        The seed of the random order.
    epoch : int, default 0
        The first epoch, counted from 0. If ``epoch`` equals the ``initial_epoch`` of ``fit``, a resumed run
        has the same row orders as an uninterrupted run.
    fill_nulls : mapping of str to value, optional
        The value that replaces the nulls of each column, as `dask_tfrecord.feed.numpy_columns.numpy_columns`
        describes.
    workers, use_multiprocessing, max_queue_size
        These parameters have the same meaning as in `keras.utils.PyDataset`. The worker threads of Keras
        share the dataset.
    cache, cache_bytes
        A directory on a local disk that keeps blocks of remote files, and its limit, as in `iter_batches`.
    **read
        Keywords of `read_tfrecord` that control what is read, such as ``schema``, ``filters`` and
        ``version``.

    Raises
    ------
    SchemaError
        If the lists of a column have different lengths, because no array can contain such lists.

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
        epoch: int = 0,
        fill_nulls: Mapping[str, Any] | None = None,
        workers: int = 1,
        use_multiprocessing: bool = False,
        max_queue_size: int = 10,
        **read: Unpack[TableKeywords],
    ) -> None:
        super().__init__(workers, use_multiprocessing, max_queue_size)
        arguments.number("batch_size", batch_size)
        arguments.seed_of(shuffle, seed, ["blocks"])
        arguments.number("epoch", epoch, 0)
        self.table = RecordTable(path, checked_names(columns, label), **read)
        self._features = columns
        self._label = label
        self._batch_size = batch_size
        self._fill_nulls = checked_fill_nulls(fill_nulls, self.table.schema.names)
        self._shuffle, self._seed = shuffle, seed
        self._epoch = epoch
        self._requested: set[int] = set()  # The batches requested so far in the current order, by index.
        # True if the row order must change after the last batch of the order is requested.
        self._is_due = False
        # True if the row order changed when the last batch of the order was requested.
        self._is_ahead = False
        self._is_new = True  # True until the first call of `on_epoch_end`.
        check_fill_of_lists(self._fill_nulls, self.table.schema)
        check_label(label, self.table.schema)
        self._set_order()

    @property
    def statistics(self) -> BatchStatistics:
        """What the batches have cost so far in this process, as `RecordTable.statistics` describes it."""
        return self.table.statistics

    def __len__(self) -> int:
        return -(-len(self.table) // self._batch_size)

    @calling(__init__)
    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index:,} of {len(self):,} batches")
        first = index * self._batch_size
        columns = numpy_columns(
            self.table.batch(self._order_for(index)[first : first + self._batch_size]), self._fill_nulls
        )
        arrays = {name: _dense(name, column) for name, column in columns.items()}
        label = None if self._label is None else arrays[self._label]
        if isinstance(self._features, str):
            features: Any = arrays[self._features]
        else:
            wanted = self._features or [name for name in arrays if name != self._label]
            features = {name: arrays[name] for name in wanted}
        return features if label is None else (features, label)

    def _order_for(self, index: int) -> Ints:
        with _ORDERS:
            order = self._order
            self._requested.add(index)
            if self._is_due and len(self._requested) == len(self):
                self._advance()
                self._is_ahead = True
            return order

    def on_epoch_end(self) -> None:
        """Advance to the next epoch, which has a different row order.

        With ``fit(steps_per_epoch=...)``, Keras may call this method before all batches have been returned.
        If batches of the epoch remain, the order changes after the last batch. Keras calls the method even
        before the first epoch, after building the model with the first batches. The batches with which the
        model was built are returned again.
        """
        with _ORDERS:
            is_before, self._is_new = self._is_new, False
            if is_before and len(self._requested) <= min(_MOST_LOOKED_AT, len(self) - 1):
                self._requested.clear()
                return
            if self._is_ahead and not self._requested:
                self._is_ahead = False
                return
            # With several workers, Keras begins the next epoch with the first batch, even if batches of this
            # epoch remain.
            is_complete = len(self._requested) in (0, len(self))
            if is_complete or self.workers > 1 or self.use_multiprocessing:
                self._advance()
            else:
                self._is_due = True

    def _advance(self) -> None:
        self._epoch += 1
        self._set_order()

    def _set_order(self) -> None:
        self._requested, self._is_due, self._is_ahead = set(), False, False
        self._order = np.arange(len(self.table))
        if self._shuffle == "blocks":
            self._order = self.table.block_order(self._seed, self._epoch)
        elif self._shuffle:
            self._order = stream("rows", self._seed, self._epoch).permutation(len(self.table))


def _dense(name: str, column: Array | Ragged) -> Array:
    if isinstance(column, Ragged):
        raise SchemaError(
            "the rows are lists of different lengths, which no array holds",
            "leave the column out with columns=, or give it a fixed length with "
            f'schema={{"{name}": pa.list_(pa.float32(), 8)}} when it is written',
            feature=name,
        )
    return column
