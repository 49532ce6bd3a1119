"""Partition values <-> the directory names that Hive and Spark give them. Knows no files."""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.errors import SchemaError, TFRecordError
from dask_tfrecord.schema.storage_types import value_type

# The value of rows that have none.
NULL = "__HIVE_DEFAULT_PARTITION__"

# What one name may take on every common filesystem.
MAX_NAME_BYTES = 255

# Spark's set, and NUL.
_SPECIAL = re.compile(r"[\0-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_ESCAPED = re.compile("(?:%[0-9A-Fa-f]{2})+")

# An integer that has no other spelling, so that the text can be had back from the number.
_CANONICAL = "^(0|-?[1-9][0-9]{0,18})$"


def directories(keys: pa.Table) -> list[str]:
    """The directory of each row: a level ``name=value`` for each column.

    Raises
    ------
    SchemaError
        For a name that is longer than filesystems allow, naming the column.
    """
    levels = [_level(name, column) for name, column in zip(keys.column_names, keys.columns, strict=True)]
    return ["/".join(names) for names in zip(*levels, strict=True)]


def parse(directory: str) -> list[tuple[str, str | None]]:
    """The names and the values' texts that a directory is made of; levels of another form are left out."""
    pairs = (level.partition("=") for level in directory.split("/") if "=" in level)
    return [(_unescape(name), None if text == NULL else _unescape(text)) for name, _, text in pairs]


def value_texts(directories: Sequence[str]) -> dict[str, pa.Array]:
    """The keys of some directories, in the order first seen: for each the texts of its values.

    Null is a key's null, and where a directory has no such level.

    Raises
    ------
    SchemaError
        For a key that is twice in one directory.
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
    return {name: pa.array(found, pa.string()).take(rows) for name, found in texts.items()}


def infer_type(texts: pa.Array) -> pa.DataType:
    """int64 if all texts are integers in their only spelling, and there are any; else string."""
    canonical = pc.match_substring_regex(texts, _CANONICAL)
    if texts.null_count == len(texts) or not pc.all(canonical).as_py():
        return pa.string()
    try:
        texts.cast(pa.int64())
    except pa.ArrowInvalid:  # beyond 64 bits
        return pa.string()
    return pa.int64()


def to_values(name: str, texts: pa.Array, type_: pa.DataType, directories: Sequence[str]) -> pa.Array:
    """The values that the texts spell, as `directories` would spell them; of a category's value type.

    Raises
    ------
    SchemaError
        For a text that is no such value, naming its directory.
    """
    type_ = value_type(type_)
    try:
        return _cast(texts, type_)
    except (pa.ArrowException, UnicodeEncodeError):
        for directory, text in zip(directories, texts.to_pylist(), strict=True):
            try:
                _cast(pa.array([text], pa.string()), type_)
            except (pa.ArrowException, UnicodeEncodeError):
                raise SchemaError(
                    f"the directory {directory!r} gives {text!r}, which is no {type_}", feature=name
                ) from None
        raise


def check_inside(path: str) -> None:
    """Refuse a relative path that is not a normal one below where it starts."""
    if any(name in ("", ".", "..") for name in path.split("/")):
        raise TFRecordError(f"the path {path!r} would not lie inside the dataset")


def _level(name: str, values: pa.ChunkedArray) -> list[str]:
    start = f"{_escape_name(name)}="
    level = [start + _escape(text) for text in _texts(values)]
    for text in level:
        size = len(text.encode())
        if size > MAX_NAME_BYTES:
            raise SchemaError(
                f"a value would make a directory name of {size:,} bytes, {MAX_NAME_BYTES} are allowed: "
                f"{text[:60]}...",
                feature=name,
                advice="partition on a shorter column, such as a hash of this one",
            )
    return level


def _texts(values: pa.ChunkedArray) -> Sequence[str | None]:
    """The values as Spark spells them; different values have different texts."""
    type_ = values.type
    if pa.types.is_null(type_):
        return [None] * len(values)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return [None if value is None else value.decode("latin-1") for value in values.to_pylist()]
    if pa.types.is_timestamp(type_) and type_.tz is not None:  # local times come twice when clocks go back
        values = values.cast(pa.timestamp(type_.unit, "UTC"))
    texts: list[str | None] = pc.cast(values, pa.large_string()).to_pylist()
    return texts


def _cast(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """The inverse of `_texts`."""
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
    """The nearest floats, if their texts spell the same numbers; large integers may have no such float."""
    found = texts.cast(type_)
    whole = texts.filter(pc.match_substring_regex(texts, "^-?[0-9]+$"))
    whole.cast(pa.int64()).cast(pa.float64())
    wide, back = texts.cast(pa.float64()), found.cast(pa.string()).cast(pa.float64())
    same = pc.or_(pc.equal(wide, back), pc.is_nan(wide))
    if not pc.all(same, min_count=0).as_py():
        raise pa.ArrowInvalid(f"a number has no {type_}")
    return found


def _escape(text: str | None) -> str:
    if text is None:
        return NULL
    escaped = _SPECIAL.sub(_percent, text)
    return f"%5F{escaped[1:]}" if escaped == NULL else escaped


def _escape_name(name: str) -> str:
    """Also of a first dot, which would hide the directory."""
    escaped = _SPECIAL.sub(_percent, name)
    return f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped


def _percent(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def _unescape(text: str) -> str:
    return _ESCAPED.sub(_unescaped, text)


def _unescaped(match: re.Match[str]) -> str:
    """Spark escapes single ASCII characters; other writers whole texts as UTF-8."""
    found = bytes.fromhex(match[0].replace("%", ""))
    try:
        return found.decode()
    except UnicodeDecodeError:
        return found.decode("latin-1")
