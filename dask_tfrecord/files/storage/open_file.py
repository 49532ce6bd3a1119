"""An open file, read forward, and the check that it still is the file that was listed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fsspec.spec import AbstractBufferedFile

from dask_tfrecord.errors import FileChangedError, TFRecordError

# Bytes that travel in one request.
REQUEST_BYTES = 1 << 23

# What a listing may know that changes when a file is rewritten.
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

_ADVICE = "call read_tfrecord again if it was rewritten on purpose"


def stamp_of(info: dict[str, Any]) -> str:
    """What fsspec tells of a file that differs when the file was rewritten; empty if nothing does.

    Of a symbolic link fsspec tells the times of the link, not of the file.
    """
    if info.get("islink"):
        return ""
    stamp = next((info[key] for key in _STAMPS if info.get(key) is not None), "")
    # A time in a listing and the same time of one file may be a number and a datetime.
    return str(stamp.timestamp() if isinstance(stamp, datetime) and stamp.tzinfo else stamp)


@dataclass(frozen=True)
class ExpectedFile:
    """A file as it was listed.

    Attributes
    ----------
    path : str
        What messages call it.
    size : int, optional
        Its bytes, if they are known.
    stamp : str
        Its `stamp_of`.
    whole : bool
        Whether it is read from its start to its end.
    look : callable
        Asks the store what fsspec tells of it now.
    """

    path: str
    size: int | None
    stamp: str
    whole: bool
    look: Callable[[], dict[str, Any]]

    def check(self, now: dict[str, Any]) -> None:
        """Raise if it is another file now."""
        size, stamp = now.get("size"), stamp_of(now)
        if size is not None and self.size is not None and size != self.size:
            raise self.resized(f"{size:,}")
        if self.stamp and stamp and stamp != self.stamp:
            problem = "the file was rewritten since the dataset was listed"
            raise FileChangedError(problem, path=self.path, advice=_ADVICE)

    def resized(self, now: str) -> FileChangedError:
        """The error for a file of another size."""
        problem = f"the file had {self.size:,} bytes when the dataset was listed, and has {now} now"
        return FileChangedError(problem, path=self.path, advice=_ADVICE)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say of a failure of the store what it means; one that means nothing more passes."""
        try:
            yield
        except TFRecordError:
            raise
        except Exception as error:
            self._look_again()
            if isinstance(error, OSError):
                raise
            if isinstance(error, ValueError) and not self.whole:
                raise TFRecordError(
                    "a part of the file was asked for, and the server sends only the whole file",
                    path=self.path,
                    advice="pass blocksize=None, which reads files as a whole",
                ) from error
            # Its text may hold the URL with all that is secret in it.
            raise TFRecordError(f"the file cannot be read ({type(error).__name__})", path=self.path) from None

    def _look_again(self) -> None:
        try:
            now = self.look()
        except FileNotFoundError:
            problem = "the file was there when the dataset was listed, and is gone now"
            raise FileNotFoundError(f"{self.path}: {problem}") from None
        except Exception:  # the store is out of reach, as the first failure says
            return
        self.check(now)


class FileReader:
    """A stretch of a file's bytes, forward, and the check that there are as many as were planned."""

    def __init__(self, file: Any, expected: ExpectedFile, start: int, stop: int | None) -> None:
        self._file = file
        self._expected = expected
        self._position = start
        self._stop = stop
        self._ahead = memoryview(b"")
        self.size = expected.size

    def peek(self, count: int) -> bytes:
        """The first bytes, at most ``count``; to be asked for before anything is read."""
        head = memoryview(bytearray(count))
        end = 0
        while end < count and (got := self.readinto(head[end:])):
            end += got
        self._ahead = memoryview(bytes(head[:end]) + bytes(self._ahead))
        return bytes(head[:end])

    def readinto(self, view: memoryview) -> int:
        """Fill the start of ``view`` and return how many bytes; 0 only at the end."""
        if not self._ahead:
            wanted = None if self._stop is None else self._stop - self._position
            if wanted == 0:
                return 0
            with self._expected.explained():
                count = self._read(view if wanted is None else view[:wanted], wanted)
            self._position += count
            self._check_size(count == 0)
            if not self._ahead:
                return count
        count = min(len(view), len(self._ahead))
        view[:count], self._ahead = self._ahead[:count], self._ahead[count:]
        return count

    def _read(self, view: memoryview, wanted: int | None) -> int:
        """Read into the view, or ahead where each read is a request."""
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
                "the server sends more bytes than it was asked for", path=self._expected.path
            )
