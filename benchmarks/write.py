"""Compare writes of whole datasets with the parts of a write.

1. An uncompressed write, against a bare loop that encodes the same rows and writes the bytes.
2. A gzip write, against the compressor alone on the same bytes.
3. A write to many directories, against a write to one directory.
4. Grouping the rows of a partition by 100,000 keys.
5. 10,000 small partitions, against Dask's ``to_parquet``.
6. Rows that are not a Dask collection, against the same rows in a Dask collection of 8 partitions.

Below each write, the benchmark prints the CPU time of each step, and how much of this time holds the GIL. The
first two measurements use two threads. The functions take turns, after one round that does not count. Rates
are those of the best round, in wall time. Each ratio is the median over the rounds, because both functions of
a round share the load of the machine. The files are in memory if the system has ``/dev/shm``.

    python -m benchmarks.write [--rounds 5] [--scale 1.0] [tabular recsys wide images]
"""

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord
from benchmarks.breakdown import WRITE, breakdown, show
from benchmarks.tables import TABLES, Table, encoded_views, table_parser
from dask_tfrecord.codec import Encoder, codecs
from dask_tfrecord.dataset.partitioning.grouping import group_by_directory

THREADS = 2
PARTITIONS = 8
REPEATS = 4  # of each partition, so that the time of the writes exceeds that of the plan and the commit
SMALL_PARTITIONS = 10_000
DIRECTORIES = 200
KEYS = 100_000


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def rounds_of(
    rounds: int, *works: Callable[[str], object], clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Return the times of each function. They take turns, each with a new directory."""
    took: list[list[float]] = [[] for _ in works]
    for _ in range(rounds + 1):
        for times, work in zip(took, works, strict=True):
            with fresh_path() as path:
                times.append(seconds(partial(work, path), clock))
    return [times[1:] for times in took]


@contextmanager
def fresh_path() -> Iterator[str]:
    """Yield the path of a directory that does not exist, in memory if the system has ``/dev/shm``."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as root:
        gc.collect()
        yield f"{root}/data"


def show_breakdown(rounds: int, write: Callable[[str], object]) -> None:
    """Print the CPU time of each step of a write."""
    spent = []
    for _ in range(rounds):
        with fresh_path() as path:
            spent.append(breakdown(partial(write, path), WRITE))
    show(spent)


def ratio(times: list[float], others: list[float]) -> float:
    """Return the median over the rounds of the ratio of the two times."""
    return statistics.median(time / other for time, other in zip(times, others, strict=True))


def side_by_side(work: Callable[[int], object], count: int) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(work, range(count)))


class _Partitions:
    """Look up the partitions of a collection by their numbers, so that Dask need not hash the partitions."""

    def __init__(self, frames: list[pd.DataFrame]) -> None:
        self._frames = frames

    def __call__(self, index: int) -> pd.DataFrame:
        return self._frames[index]

    def __dask_tokenize__(self) -> int:
        return id(self._frames)


def collection(frames: list[pd.DataFrame]) -> dd.DataFrame:
    """Build a collection without Dask's string conversion, which is not part of a write."""
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(_Partitions(frames), range(len(frames)), meta=frames[0].iloc[:0])


def to_pandas(batch: pa.RecordBatch) -> pd.DataFrame:
    return pa.table(batch).to_pandas(types_mapper=pd.ArrowDtype)


def slices(batch: pa.RecordBatch, count: int) -> list[pa.RecordBatch]:
    cuts = [batch.num_rows * n // count for n in range(count + 1)]
    return [batch.slice(a, b - a) for a, b in pairwise(cuts)]


def measure_rates(name: str, table: Table, rounds: int) -> None:
    """Measure a write of one table, without compression and with gzip."""
    batches = slices(table.batch, PARTITIONS) * REPEATS
    ddf = collection([to_pandas(batch) for batch in batches])

    def bare_loop(path: str) -> None:
        def write(index: int) -> None:
            with open(f"{path}/{index}", "wb", buffering=0) as file:
                for view in encoded_views(Encoder(table.columns, "example"), batches[index]):
                    file.write(view)

        os.mkdir(path)
        side_by_side(write, len(batches))

    encoded = [
        bytes(view) for view in encoded_views(Encoder(table.columns, "example"), table.batch)
    ] * REPEATS
    size = sum(map(len, encoded))

    def compress(index: int) -> None:
        file = codecs.compressor("gzip")
        file.add(encoded[index])  # updates the checksum of gzip
        file.compress(encoded[index])

    def write(path: str) -> None:
        dask_tfrecord.to_tfrecord(ddf, path)

    def write_gzip(path: str) -> None:
        dask_tfrecord.to_tfrecord(ddf, path, compression="gzip")

    plain, loop, zipped, compressor = rounds_of(
        rounds, write, bare_loop, write_gzip, lambda _: side_by_side(compress, len(encoded))
    )
    rows = table.batch.num_rows * REPEATS
    for job, work, took, alone, of in (
        ("plain", write, plain, loop, "encode and write()"),
        ("gzip", write_gzip, zipped, compressor, "the compressor"),
    ):
        best = min(took)
        print(f"{name:9}{job:8}{rows / best:12,.0f}{size / best / 1e9:8.2f}{ratio(alone, took):8.2f} of {of}")
        show_breakdown(rounds, work)


def measure_directories(rounds: int, scale: float) -> None:
    """Measure a write with ``partition_on`` against a write of the same rows to one directory."""
    rows = max(DIRECTORIES, int(1_000_000 * scale))
    table = TABLES["tabular"](rows)
    keys = pa.array(np.random.default_rng(5).integers(0, DIRECTORIES, rows))
    keyed = pa.RecordBatch.from_arrays([*table.batch.columns, keys], names=[*table.batch.schema.names, "key"])
    ddf = collection([to_pandas(batch) for batch in slices(keyed, THREADS)])

    def write_flat(path: str) -> None:
        dask_tfrecord.to_tfrecord(ddf, path)

    def write_directories(path: str) -> None:
        dask_tfrecord.to_tfrecord(ddf, path, partition_on="key")

    flat, split_up = rounds_of(rounds, write_flat, write_directories)
    show_breakdown(rounds, write_flat)
    print(f"{rows:,} rows to {DIRECTORIES} directories: {ratio(split_up, flat):.2f} x the time of one")
    show_breakdown(rounds, write_directories)


def measure_slicing(rounds: int, scale: float) -> None:
    """Measure the grouping of the rows of one partition by their keys."""
    rows = int(1_000_000 * scale)
    keys = np.random.default_rng(6).integers(0, max(1, int(KEYS * scale)), rows)
    table = pa.table({"key": keys, "value": np.arange(rows)})
    [took] = rounds_of(rounds, lambda _: group_by_directory(table, ("key",), max_directories=rows))
    print(f"{rows:,} rows of {len(np.unique(keys)):,} keys grouped: {min(took):.2f} s")


def measure_small_partitions(rounds: int, scale: float) -> None:
    """Measure the overhead of a task, with ten rows in each."""
    count = max(2, int(SMALL_PARTITIONS * scale))
    frame = to_pandas(TABLES["tabular"](10).batch)
    ddf = collection([frame] * count)

    def write(path: str) -> None:
        dask_tfrecord.to_tfrecord(ddf, path)

    ours, parquet = rounds_of(rounds, write, lambda path: ddf.to_parquet(path, write_index=False))
    print(
        f"{count:,} partitions of 10 rows: {1e3 * min(ours) / count:.2f} ms each, "
        f"{ratio(ours, parquet):.2f} x the time of to_parquet"
    )
    show_breakdown(1, write)


def measure_rows_without_dask(rounds: int, scale: float) -> None:
    """Measure writes of an Arrow stream and a DataFrame, in wall time and in CPU time."""
    table = TABLES["tabular"](int(1_000_000 * scale))
    batches = slices(table.batch, PARTITIONS)
    frame = pd.concat([to_pandas(batch) for batch in batches], ignore_index=True)
    ddf = collection([to_pandas(batch) for batch in batches])

    def write_stream(path: str) -> None:
        dask_tfrecord.to_tfrecord(pa.RecordBatchReader.from_batches(batches[0].schema, batches), path)

    def write_frame(path: str) -> None:
        dask_tfrecord.to_tfrecord(frame, path)

    def write_from_map(path: str) -> None:
        dask_tfrecord.to_tfrecord(ddf, path)

    def write_from_pandas(path: str) -> None:
        dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=PARTITIONS), path)

    works = write_stream, write_frame, write_from_map, write_from_pandas
    for unit, clock in (("wall", time.perf_counter), ("CPU", time.process_time)):
        took = rounds_of(rounds, *works, clock=clock)
        names = ("stream", "frame", "from_map", "from_pandas")
        times = ", ".join(
            f"{name} {ratio(each, took[0]):.2f}" for name, each in zip(names, took, strict=True)
        )
        print(f"{table.batch.num_rows:,} rows, {unit} time relative to the stream: {times}")


def main() -> None:
    arguments = table_parser(__doc__, rounds=5).parse_args()
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
        measure_rows_without_dask(rounds, scale)


if __name__ == "__main__":
    main()
