"""Codecs: compressed blocks, detection by content, reading to the end of the file, bounded memory.

Modules: codec.codecs, codec.
"""

import bz2
import gzip
import io
import lzma
import random
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from damaged_files import header

import dask_tfrecord
from dask_tfrecord.codec import HEADER_BYTES
from dask_tfrecord.codec.codecs import (
    CODECS,
    Codec,
    Compression,
    Compressor,
    FrameCompressor,
    ReadInto,
    check_level,
    compressor,
    decompressor,
    detect,
)
from dask_tfrecord.errors import CorruptRecordError, TFRecordError

CONTENT = random.Random(1).randbytes(300_000) + bytes(2_000_000) + b"the end"
PARTS = (CONTENT[:1000], CONTENT[1000:1_500_000], CONTENT[1_500_000:])
WBITS: dict[Compression, int] = {"gzip": 31, "zlib": 15}

both = pytest.mark.parametrize("compression", ["gzip", "zlib"])
streams = pytest.mark.parametrize("compression", ["gzip", "zlib", "bz2", "xz"])
frames = pytest.mark.parametrize("compression", ["zstd", "lz4"])
every = pytest.mark.parametrize("compression", CODECS)


def compress(data: bytes, compression: Compression) -> bytes:
    """Compress with the standard library or pyarrow into one stream or frame."""
    if compression in WBITS:
        stream = zlib.compressobj(wbits=WBITS[compression])
        return stream.compress(data) + stream.flush()
    if compression in ("bz2", "xz"):
        return bz2.compress(data) if compression == "bz2" else lzma.compress(data)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, compression) as output:
        output.write(data)
    return bytes(sink.getvalue())


def stored(parts: tuple[bytes, ...], compression: Compression, level: int | None = None) -> bytes:
    """A file of these blocks, compressed by the class under test."""
    file = compressor(compression, level)
    made = [file.compress(part) for part in parts]
    for part in parts:
        file.add(part)
    return file.head + b"".join(made) + file.tail()


def decompress(stored: bytes, compression: Compression, *, step: int = 1 << 16, most: int = 1 << 30) -> bytes:
    """All bytes of the decompressor, in views of ``step`` bytes, from reads of at most ``most`` bytes."""
    file = io.BytesIO(stored)
    stream = decompressor(lambda view: file.readinto(view[:most]), compression)
    view = memoryview(bytearray(step))
    parts = []
    while count := stream.readinto(view):
        parts.append(bytes(view[:count]))
    assert stream.readinto(view) == 0
    return b"".join(parts)


@both
@pytest.mark.parametrize("level", [None, *CODECS["gzip"].levels])
def test_a_raw_inflate_can_start_at_any_block(compression: Compression, level: int | None) -> None:
    file = compressor(compression, level)
    made = [file.compress(part) for part in PARTS]
    for index, part in enumerate(PARTS):
        judge = zlib.decompressobj(wbits=-15)
        assert judge.decompress(made[index]) == part
        assert not judge.eof
        judge = zlib.decompressobj(wbits=-15)
        assert judge.decompress(b"".join(made[index:]) + file.tail()) == b"".join(PARTS[index:])
        assert judge.eof


@every
@pytest.mark.parametrize("parts", [PARTS, (b"",), ()], ids=["parts", "empty", "nothing"])
def test_what_is_written_is_one_standard_stream(compression: Compression, parts: tuple[bytes, ...]) -> None:
    file, content = stored(parts, compression), b"".join(parts)
    assert stored(parts, compression) == file
    assert detect(file[:HEADER_BYTES]) == compression
    assert decompress(file, compression) == content
    if compression in ("bz2", "xz"):
        assert (bz2 if compression == "bz2" else lzma).decompress(file) == content
    elif compression in WBITS:
        judge = zlib.decompressobj(wbits=WBITS[compression])
        assert (judge.decompress(file), judge.eof, judge.unused_data) == (content, True, b"")


@every
def test_every_level_is_a_level_and_no_other(compression: Compression) -> None:
    content = b"".join(b"record %d, " % n for n in range(1000))
    for level in CODECS[compression].levels:
        check_level(compression, level)
        assert decompress(stored((content,), compression, level), compression) == content
    wrong: list[Any] = [CODECS[compression].levels.start - 1, CODECS[compression].levels.stop, "1", 1.0, True]
    for level in wrong:
        with pytest.raises(TFRecordError, match=f"={level!r} is not valid; give .* for {compression}"):
            check_level(compression, level)


def test_a_level_of_no_compression_is_refused() -> None:
    check_level(None, None)
    with pytest.raises(TFRecordError, match="compression_level=1 has no effect without compression="):
        check_level(None, 1)


@every
@pytest.mark.parametrize(("step", "most"), [(1 << 23, 1 << 30), (1000, 777), (7, 1)])
def test_content_comes_back_whatever_the_sizes_of_reads(
    compression: Compression, step: int, most: int
) -> None:
    content = CONTENT if step > 7 else CONTENT[:5000]
    assert decompress(compress(content, compression), compression, step=step, most=most) == content


@every
def test_streams_one_after_the_other_are_one_content(compression: Compression) -> None:
    parts = [b"one", b"", CONTENT, b"", b"last", b""]
    file = b"".join(compress(part, compression) for part in parts)
    assert decompress(file, compression) == b"".join(parts)
    assert decompress(file, compression, most=1 << 10) == b"".join(parts)
    assert decompress(b"", compression) == b""


@streams
@pytest.mark.parametrize("zeros", [1, 511, 1 << 19])
def test_zeros_after_the_end_are_padding(compression: Compression, zeros: int) -> None:
    file = compress(b"content", compression)
    assert decompress(file + bytes(zeros), compression) == b"content"
    assert decompress(file + bytes(zeros) + file, compression) == b"contentcontent"


@every
@pytest.mark.parametrize("garbage", [b"x", b"\x1f", b"garbage", bytes(20) + b"x", b"\x1f\x8b\x08", b"x" * 20])
def test_anything_else_after_the_end_is_damage_that_is_not_called_a_cut(
    compression: Compression, garbage: bytes
) -> None:
    with pytest.raises(CorruptRecordError, match="followed by") as caught:
        decompress(compress(b"content", compression) + garbage, compression)
    assert caught.value.offset in (0, len(b"content"))


@every
def test_every_cut_is_damage(compression: Compression) -> None:
    file, second = compress(b"some content, some content", compression), compress(b"second", compression)
    for cut in range(1, len(file)):
        with pytest.raises(CorruptRecordError, match="cut off"):
            decompress(file[:cut], compression)
    for cut in range(1, len(second) if compression not in ("zstd", "lz4") else 0):
        with pytest.raises(CorruptRecordError, match=r"followed by|cut off") as caught:
            decompress(file + second[:cut], compression)
        assert caught.value.offset >= 26


@both
def test_a_cut_at_a_flush_point_is_damage(compression: Compression) -> None:
    stream = zlib.compressobj(wbits=WBITS[compression])
    flushed = stream.compress(b"whole records") + stream.flush(zlib.Z_FULL_FLUSH)
    with pytest.raises(CorruptRecordError) as caught:
        decompress(flushed, compression)
    assert caught.value.offset == len(b"whole records")


@frames
def test_a_file_that_cannot_be_read_is_not_a_damaged_one(compression: Compression) -> None:
    def readinto(view: memoryview) -> int:
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone"):
        decompressor(readinto, compression).readinto(memoryview(bytearray(10)))


@both
def test_no_flipped_bit_of_data_and_checksums_changes_the_content_in_silence(
    compression: Compression,
) -> None:
    """The only exception are the bits that pad the header of a stored block to a byte."""
    content = random.Random(2).randbytes(50)
    file = compress(content, compression)
    start = 10 if compression == "gzip" else 2
    harmless = 0
    for bit in range(8 * start, 8 * len(file)):
        broken = bytearray(file)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            assert decompress(bytes(broken), compression) == content
            harmless += 1
        except CorruptRecordError:
            pass
    assert harmless <= 5


@every
def test_a_bomb_takes_no_memory(compression: Compression) -> None:
    bomb = b"".join(16 * [compress(bytes(1 << 22), compression)])
    file = io.BytesIO(bomb)
    view = memoryview(bytearray(1 << 22))
    allocated = pa.total_allocated_bytes()
    tracemalloc.start()
    content = decompressor(file.readinto, compression)
    total = 0
    while count := content.readinto(view):
        total += count
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 64 << 20
    assert peak < (12 << 20 if compression == "xz" else 4 << 20)  # its window alone has 8 MiB
    assert pa.total_allocated_bytes() - allocated < 4 << 20


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", None),
        (b"\x1f", None),
        (b"a text, not TFRecord", None),
        (oracle.frame(b"a record"), None),
        (gzip.compress(b"x", mtime=0), "gzip"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"BZ", None),
        (zlib.compress(b"x", 1), "zlib"),
        (zlib.compress(b"x", 9), "zlib"),
        (zlib.compress(b""), "zlib"),
        # Records whose length looks like the start of a stream
        *((header(length), None) for length in (0x0178, 0x5E78, 0x9C78, 0xDA78, 0x8B1F, 0x088B1F, 0x685A42)),
    ],
)
def test_compression_is_recognised_by_the_first_bytes(content: bytes, expected: Compression | None) -> None:
    assert detect(content[:HEADER_BYTES]) == expected


# --- one record adds a codec: its files are named, written, detected and read in parts ---

MAGIC = b"TOY!"
INVERTED = bytes(range(255, -1, -1))


def toy_compress(level: int) -> Compressor:
    """A frame is the magic bytes, the content's size, and the content with inverted bits."""
    return FrameCompressor(
        lambda content: MAGIC + len(content).to_bytes(8, "little") + bytes(content).translate(INVERTED)
    )


def toy_decompress(readinto: ReadInto, *, inside: bool) -> io.BytesIO:
    stored = bytearray()
    view = memoryview(bytearray(1 << 16))
    while count := readinto(view):
        stored += view[:count]
    content = b""
    while stored:
        assert stored.startswith(MAGIC)
        end = 12 + int.from_bytes(stored[4:12], "little")
        content += stored[12:end].translate(INVERTED)
        del stored[:end]
    return io.BytesIO(content)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(CODECS, "toy", Codec(".toy", (MAGIC,), range(1, 3), 1, toy_compress, toy_decompress))
    return "toy"


def test_a_codec_of_one_record_writes_and_reads_a_dataset(toy: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": range(300_000), "name": [f"row {n}" for n in range(300_000)]})
    with pytest.warns(UserWarning, match="TensorFlow reads only"):
        dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "data", compression=toy)
    (file,) = (tmp_path / "data").glob("*.tfrecord.toy")
    assert file.read_bytes().startswith(MAGIC)
    split = dask_tfrecord.read_tfrecord(tmp_path / "data", blocksize="4 MiB")
    assert split.npartitions > 1
    assert split["x"].compute().tolist() == frame["x"].tolist()
    foreign = tmp_path / "other name"
    file.rename(foreign)
    assert len(dask_tfrecord.read_tfrecord(foreign)) == len(frame)


def test_levels_of_a_new_codec_are_checked(toy: str, tmp_path: Path) -> None:
    frame = dd.from_pandas(pd.DataFrame({"x": [1]}), npartitions=1)
    with pytest.raises(TFRecordError, match="give a level from 1 to 2 for toy"):
        dask_tfrecord.to_tfrecord(
            frame, tmp_path / "data", compression=toy, write_options={"compression_level": 3}
        )
