"""Find the sources of a collection's text columns, and check objects that Dask converts to text."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, ClassVar

import pandas as pd
from dask.dataframe.dask_expr import new_collection
from dask.dataframe.dask_expr._collection import DataFrame
from dask.dataframe.dask_expr._expr import (
    AddPrefix,
    ArrowStringConversion,
    Assign,
    Expr,
    Filter,
    RenameFrame,
    RenameSeries,
    ToFrame,
)
from dask.dataframe.dask_expr.io.io import FromGraph, FromPandas

from dask_tfrecord.expr.reading import ReadTFRecord
from dask_tfrecord.frames import text_guard

# A map from the label of a column or index level in an expression to the name of its column in the records.
Names = Mapping[Hashable, str]

_RENAMING = (RenameFrame, AddPrefix, RenameSeries, ToFrame)
_LOADS = (ArrowStringConversion, FromGraph, FromPandas, ReadTFRecord)


class CheckedStringConversion(ArrowStringConversion):
    """The Dask expression that converts objects to text, but raises if the named columns hold anything but
    strings.
    """

    _parameters: ClassVar = ["frame", "names"]

    @staticmethod
    def operation(frame: Any, names: tuple[tuple[Hashable, str], ...]) -> Any:
        """Check that the objects of a partition are strings, and convert them to text."""
        _check_objects(frame, dict(names))
        return ArrowStringConversion.operation(frame)


def check_string_conversions(ddf: DataFrame, names: Names) -> tuple[DataFrame, tuple[str, ...]]:
    """Check that Dask converts only strings, and no other objects, to text.

    Objects that the graph contains are checked immediately. Objects that a task loads from elsewhere are
    checked in that task.

    Parameters
    ----------
    ddf : dask.dataframe.DataFrame
        The collection to check.
    names : mapping
        Map from the label of each column or index level that holds text to the name of its column in the
        records.

    Returns
    -------
    dask.dataframe.DataFrame
        The collection, with a check of the objects before each conversion to text.
    tuple of str
        The names of text columns that were computed earlier, for example by persist(). Dask may have
        converted objects of these columns at that time, so only the resulting text can be inspected.

    Raises
    ------
    SchemaError
        If the graph contains data in which a text column holds objects other than strings.
    """
    expr = ddf.expr
    computed: set[str] = set()
    conversions: dict[str, tuple[Expr, dict[Hashable, str]]] = {}
    for source, labels in _loads(expr, names, set()):
        if isinstance(source, FromGraph):
            computed |= set(labels.values())
            continue
        if isinstance(source, FromPandas) and source.pyarrow_strings_enabled:
            _check_objects(source.operand("frame")._data, labels)
        if isinstance(source, ArrowStringConversion):
            other_labels = conversions.get(source._name, (source, {}))[1]
            conversions[source._name] = source, other_labels | dict(labels)
    for source, labels in conversions.values():
        expr = expr.substitute(source, CheckedStringConversion(source.frame, tuple(labels.items())))
    return new_collection(expr), tuple(name for name in names.values() if name in computed)


def _loads(expr: Expr, names: Names, visited: set[Any]) -> Iterator[tuple[Expr, Names]]:
    """Yield each expression that loads some of the named columns, with the labels of these columns in the
    expression.
    """
    key = expr._name, frozenset(names.items())
    if not names or key in visited:
        return
    visited.add(key)
    if isinstance(expr, _LOADS):
        yield expr, names
        return
    for child in expr.dependencies():
        yield from _loads(child, _names_in_child(expr, child, names), visited)


def _names_in_child(expr: Expr, child: Expr, names: Names) -> Names:
    """Translate the labels of columns in an expression to the labels in a child, from which the expression
    is computed.
    """
    if isinstance(expr, Filter) and child._name != expr.frame._name:
        return {}  # the labels of a filter are not labels of its mask
    columns, levels = _labels(child)
    if isinstance(expr, _RENAMING):
        pairs = zip(_labels(expr)[0], columns, strict=False)
        return {old: names[new] for new, old in pairs if new in names} | _select(names, levels)
    if isinstance(expr, Assign):
        assigned = dict(zip(expr.keys, expr.vals, strict=True))
        unassigned = {label: name for label, name in names.items() if label not in assigned}
        selected = _select(unassigned, [*columns, *levels]) if child._name == expr.frame._name else {}
        for label, value in assigned.items():
            if label in names and isinstance(value, Expr) and value._name == child._name:
                selected |= dict.fromkeys(columns, names[label])
        return selected
    return _select(names, [*columns, *levels])


def _select(names: Names, labels: list[Hashable]) -> dict[Hashable, str]:
    return {label: names[label] for label in labels if label in names}


def _labels(expr: Expr) -> tuple[list[Hashable], list[Hashable]]:
    """Return the labels of an expression's columns, and the labels of its index levels.

    Both lists are empty if the expression is not a DataFrame or Series.
    """
    try:
        meta = expr._meta
    # An expression that is no DataFrame, such as a delayed value, has no meta. Dask raises AttributeError or
    # NotImplementedError for an expression without meta.
    except (AttributeError, NotImplementedError):
        return [], []
    if isinstance(meta, pd.DataFrame):
        return list(meta.columns), list(meta.index.names)
    if isinstance(meta, pd.Series):
        return [meta.name], list(meta.index.names)
    return [], list(meta.names) if isinstance(meta, pd.Index) else []


def _check_objects(frame: Any, names: Names) -> None:
    if isinstance(frame, pd.Index):
        frame = frame.to_series()
    columns = dict(frame.items()) if isinstance(frame, pd.DataFrame) else {frame.name: frame}
    for label, name in names.items():
        if label in columns:
            text_guard.check_objects(columns[label], name)
        elif label in frame.index.names:
            text_guard.check_objects(frame.index.get_level_values(label), name)
