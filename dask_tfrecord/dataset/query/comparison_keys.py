"""Convert values of an Arrow type to comparison keys, which are Python values with the same order and
equality.

The comparison key of a number, a time or a bool is the number that Arrow stores, as an int or a float. The
comparison key of a text is a string, and the key of binary data is bytes. Values in users' filters and bounds
in snapshots are converted to comparison keys, so that values of different Python types can be compared.
"""

import datetime
import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types

from dask_tfrecord.schema.storage_types import INTEGERS, is_any, value_type

ComparisonKey: TypeAlias = int | float | str | bytes

_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = datetime.datetime(1970, 1, 1)
_DAY = 86_400
_SURROGATE = re.compile("[\ud800-\udfff]")
_INFINITE = (math.inf, -math.inf)  # `math.isinf` raises for an integer that is larger than all floats


class WrongTypeError(TypeError):
    """The error for a value that cannot be compared with a column.

    The message says why, or which values can be compared with the column.
    """


def is_comparable(type_: pa.DataType) -> bool:
    """Return True if the values of a type have comparison keys. Lists and tensors have no comparison keys."""
    type_ = value_type(type_)
    return _is_stored_as_integer(type_) or types.is_floating(type_) or is_text(type_) or is_binary(type_)


def has_nan(type_: pa.DataType) -> bool:
    """Return True if values of a type can be NaN. The minimum and maximum in statistics ignore NaN."""
    return bool(types.is_floating(value_type(type_)))


def comparison_key(value: Any, type_: pa.DataType) -> ComparisonKey | Fraction:
    """Return the comparison key of a value for a column of the given type.

    Returns
    -------
    int, float, str, bytes or Fraction
        The comparison key of the value. The key is a Fraction if the value lies between two values that the
        column's type can hold.

    Raises
    ------
    WrongTypeError
        If the value is null, or is of a type that cannot be compared with the column.
    """
    type_ = value_type(type_)
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    if is_text(type_):
        text = str(_check(value, isinstance(value, str), "a string", type_))
        _check(text, not _SURROGATE.search(text), "valid Unicode", type_)
        return text
    if is_binary(type_):
        _check(value, isinstance(value, bytes | bytearray | memoryview), "bytes", type_)
        return bytes(value)
    if types.is_boolean(type_):
        return int(_check(value, isinstance(value, bool | np.bool_), "True or False", type_))
    if types.is_floating(type_):
        return _float_or_fraction(_check(value, _is_number(value), "a number", type_))
    if types.is_integer(type_) or types.is_decimal(type_):
        _check(value, _is_number(value) and value == value, "a number", type_)
        return _int_if_whole(_exact(value) * 10 ** (type_.scale if types.is_decimal(type_) else 0))
    return _int_if_whole(_seconds(value, type_) * _ticks(type_))


def scalar_from_key(key: ComparisonKey, type_: pa.DataType) -> pa.Scalar | None:
    """Return the Arrow scalar for a comparison key, or None if the Arrow type cannot hold this value."""
    try:
        if types.is_decimal(type_):
            whole = int(key)
            digits = tuple(map(int, str(abs(whole))))
            return pa.scalar(Decimal((int(whole < 0), digits, -type_.scale)), type_)
        if types.is_boolean(type_):
            return pa.scalar(bool(key), type_) if key in (0, 1) else None
        return pa.scalar(key, type_)
    except (pa.ArrowException, OverflowError, ValueError):
        return None


# A comparison key that is greater than all values of integer, decimal and time types. This key stands for
# infinity, and for a value that equals no value of the type.
BEYOND_ALL = 10**80


def _is_stored_as_integer(type_: pa.DataType) -> bool:
    return bool(types.is_decimal(type_)) or is_any(type_, INTEGERS)


def is_text(type_: pa.DataType) -> bool:
    """Return True if the comparison keys of an Arrow type are strings."""
    return bool(types.is_string(type_) or types.is_large_string(type_))


def is_binary(type_: pa.DataType) -> bool:
    """Return True if the comparison keys of an Arrow type are bytes."""
    return bool(types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_))


def _is_number(value: Any) -> bool:
    known = isinstance(value, int | float | Decimal | Fraction | np.integer | np.floating)
    return known and not isinstance(value, bool | np.timedelta64)


def _check(value: Any, fits: bool, wanted: str, type_: pa.DataType) -> Any:
    if not fits:
        raise WrongTypeError(f"{value!r} is not {wanted}, the column is {type_}")
    return value


def _exact(value: Any) -> Fraction:
    if value in _INFINITE:
        return Fraction(BEYOND_ALL if value > 0 else -BEYOND_ALL)
    if isinstance(value, np.integer):
        return Fraction(int(value))
    return Fraction(*value.as_integer_ratio()) if isinstance(value, np.floating) else Fraction(value)


def _float_or_fraction(value: Any) -> float | Fraction:
    """Return the float that equals a number, or a fraction if no float equals the number."""
    if value != value or value in _INFINITE:
        return float(value)
    exact = _exact(value)
    try:
        return float(exact) if float(exact) == exact else exact
    except OverflowError:
        return exact


def _int_if_whole(value: Fraction) -> int | Fraction:
    return value.numerator if value.denominator == 1 else value


def _ticks(type_: pa.DataType) -> Fraction:
    """Return the number of units per second of a time type."""
    if types.is_date(type_):
        return Fraction(1, _DAY) if types.is_date32(type_) else Fraction(1000)
    return Fraction(_TICKS[type_.unit])


def _seconds(value: Any, type_: pa.DataType) -> Fraction:
    """Convert a time value to seconds: since 1970 for a date or timestamp, since midnight for a time, or the
    duration.

    The number of seconds is a Fraction.
    """
    if value is None or value != value:  # the value is NaT, which differs from itself
        raise WrongTypeError(f"{value!r} is null and cannot be compared, the column is {type_}")
    if types.is_timestamp(type_):
        return _instant(value, type_)
    if types.is_date(type_):
        value = _parsed(value, datetime.date, type_)
        right = isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
        _check(value, right, 'a date, such as datetime.date(2026, 2, 28) or "2026-02-28"', type_)
        return Fraction(value.toordinal() - _EPOCH.toordinal()) * _DAY
    if types.is_time(type_):
        value = _parsed(value, datetime.time, type_)
        _check(value, isinstance(value, datetime.time), 'a time, such as "12:30"', type_)
        whole = datetime.datetime.combine(_EPOCH, value.replace(tzinfo=None)) - _EPOCH
        return _seconds_of_duration(whole)
    value = getattr(value, "asm8", value)
    _check(value, isinstance(value, datetime.timedelta | np.timedelta64), "a timedelta", type_)
    return _seconds_of_duration(value)


def _instant(value: Any, type_: pa.DataType) -> Fraction:
    value = _parsed(value, datetime.datetime, type_)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime.combine(value, datetime.time())
    right = isinstance(value, datetime.datetime | np.datetime64)
    _check(value, right, 'a time, such as datetime.datetime(2026, 2, 28) or "2026-02-28 12:30"', type_)
    zone = getattr(value, "tzinfo", None)
    if (zone is None) != (type_.tz is None):
        zone_rule = "needs a time zone" if zone is None else "must not have a time zone"
        raise WrongTypeError(f"{value!r} {zone_rule}, because the column is {type_}")
    if hasattr(value, "asm8"):  # convert a pandas value, which may have nanoseconds, to a NumPy value in UTC
        value = value.asm8
    if isinstance(value, np.datetime64):
        return _seconds_of_duration(value.astype(f"datetime64[{_unit(value)}]") - np.datetime64("1970-01-01"))
    if zone is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return _seconds_of_duration(value - _EPOCH)


def _parsed(value: Any, kind: Any, type_: pa.DataType) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return kind.fromisoformat(value)
    except ValueError as error:
        raise WrongTypeError(f"{value!r} is not in ISO format ({error}), the column is {type_}") from None


def _seconds_of_duration(value: Any) -> Fraction:
    if isinstance(value, datetime.timedelta):
        return Fraction(value.days * _DAY + value.seconds) + Fraction(value.microseconds, 10**6)
    unit = _unit(value)
    return Fraction(int(value.astype(f"timedelta64[{unit}]").astype(np.int64)), _TICKS[unit])


def _unit(value: np.datetime64 | np.timedelta64) -> str:
    """Return the unit of a NumPy time value. For units that are longer than a second, return "s".

    Raises
    ------
    WrongTypeError
        If the value has no unit, or a unit that is shorter than a nanosecond.
    """
    unit = np.datetime_data(value.dtype)[0]
    if unit in ("ps", "fs", "as", "generic"):
        raise WrongTypeError(f"{value!r} has no time unit, or a unit shorter than nanoseconds")
    return unit if unit in _TICKS else "s"
