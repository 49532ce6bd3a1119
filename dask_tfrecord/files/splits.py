"""Stretches of files that are read by themselves, and which of them each partition reads."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from dask_tfrecord.files.entry import Block, FileEntry
from dask_tfrecord.files.storage.listing import FileInfo

_FIRST = Block(0, 0, 0)


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
class BlockIndex:
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


def split_file(
    file: FileInfo, known: FileEntry | BlockIndex | None, blocksize: int | None
) -> tuple[Split, ...]:
    """Stretches of about equal size, none of them much larger than a partition if the blocks allow it."""
    if known is None:
        return (Split(file),)
    return split_at_blocks(file, known, _cuts(file.size or 0, known.blocks, blocksize))


def split_at_blocks(
    file: FileInfo, known: FileEntry | BlockIndex, cuts: Sequence[Block]
) -> tuple[Split, ...]:
    """The stretches between some of a file's blocks, other than the first."""
    starts = [_FIRST, *cuts]
    ends = [*(cut.record for cut in cuts), known.records or 0]
    records: list[int | None] = [end - start.record for start, end in zip(starts, ends, strict=True)]
    if known.records is None:
        records = [None] * len(starts)
    elif isinstance(known, BlockIndex):
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
