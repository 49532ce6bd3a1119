"""Define the partition that a task reads, and the list of all, which is computed when first needed."""

import pickle
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import FeatureKey
from dask_tfrecord.dataset.query.predicates import Predicate
from dask_tfrecord.dataset.snapshot.entry_log import Totals
from dask_tfrecord.dataset.snapshot.stored_files import Columnar
from dask_tfrecord.errors import SchemaError, located
from dask_tfrecord.files.file_list import FileList
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.record_file import TableReader
from dask_tfrecord.files.splits import Partitions, Split
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.storage.store import Store

# If a partition has more splits than this, pickling it compresses them.
_FEW_SPLITS = 8

# Ranges of row indices, as pairs of a start (included) and a stop (excluded).
RowRanges: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, repr=False)
class PlannedPartition:
    """The part of a read plan that one task reads."""

    store: Store
    splits: tuple[Split, ...]  # Sorted in the order of the rows.
    schema: Schema  # The columns of the result.
    options: ReadOptions
    partition_values: dict[str, pa.Array]  # each array contains one value, which all rows share
    filters: Predicate | None = None
    filter_fields: tuple[Field, ...] = ()  # The columns of `filters` that are not in `schema`.
    # For each of `splits`, the range of row indices in the partition. None means that the row indices are
    # unknown, or that the ranges begin at 0 and follow one another without gaps.
    row_ranges: RowRanges | None = None
    # The features that a record may contain. A record with a feature outside this tuple raises an error. None
    # allows any feature.
    allowed_features: tuple[FeatureKey, ...] | None = None
    predicate: Predicate | None = None  # Lets `read_possible` leave out rows; has no effect on `read`.
    predicate_fields: tuple[Field, ...] = ()  # The columns of `predicate`, without partition columns.
    columnar: Columnar | None = None  # The columns that new column files store. None without a snapshot.

    def __repr__(self) -> str:
        return f"Partition({self.file_names or 'no files'})"

    def __getstate__(self) -> dict[str, Any]:
        """Compress the splits if there are many, because the paths of many splits are similar."""
        state = dict(vars(self))
        if len(self.splits) > _FEW_SPLITS:
            state["splits"] = zlib.compress(pickle.dumps(self.splits), level=1)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["splits"], bytes):
            state["splits"] = pickle.loads(zlib.decompress(state["splits"]))
        vars(self).update(state)

    @property
    def file_names(self) -> str:
        """The paths of the files that the partition reads, joined into one string for messages."""
        return ", ".join(dict.fromkeys(self.store.public(split.file.path) for split in self.splits))

    def filtered(self, table: pa.Table) -> pa.Table:
        """Return the rows of a table that pass the filters, with the columns of `schema`."""
        if self.filters is None:
            return table
        mask = self.outcome(self.filters, table)
        # Filter only if necessary, because `Table.filter` copies all values.
        if not pc.all(mask, skip_nulls=False).as_py():
            table = table.filter(mask)
        return table.select(self.schema.names)

    def outcome(self, filters: Predicate, table: pa.Table) -> pa.ChunkedArray:
        """Return the outcome of ``filters`` for each row of a table. If the filters cannot be applied, the
        error names the files of the partition.
        """
        with located(path=lambda: self.file_names):
            return filters.mask(table)

    def with_partition_values(self, table: pa.Table, schema: Schema) -> pa.Table:
        """Add the partition columns to a table, in the order of a schema."""
        if not self.partition_values or not schema.fields:
            return table
        columns = [
            self._repeat(item, table.num_rows) if item.name in self.partition_values else table[item.name]
            for item in schema.fields
        ]
        return pa.Table.from_arrays(columns, schema=schema.arrow)

    @cached_property
    def all_columns(self) -> Schema:
        """The columns of the result, followed by all further columns that the filters need."""
        # Return `schema` itself, not a copy, so that all tasks share its cached properties.
        if not self.filter_fields:
            return self.schema
        return replace(self.schema, fields=self.schema.fields + self.filter_fields)

    @cached_property
    def stored_columns(self) -> Schema:
        """The columns whose values are decoded from the records: all columns except partition columns."""
        columns = self.all_columns
        if not self.partition_values:
            return columns
        return columns.select(name for name in columns.names if name not in self.partition_values)

    @property
    def reader(self) -> TableReader:
        return TableReader(self.store, self.stored_columns, self.options, self.allowed_features)

    def known_count(self, split: Split) -> int | None:
        """Return the row count of a split if the records need not be read, and None otherwise."""
        must_check = self.allowed_features is not None or self.options.damage.skips
        return None if must_check or self.stored_columns.fields else split.records

    def _repeat(self, item: Field, count: int) -> pa.Array:
        value = self.partition_values[item.name]
        try:
            return item.load(value.take(pa.repeat(0, count)))
        except SchemaError as error:  # an older release may have written categories without checking them
            raise error.replaced(path=self.file_names, record=None) from None


class LazyPartitions(Partitions):
    """Partitions of all files of a version, which ``make`` computes at first use.

    ``token`` determines the partitions: equal tokens mean equal partitions. If a predicate is passed to
    ``make``, the result may lack files in which no row passes it.
    """

    def __init__(self, token: str, totals: Totals, make: Callable[[Predicate | None], Partitions]) -> None:
        self._token, self.totals, self._make_listed = token, totals, make

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.token, self.totals, self._listed)

    @cached_property
    def _listed(self) -> Partitions:
        return self._make_listed(None)

    def matching(self, predicate: Predicate) -> Partitions:
        """Return the partitions without some files in which no row passes the predicate."""
        return self._listed if "_listed" in vars(self) else self._make_listed(predicate)

    @property
    def files(self) -> FileList:
        return self._listed.files

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        return self._listed.starts

    @property
    def blocks(self) -> FileList | None:
        return self._listed.blocks

    @property
    def token(self) -> str:
        return self._token

    def select(self, columns: Callable[[str], bool]) -> Partitions:
        return _restored(self.token, self.totals, super().select(columns))


def _restored(token: str, totals: Totals, made: Partitions) -> LazyPartitions:
    return LazyPartitions(token, totals, lambda _: made)
