"""Convert values of an Arrow type to comparison keys, and find the limits of a column's values in each file.

Comparison keys are Python values that compare in the same way as the Arrow values: the number that Arrow
stores for a number, a time or a bool, a str for text, and bytes for binary data. Values in users' filters and
bounds in snapshots become comparison keys, so that values of different types can be compared.

For speed, the module creates no Python objects for single files. It keeps the limits of all files in Arrow
arrays, and all other results in boolean masks with one element for each file.
"""

import datetime
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dask_tfrecord.files.file_list import FileList, statistics_name, value_name
from dask_tfrecord.schema.fields import Field
from dask_tfrecord.schema.logical_types import is_binary, is_text, scalar_kind, value_type

ComparisonKey: TypeAlias = int | float | str | bytes

_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = datetime.datetime(1970, 1, 1)
_DAY = 86_400
_SURROGATE = re.compile("[\ud800-\udfff]")
_INFINITE = (math.inf, -math.inf)  # `math.isinf` raises for an integer that is larger than all floats


class WrongTypeError(TypeError):
    """The error for a value that cannot be compared with a column. The error message says why the comparison
    is impossible.
    """


def is_comparable(type_: pa.DataType) -> bool:
    """Return True if the values of a type have comparison keys. Lists and tensors have no comparison keys."""
    return scalar_kind(value_type(type_)) is not None


def has_nan(type_: pa.DataType) -> bool:
    """Return True if values of a type can be NaN. The minimum and the maximum in a column's statistics ignore
    NaN.
    """
    return bool(types.is_floating(value_type(type_)))


def comparison_key(value: Any, type_: pa.DataType) -> ComparisonKey | Fraction:
    """Return the comparison key of a value for a column of the given type.

    The key is a Fraction if the value lies between two values of the type. Raise WrongTypeError if the value
    is null, or cannot be compared with the column.
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
    """Return the Arrow scalar for a comparison key, or None if the type cannot represent the value."""
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


# A comparison key that is greater than all values of integer, decimal and time types. `BEYOND_ALL` stands for
# infinity and, in `==` and `!=`, for a value that a column's type cannot represent.
BEYOND_ALL = 10**80


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
    """Return the float that equals a number, or a fraction if none does."""
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
    """Return how many units of a time type make one second."""
    if types.is_date(type_):
        return Fraction(1, _DAY) if types.is_date32(type_) else Fraction(1000)
    return Fraction(_TICKS[type_.unit])


def _seconds(value: Any, type_: pa.DataType) -> Fraction:
    """Convert a time value to seconds.

    Dates and timestamps count from 1970-01-01, and times of day count from midnight.
    """
    if value is None or value != value:  # NaT differs from itself
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
    """Return the unit of a NumPy time value, or "s" if it is longer than a second.

    Raise WrongTypeError if the value has no unit, or if the unit is shorter than a nanosecond.
    """
    unit = np.datetime_data(value.dtype)[0]
    if unit in ("ps", "fs", "as", "generic"):
        raise WrongTypeError(f"{value!r} has no time unit, or a unit shorter than nanoseconds")
    return unit if unit in _TICKS else "s"


# A boolean array with one element for each file.
Mask: TypeAlias = npt.NDArray[np.bool_]


class ColumnRange(NamedTuple):
    """The known limits of a column's values in each file.

    ``low`` and ``high`` contain a lower and an upper limit for each file. The limits ignore NaN. A null means
    that the limit of a file is unknown. None instead of an array means that all limits are unknown.
    ``may_have_values``, ``may_have_nulls`` and ``may_have_nan`` are False for files in which the column is
    known to have no values, no nulls or no NaN, respectively.
    """

    low: pa.Array | None
    high: pa.Array | None
    may_have_values: Mask
    may_have_nulls: Mask
    may_have_nan: Mask


@dataclass(frozen=True, eq=False)
class FileRanges:
    """The known limits of the columns of several files.

    Nothing is known about a column that is not in ``columns``. An element of ``may_have_rows`` is False if
    the file is known to have no rows.
    """

    may_have_rows: Mask
    columns: Mapping[str, ColumnRange]

    def column(self, name: str) -> ColumnRange:
        anything = np.ones(len(self.may_have_rows), bool)
        return self.columns.get(name, ColumnRange(None, None, anything, anything, anything))


def file_ranges(fields: Iterable[Field], files: FileList, records: pa.ChunkedArray | None) -> FileRanges:
    """Return the known limits of the given columns in each file of a file list.

    ``records`` contains the record count of each complete file in the snapshot. It is None for files that no
    snapshot lists, which have no statistics.
    """
    ranges = {
        item.name: range_of_values(item, files[value_name(item.name)].combine_chunks())
        for item in fields
        if value_name(item.name) in files
    }
    if records is None:
        return FileRanges(np.ones(len(files), bool), ranges)
    counts = records.to_numpy()
    for item in fields:
        name = statistics_name(item.name)
        if item.name not in ranges and name in files:
            ranges[item.name] = range_of_statistics(item, files[name].combine_chunks(), counts)
    return FileRanges(counts != 0, ranges)


def range_of_statistics(
    field: Field, statistics: pa.StructArray, records: npt.NDArray[np.int64]
) -> ColumnRange:
    """Return the limits of a column in each file, taken from the file's statistics.

    ``records`` contains the number of records of each file.
    """
    is_known = _mask(statistics.is_valid())
    nulls = pc.fill_null(statistics.field("nulls"), 0).to_numpy()
    may_have_values, may_have_nulls = ~is_known | (nulls < records), ~is_known | (nulls > 0)
    if not is_comparable(field.type) or statistics.type.get_field_index("min") < 0:
        return ColumnRange(None, None, may_have_values, may_have_nulls, ~is_known)
    low, high = (_bounds(field, statistics.field(name), is_known) for name in ("min", "max"))
    may_have_nan = may_have_values if has_nan(field.type) else ~is_known
    return ColumnRange(low, high, may_have_values, may_have_nulls, may_have_nan)


def range_of_values(field: Field, values: pa.Array) -> ColumnRange:
    """Return the limits of a column that has the same value in all rows of a file."""
    is_null = _mask(values.is_null())
    has_no_nan = np.zeros(len(values), bool)
    if not is_comparable(field.type):
        return ColumnRange(None, None, ~is_null, is_null, has_no_nan)
    bounds = _bounds(field, values, ~is_null)
    may_have_nan = has_no_nan if not has_nan(field.type) else ~is_null & _unknown(bounds, len(values))
    return ColumnRange(bounds, bounds, ~is_null, is_null, may_have_nan)


def comparable_values(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert a column to a type that Arrow compares in the same way as comparison keys."""
    type_ = value_type(column.type)
    if pa.types.is_floating(type_):  # convert to float64, so that the key is compared without rounding
        return (
            column.cast(pa.float32()).cast(pa.float64())
            if pa.types.is_float16(type_)
            else column.cast(pa.float64())
        )
    comparable = pa.binary() if pa.types.is_fixed_size_binary(type_) else type_
    return column if column.type == comparable else column.cast(comparable)


def _bounds(field: Field, values: pa.Array, is_known: Mask) -> pa.Array | None:
    """Convert bounds with `comparable_values`. NaN and unknown bounds become null.

    Return None if the bounds do not have the type of the column.
    """
    if value_type(values.type) != value_type(field.type):
        return None
    bounds = comparable_values(values)
    if has_nan(field.type):
        is_known = is_known & _mask(pc.equal(bounds, bounds))
    return bounds if is_known.all() else pc.if_else(pa.array(is_known), bounds, pa.scalar(None, bounds.type))


def _unknown(bounds: pa.Array | None, count: int) -> Mask:
    return np.ones(count, bool) if bounds is None else _mask(bounds.is_null())


def _mask(array: pa.Array) -> Mask:
    mask: Mask = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    return mask
