"""Convert pyarrow expressions to predicates: Arrow filters the rows, and translated parts exclude files."""

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.query.arrow_expressions import (
    Call,
    Column,
    Literal,
    Node,
    columns_of,
    read_expression,
    value_set,
    with_sql_rules,
)
from dask_tfrecord.dataset.query.comparison_keys import WrongTypeError, has_nan
from dask_tfrecord.dataset.query.comparisons import compare_in_pandas, is_in_pandas
from dask_tfrecord.dataset.query.predicates import (
    OPERATORS,
    Ambiguous,
    And,
    ArrowExpression,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
)
from dask_tfrecord.errors import SchemaError, check_instance
from dask_tfrecord.schema.model import Schema

_MIRRORED: dict[Operator, Operator] = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

# Values of the option ``null_matching_behavior`` of Arrow's function ``is_in``.
_MATCH_NULLS, _SKIP_NULLS = 0, 1


def arrow_predicate(expression: pc.Expression, schema: Schema, *, sql_rules: bool = False) -> ArrowExpression:
    """Convert a pyarrow expression to a predicate. Arrow evaluates the expression for rows.

    Parameters
    ----------
    expression : pyarrow.compute.Expression
        The condition that each row of the result meets.
    schema : Schema
        All columns of the dataset.
    sql_rules : bool, default False
        If True, the expression is a filter of DataFusion, and follows the rules of `with_sql_rules`.

    Raises
    ------
    SchemaError
        If Arrow cannot apply the expression to the columns, or if the expression refers to a column by its
        number.
    """
    check_instance("filters", expression, pc.Expression)
    try:
        pa.Table.from_batches([schema.no_rows()]).filter(expression)
    except pa.ArrowException as error:
        problem = f"filters= cannot be applied to the columns: {error}"
        raise SchemaError(problem, "compare columns with values of their types", keyword="filters") from None
    try:
        tree = read_expression(expression)
    except (LookupError, ValueError):  # an unknown version of Arrow: the expression may use all columns
        if sql_rules:
            raise
        return ArrowExpression(expression, tuple(schema.names))
    except pa.ArrowNotImplementedError:  # how Arrow reports a column that is given by its number
        names = []
    else:
        used = columns_of(tree)
        # The number of rows comes from a column, so that a constant uses the first column.
        names = [name for name in schema.names if name in used] if used else schema.names[:1]
    if not names:
        problem = f"filters= refers to a column by its number, or the dataset has no columns: {expression}"
        raise SchemaError(problem, 'name columns, such as pc.field("year") > 2020', keyword="filters")
    applied = with_sql_rules(tree, schema) if sql_rules else expression
    return ArrowExpression(applied, tuple(names), pruning_predicate(tree, schema, sql_rules=sql_rules))


def pruning_predicate(node: Node, schema: Schema, *, sql_rules: bool = False) -> Predicate:
    """Return a predicate whose possible outcomes include all outcomes of a pyarrow expression.

    A part of the expression that cannot be translated becomes `Ambiguous`, and excludes no file.

    Parameters
    ----------
    node : Node
        The tree of the expression.
    schema : Schema
        All columns of the dataset.
    sql_rules : bool, default False
        If True, the expression follows the rules of `with_sql_rules`, which are also those of Polars.
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
                return _pruning_is_in(schema, name, found, True)  # the form of IN in DuckDB
            case Call(function, (Column(name), Literal(scalar))):
                return _pruning_compare(schema, name, OPERATORS[function], scalar, sql_rules)
            case Call(function, (Literal(scalar), Column(name))):
                return _pruning_compare(schema, name, _MIRRORED[OPERATORS[function]], scalar, sql_rules)
    # Arrow may compare the values by other rules than comparison keys are compared.
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
    # In SQL, the outcome is null for a null. The second candidate adds this outcome.
    return Ambiguous((found, compare_in_pandas(field, "==", values[0]))) if sql_rules else found
