"""Read the rows of splits from column files, and choose which bytes of the data files to read, if any.

The rows are the same as without column files. Without a usable column file, the records are decoded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import KIND_TYPES, MAX_RECORD_BYTES, Ints
from dask_tfrecord.dataset.query.comparison_keys import (
    ColumnRange,
    FileRanges,
    range_of_statistics,
    range_of_values,
)
from dask_tfrecord.dataset.query.predicates import Predicate, possible_outcomes
from dask_tfrecord.dataset.read.partition import PlannedPartition
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.files.column_files import ColumnFileReader, RowGroup, StoredRows, open_column_file
from dask_tfrecord.files.record_file import content_bytes, groups_of_small_files, rows_without_columns
from dask_tfrecord.files.selected_records import Fetch, plan_fetch
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.listing import check_unchanged
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import value_type

# This many rows are read from a column file at once: 8 of the largest row groups.
_CHUNK_ROWS = 1 << 20

# The types whose values have the same order as the stored values, which the statistics of Parquet describe.
_ORDERED_TYPES = (
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date32,
    pa.types.is_timestamp,
)

# Files below this size that can be read together are decoded, because reading one row from a column file
# takes as long as reading thousands of rows.
_SMALL_BYTES = 1 << 16

# Parquet takes this many times as long for a byte of lists as the decoder takes for a byte of records.
_LIST_COST = 2

_UNUSABLE = "the column file is missing, damaged or describes other data"


@dataclass(frozen=True)
class Chunk:
    """Some adjacent rows of a split.

    ``rows`` contains the positions of the requested rows, counted from ``start``, in ascending order. None
    means all rows. ``known`` contains columns of the requested rows that were already read.
    """

    start: int
    stop: int
    rows: Ints | None = None
    known: pa.Table | None = None

    def take(self, table: pa.Table) -> pa.Table:
        """Return the requested rows of a table with all rows of the chunk."""
        if self.rows is None or len(self.rows) == table.num_rows:
            return table
        mask = np.zeros(table.num_rows, bool)  # Arrow's `take` could join too large chunks
        mask[self.rows] = True
        return table.filter(pa.array(mask))


@dataclass(frozen=True)
class Choice:
    """How a split is read.

    "decode" reads all records of the split. "columns" reads the ``chunks`` from the column file. "records"
    reads only the records of requested rows. "nothing" means that no row is requested. ``fetch`` contains the
    byte ranges of the requested records, if `choose` compared them with a read of the complete split.
    """

    way: Literal["decode", "columns", "records", "nothing"]
    reason: str = ""
    chunks: tuple[Chunk, ...] = ()
    fetch: Fetch | None = None

    @property
    def rule(self) -> str:
        """The reason for the choice, as `explain` reports it."""
        return self.fetch.rule if self.fetch is not None else self.reason


class ColumnReads:
    """The splits of a partition whose column files may be used.

    Creating the object checks that the data files of these splits are unchanged. ``picks_rows`` is True if
    the caller passes the indices of the requested rows to `choose`.
    """

    def __init__(self, partition: PlannedPartition, *, picks_rows: bool = False) -> None:
        self._partition, self._picks_rows = partition, picks_rows
        # The columns of the result, and the columns of the filters, without partition columns.
        values, every = partition.partition_values, partition.all_columns
        self._wanted = every.select(name for name in partition.schema.names if name not in values)
        used = set() if partition.filters is None else partition.filters.columns() - values.keys()
        self._used = every.select(sorted(used))
        self._needed = self._wanted if partition.filters is None else self._used
        self._small = {*_small_files(partition.splits)}
        self._stored: dict[Split, StoredRows] = {}
        if not self._problem():
            self._stored = {split: rows for split in partition.splits if (rows := self._open(split))}
        check_unchanged(partition.store, [split.file for split in self._stored])

    def choose(self, split: Split, rows: Ints | None = None) -> Choice:
        """Choose how to read a split. Evaluate the filters if the column file stores the filter columns.

        If the partition has no filters, ``rows`` may contain the indices of the requested rows within the
        split, in ascending order.
        """
        partition, stored = self._partition, self._stored.get(split)
        if stored is None:
            return Choice("decode", self._problem() or self._problem_of(split))
        lacks = _lacks(stored.reader, self._wanted)
        chunks = list(_chunks(split.records or 0, rows))
        if partition.filters is not None:
            possible = self._possible_chunks(split, partition.filters, self._used)
            passing = self._passing(split, partition.filters, possible, keeps_values=not lacks)
            if passing is None:
                return Choice("decode", _UNUSABLE)
            chunks = passing
        if not chunks:
            return Choice("nothing", "no row of the column file is wanted")
        if not lacks and partition.allowed_features is None:
            if chunks[0].rows is None and (rule := self._costly_lists(split)):
                return Choice("decode", rule)
            return Choice("columns", "the column file has all columns", tuple(chunks))
        if chunks[0].rows is None:
            return Choice("decode", lacks or "the features of all records are checked")
        wanted = np.concatenate([one.start + one.rows for one in chunks if one.rows is not None])
        fetch = plan_fetch(partition.store, split, wanted, stored.offsets(0, split.records or 0))
        if fetch is None:
            return Choice("decode", "the positions of the records are not known")
        return Choice("records" if fetch.is_cheaper else "decode", fetch=fetch)

    def possible(self, split: Split) -> Ints | None:
        """Return the indices of the rows of a split for which the predicate of the partition may be true.

        Return None if the column file does not exclude any row.
        """
        predicate, stored = self._partition.predicate, self._stored.get(split)
        if stored is None or predicate is None:
            return None
        columns = self._predicate_columns(stored.reader)
        if not columns.fields:
            return None
        found = []
        for chunk in self._possible_chunks(split, predicate, columns):
            table = stored.read(columns, chunk.start, chunk.stop)
            if table is None:
                return None
            # Treat each row as a file in which the value of the row is both minimum and maximum.
            values = ((item, table[item.name].combine_chunks()) for item in columns.fields)
            ranges = {item.name: range_of_values(item, array) for item, array in values}
            outcomes = possible_outcomes(predicate, FileRanges(np.ones(table.num_rows, bool), ranges))
            found.append(chunk.start + np.flatnonzero(outcomes.true))
        rows = np.concatenate([np.zeros(0, np.int64), *found])
        return rows if len(rows) < (split.records or 0) else None

    def _predicate_columns(self, reader: ColumnFileReader) -> Schema:
        """Return the columns of the predicate that a column file stores."""
        fields, record_type = self._partition.predicate_fields, self._partition.schema.record_type
        stored = (item for item in fields if reader.stores(Schema((item,), record_type)))
        return Schema(tuple(stored), record_type)

    def read(self, split: Split, choice: Choice) -> Iterator[pa.Table | None]:
        """Yield the requested rows of a split, unless the choice is "decode".

        The last element is None if the column file turns out to be unusable. The rows that follow the yielded
        rows must then be decoded.
        """
        if choice.fetch is not None:
            yield self._fetched(split, choice.fetch)
        for chunk in choice.chunks:
            table = self._of_chunk(split, chunk)
            yield table
            if table is None:
                return

    def column_bytes(self, split: Split, choice: Choice) -> int:
        """Return how many bytes of the column file a choice reads."""
        stored = self._stored.get(split)
        if stored is None:
            return 0
        filtering, predicate, total = self._used, self._partition.filters, 0
        if self._picks_rows:
            filtering, predicate = self._predicate_columns(stored.reader), self._partition.predicate
        if predicate is not None and filtering.fields:
            found = self._possible_chunks(split, predicate, filtering)
            total = sum(stored.stored_bytes(filtering, one.start, one.stop) for one in found)
        if choice.fetch is not None:
            total += stored.stored_bytes(None, 0, split.records or 0)
        known = () if self._picks_rows else filtering.names
        others = self._wanted.select(name for name in self._wanted.names if name not in known)
        parts = [part for chunk in choice.chunks for part in self._parts(split, chunk)]
        return total + sum(stored.stored_bytes(others, one.start, one.stop) for one in parts)

    def _costly_lists(self, split: Split) -> str:
        """Return why decoding all records is faster than reading lists from the column file, or ""."""
        if not any(column.depth for column in self._wanted.columns):
            return ""
        size = split.stored_bytes
        needed = self._stored[split].stored_bytes(self._wanted, 0, split.records or 0)
        return f"the lists take {needed:,} bytes, the records {size:,}" if _LIST_COST * needed > size else ""

    def _parts(self, split: Split, chunk: Chunk) -> list[Chunk]:
        """Divide a chunk into the row groups of the column file that contain requested rows.

        Adjacent row groups form one part.
        """
        if chunk.rows is None:
            return [chunk]
        rows = chunk.start + chunk.rows
        groups = self._stored[split].groups(chunk.start, chunk.stop)
        if not groups:  # the column file turned out to be unusable
            return [chunk]
        stops = np.array([min(stop, chunk.stop) for _, stop, _ in groups], np.int64)
        used = np.unique(np.searchsorted(stops, rows, side="right"))
        parts = []
        for run in np.split(used, np.flatnonzero(np.diff(used) > 1) + 1):
            start, stop = max(groups[run[0]][0], chunk.start), int(stops[run[-1]])
            here = rows[slice(*np.searchsorted(rows, (start, stop)))]
            parts.append(Chunk(start, stop, here - start))
        return parts

    def _problem(self) -> str:
        """Return the reason why no column file of the partition can be used, or ""."""
        options = self._partition.options
        if options.damage.skips:
            return "damaged records are skipped"
        if options.origin_columns:
            return "the path or the offset of each record is read"
        if options.compression != "infer" or options.max_record_bytes != MAX_RECORD_BYTES:
            return "the codec or the size of the records is checked"
        if self._partition.filters is not None and not self._used.fields:
            return "the filters use no column of the records"
        return ""

    def _problem_of(self, split: Split) -> str:
        if split.columns is None or split.records is None:
            return "the file has no column file"
        if split in self._small:
            return "small files are decoded together"
        reader = open_column_file(self._partition.store, split.columns)
        return _lacks(reader, self._needed) if reader.features else _UNUSABLE

    def _open(self, split: Split) -> StoredRows | None:
        """Return the rows of a split in its column file, or None if the column file cannot be used."""
        if split.columns is None or split.records is None or split in self._small:
            return None
        store, file = self._partition.store, split.file
        reader = open_column_file(store, split.columns)
        if not (self._picks_rows or reader.stores(self._needed)):
            return None
        return StoredRows(reader, store.relative(file.path), file.size, file.crc32c, split.start.record)

    def _possible_chunks(self, split: Split, predicate: Predicate, schema: Schema) -> list[Chunk]:
        """Return the chunks of the row groups in which a predicate may be true, by Parquet's statistics."""
        count, stored = split.records or 0, self._stored[split]
        groups = stored.groups(0, count)
        # With one row group, the statistics of the snapshot already say as much. Without row groups, the
        # column file is unusable, and the read of the chunks will find this out.
        if len(groups) < 2:
            return list(_chunks(count, None))
        found = ((item.name, _range_of_groups(stored.reader, item, groups)) for item in schema.fields)
        ranges = {name: limits for name, limits in found if limits is not None}
        outcomes = possible_outcomes(predicate, FileRanges(np.ones(len(groups), bool), ranges))
        chunks: list[Chunk] = []
        for at in np.flatnonzero(outcomes.true).tolist():
            start, stop = max(groups[at][0], 0), min(groups[at][1], count)
            if chunks and chunks[-1].stop == start and stop - chunks[-1].start <= _CHUNK_ROWS:
                start = chunks.pop().start
            chunks.append(Chunk(start, stop))
        return chunks

    def _passing(
        self, split: Split, filters: Predicate, chunks: list[Chunk], *, keeps_values: bool
    ) -> list[Chunk] | None:
        """Return the chunks with rows that pass the filters. If ``keeps_values``, add their values.

        Return None if the column file is unusable.
        """
        partition, passing = self._partition, []
        columns = partition.all_columns.select(sorted(filters.columns()))
        for chunk in chunks:
            table = self._stored[split].read(self._used, chunk.start, chunk.stop)
            if table is None:
                return None
            mask = partition.outcome(filters, partition.with_partition_values(table, columns))
            rows = pc.indices_nonzero(mask).to_numpy().view(np.int64)
            if len(rows):
                known = table.filter(mask) if keeps_values else None
                passing.append(Chunk(chunk.start, chunk.stop, rows, known))
        return passing

    def _of_chunk(self, split: Split, chunk: Chunk) -> pa.Table | None:
        known = {} if chunk.known is None else dict(zip(chunk.known.column_names, chunk.known, strict=True))
        others = self._wanted.select(name for name in self._wanted.names if name not in known)
        if others.fields:
            tables = []
            for part in self._parts(split, chunk):
                table = self._stored[split].read(others, part.start, part.stop)
                if table is None:
                    return None
                tables.append(part.take(table))
            found = pa.concat_tables(tables)
            known |= dict(zip(found.column_names, found.columns, strict=True))
        rows, schema = rows_without_columns(len(next(iter(known.values())))), self._partition.schema
        if self._wanted.fields:
            rows = pa.table({name: known[name] for name in self._wanted.names})
        return self._partition.with_partition_values(rows, schema) if schema.fields else rows

    def _fetched(self, split: Split, fetch: Fetch) -> pa.Table | None:
        partition = self._partition
        table = fetch.read(partition.decoding)
        if table is None:
            return None
        found = partition.filtered(partition.with_partition_values(table, partition.all_columns))
        # If a requested record does not pass the filters, the column file differs from the records.
        return found if found.num_rows == len(fetch.rows) else None


def _range_of_groups(reader: ColumnFileReader, item: Field, groups: Sequence[RowGroup]) -> ColumnRange | None:
    """Return the limits of a column in each row group, or None if Parquet's statistics lack them."""
    if item.form is not None or not any(test(item.type) for test in _ORDERED_TYPES):
        return None
    found = [reader.statistics(number, item.name) for _, _, number in groups]
    known = [one for one in found if one is not None and one.has_null_count]
    if len(known) < len(found):
        return None
    bounds = [
        [getattr(one, name) if one.has_min_max else None for one in known] for name in ("min_raw", "max_raw")
    ]
    stored = KIND_TYPES[item.column.kind]
    try:
        low, high = (item.load(pa.array(values, stored)).cast(value_type(item.type)) for values in bounds)
    except SchemaError:  # decoding the records will raise an error that names the record
        return None
    nulls = pa.array([one.null_count for one in known], pa.int64())
    statistics = pa.StructArray.from_arrays([nulls, low, high], names=["nulls", "min", "max"])
    return range_of_statistics(item, statistics, np.array([stop - start for start, stop, _ in groups]))


def _chunks(count: int, rows: Ints | None) -> Iterator[Chunk]:
    """Divide the rows of a split into chunks. Leave out chunks without requested rows."""
    for start in range(0, count, _CHUNK_ROWS):
        stop = min(start + _CHUNK_ROWS, count)
        if rows is None:
            yield Chunk(start, stop)
            continue
        here = rows[slice(*np.searchsorted(rows, (start, stop)))] - start
        if len(here):
            yield Chunk(start, stop, here)


def _small_files(splits: Sequence[Split]) -> Iterator[Split]:
    """Yield the splits of small files that are read together with other files."""
    for group in groups_of_small_files(splits):
        if len(group) > 1:
            yield from (split for split in group if content_bytes(split) < _SMALL_BYTES)


def _lacks(reader: ColumnFileReader, schema: Schema) -> str:
    """Describe the columns that a column file lacks, or return ""."""
    lacking = [repr(item.name) for item in schema.fields if not reader.features.issuperset(item.features)]
    more = f" and {len(lacking) - 3:,} more" if len(lacking) > 3 else ""
    return f"the column file does not have {', '.join(lacking[:3])}{more}" if lacking else ""
