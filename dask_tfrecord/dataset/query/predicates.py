"""Define predicates: conditions on a row, which filter rows and decide which files need not be read.

For each row, the outcome of a predicate is true, false or null, as in SQL. A filter keeps the rows for which
the predicate is true. For a file that has not been read, the partition values and the statistics of a
snapshot limit the outcomes: if the minimum of ``x`` is 5, ``x < 3`` can only be false. The *possible
outcomes* of a file are all outcomes that some row of the file may have. A file is not read if true is not a
possible outcome. The possible outcomes are computed for all files at once, from arrays of minima and maxima.

The possible outcomes of a file must include every outcome that a row of the file has. If the outcome true is
missing, the file is skipped and its rows are lost without any error. If the outcome false or null is missing,
a negation may skip the file, or a filter may be dropped because it seems to be true for all rows. Additional
possible outcomes only cost time. Therefore a predicate returns all outcomes if something about the file is
unknown. Examples of the unknown are missing statistics, NaN (which minimum and maximum ignore), and an
expression that only Arrow can evaluate.
"""

import operator
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions

from dask_tfrecord.dataset.query.comparison_keys import ComparisonKey, scalar_from_key
from dask_tfrecord.dataset.query.ranges import ColumnRange, FileRanges, Mask, comparable_values
from dask_tfrecord.errors import SchemaError

Operator = Literal["==", "!=", "<", "<=", ">", ">="]


class Outcomes(NamedTuple):
    """The possible outcomes of a predicate in each file.

    Attributes
    ----------
    true, false, null : numpy.ndarray of bool
        One array for each outcome of the predicate. An element is True if some row of that file may have the
        outcome.
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
# The operators of Arrow's comparison functions.
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
    """A condition on a row of a table: the base class of all predicates."""

    @abstractmethod
    def columns(self) -> set[str]:
        """Return the names of the columns that the predicate uses."""

    @abstractmethod
    def outcomes(self, ranges: FileRanges) -> Outcomes:
        """Return the possible outcomes of the predicate in each file, given the known limits of the file's
        columns.
        """

    @abstractmethod
    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the outcome of the predicate for each row of a table."""


@dataclass(frozen=True)
class _OfColumn(Predicate):
    """The base class of predicates about the values of one column."""

    name: str

    def columns(self) -> set[str]:
        return {self.name}


@dataclass(frozen=True)
class Compare(_OfColumn):
    """The predicate that compares a column with a comparison key.

    The outcome is null where the column is null.
    """

    operator: Operator
    key: ComparisonKey

    def outcomes(self, ranges: FileRanges) -> Outcomes:
        column = ranges.column(self.name)
        true = column.may_have_values & _can_be(self.operator, column, self.key, True)
        false = column.may_have_values & _can_be(self.operator, column, self.key, False)
        # Comparing an Arrow null gives null. NumPy represents a null as NaN, which differs from every value.
        missing = column.may_have_nulls | column.may_have_nan
        if self.operator == "!=":
            return Outcomes(true | missing, false, missing)
        return Outcomes(true, false | missing, missing)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return _compare(comparable_values(table[self.name]), self.operator, self.key)


@dataclass(frozen=True)
class IsIn(_OfColumn):
    """A predicate that is true in rows whose column has one of the keys.

    In rows with a null, the outcome is `matches_null`.
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
        # Arrow's `is_in` does not treat -0.0 as 0.0.
        keys = [*self.keys, *(-key for key in self.keys if key == 0)]
        scalars = [scalar_from_key(key, column.type) for key in keys]
        values = [_arrow_value(scalar) for scalar in scalars if scalar is not None]
        values = pa.array([*values, *([None] if self.matches_null else [])], column.type)
        return pc.is_in(column, value_set=values)


@dataclass(frozen=True)
class IsNull(_OfColumn):
    """A predicate that is true in rows whose column is null.

    If a file has NaN, true is a possible outcome too, because pandas may treat NaN as null.
    """

    def outcomes(self, ranges: FileRanges) -> Outcomes:
        column = ranges.column(self.name)
        nothing = np.zeros(len(ranges.may_have_rows), bool)
        return Outcomes(column.may_have_nulls | column.may_have_nan, column.may_have_values, nothing)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return table[self.name].is_null()


@dataclass(frozen=True)
class _Pair(Predicate):
    """Base class of two predicates that are combined with the three-valued logic of SQL."""

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
    """Return the possible outcomes of a conjunction, under the assumption that every pair of outcomes can
    occur.
    """
    true = left.true & right.true
    false = (left.false & (right.true | right.false | right.null)) | (right.false & (left.true | left.null))
    null = (left.null & (right.true | right.null)) | (left.true & right.null)
    return Outcomes(true, false, null)


def _negation(outcomes: Outcomes) -> Outcomes:
    return Outcomes(outcomes.false, outcomes.true, outcomes.null)


@dataclass(frozen=True)
class Not(Predicate):
    """The negation of a predicate. Where the predicate is null, its negation is null, too."""

    operand: Predicate

    def columns(self) -> set[str]:
        return self.operand.columns()

    def outcomes(self, ranges: FileRanges) -> Outcomes:
        return _negation(self.operand.outcomes(ranges))

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return pc.invert(self.operand.mask(table))


@dataclass(frozen=True)
class Ambiguous(Predicate):
    """A pandas filter that is equivalent to one of several candidate predicates, but it is unknown to which
    one.

    If there are no candidates, the filter may be equivalent to any predicate. An `Ambiguous` predicate cannot
    compute a mask, because only pandas applies the filter.
    """

    candidates: tuple[Predicate, ...] = ()

    def columns(self) -> set[str]:
        return {name for candidate in self.candidates for name in candidate.columns()}

    def outcomes(self, ranges: FileRanges) -> Outcomes:
        if not self.candidates:
            return _any(ranges)
        found = zip(*(candidate.outcomes(ranges) for candidate in self.candidates), strict=True)
        return Outcomes(*(reduce(np.logical_or, masks) for masks in found))

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        raise TypeError("the filter has no mask: it is unknown which of the predicates is equivalent to it")


@dataclass(frozen=True, eq=False, repr=False)
class ArrowExpression(Predicate):
    """A predicate that is a pyarrow expression, which Arrow evaluates.

    The possible outcomes of the predicate ``pruning`` include the outcomes of the expression. By default, all
    outcomes are possible in each file.
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
        except pa.ArrowException as error:  # some values cannot be cast, for example
            raise SchemaError(
                f"filters= cannot be applied to the values of {', '.join(map(repr, self.names))}: {error}",
                'cast the columns in the expression, such as pc.field("year").cast("float64", safe=False)',
                keyword="filters",
            ) from None

    def __repr__(self) -> str:
        """Return a text with a hash of the expression, because Arrow abbreviates the text of an
        expression.
        """
        return f"ArrowExpression({sha256(pickle.dumps(self.expression)).hexdigest()}, {self.names})"


def possible_outcomes(predicate: Predicate, ranges: FileRanges) -> Outcomes:
    """Return the possible outcomes of a predicate in each file.

    A file without rows has no possible outcomes.
    """
    return Outcomes(*(mask & ranges.may_have_rows for mask in predicate.outcomes(ranges)))


def _any(ranges: FileRanges) -> Outcomes:
    """Return the outcomes of a predicate about which nothing is known: all outcomes are possible in each
    file.
    """
    anything = np.ones(len(ranges.may_have_rows), bool)
    return Outcomes(anything, anything, anything)


def _can_be(symbol: Operator, column: ColumnRange, key: Any, answer: bool) -> Mask:
    """Return, for each file, True if comparing a value within the file's limits with the key can give
    `answer`.
    """
    if symbol in ("!=", "<=", ">="):
        opposite: dict[str, Operator] = {"!=": "==", "<=": ">", ">=": "<"}
        if key != key:  # every comparison with NaN is false
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
    """Return, for each file, the result of comparing a bound with the key, or `unknown` if the bound is
    unknown.
    """
    bounds = column.low if bound == "low" else column.high
    if bounds is None:
        return np.full(len(column.may_have_values), unknown)
    mask: Mask = pc.fill_null(_compare(bounds, symbol, key), unknown).to_numpy(zero_copy_only=False)
    return mask


def _compare(values: Any, symbol: Operator, key: ComparisonKey) -> Any:
    """Compare the values that `comparable_values` returned with a comparison key.

    The result of a comparison is null if the value is null.
    """
    scalar = scalar_from_key(key, values.type)
    if scalar is None:  # the key is greater or less than all values of the type
        answer = COMPARE[symbol](0, key)
        return pc.if_else(values.is_valid(), answer, pa.scalar(None, pa.bool_()))
    return _ARROW[symbol](values, scalar)


def _arrow_value(scalar: pa.Scalar) -> Any:
    """Convert an Arrow scalar to a value that `pyarrow.array` accepts.

    A time is converted to an integer, because Python's time types cannot represent all times of Arrow.
    """
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()
