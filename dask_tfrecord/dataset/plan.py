"""The plan of a read: which files, which columns, and which partition reads what. It travels in the graph."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Self

import pyarrow as pa

from dask_tfrecord.codec import FeatureKey
from dask_tfrecord.dataset.partition import Partition, RowRanges
from dask_tfrecord.dataset.query.comparison_keys import comparison_key, has_nan, is_comparable
from dask_tfrecord.dataset.query.predicates import Outcomes, Predicate, outcomes_in_file
from dask_tfrecord.dataset.requested_columns import origin_clash
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.dataset.snapshot.model import short_list
from dask_tfrecord.errors import FileChangedError
from dask_tfrecord.files.entry import ColumnStatistics, FileEntry
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import PATH_TYPE
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.storage.unchanged import check_unchanged
from dask_tfrecord.schema.model import Field, Schema


@dataclass(frozen=True, repr=False)
class Dataset:
    """The files to read, their columns, and their division into partitions.

    Attributes
    ----------
    store : Store
        The place of the files.
    partitions : tuple of tuple of Split
        The parts of files that each partition reads. There is at least one partition, which may be empty.
    schema : Schema
        All columns.
    options : ReadOptions
        How the files are read.
    partition_values : dict of str to pyarrow.Array
        The partition columns: a value for each partition.
    entries : dict of str to FileEntry
        The entries of a snapshot, without blocks, by the path in the store.
    filters : Predicate, optional
        The condition that each row of the result meets. Files without any such row are in no partition.
    refused_features : frozenset of str
        Partition columns that must not be features: the user has not chosen which of the two to read.
    pruned_files : tuple of FileInfo
        Files that are in no partition only because of the statistics in a snapshot.
    ignored_features : frozenset of str
        Features that records may have though no column reads them.
    index : tuple of (str, str or None)
        The columns that were the index of the written DataFrame, with the names of its levels.
    keys : tuple of range, optional
        The numbers of the partitions of each key, if a task reads all rows of one key. None if a task reads
        one partition.
    version : int, optional
        The number of the snapshot. None without a snapshot.
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
    keys: tuple[range, ...] | None = None
    version: int | None = None

    @property
    def summary(self) -> str:
        """The files, rows and bytes that are read, and the partitions, in one line."""
        files = {split.file.path: split.file for splits in self.partitions for split in splits}
        counts = [split.records for splits in self.partitions for split in splits]
        sizes = [file.size for file in files.values()]
        parts = [f"{len(files):,} files"]
        if None not in counts and not self.options.damage.skips:
            before = "" if self.filters is None else " before filters"
            parts.append(f"{sum(filter(None, counts)):,} rows{before}")
        parts += [] if None in sizes else [f"{sum(filter(None, sizes)):,} bytes"]
        parts.append(f"{self.npartitions if self.keys is None else len(self.keys):,} partitions")
        parts += [] if self.version is None else [f"version {self.version}"]
        return f"{', '.join(parts)}, columns: {short_list(self.schema.names)}"

    @property
    def npartitions(self) -> int:
        """The number of partitions."""
        return len(self.partitions)

    def with_origin_columns(self) -> Self:
        """Return the dataset with the path column and the offset column that the options name, at the end.

        Raises
        ------
        SchemaError
            If another column has the same name.
        """
        names = self.options.origin_columns
        clash = [name for at, name in enumerate(names) if name in (*self.schema.names, *names[:at])]
        if clash:
            raise origin_clash(clash[0])
        types = {self.options.path_column: PATH_TYPE, self.options.offset_column: pa.int64()}
        added = tuple(Field(name, types[name]) for name in names)
        return replace(self, schema=Schema(self.schema.fields + added, self.schema.record_type))

    # -- Partitions ------------------------------------------------------------------------------------------

    def partition(self, index: int, schema: Schema, predicate: Predicate | None = None) -> Partition:
        """Return what the task of a partition reads.

        Parameters
        ----------
        index : int
            The number of the partition.
        schema : Schema
            Some columns of the dataset.
        predicate : Predicate, optional
            The condition of a filter that Dask applies after the read. Files are left out if it is true for
            none of their rows. The rows of the other files are not filtered.
        """
        splits, row_ranges = self._needed_splits(index, predicate)
        filters = self._needed_filters(index, splits)
        filter_names = sorted(filters.columns() - set(schema.names)) if filters is not None else []
        values = {
            name: self.partition_values[name].take(pa.array([index]))
            for name in (*schema.names, *filter_names)
            if name in self.partition_values and splits
        }
        first_pruned = self.pruned_files if index == 0 else ()  # one task checks them
        return Partition(
            self.store,
            splits,
            schema,
            self.options,
            values,
            filters,
            self.schema.select(filter_names).fields,
            row_ranges,
            self._allowed_features(schema),
            (*self._pruned_by_statistics(index, splits, predicate), *first_pruned),
        )

    def with_file_checks(self, partition: Partition, indices: Iterable[int]) -> Partition:
        """Let the task of a partition check the files of all partitions that are not in ``indices``."""
        others = sorted(set(range(self.npartitions)).difference(indices))
        files = (split.file for index in others for split in self.partitions[index])
        return replace(partition, pruned_files=(*partition.pruned_files, *files))

    def is_unchanged(self, indices: Iterable[int]) -> bool:
        """Check that the files of some partitions are unchanged since they were listed.

        Returns
        -------
        bool
            False if this is unknown, for example because the optimizer runs where the store is unreachable.

        Raises
        ------
        FileChangedError
            If a file changed.
        """
        files = (split.file for index in indices for split in self.partitions[index])
        try:
            check_unchanged(self.store, [*files, *self.pruned_files])
        except FileChangedError:
            raise
        except Exception:  # the store failed; the tasks report that when they read the files
            return False
        return True

    def _allowed_features(self, schema: Schema) -> tuple[FeatureKey, ...] | None:
        """Return all features that records may have; None if any other feature is ignored."""
        reads_all = set(schema.names) == set(self.schema.names) and self.schema.record_type != "bytes"
        if not reads_all or self.options.extra == "ignore":
            return None
        not_stored = {*self.partition_values, *self.options.origin_columns}
        features = [item.column.feature for item in self.schema.fields if item.name not in not_stored]
        if self.entries and not features:  # the writer of the snapshot has checked that records hold none
            return None
        names = (self.partition_values.keys() - self.refused_features) | self.ignored_features
        return (*features, *((name, is_list) for name in sorted(names) for is_list in (False, True)))

    # -- Pruning: what the partition values and the statistics of a snapshot prove ---------------------------

    def can_prune(self, predicate: Predicate) -> bool:
        """Return True if files may be left out, since something is known about the predicate's columns."""
        columns = predicate.columns()
        return bool(columns and self.entries) or not columns.isdisjoint(self.partition_values)

    def _needed_splits(
        self, index: int, predicate: Predicate | None
    ) -> tuple[tuple[Split, ...], RowRanges | None]:
        """Return the splits that may hold a row for which the predicate is true, and their row numbers."""
        splits = self.partitions[index]
        if predicate is None:
            return splits, None
        needed = [at for at, split in enumerate(splits) if True in self._outcomes(predicate, index, split)]
        splits = splits[: max(needed, default=-1) + 1]
        counts = [self._count_split(index, split) for split in splits]
        if len(needed) == len(splits) or None in counts:  # row numbers need the counts of all splits before
            return splits, None
        ends = list(accumulate((count or 0 for count in counts), initial=0))
        return tuple(splits[at] for at in needed), tuple((ends[at], ends[at + 1]) for at in needed)

    def _pruned_by_statistics(
        self, index: int, needed: Sequence[Split], predicate: Predicate | None
    ) -> tuple[FileInfo, ...]:
        """Return the files of a partition that are left out only because of the statistics in a snapshot."""
        if predicate is None or len(needed) == len(self.partitions[index]):
            return ()
        pruned = [split for split in self.partitions[index] if split not in needed]
        return tuple(
            split.file
            for split in pruned
            if True in self._outcomes(predicate, index, split, use_statistics=False)
        )

    def _needed_filters(self, index: int, splits: Sequence[Split]) -> Predicate | None:
        """Return the filters; None if they are true for all rows of the splits."""
        if all(self._passes_filters(index, split) for split in splits):
            return None
        return self.filters

    def _passes_filters(self, index: int, split: Split) -> bool:
        """Return True if it is known that the filters are true for all rows of a split."""
        return self.filters is None or self._outcomes(self.filters, index, split) <= {True}

    def _outcomes(
        self, predicate: Predicate, index: int, split: Split, *, use_statistics: bool = True
    ) -> Outcomes:
        names = predicate.columns()
        fields = [item for item in self.schema.fields if item.name in names]
        values = {
            item.name: self.partition_values[item.name][index]
            for item in fields
            if item.name in self.partition_values
        }
        entry = self.entries.get(split.file.path) if use_statistics else None
        return outcomes_in_file(predicate, fields, entry, values)

    # -- What is known without a read ------------------------------------------------------------------------

    def count(self, index: int) -> int | None:
        """Return the number of rows of a partition; None if it is unknown."""
        counts = [self._count_split(index, split) for split in self.partitions[index]]
        return None if None in counts else sum(filter(None, counts))

    def _count_split(self, index: int, split: Split) -> int | None:
        if self.options.damage.skips:  # an unknown number of damaged records is skipped
            return None
        return split.records if self._passes_filters(index, split) else None

    @property
    def non_null_columns(self) -> set[str]:
        """The columns that are known to have no nulls."""
        names = {name for name, column in self.partition_values.items() if not column.null_count}
        names |= set(self.options.origin_columns)
        splits = (split for splits in self.partitions for split in splits)
        if self.entries and all(split.file.path in self.entries for split in splits):
            by_file = [
                {column.name for column in entry.statistics if not column.nulls}
                for entry in self.entries.values()
                if entry.records
            ]
            names |= set(self.schema.names).intersection(*by_file)
        return names

    def divisions(self, name: str) -> tuple[Any, ...] | None:
        """Return the Dask divisions of a column: the minimum of each partition, and the overall maximum.

        Returns
        -------
        tuple or None
            None unless it is known that every value of a partition is greater than all values of the
            partition before it, and that the column has no nulls.
        """
        [item] = self.schema.select([name]).fields
        if not _is_ordered_by_value(item):
            return None
        bounds = [self._bounds(index, item) for index in range(self.npartitions)]
        known = [bound for bound in bounds if bound is not None]
        ends: list[Any] = [comparison_key(value, item.type) for bound in known for value in bound]
        gaps = list(pairwise(ends))[1::2]
        if len(known) < len(bounds) or any(greatest >= least for greatest, least in gaps):
            return None
        return (*(least for least, _ in known), known[-1][1])

    def _bounds(self, index: int, item: Field) -> tuple[Any, Any] | None:
        """Return the minimum and maximum of a column in a partition; None if unknown or if it has nulls."""
        splits = self.partitions[index]
        if not splits or not is_comparable(item.type) or has_nan(item.type):
            return None
        if item.name in self.partition_values:
            value = self.partition_values[item.name][index].as_py()
            return None if value is None else (value, value)
        columns = [self._statistics(split, item.name) for split in splits]
        ranges = [
            (column.min, column.max)
            for column in columns
            if column is not None and not column.nulls and column.min is not None and column.max is not None
        ]
        if len(ranges) < len(splits):
            return None
        least = min((low for low, _ in ranges), key=lambda value: comparison_key(value, item.type))
        return least, max((high for _, high in ranges), key=lambda value: comparison_key(value, item.type))

    def _statistics(self, split: Split, name: str) -> ColumnStatistics | None:
        entry = self.entries.get(split.file.path)
        columns = () if entry is None else entry.statistics
        return next((column for column in columns if column.name == name), None)

    def __repr__(self) -> str:
        return f"Dataset({self.store.public(self.store.root)!r}, {self.npartitions:,} partitions)"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tfrecord.Dataset", self._token

    @cached_property
    def _token(self) -> str:
        values = [(name, column.to_pylist()) for name, column in self.partition_values.items()]
        features = (sorted(self.refused_features), sorted(self.ignored_features))
        how = (self.schema.to_json(), self.options, self.filters, features)
        parts = (self.store.__dask_tokenize__(), how, values, self.partitions, self.keys, self.pruned_files)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def _is_ordered_by_value(item: Field) -> bool:
    """Return True if pandas sorts a column by its values. It sorts categories by their position."""
    if not pa.types.is_dictionary(item.type):
        return True
    if item.categories is None:
        return False
    keys: list[Any] = [comparison_key(value, item.type) for value in item.categories.to_pylist()]
    return all(one < other for one, other in pairwise(keys))
