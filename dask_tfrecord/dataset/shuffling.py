"""Move rows to other partitions before they are written. Knows Arrow and the store, no Dask.

Every source partition becomes a spill file in the staging directory of the write. A spill file holds Arrow
IPC streams: for each target partition, the rows that go there. A target partition reads its rows from all
spill files. A task therefore holds one partition, however large the data is.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_tfrecord.codec import _kernel
from dask_tfrecord.dataset.partitioning import hive
from dask_tfrecord.dataset.partitioning.grouping import (
    BYTES,
    directory_groups,
    group,
    group_by_directory,
    sorted_rows,
    sorting,
)
from dask_tfrecord.dataset.snapshot.names import staged
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.writing import DirectoryGroup, GroupedRows
from dask_tfrecord.schema.model import Schema
from dask_tfrecord.schema.storage_values import load

Numbers = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]

# The name of the column of row ids in spill files. No other column has an empty name.
_ROW_ID = ""

# The id of a row is the number of its source partition, shifted by this, plus its number in that partition.
_ROW_BITS = 40

# The most rows and bytes that are reordered at a time. It bounds the size of copies.
_PIECE_ROWS = 1 << 16
_PIECE_BYTES = 1 << 24

# Tables up to this size are combined to one Arrow array per column: taking rows from it is fastest.
_COMBINED_BYTES = 1 << 30


class Shuffle(NamedTuple):
    """How rows move between partitions before they are written.

    Attributes
    ----------
    together : tuple of str
        Columns. Rows with equal values in them move to the same partition. Empty spreads rows at random.
    seed : int, optional
        Seed of the order of the rows. None keeps the order of the collection.
    npartitions : int
        How many target partitions there are.
    """

    together: tuple[str, ...]
    seed: int | None
    npartitions: int


class Spill(NamedTuple):
    """The rows of one source partition, in a file.

    Attributes
    ----------
    path : str
        The file, below the dataset's root.
    starts : numpy.ndarray
        The first byte of the rows of each target partition, and the end of the file.
    checksums : numpy.ndarray
        CRC-32C of the bytes of each target partition.
    """

    path: str
    starts: Positions
    checksums: Positions


def spill(run: WriteRun, table: pa.Table, index: int, shuffle: Shuffle) -> Spill:
    """Write the spill file of source partition ``index``, unless an earlier call has written it.

    Only the first of several calls counts. If a worker is lost and the partition is computed again, it may
    have other rows, or another order of rows. All target partitions still read the same rows.
    """
    receipt = run.store.join(staged(run.run, f"rows/{index:05d}.json"))
    with suppress(FileNotFoundError):
        return _from_json(run.store.fs.cat_file(receipt))
    written = _write_spill(run, table, index, shuffle)
    try:
        run.store.create_exclusively(receipt, _to_json(written))
    except FileExistsError:
        run.store.remove([run.store.join(written.path)])
        return _from_json(run.store.fs.cat_file(receipt))
    return written


def _write_spill(run: WriteRun, table: pa.Table, index: int, shuffle: Shuffle) -> Spill:
    """Write a spill file under a unique name."""
    targets = _targets(table, index, shuffle)
    bounds = np.cumsum(np.bincount(targets, minlength=shuffle.npartitions))
    order = sorting(targets)
    del targets
    batches = _Batches(table)
    path = staged(run.run, f"rows/{index:05d}-{uuid4().hex}")
    starts, checksums = [0], []
    with run.store.create(run.store.join(path), durable=False) as file:
        for first, last in pairwise([0, *bounds.tolist()]):
            size = checksum = 0
            for rows in batches.pieces(order[first:last]):
                data = _to_ipc(_row_ids(index, rows), batches.take(rows), run.columns)
                file.write(data)
                size, checksum = size + len(data), _kernel.crc32c(data, checksum)
            starts.append(starts[-1] + size)
            checksums.append(checksum)
    return Spill(path, np.array(starts), np.array(checksums))


def _to_json(spill: Spill) -> bytes:
    """The content of the file that describes a spill file."""
    numbers = {"starts": spill.starts.tolist(), "checksums": spill.checksums.tolist()}
    return json.dumps({"path": spill.path, **numbers}).encode()


def _from_json(receipt: bytes) -> Spill:
    fields = json.loads(receipt)
    return Spill(fields["path"], np.array(fields["starts"]), np.array(fields["checksums"]))


def write_target(
    run: WriteRun, spills: Sequence[Spill], index: int, shuffle: Shuffle
) -> tuple[FileEntry, ...]:
    """Write the files of target partition ``index``.

    Raises
    ------
    TFRecordError
        If a spill file is missing or damaged, or if a value cannot be stored. The ``record`` of the latter
        error is a row id; `source_of` splits it.
    """
    return run.write_grouped(_collect(run, spills, index, shuffle), index, shuffle.npartitions)


def source_of(row_id: int) -> tuple[int, int]:
    """Split a row id: return the number of the source partition, and of the row in that partition."""
    return divmod(row_id, 1 << _ROW_BITS)


class _Batches:
    """Takes rows of a table by position, in pieces of bounded size."""

    def __init__(self, table: pa.Table) -> None:
        self._batches = table.to_batches()
        self._bounds = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        self._step = min(_PIECE_ROWS, max(1, table.num_rows * _PIECE_BYTES // max(1, table.nbytes)))

    def pieces(self, rows: Positions) -> Iterator[Positions]:
        """Cut positions into pieces that `take` can copy cheaply."""
        return (rows[at : at + self._step] for at in range(0, len(rows), self._step))

    def take(self, rows: Positions) -> pa.Table:
        """Return the rows at these positions, in this order. Categories become their values.

        Arrow's own ``take`` concatenates all batches first, which fails beyond 2 GiB of text.
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


def _collect(run: WriteRun, spills: Sequence[Spill], index: int, shuffle: Shuffle) -> GroupedRows:
    """Read the rows of a target partition, and sort them for writing."""
    received = list(_read(run.store, spills, index))
    if not received:
        return group_by_directory(
            run.columns.arrow.empty_table(), run.partition_on, max_directories=run.max_directories
        )
    table = pa.Table.from_batches(received)
    del received
    if table.nbytes < _COMBINED_BYTES:
        table = table.combine_chunks()
    row_ids = table[_ROW_ID].to_numpy()
    order = np.argsort(_sort_keys(row_ids, shuffle.seed))
    groups = [DirectoryGroup("", (), len(order))]
    if run.partition_on:
        groups, order = _by_directory(run, _Batches(table.select(run.partition_on)), order)
    batches = _Batches(table.select(run.schema.names))
    pieces = [_encode_categories(batches.take(rows), run.schema) for rows in batches.pieces(order)]
    return GroupedRows(pa.concat_tables(pieces), groups, row_ids[order].view(np.int64))


def _by_directory(run: WriteRun, keys: _Batches, order: Positions) -> tuple[list[DirectoryGroup], Positions]:
    """Group the rows by partition directory; returns the groups, and the order sorted by directory."""
    ordered = pa.concat_tables([keys.take(rows) for rows in keys.pieces(order)])
    by_key = group(ordered, run.partition_on)
    groups = directory_groups(by_key, run.partition_on, max_directories=run.max_directories)
    return groups, order if by_key.order is None else order[by_key.order]


def _read(store: Store, spills: Sequence[Spill], index: int) -> Iterator[pa.RecordBatch]:
    """Read the rows for target partition ``index``; the first column is the row id."""
    bounds = [(spill, int(spill.starts[index]), int(spill.starts[index + 1])) for spill in spills]
    filled = [(spill, start, stop) for spill, start, stop in bounds if start < stop]
    try:
        ranges = store.read_ranges([(store.join(spill.path), start, stop) for spill, start, stop in filled])
    except FileNotFoundError:
        raise TFRecordError(
            "a temporary file with shuffled rows was removed during the write",
            advice="write again, and do not run dask_tfrecord.cleanup with a short older_than= meanwhile",
        ) from None
    for (spill, start, stop), data in zip(filled, ranges, strict=True):
        if len(data) != stop - start or _kernel.crc32c(data) != spill.checksums[index]:
            raise TFRecordError(
                "the shuffled rows in this temporary file are damaged",
                path=store.public(store.join(spill.path)),
                advice="check the disk or the store, then write again",
            )
        reader = pa.BufferReader(data)
        while reader.tell() < len(data):
            yield from pa.ipc.open_stream(reader)


def _to_ipc(row_ids: Numbers, table: pa.Table, schema: Schema) -> memoryview:
    """Serialize rows and their ids as an Arrow IPC stream; the values of a category are stored once."""
    columns = [
        column.combine_chunks().dictionary_encode() if _is_category_of_text(item.type) else column
        for item, column in zip(schema.fields, table.columns, strict=True)
    ]
    rows = pa.table([pa.array(row_ids), *columns], names=[_ROW_ID, *table.column_names])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return memoryview(sink.getvalue())


def _is_category_of_text(type_: pa.DataType) -> bool:
    return pa.types.is_dictionary(type_) and type_.value_type in BYTES


def _decode_categories(table: pa.Table) -> pa.Table:
    """Replace categories by their values, because the codes of batches may differ."""
    columns = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)


def _encode_categories(table: pa.Table, schema: Schema) -> pa.Table:
    """Undo `_decode_categories`."""
    columns = [
        load(column.combine_chunks(), item.type, item.categories)
        if pa.types.is_dictionary(item.type)
        else column
        for item, column in zip(schema.fields, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema.arrow)


def _row_ids(index: int, rows: Positions) -> Numbers:
    """The ids of rows of source partition ``index``."""
    return rows.astype(np.uint64) + np.uint64(index << _ROW_BITS)


def _targets(table: pa.Table, index: int, shuffle: Shuffle) -> npt.NDArray[np.uint32]:
    """The target partition of each row."""
    count = np.uint64(shuffle.npartitions)
    if not shuffle.together or not table.num_rows:
        row_ids = _row_ids(index, np.arange(table.num_rows))
        return (_sort_keys(row_ids, shuffle.seed) % count).astype(np.uint32)
    keys, order, starts = group(table, shuffle.together)
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in hive.directories(keys)]
    of_keys = (np.frombuffer(b"".join(digests), "<u8") % count).astype(np.uint32)
    of_rows = np.repeat(of_keys, np.diff(starts))
    if order is None:
        return of_rows
    targets = np.empty_like(of_rows)
    targets[order] = of_rows
    return targets


def _sort_keys(row_ids: Numbers, seed: int | None) -> Numbers:
    """Keys that sort the rows: distinct pseudo-random numbers, or without a seed the row ids themselves."""
    if seed is None:
        return row_ids
    key = _split_mix(np.array([seed & (1 << 64) - 1], np.uint64))
    mixed = np.empty_like(row_ids)
    for at in range(0, len(row_ids), _PIECE_ROWS):
        mixed[at : at + _PIECE_ROWS] = _split_mix(row_ids[at : at + _PIECE_ROWS] ^ key)
    return mixed


def _split_mix(numbers: Numbers) -> Numbers:
    """The finalizer of SplitMix64, which maps different numbers to different numbers."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
