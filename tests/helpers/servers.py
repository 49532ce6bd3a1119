"""A web server of one directory, with faults that a test can choose, and an S3 server."""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import quote, unquote

import pytest
import s3fs
from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from moto.s3.models import FakeKey
from store_link import ACCEPTS, StoreLink, store_link
from werkzeug.serving import make_server


@dataclass
class Web:
    """The faults of the server, and the requests that it received: (method, path, Range)."""

    root: Path
    url: str = ""
    pages: bool = False  # whether directories are pages of links
    ranges: bool = True
    says_so: bool = False
    lie: int = 0  # how many bytes are added to the true size in the answer to HEAD
    stamp: str = ""  # the ETag of every file
    cut: int | None = None  # after how many bytes of an answer the server closes the connection
    secret: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    web: Web

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        web, name = self.web, self.path.partition("?")[0].lstrip("/")
        web.asked.append((self.command, name, self.headers.get("Range", "")))
        path = web.root / unquote(name)
        if web.pages and path.is_dir():
            return self._answer_page(path, body=body)
        if not path.is_file():
            return self.send_error(404)
        content = path.read_bytes()
        size = len(content) if body else len(content) + web.lie
        status = 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted and web.ranges:
            first, last = int(wanted[1]), min(int(wanted[2]), size - 1)
            if first > last:
                return self.send_error(416)
            content, status = content[first : last + 1], 206
            size = len(content)
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{path.stat().st_size}")
        if web.stamp:
            self.send_header("ETag", web.stamp)
        if web.says_so and not web.ranges:
            self.send_header("Accept-Ranges", "none")
        self.end_headers()
        if body:
            self.wfile.write(content[: web.cut])
        if web.cut is not None:
            self.close_connection = True
        return None

    def _answer_page(self, directory: Path, *, body: bool) -> None:
        if not self.path.endswith("/"):
            self.send_response(301)
            self.send_header("Location", f"{self.path}/")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        names = [f"{one.name}/" if one.is_dir() else one.name for one in sorted(directory.iterdir())]
        page = "".join(f'<a href="{quote(name)}">{name}</a>' for name in names).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if body:
            self.wfile.write(page)
        return None


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # if the queue is full, a client waits for a second before it connects again


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """Answer requests in a thread. Yields the URL."""
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name=ACCEPTS)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def web_server(root: Path) -> Iterator[Web]:
    web = Web(root)
    handler = type("Handler", (_Handler,), {"web": web})
    with serving(_Server(("127.0.0.1", 0), handler)) as web.url:
        yield web


@contextmanager
def page_server(root: Path, status: Mapping[str, int] | None = None) -> Iterator[str]:
    """The URL of a server that shows directories as pages of links.

    The server answers requests for the paths in ``status`` with these HTTP errors.
    """

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Say nothing."""

        def send_head(self) -> Any:
            code = (status or {}).get(self.path)
            return super().send_head() if code is None else self.send_error(code)

    with serving(_Server(("127.0.0.1", 0), partial(Quiet, directory=str(root)))) as url:
        yield url


class _S3Handler(MotoRequestHandler):
    def log_request(self, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    """The storage options of an S3 server in this process.

    The server runs the application for S3 only. `moto.server.ThreadedMotoServer` looks for the service of
    each request among all services of moto.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_EC2_METADATA_DISABLED", "true")
        # moto reads a whole file for each range. In memory, and as one value, this takes no time.
        patched.setenv("MOTO_S3_DEFAULT_KEY_BUFFER_SIZE", str(1 << 40))
        patched.setattr(
            FakeKey, "value", FakeKey.value.getter(lambda key: key._value_buffer._file.getvalue())
        )
        backend, lock = create_backend_app("s3"), Lock()

        def application(environ: dict[str, Any], start: Any) -> Any:
            # moto looks for an object and then creates it, so that two exclusive creations could succeed.
            with lock if "HTTP_IF_NONE_MATCH" in environ else nullcontext():
                return backend(environ, start)

        server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_S3Handler)
        with serving(server) as url:
            yield {
                "key": "nobody",
                "secret": "hunter2",
                "endpoint_url": url,
                "client_kwargs": {"region_name": "us-east-1"},
            }


_buckets = count()  # moto's servers of a process have the same buckets


@dataclass(frozen=True)
class LinkedStore:
    """An S3 server behind a link, with the storage options that go through the link and past it."""

    link: StoreLink
    options: dict[str, Any]
    direct: dict[str, Any]

    @property
    def fs(self) -> s3fs.S3FileSystem:
        """A filesystem that goes past the link, so that what it does is not recorded."""
        return s3fs.S3FileSystem(**self.direct)

    def new_place(self) -> str:
        """The URL of a directory in a new bucket."""
        bucket = f"linked-{next(_buckets)}"
        self.fs.call_s3("create_bucket", Bucket=bucket)
        return f"s3://{bucket}/place"


@contextmanager
def linked_s3_server() -> Iterator[LinkedStore]:
    with s3_server() as direct, store_link(direct["endpoint_url"]) as link:
        yield LinkedStore(link, {**direct, "endpoint_url": link.url}, direct)


if __name__ == "__main__":  # an S3 server in a process of its own, until its standard input ends
    with s3_server() as found:
        print(found["endpoint_url"], flush=True)
        sys.stdin.read()
