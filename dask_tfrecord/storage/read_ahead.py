"""Read ranges of remote files in order, while later requests are already in flight.

A `ReadAhead` sends the requests of one reader: for one range, or for the ranges of several files that are
read one after the other. The first requests are small, so that decoding begins early. Later requests are sent
while the reader decodes. All readers of a process share a budget of bytes, so a reader that is slower than
the network makes the network wait. A reader that ends early cancels its requests.
"""

import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple, Self

from fsspec import AbstractFileSystem

from dask_tfrecord.errors import FileChangedError
from dask_tfrecord.storage.block_cache import BLOCK_BYTES, BlockCache
from dask_tfrecord.storage.filesystem import Info, is_web
from dask_tfrecord.storage.in_flight import InFlight, in_flight_bytes
from dask_tfrecord.storage.range_requests import (
    MOST_REQUESTS,
    Answer,
    ByteRange,
    ReplacedError,
    RequestCounts,
    is_same,
    request,
    wait,
)
from dask_tfrecord.storage.reader import ExpectedFile, rewritten

# The sizes of the first requests of a reader. All later requests have the last size. Each request ends at a
# multiple of `BLOCK_BYTES`.
_SIZES = (1 << 18, 1 << 20, 1 << 21, 1 << 22)

# Before the reader asks for its second range, at most this many bytes are in flight: a caller that needs only
# the first rows should not wait for the connections of the others.
_FIRST_BYTES = sum(_SIZES) + BLOCK_BYTES

# A range of at most this size is read with one request, for example a block of a file, which has little more
# than 1 MiB.
_ONE_REQUEST = 3 << 19

# A reader has at least about this many requests in flight. If many readers share the budget, the requests are
# smaller, but have at least `_SMALLEST` bytes.
_FEWEST = 4
_SMALLEST = 1 << 20


def requests_for(size: int) -> int:
    """Return about how many requests read a range of ``size`` bytes from start to end."""
    return min(size, 1) if size <= _ONE_REQUEST else -(-size // _SIZES[-1])


# The bytes that the readers of this process have requested and not yet consumed.
_BUDGET = InFlight()


class _Piece(NamedTuple):
    """The bytes ``start`` to ``stop - 1`` of a file: an answer to wait for, or bytes from the cache.

    The answer contains the bytes ``first`` to ``last - 1``, because the cache stores whole blocks.
    """

    start: int
    stop: int
    first: int
    last: int
    found: "Future[Answer] | Any"


class RemoteRange:
    """A range of a remote file. Each call of `read` returns the next bytes.

    ``details`` is the current info of the file, from the first answer of the store.
    """

    def __init__(self, ahead: "ReadAhead", wanted: ByteRange) -> None:
        self._ahead, self.wanted = ahead, wanted
        self.at = wanted.start  # the next byte to request
        self.pieces: deque[_Piece] = deque()
        self.expected: ExpectedFile | None = None
        self._stamp = wanted.stamp
        self._held = 0  # the number of bytes that the last read has returned
        self._found: str | None = None  # the ETag of the first answer
        cache = ahead.cache
        self._key = None
        if cache is not None:
            self._key = cache.key(ahead.fs, wanted.path, wanted.size, wanted.stamp)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next_stop(self, size: int) -> int:
        """Return where a request of about ``size`` bytes ends that continues the last one."""
        stop, left = self.wanted.stop, self.wanted.stop - self.at
        if left <= size or (left <= _ONE_REQUEST and self.at == self.wanted.start):
            return stop
        end = -(-(self.at + size) // BLOCK_BYTES) * BLOCK_BYTES
        return stop if stop - end < BLOCK_BYTES else end

    def send(self, stop: int) -> None:
        """Request the bytes up to ``stop`` that the cache lacks."""
        start, self.at = self.at, stop
        cache = self._ahead.cache
        if self._key is None or cache is None:
            self.pieces.append(_Piece(start, stop, start, stop, self._request(start, stop)))
            return
        for part in cache.find(self._key, start, stop):
            last = part.stop if self.wanted.size is None else min(part.stop, self.wanted.size)
            found: Any = self._request(part.start, last) if part.data is None else part.data
            self.pieces.append(_Piece(max(start, part.start), min(stop, last), part.start, last, found))

    def _request(self, start: int, stop: int) -> "Future[Answer]":
        wanted = self.wanted._replace(start=start, stop=stop, stamp=self._stamp)
        self._ahead.requests += 1
        return request(self._ahead.fs, wanted, self._ahead.counts)

    @property
    def details(self) -> Info:
        self._ahead.send(self)
        stamp = self.wanted.stamp
        # The name of a block in the cache includes the stamp of the file. If the store has another file now,
        # the first answer says so before bytes of the cache are used.
        first, *others = (piece.found for piece in self.pieces)
        found = next((one for one in (first, *others) if isinstance(one, Future)), None)
        if found is None or (found is not first and not stamp):
            return {}
        try:
            answer = wait(found)
        except ReplacedError:
            # Request the range again, whatever the ETag of the file is now.
            self._begin_again()
            return self._info()
        self._found = answer.stamp
        if stamp and not is_same(answer.stamp, stamp):  # only the listings of this store may have this stamp
            now = {**self._info(), "size": answer.size}
            if found is not first:
                self._begin_again()
            self._key = None
            return now
        return {"size": answer.size, "ETag": stamp or answer.stamp}

    def _begin_again(self) -> None:
        self._give_up()
        self._key, self._stamp, self._found, self.at = None, "", None, self.wanted.start
        self._ahead.send(self)

    def _info(self) -> Info:
        assert self.expected is not None
        return self.expected.info()

    def read(self, count: int = -1) -> Any:
        """Return the bytes of the next request. The length of the result does not depend on ``count``."""
        self._release()
        try:
            self._ahead.send(self)
            if not self.pieces:
                return b""
            piece = self.pieces.popleft()
            self._held, self._ahead.is_read = piece.stop - piece.start, True
            return self._content(piece)
        # Even after KeyboardInterrupt, nobody waits for the other requests.
        except BaseException as error:
            self.close()
            if isinstance(error, ReplacedError) and self.expected is not None:
                raise rewritten(self.expected.path) from None
            raise

    def _content(self, piece: _Piece) -> Any:
        counts, data = self._ahead.counts, piece.found
        if isinstance(data, Future):
            self._ahead.requests -= 1
            data = self._checked(piece, wait(data))
        else:
            counts.add(cached_bytes=piece.stop - piece.start)
        data = memoryview(data)[piece.start - piece.first : piece.stop - piece.first]
        if len(data) < piece.stop - piece.start:  # the file ends here
            self._give_up()
        return data

    def _checked(self, piece: _Piece, answer: Answer) -> bytes:
        """Check that an answer belongs to the same file as the first answer, and return its bytes."""
        expected, found = self.expected, self._found
        assert expected is not None
        expected.check_size({"size": answer.size})
        if found is None and not is_same(answer.stamp, self._stamp):  # the first bytes were cached
            expected.check(self._info())
        if found and answer.stamp and not is_same(answer.stamp, found):
            raise rewritten(expected.path)
        self._found = self._stamp = found or answer.stamp
        if not answer.is_range and (piece.first > 0 or piece.stop < self.wanted.stop):
            raise ValueError("the server sends no ranges")
        self._ahead.is_answered = True
        if len(answer.data) > piece.last - piece.first:
            problem = "the server sends more bytes than were requested"
            raise FileChangedError(problem, path=expected.path)
        if self._key is not None and self._ahead.cache is not None:
            self._ahead.cache.store(self._key, piece.first, answer.data, answer.size)
        return answer.data

    def _release(self) -> None:
        self._ahead.give_back(self._held)
        self._held = 0

    def _give_up(self) -> None:
        """Cancel all requests, and request no more."""
        self.at = self.wanted.stop
        while self.pieces:
            piece = self.pieces.popleft()
            self._ahead.give_back(piece.stop - piece.start)
            if isinstance(piece.found, Future):
                self._ahead.cancel(piece.found)

    def close(self) -> None:
        self._give_up()
        self._release()
        self._ahead.closed(self)


class ReadAhead:
    """The requests for ranges that one reader reads one after the other, in this order.

    `open` returns one of the ranges. A range that is not opened costs at most what is in flight. On exit, all
    requests are cancelled. If ``is_sparing`` is True, never more is in flight than before the first read.
    """

    def __init__(
        self,
        fs: AbstractFileSystem,
        ranges: Iterable[ByteRange],
        counts: RequestCounts,
        cache: BlockCache | None,
        *,
        is_sparing: bool = False,
    ) -> None:
        self.fs, self.counts, self.cache = fs, counts, cache
        self._pid, self._limit = os.getpid(), in_flight_bytes()
        self.requests = 0  # in flight
        self._sent = 0  # the number of times that a request was sent
        self.is_read = False  # True after the first read
        # A web server that sends no ranges would send the whole file for each request, so the first answer
        # decides.
        self._must_ask_first = is_web(fs)
        self.is_answered = False
        self._is_sparing = is_sparing
        self._is_closed = False
        self._opened: list[RemoteRange] = []
        self._ranges = deque(RemoteRange(self, one) for one in ranges)
        self._unsent = self._ranges.copy()
        _BUDGET.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _is_of_this_process(self) -> bool:
        return self._pid == os.getpid()

    def open(self, wanted: ByteRange) -> RemoteRange | None:
        """Return a range, and close the ranges before it. Return None for an unknown range."""
        if not any(one.wanted == wanted for one in self._ranges):
            return None
        while (one := self._ranges.popleft()).wanted != wanted:
            one.close()
        self._opened.append(one)
        return one

    def send(self, current: RemoteRange) -> None:
        """Send the requests that the budget allows. Send at least one if ``current`` waits for none."""
        if not self._is_of_this_process:
            raise RuntimeError("the file was opened before the process was forked")
        if not current.pieces and current.at < current.wanted.stop:
            self._send(current, always=True)
        while self._unsent:
            one = self._unsent[0]
            if one.at >= one.wanted.stop:
                self._unsent.popleft()
            elif not self._send(one, always=False):
                return

    def _send(self, one: RemoteRange, *, always: bool) -> bool:
        share = self._limit // max(1, _BUDGET.holders)
        most_of_share = max(_SMALLEST, share // _FEWEST)
        stop = one.next_stop(min(_SIZES[min(self._sent, len(_SIZES) - 1)], most_of_share))
        size = stop - one.at
        if not always:
            # Bytes of the cache are read at once, so they only take memory if they are read early.
            is_cached = bool(one.pieces) and not isinstance(one.pieces[-1].found, Future)
            is_little = self._is_sparing or not self.is_read or is_cached
            most = 1 if self._must_ask_first and not self.is_answered else MOST_REQUESTS
            most_bytes = min(share, _FIRST_BYTES) if is_little else share
            if self.requests >= most or _BUDGET.held_by(self) + size > most_bytes:
                return False
        if not _BUDGET.take(self, size, None if always else self._limit):
            return False
        self._sent += 1
        one.send(stop)
        return True

    def give_back(self, size: int) -> None:
        """Say that bytes were consumed, or are no longer wanted."""
        if self._is_of_this_process:
            _BUDGET.give_back(self, size)

    def cancel(self, found: "Future[Answer]") -> None:
        self.requests -= 1
        if self._is_of_this_process:  # a forked process has no event loop of its parent
            found.cancel()

    def closed(self, one: RemoteRange) -> None:
        """End if no range is left."""
        if one in self._opened:
            self._opened.remove(one)
            if not self._opened and not self._ranges:
                self.close()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for one in (*self._ranges, *self._opened):
            one.close()
        self._ranges.clear()
        self._unsent.clear()
        if self._is_of_this_process:
            _BUDGET.remove(self)
