"""Read an open file forward, and check that the file has not changed since it was listed."""

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, NoReturn

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFile
from fsspec.spec import AbstractBufferedFile

from dask_tfrecord.codec import SparseReader
from dask_tfrecord.errors import FileChangedError, FileRemovedError, Remedy, TFRecordError
from dask_tfrecord.files.storage.store_failures import store_failure

# The largest number of bytes that one request transfers.
REQUEST_BYTES = 1 << 23

# Keys of a file's info in fsspec whose values change when the file is rewritten.
_STAMPS = (
    "ETag",
    "etag",
    "md5Hash",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "modified",
    "created",
)

_ADVICE = "if it was rewritten on purpose, read the dataset again"


def stamp_of(info: dict[str, Any]) -> str:
    """Return the stamp of a file: a value in fsspec's info that changes when the file is rewritten, or "".

    The stamp of a symbolic link is "", because fsspec reports the times of the link and not of the file.
    """
    if info.get("islink"):
        return ""
    stamp: Any = ""
    for key in _STAMPS:  # a generator would take several times as long
        if (value := info.get(key)) is not None:
            stamp = value
            break
    # The info in a listing may give the time as a number, and the info of a single file as a datetime.
    return str(stamp.timestamp() if isinstance(stamp, datetime) and stamp.tzinfo else stamp)


def removed(path: str, why: str = "") -> FileRemovedError:
    problem = f"the file was removed after the dataset was listed{why}"
    return FileRemovedError(problem, "read the dataset again", path=path)


@dataclass(frozen=True)
class ExpectedFile:
    """The state of a file in a listing. Opening the file compares this state with the current state.

    ``path`` contains no credentials. ``whole`` is True if the file is read from its start to its end.
    ``look`` returns the current info of the file from the store.
    """

    path: str
    size: int | None
    stamp: str
    whole: bool
    look: Callable[[], dict[str, Any]]

    def check(self, now: dict[str, Any]) -> None:
        """Raise FileChangedError if the current info shows that the file was replaced."""
        size, stamp = now.get("size"), stamp_of(now)
        if size is not None and self.size is not None and size != self.size:
            raise self.resized(f"{size:,}")
        if self.stamp and stamp and stamp != self.stamp:
            problem = "the file was rewritten since the dataset was listed"
            raise FileChangedError(problem, _ADVICE, path=self.path)

    def resized(self, now: str) -> FileChangedError:
        problem = f"the file had {self.size:,} bytes when the dataset was listed and has {now} now"
        return FileChangedError(problem, _ADVICE, path=self.path)

    def explain(self, error: Exception) -> NoReturn:
        """Raise an actionable error for a store failure; raise any other error unchanged."""
        if isinstance(error, TFRecordError):
            raise error
        if (failure := store_failure(error, self.path)) is not None:
            raise failure from error
        self._look_again()
        if isinstance(error, OSError):
            raise error
        if isinstance(error, ValueError) and not self.whole:
            problem = "a range of the file was requested, but the server sends only whole files"
            remedy = Remedy("blocksize", None, "read every file as a whole")
            raise TFRecordError(problem, remedy, path=self.path) from error
        # The text of the error may contain the URL with its secrets.
        raise TFRecordError(f"the file cannot be read ({type(error).__name__})", path=self.path) from None

    def _look_again(self) -> None:
        try:
            now = self.look()
        except FileNotFoundError:
            raise removed(self.path) from None
        except Exception:  # the store cannot be reached, and the first error reports this
            return
        self.check(now)


class FileReader:
    """Read a range of a file forward, and check that the file has the expected size."""

    def __init__(self, file: Any, expected: ExpectedFile, start: int, stop: int | None) -> None:
        self._file = file
        self._expected = expected
        self._position = start
        self._stop = stop
        self._ahead = memoryview(b"")
        self.size = expected.size

    def peek(self, count: int) -> bytes:
        """Return the first ``count`` bytes of the range, or all bytes if there are fewer. Call `peek` before
        other reads.
        """
        head = memoryview(bytearray(count))
        end = 0
        while end < count and (got := self.readinto(head[end:])):
            end += got
        self._ahead = memoryview(bytes(head[:end]) + bytes(self._ahead))
        return bytes(head[:end])

    def leave_out_values(self, columns: Sequence[str]) -> None:
        """From now on, read a local file of uncompressed records as `SparseReader` does.

        Call this method before any read except `peek`. If the file is not local, the method changes nothing.
        """
        stop = self.size if self._stop is None else self._stop
        if isinstance(self._file, io.FileIO) and stop is not None:
            self._position -= len(self._ahead)
            self._ahead = memoryview(b"")
            self._file = SparseReader(self._file.fileno(), self._position, stop, columns)

    def readinto(self, view: memoryview) -> int:
        """Read the next bytes into the start of ``view``. Return their number, which is 0 only at the end of
        the range.
        """
        if not self._ahead:
            wanted = None if self._stop is None else self._stop - self._position
            if wanted == 0:
                return 0
            try:
                count = self._read(view if wanted is None else view[:wanted], wanted)
            except Exception as error:  # fsspec and the libraries of stores raise exceptions of many classes
                self._expected.explain(error)
            self._position += count
            self._check_size(count == 0)
            if not self._ahead:
                return count
        count = min(len(view), len(self._ahead))
        view[:count], self._ahead = self._ahead[:count], self._ahead[count:]
        return count

    def _read(self, view: memoryview, wanted: int | None) -> int:
        """Read into ``view``, or into the reader's buffer if each read of the file sends a request."""
        if isinstance(self._file, AbstractBufferedFile) or not hasattr(self._file, "readinto"):
            most = REQUEST_BYTES if wanted is None else min(wanted, REQUEST_BYTES)
            data = self._file.read(most)
            self._ahead = memoryview(data)
            return len(data)
        count: int = self._file.readinto(view)
        return count

    def _check_size(self, ended: bool) -> None:
        end = self.size if self._stop is None else self._stop
        if end is None:
            return
        if ended and self._position < end:
            raise self._expected.resized(f"only {self._position:,}")
        if self._position > end:
            if self._stop is None:
                raise self._expected.resized(f"more than {end:,}")
            raise FileChangedError(
                "the server sends more bytes than were requested", path=self._expected.path
            )


def open_unbuffered(
    fs: AbstractFileSystem, path: str, expected: ExpectedFile, *, is_http: bool, uploads: bool
) -> Any:
    """Open a file for reading, without a buffer, because `FileReader` buffers what it reads.

    If the filesystem ``uploads`` files, as object stores do, a small file whose stamp does not matter is read
    with one request.
    """
    if type(fs) is LocalFileSystem:  # fsspec takes ten times as long to open a local file
        return open(path, "rb", buffering=0)
    options: dict[str, Any] = {"block_size": REQUEST_BYTES, "cache_type": "none"}
    size = expected.size or 0
    if uploads and expected.whole and not expected.stamp and 0 < size < REQUEST_BYTES:
        # `open` would ask for the size first. One byte more than expected is read, so that a longer file is
        # noticed.
        return io.BytesIO(read_byte_ranges(fs, [(path, 0, size + 1)])[0])
    if is_http:
        if expected.whole:
            # Read the file with one request, which servers without ranges can answer.
            options["block_size"] = 0
        elif expected.size is not None:
            # Request one byte more than expected, so that a longer file is noticed.
            options["size"] = expected.size + 1
    file = fs.open(path, "rb", **options)
    # All readers of one in-memory file of fsspec share one object with one position.
    return io.BytesIO(file.getvalue()) if isinstance(file, MemoryFile) else file


def read_byte_ranges(fs: AbstractFileSystem, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    if type(fs) is not LocalFileSystem:
        paths, starts, stops = map(list, zip(*ranges, strict=True)) if ranges else ([], [], [])
        found: list[bytes] = fs.cat_ranges(paths, starts, stops, on_error="raise")
        for one in found:  # asynchronous filesystems return errors as results even with on_error="raise"
            if isinstance(one, Exception):
                raise one
        return found
    found = []
    for path, group in groupby(ranges, key=itemgetter(0)):  # fsspec would open a file for each range
        file = os.open(path, os.O_RDONLY)
        try:
            found += [os.pread(file, stop - start, start) for _, start, stop in group]
        finally:
            os.close(file)
    return found


class PartialFile(io.RawIOBase):
    """A file-like object for a file of which only some ranges were read."""

    def __init__(self, size: int, parts: Sequence[tuple[int, bytes]]) -> None:
        self._size, self._parts, self._at = size, parts, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, count: int = -1) -> bytes:
        for start, data in self._parts:
            if start <= self._at < start + len(data):
                found = data[self._at - start :][:count]
                self._at += len(found)
                return found
        raise OSError(f"byte {self._at} was not read")
