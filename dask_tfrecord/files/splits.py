"""Splits: ranges of files that hold whole records and can be read on their own."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from dask_tfrecord.files.entry import Block, FileEntry
from dask_tfrecord.files.storage.listing import FileInfo

_FIRST = Block(0, 0, 0)


@dataclass(frozen=True)
class Split:
    """A range of a file that holds whole records and can be read without the bytes before it.

    Attributes
    ----------
    file : FileInfo
        The file.
    start : Block
        The block at which the split begins. The start of the file by default.
    stop : Block, optional
        The block at which the next split begins. None if the split extends to the end of the file.
    records : int, optional
        Number of records in the split. None if it is unknown.
    """

    file: FileInfo
    start: Block = _FIRST
    stop: Block | None = None
    records: int | None = None


@dataclass(frozen=True)
class BlockIndex:
    """The blocks of a file that no snapshot describes, found by scanning it.

    Attributes
    ----------
    records : int, optional
        Number of records, without those lost to damage. None if they were not counted.
    blocks : tuple of Block
        The blocks. The first one begins at the start of the file.
    damaged : tuple of int
        Offsets in the file of damaged lengths.
    """

    records: int | None
    blocks: tuple[Block, ...]
    damaged: tuple[int, ...] = ()


def split_file(
    file: FileInfo, known: FileEntry | BlockIndex | None, blocksize: int | None
) -> tuple[Split, ...]:
    """Split a file into ranges of about equal size, of at most ``blocksize`` bytes if its blocks allow it."""
    if known is None:
        return (Split(file),)
    return split_at_blocks(file, known, _cuts(file.size or 0, known.blocks, blocksize))


def split_at_blocks(
    file: FileInfo, known: FileEntry | BlockIndex, cuts: Sequence[Block]
) -> tuple[Split, ...]:
    """Split a file at some of its blocks. The first block must not be among them."""
    starts = [_FIRST, *cuts]
    ends = [*(cut.record for cut in cuts), known.records or 0]
    records: list[int | None] = [end - start.record for start, end in zip(starts, ends, strict=True)]
    if known.records is None:
        records = [None] * len(starts)
    elif isinstance(known, BlockIndex):
        for offset in known.damaged:  # the number of undamaged records in this split is unknown
            records[bisect_right(starts, offset, key=lambda start: start.offset) - 1] = None
    ranges = zip(starts, [*cuts, None], records, strict=True)
    return tuple(Split(file, start, stop, count) for start, stop, count in ranges)


def _cuts(size: int, blocks: Sequence[Block], blocksize: int | None) -> list[Block]:
    """Return the blocks at which to split a file, without its first block."""
    if blocksize is None or size <= blocksize:
        return []
    parts = -(-size // blocksize)
    offsets = [block.offset for block in blocks[1:]]
    found = [bisect_left(offsets, size * part // parts) + 1 for part in range(1, parts)]
    return [blocks[at] for at in dict.fromkeys(found) if at < len(blocks)]
