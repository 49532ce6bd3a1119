"""Implement `convert`, between any two of TFRecord, Parquet, CSV and JSON lines."""

import time
from contextlib import suppress
from typing import Any

import click

import dask_tfrecord
from dask_tfrecord.cli import options, output
from dask_tfrecord.cli.detect_format import FORMATS, Format, format_of_files, format_of_target, list_files
from dask_tfrecord.cli.failures import note_paths
from dask_tfrecord.cli.progress import Computing
from dask_tfrecord.cli.read_formats import Selection, open_source
from dask_tfrecord.cli.write_formats import Target, plan_write, write


@click.command("convert")
@click.argument("source", nargs=-1, required=True, metavar="SRC...")
@click.argument("target", metavar="DST")
@click.option(
    "--from", "source_format", type=click.Choice(FORMATS), help="Format of SRC. Default: its names."
)
@click.option(
    "--to",
    "target_format",
    type=click.Choice(FORMATS),
    help="Format of DST. Default: its suffix, or tfrecord for a name without a suffix.",
)
@options.columns
@options.where
@options.reading
@click.option(
    "--null",
    "nulls",
    multiple=True,
    metavar="TEXT",
    help="Text that means null in CSV, such as NA. An empty field is always null. Repeatable.",
)
@click.option(
    "--blocksize",
    metavar="BYTES",
    callback=options.size("none"),
    help='Bytes of SRC that a task reads, such as "64 MiB", or none to read whole files.',
)
@click.option("--append", is_flag=True, help="Add to the data in DST.")
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace the data in DST. The old data stays until the new data is complete.",
)
@click.option(
    "--overwrite-partitions",
    is_flag=True,
    help="Replace only the directories that are written. For TFRecord.",
)
@click.option(
    "--partition-on",
    multiple=True,
    metavar="NAME[,NAME...]",
    callback=options.split_names,
    help="Columns that become directories, such as country=CH. For TFRecord and Parquet.",
)
@click.option("--colocate", is_flag=True, help="Write one file for each directory. For TFRecord.")
@click.option(
    "--compression",
    metavar="CODEC",
    help="TFRecord: gzip, zlib, zstd, lz4, bz2, xz. Parquet: snappy (default), gzip, zstd, lz4, brotli. "
    "Text: gzip, bz2, xz. Or none. Default for TFRecord: dask-tfrecord.compression of Dask's configuration.",
)
@click.option("--shuffle", type=int, metavar="SEED", help="Shuffle all rows. For TFRecord.")
@click.option(
    "--npartitions", type=click.IntRange(1), help="Number of partitions, usually of files, to write."
)
@click.option(
    "--lossy",
    type=click.Choice(["warn", "allow", "raise"]),
    help="What to do if TFRecord rounds 64-bit floats and decimals to 32 bits. Default: "
    "dask-tfrecord.lossy of Dask's configuration, which is warn unless it was changed.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan, and write nothing.")
@options.as_json
@options.computing
@click.pass_context
def convert_command(
    ctx: click.Context,
    /,
    source: tuple[str, ...],
    target: str,
    source_format: Format | None,
    target_format: Format | None,
    columns: list[str] | None,
    where: Any,
    read: dict[str, Any],
    nulls: tuple[str, ...],
    blocksize: Any,
    computing: Computing,
    dry_run: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Convert between TFRecord, Parquet, CSV and JSON lines.

    SRC is a directory, a file, a glob, or several of these. DST is a directory, whatever its suffix. The
    types of CSV and JSON lines are inferred from a sample; a later value of another type is an error.

    The storage options are for both SRC and DST, except for local paths.
    """
    note_paths(ctx, *source, target)
    paths = source[0] if len(source) == 1 else list(source)
    to = target_format or format_of_target(target)
    shared = read.pop("storage_options", None)
    storage_options = options.storage_of(source[0], shared)
    options.check_exclusive(how, "append", "overwrite", "overwrite_partitions")
    selection = Selection(columns, where, nulls, blocksize, None if to == "tfrecord" else False, read)
    destination = Target(target, to, options.storage_of(target, shared), how)
    files: dict[str, int] = {}
    for path in source:
        with suppress(FileNotFoundError):  # the readers know more kinds of paths, and name what is missing
            files |= list_files(path, storage_options)
    format = source_format or format_of_files(files)
    start = time.perf_counter()
    # Planning may also compute: rows, to infer the type of a column, or where the records of a file begin.
    with computing.running("Converting"):
        ddf = open_source(paths, [*files], format, selection, storage_options)
        if dry_run:
            if format == "tfrecord":  # without the files that a snapshot does not list
                found = dask_tfrecord.inspect(paths, storage_options=storage_options, **read)
                files = dict(zip(found.files, found.sizes, strict=True))
            result = {
                "source": format,
                "source_files": len(files),
                "source_bytes": sum(files.values()),
                **plan_write(ddf, [*files], destination),
            }
        else:
            written, rows, size = write(ddf, [*files], destination)
            seconds = time.perf_counter() - start
            result = {
                "files": written,
                "rows": rows,
                "bytes": size,
                "seconds": round(seconds, 1),
                "rows_per_second": round(rows / seconds),
                "bytes_per_second": round(size / seconds),
            }
    if as_json:
        output.print_json(result)
    else:
        output.print_pairs({name.replace("_", " "): _shown(value) for name, value in result.items()})


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {text}" for name, text in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return f"{value:,}" if isinstance(value, int) else value
