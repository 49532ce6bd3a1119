"""Implement the command `serve`, which sends the rows of a dataset to other processes."""

import os
import signal
import threading
from typing import Any

import click

import dask_tfrecord
from dask_tfrecord.cli import options, output

# How many seconds a Flight server waits for its clients after an interrupt.
_PATIENCE = 3.0


@options.command(
    "serve",
    options.PATH,
    click.Option(
        ["--to", "address"],
        metavar="ADDRESS",
        default="tcp://127.0.0.1:0",
        show_default=True,
        help="Where clients connect. tcp://127.0.0.1:9000 or unix:///tmp/train.sock: Arrow IPC streams, for "
        "TensorFlow I/O and others. grpc://127.0.0.1:9000: Arrow Flight. Port 0 is any free port. Nothing is "
        "encrypted.",
    ),
    *options.of(dask_tfrecord.feed.iter_batches, "batch_size", "shuffle", "seed"),
    click.Option(
        ["--passes"], type=click.IntRange(1), help="End after this number of passes. Not with grpc."
    ),
    *options.READ,
    examples=["images --columns image,label", "images --shuffle buffer --to unix:///tmp/train.sock"],
)
def serve_command(path: str, address: str, passes: int | None = None, **how: Any) -> None:
    """The server runs until the command is interrupted. The command prints the address of the server, and
    then code for a client.
    """
    if address.startswith("grpc"):
        if passes is not None:
            raise click.UsageError("--passes is for the addresses tcp:// and unix://")
        _serve_flight(path, address, how)
    else:
        _serve_stream(path, address, passes, how)


def _serve_stream(path: str, address: str, passes: int | None, how: dict[str, Any]) -> None:
    from dask_tfrecord.feed import stream

    with stream.serve(path, address, **how) as server:
        output.print_lines([*server.endpoints, *server.client_code().split("\n")])
        server.wait(passes)
        if server.errors:
            raise server.errors[0]


def _serve_flight(path: str, address: str, how: dict[str, Any]) -> None:
    from dask_tfrecord.feed import flight  # some builds of pyarrow do not include Flight

    server = flight.serve(path, address, **how)
    try:
        code = f"pyarrow.flight.connect({server.location!r})"
        output.print_lines([server.location, code])
        # Wait in a loop that Ctrl+C interrupts. The method `wait` of the server ignores Ctrl+C. A wait
        # without a time limit would miss a Ctrl+C that comes just before it.
        while not threading.Event().wait(1):
            pass
    finally:
        _close_flight(server)


def _close_flight(server: Any) -> None:
    """Close the server.

    If a client does not read its stream, end the process, because pyarrow cannot end it.
    """
    closing = threading.Thread(target=server.__exit__, args=(None, None, None), daemon=True)
    closing.start()
    closing.join(_PATIENCE)
    if closing.is_alive():
        click.echo("Interrupted. A client has not read its stream to the end.", err=True)
        os._exit(128 + signal.SIGINT)  # every interrupted command exits with this code
