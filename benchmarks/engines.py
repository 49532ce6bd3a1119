"""Compare queries of DuckDB, DataFusion, Polars and pyarrow on TFRecord files with queries on Parquet files.

A table of one million rows has ten columns and a partition column. The same rows are in 64 TFRecord files and
in 64 Parquet files, neither of which is compressed by a codec of the whole file: Parquet compresses with
Snappy, its default. The first rows of the table are in the first files, so that statistics exclude files.

A figure is the processor time of a query in milliseconds, of all threads: the median of the rounds. The
engines and the formats take turns. A dataset is opened once, before the queries. "Decoded" is the size of the
Arrow tables that a query decoded from TFRecord files, and the number of files that the query opened.

    python -m benchmarks.engines [--rounds 7] [--scale 1.0] [--report]
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import dask.dataframe as dd
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from datafusion import SessionContext

import dask_tfrecord
from benchmarks.tables import tabular
from dask_tfrecord.dataset.read.read_task import Partition
from dask_tfrecord.feed.polars import scan_tfrecord
from dask_tfrecord.files.storage.store import Store

FORMATS = ("TFRecord", "Parquet")
ENGINES = ("DuckDB", "DataFusion", "Polars", "pyarrow")
CHUNKS = KEYS = 8
REPORT = Path(__file__).with_suffix(".md")


class Query(NamedTuple):
    """A query, for each engine that takes it in another form."""

    sql: str
    polars: Callable[[pl.LazyFrame], pl.LazyFrame]
    pyarrow: Callable[[Any], Any]


def queries(rows: int) -> dict[str, Query]:
    pair = ["clicks", "price"]
    few = rows // 10
    return {
        "open": Query("", lambda lazy: lazy, lambda dataset: dataset),
        "2 of 10 columns": Query(
            "select sum(clicks), sum(price) from data",
            lambda lazy: lazy.select(pl.col(pair).sum()),
            lambda dataset: dataset.to_table(columns=pair),
        ),
        "filter on a partition column": Query(
            "select sum(clicks), sum(price) from data where p = 'p3'",
            lambda lazy: lazy.filter(pl.col("p") == "p3").select(pl.col(pair).sum()),
            lambda dataset: dataset.to_table(columns=pair, filter=pc.field("p") == "p3"),
        ),
        "filter that statistics decide": Query(
            f"select sum(clicks), sum(price) from data where k < {few}",
            lambda lazy: lazy.filter(pl.col("k") < few).select(pl.col(pair).sum()),
            lambda dataset: dataset.to_table(columns=pair, filter=pc.field("k") < few),
        ),
        "LIMIT 10": Query(
            "select * from data limit 10", lambda lazy: lazy.head(10), lambda dataset: dataset.head(10)
        ),
        "count": Query(
            "select count(*) from data",
            lambda lazy: lazy.select(pl.len()),
            lambda dataset: dataset.count_rows(),
        ),
        "all columns": Query("select * from data", lambda lazy: lazy, lambda dataset: dataset.to_table()),
    }


def write(root: Path, rows: int) -> None:
    """Write the rows to 64 files of each format, in the same order and the same directories."""
    table = pa.table(tabular(rows).batch).drop_columns(["user_id"])
    table = table.add_column(0, "k", pa.array(np.arange(rows)))
    table = table.append_column(
        "p", pa.array([f"p{key}" for key in range(KEYS)]).take(np.arange(rows) % KEYS)
    )
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    ddf = dd.from_pandas(frame, npartitions=CHUNKS)
    dask_tfrecord.to_tfrecord(ddf, root / "TFRecord", partition_on="p")
    size = -(-rows // CHUNKS)
    for chunk in range(CHUNKS):
        part = table.slice(chunk * size, size)
        for key in range(KEYS):
            path = root / "Parquet" / f"p=p{key}" / f"{chunk}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(part.filter(pc.field("p") == f"p{key}").drop_columns(["p"]), path)


def opened(root: Path, engine: str, form: str) -> Any:
    """Open the dataset with an engine. Return a function that runs a query."""
    path = root / form
    if engine == "Polars":
        lazy = scan_tfrecord(path) if form == "TFRecord" else pl.scan_parquet(path, hive_partitioning=True)
        return lambda query: query.polars(lazy).collect()
    if engine == "DuckDB":
        connection = duckdb.connect()
        if form == "TFRecord":
            connection.register("data", dask_tfrecord.TFRecordDataset(path))
        else:
            files = f"read_parquet('{path}/*/*.parquet', hive_partitioning=true)"
            connection.execute(f"create view data as select * from {files}")
        return lambda query: connection.sql(query.sql).to_arrow_table()
    if engine == "DataFusion":
        context = SessionContext()
        if form == "TFRecord":
            context.register_dataset("data", dask_tfrecord.TFRecordDataset(path))
        else:
            context.register_parquet("data", path, table_partition_cols=[("p", pa.string())])
        return lambda query: context.sql(query.sql).collect()
    if form == "TFRecord":
        dataset: Any = dask_tfrecord.TFRecordDataset(path)
    else:
        dataset = pads.dataset(path, partitioning="hive")
    return lambda query: query.pyarrow(dataset)


def stored_bytes(root: Path) -> int:
    return sum(file.stat().st_size for file in root.glob("p=*/*"))


def seconds(run: Callable[[], object]) -> float:
    gc.collect()
    time.sleep(0.1)  # the threads of another engine wait actively for a moment after its query
    start = time.process_time()
    run()
    return time.process_time() - start


@contextmanager
def counted() -> Iterator[dict[str, Any]]:
    """Yield a dict. After the block, the dict has the decoded bytes and the paths of the opened files."""
    found: dict[str, Any] = {"bytes": 0, "files": set()}
    stream, open_file = Partition.stream, Store.open

    def counting(self: Partition, *args: Any) -> Iterator[pa.Table]:
        for table in stream(self, *args):
            found["bytes"] += table.nbytes
            yield table

    def opening(self: Store, path: str, *args: Any) -> Any:
        found["files"].add(path)
        return open_file(self, path, *args)

    with patch.object(Partition, "stream", counting), patch.object(Store, "open", opening):
        yield found


def measure(root: Path, rows: int, rounds: int) -> list[list[str]]:
    """Return the rows of the report's table."""
    runs = {(engine, form): opened(root, engine, form) for engine in ENGINES for form in FORMATS}
    lines = []
    for title, query in queries(rows).items():
        took: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
        for number in range(rounds + 1):
            for key, run in runs.items():
                one = seconds(partial(opened, root, *key) if title == "open" else partial(run, query))
                if number or rounds == 1:  # the first round warms up
                    took[key].append(one)
        cells = [title]
        for engine in ENGINES:
            ours, other = (1000 * median(took[engine, form]) for form in FORMATS)
            with counted() as found:
                if title != "open":
                    runs[engine, "TFRecord"](query)
            cells.append(f"{ours:.1f} / {other:.1f}")
            if title != "open":
                cells[-1] += f"; {found['bytes'] / 1e6:.1f} MB, {len(found['files'])}"
        lines.append(cells)
        print(" | ".join(cells), flush=True)
    return lines


def report(lines: list[list[str]], rows: int, rounds: int, sizes: dict[str, float]) -> str:
    packages = ("duckdb", "datafusion", "polars", "pyarrow", "dask")
    titles = ["query", *ENGINES]
    table = (titles, ["---"] * len(titles), *lines)
    files = ", ".join(f"{form} {size:,.0f} MB" for form, size in sizes.items())
    packed = ", ".join(f"{name} {version(name)}" for name in packages)
    rows_of_table = "\n".join(f"| {' | '.join(line)} |" for line in table)
    return f"""# Queries of SQL and other engines, beside Parquet

Made by `python -m benchmarks.engines --report`, which describes the table and how it is measured. A cell
has the processor time on TFRecord and on Parquet in milliseconds, then the Arrow bytes that the query
decoded from TFRecord, and the number of TFRecord files that the query opened.

{rows:,} rows; {files}; median of {rounds} rounds.
{packed}.
At the end, the load average of the machine with {os.cpu_count()} cores was {os.getloadavg()[1]:.0f}: on a
busy machine, the share of the system in the times is larger.

{rows_of_table}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of rows")
    parser.add_argument("--report", action="store_true", help=f"write {REPORT.name}")
    arguments = parser.parse_args()
    rows = int(1_000_000 * arguments.scale)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write(root, rows)
        sizes = {
            form: sum(file.stat().st_size for file in (root / form).rglob("*.*") if file.is_file()) / 1e6
            for form in FORMATS
        }
        lines = measure(root, rows, arguments.rounds)
    if arguments.report:
        REPORT.write_text(report(lines, rows, arguments.rounds, sizes))


if __name__ == "__main__":
    main()
