"""Read the structure of pyarrow expressions, which pyarrow does not show, and rewrite expressions.

Arrow serializes an expression as a batch: the metadata of its schema holds the words of the expression, and
its columns hold the literals and the options of functions. This module knows this private format, which was
checked with pyarrow 18 to 26.
"""

import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.query.predicates import COMPARE, OPERATORS
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.model import Schema
from dask_tfrecord.schema.storage_types import value_type


class Column(NamedTuple):
    """A reference to a column by its name."""

    name: str


class Literal(NamedTuple):
    """A constant of an expression."""

    scalar: pa.Scalar


class Call(NamedTuple):
    """A call of an Arrow function. The dict of options is empty if the function has none."""

    function: str
    arguments: tuple["Node", ...]
    options: dict[str, Any]


Node: TypeAlias = Column | Literal | Call

# The metadata of a schema in the C data interface of Arrow is the third pointer of the struct ArrowSchema.
_METADATA_POINTER = 2 * ctypes.sizeof(ctypes.c_void_p)


def read_expression(expression: pc.Expression) -> Node:
    """Return the tree of an expression.

    Raises
    ------
    pyarrow.ArrowNotImplementedError
        If the expression refers to a column by its number, which has no name to read.
    ValueError
        If the serialized form of the expression is not known.
    """
    _, (serialized, *_) = expression.__reduce__()
    batch = pa.ipc.open_file(serialized).get_batch(0)
    return _read(deque(_pairs(batch.schema)), batch)


def columns_of(node: Node) -> set[str]:
    """Return the names of the columns that an expression uses."""
    if isinstance(node, Column):
        return {node.name}
    return set().union(*map(columns_of, node.arguments)) if isinstance(node, Call) else set()


def _pairs(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of the metadata in order. `Schema.metadata` loses pairs with the same key."""
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
    if kind == "nested_field_ref":  # a field of a struct column
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
    """Return the values of a call of ``is_in``."""
    values: list[Any] = call.options["value_set"].as_py()
    return values


# -- Rules of other engines ----------------------------------------------------------------------------------


def with_sql_rules(expression: Node, schema: Schema) -> pc.Expression:
    """Return an expression with which Arrow filters rows as DataFusion does for the given expression.

    In DataFusion, NaN equals NaN and is greater than all other numbers, NaN is not null, and ``IN`` is null
    for a null. In Arrow, NaN is neither equal to, less than nor greater than any number, and ``is_in`` is
    false for a null.

    Raises
    ------
    SchemaError
        If the expression uses a function that DataFusion's filters do not use.
    """
    floats = {item.name for item in schema.fields if pa.types.is_floating(value_type(item.type))}
    return _rewritten(expression, floats)


def _rewritten(node: Node, floats: set[str]) -> pc.Expression:
    if isinstance(node, Column):
        return pc.field(node.name)
    if isinstance(node, Literal):
        return pc.scalar(node.scalar)
    values = [_rewritten(argument, floats) for argument in node.arguments]
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


# Comparisons for which NaN equals NaN and is greater than all other numbers.
_TOTAL_ORDER: dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "equal": _equal,
    "not_equal": lambda left, right: ~_equal(left, right),
    "less": _less,
    "less_equal": lambda left, right: ~_less(right, left),
    "greater": lambda left, right: _less(right, left),
    "greater_equal": lambda left, right: ~_less(left, right),
}
