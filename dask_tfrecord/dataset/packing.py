"""Which splits each partition reads: large files are split, small neighbours share a partition."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from dask_tfrecord.dataset.partitioning.grouping import comparable
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.splits import BlockIndex, Split, split_file
from dask_tfrecord.files.storage.listing import FileInfo

# Opening a file takes time, too: the most files that share a partition.
_MOST_FILES = 256


def plan_partitions(
    files: Sequence[FileInfo],
    entries: Sequence[FileEntry | BlockIndex | None] | None = None,
    values: Mapping[str, pa.Array] | None = None,
    *,
    blocksize: int | None,
) -> tuple[tuple[tuple[Split, ...], ...], dict[str, pa.Array]]:
    """The splits of each partition, in the order of the files, and what its partition columns hold.

    Parameters
    ----------
    files : sequence of FileInfo
        What is read.
    entries : sequence of FileEntry, BlockIndex or None, optional
        What is known of each of them. Files with blocks are split where they are larger than a partition.
    values : mapping of str to pyarrow.Array, optional
        The partition columns: a value for each file. Neighbours with the same values may share a partition.
    blocksize : int or None
        Stored bytes that a partition should have at most; None for a file each.

    Returns
    -------
    tuple
        The splits of each partition, of which there is at least one, and for each partition its values.
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
    """For each file whether its partition values differ from those of the one before."""
    changes = [False] * count
    for column in values.values():
        codes = comparable(column).dictionary_encode(null_encoding="encode").indices.to_pylist()
        for index in range(1, count):
            changes[index] |= codes[index] != codes[index - 1]
    return changes


def _packed(
    files: Sequence[FileInfo], changes: Sequence[bool], blocksize: int | None
) -> Iterator[tuple[int, int]]:
    """Runs of files, from the first up to the one that begins the next, that together fit a partition."""
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
    """How much of a partition a file takes up; all of it if nobody knows."""
    return blocksize if file.size is None else max(file.size, -(-blocksize // _MOST_FILES))
