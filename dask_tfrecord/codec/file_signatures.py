"""Recognise files of other formats by their first bytes."""

from codecs import getincrementaldecoder

# The number of bytes of a file that `looks_like` needs. These bytes are enough to distinguish text from
# binary data.
LOOK_BYTES = 512

# The first bytes of files in table formats, and of files that a download, an export or a copy leaves among
# data files.
_MAGIC = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow IPC or Feather file",
    b"\xff\xff\xff\xff": "an Arrow IPC stream",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"PK\x03\x04": "a zip archive",
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
    b"\x1f\x8b": "a gzip file",
}

# The largest size in bytes of a block of Hadoop's codecs. A file of these codecs begins with the sizes of a
# block and of the block's first chunk, both big-endian.
_HADOOP_BLOCK_BYTES = 1 << 26

_WHITESPACE = b"\t\n\r\f"


def looks_like(head: bytes) -> str | None:
    """Describe the format that the first bytes of a file show. If the format is unknown, return None.

    Parameters
    ----------
    head : bytes
        The first ``LOOK_BYTES`` bytes of a file, or all bytes of a shorter file. The file must not be a
        TFRecord file, because some tests would accept the header of a record.
    """
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    if head and not head.strip(b"\0"):
        return "zeros, as a crash leaves them"
    if _is_text(head):
        return _kind_of_text(head.removeprefix(b"\xef\xbb\xbf").strip())
    size, chunk = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big")
    if len(head) >= 8 and 0 < chunk <= size + size // 100 + 64 and size <= _HADOOP_BLOCK_BYTES:
        return "a file that Hadoop compressed with lz4 or Snappy"
    return None


def _is_text(head: bytes) -> bool:
    if not head or any(byte < 32 and byte not in _WHITESPACE for byte in head) or b"\x7f" in head:
        return False
    try:  # the last character of the text may be incomplete
        return bool(getincrementaldecoder("utf-8")().decode(head))
    except UnicodeDecodeError:
        return False


def _kind_of_text(head: bytes) -> str:
    if head.startswith((b"{", b"[")):
        return "JSON"
    if head.lower().startswith((b"<!doctype html", b"<html")):
        return "an HTML page, such as a server's message"
    if head.startswith(b"<"):
        return "XML"
    first = head.partition(b"\n")[0]
    if any(sign in first for sign in (b",", b"\t", b";")):
        return "text such as CSV"
    return "text"
