"""Serve a dataset over Arrow Flight. The server sends values of every Arrow type, and nulls, unchanged."""

import json
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Unpack
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from dask_tfrecord.errors import TFRecordError, check_instance
from dask_tfrecord.feed.batches import Batches
from dask_tfrecord.feed.rows.epoch_order import BATCH_ROWS, Plan, check_batch_size, plan_batches
from dask_tfrecord.keywords.arguments import BatchKeywords, BatchMode
from dask_tfrecord.keywords.public_functions import public_function


@public_function
def serve(
    source: Any,
    location: str = "grpc://127.0.0.1:0",
    *,
    shards: int = 1,
    batch_size: int = BATCH_ROWS,
    columns: str | Sequence[str] | None = None,
    batch_mode: BatchMode = "keep",
    **keywords: Unpack[BatchKeywords],
) -> "FlightServer":
    """Start an Arrow Flight server that serves a dataset or a Dask collection.

    The flight info of any path has the endpoints of epoch 0, one for each shard. That of the JSON command
    ``{"epoch": 3}`` has the endpoints of epoch 3.

    Parameters
    ----------
    source : str, path-like, list of these, dask.dataframe.DataFrame or Series
        A path or a collection that `iter_batches` accepts.
    location : str, default "grpc://127.0.0.1:0"
        The address at which clients connect. Port 0 means any free port. The connection is not encrypted, and
        anyone who can connect can read the rows. Use a host other than 127.0.0.1 only in a network that you
        trust.
    shards : int, default 1
        The number of shards into which the rows are divided. Each shard has its own endpoint.
    batch_size, columns, batch_mode, shuffle, seed, shuffle_buffer, prefetch, cache, cache_bytes, **read
        These parameters have the same meaning as in `iter_batches`.

    Returns
    -------
    FlightServer
        The running Flight server, which is also a context manager.

    Raises
    ------
    TFRecordError
        If the location cannot be opened, or if `iter_batches` would refuse an argument.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> from dask_tfrecord.feed import flight
    >>> from pyarrow.flight import FlightDescriptor, connect
    >>> ddf = dd.from_dict({"x": list(range(5))}, npartitions=2)
    >>> with flight.serve(ddf) as server, connect(server.location) as client:
    ...     info = client.get_flight_info(FlightDescriptor.for_path("numbers"))
    ...     client.do_get(info.endpoints[0].ticket).read_all()["x"].to_pylist()
    [0, 1, 2, 3, 4]
    """
    check_instance("location", location, str)
    check_batch_size(batch_size, batch_mode)
    plan = plan_batches(source, batch_size, surface=serve, columns=columns, batch_mode=batch_mode, **keywords)
    Batches(plan, 0, (0, shards))  # this call raises an error if there are more shards than rows
    try:
        return FlightServer(plan, location, shards)
    except (pa.ArrowException, OSError) as error:
        raise TFRecordError(
            f"the location {location!r} cannot be opened: {_reason(location) or error}",
            "choose another port, or pass 'grpc://127.0.0.1:0' to get a free port",
        ) from None


def _reason(location: str) -> str | None:
    """Return why the operating system refuses an address, or None.

    gRPC prints the reason, but does not include it in the error.
    """
    try:
        address = urlsplit(location)
        if not address.scheme.startswith("grpc") or address.scheme.endswith("unix"):
            return None
        family = socket.AF_INET6 if ":" in (address.hostname or "") else socket.AF_INET
        socket.create_server((address.hostname or "", address.port or 0), family=family).close()
    except OSError as error:
        return error.strerror
    except ValueError:  # the host or the port is not valid, which pyarrow reports
        return None
    return None


class FlightServer(flight.FlightServerBase):
    """Serve the shards of a dataset over Arrow Flight. `serve` starts and returns this server.

    Attributes
    ----------
    location : str
        The address at which clients connect, with the actual port number.
    """

    def __init__(self, plan: Plan, location: str, shards: int) -> None:
        check_instance("plan", plan, Plan)
        check_instance("location", location, str)
        super().__init__(location)
        self._plan = plan
        self._shards = shards
        self._schema = plan.source.schema.arrow
        address, _, _ = location.rpartition(":")
        # The address of a Unix socket has no port.
        self.location = f"{address}:{self.port}" if self.port >= 0 else location

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        yield self._info(flight.FlightDescriptor.for_path("dataset"), 0)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        if descriptor.descriptor_type == flight.DescriptorType.PATH:
            return self._info(descriptor, 0)
        (epoch,) = _numbers(descriptor.command, ("epoch",))
        return self._info(descriptor, epoch)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        return flight.SchemaResult(self._schema)

    def do_get(self, context: Any, ticket: Any) -> Any:
        index, epoch = _numbers(ticket.ticket, ("shard", "epoch"))
        if index >= self._shards:
            raise flight.FlightServerError(f"there is no shard {index}, the server has {self._shards} shards")
        batches = Batches(self._plan, epoch, (index, self._shards))
        return flight.GeneratorStream(self._schema, _closing(batches))

    def _info(self, descriptor: Any, epoch: int) -> Any:
        tickets = [json.dumps({"shard": index, "epoch": epoch}) for index in range(self._shards)]
        endpoints = [flight.FlightEndpoint(ticket, [self.location]) for ticket in tickets]
        rows = Batches(self._plan).rows
        return flight.FlightInfo(self._schema, descriptor, endpoints, -1 if rows is None else rows, -1)


def _closing(batches: Batches) -> Iterator[pa.RecordBatch]:
    with batches:
        yield from batches


def _numbers(text: bytes, names: Sequence[str]) -> list[int]:
    """Return the named non-negative integers from a JSON object that a client sent."""
    try:
        given = json.loads(text)
        found = [given[name] for name in names]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = []
    if not found or not all(type(one) is int and one >= 0 for one in found):
        expected = json.dumps(dict.fromkeys(names, 0))
        raise flight.FlightServerError(f"{text!r} is not understood; send JSON such as {expected}")
    return found
