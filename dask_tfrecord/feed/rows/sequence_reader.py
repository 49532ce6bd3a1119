"""Read the rows of several sequences of one source, and decode rows of all sequences together.

A sequence is a share of an epoch with a fixed order, such as one of the sequences of ``elastic=``. One
`LookAhead` reads the pieces of all sequences in the order in which they are needed. A window of a sequence is
loaded when its first row is needed, and dropped when its last row was taken.
"""

from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_tfrecord.codec import Ints
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.feed.batch_statistics import Counters
from dask_tfrecord.feed.rows.epoch_order import Order, Prefetch, Slice, Span, Window
from dask_tfrecord.feed.rows.look_ahead import Depth, LookAhead, PieceReader
from dask_tfrecord.feed.rows.sources import DatasetSource, RecordReader, RecordWindow, WindowMemory

# Stands for the number of slices that need a piece, if its rows are read again and again.
_ALWAYS = 1 << 60

# Rows of about this many bytes are decoded together, unless a batch is larger.
_TABLE_BYTES = 1 << 23

# The rows of a sequence: spans of one order, or of several orders that follow each other. The reader iterates
# twice over each chain.
Chain: TypeAlias = Iterable[tuple[Order, list[Span]]]


class Mark(NamedTuple):
    """A loaded window of a sequence, and the spans that follow it.

    ``begin`` and ``end`` count the rows of the sequence before the window, and up to the end of the window.
    ``link`` is the index of the window's order in the chain. The first mark of a sequence has no rows.
    """

    begin: int
    end: int
    link: int
    span: Span
    following: list[Span]


class Position(NamedTuple):
    """Finds the rows that remain after any rows of the loaded windows."""

    marks: tuple[tuple[Mark, ...], ...]

    def remaining(self, taken: Ints) -> list[tuple[int, list[Span]]]:
        """Return the rows of each sequence that remain after ``taken`` rows of it.

        The number beside the spans is the index of their order in the chain of the sequence.
        """
        return [_remaining(marks, count) for marks, count in zip(self.marks, taken.tolist(), strict=True)]


def _remaining(marks: Sequence[Mark], taken: int) -> tuple[int, list[Span]]:
    # A state does not say whether the next window was loaded.
    mark = next(mark for mark in marks if mark.end >= taken)
    left = mark.following if mark.end == taken else [mark.span.after(taken - mark.begin), *mark.following]
    return mark.link, left


def beginning_of(sequences: Iterable[list[Span]]) -> Position:
    """Return the position before the first row."""
    return Position(tuple((Mark(0, 0, 0, Span(0, 0), spans),) for spans in sequences))


class _Loaded:
    """The rows of a window that were not taken yet."""

    def __init__(self, rows: pa.Table | RecordWindow, start: int, stop: int) -> None:
        self.rows, self.start, self.stop = rows, start, stop


class SequenceReader:
    """Read the rows of sequences of one source.

    Call `ready` to load rows, and `take` to decode some of the rows that are ready. ``chains`` contains the
    rows of each sequence. All orders of the chains divide the same pieces of the source. ``share`` is the
    part of the memory and of the threads that this reader may use. Several readers may share ``memory``.
    ``records`` decodes the records, or is None if the windows contain decoded rows.
    """

    def __init__(
        self,
        source: Any,
        prefetch: Prefetch,
        chains: Sequence[Chain],
        counters: Counters,
        share: float = 1.0,
        memory: WindowMemory | None = None,
    ) -> None:
        self._source, self._chains = source, chains
        order = next(iter(chains[0]))[0]
        keeps = isinstance(source, DatasetSource) and source.keeps_records
        self.records: RecordReader | None = None
        if keeps and (order.seed is not None or len(chains) > 1 or memory is not None):
            self.records = RecordReader(source, memory or WindowMemory(), counters.requests)
        self._ahead: LookAhead[Any] | None = None
        pieces = self._pieces(prefetch, order, counters, share)
        self._windows = [
            self._load(index, chain, one)
            for index, (chain, one) in enumerate(zip(chains, pieces, strict=True))
        ]
        self._queues: list[deque[_Loaded]] = [deque() for _ in chains]
        self._marks = list(beginning_of(next(iter(chain))[1] for chain in chains).marks)
        self._taken = np.zeros(len(chains), np.int64)
        self._ready = np.zeros(len(chains), np.int64)
        self._loaded_rows = self._loaded_bytes = 0

    def __enter__(self) -> "SequenceReader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def begin(self) -> None:
        """Begin to read ahead, before the first rows are needed."""
        if self._ahead is not None:
            self._ahead.begin()

    def close(self) -> None:
        """Stop reading ahead, and drop all rows."""
        if self._ahead is not None:
            self._ahead.close()
        for queue in self._queues:
            queue.clear()

    @property
    def path(self) -> str:
        """The path of the dataset, for errors."""
        path: str = self._source.dataset.store.public()
        return path

    @property
    def position(self) -> Position:
        """The position, from which the rows after any of the ready rows can be found."""
        return Position(tuple(self._marks))

    @property
    def taken(self) -> Ints:
        """The number of rows of each sequence that were taken or skipped."""
        return self._taken.copy()

    @property
    def rows_together(self) -> int:
        """The number of rows that are decoded together fastest."""
        return self._loaded_rows * _TABLE_BYTES // max(1, self._loaded_bytes)

    @property
    def rows_of_window(self) -> int:
        """The number of rows that remain of the current window of the first sequence."""
        queue = self._queues[0]
        return queue[0].stop - queue[0].start if queue else 0

    def ready(self, least: Ints, most: Ints | None = None) -> Ints:
        """Load windows until at least ``least[s]`` rows of each sequence ``s`` can be taken.

        Load windows for ``most`` rows only if they can be loaded without waiting. Return how many rows of
        each sequence can be taken: fewer than ``least`` only at the end of a sequence.
        """
        self._load_windows(least)
        if most is not None and self._ahead is not None:
            self._ahead.waits = False
            self._load_windows(most)
            self._ahead.waits = True
        return self._ready.copy()

    def _load_windows(self, wanted: Ints) -> None:
        for index in np.flatnonzero(self._ready < wanted).tolist():
            while self._ready[index] < wanted[index] and next(self._windows[index], False):
                pass

    def take(self, counts: Ints, is_kept: npt.NDArray[np.bool_] | None = None) -> pa.Table:
        """Decode rows that are ready, in the order of the steps, and within a step of the sequences.

        ``counts`` contains a row for each step, and a column for each sequence. ``is_kept`` contains a value
        for each step. The rows of the other steps are taken, but not returned.
        """
        is_one = len(self._chains) == 1 and is_kept is None
        order = None if is_one else interleaved(counts, is_kept)
        ranges = self.take_ranges(counts)
        if self.records is not None:
            return self.records.decode(ranges, order)
        table = joined([rows.slice(start, stop - start) for rows, start, stop in ranges])
        return table if order is None else in_order(table, order)

    def take_ranges(self, counts: Ints) -> list[tuple[Any, int, int]]:
        """Take rows without decoding them. Return ranges of rows of windows, in the order of the sequences.

        A range is a window, and the indices of its first row and of the one after its last.
        """
        each = enumerate(counts.sum(axis=0).tolist())
        return [one for index, count in each for one in self._taken_ranges(index, count)]

    def _taken_ranges(self, index: int, count: int) -> Iterator[tuple[Any, int, int]]:
        queue = self._queues[index]
        self._taken[index] += count
        self._ready[index] -= count
        while count:
            one = queue[0]
            stop = min(one.start + count, one.stop)
            count -= stop - one.start
            yield one.rows, one.start, stop
            one.start = stop
            if stop == one.stop:
                queue.popleft()

    def _load(self, index: int, chain: Chain, pieces: Iterator[Any]) -> Generator[bool, None, None]:
        """Load the windows of a sequence, one at a time. Yield False if the next window is not ready."""
        begin = 0
        for link, (order, spans) in enumerate(chain):
            for window in order.ready_windows(spans, pieces):
                if window is None:
                    yield False
                    continue
                rows = self._rows_of(order, window)
                self._loaded_rows += rows.num_rows
                self._loaded_bytes += rows.nbytes
                self._queues[index].append(_Loaded(rows, window.first, window.last))
                del rows
                count, taken = window.last - window.first, int(self._taken[index])
                marks = [mark for mark in self._marks[index] if mark.end >= taken]
                self._marks[index] = (*marks, Mark(begin, begin + count, link, window.span, window.following))
                begin += count
                self._ready[index] += count
                del window
                yield True

    def _rows_of(self, order: Order, window: Window[Any]) -> pa.Table | RecordWindow:
        numbers = None if order.seed is None else order.permutation(window.span.start, window.count)
        pieces, window.pieces = window.pieces, []
        if self.records is not None:
            return self.records.window(pieces, numbers)
        table = joined(pieces)
        return table if numbers is None else in_order(table, numbers)

    def _pieces(
        self, prefetch: Prefetch, order: Order, counters: Counters, share: float
    ) -> list[Iterator[Any]]:
        """Return the rows of the slices of each sequence."""
        source = self._source
        decode = partial(source.read, counts=counters.requests)
        read = decode if self.records is None else self.records.read
        reader = PieceReader(read, order, counters, _uses(self._chains), share)
        slices = [_slices(index, chain) for index, chain in enumerate(self._chains)]
        if prefetch.pieces == 0:
            return [_read_now(reader, one, counters) for one in slices]
        stream = None
        if source.is_remote and self.records is None and order.seed is None and len(slices) == 1:
            stream = partial(source.stream, counts=counters.requests)
        depth = Depth.of(prefetch, source.is_remote, order, len(slices), share)
        needed = ((index, piece) for _, index, piece in merge(*slices))
        self._ahead = LookAhead(reader, needed, len(slices), order, depth, counters, stream)
        return [self._ahead.pieces(index) for index in range(len(slices))]


def _slices(index: int, chain: Chain) -> Iterator[tuple[int, int, Slice]]:
    """Yield the slices of a sequence, with the number of rows before each slice."""
    row = 0
    for order, spans in chain:
        for span in spans:
            for one in order.slices(span):
                yield row, index, one
                row += one.num_rows


def _uses(chains: Sequence[Chain]) -> dict[int, int]:
    """Return how many sequences need each piece at one of their ends, for the pieces that several need.

    Only the first order of each chain counts. If a second order follows, it needs all pieces again.
    """
    pieces: Counter[int] = Counter()
    for chain in chains:
        orders = [*islice(chain, 2)]
        for order, spans in orders[:1]:
            ends = [one.piece for span in spans for one in order.slices(span)]
            pieces.update(ends[:1] + ends[1:][-1:])
        for order, _ in orders[1:]:
            pieces.update(dict.fromkeys(order.pieces.tolist(), _ALWAYS))
    return {piece: count for piece, count in pieces.items() if count > 1}


def _read_now(
    reader: PieceReader[Any], slices: Iterator[tuple[int, int, Slice]], counters: Counters
) -> Iterator[Any]:
    for _, _, one in slices:
        start = perf_counter()
        rows = reader.cut(reader.read(one.piece), one)
        counters.without_data += perf_counter() - start
        yield rows
        del rows


def interleaved(counts: Ints, is_kept: npt.NDArray[np.bool_] | None) -> Ints:
    """Return the order of the steps, for rows that are in the order of the sequences."""
    rows = int(counts[0, 0])
    if is_kept is None and (counts == rows).all():
        steps, sequences = counts.shape
        uniform: Ints = np.arange(counts.size * rows).reshape(sequences, steps, rows)
        return uniform.swapaxes(0, 1).ravel()
    sizes: Ints = counts.T.ravel()
    # Where the rows of each step and sequence begin, among the rows in the order of the sequences.
    firsts = (np.cumsum(sizes) - sizes).reshape(counts.T.shape).T
    if is_kept is not None:
        firsts, counts = firsts[is_kept], counts[is_kept]
    sizes = counts.ravel()
    ends = np.cumsum(sizes)
    order: Ints = np.arange(ends[-1]) + np.repeat(firsts.ravel() - (ends - sizes), sizes)
    return order


def in_order(table: pa.Table, order: Ints) -> pa.Table:
    try:
        return table.combine_chunks().take(pa.array(order))
    except pa.ArrowInvalid as error:  # the rows contain more than 2 GiB of text or bytes
        raise TFRecordError(
            f"{table.num_rows:,} rows cannot be shuffled together: {error}",
            "shuffle with RecordTable, or write the dataset with to_tfrecord, in small blocks",
        ) from None


def joined(tables: list[pa.Table]) -> pa.Table:
    if len(tables) == 1:
        return tables[0]
    table = pa.concat_tables(tables)
    has_categories = any(pa.types.is_dictionary(item.type) for item in table.schema)
    return table.unify_dictionaries() if has_categories else table
