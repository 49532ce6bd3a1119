"""Implement the commands `verify`, `index`, `cleanup`, `export` and `serve`."""

import errno
import json
import os
import signal
import threading
import time
from typing import Any

import click
from fsspec.core import url_to_fs

import dask_tfrecord
from dask_tfrecord.cli import options, output
from dask_tfrecord.cli.failures import DAMAGED
from dask_tfrecord.cli.progress import Computing

# Number of seconds that a Flight server waits for its clients after an interrupt.
_PATIENCE = 3.0

_record_type = click.option(
    "--record-type",
    type=click.Choice(["infer", "example", "sequence_example", "bytes"]),
    default="infer",
    show_default=True,
    help="Message in each record. bytes accepts every payload.",
)


@click.command("verify")
@options.paths
@_record_type
@options.as_json
@options.storage_options
@options.computing
@click.pass_context
def verify_command(ctx: click.Context, /, as_json: bool, computing: Computing, **how: Any) -> None:
    """Read all files, and report damage and differences.

    Differences are those from the snapshot, and features that do not fit their columns. The exit code
    is 3 if anything is wrong, and 0 if all files are intact.
    """
    start = time.perf_counter()
    with computing.running("Verifying"):
        report = dask_tfrecord.verify(**how)
    files = json.loads(report.to_json(orient="records"))
    wrong = [file for file in files if file["damaged"] or file["drift"] or file["agrees"] is False]
    totals = {
        "files": len(files),
        "rows": sum(file["records"] for file in files),
        "bytes": sum(file["bytes"] for file in files),
        "files_with_problems": len(wrong),
    }
    if as_json:
        output.print_json({**totals, "problems": wrong})
    else:
        for file in wrong:
            output.print_lines([f"{file['path']}: {'; '.join(_problems(file))}"])
        output.print_lines([_summary(totals, time.perf_counter() - start)])
    ctx.exit(DAMAGED if wrong else 0)


def _problems(file: dict[str, Any]) -> list[str]:
    """Describe in words each problem of a verified file."""
    found = []
    if file["damaged"]:
        found.append(
            f"{file['damaged']:,} damaged, {file['records']:,} intact records; the first damage is at byte "
            f"{file['offset']:,}: {file['reason']}"
        )
    if file["drift"]:
        found.append(file["drift"])
    if file["agrees"] is False:
        found.append(f"differs from the snapshot: {file['differs']}")
    return found


def _summary(totals: dict[str, int], seconds: float) -> str:
    files, rows, size, wrong = totals.values()
    verdict = f"{wrong:,} of {files:,} files have problems" if wrong else f"all {files:,} files are intact"
    rates = f"{rows / seconds:,.0f} rows/s, {size / seconds / 1e6:,.1f} MB/s"
    return f"{verdict}, {rows:,} rows, {size:,} bytes in {seconds:.1f} s ({rates})"


@click.command("index")
@options.path
@options.types
@_record_type
@click.option(
    "--missing",
    type=click.Choice(["raise", "drop"]),
    default="raise",
    show_default=True,
    help="Files of the dataset that do not exist. drop: store a snapshot without them and their rows.",
)
@click.option(
    "--split",
    type=click.Choice(["all"]),
    help="Store the split of each file as a column, for several splits of TensorFlow Datasets or TFX.",
)
@options.as_json
@options.storage_options
@options.computing
def index_command(types: Any, as_json: bool, computing: Computing, **how: Any) -> None:
    """Store a snapshot of files that another tool wrote.

    The command reads all files of the directory. Reading the directory then needs no inference, and
    skips files that no filter can match. The data files
    are not changed. Run the command again after files were added, removed or rewritten.
    """
    with computing.running("Indexing"):
        snapshot = dask_tfrecord.index(schema=types, **how)
    totals = {
        "version": snapshot.number,
        "files": len(snapshot.files),
        "rows": snapshot.records,
        "bytes": snapshot.bytes,
    }
    if as_json:
        output.print_json(
            {**totals, "columns": {item.name: str(item.type) for item in snapshot.columns.fields}}
        )
    else:
        output.print_pairs(totals)
        output.print_lines([""])
        described = dask_tfrecord.inspect(how["path"], storage_options=how["storage_options"])
        rows = [(column.name, column.type, column.feature) for column in described.columns]
        output.print_table(["column", "type", "feature"], rows, cut="type")


@click.command("cleanup")
@options.path
@click.option(
    "--older-than",
    default="1 day",
    show_default=True,
    metavar="DURATION",
    help='Age of the newest file of a write, such as "12 hours". Younger writes may still be running.',
)
@click.option("--dry-run", is_flag=True, help="Print the files, and remove nothing.")
@options.as_json
@options.storage_options
def cleanup_command(path: str, older_than: str, dry_run: bool, as_json: bool, storage_options: Any) -> None:
    """Remove the files of interrupted writes.

    A client that was killed leaves such files. Files that a snapshot lists, and files of other tools,
    are kept.
    """
    removed = dask_tfrecord.cleanup(
        path, older_than=older_than, dry_run=dry_run, storage_options=storage_options
    )
    fs, root = url_to_fs(path, **(storage_options or {}))
    # An unfinished upload may be all that there is, so the path is checked last.
    if not removed and not fs.exists(root):
        raise FileNotFoundError(errno.ENOENT, "no such directory", root)
    if as_json:
        output.print_json({"removed": removed, "dry_run": dry_run})
    else:
        verb = "would be removed" if dry_run else "removed"
        output.print_lines([*removed, f"{len(removed):,} files {verb}"])


@click.command("export")
@options.path
@click.option(
    "--format",
    type=click.Choice(["idx", "tfds", "tfmd"]),
    required=True,
    help="idx: the offsets of the records, for NVIDIA DALI. tfds: for TensorFlow Datasets. tfmd: "
    "schema.pbtxt, for TFX.",
)
@options.as_json
@options.storage_options
def export_command(path: str, format: Any, as_json: bool, storage_options: Any) -> None:
    """Describe a dataset to another library, by files beside the data."""
    files = dask_tfrecord.export(path, format, storage_options=storage_options)
    if as_json:
        output.print_json({"files": files})
    else:
        output.print_lines(files)


@click.command("serve")
@options.path
@click.option(
    "--protocol",
    type=click.Choice(["stream", "flight"]),
    default="stream",
    show_default=True,
    help="stream: Arrow IPC streams, for TensorFlow I/O and others. flight: Arrow Flight.",
)
@click.option(
    "--to",
    "address",
    metavar="ADDRESS",
    help="Where clients connect, such as tcp://127.0.0.1:9000, unix:///tmp/train.sock or, with --protocol "
    "flight, grpc://127.0.0.1:9000. Default: a free port of this host. Nothing is encrypted.",
)
@options.columns
@click.option(
    "--batch-size", type=click.IntRange(1), default=1024, show_default=True, help="Rows of a batch."
)
@click.option("--shuffle", type=click.IntRange(0), metavar="SEED", help="Seed of a random order.")
@click.option("--passes", type=click.IntRange(1), help="End after this number of passes. Not with flight.")
@options.types
@options.storage_options
def serve_command(
    path: str, protocol: str, address: str | None, passes: int | None, types: Any, **how: Any
) -> None:
    """Serve the rows to other processes as Arrow streams.

    The server runs until the command is interrupted. The address is printed first, then code for a client.
    """
    how["schema"] = types
    if protocol == "flight":
        if passes is not None:
            raise click.UsageError("--passes is for --protocol stream")
        _serve_flight(path, address, how)
    else:
        _serve_stream(path, address, passes, how)


def _serve_stream(path: str, address: str | None, passes: int | None, how: dict[str, Any]) -> None:
    from dask_tfrecord.feed import stream

    with stream.serve(path, address or "tcp://127.0.0.1:0", **how) as server:
        output.print_lines([*server.endpoints, *server.client_code().split("\n")])
        server.wait(passes)
        if server.errors:
            raise server.errors[0]


def _serve_flight(path: str, address: str | None, how: dict[str, Any]) -> None:
    from dask_tfrecord.feed import flight  # not all builds of pyarrow have Flight

    server = flight.serve(path, address or "grpc://127.0.0.1:0", **how)
    try:
        code = f"pyarrow.flight.connect({server.location!r})"
        output.print_lines([server.location, code])
        # Until an interrupt, which the server's own method would not see. A wait without a limit would not
        # see an interrupt that comes just before it.
        while not threading.Event().wait(1):
            pass
    finally:
        _close_flight(server)


def _close_flight(server: Any) -> None:
    """Close the server, or end this process: pyarrow cannot end the stream of a client that does not read."""
    closing = threading.Thread(target=server.__exit__, args=(None, None, None), daemon=True)
    closing.start()
    closing.join(_PATIENCE)
    if closing.is_alive():
        click.echo("Interrupted. A client has not read its stream to the end.", err=True)
        os._exit(128 + signal.SIGINT)  # as every interrupted command exits
