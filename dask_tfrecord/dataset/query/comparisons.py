"""Make predicates that compare a column with values: by comparison keys, as pandas does, or as Arrow does."""

import datetime
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from dask_tfrecord.dataset.query.comparison_keys import (
    BEYOND_ALL,
    WrongTypeError,
    comparison_key,
    is_binary,
    is_comparable,
    is_text,
)
from dask_tfrecord.dataset.query.predicates import COMPARE, Ambiguous, Compare, IsIn, Operator, Predicate
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.storage_types import value_type

# A Python float, which has 64 bits, can hold every integer of at most this many bits.
_FLOAT_DIGITS = 52

# The NumPy time units with a fixed length, from longest to shortest. Arrow has only the last four of these
# units.
_UNITS = ("W", "D", "h", "m", "s", "ms", "us", "ns")

_PYTHON_TIMES = (datetime.date, datetime.time, datetime.datetime, datetime.timedelta)

_NUMBERS = (int, float, np.float16, np.float32)
_NUMPY_INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32)

# A map from kinds of column types to value types. For a column type and a value type from this map, comparing
# with Arrow or NumPy gives the same result as comparing comparison keys. Filters with values of other types
# are applied only by pandas. Examples of such values are text that may be parsed as a time, nulls, uint64
# (which Arrow compares as floats), a mixture of decimals and floats, and values that only some versions
# accept.
_COMPARED_EXACTLY: tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
    (pa.types.is_boolean, (bool, np.bool_)),
    (pa.types.is_integer, (*_NUMBERS, *_NUMPY_INTEGERS)),
    (pa.types.is_floating, (*_NUMBERS, *_NUMPY_INTEGERS)),
    (pa.types.is_decimal, (int, Decimal)),
    (pa.types.is_date, (datetime.date,)),
    (pa.types.is_time, (datetime.time,)),
    (pa.types.is_timestamp, (datetime.datetime, np.datetime64)),
    (pa.types.is_duration, (datetime.timedelta, np.timedelta64)),
    (is_text, (str,)),
    (is_binary, (bytes,)),
)


def compare(field: Field, symbol: Operator, value: Any) -> Predicate:
    """Return the predicate that compares a column with a value.

    Raises
    ------
    WrongTypeError
        If the value cannot be compared with the column.
    """
    _check_comparable(field)
    key = comparison_key(value, field.type)
    if pa.types.is_dictionary(field.type) and field.type.ordered and symbol not in ("==", "!="):
        return _compare_categories(field, symbol, key)
    if isinstance(key, Fraction):
        symbol, key = _between(symbol, key, real=pa.types.is_floating(value_type(field.type)))
    return Compare(field.name, symbol, key)


def is_in(field: Field, values: Iterable[Any]) -> Predicate:
    """Return the predicate that is true for rows whose value in a column is one of the given values. The
    value None in ``values`` matches nulls.

    Raises
    ------
    WrongTypeError
        If a value cannot be compared with the column.
    """
    _check_comparable(field)
    values = list(values)
    keys = [comparison_key(value, field.type) for value in values if value is not None]
    return IsIn(field.name, tuple(key for key in keys if not isinstance(key, Fraction)), None in values)


def compare_in_pandas(field: Field, symbol: Operator, value: Any) -> Predicate:
    """Return the predicate that is equivalent to a comparison in pandas.

    The predicate is `Ambiguous` if the result in pandas depends on the dtype backend.

    Raises
    ------
    WrongTypeError
        If pandas may compare the value with the column in another way than comparison keys are compared.
    """
    exact = compare(field, symbol, _exactly_compared(field, value))
    rounded = _rounded(field, value)
    return exact if rounded == value else Ambiguous((exact, compare(field, symbol, rounded)))


def is_in_pandas(field: Field, values: Iterable[Any]) -> Predicate:
    """Return the predicate that is equivalent to ``isin`` in pandas.

    The predicate is `Ambiguous` if the result in pandas depends on the dtype backend. For ``isin``, pandas
    converts the values to one array. Therefore values of different types raise an error, unless the column
    holds floats.

    Raises
    ------
    WrongTypeError
        If pandas may compare a value with the column in another way than comparison keys are compared.
    """
    checked = [_exactly_compared(field, value) for value in values]
    type_ = value_type(field.type)
    is_float = pa.types.is_floating(type_)
    if not is_float and len({type(value) for value in checked}) > 1:
        raise WrongTypeError("pandas may convert values of several types to another one")
    if pa.types.is_temporal(type_) and not all(type(value) in _PYTHON_TIMES for value in checked):
        raise WrongTypeError("pandas may round the times to another unit")
    if pa.types.is_integer(type_) and not all(isinstance(value, int | np.integer) for value in checked):
        raise WrongTypeError("pandas may convert the column to floats")
    if not is_float:
        return is_in(field, checked)
    if not all(isinstance(value, int | float) for value in checked):
        raise WrongTypeError("pandas may round the values to shorter floats")
    rounded = [_rounded(field, value) for value in checked]
    nonzero = [value for value in checked if value]  # Arrow's function is_in treats -0.0 and 0.0 as different
    return Ambiguous((is_in(field, checked), is_in(field, rounded), is_in(field, nonzero)))


def _exactly_compared(field: Field, value: Any) -> Any:
    """Return the value if pandas compares it like its comparison key, with every dtype backend.

    If pandas may compare the value in another way, raise an error.
    """
    type_ = value_type(field.type)
    kinds = next((kinds for is_type, kinds in _COMPARED_EXACTLY if is_type(type_)), ())
    if not isinstance(value, kinds) or value != value:
        raise WrongTypeError(f"pandas may compare {value!r} with {type_} by rules of its own")
    if isinstance(value, bool | np.bool_) != pa.types.is_boolean(type_):
        raise WrongTypeError("pandas may compare True and False as numbers")
    if pa.types.is_dictionary(field.type) and not (is_text(type_) or pa.types.is_integer(type_)):
        raise WrongTypeError(f"pandas may look up {value!r} in the categories by rules of its own")
    if isinstance(value, datetime.datetime) and not pa.types.is_timestamp(type_):
        raise WrongTypeError("pandas may compare a datetime as a date")
    if isinstance(value, datetime.time) and value.tzinfo is not None:
        raise WrongTypeError("a time of day with a time zone has no comparison key")
    in_time = pa.types.is_timestamp(type_) or pa.types.is_duration(type_)
    if in_time and not (_is_int64(comparison_key(value, type_)) and _is_coarse(value, type_.unit)):
        raise WrongTypeError("Arrow may compare in a finer unit, in which values of the column overflow")
    if not _is_small(value, type_):
        raise WrongTypeError("large integers and floats are rounded before they are compared")
    return value


def _is_small(value: Any, type_: pa.DataType) -> bool:
    """Return True if pandas converts a value, and all integers close to this value, to floats exactly."""
    if pa.types.is_floating(type_) or isinstance(value, float | np.floating):
        if pa.types.is_floating(type_) and isinstance(value, float | np.floating):
            return True
        digits = np.finfo(type(value)).nmant if isinstance(value, np.floating) else _FLOAT_DIGITS
        return bool(abs(value) < 2**digits)
    return not isinstance(value, int) or _is_int64(value)


def _is_coarse(value: Any, unit: str) -> bool:
    """Return True if the unit of a time value is not finer than the unit of the column's type.

    Python's time types have no unit: pandas converts their values to the column's unit.
    """
    if type(value) in _PYTHON_TIMES:
        return True
    # `asm8` of a pandas value is the NumPy value.
    value_unit = np.datetime_data(getattr(value, "asm8", value).dtype)[0]
    return value_unit in _UNITS and _UNITS.index(value_unit) <= _UNITS.index(unit)


def _is_int64(key: Any) -> bool:
    return isinstance(key, int) and -(2**63) <= key < 2**63


def _rounded(field: Field, value: Any) -> Any:
    """Return a number, rounded as NumPy rounds it before a comparison with a column of 16-bit or 32-bit
    floats.
    """
    type_ = value_type(field.type)
    if not pa.types.is_floating(type_) or pa.types.is_float64(type_):
        return value
    with np.errstate(over="ignore"):
        return float(type_.to_pandas_dtype()(value))


def _check_comparable(field: Field) -> None:
    if pa.types.is_null(field.type) or not is_comparable(field.type):
        raise WrongTypeError(
            f'values of {field.type} cannot be compared; only the operators "is" and "is not" work'
        )


def _compare_categories(field: Field, symbol: Operator, key: Any) -> Predicate:
    """Return the predicate that compares an ordered categorical column by the order of its categories."""
    if field.categories is None:
        raise WrongTypeError(f"the order of the categories of {field.type} is not known")
    keys: list[Any] = [comparison_key(value, field.type) for value in field.categories.to_pylist()]
    if key not in keys:
        raise WrongTypeError(
            f"the value is not one of the column's ordered categories {field.categories.to_pylist()}"
        )
    at = keys.index(key)
    matching = [other for position, other in enumerate(keys) if COMPARE[symbol](position, at)]
    return IsIn(field.name, tuple(matching))


def _between(symbol: Operator, key: Fraction, *, real: bool) -> tuple[Operator, int | float]:
    """Convert a comparison with a key that lies between two values of the column's type to an equivalent
    operator and key.
    """
    if symbol in ("==", "!="):
        return symbol, float(BEYOND_ALL) if real else BEYOND_ALL
    return "<=" if symbol in ("<", "<=") else ">", _float_below(key) if real else math.floor(key)


def _float_below(key: Fraction) -> float:
    try:
        nearest = float(key)
    except OverflowError:
        nearest = math.inf if key > 0 else -math.inf
    return nearest if nearest < key else math.nextafter(nearest, -math.inf)
