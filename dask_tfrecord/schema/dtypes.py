"""Name the pandas dtypes of written columns, so that a read can restore them.

A dtype has the name that pandas uses. The names of string dtypes also contain their storage, as in
``str[pyarrow]`` and ``string[python]``.
"""

import re
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_tfrecord.schema.logical_types import canonical_type


def arrow_backed(table: pa.Table) -> pd.DataFrame:
    """Convert a table to a DataFrame whose columns are Arrow-backed, so that nulls keep their type."""
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return frame


_TEXT = re.compile(r"(str|string)\[(python|pyarrow)\]")


@lru_cache(maxsize=1024)  # cached, because the columns of a dataset have few different types
def dtype_name(dtype: Any, type_: pa.DataType) -> str:
    """Return the name of a dtype if a read can restore it from this Arrow type, otherwise "".

    Arrow-backed and categorical columns get the name "", because their Arrow type determines the dtype.
    """
    if isinstance(dtype, pd.SparseDtype):
        dtype = dtype.subtype
    name = _name(dtype)
    return name if name and _fits(dtype, type_) and dtype_of(name) == dtype else ""


def _name(dtype: Any) -> str:
    if isinstance(dtype, pd.ArrowDtype | pd.CategoricalDtype):
        return ""
    if isinstance(dtype, pd.StringDtype):
        kind = "string" if dtype.na_value is pd.NA else "str"
        return f"{kind}[{dtype.storage.removesuffix('_numpy')}]"
    return str(dtype)


def _fits(dtype: Any, type_: pa.DataType) -> bool:
    if pd.api.types.is_object_dtype(dtype):
        return not isinstance(type_, pa.BaseExtensionType | pa.DictionaryType)
    try:
        found = canonical_type(pa.array(pd.Series([], dtype=dtype), from_pandas=True).type)
    except (TypeError, ValueError, pa.ArrowException):  # Arrow has no type that corresponds to the dtype
        return False
    return bool(found == type_ or (pa.types.is_large_string(found) and pa.types.is_string(type_)))


def fitting_dtype(name: str, type_: pa.DataType) -> str:
    """Return ``name`` if a column of this Arrow type can have the dtype ``name``, otherwise ""."""
    dtype = dtype_of(name) if name else None
    return name if dtype is not None and _fits(dtype, type_) else ""


@lru_cache(maxsize=1024)
def dtype_of(name: str) -> Any:
    """Return the dtype for a name that `dtype_name` returned, or None if pandas does not know it."""
    if text := _TEXT.fullmatch(name):
        if text[1] == "string":
            return pd.StringDtype(text[2])
        try:
            return pd.StringDtype(text[2], na_value=np.nan)
        except TypeError:  # before pandas 2.3, text columns have the dtype object
            return np.dtype(object)
    try:
        return pd.api.types.pandas_dtype(name)
    except (TypeError, ValueError):
        return None


def common_dtype(ours: str, theirs: str, type_: pa.DataType) -> str:
    """Return the name of a dtype that can hold the values of two dtypes, or "" if only an Arrow dtype can.

    ``ours`` and ``theirs`` are the names of the two dtypes. ``type_`` is the Arrow type of all values.
    """
    if ours == theirs:
        return ours
    dtypes = [dtype_of(name) if name else None for name in (ours, theirs)]
    if None in dtypes:
        return ""
    return dtype_name(pd.concat([pd.Series([], dtype=dtype) for dtype in dtypes]).dtype, type_)


def nullable_dtype_of(type_: pa.DataType) -> str:
    """Return the name of pandas' own nullable dtype for an Arrow type, or "" if pandas has none."""
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return _name(pd.StringDtype())
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return nullable_dtype(str(np.dtype(type_.to_pandas_dtype())))
    return str(np.dtype(type_.to_pandas_dtype())).title() if type_ in (pa.float32(), pa.float64()) else ""


def nullable_dtype(name: str) -> str:
    """Return the name of the nullable counterpart of a dtype, such as "Int64" for "int64"."""
    if name == "bool":
        return "boolean"
    return re.sub("^(u?)int", lambda found: f"{found[1].upper()}Int", name)
