"""Define predicates: conditions that filter rows and exclude files that need not be read.

For each row, the outcome of a predicate is true, false or null, as in SQL. A filter keeps the rows for which
the predicate is true. If a file has not been read, its partition values and its statistics in a snapshot
limit the possible outcomes. For example, if the minimum of ``x`` is 5, ``x < 3`` is true for no row. A
predicate compares values by the rules of comparison keys, of pandas, or of Arrow.
"""

import datetime
import math
import operator
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from hashlib import sha256
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions

from dask_tfrecord.dataset.query.comparison_keys import (
    BEYOND_ALL,
    ColumnRange,
    ComparisonKey,
    FileRanges,
    Mask,
    WrongTypeError,
    comparable_values,
    comparison_key,
    file_ranges,
    is_comparable,
    scalar_from_key,
)
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.files.file_list import FileList
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import is_binary, is_text, value_type

Operator = Literal["==", "!=", "<", "<=", ">", ">="]


class Outcomes(NamedTuple):
    """The possible outcomes of a predicate. The mask of an outcome is True for files in which a row may have
    it.
    """

    true: Mask
    false: Mask
    null: Mask

    @property
    def only_true(self) -> Mask:
        """A mask of the files in which the predicate is true for all rows."""
        return ~(self.false | self.null)


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# Maps the names of Arrow's comparison functions to operators.
OPERATORS: dict[str, Operator] = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_ARROW = {symbol: getattr(pc, name) for name, symbol in OPERATORS.items()}


class Predicate(ABC):
    """The base class of predicates, which are conditions on the rows of a table."""

    @abstractmethod
    def columns(self) -> set[str]:
        """Return the names of the columns that the predicate uses."""

    @abstractmethod
    def outcomes(self, ranges: FileRanges) -> Outcomes:
        """Return the possible outcomes of the predicate in each file."""

    @abstractmethod
    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the outcome of the predicate for each row of a table."""


@dataclass(frozen=True)
class _OfColumn(Predicate):
    name: str

    def columns(self) -> set[str]:
        return {self.name}


@dataclass(frozen=True)
class Compare(_OfColumn):
    """A predicate that compares a column with a comparison key. If the value of the column is null, the
    outcome is null.
    """

    operator: Operator
    key: ComparisonKey

    def outcomes(self, ranges: FileRanges) -> Outcomes:
        column = ranges.column(self.name)
        true = column.may_have_values & _can_be(self.operator, column, self.key, True)
        false = column.may_have_values & _can_be(self.operator, column, self.key, False)
        # In Arrow, a comparison with null returns null. NumPy represents a null as NaN, which differs from
        # every value.
        missing = column.may_have_nulls | column.may_have_nan
        if self.operator == "!=":
            return Outcomes(true | missing, false, missing)
        return Outcomes(true, false | missing, missing)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return _compare(comparable_values(table[self.name]), self.operator, self.key)


@dataclass(frozen=True)
class IsIn(_OfColumn):
    """A predicate that is true if the value of a column is one of ``keys``.

    If the value of the column is null, the outcome is ``matches_null``.
    """

    keys: tuple[ComparisonKey, ...]
    matches_null: bool = False

    def outcomes(self, ranges: FileRanges) -> Outcomes:
        column = ranges.column(self.name)
        nothing = np.zeros(len(ranges.may_have_rows), bool)
        may_match = reduce(np.logical_or, (_can_be("==", column, key, True) for key in self.keys), nothing)
        may_differ = reduce(
            np.logical_and, (_can_be("==", column, key, False) for key in self.keys), ~nothing
        )
        true, false = column.may_have_values & may_match, column.may_have_values & may_differ
        false |= column.may_have_nan
        if any(key != key for key in self.keys):
            true |= column.may_have_nan
        if self.matches_null:
            return Outcomes(true | column.may_have_nulls, false, nothing)
        return Outcomes(true, false | column.may_have_nulls, nothing)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        column = comparable_values(table[self.name])
        # Arrow's `is_in` does not treat -0.0 and 0.0 as equal.
        keys = [*self.keys, *(-key for key in self.keys if key == 0)]
        scalars = [scalar_from_key(key, column.type) for key in keys]
        # A time stays an integer, because Python's types cannot represent all of Arrow's times.
        is_time = pa.types.is_temporal(column.type)
        values = [one.value if is_time else one.as_py() for one in scalars if one is not None]
        values = pa.array([*values, *[None] * self.matches_null], column.type)
        return pc.is_in(column, value_set=values)


@dataclass(frozen=True)
class IsNull(_OfColumn):
    """A predicate that is true if the value of a column is null.

    If a file may contain NaN, true is a possible outcome, because pandas may treat NaN as null.
    """

    def outcomes(self, ranges: FileRanges) -> Outcomes:
        column = ranges.column(self.name)
        nothing = np.zeros(len(ranges.may_have_rows), bool)
        return Outcomes(column.may_have_nulls | column.may_have_nan, column.may_have_values, nothing)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return table[self.name].is_null()


@dataclass(frozen=True)
class _Pair(Predicate):
    """Two predicates that are combined with the three-valued logic of SQL."""

    left: Predicate
    right: Predicate

    _combine_masks: ClassVar["staticmethod[[pa.ChunkedArray, pa.ChunkedArray], pa.ChunkedArray]"]

    def columns(self) -> set[str]:
        return self.left.columns() | self.right.columns()

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return self._combine_masks(self.left.mask(table), self.right.mask(table))


class And(_Pair):
    """The conjunction (AND) of two predicates."""

    _combine_masks = staticmethod(pc.and_kleene)

    def outcomes(self, ranges: FileRanges) -> Outcomes:
        return _conjunction(self.left.outcomes(ranges), self.right.outcomes(ranges))


class Or(_Pair):
    """The disjunction (OR) of two predicates."""

    _combine_masks = staticmethod(pc.or_kleene)

    def outcomes(self, ranges: FileRanges) -> Outcomes:
        left, right = _negation(self.left.outcomes(ranges)), _negation(self.right.outcomes(ranges))
        return _negation(_conjunction(left, right))


def _conjunction(left: Outcomes, right: Outcomes) -> Outcomes:
    """Combine the outcomes of two predicates with AND, assuming that every pair of outcomes can occur."""
    true = left.true & right.true
    false = (left.false & (right.true | right.false | right.null)) | (right.false & (left.true | left.null))
    null = (left.null & (right.true | right.null)) | (left.true & right.null)
    return Outcomes(true, false, null)


def _negation(outcomes: Outcomes) -> Outcomes:
    return Outcomes(outcomes.false, outcomes.true, outcomes.null)


@dataclass(frozen=True)
class Not(Predicate):
    """The negation (NOT) of a predicate. The negation is null if the predicate is null."""

    operand: Predicate

    def columns(self) -> set[str]:
        return self.operand.columns()

    def outcomes(self, ranges: FileRanges) -> Outcomes:
        return _negation(self.operand.outcomes(ranges))

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return pc.invert(self.operand.mask(table))


@dataclass(frozen=True)
class Ambiguous(Predicate):
    """A pandas filter that is equivalent to an unknown element of ``candidates``.

    If ``candidates`` is empty, the filter may be equivalent to any predicate. `mask` raises TypeError,
    because only pandas can apply the filter.
    """

    candidates: tuple[Predicate, ...] = ()

    def columns(self) -> set[str]:
        return {name for candidate in self.candidates for name in candidate.columns()}

    def outcomes(self, ranges: FileRanges) -> Outcomes:
        if not self.candidates:
            anything = np.ones(len(ranges.may_have_rows), bool)
            return Outcomes(anything, anything, anything)
        found = zip(*(candidate.outcomes(ranges) for candidate in self.candidates), strict=True)
        return Outcomes(*(reduce(np.logical_or, masks) for masks in found))

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        raise TypeError("the filter has no mask: it is unknown which of the predicates is equivalent to it")


@dataclass(frozen=True, eq=False, repr=False)
class ArrowExpression(Predicate):
    """A predicate that evaluates a pyarrow expression with Arrow.

    The possible outcomes of ``pruning`` include all outcomes of the expression.
    """

    expression: pc.Expression
    names: tuple[str, ...]
    pruning: Predicate = Ambiguous()

    def columns(self) -> set[str]:
        return set(self.names)

    def outcomes(self, ranges: FileRanges) -> Outcomes:
        return self.pruning.outcomes(ranges)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        source = Declaration("table_source", TableSourceNodeOptions(table.select(self.names)))
        mask = Declaration("project", ProjectNodeOptions([self.expression], ["mask"]), [source])
        try:
            return mask.to_table(use_threads=False)["mask"]
        except pa.ArrowException as error:  # for example, Arrow cannot cast a value
            raise SchemaError(
                f"filters= cannot be applied to the values of {', '.join(map(repr, self.names))}: {error}",
                'cast the columns in the expression, such as pc.field("year").cast("float64", safe=False)',
                keyword="filters",
            ) from None

    def __repr__(self) -> str:
        """Include a hash of the expression, because Arrow abbreviates the text of an expression."""
        return f"ArrowExpression({sha256(pickle.dumps(self.expression)).hexdigest()}, {self.names})"


def possible_outcomes(predicate: Predicate, ranges: FileRanges) -> Outcomes:
    """Return a predicate's possible outcomes in each file. A file without rows has no possible outcomes."""
    return Outcomes(*(mask & ranges.may_have_rows for mask in predicate.outcomes(ranges)))


def file_outcomes(
    predicate: Predicate, schema: Schema, files: FileList, records: pa.ChunkedArray | None
) -> Outcomes:
    """Return the possible outcomes of a predicate in each file of a list. The limits of the columns come from
    `file_ranges`.

    ``schema`` contains the columns of the files. ``records`` is passed on to `file_ranges`.
    """
    names = predicate.columns()
    fields = [one for item in schema.fields for one in item.family if one.name in names]
    return possible_outcomes(predicate, file_ranges(fields, files, records))


def _can_be(symbol: Operator, column: ColumnRange, key: Any, answer: bool) -> Mask:
    """Return, for each file, True if a comparison of the column with ``key`` can return ``answer``."""
    if symbol in ("!=", "<=", ">="):
        opposite: dict[str, Operator] = {"!=": "==", "<=": ">", ">=": "<"}
        if key != key:  # in a comparison with NaN, only != is true
            return np.full(len(column.may_have_values), answer == (symbol == "!="))
        return _can_be(opposite[symbol], column, key, not answer)
    if symbol == "==":
        if answer:
            return _test(column, "low", "<=", key, True) & _test(column, "high", ">=", key, True)
        return ~(_test(column, "low", "==", key, False) & _test(column, "high", "==", key, False))
    nearest: Literal["low", "high"] = "low" if (symbol == "<") == answer else "high"
    test = _test(column, nearest, symbol, key, answer)
    return test if answer else ~test


def _test(
    column: ColumnRange, bound: Literal["low", "high"], symbol: Operator, key: Any, unknown: bool
) -> Mask:
    """Compare the lower or upper limit of each file with ``key``. If a limit is unknown, the result is
    ``unknown``.
    """
    bounds = column.low if bound == "low" else column.high
    if bounds is None:
        return np.full(len(column.may_have_values), unknown)
    mask: Mask = pc.fill_null(_compare(bounds, symbol, key), unknown).to_numpy(zero_copy_only=False)
    return mask


def _compare(values: Any, symbol: Operator, key: ComparisonKey) -> Any:
    """Compare values, converted by `comparable_values`, with a comparison key. For a null value, the result
    is null.
    """
    scalar = scalar_from_key(key, values.type)
    if scalar is None:  # the key is greater or less than all values of the type
        answer = COMPARE[symbol](0, key)
        return pc.if_else(values.is_valid(), answer, pa.scalar(None, pa.bool_()))
    return _ARROW[symbol](values, scalar)


# A Python float, which has 64 bits, can represent every integer of at most this many bits.
_FLOAT_DIGITS = 52

# The NumPy time units with a fixed length, from longest to shortest. Arrow supports only the units "s", "ms",
# "us" and "ns".
_UNITS = ("W", "D", "h", "m", "s", "ms", "us", "ns")

_PYTHON_TIMES = (datetime.date, datetime.time, datetime.datetime, datetime.timedelta)

_NUMBERS = (int, float, np.float16, np.float32)
_NUMPY_INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32)

# Maps column types to the types of filter values for which Arrow, NumPy and comparison keys give equal
# results. A comparison with a value of any other type excludes no files. For example, the map omits text that
# may be parsed as a time, nulls, uint64 (which Arrow compares as floats), and mixtures of decimals and
# floats. Values that only some library versions accept are omitted, too.
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
    """Return a predicate that compares a column with a value. Raise WrongTypeError if the column and the
    value cannot be compared.
    """
    _check_comparable(field)
    key = comparison_key(value, field.type)
    if pa.types.is_dictionary(field.type) and field.type.ordered and symbol not in ("==", "!="):
        return _compare_categories(field, symbol, key)
    if isinstance(key, Fraction):
        symbol, key = _between(symbol, key, real=pa.types.is_floating(value_type(field.type)))
    return Compare(field.name, symbol, key)


def is_in(field: Field, values: Iterable[Any]) -> Predicate:
    """Return a predicate that is true if the column's value is one of ``values``. None stands for nulls."""
    _check_comparable(field)
    values = list(values)
    keys = [comparison_key(value, field.type) for value in values if value is not None]
    return IsIn(field.name, tuple(key for key in keys if not isinstance(key, Fraction)), None in values)


def compare_in_pandas(field: Field, symbol: Operator, value: Any) -> Predicate:
    """Return the predicate that is equivalent to a comparison in pandas.

    The predicate is `Ambiguous` if the result in pandas depends on the dtype backend. Raise WrongTypeError if
    pandas may compare the value differently from its comparison key.
    """
    exact = compare(field, symbol, _exactly_compared(field, value))
    rounded = _rounded(field, value)
    return exact if rounded == value else Ambiguous((exact, compare(field, symbol, rounded)))


def is_in_pandas(field: Field, values: Iterable[Any]) -> Predicate:
    """Return the predicate that is equivalent to ``isin`` in pandas.

    The predicate is `Ambiguous` if the result of ``isin`` depends on the dtype backend of pandas. Raise
    WrongTypeError for values of different types, because ``isin`` converts the values to one array. If the
    column contains floats, the values may be a mixture of integers and floats.
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
    """Return ``value`` if all dtype backends of pandas compare it in the same way as its comparison key.
    Otherwise, raise WrongTypeError.
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
    """Return True if rounding integers to floats cannot change the result of a comparison with a value."""
    if pa.types.is_floating(type_) or isinstance(value, float | np.floating):
        if pa.types.is_floating(type_) and isinstance(value, float | np.floating):
            return True
        digits = np.finfo(type(value)).nmant if isinstance(value, np.floating) else _FLOAT_DIGITS
        return bool(abs(value) < 2**digits)
    return not isinstance(value, int) or _is_int64(value)


def _is_coarse(value: Any, unit: str) -> bool:
    """Return True if the unit of a time value is not finer than the unit of the column's type.

    A value of a Python time type has no unit, so pandas converts it to the column's unit.
    """
    if type(value) in _PYTHON_TIMES:
        return True
    # `asm8` of a pandas Timestamp or Timedelta is the NumPy value.
    value_unit = np.datetime_data(getattr(value, "asm8", value).dtype)[0]
    return value_unit in _UNITS and _UNITS.index(value_unit) <= _UNITS.index(unit)


def _is_int64(key: Any) -> bool:
    return isinstance(key, int) and -(2**63) <= key < 2**63


def _rounded(field: Field, value: Any) -> Any:
    """Round a number as NumPy rounds it before a comparison with 16-bit or 32-bit floats."""
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
    """Return a predicate that compares an ordered categorical column by the order of the categories."""
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
    """Replace the fraction ``key`` in a comparison. Return the operator and the key of an equivalent
    comparison.

    ``key`` lies between two values of the column's type.
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
