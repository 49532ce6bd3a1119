"""Convert file entries to the file list of a snapshot and back, and store file lists in Parquet files.

A file list has one row for each file. In memory, the values of each partition column and the statistics of
each data column are separate columns of the file list, so that file lists can be concatenated. In the Parquet
file, two structs contain the values and the statistics; docs/format.md specifies the file. A snapshot's
Parquet file stores the complete file list, or only the files that the list of another snapshot lacks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import Column
from dask_tfrecord.codec.codecs import CODECS
from dask_tfrecord.dataset.snapshot.names import run_of_column_file
from dask_tfrecord.errors import WITHOUT_SNAPSHOT, SchemaError, TFRecordError
from dask_tfrecord.files.column_files import OFFSET
from dask_tfrecord.files.entry import (
    COLUMN_FILE_NAMES,
    Block,
    ColumnStatistics,
    FileEntry,
    is_inside,
    read_column_files,
    run_of,
)
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import value_type

# The names of the columns that column files also store. "scalars" stands for all columns of numbers,
# booleans, dates, times and text, except lists. With an empty tuple, column files store only the offsets of
# records.
Columnar: TypeAlias = tuple[str, ...] | Literal["scalars"]

_FIELDS = [pa.field("path", pa.string()), pa.field("bytes", pa.int64()), pa.field("crc32c", pa.uint32())]

# The name of the struct in a snapshot's Parquet file that describes the column file of each data file.
COLUMN_FILE = "columns"


def columnar_features(schema: Schema, columnar: Columnar) -> tuple[Column, ...]:
    """Return the features to store in column files. Ignore columns that the schema lacks."""
    if columnar == "scalars":
        fields = [item for item in schema.fields if _is_small(item)]
    else:
        fields = [item for item in schema.fields if item.name in columnar]
    return tuple(dict.fromkeys(feature for item in fields for feature in item.features))


def _is_small(item: Field) -> bool:
    """Return True if a column has one number, date or text for each record."""
    return all(not one.depth and one.kind != "bytes" for one in item.features)


def check_columnar(columnar: Columnar, schema: Schema, partition_on: Sequence[str]) -> None:
    """Raise SchemaError if column files cannot store the columns that ``columnar=`` names."""
    fields = {item.name: item for item in schema.fields}
    names = [name for name in fields if _is_small(fields[name])] if columnar == "scalars" else columnar
    for name in names:
        if name in partition_on:
            problem = "columnar= names a partition column, whose values are in the names of directories"
            raise SchemaError(problem, "leave it out of columnar=", feature=name)
        if name not in fields:
            known = ", ".join(map(repr, fields))
            raise SchemaError(
                f"columnar= names a column that does not exist; there are {known}", feature=name
            )
        features = fields[name].features
        if any(one.depth > 1 for one in features):
            raise SchemaError(
                f"columnar= names a column of {fields[name].type}, and column files hold no lists of lists",
                "leave it out of columnar=",
                feature=name,
            )
        if any(one.name == OFFSET for one in features):
            problem = "column files store the offsets of records under this name"
            advice = "rename the column, or pass a list without it as columnar="
            raise SchemaError(problem, advice, feature=name)


def parse_columnar(stored: Any) -> Columnar | None:
    """Parse the value of ``columnar=`` that a snapshot stores. Return None for an unknown value."""
    if isinstance(stored, list) and all(isinstance(name, str) for name in stored):
        return tuple(stored)
    return "scalars" if stored == "scalars" else None


# -- Column files in file lists ------------------------------------------------------------------------------


def column_file_columns(files: Sequence[FileEntry]) -> dict[str, pa.Array]:
    """Return the columns of a file list that describe column files. Without column files, return {}."""
    found = [file.columns for file in files]
    if not any(found):
        return {}
    return {
        name: pa.array([one and getattr(one, item.name) for one in found], item.type)
        for name, item in zip(COLUMN_FILE_NAMES, _FIELDS, strict=True)
    }


def stored_column_files(rows: pa.Table) -> pa.StructArray:
    """Return the struct with which a snapshot's Parquet file describes the column files of a file list."""
    arrays = [rows[name].combine_chunks() for name in COLUMN_FILE_NAMES]
    return pa.StructArray.from_arrays(arrays, fields=_FIELDS, mask=arrays[0].is_null())


def checked_column_files(stored: pa.ChunkedArray) -> dict[str, pa.Array]:
    arrays = stored.combine_chunks().cast(pa.struct(_FIELDS)).flatten()
    nulls = [array.is_null() for array in arrays]
    if not all(one.equals(nulls[0]) for one in nulls):
        raise ValueError("the size or the checksum of a column file is missing")
    for path in arrays[0].unique().drop_null().to_pylist():
        if run_of_column_file(path) is None or not is_inside(path):
            raise ValueError(f"the path {path!r} is not that of a column file")
    return dict(zip(COLUMN_FILE_NAMES, arrays, strict=True))


def listed_paths(rows: pa.Table) -> list[str]:
    """Return the paths of all data files and column files in a file list."""
    names = [name for name in ("path", COLUMN_FILE_NAMES[0]) if name in rows.column_names]
    return [path for name in names for path in rows[name].unique().drop_null().to_pylist()]


_BLOCK = pa.struct([pa.field(name, pa.int64(), nullable=False) for name in Block._fields])

_TABLE = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("crc32c", pa.uint32(), nullable=False),
        pa.field("blocks", pa.list_(_BLOCK), nullable=False),
    ]
)

# Names of the optional columns of a snapshot's Parquet file. The two structs are optional because
# Parquet cannot store a struct without fields.
_STAMP = "stamp"
_CODEC = "codec"
VERSION = "version"
_VALUES = "partition"
STATISTICS = "statistics"

_NULLS = pa.field("nulls", pa.int64())

# Stands for the statistics of a file that has no statistics.
_NO_STATISTICS: tuple[Any, ...] = (None,) * len(ColumnStatistics._fields)

# Matches every path that leads out of the dataset, and some other paths. `is_inside` then checks each match.
_SUSPICIOUS_PATH = r"(^|/)\.{0,2}(/|$)|[\\:\x00]"


def value_name(column: str) -> str:
    return f"{_VALUES}.{column}"


def statistics_name(column: str) -> str:
    return f"{STATISTICS}.{column}"


# -- Between file entries and the file list ------------------------------------------------------------------


def from_entries(files: Sequence[FileEntry], schema: Schema, partitioning: Sequence[Field]) -> pa.Table:
    """Convert file entries to the file list of a snapshot."""
    columns = {
        name: pa.array([getattr(file, name) for file in files], _TABLE.field(name).type)
        for name in ("path", "bytes", "records", "crc32c")
    }
    columns["blocks"] = _blocks(files)
    columns[_STAMP] = pa.array([file.stamp or None for file in files], pa.string())
    columns[_CODEC] = pa.array([file.codec for file in files], pa.string())
    for file in files:
        check(len(file.values) == len(partitioning), f"{file.path!r} needs one value per partition column")
    for at, item in enumerate(partitioning):
        values = [file.values[at] for file in files]
        columns[value_name(item.name)] = pa.array(values, value_type(item.type))
    columns |= column_file_columns(files)
    found = _by_column(files)
    for item in schema.leaves:
        if item.name in found:
            columns[statistics_name(item.name)] = _column_statistics(found[item.name], item)
    return pa.table(columns)


def to_entries(table: pa.Table, schema: Schema, partitioning: Sequence[Field]) -> tuple[FileEntry, ...]:
    """Convert a file list to file entries: the inverse of `from_entries`.

    Raise OverflowError, TypeError, ValueError or ArrowException if Python cannot represent a value in the
    file list.
    """
    required = [table[name].to_pylist() for name in _TABLE.names[:-1]]
    stamps = [stamp or "" for stamp in table[_STAMP].to_pylist()]
    values = [table[value_name(item.name)].to_pylist() for item in partitioning]
    return tuple(
        FileEntry(*row)
        for row in zip(
            *required,
            _rows(values, len(table)),
            read_blocks(table),
            read_statistics(table, schema),
            stamps,
            read_column_files(table),
            table[_CODEC].to_pylist(),
            strict=True,
        )
    )


def read_statistics(table: pa.Table, schema: Schema) -> Iterable[tuple[ColumnStatistics, ...]]:
    """Return, for each file of a file list, the statistics of the file's columns."""
    names = {statistics_name(item.name): item.name for item in schema.leaves}
    found = table.select([name for name in names if name in {*table.column_names}])
    statistics = [
        _read_statistics(column, names[name])
        for name, column in zip(found.column_names, found.columns, strict=True)
    ]
    return (tuple(one for one in of_file if one) for of_file in _rows(statistics, len(table)))


def _rows(columns: Sequence[Sequence[Any]], count: int) -> Iterable[tuple[Any, ...]]:
    return zip(*columns, strict=True) if columns else [()] * count


def _blocks(files: Sequence[FileEntry]) -> pa.Array:
    offsets = [0]
    for file in files:
        offsets.append(offsets[-1] + len(file.blocks))
    blocks = [block for file in files for block in file.blocks]
    numbers = [pa.array([block[at] for block in blocks], pa.int64()) for at in range(len(Block._fields))]
    structs = pa.StructArray.from_arrays(numbers, fields=list(_BLOCK))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs).cast(_TABLE.field("blocks").type)


def read_blocks(table: pa.Table) -> Iterable[tuple[Block, ...]]:
    numbers, ends = _block_numbers(table)
    blocks = list(map(Block, *(number.tolist() for number in numbers)))
    starts = [0, *ends[:-1].tolist()]
    return (tuple(blocks[start:end]) for start, end in zip(starts, ends.tolist(), strict=False))


def _block_numbers(table: pa.Table) -> tuple[list[npt.NDArray[np.int64]], npt.NDArray[np.int64]]:
    """Return the three fields of all blocks as arrays, and the index at which the blocks of each file end."""
    lists = table["blocks"].combine_chunks()
    fields = lists.flatten().flatten()
    check(not any(field.null_count for field in fields), "a number of a block is null")
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    return [field.to_numpy() for field in fields], np.cumsum(lengths, dtype=np.int64)


def _by_column(files: Sequence[FileEntry]) -> dict[str, Sequence[ColumnStatistics | None]]:
    """Map each column to its statistics in each file. A file without statistics of the column has None."""
    names = [tuple(column.name for column in file.statistics) for file in files]
    if len({*names}) == 1:  # always true for the files of one write
        return dict(zip(names[0], zip(*(file.statistics for file in files), strict=True), strict=True))
    of_files = [{column.name: column for column in file.statistics} for file in files]
    return {name: [of_file.get(name) for of_file in of_files] for name in {*chain.from_iterable(names)}}


def _column_statistics(found: Sequence[ColumnStatistics | None], column: Field) -> pa.Array:
    fields = _statistics_fields(column)
    mask = pa.array([one is None for one in found]) if None in found else None
    known = zip(*(one or _NO_STATISTICS for one in found), strict=True)
    values = dict(zip(ColumnStatistics._fields, known, strict=True))
    arrays = [pa.array(values[item.name], item.type) for item in fields]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _statistics_fields(column: Field) -> list[pa.Field]:
    """Return the fields of a column's statistics: the null count, and bounds of values or of list lengths."""
    if column.depth:
        return [_NULLS, pa.field("min_length", pa.int64()), pa.field("max_length", pa.int64())]
    type_ = value_type(column.type)
    return [_NULLS, pa.field("min", type_), pa.field("max", type_)]


def _read_statistics(column: pa.ChunkedArray, name: str) -> list[ColumnStatistics | None]:
    found = column.combine_chunks()
    fields = {item.name: found.field(item.name).to_pylist() for item in found.type}
    nothing = [None] * len(found)
    columns = [fields.get(each, nothing) for each in ColumnStatistics._fields[1:]]
    statistics: list[ColumnStatistics | None] = [*map(ColumnStatistics, repeat(name), *columns)]
    for at in np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False)).tolist():
        statistics[at] = None
    return statistics


def with_schema(table: pa.Table, own: Schema, schema: Schema) -> pa.Table:
    """Convert the statistics of a file list to the types of a schema with more columns or wider types.

    ``own`` is the schema of the records in the files. All columns that ``own`` lacks are null in these
    records.
    """
    types = {item.name: item.type for item in own.leaves}
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for item in schema.leaves:
        name, fields = statistics_name(item.name), _statistics_fields(item)
        if pa.types.is_null(types.get(item.name, pa.null())) and not pa.types.is_null(item.type):
            nothing = pa.nulls(len(table))
            arrays = [table["records"].combine_chunks(), *(nothing.cast(one.type) for one in fields[1:])]
            columns[name] = pa.chunked_array([pa.StructArray.from_arrays(arrays, fields=fields)])
        elif name in columns:
            columns[name] = columns[name].cast(pa.struct(fields))
    return pa.table(columns)


# -- Between the file list and the columns of the Parquet file -----------------------------------------------


def to_stored(table: pa.Table, schema: Schema, partitioning: Sequence[Field]) -> pa.Table:
    columns = {name: table[name] for name in _TABLE.names}
    for name in (_STAMP, _CODEC, VERSION):
        if name in table.column_names and table[name].null_count < len(table):
            columns[name] = table[name]
    known = {name for name in table.column_names if table[name].null_count < len(table)}
    if COLUMN_FILE_NAMES[0] in known:
        columns[COLUMN_FILE] = stored_column_files(table)
    structs = {
        _VALUES: {item.name: value_name(item.name) for item in partitioning},
        STATISTICS: {
            item.name: name for item in schema.leaves if (name := statistics_name(item.name)) in known
        },
    }
    for struct, names in structs.items():
        if names:
            arrays = [table[name].combine_chunks() for name in names.values()]
            columns[struct] = pa.StructArray.from_arrays(arrays, names=[*names])
    return pa.table(columns)


def from_stored(stored: pa.Table, schema: Schema, partitioning: Sequence[Field], number: int) -> pa.Table:
    """Check the untrusted columns of a snapshot's Parquet file, and convert them to a file list.

    ``number`` is the version of the snapshot. Unknown columns are ignored. Raise TypeError, ValueError,
    KeyError or ArrowException if `to_stored` cannot have returned the columns.
    """
    required = stored.select(_TABLE.names).cast(_TABLE)
    columns = {name: required[name] for name in _TABLE.names}
    for name in (_STAMP, _CODEC):
        columns[name] = pa.chunked_array([pa.nulls(len(stored), pa.string())])
        if name in stored.column_names:
            columns[name] = stored[name].cast(pa.string())
    unknown = {*columns[_CODEC].unique().to_pylist()}.difference(CODECS, {None, "none"})
    check(not unknown, f"the codec {min(unknown, default='')!r} is not known")
    columns[VERSION] = _checked_versions(stored, number)
    if partitioning:
        found = stored[_VALUES].combine_chunks()
        for item in partitioning:
            columns[value_name(item.name)] = found.field(item.name).cast(value_type(item.type))
    if COLUMN_FILE in stored.column_names:
        columns |= checked_column_files(stored[COLUMN_FILE])
    if STATISTICS in stored.column_names:
        found = stored[STATISTICS].combine_chunks()
        items = schema.select([field.name for field in found.type]).fields
        for at, item in enumerate(items):
            columns[statistics_name(item.name)] = _checked_statistics(found.field(at), item)
    table = pa.table(columns)
    table.validate(full=True)
    _check_files(table)
    return table


def _checked_versions(stored: pa.Table, number: int) -> pa.ChunkedArray | pa.Array:
    """Return, for each file, the version that added the newest row of the file.

    The stored version is null for files that the snapshot itself adds. If the column is missing, because the
    program that wrote the snapshot did not know the column, all files count as added by the snapshot.
    """
    if VERSION not in stored.column_names:
        return pa.repeat(pa.scalar(number, pa.int64()), len(stored))
    versions = pc.fill_null(stored[VERSION].cast(pa.int64()), number)
    bounds = pc.min_max(versions).as_py()
    is_valid = not len(versions) or (bounds["min"] > 0 and bounds["max"] <= number)
    check(is_valid, "the version of a file is later than the snapshot")
    return versions


def _checked_statistics(found: pa.StructArray, column: Field) -> pa.StructArray:
    type_ = pa.struct(_statistics_fields(column))
    statistics = found if found.type == type_ else found.cast(type_)
    if statistics.field("nulls").null_count:
        unknown = pc.and_(statistics.is_valid(), statistics.field("nulls").is_null())
        check(not pc.any(unknown).as_py(), f"the statistics of {column.name!r} have no null count")
    return statistics


def _check_files(table: pa.Table) -> None:
    paths = table["path"]
    for path in paths.filter(pc.match_substring_regex(paths, _SUSPICIOUS_PATH)).to_pylist():
        check(is_inside(path), f"the path {path!r} is not inside the dataset")
    check_unique(paths)
    for name in ("bytes", "records"):
        sizes = table[name].to_numpy()
        for at in np.flatnonzero(sizes < 0)[:1].tolist():
            raise ValueError(f"a size of {paths[at].as_py()!r} is negative")
    for at in _files_with_bad_blocks(table)[:1].tolist():
        raise ValueError(f"the blocks of {paths[at].as_py()!r} are not in ascending order inside the file")


def check_unique(paths: pa.ChunkedArray) -> None:
    check(len(paths.unique()) == len(paths), "several files have the same path")


def _files_with_bad_blocks(table: pa.Table) -> npt.NDArray[np.intp]:
    """Return the indices of the files with blocks outside the file, or not in ascending order."""
    numbers, ends = _block_numbers(table)
    files = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    is_last = np.ones(len(files), bool)
    is_last[:-1] = files[:-1] != files[1:]
    offsets, _, records = numbers
    bad = is_last & (
        (offsets >= table["bytes"].to_numpy()[files]) | (records > table["records"].to_numpy()[files])
    )
    for values in numbers:
        bad |= values < 0
        bad[:-1] |= ~is_last[:-1] & (values[1:] <= values[:-1])
    found: npt.NDArray[np.intp] = files[bad]
    return found


def check(valid: bool, problem: str) -> None:
    if not valid:
        raise ValueError(problem)


def has_no_nulls(rows: pa.Table, name: str) -> bool:
    """Return True if the statistics of all files prove that a column has no nulls."""
    if not len(rows):
        return True
    if statistics_name(name) not in rows.column_names:
        return False
    statistics = rows[statistics_name(name)].combine_chunks()
    return not statistics.null_count and pc.max(statistics.field("nulls")).as_py() == 0


# An append stores only the added files while they make up at most this fraction of the files in the base.
DELTA_PART = 0.1


@dataclass(frozen=True)
class Base:
    """The Parquet file of a snapshot with a complete file list, to which later snapshots add files.

    The checksum distinguishes the base from another snapshot of the same version.
    """

    version: int
    crc32c: int


class Stored(NamedTuple):
    """How the file list of a snapshot is stored.

    ``path`` is the path of the Parquet file, for error messages. The next append may add files to the file
    list of ``base``. ``added`` contains the files of the snapshot that the file list of ``base`` lacks.
    """

    path: str
    base: Base
    added: pa.Table

    def is_delta(self, files: pa.Table) -> bool:
        """Return True if few files were added, so that a snapshot of ``files`` may store only these files."""
        return len(self.added) <= DELTA_PART * (len(files) - len(self.added))


def concatenate(tables: list[pa.Table]) -> pa.Table:
    """Concatenate tables. If a table lacks a column, the column is null in the rows of this table."""
    return pa.concat_tables(tables, promote_options="default")


def rows_of_run(rows: pa.Table, run: str) -> pa.Table:
    candidates = rows.filter(pc.match_substring(rows["path"], f"part-{run}-"))
    return candidates.filter(
        pa.array([run_of(path) == run for path in candidates["path"].to_pylist()], pa.bool_())
    )


# The path and the CRC-32C of a file, which distinguish the file from all others.
Identity: TypeAlias = tuple[str, int]


def identities(rows: pa.Table) -> list[Identity]:
    return [*zip(rows["path"].to_pylist(), rows["crc32c"].to_pylist(), strict=True)]


def positions(files: Iterable[Identity], rows: pa.Table) -> pa.Array:
    """Return the index of each file in a file list, or null for a file that is not in the list."""
    paths, checksums = zip(*files, strict=True) if (files := [*files]) else ((), ())
    wanted = pa.table({"path": pa.array(paths, pa.string()), "crc32c": pa.array(checksums, pa.uint32())})
    return positions_of_rows(wanted, rows).combine_chunks()


def positions_of_rows(files: pa.Table, rows: pa.Table) -> pa.ChunkedArray:
    """Return the index in ``rows`` of each file in ``files``, or null for a file that ``rows`` lacks."""
    found = pc.index_in(files["path"], rows["path"])  # no two files of a list have the same path
    return pc.if_else(pc.equal(rows["crc32c"].take(found), files["crc32c"]), found, None)


def difference(files: pa.Table, rows: pa.Table) -> pa.Table:
    """Return the files in ``files`` that ``rows`` lacks."""
    return files.filter(positions_of_rows(files, rows).is_null())


def with_known_versions(rows: pa.Table, known: pa.Table) -> pa.Table:
    """Copy the versions of files in ``known`` to the same files in ``rows``.

    All other files get a null version: they count as added by the snapshot that will list them.
    """
    versions = known[VERSION].take(positions_of_rows(rows, known))
    return rows.select([name for name in rows.column_names if name != VERSION]).append_column(
        VERSION, versions
    )


def partition_columns(rows: pa.Table) -> pa.Table:
    """Return the partition columns of a file list under their own names, with one row for each file."""
    start = value_name("")
    names = [name for name in rows.column_names if name.startswith(start)]
    return rows.select(names).rename_columns([name.removeprefix(start) for name in names])


def with_values(rows: pa.Table, values: Mapping[str, pa.Array]) -> pa.Table:
    """Return a file list with these partition columns instead of its own."""
    rows = rows.drop_columns([*map(value_name, partition_columns(rows).column_names)])
    for name, column in values.items():
        rows = rows.append_column(value_name(name), column)
    return rows


def by_directory(rows: pa.Table) -> pa.Table:
    """Make the files of each directory adjacent in a file list. Within a directory, keep their order."""
    paths = rows["path"]
    # A regular expression would take three times as long.
    parents = pc.list_element(pc.split_pattern(paths, "/", max_splits=1, reverse=True), 0)
    directories = pc.if_else(pc.match_substring(paths, "/"), parents, "")
    codes = directories.combine_chunks().dictionary_encode().indices.to_numpy()
    if bool(np.all(codes[1:] >= codes[:-1])):
        return rows
    return rows.take(pa.array(np.argsort(codes, kind="stable")))


def invalid_snapshot(error: Exception, path: str) -> TFRecordError:
    remedy = WITHOUT_SNAPSHOT
    return TFRecordError(f"not a valid snapshot ({error})", remedy, path=path)
