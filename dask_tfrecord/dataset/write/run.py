"""Define the plan that all tasks of a write share, and write the data files of partitions."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from uuid import uuid4

import pyarrow as pa

from dask_tfrecord.codec.codecs import suffix_of
from dask_tfrecord.dataset.partitioning import group_by_directory
from dask_tfrecord.dataset.snapshot.list_files import open_list
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.dataset.snapshot.model import Snapshot, find_snapshot, read_snapshot
from dask_tfrecord.dataset.snapshot.names import STARTED, column_file_path, run_of_column_file, staged
from dask_tfrecord.dataset.snapshot.stored_files import Columnar, columnar_features
from dask_tfrecord.dataset.snapshot.versions import newest_number
from dask_tfrecord.dataset.snapshot.visibility import has_committed
from dask_tfrecord.files.entry import FileEntry, part_name, run_of
from dask_tfrecord.files.file_options import WriteOptions
from dask_tfrecord.files.file_writer import GroupedRows, WrittenColumns, write_files
from dask_tfrecord.files.storage.found_files import FoundFiles
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.fields import Field, Schema

logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class WriteRun:
    """The plan that all tasks of one write share. An `Operation` decides what the commit changes."""

    store: Store  # The root of the dataset.
    schema: Schema  # The columns of the records.
    # The id of the write: 32 random hexadecimal digits. The names of all files of the write contain the id.
    run: str = field(default_factory=lambda: uuid4().hex)
    options: WriteOptions = field(default_factory=WriteOptions)
    # The number of the newest version when the write was planned, or 0 if there was no version. The commit
    # fails if another write has since created a newer version and rows would be lost.
    base: int = 0
    appends: bool = False  # True if the columns are those of an existing dataset
    fitted: frozenset[str] = frozenset()  # the columns whose type the existing dataset has determined
    partitioning: tuple[Field, ...] = ()
    order: tuple[str, ...] = ()  # the names of all columns, in the order in which readers return the columns
    index: Levels = ()
    columns_name: str | None = None
    columnar: Columnar | None = None
    max_directories: int = 2**31  # The largest number of directories to which one task may write.
    # Maps the index of a partition to the label that the names of its files contain.
    label: Callable[[int], str] | None = None
    custom_metadata: dict[str, str] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        return f"WriteRun({self.store.public()!r}, {self.run[:8]})"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tfrecord.WriteRun", self.store.__dask_tokenize__(), self.run

    @property
    def title(self) -> str:
        """The destination and the id of the write, without credentials, for log messages."""
        return f"{self.store.public()}: write {self.run[:8]}"

    @property
    def partition_on(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.partitioning)

    @cached_property
    def columns(self) -> Schema:
        """All columns, including partition columns, in the order in which readers return them."""
        every = Schema((*self.schema.fields, *self.partitioning), self.schema.record_type)
        return every.select(self.order or every.names)

    def name(self, index: int, count: int, number: int | None = None) -> str:
        """Return the name of file ``number`` of partition ``index``. There are ``count`` partitions.

        All files of a run have different names, even in different directories.
        """
        return part_name(
            self.run,
            index,
            count,
            number=number,
            label=self.label(index) if self.label else "",
            suffix=suffix_of(self.options.compression),
        )

    def owns(self, path: str) -> bool:
        """Return True if the name of a data file or column file contains the id of this run."""
        return self.run in (run_of(path), run_of_column_file(path))

    def staged(self, name: str) -> str:
        """Return the path at which a file of this run is staged in the store until the commit."""
        return self.store.join(staged(self.run, name))

    def write(
        self, table: pa.Table, index: int, count: int, earlier: int | None = None
    ) -> tuple[FileEntry, ...]:
        """Write the files of partition ``index`` of ``count`` partitions. A repeated call replaces the same
        files.

        If several calls write the rows of one partition, ``earlier`` is the number of files that the earlier
        calls wrote.
        """
        rows = group_by_directory(table, self.partition_on, max_directories=self.max_directories)
        return self.write_grouped(rows, index, count, earlier)

    def write_grouped(
        self, rows: GroupedRows, index: int, count: int, earlier: int | None = None
    ) -> tuple[FileEntry, ...]:
        """Write the files of a partition whose rows are sorted by directory. ``index``, ``count`` and
        ``earlier`` have the same meaning as in `write`.

        If the store can rename files, write the files to a new directory below the staging directory, because
        several attempts at a task may store different rows. If the store cannot rename files, upload the
        files to their final paths. A marker in the staging directory hides uploaded files from readers. If
        the run has committed, upload nothing, because a recomputed task might replace committed files with
        other rows.
        """
        if not self._start():
            return ()

        attempt = uuid4().hex if self.store.stages_files else ""
        root = self.path(f"{attempt}/" if attempt else "")
        is_numbered = self.options.splits_files or earlier is not None or bool(self.partitioning)

        def place(directory: str, number: int) -> tuple[str, str]:
            file = self.name(index, count, number + (earlier or 0) if is_numbered else None)
            path = f"{directory}/{file}" if directory else file
            return f"{root}{path}", path

        columns = self.column_file(earlier or index)
        if columns is not None:
            columns = columns._replace(path=f"{root}{columns.name}")
        try:
            written = write_files(self.store, place, rows, self.schema, self.options, columns=columns)
        except FileNotFoundError:  # a commit removes the staging directory of its run
            if self.committed_snapshot() is None:
                raise
            return ()
        files = tuple(replace(file, attempt=attempt) for file in written)
        if logger.isEnabledFor(logging.DEBUG):
            for file in files:
                what = file.path, file.records, file.bytes
                logger.debug("%s: wrote %s: %d rows, %d bytes", self.title, *what)
        return files

    def column_file(self, number: int) -> WrittenColumns | None:
        """Return column file ``number`` of the run, or None if the write creates no column files."""
        if self.columnar is None:
            return None
        name = column_file_path(self.run, number)
        return WrittenColumns(columnar_features(self.schema, self.columnar), self.path(name), name)

    def path(self, name: str) -> str:
        """Return the path in the store at which a task creates a file."""
        return self.staged(name) if self.store.stages_files else self.store.join(name)

    def place(self, directory: str, index: int, count: int) -> tuple[str, str]:
        """Return the path at which a task creates file ``index`` of ``count``, and the file's final path.

        The final path is relative to the root.
        """
        name = f"{directory}/{self.name(index, count)}" if directory else self.name(index, count)
        self._start()
        return self.path(name), name

    def mark_started(self) -> None:
        """On stores that cannot stage files, create the marker that hides the files of the run."""
        if not self.store.stages_files:
            self.mark(STARTED)

    def _start(self) -> bool:
        """Create the marker of `mark_started` if the store needs the marker. If the run has committed, return
        False without creating the marker.
        """
        if not self.store.stages_files and not self.store.has_file(self.staged(STARTED)):
            if self.committed_snapshot() is not None:
                return False
            self.mark_started()
        return True

    def mark(self, name: str) -> None:
        """Create an empty file in the staging directory of the run. Other attempts to commit the run check if
        this file exists.
        """
        self.store.touch(self.staged(name))

    def marks(self, found: FoundFiles | None = None) -> list[str]:
        """Return the names in the run's staging directory, including those of the marks. ``found`` is an
        existing listing. If ``found`` is None, the function lists the staging directory.
        """
        return (found or self.store).names(staged(self.run, "").rstrip("/"))

    def committed_snapshot(self) -> Snapshot | None:
        """Return the snapshot that this run committed (see `committed_in`), or None if no version is newer
        than ``base``.
        """
        return self.committed_in(find_snapshot(self.store)) if newest_number(self.store) > self.base else None

    def committed_in(self, newest: Snapshot | None) -> Snapshot | None:
        """Return the snapshot that an earlier attempt of this run committed, or None.

        If the dataset no longer keeps the committed snapshot, return ``newest``, the newest snapshot.
        """
        if newest is None or newest.number <= self.base:
            return None
        if newest.run == self.run:
            return newest
        if self.run in newest.ancestors:
            found = [newest.number - len(newest.ancestors) + newest.ancestors.index(self.run)]
        else:  # this run may be older than all runs in `ancestors`, so search the versions before them
            first = max(self.base + 1, newest.oldest)
            found = [*range(first, newest.number - len(newest.ancestors))]
        for number in found:
            with suppress(FileNotFoundError):
                if number >= newest.oldest and open_list(self.store, number).head.run == self.run:
                    return read_snapshot(self.store, number)
        return newest if has_committed(newest, self.run) else None
