"""Read the pieces of an epoch ahead: threads read the next pieces while the program uses the current ones.

The pieces are returned in the order of the epoch. How far the threads read ahead is limited by the number of
pieces, or by their size in memory. The number of threads does not depend on this limit.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from queue import SimpleQueue
from threading import Lock
from time import perf_counter, thread_time
from typing import Generic, NamedTuple
from weakref import WeakValueDictionary

from dask_tfrecord.feed.batch_statistics import Counters
from dask_tfrecord.feed.rows.epoch_order import Order, Prefetch, Rows, Slice
from dask_tfrecord.feed.rows.sources import WINDOW_BYTES

# The largest number of pieces that are read at the same time, for a remote store and for anything else.
_REMOTE_THREADS = 16
_LOCAL_THREADS = 2

# Pieces of this size keep the connections to a remote store busy.
_REMOTE_BYTES = 1 << 26

# A smaller window of local files is not read while the window before it is used: the records would leave the
# caches of the processor, and reading them takes little time.
_LOCAL_WINDOW = 1 << 25

# A piece may take much less memory than its stored size, for example if few columns are read. The limit of
# the size counts each piece with at least this fraction of its stored size.
_LEAST_RATIO = 1 / 8

# Pieces that another sequence needs later are kept up to this size in all.
_KEPT_BYTES = 1 << 26

# A size that exceeds every limit.
_UNKNOWN = 1 << 60


class Depth(NamedTuple):
    """How far threads read ahead: at least ``pieces`` pieces, and more if they take at most ``nbytes`` bytes.

    The threads also read ahead until the pieces fill a shuffle window, if they take at most ``window_bytes``
    bytes. At most ``threads`` pieces are read at the same time.
    """

    pieces: int
    nbytes: int
    window_bytes: int
    threads: int

    @classmethod
    def of(
        cls, prefetch: Prefetch, is_remote: bool, order: Order, sequences: int = 1, share: float = 1.0
    ) -> "Depth":
        """Return the depth for the pieces of some sequences. ``share`` multiplies all limits."""
        threads = ceil(share * (_REMOTE_THREADS if is_remote else _LOCAL_THREADS))
        if prefetch.pieces is not None:
            count = ceil(share * prefetch.pieces)
            return cls(count, 0, 0, min(count, _REMOTE_THREADS))
        if prefetch.nbytes is not None:
            return cls(1, int(share * prefetch.nbytes), 0, threads)
        pieces, window = sequences + 1, int(share * WINDOW_BYTES)
        if is_remote:
            return cls(pieces, int(share * _REMOTE_BYTES), window, threads)
        is_large = share < 1 or order.window_bytes(sequences) > _LOCAL_WINDOW
        return cls(pieces, 0, window if is_large else 0, threads)


class _Ahead(Generic[Rows]):
    """A piece of a sequence that is being read, or that is ready.

    ``cost``, the size that counts for the limit of the read-ahead, and ``num_rows`` are estimates until the
    piece is ready. ``nbytes`` is the size in memory of the rows that are ready and were not taken. Each item
    in ``found`` is rows, None or an error, and True for the last item of the piece.
    """

    def __init__(self, piece: Slice, cost: int) -> None:
        self.piece, self.cost, self.num_rows = piece, cost, piece.num_rows
        self.nbytes = self.all_bytes = self.all_rows = 0
        self.has_failed = False
        self.whole: Rows | None = None  # other slices of the piece, which are read next, share its memory
        self.found: SimpleQueue[tuple[Rows | BaseException | None, bool]] = SimpleQueue()


class PieceReader(Generic[Rows]):
    """Read whole pieces, and count what the reads cost. Several threads may call `read` at the same time.

    ``uses`` contains the pieces that several slices need, and how many. Such a piece is kept until its last
    slice was cut, if all kept pieces take at most ``share`` of `_KEPT_BYTES`. If it is still in memory, it is
    not read again.
    """

    def __init__(
        self,
        read_piece: Callable[[int], Rows],
        order: Order,
        counters: Counters,
        uses: Mapping[int, int] | None = None,
        share: float = 1.0,
    ) -> None:
        self._read_piece: Callable[[int], Rows] = read_piece
        self._order, self._counters = order, counters
        self._lock = Lock()
        self._uses = dict(uses or {})
        self._kept: dict[int, Rows] = {}
        self._kept_bytes, self._most_bytes = 0, int(share * _KEPT_BYTES)
        self._in_memory: WeakValueDictionary[int, Rows] = WeakValueDictionary()

    def read(self, piece: int) -> Rows:
        if piece in self._uses:
            with self._lock:
                if (rows := self._in_memory.get(piece)) is not None:
                    return rows
        start, cpu = perf_counter(), thread_time()
        rows = self._read_piece(piece)
        stored = self._order.stored_size(piece)  # if it is unknown, the size in memory counts
        nbytes = rows.nbytes if stored is None else stored
        self._counters.add_piece(perf_counter() - start, thread_time() - cpu, nbytes)
        return rows

    def cut(self, rows: Rows, piece: Slice) -> Rows:
        """Cut the rows of a slice out of those of the whole piece."""
        if piece.piece in self._uses:
            with self._lock:
                self._count_use(piece.piece, rows)
        is_whole = piece.stop is None or piece.num_rows == rows.num_rows
        return rows if is_whole else rows.slice(piece.start, piece.num_rows)

    def _count_use(self, piece: int, rows: Rows) -> None:
        self._uses[piece] -= 1
        self._in_memory[piece] = rows
        is_kept, nbytes = piece in self._kept, rows.nbytes
        if self._uses[piece] <= 0 and is_kept:
            del self._kept[piece]
            self._kept_bytes -= nbytes
        elif self._uses[piece] > 0 and not is_kept and self._kept_bytes + nbytes <= self._most_bytes:
            self._kept[piece] = rows
            self._kept_bytes += nbytes


class LookAhead(Generic[Rows]):
    """Read the slices of several sequences in threads, and return the rows of each sequence in order.

    ``slices`` yields the index of a sequence and a slice, in the order in which the slices are needed.
    If ``stream_piece`` is passed, it reads the pieces instead of ``reader``, and the rows of a slice are
    returned in parts, as they arrive.
    """

    def __init__(
        self,
        reader: PieceReader[Rows],
        slices: Iterable[tuple[int, Slice]],
        sequences: int,
        order: Order,
        depth: Depth,
        counters: Counters,
        stream_piece: Callable[[int], Iterable[Rows]] | None = None,
    ) -> None:
        self._reader: PieceReader[Rows] = reader
        self._stream_piece: Callable[[int], Iterable[Rows]] | None = stream_piece
        self._slices, self._order = iter(slices), order
        self._depth, self._counters = depth, counters
        self._lock = Lock()
        self._next = next(self._slices, None)  # the first slice that no thread has begun to read
        # A dict keeps the order in which threads begin to read the pieces.
        self._ahead: dict[_Ahead[Rows], None] = {}
        self._of_sequence: list[deque[_Ahead[Rows]]] = [deque() for _ in range(sequences)]
        # For each piece that a thread reads, the slices that need it.
        self._reading: dict[int, list[_Ahead[Rows]]] = {}
        self._cost = self._num_rows = 0  # of all pieces in `_ahead`
        self._in_memory = self._in_files = 0  # the sizes of all pieces that were read
        self._running = 0  # the number of threads that read a piece
        self._awaited: int | None = None  # the sequence whose first piece the program waits for
        self.waits = True  # False if `pieces` yields None in place of waiting for rows
        self._is_closed = False
        self._pool = ThreadPoolExecutor(depth.threads, thread_name_prefix="dask_tfrecord-read")
        counters.add_ahead(self._ahead)

    def pieces(self, sequence: int) -> Generator[Rows | None, None, None]:
        """Yield the rows of a sequence, until it has no more slices.

        Yield None if the next rows are not ready and ``waits`` is False.
        """
        while True:
            while not self.waits and not self._is_ready(sequence):
                yield None
            if not self._begin_first(sequence):
                return
            is_last = False
            while not is_last:
                rows, is_last = self._take(sequence)
                if rows is not None:
                    yield rows
                del rows

    def _is_ready(self, sequence: int) -> bool:
        pieces = self._of_sequence[sequence]
        return bool(pieces) and not pieces[0].has_failed and not pieces[0].found.empty()

    def close(self) -> None:
        # Python may delete the iterator while this thread has a lock of this object, so this method takes no
        # lock, and does not wait for the threads. Each thread ends after its current piece.
        self._is_closed = True
        self._counters.drop_ahead(self._ahead)
        self._clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _clear(self) -> None:
        self._ahead.clear()
        for pieces in self._of_sequence:
            pieces.clear()

    def _take(self, sequence: int) -> tuple[Rows | None, bool]:
        """Wait for rows of the first piece of a sequence. Return True with the last rows of the piece."""
        first = self._of_sequence[sequence][0]
        start = perf_counter()
        try:
            rows, is_last = first.found.get()
        finally:
            self._counters.without_data += perf_counter() - start
        if isinstance(rows, BaseException):
            raise rows
        with self._lock:
            self._awaited = None
            first.nbytes -= 0 if rows is None else rows.nbytes
            if is_last:
                self._of_sequence[sequence].popleft()
                self._ahead.pop(first, None)
                self._cost -= first.cost
                self._num_rows -= first.num_rows
        del first
        if is_last:
            self.begin()
        return rows, is_last

    def _begin_first(self, sequence: int) -> bool:
        """Begin to read the first piece of a sequence, even if the pieces ahead suffice.

        Return False if the sequence has no more pieces.
        """
        self._awaited = sequence
        self.begin()
        return bool(self._of_sequence[sequence])

    def begin(self) -> None:
        """Start as many threads as may read now. Only the thread that takes the pieces starts others."""
        while True:
            with self._lock:
                if self._running >= self._depth.threads and not self._is_missing():
                    return
                if (one := self._next_piece()) is None:
                    return
                self._running += 1
            self._pool.submit(self._read_all, one)

    def _is_missing(self) -> bool:
        """Return True if the program waits for a piece that no thread has begun to read."""
        return self._awaited is not None and not self._of_sequence[self._awaited]

    def _next_piece(self) -> _Ahead[Rows] | None:
        """Return the next piece to read, or None if the pieces ahead suffice."""
        if self._is_closed:
            self._clear()  # `close` may have cleared the pieces before a thread added its next one
            return None
        while self._next is not None and not self._is_enough(self._next[1]):
            sequence, piece = self._next
            found: _Ahead[Rows] = _Ahead(piece, self._estimate(piece))
            self._next = next(self._slices, None)
            self._ahead[found] = None
            self._of_sequence[sequence].append(found)
            self._cost += found.cost
            self._num_rows += found.num_rows
            same = self._reading.setdefault(piece.piece, [])
            same.append(found)
            if len(same) == 1 or self._stream_piece is not None:
                return found
        return None

    def _is_enough(self, piece: Slice) -> bool:
        """Return True if the pieces ahead suffice without this one."""
        depth, cost = self._depth, self._cost + self._estimate(piece)
        is_awaited = self._awaited is not None
        if len(self._ahead) - is_awaited < depth.pieces or cost <= depth.nbytes or self._is_missing():
            return False
        if cost > depth.window_bytes:
            return True
        ahead = [one.piece for one in list(self._ahead)]
        return self._order.is_full(ahead, self._num_rows, self._cost, len(self._of_sequence))

    def _estimate(self, piece: Slice) -> int:
        """Estimate the size of a piece in memory from the pieces that were read."""
        stored = self._order.stored_size(piece.piece)
        if not self._in_files:
            return _UNKNOWN if stored is None else stored
        return int((stored or 1) * max(_LEAST_RATIO, self._in_memory / self._in_files))

    def _read_all(self, one: _Ahead[Rows] | None) -> None:
        """Read pieces until those ahead suffice."""
        while one is not None:
            one = self._read_one(one)

    def _read_one(self, one: _Ahead[Rows]) -> _Ahead[Rows] | None:
        try:
            if self._stream_piece is not None:
                self._stream(self._stream_piece, one)
                return self._finish(one, None)
            rows = self._reader.read(one.piece.piece)
        except BaseException as error:
            return self._finish(one, error)
        return self._finish(one, rows)

    def _stream(self, stream_piece: Callable[[int], Iterable[Rows]], one: _Ahead[Rows]) -> None:
        """Make the rows of a piece ready as they arrive."""
        start, cpu, nbytes = perf_counter(), thread_time(), 0
        left, wanted = one.piece.start, one.piece.num_rows
        for rows in stream_piece(one.piece.piece):
            part = rows.slice(left, max(0, min(wanted, rows.num_rows - left)))
            left, wanted = max(0, left - rows.num_rows), wanted - part.num_rows
            nbytes += part.nbytes
            with self._lock:
                self._count(one, part)
            one.found.put((part, False))
            del rows, part
            if self._is_closed:
                break
        stored = self._order.stored_size(one.piece.piece)
        nbytes = nbytes if stored is None else stored
        self._counters.add_piece(perf_counter() - start, thread_time() - cpu, nbytes)

    def _count(self, one: _Ahead[Rows], rows: Rows) -> None:
        """Count rows of a piece. Call this method with the lock."""
        nbytes = rows.nbytes
        one.nbytes += nbytes
        one.all_bytes += nbytes
        one.all_rows += rows.num_rows

    def _finish(self, first: _Ahead[Rows], rows: Rows | BaseException | None) -> _Ahead[Rows] | None:
        """Prepare the last rows of a piece for all slices that need it.

        Return the next piece for this thread to read.
        """
        with self._lock:
            same = self._reading.pop(first.piece.piece, [])
            same = same if self._stream_piece is None else [first]
            ready = [(one, self._finished(one, rows)) for one in same]
            is_over = _is_exiting() or self._running > self._depth.threads
            following = None if is_over else self._next_piece()
            self._running -= following is None
        for one, found in ready:  # without the lock, for which the waiting program would wait again
            one.found.put((found, True))
        return following

    def _finished(self, one: _Ahead[Rows], rows: Rows | BaseException | None) -> Rows | BaseException | None:
        """Count what a slice takes, and return its rows."""
        if isinstance(rows, BaseException):
            one.has_failed = True
            return rows
        found = None
        if rows is not None:
            found = self._reader.cut(rows, one.piece)
            one.whole = rows
            self._count(one, found)
        stored = self._order.stored_size(one.piece.piece)
        cost = max(one.all_bytes, int(_LEAST_RATIO * (stored or 0)))
        self._cost += cost - one.cost
        self._num_rows += one.all_rows - one.num_rows
        one.cost, one.num_rows = cost, one.all_rows
        self._in_memory += one.all_bytes
        self._in_files += stored or 1
        return found


def _is_exiting() -> bool:
    """Return True if Python waits for the threads of all pools to end."""
    return bool(getattr(futures.thread, "_shutdown", False))  # checked with Python 3.11 to 3.14
