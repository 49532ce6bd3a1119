"""Read one partition in a task: decode the records of the splits, and filter the rows.

`explain_partition` explains the read: it evaluates filters on column files, but decodes no records.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import Ints
from dask_tfrecord.dataset.read.column_reads import Choice, ColumnReads, rows_at
from dask_tfrecord.dataset.read.columns import feature_clash, origin_clash
from dask_tfrecord.dataset.read.inferred_schema import explained
from dask_tfrecord.dataset.read.partitions import PlannedPartition
from dask_tfrecord.errors import CorruptRecordError, FileChangedError, SchemaError
from dask_tfrecord.files.damage import Losses, Warn, warn_here
from dask_tfrecord.files.record_file import STREAM_BYTES, TABLE_BYTES, rows_without_columns
from dask_tfrecord.files.selected_records import read_selected
from dask_tfrecord.files.splits import Split, groups_by_bytes
from dask_tfrecord.storage.read_ahead import requests_for

logger = logging.getLogger(__name__)

# If more than one in four records of a split is requested, it is faster to decode all.
_DENSE = 4

# On a remote store, the filters of at most this many groups of splits are evaluated before the records of the
# first of them are read.
_CHOSEN_AHEAD = 16

# On a remote store, `read_each` reads partitions of at most this many stored bytes at once, or a larger one.
_BYTES_AT_ONCE = 1 << 25

Result = TypeVar("Result")


def wrong_number(path: str, rows: int, expected: int) -> CorruptRecordError:
    """Return the error for a file whose record count differs from the snapshot or ``dataset_info.json``."""
    problem = f"the file has {rows:,} records, but the snapshot or dataset_info.json says {expected:,}"
    advice = "restore the file, call Dataset.add_snapshot to describe it anew, or correct dataset_info.json"
    return CorruptRecordError(problem, advice, path=path)


class Partition(PlannedPartition):
    """A planned partition, with the methods that read the rows in a task."""

    def read(self, warn: Warn = warn_here) -> pa.Table:
        """Read the rows that pass the filters.

        For each file in which damaged records were skipped, the method calls ``warn`` with a message. Raise
        CorruptRecordError if a record is damaged, unless the options skip damaged records. Raise
        FileChangedError if a file changed after it was listed. Raise SchemaError if a value does not fit its
        column, or if a feature is not allowed.
        """
        tables = list(self._tables(warn, TABLE_BYTES))
        if not self.schema.fields:
            return rows_without_columns(sum(table.num_rows for table in tables))
        return pa.concat_tables(tables or [pa.Table.from_batches([self.schema.no_rows()])])

    def read_possible(self, warn: Warn = warn_here) -> tuple[pa.Table, Ints | None]:
        """Read the rows for which `predicate` may be true. Only values in column files are used to exclude
        rows.

        Return the rows, and their indices within the partition. If no row is left out, the indices are None.
        """
        if self.predicate is None:
            return self.read(warn), None
        reads = ColumnReads(self, picks_rows=True)
        possible = self.store.for_each(reads.possible, self.splits)
        if all(rows is None for rows in possible) or self._needs_all(reads, possible):
            return self.read(warn), None

        def read(part: Partition, rows: Ints | None) -> pa.Table:
            return part.read(warn) if rows is None else part.read_records(rows, part.splits[0].records or 0)

        parts = [replace(self, splits=(split,), predicate=None) for split in self.splits]
        tables = read_each(read, [*zip(parts, possible, strict=True)])
        numbers, start = [], 0
        for at, (split, table, rows) in enumerate(zip(self.splits, tables, possible, strict=True)):
            if self.row_ranges is not None:
                start = self.row_ranges[at][0]
            numbers.append(start + (np.arange(table.num_rows) if rows is None else rows))
            start += split.records or table.num_rows
        return pa.concat_tables(tables), np.concatenate(numbers)

    def _needs_all(self, reads: ColumnReads, possible: Sequence[Ints | None]) -> bool:
        """Return True if a remote store must send all records of all splits, which `read` requests ahead."""
        if not self.store.is_remote:
            return False
        pairs = [*zip(self.splits, possible, strict=True)]
        choices = self.store.for_each(lambda pair: reads.choose(*pair), pairs)
        return all(choice.source == "all records" for choice in choices)

    def stream(self, warn: Warn = warn_here) -> Generator[pa.Table, None, None]:
        """Yield the rows that `read` returns, in tables of a few MiB. Read each table only on demand."""
        return self._tables(warn, STREAM_BYTES)

    def read_records(self, wanted: Ints, count: int) -> pa.Table:
        """Read some records of a partition that has one split with ``count`` records.

        ``wanted`` contains the indices of the requested records in the split, which must be ascending and
        unique.

        Raise the errors of `read`, and FileChangedError if the record count of the split differs from
        ``count``.
        """
        schema = self.stored_columns
        [split] = self.splits
        if schema.fields and self.filters is None and split.records == count:
            # Record offsets are useless if reading the other records takes no longer than a request.
            saved = split.stored_bytes * (1 - len(wanted) / max(1, count))
            reads = ColumnReads(self, picks_rows=saved > self.store.request_cost)
            choice = reads.choose(split, wanted)
            empty = pa.Table.from_batches([self.schema.no_rows()])
            tables = [None] if choice.source == "all records" else [empty, *reads.read(split, choice)]
            if tables[-1] is not None:
                return pa.concat_tables(tables)
        if schema.fields and self.filters is None and len(wanted) * _DENSE < count:
            found = read_selected(self.reader, split, wanted, count)
            if found is not None:
                self._log_rows(split, len(wanted))
                return self.with_partition_values(found, self.all_columns)
        table = self.read()
        if table.num_rows != count:
            problem = f"{table.num_rows:,} records were read where {count:,} were counted before"
            raise FileChangedError(problem, path=self.file_names)
        return rows_at(table, wanted)

    def read_column_file(self, most_bytes: int) -> pa.Table | None:
        """Read the rows of a partition from a column file. The partition must consist of a single split.

        Return None if the records must be decoded, or if the rows take more than ``most_bytes`` bytes.
        """
        [split] = self.splits
        reads = ColumnReads(self)
        choice = reads.choose(split)
        if choice.source in ("all records", "some records") or reads.column_bytes(split, choice) > most_bytes:
            return None
        tables = [pa.Table.from_batches([self.schema.no_rows()])]
        for table in reads.read(split, choice):
            if table is None or sum(one.nbytes for one in tables) > most_bytes:
                return None
            tables.append(table)
        return pa.concat_tables(tables)

    def _tables(self, warn: Warn, batch_bytes: int) -> Generator[pa.Table, None, None]:
        """Yield the rows that pass the filters, in tables of at most ``batch_bytes`` bytes of records."""
        losses, reads = Losses(self.options.damage), ColumnReads(self)
        try:
            with closing(self._choices(reads)) as chosen:
                for partition, splits, choices in chosen:
                    if all(one.source == "all records" for one in choices):
                        yield from partition._decoded(splits, losses, batch_bytes)
                        continue
                    for split, choice in zip(splits, choices, strict=True):
                        yield from partition._chosen(reads, split, choice, losses, batch_bytes)
        # If the caller stops early, warn of damage in the records read so far.
        except GeneratorExit:
            losses.report(warn)
            raise
        losses.finish(warn)

    def _choices(
        self, reads: ColumnReads
    ) -> Generator[tuple["Partition", Sequence[Split], list[Choice]], None, None]:
        """Yield the groups of splits with their choices, and a partition that reads a group's records.

        On a remote store, this partition requests the records of the next groups while it decodes others. If
        column files may exclude all rows of a split, some groups are chosen before the first of them is read.
        """
        is_known = self.filters is None or not reads.uses_column_files or not self.store.is_remote
        step = len(reads.groups) if is_known else _CHOSEN_AHEAD
        for first in range(0, len(reads.groups), max(1, step)):
            groups = reads.groups[first : first + step]
            choices: Iterator[list[Choice]] = (
                [reads.choose_next(split) for split in group] for group in groups
            )
            decoded = reads.decoded
            if not is_known:
                found = [*choices]
                pairs = zip(chain(*groups), chain(*found), strict=True)
                decoded, choices = [split for split, one in pairs if one.source == "all records"], iter(found)
            with self._reading_ahead(decoded) as partition:
                for group, of_group in zip(groups, choices, strict=True):
                    yield partition, group, of_group

    @contextmanager
    def _reading_ahead(self, decoded: Sequence[Split]) -> Iterator["Partition"]:
        """Yield a partition that requests the next of some files from a remote store while it decodes
        others.
        """
        if not self.store.is_remote or len(self.splits) < 2:
            yield self
            return
        ranges = [split.stored_range for split in decoded if self.known_count(split) is None]
        with self.store.reading_ahead(ranges) as store:
            yield replace(self, store=store)

    def _chosen(
        self, reads: ColumnReads, split: Split, choice: Choice, losses: Losses, batch_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield the rows of a split that pass the filters. ``choice`` determines how to read the split."""
        done = 0
        if choice.source != "all records":
            for found in reads.read(split, choice):
                if found is None:
                    break
                done += found.num_rows
                yield found
            else:
                return
        for table in self._decoded([split], losses, batch_bytes):
            yield table.slice(done)
            done -= min(done, table.num_rows)

    def _decoded(self, splits: Sequence[Split], losses: Losses, batch_bytes: int) -> Iterator[pa.Table]:
        """Decode the records of splits, and yield the rows that pass the filters."""
        for table in self._read_together(splits) or self._read_each(splits, losses, batch_bytes):
            losses.rows += table.num_rows
            yield self.filtered(self.with_partition_values(table, self.all_columns))

    def _read_together(self, splits: Sequence[Split]) -> list[pa.Table] | None:
        """Read several small files together. Return None if each file must be read alone, or if the files
        need not be read.
        """
        if len(splits) == 1 or self.known_count(splits[0]) is not None:
            return None
        found = self.reader.read_together(splits)
        if found is None:
            return None
        table, counts = found
        for split, rows in zip(splits, counts, strict=True):
            self._check_rows(split, rows)
        return [table]

    def _read_each(self, splits: Sequence[Split], losses: Losses, batch_bytes: int) -> Iterator[pa.Table]:
        """Read splits one after the other, with the columns of `schema` and `filter_fields`."""
        for split in splits:
            if (rows := self.known_count(split)) is not None:
                yield rows_without_columns(rows)
                continue
            rows = 0
            with self._explained_errors(split):
                for table in self.reader.read(split, losses, batch_bytes):
                    rows += table.num_rows
                    yield table
            self._check_rows(split, rows)

    def _check_rows(self, split: Split, rows: int) -> None:
        """Log the row count of a split. Raise CorruptRecordError if the row count differs from the known
        record count of the split.
        """
        self._log_rows(split, rows)
        if split.records not in (None, rows) and not self.options.damage.skips:
            raise wrong_number(self.store.public(split.file.path), rows, split.records)

    def _log_rows(self, split: Split, rows: int) -> None:
        if logger.isEnabledFor(logging.DEBUG):  # formatting a message takes longer than reading a small file
            path, offset = self.store.public(split.file.path), split.start.offset
            logger.debug("%s: read %d rows from byte %d", path, rows, offset)

    @contextmanager
    def _explained_errors(self, split: Split) -> Iterator[None]:
        """Replace a SchemaError raised in the ``with`` block with an error that explains the cause."""
        try:
            yield
        except SchemaError as error:
            position = {"path": error.path, "record": error.record, "offset": error.offset}
            if error.feature in self.partition_values:
                raise feature_clash(error.feature).replaced(**position) from None
            if error.feature in self.options.origin_columns:
                raise origin_clash(error.feature, self.options.path_column).replaced(**position) from None
            raise explained(error, self.reader, split) from None


def read_each(read: Callable[..., Result], calls: Sequence[tuple[Any, ...]]) -> list[Result]:
    """Call ``read`` with each tuple of arguments, the first of which is a partition.

    On a remote store, partitions of up to `_BYTES_AT_ONCE` bytes are read at once.
    """
    found: list[Result] = []
    sizes = (sum(split.stored_bytes for split in partition.splits) for partition, *_ in calls)
    for group in groups_by_bytes(sizes, _BYTES_AT_ONCE):
        found += calls[group.start][0].store.for_each(lambda call: read(*call), calls[group])
    return found


Read = Literal["all records", "some records", "column file", "no records", "snapshot", "left out"]


@dataclass(frozen=True)
class SplitReport:
    """A report on what a task reads from a data file or from a part of a large data file."""

    file: str
    read: Read  # "snapshot" means that only the number of records is needed.
    rule: str  # The reason for the value of `read`.
    stored_bytes: int  # The stored size of the file or part.
    data_bytes: int = 0  # The number of bytes that are read from the data file.
    column_bytes: int = 0  # The number of bytes that are read from the column file.
    rows: int | None = None  # The number of rows that are read, or None if unknown.
    column_file: str | None = None  # The path relative to the root of the dataset.
    files: int = 1  # The number of reported files: 1, unless files are left out together.
    requests: int = 0  # About how many requests read these bytes from a remote store.


def explain_partition(partition: Partition) -> list[SplitReport]:
    """Return a report on what a task reads from each split of a partition."""
    reads = ColumnReads(partition, picks_rows=partition.predicate is not None)
    return partition.store.for_each(partial(_report, partition, reads), partition.splits)


def _report(partition: Partition, reads: ColumnReads, split: Split) -> SplitReport:
    path, stored = partition.store.public(split.file.path), _size_of(partition, split)
    if (count := partition.known_count(split)) is not None:
        return SplitReport(path, "snapshot", "the number of records is known", stored, rows=count)
    choice = reads.choose(split, reads.possible(split))
    fetched = 0 if choice.fetch is None else choice.fetch.bytes
    data = stored if choice.source == "all records" else fetched
    spans = reads.column_spans(split, choice)
    column_bytes = sum(stop - start for start, stop in spans)
    requests = 0
    if partition.store.is_remote:
        some = choice.fetch if choice.source == "some records" else None
        requests = len(spans) + (requests_for(data) if some is None else len(some.starts))
    column_file = split.columns.path if split.columns is not None and column_bytes else None
    rows = split.records if choice.rows is None else len(choice.rows)
    read = path, choice.source, choice.rule, stored, data, column_bytes, rows, column_file
    return SplitReport(*read, requests=requests)


def _size_of(partition: Partition, split: Split) -> int:
    """Return the stored size of a split. Ask the store if the listing, such as a web page, has no sizes."""
    if split.file.size is not None or split.stop is not None:
        return split.stored_bytes
    size = partition.store.info(split.file.path).get("size") or 0
    return max(0, size - split.start.offset)
