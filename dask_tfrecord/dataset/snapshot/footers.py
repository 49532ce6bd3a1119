"""Read the metadata of many versions of a dataset at once, without their file lists."""

import os
from collections.abc import Sequence
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from dask_tfrecord.dataset.snapshot.metadata import strict_json
from dask_tfrecord.dataset.snapshot.names import snapshot_path
from dask_tfrecord.dataset.snapshot.versions import FORMAT_VERSION, METADATA_KEY
from dask_tfrecord.files.storage.store import Store

# The number of bytes at the end of a snapshot's file that are read. They hold the metadata, unless a dataset
# has hundreds of columns.
_TAIL_BYTES = 1 << 16

# The length and the key of the entry in the Parquet footer (Thrift's compact protocol), and the type of the
# value, whose length and bytes follow. Parsing the whole footer would take ten times as long.
_ENTRY = b"\x18" + bytes([len(METADATA_KEY)]) + METADATA_KEY + b"\x18"


def read_metadata(store: Store, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Map the numbers of versions to the JSON objects in the metadata of their Parquet files.

    The result lacks the versions that do not exist or are damaged, that have another format version,
    or whose metadata is longer than usual. `read_version` reads these versions or raises.
    """
    paths = [store.join(snapshot_path(number)) for number in numbers]
    found = {number: _parse(tail) for number, tail in zip(numbers, _tails(store, paths), strict=True)}
    return {number: metadata for number, metadata in found.items() if metadata is not None}


def _tails(store: Store, paths: list[str]) -> list[Any]:
    """Return the last bytes of each file, or an exception."""
    if type(store.fs) is LocalFileSystem:
        return [_tail(path) for path in paths]
    count = len(paths)
    return list(store.fs.cat_ranges(paths, [-_TAIL_BYTES] * count, [None] * count, on_error="return"))


def _tail(path: str) -> bytes | OSError:
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - _TAIL_BYTES, 0))
            return file.read()
    except OSError as error:
        return error


def _parse(tail: Any) -> dict[str, Any] | None:
    """Return the JSON object in the last bytes of a Parquet file. If there is none, return None."""
    if not isinstance(tail, bytes) or tail[-4:] != b"PAR1":
        return None
    # Only the name of the writing program follows the entries, so the last match is the entry.
    _, entry, rest = tail.rpartition(_ENTRY)
    if not entry:
        return None
    length = shift = at = 0
    try:
        while True:  # the length is stored in groups of seven bits, the lowest first
            byte = rest[at]
            length |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                break
        metadata = strict_json(rest[at : at + length])
        base = metadata.get("base")
        is_valid = base is None or type(base["version"]) is int
        return metadata if is_valid and metadata["format_version"] == FORMAT_VERSION else None
    except (IndexError, KeyError, TypeError, ValueError):
        return None
