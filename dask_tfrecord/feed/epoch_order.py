"""Plan batches: compute the row order of an epoch and the range of a shard, and read the rows ahead."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeVar, Unpack, get_args

import numpy as np
import pyarrow as pa

from dask_tfrecord import arguments
from dask_tfrecord.codec.checked import Ints
from dask_tfrecord.errors import Remedy, TFRecordError
from dask_tfrecord.feed.shuffle_window import EncodedRows
from dask_tfrecord.feed.sources import Source, as_source
from dask_tfrecord.keywords import ReadKeywords
from dask_tfrecord.public_functions import SHARED_PARAMETERS

BatchMode = Literal["keep", "drop", "auto"]
LastBatch = Literal["keep", "drop"]
Uneven = Literal["keep", "drop", "pad"]

# The rows of a piece.
Rows = TypeVar("Rows", pa.Table, EncodedRows)

# The stored size of a piece in bytes. Large pieces need fewer requests to the store, and small pieces give a
# better shuffle.
_SEQUENTIAL_BYTES = 1 << 24
_SHUFFLED_BYTES = 1 << 20


@dataclass(frozen=True)
class Plan:
    """An opened source and the options of the batches. The source is opened once for all epochs.

    Attributes
    ----------
    source : Source
        The opened dataset or Dask collection that gives the rows.
    batch_size, batch_mode, shuffle, shuffle_buffer, uneven, prefetch
        These parameters have the same meaning as in `iter_batches`.
    surface : callable
        The public function that the user called to get the batches. Errors that the batches raise show the
        remedies that this function accepts.
    """

    source: Source
    batch_size: int
    batch_mode: BatchMode
    shuffle: int | None
    shuffle_buffer: int
    uneven: Uneven
    prefetch: int
    surface: Callable[..., Any]


def plan_batches(
    source: Any,
    batch_size: int,
    *,
    surface: Callable[..., Any],
    columns: str | Sequence[str] | None = None,
    batch_mode: BatchMode = "keep",
    shuffle: int | None = None,
    shuffle_buffer: int = 65_536,
    uneven: Uneven = "keep",
    prefetch: int = 2,
    **read: Unpack[ReadKeywords],
) -> Plan:
    """Open a source, and return the `Plan` for batches of any epoch and shard.

    The parameters are those of `iter_batches`.
    """
    arguments.count("batch_size", batch_size, 1)
    arguments.count("shuffle_buffer", shuffle_buffer, 1)
    arguments.count("prefetch", prefetch, 0)
    arguments.choice("batch_mode", batch_mode, get_args(BatchMode))
    arguments.choice("uneven", uneven, get_args(Uneven))
    arguments.count("shuffle", shuffle, 0)
    blocksize = _SEQUENTIAL_BYTES if shuffle is None else _SHUFFLED_BYTES
    opened = as_source(source, columns, blocksize, read)
    return Plan(opened, batch_size, batch_mode, shuffle, shuffle_buffer, uneven, prefetch, surface)


SHARED_PARAMETERS.update(signature(plan_batches).parameters)


class Slice(NamedTuple):
    """A range of the rows of one piece."""

    piece: int
    start: int
    stop: int | None


@dataclass(frozen=True)
class Order:
    """The order of the rows of one shard in one epoch.

    Attributes
    ----------
    slices : list of Slice
        The ranges of the shard's pieces, in order. The first and the last piece are cut at the ends of the
        shard.
    seed : tuple of int, optional
        The seed with which the rows of each window are shuffled. If None, the rows keep the order of the
        files.
    buffer : int
        The smallest number of rows in a window. A window may have fewer rows if too few remain or if the rows
        are large.
    """

    slices: list[Slice]
    seed: tuple[int, ...] | None
    buffer: int

    def permutation(self, window: int, count: int) -> Ints:
        """Return the random order of the rows of a window that has ``count`` rows."""
        assert self.seed is not None  # only a shuffled order has a seed
        return np.random.default_rng((*self.seed, window)).permutation(count)


def order_rows(plan: Plan, epoch: int, shard: tuple[int, int], part: tuple[int, int]) -> Order:
    """Return the row order of one part of one shard in one epoch, as the class `Batches` describes them."""
    source, seed, batch_size = plan.source, plan.shuffle, plan.batch_size
    (index, count), (worker, workers) = shard, part
    pieces = np.arange(source.npieces)
    if seed is not None:
        pieces = np.random.default_rng((seed, epoch)).permutation(source.npieces)
    key = None if seed is None else (seed, epoch, index, count, worker, workers)
    if source.counts is None:
        if count > source.npieces:
            raise TFRecordError(
                f"{count:,} shards of a collection of {source.npieces:,} partitions",
                advice="repartition the collection, or take fewer shards",
            )
        chosen = pieces[index::count][worker::workers]
        return Order([Slice(int(piece), 0, None) for piece in chosen], key, plan.shuffle_buffer)
    ends = [0, *accumulate(source.counts[int(piece)] for piece in pieces)]
    total = ends[-1]
    if count > 1 and count > total:
        raise TFRecordError(f"{count:,} shards of a dataset of {total:,} rows", advice="take fewer shards")
    first, last = _bounds(total, index, count, plan.uneven)
    nbatches = -(-(last - first) // batch_size)
    first, last = (
        first + nbatches * worker // workers * batch_size,
        min(first + nbatches * (worker + 1) // workers * batch_size, last),
    )
    slices = [
        Slice(int(piece), max(first - start, 0), min(last, stop) - start)
        for piece, start, stop in zip(pieces, ends, ends[1:], strict=False)
        if start < last and stop > first
    ]
    return Order(slices, key, plan.shuffle_buffer)


def _bounds(total: int, index: int, count: int, uneven: Uneven) -> tuple[int, int]:
    """Return the number of a shard's first row, and the number after its last row."""
    first, last = total * index // count, total * (index + 1) // count
    if uneven == "drop":
        return first, first + total // count
    if uneven == "pad":
        longest = -(-total // count)
        first = max(0, min(first, total - longest))
        return first, first + longest
    return first, last


def checked_shard(shard: Any) -> tuple[int, int]:
    """Validate ``shard=``, and return the number of the shard and the number of all shards."""
    valid = isinstance(shard, tuple | list) and len(shard) == 2
    if valid and all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in shard):
        index, count = map(int, shard)
        if 0 <= index < count:
            return index, count
    raise TFRecordError(
        f"shard={shard!r} is not a shard: the number of a shard, from 0, and the number of all shards",
        remedies=[Remedy("shard", (0, 1), "read all rows")],
        function="",
    )


def read_slices(
    read_piece: Callable[[int], Rows], slices: Sequence[Slice], prefetch: int
) -> Generator[Rows, None, None]:
    """Yield the rows of each slice. Threads read up to ``prefetch`` slices ahead."""
    read = partial(_read, read_piece)
    if not prefetch:
        yield from map(read, slices)
        return
    ahead: deque[Future[Rows]] = deque()
    with ThreadPoolExecutor(prefetch, thread_name_prefix="dask_tfrecord-read") as pool:
        try:
            for one in slices:
                ahead.append(pool.submit(read, one))
                if len(ahead) > prefetch:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _read(read_piece: Callable[[int], Rows], piece: Slice) -> Rows:
    rows = read_piece(piece.piece)
    return rows if piece.stop is None else rows.slice(piece.start, piece.stop - piece.start)
