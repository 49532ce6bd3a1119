"""Choose where Dask computes (a cluster, a local cluster or threads), and show progress on a terminal.

By default, Dask computes in threads of this process. Most of the work runs in C++ without the GIL, so threads
are faster than processes. Threads start at once.
"""

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any

import click
import dask
from dask.diagnostics import ProgressBar
from rich.console import Console

# A progress bar appears after this many seconds.
SHORTEST = 0.5

_SETTINGS = "dask_tfrecord.computing"


def note_setting(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store the value of an option that configures where Dask computes."""
    settings = ctx.meta.setdefault(_SETTINGS, {})
    if value is not None:
        settings[param.name] = value
    if "scheduler" in settings and (local := settings.keys() - {"scheduler"}):
        name = min(local).replace("_", "-")
        raise click.UsageError(f"--{name} is for a local cluster, and --scheduler names another one")


@contextmanager
def computing(title: str) -> Iterator[None]:
    """Apply the options for Dask in the ``with`` block. On a terminal, show ``title`` or a progress bar."""
    settings = click.get_current_context().meta.get(_SETTINGS, {})
    with ExitStack() as stack:
        if settings.keys() - {"threads"}:
            _open_client(stack, **settings)
            # Dask's progress bar for clusters needs futures, but the functions of this package return none.
            stack.enter_context(Console(stderr=True).status(title))
        else:
            stack.enter_context(dask.config.set(scheduler="threads", num_workers=settings.get("threads")))
            if is_terminal():
                stack.enter_context(ProgressBar(minimum=SHORTEST, out=sys.stderr))
        yield


def _open_client(
    stack: ExitStack, scheduler: Any = None, workers: int | None = None, threads: int | None = None
) -> None:
    """Connect to a scheduler, or start a local cluster. ``stack`` closes the client and the local cluster."""
    from distributed import Client, LocalCluster  # distributed is an optional package

    # Without this log level, asyncio would log the tasks that `distributed` cancels after an interrupt.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if scheduler is None:
        with _children_without_interrupts():
            scheduler = LocalCluster(
                n_workers=workers,
                threads_per_worker=threads,
                dashboard_address=None,
                # Workers need not log the error of a failed task, because it is raised in this process.
                silence_logs=logging.CRITICAL,
            )
            stack.enter_context(scheduler)
    stack.enter_context(Client(scheduler))


def is_terminal() -> bool:
    return sys.stderr.isatty()


@contextmanager
def _children_without_interrupts() -> Iterator[None]:
    """Block SIGINT in the threads and processes that the ``with`` block starts.

    A terminal sends Ctrl-C to all processes of a command. If SIGINT were not blocked, workers would print
    tracebacks. After Ctrl-C, the main process ends the workers.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows has no pthread_sigmask
        yield
        return
    # Start the resource tracker before SIGINT is blocked. Starting the tracker later, with the first worker,
    # would unblock SIGINT.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
