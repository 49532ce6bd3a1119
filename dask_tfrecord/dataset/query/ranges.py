"""Derive the limits of a column's values in each of many files from partition values and statistics.

For speed, no Python object is created for each file. The limits of all files are stored in Arrow arrays, and
all other results are boolean masks with an element for each file.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.query.comparison_keys import has_nan, is_comparable
from dask_tfrecord.dataset.snapshot.column_statistics import statistics_name
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.storage_types import value_type

# A boolean array with an element for each file.
Mask: TypeAlias = npt.NDArray[np.bool_]


class ColumnRange(NamedTuple):
    """The known limits of the values of a column in each file.

    Attributes
    ----------
    low, high : pyarrow.Array, optional
        Arrays with an element for each file. No value of the column in the file is less than `low` or greater
        than `high`, except NaN. An element is null if the limit is unknown for its file. None instead of an
        array means that the limit is unknown for all files.
    may_have_values, may_have_nulls, may_have_nan : numpy.ndarray of bool
        Masks with an element for each file. An element is False if the column is known to have no values, no
        nulls, or no NaN in the file.
    """

    low: pa.Array | None
    high: pa.Array | None
    may_have_values: Mask
    may_have_nulls: Mask
    may_have_nan: Mask


@dataclass(frozen=True, eq=False)
class FileRanges:
    """The known limits of the columns of several files.

    Attributes
    ----------
    may_have_rows : numpy.ndarray of bool
        A mask with an element for each file. An element is False if the file is known to have no rows.
    columns : mapping of str to ColumnRange
        Map from column names to the limits of the column's values. Nothing is known about a column that is
        not in the map.
    """

    may_have_rows: Mask
    columns: Mapping[str, ColumnRange]

    def column(self, name: str) -> ColumnRange:
        """Return the known limits of a column in each file."""
        anything = np.ones(len(self.may_have_rows), bool)
        return self.columns.get(name, ColumnRange(None, None, anything, anything, anything))


def file_ranges(
    fields: Iterable[Field], count: int, values: Mapping[str, pa.Array], files: pa.Table | None
) -> FileRanges:
    """Return the known limits of the given columns in each file.

    Parameters
    ----------
    fields : iterable of Field
        The columns whose limits are returned.
    count : int
        The number of files.
    values : mapping of str to pyarrow.Array
        Map from the name of each partition column to an array with its value in each file.
    files : pyarrow.Table, optional
        The file list with statistics. The column ``file_records`` of the file list is the number of records
        of each file. The number of records is null if nothing proves that the statistics describe the present
        content of the file. Without the column ``file_records``, no statistics are used. The columns with the
        statistics have the same names as in `Snapshot.file_list`.
    """
    ranges = {item.name: range_of_values(item, values[item.name]) for item in fields if item.name in values}
    if files is None or "file_records" not in files.column_names:
        return FileRanges(np.ones(count, bool), ranges)
    records = pc.fill_null(files["file_records"], -1).to_numpy()
    for item in fields:
        name = statistics_name(item.name)
        if item.name not in ranges and name in files.column_names:
            ranges[item.name] = range_of_statistics(item, files[name].combine_chunks(), records)
    return FileRanges(records != 0, ranges)


def range_of_statistics(
    field: Field, statistics: pa.StructArray, records: npt.NDArray[np.int64]
) -> ColumnRange:
    """Return the limits of a column that the statistics of each file prove.

    ``records`` is the number of records of each file. If the number is negative, the statistics of this file
    are not used.
    """
    is_known = _mask(statistics.is_valid()) & (records >= 0)
    nulls = pc.fill_null(statistics.field("nulls"), 0).to_numpy()
    may_have_values, may_have_nulls = ~is_known | (nulls < records), ~is_known | (nulls > 0)
    if not is_comparable(field.type) or statistics.type.get_field_index("min") < 0:
        return ColumnRange(None, None, may_have_values, may_have_nulls, ~is_known)
    low, high = (_bounds(field, statistics.field(name), is_known) for name in ("min", "max"))
    may_have_nan = may_have_values if has_nan(field.type) else ~is_known
    return ColumnRange(low, high, may_have_values, may_have_nulls, may_have_nan)


def range_of_values(field: Field, values: pa.Array) -> ColumnRange:
    """Return the limits of a column that has the same value in all rows of a file."""
    is_null = _mask(values.is_null())
    has_no_nan = np.zeros(len(values), bool)
    if not is_comparable(field.type):
        return ColumnRange(None, None, ~is_null, is_null, has_no_nan)
    bounds = _bounds(field, values, ~is_null)
    may_have_nan = has_no_nan if not has_nan(field.type) else ~is_null & _unknown(bounds, len(values))
    return ColumnRange(bounds, bounds, ~is_null, is_null, may_have_nan)


def comparable_values(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert a column to a type for which Arrow's comparisons agree with comparisons of comparison keys."""
    type_ = value_type(column.type)
    if pa.types.is_floating(type_):  # convert to float64, so that the key is compared without rounding
        return (
            column.cast(pa.float32()).cast(pa.float64())
            if pa.types.is_float16(type_)
            else column.cast(pa.float64())
        )
    comparable = pa.binary() if pa.types.is_fixed_size_binary(type_) else type_
    return column if column.type == comparable else column.cast(comparable)


def _bounds(field: Field, values: pa.Array, is_known: Mask) -> pa.Array | None:
    """Convert bounds from statistics to comparable values. NaN and unknown bounds become null.

    Return None if the bounds do not have the type of the column.
    """
    if value_type(values.type) != value_type(field.type):
        return None
    bounds = comparable_values(values)
    if has_nan(field.type):
        is_known = is_known & _mask(pc.equal(bounds, bounds))
    return bounds if is_known.all() else pc.if_else(pa.array(is_known), bounds, pa.scalar(None, bounds.type))


def _unknown(bounds: pa.Array | None, count: int) -> Mask:
    return np.ones(count, bool) if bounds is None else _mask(bounds.is_null())


def _mask(array: pa.Array) -> Mask:
    mask: Mask = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    return mask
