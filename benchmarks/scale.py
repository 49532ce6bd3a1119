"""Measure the costs that grow with the number of files, up to 100,000 partitions, and compare with Parquet.

Each number of partitions and each format has a process of its own, and Dask's scheduler without threads. The
figures are CPU seconds, the bytes of the optimized expression that a client sends to the scheduler, and the
peak memory of the process. An exponent compares the two largest datasets: 1 is linear.

The second part measures changes of datasets, which `benchmarks.changes` makes. It compares them with Parquet
files that are changed by hand, and with Delta tables if the package deltalake is installed.

    python -m benchmarks.scale [--rounds 1] [--scale 1.0] [--only files] [--store] [1000 10000 100000]

``--store`` puts the figures into ``benchmarks/scale.json``, and makes ``benchmarks/RESULTS.md``.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask._expr import FinalizeCompute
from dask.base import collections_to_expr
from dask.callbacks import Callback
from distributed.protocol import serialize, to_serialize

import dask_tfrecord
from benchmarks import changes
from benchmarks.reports import results
from benchmarks.reports import scale as report
from benchmarks.reports.scale import FORMATS, STEPS, exponent, middle
from benchmarks.workers import (
    cpu_seconds,
    forget_peak,
    last_error,
    machine,
    memory_folder,
    new_process,
    others,
    peak_bytes,
    versions,
)

ROWS = 10  # of a partition

WRITE: dict[str, Callable[..., Any]] = {
    "tfrecord": dask_tfrecord.to_tfrecord,
    "parquet": partial(dd.to_parquet, write_index=False),
}
APPEND: dict[str, dict[str, Any]] = {"tfrecord": {}, "parquet": {"ignore_divisions": True}}
READ: dict[str, Callable[..., Any]] = {"tfrecord": dask_tfrecord.read_tfrecord, "parquet": dd.read_parquet}


def partition(index: int) -> pd.DataFrame:
    """Return rows whose ids are in the range of the partition."""
    ids = np.arange(ROWS) + index * ROWS
    return pd.DataFrame({"id": ids, "score": ids.astype(np.float32), "label": ids % 2})


class Measured:
    """Hold the figures of one dataset in one format."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """Run a step, and store the CPU seconds of the step."""
        start = time.process_time()
        done = work()
        self.figures[name] = time.process_time() - start
        return done

    def graph(self, name: str, collection: Any) -> int:
        """Optimize a collection, build its graph, and return the bytes that are sent to the scheduler."""
        expression = FinalizeCompute(collections_to_expr([collection]))

        def make() -> Any:
            optimized = expression.optimize()
            optimized.__dask_graph__()
            return optimized

        _, frames = serialize(to_serialize(self.step(name, make)))
        return sum(memoryview(frame).nbytes for frame in frames)


class LastTask(Callback):
    """Measure the CPU seconds of the last task, which is the commit of a write."""

    seconds = 0.0

    def _pretask(self, key: Any, graph: Any, state: Any) -> None:
        self._start = time.process_time()

    def _posttask(self, key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:
        self.seconds = time.process_time() - self._start


def measure(name: str, count: int, root: str) -> dict[str, Any]:
    """Measure one format with one number of partitions, in a new process."""
    meta, measured = partition(0).iloc[:0], Measured()
    with dask.config.set(scheduler="sync"):
        for number, path in (
            (3, f"{root}/warm"),
            (count, f"{root}/data"),
        ):  # the first imports what tasks need
            forget_peak()
            ddf = dd.from_map(partition, range(number), meta=meta)
            _measure_write(measured, name, ddf, path)
            _measure_reads(measured, name, number, path)
            new = dd.from_map(partition, [number], meta=meta)
            append = partial(WRITE[name], new, path, append=True, **APPEND[name])
            measured.step("append one file", append)
            _check(len(READ[name](path)), (number + 1) * ROWS)
        measured.figures["peak memory"] = peak_bytes()
    return measured.figures


def _measure_write(measured: Measured, name: str, ddf: dd.DataFrame, path: str) -> None:
    writes = measured.step("plan a write", lambda: WRITE[name](ddf, path, compute=False))
    measured.figures["bytes of the write"] = measured.graph("graph of the write", writes)
    with LastTask() as last:
        measured.step("write", writes.compute)
    measured.figures["commit"] = last.seconds


def _measure_reads(measured: Measured, name: str, count: int, path: str) -> None:
    read = READ[name]
    measured.step("open", lambda: read(path).npartitions)
    each_file = {"blocksize": None} if name == "tfrecord" else {}
    rows = read(path, **each_file).map_partitions(len, meta=(None, "int64"))
    measured.figures["bytes of a read"] = measured.graph("graph of a read", rows)
    wanted = [("id", "==", count * ROWS // 2)]
    measured.step("filter one row", lambda: _check(len(read(path, filters=wanted).compute()), 1))
    measured.step("len", lambda: _check(len(read(path)), count * ROWS))


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise AssertionError(f"{found:,} rows instead of {expected:,}")


def measure_apart(name: str, count: int) -> dict[str, Any]:
    """Measure one format in a new process. If the format fails, return the error."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as root:
        return call_apart(measure, name, count, root)


def call_apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process. If the function raises, return the error."""
    context = new_process("dask_tfrecord", "distributed.protocol")
    with ProcessPoolExecutor(1, context) as process:
        try:
            return process.submit(work, *arguments).result()
        except Exception as error:  # whatever another format raises is a result, and is printed
            return {"error": last_error(f"{type(error).__name__}: {error}")}


def measure_changes(rounds: int, scale: float) -> dict[str, Any]:
    """Measure changes of datasets in all formats in turns, each in a new process."""
    runs: dict[str, list[Any]] = {name: [] for name in changes.FORMATS}
    with others() as used, tempfile.TemporaryDirectory(dir=memory_folder()) as root:
        before = cpu_seconds()
        for name in runs:
            Path(root, name).mkdir()
            call_apart(changes.make, name, scale, f"{root}/{name}")
        for _ in range(rounds):
            for name, figures in runs.items():
                figures.append(call_apart(changes.measure, name, f"{root}/{name}"))
        used.append(cpu_seconds() - before)
    return {"sizes": changes.sizes(scale), "others": used[0], "runs": runs}


def environment() -> dict[str, str]:
    """Return the machine, and the versions of the packages."""
    packages = versions(["dask", "distributed", "pyarrow", "pandas", "deltalake"])
    return machine() | {"packages": packages}


def show(sizes: dict[str, Any]) -> None:
    """Print the figures of all sizes, and the exponents."""
    print(f"{'':22}" + "".join(f"{int(count):>12,}" for count in sizes) + f"{'exponent':>10}")
    for name in FORMATS:
        print(name)
        for error in (f"{run['error']}" for one in sizes.values() for run in one[name] if "error" in run):
            print(f"  {error}")
        for step, (unit, divisor) in STEPS.items():
            figures = [middle(one[name], step) for one in sizes.values()]
            texts = "".join(
                f"{'' if figure is None else f'{figure / divisor:,.2f}':>12}" for figure in figures
            )
            print(f"  {step:20}{texts}{exponent(sizes, name, step):>10}  {unit}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("counts", nargs="*", type=int, default=[1_000, 10_000, 100_000], metavar="count")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the numbers of partitions")
    parser.add_argument("--store", action="store_true", help="put the figures into scale.json, and report")
    parser.add_argument("--only", choices=["files", "changes"], help="measure only one of the two parts")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    if arguments.only != "changes":
        found["sizes"] = sizes = {}
        for count in arguments.counts:
            count = max(4, int(count * arguments.scale))
            sizes[str(count)] = {name: [] for name in FORMATS}
            for _ in range(arguments.rounds):
                for name in FORMATS:
                    sizes[str(count)][name].append(measure_apart(name, count))
        found["machine"] = environment()
        show(sizes)
    if arguments.only != "files":
        found["changes"] = measure_changes(arguments.rounds, arguments.scale) | {"machine": environment()}
        print(*report.change_lines(found["changes"]), sep="\n")
    if arguments.store:
        results.save("scale", results.stored("scale") | found)
        results.write()


if __name__ == "__main__":
    main()
