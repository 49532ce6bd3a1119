"""Convert the value of ``filters=``, which may be a pyarrow expression, to a predicate.

Arrow itself applies pyarrow expressions to the rows. This module translates parts of pyarrow expressions to
predicates, which exclude files from the read.
"""

import ast
import ctypes
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from typing import Any, NamedTuple, TypeAlias, cast, get_args

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.query.comparison_keys import WrongTypeError, has_nan
from dask_tfrecord.dataset.query.predicates import (
    COMPARE,
    OPERATORS,
    Ambiguous,
    And,
    ArrowExpression,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
    compare,
    compare_in_pandas,
    is_in,
    is_in_pandas,
)
from dask_tfrecord.errors import SchemaError, TFRecordError, literal
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import value_type

# pyarrow does not expose the structure of an expression. The following functions read this structure from the
# serialized expression.
#
# Arrow serializes an expression as a record batch. The metadata of the batch's schema describes the structure
# of the expression, and the columns of the batch contain the literals and the function options. This format
# is private to Arrow, and was checked with pyarrow 18 to 26.


class Column(NamedTuple):
    """A reference to a column by its name."""

    name: str


class Literal(NamedTuple):
    """A constant in an expression."""

    scalar: pa.Scalar


class Call(NamedTuple):
    """A call to an Arrow function. ``options`` is empty if the function has no options."""

    function: str
    arguments: tuple["Node", ...]
    options: dict[str, Any]


Node: TypeAlias = Column | Literal | Call

# In Arrow's C data interface, the third pointer of the struct ArrowSchema points to the metadata.
_METADATA_POINTER = 2 * ctypes.sizeof(ctypes.c_void_p)


def read_expression(expression: pc.Expression) -> Node:
    """Return the syntax tree of a pyarrow expression.

    Raise ArrowNotImplementedError if the expression refers to a column by index instead of by name. Raise
    ValueError if pyarrow serializes the expression in an unknown format.
    """
    _, (serialized, *_) = expression.__reduce__()
    batch = pa.ipc.open_file(serialized).get_batch(0)
    return _read(deque(_pairs(batch.schema)), batch)


def columns_of(node: Node) -> set[str]:
    if isinstance(node, Column):
        return {node.name}
    return set().union(*map(columns_of, node.arguments)) if isinstance(node, Call) else set()


def _pairs(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield the key-value pairs of a schema's metadata in order. `Schema.metadata` drops pairs with a
    repeated key.
    """
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = schema.__arrow_c_schema__()
    address = pointer(capsule, b"arrow_schema") + _METADATA_POINTER
    at = ctypes.c_void_p.from_address(address).value or 0

    def number() -> int:
        nonlocal at
        at += 4
        return ctypes.c_int32.from_address(at - 4).value

    def text() -> str:
        nonlocal at
        size = number()
        at += size
        return ctypes.string_at(at - size, size).decode()

    for _ in range(number()):
        yield text(), text()


def _read(words: deque[tuple[str, str]], batch: pa.RecordBatch) -> Node:
    kind, value = words.popleft()
    if kind == "field_ref":
        return Column(value)
    if kind == "literal":
        return Literal(batch.column(int(value))[0])
    if kind == "nested_field_ref":  # the node refers to a field of a struct column
        names = [_read(words, batch) for _ in range(int(value))]
        return Call("struct_field", (names[0],), {})
    if kind != "call":
        raise ValueError(f"unknown part of an expression: {kind}={value}")
    arguments: list[Node] = []
    options: dict[str, Any] = {}
    while words[0] != ("end", value):
        if words[0][0] == "options":
            options = dict(batch.column(int(words.popleft()[1]))[0].items())
        else:
            arguments.append(_read(words, batch))
    words.popleft()
    return Call(value, tuple(arguments), options)


def value_set(call: Call) -> list[Any]:
    values: list[Any] = call.options["value_set"].as_py()
    return values


# -- Rules of other engines ----------------------------------------------------------------------------------


def with_sql_rules(node: Node, floats: set[str]) -> pc.Expression:
    """Rewrite a filter expression so that Arrow selects the same rows as DataFusion. ``floats`` are the
    columns of floats.

    In DataFusion, NaN is not null, equals NaN, and is greater than all other numbers. DataFusion's ``IN``
    returns null if the tested value is null. In Arrow, NaN is not equal to, less than or greater than any
    number. Arrow's ``is_in`` returns false for a null. Raise SchemaError if the expression calls a function
    that DataFusion's filters do not use.
    """
    if isinstance(node, Column):
        return pc.field(node.name)
    if isinstance(node, Literal):
        return pc.scalar(node.scalar)
    values = [with_sql_rules(argument, floats) for argument in node.arguments]
    match node.function:
        case "and_kleene":
            return values[0] & values[1]
        case "or_kleene":
            return values[0] | values[1]
        case "invert":
            return ~values[0]
        case "is_null":
            return values[0].is_null()
        case "is_valid":
            return values[0].is_valid()
        case "is_in":
            found = values[0].isin(value_set(node))
            return pc.if_else(values[0].is_valid(), found, pa.scalar(None, pa.bool_()))
        case name if name in OPERATORS:
            if any(map(partial(_is_float, floats=floats), node.arguments)):
                return _TOTAL_ORDER[name](*values)
            return COMPARE[OPERATORS[name]](*values)
    raise SchemaError(
        f"the function {node.function} in the filter {node} has no rule", "filter the result of the query"
    )


def _is_float(node: Node, floats: set[str]) -> bool:
    if isinstance(node, Literal):
        return bool(pa.types.is_floating(node.scalar.type))
    return isinstance(node, Column) and node.name in floats


def _equal(left: pc.Expression, right: pc.Expression) -> pc.Expression:
    return (left == right) | (pc.is_nan(left) & pc.is_nan(right))


def _less(left: pc.Expression, right: pc.Expression) -> pc.Expression:
    return (left < right) | (~pc.is_nan(left) & pc.is_nan(right))


# Maps Arrow's comparison functions to comparisons in which NaN equals NaN and is greater than all other
# numbers.
_TOTAL_ORDER: dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "equal": _equal,
    "not_equal": lambda left, right: ~_equal(left, right),
    "less": _less,
    "less_equal": lambda left, right: ~_less(right, left),
    "greater": lambda left, right: _less(right, left),
    "greater_equal": lambda left, right: ~_less(left, right),
}


_MIRRORED: dict[Operator, Operator] = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

# Values of the option ``null_matching_behavior`` of Arrow's ``is_in``.
_MATCH_NULLS, _SKIP_NULLS = 0, 1


def arrow_predicate(expression: pc.Expression, schema: Schema, *, sql_rules: bool = False) -> ArrowExpression:
    """Convert a pyarrow expression to a predicate. Arrow evaluates the expression on the rows of a table.

    If ``sql_rules`` is True, evaluate the expression as DataFusion does (see `with_sql_rules`). Raise
    SchemaError if Arrow cannot apply the expression to the columns, or if it refers to a column by index
    instead of by name.
    """
    if not isinstance(expression, pc.Expression):
        raise _no_expression(expression, schema)
    try:
        pa.Table.from_batches([schema.no_rows()]).filter(expression)
    except pa.ArrowException as error:
        problem = f"filters= cannot be applied to the columns: {error}"
        raise SchemaError(problem, "compare columns with values of their types", keyword="filters") from None
    try:
        tree = read_expression(expression)
    except (LookupError, ValueError):  # the expression has an unknown format, and may use any column
        if sql_rules:
            raise
        return ArrowExpression(expression, tuple(schema.names))
    except pa.ArrowNotImplementedError:  # a column is referred to by its number, and the error below says so
        names = []
    else:
        used = columns_of(tree)
        # For a constant expression, read the first column, because Arrow needs a column to know the number of
        # rows.
        names = [name for name in schema.names if name in used] if used else schema.names[:1]
    if not names:
        problem = f"filters= refers to a column by its number, or the dataset has no columns: {expression}"
        raise SchemaError(problem, 'name columns, such as pc.field("year") > 2020', keyword="filters")
    floats = {item.name for item in schema.fields if pa.types.is_floating(value_type(item.type))}
    applied = with_sql_rules(tree, floats) if sql_rules else expression
    return ArrowExpression(applied, tuple(names), pruning_predicate(tree, schema, sql_rules=sql_rules))


def _no_expression(given: Any, schema: Schema) -> TFRecordError:
    shown = f" {given!r}" if isinstance(given, str | list | tuple | dict) else ""
    problem = f"the filter{shown} is not a pyarrow expression (got {type(given).__name__})"
    name = next(iter(schema.names), "x")
    advice = f"pass for example pyarrow.compute.field({literal(name)}).is_valid()"
    conditions = given if isinstance(given, list) else meant_conditions(given)
    if conditions:
        advice = f"pass pyarrow.parquet.filters_to_expression({conditions!r})"
    elif hasattr(given, "dtype") or isinstance(given, pa.Array | pa.ChunkedArray):
        advice = "pass a mask, or the indices of rows, to take()"
    elif callable(given):
        advice = f"{advice}, or apply the function to the result of to_dask()"
    return TFRecordError(problem, advice, keyword="filter")


def pruning_predicate(node: Node, schema: Schema, *, sql_rules: bool = False) -> Predicate:
    """Return a predicate whose possible outcomes include all outcomes of a pyarrow expression.

    A part of the expression that cannot be translated becomes `Ambiguous`, which excludes no file. If
    ``sql_rules`` is True, the expression follows the rules of DataFusion and Polars (see `with_sql_rules`).
    """

    def part(node: Node) -> Predicate:
        return pruning_predicate(node, schema, sql_rules=sql_rules)

    try:
        match node:
            case Call("and_kleene", (left, right)):
                return And(part(left), part(right))
            case Call("or_kleene", (left, right)):
                return Or(part(left), part(right))
            case Call("invert", (operand,)):
                return Not(part(operand))
            case Call("is_null", (Column(name),)):
                return IsNull(name)
            case Call("is_valid", (Column(name),)):
                return Not(IsNull(name))
            case Call("is_in", (Column(name),)):
                return _pruning_is_in(schema, name, node, sql_rules)
            case Call("if_else", (Call("is_null", (Column(name),)), Literal(), Call("is_in") as found)):
                # DuckDB expresses IN as an `if_else` of `is_null`, a literal and `is_in`.
                return _pruning_is_in(schema, name, found, True)
            case Call(function, (Column(name), Literal(scalar))):
                return _pruning_compare(schema, name, OPERATORS[function], scalar, sql_rules)
            case Call(function, (Literal(scalar), Column(name))):
                return _pruning_compare(schema, name, _MIRRORED[OPERATORS[function]], scalar, sql_rules)
    # There is no translation, for example because Arrow may compare a value differently from its comparison
    # key.
    except (ArithmeticError, LookupError, TypeError, ValueError):
        pass
    return Ambiguous()


def _pruning_compare(
    schema: Schema, name: str, symbol: Operator, scalar: pa.Scalar, sql_rules: bool
) -> Predicate:
    [field] = schema.select([name]).fields
    if pa.types.is_dictionary(field.type) and field.type.ordered and symbol not in ("==", "!="):
        raise WrongTypeError("Arrow compares the values of categories, not their order")
    found = compare_in_pandas(field, symbol, scalar.as_py())
    is_true_for_nan = sql_rules and symbol in (">", ">=") and has_nan(field.type)
    return Or(found, Ambiguous()) if is_true_for_nan else found


def _pruning_is_in(schema: Schema, name: str, call: Call, sql_rules: bool) -> Predicate:
    [field] = schema.select([name]).fields
    null_rule = call.options["null_matching_behavior"].as_py()
    if null_rule not in (_MATCH_NULLS, _SKIP_NULLS):
        raise WrongTypeError("the outcome is null for some rows")
    values = value_set(call)
    found = is_in_pandas(field, [value for value in values if value is not None])
    if None in values and null_rule == _MATCH_NULLS:
        found = Or(found, IsNull(name))
    # In SQL, IN returns null for a null value. The comparison with ``values[0]`` adds null to the possible
    # outcomes.
    return Ambiguous((found, compare_in_pandas(field, "==", values[0]))) if sql_rules else found


def parse_filters(filters: Any, schema: Schema) -> Predicate:
    """Convert the value of ``filters=`` to a predicate. Raise SchemaError for an invalid filter."""
    if isinstance(filters, Predicate):
        return filters
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
    """Return the names of the columns that ``filters=`` uses, or None if they cannot be determined."""
    if isinstance(filters, pc.Expression):
        try:
            return columns_of(read_expression(filters))
        # Arrow raises ArrowNotImplementedError for a reference to a column by index. LookupError and
        # ValueError mean that this version of Arrow serializes expressions in an unknown format.
        except (LookupError, ValueError, pa.ArrowNotImplementedError):
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
        # WrongTypeError is a TypeError. The comparison operators of the value's class may raise any of the
        # caught errors.
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
            problem = f"the operator {symbol!r} in filters= needs a list of values, not {value!r}"
            example = f"pass {(field.name, symbol, [value])!r}"
            raise SchemaError(problem, example, feature=field.name, keyword="filters")
        predicate = is_in(field, value)
        return Not(predicate) if symbol == "not in" else predicate
    if symbol in ("is", "is not"):
        missing: Predicate = IsNull(field.name)
        if isinstance(value, float) and math.isnan(value):  # in pandas, NaN means that a value is missing
            missing = Or(missing, is_in(field, [value])) if has_nan(field.type) else missing
        elif value is not None and value is not pd.NA and value is not pd.NaT:
            raise WrongTypeError(f"{symbol!r} needs None, not {value!r}")
        return Not(missing) if symbol == "is not" else missing
    symbol = "==" if symbol == "=" else symbol
    if symbol not in get_args(Operator):
        known = ", ".join(map(repr, ("=", *get_args(Operator), "in", "not in", "is", "is not")))
        problem = f"unknown operator {symbol!r} in filters=; known are {known}"
        example = f"pass for example {(field.name, '==', value)!r}"
        raise SchemaError(problem, example, feature=field.name, keyword="filters")
    if value is None:
        raise WrongTypeError('None cannot be compared; use the operators "is" and "is not" to find nulls')
    return compare(field, cast(Operator, symbol), value)


def _malformed(filters: Any) -> SchemaError:
    meant = meant_conditions(filters)
    return SchemaError(
        f"filters= is not a list of (column, operator, value), or a list of such lists: {filters!r}",
        'pass for example [("year", ">=", 2024), ("country", "in", ["FR", "PL"])], or a pyarrow '
        'expression such as pc.field("year") >= 2024'
        if meant is None
        else f"pass filters={meant!r}",
        keyword="filters",
    )


_COMPARISONS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_COMPARISONS |= {ast.In: "in", ast.NotIn: "not in"}


def meant_conditions(filters: Any) -> list[tuple[str, str, Any]] | None:
    """Convert a str, a dict or a single condition to the list that was meant, or return None."""
    if isinstance(filters, dict) and filters and all(isinstance(name, str) for name in filters):
        return [(name, "==", value) for name, value in filters.items()]
    if _is_condition(filters):
        return [tuple(filters)]
    if not isinstance(filters, str):
        return None
    try:
        # `=` and `<>` are operators of SQL.
        text = re.sub(r"(?<![<>=!])=(?!=)", "==", filters.replace("<>", "!="))
        body = ast.parse(text.strip(), mode="eval").body
        parts = body.values if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And) else [body]
        return [_comparison(part) for part in parts]
    except (SyntaxError, ValueError):
        return None


def _comparison(node: ast.expr) -> tuple[str, str, Any]:
    match node:
        case ast.Compare(ast.Name(name), [operator], [value]) if type(operator) in _COMPARISONS:
            return name, _COMPARISONS[type(operator)], ast.literal_eval(value)
    raise ValueError("not a comparison of a column with a value")
