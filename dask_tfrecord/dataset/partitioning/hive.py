"""Convert partition values to directory names in the style of Hive and Spark, and back."""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.storage_types import value_type

# The text that stands for a null partition value in a directory name.
NULL = "__HIVE_DEFAULT_PARTITION__"

# The maximum length in bytes of a file name that all common filesystems allow.
MAX_NAME_BYTES = 255

# Pattern of the characters that are escaped in directory names: those that Spark escapes, and NUL.
_SPECIAL = re.compile(r"[\0-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_ESCAPED = re.compile("(?:%[0-9A-Fa-f]{2})+")

# Pattern of integers without leading zeros or a plus sign, so that each number has exactly one text.
_CANONICAL = "^(0|-?[1-9][0-9]{0,18})$"


def directories(keys: pa.Table) -> list[str]:
    """Return the partition directory of each row of a table. The path of a directory has a level
    ``name=value`` for each column of the table.

    Raises
    ------
    SchemaError
        If the name of a directory level is longer than filesystems allow.
    """
    levels = [_level(name, column) for name, column in zip(keys.column_names, keys.columns, strict=True)]
    return ["/".join(names) for names in zip(*levels, strict=True)]


def parse(directory: str) -> list[tuple[str, str | None]]:
    """Return the names and value texts of the levels ``name=value`` of a directory path."""
    pairs = (level.partition("=") for level in directory.split("/") if "=" in level)
    return [(_unescape(name), None if text == NULL else _unescape(text)) for name, _, text in pairs]


def value_texts(directories: Sequence[str]) -> dict[str, pa.Array]:
    """Return the partition columns of directories as text, in order of first appearance.

    Returns
    -------
    dict of str to pyarrow.Array
        Map from the name of each partition column to an array with the text of its value in each directory.
        The text is null if the value is null, or if the directory has no level with this name.

    Raises
    ------
    SchemaError
        If a directory path has two levels with the same name.
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
    """Return int64 if at least one text is not null and all texts are canonical 64-bit integers, else
    string.
    """
    canonical = pc.match_substring_regex(texts, _CANONICAL)
    if texts.null_count == len(texts) or not pc.all(canonical).as_py():
        return pa.string()
    try:
        texts.cast(pa.int64())
    except pa.ArrowInvalid:  # some text is an integer with more than 64 bits
        return pa.string()
    return pa.int64()


def to_values(name: str, texts: pa.Array, type_: pa.DataType, directories: Sequence[str]) -> pa.Array:
    """Parse the texts of a partition column: the inverse of `directories`.

    For a dictionary type, the result has the type of the dictionary's values.

    Raises
    ------
    SchemaError
        If a text does not represent a value of the type. The error message names the directory.
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
    """Return the text that Spark writes in directory names for each value.

    Different values have different texts.
    """
    type_ = values.type
    if pa.types.is_null(type_):
        return [None] * len(values)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return [None if value is None else value.decode("latin-1") for value in values.to_pylist()]
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        # The text of a timestamp is in UTC, because a local time occurs twice when clocks go back.
        values = values.cast(pa.timestamp(type_.unit, "UTC"))
    texts: list[str | None] = pc.cast(values, pa.large_string()).to_pylist()
    return texts


def _cast(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Parse the texts of values of an Arrow type: the inverse of `_texts`."""
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
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
    """Parse the texts of floats.

    Raise if no float of the type equals the number, for example a large integer.
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
    """Escape a column name for a directory name.

    A dot at the start of the name is also escaped, because it would hide the directory.
    """
    escaped = _SPECIAL.sub(_percent, name)
    return f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped


def _percent(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def _unescape(text: str) -> str:
    return _ESCAPED.sub(_unescaped, text)


def _unescaped(match: re.Match[str]) -> str:
    """Decode the percent escapes of a directory name.

    Spark escapes single ASCII characters, and other writers escape the bytes of UTF-8.
    """
    found = bytes.fromhex(match[0].replace("%", ""))
    try:
        return found.decode()
    except UnicodeDecodeError:
        return found.decode("latin-1")
