"""Tables -> TFRecord files, in bounded memory. Knows no datasets.

A file consists of blocks: whole records, about 1 MiB of them, compressed by themselves. Where a block ends
depends on the records alone, so the same rows give the same bytes.
"""

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import accumulate
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_tfrecord.codec import SPARE_BYTES, Encoder, _kernel
from dask_tfrecord.codec.codecs import Compression, compressor
from dask_tfrecord.codec.compressing import Compressor
from dask_tfrecord.errors import SchemaError, TFRecordError
from dask_tfrecord.files.entry import BLOCK_BYTES, Block, ColumnStatistics, FileEntry
from dask_tfrecord.files.reading import locate_error
from dask_tfrecord.files.statistics import Columns, empty_statistics, file_statistics, merge_statistics
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.model import Lossy, Schema
from dask_tfrecord.schema.storage_types import is_stored, storage_bytes

# The most that is converted to storage types at a time.
_CHUNK_ROWS = 1 << 16
_CHUNK_BYTES = 1 << 24

# Content of one file that waits for its compression, so that a task's memory does not grow with the machine.
_WAITING_BYTES = 1 << 24


Codes = npt.NDArray[np.int64]


class Part(NamedTuple):
    """How many rows share their partition values; the directory is "" if there are no partitions."""

    directory: str
    values: tuple[Any, ...]
    rows: int


class Parted(NamedTuple):
    """A table's rows, without their partition values, sorted by these: first those of the first part.

    ``order`` are the numbers of the rows in the table that was split, or None if they are in its order.
    """

    table: pa.Table
    parts: list[Part]
    order: Codes | None = None


class _Limits(NamedTuple):
    """Where a file ends: before this many rows or bytes of content are exceeded."""

    rows: int
    bytes: int


def write_files(
    store: Store,
    place: Callable[[str, int], tuple[str, str]],
    rows: Parted,
    schema: Schema,
    *,
    compression: Compression | None,
    level: int | None = None,
    lossy: Lossy,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    threads: int | None = None,
) -> list[FileEntry]:
    """Write a file for each part of a table, or several where it exceeds a limit; return their receipts.

    Parameters
    ----------
    store : Store
        Where to.
    place : callable
        For the directory of a part and the number of a file in it, from 0: the path in the store, and its
        name in receipts and messages.
    rows : Parted
        The table and its parts. Of a part without rows a file is made, too.
    schema : Schema
        The table's columns.
    compression, level, lossy
        As in `to_tfrecord`.
    max_rows, max_bytes : int, optional
        Limits of each file; bytes count before compression, and one record always fits.
    threads : int, optional
        How many threads may be busy, those of all calls in the process together; by default as many as there
        are processors for it. Blocks are compressed on those that no call needs. The bytes are the same
        whatever the number.

    Raises
    ------
    SchemaError
        For a value that cannot be stored, naming the column and the row of the table that was split. The
        file that it belongs to is not there then, those before it are.
    """
    limits = _Limits(int(max_rows or 2**63), int(max_bytes or 2**63))  # NumPy's integers overflow
    records = _Records(rows, schema, lossy)
    helpers = _helpers(threads or _processors(), os.getpid())
    buffers: list[memoryview] = []
    files: list[FileEntry] = []
    found: list[Columns] = []
    end = 0
    with helpers.without_this_thread():
        for part in rows.parts:
            number, end = 0, end + part.rows
            while not number or records.row < end:
                path, name = place(part.directory, number)
                first = records.row
                try:
                    with store.create(path) as file:
                        compressed = compressor(compression, level) if compression else None
                        output = _Output(file, compressed, helpers, buffers)
                        _fill(output, records, end, limits)
                except TFRecordError as error:
                    raise records.placed(error, store.public(store.join(name))) from None
                count, at = records.row - first, tuple(output.blocks)
                files.append(FileEntry(name, output.bytes, count, output.crc32c, part.values, at))
                found.append(records.statistics())
                number += 1
    return list(map(_with_statistics, files, file_statistics(schema, found)))


def _with_statistics(file: FileEntry, columns: tuple[ColumnStatistics, ...]) -> FileEntry:
    return replace(file, statistics=columns)


def _fill(output: "_Output", records: "_Records", end: int, limits: _Limits) -> None:
    """One file, of as many of the records before the row ``end`` as the limits allow."""
    first = records.row
    end = min(first + limits.rows, end)
    content = 0
    while records.row < end:
        at = records.row
        left = max(0, limits.bytes - content)
        buffer = output.buffer()
        size, need = records.take(buffer[: min(BLOCK_BYTES, left) + SPARE_BYTES], end)
        if need:  # not even one record fits
            if content and need > left + SPARE_BYTES:
                output.keep(buffer)
                break
            if need > len(buffer):
                output.keep(buffer)
                buffer = memoryview(bytearray(need))
            size, _ = records.take(buffer[:need], end)
        output.put(buffer, size, Block(0, content, at - first))
        content += size
    output.finish()


class _Records:
    """The records of a table's rows, given out from the first of the first part to the last.

    Attributes
    ----------
    row : int
        The first that has not been given out.
    """

    def __init__(self, rows: Parted, schema: Schema, lossy: Lossy) -> None:
        self._order = rows.order
        self._batches = rows.table.to_batches()
        self._starts = list(accumulate((batch.num_rows for batch in self._batches), initial=0))
        self._schema = schema
        self._lossy: Lossy = lossy
        self._encoder = Encoder(schema.columns, schema.record_type, buffer_bytes=0)
        self._statistics: Columns | None = None
        self._noted = 0  # the first row that is not in the statistics
        self.row = self._base = self._bound = 0

    def placed(self, error: TFRecordError, path: str) -> TFRecordError:
        """An error of `take` with its file, and with the row of the table that was split."""
        error = locate_error(error, path, self._base)
        if error.record is not None and self._order is not None:
            return error.replaced(record=int(self._order[error.record]))
        return error

    def take(self, out: memoryview, end: int) -> tuple[int, int]:
        """Fill ``out`` with whole records of the rows before ``end``, which continue those taken before.

        Returns the bytes written, and, where not even one record fits, how much room is enough for it.
        """
        size = 0
        while self.row < end:
            if self.row == self._bound:
                self._bind(end)
            last = min(end, self._bound)
            row, count, need = self._encoder.encode_into(self.row - self._base, out[size:], last - self._base)
            self.row = self._base + row
            size += count
            if self.row < last:
                return size, 0 if size else need
        return size, 0

    def statistics(self) -> Columns:
        """Of the rows given out since the last call."""
        self._note()
        found, self._statistics = self._statistics, None
        return found or empty_statistics(self._schema)

    def _note(self) -> None:
        if self._noted < self.row:
            found = self._encoder.statistics(self._noted - self._base, self.row - self._base)
            self._statistics = merge_statistics(self._statistics, found) if self._statistics else found
            self._noted = self.row

    def _bind(self, end: int) -> None:
        """Have the encoder go on with as many rows as are converted at a time; the file ends at ``end``."""
        self._note()
        index = bisect_right(self._starts, self.row) - 1
        batch = self._batches[index].slice(self.row - self._starts[index])
        if not all(map(is_stored, batch.columns)):
            batch = batch.slice(0, _CHUNK_ROWS)
            while batch.num_rows > 1 and (size := sum(map(storage_bytes, batch.columns))) > _CHUNK_BYTES:
                batch = batch.slice(0, max(1, batch.num_rows * _CHUNK_BYTES // size - 1))
        self._base = self.row
        try:
            storage = self._schema.to_storage(batch, lossy=self._lossy)
        except SchemaError:  # perhaps for a row of a later file
            storage = self._schema.to_storage(batch.slice(0, end - self.row), lossy=self._lossy)
        self._bound = self.row + storage.num_rows
        self._encoder.bind(storage)


class _Waiting(NamedTuple):
    """A block on its way: where it belongs, the buffer it is in, how much of it, what becomes of it."""

    block: Block
    buffer: memoryview
    size: int
    stored: Future[bytes]


class _Output:
    """A file in the making: its blocks are compressed side by side, written in order, and counted.

    ``free`` are buffers for it and for the files that follow, for fresh memory takes as long as a small file.
    """

    def __init__(
        self, file: BinaryIO, compressed: Compressor | None, helpers: "_Helpers", free: list[memoryview]
    ) -> None:
        self._file = file
        self._compressed = compressed
        self._helpers = helpers
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._free = free
        self.blocks: list[Block] = []
        self.bytes = 0
        self.crc32c = 0
        if compressed:
            self._write(compressed.head)

    def buffer(self) -> memoryview:
        """Room for a block, to be given to `put`."""
        while self._waiting and self._waiting[0].stored.done():
            self._write_first()
        return self._free.pop() if self._free else memoryview(bytearray(BLOCK_BYTES + SPARE_BYTES))

    def keep(self, buffer: memoryview) -> None:
        """Room for the next block; but not what one long record asked for."""
        if len(buffer) == BLOCK_BYTES + SPARE_BYTES:
            self._free.append(buffer)

    def put(self, buffer: memoryview, size: int, block: Block) -> None:
        """Add a block, the first bytes of a buffer, which belongs to the output from now on."""
        content = buffer[:size]
        if self._compressed is None:
            self._write_block(block, content)
            self.keep(buffer)
            return
        while self._waiting and self._waiting_bytes + size > _WAITING_BYTES:
            self._write_first()
        self._compressed.add(content)
        stored = self._helpers.run(self._compressed.compress, content)
        self._waiting.append(_Waiting(block, buffer, size, stored))
        self._waiting_bytes += size

    def finish(self) -> None:
        """Write all that has not been written."""
        while self._waiting:
            self._write_first()
        if self._compressed:
            self._write(self._compressed.tail())

    def _write_first(self) -> None:
        """Write the block that waits longest, as soon as it is compressed."""
        first = self._waiting.popleft()
        self._write_block(first.block, first.stored.result())
        self.keep(first.buffer)
        self._waiting_bytes -= first.size

    def _write_block(self, block: Block, data: bytes | memoryview) -> None:
        self.blocks.append(block._replace(offset=self.bytes))
        self._write(data)

    def _write(self, data: bytes | memoryview) -> None:
        if data:
            self._file.write(data)
            self.bytes += len(data)
            self.crc32c = _kernel.crc32c(data, self.crc32c)


class _Helpers:
    """Threads for work that the threads of the calls can share, as long as there are processors for it."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dask_tfrecord-compress")
        self._idle = threads
        self._lock = Lock()

    @contextmanager
    def without_this_thread(self) -> Iterator[None]:
        """Count the thread of the caller as busy."""
        self._take(even_if_none=True)
        try:
            yield
        finally:
            self._give_back()

    def run(self, work: Callable[[memoryview], bytes], content: memoryview) -> Future[bytes]:
        """Do the work: somewhere else if a thread is idle, else here and now."""
        if self._take():
            future = self._pool.submit(work, content)
            future.add_done_callback(lambda _: self._give_back())
        else:
            future = Future()
            future.set_result(work(content))
        return future

    def _take(self, *, even_if_none: bool = False) -> bool:
        with self._lock:
            taken = even_if_none or self._idle > 0
            self._idle -= taken
        return taken

    def _give_back(self) -> None:
        with self._lock:
            self._idle += 1


@cache
def _helpers(threads: int, process: int) -> _Helpers:
    """Those of all calls of a process; a fork of it needs its own."""
    return _Helpers(threads)


def _processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
