"""Compute the statistics of a file's columns: smallest and greatest value, number of nulls, list lengths.

Statistics describe the stored values, so they also hold for the values that are read back. For example, a
float64 value is counted as the 32-bit float that is stored. NaN is never the smallest or the greatest value.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from dask_tfrecord.codec import Statistics
from dask_tfrecord.codec.columns import KIND_TYPES
from dask_tfrecord.files.entry import ColumnStatistics
from dask_tfrecord.schema.model import Field, Schema

# The kernel's statistics, one element for each column.
Columns = Sequence[Statistics]

# The largest size in bytes of a string or bytes value that is kept as a minimum or maximum.
_LONGEST_BOUND = 64

# The scalar types whose stored minimum and maximum are already Python values of the column's type.
_PLAIN_TYPES = (pa.int64(), pa.float32())

# The exceptions that Arrow raises for a value that Python cannot represent.
_NOT_PLAIN = (ValueError, OverflowError, pa.ArrowException)


def empty_statistics(schema: Schema) -> Columns:
    """Return the kernel's statistics of a table without rows."""
    return [Statistics(0, None, None)] * len(schema.fields)


def merge_statistics(one: Columns, other: Columns) -> Columns:
    """Merge the kernel's statistics of two ranges of rows, column by column."""
    return list(map(_merge, one, other))


def file_statistics(schema: Schema, files: Sequence[Columns]) -> list[tuple[ColumnStatistics, ...]]:
    """Convert the kernel's statistics of stored values to the `ColumnStatistics` of each file."""
    if not files or not schema.fields:
        return [()] * len(files)
    pairs = zip(schema.fields, zip(*files, strict=True), strict=True)
    return list(zip(*(_column_statistics(item, column) for item, column in pairs), strict=True))


def _merge(one: Statistics, other: Statistics) -> Statistics:
    nulls = one.nulls + other.nulls
    if one.least is None or other.least is None:
        known = other if one.least is None else one
        return Statistics(nulls, known.least, known.greatest)
    return Statistics(nulls, min(one.least, other.least), max(one.greatest, other.greatest))


def _column_statistics(column: Field, files: Sequence[Statistics]) -> list[ColumnStatistics]:
    """Return the statistics of one column in each file."""
    if column.type in _PLAIN_TYPES:
        return [ColumnStatistics(column.name, least, greatest, nulls) for nulls, least, greatest in files]
    nulls, least, greatest = zip(*files, strict=True)
    name, nothing = repeat(column.name), repeat(None)
    if column.depth:
        return list(map(ColumnStatistics, name, nothing, nothing, nulls, least, greatest))
    return list(map(ColumnStatistics, name, _bounds(column, least), _bounds(column, greatest), nulls))


def _bounds(column: Field, stored: Sequence[Any]) -> Sequence[Any]:
    """Convert the stored minimum or maximum of a column in each file to Python values.

    A value that is too long, or that Python cannot represent, becomes None.
    """
    storage = KIND_TYPES[column.kind]
    if column.kind in ("bytes", "string"):
        stored = [None if value is None or len(value) > _LONGEST_BOUND else value for value in stored]
    if column.type == storage:
        return stored
    try:
        return _plain(column, pa.array(stored, storage))
    except _NOT_PLAIN:  # some value has no Python equivalent, such as a date in the year 20,000
        return [_bound(column, value) for value in stored]


def _bound(column: Field, stored: Any) -> Any:
    try:
        return _plain(column, pa.array([stored], KIND_TYPES[column.kind]))[0]
    except _NOT_PLAIN:
        return None


def _plain(column: Field, stored: pa.Array) -> list[Any]:
    loaded = column.load(stored)
    if pa.types.is_dictionary(loaded.type):
        loaded = loaded.dictionary_decode()
    values: list[Any] = loaded.to_pylist()
    if not pa.array(values, loaded.type).equals(loaded):
        raise ValueError("Python's values are less precise than Arrow's")
    return values
