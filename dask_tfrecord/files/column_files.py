"""Read and write column files, which are Parquet files with copies of some columns of data files.

docs/format.md specifies column files. The records are authoritative. If the reader is not certain that a
column file describes a data file, it returns None, and the caller decodes the records. The columns of a
column file are the features of the records, in the Arrow types that the kernel returns. The same function
converts values from column files and values from decoded records to the types of a schema. The module knows
nothing about datasets.
"""

import io
import json
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, BinaryIO, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dask_tfrecord.codec import KIND_TYPES, Column, Ints, crc32c, crc32c_combine, decoded_schema
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.files.bounded_parquet import read_bounded
from dask_tfrecord.files.entry import ColumnFile, FileEntry
from dask_tfrecord.files.record_file import rows_without_columns
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.forked import fork_safe_locks
from dask_tfrecord.storage.range_requests import ByteRange
from dask_tfrecord.storage.reader import PartialFile
from dask_tfrecord.storage.redaction import hide_secrets
from dask_tfrecord.storage.store import Store

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# The name of the column that stores each record's position in the decompressed content of the data file.
OFFSET = "tfrecord.offset"

# The metadata key in the footer of a column file. The JSON value of this key lists the data files.
METADATA_KEY = b"tfrecord"

# The first request reads this many bytes at the end of a column file. A column file with fewer bytes than
# this is kept in memory.
_TAIL_BYTES = 1 << 16

# The number of bytes that follow the metadata at the end of a Parquet file: the metadata's length, and
# "PAR1".
_END_BYTES = 8

# If two ranges of a remote column file are at most this many bytes apart, one request reads both.
_GAP_BYTES = 1 << 16

# A row group: the indices of the first row, after the last row, and of the row group in the column file. The
# row indices are counted from the start of a split.
RowGroup: TypeAlias = tuple[int, int, int]

# A column chunk: the indices of the row group and of the column.
ColumnChunk: TypeAlias = tuple[int, int]

# The size of each stored checksum in bytes.
CHECKSUM_BYTES = 4

# Adjacent row groups are read together if they have at most this many rows in total (8 row groups of the
# largest size).
_RUN_ROWS = 1 << 20

# A process keeps the footers of at most this many column files.
_MOST_READERS = 64


# Threads that need the same footer wait until one of them has read it.
_LOADING = fork_safe_locks(64)


class _DataFile(NamedTuple):
    """The entry for one data file in the footer of a column file.

    ``content`` is the decompressed size of the data file. ``groups`` contains the indices of the row groups
    that store the rows of the data file. ``starts`` contains the index of the first row of each row group,
    followed by the number of rows.
    """

    bytes: int
    crc32c: int
    records: int
    content: int
    groups: range
    starts: list[int]

    def groups_of(self, start: int, stop: int) -> tuple[int, list[int]]:
        """Return the row groups with rows in ``range(start, stop)``, and the position of the first one in
        `groups`.
        """
        first = bisect_right(self.starts, start) - 1
        last = bisect_left(self.starts, stop)
        return first, [*self.groups[first:last]] if start < stop else []


class ColumnFileReader:
    """Read one column file. `StoredRows` uses the reader to read the rows of one data file.

    Several threads may use a reader at the same time. `open_column_file` caches readers.
    """

    def __init__(self, store: Store, file: ColumnFile) -> None:
        self._store, self._file = store, file
        self._path = store.join(file.path)
        self._content: bytes | None = None
        self._is_logged = self._is_known = False
        self._files: dict[str, _DataFile] = {}
        self._features: frozenset[Column] = frozenset()

    @property
    def features(self) -> frozenset[Column]:
        """The features that the column file stores. The set is empty if the column file is not usable."""
        self._load()
        return self._features

    def _load(self) -> None:
        """Read the footer once. If the store fails, the next call reads the footer again."""
        if not self._is_known:
            with _LOADING[hash(self._path) % len(_LOADING)], self.doubts():
                if not self._is_known:
                    self._read_footer()

    def stores(self, schema: Schema) -> bool:
        """Return True if a schema has columns and the column file stores the features of all of them."""
        features = schema.columns
        return bool(features) and self.features.issuperset(features)

    def statistics(self, group: int, name: str) -> pq.Statistics | None:
        return self._metadata.row_group(group).column(self._names.index(name)).statistics

    @contextmanager
    def doubts(self) -> Iterator[None]:
        """Suppress errors of the ``with`` block. If the column file caused the error, mark it as unusable."""
        try:
            yield
        except SchemaError:  # when the records are decoded later, the error names the record
            pass
        except _StoreError as error:
            self._log(error.__cause__)
        except Exception as error:  # fsspec and the storage libraries raise exceptions of many classes
            self._features, self._files, self._is_known = frozenset(), {}, True
            self._log(error)

    def _log(self, reason: object) -> None:
        """Log why the column file is not used. Later calls log nothing."""
        if not self._is_logged:
            self._is_logged = True
            path, text = self._store.public(self._path), hide_secrets(str(reason), self._store)
            logger.info("%s: records are decoded, and this column file is not used: %s", path, text)

    def _read_footer(self) -> None:
        tail = self._tail(_TAIL_BYTES)
        length = int.from_bytes(tail[-_END_BYTES : -len(b"PAR1")], "little") + _END_BYTES
        if len(tail) < length <= self._file.bytes:
            tail = self._tail(length)
        self._content = tail if len(tail) == self._file.bytes else None
        footer = tail[-length:]
        if crc32c(footer) != self._file.crc32c:
            raise ValueError("it is not the file that the snapshot lists")
        metadata = pq.read_metadata(pa.BufferReader(footer))
        chunks = all_chunks(metadata)
        end = length + CHECKSUM_BYTES * (len(chunks) + 1)
        if len(tail) < end <= self._file.bytes:
            tail = self._tail(end)
        checksums = dict(zip(chunks, _unpack_checksums(tail[-end:-length]), strict=True))
        if self._content is not None:
            _check_chunks(metadata, checksums, chunks, [(0, self._content)])
        first, files = 0, {}
        for one in json.loads(metadata.metadata[METADATA_KEY])["files"]:
            groups = range(first, first + one["row_groups"])
            starts = [*accumulate((metadata.row_group(at).num_rows for at in groups), initial=0)]
            size, checksum = one["bytes"], one["crc32c"]
            files[one["path"]] = _DataFile(size, checksum, one["records"], one["content"], groups, starts)
            first = groups.stop
        schema = metadata.schema.to_arrow_schema()
        self._names, self._metadata, self._checksums = schema.names, metadata, checksums
        self._files = files
        self._features = frozenset(_features(schema))
        self._is_known = True

    def _tail(self, count: int) -> bytes:
        stop = self._file.bytes
        with _store_errors():
            [tail] = self._store.read_ranges([ByteRange(self._path, max(0, stop - count), stop)])
        return tail

    def rows_of(
        self, path: str, size: int | None, checksum: int | None, records: int, first: int = 0
    ) -> "StoredRows | None":
        """Return the rows of a split that begins at row ``first`` of a data file and has ``records`` rows.

        Return None if the column file does not describe the data file. The path, the size and the CRC-32C of
        the data file come from the snapshot.
        """
        self._load()
        file = self._files.get(path)
        if (
            file is not None
            and checksum == file.crc32c
            and size in (None, file.bytes)
            and first + records <= file.starts[-1]
        ):
            return StoredRows(self, file, first, records)
        if self._files:
            self._log(f"it does not describe the current {path}")
        return None

    def rows(self, found: _DataFile, names: list[str], start: int, stop: int) -> pa.Table:
        first, groups = found.groups_of(start, stop)
        with self._source(groups, names) as source:
            file = pq.ParquetFile(source, metadata=self._metadata)
            size = sum(last - first for first, last in self.spans(groups, names))
            most_values = (found.starts[-1] if groups else 0) * len(names)
            rows = read_bounded(file, size, groups=groups, columns=names, most_values=most_values)
        rows = rows.select(names).slice(start - found.starts[first] if groups else 0, stop - start)
        if len(rows) != stop - start:
            raise ValueError(f"it has {len(rows):,} of {stop - start:,} rows")
        return rows

    def _source(self, groups: Sequence[int], names: Sequence[str]) -> pa.NativeFile:
        """Verify the checksums of columns in some row groups, and return the columns as an open file."""
        if self._content is not None:
            return pa.BufferReader(self._content)
        spans = self.spans(groups, names)
        with _store_errors():
            found = self._store.read_ranges([ByteRange(self._path, *span) for span in spans])
        parts = [(start, data) for (start, _), data in zip(spans, found, strict=True)]
        _check_chunks(self._metadata, self._checksums, self._chunks(groups, names), parts)
        return pa.PythonFile(PartialFile(self._file.bytes, parts), mode="r")

    def spans(self, groups: Sequence[int], names: Sequence[str]) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = []
        for chunk in self._chunks(groups, names):
            start, stop = chunk_range(self._metadata, *chunk)
            if spans and 0 <= start - spans[-1][1] <= _GAP_BYTES:
                start = spans.pop()[0]
            spans.append((start, stop))
        return spans

    def _chunks(self, groups: Sequence[int], names: Sequence[str]) -> list[ColumnChunk]:
        used = {*names}
        wanted = [at for at, name in enumerate(self._names) if name in used]
        return [(group, at) for group in groups for at in wanted]


@dataclass(frozen=True)
class StoredRows:
    """Read the ``records`` rows that a column file stores for a split of a data file.

    ``first`` is the index of the split's first row in the data file. All methods count rows from ``first``.
    """

    reader: ColumnFileReader
    file: _DataFile
    first: int
    records: int

    @classmethod
    def of(cls, reader: ColumnFileReader, entry: FileEntry) -> "StoredRows | None":
        return reader.rows_of(entry.path, entry.bytes, entry.crc32c, entry.records)

    def read(self, schema: Schema, start: int, stop: int) -> pa.Table | None:
        """Return the rows in ``range(start, stop)``, which equal those decoded from the records.

        Return None if the column file lacks a column or is damaged, or if a value does not fit its column. If
        the result is None, the caller decodes the records, so that an error about a value names the record.
        """
        if not schema.fields:
            return rows_without_columns(stop - start)
        if not self.reader.stores(schema):
            return None
        with self.reader.doubts():
            names = [column.name for column in schema.columns]
            rows = self.reader.rows(self.file, names, self.first + start, self.first + stop)
            decoded = decoded_schema(schema.columns)
            batches = [
                schema.from_storage(pa.RecordBatch.from_arrays(batch.columns, schema=decoded))
                for batch in rows.to_batches()
            ]
            return pa.Table.from_batches(batches or [schema.no_rows()])
        return None

    def offsets(self, start: int, stop: int) -> npt.NDArray[np.int64] | None:
        """Return the offsets of the records in ``range(start, stop)``, followed by the end of the last
        record.

        All values are offsets in the decompressed data file. Return None if the column file is damaged.
        """
        start, stop, file = self.first + start, self.first + stop, self.file
        with self.reader.doubts():
            rows = self.reader.rows(file, [OFFSET], start, min(stop + 1, file.records))
            end = [file.content] if stop == file.records else []
            offsets: npt.NDArray[np.int64] = np.concatenate([rows[OFFSET], np.array(end, np.int64)])
            return offsets
        return None

    @cached_property
    def groups(self) -> list[RowGroup]:
        """The row groups that contain the split's rows.

        The first and last row group may extend beyond the split.
        """
        at, groups = self.file.groups_of(self.first, self.first + self.records)
        starts = [one - self.first for one in self.file.starts[at : at + len(groups) + 1]]
        return list(zip(starts, starts[1:], groups, strict=False))

    def each(
        self, is_used: npt.NDArray[np.bool_], columns: Schema, read: Callable[[Schema, int, int], _T]
    ) -> Iterator[tuple[int, int, _T]]:
        """Call ``read(columns, start, stop)`` for each run of adjacent row groups that are used.

        ``is_used`` contains a boolean for each row group. A run has at most `_RUN_ROWS` rows. Yield the
        start, the stop and the result of each call.
        """
        runs: list[tuple[int, int]] = []
        for at in np.flatnonzero(is_used).tolist():
            start, stop = max(self.groups[at][0], 0), min(self.groups[at][1], self.records)
            if runs and runs[-1][1] == start and stop - runs[-1][0] <= _RUN_ROWS:
                start = runs.pop()[0]
            runs.append((start, stop))
        return ((start, stop, read(columns, start, stop)) for start, stop in runs)

    def stored_bytes(self, schema: Schema | None, start: int, stop: int) -> int:
        """Return the number of bytes of `spans`."""
        return sum(end - begin for begin, end in self.spans(schema, start, stop))

    def spans(self, schema: Schema | None, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of the column file that `read` reads.

        If ``schema`` is None, return the ranges that `offsets` reads.
        """
        names = [OFFSET] if schema is None else [column.name for column in schema.columns]
        _, groups = self.file.groups_of(self.first + start, self.first + stop)
        return self.reader.spans(groups, names)


def all_chunks(metadata: pq.FileMetaData) -> list[ColumnChunk]:
    """Return all column chunks of a Parquet file, in the order of the stored checksums."""
    return [(group, at) for group in range(metadata.num_row_groups) for at in range(metadata.num_columns)]


def chunk_range(metadata: pq.FileMetaData, group: int, at: int) -> tuple[int, int]:
    """Return the start and the end of a column chunk in its file, including the headers of the pages."""
    column = metadata.row_group(group).column(at)
    start = column.dictionary_page_offset or column.data_page_offset
    return start, start + column.total_compressed_size


def pack_checksums(checksums: list[int]) -> bytes:
    """Serialize the checksums of all column chunks. A column file stores the result before the footer."""
    packed = np.array(checksums, "<u4").tobytes()
    return packed + crc32c(packed).to_bytes(CHECKSUM_BYTES, "little")


def _unpack_checksums(stored: bytes) -> list[int]:
    packed, own = stored[:-CHECKSUM_BYTES], stored[-CHECKSUM_BYTES:]
    if crc32c(packed) != int.from_bytes(own, "little"):
        raise ValueError("the checksums of its columns are damaged")
    checksums: list[int] = np.frombuffer(packed, "<u4").tolist()
    return checksums


def _check_chunks(
    metadata: pq.FileMetaData,
    checksums: Mapping[ColumnChunk, int],
    chunks: Iterable[ColumnChunk],
    parts: Sequence[tuple[int, bytes]],
) -> None:
    """Raise ValueError if the checksum of a column chunk is wrong. ``parts`` contains the start and the bytes
    of each range that was read from the column file.
    """
    starts = [start for start, _ in parts]
    for chunk in chunks:
        start, stop = chunk_range(metadata, *chunk)
        first, data = parts[bisect_right(starts, start) - 1]
        if crc32c(memoryview(data)[start - first : stop - first]) != checksums[chunk]:
            raise ValueError(f"column {chunk[1]} of row group {chunk[0]} is damaged")


class _StoreError(Exception):
    """Signal that the store failed. The column file itself may be intact."""


@contextmanager
def _store_errors() -> Iterator[None]:
    """Wrap failures of the store in _StoreError. Raise only FileNotFoundError unchanged."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:  # fsspec and the storage libraries raise exceptions of many classes
        raise _StoreError from error


def _features(schema: pa.Schema) -> Iterator[Column]:
    kinds = {type_: kind for kind, type_ in KIND_TYPES.items()}
    for item in schema:
        if item.name != OFFSET:
            depth = int(pa.types.is_list(item.type))
            kind: Any = kinds[item.type.value_type if depth else item.type]
            yield Column(item.name, kind, depth)


@lru_cache(maxsize=_MOST_READERS)
def open_column_file(store: Store, file: ColumnFile) -> ColumnFileReader:
    return ColumnFileReader(store, file)


# The limits of a row group: its rows, its bytes, and the bytes in each column. Even a read of a few rows
# reads whole row groups. Only a column of strings, byte strings or lists can reach the limit on the bytes of
# a column.
_GROUP_ROWS = 1 << 17
_GROUP_BYTES = 1 << 26
_COLUMN_BYTES = 1 << 21

# The largest size in bytes of a text column's dictionary. A column whose strings are mostly distinct is
# stored without a dictionary.
_DICTIONARY_BYTES = 1 << 16


class _Sink(io.RawIOBase):
    """A file that counts the written bytes, and computes the CRC-32C of each write."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._ends: list[int] = []
        self._checksums: list[int] = []
        self.bytes = 0

    def hold(self) -> io.BytesIO:
        """Send all further writes to a buffer instead of the file, and return it."""
        self._file = held = io.BytesIO()
        return held

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.bytes

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.bytes += len(data)
        self._ends.append(self.bytes)
        self._checksums.append(crc32c(data))
        return len(data)

    def checksum(self, start: int, stop: int) -> int:
        """Return the CRC-32C of a range of bytes that consists of whole writes."""
        first, last = bisect_right(self._ends, start), bisect_left(self._ends, stop)
        total = 0
        for at in range(first, last + 1):
            total = crc32c_combine(
                total, self._checksums[at], self._ends[at] - (self._ends[at - 1] if at else 0)
            )
        return total


class WrittenColumns(NamedTuple):
    """Describe the column file to write beside data files.

    Without features, the column file contains only the offsets of the records. ``path`` is the path of the
    column file in the store, and ``name`` is the same path relative to the dataset's root.
    """

    features: Sequence[Column]
    path: str
    name: str


class ColumnFileWriter:
    """Write one column file for the data files of a task.

    Add all rows of one data file before the rows of the next data file. After `close`, ``written`` describes
    the column file, or is None if no data file has ended.
    """

    def __init__(self, file: BinaryIO, columns: WrittenColumns, required: Collection[str]) -> None:
        self._file, self._sink, self._name = file, _Sink(file), columns.name
        self.written: ColumnFile | None = None
        features = columns.features
        fields = decoded_schema(tuple(features))
        self._features = [item.with_nullable(item.name not in required) for item in fields]
        self._schema = pa.schema([*self._features, pa.field(OFFSET, pa.int64(), nullable=False)])
        paths = [(f"{one.name}.list.element" if one.depth else one.name, one.kind) for one in features]
        integers = {OFFSET, *(path for path, kind in paths if kind == "int64")}
        # The name of a feature may equal the path of another feature's list, such as "a.list.element".
        integers -= {path for path, kind in paths if kind != "int64"}
        self._metadata: list[pq.FileMetaData] = []  # The writer adds the metadata of the file when it closes.
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            metadata_collector=self._metadata,
            compression="none",
            # Numbers are written and read faster without a dictionary.
            use_dictionary=[path for path, kind in paths if kind in ("bytes", "string")],
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
            write_statistics=[path for path, _ in paths],
        )
        self._files: list[dict[str, Any]] = []  # the data files that have ended
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0  # The total number of rows and bytes in the waiting tables.
        # The number of written records and row groups of the current data file.
        self._records = self._row_groups = 0

    def add(self, rows: pa.RecordBatch | pa.Table, offsets: Ints) -> None:
        """Add rows of the current data file. The columns of ``rows`` have storage types.

        ``offsets`` contains the offsets of the records in the decompressed data file.
        """
        columns = [
            column if (column := rows[item.name]).type == item.type else column.cast(item.type)
            for item in self._features
        ]
        added = pa.table([*columns, pa.array(offsets)], schema=self._schema)
        self._waiting.append(added)
        self._rows += len(added)
        self._bytes += added.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write()

    def end_file(self, path: str, size: int, checksum: int, content: int) -> None:
        """End the current data file. ``content`` is the decompressed size of the data file."""
        self._write()
        self._files.append(
            {
                "path": path,
                "bytes": size,
                "crc32c": checksum,
                "records": self._records,
                "content": content,
                "row_groups": self._row_groups,
            }
        )
        self._records = self._row_groups = 0

    def _write(self) -> None:
        if self._waiting:
            self._write_groups(pa.concat_tables(self._waiting))
        self._waiting, self._rows, self._bytes = [], 0, 0

    def _write_groups(self, rows: pa.Table) -> None:
        widest = max(column.nbytes for column in rows.columns)
        if len(rows) > 1 and (
            len(rows) > _GROUP_ROWS or rows.nbytes > _GROUP_BYTES or widest > _COLUMN_BYTES
        ):
            half = len(rows) // 2
            self._write_groups(rows.slice(0, half))
            self._write_groups(rows.slice(half))
        elif len(rows):
            self._writer.write_table(rows, row_group_size=len(rows))
            self._records += len(rows)
            self._row_groups += 1

    def close(self) -> None:
        self._writer.add_key_value_metadata({METADATA_KEY: json.dumps({"files": self._files})})
        held = self._sink.hold()
        self._writer.close()
        footer, metadata = held.getvalue(), self._metadata[0]
        chunks = [chunk_range(metadata, at, column) for at, column in all_chunks(metadata)]
        checksums = pack_checksums([self._sink.checksum(*chunk) for chunk in chunks])
        self._file.write(checksums + footer)
        names = tuple(item.name for item in self._features)
        if self._files:
            self.written = ColumnFile(self._name, self._sink.bytes + len(checksums), crc32c(footer), names)

    def discard(self) -> None:
        """Close the Parquet writer without writing to the file, because the caller discards it."""
        self._sink.hold()
        self._writer.close()


@contextmanager
def create_column_file(
    store: Store, columns: WrittenColumns, required: Collection[str] = ()
) -> Iterator[ColumnFileWriter]:
    """Create a column file that appears at its path when the ``with`` block ends. `Store.create` creates the
    file.

    The ``required`` features have a value in each row. Parquet writes and reads a feature faster if it is
    declared to have no nulls. The column file is not flushed to the disk, because a flush takes as long as
    writing many rows. A power cut can damage a column file that was not flushed.
    """
    with store.create(columns.path, durable=False) as file:
        writer = ColumnFileWriter(file, columns, required)
        try:
            yield writer
        except BaseException:  # even on KeyboardInterrupt
            writer.discard()
            raise
        writer.close()
