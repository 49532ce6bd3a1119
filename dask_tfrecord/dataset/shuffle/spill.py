"""Move rows between partitions through spill files before a write. This module does not need Dask.

Each source partition writes its rows to a spill file in the staging directory of the write. The file has one
section for each target partition: an index, and the rows for this partition in their final order. The task of
a target partition merges its sections from all spill files (`dask_tfrecord.dataset.shuffle.merge`).

If that would need too many sections, the rows move in two rounds (`Route`). In the first one, each spill file
has a section for each group of target partitions. In the second one, tasks read the sections of a group from
some of the spill files, and write spill files with a section for each target partition of the group. Both
ways write the same rows to a target partition in the same order, because the target partition and the sort
key of a row depend only on its id and its partition values.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from math import ceil, isqrt
from typing import Any, BinaryIO, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_tfrecord.codec import crc32c
from dask_tfrecord.dataset import partitioning
from dask_tfrecord.dataset.names import SPILLS, staged
from dask_tfrecord.dataset.partitioning import BYTES, group, sorted_rows, sorting
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.schema.fields import Schema

# Rows are shuffled in one round if the round needs at most this many sections. Writing and reading one
# section takes as much CPU time as moving about 50 KB of rows through a second round.
_MOST_SECTIONS = 1 << 18


class Shuffle(NamedTuple):
    """Determine how rows move between partitions before a write.

    Rows with equal values in the columns ``together`` move to the same partition. If ``together`` is empty,
    the sort keys determine the target partitions of the rows. If ``seed`` is None, the rows keep the order of
    the collection. ``npartitions`` is the number of target partitions.
    """

    together: tuple[str, ...]
    seed: int | None
    npartitions: int


class Route(NamedTuple):
    """The route of rows from source partitions to target partitions, in one round or in two rounds.

    In one round, there is one group of all target partitions, and every source partition spills rows for each
    target partition. In two rounds, every source partition spills rows for each group of ``width`` target
    partitions. The rows for ``target`` are in section ``target % width`` of group ``target // width``. For
    each group, the second round has ``chunks`` tasks. Each task of the second round reads the sections of
    ``chunk`` source partitions.
    """

    groups: int
    width: int
    chunk: int
    chunks: int

    @classmethod
    def plan(cls, sources: int, targets: int) -> "Route":
        """Choose the number of rounds and the size of the groups.

        Two rounds need at most about (sources + targets) x sqrt(targets) sections. A task of the second round
        keeps about as many rows in memory as a source or target partition has, whichever is larger.
        """
        groups = 1 if sources * targets <= _MOST_SECTIONS else isqrt(targets)
        width = ceil(targets / groups)
        groups = ceil(targets / width)
        chunk = ceil(sources / max(1, min(sources, targets) // groups)) if groups > 1 else sources
        return cls(groups, width, chunk, ceil(sources / chunk))


Numbers = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]
Unsigned = npt.NDArray[np.unsignedinteger[Any]]

# The name of the row id column in spill files. No other column has an empty name.
ROW_ID = ""

# The name of the row count column in a section's index. No partition column has an empty name.
ROWS = ""

# The id of a row is (index of the source partition << _ROW_BITS) + index of the row in the source partition.
_ROW_BITS = 40

# One step reorders at most _PIECE_ROWS rows and at most _PIECE_BYTES bytes. The limits on rows and bytes keep
# the copies of the reordered rows small.
_PIECE_ROWS = 1 << 16
_PIECE_BYTES = 1 << 24

# The minimum result of `pass_bytes`.
_LEAST_PASS_BYTES = 1 << 25

# Pieces (Arrow IPC streams) have a target size of at least this many bytes.
_LEAST_PIECE_BYTES = 1 << 14

# Passing explicit options keeps Arrow from looking up the default options for each stream.
_IPC_OPTIONS = pa.ipc.IpcWriteOptions()


class Spill(NamedTuple):
    """A spill file with rows of one source partition, or of one group of target partitions.

    Each section of the file contains the rows for one target partition. In the first of two rounds, each
    section contains the unsorted rows for one group. A section consists of Arrow IPC streams, which are
    called *pieces*, followed by its index. A section without rows has no bytes. ``path`` is relative to the
    root of the dataset. ``starts`` contains the byte offset of each section, followed by the size of the
    file. ``indexes`` contains the byte offset of each section's index, and ``checksums`` the CRC-32C of each
    index.
    """

    path: str
    starts: Positions
    indexes: Positions
    checksums: Positions

    @property
    def bytes(self) -> int:
        return int(self.starts[-1])


def spill(run: WriteRun, table: pa.Table, index: int, shuffle: Shuffle, route: Route) -> Spill:
    """Write the spill file of source partition ``index``, unless an earlier call has written it.

    If a worker is lost, the partition may be computed again with different rows or in a different order. Only
    the spill file of the first call is used, so all target partitions read the same rows.
    """
    receipt = run.store.join(staged(run.run, f"{SPILLS}/{index:05d}.json"))
    with suppress(FileNotFoundError):
        return _read_receipt(run, receipt)
    written = _write_source(run, table, index, shuffle, route)
    try:
        path, *numbers = written
        described = json.dumps([path, *(array.tolist() for array in numbers)])
        run.store.create_exclusively(receipt, described.encode())
    except FileExistsError:
        run.store.remove([run.store.join(written.path)])
        return _read_receipt(run, receipt)
    return written


def _write_source(run: WriteRun, table: pa.Table, index: int, shuffle: Shuffle, route: Route) -> Spill:
    table = _with_row_ids(table, index)
    if route.groups == 1:
        return write_group(run, table, 0, route.chunk, shuffle, route, name=f"{index:05d}")
    groups = _targets(Directories.of(table, run.partition_on), table, shuffle) // route.width
    return _write_groups(run, table, index, groups, route.groups)


def spill_unsorted(run: WriteRun, table: pa.Table, index: int) -> Spill:
    """Write a spill file with the unsorted rows of source partition ``index``, as input of the second of two
    rounds.

    The file has one section, in which the rows keep their order. The call does not need the number of target
    partitions.
    """
    groups = np.zeros(table.num_rows, np.int64)
    return _write_groups(run, _with_row_ids(table, index), index, groups, 1)


def _write_groups(run: WriteRun, table: pa.Table, index: int, groups: Positions, count: int) -> Spill:
    """Write a spill file with a section for each group. ``groups`` contains the group index of each row."""
    rows = _sort(table, Directories.of(table, ()), groups, count, None)
    # Write all columns, because the second round also needs the partition columns.
    return _write_spill(run, f"{index:05d}", rows, run.columns, 1)


def _with_row_ids(table: pa.Table, index: int) -> pa.Table:
    ids = np.arange(table.num_rows, dtype=np.uint64) + np.uint64(index << _ROW_BITS)
    return table.add_column(0, ROW_ID, pa.array(ids))


def write_group(
    run: WriteRun, table: pa.Table, group: int, count: int, shuffle: Shuffle, route: Route, name: str = ""
) -> Spill:
    """Write rows of a group to a spill file with a section for each target partition of the group.

    ``table`` must contain the row ids and all columns. ``count`` is the approximate number of spill files
    whose sections the task of a target partition will merge.
    """
    directories = Directories.of(table, run.partition_on)
    targets = _targets(directories, table, shuffle) - group * route.width
    rows = _sort(table, directories, targets, route.width, shuffle.seed)
    return _write_spill(run, name or f"group-{group:05d}", rows, run.schema, count)


def _write_spill(run: WriteRun, name: str, rows: "_SortedRows", schema: Schema, count: int) -> Spill:
    """Write a spill file with the columns of a schema. ``count`` is the approximate number of spill files
    that a reader will merge.
    """
    table, directories, order, bounds, keys = rows
    batches = Batches(table.select([ROW_ID, *schema.names]))
    step = batches.rows_of(max(_LEAST_PIECE_BYTES, pass_bytes(table.nbytes) // (4 * count)))
    path = staged(run.run, f"{SPILLS}/{name}-{uuid4().hex}")
    starts, indexes, checksums = [0], [], []
    with run.store.create(run.store.join(path), durable=False) as file:
        for number, (first, last) in enumerate(pairwise(bounds)):
            size, described = 0, b""
            if first < last:
                size, pieces = _write_pieces(file, schema, batches, order[first:last], step)
                counted = directories.counted(keys[first:last], number)
                described = b"".join([_to_stream(pieces), _to_stream(counted)])
                file.write(described)
            indexes.append(starts[-1] + size)
            starts.append(indexes[-1] + len(described))
            checksums.append(crc32c(described))
    return Spill(path, *map(np.array, (starts, indexes, checksums)))


def pass_bytes(partition_bytes: int) -> int:
    """Return how many bytes one pass of a merge may read, given the size of a source partition."""
    return max(_LEAST_PASS_BYTES, partition_bytes // 2)


def _write_pieces(
    file: BinaryIO, schema: Schema, batches: "Batches", order: Positions, step: int
) -> tuple[int, pa.Table]:
    """Write rows in pieces of at most ``step`` rows. Return the total size of the pieces in bytes, and a
    table that describes them.
    """
    pieces = []
    for rows in batches.pieces(order):
        taken = batches.take(rows)
        ids = taken[ROW_ID].to_numpy()
        for at in range(0, len(rows), step):
            data = _to_stream(compact(taken.slice(at, step), schema))
            file.write(data)
            pieces.append((len(data), crc32c(data), len(ids[at : at + step]), ids[at]))
    columns = [pa.array(column, pa.uint64()) for column in zip(*pieces, strict=True)]
    described = pa.table(columns, names=["bytes", "checksum", "rows", "first_id"])
    return sum(size for size, *_ in pieces), described


class Directories(NamedTuple):
    """The partition directories of a table, sorted by name, and the directory number of each row.

    If there are no partition columns, there is one directory with an empty name. ``values`` contains one row
    for each directory.
    """

    names: list[str]
    values: pa.Table
    of_rows: Unsigned

    @classmethod
    def of(cls, table: pa.Table, partition_on: tuple[str, ...]) -> "Directories":
        if not partition_on or not table.num_rows:
            return cls([""], table.select([]), np.zeros(table.num_rows, np.uint8))
        groups = group(table, partition_on)
        names, firsts, numbers = np.unique(
            np.array(partitioning.directories(groups.values), object), return_index=True, return_inverse=True
        )
        of_rows = np.repeat(numbers.astype(np.min_scalar_type(len(names))), np.diff(groups.starts))
        if groups.order is not None:
            of_rows[groups.order] = of_rows.copy()
        return cls(names.tolist(), groups.values.take(pa.array(firsts)), of_rows)

    def counted(self, keys: Unsigned, section: int) -> pa.Table:
        """Return the partition values and row counts of a section's directories, computed from the keys of
        the rows.
        """
        if not self.values.num_columns:
            return pa.table({ROWS: [len(keys)]})
        found, counts = np.unique(keys, return_counts=True)
        values = self.values.take(pa.array(found.astype(np.int64) - section * len(self.names)))
        return pa.table([*values.columns, pa.array(counts)], names=[*values.column_names, ROWS])


class _SortedRows(NamedTuple):
    """The rows of a table, sorted by section, then by directory, then by sort key.

    ``table`` contains the rows in their original order, and ``order`` the row indices in sorted order.
    ``bounds`` contains the index of the first sorted row of each section, followed by the row count. For each
    sorted row, ``keys`` contains ``section * count + directory``, where ``count`` is the number of
    directories.
    """

    table: pa.Table
    directories: Directories
    order: Positions
    bounds: list[int]
    keys: Unsigned


def _targets(directories: Directories, table: pa.Table, shuffle: Shuffle) -> Positions:
    """Return the index of the target partition of each row."""
    if shuffle.together:
        digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in directories.names]
        targets = (np.frombuffer(b"".join(digests), "<u8") % np.uint64(shuffle.npartitions))[
            directories.of_rows
        ]
    else:
        targets = sort_keys(table[ROW_ID].to_numpy(), shuffle.seed) % np.uint64(shuffle.npartitions)
    return targets.astype(np.int64)


def _sort(
    table: pa.Table, directories: Directories, sections: Positions, count: int, seed: int | None
) -> _SortedRows:
    """Sort rows by section, directory and sort key. The call modifies the array ``sections`` in place."""
    names, _, of_rows = directories
    bounds = np.cumsum(np.bincount(sections, minlength=count))
    sections *= len(names)
    sections += of_rows
    keys = sections.astype(np.min_scalar_type(count * len(names)))
    del sections
    if seed is None:
        order = sorting(keys)
    else:
        order = np.argsort(sort_keys(table[ROW_ID].to_numpy(), seed))
        order = order[sorting(keys[order])]
    return _SortedRows(table, directories, order, [0, *bounds.tolist()], keys[order])


def _read_receipt(run: WriteRun, receipt: str) -> Spill:
    try:
        path, *numbers = json.loads(run.store.read_file(receipt))
        return Spill(path, *map(np.array, numbers))
    except (ValueError, TypeError, RecursionError) as error:
        problem = f"not the description of a spill file ({error})"
        raise TFRecordError(problem, "start the write again", path=run.store.public(receipt)) from None


def source_of(row_id: int) -> tuple[int, int]:
    """Split a row id into the index of the source partition and that of the row in it."""
    return divmod(row_id, 1 << _ROW_BITS)


class Batches:
    """The record batches of a table. The methods return rows by position, in pieces of limited size."""

    def __init__(self, table: pa.Table) -> None:
        self._batches = table.to_batches()
        self._bounds = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        self._row_bytes = table.nbytes / max(1, table.num_rows)
        self._step = self.rows_of(_PIECE_BYTES)

    def rows_of(self, size: int) -> int:
        """Return the number of rows that take about ``size`` bytes, but at least 1 and at most 65,536."""
        return max(1, min(_PIECE_ROWS, int(size / max(1.0, self._row_bytes))))

    def pieces(self, rows: Positions) -> Iterator[Positions]:
        """Split an array of row positions into pieces that are small enough for `take` to copy cheaply."""
        return (rows[at : at + self._step] for at in range(0, len(rows), self._step))

    def take(self, rows: Positions) -> pa.Table:
        """Return the rows at the given positions, in the given order, with values instead of category codes.

        Arrow's ``take`` would first concatenate all batches, which fails for more than 2 GiB of text.
        """
        numbers = np.searchsorted(self._bounds, rows, side="right") - 1
        order = sorting(numbers)
        by_batch = rows[order]
        bounds = np.searchsorted(numbers[order], range(len(self._batches) + 1))
        taken = [
            _decode_categories(sorted_rows(pa.Table.from_batches([batch]), by_batch[start:stop] - first))
            for batch, first, start, stop in zip(
                self._batches, self._bounds, bounds, bounds[1:], strict=False
            )
            if start < stop
        ]
        if len(taken) == 1:
            return taken[0]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return sorted_rows(pa.concat_tables(taken).combine_chunks(), back)


def _to_stream(table: pa.Table) -> pa.Buffer:
    """Serialize a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_IPC_OPTIONS) as writer:
        writer.write_table(table)
    return sink.getvalue()


def compact(table: pa.Table, schema: Schema) -> pa.Table:
    """Dictionary-encode the string and binary categories that `Batches.take` has decoded, so that each value
    is stored only once.

    ``table`` must contain the column of row ids and the columns that `Batches.take` returned.
    """
    columns = [table[ROW_ID]]
    for item in schema.fields:
        column = table[item.name]
        is_category_of_text = pa.types.is_dictionary(item.type) and item.type.value_type in BYTES
        columns.append(column.combine_chunks().dictionary_encode() if is_category_of_text else column)
    return pa.table(columns, names=[ROW_ID, *schema.names])


def _decode_categories(table: pa.Table) -> pa.Table:
    """Replace category codes with values, because a code may differ between batches."""
    columns = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)


def sort_keys(row_ids: Numbers, seed: int | None) -> Numbers:
    """Return the sort keys of rows: distinct pseudo-random numbers, or the row ids if ``seed`` is None."""
    if seed is None:
        return row_ids
    # Do not use the seed itself as the key: SplitMix64 maps 0 to 0, so the seed 0 would always put the first
    # row first.
    key = np.random.SeedSequence(seed & (1 << 64) - 1).generate_state(1, np.uint64)
    mixed = np.empty_like(row_ids)
    for at in range(0, len(row_ids), _PIECE_ROWS):
        mixed[at : at + _PIECE_ROWS] = _split_mix(row_ids[at : at + _PIECE_ROWS] ^ key)
    return mixed


def _split_mix(numbers: Numbers) -> Numbers:
    """Apply the finalizer of SplitMix64, which maps different numbers to different numbers."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
