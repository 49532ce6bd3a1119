"""gzip and zlib: recognised by content, read to the very end, in bounded memory."""

import gzip
import io
import random
import tracemalloc
import zlib
from collections.abc import Callable

import oracle
import pytest

from dask_tfrecord.codec.compression import HEAD_BYTES, Compression, Decompressor, compressor, detect
from dask_tfrecord.errors import CorruptRecordError

CONTENT = random.Random(1).randbytes(300_000) + bytes(2_000_000) + b"the end"
WBITS: dict[Compression, int] = {"gzip": 31, "zlib": 15}

both = pytest.mark.parametrize("compression", ["gzip", "zlib"])


def compress(data: bytes, compression: Compression) -> bytes:
    """One stream, by the standard library."""
    stream = zlib.compressobj(wbits=WBITS[compression])
    return stream.compress(data) + stream.flush()


def decompress(stored: bytes, compression: Compression, *, step: int = 1 << 16, most: int = 1 << 30) -> bytes:
    """Everything that the decompressor reads, in views of ``step`` bytes, from reads of at most ``most``."""
    file = io.BytesIO(stored)
    stream = Decompressor(lambda view: file.readinto(view[:most]), compression)
    view = memoryview(bytearray(step))
    parts = []
    while count := stream.readinto(view):
        parts.append(bytes(view[:count]))
    assert stream.readinto(view) == 0
    return b"".join(parts)


@both
def test_what_is_written_is_one_standard_stream(compression: Compression) -> None:
    stream = compressor(compression)
    stored = stream.compress(CONTENT[:1000]) + stream.compress(CONTENT[1000:]) + stream.flush()
    judge = zlib.decompressobj(wbits=WBITS[compression])
    assert judge.decompress(stored) == CONTENT
    assert judge.eof
    assert judge.unused_data == b""


@both
def test_the_same_content_gives_the_same_bytes(compression: Compression) -> None:
    stored = {(stream := compressor(compression)).compress(CONTENT) + stream.flush() for _ in range(2)}
    assert len(stored) == 1


@both
@pytest.mark.parametrize(("step", "most"), [(1 << 23, 1 << 30), (1000, 777), (7, 1)])
def test_content_comes_back_whatever_the_sizes_of_reads(
    compression: Compression, step: int, most: int
) -> None:
    content = CONTENT if step > 7 else CONTENT[:5000]
    assert decompress(compress(content, compression), compression, step=step, most=most) == content


@both
def test_streams_one_after_the_other_are_one_content(compression: Compression) -> None:
    parts = [b"one", b"", CONTENT, b"", b"last", b""]
    stored = b"".join(compress(part, compression) for part in parts)
    assert decompress(stored, compression) == b"".join(parts)
    assert decompress(stored, compression, most=1 << 10) == b"".join(parts)


@both
@pytest.mark.parametrize("zeros", [1, 511, 1 << 19])
def test_zeros_after_the_end_are_padding(compression: Compression, zeros: int) -> None:
    stored = compress(b"content", compression)
    assert decompress(stored + bytes(zeros), compression) == b"content"
    assert decompress(stored + bytes(zeros) + stored, compression) == b"contentcontent"


@both
def test_an_empty_file_has_no_content(compression: Compression) -> None:
    assert decompress(b"", compression) == b""


@both
@pytest.mark.parametrize("garbage", [b"x", b"\x1f", b"garbage", bytes(20) + b"x", b"\x1f\x8b\x08"])
def test_anything_else_after_the_end_is_damage(compression: Compression, garbage: bytes) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        decompress(compress(b"content", compression) + garbage, compression)
    assert caught.value.offset == len(b"content")


@both
def test_every_cut_is_damage(compression: Compression) -> None:
    stored = compress(b"some content, some content", compression)
    for cut in range(1, len(stored)):
        with pytest.raises(CorruptRecordError, match="is cut off"):
            decompress(stored[:cut], compression)


@both
def test_a_cut_at_a_flush_point_is_damage(compression: Compression) -> None:
    stream = zlib.compressobj(wbits=WBITS[compression])
    flushed = stream.compress(b"whole records") + stream.flush(zlib.Z_FULL_FLUSH)
    with pytest.raises(CorruptRecordError) as caught:
        decompress(flushed, compression)
    assert caught.value.offset == len(b"whole records")


@both
def test_no_flipped_bit_of_data_and_checksums_changes_the_content_in_silence(
    compression: Compression,
) -> None:
    """Only the few bits that pad a stored block's header to a byte mean nothing."""
    content = random.Random(2).randbytes(50)
    stored = compress(content, compression)
    start = 10 if compression == "gzip" else 2
    harmless = 0
    for bit in range(8 * start, 8 * len(stored)):
        broken = bytearray(stored)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            assert decompress(bytes(broken), compression) == content
            harmless += 1
        except CorruptRecordError:
            pass
    assert harmless <= 5


@both
def test_a_bomb_takes_no_memory(compression: Compression) -> None:
    stream = zlib.compressobj(wbits=WBITS[compression])
    bomb = b"".join(stream.compress(bytes(1 << 20)) for _ in range(256)) + stream.flush()
    file = io.BytesIO(bomb)
    view = memoryview(bytearray(1 << 22))
    tracemalloc.start()
    content = Decompressor(file.readinto, compression)
    total = 0
    while count := content.readinto(view):
        total += count
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 256 << 20
    assert peak < 4 << 20


def _own_gzip() -> bytes:
    stream = compressor("gzip")
    return stream.compress(b"x") + stream.flush()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: b"", None),
        (lambda: b"\x1f", None),
        (lambda: b"a text, not TFRecord", None),
        (lambda: oracle.frame(b"a record"), None),
        (lambda: gzip.compress(b"x"), "gzip"),
        (_own_gzip, "gzip"),
        (lambda: b"\x1f\x8b\x08", "gzip"),
        (lambda: zlib.compress(b"x", 1), "zlib"),
        (lambda: zlib.compress(b"x", 9), "zlib"),
        (lambda: zlib.compress(b""), "zlib"),
    ],
)
def test_compression_is_recognised_by_the_first_bytes(
    make: Callable[[], bytes], expected: Compression | None
) -> None:
    assert detect(make()[:HEAD_BYTES]) == expected


@pytest.mark.parametrize("length", [0x0178, 0x5E78, 0x9C78, 0xDA78, 0x8B1F, 0x088B1F])
def test_a_record_whose_length_looks_like_a_stream_is_a_record(length: int) -> None:
    assert detect(oracle.frame(bytes(length))[:HEAD_BYTES]) is None
