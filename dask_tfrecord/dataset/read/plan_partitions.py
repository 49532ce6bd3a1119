"""Divide files into partitions: split large files, and read small files together."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.partitioning.grouping import comparable
from dask_tfrecord.files.entry import Block
from dask_tfrecord.files.splits import BLOCK_TYPE, BlockIndex, Partitions, cut
from dask_tfrecord.files.storage.listing import with_column

# The largest number of files in a partition. The number is limited because opening each file takes time.
_MOST_FILES = 256


def plan_partitions(
    files: pa.Table,
    blocks: Mapping[int, BlockIndex] | None = None,
    values: Mapping[str, pa.Array] | None = None,
    *,
    blocksize: int | None,
) -> tuple[Partitions, dict[str, pa.Array]]:
    """Divide files into partitions, in the order of the files.

    Parameters
    ----------
    files : pyarrow.Table
        The list of the files. The optional column ``records`` is the number of records of each file, or null
        if the number is unknown. The values of all other columns are repeated for each split of a file.
    blocks : mapping of int to BlockIndex, optional
        Map from the number of a file to its known blocks. A file that is larger than a partition is split
        only if its blocks are known.
    values : mapping of str to pyarrow.Array, optional
        Map from the name of each partition column to its value in each file. Only files with the same
        partition values share a partition.
    blocksize : int or None
        The largest number of stored bytes of a partition. A partition may be larger if its file cannot be
        split. If None, each file becomes one partition.

    Returns
    -------
    Partitions
        The splits of each partition. There is at least one partition.
    dict of str to pyarrow.Array
        Map from the name of each partition column to its value in each partition.
    """
    columns = dict(values or {})
    if "records" not in files.column_names:
        files = files.append_column("records", pa.nulls(len(files), pa.int64()))
    rows, file_of, starts = files, np.arange(len(files)), _packed(files, columns, blocksize)
    ranges = {}
    if blocks and blocksize is not None:
        sizes = pc.fill_null(files["size"], 0).take(pa.array([*blocks])).to_pylist()
        ranges = {at: cut(size, blocks[at], blocksize) for at, size in zip(blocks, sizes, strict=True)}
        ranges = {at: of_file for at, of_file in ranges.items() if len(of_file) > 1}
    if ranges:  # a file that is split shares no partition with other files
        counts = np.ones(len(files), np.int64)
        counts[[*ranges]] = [len(of_file) for of_file in ranges.values()]
        firsts, file_of = np.cumsum(counts) - counts, np.repeat(file_of, counts)
        is_start = np.isin(file_of, [*ranges])
        is_start[firsts[starts]] = True
        starts = np.flatnonzero(is_start)
        rows = _with_ranges(
            files.take(pa.array(file_of)),
            {row: one for at, of_file in ranges.items() for row, one in enumerate(of_file, firsts[at])},
        )
    taken = pa.array(file_of[starts], pa.int64())
    partitions = Partitions(rows, np.append(starts, [len(rows)] if len(rows) else [0, 0]).astype(np.int64))
    return partitions, {name: column.take(taken) for name, column in columns.items()}


def _with_ranges(rows: pa.Table, ranges: Mapping[int, tuple[Block, Block | None, int | None]]) -> pa.Table:
    """Add the columns ``start`` and ``stop`` to rows of `Partitions`, given the ranges of some rows."""
    records = rows["records"].to_pylist()
    starts: list[Block | None] = [None] * len(rows)
    stops = list(starts)
    for row, (start, stop, count) in ranges.items():
        starts[row], stops[row], records[row] = start, stop, count
    rows = with_column(rows, "records", pa.array(records, pa.int64()))
    for name, blocks in (("start", starts), ("stop", stops)):
        rows = rows.append_column(name, pa.array(blocks, BLOCK_TYPE))
    return rows


def _packed(files: pa.Table, values: Mapping[str, pa.Array], blocksize: int | None) -> npt.NDArray[np.int64]:
    """Return the number of the first file of each partition, before large files are split."""
    if blocksize is None:
        return np.arange(len(files))
    # Marks files whose partition values differ from those of the file before.
    is_other = np.zeros(len(files), bool)
    for column in values.values():
        codes = comparable(column).dictionary_encode(null_encoding="encode").indices.to_numpy()
        is_other[1:] |= codes[1:] != codes[:-1]
    # The number of bytes of `blocksize` that each file uses. A file of unknown size uses all bytes of a
    # partition.
    weights = np.maximum(pc.fill_null(files["size"], blocksize).to_numpy(), -(-blocksize // _MOST_FILES))
    starts, size = [], 0
    for number, (weight, is_first) in enumerate(zip(weights.tolist(), is_other.tolist(), strict=True)):
        if not number or is_first or size + weight > blocksize:
            starts.append(number)
            size = 0
        size += weight
    return np.array(starts, np.int64)
