"""Predicates on columns: which rows of a table they want, and which outcomes a file's rows can have.

A row's outcome is true, false or null, as in SQL. Of a file, partition values and statistics tell a set of
outcomes that its rows may have, never one too few: a file that cannot be true holds nothing that is wanted.
"""

import operator
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import dataset

from dask_tfrecord.dataset.query.comparison_keys import (
    Key,
    WrongTypeError,
    has_nan,
    is_comparable,
    key_of,
    scalar_of,
)
from dask_tfrecord.files.entry import ColumnStatistics, FileEntry
from dask_tfrecord.schema.model import Field
from dask_tfrecord.schema.storage_types import value_type

Operator = Literal["==", "!=", "<", "<=", ">", ">="]
Outcomes: TypeAlias = frozenset[bool | None]

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


class Facts(NamedTuple):
    """What is known of a column's values in one file.

    Attributes
    ----------
    low, high : key, optional
        No value is smaller or greater; None if that is not known.
    values, missing, nan : bool
        Whether there may be values, missing ones, and NaNs among the values.
    """

    low: Key | None = None
    high: Key | None = None
    values: bool = True
    missing: bool = True
    nan: bool = True


Known: TypeAlias = Mapping[str, Facts]


class Predicate(ABC):
    """A condition on a row."""

    @abstractmethod
    def columns(self) -> set[str]:
        """Names of those it looks at."""

    @abstractmethod
    def outcomes(self, known: Known) -> Outcomes:
        """What it may come to for a row of a file; nothing is known of columns that are left out."""

    @abstractmethod
    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        """What it comes to for each row."""


@dataclass(frozen=True)
class Compare(Predicate):
    """A column against a key of its type; null where the value is missing."""

    name: str
    operator: Operator
    key: Key

    def columns(self) -> set[str]:
        return {self.name}

    def outcomes(self, known: Known) -> Outcomes:
        facts = known.get(self.name, Facts())
        found: set[bool | None] = set()
        if facts.values:
            found |= {answer for answer in (True, False) if _can_be(self.operator, facts, self.key, answer)}
        odd = {None, self.operator == "!="}  # numpy has no null: missing is NaN, which differs from all
        return frozenset(found | odd) if facts.missing or facts.nan else frozenset(found)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        column = _values(table, self.name)
        scalar = scalar_of(self.key, column.type)
        if scalar is None:  # greater or smaller than all values of the type
            answer = COMPARE[self.operator](0, self.key)
            return pc.if_else(column.is_valid(), answer, pa.scalar(None, pa.bool_()))
        return _ARROW[self.operator](column, scalar)


@dataclass(frozen=True)
class IsIn(Predicate):
    """Whether a value is one of some; false where it is missing, unless that is one of them."""

    name: str
    keys: tuple[Key, ...]
    missing: bool = False

    def columns(self) -> set[str]:
        return {self.name}

    def outcomes(self, known: Known) -> Outcomes:
        facts = known.get(self.name, Facts())
        found: set[bool | None] = set()
        if facts.values:
            may_be = any(_can_be("==", facts, key, True) for key in self.keys)
            must_be = any(not _can_be("==", facts, key, False) for key in self.keys)
            found |= {answer for answer, may in ((True, may_be), (False, not must_be)) if may}
        if facts.missing:
            found.add(self.missing)
        if facts.nan:
            found |= {False, any(key != key for key in self.keys)}
        return frozenset(found)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        column = _values(table, self.name)
        keys = [*self.keys, *(-key for key in self.keys if key == 0)]  # Arrow tells the zeros of floats apart
        scalars = [scalar_of(key, column.type) for key in keys]
        wanted = [_plain(scalar) for scalar in scalars if scalar is not None]
        values = pa.array([*wanted, *([None] if self.missing else [])], column.type)
        return pc.is_in(column, value_set=values)


@dataclass(frozen=True)
class IsNull(Predicate):
    """Whether a value is missing; pandas may say so of a NaN too."""

    name: str

    def columns(self) -> set[str]:
        return {self.name}

    def outcomes(self, known: Known) -> Outcomes:
        facts = known.get(self.name, Facts())
        answers = ((True, facts.missing or facts.nan), (False, facts.values))
        return frozenset(answer for answer, may in answers if may)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return table[self.name].is_null()


@dataclass(frozen=True)
class _Pair(Predicate):
    """What is made of two."""

    left: Predicate
    right: Predicate

    def columns(self) -> set[str]:
        return self.left.columns() | self.right.columns()


class And(_Pair):
    """Both."""

    def outcomes(self, known: Known) -> Outcomes:
        pairs = product(self.left.outcomes(known), self.right.outcomes(known))
        return frozenset(_both(*pair) for pair in pairs)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return pc.and_kleene(self.left.mask(table), self.right.mask(table))


class Or(_Pair):
    """At least one of two."""

    def outcomes(self, known: Known) -> Outcomes:
        pairs = product(self.left.outcomes(known), self.right.outcomes(known))
        return frozenset(_either(*pair) for pair in pairs)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return pc.or_kleene(self.left.mask(table), self.right.mask(table))


@dataclass(frozen=True)
class Not(Predicate):
    """The opposite; null stays null."""

    operand: Predicate

    def columns(self) -> set[str]:
        return self.operand.columns()

    def outcomes(self, known: Known) -> Outcomes:
        return frozenset(None if answer is None else not answer for answer in self.operand.outcomes(known))

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return pc.invert(self.operand.mask(table))


@dataclass(frozen=True)
class Unsure(Predicate):
    """One of some predicates, nobody knows which; without any, all may be. It has no mask."""

    candidates: tuple[Predicate, ...] = ()

    def columns(self) -> set[str]:
        return {name for candidate in self.candidates for name in candidate.columns()}

    def outcomes(self, known: Known) -> Outcomes:
        if not self.candidates:
            return ANY
        return frozenset().union(*(candidate.outcomes(known) for candidate in self.candidates))

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        raise TypeError("nobody knows which predicate it is")  # it stands for pandas' own filters only


@dataclass(frozen=True, eq=False, repr=False)
class OfArrow(Predicate):
    """An expression of pyarrow, of which only Arrow knows what it comes to."""

    expression: pc.Expression
    names: tuple[str, ...]

    def columns(self) -> set[str]:
        return set(self.names)

    def outcomes(self, known: Known) -> Outcomes:
        return ANY

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        rows = dataset(table.select(self.names))
        return rows.to_table(columns={"mask": self.expression}, use_threads=False)["mask"]

    def __repr__(self) -> str:
        """All of it, which the expression's own leaves out."""
        return f"OfArrow({sha256(pickle.dumps(self.expression)).hexdigest()}, {self.names})"


def outcomes_in_file(
    predicate: Predicate, fields: Iterable[Field], entry: FileEntry | None, values: Mapping[str, pa.Scalar]
) -> Outcomes:
    """What a predicate may come to for the rows of one file.

    Parameters
    ----------
    predicate : Predicate
        The predicate.
    fields : iterable of Field
        The columns it looks at.
    entry : FileEntry, optional
        What a snapshot knows of the file.
    values : mapping of str to pyarrow.Scalar
        The columns that have one value throughout the file.
    """
    if entry is not None and not entry.records:
        return frozenset()
    wanted = {field.name: field for field in fields}
    known = {name: facts_of_value(wanted[name], value.as_py()) for name, value in values.items()}
    if entry is not None:
        for column in entry.statistics:
            if column.name in wanted and column.name not in known:
                known[column.name] = facts_of(wanted[column.name], column, entry.records)
    return predicate.outcomes(known)


def facts_of(field: Field, found: ColumnStatistics, records: int) -> Facts:
    """What a file's statistics say of a column."""
    values, missing = found.nulls < records, found.nulls > 0
    if not is_comparable(field.type):
        return Facts(None, None, values, missing, False)
    low, high = (None if bound is None else _bound(bound, field) for bound in (found.min, found.max))
    return Facts(low, high, values, missing, values and has_nan(field.type))


def facts_of_value(field: Field, value: Any) -> Facts:
    """The same for a column that has one value throughout."""
    if value is None:
        return Facts(None, None, False, True, False)
    key = _bound(value, field)
    if key != key:
        return Facts(None, None, True, False, True)
    return Facts(key, key, True, False, False)


def _can_be(symbol: Operator, facts: Facts, key: Any, answer: bool) -> bool:
    """Whether a value within the bounds can compare to the key with this answer."""
    low: Any = facts.low  # keys of one column are of one kind, which their types do not say
    high: Any = facts.high
    if symbol in ("!=", "<=", ">="):
        opposite: dict[str, Operator] = {"!=": "==", "<=": ">", ">=": "<"}
        if key != key:  # nothing is in order with NaN
            return answer == (symbol == "!=")
        return _can_be(opposite[symbol], facts, key, not answer)
    if symbol == "==":
        inside = (low is None or low <= key) and (high is None or key <= high)
        return bool(inside) if answer else not (low == key == high)
    nearest = low if (symbol == "<") == answer else high
    return nearest is None or COMPARE[symbol](nearest, key) == answer


def _bound(value: Any, field: Field) -> Key | None:
    try:
        key = key_of(value, field.type)
    except WrongTypeError:
        return None
    return None if isinstance(key, Fraction) else key


def _values(table: pa.Table, name: str) -> pa.ChunkedArray:
    """A column as values that Arrow can compare."""
    column = table[name]
    type_ = value_type(column.type)
    if pa.types.is_floating(type_):  # exactly, and not by rounding what they are compared to
        return (
            column.cast(pa.float32()).cast(pa.float64())
            if pa.types.is_float16(type_)
            else column.cast(pa.float64())
        )
    return column.cast(pa.binary() if pa.types.is_fixed_size_binary(type_) else type_)


def _plain(scalar: pa.Scalar) -> Any:
    """The value as Arrow takes it back; that of a time may be beyond Python's."""
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()


def _both(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _either(left: bool | None, right: bool | None) -> bool | None:
    if left is True or right is True:
        return True
    return None if left is None or right is None else False
