"""Plan a read: leave out files, divide the others into partitions, and describe the result."""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, groupby, pairwise, starmap
from operator import itemgetter
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import FeatureKey
from dask_tfrecord.dataset.partitioning import comparable, group
from dask_tfrecord.dataset.query.comparison_keys import Mask, comparison_key, has_nan, is_comparable
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.dataset.query.predicates import Outcomes, Predicate, file_outcomes
from dask_tfrecord.dataset.read.columns import ReadRequest, origin_clash
from dask_tfrecord.dataset.read.partitions import LazyPartitions, RowRanges
from dask_tfrecord.dataset.read.task import Partition, wrong_number
from dask_tfrecord.dataset.snapshot.entry_log import Totals
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.dataset.snapshot.stored_files import Columnar, read_blocks
from dask_tfrecord.errors import SchemaError, short_list
from dask_tfrecord.files.entry import BLOCK_BYTES, COLUMN_FILE, Block
from dask_tfrecord.files.file_list import STATISTICS, FileList, statistics_name, value_name
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.find_blocks import TASK_BYTES, ComputeEach, find_blocks
from dask_tfrecord.files.record_file import PATH_TYPE
from dask_tfrecord.files.splits import BLOCK_TYPE, BlockIndex, Partitions, Split, cut
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.storage.store import Store

# If files are split, this column contains the number of records in the complete file of each split.
FILE_RECORDS = "file_records"

_NO_PARTITIONS = Partitions(FileList.of([]), np.zeros(2, np.int64))

# Indices that select splits of the plan, as an array or as a slice.
Numbers: TypeAlias = npt.NDArray[np.int64] | slice


@dataclass(frozen=True, repr=False)
class ReadPlan:
    """The files and columns to read, and the division of the files into partitions."""

    store: Store
    # A read plan contains at least one partition, which may be empty. The table of splits contains the values
    # of partition columns, which are the same in all splits of a partition. If the dataset has a snapshot,
    # the table of splits contains the statistics of each file.
    partitions: Partitions
    schema: Schema  # all columns to read, including partition columns
    options: ReadOptions
    filters: Predicate | None = None  # A file in which no row can meet the filters belongs to no partition.
    # Names of partition columns. A feature with such a name raises an error, because the caller must choose
    # between it and the partition column.
    refused_features: frozenset[str] = frozenset()
    left_out_features: frozenset[str] = frozenset()  # Records may have these features, which no column reads.
    index: Levels = ()  # The columns that were the index of the written DataFrame.
    columns_name: str | None = None  # The value of ``columns.name`` of the written DataFrame.
    # For each combination of ``partition_by=`` values, the partitions that one task reads. None without
    # ``partition_by=``.
    keys: tuple[range, ...] | None = None
    version: int | None = None
    columnar: Columnar | None = None  # as in `PlannedPartition`
    left_out: tuple[int, int] = (0, 0)  # count and total size of the files that are in no partition

    @property
    def summary(self) -> str:
        """A one-line summary of the files, rows, bytes, partitions and columns to read."""
        sizes, counts = self.files.distinct()["bytes"], self.files["records"]
        parts = [f"{len(sizes):,} files"]
        if not counts.null_count and not self.options.damage.skips:
            before = "" if self.filters is None else " before filters"
            parts.append(f"{pc.sum(counts, min_count=0).as_py():,} rows{before}")
        parts += [] if sizes.null_count else [f"{pc.sum(sizes, min_count=0).as_py():,} bytes"]
        parts.append(f"{self.npartitions if self.keys is None else len(self.keys):,} partitions")
        parts += [] if self.version is None else [f"version {self.version}"]
        return f"{', '.join(parts)}, columns: {short_list(self.schema.names)}"

    @property
    def files(self) -> FileList:
        """The file list, with one row for each split."""
        return self.partitions.files

    @property
    def npartitions(self) -> int:
        """The number of partitions."""
        return len(self.partitions)

    @cached_property
    def partition_values(self) -> dict[str, pa.Array]:
        """Map each partition column to its value in each partition that has splits."""
        firsts = self.partitions.starts[:-1][self.partitions.counts > 0]
        values = self.files.partition_columns.take(firsts)
        return {name: values[name].combine_chunks() for name in values.column_names}

    def with_origin_columns(self) -> Self:
        """Append the path column and the offset column, if the options name them.

        Raise SchemaError if the path or offset column has the name of another column.
        """
        names = self.options.origin_columns
        clash = [name for at, name in enumerate(names) if name in (*self.schema.names, *names[:at])]
        if clash:
            raise origin_clash(clash[0], self.options.path_column)
        types = {self.options.path_column: PATH_TYPE, self.options.offset_column: pa.int64()}
        added = tuple(Field(name, types[name]) for name in names)
        return replace(self, schema=Schema(self.schema.fields + added, self.schema.record_type))

    # -- Partitions ------------------------------------------------------------------------------------------

    def partition(self, index: int, schema: Schema, predicate: Predicate | None = None) -> Partition:
        """Return the `Partition` that the task of partition ``index`` reads; see `partitioner`."""
        return self.partitioner(schema, predicate)(index)

    def partitioner(
        self, schema: Schema, predicate: Predicate | None = None, *, skips_rows: bool = False
    ) -> Callable[[int], Partition]:
        """Return a function that maps a partition index to the `Partition` that its task reads.

        ``schema`` contains the columns to read. ``predicate`` is a filter that Dask applies after the read.
        The task skips splits in which no row can pass the predicate. The task does not filter the rows of the
        remaining splits by the predicate. If ``skips_rows`` is True, `Partition.read_possible` may leave out
        rows that do not pass the predicate.
        """
        filter_names = sorted(self.filters.columns() - set(schema.names)) if self.filters is not None else []
        filter_fields = self.schema.select(filter_names).fields
        allowed_features = self._allowed_features(schema)
        outcomes = None if predicate is None else self.outcomes(predicate)
        used = set() if predicate is None else predicate.columns() - self.partition_values.keys()
        fields = tuple(one for item in self.schema.fields for one in item.family if one.name in used)

        def partition(index: int) -> Partition:
            splits, needed, row_ranges = self._needed_splits(index, outcomes)
            filters = self.filters
            if filters is not None and self._passes_filters[self._rows(index)][needed].all():
                filters = None
            rows_by = predicate if skips_rows and filters is None and fields and schema.fields else None
            if filters is not None or rows_by is not None:
                splits = tuple(map(self._with_blocks, splits))
            names = schema.names if filters is None else [*schema.names, *filter_names]
            values = {
                # Copy the value, because a pickled slice would contain the values of all partitions.
                name: self.partition_values[name].take(pa.array([index]))
                for name in names
                if name in self.partition_values and splits
            }
            return Partition(
                self.store,
                splits,
                schema,
                self.options,
                values,
                filters,
                () if filters is None else filter_fields,
                row_ranges,
                allowed_features,
                rows_by,
                () if rows_by is None else fields,
                self.columnar,
            )

        return partition

    def _with_blocks(self, split: Split) -> Split:
        """Add the blocks to a split of a compressed file, so that a task can read some of the records."""
        file, known = self._files_with_blocks.get(split.file.path), self.partitions.blocks
        if file is None or known is None or not split.file.compression:
            return split
        [blocks] = read_blocks(known.slice(file, file + 1))
        numbers = [block.record for block in blocks]
        first = bisect_left(numbers, split.start.record)
        last = len(blocks) if split.stop is None else bisect_left(numbers, split.stop.record)
        return replace(split, blocks=blocks[first:last])

    @cached_property
    def _files_with_blocks(self) -> dict[str, int]:
        paths = [] if self.partitions.blocks is None else self.partitions.blocks.paths
        return {path: number for number, path in enumerate(paths)}

    def _allowed_features(self, schema: Schema) -> tuple[FeatureKey, ...] | None:
        """Return all features that records may have, or None if features without a column are ignored."""
        reads_all = set(schema.names) == set(self.schema.names) and self.schema.record_type != "bytes"
        if not reads_all or self.options.extra != "raise":
            return None
        not_stored = {*self.partition_values, *self.options.origin_columns}
        stored = (item for item in self.schema.fields if item.name not in not_stored)
        features = [feature.feature for item in stored for feature in item.features]
        # The writer of the snapshot has checked that the records contain no features.
        if self.is_described and not features:
            return None
        names = (self.partition_values.keys() - self.refused_features) | self.left_out_features
        return (*features, *((name, is_list) for name in sorted(names) for is_list in (False, True)))

    # -- Facts about the files that a snapshot proves --------------------------------------------------------

    @property
    def is_described(self) -> bool:
        """True if a snapshot lists the files."""
        return self.version is not None

    @property
    def file_records(self) -> pa.ChunkedArray | None:
        """For each split, the number of records in the complete file, or None if no snapshot lists the
        files.
        """
        if not self.is_described:
            return None
        return self.files[FILE_RECORDS if FILE_RECORDS in self.files else "records"]

    def column_file_bytes(self, schema: Schema) -> int | None:
        """Return the total size of the column files if tasks that read the columns ``schema`` decode no
        records. Otherwise, or if the size is not known, return None.
        """
        options = ReadOptions(max_features=self.options.max_features, verify_crc=self.options.verify_crc)
        used = () if self.filters is None else self.filters.columns()
        columns = self.schema.select({*schema.names, *used} - self.partition_values.keys()).columns
        is_checked = self.options != options or self._allowed_features(schema) is not None
        if is_checked or not columns or COLUMN_FILE not in self.files or self.files[COLUMN_FILE].null_count:
            return None
        names = pc.struct_field(self.files[COLUMN_FILE], "features")
        stored = [{*one.split("\0")} for one in pc.binary_join(names, "\0").unique().to_pylist()]
        if not all(one.issuperset(column.name for column in columns) for one in stored):
            return None
        paths, sizes = (pc.struct_field(self.files[COLUMN_FILE], name) for name in ("path", "bytes"))
        # Several data files may share a column file.
        return sum(dict(zip(paths.to_pylist(), sizes.to_pylist(), strict=True)).values())

    def without_statistics(self) -> Self:
        """Return the plan without the statistics and blocks of files, because only predicates need them."""
        return replace(self, partitions=self.partitions.select(lambda name: not name.startswith(STATISTICS)))

    def of_partitions(
        self, indices: Sequence[int], predicate: Predicate | None = None
    ) -> tuple[Partitions, tuple[range, ...] | None]:
        """Return the fields ``partitions`` and ``keys`` of a plan for some partitions of the collection.

        The statistics and blocks are left out, except those that the filters and ``predicate`` need.
        """
        numbers, keys = np.asarray(indices), None
        if self.keys is not None:
            ranges = [self.keys[index] for index in indices]
            numbers = np.concatenate([np.asarray(one) for one in ranges])
            keys = tuple(starmap(range, pairwise(accumulate(map(len, ranges), initial=0))))
        used = [one.columns() for one in (self.filters, predicate) if one is not None]
        needed = {statistics_name(name) for names in used for name in names}
        part = self.partitions.take(numbers)
        blocks = None
        if used and (known := self.partitions.blocks) is not None:
            paths = dict.fromkeys(part.files.paths)
            rows = [self._files_with_blocks[path] for path in paths if path in self._files_with_blocks]
            blocks = known.take(pa.array(rows, pa.int64()))
        part = part.select(lambda name: name in needed or not name.startswith(STATISTICS))
        return replace(part, blocks=blocks), keys

    def without_files(self) -> Self:
        """Return the plan without its partitions, to which `of_partitions` adds some."""
        return replace(self, partitions=_NO_PARTITIONS, keys=None)

    @cached_property
    def split_counts(self) -> npt.NDArray[np.int64]:
        """For each partition of the collection, the number of splits."""
        starts = self.partitions.starts
        if self.keys is not None:
            starts = starts[[0, *(one.stop for one in self.keys)]]
        return np.diff(starts)

    def can_prune(self, predicate: Predicate) -> bool:
        """Return True if partition values or statistics may let a predicate exclude files."""
        columns = predicate.columns()
        return bool(columns and self.is_described) or not columns.isdisjoint(self.partition_values)

    def outcomes(self, predicate: Predicate) -> Outcomes:
        """Return the possible outcomes of a predicate in each split."""
        return file_outcomes(predicate, self.schema, self.files, self.file_records)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for pickling, without cached properties."""
        return {item.name: vars(self)[item.name] for item in fields(self)}

    def _needed_splits(
        self, index: int, outcomes: Outcomes | None
    ) -> tuple[tuple[Split, ...], Numbers, RowRanges | None]:
        """Return the splits of a partition that may contain a row for which a predicate is true.

        For each returned split, also return the index within the partition and the range of row indices. The
        row ranges are None if the returned splits are the first splits of the partition, or if the row
        indices are unknown.
        """
        splits = self.partitions[index]
        if outcomes is None:
            return splits, slice(None), None
        needed = np.flatnonzero(outcomes.true[self._rows(index)])
        count = int(needed[-1]) + 1 if len(needed) else 0
        counts = self._split_counts[self._rows(index)][:count].tolist()
        if len(needed) == count or -1 in counts:  # row indices need the row counts of all preceding splits
            return splits[:count], slice(count), None
        ends = list(accumulate(counts, initial=0))
        ranges = tuple((ends[at], ends[at + 1]) for at in needed.tolist())
        return tuple(splits[at] for at in needed.tolist()), needed, ranges

    def has_task(self, predicate: Predicate) -> Mask:
        """Return a mask of the partitions that must be read if only rows that pass ``predicate`` are needed.

        The other partitions have no such rows according to partition values and statistics.
        """
        is_needed = self.outcomes(predicate).true
        found: Mask = np.diff(np.append(0, np.cumsum(is_needed))[self.partitions.starts]) > 0
        return found

    def _rows(self, index: int) -> slice:
        """Return the slice of the file list that contains a partition's splits."""
        starts = self.partitions.starts
        return slice(int(starts[index]), int(starts[index + 1]))

    @cached_property
    def _passes_filters(self) -> npt.NDArray[np.bool_]:
        """A mask of the splits whose rows are all known to pass the filters."""
        if self.filters is None:
            return np.ones(len(self.files), bool)
        return self.outcomes(self.filters).only_true

    # -- Facts that are known without reading ----------------------------------------------------------------

    @property
    def totals(self) -> Totals | None:
        """The totals of the files if no file list is needed to know them, and otherwise None."""
        return self.partitions.totals if isinstance(self.partitions, LazyPartitions) else None

    @property
    def count(self) -> int | None:
        """The number of rows if no file list is needed to know it, and otherwise None."""
        return None if self.totals is None or self.options.damage.skips else self.totals.records

    @cached_property
    def counts(self) -> pa.Array:
        """For each partition, the number of rows that pass the filters, or null if unknown."""
        counts, starts = self._split_counts, self.partitions.starts
        ends, unknown = (np.append(0, np.cumsum(one))[starts] for one in (counts, counts < 0))
        return pa.array(np.diff(ends), mask=np.diff(unknown) > 0)

    @cached_property
    def _split_counts(self) -> npt.NDArray[np.int64]:
        """For each split, the number of rows that pass the filters, or -1 if unknown."""
        counts = pc.fill_null(self.files["records"], -1).to_numpy()
        # If damaged records are skipped, the number of rows is unknown.
        is_known = np.zeros_like(counts, bool) if self.options.damage.skips else self._passes_filters
        return np.where(is_known, counts, -1)

    @property
    def non_null_columns(self) -> set[str]:
        """The names of the columns that are known to have no nulls."""
        names = {name for name, column in self.partition_values.items() if not column.null_count}
        names |= set(self.options.origin_columns)
        names |= {item.name for item in self.schema.fields if item.is_required}
        if (records := self.file_records) is not None:
            filled = self.files.filter(pc.greater(records, 0))
            names |= {one.name for one in self.schema.leaves if filled.has_no_nulls(one.name)}
        return names

    def __repr__(self) -> str:
        return f"ReadPlan({self.store.public()!r}, {self.npartitions:,} partitions)"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tfrecord.ReadPlan", self._token

    @cached_property
    def _token(self) -> str:
        values: list[Any] = []
        if self.totals is None:  # otherwise the token of the partitions determines the values
            values = [(name, column.to_pylist()) for name, column in self.partition_values.items()]
        features = (sorted(self.refused_features), sorted(self.left_out_features))
        how = (self.schema.to_json(), self.options, self.filters, features)
        parts = (self.store.__dask_tokenize__(), how, values, self.partitions.token, self.keys)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


# A partition contains at most this many files, because opening each file takes time.
_MOST_FILES = 256

# A larger `blocksize` has the same effect. It limits the sums of sizes to 64-bit integers.
_LARGEST = 1 << 42


def plan_partitions(
    files: FileList, blocks: Mapping[int, BlockIndex] | None = None, *, blocksize: int | None
) -> Partitions:
    """Divide the files, in order, into one or more partitions.

    The optional column ``records`` of ``files`` contains the record count of each file, or null if it is
    unknown. If a file is split, each split repeats the file's values in all columns except ``records``.
    ``blocks`` maps file indices to known blocks. A file that is larger than ``blocksize`` is split only if
    its blocks are known. Files share a partition only if their partition columns have the same values. If
    ``blocksize`` is None, each file becomes one partition.
    """
    if "records" not in files:
        files = files.with_columns({"records": pa.nulls(len(files), pa.int64())})
    rows, file_of, starts = files, np.arange(len(files)), _packed(files, blocksize)
    ranges = {}
    if blocks and blocksize is not None:
        sizes = pc.fill_null(files["bytes"], 0).take(pa.array([*blocks])).to_pylist()
        ranges = {at: cut(size, blocks[at], blocksize) for at, size in zip(blocks, sizes, strict=True)}
        ranges = {at: of_file for at, of_file in ranges.items() if len(of_file) > 1}
    if ranges:  # a file that is split shares no partition with other files
        counts = np.ones(len(files), np.int64)
        counts[[*ranges]] = [len(of_file) for of_file in ranges.values()]
        firsts, file_of = np.cumsum(counts) - counts, np.repeat(file_of, counts)
        is_start = np.isin(file_of, [*ranges])
        is_start[firsts[starts]] = True
        starts = np.flatnonzero(is_start)
        rows = _with_ranges(
            files.take(file_of),
            {row: one for at, of_file in ranges.items() for row, one in enumerate(of_file, firsts[at])},
        )
    return Partitions(rows, np.append(starts, [len(rows)] if len(rows) else [0, 0]).astype(np.int64))


def _with_ranges(files: FileList, ranges: Mapping[int, tuple[Block, Block | None, int | None]]) -> FileList:
    """Add the columns ``start`` and ``stop`` to a file list, and `FILE_RECORDS` with the record counts of the
    complete files. ``ranges`` maps the index of a row in ``files`` to a start, a stop and a record count.
    """
    complete, records = files["records"], files["records"].to_pylist()
    starts: list[Block | None] = [None] * len(files)
    stops = list(starts)
    for row, (start, stop, count) in ranges.items():
        starts[row], stops[row], records[row] = start, stop, count
    edges = {"start": pa.array(starts, BLOCK_TYPE), "stop": pa.array(stops, BLOCK_TYPE)}
    counts = {"records": pa.array(records, pa.int64()), FILE_RECORDS: complete}
    return files.with_columns({**counts, **edges})


def _packed(files: FileList, blocksize: int | None) -> npt.NDArray[np.int64]:
    """Return the index in ``files`` of each partition's first file. Large files are not split yet."""
    if blocksize is None:
        return np.arange(len(files))
    # Mark each file whose partition values differ from those of the preceding file.
    is_other = np.zeros(len(files), bool)
    for column in files.partition_columns.columns:
        codes = comparable(column.combine_chunks()).dictionary_encode("encode").indices.to_numpy()
        is_other[1:] |= codes[1:] != codes[:-1]
    blocksize = min(blocksize, _LARGEST)
    # The number of bytes that each file counts toward `blocksize`. A file of unknown size, and a larger file,
    # count as a full partition.
    sizes = pc.fill_null(files["bytes"], blocksize).to_numpy()
    weights = np.clip(sizes, -(-blocksize // _MOST_FILES), blocksize)
    # If a partition starts with a file, find the first file of the next partition.
    ends = np.cumsum(weights)
    following = np.searchsorted(ends, ends - weights + blocksize, side="right")
    following = np.maximum(following, np.arange(1, len(files) + 1))
    others = np.append(np.flatnonzero(is_other), len(files))
    following = np.minimum(following, others[np.searchsorted(others, np.arange(len(files)), side="right")])
    starts, at, steps = [], 0, following.tolist()
    while at < len(steps):
        starts.append(at)
        at = steps[at]
    return np.array(starts, np.int64)


# `sorting_column` returns None for a plan with more splits than this.
_MOST_SPLITS = 10_000


def divisions(plan: ReadPlan, name: str) -> tuple[Any, ...] | None:
    """Return the Dask divisions of a column: the minimum of each partition, and the maximum of the last
    partition.

    Return None unless the column is known to have no nulls, and each partition's values are known to be
    greater than all values of the previous partition.
    """
    [item] = plan.schema.select([name]).fields
    if not _is_ordered_by_value(item) or not is_comparable(item.type) or has_nan(item.type):
        return None
    bounds = _bounds(plan, item)
    if bounds is None or not plan.partitions.counts.all():
        return None
    lows, highs = ([(comparison_key(one, item.type), one) for one in values] for values in bounds)
    ranges = [slice(*edges) for edges in pairwise(plan.partitions.starts.tolist())]
    least: list[Any] = [min(lows[rows], key=itemgetter(0)) for rows in ranges]
    greatest: list[Any] = [max(highs[rows], key=itemgetter(0)) for rows in ranges]
    if any(high[0] >= low[0] for high, low in zip(greatest, least[1:], strict=False)):
        return None
    return (*(value for _, value in least), greatest[-1][1])


def sorting_column(plan: ReadPlan) -> str | None:
    """Return the name of a column, such as a label, that has one value in most files and by which the files
    are sorted.

    The search uses only partition values and the statistics of a snapshot.
    """
    if len(plan.files) > _MOST_SPLITS:
        return None
    for item in plan.schema.fields:
        bounds = _bounds(plan, item) if is_comparable(item.type) and not has_nan(item.type) else None
        runs = [one for one, _ in groupby(zip(*bounds, strict=True))] if bounds else []
        keys: list[Any] = [tuple(comparison_key(value, item.type) for value in one) for one in runs]
        is_sorted = all(one[1] <= other[0] for one, other in pairwise(keys))
        if len(runs) > 1 and is_sorted and 2 * sum(low == high for low, high in keys) >= len(runs):
            return item.name
    return None


def _bounds(plan: ReadPlan, item: Field) -> list[list[Any]] | None:
    """Return the minimum and maximum of a column in each split, or None if the column may have nulls or
    unknown bounds.
    """
    files, name = plan.files, statistics_name(item.name)
    if item.name in plan.partition_values:
        values = files[value_name(item.name)]
        return None if values.null_count else [values.to_pylist()] * 2
    if not plan.is_described or name not in files:
        return None
    statistics = files[name].combine_chunks()
    if not files.has_no_nulls(item.name):
        return None
    bounds = [statistics.field(one) for one in ("min", "max")]
    return None if any(one.null_count for one in bounds) else [one.to_pylist() for one in bounds]


def _is_ordered_by_value(item: Field) -> bool:
    """Return True if pandas sorts a column by value. For a categorical column, the categories must be in
    ascending order.
    """
    if not pa.types.is_dictionary(item.type):
        return True
    if item.categories is None:
        return False
    keys: list[Any] = [comparison_key(value, item.type) for value in item.categories.to_pylist()]
    return all(one < other for one, other in pairwise(keys))


Positions: TypeAlias = npt.NDArray[np.int64]


def plan(opened: ReadPlan, request: ReadRequest, compute_each: ComputeEach) -> ReadPlan:
    """Divide the files of ``opened`` into the partitions that tasks read. In ``opened``, each file is one
    partition.

    Leave out files in which no row can pass the filters. Find record boundaries in large files, so that they
    can be split. Small files share partitions. If all files of a version are read, divide them only when they
    are needed.
    """
    whole, predicate = opened.partitions, None
    if request.filters is not None:
        predicate = parse_filters(request.filters, opened.schema)
        matching = whole.matching(predicate) if isinstance(whole, LazyPartitions) else whole
        opened = replace(opened, partitions=matching)
    elif isinstance(whole, LazyPartitions) and not request.partition_by:
        token = f"{whole.token} {request.blocksize} {request.whole_files}"

        def divided(_: Predicate | None) -> Partitions:
            return _divide(opened, opened.files, request, request.blocksize, compute_each)

        return replace(opened, partitions=LazyPartitions(token, whole.totals, divided))
    files = opened.files
    kept, left_out = np.arange(len(files)), (0, 0)
    if predicate is not None:
        kept = np.flatnonzero(opened.outcomes(predicate).true)
    keys, blocksize = None, request.blocksize
    if request.partition_by:
        kept, keys = _sort_by_key(opened, kept, request.partition_by)
        blocksize = None
    chosen = _taken(files, kept)
    if predicate is not None:
        (count, size), (count_left, size_left) = map(_size, (whole, chosen))
        left_out = count - count_left, size - size_left
    partitions = _divide(opened, chosen, request, blocksize, compute_each)
    return replace(opened, partitions=partitions, filters=predicate, keys=keys, left_out=left_out)


def _size(files: Partitions | FileList) -> tuple[int, int]:
    """Return the numbers of files and of their bytes."""
    if isinstance(files, LazyPartitions):
        return files.totals.files, files.totals.bytes
    listed = files.files if isinstance(files, Partitions) else files
    return len(listed), pc.sum(listed["bytes"], min_count=0).as_py()


def _divide(
    opened: ReadPlan, files: FileList, request: ReadRequest, blocksize: int | None, compute_each: ComputeEach
) -> Partitions:
    """Divide files of ``opened`` into partitions."""
    divided = plan_partitions(
        files.select(name for name in files.rows.column_names if name != "blocks"),
        _blocks_of_large(opened, files, request, blocksize, compute_each),
        blocksize=blocksize,
    )
    return replace(divided, blocks=_blocks_with_column_files(files))


def _blocks_with_column_files(files: FileList) -> FileList | None:
    """Return the path and the blocks of each file that has a column file and several blocks."""
    if COLUMN_FILE not in files:
        return None
    has_columns = files[COLUMN_FILE].is_valid()
    found = files.filter(pc.and_(has_columns, pc.greater(pc.list_value_length(files["blocks"]), 1)))
    return found.select(["path", "blocks"])


def _taken(data: Any, positions: Positions) -> Any:
    """Take elements of an array or a file list. If ``positions`` selects all elements in order, return
    ``data`` itself.
    """
    is_all = np.array_equal(positions, np.arange(len(data)))
    return data if is_all else data.take(pa.array(positions, pa.int64()))


def _blocks_of_large(
    opened: ReadPlan, files: FileList, request: ReadRequest, blocksize: int | None, compute_each: ComputeEach
) -> dict[int, BlockIndex]:
    """Map the index of each file that is larger than ``blocksize`` to the file's blocks. The blocks come from
    the snapshot. Without a snapshot, they are found in uncompressed files.
    """
    if blocksize is None or (opened.is_described and request.whole_files):
        return {}
    large = np.flatnonzero(pc.fill_null(files["bytes"], 0).to_numpy() > blocksize).tolist()
    if not large:
        return {}
    rows = files.take(pa.array(large, pa.int64()))
    if opened.is_described:
        columns = zip(large, rows["records"].to_pylist(), read_blocks(rows), strict=True)
        return {at: BlockIndex(records, blocks) for at, records, blocks in columns if blocks}
    unknown = dict(zip(large, rows.infos, strict=True))
    limits = {"task_bytes": max(blocksize, TASK_BYTES), "block_bytes": min(blocksize, BLOCK_BYTES)}
    scanned = find_blocks(opened.store, [*unknown.values()], opened.options, compute_each, **limits)
    found_blocks = {at: scanned[file.path] for at, file in unknown.items() if file.path in scanned}
    if "records" in files and not opened.options.damage.skips:
        for at, blocks in found_blocks.items():
            expected, count = files["records"][at].as_py(), blocks.records
            if expected is not None and count is not None and count != expected:
                raise wrong_number(opened.store.public(unknown[at].path), count, expected)
    return found_blocks


def _sort_by_key(
    opened: ReadPlan, kept: Positions, names: Sequence[str]
) -> tuple[Positions, tuple[range, ...]]:
    """Sort the file indices so that files with the same key are adjacent. Return the sorted indices, and the
    range of each key.
    """
    unknown = [name for name in names if name not in opened.partition_values]
    if unknown:
        known = ", ".join(map(repr, opened.partition_values)) or "none"
        problem = f"partition_by= takes partition columns, of which there are: {known}"
        raise SchemaError(problem, f"write the dataset with partition_on={[*names]!r}", feature=unknown[0])
    if not len(kept):
        return kept, (range(1),)
    columns = {name: _taken(opened.partition_values[name], kept) for name in names}
    groups = group(pa.table(columns), names)
    order = slice(None) if groups.order is None else groups.order
    return kept[order], tuple(starmap(range, pairwise(groups.starts.tolist())))
