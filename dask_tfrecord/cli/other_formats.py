"""Read the source of `convert`, and write Parquet, CSV and JSON lines, with Dask's readers and writers."""

import re
from collections.abc import Sequence
from glob import has_magic
from typing import Any, Literal, get_args

import click
import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
from fsspec.core import url_to_fs
from pyarrow import json as arrow_json

import dask_tfrecord
from dask_tfrecord import DestinationError, SchemaError
from dask_tfrecord.cli.failures import option_name
from dask_tfrecord.cli.options import Filters, names_in
from dask_tfrecord.row_selection import filter_mask

Format = Literal["tfrecord", "parquet", "csv", "jsonl"]
FORMATS = get_args(Format)

# The file name suffixes by which Dask and pandas recognise the codecs of text files.
_TEXT_CODECS = {"gzip": ".gz", "bz2": ".bz2", "xz": ".xz", "zstd": ".zst", None: ""}
# How many bytes of the first CSV file are used to infer types.
_SAMPLE_BYTES = 1 << 24

_SUFFIXES: dict[str, Format] = {
    "parquet": "parquet",
    "csv": "csv",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "tfrecord": "tfrecord",
    "tfrecords": "tfrecord",
}
_NAME = re.compile(r".*\.(\w+?)(?:-\d+-of-\d+)?(?:\.(?:gz|zz|bz2|xz|zst|lz4))?", re.DOTALL)


def format_of(path: str, option: str) -> Format:
    """Return the format of a path, given by its suffix. A path without a suffix has the format TFRecord."""
    name = path.rstrip("/").rpartition("/")[2]
    suffix = _NAME.fullmatch(name)
    if suffix is None or (option == "from" and suffix[1] not in _SUFFIXES):
        return "tfrecord"
    if suffix[1] not in _SUFFIXES:
        known = ", ".join(f".{known}" for known in FORMATS)
        raise click.UsageError(f"the suffix of {name!r} is none of {known}; pass --{option} with the format")
    return _SUFFIXES[suffix[1]]


def list_files(path: str, storage_options: dict[str, Any] | None) -> dict[str, int]:
    """Map the visible files of a directory, of a glob or of a file to their sizes."""
    fs, root = url_to_fs(path, **(storage_options or {}))
    fs.invalidate_cache()
    found: dict[str, int] = {}
    for place in [root] if fs.exists(root) or not has_magic(root) else sorted(fs.glob(root)):
        for name, info in sorted(fs.find(place, detail=True).items()):
            if not re.search(r"/[_.]", name.removeprefix(place.rstrip("/"))):
                found[fs.unstrip_protocol(name)] = info["size"]
    return found


def open_source(
    paths: str | list[str],
    files: Sequence[str],
    format: Format,
    nulls: tuple[str, ...],
    index: Literal[False] | None,
    read: dict[str, Any],
) -> dd.DataFrame:
    """Open the source of `convert` as a Dask DataFrame of the selected columns and rows.

    ``index`` is False if the target format has no index. ``read`` contains the keywords of `read_tfrecord`
    that the user passed.
    """
    if nulls and format != "csv":
        raise click.UsageError("--null is for CSV files")
    if format == "tfrecord":
        if read.get("blocksize") == "none":
            read = {**read, "blocksize": None}
        return dask_tfrecord.read_tfrecord(paths, index=index, dtype_backend="pyarrow", **read)
    types, columns, filters = read.get("schema"), read.get("columns"), read.get("filters")
    known = {"columns", "filters", "storage_options", *(("schema",) if format != "parquet" else ())}
    given = {**read, **read.get("read_options", {})}
    given.pop("read_options", None)
    others = [option_name(name, value) for name, value in given.items() if name not in known]
    if not isinstance(types, dict | None):
        others = ["schema"]
    if others:
        raise click.UsageError(f"--{others[0]} is for TFRecord, and SRC is {format}")
    shared: dict[str, Any] = {"storage_options": read["storage_options"]}
    # With Dask's default for this option, Dask would convert all strings once more.
    with dask.config.set({"dataframe.convert-string": False}):
        if format == "parquet":
            # With another dtype backend, integers with nulls would become floats.
            ddf = dd.read_parquet(paths, index=index, dtype_backend="pyarrow", **shared)
        elif format == "csv":
            ddf = dd.read_csv(
                list(files),
                blocksize=None,  # a block might end at a quoted line break
                sample=_SAMPLE_BYTES,
                sample_rows=_SAMPLE_BYTES,  # all rows of the sample
                dtype={name: pd.ArrowDtype(type_) for name, type_ in (types or {}).items()},
                dtype_backend="pyarrow",
                na_values=["", *nulls],
                keep_default_na=False,
                **shared,
            )
        else:
            ddf = dd.read_json(list(files), lines=True, engine=_parse_json, types=types or {}, **shared)
    needed = list(dict.fromkeys([*(columns or ddf.columns), *names_in(filters), *(types or ())]))
    if unknown := [name for name in needed if name not in ddf.columns]:
        raise SchemaError(f"no column is named {unknown[0]!r}; there are {', '.join(ddf.columns)}")
    if filters is not None:
        ddf = ddf[needed]
        # Raises if a value cannot be compared with its column.
        filter_mask(pa.Table.from_pandas(ddf._meta, preserve_index=False), filters)
        ddf = ddf.map_partitions(_filtered, filters, meta=ddf._meta, enforce_metadata=False)
    return ddf if columns is None else ddf[columns]


def _parse_json(file: Any, *, types: dict[str, pa.DataType], **_: Any) -> pd.DataFrame:
    """Parse JSON lines as an engine of Dask: pandas would convert integers with nulls to floats."""
    data = file.read().encode()
    table: pa.Table = arrow_json.read_json(
        pa.BufferReader(data),
        arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        arrow_json.ParseOptions(explicit_schema=pa.schema(types) if types else None),
    )
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return frame


def _filtered(frame: pd.DataFrame, filters: Filters) -> pd.DataFrame:
    columns = pa.Table.from_pandas(frame[names_in(filters)], preserve_index=False)
    selected: pd.DataFrame = frame[filter_mask(columns, filters).to_numpy()]
    return selected


def types_of(ddf: dd.DataFrame) -> dict[str, Any]:
    """Return the Arrow types of the columns, or the dtypes of columns that are not Arrow-backed."""
    return {str(name): getattr(dtype, "pyarrow_dtype", dtype) for name, dtype in ddf.dtypes.items()}


def check_target(ddf: dd.DataFrame, path: str, format: Format, how: dict[str, Any]) -> None:
    known = {"write_options", "compression", "storage_options", *(("partition_on",) * (format == "parquet"))}
    if unsuitable := sorted(how.keys() - known):
        option = unsuitable[0].replace("_", "-")
        raise click.UsageError(f"--{option} is not for {format}, which is the format of DST")
    compression = how.get("compression")
    if format != "parquet" and compression not in _TEXT_CODECS:
        known_codecs = ", ".join(name or "none" for name in _TEXT_CODECS)
        raise click.UsageError(f"--compression of {format} is one of {known_codecs}, not {compression!r}")
    fs, root = url_to_fs(path, **(how["storage_options"] or {}))
    fs.invalidate_cache()
    if fs.exists(root) and (fs.isfile(root) or fs.ls(root, detail=False)):
        raise DestinationError(
            f"only a TFRecord dataset can be added to or replaced, and the format is {format}",
            path=root,
            advice="choose a new directory",
        )
    for name, type_ in types_of(ddf).items():
        if format != "parquet" and (reason := _refusal(type_, format)):
            raise SchemaError(
                f"{format} cannot hold {reason}",
                feature=name,
                advice="write Parquet, or leave out the column",
            )


def _refusal(type_: Any, format: Format) -> str:
    """Return what a text format cannot hold of a type, such as "bytes", or an empty text."""
    types = pa.types
    if not isinstance(type_, pa.DataType):
        return "objects of Python" if str(type_) == "object" else ""
    if isinstance(type_, pa.BaseExtensionType):
        type_ = type_.storage_type
    if types.is_dictionary(type_):
        type_ = type_.value_type
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        return "bytes"
    if types.is_nested(type_):
        if format == "csv":
            return "lists and structs"
        inner = (_refusal(type_.field(at).type, format) for at in range(type_.num_fields))
        return next(filter(None, inner), "")
    return "durations" if types.is_duration(type_) else ""


def write_other(ddf: dd.DataFrame, path: str, format: Format, how: dict[str, Any]) -> dict[str, int]:
    """Write Parquet, CSV or JSON lines with Dask. Return the written files and their sizes."""
    if "write_options" in how:
        ddf = ddf.clear_divisions().repartition(npartitions=how["write_options"]["npartitions"])
    options = how["storage_options"]
    codec = how.get("compression", "snappy" if format == "parquet" else None)
    if format == "parquet":
        keys = how.get("partition_on", [])
        types = {name: type_ for name, type_ in types_of(ddf).items() if name not in keys}
        ddf.to_parquet(
            path,
            compression=codec,
            write_index=False,
            partition_on=keys or None,
            schema={name: type_ for name, type_ in types.items() if isinstance(type_, pa.DataType)},
            storage_options=options,
        )
        return list_files(path, options)
    text: dict[str, Any] = {"compression": codec, "storage_options": options}
    name = f"{path.rstrip('/')}/part-*.{format}{_TEXT_CODECS[codec]}"
    if format == "csv":
        ddf.to_csv(name, index=False, name_function="{:05d}".format, **text)
    else:
        text |= {"date_format": "iso", "date_unit": "ns", "double_precision": 15}
        dd.to_json(ddf, name, lines=True, orient="records", name_function="{:05d}".format, **text)
    return list_files(path, options)
