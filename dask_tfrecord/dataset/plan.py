"""A dataset to read, and a partition of it: what travels in the graph and in its tasks."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Self

import pyarrow as pa

from dask_tfrecord.codec import Known
from dask_tfrecord.dataset.partitioning.key_columns import key_clash
from dask_tfrecord.dataset.query.comparison_keys import has_nan, is_comparable, key_of
from dask_tfrecord.dataset.query.predicates import Outcomes, Predicate, outcomes_in_file
from dask_tfrecord.dataset.requested_columns import origin_clash
from dask_tfrecord.dataset.schema_drift import explained
from dask_tfrecord.dataset.snapshot.model import Levels
from dask_tfrecord.errors import FileChangedError, SchemaError
from dask_tfrecord.files.damage import Losses, Warn, warn_here
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import PATH_TYPE, read_table, rows_without_columns
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.storage.unchanged import check_unchanged
from dask_tfrecord.schema.model import Field, Schema
from dask_tfrecord.schema.storage_types import load


@dataclass(frozen=True, repr=False)
class Partition:
    """What one task reads: stretches of files, and the columns that have one value for all their rows.

    Attributes
    ----------
    splits : tuple of Split
        In the order of their rows; empty if there is nothing to read.
    schema : Schema
        The columns that are wanted, in their order.
    partition_values : dict of str to pyarrow.Array
        For those that are partition columns, their value.
    filters : Predicate, optional
        Which rows are wanted.
    filter_fields : tuple of Field
        The columns that the filters need and that are not wanted otherwise.
    row_ranges : tuple of (int, int), optional
        If splits of the partition are left out: which of its rows the others hold, from and up to.
    allowed_features : tuple of (str, bool), optional
        All features that the records may have, each with whether it is a feature list; None allows any.
    pruned_files : tuple of FileInfo
        Files that are not read because of what a snapshot says of them, which holds as long as they stay
        as they were listed.
    """

    store: Store
    splits: tuple[Split, ...]
    schema: Schema
    options: ReadOptions
    partition_values: dict[str, pa.Array]
    filters: Predicate | None = None
    filter_fields: tuple[Field, ...] = ()
    row_ranges: tuple[tuple[int, int], ...] | None = None
    allowed_features: tuple[Known, ...] | None = None
    pruned_files: tuple[FileInfo, ...] = ()

    def __repr__(self) -> str:
        paths = dict.fromkeys(self.store.public(split.file.path) for split in self.splits)
        return f"Partition({', '.join(map(repr, paths)) or 'no files'})"

    @property
    def file_names(self) -> str:
        """The names of its files in messages."""
        return ", ".join(dict.fromkeys(self.store.public(split.file.path) for split in self.splits))

    def read(self, warn: Warn = warn_here) -> pa.Table:
        """The table of all records that are wanted; what damage was passed over is told to ``warn``."""
        counted = (split.file for split in self.splits if self._is_counted(split, self._stored_names()))
        check_unchanged(self.store, [*self.pruned_files, *counted])
        losses = Losses(self.options.damage)
        tables = [self._read(split, losses) for split in self.splits]
        losses.finish(warn)
        if not self.schema.fields:
            return rows_without_columns(sum(table.num_rows for table in tables))
        return pa.concat_tables(tables or [pa.Table.from_batches([self.schema.no_rows()])])

    def _read(self, split: Split, losses: Losses) -> pa.Table:
        if self.filters is None:
            return self._columns(split, self.schema, losses)
        columns = replace(self.schema, fields=self.schema.fields + self.filter_fields)
        table = self._columns(split, columns, losses)
        return table.filter(self.filters.mask(table)).select(self.schema.names)

    def _columns(self, split: Split, schema: Schema, losses: Losses) -> pa.Table:
        stored = schema.select(name for name in schema.names if name not in self.partition_values)
        if split.records is not None and self._is_counted(split, stored.names):
            table = rows_without_columns(split.records)
        else:
            table = self._stored(split, stored, losses)
            losses.rows += table.num_rows
        if not self.partition_values:
            return table
        columns = [
            self._repeated(field, table.num_rows)
            if field.name in self.partition_values
            else table[field.name]
            for field in schema.fields
        ]
        return pa.Table.from_arrays(columns, schema=schema.arrow)

    def _stored_names(self) -> list[str]:
        """The columns of the records that are wanted or looked at."""
        names = [item.name for item in (*self.schema.fields, *self.filter_fields)]
        return [name for name in names if name not in self.partition_values]

    def _is_counted(self, split: Split, stored: Sequence[str]) -> bool:
        """True if the number of records is known and nothing in the records is wanted or must be checked."""
        is_unread = not stored and self.allowed_features is None and not self.options.damage.skips
        return is_unread and split.records is not None

    def _stored(self, split: Split, stored: Schema, losses: Losses) -> pa.Table:
        try:
            return read_table(
                self.store, split, stored, self.options, known=self.allowed_features, losses=losses
            )
        except SchemaError as error:
            place = {"path": error.path, "record": error.record, "offset": error.offset}
            if error.feature in self.partition_values:
                raise key_clash(error.feature).located(**place) from None
            if error.feature in self.options.origin:
                raise origin_clash(error.feature).located(**place) from None
            raise explained(error, self.store, split, stored, self.options, self.allowed_features) from None

    def _repeated(self, field: Field, rows: int) -> pa.Array:
        value = self.partition_values[field.name]
        return load(value.take(pa.repeat(0, rows)), field.type, field.categories)


@dataclass(frozen=True, repr=False)
class Dataset:
    """Files to read, as what, and in which portions.

    Attributes
    ----------
    partitions : tuple of tuple of Split
        What each partition reads. There is at least one, which may be empty.
    schema : Schema
        All columns.
    options : ReadOptions
        How files are read.
    partition_values : dict of str to pyarrow.Array
        The columns that are in no record: a value for each partition.
    entries : dict of str to FileEntry
        What a snapshot knows of the files, by their path in the store; no blocks.
    refused_features : frozenset of str
        Those of them that no record may have as a feature, for nobody said which to take.
    filters : Predicate, optional
        Which rows are wanted; files that hold none of them are in no partition.
    pruned_files : tuple of FileInfo
        Files in no partition that only a snapshot's statistics rule out.
    ignored_features : frozenset of str
        Features that the records may hold though they are no columns.
    index : tuple of (str, str or None)
        The columns that were the index of what was written, and the names of its levels.
    """

    store: Store
    partitions: tuple[tuple[Split, ...], ...]
    schema: Schema
    options: ReadOptions
    partition_values: dict[str, pa.Array] = field(default_factory=dict, hash=False)
    entries: dict[str, FileEntry] = field(default_factory=dict, hash=False)
    filters: Predicate | None = None
    refused_features: frozenset[str] = frozenset()
    pruned_files: tuple[FileInfo, ...] = ()
    ignored_features: frozenset[str] = frozenset()
    index: Levels = ()

    @property
    def npartitions(self) -> int:
        """How many partitions there are."""
        return len(self.partitions)

    def with_origin_columns(self) -> Self:
        """The same with the columns that the options name for where records come from, as the last ones."""
        names = self.options.origin
        clash = [name for at, name in enumerate(names) if name in (*self.schema.names, *names[:at])]
        if clash:
            raise origin_clash(clash[0])
        types = {self.options.path_column: PATH_TYPE, self.options.offset_column: pa.int64()}
        added = tuple(Field(name, types[name]) for name in names)
        return replace(self, schema=Schema(self.schema.fields + added, self.schema.record_type))

    def partition(self, index: int, schema: Schema, predicate: Predicate | None = None) -> Partition:
        """A partition, to be read as some of the dataset's columns.

        Where that is known, files are left out in which the predicate, of another filter that comes later, is
        true for no row.
        """
        splits, rows = self._needed(index, predicate)
        unread = (*self._unread(index, splits, predicate), *(self.pruned_files if not index else ()))
        filters = self._filters(index, splits)
        others = filters.columns() - set(schema.names) if filters is not None else set()
        filter_fields = self.schema.select(sorted(others)).fields
        names = [
            name for name in (*schema.names, *sorted(others)) if name in self.partition_values and splits
        ]
        values = {name: self.partition_values[name].take(pa.array([index])) for name in names}
        known = self._allowed_features(schema)
        return Partition(
            self.store, splits, schema, self.options, values, filters, filter_fields, rows, known, unread
        )

    def _unread(
        self, index: int, splits: Sequence[Split], predicate: Predicate | None
    ) -> tuple[FileInfo, ...]:
        """The files of a partition that only a snapshot's statistics leave out."""
        if predicate is None or len(splits) == len(self.partitions[index]):
            return ()
        left_out = [split for split in self.partitions[index] if split not in splits]
        return tuple(
            split.file for split in left_out if True in self._outcomes(predicate, index, split, known=False)
        )

    def is_unchanged(self, indices: Iterable[int]) -> bool:
        """Raise FileChangedError if a file of these partitions is not as it was listed.

        False if that cannot be told here, such as where the optimizer cannot reach the files.
        """
        files = (split.file for index in indices for split in self.partitions[index])
        try:
            check_unchanged(self.store, [*files, *self.pruned_files])
        except FileChangedError:
            raise
        except Exception:
            return False
        return True

    def with_file_checks(self, partition: Partition, indices: Iterable[int]) -> Partition:
        """A partition whose task also checks that the files of all other partitions are unchanged."""
        others = sorted(set(range(self.npartitions)).difference(indices))
        files = (split.file for index in others for split in self.partitions[index])
        return replace(partition, pruned_files=(*partition.pruned_files, *files))

    def _allowed_features(self, schema: Schema) -> tuple[Known, ...] | None:
        """All features there may be, if all columns are read and others are not to be ignored."""
        whole = set(schema.names) == set(self.schema.names) and self.schema.record_type != "bytes"
        if not whole or self.options.extra == "ignore":
            return None
        apart = {*self.partition_values, *self.options.origin}
        features = [item.column.feature for item in self.schema.fields if item.name not in apart]
        if self.entries and not features:  # whoever made the snapshot has seen that the records hold none
            return None
        keys = (self.partition_values.keys() - self.refused_features) | self.ignored_features
        return (*features, *((name, is_list) for name in sorted(keys) for is_list in (False, True)))

    def count(self, index: int) -> int | None:
        """How many records a partition has, if that is known."""
        counts = [self._count(index, split) for split in self.partitions[index]]
        return None if None in counts else sum(filter(None, counts))

    @property
    def non_null_columns(self) -> set[str]:
        """The columns of which it is known that no value is missing."""
        found = {name for name, column in self.partition_values.items() if not column.null_count}
        found |= set(self.options.origin)
        if self.entries and all(
            split.file.path in self.entries for partition in self.partitions for split in partition
        ):
            files = [
                {column.name for column in entry.statistics if not column.nulls}
                for entry in self.entries.values()
                if entry.records
            ]
            found |= set(self.schema.names).intersection(*files)
        return found

    def divisions(self, name: str) -> tuple[Any, ...] | None:
        """The smallest value of a column in each partition, and the greatest of all.

        None unless it is known that the values of each partition are greater than those of the one before.
        """
        [item] = self.schema.select([name]).fields
        if not _is_ordered_by_value(item):
            return None
        bounds = [self._bounds(index, item) for index in range(self.npartitions)]
        known = [bound for bound in bounds if bound is not None]
        ends: list[Any] = [key_of(value, item.type) for bound in known for value in bound]
        steps = list(pairwise(ends))
        if len(known) < len(bounds) or any(one >= other for one, other in steps[1::2]):
            return None
        return (*(low for low, _ in known), known[-1][1])

    def _bounds(self, index: int, item: Field) -> tuple[Any, Any] | None:
        """Smallest and greatest value of a column in a partition, if they are known and none is missing."""
        splits = self.partitions[index]
        if not splits or not is_comparable(item.type) or has_nan(item.type):
            return None
        if item.name in self.partition_values:
            value = self.partition_values[item.name][index].as_py()
            return None if value is None else (value, value)
        found = []
        for split in splits:
            entry = self.entries.get(split.file.path)
            columns = () if entry is None else entry.statistics
            known = next((column for column in columns if column.name == item.name), None)
            if known is None or known.nulls or known.min is None or known.max is None:
                return None
            found.append(known)
        low = min((known.min for known in found), key=lambda value: key_of(value, item.type))
        return low, max((known.max for known in found), key=lambda value: key_of(value, item.type))

    def can_prune(self, predicate: Predicate) -> bool:
        """Whether files could be told apart by what the predicate looks at."""
        columns = predicate.columns()
        return bool(columns and self.entries) or not columns.isdisjoint(self.partition_values)

    def _needed(
        self, index: int, predicate: Predicate | None
    ) -> tuple[tuple[Split, ...], tuple[tuple[int, int], ...] | None]:
        """The splits that may hold matching rows, and their row ranges within the partition."""
        splits = self.partitions[index]
        if predicate is None:
            return splits, None
        places = [at for at, split in enumerate(splits) if True in self._outcomes(predicate, index, split)]
        splits = splits[: max(places, default=-1) + 1]
        counts = [self._count(index, split) for split in splits]
        if len(places) == len(splits) or None in counts:  # rows after uncounted ones would get wrong numbers
            return splits, None
        ends = list(accumulate((count or 0 for count in counts), initial=0))
        return tuple(splits[place] for place in places), tuple((ends[at], ends[at + 1]) for at in places)

    def _filters(self, index: int, splits: Sequence[Split]) -> Predicate | None:
        """The filters, unless it is known that they are true for all rows."""
        if self.filters is None or all(self._is_certain(index, split) for split in splits):
            return None
        return self.filters

    def _count(self, index: int, split: Split) -> int | None:
        if self.options.damage.skips:  # what is damaged nobody counted
            return None
        return split.records if self._is_certain(index, split) else None

    def _is_certain(self, index: int, split: Split) -> bool:
        return self.filters is None or self._outcomes(self.filters, index, split) <= {True}

    def _outcomes(self, predicate: Predicate, index: int, split: Split, *, known: bool = True) -> Outcomes:
        """What the predicate may come to for the rows of a split, by what is ``known`` of its file."""
        names = predicate.columns()
        fields = [item for item in self.schema.fields if item.name in names]
        values = {
            item.name: self.partition_values[item.name][index]
            for item in fields
            if item.name in self.partition_values
        }
        entry = self.entries.get(split.file.path) if known else None
        return outcomes_in_file(predicate, fields, entry, values)

    def __repr__(self) -> str:
        return f"Dataset({self.store.public(self.store.root)!r}, {self.npartitions:,} partitions)"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tfrecord.Dataset", self._token

    @cached_property
    def _token(self) -> str:
        values = [(name, found.to_pylist()) for name, found in self.partition_values.items()]
        names = (sorted(self.refused_features), sorted(self.ignored_features))
        how = (self.schema.to_json(), self.options, self.filters, names)
        parts = (self.store.__dask_tokenize__(), how, values, self.partitions, self.pruned_files)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def _is_ordered_by_value(item: Field) -> bool:
    """Whether pandas sorts a column by its values: categories it sorts as they are listed."""
    if not pa.types.is_dictionary(item.type):
        return True
    if item.categories is None:
        return False
    keys: list[Any] = [key_of(value, item.type) for value in item.categories.to_pylist()]
    return all(one < other for one, other in pairwise(keys))
