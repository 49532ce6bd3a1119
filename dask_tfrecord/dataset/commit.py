"""One write of a dataset: what it was asked to do, where its files wait, and the commit that shows them.

Until the snapshot is there the dataset does not exist for readers; every step may be repeated.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from dask_tfrecord.codec.compression import SUFFIXES, Compression
from dask_tfrecord.dataset.listing import list_directory
from dask_tfrecord.dataset.snapshot import FileEntry, Snapshot, from_parquet, library_version, to_parquet
from dask_tfrecord.dataset.store import Store
from dask_tfrecord.dataset.writing import write_files
from dask_tfrecord.errors import DestinationError
from dask_tfrecord.schema import Lossy, Schema

# All of the library's own below a dataset's root, hidden from readers by its underscore.
_OWN = "_tfrecord"

_SNAPSHOT_NAME = re.compile(r"\d{8}\.parquet")
_PART_NAME = re.compile(r"part-(?P<run>[0-9a-f]{8})-\d{5,}-of-(?P<count>\d{5,})\.tfrecord(\.\w+)?")


@dataclass(frozen=True, repr=False)
class WriteRun:
    """One call of `to_tfrecord`; travels to every task of it.

    ``run`` is a fresh random id, so that no two calls have the same names or the same task keys.
    """

    store: Store
    schema: Schema
    compression: Compression | None
    lossy: Lossy
    run: str

    def __repr__(self) -> str:
        return f"WriteRun({self.store.public(self.store.root)!r}, {self.run[:8]})"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tfrecord.WriteRun", self.store.__dask_tokenize__(), self.run

    def name(self, index: int, count: int) -> str:
        """The file of partition ``index`` of ``count``."""
        digits = max(5, len(str(count)))
        numbers = f"{index:0{digits}d}-of-{count:0{digits}d}"
        return f"part-{self.run[:8]}-{numbers}.tfrecord{SUFFIXES[self.compression]}"

    def write(self, table: pa.Table, name: str) -> FileEntry:
        """Write one of the files; a repetition replaces it."""
        path = self._waiting(name) if self.store.renames else self.store.join(name)
        [entry] = write_files(
            self.store,
            lambda _: (path, name),
            table,
            self.schema,
            compression=self.compression,
            lossy=self.lossy,
        )
        return entry

    def commit(self, files: Sequence[FileEntry]) -> Snapshot:
        """Show the files of all partitions as the dataset.

        Raises
        ------
        DestinationError
            If another write committed to the same place first.
        """
        committed = find_snapshot(self.store)
        if committed is None:
            if self.store.renames:
                self._move_into_place(files)
            committed = self._create_snapshot(files)
        if committed.run != self.run:
            self._remove(files)
            raise DestinationError(
                "another write committed a dataset here first",
                path=self.store.public(self.store.root),
                advice="write to a directory of its own",
            )
        self.store.fs.pipe_file(self.store.join("_SUCCESS"), b"")
        if self.store.renames:
            self._remove_staging()
        return committed

    def _waiting(self, name: str) -> str:
        """Where a whole file waits for the commit."""
        return self.store.join(f"{_OWN}/staging/{self.run}/{name}")

    def _remove_staging(self) -> None:
        staging = self.store.join(f"{_OWN}/staging")
        with suppress(FileNotFoundError):
            self.store.fs.rm(f"{staging}/{self.run}", recursive=True)
        with suppress(OSError):  # another run's files are waiting there
            self.store.fs.rmdir(staging)

    def _remove(self, files: Sequence[FileEntry]) -> None:
        for file in files:
            with suppress(FileNotFoundError):
                self.store.fs.rm_file(self.store.join(file.path))

    def _create_snapshot(self, files: Sequence[FileEntry]) -> Snapshot:
        """The first snapshot: this one, or the one of another write that was faster."""
        snapshot = Snapshot(tuple(files), self.schema, self.compression, self.run, library_version())
        try:
            self.store.create_exclusively(_snapshot_path(self.store, 1), bytes(to_parquet(snapshot)))
        except OSError:  # taken; or the answer to our own success was lost
            found = find_snapshot(self.store)
            if found is None:
                raise
            return found
        return snapshot

    def _move_into_place(self, files: Sequence[FileEntry]) -> None:
        for file in files:
            target = self.store.join(file.path)
            try:
                self.store.move(self._waiting(file.path), target)
            except FileNotFoundError:
                if not self.store.fs.exists(target):  # not moved by an earlier attempt either
                    raise
        self.store.sync_directory(self.store.root)


def find_snapshot(store: Store) -> Snapshot | None:
    """The newest snapshot of the dataset at the store's root, if there is any."""
    if "://" in store.root:  # a URL over HTTP, where nothing is a directory
        return None
    store.fs.invalidate_cache(store.join(_OWN))
    try:
        names = [path.rpartition("/")[2] for path in store.fs.ls(store.join(_OWN), detail=False)]
    except (FileNotFoundError, NotADirectoryError):
        return None
    numbers = [int(name[:8]) for name in names if _SNAPSHOT_NAME.fullmatch(name)]
    if not numbers:
        return None
    path = _snapshot_path(store, max(numbers))
    return from_parquet(store.fs.cat_file(path), store.public(path))


def is_part(path: str) -> bool:
    """Whether a path has the name of a data file that this library writes."""
    return _PART_NAME.fullmatch(path.rpartition("/")[2]) is not None


def unfinished(paths: Sequence[str]) -> list[str]:
    """Those of the paths that are data files of writes of which others are missing."""
    writes: dict[tuple[str, ...], list[str]] = {}
    for path in paths:
        part = _PART_NAME.fullmatch(path.rpartition("/")[2])
        if part:
            writes.setdefault(part.group("run", "count"), []).append(path)
    return [path for (_, count), found in writes.items() if len(found) < int(count) for path in found]


def check_destination(store: Store) -> None:
    """Refuse a place that holds anything a reader would see.

    Raises
    ------
    DestinationError
        If it is a file, or holds visible files or a dataset.
    """
    root = store.public(store.root)
    if store.fs.isfile(store.root):
        raise DestinationError("is a file, not a directory", path=root)
    holds = "a dataset" if find_snapshot(store) else "files" if list_directory(store) else None
    if holds:
        advice = "choose another directory, or remove this one first"
        raise DestinationError(f"the directory already holds {holds}", path=root, advice=advice)


def _snapshot_path(store: Store, number: int) -> str:
    return store.join(f"{_OWN}/{number:08d}.parquet")
