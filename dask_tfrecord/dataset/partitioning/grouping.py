"""Group the rows of a table by the values of the partition columns.

Each group of rows belongs to one directory.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import take_bytes
from dask_tfrecord.dataset.partitioning import hive
from dask_tfrecord.errors import Remedy, SchemaError, TFRecordError
from dask_tfrecord.files.writing import DirectoryGroup, GroupedRows, RowNumbers

# The types whose values the kernel reorders, because it does so faster than Arrow.
BYTES = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())


class Groups(NamedTuple):
    """The rows of a table, grouped by the values of some columns.

    Attributes
    ----------
    values : pyarrow.Table
        The columns by which the rows are grouped, with one row for each group.
    order : numpy.ndarray, optional
        The row numbers of the table, sorted by group, or None if the rows are already sorted by group. Within
        a group, the rows keep the order of the table.
    starts : numpy.ndarray
        The bounds of the groups: group ``k`` has the rows ``starts[k]`` to ``starts[k + 1] - 1`` of the
        sorted rows.
    """

    values: pa.Table
    order: RowNumbers | None
    starts: RowNumbers


def group_by_directory(table: pa.Table, partition_on: Sequence[str], *, max_directories: int) -> GroupedRows:
    """Sort the rows of a table by their partition directories.

    The directories are sorted by the first appearance of their value in the first partition column, then in
    the second partition column, and so on. The result for an empty table has no directories. A table that is
    already sorted is not copied.

    Raises
    ------
    SchemaError
        If a value of a partition column cannot be written in a directory name.
    TFRecordError
        If there are more directories than ``max_directories``.
    """
    if not partition_on:
        return GroupedRows([(table, None)], [DirectoryGroup("", (), table.num_rows)])
    rows = table.drop_columns(list(partition_on))
    if not table.num_rows:
        return GroupedRows([(rows, None)], [])
    groups = group(table, partition_on)
    directories = directory_groups(groups, partition_on, max_directories=max_directories)
    order = groups.order
    return GroupedRows([(rows if order is None else sorted_rows(rows, order), order)], directories)


def directory_groups(
    groups: Groups, partition_on: Sequence[str], *, max_directories: int
) -> list[DirectoryGroup]:
    """Return the partition directory of each group of rows. Raise the same errors as `group_by_directory`."""
    values = groups.values
    if values.num_rows > max_directories:
        raise too_many(f"{values.num_rows:,} different values", partition_on, max_directories)
    rows = zip(*(_python_values(name, values[name]) for name in partition_on), strict=True)
    return list(map(DirectoryGroup, hive.directories(values), rows, np.diff(groups.starts).tolist()))


def sorted_rows(table: pa.Table, order: RowNumbers) -> pa.Table:
    """Return the rows of a table in another order.

    The columns are reordered one by one, because this is faster than reordering the table.
    """
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
    """Group the rows of a non-empty table by the values of the columns ``names``."""
    codes, _ = _codes(table[names[0]])
    for name in names[1:]:
        more, count = _codes(table[name])
        codes = np.unique(codes.astype(np.int64) * count + more, return_inverse=True)[1]
    order = None if bool((codes[1:] >= codes[:-1]).all()) else sorting(codes)
    starts = np.concatenate([[0], np.cumsum(np.bincount(codes))])
    firsts = starts[:-1] if order is None else order[starts[:-1]]
    of_groups = table.select(list(names)).take(pa.array(firsts))
    values = [comparable(column) for column in of_groups.columns]
    return Groups(pa.table(values, names=list(names)), order, starts)


def sorting(codes: npt.NDArray[np.integer[Any]]) -> RowNumbers:
    """Return the positions that sort an array of integer codes.

    If possible, sort 16-bit codes, because this is much faster.
    """
    return np.argsort(codes.astype(np.uint16) if codes.max(initial=0) < 1 << 16 else codes, kind="stable")


def too_many(what: str, partition_on: Sequence[str], limit: int) -> TFRecordError:
    """Return the exception for a task that would write more files than ``max_files_per_task`` allows."""
    columns = ", ".join(map(repr, partition_on))
    hashes = f'ddf["{partition_on[0]}"].map_partitions(pd.util.hash_pandas_object, index=False)'
    return TFRecordError(
        f"one partition holds {what} of {columns}, but a task may write at most {limit:,} files",
        f"partition on a bucket column, such as {hashes} % 256",
        Remedy("colocate", True, "bring equal values together first"),
        Remedy("max_files_per_task", None, "write any number of files"),
    )


def _codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.integer[Any]], int]:
    """Return an integer code for each value of a column, in order of first appearance, and the number of
    codes.
    """
    encoded = pc.dictionary_encode(comparable(column), null_encoding="encode")
    indices = [chunk.indices.to_numpy() for chunk in encoded.chunks]
    return np.concatenate(indices), len(encoded.chunks[-1].dictionary)


def comparable(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Convert a column to a form in which Arrow treats equal values as equal.

    Dictionary values replace the codes, because each chunk may number the categories differently. All NaNs
    get the same bits.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):
        wide = column.cast(pa.float64())
        return pc.if_else(pc.is_nan(wide), np.nan, wide).cast(column.type)
    if pa.types.is_decimal(column.type) and column.type.bit_width < 128:
        return column.cast(pa.decimal128(column.type.precision, column.type.scale))
    return column


def _python_values(name: str, column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as Python objects.

    Raise SchemaError if Python cannot represent a value exactly.
    """
    # Raised for example for a date in the year 20,000.
    with suppress(OverflowError, ValueError, pa.ArrowException):
        values: list[Any] = column.to_pylist()
        if _same(pa.chunked_array([pa.array(values, column.type)]), column):
            return values
    problem = f"a value of the type {column.type} is finer than Python's own type, or out of its range"
    raise SchemaError(problem, "convert the column to a coarser unit, or to integers", feature=name)


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Return True if two columns have equal values. A NaN counts as equal to a NaN."""
    if pa.types.is_floating(one.type):
        return True  # a Python float can represent every value of a floating-point type
    return bool(one.equals(other))
