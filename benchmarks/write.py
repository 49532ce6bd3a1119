"""Writing whole data sets, against what its parts take by themselves.

An uncompressed write against a bare loop that encodes the same rows and writes the bytes; gzip against the
compressor alone on the same bytes; both on two threads. Then many directories against none, slicing a
partition by 100,000 keys, and 10,000 small partitions against Dask's ``to_parquet``. The contestants take
turns, after a round that does not count. Times are wall times, the best of the rounds; of what is compared,
the median of the rounds, each of which is as busy or quiet for both. The files are in memory where the system
has such a place.

    python -m benchmarks.write [--rounds 5] [--scale 1.0] [tabular recsys wide images]
"""

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord
from benchmarks.tables import TABLES, Table
from dask_tfrecord.codec import Encoder, codecs
from dask_tfrecord.dataset.partitioning.grouping import split

THREADS = 2
PARTITIONS = 8
REPEATS = 4  # of the partitions, so that the plan and the commit do not count for more than the work
SMALL_PARTITIONS = 10_000
DIRECTORIES = 200
KEYS = 100_000

# What the tasks take their partitions from: Dask would spend its time on naming values this large.
_frames: list[pd.DataFrame] = []


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def rounds_of(rounds: int, *works: Callable[[str], object]) -> list[list[float]]:
    """The times of each of the works, which take turns and get a directory that does not exist."""
    memory = "/dev/shm"
    took: list[list[float]] = [[] for _ in works]
    for _ in range(rounds + 1):
        for times, work in zip(took, works, strict=True):
            with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as root:
                gc.collect()
                times.append(seconds(partial(work, f"{root}/data")))
    return [times[1:] for times in took]


def ratio(times: list[float], others: list[float]) -> float:
    """How many times as long as the others it takes, in the median of the rounds."""
    return statistics.median(time / other for time, other in zip(times, others, strict=True))


def side_by_side(work: Callable[[int], object], count: int) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(work, range(count)))


def partition(index: int) -> pd.DataFrame:
    return _frames[index]


def collection(frames: list[pd.DataFrame]) -> dd.DataFrame:
    """Partitions as they are; Dask would convert their strings, which is no part of a write."""
    _frames[:] = frames
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(partition, range(len(frames)), meta=frames[0].iloc[:0])


def to_pandas(batch: pa.RecordBatch) -> pd.DataFrame:
    return pa.table(batch).to_pandas(types_mapper=pd.ArrowDtype)


def slices(batch: pa.RecordBatch, count: int) -> list[pa.RecordBatch]:
    cuts = [batch.num_rows * n // count for n in range(count + 1)]
    return [batch.slice(a, b - a) for a, b in pairwise(cuts)]


def measure_rates(name: str, table: Table, rounds: int) -> None:
    """The four tables, without compression and with gzip."""
    batches = slices(table.batch, PARTITIONS) * REPEATS
    ddf = collection([to_pandas(batch) for batch in batches])

    def bare_loop(path: str) -> None:
        def write(index: int) -> None:
            with open(f"{path}/{index}", "wb", buffering=0) as file:
                for view in Encoder(table.columns, "example").encode(batches[index]):
                    file.write(view)

        os.mkdir(path)
        side_by_side(write, len(batches))

    encoded = [bytes(view) for view in Encoder(table.columns, "example").encode(table.batch)] * REPEATS
    size = sum(map(len, encoded))

    def compress(index: int) -> None:
        file = codecs.compressor("gzip")
        file.add(encoded[index])  # to gzip's own checksum
        file.compress(encoded[index])

    plain, loop, zipped, compressor = rounds_of(
        rounds,
        lambda path: ddf.to_tfrecord(path),
        bare_loop,
        lambda path: ddf.to_tfrecord(path, compression="gzip"),
        lambda _: side_by_side(compress, len(encoded)),
    )
    rows = table.batch.num_rows * REPEATS
    for job, took, alone, of in (
        ("plain", plain, loop, "encode and write()"),
        ("gzip", zipped, compressor, "the compressor"),
    ):
        best = min(took)
        print(f"{name:9}{job:8}{rows / best:12,.0f}{size / best / 1e9:8.2f}{ratio(alone, took):8.2f} of {of}")


def measure_directories(rounds: int, scale: float) -> None:
    """``partition_on`` against a flat write of the same rows."""
    rows = max(DIRECTORIES, int(1_000_000 * scale))
    table = TABLES["tabular"](rows)
    keys = pa.array(np.random.default_rng(5).integers(0, DIRECTORIES, rows))
    keyed = pa.RecordBatch.from_arrays([*table.batch.columns, keys], names=[*table.batch.schema.names, "key"])
    ddf = collection([to_pandas(batch) for batch in slices(keyed, THREADS)])
    flat, split_up = rounds_of(
        rounds,
        lambda path: ddf.to_tfrecord(path),
        lambda path: ddf.to_tfrecord(path, partition_on="key"),
    )
    print(f"{rows:,} rows to {DIRECTORIES} directories: {ratio(split_up, flat):.2f} x the time of none")


def measure_slicing(rounds: int, scale: float) -> None:
    """Sorting a partition by its keys and cutting it up."""
    rows = int(1_000_000 * scale)
    keys = np.random.default_rng(6).integers(0, max(1, int(KEYS * scale)), rows)
    table = pa.table({"key": keys, "value": np.arange(rows)})
    [took] = rounds_of(rounds, lambda _: split(table, ("key",), max_parts=rows))
    print(f"{rows:,} rows of {len(np.unique(keys)):,} keys sorted and sliced: {min(took):.2f} s")


def measure_small_partitions(rounds: int, scale: float) -> None:
    """The cost of a task: next to nothing to write in each."""
    count = max(2, int(SMALL_PARTITIONS * scale))
    frame = to_pandas(TABLES["tabular"](10).batch)
    ddf = collection([frame] * count)
    ours, parquet = rounds_of(
        rounds,
        lambda path: ddf.to_tfrecord(path),
        lambda path: ddf.to_parquet(path, write_index=False),
    )
    print(
        f"{count:,} partitions of 10 rows: {1e3 * min(ours) / count:.2f} ms each, "
        f"{ratio(ours, parquet):.2f} x the time of to_parquet"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="table", help=f"of {', '.join(TABLES)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of rows and partitions")
    arguments = parser.parse_args()
    rounds, scale = arguments.rounds, arguments.scale
    print(f"dask-tfrecord {dask_tfrecord.__version__}, {THREADS} threads, {rounds} rounds")
    print(f"{'':9}{'':8}{'rows/s':>12}{'GB/s':>8}{'x':>8}")
    with dask.config.set(scheduler="threads", num_workers=THREADS):
        for name in arguments.tables or TABLES:
            make = TABLES[name]
            rows = max(PARTITIONS, int(make.__defaults__[0] * scale))
            measure_rates(name, make(rows), rounds)
        measure_directories(rounds, scale)
        measure_slicing(rounds, scale)
        measure_small_partitions(min(rounds, 2), scale)


if __name__ == "__main__":
    main()
