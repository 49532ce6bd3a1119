"""Select rows by index, as `Dataset.take` and `RecordTable` do, or by filters (`filter_mask`)."""

import operator
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.collection.scheduler import compute_each
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.dataset.read.task import Partition, read_each
from dask_tfrecord.errors import TFRecordError, literal
from dask_tfrecord.files.splits import Partitions
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.redaction import redact_errors


def filter_mask(table: pa.Table, filters: Sequence[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask that is True for the table rows that ``filters`` select, as in `read_tfrecord`."""
    predicate = parse_filters(filters, Schema.from_arrow(table.schema, "sequence_example"))
    return np.asarray(pc.fill_null(predicate.mask(table), False))


Numbers: TypeAlias = npt.NDArray[np.int64]

# The part of a selection in one partition: the partition (with one split), the indices of the requested rows
# in the partition, and the partition's row count.
RowsOfPartition: TypeAlias = tuple[Partition, Numbers, int]

Result = TypeVar("Result")

_NO_NUMBERS: Numbers = np.zeros(0, np.int64)

# The minimum stored size of a block in bytes. To read one row, the reader reads the whole block that contains
# the row. A compressed block that `to_tfrecord` wrote may be larger than this minimum.
BLOCK_BYTES = 1 << 18

# One task reads at most this many blocks. A selection of at most this many blocks is read in the calling
# process.
_BLOCKS_PER_TASK = 16


class NumberedRows:
    """Give each row of a read an index, in the order of `read_tfrecord`, and read rows by index.

    A row has two indices: the row index counts the rows of the result, and the record index counts the
    records of the files. The two indices differ if filters exclude records. ``plan`` has one split in each
    partition. ``starts`` contains the index of the first record of each partition, followed by the total
    number of records.
    """

    def __init__(self, plan: ReadPlan, schema: Schema) -> None:
        plan = _one_split_each(plan)
        skips = plan.options.damage.skips
        counts = pc.fill_null(plan.files["records"], -1).to_numpy().copy()
        if plan.filters is not None or skips:
            counts[:] = -1
        partition = plan.partitioner(schema if skips else schema.select([]))
        unknown = np.flatnonzero(counts < 0)
        self._root = plan.store.public()
        masks = self._in_tasks(_passing_rows, [partition(at) for at in unknown.tolist()])
        counts[unknown] = list(map(len, masks))
        self.plan = plan if skips else replace(plan, filters=None)
        self.schema = schema
        self.starts: Numbers = np.cumsum([0, *counts])
        self._passing: Numbers | None = None
        # If the read has filters, each partition has a row mask. Without filters, all values of the row masks
        # are True.
        if not all(mask.all() for mask in masks):
            self._passing = np.flatnonzero(np.concatenate(masks))

    def __len__(self) -> int:
        return int(self.starts[-1]) if self._passing is None else len(self._passing)

    def with_plan(self, plan: ReadPlan) -> Self:
        """Return a copy that reads the same rows with another plan, such as one with a new filesystem."""
        copied = copy(self)
        copied.plan = plan
        return copied

    def record(self, number: int) -> int:
        """Convert a row index to a record index. Raise IndexError if no row has this index."""
        count = len(self)
        if not -count <= number < count:
            raise _no_row(number, count, self._root)
        return number % count if self._passing is None else int(self._passing[number])

    def row_numbers(self, records: Numbers) -> Numbers:
        """Convert record indices to row indices, which do not count records that the filters exclude."""
        return records if self._passing is None else np.searchsorted(self._passing, records)

    def numbers(self, indices: Any) -> Numbers:
        """Validate row indices or a boolean mask, and convert them to record indices.

        Raise IndexError if an index is out of bounds, or if a mask does not have one element for each row.
        """
        rows = resolved(index_array(indices, self._root), len(self), self._root)
        return rows if self._passing is None else self._passing[rows]

    def matching(self, filters: Any) -> Numbers:
        """Return the indices of the rows that pass filters, in ascending order.

        Raise TFRecordError if damage is skipped, because reading other columns could skip other records.
        """
        if self.plan.options.damage.skips:
            raise TFRecordError(
                "rows cannot be filtered by a later expression if damage is skipped, because reading other "
                "columns could skip other records",
                f"pass filters={literal(filters)} to RecordTable, so that the rows are filtered first",
            )
        predicate = parse_filters(filters, self.plan.schema)
        plan = replace(self.plan, filters=predicate)
        outcomes, partition = plan.outcomes(predicate), plan.partitioner(self.schema.select([]))
        counts, is_undecided = np.diff(self.starts), outcomes.true & ~outcomes.only_true
        parts = [
            (partition(at), _NO_NUMBERS, int(counts[at])) for at in np.flatnonzero(is_undecided).tolist()
        ]
        is_matching = np.repeat(outcomes.only_true, counts)
        masks = self._in_tasks(_passing_of_parts, parts)
        is_matching[np.repeat(is_undecided, counts)] = np.concatenate([_NO_NUMBERS > 0, *masks])
        return np.flatnonzero(is_matching if self._passing is None else is_matching[self._passing])

    def read(self, records: Numbers) -> pa.Table:
        """Read records by index. Return one row for each index, in the order of ``records``."""
        rows, order = np.unique(records, return_inverse=True)
        partition = self.plan.partitioner(self.schema)
        parts = [
            (partition(at), of_part - self.starts[at], int(self.starts[at + 1] - self.starts[at]))
            for at, of_part in self.by_partition(rows)
        ]
        empty = pa.Table.from_batches([self.schema.no_rows()])
        table = pa.concat_tables([empty, *self._in_tasks(_selected_rows, parts)])
        in_order = np.array_equal(order, np.arange(table.num_rows))
        # Rows that are in order need no `pyarrow.Table.take`, which fails if the rows are too large.
        return table if in_order else table.take(pa.array(order))

    def _in_tasks(self, function: Callable[[Any], list[Result]], parts: Sequence[Any]) -> list[Result]:
        """Call a function once with all parts, or split the parts into groups and call it on each group in a
        Dask task. Join the results.
        """
        if len(parts) <= _BLOCKS_PER_TASK:
            return function(parts)
        tasks = [parts[start : start + _BLOCKS_PER_TASK] for start in range(0, len(parts), _BLOCKS_PER_TASK)]
        return list(chain.from_iterable(compute_each(function, tasks)))

    def by_partition(self, records: Numbers) -> Iterator[tuple[int, Numbers]]:
        """Group ascending record indices by the partition that contains the records."""
        partitions = np.searchsorted(self.starts, records, side="right") - 1
        cuts = np.flatnonzero(np.diff(partitions)) + 1
        groups = np.split(records, cuts) if len(records) else []
        for first, group in zip([0, *cuts.tolist()], groups, strict=False):
            yield int(partitions[first]), group


def index_array(indices: Any, path: str | None = None) -> npt.NDArray[Any]:
    """Return row indices or a boolean mask as an array. Raise TFRecordError for any other argument."""
    array = np.asarray(indices)
    if array.ndim == 0:
        problem = f"indices must be a list of integers or a boolean mask, not {indices!r}"
        raise TFRecordError(problem, _advice(indices), path=path, keyword="indices")
    if not array.size and array.dtype != bool:
        array = array.astype(np.int64)
    if array.ndim > 1 or array.dtype.kind not in "biu":
        raise TFRecordError(
            "indices must be a list of integers or a boolean mask, not a "
            f"{array.ndim}-dimensional array of {array.dtype}",
            path=path,
        )
    return array


def _advice(index: Any) -> str:
    """Return the call for a single index or a slice."""
    if isinstance(index, slice):
        return "pass a range, such as range(0, 5) for the first rows"
    try:
        number = operator.index(index)
    except TypeError:
        return "pass a list of integers, such as [0, 1]"
    first = f", or call head({number}) of a Dataset for the first rows" if number > 0 else ""
    return f"pass [{number}] for the row with this index{first}"


def resolved(array: npt.NDArray[Any], count: int, path: str | None = None) -> Numbers:
    """Convert an array of `index_array` to non-negative indices of ``count`` rows.

    Raise IndexError if an index is out of bounds, or if a mask does not have one element for each row.
    """
    if array.dtype == bool:
        if len(array) != count:
            problem = f"the mask has {len(array):,} elements, but the dataset {count:,} rows"
            raise IndexError(problem if path is None else f"{path}: {problem}")
        return np.flatnonzero(array)
    outside = array[(array >= count) | (array < -count)]
    if outside.size:
        raise _no_row(outside[0], count, path)
    numbers = array.astype(np.int64)
    return np.where(numbers < 0, numbers + count, numbers)


def _no_row(number: Any, count: int, path: str | None) -> IndexError:
    problem = f"index {number} is out of bounds for a dataset of {count:,} rows"
    return IndexError(problem if path is None else f"{path}: {problem}")


def _one_split_each(plan: ReadPlan) -> ReadPlan:
    """Return a read plan for the same rows with one split in each partition."""
    if not len(plan.files):
        return plan
    starts = np.arange(len(plan.files) + 1)
    return replace(plan, partitions=Partitions(plan.files, starts, plan.partitions.blocks))


@redact_errors
def _passing_rows(partitions: Sequence[Partition]) -> list[npt.NDArray[np.bool_]]:
    return read_each(_passing, [(partition,) for partition in partitions])


def _passing(partition: Partition) -> npt.NDArray[np.bool_]:
    """Return a mask of the records that pass the filters.

    If the read skips damage, the mask is True for each row of the result, because a read of only the filter
    columns could skip other records than a read of the requested columns.
    """
    predicate = partition.filters
    if predicate is None or partition.options.damage.skips:
        return np.ones(partition.read().num_rows, bool)
    schema = replace(partition.schema, fields=partition.filter_fields)
    table = replace(partition, schema=schema, filters=None, filter_fields=()).read()
    return np.asarray(pc.fill_null(partition.outcome(predicate, table), False))


@redact_errors
def _passing_of_parts(parts: Sequence[RowsOfPartition]) -> list[npt.NDArray[np.bool_]]:
    """Return the records that pass the filters, as one mask for each run of adjacent splits in ``parts``.
    The splits of a run are read together.
    """
    return read_each(_passing, [(_joined(run),) for run in _runs(parts)])


@redact_errors
def _selected_rows(parts: Sequence[RowsOfPartition]) -> list[pa.Table]:
    """Read the requested rows of ``parts``, in order. Adjacent splits of a file are read together."""
    calls = [(_joined(run), *_rows_of_run(run)) for run in _runs(parts)]
    return read_each(Partition.read_records, calls)


def _runs(parts: Sequence[RowsOfPartition]) -> list[list[RowsOfPartition]]:
    """Group consecutive parts whose splits can be read together."""
    runs: list[list[RowsOfPartition]] = []
    for part in parts:
        if runs and _can_join(runs[-1][0][0], runs[-1][-1][0], part[0]):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _can_join(first: Partition, last: Partition, following: Partition) -> bool:
    """Return True if the splits of the partitions from ``first`` to ``following`` can be read together."""
    start, end, split = (one.splits[0] for one in (first, last, following))
    is_adjacent = end.file.path == split.file.path and end.stop == split.start
    # Do not join splits into one that covers a whole file, because reading it would verify the file's
    # checksum.
    is_whole = not start.start.offset and split.stop is None
    return is_adjacent and not is_whole and not first.options.damage.skips


def _joined(run: Sequence[RowsOfPartition]) -> Partition:
    partition = run[0][0]
    if len(run) == 1:
        return partition
    splits, records = [part.splits[0] for part, _, _ in run], sum(count for _, _, count in run)
    blocks = tuple(block for split in splits for block in split.blocks)
    split = replace(splits[0], stop=splits[-1].stop, records=records, blocks=blocks)
    return replace(partition, splits=(split,))


def _rows_of_run(run: Sequence[RowsOfPartition]) -> tuple[Numbers, int]:
    """Return the indices of the requested rows in the joined splits of a run, and the number of its rows."""
    wanted, counts = [rows for _, rows, _ in run], [count for _, _, count in run]
    starts = np.cumsum([0, *counts[:-1]])
    rows = np.concatenate([one + start for one, start in zip(wanted, starts, strict=True)])
    return rows, sum(counts)
