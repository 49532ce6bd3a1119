"""Stretches of files that are read by themselves, and which of them each partition reads."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dask_tfrecord.dataset.partitioning.grouping import comparable
from dask_tfrecord.files.entry import Block, FileEntry
from dask_tfrecord.files.storage.listing import FileInfo

_FIRST = Block(0, 0, 0)

# Opening a file takes time, too: the most files that share a partition.
_MOST_FILES = 256


@dataclass(frozen=True)
class Split:
    """A stretch of a file that holds whole records and can be read without what is before it.

    Attributes
    ----------
    file : FileInfo
        The file.
    start : Block
        Where it begins.
    stop : Block, optional
        Where the next one begins; None if it goes on to the end of the file.
    records : int, optional
        How many records it holds, if that is known.
    """

    file: FileInfo
    start: Block = _FIRST
    stop: Block | None = None
    records: int | None = None


@dataclass(frozen=True)
class Located:
    """What was found out of a file about which nothing is written down.

    Attributes
    ----------
    records : int, optional
        How many there are; what damage has taken does not count. None if nobody counted.
    blocks : tuple of Block
        Where some of them begin, the first of them the file's start.
    damaged : tuple of int
        Where a length was met that is damaged.
    """

    records: int | None
    blocks: tuple[Block, ...]
    damaged: tuple[int, ...] = ()


def plan_pieces(
    files: Sequence[FileInfo],
    entries: Sequence[FileEntry | Located | None] | None = None,
    values: Mapping[str, pa.Array] | None = None,
    *,
    blocksize: int | None,
) -> tuple[tuple[tuple[Split, ...], ...], dict[str, pa.Array]]:
    """The splits of each partition, in the order of the files, and what its partition columns hold.

    Parameters
    ----------
    files : sequence of FileInfo
        What is read.
    entries : sequence of FileEntry, Located or None, optional
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
    pieces: list[tuple[Split, ...]] = []
    firsts: list[int] = []
    for first, stop in _packed(files, _changes(columns, len(files)), blocksize):
        found = [split for index in range(first, stop) for split in splits[index]]
        parts = [tuple(found)] if stop - first > 1 else [(split,) for split in found]
        pieces += parts
        firsts += [first] * len(parts)
    taken = pa.array(firsts, pa.int64())
    return tuple(pieces) or ((),), {name: column.take(taken) for name, column in columns.items()}


def split_file(file: FileInfo, known: FileEntry | Located | None, blocksize: int | None) -> tuple[Split, ...]:
    """Stretches of about equal size, none of them much larger than a partition if the blocks allow it."""
    if known is None:
        return (Split(file),)
    return split_at_blocks(file, known, _cuts(file.size or 0, known.blocks, blocksize))


def split_at_blocks(file: FileInfo, known: FileEntry | Located, cuts: Sequence[Block]) -> tuple[Split, ...]:
    """The stretches between some of a file's blocks, other than the first."""
    starts = [_FIRST, *cuts]
    ends = [*(cut.record for cut in cuts), known.records or 0]
    records: list[int | None] = [end - start.record for start, end in zip(starts, ends, strict=True)]
    if known.records is None:
        records = [None] * len(starts)
    elif isinstance(known, Located):
        for place in known.damaged:  # how many of the records are whole is not known there
            records[bisect_right(starts, place, key=lambda start: start.offset) - 1] = None
    stretches = zip(starts, [*cuts, None], records, strict=True)
    return tuple(Split(file, start, stop, count) for start, stop, count in stretches)


def _cuts(size: int, blocks: Sequence[Block], blocksize: int | None) -> list[Block]:
    """The blocks at which a file is cut; the first cannot be one of them."""
    if blocksize is None or size <= blocksize:
        return []
    parts = -(-size // blocksize)
    offsets = [block.offset for block in blocks[1:]]
    found = [bisect_left(offsets, size * part // parts) + 1 for part in range(1, parts)]
    return [blocks[at] for at in dict.fromkeys(found) if at < len(blocks)]


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
