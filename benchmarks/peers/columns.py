"""Compare column files with Parquet, Lance and ArrayRecord, in CPU time and in bytes.

A table of images (100 KB each, and a label) and a table of ten columns are written as TFRecord without column
files, as TFRecord with column files of the columns that the queries use, as Parquet, as Lance and as
ArrayRecord. Each format gets the same Arrow table, and is used with the default options of its library.
Parquet gets 8 row groups. ArrayRecord stores bytes, so it gets the records of the TFRecord files, which the
kernel of this package encodes and decodes.

A figure is the CPU time of the process, of all threads: the median of the rounds, in which the formats take
turns. A dataset is opened once, before the reads. The files are in memory if the system has ``/dev/shm``.
Lance and ArrayRecord are left out if `pylance` and `array_record` are not installed.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import dask_tfrecord
from benchmarks.own.tables import TABLES, Table, memory_folder
from benchmarks.peers.report import formats, save
from benchmarks.peers.workers import turns
from dask_tfrecord.codec import Decoder, Encoder

ROWS = {"images": 1_000, "tabular": 200_000}
ROW_GROUPS = 8
RANDOM_ROWS = 256

# A filter that keeps about 1 % of the rows, in any order of the rows.
FILTERS = {"images": pc.field("label") < 10, "tabular": pc.field("clicks") == 7}
Take = Callable[[np.ndarray[Any, Any]], Any]
Read = Callable[[list[str] | None, pc.Expression | None], pa.Table]


class Format(NamedTuple):
    """How a table is written, and then opened to read columns and rows, or to read rows by their numbers."""

    package: str
    write: Callable[[Table, str], object]
    open: Callable[[Table, str], Read]
    open_rows: Callable[[Table, str], Take]


def lance() -> Any:
    return import_module("lance")


def array_record() -> Any:
    return import_module("array_record.python.array_record_module")


def reader(dataset: Any) -> Read:
    return lambda columns, rows: dataset.to_table(columns=columns, filter=rows)


def write_parquet(table: Table, path: str) -> None:
    pq.write_table(pa.table(table.batch), path, row_group_size=-(-table.batch.num_rows // ROW_GROUPS))


def write_array_record(table: Table, path: str) -> None:
    encoder, buffer = Encoder(table.columns, "example"), memoryview(bytearray(1 << 20))
    encoder.bind(table.batch)
    writer = array_record().ArrayRecordWriter(path)
    for row in range(table.batch.num_rows):
        _, size, _ = encoder.encode_into(row, buffer, row + 1)
        writer.write(bytes(buffer[:size]))
    writer.close()


def decoded(table: Table, records: list[bytes], columns: list[str] | None) -> pa.Table:
    wanted = [column for column in table.columns if columns is None or column.name in columns]
    decoder = Decoder(wanted, "example", verify_crc=False)  # ArrayRecord has checksums of its own
    decoder.feed(b"".join(records), final=True)
    return pa.Table.from_batches([decoder.take()])


def open_array_record(table: Table, path: str) -> Read:
    def read(columns: list[str] | None, rows: pc.Expression | None) -> pa.Table:
        every = decoded(table, records.read_all(), columns)
        return every if rows is None else every.filter(rows)

    records = array_record().ArrayRecordReader(path)
    return read


def open_array_record_rows(table: Table, path: str) -> Take:
    # The options of ArrayRecordDataSource.
    records = array_record().ArrayRecordReader(path, "readahead_buffer_size:0", file_reader_buffer_size=32768)
    return lambda rows: decoded(table, records.read(rows.tolist()), None)


def tfrecord(columnar: bool) -> Format:
    return Format(
        "pyarrow",
        lambda table, path: dask_tfrecord.to_tfrecord(
            pa.table(table.batch), path, columnar=table.projection if columnar else None
        ),
        lambda _, path: reader(dask_tfrecord.open_dataset(path)),
        lambda _, path: dask_tfrecord.feed.RecordTable(path).batch,
    )


FORMATS = {
    "TFRecord, no column files": tfrecord(columnar=False),
    "TFRecord, column files": tfrecord(columnar=True),
}
FORMATS["Parquet"] = Format(
    "pyarrow",
    write_parquet,
    lambda _, path: reader(pads.dataset(path)),
    lambda _, path: pads.dataset(path).take,
)
if find_spec("lance"):
    FORMATS["Lance"] = Format(
        "pylance",
        lambda table, path: lance().write_dataset(pa.table(table.batch), path),
        lambda _, path: reader(lance().dataset(path)),
        lambda _, path: lance().dataset(path).take,
    )
if find_spec("array_record"):
    FORMATS["ArrayRecord"] = Format(
        "array_record", write_array_record, open_array_record, open_array_record_rows
    )


def measure(name: str, table: Table, root: str, rounds: int) -> dict[str, dict[str, str]]:
    """Return the milliseconds of each job and the MB of the files, by the formats."""
    paths = {of: f"{root}/{number}" for number, of in enumerate(FORMATS)}
    found: dict[str, dict[str, str]] = {}

    def add(job: str, works: dict[str, Callable[[], object]]) -> None:
        found[job] = {of: f"{1000 * took:,.1f}" for of, took in turns(works, rounds).items()}

    def write(of: str) -> None:
        shutil.rmtree(paths[of], ignore_errors=True)
        Path(paths[of]).unlink(missing_ok=True)
        FORMATS[of].write(table, paths[of])

    add("write", {of: partial(write, of) for of in FORMATS})
    add("open", {of: partial(FORMATS[of].open, table, path) for of, path in paths.items()})
    opened = {of: FORMATS[of].open(table, path) for of, path in paths.items()}
    few, kept = [*table.projection], pa.table(table.batch).filter(FILTERS[name])
    for of, read in opened.items():
        assert read(None, FILTERS[name]).select(kept.schema.names).equals(kept), of
    jobs: dict[str, Any] = {
        f"read {' and '.join(few)}": (few, None),
        "filter that keeps 1 %": (None, FILTERS[name]),
        "read all columns": (None, None),
    }
    for job, what in jobs.items():
        add(job, {of: partial(read, *what) for of, read in opened.items()})

    numbers = np.random.default_rng(7).integers(0, table.batch.num_rows, (rounds + 1, RANDOM_ROWS))
    takes = {of: FORMATS[of].open_rows(table, path) for of, path in paths.items()}
    rows = {of: iter(numbers) for of in FORMATS}
    add(f"read {RANDOM_ROWS} random rows", {of: lambda of=of: takes[of](next(rows[of])) for of in FORMATS})
    found["size, MB"] = {of: f"{stored_bytes(path) / 1e6:,.1f}" for of, path in paths.items()}
    return found


def stored_bytes(path: str) -> int:
    files = [Path(path), *Path(path).rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file())


def run(arguments: argparse.Namespace) -> None:
    """Measure all formats on all tables."""
    tables = {}
    for name in arguments.datasets or ROWS:
        table = TABLES[name](max(RANDOM_ROWS, int(ROWS[name] * arguments.scale)))
        with tempfile.TemporaryDirectory(dir=memory_folder()) as root:
            jobs = measure(name, table, root, arguments.rounds)
        tables[f"{name}, {table.batch.num_rows:,} rows"] = jobs
        print(formats.table(f"{name}, {table.batch.num_rows:,} rows", jobs), flush=True)
    if arguments.store:
        packages = dict.fromkeys(form.package for form in FORMATS.values())
        names = ", ".join(f"{package} {version(package)}" for package in packages)
        save("columns", {"about": f"{names}; median of {arguments.rounds} rounds.", "tables": tables})
