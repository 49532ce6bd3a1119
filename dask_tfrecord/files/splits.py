"""Splits: ranges of files that hold whole records and can be read on their own."""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_tfrecord.files.entry import Block, FileEntry
from dask_tfrecord.files.storage.listing import FileInfo, info_table, table_infos

_FIRST = Block(0, 0, 0)

_BLOCK = pa.struct([(name, pa.int64()) for name in Block._fields])

# The columns that describe splits. Other columns describe what is known about their files.
_COLUMNS = ("path", "size", "stamp", "crc32c", "records", "start", "stop")

# The objects of this many partitions are made at once.
_PARTITIONS = 1024


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


@dataclass(frozen=True, eq=False, repr=False)
class Partitions(Sequence[tuple[Split, ...]]):
    """The splits that each partition of a dataset reads. They are the rows of a table.

    The objects of a split are made when they are needed, and not kept.

    Attributes
    ----------
    rows : pyarrow.Table
        A row for each split: the columns of a file list, ``records``, and if a file is split, ``start`` and
        ``stop``, in which null is the start and the end of the file. Other columns describe the file.
    starts : numpy.ndarray
        Partition ``k`` has the rows from ``starts[k]`` up to ``starts[k + 1]``.
    """

    rows: pa.Table
    starts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, partitions: Iterable[Sequence[Split]]) -> "Partitions":
        """Return the partitions with these splits."""
        listed = list(partitions)
        splits = list(chain.from_iterable(listed))
        rows = info_table(split.file for split in splits)
        rows = rows.append_column("records", pa.nulls(len(splits), pa.int64()))
        starts = np.cumsum([0, *map(len, listed)], dtype=np.int64)
        return cls(with_ranges(rows, dict(enumerate(splits))), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> tuple[Split, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[Split, ...]]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        first = number - number % _PARTITIONS
        made: tuple[int, list[tuple[Split, ...]]] = vars(self).get("_made", (-1, []))
        if made[0] != first:  # another thread may replace what is kept at any time
            made = vars(self)["_made"] = (first, self._make(first))
        return made[1][number - first]

    def __iter__(self) -> Iterator[tuple[Split, ...]]:
        for first in range(0, len(self), _PARTITIONS):
            yield from self._make(first)

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": self.rows, "starts": self.starts}

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of splits of each partition."""
        return np.diff(self.starts)

    def _make(self, first: int) -> list[tuple[Split, ...]]:
        """Make the splits of some partitions, from the given partition on."""
        starts = self.starts[first : first + _PARTITIONS + 1]
        rows = self.rows.slice(starts[0], starts[-1] - starts[0])
        edges: list[Iterable[Any]] = [repeat(_FIRST), repeat(None)]
        if "start" in rows.column_names:
            edges = [
                [default if block is None else Block(**block) for block in rows[name].to_pylist()]
                for name, default in (("start", _FIRST), ("stop", None))
            ]
        splits = list(map(Split, table_infos(rows), *edges, rows["records"].to_pylist()))
        return [tuple(splits[start:stop]) for start, stop in pairwise((starts - starts[0]).tolist())]

    @property
    def token(self) -> str:
        """A hash of all splits."""
        names = [name for name in _COLUMNS if name in self.rows.column_names]
        return f"{table_token(self.rows.select(names))} {hashlib.sha256(self.starts.tobytes()).hexdigest()}"


def table_token(table: pa.Table) -> str:
    """Return a hash of a file list, or of the columns of `Partitions` that describe splits."""
    flat = table.combine_chunks().flatten()
    # It is not defined what a buffer holds in the place of a null. No number here is negative.
    columns = [one.cast(pa.int64()).fill_null(-1) if one.null_count else one for one in flat.columns]
    filled, sink = pa.table(columns, names=flat.column_names), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, filled.schema) as writer:
        writer.write_table(filled)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def with_ranges(rows: pa.Table, splits: Mapping[int, Split]) -> pa.Table:
    """Return rows of `Partitions` of which some are parts of files.

    Parameters
    ----------
    rows : pyarrow.Table
        Rows for whole files, without ``start`` and ``stop``.
    splits : mapping of int to Split
        For the number of a row, the split that it becomes.
    """
    records = rows["records"].to_pylist()
    starts: list[Block | None] = [None] * len(rows)
    stops = list(starts)
    for row, split in splits.items():
        records[row], stops[row] = split.records, split.stop
        starts[row] = None if split.start == _FIRST else split.start
    rows = rows.drop_columns(["records"]).append_column("records", pa.array(records, pa.int64()))
    if any(starts) or any(stops):
        for name, blocks in (("start", starts), ("stop", stops)):
            rows = rows.append_column(name, pa.array(blocks, _BLOCK))
    return rows


@dataclass(frozen=True)
class BlockIndex:
    """The blocks of a file that no snapshot describes, found by scanning it.

    Attributes
    ----------
    records : int, optional
        Number of records. Each damaged record or range counts as one. None if they were not counted.
    blocks : tuple of Block
        The blocks. The first one begins at the start of the file.
    damaged : tuple of int
        Offsets in the file, in ascending order, of damaged records and ranges: at least the first of them
        after each block.
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
        edges = [bisect_left(known.damaged, start.offset) for start in starts]
        for at, (first, stop) in enumerate(pairwise([*edges, len(known.damaged)])):
            if first < stop:  # the number of undamaged records is unknown
                records[at] = None
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
