"""Convert the values of partition columns to directory names and back, and group rows by directory.

The directory names follow the rules of Hive and Spark.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import take_bytes
from dask_tfrecord.errors import Remedy, SchemaError, TFRecordError
from dask_tfrecord.files.file_writer import DirectoryGroup, GroupedRows, RowNumbers
from dask_tfrecord.schema.logical_types import is_binary, value_type

# The text that represents a null partition value in a directory name.
NULL = "__HIVE_DEFAULT_PARTITION__"

# The longest file name that all common filesystems allow, in bytes.
MAX_NAME_BYTES = 255

# Matches each character that is escaped in directory names: NUL, and the characters that Spark escapes.
_SPECIAL = re.compile(r"[\0-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_ESCAPED = re.compile("(?:%[0-9A-Fa-f]{2})+")

# Matches integers without leading zeros or a plus sign, so that each integer has exactly one text.
_CANONICAL = "^(0|-?[1-9][0-9]{0,18})$"


def directories(keys: pa.Table) -> list[str]:
    """Return the partition directory of each row of a table. The directory has one level ``name=value`` for
    each column.

    Raise SchemaError if the name of a level is longer than common filesystems allow.
    """
    levels = [_level(name, column) for name, column in zip(keys.column_names, keys.columns, strict=True)]
    return ["/".join(names) for names in zip(*levels, strict=True)]


def parse(directory: str) -> list[tuple[str, str | None]]:
    """Return the name and the value text of each level ``name=value`` in a directory path."""
    pairs = (level.partition("=") for level in directory.split("/") if "=" in level)
    return [(_unescape(name), None if text == NULL else _unescape(text)) for name, _, text in pairs]


def value_texts(directories: Sequence[str]) -> dict[str, pa.Array]:
    """Map each partition column to its value in each directory, as text.

    The columns are in the order in which their names first appear in ``directories``. The text is null if the
    value is null, or if the directory has no level with the name of the column. Raise SchemaError if a
    directory has two levels with the same name.
    """
    numbers = {directory: number for number, directory in enumerate(dict.fromkeys(directories))}
    texts: dict[str, list[str | None]] = {}
    for directory, number in numbers.items():
        pairs = parse(directory)
        for name, text in pairs:
            texts.setdefault(name, [None] * len(numbers))[number] = text
        if len({name for name, _ in pairs}) < len(pairs):
            name = next(name for name, _ in pairs if [one for one, _ in pairs].count(name) > 1)
            raise SchemaError(f"the directory {directory!r} has several values for it", feature=name)
    rows = pa.array([numbers[directory] for directory in directories], pa.int64())
    return {name: pa.array(column, pa.string()).take(rows) for name, column in texts.items()}


def infer_type(texts: pa.Array) -> pa.DataType:
    """Return int64 if there are texts other than null and all of them are canonical 64-bit integers.
    Otherwise, return string.
    """
    canonical = pc.match_substring_regex(texts, _CANONICAL)
    if texts.null_count == len(texts) or not pc.all(canonical).as_py():
        return pa.string()
    try:
        texts.cast(pa.int64())
    except pa.ArrowInvalid:  # one of the texts is an integer with more than 64 bits
        return pa.string()
    return pa.int64()


def to_values(name: str, texts: pa.Array, type_: pa.DataType, directories: Sequence[str]) -> pa.Array:
    """Convert the texts of a partition column, as returned by `value_texts`, to values of ``type_``.

    For a dictionary type, the result has the type of the dictionary's values. If a text does not represent a
    value of the type, raise a SchemaError that names the directory.
    """
    type_ = value_type(type_)
    try:
        return _cast(texts, type_)
    except (pa.ArrowException, UnicodeEncodeError):
        for directory, text in zip(directories, texts.to_pylist(), strict=True):
            try:
                _cast(pa.array([text], pa.string()), type_)
            except (pa.ArrowException, UnicodeEncodeError):
                problem = f"the directory {directory!r} has the value {text!r}, which is not of type {type_}"
                raise SchemaError(problem, feature=name) from None
        raise


def _level(name: str, values: pa.ChunkedArray) -> list[str]:
    start = f"{_escape_name(name)}="
    level = [start + _escape(text) for text in _texts(values)]
    for text in level:
        size = len(text.encode())
        if size > MAX_NAME_BYTES:
            raise SchemaError(
                f"a directory name would have {size:,} bytes, but at most {MAX_NAME_BYTES} are allowed: "
                f"{text[:60]}...",
                "partition on a shorter column, such as a hash of this one",
                feature=name,
            )
    return level


def _texts(values: pa.ChunkedArray) -> Sequence[str | None]:
    """Return, for each value, the text that Spark writes in directory names.

    Different values have different texts.
    """
    type_ = values.type
    if pa.types.is_null(type_):
        return [None] * len(values)
    if is_binary(type_):
        return [None if value is None else value.decode("latin-1") for value in values.to_pylist()]
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        # The text of a timestamp is in UTC, because a local time occurs twice when clocks go back.
        values = values.cast(pa.timestamp(type_.unit, "UTC"))
    texts: list[str | None] = pc.cast(values, pa.large_string()).to_pylist()
    return texts


def _cast(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Parse texts as values of an Arrow type. `_texts` is the inverse function."""
    if is_binary(type_):
        values = [None if text is None else text.encode("latin-1") for text in texts.to_pylist()]
        return pa.array(values, type_)
    if pa.types.is_duration(type_):
        return texts.cast(pa.int64()).cast(type_)
    if pa.types.is_time(type_):
        moments = pc.binary_join_element_wise("1970-01-01", texts, " ")
        return moments.cast(pa.timestamp(type_.unit)).cast(type_)
    if pa.types.is_floating(type_):
        return _floats(texts, type_)
    return texts.cast(type_)


def _floats(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Parse texts as floats. Raise ArrowInvalid if an integer is too large for exact floats, or if a type
    shorter than float64 loses digits of a number.
    """
    floats = texts.cast(type_)
    whole = texts.filter(pc.match_substring_regex(texts, "^-?[0-9]+$"))
    whole.cast(pa.int64()).cast(pa.float64())
    wide, back = texts.cast(pa.float64()), floats.cast(pa.string()).cast(pa.float64())
    same = pc.or_(pc.equal(wide, back), pc.is_nan(wide))
    if not pc.all(same, min_count=0).as_py():
        raise pa.ArrowInvalid(f"a number is not equal to any {type_}")
    return floats


def _escape(text: str | None) -> str:
    if text is None:
        return NULL
    escaped = _SPECIAL.sub(_percent, text)
    return f"%5F{escaped[1:]}" if escaped == NULL else escaped


def _escape_name(name: str) -> str:
    """Escape a column name, including a leading dot, because a leading dot would hide the directory."""
    escaped = _SPECIAL.sub(_percent, name)
    return f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped


def _percent(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def _unescape(text: str) -> str:
    return _ESCAPED.sub(_unescaped, text)


def _unescaped(match: re.Match[str]) -> str:
    """Decode percent escapes. Spark escapes only ASCII characters. Writers other than Spark escape the bytes
    of UTF-8 text.
    """
    found = bytes.fromhex(match[0].replace("%", ""))
    try:
        return found.decode()
    except UnicodeDecodeError:
        return found.decode("latin-1")


# The compiled kernel reorders values of these types, because it is faster than Arrow.
BYTES = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())


class Groups(NamedTuple):
    """The rows of a table, grouped by the values of some columns.

    ``values`` contains one row for each group. ``order`` contains the row indices, sorted by group. Rows of
    the same group keep their original order. ``order`` is None if the rows are already sorted. Group ``k``
    consists of the sorted rows ``starts[k]`` to ``starts[k + 1] - 1``.
    """

    values: pa.Table
    order: RowNumbers | None
    starts: RowNumbers


def group_by_directory(table: pa.Table, partition_on: Sequence[str], *, max_directories: int) -> GroupedRows:
    """Sort the rows of a table by their partition directories.

    Directories are sorted by the first partition column, then by the second partition column, and so on. The
    values of each column are ordered by first appearance. An empty table has no directories. A table that is
    already sorted is not copied. Raise SchemaError if a directory name cannot represent a value. Raise
    TFRecordError if there are more than ``max_directories`` directories.
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
    return list(map(DirectoryGroup, directories(values), rows, np.diff(groups.starts).tolist()))


def sorted_rows(table: pa.Table, order: RowNumbers) -> pa.Table:
    """Reorder the rows of a table column by column, which is faster than reordering the complete table."""
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
    """Return the indices that sort an array of integer codes. NumPy sorts 16-bit codes much faster than
    longer codes.
    """
    return np.argsort(codes.astype(np.uint16) if codes.max(initial=0) < 1 << 16 else codes, kind="stable")


def too_many(what: str, partition_on: Sequence[str], limit: int) -> TFRecordError:
    """Return the exception for a task that would write more files than ``max_files_per_task`` allows."""
    columns = ", ".join(map(repr, partition_on))
    hashes = f'ddf["{partition_on[0]}"].map_partitions(pd.util.hash_pandas_object, index=False)'
    return TFRecordError(
        f"one partition holds {what} of {columns}, but a task may write at most {limit:,} files",
        f"partition on a bucket column, such as {hashes} % 256, or use colocate=True to bring equal values "
        "together in one of many partitions",
        Remedy("write_options", {"max_files_per_task": None}, "write any number of files"),
    )


def _codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.integer[Any]], int]:
    """Return an integer code for each value of a column, and the number of different codes. Codes are
    assigned in the order in which the values first appear.
    """
    encoded = pc.dictionary_encode(comparable(column), null_encoding="encode")
    indices = [chunk.indices.to_numpy() for chunk in encoded.chunks]
    return np.concatenate(indices), len(encoded.chunks[-1].dictionary)


def comparable(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Convert a column so that Arrow treats equal values as equal.

    Dictionary codes are replaced by values, because each chunk may number the categories differently. All NaN
    values get the same bit pattern.
    """
    if column.type != (type_ := value_type(column.type)):
        column = column.cast(type_)
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
    # `to_pylist` raises for a date in the year 20,000, for example.
    with suppress(OverflowError, ValueError, pa.ArrowException):
        values: list[Any] = column.to_pylist()
        # Floats need no check, because Python can represent all of Arrow's. A check would fail for NaN.
        back = pa.chunked_array([pa.array(values, column.type)])
        if pa.types.is_floating(column.type) or back.equals(column):
            return values
    problem = f"a value of the type {column.type} is finer than Python's own type, or out of its range"
    raise SchemaError(problem, "convert the column to a coarser unit, or to integers", feature=name)
