"""The destination of `convert` in Parquet, CSV or JSON lines: a directory with one file for each partition.

The files are written to a hidden directory, and moved when all of them are complete. Then the files that they
replace are removed.
"""

import bz2
import gzip
import lzma
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal
from uuid import uuid4

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from dask_tfrecord.cli.formats.names import SUFFIXES, Format, format_of_name
from dask_tfrecord.cli.formats.sources import computed_partitions
from dask_tfrecord.cli.json_text import json_lines, json_values
from dask_tfrecord.cluster import check_cluster
from dask_tfrecord.dataset.partitioning.grouping import group_by_directory
from dask_tfrecord.dataset.write.destination import destination
from dask_tfrecord.dataset.write.neighbours import refuse_other_files
from dask_tfrecord.dataset.write.overwriting import may_be_overwritten
from dask_tfrecord.errors import DestinationError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.storage.listing import FileInfo, list_directory
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.frames import pandas_to_arrow
from dask_tfrecord.frames.planning import plan_schema
from dask_tfrecord.schema.model import Schema

PartsMode = Literal["create", "append", "overwrite"]

# Codecs of text, and the suffixes that readers know them by.
_TEXT_CODECS = {"gzip": ".gz", "bz2": ".bz2", "xz": ".xz"}

# JSON lines that are made at a time, to bound the memory of their text.
_ROWS = 1 << 16

_MAX_DIRECTORIES = 1024


@dataclass(frozen=True)
class PartsWrite:
    """The plan of a write, which travels to its tasks.

    Attributes
    ----------
    store : Store
        The directory.
    format : "parquet", "csv" or "jsonl"
        The format of the files.
    schema : Schema
        The columns.
    run : str
        A random id, which is in the names of all new files.
    compression : str, optional
        The codec.
    partition_on : tuple of str
        The columns that become directories.
    replaced : tuple of FileInfo
        The files that are removed when the new files are complete.
    """

    store: Store
    format: Format
    schema: Schema
    run: str
    compression: str | None
    partition_on: tuple[str, ...]
    replaced: tuple[FileInfo, ...] = ()

    @property
    def staging(self) -> str:
        """The directory of the files until all of them are complete. Readers ignore such names."""
        return f"_part-{self.run}"

    def name(self, directory: str, index: int) -> str:
        """The path of the file of a partition, relative to the directory of the write."""
        codec = "" if self.format == "parquet" else _TEXT_CODECS.get(self.compression or "", "")
        return (
            f"{directory}/" * bool(directory) + f"part-{self.run}-{index:05d}{SUFFIXES[self.format]}{codec}"
        )


def plan_parts(
    ddf: dd.DataFrame,
    path: str,
    format: Format,
    mode: PartsMode,
    *,
    compression: str | None,
    partition_on: Sequence[str],
    storage_options: dict[str, Any] | None,
) -> PartsWrite:
    """Check the destination, and plan the schema.

    Raises
    ------
    DestinationError
        If the directory holds data, unless the mode allows it.
    """
    store = destination(path, storage_options)
    root = store.public(store.root)
    if store.fs.isfile(store.root):
        raise DestinationError("is a file, not a directory", path=root, advice="pass a directory")
    refuse_other_files(store)
    codec = _codec(format, compression)
    files = tuple(list_directory(store))
    others = [file.path for file in files if format_of_name(file.path) != format]
    if files and others:
        held = f"other files, such as {store.public(others[0])}"
        raise DestinationError(f"the directory holds {held}", path=root, advice="choose another directory")
    if files and mode == "create":
        raise DestinationError(
            f"the directory already holds {len(files):,} files",
            path=root,
            advice="choose another directory, or pass --append or --overwrite",
        )
    if files and mode == "overwrite" and not may_be_overwritten(store):
        raise DestinationError("the directory is never overwritten", path=root, advice="choose another one")
    schema = plan_schema(
        ddf._meta,
        schema=None,
        record_type="sequence_example",  # all types that any of the records can hold
        write_index=False,
        sample=partial(computed_partitions, ddf),
        partition_on=partition_on,
    )
    return PartsWrite(
        store,
        format,
        schema,
        uuid4().hex,
        codec,
        tuple(partition_on),
        files if mode == "overwrite" else (),
    )


def write_parts(ddf: dd.DataFrame, plan: PartsWrite) -> tuple[FileEntry, ...]:
    """Write all partitions, make their files visible, and remove the files that they replace."""
    check_cluster()
    tasks = [
        dask.delayed(_write_partition)(partition, replace(plan, replaced=()), index)
        for index, partition in enumerate(ddf.to_delayed())
    ]
    try:
        results = dask.compute(*tasks, retries=0 if plan.store.local else 5)
    except BaseException:
        with suppress(Exception):  # the error of the write is the one to see
            plan.store.remove_tree(plan.staging)
        raise
    written = tuple(file for files in results for file in files)
    for file in written:
        plan.store.place(plan.store.join(f"{plan.staging}/{file.path}"), plan.store.join(file.path))
    plan.store.remove_tree(plan.staging)
    plan.store.remove(file.path for file in plan.replaced)
    return written


@redact_errors
def _write_partition(frame: pd.DataFrame, plan: PartsWrite, index: int) -> tuple[FileEntry, ...]:
    """Task that writes the files of a partition."""
    table = pandas_to_arrow.to_table(frame, plan.schema, write_index=False)
    rows = group_by_directory(table, plan.partition_on, max_directories=_MAX_DIRECTORIES)
    start, files = 0, []
    for group in rows.groups:
        name = plan.name(group.directory, index)
        path = plan.store.join(f"{plan.staging}/{name}")
        with plan.store.create(path) as file:
            _WRITERS[plan.format](rows.table.slice(start, group.rows), file, plan.compression)
        size = plan.store.fs.size(path)
        files.append(FileEntry(name, size, group.rows, 0, group.values))
        start += group.rows
    return tuple(files)


def _write_parquet(table: pa.Table, file: Any, compression: str | None) -> None:
    pq.write_table(table, file, compression=compression or "none")


def _write_csv(table: pa.Table, file: Any, compression: str | None) -> None:
    """Write CSV. Lists, bytes and times are text as in JSON lines."""
    with _compressed(file, compression) as sink:
        for start in range(0, max(table.num_rows, 1), _ROWS):
            rows = table.slice(start, _ROWS)
            pairs = zip(rows.schema, rows.columns, strict=True)
            columns = [_csv_column(item.type, column) for item, column in pairs]
            text = pa.BufferOutputStream()
            options = csv.WriteOptions(include_header=not start)
            csv.write_csv(pa.table(columns, names=rows.column_names), text, options)
            sink.write(text.getvalue())


def _csv_column(type_: pa.DataType, column: pa.ChunkedArray) -> Any:
    if pa.types.is_dictionary(type_):
        return _csv_column(type_.value_type, column.cast(type_.value_type))
    if not _is_odd(type_):
        return column
    return pc.if_else(pc.is_valid(column), pc.utf8_trim(json_values(column), '"'), None)


def _is_odd(type_: pa.DataType) -> bool:
    """True for types that Arrow's CSV writer lacks, or writes in another form than JSON."""
    kinds = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
    return not any(test(type_) for test in (*kinds, *texts))


def _write_json(table: pa.Table, file: Any, compression: str | None) -> None:
    with _compressed(file, compression) as sink:
        for start in range(0, table.num_rows, _ROWS):
            sink.write(json_lines(table.slice(start, _ROWS)))


def _compressed(file: Any, compression: str | None) -> Any:
    """Return a file that compresses what is written to another one, which stays open."""
    if compression is None:
        return nullcontext(file)
    opened: dict[str, Callable[..., Any]] = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open}
    return opened[compression](file, "wb")


_WRITERS: dict[Format, Callable[[pa.Table, Any, str | None], None]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "jsonl": _write_json,
}


def _codec(format: Format, compression: str | None) -> str | None:
    """The codec for Arrow. The default of Parquet is snappy."""
    known = ("snappy", "gzip", "zstd", "lz4", "brotli") if format == "parquet" else tuple(_TEXT_CODECS)
    if compression is None:
        return "snappy" if format == "parquet" else None
    if compression == "none":
        return None
    if compression not in known:
        raise DestinationError(
            f"{format} files cannot be compressed with {compression!r}",
            advice=f"pass one of {', '.join(known)} or none as --compression",
        )
    return compression
