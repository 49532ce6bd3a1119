"""Upload files to object stores. Several full parts are sent at a time, while the caller continues to write.

A file appears when its upload is completed, and an upload that is not completed is aborted. The libraries of
the stores repeat requests that fail for a temporary reason, each part individually. `abort` aborts the
uploads that other processes left.
"""

import asyncio
import io
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, BinaryIO, NamedTuple, cast
from uuid import uuid4

from fsspec import AbstractFileSystem

from dask_tfrecord.errors import NotFoundError
from dask_tfrecord.storage.filesystem import protocols_of
from dask_tfrecord.storage.in_flight import InFlight
from dask_tfrecord.storage.location import Location
from dask_tfrecord.storage.range_requests import REQUEST_BYTES

# The size of a part: the smallest that S3 accepts, because many small parts use more connections.
PART_BYTES = 5 << 20

# S3 accepts at most 10,000 parts of a file, so their size doubles every 500 parts after the first 5,000.
# Until then, all parts have the same size, as some stores require.
_EQUAL_PARTS = 5_000
_DOUBLED_PARTS = 500

# A writer waits for a file to appear if this many of its files are complete and have not appeared yet.
_MOST_FINISHING = 16


def _part_bytes(number: int) -> int:
    return PART_BYTES << max(0, (number - _EQUAL_PARTS) // _DOUBLED_PARTS + 1)


# The bytes that the writers of this process are uploading.
_UPLOADS = InFlight()


class _Part(io.BytesIO):
    """A part of a file, or a whole small file."""


class _Uploader(ABC):
    """The requests that upload one file: one `put`, or a `send` for each part and then `complete`."""

    @abstractmethod
    def put(self, part: _Part) -> "Future[Any]":
        """Create the whole file."""

    @abstractmethod
    def send(self, part: _Part) -> "Future[Any]":
        """Send the next part."""

    @abstractmethod
    def complete(self) -> "Future[Any]":
        """Make the file visible when all parts have arrived. If a part fails, the file never appears."""

    @abstractmethod
    def abort(self) -> None:
        """Stop all requests, and let the store discard the parts."""


class _ParallelUploader(_Uploader):
    """Send the parts by coroutines on fsspec's thread, which alone runs the asynchronous methods."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs, self._path = fs, path
        self._names = fs.split_path(path)[:2]  # the names of the bucket and of the file
        self._tasks: list[asyncio.Task[Any]] = []
        self._upload: asyncio.Task[str] | None = None
        self._parts: list[Any] = []

    def put(self, part: _Part) -> "Future[Any]":
        return self._run(self._put(part))

    def send(self, part: _Part) -> "Future[Any]":
        return self._run(self._send(part))

    def complete(self) -> "Future[Any]":
        return self._run(self._complete())

    def abort(self) -> None:
        if not sys.is_finalizing():  # otherwise fsspec's thread has ended
            self._run(self._abort()).result()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._fs.loop)

    def _note_task(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)

    async def _put(self, part: _Part) -> None:
        self._note_task()
        await self._send_whole(part)
        self._fs.invalidate_cache(self._path)

    async def _send(self, part: _Part) -> None:
        self._note_task()
        number = len(self._parts)
        self._parts.append(None)
        if self._upload is None:
            self._upload = asyncio.ensure_future(self._start())
        # An abort must learn the id of the upload, so it does not stop the request for it.
        upload = await asyncio.shield(self._upload)
        self._parts[number] = await self._send_part(upload, number, part)

    async def _complete(self) -> None:
        parts = [*self._tasks]
        self._note_task()
        await asyncio.gather(*parts)
        assert self._upload is not None
        await self._join(self._upload.result(), self._parts)
        self._fs.invalidate_cache(self._path)

    async def _abort(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._upload is not None:
            await self._forget(await self._upload)

    @abstractmethod
    async def _send_whole(self, part: _Part) -> None: ...

    @abstractmethod
    async def _start(self) -> str:
        """Start an upload, and return its id."""

    @abstractmethod
    async def _send_part(self, upload: str, number: int, part: _Part) -> Any:
        """Send a part, and return what `_join` needs to know about it."""

    @abstractmethod
    async def _join(self, upload: str, parts: list[Any]) -> None: ...

    @abstractmethod
    async def _forget(self, upload: str) -> None: ...


def _rewind(params: dict[str, Any], **_: Any) -> None:
    if isinstance(body := params.get("Body"), _Part):
        body.seek(0)


class _S3Uploader(_ParallelUploader):
    async def _call(self, method: str, **arguments: Any) -> Any:
        bucket, key = self._names
        return await self._fs._call_s3(method, Bucket=bucket, Key=key, **arguments)

    async def _call_with(self, method: str, part: _Part, **arguments: Any) -> Any:
        """Send bytes. From a file, the connection copies few bytes at a time, but from bytes all of them."""
        await self._fs.set_session()
        events = (await self._fs.get_s3(self._names[0])).meta.events
        # If s3fs sends a request again, it passes the same file, of which the first attempt has read a part.
        events.register_first("before-parameter-build.s3", _rewind, unique_id="dask_tfrecord")
        return await self._call(method, Body=part, **arguments)

    async def _send_whole(self, part: _Part) -> None:
        await self._call_with("put_object", part)

    async def _start(self) -> str:
        upload: str = (await self._call("create_multipart_upload"))["UploadId"]
        return upload

    async def _send_part(self, upload: str, number: int, part: _Part) -> dict[str, Any]:
        answer = await self._call_with("upload_part", part, UploadId=upload, PartNumber=number + 1)
        names = ("ETag", "ChecksumSHA256")
        return {"PartNumber": number + 1, **{name: answer[name] for name in names if name in answer}}

    async def _join(self, upload: str, parts: list[Any]) -> None:
        await self._call("complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": parts})

    async def _forget(self, upload: str) -> None:
        await self._call("abort_multipart_upload", UploadId=upload)


class _AzureUploader(_ParallelUploader):
    """Azure itself discards blocks that are not committed within a week."""

    def _client(self) -> Any:
        container, blob = self._names
        return self._fs.service_client.get_blob_client(container=container, blob=blob)

    async def _start(self) -> str:
        return uuid4().hex  # the blocks of two uploads to one path have different names

    async def _send_whole(self, part: _Part) -> None:
        await self._fs._pipe_file(self._path, part.getvalue())

    async def _send_part(self, upload: str, number: int, part: _Part) -> str:
        data = part.getvalue()
        block = f"{upload}{number:05}"  # all names have the same length, as Azure requires
        async with self._client() as client:
            await client.stage_block(block_id=block, data=data, length=len(data))
        return block

    async def _join(self, upload: str, parts: list[Any]) -> None:
        async with self._client() as client:
            await client.commit_block_list(parts, metadata={"is_directory": "false"})

    async def _forget(self, upload: str) -> None: ...


class _OtherUploader(_Uploader):
    """Write an fsspec file in a thread: one part is sent while the caller writes the next one."""

    def __init__(self, fs: AbstractFileSystem, path: str) -> None:
        self._fs, self._path = fs, path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dask_tfrecord-upload")
        self._sent: list[Future[Any]] = []
        self._file: Any = None

    def put(self, part: _Part) -> "Future[Any]":
        return self._run_last(self._fs.pipe_file, self._path, part.getvalue())

    def send(self, part: _Part) -> "Future[Any]":
        self._sent.append(self._thread.submit(self._send, part.getvalue()))
        return self._sent[-1]

    def complete(self) -> "Future[Any]":
        return self._run_last(self._complete)

    def _run_last(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        future = self._thread.submit(function, *args)
        self._thread.shutdown(wait=False)
        return future

    def _send(self, data: bytes) -> None:
        if self._file is None:
            self._file = self._fs.open(self._path, "wb", block_size=REQUEST_BYTES)
        self._file.write(data)

    def _complete(self) -> None:
        # After a failed request, `close` may return without an error and without a file.
        for one in self._sent:
            one.result()
        self._file.close()

    def abort(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        if self._file is not None:
            try:
                self._file.discard()
            finally:
                self._file.closed = True  # so that fsspec's finalizer does not publish the file


def _uploader(fs: AbstractFileSystem, path: str) -> _Uploader:
    if hasattr(fs, "call_s3"):
        return _S3Uploader(fs, path)
    return (_AzureUploader if hasattr(fs, "service_client") else _OtherUploader)(fs, path)


class UploadedFile(io.BufferedIOBase):
    """A new file, whose full parts are sent while the caller writes. Only `finish` lets the file appear."""

    def __init__(self, uploader: _Uploader, uploads: "Uploads") -> None:
        self._uploader, self._uploads = uploader, uploads
        self._part = _Part()
        # The first part waits here for the second, because a smaller file needs no parts.
        self._first: _Part | None = None
        self._parts = self._full_bytes = 0  # the full parts, and their size
        self._under_way: list[Future[Any]] = []

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._full_bytes + self._part.tell()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        start = 0
        while start < len(view):
            size = _part_bytes(self._parts)
            start += self._part.write(view[start : start + size - self._part.tell()])
            if self._part.tell() == size:
                self._end_part()
        return len(view)

    def finish(self) -> "Future[Any]":
        """Let the file appear, and return a future that then ends."""
        if self._parts > 1:
            if self._part.tell():
                self._send(self._part)
            return self._uploader.complete()
        whole = self._part
        if self._first is not None:
            whole = self._first
            whole.write(self._part.getbuffer())
        return self._uploads.start(self._uploader.put, whole)

    def abort(self) -> None:
        self._uploader.abort()

    def _end_part(self) -> None:
        part, self._part = self._part, _Part()
        self._parts += 1
        self._full_bytes += part.tell()
        if self._parts == 1:
            self._first = part
            return
        if self._first is not None:
            first, self._first = self._first, None
            self._send(first)
        self._send(part)

    def _send(self, part: _Part) -> None:
        ended = [one for one in self._under_way if one.done()]
        for one in ended:
            one.result()  # raise the error of a part before the whole file is written
        self._under_way = [one for one in self._under_way if one not in ended]
        self._under_way.append(self._uploads.start(self._uploader.send, part))


class Uploads:
    """The uploads of one writer. At the end of a ``with`` block, all files that the writer has finished have
    appeared.

    A writer with nothing in flight may always send one part, so that no writer waits for another one
    forever.
    """

    def __init__(self) -> None:
        self._finishing: deque[tuple[UploadedFile, str, Future[Any]]] = deque()

    @contextmanager
    def create(self, fs: AbstractFileSystem, path: str, public: str) -> Iterator[BinaryIO]:
        """Upload a file. When the ``with`` block ends, the upload begins to end. Errors name ``public``."""
        file = UploadedFile(_uploader(fs, path), self)
        try:
            yield cast(BinaryIO, file)
            future = file.finish()
        # Handle every exception, even KeyboardInterrupt, so that no incomplete upload remains.
        except BaseException:
            # A failure to abort the upload must not hide the original exception.
            with suppress(Exception):
                file.abort()
            raise
        self._finishing.append((file, public, future))
        if len(self._finishing) > _MOST_FINISHING:
            self._wait()

    def start(self, request: "Callable[[_Part], Future[Any]]", part: _Part) -> "Future[Any]":
        """Start a request when its bytes fit into the limit."""
        size = part.tell()
        _UPLOADS.wait_and_take(self, size)
        try:
            future = request(part)
        except BaseException:
            _UPLOADS.give_back(self, size)
            raise
        future.add_done_callback(lambda _: _UPLOADS.give_back(self, size))
        return future

    def _wait(self) -> None:
        """Wait until the oldest of the finished files has appeared."""
        file, public, future = self._finishing.popleft()
        try:
            future.result()
        except BaseException as error:
            with suppress(Exception):
                file.abort()
            if isinstance(error, OSError) and error.errno is not None and error.filename is None:
                error.filename = public
            raise

    def __enter__(self) -> "Uploads":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while kind is None and self._finishing:
                self._wait()
        except BaseException as error:
            kind = type(error)
            raise
        finally:
            is_interrupted = kind is not None and not issubclass(kind, Exception)
            while self._finishing:
                with suppress(Exception):  # the first error matters
                    # A request that was stopped may still create its file, so do not stop it without need.
                    self._finishing.popleft()[0].abort() if is_interrupted else self._wait()


def check_bucket(store: Location) -> None:
    """Raise NotFoundError if the bucket (S3, GCS) or the Azure container of the root does not exist.

    Any other failure is ignored, because a user may be allowed to write to a bucket but not to inspect it.
    """
    fs, bucket = store.fs, store.root.strip("/").partition("/")[0]
    is_azure = hasattr(fs, "service_client")
    try:
        if is_azure:
            fs.info(bucket, refresh=True)
        elif hasattr(fs, "call_s3"):
            fs.call_s3("head_bucket", Bucket=bucket)
        elif "gs" in protocols_of(fs):
            fs.call("GET", f"b/{bucket}")
    except FileNotFoundError:
        kind = "container" if is_azure else "bucket"
        problem = f"{store.public()}: the {kind} {bucket!r} does not exist"
        raise NotFoundError(problem, "check its name, or create it") from None
    # A later operation on the bucket either raises the same error, or does not need the missing permission.
    except Exception:
        return


class Upload(NamedTuple):
    path: str
    id: str
    started: datetime


def unfinished_uploads(store: Location) -> list[Upload]:
    """List the unfinished multipart uploads below the root. Only S3 has multipart uploads."""
    if not hasattr(store.fs, "call_s3"):
        return []
    bucket, _, key = store.join("").partition("/")
    uploads: list[Upload] = []
    page: dict[str, Any] = {"IsTruncated": True}
    while page.get("IsTruncated"):
        markers = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        start = {name: page[last] for name, last in markers.items() if page.get(last)}
        page = store.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key, **start)
        uploads += [
            Upload(f"{bucket}/{one['Key']}", one["UploadId"], one["Initiated"])
            for one in page.get("Uploads", ())
        ]
    return uploads


def abort(store: Location, upload: Upload) -> None:
    bucket, _, key = upload.path.partition("/")
    with suppress(FileNotFoundError):  # another process may have completed or aborted the upload
        store.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.id)
