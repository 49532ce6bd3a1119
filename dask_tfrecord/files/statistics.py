"""Compute the statistics of a file's columns: smallest and greatest value, number of nulls, list lengths.

Statistics describe the stored values, so they also hold for the values that are read back. For example, a
float64 value is counted as the 32-bit float that is stored. NaN is never the smallest or the greatest value.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any

import pyarrow as pa

from dask_tfrecord.codec import Statistics
from dask_tfrecord.codec.columns import KIND_TYPES
from dask_tfrecord.files.entry import ColumnStatistics, FileEntry
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.model import Schema

# The kernel's statistics of some ranges of rows, with an element for each column.
Columns = Sequence[Statistics]

# The largest size in bytes of a string or bytes value that is kept as a minimum or maximum.
_LONGEST_BOUND = 64

# The scalar types whose stored minimum and maximum are already Python values of the column's type.
_PLAIN_TYPES = (pa.int64(), pa.float32())

# The exceptions that Arrow raises for a value that Python cannot represent.
_NOT_PLAIN = (ValueError, OverflowError, pa.ArrowException)


def empty_statistics(schema: Schema) -> Columns:
    """Return the kernel's statistics of one range without rows."""
    return [Statistics([0], [None], [None]) for _ in schema.columns]


def continue_statistics(known: Columns, more: Columns) -> None:
    """Add the statistics of later ranges to ``known``.

    The first of the later ranges continues the last range in ``known``.
    """
    for column, added in zip(known, more, strict=True):
        column.nulls[-1] += added.nulls[0]
        for bounds, others, choose in (
            (column.least, added.least, min),
            (column.greatest, added.greatest, max),
        ):
            values = [value for value in (bounds[-1], others[0]) if value is not None]
            bounds[-1] = choose(values, default=None)
        for all_ranges, ranges in zip(column, added, strict=True):
            all_ranges += ranges[1:]


def file_statistics(
    schema: Schema, parts: Sequence[Columns], files: int
) -> list[tuple[ColumnStatistics, ...]]:
    """Convert the kernel's statistics of stored values to the `ColumnStatistics` of each file.

    Each range of rows belongs to one file. The ranges of all ``parts`` together are ``files`` ranges. A
    column that stores other values than its own, such as numbers of classes, has no statistics. For a struct
    "a", the fields have statistics, such as "a/b".
    """
    if not parts or not schema.fields:
        return [()] * files
    of_features = dict(zip(schema.columns, zip(*parts, strict=True), strict=True))
    plain = [item for item in schema.leaves if item.form is None or item.form.is_plain]
    columns = [_column_statistics(item, of_features[item.column]) for item in plain]
    return list(zip(*columns, strict=True)) if columns else [()] * files


def merge_statistics(files: Sequence[FileEntry]) -> tuple[ColumnStatistics, ...]:
    """Return the statistics of a file with the records of all given files.

    A column has statistics only if it has statistics in each file with records. A bound is known only if it
    is known in each file in which the column has values.
    """
    filled = [file for file in files if file.records] or files[:1]
    of_files = [{column.name: column for column in file.statistics} for file in filled]
    counts = [file.records for file in filled]
    merged = []
    for name in of_files[0] if of_files else ():
        found = [column for of_file in of_files if (column := of_file.get(name))]
        if len(found) == len(filled):
            merged.append(_merged(name, found, counts))
    return tuple(merged)


def _merged(name: str, found: Sequence[ColumnStatistics], counts: Sequence[int]) -> ColumnStatistics:
    """Merge the statistics of a column in several files, which have these numbers of records."""
    valued = [one for one, count in zip(found, counts, strict=True) if one.nulls < count]

    def bound(field: str, choose: Callable[[list[Any]], Any]) -> Any:
        values = [getattr(one, field) for one in valued]
        return choose(values) if values and None not in values else None

    return ColumnStatistics(
        name,
        bound("min", min),
        bound("max", max),
        sum(one.nulls for one in found),
        bound("min_length", min),
        bound("max_length", max),
    )


def _column_statistics(column: Field, parts: Sequence[Statistics]) -> Iterable[ColumnStatistics]:
    """Return the statistics of one column in each file."""
    nulls, least, greatest = (list(chain.from_iterable(lists)) for lists in zip(*parts, strict=True))
    name, nothing = repeat(column.name), repeat(None)
    if column.depth:
        return map(ColumnStatistics, name, nothing, nothing, nulls, least, greatest)
    if column.type not in _PLAIN_TYPES:
        least, greatest = _bounds(column, least), _bounds(column, greatest)
    return map(ColumnStatistics, name, least, greatest, nulls)


def _bounds(column: Field, stored: list[Any]) -> list[Any]:
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
