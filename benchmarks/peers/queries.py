"""Compare queries of DuckDB, DataFusion, Polars and pyarrow on TFRecord files with queries on Parquet files.

A table of one million rows has ten columns and a partition column. The same rows are in 64 TFRecord files and
in 64 Parquet files, neither of which is compressed by a codec of the whole file: Parquet compresses with
Snappy, its default. The first rows of the table are in the first files, so that statistics exclude files.

A figure is the processor time of a query in milliseconds, of all threads: the median of the rounds. The
engines and the formats take turns. A dataset is opened once, before the queries. "Decoded" is the size of the
Arrow tables that a query decoded from TFRecord files, and the number of files that the query opened.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
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
from datafusion import SessionContext

import dask_tfrecord
from benchmarks.own.tables import tabular
from benchmarks.peers.report import save
from benchmarks.peers.workers import turns
from dask_tfrecord.dataset.read.task import Partition
from dask_tfrecord.feed.polars import scan_tfrecord
from dask_tfrecord.storage.store import Store

FORMATS = ("TFRecord", "Parquet")
ENGINES = ("DuckDB", "DataFusion", "Polars", "pyarrow")
CHUNKS = KEYS = 8


class Query(NamedTuple):
    """A query, for each engine that takes it in another form."""

    sql: str
    polars: Callable[[pl.LazyFrame], pl.LazyFrame]
    pyarrow: Callable[[Any], Any]


def queries(rows: int) -> dict[str, Query]:
    pair = ["clicks", "price"]
    few = rows // 10
    return {
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
    ddf.to_parquet(root / "Parquet", partition_on="p", write_index=False)


def opened(root: Path, engine: str, form: str) -> Any:
    """Open the dataset with an engine. Return a function that runs a query."""
    path = root / form
    if engine == "Polars":
        lazy = scan_tfrecord(path) if form == "TFRecord" else pl.scan_parquet(path, hive_partitioning=True)
        return lambda query: query.polars(lazy).collect()
    if engine == "DuckDB":
        connection = duckdb.connect()
        if form == "TFRecord":
            connection.register("data", dask_tfrecord.open_dataset(path))
        else:
            files = f"read_parquet('{path}/*/*.parquet', hive_partitioning=true)"
            connection.execute(f"create view data as select * from {files}")
        return lambda query: connection.sql(query.sql).to_arrow_table()
    if engine == "DataFusion":
        context = SessionContext()
        if form == "TFRecord":
            context.register_dataset("data", dask_tfrecord.open_dataset(path))
        else:
            context.register_parquet("data", path, table_partition_cols=[("p", pa.string())])
        return lambda query: context.sql(query.sql).collect()
    if form == "TFRecord":
        dataset: Any = dask_tfrecord.open_dataset(path)
    else:
        dataset = pads.dataset(path, partitioning="hive")
    return lambda query: query.pyarrow(dataset)


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


def measure(root: Path, rows: int, rounds: int) -> dict[str, dict[str, str]]:
    """Return the cells of the report's table, by the query and the engine."""
    runs = {(engine, form): opened(root, engine, form) for engine in ENGINES for form in FORMATS}
    works: dict[tuple[str, str], Callable[[], object]] = {key: partial(opened, root, *key) for key in runs}
    opens = turns(works, rounds)
    cells = {"open": {engine: _times(opens, engine) for engine in ENGINES}}
    for title, query in queries(rows).items():
        took = turns({key: partial(run_query, query) for key, run_query in runs.items()}, rounds)
        cells[title] = {}
        for engine in ENGINES:
            with counted() as found:
                runs[engine, "TFRecord"](query)
            decoded = f"{found['bytes'] / 1e6:.1f} MB, {len(found['files'])}"
            cells[title][engine] = f"{_times(took, engine)}; {decoded}"
        print(" | ".join([title, *cells[title].values()]), flush=True)
    return cells


def _times(took: dict[tuple[str, str], float], engine: str) -> str:
    return " / ".join(f"{1000 * took[engine, form]:.1f}" for form in FORMATS)


def run(arguments: argparse.Namespace) -> None:
    """Measure all queries."""
    rows = int(1_000_000 * arguments.scale)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write(root, rows)
        sizes = {form: sum(file.stat().st_size for file in (root / form).rglob("*.*")) for form in FORMATS}
        cells = measure(root, rows, arguments.rounds)
    if arguments.store:
        packages = ("duckdb", "datafusion", "polars", "pyarrow", "dask")
        files = ", ".join(f"{form} {size / 1e6:,.0f} MB" for form, size in sizes.items())
        about = [
            f"{rows:,} rows; {files}; median of {arguments.rounds} rounds.",
            f"{', '.join(f'{name} {version(name)}' for name in packages)}.",
            f"At the end, the load average of the machine with {os.cpu_count()} cores was",
            f"{os.getloadavg()[1]:.0f}: on a busy machine, the share of the system in the times is larger.",
        ]
        save("queries", {"about": "\n".join(about), "tables": {"query": cells}})
