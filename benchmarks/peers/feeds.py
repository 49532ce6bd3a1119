"""Compare the training loaders of this package with other loaders, in rows per CPU second and per second.

Each loader runs in a process of its own, because frameworks keep threads. All processes of a dataset read all
rows once to warm up, and then take turns: in each round, one loader after the other reads all rows. A
ratio compares two loaders within a round. Other work on the machine has the least effect on rows per CPU
second. Each turn begins with a pass that is not counted, as in a loop over epochs, because a process that
waits for its turn gives memory back to the system. The files are in memory if the system has ``/dev/shm``.
A loader that is not installed or fails is listed with its error.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from benchmarks.own.tables import memory_folder
from benchmarks.peers.feed_loaders import LOADERS, PARTITIONS, Work, write
from benchmarks.peers.report import best_way, capped_spread, errors, feeds, save, stored
from benchmarks.peers.workers import Worker, machine, others, versions

SLOW_SECONDS = 3.0  # a loader with more CPU seconds for a pass takes part in one round only, with one pass
PASS_LIMIT = 120.0  # seconds after which a loader is ended

# The rows of each table, of a sample for loaders that handle rows in Python, and of a batch.
TABLES = {
    "tabular": (1_000_000, 24_576, 8192),
    "vectors": (200_000, 24_576, 8192),
    "wide": (50_000, 8_192, 8192),
    "images": (5_000, 1_280, 32),
}
DATASETS = [name + codec for codec in ("", " gzip") for name in TABLES]
PACKAGES = [
    *("tensorflow", "tensorflow-cpu", "torch", "tfrecord", "datasets", "webdataset", "mosaicml-streaming"),
    *("grain", "array_record", "pyarrow", "numpy"),
]


class Pass:
    """Read all rows in one order again and again, in the process of a loader."""

    def __init__(self, process: Worker, order: str, rates: dict[str, Any]) -> None:
        self.process, self.order, self.rates = process, order, rates
        self.is_slow = False

    def warm_up(self, expected: Sequence[int]) -> bool:
        """Read all rows without counting the time. Return False and keep the error if the loader fails."""
        try:
            first = self.process.ask(self.order, PASS_LIMIT)
            if first["rows"] not in expected:
                raise RuntimeError(f"{first['rows']:,} rows of {expected[0]:,} were read")
        except RuntimeError as error:
            self.rates.clear()
            self.rates["error"] = str(error)
            return False
        self.is_slow = first["cpu"] > SLOW_SECONDS
        return True

    def measure(self) -> float:
        """Read all rows, keep the rows per second, and return the CPU seconds of all passes."""
        first = 0.0 if self.is_slow else self.process.ask(self.order)["cpu"]
        figures = self.process.ask(self.order)
        for what in ("cpu", "wall"):
            self.rates[what].append(round(figures["rows"] / figures[what], 1))
        return float(first + figures["cpu"])


def start(work: Work, stack: ExitStack, loaders: dict[str, Any]) -> list[Pass]:
    """Start the processes of all loaders, and add their figures or errors to ``loaders``."""
    passes = []
    for loader, (packages, ways, orders, reads) in LOADERS.items():
        if work.codec and reads in ("parquet", "packed"):
            continue
        if work.codec and reads == "sample":  # its workers share a plain file by an index
            ways = {"one process": ways["one process"]}
        keys = {order: ", ".join(filter(None, [loader, order])) for order in orders}
        if missing := [package for package in packages if not importlib.util.find_spec(package)]:
            loaders |= {key: {"error": f"{missing[0]} is not installed"} for key in keys.values()}
            continue
        for way in ways:
            arguments = ["-m", "benchmarks.peers.feed_loaders", loader, way, json.dumps(work)]
            process = stack.enter_context(Worker(sys.executable, arguments, {}))
            for order, key in keys.items():
                rates = loaders.setdefault(key, {})[way] = {"cpu": [], "wall": []}
                passes.append(Pass(process, order, rates))
    return passes


def measure(name: str, scale: float, rounds: int) -> dict[str, Any]:
    """Measure all loaders on one dataset."""
    table, _, codec = name.partition(" ")
    rows, sample = (max(PARTITIONS, int(size * scale)) for size in TABLES[table][:2])
    batch_size = min(TABLES[table][2], sample)
    loaders: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(dir=memory_folder(), ignore_cleanup_errors=True) as root,
        ExitStack() as stack,
    ):
        work = Work(table, codec or None, f"{root}/data", batch_size, rows, sample)
        write(work)
        warm = [one for one in start(work, stack, loaders) if one.warm_up((rows, sample))]
        with others() as used:
            for number in range(rounds):
                used += [one.measure() for one in warm if number == 0 or not one.is_slow]
    return {"rows": rows, "batch_size": batch_size, "loaders": loaders, "others": used[0]}


def show(name: str, found: dict[str, Any]) -> None:
    """Print the figures of a dataset."""
    print(f"{name}: {found['rows']:,} rows; other processes used {found['others']:.0%} of the CPU")
    for loader, ways in found["loaders"].items():
        for error in errors(ways):
            print(f"  {loader:50}{error}")
        if cpu := best_way(ways, "cpu"):
            ratio = capped_spread(feeds.tensorflow_ratios(found["loaders"], loader))
            print(f"  {loader:50}{median(cpu):14,.0f}{median(best_way(ways, 'wall')):14,.0f}   {ratio}")


def run(arguments: argparse.Namespace) -> None:
    """Measure all loaders on all datasets."""
    print(f"{'':52}rows per CPU s    rows per s   x TensorFlow's best per CPU s (least to most)")
    for name in arguments.datasets or DATASETS:
        found = measure(name, arguments.scale, arguments.rounds)
        show(name, found)
        if arguments.store:
            datasets = stored("feeds").get("datasets", {}) | {name: found}
            about = machine() | {"packages": versions(PACKAGES)}
            save("feeds", {"datasets": datasets, "machine": about})
