"""Measure constants such as the rows per CPU second, and predict the time of large jobs from them.

1. Rows per CPU second of a core, for writes and reads of the four tables, with three codecs.
2. The seconds and the pickled bytes of the graph of a write of 10,000 partitions, and the plan of a read of
   these partitions.
3. The CPU time of a client and its scheduler for a task, with two workers.
4. The commit of a file, and the latency of a small read, on a local disk and on an S3 server of moto.
5. A write with 1, 2 and 4 workers, against the prediction from these constants.

Each rate is that of the best round, in CPU time. The commit, the requests and the check are measured in wall
time, on which other work on the machine has the largest effect.

    python -m benchmarks.planning [--rounds 3] [--scale 1.0] [--store]

The command prints the tables of ``docs/planning.md``. ``--store`` puts the tables into this page, and the
constants into
``benchmarks/planning.json``.
"""

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cloudpickle
import dask
import dask.dataframe as dd
import fsspec
import s3fs
from distributed import Client, LocalCluster
from moto.server import ThreadedMotoServer

import dask_tfrecord
from benchmarks.read import compute_and_drop
from benchmarks.reports import planning as report
from benchmarks.tables import TABLES, frame_of
from benchmarks.workers import machine, memory_folder, others, versions
from benchmarks.write import collection, slices, to_pandas

RESULTS = Path(__file__).with_name("planning.json")
CODECS = {"none": None, "gzip": "gzip", "zstd": "zstd"}
PARTITIONS = 8
SMALL_PARTITIONS = 10_000
S3_FILES = 500
REQUESTS = 50
CHECK_PARTITIONS = 64
CHECK_ROWS = 100_000  # of each partition


def cpu_seconds(work: Callable[..., object], *args: Any, **keywords: Any) -> float:
    """Return the CPU time of all threads of this process during a call."""
    start = time.process_time()
    work(*args, **keywords)
    return time.process_time() - start


def measure_rates(folder: str, rounds: int, scale: float) -> dict[str, Any]:
    """Return the bytes of a row of each table, and the rows per CPU second of writes and reads."""
    rates: dict[str, Any] = {}
    for name, make in TABLES.items():
        rows = max(PARTITIONS, int(make.__defaults__[0] * scale))
        ddf = collection([to_pandas(batch) for batch in slices(make(rows).batch, PARTITIONS)])
        rates[name] = {"row": 0.0, "codecs": {}}
        for title, codec in CODECS.items():
            written, read, sizes = zip(
                *(measure_codec(ddf, codec, folder) for _ in range(rounds)), strict=True
            )
            if codec is None:
                rates[name]["row"] = sizes[0] / rows
            rates[name]["codecs"][title] = {"write": rows / min(written), "read": rows / min(read)}
    return rates


def measure_codec(ddf: dd.DataFrame, codec: Any, folder: str) -> tuple[float, float, int]:
    """Return the CPU seconds of a write and of a read, and the stored bytes."""
    with tempfile.TemporaryDirectory(dir=folder) as root:
        path = f"{root}/data"
        written = cpu_seconds(ddf.to_tfrecord, path, compression=codec)
        read = dask_tfrecord.read_tfrecord(path, blocksize=None)
        return written, cpu_seconds(compute_and_drop, read), dask_tfrecord.Snapshot.open(path).bytes


def measure_graphs(folder: str, scale: float) -> dict[str, Any]:
    """Return the client's costs for a write and a read of 10,000 partitions, and for a file's commit."""
    count = max(100, int(SMALL_PARTITIONS * scale))
    per = SMALL_PARTITIONS / count
    ddf = collection([frame_of("tabular", 10)] * count)
    with tempfile.TemporaryDirectory(dir=folder) as root:
        path = f"{root}/data"
        graphs = []
        build = cpu_seconds(
            lambda: graphs.append(ddf.to_tfrecord(path, compute=False).optimize().__dask_graph__())
        )
        with commit_seconds() as commits:
            ddf.to_tfrecord(path)
        plan = cpu_seconds(
            lambda: dask_tfrecord.read_tfrecord(path, blocksize=None).optimize().__dask_graph__()
        )
    return {
        "graph_seconds": build * per,
        "graph_bytes": len(cloudpickle.dumps(graphs[0])) * per,
        "read_seconds": plan * per,
        "commit_ms": {"local": 1000 * commits[0] / count},
    }


@contextmanager
def commit_seconds() -> Iterator[list[float]]:
    """Collect the seconds of the commits in this process, from the times of their log messages."""
    logger, taken, starts = logging.getLogger("dask_tfrecord"), [], []

    class Clock(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if "commit step 1 of" in text:
                starts.append(record.created)
            elif ": done: " in text:
                taken.append(record.created - starts[-1])

    clock, level = Clock(), logger.level
    logger.addHandler(clock)
    logger.setLevel(logging.INFO)
    try:
        yield taken
    finally:
        logger.removeHandler(clock)
        logger.setLevel(level)


def measure_stores(folder: str, scale: float) -> dict[str, Any]:
    """Return the latency of a small read, and the requests and the commit time for a file on an S3 server."""
    count = max(20, int(S3_FILES * scale))
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the server would log every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "nobody", "secret": "nothing", "endpoint_url": f"http://{host}:{port}"}
    calls: Counter[str] = Counter()
    real = s3fs.S3FileSystem._call_s3

    async def counted(fs: Any, method: str, *args: Any, **how: Any) -> Any:
        calls[method] += 1
        return await real(fs, method, *args, **how)

    try:
        s3 = fsspec.filesystem("s3", **options)
        s3.mkdir("bucket")
        ddf = collection([frame_of("tabular", 1000)] * count)
        with patch.object(s3fs.S3FileSystem, "_call_s3", counted):
            with commit_seconds() as commits:
                ddf.to_tfrecord("s3://bucket/data", storage_options=options)
            written = calls.total()
            calls.clear()
            s3.invalidate_cache()
            compute_and_drop(
                dask_tfrecord.read_tfrecord("s3://bucket/data", blocksize=None, storage_options=options)
            )
            read = calls.total()
        remote = latency_ms(s3, "bucket/small")
    finally:
        server.stop()
    return {
        "requests": {"write": written / count, "read": read / count},
        "latency_ms": {"local": latency_ms(fsspec.filesystem("file"), f"{folder}/small"), "moto": remote},
        "commit": 1000 * commits[0] / count,
    }


def latency_ms(fs: Any, path: str) -> float:
    fs.pipe_file(path, b"x" * 1000)
    taken = []
    for _ in range(REQUESTS):
        start = time.perf_counter()
        fs.cat_file(path)
        taken.append(time.perf_counter() - start)
    return 1000 * statistics.median(taken)


def partition(index: int, rows: int) -> Any:
    return frame_of("tabular", rows)


def measure_workers(folder: str, rounds: int, scale: float, graph_seconds: float) -> dict[str, Any]:
    """Return the scheduler's time for a task, and the seconds of a write with 1, 2 and 4 workers."""
    rows, tasks = max(10, int(CHECK_ROWS * scale)), max(100, int(SMALL_PARTITIONS * scale))
    check: dict[str, Any] = {"partitions": CHECK_PARTITIONS, "rows": rows * CHECK_PARTITIONS, "workers": {}}
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        for workers in (1, 2, 4):
            cluster.scale(workers)
            client.wait_for_workers(workers)
            client.run(partition, 0, rows)  # makes the data, and imports what tasks need
            taken, used = [], []
            for _ in range(rounds):
                start, before = time.perf_counter(), worker_seconds(client)
                write(folder, rows, CHECK_PARTITIONS)
                taken.append(time.perf_counter() - start)
                used.append(worker_seconds(client) - before)
            check["workers"][str(workers)] = {"seconds": min(taken), "cpu": min(used)}
            if workers == 2:
                spent = cpu_seconds(write, folder, 10, tasks)
    return {"task_ms": 1000 * (spent / tasks - graph_seconds / SMALL_PARTITIONS), "check": check}


def worker_seconds(client: Client) -> float:
    """Return the CPU time of all workers."""
    return float(sum(client.run(time.process_time).values()))


def write(folder: str, rows: int, count: int) -> None:
    """Write one table many times, with gzip."""
    ddf = dd.from_map(partition, range(count), rows=rows, meta=partition(0, rows).iloc[:0])
    with tempfile.TemporaryDirectory(dir=folder) as root:
        ddf.to_tfrecord(f"{root}/data", compression="gzip")


def measure(rounds: int, scale: float) -> dict[str, Any]:
    """Return all constants."""
    with (
        tempfile.TemporaryDirectory(dir=memory_folder()) as folder,
        dask.config.set(scheduler="threads", num_workers=1, **{"dataframe.convert-string": False}),
    ):
        with others() as share:
            own = time.process_time()
            rates = measure_rates(folder, rounds, scale)
            share.append(time.process_time() - own)
        graphs = measure_graphs(folder, scale)
        with dask.config.set(num_workers=4):
            stores = measure_stores(folder, scale)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        workers = measure_workers(folder, rounds, scale, graphs["graph_seconds"])
    graphs["commit_ms"]["moto"] = stores.pop("commit")
    return {
        "machine": {
            **machine(),
            "cores": os.cpu_count(),
            "packages": versions(["dask", "pandas", "pyarrow"]),
            "others": share[0],
        },
        "rates": rates,
        **graphs,
        **stores,
        **workers,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the numbers of rows and files")
    parser.add_argument("--store", action="store_true", help="store the constants and the tables")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "TensorFlow reads only gzip and zlib")  # zstd is one of the codecs
    found = measure(arguments.rounds, arguments.scale)
    print(report.tables(found), end="")
    if arguments.store:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        report.write(found)


if __name__ == "__main__":
    main()
