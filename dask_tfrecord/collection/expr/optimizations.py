"""Decide which rewrites Dask's optimizer may apply to a read, and translate masks to predicates.

Masks are boolean expressions that filter a DataFrame. The functions of this module are pure functions of the
expression graph.

- Column projection is always legal. Dask projects the columns (`_absorb_projections`), so that only columns
  that the computation needs are decoded.
- Selecting partitions (head, tail, partitions) is always legal. Dask's class `PartitionsFiltered` implements
  the selection.
- Counting rows without reading is legal if the snapshot contains the counts and no file has changed.
  Otherwise records are counted without decoding (`ReadTFRecord._count`).
- Predicate pruning is legal if every path from the read ends in a filter and is computed row by row. The
  filters stay in the graph, and the read only skips files and blocks without matching rows
  (`ReadTFRecord._simplify_up`, `Decision.predicate`). If no other read returns the same rows, the read may
  also skip individual rows, based on the values in column files (`Decision.skips_rows`). The remaining rows
  keep their index values.
- Fusing partitions is legal if every consumer ignores partition boundaries and the divisions are unknown
  (`ReadTFRecord._tune_up`, `Decision.ignores_partitions`). Partitions whose rows all fail the predicate,
  according to the values of partition columns, then need no task.
- Omitting these tasks is also legal without fusing, if the whole graph, up to a possible write, is computed
  row by row from reads of the same rows (`Decision.leaves_out`). Without a write, the collection keeps all
  its partitions (`NeededPartitions`).

The module uses these private names of Dask, which were checked with Dask 2025.5.1 to 2026.8: the expression
classes imported below, `_name`, `ndim` and `dependencies()` of an expression, and the mapping `dependents` of
a pass. It maps the name of each expression to weak references to its consumers: the expressions that are
computed from it.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

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
    Elemwise,
    Expr,
    Filter,
    FinalizeComputeDF,
    Index,
    Invert,
    Isin,
    IsNa,
    NotNull,
    Or,
    Projection,
    ResetIndex,
    _DelayedExpr,
)
from dask.dataframe.dask_expr._groupby import SingleAggregation
from dask.dataframe.dask_expr._indexing import Loc
from dask.dataframe.dask_expr._reductions import All, Count, Len, Max, Mean, Sum, Unique, ValueCounts
from dask.dataframe.dask_expr._reductions import Any as AnyTrue
from dask.dataframe.dask_expr._repartition import Repartition
from dask.tokenize import tokenize

from dask_tfrecord.dataset.query import predicates
from dask_tfrecord.dataset.query.comparison_keys import WrongTypeError
from dask_tfrecord.dataset.query.predicates import Ambiguous, Operator, Predicate
from dask_tfrecord.schema.fields import Field, Schema

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
    # If the translation raises, pandas may compare the values in the mask differently from a predicate.
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
        return predicates.compare_in_pandas(_column(column, read_type), operator, value)
    if isinstance(mask, Between) and mask.inclusive in _BETWEEN:
        lower, upper = _BETWEEN[mask.inclusive]
        column = _column(mask.frame, read_type)
        return predicates.And(
            predicates.compare_in_pandas(column, lower, mask.left),
            predicates.compare_in_pandas(column, upper, mask.right),
        )
    if isinstance(mask, Isin) and isinstance(mask.operand("values"), _DelayedExpr):
        values = mask.operand("values").obj.compute(scheduler="sync")
        return predicates.is_in_pandas(_column(mask.frame, read_type), values)
    if isinstance(mask, IsNa | NotNull):
        is_null = predicates.IsNull(_column(mask.frame, read_type).name)
        return is_null if isinstance(mask, IsNa) else predicates.Not(is_null)
    # A mask that is not handled above must be a boolean column.
    return predicates.compare_in_pandas(_column(mask, read_type), "==", True)


def _column(expr: Any, read_type: type[Any]) -> Field:
    """Return the column of a read that an expression selects unchanged. Otherwise, raise WrongTypeError."""
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


# Fusing partitions never reduces the number of tasks below this limit if records are decoded. Even for a few
# columns, a task must then read complete files, so fusing must leave enough tasks for all cores.
MIN_FUSED_TASKS = 64

# A task reads about this many bytes of column files. A partition counts as at least `_PARTITION_BYTES`,
# because opening a column file takes longer than reading many of its bytes.
_TASK_BYTES = 1 << 24
_PARTITION_BYTES = 1 << 20

# Expressions that compute each row from one row of each input.
ROWWISE: TypeAlias = Elemwise | Filter | Loc


class RowSink(Expr):
    """Base class of expressions that end a graph, and that need no partitions without rows."""


# Expressions whose results do not depend on partition boundaries, as long as the rows keep their order.
_IGNORE_PARTITIONS = (Sum, Max, AnyTrue, All, Len, Mean, Count, Unique, ValueCounts, FinalizeComputeDF)

# The key of the cached decisions in the mapping `dependents`. No Dask expression has this key as its name.
_DECISIONS = "dask_tfrecord-decisions"

# Maps the name of each expression to the expression's consumers, keyed by the consumers' names.
Consumers: TypeAlias = Mapping[str, Mapping[str, Expr]]


class Decision(NamedTuple):
    """The rewrites of a read that are legal in one pass of the optimizer.

    ``predicate`` is None if the consumers need all rows. Otherwise, the predicate is true for every row that
    a consumer needs. ``ignores_partitions`` is True if every consumer ignores the boundaries of partitions.
    ``skips_rows`` is True if the read may leave out individual rows for which the predicate is false, which
    requires that no other read returns the same rows. ``leaves_out`` is True if partitions in which no row
    meets the predicate need no task, because the whole graph is computed row by row.
    """

    predicate: Predicate | None
    ignores_partitions: bool
    skips_rows: bool
    leaves_out: bool


def decision(read: Expr, dependents: Any) -> Decision:
    """Return the rewrites of a read that are legal in the optimizer pass that created ``dependents``.

    The first call in a pass makes the decisions for all reads, because Dask adds rewritten expressions to
    ``dependents`` during the pass. Dask creates a new mapping ``dependents`` for each pass, so the decisions
    are cached in this mapping. A read that was created during the pass keeps the decision with which it was
    created.
    """
    if _DECISIONS not in dependents:
        dependents[_DECISIONS] = [decide(consumers_of(dependents), type(read))]
    [decisions] = dependents[_DECISIONS]
    return decisions.get(read._name) or Decision(*map(read.operand, Decision._fields))


def consumers_of(dependents: Mapping[str, Any]) -> Consumers:
    """Resolve the weak references in ``dependents``, and return the consumers that still exist."""
    consumers: dict[str, dict[str, Expr]] = {}
    for name, references in dependents.items():
        alive = (reference() for reference in references)
        consumers[name] = {expr._name: expr for expr in alive if expr is not None}
    return consumers


def decide(consumers: Consumers, read_type: type[Any]) -> dict[str, Decision]:
    """Map the name of each read in a graph to its `Decision`."""
    exprs = (expr for by_name in consumers.values() for expr in by_name.values())
    inputs = (child for expr in exprs for child in expr.dependencies())
    reads = {child._name: child for child in inputs if isinstance(child, read_type)}
    common = {name: _common_predicate(read, consumers) for name, read in reads.items()}
    return {
        name: Decision(
            common[name],
            read.ignores_partitions
            or (
                (read.npartitions > MIN_FUSED_TASKS or common[name] is not None or not read.decodes_records)
                and _ignores_partitions(read, consumers)
            ),
            common[name] is not None
            and not any(other is not read and _reads_same_rows(other, read) for other in reads.values()),
            common[name] is not None and not read._has_divisions and _is_all_rowwise(read, consumers),
        )
        for name, read in reads.items()
    }


def partitions_per_task(
    needed: Schema, all_columns: Schema, npartitions: int, column_file_bytes: int | None
) -> int:
    """Return how many partitions one task reads after fusing, if the read needs the columns ``needed``.

    ``column_file_bytes`` is the size of the column files of a partition if its task decodes no records.
    """
    if column_file_bytes is not None:
        return max(min(_TASK_BYTES // max(column_file_bytes, _PARTITION_BYTES), npartitions), 1)
    width, full_width = (sum(map(_value_width, schema.fields)) for schema in (needed, all_columns))
    return max(min(full_width // max(width, 1), npartitions // MIN_FUSED_TASKS), 1)


def _value_width(field: Field) -> int:
    try:
        return int(field.type.bit_width) // 8 + 1
    except ValueError:  # strings, bytes and lists have no fixed width
        return 32 * (1 + field.depth)


def _ignores_partitions(read: Expr, consumers: Consumers) -> bool:
    """Return True if no consumer of a read depends on its partition boundaries.

    The result is True if every path from the read leads to an expression that combines all partitions, and
    all expressions before it are computed row by row from this read alone.
    """
    visited, pending = {read._name}, [read]
    while pending:
        unvisited = _unvisited_consumers(pending.pop(), consumers, visited)
        if unvisited is None:
            return False
        for consumer in unvisited:
            if isinstance(consumer, Elemwise | Filter) and _is_rowwise_of(consumer, read):
                pending.append(consumer)
            elif not _takes_all_partitions(consumer):
                return False
    return True


def _is_all_rowwise(read: Expr, consumers: Consumers) -> bool:
    """Return True if a graph consists of reads of the same rows as ``read``, of expressions that compute each
    row from one row of each input, and possibly of a `RowSink`.
    """
    exprs = (expr for by_name in consumers.values() for expr in by_name.values())
    return all(
        isinstance(expr, ROWWISE | RowSink)
        and not isinstance(expr, ResetIndex)
        and all(
            isinstance(child, ROWWISE) or (isinstance(child, type(read)) and _reads_same_rows(child, read))
            for child in expr.dependencies()
        )
        for expr in exprs
    )


def _unvisited_consumers(expr: Expr, consumers: Consumers, visited: set[str]) -> list[Expr] | None:
    """Return the consumers of an expression that are not in ``visited``, or None if no consumers exist."""
    by_name = consumers.get(expr._name)
    if not by_name:
        return None
    unvisited = [consumer for name, consumer in by_name.items() if name not in visited]
    visited.update(by_name)
    return unvisited


def _is_rowwise_of(expr: Expr, read: Expr) -> bool:
    """Return True if an expression is computed row by row from one read alone."""
    if expr._name == read._name or not expr.ndim:
        return True
    if not isinstance(expr, Elemwise | Filter) or isinstance(expr, ResetIndex):
        return False  # ResetIndex counts the rows of each partition separately
    inputs = [child for child in expr.dependencies() if child.ndim]
    if len(inputs) > 1 and any(isinstance(below, Filter) for child in inputs for below in child.walk()):
        return False  # Dask may align filtered rows by index label, but fused partitions repeat labels
    return all(_is_rowwise_of(child, read) for child in expr.dependencies())


def _takes_all_partitions(consumer: Expr) -> bool:
    """Return True if an expression combines all partitions, wherever the partitions begin and end."""
    if isinstance(consumer, SingleAggregation):
        return bool(consumer.operand("sort"))  # without sorting, groups are in the order of the partitions
    if isinstance(consumer, Repartition):
        return bool(consumer.operand("new_partitions") == 1)
    return isinstance(consumer, _IGNORE_PARTITIONS)


def _common_predicate(read: Expr, consumers: Consumers) -> Predicate | None:
    """Return a predicate that is true for every row that one or more filters keep.

    Return None if some rows are not filtered, or if no files can be excluded. Reads of the same rows get the
    same predicate, and so keep the same rows.
    """
    filters = _final_filters(read, consumers)
    if not filters:
        return None
    masks = (one.predicate if isinstance(one, Filter) else one.iindexer for one in filters)
    distinct = {predicate_of(mask, type(read)) for mask in masks}
    predicate = reduce(predicates.Or, sorted(distinct, key=repr))
    return predicate if read.dataset.can_prune(predicate) else None


def _final_filters(read: Expr, consumers: Consumers) -> list[Filter | Loc] | None:
    """Follow the row-by-row paths from a read, and return the filters in which they end. Also follow the
    paths from other reads of the same rows that these filters use.

    Return None if a path does not end in a filter, or if a filter also uses rows of another input.
    """
    filters: list[Filter | Loc] = []
    visited, pending = {read._name}, [read]
    while pending:
        unvisited = _unvisited_consumers(pending.pop(), consumers, visited)
        if unvisited is None:
            return None
        for consumer in unvisited:
            if isinstance(consumer, Filter) or (isinstance(consumer, Loc) and consumer.cindexer is None):
                filters.append(consumer)
                reads = _reads_below(consumer, read)
                if reads is None:
                    return None
                pending += [one for one in reads if one._name not in visited]
                visited |= {one._name for one in reads}
            elif isinstance(consumer, Elemwise):
                pending.append(consumer)
            else:
                return None
    return filters


def _reads_below(expr: Filter | Loc, read: Expr) -> list[Expr] | None:
    """Return the reads from which a filter is computed, if they all return the same rows.

    Return None if the filter also has other inputs, or is not computed row by row.
    """
    reads, pending = [], expr.dependencies()
    while pending:
        child = pending.pop()
        if isinstance(child, type(read)) and _reads_same_rows(child, read):
            reads.append(child)
        elif isinstance(child, Elemwise):
            pending += child.dependencies()
        elif child.ndim:
            return None
    return reads


def _reads_same_rows(one: Expr, other: Expr) -> bool:
    """Return True if two reads return the same rows of one dataset, possibly with different columns."""
    return bool(
        tokenize(one.dataset) == tokenize(other.dataset)
        and one.operand("_partitions") == other.operand("_partitions")
    )
