"""Decompress a compressed file, read forward in bounded memory.

Any tool may have written the file, and the file may hold several streams or frames one after the other. The
module `decompressing` knows bytes, but does not know files.
"""

import bz2
import lzma
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from isal import igzip_lib

from dask_tfrecord.errors import CorruptRecordError

# The largest number of compressed bytes that one step reads, and of decompressed bytes that one step returns.
# These limits bound the memory, however much the data expands.
_INPUT_BYTES = 1 << 18
_OUTPUT_BYTES = 1 << 20

_XZ_MEMORY_BYTES = 1 << 28

# The exceptions that the libraries raise for damaged compressed data.
_ISAL_ERROR: Any = igzip_lib.IsalError  # IsalError is a class, but isal's type stub declares an instance
_DAMAGE: tuple[type[Exception], ...] = (_ISAL_ERROR, lzma.LZMAError, OSError)

# Type of a function that fills a view with the next bytes and returns the number of these bytes. The function
# returns 0 only at the end.
ReadInto: TypeAlias = Callable[[memoryview], int]


class Decompressor(Protocol):
    """A reader of the decompressed content of one compressed file."""

    def readinto(self, view: memoryview, /) -> int:
        """Fill the start of ``view`` with decompressed content. Return the number of these bytes, which is 0
        only at the end.

        Raises
        ------
        CorruptRecordError
            If the compressed data is damaged or ends too early. The error has the offset of the damage in the
            decompressed content.
        """


class StreamDecompressor:
    """Read all streams (gzip members) of a file to their ends, and verify the checksums of the streams.

    Zeros may follow the last stream, because tools for tapes and block devices pad files with zeros. All
    other bytes after a stream are damage.

    Parameters
    ----------
    name : str
        The name of the codec, for error messages.
    readinto : callable
        Function that reads the compressed bytes of the file.
    new_stream : callable
        Function that returns a decompressor object of igzip_lib, bz2 or lzma for the next stream. The
        decompressor object detects the end of the stream.
    single : bool, default False
        If True, ignore all bytes after the first stream.
    """

    def __init__(
        self, name: str, readinto: ReadInto, new_stream: Callable[[], Any], *, single: bool = False
    ) -> None:
        self._name = name
        self._readinto = readinto
        self._new_stream = new_stream
        self._single = single
        self._buffer = memoryview(bytearray(_INPUT_BYTES))
        self._unread = b""  # compressed bytes that no stream has consumed
        self._stream: Any = None
        self._streams = 0
        self._offset = 0  # the offset in the decompressed content
        self._stream_offset = 0

    def readinto(self, view: memoryview, /) -> int:
        size = min(len(view), _OUTPUT_BYTES)
        while stream := self._stream or self._next_stream():
            content = self._step(stream, size)
            if content:
                view[: len(content)] = content
                self._offset += len(content)
                return len(content)
        return 0

    def _next_stream(self) -> Any:
        """Start the next stream of the file and return its decompressor object.

        At the end of the file, return None.
        """
        if self._single and self._streams:
            return None
        data = self._take()
        if self._streams:
            data = data.lstrip(b"\0")
            while not data and (more := self._take()):
                data = more.lstrip(b"\0")
        if not data:
            return None
        self._unread = data
        self._stream = self._new_stream()
        self._streams += 1
        self._stream_offset = self._offset
        return self._stream

    def _step(self, stream: Any, size: int) -> bytes:
        """Decompress at most ``size`` bytes of the stream. The returned bytes may be empty."""
        data = self._take() if stream.needs_input else b""
        is_later = self._streams > 1 and self._offset == self._stream_offset  # a later stream without content
        if stream.needs_input and not data:
            problem = f"the {self._name} stream is cut off"
            if is_later:  # the bytes are too few to tell
                problem = (
                    f"the {self._name} stream is followed by bytes that are not a whole {self._name} stream"
                )
            raise self._damage(problem)
        try:
            content: bytes = stream.decompress(data, size)
        except _DAMAGE as error:
            if is_later:
                problem = f"the {self._name} stream is followed by bytes that are not a {self._name} stream"
            else:
                problem = f"the {self._name} stream is damaged ({error})"
            raise self._damage(problem) from None
        if stream.eof:
            self._unread = stream.unused_data
            self._stream = None
        return content

    def _take(self) -> bytes:
        """Return the next compressed bytes of the file. At the end of the file, return empty bytes."""
        data, self._unread = self._unread, b""
        return data or bytes(self._buffer[: self._readinto(self._buffer)])

    def _damage(self, problem: str) -> CorruptRecordError:
        return CorruptRecordError(problem, offset=self._offset)


class ArrowDecompressor:
    """Read all frames of a file to their ends with pyarrow. All other bytes after a frame are damage."""

    def __init__(self, name: str, readinto: ReadInto) -> None:
        self._name = name
        self._source = _Source(readinto)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._source, "r"), name)
        self._offset = 0  # the offset in the decompressed content

    def readinto(self, view: memoryview, /) -> int:
        try:
            count: int = self._stream.readinto(view[:_OUTPUT_BYTES])
        except OSError as error:
            if self._source.failure:
                raise self._source.failure from None
            problem = f"the {self._name} file is damaged, cut off or followed by other bytes ({error})"
            raise CorruptRecordError(problem, offset=self._offset) from None
        self._offset += count
        return count


class _Source:
    """A file-like object for pyarrow, with the methods that pyarrow calls.

    The object keeps the error of a failed read.
    """

    closed = False

    def __init__(self, readinto: ReadInto) -> None:
        self._readinto = readinto
        self.failure: OSError | None = None

    def read(self, size: int) -> bytes:
        buffer = memoryview(bytearray(size))
        try:
            return bytes(buffer[: self._readinto(buffer)])
        except OSError as error:
            self.failure = error
            raise

    def close(self) -> None:
        """Leave the underlying file open, because the caller closes the file."""


# Each function below opens a whole file or, if ``inside`` is True, the rest of a file from a later block on.
# Only deflate treats the two cases differently: inside a deflate stream there is no header, and only the
# checksum follows the stream.


def gzip(readinto: ReadInto, *, inside: bool) -> Decompressor:
    """Return the decompressor of a gzip file, which may have several members."""
    return _deflate("gzip", igzip_lib.DECOMP_GZIP, readinto, inside)


def zlib(readinto: ReadInto, *, inside: bool) -> Decompressor:
    """Return the decompressor of a file with one or more zlib streams."""
    return _deflate("zlib", igzip_lib.DECOMP_ZLIB, readinto, inside)


def zstd(readinto: ReadInto, *, inside: bool) -> Decompressor:
    """Return the decompressor of a file of Zstandard frames."""
    return ArrowDecompressor("zstd", readinto)


def lz4(readinto: ReadInto, *, inside: bool) -> Decompressor:
    """Return the decompressor of a file of LZ4 frames."""
    return ArrowDecompressor("lz4", readinto)


def bz2_(readinto: ReadInto, *, inside: bool) -> Decompressor:
    """Return the decompressor of a file of bzip2 streams."""
    return StreamDecompressor("bz2", readinto, bz2.BZ2Decompressor)


def xz(readinto: ReadInto, *, inside: bool) -> Decompressor:
    """Return the decompressor of a file of xz streams."""

    def new_stream() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)

    return StreamDecompressor("xz", readinto, new_stream)


def _deflate(name: str, flag: int, readinto: ReadInto, inside: bool) -> Decompressor:
    """Return a decompressor that uses ISA-L. ``flag`` selects the header and checksum of gzip or zlib."""
    flag = igzip_lib.DECOMP_DEFLATE if inside else flag
    return StreamDecompressor(name, readinto, lambda: igzip_lib.IgzipDecompressor(flag=flag), single=inside)
