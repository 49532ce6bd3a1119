"""The files of a snapshot as an Arrow table with a row per file. docs/format.md specifies the columns."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from dask_tfrecord.files.entry import Block, ColumnStatistics, FileEntry, is_inside
from dask_tfrecord.schema.model import Field, Schema
from dask_tfrecord.schema.storage_types import value_type

_BLOCK = pa.struct([pa.field(name, pa.int64(), nullable=False) for name in ("offset", "content", "record")])

_TABLE = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("crc32c", pa.uint32(), nullable=False),
        pa.field("blocks", pa.list_(_BLOCK), nullable=False),
    ]
)


# Optional columns. Parquet has no struct without fields, so an empty one is left out.
_STAMP = "stamp"
_VALUES = "partition"
_STATISTICS = "statistics"


def to_table(files: Sequence[FileEntry], schema: Schema, partitioning: Sequence[Field]) -> pa.Table:
    """Return the table of these files."""
    columns = {name: _column(files, name) for name in ("path", "bytes", "records", "crc32c")}
    columns["blocks"] = _blocks(files)
    if any(file.stamp for file in files):
        columns[_STAMP] = pa.array([file.stamp or None for file in files], pa.string())
    if partitioning:
        columns[_VALUES] = _partition_values(files, partitioning)
    known = {column.name for file in files for column in file.statistics}
    if known:
        columns[_STATISTICS] = _statistics(files, [item for item in schema.fields if item.name in known])
    return pa.table(columns)


def value_columns(files: Sequence[FileEntry], partitioning: Sequence[Field]) -> dict[str, pa.Array]:
    """Return the values of the partition columns, one for each file. Categories become their values."""
    return {
        column.name: pa.array([file.values[at] for file in files], value_type(column.type))
        for at, column in enumerate(partitioning)
    }


def from_table(table: pa.Table, schema: Schema, partitioning: Sequence[Field]) -> tuple[FileEntry, ...]:
    """Return the files of a table, which is not trusted. Unknown columns are ignored.

    Raises
    ------
    TypeError, ValueError, KeyError, pyarrow.ArrowException
        If `to_table` cannot have made the table.
    """
    required = [column.to_pylist() for column in table.select(_TABLE.names).cast(_TABLE)]
    blocks = [tuple(Block(**block) for block in of_file) for of_file in required.pop()]
    values = _read_values(table, partitioning)
    statistics = _read_statistics(table, schema)
    rows = zip(*required, values, blocks, statistics, _read_stamps(table), strict=True)
    files = tuple(FileEntry(*row) for row in rows)
    for file in files:
        check(is_inside(file.path), f"the path {file.path!r} is not inside the dataset")
        check(file.bytes >= 0 and file.records >= 0, f"a size of {file.path!r} is negative")
        check(_is_ascending(file), f"the blocks of {file.path!r} are not in ascending order inside the file")
    check(len({file.path for file in files}) == len(files), "several files have the same path")
    return files


def _is_ascending(file: FileEntry) -> bool:
    """Return True if the blocks are inside the file, and each starts after the one before."""
    ends = [Block(-1, -1, -1), *file.blocks, Block(file.bytes, 1 << 63, file.records + 1)]
    return all(
        block.offset < after.offset and block.content < after.content and block.record < after.record
        for block, after in pairwise(ends)
    )


def _column(files: Sequence[FileEntry], name: str) -> pa.Array:
    return pa.array([getattr(file, name) for file in files], _TABLE.field(name).type)


def _blocks(files: Sequence[FileEntry]) -> pa.Array:
    offsets = [0]
    for file in files:
        offsets.append(offsets[-1] + len(file.blocks))
    blocks = [block for file in files for block in file.blocks]
    numbers = [pa.array([block[at] for block in blocks], pa.int64()) for at in range(len(Block._fields))]
    structs = pa.StructArray.from_arrays(numbers, fields=list(_BLOCK))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)


def _partition_values(files: Sequence[FileEntry], partitioning: Sequence[Field]) -> pa.Array:
    for file in files:
        check(len(file.values) == len(partitioning), f"{file.path!r} needs one value per partition column")
    columns = value_columns(files, partitioning)
    return pa.StructArray.from_arrays([*columns.values()], names=[*columns])


def _statistics(files: Sequence[FileEntry], columns: Sequence[Field]) -> pa.Array:
    known = [{column.name: column for column in file.statistics} for file in files]
    arrays = [_column_statistics([found.get(column.name) for found in known], column) for column in columns]
    return pa.StructArray.from_arrays(arrays, names=[column.name for column in columns])


def _column_statistics(found: Sequence[ColumnStatistics | None], column: Field) -> pa.Array:
    """Return the statistics of one column in each file; null for a file without statistics."""
    fields = _statistics_fields(column)
    values = zip(*(one or [None] * len(ColumnStatistics._fields) for one in found), strict=True)
    by_name = dict(zip(ColumnStatistics._fields, values, strict=True))
    arrays = [pa.array(by_name[item.name], item.type) for item in fields]
    missing = pa.array([one is None for one in found])
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=missing)


def _statistics_fields(column: Field) -> list[pa.Field]:
    """Return the fields of a column's statistics: bounds of scalar values, or of the lengths of lists."""
    nulls = pa.field("nulls", pa.int64())
    if column.depth:
        return [nulls, pa.field("min_length", pa.int64()), pa.field("max_length", pa.int64())]
    type_ = value_type(column.type)
    return [nulls, pa.field("min", type_), pa.field("max", type_)]


def _read_values(table: pa.Table, partitioning: Sequence[Field]) -> list[tuple[Any, ...]]:
    if not partitioning:
        return [()] * len(table)
    found = table[_VALUES].combine_chunks()
    columns = [found.field(item.name).cast(value_type(item.type)).to_pylist() for item in partitioning]
    return list(zip(*columns, strict=True))


def _read_statistics(table: pa.Table, schema: Schema) -> list[tuple[ColumnStatistics, ...]]:
    if _STATISTICS not in table.column_names:
        return [()] * len(table)
    found = table[_STATISTICS].combine_chunks()
    columns = [_read_column(found.field(item.name), item) for item in schema.select(_names(found)).fields]
    return [tuple(one for one in row if one) for row in zip(*columns, strict=True)]


def _read_stamps(table: pa.Table) -> list[str]:
    """Return the stamp of each file; "" if there is none, as in the snapshots of early versions."""
    if _STAMP not in table.column_names:
        return [""] * len(table)
    return [stamp or "" for stamp in table[_STAMP].cast(pa.string()).to_pylist()]


def _names(struct: pa.StructArray) -> list[str]:
    return [item.name for item in struct.type]


def _read_column(found: pa.StructArray, column: Field) -> list[ColumnStatistics | None]:
    expected = pa.struct(_statistics_fields(column))
    return [one and _column_of(column.name, one) for one in found.cast(expected).to_pylist()]


def _column_of(name: str, stored: dict[str, Any]) -> ColumnStatistics:
    check(isinstance(stored["nulls"], int), f"the statistics of {name!r} have no null count")
    return ColumnStatistics(
        name,
        stored.get("min"),
        stored.get("max"),
        stored["nulls"],
        stored.get("min_length"),
        stored.get("max_length"),
    )


def check(valid: bool, problem: str) -> None:
    """Raise a ValueError with the problem unless the data is valid."""
    if not valid:
        raise ValueError(problem)
