"""Decompress and decode data files as docs/format.md describes them, without this library."""

import bz2
import lzma
import struct
import zlib
from typing import Any

import pyarrow as pa


class RefusedError(Exception):
    """A dataset that a reader must reject."""


def check(valid: bool, what: str) -> None:
    if not valid:
        raise RefusedError(what)


# --- checksums and records -----------------------------------------------------------------------------


def _table() -> list[int]:
    found = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        found.append(crc)
    return found


TABLE = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[crc & 0xFF ^ byte]
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def payloads(content: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        check(content[at + 8 : at + 12] == masked(content[at : at + 8]), "the CRC of a length")
        payload = content[at + 12 : at + 12 + length]
        check(content[at + 12 + length : at + 16 + length] == masked(payload), "the CRC of a payload")
        found.append(payload)
        at += 16 + length
    check(at == len(content), "a whole number of records")
    return found


# --- compression ---------------------------------------------------------------------------------------

MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
}


def codec(data: bytes) -> str | None:
    if not data or data[8:12] == masked(data[:8]):
        return None
    for magic, name in MAGIC.items():
        if data.startswith(magic):
            return name
    is_zlib = int.from_bytes(data[:2], "big") % 31 == 0 and data[0] & 15 == 8 and data[0] >> 4 <= 7
    check(is_zlib, "a known codec")
    return "zlib"


def content_from(data: bytes, offset: int) -> bytes:
    """The decompressed bytes from a block to the end of the file."""
    name, rest = codec(data), data[offset:]
    if name is None:
        return rest
    if name in ("gzip", "zlib"):
        inflate = zlib.decompressobj(wbits=-15)
        content = inflate.decompress(rest)
        check(
            inflate.eof and len(inflate.unused_data) == (8 if name == "gzip" else 4), "one stream and its sum"
        )
        return content
    if name in ("bz2", "xz"):
        return (bz2 if name == "bz2" else lzma).decompress(rest)
    return pa.input_stream(pa.BufferReader(rest), compression=name).read()


def whole(data: bytes) -> bytes:
    """The decompressed bytes of a file; the reader of the codec verifies the checksum."""
    name = codec(data)
    if name in ("gzip", "zlib"):
        return zlib.decompress(data, wbits=31 if name == "gzip" else 15)
    return content_from(data, 0)


# --- messages ------------------------------------------------------------------------------------------


def fields(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a protobuf message: field number, and a varint, a fixed 32-bit word or bytes."""
    found, at = [], 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if tag & 7 == 2 else (4, at)
            value, at = data[at : at + size], at + size
        found.append((tag >> 3, value))
    return found


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def entries(data: bytes) -> dict[str, bytes]:
    """A map from strings to messages."""
    pairs = [dict(fields(entry)) for number, entry in fields(data) if number == 1]
    return {pair[1].decode(): pair.get(2, b"") for pair in pairs}


def feature(data: bytes) -> list[Any] | None:
    """The values of a feature; None for one without a kind."""
    for kind, values in fields(data):
        packed = [value for _, value in fields(values)]
        if kind == 1:
            return packed
        if kind == 2:
            return [number for one in packed for (number,) in struct.iter_unpack("<f", one)]
        return [number for one in packed for number in integers(one)]
    return None


def integers(packed: bytes) -> list[int]:
    found, at = [], 0
    while at < len(packed):
        value, at = varint(packed, at)
        found.append(value - (1 << 64) if value >> 63 else value)
    return found


def record(payload: bytes, record_type: str) -> dict[str, Any]:
    """All features of a record; feature lists become lists of lists."""
    message = dict(fields(payload))
    found = {name: feature(one) for name, one in entries(message.get(1, b"")).items()}
    if record_type == "sequence_example":
        for name, one in entries(message.get(2, b"")).items():
            found[name] = [feature(inner) or [] for number, inner in fields(one) if number == 1]
    return found
