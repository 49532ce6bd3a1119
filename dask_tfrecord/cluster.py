"""Whether the workers and the scheduler of a cluster can run this package, asked before they get tasks of it.

A worker that cannot unpickle a task shuts down, and whoever waits for the result waits for ever.
"""

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from dask.base import get_scheduler

from dask_tfrecord.dataset.snapshot.model import library_version
from dask_tfrecord.errors import TFRecordError

# Evaluated where the package may be missing, so that it names nothing of it: whether it can be imported, and
# the versions that are installed, the one that counts first.
_PROBE = """(lambda metadata, util: (
    util.find_spec("dask_tfrecord") is not None,
    [found.version for found in metadata.distributions(name="dask-tfrecord")],
))(__import__("importlib.metadata").metadata, __import__("importlib.util").util)"""

_SCHEDULER = "the scheduler"

# How many workers a message names.
_NAMED = 8


class _Client(Protocol):
    """What is used of `distributed.Client`."""

    asynchronous: bool

    def nthreads(self) -> Mapping[str, int]: ...
    def run(self, function: Any, *args: Any, workers: list[str], on_error: str) -> dict[str, Any]: ...
    def run_on_scheduler(self, function: Any, *args: Any) -> Any: ...


# Who was found able, by client: addresses of workers, and the scheduler.
_able: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def check_cluster(scheduler: Any = None) -> None:
    """Refuse a cluster on which this package is missing, or of another version.

    Those who were asked before are not asked again. Without a cluster, in a task, and where the caller runs
    on the client's event loop, nothing is asked.

    Parameters
    ----------
    scheduler : optional
        As ``scheduler=`` of ``dask.compute``. By default the one that Dask uses now.

    Raises
    ------
    TFRecordError
        If the scheduler or a worker cannot run the package, naming it.
    """
    distributed = sys.modules.get("distributed")  # whoever has a client has imported it
    if distributed is None or _in_a_task(distributed):
        return
    client = _client_of(scheduler)
    if client is None or client.asynchronous:
        return
    able = _able.setdefault(client, set())
    found: dict[str, Any] = {}
    with suppress(Exception):  # a cluster that does not answer says so itself when it gets the tasks
        workers = [address for address in client.nthreads() if address not in able]
        if _SCHEDULER not in able:
            found[_SCHEDULER] = _ask_scheduler(client)
        if workers:
            found |= client.run(eval, _PROBE, workers=workers, on_error="return")
    wrong = {place: problem for place, told in found.items() if (problem := _problem(told))}
    able.update(found.keys() - wrong.keys())
    if wrong:
        raise _refused(wrong)


def _ask_scheduler(client: _Client) -> Any:
    try:
        return client.run_on_scheduler(eval, _PROBE)
    except ImportError as error:
        return error
    except ValueError:  # it runs nothing that it is sent, as the configuration can say
        return None


def _client_of(scheduler: Any) -> _Client | None:
    """The client of the cluster that Dask computes on, if it is a cluster."""
    try:
        get = get_scheduler(scheduler=scheduler)
    except Exception:  # Dask explains what is wrong with it when it computes
        return None
    client: _Client | None = getattr(get, "__self__", None)
    return client if hasattr(client, "run_on_scheduler") else None


def _in_a_task(distributed: Any) -> bool:
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


def _problem(told: Any) -> str:
    """What is wrong with an answer; empty if nothing is, or if it cannot be told."""
    if isinstance(told, ImportError):  # of what forbids the import
        return "dask_tfrecord cannot be imported"
    if not isinstance(told, tuple):  # another failure, such as of a worker that is just leaving
        return ""
    importable, versions = told
    if not importable:
        return "dask_tfrecord cannot be imported"
    ours = library_version()
    if versions and "unknown" != ours != versions[0]:
        return f"dask_tfrecord is version {versions[0]}"
    return ""


def _refused(wrong: Mapping[str, str]) -> TFRecordError:
    by_problem: dict[str, list[str]] = {}
    for place, problem in wrong.items():
        by_problem.setdefault(problem, []).append(place if place == _SCHEDULER else f"worker {place}")
    listed = (f"{problem} on {_enumerated(places)}" for problem, places in by_problem.items())
    return TFRecordError(
        f"the cluster cannot run this: {'; '.join(listed)}",
        advice=f"install dask-tfrecord {library_version()} there and restart it, or compute without the "
        'cluster under dask.config.set(scheduler="threads")',
    )


def _enumerated(places: list[str]) -> str:
    more = f" and {len(places) - _NAMED:,} more" if len(places) > _NAMED else ""
    return ", ".join(places[:_NAMED]) + more
