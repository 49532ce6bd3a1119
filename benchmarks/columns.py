"""Compare reads that use column files with Parquet, and with reads of the whole records.

1. A projection: 2 of 10 columns, 2 of 200 columns, and the label of images. Dask's ``read_parquet`` reads the
   same columns of the same rows. The goal is at least 0.9 of the rows per CPU second of Parquet.
2. A filter that keeps 1 % of images, against a read of all images. The goal is at least 20 times less CPU
   time and 20 times fewer bytes.
3. What column files add to a write, in CPU time and in bytes.

All figures are CPU times of the process, which include the plan of the read. The functions take turns, and
each figure is the median of the rounds. The files are in memory if the system has ``/dev/shm``.

    python -m benchmarks.columns [--rounds 5] [--scale 1.0] [tabular wide images]
"""

import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd

import dask_tfrecord
from benchmarks.tables import TABLES, table_parser
from benchmarks.write import PARTITIONS, THREADS, collection, fresh_path, seconds, slices, to_pandas

NAMES = ("tabular", "wide", "images")
IMAGE_REPEATS = 2  # of each partition, so that reading all images takes much longer than the plan of a read


def cpu_times(rounds: int, *works: Callable[[], object]) -> list[float]:
    """Return the median CPU time of each function. The functions take turns, after a round that does not
    count.
    """
    took = [[seconds(work, time.process_time) for work in works] for _ in range(rounds + 1)]
    return [statistics.median(times) for times in zip(*took[1:], strict=True)]


def compute_and_drop(open_collection: Callable[[], dd.DataFrame]) -> None:
    """Compute all partitions, and release each partition as soon as it is computed."""
    open_collection().map_partitions(len, meta=(None, "int64")).compute()


def written(root: str, write: Callable[[], Any]) -> None:
    shutil.rmtree(root, ignore_errors=True)
    write()


def stored_bytes(root: str) -> int:
    return sum(path.stat().st_size for path in Path(root).rglob("*") if path.is_file())


def measure_write(root: str, name: str, ddf: dd.DataFrame, names: list[str], rounds: int) -> None:
    """Measure what column files with some columns add to a write. The last write stays."""
    plain, beside = f"{root}/plain", f"{root}/tfrecord"
    without, with_columns = cpu_times(
        rounds,
        lambda: written(plain, partial(ddf.to_tfrecord, plain)),
        lambda: written(beside, partial(ddf.to_tfrecord, beside, columnar=names)),
    )
    more = stored_bytes(beside) / stored_bytes(plain) - 1
    print(
        f"{name:9}write     {with_columns / without - 1:+.0%} CPU, {more:+.1%} bytes for {', '.join(names)}"
    )
    shutil.rmtree(plain)


def measure_projection(root: str, name: str, names: list[str], rows: int, rounds: int) -> None:
    """Measure a projection of the dataset and of the Parquet files."""
    read = partial(dask_tfrecord.read_tfrecord, f"{root}/tfrecord", columns=names)
    parquet = partial(dd.read_parquet, f"{root}/parquet", columns=names, dtype_backend="pyarrow")
    ours, theirs = cpu_times(rounds, partial(compute_and_drop, read), partial(compute_and_drop, parquet))
    print(
        f"{name:9}columns   {', '.join(names)}: {rows / ours:,.0f} rows per CPU second, "
        f"{theirs / ours:.2f} of read_parquet"
    )


def measure_filter(root: str, rows: int, rounds: int) -> None:
    """Measure a filter that keeps 1 % of the images."""
    path = f"{root}/tfrecord"
    found = partial(dask_tfrecord.read_tfrecord, path, filters=[("label", "<", 10)])
    few, every = cpu_times(
        rounds,
        partial(compute_and_drop, found),
        partial(compute_and_drop, partial(dask_tfrecord.read_tfrecord, path)),
    )
    totals = dask_tfrecord.explain(found()).totals
    read = totals["data_bytes"] + totals["column_bytes"]
    print(
        f"{'images':9}filter    label < 10 keeps {len(found()):,} of {rows:,}: {every / few:.1f} times less "
        f"CPU than all images, {totals['stored_bytes'] / max(read, 1):.1f} times fewer bytes"
    )


def main() -> None:
    arguments = table_parser(__doc__, rounds=5).parse_args()
    rounds = arguments.rounds
    print(f"dask-tfrecord {dask_tfrecord.__version__}, {THREADS} threads, medians of {rounds} rounds")
    with dask.config.set(scheduler="threads", num_workers=THREADS):
        for name in arguments.tables or NAMES:
            make = TABLES[name]
            table = make(max(PARTITIONS, int(make.__defaults__[0] * arguments.scale)))
            repeats = IMAGE_REPEATS if name == "images" else 1
            ddf = collection([to_pandas(batch) for batch in slices(table.batch, PARTITIONS)] * repeats)
            rows = table.batch.num_rows * repeats
            with fresh_path() as root:
                measure_write(root, name, ddf, [*table.projection], rounds)
                ddf.to_parquet(f"{root}/parquet")
                measure_projection(root, name, [*table.projection], rows, rounds)
                if name == "images":
                    measure_filter(root, rows, rounds)


if __name__ == "__main__":
    main()
