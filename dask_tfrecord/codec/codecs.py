"""What the compressions are called, how they are recognised, and what compressed files are made of.

Knows bytes only. What is written consists of blocks that decompress without each other; what is read may be
any standard file, of several streams or frames too.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

import pyarrow as pa
from isal import igzip_lib, isal_zlib
from typing_extensions import Buffer

from dask_tfrecord.codec import HEADER_BYTES, scan
from dask_tfrecord.errors import CorruptRecordError, TFRecordError

Compression = Literal["gzip", "zlib", "zstd", "lz4", "bz2", "xz"]

SUFFIXES: dict[Compression | None, str] = {
    None: "",
    "gzip": ".gz",
    "zlib": ".zz",
    "zstd": ".zst",
    "lz4": ".lz4",
    "bz2": ".bz2",
    "xz": ".xz",
}

# What TensorFlow reads.
PORTABLE: tuple[Compression | None, ...] = (None, "gzip", "zlib")

# More is smaller and slower. Deflate's levels 0 to 3 are those of ISA-L, from 4 on those of zlib, which are
# many times slower.
LEVELS: dict[Compression, range] = {
    "gzip": range(10),
    "zlib": range(10),
    "zstd": range(1, 23),
    "lz4": range(1, 13),
    "bz2": range(1, 10),
    "xz": range(10),
}

# ISA-L's 2 is the best trade of its levels: nearly the speed of 1, about the size of zlib's 3. The others'
# are the defaults of their libraries; xz is slow at its own, 6.
_DEFAULT_LEVELS: dict[Compression, int] = {"gzip": 2, "zlib": 2, "zstd": 1, "lz4": 1, "bz2": 9, "xz": 1}
_HIGHEST_OF_ISAL = 3

_MAGIC: dict[bytes, Compression] = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
}

# No name, no time, no operating system; and for zlib a window of 32 KiB and no hint at the level.
_GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_ZLIB_HEAD = b"\x78\x9c"
_LAST_BLOCK = b"\x03\0"  # an empty one, which says that none follows

# A match cannot be further back than this: xz takes up memory for a block, not for its usual 8 MiB.
_XZ_WINDOW_BYTES = 1 << 20
_XZ_MEMORY_BYTES = 1 << 28

# Compressed bytes read at a time, and the most that one step of decompression gives: together they bound
# the memory, whatever a stream expands to.
_INPUT_BYTES = 1 << 18
_OUTPUT_BYTES = 1 << 20

ReadInto: TypeAlias = Callable[[memoryview], int]

# What the libraries raise for data that is not theirs.
_ISAL_ERROR: Any = igzip_lib.IsalError  # a class, which isal's stub calls an instance
_DAMAGED: tuple[type[Exception], ...] = (_ISAL_ERROR, lzma.LZMAError, OSError)


def check_level(compression: Compression | None, level: int | None) -> None:
    """Refuse a level that the compression does not have."""
    if level is None:
        return
    if compression is None:
        raise TFRecordError(
            f"compression_level={level!r} without a compression",
            advice="pass compression= too, or leave the level out",
        )
    known = LEVELS[compression]
    if not isinstance(level, int) or isinstance(level, bool) or level not in known:
        raise TFRecordError(
            f"unknown compression_level {level!r}",
            advice=f"{compression} has the levels {known.start} to {known.stop - 1}",
        )


class Blocks(Protocol):
    """A compressed file in the making: ``head``, each block of content by itself, and the tail."""

    head: bytes

    def compress(self, content: Buffer, /) -> bytes:
        """A block; any number of threads may make some at once."""

    def add(self, content: Buffer, /) -> None:
        """Take note of a block's content, in the file's order."""

    def tail(self) -> bytes:
        """What follows the last block."""


def blocks(compression: Compression, level: int | None = None) -> Blocks:
    """A new file, whose bytes depend on nothing but the blocks' content and the level."""
    if level is None:
        level = _DEFAULT_LEVELS[compression]
    if compression in ("gzip", "zlib"):
        return _Deflate(level, gzip=compression == "gzip")
    return _Frames(compression, level)


class _Deflate:
    """gzip or zlib as one stream with a full flush after every block.

    Not a gzip member a block: TensorFlow stops without a word where a member's end lies across the end of
    its read buffer, and reads only the first of several zlib streams.
    """

    def __init__(self, level: int, *, gzip: bool) -> None:
        self.head = _GZIP_HEAD if gzip else _ZLIB_HEAD
        self._level = level
        self._library: Any = isal_zlib if level <= _HIGHEST_OF_ISAL else zlib
        self._sum = isal_zlib.crc32 if gzip else isal_zlib.adler32
        self._gzip = gzip
        self._checksum = self._sum(b"")
        self._size = 0

    def compress(self, content: Buffer, /) -> bytes:
        stream = self._library.compressobj(self._level, zlib.DEFLATED, -zlib.MAX_WBITS)
        start: bytes = stream.compress(content)
        end: bytes = stream.flush(zlib.Z_FULL_FLUSH)
        return start + end

    def add(self, content: Buffer, /) -> None:
        self._checksum = self._sum(content, self._checksum)
        self._size += memoryview(content).nbytes

    def tail(self) -> bytes:
        if not self._gzip:
            return _LAST_BLOCK + self._checksum.to_bytes(4, "big")
        size = self._size & 0xFFFF_FFFF
        return _LAST_BLOCK + self._checksum.to_bytes(4, "little") + size.to_bytes(4, "little")


class _Frames:
    """Every block is a frame or stream of its own; a file without content has an empty one."""

    head = b""

    def __init__(self, compression: Compression, level: int) -> None:
        self._compression = compression
        self._level = level
        self._empty = True

    def compress(self, content: Buffer, /) -> bytes:
        if self._compression == "bz2":
            return bz2.compress(content, self._level)
        if self._compression == "xz":
            window = {"id": lzma.FILTER_LZMA2, "preset": self._level, "dict_size": _XZ_WINDOW_BYTES}
            return lzma.compress(content, check=lzma.CHECK_CRC32, filters=[window])
        codec = pa.Codec(self._compression, compression_level=self._level)
        frame: bytes = codec.compress(content, asbytes=True)
        return frame

    def add(self, content: Buffer, /) -> None:
        self._empty = False

    def tail(self) -> bytes:
        return self.compress(b"") if self._empty else b""


def is_frame(head: bytes) -> bool:
    """Whether these are the length of a record and its checksum (and more)."""
    return len(head) >= HEADER_BYTES and scan(head[:HEADER_BYTES], final=False).damage is None


def detect(head: bytes) -> Compression | None:
    """What a file that starts with these (up to ``HEADER_BYTES``) bytes is compressed with.

    A first record may begin like a zlib stream, so a length with the right checksum is believed first.
    """
    if is_frame(head):
        return None
    for magic, compression in _MAGIC.items():
        if head.startswith(magic):
            return compression
    is_deflate = len(head) >= 2 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7
    if is_deflate and int.from_bytes(head[:2], "big") % 31 == 0:
        return "zlib"
    return None


def decompressor(
    readinto: ReadInto, compression: Compression, *, inside: bool = False
) -> "StreamDecompressor | FrameDecompressor":
    """The content of a compressed file, read forward through ``readinto``.

    Damage raises CorruptRecordError, with the offset in the content. An empty file has no content.

    Parameters
    ----------
    readinto : callable
        Fills a view with the next compressed bytes and returns how many; 0 at the end of the file.
    compression : str
        Its compression.
    inside : bool
        Whether ``readinto`` begins with one of the later blocks of a file that this library wrote.
    """
    if compression in ("zstd", "lz4"):
        return FrameDecompressor(readinto, compression)
    return StreamDecompressor(readinto, compression, inside=inside and compression in ("gzip", "zlib"))


class _Stream(Protocol):
    """What igzip_lib, bz2 and lzma call a decompressor: of one stream, which ends by itself."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _stream(compression: Compression, inside: bool) -> _Stream:
    if compression == "bz2":
        return bz2.BZ2Decompressor()
    if compression == "xz":
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
    flag = igzip_lib.DECOMP_GZIP if compression == "gzip" else igzip_lib.DECOMP_ZLIB
    flag = igzip_lib.DECOMP_DEFLATE if inside else flag
    stream: _Stream = igzip_lib.IgzipDecompressor(flag=flag)
    return stream


class StreamDecompressor:
    """gzip, zlib, bz2 and xz.

    Every stream (gzip member) of the file is read to its end and its checksum; zeros may follow the last
    one, as tape and block tools pad with them. Anything else is damage.
    """

    def __init__(self, readinto: ReadInto, compression: Compression, *, inside: bool = False) -> None:
        self._readinto = readinto
        self._compression = compression
        self._inside = inside  # a stream without its head, after which only its checksum follows
        self._buffer = memoryview(bytearray(_INPUT_BYTES))
        self._ahead = b""  # read, and not yet given to a stream
        self._stream: _Stream | None = None
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

    def _next_stream(self) -> _Stream | None:
        """Start on the next stream; None at the end of the file."""
        if self._inside and self._streams:
            return None
        data = self._take()
        if self._streams:
            data = data.lstrip(b"\0")
            while not data and (more := self._take()):
                data = more.lstrip(b"\0")
        if not data:
            return None
        self._ahead = data
        self._stream = _stream(self._compression, self._inside)
        self._streams += 1
        self._stream_offset = self._offset
        return self._stream

    def _step(self, stream: _Stream, size: int) -> bytes:
        """At most ``size`` bytes more of the stream; maybe none."""
        data = self._take() if stream.needs_input else b""
        if stream.needs_input and not data:
            raise self._damage(f"the {self._compression} stream is cut off")
        try:
            content = stream.decompress(data, size)
        except _DAMAGED as error:
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


class FrameDecompressor:
    """zstd and lz4: all frames of the file, each read to its end; nothing else may follow them."""

    def __init__(self, readinto: ReadInto, compression: Compression) -> None:
        self._compression = compression
        self._source = _Source(readinto)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._source, "r"), compression)
        self._offset = 0  # in the content

    def readinto(self, view: memoryview) -> int:
        """Fill the start of ``view`` and return how many bytes; 0 only at the end of the content."""
        try:
            count: int = self._stream.readinto(view[:_OUTPUT_BYTES])
        except OSError as error:
            if self._source.failure:
                raise self._source.failure from None
            problem = f"the {self._compression} file is damaged or cut off ({error})"
            raise CorruptRecordError(problem, offset=self._offset) from None
        self._offset += count
        return count


class _Source:
    """As much of a file as pyarrow asks of one. What went wrong while reading it is not damage."""

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
        """The file belongs to who opened it."""
