"""Find the files of earlier versions, which a commit moves from their paths to the directory ``kept``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.snapshot.names import KEPT
from dask_tfrecord.dataset.snapshot.versions import readable_versions, version_names
from dask_tfrecord.files.storage.listing import (
    column_paths,
    list_directory,
    path_column,
    unquoted_column,
    with_column,
)
from dask_tfrecord.files.storage.open_file import FileReader, removed
from dask_tfrecord.files.storage.store import Store

_T = TypeVar("_T")


@dataclass(frozen=True, repr=False)
class DatasetStore(Store):
    """A store that also finds files that were moved to the directory of kept files, or back.

    A reader that has planned to read a file is not disturbed by a commit that replaces the file and keeps the
    earlier versions.
    """

    @contextmanager
    def open(
        self, path: str, size: int | None, start: int = 0, stop: int | None = None, stamp: str = ""
    ) -> Iterator[FileReader]:
        """Open a file in the same way as `Store.open`."""
        opened = super().open
        with ExitStack() as stack:

            def enter(position: int, at: str) -> FileReader:
                known = stamp if at == path or self.local else ""  # only a local move keeps the stamp
                return stack.enter_context(opened(at, size, position, stop, known))

            def open_at(position: int) -> FileReader:
                return self.follow(path, partial(enter, position))

            file = open_at(start)
            yield file if self.local else _FollowedFile(file, start, open_at)  # local files stay open

    def look(self, path: str) -> dict[str, Any]:
        """Return the current info of a file in the same way as `Store.look`."""
        look = super().look

        def info(at: str) -> dict[str, Any]:
            found = look(at)
            return found if at == path or self.local else {"size": found.get("size")}

        return self.follow(path, info)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Read byte ranges of files in the same way as `Store.read_ranges`."""
        read = super().read_ranges
        with suppress(FileNotFoundError):
            return read(ranges)

        def read_one(start: int, stop: int, at: str) -> bytes:
            return read([(at, start, stop)])[0]

        return [self.follow(path, partial(read_one, start, stop)) for path, start, stop in ranges]

    def follow(self, path: str, read: Callable[[str], _T]) -> _T:
        """Call a function in the same way as `Store.follow`, with the new path of a file that was moved."""
        try:
            return read(path)
        except FileNotFoundError as error:
            for other in (self.join(f"{KEPT}/{self.relative(path)}"), path):
                with suppress(FileNotFoundError):
                    return read(other)
            numbers = readable_versions(self)
            why = "its version has expired or was overwritten. The dataset has version"
            raise removed(
                self.public(path), f", because {why} {version_names(numbers)}" if numbers else ""
            ) from error


class _FollowedFile(FileReader):
    """Read a file forward. If the file is moved in the meantime, read on where the file is."""

    def __init__(self, file: FileReader, start: int, open_at: Callable[[int], FileReader]) -> None:
        self._opened, self._position, self._open_at = file, start, open_at
        self.size = file.size

    def peek(self, count: int) -> bytes:
        return self._opened.peek(count)

    def readinto(self, view: memoryview) -> int:
        try:
            count = self._opened.readinto(view)
        except FileNotFoundError:
            self._opened = self._open_at(self._position)
            count = self._opened.readinto(view)
        self._position += count
        return count


def kept_files(store: Store) -> pa.Table:
    """Return the list of the files in the directory of kept files."""
    return list_directory(Store(store.fs, store.join(f"{KEPT}/")))


def places_of_kept_files(store: Store) -> set[str]:
    """Return the paths at which the files in the directory of kept files were before."""
    start = len(store.join(f"{KEPT}/"))
    return {store.join(path[start:]) for path in column_paths(kept_files(store)["path"])}


def with_kept_files(store: Store, paths: pa.Array | pa.ChunkedArray, files: pa.Table) -> pa.Table:
    """Return the list of a snapshot's files, with the sizes and stamps of files that were moved.

    Parameters
    ----------
    store : Store
        The root of the dataset.
    paths : pyarrow.Array
        The full path of each file of the snapshot.
    files : pyarrow.Table
        The file list with a row for each path. All values of a file that is not at its path are null.
    """
    for directory in (f"{KEPT}/", ""):  # a restore may move a file back between the listings
        missing = files["path"].is_null()
        if not pc.any(missing).as_py():
            break
        store.fs.invalidate_cache()
        listed = list_directory(Store(store.fs, store.join(directory)))
        start = len(store.join(directory))
        names = [store.join(path[start:]) for path in column_paths(listed["path"])]
        listed = with_column(listed, "path", unquoted_column(pa.chunked_array([path_column(names)])))
        found = listed.take(pc.index_in(paths, listed["path"]))
        columns = [pc.if_else(missing, found[name], files[name]) for name in files.column_names]
        files = pa.table(columns, schema=files.schema)
    return files
