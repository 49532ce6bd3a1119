"""Divide files into partitions: split large files, and pack small ones together."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from dask_tfrecord.dataset.partitioning.grouping import comparable
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.splits import BlockIndex, Split, split_file
from dask_tfrecord.files.storage.listing import FileInfo

# At most this many files share a partition, since opening a file takes time, too.
_MOST_FILES = 256


def plan_partitions(
    files: Sequence[FileInfo],
    entries: Sequence[FileEntry | BlockIndex | None] | None = None,
    values: Mapping[str, pa.Array] | None = None,
    *,
    blocksize: int | None,
) -> tuple[tuple[tuple[Split, ...], ...], dict[str, pa.Array]]:
    """Divide files into partitions, in the order of the files.

    Parameters
    ----------
    files : sequence of FileInfo
        The files to read.
    entries : sequence of FileEntry, BlockIndex or None, optional
        What is known of each file. A file that is larger than a partition is split if its blocks are known.
    values : mapping of str to pyarrow.Array, optional
        The partition columns: a value for each file. Only files with the same values share a partition.
    blocksize : int or None
        The maximum number of stored bytes of a partition, if the blocks allow it. None makes a partition of
        each file.

    Returns
    -------
    tuple of tuple of Split
        The splits of each partition. There is at least one partition.
    dict of str to pyarrow.Array
        The partition columns: a value for each partition.
    """
    columns = dict(values or {})
    known = entries if entries is not None else [None] * len(files)
    splits = [split_file(file, entry, blocksize) for file, entry in zip(files, known, strict=True)]
    partitions: list[tuple[Split, ...]] = []
    firsts: list[int] = []
    for first, stop in _packed(files, _changes(columns, len(files)), blocksize):
        found = [split for index in range(first, stop) for split in splits[index]]
        parts = [tuple(found)] if stop - first > 1 else [(split,) for split in found]
        partitions += parts
        firsts += [first] * len(parts)
    taken = pa.array(firsts, pa.int64())
    return tuple(partitions) or ((),), {name: column.take(taken) for name, column in columns.items()}


def _changes(values: Mapping[str, pa.Array], count: int) -> list[bool]:
    """Return, for each file, True if its partition values differ from those of the file before."""
    changes = [False] * count
    for column in values.values():
        codes = comparable(column).dictionary_encode(null_encoding="encode").indices.to_pylist()
        for index in range(1, count):
            changes[index] |= codes[index] != codes[index - 1]
    return changes


def _packed(
    files: Sequence[FileInfo], changes: Sequence[bool], blocksize: int | None
) -> Iterator[tuple[int, int]]:
    """Yield ranges of files that fit a partition, each from its first file up to the file after its last."""
    first = size = 0
    for index, file in enumerate(files):
        more = _weight(file, blocksize) if blocksize is not None else 0
        if index > first and (blocksize is None or changes[index] or size + more > blocksize):
            yield first, index
            first, size = index, 0
        size += more
    if files:
        yield first, len(files)


def _weight(file: FileInfo, blocksize: int) -> int:
    """Return the bytes that a file takes of a partition: all, if its size is unknown."""
    return blocksize if file.size is None else max(file.size, -(-blocksize // _MOST_FILES))
