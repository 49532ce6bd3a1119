"""Run small tasks on Dask's current scheduler, check clusters before use, and log the progress of jobs.

The module never imports the optional package `distributed` first, because a process that uses a cluster has
already imported it. Each task of a job returns a `Report`. Dask's local schedulers pass the reports to a
callback in this process. Workers of a `distributed` cluster send each report, without the result, to the
clients.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from importlib import import_module
from threading import Timer
from time import monotonic
from typing import Any, NamedTuple, Self, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary, finalize

import dask
from dask.base import get_scheduler
from dask.callbacks import Callback

from dask_tfrecord.dataset.snapshot.versions import library_version
from dask_tfrecord.errors import TFRecordError

logger = logging.getLogger(__name__)

# The minimum time in seconds between two log lines. The first line appears at least as long after the start.
INTERVAL = 10.0

# The minimum time in seconds between the end of a task and the next log line. Several workers often end their
# tasks at about the same time. A log line that counted only the first of several tasks would overestimate the
# remaining time.
_DELAY = 1.0

_TOPIC = "dask_tfrecord"

# Maps the id of each job of this process to the progress of the job.
_jobs: dict[str, "Progress"] = {}


class Report(NamedTuple):
    """A report that a task has ended, with the result of the task and its position in the job.

    A step begins when all tasks of the previous step have ended. Steps are counted from 1, and tasks from 0.
    ``tasks``, the number of tasks in the step, is 0 if unknown. ``rows`` and ``bytes`` are the amounts that
    the task has read or written.
    """

    job: str
    step: int
    steps: int
    task: int
    tasks: int
    rows: int
    bytes: int
    result: Any = None


def report(job: str, task: int, tasks: int, result: Any, *, step: int = 1, steps: int = 1) -> Report:
    """Create the `Report` of a task that has ended. On a worker of a cluster, also send it to the clients.

    An integer result is the number of rows. For any other result, the number of rows is the attribute
    ``records``, or 0 if there is no such attribute. For a list of results, the numbers are added.
    """
    if type(result) is int:
        rows, size = result, 0
    else:
        parts = result if type(result) in (list, tuple) else [result]
        rows, size = (sum(getattr(part, name, 0) for part in parts) for name in ("records", "bytes"))
    found = Report(job, step, steps, task, tasks, rows, size, result)
    distributed = _imported_distributed()
    if distributed is not None:
        with suppress(Exception):  # `get_worker` raises if no distributed worker runs the task
            distributed.get_worker().log_event(_TOPIC, found[:-1])
    return found


def listen(client: Any) -> None:
    """Make a `distributed` client receive the reports of the workers."""
    client.subscribe_topic(_TOPIC, _receive)


def _receive(event: tuple[float, Any]) -> None:
    with suppress(Exception):  # a worker may run a different version of this package
        received = Report(*event[1])
        if received.job in _jobs:
            _jobs[received.job].add(received)


def restart(job: str) -> None:
    """Restart the clock of a job, because Dask now begins to compute this job."""
    if job in _jobs:
        _jobs[job].restart()


class Progress:
    """Log the progress of a job soon after tasks have ended, but at most once every `INTERVAL` seconds.

    In a ``with`` block, a `Progress` receives the reports of its job. A job that runs without Dask needs no
    id, but its code must pass each report to `add`. A timer thread writes each log line when it is due. The
    timer thread exists only if tasks have ended since the last log line.
    """

    def __init__(self, title: str, job: str = "", unit: str = "partitions") -> None:
        self._title, self._job, self._unit = title, job, unit
        self._open = ExitStack()
        self._timer: Timer | None = None
        self.restart()

    def restart(self) -> None:
        """Restart the clock, and forget all tasks that have ended."""
        self._start = self._logged = monotonic()
        self._last = Report(self._job, 0, 0, 0, 0, 0, 0)
        self._last_end = self._start

    def __enter__(self) -> Self:
        if self._job:
            _jobs[self._job] = self
            self._open.callback(_jobs.pop, self._job, None)
            self._open.enter_context(Callback(posttask=self._after_task))
        self._open.callback(self._cancel)
        return self

    def __exit__(self, *_: object) -> None:
        timer = self._timer
        self._open.close()
        if timer is not None:
            timer.join()

    def until_deleted(self, owner: object) -> None:
        """Receive the reports of the job until Python deletes the object ``owner``."""
        finalize(owner, self.__enter__()._open.close).atexit = False

    def _after_task(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        if isinstance(result, Report) and result.job == self._job:
            self.add(result)

    def add(self, report: Report) -> None:
        """Count a task that has ended. A repeated task is not counted again.

        Errors are ignored, because logging must not make a job fail.
        """
        with suppress(Exception):
            now = monotonic()
            if report.step > self._last.step:
                self._step_start = self._last_end
                self._done: set[int] = set()
                self._rows = self._bytes = 0
            if report.step < self._last.step or report.task in self._done:
                return
            self._last, self._last_end = report._replace(result=None), now
            self._done.add(report.task)
            self._rows += report.rows
            self._bytes += report.bytes
            if self._timer is None and logger.isEnabledFor(logging.INFO):
                self._timer = Timer(max(self._logged + INTERVAL - now, _DELAY), self._log)
                self._timer.daemon = True
                self._timer.start()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _log(self) -> None:
        with suppress(Exception):
            self._logged = monotonic()
            logger.info("%s: %s", self._title, self._describe(self._logged))
        self._timer = None

    def _describe(self, now: float) -> str:
        _, step, steps, _, tasks, *_ = self._last
        done, seconds = len(self._done), max(now - self._step_start, 1e-9)
        amounts = [(n, unit) for n, unit in ((self._rows, "rows"), (self._bytes, "bytes")) if n]
        text = f"step {step} of {steps}: " if steps > 1 else ""
        text += f"{done:,} of {tasks:,} {self._unit}" if tasks else f"{done:,} {self._unit}"
        text += "".join(f", {n:,} {unit}" for n, unit in amounts) + f" in {seconds:.1f} s"
        if amounts:
            n, unit = amounts[0]
            text += f" ({n / seconds:.0f} {unit}/s)"
        if tasks:
            part = (step - 1 + done / tasks) / steps
            left = timedelta(seconds=round((now - self._start) * (1 - part) / part))
            text += f", about {left} left"
        return text


Argument = TypeVar("Argument")
Result = TypeVar("Result")

_PACKAGE = "dask-tfrecord"
_SCHEDULER = "the scheduler"

# The modules of Dask with schedulers that run tasks in this process, or in processes that it starts.
_LOCAL_SCHEDULERS = ("dask.local", "dask.threaded", "dask.multiprocessing")

# An error message lists at most this many workers.
_LISTED_WORKERS = 8

# Map from each client to the addresses of the workers that passed the version check.
_checked: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def compute_each(
    function: Callable[[Argument], Result], arguments: Iterable[Argument], title: str
) -> list[Result]:
    """Call a function with each argument, in one task per argument. Progress lines begin with ``title``."""
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
    return report(job, index, count, function(argument))


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


def is_local(scheduler: Any = None) -> bool:
    """Return True if a scheduler of Dask itself runs the tasks. If a computation raises an exception, no task
    then runs again. By default, Dask's current scheduler is checked.
    """
    try:
        get = get_scheduler(scheduler=scheduler)
    except Exception:  # Dask raises a clear error during the computation
        return False
    return get is None or getattr(get, "__module__", "") in _LOCAL_SCHEDULERS


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
    try:
        get = get_scheduler(scheduler=scheduler)
    except Exception:  # if the scheduler is invalid, Dask raises a clear error during the computation
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
    ours = library_version()
    if ours == "unknown" or version == ours:
        return ""
    return "dask_tfrecord is not installed" if version is None else f"dask_tfrecord is version {version}"


def _enumerate(names: list[str]) -> str:
    hidden = len(names) - _LISTED_WORKERS
    return ", ".join(names[:_LISTED_WORKERS]) + (f" and {hidden:,} more" if hidden > 0 else "")
