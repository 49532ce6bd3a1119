"""Implement the command `convert`, which converts between TFRecord, Parquet, CSV and JSON lines."""

import errno
import time
from typing import Any

import click

import dask_tfrecord
from dask_tfrecord.cli import options, output
from dask_tfrecord.cli.detect_format import FORMATS, Format, format_of_files, format_of_target, list_files
from dask_tfrecord.cli.progress import computing
from dask_tfrecord.cli.read_formats import open_source
from dask_tfrecord.cli.write_formats import plan_write, write

# The codec of TFRecord files is found in their first bytes; --compression is the codec of DST.
_READ = [option for option in options.READ if option.name != "compression"]
_READ += options.of(dask_tfrecord.read_tfrecord, "blocksize")
_WRITE = [
    *("append", "schema_change", "overwrite", "keep_versions", "partition_on", "colocate", "shuffle"),
    *("npartitions", "lossy", "columnar"),
]


@options.command(
    "convert",
    options.several("source", "SRC..."),
    click.Argument(["target"], metavar="DST", callback=options.noted),
    click.Option(
        ["--from", "source_format"], type=click.Choice(FORMATS), help="Format of SRC. Default: its names."
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
        "Text: gzip, bz2, xz. Or none. Default for TFRecord: dask-tfrecord.compression of Dask's "
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
    """SRC is a directory, a file, a glob, or several of these. DST is a directory, whatever its suffix. The
    types of CSV and JSON lines are inferred from a sample. A later value of another type is an error.

    The storage options are for both SRC and DST, except for local paths.

    --schema-change, --keep-versions, --colocate, --shuffle and --overwrite-partitions are for TFRecord, and
    --partition-on is for TFRecord and Parquet.
    """
    read = {option.name: how.pop(option.name) for option in _READ if option.name in how}
    shared = read.pop("storage_options", None)
    sources = [source] if isinstance(source, str) else source
    read["storage_options"] = options.storage_of(sources[0], shared)
    how["storage_options"] = options.storage_of(target, shared)
    modes = [f"--{name}" for name in ("append", "overwrite") if name in how]
    if overwrite_partitions:
        modes.append("--overwrite-partitions")
        how["overwrite"] = "partitions"
    if len(modes) > 1:
        raise click.UsageError(f"{' and '.join(modes)} exclude one another")
    to = target_format or format_of_target(target)
    listed = {path: list_files(path, read["storage_options"]) for path in sources}
    files = {file: size for found in listed.values() for file, size in found.items()}
    format = source_format or format_of_files(files)
    if format != "tfrecord":  # `read_tfrecord` knows more kinds of paths
        for path in sources:
            if not listed[path]:
                raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
    start = time.perf_counter()
    # Planning may also compute, either rows, to infer the type of a column, or the positions at which the
    # records of a file begin.
    with computing("Converting"):
        ddf = open_source(source, [*files], format, nulls, None if to == "tfrecord" else False, read)
        if dry_run:
            if format == "tfrecord":  # the list does not contain files that the snapshot does not list
                of_rows = {"columns", "filters", "blocksize"}
                found = dask_tfrecord.inspect(
                    source, **{name: value for name, value in read.items() if name not in of_rows}
                )
                files = dict(zip(found.files, found.sizes, strict=True))
            result = {
                "source": format,
                "source_files": len(files),
                "source_bytes": sum(files.values()),
                **plan_write(ddf, [*files], target, to, how),
            }
        else:
            written, rows, size = write(ddf, [*files], target, to, how)
            seconds = time.perf_counter() - start
            result = {
                "files": written,
                "rows": rows,
                "bytes": size,
                "seconds": round(seconds, 1),
                "rows_per_second": round(rows / seconds),
                "bytes_per_second": round(size / seconds),
            }
    output.print_totals(result, as_json)
