"""Find the files of a version where a commit has moved them, and explain why a file is missing or resized.

A commit moves the files that only older versions list to the directory ``kept``. A `restore` moves them back.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from dask_tfrecord.dataset.names import KEPT
from dask_tfrecord.dataset.snapshot.head import kept_versions, open_version
from dask_tfrecord.dataset.snapshot.model import listed_files
from dask_tfrecord.dataset.snapshot.versions import version_names
from dask_tfrecord.errors import (
    WITHOUT_SNAPSHOT,
    Call,
    FileChangedError,
    FileRemovedError,
    Remedy,
    TFRecordError,
    add_snapshot_again,
    short_list,
)
from dask_tfrecord.files.entry import is_part
from dask_tfrecord.storage.reader import removed
from dask_tfrecord.storage.store import Store

_Error = TypeVar("_Error", bound=TFRecordError)


def with_version(store: Store, number: int) -> Store:
    """Return a store that finds a file of version ``number`` even if a commit has moved it to the directory
    of kept files, or back.

    A reader that uses the returned store can still read its planned files after a commit has replaced them,
    if the commit keeps older versions.
    """
    return replace(store, version=VersionOfFiles(number))


@dataclass(frozen=True)
class VersionOfFiles:
    """The version that lists the files of a read, with the errors for files that are missing or resized."""

    number: int

    def other_paths(self, store: Store, path: str) -> Iterator[str]:
        kept = store.join(f"{KEPT}/{store.relative(path)}")
        yield from (kept, path, kept)  # a restore may move the file back between the first two requests
        if (error := self._lost(store, path)) is not None:
            raise error
        if numbers := kept_versions(store):
            has = f"version{'s' * (len(numbers) > 1)} {version_names(numbers)}"
            why = f"its version has expired or was overwritten. The dataset has {has}"
            raise removed(store.public(path), f", because {why}")

    def resized(self, store: Store, path: str, size: int, now: str) -> FileChangedError:
        return resized_file(store, path, size, now)

    def _lost(self, store: Store, path: str) -> FileRemovedError | None:
        """Return an error if a version that is still readable lists a missing file."""
        name = store.listed_name(path)
        with suppress(TFRecordError, FileNotFoundError):  # a snapshot is damaged, or an overwrite removes it
            if name in listed_files(open_version(store, None)):
                return lost_file(store, name)
            if name in listed_files(open_version(store, self.number)):
                return of_version(lost_file(store, name), self.number)
        return None


def lost_file(store: Store, name: str, missing: Sequence[str] = ()) -> FileRemovedError:
    """Return the error for a file that the newest version lists, and that is missing.

    ``missing`` names all missing files. All names are relative to the directory of the dataset.
    """
    root = store.public()
    repair = Call("repair", root, {}, "if it was removed on purpose, to drop its rows")
    others_only = Remedy("use_snapshot", False, "read the other files, without the rows of this file")
    problem = "the file is missing, but the dataset's snapshot lists it"
    if others := [one for one in missing if one != name]:
        problem += f"; also missing: {short_list(others)}"
    path = store.public(store.join(name))
    return FileRemovedError(problem, "put the file back", repair, others_only, path=path)


def resized_file(store: Store, path: str, size: int, now: str) -> FileChangedError:
    """Return the error for a file that has ``size`` bytes in the snapshot. ``path`` is the full path."""
    again = [] if is_part(path) else [add_snapshot_again(store.public(), "again if it was changed")]
    problem = f"the file has {now} bytes, but {size:,} in the dataset's snapshot"
    return FileChangedError(problem, WITHOUT_SNAPSHOT, calls=again, path=store.public(path))


def of_version(error: _Error, number: int) -> _Error:
    """Return the error for a file of version ``number``, which is not the newest version."""
    return error.replaced(
        problem=f"{error.problem}, in its version {number}",
        advice="put the file back",
        calls=(),
        remedies=[Remedy("version", None, "read the newest version")],
    )
