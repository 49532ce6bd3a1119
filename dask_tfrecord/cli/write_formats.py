"""Write the destination of `convert`, or describe what the write would do.

`to_tfrecord` commits atomically. Files of the other formats are written to a hidden directory, and moved when
all of them are complete. Then the files that they replace are removed.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import click
import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec.core import OpenFile, url_to_fs
from pyarrow import csv

import dask_tfrecord
from dask_tfrecord import DestinationError, Snapshot
from dask_tfrecord.cli.detect_format import Format, format_of_name, list_files
from dask_tfrecord.cli.json_text import json_lines, json_values

_PARQUET_CODECS = ("snappy", "gzip", "zstd", "lz4", "brotli")

# Codecs of text files, and the file name suffix by which readers recognize each codec.
_TEXT_CODECS = {"gzip": ".gz", "bz2": ".bz2", "xz": ".xz", "none": ""}

# Number of rows that are converted to text in one step, to bound the memory.
_ROWS = 1 << 16


@dataclass(frozen=True)
class Target:
    """Describe where and how `convert` writes rows. `how` maps the names of its other options to values."""

    path: str
    format: Format
    storage_options: dict[str, Any] | None
    how: dict[str, Any]

    @property
    def mode(self) -> str:
        """The write mode, which says what happens to existing data at the destination."""
        modes = {"append": "append", "overwrite": "overwrite", "overwrite_partitions": "partitions"}
        return next((mode for option, mode in modes.items() if self.how[option]), "create")

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of `to_tfrecord`. Dask's configuration has the defaults of the options."""
        compression = self.how["compression"]
        return {
            **{
                name: self.how[name]
                for name in ("append", "partition_on", "colocate", "shuffle", "npartitions")
            },
            "overwrite": "partitions" if self.how["overwrite_partitions"] else self.how["overwrite"],
            "compression": None if compression == "none" else compression or "default",
            "lossy": self.how["lossy"] or "default",
            "storage_options": self.storage_options,
        }


def plan_write(ddf: dd.DataFrame, source_files: Sequence[str], target: Target) -> dict[str, Any]:
    """Check the destination of `convert`, and return what a write would do. Write nothing."""
    if target.format == "tfrecord":
        dask_tfrecord.to_tfrecord(ddf, target.path, compute=False, **target.keywords)
        existing = _existing(target)
    else:
        existing = _check_other(source_files, target)
    replaced = existing if target.mode == "overwrite" else {}
    planned: dict[str, Any] = {
        "target": target.format,
        "mode": target.mode,
        "partitions": target.how["npartitions"] or ddf.npartitions,
        "partition_on": target.how["partition_on"] or [],
        "schema": {name: str(type_) for name, type_ in _types(ddf).items()},
        "replaced_files": len(replaced),
        "replaced_bytes": sum(replaced.values()),
    }
    if target.mode == "partitions":
        planned["replaced_files"] = "those in the directories that are written"
        del planned["replaced_bytes"]
    return planned


def write(ddf: dd.DataFrame, source_files: Sequence[str], target: Target) -> tuple[int, int, int]:
    """Write all rows, and return the number of written files, rows and bytes."""
    if target.format != "tfrecord":
        return _write_other(ddf, target, _check_other(source_files, target))
    before: set[str] = set()
    with suppress(FileNotFoundError):
        old = Snapshot.open(target.path, storage_options=target.storage_options)
        before = {file.path for file in old.files}
    snapshot = dask_tfrecord.to_tfrecord(ddf, target.path, **target.keywords)
    files = [file for file in snapshot.files if file.path not in before]
    return len(files), sum(file.records for file in files), sum(file.bytes for file in files)


def _types(ddf: dd.DataFrame) -> dict[str, Any]:
    """Return the Arrow types of the columns, and the dtypes of those that are not Arrow-backed."""
    return {name: getattr(dtype, "pyarrow_dtype", dtype) for name, dtype in ddf.dtypes.items()}


def _existing(target: Target) -> dict[str, int]:
    """Return the visible files of the destination, and their sizes."""
    try:
        return list_files(target.path, target.storage_options)
    except FileNotFoundError:
        return {}


# -- Parquet, CSV and JSON lines -----------------------------------------------------------------------------


def _check_other(source_files: Sequence[str], target: Target) -> dict[str, int]:
    """Return the files of the destination. Raise if the destination or an option is not suitable."""
    is_parquet = target.format == "parquet"
    for option in ("overwrite_partitions", "colocate", "shuffle", *(() if is_parquet else ["partition_on"])):
        if target.how[option] not in (None, False):
            name = option.replace("_", "-")
            raise click.UsageError(f"--{name} is not for {target.format}, which is the format of DST")
    codecs = _PARQUET_CODECS if is_parquet else _TEXT_CODECS
    compression = target.how["compression"] or "none"
    if compression != "none" and compression not in codecs:
        known = ", ".join(dict.fromkeys((*codecs, "none")))
        raise click.UsageError(f"--compression of {target.format} is one of {known}, not {compression!r}")
    fs, root = url_to_fs(target.path, **(target.storage_options or {}))
    existing = _existing(target)
    others = [file for file in existing if format_of_name(file) != target.format]
    dataset = dask_tfrecord.find_dataset(target.path, storage_options=target.storage_options)
    advice = "choose another directory"
    if fs.isfile(root):
        problem = "is a file, not a directory"
    elif dataset is not None:
        problem = f"the directory belongs to the TFRecord dataset {dataset!r}"
    elif others:
        problem = f"the directory holds other files, such as {others[0]}"
    elif existing and target.mode == "create":
        problem = f"the directory already holds {len(existing):,} files"
        advice += ", or pass --append or --overwrite"
    elif target.mode == "overwrite" and not existing.keys().isdisjoint(source_files):
        problem = "an overwrite would remove the files of SRC"
    else:
        return existing
    raise DestinationError(problem, path=root, advice=advice)


def _write_other(ddf: dd.DataFrame, target: Target, existing: dict[str, int]) -> tuple[int, int, int]:
    """Write files to a hidden directory, move them, and remove the files that they replace."""
    fs, root = url_to_fs(target.path, **(target.storage_options or {}))
    root = root.rstrip("/")
    run = uuid4().hex[:8]
    staging = f"{root}/_part-{run}"
    if target.how["npartitions"] not in (None, ddf.npartitions):
        ddf = ddf.clear_divisions().repartition(npartitions=target.how["npartitions"])
    try:
        fs.makedirs(staging, exist_ok=True)  # not in the tasks, one of which may end after the others failed
        rows = (_write_parquet if target.format == "parquet" else _write_text)(ddf, fs, staging, run, target)
        staged = fs.find(staging, detail=True)
    except BaseException:
        for _ in range(3):  # other tasks may still create a file
            with suppress(Exception):  # the error of the write is the one to see
                fs.rm(staging, recursive=True)
        raise
    for path in staged:
        place = f"{root}{path.removeprefix(staging)}"
        fs.makedirs(place.rpartition("/")[0], exist_ok=True)
        fs.mv(path, place)
    if fs.exists(staging):
        fs.rm(staging, recursive=True)
    for file in existing if target.mode == "overwrite" else ():
        fs.rm_file(fs._strip_protocol(file))
    return len(staged), rows, sum(info["size"] for info in staged.values())


def _write_parquet(ddf: dd.DataFrame, fs: Any, staging: str, run: str, target: Target) -> int:
    keys = target.how["partition_on"] or []
    types = {name: type_ for name, type_ in _types(ddf).items() if name not in keys}
    compression = target.how["compression"] or "snappy"
    dd.to_parquet(
        ddf,
        fs.unstrip_protocol(staging),
        compression=None if compression == "none" else compression,
        write_index=False,
        partition_on=keys or None,
        schema={name: type_ for name, type_ in types.items() if isinstance(type_, pa.DataType)},
        name_function=lambda number: f"part-{run}-{number:05d}.parquet",
        storage_options=target.storage_options,
    )
    rows = 0
    for path in fs.find(staging):
        with fs.open(path) as file:
            rows += pq.read_metadata(file).num_rows
    return rows


def _write_text(ddf: dd.DataFrame, fs: Any, staging: str, run: str, target: Target) -> int:
    suffix = f".{target.format}{_TEXT_CODECS[target.how['compression'] or 'none']}"
    save = dask.delayed(_save_text)
    saved = [
        save(part, OpenFile(fs, f"{staging}/part-{run}-{number:05d}{suffix}", "wb", "infer"), target.format)
        for number, part in enumerate(ddf.to_delayed())
    ]
    return sum(dask.compute(*saved))


def _save_text(frame: pd.DataFrame, opened: OpenFile, format: Format) -> int:
    """Write the rows of a partition to a text file. This function runs in a task."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    with opened as file:
        for start in range(0, max(table.num_rows, 1), _ROWS):
            rows = table.slice(start, _ROWS)
            file.write(json_lines(rows) if format == "jsonl" else _csv_lines(rows, include_header=not start))
    return len(frame)


def _csv_lines(rows: pa.Table, *, include_header: bool) -> pa.Buffer:
    """Convert rows to CSV. Lists, bytes and times become the same text as in JSON lines."""
    columns = [_csv_column(column) for column in rows.columns]
    text = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=include_header)
    csv.write_csv(pa.table(columns, names=rows.column_names), text, options)
    return text.getvalue()


def _csv_column(column: pa.ChunkedArray) -> Any:
    kinds = pa.types
    if kinds.is_dictionary(column.type):
        return _csv_column(column.cast(column.type.value_type))
    numbers = (kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_decimal, kinds.is_null)
    if any(test(column.type) for test in (*numbers, kinds.is_string, kinds.is_large_string)):
        return column
    return pc.if_else(pc.is_valid(column), pc.utf8_trim(json_values(column), '"'), None)
