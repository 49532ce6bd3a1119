"""A link to a store: an HTTP proxy on the loopback interface that counts, delays, holds and spoils requests.

A test asserts counts and trips, never a time:

    with store_link(url) as link, link.recording(rounds=True) as traffic:
        ...  # a client reads from link.url
    assert (traffic.trips, traffic.methods) == (2, {"GET": 17})

`recording(rounds=True)` holds all answers until the client has sent every request that it can send, and
waits. A round is what a client sends at once, and `trips` is the number of rounds.
"""

import asyncio
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from threading import Condition, Event, RLock, Thread, get_native_id
from threading import enumerate as enumerate_threads
from typing import Any, Literal, get_args
from urllib.parse import unquote, urlsplit

# What happens to a spoiled request:
#   reset     the connection is reset before the server gets the request
#   timeout   the server does not get the request, and the client gets no answer
#   busy      the server does not get the request, and the client gets the status 503
#   truncate  the server gets the request, and the client gets the first half of the answer
#   lost      the server gets the request, and the connection is reset before the answer
Kind = Literal["reset", "timeout", "busy", "truncate", "lost"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_BUSY = b"<?xml version='1.0'?><Error><Code>ServiceUnavailable</Code><Message>on purpose</Message></Error>"

# Headers that concern one connection. The link sends every body with its length.
_OF_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}

# Seconds after which an unanswered connection is closed if the client keeps it open.
_PATIENCE = 30

# Seconds between two looks at the threads of the client, and after which a round ends if they never rest.
_LOOK = 0.01
_RESTLESS = 0.5

_CHUNK = 1 << 16

# The name of threads that look for new connections again and again.
ACCEPTS = "accepts connections"

# The threads that never rest: also that of the scheduler of a cluster, which is no client of a store.
_RESTLESS_THREADS = {ACCEPTS, "IO loop"}


@dataclass(eq=False)
class Request:
    """A request. Its start and end count the starts and ends of all requests before it."""

    method: str
    target: str
    headers: dict[str, str]  # by names in lower case
    connection: int  # which connection of the client it came by
    started: int
    ended: int | None = None  # None as long as it is not answered
    body: bytes = b""
    status: int = 0
    received: int = 0  # bytes of the answer's body that the client was sent
    left: bool = False  # whether the client closed the connection before it had the answer

    @property
    def path(self) -> str:
        return unquote(self.target.partition("?")[0]).lstrip("/")

    @property
    def range(self) -> tuple[int, int] | None:
        """The first byte and the end of the range that the client asks for."""
        first, _, last = self.headers.get("range", "").removeprefix("bytes=").partition("-")
        return (int(first), int(last) + 1) if first and last else None


class Traffic(list[Request]):
    """The requests of a recording, in the order of their arrival."""

    @property
    def methods(self) -> Counter[str]:
        return Counter(request.method for request in self)

    @property
    def bytes_read(self) -> int:
        return sum(request.received for request in self if request.method == "GET")

    @property
    def bytes_written(self) -> int:
        return sum(len(request.body) for request in self)

    @property
    def connections(self) -> int:
        return len({request.connection for request in self})

    @property
    def at_once(self) -> int:
        """How many requests were under way at the same time, at most."""
        steps = [(request.started, 1) for request in self]
        steps += [(request.ended, -1) for request in self if request.ended is not None]
        now = most = 0
        for _, step in sorted(steps):
            now += step
            most = max(most, now)
        return most

    @property
    def trips(self) -> int:
        """The length of the longest chain of requests that each began after the end of the one before."""
        trips, end = 0, -1
        for request in sorted(self, key=lambda one: sys.maxsize if one.ended is None else one.ended):
            if request.started > end:
                trips += 1
                end = sys.maxsize if request.ended is None else request.ended
        return trips

    def of(self, method: str, path: str = "") -> "Traffic":
        """The requests with this method whose path contains ``path``."""
        return Traffic(one for one in self if one.method == method and path in one.path)


# Decides whether something applies to a request.
Choice = Callable[[Request], bool]


def _any(request: Request) -> bool:
    return True


@dataclass
class _Fault:
    kind: Kind | Callable[[], Any]
    left: int
    choose: Choice


@dataclass
class StoreLink:
    """Passes requests on to a server. What is set here applies to requests that arrive later."""

    server: str  # its URL
    latency: float = 0  # seconds that each answer takes longer
    rate: float = 0  # bytes that a connection carries in a second, in each direction; 0 is no limit
    url: str = ""  # of the link
    requests: int = 0  # so far
    _fault: _Fault | None = None
    _recordings: list[Traffic] = field(default_factory=list)
    _holds: list[tuple[Choice, asyncio.Event]] = field(default_factory=list)
    _round: dict[int, asyncio.Event] | None = None  # the answers that wait for the end of the round
    _asking: int = 0  # requests that the server has not answered
    _last_first: bool = False
    _tasks: set[Any] = field(default_factory=set)
    _lock: RLock = field(default_factory=RLock)
    _ticks: Iterator[int] = field(default_factory=count)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def __post_init__(self) -> None:
        self._changed = Condition(self._lock)

    # -- What tests call -----------------------------------------------------------------------------------

    @contextmanager
    def recording(self, *, rounds: bool = False, last_first: bool = False) -> Iterator[Traffic]:
        """Note the requests; if ``rounds``, hold the answers until the client waits for all of them.

        If ``last_first``, only the newest of the held requests is answered then, so that a client gets the
        answers in the reverse order of its requests.
        """
        traffic = Traffic()
        with self._lock:
            self._recordings.append(traffic)
        if rounds or last_first:
            self._last_first = last_first
            self._run(self._begin_rounds())
        try:
            yield traffic
        finally:
            if rounds or last_first:
                self._run(self._end_rounds())
            with self._lock:
                # A client has its answer before the link knows that it is sent.
                self._changed.wait_for(lambda: all(one.ended is not None for one in traffic), 1)
                self._recordings = [one for one in self._recordings if one is not traffic]

    def wait_for(self, traffic: Traffic, number: int) -> None:
        """Wait until ``number`` requests have arrived since the start of a recording."""
        with self._lock:
            self._changed.wait_for(lambda: len(traffic) >= number, _PATIENCE)
        assert len(traffic) >= number, f"{len(traffic)} requests arrived in {_PATIENCE} s, {number} expected"

    @contextmanager
    def holding(self, choose: Choice = _any) -> Iterator[None]:
        """Hold the answers to the chosen requests until the end of the with statement."""

        async def hold() -> asyncio.Event:
            opened = asyncio.Event()
            self._holds.append((choose, opened))
            return opened

        async def let_go() -> None:
            self._holds = [hold for hold in self._holds if hold[1] is not opened]
            opened.set()

        opened = self._run(hold())
        try:
            yield
        finally:
            self._run(let_go())

    @contextmanager
    def slow(self, latency: float = 0, rate: float = 0) -> Iterator[None]:
        before = self.latency, self.rate
        self.latency, self.rate = latency, rate
        try:
            yield
        finally:
            self.latency, self.rate = before

    def arm(self, kind: Kind | Callable[[], Any], number: int = 0, choose: Choice = _any) -> None:
        """Let ``number`` of the chosen requests pass, and spoil the next one.

        A function in place of a kind is called before the server gets the request.
        """
        with self._lock:
            self._fault = _Fault(kind, number, choose)

    def disarm(self) -> bool:
        """Let all requests pass from now on. Return True if a request was spoiled."""
        with self._lock:
            fault, self._fault = self._fault, None
            return fault is not None and fault.left < 0

    # -- What happens to a request -------------------------------------------------------------------------

    def _note(self, request: Request) -> Kind | Callable[[], Any] | None:
        """Count a request. Return what happens to it, or None if it passes."""
        with self._lock:
            self.requests += 1
            for traffic in self._recordings:
                traffic.append(request)
            self._changed.notify_all()
            fault = self._fault
            if fault is None or fault.left < 0 or not fault.choose(request):
                return None
            fault.left -= 1
            return fault.kind if fault.left < 0 else None

    def _end(self, request: Request) -> None:
        with self._lock:
            request.ended = next(self._ticks)
            self._changed.notify_all()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, task = next(self._ticks), asyncio.current_task()
        self._tasks.add(task)  # the loop holds no strong reference to it
        writer.transport.set_write_buffer_limits(0)
        try:
            while not writer.is_closing():
                request = await self._read(reader, writer, connection)
                try:
                    await self._answer(request, reader, writer)
                except OSError:
                    request.left = True
                    raise
                finally:
                    self._end(request)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            _close(writer)

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
    ) -> Request:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip().split("\r\n")
        method, target, _ = first.split(" ")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        request = Request(method, target, headers, connection, next(self._ticks))
        if "expect" in headers:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in headers.get("transfer-encoding", ""):
            request.body = await _chunks(reader)
        else:
            request.body = await self._paced(reader, int(headers.get("content-length", 0)))
        return request

    async def _paced(self, reader: asyncio.StreamReader, size: int) -> bytes:
        if not self.rate:
            return await reader.readexactly(size)
        parts, started, got = [], time.monotonic(), 0
        while got < size:
            parts.append(await reader.readexactly(min(_CHUNK, size - got)))
            got += len(parts[-1])
            await asyncio.sleep(started + got / self.rate - time.monotonic())
        return b"".join(parts)

    async def _answer(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        kind = self._note(request)
        status, headers, content = "HTTP/1.1 503 Service Unavailable", {"content-type": "text/xml"}, _BUSY
        self._asking += 1
        try:
            if kind == "timeout":
                await _until(reader, asyncio.Event(), _PATIENCE)
            if kind in ("reset", "timeout"):
                return _reset(writer)
            if callable(kind):
                await asyncio.to_thread(kind)
            if kind != "busy":
                status, headers, content = await self._ask(request)
        finally:
            self._asking -= 1
        if self.latency:
            await asyncio.sleep(self.latency)
        for choose, opened in list(self._holds):
            if choose(request):
                await _until(reader, opened, sys.maxsize)
        if self._round is not None:
            opened = self._round[request.started] = asyncio.Event()
            await _until(reader, opened, sys.maxsize)
        if reader.at_eof():
            raise ConnectionResetError
        if kind == "lost":
            return _reset(writer)
        request.status = int(status.split(" ")[1])
        return await self._send(request, writer, status, headers, content, cut=kind == "truncate")

    async def _ask(self, request: Request) -> tuple[str, dict[str, str], bytes]:
        """Pass the request on, and return the status, the headers and the body of the answer."""
        address = urlsplit(self.server)
        reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1 << 20)
        try:
            kept = {name: text for name, text in request.headers.items() if name not in _OF_CONNECTION}
            kept |= {"connection": "close"}
            if request.body or request.method in ("PUT", "POST"):
                kept["content-length"] = str(len(request.body))
            writer.write(_head(f"{request.method} {request.target} HTTP/1.1", kept) + request.body)
            await writer.drain()
            status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
            headers: dict[str, str] = {}
            for name, _, value in (line.partition(":") for line in lines):
                headers[name.strip().lower()] = value.strip()
            if request.method == "HEAD":
                return status, headers, b""
            if "chunked" in headers.get("transfer-encoding", ""):
                return status, headers, await _chunks(reader)
            return status, headers, await reader.read()
        finally:
            writer.close()

    async def _send(
        self,
        request: Request,
        writer: asyncio.StreamWriter,
        status: str,
        headers: dict[str, str],
        content: bytes,
        *,
        cut: bool = False,
    ) -> None:
        """Send an answer; if ``cut``, half of its content, or half of its headers if it has no content."""
        length = headers.get("content-length", str(len(content)))
        is_cut = cut or (request.method != "HEAD" and int(length) != len(content))
        kept = {name: text for name, text in headers.items() if name not in _OF_CONNECTION}
        head = _head(f"HTTP/1.1 {status.partition(' ')[2]}", kept | {"content-length": length})
        if cut:
            head, content = (head, content[: len(content) // 2]) if content else (head[: len(head) // 2], b"")
        started, chunk = time.monotonic(), _CHUNK if self.rate else max(len(content), 1)
        writer.write(head + content[:chunk])
        await writer.drain()
        request.received = min(chunk, len(content))
        for start in range(chunk, len(content), chunk):
            await asyncio.sleep(started + start / self.rate - time.monotonic())
            writer.write(content[start : start + chunk])
            await writer.drain()
            request.received += len(content[start : start + chunk])
        if is_cut:
            _close(writer)

    # -- Rounds --------------------------------------------------------------------------------------------

    async def _begin_rounds(self) -> None:
        self._round = {}
        self._rounds = asyncio.create_task(self._pass_rounds(get_native_id()))

    async def _end_rounds(self) -> None:
        self._rounds.cancel()
        self._last_first = False
        self._let_pass()
        self._round = None

    def _let_pass(self) -> None:
        held = self._round or {}
        for started in [max(held)] if held and self._last_first else list(held):
            held.pop(started).set()

    async def _pass_rounds(self, mine: int) -> None:
        """End a round when no thread of this process has had anything to do in two looks."""
        before, restful, since, arrived = None, 0, time.monotonic(), -1
        while True:
            await asyncio.sleep(_LOOK)
            now = _time_used(mine)
            restful = restful + 1 if now is not None and now == before else 0
            if self._asking or not self._round or arrived != self.requests:
                restful, since, arrived = 0, time.monotonic(), self.requests
            elif restful > 1 or time.monotonic() - since > _RESTLESS:
                self._let_pass()
                restful, since = 0, time.monotonic()
            before = now

    # -- The loop ------------------------------------------------------------------------------------------

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _serve(self, ready: Event, done: asyncio.Event) -> None:
        server = await asyncio.start_server(self._answer_all, "127.0.0.1", 0, limit=1 << 20)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await done.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _time_used(mine: int) -> int | None:
    """The processor time that this process used so far; None if a thread of it is running.

    A thread that waits for a processor counts as running, so a busy machine makes no difference. The thread
    ``mine`` and the threads that never rest do not count.
    """
    passive = {str(one.native_id) for one in enumerate_threads() if one.name in _RESTLESS_THREADS}
    used = 0
    try:
        for thread in Path("/proc/self/task").iterdir():
            if thread.name != str(mine) and thread.name not in passive:
                if (thread / "stat").read_text().rpartition(")")[2].split()[0] in "RD":
                    return None
                used += int((thread / "schedstat").read_text().split()[0])
    except OSError:  # a thread has ended, or the system has no such directory
        return None
    return used


def _head(first: str, headers: dict[str, str]) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = []
    while size := int((await reader.readline()).partition(b";")[0], 16):
        body.append(await reader.readexactly(size))
        await reader.readline()
    while (await reader.readline()).strip():  # trailers
        pass
    return b"".join(body)


async def _until(reader: asyncio.StreamReader, opened: asyncio.Event, patience: float) -> None:
    """Wait for the event; raise if the client leaves before it."""
    for _ in takewhile(lambda turn: turn * _LOOK < patience, count()):
        with suppress(TimeoutError):
            await asyncio.wait_for(opened.wait(), _LOOK)
        if reader.at_eof():
            raise ConnectionResetError
        if opened.is_set():
            break


def _close(writer: asyncio.StreamWriter) -> None:
    """Close the connection, also if a process that was forked meanwhile has it, too."""
    opened: socket.socket = writer.get_extra_info("socket")
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)
    writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection so that the client sees a reset."""
    opened: socket.socket = writer.get_extra_info("socket")
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextmanager
def store_link(server: str, latency: float = 0, rate: float = 0) -> Iterator[StoreLink]:
    """Open a link to the server in a thread of its own."""
    link, ready, done = StoreLink(server, latency, rate), Event(), asyncio.Event()
    thread = Thread(target=lambda: link._loop.run_until_complete(link._serve(ready, done)))
    thread.start()
    ready.wait()
    try:
        yield link
    finally:
        link._loop.call_soon_threadsafe(done.set)
        thread.join()
        link._loop.close()


if __name__ == "__main__":  # store_link.py SERVER SECONDS BYTES_PER_SECOND, until its standard input ends
    with store_link(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])) as opened:
        print(opened.url, flush=True)
        sys.stdin.read()
