"""Bound the bytes in flight from remote stores to this process, and from it to them."""

from collections.abc import Callable
from threading import Condition
from typing import Any
from weakref import WeakKeyDictionary

from dask_tfrecord.storage.forked import in_forked_processes

_limit: Callable[[], int] = lambda: 1 << 26  # noqa: E731  # replaced by `limit_in_flight`


def in_flight_bytes() -> int:
    """Return how many bytes all readers of this process may have in flight, and the same for all writers."""
    return _limit()


def limit_in_flight(limit: Callable[[], int]) -> None:
    """Set the function that returns the limit."""
    global _limit
    _limit = limit


class InFlight:
    """Count the bytes that the readers, or the writers, of this process have in flight.

    The bytes of a reader go when it ends, even if an interrupt came between a request and its count. A forked
    process begins with no bytes, because it cannot wait for the requests of its parent.
    """

    def __init__(self) -> None:
        self._begin()
        in_forked_processes(self._begin)

    def _begin(self) -> None:
        self._condition = Condition()  # at a fork, another thread may hold the old one
        self._bytes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    @property
    def holders(self) -> int:
        """The number of readers or writers."""
        return len(self._bytes)

    @property
    def used(self) -> int:
        return sum(self._bytes.values())

    def held_by(self, holder: Any) -> int:
        return self._bytes.get(holder, 0)

    def add(self, holder: Any) -> None:
        with self._condition:
            self._bytes[holder] = 0

    def remove(self, holder: Any) -> None:
        with self._condition:
            self._bytes.pop(holder, None)

    def take(self, holder: Any, size: int, limit: int | None) -> bool:
        """Count ``size`` bytes as in flight. Return False if more than ``limit`` bytes would be in flight."""
        with self._condition:
            if limit is not None and self.used + size > limit:
                return False
            self._bytes[holder] = self.held_by(holder) + size
            return True

    def wait_and_take(self, holder: Any, size: int) -> None:
        """Count ``size`` bytes as soon as they fit into the limit, or the holder has no bytes in flight."""
        limit = in_flight_bytes()
        with self._condition:
            self._condition.wait_for(lambda: self.used + size <= limit or not self.held_by(holder))
            self._bytes[holder] = self.held_by(holder) + size

    def give_back(self, holder: Any, size: int) -> None:
        with self._condition:
            if holder in self._bytes:
                self._bytes[holder] -= size
            self._condition.notify_all()
