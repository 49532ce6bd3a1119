"""The files of a snapshot as a table: their entries are made when they are needed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.snapshot.column_statistics import from_entries, to_entries, value_name
from dask_tfrecord.errors import Remedy, TFRecordError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.part_names import run_of
from dask_tfrecord.files.storage.paths import parent_of
from dask_tfrecord.schema.model import Field, Schema

# An append stores only the files that it adds to a base, as long as they are at most this part of the
# files of the base.
DELTA_PART = 0.1


@dataclass(frozen=True)
class Base:
    """The file of a full snapshot that other snapshots add files to.

    Attributes
    ----------
    version : int
        The number of the snapshot.
    crc32c : int
        CRC-32C of the bytes of its file. It distinguishes the file from another one with the same number.
    """

    version: int
    crc32c: int


@dataclass(frozen=True, eq=False, repr=False)
class FileTable:
    """The files of a snapshot.

    Attributes
    ----------
    rows : pyarrow.Table
        A row per file, as `table.from_entries` makes it. With partition columns, the files of the same
        directory are adjacent.
    schema : Schema
        The columns of the records.
    partitioning : tuple of Field
        The partition columns.
    path : str
        Where the snapshot is stored, for errors.
    base : Base, optional
        The base that the next append may add to. None if the files are not stored.
    added : pyarrow.Table, optional
        The rows that are not in the base.
    """

    rows: pa.Table
    schema: Schema
    partitioning: tuple[Field, ...]
    path: str = ""
    base: Base | None = None
    added: pa.Table | None = field(default=None)

    def __post_init__(self) -> None:
        if self.partitioning:
            object.__setattr__(self, "rows", _rows_by_directory(self.rows))

    @classmethod
    def of(cls, files: tuple[FileEntry, ...], schema: Schema, partitioning: tuple[Field, ...]) -> "FileTable":
        """Return the table of some entries."""
        return cls(from_entries(files, schema, partitioning), schema, partitioning)

    @cached_property
    def entries(self) -> tuple[FileEntry, ...]:
        """The entries of all files.

        Raises
        ------
        TFRecordError
            If Python cannot hold a value of the snapshot.
        """
        try:
            return to_entries(self.rows, self.schema, self.partitioning)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise invalid_snapshot(error, self.path) from error

    def total(self, name: str) -> int:
        """Return the sum of the sizes or of the numbers of records of all files."""
        return pc.sum(self.rows[name]).as_py() or 0

    @property
    def partitions(self) -> int:
        """The number of keys, which are combinations of partition values; 0 without partition columns."""
        names = [item.name for item in self.partitioning]
        return len(self.values.group_by(names).aggregate([])) if names else 0

    @property
    def values(self) -> pa.Table:
        """The partition columns, with a row per file. Categories are their values."""
        names = [item.name for item in self.partitioning]
        return pa.table({name: self.rows[value_name(name)] for name in names})

    @property
    def paths(self) -> list[str]:
        """The paths of all files, relative to the root."""
        found: list[str] = self.rows["path"].to_pylist()
        return found

    def of_run(self, run: str) -> tuple[FileEntry, ...]:
        """Return the files that a write made."""
        rows = rows_of_run(self.rows, run)
        return FileTable(rows, self.schema, self.partitioning, self.path).entries

    def with_added(self, files: tuple[FileEntry, ...]) -> "FileTable":
        """Return the table with more files, which belong to no base yet."""
        new = from_entries(files, self.schema, self.partitioning)
        added = None if self.added is None else concatenate([self.added, new])
        rows = concatenate([self.rows, new])
        return FileTable(rows, self.schema, self.partitioning, self.path, self.base, added)

    @property
    def delta(self) -> pa.Table | None:
        """The rows that are not in the base; None if they are too many to be stored alone."""
        if self.base is None or self.added is None:
            return None
        return self.added if len(self.added) <= DELTA_PART * (len(self.rows) - len(self.added)) else None


def concatenate(tables: list[pa.Table]) -> pa.Table:
    """Return the rows of several tables. A column that a table does not have is null in its rows."""
    return pa.concat_tables(tables, promote_options="default")


def rows_of_run(rows: pa.Table, run: str) -> pa.Table:
    """Return the rows of the files that a write made."""
    candidates = rows.filter(pc.match_substring(rows["path"], f"part-{run}-"))
    return candidates.filter(
        pa.array([run_of(path) == run for path in candidates["path"].to_pylist()], pa.bool_())
    )


def invalid_snapshot(error: Exception, path: str) -> TFRecordError:
    """Return the error for a file that is not the file of a snapshot."""
    remedy = Remedy("use_snapshot", False, "read the data files without it")
    return TFRecordError(f"not a valid snapshot ({error})", path=path, remedies=[remedy])


def by_directory(files: Sequence[FileEntry]) -> tuple[FileEntry, ...]:
    """Make the files of each directory adjacent, and keep their order otherwise."""
    by_directory: dict[str, list[FileEntry]] = {}
    for file in files:
        by_directory.setdefault(parent_of(file.path), []).append(file)
    return tuple(file for group in by_directory.values() for file in group)


def _directories(rows: pa.Table) -> pa.ChunkedArray:
    return pc.replace_substring_regex(rows["path"], r"/?[^/]*\z", "")


def _rows_by_directory(rows: pa.Table) -> pa.Table:
    """Do as `by_directory`."""
    codes = _directories(rows).combine_chunks().dictionary_encode().indices.to_numpy()
    if bool(np.all(codes[1:] >= codes[:-1])):
        return rows
    return rows.take(pa.array(np.argsort(codes, kind="stable")))
