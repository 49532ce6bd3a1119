"""What a committed dataset consists of, and its one file form: a small Parquet table with JSON metadata.

Any tool can read it. It holds relative paths only, and nothing in it is ever executed or resolved as a URL.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dask_tfrecord.codec.compression import SUFFIXES, Compression
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.schema import Field, Schema

# Raised when a reader of this version would misunderstand what is written from now on.
FORMAT_VERSION = 1

_METADATA_KEY = b"dask_tfrecord"
_BLOCK = pa.struct([pa.field(name, pa.int64(), nullable=False) for name in ("offset", "content", "record")])
_TABLE = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("crc32c", pa.uint32(), nullable=False),
        pa.field("blocks", pa.list_(_BLOCK), nullable=False),
    ]
)

# Columns that are there only where they have something to say: Parquet has no struct without fields.
_VALUES = "partition"
_STATISTICS = "statistics"


def library_version() -> str:
    """The installed version of this package."""
    try:
        return version("dask-tfrecord")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


class Block(NamedTuple):
    """A place inside a file where reading can start.

    Attributes
    ----------
    offset : int
        Of the stored file, where a raw inflate (or a plain read) can start.
    content : int
        Of the decompressed content, where the block's first record starts.
    record : int
        Number of that record in the file.
    """

    offset: int
    content: int
    record: int


@dataclass(frozen=True)
class ColumnStatistics:
    """What is known of a column's values in one file.

    ``min`` and ``max`` are plain Python values, exact, or None where there are no values or nobody looked;
    the lengths are those of lists and None for scalars.
    """

    name: str
    min: Any
    max: Any
    nulls: int
    min_length: int | None = None
    max_length: int | None = None


@dataclass(frozen=True)
class FileEntry:
    """One data file.

    Attributes
    ----------
    path : str
        Below the dataset's root.
    bytes, records, crc32c : int
        Stored bytes, records, and CRC-32C of the stored bytes.
    values : tuple
        Of the partition columns, in the order of `Snapshot.partition_on`, as plain Python values; None is
        missing.
    blocks : tuple of Block
        In the order of the file; empty if it must be read from its start.
    statistics : tuple of ColumnStatistics
        Of those columns that have any.
    """

    path: str
    bytes: int
    records: int
    crc32c: int
    values: tuple[Any, ...] = ()
    blocks: tuple[Block, ...] = ()
    statistics: tuple[ColumnStatistics, ...] = ()


@dataclass(frozen=True, repr=False)
class Snapshot:
    """A committed dataset: all its files, and what is in them.

    Attributes
    ----------
    files : tuple of FileEntry
        In the order of the partitions.
    schema : Schema
        The columns in the records, their Arrow types and the record type.
    compression : "gzip", "zlib" or None
        Of the files that the write added.
    run : str
        The id of the write that made it.
    library : str
        Version of the package that wrote it.
    partitioning : tuple of Field
        The partition columns, which are in the names of the directories and not in the records.
    number : int
        Its version: 1 is the first, each write adds one.
    custom_metadata : dict of str to str
        What the user wanted to keep with it.
    order : tuple of str
        Names of all columns, as readers give them; empty if the partition columns come last.
    """

    files: tuple[FileEntry, ...]
    schema: Schema
    compression: Compression | None
    run: str
    library: str
    partitioning: tuple[Field, ...] = ()
    number: int = 1
    custom_metadata: dict[str, str] = field(default_factory=dict, hash=False)
    order: tuple[str, ...] = ()

    @property
    def columns(self) -> Schema:
        """All columns, those of the records and those of the directories, in their order."""
        every = Schema((*self.schema.fields, *self.partitioning), self.schema.record_type)
        return every.select(self.order or every.names)

    @property
    def partition_on(self) -> tuple[str, ...]:
        """Names of the partition columns."""
        return tuple(column.name for column in self.partitioning)

    @property
    def bytes(self) -> int:
        """Stored bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def records(self) -> int:
        """Records of all files."""
        return sum(file.records for file in self.files)

    @property
    def partitions(self) -> int:
        """How many partition directories there are."""
        return len({file.path.rpartition("/")[0] for file in self.files}) if self.partitioning else 0

    def __repr__(self) -> str:
        parts = [f"{len(self.files):,} files", f"{self.records:,} records", f"{self.bytes:,} bytes"]
        if self.partitioning:
            parts.insert(1, f"{self.partitions:,} partitions")
        return f"Snapshot({', '.join(parts)})"


def to_parquet(snapshot: Snapshot) -> pa.Buffer:
    """The snapshot's file."""
    metadata = {
        "format_version": FORMAT_VERSION,
        "run": snapshot.run,
        "compression": snapshot.compression,
        "schema": snapshot.schema.to_json(),
        "partitioning": Schema(snapshot.partitioning).to_json() if snapshot.partitioning else None,
        "library": snapshot.library,
        "custom_metadata": snapshot.custom_metadata,
        "order": list(snapshot.order),
    }
    text = json.dumps(metadata, allow_nan=False)
    files = snapshot.files
    columns = {name: _column(files, name) for name in ("path", "bytes", "records", "crc32c")}
    columns["blocks"] = _blocks(files)
    if snapshot.partitioning:
        columns[_VALUES] = _partition_values(files, snapshot.partitioning)
    known = _with_statistics(files)
    if known:
        columns[_STATISTICS] = _statistics(files, [f for f in snapshot.schema.fields if f.name in known])
    table = pa.table(columns).replace_schema_metadata({_METADATA_KEY: text.encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue()


def from_parquet(data: bytes, path: str, number: int = 1) -> Snapshot:
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
        return _snapshot(table, metadata, number)
    except (pa.ArrowException, AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        if isinstance(error, TFRecordError) and error.path:
            raise
        advice = "read the data files by a glob instead, such as '<directory>/*.tfrecord'"
        raise TFRecordError(f"not a valid snapshot ({error})", path=path, advice=advice) from error


def _column(files: Sequence[FileEntry], name: str) -> pa.Array:
    return pa.array([getattr(file, name) for file in files], _TABLE.field(name).type)


def _blocks(files: Sequence[FileEntry]) -> pa.Array:
    offsets = [0]
    for file in files:
        offsets.append(offsets[-1] + len(file.blocks))
    blocks = [block for file in files for block in file.blocks]
    numbers = [pa.array([block[at] for block in blocks], pa.int64()) for at in range(len(Block._fields))]
    structs = pa.StructArray.from_arrays(numbers, fields=list(_BLOCK))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)


def _partition_values(files: Sequence[FileEntry], partitioning: Sequence[Field]) -> pa.Array:
    for file in files:
        _check(len(file.values) == len(partitioning), f"{file.path!r} has not one value per partition column")
    columns = [
        pa.array([file.values[at] for file in files], _scalar_type(column.type))
        for at, column in enumerate(partitioning)
    ]
    return pa.StructArray.from_arrays(columns, names=[column.name for column in partitioning])


def _with_statistics(files: Sequence[FileEntry]) -> set[str]:
    return {column.name for file in files for column in file.statistics}


def _statistics(files: Sequence[FileEntry], columns: Sequence[Field]) -> pa.Array:
    known = [{column.name: column for column in file.statistics} for file in files]
    arrays = [_column_statistics([found.get(column.name) for found in known], column) for column in columns]
    return pa.StructArray.from_arrays(arrays, names=[column.name for column in columns])


def _column_statistics(found: Sequence[ColumnStatistics | None], column: Field) -> pa.Array:
    """One column's statistics per file; null for a file that has none."""
    fields = _statistics_fields(column)
    arrays = [
        pa.array([None if one is None else getattr(one, item.name) for one in found], item.type)
        for item in fields
    ]
    missing = pa.array([one is None for one in found])
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=missing)


def _statistics_fields(column: Field) -> list[pa.Field]:
    """Scalars have a smallest and a greatest value, lists have lengths."""
    nulls = pa.field("nulls", pa.int64())
    if column.depth:
        return [nulls, pa.field("min_length", pa.int64()), pa.field("max_length", pa.int64())]
    type_ = _scalar_type(column.type)
    return [nulls, pa.field("min", type_), pa.field("max", type_)]


def _scalar_type(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _snapshot(table: pa.Table, metadata: dict[str, Any], number: int) -> Snapshot:
    compression, run, library = (metadata[key] for key in ("compression", "run", "library"))
    _check(compression in SUFFIXES, f"unknown compression {compression!r}")
    _check(isinstance(run, str) and isinstance(library, str), "run or library is not a string")
    schema = Schema.from_json(metadata["schema"])
    stored = metadata.get("partitioning")
    partitioning = Schema.from_json(stored).fields if stored else ()
    custom = metadata.get("custom_metadata", {})
    _check(all(isinstance(value, str) for value in custom.values()), "custom_metadata is not all strings")
    order = tuple(metadata.get("order", ()))
    names = sorted(item.name for item in (*schema.fields, *partitioning))
    _check(not order or sorted(order) == names, "the order is not one of its columns")
    files = _files(table, schema, partitioning)
    return Snapshot(files, schema, compression, run, library, partitioning, number, custom, order)


def _strict_json(text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        _check(len(set(names)) == len(names), "a key twice in an object")
        return dict(pairs)

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    value: dict[str, Any] = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    return value


def _files(table: pa.Table, schema: Schema, partitioning: Sequence[Field]) -> tuple[FileEntry, ...]:
    plain = [column.to_pylist() for column in table.select(_TABLE.names).cast(_TABLE)]
    blocks = [tuple(Block(**block) for block in found) for found in plain.pop()]
    values = _read_values(table, partitioning)
    statistics = _read_statistics(table, schema)
    rows = zip(*plain, values, blocks, statistics, strict=True)
    files = tuple(FileEntry(*row) for row in rows)
    for file in files:
        _check(_is_inside(file.path), f"the path {file.path!r} is not one below the dataset")
        _check(file.bytes >= 0 and file.records >= 0, f"the sizes of {file.path!r} are negative")
    _check(len({file.path for file in files}) == len(files), "a path twice")
    return files


def _read_values(table: pa.Table, partitioning: Sequence[Field]) -> list[tuple[Any, ...]]:
    if not partitioning:
        return [()] * len(table)
    found = table[_VALUES].combine_chunks()
    columns = [found.field(item.name).cast(_scalar_type(item.type)).to_pylist() for item in partitioning]
    return list(zip(*columns, strict=True))


def _read_statistics(table: pa.Table, schema: Schema) -> list[tuple[ColumnStatistics, ...]]:
    if _STATISTICS not in table.column_names:
        return [()] * len(table)
    found = table[_STATISTICS].combine_chunks()
    columns = [_read_column(found.field(item.name), item) for item in schema.select(_names(found)).fields]
    return [tuple(one for one in row if one) for row in zip(*columns, strict=True)]


def _names(struct: pa.StructArray) -> list[str]:
    return [item.name for item in struct.type]


def _read_column(found: pa.StructArray, column: Field) -> list[ColumnStatistics | None]:
    expected = pa.struct(_statistics_fields(column))
    return [one and _column_of(column.name, one) for one in found.cast(expected).to_pylist()]


def _column_of(name: str, stored: dict[str, Any]) -> ColumnStatistics:
    _check(isinstance(stored["nulls"], int), f"no null count of {name!r}")
    return ColumnStatistics(
        name,
        stored.get("min"),
        stored.get("max"),
        stored["nulls"],
        stored.get("min_length"),
        stored.get("max_length"),
    )


def _is_inside(path: str) -> bool:
    """Whether a path is relative, normal, below the root, and nothing that fsspec would take apart."""
    names = path.split("/")
    return not any(name in ("", ".", "..") for name in names) and not re.search(r"[\\\0]|::|^\w+:", path)


def _check(valid: bool, problem: str) -> None:
    if not valid:
        raise ValueError(problem)
