"""Rules for the lists that a version keeps: those that differ most from each other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from dask_tfrecord.dataset.snapshot import entry_log


def _none(sizes: Sequence[int], written: int) -> int:
    return 0


def _all(sizes: Sequence[int], written: int) -> int:
    return len(sizes)


# "full": each version stores all entries again. "delta": each stores only what it changes.
RULES: dict[str, Callable[[Sequence[int], int], int]] = {"full": _none, "delta": _all}


@contextmanager
def rule(name: str) -> Iterator[None]:
    with patch.object(entry_log, "_kept_lists", RULES.get(name, entry_log._kept_lists)):
        yield


def set_rule(name: str) -> None:
    """Set the rule of this process."""
    entry_log._kept_lists = RULES[name]
