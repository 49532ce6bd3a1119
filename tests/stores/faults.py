"""A counter of a store's operations that lets the operation of a given number fail."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


class FaultError(OSError):
    """The failure of an operation, raised on purpose."""


class Faults:
    """Lets the operation after ``number`` operations of a store fail.

    If ``after``, it fails after its effect, as if the answer of the store were lost.
    """

    def __init__(self, number: int, *, after: bool = False) -> None:
        self.left = number
        self.after = after
        self.hit = False
        self._depth = 0

    def run(self, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run and count an operation; operations that it calls are not counted."""
        with self.nested(), self.counted():
            return operation(*args, **kwargs)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the operation in the body of the with statement, and raise if it is the one that fails."""
        due = self.due()
        if due and not self.after:
            raise FaultError("on purpose, before")
        yield
        if due:
            raise FaultError("on purpose, after")

    def due(self) -> bool:
        """Count an operation, and return True if it is the one that fails."""
        if self._depth > 1:
            return False
        self.left -= 1
        self.hit |= self.left == -1
        return self.left == -1

    @contextmanager
    def nested(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1


@contextmanager
def faulty_methods(owner: type, names: list[str], faults: Faults) -> Iterator[None]:
    """Count the calls of methods of a filesystem's class as operations."""

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            return faults.run(original, *args, **kwargs)

        return method

    with patch.multiple(owner, **{name: wrapped(getattr(owner, name)) for name in names}):
        yield


@contextmanager
def faulty_requests(owner: type, name: str, faults: Faults) -> Iterator[None]:
    """Count the calls of the asynchronous method that makes the requests of a filesystem as operations."""
    call = getattr(owner, name)

    async def request(fs: Any, *args: Any, **kwargs: Any) -> Any:
        with faults.counted():
            return await call(fs, *args, **kwargs)

    with patch.object(owner, name, request):
        yield
