"""Implement the command `convert`, which converts between TFRecord, Parquet, CSV and JSON lines."""

import errno
import time
from typing import Any

import click

import dask_tfrecord
from dask_tfrecord.cli import options, output
from dask_tfrecord.cli.compute import computing
from dask_tfrecord.cli.other_formats import (
    FORMATS,
    Format,
    check_target,
    format_of,
    list_files,
    open_source,
    types_of,
    write_other,
)

# Reads detect the codec of TFRecord files, so --compression is only the codec of DST.
_READ = [option for option in options.READ if option.name != "compression"]
_READ += options.of(dask_tfrecord.read_tfrecord, "blocksize")
_WRITE = [
    *("append", "schema_change", "overwrite", "keep_versions", "partition_on", "colocate", "shuffle", "seed"),
    *("npartitions", "lossy", "columnar"),
]


@options.command(
    "convert",
    options.several("source", "SRC..."),
    click.Argument(["target"], metavar="DST", callback=options.noted),
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
    *_READ,
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

    Dask reads and writes Parquet, CSV and JSON lines, one partition for each file of text. For these formats,
    DST must be a new or empty directory.

    The storage options are for both SRC and DST, except for local paths.

    --partition-on is for TFRecord and Parquet. Of the other options of writing, only --npartitions and
    --compression are for all formats.
    """
    names = ["read_options", *(option.name for option in _READ)]
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
    if format != "tfrecord":  # `read_tfrecord` knows more kinds of paths
        for path in sources:
            listed = list_files(path, read["storage_options"])
            if not listed:
                raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
            files |= listed
    start = time.perf_counter()
    # Planning may also compute something: the types of columns from rows, or where records begin in a file.
    with computing("Converting"):
        ddf = open_source(source, [*files], format, nulls, None if to == "tfrecord" else False, read)
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
        of_files = {name: read[name] for name in read.keys() - {"columns", "filters", "blocksize"}}
        sizes = dask_tfrecord.open_dataset(source, **of_files).files["bytes"].to_pylist()
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
    return {
        "files": files,
        "rows": rows,
        "bytes": size,
        "seconds": round(seconds, 1),
        "rows_per_second": round(rows / seconds),
        "bytes_per_second": round(size / seconds),
    }
