"""Measure the peak memory of one task, as a multiple of its partition.

Each job runs in a process of its own, with Dask's scheduler without threads, so that the process does one
task at a time. A partition has rows of 80 bytes, as in `benchmarks.shuffle`. The peak includes the partition,
and excludes the memory that the process holds after the job has run once with few rows. Shuffled jobs have
four partitions, which are the same object. The tasks that merge shuffled rows do not use this object, but the
process keeps it in memory. The rows of the most frequent key are as many as 3.6 partitions. The benchmark
needs Linux.

The benchmark also reads images with all processors, once with the default memory pool and once with a pool of
64 MiB. It measures how much more memory the process has right after the read, and one second later.

    python -m benchmarks.memory [--rounds 3] [--scale 1.0] [--store] [write shuffle ...]

``--store`` puts the figures into ``benchmarks/memory.json``, and makes ``benchmarks/RESULTS.md``.
"""

import argparse
import gc
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord
from benchmarks.read import compute_and_drop
from benchmarks.reports import results
from benchmarks.reports.memory import BOUND_FACTOR, BOUND_MIB
from benchmarks.shuffle import ROW_BYTES, partition
from benchmarks.tables import TABLES
from benchmarks.workers import forget_peak, machine, new_process, peak_bytes, versions
from benchmarks.write import collection, slices, to_pandas
from dask_tfrecord.codec import limit_pool

ROWS = 1_600_000  # 128 MB
FEW_ROWS = 1_000
IMAGES = 2_500  # 250 MB
POOLS = {"default pool": None, "pool of 64 MiB": 64 << 20}
KEYS = 200

# The options of the jobs that write. "key" has 200 values, and "one" has the same value in 9 of 10 rows.
WRITES: dict[str, dict[str, Any]] = {
    "write": {},
    "write gzip": {"compression": "gzip"},
    "partition_on, 200 values": {"partition_on": "key"},
    "shuffle": {"shuffle": 42},
    "colocate": {"partition_on": "key", "colocate": True},
    "colocate, 9 of 10 rows have one key": {"partition_on": "one", "colocate": True},
}
READS: dict[str, str | None] = {"read": None, "read gzip": "gzip"}
JOBS = [*READS, *WRITES]
SHUFFLED = ("shuffle", "colocate", "colocate, 9 of 10 rows have one key")


def frame(rows: int) -> pd.DataFrame:
    """Return the DataFrame of one partition."""
    made = partition(0, rows)
    made["key"] = np.arange(rows) % KEYS
    made["count"] = np.where(np.arange(rows) % 10, 0, np.arange(rows) // 10 % KEYS).astype(np.int32)
    return made.rename(columns={"count": "one"})


def prepare(job: str, rows: int, root: str) -> None:
    """Write the dataset that a job reads."""
    with dask.config.set(scheduler="sync"):
        for count in (FEW_ROWS, rows):
            dask_tfrecord.to_tfrecord(collection([frame(count)]), f"{root}/{count}", compression=READS[job])


def measure(job: str, rows: int, root: str) -> int:
    """Return the peak bytes of a job, in a new process."""

    def do(count: int, made: list[pd.DataFrame]) -> None:
        if job in READS:
            compute_and_drop(dask_tfrecord.read_tfrecord(f"{root}/{count}", blocksize=None))
        else:
            dask_tfrecord.to_tfrecord(collection(made), f"{root}/{count}", **WRITES[job])

    partitions = 4 if job in SHUFFLED else 1
    with dask.config.set(scheduler="sync"):
        do(FEW_ROWS, [frame(FEW_ROWS)] * partitions)
        made = [] if job in READS else [frame(rows)] * partitions
        gc.collect()
        pa.default_memory_pool().release_unused()
        forget_peak()
        before = peak_bytes()
        do(rows, made)
        return peak_bytes() - before + (0 if job in READS else rows * ROW_BYTES)


def measure_apart(job: str, rows: int) -> int:
    """Measure a job in a new process, so that this process did not write the files that it reads."""
    with (
        tempfile.TemporaryDirectory() as root,
        ProcessPoolExecutor(
            1, new_process("benchmarks.read", "benchmarks.shuffle"), max_tasks_per_child=1
        ) as process,
    ):
        if job in READS:
            process.submit(prepare, job, rows, root).result()
        return process.submit(measure, job, rows, root).result()


def write_images(rows: int, root: str) -> None:
    """Write the images that `measure_resident` reads."""
    with dask.config.set(scheduler="sync"):
        batches = slices(TABLES["images"](rows).batch, 8)
        dask_tfrecord.to_tfrecord(collection([to_pandas(batch) for batch in batches]), f"{root}/images")


def measure_resident(pool: int | None, root: str) -> tuple[int, int]:
    """Return the additional resident bytes right after a read of images, and one second later."""
    if pool is not None:
        limit_pool(pool)
    images = dask_tfrecord.read_tfrecord(f"{root}/images")
    before = resident_bytes()
    with dask.config.set(scheduler="threads"):
        compute_and_drop(images)
    after = resident_bytes()
    time.sleep(1)
    return after - before, resident_bytes() - before


def resident_bytes() -> int:
    """Return the memory that the process has now: the peak after the earlier peak is forgotten."""
    forget_peak()
    return peak_bytes()


def measure_pools(rows: int, rounds: int) -> dict[str, list[tuple[int, int]]]:
    """Measure the reads with each pool in turns, each in a new process."""
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in POOLS}
    with (
        tempfile.TemporaryDirectory() as root,
        ProcessPoolExecutor(1, new_process("benchmarks.read"), max_tasks_per_child=1) as process,
    ):
        process.submit(write_images, rows, root).result()
        for _ in range(rounds):
            for name, pool in POOLS.items():
                found[name].append(process.submit(measure_resident, pool, root).result())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", metavar="job", help=f"{', '.join(JOBS)}; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of rows")
    parser.add_argument("--store", action="store_true", help="put the figures into memory.json, and report")
    arguments = parser.parse_args()
    rows = max(2 * FEW_ROWS, int(ROWS * arguments.scale))
    size = rows * ROW_BYTES
    bound = BOUND_FACTOR * size + (BOUND_MIB << 20)
    print(f"a partition of {size / 1e6:.1f} MB; bound {bound / 1e6:.0f} MB")
    peaks: dict[str, list[int]] = {}
    for job in arguments.jobs or JOBS:
        peaks[job] = [measure_apart(job, rows) for _ in range(arguments.rounds)]
        peak = median(peaks[job])
        print(
            f"{job:38}{peak / 1e6:8.0f} MB{peak / size:7.2f} x {'' if peak <= bound else 'above the bound'}"
        )
    pools = measure_pools(max(100, int(IMAGES * arguments.scale)), arguments.rounds)
    for name, sizes in pools.items():
        after, later = (median(column) / 2**20 for column in zip(*sizes, strict=True))
        print(f"resident after images, {name:22}{after:8.0f} MiB, one second later {later:.0f} MiB")
    if arguments.store:
        about = machine() | {"packages": versions(["dask", "pyarrow", "pandas", "numpy"])}
        results.save("memory", {"machine": about, "partition": size, "peaks": peaks, "pools": pools})
        results.write()


if __name__ == "__main__":
    main()
