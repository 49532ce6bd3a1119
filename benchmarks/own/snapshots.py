"""Measure what plans, counts and commits cost with up to 1,000,000 files, and count their requests to S3.

``python -m benchmarks.own.snapshots`` prints all tables, and ``... snapshots local s3`` prints only these.
CPU seconds are those of this process, the least of some rounds.
"""

import gc
import math
import pickle
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import fsspec
import numpy as np
import pyarrow as pa
from aiobotocore.client import AioBaseClient

import dask_tfrecord
from dask_tfrecord.dataset.names import snapshot_path
from dask_tfrecord.dataset.snapshot.entry_log import EntryLog
from dask_tfrecord.dataset.snapshot.head import kept_versions
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.versions import encode
from dask_tfrecord.files.file_list import FileList
from dask_tfrecord.storage.store import Store

from .tables import scaled

ROWS = 10  # of a file
KEYS = 100
ROUNDS = 3
MASKED = 21  # keys, so 2,100 of 10,000 files
COMMITS = 2_500


def rows(first: int, count: int, keys: Any) -> pa.Table:
    ids = np.arange(first, first + count)
    text = np.char.add("v", (ids % 100).astype(str))
    return pa.table({"id": ids, "x": ids.astype(np.float32), "s": text, "k": np.broadcast_to(keys, count)})


def write(files: int, path: str, **options: Any) -> None:
    """Write many small files, the same number for each key. No two files have the same ids."""
    data = rows(0, files * ROWS, np.arange(files * ROWS) // (files * ROWS // KEYS))
    size = {"max_rows_per_file": ROWS}
    dask_tfrecord.to_tfrecord(data, path, partition_on="k", write_options=size, **options)


class Operations:
    """The operations that are measured, on a dataset of many files."""

    def __init__(self, path: str, files: int, **options: Any) -> None:
        self.path, self.files, self.options = path, files, options
        self.commits = 0

    def read(self, *filters: Any, **how: Any) -> Any:
        return dask_tfrecord.read_tfrecord(self.path, filters=[*filters] or None, **self.options, **how)

    def plan(self) -> None:
        assert self.read().npartitions

    def filter_key(self) -> None:
        assert self.read(("k", "==", 5)).npartitions

    def filter_statistic(self) -> None:
        assert self.read(("id", "==", self.files * ROWS // 2)).npartitions == 1

    def count(self) -> None:
        assert len(self.read()) >= (self.files - self.commits) * ROWS

    def append(self) -> None:
        self.commits += 1
        new = rows((self.files + self.commits) * ROWS, ROWS, 7)
        dask_tfrecord.to_tfrecord(new, self.path, append=True, partition_on="k", **self.options)

    def delete(self) -> None:
        self.commits += 1
        dataset = dask_tfrecord.open_dataset(self.path, **self.options)
        assert dataset.delete([("id", "==", self.commits * ROWS)]).details["deleted_rows"] == 1

    def mask(self) -> None:
        """Apply a mask of pandas that is true in one of many files, each of which is a partition."""
        ddf = self.read(("k", "<", MASKED), blocksize=None)
        assert len(ddf[ddf["id"] == self.files * ROWS // 10].compute()) == 1


TIMED: dict[str, Callable[[Operations], None]] = {
    "plan": Operations.plan,
    "plan, filter on a key, 1 %": Operations.filter_key,
    "plan, filter on a statistic, 1 file": Operations.filter_statistic,
    "len": Operations.count,
    "append of one file": Operations.append,
    "delete in one file": Operations.delete,
    "plan after these commits": Operations.plan,
}
IN_MEMORY = ["plan", "plan, filter on a key, 1 %", "append of one file"]
REQUESTED = [*TIMED][:6]


def cpu_seconds(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def timed(operations: Operations, name: str) -> float:
    return min(cpu_seconds(lambda: TIMED[name](operations)) for _ in range(ROUNDS))


def show(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def head(first: str, *others: str) -> None:
    print()
    show(first, *others)
    show("---", *("--:" for _ in others))


# -- The parts -----------------------------------------------------------------------------------------------


def local() -> None:
    counts = [scaled(10_000, KEYS), scaled(100_000, 10 * KEYS)]
    with tempfile.TemporaryDirectory() as folder:
        for files in counts:
            write(files, f"{folder}/{files}")
        datasets = [Operations(f"{folder}/{files}", files) for files in counts]
        head("local disk, CPU s", *(f"{files:,} files" for files in counts), "exponent")
        for name in TIMED:
            few, many = (timed(each, name) for each in datasets)
            show(name, f"{few:.3f}", f"{many:.3f}", f"{math.log10(many / few):.2f}")
        tasks(datasets[1])


def tasks(dataset: Operations) -> None:
    """Pickle the graph of a read with one task for each file, at once and task by task."""
    graph = dataset.read(blocksize=None).optimize().__dask_graph__()
    some = [*graph.values()][:: max(1, len(graph) // 1000)]
    seconds = min(cpu_seconds(lambda: pickle.dumps(graph)) for _ in range(ROUNDS))
    size = len(pickle.dumps(graph))
    each = cpu_seconds(lambda: [pickle.dumps(task) for task in some]) / len(some)
    alone = sum(len(pickle.dumps(task)) for task in some) / len(some)
    head(f"{len(graph):,} tasks of one file each", "CPU s", "MB")
    show("pickle the graph", f"{seconds:.2f}", f"{size / 1e6:.1f}")
    show("pickle each task alone", f"{each * len(graph):.2f}", f"{alone * len(graph) / 1e6:.1f}")


def memory() -> None:
    files = scaled(1_000_000, KEYS)
    path = "memory://snapshots"
    describe(path, files)
    operations = Operations(path, files)
    head("memory://, CPU s", f"{files:,} entries")
    for name in IN_MEMORY:
        show(name, f"{timed(operations, name):.3f}")


def describe(path: str, files: int) -> None:
    """Store a snapshot of many files. The files of a key have the same content, which memory holds once."""
    write(KEYS, path)
    snapshot = Snapshot.open(path)
    key, first = np.arange(files) // (files // KEYS), np.arange(files) * ROWS
    listed = snapshot.file_list.take(key)
    start, end = snapshot.file_list.names[0].removeprefix("k=0/").rsplit("-", 1)[0], ".tfrecord"
    paths = [f"k={k}/{start}-{n:07d}{end}" for n, k in enumerate(key.tolist())]
    bounds = [np.zeros(files, np.int64), first, first + ROWS - 1]
    statistics = pa.StructArray.from_arrays(bounds, names=["nulls", "min", "max"])
    listed = listed.with_columns({"path": pa.array(paths), "statistics.id": statistics})
    fields = vars(replace(snapshot, log=EntryLog(FileList(listed.rows))))
    stored, _ = encode(Store.at(path), fields, kept_versions)
    fsspec.filesystem("memory").pipe_file(f"{path}/{snapshot_path(1)}", stored)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the requests that S3 clients send, such as "List" and "Get"."""
    counts: Counter[str] = Counter()
    call = AioBaseClient._make_api_call

    async def counting(client: Any, name: str, arguments: Any) -> Any:
        counts[name.partition("Object")[0]] += 1
        return await call(client, name, arguments)

    with patch.object(AioBaseClient, "_make_api_call", counting):
        yield counts


def s3() -> None:
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "helpers"))
    from servers import s3_server

    files, path = scaled(10_000, KEYS), "s3://bucket/data"
    with s3_server() as options:
        fsspec.filesystem("s3", **options).call_s3("create_bucket", Bucket="bucket")
        write(files, path, storage_options=options)
        operations = Operations(path, files, storage_options=options)
        head(f"S3, {files:,} files", "requests", "of which")
        several = {name: TIMED[name] for name in REQUESTED}
        several[f"a mask that leaves 1 of {files * MASKED // KEYS:,} files, computed"] = Operations.mask
        for name, operation in several.items():
            fsspec.get_filesystem_class("s3").clear_instance_cache()  # a new process has no cached listing
            with counted() as counts:
                operation(operations)
            show(name, counts.total(), ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))


def commits() -> None:
    count = scaled(COMMITS)
    with tempfile.TemporaryDirectory() as folder:
        with dask_tfrecord.Writer(folder) as writer:
            start = time.process_time()
            for number in range(count):
                writer.write(rows(number, 1, 0))
                writer.commit()
            seconds = (time.process_time() - start) / count
        sizes = [file.stat().st_size for file in Path(folder, "_tfrecord").glob("*.parquet")]
        opened = min(cpu_seconds(lambda: len(dask_tfrecord.read_tfrecord(folder))) for _ in range(ROUNDS))
        history = cpu_seconds(lambda: dask_tfrecord.open_dataset(folder).history())
    head(f"{count:,} commits of a `Writer`, a row each", "")
    show("CPU ms of a commit", f"{seconds * 1e3:.1f}")
    show("metadata, MB", f"{sum(sizes) / 1e6:.1f}")
    show("open and count, CPU ms", f"{opened * 1e3:.0f}")
    show("history, CPU ms", f"{history * 1e3:.0f}")


PARTS = {"local": local, "memory": memory, "s3": s3, "commits": commits}

if __name__ == "__main__":
    dask.config.set(scheduler="sync")
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
