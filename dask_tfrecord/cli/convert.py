"""Implement the command `convert`.

The command reads and writes Parquet, CSV and JSON lines with Dask's own readers and writers.
"""

import errno
import re
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from glob import has_magic
from typing import Any, Literal, get_args

import click
import dask
import dask.dataframe as dd
import fsspec
import pandas as pd
import pyarrow as pa
from fsspec.core import url_to_fs
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

import dask_tfrecord
from dask_tfrecord import DestinationError, SchemaError, TFRecordError
from dask_tfrecord.cli import options, output
from dask_tfrecord.cli.compute import computing
from dask_tfrecord.cli.failures import option, option_name
from dask_tfrecord.cli.options import Filters, names_in
from dask_tfrecord.collection.numbered_rows import filter_mask
from dask_tfrecord.errors import Remedy, RemedyWarning, located

Format = Literal["tfrecord", "parquet", "csv", "jsonl"]
FORMATS = get_args(Format)

# Maps each codec of text files to the file name suffix by which Dask and pandas recognise the codec.
_TEXT_CODECS = {"gzip": ".gz", "bz2": ".bz2", "xz": ".xz", "zstd": ".zst", None: ""}
# The types of CSV are inferred from this many rows of the first file.
_SAMPLE_ROWS = 100_000

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
    """Return the format that the suffix of a path indicates. Without a suffix, the format is TFRecord."""
    name = path.rstrip("/").rpartition("/")[2]
    suffix = _NAME.fullmatch(name)
    if suffix is None or (option == "from" and suffix[1] not in _SUFFIXES):
        return "tfrecord"
    if suffix[1] not in _SUFFIXES:
        known = ", ".join(f".{known}" for known in FORMATS)
        raise click.UsageError(f"the suffix of {name!r} is none of {known}; pass --{option} with the format")
    return _SUFFIXES[suffix[1]]


def list_files(path: str, storage_options: dict[str, Any] | None) -> dict[str, int]:
    """Return a dict that maps each visible file of a directory, glob or file path to its size in bytes."""
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
    to: Format,
    read: dict[str, Any],
) -> dd.DataFrame:
    """Open the source of `convert` as a Dask DataFrame of the selected columns and rows.

    ``to`` is the format of the target. ``read`` contains the keywords of `read_tfrecord` that were passed.
    """
    index: Literal[False] | None = None if to == "tfrecord" else False  # the other formats have no index
    if nulls and format != "csv":
        raise click.UsageError("--null is for CSV files")
    if format == "tfrecord":
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
    storage_options = read["storage_options"]
    if format == "parquet":
        # With Dask's default for `dataframe.convert-string`, all strings would be converted twice. With the
        # default dtype backend, integer columns with nulls would become float columns.
        with dask.config.set({"dataframe.convert-string": False}):
            ddf = dd.read_parquet(
                paths, index=index, dtype_backend="pyarrow", storage_options=storage_options
            )
    else:
        parse = partial(_parse_csv, nulls=nulls, given={*(types or ())}) if format == "csv" else _parse_json
        parse_file = partial(_parse_file, parse=parse, storage_options=storage_options or {})
        first = parse_file(files[0], types=types or {}, rows=_SAMPLE_ROWS)
        ddf = dd.from_map(parse_file, list(files), types=types_of(first), meta=first.iloc[:0])
        if format == "csv" and to in ("tfrecord", "parquet"):
            names = [name for name in columns or first.columns if name not in (types or ())]
            _warn_of_times(first.reindex(columns=names).select_dtypes(pd.ArrowDtype(pa.string())))
    if not len(ddf.columns):
        return ddf
    needed = list(dict.fromkeys([*(columns or ddf.columns), *names_in(filters), *(types or ())]))
    if unknown := [name for name in needed if name not in ddf.columns]:
        raise SchemaError(f"no column is named {unknown[0]!r}; there are {', '.join(ddf.columns)}")
    if filters is not None:
        ddf = ddf[needed]
        _filtered(ddf._meta, filters)  # raise now if a filter value cannot be compared with its column
        ddf = ddf.map_partitions(_filtered, filters, meta=ddf._meta, enforce_metadata=False)
    return ddf if columns is None else ddf[columns]


def _warn_of_times(text: pd.DataFrame) -> None:
    """Warn of text columns that contain only dates or times, which Arrow would recognise."""
    data = text.to_csv(index=False).encode()
    read = arrow_csv.ReadOptions(block_size=len(data) + 1)
    parse = arrow_csv.ParseOptions(newlines_in_values=True)
    convert = arrow_csv.ConvertOptions(strings_can_be_null=True)
    inferred = (
        arrow_csv.open_csv(pa.BufferReader(data), read, parse, convert).schema if len(text.columns) else ()
    )
    if types := {item.name: item.type for item in inferred if pa.types.is_temporal(item.type)}:
        problem = f"the dates and times in {', '.join(map(repr, types))} stay text"
        warnings.warn(RemedyWarning(problem, [Remedy("schema", types, "convert them")]), stacklevel=2)


def _parse_file(
    file: str,
    *,
    parse: Callable[[Any, dict[str, pa.DataType], int | None], pd.DataFrame],
    storage_options: dict[str, Any],
    types: dict[str, pa.DataType],
    rows: int | None = None,
) -> pd.DataFrame:
    """Read a file as columns of the given types, or read its first ``rows`` rows to infer the other types."""
    path = file.removeprefix("file://")
    with fsspec.open(file, compression="infer", **storage_options) as data, located(path=path):
        try:
            frame = parse(data, types, rows)
            return frame if rows is not None else _with_types(frame, types)
        except (ValueError, OverflowError) as error:  # the base classes of errors of pandas and Arrow
            if isinstance(error, pd.errors.EmptyDataError) and rows is not None:
                return pd.DataFrame()
            if isinstance(error, TFRecordError):
                raise
            raise SchemaError(f"the file cannot be converted: {error}") from None


# The types that pandas infers from the text of a CSV file, apart from text.
_INFERRED = (pa.int64(), pa.uint64(), pa.float64(), pa.bool_(), pa.null())


def _parse_csv(
    data: Any, types: dict[str, pa.DataType], rows: int | None, *, nulls: Sequence[str], given: set[str]
) -> pd.DataFrame:
    # pandas would also convert the text 007 to a number, so columns of text are named.
    named = {name: type_ for name, type_ in types.items() if name in given or type_ not in _INFERRED}
    frame = pd.read_csv(
        data,
        dtype={name: pd.ArrowDtype(type_) for name, type_ in named.items()},
        dtype_backend="pyarrow",
        na_values=["", *nulls],
        keep_default_na=False,
        low_memory=False,  # otherwise, pandas infers the types of each block
        nrows=rows,
    )
    if not isinstance(frame.index, pd.RangeIndex):
        raise SchemaError("the rows have more values than the header has names")
    # Without a value, pandas gives a column the dtype object.
    unknown = [name for name, dtype in frame.dtypes.items() if pd.api.types.is_object_dtype(dtype)]
    return frame.astype(dict.fromkeys(unknown, pd.ArrowDtype(pa.null())))


def _parse_json(data: Any, types: dict[str, pa.DataType], rows: int | None) -> pd.DataFrame:
    """Parse JSON lines with Arrow, because pandas would convert integers with nulls to floats."""
    text = data.read()
    if not text.strip():
        empty: pd.DataFrame = pa.schema(types).empty_table().to_pandas(types_mapper=pd.ArrowDtype)
        return empty
    table: pa.Table = arrow_json.read_json(
        pa.BufferReader(text),
        arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        arrow_json.ParseOptions(explicit_schema=pa.schema(types) if types else None),
    )
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return frame


def _with_types(frame: pd.DataFrame, types: dict[str, pa.DataType]) -> pd.DataFrame:
    if {*frame.columns} != {*types}:
        problem = f"the columns are {', '.join(frame.columns)}, but {', '.join(types)} in the first file"
        raise SchemaError(problem)
    table = pa.Table.from_pandas(frame[[*types]], preserve_index=False)
    for name, found, expected in zip(types, table.schema.types, types.values(), strict=True):
        numbers = pa.types.is_integer(found) and pa.types.is_floating(expected)
        if found not in (expected, pa.null()) and not numbers:
            problem = f"the column has values of {found}, but of {expected} at the start of the first file"
            both = pa.float64() if (expected, found) == (pa.int64(), pa.float64()) else pa.string()
            raise SchemaError(problem, f"pass {option(Remedy('schema', {name: both}))}", feature=name)
    typed: pd.DataFrame = table.cast(pa.schema(types)).to_pandas(types_mapper=pd.ArrowDtype)
    return typed


def _filtered(frame: pd.DataFrame, filters: Filters) -> pd.DataFrame:
    columns = pa.Table.from_pandas(frame[names_in(filters)], preserve_index=False)
    selected: pd.DataFrame = frame[filter_mask(columns, filters)]
    return selected


def types_of(ddf: dd.DataFrame) -> dict[str, Any]:
    """Return the Arrow types of the columns, or the dtypes of columns that are not Arrow-backed."""
    return {str(name): getattr(dtype, "pyarrow_dtype", dtype) for name, dtype in ddf.dtypes.items()}


def check_target(ddf: dd.DataFrame, path: str, format: Format, how: dict[str, Any]) -> None:
    known = {"write_options", "compression", "storage_options", *(("partition_on",) * (format == "parquet"))}
    if unsuitable := sorted(how.keys() - known):
        problem = f"--{option_name(unsuitable[0])} is not for {format}, which is the format of DST"
        raise click.UsageError(problem)
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
    """Name the values of ``type_`` that a text format cannot store, such as "bytes". Return "" if all fit."""
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
    codec = how.get("compression", "snappy" if format == "parquet" else None)
    storage_options = how["storage_options"]
    given: dict[str, Any] = {"compression": codec, "storage_options": storage_options}
    if format == "parquet":
        keys = how.get("partition_on")
        types = {name: type_ for name, type_ in types_of(ddf).items() if name not in (keys or ())}
        schema = {name: type_ for name, type_ in types.items() if isinstance(type_, pa.DataType)}
        ddf.to_parquet(path, write_index=False, partition_on=keys, schema=schema, **given)
    else:
        name = f"{path.rstrip('/')}/part-*.{format}{_TEXT_CODECS[codec]}"
        given |= {"name_function": "{:05d}".format}
        if format == "csv":
            ddf.to_csv(name, index=False, **given)
        else:
            given |= {"date_format": "iso", "date_unit": "ns", "double_precision": 15}
            dd.to_json(ddf, name, lines=True, orient="records", **given)
    return list_files(path, storage_options)


_WRITE = [
    *("append", "schema_change", "overwrite", "keep_versions", "partition_on", "colocate", "shuffle", "seed"),
    *("npartitions", "lossy", "columnar", "write_id"),
]


@options.command(
    "convert",
    options.several("source", "SRC..."),
    click.Argument(["target"], metavar="DST", callback=options.noted, type=options.LOCAL),
    click.Option(
        ["--from", "source_format"],
        type=click.Choice(FORMATS),
        help="Format of SRC. Default: the suffix of its first path, or tfrecord.",
    ),
    click.Option(
        ["--to", "target_format"],
        type=click.Choice(FORMATS),
        help="Format of DST. Default: its suffix, or tfrecord for a name without a suffix.",
    ),
    *options.READ,
    click.Option(
        ["--null", "nulls"],
        multiple=True,
        metavar="TEXT",
        help="Text that means null in CSV, such as NA. An empty field is always null. Repeatable.",
    ),
    *options.of(dask_tfrecord.to_tfrecord, *_WRITE),
    click.Option(
        ["--overwrite-partitions"],
        is_flag=True,
        help="Replace only the directories that are written. For TFRecord.",
    ),
    click.Option(
        ["--compression"],
        metavar="CODEC",
        help="TFRecord: gzip, zlib, zstd, lz4, bz2, xz. Parquet: snappy (default), gzip, zstd, lz4, brotli. "
        "Text: gzip, bz2, xz, zstd. Or none. Default for TFRecord: dask-tfrecord.compression of Dask's "
        "configuration.",
    ),
    click.Option(["--dry-run"], is_flag=True, help="Print the plan, and write nothing."),
    options.JSON,
    *options.COMPUTING,
    examples=[
        "rides.csv rides --null NA --partition-on city",
        "today.parquet rides --append",
        """rides rides.parquet --where "city == 'Bern'" --columns city,fare""",
        "'old/*.tfrecord' rides --overwrite --compression zstd --dry-run",
    ],
)
def convert_command(
    source: str | list[str],
    target: str,
    nulls: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    overwrite_partitions: bool,
    source_format: Format | None = None,
    target_format: Format | None = None,
    **how: Any,
) -> None:
    """SRC is a directory, a file, a glob, or several of these. DST is a directory, whatever its suffix.

    Dask reads and writes Parquet, CSV and JSON lines. Each CSV or JSON file in SRC becomes one partition, and
    each CSV or JSON file in DST contains one partition. For Parquet, CSV and JSON lines, DST must be a new or
    empty directory.

    The storage options apply to both SRC and DST, but not to local paths.

    --npartitions and --compression work for every format, --partition-on for TFRecord and Parquet, and all
    other write options only for TFRecord.
    """
    names = ["read_options", *(option.name for option in options.READ)]
    read = {name: how.pop(name) for name in names if name in how}
    shared = read.pop("storage_options", None)
    sources = [source] if isinstance(source, str) else source
    read["storage_options"] = options.storage_of(sources[0], shared)
    how["storage_options"] = options.storage_of(target, shared)
    if how.get("compression") == "none":
        how["compression"] = None
    modes = [f"--{name}" for name in ("append", "overwrite") if name in how]
    if overwrite_partitions:
        modes.append("--overwrite-partitions")
        how["overwrite"] = "partitions"
    if len(modes) > 1:
        raise click.UsageError(f"{' and '.join(modes)} exclude one another")
    to = target_format or format_of(target, "to")
    format = source_format or format_of(sources[0], "from")
    files: dict[str, int] = {}
    if format != "tfrecord":  # `read_tfrecord` accepts more paths than `list_files` does
        for path in sources:
            listed = list_files(path, read["storage_options"])
            if not listed:
                raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
            files |= listed
        # An empty file has no header and no rows. As the first file, it would give the columns.
        files = {path: size for path, size in files.items() if size} or files
    start = time.perf_counter()
    # Planning alone may run computations that infer column types from rows, or find record offsets in a file.
    with computing("Converting"):
        ddf = open_source(source, [*files], format, nulls, to, read)
        if not len(ddf.columns):
            advice = "convert it together with other files"
            if format in ("tfrecord", "jsonl"):
                advice += ", or pass --type COLUMN=TYPE for each column"
            problem = "there are no values, so the columns are not known"
            raise SchemaError(problem, advice, path=sources[0])
        if to != "tfrecord":
            check_target(ddf, target, to, how)
        if dry_run:
            result = {**_source_of(source, files, format, read), **_plan(ddf, target, to, how)}
        else:
            result = _write(ddf, target, to, how, start)
    output.print_totals(result, as_json)


def _source_of(source: Any, files: dict[str, int], format: Format, read: dict[str, Any]) -> dict[str, Any]:
    sizes = [*files.values()]
    if format == "tfrecord":
        of_files = {name: read[name] for name in read.keys() - {"columns", "filters"}}
        sizes = dask_tfrecord.open_dataset(source, **of_files).files["bytes"].tolist()
    return {"source": format, "source_files": len(sizes), "source_bytes": sum(sizes)}


def _plan(ddf: Any, target: str, to: Format, how: dict[str, Any]) -> dict[str, Any]:
    overwrite = {True: "overwrite", "partitions": "partitions"}
    mode = "append" if "append" in how else overwrite.get(how.get("overwrite"), "create")
    planned = {
        "target": to,
        "mode": mode,
        "partitions": how.get("write_options", {}).get("npartitions", ddf.npartitions),
        "partition_on": how.get("partition_on", []),
        "schema": {name: str(type_) for name, type_ in types_of(ddf).items()},
    }
    if to == "tfrecord":
        dask_tfrecord.to_tfrecord(ddf, target, compute=False, **how)
        replaced = list_files(target, how["storage_options"]) if mode == "overwrite" else {}
        planned |= {"replaced_files": len(replaced), "replaced_bytes": sum(replaced.values())}
    if mode == "partitions":
        planned["replaced_files"] = "those in the directories that are written"
        del planned["replaced_bytes"]
    return planned


def _write(ddf: Any, target: str, to: Format, how: dict[str, Any], start: float) -> dict[str, Any]:
    if to != "tfrecord":
        sizes = [*write_other(ddf, target, to, how).values()]
        seconds = round(time.perf_counter() - start, 1)
        return {"files": len(sizes), "bytes": sum(sizes), "seconds": seconds}
    done = dask_tfrecord.to_tfrecord(ddf, target, **how)
    seconds = time.perf_counter() - start
    files, rows, size = done.details.values()
    added = {"files": files, "rows": rows, "bytes": size}
    if "write_id" in how:  # an earlier conversion may have added the rows
        return {"version": done.version, **added}
    return {
        **added,
        "seconds": round(seconds, 1),
        "rows_per_second": round(rows / seconds),
        "bytes_per_second": round(size / seconds),
    }
