"""Define what a snapshot stores about a data file, such as its name, size, blocks and statistics.

Statistics describe the stored values, so they are true for the values that a read returns: those of a float64
column use the stored 32-bit floats. NaN never counts as the smallest or the greatest value.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, NamedTuple

import pyarrow as pa

from dask_tfrecord.codec import KIND_TYPES, Statistics
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.file_list import FileList
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.storage.paths import name_of

PART_NAME = re.compile(
    r"part-(?P<run>[0-9a-f]{32})-(?P<index>\d{5,})-of-(?P<count>\d{5,})(-\d{5,})?(-[^/]+)?"
    r"\.tfrecord(\.\w+)?"
)

# The pattern and the size limit of a label that a user adds to file names. A file name with a valid label is
# valid on every store and in every shell. The limit keeps the temporary name of an unfinished file within the
# 255 bytes that most filesystems allow.
_LABEL = re.compile(r"\w[\w.=+@-]*")
_LABEL_BYTES = 100


def part_name(
    run: str, index: int, count: int, *, number: int | None = None, label: str = "", suffix: str = ""
) -> str:
    """Return the name of a data file of partition ``index``, where ``count`` is the number of partitions.

    Files sorted by name are in row order, unless a partition has more than 100,000 files. ``number`` is the
    index of the file among all files of the partition, or None if it is the only one. ``label`` is a text
    that the user chose.
    """
    digits = max(5, len(str(count)))
    more = "" if number is None else f"-{number:05d}"
    more += f"-{label.removesuffix(suffix).removesuffix('.tfrecord')}" if label else ""
    return f"part-{run}-{index:0{digits}d}-of-{count:0{digits}d}{more}.tfrecord{suffix}"


def check_labels(labels: Sequence[object]) -> None:
    """Raise TFRecordError if two labels of ``name_function=`` are equal, or if a label is not valid in a file
    name.
    """
    for label in labels:
        is_label = isinstance(label, str) and _LABEL.fullmatch(label) and len(label.encode()) <= _LABEL_BYTES
        if not is_label:
            problem = f"name_function= returned {label!r}, which is not valid in a file name"
            raise TFRecordError(problem, f"return at most {_LABEL_BYTES} bytes of letters, digits and _.=+@-")
    if len(set(labels)) < len(labels):
        problem = "name_function= returned the same name for several partitions"
        raise TFRecordError(problem, "return a different name for each partition")


def run_of(path: str) -> str | None:
    """Return the run id in the name of a data file, or None for other names."""
    part = PART_NAME.fullmatch(name_of(path))
    return part["run"] if part else None


def is_part(path: str) -> bool:
    return run_of(path) is not None


# The maximum size of a block in bytes, before compression. A block exceeds this size only if it consists of a
# single larger record.
BLOCK_BYTES = 1 << 20


class Block(NamedTuple):
    """A block of a data file. A read can start at the beginning of any block.

    A block contains about 1 MiB of whole records, measured before compression.

    Attributes
    ----------
    offset : int
        Offset of the block in the stored file, in bytes. In gzip and zlib files, the offset is a point from
        which a raw deflate stream can be decompressed. In zstd, LZ4, bzip2 and xz files, a new frame starts
        at the offset.
    content : int
        Offset of the block's first record in the decompressed bytes.
    record : int
        Index of the block's first record in the file, counted from 0.
    """

    offset: int
    content: int
    record: int


class ColumnStatistics(NamedTuple):
    """The statistics of one column in one file.

    Attributes
    ----------
    name : str
        The column name.
    min, max : object
        The smallest and the greatest value of the column in the file, as exact Python values. A bound is None
        if the column has no values in the file, or if it was not computed.
    nulls : int
        Number of nulls of the column in the file.
    min_length, max_length : int, optional
        The lengths of the shortest and the longest list, or None if the column is not a list column.
    """

    name: str
    min: Any
    max: Any
    nulls: int
    min_length: int | None = None
    max_length: int | None = None


class ColumnFile(NamedTuple):
    """The column file with a copy of some columns of a data file.

    Attributes
    ----------
    path : str
        Path of the column file relative to the dataset's root.
    bytes : int
        Size of the column file in bytes.
    crc32c : int
        CRC-32C of the footer of the column file. The column file itself contains the checksums of its column
        chunks.
    features : tuple of str
        The names of the features that the column file stores.
    """

    path: str
    bytes: int
    crc32c: int
    features: tuple[str, ...]


# In a file list, this column describes the column file of each data file. The value is null for a data file
# without a column file.
COLUMN_FILE = "columns"
COLUMN_FILE_TYPE = pa.struct(
    {"path": pa.string(), "bytes": pa.int64(), "crc32c": pa.uint32(), "features": pa.list_(pa.string())}
)


def read_column_files(files: FileList) -> list[ColumnFile | None]:
    if COLUMN_FILE not in files:
        return [None] * len(files)
    return [
        one and ColumnFile(one["path"], one["bytes"], one["crc32c"], tuple(one["features"]))
        for one in files[COLUMN_FILE].to_pylist()
    ]


@dataclass(frozen=True, repr=False)
class FileEntry:
    """Describe one data file of a snapshot. `Snapshot.files` contains one `FileEntry` for each file.

    Tasks return entries of the files that they have written. A `FileList` of one file would take 6 to 16
    times as many bytes on its way to the commit.

    Attributes
    ----------
    path : str
        Path of the file relative to the dataset's root.
    bytes : int
        Size of the stored file in bytes.
    records : int
        Number of records in the file.
    crc32c : int
        CRC-32C of the file's stored bytes.
    values : tuple
        The file's values of the partition columns, in the order of `Snapshot.partition_on`, as plain Python
        values. A null is represented by None.
    blocks : tuple of Block
        The blocks of the file, in order. The tuple is empty if the file can only be read from its start.
    statistics : tuple of ColumnStatistics
        The statistics of the columns, where they were computed.
    stamp : str
        Modification time or ETag of the file when the snapshot was written. The string is empty if the store
        reports neither a modification time nor an ETag.
    columns : ColumnFile, optional
        The column file with a copy of some columns of the file, or None if no column file exists.
    codec : str, optional
        The codec of the file, such as "gzip", or "none" if the file is uncompressed. None if the program that
        wrote the snapshot did not store the codec.
    open_columns : tuple of str
        The names of the columns that contain values outside the known categories. Only the entry of a newly
        written file contains these names; a snapshot stores them in its schema instead.
    attempt : str
        The name of the directory in which the task staged the file, below the staging directory of its run.
        Several attempts at a task may store different rows, so each has its own directory. Empty if the file
        has its final path below the staging directory, or is not staged.
    """

    path: str
    bytes: int
    records: int
    crc32c: int
    values: tuple[Any, ...] = ()
    blocks: tuple[Block, ...] = ()
    statistics: tuple[ColumnStatistics, ...] = ()
    stamp: str = ""
    columns: ColumnFile | None = None
    codec: str | None = None
    open_columns: tuple[str, ...] = field(default=(), compare=False)
    attempt: str = field(default="", compare=False)

    def __repr__(self) -> str:
        return f"FileEntry({self.path!r}, {self.records:,} records, {self.bytes:,} bytes)"


def is_inside(path: str) -> bool:
    """Return True if a path is relative and normalised, and is not a URL for fsspec."""
    names = path.split("/")
    return not any(name in ("", ".", "..") for name in names) and not re.search(r"[\\\0]|::|^\w+:", path)


# The statistics from the kernel: one element for each column. Each element contains values for one or more
# ranges of rows.
Columns = Sequence[Statistics]

# The largest size in bytes of a string or bytes value that is kept as a minimum or maximum.
_LONGEST_BOUND = 64

# For these scalar types, a stored minimum or maximum needs no conversion to a Python value of the column's
# type.
_PLAIN_TYPES = (pa.int64(), pa.float32())

# The exceptions that a conversion raises for a value that Python cannot represent.
_NOT_PLAIN = (ValueError, OverflowError, pa.ArrowException)


def empty_statistics(schema: Schema) -> Columns:
    return [Statistics([0], [None], [None]) for _ in schema.columns]


def continue_statistics(known: Columns, more: Columns) -> None:
    """Append the statistics ``more`` of later row ranges to ``known``.

    The first range in ``more`` continues the last range in ``known``.
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

    Each range of rows in ``parts`` is one file. A column gets only the number of its nulls if its stored
    values differ from its values in a table. A class label, whose nulls are class numbers, gets no
    statistics. The statistics of struct fields have names such as "a/b".
    """
    if not parts or not schema.fields:
        return [()] * files
    of_features = dict(zip(schema.columns, zip(*parts, strict=True), strict=True))
    columns = [
        _column_statistics(item, of_features[item.column])
        for item in schema.leaves
        if item.form is None or not (item.form.has_codes or item.form.stores_shapes)
    ]
    return list(zip(*columns, strict=True)) if columns else [()] * files


def merge_statistics(files: Sequence[FileEntry]) -> tuple[ColumnStatistics, ...]:
    """Return the statistics of a new file that contains the records of all ``files``.

    A column gets statistics only if every file with records has statistics for it. A minimum or maximum is
    None if it is unknown for any file that contains values of the column.
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
    nulls, least, greatest = (list(chain.from_iterable(lists)) for lists in zip(*parts, strict=True))
    name, nothing = repeat(column.name), repeat(None)
    if column.form is not None and not column.form.is_plain:
        # An absent list that is not optional is an empty list, not a null.
        counts = nulls if column.form.is_optional else repeat(0, len(nulls))
        return map(ColumnStatistics, name, nothing, nothing, counts)
    if column.depth:
        return map(ColumnStatistics, name, nothing, nothing, nulls, least, greatest)
    if column.type not in _PLAIN_TYPES:
        least, greatest = _bounds(column, least), _bounds(column, greatest)
    return map(ColumnStatistics, name, least, greatest, nulls)


def _bounds(column: Field, stored: list[Any]) -> list[Any]:
    """Convert the minima or the maxima of a column, one for each file, to Python values.

    A value that is too long, or that Python cannot represent exactly, becomes None.
    """
    storage = KIND_TYPES[column.kind]
    if column.kind in ("bytes", "string"):
        stored = [None if value is None or len(value) > _LONGEST_BOUND else value for value in stored]
    if column.type == storage:
        return stored
    try:
        return _plain(column, pa.array(stored, storage))
    except _NOT_PLAIN:  # Python cannot represent a value, such as a date in the year 20,000
        if len(stored) == 1:
            return [None]
        return [bound for value in stored for bound in _bounds(column, [value])]


def _plain(column: Field, stored: pa.Array) -> list[Any]:
    loaded = column.load(stored)
    if pa.types.is_dictionary(loaded.type):
        loaded = loaded.dictionary_decode()
    values: list[Any] = loaded.to_pylist()
    if not pa.array(values, loaded.type).equals(loaded):
        raise ValueError("Python's values are less precise than Arrow's")
    return values
