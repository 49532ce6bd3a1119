"""Measure the memory of the tasks of ``shuffle=`` and ``colocate=True``, for data larger than the workers.

Two workers with a memory limit of 1 GB each make partitions of 48 MB, move their rows and write them. A
partition has 600,000 rows of 80 bytes: two int64, one int32, one float32 and a text of 56 letters. For each
size of the data, the table shows the wall time, the processor time of both workers, the most bytes in the
staging directory, and the peak growth of a worker's memory. The bound of the growth is that of
`benchmarks.memory`. ``colocate=True`` distributes keys by their hashes, so some of its partitions are larger.
The benchmark needs Linux.

    python -m benchmarks.shuffle [--rounds 1] [--scale 1.0] [0.5 1 2 4 8]

``--count`` instead counts the read requests of one shuffle between many partitions of 1,000 rows. It makes
the graph of the whole shuffle, runs the tasks of all partitions before the shuffle, and then only the tasks
of one group of partitions after the shuffle. All groups are alike, so the requests of this group are
multiplied.

    python -m benchmarks.shuffle --count 10000 10000
"""

import argparse
import pickle
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
from dask._expr import FinalizeCompute
from dask.base import collections_to_expr
from dask.callbacks import Callback
from dask.optimization import cull
from distributed import Client, LocalCluster
from distributed.protocol import serialize, to_serialize

import dask_tfrecord
from benchmarks.reports.memory import BOUND_FACTOR, BOUND_MIB
from benchmarks.workers import forget_peak, peak_bytes
from dask_tfrecord.files.storage.store import Store

ROW_BYTES = 80
TEXT_BYTES = 56
PARTITION_BYTES = 48_000_000
ROWS_PER_KEY = 600  # in each partition, which therefore has 1,000 keys
MEMORY_LIMIT = "1GB"

JOBS: dict[str, dict[str, Any]] = {
    "shuffle": {"shuffle": 42},
    "colocate": {"partition_on": "key", "colocate": True},
}


def partition(index: int, rows: int) -> pd.DataFrame:
    random = np.random.default_rng(index)
    letters = random.integers(97, 123, TEXT_BYTES * rows, np.uint8)
    offsets = np.arange(0, TEXT_BYTES * rows + 1, TEXT_BYTES, np.int32)
    text = pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
    columns = {
        "id": np.arange(rows) + index * rows,
        "key": random.integers(0, rows // ROWS_PER_KEY + 1, rows),
        "count": random.integers(0, 100, rows, np.int32),
        "score": random.random(rows, np.float32),
        "text": pd.arrays.ArrowExtensionArray(text),
    }
    return pd.DataFrame(columns)


def processor_seconds() -> float:
    return time.process_time()


@contextmanager
def staged(root: Path) -> Iterator[list[int]]:
    """Yield a list. After the block, its item is the largest size of the staging directory in bytes."""
    stop, most = Event(), [0]

    def look() -> None:
        while not stop.wait(0.1):
            used = 0
            for path in root.glob("_tfrecord/staging/*/rows/*"):
                used += path.stat().st_size if path.exists() else 0
            most[0] = max(most[0], used)

    thread = Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


def measure(
    client: Client, job: str, partitions: int, rows: int, root: Path
) -> tuple[float, float, int, int]:
    """Return the seconds, processor seconds, staged bytes and memory growth of one write."""
    ddf = dd.from_map(partition, range(partitions), rows=rows, meta=partition(0, 1).iloc[:0])
    client.run(forget_peak)
    before, used = client.run(peak_bytes), client.run(processor_seconds)
    start = time.perf_counter()
    with staged(root) as most:
        ddf.to_tfrecord(str(root), **JOBS[job])
    seconds = time.perf_counter() - start
    processor = sum(client.run(processor_seconds).values()) - sum(used.values())
    growth = max(peak - before[worker] for worker, peak in client.run(peak_bytes).items())
    return seconds, processor, most[0], growth


def measure_sizes(client: Client, job: str, sizes: list[float], rounds: int, directory: str | None) -> None:
    for size in sizes:
        rows = int(min(PARTITION_BYTES, size * 1e9 / 4)) // ROW_BYTES
        partitions = round(size * 1e9 / (rows * ROW_BYTES))
        found = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(dir=directory) as place:
                found.append(measure(client, job, partitions, rows, Path(place, "data")))
        seconds, processor, temporary, growth = zip(*found, strict=True)
        bound = BOUND_FACTOR * rows * ROW_BYTES + (BOUND_MIB << 20)
        print(
            f"{job:10}{size:7.3f}{partitions:7}{rows * ROW_BYTES / 1e6:9.1f}{min(seconds):8.1f}"
            f"{min(processor):8.1f}{max(temporary) / 1e6:9.0f}{max(growth) / 1e6:10.0f}{bound / 1e6:8.0f}",
            flush=True,
        )


class Requests(Callback):
    """Count the requests of the tasks that read spill files, and the growth of the memory of these tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[str, list[int]] = {}  # bytes of each request, for each kind of task
        self.growth: dict[str, int] = {}
        self.listed = 0  # bytes of the longest list of spill files that a task gets
        self._kind = ""
        self._before = 0
        self._read_ranges = Store.read_ranges

    def read_ranges(self, store: Store, ranges: Any) -> list[bytes]:
        self.sizes.setdefault(self._kind, []).extend(stop - start for _, start, stop in ranges)
        return self._read_ranges(store, ranges)

    def _pretask(self, key: Any, graph: Any, state: Any) -> None:
        self._kind = key[0].partition("-")[0]
        forget_peak()
        self._before = peak_bytes()

    def _posttask(self, key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:
        self.growth[self._kind] = max(self.growth.get(self._kind, 0), peak_bytes() - self._before)
        if self._kind in ("spilled", "regrouped"):
            self.listed = max(self.listed, len(pickle.dumps(result)))


def count_requests(sources: int, targets: int, rows: int, directory: str | None) -> None:
    """Print the requests of a shuffle, from the tasks of one group of target partitions."""
    ddf = dd.from_map(partition, range(sources), rows=rows, meta=partition(0, 1).iloc[:0])
    requests = Requests()
    with tempfile.TemporaryDirectory(dir=directory) as place, dask.config.set(scheduler="sync"):
        ddf.partitions[:3].to_tfrecord(f"{place}/warm", shuffle=42)  # imports what tasks need
        start = time.process_time()
        write = ddf.to_tfrecord(f"{place}/data", shuffle=42, npartitions=targets, compute=False)
        expression = FinalizeCompute(collections_to_expr([write])).optimize()
        graph = dict(expression.__dask_graph__())
        seconds, (_, frames) = time.process_time() - start, serialize(to_serialize(expression))
        groups = [key for key in graph if key[0].startswith("regrouped-")]
        wanted = [key for key, task in graph.items() if groups[0] in task.dependencies]
        start = time.process_time()
        with requests, patch.object(Store, "read_ranges", lambda *ranges: requests.read_ranges(*ranges)):
            dask.get(cull(graph, wanted)[0], wanted)
    print(f"{sources:,} x {targets:,} partitions of {rows:,} rows, {len(groups):,} groups")
    print(f"graph: {len(graph):,} tasks, {seconds:.1f} CPU s, {sum(map(len, frames)) / 1e6:.2f} MB to send")
    print(f"tasks of one group: {time.process_time() - start:.1f} CPU s")
    print(f"longest list of spill files that a task gets: {requests.listed / 1e3:,.0f} kB")
    for kind, sizes in requests.sizes.items():
        print(
            f"{kind}: {len(sizes) * len(groups):,} requests of {np.mean(sizes) / 1e3:,.1f} kB in the mean, "
            f"memory of a task: {requests.growth[kind] / (1 << 20):.0f} MiB"
        )
    total = sum(map(len, requests.sizes.values())) * len(groups)
    print(f"all: {total:,} requests; 2 (N + M) sqrt(M) = {2 * (sources + targets) * targets**0.5:,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", type=float, default=[0.5, 1, 2, 4, 8], help="in GB")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the sizes")
    parser.add_argument("--directory", help="where to write; needs room for three times the largest size")
    parser.add_argument("--count", nargs=2, type=int, metavar=("SOURCES", "TARGETS"), help="count requests")
    parser.add_argument("--rows", type=int, default=1_000, help="rows of a partition, for --count")
    arguments = parser.parse_args()
    if arguments.count:
        sources, targets = arguments.count
        count_requests(sources, targets, arguments.rows, arguments.directory)
        return
    sizes = [size * arguments.scale for size in arguments.sizes]
    print(
        f"dask-tfrecord {dask_tfrecord.__version__}, 2 workers of {MEMORY_LIMIT}, {arguments.rounds} rounds"
    )
    names = "GB", "parts", "MB each", "s", "cpu s", "MB temp", "MB more", "bound"
    print("{:>17}{:>7}{:>9}{:>8}{:>8}{:>9}{:>10}{:>8}".format(*names))
    for job in JOBS:
        with (
            LocalCluster(
                n_workers=2, threads_per_worker=1, memory_limit=MEMORY_LIMIT, dashboard_address=":0"
            ) as cluster,
            Client(cluster) as client,
        ):
            client.run(partition, 0, 1)  # imports what tasks need
            measure_sizes(client, job, sizes, arguments.rounds, arguments.directory)


if __name__ == "__main__":
    main()
