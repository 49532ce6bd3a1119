"""Where the text of a collection comes from, and checks of the places where Dask makes text of objects."""

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
from dask_tfrecord.frames import stringified
from dask_tfrecord.schema.model import Schema

# What an expression below calls a column or an index level of the collection -> what it is called there.
Names = Mapping[Hashable, str]

# Columns of text, and whether they were computed before: Dask may have made text of them then.
Texts = tuple[tuple[str, bool], ...]

_RENAMING = (RenameFrame, AddPrefix, RenameSeries, ToFrame)
_LOADS = (ArrowStringConversion, FromGraph, FromPandas, ReadTFRecord)


def records_read(ddf: DataFrame) -> list[Schema]:
    """The columns of the TFRecord files that a collection is made of."""
    return [found.dataset.schema for found in ddf.expr.walk() if isinstance(found, ReadTFRecord)]


def was_computed(ddf: DataFrame) -> bool:
    """Whether a collection holds results, such as those of ``persist()``, which do not show their origin."""
    return any(isinstance(found, FromGraph) for found in ddf.expr.walk())


class CheckedStrings(ArrowStringConversion):
    """Dask's conversion of objects to text, which refuses other objects in the columns that are named."""

    _parameters: ClassVar = ["frame", "names"]

    @staticmethod
    def operation(frame: Any, names: tuple[tuple[Hashable, str], ...]) -> Any:
        """Convert a partition."""
        _check_objects(frame, dict(names))
        return ArrowStringConversion.operation(frame)


def checked(ddf: DataFrame, names: Names) -> tuple[DataFrame, Texts]:
    """The collection with checks that its text was no other objects before.

    Data that is in the graph is checked now, other data when it is loaded.

    Parameters
    ----------
    ddf : dask.dataframe.DataFrame
        The collection.
    names : mapping
        The columns and index levels that are text, and the columns that they become.

    Returns
    -------
    dask.dataframe.DataFrame
        The collection that checks itself.
    Texts
        The columns of which nothing is known but the text itself.

    Raises
    ------
    SchemaError
        For a column of data in the graph that holds other objects than text.
    """
    found = ddf.expr
    known: set[str] = set()
    computed: set[str] = set()
    changes: dict[str, tuple[Expr, dict[Hashable, str]]] = {}
    for source, below in _loads(found, names, set()):
        if isinstance(source, FromGraph):
            computed |= set(below.values())
            continue
        known |= set(below.values())
        if isinstance(source, FromPandas) and source.pyarrow_strings_enabled:
            _check_objects(source.operand("frame")._data, below)
        if isinstance(source, ArrowStringConversion):
            before = changes.get(source._name, (source, {}))[1]
            changes[source._name] = source, before | dict(below)
    for source, below in changes.values():
        found = found.substitute(source, CheckedStrings(source.frame, tuple(below.items())))
    doubtful = (name for name in names.values() if name not in known or name in computed)
    return new_collection(found), tuple((name, name in computed) for name in doubtful)


def _loads(found: Expr, names: Names, seen: set[Any]) -> Iterator[tuple[Expr, Names]]:
    """The expressions that load the columns, and what they call them."""
    key = found._name, frozenset(names.items())
    if not names or key in seen:
        return
    seen.add(key)
    if isinstance(found, _LOADS):
        yield found, names
        return
    for below in found.dependencies():
        yield from _loads(below, _names_below(found, below, names), seen)


def _names_below(found: Expr, below: Expr, names: Names) -> Names:
    """The names in an expression that another is made of."""
    if isinstance(found, Filter) and below._name != found.frame._name:
        return {}  # a mask
    columns, levels = _labels(below)
    if isinstance(found, _RENAMING):
        pairs = zip(_labels(found)[0], columns, strict=False)
        return {old: names[new] for new, old in pairs if new in names} | _only(names, levels)
    if isinstance(found, Assign):
        assigned = dict(zip(found.keys, found.vals, strict=True))
        kept = {old: new for old, new in names.items() if old not in assigned}
        taken = _only(kept, [*columns, *levels]) if below._name == found.frame._name else {}
        for key, value in assigned.items():
            if key in names and isinstance(value, Expr) and value._name == below._name:
                taken |= dict.fromkeys(columns, names[key])
        return taken
    return _only(names, [*columns, *levels])


def _only(names: Names, labels: list[Hashable]) -> dict[Hashable, str]:
    return {label: names[label] for label in labels if label in names}


def _labels(found: Expr) -> tuple[list[Hashable], list[Hashable]]:
    """The names of columns and of index levels."""
    try:
        meta = found._meta
    except (AttributeError, NotImplementedError):  # Dask's expressions that are no frames have none
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
            stringified.check_objects(columns[label], name)
        elif label in frame.index.names:
            stringified.check_objects(frame.index.get_level_values(label), name)
