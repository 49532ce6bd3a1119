"""Clusters of `distributed`, which is optional: only the command line imports this module, if it is used."""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from distributed import Client, LocalCluster, WorkerPlugin

from dask_tfrecord.cli.compute.measuring import Measure, measure
from dask_tfrecord.cluster import check_cluster

if TYPE_CHECKING:
    from dask_tfrecord.cli.compute import Computing


def open_client(computing: "Computing", stack: ExitStack) -> Client:
    """Connect to a cluster, or start a local one. The stack closes what was opened."""
    # After an interrupt, asyncio would log the tasks that `distributed` gives up.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if computing.scheduler:
        return stack.enter_context(Client(computing.scheduler))
    with _children_without_interrupts():
        cluster = LocalCluster(
            n_workers=computing.workers,
            threads_per_worker=computing.threads,
            memory_limit=computing.memory_limit or "auto",
            dashboard_address=None,
            silence_logs=logging.CRITICAL,  # a failed task raises here, so its worker need not log it
        )
        stack.enter_context(cluster)
    return stack.enter_context(Client(cluster))


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


@contextmanager
def report(client: Client, add: Callable[[Measure], None]) -> Iterator[None]:
    """Call a function with the measure of each task that a worker finishes."""
    check_cluster()  # a worker without this package cannot unpickle the plugin
    name = f"dask-tfrecord-{uuid4().hex}"
    client.subscribe_topic(name, lambda event: add(Measure(*event[1])))
    client.register_plugin(_Reporter(name), name=name)
    try:
        yield
    finally:
        with suppress(Exception):  # the cluster may be gone, which the computation has reported
            client.unregister_worker_plugin(name)
            client.unsubscribe_topic(name)


class _Reporter(WorkerPlugin):  # type: ignore[misc]  # mypy skips distributed, which is optional
    """Sends the measure of each finished task to the client."""

    def __init__(self, topic: str) -> None:
        self.topic = topic

    def setup(self, worker: Any) -> None:
        self.worker = worker

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        if finish == "memory" and start == "executing" and (found := measure(self.worker.data.get(key))):
            self.worker.log_event(self.topic, list(found))
