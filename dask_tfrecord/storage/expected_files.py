"""Define the expected state of a file, and the errors for a file that has changed since it was listed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, Protocol

from dask_tfrecord.errors import FileChangedError, FileRemovedError, Remedy, TFRecordError
from dask_tfrecord.storage.failures import store_failure

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
    """Return the stamp of a file: a value in fsspec's info that changes when the file is rewritten, or "".

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
    problem = f"the file was removed after the dataset was listed{why}"
    return FileRemovedError(problem, "read the dataset again", path=path)


def rewritten(path: str) -> FileChangedError:
    return FileChangedError("the file was rewritten since the dataset was listed", ADVICE, path=path)


class Version(Protocol):
    """The version of a dataset that lists the files of a store. Reads ask it about missing and resized files.

    The class that implements the protocol belongs to the layer that knows snapshots.
    """

    def other_paths(self, store: Any, path: str) -> Iterator[str]:
        """Yield the paths to which a commit may have moved a file. After the last path, the iterator may
        raise an error that explains why the file is missing.
        """

    def resized(self, store: Any, path: str, size: int, now: str) -> FileChangedError:
        """Return the error for a file whose size differs from the size in the version."""


@dataclass(frozen=True)
class ExpectedFile:
    """The expected state of a file: its state in a listing, or in the version that lists the file. When the
    file is opened, the expected state is compared with the current state.

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
        except FileNotFoundError:
            raise removed(self.path) from None
        except Exception:  # `explain` reports the original error, not the failure of `info`
            return
        self.check(now)
