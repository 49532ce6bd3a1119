"""Change large datasets: compact, delete and append. `benchmarks.scale` runs this module.

Each class does the steps in one format. `Parquet` does the steps by hand: it writes, replaces and removes
files with pyarrow, without a commit, so that readers see unfinished changes. `Delta` uses the package
deltalake, which need not be installed.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import dask_tfrecord
from benchmarks.workers import memory_folder

# The numbers of small files, of partitions, of large files, and of rows in a large file.
SIZES = {"small": 10_000, "partitions": 1_000, "large": 20, "rows": 50_000}
LEAST = {"small": 20, "partitions": 10, "large": 2, "rows": 200}
ROWS = 10  # of a small file and of a partition
COMPACTED = 10  # files
BATCH = 100  # rows of a commit
COMMITS = 20
SHARE = 100  # one row of this number of rows is deleted


def sizes(scale: float) -> dict[str, int]:
    return {name: max(LEAST[name], int(size * scale)) for name, size in SIZES.items()}


def rows(start: int, count: int) -> pa.Table:
    """Return rows with consecutive ids. One row of `SHARE` rows has the label 0."""
    ids = np.arange(start, start + count)
    return pa.table({"id": ids, "score": ids.astype(np.float32), "label": ids % SHARE})


class TFRecord:
    """Do the steps with `dask_tfrecord`."""

    name: ClassVar[str] = "tfrecord"

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def make(self, counts: list[int]) -> None:
        """Write a dataset with a file for each count of rows."""
        starts = np.cumsum([0, *counts[:-1]]).tolist()

        def partition(start: int, count: int) -> pd.DataFrame:
            return rows(start, count).to_pandas()

        ddf = dd.from_map(partition, starts, counts, meta=partition(0, 1).iloc[:0])
        dask_tfrecord.to_tfrecord(ddf, self.path)

    def make_partitions(self, count: int) -> None:
        """Write a dataset with a partition directory for each key."""
        table = rows(0, count * ROWS)
        table = table.append_column("key", pc.divide(table["id"], ROWS))
        dask_tfrecord.to_tfrecord(table, self.path, partition_on="key", max_files_per_task=None)

    def __len__(self) -> int:
        return len(dask_tfrecord.read_tfrecord(self.path))

    def count_files(self) -> int:
        return len(dask_tfrecord.Snapshot.open(self.path).files)

    def compact(self) -> None:
        size = dask_tfrecord.Snapshot.open(self.path).bytes
        dask_tfrecord.compact(self.path, target_bytes=size // COMPACTED + 1_000)

    def drop_partition(self, key: int) -> None:
        dask_tfrecord.delete(self.path, [("key", "==", key)])

    def delete_before(self, limit: int) -> None:
        dask_tfrecord.delete(self.path, [("id", "<", limit)])

    def delete_label(self) -> None:
        dask_tfrecord.delete(self.path, [("label", "==", 0)])

    def append(self, table: pa.Table) -> None:
        dask_tfrecord.to_tfrecord(table, self.path, append=True, schema_change="add")

    def commits(self, tables: list[pa.Table]) -> list[float]:
        """Append each table with a commit, and return the CPU seconds of each commit."""
        with dask_tfrecord.Writer(self.path) as writer:
            return [_seconds(lambda table=table: (writer.write(table), writer.commit())) for table in tables]


class Parquet:
    """Do the steps with files of pyarrow."""

    name: ClassVar[str] = "parquet"

    def __init__(self, path: Path) -> None:
        self.path = path

    def _write(self, table: pa.Table) -> Path:
        path = self.path / f"{time.monotonic_ns()}.parquet"
        pq.write_table(table, path)
        return path

    def make(self, counts: list[int]) -> None:
        self.path.mkdir()
        start = 0
        for count in counts:
            self._write(rows(start, count))
            start += count

    def make_partitions(self, count: int) -> None:
        for key in range(count):
            directory = self.path / f"key={key}"
            directory.mkdir(parents=True)
            pq.write_table(rows(key * ROWS, ROWS), directory / "0.parquet")

    def files(self) -> list[Path]:
        return sorted(self.path.rglob("*.parquet"))

    def __len__(self) -> int:
        return int(ds.dataset(self.path, partitioning="hive").count_rows())

    def count_files(self) -> int:
        return len(self.files())

    def compact(self) -> None:
        for group in np.array_split(self.files(), COMPACTED):
            self._write(ds.dataset([str(path) for path in group]).to_table())
            for path in group:
                path.unlink()

    def drop_partition(self, key: int) -> None:
        shutil.rmtree(self.path / f"key={key}")

    def delete_before(self, limit: int) -> None:
        for path in self.files():
            statistics = pq.read_metadata(path).row_group(0).column(0).statistics
            if statistics.min < limit:
                self._keep(path, pc.field("id") >= limit)

    def delete_label(self) -> None:
        for path in self.files():
            self._keep(path, pc.field("label") != 0)

    def _keep(self, path: Path, wanted: pc.Expression) -> None:
        os.replace(self._write(pq.read_table(path).filter(wanted)), path)

    def append(self, table: pa.Table) -> None:
        self._write(table)

    def commits(self, tables: list[pa.Table]) -> list[float]:
        return [_seconds(lambda table=table: self._write(table)) for table in tables]


class Delta:
    """Do the steps with a Delta table. Its files keep the rows that were replaced, until it is vacuumed."""

    name: ClassVar[str] = "delta"

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def table(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.path)

    def make(self, counts: list[int]) -> None:
        """Write Parquet files, and commit all files at once."""
        from deltalake import DeltaTable
        from deltalake.transaction import AddAction

        Parquet(self.path).make(counts)
        start, actions = 0, []
        for path, count in zip(Parquet(self.path).files(), counts, strict=True):
            bounds = {"minValues": {"id": start}, "maxValues": {"id": start + count - 1}}
            stats = json.dumps({"numRecords": count, "nullCount": {"id": 0}, **bounds})
            actions.append(AddAction(path.name, path.stat().st_size, {}, 0, True, stats))
            start += count
        schema = rows(0, 1).schema
        DeltaTable.create(self.path, schema)
        self.table.create_write_transaction(actions, "append", schema)

    def make_partitions(self, count: int) -> None:
        from deltalake import write_deltalake

        table = rows(0, count * ROWS)
        table = table.append_column("key", pc.divide(table["id"], ROWS))
        write_deltalake(self.path, table, partition_by=["key"])

    def __len__(self) -> int:
        return sum(pa.table(self.table.get_add_actions())["num_records"].to_pylist())

    def count_files(self) -> int:
        return len(self.table.file_uris())

    def compact(self) -> None:
        sizes = pa.table(self.table.get_add_actions())["size_bytes"]
        self.table.optimize.compact(target_size=pc.sum(sizes).as_py() // COMPACTED)

    def drop_partition(self, key: int) -> None:
        self.table.delete(f"key = {key}")

    def delete_before(self, limit: int) -> None:
        self.table.delete(f"id < {limit}")

    def delete_label(self) -> None:
        self.table.delete("label = 0")

    def append(self, table: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.path, table, mode="append", schema_mode="merge")

    def commits(self, tables: list[pa.Table]) -> list[float]:
        from deltalake import write_deltalake

        table = self.table
        return [_seconds(lambda one=one: write_deltalake(table, one, mode="append")) for one in tables]


FORMATS: dict[str, Any] = {
    one.name: one for one in (TFRecord, Parquet, *([Delta] if find_spec("deltalake") else []))
}


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def make(name: str, scale: float, root: str) -> None:
    """Write the datasets that `measure` changes, and small datasets that `measure` changes first."""
    with dask.config.set(scheduler="sync"):
        for place, factor in (("warm", 0.0), ("data", scale)):
            counts = sizes(factor)
            Path(root, place).mkdir()
            FORMATS[name](Path(root, place, "small")).make([ROWS] * counts["small"])
            FORMATS[name](Path(root, place, "partitions")).make_partitions(counts["partitions"])
            FORMATS[name](Path(root, place, "large")).make([counts["rows"]] * counts["large"])


def measure(name: str, root: str) -> dict[str, float]:
    """Return the CPU seconds of each step in one format, with copies of the datasets.

    "opened files" is the number of data files that Python opened to delete a partition.
    """
    figures: dict[str, float] = {}

    def step(title: str, dataset: Any, added: int, work: Callable[[], object]) -> None:
        """Measure a step, and check the number of rows afterwards."""
        before = len(dataset)
        figures[title] = _seconds(work)
        if len(dataset) != before + added:
            raise AssertionError(f"{title}: {len(dataset):,} rows instead of {before + added:,}")

    with dask.config.set(scheduler="sync"), tempfile.TemporaryDirectory(dir=memory_folder()) as copies:
        for place in ("warm", "data"):  # the first imports what the steps need
            shutil.copytree(Path(root, place), Path(copies, place))
            datasets = (Path(copies, place, dataset) for dataset in ("small", "partitions", "large"))
            small, partitions, large = map(FORMATS[name], datasets)
            batch = rows(0, BATCH)
            batch = batch.append_column("new", batch["id"])
            step("append with a new column", small, BATCH, partial(small.append, batch))
            figures["commit of 100 rows"] = median(small.commits([batch] * COMMITS))
            step("compact", small, 0, small.compact)
            figures["files after it"] = small.count_files()
            with opened_files() as opened:
                step("delete a partition", partitions, -ROWS, partial(partitions.drop_partition, 3))
            figures["opened files"] = len(opened)
            total = len(large)
            first = total // SHARE
            step("delete 1 % at one end", large, -first, partial(large.delete_before, first))
            others = -np.count_nonzero(np.arange(first, total) % SHARE == 0)
            step("delete 1 % everywhere", large, others, large.delete_label)
    return figures


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Collect the paths of the data files that Python opens."""
    found: list[str] = []
    is_on = True

    def notice(event: str, arguments: tuple[Any, ...]) -> None:
        path = str(arguments[0]) if is_on and event == "open" else ""
        if path.endswith((".tfrecord", ".parquet")) and "/_tfrecord/" not in path:
            found.append(path)

    sys.addaudithook(notice)  # which cannot be removed
    try:
        yield found
    finally:
        is_on = False
