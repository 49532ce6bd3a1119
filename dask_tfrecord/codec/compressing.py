"""Compress the blocks of a file. The module `compressing` knows bytes, but does not know files.

Each block can be decompressed without the blocks before it. All blocks of a file together form an ordinary
compressed file, which every reader of the format can read.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
from isal import isal_zlib
from typing_extensions import Buffer

from dask_tfrecord.codec import adler32_combine, crc32_combine
from dask_tfrecord.errors import CorruptRecordError

# The highest compression level that ISA-L has; the lowest level is 0. Higher levels use zlib, which is many
# times slower.
_HIGHEST_ISAL_LEVEL = 3

# The header of gzip files, which has no file name, no time and no operating system. The zlib header declares
# a window of 32 KiB and the default level.
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_ZLIB_HEADER = b"\x78\x9c"

# The empty block that ends a deflate stream.
EMPTY_LAST_BLOCK = b"\x03\0"

# The last bytes of the full flush that ends each block of a gzip or zlib file.
_FLUSH = b"\0\0\xff\xff"

# The size in bytes of the window of xz. A block has about this many bytes, so a larger window would only use
# more memory. The default window of xz is 8 MiB.
_XZ_WINDOW_BYTES = 1 << 20


class Compressor(Protocol):
    """Compress the blocks of one file. The file consists of ``head``, the compressed blocks, and the result
    of `tail`.

    The bytes of the file depend only on the content of its blocks and on the level.

    Attributes
    ----------
    head : bytes
        The first bytes of the file.
    tail_bytes : int
        The number of bytes after the last block of a file that has at least one block.
    end_bytes : int
        The number of bytes at the end of such a file that `add_file` needs.
    """

    head: bytes
    tail_bytes: int
    end_bytes: int

    def compress(self, content: Buffer, /) -> bytes:
        """Compress the content of a block, and return the compressed bytes.

        Several threads may call `compress` at the same time.
        """

    def add(self, content: Buffer, /) -> None:
        """Add the content of a block to the checksum and size in the tail of the file.

        `add` must be called once for each block, in the order of the blocks in the file.
        """

    def add_file(self, end: bytes, size: int) -> None:
        """Add the content of another file, whose blocks become blocks of this file, to the checksum and the
        size.

        ``end`` holds the last `end_bytes` bytes of the other file, and ``size`` is the size of its content.

        Raises
        ------
        CorruptRecordError
            If the other file does not end as files of this class do.
        """

    def tail(self) -> bytes:
        """Return the bytes of the file that follow the last block."""


class DeflateCompressor:
    """Compress the blocks of a gzip or zlib file, which is one deflate stream with a full flush after each
    block.

    The blocks are not separate gzip members or zlib streams. TensorFlow silently stops reading a gzip file if
    the end of a member lies across the end of TensorFlow's read buffer. Of several zlib streams, TensorFlow
    reads only the first stream.
    """

    def __init__(self, level: int, *, gzip: bool) -> None:
        self.head = _GZIP_HEADER if gzip else _ZLIB_HEADER
        self._level = level
        self._library: Any = isal_zlib if level <= _HIGHEST_ISAL_LEVEL else zlib
        self._update_checksum = isal_zlib.crc32 if gzip else isal_zlib.adler32
        self._combine = crc32_combine if gzip else adler32_combine
        self._gzip = gzip
        self.tail_bytes = 10 if gzip else 6
        self.end_bytes = self.tail_bytes + len(_FLUSH)
        self._checksum = self._update_checksum(b"")
        self._size = 0

    def compress(self, content: Buffer, /) -> bytes:
        stream = self._library.compressobj(self._level, zlib.DEFLATED, -zlib.MAX_WBITS)
        start: bytes = stream.compress(content)
        end: bytes = stream.flush(zlib.Z_FULL_FLUSH)
        return start + end

    def add(self, content: Buffer, /) -> None:
        self._checksum = self._update_checksum(content, self._checksum)
        self._size += memoryview(content).nbytes

    def add_file(self, end: bytes, size: int) -> None:
        if not end.startswith(_FLUSH + EMPTY_LAST_BLOCK):
            raise CorruptRecordError("the last block does not end as docs/format.md specifies")
        checksum = int.from_bytes(end[6:10], "little" if self._gzip else "big")
        self._checksum = self._combine(self._checksum, checksum, size)
        self._size += size

    def tail(self) -> bytes:
        if not self._gzip:
            return EMPTY_LAST_BLOCK + self._checksum.to_bytes(4, "big")
        size = self._size & 0xFFFF_FFFF
        return EMPTY_LAST_BLOCK + self._checksum.to_bytes(4, "little") + size.to_bytes(4, "little")


class FrameCompressor:
    """Compress the blocks of a file in which each block is a complete frame. A file without blocks consists
    of one empty frame.

    Parameters
    ----------
    compress : callable
        Function that compresses the content of a block to one frame.
    """

    head = b""
    tail_bytes = end_bytes = 0

    def __init__(self, compress: Callable[[Buffer], bytes]) -> None:
        self.compress = compress
        self._empty = True

    def add(self, content: Buffer, /) -> None:
        self._empty = False

    def add_file(self, end: bytes, size: int) -> None:
        self._empty = False

    def tail(self) -> bytes:
        return self.compress(b"") if self._empty else b""


def gzip(level: int) -> Compressor:
    """Return the compressor of a gzip file."""
    return DeflateCompressor(level, gzip=True)


def zlib_(level: int) -> Compressor:
    """Return the compressor of a zlib file."""
    return DeflateCompressor(level, gzip=False)


def zstd(level: int) -> Compressor:
    """Return the compressor of a file of Zstandard frames."""
    return FrameCompressor(lambda content: _arrow_frame("zstd", level, content))


def lz4(level: int) -> Compressor:
    """Return the compressor of a file of LZ4 frames."""
    return FrameCompressor(lambda content: _arrow_frame("lz4", level, content))


def bz2_(level: int) -> Compressor:
    """Return the compressor of a file of bzip2 streams."""
    return FrameCompressor(lambda content: bz2.compress(content, level))


def xz(level: int) -> Compressor:
    """Return the compressor of a file of xz streams."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": level, "dict_size": _XZ_WINDOW_BYTES}]
    return FrameCompressor(lambda content: lzma.compress(content, check=lzma.CHECK_CRC32, filters=filters))


def _arrow_frame(name: str, level: int, content: Buffer) -> bytes:
    """Compress the content of a block to one frame with Arrow's codec ``name``."""
    frame: bytes = pa.Codec(name, compression_level=level).compress(content, asbytes=True)
    return frame
