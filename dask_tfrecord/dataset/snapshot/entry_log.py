"""Define the entries of a version as a log: lists of files that are added and removed, one after the other.

Each version stores one list, and names the older lists that stay valid. A write stores only what it changes,
together with the entries of recent small lists, so that a version consists of few lists whatever the number
of writes. The lists are read when their entries are first needed. This module knows no Parquet.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.files.file_list import FileList
from dask_tfrecord.lazy import cached_property

# In a file list, this column orders the files of a partition. A new file that replaces others takes the place
# of one of them.
PLACE = "place"

# The distance between the places of two files that are added one after the other, so that places between them
# are left for the files that replace them.
PLACE_STEP = 1 << 20

# Merge a list with newer ones when a version would have more than this many of a similar size. Two sizes are
# similar if they have the same logarithm to this base plus one, rounded down.
_MOST_SIMILAR = 3

_NO_PATHS = pa.array([], pa.binary())


class Totals(NamedTuple):
    """The totals of a version: its files, their records, and their stored size in bytes."""

    files: int
    records: int
    bytes: int

    @classmethod
    def of(cls, files: FileList) -> "Totals":
        return cls(len(files), *(pc.sum(files[name]).as_py() or 0 for name in ("records", "bytes")))


class ListRows(NamedTuple):
    """The content of a list: the files that it adds, and the paths of the older lists' files that it removes.

    A list may remove a path and add it again, which replaces the entry of the file.
    """

    added: FileList
    removed: pa.Array = _NO_PATHS


class CommitId(NamedTuple):
    """The version that a write committed, the id of its run, and the id that the user gave to the write."""

    number: int
    run: str
    write_id: str | None = None


# Chooses the row groups of a list to read: given a summary of their statistics, return a mask. In the
# summary, each row group counts as a file, whose bounds contain those of all files in the row group.
Prune: TypeAlias = Callable[[FileList], npt.NDArray[np.bool_]]


class StoredList(Protocol):
    """A list that a version has stored.

    Attributes
    ----------
    rows : int
        The number of added and removed files in the list.
    removed : int
        The number of removed files in the list.
    next_place : int
        The place of the first file that the next list adds.
    content : ListRows
        The content, which is read at first use.
    commits : sequence of CommitId
        The commits whose changes the list contains, the newest last.
    path : str
        The path of the file that contains the list, for error messages.

    `read` reads a part of the content, as `EntryLog.read` does, and all removed paths.
    """

    @property
    def rows(self) -> int: ...
    @property
    def removed(self) -> int: ...
    @property
    def next_place(self) -> int: ...
    @property
    def content(self) -> ListRows: ...
    @property
    def commits(self) -> Sequence[CommitId]: ...
    def read(self, names: Collection[str], prune: Prune) -> ListRows: ...
    @property
    def path(self) -> str: ...


@dataclass(frozen=True, eq=False, repr=False)
class EntryLog:
    """The entries of a version.

    Attributes
    ----------
    added : FileList
        The entries that no list in ``lists`` stores. Without ``lists``, they are all entries, in the order of
        the version. Otherwise, an entry without a `PLACE` follows all others.
    lists : tuple of StoredList
        The stored lists, the oldest first.
    removed : pyarrow.Array
        The paths in ``lists`` that the version no longer lists, or that ``added`` replaces.
    known : Totals, optional
        The totals of the version, or None to compute them from the entries.
    """

    added: FileList
    lists: tuple[StoredList, ...] = ()
    removed: pa.Array = field(default_factory=lambda: _NO_PATHS)
    known: Totals | None = None

    @cached_property
    def files(self) -> FileList:
        """All entries, in the order of the version."""
        if not self.lists:
            return in_order(self.added.select(name for name in self.added.rows.column_names if name != PLACE))
        lists = [one.content for one in self.lists]
        if self.has_change:
            lists.append(ListRows(self._placed, self.removed))
        files = all_files(lists)
        if self.known is not None and Totals.of(files) != self.known:
            raise ValueError("its totals are not those of its files")
        return files

    def read(self, names: Collection[str], prune: Prune) -> FileList:
        """Read the entries that a query needs, in the order of the version.

        The result has the statistics of the columns ``names``. It may lack the files of the row groups that
        ``prune`` leaves out.
        """
        if "files" in vars(self) or self.has_change or not self.lists:
            return self.files
        return in_order(merge([one.read(names, prune) for one in self.lists], is_partial=True).added)

    @cached_property
    def totals(self) -> Totals:
        return self.known or Totals.of(self.files)

    @property
    def has_change(self) -> bool:
        return bool(len(self.added) or len(self.removed))

    @property
    def next_place(self) -> int:
        """The place of the first file that another write would add."""
        start = self.lists[-1].next_place if self.lists else 0
        return start + PLACE_STEP * len(self.added)

    @property
    def _placed(self) -> FileList:
        """The added entries, each with a place. Without lists, they are in the order of their places."""
        if not self.lists:
            return self.files.with_columns({PLACE: places_from(0, len(self.files))})
        ends = places_from(self.lists[-1].next_place, len(self.added))
        known = self.added[PLACE].combine_chunks() if PLACE in self.added else ends
        return self.added.with_columns({PLACE: pc.coalesce(known, ends)})

    def changed(self, added: FileList, removed: FileList | None = None) -> "EntryLog":
        """Return the log after a write that adds and removes files.

        ``removed`` contains entries of this log. If a file is added and removed, its entry is replaced.
        """
        gone = None if removed is None or not len(removed) else removed["path"].combine_chunks()
        if self.has_change or not self.lists:
            left = self.files if gone is None else self.files.filter(pc.invert(is_in(self.files, gone)))
            return EntryLog(FileList.joined([left, added]))
        less = Totals(0, 0, 0) if removed is None else Totals.of(removed)
        pairs = zip(self.totals, Totals.of(added), less, strict=True)
        totals = Totals(*(old + new - lost for old, new, lost in pairs))
        return EntryLog(added, self.lists, _NO_PATHS if gone is None else gone, totals)

    def to_store(self) -> tuple[tuple[StoredList, ...], ListRows]:
        """Return the lists that the next version names, and the list that it stores itself.

        The recent small lists become a part of its own list. Its own list is complete if no other is left.
        """
        own = ListRows(self._placed, self.removed)
        sizes = [one.rows for one in self.lists]
        count = _kept_lists(sizes, len(own.added) + len(own.removed))
        merged = [one.content for one in self.lists[count:]]
        if merged:
            own = merge([*merged, own]) if self.has_change else merge(merged)
        return self.lists[:count], ListRows(in_order(own.added), own.removed)


def places_from(start: int, count: int) -> pa.Array:
    """Return the places of ``count`` files that are added one after the other."""
    return pa.array(start + PLACE_STEP * np.arange(count, dtype=np.int64))


def _kept_lists(sizes: Sequence[int], written: int) -> int:
    """Return how many of the lists stay when a version writes ``written`` entries. The others are merged with
    them.

    Each list is smaller than the one before, or has a similar size. So the number of lists, and how often an
    entry is written, grow with the logarithm of the number of entries.
    """

    def level(size: int) -> int:
        return size.bit_length() // 2 if size else -1

    count = len(sizes)
    while count:
        start = count
        while start and level(sizes[start - 1]) <= level(written):
            start -= 1
        tail = sizes[start:count]
        is_smaller = any(level(size) < level(written) for size in tail)
        if not tail or not (is_smaller or len(tail) >= _MOST_SIMILAR or tail[-1] == 0):
            break
        written, count = written + sum(tail), start
    return count


def is_in(files: FileList, paths: pa.Array) -> pa.ChunkedArray:
    return pc.is_in(files["path"], paths)


def merge(lists: Sequence[ListRows], *, is_partial: bool = False) -> ListRows:
    """Merge adjacent lists, the oldest first, to one list that has the same effect on the lists before them.

    Raise ValueError if a list removes a file that an older list has removed. If ``is_partial`` is True, the
    lists may lack files that a newer list removes.
    """
    added, removed = _remaining(lists, is_partial=is_partial)
    return ListRows(FileList.joined(added) if len(added) > 1 else added[0], removed)


def _remaining(lists: Sequence[ListRows], *, is_partial: bool = False) -> tuple[list[FileList], pa.Array]:
    """Return the files of each list that no newer list removes, and the other removed paths."""
    added: list[FileList] = []
    removed = _NO_PATHS
    for rows in reversed(lists):
        files = rows.added
        if len(removed):
            is_removed = is_in(files, removed)
            if pc.any(is_removed).as_py():
                gone = files.filter(is_removed)["path"].combine_chunks()
                files = files.filter(pc.invert(is_removed))
                removed = removed.filter(pc.invert(pc.is_in(removed, gone)))
        added.append(files)
        if len(rows.removed):
            removed = pa.concat_arrays([rows.removed, removed])
            distinct = removed.unique()
            if len(distinct) < len(removed) and not is_partial:
                raise ValueError("a file is removed twice")
            removed = distinct
    return added[::-1], removed


def all_files(lists: Sequence[ListRows]) -> FileList:
    """Return the files that remain after all lists, in the order of the version.

    Raise ValueError if a list removes a file that the older lists do not list, or if two files have the same
    path.
    """
    added, removed = _remaining(lists)
    if len(removed):
        raise ValueError(f"the file {removed[0].as_py()!r} is removed, but not listed")
    # The paths in a list are distinct. The smaller lists are looked up in the largest, which is fast.
    *smaller, largest = sorted(added, key=len)
    if smaller:
        paths = FileList.joined(smaller)["path"].combine_chunks()
        if len(paths.unique()) < len(paths) or pc.any(is_in(largest, paths)).as_py():
            raise ValueError("several files have the same path")
    return in_order(FileList.joined(added) if smaller else largest)


def in_order(files: FileList) -> FileList:
    """Sort files by their partition values, and files with equal values by their places."""
    keys = [ranks(column) for column in files.partition_columns.columns]
    if PLACE in files:
        keys.append(files[PLACE].to_numpy())
    if _is_sorted(keys):
        return files
    return files.take(np.lexsort(keys[::-1]))


def _is_sorted(keys: Sequence[npt.NDArray[np.int64]]) -> bool:
    """Return True if the rows of some keys are in ascending order. Equal rows are allowed."""
    rises, is_equal = np.zeros(max(len(keys[0]) - 1, 0) if keys else 0, bool), True
    for key in keys:
        rises |= is_equal & (key[1:] > key[:-1])
        is_equal = is_equal & (key[1:] == key[:-1])
    return bool(np.all(rises | is_equal))


def ranks(values: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return the rank of each value among the distinct values. Nulls have the highest rank."""
    values = _sortable(values)
    codes = values.combine_chunks().dictionary_encode(null_encoding="encode")
    distinct = codes.dictionary
    numbers = np.empty(len(distinct), np.int64)
    numbers[pc.sort_indices(distinct).to_numpy()] = np.arange(len(distinct))
    found: npt.NDArray[np.int64] = numbers[codes.indices.to_numpy()]
    return found


def _sortable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert values to a type that Arrow can sort."""
    type_ = values.type
    if pa.types.is_float16(type_):
        return values.cast(pa.float32())
    if pa.types.is_decimal(type_) and type_.bit_width < 128:
        return values.cast(pa.decimal128(type_.precision, type_.scale))
    if pa.types.is_string_view(type_) or pa.types.is_binary_view(type_):
        return values.cast(pa.binary())
    return values


def between_places(
    places: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], end: int
) -> npt.NDArray[np.int64] | None:
    """Return ``counts[i]`` new places for each ``i``: ``starts[i]`` and others before the next known place.

    Return None if there are too few places. ``end`` follows all places.
    """
    known = np.append(np.sort(places), end)
    room = known[np.searchsorted(known, starts, side="right")] - starts
    steps = room // np.maximum(counts, 1)
    if np.any((steps < 1) & (counts > 0)):
        return None
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    found: npt.NDArray[np.int64] = np.repeat(starts, counts) + offsets * np.repeat(steps, counts)
    return found
