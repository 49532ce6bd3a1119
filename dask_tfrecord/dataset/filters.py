"""What people write -> predicates: comparisons with values of the columns' types, and ``filters=``."""

import datetime
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from typing import Any, cast, get_args

import numpy as np
import pyarrow as pa

from dask_tfrecord.dataset.keys import BEYOND, WrongTypeError, is_comparable, key_of, value_type
from dask_tfrecord.dataset.predicates import (
    COMPARE,
    And,
    Compare,
    IsIn,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
    Unsure,
)
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema import Field, Schema

# Up to here floats hold every integer.
_EXACT_FLOAT = 2**53


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
        symbol, key = _on_whole(symbol, key)
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
        For a value that only pandas may know how to compare.
    """
    exact = compare(field, symbol, _sure(field, value))
    rounded = _rounded(field, value)
    return exact if rounded == value else Unsure((exact, compare(field, symbol, rounded)))


def is_in_pandas(field: Field, values: Iterable[Any]) -> Predicate:
    """What pandas makes of `isin`, with the same reservations."""
    wanted = [_sure(field, value) for value in values]
    if pa.types.is_temporal(value_type(field.type)) and any(isinstance(value, str) for value in wanted):
        raise WrongTypeError("text is not always read as a time")
    exact = is_in(field, wanted)
    rounded = [_rounded(field, value) for value in wanted]
    return exact if rounded == wanted else Unsure((exact, is_in(field, rounded)))


def _sure(field: Field, value: Any) -> Any:
    """The value, if Arrow and numpy compare it as exactly as keys do."""
    type_ = value_type(field.type)
    real = isinstance(value, float | np.floating)
    if value is None or value != value or isinstance(value, Fraction):
        raise WrongTypeError("what is missing differs with the backend")
    if isinstance(value, Decimal) != pa.types.is_decimal(type_) and (real or isinstance(value, Decimal)):
        raise WrongTypeError("decimals and floats are compared as floats")
    if pa.types.is_timestamp(type_) and type(value) is datetime.date:
        raise WrongTypeError("numpy takes no date for a time")
    if real and not pa.types.is_floating(type_) and abs(value) >= _EXACT_FLOAT:
        raise WrongTypeError("large integers and floats are compared as floats")
    return value


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
    if not isinstance(filters, list | tuple) or not filters:
        raise _malformed(filters)
    if _is_condition(filters):
        raise _malformed(filters)
    flat = all(_is_condition(item) for item in filters)
    groups = [filters] if flat else filters
    parsed = [reduce(And, _conditions(group, schema)) for group in groups]
    return reduce(Or, parsed)


def _conditions(group: Any, schema: Schema) -> Iterator[Predicate]:
    if not isinstance(group, list | tuple) or not group or not all(map(_is_condition, group)):
        raise _malformed(group)
    for name, symbol, value in group:
        [field] = schema.select([name]).fields
        try:
            yield _condition(field, symbol, value)
        except WrongTypeError as error:
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
        advice='pass for example [("year", ">=", 2024), ("country", "in", ["FR", "PL"])]',
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


def _on_whole(symbol: Operator, key: Fraction) -> tuple[Operator, int]:
    """The same for values that are whole numbers, when the key is between two of them."""
    if symbol in ("==", "!="):
        return symbol, BEYOND
    return "<=" if symbol in ("<", "<=") else ">", math.floor(key)
