"""An HTTP proxy on the loopback interface that spoils the answer to one request."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from select import select
from threading import Lock
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from servers import serving

# What happens to the request:
#   reset     the connection is reset before the server gets the request
#   timeout   the server does not get the request, and the client gets no answer
#   busy      the server does not get the request, and the client gets the status 503
#   truncate  the server gets the request, and the client gets the first half of the answer
#   lost      the server gets the request, and the connection is reset before the answer
Kind = Literal["reset", "timeout", "busy", "truncate", "lost"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Headers that concern one connection. The proxy sends every body with its length.
_OF_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}

_BUSY = b"<?xml version='1.0'?><Error><Code>ServiceUnavailable</Code><Message>on purpose</Message></Error>"

# Seconds after which an unanswered connection is closed if the client keeps it open.
_PATIENCE = 30


@dataclass
class FaultProxy:
    """Passes requests on to a server, and spoils one of them."""

    server: str  # its URL
    url: str = ""  # of the proxy
    requests: int = 0  # so far
    _kind: Kind | None = None
    _left: int = -1
    _lock: Lock = field(default_factory=Lock)

    def arm(self, kind: Kind, number: int) -> None:
        """Let ``number`` requests pass, and spoil the next one."""
        with self._lock:
            self._kind, self._left = kind, number

    def disarm(self) -> bool:
        """Let all requests pass from now on. Return True if a request was spoiled."""
        with self._lock:
            hit, self._left = self._left < 0, -1
            self._kind = None
            return hit

    def due(self) -> Kind | None:
        """Count a request. Return what happens to it, or None if it passes."""
        with self._lock:
            self.requests += 1
            if self._kind is None or self._left < 0:
                return None
            self._left -= 1
            return self._kind if self._left < 0 else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def log_message(self, *args: Any) -> None:
        """Print nothing."""

    def _relay(self) -> None:
        body = self._body()
        kind = self.proxy.due()
        if kind == "busy":
            self._send(b"HTTP/1.1 503 Service Unavailable", [("Content-Type", "application/xml")], _BUSY)
            return
        if kind == "timeout":
            select([self.connection], [], [], _PATIENCE)
        if kind in ("reset", "timeout"):
            self._reset()
            return
        answer, content = self._ask(body)
        if kind == "lost":
            self._reset()
            return
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _OF_CONNECTION]
        status = f"HTTP/1.1 {answer.status} {answer.reason}".encode("latin-1")
        self._send(status, headers, content, answer.getheader("Content-Length"), cut=kind == "truncate")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _relay  # noqa: N815  # http.server looks up these names

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return body

    def _ask(self, body: bytes) -> tuple[HTTPResponse, bytes]:
        server = HTTPConnection(urlsplit(self.proxy.server).netloc, timeout=_PATIENCE)
        try:
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OF_CONNECTION:
                    server.putheader(name, value)
            if body or self.command in ("PUT", "POST"):
                server.putheader("Content-Length", str(len(body)))
            server.endheaders(body)
            answer = server.getresponse()
            return answer, answer.read()
        finally:
            server.close()

    def _send(
        self,
        status: bytes,
        headers: list[tuple[str, str]],
        content: bytes,
        length: str | None = None,
        *,
        cut: bool = False,
    ) -> None:
        """Send an answer; if ``cut``, half of its content, or half of its headers if it has no content."""
        size = length if self.command == "HEAD" and length is not None else str(len(content))
        lines = [status, *(f"{name}: {value}".encode("latin-1") for name, value in headers)]
        head = b"\r\n".join([*lines, f"Content-Length: {size}".encode(), b"", b""])
        if cut:
            self.close_connection = True
            head, content = (head, content[: len(content) // 2]) if content else (head[: len(head) // 2], b"")
        self.wfile.write(head + content)

    def _reset(self) -> None:
        """Close the connection so that the client sees a reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def shutdown_request(self, request: Any) -> None:
        """Close without announcing the end, which would precede a reset."""
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing if a client has left."""


@contextmanager
def fault_proxy(server: str) -> Iterator[FaultProxy]:
    proxy = FaultProxy(server)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with serving(_Server(("127.0.0.1", 0), handler)) as proxy.url:
        yield proxy
