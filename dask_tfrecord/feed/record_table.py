"""Implement `RecordTable`, which provides random access to the records of a dataset.

A table copies the bytes of the requested records into one buffer, and decodes them together. It memory-maps
local uncompressed files. It reads all other files in blocks, or in ranges of bytes if the record offsets are
stored, requests at once what a batch lacks, and keeps the last few blocks in memory. If column files contain
all columns, and these are small, it keeps them in memory and reads no records.
"""

import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter, thread_time
from typing import Any, SupportsIndex, Unpack, get_args, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.collection.numbered_rows import BLOCK_BYTES, NumberedRows, Numbers
from dask_tfrecord.collection.opened_path import open_columns
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.feed.batch_statistics import BatchStatistics, Counters
from dask_tfrecord.feed.batches import as_batch
from dask_tfrecord.feed.rows.epoch_order import Order, checked_shard, make_order, rows_of_shard
from dask_tfrecord.feed.rows.record_buffers import (
    THREADS,
    RecordBuffers,
    RecordDecoder,
    Unit,
    find_units,
    splits_by_file,
)
from dask_tfrecord.feed.rows.sources import checked_names, usable_after_fork, with_cache
from dask_tfrecord.files.damage import locate_error
from dask_tfrecord.files.splits import Split
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import ReadKeywords, Uneven
from dask_tfrecord.keywords.public_functions import calling, public_function
from dask_tfrecord.storage.paths import PathLike


def elements(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Convert rows to dicts of Python values. Tensors and lists of numbers become NumPy arrays."""
    names = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    if not columns:
        return [{} for _ in range(batch.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    type_ = column.type
    if isinstance(type_, pa.FixedShapeTensorType):
        rows = _values(column.storage)
        return [None if row is None else np.asarray(row).reshape(type_.shape) for row in rows]
    is_list = pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)
    if is_list and (pa.types.is_integer(type_.value_type) or pa.types.is_floating(type_.value_type)):
        return [value.values.to_numpy() if value.is_valid else None for value in column]
    values: list[Any] = column.to_pylist()
    return values


# The largest total size, in bytes, of the columns that a table keeps in memory. If they are larger, it reads
# the records instead.
_KEPT_BYTES = 1 << 26


def read_stored_columns(rows: NumberedRows, splits: Sequence[Split]) -> pa.RecordBatch | None:
    """Return all records of a dataset from its column files.

    Return None if a column file lacks one of the columns, or if they take too much memory.
    """
    partition = rows.plan.partitioner(rows.schema)

    def read(group: tuple[int, list[Split]]) -> pa.Table | None:
        first, of_file = group
        counts = [split.records or 0 for split in of_file]
        whole = replace(of_file[0], stop=of_file[-1].stop, records=sum(counts))
        return replace(partition(first), splits=(whole,)).read_column_file(_KEPT_BYTES)

    tables, size = [pa.Table.from_batches([rows.schema.no_rows()])], 0
    with ThreadPoolExecutor(THREADS) as pool:
        for table in pool.map(read, splits_by_file(splits)):
            size += 0 if table is None else table.nbytes
            if table is None or size > _KEPT_BYTES:
                pool.shutdown(wait=False, cancel_futures=True)
                return None
            tables.append(table)
    return as_batch(pa.concat_tables(tables), rows.schema.arrow)


class RecordTable:
    """Read the records of a dataset by index. The indices follow the row order of `read_tfrecord`.

    Parameters
    ----------
    path : str, path-like or list of these
        A path that `read_tfrecord` accepts. Uncompressed local files are the fastest to read. For a record of
        a compressed file, the table reads a block of about 1 MiB if `to_tfrecord` wrote the file, and
        otherwise the whole file.
    columns : str or list of str, optional
        The columns to read, in this order. By default, all columns are read.
    cache, cache_bytes
        A directory on a local disk that keeps blocks of remote files, and its limit, as in `iter_batches`.
    **read
        Keywords of `read_tfrecord` that control what is read, such as ``schema``, ``filters`` and
        ``version``. With ``filters``, the table contains only the rows that pass; opening it reads the filter
        columns of all files with such rows. If ``on_corrupt`` skips damage, it contains only undamaged
        records; opening it reads all files, and each access to a record reads a whole block.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns of the table.
    block_starts : numpy.ndarray
        The index of the first record of each block of the dataset, followed by the total number of records.

    Raises
    ------
    FileNotFoundError
        If the path has no files to read.
    CorruptRecordError
        If a checksum shows that the length or the payload of a record is damaged. The payloads of returned
        records are verified, and the lengths of all records that the table passes on its search for them.

    Notes
    -----
    Threads may use a table at the same time. A pickled table includes the record offsets, of 8 bytes each.

    Opening a table reads the lengths of all records of uncompressed local files. Files with a column file,
    such as large files of images, are not read, because it contains the record offsets. With these, single
    records instead of blocks are read from remote uncompressed files.

    If column files contain all columns of the table, and these take at most 64 MiB, they are read when the
    table is opened. Reading a record then opens no data file, and a pickled table includes the columns
    instead of the offsets.

    From a remote store, `batch` requests all data of a batch at once, so a batch takes hardly longer than a
    single record. Whether a file of another tool has changed is checked at most once a second.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> ddf = dd.from_dict({"x": [1, 2, 3], "y": ["a", "b", "c"]}, npartitions=2)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "letters")
    >>> table = dask_tfrecord.feed.RecordTable("letters")
    >>> len(table), table[2]
    (3, {'x': 3, 'y': 'c'})
    >>> table[[2, 0]].to_pydict()
    {'x': [3, 1], 'y': ['c', 'a']}
    """

    @public_function
    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        columns: str | Sequence[str] | None = None,
        *,
        cache: PathLike | None = None,
        cache_bytes: SupportsIndex | str | None = None,
        **read: Unpack[ReadKeywords],
    ) -> None:
        blocks = arguments.block_cache(cache, cache_bytes)
        plan, self._schema = open_columns(path, checked_names(columns), BLOCK_BYTES, read)
        self._rows = NumberedRows(plan, self._schema)
        self._rows = self._rows.with_plan(with_cache(self._rows.plan, blocks))
        # Each block is a partition of the read plan. For each block, store the first row and the stored size.
        self.block_starts = self._rows.row_numbers(self._rows.starts[plan.partitions.starts])
        self._block_sizes = plan.partitions.sizes
        splits = [split for splits in self._rows.plan.partitions for split in splits]
        self._columns = read_stored_columns(self._rows, splits)
        if self._columns is None:
            units = find_units(self._rows.plan, splits)
        else:
            units = [Unit(first, None) for first, _ in splits_by_file(splits)]
        # For each `Unit`, store the split, and the indices of the partition and of the first record.
        self._splits = [splits[unit.split] for unit in units]
        self._buffers = RecordBuffers(self._splits, [unit.offsets for unit in units])
        self._partitions = np.array([unit.split for unit in units], np.int64)
        self._firsts = self._rows.starts[self._partitions]
        self._prepare()

    def _prepare(self) -> None:
        """Create the attributes that cannot be pickled."""
        self.schema = self._schema.arrow
        self._process = os.getpid()
        self._local = threading.local()
        self._begin_counting(self._dataset)

    def _begin_counting(self, dataset: ReadPlan) -> None:
        self._counters = Counters()
        if dataset.store.is_remote:
            dataset = replace(dataset, store=replace(dataset.store, counts=self._counters.requests))
        self._rows = self._rows.with_plan(dataset)

    def __getstate__(self) -> dict[str, Any]:
        made = {"schema", "_process", "_local", "_counters"}
        return {name: value for name, value in vars(self).items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    @property
    def _dataset(self) -> ReadPlan:
        return self._rows.plan

    @property
    def version(self) -> int | None:
        """The version of the dataset, or None if it has no snapshot."""
        return self._dataset.version

    @property
    def statistics(self) -> BatchStatistics:
        """The cost of the batches since the table was opened in this process.

        The seconds are summed over the threads that read, so the waiting may exceed ``seconds``. Of records
        that are read one by one, only the requests to a store are counted. A table reads nothing ahead, so
        ``bytes_read`` and ``bytes_ready`` are 0.
        """
        self._notice_fork()
        return self._counters.statistics()

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        # Grain compares this text to find out whether a saved state belongs to the table.
        store = self._dataset.store
        of_version = "" if self.version is None else f", version {self.version}"
        return f"RecordTable({store.public()!r}, {len(self):,} records{of_version})"

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(
        self, key: "slice | Sequence[int] | npt.NDArray[Any] | pc.Expression"
    ) -> pa.RecordBatch: ...
    def __getitem__(
        self, key: "int | slice | Sequence[int] | npt.NDArray[Any] | pc.Expression"
    ) -> dict[str, Any] | pa.RecordBatch:
        """Return one record as a dict of Python values and NumPy arrays, or several records as a batch.

        A pyarrow expression selects the records that `matching` returns for the expression.
        """
        if isinstance(key, pc.Expression):
            return self.batch(self.matching(key))
        if isinstance(key, slice):
            return self.batch(np.arange(*key.indices(len(self))))
        if isinstance(key, int | np.integer):
            return elements(self._one(int(key)))[0]
        return self.batch(key)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return a list of records, each as a dict of values. PyTorch's DataLoader calls this method."""
        return elements(self.batch(indices))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self), 1024):
            yield from elements(self[start : start + 1024])

    @calling(__init__)
    def batch(self, indices: Sequence[int] | npt.NDArray[Any]) -> pa.RecordBatch:
        """Read records by index.

        Parameters
        ----------
        indices : sequence of int or bool
            The indices of the records, in any order. An index may be repeated. Negative indices count from
            the end. A boolean mask with an element for each record selects the records whose element is True.

        Returns
        -------
        pyarrow.RecordBatch
            One row for each element of ``indices``, in the same order.

        Raises
        ------
        IndexError
            If an index is out of bounds, or if a boolean mask does not have one element for each record.
        TFRecordError
            If ``indices`` contains neither integers nor a boolean mask.
        FileChangedError
            If a file of another tool was rewritten, or a file that must be read was removed. If the data of a
            rewritten file are in memory, the error may come up to one second late.
        """
        # Columns in memory wait for nothing, and a call of `thread_time` takes long.
        clock = thread_time if self._columns is None else perf_counter
        start, cpu = perf_counter(), clock()
        found = self._batch(indices)
        self._counters.add_batch(found.num_rows, start, clock() - cpu)
        return found

    def _batch(self, indices: Sequence[int] | npt.NDArray[Any]) -> pa.RecordBatch:
        numbers = self._rows.numbers(indices)
        if self._dataset.options.damage.skips:
            self._notice_fork()
            return as_batch(self._rows.read(numbers), self.schema)
        if self._columns is not None:
            self._notice_fork()
            units = np.unique(np.searchsorted(self._firsts, numbers, side="right") - 1).tolist()
            self._buffers.check_files(self._dataset.store, units)
            return self._columns.take(pa.array(numbers))
        return self._read(numbers) if numbers.size else self._schema.no_rows()

    @calling(__init__)
    def matching(self, filters: Sequence[Any] | pc.Expression) -> Numbers:
        """Return the indices of the records that pass ``filters``.

        Only the columns of the filters are read. If column files contain the filter columns, the data files
        are not opened.

        Parameters
        ----------
        filters : list of tuple, list of list of tuple, or pyarrow.compute.Expression
            Filters on any columns of the dataset, as in `read_tfrecord`.

        Returns
        -------
        numpy.ndarray
            The record indices (int64) in ascending order.

        Raises
        ------
        SchemaError
            If the filters name an unknown column, or compare a column with a value of an unsuitable type.
        TFRecordError
            If the table skips damaged records.

        Examples
        --------
        >>> import dask.dataframe as dd
        >>> import dask_tfrecord
        >>> import pyarrow.compute as pc
        >>> ddf = dd.from_dict({"x": [1, 2, 3], "y": ["a", "b", "c"]}, npartitions=2)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "labelled", columnar=["x"])
        >>> table = dask_tfrecord.feed.RecordTable("labelled", columns=["y"])
        >>> table.matching([("x", ">", 1)])
        array([1, 2])
        >>> table[pc.field("x") > 1].to_pydict()
        {'y': ['b', 'c']}
        """
        self._notice_fork()
        return self._rows.matching(filters)

    @calling(__init__)
    def block_order(
        self, seed: int = 0, epoch: int = 0, shard: tuple[int, int] = (0, 1), uneven: Uneven = "keep"
    ) -> Numbers:
        """Return the indices of all records in a random order that reads each block about once.

        The blocks of the dataset, of about 1 MiB each, are shuffled, and then the records of up to 24 blocks
        together. Reads in this order need only these blocks at a time, which the table keeps in memory.
        `iter_batches` with ``shuffle="blocks"`` returns the rows in the same order.

        Parameters
        ----------
        seed : int, default 0
            The seed of the random order.
        epoch : int, default 0
            The epoch, counted from 0. Each epoch has a different order.
        shard : tuple of int, default (0, 1)
            The index of the shard to return, counted from 0, and the number of shards. By default, each
            record is in exactly one shard.
        uneven : "keep", "drop" or "pad", default "keep"
            What to do if the records cannot be divided equally among the shards, as in `iter_batches`.

        Returns
        -------
        numpy.ndarray
            The record indices (int64), one for each record of the shard.

        Raises
        ------
        TFRecordError
            If there are more shards than records, or if an argument has a wrong type or value.

        Examples
        --------
        >>> import dask.dataframe as dd
        >>> import dask_tfrecord
        >>> ddf = dd.from_dict({"x": [1, 2, 3]}, npartitions=3)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "ordered")
        >>> table = dask_tfrecord.feed.RecordTable("ordered")
        >>> sorted(table.block_order(seed=7).tolist())
        [0, 1, 2]
        """
        arguments.choice("uneven", uneven, get_args(Uneven))
        arguments.number("seed", seed, 0)
        arguments.number("epoch", epoch, 0)
        order, checked = self._epoch_order(seed, epoch), checked_shard(shard)
        order.check_shards(checked[1])
        return order.rows(rows_of_shard([order.every_row], checked, True, uneven), self.block_starts)

    def _epoch_order(self, seed: int, epoch: int, sequences: int = 1) -> Order:
        """Return the order of the blocks in an epoch that is divided into this number of sequences."""
        counts, sizes = np.diff(self.block_starts), self._block_sizes
        return make_order(len(counts), counts, seed, epoch, sizes=sizes, is_grouped=True, sequences=sequences)

    @calling(__init__)
    def _one(self, index: int) -> pa.RecordBatch:
        """Read one record. Unlike `batch`, this method does not sort or group record indices."""
        if self._dataset.options.damage.skips or self._columns is not None:
            return self.batch([index])
        row = self._rows.record(index)
        unit = bisect_right(self._firsts, row) - 1
        self._notice_fork()
        [((data, offsets), [at])] = self._buffers.find(
            self._dataset, [(unit, np.array([row - self._firsts[unit]]))]
        )
        places = np.array([[0, offsets[at], offsets[at + 1]]])
        return self._decode([data], places, np.array([0]), np.array([row]), np.array([unit]))

    def _read(self, wanted: Numbers) -> pa.RecordBatch:
        """Read records by index. ``wanted`` must contain one or more indices."""
        rows, order = np.unique(wanted, return_inverse=True)
        units = np.searchsorted(self._firsts, rows, side="right") - 1
        starts = [0, *(np.flatnonzero(np.diff(units)) + 1).tolist()]
        groups = [
            (unit, rows[start:stop] - self._firsts[unit])
            for unit, start, stop in zip(
                units[starts].tolist(), starts, [*starts[1:], len(rows)], strict=True
            )
        ]
        self._notice_fork()
        found = self._buffers.find(self._dataset, groups)
        counts = [len(at) for _, at in found]
        # One row for each record: the index of its buffer, and the start and the end of its frame.
        places = np.empty((len(rows), 3), np.int64)
        places[:, 0] = np.repeat(np.arange(len(found)), counts)
        places[:, 1] = np.concatenate([offsets[at] for (_, offsets), at in found])
        places[:, 2] = np.concatenate([offsets[at + 1] for (_, offsets), at in found])
        return self._decode([data for (data, _), _ in found], places, order, wanted, units[order])

    def _decode(
        self, buffers: Sequence[pa.Buffer], places: Numbers, order: Numbers, wanted: Numbers, units: Numbers
    ) -> pa.RecordBatch:
        """Decode the records that ``places[order]`` describes.

        ``wanted`` and ``units`` contain the record index and the unit index of each decoded record.
        """
        decoder = getattr(self._local, "decoder", None)
        if decoder is None:
            decoder = self._local.decoder = RecordDecoder(self._dataset, self._schema)
        try:
            batch: pa.RecordBatch = decoder.decode(buffers, places, order, self._partitions[units])
        except TFRecordError as error:
            raise self._error(error, wanted, units) from None
        if batch.num_rows < len(order):
            problem = f"{len(order):,} records are more than the 2 GiB that a batch can hold"
            raise TFRecordError(problem, "ask for fewer records at a time")
        return batch

    def _error(self, error: TFRecordError, wanted: Numbers, units: Numbers) -> TFRecordError:
        """Copy the error, and add the path of the file and the index of the record in the file."""
        at = error.record or 0
        split = self._splits[units[at]]
        record = split.start.record + int(wanted[at] - self._firsts[units[at]])
        path = self._dataset.store.public(split.file.path)
        return locate_error(error.replaced(record=0, offset=None), path, record)

    def _notice_fork(self) -> None:
        """Replace what a forked process cannot share with its parent.

        Threads may do this at the same time, because each new object is complete when it is assigned, and
        `_process` is assigned last.
        """
        if os.getpid() != self._process:
            self._begin_counting(usable_after_fork(self._dataset))
            self._buffers = self._buffers.usable_after_fork()
            self._process = os.getpid()
