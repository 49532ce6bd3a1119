"""Stretches of files that are read by themselves, and which of them each partition reads."""

from collections.abc import Sequence
from dataclasses import dataclass

from dask_tfrecord.dataset.entries import Block, FileEntry
from dask_tfrecord.dataset.listing import FileInfo

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


def plan_pieces(
    files: Sequence[FileInfo], entries: Sequence[FileEntry] | None
) -> tuple[tuple[Split, ...], ...]:
    """The splits of each partition, of which there is at least one."""
    records = [None] * len(files) if entries is None else [entry.records for entry in entries]
    pieces = tuple((Split(file, records=count),) for file, count in zip(files, records, strict=True))
    return pieces or ((),)
