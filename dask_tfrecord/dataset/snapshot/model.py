"""Define what a snapshot of a dataset contains, and find the newest one. docs/format.md specifies the files.

A snapshot is stored as a Parquet file, which other tools can read. All paths in a snapshot are relative to
the directory of the dataset. A reader never executes anything that is stored in a snapshot, and never opens a
stored string as a URL.
"""

import html
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec.codecs import Compression
from dask_tfrecord.dataset.listing import nothing_at, with_trailing_slash
from dask_tfrecord.dataset.names import METADATA_DIRECTORY, STAGING, snapshot_path
from dask_tfrecord.dataset.snapshot.entry_log import CommitId, EntryLog, Prune, StoredList
from dask_tfrecord.dataset.snapshot.list_files import public_path
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.dataset.snapshot.stored_files import Columnar, invalid_snapshot, listed_paths, to_entries
from dask_tfrecord.dataset.snapshot.versions import (
    LostListError,
    history,
    numbers_of,
    read_version,
    version_names,
    with_unlisted,
)
from dask_tfrecord.errors import NotFoundError, TFRecordError
from dask_tfrecord.files.entry import COLUMN_FILE, FileEntry
from dask_tfrecord.files.file_list import FileList, encoded_paths
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.storage.failures import redact_errors
from dask_tfrecord.storage.filesystem import Filesystem
from dask_tfrecord.storage.paths import name_of
from dask_tfrecord.storage.reader import stamp_of
from dask_tfrecord.storage.store import Store

# `short_list` lists at most this many names.
_MOST_COLUMNS = 12


@dataclass(frozen=True, repr=False, eq=False)
class Snapshot:
    """One version of a dataset: the list of its files, and the columns of these files.

    Each write stores a snapshot in the directory of the dataset. `Snapshot.open` reads a stored snapshot.

    Attributes
    ----------
    files : tuple of FileEntry
        The data files, in the order in which their rows are read. Files in the same partition directory are
        adjacent.
    schema : Schema
        The names and Arrow types of the columns in the records, and the record type.
    compression : "gzip", "zlib", "zstd", "lz4", "bz2", "xz" or None
        The codec of the files that the newest write added. Files of earlier writes may have different codecs.
    run : str
        The id of the write that created the snapshot.
    library : str
        The version of this package that created the snapshot.
    partitioning : tuple of Field
        The partition columns. Directory names contain the values of partition columns, but records do not.
    number : int
        The version of the dataset that the snapshot describes. The first version is 1, and each write adds 1.
    custom_metadata : dict of str to str
        The metadata that the user passed to `to_tfrecord`.
    order : tuple of str
        The names of all columns in the order in which `read_tfrecord` returns them. If ``order`` is empty,
        the partition columns follow the columns of the records.
    partial : bool
        ``partial`` is True if the records may contain features for which the dataset has no column.
    index : tuple of (str, str or None), optional
        The columns that were the index of the written DataFrame, each with the name of its index level. If
        ``index`` is empty, the index was not written. If ``index`` is None, it is unknown, for example
        because another tool wrote the files.
    columns_name : str, optional
        The name of the column labels of the written DataFrame (``columns.name``).
    columnar : tuple of str, or {"auto", "scalars", "never"}
        The columns that writes store in column files in addition to the data files.
    mode : str
        The kind of write that created the snapshot. `to_tfrecord` stores "create", "append", "overwrite" or
        "partitions", `Writer` stores "append", and `add_snapshot` stores "add_snapshot". `compact`, `delete`,
        `restore`, `repair` and `expire` store their own names. ``mode`` is empty if the kind is unknown.
    details : str
        Details of the write, such as how many rows a `delete` removed, or which version a `restore` restored.
    created : datetime, optional
        The time in UTC at which the snapshot was created, by the clock of the process that committed the
        write. ``created`` is None if the time is unknown.
    oldest : int
        The oldest version that the dataset keeps, or 0 if the dataset keeps all stored versions.
    log : EntryLog
        The entries of the data files, and their totals.
    write_id : str, optional
        The id that the user gave to the write.
    before : tuple of StoredList
        The lists of the version before a snapshot that is not stored yet.
    """

    log: EntryLog
    schema: Schema
    compression: Compression | None
    run: str
    library: str
    partitioning: tuple[Field, ...] = ()
    number: int = 1
    custom_metadata: dict[str, str] = field(default_factory=dict, hash=False)
    order: tuple[str, ...] = ()
    partial: bool = False
    index: Levels | None = None
    columns_name: str | None = None
    columnar: Columnar = "auto"
    mode: str = ""
    details: str = ""
    created: datetime | None = None
    oldest: int = 0
    write_id: str | None = None
    before: tuple[StoredList, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        names = {item.name for item in fields(self)} - {"log", "before"} | {"files"}
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __hash__(self) -> int:
        return hash((self.run, self.number))

    @cached_property
    def file_list(self) -> FileList:
        """The data files, with paths relative to the directory of the dataset."""
        return self._read(lambda: self.log.files)

    def files_for(self, names: Collection[str], prune: Prune) -> FileList:
        """Read the part of `file_list` that a query needs, as `EntryLog.read` does."""
        return self._read(lambda: self.log.read(names, prune))

    def _read(self, read: Callable[[], FileList]) -> FileList:
        try:
            return read()
        except ValueError as error:
            if isinstance(error, TFRecordError):
                raise
            raise invalid_snapshot(error, self._path) from error

    @cached_property
    def files(self) -> tuple[FileEntry, ...]:
        """The data files as `FileEntry` objects, made from `file_list`."""
        files = self.file_list
        try:
            return to_entries(files, self.schema, self.partitioning)
        except (
            pa.ArrowException,
            OverflowError,
            TypeError,
            ValueError,
        ) as error:  # Python cannot represent a statistic or a partition value
            raise invalid_snapshot(error, self._path) from error

    @property
    def _path(self) -> str:
        return self.log.lists[-1].path if self.log.lists else ""

    def commits(self) -> Iterator[CommitId]:
        """Iterate over the last commits, the newest first: at least 1,000, if there were as many.

        The ids of commits stay known if their versions expire or are overwritten.
        """
        for one in reversed(self.log.lists):
            yield from reversed(one.commits)

    @property
    def columns(self) -> Schema:
        """All columns of the dataset, including partition columns, in the order in which `read_tfrecord`
        returns them.
        """
        every = Schema((*self.schema.fields, *self.partitioning), self.schema.record_type)
        return every.select(self.order or every.names)

    @property
    def partition_on(self) -> tuple[str, ...]:
        """The names of the partition columns of the dataset."""
        return tuple(column.name for column in self.partitioning)

    @property
    def bytes(self) -> int:
        """The total stored size of all data files, in bytes."""
        return self.log.totals.bytes

    @property
    def records(self) -> int:
        """The total number of records in all data files."""
        return self.log.totals.records

    @property
    def partitions(self) -> int:
        """The number of combinations of partition values, or 0 for a dataset without partition columns."""
        keys = self.file_list.partition_columns
        return len(keys.group_by(keys.column_names).aggregate([])) if self.partitioning else 0

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        version: int | None = None,
        *,
        storage_options: dict[str, Any] | None = None,
        filesystem: Filesystem = None,
    ) -> "Snapshot":
        """Read the newest snapshot of a dataset, or the snapshot of ``version``, without opening the data
        files.
        """
        return open_version(with_trailing_slash(Store.at(path, storage_options, filesystem)), version)

    def __repr__(self) -> str:
        parts = [f"{value:,} {name}" for name, value in self._totals().items()]
        return f"Snapshot({', '.join(parts)}, columns: {short_list(self.columns.names)})"

    def _totals(self) -> dict[str, int]:
        totals = {"files": self.log.totals.files}
        if self.partitioning:
            totals["partitions"] = self.partitions
        return {**totals, "records": self.records, "bytes": self.bytes}


@dataclass(frozen=True)
class Commit:
    """A version committed by a write or by a method of `Dataset`.

    After a dry run, or if there was nothing to commit, `Commit` describes the newest version.

    Attributes
    ----------
    version : int
        The number of the version.
    rows, files, bytes : int
        The totals of the version: its rows, its data files, and the stored size of these files in bytes.
    details : dict
        What the write or the method has done. The documentation of each function that returns a `Commit`
        describes the items of ``details``.
    """

    version: int
    rows: int
    files: int
    bytes: int
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, **details: Any) -> "Commit":
        """Return a `Commit` with the version and the totals of a snapshot."""
        return cls(snapshot.number, snapshot.records, snapshot.log.totals.files, snapshot.bytes, details)

    def _repr_html_(self) -> str:
        totals = {name: f"{getattr(self, name):,}" for name in ("version", "rows", "files", "bytes")}
        return html_table(totals | {name.replace("_", " "): str(one) for name, one in self.details.items()})


def history_of(store: Store) -> pd.DataFrame:
    """Return a table of all readable versions, as documented by `Dataset.history`."""
    if not (found := Head.read(store)).number:
        raise no_snapshot(store)
    return history(store, found.versions)


def short_list(names: Sequence[str]) -> str:
    """Join names with commas. If there are many names, list only the first few, and count the rest."""
    more = len(names) - _MOST_COLUMNS
    return ", ".join(names[:_MOST_COLUMNS]) + (f" and {more:,} more" if more > 0 else "")


def html_table(facts: Mapping[str, str]) -> str:
    """Return an HTML table for notebooks, with one row for each name and text in ``facts``."""
    cells = (f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in facts.items())
    return f"<table>{''.join(cells)}</table>"


def listed_files(snapshot: Snapshot | None) -> frozenset[str]:
    """Return the paths, relative to the root, of the data files and column files that a snapshot lists."""
    return frozenset(listed_paths(snapshot.file_list)) if snapshot else frozenset()


def listed_among(snapshot: Snapshot | None, paths: Sequence[str]) -> frozenset[str]:
    """Return those of ``paths`` that a snapshot lists, as `listed_files` does."""
    if snapshot is None or not paths:
        return frozenset()
    files, wanted = snapshot.file_list, encoded_paths(paths)
    is_wanted = pc.is_in(files["path"], wanted)
    if COLUMN_FILE in files:
        column_files = pc.struct_field(files[COLUMN_FILE], "path").cast(pa.binary())
        is_wanted = pc.or_(is_wanted, pc.is_in(column_files, wanted))
    return frozenset(listed_paths(files.filter(is_wanted))).intersection(paths)


def no_snapshot(store: Store) -> FileNotFoundError:
    problem = "the directory has no snapshot"
    return nothing_at(store, problem, advice="check the path", add_snapshot="to make a snapshot")


def open_version(store: Store, number: int | None, *, reads_files: bool = False) -> Snapshot:
    """Return one version of the dataset in the store's root, or the newest version if ``number`` is None.

    With ``reads_files=True``, also read the list of files, as `Head.read` does. Raise FileNotFoundError if
    the dataset has no version ``number``, or if the dataset has no snapshot.
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
        the newest listed one are therefore asked for by themselves, unless the listing shows the version
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
        it, so a slower write can create one of these versions again. Or the directory was replaced by
        another dataset.
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
        """Return True if the version that this process has created is one of the versions of the dataset."""
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
        """Return the commit of the write with the id ``run`` after the version ``after``, or a commit with
        the id ``write_id`` of the user, or None.
        """
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
                reason = ValueError("is not a regular file") if _is_listed(error) else error
                raise invalid_snapshot(reason, public_path(store, number)) from error
        run = "" if snapshot is None else snapshot.run
        stamp, kept = listing.stamp(store, number), _kept(listing.numbers, snapshot)
        return Head(number, snapshot, run, stamp, kept, listing.has_staging)
    return Head(has_staging=listing.has_staging)


def _is_listed(error: FileNotFoundError) -> bool:
    """Return True if the file of the version itself was listed but cannot be opened as a file."""
    return type(error) is FileNotFoundError or isinstance(error, TFRecordError)


def _kept(numbers: Iterable[int], newest: Snapshot | None) -> tuple[int, ...]:
    oldest = 0 if newest is None else newest.oldest
    return tuple(sorted(number for number in numbers if number >= oldest))
