"""Rows with nulls, NaN and lists, and files of these rows that are compared with them."""

import itertools
from pathlib import Path

import pyarrow as pa
from split_table import read_table

from dask_tfrecord.codec import crc32c
from dask_tfrecord.codec.codecs import Compression, detect, suffix_of
from dask_tfrecord.files.entry import Block, FileEntry
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.file_options import ReadOptions, WriteOptions
from dask_tfrecord.files.file_writer import DirectoryGroup, GroupedRows, write_files
from dask_tfrecord.files.splits import Split
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

ROWS = pa.table(
    {
        "n": pa.array([None if n % 7 == 3 else n * 31 % 1000 for n in range(3000)], pa.int64()),
        "x": pa.array([float("nan") if n % 5 else n / 2 for n in range(3000)], pa.float32()),
        "text": pa.array([f"row {n % 100}" * (n % 7) for n in range(3000)]),
        "list": pa.array([None if n % 11 == 0 else [n] * (n % 4) for n in range(3000)]),
        "null": pa.array([None] * 3000, pa.int64()),
    }
)
SCHEMA = Schema.from_arrow(ROWS.schema, "example")


def write(
    root: Path, rows: pa.Table, name: str, compression: Compression | None, level: int | None = None
) -> FileEntry:
    store = Store.at(root)
    [entry] = write_files(
        store,
        lambda directory, number: (store.join(name), name),
        GroupedRows([(rows, None)], [DirectoryGroup("", (), len(rows))]),
        Schema.from_arrow(rows.schema, "example"),
        WriteOptions(compression=compression, level=level),
    )
    return entry


def foreign(root: Path, name: str, data: bytes, records: int) -> FileEntry:
    """Store a file of another tool, of which no blocks are known."""
    (root / name).write_bytes(data)
    return FileEntry(name, len(data), records, crc32c(data))


def read(root: Path, entry: FileEntry, start: Block | None = None, stop: Block | None = None) -> pa.Table:
    stored = (root / entry.path).read_bytes()
    # A read of a block takes the codec from the name.
    path = root / f"{entry.path}.tfrecord{suffix_of(detect(stored[:12]))}"
    path.write_bytes(stored)
    file = FileInfo(str(path), entry.bytes, "", entry.crc32c)
    return read_table(Store.at(root), Split(file, start or Block(0, 0, 0), stop), SCHEMA, ReadOptions())


def shown(rows: pa.Table) -> str:
    """The values of a table as text, in which NaN equals NaN."""
    return str(rows.to_pydict())


def check(root: Path, entry: FileEntry, rows: pa.Table = ROWS) -> None:
    """Check that a file has these rows, from its start and from each of its blocks."""
    stored = (root / entry.path).read_bytes()
    assert (entry.bytes, entry.crc32c, entry.records) == (len(stored), crc32c(stored), len(rows))
    assert shown(read(root, entry)) == shown(rows)
    bounds = [*entry.blocks, Block(0, 0, len(rows))]
    for start, stop in itertools.pairwise(bounds):
        part = read(root, entry, start, stop if stop.offset else None)
        assert shown(part) == shown(rows[start.record : stop.record])
