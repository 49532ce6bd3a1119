"""Read a range of a file from start to end, and notice changes since it was listed."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, Protocol

from fsspec.spec import AbstractBufferedFile

from dask_tfrecord.codec import crc32c
from dask_tfrecord.errors import FileChangedError, FileRemovedError, Remedy, TFRecordError
from dask_tfrecord.storage.failures import check_missing, store_failure
from dask_tfrecord.storage.range_requests import REQUEST_BYTES

# In fsspec's info about a file, the values of these keys change when the file is rewritten.
_STAMPS = (
    "ETag",
    "etag",
    "e_tag",
    "md5Hash",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "modified",
    "created",
)

ADVICE = "if it was rewritten on purpose, read the dataset again"


def stamp_of(info: dict[str, Any]) -> str:
    """Return the stamp of a file: a value in fsspec's info that changes when it is rewritten, or "".

    The stamp of a symbolic link is "", because fsspec reports the times of the link, not of its target.
    """
    if info.get("islink"):
        return ""
    stamp: Any = ""
    for key in _STAMPS:  # a generator expression would take several times as long as this loop
        if (value := info.get(key)) is not None:
            stamp = value
            break
    # The modification time of a file may be a number in a listing, but a datetime in the info of a single
    # file.
    return str(stamp.timestamp() if isinstance(stamp, datetime) and stamp.tzinfo else stamp)


def removed(path: str, why: str = "") -> FileRemovedError:
    problem = f"the file was removed after it was listed{why}"
    return FileRemovedError(problem, "read the dataset again", path=path)


def rewritten(path: str) -> FileChangedError:
    return FileChangedError("the file was rewritten since it was listed", ADVICE, path=path)


class Version(Protocol):
    """Lists the files of a store. Reads ask it about missing and resized files."""

    def other_paths(self, store: Any, path: str) -> Iterator[str]:
        """Yield the paths to which a commit may have moved a file. After the last path, the iterator may
        raise an error that explains why the file is missing.
        """

    def resized(self, store: Any, path: str, size: int, now: str) -> FileChangedError:
        """Return the error for a file whose size differs from the listed size."""


@dataclass(frozen=True)
class ExpectedFile:
    """The expected state of a file: that in a listing, or in the version that lists it. When the file is
    opened, the expected state is compared with the current state.

    ``path`` contains no credentials. ``whole`` is True if the file is read from its start to its end.
    ``info`` returns the current info of the file from the store. ``resized`` returns the error for a size
    that differs from ``size``.
    """

    path: str
    size: int | None
    stamp: str
    whole: bool
    info: Callable[[], dict[str, Any]]
    resized: Callable[[str], FileChangedError]

    def check(self, now: dict[str, Any]) -> None:
        """Raise FileChangedError if the current info ``now`` proves that the file was replaced."""
        self.check_size(now)
        if self.is_restamped(now):
            raise rewritten(self.path)

    def check_size(self, now: dict[str, Any]) -> None:
        size = now.get("size")
        if size is not None and self.size is not None and size != self.size:
            raise self.resized(f"{size:,}")

    def is_restamped(self, now: dict[str, Any]) -> bool:
        """Return True if the modification time or the ETag shows that the file may have been rewritten."""
        return self.stamp != "" and stamp_of(now) not in ("", self.stamp)

    def explain(self, error: Exception) -> NoReturn:
        """Raise an actionable error for a store failure; raise any other error unchanged."""
        if isinstance(error, TFRecordError):
            raise error
        if isinstance(error, FileNotFoundError):
            self._check_again()  # a failure of the store would hide that another process removed the file
        if (failure := store_failure(error, self.path)) is not None:
            raise failure from error
        self._check_again()
        if isinstance(error, OSError):
            raise error
        if isinstance(error, ValueError) and not self.whole:
            problem = "a range of the file was requested, but the server sends only whole files"
            remedy = Remedy("blocksize", None, "read every file as a whole")
            raise TFRecordError(problem, remedy, path=self.path) from error
        # The text of the error may contain the URL with its secrets.
        raise TFRecordError(f"the file cannot be read ({type(error).__name__})", path=self.path) from None

    def _check_again(self) -> None:
        try:
            now = self.info()
        except FileNotFoundError as error:
            check_missing(error, self.path)
            raise removed(self.path) from None
        except Exception:  # `explain` reports the original error, not the failure of `info`
            return
        self.check(now)


@dataclass
class Checksum:
    """The first bytes of a file, and the number and the CRC-32C of all bytes that were read so far."""

    head: bytes = b""
    bytes: int = 0
    crc32c: int = 0

    def add(self, data: memoryview) -> None:
        self.bytes += len(data)
        self.crc32c = crc32c(data, self.crc32c)


class FileReader:
    """Read a range of a file from start to end, and check its size.

    ``is_restamped`` is True if the file may have been rewritten, so that its content must be compared. All
    bytes that were read are added to ``checksums``. ``stream`` opens the file from its start, for a server
    that sends only whole files. If a commit moves the file during the read, ``open_at`` opens it at its new
    path.
    """

    def __init__(
        self,
        file: Any,
        expected: ExpectedFile,
        start: int,
        stop: int | None,
        *,
        is_restamped: bool = False,
        stream: Callable[[], Any] | None = None,
    ) -> None:
        self.is_restamped, self.size = is_restamped, expected.size
        self.checksums: list[Checksum] = []
        self.open_at: Callable[[int], FileReader] | None = None
        self._file, self._stream, self._expected = file, stream, expected
        self._position, self._stop = start, stop
        self._ahead = memoryview(b"")

    def peek(self, count: int) -> bytes:
        """Return the first ``count`` bytes of the range, or all if it is shorter. Call `peek` before any
        other read.
        """
        head = memoryview(bytearray(count))
        end = 0
        while end < count and (got := self._readinto(head[end:])):
            end += got
        self._ahead = memoryview(bytes(head[:end]) + bytes(self._ahead))
        for one in self.checksums:
            one.head = bytes(head[:end])
        return bytes(head[:end])

    def readinto(self, view: memoryview) -> int:
        """Read the next bytes into the start of ``view``. Return the number of bytes read, which is 0 only at
        the end of the range.
        """
        count = self._readinto(view)
        for one in self.checksums:
            one.add(view[:count])
        return count

    def _readinto(self, view: memoryview) -> int:
        if not self._ahead:
            wanted = None if self._stop is None else self._stop - self._position
            if wanted == 0:
                return 0
            view = view if wanted is None else view[:wanted]
            try:
                count = self._read_explained(view, wanted)
            except FileNotFoundError:
                if self.open_at is None:
                    raise
                # Each read may be the first request after a commit that moves the file.
                moved = self.open_at(self._position)
                self._file, self._stream, self._expected = moved._file, moved._stream, moved._expected
                count = self._read_explained(view, wanted)
            self._position += count
            self._check_size(count == 0)
            if not self._ahead:
                return count
        count = min(len(view), len(self._ahead))
        view[:count], self._ahead = self._ahead[:count], self._ahead[count:]
        return count

    def _read_explained(self, view: memoryview, wanted: int | None) -> int:
        try:
            return self._read_or_stream(view, wanted)
        except Exception as error:  # fsspec and the storage libraries raise exceptions of many classes
            self._expected.explain(error)

    def _read_or_stream(self, view: memoryview, wanted: int | None) -> int:
        try:
            return self._read(view, wanted)
        except TFRecordError:  # is a ValueError, too, for example if the file was replaced
            raise
        except ValueError:  # the server sends no ranges
            if self._stream is None:
                raise
            self._file, self._stream, left = self._stream(), None, self._position
            while left and (data := self._file.read(min(left, REQUEST_BYTES))):
                left -= len(data)
            return self._read(view, wanted)

    def _read(self, view: memoryview, wanted: int | None) -> int:
        """Read the next bytes into ``view``, or into `_ahead` if the file sends a request for each read."""
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


class PartialFile(io.RawIOBase):
    """A file-like object that contains only some ranges of a file."""

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
                content = data[self._at - start :][:count]
                self._at += len(content)
                return content
        raise OSError(f"byte {self._at} was not read")
