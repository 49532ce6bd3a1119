"""Define the compression codecs: detect the codec of a file, compress blocks, and decompress files.

To add a codec, add its name to `Compression` and a `Codec` to `CODECS`. The module works on bytes, and reads
and writes no files. Each compressed block can be decompressed without the blocks before it, and all blocks of
a file together form an ordinary compressed file. Compressed files from any tool are read from start to end in
bounded memory, and may contain several consecutive streams or frames.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal, Protocol, TypeAlias

import pyarrow as pa
from isal import igzip_lib, isal_zlib
from typing_extensions import Buffer

from dask_tfrecord.codec import HEADER_BYTES, adler32_combine, crc32_combine, scan
from dask_tfrecord.errors import CorruptRecordError, Remedy, TFRecordError

# The highest compression level of ISA-L, whose lowest level is 0. For higher levels, the package uses zlib,
# which is many times slower than ISA-L.
_HIGHEST_ISAL_LEVEL = 3

# _GZIP_HEADER contains no file name and no modification time, and marks the operating system as unknown.
# _ZLIB_HEADER declares a window of 32 KiB and the default level.
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_ZLIB_HEADER = b"\x78\x9c"

# The bytes of the empty block that ends a deflate stream.
EMPTY_LAST_BLOCK = b"\x03\0"

# Each block that the package writes to a gzip or zlib file ends with a full flush. A full flush ends with
# these four bytes.
_FLUSH = b"\0\0\xff\xff"

# The window size in bytes with which xz files are compressed. A block has about as many bytes as the window,
# so a larger window would only use more memory. The default window size of xz is 8 MiB.
_XZ_WINDOW_BYTES = 1 << 20


class Compressor(Protocol):
    """Compress the blocks of one file, which consists of ``head``, the compressed blocks, and the result of
    `tail`.

    The bytes of the file depend only on the content of the blocks and on the level. ``tail_bytes`` is the
    size of the tail of a file with at least one block. `add_file` needs the last ``end_bytes`` bytes of the
    file to add.
    """

    head: bytes
    tail_bytes: int
    end_bytes: int

    def compress(self, content: Buffer, /) -> bytes:
        """Compress a block. Several threads may call `compress` at the same time."""

    def add(self, content: Buffer, /) -> None:
        """Include a block in the checksum and the size that the tail stores. Call `add` once for each block,
        in the order of the blocks in the file.
        """

    def add_file(self, end: bytes, size: int) -> None:
        """Include the content of another file in the checksum and the size that the tail stores.

        The blocks of the other file become blocks of this one. ``size`` is the decompressed size of the added
        blocks, and ``end`` contains the last `end_bytes` bytes of the other file. Raise CorruptRecordError if
        ``end`` cannot be the last bytes of a file that this class compressed.
        """

    def tail(self) -> bytes: ...


class DeflateCompressor:
    """Compress the blocks of a gzip or zlib file, which is one deflate stream with a full flush after each
    block.

    The blocks are not separate gzip members or zlib streams. TensorFlow silently stops reading a gzip file if
    the end of a member crosses the end of TensorFlow's read buffer. If a file contains several zlib streams,
    TensorFlow reads only the first.
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
    """Compress each block into a complete frame with ``compress``. A file without blocks consists of one
    empty frame.
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


def compress_gzip(level: int) -> Compressor:
    """Return a compressor for a gzip file."""
    return DeflateCompressor(level, gzip=True)


def compress_zlib(level: int) -> Compressor:
    """Return a compressor for a zlib file."""
    return DeflateCompressor(level, gzip=False)


def compress_zstd(level: int) -> Compressor:
    """Return a compressor for a file of Zstandard frames."""
    return FrameCompressor(lambda content: _arrow_frame("zstd", level, content))


def compress_lz4(level: int) -> Compressor:
    """Return a compressor for a file of LZ4 frames."""
    return FrameCompressor(lambda content: _arrow_frame("lz4", level, content))


def compress_bz2(level: int) -> Compressor:
    """Return a compressor for a file of bzip2 streams."""
    return FrameCompressor(lambda content: bz2.compress(content, level))


def compress_xz(level: int) -> Compressor:
    """Return a compressor for a file of xz streams."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": level, "dict_size": _XZ_WINDOW_BYTES}]
    return FrameCompressor(lambda content: lzma.compress(content, check=lzma.CHECK_CRC32, filters=filters))


def _arrow_frame(name: str, level: int, content: Buffer) -> bytes:
    frame: bytes = pa.Codec(name, compression_level=level).compress(content, asbytes=True)
    return frame


# One step reads at most _INPUT_BYTES compressed bytes, and returns at most _OUTPUT_BYTES decompressed bytes.
# The two limits bound the memory of a step, however much the data expands.
_INPUT_BYTES = 1 << 18
_OUTPUT_BYTES = 1 << 20

_XZ_MEMORY_BYTES = 1 << 28

# The exceptions that the compression libraries raise for damaged data.
_ISAL_ERROR: Any = igzip_lib.IsalError  # IsalError is a class, but isal's type stub declares an instance
_DAMAGE: tuple[type[Exception], ...] = (_ISAL_ERROR, lzma.LZMAError, OSError)

# Type of a function that copies the next bytes into a view and returns the number of copied bytes. The
# function returns 0 only at the end of the data.
ReadInto: TypeAlias = Callable[[memoryview], int]


class Decompressor(Protocol):
    def readinto(self, view: memoryview, /) -> int:
        """Fill the start of ``view`` with decompressed content. Return the number of bytes written to
        ``view``, which is 0 only at the end of the content.

        For damaged data, raise CorruptRecordError with the offset of the damage in the decompressed content.
        """


class StreamDecompressor:
    """Read all streams (gzip members) of a file to their ends, and verify the checksums of the streams.

    Zeros may follow the last stream, because tools for tapes and block devices pad files with zeros. Bytes
    after a stream count as damage unless they are zeros or another stream. If ``single`` is True, the content
    ends after the first stream. ``new_stream`` returns a decompressor of igzip_lib, bz2 or lzma that detects
    the end of its stream.
    """

    def __init__(
        self, name: str, readinto: ReadInto, new_stream: Callable[[], Any], *, single: bool = False
    ) -> None:
        self._name = name
        self._readinto = readinto
        self._new_stream = new_stream
        self._single = single
        self._buffer = memoryview(bytearray(_INPUT_BYTES))
        self._unread = b""  # the compressed bytes that no stream has consumed yet
        self._stream: Any = None
        self._streams = 0
        self._offset = 0  # the offset of the next byte in the decompressed content
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
        """Start and return the next stream of the file, or return None at its end."""
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
        # A second or later stream has started, but has not returned any content.
        is_later = self._streams > 1 and self._offset == self._stream_offset
        if stream.needs_input and not data:
            problem = f"the {self._name} stream is cut off"
            if is_later:  # the remaining bytes are too few to recognise a stream
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
        """Return the next compressed bytes of the file, or empty bytes at its end."""
        data, self._unread = self._unread, b""
        return data or bytes(self._buffer[: self._readinto(self._buffer)])

    def _damage(self, problem: str) -> CorruptRecordError:
        return CorruptRecordError(problem, offset=self._offset)


class ArrowDecompressor:
    """Read all frames of a file to their ends with pyarrow. Bytes between or after the frames count as
    damage.
    """

    def __init__(self, name: str, readinto: ReadInto) -> None:
        self._name = name
        self._source = _Source(readinto)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._source, "r"), name)
        self._offset = 0  # the offset of the next byte in the decompressed content

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
    """A file-like object with the methods that pyarrow calls. ``failure`` is the error of a failed read, if
    any.
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
        """Do nothing, because the caller closes the underlying file."""


# Each function below decompresses a complete file. If ``inside`` is True, the input starts at a block inside
# the file. The argument ``inside`` matters only for gzip and zlib: from a block on, their data is a deflate
# stream without a header, followed by a checksum.


def decompress_gzip(readinto: ReadInto, *, inside: bool) -> Decompressor:
    """Return a decompressor for a gzip file, which may have several members."""
    return _deflate("gzip", igzip_lib.DECOMP_GZIP, readinto, inside)


def decompress_zlib(readinto: ReadInto, *, inside: bool) -> Decompressor:
    """Return a decompressor for a file with one or more zlib streams."""
    return _deflate("zlib", igzip_lib.DECOMP_ZLIB, readinto, inside)


def decompress_zstd(readinto: ReadInto, *, inside: bool) -> Decompressor:
    """Return a decompressor for a file of Zstandard frames."""
    return ArrowDecompressor("zstd", readinto)


def decompress_lz4(readinto: ReadInto, *, inside: bool) -> Decompressor:
    """Return a decompressor for a file of LZ4 frames."""
    return ArrowDecompressor("lz4", readinto)


def decompress_bz2(readinto: ReadInto, *, inside: bool) -> Decompressor:
    """Return a decompressor for a file of bzip2 streams."""
    return StreamDecompressor("bz2", readinto, bz2.BZ2Decompressor)


def decompress_xz(readinto: ReadInto, *, inside: bool) -> Decompressor:
    """Return a decompressor for a file of xz streams."""

    def new_stream() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)

    return StreamDecompressor("xz", readinto, new_stream)


def _deflate(name: str, flag: int, readinto: ReadInto, inside: bool) -> Decompressor:
    """Return an ISA-L decompressor. ``flag`` selects the header and checksum of either gzip or zlib."""
    flag = igzip_lib.DECOMP_DEFLATE if inside else flag
    return StreamDecompressor(name, readinto, lambda: igzip_lib.IgzipDecompressor(flag=flag), single=inside)


# The number of bytes that `decompress_block` decompresses in one step.
_CHUNK_BYTES = 1 << 18

Compression = Literal["gzip", "zlib", "zstd", "lz4", "bz2", "xz"]


class OpenDecompressor(Protocol):
    """Open a decompressor for a file. If ``inside`` is True, the input starts at a block inside the file."""

    def __call__(self, readinto: ReadInto, *, inside: bool) -> Decompressor: ...


@dataclass(frozen=True)
class Codec:
    """A compression format.

    A file in this format starts with one of the byte strings in ``magic``. ``default_level`` is used for
    ``compression_level=None``. ``tensorflow`` is True if TensorFlow can read files of this format.
    """

    suffix: str
    magic: tuple[bytes, ...]
    levels: range
    default_level: int
    compress: Callable[[int], Compressor]
    decompress: OpenDecompressor
    tensorflow: bool = False


# zlib defines no magic number, so _ZLIB_HEADERS contains all byte pairs with which a zlib file can begin. The
# first byte of a zlib file encodes the method deflate and a window size. The first two bytes form a
# big-endian number that is divisible by 31.
_ZLIB_HEADERS = tuple(
    bytes([first, second])
    for first in range(0x08, 0x88, 0x10)
    for second in range(256)
    if (first << 8 | second) % 31 == 0
)

# Level 2 of ISA-L, the default for gzip and zlib, is nearly as fast as level 1 and compresses about as well
# as level 3 of zlib. For xz, the default is level 1, because the library's default level 6 is slow. The
# codecs zstd, lz4 and bz2 use the default levels of their libraries.
CODECS: dict[Compression, Codec] = {
    "gzip": Codec(".gz", (b"\x1f\x8b",), range(10), 2, compress_gzip, decompress_gzip, tensorflow=True),
    "zlib": Codec(".zz", _ZLIB_HEADERS, range(10), 2, compress_zlib, decompress_zlib, tensorflow=True),
    "zstd": Codec(".zst", (b"\x28\xb5\x2f\xfd",), range(1, 23), 1, compress_zstd, decompress_zstd),
    "lz4": Codec(".lz4", (b"\x04\x22\x4d\x18",), range(1, 13), 1, compress_lz4, decompress_lz4),
    "bz2": Codec(".bz2", (b"BZh",), range(1, 10), 9, compress_bz2, decompress_bz2),
    "xz": Codec(".xz", (b"\xfd7zXZ\0",), range(10), 1, compress_xz, decompress_xz),
}

# The suffixes of all codecs without the dot, such as "gz".
SUFFIXES = tuple(codec.suffix[1:] for codec in CODECS.values())


def suffix_of(compression: Compression | None) -> str:
    """Return the suffix of file names for a codec, such as ".gz", or "" for uncompressed files."""
    return CODECS[compression].suffix if compression else ""


def codec_of_name(name: str) -> Compression | None:
    suffix = f".{name.rpartition('.')[2]}"
    return next((name for name, codec in CODECS.items() if codec.suffix == suffix), None)


def known_codec(stored: str | None, name: str) -> Compression | None:
    """Return the codec ``stored`` in a snapshot, where "none" means uncompressed. If ``stored`` is None,
    return the codec for the suffix of the file name.
    """
    return codec_of_name(name) if stored is None else next((one for one in CODECS if one == stored), None)


def check_level(compression: Compression | None, level: int | None) -> None:
    if level is None:
        return
    if compression is None:
        problem = f"compression_level={level!r} has no effect without compression="
        remedy = Remedy("write_options", {"compression_level": None}, "write them uncompressed")
        raise TFRecordError(problem, Remedy("compression", "gzip", "compress the files"), remedy)
    levels = CODECS[compression].levels
    if not isinstance(level, int) or isinstance(level, bool) or level not in levels:
        raise TFRecordError(
            f"compression_level={level!r} is not valid",
            f"give a level from {levels.start} to {levels.stop - 1} for {compression}",
        )


def compressor(compression: Compression, level: int | None = None) -> Compressor:
    codec = CODECS[compression]
    return codec.compress(codec.default_level if level is None else level)


def decompressor(readinto: ReadInto, compression: Compression, *, inside: bool = False) -> Decompressor:
    """Return a decompressor for a file. An empty file decompresses to empty content.

    If ``inside`` is True, ``readinto`` does not begin at the start of a file, but at a later block of a file
    that this library wrote.
    """
    return CODECS[compression].decompress(readinto, inside=inside)


def decompress_block(stored: Buffer, compression: Compression) -> bytearray:
    """Return the content of one block, or of several adjacent blocks, given their stored bytes."""
    end = EMPTY_LAST_BLOCK if compression in ("gzip", "zlib") else b""
    stream = decompressor(BytesIO(bytes(stored) + end).readinto, compression, inside=True)
    content, chunk = bytearray(), memoryview(bytearray(_CHUNK_BYTES))
    while count := stream.readinto(chunk):
        content += chunk[:count]
    return content


def is_frame(head: bytes) -> bool:
    """Return True if the bytes start with a record length and its correct checksum."""
    return len(head) >= HEADER_BYTES and scan(head[:HEADER_BYTES], final=False).damage is None


def detect(head: bytes) -> Compression | None:
    """Return the codec of a file, given at least its first ``HEADER_BYTES`` bytes, or None for an
    uncompressed file.

    An uncompressed record may start like a zlib stream, so data that starts with a record length and its
    correct checksum never counts as compressed.
    """
    if is_frame(head):
        return None
    return next((name for name, codec in CODECS.items() if head.startswith(codec.magic)), None)
