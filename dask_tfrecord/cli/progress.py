"""Choose where Dask computes (a cluster, a local cluster or threads), and show progress on a terminal."""

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

import dask
from dask.diagnostics import ProgressBar
from rich.console import Console

# Minimum duration, in seconds, of a computation that shows a progress bar.
SHORTEST = 0.5


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
    def running(self, title: str) -> Iterator[None]:
        """Make Dask compute as the options say in this block. A terminal shows ``title`` as a label."""
        with ExitStack() as stack:
            if any((self.scheduler, self.workers, self.memory_limit)):
                self._open_client(stack)
                # Dask's own bar for clusters needs the futures, which the library does not return.
                stack.enter_context(Console(stderr=True).status(title))
            else:
                stack.enter_context(dask.config.set(scheduler="threads", num_workers=self.threads))
                if is_terminal():
                    stack.enter_context(ProgressBar(minimum=SHORTEST, out=sys.stderr))
            yield

    def _open_client(self, stack: ExitStack) -> None:
        """Connect to a cluster, or start a local one. The stack closes what was opened."""
        from distributed import Client, LocalCluster  # optional

        # After an interrupt, asyncio would log the tasks that `distributed` gives up.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        cluster: Any = self.scheduler
        if cluster is None:
            with _children_without_interrupts():
                cluster = LocalCluster(
                    n_workers=self.workers,
                    threads_per_worker=self.threads,
                    memory_limit=self.memory_limit or "auto",
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,  # a failed task raises here, so its worker need not log it
                )
                stack.enter_context(cluster)
        stack.enter_context(Client(cluster))


def is_terminal() -> bool:
    """Return True if errors and progress are printed on a terminal."""
    return sys.stderr.isatty()


@contextmanager
def _children_without_interrupts() -> Iterator[None]:
    """Block SIGINT in the threads and processes that the block starts.

    A terminal sends Ctrl-C to all processes of a command. Workers would print tracebacks. This process ends
    them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # or the first process would start it, which unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
