"""The possible outcomes of predicates, file by file: what the columns of all files must give, too."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from dask_tfrecord.dataset.query.comparison_keys import WrongTypeError, comparison_key, has_nan, is_comparable
from dask_tfrecord.dataset.query.predicates import (
    COMPARE,
    Ambiguous,
    And,
    Compare,
    IsIn,
    IsNull,
    Not,
    Or,
    Outcomes,
    Predicate,
)
from dask_tfrecord.files.entry import ColumnStatistics, FileEntry
from dask_tfrecord.schema.fields import Field

ANY = frozenset((True, False, None))


def as_sets(outcomes: Outcomes) -> list[frozenset[bool | None]]:
    """The outcomes of each file as a set."""
    rows = zip(*(mask.tolist() for mask in outcomes), strict=True)
    return [frozenset(one for one, may in zip((True, False, None), row, strict=True) if may) for row in rows]


# -- File by file --------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """What is known about a column in one file."""

    low: Any = None
    high: Any = None
    may_have_values: bool = True
    may_have_nulls: bool = True
    may_have_nan: bool = True


def outcomes_in_file(
    predicate: Predicate, fields: Iterable[Field], entry: FileEntry | None, values: Mapping[str, Any]
) -> frozenset[bool | None]:
    """The possible outcomes for the rows of one file, from Python's values."""
    if entry is not None and not entry.records:
        return frozenset()
    by_name = {field.name: field for field in fields}
    ranges = {name: _of_value(by_name[name], value) for name, value in values.items()}
    for column in () if entry is None else entry.statistics:
        if column.name in by_name and column.name not in ranges:
            assert entry is not None
            ranges[column.name] = _of_statistics(by_name[column.name], column, entry.records)
    return outcomes(predicate, ranges)


def outcomes(predicate: Predicate, ranges: Mapping[str, Known]) -> frozenset[bool | None]:
    """The possible outcomes, given what is known about the columns."""
    found: set[bool | None] = set()
    match predicate:
        case Compare(name, symbol, key):
            column = ranges.get(name, Known())
            if column.may_have_values:
                found |= {answer for answer in (True, False) if _can_be(symbol, column, key, answer)}
            if column.may_have_nulls or column.may_have_nan:
                found |= {None, symbol == "!="}
        case IsIn(name, keys, matches_null):
            column = ranges.get(name, Known())
            if column.may_have_values:
                found |= {True} if any(_can_be("==", column, key, True) for key in keys) else set()
                found |= {False} if all(_can_be("==", column, key, False) for key in keys) else set()
            found |= {matches_null} if column.may_have_nulls else set()
            found |= {False, any(key != key for key in keys)} if column.may_have_nan else set()
        case IsNull(name):
            column = ranges.get(name, Known())
            found |= {True} if column.may_have_nulls or column.may_have_nan else set()
            found |= {False} if column.may_have_values else set()
        case And(left, right) | Or(left, right):
            decisive = isinstance(predicate, Or)
            for pair in product(outcomes(left, ranges), outcomes(right, ranges)):
                found.add(decisive if decisive in pair else None if None in pair else not decisive)
        case Not(operand):
            found = {None if one is None else not one for one in outcomes(operand, ranges)}
        case Ambiguous(candidates) if candidates:
            found = set().union(*(outcomes(one, ranges) for one in candidates))
        case _:
            return ANY
    return frozenset(found)


def _of_statistics(field: Field, statistics: ColumnStatistics, records: int) -> Known:
    has_values, has_nulls = statistics.nulls < records, statistics.nulls > 0
    if not is_comparable(field.type):
        return Known(None, None, has_values, has_nulls, False)
    low, high = (_bound(bound, field) for bound in (statistics.min, statistics.max))
    return Known(low, high, has_values, has_nulls, has_values and has_nan(field.type))


def _of_value(field: Field, value: Any) -> Known:
    if value is None:
        return Known(None, None, False, True, False)
    key = _bound(value, field)
    if key != key:
        return Known(None, None, True, False, True)
    return Known(key, key, True, False, False)


def _can_be(symbol: Any, column: Known, key: Any, answer: bool) -> bool:
    low, high = column.low, column.high
    if symbol in ("!=", "<=", ">="):
        if key != key:
            return answer == (symbol == "!=")
        return _can_be({"!=": "==", "<=": ">", ">=": "<"}[symbol], column, key, not answer)
    if symbol == "==":
        inside = (low is None or low <= key) and (high is None or key <= high)
        return bool(inside) if answer else not (low == key == high)
    nearest = low if (symbol == "<") == answer else high
    return nearest is None or COMPARE[symbol](nearest, key) == answer


def _bound(value: Any, field: Field) -> Any:
    try:
        key = None if value is None else comparison_key(value, field.type)
    except WrongTypeError:
        return None
    return None if isinstance(key, Fraction) else key
