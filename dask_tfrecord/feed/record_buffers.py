"""Provide the bytes of records: memory-mapped files, blocks that are kept in memory, and ranges of files."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dask_tfrecord.codec import HEADER_BYTES
from dask_tfrecord.codec.checked import Ints
from dask_tfrecord.codec.codecs import is_frame
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.errors import FileChangedError
from dask_tfrecord.feed.record_offsets import Records, map_file, read_block
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.random_access import Numbers

# The least number and size in bytes of decompressed blocks that are kept in memory. Two groups of blocks of
# `RecordTable.block_order` fit, because a batch may have rows of two groups.
_KEPT_BLOCKS = 32
_KEPT_BYTES = 1 << 26

# The number of locks, of which each one serves the blocks with some numbers.
_LOCKS = 64


class RecordBuffers:
    """The buffers that hold the records of a table. Several threads may use the object.

    Parameters
    ----------
    splits : list of Split
        The split of each unit. `find_units` explains units.
    offsets : list of numpy.ndarray or None
        The offsets of the records of each unit, or None for a unit that is read as a block.
    """

    def __init__(self, splits: Sequence[Split], offsets: Sequence[Ints | None]) -> None:
        self._splits = splits
        self.offsets = offsets
        self._prepare()

    def _prepare(self) -> None:
        """Create the attributes that cannot be pickled."""
        self.renew_locks()
        self._maps: dict[str, pa.Buffer] = {}
        # The value None stands for a block of which one range was read. When another range of the block is
        # needed, the whole block is read.
        self._kept: OrderedDict[int, Records | None] = OrderedDict()
        self._kept_bytes = 0

    def renew_locks(self) -> None:
        """Create new locks, after a fork."""
        self._lock = threading.Lock()
        # Threads that need the same block wait for one of them to read it.
        self._reading = [threading.Lock() for _ in range(_LOCKS)]

    def __getstate__(self) -> dict[str, Any]:
        return {"_splits": self._splits, "offsets": self.offsets}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def find(self, dataset: ReadPlan, groups: Sequence[tuple[int, Numbers]]) -> list[tuple[Records, Numbers]]:
        """Return a buffer for each unit, and the numbers of the wanted records in this buffer.

        The wanted records of a unit must be in ascending order.
        """
        alone = [(unit, rows) for unit, rows in groups if self._reads_range(dataset.store, unit, rows)]
        ranges = _read_ranges(dataset.store, [self._range(*one) for one in alone]) if alone else []
        # A compressed file may have a name without a suffix. Its ranges do not begin with a record.
        read = {
            unit: data for (unit, _), data in zip(alone, ranges, strict=True) if is_frame(data[:HEADER_BYTES])
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

    def _reads_range(self, store: Store, unit: int, rows: Numbers) -> bool:
        """Return True if only a range of a split is read: at the first read, if the record offsets are
        known and the range is less than half of the split.
        """
        offsets = self.offsets[unit]
        if store.local or offsets is None:
            return False
        if 2 * (offsets[rows[-1] + 1] - offsets[rows[0]]) >= offsets[-1] - offsets[0]:
            return False
        with self._lock:
            if unit in self._kept:
                return False
            self._keep(unit, None)
        return True

    def _range(self, unit: int, rows: Numbers) -> tuple[str, int, int]:
        """Return the path, start and stop of the byte range that holds all of the given rows of a split."""
        offsets = self.offsets[unit]
        assert offsets is not None  # `_reads_range` has checked that the offsets are known
        return self._splits[unit].file.path, int(offsets[rows[0]]), int(offsets[rows[-1] + 1])

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
        """Return the records of a unit, from the memory-mapped file or from a block that is kept in
        memory.
        """
        store, split, offsets = dataset.store, self._splits[unit], self.offsets[unit]
        if offsets is not None and store.local:
            path = split.file.path
            data = self._maps.get(path)
            if data is None:
                data = self._maps.setdefault(path, map_file(store, path))
            if data.size < offsets[-1]:
                raise _too_short(store.public(path))
            return Records(data, offsets)
        records = self._kept_block(unit)
        if records is None:
            with self._reading[unit % _LOCKS]:
                records = self._kept_block(unit)
                if records is None:
                    records = read_block(store, dataset.options, split)
                    with self._lock:
                        self._keep(unit, records)
        return records

    def _kept_block(self, unit: int) -> Records | None:
        with self._lock:
            records = self._kept.get(unit)
            if records is not None:
                self._kept.move_to_end(unit)
            return records


def _size(records: Records | None) -> int:
    return 0 if records is None else int(records.data.size)


def _read_ranges(store: Store, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    found = store.read_ranges(ranges)
    for data, (path, start, stop) in zip(found, ranges, strict=True):
        if len(data) != stop - start:
            raise _too_short(store.public(path))
    return found


def _too_short(path: str) -> FileChangedError:
    return FileChangedError("the file is shorter than it was when the table was made", path=path)
