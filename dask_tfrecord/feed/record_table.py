"""`RecordTable`: random access to the records of a dataset.

The offset of every record of an uncompressed file is found once, from the lengths of the records. Records are
gathered by copying their bytes, and decoded together. Local files are memory-mapped. Other files are read in
blocks, of which a few are kept.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_tfrecord.codec import HEADER_BYTES, Decoder, scan, take_bytes
from dask_tfrecord.codec.codecs import detect
from dask_tfrecord.dataset.plan import Dataset
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.feed.datasets import count_rows, open_to_feed, selected_schema
from dask_tfrecord.files.reading import locate_error
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.filesystem import Filesystem
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.files.storage.unchanged import check_unchanged
from dask_tfrecord.files.stream import WINDOW_BYTES, open_window
from dask_tfrecord.schema.storage_values import load

# Blocks of a dataset: what is decompressed for one record of a compressed file.
_BLOCK_BYTES = 1 << 20

# Decompressed blocks that a table keeps.
_KEPT_BLOCKS = 32

# Threads that find the offsets of records.
_THREADS = 8

_Numbers = npt.NDArray[np.int64]


class _Records(NamedTuple):
    """Framed records that lie in one buffer.

    Attributes
    ----------
    data : pyarrow.Buffer
        The buffer, a file or a block.
    offsets : numpy.ndarray
        The first byte of each record in the buffer, and the end of the last.
    """

    data: pa.Buffer
    offsets: _Numbers

    def gather(self, rows: _Numbers) -> memoryview:
        """The bytes of some records, which are given in ascending order, one after the other."""
        bounds = np.empty(2 * len(rows), np.int64)
        bounds[::2], bounds[1::2] = self.offsets[rows], self.offsets[rows + 1]
        spans = pa.Array.from_buffers(
            pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), self.data]
        )
        taken = take_bytes(spans, np.arange(0, len(bounds), 2).data)
        return memoryview(taken.buffers()[2])


class RecordTable:
    """The records of a dataset, in the order of `read_tfrecord`, to be read by their numbers.

    Parameters
    ----------
    path : str, path-like or list of these
        A path that `read_tfrecord` takes. Uncompressed local files are fastest. One record of a compressed
        file costs a block of about 1 MiB if `to_tfrecord` wrote the file, else the whole file.
    columns : str or list of str, optional
        The columns to read, in this order. All columns by default.
    schema, storage_options, filesystem
        As in `read_tfrecord`.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns.

    Raises
    ------
    FileNotFoundError
        If there is nothing to read.
    CorruptRecordError
        If the length of a record is damaged; the payload of a record is verified when it is read.

    Notes
    -----
    Several threads may use a table at the same time. A table pickles with its offsets, so a worker process
    does not search them again. It takes 8 bytes of memory a record.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> ddf = dd.from_dict({"x": [1, 2, 3], "y": ["a", "b", "c"]}, npartitions=2)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "letters")
    >>> table = dask_tfrecord.RecordTable("letters")
    >>> len(table), table[2]
    (3, {'x': 3, 'y': 'c'})
    >>> table[[2, 0]].to_pydict()
    {'x': [3, 1], 'y': ['c', 'a']}
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        columns: str | Sequence[str] | None = None,
        *,
        schema: Any = None,
        storage_options: dict[str, Any] | None = None,
        filesystem: Filesystem = None,
    ) -> None:
        dataset = open_to_feed(
            path,
            columns,
            blocksize=_BLOCK_BYTES,
            schema=schema,
            storage_options=storage_options,
            filesystem=filesystem,
        )
        self._dataset = dataset
        self._schema = selected_schema(dataset, columns)
        self._stored = self._schema.select(
            name for name in self._schema.names if name not in dataset.partition_values
        )
        self._allowed = dataset.partition(0, self._schema).allowed_features
        self._splits, partitions = _splits(dataset)
        self._partition_of_split = np.array(partitions, np.int64)
        self._mapped = _find_offsets(dataset, self._splits)
        counts = [
            len(offsets) - 1 if offsets is not None else split.records or 0
            for split, offsets in zip(self._splits, self._mapped, strict=True)
        ]
        self._first = np.cumsum([0, *counts])
        self._firsts: list[int] = self._first.tolist()  # `bisect` is faster for one number
        self._prepare()

    def _prepare(self) -> None:
        """Make what does not pickle."""
        self.schema = self._schema.arrow
        self._local = threading.local()
        self._lock = threading.Lock()
        self._maps: dict[str, pa.Buffer] = {}
        self._kept: OrderedDict[int, _Records] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        made = {"schema", "_local", "_lock", "_maps", "_kept"}
        return {name: value for name, value in vars(self).items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def __len__(self) -> int:
        return self._firsts[-1]

    def __repr__(self) -> str:
        store = self._dataset.store
        return f"RecordTable({store.public(store.root)!r}, {len(self):,} records)"

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: "slice | Sequence[int] | npt.NDArray[Any]") -> pa.RecordBatch: ...
    def __getitem__(
        self, key: "int | slice | Sequence[int] | npt.NDArray[Any]"
    ) -> dict[str, Any] | pa.RecordBatch:
        """One record as a dict of Python values and NumPy arrays, or several records as a batch."""
        if isinstance(key, slice):
            return self.batch(np.arange(*key.indices(len(self))))
        if isinstance(key, int | np.integer):
            return _elements(self._one(int(key)))[0]
        return self.batch(key)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several records, each as `__getitem__` returns one. Loaders of PyTorch call this method."""
        return _elements(self.batch(indices))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self), 1024):
            yield from _elements(self[start : start + 1024])

    def batch(self, indices: Sequence[int] | npt.NDArray[Any]) -> pa.RecordBatch:
        """Read records by their numbers.

        Parameters
        ----------
        indices : sequence of int
            Numbers of records, in any order, also repeatedly. Negative numbers count from the end.

        Returns
        -------
        pyarrow.RecordBatch
            A row for each index, in the order of the indices.

        Raises
        ------
        IndexError
            If there is no such record.
        FileChangedError
            If a file was rewritten since the table was made.
        """
        numbers = np.asarray(indices, np.int64)
        outside = numbers[(numbers >= len(self)) | (numbers < -len(self))]
        if outside.size:
            raise IndexError(f"record {outside[0]:,} of a table of {len(self):,} records")
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        if not numbers.size:
            return self._schema.no_rows()
        rows, order = np.unique(numbers, return_inverse=True)
        batch = self._read(rows)
        if np.array_equal(order, np.arange(len(rows))):
            return batch
        return batch.take(pa.array(order))

    def _one(self, index: int) -> pa.RecordBatch:
        """One record, without the cost of sorting."""
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"record {index:,} of a table of {count:,} records")
        row = index % count
        split = bisect_right(self._firsts, row) - 1
        self._check_unchanged([split])
        records = self._records(split)
        at = row - self._firsts[split]
        start, stop = int(records.offsets[at]), int(records.offsets[at + 1])
        return self._decode(memoryview(records.data)[start:stop], np.array([split]), np.array([row]))

    def _read(self, rows: _Numbers) -> pa.RecordBatch:
        """The records of ascending numbers."""
        splits = np.searchsorted(self._first, rows, side="right") - 1
        starts = np.flatnonzero(np.diff(splits, prepend=-1))
        self._check_unchanged(splits[starts].tolist())
        gathered = [
            self._records(int(splits[start])).gather(rows[start:stop] - self._first[splits[start]])
            for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True)
        ]
        return self._decode(gathered[0] if len(gathered) == 1 else b"".join(gathered), splits, rows)

    def _decode(self, data: "memoryview | bytes", splits: _Numbers, rows: _Numbers) -> pa.RecordBatch:
        decoder = getattr(self._local, "decoder", None)
        if decoder is None:  # a decoder serves one thread
            decoder = Decoder(self._stored.columns, self._stored.record_type, known=self._allowed)
            self._local.decoder = decoder
        decoded = decoder.decode(data, final=True)
        if decoded.damage is not None:
            raise self._error(decoded.damage.error(self._stored.columns, 0, 0), splits, rows)
        if decoded.records < len(rows):
            raise TFRecordError(
                f"{len(rows):,} records are more than the 2 GiB that a batch can hold",
                advice="ask for fewer records at a time",
            )
        try:
            batch = self._stored.from_storage(decoded.batch)
        except TFRecordError as error:
            raise self._error(error, splits, rows) from None
        return self._with_partition_values(batch, splits)

    def _error(self, error: TFRecordError, splits: _Numbers, rows: _Numbers) -> TFRecordError:
        """The error with the file and the number of its record in the file."""
        at = error.record or 0
        split = self._splits[int(splits[at])]
        record = split.start.record + int(rows[at] - self._first[splits[at]])
        path = self._dataset.store.public(split.file.path)
        return locate_error(error.replaced(record=0, offset=None), path, record)

    def _with_partition_values(self, batch: pa.RecordBatch, splits: _Numbers) -> pa.RecordBatch:
        if len(self._stored.fields) == len(self._schema.fields):
            return batch
        partitions = pa.array(self._partition_of_split[splits])
        columns = [
            load(self._dataset.partition_values[item.name].take(partitions), item.type, item.categories)
            if item.name in self._dataset.partition_values
            else batch[item.name]
            for item in self._schema.fields
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _check_unchanged(self, splits: Sequence[int]) -> None:
        check_unchanged(self._dataset.store, [self._splits[split].file for split in splits])

    def _records(self, number: int) -> _Records:
        """The records of a split: in the map of its file, or in a block that is read and kept."""
        offsets = self._mapped[number]
        if offsets is not None:
            split = self._splits[number]
            path = split.file.path
            data = self._maps.get(path)
            if data is None:
                data = self._maps.setdefault(path, pa.memory_map(path).read_buffer())
            return _Records(data, offsets)
        with self._lock:
            records = self._kept.get(number)
            if records is not None:
                self._kept.move_to_end(number)
                return records
        records = _read_block(self._dataset, self._splits[number])
        with self._lock:
            self._kept[number] = records
            while len(self._kept) > _KEPT_BLOCKS:
                self._kept.popitem(last=False)
        return records


def _splits(dataset: Dataset) -> tuple[list[Split], list[int]]:
    """All splits of a dataset, each with its number of records, and the partition of each split."""
    pairs = [(split, number) for number, splits in enumerate(dataset.partitions) for split in splits]
    splits = count_rows(dataset, [split for split, _ in pairs])
    return splits, [number for _, number in pairs]


def _find_offsets(dataset: Dataset, splits: Sequence[Split]) -> list[_Numbers | None]:
    """The offsets of the records of each split of an uncompressed local file; None for all other splits."""
    if not dataset.store.local:
        return [None] * len(splits)

    def find(group: list[Split]) -> list[_Numbers | None]:
        with open(group[0].file.path, "rb") as file:
            if detect(file.read(HEADER_BYTES)) is not None:
                return [None] * len(group)
        data = memoryview(pa.memory_map(group[0].file.path).read_buffer())
        return [_scan(dataset, split, data) for split in group]

    groups = [list(group) for _, group in groupby(splits, key=lambda split: split.file.path)]
    with ThreadPoolExecutor(_THREADS) as pool:
        return [offsets for group in pool.map(find, groups) for offsets in group]


def _scan(dataset: Dataset, split: Split, data: memoryview) -> _Numbers:
    """The offsets in its file of the records of a split, and its end."""
    start = split.start.offset
    stop = len(data) if split.stop is None else split.stop.offset
    offsets = _offsets(dataset, split, data[start:stop])
    offsets += start
    return offsets


def _offsets(dataset: Dataset, split: Split, data: memoryview) -> _Numbers:
    scanned = scan(data, final=True, offsets=True, verify_crc=False)
    if scanned.damage is not None:
        error = scanned.damage.error((), 0, split.start.content)
        raise locate_error(error, dataset.store.public(split.file.path), split.start.record)
    found = np.zeros(0, np.int64) if scanned.offsets is None else scanned.offsets.to_numpy()
    return np.append(found, scanned.consumed)


def _read_block(dataset: Dataset, split: Split) -> _Records:
    """Read and decompress a split."""
    path = dataset.store.public(split.file.path)
    data = bytearray()
    try:
        with open_window(dataset.store, split, dataset.options, WINDOW_BYTES) as window:
            for view in window:
                data += view
                window.advance(len(view))
    except TFRecordError as error:
        raise locate_error(error, path, split.start.record) from None
    return _Records(pa.py_buffer(data), _offsets(dataset, split, memoryview(data)))


def _elements(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dicts of Python values; lists of numbers become NumPy arrays."""
    names = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    if not columns:
        return [{} for _ in range(batch.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    type_ = column.type
    is_list = pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)
    if is_list and (pa.types.is_integer(type_.value_type) or pa.types.is_floating(type_.value_type)):
        return [None if value is None else value.values.to_numpy() for value in column]
    values: list[Any] = column.to_pylist()
    return values
