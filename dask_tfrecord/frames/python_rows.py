"""Convert lists of Python dicts to Arrow tables."""

from collections.abc import Iterable, Mapping
from itertools import chain
from operator import methodcaller
from typing import Any

import pandas as pd
import pyarrow as pa

from dask_tfrecord.errors import SchemaError, TFRecordError
from dask_tfrecord.frames.column_types import CONVERSION_ERRORS, first_line
from dask_tfrecord.frames.pandas_to_arrow import first_misfit
from dask_tfrecord.schema.structs import structs


def is_records(rows: list[Any]) -> bool:
    """Return True if all items of a list are bytes, which are whole records."""
    return all(issubclass(kind, bytes) for kind in {*map(type, rows)})


def table_of(rows: list[Any], types: Mapping[str, pa.DataType], title: str) -> pa.Table:
    """Convert a list of dicts to a table. The values of a column show the type of the column.

    Parameters
    ----------
    rows : list of dict
        The rows, at least one.
    types : mapping of str to pyarrow.DataType
        The columns that the table has in any case. Other keys of the dicts become further columns. A key that
        a dict lacks is null, also in the dicts of a struct column. The columns of the table need not have
        these types.
    title : str
        The path in error messages.

    Raises
    ------
    SchemaError
        If a key is not a string, or if the values of a key have no common type. The error has the number of
        the row in the list.
    TFRecordError
        If an item of the list is not a dict.
    """
    others = {kind.__name__ for kind in {*map(type, rows)} if not issubclass(kind, Mapping)}
    if others:
        problem = f"a list of rows holds {', '.join(sorted(others))}"
        raise TFRecordError(problem, "pass a list of dicts, or a list of bytes", path=title)
    names = dict.fromkeys(chain(types, *rows))
    for name in names:
        if not isinstance(name, str):
            raise SchemaError("a key is not a string", path=title, feature=repr(name))
    columns = {name: _column(name, rows, title) for name in names}
    return pa.table({name: _with_fields(column, types.get(name)) for name, column in columns.items()})


def _column(name: str, rows: list[Any], title: str) -> pa.Array:
    values = [None if one is pd.NA or one is pd.NaT else one for one in map(methodcaller("get", name), rows)]

    def converted(count: int) -> pa.Array:
        some = values[:count]
        column = pa.array(some)
        # Arrow takes values of pandas for values of Python, which have microseconds.
        return pa.array(some, _exact(column.type)) if _has_nanoseconds(some, column.type) else column

    try:
        return converted(len(values))
    except CONVERSION_ERRORS as error:
        raise SchemaError(
            f"the values have no common type: {first_line(error)}",
            "give all values of a key the same type",
            path=title,
            record=first_misfit(converted, len(values)),
            feature=name,
        ) from None


def _has_nanoseconds(values: Iterable[Any], type_: pa.DataType) -> bool:
    """Return True if values of a type, or values that are nested in them, have more than microseconds."""
    if _exact(type_) == type_:
        return False
    if pa.types.is_list(type_):
        return any(_has_nanoseconds(one, type_.value_type) for one in values if one is not None)
    if pa.types.is_struct(type_):
        known = [one for one in values if one is not None]
        return any(_has_nanoseconds((one.get(item.name) for one in known), item.type) for item in type_)
    return any(getattr(one, "nanosecond", 0) or getattr(one, "nanoseconds", 0) for one in values)


def _exact(type_: pa.DataType) -> pa.DataType:
    """Return a type with nanoseconds in place of microseconds."""
    if type_ == pa.duration("us"):
        return pa.duration("ns")
    if pa.types.is_timestamp(type_) and type_.unit == "us":
        return pa.timestamp("ns", type_.tz)
    if pa.types.is_list(type_):
        return pa.list_(_exact(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct({item.name: _exact(item.type) for item in type_})
    return type_


def _with_fields(column: pa.Array, type_: pa.DataType | None) -> pa.Array:
    """Add the fields of a struct type that all dicts of a column lack, and give the fields the same order."""
    if not isinstance(type_, pa.StructType) or not isinstance(column.type, pa.StructType):
        return column
    found = dict(zip([item.name for item in column.type], column.flatten(), strict=True))
    if not {*found} <= {item.name for item in type_}:
        return column  # a later conversion raises
    fields = {
        item.name: _with_fields(found.get(item.name, pa.nulls(len(column))), item.type) for item in type_
    }
    made = pa.struct({name: values.type for name, values in fields.items()})
    return structs(made, column.is_valid(), [*fields.values()])
