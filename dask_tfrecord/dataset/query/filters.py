"""Convert the value of ``filters=`` to a predicate."""

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any, cast, get_args

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.query.arrow_expressions import columns_of, read_expression
from dask_tfrecord.dataset.query.arrow_filters import arrow_predicate
from dask_tfrecord.dataset.query.comparison_keys import WrongTypeError
from dask_tfrecord.dataset.query.comparisons import compare, is_in
from dask_tfrecord.dataset.query.predicates import And, IsNull, Not, Operator, Or, Predicate
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.model import Schema


def parse_filters(filters: Any, schema: Schema) -> Predicate:
    """Convert the value of the keyword ``filters=`` to a predicate.

    Parameters
    ----------
    filters : list of tuple, list of list of tuple, or pyarrow.compute.Expression
        The value of the keyword ``filters=``.
    schema : Schema
        All columns of the dataset.

    Raises
    ------
    SchemaError
        If the value is not a filter, or if the filter cannot be applied to the columns.
    """
    if isinstance(filters, pc.Expression):
        return arrow_predicate(filters, schema)
    if not isinstance(filters, list | tuple) or not filters:
        raise _malformed(filters)
    if _is_condition(filters):
        raise _malformed(filters)
    flat = all(_is_condition(item) for item in filters)
    groups = [filters] if flat else filters
    parsed = [reduce(And, _conditions(group, schema)) for group in groups]
    return reduce(Or, parsed)


def names_in(filters: Any) -> set[str] | None:
    """Return the names of the columns that ``filters=`` uses, or None if pyarrow does not show them.

    The set of names is empty if ``filters=`` is None.
    """
    if isinstance(filters, pc.Expression):
        try:
            return columns_of(read_expression(filters))
        except (LookupError, ValueError, pa.ArrowNotImplementedError):  # as in `arrow_predicate`
            return None
    if _is_condition(filters):
        return {filters[0]}
    items = filters if isinstance(filters, list | tuple) else ()
    return set().union(*(names_in(item) or () for item in items))


def _conditions(group: Any, schema: Schema) -> Iterator[Predicate]:
    if not isinstance(group, list | tuple) or not group or not all(map(_is_condition, group)):
        raise _malformed(group)
    for name, symbol, value in group:
        [field] = schema.select([name]).fields
        try:
            yield _condition(field, symbol, value)
        except SchemaError:
            raise
        # Operators of the value may raise errors, too.
        except (ArithmeticError, TypeError, ValueError) as error:
            problem = f"the filter {(name, symbol, value)!r} cannot be applied to the column: {error}"
            advice = "compare the column with values of its type, or filter the DataFrame after reading"
            raise SchemaError(problem, advice, feature=name) from None


def _is_condition(item: Any) -> bool:
    return (
        isinstance(item, list | tuple) and len(item) == 3 and all(isinstance(part, str) for part in item[:2])
    )


def _condition(field: Field, symbol: str, value: Any) -> Predicate:
    if symbol in ("in", "not in"):
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise WrongTypeError(f"{symbol!r} needs a list, a tuple or a set of values, not {value!r}")
        predicate = is_in(field, value)
        return Not(predicate) if symbol == "not in" else predicate
    if symbol in ("is", "is not"):
        if value is not None:
            raise WrongTypeError(f"{symbol!r} needs None, not {value!r}")
        return Not(IsNull(field.name)) if symbol == "is not" else IsNull(field.name)
    symbol = "==" if symbol == "=" else symbol
    if symbol not in get_args(Operator):
        known = ", ".join(map(repr, ("=", *get_args(Operator), "in", "not in", "is", "is not")))
        problem = f"unknown operator {symbol!r} in filters=; known are {known}"
        raise SchemaError(problem, feature=field.name, keyword="filters")
    if value is None:
        raise WrongTypeError('None cannot be compared; use the operators "is" and "is not" to find nulls')
    return compare(field, cast(Operator, symbol), value)


def _malformed(filters: Any) -> SchemaError:
    return SchemaError(
        f"filters= is not a list of (column, operator, value), or a list of such lists: {filters!r}",
        'pass for example [("year", ">=", 2024), ("country", "in", ["FR", "PL"])], or a pyarrow '
        'expression such as pc.field("year") >= 2024',
        keyword="filters",
    )
