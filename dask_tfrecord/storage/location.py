"""List and read the files of a filesystem below a root directory."""

import errno
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import pyarrow as pa
from fsspec import AbstractFileSystem
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.memory import MemoryFile
from fsspec.utils import tokenize
from typing_extensions import Buffer

from dask_tfrecord.errors import FileChangedError
from dask_tfrecord.storage.block_cache import BlockCache, CachedFile
from dask_tfrecord.storage.cached_files import open_cached, read_cached
from dask_tfrecord.storage.failures import check_missing
from dask_tfrecord.storage.filesystem import ArrowFileSystem, Hidden, Info, find_all, glob_all, is_web
from dask_tfrecord.storage.forked import OfThisProcess
from dask_tfrecord.storage.local_disk import METADATA_BYTES, too_large
from dask_tfrecord.storage.paths import name_of, parent_of, unquoted_path
from dask_tfrecord.storage.range_requests import (
    REQUEST_BYTES,
    Answer,
    ByteRange,
    FailedRangeError,
    ReplacedError,
    RequestCounts,
    has_range_requests,
    is_same,
    request_all,
)
from dask_tfrecord.storage.read_ahead import ReadAhead, RemoteRange
from dask_tfrecord.storage.reader import (
    ADVICE,
    Checksum,
    ExpectedFile,
    FileReader,
    Version,
    removed,
    rewritten,
)
from dask_tfrecord.storage.redaction import without_credentials

_S = TypeVar("_S")
_T = TypeVar("_T")

# The largest number of concurrent requests if each file needs one request.
_THREADS = 16


@dataclass(frozen=True, repr=False)
class Location:
    """The part of a `Store` that lists and reads files. Paths are those of the filesystem, without protocol.

    Dask tasks contain stores, so that workers open the same filesystem as the client. The repr of a store
    contains no storage options, and its token only a hash of them.
    """

    fs: AbstractFileSystem
    root: str
    # Lists the files instead of the store, and knows to which paths they were moved.
    version: Version | None = None
    # An fsspec cache on top of ``fs``. Only `open` and `read_ranges` use it.
    cache: AbstractFileSystem | None = None
    # A cache of blocks on a local disk.
    block_cache: BlockCache | None = field(default=None, compare=False)
    # The requests for files that are opened next, in the ``with`` block of `reading_ahead`.
    ahead: ReadAhead | None = field(default=None, compare=False)
    # True if most callers read only the start of a file, so that few requests are sent ahead.
    is_sparing: bool = field(default=False, compare=False)
    # If a checksum is set, reads add all their bytes to it. With a checksum, only one file may be open at a
    # time.
    checksum: Checksum | None = field(default=None, compare=False)
    # All requests for ranges of remote files are added to these counts.
    counts: RequestCounts = field(default_factory=RequestCounts, compare=False)

    # True for a remote store: requests take time and may fail, and other libraries cannot open the paths.
    is_remote: ClassVar[bool] = True
    # The number of bytes that can be read in the time that one additional request takes.
    request_cost: ClassVar[int] = 1 << 20
    # True if a move does not change a file's stamp, and if an open file can be read after the move.
    move_keeps_stamp: ClassVar[bool] = False

    def __repr__(self) -> str:
        return f"Store({self.public()!r})"

    def __dask_tokenize__(self) -> tuple[str, ...]:
        fs = self.fs
        cache = () if self.cache is None else (type(self.cache).__qualname__, self.cache.storage_options)
        return type(fs).__qualname__, tokenize(fs.storage_args, fs.storage_options, *cache), self.root

    def join(self, relative: str) -> str:
        return f"{self.root.rstrip('/')}/{relative}"

    def relative(self, path: str) -> str:
        """Convert a full path below the root to a relative path.

        This method is the inverse of `join`.
        """
        return path[len(self.join("")) :]

    def listed_name(self, path: str) -> str:
        """Convert a full path to the form of file lists: relative to the root, without percent-encoding."""
        return unquoted_path(path).removeprefix(unquoted_path(self.join("")))

    def public(self, path: str | None = None) -> str:
        """Return a path, or the root, as a URL without credentials and query, for messages and results."""
        path = self.root if path is None else path
        scheme, _, rest = without_credentials(str(self.fs.unstrip_protocol(path))).partition("://")
        if scheme in ("http", "https"):
            rest = rest.partition("?")[0]
        host, slash, tail = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{tail}"

    def public_paths(self, paths: Sequence[str]) -> list[str]:
        """Convert several paths as `public` does.

        To save time, `public` is called once for each directory.
        """
        known: dict[str, str] = {}

        def public(path: str) -> str:
            if "?" in path:  # the text after "?" may be a query with a secret
                return self.public(path)
            parent = parent_of(path)
            if parent not in known:
                known[parent] = self.public(f"{parent}/")
            return f"{known[parent]}{name_of(path)}"

        return [*map(public, paths)]

    def real_path(self, path: str) -> str:
        """Resolve the links in a path.

        Return a remote path unchanged, because readers see no links on remote stores.
        """
        return path

    def for_each(self, function: Callable[[_S], _T], items: Iterable[_S]) -> list[_T]:
        """Call a function for each item. On a remote store, the calls run concurrently."""
        given = [*items]
        if len(given) < 2:
            return [*map(function, given)]
        with ThreadPoolExecutor(_THREADS) as pool:
            return [*pool.map(function, given)]

    # -- Listing ---------------------------------------------------------------------------------------------

    def names(self, directory: str) -> list[str]:
        """List the names in a directory below the root, without a cache.

        If the directory is missing, return an empty list.
        """
        return [*self.infos(directory)]

    def infos(self, directory: str) -> dict[str, Info | None]:
        """Map each name in a directory below the root to fsspec's info, or to None if the store lists only
        names. The listing does not come from a cache. A missing directory has no names.
        """
        # Over HTTP, fsspec would list a file as a directory.
        if "://" in self.root and not self.root.endswith("/"):
            return {}
        path = self.join(directory)
        self.fs.invalidate_cache(path)
        try:
            infos = self._ls(path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {name: info for one, info in infos.items() if (name := name_of(one.rstrip("/")))}

    def _ls(self, path: str) -> dict[str, Info | None]:
        # On S3, `isdir` lists the directory, and fsspec caches the listing for `ls`. For a missing directory,
        # `ls` would list the parent directory, which may contain many files.
        if hasattr(self.fs, "call_s3") and "/" in path.strip("/") and not self.fs.isdir(path):
            return {}
        return {info["name"]: info for info in self.fs.ls(path, detail=True)}

    def has_file(self, path: str) -> bool:
        """Return True if a file exists. The answer never comes from a cache.

        Raise if the request fails. The method `exists` of most filesystems would return False.
        """
        try:
            if hasattr(self.fs, "call_s3"):  # `info` would send a second request to list a directory
                bucket, _, key = path.partition("/")
                self.fs.call_s3("head_object", Bucket=bucket, Key=key, **self.fs.req_kw)
            else:
                self._info(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            check_missing(error, self.public(path))
            return False
        return True

    def find(self, path: str, is_hidden: Hidden, *, with_hidden: bool = False) -> dict[str, Info]:
        """Return a dict that maps the path of each file below a directory to the file's info.

        On a local disk, follow links, and leave out files in directories whose names are hidden. On a local
        disk, ``with_hidden=True`` also returns the directories themselves, including hidden ones.
        """
        return find_all(self.fs, path)

    def find_everything(self, directory: str = "") -> dict[str, Info]:
        """Return a dict that maps the path of each file below a directory to the file's info, also of the
        files in hidden directories. Do not follow links to directories. A missing directory has no files.

        The directory is relative to the root.
        """
        try:
            return find_all(self.fs, self.join(directory).rstrip("/") if directory else self.root)
        except FileNotFoundError:
            return {}

    def glob(self, pattern: str, is_hidden: Hidden) -> dict[str, Info]:
        return glob_all(self.fs, pattern)

    # -- Reading ---------------------------------------------------------------------------------------------

    @contextmanager
    def open(
        self,
        path: str,
        size: int | None,
        start: int = 0,
        stop: int | None = None,
        stamp: str = "",
        *,
        may_be_restamped: bool = False,
        stored: Buffer | None = None,
    ) -> Iterator[FileReader]:
        """Open a file to read the stored bytes that begin at ``start`` and end before ``stop``. By default,
        the range is the whole file.

        ``size`` and ``stamp`` are those of the listed file. Raise FileChangedError if a known size or stamp
        differs from the current size or stamp. If ``may_be_restamped`` is True, a different stamp raises no
        error: the caller must compare the content if ``is_restamped`` of the reader is True. If the caller
        has the bytes from `read_ranges`, it passes them as ``stored``, and no file is opened.
        """
        if stored is not None:
            expected = self._expected(path, size, "", whole=not start and stop is None)
            yield FileReader(io.BytesIO(stored), expected, start, stop)
            return
        with ExitStack() as stack:

            def enter(position: int, at: str) -> FileReader:
                known = stamp if at == path or self.move_keeps_stamp else ""
                expected = self._expected(at, size, known, whole=not position and stop is None)
                return self._open(stack, at, expected, position, stop, may_be_restamped)

            def open_at(position: int) -> FileReader:
                return self.with_current_path(path, partial(enter, position))

            reader = open_at(start)
            if self.version is not None and not self.move_keeps_stamp:
                reader.open_at = open_at
            if self.checksum is not None:
                reader.checksums.append(self.checksum)
            yield reader

    def _expected(self, path: str, size: int | None, stamp: str, *, whole: bool) -> ExpectedFile:
        resized = partial(self._resized, path, size or 0)
        return ExpectedFile(self.public(path), size, stamp, whole, partial(self._info, path), resized)

    def _resized(self, path: str, size: int, now: str) -> FileChangedError:
        """Return the error for a file that should have ``size`` bytes. ``now`` describes its current size."""
        if self.version is not None:
            return self.version.resized(self, path, size, now)
        problem = f"the file had {size:,} bytes when it was listed and has {now} now"
        return FileChangedError(problem, ADVICE, path=self.public(path))

    def _open(
        self,
        stack: ExitStack,
        path: str,
        expected: ExpectedFile,
        start: int,
        stop: int | None,
        may_be_restamped: bool,
    ) -> FileReader:
        try:
            file = None
            if self.cache is not None and self.is_remote:
                file = open_cached(self.cache, path, expected.size)
            if file is None:
                file = self._open_file(path, expected, start, stop)
            file = stack.enter_context(file)
            now = self._details(file, path, expected)
            if may_be_restamped:
                expected.check_size(now)
            else:
                expected.check(now)
            if start and not isinstance(file, RemoteRange):
                file.seek(start)
        except Exception as error:  # fsspec and the storage libraries raise exceptions of many classes
            expected.explain(error)
        if is_restamped := expected.is_restamped(now):
            expected = replace(expected, stamp="")  # later failures have another cause
            if isinstance(file, RemoteRange):
                file.expected = expected
        elif (cache := self.block_cache) is not None and not isinstance(file, RemoteRange):
            key = cache.key(self.fs, path, expected.size, expected.stamp)
            if key is not None and expected.size is not None:
                file = CachedFile(file, cache, key, expected.size, self.counts)
        # Without a version, the caller divides a file only if the server sends ranges.
        can_stream = self.version is not None or expected.whole
        stream = None
        if can_stream and is_web(self.fs):
            stream = partial(self._open_stream, stack, path)
        return FileReader(file, expected, start, stop, is_restamped=is_restamped, stream=stream)

    def _open_stream(self, stack: ExitStack, path: str) -> Any:
        return stack.enter_context(self.fs.open(path, "rb", block_size=0))

    def _open_file(self, path: str, expected: ExpectedFile, start: int, stop: int | None) -> Any:
        """Open a file for reading, without a buffer, because `FileReader` buffers what it reads."""
        end = expected.size if stop is None else stop
        if end is not None and start < end and has_range_requests(self.fs):
            wanted = ByteRange(path, start, end, expected.stamp, expected.size)
            return self._open_range(wanted, expected)
        options: dict[str, Any] = {"block_size": REQUEST_BYTES, "cache_type": "none"}
        if expected.whole and is_web(self.fs):
            options["block_size"] = 0  # a server without support for ranges can answer this request
        if expected.stamp:
            self.fs.invalidate_cache(path)  # fsspec would take the info of the file from an old listing
        file = self.fs.open(path, "rb", **options)
        # In fsspec, all readers of an in-memory file share one file object, and therefore one position.
        return io.BytesIO(file.getvalue()) if isinstance(file, MemoryFile) else file

    def _open_range(self, wanted: ByteRange, expected: ExpectedFile) -> RemoteRange:
        opened = None if self.ahead is None else self.ahead.open(wanted)
        if opened is None:
            ahead = ReadAhead(self.fs, [wanted], self.counts, self.block_cache, is_sparing=self.is_sparing)
            opened = ahead.open(wanted)
        assert opened is not None
        opened.expected = expected
        return opened

    @contextmanager
    def reading_ahead(self, ranges: Sequence[ByteRange | None]) -> Iterator[Self]:
        """Yield a store whose `open` finds the next of these ranges already requested.

        ``ranges`` lists what will be opened, in order. Unknown ranges are None, and are requested when they
        are opened. On exit, the requests for ranges that were not opened are cancelled.
        """
        if len(ranges) < 2 or self.ahead or self.cache is not None or not has_range_requests(self.fs):
            yield self
            return
        known = [one for one in ranges if one is not None and one.start < one.stop]
        with ReadAhead(self.fs, known, self.counts, self.block_cache) as ahead:
            yield replace(self, ahead=ahead)

    def _details(self, file: Any, path: str, expected: ExpectedFile) -> Info:
        """Return the current info of an open file, if possible without a further request."""
        # An open pyarrow file does not provide the modification time.
        if isinstance(file, io.BytesIO) or isinstance(self.fs, ArrowFileSystem):
            return self._info(path)
        return dict(getattr(file, "details", None) or {})

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Read byte ranges of files, concurrently if possible.

        A range that ends after the end of its file is shorter than requested. Raise FileRemovedError if a
        file was removed, and FileChangedError if the stamp of a range is not the current stamp of its file.
        """
        if self.cache is not None and self.is_remote:
            cached = read_cached(self.cache, ranges)
            missing = [one for one, data in zip(ranges, cached, strict=True) if data is None]
            others = iter(replace(self, cache=None).read_ranges(missing) if missing else ())
            return [next(others) if data is None else data for data in cached]
        with suppress(FileNotFoundError):
            return self._read_ranges(ranges)

        def read_one(wanted: ByteRange, at: str) -> bytes:
            stamp = wanted.stamp if at == wanted.path or self.move_keeps_stamp else ""
            return self._read_ranges([wanted._replace(path=at, stamp=stamp)])[0]

        return [self.with_current_path(wanted.path, partial(read_one, wanted)) for wanted in ranges]

    def _read_ranges(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        if not has_range_requests(self.fs):
            self._check_stamps(ranges)

            def read(wanted: Sequence[ByteRange]) -> list[Answer]:
                contents = self._read_in_order(wanted)
                self.counts.add(requests=len(contents), bytes=sum(map(len, contents)))
                return [Answer(data, one.stamp, one.size) for data, one in zip(contents, wanted, strict=True)]

            if self.block_cache is None:
                return [answer.data for answer in read(ranges)]
            return [data for data, _ in request_all(self.fs, ranges, self.counts, self.block_cache, read)]
        try:
            answers = request_all(self.fs, ranges, self.counts, self.block_cache)
        except ReplacedError as error:
            raise rewritten(self.public(str(error))) from None
        except FailedRangeError as error:
            path, _, _, stamp, size = error.wanted
            self._expected(path, size, stamp, whole=False).explain(error.failure)
        unsure = []
        for wanted, (_, stamps) in zip(ranges, answers, strict=True):
            if any(one and not is_same(one, stamps[0]) for one in stamps):
                raise rewritten(self.public(wanted.path))
            if stamps and not is_same(stamps[0], wanted.stamp):
                unsure.append(wanted)  # only the listings of this store may have this stamp
        self._check_stamps(unsure)
        return [data for data, _ in answers]

    def _check_stamps(self, ranges: Sequence[ByteRange]) -> None:
        """Raise FileChangedError if the stamp of a range is not the current stamp of its file."""

        def check(wanted: tuple[str, str]) -> None:
            path, stamp = wanted
            self._expected(path, None, stamp, whole=False).check(self._info(path))

        self.for_each(check, dict.fromkeys((one.path, one.stamp) for one in ranges if one.stamp))

    def _read_in_order(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        paths, starts, stops = ([one[at] for one in ranges] for at in range(3))
        # A pyarrow file cannot seek to the start of a range, not even to 0, unless asked to.
        options = {"seekable": True} if isinstance(self.fs, ArrowFSWrapper) else {}
        return [*self.fs.cat_ranges(paths, starts, stops, on_error="raise", **options)]

    def read_file(self, path: str, most_bytes: int = METADATA_BYTES) -> bytes:
        """Return the content of a small file, such as a file of metadata.

        Raise FileNotFoundError if no file exists. Raise ValueError if the path is a directory, a pipe or a
        device, or if the file has more than ``most_bytes`` bytes.
        """
        try:
            data = self._read_start(path, most_bytes + 1)
        except IsADirectoryError:
            raise ValueError("is a directory, not a regular file") from None
        except NotADirectoryError as error:
            raise FileNotFoundError(errno.ENOENT, "a parent is not a directory", path) from error
        if len(data) > most_bytes:
            raise too_large(most_bytes)
        return data

    def _read_start(self, path: str, count: int) -> bytes:
        """Return the first ``count`` bytes of a file, or the whole file if it is shorter."""
        # A web server may send the whole file for the request of a range. A pyarrow file cannot seek, not
        # even to its start.
        streams = is_web(self.fs)
        if streams or isinstance(self.fs, ArrowFSWrapper):
            options = {"block_size": 0, "size": count} if streams else {}
            with self.fs.open(path, "rb", **options) as file:
                parts = []
                while count and (part := file.read(min(count, REQUEST_BYTES))):
                    parts.append(part)
                    count -= len(part)
                return b"".join(parts)
        # An SFTP server would wait for the writer of a pipe.
        if hasattr(self.fs, "is_link") and self._info(path)["type"] not in ("file", "directory"):
            raise ValueError("is a pipe, a socket or a device, not a regular file")
        try:
            return bytes(self.fs.cat_file(path, start=0, end=count))
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise
        except Exception:  # some stores refuse to send a range of an empty file
            if self._info(path).get("size") == 0:
                return b""
            raise

    def read_ends(self, paths: Sequence[str], count: int) -> list[bytes | Exception]:
        """Return the last ``count`` bytes of each file, or the exception if the file cannot be read."""
        starts, stops = [-count] * len(paths), [None] * len(paths)
        try:
            return list(self.fs.cat_ranges([*paths], starts, stops, on_error="return"))
        except Exception as error:  # obstore has no ranges that count from the end of a file
            return [error] * len(paths)

    def map_file(self, path: str, size: int | None) -> pa.Buffer | None:
        """Map a file from a listing into memory. Return None if the file is not on a local disk.

        Raise FileChangedError if the file does not have a known ``size``.
        """
        return None

    def with_current_path(self, path: str, read: Callable[[str], _T]) -> _T:
        """Call ``read`` with the current path of a file from a listing. Raise FileRemovedError if the file
        was removed.
        """
        try:
            return read(path)
        except FileNotFoundError as error:
            check_missing(error, self.public(path))
            for other in self.version.other_paths(self, path) if self.version is not None else ():
                with suppress(FileNotFoundError):
                    return read(other)
            raise removed(self.public(path)) from error

    def is_restamped(self, path: str, size: int | None, stamp: str) -> bool:
        """Return True if the modification time or the ETag of a file differs from ``stamp``.

        Raise FileChangedError if the size of the file differs from a known ``size``, and FileRemovedError if
        it was removed.
        """
        expected, now = self._expected(path, size, stamp, whole=False), self.info(path)
        expected.check_size(now)
        return expected.is_restamped(now)

    def info(self, path: str) -> Info:
        """Request the current info of a file, or of the target of a link, from the store.

        On a store where a move changes the stamp, the info of a moved file contains only the size.
        """

        def info_of(at: str) -> Info:
            info = self._info(at)
            return info if at == path or self.move_keeps_stamp else {"size": info.get("size")}

        return self.with_current_path(path, info_of)

    def _info(self, path: str) -> Info:
        self.fs.invalidate_cache(path)
        return dict(self.fs.info(path))


# A dataclass would take a descriptor in the body of the class for a default value.
for _name in ("fs", "cache"):
    _attribute = OfThisProcess()
    _attribute.__set_name__(Location, _name)
    setattr(Location, _name, _attribute)
