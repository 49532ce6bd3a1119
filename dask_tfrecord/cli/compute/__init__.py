"""Where Dask computes, and how far it is: a cluster, a local cluster or threads, and the progress bar."""

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import click
import dask
from dask.callbacks import Callback
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from dask_tfrecord.cli.compute.measuring import Measure, measure


@dataclass(frozen=True)
class Computing:
    """Where Dask computes: the options of the command line.

    Threads of this process are the default. Most of the work runs in C++ without Python's lock, so threads
    need less time than processes, and no time to start.

    Attributes
    ----------
    scheduler : str, optional
        The address of a running scheduler.
    workers : int, optional
        The number of processes of a local cluster.
    threads : int, optional
        The number of threads, of each process if there is a local cluster.
    memory_limit : str, optional
        The memory of each process of a local cluster.
    """

    scheduler: str | None = None
    workers: int | None = None
    threads: int | None = None
    memory_limit: str | None = None

    @contextmanager
    def running(self, title: str, *, size: Callable[[], int] | None = None) -> Iterator["Meter"]:
        """Let Dask compute there in the block, and show on a terminal how far it is.

        Parameters
        ----------
        title : str
            What is done, for the progress bar.
        size : callable, optional
            Returns the number of stored bytes at the end. It is called if there is a progress bar.
        """
        with ExitStack() as stack:
            meter = stack.enter_context(_metered(title, size))
            if self._uses_cluster:
                from dask_tfrecord.cli.compute.clusters import (  # `distributed` is optional
                    open_client,
                    report,
                )

                client = open_client(self, stack)
                if meter.is_shown:
                    stack.enter_context(report(client, meter.add))
            else:
                settings: dict[str, Any] = {"scheduler": "threads"}
                if self.threads is not None:
                    settings["num_workers"] = self.threads
                stack.enter_context(dask.config.set(settings))
                if meter.is_shown:
                    stack.enter_context(_task_callback(meter))
            yield meter

    @property
    def _uses_cluster(self) -> bool:
        is_asked_for = any((self.scheduler, self.workers, self.memory_limit))
        if is_asked_for and importlib.util.find_spec("distributed") is None:
            advice = "pip install 'dask-tfrecord[distributed]'"
            raise click.ClickException(f"a cluster needs the package distributed: {advice}")
        return is_asked_for


class Meter:
    """Counts finished tasks, and their rows and stored bytes. Shows them in a progress bar on a terminal."""

    def __init__(self, progress: Progress | None, task: Any, *, counts_bytes: bool = False) -> None:
        self._progress = progress
        self._task = task
        self._counts_bytes = counts_bytes
        self._done = Measure(0, 0, 0)

    @property
    def is_shown(self) -> bool:
        """True if there is a progress bar."""
        return self._progress is not None

    def expect(self, tasks: int) -> None:
        """Set the number of tasks at the end."""
        if self._progress is not None:
            self._progress.update(self._task, total=tasks)

    def add(self, more: Measure) -> None:
        """Add a finished task."""
        self._done = done = Measure(*map(sum, zip(self._done, more, strict=True)))
        if self._progress is not None:
            completed = done.bytes if self._counts_bytes else done.tasks
            self._progress.update(self._task, completed=completed, rows=done.rows, size=done.bytes)


@contextmanager
def _metered(title: str, size: Callable[[], int] | None) -> Iterator[Meter]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Meter(None, None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), _RateColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None if size is None else size(), rows=0, size=0)
        yield Meter(progress, task, counts_bytes=size is not None)


class _RateColumn(ProgressColumn):
    """The rows and bytes so far, and their rates since the start."""

    def render(self, task: Task) -> Text:
        rows, size = task.fields["rows"], task.fields["size"]
        seconds = max(task.elapsed or 0, 1e-3)
        return Text(
            f"{rows:,} rows ({rows / seconds:,.0f}/s), {decimal(size)} ({decimal(int(size / seconds))}/s)"
        )


def _task_callback(meter: Meter) -> Callback:
    """Return a callback of Dask's own schedulers that measures the results of tasks."""

    def add(key: Any, result: Any, *_: Any) -> None:
        if found := measure(result):
            meter.add(found)

    return Callback(posttask=add)


class Stopwatch:
    """The seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The seconds, at least one millisecond, so that rates are finite."""
        return max(time.perf_counter() - self._start, 1e-3)
