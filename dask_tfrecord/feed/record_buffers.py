"""Find the offsets of a dataset's records in its files, and provide the bytes of the records.

The bytes come from memory-mapped files, from blocks that are kept in memory, or from ranges of files.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import HEADER_BYTES, Ints
from dask_tfrecord.codec.codecs import detect, is_frame
from dask_tfrecord.collection.scheduler import Progress, Report
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.errors import FileChangedError
from dask_tfrecord.files.column_files import open_column_file
from dask_tfrecord.files.record_file import RecordFile, Records, TableReader
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.file_list import FileInfo
from dask_tfrecord.files.storage.range_requests import ByteRange
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.row_selection import Numbers
from dask_tfrecord.schema.fields import Schema

# The number of threads that read files when a table is opened.
THREADS = 8


class RecordDecoder:
    """Decode records from several buffers to rows with the columns of a schema.

    Each thread needs a separate decoder.
    """

    def __init__(self, dataset: ReadPlan, schema: Schema) -> None:
        self._values, self._schema = dataset.partition_values, schema
        self._stored = schema.select(name for name in schema.names if name not in self._values)
        allowed = dataset.partition(0, schema).allowed_features
        self._decoder = TableReader(dataset.store, self._stored, dataset.options, allowed).decoder()

    def decode(
        self, buffers: Sequence[pa.Buffer], places: Ints, rows: Ints, partitions: Ints
    ) -> pa.RecordBatch:
        """Decode records as `Decoder.feed_records` does, and add the partition columns.

        ``partitions`` contains the partition index of each row in ``rows``. The batch ends before the first
        record that would make the batch exceed 2 GiB. The ``record`` of an error is an index into ``rows``.
        """
        fed = self._decoder.feed_records(buffers, places, rows)
        decoded = self._decoder.take()
        if fed.damage is not None:
            raise fed.damage.error(self._stored.columns, 0, 0)
        batch = self._stored.from_storage(decoded)
        if batch.num_columns == len(self._schema.fields):
            return batch
        numbers = pa.array(partitions[: batch.num_rows])
        columns = [
            item.load(self._values[item.name].take(numbers))
            if item.name in self._values
            else batch[item.name]
            for item in self._schema.fields
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema.arrow)


class Unit(NamedTuple):
    """The records that a table reads from one buffer: all records of a memory-mapped file, or of a split.

    ``split`` is the index of the unit's first split. ``offsets`` contains the start of each record in the
    file, followed by the end of the last record. If the split is read as a block, ``offsets`` is None.
    """

    split: int
    offsets: Ints | None


def find_units(dataset: ReadPlan, splits: Sequence[Split]) -> list[Unit]:
    """Divide the splits of a dataset into `Unit` objects, and find the record offsets of each unit.

    The offsets come from column files, or from a search of uncompressed local files. If the read skips
    damage, all splits are read as blocks.
    """
    if dataset.options.damage.skips:
        return [Unit(number, None) for number in range(len(splits))]

    def find(group: list[Split]) -> list[Ints | None]:
        """Return the record offsets of a file or of each split.

        The value None means that the split is read as a block.
        """
        store = dataset.store
        mapped = _map(store, group[0].file)
        data = memoryview(mapped or b"")
        if dataset.options.compression not in ("infer", None) or detect(bytes(data[:HEADER_BYTES])):
            return [None] * len(group)
        known = _of_column_file(dataset, group)
        if mapped is None:
            return [None if known is None else _of_split(known, split) for split in group]
        if known is None:
            parts = [_find_records(RecordFile(store, split, dataset.options), data) for split in group]
            known = np.concatenate([*(part[:-1] for part in parts), parts[-1][-1:]])
        return [known]

    firsts, groups = zip(*splits_by_file(splits), strict=True) if splits else ((), ())
    units: list[Unit] = []
    title = f"{dataset.store.public()}: find records"
    with ThreadPoolExecutor(THREADS) as pool, Progress(title) as progress:
        for index, found in enumerate(pool.map(find, groups)):
            units += map(Unit, range(firsts[index], firsts[index] + len(found)), found)
            rows = sum(len(one) - 1 for one in found if one is not None)
            progress.add(Report("", 1, 1, index, len(groups), rows, 0))
    return units


def _map(store: Store, file: FileInfo) -> pa.Buffer | None:
    """Map a local file into memory. Raise FileChangedError if its size is not the expected size."""
    mapped = store.map_file(file.path)
    if mapped is not None and file.size not in (None, mapped.size):
        raise store.resized(file.path, file.size or 0, f"{mapped.size:,}")
    return mapped


def _of_column_file(dataset: ReadPlan, group: Sequence[Split]) -> Ints | None:
    """Return the record offsets of the file whose splits are ``group``, or None if they are unknown."""
    store, file, beside = dataset.store, group[0].file, group[0].columns
    counts = [split.records for split in group if split.records is not None]
    # The offsets in column files refer to the decompressed content of the data files.
    if beside is None or len(counts) < len(group) or file.compression is not None:
        return None
    path, count = file.path[len(store.join("")) :], sum(counts)
    stored = open_column_file(store, beside).rows_of(path, file.size, file.crc32c, count)
    offsets = None if stored is None else stored.offsets(0, count)
    # If the snapshot does not record the codec, the file may be compressed. The last offset of a compressed
    # file differs from the size of the file.
    is_usable = offsets is not None and len(offsets) == count + 1 and offsets[-1] == file.size
    return offsets if is_usable else None


def splits_by_file(splits: Sequence[Split]) -> Iterator[tuple[int, list[Split]]]:
    """Yield the splits of each file, and the index of the file's first split."""
    for _, group in groupby(enumerate(splits), key=lambda item: item[1].file.path):
        numbered = list(group)
        yield numbered[0][0], [split for _, split in numbered]


def _of_split(offsets: Ints, split: Split) -> Ints:
    start = split.start.record
    return offsets[start:] if split.stop is None else offsets[start : split.stop.record + 1]


def _find_records(file: RecordFile, data: memoryview) -> Ints:
    """Return the file offsets at which the records of a split begin, and at which the last record ends."""
    start, stop = file.split.start.offset, file.split.stop
    return file.find_records(data[start : None if stop is None else stop.offset]) + start


# A table drops blocks from memory only if it keeps more than `_KEPT_BLOCKS` blocks and more than
# `_KEPT_BYTES` decompressed bytes. A batch in the order of `RecordTable.block_order` may contain rows of two
# groups of blocks, and both groups fit into memory.
_KEPT_BLOCKS = 32
_KEPT_BYTES = 1 << 26

# The number of locks that protect the reading of blocks. Each lock protects several blocks.
_LOCKS = 64


class RecordBuffers:
    """The buffers from which a table reads records.

    Several threads may use the object at the same time.
    """

    def __init__(self, splits: Sequence[Split], offsets: Sequence[Ints | None]) -> None:
        self._splits = splits
        self.offsets = offsets
        self._lock = threading.Lock()
        # Threads that need the same block wait until one thread has read the block.
        self._reading = [threading.Lock() for _ in range(_LOCKS)]
        self._maps: dict[str, pa.Buffer] = {}
        # The value None means that only one range of the block was read. When a second range of a block is
        # needed, the whole block is read.
        self._kept: OrderedDict[int, Records | None] = OrderedDict()
        self._kept_bytes = 0

    def usable_after_fork(self) -> "RecordBuffers":
        """Return a copy with new locks, because a thread may have held a lock when the process was forked."""
        found = RecordBuffers(self._splits, self.offsets)
        found._maps = self._maps.copy()
        # `list` copies the items in one step. Another thread may change the dict at the same time.
        found._kept = OrderedDict(list(self._kept.items()))
        found._kept_bytes = sum(map(_size, found._kept.values()))
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordBuffers, (self._splits, self.offsets)

    def find(self, dataset: ReadPlan, groups: Sequence[tuple[int, Numbers]]) -> list[tuple[Records, Numbers]]:
        """Return a buffer for each `Unit`, and the indices of the requested records in the buffer."""
        found_ranges = ((unit, self._range(dataset.store, unit, rows)) for unit, rows in groups)
        ranges = {unit: one for unit, one in found_ranges if one is not None}
        stored = _read_ranges(dataset.store, [*ranges.values()]) if ranges else []
        # A file may be compressed although the file name has no suffix. A range of a compressed file does
        # not begin with a valid record header, so the whole block is read instead.
        read = {
            unit: data for unit, data in zip(ranges, stored, strict=True) if is_frame(data[:HEADER_BYTES])
        }
        found = []
        for unit, rows in groups:
            offsets = self.offsets[unit]
            if unit in read and offsets is not None:
                first, last = int(rows[0]), int(rows[-1])
                records = Records(pa.py_buffer(read[unit]), offsets[first : last + 2] - offsets[first])
                found.append((records, rows - first))
            else:
                found.append((self._records(dataset, unit), rows))
        return found

    def _range(self, store: Store, unit: int, rows: Numbers) -> ByteRange | None:
        """Return the requested range of a remote split.

        Return None if the whole split should be read, because a range of it was read before, or because the
        requested range is at least half of the split.
        """
        offsets = self.offsets[unit]
        if offsets is None or self._mapped(store, unit) is not None:
            return None
        start, stop = int(offsets[rows[0]]), int(offsets[rows[-1] + 1])
        if 2 * (stop - start) >= offsets[-1] - offsets[0]:
            return None
        with self._lock:
            if unit in self._kept:
                return None
            self._keep(unit, None)
        file = self._splits[unit].file
        return ByteRange(file.path, start, stop, file.stamp)

    def _keep(self, unit: int, records: Records | None) -> None:
        self._kept_bytes += _size(records) - _size(self._kept.pop(unit, None))
        self._kept[unit] = records
        while len(self._kept) > _KEPT_BLOCKS:
            oldest, kept = next(iter(self._kept.items()))
            if kept is not None and self._kept_bytes <= _KEPT_BYTES:
                break
            self._kept_bytes -= _size(kept)
            del self._kept[oldest]

    def _records(self, dataset: ReadPlan, unit: int) -> Records:
        """Return the records of a `Unit`, from the memory-mapped file or from a block."""
        store, split, offsets = dataset.store, self._splits[unit], self.offsets[unit]
        if offsets is not None and (mapped := self._mapped(store, unit)) is not None:
            if mapped.size < offsets[-1]:
                raise _too_short(store.public(split.file.path))
            return Records(mapped, offsets)
        records = self._kept_block(unit)
        if records is None:
            with self._reading[unit % _LOCKS]:
                records = self._kept_block(unit)
                if records is None:
                    records = RecordFile(store, split, dataset.options).records()
                    with self._lock:
                        self._keep(unit, records)
        return records

    def _mapped(self, store: Store, unit: int) -> pa.Buffer | None:
        """Return the memory-mapped file of a `Unit`, or None if the file is remote."""
        file = self._splits[unit].file
        if file.path not in self._maps and (mapped := _map(store, file)) is not None:
            self._maps.setdefault(file.path, mapped)
        return self._maps.get(file.path)

    def _kept_block(self, unit: int) -> Records | None:
        with self._lock:
            records = self._kept.get(unit)
            if records is not None:
                self._kept.move_to_end(unit)
            return records


def _size(records: Records | None) -> int:
    return 0 if records is None else int(records.data.size)


def _read_ranges(store: Store, ranges: Sequence[ByteRange]) -> list[bytes]:
    found = store.read_ranges(ranges)
    for data, one in zip(found, ranges, strict=True):
        if len(data) != one.stop - one.start:
            raise _too_short(store.public(one.path))
    return found


def _too_short(path: str) -> FileChangedError:
    return FileChangedError("the file is shorter than it was when the table was made", path=path)
