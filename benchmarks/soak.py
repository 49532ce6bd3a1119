"""Write, read and clean up one dataset from two clients, while workers and clients are killed and stopped.

In each round, two client processes do random operations on a cluster of processes, while processes are killed
and stopped. A model says what each read may return. At the end of a round, when nothing runs, the dataset is
read, verified and cleaned up. The exit code is 1 if a row was lost, doubled or changed, or if an operation
failed in a way that the guides do not describe.

    python -m benchmarks.soak [--minutes 1] [--seed 1] [--id-bits 128] [--directory DIRECTORY]

With ``--id-bits 12``, the ids of writes are random in 12 bits only. The ids of the two clients then often
begin with the same digits, and a client often draws the id of one of its earlier writes again.
"""

import argparse
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster

import dask_tfrecord
from benchmarks import soak_client
from benchmarks.soak_client import Event
from benchmarks.soak_model import Model, Write

WORKERS = 3
CLIENTS = 2
OPERATIONS = 12  # of each client in a round
ROWS = 1_000  # of each write and key
PATIENCE = 180  # seconds without an event, after which a round has hung
LOG = 40  # events that a failure prints
FAULTS = {"worker killed": 6, "all workers killed": 1, "worker stopped": 4, "client killed in a write": 1}
READS = {"read", "read version", "verify"}
# The failures that the guides describe. An overwrite may remove files that a reader is about to read.
PROMISED = {
    "ConcurrentWriteError": {"overwrite", "partitions"},
    "FileNotFoundError": READS,
    "CorruptRecordError": {"read version"},
}
CONFIG = {
    # Dask fails a task that was on this many killed workers. The default is 3.
    "distributed.scheduler.allowed-failures": 1_000,
    # LocalCluster closes the nanny of a worker that is not connected this long after it was lost, even if the
    # worker has been back meanwhile and was killed again. The default is 15 seconds.
    "distributed.deploy.lost-worker-timeout": "1 day",
}


class ClientProcess:
    """Run a client in its own process, and keep the last event that the client reported."""

    def __init__(self, address: str, path: str, id_bits: int, number: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.orders, theirs = context.Pipe()
        arguments = (address, path, theirs, id_bits, number)
        self.process = context.Process(target=soak_client.run, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.last: Event | None = None

    @property
    def writes(self) -> bool:
        return self.last is not None and self.last.write is not None and not self.last.ended

    def receive(self) -> "Event | str":
        """Return the next event of the client, or "ready", "done" or "killed"."""
        try:
            message: Event | str = self.orders.recv()
        except (EOFError, OSError):
            self.process.join()
            if self.process.exitcode != -signal.SIGKILL:
                raise RuntimeError(f"a client ended with exit code {self.process.exitcode}") from None
            return "killed"
        if isinstance(message, Event):
            self.last = message
        return message

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Soak:
    """Hold the cluster, the clients, the model, and the counts of faults and outcomes."""

    def __init__(
        self, cluster: Any, client: Client, path: str, seed: int, scale: float, id_bits: int
    ) -> None:
        self.id_bits = id_bits
        self.cluster, self.client, self.path = cluster, client, path
        self.rows = max(1, int(ROWS * scale))
        self.operations = max(2, int(OPERATIONS * min(scale, 1)))
        self.random = random.Random(seed)
        self.model = Model()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.faults: Counter[str] = Counter()
        self.log: list[str] = []
        self.next_number = 1
        first = Write(0, "append", tuple(soak_client.KEYS), self.rows)
        self.model.begin_write(first)
        soak_client.write_rows(first, path, self.random)
        self.model.end_write(first, committed=True)
        self.clients = [self.new_client(number) for number in range(CLIENTS)]

    @property
    def right(self) -> bool:
        """True if no operation failed unexpectedly and no read was wrong."""
        unexplained = any(outcome == "failed otherwise" for _, outcome in self.outcomes)
        return not unexplained and not self.model.wrong.total()

    def round(self) -> None:
        for client in self.clients:
            if client.receive() != "ready":
                raise RuntimeError("a client did not start")
        for client in self.clients:
            client.orders.send((self.random.random(), self.next_number, self.operations, self.rows))
            self.next_number += self.operations
        self.check_events(self.collect_events())
        self.wait_for_tasks()
        self.check_at_rest()

    def new_client(self, number: int) -> ClientProcess:
        return ClientProcess(self.cluster.scheduler_address, self.path, self.id_bits, number)

    def collect_events(self) -> list[Event]:
        """Return the events of the round, and inject faults meanwhile."""
        events: list[Event] = []
        running = list(self.clients)
        fault = self.next_fault()
        heard = time.monotonic()
        while running:
            ready = wait([client.orders for client in running], timeout=max(0.0, fault - time.monotonic()))
            for client in [client for client in running if client.orders in ready]:
                heard = time.monotonic()
                event = client.receive()
                if isinstance(event, Event):
                    events.append(event)
                    continue
                running.remove(client)
                if event == "killed":
                    number = self.clients.index(client)
                    self.clients[number] = self.new_client(number)
            if time.monotonic() - heard > PATIENCE:
                raise RuntimeError(f"no operation began or ended for {PATIENCE} seconds")
            if running and time.monotonic() >= fault:
                self.inject_fault(running)
                fault = self.next_fault()
        return events

    def next_fault(self) -> float:
        return time.monotonic() + self.random.uniform(0.2, 1.5)

    def inject_fault(self, running: list[ClientProcess]) -> None:
        if self.random.random() < 0.5:
            self.wait_for_change()
        (fault,) = self.random.choices([*FAULTS], [*FAULTS.values()])
        workers = [nanny.pid for nanny in self.cluster.workers.values() if nanny.pid]
        writers = [client for client in running if client.writes]
        if fault == "client killed in a write":
            if not writers:
                return
            self.random.choice(writers).kill()
        elif not workers:
            return
        elif fault == "worker stopped":
            worker = self.random.choice(workers)
            send_signal(worker, signal.SIGSTOP)
            time.sleep(self.random.uniform(0.2, 2))
            send_signal(worker, signal.SIGCONT)
        else:
            for worker in workers if fault == "all workers killed" else [self.random.choice(workers)]:
                send_signal(worker, signal.SIGKILL)
        self.faults[fault] += 1

    def wait_for_change(self) -> None:
        """Wait at most a second for a step of a write: a new staging directory, a new snapshot, a removal."""
        before = change_times(self.path)
        end = time.monotonic() + 1
        while time.monotonic() < end and change_times(self.path) == before:
            time.sleep(0.001)

    def wait_for_tasks(self) -> None:
        """Wait until all workers are back and run no task, also none of a client that was killed."""
        start = time.monotonic()
        while time.monotonic() - start < PATIENCE:
            self.client.wait_for_workers(WORKERS, timeout=PATIENCE)
            with suppress(OSError):  # a worker that was killed just now is still known
                tasks = self.client.run(lambda dask_worker: len(dask_worker.state.executing))
                if len(tasks) == WORKERS and not any(tasks.values()):
                    return
            time.sleep(0.1)
        raise RuntimeError(f"tasks still run after {PATIENCE} seconds")

    def check_events(self, events: list[Event]) -> None:
        """Show the model all operations of a round in the order of the clock."""
        ends = {event.number: event for event in events if event.ended}
        for event in sorted(events, key=lambda event: event.when):
            self.log.append(describe(event))
            if event.ended:
                self.check_end(event)
            elif event.number not in ends:
                self.outcomes[event.kind, "client killed"] += 1
            if event.write and not event.ended:
                self.model.begin_write(event.write)
            elif event.kind == "read" and not event.ended:
                seen = ends[event.number].seen if event.number in ends else None
                if seen is not None:
                    self.model.begin_read(event.number, seen)

    def check_end(self, event: Event) -> None:
        promised = event.kind in PROMISED.get(event.error, ())
        outcome = "failed as promised" if promised else "failed otherwise" if event.error else "succeeded"
        self.outcomes[event.kind, outcome] += 1
        before = self.model.wrong.total()
        if event.write and outcome != "failed otherwise":
            self.model.end_write(event.write, committed=not event.error)
        elif event.seen is not None and event.version is None:
            self.model.end_read(event.number, event.seen)
        elif event.seen is not None:
            self.model.read_version(event.version, event.seen)
        if outcome == "failed otherwise" or self.model.wrong.total() > before:
            self.log.append(f"WRONG: {outcome}, {dict(self.model.wrong)}")

    def check_at_rest(self) -> None:
        """Read, verify and clean up the dataset while no client is running, and read the dataset again."""
        self.model.settle(soak_client.read_rows(self.path))
        dask_tfrecord.cleanup(self.path, older_than="0s")
        report = dask_tfrecord.verify(self.path)
        if report["damaged"].any() or not report["agrees"].all():
            self.log.append(f"verify:\n{report.to_string()}")
            self.model.wrong["files that differ from the snapshot"] += 1
        listed = {file.path for file in dask_tfrecord.Snapshot.open(self.path).files}
        present = {str(path.relative_to(self.path)) for path in Path(self.path).glob("key=*/*")}
        if listed != present:
            self.log.append(f"unlisted or missing files after cleanup: {sorted(listed ^ present)}")
            self.model.wrong["files that cleanup left"] += len(listed ^ present)
        self.model.settle(soak_client.read_rows(self.path, scheduler="sync"))
        self.log.append(f"at rest: {dict(self.model.wrong)}")


def send_signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it was killed before
        os.kill(pid, number)


def change_times(path: str) -> list[int]:
    """Return when the directories of the snapshots and of the open writes last changed."""
    times = []
    for place in (Path(path, "_tfrecord"), Path(path, "_tfrecord", "staging")):
        with suppress(FileNotFoundError):  # no write is open
            times.append(place.stat().st_mtime_ns)
    return times


def describe(event: Event) -> str:
    end = f"ended {event.error or 'well'} {event.message}" if event.ended else "began"
    what = f" {event.write}" if event.write else f" {event.version}" if event.version else ""
    chunks = f" {sorted(event.seen)}" if event.seen is not None else ""
    return f"{event.when:.3f} {event.number} {event.kind}{what} {end}{chunks}"


def print_result(soak: Soak, rounds: int, seconds: float) -> None:
    columns = ["succeeded", "failed as promised", "failed otherwise", "client killed"]
    print(f"{rounds} rounds in {seconds:.0f} s")
    print(f"{'operation':14}", *columns, sep="  ")
    for kind in soak_client.WEIGHTS:
        counts = [f"{soak.outcomes[kind, column]:{len(column)}}" for column in columns]
        print(f"{kind:14}", *counts, sep="  ")
    for fault in FAULTS:
        print(f"{fault}: {soak.faults[fault]}")
    print(f"faults injected: {soak.faults.total()}")
    for name, count in soak.model.wrong.items():
        if count and name not in ("lost", "doubled"):
            print(f"{name}: {count}")
    print(f"rows lost or doubled: {soak.model.wrong['lost'] + soak.model.wrong['doubled']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, help="stop after this many rounds, instead of --minutes")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for rows and operations of a round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--id-bits", type=int, default=128, help="random bits in the id of a write")
    parser.add_argument("--directory", help="a local directory, which is kept; default: a temporary one")
    arguments = parser.parse_args()
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it warns of killed workers
    print(f"dask-tfrecord {dask_tfrecord.__version__}, seed {arguments.seed}", flush=True)
    start = time.monotonic()
    rounds = 0
    with (
        tempfile.TemporaryDirectory() as temporary,
        dask.config.set(CONFIG),
        LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0", memory_limit=0, silence_logs=50
        ) as cluster,
        Client(cluster) as client,
    ):
        path = f"{arguments.directory or temporary}/data"
        soak = Soak(cluster, client, path, arguments.seed, arguments.scale, arguments.id_bits)
        right = True
        while right:
            try:
                soak.round()
                right = soak.right
            except Exception:  # also a failure at rest needs the seed and the log
                soak.log.append(traceback.format_exc())
                right = False
            rounds += 1
            done = time.monotonic() - start > 60 * arguments.minutes
            if rounds == arguments.rounds or (arguments.rounds is None and done):
                break
        for process in soak.clients:
            process.kill()
        seconds = time.monotonic() - start
    if not right:
        print(f"seed {arguments.seed}, round {rounds}; the last events:", *soak.log[-LOG:], sep="\n")
    print_result(soak, rounds, seconds)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
