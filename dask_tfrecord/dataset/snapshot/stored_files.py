"""Convert file entries to the file list of a snapshot and back, and store file lists in Parquet files.

In memory, the file list has a separate column for the values of each partition column and for the statistics
of each data column. Separate columns allow file lists to be concatenated. In the Parquet file, one struct
column contains all partition values, and another struct column contains all statistics (see docs/format.md).
A Parquet file stores one list of the log of entries (see `entry_log`).
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import Column
from dask_tfrecord.codec.codecs import CODECS
from dask_tfrecord.dataset.names import run_of_column_file
from dask_tfrecord.dataset.snapshot.entry_log import PLACE, ListRows, places_from, ranks
from dask_tfrecord.errors import WITHOUT_SNAPSHOT, SchemaError, TFRecordError
from dask_tfrecord.files.column_files import OFFSET
from dask_tfrecord.files.entry import (
    COLUMN_FILE,
    COLUMN_FILE_TYPE,
    Block,
    ColumnStatistics,
    FileEntry,
    is_inside,
    read_column_files,
    run_of,
)
from dask_tfrecord.files.file_list import (
    STATISTICS,
    VERSION,
    FileList,
    encoded_paths,
    statistics_name,
    value_name,
)
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import value_type

# The columns that are stored in column files as well as in the data files: a tuple of names, or one of three
# words. If the tuple is empty, column files store only the offsets of the records. "scalars" stands for all
# columns of numbers, booleans, dates, times and text, except lists. "auto" stands for the small ones of these
# columns in each large data file. "never" stands for no column files.
Columnar: TypeAlias = tuple[str, ...] | Literal["auto", "scalars", "never"]


def columnar_features(schema: Schema, columnar: Columnar) -> tuple[Column, ...]:
    """Return the features to store in column files. Ignore columns that are not in the schema."""
    if isinstance(columnar, str):
        fields = [item for item in schema.fields if _is_scalar(item)]
    else:
        fields = [item for item in schema.fields if item.name in columnar]
    features = dict.fromkeys(feature for item in fields for feature in item.features)
    return tuple(one for one in features if one.name != OFFSET)


def _is_scalar(item: Field) -> bool:
    """Return True if a column contains no lists and no binary data."""
    return all(not one.depth and one.kind != "bytes" for one in item.features)


def check_columnar(columnar: Columnar, schema: Schema, partition_on: Sequence[str]) -> None:
    """Raise SchemaError if column files cannot store the columns that ``columnar=`` names."""
    fields = {item.name: item for item in schema.fields}
    names = [name for name in fields if _is_scalar(fields[name])] if columnar == "scalars" else columnar
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


def parse_columnar(stored: Any) -> Columnar:
    """Parse the value of ``columnar=`` that a snapshot stores. Return "auto" for an unknown value."""
    if isinstance(stored, list) and all(isinstance(name, str) for name in stored):
        return tuple(stored)
    return stored if stored in ("scalars", "never") else "auto"


# -- Between file entries and the file list ------------------------------------------------------------------

_BLOCK = pa.struct([pa.field(name, pa.int64(), nullable=False) for name in Block._fields])

# The columns that every snapshot's Parquet file contains.
_TABLE = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("crc32c", pa.uint32(), nullable=False),
        pa.field("blocks", pa.list_(_BLOCK), nullable=False),
    ]
)

# The name of the struct that stores the partition values in a snapshot's Parquet file. The structs for
# partition values and statistics are optional, because Parquet cannot store a struct without fields.
_VALUES = "partition"

_NULLS = pa.field("nulls", pa.int64())

# The names of the lower and upper bounds in statistics.
_BOUNDS = (("min", "max"), ("min_length", "max_length"))

# Matches every path that leads out of the dataset, and some valid paths. `is_inside` checks each path that
# matches this pattern.
_SUSPICIOUS_PATH = r"(^|/)\.{0,2}(/|$)|[\\:\x00]"


def from_entries(files: Sequence[FileEntry], schema: Schema, partitioning: Sequence[Field]) -> FileList:
    """Convert file entries to the file list of a snapshot."""
    columns = {
        item.name: pa.array([getattr(file, item.name) for file in files], item.type) for item in _TABLE
    }
    columns["path"] = columns["path"].cast(pa.binary())
    columns["stamp"] = pa.array([file.stamp or None for file in files], pa.string())
    columns["codec"] = pa.array([file.codec for file in files], pa.string())
    for file in files:
        check(len(file.values) == len(partitioning), f"{file.path!r} needs one value per partition column")
    for at, item in enumerate(partitioning):
        values = [file.values[at] for file in files]
        columns[value_name(item.name)] = pa.array(values, value_type(item.type))
    if any(file.columns for file in files):
        columns[COLUMN_FILE] = pa.array([file.columns for file in files], COLUMN_FILE_TYPE)
    found = _by_column(files)
    for item in schema.leaves:
        if item.name in found:
            columns[statistics_name(item.name)] = _column_statistics(found[item.name], item)
    return FileList(pa.table(columns))


def to_entries(files: FileList, schema: Schema, partitioning: Sequence[Field]) -> tuple[FileEntry, ...]:
    """Convert a file list to file entries. `from_entries` is the inverse function.

    Raise OverflowError, TypeError, ValueError or ArrowException if Python cannot represent a value in the
    file list.
    """
    values = [files[value_name(item.name)].to_pylist() for item in partitioning]
    columns = (
        files.names,
        *(files[name].to_pylist() for name in ("bytes", "records", "crc32c")),
        _rows(values, len(files)),
        read_blocks(files),
        read_statistics(files, schema),
        (stamp or "" for stamp in files["stamp"].to_pylist()),
        read_column_files(files),
        files["codec"].to_pylist(),
    )
    return tuple(map(FileEntry, *columns))


def read_statistics(files: FileList, schema: Schema) -> Iterable[tuple[ColumnStatistics, ...]]:
    """Return the column statistics of each file in a file list."""
    names = [item.name for item in schema.leaves if statistics_name(item.name) in files]
    statistics = [_read_statistics(files[statistics_name(name)], name) for name in names]
    return (tuple(one for one in of_file if one) for of_file in _rows(statistics, len(files)))


def _rows(columns: Sequence[Sequence[Any]], count: int) -> Iterable[tuple[Any, ...]]:
    return zip(*columns, strict=True) if columns else [()] * count


def read_blocks(files: FileList) -> Iterable[tuple[Block, ...]]:
    numbers, ends = _block_numbers(files)
    blocks = list(map(Block, *(number.tolist() for number in numbers)))
    starts = [0, *ends[:-1].tolist()]
    return (tuple(blocks[start:end]) for start, end in zip(starts, ends.tolist(), strict=False))


def _block_numbers(files: FileList) -> tuple[list[npt.NDArray[np.int64]], npt.NDArray[np.int64]]:
    """Return the three fields of all blocks as arrays, and the index at which the blocks of each file end."""
    lists = files["blocks"].combine_chunks()
    fields = lists.flatten().flatten()
    check(not any(field.null_count for field in fields), "a number of a block is null")
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    return [field.to_numpy() for field in fields], np.cumsum(lengths, dtype=np.int64)


def _by_column(files: Sequence[FileEntry]) -> dict[str, Sequence[ColumnStatistics | None]]:
    """Map each column to its statistics in each file. For a file without statistics of the column, the value
    is None.
    """
    names = [tuple(column.name for column in file.statistics) for file in files]
    if len({*names}) == 1:  # the files of one write always have statistics of the same columns
        return dict(zip(names[0], zip(*(file.statistics for file in files), strict=True), strict=True))
    of_files = [{column.name: column for column in file.statistics} for file in files]
    return {name: [of_file.get(name) for of_file in of_files] for name in {*chain.from_iterable(names)}}


def _column_statistics(found: Sequence[ColumnStatistics | None], column: Field) -> pa.Array:
    fields = _statistics_fields(column)
    values = attrgetter(*(item.name for item in fields))
    return pa.array([one and values(one) for one in found], pa.struct(fields))


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


def with_schema(files: FileList, own: Schema, schema: Schema) -> FileList:
    """Convert the statistics of a file list to the types of a schema with more columns or wider types.

    ``own`` is the schema of the records in the files. Columns that are in ``schema`` but not in ``own`` are
    null in the records.
    """
    types = {item.name: item.type for item in own.leaves}
    columns = {}
    for item in schema.leaves:
        name, fields = statistics_name(item.name), _statistics_fields(item)
        if pa.types.is_null(types.get(item.name, pa.null())) and not pa.types.is_null(item.type):
            nothing = pa.nulls(len(files))
            arrays = [files["records"].combine_chunks(), *(nothing.cast(one.type) for one in fields[1:])]
            columns[name] = pa.StructArray.from_arrays(arrays, fields=fields)
        elif name in files:
            columns[name] = files[name].cast(pa.struct(fields))
    return files.with_columns(columns)


# -- Between the file list and the columns of the Parquet file -----------------------------------------------


def to_stored(
    rows: ListRows, schema: Schema, partitioning: Sequence[Field], number: int, codec: str, start: int
) -> pa.Table:
    """Convert the content of a list to the columns of its Parquet file. `from_stored` is the inverse.

    The removed paths follow the added files. A column, or a field of statistics, is left out if its values
    follow from others. ``number`` is the version that stores the list, ``codec`` is that of files without
    their own, and ``start`` is the place of the first file.
    """
    files = rows.added
    columns = {name: files[name] for name in _TABLE.names}
    columns["path"] = columns["path"].cast(pa.string())
    if len(files) and _is_usual(files, "blocks", first_blocks(files)):
        del columns["blocks"]
    implied = {
        "codec": pa.repeat(codec, len(files)),
        "stamp": pa.nulls(len(files), pa.string()),
        VERSION: pa.repeat(pa.scalar(number, pa.int64()), len(files)),
        COLUMN_FILE: pa.nulls(len(files), COLUMN_FILE_TYPE),
        PLACE: places_from(start, len(files)),
    }
    columns |= {name: files[name] for name, usual in implied.items() if not _is_usual(files, name, usual)}
    structs = {
        _VALUES: {item.name: files[value_name(item.name)].combine_chunks() for item in partitioning},
        STATISTICS: {
            item.name: _without_implied(files[name].combine_chunks())
            for item in schema.leaves
            if (name := statistics_name(item.name)) in files and files[name].null_count < len(files)
        },
    }
    for struct, found in structs.items():
        if found and len(files):
            columns[struct] = pa.StructArray.from_arrays([*found.values()], names=[*found])
    fields = [
        pa.field(name, column.type, nullable=name not in _TABLE.names) for name, column in columns.items()
    ]
    table = pa.table(columns, schema=pa.schema(fields))
    if not len(rows.removed):
        return table
    gone = {item.name: pa.nulls(len(rows.removed), item.type) for item in fields}
    gone |= {
        item.name: pa.array([[] if item.name == "blocks" else 0] * len(rows.removed), item.type)
        for item in fields
        if item.name in _TABLE.names and item.name != "path"
    }
    return pa.concat_tables([table, pa.table({**gone, "path": rows.removed.cast(pa.string())}, table.schema)])


def _is_usual(files: FileList, name: str, usual: pa.Array) -> bool:
    return name not in files or files[name].combine_chunks().equals(usual)


def first_blocks(files: FileList) -> pa.Array:
    """Return the blocks of files that have a single block, or none if they have no records.

    The block begins after the header of the file. The list is empty if the codec is unknown.
    """
    codecs = files["codec"].combine_chunks()
    offsets = pc.if_else(pc.equal(codecs, "gzip"), 10, pc.if_else(pc.equal(codecs, "zlib"), 2, 0))
    has_block = pc.and_(pc.greater(files["records"].combine_chunks(), 0), codecs.is_valid())
    zeros = pa.array(np.zeros(pc.sum(has_block).as_py() or 0, np.int64))
    values = pa.StructArray.from_arrays(
        [offsets.filter(has_block).cast(pa.int64()), zeros, zeros], fields=[*_BLOCK]
    )
    ends = np.cumsum(has_block.to_numpy(zero_copy_only=False), dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int32()), values)


def _without_implied(statistics: pa.StructArray) -> pa.StructArray:
    """Leave out bounds of statistics that are all null, upper bounds that equal the lower ones, and null
    counts that are all 0. Keep at least one field, because Parquet cannot store a struct without fields.
    """
    found = {item.name: statistics.field(item.name) for item in statistics.type}
    known = statistics.is_valid()
    for low, high in _BOUNDS:
        if low in found and found[low].filter(known).equals(found[high].filter(known)):
            del found[high]
            if found[low].null_count == len(known):
                del found[low]
    if len(found) > 1 and not pc.any(pc.not_equal(found["nulls"].filter(known), 0)).as_py():
        del found["nulls"]
    return pa.StructArray.from_arrays([*found.values()], names=[*found], mask=pc.invert(known))


def from_stored(
    stored: pa.Table,
    schema: Schema,
    partitioning: Sequence[Field],
    number: int,
    *,
    codec: str = "none",
    start: int = 0,
    removed: int = 0,
    names: Collection[str] | None = None,
) -> ListRows:
    """Check the untrusted columns of a list's Parquet file, and convert them to its content.

    ``number`` is the version that stored the list, and ``removed`` is the number of removed paths. ``codec``
    and ``start`` are those of `to_stored`. Unknown columns are ignored. If ``names`` is given, only the
    statistics of these columns are converted. Raise TypeError, ValueError, KeyError or ArrowException if
    `to_stored` cannot have returned the columns.
    """
    count = len(stored) - removed
    check(count >= 0, "it removes more files than it has rows")
    gone = stored["path"].slice(count).cast(pa.string()).cast(pa.binary()).combine_chunks()
    check(not gone.null_count, "a removed path is null")
    stored = stored.slice(0, count)
    required = [item for item in _TABLE if item.name != "blocks" or "blocks" in stored.column_names]
    found = stored.select([item.name for item in required]).cast(pa.schema(required))
    columns = dict(zip(found.column_names, found.columns, strict=True))
    columns["path"] = columns["path"].cast(pa.binary())
    columns["stamp"] = pa.nulls(count, pa.string())
    if "stamp" in stored.column_names:
        columns["stamp"] = stored["stamp"].cast(pa.string())
    columns["codec"] = pa.repeat(codec, count)
    if "codec" in stored.column_names:
        columns["codec"] = stored["codec"].cast(pa.string())
    unknown = {*columns["codec"].unique().to_pylist()}.difference(CODECS, {None, "none"})
    check(not unknown, f"the codec {min(unknown, default='')!r} is not known")
    if "blocks" not in columns:
        columns["blocks"] = first_blocks(FileList(pa.table(columns)))
    columns[VERSION] = _checked_versions(stored, number)
    columns[PLACE] = _checked_places(stored, start)
    if partitioning and count:
        values = stored[_VALUES].combine_chunks()
        for item in partitioning:
            columns[value_name(item.name)] = values.field(item.name).cast(value_type(item.type))
    elif partitioning:
        columns |= {value_name(item.name): pa.nulls(0, value_type(item.type)) for item in partitioning}
    if COLUMN_FILE in stored.column_names:
        columns[COLUMN_FILE] = _checked_column_files(stored[COLUMN_FILE])
    if STATISTICS in stored.column_names and count:
        structs = stored[STATISTICS].combine_chunks()
        items = schema.select([field.name for field in structs.type]).fields
        for at, item in enumerate(items):
            if names is None or item.name in names:
                columns[statistics_name(item.name)] = _checked_statistics(structs.field(at), item)
    files = FileList(pa.table(columns))
    files.rows.validate(full=True)
    _check_files(files)
    return ListRows(files, gone)


def _checked_column_files(stored: pa.ChunkedArray) -> pa.StructArray:
    arrays = stored.combine_chunks().cast(COLUMN_FILE_TYPE).flatten()
    nulls = [array.is_null() for array in arrays]
    if not all(one.equals(nulls[0]) for one in nulls) or arrays[3].flatten().null_count:
        raise ValueError("the size, the checksum or a feature of a column file is missing")
    for path in arrays[0].unique().drop_null().to_pylist():
        if run_of_column_file(path) is None or not is_inside(path):
            raise ValueError(f"the path {path!r} is not that of a column file")
    return pa.StructArray.from_arrays(arrays, fields=[*COLUMN_FILE_TYPE], mask=nulls[0])


def _checked_versions(stored: pa.Table, number: int) -> pa.ChunkedArray | pa.Array:
    """For each file, return the newest version that added a row of the file.

    The stored version is null for files that the version itself adds. If the Parquet file has no column of
    versions, all files get the version of the list.
    """
    if VERSION not in stored.column_names:
        return pa.repeat(pa.scalar(number, pa.int64()), len(stored))
    versions = pc.fill_null(stored[VERSION].cast(pa.int64()), number)
    bounds = pc.min_max(versions).as_py()
    is_valid = not len(versions) or (bounds["min"] > 0 and bounds["max"] <= number)
    check(is_valid, "the version of a file is later than the snapshot")
    return versions


def _checked_places(stored: pa.Table, start: int) -> pa.ChunkedArray | pa.Array:
    if PLACE not in stored.column_names:
        check(start >= 0, "next_place is too small")
        return places_from(start, len(stored))
    places = stored[PLACE].cast(pa.int64())
    is_valid = not places.null_count and (pc.min(places).as_py() or 0) >= 0
    check(is_valid, "the place of a file is null or negative")
    return places


def _checked_statistics(found: pa.StructArray, column: Field) -> pa.StructArray:
    """Convert the statistics of a column, and add the fields that are left out (see `_without_implied`)."""
    fields = _statistics_fields(column)
    known, mask = {item.name: found.field(item.name) for item in found.type}, found.is_null()
    zeros = pa.array(np.zeros(len(found), np.int64))
    known.setdefault("nulls", zeros)
    for low, high in _BOUNDS:
        nothing = pa.nulls(len(found))
        known.setdefault(high, known.setdefault(low, nothing))
    arrays = [known[item.name].cast(item.type) for item in fields]
    unknown = pc.and_(pc.invert(mask), arrays[0].is_null())
    check(not pc.any(unknown).as_py(), f"the statistics of {column.name!r} have no null count")
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _check_files(files: FileList) -> None:
    for path in files.filter(pc.match_substring_regex(files["path"], _SUSPICIOUS_PATH)).paths:
        check(is_inside(path), f"the path {path!r} is not inside the dataset")
    check(_have_distinct_paths(files), "several files have the same path")
    for name in ("bytes", "records"):
        for path in files.take(np.flatnonzero(files[name].to_numpy() < 0)[:1]).paths:
            raise ValueError(f"a size of {path!r} is negative")
    for path in files.take(_files_with_bad_blocks(files)[:1]).paths:
        raise ValueError(f"the blocks of {path!r} are not in ascending order inside the file")


def _have_distinct_paths(files: FileList) -> bool:
    """Return True if no two files have the same path. This is fast if the paths ascend in each directory."""
    paths = files["path"].combine_chunks()
    is_end = pc.less_equal(paths[1:], paths[:-1]).to_numpy(zero_copy_only=False)
    for values in map(ranks, files.partition_columns.columns):
        is_end = is_end | (values[1:] != values[:-1])
    ends = np.flatnonzero(is_end)
    if len(ends) < len(paths) // 8:
        firsts, lasts = paths.take(np.append(0, ends + 1)), paths.take(np.append(ends, len(paths) - 1))
        order = pc.sort_indices(firsts)
        if pc.all(pc.less(lasts.take(order)[:-1], firsts.take(order)[1:]), min_count=0).as_py():
            return True
    return len(paths.unique()) == len(paths)


def _files_with_bad_blocks(files: FileList) -> npt.NDArray[np.intp]:
    """Return the indices of the files whose blocks are outside the file or not in ascending order."""
    numbers, ends = _block_numbers(files)
    file_of = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    is_last = np.ones(len(file_of), bool)
    is_last[:-1] = file_of[:-1] != file_of[1:]
    sizes, counts = (files[name].to_numpy()[file_of] for name in ("bytes", "records"))
    offsets, _, records = numbers
    bad = is_last & ((offsets >= sizes) | (records > counts))
    for values in numbers:
        bad |= values < 0
        bad[:-1] |= ~is_last[:-1] & (values[1:] <= values[:-1])
    found: npt.NDArray[np.intp] = file_of[bad]
    return found


def check(valid: bool, problem: str) -> None:
    if not valid:
        raise ValueError(problem)


def listed_paths(files: FileList) -> list[str]:
    """Return the paths of all data files and column files in the file list of a version."""
    if COLUMN_FILE not in files:
        return files.paths
    column_files = pc.struct_field(files[COLUMN_FILE], "path")
    return [*files.paths, *column_files.unique().drop_null().to_pylist()]


def rows_of_run(files: FileList, run: str) -> FileList:
    candidates = files.filter(pc.match_substring(files["path"], f"part-{run}-"))
    return candidates.filter(np.array([run_of(path) == run for path in candidates.paths], bool))


# A file's path and CRC-32C, which together identify it.
Identity: TypeAlias = tuple[str, int]


def identities(files: FileList) -> list[Identity]:
    return [*zip(files.names, files["crc32c"].to_pylist(), strict=True)]


def positions(files: Iterable[Identity], listed: FileList) -> pa.Array:
    """Return the index of each file in a file list, or null if it is not there."""
    paths, checksums = zip(*files, strict=True) if (files := [*files]) else ((), ())
    wanted = pa.table({"path": encoded_paths(paths), "crc32c": pa.array(checksums, pa.uint32())})
    return listed.positions(FileList(wanted)).combine_chunks()


def with_known_versions(files: FileList, known: FileList) -> FileList:
    """For each file that is in both lists, copy the version from ``known`` to ``files``.

    All other files get a null version, which stands for the version of the snapshot that will list them.
    """
    return files.with_columns({VERSION: known[VERSION].take(known.positions(files))})


def invalid_snapshot(error: Exception, path: str) -> TFRecordError:
    remedy = WITHOUT_SNAPSHOT
    return TFRecordError(f"not a valid snapshot ({error})", remedy, path=path)
