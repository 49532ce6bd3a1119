"""Compare the training loaders of this package with other loaders, in rows per CPU second and per second.

Each loader runs in a process of its own, because frameworks keep threads. All processes of a dataset read all
rows once to warm up, and then take turns: in each round, one loader after the other reads all rows. A
ratio compares two loaders within a round. Other work on the machine has the least effect on rows per CPU
second. Each turn begins with a pass that is not counted, as in a loop over epochs, because a process that
waits for its turn gives memory back to the system. The files are in memory if the system has ``/dev/shm``.
A loader that is not installed or fails is listed with its error.

    python -m benchmarks.feeds [tabular vectors ...] [--rounds 5] [--scale 1.0] [--store [file]]
    python -m benchmarks.feeds --report

``--store`` adds the figures to ``benchmarks/feeds.json``. ``--report`` makes the tables of that file:
``benchmarks/feeds.md`` and the table of ``docs/training.md``.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import dask_tfrecord
from benchmarks.feed_data import PARTITIONS, Work, write
from benchmarks.feed_loaders import LOADERS, serve_loader
from benchmarks.reports import best_way, errors
from benchmarks.reports import feeds as report
from benchmarks.workers import Worker, machine, memory_folder, others, versions

RESULTS = Path(__file__).with_name("feeds.json")

# A loader that takes more CPU seconds than this for one pass takes part in one round only, with one pass.
SLOW_SECONDS = 3.0

# A loader that takes more seconds than this for its first pass, or hangs, is ended.
PASS_LIMIT = 120.0


class Table(NamedTuple):
    """Hold the row counts of a table, of a batch, and of a sample for loaders that handle rows in Python."""

    rows: int
    sample: int
    batch_size: int


TABLES = {
    "tabular": Table(1_000_000, 24_576, 8192),
    "vectors": Table(200_000, 24_576, 8192),
    "wide": Table(50_000, 8_192, 8192),
    "images": Table(5_000, 1_280, 32),
}

DATASETS = [name + codec for codec in ("", " gzip") for name in TABLES]


# -- Measuring -----------------------------------------------------------------------------------------------


def worker(loader: str, way: str, work: Work) -> Worker:
    """Start the process of one loader, for one way to use the loader."""
    arguments = ["-m", "benchmarks.feeds", "--worker", loader, way, json.dumps(work)]
    return Worker(sys.executable, arguments, {})


def measure(name: str, scale: float, rounds: int, folder: str | None) -> dict[str, Any]:
    """Measure all loaders on one dataset."""
    table, _, codec = name.partition(" ")
    rows, sample = (max(PARTITIONS, int(size * scale)) for size in TABLES[table][:2])
    batch_size = min(TABLES[table].batch_size, sample)
    loaders: dict[str, Any] = {}
    passes = []
    with _folder(folder) as root, ExitStack() as stack:
        work = Work(table, codec or None, f"{root}/data", batch_size, rows, sample)
        write(work)
        for loader, (packages, ways, orders, reads) in LOADERS.items():
            if codec and reads in ("parquet", "packed"):
                continue
            if codec and reads == "sample":  # its workers share a plain file by an index
                ways = {"one process": ways["one process"]}
            keys = {order: ", ".join(filter(None, [loader, order])) for order in orders}
            missing = [package for package in packages if not importlib.util.find_spec(package)]
            if missing:
                found = {"error": f"{missing[0]} is not installed"}
                loaders.update(dict.fromkeys(keys.values(), found))
                continue
            for way in ways:
                one = stack.enter_context(worker(loader, way, work))
                for order, key in keys.items():
                    rates = loaders.setdefault(key, {})[way] = {"cpu": [], "wall": []}
                    passes.append(Pass(one, order, rates))
        warm = [read for read in passes if read.warm_up((rows, sample))]
        with others() as used:
            for number in range(rounds):
                for read in warm:
                    if number == 0 or not read.is_slow:
                        used.append(read.measure())
    return {"rows": rows, "batch_size": batch_size, "loaders": loaders, "others": used[0]}


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


@contextmanager
def _folder(folder: str | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as root:
        yield root


PACKAGES = [
    *("tensorflow", "tensorflow-cpu", "torch", "tfrecord", "datasets", "webdataset", "mosaicml-streaming"),
    *("grain", "array_record", "pyarrow", "numpy"),
]


def show(name: str, found: dict[str, Any]) -> None:
    """Print the figures of a dataset."""
    print(f"{name}: {found['rows']:,} rows; other processes used {found['others']:.0%} of the CPU")
    for loader, ways in found["loaders"].items():
        cpu, wall = best_way(ways, "cpu"), best_way(ways, "wall")
        for error in errors(ways):
            print(f"  {loader:50}{error}")
        if cpu:
            ratio = report.tensorflow_ratios(found["loaders"], loader)
            spread = f"   {median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f})" if ratio else ""
            print(f"  {loader:50}{median(cpu):14,.0f}{median(wall):14,.0f}{spread}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "datasets", nargs="*", metavar="dataset", help=f"of {', '.join(DATASETS)}; default: all"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of rows")
    parser.add_argument(
        "--store", type=Path, nargs="?", const=RESULTS, metavar="file", help="default: benchmarks/feeds.json"
    )
    parser.add_argument("--report", action="store_true", help="make the tables of feeds.json")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        loader, way, work = arguments.worker
        serve_loader(loader, way, Work(*json.loads(work)))
        return
    if arguments.report:
        report.write(json.loads(RESULTS.read_text()))
        return
    folder = memory_folder()
    print(f"dask-tfrecord {dask_tfrecord.__version__}, median of {arguments.rounds} rounds")
    print(f"{'':52}rows per CPU s    rows per s   x TensorFlow's best per CPU s (least to most)")
    for name in arguments.datasets or DATASETS:
        found = measure(name, arguments.scale, arguments.rounds, folder)
        show(name, found)
        if arguments.store:
            exists = arguments.store.exists()
            results = json.loads(arguments.store.read_text()) if exists else {"datasets": {}}
            results["machine"] = machine() | {"packages": versions(PACKAGES)}
            results["datasets"][name] = found
            results["datasets"] = {
                one: results["datasets"][one] for one in DATASETS if one in results["datasets"]
            }
            arguments.store.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
