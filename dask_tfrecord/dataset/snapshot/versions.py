"""Find the versions of a dataset, read them, and encode new versions.

A version consists of its own list of entries and of older lists (see `entry_log`), each in the Parquet file
of the version that stored it. The metadata of a version is read at once, and its lists when they are first
needed.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.names import METADATA_DIRECTORY, snapshot_path
from dask_tfrecord.dataset.snapshot import list_files
from dask_tfrecord.dataset.snapshot.entry_log import CommitId, EntryLog, ListRows, Prune
from dask_tfrecord.dataset.snapshot.list_files import ListFile, open_list, open_lists, public_path
from dask_tfrecord.dataset.snapshot.metadata import KNOWN_COMMITS, ListName, dump_columns, dump_metadata
from dask_tfrecord.dataset.snapshot.stored_files import check, from_entries, invalid_snapshot, listed_paths
from dask_tfrecord.errors import FileRemovedError, TFRecordError
from dask_tfrecord.files.entry import COLUMN_FILE
from dask_tfrecord.files.file_list import VERSION, FileList
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.dtypes import arrow_backed
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.storage.paths import is_http
from dask_tfrecord.storage.store import Store


@cache  # cached, because reading an installed package's metadata takes milliseconds
def library_version() -> str:
    """Return the installed version of this package, or "unknown" if it is not installed."""
    try:
        return version("dask-tfrecord")
    except PackageNotFoundError:  # the package was imported from its source directory without installation
        return "unknown"


# Finds the numbers of versions in joined names, which is faster than to look at each name.
_NUMBERS = re.compile(r"(?<![^/])(\d{8})\.parquet(?![^/])", re.ASCII)

# An error message lists at most this many versions one by one.
_MOST_NUMBERS = 12


def versions(store: Store) -> list[int]:
    """Return the versions of the dataset in the root of the store, in ascending order.

    The listing of a remote store may not show a new file yet, so the versions after the newest listed one are
    requested individually.
    """
    return with_unlisted(store, numbers_of(store.names(METADATA_DIRECTORY)))


def with_unlisted(store: Store, numbers: Sequence[int], expected: int = 0) -> list[int]:
    """Return listed versions and the versions after them, which a listing may not show yet.

    ``expected`` is a version that exists, even if it is not listed.
    """
    found, newest = [*numbers], max([expected, *numbers], default=0)
    while has_unlisted_version(store, newest):
        newest += 1
        found.append(newest)
    return found


def has_unlisted_version(store: Store, number: int, count: int = 1) -> bool:
    """Return True if the store has one of the ``count`` versions after version ``number``.

    Return False on stores whose listings are always complete, and on web servers.
    """
    if not store.is_remote or is_http(store.root):
        return False
    paths = [store.join(snapshot_path(number + more)) for more in range(1, count + 1)]
    with suppress(PermissionError):  # the answer of some stores for a file that does not exist
        return any(store.for_each(store.has_file, paths))
    return False


def numbers_of(names: Iterable[str]) -> list[int]:
    """Return the versions whose snapshot files are among ``names``, in ascending order."""
    return sorted(map(int, _NUMBERS.findall("/".join(names))))


def version_names(numbers: Sequence[int]) -> str:
    """Return a string that lists versions. If there are many versions, name only the first and the last
    version.
    """
    few = len(numbers) <= _MOST_NUMBERS
    return ", ".join(map(str, numbers)) if few else f"{numbers[0]} to {numbers[-1]}"


class LostListError(TFRecordError):
    """A list of a version is missing or was replaced, because of an overwrite or of damage."""


class RemovedVersionError(LostListError, FileRemovedError):
    """A list of a version is missing, because it has expired or was overwritten."""


# Returns the versions that a dataset keeps (see `Head`).
KeptVersions = Callable[[Store], Collection[int]]


class _Lists:
    """The older lists of version ``number``. They are opened together at the first use of one of them.

    ``kept_versions`` returns the versions that the dataset keeps.
    """

    def __init__(
        self, store: Store, names: tuple[ListName, ...], number: int, kept_versions: KeptVersions
    ) -> None:
        self.store, self.names, self.number = store, names, number
        self.kept_versions = kept_versions
        self._found: dict[int, ListFile] = {}

    def open(self, name: ListName) -> ListFile:
        """Open one of the lists, or the version's own list, which a pickled version does not contain."""
        if name.number not in self._found:
            self._open([one for one in dict.fromkeys((*self.names, name)) if one.number not in self._found])
        return self._found[name.number]

    def first(self) -> ListFile:
        """Open only the first list, whose metadata describes the columns of the version."""
        name = self.names[0]
        if name.number not in self._found:
            self._open([name])
        return self._found[name.number]

    def _open(self, names: Sequence[ListName]) -> None:
        files = open_lists(self.store, [name.number for name in names])
        for name, file in zip(names, files, strict=True):
            self._found[name.number] = self._checked(name, file)

    def _checked(self, name: ListName, file: ListFile | Exception) -> ListFile:
        problem = "later versions add to this version, and its file is"
        path = public_path(self.store, name.number)
        if isinstance(file, FileNotFoundError):
            raise self.removed_version(path) or _lost(f"{problem} missing", path) from None
        if isinstance(file, Exception):
            raise file
        if ListName.of(name.number, file.metadata.run, file.rows) != name:
            raise self.removed_version(path) or _lost(f"{problem} another one", path)
        first = self.names[:1]
        if file.metadata.lists[:1] != (() if name in first else first):
            raise _lost(f"{problem} the list of another dataset", path)
        return file

    def removed_version(self, path: str) -> RemovedVersionError | None:
        """Return an error if the version of a missing list has expired or was overwritten."""
        # Read no version if this is the newest one: the search for the newest version may have opened it.
        newest = max(versions(self.store), default=0)
        if newest <= self.number or self.number in self.kept_versions(self.store):
            return None
        problem = f"version {self.number} of the dataset has expired or was overwritten after it was listed"
        return RemovedVersionError(problem, "read the dataset again", path=path)

    def __reduce__(self) -> tuple[type["_Lists"], tuple[Store, tuple[ListName, ...], int, KeptVersions]]:
        return type(self), (self.store, self.names, self.number, self.kept_versions)


def _lost(problem: str, path: str) -> LostListError:
    found = invalid_snapshot(ValueError(problem), path)
    return LostListError(found.problem, *found.remedies, path=path)


@dataclass(frozen=True, eq=False, repr=False)
class _List:
    """A list of a version, which is read when it is needed (see `StoredList`)."""

    name: ListName
    siblings: _Lists
    schema: Schema
    partitioning: tuple[Field, ...]

    @property
    def rows(self) -> int:
        return self.name.rows

    @cached_property
    def file(self) -> ListFile:
        return self.siblings.open(self.name)

    @property
    def removed(self) -> int:
        return self.file.metadata.removed

    @property
    def next_place(self) -> int:
        return self.file.metadata.next_place

    @property
    def commits(self) -> tuple[CommitId, ...]:
        return self.file.commits

    @property
    def path(self) -> str:
        return public_path(self.siblings.store, self.name.number)

    @cached_property
    def content(self) -> ListRows:
        return self._read()

    def read(self, names: Collection[str], prune: Prune) -> ListRows:
        return self.content if "content" in vars(self) else self._read(names, prune)

    def _read(self, names: Collection[str] | None = None, prune: Prune | None = None) -> ListRows:
        file = self.file
        try:
            return file.read(self.schema, self.partitioning, names, prune)
        except FileRemovedError as error:  # the file was removed after its end was read
            raise self.siblings.removed_version(self.path) or error from None

    def __getstate__(self) -> dict[str, Any]:
        names = ("name", "siblings", "schema", "partitioning")
        return {name: vars(self)[name] for name in names}


def read_version(store: Store, number: int, kept_versions: KeptVersions) -> dict[str, Any]:
    """Return the fields of the snapshot with version ``number`` in the root of the store.

    Raise FileNotFoundError if the file of the version does not exist. Raise TFRecordError if it is damaged.
    """
    return assemble(open_list(store, number), kept_versions)


def assemble(own: ListFile, kept_versions: KeptVersions) -> dict[str, Any]:
    """Return the fields of the snapshot whose own list is ``own``."""
    metadata = own.metadata
    siblings = _Lists(own.store, metadata.lists, own.number, kept_versions)
    columns = metadata.columns
    if columns is None:
        columns = siblings.first().metadata.columns
        if columns is None:
            raise _lost("later versions need its columns, and it has none", siblings.first().path)
    schema, partitioning = columns["schema"], columns["partitioning"]
    lists = [_List(name, siblings, schema, partitioning) for name in metadata.lists]
    newest = _List(ListName.of(own.number, metadata.run, own.rows), siblings, schema, partitioning)
    vars(newest)["file"] = own
    names = ("run", "library", "mode", "details", "created", "oldest", "compression", "write_id")
    return {
        **columns,
        "custom_metadata": {**columns["custom_metadata"]},  # callers may change the dict, so copy it
        **{name: getattr(metadata, name) for name in names},
        "number": own.number,
        "log": EntryLog(from_entries([], schema, partitioning), (*lists, newest), known=metadata.totals),
    }


def encode(store: Store, fields: Mapping[str, Any], kept_versions: KeptVersions) -> tuple[bytes, EntryLog]:
    """Encode the fields of a snapshot as the Parquet file of its version.

    Return the content of the file, and the log of the entries as a reader would read it.
    """
    log, number = fields["log"], fields["number"]
    kept, own = log.to_store()
    known = own.added[VERSION] if VERSION in own.added else pa.nulls(len(own.added), pa.int64())
    added = own.added.with_columns({VERSION: pc.fill_null(known, number)})
    own = ListRows(FileList(added.rows.combine_chunks()), own.removed)
    check(bool(kept) or not len(own.removed), "a file is removed, but not listed")
    names = tuple(ListName(*one.name) for one in kept)
    taken = [one for one in fields["before"] if one.name not in names]
    commits = [(commit.run, commit.write_id) for one in taken for commit in one.commits]
    merged = commits[1 - KNOWN_COMMITS :]
    metadata = dump_metadata(fields, names, log.next_place, len(own.removed), merged)
    columns = dump_columns(fields)
    if not kept or not kept[0].file.metadata.has_columns(columns):
        metadata |= columns
    schema, partitioning = fields["schema"], fields["partitioning"]
    data = list_files.encode(metadata, own, schema, partitioning, number)
    stored = list_files.opened(store, number, data)
    siblings = _Lists(store, names, number, kept_versions)
    newest = _List(ListName.of(number, fields["run"], stored.rows), siblings, schema, partitioning)
    vars(newest).update(file=stored, content=own)
    return data, EntryLog(own.added.slice(0, 0), (*kept, newest), known=log.totals)


def listed_by(store: Store, numbers: Iterable[int], kept_versions: KeptVersions) -> set[str]:
    """Return the paths of all data files and column files that one or more of the versions list.

    Leave out versions that no longer exist. Raise LostListError if a list is lost of a version that the
    dataset keeps: its files must not count as unlisted.
    """
    of_versions: list[tuple[_List, ...]] = []
    contents: dict[ListName, ListRows] = {}
    for number in numbers:
        try:
            lists: tuple[_List, ...] = read_version(store, number, kept_versions)["log"].lists
            contents |= {one.name: one.content for one in lists if one.name not in contents}
        except FileNotFoundError:  # an overwrite has just removed this version, or one of its lists
            continue
        of_versions.append(lists)
    # A file that no list removes is listed by each version that has its list.
    removed = pa.concat_arrays(
        [pa.array([], pa.binary()), *(rows.removed for rows in contents.values())]
    ).unique()
    listed: set[str] = set()
    doubtful: dict[ListName, FileList] = {}
    for name, rows in contents.items():
        is_removed = pc.is_in(rows.added["path"], removed)
        listed.update(listed_paths(rows.added.filter(pc.invert(is_removed))))
        doubtful[name] = rows.added.filter(is_removed)
    for lists in of_versions:
        alive: dict[bytes, Any] = {}
        for one in lists:
            for path in contents[one.name].removed.to_pylist():
                alive.pop(path, None)
            files = doubtful[one.name]
            column_files = files[COLUMN_FILE].to_pylist() if COLUMN_FILE in files else [None] * len(files)
            alive |= dict(zip(files["path"].to_pylist(), column_files, strict=True))
        for path, column_file in alive.items():
            listed.add(path.decode(errors="surrogateescape"))
            listed |= {column_file["path"]} if column_file else set()
    return listed


def open_version_files(store: Store, numbers: Sequence[int]) -> dict[int, ListFile]:
    """Read the files of versions. The result does not include versions that do not exist.

    Raise TFRecordError if a version is damaged.
    """
    found = dict(zip(numbers, open_lists(store, numbers), strict=True))
    for one in found.values():
        if isinstance(one, Exception) and not isinstance(one, FileNotFoundError):
            raise one
    return {number: one for number, one in found.items() if isinstance(one, ListFile)}


def needed_lists(files: Iterable[ListFile]) -> set[int]:
    """Return the versions whose lists are a part of the given versions."""
    return {name.number for one in files for name in one.metadata.lists}


_HISTORY = pa.schema(
    {
        "version": pa.int64(),
        "created": pa.timestamp("s", "UTC"),
        "mode": pa.string(),
        "details": pa.string(),
        "files": pa.int64(),
        "rows": pa.int64(),
        "bytes": pa.int64(),
        "run": pa.string(),
        "write_id": pa.string(),
        "library": pa.string(),
    }
)


def history(store: Store, numbers: Sequence[int]) -> pd.DataFrame:
    """Return the table that `Dataset.history` documents, without versions that no longer exist."""
    rows = []
    for number, one in open_version_files(store, numbers).items():
        metadata = one.metadata
        told = (metadata.created, metadata.mode or None, metadata.details or None)
        rows.append((number, *told, *metadata.totals, metadata.run, metadata.write_id, metadata.library))
    named = (dict(zip(_HISTORY.names, row, strict=True)) for row in rows)
    return arrow_backed(pa.Table.from_pylist([*named], _HISTORY))
