"""Find and read the newest version of a dataset, or another version."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dask_tfrecord.dataset.listing import nothing_at
from dask_tfrecord.dataset.names import METADATA_DIRECTORY, STAGING, snapshot_path
from dask_tfrecord.dataset.snapshot.entry_log import CommitId
from dask_tfrecord.dataset.snapshot.list_files import public_path
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.stored_files import invalid_snapshot
from dask_tfrecord.dataset.snapshot.versions import (
    LostListError,
    history,
    numbers_of,
    read_version,
    version_names,
    with_unlisted,
)
from dask_tfrecord.errors import NotFoundError, TFRecordError
from dask_tfrecord.storage.paths import name_of
from dask_tfrecord.storage.reader import stamp_of
from dask_tfrecord.storage.redaction import redact_errors
from dask_tfrecord.storage.store import Store


def history_of(store: Store) -> pd.DataFrame:
    """Return a table of all readable versions, as documented by `Dataset.history`."""
    if not (found := Head.read(store)).number:
        raise no_snapshot(store)
    return history(store, found.versions)


def no_snapshot(store: Store) -> FileNotFoundError:
    problem = "the directory has no snapshot"
    return nothing_at(store, problem, advice="check the path", add_snapshot="to make a snapshot")


def open_version(store: Store, number: int | None, *, reads_files: bool = False) -> Snapshot:
    """Return one version of the dataset in the store's root, or the newest version if ``number`` is None.

    With ``reads_files=True``, also read the list of files, as `Head.read` does. Raise FileNotFoundError if
    the dataset has no version ``number``, or no snapshot.
    """
    if isinstance(number, bool) or not isinstance(number, int | np.integer | None):
        raise TFRecordError(f"version={number!r} is not the number of a version", "pass a number")
    if number is None:
        if (newest := Head.read(store, reads_files=reads_files).snapshot) is None:
            raise no_snapshot(store)
        return newest
    while number in (kept := kept_versions(store)):
        try:
            return read_snapshot(store, number, reads_files=reads_files)
        except (FileNotFoundError, LostListError):  # another operation may have just removed this version
            if number in kept_versions(store):
                raise
    if not kept:
        raise no_snapshot(store)
    has = "its only version is" if len(kept) == 1 else "it has"
    problem = f"the dataset has no version {number}; {has} {version_names(kept)}"
    if number < kept[0]:
        problem += (
            ". An overwrite removes the versions before it, unless it is called with keep_versions=True. "
            "Dataset.expire removes old versions, and so do compact and delete with keep_versions=False"
        )
    raise NotFoundError(f"{store.public()}: {problem}")


def read_snapshot(store: Store, number: int, *, reads_files: bool = False) -> Snapshot:
    """Return one version of the dataset. Raise the same errors as `read_version`.

    With ``reads_files=True``, also read the list of files.
    """
    snapshot = Snapshot(**read_version(store, number, kept_versions))
    if reads_files:
        len(snapshot.file_list)  # the first use reads the lists
    return snapshot


def kept_versions(store: Store) -> tuple[int, ...]:
    """Return the versions that the dataset keeps, or all stored versions if the newest one is damaged."""
    return Head.read(store, intact=True).versions


class _Listing(NamedTuple):
    """The names in the metadata directory, and what the store tells about the files there."""

    numbers: list[int]
    infos: dict[str, dict[str, Any] | None]

    @classmethod
    def of(cls, store: Store, *, is_exact: bool = True, expected: int = 0) -> "_Listing":
        """List the metadata directory.

        The listing of a remote store may not show a new file yet. If ``is_exact`` is True, the versions after
        the newest listed one are therefore requested individually, unless the listing shows the version
        ``expected``, which this process has just created.
        """
        infos = store.infos(METADATA_DIRECTORY)
        numbers = numbers_of(infos)
        if is_exact and (not expected or expected not in numbers):
            numbers = with_unlisted(store, numbers, expected)
        return cls(numbers, infos)

    @property
    def newest(self) -> int:
        return max(self.numbers, default=0)

    @property
    def has_staging(self) -> bool:
        return name_of(STAGING) in self.infos

    def stamp(self, store: Store, number: int) -> str:
        """Return the stamp of the file of a version, or "" if it is not known."""
        with suppress(Exception):  # without a stamp, the version is read again
            info = self.infos.get(name_of(snapshot_path(number)))
            return stamp_of(store.info(store.join(snapshot_path(number))) if info is None else info)
        return ""


@dataclass(frozen=True, eq=False, repr=False)
class Head:
    """The newest version of a dataset, when this process read or created it.

    A pickled `Head` does not contain the snapshot. `loaded` reads the snapshot again.

    Attributes
    ----------
    number : int
        The number of the version, or 0 if the dataset has no version.
    snapshot : Snapshot, optional
        The content of the version. None if there is no version, or if its file is damaged.
    run : str
        The id of the write that created the version, or "" if it is not known.
    stamp : str
        The stamp of the file of the version. It differs if the directory is replaced by another dataset with
        the same number of versions.
    versions : tuple of int
        The numbers of the versions that the dataset keeps.
    has_staging : bool
        True if other writes may be running, or may have been interrupted.
    """

    number: int = 0
    snapshot: Snapshot | None = None
    run: str = ""
    stamp: str = ""
    versions: tuple[int, ...] = ()
    has_staging: bool = False

    def __reduce__(self) -> Any:
        return Head, (self.number, None, self.run, self.stamp, self.versions, self.has_staging)

    @staticmethod
    @redact_errors
    def read(
        store: Store, *, intact: bool = False, is_exact: bool = True, reads_files: bool = False
    ) -> "Head":
        """Read the newest version of the dataset in the root of the store.

        Raise TFRecordError if the newest version is damaged, unless ``intact`` is True. With
        ``is_exact=False``, the result may be an older version if the listings of the store lag behind. This
        suffices for a write that notices any newer version when it commits. With ``reads_files=True``, also
        read the list of files, which would otherwise be read when it is first needed.
        """
        listing = _Listing.of(store, is_exact=is_exact)
        return _read(store, listing, intact=intact, reads_files=reads_files)

    @staticmethod
    def of(snapshot: Snapshot) -> "Head":
        """Return the head for a snapshot that was the newest version when it was read."""
        return Head(snapshot.number, snapshot, snapshot.run, versions=(snapshot.number,), has_staging=True)

    def loaded(self, store: Store, *, intact: bool = False) -> "Head":
        """Return this head with its snapshot, or the newest version if this version does not exist."""
        if self.snapshot is not None or not self.number:
            return self
        with suppress(FileNotFoundError, TFRecordError):  # `read` raises an error if there is reason to
            snapshot = read_snapshot(store, self.number)
            if snapshot.run == self.run:
                return replace(self, snapshot=snapshot)
        return Head.read(store, intact=intact, reads_files=intact)

    def advanced(self, store: Store, *, intact: bool = False) -> "Head":
        """Return the newest version now, or this very object if it is still the newest version."""
        listing = _Listing.of(store)
        is_known = not self.number or (self.stamp and listing.stamp(store, self.number) == self.stamp)
        if listing.newest == self.number and is_known:
            return self
        newest = _read(store, listing, intact=intact, reads_files=intact)
        return self if newest.number == self.number and newest.run == self.run else newest

    def followed_by(self, store: Store, created: Snapshot) -> "Head | None":
        """Return the newest version after this process has created the version ``created`` after this one.

        Return None if ``created`` does not belong to the dataset. An overwrite removes the versions before
        it, so a slower write can create one of them again. Or the directory was replaced by another dataset.
        """
        try:
            listing = _Listing.of(store, expected=created.number)
        except Exception:  # the listing failed, so assume that no newer version exists
            return Head(created.number, created, created.run)
        if listing.newest > created.number:
            newest = _read(store, listing, intact=True)
            return newest if newest._contains(created) else None
        if self._is_replaced(store, listing):
            return None
        stamp = listing.stamp(store, created.number)
        return Head(created.number, created, created.run, stamp, _kept(listing.numbers, created))

    @property
    def _commits(self) -> Iterator[CommitId]:
        """The last commits up to this version, the newest first."""
        return iter(()) if self.snapshot is None else self.snapshot.commits()

    def _contains(self, created: Snapshot) -> bool:
        """Return True if the version that this process has created is one of the dataset's."""
        if self.snapshot is None:  # the newest version is damaged, so do not remove any version
            return True
        runs = {past.number: past.run for past in self._commits}
        # Only versions before the oldest one are removed, so the number of any other version was never free.
        return (
            runs.get(created.number, created.run if created.number >= self.snapshot.oldest else "")
            == created.run
        )

    def _is_replaced(self, store: Store, listing: _Listing) -> bool:
        """Return True if another dataset has a version with the number of this version. This version may be
        missing, because another process has finished the commit of an overwrite.
        """
        if self.number not in listing.numbers or not self.run:
            return False
        if self.stamp and listing.stamp(store, self.number) == self.stamp:
            return False
        with suppress(Exception):  # the created version exists, so a failure of the store must not hide it
            return read_snapshot(store, self.number).run != self.run
        return False

    def succeeds(self, earlier: "Head") -> bool:
        """Return False if the directory was replaced by another dataset after ``earlier`` was read, or if a
        newer version is damaged.
        """
        if self.number < earlier.number or (self.snapshot is None and self.number > earlier.number):
            return False
        runs = {past.number: past.run for past in self._commits}
        return not earlier.run or runs.get(earlier.number, earlier.run) == earlier.run

    def commit_of(self, run: str, after: int = 0, write_id: str | None = None) -> CommitId | None:
        """Return the commit of ``run`` after version ``after``, or one with the id ``write_id``, if any."""
        for past in self._commits:
            if past.number <= after and write_id is None:
                break
            if past.run == run or (past.write_id is not None and past.write_id == write_id):
                return past
        return None

    def version_of(self, store: Store, past: CommitId) -> Snapshot:
        """Return the version of a known commit, or the newest version if the dataset no longer keeps it."""
        assert self.snapshot is not None  # a head without a snapshot knows no commits
        if past.number == self.number or past.number < self.snapshot.oldest:
            return self.snapshot
        with suppress(FileNotFoundError):  # an overwrite has removed the version
            found = read_snapshot(store, past.number)
            if found.run == past.run:
                return found
        return self.snapshot


def _read(store: Store, listing: _Listing, *, intact: bool, reads_files: bool = False) -> Head:
    while listing.numbers:
        number = listing.newest
        snapshot = None
        try:
            snapshot = read_snapshot(store, number, reads_files=reads_files)
        except (FileNotFoundError, TFRecordError) as error:
            # An overwrite may have just replaced this version with a newer one.
            is_lost = isinstance(error, FileNotFoundError | LostListError)
            if is_lost and (again := _Listing.of(store)).numbers != listing.numbers:
                listing = again
                continue
            if not intact:
                if not isinstance(error, FileNotFoundError):
                    raise
                # The file of the version itself was listed, but cannot be opened as a file.
                is_listed = type(error) is FileNotFoundError or isinstance(error, TFRecordError)
                reason = ValueError("is not a regular file") if is_listed else error
                raise invalid_snapshot(reason, public_path(store, number)) from error
        run = "" if snapshot is None else snapshot.run
        stamp, kept = listing.stamp(store, number), _kept(listing.numbers, snapshot)
        return Head(number, snapshot, run, stamp, kept, listing.has_staging)
    return Head(has_staging=listing.has_staging)


def _kept(numbers: Iterable[int], newest: Snapshot | None) -> tuple[int, ...]:
    oldest = 0 if newest is None else newest.oldest
    return tuple(sorted(number for number in numbers if number >= oldest))
