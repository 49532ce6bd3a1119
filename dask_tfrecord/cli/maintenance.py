"""Implement the commands `verify`, `add-snapshot`, `cleanup`, `export` and `serve`."""

import json
import os
import signal
import threading
import time
from typing import Any

import click

import dask_tfrecord
from dask_tfrecord.cli import options, output
from dask_tfrecord.cli.compute import computing
from dask_tfrecord.cli.failures import DAMAGED

# How many seconds a Flight server waits for its clients after an interrupt.
_PATIENCE = 3.0

_SPLIT = (
    "Pass it if a directory of TensorFlow Datasets or TFX also contains files of no split. The column split "
    "of these files is null."
)


@options.command(
    "verify",
    options.PATHS,
    *options.of(dask_tfrecord.read_tfrecord, "record_type", "storage_options"),
    options.JSON,
    *options.COMPUTING,
)
def verify_command(path: Any, as_json: bool, **how: Any) -> None:
    """A difference is a file that differs from the snapshot, or a feature that does not fit its column. The
    exit code is 3 if a file is damaged or differs, and 0 if all files are intact.
    """
    start = time.perf_counter()
    with computing("Verifying"):
        report = dask_tfrecord.open_dataset(path, **how).verify()
    files = json.loads(report.to_json(orient="records"))
    wrong = [file for file in files if file["damaged"] or file["drift"] or file["agrees"] is False]
    totals = {
        "files": len(files),
        "rows": sum(file["rows"] for file in files),
        "bytes": sum(file["bytes"] for file in files),
        "files_with_problems": len(wrong),
    }
    lines = [f"{file['path']}: {'; '.join(_problems(file))}" for file in wrong]
    lines.append(_summary(totals, time.perf_counter() - start))
    output.print_result({**totals, "problems": wrong}, lines, as_json)
    click.get_current_context().exit(DAMAGED if wrong else 0)


def _problems(file: dict[str, Any]) -> list[str]:
    found = []
    if file["damaged"]:
        found.append(
            f"{file['damaged']:,} damaged, {file['rows']:,} intact records; the first damage is at byte "
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


@options.command(
    "add-snapshot",
    options.PATH,
    *options.of(dask_tfrecord.read_tfrecord, "schema", "hive", "record_type"),
    click.Option(["--split"], type=click.Choice(["all"]), help=_SPLIT),
    *options.of(dask_tfrecord.Dataset.add_snapshot),
    *options.STORE,
    options.JSON,
    *options.COMPUTING,
)
def add_snapshot_command(path: str, as_json: bool, **how: Any) -> None:
    """The command reads all files of the directory. Reading the directory then needs no inference, and skips
    files that no filter can match. The command does not change the data files. Run the command again after
    files were added, removed or rewritten.
    """
    store = {name: how[name] for name in ("storage_options",) if name in how}
    with computing("Indexing"):
        dataset = options.opened(path, how, "schema", "hive", "record_type", "split")
        done = dataset.add_snapshot(**how)
    totals = {"version": done.version, "files": done.files, "rows": done.rows, "bytes": done.bytes}
    dataset = dask_tfrecord.open_dataset(path, **store)
    if as_json:
        types = {item.name: str(item.type) for item in dataset.schema}
        output.print_json({**totals, "columns": types})
    else:
        output.print_pairs(totals)
        output.print_lines([""])
        rows = [(name, row["type"], row["feature"]) for name, row in dataset.statistics.iterrows()]
        output.print_table(["column", "type", "feature"], rows, cut="type")


@options.command(
    "cleanup", options.PATH, *options.of(dask_tfrecord.Dataset.cleanup), *options.STORE, options.JSON
)
def cleanup_command(path: str, as_json: bool, dry_run: bool = False, **how: Any) -> None:
    """A write whose client was killed leaves such files. Files that a snapshot lists, and files of other
    tools, are kept.
    """
    removed = options.opened(path, how).cleanup(dry_run=dry_run, **how)
    lines = [*removed, f"{len(removed):,} files {'would be removed' if dry_run else 'removed'}"]
    output.print_result({"removed": removed, "dry_run": dry_run}, lines, as_json)


@options.command(
    "export", options.PATH, *options.of(dask_tfrecord.Dataset.export, "format"), *options.STORE, options.JSON
)
def export_command(path: str, as_json: bool, **how: Any) -> None:
    files = options.opened(path, how).export(**how)
    output.print_result({"files": files}, files, as_json)


@options.command(
    "serve",
    options.PATH,
    click.Option(
        ["--protocol"],
        type=click.Choice(["stream", "flight"]),
        default="stream",
        show_default=True,
        help="stream: Arrow IPC streams, for TensorFlow I/O and others. flight: Arrow Flight.",
    ),
    click.Option(
        ["--to", "address"],
        metavar="ADDRESS",
        help="Where clients connect, such as tcp://127.0.0.1:9000, unix:///tmp/train.sock or, with "
        "--protocol flight, grpc://127.0.0.1:9000. Default: a free port of this host. Nothing is encrypted.",
    ),
    *options.of(dask_tfrecord.feed.iter_batches, "batch_size", "shuffle", "seed"),
    click.Option(
        ["--passes"], type=click.IntRange(1), help="End after this number of passes. Not with flight."
    ),
    *options.READ,
)
def serve_command(
    path: str, protocol: str, address: str | None = None, passes: int | None = None, **how: Any
) -> None:
    """The server runs until the command is interrupted. The command prints the address of the server, and
    then code for a client.
    """
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
    from dask_tfrecord.feed import flight  # some builds of pyarrow do not have Flight

    server = flight.serve(path, address or "grpc://127.0.0.1:0", **how)
    try:
        code = f"pyarrow.flight.connect({server.location!r})"
        output.print_lines([server.location, code])
        # This loop waits for an interrupt, which the server's own method of waiting would not notice. A wait
        # without a time limit would not notice an interrupt just before the wait.
        while not threading.Event().wait(1):
            pass
    finally:
        _close_flight(server)


def _close_flight(server: Any) -> None:
    """Close the server. End the process instead if a client does not read: pyarrow cannot end its stream."""
    closing = threading.Thread(target=server.__exit__, args=(None, None, None), daemon=True)
    closing.start()
    closing.join(_PATIENCE)
    if closing.is_alive():
        click.echo("Interrupted. A client has not read its stream to the end.", err=True)
        os._exit(128 + signal.SIGINT)  # this is the exit code of every interrupted command
