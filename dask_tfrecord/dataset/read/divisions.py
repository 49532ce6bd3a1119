"""Find the Dask divisions of a dataset: the values of the index at which partitions begin."""

from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa

from dask_tfrecord.dataset.query.comparison_keys import comparison_key, has_nan, is_comparable
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.dataset.snapshot.column_statistics import has_no_nulls, statistics_name
from dask_tfrecord.schema.field import Field

# The largest number of splits whose order is looked at.
_MOST_SPLITS = 10_000


def divisions(plan: ReadPlan, name: str) -> tuple[Any, ...] | None:
    """Return the Dask divisions of a column: the minimum of each partition, and the maximum of the last
    partition.

    Returns
    -------
    tuple or None
        The divisions, or None unless every value of a partition is known to be greater than all values of
        the partition before, and the column is known to have no nulls.
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
    """Return a column with one value in most files, by which the files are sorted, as labels often are.

    Only partition values and the statistics of a snapshot are used.
    """
    if len(plan.partitions.rows) > _MOST_SPLITS:
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
    """Return the minima and maxima of a column in each split, or None if they are unknown or if there
    are nulls.
    """
    if item.name in plan.partition_values:
        values = plan.value_of_splits(item.name)
        return None if values.null_count else [values.to_pylist()] * 2
    rows, name = plan.partitions.rows, statistics_name(item.name)
    if not plan.is_described or name not in rows.column_names or rows["file_records"].null_count:
        return None
    statistics = rows[name].combine_chunks()
    if not has_no_nulls(rows, item.name):
        return None
    bounds = [statistics.field(one) for one in ("min", "max")]
    return None if any(one.null_count for one in bounds) else [one.to_pylist() for one in bounds]


def _is_ordered_by_value(item: Field) -> bool:
    """Return True if pandas sorts a column by value.

    The categories of a categorical column must then be in ascending order.
    """
    if not pa.types.is_dictionary(item.type):
        return True
    if item.categories is None:
        return False
    keys: list[Any] = [comparison_key(value, item.type) for value in item.categories.to_pylist()]
    return all(one < other for one, other in pairwise(keys))
