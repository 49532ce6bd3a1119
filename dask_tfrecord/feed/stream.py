"""Arrow IPC streams on sockets, and Feather files, for the Arrow datasets of TensorFlow I/O.

A stream that fails ends with a broken message instead of the end-of-stream marker, so that every client
raises instead of taking the rows that it received for all rows.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

import pyarrow as pa

from dask_tfrecord.errors import FileChangedError, TFRecordError
from dask_tfrecord.feed.batches import Batches, BatchMode, iter_batches
from dask_tfrecord.feed.endpoints import ClientLeftError, DescriptorSink, Listener, Sink, open_endpoint
from dask_tfrecord.feed.tensorflow_io import Client
from dask_tfrecord.files.storage.store import Store

Outcome = Literal["running", "done", "client left", "closed", "failed"]

_LOG = logging.getLogger(__name__)

# The end-of-stream marker of Arrow IPC, and the start of a message whose 8 bytes never follow.
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_BROKEN = b"\xff\xff\xff\xff\x08\x00\x00\x00"

# Rows of a batch for clients that read single rows.
_ROWS = 1024

# Seconds that `close` waits for a batch that is being sent, and then for a batch that is being read.
_PATIENCE = 2.0


class _ClosedError(Exception):
    """The server was closed while a pass was running."""


@dataclass
class Pass:
    """One pass over the rows of an endpoint, for one connection.

    Attributes
    ----------
    endpoint : str
        The endpoint that the client connected to.
    number : int
        How many connections the endpoint had before.
    rows : int
        Number of rows that were sent.
    outcome : "running", "done", "client left", "closed" or "failed"
        "client left" if the client disconnected before the end, "closed" if the server was closed, "failed"
        if reading or converting the rows raised.
    error : Exception, optional
        The error of a pass that failed.
    """

    endpoint: str
    number: int
    rows: int = 0
    outcome: Outcome = "running"
    error: Exception | None = None


def serve(
    source: Any,
    endpoints: str | Sequence[str] = "tcp://127.0.0.1:0",
    *,
    batch_size: int | None = 1024,
    columns: str | Sequence[str] | None = None,
    batch_mode: BatchMode = "keep",
    fill_nulls: Mapping[str, Any] | None = None,
    shuffle: int | None = None,
    shuffle_buffer: int = 65_536,
    prefetch: int = 2,
    schema: Any = None,
    storage_options: dict[str, Any] | None = None,
) -> "StreamServer":
    """Serve a dataset or a Dask collection to the `ArrowStreamDataset` of TensorFlow I/O.

    The streams are plain Arrow IPC streams, which other clients can read, too. Dates, times, timestamps and
    durations are sent as integers, categories as their values, and tensors as flat lists, which the printed
    code reshapes.

    Parameters
    ----------
    source : str, path-like, list of these, dask.dataframe.DataFrame or Series
        What `iter_batches` takes.
    endpoints : str or list of str, default "tcp://127.0.0.1:0"
        Where clients connect: ``"tcp://host:port"`` or ``"host:port"`` (port 0 takes a free port),
        ``"unix://path"``, or ``"fd://number"`` to write one pass to an open file descriptor, which is closed
        at the end of the pass. An omitted host means 127.0.0.1. Nothing is encrypted, and whoever can connect
        can read the rows, so use other hosts only in a network that you trust. Several endpoints share the
        rows: a client reads all of the endpoints to get all rows.
    batch_size : int or None, default 1024
        Number of rows of an element of the client's dataset. With None every row is an element, which allows
        lists of different lengths.
    columns : str or list of str, optional
        The columns to serve, in this order. All columns by default.
    batch_mode : "keep", "drop" or "auto", default "keep"
        What happens to the last rows of an endpoint, as in `iter_batches`. A pass of the second or a later
        endpoint fails if it has no rows, because the client would crash.
    fill_nulls : mapping of str to value, optional
        The value that replaces the nulls of a column. For a list column: the nulls inside its lists, and all
        values of a null list of a fixed size; another null list becomes empty. By default a null is an error,
        because TensorFlow I/O has no nulls.
    shuffle : int, optional
        Seed of a random order. One endpoint has another order in each pass. Several endpoints have the same
        order in all passes, because an endpoint cannot know which pass of another endpoint its client reads.
    shuffle_buffer, prefetch, schema, storage_options
        As in `iter_batches`.

    Returns
    -------
    StreamServer
        The running server, which is a context manager. Each connection gets all rows of its endpoint.

    Raises
    ------
    TFRecordError
        For an endpoint that cannot be opened, and for all that `iter_batches` refuses.
    SchemaError
        For a column of a type that TensorFlow I/O cannot read, such as a list of lists or a decimal.

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

    def open_batches(index: int, epoch: int) -> Batches:
        return iter_batches(
            source,
            size,
            columns=columns,
            batch_mode=mode,
            shuffle=shuffle,
            shuffle_buffer=shuffle_buffer,
            epoch=epoch if len(places) == 1 else 0,
            shard=(index, len(places)),
            prefetch=prefetch,
            schema=schema,
            storage_options=storage_options,
        )

    first = open_batches(0, 0)
    client = Client(first.schema, batch_size, mode, dict(fill_nulls or {}))
    return StreamServer(open_batches, places, client, first.state["source"])


def write_feather(
    source: Any,
    path: str | os.PathLike[str],
    *,
    batch_size: int | None = 1024,
    columns: str | Sequence[str] | None = None,
    batch_mode: BatchMode = "keep",
    fill_nulls: Mapping[str, Any] | None = None,
    compression: Literal["lz4", "zstd"] | None = None,
    shuffle: int | None = None,
    shuffle_buffer: int = 65_536,
    epoch: int = 0,
    shard: tuple[int, int] = (0, 1),
    prefetch: int = 2,
    schema: Any = None,
    storage_options: dict[str, Any] | None = None,
) -> "FeatherFile":
    """Write a dataset or a Dask collection to a Feather file for the `ArrowFeatherDataset` of TensorFlow I/O.

    The file is an Arrow IPC file (Feather version 2), which pyarrow, pandas and Polars can read. Values are
    converted as in `serve`. The file appears when it is complete.

    Parameters
    ----------
    source : str, path-like, list of these, dask.dataframe.DataFrame or Series
        What `iter_batches` takes.
    path : str or path-like
        The file to write, usually with the suffix ``.feather``. An existing file is replaced.
    batch_size, columns, batch_mode, fill_nulls
        As in `serve`.
    compression : "lz4", "zstd" or None, default None
        Compression of the columns.
    shuffle, shuffle_buffer, epoch, shard, prefetch, schema
        As in `iter_batches`.
    storage_options : dict, optional
        Passed to the filesystems of the source and of ``path``, such as credentials.

    Returns
    -------
    FeatherFile
        The path and the number of rows, with the code for a client.

    Raises
    ------
    SchemaError
        For a column of a type that TensorFlow I/O cannot read, and for nulls without ``fill_nulls``.
    TFRecordError
        For all that `iter_batches` refuses, and for no rows, because TensorFlow I/O crashes on such a file.

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
    if compression not in (None, "lz4", "zstd"):
        raise TFRecordError(f"unknown compression {compression!r}", advice="known are 'lz4', 'zstd' and None")
    size, mode = _batching(batch_size, batch_mode)
    batches = iter_batches(
        source,
        size,
        columns=columns,
        batch_mode=mode,
        shuffle=shuffle,
        shuffle_buffer=shuffle_buffer,
        epoch=epoch,
        shard=shard,
        prefetch=prefetch,
        schema=schema,
        storage_options=storage_options,
    )
    client = Client(batches.schema, batch_size, mode, dict(fill_nulls or {}))
    store = Store.at(path, storage_options)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    rows = 0
    with (
        batches,
        store.create(store.root) as file,
        pa.ipc.new_file(file, client.schema, options=options) as writer,
    ):
        for batch in _sent(batches, client, may_be_empty=False):
            writer.write_batch(batch)
            rows += batch.num_rows
    return FeatherFile(store.public(store.root), rows, client)


@dataclass(frozen=True)
class FeatherFile:
    """A file that `write_feather` wrote.

    Attributes
    ----------
    path : str
        The file.
    rows : int
        Number of its rows.
    client : Client
        The columns and the batches of the client.
    """

    path: str
    rows: int
    client: Client = field(repr=False)

    def client_code(self) -> str:
        """Python code that constructs the client's dataset, which has dicts of tensors as elements."""
        return self.client.code("ArrowFeatherDataset", "filenames", [self.path])


class StreamServer:
    """A running server of Arrow streams, which `serve` starts.

    Attributes
    ----------
    endpoints : list of str
        The addresses for clients, with the number of the port that the system chose.
    schema : pyarrow.Schema
        The columns as they are sent.
    passes : list of Pass
        One entry for each connection, in the order of connecting.
    """

    def __init__(
        self,
        open_batches: Callable[[int, int], Batches],
        endpoints: Sequence[str],
        client: Client,
        fingerprint: str,
    ) -> None:
        self._open_batches = open_batches
        self._client = client
        self._fingerprint = fingerprint
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
                opened.append(open_endpoint(endpoint))
                listener = opened[-1]
                if isinstance(listener, Listener):
                    self._listeners.append(listener)
                self.endpoints.append(listener.endpoint if isinstance(listener, Listener) else endpoint)
        except BaseException:
            self.close()
            raise
        for index, one in enumerate(opened):
            if isinstance(one, DescriptorSink):
                self._start(index, one)
            else:
                self._thread(self._accept, index, one).start()

    @property
    def errors(self) -> list[Exception]:
        """The errors of the passes that failed."""
        return [one.error for one in self.passes if one.error is not None]

    def client_code(self, endpoints: Sequence[str] | None = None) -> str:
        """Python code that constructs the client's dataset, which has dicts of tensors as elements.

        Parameters
        ----------
        endpoints : list of str, optional
            The addresses under which the client reaches the server, for example through a tunnel. By default
            those of the server, and ``fd://0``, its standard input, for a server that writes to one file
            descriptor.
        """
        if endpoints is None:
            is_pipe = len(self.endpoints) == 1 and self.endpoints[0].startswith("fd://")
            endpoints = ["fd://0"] if is_pipe else self.endpoints
        return self._client.code("ArrowStreamDataset", "endpoints", endpoints)

    def wait(self, passes: int | None = None) -> None:
        """Wait until a number of passes have ended, whatever their outcomes, or until the server is closed.

        Parameters
        ----------
        passes : int, optional
            How many passes to wait for. By default the method waits until the server is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closing or (passes is not None and self._ended() >= passes))

    def close(self) -> None:
        """Refuse further clients. Passes end after their current batch, and their clients raise."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closing else "open"
        return f"StreamServer({self.endpoints}, {state}, {self._ended()} passes ended)"

    def _wait_for_passes(self) -> bool:
        """Wait a few seconds until no pass is running. False if one still is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, _PATIENCE)

    def _ended(self) -> int:
        return sum(one.outcome != "running" for one in self.passes)

    def _accept(self, index: int, listener: Listener) -> None:
        while (sink := listener.accept()) is not None:
            self._start(index, sink)

    def _start(self, index: int, sink: Sink) -> None:
        """Start a pass in a thread of its own."""
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
        """Send one pass, and note how it ended."""
        outcome: Outcome = "done"
        try:
            self._send(index, sink, one)
        except ClientLeftError:
            outcome = "closed" if self._closing else "client left"
        except _ClosedError:
            outcome = "closed"
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
            with self._open_batches(index, one.number) as batches:
                self._check_unchanged(batches)
                for batch in _sent(batches, self._client, may_be_empty=index == 0):
                    if self._closing:
                        raise _ClosedError
                    if not started:  # never a schema without a batch: the client would crash
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

    def _check_unchanged(self, batches: Batches) -> None:
        if batches.state["source"] != self._fingerprint:
            raise FileChangedError(
                "the dataset was rewritten since the server was started",
                advice="close the server, and serve the dataset again",
            )


def _batching(batch_size: int | None, batch_mode: BatchMode) -> tuple[int, BatchMode]:
    """The size of the batches that are sent, and what happens to the last rows."""
    if batch_size is None:
        return _ROWS, "keep" if batch_mode == "drop" else batch_mode
    return batch_size, batch_mode


def _sent(batches: Batches, client: Client, *, may_be_empty: bool) -> Iterator[pa.RecordBatch]:
    """The batches as they are sent. None is empty, except that no rows become one empty batch.

    Raises
    ------
    TFRecordError
        If there are no rows where the client crashes without rows.
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
            advice="use fewer endpoints or a smaller batch_size",
        )
    if is_empty:
        yield pa.RecordBatch.from_pylist([], client.schema)
