"""Read spill files: regroup the rows, or merge and write the rows of a target partition.

The rows in each section of a target partition are sorted, so an external merge sort combines the sections.
The merge reads the pieces of all sections in the order of their first rows, in one or more passes. After each
pass, the merge writes all rows that sort before the first row of every unread piece. Even for a large
partition, a task holds in memory only the pieces of one pass and the rows left over from the previous pass.
"""

import sys
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import crc32c
from dask_tfrecord.dataset.partitioning import Groups, directory_groups
from dask_tfrecord.dataset.shuffle.spill import (
    ROW_ID,
    ROWS,
    Batches,
    Directories,
    Positions,
    Route,
    Shuffle,
    Spill,
    Unsigned,
    compact,
    pass_bytes,
    sort_keys,
    write_group,
)
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.file_writer import DirectoryGroup, GroupedRows
from dask_tfrecord.files.splits import groups_by_bytes
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.schema.storage_values import load
from dask_tfrecord.storage.range_requests import ByteRange
from dask_tfrecord.storage.store import Store

# Sorting needs this many bytes of memory for each row of a pass, in addition to the row itself.
_ROW_OVERHEAD = 32

# Sections are read completely if their total size is at most this multiple of the largest spill file's size.
# The sizes of shuffled partitions differ by less than a quarter, unless rows with equal values must share a
# partition.
_WHOLE_SHARE = 1.25


def regroup(
    run: WriteRun, spills: Sequence[Spill], group: int, shuffle: Shuffle, route: Route
) -> tuple[Spill, ...]:
    """Read the sections of a group from some spill files, and spill the rows for each target partition of the
    group.

    If the sections are too large to be read at once, the result has several spill files. A repeated call
    writes the same rows to new files, so it does not matter which call's files the target partitions read.
    """
    filled = [one for one in spills if one.starts[group] < one.starts[group + 1]]
    sizes = (int(one.starts[group + 1] - one.starts[group]) for one in filled)
    # The sections in the files of each window are small enough to be read at once.
    windows = [filled[window] for window in groups_by_bytes(sizes, _whole_bytes(spills))]
    count = route.chunks * len(windows)
    return tuple(
        write_group(run, _read_group(run.store, window, group), group, count, shuffle, route)
        for window in windows
    )


def _read_group(store: Store, spills: Sequence[Spill], group: int) -> pa.Table:
    """Read all rows of a group's sections, in the order of the spill files."""
    sections = _open_sections(store, spills, group, sys.maxsize)
    return _read(store, sections, _sorted_pieces(sections, None), None).table


def write_target(
    run: WriteRun, spills: Sequence[Spill], index: int, shuffle: Shuffle, route: Route
) -> tuple[FileEntry, ...]:
    """Write the files of the target partition ``index``. The rows are sorted by the name of their partition
    directory.

    ``spills`` lists the spill files of the group to which the target partition belongs. Raise TFRecordError
    if a spill file is missing or damaged, or if a value cannot be stored. In an error about a value,
    ``record`` is a row id (see `dask_tfrecord.dataset.shuffle.spill.source_of`).
    """
    sections = _open_sections(run.store, spills, index % route.width, _whole_bytes(spills))
    groups, sections = _numbered(run, sections)
    rows = GroupedRows(_merge(run, sections, shuffle.seed, pass_bytes(_largest(spills))), groups)
    return run.write_grouped(rows, index, shuffle.npartitions)


def _largest(spills: Sequence[Spill]) -> int:
    return max((spill.bytes for spill in spills), default=0)


def _whole_bytes(spills: Sequence[Spill]) -> int:
    """Return the maximum total size, in bytes, of sections that are read with one request each.

    Sections of the returned size fit into memory, because the task that wrote the largest spill file held
    about as many bytes.
    """
    largest = _largest(spills)
    return max(pass_bytes(largest), int(_WHOLE_SHARE * largest))


# --- The sections -------------------------------------------------------------------------------------------


class _Section(NamedTuple):
    """A section of a spill file, with rows for one target partition or for one group.

    ``start`` and ``tail_start`` are byte offsets in the spill file. ``tail`` contains the bytes of the
    section's index, or of the complete section if `_open_sections` has read it. ``pieces`` lists the size in
    bytes, the checksum, the row count and the first row id of each piece. ``directories`` lists the partition
    values and the row count of each directory, in the order of the rows. ``numbers`` contains the index of
    each directory among the directories of all sections.
    """

    path: str
    start: int
    tail_start: int
    tail: bytes
    pieces: pa.Table
    directories: pa.Table
    numbers: Unsigned

    def numbers_of(self, positions: Positions) -> Unsigned:
        """Return the directory number of the row at each position in ``positions``."""
        ends = np.cumsum(self.directories[ROWS].to_numpy())
        return self.numbers[np.searchsorted(ends, positions, side="right")]


def _open_sections(store: Store, spills: Sequence[Spill], index: int, most: int) -> list[_Section]:
    """Read the indexes of all sections with rows. If the sections have at most ``most`` bytes in total, read
    the complete sections.
    """
    filled = [
        (store.join(spill.path), start, int(spill.indexes[index]), stop, int(spill.checksums[index]))
        for spill in spills
        for start, stop in [(int(spill.starts[index]), int(spill.starts[index + 1]))]
        if start < stop
    ]
    are_small = sum(stop - start for _, start, _, stop, _ in filled) <= most
    ranges = [
        ByteRange(path, start if are_small else indexed, stop) for path, start, indexed, stop, _ in filled
    ]
    tails = _read_ranges(store, ranges)
    sections = []
    for (path, start, indexed, _, checksum), (_, tail_start, *_), tail in zip(
        filled, ranges, tails, strict=True
    ):
        index_bytes = memoryview(tail)[indexed - tail_start :]
        if crc32c(index_bytes) != checksum:
            raise _damaged(store, path)
        reader = pa.BufferReader(index_bytes)
        pieces, directories = (pa.ipc.open_stream(reader).read_all() for _ in range(2))
        numbers = np.zeros(len(directories), np.uint8)
        sections.append(_Section(path, start, tail_start, tail, pieces, directories, numbers))
    return sections


def _numbered(run: WriteRun, sections: list[_Section]) -> tuple[list[DirectoryGroup], list[_Section]]:
    """Assign a number to each directory of the sections. Return the directories, and copies of the sections
    with the directory numbers.
    """
    if not sections:
        return [] if run.partition_on else [DirectoryGroup("", (), 0)], []
    every = pa.concat_tables([section.directories for section in sections])
    directories = Directories.of(every, run.partition_on)
    rows = np.zeros(len(directories.names), np.int64)
    np.add.at(rows, directories.of_rows, every[ROWS].to_numpy())
    groups = [DirectoryGroup("", (), int(rows[0]))]
    if run.partition_on:
        found = Groups(directories.values, None, np.concatenate([[0], np.cumsum(rows)]))
        groups = directory_groups(found, run.partition_on, max_directories=run.max_directories)
    ends = np.cumsum([section.directories.num_rows for section in sections])
    numbers = np.split(directories.of_rows, ends[:-1])
    return groups, [section._replace(numbers=of) for section, of in zip(sections, numbers, strict=True)]


class _Piece(NamedTuple):
    """A piece of a section: some consecutive rows. Comparisons order pieces by their first rows.

    ``directory`` and ``key`` are the directory number and the sort key of the first row. ``first`` is the
    position of the first row in the section. ``offset`` is the byte offset of the piece in the spill file.
    """

    directory: int
    key: int
    section: int
    offset: int
    size: int
    checksum: int
    first: int
    rows: int


def _sorted_pieces(sections: list[_Section], seed: int | None) -> list[_Piece]:
    pieces = []
    for number, section in enumerate(sections):
        ids = section.pieces["first_id"].to_numpy()
        size, checksum, rows = (
            section.pieces[name].to_numpy().astype(np.int64) for name in ("bytes", "checksum", "rows")
        )
        first, offset = np.cumsum(rows) - rows, section.start + np.cumsum(size) - size
        columns = section.numbers_of(first), sort_keys(ids, seed), offset, size, checksum, first, rows
        for directory, key, *rest in zip(*(column.tolist() for column in columns), strict=True):
            pieces.append(_Piece(directory, key, number, *rest))
    return sorted(pieces)


# --- The rows -----------------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Unsorted rows of a target partition, with the directory number of each row."""

    table: pa.Table
    directories: Unsigned


def _merge(
    run: WriteRun, sections: list[_Section], seed: int | None, size: int
) -> Iterator[tuple[pa.Table, Positions]]:
    """Yield the sorted rows of all sections, as pairs of a table and the row ids.

    Each pass reads about ``size`` bytes.
    """
    pieces = _sorted_pieces(sections, seed)
    held = None
    for first, last in pairwise(_pass_bounds(pieces, size)):
        limit = pieces[last] if last < len(pieces) else None
        held = yield from _merge_pass(run, sections, pieces[first:last], limit, seed, held)
        # Without `release_unused`, Arrow would keep the memory of this pass during the next pass.
        pa.default_memory_pool().release_unused()


def _pass_bounds(pieces: list[_Piece], size: int) -> list[int]:
    """Return the index of the first piece of each pass, followed by the number of pieces."""
    bounds, taken = [0], 0
    for number, piece in enumerate(pieces):
        if taken >= size:
            bounds.append(number)
            taken = 0
        taken += piece.size + piece.rows * _ROW_OVERHEAD
    return [*bounds, len(pieces)] if pieces else []


def _merge_pass(
    run: WriteRun,
    sections: list[_Section],
    pieces: list[_Piece],
    limit: _Piece | None,
    seed: int | None,
    held: _Rows | None,
) -> Generator[tuple[pa.Table, Positions], None, _Rows | None]:
    """Yield the rows that sort before the piece ``limit``, in order, and return the remaining rows."""
    table, directories = _read(run.store, sections, pieces, held)
    ids = table[ROW_ID].to_numpy()
    keys = sort_keys(ids, seed)
    order = np.lexsort((keys, directories))
    count = len(order)
    if limit:
        is_before = (directories == limit.directory) & (keys < np.uint64(limit.key))
        count = int(np.count_nonzero(is_before | (directories < limit.directory)))
        del is_before
    del keys
    batches = Batches(table)
    for rows in batches.pieces(order[:count]):
        yield _with_categories(batches.take(rows), run.schema), ids[rows].view(np.int64)
    rest = order[count:]
    return _Rows(compact(batches.take(rest), run.schema), directories[rest]) if len(rest) else None


def _read(store: Store, sections: list[_Section], pieces: list[_Piece], held: _Rows | None) -> _Rows:
    """Return the rows in ``held``, which the previous pass has left, followed by the rows of ``pieces``."""
    batches = held.table.to_batches() if held else []
    directories = [held.directories] if held else []
    runs = _adjacent(pieces)
    missing = [
        ByteRange(section.path, run[0].offset, run[-1].offset + run[-1].size)
        for run in runs
        for section in [sections[run[0].section]]
        if run[0].offset < section.tail_start
    ]
    contents = iter(_read_ranges(store, missing))
    for run in runs:
        section, start = sections[run[0].section], run[0].offset
        if start < section.tail_start:
            content = memoryview(next(contents))
        else:
            content = memoryview(section.tail)[start - section.tail_start :]
        for piece in run:
            data = content[piece.offset - start :][: piece.size]
            if crc32c(data) != piece.checksum:
                raise _damaged(store, section.path)
            batches += pa.ipc.open_stream(data)
            directories.append(section.numbers_of(np.arange(piece.first, piece.first + piece.rows)))
    return _Rows(pa.Table.from_batches(batches).combine_chunks(), np.concatenate(directories))


def _adjacent(pieces: list[_Piece]) -> list[list[_Piece]]:
    """Group the pieces that are adjacent in a spill file, so that one request can read each group."""
    runs: list[list[_Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.section, piece.offset)):
        last = runs[-1][-1] if runs else None
        if last and (last.section, last.offset + last.size) == (piece.section, piece.offset):
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return runs


def _read_ranges(store: Store, ranges: list[ByteRange]) -> list[bytes]:
    """Read byte ranges of spill files. Raise TFRecordError if a file is missing or shorter than a range."""
    try:
        found = store.read_ranges(ranges)
    except FileNotFoundError:
        problem = "a temporary file with shuffled rows was removed during the write"
        advice = "write again, and do not call Dataset.cleanup meanwhile"
        raise TFRecordError(problem, advice, path=store.public()) from None
    for one, content in zip(ranges, found, strict=True):
        if len(content) != one.stop - one.start:
            raise _damaged(store, one.path)
    return found


def _damaged(store: Store, path: str) -> TFRecordError:
    problem = "the shuffled rows in this temporary file are damaged"
    return TFRecordError(problem, "check the disk or the store, then write again", path=store.public(path))


def _with_categories(table: pa.Table, schema: Schema) -> pa.Table:
    """Return a table with the columns of the schema. Convert the columns that `Batches.take` has decoded back
    to dictionary types.
    """
    columns = [
        load(column.combine_chunks(), item.type, item.categories)
        if pa.types.is_dictionary(item.type)
        else column
        for item, column in zip(schema.fields, table.select(schema.names).columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema.arrow)
