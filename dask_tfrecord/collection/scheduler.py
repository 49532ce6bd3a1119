"""Run small tasks on Dask's current scheduler, and check clusters before use.

The module never imports the optional package `distributed` first, because a process that uses a cluster has
already imported it.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import dask
from dask.base import get_scheduler

from dask_tfrecord.dataset.snapshot.versions import library_version
from dask_tfrecord.errors import TFRecordError

logger = logging.getLogger(__name__)

Argument = TypeVar("Argument")
Result = TypeVar("Result")

_PACKAGE = "dask-tfrecord"
_SCHEDULER = "the scheduler"

# The Dask modules with schedulers that run tasks in this process, or in processes that it starts.
_LOCAL_SCHEDULERS = ("dask.local", "dask.threaded", "dask.multiprocessing")

# An error message lists at most this many workers.
_LISTED_WORKERS = 8

# Map from each client to the addresses of the workers that passed the version check.
_checked: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def compute_each(function: Callable[[Argument], Result], arguments: Iterable[Argument]) -> list[Result]:
    """Call a function with each argument, in one task per argument."""
    check_cluster()
    # Dask searches the arguments of a delayed call for collections, but not those of a partial function.
    tasks = [dask.delayed(partial(function, each), pure=False, traverse=False)() for each in arguments]
    return list(dask.compute(*tasks, traverse=False, retries=5))


def check_cluster(scheduler: Any = None) -> None:
    """Raise unless the scheduler and all workers of the cluster have this version of the package.

    Without this check, a worker that cannot unpickle a task would shut down, and the client would wait
    forever. Each worker is checked once for each client. The check is skipped inside a task, without a
    cluster, and with an asynchronous client. By default, Dask's current scheduler is checked.
    """
    distributed = _imported_distributed()
    if distributed is None or _is_in_task(distributed):
        return
    client = _client_of(scheduler)
    if client is None or client.asynchronous:
        return
    checked = _checked.setdefault(client, set())
    problems: dict[str, list[str]] = {}
    with suppress(Exception):  # if the cluster is unreachable, sending tasks raises an error later
        if checked and checked.issuperset(client.nthreads()):
            return
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


def is_local(scheduler: Any = None) -> bool:
    """Return True if one of Dask's own schedulers runs the tasks. If a computation raises an exception, no
    task then runs again. By default, Dask's current scheduler is checked.
    """
    with suppress(Exception):  # if the scheduler is invalid, Dask raises a clear error during the computation
        get = get_scheduler(scheduler=scheduler)
        return get is None or getattr(get, "__module__", "") in _LOCAL_SCHEDULERS
    return False


def warn_client(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning in this process and, if this process is a worker of a cluster, also in the client."""
    distributed = _imported_distributed()
    warn = warnings.warn if distributed is None else distributed.warn
    warn(message, category, 4)


def leave_thread_pool() -> None:
    """In a task of a cluster, let the worker run another task beside the current one.

    Threads of the current task can then wait for tasks of the cluster. Without this call, these tasks could
    wait forever for the slot of the current task.
    """
    distributed = _imported_distributed()
    if distributed is not None and _is_in_task(distributed) and _client_of(None) is not None:
        with suppress(Exception):  # the task has already left the pool, or runs outside of a pool
            distributed.secede()


def _imported_distributed() -> Any:
    """Return the module `distributed` if the process has imported it, otherwise None."""
    if "distributed" not in sys.modules:
        return None
    with suppress(ImportError):
        return import_module("distributed")  # waits while another thread is still importing the module
    return None


def _client_of(scheduler: Any) -> Any:
    with suppress(Exception):  # if the scheduler is invalid, Dask raises a clear error during the computation
        client = getattr(get_scheduler(scheduler=scheduler), "__self__", None)
        return client if hasattr(client, "get_versions") else None
    return None


def _is_in_task(distributed: Any) -> bool:
    with suppress(ValueError):
        distributed.get_worker()
        return True
    return False


def _problem(version: str | None) -> str:
    ours = library_version()
    if ours == "unknown" or version == ours:
        return ""
    return "dask_tfrecord is not installed" if version is None else f"dask_tfrecord is version {version}"


def _enumerate(names: list[str]) -> str:
    hidden = len(names) - _LISTED_WORKERS
    return ", ".join(names[:_LISTED_WORKERS]) + (f" and {hidden:,} more" if hidden > 0 else "")
