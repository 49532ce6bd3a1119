"""The plan of one write, which travels to all of its tasks, and the files that the tasks write."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal
from uuid import uuid4

import pyarrow as pa

from dask_tfrecord.codec.codecs import suffix_of
from dask_tfrecord.dataset.partitioning.grouping import group_by_directory
from dask_tfrecord.dataset.snapshot.file_table import rows_of_run
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.dataset.snapshot.model import Snapshot, find_snapshot, listed_files, read_snapshot
from dask_tfrecord.dataset.snapshot.names import open_runs, snapshot_path, staged
from dask_tfrecord.dataset.snapshot.versions import Part, read_part, versions
from dask_tfrecord.dataset.snapshot.visibility import has_committed, intact_snapshot
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.options import WriteOptions
from dask_tfrecord.files.part_names import part_name, run_of
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.writing import GroupedRows, write_files
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.model import Field, Schema

logger = logging.getLogger(__name__)

# What happens to existing data: refuse to write if there is any; keep all of it; replace all of it; replace
# the partition directories that are written to.
Mode = Literal["create", "append", "overwrite", "partitions"]


@redact_errors
def draw_run(store: Store) -> str:
    """Draw the id of a new run. Neither a run of the dataset nor an open run has it."""
    taken, newest = open_runs(store), intact_snapshot(store)
    while True:
        run = uuid4().hex
        if run not in taken and (newest is None or not has_committed(newest, run)):
            return run


@dataclass(frozen=True, repr=False)
class WriteRun:
    """One call of `to_tfrecord`.

    Attributes
    ----------
    store : Store
        The root of the dataset.
    schema : Schema
        The columns of the records.
    run : str
        A random id, 32 hexadecimal digits, as `draw_run` returns it. It is in the names of all files of this
        write.
    options : WriteOptions
        How files are written.
    mode : "create", "append", "overwrite" or "partitions"
        What happens to existing data.
    base : int
        The number of the newest snapshot when the write was planned, or 0. Unless the mode is "append", the
        commit fails if there is a newer one by then.
    partitioning : tuple of Field
        The partition columns.
    order : tuple of str
        The names of all columns, in the order in which readers return them.
    index : tuple of (str, str or None)
        The columns that become the index, and the names of its levels.
    max_directories : int
        The most partition directories that one task may write to.
    label : callable, optional
        Returns a string for the number of a partition. The names of its files end with it.
    custom_metadata : dict of str to str
        The user's metadata for the snapshot.
    replaceable : frozenset of str
        Files that an overwrite may remove although no snapshot lists them, relative to the root. Files that
        appear after the write was planned are not among them and stay.
    """

    store: Store
    schema: Schema
    run: str
    options: WriteOptions = field(default_factory=WriteOptions)
    mode: Mode = "create"
    base: int = 0
    partitioning: tuple[Field, ...] = ()
    order: tuple[str, ...] = ()
    index: Levels = ()
    max_directories: int = 2**31
    label: Callable[[int], str] | None = None
    custom_metadata: dict[str, str] = field(default_factory=dict, hash=False)
    replaceable: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"WriteRun({self.store.public(self.store.root)!r}, {self.run[:8]})"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tfrecord.WriteRun", self.store.__dask_tokenize__(), self.run

    @property
    def title(self) -> str:
        """The place and the id of the write, without credentials, for log messages."""
        return f"{self.store.public(self.store.root)}: write {self.run[:8]}"

    @property
    def partition_on(self) -> tuple[str, ...]:
        """The names of the partition columns."""
        return tuple(column.name for column in self.partitioning)

    @cached_property
    def columns(self) -> Schema:
        """The columns of the records and of the directories, in the order in which readers return them."""
        every = Schema((*self.schema.fields, *self.partitioning), self.schema.record_type)
        return every.select(self.order or every.names)

    def name(self, index: int, count: int, number: int = 0) -> str:
        """Return the name of file ``number`` of partition ``index`` of ``count``.

        It is the same in every directory.
        """
        return part_name(
            self.run,
            index,
            count,
            number=number if self.options.splits_files else None,
            label=self.label(index) if self.label else "",
            suffix=suffix_of(self.options.compression),
        )

    def owns(self, path: str) -> bool:
        """Return True if a data file belongs to this run, including earlier attempts at the same commit."""
        return run_of(path) == self.run

    def staged(self, name: str) -> str:
        """Return the path in the store where a file of this run is staged until the commit."""
        return self.store.join(staged(self.run, name))

    def write(self, table: pa.Table, index: int, count: int) -> tuple[FileEntry, ...]:
        """Write the files of partition ``index`` of ``count``. A repetition replaces them."""
        rows = group_by_directory(table, self.partition_on, max_directories=self.max_directories)
        return self.write_grouped(rows, index, count)

    def write_grouped(self, rows: GroupedRows, index: int, count: int) -> tuple[FileEntry, ...]:
        """Write the files of a partition whose rows are sorted by directory. A repetition replaces them.

        On stores with a rename, the files are written to staging. On other stores, the files are uploaded to
        their final place, and a marker in staging hides them from readers. After the commit nothing is
        written: the files belong to the dataset, and a recomputed task might have other rows.
        """
        if not self.store.renames and not self._mark_started():
            return ()

        def place(directory: str, number: int) -> tuple[str, str]:
            name = f"{directory}/" * bool(directory) + self.name(index, count, number)
            return self.staged(name) if self.store.renames else self.store.join(name), name

        files = tuple(write_files(self.store, place, rows, self.schema, self.options))
        for file in files:
            logger.debug("%s: wrote %s: %d rows, %d bytes", self.title, file.path, file.records, file.bytes)
        return files

    def _mark_started(self) -> bool:
        """Create the marker that hides this run's files from readers.

        Return False if the run has committed.
        """
        marker = self.staged("started")
        self.store.fs.invalidate_cache(marker)
        if not self.store.fs.exists(marker):
            if self.committed_snapshot() is not None:
                return False
            self.store.fs.pipe_file(marker, b"")
        return True

    def committed_snapshot(self) -> Snapshot | None:
        """Return the snapshot that an earlier attempt of this run committed, or None.

        If another write has replaced that snapshot since, return the newest snapshot.
        """
        newer = [number for number in versions(self.store) if number > self.base]
        for number in newer:
            with suppress(FileNotFoundError):  # removed by an overwrite just now
                part = read_part(self.store, number)
                if part.fields["run"] == self.run:
                    return self._unless_bypassed(part)
        newest = find_snapshot(self.store) if newer else None
        return newest if newest and has_committed(newest, self.run) else None

    def _unless_bypassed(self, part: Part) -> Snapshot | None:
        """Remove this run's snapshot if the newest one was made without knowing it. Else return it.

        In this case, the newest snapshot belongs to another run and lists none of this run's files. This can
        happen because an overwrite frees the numbers of the snapshots that it removes.
        """
        own = set(rows_of_run(part.rows, self.run)["path"].to_pylist())
        newest = find_snapshot(self.store)
        if newest is None or newest.run == self.run or not own or not own.isdisjoint(listed_files(newest)):
            return read_snapshot(self.store, part.number)
        self.store.remove([self.store.join(snapshot_path(part.number))])
        return None
