"""Find the Arrow type of a pandas column from its dtype or from its values."""

import datetime
from itertools import chain
from numbers import Number
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
from dask.dataframe.utils import UNKNOWN_CATEGORIES
from pandas.api.types import infer_dtype

from dask_tfrecord.errors import SchemaError, literal
from dask_tfrecord.frames import object_columns
from dask_tfrecord.schema.storage_types import BINARY, innermost, is_any, is_list, value_type
from dask_tfrecord.schema.storage_values import MisfitError

# Types of objects whose text has the whole value. The text of an object of another class, such as an image,
# may be only the name of the class and an address.
PRINTABLE: tuple[type, ...] = (str, Number, datetime.date, datetime.time, datetime.timedelta, UUID)
PRINTABLE += (np.number, np.bool_, np.str_, np.datetime64, np.timedelta64, pd.Interval, pd.Period)

# Types of objects that Arrow stores if all objects of the column have one type.
_STORABLE = (*PRINTABLE, list, tuple, set, dict, bytes, bytearray, np.ndarray, np.void)

# The exceptions of a conversion to Arrow if a value does not fit the type.
CONVERSION_ERRORS = (MisfitError, pa.ArrowException, ValueError, TypeError, OverflowError)


def type_of(column: "pd.Series[Any]") -> pa.DataType:
    """Return the Arrow type of a pandas column from its dtype, or from its values if they are Python objects.

    Raises
    ------
    SchemaError
        If no TFRecord feature can hold values of the dtype, or if the objects in the column have no common
        Arrow type.
    """
    dtype = column.dtype
    try:
        check_dtype(dtype)
        if isinstance(dtype, pd.ArrowDtype):
            return dtype.pyarrow_dtype
        if isinstance(dtype, pd.SparseDtype):
            return type_of(dense(column))
        if isinstance(dtype, pd.CategoricalDtype):
            return pa.dictionary(
                pa.int32(), _without_large_strings(category_array(dtype).type), bool(dtype.ordered)
            )
        if pd.api.types.is_object_dtype(dtype):
            return object_columns.to_arrow(column, None, rounded=False).type
        return _without_large_strings(pa.array(column.iloc[:0], from_pandas=True).type)
    except CONVERSION_ERRORS as error:
        problem = f"the dtype {dtype} shows no single type: {first_line(error)}"
        raise SchemaError(problem, conversion_of(column), feature=str(column.name)) from None


def dense(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Convert a sparse pandas column to a dense column."""
    return pd.Series(column.array.to_dense(), column.index, name=column.name)


def check_dtype(dtype: Any) -> None:
    """Raise TypeError if a dtype holds complex numbers, long doubles, periods or intervals."""
    if isinstance(dtype, pd.CategoricalDtype) and dtype.categories is not None:
        dtype = dtype.categories.dtype
    is_long_float = isinstance(dtype, np.dtype) and dtype.kind == "f" and dtype.itemsize > 8
    # Arrow converts periods to numbers without a unit.
    if isinstance(dtype, pd.PeriodDtype | pd.IntervalDtype) or dtype.kind == "c" or is_long_float:
        raise TypeError("no feature holds such values")


def conversion_of(column: "pd.Series[Any]") -> str:
    """Return the advice on how to convert a column whose values no type can hold."""
    name = literal(str(column.name))
    values, dtype = f"ddf[{name}]", column.dtype
    objects = column[column.notna()] if is_object(dtype) else column.iloc[:0]
    if isinstance(dtype, pd.CategoricalDtype) and dtype.categories is not None:
        objects = pd.Series(dtype.categories, dtype=object)
    kind = infer_dtype(objects) if is_object(dtype) else getattr(dtype, "kind", "")
    if isinstance(dtype, pd.PeriodDtype):
        return f"store the start of each period, with {values}.dt.to_timestamp()"
    if kind in ("c", "complex"):
        real = f'{values}.apply(numpy.real, meta=({name}, "float64"))'
        return f"make the real and the imaginary parts two columns, the first with {real}"
    if kind == "f":
        return f'round the values to float64, with {values}.astype("float64")'
    if any(isinstance(value, np.ndarray) and value.ndim > 1 for value in objects):
        flat = f'{values}.apply(numpy.ravel, meta=({name}, "object"))'
        return f"flatten the arrays, which drops their shape, with {flat}"
    if (struct := _struct_with_all_keys(objects)) is not None:
        return f"write null for absent keys, with {values}.astype(pd.ArrowDtype({literal(struct)}))"
    if all(isinstance(value, PRINTABLE) for value in objects):
        # With pandas 2, `astype(str)` makes a null the text "None".
        return f'convert the column to text, with {values}.astype("string")'
    if all(isinstance(value, _STORABLE) for value in objects):
        return f"give all values of the column one type, or leave it out, with ddf.drop(columns=[{name}])"
    other = next(type(value).__name__ for value in objects if not isinstance(value, _STORABLE))
    return (
        f"replace each {other} by a value that keeps all of it, such as the bytes of an encoded image or the "
        f"list of an array, or leave the column out, with ddf.drop(columns=[{name}])"
    )


def _struct_with_all_keys(objects: "pd.Series[Any]") -> pa.DataType | None:
    """Return a struct type that has all keys of some dicts, or None if no such type holds all values."""
    if set(map(type, objects)) != {dict}:
        return None
    keys = dict.fromkeys(chain.from_iterable(objects))
    filled = pd.Series([{**keys, **value} for value in objects], dtype=object)
    try:
        return object_columns.to_arrow(filled, None, rounded=False).type
    except CONVERSION_ERRORS:
        return None


def _without_large_strings(type_: pa.DataType) -> pa.DataType:
    """Replace the type large_string by string. pandas uses large_string only for its memory layout."""
    return pa.string() if pa.types.is_large_string(type_) else type_


def is_untyped(type_: pa.DataType) -> bool:
    """Return True for the null type and for lists and dictionaries of nulls, which show no type of the
    values.
    """
    if is_list(type_) or pa.types.is_dictionary(type_):
        return is_untyped(type_.value_type)
    return bool(pa.types.is_null(type_))


def is_object(dtype: Any) -> bool:
    """Return True if a dtype is NumPy's object dtype."""
    return not isinstance(dtype, pd.ArrowDtype) and bool(pd.api.types.is_object_dtype(dtype))


def is_text(dtype: Any) -> bool:
    """Return True if a dtype is one of pandas' own string dtypes."""
    return isinstance(dtype, pd.StringDtype)


def is_bytes_or_list(type_: pa.DataType) -> bool:
    """Return True if a type, or the value type of a dictionary, is binary or a list.

    Text cannot be converted to binary and list types.
    """
    values = innermost(type_)
    return is_any(values, BINARY) or value_type(type_) != values


def category_array(dtype: pd.CategoricalDtype) -> pa.Array:
    """Return the categories of a categorical dtype as an Arrow array.

    Unknown categories give an empty array of the null type.
    """
    known = dtype.categories is not None and UNKNOWN_CATEGORIES not in dtype.categories
    return category_values(dtype) if known and len(dtype.categories) else pa.nulls(0)


def category_values(dtype: pd.CategoricalDtype) -> pa.Array:
    """Convert the known categories of a categorical dtype to an Arrow array."""
    if is_object(dtype.categories.dtype):
        return object_columns.to_arrow(
            pd.Series(dtype.categories, dtype=dtype.categories.dtype), None, rounded=False
        )
    return pa.array(dtype.categories, from_pandas=True)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or TFRecord's range of integers for an OverflowError."""
    if isinstance(error, OverflowError):
        return "TFRecord holds integers from -2^63 to 2^63-1, in uint64 columns too"
    return str(error).partition("\n")[0]
