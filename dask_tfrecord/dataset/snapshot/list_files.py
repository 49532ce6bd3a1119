"""Read and encode the Parquet files of versions: each has a list of entries, and JSON metadata.

A reader needs the end of a file for its metadata, and reads only the row groups and the columns of the list
that it needs. The content of the files is untrusted, and is checked when it is read. The module `metadata`
defines the keys of the metadata, and docs/format.md specifies the files.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dask_tfrecord.codec import crc32c
from dask_tfrecord.dataset.names import snapshot_path
from dask_tfrecord.dataset.snapshot.entry_log import PLACE_STEP, CommitId, ListRows, Prune
from dask_tfrecord.dataset.snapshot.metadata import (
    FORMAT_VERSION,
    VersionMetadata,
    parse_metadata,
    strict_json,
)
from dask_tfrecord.dataset.snapshot.stored_files import check, from_stored, invalid_snapshot, to_stored
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.bounded_parquet import open_parquet, read_bounded
from dask_tfrecord.files.file_list import STATISTICS, FileList, statistics_name
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import value_type
from dask_tfrecord.storage.range_requests import ByteRange
from dask_tfrecord.storage.reader import PartialFile
from dask_tfrecord.storage.store import Store

METADATA_KEY = b"dask_tfrecord"

# The size of the checksum before the footer, and of the footer's length and last bytes.
_CHECKSUM_BYTES, _END_BYTES = 4, 8

# The largest size of the file of a version.
_MOST_BYTES = (1 << 31) - 1

# If several files are opened, this many bytes at the end of each are read. Unless the dataset has hundreds of
# columns, they contain the whole Parquet footer, and they are the whole file of a version with few entries.
# More bytes of a single file are read, which are the whole file of a version with 10,000 entries.
TAIL_BYTES = 1 << 16
_SINGLE_TAILS = 16

# Lists with more entries have several row groups, of this many entries each.
_GROUP_ROWS = 20_000

# Lists with fewer entries are not compressed, because compression would make them longer.
_FEW_ROWS = 4

# The exceptions that the conversion of an invalid file raises.
_INVALID = (pa.ArrowException, ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)


def public_path(store: Store, number: int) -> str:
    """Return the path of the file of a version, for messages."""
    return store.public(store.join(snapshot_path(number)))


@dataclass(frozen=True, eq=False, repr=False)
class ListFile:
    """The Parquet file of a version. Its metadata has been read, and its list is read when it is needed.

    ``data`` contains the whole file, or its end if ``is_whole`` is False.
    """

    store: Store
    number: int
    metadata: VersionMetadata
    footer: pq.FileMetaData
    data: bytes
    is_whole: bool

    @property
    def path(self) -> str:
        return public_path(self.store, self.number)

    @property
    def commits(self) -> tuple[CommitId, ...]:
        """The commits whose changes the list contains, the newest last."""
        first = self.number - len(self.metadata.merged)
        merged = (CommitId(number, *one) for number, one in enumerate(self.metadata.merged, first))
        return *merged, CommitId(self.number, self.metadata.run, self.metadata.write_id)

    @property
    def rows(self) -> int:
        count: int = self.footer.num_rows
        return count

    def read(
        self,
        schema: Schema,
        partitioning: Sequence[Field],
        names: Collection[str] | None = None,
        prune: Prune | None = None,
    ) -> ListRows:
        """Read and check the entries of the list.

        If ``names`` is given, read only the statistics of these columns. If ``prune`` is given, read only the
        row groups that it chooses, and all removed paths. Raise TFRecordError if the file is damaged.
        """
        metadata, footer = self.metadata, self.footer
        try:
            groups = [*range(footer.num_row_groups)]
            added = self.rows - metadata.removed
            if prune is not None and len(groups) > 1:
                ends = np.cumsum([footer.row_group(at).num_rows for at in groups])
                summary = _summary(footer, schema, partitioning)
                groups = np.flatnonzero(prune(summary) | (ends > added)).tolist()
            columns = None if names is None else self._columns(names)
            return from_stored(
                self._table(groups, columns),
                schema,
                partitioning,
                self.number,
                codec=metadata.compression or "none",
                start=metadata.next_place - PLACE_STEP * added,
                removed=metadata.removed,
                names=names,
            )
        except _INVALID as error:
            if isinstance(error, TFRecordError) and error.path:
                raise
            raise invalid_snapshot(error, self.path) from error

    def _columns(self, names: Collection[str]) -> list[str]:
        """Return the Parquet columns without the statistics of columns that are not in ``names``."""
        statistics = (f"{STATISTICS}.{name}" for name in names)
        others = {path.split(".")[0] for path in _paths(self.footer)} - {STATISTICS}
        return [*sorted(others), *statistics]

    def _table(self, groups: list[int], columns: list[str] | None) -> pa.Table:
        if self.is_whole:
            # Read without threads, so that no Arrow thread can free the buffer after the call has returned.
            # If the process ended while an Arrow thread was freeing a buffer, it would abort.
            return read_bounded(open_parquet(self.data), len(self.data), groups=groups, columns=columns)
        spans = _spans(self.footer, groups, columns)
        path = self.store.join(snapshot_path(self.number))
        parts = self.store.read_ranges([ByteRange(path, *span) for span in spans])
        found = [(start, data) for (start, _), data in zip(spans, parts, strict=True)]
        size = max((stop for _, stop in spans), default=0) + len(self.data)
        file = pq.ParquetFile(PartialFile(size, found), metadata=self.footer, page_checksum_verification=True)
        return read_bounded(file, sum(map(len, parts)), groups=groups, columns=columns)


# Spans of a file with a smaller gap between them are read with one request.
_GAP_BYTES = 1 << 18


def _spans(
    footer: pq.FileMetaData, groups: Sequence[int], columns: Collection[str] | None
) -> list[tuple[int, int]]:
    """Return the ranges of a file with the column chunks of some row groups."""
    chunks = []
    for at in groups:
        group = footer.row_group(at)
        for chunk in map(group.column, range(group.num_columns)):
            path = chunk.path_in_schema
            if columns is None or any(path == name or path.startswith(f"{name}.") for name in columns):
                starts = [chunk.data_page_offset]
                starts += [chunk.dictionary_page_offset] if chunk.has_dictionary_page else []
                chunks.append((min(starts), min(starts) + chunk.total_compressed_size))
    spans: list[tuple[int, int]] = []
    for start, stop in sorted(chunks):
        check(0 <= start <= stop <= _MOST_BYTES, "a column chunk is not inside the file")
        if spans and start - spans[-1][1] <= _GAP_BYTES:
            spans[-1] = spans[-1][0], max(stop, spans[-1][1])
        else:
            spans.append((start, stop))
    return spans


def open_list(store: Store, number: int) -> ListFile:
    """Open the file of a version. Raise FileNotFoundError if it does not exist."""
    [found] = open_lists(store, [number])
    if isinstance(found, Exception):
        raise found
    return found


def open_lists(store: Store, numbers: Sequence[int]) -> list[ListFile | Exception]:
    """Open the files of several versions at once. In the result, the exception that `open_list` would raise
    stands for a version that cannot be read.
    """
    paths = [store.join(snapshot_path(number)) for number in numbers]
    size = TAIL_BYTES * (_SINGLE_TAILS if len(paths) == 1 else 1)
    tails = store.read_ends(paths, size) if paths else []
    return [_opened(store, number, tail, size) for number, tail in zip(numbers, tails, strict=True)]


def _opened(store: Store, number: int, tail: bytes | Exception, size: int) -> ListFile | Exception:
    """Parse the last ``size`` bytes of a file, or the whole file if they do not contain the footer."""
    try:
        if isinstance(tail, bytes) and len(tail) == size >= _CHECKSUM_BYTES + _footer_bytes(tail):
            return opened(store, number, tail, is_whole=False)
        if not isinstance(tail, bytes) or len(tail) == size:  # or the store cannot read the end of a file
            tail = store.read_file(store.join(snapshot_path(number)), _MOST_BYTES)
        return opened(store, number, tail)
    except ValueError as error:
        if isinstance(error, TFRecordError):
            return error
        return invalid_snapshot(error, public_path(store, number))
    except Exception as error:  # the file does not exist, or the store fails
        return error


def opened(store: Store, number: int, data: bytes, *, is_whole: bool = True) -> ListFile:
    """Parse the untrusted content of a version's file, or its end. Raise TFRecordError if it is damaged."""
    try:
        metadata, footer = (_parsed if is_whole and len(data) < TAIL_BYTES else _parse)(data, number)
    except _INVALID as error:
        path = public_path(store, number)
        if isinstance(error, TFRecordError) and error.problem.startswith("the snapshot has format"):
            raise error.replaced(path=path) from None
        raise invalid_snapshot(error, path) from error
    return ListFile(store, number, metadata, footer, data, is_whole)


def _footer_bytes(data: bytes) -> int:
    return int.from_bytes(data[-_END_BYTES : -_END_BYTES // 2], "little") + _END_BYTES


def _with_checksum(data: bytes) -> bytes:
    """Store the checksum of the footer directly before it, where Parquet readers ignore it."""
    start = len(data) - _footer_bytes(data)
    footer = data[start:]
    return data[:start] + crc32c(footer).to_bytes(_CHECKSUM_BYTES, "little") + footer


def _check_footer(data: bytes) -> None:
    """Raise if the footer is damaged. PyArrow would abort the process for some damaged footers."""
    check(data[-4:] == b"PAR1", "it does not end with the magic bytes of Parquet")
    start = len(data) - _footer_bytes(data)
    found = int.from_bytes(data[max(0, start - _CHECKSUM_BYTES) : start], "little")
    check(start >= _CHECKSUM_BYTES and found == crc32c(data[start:]), "the checksum of its footer is wrong")


def _parse(data: bytes, number: int) -> tuple[VersionMetadata, pq.FileMetaData]:
    _check_footer(data)
    footer = open_parquet(data).metadata
    metadata = strict_json((footer.metadata or {})[METADATA_KEY])
    version = metadata["format_version"]
    if type(version) is not int or version != FORMAT_VERSION:
        raise TFRecordError(
            f"the snapshot has format version {version!r}, "
            f"this library reads format version {FORMAT_VERSION}",
            "use the version of dask-tfrecord that wrote the dataset, or a newer one",
        )
    return parse_metadata(metadata, number, footer.num_rows), footer


# The metadata of small files is cached, because programs often open a dataset again.
_parsed = lru_cache(maxsize=64)(_parse)


def encode(
    metadata: Mapping[str, Any], rows: ListRows, schema: Schema, partitioning: Sequence[Field], number: int
) -> bytes:
    """Encode a list and the JSON metadata of its version, ``number``, as a Parquet file."""
    count, codec = len(rows.added), metadata["compression"] or "none"
    start = metadata["next_place"] - PLACE_STEP * count
    table = to_stored(rows, schema, partitioning, number, codec, start)
    text = json.dumps(metadata, allow_nan=False, separators=(",", ":"))
    is_long = len(table) > _GROUP_ROWS
    repeated = [f"partition.{item.name}" for item in partitioning] + ["columns.path", "codec"]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        store_schema=False,
        compression="zstd" if len(table) >= _FEW_ROWS else "none",
        write_page_checksum=True,
        # Statistics serve to leave out row groups.
        write_statistics=is_long,
        use_dictionary=repeated if len(table) >= _FEW_ROWS else False,
    ) as writer:
        for part in (table.slice(0, count), table.slice(count)):
            if len(part) or not len(table):
                writer.write_table(part, row_group_size=_GROUP_ROWS)
            if not len(table):
                break
        writer.add_key_value_metadata({METADATA_KEY: text.encode()})
    return _with_checksum(bytes(sink.getvalue()))


# -- Statistics of row groups --------------------------------------------------------------------------------

# In a summary, each row group counts as a file with this many records.
_RECORDS = 2


def _summary(footer: pq.FileMetaData, schema: Schema, partitioning: Sequence[Field]) -> FileList:
    """Describe each row group as if it were a file, with statistics of the data and partition columns.

    The bounds of a group contain those of all of its files. If a bound of a file is unknown, so is the bound
    of the group. The number of nulls is 0 if no file has nulls, `_RECORDS` if all rows are null, and 1
    otherwise.
    """
    paths = _paths(footer)
    arrow = footer.schema.to_arrow_schema()
    count = footer.num_row_groups
    columns: dict[str, Any] = {"records": pa.repeat(pa.scalar(_RECORDS, pa.int64()), count)}
    for item in partitioning:
        path = f"partition.{item.name}"
        if path in paths:
            type_ = arrow.field("partition").type.field(item.name).type
            groups = _leaf(footer, paths[path])
            bounds = ([one.low for one in groups], [one.high for one in groups])
            nulls = [_RECORDS if one.is_null else min(one.nulls, 1) for one in groups]
            columns[statistics_name(item.name)] = _statistics(nulls, bounds, type_, item)
    for item in schema.leaves:
        prefix = f"{STATISTICS}.{item.name}"
        if f"{prefix}.min" in paths and not item.depth:
            lows = _leaf(footer, paths[f"{prefix}.min"])
            highs = _leaf(footer, paths[f"{prefix}.max"]) if f"{prefix}.max" in paths else lows
            type_ = arrow.field(STATISTICS).type.field(item.name).type.field("min").type
            # A file without a bound makes the bounds of its group unknown.
            is_known = [not (low.nulls or high.nulls) for low, high in zip(lows, highs, strict=True)]
            bounds = (
                [one.low if known else None for one, known in zip(lows, is_known, strict=True)],
                [one.high if known else None for one, known in zip(highs, is_known, strict=True)],
            )
            nulls = [not known for known in is_known]
            if f"{prefix}.nulls" in paths:  # otherwise the null counts of all files with statistics are 0
                counts = _leaf(footer, paths[f"{prefix}.nulls"])
                nulls = [one or count.high != 0 for one, count in zip(nulls, counts, strict=True)]
            columns[statistics_name(item.name)] = _statistics([*map(int, nulls)], bounds, type_, item)
    return FileList(pa.table(columns))


def _statistics(
    nulls: Sequence[int], bounds: Iterable[Sequence[Any]], stored: pa.DataType, column: Field
) -> pa.StructArray:
    """Make the statistics of a column from bounds of the physical type in the Parquet file."""
    arrays = (_converted(values, stored, value_type(column.type)) for values in bounds)
    return pa.StructArray.from_arrays([pa.array(nulls, pa.int64()), *arrays], names=["nulls", "min", "max"])


@dataclass(frozen=True)
class _Leaf:
    """The values of a Parquet column in a row group: bounds, if they are known, and nulls."""

    low: Any
    high: Any
    nulls: int
    is_null: bool


def _paths(footer: pq.FileMetaData) -> dict[str, int]:
    """Map the path of each Parquet column to its index."""
    return {footer.schema.column(at).path: at for at in range(footer.num_columns)}


def _leaf(footer: pq.FileMetaData, at: int) -> list[_Leaf]:
    """Return the values of a Parquet column in each row group."""
    return [_leaf_of(footer.row_group(group).column(at)) for group in range(footer.num_row_groups)]


def _leaf_of(chunk: pq.ColumnChunkMetaData) -> _Leaf:
    found = chunk.statistics
    if found is None or not found.has_null_count:
        return _Leaf(None, None, 1, False)
    nulls, is_null = found.null_count, found.null_count == chunk.num_values
    if not found.has_min_max:
        return _Leaf(None, None, nulls, is_null)
    is_decimal = found.physical_type == "FIXED_LEN_BYTE_ARRAY"
    low, high = (found.min, found.max) if is_decimal else (found.min_raw, found.max_raw)
    return _Leaf(low, high, nulls, is_null)


def _converted(values: Sequence[Any], stored: pa.DataType, wanted: pa.DataType) -> pa.Array:
    """Convert bounds from the physical type in the Parquet file. Bounds that do not fit become null."""
    with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
        if pa.types.is_unsigned_integer(stored) and stored.bit_width >= 32:
            signed = pa.int64() if stored.bit_width == 64 else pa.int32()
            found = pa.array(values, signed).view(stored)
        elif pa.types.is_temporal(stored):
            found = pa.array(values, pa.int32() if stored.bit_width == 32 else pa.int64()).cast(stored)
        elif pa.types.is_string(stored):
            found = pa.array(values, pa.binary()).cast(stored)
        else:
            found = pa.array(values, stored)
        return found.cast(wanted)
    return pa.nulls(len(values), wanted)
