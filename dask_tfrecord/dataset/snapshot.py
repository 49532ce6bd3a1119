"""What a committed dataset consists of, and its one file form: a small Parquet table with JSON metadata.

Any tool can read it. It holds relative paths only, and nothing in it is ever executed or resolved as a URL.
"""

import json
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dask_tfrecord.codec.compression import SUFFIXES, Compression
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.schema import Schema

# Raised when a reader of this version would misunderstand what is written from now on.
FORMAT_VERSION = 1

_METADATA_KEY = b"dask_tfrecord"
_TABLE = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("crc32c", pa.uint32(), nullable=False),
    ]
)


def library_version() -> str:
    """The installed version of this package."""
    try:
        return version("dask-tfrecord")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


@dataclass(frozen=True)
class FileEntry:
    """One data file: path below the dataset's root, stored bytes, records, CRC-32C of the stored bytes."""

    path: str
    bytes: int
    records: int
    crc32c: int


@dataclass(frozen=True, repr=False)
class Snapshot:
    """A committed dataset: all its files, and what is in them.

    Attributes
    ----------
    files : tuple of FileEntry
        In the order of the partitions.
    schema : Schema
        Columns, their Arrow types and the record type.
    compression : "gzip", "zlib" or None
    run : str
        The id of the write that made it.
    library : str
        Version of the package that wrote it.
    """

    files: tuple[FileEntry, ...]
    schema: Schema
    compression: Compression | None
    run: str
    library: str

    @property
    def bytes(self) -> int:
        """Stored bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def records(self) -> int:
        """Records of all files."""
        return sum(file.records for file in self.files)

    def __repr__(self) -> str:
        return f"Snapshot({len(self.files):,} files, {self.records:,} records, {self.bytes:,} bytes)"


def to_parquet(snapshot: Snapshot) -> pa.Buffer:
    """The snapshot's file."""
    metadata = {
        "format_version": FORMAT_VERSION,
        "run": snapshot.run,
        "compression": snapshot.compression,
        "schema": snapshot.schema.to_json(),
        "library": snapshot.library,
    }
    files = snapshot.files
    columns = [[getattr(file, name) for file in files] for name in _TABLE.names]
    text = json.dumps(metadata, allow_nan=False)
    schema = _TABLE.with_metadata({_METADATA_KEY: text.encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=schema), sink)
    return sink.getvalue()


def from_parquet(data: bytes, path: str) -> Snapshot:
    """Read a snapshot's file, believing nothing; ``path`` is its name in messages."""
    try:
        table = pq.read_table(pa.BufferReader(data))
        metadata = _strict_json((table.schema.metadata or {})[_METADATA_KEY])
        found = metadata["format_version"]
        if not isinstance(found, int) or found > FORMAT_VERSION:
            raise TFRecordError(
                f"the snapshot has format version {found!r}, this library reads up to {FORMAT_VERSION}",
                path=path,
                advice="upgrade dask-tfrecord",
            )
        compression, run, library = (metadata[key] for key in ("compression", "run", "library"))
        _check(compression in SUFFIXES, f"unknown compression {compression!r}")
        _check(isinstance(run, str) and isinstance(library, str), "run or library is not a string")
        files = _files(table.select(_TABLE.names).cast(_TABLE))
        return Snapshot(files, Schema.from_json(metadata["schema"]), compression, run, library)
    except (pa.ArrowException, KeyError, OSError, TypeError, ValueError) as error:
        if isinstance(error, TFRecordError) and error.path:
            raise
        advice = "read the data files by a glob instead, such as '<directory>/*.tfrecord'"
        raise TFRecordError(f"not a valid snapshot ({error})", path=path, advice=advice) from error


def _strict_json(text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        _check(len(set(names)) == len(names), "a key twice in an object")
        return dict(pairs)

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    value: dict[str, Any] = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    return value


def _files(table: pa.Table) -> tuple[FileEntry, ...]:
    files = tuple(FileEntry(*row) for row in zip(*(column.to_pylist() for column in table), strict=True))
    for file in files:
        _check(_is_inside(file.path), f"the path {file.path!r} is not one below the dataset")
        _check(file.bytes >= 0 and file.records >= 0, f"the sizes of {file.path!r} are negative")
    _check(len({file.path for file in files}) == len(files), "a path twice")
    return files


def _is_inside(path: str) -> bool:
    """Whether a path is relative, normal, below the root, and nothing that fsspec would take apart."""
    names = path.split("/")
    return not any(name in ("", ".", "..") for name in names) and not re.search(r"[\\\0]|::|^\w+:", path)


def _check(valid: bool, problem: str) -> None:
    if not valid:
        raise ValueError(problem)
