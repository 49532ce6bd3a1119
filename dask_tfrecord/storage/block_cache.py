"""Keep blocks of remote files on a local disk, where all processes of a node share them.

A file is cached in blocks of `BLOCK_BYTES`. Each block is a file whose name contains a hash of the remote
file's path and stamp, and the index of the block. A block is written under a temporary name and then renamed,
so readers never see an incomplete block. The content ends with a checksum, so a damaged block is read again
from the store. When the cache is full, one process removes the blocks that were not used for the longest
time. The failures of a cache never fail a read.
"""

import hashlib
import os
import re
import secrets
import shutil
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from fsspec import AbstractFileSystem
from typing_extensions import Buffer

from dask_tfrecord.codec import crc32c
from dask_tfrecord.errors import TFRecordError, warn_caller
from dask_tfrecord.storage.paths import name_of
from dask_tfrecord.storage.redaction import is_secret_name, without_credentials

fcntl: Any = import_module("fcntl") if os.name == "posix" else None

# Every block but the last of a file has this many bytes. A range of 1 MiB begins and ends within a block, so
# its blocks have 1.25 MiB on average.
BLOCK_BYTES = 1 << 18

# The smallest limit of a cache.
LEAST_BYTES = 1 << 20

# The cache uses only this subdirectory of the user's directory, and only if it contains the file `_TAG` or
# only cache files. Backup programs know the tag, and skip the directory.
_SUBDIRECTORY = "dask_tfrecord_cache"
_TAG = "CACHEDIR.TAG"
_TAG_TEXT = """Signature: 8a477f597d28d172789f06886806bc55
# Blocks of remote files that dask_tfrecord has read. The directory can be removed at any time.
"""

# The directories of blocks, and all names in the subdirectory.
_GROUP = re.compile(r"[0-9a-f]{2}")
_NAME = re.compile(rf"{_GROUP.pattern}|total|janitor|{re.escape(_TAG)}")

# Matches the names of blocks and of blocks that are being written. The cache removes nothing else.
_BLOCK = re.compile(r"[0-9a-f]{32}-\d+(\.writing-[0-9a-f]{16})?")

# A block and the number of all bytes end with a CRC-32C.
_CHECKSUM = struct.Struct("<I")
_TOTAL = struct.Struct("<Q")

# A full cache is emptied to this fraction, so that its blocks are rarely listed.
_KEPT = 0.9

# The time of the last use of a block is at most this many seconds too old.
_USE_SECONDS = 60

# A block that was begun more than this many seconds ago, and is not complete, belongs to a killed process.
_LONGEST_WRITE = 600

# After a failed write, for example to a full disk, a process writes nothing for this many seconds.
_PAUSE = 60


class CachedRange(NamedTuple):
    """A range of whole blocks of a file. ``data`` is None if the cache lacks the blocks."""

    start: int
    stop: int
    data: Buffer | None


class BlockCache:
    """A cache in ``directory`` whose blocks take at most ``limit`` bytes. Any number of threads and processes
    may use the directory at the same time.

    If ``limit`` is None, the blocks take at most three quarters of the bytes that are free when the cache is
    prepared. Free bytes include those of the blocks. Files whose names match ``constant`` never change, so
    they need no stamp.
    """

    def __init__(self, directory: str, limit: int | None, constant: str = "") -> None:
        if fcntl is None:
            raise TFRecordError("cache= needs a POSIX system, because its processes lock files")
        self.directory = directory
        self._given = self._limit = limit
        self._constant = constant
        self._path = os.path.join(directory, _SUBDIRECTORY)
        self._is_ready = False
        self._paused_until = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        # The process that unpickles the cache may run on another machine, with another disk and clock.
        return BlockCache, (self.directory, self._given, self._constant)

    def key(self, fs: AbstractFileSystem, path: str, size: int | None, stamp: str) -> str | None:
        """Return the name of a file in the cache, or None if a file with this path may change unnoticed.

        The name contains only a hash. Credentials do not change it, so a cache survives their renewal.
        """
        if not stamp and not re.fullmatch(self._constant, name_of(path)):
            return None
        place = without_credentials(str(fs.unstrip_protocol(path)))
        identity = repr((place, _public_options(fs), getattr(fs, "account_name", ""), size, stamp))
        return hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:32]

    def find(self, key: str, start: int, stop: int) -> list[CachedRange]:
        """Return the blocks that contain a range of a file. Adjacent blocks that are missing are one part.

        The last part is shorter if it ends with the file's last block, which may be incomplete.
        """
        parts: list[CachedRange] = []
        for number in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
            first, data = number * BLOCK_BYTES, self._read(self._block(key, number))
            if data is not None:
                parts.append(CachedRange(first, first + len(data), data))
                if len(data) < BLOCK_BYTES:
                    break
            elif parts and parts[-1].data is None:
                parts[-1] = parts[-1]._replace(stop=first + BLOCK_BYTES)
            else:
                parts.append(CachedRange(first, first + BLOCK_BYTES, None))
        return parts

    def store(self, key: str, start: int, data: Buffer, size: int | None) -> None:
        """Add the blocks in ``data``, which begins with a block. Bytes after the last whole block are added
        only if they end the file, which has ``size`` bytes.
        """
        view = memoryview(data)
        for at in range(0, len(view), BLOCK_BYTES):
            block = view[at : at + BLOCK_BYTES]
            if len(block) == BLOCK_BYTES or start + at + len(block) == size:
                self._write(self._block(key, (start + at) // BLOCK_BYTES), block)

    def prepare(self) -> bool:
        """Create the directory. If the cache cannot be used, warn and return False."""
        if not self._is_ready and time.monotonic() >= self._paused_until:
            try:
                _create_directory(Path(self._path))
                if self._limit is None:
                    with self._locked("total", wait=True) as file:
                        used = _read_total(file) or 0
                    self._limit = 3 * (shutil.disk_usage(self._path).free + used) // 4
                self._is_ready = True
            except OSError as error:
                self._pause(error)
        return self._is_ready

    @property
    def limit(self) -> int:
        """The largest number of bytes that the blocks may take, or 0 if the cache cannot be used."""
        return self._limit or 0

    def _block(self, key: str, number: int) -> str:
        group = (int(key[:2], 16) + number) % 256  # the blocks of a large file are spread over the groups
        return f"{self._path}/{group:02x}/{key}-{number}"

    def _read(self, path: str) -> memoryview | None:
        if not self.prepare():
            return None
        try:
            with open(path, "rb", buffering=0) as file:
                stored = memoryview(file.read(BLOCK_BYTES + _CHECKSUM.size + 1))
                if os.fstat(file.fileno()).st_mtime < time.time() - _USE_SECONDS:
                    with suppress(OSError):  # the disk may be read-only
                        os.utime(file.fileno())
        except FileNotFoundError:
            return None
        except OSError as error:
            self._pause(error)
            return None
        data = stored[: -_CHECKSUM.size]
        if stored[-_CHECKSUM.size :] == _CHECKSUM.pack(_checksum(path, data)):
            return data
        with suppress(OSError):
            os.unlink(path)
        return None

    def _write(self, path: str, block: memoryview) -> None:
        if time.monotonic() < self._paused_until or not self.prepare():
            return
        try:
            if not os.path.exists(path) and self._reserve(len(block) + _CHECKSUM.size):
                _create_block(path, block)
        except FileNotFoundError:  # the directory was removed, and is created again for the next block
            self._is_ready = False
        except OSError as error:
            self._pause(error)

    def _pause(self, error: OSError) -> None:
        self._paused_until = time.monotonic() + _PAUSE
        reason = error.strerror or str(error)
        warn_caller(
            f"the cache in {self.directory!r} cannot be used ({reason}), so data is read from the store: "
            "pass a directory on a disk of this machine that you may write to as cache=, or cache=None"
        )

    # -- The limit -------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self, name: str, *, wait: bool) -> Iterator[int | None]:
        """Lock a file of the cache, and yield its descriptor, or None if another process holds the lock."""
        descriptor = os.open(f"{self._path}/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield None
            else:
                yield descriptor
        finally:
            # A process that was forked meanwhile shares the lock, so closing the file would not release it.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _reserve(self, size: int) -> bool:
        """Return True if the directory has room for ``size`` more bytes, which then count as used."""
        has_room, total = self._add(size)
        if has_room:
            return True
        # While another process removes blocks, this one adds none. It waits only for the first measurement.
        with self._locked("janitor", wait=total is None) as janitor:
            return janitor is not None and self._make_room(size)

    def _add(self, size: int) -> tuple[bool, int | None]:
        with self._locked("total", wait=True) as file:
            total = _read_total(file)
            has_room = total is not None and total + size <= self.limit
            if total is not None and has_room:
                _write_total(file, total + size)
        return has_room, total

    def _make_room(self, size: int) -> bool:
        """Measure the blocks. If ``size`` bytes do not fit, remove the least recently used blocks."""
        has_room, before = self._add(size)
        if has_room:  # another process has made room
            return True
        blocks = sorted(self._measured())
        used = sum(one for _, one, _ in blocks)
        if used + size > self.limit:
            for _, one, path in blocks:
                if used + size <= _KEPT * self.limit:
                    break
                with suppress(FileNotFoundError):
                    os.unlink(path)
                used -= one
        with self._locked("total", wait=True) as file:
            now = _read_total(file)
            added = 0 if now is None or before is None else max(0, now - before)
            has_room = used + added + size <= self.limit
            _write_total(file, used + added + size * has_room)
        return has_room

    def _measured(self) -> Iterator[tuple[float, int, str]]:
        """Yield the time of the last use, the size and the path of each block."""
        killed = time.time() - _LONGEST_WRITE
        for group in os.scandir(self._path):
            if not _GROUP.fullmatch(group.name) or not group.is_dir(follow_symlinks=False):
                continue
            for block in os.scandir(group.path):
                match = _BLOCK.fullmatch(block.name)
                if not match or not block.is_file(follow_symlinks=False):
                    continue
                with suppress(FileNotFoundError):
                    status = block.stat(follow_symlinks=False)
                    if not match[1]:
                        yield status.st_mtime, status.st_size, block.path
                    elif status.st_mtime < killed:
                        os.unlink(block.path)
                    else:
                        yield float("inf"), status.st_size, block.path


class CachedFile:
    """An open file of ``size`` bytes that is read to its end, or to the end of a range. Bytes that the cache
    lacks are read from ``file``.
    """

    def __init__(self, file: Any, cache: BlockCache, key: str, size: int, counts: Any) -> None:
        self._file, self._cache, self._key, self._size, self._counts = file, cache, key, size, counts
        self._at = file.tell()
        self._parts: list[CachedRange] = []  # those that follow, the next one last

    def read(self, count: int) -> memoryview:
        """Return the next bytes, at most ``count`` and sometimes fewer."""
        stop = min(self._at + count, self._size)
        if self._at >= stop:
            return memoryview(b"")
        if not self._parts:
            self._parts = self._cache.find(self._key, self._at, stop)[::-1]
        part = self._parts.pop()
        if part.data is None:
            data = self._read(part.start, min(part.stop, self._size))
            self._cache.store(self._key, part.start, data, self._size)
        else:
            data = memoryview(part.data)
        content = data[self._at - part.start : stop - part.start]
        self._at += len(content)
        self._counts.add(cached_bytes=0 if part.data is None else len(content))
        return content

    def _read(self, start: int, stop: int) -> memoryview:
        self._file.seek(start)
        content = []
        while start < stop and (data := self._file.read(stop - start)):
            content.append(data)
            start += len(data)
        return memoryview(b"".join(content))


def _public_options(value: Any) -> Any:
    """Return the arguments of a filesystem that are plain values and no credentials, such as an endpoint."""
    if isinstance(value, AbstractFileSystem):
        names = [*signature(type(value).__init__).parameters][1:]
        return _public_options(
            {**dict(zip(names, value.storage_args, strict=False)), **value.storage_options}
        )
    if isinstance(value, dict):
        known = ((name, _public_options(one)) for name, one in value.items() if not is_secret_name(name))
        return sorted(known, key=repr)
    if isinstance(value, str):
        return without_credentials(value)
    return value if isinstance(value, int | float | None) else type(value).__qualname__


def _checksum(path: str, data: memoryview) -> int:
    """Return the checksum of a block, which also depends on its name."""
    return crc32c(data, crc32c(name_of(path).encode()))


def _create_block(path: str, block: memoryview) -> None:
    temporary = f"{path}.writing-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        descriptor = os.open(temporary, flags, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(block)
            file.write(_CHECKSUM.pack(_checksum(path, block)))
        os.replace(temporary, path)
    # Handle every exception, even KeyboardInterrupt, so that no incomplete block remains.
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _create_directory(path: Path) -> None:
    """Create the directory of a cache with its tag. Raise OSError if the directory is not a cache, or if
    another user could change its blocks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{path} is not a directory")
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(f"other users may write to {path}")
    if not (path / _TAG).is_file():
        if not all(map(_NAME.fullmatch, os.listdir(path))):
            raise OSError(f"{path} contains files of another program")
        (path / _TAG).write_text(_TAG_TEXT)


def _read_total(file: int | None) -> int | None:
    """Return the number of used bytes, or None if it must be measured."""
    stored = b"" if file is None else os.pread(file, _TOTAL.size + _CHECKSUM.size, 0)
    head = stored[: _TOTAL.size]
    is_intact = stored[_TOTAL.size :] == _CHECKSUM.pack(crc32c(head))
    return int(_TOTAL.unpack(head)[0]) if len(head) == _TOTAL.size and is_intact else None


def _write_total(file: int | None, total: int) -> None:
    if file is not None:
        head = _TOTAL.pack(total)
        os.pwrite(file, head + _CHECKSUM.pack(crc32c(head)), 0)
