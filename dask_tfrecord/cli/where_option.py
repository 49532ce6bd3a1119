"""Parse the condition of the option `--where`, which has Python syntax, to a value of ``filters=``.

The condition is never executed as Python code.
"""

import ast
import re
from itertools import chain, pairwise, product
from math import prod
from typing import Any, NamedTuple

import click

Condition = tuple[str, str, Any]
Filters = list[list[Condition]]

_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
_OPPOSITE = {"==": "!=", "<": ">=", ">": "<=", "in": "not in", "is": "is not"}
_OPPOSITE |= {opposite: operator for operator, opposite in _OPPOSITE.items()}
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}

# Pattern of a single `=`, which users of SQL write instead of `==`.
_SINGLE_EQUALS = re.compile(r"[^=!<>]=(?!=)")

# The largest number of alternative lists of conditions, because `and` over `or` multiplies their number.
_MOST_ALTERNATIVES = 1000


class _Column(NamedTuple):
    """Mark a text as the name of a column, so that it is not taken for a string value."""

    name: str


def parse(text: str) -> Filters:
    """Parse comparisons of columns with literals, joined with `and`, `or` and `not`.

    A row is selected if it meets all conditions of one list. A column is a Python name or
    ``column('any name')``. Any other text raises click.UsageError.
    """
    try:
        return _alternatives(ast.parse(text.strip(), mode="eval").body, False)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        if isinstance(error, SyntaxError) and _SINGLE_EQUALS.search(text):
            reason = f"{reason}; write == to compare, as in x == 3"
        raise click.UsageError(f"--where {text!r} is not a condition: {reason}") from None


def names_in(filters: Filters | None) -> list[str]:
    """Return the names of the columns that conditions use."""
    return list(dict.fromkeys(name for group in filters or () for name, _, _ in group))


def _alternatives(node: ast.expr, negated: bool) -> Filters:
    """Return the alternative lists of conditions of an expression, or of the negation of the expression."""
    match node:
        case ast.UnaryOp(op=ast.Not()):
            return _alternatives(node.operand, not negated)
        case ast.BoolOp():
            parts = [_alternatives(part, negated) for part in node.values]
            if isinstance(node.op, ast.Or) != negated:
                return [*chain(*parts)]
            if prod(map(len, parts)) > _MOST_ALTERNATIVES:
                raise ValueError("it combines too many alternatives")
            return [[*chain(*groups)] for groups in product(*parts)]
        case ast.Compare():
            sides = map(_operand, (node.left, *node.comparators))
            conditions = [
                _condition(left, _OPERATORS[type(operator)], right, negated)
                for operator, (left, right) in zip(node.ops, pairwise(sides), strict=True)
            ]
            return [[one] for one in conditions] if negated else [conditions]
    raise ValueError(f"{ast.unparse(node)!r} is not a comparison")


def _operand(node: ast.expr) -> Any:
    """Return the column or the value that one side of a comparison stands for."""
    match node:
        case ast.Name(id=name):
            return _Column(name)
        case ast.Call(func=ast.Name(id="column"), args=[ast.Constant(value=str(name))], keywords=[]):
            return _Column(name)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)!r} is neither a column nor a value") from None


def _condition(left: Any, operator: str, right: Any, negated: bool) -> Condition:
    if not isinstance(left, _Column):
        if not isinstance(right, _Column) or operator not in _MIRRORED:
            raise ValueError("a comparison needs one column")
        left, operator, right = right, _MIRRORED[operator], left
    elif isinstance(right, _Column):
        raise ValueError(f"it compares the columns {left.name!r} and {right.name!r}; compare with values")
    if right is None and operator in ("==", "!="):
        operator = "is" if operator == "==" else "is not"
    if operator in ("in", "not in") and not isinstance(right, list | tuple | set):
        raise ValueError(f"{operator!r} needs a list, such as {left.name} {operator} ['a', 'b']")
    if operator in ("is", "is not") and right is not None:
        raise ValueError(f"{operator!r} needs None")
    return left.name, _OPPOSITE[operator] if negated else operator, right
