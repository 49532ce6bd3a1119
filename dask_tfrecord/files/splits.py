"""Define splits: ranges of files that contain whole records and can be read independently of each other."""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.files.entry import Block, ColumnFile, read_column_files
from dask_tfrecord.files.file_list import FileInfo, FileList
from dask_tfrecord.storage.range_requests import ByteRange

_FIRST = Block(0, 0, 0)

BLOCK_TYPE = pa.struct([(name, pa.int64()) for name in Block._fields])

# The token of a read depends only on these columns of `Partitions.files`, because they determine the rows of
# the splits. All other columns of `Partitions.files` contain only additional information about the files.
_COLUMNS = ("path", "bytes", "stamp", "crc32c", "records", "start", "stop")

# `Split` objects are created for this many partitions at once: in order, and for an index of many partitions.
# A shuffled read asks for single partitions in a random order.
_PARTITIONS, _AROUND = 1024, 16


@dataclass(frozen=True)
class Split:
    """A range of a file that contains whole records and can be read without the preceding bytes.

    ``stop`` is the block at which the next split begins, or None at the end of the file. ``columns`` is None
    if no column file exists. ``blocks`` contains the blocks of the split only if the file is compressed and
    callers may request single records.
    """

    file: FileInfo
    start: Block = _FIRST
    stop: Block | None = None
    records: int | None = None
    columns: ColumnFile | None = None
    blocks: tuple[Block, ...] = ()

    @property
    def stored_bytes(self) -> int:
        """The stored size of the split in bytes, or 0 if it is unknown."""
        stop = self.file.size if self.stop is None else self.stop.offset
        return (stop or self.start.offset) - self.start.offset

    @property
    def stored_range(self) -> ByteRange | None:
        """The stored bytes of the split, or None if its end is unknown."""
        stop = self.file.size if self.stop is None else self.stop.offset
        if stop is None:
            return None
        return ByteRange(self.file.path, self.start.offset, stop, self.file.stamp, self.file.size)


def groups_by_bytes(sizes: Iterable[int], most: int) -> Iterator[slice]:
    """Divide consecutive items of the given sizes into groups of at most ``most`` bytes, or of one item."""
    ends, first = np.append(0, np.cumsum([*sizes], dtype=np.int64)), 0
    while first < len(ends) - 1:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + most, "right")) - 1)
        yield slice(first, last)
        first = last


@dataclass(frozen=True, eq=False, repr=False)
class Partitions(Sequence[tuple[Split, ...]]):
    """The splits of all partitions of a dataset, stored as the rows of a file list.

    `Split` objects are created only when they are needed. The objects of up to 1,024 partitions are kept. If
    there are more partitions, the objects of only 16 partitions are kept.
    ``files`` contains a row for each split, and has the column ``records``. If any file is split,
    ``files`` also contains the columns ``start`` and ``stop``, in which null means the start or the end of
    the file. Partition ``k`` consists of the rows in ``range(starts[k], starts[k + 1])``. ``blocks`` contains
    the paths and the blocks of the files that have column files and several blocks.
    """

    files: FileList
    starts: npt.NDArray[np.int64]
    blocks: FileList | None = None

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
        count = _PARTITIONS if len(self) <= _PARTITIONS else _AROUND
        first = number - number % count
        made: tuple[int, list[tuple[Split, ...]]] = vars(self).get("_made", (-1, []))
        if made[0] != first:  # another thread may replace `_made` at any time
            made = vars(self)["_made"] = (first, self._make(first, count))
        return made[1][number - first]

    def __iter__(self) -> Iterator[tuple[Split, ...]]:
        for first in range(0, len(self), _PARTITIONS):
            yield from self._make(first, _PARTITIONS)

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "starts": self.starts, "blocks": self.blocks}

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        return np.diff(self.starts)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The number of stored bytes in each partition. An unknown size counts as 0."""
        sizes = pc.fill_null(self.files["bytes"], 0)
        if "start" in self.files:
            start, stop = (pc.struct_field(self.files[name], "offset") for name in ("start", "stop"))
            sizes = pc.subtract(pc.coalesce(stop, sizes), pc.fill_null(start, 0))
        return np.diff(np.concatenate([[0], np.cumsum(sizes.to_numpy())])[self.starts])

    def _make(self, first: int, count: int) -> list[tuple[Split, ...]]:
        starts = self.starts[first : first + count + 1]
        files = self.files.slice(starts[0], starts[-1])
        edges: list[Iterable[Any]] = [repeat(_FIRST), repeat(None)]
        if "start" in files:
            edges = [
                [default if block is None else Block(**block) for block in files[name].to_pylist()]
                for name, default in (("start", _FIRST), ("stop", None))
            ]
        column_files = read_column_files(files)
        splits = list(map(Split, files.infos, *edges, files["records"].to_pylist(), column_files))
        return [tuple(splits[start:stop]) for start, stop in pairwise((starts - starts[0]).tolist())]

    def take(self, numbers: npt.NDArray[np.int64]) -> "Partitions":
        """Return some of the partitions, without blocks."""
        firsts, counts = self.starts[numbers], self.starts[numbers + 1] - self.starts[numbers]
        starts = np.append(0, np.cumsum(counts))
        if np.array_equal(firsts[1:], firsts[:-1] + counts[:-1]):
            files = self.files.slice(int(firsts[0]), int(firsts[0] + starts[-1]))
        else:
            files = self.files.take(np.repeat(firsts - starts[:-1], counts) + np.arange(starts[-1]))
        return Partitions(files, starts)

    def select(self, columns: Callable[[str], bool]) -> "Partitions":
        """Return the partitions with some columns of the file list, and without blocks."""
        return Partitions(self.files.select(filter(columns, self.files.rows.column_names)), self.starts)

    @property
    def token(self) -> str:
        rows = self.files.select(name for name in _COLUMNS if name in self.files).rows
        return f"{table_token(rows)} {hashlib.sha256(self.starts.tobytes()).hexdigest()}"


def table_token(table: pa.Table) -> str:
    """Return a hash of a file list, or of the columns of `Partitions.files` that describe splits."""
    flat = table.combine_chunks().flatten()
    # In an Arrow buffer, the bytes of a null may have any value, which would change the hash. The columns
    # contain no negative numbers, so -1 can represent null.
    columns = [one.cast(pa.int64()).fill_null(-1) if one.null_count else one for one in flat.columns]
    filled, sink = pa.table(columns, names=flat.column_names), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, filled.schema) as writer:
        writer.write_table(filled)
    return hashlib.sha256(sink.getvalue()).hexdigest()


@dataclass(frozen=True)
class BlockIndex:
    """The blocks that `find_blocks` found in a file that no snapshot describes.

    In ``records`` and ``blocks``, each damaged record or range counts as one record. ``damaged`` contains, in
    ascending order, the offset of the first damage after the start of each block, and possibly offsets of
    later damage.
    """

    records: int | None
    blocks: tuple[Block, ...]
    damaged: tuple[int, ...] = ()


def cut(size: int, known: BlockIndex, blocksize: int) -> list[tuple[Block, Block | None, int | None]]:
    """Cut a file at the starts of blocks into ranges of similar size, with at most ``blocksize`` bytes if
    possible.

    Return ``start``, ``stop`` and ``records`` of the `Split` of each range.
    """
    parts = -(-size // blocksize)
    offsets = [block.offset for block in known.blocks[1:]]
    found = [bisect_left(offsets, size * part // parts) + 1 for part in range(1, parts)]
    cuts = [known.blocks[at] for at in dict.fromkeys(found) if at < len(known.blocks)]
    starts, records = [_FIRST, *cuts], list[int | None]()
    if known.records is None:
        records = [None] * len(starts)
    else:
        ends = [*(one.record for one in cuts), known.records]
        damaged = [*(bisect_left(known.damaged, one.offset) for one in starts), len(known.damaged)]
        for start, end, (first, last) in zip(starts, ends, pairwise(damaged), strict=True):
            # If a range contains damage, the number of its intact records is unknown.
            records.append(end - start.record if first == last else None)
    return list(zip(starts, [*cuts, None], records, strict=True))
