"""Run small tasks on the active scheduler, and check a `distributed` cluster before it runs any task.

The module `cluster` never imports the optional package `distributed`, because a process that uses a cluster
has already imported it.
"""

import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

import dask
from dask.base import get_scheduler

from dask_tfrecord.dataset.snapshot.metadata import library_version
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.progress import Progress, Report, listen, report

Argument = TypeVar("Argument")
Result = TypeVar("Result")

_PACKAGE = "dask-tfrecord"
_SCHEDULER = "the scheduler"

# The largest number of workers that an error message lists.
_LISTED_WORKERS = 8


# Map from each client to the addresses of the workers that passed the version check.
_checked: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def compute_each(
    function: Callable[[Argument], Result], arguments: Iterable[Argument], title: str
) -> list[Result]:
    """Call a function with each argument, each call in a separate task, and return the results in order.

    A long computation logs its progress. Each line begins with the title.
    """
    check_cluster()
    given = list(arguments)
    job = uuid4().hex
    # Dask searches the arguments of a delayed call for collections, but not the arguments of a partial
    # function.
    tasks = [
        dask.delayed(partial(_reported, function, each, job, index, len(given)), pure=False, traverse=False)()
        for index, each in enumerate(given)
    ]
    with Progress(title, job):
        reports = dask.compute(*tasks, traverse=False, retries=5)
    return [each.result for each in reports]


def _reported(
    function: Callable[[Argument], Result], argument: Argument, job: str, index: int, count: int
) -> Report:
    """Call a function, and return the report of the call."""
    return report(job, index, count, function(argument))


def check_cluster(scheduler: Any = None) -> None:
    """Raise if the cluster's scheduler or a worker lacks this package or has another version of the package.

    Without this check, a worker that cannot unpickle a task would shut down, and the client would wait
    forever.

    Each worker is checked once for each client. The check is omitted inside a task, if there is no cluster,
    and if the client is asynchronous.

    Parameters
    ----------
    scheduler : optional
        The scheduler to check, as in ``dask.compute(scheduler=...)``. By default, the scheduler that Dask
        currently uses is checked.

    Raises
    ------
    TFRecordError
        If the scheduler or a worker cannot run the package. The message names the scheduler or worker that
        cannot run the package.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None or _is_in_task(distributed):
        return
    client = _client_of(scheduler)
    if client is None or client.asynchronous:
        return
    checked = _checked.setdefault(client, set())
    problems: dict[str, list[str]] = {}
    with suppress(Exception):  # an unreachable cluster raises its own error when tasks are sent to it
        if checked and checked.issuperset(client.nthreads()):
            return
        if not checked:
            listen(client)
        versions = client.get_versions(packages=[_PACKAGE])
        answers = {_SCHEDULER: versions["scheduler"]}
        answers |= {f"worker {address}": answer for address, answer in versions["workers"].items()}
        for name, answer in answers.items():
            if problem := _problem(answer["packages"][_PACKAGE]):
                problems.setdefault(problem, []).append(name)
        if not problems:
            checked.update((_SCHEDULER, *versions["workers"]))
    if problems:
        listed = "; ".join(f"{problem} on {_enumerate(names)}" for problem, names in problems.items())
        raise TFRecordError(
            f"the cluster cannot run dask_tfrecord: {listed}",
            f"install dask-tfrecord {library_version()} there and restart it, or compute without the "
            'cluster under dask.config.set(scheduler="threads")',
        )


def warn_client(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning in this process and, if this process is a worker of a cluster, also in the client."""
    distributed = sys.modules.get("distributed")
    warn = warnings.warn if distributed is None else distributed.warn
    warn(message, category, 4)


def _client_of(scheduler: Any) -> Any:
    """Return the `distributed` client with which Dask computes, or None if there is no cluster."""
    try:
        get = get_scheduler(scheduler=scheduler)
    except Exception:  # if the scheduler is invalid, Dask raises a clear error when it computes
        return None
    client = getattr(get, "__self__", None)
    return client if hasattr(client, "get_versions") else None


def _is_in_task(distributed: Any) -> bool:
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


def _problem(version: str | None) -> str:
    """Describe the problem with the version of this package on the scheduler or on a worker."""
    ours = library_version()
    if ours == "unknown" or version == ours:
        return ""
    return "dask_tfrecord is not installed" if version is None else f"dask_tfrecord is version {version}"


def _enumerate(names: list[str]) -> str:
    hidden = len(names) - _LISTED_WORKERS
    return ", ".join(names[:_LISTED_WORKERS]) + (f" and {hidden:,} more" if hidden > 0 else "")
