"""Open files through fsspec's caches, such as ``simplecache``.

Listings and metadata never come from a cache. If the copy of a file does not have the listed size, it is not
used either.
"""

import logging
import os
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from threading import RLock
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile

from dask_tfrecord.storage.forked import fork_safe_locks
from dask_tfrecord.storage.range_requests import ByteRange

logger = logging.getLogger(__name__)

# A cache must not be asked for one file by several threads at once: one of them would get a file that
# another thread is still downloading. The lock of a path is chosen by its hash.
_LOCKS = fork_safe_locks(64)

# The caches that store single blocks accept only one block size for each file.
_BLOCK_BYTES = 1 << 20


def open_cached(cache: AbstractFileSystem, path: str, size: int | None) -> Any:
    """Open a file through a cache. Return None if the cache fails, or if its copy does not have ``size``
    bytes.
    """
    # Threads cannot share the one connection of a filesystem such as SFTP, which is not asynchronous.
    lock = _LOCKS[hash(path) % len(_LOCKS) if cache.fs.async_impl else 0]
    with lock:
        try:
            file = cache.open(path, "rb", block_size=_BLOCK_BYTES)
            now = file.size if isinstance(file, AbstractBufferedFile) else os.fstat(file.fileno()).st_size
            if size is None or now == size:
                return _SharedBlocks(file, lock) if isinstance(file, AbstractBufferedFile) else file
            file.close()
        except Exception as error:  # fsspec's caches raise exceptions of many classes, such as TypeError
            logger.debug(
                "%s reads the file without its cache (%s)", type(cache).__name__, type(error).__name__
            )
    return None


def read_cached(cache: AbstractFileSystem, ranges: Sequence[ByteRange]) -> list[bytes | None]:
    """Read byte ranges of files through a cache. An element is None if the cache cannot read the range."""
    parts: list[bytes | None] = []
    for path, group in groupby(ranges, key=attrgetter("path")):
        wanted = [(one.start, one.stop) for one in group]
        file = open_cached(cache, path, None)
        if file is None:
            parts += [None] * len(wanted)
            continue
        with file:
            for start, stop in wanted:
                file.seek(start)
                data = file.read(stop - start)
                parts.append(data if len(data) == stop - start else None)
    return parts


class _SharedBlocks:
    """A file of a cache of blocks. Its methods lock the file, because threads share its list of blocks."""

    def __init__(self, file: AbstractBufferedFile, lock: RLock) -> None:
        self._file, self._lock = file, lock
        self.details = file.details

    def __enter__(self) -> "_SharedBlocks":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._file.close()

    def seek(self, offset: int) -> int:
        return int(self._file.seek(offset))

    def read(self, count: int) -> bytes:
        with self._lock:
            return bytes(self._file.read(count))
