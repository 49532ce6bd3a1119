"""Records to damage, random damaged files, and a slow reference for the search for a record."""

import struct

import oracle
from hypothesis import strategies as st


def framed_number(n: int) -> bytes:
    """A framed Example that holds a number; larger numbers make longer records."""
    padding = ("bytes", [bytes([n % 256]) * (n % 50)])
    return oracle.features_file([{"n": ("int64", [n]), "padding": padding}])


def header(length: int) -> bytes:
    """The 12 bytes before a payload of this length."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", oracle.masked_crc(packed))


def _has_header(data: bytes, at: int) -> bool:
    return data[at + 8 : at + 12] == struct.pack("<I", oracle.masked_crc(data[at : at + 8]))


def first_record(data: bytes, start: int, *, lenient: bool, max_record_bytes: int) -> tuple[int, int, bool]:
    """Find the first record by trying every offset; the data ends where the file ends."""
    for at in range(start, len(data)):
        size = 16 + int.from_bytes(data[at : at + 8], "little")
        if not _has_header(data, at) or size - 16 > max_record_bytes or at + size > len(data):
            continue
        payload, footer = data[at + 12 : at + size - 4], data[at + size - 4 : at + size]
        intact = footer == struct.pack("<I", oracle.masked_crc(payload))
        followed = at + size == len(data) or _has_header(data, at + size)
        if (intact or followed) if lenient else (intact and followed):
            return at, size, True
    return len(data), 0, False


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
