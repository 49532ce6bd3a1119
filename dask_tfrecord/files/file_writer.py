"""Write tables to TFRecord files in bounded memory. Blocks are compressed in parallel, and written in order.

A block contains about 1 MiB of whole records and is compressed independently of the other blocks. Only the
records determine where a block ends, so every machine writes the same bytes for the same rows. The module
knows nothing about datasets.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_tfrecord.codec import SPARE_BYTES, Column, Encoder, crc32c_of_records
from dask_tfrecord.codec.codecs import compressor
from dask_tfrecord.errors import SchemaError, TFRecordError
from dask_tfrecord.files.column_files import ColumnFileWriter, WrittenColumns, create_column_file
from dask_tfrecord.files.damage import locate_error
from dask_tfrecord.files.entry import (
    BLOCK_BYTES,
    Block,
    Columns,
    FileEntry,
    continue_statistics,
    file_statistics,
)
from dask_tfrecord.files.file_options import WriteOptions
from dask_tfrecord.files.small_columns import SmallColumnFiles, SmallColumns
from dask_tfrecord.schema.conversion import has_all
from dask_tfrecord.schema.fields import Lossy, Schema
from dask_tfrecord.schema.storage_values import storage_bytes
from dask_tfrecord.storage.store import Store

# At most this many bytes of one file's blocks wait for compression. The limit bounds the memory of a task on
# machines with many processors.
_PENDING_BYTES = 1 << 24


class Buffers:
    """Reuse the buffers of blocks, because touching new memory takes as long as writing a small file."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    def take(self) -> memoryview:
        # NumPy does not fill the buffer with zeros, so a small file uses memory only for a small part of it.
        return self._free.pop() if self._free else np.empty(BLOCK_BYTES + SPARE_BYTES, np.uint8).data

    def give_back(self, buffer: memoryview) -> None:
        """Keep a buffer for reuse. Free a buffer that is larger than usual because of a long record."""
        if len(buffer) == BLOCK_BYTES + SPARE_BYTES:
            self._free.append(buffer)


class _PendingBlock(NamedTuple):
    """A block that is being compressed. The block's content is the first ``size`` bytes of ``buffer``."""

    block: Block
    buffer: memoryview
    size: int
    compressed: Future[bytes]


class BlockWriter:
    """Write the blocks of one file in order, compress several blocks in parallel, and count the written
    bytes.

    After writing a block, the writer returns the buffer to ``buffers``. ``bytes`` and ``crc32c`` are the size
    and the checksum of the bytes written so far.
    """

    def __init__(
        self, file: BinaryIO, options: WriteOptions, threads: "SpareThreads", buffers: Buffers
    ) -> None:
        self._file = file
        codec = options.compression
        self._compressor = compressor(codec, options.level) if codec else None
        self._threads = threads
        self._buffers = buffers
        self._pending: deque[_PendingBlock] = deque()
        self._pending_bytes = 0
        self.blocks: list[Block] = []
        self.bytes = 0
        self.crc32c = 0
        if self._compressor:
            self._write(self._compressor.head)

    def buffer(self) -> memoryview:
        """Return a buffer for the content of the next block, which the caller passes to `put`."""
        while self._pending and self._pending[0].compressed.done():
            self._write_oldest()
        return self._buffers.take()

    def put(self, buffer: memoryview, size: int, block: Block, records: int) -> None:
        """Add the first ``size`` bytes of a buffer to the file as a block.

        The caller must not use the buffer after calling `put`.
        """
        content = buffer[:size]
        if self._compressor is None:
            self._write_block(block, content, records)
            self._buffers.give_back(buffer)
            return
        while self._pending and self._pending_bytes + size > _PENDING_BYTES:
            self._write_oldest()
        self._compressor.add(content)
        compressed = self._threads.run(self._compressor.compress, content)
        self._pending.append(_PendingBlock(block, buffer, size, compressed))
        self._pending_bytes += size

    def finish(self) -> None:
        """Write the blocks that are still being compressed, and the codec's last bytes."""
        while self._pending:
            self._write_oldest()
        if self._compressor:
            self._write(self._compressor.tail())

    def _write_oldest(self) -> None:
        oldest = self._pending.popleft()
        self._write_block(oldest.block, oldest.compressed.result())
        self._buffers.give_back(oldest.buffer)
        self._pending_bytes -= oldest.size

    def _write_block(self, block: Block, data: bytes | memoryview, records: int = 0) -> None:
        self.blocks.append(block._replace(offset=self.bytes))
        self._write(data, records)

    def _write(self, data: bytes | memoryview, records: int = 0) -> None:
        """Write ``data``. If ``records`` is not 0, ``data`` consists of that many uncompressed records."""
        if data:
            self._file.write(data)
            self.bytes += len(data)
            self.crc32c = crc32c_of_records(data, records, self.crc32c)


class SpareThreads:
    """Run the compression of blocks on threads while the process has idle processors.

    Every thread that writes a file counts as a busy processor. All file writers of a process share one
    instance of this class.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dask_tfrecord-compress")
        self._idle = threads
        self._lock = Lock()

    @contextmanager
    def without_this_thread(self) -> Iterator[None]:
        """Count the calling thread as busy."""
        with self._lock:
            self._idle -= 1
        try:
            yield
        finally:
            self._release()

    def run(self, work: Callable[[memoryview], bytes], content: memoryview) -> Future[bytes]:
        """Call ``work(content)`` on a spare thread, or on the calling thread if no processor is idle."""
        with self._lock:
            is_idle = self._idle > 0
            self._idle -= is_idle
        if is_idle:
            future = self._pool.submit(work, content)
            future.add_done_callback(lambda _: self._release())
        else:
            future = Future()
            future.set_result(work(content))
        return future

    def _release(self) -> None:
        with self._lock:
            self._idle += 1


@cache
def _threads_of_process(threads: int, process: int) -> SpareThreads:
    """Return the shared threads of a process. ``process`` is part of the cache key, because a forked process
    does not inherit the parent's threads.
    """
    return SpareThreads(threads)


def _available_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# One step converts at most this many rows, and at most this many bytes, to storage types.
_CHUNK_ROWS = 1 << 16
_CHUNK_BYTES = 1 << 24

# Functions that test for array types whose null count includes all nulls. The null count of a dictionary
# array omits nulls in its dictionary.
_COUNTS_NULLS = (pa.types.is_primitive, pa.types.is_string, pa.types.is_large_string)

# The type of an array of row indices.
RowNumbers = npt.NDArray[np.int64]


class DirectoryGroup(NamedTuple):
    """A group of rows with the same partition values. ``directory`` is the path of the partition directory
    relative to the root, or "".
    """

    directory: str
    values: tuple[Any, ...]
    rows: int


class GroupedRows(NamedTuple):
    """Rows that are sorted by partition directory.

    ``pieces`` are tables that contain the rows without the partition columns. The tables may be created
    lazily. Each table is paired with the row indices to report in errors, or with None if the rows were not
    reordered.
    """

    pieces: Iterable[tuple[pa.Table, RowNumbers | None]]
    groups: list[DirectoryGroup]


def write_files(
    store: Store,
    new_paths: Callable[[str, int], tuple[str, str]],
    rows: GroupedRows,
    schema: Schema,
    options: WriteOptions,
    *,
    columns: WrittenColumns | SmallColumnFiles | None = None,
    threads: int | None = None,
) -> list[FileEntry]:
    """Write one file per partition directory, or several files if one file would exceed a limit.

    ``new_paths`` takes the path of a partition directory, and the index of a file among those of this call.
    It returns the path of the file in the store, and its path relative to the dataset's root, which the
    returned `FileEntry` objects and the errors contain. A group without rows becomes one empty file. All
    calls in one process share ``threads`` threads, whose number does not change the written bytes.

    Raise SchemaError if a value does not fit its column. The error contains the column's name, and the index
    that the row had before sorting. Files completed before the failing row are kept.
    """
    spare = _threads_of_process(threads or _available_processors(), os.getpid())
    buffers = Buffers()
    files: list[FileEntry] = []
    codec, end = options.compression or "none", 0
    with spare.without_this_thread(), store.finishing_together() as store, ExitStack() as stack:
        column_writer: ColumnFileWriter | SmallColumns | None = None
        if isinstance(columns, SmallColumnFiles):
            column_writer = SmallColumns(store, columns)
        elif columns is not None and rows.groups:
            required = _without_nulls(rows, columns.features)
            column_writer = stack.enter_context(create_column_file(store, columns, required))
        source = _Source(rows.pieces, schema, options.lossy)
        records = _RecordStream(source, Encoder(schema.columns, schema.record_type), column_writer)
        for group in rows.groups:
            before, end = len(files), end + group.rows
            while len(files) == before or records.row < end:
                path, name = new_paths(group.directory, len(files))
                first = records.row
                try:
                    with store.create(path) as file:
                        writer = BlockWriter(file, options, spare, buffers)
                        content = _write_file(writer, records, end, options, buffers)
                except TFRecordError as error:
                    raise records.placed(error, store.public(store.join(name))) from None
                count, starts = records.row - first, tuple(writer.blocks)
                entry = FileEntry(name, writer.bytes, count, writer.crc32c, group.values, starts, codec=codec)
                records.end_file()
                written = name, writer.bytes, writer.crc32c, content
                small = None if column_writer is None else column_writer.end_file(*written)
                files.append(replace(entry, columns=small))
        source.check_end(records.row)
    described = file_statistics(schema, records.statistics(), len(files))
    column_file = None if column_writer is None else column_writer.written
    opened = tuple(source.open_columns)
    return [
        replace(file, statistics=found, columns=file.columns or column_file, open_columns=opened)
        for file, found in zip(files, described, strict=True)
    ]


def _without_nulls(rows: GroupedRows, features: Sequence[Column]) -> list[str]:
    """Return the features with a value in each row. If the tables are created lazily, return no features."""
    if not isinstance(rows.pieces, list):
        return []
    names = [one.name for one in features]
    for table, _ in rows.pieces:
        plain = {item.name for item in table.schema if any(is_(item.type) for is_ in _COUNTS_NULLS)}
        names = [name for name in names if name in plain and not table[name].null_count]
    return names


def _write_file(
    writer: BlockWriter, records: "_RecordStream", end: int, options: WriteOptions, buffers: Buffers
) -> int:
    """Write the next records, up to row ``end`` or a size limit, to one file.

    Return the size of the content before compression, in bytes.
    """
    first = records.row
    end = min(first + (options.max_rows or end), end)
    max_bytes = options.max_bytes or 1 << 63
    content = 0
    while records.row < end:
        row = records.row
        left = max(0, max_bytes - content)
        buffer = writer.buffer()
        size, need = records.take(buffer[: min(BLOCK_BYTES, left) + SPARE_BYTES], end)
        if need:  # not even one record fits into the buffer
            if content and need > left + SPARE_BYTES:
                buffers.give_back(buffer)
                break
            if need > len(buffer):
                buffers.give_back(buffer)
                buffer = memoryview(bytearray(need))
            size, _ = records.take(buffer[:need], end)
        writer.put(buffer, size, Block(0, content, row - first), records.row - row)
        content += size
    writer.finish()
    return content


class _Source:
    """Convert the rows of tables to storage types, one batch after another.

    ``open_columns`` are the columns that contain values outside the known categories.
    """

    def __init__(
        self, pieces: Iterable[tuple[pa.Table, RowNumbers | None]], schema: Schema, lossy: Lossy
    ) -> None:
        self._batches = _batches(pieces)
        self._schema = schema
        self._lossy: Lossy = lossy
        self._closed = [item for item in schema.fields if item.is_closed]
        self._batch = pa.record_batch([], [])
        self._order: RowNumbers | None = None
        self._start = 0  # The index of the first row of the batch.
        self.open_columns: set[str] = set()

    def next(self, row: int, end: int) -> pa.RecordBatch:
        """Return the next rows, which begin at ``row``. The current file ends at row ``end``."""
        if row == self._start + self._batch.num_rows:
            self._batch, self._order = next(self._batches)
            self._start = row
            for item in self._closed:
                found = self._batch.column(item.name).dictionary
                if item.categories is None or not has_all(item.categories, found):
                    self.open_columns.add(item.name)
        batch = self._batch.slice(row - self._start)
        if not self._schema.is_stored(batch):
            batch = batch.slice(0, _CHUNK_ROWS)
            while batch.num_rows > 1 and (size := sum(map(storage_bytes, batch.columns))) > _CHUNK_BYTES:
                batch = batch.slice(0, max(1, batch.num_rows * _CHUNK_BYTES // size - 1))
        try:
            return self._schema.to_storage(batch, lossy=self._lossy)
        # If the failing row belongs to a later file, write the current file first.
        except SchemaError:
            return self._schema.to_storage(batch.slice(0, end - row), lossy=self._lossy)

    def index_before_sorting(self, row: int) -> int:
        return row if self._order is None else int(self._order[row - self._start])

    def check_end(self, row: int) -> None:
        """Raise RuntimeError if rows remain that belong to no group, because these rows would be lost."""
        if row < self._start + self._batch.num_rows or next(self._batches, None):
            raise RuntimeError(f"there are more rows than the {row:,} of the groups")


class _FileStatistics:
    """Count the statistics of each file. Rows are counted from the first row that the encoder holds."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._bounds = [0]  # The rows before the first bound are counted. Files end at the other bounds.
        self._is_part = False  # True if the last statistics may cover only the first rows of a file.
        self.columns: list[Columns] = []

    def end_file(self, row: int) -> None:
        self._bounds.append(row)

    def count(self, row: int) -> None:
        """Count the rows before ``row``, which are all that the encoder holds, before it drops them."""
        is_part = row > self._bounds[-1]
        bounds = [*self._bounds, row] if is_part else self._bounds
        if len(bounds) > 1:
            columns = self._encoder.statistics(bounds)
            if self._is_part:
                continue_statistics(self.columns[-1], columns)
            else:
                self.columns.append(columns)
            self._is_part = is_part
        self._bounds = [0]


class _CopiedColumns:
    """Pass the encoded rows to a column writer, with the offsets of their records in the decompressed file.

    Rows are counted from the first row that the encoder holds. The encoder stores in ``starts`` where each
    record begins in its buffer.
    """

    def __init__(self, writer: ColumnFileWriter | SmallColumns) -> None:
        self._writer = writer
        self._copied = 0  # The writer has all rows before this row.
        self._content = 0  # The size in bytes of the current file's records.
        # The row after each buffer that is not copied yet, and the buffer's offset in the decompressed file.
        self._buffers: list[tuple[int, int]] = []

    def bind(self, storage: pa.RecordBatch) -> None:
        self._storage, self._copied = storage, 0
        self.starts = np.empty(storage.num_rows, np.int64)

    def add_buffer(self, row: int, size: int) -> None:
        self._buffers.append((row, self._content))
        self._content += size

    def copy(self) -> None:
        """Pass on the rows since the last call, before the encoder drops them."""
        start = at = self._copied
        # Process all buffers in one loop, because a separate step after each write would take 8 us.
        for end, content in self._buffers:
            self.starts[at:end] += content
            at = end
        if at > start:
            self._writer.add(self._storage.slice(start, at - start), self.starts[start:at])
        self._copied, self._buffers = at, []

    def end_file(self) -> None:
        self.copy()
        self._content = 0


class _RecordStream:
    """Encode the rows of tables as records, in order, into one buffer at a time.

    ``row`` is the index of the next row to encode.
    """

    def __init__(
        self, source: _Source, encoder: Encoder, column_writer: ColumnFileWriter | SmallColumns | None
    ) -> None:
        self._source, self._encoder = source, encoder
        self._statistics = _FileStatistics(encoder)
        self._copied = None if column_writer is None else _CopiedColumns(column_writer)
        self._start = self._end = 0  # The range of rows that the encoder holds.
        self.row = 0

    def placed(self, error: TFRecordError, path: str) -> TFRecordError:
        """Copy an error that `take` raised. The copy names the path of the file, and the index that the row
        had before the rows were sorted.
        """
        error = locate_error(error, path, self._start)
        if error.record is None:
            return error
        return error.replaced(record=self._source.index_before_sorting(error.record))

    def take(self, out: memoryview, end: int) -> tuple[int, int]:
        """Fill ``out`` with the next complete records, up to row ``end``. Return the number of bytes written,
        and 0 because no larger buffer is needed.

        If not even one record fits into ``out``, return 0 and the size in bytes that ``out`` must have.
        """
        size = 0
        while self.row < end:
            if self.row == self._end:
                self._bind(end)
            last = min(end, self._end)
            start = self._start
            first = self.row - start
            starts = None if self._copied is None else self._copied.starts[first:]
            row, count, need = self._encoder.encode_into(first, out[size:], last - start, starts)
            if self._copied is not None:
                self._copied.add_buffer(row, count)
            self.row = start + row
            size += count
            if self.row < last:
                return size, 0 if size else need
        return size, 0

    def end_file(self) -> None:
        """End the current file, which consists of the rows since the last call of this method."""
        if self._copied is not None:
            self._copied.end_file()
        self._statistics.end_file(self.row - self._start)

    def statistics(self) -> list[Columns]:
        """Return the statistics of all files."""
        self._statistics.count(self.row - self._start)
        return self._statistics.columns

    def _bind(self, end: int) -> None:
        """Pass the next rows to the encoder. The current file ends at row ``end``."""
        self._statistics.count(self.row - self._start)
        if self._copied is not None:
            self._copied.copy()
        self._start = self.row
        storage = self._source.next(self.row, end)
        self._end = self.row + storage.num_rows
        self._encoder.bind(storage)
        if self._copied is not None:
            self._copied.bind(storage)


def _batches(
    pieces: Iterable[tuple[pa.Table, RowNumbers | None]],
) -> Iterator[tuple[pa.RecordBatch, RowNumbers | None]]:
    for table, order in pieces:
        start = 0
        for batch in table.to_batches():
            end = start + batch.num_rows
            if batch.num_rows:
                yield batch, None if order is None else order[start:end]
            start = end
