"""Serve Arrow IPC streams and write Feather files, for the Arrow datasets of TensorFlow I/O.

Each connection receives one pass over the rows, which a thread sends through a socket or a file descriptor. A
stream that fails ends with a broken message instead of the end-of-stream marker, so that every client raises,
and none mistakes the received rows for all rows. A stream that fails before its first batch sends nothing,
and its client raises because it receives no schema.
"""

import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self, Unpack, get_args

import pyarrow as pa

from dask_tfrecord.dataset.write.destination import refuse_other_files
from dask_tfrecord.errors import Remedy, TFRecordError, check_instance
from dask_tfrecord.feed.batches import Batches
from dask_tfrecord.feed.numpy_columns import checked_fill_nulls
from dask_tfrecord.feed.rows.epoch_order import BATCH_ROWS, Plan, check_batch_size, plan_batches
from dask_tfrecord.feed.tensorflow_io import Client
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import BatchKeywords, BatchMode, DetectedBatchKeywords
from dask_tfrecord.keywords.public_functions import public_function
from dask_tfrecord.storage.store import Store

_KINDS = "'tcp://host:port', 'unix://path' or 'fd://number'"


class ClientLeftError(Exception):
    """Signal that the client has closed its end of the stream."""


@dataclass(eq=False, repr=False)
class Sink:
    """Send a stream to one client, through a socket or a pipe."""

    _number: int
    _connection: socket.socket | None = None

    def send(self, data: memoryview) -> None:
        """Send all bytes of ``data``. Block until the client has received or buffered the bytes."""
        try:
            while data:
                data = data[os.write(self._number, data) :]
        except OSError as error:
            raise ClientLeftError(str(error)) from None

    def interrupt(self) -> None:
        """Make the current and later calls of `send` fail. A write to a pipe cannot be interrupted."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptor. The client receives what was sent, and sees the end of the stream."""
        if self._connection is not None:
            self._connection.close()
        else:
            with suppress(OSError):
                os.close(self._number)


class Listener:
    """Accept the connections of clients. ``endpoint`` contains the actual port number."""

    def __init__(self, endpoint: str) -> None:
        self._closed = False
        self._path: str | None = None
        kind, _, place = endpoint.rpartition("://")
        if kind == "unix":
            self._path = os.path.abspath(place)
            self._socket = _unix_socket(self._path)
            self.endpoint = f"unix://{self._path}"
        else:
            self._socket = _tcp_socket(endpoint, place)
            host, port = self._socket.getsockname()
            self.endpoint = f"tcp://{host}:{port}"

    def accept(self) -> Sink | None:
        """Wait for the next client. Return None if `close` was called."""
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
                # Without this call, `socket.setdefaulttimeout` makes `os.write` non-blocking.
                connection.setblocking(True)
                return Sink(connection.fileno(), connection)
            except OSError:  # the socket was closed, or too many files are open
                time.sleep(0.01)
        return None

    def close(self) -> None:
        """Refuse further clients, and remove the file of a Unix socket."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # this call wakes the thread that waits in `accept`
        self._socket.close()
        if self._path is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path)


def open_endpoint(endpoint: str) -> Listener | Sink:
    kind = endpoint.rpartition("://")[0] if isinstance(endpoint, str) else None
    if kind not in ("", "tcp", "unix", "fd"):
        raise TFRecordError(f"{endpoint!r} is not an endpoint", f"pass {_KINDS}")
    if kind == "fd":
        return Sink(_descriptor(endpoint))
    try:
        return Listener(endpoint)
    except OSError as error:
        raise TFRecordError(
            f"the endpoint {endpoint!r} cannot be opened: {error.strerror or error}",
            "choose another port or path, or pass 'tcp://127.0.0.1:0' to get a free port",
        ) from None


def _tcp_socket(endpoint: str, place: str) -> socket.socket:
    host, colon, port = place.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise TFRecordError(f"{endpoint!r} has no port number from 0 to 65535", "pass 'tcp://host:port'")
    if ":" in host:
        raise TFRecordError(
            f"{endpoint!r} has an IPv6 address, which TensorFlow I/O cannot reach", "pass an IPv4 address"
        )
    address = (host or "127.0.0.1", int(port))
    return socket.create_server(address, family=socket.AF_INET)


def _unix_socket(path: str) -> socket.socket:
    """Return a Unix socket that only the user of this process may connect to."""
    _remove_unused(path)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(path)
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
        server.listen()
    except BaseException:
        server.close()
        raise
    return server


def _remove_unused(path: str) -> None:
    """Remove the Unix socket that a server left at a path, unless it still runs."""
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise FileExistsError(0, "there is a file that is not a socket")
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise FileExistsError(0, "another server listens there")


def _descriptor(endpoint: str) -> int:
    text = endpoint.removeprefix("fd://")
    try:
        number = int(text)
        os.fstat(number)
        os.set_blocking(number, True)
    except (ValueError, OSError):
        raise TFRecordError(
            f"{endpoint!r} is not an open file descriptor", "pass 'fd://1' for the standard output"
        ) from None
    return number


Outcome = Literal["running", "done", "client left", "closed", "failed"]

_LOG = logging.getLogger(__name__)

# `_END` is the end-of-stream marker of Arrow IPC. `_BROKEN` announces a message of 8 bytes that are never
# sent.
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_BROKEN = b"\xff\xff\xff\xff\x08\x00\x00\x00"

# `close` waits up to this many seconds for running passes to end. It then interrupts their sends, and waits
# up to this many seconds again.
_PATIENCE = 2.0


class _ClosedError(Exception):
    """Signal that the server was closed while a pass was running."""


@dataclass
class Pass:
    """Report one pass over the rows of an endpoint. Each pass is sent to one connection.

    Attributes
    ----------
    endpoint : str
        The endpoint to which the client connected.
    number : int
        The number of connections to the endpoint before this connection.
    rows : int
        Number of rows that were sent in this pass.
    outcome : "running", "done", "client left", "closed" or "failed"
        How the pass ended: "client left" if the client disconnected before the end, "closed" if the server
        was closed, and "failed" if reading or converting the rows raised.
    error : Exception, optional
        The error that made the pass fail.
    """

    endpoint: str
    number: int
    rows: int = 0
    outcome: Outcome = "running"
    error: Exception | None = None


class StreamServer:
    """Send the rows of a dataset as Arrow streams. `serve` starts and returns this server.

    Attributes
    ----------
    endpoints : list of str
        The addresses at which clients connect, with the actual port numbers.
    schema : pyarrow.Schema
        The columns of the stream, with the types in which they are sent.
    passes : list of Pass
        The reports of all passes, one for each connection, in the order of the connections.
    """

    def __init__(self, plan: Plan, endpoints: Sequence[str], client: Client) -> None:
        check_instance("plan", plan, Plan)
        check_instance("endpoints", endpoints, list, tuple)
        check_instance("client", client, Client)
        self._plan = plan
        self._client = client
        self._changed = threading.Condition()
        self._closing = False
        self._running: dict[threading.Thread, Sink] = {}
        self._listeners: list[Listener] = []
        self.schema = client.schema
        self.passes: list[Pass] = []
        self.endpoints: list[str] = []
        try:
            opened = []
            for endpoint in endpoints:
                opened.append(one := open_endpoint(endpoint))
                self._listeners += [one] if isinstance(one, Listener) else []
                self.endpoints.append(one.endpoint if isinstance(one, Listener) else endpoint)
        except BaseException:
            self.close()
            raise
        for index, one in enumerate(opened):
            if isinstance(one, Sink):
                self._start(index, one)
            else:
                self._thread(self._accept, index, one).start()

    @property
    def errors(self) -> list[Exception]:
        """The errors of all passes that failed."""
        return [one.error for one in self.passes if one.error is not None]

    def client_code(self, endpoints: Sequence[str] | None = None) -> str:
        """Return Python code that constructs the client's dataset, whose elements are dicts of tensors.

        Parameters
        ----------
        endpoints : list of str, optional
            The addresses at which the client reaches the server, for example through a tunnel. By default,
            those of the server, or ``fd://0``, the standard input of the client, if the server writes to a
            single file descriptor.
        """
        if endpoints is None:
            is_pipe = len(self.endpoints) == 1 and self.endpoints[0].startswith("fd://")
            endpoints = ["fd://0"] if is_pipe else self.endpoints
        return self._client.code("ArrowStreamDataset", "endpoints", endpoints)

    def wait(self, passes: int | None = None) -> None:
        """Wait until a number of passes have ended, with any outcome, or until the server is closed.

        Parameters
        ----------
        passes : int, optional
            The number of passes to wait for. By default, the method waits until the server is closed.
        """

        def is_over() -> bool:
            return self._closing or (passes is not None and self._ended() >= passes)

        with self._changed:
            # A wait without a time limit would ignore an interrupt that arrives just before it.
            while not self._changed.wait_for(is_over, 1):
                pass

    def close(self) -> None:
        """Refuse further clients, and end the running passes after their current batch.

        A client whose pass ends early raises an error.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for listener in self._listeners:
            listener.close()
        if not self._wait_for_passes():
            for sink in list(self._running.values()):
                sink.interrupt()
            self._wait_for_passes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closing else "open"
        return f"StreamServer({self.endpoints}, {state}, {self._ended()} passes ended)"

    def _wait_for_passes(self) -> bool:
        """Wait a few seconds until no pass is running. Return False if any pass remains."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, _PATIENCE)

    def _ended(self) -> int:
        return sum(one.outcome != "running" for one in self.passes)

    def _accept(self, index: int, listener: Listener) -> None:
        while (sink := listener.accept()) is not None:
            self._start(index, sink)

    def _start(self, index: int, sink: Sink) -> None:
        with self._changed:
            if self._closing:
                sink.close()
                return
            endpoint = self.endpoints[index]
            number = sum(one.endpoint == endpoint for one in self.passes)
            one = Pass(endpoint, number)
            self.passes.append(one)
            thread = self._thread(self._run, index, sink, one)
            self._running[thread] = sink
        thread.start()

    def _thread(self, target: Any, *arguments: Any) -> threading.Thread:
        return threading.Thread(target=target, args=arguments, name="dask_tfrecord-serve", daemon=True)

    def _run(self, index: int, sink: Sink, one: Pass) -> None:
        outcome: Outcome = "done"
        try:
            self._send(index, sink, one)
        except (ClientLeftError, _ClosedError):
            outcome = "closed" if self._closing else "client left"
        except Exception as error:
            _LOG.error("the stream on %s failed, and its client raises: %r", one.endpoint, error)
            one.error = error
            outcome = "failed"
        finally:
            sink.close()
            with self._changed:
                one.outcome = outcome
                del self._running[threading.current_thread()]
                self._changed.notify_all()

    def _send(self, index: int, sink: Sink, one: Pass) -> None:
        started = False
        try:
            count = len(self.endpoints)
            # Several endpoints may be in different passes over the rows.
            epoch = one.number if count == 1 else 0
            with Batches(self._plan, epoch, (index, count)) as batches:
                for batch in sent_batches(batches, self._client, may_be_empty=index == 0):
                    if self._closing:
                        raise _ClosedError
                    if not started:  # never send a schema without a batch, because the client would crash
                        sink.send(memoryview(self.schema.serialize()))
                        started = True
                    sink.send(memoryview(batch.serialize()))
                    one.rows += batch.num_rows
            sink.send(memoryview(_END))
        except ClientLeftError:
            raise
        except Exception:
            if started:
                with suppress(ClientLeftError):
                    sink.send(memoryview(_BROKEN))
            raise


def sent_batches(batches: Batches, client: Client, *, may_be_empty: bool) -> Iterator[pa.RecordBatch]:
    """Yield the batches to send, without empty batches.

    If there are no rows, yield one empty batch, or raise if the client would crash.
    """
    is_empty = True
    for batch in batches:
        if batch.num_rows:
            is_empty = False
            yield client.convert(batch)
    if is_empty and not may_be_empty:
        raise TFRecordError(
            "there are no rows to send, and TensorFlow I/O crashes on a file, and on any but the first "
            "endpoint, without rows",
            "use fewer endpoints or a smaller batch_size",
        )
    if is_empty:
        yield pa.RecordBatch.from_pylist([], client.schema)


__all__ = ["FeatherFile", "Pass", "StreamServer", "serve", "write_feather"]


@public_function
def serve(
    source: Any,
    endpoints: str | Sequence[str] = "tcp://127.0.0.1:0",
    *,
    batch_size: int | None = 1024,
    columns: str | Sequence[str] | None = None,
    batch_mode: BatchMode = "keep",
    fill_nulls: Mapping[str, Any] | None = None,
    **keywords: Unpack[BatchKeywords],
) -> "StreamServer":
    """Serve a dataset or a Dask collection to the `ArrowStreamDataset` of TensorFlow I/O.

    The streams are plain Arrow IPC streams, which any Arrow client can read. Dates, times, timestamps and
    durations are sent as integers, and categorical columns as values, not as codes. Tensors are sent as flat
    lists, which the code of `StreamServer.client_code` reshapes.

    Parameters
    ----------
    source : str, path-like, list of these, dask.dataframe.DataFrame or Series
        A path or a collection that `iter_batches` accepts.
    endpoints : str or list of str, default "tcp://127.0.0.1:0"
        The addresses at which clients connect: ``"tcp://host:port"``, ``"host:port"`` or ``"unix://path"``.
        Port 0 means any free port, and an omitted host means 127.0.0.1. With ``"fd://number"``, the server
        writes one pass to an open file descriptor, and then closes it. The rows are divided among several
        endpoints, so a client must read all of them.

        The connection is not encrypted, and anyone who can connect can read the rows. Use hosts other than
        127.0.0.1 only in a network that you trust.
    batch_size : int or None, default 1024
        Number of rows in each element of the client's dataset. If None, each row is an element, so lists may
        have different lengths. The server then sends 1024 rows at a time.
    columns : str or list of str, optional
        The columns to serve, in this order. By default, all columns are served.
    batch_mode : "keep", "drop" or "auto", default "keep"
        What to do if the last batch of an endpoint has fewer rows than ``batch_size``, as in `iter_batches`.
        If the second or a later endpoint has no rows, its pass fails instead of sending an empty stream, on
        which TensorFlow I/O would crash.
    fill_nulls : mapping of str to value, optional
        The value that replaces the nulls of each column. By default, a null raises, because TensorFlow I/O
        has none. In a list column, the value replaces nulls inside the lists, and fills null lists of a fixed
        size. Null lists of variable length become empty.
    shuffle : bool, "buffer" or "blocks", optional
        How the rows are shuffled, as in `iter_batches`. With one endpoint, each pass has a different row
        order. With several, all passes have the same one, because an endpoint does not know which pass the
        client reads from another.
    seed, shuffle_buffer, prefetch, cache, cache_bytes, **read
        These parameters have the same meaning as in `iter_batches`.

    Returns
    -------
    StreamServer
        The running server, which is also a context manager. Each connection receives all rows of its
        endpoint.

    Raises
    ------
    TFRecordError
        If an endpoint cannot be opened, or if `iter_batches` would refuse an argument.
    SchemaError
        If TensorFlow I/O cannot read the type of a column, such as a list of lists or a decimal.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> from dask_tfrecord.feed import stream
    >>> ddf = dd.from_dict({"x": list(range(5)), "y": [0.5] * 5}, npartitions=2)
    >>> _ = dask_tfrecord.to_tfrecord(ddf.astype({"y": "float32"}), "numbers")
    >>> with stream.serve("numbers", "unix://numbers.sock", batch_size=2) as server:
    ...     print(server.client_code(["unix://numbers.sock"]))
    import tensorflow as tf
    import tensorflow_io.arrow as arrow_io
    <BLANKLINE>
    dataset = arrow_io.ArrowStreamDataset(
        endpoints=['unix://numbers.sock'],
        columns=(0, 1),
        output_types=(tf.int64, tf.float32),
        output_shapes=([], []),
        batch_mode='keep_remainder',
        batch_size=2,
    )
    names = ('x', 'y')
    dataset = dataset.map(lambda *columns: dict(zip(names, columns)))
    """
    places: list[Any] = list(endpoints) if isinstance(endpoints, list | tuple) else [endpoints]
    if not places:
        raise TFRecordError("the list of endpoints is empty")
    size, mode = _batching(batch_size, batch_mode)
    plan = plan_batches(source, size, surface=serve, columns=columns, batch_mode=mode, **keywords)
    Batches(plan, 0, (0, len(places)))  # this call raises an error if there are more endpoints than rows
    schema = plan.source.schema.arrow
    client = Client(schema, batch_size, mode, checked_fill_nulls(fill_nulls, schema, fills_lists=True))
    return StreamServer(plan, places, client)


@public_function
def write_feather(
    source: Any,
    path: str | os.PathLike[str],
    *,
    batch_size: int | None = 1024,
    columns: str | Sequence[str] | None = None,
    batch_mode: BatchMode = "keep",
    fill_nulls: Mapping[str, Any] | None = None,
    compression: Literal["lz4", "zstd"] | None = None,
    epoch: int = 0,
    shard: tuple[int, int] = (0, 1),
    **keywords: Unpack[DetectedBatchKeywords],
) -> "FeatherFile":
    """Write a dataset or a Dask collection to a Feather file for the `ArrowFeatherDataset` of TensorFlow I/O.

    The result is an Arrow IPC file (Feather version 2), which pyarrow, pandas and Polars can read. Values are
    converted in the same way as in `serve`. The file becomes visible only when it is complete.

    Parameters
    ----------
    source : str, path-like, list of these, dask.dataframe.DataFrame or Series
        A path or a collection that `iter_batches` accepts.
    path : str or path-like
        The file to write, usually with the suffix ``.feather``. An existing file is replaced.
    batch_size, columns, batch_mode, fill_nulls
        These parameters have the same meaning as in `serve`.
    compression : "lz4", "zstd" or None, default None
        The codec with which the columns are compressed. If None, the columns are not compressed.
    shuffle, seed, shuffle_buffer, epoch, shard, prefetch, cache, cache_bytes, **read
        These parameters have the same meaning as in `iter_batches`, but the codec of the source is always
        detected. ``storage_options`` and ``filesystem`` apply to both the source and ``path``.

    Returns
    -------
    FeatherFile
        The path and the number of rows of the written file, and the code for a client.

    Raises
    ------
    SchemaError
        If TensorFlow I/O cannot read the type of a column, or if a column has nulls and no value in
        ``fill_nulls``.
    TFRecordError
        If `iter_batches` would refuse an argument, or if there are no rows, because TensorFlow I/O crashes on
        a file without rows.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import pyarrow.feather
    >>> from dask_tfrecord.feed import stream
    >>> ddf = dd.from_dict({"x": list(range(5))}, npartitions=2)
    >>> stream.write_feather(ddf, "numbers.feather").rows
    5
    >>> pyarrow.feather.read_table("numbers.feather")["x"].to_pylist()
    [0, 1, 2, 3, 4]
    """
    arguments.choice("compression", compression, ("lz4", "zstd", None))
    size, mode = _batching(batch_size, batch_mode)
    plan = plan_batches(source, size, surface=write_feather, columns=columns, batch_mode=mode, **keywords)
    batches = Batches(plan, epoch, shard)
    filled = checked_fill_nulls(fill_nulls, batches.schema, fills_lists=True)
    client = Client(batches.schema, batch_size, mode, filled)
    store = Store.at(path, keywords.get("storage_options"), keywords.get("filesystem"))
    refuse_other_files(store)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    rows = 0
    with (
        batches,
        store.create(store.root) as file,
        pa.ipc.new_file(file, client.schema, options=options) as writer,
    ):
        for batch in sent_batches(batches, client, may_be_empty=False):
            writer.write_batch(batch)
            rows += batch.num_rows
    return FeatherFile(store.public(), rows, client)


@dataclass(frozen=True)
class FeatherFile:
    """A Feather file that `write_feather` wrote.

    Attributes
    ----------
    path : str
        The path of the file.
    rows : int
        The number of its rows.
    client : Client
        The columns that the client receives, and how it batches the rows.
    """

    path: str
    rows: int
    client: Client = field(repr=False)

    def client_code(self) -> str:
        """Return Python code that constructs the client's dataset, whose elements are dicts of tensors."""
        return self.client.code("ArrowFeatherDataset", "filenames", [self.path])


def _batching(batch_size: int | None, batch_mode: BatchMode) -> tuple[int, BatchMode]:
    """Return the number of rows in each sent batch, and the batch mode."""
    if batch_size is None:
        if arguments.choice("batch_mode", batch_mode, get_args(BatchMode)) == "drop":
            problem = "batch_mode='drop' has no effect with batch_size=None, because each row is an element"
            raise TFRecordError(problem, Remedy("batch_mode", "keep", "send all rows"))
        return BATCH_ROWS, batch_mode
    check_batch_size(batch_size, batch_mode)
    return batch_size, batch_mode
