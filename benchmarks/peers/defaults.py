"""Measure which columns a write with the defaults stores in column files, and what this costs and saves.

Each table is written as two partitions of about 100 MB, in one thread. A write with the defaults and a write
with ``columnar=None`` take turns. The figure of a write is the time with the defaults, divided by the time of
the other write: the median of the rounds.

Dask and pyarrow read one column of the dataset, and of Parquet files that pyarrow writes with its defaults.
Dask opens the dataset in each round, and counts the values. The figure of a read is the CPU time on Parquet,
divided by the CPU time on TFRecord, so a figure above 1 means that TFRecord is faster.
"""

import argparse
import gc
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import dask
import dask.dataframe as dd
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import dask_tfrecord
from benchmarks.own.tables import memory_folder, slices, table_collection
from benchmarks.own.tables import tabular as ten_columns
from benchmarks.peers.report import formats, save
from benchmarks.peers.workers import turns, versions

PARTITIONS = 2


class Case(NamedTuple):
    """The number of rows of a table, how it is made, and the column that is read."""

    rows: int
    make: Callable[[np.random.Generator, int], dict[str, Any]]
    column: str = "label"


def binary(random: np.random.Generator, rows: int, least: int, most: int) -> pa.Array:
    """Return random values of ``least`` to ``most`` bytes."""
    ends = np.concatenate([[0], np.cumsum(random.integers(least, most + 1, rows))]).astype(np.int32)
    data = pa.py_buffer(random.bytes(int(ends[-1])))
    return pa.BinaryArray.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), data])


def text(random: np.random.Generator, rows: int, least: int, most: int) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(random.integers(least, most + 1, rows))]).astype(np.int32)
    letters = random.integers(ord("a"), ord("z") + 1, int(ends[-1]), np.uint8)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(letters.tobytes()))


def vectors(random: np.random.Generator, rows: int, size: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(random.random(rows * size, np.float32), size)


def mixed(random: np.random.Generator, rows: int) -> dict[str, Any]:
    makes: list[Callable[[], Any]] = [
        lambda: random.random(rows, np.float32),
        lambda: random.integers(0, 1 << 40, rows),
        lambda: text(random, rows, 2, 20),
    ]
    return {f"feature_{at:03d}": makes[at % 3]() for at in range(500)}


def recsys(random: np.random.Generator, rows: int) -> dict[str, Any]:
    numbers = {f"number_{at}": random.integers(0, 10_000, rows) for at in range(13)}
    categories = {f"category_{at}": text(random, rows, 8, 8) for at in range(26)}
    return {"label": random.integers(0, 2, rows), **numbers, **categories}


CASES = {
    "images (100 KB)": Case(
        2_000, lambda r, n: {"image": binary(r, n, 90_000, 110_000), "label": r.integers(0, 1_000, n)}
    ),
    "audio (200 KB)": Case(
        1_000,
        lambda r, n: {
            "audio": binary(r, n, 180_000, 220_000),
            "label": r.integers(0, 100, n),
            "transcript": text(r, n, 20, 100),
        },
    ),
    "embeddings (512 floats)": Case(
        96_000,
        lambda r, n: {"id": np.arange(n), "embedding": vectors(r, n, 512), "label": r.integers(0, 10, n)},
    ),
    "text (4 KB)": Case(
        50_000, lambda r, n: {"text": text(r, n, 3_000, 5_000), "label": r.integers(0, 10, n)}
    ),
    "tabular (10 columns)": Case(
        800_000,
        lambda _, n: dict(zip((table := ten_columns(n)).batch.schema.names, table.batch, strict=True)),
        "clicks",
    ),
    "wide (500 floats)": Case(
        22_000,
        lambda r, n: {f"feature_{at:03d}": r.random(n, np.float32) for at in range(500)},
        "feature_010",
    ),
    "wide (500 mixed)": Case(20_000, mixed, "feature_010"),
    "recsys (40 columns)": Case(260_000, recsys),
}


def measure(case: Case, table: pa.Table, root: str, rounds: int) -> dict[str, str]:
    batch = table.combine_chunks().to_batches()[0]
    ddf = table_collection(batch, PARTITIONS)
    Path(root, "parquet").mkdir()
    with dask.config.set(scheduler="synchronous"):
        cpu, wall = write_pairs(lambda path, how: dask_tfrecord.to_tfrecord(ddf, path, **how), root, rounds)
        for at, part in enumerate(slices(batch, PARTITIONS)):
            pq.write_table(pa.table(part), f"{root}/parquet/{at}.parquet")
        by_dask = turns(
            {
                "TFRecord": lambda: (
                    dask_tfrecord.read_tfrecord(f"{root}/auto")[case.column].value_counts().compute()
                ),
                "Parquet": lambda: dd.read_parquet(f"{root}/parquet")[case.column].value_counts().compute(),
            },
            rounds,
        )
    datasets = {
        "TFRecord": dask_tfrecord.open_dataset(f"{root}/auto"),
        "Parquet": pads.dataset(f"{root}/parquet"),
    }
    by_pyarrow = turns(
        {of: lambda one=one: one.to_table(columns=[case.column]) for of, one in datasets.items()}, rounds
    )
    sizes = {of: stored_bytes(f"{root}/{of}") for of in ("auto", "none")}
    return {
        "MB": f"{sizes['none'] / 1e6:,.0f}",
        "small columns": small_columns(f"{root}/auto"),
        "more bytes": f"{max(0.0, 100 * (sizes['auto'] / sizes['none'] - 1)):.2f} %",
        "write, CPU": f"{cpu:.2f}",
        "write, time": f"{wall:.2f}",
        "read, Dask": f"{by_dask['Parquet'] / by_dask['TFRecord']:.2f}",
        "read, pyarrow": f"{by_pyarrow['Parquet'] / by_pyarrow['TFRecord']:.2f}",
    }


def write_pairs(
    write: Callable[[str, dict[str, Any]], object], root: str, rounds: int
) -> tuple[float, float]:
    """Return the medians of the ratios of CPU time and of elapsed time, after a round that does not count."""
    ratios = []
    for at in range(rounds + 1):
        took = {}
        ways: list[tuple[str, dict[str, Any]]] = [("auto", {}), ("none", {"columnar": None})]
        for of, how in ways if at % 2 else reversed(ways):
            shutil.rmtree(f"{root}/{of}", ignore_errors=True)
            gc.collect()
            cpu, wall = time.process_time(), time.perf_counter()
            write(f"{root}/{of}", how)
            took[of] = time.process_time() - cpu, time.perf_counter() - wall
        ratios.append([one / other for one, other in zip(took["auto"], took["none"], strict=True)])
    cpu, wall = map(median, zip(*ratios[1:], strict=True))
    return cpu, wall


def stored_bytes(path: str) -> int:
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())


def small_columns(path: str) -> str:
    """Return the names of the columns in the column files."""
    schemas = map(pq.read_schema, Path(path, "_tfrecord", "columns").glob("*.parquet"))
    names = dict.fromkeys(name for schema in schemas for name in schema.names if name != "tfrecord.offset")
    return ", ".join(names) or "none"


def run(arguments: argparse.Namespace) -> None:
    """Measure all tables."""
    lines = {}
    for name in arguments.datasets or CASES:
        case = CASES[name]
        rows = max(PARTITIONS, int(case.rows * arguments.scale))
        table = pa.table(case.make(np.random.default_rng(5), rows))
        with tempfile.TemporaryDirectory(dir=memory_folder()) as root:
            lines[name] = measure(case, table, root, arguments.rounds)
        print(formats.table("table", {name: lines[name]}), flush=True)
    if arguments.store:
        about = f"{versions(['pyarrow', 'dask'])}; median of {arguments.rounds} rounds."
        save("defaults", {"about": about, "tables": {"table": lines}})
