"""Work on many files at once, by whatever scheduler Dask is set to."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import dask

from dask_tfrecord.cluster import check_cluster

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def compute_each(function: Callable[[Argument], Result], arguments: Iterable[Argument]) -> list[Result]:
    """The function's results, a task for each argument, in their order."""
    check_cluster()
    task = dask.delayed(function, pure=False, traverse=False)
    return list(dask.compute(*map(task, arguments), traverse=False, retries=5))
