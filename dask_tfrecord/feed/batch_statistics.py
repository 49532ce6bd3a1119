"""Count the cost of a feed's batches, and log if a program waits for them."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, fields
from threading import Lock
from time import perf_counter
from typing import Any, Self

from dask_tfrecord.storage.range_requests import RequestCounts

logger = logging.getLogger(__name__)

# A message is logged if a program waited for more than `_TOLERATED` of the time since the last one, at most
# every `_LOG_SECONDS` seconds.
_LOG_SECONDS = 10.0
_TOLERATED = 0.2


@dataclass(frozen=True)
class BatchStatistics:
    """The cost of an iteration so far, as `Batches.statistics` returns it.

    It prints as a table. ``a + b`` is the sum, such as that of several workers, and ``a - b`` what was added
    since ``b``.

    Attributes
    ----------
    batches, rows : int
        The number of batches and rows that were returned.
    seconds : float
        The time from the request of the first batch to the return of the newest batch.
    seconds_waited : float
        The part of ``seconds`` in which the program waited for batches, in ``next``.
    seconds_without_data : float
        The part of ``seconds_waited`` in which no block was ready. In the rest, the calling thread decoded
        and converted batches.
    seconds_read : float
        The time in which threads waited for the store, the disk or a Dask cluster, summed over the threads.
    seconds_decoded : float
        The CPU time of all threads, including the calling one, for reading, decoding and converting rows.
    bytes_read : int
        The stored size of the blocks that were read. For a Dask collection, the size of the partitions.
    bytes_ready : int
        The size of the blocks that were read ahead and are ready, in memory.
    bytes_received : int
        The number of bytes that a remote store has sent.
    bytes_cached : int
        The number of bytes that came from a cache on a local disk instead.
    requests, retries : int
        The number of requests for ranges of files of a remote store, and how many of them repeated a failed
        request.
    """

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    seconds_waited: float = 0.0
    seconds_without_data: float = 0.0
    seconds_read: float = 0.0
    seconds_decoded: float = 0.0
    bytes_read: int = 0
    bytes_ready: int = 0
    bytes_received: int = 0
    bytes_cached: int = 0
    requests: int = 0
    retries: int = 0

    def __add__(self, other: Self) -> Self:
        return self._combined(other, 1)

    def __sub__(self, other: Self) -> Self:
        return self._combined(other, -1)

    def _combined(self, other: Self, sign: int) -> Self:
        names = [field.name for field in fields(self)]
        return type(self)(**{name: getattr(self, name) + sign * getattr(other, name) for name in names})

    def __str__(self) -> str:
        lines = []
        for name in (field.name for field in fields(self)):
            value: Any = getattr(self, name)
            text = f"{value:,}"
            if name.startswith("bytes"):
                text = f"{value / 2**20:,.1f} MiB"
            elif name.startswith("seconds"):
                text = f"{value:,.2f} s"
                if name in ("seconds_waited", "seconds_without_data") and value:
                    text += f" ({value / self.seconds:.0%})"
            lines.append((name, text))
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name.replace('_', ' '):{width}}  {value:>16}" for name, value in lines)


class Counters:
    """Count what one iteration costs. Several threads may count at the same time.

    ``ahead`` contains the pieces that are read ahead. ``without_data`` is the time in which no piece was
    ready. In the rest of the time of a call, the calling thread decodes. Reads add their requests to
    ``requests``.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._pieces: list[Iterable[Any]] = []
        self.requests = RequestCounts()
        self._begun: float | None = None
        self._batches = self._rows = self._bytes = 0
        self._seconds = self._waited = self._read = self._decoded = 0.0
        self.without_data = 0.0
        self._logged = BatchStatistics()

    @property
    def ahead(self) -> list[Any]:
        """The pieces that are read ahead."""
        return [one for pieces in self._pieces for one in list(pieces)]

    def add_ahead(self, pieces: Iterable[Any]) -> None:
        """Count pieces that are read ahead, until `drop_ahead` is called."""
        self._pieces = [*self._pieces, pieces]

    def drop_ahead(self, pieces: Iterable[Any]) -> None:
        self._pieces = [one for one in self._pieces if one is not pieces]

    def add_piece(self, seconds: float, cpu: float, nbytes: int) -> None:
        """Count a piece that was read in ``seconds``, of which ``cpu`` were CPU time."""
        with self._lock:
            self._read += max(0.0, seconds - cpu)
            self._decoded += cpu
            self._bytes += nbytes

    def add_batch(self, rows: int, start: float, cpu: float | None = None) -> None:
        """Count a batch that was requested at the time ``start``, and log if the program waits too long.

        If the calling thread has read the batch itself, ``cpu`` is its CPU time since the request. Several
        threads may then read batches at the same time, so no message says how long the program waited.
        """
        now = perf_counter()
        with self._lock:
            self._begun = start if self._begun is None else self._begun
            self._batches += 1
            self._rows += rows
            self._seconds = now - self._begun
            self._waited += now - start
            if cpu is not None:
                waited = max(0.0, now - start - cpu)
                self.without_data += waited
                self._read += waited
        if cpu is None and self._seconds - self._logged.seconds >= _LOG_SECONDS:
            recent, self._logged = self._logged, self.statistics()
            if message := waiting_message(self._logged - recent):
                logger.info("%s", message)

    def statistics(self) -> BatchStatistics:
        ready = sum(one.nbytes for one in self.ahead)
        requests = self.requests
        with self._lock:
            # `_waited` does not count a call that has not returned a batch.
            without_data = min(self.without_data, self._waited)
            return BatchStatistics(
                self._batches,
                self._rows,
                self._seconds,
                self._waited,
                without_data,
                self._read,
                self._decoded + self._waited - without_data,
                self._bytes,
                ready,
                requests.bytes,
                requests.cached_bytes,
                requests.requests,
                requests.retries,
            )


def waiting_message(recent: BatchStatistics) -> str | None:
    """Return the message about the time since the last message, or None if the program hardly waited."""
    if recent.seconds_waited <= _TOLERATED * recent.seconds:
        return None
    if recent.seconds_without_data < recent.seconds_waited / 2:
        cause = "the calling thread decodes and converts the batches"
        advice = "read fewer columns, or convert the batches in workers"
    elif recent.seconds_read > recent.seconds_decoded:
        cause = "the blocks arrive too late"
        advice = "read further ahead with prefetch="
    else:
        cause = "the threads that read ahead are busy with decoding"
        advice = "read fewer columns, or take more workers"
    return (
        f"the program waited for batches in {recent.seconds_waited / recent.seconds:.0%} of the last "
        f"{recent.seconds:.0f} s, because {cause}: {advice}"
    )
