"""Run the threads that send one pass over the rows to each connection.

A stream that fails ends with a broken message instead of the end-of-stream marker. The broken message makes
every client raise, so that it does not mistake the rows that it has received for all rows.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Self

import pyarrow as pa

from dask_tfrecord.errors import TFRecordError, check_instance
from dask_tfrecord.feed.batches import Batches
from dask_tfrecord.feed.epoch_order import Plan
from dask_tfrecord.feed.stream.endpoints import ClientLeftError, Listener, Sink, open_endpoint
from dask_tfrecord.feed.stream.tensorflow_io import Client

Outcome = Literal["running", "done", "client left", "closed", "failed"]

_LOG = logging.getLogger(__name__)

# The end-of-stream marker of Arrow IPC (_END), and the header of a message of 8 bytes that are never sent
# (the constant after it).
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_BROKEN = b"\xff\xff\xff\xff\x08\x00\x00\x00"

# The number of seconds for which `close` waits for a batch that is being sent, and then for a batch that is
# being read.
_PATIENCE = 2.0


class _ClosedError(Exception):
    """Signal that the server was closed while a pass was running."""


@dataclass
class Pass:
    """Report on one pass over the rows of an endpoint, which is sent to one connection.

    Attributes
    ----------
    endpoint : str
        The endpoint to which the client connected.
    number : int
        Number of connections to the endpoint before this connection.
    rows : int
        Number of rows that were sent in this pass.
    outcome : "running", "done", "client left", "closed" or "failed"
        The way in which the pass ended. The outcome is "client left" if the client disconnected before the
        end. The outcome is "closed" if the server was closed. The outcome is "failed" if reading or
        converting the rows raised.
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
                opened.append(open_endpoint(endpoint))
                listener = opened[-1]
                if isinstance(listener, Listener):
                    self._listeners.append(listener)
                self.endpoints.append(listener.endpoint if isinstance(listener, Listener) else endpoint)
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
        """Return Python code that constructs the client's dataset. The elements of the client's dataset are
        dicts of tensors.

        Parameters
        ----------
        endpoints : list of str, optional
            The addresses at which the client reaches the server, for example through a tunnel. By default,
            the addresses of the server are used. If the server writes to a single file descriptor, the
            default is ``fd://0``, the standard input of the client.
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
            # A wait without a time limit would not notice an interrupt that comes just before the wait.
            while not self._changed.wait_for(is_over, 1):
                pass

    def close(self) -> None:
        """Refuse further clients, and end the running passes after their current batch.

        The clients of these passes raise.
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
        """Wait a few seconds until no pass is running.

        Return False if a pass is still running after these seconds.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, _PATIENCE)

    def _ended(self) -> int:
        return sum(one.outcome != "running" for one in self.passes)

    def _accept(self, index: int, listener: Listener) -> None:
        while (sink := listener.accept()) is not None:
            self._start(index, sink)

    def _start(self, index: int, sink: Sink) -> None:
        """Start a pass in a new thread."""
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
        """Send one pass over the rows, and record how the pass ended."""
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
            count = len(self.endpoints)
            epoch = one.number if count == 1 else 0  # clients may be in different passes of other endpoints
            with Batches(self._plan, epoch, (index, count)) as batches:
                for batch in sent_batches(batches, self._client, may_be_empty=index == 0):
                    if self._closing:
                        raise _ClosedError
                    if not started:  # a schema without a batch is never sent, because the client would crash
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
    """Yield the batches to send, without empty batches. If there are no rows, yield one empty batch.

    Raises
    ------
    TFRecordError
        If there are no rows and ``may_be_empty`` is False, because the client would crash.
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
