"""Stretches of files that are read by themselves, and which of them each partition reads."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dask_tfrecord.codec.compression import SUFFIXES
from dask_tfrecord.dataset.entries import Block, FileEntry
from dask_tfrecord.dataset.listing import FileInfo

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


def plan_pieces(
    files: Sequence[FileInfo],
    entries: Sequence[FileEntry] | None = None,
    values: Mapping[str, pa.Array] | None = None,
    *,
    blocksize: int | None,
) -> tuple[tuple[tuple[Split, ...], ...], dict[str, pa.Array]]:
    """The splits of each partition, in the order of the files, and what its partition columns hold.

    Parameters
    ----------
    files : sequence of FileInfo
        What is read.
    entries : sequence of FileEntry, optional
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
    known: Sequence[FileEntry | None] = entries if entries is not None else [None] * len(files)
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


def split_file(file: FileInfo, entry: FileEntry | None, blocksize: int | None) -> tuple[Split, ...]:
    """Stretches of about equal size, none of them much larger than a partition if the blocks allow it."""
    if entry is None:
        return (Split(file),)
    cuts = _cuts(file, entry, blocksize)
    starts = [_FIRST, *cuts]
    ends = [*(cut.record for cut in cuts), entry.records]
    return tuple(
        Split(file, start, stop, end - start.record)
        for start, stop, end in zip(starts, [*cuts, None], ends, strict=True)
    )


def _cuts(file: FileInfo, entry: FileEntry, blocksize: int | None) -> list[Block]:
    """The blocks at which a file is cut."""
    if blocksize is None or entry.bytes <= blocksize:
        return []
    # A block at the same place in the file and in its content says nothing of whether it is compressed.
    compressed = f".{file.path.rpartition('.')[2]}" in SUFFIXES.values()
    blocks = [block for block in entry.blocks[1:] if not (compressed and block.offset == block.content)]
    offsets = [block.offset for block in blocks]
    parts = -(-entry.bytes // blocksize)
    found = [bisect_left(offsets, entry.bytes * part // parts) for part in range(1, parts)]
    return [blocks[at] for at in dict.fromkeys(found) if at < len(blocks)]


def _changes(values: Mapping[str, pa.Array], count: int) -> list[bool]:
    """For each file whether its partition values differ from those of the one before."""
    changes = [False] * count
    for column in values.values():
        codes = column.dictionary_encode(null_encoding="encode").indices.to_pylist()
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
