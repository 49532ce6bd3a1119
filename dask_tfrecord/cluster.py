"""Run small tasks on the active scheduler; check a `distributed` cluster before tasks run on it.

`distributed` is optional and never imported here: a process that uses a cluster has imported it already.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import dask
from dask.base import get_scheduler

from dask_tfrecord.dataset.snapshot.metadata import library_version
from dask_tfrecord.errors import TFRecordError

Argument = TypeVar("Argument")
Result = TypeVar("Result")

# Evaluated on scheduler and workers, where this package may be missing, so it must not refer to the package.
# Returns a bool, True if the package can be imported, and the installed versions, the version in use first. A
# directory that an uninstallation left is a namespace package, which has a spec without an origin.
_PROBE = """(lambda metadata, util: (
    getattr(util.find_spec("dask_tfrecord"), "origin", None) is not None,
    [package.version for package in metadata.distributions(name="dask-tfrecord")],
))(__import__("importlib.metadata").metadata, __import__("importlib.util").util)"""

_SCHEDULER = "the scheduler"

# Most workers that an error message lists.
_LISTED_WORKERS = 8


class _Client(Protocol):
    """The part of `distributed.Client` that is used here."""

    asynchronous: bool

    def nthreads(self) -> Mapping[str, int]: ...
    def run(self, function: Any, *args: Any, workers: list[str], on_error: str) -> dict[str, Any]: ...
    def run_on_scheduler(self, function: Any, *args: Any) -> Any: ...


# For each client: the addresses of workers (and the scheduler) that passed the check.
_checked: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def compute_each(function: Callable[[Argument], Result], arguments: Iterable[Argument]) -> list[Result]:
    """Call a function on each argument in a task of its own; return the results in order."""
    check_cluster()
    task = dask.delayed(function, pure=False, traverse=False)
    return list(dask.compute(*map(task, arguments), traverse=False, retries=5))


def check_cluster(scheduler: Any = None) -> None:
    """Raise if the cluster's scheduler or a worker lacks the package or has another version of it.

    Without this check a worker that cannot unpickle a task shuts down, and the client waits forever.

    Each worker is checked once per client. Nothing is checked without a cluster, inside a task, and if the
    client is asynchronous.

    Parameters
    ----------
    scheduler : optional
        Scheduler, as ``scheduler=`` of ``dask.compute``. By default the scheduler that Dask currently uses.

    Raises
    ------
    TFRecordError
        If the scheduler or a worker cannot run the package. The message names them.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None or _is_in_task(distributed):
        return
    client = _client_of(scheduler)
    if client is None or client.asynchronous:
        return
    checked = _checked.setdefault(client, set())
    answers: dict[str, Any] = {}
    with suppress(Exception):  # an unreachable cluster raises its own error when it gets the tasks
        workers = [address for address in client.nthreads() if address not in checked]
        if _SCHEDULER not in checked:
            answers[_SCHEDULER] = _probe_scheduler(client)
        if workers:
            answers |= client.run(eval, _PROBE, workers=workers, on_error="return")
    problems = {address: problem for address, answer in answers.items() if (problem := _problem(answer))}
    checked.update(answers.keys() - problems.keys())
    if problems:
        raise _cluster_error(problems)


def warn_client(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn in this process and, if it is a worker of a cluster, in the client too."""
    distributed = sys.modules.get("distributed")
    warn = warnings.warn if distributed is None else distributed.warn
    warn(message, category, 4)


def _probe_scheduler(client: _Client) -> Any:
    try:
        return client.run_on_scheduler(eval, _PROBE)
    except ImportError as error:
        return error
    except ValueError:  # the scheduler's configuration forbids run_on_scheduler
        return None


def _client_of(scheduler: Any) -> _Client | None:
    """The client through which Dask computes, or None without a cluster."""
    try:
        get = get_scheduler(scheduler=scheduler)
    except Exception:  # an invalid scheduler: Dask raises a clear error when it computes
        return None
    client: _Client | None = getattr(get, "__self__", None)
    return client if hasattr(client, "run_on_scheduler") else None


def _is_in_task(distributed: Any) -> bool:
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


def _problem(answer: Any) -> str:
    """Describe what is wrong with the answer to the probe; empty if nothing is wrong or it is unknown."""
    if isinstance(answer, ImportError):  # a module that the probe or the package needs is blocked
        return "dask_tfrecord cannot be imported"
    if not isinstance(answer, tuple):  # another failure, for example of a worker that is shutting down
        return ""
    importable, versions = answer
    if not importable:
        return "dask_tfrecord cannot be imported"
    ours = library_version()
    if versions and "unknown" != ours != versions[0]:
        return f"dask_tfrecord is version {versions[0]}"
    return ""


def _cluster_error(problems: Mapping[str, str]) -> TFRecordError:
    by_problem: dict[str, list[str]] = {}
    for address, problem in problems.items():
        by_problem.setdefault(problem, []).append(address if address == _SCHEDULER else f"worker {address}")
    listed = (f"{problem} on {_enumerate(addresses)}" for problem, addresses in by_problem.items())
    return TFRecordError(
        f"the cluster cannot run dask_tfrecord: {'; '.join(listed)}",
        advice=f"install dask-tfrecord {library_version()} there and restart it, or compute without the "
        'cluster under dask.config.set(scheduler="threads")',
    )


def _enumerate(addresses: list[str]) -> str:
    hidden = len(addresses) - _LISTED_WORKERS
    return ", ".join(addresses[:_LISTED_WORKERS]) + (f" and {hidden:,} more" if hidden > 0 else "")
