"""Write one file block by block: compress the blocks in parallel and write them in order.

The module `block_writer` does not parse records. A block holds about 1 MiB of whole records and is compressed
independently of the other blocks.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import BinaryIO, NamedTuple

import numpy as np

from dask_tfrecord.codec import SPARE_BYTES, crc32c_of_records
from dask_tfrecord.codec.codecs import compressor
from dask_tfrecord.files.entry import BLOCK_BYTES, Block
from dask_tfrecord.files.options import WriteOptions

# The total size in bytes of one file's blocks, before compression, that may wait to be compressed. This limit
# bounds the memory of a task on machines with many processors.
_PENDING_BYTES = 1 << 24


class Buffers:
    """Keep the buffers that hold blocks, and reuse them.

    Buffers are reused because touching newly allocated memory takes as long as writing a small file.
    """

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    def take(self) -> memoryview:
        """Return a buffer with room for one block."""
        # NumPy does not fill the buffer with zeros, so a small file touches only a little of the buffer.
        return self._free.pop() if self._free else np.empty(BLOCK_BYTES + SPARE_BYTES, np.uint8).data

    def give_back(self, buffer: memoryview) -> None:
        """Take back a buffer, so that `take` can return it again.

        A larger buffer, which was allocated for a long record, is freed instead.
        """
        if len(buffer) == BLOCK_BYTES + SPARE_BYTES:
            self._free.append(buffer)


class _PendingBlock(NamedTuple):
    """A block that is being compressed.

    The content of the block is the first ``size`` bytes of ``buffer``.
    """

    block: Block
    buffer: memoryview
    size: int
    compressed: Future[bytes]


class BlockWriter:
    """Write the blocks of one file in order, compress them in parallel, and count the written bytes.

    Parameters
    ----------
    file : BinaryIO
        The file to write to.
    options : WriteOptions
        The codec and its level. If the options name no codec, the blocks of the file are written
        uncompressed.
    threads : SpareThreads
        The threads that compress blocks.
    buffers : Buffers
        The reusable buffers for blocks. A buffer is given back after its block is written.

    Attributes
    ----------
    blocks : list of Block
        The blocks written so far, with their offsets in the file.
    bytes, crc32c : int
        Size in bytes and CRC-32C of the part of the file that has been written.
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
        """Return a buffer for the next block of the file.

        The caller writes the block's content into the buffer and passes the buffer to `put`.
        """
        while self._pending and self._pending[0].compressed.done():
            self._write_oldest()
        return self._buffers.take()

    def put(self, buffer: memoryview, size: int, block: Block, records: int) -> None:
        """Add the first ``size`` bytes of a buffer, which are ``records`` records, to the file as a block.

        After this call, the caller must not use the buffer.
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
        """Write the blocks that are still being compressed, and then the codec's end of file, if any."""
        while self._pending:
            self._write_oldest()
        if self._compressor:
            self._write(self._compressor.tail())

    def _write_oldest(self) -> None:
        """Wait until the oldest pending block is compressed, and write this block."""
        oldest = self._pending.popleft()
        self._write_block(oldest.block, oldest.compressed.result())
        self._buffers.give_back(oldest.buffer)
        self._pending_bytes -= oldest.size

    def _write_block(self, block: Block, data: bytes | memoryview, records: int = 0) -> None:
        self.blocks.append(block._replace(offset=self.bytes))
        self._write(data, records)

    def _write(self, data: bytes | memoryview, records: int = 0) -> None:
        """Write bytes. If ``records`` is not 0, the bytes are this number of uncompressed records."""
        if data:
            self._file.write(data)
            self.bytes += len(data)
            self.crc32c = crc32c_of_records(data, records, self.crc32c)


class SpareThreads:
    """Run the compression of blocks on threads while the process has idle processors.

    Every thread that writes a file counts as a busy processor. All writers of a process share one
    `SpareThreads` instance.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dask_tfrecord-compress")
        self._idle = threads
        self._lock = Lock()

    @contextmanager
    def without_this_thread(self) -> Iterator[None]:
        """Count the calling thread as busy within the ``with`` block."""
        with self._lock:
            self._idle -= 1
        try:
            yield
        finally:
            self._release()

    def run(self, work: Callable[[memoryview], bytes], content: memoryview) -> Future[bytes]:
        """Call ``work(content)`` on a spare thread, or in the calling thread if no processor is idle."""
        if self._acquire():
            future = self._pool.submit(work, content)
            future.add_done_callback(lambda _: self._release())
        else:
            future = Future()
            future.set_result(work(content))
        return future

    def _acquire(self) -> bool:
        with self._lock:
            acquired = self._idle > 0
            self._idle -= acquired
        return acquired

    def _release(self) -> None:
        with self._lock:
            self._idle += 1


def spare_threads(threads: int | None = None) -> SpareThreads:
    """Return this process's threads for compressing blocks; by default one thread per available processor."""
    return _threads_of_process(threads or _available_processors(), os.getpid())


@cache
def _threads_of_process(threads: int, process: int) -> SpareThreads:
    """Return the `SpareThreads` instance of the process with this id.

    The process id is part of the cache key because a forked process has none of its parent's threads.
    """
    return SpareThreads(threads)


def _available_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
