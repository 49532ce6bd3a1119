"""The files of a snapshot as a table with a row per file."""

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


# Columns that are there only where they have something to say: Parquet has no struct without fields.
_STAMP = "stamp"


_VALUES = "partition"


_STATISTICS = "statistics"


def to_table(files: Sequence[FileEntry], schema: Schema, partitioning: Sequence[Field]) -> pa.Table:
    """A row per file."""
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


def from_table(table: pa.Table, schema: Schema, partitioning: Sequence[Field]) -> tuple[FileEntry, ...]:
    """The files, believing nothing.

    Raises
    ------
    TypeError, ValueError, KeyError, pyarrow.ArrowException
        For anything that `to_table` did not make.
    """
    plain = [column.to_pylist() for column in table.select(_TABLE.names).cast(_TABLE)]
    blocks = [tuple(Block(**block) for block in found) for found in plain.pop()]
    values = _read_values(table, partitioning)
    statistics = _read_statistics(table, schema)
    rows = zip(*plain, values, blocks, statistics, _read_stamps(table), strict=True)
    files = tuple(FileEntry(*row) for row in rows)
    for file in files:
        check(is_inside(file.path), f"the path {file.path!r} is not one below the dataset")
        check(file.bytes >= 0 and file.records >= 0, f"the sizes of {file.path!r} are negative")
        check(_is_ascending(file), f"the blocks of {file.path!r} do not follow each other inside of it")
    check(len({file.path for file in files}) == len(files), "a path twice")
    return files


def _is_ascending(file: FileEntry) -> bool:
    """Whether the blocks are places of the file, each after the one before."""
    ends = [Block(-1, -1, -1), *file.blocks, Block(file.bytes, 1 << 63, file.records + 1)]
    return all(
        one.offset < next_.offset and one.content < next_.content and one.record < next_.record
        for one, next_ in pairwise(ends)
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
        check(len(file.values) == len(partitioning), f"{file.path!r} has not one value per partition column")
    columns = [
        pa.array([file.values[at] for file in files], value_type(column.type))
        for at, column in enumerate(partitioning)
    ]
    return pa.StructArray.from_arrays(columns, names=[column.name for column in partitioning])


def _statistics(files: Sequence[FileEntry], columns: Sequence[Field]) -> pa.Array:
    known = [{column.name: column for column in file.statistics} for file in files]
    arrays = [_column_statistics([found.get(column.name) for found in known], column) for column in columns]
    return pa.StructArray.from_arrays(arrays, names=[column.name for column in columns])


def _column_statistics(found: Sequence[ColumnStatistics | None], column: Field) -> pa.Array:
    """One column's statistics per file; null for a file that has none."""
    fields = _statistics_fields(column)
    values = zip(*(one or [None] * len(ColumnStatistics._fields) for one in found), strict=True)
    by_name = dict(zip(ColumnStatistics._fields, values, strict=True))
    arrays = [pa.array(by_name[item.name], item.type) for item in fields]
    missing = pa.array([one is None for one in found])
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=missing)


def _statistics_fields(column: Field) -> list[pa.Field]:
    """Scalars have a smallest and a greatest value, lists have lengths."""
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
    """The stamps; snapshots of earlier versions have none."""
    if _STAMP not in table.column_names:
        return [""] * len(table)
    return [stamp or "" for stamp in table[_STAMP].cast(pa.string()).to_pylist()]


def _names(struct: pa.StructArray) -> list[str]:
    return [item.name for item in struct.type]


def _read_column(found: pa.StructArray, column: Field) -> list[ColumnStatistics | None]:
    expected = pa.struct(_statistics_fields(column))
    return [one and _column_of(column.name, one) for one in found.cast(expected).to_pylist()]


def _column_of(name: str, stored: dict[str, Any]) -> ColumnStatistics:
    check(isinstance(stored["nulls"], int), f"no null count of {name!r}")
    return ColumnStatistics(
        name,
        stored.get("min"),
        stored.get("max"),
        stored["nulls"],
        stored.get("min_length"),
        stored.get("max_length"),
    )


def check(valid: bool, problem: str) -> None:
    """Raise ValueError with the problem if there is one."""
    if not valid:
        raise ValueError(problem)
