"""Find the offsets of a dataset's records in its files, and provide the bytes of the records.

The bytes come from memory-mapped files, from blocks that are kept in memory, or from ranges of files.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import groupby
from math import inf
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import HEADER_BYTES, Ints
from dask_tfrecord.codec.codecs import detect, is_frame
from dask_tfrecord.collection.numbered_rows import Numbers
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.errors import FileChangedError
from dask_tfrecord.files.column_files import open_column_file
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.record_file import RecordFile, Records, TableReader
from dask_tfrecord.files.splits import Split, groups_by_bytes
from dask_tfrecord.files.window import check_file
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.range_requests import ByteRange
from dask_tfrecord.storage.reader import stamp_of
from dask_tfrecord.storage.store import Store

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
        self._rules = schema, dataset.options, allowed

    def equals(self, other: "RecordDecoder") -> bool:
        """Return True if the other decoder decodes each record to the same row."""
        return not self._values and not other._values and self._rules == other._rules

    def decode(
        self, buffers: Sequence[pa.Buffer], places: Ints, rows: Ints, partitions: Ints | None
    ) -> pa.RecordBatch:
        """Decode records as `Decoder.feed_records` does, and add the partition columns.

        ``partitions`` contains the partition index of each row in ``rows``, and is needed only for partition
        columns. The batch ends before the first record with which it would exceed 2 GiB. The ``record`` of an
        error is an index into ``rows``.
        """
        fed = self._decoder.feed_records(buffers, places, rows)
        decoded = self._decoder.take()
        if fed.damage is not None:
            raise fed.damage.error(self._stored.columns, 0, 0)
        batch = self._stored.from_storage(decoded)
        if batch.num_columns == len(self._schema.fields):
            return batch
        assert partitions is not None
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
        store, file = dataset.store, group[0].file
        mapped = store.map_file(file.path, file.size)
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
    with ThreadPoolExecutor(THREADS) as pool:
        for first, found in zip(firsts, pool.map(find, groups), strict=True):
            units += map(Unit, range(first, first + len(found)), found)
    return units


def _of_column_file(dataset: ReadPlan, group: Sequence[Split]) -> Ints | None:
    """Return the record offsets of the file whose splits are ``group``, or None if they are unknown."""
    store, file, column_file = dataset.store, group[0].file, group[0].columns
    counts = [split.records for split in group if split.records is not None]
    # The offsets in column files refer to the decompressed content of the data files.
    if column_file is None or len(counts) < len(group) or file.compression is not None:
        return None
    path, count = file.path[len(store.join("")) :], sum(counts)
    stored = open_column_file(store, column_file).rows_of(path, file.size, file.crc32c, count)
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

# At most this many stored bytes are requested at once. A longer block, such as a whole compressed file of
# another tool, is read alone and in parts.
_REQUESTED_BYTES = 1 << 25

# Two ranges of a file that are at most this many bytes apart are read with one request, unless the joined
# range is longer than `Store.request_cost`.
_GAP_BYTES = 1 << 16

# For this many seconds after another tool's file was found unchanged, its data in memory are used.
_LOOK_SECONDS = 1.0


class _Wanted(NamedTuple):
    """Bytes of a file that a batch needs but that are not in memory.

    If ``offsets`` is None, the whole block of the unit is read, and ``block`` is its future. Otherwise, a
    part of the block is read. The part contains the records ``rows`` of the unit, and ``offsets`` contains
    the file offsets of all its records. ``range`` is None if the block cannot be read by one range request.
    """

    unit: int
    rows: Numbers
    range: ByteRange | None
    offsets: Ints | None = None
    block: "Future[Records] | None" = None


# A buffer, and the indices of the requested records in it.
_Found: TypeAlias = tuple[Records, Numbers]


class RecordBuffers:
    """The buffers from which a table reads records.

    Several threads may use the object at the same time.
    """

    def __init__(self, splits: Sequence[Split], offsets: Sequence[Ints | None]) -> None:
        self._splits = splits
        self.offsets = offsets
        self._lock = threading.Lock()
        # The blocks that threads are reading. Other threads that need such a block wait for its future.
        self._reading: dict[int, Future[Records]] = {}
        self._maps: dict[str, pa.Buffer] = {}
        # The value None means that a batch has read parts of the block. If another batch needs the block, the
        # whole block is read.
        self._kept: OrderedDict[int, Records | None] = OrderedDict()
        self._kept_bytes = 0
        # Maps the path of each file of another tool to the time at which the file was last found unchanged.
        self._seen: dict[str, float] = {}
        # Maps the path of each file whose stamp has changed, but not its content, to the new stamp.
        self._stamps: dict[str, str] = {}

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

    def find(self, dataset: ReadPlan, groups: Sequence[tuple[int, Numbers]]) -> list[_Found]:
        """Return the buffers that contain the requested records of each `Unit`, in the order of the records.

        All ranges of files that are not in memory are requested at once. Raise FileChangedError if a file of
        another tool was rewritten. The files of this library never change.
        """
        began = monotonic()
        found, remote = dict[int, list[_Found]](), []
        for unit, rows in groups:
            if (records := self._mapped_records(dataset.store, unit)) is None:
                remote.append((unit, rows))
            else:
                found[unit] = [(records, rows)]
        if remote:
            found |= self._find_remote(dataset, remote)
        self.check_files(dataset.store, [unit for unit, _ in groups], began)
        return [one for unit, _ in groups for one in found[unit]]

    def check_files(self, store: Store, units: Sequence[int], began: float | None = None) -> None:
        """Raise FileChangedError if a file of another tool was rewritten.

        A file that was found unchanged less than `_LOOK_SECONDS` before ``began``, or later, is not looked at
        again. ``began`` is the time at which the caller began to read, by default the current time.
        """
        files = [file for unit in units if (file := self._splits[unit].file).stamp]
        if files:
            now = monotonic() if began is None else began
            due = {file for file in files if now >= self._seen.get(file.path, -inf) + _LOOK_SECONDS}
            store.for_each(partial(check_file, store), due)
            self._seen.update((file.path, now) for file in due)

    def _find_remote(
        self, dataset: ReadPlan, groups: Sequence[tuple[int, Numbers]], *, in_parts: bool = True
    ) -> dict[int, list[_Found]]:
        """Return the records of files that are not memory-mapped.

        If ``in_parts`` is False, only whole blocks are read. A block that another thread is reading is not
        read a second time.
        """
        found, again = {unit: list[_Found]() for unit, _ in groups}, set[int]()
        wanted, of_others = deque[_Wanted](), deque[tuple[int, Numbers, Future[Records]]]()
        try:
            with self._lock:
                for unit, rows in groups:
                    if records := self._kept.get(unit):
                        self._kept.move_to_end(unit)
                        found[unit].append((records, rows))
                    elif unit in self._reading:
                        of_others.append((unit, rows, self._reading[unit]))
                    else:
                        wanted += self._claim(dataset, unit, rows, in_parts=in_parts)
            size, stored = 0, self._read_ranges(dataset.store, [*wanted])
            while wanted:
                one = wanted[0]
                read = self._read(dataset, one, None if one.range is None else next(stored))
                if read is None:
                    again.add(one.unit)
                else:
                    size += _size(read[0])
                    found[one.unit].append(read if size <= _KEPT_BYTES else _picked(*read))
                wanted.popleft()
        finally:
            self._release(wanted)
        while of_others:
            unit, rows, block = of_others.popleft()
            try:
                records = block.result()
            except Exception:  # the other thread has failed, and its error may not apply to this thread
                again.add(unit)
            else:
                size += _size(records)
                found[unit].append((records, rows) if size <= _KEPT_BYTES else _picked(records, rows))
        if again:
            rest = [group for group in groups if group[0] in again]
            found |= self._find_remote(dataset, rest, in_parts=False)
        return found

    def _claim(self, dataset: ReadPlan, unit: int, rows: Numbers, *, in_parts: bool) -> Iterator[_Wanted]:
        """Choose the bytes to read for some records of a split. The caller holds the lock.

        The whole block is read if a part of it was read before, or if the requested parts are at least half
        of it.
        """
        split, offsets, file = self._splits[unit], self.offsets[unit], self._splits[unit].file
        if in_parts and offsets is not None and unit not in self._kept:
            starts, stops = offsets[rows], offsets[rows + 1]
            cuts = np.flatnonzero(starts[1:] - stops[:-1] > _GAP_BYTES) + 1
            firsts, lasts = np.append(0, cuts), np.append(cuts, len(rows))
            if 2 * (stops[lasts - 1] - starts[firsts]).sum() < offsets[-1] - offsets[0]:
                self._keep(unit, None)
                for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                    part, span = rows[first:last], (int(starts[first]), int(stops[last - 1]))
                    of_part = offsets[part[0] : part[-1] + 2]
                    yield _Wanted(unit, part, ByteRange(file.path, *span, file.stamp, file.size), of_part)
                return
        block = self._reading[unit] = Future()
        is_asked = dataset.store.is_remote and split.stored_bytes <= _REQUESTED_BYTES
        whole = split.stored_range if is_asked else None
        yield _Wanted(unit, rows, whole, None, block)

    def _release(self, wanted: Iterable[_Wanted]) -> None:
        """Let other threads read the blocks that this thread has claimed, but has not read."""
        with self._lock:
            for one in wanted:
                if one.block is not None:
                    self._reading.pop(one.unit, None)
                    one.block.cancel()

    def _read(self, dataset: ReadPlan, wanted: _Wanted, stored: memoryview | None) -> _Found | None:
        """Return the records of a block, or of a part of a block.

        ``stored`` contains the bytes of the range, or is None if the file must be opened. A file may be
        compressed although its name has no suffix. A part of a compressed file does not begin with a valid
        record header. For such a part, return None: the whole block must be read.
        """
        unit, rows, _, offsets, block = wanted
        if block is not None:
            records = RecordFile(dataset.store, self._splits[unit], dataset.options).records(stored=stored)
            with self._lock:
                self._keep(unit, records)
                del self._reading[unit]
            block.set_result(records)
            return records, rows
        if stored is None or offsets is None or not is_frame(bytes(stored[:HEADER_BYTES])):
            return None
        return Records(pa.py_buffer(stored), offsets - offsets[0]), rows - rows[0]

    def _read_ranges(self, store: Store, wanted: Sequence[_Wanted]) -> Iterator[memoryview]:
        """Yield the bytes of the ranges of ``wanted``. Up to `_REQUESTED_BYTES` bytes are requested at once.

        Raise FileChangedError if a file was rewritten or is too short.
        """
        ranges = [one.range for one in wanted if one.range is not None]
        files = {self._splits[one.unit].file for one in wanted}
        stamped = {file.path: file for file in files if file.stamp}
        every = _joined(ranges, store.request_cost)
        sizes = (run[-1].stop - run[0].start for run in every)
        for group in groups_by_bytes(sizes, _REQUESTED_BYTES):
            now, runs = monotonic(), every[group]
            joined = [self._spanned(run) for run in runs]
            try:
                read = store.read_ranges(joined)
            except FileChangedError:
                self._accept_stamps(store, {stamped[one.path] for one in joined if one.path in stamped})
                joined = [self._spanned(run) for run in runs]
                read = store.read_ranges(joined)
            if store.cache is None:  # a copy in a cache does not tell whether the file has changed
                self._seen.update((one.path, now) for one in joined if one.stamp)
            for run, whole, data in zip(runs, joined, read, strict=True):
                if len(data) != whole.stop - whole.start:
                    raise _too_short(store.public(whole.path))
                for one in run:
                    yield memoryview(data)[one.start - whole.start : one.stop - whole.start]

    def _spanned(self, run: Sequence[ByteRange]) -> ByteRange:
        """Return one range that covers several consecutive ranges of a file."""
        first = run[0]
        stamp = self._stamps.get(first.path, first.stamp)
        return first._replace(stop=run[-1].stop, stamp=stamp)

    def _accept_stamps(self, store: Store, files: Iterable[FileInfo]) -> None:
        """Accept files of other tools whose stamp differs from the snapshot, if their content is the same.

        Raise FileChangedError if the content of a file may be another.
        """
        for file in files:
            stamp = stamp_of(store.info(file.path))
            check_file(store, file)
            self._stamps[file.path] = stamp

    def _keep(self, unit: int, records: Records | None) -> None:
        self._kept_bytes += _size(records) - _size(self._kept.pop(unit, None))
        self._kept[unit] = records
        while len(self._kept) > _KEPT_BLOCKS:
            oldest, kept = next(iter(self._kept.items()))
            if kept is not None and self._kept_bytes <= _KEPT_BYTES:
                break
            self._kept_bytes -= _size(kept)
            del self._kept[oldest]

    def _mapped_records(self, store: Store, unit: int) -> Records | None:
        """Return the records of a `Unit` from the memory-mapped file, or None if it is not mapped."""
        offsets = self.offsets[unit]
        if offsets is None:
            return None
        file = self._splits[unit].file
        if file.path not in self._maps and (new := store.map_file(file.path, file.size)) is not None:
            self._maps.setdefault(file.path, new)
        mapped = self._maps.get(file.path)
        if mapped is None:
            return None
        if mapped.size < offsets[-1]:
            raise _too_short(store.public(file.path))
        return Records(mapped, offsets)


def _size(records: Records | None) -> int:
    return 0 if records is None else int(records.data.size)


def _picked(records: Records, rows: Numbers) -> _Found:
    """Copy some records of a block to another buffer, so that its memory can be freed."""
    starts = pa.py_buffer(np.ascontiguousarray(records.offsets, np.int64))
    count = len(records.offsets) - 1
    frames = pa.Array.from_buffers(pa.large_binary(), count, [None, starts, records.data])
    _, ends, copied = frames.take(pa.array(rows)).buffers()
    return Records(copied, np.frombuffer(ends, np.int64, len(rows) + 1)), np.arange(len(rows))


def _joined(ranges: Sequence[ByteRange], most: int) -> list[list[ByteRange]]:
    """Group consecutive ranges that are near each other, so that a group covers at most ``most`` bytes."""
    runs: list[list[ByteRange]] = []
    for one in ranges:
        first, last = (runs[-1][0], runs[-1][-1]) if runs else (one, one)
        is_near = one.path == last.path and 0 <= one.start - last.stop <= _GAP_BYTES
        if is_near and one.stop - first.start <= most:
            runs[-1].append(one)
        else:
            runs.append([one])
    return runs


def _too_short(path: str) -> FileChangedError:
    return FileChangedError("the file is shorter than it was when the table was made", path=path)
