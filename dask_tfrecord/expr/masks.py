"""Translate masks (boolean expressions that filter a DataFrame) to predicates on the columns of a read."""

from typing import Any

from dask.dataframe.dask_expr._expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    And,
    Assign,
    Between,
    Binop,
    Expr,
    Index,
    Invert,
    Isin,
    IsNa,
    NotNull,
    Or,
    Projection,
    _DelayedExpr,
)

from dask_tfrecord.dataset.query import comparisons, predicates
from dask_tfrecord.dataset.query.comparison_keys import WrongTypeError
from dask_tfrecord.dataset.query.predicates import Ambiguous, Operator, Predicate
from dask_tfrecord.schema.field import Field

_OPERATORS: dict[type[Expr], Operator] = {EQ: "==", NE: "!=", LT: "<", LE: "<=", GT: ">", GE: ">="}
_MIRRORED: dict[Operator, Operator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_BETWEEN: dict[str, tuple[Operator, Operator]] = {
    "both": (">=", "<="),
    "left": (">=", "<"),
    "right": (">", "<="),
    "neither": (">", "<"),
}


def predicate_of(mask: Expr, read_type: type[Any]) -> Predicate:
    """Translate a mask to a predicate. A part of the mask that cannot be translated becomes `Ambiguous`."""
    try:
        return _translate(mask, read_type)
    # If translating a mask raises one of these errors, pandas may compare its values differently from a
    # predicate.
    except (ArithmeticError, TypeError, ValueError):
        return Ambiguous()


def _translate(mask: Expr, read_type: type[Any]) -> Predicate:
    if isinstance(mask, And | Or):
        combine = predicates.And if isinstance(mask, And) else predicates.Or
        return combine(predicate_of(mask.left, read_type), predicate_of(mask.right, read_type))
    if isinstance(mask, Invert):
        return predicates.Not(predicate_of(mask.frame, read_type))
    if isinstance(mask, Binop) and type(mask) in _OPERATORS:
        operator, column, value = _OPERATORS[type(mask)], mask.left, mask.right
        if isinstance(value, Expr):
            operator, column, value = _MIRRORED.get(operator, operator), value, column
        if isinstance(value, Expr):
            return Ambiguous()
        return comparisons.compare_in_pandas(_column(column, read_type), operator, value)
    if isinstance(mask, Between) and mask.inclusive in _BETWEEN:
        lower, upper = _BETWEEN[mask.inclusive]
        column = _column(mask.frame, read_type)
        return predicates.And(
            comparisons.compare_in_pandas(column, lower, mask.left),
            comparisons.compare_in_pandas(column, upper, mask.right),
        )
    if isinstance(mask, Isin) and isinstance(mask.operand("values"), _DelayedExpr):
        values = mask.operand("values").obj.compute(scheduler="sync")
        return comparisons.is_in_pandas(_column(mask.frame, read_type), values)
    if isinstance(mask, IsNa | NotNull):
        is_null = predicates.IsNull(_column(mask.frame, read_type).name)
        return is_null if isinstance(mask, IsNa) else predicates.Not(is_null)
    # Any other mask must be a boolean column.
    return comparisons.compare_in_pandas(_column(mask, read_type), "==", True)


def _column(expr: Any, read_type: type[Any]) -> Field:
    """Return the column of a read that an expression selects unchanged.

    Raises
    ------
    WrongTypeError
        If the expression is not an unchanged column of a read.
    """
    if isinstance(expr, Index) and isinstance(expr.frame, read_type) and len(expr.frame.index_columns) == 1:
        [name], read = expr.frame.index_columns, expr.frame
    else:
        name = expr.operand("columns") if isinstance(expr, Projection) else None
        read = expr
        while isinstance(read, Projection) or (isinstance(read, Assign) and name not in read.keys):
            read = read.frame
    if not isinstance(name, str) or not isinstance(read, read_type):
        raise WrongTypeError("the expression is not a column of the dataset")
    column: Field = read.dataset.schema.select([name]).fields[0]
    return column
