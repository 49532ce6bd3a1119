"""Compare column files with Parquet, Lance and ArrayRecord, in CPU time and in bytes.

A table of images (100 KB each, and a label) and a table of ten columns are written as TFRecord, as TFRecord
with column files of the columns that the queries use, as Parquet, as Lance and as ArrayRecord. Each format
gets the same Arrow table, and is used with the default options of its library. Parquet gets 8 row groups.
ArrayRecord stores bytes, so it gets the records of the TFRecord files, which the kernel of this package
encodes and decodes.

A figure is the CPU time of the process, of all threads: the median of the rounds, in which the formats take
turns. A dataset is opened once, before the reads. The files are in memory if the system has ``/dev/shm``.
Lance and ArrayRecord are left out if `pylance` and `array_record` are not installed.

    python -m benchmarks.column_peers [--rounds 7] [--scale 1.0] [--report] [images tabular]
"""

import gc
import shutil
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import dask_tfrecord
from benchmarks.tables import TABLES, Table, table_parser
from benchmarks.write import fresh_path
from dask_tfrecord.codec import Decoder, Encoder

ROWS = {"images": 1_000, "tabular": 200_000}
ROW_GROUPS = 8
RANDOM_ROWS = 256
REPORT = Path(__file__).with_name("columns.md")

# A filter that keeps about 1 % of the rows, in any order of the rows.
FILTERS = {"images": pc.field("label") < 10, "tabular": pc.field("clicks") == 7}
Take = Callable[[np.ndarray[Any, Any]], Any]
Read = Callable[[list[str] | None, pc.Expression | None], pa.Table]


class Format(NamedTuple):
    """How a table is written, and then opened to read columns and rows, or to read rows by their numbers."""

    write: Callable[[Table, str], object]
    open: Callable[[Table, str], Read]
    open_rows: Callable[[Table, str], Take]


def write_tfrecord(table: Table, path: str) -> None:
    dask_tfrecord.to_tfrecord(pa.table(table.batch), path)


def write_columns(table: Table, path: str) -> None:
    dask_tfrecord.to_tfrecord(pa.table(table.batch), path, columnar=table.projection)


def open_tfrecord(table: Table, path: str) -> Read:
    dataset = dask_tfrecord.TFRecordDataset(path)
    return lambda columns, rows: dataset.to_table(columns=columns, filter=rows)


def open_tfrecord_rows(table: Table, path: str) -> Take:
    return dask_tfrecord.RecordTable(path).batch


def write_parquet(table: Table, path: str) -> None:
    pq.write_table(pa.table(table.batch), path, row_group_size=-(-table.batch.num_rows // ROW_GROUPS))


def open_parquet(table: Table, path: str) -> Read:
    dataset = pads.dataset(path)
    return lambda columns, rows: dataset.to_table(columns=columns, filter=rows)


def open_parquet_rows(table: Table, path: str) -> Take:
    return pads.dataset(path).take


def write_lance(table: Table, path: str) -> None:
    import_module("lance").write_dataset(pa.table(table.batch), path)


def open_lance(table: Table, path: str) -> Read:
    dataset = import_module("lance").dataset(path)
    return lambda columns, rows: dataset.to_table(columns=columns, filter=rows)


def open_lance_rows(table: Table, path: str) -> Take:
    return import_module("lance").dataset(path).take


def array_record() -> Any:
    return import_module("array_record.python.array_record_module")


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
        every = decoded(table, reader.read_all(), columns)
        return every if rows is None else every.filter(rows)

    reader = array_record().ArrayRecordReader(path)
    return read


def open_array_record_rows(table: Table, path: str) -> Take:
    # The options of ArrayRecordDataSource.
    reader = array_record().ArrayRecordReader(path, "readahead_buffer_size:0", file_reader_buffer_size=32768)
    return lambda rows: decoded(table, reader.read(rows.tolist()), None)


FORMATS = {
    "TFRecord": Format(write_tfrecord, open_tfrecord, open_tfrecord_rows),
    "TFRecord, column files": Format(write_columns, open_tfrecord, open_tfrecord_rows),
    "Parquet": Format(write_parquet, open_parquet, open_parquet_rows),
}
PACKAGES = {"Parquet": "pyarrow"}
if find_spec("lance"):
    FORMATS["Lance"] = Format(write_lance, open_lance, open_lance_rows)
    PACKAGES["Lance"] = "pylance"
if find_spec("array_record"):
    FORMATS["ArrayRecord"] = Format(write_array_record, open_array_record, open_array_record_rows)
    PACKAGES["ArrayRecord"] = "array_record"


def seconds(work: Callable[[], object]) -> float:
    gc.collect()
    time.sleep(0.05)  # threads of the other format wait actively for a moment after its work
    start = time.process_time()
    work()
    return time.process_time() - start


def medians(rounds: int, works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median CPU time of each function. The functions take turns, after a round that does not
    count.
    """
    took: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            took[name].append(seconds(work))
    return {name: median(times[1:]) for name, times in took.items()}


def remove(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    Path(path).unlink(missing_ok=True)


def stored_bytes(path: str) -> int:
    files = [Path(path), *Path(path).rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file())


def measure(name: str, table: Table, root: str, rounds: int) -> dict[str, dict[str, float]]:
    """Return the figures of each job, by the formats."""
    paths = {of: f"{root}/{number}" for number, of in enumerate(FORMATS)}
    Path(root).mkdir()

    def write(of: str) -> None:
        remove(paths[of])
        FORMATS[of].write(table, paths[of])

    found = {"write": medians(rounds, {of: partial(write, of) for of in FORMATS})}
    found["open"] = medians(
        rounds, {of: partial(FORMATS[of].open, table, path) for of, path in paths.items()}
    )

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
        found[job] = medians(rounds, {of: partial(read, *what) for of, read in opened.items()})

    numbers = np.random.default_rng(7).integers(0, table.batch.num_rows, (rounds + 1, RANDOM_ROWS))
    takes = {of: FORMATS[of].open_rows(table, path) for of, path in paths.items()}
    rows = {of: iter(numbers) for of in FORMATS}

    def take(of: str) -> None:
        takes[of](next(rows[of]))

    found[f"read {RANDOM_ROWS} random rows"] = medians(rounds, {of: partial(take, of) for of in FORMATS})
    found["size, MB"] = {of: stored_bytes(path) / 1e9 for of, path in paths.items()}
    return found


def shown(name: str, rows: int, found: dict[str, dict[str, float]]) -> str:
    """Return the figures as a table."""
    lines = [[f"{name}, {rows:,} rows", *FORMATS], ["---", *["--:"] * len(FORMATS)]]
    for job, figures in found.items():
        lines.append([job, *(f"{1000 * figure:,.1f}" for figure in figures.values())])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = table_parser(__doc__, rounds=7)
    parser.add_argument("--report", action="store_true", help=f"write {REPORT.name}")
    arguments = parser.parse_args()
    tables = []
    for name in arguments.tables or ROWS:
        table = TABLES[name](max(RANDOM_ROWS, int(ROWS[name] * arguments.scale)))
        with fresh_path() as root:
            found = measure(name, table, root, arguments.rounds)
        tables.append(shown(name, table.batch.num_rows, found))
        print(tables[-1], flush=True)
    if arguments.report:
        packages = ", ".join(f"{package} {version(package)}" for package in PACKAGES.values())
        REPORT.write_text(PAGE.format(rounds=arguments.rounds, packages=packages, tables="\n".join(tables)))


PAGE = """# Column files, beside Parquet, Lance and ArrayRecord

Made by `python -m benchmarks.column_peers --report`, which describes the tables and how they are measured. A
figure is the CPU time of a job in milliseconds, of all threads: the median of {rounds} rounds, in which the
formats take turns. Compare the figures of a line with each other: the times depend on the machine.

{packages}.

{tables}"""


if __name__ == "__main__":
    main()
