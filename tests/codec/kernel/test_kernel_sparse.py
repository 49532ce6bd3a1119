"""Large values that no column needs are left out of a read, and no result depends on their bytes.

Modules: codec.
"""

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import block, bytes_list, entry, example_of, float_list, int64_list, packed, tag, varint
from wire_messages import ACCEPTED, REFUSED, UNKNOWN

from dask_tfrecord.codec import Column, Decoder, SparseReader

COLUMNS = [Column("a", "int64", 0), Column("s", "bytes", 0), Column("f", "float", 1)]

# A value of this size is left out wherever the file is stored.
ALWAYS = 1 << 20


def frame(payload: bytes) -> bytes:
    """A record whose payload has no correct checksum, which would take long to compute."""
    length = struct.pack("<Q", len(payload))
    return length + struct.pack("<I", oracle.masked_crc(length)) + payload + b"\0\0\0\0"


def read_all(path: Path, columns: list[str], sizes: list[int], poison: bytes) -> bytes:
    """The bytes that a sparse reader returns in reads of some sizes, into buffers full of one byte."""
    parts = []
    with path.open("rb") as file:
        reader = SparseReader(file.fileno(), 0, path.stat().st_size, columns)
        turn = 0
        while True:
            room = bytearray(poison * sizes[turn % len(sizes)])
            count = reader.readinto(room)
            if not count:
                break
            parts.append(bytes(room[:count]))
            turn += 1
    return b"".join(parts)


def decode(data: bytes, columns: list[Column], record_type: Any) -> Any:
    decoded = Decoder(columns, record_type, verify_crc=False).decode(data, final=True)
    decoded.batch.validate(full=True)
    rows = [oracle.canonical(column.to_pylist()) for column in decoded.batch.columns]
    return rows, decoded.consumed, decoded.damage


def check(path: Path, content: bytes, columns: list[Column], sizes: list[int], record_type: Any) -> int:
    """Compare a sparse read of a file with its bytes; return the number of bytes that were left out."""
    path.write_bytes(content)
    names = [column.name for column in columns]
    ones, zeros = (read_all(path, names, sizes, poison) for poison in (b"\xff", b"\0"))
    assert len(ones) == len(zeros) == len(content)
    expected = decode(content, columns, record_type)
    assert decode(ones, columns, record_type) == expected
    assert decode(zeros, columns, record_type) == expected
    return int(np.count_nonzero(np.frombuffer(ones, np.uint8) != np.frombuffer(zeros, np.uint8)))


def large(kind: str, size: int) -> bytes:
    """A Feature of about this size."""
    if kind == "bytes":
        return bytes_list(block(1, b"\x0a" * size))
    if kind == "two bytes":
        return bytes_list(block(1, b"\x0b" * (size // 2)), block(1, b"\x0c" * (size // 2)))
    if kind == "floats":
        return float_list(block(1, b"\x0d" * (size // 4 * 4)))
    if kind == "odd floats":
        return float_list(block(1, b"\x0e" * (size // 4 * 4 + 1)))
    if kind == "ints":
        return int64_list(block(1, b"\x0f" * size))
    if kind == "bytes and unknown":
        return large("bytes", size) + UNKNOWN["varint"]
    assert kind == "no list"
    return b"\x0b" * size


KINDS = ("bytes", "two bytes", "floats", "odd floats", "ints", "bytes and unknown", "no list")
SMALL = {
    "a": int64_list(packed(77)),
    "s": bytes_list(block(1, b"text")),
    "f": float_list(block(1, bytes(12))),
    "unset": b"",
    "n" * 300: int64_list(packed(1)),
}


def record(random_: random.Random) -> bytes:
    """A record with small and large features in any order, and sometimes of an unusual form."""
    parts = [entry(name, value) for name, value in SMALL.items() if random_.randrange(3)]
    for _ in range(random_.randrange(3)):
        value = large(random_.choice(KINDS), random_.choice([10, 1 << 15, 33_000, 40_000, 40_000]))
        name = random_.choice(["image", "image", "other", *SMALL])
        form = random_.randrange(12)
        if form == 0:
            parts.append(block(1, block(2, value), block(1, name.encode())))
        elif form == 1:
            parts.append(block(1, block(1, name.encode()), block(2, value), block(2, value)))
        elif form == 2:
            parts.append(block(1, block(1, name.encode()), block(2, value), UNKNOWN["varint"]))
        elif form == 3:
            parts.append(block(1, block(1, b"\xff\xfe"), block(2, value)))
        elif form == 4:
            content = block(1, name.encode()) + tag(2, 2) + varint(len(value)) + value
            parts.append(tag(1, 2) + varint(len(content) + random_.choice([-1, 1])) + content)
        else:
            parts.append(entry(name, value))
    random_.shuffle(parts)
    whole = example_of(*parts)
    form = random_.randrange(16)
    if form == 0:
        return whole + example_of(entry("image", large("bytes", 40_000)))
    if form == 1:
        return whole + block(2, block(1, block(1, b"list"), block(2, block(1, SMALL["f"]))))
    if form == 2:
        return random_.choice(list(UNKNOWN.values())) + whole
    if form == 3:
        return bytes_list(block(1, b"\x0a" * 40_000))
    return whole


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A file of records, which may be cut, or have a damaged length."""
    random_ = random.Random(draw(st.integers(0, 2**32)))
    odd = [*ACCEPTED.values(), *REFUSED.values()]
    usual = example_of(entry("image", large("bytes", 50_000)), entry("a", SMALL["a"]))
    payloads = []
    for _ in range(draw(st.integers(1, 12))):
        choice = random_.randrange(8)
        if choice == 0:
            payloads += [example_of(entry("a", SMALL["a"]))] * random_.choice([1, 70])
        elif choice == 1:
            payloads.append(random_.choice(odd))
        elif choice < 4:
            payloads += [usual] * random_.randrange(12)
        else:
            payloads.append(record(random_))
    content = bytearray(b"".join(map(frame, payloads)))
    damage = random_.randrange(6)
    if damage == 0:
        del content[random_.randrange(len(content) + 1) :]
    elif damage == 1 and content:
        content[random_.randrange(len(content))] ^= 1 << random_.randrange(8)
    return bytes(content)


@given(files(), st.data())
def test_no_result_depends_on_a_value_that_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, data: st.DataObject
) -> None:
    columns = data.draw(st.lists(st.sampled_from([*COLUMNS, Column("image", "bytes", 0)]), unique=True))
    sizes = data.draw(st.sampled_from([[1 << 22], [50_000, 7], [1, 11, 100_000]]))
    record_type = data.draw(st.sampled_from(["example", "sequence_example"]))
    check(tmp_path_factory.getbasetemp() / "sparse", content, columns, sizes, record_type)


@pytest.mark.parametrize("kind", ["bytes", "floats"])
def test_large_values_are_left_out(tmp_path: Path, kind: str) -> None:
    image, small = entry("image", large(kind, ALWAYS)), [entry(name, SMALL[name]) for name in "asf"]
    payloads = [
        example_of(image, *small),
        example_of(*small, image),
        example_of(small[0]),
        example_of(image, small[2], entry("second", large(kind, ALWAYS)), small[0], small[1]),
    ]
    left_out = check(tmp_path / "file", b"".join(map(frame, payloads)), COLUMNS, [1 << 22], "example")
    assert left_out == 4 * ALWAYS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unknown", [b"", UNKNOWN["varint"]], ids=["alone", "unknown field"])
def test_a_record_without_a_column_is_judged_by_the_bytes_in_the_file(
    tmp_path: Path, kind: str, unknown: bytes
) -> None:
    payload = example_of(entry("image", large(kind, ALWAYS)), unknown)
    check(tmp_path / "file", frame(payload), [Column("absent", "int64", 0)], [1 << 22], "example")


def test_values_of_columns_are_not_left_out(tmp_path: Path) -> None:
    payload = example_of(entry("image", large("bytes", ALWAYS)), entry("a", SMALL["a"]))
    assert check(tmp_path / "file", frame(payload), [Column("image", "bytes", 0)], [1 << 20], "example") == 0


def test_a_failed_read_raises() -> None:
    reader = SparseReader(-1, 0, 16, [])
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.readinto(bytearray(10))
