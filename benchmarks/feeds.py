"""Compare the training loaders of this package with other loaders, in rows per CPU second and per second.

Each loader runs in a process of its own, because frameworks keep threads. All processes of a dataset read all
rows once to warm up, and then take turns: in each round, one loader after the other reads all rows. A
ratio compares two loaders within a round. Other work on the machine has the least effect on rows per CPU
second. The files are in
memory if the system has ``/dev/shm``. A loader that is not installed or fails is listed with its error.

    python -m benchmarks.feeds [--rounds 5] [--scale 1.0] [--store] [tabular vectors wide images ...]
    python -m benchmarks.feeds --report

``--store`` adds the figures to ``benchmarks/feeds.json``. ``--report`` makes the tables of that file:
``benchmarks/feeds.md`` and the table of ``docs/training.md``.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord
from benchmarks.feed_loaders import FEATURES, LOADERS, Work, serve_loader
from benchmarks.reports import best_way, errors
from benchmarks.reports import feeds as report
from benchmarks.workers import Worker, machine, memory_folder, others, versions

PARTITIONS = 4
RESULTS = Path(__file__).with_name("feeds.json")

# webdataset takes the longest for each row: it reads a part of the sample.
TARS = 4

# A loader that takes more CPU seconds than this for one pass takes part in two rounds only.
SLOW_SECONDS = 4.0


class Table(NamedTuple):
    """Hold the row counts of a table, of a batch, and of a sample for loaders that handle rows in Python."""

    rows: int
    sample: int
    batch_size: int


TABLES = {
    "tabular": Table(1_000_000, 40_960, 8192),
    "vectors": Table(200_000, 40_960, 8192),
    "wide": Table(50_000, 8_192, 8192),
    "images": Table(5_000, 1_280, 32),
}

DATASETS = [name + codec for codec in ("", " gzip") for name in TABLES]


# -- Data ----------------------------------------------------------------------------------------------------


def make(table: str, rows: int) -> pd.DataFrame:
    """Generate the random rows of a table."""
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {}
    for feature, (kind, values) in FEATURES[table].items():
        if kind == "byte":
            data = [random.bytes(100_000) for _ in range(rows)]
            columns[feature] = pd.array(data, pd.ArrowDtype(pa.binary()))
        elif values > 1:
            flat = pa.array(random.random(rows * values, dtype=np.float32))
            columns[feature] = pd.arrays.ArrowExtensionArray(pa.FixedSizeListArray.from_arrays(flat, values))
        elif kind == "int":
            columns[feature] = random.integers(0, 1000, rows)
        else:
            columns[feature] = random.random(rows, dtype=np.float32)
    return pd.DataFrame(columns)


def write(work: Work, rows: int, sample: int) -> None:
    """Write a table as TFRecord, and in the formats that other loaders read."""
    frame = make(work.table, rows)
    parts = {work.path: (frame, PARTITIONS), f"{work.path}.sample": (frame.iloc[:sample], 1)}
    for path, (part, npartitions) in parts.items():
        ddf = dd.from_pandas(part, npartitions=npartitions)
        dask_tfrecord.to_tfrecord(ddf, path, compression=work.codec)
    if work.codec is None:
        dask_tfrecord.export(f"{work.path}.sample", "idx")
        frame.to_parquet(f"{work.path}.parquet")
    if work.codec is None and importlib.util.find_spec("webdataset"):
        _write_tars(work, frame.iloc[: sample // TARS])


def _write_tars(work: Work, frame: pd.DataFrame) -> None:
    import webdataset as wds

    for number, part in enumerate(np.array_split(np.arange(len(frame)), TARS)):
        with wds.TarWriter(f"{work.path}-{number:03}.tar") as tar:
            for key, row in zip(part, frame.iloc[part].to_dict("records"), strict=True):
                tar.write({"__key__": f"{key:08}", **_tar_row(work.table, row)})


def _tar_row(table: str, row: dict[str, Any]) -> dict[str, Any]:
    if table == "vectors":
        return {"x.npy": np.asarray(row["x"], np.float32), "cls": int(row["label"])}
    return {"bin": row["image"], "cls": int(row["label"])} if table == "images" else {"json": row}


# -- Measuring -----------------------------------------------------------------------------------------------


def worker(loader: str, way: str, work: Work) -> Worker:
    """Start the process of one loader, for one way to use the loader."""
    arguments = ["-m", "benchmarks.feeds", "--worker", loader, way, json.dumps(work)]
    return Worker(sys.executable, arguments, {})


def measure(name: str, scale: float, rounds: int, folder: str | None) -> dict[str, Any]:
    """Measure all loaders on one dataset."""
    table, _, codec = name.partition(" ")
    rows, sample, batch_size = (max(PARTITIONS, int(size * scale)) for size in TABLES[table])
    batch_size = min(batch_size if scale >= 1 else TABLES[table].batch_size, sample)
    loaders: dict[str, Any] = {}
    with _folder(folder) as root, ExitStack() as stack:
        work = Work(table, codec or None, f"{root}/data", batch_size)
        write(work, rows, sample)
        started = []
        for loader, (package, ways, reads) in LOADERS.items():
            if codec and reads in ("parquet", "tar"):
                continue
            loaders[loader] = {}
            if package and not importlib.util.find_spec(package):
                loaders[loader]["error"] = f"{package} is not installed"
                continue
            if codec and reads == "sample":  # its workers share a plain file by an index
                ways = {"one process": ways["one process"]}
            started += [(loader, way, stack.enter_context(worker(loader, way, work))) for way in ways]
        workers = []
        for loader, way, one in started:
            try:
                first = one.ask("read")
                if first["rows"] not in (rows, sample, sample // TARS):
                    raise RuntimeError(f"{first['rows']:,} rows of {rows:,} were read")
            except RuntimeError as error:
                loaders[loader][way] = {"error": str(error)}
            else:
                loaders[loader][way] = {"cpu": [], "wall": []}
                workers.append((loaders[loader][way], one, first["cpu"]))
        with others() as used:
            for number in range(rounds):
                for rates, one, seconds in workers:
                    if number < 2 or seconds < SLOW_SECONDS:
                        figures = one.ask("read")
                        used.append(figures["cpu"])
                        for what in ("cpu", "wall"):
                            rates[what].append(round(figures["rows"] / figures[what], 1))
    return {"rows": rows, "batch_size": batch_size, "loaders": loaders, "others": used[0]}


@contextmanager
def _folder(folder: str | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as root:
        yield root


PACKAGES = ["tensorflow", "tensorflow-cpu", "torch", "tfrecord", "datasets", "webdataset", "pyarrow", "numpy"]


def show(name: str, found: dict[str, Any]) -> None:
    """Print the figures of a dataset."""
    print(f"{name}: {found['rows']:,} rows; other processes used {found['others']:.0%} of the CPU")
    for loader, ways in found["loaders"].items():
        cpu, wall = best_way(ways, "cpu"), best_way(ways, "wall")
        for error in errors(ways):
            print(f"  {loader:32}{error}")
        if cpu:
            ratio = report.ratios(found["loaders"], loader)
            spread = f"   {median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f})" if ratio else ""
            print(f"  {loader:32}{median(cpu):14,.0f}{median(wall):14,.0f}{spread}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "datasets", nargs="*", metavar="dataset", help=f"of {', '.join(DATASETS)}; default: all"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of rows")
    parser.add_argument("--store", action="store_true", help="add the figures to feeds.json")
    parser.add_argument("--report", action="store_true", help="make the tables of feeds.json")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        loader, way, work = arguments.worker
        serve_loader(loader, way, Work(*json.loads(work)))
        return
    if arguments.report:
        report.write(json.loads(RESULTS.read_text()))
        return
    folder = memory_folder()
    print(f"dask-tfrecord {dask_tfrecord.__version__}, median of {arguments.rounds} rounds")
    print(f"{'':34}rows per CPU s    rows per s   x TensorFlow's best per CPU s (least to most)")
    for name in arguments.datasets or DATASETS:
        found = measure(name, arguments.scale, arguments.rounds, folder)
        show(name, found)
        if arguments.store:
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"datasets": {}}
            results["machine"] = machine() | {"packages": versions(PACKAGES)}
            results["datasets"][name] = found
            results["datasets"] = {
                one: results["datasets"][one] for one in DATASETS if one in results["datasets"]
            }
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
