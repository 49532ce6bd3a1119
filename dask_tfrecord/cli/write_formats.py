"""Write the destination of `convert`, or describe what the write would do.

`to_tfrecord` commits TFRecord files atomically. Files of other formats are written to a hidden directory, and
are moved when all files are complete. The files that the moved files replace are removed last.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
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
from fsspec.implementations.local import LocalFileSystem
from pyarrow import csv

import dask_tfrecord
from dask_tfrecord import DestinationError, Snapshot
from dask_tfrecord.cli.detect_format import Format, format_of_name, list_files
from dask_tfrecord.cli.json_text import json_lines, json_values

_PARQUET_CODECS = ("snappy", "gzip", "zstd", "lz4", "brotli")

# Codecs of text files, each with the file name suffix by which readers recognise the codec.
_TEXT_CODECS = {"gzip": ".gz", "bz2": ".bz2", "xz": ".xz", "none": ""}

# The options of a write of TFRecord that have no meaning for other formats.
_ONLY_TFRECORD = ("colocate", "columnar", "shuffle", "schema_change", "keep_versions")

# The number of rows that are converted to text in one step, which bounds the memory.
_ROWS = 1 << 16


def plan_write(
    ddf: dd.DataFrame, sources: Sequence[str], path: str, format: Format, how: dict[str, Any]
) -> dict[str, Any]:
    """Check the destination of `convert`, and return a description of what a write would do.

    The function `plan_write` writes nothing.
    """
    if format == "tfrecord":
        dask_tfrecord.to_tfrecord(ddf, path, compute=False, **_keywords(how))
        existing = list_files(path, how["storage_options"])
    else:
        existing = _check_other(sources, path, format, how)
    mode = _mode(how)
    replaced = existing if mode == "overwrite" else {}
    planned: dict[str, Any] = {
        "target": format,
        "mode": mode,
        "partitions": how.get("npartitions", ddf.npartitions),
        "partition_on": how.get("partition_on", []),
        "schema": {name: str(type_) for name, type_ in _types(ddf).items()},
        "replaced_files": len(replaced),
        "replaced_bytes": sum(replaced.values()),
    }
    if mode == "partitions":
        planned["replaced_files"] = "those in the directories that are written"
        del planned["replaced_bytes"]
    return planned


def write(
    ddf: dd.DataFrame, sources: Sequence[str], path: str, format: Format, how: dict[str, Any]
) -> tuple[int, int, int]:
    """Write all rows, and return the number of written files, rows and bytes."""
    if format != "tfrecord":
        return _write_other(ddf, path, format, how, _check_other(sources, path, format, how))
    before: set[str] = set()
    with suppress(FileNotFoundError):
        old = Snapshot.open(path, storage_options=how["storage_options"])
        before = {file.path for file in old.files}
    snapshot = dask_tfrecord.to_tfrecord(ddf, path, **_keywords(how))
    files = [file for file in snapshot.files if file.path not in before]
    return len(files), sum(file.records for file in files), sum(file.bytes for file in files)


def _keywords(how: dict[str, Any]) -> dict[str, Any]:
    return {**how, "compression": None} if how.get("compression") == "none" else how


def _mode(how: dict[str, Any]) -> str:
    """Return the mode of the write, which says what happens to existing data at the destination."""
    overwrite = {True: "overwrite", "partitions": "partitions"}
    return "append" if "append" in how else overwrite.get(how.get("overwrite"), "create")


def _types(ddf: dd.DataFrame) -> dict[str, Any]:
    """Return the Arrow types of the columns, or the dtypes of columns that are not Arrow-backed."""
    return {name: getattr(dtype, "pyarrow_dtype", dtype) for name, dtype in ddf.dtypes.items()}


# -- Parquet, CSV and JSON lines -----------------------------------------------------------------------------


def _check_other(sources: Sequence[str], path: str, format: Format, how: dict[str, Any]) -> dict[str, int]:
    """Return the visible files of the destination with their sizes.

    Raise if the destination or an option is not suitable for the format.
    """
    mode = _mode(how)
    unsuitable = {*_ONLY_TFRECORD, *(() if format == "parquet" else ["partition_on"])} & how.keys()
    if mode == "partitions" or unsuitable:
        name = min(unsuitable, default="overwrite_partitions").replace("_", "-")
        raise click.UsageError(f"--{name} is not for {format}, which is the format of DST")
    codecs = _PARQUET_CODECS if format == "parquet" else _TEXT_CODECS
    compression = how.get("compression", "none")
    if compression not in (*codecs, "none"):
        known = ", ".join(dict.fromkeys((*codecs, "none")))
        raise click.UsageError(f"--compression of {format} is one of {known}, not {compression!r}")
    fs, root = url_to_fs(path, **(how["storage_options"] or {}))
    existing = list_files(path, how["storage_options"])
    others = [file for file in existing if format_of_name(file) != format]
    dataset = dask_tfrecord.find_dataset(path, storage_options=how["storage_options"])
    advice = "choose another directory"
    if fs.isfile(root):
        problem = "is a file, not a directory"
    elif dataset is not None:
        problem = f"the directory belongs to the TFRecord dataset {dataset!r}"
    elif others:
        problem = f"the directory holds other files, such as {others[0]}"
    elif existing and mode == "create":
        problem = f"the directory already holds {len(existing):,} files"
        advice += ", or pass --append or --overwrite"
    elif mode == "overwrite" and not existing.keys().isdisjoint(sources):
        problem = "an overwrite would remove the files of SRC"
    else:
        return existing
    raise DestinationError(problem, advice, path=root)


def _write_other(
    ddf: dd.DataFrame, path: str, format: Format, how: dict[str, Any], existing: dict[str, int]
) -> tuple[int, int, int]:
    """Write files to a hidden directory, move the files to the destination, and remove the files that they
    replace.
    """
    fs, root = url_to_fs(path, **(how["storage_options"] or {}))
    root = root.rstrip("/")
    run = uuid4().hex[:8]
    staging = f"{root}/_part-{run}"
    if how.get("npartitions", ddf.npartitions) != ddf.npartitions:
        ddf = ddf.clear_divisions().repartition(npartitions=how["npartitions"])
    try:
        # Tasks do not make the directory, because a task may end after the other tasks failed.
        fs.makedirs(staging, exist_ok=True)
        name = f"{staging}/part-{run}"
        rows = (
            _write_parquet(ddf, fs, staging, run, how)
            if format == "parquet"
            else _write_text(ddf, fs, name, format, how)
        )
        staged = fs.find(staging, detail=True)
        places = {file: f"{root}{file.removeprefix(staging)}" for file in staged}
        _refuse_links(fs, root, places.values())
    except BaseException:
        for _ in range(3):  # other tasks may still create a file in the directory
            with suppress(Exception):  # only the error of the write is raised
                fs.rm(staging, recursive=True)
        raise
    for file, place in places.items():
        fs.makedirs(place.rpartition("/")[0], exist_ok=True)
        fs.mv(file, place)
    if fs.exists(staging):
        fs.rm(staging, recursive=True)
    for file in existing if "overwrite" in how else ():
        fs.rm_file(fs._strip_protocol(file))
    return len(staged), rows, sum(info["size"] for info in staged.values())


def _refuse_links(fs: Any, root: str, places: Iterable[str]) -> None:
    """Raise if a file would be behind a link below the root."""
    if not isinstance(fs, LocalFileSystem):
        return
    for directory in {str(parent) for place in places for parent in PurePosixPath(place).parents}:
        if directory.startswith(f"{root}/") and fs.islink(directory):
            problem = "the directory is a link, and no files are written behind a link"
            raise DestinationError(problem, "remove the link, or choose another directory", path=directory)


def _write_parquet(ddf: dd.DataFrame, fs: Any, staging: str, run: str, how: dict[str, Any]) -> int:
    keys = how.get("partition_on", [])
    compression = how.get("compression", "snappy")
    types = {name: type_ for name, type_ in _types(ddf).items() if name not in keys}
    dd.to_parquet(
        ddf,
        fs.unstrip_protocol(staging),
        compression=None if compression == "none" else compression,
        write_index=False,
        partition_on=keys or None,
        schema={name: type_ for name, type_ in types.items() if isinstance(type_, pa.DataType)},
        name_function=lambda number: f"part-{run}-{number:05d}.parquet",
        storage_options=how["storage_options"],
    )
    return sum(pq.read_metadata(path, filesystem=fs).num_rows for path in fs.find(staging))


def _write_text(ddf: dd.DataFrame, fs: Any, name: str, format: Format, how: dict[str, Any]) -> int:
    suffix = f".{format}{_TEXT_CODECS[how.get('compression', 'none')]}"
    save = dask.delayed(_save_text)
    files = [OpenFile(fs, f"{name}-{number:05d}{suffix}", "wb", "infer") for number in range(ddf.npartitions)]
    return sum(dask.compute(*map(save, ddf.to_delayed(), files, [format] * len(files))))


def _save_text(frame: pd.DataFrame, opened: OpenFile, format: Format) -> int:
    """Write the rows of one partition to a text file. The function `_save_text` runs in a Dask task."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    with opened as file:
        for start in range(0, max(table.num_rows, 1), _ROWS):
            rows = table.slice(start, _ROWS)
            file.write(json_lines(rows) if format == "jsonl" else _csv_lines(rows, include_header=not start))
    return len(frame)


def _csv_lines(rows: pa.Table, *, include_header: bool) -> pa.Buffer:
    """Convert the rows of a table to CSV. Lists, bytes and times become the same text as in JSON lines."""
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
