"""Define what a snapshot of a dataset contains. docs/format.md specifies the files.

A snapshot is stored as a Parquet file, which other tools can read. All paths in a snapshot are relative to
the directory of the dataset. A reader never executes anything that is stored in a snapshot, and never opens a
stored string as a URL.
"""

import html
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec.codecs import Compression
from dask_tfrecord.dataset.listing import with_trailing_slash
from dask_tfrecord.dataset.snapshot.entry_log import CommitId, EntryLog, Prune, StoredList
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.dataset.snapshot.stored_files import Columnar, invalid_snapshot, listed_paths, to_entries
from dask_tfrecord.errors import TFRecordError, short_list
from dask_tfrecord.files.entry import COLUMN_FILE, FileEntry
from dask_tfrecord.files.file_list import FileList, encoded_paths
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.storage.filesystem import Filesystem
from dask_tfrecord.storage.store import Store


@dataclass(frozen=True, repr=False, eq=False)
class Snapshot:
    """One version of a dataset: the list of its files, and their columns.

    Each write stores a snapshot in the directory of the dataset. `Snapshot.open` reads a stored snapshot.

    Attributes
    ----------
    files : tuple of FileEntry
        The data files, in the order in which their rows are read. Files in the same partition directory are
        adjacent.
    schema : Schema
        The names and Arrow types of the columns in the records, and the record type.
    compression : Compression or None
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
        The names of all columns in the order in which `read_tfrecord` returns them. If it is empty, the
        partition columns follow the columns of the records.
    partial : bool
        True if the records may contain features for which the dataset has no column.
    index : tuple of (str, str or None), optional
        The columns that were the index of the written DataFrame, each with the name of its index level. It is
        empty if the index was not written, and None if it is unknown, for example because another tool wrote
        the files.
    columns_name : str, optional
        The name of the column labels of the written DataFrame (``columns.name``).
    columnar : tuple of str, or {"auto", "scalars", "never"}
        The columns that writes store in column files in addition to the data files.
    mode : str
        The kind of write that created the snapshot: the ``mode`` of its `Operation`, or "add_snapshot". It is
        empty if the kind is unknown.
    details : str
        Details of the write, such as how many rows a `delete` removed, or which version a `restore` restored.
    created : datetime, optional
        The time in UTC at which the snapshot was created, by the clock of the process that committed the
        write. None if the time is unknown.
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
        # Python cannot represent a statistic or a partition value.
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
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
        from dask_tfrecord.dataset.snapshot.head import open_version  # it imports this module

        return open_version(with_trailing_slash(Store.at(path, storage_options, filesystem)), version)

    def __repr__(self) -> str:
        partitions = f"{self.partitions:,} partitions, " if self.partitioning else ""
        totals = f"{partitions}{self.records:,} records, {self.bytes:,} bytes"
        return (
            f"Snapshot({self.log.totals.files:,} files, {totals}, columns: {short_list(self.columns.names)})"
        )


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
