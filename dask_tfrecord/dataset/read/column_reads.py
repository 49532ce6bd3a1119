"""Read rows from column files, and choose which bytes of the data files must be read.

The returned rows are the same with and without column files. If there is no usable column file, the records
are decoded.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import KIND_TYPES, MAX_RECORD_BYTES, Ints
from dask_tfrecord.dataset.query.comparison_keys import (
    ColumnRange,
    FileRanges,
    Mask,
    range_of_statistics,
    range_of_values,
)
from dask_tfrecord.dataset.query.predicates import Predicate, possible_outcomes
from dask_tfrecord.dataset.read.partitions import PlannedPartition
from dask_tfrecord.dataset.snapshot.stored_files import Columnar
from dask_tfrecord.errors import SchemaError, short_list
from dask_tfrecord.files.column_files import ColumnFileReader, StoredRows, open_column_file
from dask_tfrecord.files.record_file import content_bytes, groups_of_small_files
from dask_tfrecord.files.selected_records import Fetch, plan_fetch
from dask_tfrecord.files.small_columns import why_no_column_file
from dask_tfrecord.files.splits import Split
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import value_type

# For these types, values have the same order as the stored values that Parquet's statistics describe.
_ORDERED_TYPES = (
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date32,
    pa.types.is_timestamp,
)

# If a smaller file can be read together with others, its records are decoded, and its column file is not
# used. Reading a column file takes as long for one row as for thousands of rows.
_SMALL_BYTES = 1 << 16

# Reading a byte of lists from Parquet takes this many times as long as decoding a byte of records.
_LIST_COST = 2

# On a remote store, the column files of at most this many splits are read at once, and about this many bytes.
_AHEAD_SPLITS = 16
_AHEAD_BYTES = 1 << 24

_UNUSABLE = "the column file is missing, damaged or describes other data"

_NO_ROWS: Ints = np.zeros(0, np.int64)

_T = TypeVar("_T")


class Choice(NamedTuple):
    """The choice of what to read for a split, and its reason.

    ``rows`` contains the indices of the requested rows in the split, in ascending order. None means all rows.
    ``known`` contains the requested rows of the columns that `ColumnReads.choose` has read. ``fetch``
    contains the byte ranges of the requested records if `ColumnReads.choose` compared reading only these
    records with reading all.
    """

    source: Literal["all records", "some records", "column file", "no records"]
    rule: str
    rows: Ints | None = None
    known: pa.Table | None = None
    fetch: Fetch | None = None


class ColumnReads:
    """Read the rows of a partition's splits from column files, where possible.

    If a file of another tool may have been rewritten, its column file is not used. ``picks_rows`` is True if
    the caller passes the indices of the requested rows to `choose`. ``groups`` contains lists of splits, in
    the order of the partition's splits. Small files that can be read together are in the same list of
    ``groups``.
    """

    def __init__(self, partition: PlannedPartition, *, picks_rows: bool = False) -> None:
        self._partition, self._picks_rows = partition, picks_rows
        # Exclude partition columns from those of the result and of the filters.
        values, every = partition.partition_values, partition.all_columns
        self._wanted = every.select(name for name in partition.schema.names if name not in values)
        used = set() if partition.filters is None else partition.filters.columns() - values.keys()
        self._used = every.select(sorted(used))
        self._needed = self._wanted if partition.filters is None else self._used
        self._stored: dict[Split, StoredRows] = {}
        self._reasons: dict[Split, str] = {}  # maps each split to the reason why its records must be decoded
        self.groups = [*groups_of_small_files(partition.splits)]
        problem = self._problem()

        def opened(item: tuple[Split, bool]) -> StoredRows | str:
            return problem or self._open(*item)

        items = [
            (split, len(group) > 1 and content_bytes(split) < _SMALL_BYTES)
            for group in self.groups
            for split in group
        ]
        are_remote = partition.store.is_remote and not problem
        each = partition.store.for_each(opened, items) if are_remote else map(opened, items)
        for (split, _), found in zip(items, each, strict=True):
            if isinstance(found, str):
                self._reasons[split] = found
            else:
                self._stored[split] = found
        self._rest = iter(self._stored)
        self._ahead: dict[Split, tuple[Choice, list[pa.Table | None]] | Exception] = {}

    @property
    def uses_column_files(self) -> bool:
        return bool(self._stored)

    @property
    def decoded(self) -> list[Split]:
        """The splits whose records must be decoded, whatever the filters are."""
        return [split for group in self.groups for split in group if split in self._reasons]

    def choose(self, split: Split, rows: Ints | None = None) -> Choice:
        """Choose how to read a split. Evaluate the filters if the column file stores the filter columns.

        If there are no filters, ``rows`` may contain the indices of the requested rows in the split, in
        ascending order.
        """
        partition, stored, known = self._partition, self._stored.get(split), None
        if stored is None:
            return Choice("all records", self._reasons[split])
        lacks = _lacks(stored.reader, self._wanted)
        if partition.filters is not None:
            passing = self._passing(stored, partition.filters, keeps_values=not lacks)
            if passing is None:
                return Choice("all records", _UNUSABLE)
            rows, known = passing
        if not (stored.records if rows is None else len(rows)):
            return Choice("no records", "no row of the column file is wanted", _NO_ROWS)
        if not lacks and partition.allowed_features is None:
            if rows is None and (costly := self._costly_lists(split, stored)):
                return Choice("all records", costly)
            return Choice("column file", "the column file has all columns", rows, known)
        if rows is None:
            return Choice("all records", lacks or "the features of all records are checked")
        fetch = plan_fetch(partition.store, split, rows, stored.offsets(0, stored.records))
        if fetch is None:
            return Choice("all records", "the positions of the records are not known")
        if fetch.is_cheaper:
            return Choice("some records", fetch.rule, rows, fetch=fetch)
        return Choice("all records", fetch.rule, fetch=fetch)

    def choose_next(self, split: Split) -> Choice:
        """Choose how to read a split, as `choose` does. The caller passes the splits in order, each once.

        On a remote store, read the rows of this split and of the next splits at once.
        """
        if split in self._stored and split not in self._ahead and self._partition.store.is_remote:
            self._read_next()
        found = self._ahead.get(split) or self.choose(split)
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, Choice) else found[0]

    def _read_next(self) -> None:
        """Read the rows of the next splits at once: several splits of at most `_AHEAD_BYTES` bytes together,
        or one split, whose rows are read later.
        """
        splits, size = list[Split](), 0
        for split in self._rest:
            splits.append(split)
            size += self._stored[split].stored_bytes(self._wanted, 0, self._stored[split].records)
            if size > _AHEAD_BYTES or len(splits) == _AHEAD_SPLITS:
                break

        def read(split: Split) -> tuple[Choice, list[pa.Table | None]] | Exception:
            try:
                choice = self.choose(split)
                return choice, [] if choice.source == "all records" else [*self.read(split, choice)]
            except Exception as error:  # raised when the caller asks for the split
                return error

        if len(splits) > 1:
            results = self._partition.store.for_each(read, splits)
            self._ahead.update(zip(splits, results, strict=True))

    def possible(self, split: Split) -> Ints | None:
        """Return the indices of the rows in a split for which the partition's predicate may be true.

        Return None if the column file excludes no row.
        """
        predicate, stored = self._partition.predicate, self._stored.get(split)
        if stored is None or predicate is None:
            return None
        found = [_NO_ROWS]
        for start, _, table in self._tested(stored, stored.read):
            if table is None:
                return None
            # Treat each row as a file in which the value of the row is both minimum and maximum.
            fields = (item for item in self._partition.predicate_fields if item.name in table.column_names)
            ranges = {item.name: range_of_values(item, table[item.name].combine_chunks()) for item in fields}
            outcomes = possible_outcomes(predicate, FileRanges(np.ones(table.num_rows, bool), ranges))
            found.append(start + np.flatnonzero(outcomes.true))
        rows = np.concatenate(found)
        return rows if len(rows) < stored.records else None

    def read(self, split: Split, choice: Choice) -> Iterator[pa.Table | None]:
        """Yield the requested rows of a split. ``choice.source`` must not be "all records".

        If the column file turns out to be unusable, the last element is None, and the caller must decode the
        remaining rows of the split.
        """
        ahead = self._ahead.pop(split, None)
        if isinstance(ahead, tuple):
            yield from ahead[1]
            return
        if choice.fetch is not None:
            yield self._fetched(choice.fetch)
            return
        partition, stored, rows = self._partition, self._stored[split], choice.rows
        for start, stop, table in self._unread(stored, choice, stored.read):
            if table is None:
                yield None
                return
            if rows is not None:
                first, last = np.searchsorted(rows, (start, stop)).tolist()
                table = rows_at(table, rows[first:last] - start)
                if choice.known is not None:
                    parts = choice.known.slice(first, last - first), table
                    table = pa.table({name: part[name] for part in parts for name in part.column_names})
            yield partition.with_partition_values(table.select(self._wanted.names), partition.schema)

    def column_bytes(self, split: Split, choice: Choice) -> int:
        """Return the number of bytes of a split's column file that `possible`, `choose` and `read` load."""
        return sum(stop - start for start, stop in self.column_spans(split, choice))

    def column_spans(self, split: Split, choice: Choice) -> list[tuple[int, int]]:
        """Return the ranges of a split's column file that `possible`, `choose` and `read` load."""
        stored = self._stored.get(split)
        if stored is None:
            return []
        spans = [*chain.from_iterable(found for *_, found in self._tested(stored, stored.spans))]
        if choice.fetch is not None:
            spans += stored.spans(None, 0, stored.records)
        elif choice.source == "column file":
            unread = self._unread(stored, choice, stored.spans)
            spans += chain.from_iterable(found for *_, found in unread)
        return spans

    def _tested(
        self, stored: StoredRows, read: Callable[[Schema, int, int], _T]
    ) -> Iterator[tuple[int, int, _T]]:
        """Read the columns that the filters use, from the row groups in which the filters may be true.
        Without filters, use the partition's predicate instead.
        """
        predicate = self._partition.filters or self._partition.predicate
        if predicate is None:
            return iter(())
        fields = self._used.fields or self._partition.predicate_fields
        known = tuple(item for item in fields if stored.reader.features.issuperset(item.features))
        columns = Schema(known, self._wanted.record_type)
        return stored.each(_may_match(stored, predicate, columns), columns, read)

    def _unread(
        self, stored: StoredRows, choice: Choice, read: Callable[[Schema, int, int], _T]
    ) -> Iterator[tuple[int, int, _T]]:
        """Read the result columns that are not in ``choice.known``, from row groups with requested rows."""
        known = () if choice.known is None else choice.known.column_names
        columns = self._wanted.select(name for name in self._wanted.names if name not in known)
        return stored.each(_has_any(stored, choice.rows), columns, read)

    def _costly_lists(self, split: Split, stored: StoredRows) -> str:
        """Return the reason why decoding all records is faster than reading lists from the column file.
        Return "" if decoding is not faster, or if no lists are read.
        """
        if not any(column.depth for column in self._wanted.columns):
            return ""
        size, needed = split.stored_bytes, stored.stored_bytes(self._wanted, 0, stored.records)
        return f"the lists take {needed:,} bytes, the records {size:,}" if _LIST_COST * needed > size else ""

    def _problem(self) -> str:
        """Return the reason why the partition cannot use column files, or "" if column files can be used."""
        options = self._partition.options
        if options.damage.skips:
            return "damaged records are skipped"
        if options.origin_columns:
            return "the path or the offset of each record is read"
        if options.compression != "infer" or options.max_record_bytes != MAX_RECORD_BYTES:
            return "the codec or the size of the records is checked"
        if self._partition.filters is not None and not self._used.fields:
            return "the filters use no column of the records"
        if not (self._needed.fields or self._picks_rows):
            return "no column of the records is read"
        return ""

    def _open(self, split: Split, is_small: bool) -> StoredRows | str:
        """Return the `StoredRows` of a split, or the reason why its column file cannot be used."""
        if split.columns is None or split.records is None:
            return _without_column_file(split, self._partition.columnar)
        if is_small:
            return "small files are decoded together"
        names = [column.name for column in self._needed.columns]
        if not self._picks_rows and (missing := {*names}.difference(split.columns.features)):
            return _without([name for name in names if name in missing])
        store, file = self._partition.store, split.file
        reader = open_column_file(store, split.columns)
        if not self._picks_rows and not reader.stores(self._needed):
            return _lacks(reader, self._needed) if reader.features else _UNUSABLE
        if file.stamp and store.is_restamped(file.path, file.size, file.stamp):
            return "the data file may have been rewritten"
        path, first = store.listed_name(file.path), split.start.record
        return reader.rows_of(path, file.size, file.crc32c, split.records, first) or _UNUSABLE

    def _passing(
        self, stored: StoredRows, filters: Predicate, *, keeps_values: bool
    ) -> tuple[Ints, pa.Table | None] | None:
        """Return the indices of the rows that pass the filters, and the filter columns if ``keeps_values`` is
        True.

        Return None if the column file is unusable.
        """
        partition, found, known = self._partition, [_NO_ROWS], []
        columns = partition.all_columns.select(sorted(filters.columns()))
        for start, _, table in self._tested(stored, stored.read):
            if table is None:
                return None
            mask = partition.outcome(filters, partition.with_partition_values(table, columns))
            found.append(start + pc.indices_nonzero(mask).to_numpy().view(np.int64))
            if keeps_values:
                known.append(table.filter(mask))
        return np.concatenate(found), pa.concat_tables(known) if known else None

    def _fetched(self, fetch: Fetch) -> pa.Table | None:
        partition = self._partition
        table = fetch.read(partition.reader)
        if table is None:
            return None
        found = partition.filtered(partition.with_partition_values(table, partition.all_columns))
        # If a requested record does not pass the filters, the column file differs from the records.
        return found if found.num_rows == len(fetch.rows) else None


def rows_at(table: pa.Table, rows: Ints) -> pa.Table:
    """Return the rows of a table at the indices ``rows``, which must be ascending and unique."""
    if len(rows) == table.num_rows:
        return table
    mask = np.zeros(table.num_rows, bool)  # Arrow's `take` could join chunks into an array that is too large
    mask[rows] = True
    return table.filter(pa.array(mask))


def _has_any(stored: StoredRows, rows: Ints | None) -> Mask:
    """Return a mask of the row groups that contain one or more of the requested rows. None means all rows."""
    if rows is None:
        return np.ones(len(stored.groups), bool)
    return np.diff(np.searchsorted(rows, [0, *(stop for _, stop, _ in stored.groups)])) > 0


def _may_match(stored: StoredRows, predicate: Predicate, columns: Schema) -> Mask:
    """Return a mask of the row groups in which a predicate may be true according to Parquet's statistics."""
    every = np.ones(len(stored.groups), bool)
    if len(every) < 2:  # the statistics of a single row group prove no more than the snapshot's statistics
        return every
    found = ((item.name, _range_of_groups(stored, item)) for item in columns.fields)
    ranges = {name: limits for name, limits in found if limits is not None}
    return possible_outcomes(predicate, FileRanges(every, ranges)).true


def _range_of_groups(stored: StoredRows, item: Field) -> ColumnRange | None:
    """Return the limits of a column in each row group, or None if the statistics do not contain them."""
    if item.form is not None or not any(test(item.type) for test in _ORDERED_TYPES):
        return None
    found = [stored.reader.statistics(number, item.name) for _, _, number in stored.groups]
    known = [one for one in found if one is not None and one.has_null_count]
    if len(known) < len(found):
        return None
    bounds = [
        [getattr(one, name) if one.has_min_max else None for one in known] for name in ("min_raw", "max_raw")
    ]
    type_ = KIND_TYPES[item.column.kind]
    try:
        low, high = (item.load(pa.array(values, type_)).cast(value_type(item.type)) for values in bounds)
    except SchemaError:  # decoding the records will raise an error that names the record
        return None
    nulls = pa.array([one.null_count for one in known], pa.int64())
    statistics = pa.StructArray.from_arrays([nulls, low, high], names=["nulls", "min", "max"])
    return range_of_statistics(item, statistics, np.array([stop - start for start, stop, _ in stored.groups]))


def _without_column_file(split: Split, columnar: Columnar | None) -> str:
    """Explain why no column file is known for a split. State only what is true of each such file."""
    if columnar is None:
        return "column files are found only with a snapshot"
    problem = "the file has no column file"
    if columnar == "never":
        return f"{problem}, and new files get none (columnar=None)"
    if columnar == "auto" and split.file.size is not None:
        return f"{problem}: {why_no_column_file(split.file.size)}"
    return problem


def _lacks(reader: ColumnFileReader, schema: Schema) -> str:
    """Describe the columns that are not in a column file, or return "" if none is missing."""
    lacking = [item.name for item in schema.fields if not reader.features.issuperset(item.features)]
    return _without(lacking) if lacking else ""


def _without(lacking: list[str]) -> str:
    return f"the column file does not have {short_list([*map(repr, lacking)], 3)}"
