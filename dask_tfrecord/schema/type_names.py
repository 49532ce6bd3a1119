"""Convert types of Arrow, NumPy, pandas and Python, and names of types, to Arrow types."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from dask_tfrecord.errors import TFRecordError

_PYTHON = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string(), bytes: pa.binary()}
_NAMES = {"str": pa.string(), "bytes": pa.binary(), "boolean": pa.bool_(), "int": pa.int64()}

_Parse = Callable[..., pa.DataType]
_FORMS: tuple[tuple[re.Pattern[str], _Parse], ...] = (
    (re.compile(r"list<(?:\w+: )?(.+)>"), lambda item: pa.list_(_item(item))),
    (re.compile(r"large_list<(?:\w+: )?(.+)>"), lambda item: pa.large_list(_item(item))),
    (
        re.compile(r"fixed_size_list<(?:\w+: )?(.+)>\[(\d+)\]"),
        lambda item, size: pa.list_(_item(item), int(size)),
    ),
    (re.compile(r"struct<(.*)>"), lambda fields: pa.struct(list(map(_field, _split(fields))))),
    (re.compile(r"fixed_size_binary\[(\d+)\]"), lambda width: pa.binary(int(width))),
    (re.compile(r"decimal(?:128)?\((\d+), ?(\d+)\)"), lambda *digits: pa.decimal128(*map(int, digits))),
    (re.compile(r"(?:timestamp|datetime64)\[(s|ms|us|ns), (?:tz=)?(.+)\]"), pa.timestamp),
    (re.compile(r"(.+)\[py(?:arrow|thon)\]"), lambda name: arrow_type(name)),
)


def arrow_type(given: Any) -> pa.DataType:
    """Return the Arrow type for a type of Arrow, pandas, NumPy or Python, or for the name of a type.

    Parameters
    ----------
    given : pyarrow.DataType, dtype, type or str
        The type, such as ``pa.int64()``, ``np.dtype("int64")``, ``pd.Int64Dtype()``, ``int`` or
        ``"list<int64>"``.

    Raises
    ------
    ValueError
        If no Arrow type corresponds to ``given``, or if ``given`` is ``"float"``, which means 32 bits in
        Arrow and 64 bits in NumPy.

    Examples
    --------
    >>> import dask_tfrecord
    >>> dask_tfrecord.arrow_type("list<int64>")
    ListType(list<item: int64>)
    """
    if isinstance(given, pa.DataType):
        return given
    # A dtype of the class ArrowDtype of pandas.
    if isinstance(found := getattr(given, "pyarrow_dtype", None), pa.DataType):
        return found
    if isinstance(given, type) and given in _PYTHON:
        return _PYTHON[given]
    if given is None:  # NumPy interprets None as float64
        raise TFRecordError("None is not an Arrow type")
    # A NumPy dtype equals its name, so `isinstance` is tested before the comparison with "float".
    if isinstance(given, str) and given == "float":
        raise TFRecordError('"float" is ambiguous; write "float32" or "float64"')
    try:
        return _by_name(given) if isinstance(given, str) else _by_dtype(given)
    # Each of these exceptions means that the type or its name is unknown. NumPy and pandas raise TypeError or
    # ValueError, pandas also NotImplementedError, Arrow its own exceptions, and the tables of this module
    # KeyError.
    except (KeyError, NotImplementedError, TypeError, ValueError, pa.ArrowException):
        raise TFRecordError(f"{given!r} is not an Arrow type") from None


def _item(name: str) -> pa.DataType:
    """Return the type of a list's values, or of a struct's field, from the Arrow name of this type.

    In such a name, "float" means 32 bits.
    """
    return pa.float32() if name == "float" else arrow_type(name)


def _split(fields: str) -> list[str]:
    """Split the text of the fields of a struct at the commas that are not part of a field's type."""
    found: list[str] = []
    for text in filter(None, fields.split(", ")):
        if found and len(re.findall(r"[<(\[]", found[-1])) > len(re.findall(r"[>)\]]", found[-1])):
            found[-1] += f", {text}"
        else:
            found.append(text)
    return found


def _field(text: str) -> pa.Field:
    name, _, type_ = text.partition(": ")
    plain = type_.removesuffix(" not null")
    return pa.field(name, _item(plain), nullable=plain == type_)


def _by_name(name: str) -> pa.DataType:
    for pattern, parse in _FORMS:
        if match := pattern.fullmatch(name):
            return parse(*match.groups())
    if name in _NAMES:
        return _NAMES[name]
    try:
        return pa.type_for_alias(name)
    except ValueError:
        # The name is that of a nullable type of pandas.
        if re.fullmatch("U?Int(8|16|32|64)|Float(32|64)", name):
            return pa.type_for_alias(name.lower())
        return _by_dtype(name)


def _by_dtype(given: Any) -> pa.DataType:
    name = getattr(given, "name", None)
    if type(given).__module__.startswith("pandas") and isinstance(name, str):
        zone = getattr(given, "tz", None)
        return pa.timestamp(given.unit, str(zone)) if zone is not None else _by_name(name)
    return pa.from_numpy_dtype(np.dtype(given))
