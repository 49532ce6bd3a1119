"""Run rounds of random operations of two clients on one dataset, and kill and stop processes meanwhile."""

import math
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import soak_client
from distributed import Client
from fsspec.core import url_to_fs
from soak_client import Event
from soak_model import Chunk, Model, Write

import dask_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot

WORKERS = 3
CLIENTS = 2
OPERATIONS = 12  # of each client in a round
ROWS = 250  # of each write, key and part
PATIENCE = 180  # seconds without an event, after which a round has hung
VERSIONS = 3  # older versions that are read at the end of a round
KEPT = "_tfrecord/kept/"
FAULTS = {"worker killed": 6, "all workers killed": 1, "worker stopped": 4, "client killed in a change": 2}
PACE = 6  # the most events between two faults
READS = {"read", "read version", "verify"}
# The failures that the guides describe, by the class of the error or of one of its base classes. A write that
# keeps no versions may remove files that a reader is about to read, and a version that is about to be
# restored. Other writes may add columns to the dataset.
PROMISED = {
    "ConcurrentWriteError": {"overwrite", "partitions", "delete", "restore", "index"},
    "DestinationError": {"index"},  # if the snapshot already describes all files as they are
    "FileNotFoundError": {*READS, "restore", "index"},
    "CorruptRecordError": {"read version", "restore", "index"},
    "SchemaError": {"append", "partitions"},
}
CONTEXT = multiprocessing.get_context("forkserver")


class ClientProcess:
    """Run a client in its own process, and keep the last event that the client reported."""

    def __init__(self, address: str, path: str, environment: Mapping[str, str]) -> None:
        self.orders, theirs = CONTEXT.Pipe()
        arguments = (address, path, theirs, environment)
        self.process = CONTEXT.Process(target=soak_client.run, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.last: Event | None = None

    @property
    def changes(self) -> bool:
        return self.last is not None and self.last.kind in soak_client.CHANGES and not self.last.ended

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
        self, cluster: Any, client: Client, path: str, seed: int, environment: Mapping[str, str]
    ) -> None:
        self.environment = environment
        self.cluster, self.client, self.path = cluster, client, path
        self.fs, self.root = url_to_fs(path)
        self.random = random.Random(seed)
        self.model = Model()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.faults: Counter[str] = Counter()
        self.log: list[str] = []
        self.next_number = 1
        first = Write(0, "overwrite", tuple(soak_client.KEYS), ROWS)
        self.model.begin_write(first)
        soak_client.write_rows(first, path, self.random)
        self.model.end_write(first, committed=True)
        self.clients = [self.new_client() for _ in range(CLIENTS)]

    @property
    def right(self) -> bool:
        """True if no operation failed unexpectedly and no read was wrong."""
        unexplained = any(outcome == "failed otherwise" for _, outcome in self.outcomes)
        return not unexplained and not self.model.wrong.total()

    def round(self) -> None:
        for client in self.clients:
            if client.receive() != "ready":
                raise RuntimeError("a client did not start")
        kinds = self.next_kinds()
        for client in self.clients:
            mine = [kinds.pop() for _ in range(OPERATIONS)]
            client.orders.send((self.random.random(), self.next_number, mine, ROWS))
            self.next_number += 2 * OPERATIONS  # a restore is preceded by a read of its version
        self.check_events(self.collect_events())
        self.wait_for_tasks()
        self.check_at_rest()

    def next_kinds(self) -> list[str]:
        """Return the operations of a round, in random order, each kind at least once."""
        weights = soak_client.WEIGHTS
        others = CLIENTS * OPERATIONS - len(weights)
        kinds = [*weights, *self.random.choices([*weights], [*weights.values()], k=others)]
        self.random.shuffle(kinds)
        return kinds

    def new_client(self) -> ClientProcess:
        address = self.cluster.scheduler_address
        return ClientProcess(address, self.path, self.environment)

    def collect_events(self) -> list[Event]:
        """Return the events of the round, and inject a fault soon after every few events."""
        events: list[Event] = []
        running = list(self.clients)
        heard = time.monotonic()
        due, fault = self.random.randint(1, PACE), math.inf
        while running:
            patience = min(fault, heard + PATIENCE) - time.monotonic()
            ready = wait([client.orders for client in running], timeout=max(0.0, patience))
            for client in [client for client in running if client.orders in ready]:
                heard = time.monotonic()
                event = client.receive()
                if isinstance(event, Event):
                    events.append(event)
                    continue
                running.remove(client)
                if not client.process.is_alive():  # also a client that was killed after its last operation
                    number = self.clients.index(client)
                    self.clients[number] = self.new_client()
            now = time.monotonic()
            if now - heard > PATIENCE:
                raise RuntimeError(f"no operation began or ended for {PATIENCE} seconds")
            if running and now >= fault:
                self.inject_fault(running)
                due, fault = len(events) + self.random.randint(1, PACE), math.inf
            elif len(events) >= due and fault == math.inf:
                fault = now + self.random.uniform(0, 1)
        return events

    def inject_fault(self, running: list[ClientProcess]) -> None:
        if self.random.random() < 0.5:
            self.wait_for_change()
        (fault,) = self.random.choices([*FAULTS], [*FAULTS.values()])
        workers = [nanny.pid for nanny in self.cluster.workers.values() if nanny.pid]
        changing = [client for client in running if client.changes]
        if fault == "client killed in a change":
            if not changing:
                return
            self.random.choice(changing).kill()
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
        """Wait at most a second for a step of a write. Its next steps follow within milliseconds."""
        before = self.metadata()
        end = time.monotonic() + 1
        while time.monotonic() < end and self.metadata() == before:
            time.sleep(0.001)
        time.sleep(self.random.choice([0, self.random.uniform(0, 0.05)]))

    def metadata(self) -> list[str]:
        """Return the paths of the snapshots and of the open writes."""
        self.fs.invalidate_cache()
        found = []
        for place in ("_tfrecord", "_tfrecord/staging"):
            with suppress(FileNotFoundError):  # no write is open
                found += self.fs.ls(f"{self.root}/{place}", detail=False)
        return found

    def wait_for_tasks(self) -> None:
        """Wait until all workers are back, and two looks find no task, also none of a client that was killed.

        A task may be on its way to a worker when the scheduler notices that its client was killed.
        """
        start, idle = time.monotonic(), 0
        while time.monotonic() - start < PATIENCE:
            self.client.wait_for_workers(WORKERS, timeout=PATIENCE)
            is_idle = not self.cluster.scheduler.tasks
            with suppress(OSError):  # a worker that was killed just now is still known
                tasks = self.client.run(lambda dask_worker: len(dask_worker.state.executing))
                idle = idle + 1 if is_idle and len(tasks) == WORKERS and not any(tasks.values()) else 0
                if idle == 2:
                    return
            time.sleep(0.2)
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
        promised = any(event.kind in PROMISED.get(name, ()) for name in event.error)
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
        if self.random.random() < 0.3:
            self.lose_key()
        if self.random.random() < 0.3:
            dask_tfrecord.open_dataset(self.path).expire(versions=self.random.randint(1, 3), grace="0s")
        dask_tfrecord.open_dataset(self.path).cleanup(older_than="0s")
        report = dask_tfrecord.open_dataset(self.path).verify()
        if report["damaged"].any() or not report["agrees"].all():
            self.wrong("files that differ from the snapshot", report.to_string())
        self.check_files()
        versions = dask_tfrecord.open_dataset(self.path).history()["version"].tolist()
        for number in self.random.sample(versions, min(len(versions), VERSIONS)):
            self.model.read_version(number, soak_client.read_rows(self.path, number))
        if differing := soak_client.differing_filters(self.path):
            self.wrong("filters that return other rows", differing)
        self.model.settle(soak_client.read_rows(self.path, scheduler="sync"))
        files = Snapshot.open(self.path).files
        for file in self.random.sample(files, min(len(files), 3)):  # so that `index` has something to store
            path = f"{self.root}/{file.path}"
            self.fs.pipe_file(path, self.fs.cat_file(path))
        self.log.append(f"at rest: {dict(self.model.wrong)}")

    def lose_key(self) -> None:
        """Remove all files of a key from outside, let `repair` commit the loss, and let the older versions,
        which list the files, expire.
        """
        key = self.random.choice(soak_client.KEYS)
        files = Snapshot.open(self.path).files
        expected = {file.path: file.records for file in files if file.path.startswith(f"key={key}/")}
        for path in expected:
            # A killed restore leaves files only in KEPT; on object stores, each restore leaves copies there.
            for removed in (f"{self.root}/{path}", f"{self.root}/{KEPT}{path}"):
                with suppress(FileNotFoundError):
                    self.fs.rm_file(removed)
        removal = Write(self.next_number, "delete", (key,))
        self.next_number += 1
        self.model.begin_write(removal)
        lost = dask_tfrecord.open_dataset(self.path).repair().details["lost_files"]
        if lost != expected:
            self.wrong("files that repair counts in another way", (lost, expected))
        self.model.end_write(removal, committed=True)
        dask_tfrecord.open_dataset(self.path).expire(versions=1, grace="0s")

    def check_files(self) -> None:
        """Compare the files of all versions with the files that are stored."""
        history = dask_tfrecord.open_dataset(self.path).history()["version"]
        listed = [
            {file.path for file in Snapshot.open(self.path, version=number).files} for number in history
        ]
        self.fs.invalidate_cache()
        present = {path.removeprefix(f"{self.root}/") for path in self.fs.find(self.root)}
        kept = {path.removeprefix(KEPT) for path in present if path.startswith(KEPT)}
        newest = {path for path in present if path.startswith("key=")}
        every = set().union(*listed)
        for name, paths in {
            "files that are missing": listed[-1] - newest,
            "files that are not listed": newest - listed[-1],
            "kept files that are missing": every - listed[-1] - kept,
            # A restore on an object store copies a kept file and leaves it.
            "kept files that no version lists": kept - every,
        }.items():
            if paths:
                self.wrong(name, sorted(paths))

    def wrong(self, name: str, details: object) -> None:
        self.log.append(f"{name}: {details}")
        self.model.wrong[name] += 1


def send_signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it was killed before
        os.kill(pid, number)


def describe(event: Event) -> str:
    end = f"ended {''.join(event.error[:1]) or 'well'} {event.message}" if event.ended else "began"
    what = f" {event.write}" if event.write else ""
    what += f" version {event.version}" if event.version else ""
    chunks = "" if event.seen is None else f" {chunks_text(event.seen)}"
    return f"{event.when:.3f} {event.number} {event.kind}{what} {end}{chunks}"


def chunks_text(seen: Iterable[Chunk]) -> str:
    """Return the keys and parts of each write, such as "7: a0 a1 b2"."""
    chunks: dict[int, list[str]] = {}
    for write, key, part in sorted(seen):
        chunks.setdefault(write, []).append(f"{key}{part}")
    return "; ".join(f"{write}: {' '.join(names)}" for write, names in chunks.items())
