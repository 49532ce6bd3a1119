"""Define the compression codecs, and detect the codec of a file from its first bytes.

To add a codec, add its name to `Compression` and a `Codec` to `CODECS`. The module `codecs` does not read
files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Literal, Protocol

from typing_extensions import Buffer

from dask_tfrecord.codec import HEADER_BYTES, compressing, decompressing, scan
from dask_tfrecord.codec.compressing import EMPTY_LAST_BLOCK, Compressor
from dask_tfrecord.codec.decompressing import Decompressor, ReadInto
from dask_tfrecord.errors import Remedy, TFRecordError

# The number of bytes that `decompress_block` decompresses in one step.
_CHUNK_BYTES = 1 << 18

Compression = Literal["gzip", "zlib", "zstd", "lz4", "bz2", "xz"]


class OpenDecompressor(Protocol):
    """Type of a function that opens the decompressor of a file.

    If ``inside`` is True, the compressed bytes begin at a block after the first block.
    """

    def __call__(self, readinto: ReadInto, *, inside: bool) -> Decompressor: ...


@dataclass(frozen=True)
class Codec:
    """A compression format, with a compressor and a decompressor for the format.

    Parameters
    ----------
    suffix : str
        The suffix, including the dot, of the names of the files that this library writes with this codec.
    magic : tuple of bytes
        The byte sequences with which files of this format start; each file starts with one of them.
    levels : range
        The valid compression levels. A higher level gives smaller files but is slower.
    default_level : int
        The level that ``compression_level=None`` means.
    compress : callable
        Function that takes a level and returns the compressor of a new file.
    decompress : callable
        Function that opens the decompressor of a file.
    tensorflow : bool, default False
        True if TensorFlow can read files of this format.
    """

    suffix: str
    magic: tuple[bytes, ...]
    levels: range
    default_level: int
    compress: Callable[[int], Compressor]
    decompress: OpenDecompressor
    tensorflow: bool = False


# The two first bytes that a zlib file can have, because zlib has no magic number. The first byte of a zlib
# file names deflate and a window size. The two bytes, read as a big-endian number, are divisible by 31.
_ZLIB_HEADERS = tuple(
    bytes([first, second])
    for first in range(0x08, 0x88, 0x10)
    for second in range(256)
    if (first << 8 | second) % 31 == 0
)

# Level 2 of ISA-L is nearly as fast as its level 1 and compresses about as well as level 3 of zlib. The other
# default levels are those of the libraries, except for xz, whose default level of 6 is slow.
CODECS: dict[Compression, Codec] = {
    "gzip": Codec(".gz", (b"\x1f\x8b",), range(10), 2, compressing.gzip, decompressing.gzip, tensorflow=True),
    "zlib": Codec(".zz", _ZLIB_HEADERS, range(10), 2, compressing.zlib_, decompressing.zlib, tensorflow=True),
    "zstd": Codec(".zst", (b"\x28\xb5\x2f\xfd",), range(1, 23), 1, compressing.zstd, decompressing.zstd),
    "lz4": Codec(".lz4", (b"\x04\x22\x4d\x18",), range(1, 13), 1, compressing.lz4, decompressing.lz4),
    "bz2": Codec(".bz2", (b"BZh",), range(1, 10), 9, compressing.bz2_, decompressing.bz2_),
    "xz": Codec(".xz", (b"\xfd7zXZ\0",), range(10), 1, compressing.xz, decompressing.xz),
}


def suffix_of(compression: Compression | None) -> str:
    """Return the suffix of the names of files with this codec, including the dot; "" for uncompressed
    files.
    """
    return CODECS[compression].suffix if compression else ""


def codec_of_name(name: str) -> Compression | None:
    """Return the codec that the suffix of a file name or path says, or None."""
    suffix = f".{name.rpartition('.')[2]}"
    return next((name for name, codec in CODECS.items() if codec.suffix == suffix), None)


def known_codec(stored: str | None, name: str) -> Compression | None:
    """Return the codec of a file, given the codec that a snapshot stores.

    The stored text "none" means that the file is uncompressed. If no snapshot stores the codec, ``stored`` is
    None, and the suffix of the file name decides.
    """
    return codec_of_name(name) if stored is None else next((one for one in CODECS if one == stored), None)


def check_level(compression: Compression | None, level: int | None) -> None:
    """Raise TFRecordError if ``level`` is neither None nor a valid compression level of the codec."""
    if level is None:
        return
    if compression is None:
        problem = f"compression_level={level!r} has no effect without compression="
        remedy = Remedy("compression_level", None, "write them uncompressed")
        raise TFRecordError(problem, Remedy("compression", "gzip", "compress the files"), remedy)
    levels = CODECS[compression].levels
    if not isinstance(level, int) or isinstance(level, bool) or level not in levels:
        raise TFRecordError(
            f"compression_level={level!r} is not valid",
            f"give a level from {levels.start} to {levels.stop - 1} for {compression}",
        )


def compressor(compression: Compression, level: int | None = None) -> Compressor:
    """Return the compressor of a new file. If ``level`` is None, use the default level of the codec."""
    codec = CODECS[compression]
    return codec.compress(codec.default_level if level is None else level)


def decompressor(readinto: ReadInto, compression: Compression, *, inside: bool = False) -> Decompressor:
    """Return the decompressor of a file. For an empty file, the content is empty, too.

    Parameters
    ----------
    readinto : callable
        Function that fills a view with the next compressed bytes and returns the number of these bytes. At
        the end of the file, the function returns 0.
    compression : str
        The codec of the file.
    inside : bool, default False
        True if ``readinto`` starts at a block after the first block of a file that this library wrote.
    """
    return CODECS[compression].decompress(readinto, inside=inside)


def decompress_block(stored: Buffer, compression: Compression) -> bytearray:
    """Return the content of one block, or of several adjacent blocks, given the stored bytes."""
    end = EMPTY_LAST_BLOCK if compression in ("gzip", "zlib") else b""
    stream = decompressor(BytesIO(bytes(stored) + end).readinto, compression, inside=True)
    content, chunk = bytearray(), memoryview(bytearray(_CHUNK_BYTES))
    while count := stream.readinto(chunk):
        content += chunk[:count]
    return content


def is_frame(head: bytes) -> bool:
    """Return True if the bytes start with the length of a record and the correct checksum of the length."""
    return len(head) >= HEADER_BYTES and scan(head[:HEADER_BYTES], final=False).damage is None


def detect(head: bytes) -> Compression | None:
    """Return the codec of a file that starts with these bytes, or None if the file is uncompressed. To detect
    the codec, the first ``HEADER_BYTES`` bytes of the file are enough.

    An uncompressed record may start like a zlib stream. Therefore bytes that start with a record's length and
    the correct checksum of the length are never taken for compressed data.
    """
    if is_frame(head):
        return None
    return next((name for name, codec in CODECS.items() if head.startswith(codec.magic)), None)
