"""Plan batches: compute the row order of an epoch and the range of a shard.

Each use of random numbers has its own random stream, so that the orders are independent of each other.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    get_args,
)

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import Ints
from dask_tfrecord.collection.numbered_rows import BLOCK_BYTES
from dask_tfrecord.collection.opened_path import OpenedPath
from dask_tfrecord.dataset.read.plan import sorting_column
from dask_tfrecord.errors import Remedy, RemedyWarning, TFRecordError, warn_caller
from dask_tfrecord.feed.rows.mixed_source import MixedSource, is_mixture, mixed_source
from dask_tfrecord.feed.rows.sources import WINDOW_BYTES, DatasetSource, EncodedRows, Source, as_source
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import (
    SHUFFLE_BUFFER,
    BatchKeywords,
    BatchMode,
    FeedKeywords,
    Shuffle,
    Uneven,
)

# The use of a stream of random numbers. Its index in this list is part of the key of the stream.
Use = Literal["pieces", "window", "rows", "mixture", "source"]


def stream(use: Use, seed: int, *key: int) -> np.random.Generator:
    """Return a separate random number generator for each combination of ``use``, ``seed`` and ``key``."""
    key_of_use = np.random.SeedSequence(seed, spawn_key=(get_args(Use).index(use), *key))
    return np.random.default_rng(key_of_use)


# The index of a shard (or of a part of one), and the number of them. Indices start at 0.
Fraction: TypeAlias = tuple[int, int]

# `Rows` are the decoded or encoded rows of a piece. A `Piece` is either `Rows`, or a `Slice`, which only
# names a range.
Rows = TypeVar("Rows", pa.Table, EncodedRows)
Piece = TypeVar("Piece", bound="pa.Table | EncodedRows | Slice")

# Two piece sizes in stored bytes: the first for reads without a shuffle, the second for ``shuffle="buffer"``.
# Larger pieces need fewer requests to the store, and smaller pieces improve the shuffle.
_SEQUENTIAL_BYTES = 1 << 24
_SHUFFLED_BYTES = 1 << 20

# The default of ``batch_size``.
BATCH_ROWS = 1024

# A weak shuffle causes a warning only from this number of rows on. Fewer rows fit into a shuffle buffer.
_MANY_ROWS = 10_000

# ``shuffle="blocks"`` shuffles the rows of up to ``_GROUP_BLOCKS`` blocks at a time. A group with fewer than
# ``_GROUP_BLOCKS`` blocks is complete as soon as it has ``_GROUP_BYTES`` stored bytes.
_GROUP_BLOCKS = 24
_GROUP_BYTES = 1 << 25


class Prefetch(NamedTuple):
    """The number of pieces, or of bytes, that are read ahead.

    If both are None, the order and the store determine how far threads read ahead.
    """

    pieces: int | None = None
    nbytes: int | None = None

    @classmethod
    def of(cls, prefetch: Any) -> Self:
        """Check the value of ``prefetch=``."""
        if isinstance(prefetch, str):
            return cls(nbytes=arguments.byte_count("prefetch", prefetch))
        return cls(pieces=arguments.count("prefetch", prefetch, 0))


@dataclass(frozen=True)
class Plan:
    """An opened source and the options of the batches. The source is opened once for all epochs.

    ``surface`` is the public function that the user called. Errors show only remedies that ``surface``
    accepts. ``open_version`` opens the source again with another version of the dataset. If the user has
    chosen a version, or if there are no versions, ``open_version`` is None.
    """

    source: Source | MixedSource
    batch_size: int
    batch_mode: BatchMode
    shuffle: Shuffle | None
    seed: int
    shuffle_buffer: int
    uneven: Uneven
    prefetch: Prefetch
    surface: Callable[..., Any]
    open_version: Callable[[int], Source] | None = None
    elastic: int | None = None

    def order(self, epoch: int, sequences: int | None = None) -> "Order":
        """Return the order of the rows in an epoch.

        ``sequences`` divides the limits of the windows. By default, it is the number of sequences.
        """
        source, sequences = self.source, sequences or self.elastic or 1
        sizes = source.dataset.partitions.sizes if isinstance(source, DatasetSource) else None
        seed, is_grouped = None if self.shuffle is None else self.seed, self.shuffle == "blocks"
        buffer = max(1, self.shuffle_buffer // sequences)
        return make_order(source.npieces, source.counts, seed, epoch, buffer, sizes, is_grouped, sequences)


def plan_batches(
    source: Any,
    batch_size: int,
    *,
    surface: Callable[..., Any],
    columns: str | Sequence[str] | None = None,
    batch_mode: BatchMode = "keep",
    uneven: Uneven = "keep",
    is_mixed: bool = False,
    **keywords: Unpack[BatchKeywords],
) -> Plan:
    """Open a source for batches of any epoch and shard.

    The parameters have the same meaning as in `iter_batches`. If ``is_mixed`` is True, the source is one of
    several sources of a mixture.
    """
    # `as_source` raises if keywords of a read are passed with a collection, so they have no defaults here.
    read: Any = {**keywords}
    given = {name: read.pop(name) for name in FeedKeywords.__annotations__ if name in read}
    of_feed = arguments.with_defaults(FeedKeywords, given)
    shuffle, seed, buffer = of_feed["shuffle"], of_feed["seed"], of_feed["shuffle_buffer"]
    arguments.number("batch_size", batch_size)
    arguments.count("shuffle_buffer", buffer, 1)
    prefetch = Prefetch.of(of_feed["prefetch"])
    arguments.choice("batch_mode", batch_mode, get_args(BatchMode))
    arguments.choice("uneven", uneven, get_args(Uneven))
    sequences = arguments.count("elastic", of_feed["elastic"])
    plan = partial(
        Plan,
        batch_size=batch_size,
        batch_mode=batch_mode,
        shuffle_buffer=buffer,
        prefetch=prefetch,
        surface=surface,
        elastic=sequences,
    )
    if is_mixture(source):
        checked_seed = arguments.number("seed", seed, 0)

        def plan_one(source: Any, index: int) -> Plan:
            """Plan a source. Each source has another seed, so that no two sources have the same order."""
            if hasattr(source, "_plan_of_source"):  # `Batches` are defined above this module
                found: Plan = source._plan_of_source()
                return found
            one = int(stream("source", checked_seed, index).integers(1 << 62)) if shuffle else 0
            of_source: BatchKeywords = {**keywords, "seed": one, "elastic": None, "until": None}
            return plan_batches(
                source, batch_size, surface=surface, columns=columns, is_mixed=True, **of_source
            )

        check_buffer(checked_shuffle(shuffle, checked_seed if shuffle else 0), buffer)
        mixed = mixed_source(source, of_feed["until"], plan_one)
        for one in mixed.plans:
            if sequences and isinstance(one.source, DatasetSource):
                _warn_of_large_blocks(one.source, sequences)
        if batch_mode == "auto":
            problem = "batch_mode='auto' does not suit a mixture, whose batches have rows of several sources"
            raise TFRecordError(problem, Remedy("batch_mode", "keep", "return batches of one size"))
        # All shards of a mixture have equally many rows, whatever ``uneven`` is.
        return plan(mixed, shuffle=None, seed=checked_seed, uneven="keep")
    if of_feed["until"] is not None:
        problem = f"until={of_feed['until']!r} has no effect without a mixture"
        raise TFRecordError(problem, Remedy("until", None, "read the rows of the only source once"))
    kind = checked_shuffle(shuffle, seed)
    check_buffer(kind, buffer)
    # The shuffle "blocks" reads the same blocks as a `RecordTable`, so that both return the rows in the same
    # order.
    blocksize = {
        None: _SHUFFLED_BYTES if is_mixed else max(_SHUFFLED_BYTES, _SEQUENTIAL_BYTES // (sequences or 1)),
        "buffer": _SHUFFLED_BYTES,
        "blocks": BLOCK_BYTES,
    }[kind]
    blocks = arguments.block_cache(of_feed["cache"], of_feed["cache_bytes"])
    opened = as_source(source, columns, blocksize, read, blocks)
    if kind == "blocks" and not isinstance(opened, DatasetSource):
        raise TFRecordError(
            "shuffle='blocks' needs a path, not a Dask collection",
            Remedy("shuffle", "buffer", "shuffle the partitions, and the rows in a buffer"),
        )
    if uneven != "keep" and not isinstance(opened, DatasetSource):
        problem = f"uneven={uneven!r} needs a path, because the rows of a Dask collection are not counted"
        raise TFRecordError(problem, Remedy("uneven", "keep", "divide the partitions"))
    if sequences is not None:
        _check_elastic(opened, sequences, batch_mode)
    if kind == "buffer" and isinstance(opened, DatasetSource):
        _warn_of_sorted_rows(opened, buffer)
    open_version = None
    chosen = source.chosen_version if isinstance(source, OpenedPath) else read.get("version")
    if opened.version is not None and chosen is None:
        open_version = partial(as_source, source, columns, blocksize, read, blocks)
    return plan(opened, shuffle=kind, seed=seed, uneven=uneven, open_version=open_version)


def _check_elastic(source: Source, sequences: int, batch_mode: BatchMode) -> None:
    """Raise if the rows cannot be divided into this number of sequences."""
    without = Remedy("elastic", None, "divide the rows anew for each number of shards")
    if not isinstance(source, DatasetSource):
        problem = f"elastic={sequences} needs a path, because the rows of a Dask collection are not counted"
        raise TFRecordError(problem, without)
    if batch_mode == "auto":
        problem = f"elastic={sequences} has no effect with batch_mode='auto', whose batches have any size"
        raise TFRecordError(problem, Remedy("batch_mode", "keep", "return batches of one size"), without)
    check_sequences(sequences, sum(source.counts or ()))
    _warn_of_large_blocks(source, sequences)


def check_sequences(count: int, rows: int) -> None:
    """Raise if ``elastic=`` divides the rows into more sequences than there are rows."""
    if count > max(1, rows):
        without = Remedy("elastic", None, "divide the rows anew for each number of shards")
        problem = f"elastic={count:,} divides {rows:,} rows into more sequences than there are rows"
        raise TFRecordError(problem, "take fewer sequences", without)


def _warn_of_large_blocks(source: DatasetSource, sequences: int) -> None:
    """Warn if many large blocks, such as whole gzip files of other tools, would be in memory."""
    sizes = np.sort(source.dataset.partitions.sizes)[-sequences:]
    if sizes.sum() <= WINDOW_BYTES or sizes[-1] <= _SEQUENTIAL_BYTES:
        return
    problem = (
        f"elastic={sequences} keeps up to {len(sizes):,} blocks in memory at the same time, and the largest "
        f"one has {sizes[-1]:,} stored bytes; a write with to_tfrecord makes small blocks"
    )
    warn_caller(RemedyWarning(problem, [Remedy("elastic", None, "keep fewer blocks in memory")]))


def check_buffer(kind: Shuffle | None, buffer: int) -> None:
    """Raise if ``shuffle_buffer=`` has no effect."""
    if kind != "buffer" and buffer != SHUFFLE_BUFFER:
        problem = f"shuffle_buffer={buffer!r} has no effect with shuffle={kind!r}"
        raise TFRecordError(problem, Remedy("shuffle", "buffer", "shuffle the rows in a buffer"))


def check_batch_size(batch_size: int, batch_mode: BatchMode) -> None:
    """Raise if a value is invalid, or if ``batch_mode=`` makes ``batch_size=`` have no effect."""
    arguments.number("batch_size", batch_size)
    arguments.choice("batch_mode", batch_mode, get_args(BatchMode))
    if batch_mode == "auto" and batch_size != BATCH_ROWS:
        problem = f"batch_size={batch_size!r} has no effect with batch_mode='auto'"
        raise TFRecordError(problem, Remedy("batch_mode", "keep", "return batches of this size"))


def _warn_of_sorted_rows(source: DatasetSource, buffer: int) -> None:
    """Warn if the rows are sorted by a column and a shuffle buffer holds rows of only a few blocks."""
    total = sum(source.counts or ())
    if total < _MANY_ROWS:
        return
    blocks = buffer * source.npieces // max(1, total)
    if buffer >= total or blocks >= _GROUP_BLOCKS or (name := sorting_column(source.dataset)) is None:
        return
    problem = (
        f"the files are sorted by {name!r}, and a shuffle buffer of {buffer:,} rows holds about "
        f"{max(1, blocks):,} blocks, so each batch has few of the column's values; a write with "
        "to_tfrecord(..., shuffle=True) mixes all rows"
    )
    is_given = buffer != SHUFFLE_BUFFER  # has no effect with the shuffle "blocks", which refuses it
    remedies = [
        Remedy("shuffle", "blocks", "" if is_given else "mix more blocks"),
        *[Remedy("shuffle_buffer", SHUFFLE_BUFFER, "mix more blocks")] * is_given,
        Remedy(
            "shuffle_buffer", min(total, _GROUP_BLOCKS * max(1, total // source.npieces)), "mix more rows"
        ),
    ]
    warn_caller(RemedyWarning(problem, remedies))


class Slice(NamedTuple):
    """A range of the rows of one piece."""

    piece: int
    start: int
    stop: int | None
    nbytes: int = 0  # a `Slice` uses no memory for rows

    @property
    def num_rows(self) -> int:
        return (self.stop or 0) - self.start


class Span(NamedTuple):
    """A range of positions in the row order of an epoch.

    Positions refer to the order before the rows within each window are shuffled. They count partitions, not
    rows, for a Dask collection. If only some rows of a window were returned, its span still covers the whole
    window, and ``first`` and ``last`` give the remaining rows in the shuffled order of the window. For a
    window of a Dask collection, ``last`` is None.
    """

    start: int
    stop: int
    first: int | None = None
    last: int | None = None

    @property
    def size(self) -> int:
        """The number of rows.

        For a Dask collection, this is the number of partitions, or 1 if the span is a window.
        """
        if self.first is None:
            return self.stop - self.start
        return 1 if self.last is None else self.last - self.first

    def after(self, count: int) -> Self:
        if self.first is None:
            return self._replace(start=self.start + count)
        return self._replace(first=self.first + count)

    def part(self, start: int, stop: int) -> Self:
        if self.first is None:
            return self._replace(start=self.start + start, stop=self.start + stop)
        if self.last is None:
            return self
        return self._replace(first=self.first + start, last=self.first + stop)


def rows_between(spans: Sequence[Span], start: int, stop: int) -> list[Span]:
    """Return the rows from ``start`` up to, but not including, ``stop``, counted across all spans."""
    found = []
    for span in spans:
        first, last = max(start, 0), min(stop, span.size)
        if first < last:
            found.append(span.part(first, last))
        start, stop = start - span.size, stop - span.size
    return found


def merged(spans: Sequence[Span]) -> list[Span]:
    """Merge spans that follow each other, except windows of which a part was returned."""
    found: list[Span] = []
    for span in spans:
        is_next = found and found[-1].first is None and span.first is None and found[-1].stop == span.start
        if is_next:
            span = found.pop()._replace(stop=span.stop)
        found.append(span)
    return found


def total_size(spans: Sequence[Span]) -> int:
    return sum(span.size for span in spans)


class _End:
    """Marks the end of an iterator that may yield None."""


_END = _End()


@dataclass
class Window(Generic[Piece]):
    """The pieces that are shuffled together, the range of shuffled rows to use, and the spans that follow."""

    span: Span
    pieces: list[Piece]
    count: int
    first: int
    last: int
    following: list[Span]


@dataclass(frozen=True)
class Order:
    """The order of all rows in one epoch. ``pieces`` lists the indices of the pieces in this order.

    ``ends`` contains the start position of each piece, followed by the end of the last piece. Positions count
    pieces, not rows, if ``is_counted`` is False. ``seed`` pairs the seed of the shuffle with the epoch, and
    is None without a shuffle. A window has at least ``buffer`` rows, unless the rows are large. ``sizes``
    contains the stored bytes of each piece, or is None if they are unknown. If ``is_grouped`` is True,
    windows are groups of blocks. Each of several ``sequences`` has its own windows, whose limits are divided
    by the number of sequences (``buffer`` is divided already).
    """

    pieces: Ints
    ends: Ints
    is_counted: bool
    seed: tuple[int, int] | None
    buffer: int
    sizes: Ints | None = None
    is_grouped: bool = False
    sequences: int = 1

    @property
    def every_row(self) -> Span:
        return Span(0, int(self.ends[-1]))

    def stored_size(self, piece: int) -> int | None:
        """Return the stored size of a piece, or None if it is unknown."""
        return None if self.sizes is None else int(self.sizes[piece]) or None

    @property
    def most_rows(self) -> int:
        """A number of rows that no shuffle window exceeds, or 0 without a shuffle."""
        largest = int(np.diff(self.ends).max(initial=0))
        if self.seed is None:
            return 0
        return _GROUP_BLOCKS * largest if self.is_grouped else self.buffer + largest

    def slices(self, span: Span) -> list[Slice]:
        first = int(np.searchsorted(self.ends, span.start, "right")) - 1
        last = int(np.searchsorted(self.ends, span.stop, "left"))
        pieces, ends = self.pieces[first:last].tolist(), self.ends[first : last + 1].tolist()
        if not self.is_counted:
            return [Slice(piece, 0, None) for piece in pieces]
        return [
            Slice(piece, max(span.start, start) - start, min(span.stop, stop) - start)
            for piece, start, stop in zip(pieces, ends, ends[1:], strict=False)
            if start < stop
        ]

    def is_full(self, window: Sequence[Slice], rows: int, nbytes: int, sequences: int = 1) -> bool:
        """Return True if a window with ``rows`` rows, which take ``nbytes`` bytes of memory, is complete.

        For several ``sequences``, return True if the slices are as many as one window of each sequence has.
        """
        limit = partial(_share, sequences, self.sequences)
        if not self.is_grouped or self.sizes is None:
            least = 1 if self.seed is None else self.buffer
            return rows >= least * sequences or nbytes >= limit(WINDOW_BYTES)
        stored = sum(int(self.sizes[one.piece]) for one in window)
        return len(window) >= limit(_GROUP_BLOCKS) or stored >= limit(_GROUP_BYTES)

    def window_bytes(self, sequences: int = 1) -> int:
        """Estimate the stored size of a complete window of each of several sequences.

        If the size is unknown, return the limit.
        """
        if self.is_grouped or self.sizes is None or self.seed is None:
            return _share(sequences, self.sequences, _GROUP_BYTES if self.is_grouped else WINDOW_BYTES)
        return int(self.sizes.sum()) * self.buffer * sequences // max(1, int(self.ends[-1]))

    def begin_small(self, spans: list[Span]) -> list[Span]:
        """Divide the first span, so that the first windows are small, and the first batch comes early.

        The first window has a sixteenth of the bytes of a complete window, and each of the next three twice
        as many as the one before. A window never extends over the end of a span.
        """
        if not spans or spans[0].first is not None or self.seed is None or self.is_grouped:
            return spans
        if self.sizes is None or not self.is_counted:
            return spans
        first, *others = spans
        at = slice(*np.searchsorted(self.ends, [first.start, first.stop], "right") - 1)
        ends, sizes = self.ends[1:][at], np.cumsum(self.sizes[self.pieces[at]])
        cuts, start = [first.start], 0
        for divisor in (16, 8, 4, 2):
            size = WINDOW_BYTES // (divisor * self.sequences)
            start += size
            piece = int(np.searchsorted(sizes, start, "left"))
            if piece == len(ends) or sizes[-1] - start < size / 2 or ends[piece] - cuts[-1] >= self.buffer:
                break
            if cuts[-1] < ends[piece] < first.stop:
                cuts.append(int(ends[piece]))
        return [*(Span(*pair) for pair in pairwise([*cuts, first.stop])), *others]

    def permutation(self, start: int, count: int) -> Ints:
        """Return the random order of the ``count`` rows of the window that begins at position ``start``."""
        assert self.seed is not None  # this method is only called for shuffled orders, which have a seed
        seed, epoch = self.seed
        return stream("window", seed, epoch, start).permutation(count)

    def check_shards(self, count: int) -> None:
        """Raise if there are more shards than rows, or than partitions of a Dask collection."""
        total = self.every_row.size
        if count < 2 or count <= total:
            return
        if self.is_counted:
            raise TFRecordError(f"{count:,} shards of a dataset of {total:,} rows", "take fewer shards")
        problem = f"{count:,} shards of a collection of {total:,} partitions"
        raise TFRecordError(problem, "repartition the collection, or take fewer shards")

    def windows(self, spans: Sequence[Span], pieces: Iterator[Piece]) -> Iterator[Window[Piece]]:
        """Divide spans into windows. For each slice of the spans, ``pieces`` yields the slice or its rows."""
        return (window for window in self.ready_windows(spans, pieces) if window is not None)

    def ready_windows(
        self, spans: Sequence[Span], pieces: Iterator[Piece | None]
    ) -> Iterator[Window[Piece] | None]:
        """Divide spans into windows. For each slice of the spans, ``pieces`` yields the slice or its rows.

        If ``pieces`` yields None, because the next rows are not ready, the method yields None too. If the
        rows are counted and not shuffled, ``pieces`` may yield the rows of a slice in parts. Each part is a
        window.
        """
        for number, span in enumerate(spans, 1):
            slices, found = self.slices(span), list[Piece]()
            at, count, size, start = 0, 0, 0, span.start
            while start < span.stop:
                piece = next(pieces, _END)
                if isinstance(piece, _End):  # the file has fewer rows than before
                    return
                if piece is None:
                    yield None
                    continue
                found.append(piece)
                del piece
                at += 1
                count += found[-1].num_rows
                size += found[-1].nbytes
                stop = start + (count if self.is_counted else len(found))
                is_last, window = stop >= span.stop, slices[at - len(found) : at]
                if not is_last and (span.first is not None or not self.is_full(window, count, size)):
                    continue
                first, last = span.first or 0, count if span.last is None else span.last
                if first > count:
                    problem = "the state holds no position of the dataset"
                    raise TFRecordError(problem, "pass a `state` unchanged")
                rest = Span(start, stop)
                if self.seed is not None or not self.is_counted:
                    rest = Span(start, stop, first, last if self.is_counted else None)
                following = [*([] if is_last else [Span(stop, span.stop)]), *spans[number:]]
                if first < last:
                    yield Window(rest, found, count, first, last, following)
                found, count, size, start = [], 0, 0, stop

    def rows(self, spans: Sequence[Span], firsts: Ints) -> Ints:
        """Return the row indices of ``spans`` in the order of the epoch.

        ``firsts`` contains the index of the first row of each piece.
        """
        found = [np.zeros(0, np.int64)]
        for window in self.windows(spans, (one for span in spans for one in self.slices(span))):
            rows = np.concatenate(
                [firsts[one.piece] + np.arange(one.start, one.stop) for one in window.pieces]
            )
            found.append(rows[self.permutation(window.span.start, len(rows))][window.first : window.last])
        return np.concatenate(found)


def _share(sequences: int, total: int, limit: int) -> int:
    """Return the limit for some of the sequences among which ``limit`` is divided, at least 1 for each."""
    return max(1, limit // total) * sequences


def checked_shuffle(shuffle: Any, seed: Any) -> Shuffle | None:
    """Return the kind of shuffle, or None if there is none. True stands for "buffer"."""
    if arguments.seed_of(shuffle, seed, get_args(Shuffle)) is None:
        return None
    return "blocks" if shuffle == "blocks" else "buffer"


def make_order(
    npieces: int,
    counts: Sequence[int] | Ints | None,
    seed: int | None,
    epoch: int,
    buffer: int = 1,
    sizes: Ints | None = None,
    is_grouped: bool = False,
    sequences: int = 1,
) -> Order:
    """Return the order of all rows in an epoch.

    ``counts`` contains the number of rows of each piece, and ``sizes`` the stored bytes.
    """
    pieces = np.arange(npieces)
    if seed is not None:
        pieces = stream("pieces", seed, epoch).permutation(npieces)
    rows = np.ones(npieces, np.int64) if counts is None else np.asarray(counts, np.int64)
    ends = np.concatenate([[0], np.cumsum(rows[pieces])])
    key = None if seed is None else (seed, epoch)
    return Order(pieces, ends, counts is not None, key, buffer, sizes, is_grouped, sequences)


def rows_of_shard(spans: Sequence[Span], shard: Fraction, is_counted: bool, uneven: Uneven) -> list[Span]:
    (index, count), total = shard, total_size(spans)
    first, last = total * index // count, total * (index + 1) // count
    if is_counted and uneven == "drop":
        last = first + total // count
    if is_counted and uneven == "pad":
        longest = -(-total // count)
        first = min(first, total - longest)
        last = first + longest
    return rows_between(spans, first, last)


def rows_of_sequence(rows: int, sequence: Fraction, uneven: Uneven) -> list[Span]:
    """Return one of the sequences into which ``elastic=`` divides the rows of an epoch."""
    return rows_of_shard([Span(0, rows)], sequence, True, uneven)


def rows_of_worker(spans: Sequence[Span], part: Fraction, step: int) -> list[Span]:
    """Return the rows of one part of a shard. Parts are cut only at multiples of ``step`` rows."""
    index, count = part
    steps = -(-total_size(spans) // step)
    return rows_between(spans, steps * index // count * step, steps * (index + 1) // count * step)


def checked_shard(shard: Any) -> Fraction:
    valid = isinstance(shard, tuple | list) and len(shard) == 2
    if valid and all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in shard):
        index, count = map(int, shard)
        if 0 <= index < count:
            return index, count
    problem = f"shard={shard!r} is not a pair: the number of a shard, from 0, and the number of all shards"
    numbers = [int(one) for one in re.findall(r"-?\d+", str(shard))]
    if len(numbers) == 1 and numbers[0] > 1:
        effect = f"read the first of {numbers[0]} shards"
        raise TFRecordError(problem, Remedy("shard", (0, numbers[0]), effect))
    if len(numbers) == 2 and 0 <= min(numbers) < max(numbers):
        index, count = sorted(numbers)
        raise TFRecordError(problem, Remedy("shard", (index, count), f"read shard {index} of {count}"))
    raise TFRecordError(problem, Remedy("shard", (0, 1), "read all rows"))


def checked_ranks(rank: int | None, world_size: int | None) -> Fraction | None:
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        remedies = Remedy("rank", 0), Remedy("world_size", 1, "read all rows")
        raise TFRecordError("rank= and world_size= belong together", *remedies)
    return rank, world_size
