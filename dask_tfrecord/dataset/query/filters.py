"""What people write -> predicates: comparisons with values of the columns' types, and ``filters=``."""

import datetime
import math
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from typing import Any, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.query.comparison_keys import (
    BEYOND,
    WrongTypeError,
    is_binary,
    is_comparable,
    is_text,
    key_of,
)
from dask_tfrecord.dataset.query.predicates import (
    COMPARE,
    And,
    Compare,
    IsIn,
    IsNull,
    Not,
    OfArrow,
    Operator,
    Or,
    Predicate,
    Unsure,
)
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.model import Field, Schema
from dask_tfrecord.schema.storage_types import value_type

# Floats hold every integer of so many bits.
_FLOAT_DIGITS = 52

# From the longest to the shortest: those of NumPy that have a fixed length, and those of Arrow at the end.
_UNITS = ("W", "D", "h", "m", "s", "ms", "us", "ns")

_PYTHON_TIMES = (datetime.date, datetime.time, datetime.datetime, datetime.timedelta)

_NUMBERS = (int, float, np.float16, np.float32)
_NUMPY_INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32)

# By the type of a column: the types of the values that Arrow and NumPy compare to it exactly as their keys
# are compared. All other values are left to pandas: text that may be read as a time, missing values, uint64
# (which Arrow compares as floats), decimals and floats, and what only some versions take.
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
    """A column against a value of any type that can be compared to it.

    Raises
    ------
    WrongTypeError
        For a value that cannot.
    """
    _check_comparable(field)
    key = key_of(value, field.type)
    if pa.types.is_dictionary(field.type) and field.type.ordered and symbol not in ("==", "!="):
        return _compare_categories(field, symbol, key)
    if isinstance(key, Fraction):
        symbol, key = _between(symbol, key, real=pa.types.is_floating(value_type(field.type)))
    return Compare(field.name, symbol, key)


def is_in(field: Field, values: Iterable[Any]) -> Predicate:
    """Whether a column has one of the values, of which one may be None.

    Raises
    ------
    WrongTypeError
        For a value that cannot be compared to the column.
    """
    _check_comparable(field)
    wanted = list(values)
    keys = [key_of(value, field.type) for value in wanted if value is not None]
    return IsIn(field.name, tuple(key for key in keys if not isinstance(key, Fraction)), None in wanted)


def compare_in_pandas(field: Field, symbol: Operator, value: Any) -> Predicate:
    """What pandas makes of a comparison; unsure where that depends on how the column is backed.

    Raises
    ------
    WrongTypeError
        For a value that pandas may compare to the column in a way of its own.
    """
    exact = compare(field, symbol, _sure(field, value))
    rounded = _rounded(field, value)
    return exact if rounded == value else Unsure((exact, compare(field, symbol, rounded)))


def is_in_pandas(field: Field, values: Iterable[Any]) -> Predicate:
    """What pandas makes of `isin`, with the same reservations.

    All values become one array there, so they are of one type here.
    """
    wanted = [_sure(field, value) for value in values]
    type_ = value_type(field.type)
    real = pa.types.is_floating(type_)
    if not real and len({type(value) for value in wanted}) > 1:
        raise WrongTypeError("pandas may convert values of several types to another one")
    if pa.types.is_temporal(type_) and not all(type(value) in _PYTHON_TIMES for value in wanted):
        raise WrongTypeError("pandas may round the times to another unit")
    if pa.types.is_integer(type_) and not all(isinstance(value, int | np.integer) for value in wanted):
        raise WrongTypeError("pandas may convert the column to floats")
    if not real:
        return is_in(field, wanted)
    if not all(isinstance(value, int | float) for value in wanted):
        raise WrongTypeError("pandas may round the values to shorter floats")
    rounded = [_rounded(field, value) for value in wanted]
    nonzero = [value for value in wanted if value]  # Arrow tells the zeros of floats apart
    return Unsure((is_in(field, wanted), is_in(field, rounded), is_in(field, nonzero)))


def _sure(field: Field, value: Any) -> Any:
    """The value, if pandas compares it to the column exactly as keys are compared, whatever the backend."""
    type_ = value_type(field.type)
    kinds = next((kinds for is_type, kinds in _COMPARED_EXACTLY if is_type(type_)), ())
    if not isinstance(value, kinds) or value != value:
        raise WrongTypeError(f"pandas may compare {value!r} to {type_} in a way of its own")
    if isinstance(value, bool | np.bool_) != pa.types.is_boolean(type_):
        raise WrongTypeError("True and False are numbers, too")
    if pa.types.is_dictionary(field.type) and not (is_text(type_) or pa.types.is_integer(type_)):
        raise WrongTypeError(f"pandas may look for {value!r} among the categories in a way of its own")
    if isinstance(value, datetime.datetime) and not pa.types.is_timestamp(type_):
        raise WrongTypeError("a time is a date, too")
    if isinstance(value, datetime.time) and value.tzinfo is not None:
        raise WrongTypeError("a time of day with a time zone is no number")
    in_time = pa.types.is_timestamp(type_) or pa.types.is_duration(type_)
    if in_time and not (_fits(key_of(value, type_)) and _is_coarse(value, type_.unit)):
        raise WrongTypeError("Arrow may compare them in a finer unit, in which the column's values overflow")
    if not _is_small(value, type_):
        raise WrongTypeError("large integers and floats are rounded before they are compared")
    return value


def _is_small(value: Any, type_: pa.DataType) -> bool:
    """True if neither the value nor a column's integers near it are rounded where both become floats."""
    if pa.types.is_floating(type_) or isinstance(value, float | np.floating):
        if pa.types.is_floating(type_) and isinstance(value, float | np.floating):
            return True
        digits = np.finfo(type(value)).nmant if isinstance(value, np.floating) else _FLOAT_DIGITS
        return bool(abs(value) < 2**digits)
    return not isinstance(value, int) or _fits(value)


def _is_coarse(value: Any, unit: str) -> bool:
    """True for Python's times, which pandas converts to the column's unit, and for those in no finer unit."""
    if type(value) in _PYTHON_TIMES:
        return True
    own = np.datetime_data(getattr(value, "asm8", value).dtype)[0]  # pandas has NumPy's value in `asm8`
    return own in _UNITS and _UNITS.index(own) <= _UNITS.index(unit)


def _fits(key: Any) -> bool:
    return isinstance(key, int) and -(2**63) <= key < 2**63


def _rounded(field: Field, value: Any) -> Any:
    """A number as numpy would round it to compare it to the column's values."""
    type_ = value_type(field.type)
    if not pa.types.is_floating(type_) or pa.types.is_float64(type_):
        return value
    with np.errstate(over="ignore"):
        return float(type_.to_pandas_dtype()(value))


def parse_filters(filters: Any, schema: Schema) -> Predicate:
    """The predicate that ``filters=`` means, for columns of the schema.

    Raises
    ------
    SchemaError
        For anything that is no filter, or none for these columns.
    """
    if isinstance(filters, pc.Expression):
        return _of_arrow(filters, schema)
    if not isinstance(filters, list | tuple) or not filters:
        raise _malformed(filters)
    if _is_condition(filters):
        raise _malformed(filters)
    flat = all(_is_condition(item) for item in filters)
    groups = [filters] if flat else filters
    parsed = [reduce(And, _conditions(group, schema)) for group in groups]
    return reduce(Or, parsed)


def names_in(filters: Any) -> set[str]:
    """The columns that conditions look at, as far as they are conditions."""
    if _is_condition(filters):
        return {filters[0]}
    return set().union(*map(names_in, filters)) if isinstance(filters, list | tuple) else set()


def _of_arrow(expression: pc.Expression, schema: Schema) -> Predicate:
    """An expression of pyarrow, which tells its columns only by failing without them."""
    table = pa.Table.from_batches([schema.no_rows()])
    try:
        table.filter(expression)
    except pa.ArrowException as error:
        raise SchemaError(
            f"filters= does not suit the columns: {error}", advice="compare columns to values of their types"
        ) from None
    names = [name for name in schema.names if _fails(table.drop_columns([name]), expression)]
    if not names or "FieldPath(" in str(expression):
        raise SchemaError(
            f"filters= names no column, or one by its number: {expression}",
            advice='name columns, such as pc.field("year") > 2020',
        )
    return OfArrow(expression, tuple(names))


def _fails(table: pa.Table, expression: pc.Expression) -> bool:
    try:
        table.filter(expression)
    except pa.ArrowException:
        return True
    return False


def _conditions(group: Any, schema: Schema) -> Iterator[Predicate]:
    if not isinstance(group, list | tuple) or not group or not all(map(_is_condition, group)):
        raise _malformed(group)
    for name, symbol, value in group:
        [field] = schema.select([name]).fields
        try:
            yield _condition(field, symbol, value)
        except SchemaError:  # which says it all
            raise
        except (ArithmeticError, TypeError, ValueError) as error:  # also those of odd values' own operators
            raise SchemaError(
                f"the filter {(name, symbol, value)!r} does not suit the column: {error}",
                feature=name,
                advice="compare it to values of its own type, or filter the frame after reading",
            ) from None


def _is_condition(item: Any) -> bool:
    return (
        isinstance(item, list | tuple) and len(item) == 3 and all(isinstance(part, str) for part in item[:2])
    )


def _condition(field: Field, symbol: str, value: Any) -> Predicate:
    if symbol in ("in", "not in"):
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise WrongTypeError(f"{symbol!r} needs a list, a tuple or a set of values, not {value!r}")
        found = is_in(field, value)
        return Not(found) if symbol == "not in" else found
    if symbol in ("is", "is not"):
        if value is not None:
            raise WrongTypeError(f"{symbol!r} needs None, not {value!r}")
        return Not(IsNull(field.name)) if symbol == "is not" else IsNull(field.name)
    symbol = "==" if symbol == "=" else symbol
    if symbol not in get_args(Operator):
        known = ", ".join(map(repr, ("=", *get_args(Operator), "in", "not in", "is", "is not")))
        raise SchemaError(f"unknown operator {symbol!r} in filters=; known are {known}", feature=field.name)
    if value is None:
        raise WrongTypeError('missing values are found by "is" and "is not"')
    return compare(field, cast(Operator, symbol), value)


def _malformed(found: Any) -> SchemaError:
    return SchemaError(
        f"filters= is not a list of (column, operator, value), or a list of such lists: {found!r}",
        advice='pass for example [("year", ">=", 2024), ("country", "in", ["FR", "PL"])], or an expression '
        'of pyarrow such as pc.field("year") >= 2024',
    )


def _check_comparable(field: Field) -> None:
    if pa.types.is_null(field.type) or not is_comparable(field.type):
        raise WrongTypeError(f"values of {field.type} cannot be compared, only looked for")


def _compare_categories(field: Field, symbol: Operator, key: Any) -> Predicate:
    """By the order of the categories, which is not that of their values."""
    if field.categories is None:
        raise WrongTypeError(f"the order of the categories of {field.type} is not known")
    keys: list[Any] = [key_of(value, field.type) for value in field.categories.to_pylist()]
    if key not in keys:
        raise WrongTypeError(f"it is none of the column's ordered categories {field.categories.to_pylist()}")
    at = keys.index(key)
    wanted = [other for place, other in enumerate(keys) if COMPARE[symbol](place, at)]
    return IsIn(field.name, tuple(wanted))


def _between(symbol: Operator, key: Fraction, *, real: bool) -> tuple[Operator, int | float]:
    """The same for values that are floats, or whole numbers, when the key is between two of them."""
    if symbol in ("==", "!="):
        return symbol, float(BEYOND) if real else BEYOND
    return "<=" if symbol in ("<", "<=") else ">", _float_below(key) if real else math.floor(key)


def _float_below(key: Fraction) -> float:
    try:
        nearest = float(key)
    except OverflowError:
        nearest = math.inf if key > 0 else -math.inf
    return nearest if nearest < key else math.nextafter(nearest, -math.inf)
