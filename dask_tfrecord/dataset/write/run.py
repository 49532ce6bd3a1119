"""Define the plan that all tasks of a write share, and write the data files of partitions."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from uuid import uuid4

import pyarrow as pa

from dask_tfrecord.codec.codecs import suffix_of
from dask_tfrecord.dataset.names import column_file_path, run_of_column_file, staged
from dask_tfrecord.dataset.partitioning import group_by_directory
from dask_tfrecord.dataset.snapshot.head import Head
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.dataset.snapshot.stored_files import Columnar, columnar_features
from dask_tfrecord.files.column_files import WrittenColumns
from dask_tfrecord.files.entry import FileEntry, part_name, run_of
from dask_tfrecord.files.file_options import WriteOptions
from dask_tfrecord.files.file_writer import GroupedRows, write_files
from dask_tfrecord.files.small_columns import SmallColumnFiles
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.storage.store import Store

logger = logging.getLogger(__name__)

# The names of uploaded files contain this many digits of the id of the attempt that has uploaded them.
_ATTEMPT_DIGITS = 8


@dataclass(frozen=True, repr=False)
class WriteRun:
    """The plan that all tasks of one write share. An `Operation` decides what the commit changes."""

    store: Store  # The root of the dataset.
    schema: Schema  # The columns of the records.
    # The id of the write: 32 random hexadecimal digits. The names of all files of the write contain the id.
    run: str = field(default_factory=lambda: uuid4().hex)
    options: WriteOptions = field(default_factory=WriteOptions)
    # The newest version when the write was planned. The commit fails if another write has since created a
    # newer version and rows would be lost.
    head: Head = field(default_factory=Head, compare=False)
    appends: bool = False  # True if the columns are those of an existing dataset
    fitted: frozenset[str] = frozenset()  # the columns whose type the existing dataset has determined
    partitioning: tuple[Field, ...] = ()
    order: tuple[str, ...] = ()  # the names of all columns, in the order in which readers return the columns
    index: Levels = ()
    columns_name: str | None = None
    columnar: Columnar = "auto"
    max_directories: int = 2**31  # The largest number of directories to which one task may write.
    # Maps the index of a partition to the label that the names of its files contain.
    label: Callable[[int], str] | None = None
    custom_metadata: dict[str, str] = field(default_factory=dict, hash=False)
    # The id that the user gave to the write. A write whose id is known commits nothing.
    write_id: str | None = None

    def __repr__(self) -> str:
        return f"WriteRun({self.store.public()!r}, {self.run[:8]})"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tfrecord.WriteRun", self.store.__dask_tokenize__(), self.run

    @property
    def title(self) -> str:
        """The destination and the id of the write, without credentials, for log messages."""
        return f"{self.store.public()}: write {self.run[:8]}"

    @property
    def base(self) -> int:
        """The number of the newest version when the write was planned, or 0 if there was no version."""
        return self.head.number

    @property
    def partition_on(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.partitioning)

    @cached_property
    def columns(self) -> Schema:
        """All columns, including partition columns, in the order in which readers return them."""
        every = Schema((*self.schema.fields, *self.partitioning), self.schema.record_type)
        return every.select(self.order or every.names)

    def name(self, index: int, count: int, number: int | None = None, attempt: str = "") -> str:
        """Return the name of file ``number`` of partition ``index``. There are ``count`` partitions.

        All files of a run have different names, even in different directories. On a store that cannot stage
        files, each attempt at a task uploads files with different names, so that no upload replaces a file.
        """
        labels = [] if self.store.can_rename else [attempt[:_ATTEMPT_DIGITS]]
        labels += [self.label(index)] if self.label else []
        return part_name(
            self.run,
            index,
            count,
            number=number,
            label="-".join(filter(None, labels)),
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

        Several attempts at a task may store different rows. If the store can rename files, each attempt
        writes to a new directory below the staging directory. If the store cannot rename files, each attempt
        uploads files with new names to their final paths. A mark in the staging directory hides uploaded
        files from readers.
        """
        attempt = self.begin_attempt()
        is_numbered = self.options.splits_files or earlier is not None or bool(self.partitioning)

        def new_paths(directory: str, number: int) -> tuple[str, str]:
            file_number = number + (earlier or 0) if is_numbered else None
            return self.new_paths(directory, index, count, attempt, file_number)

        columns = self.column_files(index, attempt, self.path("", attempt), earlier or 0)
        try:
            written = write_files(self.store, new_paths, rows, self.schema, self.options, columns=columns)
        except FileNotFoundError:  # a commit removes the staging directory of its run
            if not self.has_committed():
                raise
            return ()
        files = tuple(replace(file, attempt=attempt) for file in written)
        for file in files if logger.isEnabledFor(logging.DEBUG) else ():
            logger.debug("%s: wrote %s: %d rows, %d bytes", self.title, file.path, file.records, file.bytes)
        return files

    def begin_attempt(self) -> str:
        """Return the id of a new attempt at a task. On stores that cannot stage files, create its mark."""
        attempt = uuid4().hex
        if not self.store.can_rename:
            self.mark(attempt)
        return attempt

    def column_files(
        self, index: int, attempt: str, root: str, earlier: int = 0
    ) -> WrittenColumns | SmallColumnFiles | None:
        """Return the column file for all data files of task ``index``, or a plan for the column files of
        large data files, or None if the write creates no column files.

        Column files are created below ``root``. ``earlier`` is the number of files that earlier calls with
        the same index have written.
        """
        features = columnar_features(self.schema, self.columnar)

        def paths(number: int, file: int | None = None) -> tuple[str, str]:
            if not self.store.can_rename:  # no attempt may replace the column file of another attempt
                number = number * 10**_ATTEMPT_DIGITS + int(attempt, 16) % 10**_ATTEMPT_DIGITS
            name = column_file_path(self.run, number, file)
            return f"{root}{name}", name

        if self.columnar == "never":
            return None
        if self.columnar == "auto":
            return SmallColumnFiles(features, lambda file: paths(index, file + earlier)) if features else None
        return WrittenColumns(features, *paths(earlier or index))

    def path(self, name: str, attempt: str = "") -> str:
        """Return the path in the store at which an attempt at a task creates a file."""
        if not self.store.can_rename:
            return self.store.join(name)
        return self.staged(f"{attempt}/{name}" if attempt else name)

    def new_paths(
        self, directory: str, index: int, count: int, attempt: str, number: int | None = None
    ) -> tuple[str, str]:
        """Return the path at which an attempt at a task creates a file, and the file's final path, which is
        relative to the root. `name` describes the other arguments.
        """
        file = self.name(index, count, number, attempt)
        name = f"{directory}/{file}" if directory else file
        return self.path(name, attempt), name

    def mark(self, name: str) -> None:
        """Create an empty file in the staging directory of the run, so that readers ignore the files of the
        run.
        """
        self.store.write_file(self.staged(name), b"", durable=False)

    def staged_names(self) -> set[str]:
        """Return the names in the staging directory of the run, such as the marks of attempts."""
        return {*self.store.names(staged(self.run, "").rstrip("/"))}

    def has_committed(self) -> bool:
        """Return True if this run has committed, or another run with the same ``write_id``."""
        return Head.read(self.store).commit_of(self.run, self.base, self.write_id) is not None
