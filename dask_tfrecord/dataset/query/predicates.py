"""Predicates: conditions on a row. They filter the rows of a table, and decide which files need not be read.

For one row, the outcome of a predicate is true, false or null, as in SQL. A filter keeps the rows for which
it is true. For a file that has not been read, the partition values and the statistics of a snapshot restrict
the outcomes of its rows: with a minimum of 5, ``x < 3`` can only be false. The *possible outcomes* of a file
are the set of all outcomes that some row might have. A file is not read if true is not a possible outcome.

The set must never lack an outcome. If true is missing, the file is skipped and its rows are lost, without any
error. If false or null is missing, a negation lacks true, or a filter is dropped because it seems to be true
for all rows: rows are lost or added. A set with too many outcomes only costs time. So a predicate returns all
outcomes where something is unknown: no statistics, NaN (which minimum and maximum ignore), or an expression
that only Arrow can evaluate.
"""

import operator
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import dataset

from dask_tfrecord.dataset.query.comparison_keys import (
    ComparisonKey,
    WrongTypeError,
    comparison_key,
    has_nan,
    is_comparable,
    scalar_from_key,
)
from dask_tfrecord.files.entry import ColumnStatistics, FileEntry
from dask_tfrecord.schema.model import Field
from dask_tfrecord.schema.storage_types import value_type

Operator = Literal["==", "!=", "<", "<=", ">", ">="]
Outcomes: TypeAlias = frozenset[bool | None]

# The outcomes of a predicate about which nothing is known.
ANY: Outcomes = frozenset((True, False, None))

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARROW = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


class ColumnRange(NamedTuple):
    """The known limits of the values of a column in one file.

    Attributes
    ----------
    low, high : comparison key, optional
        No value is less than `low` or greater than `high`, NaN aside. None if unknown.
    may_have_values, may_have_nulls, may_have_nan : bool
        False if it is known that the column has no values, no nulls, or no NaN.
    """

    low: ComparisonKey | None = None
    high: ComparisonKey | None = None
    may_have_values: bool = True
    may_have_nulls: bool = True
    may_have_nan: bool = True


# By column name. Nothing is known about a column that is not in it.
ColumnRanges: TypeAlias = Mapping[str, ColumnRange]


class Predicate(ABC):
    """A condition on a row."""

    @abstractmethod
    def columns(self) -> set[str]:
        """Return the names of the columns in the condition."""

    @abstractmethod
    def outcomes(self, ranges: ColumnRanges) -> Outcomes:
        """Return all possible outcomes for the rows of a file, given what is known about its columns."""

    @abstractmethod
    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the outcome for each row of a table."""


@dataclass(frozen=True)
class Compare(Predicate):
    """The comparison of a column with a comparison key; null where the column is null."""

    name: str
    operator: Operator
    key: ComparisonKey

    def columns(self) -> set[str]:
        return {self.name}

    def outcomes(self, ranges: ColumnRanges) -> Outcomes:
        column = ranges.get(self.name, ColumnRange())
        outcomes: set[bool | None] = set()
        if column.may_have_values:
            outcomes |= {
                answer for answer in (True, False) if _can_be(self.operator, column, self.key, answer)
            }
        if column.may_have_nulls or column.may_have_nan:
            # A null of Arrow gives null. A null of numpy is NaN, which differs from every value.
            outcomes |= {None, self.operator == "!="}
        return frozenset(outcomes)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        column = _values(table, self.name)
        scalar = scalar_from_key(self.key, column.type)
        if scalar is None:  # the key is greater or less than all values of the type
            answer = COMPARE[self.operator](0, self.key)
            return pc.if_else(column.is_valid(), answer, pa.scalar(None, pa.bool_()))
        return _ARROW[self.operator](column, scalar)


@dataclass(frozen=True)
class IsIn(Predicate):
    """True where a column has one of the keys, else false. ``matches_null`` is the outcome for a null."""

    name: str
    keys: tuple[ComparisonKey, ...]
    matches_null: bool = False

    def columns(self) -> set[str]:
        return {self.name}

    def outcomes(self, ranges: ColumnRanges) -> Outcomes:
        column = ranges.get(self.name, ColumnRange())
        outcomes: set[bool | None] = set()
        if column.may_have_values:
            may_match = any(_can_be("==", column, key, True) for key in self.keys)
            must_match = any(not _can_be("==", column, key, False) for key in self.keys)
            outcomes |= {answer for answer, may in ((True, may_match), (False, not must_match)) if may}
        if column.may_have_nulls:
            outcomes.add(self.matches_null)
        if column.may_have_nan:
            outcomes |= {False, any(key != key for key in self.keys)}
        return frozenset(outcomes)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        column = _values(table, self.name)
        keys = [*self.keys, *(-key for key in self.keys if key == 0)]  # -0.0 and 0.0 differ in Arrow
        scalars = [scalar_from_key(key, column.type) for key in keys]
        values = [_arrow_value(scalar) for scalar in scalars if scalar is not None]
        values = pa.array([*values, *([None] if self.matches_null else [])], column.type)
        return pc.is_in(column, value_set=values)


@dataclass(frozen=True)
class IsNull(Predicate):
    """True where a column is null.

    The outcome of a NaN may be true, too, because pandas may treat NaN as null.
    """

    name: str

    def columns(self) -> set[str]:
        return {self.name}

    def outcomes(self, ranges: ColumnRanges) -> Outcomes:
        column = ranges.get(self.name, ColumnRange())
        answers = ((True, column.may_have_nulls or column.may_have_nan), (False, column.may_have_values))
        return frozenset(answer for answer, may in answers if may)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return table[self.name].is_null()


def _both(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _either(left: bool | None, right: bool | None) -> bool | None:
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


@dataclass(frozen=True)
class _Pair(Predicate):
    """Two predicates, combined with the three-valued logic of SQL."""

    left: Predicate
    right: Predicate

    _combine: ClassVar["staticmethod[[bool | None, bool | None], bool | None]"]
    _combine_masks: ClassVar["staticmethod[[pa.ChunkedArray, pa.ChunkedArray], pa.ChunkedArray]"]

    def columns(self) -> set[str]:
        return self.left.columns() | self.right.columns()

    def outcomes(self, ranges: ColumnRanges) -> Outcomes:
        pairs = product(self.left.outcomes(ranges), self.right.outcomes(ranges))
        return frozenset(self._combine(*pair) for pair in pairs)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return self._combine_masks(self.left.mask(table), self.right.mask(table))


class And(_Pair):
    """The conjunction of two predicates."""

    _combine = staticmethod(_both)
    _combine_masks = staticmethod(pc.and_kleene)


class Or(_Pair):
    """The disjunction of two predicates."""

    _combine = staticmethod(_either)
    _combine_masks = staticmethod(pc.or_kleene)


@dataclass(frozen=True)
class Not(Predicate):
    """The negation; null stays null."""

    operand: Predicate

    def columns(self) -> set[str]:
        return self.operand.columns()

    def outcomes(self, ranges: ColumnRanges) -> Outcomes:
        return frozenset(None if answer is None else not answer for answer in self.operand.outcomes(ranges))

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return pc.invert(self.operand.mask(table))


@dataclass(frozen=True)
class Ambiguous(Predicate):
    """A filter of pandas that is equivalent to one of several predicates, but it is unknown to which one.

    Without candidates, it may be equivalent to any predicate. It has no mask, because pandas applies the
    filter itself.
    """

    candidates: tuple[Predicate, ...] = ()

    def columns(self) -> set[str]:
        return {name for candidate in self.candidates for name in candidate.columns()}

    def outcomes(self, ranges: ColumnRanges) -> Outcomes:
        if not self.candidates:
            return ANY
        return frozenset().union(*(candidate.outcomes(ranges) for candidate in self.candidates))

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        raise TypeError("the filter has no mask: it is unknown which of the predicates is equivalent to it")


@dataclass(frozen=True, eq=False, repr=False)
class ArrowExpression(Predicate):
    """A pyarrow expression. Only Arrow can evaluate it, so its possible outcomes are unknown."""

    expression: pc.Expression
    names: tuple[str, ...]

    def columns(self) -> set[str]:
        return set(self.names)

    def outcomes(self, ranges: ColumnRanges) -> Outcomes:
        return ANY

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        rows = dataset(table.select(self.names))
        return rows.to_table(columns={"mask": self.expression}, use_threads=False)["mask"]

    def __repr__(self) -> str:
        """Return a text that differs for different expressions. The text of the expression is abbreviated."""
        return f"ArrowExpression({sha256(pickle.dumps(self.expression)).hexdigest()}, {self.names})"


def outcomes_in_file(
    predicate: Predicate, fields: Iterable[Field], entry: FileEntry | None, values: Mapping[str, pa.Scalar]
) -> Outcomes:
    """Return the possible outcomes of a predicate for the rows of one file.

    Parameters
    ----------
    predicate : Predicate
        The predicate.
    fields : iterable of Field
        The columns of the predicate.
    entry : FileEntry, optional
        The entry of the file in a snapshot.
    values : mapping of str to pyarrow.Scalar
        The partition columns: the one value that all rows have.
    """
    if entry is not None and not entry.records:
        return frozenset()
    by_name = {field.name: field for field in fields}
    ranges = {name: range_of_value(by_name[name], value.as_py()) for name, value in values.items()}
    if entry is not None:
        for column in entry.statistics:
            if column.name in by_name and column.name not in ranges:
                ranges[column.name] = range_of_statistics(by_name[column.name], column, entry.records)
    return predicate.outcomes(ranges)


def range_of_statistics(field: Field, statistics: ColumnStatistics, records: int) -> ColumnRange:
    """Return what the statistics of a file prove about a column."""
    may_have_values, may_have_nulls = statistics.nulls < records, statistics.nulls > 0
    if not is_comparable(field.type):
        return ColumnRange(None, None, may_have_values, may_have_nulls, False)
    low, high = (
        None if bound is None else _bound(bound, field) for bound in (statistics.min, statistics.max)
    )
    return ColumnRange(low, high, may_have_values, may_have_nulls, may_have_values and has_nan(field.type))


def range_of_value(field: Field, value: Any) -> ColumnRange:
    """Return what is known about a column that has the same value in all rows."""
    if value is None:
        return ColumnRange(None, None, False, True, False)
    key = _bound(value, field)
    if key != key:
        return ColumnRange(None, None, True, False, True)
    return ColumnRange(key, key, True, False, False)


def _can_be(symbol: Operator, column: ColumnRange, key: Any, answer: bool) -> bool:
    """Return True if comparing some value in the range with the key can give this answer."""
    low: Any = column.low  # `Any`, because types cannot express that the keys of one column are comparable
    high: Any = column.high
    if symbol in ("!=", "<=", ">="):
        opposite: dict[str, Operator] = {"!=": "==", "<=": ">", ">=": "<"}
        if key != key:  # a comparison with NaN is false
            return answer == (symbol == "!=")
        return _can_be(opposite[symbol], column, key, not answer)
    if symbol == "==":
        inside = (low is None or low <= key) and (high is None or key <= high)
        return bool(inside) if answer else not (low == key == high)
    nearest = low if (symbol == "<") == answer else high
    return nearest is None or COMPARE[symbol](nearest, key) == answer


def _bound(value: Any, field: Field) -> ComparisonKey | None:
    """Return the comparison key of a bound; None if there is none."""
    try:
        key = comparison_key(value, field.type)
    except WrongTypeError:
        return None
    return None if isinstance(key, Fraction) else key


def _values(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Convert a column to a type for which Arrow's comparisons give the same results as comparison keys."""
    column = table[name]
    type_ = value_type(column.type)
    if pa.types.is_floating(type_):  # float64 compares without rounding the key
        return (
            column.cast(pa.float32()).cast(pa.float64())
            if pa.types.is_float16(type_)
            else column.cast(pa.float64())
        )
    return column.cast(pa.binary() if pa.types.is_fixed_size_binary(type_) else type_)


def _arrow_value(scalar: pa.Scalar) -> Any:
    """Return a value that `pyarrow.array` accepts.

    Times become integers, because Python's types cannot hold all times.
    """
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()
