"""Records to damage, random damaged files, and a slow reference for the search for a record."""

import struct

import oracle
from hypothesis import strategies as st

MAX = 2**31 - 1


def framed_number(n: int) -> bytes:
    """A framed Example that holds a number; larger numbers make longer records."""
    padding = ("bytes", [bytes([n % 256]) * (n % 50)])
    return oracle.features_file([{"n": ("int64", [n]), "padding": padding}])


def framed_bytes(content: bytes) -> bytes:
    """A framed Example that holds a number and these bytes."""
    return oracle.features_file([{"n": ("int64", [len(content)]), "padding": ("bytes", [content])}])


def header(length: int) -> bytes:
    """The 12 bytes before a payload of this length."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", oracle.masked_crc(packed))


def _has_header(data: bytes, at: int) -> bool:
    return data[at + 8 : at + 12] == struct.pack("<I", oracle.masked_crc(data[at : at + 8]))


def _intact_end(data: bytes, at: int, limit: int) -> int:
    """The end of the record that begins here; 0 if there is none, or a checksum is wrong."""
    end = at + 16 + int.from_bytes(data[at : at + 8], "little")
    if not _has_header(data, at) or end - at - 16 > limit or end > len(data):
        return 0
    return end if data[end - 4 : end] == struct.pack("<I", oracle.masked_crc(data[at + 12 : end - 4])) else 0


def first_record(data: bytes, start: int, *, lenient: bool, max_record_bytes: int) -> tuple[int, int, bool]:
    """Find the first record by trying every offset; the data ends where the file ends."""
    for at in range(start, len(data)):
        size = 16 + int.from_bytes(data[at : at + 8], "little")
        if not _has_header(data, at) or size - 16 > max_record_bytes or at + size > len(data):
            continue
        end = at + size
        intact = _intact_end(data, at, max_record_bytes) > 0
        followed = end == len(data) or _has_header(data, end)
        crossed = any(_intact_end(data, p, max_record_bytes) > end - 4 for p in range(at + 1, end))
        if (intact or (followed and not crossed)) if lenient else (intact and followed):
            return at, size, True
    return len(data), 0, False


def kept_records(data: bytes, limit: int = MAX) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """What a reader that skips damage keeps of a file, found by trying every offset.

    Returns the ranges of the records, and the lost ranges: each is a damaged record whose length is
    believed, or goes up to the next record.
    """
    kept, lost, at = [], [], 0
    while at < len(data):
        if end := _intact_end(data, at, limit):
            kept.append((at, end))
        else:
            first, size, proven = first_record(data, at, lenient=True, max_record_bytes=limit)
            end = at + size if proven and first == at else first
            lost.append((at, end))
        at = end
    return kept, lost


payloads = st.recursive(
    st.binary(max_size=40) | st.integers(0, 60).map(bytes),
    lambda inner: st.lists(inner, max_size=4).map(oracle.records_file),
    max_leaves=6,
)
pieces = (
    payloads.map(oracle.frame)
    | st.binary(max_size=20)
    | st.integers(0, 30).map(bytes)
    | st.integers(0, 200).map(header)
    | st.sampled_from([header(2**31 - 1), header(2**31), header(2**63)])
)


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    """Records and nested records between other bytes, with some bytes changed, and perhaps a missing end."""
    data = bytearray(b"".join(draw(st.lists(pieces, max_size=8))))
    for at in draw(st.lists(st.integers(0, max(0, len(data) - 1)), max_size=3)) if data else []:
        data[at] ^= draw(st.sampled_from([1, 0x80, 0xFF]))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@st.composite
def holed_files(draw: st.DrawFn) -> bytes:
    """Examples that may hold whole files of Examples, with bytes missing, added or changed."""
    plain = st.integers(0, 60).map(framed_number)
    nested = st.lists(plain, min_size=1, max_size=3).map(lambda inner: framed_bytes(b"".join(inner)))
    data = b"".join(draw(st.lists(plain | nested, min_size=1, max_size=8)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(1, 8) | st.integers(1, 150) | st.just(len(framed_number(3))))
        other = draw(st.sampled_from([b"", data[:length], b"?" * length, bytes(length)]))
        stop = at + draw(st.sampled_from([0, 1, length, MAX]))
        data = data[:at] + other + data[stop:]
    return data
