"""What gzip and zlib are called, how they are recognised, and whole-file streams of them.

Knows bytes only. What is written is one standard stream; what is read may be several, one after the other.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from isal import igzip_lib, isal_zlib
from typing_extensions import Buffer

from dask_tfrecord.codec import scan
from dask_tfrecord.errors import CorruptRecordError

Compression = Literal["gzip", "zlib"]

SUFFIXES: dict[Compression | None, str] = {None: "", "gzip": ".gz", "zlib": ".zz"}

# Bytes of a file's start that `detect` wants to see: the length of a first record and its checksum.
HEAD_BYTES = 12

_WBITS: dict[Compression, int] = {"gzip": 31, "zlib": 15}
_FLAGS: dict[Compression, int] = {"gzip": igzip_lib.DECOMP_GZIP, "zlib": igzip_lib.DECOMP_ZLIB}

# The best trade of ISA-L's four levels: about half the speed of level 1, about the size of zlib's 3.
_LEVEL = 2

# Compressed bytes read at a time, and the most that one step of decompression gives: together they bound
# the memory, whatever a stream expands to.
_INPUT_BYTES = 1 << 18
_OUTPUT_BYTES = 1 << 20

# isal's stub says that this is an instance.
_Damaged: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]


class Compressor(Protocol):
    """A stream in the making; what both calls return is to be written in that order."""

    def compress(self, data: Buffer, /) -> bytes: ...
    def flush(self) -> bytes: ...


def compressor(compression: Compression) -> Compressor:
    """A new stream. The same bytes in give the same bytes out: there is no time or name in it."""
    stream: Compressor = isal_zlib.compressobj(level=_LEVEL, wbits=_WBITS[compression])
    return stream


def detect(head: bytes) -> Compression | None:
    """What a file that starts with these (up to ``HEAD_BYTES``) bytes is compressed with.

    A first record may begin like a zlib stream, so a length with the right checksum is believed first.
    """
    if len(head) >= HEAD_BYTES and scan(head[:HEAD_BYTES], final=False).damage is None:
        return None
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    is_deflate = len(head) >= 2 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7
    if is_deflate and int.from_bytes(head[:2], "big") % 31 == 0:
        return "zlib"
    return None


class Decompressor:
    """The content of a compressed file, read forward through ``readinto``.

    Every stream (gzip member) of the file is read to its end and its checksum; zeros may follow the last
    one, as tape and block tools pad with them. Anything else raises CorruptRecordError, with the offset
    in the content. An empty file has no content.

    Parameters
    ----------
    readinto : callable
        Fills a view with the next compressed bytes and returns how many; 0 at the end of the file.
    compression : "gzip" or "zlib"
    """

    def __init__(self, readinto: Callable[[memoryview], int], compression: Compression) -> None:
        self._readinto = readinto
        self._compression = compression
        self._buffer = memoryview(bytearray(_INPUT_BYTES))
        self._ahead = b""  # read, and not yet given to a stream
        self._stream: igzip_lib.IgzipDecompressor | None = None
        self._streams = 0
        self._offset = 0  # in the content
        self._stream_offset = 0

    def readinto(self, view: memoryview) -> int:
        """Fill the start of ``view`` and return how many bytes; 0 only at the end of the content."""
        size = min(len(view), _OUTPUT_BYTES)
        while stream := self._stream or self._next_stream():
            content = self._step(stream, size)
            if content:
                view[: len(content)] = content
                self._offset += len(content)
                return len(content)
        return 0

    def _next_stream(self) -> igzip_lib.IgzipDecompressor | None:
        """Start on the next stream; None at the end of the file."""
        data = self._take()
        if self._streams:
            data = data.lstrip(b"\0")
            while not data and (more := self._take()):
                data = more.lstrip(b"\0")
        if not data:
            return None
        self._ahead = data
        self._stream = igzip_lib.IgzipDecompressor(flag=_FLAGS[self._compression])
        self._streams += 1
        self._stream_offset = self._offset
        return self._stream

    def _step(self, stream: igzip_lib.IgzipDecompressor, size: int) -> bytes:
        """At most ``size`` bytes more of the stream; maybe none."""
        data = self._take() if stream.needs_input else b""
        if stream.needs_input and not data:
            raise self._damage(f"the {self._compression} stream is cut off")
        try:
            content = stream.decompress(data, size)
        except _Damaged as error:
            if self._streams > 1 and self._offset == self._stream_offset:
                problem = f"the {self._compression} stream is followed by bytes that are not one"
            else:
                problem = f"the {self._compression} stream is damaged ({error})"
            raise self._damage(problem) from None
        if stream.eof:
            self._ahead = stream.unused_data
            self._stream = None
        return content

    def _take(self) -> bytes:
        data, self._ahead = self._ahead, b""
        return data or bytes(self._buffer[: self._readinto(self._buffer)])

    def _damage(self, problem: str) -> CorruptRecordError:
        return CorruptRecordError(problem, offset=self._offset)
