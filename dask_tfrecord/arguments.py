"""Validate the arguments of the public functions and convert each argument to one standard form.

Spellings that other libraries use are accepted if their meaning is clear. Every error names the keyword whose
value is wrong.
"""

import operator
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from dask.utils import parse_bytes

from dask_tfrecord.codec import MAX_RECORD_BYTES
from dask_tfrecord.codec.codecs import CODECS, Compression
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.errors import Remedy, TFRecordError
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.files.storage.paths import path_text
from dask_tfrecord.schema.model import Schema

# Numbers with units, such as "1 day 12h", and then perhaps hours, minutes and seconds, such as "01:30:00".
_DURATION = re.compile(r"(\d+(\.\d+)?\s*[A-Za-z]+[\s,]*)*(\d+:\d\d:\d\d(\.\d+)?)?", re.ASCII)
# The abbreviated units that pandas 3.1 deprecates in one case, and accepts in the other case.
_DEPRECATED_CASE = re.compile(r"(?<![A-Za-z])[dwHS](?![A-Za-z])")


def _wrong(keyword: str, value: object, what: str, *actions: str | Remedy) -> TFRecordError:
    """Return the error for a value of a keyword that is not what the keyword takes."""
    return TFRecordError(f"{keyword}={value!r} is not {what}", *actions)


def path(value: Any, keyword: str = "path") -> PathLike:
    """Return the value if it is a path, and raise otherwise."""
    path_text(value, "" if keyword == "path" else keyword, f'pass a directory, such as {keyword}="train"')
    given: PathLike = value
    return given


def choice(keyword: str, value: Any, known: Sequence[object]) -> Any:
    """Return the value of a keyword. Raise if the value is not one of the known values of the keyword."""
    if not isinstance(value, str | bool | None) or value not in known:
        raise _unknown(keyword, value, known)
    return value


def _unknown(keyword: str, value: object, known: Sequence[object]) -> TFRecordError:
    listed = ", ".join(map(repr, known))
    return TFRecordError(f"unknown {keyword} {value!r}", f"pass one of {listed}", keyword=keyword)


def flags(**values: Any) -> None:
    """Raise if the value of a keyword is not a bool."""
    for keyword, value in values.items():
        if not isinstance(value, bool | np.bool_):
            raise _wrong(keyword, value, "True or False")


def mappings(**values: Any) -> None:
    """Raise if the value of a keyword is neither None nor a mapping with string keys."""
    for keyword, value in values.items():
        if not isinstance(value, Mapping | None) or not all(isinstance(key, str) for key in value or ()):
            # The message does not show the values, because storage_options may hold credentials.
            problem = f"{keyword}= is not a dict with string keys (got {type(value).__name__})"
            raise TFRecordError(problem, keyword=keyword)


def compression(value: Any, *others: str) -> Any:
    """Return the name of a codec, or None for no compression.

    TensorFlow's spellings "GZIP", "ZLIB" and "" (no compression) are accepted.
    """
    known: tuple[Compression | str | None, ...] = (*others, None, *CODECS)
    codec = (value.lower() or None) if isinstance(value, str) else value
    if not isinstance(codec, str | None) or codec not in known:
        raise _unknown("compression", value, known)
    return codec


def names(keyword: str, value: Any) -> list[str]:
    """Return a list of column names, given one column name or several column names."""
    if isinstance(value, str):
        return [value]
    # Arrays of NumPy and of Arrow, and indexes of pandas, have the method.
    listed = value.tolist() if hasattr(value, "tolist") else value
    if (
        not isinstance(listed, Sequence)
        or isinstance(listed, str | bytes)
        or not all(isinstance(item, str) for item in listed)
    ):
        problem = f"{keyword}={value!r} is not a list of column names"
        raise TFRecordError(problem, f'pass a name, or a list such as {keyword}=["age"]')
    return list(map(str, listed))


def schema(value: Any) -> Any:
    """Return the value of ``schema=`` if it is valid, or None for "infer"; raise otherwise."""
    if isinstance(value, str) and value == "infer":
        return None
    if not isinstance(value, Mapping | pa.Schema | Schema | Snapshot | None):
        raise _wrong(
            "schema", value, "a schema", 'pass the types of columns, such as schema={"age": pa.int64()}'
        )
    return value


def arrow_schema(value: Any) -> Any:
    """Validate ``schema=`` as the function `schema` does, and convert a Schema or a Snapshot to a
    `pyarrow.Schema`.
    """
    given = schema(value)
    if isinstance(given, Snapshot):
        given = given.columns
    return given.arrow if isinstance(given, Schema) else given


def metadata(value: Any) -> dict[str, str]:
    """Return ``custom_metadata=`` as a dict, or raise if a key or a value is not a string."""
    pairs = value.items() if isinstance(value, Mapping) else ()
    is_text = all(isinstance(text, str) for pair in pairs for text in pair)
    if not isinstance(value, Mapping | None) or not is_text:
        problem = f"custom_metadata={value!r} must map strings to strings"
        raise TFRecordError(problem, "pass a dict, and encode other values, for example with json.dumps")
    return dict(value or {})


def count(keyword: str, value: Any, least: int = 1) -> int | None:
    """Convert a Python or NumPy integer to int, and return None unchanged.

    Raise if the integer is less than ``least``.
    """
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)
    is_count = is_integer and value >= least
    if value is not None and not is_count:
        kind = "positive" if least else "non-negative"
        raise _wrong(keyword, value, f"a {kind} integer")
    return None if value is None else int(value)


def number(keyword: str, value: Any, least: int = 1) -> int:
    """Convert a Python or NumPy integer to int. Raise if it is None, or less than ``least``."""
    found = count(keyword, value, least)
    if found is None:
        raise _wrong(keyword, None, "an integer", f"pass for example {keyword}={least}")
    return found


def function(keyword: str, value: Any) -> None:
    """Raise if the value of a keyword is neither None nor callable."""
    if value is not None and not callable(value):
        raise _wrong(keyword, value, "callable")


def byte_count(keyword: str, value: Any) -> int | None:
    """Convert an integer or a string such as "64 MB" to a positive number of bytes, and return None
    unchanged.
    """
    if value is None:
        return None
    size = 0
    if not isinstance(value, bool | np.timedelta64):  # NumPy counts its durations among the integers
        with suppress(AttributeError, OverflowError, TypeError, ValueError):
            size = int(parse_bytes(value or "0")) if isinstance(value, str | float) else operator.index(value)
    if not 1 <= size < 1 << 63:
        raise TFRecordError(f"{keyword}={value!r} is not a size", Remedy(keyword, "128 MiB", "set a size"))
    return size


def duration(keyword: str, value: Any) -> timedelta:
    """Convert a timedelta, or a string such as "12 hours", to a timedelta that is not negative.

    A number without a unit raises, also "0". In pandas, such a number is a number of nanoseconds.
    """
    is_text = isinstance(value, str) and _DURATION.fullmatch(value.strip())
    if is_text or isinstance(value, timedelta):
        given = _DEPRECATED_CASE.sub(lambda unit: unit[0].swapcase(), value) if is_text else value
        with suppress(ValueError):  # if the text has an unknown unit, the error below is raised
            found = pd.Timedelta(given)
            if found >= timedelta(0):  # the comparison is False for NaT, which pandas returns for ""
                return found.to_pytimedelta()
    raise _wrong(
        keyword, value, "a duration with a unit", 'pass a number and its unit, such as "7d" or "12 hours"'
    )


def record_limit(value: Any) -> int:
    """Return ``max_record_bytes=`` in bytes; protobuf limits a message to 2 GiB - 1 bytes."""
    size = byte_count("max_record_bytes", value)
    if size is None or size > MAX_RECORD_BYTES:
        raise _wrong(
            "max_record_bytes",
            value,
            f"a limit between 1 and {MAX_RECORD_BYTES:,} bytes",
            Remedy("max_record_bytes", MAX_RECORD_BYTES, "set no lower limit than protobuf has"),
        )
    return size


def origin_column(value: Any, default: str) -> str | None:
    """Return the name of the column that ``include_path_column=`` or ``include_offset_column=`` adds, or
    None.
    """
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, bool):
        problem = f"include_{default}_column={value!r} is neither a bool nor a column name"
        remedy = Remedy(f"include_{default}_column", True, f"add the column {default!r}")
        raise TFRecordError(problem, remedy, keyword=f"include_{default}_column")
    return default if value else None
