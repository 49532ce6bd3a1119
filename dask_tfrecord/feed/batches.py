"""Implement `iter_batches`, which returns Arrow record batches of an exact size, shuffled, sharded and
resumable.

The data of a source is read in pieces, such as blocks of files. A seed may shuffle the order of the pieces,
and then the rows within each window of several pieces. A shard is a range of the resulting row order. A
position consists of the first piece of a window and the number of rows of this window that were returned.
Together with the epoch, a state therefore needs three numbers, and resuming reads only the window that the
state names.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from threading import RLock
from typing import Any, Self, TypeAlias, Unpack

import pyarrow as pa

from dask_tfrecord import arguments
from dask_tfrecord.errors import Remedy, TFRecordError, calling
from dask_tfrecord.feed.epoch_order import (
    BatchMode,
    Order,
    Plan,
    Uneven,
    checked_shard,
    order_rows,
    plan_batches,
    read_slices,
)
from dask_tfrecord.feed.numpy_columns import one_chunk
from dask_tfrecord.feed.shuffle_window import WINDOW_BYTES as _WINDOW_BYTES
from dask_tfrecord.feed.shuffle_window import EncodedRows, PieceMemory, ShuffleWindow
from dask_tfrecord.feed.sources import DatasetSource
from dask_tfrecord.keywords import BatchKeywords
from dask_tfrecord.public_functions import public_function

_STATE_VERSION = 2


# Rows, and a position: the number of the first piece of a window, and the number of a row in this window.
_Positioned: TypeAlias = tuple[pa.Table, tuple[int, int]]


@public_function
def iter_batches(
    source: Any,
    batch_size: int = 1024,
    *,
    columns: str | Sequence[str] | None = None,
    batch_mode: BatchMode = "keep",
    epoch: int = 0,
    shard: tuple[int, int] = (0, 1),
    uneven: Uneven = "keep",
    start: dict[str, Any] | None = None,
    **keywords: Unpack[BatchKeywords],
) -> "Batches":
    """Iterate over a dataset or a Dask collection as Arrow record batches.

    Parameters
    ----------
    source : str, path-like, list of these, dask.dataframe.DataFrame or Series
        A path that `read_tfrecord` accepts, or any Dask collection. The partitions of a collection are
        computed one after the other while the batches are used.
    batch_size : int, default 1024
        Number of rows in each batch. A batch may hold rows of several files.
    columns : str or list of str, optional
        The columns to read, in this order. By default, all columns are read.
    batch_mode : "keep", "drop" or "auto", default "keep"
        What happens if the last batch has fewer rows than ``batch_size``. "keep" returns this smaller batch,
        and "drop" drops this smaller batch. "auto" returns batches of any size, as they are read.
    shuffle : int, optional
        The seed of a random row order. The blocks of the files are shuffled first, and then the rows within
        each shuffle buffer. The order depends on the seed and on ``epoch``. By default, the rows are not
        shuffled.
    shuffle_buffer : int, default 65536
        Number of rows that are shuffled together. If the rows of a buffer take more than 512 MiB, the buffer
        has fewer rows. The buffer holds the undecoded records, and the records of each batch are decoded when
        the batch is returned. The buffer holds decoded rows instead if the source is a Dask collection, if
        ``filters`` or ``on_corrupt`` exclude rows, or if ``columns`` leaves out a column of lists or bytes.
    epoch : int, default 0
        The number of the epoch. With ``shuffle``, each epoch has a different row order.
    shard : tuple of int, default (0, 1)
        The number of the shard to return, counted from 0, and the number of all shards. The shards of a path
        have the same number of rows, plus or minus one, and every row is in exactly one shard. The shards of
        a collection consist of whole partitions.
    uneven : "keep", "drop" or "pad", default "keep"
        What happens if the rows cannot be divided equally among the shards. "keep" makes some shards one row
        longer than other shards. "drop" omits the extra rows, and "pad" repeats rows of neighbouring shards,
        so that all shards have the same length. A collection accepts only "keep".
    prefetch : int, default 2
        The number of blocks or partitions that threads read ahead. If this number is 0, the calling thread
        reads the data.
    start : dict, optional
        The `Batches.state` of an earlier iteration with the same arguments. The iteration continues with the
        batch that followed this state.
    **read
        Keywords that say which rows of a path are read, as in `read_tfrecord`, such as ``schema``,
        ``filters`` and ``version``. ``max_corrupt`` applies to each block separately. If ``filters`` or
        ``on_corrupt`` exclude rows, the call first counts the remaining rows. To count the rows, the call
        reads the columns of the filter, or all columns if damage is skipped.

    Returns
    -------
    Batches
        An iterator of `pyarrow.RecordBatch`. After each batch, `Batches.state` is the position of the
        iteration.

    Raises
    ------
    TFRecordError
        If an argument has a wrong type or value, if there are more shards than rows, or if ``start`` is a
        state of another dataset or of other arguments.
    FileChangedError
        If a file was rewritten after the call of `iter_batches`.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> ddf = dd.from_dict({"x": list(range(5))}, npartitions=2)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "numbers")
    >>> for batch in dask_tfrecord.iter_batches("numbers", 2):
    ...     print(batch["x"].to_pylist())
    [0, 1]
    [2, 3]
    [4]
    """
    plan = plan_batches(
        source,
        batch_size,
        surface=iter_batches,
        columns=columns,
        batch_mode=batch_mode,
        uneven=uneven,
        **keywords,
    )
    return Batches(plan, epoch, shard, start=start)


class Batches:
    """An iterator over Arrow record batches. The function `iter_batches` returns this iterator. Several
    threads may share this iterator.

    The iterator is also an Arrow stream (``__arrow_c_stream__``) of the rows that it has not yet returned.
    Anything that takes an Arrow stream can read the rows once, such as ``pyarrow.table(batches)`` and
    ``polars.DataFrame(batches)``. The batches of the stream may have any size.

    Parameters
    ----------
    plan : Plan
        The opened source and the options of the batches.
    epoch, shard, start
        These parameters have the same meaning as in `iter_batches`.
    part : tuple of int, default (0, 1)
        The number of the part of the shard to return, counted from 0, and the number of all parts. The parts
        of a path are cut between two batches, so that all parts together have as many batches as the shard. A
        part may have no batches.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of every batch.
    rows : int or None
        Number of rows of the whole iteration, or None for Dask collections, because their rows are not
        counted.
    """

    def __init__(
        self,
        plan: Plan,
        epoch: int = 0,
        shard: tuple[int, int] = (0, 1),
        part: tuple[int, int] = (0, 1),
        start: dict[str, Any] | None = None,
    ) -> None:
        arguments.count("epoch", epoch, 0)
        shard = checked_shard(shard)
        self._plan = plan
        self._order = order_rows(plan, epoch, shard, part)
        self._epoch = epoch
        self._share = (*shard, *part)
        self._position = (0, 0)
        self._lock = RLock()
        self._closed = False
        self._ended = False
        self._streamed = False
        self._tables: Generator[_Positioned, None, None] | None = None
        self.schema: pa.Schema = plan.source.schema.arrow
        lengths = [one.stop - one.start for one in self._order.slices if one.stop is not None]
        self.rows = sum(lengths) if plan.source.counts is not None else None
        if start is not None:
            self._resume(start)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._lock, calling(self._plan.surface):
            position = self._position
            table = self.next_table()
            try:
                return as_batch(table, self.schema)
            except BaseException:  # also after an interrupt, the next call returns the same rows
                self._stop()
                self._position = position
                raise

    def next_table(self) -> pa.Table:
        """Return the next batch as an Arrow table, whose columns may have several chunks.

        Unlike a record batch, a table needs no copy to join rows from different pieces.

        Raises
        ------
        StopIteration
            If all batches have been returned, or if the iterator was closed.
        """
        with self._lock, calling(self._plan.surface):
            if self._closed:
                raise StopIteration
            try:
                if self._tables is None:
                    self._tables = _tables(self._plan, self._order, *self._position)
                found = next(self._tables, None)
            # Also after an interrupt, the next call continues where the last batch ended.
            except BaseException:
                self._stop()
                raise
            if found is None:
                self._ended = True
                raise StopIteration
            table, self._position = found
            return table

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the remaining rows as an Arrow stream.

        If the iterator is closed before the stream ends, the stream raises TFRecordError.

        Raises
        ------
        TFRecordError
            If all rows have been returned, if the iterator was closed, or if a stream was returned before.
        """
        with self._lock, calling(self._plan.surface):
            if self._streamed or self._closed or self._ended:
                raise TFRecordError(
                    "the rows of this iterator were already read, and can be read only once",
                    advice="call iter_batches again",
                )
            self._streamed = True
        reader = pa.RecordBatchReader.from_batches(self.schema, self._remaining())
        return reader.__arrow_c_stream__(requested_schema)

    def _remaining(self) -> Iterator[pa.RecordBatch]:
        with suppress(StopIteration):
            while True:
                yield from self.next_table().to_batches()
        if not self._ended:
            raise TFRecordError(
                "the iterator was closed before all rows of its Arrow stream were read",
                advice="read the stream first, and close the iterator afterwards",
            )

    def __len__(self) -> int:
        """Return the number of batches of the whole iteration.

        Raises
        ------
        TypeError
            If the source is a Dask collection, whose rows are not counted, or if ``batch_mode="auto"``.
        """
        if self.rows is None or self._plan.batch_mode == "auto":
            raise TypeError("the number of batches is not known")
        size = self._plan.batch_size
        return self.rows // size if self._plan.batch_mode == "drop" else -(-self.rows // size)

    @property
    def state(self) -> dict[str, Any]:
        """The position of the iteration, as a dict that can be stored as JSON.

        To resume at this position, pass the dict as ``start=``.
        """
        plan = self._plan
        window, row = self._position
        given = (plan.batch_size, plan.batch_mode, plan.shuffle, plan.shuffle_buffer, plan.uneven)
        return {
            "version": _STATE_VERSION,
            "source": plan.source.fingerprint,
            "arguments": repr((*given, *self._share, self.schema.names)),
            "epoch": self._epoch,
            "window": window,
            "row": row,
        }

    def close(self) -> None:
        """Stop reading ahead, and end the iteration. A closed iterator returns no more batches."""
        self._closed = True
        # `close` never waits for the lock, because a thread that holds the lock at exit is frozen.
        if self._lock.acquire(blocking=False):
            try:
                self._stop()
            finally:
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _resume(self, state: dict[str, Any]) -> None:
        expected = self.state
        if not isinstance(state, dict) or state.keys() != expected.keys():
            raise TFRecordError(
                "start= is not a state of iter_batches", advice="pass the `state` of its result"
            )
        for name, what in (
            ("version", "another version of the library"),
            ("source", "another dataset, or of one that was rewritten since"),
            ("arguments", "an iteration with other arguments"),
            ("epoch", "another epoch"),
        ):
            if state[name] != expected[name]:
                raise TFRecordError(
                    f"start= is the state of {what}", advice="pass the same source and the same arguments"
                )
        window, row = state["window"], state["row"]
        valid = all(isinstance(one, int) and one >= 0 for one in (window, row))
        if not valid or window > len(self._order.slices):
            raise _no_position(window, row)
        self._position = window, row

    def _stop(self) -> None:
        """Drop the rows that were read ahead. The position of the iteration does not change."""
        if self._tables is not None:
            self._tables.close()
        self._tables = None


# These generators do not refer to a `Batches`, so the threads end as soon as the `Batches` is dropped.


def _tables(plan: Plan, order: Order, window: int, row: int) -> Generator[_Positioned, None, None]:
    """Yield the batches that follow a position, each with the position after its last row."""
    parts: list[pa.Table] = []
    missing = plan.batch_size
    with closing(_windows(plan, order, window, row)) as windows:
        for rows, (window, start) in windows:
            if plan.batch_mode == "auto":
                missing = rows.num_rows - start
            while rows.num_rows - start >= missing:
                parts.append(rows.slice(start, missing))
                start += missing
                yield _joined(parts) if len(parts) > 1 else parts[0], (window, start)
                parts, missing = [], plan.batch_size
            if start < rows.num_rows:
                parts.append(rows.slice(start))
                missing -= rows.num_rows - start
                end = window, rows.num_rows
            del rows  # before the rows of the next window are read
    if parts and plan.batch_mode == "keep":
        yield _joined(parts), end


def _windows(
    plan: Plan, order: Order, first: int, skip: int
) -> Generator[tuple[pa.Table | ShuffleWindow, tuple[int, int]], None, None]:
    """Yield the rows of each window in their final order, and the position of the first row to use."""
    source = plan.source
    read: Callable[[int], Any] = source.read
    if order.seed is not None and isinstance(source, DatasetSource) and source.keeps_records:
        read = partial(source.read_encoded, allocate=PieceMemory())
    pieces: list[Any] = []
    count, size, window = 0, 0, first
    least = order.buffer if order.seed is not None else 1
    last = len(order.slices) - 1
    with closing(read_slices(read, order.slices[first:], plan.prefetch)) as found:
        for number, piece in enumerate(found, first):
            pieces.append(piece)
            count += piece.num_rows
            size += piece.nbytes
            del piece
            if count >= least or size >= _WINDOW_BYTES or number == last:
                if skip > count:
                    raise _no_position(window, skip)
                if skip < count:
                    yield _in_order(plan, order, window, pieces, count), (window, skip)
                pieces, count, size, window, skip = [], 0, 0, number + 1, 0


def _in_order(
    plan: Plan, order: Order, window: int, pieces: list[Any], count: int
) -> pa.Table | ShuffleWindow:
    """Return the rows of a window in their final order."""
    if order.seed is None:
        return _joined(pieces)
    numbers = order.permutation(window, count)
    if isinstance(plan.source, DatasetSource) and isinstance(pieces[0], EncodedRows):
        return ShuffleWindow(plan.source, pieces, numbers)
    try:
        return _joined(pieces).combine_chunks().take(pa.array(numbers))
    except pa.ArrowInvalid as error:  # one piece has more than 2 GiB of text or bytes
        raise TFRecordError(
            f"{count:,} rows cannot be shuffled together: {error}",
            advice="shuffle with RecordTable, or write the dataset with to_tfrecord, in small blocks",
        ) from None


def _no_position(window: Any, row: Any) -> TFRecordError:
    return TFRecordError(f"start= holds no position of the dataset: window {window}, row {row}")


def _joined(tables: list[pa.Table]) -> pa.Table:
    table = pa.concat_tables(tables)
    has_categories = any(pa.types.is_dictionary(item.type) for item in table.schema)
    return table.unify_dictionaries() if has_categories else table


def as_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a table to one record batch. A column with a single chunk is not copied."""
    try:
        columns = [one_chunk(column) for column in table.columns]
    except pa.ArrowInvalid as error:
        raise TFRecordError(
            f"a batch of {table.num_rows:,} rows does not fit in an Arrow array: {error}",
            remedies=[Remedy("batch_size", max(1, table.num_rows // 2), "read smaller batches")],
            function="",
        ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)
