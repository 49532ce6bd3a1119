"""One write of a dataset: what it was asked to do, where its files wait, and the commit that shows them.

Until the snapshot is there readers see what was there before; every step may be repeated.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from dask_tfrecord.codec.codecs import Compression, suffix_of
from dask_tfrecord.dataset.partitioning.grouping import split
from dask_tfrecord.dataset.snapshot.model import (
    Levels,
    Snapshot,
    find_snapshot,
    library_version,
    read_snapshot,
    snapshot_path,
    to_parquet,
    versions,
)
from dask_tfrecord.dataset.snapshot.names import staged
from dask_tfrecord.dataset.snapshot.stamps import with_stamps
from dask_tfrecord.dataset.snapshot.visibility import visible_files
from dask_tfrecord.dataset.write.destination import Mode, adopt, agreed
from dask_tfrecord.dataset.write.overwriting import listed_files
from dask_tfrecord.dataset.write.staging import clear_up, finish_newest, note_replaced, remove_staging
from dask_tfrecord.errors import ConcurrentWriteError, TFRecordError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.part_names import part_name, run_of
from dask_tfrecord.files.storage.paths import parent_of
from dask_tfrecord.files.storage.redaction import hide, secrets_of
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.writing import Parted, write_files
from dask_tfrecord.schema.model import Field, Lossy, Schema


@dataclass(frozen=True, repr=False)
class WriteRun:
    """One call of `to_tfrecord`; travels to every task of it.

    ``run`` is a fresh random id, so that no two calls have the same names or the same task keys. ``base`` is
    the number of the newest snapshot when the write was planned; one that does not append goes on from there
    or not at all. ``replaceable`` names the files that an overwrite may remove although no snapshot lists
    them: a file that appears after the plan stays.
    """

    store: Store
    schema: Schema
    compression: Compression | None
    lossy: Lossy
    run: str
    mode: Mode = "create"
    base: int = 0
    partitioning: tuple[Field, ...] = ()
    order: tuple[str, ...] = ()
    level: int | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
    max_parts: int = 2**31
    custom_metadata: dict[str, str] = field(default_factory=dict, hash=False)
    label: Callable[[int], str] | None = None
    index: Levels = ()
    replaceable: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"WriteRun({self.store.public(self.store.root)!r}, {self.run[:8]})"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tfrecord.WriteRun", self.store.__dask_tokenize__(), self.run

    @property
    def partition_on(self) -> tuple[str, ...]:
        """Names of the partition columns."""
        return tuple(column.name for column in self.partitioning)

    @property
    def columns(self) -> Schema:
        """All columns, those of the records and those of the directories, in their order."""
        every = Schema((*self.schema.fields, *self.partitioning), self.schema.record_type)
        return every.select(self.order or every.names)

    def name(self, index: int, count: int, number: int = 0) -> str:
        """The file ``number`` of partition ``index`` of ``count``, in each directory."""
        several = self.max_rows is not None or self.max_bytes is not None
        return part_name(
            self.run,
            index,
            count,
            number=number if several else None,
            label=self.label(index) if self.label else "",
            suffix=suffix_of(self.compression),
        )

    def write(self, table: pa.Table, index: int, count: int) -> tuple[FileEntry, ...]:
        """Write the files of a partition; a repetition replaces them."""
        return self.write_parted(split(table, self.partition_on, max_parts=self.max_parts), index, count)

    def write_parted(self, rows: Parted, index: int, count: int) -> tuple[FileEntry, ...]:
        """Write the files of a partition whose rows are sorted by directory.

        After the commit there is nothing to write. Files that are in place then belong to the dataset, and a
        source may give other rows when it is computed again.
        """
        if not self.store.renames and not self._announce():
            return ()

        def place(directory: str, number: int) -> tuple[str, str]:
            name = f"{directory}/" * bool(directory) + self.name(index, count, number)
            return self._waiting(name) if self.store.renames else self.store.join(name), name

        files = write_files(
            self.store,
            place,
            rows,
            self.schema,
            compression=self.compression,
            level=self.level,
            lossy=self.lossy,
            max_rows=self.max_rows,
            max_bytes=self.max_bytes,
        )
        return tuple(files)

    def commit(self, files: Sequence[FileEntry]) -> Snapshot:
        """Show the files of all partitions as the dataset, or as more of it.

        Raises
        ------
        ConcurrentWriteError
            If this write does not append and another committed since it was planned.
        SchemaError
            If it adds to data that has other columns by now.
        """
        committed = self._committed()
        if committed is None:
            self._refuse_if_overtaken(files)
            try:
                finish_newest(self.store)
                self._publish(files)
                committed = self._create_snapshot(with_stamps(self.store, files))
            except Exception:
                self._withdraw(files)
                raise
        try:
            clear_up(self.store, self.run)
        except Exception as error:  # to tell of a failure now would be wrong
            reason = hide(str(error), secrets_of(self.store))
            warnings.warn(
                f"{self.store.public(self.store.root)}: the data is written, but not all that it replaces "
                f"could be removed ({reason}); dask_tfrecord.cleanup or the next write does that.",
                UserWarning,
                stacklevel=2,
            )
        return committed

    def abandon(self) -> None:
        """Let go of the files that wait for the commit, which fails from then on, as far as that is safe.

        Where files do not wait but are in place already they stay, unseen, until `cleanup`: a commit that
        runs elsewhere might be about to list them.
        """
        with suppress(Exception):  # what went wrong before is the news
            if self._committed() is None:
                if self.store.renames:
                    remove_staging(self.store, self.run)
                else:
                    self.store.remove(self.store.fs.find(self._waiting("rows")))

    # -- Steps of the commit ---------------------------------------------------------------------------------

    def _committed(self) -> Snapshot | None:
        """The snapshot of this write, if it is there already and counts."""
        for number in versions(self.store):
            if number > self.base:
                with suppress(FileNotFoundError):  # overwritten since
                    snapshot = read_snapshot(self.store, number)
                    if snapshot.run == self.run:
                        return self._if_it_counts(snapshot)
        return None

    def _if_it_counts(self, snapshot: Snapshot) -> Snapshot | None:
        """Our snapshot, unless the newest one knew nothing of it; then it is removed."""
        own = {file.path for file in snapshot.files if self._is_own(file.path)}
        newest = find_snapshot(self.store)
        if newest is None or newest.run == self.run or not own:
            return snapshot
        if not own.isdisjoint(file.path for file in newest.files):
            return snapshot
        self.store.remove([self.store.join(snapshot_path(snapshot.number))])
        return None

    def _refuse_if_overtaken(self, files: Sequence[FileEntry]) -> None:
        if self.mode != "append" and max(versions(self.store), default=0) > self.base:
            self._give_up(files)
            raise ConcurrentWriteError(
                "another write committed a dataset here first",
                path=self.store.public(self.store.root),
                advice="write to a directory of its own, or start again on top of what is there now",
            )

    def _publish(self, files: Sequence[FileEntry]) -> None:
        """Bring exactly these files to their places."""
        if self.store.renames:
            for file in files:
                self._move_into_place(file)
            for directory in _with_parents(map(_directory, files)):
                self.store.sync_directory(self.store.join(directory))
        else:
            listed = {self.store.join(file.path) for file in files}
            found = self.store.fs.find(self.store.root)
            self.store.remove(path for path in found if self._is_own(path) and path not in listed)

    def _withdraw(self, files: Sequence[FileEntry]) -> None:
        """After a failure: let the files wait for another try, if it is certain that nothing lists them."""
        if not self.store.renames:
            return
        with suppress(Exception):  # what went wrong before is the news
            if self._committed() is None:
                for file in self._unlisted(files):
                    with suppress(FileNotFoundError):
                        self.store.place(self.store.join(file.path), self._waiting(file.path))
                self.store.remove_empty({self.store.join(_directory(file)) for file in files})

    def _move_into_place(self, file: FileEntry) -> None:
        source, target = self._waiting(file.path), self.store.join(file.path)
        try:
            self.store.place(source, target)
        except FileNotFoundError:
            if not self.store.fs.exists(target):  # not moved by an earlier attempt either
                raise

    def _create_snapshot(self, files: Sequence[FileEntry]) -> Snapshot:
        while True:
            try:
                snapshot, replaced = self._next(files)
            except TFRecordError:
                self._give_up(files)
                raise
            if replaced:
                note_replaced(self.store, self.run, replaced)
            failure = self._try_to_create(snapshot)
            if failure is None and self._is_newest(snapshot.number):
                return snapshot
            committed = self._committed()  # perhaps only the answer to our own success was lost
            if committed is not None:
                return committed
            self._refuse_if_overtaken(files)
            if failure is not None and max(versions(self.store), default=0) < snapshot.number:
                raise failure

    def _try_to_create(self, snapshot: Snapshot) -> Exception | None:
        path = self.store.join(snapshot_path(snapshot.number))
        try:
            self.store.create_exclusively(path, bytes(to_parquet(snapshot)))
        except Exception as error:  # its number is taken, or the store fails
            return error
        return None

    def _is_newest(self, number: int) -> bool:
        """Whether a snapshot that was created is the one that readers see.

        Overwrites remove earlier snapshots, so a number may be free again that is long overtaken.
        """
        try:
            return max(versions(self.store), default=0) <= number
        except Exception:  # nothing speaks against it
            return True

    def _next(self, files: Sequence[FileEntry]) -> tuple[Snapshot, list[str]]:
        """The dataset after this write, and the files below the root that do not belong to it any more."""
        snapshot = Snapshot(
            files=tuple(files),
            schema=self.schema,
            compression=self.compression,
            run=self.run,
            library=library_version(),
            partitioning=self.partitioning,
            number=self.base + 1,
            custom_metadata=self.custom_metadata,
            order=self.order,
            index=self.index,
        )
        if self.mode == "create":
            return snapshot, []
        if self.mode == "overwrite":
            return snapshot, self._overwritten() + self._outdated()
        return self._on_top(snapshot)

    def _overwritten(self) -> list[str]:
        """The files that are there and that the plan decided to remove."""
        self.store.fs.invalidate_cache()
        found = [self.store.relative(file.path) for file in visible_files(self.store)]
        planned = self.replaceable | listed_files(self.store)
        return [path for path in found if path in planned and not self._is_own(path)]

    def _on_top(self, snapshot: Snapshot) -> tuple[Snapshot, list[str]]:
        """The snapshot with the files that are kept."""
        before = find_snapshot(self.store)
        if before is not None:
            agreed(before, self.schema, self.partitioning, self.store, self.index)
        else:
            before = adopt(self.store, self.schema, self.partitioning)
        if before is None:
            return snapshot, []
        others = [file for file in before.files if not self._is_own(file.path)]
        new = {_directory(file) for file in snapshot.files} if self.mode == "partitions" else set()
        planned = self.replaceable | (listed_files(self.store) if before.number else frozenset())
        replaced = [file.path for file in others if _directory(file) in new and file.path in planned]
        kept = tuple(file for file in others if file.path not in set(replaced))
        return replace(
            snapshot,
            files=kept + snapshot.files,
            schema=before.schema,
            partitioning=before.partitioning,
            number=before.number + 1 if self.mode == "append" else snapshot.number,
            custom_metadata={**before.custom_metadata, **self.custom_metadata},
            order=before.order,
            index=before.index if before.number else self.index,
        ), replaced + self._outdated() if replaced else []

    def _is_own(self, path: str) -> bool:
        """Whether a file is of this run, of which another attempt may be committing at this moment."""
        return run_of(path) == self.run[:8]

    def _outdated(self) -> list[str]:
        return [snapshot_path(number) for number in versions(self.store) if number <= self.base]

    def _give_up(self, files: Sequence[FileEntry]) -> None:
        self.store.remove(self.store.join(file.path) for file in self._unlisted(files))
        remove_staging(self.store, self.run)

    def _unlisted(self, files: Sequence[FileEntry]) -> list[FileEntry]:
        """Those that are in no dataset: what an earlier attempt committed, another write may have kept."""
        newest = find_snapshot(self.store)
        listed = {file.path for file in newest.files} if newest else set()
        return [file for file in files if file.path not in listed]

    # -- What lies in _tfrecord ------------------------------------------------------------------------------

    def _waiting(self, name: str) -> str:
        """Where a whole file waits for the commit."""
        return self.store.join(staged(self.run, name))

    def _announce(self) -> bool:
        """Let readers who list the directory know that the files of this run are not to be seen yet.

        False if the run has committed: it needs no more files.
        """
        marker = self._waiting("started")
        self.store.fs.invalidate_cache(marker)
        if not self.store.fs.exists(marker):
            if self._committed() is not None:
                return False
            self.store.fs.pipe_file(marker, b"")
        return True


def _directory(file: FileEntry) -> str:
    return parent_of(file.path)


def _with_parents(directories: Iterable[str]) -> set[str]:
    """The directories and all that they lie in, up to the root."""
    found: set[str] = set()
    for directory in directories:
        while directory not in found:
            found.add(directory)
            directory = parent_of(directory)
    return found
