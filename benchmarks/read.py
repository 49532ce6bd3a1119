"""Measure reads of whole datasets against a bare loop over the same files.

1. All columns of the four tables, and a projection of each table. The bare loop calls ``readinto`` and
   decodes.
2. One large file, uncompressed and with gzip, read block by block on one thread and on two threads.
3. The number of files that ``len`` opens.

Each figure is that of the best round, in wall time, on two threads. Below each read, the benchmark prints the
CPU time of each step, including the opening of the dataset, and how much of this time holds the GIL. The
files are in memory if the system has ``/dev/shm``.

    python -m benchmarks.read [--rounds 3] [--scale 1.0] [tabular recsys wide images]
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa

import dask_tfrecord
from benchmarks.breakdown import READ, breakdown, show
from benchmarks.tables import TABLES, Table, table_parser
from benchmarks.write import PARTITIONS, THREADS, collection, seconds, side_by_side, slices, to_pandas
from dask_tfrecord.codec import Decoder
from dask_tfrecord.codec.columns import Column
from dask_tfrecord.files.storage.store import Store

REPEATS = 4  # of each partition, so that the time of the reads exceeds the time of the plan
LARGE_BYTES = 2 << 30
ROW_BYTES = 210  # of the table "tabular", approximately
WINDOW_BYTES = 4 << 20


def best(rounds: int, *works: Callable[[], object]) -> list[float]:
    """Return the shortest time of each function. The functions take turns."""
    took = [[seconds(work) for work in works] for _ in range(rounds)]
    return [min(times) for times in zip(*took, strict=True)]


def bare_loop(paths: Sequence[Path], columns: Sequence[Column]) -> None:
    """Read and decode the files, and keep the batches of a file until its end, as a task does."""

    def read(index: int) -> None:
        decoder = Decoder(columns, "example")
        buffer = memoryview(bytearray(WINDOW_BYTES))
        batches, tail, count = [], 0, 1
        with paths[index].open("rb", buffering=0) as file:
            while count:
                count = file.readinto(buffer[tail:])
                decoded = decoder.decode(buffer[: tail + count], final=count == 0)
                batches.append(decoded.batch)
                left = tail + count - decoded.consumed
                buffer[:left] = buffer[decoded.consumed : tail + count]
                tail = left

    side_by_side(read, len(paths))


def compute_and_drop(ddf: dd.DataFrame) -> int:
    """Compute all partitions, release each partition as soon as it is computed, and return the row count."""
    return int(ddf.map_partitions(len, meta=(None, "int64")).compute().sum())


def show_breakdown(rounds: int, root: str, **options: Any) -> None:
    """Print the CPU time of each step of opening and reading a dataset."""

    def read() -> None:
        compute_and_drop(dask_tfrecord.read_tfrecord(root, **options))

    show([breakdown(read, READ) for _ in range(rounds)])


def measure_table(root: str, name: str, table: Table, rounds: int) -> None:
    """Measure reads of all columns, and of a projection."""
    ddf = collection([to_pandas(batch) for batch in slices(table.batch, PARTITIONS)] * REPEATS)
    ddf.to_tfrecord(root)
    paths = sorted(Path(root).glob("part-*"))
    size = sum(path.stat().st_size for path in paths)
    columns = [column for column in table.columns if column.name in table.projection]
    names = list(table.projection)
    whole = dask_tfrecord.read_tfrecord(root, blocksize=None)
    projected = dask_tfrecord.read_tfrecord(root, blocksize=None, columns=names)
    ours, loop, ours_projected, loop_projected = best(
        rounds,
        lambda: compute_and_drop(whole),
        lambda: bare_loop(paths, table.columns),
        lambda: compute_and_drop(projected),
        lambda: bare_loop(paths, columns),
    )
    rows = table.batch.num_rows * REPEATS
    print(f"{name:9}{'all':6}{rows / ours:12,.0f}{size / ours / 1e9:8.2f}{loop / ours:8.2f} of the bare loop")
    show_breakdown(rounds, root, blocksize=None)
    print(
        f"{'':9}{len(columns):<6}{rows / ours_projected:12,.0f}{size / ours_projected / 1e9:8.2f}"
        f"{loop_projected / ours_projected:8.2f} of the bare loop, "
        f"{ours / ours_projected:.2f} x the rate of all columns"
    )
    show_breakdown(rounds, root, blocksize=None, columns=names)


def measure_large(root: str, compression: str | None, rounds: int, scale: float) -> None:
    """Measure a read of one large file, block by block."""
    table = TABLES["tabular"](max(100, int(1_000_000 * min(scale, 1))))
    times = max(1, round(LARGE_BYTES * scale / (ROW_BYTES * table.batch.num_rows)))
    frame = pa.Table.from_batches([table.batch] * times).to_pandas(types_mapper=pd.ArrowDtype)
    collection([frame]).to_tfrecord(root, compression=compression)
    [path] = Path(root).glob("part-*")
    blocksize = max(1 << 20, int(path.stat().st_size / 16))
    ddf = dask_tfrecord.read_tfrecord(root, blocksize=blocksize)

    def on(threads: int) -> None:
        with dask.config.set(num_workers=threads):
            compute_and_drop(ddf)

    one, two = best(rounds, lambda: on(1), lambda: on(2))
    size = path.stat().st_size
    print(
        f"one {compression or 'plain'} file of {size / 1e9:.2f} GB in {ddf.npartitions} partitions: "
        f"{one / two:.2f} x as fast on 2 threads, {size / two / 1e9:.2f} GB/s"
    )
    show_breakdown(1, root, blocksize=blocksize)


def measure_opens(root: str, scale: float) -> None:
    """Count the files that ``len`` of a dataset of many files opens."""
    count = max(2, int(1_000 * scale))
    collection([to_pandas(TABLES["tabular"](10).batch)] * count).to_tfrecord(root)
    with patch.object(Store, "open", autospec=True, side_effect=Store.open) as opened:
        took = seconds(lambda: len(dask_tfrecord.read_tfrecord(root)))
    print(f"len() of {count:,} files opens {opened.call_count}, in {1e3 * took:.0f} ms")


def main() -> None:
    arguments = table_parser(__doc__, rounds=3).parse_args()
    rounds, scale = arguments.rounds, arguments.scale
    memory = "/dev/shm"
    folder = memory if os.access(memory, os.W_OK) else None
    print(f"dask-tfrecord {dask_tfrecord.__version__}, {THREADS} threads, best of {rounds} rounds")
    print(f"{'':9}{'columns':8}{'rows/s':>10}{'GB/s':>8}{'x':>8}")
    with dask.config.set(scheduler="threads", num_workers=THREADS):
        for name in arguments.tables or TABLES:
            make = TABLES[name]
            rows = max(PARTITIONS, int(make.__defaults__[0] * scale))
            with tempfile.TemporaryDirectory(dir=folder) as root:
                measure_table(f"{root}/data", name, make(rows), rounds)
        for compression in (None, "gzip"):
            with tempfile.TemporaryDirectory(dir=folder) as root:
                measure_large(f"{root}/data", compression, rounds, scale)
        with tempfile.TemporaryDirectory(dir=folder) as root:
            measure_opens(f"{root}/data", scale)


if __name__ == "__main__":
    main()
