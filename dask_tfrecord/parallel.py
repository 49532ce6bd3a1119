"""Run many small tasks on the scheduler that Dask currently uses."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import dask

from dask_tfrecord.cluster import check_cluster

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def compute_each(function: Callable[[Argument], Result], arguments: Iterable[Argument]) -> list[Result]:
    """Call a function on each argument in a task of its own; return the results in order."""
    check_cluster()
    task = dask.delayed(function, pure=False, traverse=False)
    return list(dask.compute(*map(task, arguments), traverse=False, retries=5))
