"""Convert lists of Python dicts, and lists of records as bytes, to Arrow tables."""

from collections.abc import Mapping
from itertools import chain
from operator import methodcaller
from typing import Any

import pyarrow as pa

from dask_tfrecord.errors import SchemaError, TFRecordError
from dask_tfrecord.frames.column_types import CONVERSION_ERRORS, first_line
from dask_tfrecord.frames.pandas_to_arrow import first_misfit
from dask_tfrecord.schema.structs import structs


def is_records(rows: list[Any]) -> bool:
    """Return True if all items of a list are bytes, which are whole records."""
    return all(issubclass(kind, bytes) for kind in {*map(type, rows)})


def table_of(rows: list[Any], types: Mapping[str, pa.DataType], title: str) -> pa.Table:
    """Convert a list of dicts, or of bytes, to a table. The values of a column show the type of the column.

    Parameters
    ----------
    rows : list of dict, or list of bytes
        The rows, at least one.
    types : mapping of str to pyarrow.DataType
        The columns that the table has in any case. Other keys of the dicts become further columns. A key that
        a dict lacks is null, also in the dicts of a struct column. Bytes become the values of the only
        column. The columns of the table need not have these types.
    title : str
        The path in error messages.

    Raises
    ------
    SchemaError
        If the values of a key have no common type. The error has the number of the row in the list.
    TFRecordError
        If an item of the list is neither a dict nor bytes.
    """
    if is_records(rows):
        (name,) = types
        return pa.table({name: pa.array(rows, pa.binary())})
    others = {kind.__name__ for kind in {*map(type, rows)} if not issubclass(kind, Mapping)}
    if others:
        raise TFRecordError(
            f"a list of rows holds {', '.join(sorted(others))}",
            path=title,
            advice="pass a list of dicts, or a list of bytes",
        )
    columns = {name: _column(name, rows, title) for name in dict.fromkeys(chain(types, *rows))}
    return pa.table({name: _with_fields(column, types.get(name)) for name, column in columns.items()})


def _column(name: str, rows: list[Any], title: str) -> pa.Array:
    values = list(map(methodcaller("get", name), rows))
    try:
        return pa.array(values)
    except CONVERSION_ERRORS as error:
        raise SchemaError(
            f"the values have no common type: {first_line(error)}",
            path=title,
            record=first_misfit(lambda count: pa.array(values[:count]), len(values)),
            feature=str(name),
            advice="give all values of a key the same type",
        ) from None


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
