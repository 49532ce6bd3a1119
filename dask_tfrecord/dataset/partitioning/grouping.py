"""A table -> the rows of each partition directory. Knows tables and names, no files."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import take_bytes
from dask_tfrecord.dataset.partitioning import hive
from dask_tfrecord.errors import SchemaError, TFRecordError
from dask_tfrecord.files.writing import DirectoryGroup, GroupedRows, RowNumbers

# Types whose values the kernel brings into another order.
BYTES = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())


class Groups(NamedTuple):
    """Rows by their keys.

    ``order`` are the row numbers sorted by key, in each key as they were, or None if they are in that order
    already; the rows of key k are those from ``starts[k]`` to ``starts[k + 1]``. ``keys`` has a row per key.
    """

    keys: pa.Table
    order: RowNumbers | None
    starts: RowNumbers


def group_by_directory(table: pa.Table, partition_on: Sequence[str], *, max_directories: int) -> GroupedRows:
    """Sort the rows of a table by partition directory.

    The directories are ordered by the first appearance of their value in the first partition column, then in
    the next. An empty table has no directories. A table that is sorted already is not copied.

    Raises
    ------
    SchemaError
        For a value that no directory can be named after.
    TFRecordError
        If there are more directories than ``max_directories``.
    """
    if not partition_on:
        return GroupedRows(table, [DirectoryGroup("", (), table.num_rows)])
    rows = table.drop_columns(list(partition_on))
    if not table.num_rows:
        return GroupedRows(rows, [])
    groups = group(table, partition_on)
    directories = directory_groups(groups, partition_on, max_directories=max_directories)
    order = groups.order
    return GroupedRows(rows if order is None else sorted_rows(rows, order), directories, order)


def directory_groups(
    groups: Groups, partition_on: Sequence[str], *, max_directories: int
) -> list[DirectoryGroup]:
    """The partition directory of each group; raises as `group_by_directory` does."""
    keys = groups.keys
    if keys.num_rows > max_directories:
        raise too_many(f"{keys.num_rows:,} different values", partition_on, max_directories)
    directories = hive.directories(keys)
    for directory in directories:
        hive.check_inside(directory)
    values = zip(*(_plain(name, keys[name]) for name in partition_on), strict=True)
    return list(map(DirectoryGroup, directories, values, np.diff(groups.starts).tolist()))


def sorted_rows(table: pa.Table, order: RowNumbers) -> pa.Table:
    """The rows in another order, column by column, which is faster than Arrow's way with a table."""
    numbers = pa.array(order)
    columns = [_take(column, order, numbers) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _take(column: pa.ChunkedArray, order: RowNumbers, numbers: pa.Array) -> pa.Array | pa.ChunkedArray:
    if column.num_chunks != 1:
        return column.take(numbers)
    if column.type in BYTES:
        return take_bytes(column.chunk(0), order.data)
    return pc.take(column.chunk(0), numbers, boundscheck=False)


def group(table: pa.Table, names: Sequence[str]) -> Groups:
    """The rows of a table that has some, by their values in the columns ``names``."""
    codes, _ = _codes(table[names[0]])
    for name in names[1:]:
        found, count = _codes(table[name])
        codes = np.unique(codes.astype(np.int64) * count + found, return_inverse=True)[1]
    order = None if bool((codes[1:] >= codes[:-1]).all()) else sorting(codes)
    starts = np.concatenate([[0], np.cumsum(np.bincount(codes))])
    firsts = starts[:-1] if order is None else order[starts[:-1]]
    keys = table.select(list(names)).take(pa.array(firsts))
    values = [comparable(column) for column in keys.columns]
    return Groups(pa.table(values, names=list(names)), order, starts)


def sorting(codes: npt.NDArray[np.integer[Any]]) -> RowNumbers:
    """The positions in the order of the codes; NumPy sorts short integers in a fraction of the time."""
    return np.argsort(codes.astype(np.uint16) if codes.max(initial=0) < 1 << 16 else codes, kind="stable")


def too_many(what: str, partition_on: Sequence[str], limit: int) -> TFRecordError:
    """The error for a task that would write a file for each of very many keys."""
    columns = ", ".join(map(repr, partition_on))
    hashes = f'ddf["{partition_on[0]}"].map_partitions(pd.util.hash_pandas_object, index=False)'
    return TFRecordError(
        f"one partition holds {what} of {columns}, and a task writes at most {limit:,} files",
        advice=f"partition on a bucket column, such as {hashes} % 256, pass colocate=True, which brings "
        "equal values together first, or raise max_files_per_task",
    )


def _codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.integer[Any]], int]:
    """A number for each value, counted in the order of their first appearance, and how many there are."""
    encoded = pc.dictionary_encode(comparable(column), null_encoding="encode")
    indices = [chunk.indices.to_numpy() for chunk in encoded.chunks]
    return np.concatenate(indices), len(encoded.chunks[-1].dictionary)


def comparable(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Values that Arrow can tell apart: no category's codes, in which chunks may differ, only one NaN."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):
        wide = column.cast(pa.float64())
        return pc.if_else(pc.is_nan(wide), np.nan, wide).cast(column.type)
    if pa.types.is_decimal(column.type) and column.type.bit_width < 128:
        return column.cast(pa.decimal128(column.type.precision, column.type.scale))
    return column


def _plain(name: str, keys: pa.ChunkedArray) -> list[Any]:
    """The values as Python has them, if it does."""
    try:
        values: list[Any] = keys.to_pylist()
        if _same(pa.chunked_array([pa.array(values, keys.type)]), keys):
            return values
    except (OverflowError, ValueError, pa.ArrowException):  # such as a date in the year 20,000
        pass
    raise SchemaError(
        f"a value of the type {keys.type} is finer than Python's own type, or beyond it",
        feature=name,
        advice="convert the column to a coarser unit, or to integers",
    )


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Whether the values are equal, NaN being itself."""
    if pa.types.is_floating(one.type):
        return True  # Python's floats hold all of them
    return bool(one.equals(other))
