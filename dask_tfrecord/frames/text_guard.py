"""Detect objects that Dask's option dataframe.convert-string would convert to text.

The module `text_guard` knows pandas. The module `text_guard` knows neither files nor task graphs.
"""

from typing import Any

import pandas as pd
import pyarrow as pa

from dask_tfrecord.errors import Remedy, SchemaError, literal
from dask_tfrecord.frames.column_types import PRINTABLE
from dask_tfrecord.frames.object_columns import to_arrow
from dask_tfrecord.schema.storage_types import TEXT, is_any


def holds_text(dtype: Any) -> bool:
    """Return True if values of a dtype may be text that Dask created from objects."""
    if isinstance(dtype, pd.CategoricalDtype):
        dtype = pd.StringDtype() if dtype.categories is None else dtype.categories.dtype
        return holds_text(dtype) or bool(pd.api.types.is_object_dtype(dtype))
    if isinstance(dtype, pd.ArrowDtype):
        return is_any(dtype.pyarrow_dtype, TEXT)
    return isinstance(dtype, pd.StringDtype)


def check_objects(values: "pd.Series[Any] | pd.Index[Any]", name: str) -> None:
    """Raise if an object column has values that are not strings, because Dask would convert them to text.

    Parameters
    ----------
    values : pandas.Series or pandas.Index
        The values of the column before the conversion.
    name : str
        The name of the column.

    Raises
    ------
    SchemaError
        If a value is not a string. The error names the type of the first such value.
    """
    if not pd.api.types.is_object_dtype(values.dtype):
        return
    if pd.api.types.infer_dtype(values, skipna=True) in ("string", "empty"):
        return
    objects = [value for value in values[values.notna()] if not isinstance(value, str)]
    kind = next((type(value).__name__ for value in objects), "mixed")
    keeps_values = all(isinstance(value, PRINTABLE) for value in objects)
    raise SchemaError(
        f"Dask's option dataframe.convert-string converts the {kind} objects of this column to text",
        advice(name, _arrow_type(values)),
        remedies=[as_text(name)] if keeps_values else [],
        feature=name,
    )


def _arrow_type(values: "pd.Series[Any] | pd.Index[Any]") -> str:
    """Return the Arrow type of objects as Python code; "..." if the objects have no common type."""
    try:
        return literal(to_arrow(pd.Series(values), None, rounded=False).type)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return "..."


def advice(name: str, type_: str = "pa.binary()") -> str:
    """Return the advice on how to keep the objects of a column that Dask would convert to text."""
    return (
        "give the column an Arrow dtype before Dask loads it, "
        f'.astype({{"{name}": pd.ArrowDtype({type_})}}), or build the collection under '
        'dask.config.set({"dataframe.convert-string": False})'
    )


def as_text(name: str) -> Remedy:
    """Return the remedy that writes the column as text: a value for the argument ``schema=``."""
    return Remedy("schema", {name: pa.string()}, "write the text itself")
