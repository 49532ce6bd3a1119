"""Request ranges of files from remote stores.

Every request for a range of a remote file is sent by this module, if the filesystem is asynchronous. The
requests run on the event loop of fsspec, without threads. A request that fails for a temporary reason, such
as a lost connection, is repeated alone after a pause. The answer of a store says which version of the file it
belongs to (an ETag), and how large the file is, so that no other request has to ask. The module uses private
names of s3fs, gcsfs, adlfs and fsspec, and was checked with s3fs 2026.9, gcsfs 2026.10, adlfs 2026.8 and
fsspec 2026.9.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from random import uniform
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from fsspec import AbstractFileSystem
from typing_extensions import Buffer

from dask_tfrecord.storage.block_cache import BlockCache, CachedRange
from dask_tfrecord.storage.failures import is_passing, s3_answer, status_of
from dask_tfrecord.storage.forked import fork_safe_locks

_T = TypeVar("_T")

# The largest number of bytes that one request transfers.
REQUEST_BYTES = 1 << 23

# The largest number of requests that one reader has in flight.
MOST_REQUESTS = 16

# The pauses in seconds before a request is repeated. Each pause is shortened at random, so that many requests
# that failed together are not repeated together.
_PAUSES = (0.25, 1.0, 4.0, 8.0)

# After this many seconds, a range is not requested again. A server that never answers then fails a read after
# the timeout of one request, which is five minutes over HTTP.
_REPEATED_SECONDS = 120.0


class ByteRange(NamedTuple):
    """The bytes ``start`` to ``stop - 1`` of a file.

    ``stamp`` and ``size`` are the stamp and the size of the file in a listing. ``stamp`` is "" for a file
    that is never rewritten, and for a file without a known stamp.
    """

    path: str
    start: int
    stop: int
    stamp: str = ""
    size: int | None = None


class Answer(NamedTuple):
    """The bytes that a store sent, and what it said about the whole file.

    ``stamp`` is the ETag of the file, or "" if the store sent none. ``size`` is the size of the file, or None
    if it is unknown. ``is_range`` is False if the server sent the whole file instead of the range.
    ``retries`` counts the repetitions by the library of the store.
    """

    data: bytes
    stamp: str = ""
    size: int | None = None
    is_range: bool = True
    retries: int = 0


class ReplacedError(Exception):
    """The store refused a request because the file has another ETag. The text is the path."""


class FailedRangeError(Exception):
    """One of several ranges cannot be read, because of ``failure``."""

    def __init__(self, wanted: ByteRange, failure: Exception) -> None:
        super().__init__(wanted.path)
        self.wanted, self.failure = wanted, failure


class _RepeatedError(Exception):
    """A request failed, and the library of the store has already repeated it. The failure is the cause."""


class _ShortAnswerError(ConnectionError):
    """The store sent fewer bytes than it said."""


# Guards the counts, which are changed by the event loop and by the threads that read.
_COUNTING = fork_safe_locks(1)


@dataclass
class RequestCounts:
    """The requests for ranges of remote files, counted since the object was created or unpickled.

    ``requests`` includes the requests that were repeated, whose number is ``retries``. ``bytes`` were sent by
    the store, and ``cached_bytes`` came from a cache on a local disk.
    """

    requests: int = 0
    retries: int = 0
    bytes: int = 0
    cached_bytes: int = 0

    def add(self, **more: int) -> None:
        """Add numbers to the counts with these names."""
        with _COUNTING[0]:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)

    def __reduce__(self) -> tuple[Any, ...]:
        return RequestCounts, ()


def has_range_requests(fs: AbstractFileSystem) -> bool:
    """Return True if this module can request ranges from a filesystem."""
    return bool(fs.async_impl and not getattr(fs, "asynchronous", False) and hasattr(fs, "_cat_file"))


def request(fs: AbstractFileSystem, wanted: ByteRange, counts: RequestCounts) -> "Future[Answer]":
    """Request a range, and return at once.

    The future raises `ReplacedError`, or an exception of the storage library. Cancel it to stop the request.
    """
    return asyncio.run_coroutine_threadsafe(_fetch(fs, wanted, counts), fs.loop)


def request_all(
    fs: AbstractFileSystem,
    ranges: Sequence[ByteRange],
    counts: RequestCounts,
    cache: BlockCache | None = None,
    read: "Callable[[Sequence[ByteRange]], Iterable[Answer]] | None" = None,
) -> list[tuple[bytes, list[str]]]:
    """Read several ranges together, with at most `MOST_REQUESTS` requests at a time.

    ``read`` reads the ranges of a filesystem that is not asynchronous.

    Ranges of more than `REQUEST_BYTES` bytes are requested in parts, and bytes that the cache has are not
    requested. Return the bytes of each range, and the ETags of the answers.
    """
    parts = [[*_parts(fs, wanted, cache)] for wanted in ranges]
    missing = [part.wanted for each in parts for part in each if part.data is None]
    answers: Iterator[Answer] = iter(())
    if missing and read is not None:
        answers = iter(read(missing))
    elif missing:
        answers = iter(wait(asyncio.run_coroutine_threadsafe(_fetch_all(fs, missing, counts), fs.loop)))
    contents = []
    for wanted, each in zip(ranges, parts, strict=True):
        content: list[Buffer] = []
        stamps = []
        for part in each:
            if part.data is None:
                answer = next(answers)
                content.append(answer.data)
                stamps.append(answer.stamp)
                if cache and part.key and (not wanted.stamp or is_same(answer.stamp, wanted.stamp)):
                    cache.store(part.key, part.wanted.start, answer.data, answer.size)
            else:
                content.append(part.data)
                counts.add(cached_bytes=part.wanted.stop - part.wanted.start)
        contents.append((_joined(wanted, each[0].wanted.start if each else 0, content), stamps))
    return contents


def _joined(wanted: ByteRange, first: int, content: list[Buffer]) -> bytes:
    """Join bytes that begin at byte ``first`` of a file, and cut the range out of them."""
    size = wanted.stop - wanted.start
    if first == wanted.start and len(content) == 1 and isinstance(content[0], bytes):
        return content[0][:size]
    return b"".join(content)[wanted.start - first :][:size]


class _Part(NamedTuple):
    """A part of a range: bytes to request, or bytes from the cache. ``key`` names the file in the cache."""

    wanted: ByteRange
    data: Buffer | None = None
    key: str | None = None


def _parts(fs: AbstractFileSystem, wanted: ByteRange, cache: BlockCache | None) -> Iterator[_Part]:
    """Yield the parts of a range. With a cache, they consist of whole blocks."""
    key, spans = None, [CachedRange(wanted.start, wanted.stop, None)]
    if cache is not None and (key := cache.key(fs, wanted.path, wanted.size, wanted.stamp)) is not None:
        spans = cache.find(key, wanted.start, wanted.stop)
    for start, stop, data in spans:
        step = REQUEST_BYTES if data is None else stop - start
        for at in range(start, stop, step):
            yield _Part(wanted._replace(start=at, stop=min(at + step, stop)), data, key)


def wait(future: "Future[_T]") -> _T:
    """Wait for the result of a future. If the wait ends early, such as by Ctrl-C, cancel the future."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def is_same(stamp: str, other: str) -> bool:
    """Compare two ETags. Some answers have quotes that the listing of the same store lacks."""
    return _bare(stamp) == _bare(other)


def _bare(stamp: str) -> str:
    return stamp.removeprefix("W/").strip('"')


async def _fetch_all(
    fs: AbstractFileSystem, ranges: Sequence[ByteRange], counts: RequestCounts
) -> list[Answer]:
    gate = asyncio.Semaphore(MOST_REQUESTS)

    async def fetch(wanted: ByteRange) -> Answer:
        async with gate:
            try:
                return await _fetch(fs, wanted, counts)
            except (FileNotFoundError, ReplacedError):
                raise
            except Exception as error:  # storage libraries raise exceptions of many classes
                raise FailedRangeError(wanted, error) from error

    tasks = [asyncio.ensure_future(fetch(wanted)) for wanted in ranges]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _fetch(fs: AbstractFileSystem, wanted: ByteRange, counts: RequestCounts) -> Answer:
    """Request a range. If the request fails for a temporary reason, repeat it."""
    send, began = _sender(fs), monotonic()
    for pause in (*_PAUSES, None):
        counts.add(requests=1)
        try:
            answer = await send(fs, wanted)
            counts.add(bytes=len(answer.data), requests=answer.retries, retries=answer.retries)
            if answer.size is not None:
                missing = min(wanted.stop, answer.size) - wanted.start - len(answer.data)
                if missing > 0:
                    raise _ShortAnswerError(f"{missing:,} bytes are missing in the answer of the store")
            return answer
        except _RepeatedError as error:
            failure = error.__cause__ or error
        except Exception as error:  # storage libraries raise exceptions of many classes
            failure = error
            is_early = monotonic() - began < _REPEATED_SECONDS
            if pause is not None and is_early and is_passing(error):
                counts.add(retries=1)
                await asyncio.sleep(pause * uniform(0.5, 1))
                continue
        raise failure
    raise AssertionError  # the last pause is None, so the loop has returned or raised


# -- One function for each kind of store ---------------------------------------------------------------------

_Send = Callable[[Any, ByteRange], Awaitable[Answer]]


def _sender(fs: AbstractFileSystem) -> _Send:
    if hasattr(fs, "_call_s3"):
        return _from_s3
    if hasattr(fs, "service_client") and hasattr(fs, "_timeout_kwargs"):
        return _from_azure
    if hasattr(fs, "_call") and hasattr(fs, "url"):
        return _from_google
    return _from_web if hasattr(fs, "encode_url") and hasattr(fs, "set_session") else _from_any


async def _from_s3(fs: Any, wanted: ByteRange) -> Answer:
    from botocore.exceptions import HTTPClientError

    bucket, key, version = fs.split_path(wanted.path)
    options = {"VersionId": version} if version else {}
    if wanted.stamp:
        options["IfMatch"] = wanted.stamp
    try:
        sent = await fs._call_s3(
            "get_object", fs.req_kw, Bucket=bucket, Key=key, Range=_header(wanted), **options
        )
    except Exception as error:
        answer = s3_answer(error)
        if status_of(error) == HTTPStatus.PRECONDITION_FAILED:
            raise ReplacedError(wanted.path) from error
        if status_of(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # the file ends before the range
            size = answer.get("Error", {}).get("ActualObjectSize")
            return Answer(b"", size=None if size is None else int(size))
        # s3fs repeats requests that were not answered, and botocore those that a server refused for now.
        if isinstance(error, HTTPClientError) or answer.get("ResponseMetadata", {}).get("RetryAttempts"):
            raise _RepeatedError from error
        raise
    body = sent["Body"]
    try:
        data = await body.read()
    finally:
        body.close()
    retries = sent["ResponseMetadata"].get("RetryAttempts", 0)
    return Answer(data, sent.get("ETag", ""), _total(sent.get("ContentRange")), retries=retries)


async def _from_google(fs: Any, wanted: ByteRange) -> Answer:
    bucket, _, _ = fs.split_path(wanted.path)
    if hasattr(fs, "_is_zonal_bucket") and await fs._is_zonal_bucket(bucket):
        return await _from_any(fs, wanted)  # zonal buckets do not answer over HTTP
    try:
        headers, data = await fs._call("GET", fs.url(wanted.path), headers={"Range": _header(wanted)})
    except Exception as error:  # gcsfs has repeated the request
        raise _RepeatedError from error
    return Answer(data, headers.get("ETag", ""), _total(headers.get("Content-Range")))


async def _from_azure(fs: Any, wanted: ByteRange) -> Answer:
    from azure.core import MatchConditions
    from azure.core.exceptions import (
        HttpResponseError,
        ResourceModifiedError,
        ResourceNotFoundError,
        ServiceRequestError,
        ServiceResponseError,
    )

    container, blob, version = fs.split_path(fs._strip_protocol(wanted.path))
    options = {"version_id": version, "max_concurrency": 1, **fs._timeout_kwargs}
    if wanted.stamp:
        options |= {"etag": wanted.stamp, "match_condition": MatchConditions.IfNotModified}
    async with fs.service_client.get_blob_client(container=container, blob=blob) as client:
        try:
            stream = await client.download_blob(
                offset=wanted.start, length=wanted.stop - wanted.start, **options
            )
            data = bytes(await stream.readall())
        except ResourceNotFoundError as error:
            raise FileNotFoundError(wanted.path) from error
        except ResourceModifiedError as error:
            raise ReplacedError(wanted.path) from error
        except (HttpResponseError, ServiceRequestError, ServiceResponseError) as error:
            raise _RepeatedError from error
    return Answer(data, stream.properties.etag or "", _total(stream.properties.content_range))


async def _from_web(fs: Any, wanted: ByteRange) -> Answer:
    headers = {**fs.kwargs.get("headers", {}), "Range": _header(wanted), "Accept-Encoding": "identity"}
    session = await fs.set_session()
    async with session.get(fs.encode_url(wanted.path), **{**fs.kwargs, "headers": headers}) as found:
        said, stamp = found.headers.get("Content-Range"), found.headers.get("ETag", "")
        if found.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return Answer(b"", stamp, _total(said))
        fs._raise_not_found_for_status(found, wanted.path)
        if found.status == HTTPStatus.PARTIAL_CONTENT:
            return Answer(await found.read(), stamp, _total(said))
        # The server sends the whole file. Only read it up to the end of the range.
        data, at = bytearray(), 0
        while at < wanted.stop and (part := await found.content.read(1 << 16)):
            data += part[max(0, wanted.start - at) : wanted.stop - at]
            at += len(part)
        return Answer(bytes(data), stamp, found.content_length, is_range=False)


async def _from_any(fs: Any, wanted: ByteRange) -> Answer:
    # The answer does not say how large the file is. One byte more shows whether the file ends here.
    data = bytes(await fs._cat_file(wanted.path, start=wanted.start, end=wanted.stop + 1))
    count = wanted.stop - wanted.start
    return Answer(data[:count], size=wanted.start + len(data) if len(data) <= count else None)


def _header(wanted: ByteRange) -> str:
    return f"bytes={wanted.start}-{wanted.stop - 1}"


def _total(content_range: str | None) -> int | None:
    """Return the size of the file from a header such as ``bytes 0-99/1234``."""
    match = re.search(r"/(\d+)$", content_range or "")
    return int(match[1]) if match else None
