"""Convert pandas partitions to Arrow tables of the planned schema, and decide which index levels are written.

The Arrow type of a column comes from its dtype or from its values. A conversion changes no values, unless
rounding of floats is allowed. The module `arrow_to_pandas` converts Arrow tables to pandas partitions.
"""

import datetime
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from numbers import Number
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import infer_dtype

from dask_tfrecord.collection.frames.object_arrays import SEQUENCES, SETS, to_arrow
from dask_tfrecord.collection.scheduler import warn_client
from dask_tfrecord.errors import DROP_INDEX, Remedy, SchemaError, literal
from dask_tfrecord.schema.conversion import check_kind, convert, widened
from dask_tfrecord.schema.fields import Field, Lossy, Schema
from dask_tfrecord.schema.logical_types import innermost, is_binary, is_text, value_type
from dask_tfrecord.schema.storage_values import ROUND, MisfitError, RoundedError

# Types of objects whose text contains the complete value. The text of an image object, for example, may
# consist only of a class name and an address.
PRINTABLE: tuple[type, ...] = (str, Number, datetime.date, datetime.time, datetime.timedelta, UUID)
PRINTABLE += (np.number, np.bool_, np.str_, np.datetime64, np.timedelta64, pd.Interval, pd.Period)

# Arrow can store objects of these Python types, provided that all objects of a column have the same type.
_STORABLE = (*PRINTABLE, list, tuple, dict, bytes, bytearray, np.ndarray, np.void)

# The exceptions that a conversion to Arrow raises if a value does not fit the type.
CONVERSION_ERRORS = (MisfitError, pa.ArrowException, ValueError, TypeError, OverflowError)


def type_of(column: "pd.Series[Any]", *, is_dask: bool = False) -> pa.DataType:
    """Return the Arrow type of a pandas column from its dtype, or from its values if they are Python objects.

    Raise SchemaError if no feature can hold the values, or if the values have no common type. The advice in
    the error is for a Dask DataFrame if ``is_dask`` is True, and otherwise for a pandas DataFrame.
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
            return to_arrow(column, None, rounded=False).type
        return _without_large_strings(pa.array(column.iloc[:0], from_pandas=True).type)
    except CONVERSION_ERRORS as error:
        problem = f"values of the dtype {dtype} cannot be stored: {first_line(error)}"
        raise SchemaError(problem, conversion_of(column, is_dask=is_dask), feature=str(column.name)) from None


def dense(column: "pd.Series[Any]") -> "pd.Series[Any]":
    return pd.Series(column.array.to_dense(), column.index, name=column.name)


def check_dtype(dtype: Any) -> None:
    """Raise TypeError for dtypes of complex numbers, long doubles, periods and intervals."""
    if isinstance(dtype, pd.CategoricalDtype) and dtype.categories is not None:
        dtype = dtype.categories.dtype
    is_long_float = isinstance(dtype, np.dtype) and dtype.kind == "f" and dtype.itemsize > 8
    # Arrow would convert periods to numbers without a unit.
    if isinstance(dtype, pd.PeriodDtype | pd.IntervalDtype) or dtype.kind == "c" or is_long_float:
        raise TypeError("no feature holds such values")


def conversion_of(column: "pd.Series[Any]", *, is_dask: bool) -> str:
    """Return advice on how to convert a column whose values cannot be stored."""
    name = literal(str(column.name))
    values, dtype = f"ddf[{name}]", column.dtype
    objects = column[column.notna()] if is_object(dtype) else column.iloc[:0]
    if isinstance(dtype, pd.CategoricalDtype) and dtype.categories is not None:
        objects = pd.Series(dtype.categories, dtype=object)
    kind = infer_dtype(objects) if is_object(dtype) else getattr(dtype, "kind", "")

    def mapped(function: str, result: str = "object") -> str:
        meta = f', meta=({name}, "{result}")' if is_dask else ""
        return f'{values}.map({function}, na_action="ignore"{meta})'

    if isinstance(dtype, pd.PeriodDtype):
        return f"store the start of each period, with {values}.dt.to_timestamp()"
    if kind in ("c", "complex"):
        real = mapped("numpy.real", "float64")
        return f"make the real and the imaginary parts two columns, the first with {real}"
    if kind == "f":
        return f'round the values to float64, with {values}.astype("float64")'
    if any(isinstance(value, np.ndarray) and value.ndim > 1 for value in objects):
        flat = f"flatten the arrays, which drops their shape, with {mapped('numpy.ravel')}"
        if (tensor := _shared_tensor(objects)) is None:
            return flat
        given = f"schema={{{name}: {literal(tensor)}}}"
        return f"pass {given} to keep the shape that all of the arrays have, or {flat}"
    if len(objects) and all(isinstance(value, SETS) for value in objects):
        return f"store the values of each set as a list, with {mapped('sorted')}"
    if len(objects) and all(isinstance(value, SEQUENCES) for value in objects):
        return f"store the values as lists, with {mapped('list')}"
    if any(map(holds_set, objects)):
        return "replace each set inside the values by a list, such as sorted(the_set)"
    if (struct := _struct_with_all_keys(objects)) is not None:
        return f"write null for absent keys, with {values}.astype(pd.ArrowDtype({literal(struct)}))"
    if all(isinstance(value, PRINTABLE) for value in objects):
        # In pandas 2, `astype(str)` converts a null to the text "None".
        return f'convert the column to text, with {values}.astype("string")'
    if all(isinstance(value, _STORABLE) for value in objects):
        return f"give all values of the column one type, or leave it out, with ddf.drop(columns=[{name}])"
    other = next(type(value).__name__ for value in objects if not isinstance(value, _STORABLE))
    return (
        f"replace each {other} by a value that keeps all of it, such as the bytes of an encoded image or the "
        f"list of an array, or leave the column out, with ddf.drop(columns=[{name}])"
    )


def _shared_tensor(objects: "pd.Series[Any]") -> pa.DataType | None:
    """Return a tensor type if all arrays have one shape and dtype, and None otherwise."""
    if any(not isinstance(value, np.ndarray) for value in objects):
        return None
    if len({(value.shape, value.dtype) for value in objects}) > 1:
        return None
    array = objects.iloc[0]
    try:
        item = pa.array(array.ravel()[:1]).type
    except CONVERSION_ERRORS:
        return None
    is_number = pa.types.is_integer(item) or pa.types.is_floating(item)
    return pa.fixed_shape_tensor(item, array.shape) if is_number and array.size else None


def holds_set(value: Any) -> bool:
    """Return True for a set, and for a container that contains a set at any level."""
    if isinstance(value, dict):
        return any(map(holds_set, value.values()))
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        return any(map(holds_set, value))
    return isinstance(value, SETS)


def _struct_with_all_keys(objects: "pd.Series[Any]") -> pa.DataType | None:
    """Return a struct type with the keys of all dicts, or None if none holds all objects."""
    if set(map(type, objects)) != {dict}:
        return None
    keys = dict.fromkeys(chain.from_iterable(objects))
    filled = pd.Series([{**keys, **value} for value in objects], dtype=object)
    try:
        return to_arrow(filled, None, rounded=False).type
    except CONVERSION_ERRORS:
        return None


def _without_large_strings(type_: pa.DataType) -> pa.DataType:
    """Replace the type large_string, which pandas uses only for its memory layout, by string."""
    return pa.string() if pa.types.is_large_string(type_) else type_


def is_untyped(type_: pa.DataType) -> bool:
    """Return True for types without a known value type: null, and lists and dictionaries of null."""
    return bool(pa.types.is_null(innermost(type_)))


def is_object(dtype: Any) -> bool:
    return not isinstance(dtype, pd.ArrowDtype) and bool(pd.api.types.is_object_dtype(dtype))


def is_bytes_or_list(type_: pa.DataType) -> bool:
    """Return True for types to which text cannot be converted: binary types, lists, and dictionaries of
    these.
    """
    values = innermost(type_)
    return is_binary(values) or value_type(type_) != values


def category_array(dtype: pd.CategoricalDtype) -> pa.Array:
    """Return the categories of a dtype, or an empty array of the null type if they are unknown."""
    from dask.dataframe.utils import UNKNOWN_CATEGORIES  # imports all of dask.dataframe

    known = dtype.categories is not None and UNKNOWN_CATEGORIES not in dtype.categories
    return category_values(dtype) if known and len(dtype.categories) else pa.nulls(0)


def category_values(dtype: pd.CategoricalDtype) -> pa.Array:
    if is_object(dtype.categories.dtype):
        return to_arrow(pd.Series(dtype.categories, dtype=dtype.categories.dtype), None, rounded=False)
    return pa.array(dtype.categories, from_pandas=True)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message. For an OverflowError, return a message that states
    TFRecord's integer range.
    """
    if isinstance(error, OverflowError):
        return "TFRecord holds integers from -2^63 to 2^63-1, in uint64 columns too"
    return str(error).partition("\n")[0]


def holds_text(dtype: Any) -> bool:
    """Return True if text of this dtype may come from objects that Dask converted."""
    if isinstance(dtype, pd.CategoricalDtype):
        dtype = pd.StringDtype() if dtype.categories is None else dtype.categories.dtype
        return holds_text(dtype) or bool(pd.api.types.is_object_dtype(dtype))
    if isinstance(dtype, pd.ArrowDtype):
        return is_text(dtype.pyarrow_dtype)
    return isinstance(dtype, pd.StringDtype)


def check_objects(values: "pd.Series[Any] | pd.Index[Any]", name: str) -> None:
    """Raise if an object column has values that are not strings, because Dask would convert them to text."""
    if not pd.api.types.is_object_dtype(values.dtype):
        return
    if pd.api.types.infer_dtype(values, skipna=True) in ("string", "empty"):
        return
    objects = [value for value in values[values.notna()] if not isinstance(value, str)]
    kind = next((type(value).__name__ for value in objects), "mixed")
    keeps_values = all(isinstance(value, PRINTABLE) for value in objects)
    raise SchemaError(
        f"Dask's option dataframe.convert-string converts the {kind} objects of this column to text",
        text_advice(name, _arrow_type(values)),
        remedies=[as_text(name)] if keeps_values else [],
        feature=name,
    )


def _arrow_type(values: "pd.Series[Any] | pd.Index[Any]") -> str:
    """Return the Arrow type of objects as Python code, or "..." if the objects have no common type."""
    try:
        return literal(to_arrow(pd.Series(values), None, rounded=False).type)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return "..."


def text_advice(name: str, type_: str = "pa.binary()") -> str:
    """Return advice on how to keep the objects of a column that Dask would convert to text."""
    return (
        "give the column an Arrow dtype before Dask loads it, "
        f'.astype({{"{name}": pd.ArrowDtype({type_})}}), or build the collection under '
        'dask.config.set({"dataframe.convert-string": False})'
    )


def as_text(name: str) -> Remedy:
    """Return a remedy: the argument ``schema=`` that stores the column as text."""
    return Remedy("schema", {name: pa.string()}, "write the text itself")


def to_table(
    frame: pd.DataFrame,
    schema: Schema,
    *,
    write_index: bool | None,
    lossy: Lossy = "allow",
    is_dask: bool = False,
    fitted: Collection[str] = (),
) -> pa.Table:
    """Convert a pandas partition to an Arrow table of the planned schema.

    Values that pandas considers missing become null. A NaN in an Arrow-backed column or inside a list is a
    value and not a null. If ``write_index`` is True, the index levels become the first columns. With
    ``write_index=False``, the index is dropped. With ``write_index=None``, an index with a name raises, and
    any other index is dropped. ``is_dask`` has the same meaning as in `type_of`. Columns in ``fitted`` have
    the type of an existing dataset, so their floats must not be rounded integers.

    Raise SchemaError if the columns of the partition differ from the schema, or if a value does not fit its
    column. An error about a value contains the position of the row.
    """
    if write_index:
        frame = index_to_columns(frame, schema.names[: frame.index.nlevels])
    elif write_index is None and (named := [name for name in frame.index.names if name is not None]):
        raise SchemaError(
            f"a partition has the index {named}, but the meta of the collection has no named index",
            "pass meta= with the index where the collection is made, call .reset_index() on its partitions",
            DROP_INDEX,
        )
    arrays = _column_arrays(frame)
    if len(frame.columns) != len(schema.fields) or set(arrays) != set(schema.names):
        raise SchemaError(
            f"a partition has the columns {list(frame.columns)}, the collection's meta {schema.names}",
            "pass meta= with the columns of the partitions where the collection is made",
        )
    columns = [
        _to_arrow(arrays[item.name], frame, item, lossy, is_dask=is_dask, is_fitted=item.name in fitted)
        for item in schema.fields
    ]
    for item, column in zip(schema.fields, columns, strict=True):
        item.check_categories(column)
    return pa.Table.from_arrays(columns, schema=schema.arrow)


def _column_arrays(frame: Any) -> dict[str, Any]:
    """Return the arrays of all columns, 20 times as fast as ``frame[name]`` for each column."""
    names = frame.columns.tolist()  # iterating over an Index of strings takes nine times as long as `tolist`
    return dict(zip(names, map(frame._mgr.iget_values, range(len(names))), strict=True))


def _to_arrow(
    array: Any, frame: pd.DataFrame, item: Field, lossy: Lossy, *, is_dask: bool, is_fitted: bool
) -> pa.Array | pa.ChunkedArray:
    """Return a pandas column as an Arrow array of the planned type."""
    if isinstance(array, pd.arrays.ArrowExtensionArray):
        values = array.__arrow_array__()
        if values.type == item.type:
            return values
    return _convert_or_raise(frame[item.name], item, lossy, is_dask=is_dask, is_fitted=is_fitted)


def _convert_or_raise(
    column: "pd.Series[Any]", item: Field, lossy: Lossy, *, is_dask: bool, is_fitted: bool
) -> pa.Array | pa.ChunkedArray:
    try:
        return _convert(column, item.type, lossy, is_fitted=is_fitted)
    except CONVERSION_ERRORS as error:
        advice, remedies = error.advice if isinstance(error, MisfitError) else None, []
        if isinstance(error, RoundedError):
            remedies = [ROUND]
        elif isinstance(column.dtype, pd.StringDtype) and is_bytes_or_list(item.type):
            advice, remedies = text_advice(item.name), [as_text(item.name)]
        elif not advice:
            try:
                type_ = type_of(column, is_dask=is_dask)
                # Other rows may need more digits than the rows of this partition.
                type_ = widened(item.type, type_, is_stored=False) or type_
                # `Schema.from_arrow` raises if no feature can store the type.
                Schema.from_arrow(pa.schema({item.name: type_}), "sequence_example")
                remedies = [Remedy("schema", {item.name: type_}, "hold all values of the column")]
            except SchemaError as refusal:
                advice, remedies = refusal.advice, [*refusal.remedies]
        found = first_misfit(
            f"a value does not fit {item.type}",
            lambda rows: _convert(column.iloc[:rows], item.type, lossy, is_fitted=is_fitted),
            len(column),
            error,
        )
        raise found.replaced(advice=advice, remedies=remedies, feature=item.name) from None


def _convert(
    column: "pd.Series[Any]", type_: pa.DataType, lossy: Lossy, *, is_fitted: bool
) -> pa.Array | pa.ChunkedArray:
    """Convert a pandas column to an Arrow type. Floats are rounded unless ``lossy`` is "raise"."""
    rounded = lossy != "raise"
    if isinstance(column.dtype, pd.SparseDtype):
        return _convert(dense(column), type_, lossy, is_fitted=is_fitted)
    check_dtype(column.dtype)
    if isinstance(column.dtype, pd.ArrowDtype):
        array = column.array.__arrow_array__()  # `__arrow_array__` is 50 times as fast as `pa.array`
    elif is_object(column.dtype):
        return _from_objects(column, type_, lossy)
    elif isinstance(column.dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy()
        array = pa.DictionaryArray.from_arrays(
            pa.array(codes, mask=codes < 0), category_values(column.dtype), ordered=bool(column.cat.ordered)
        )
    else:
        array = pa.array(column, from_pandas=True)
    if isinstance(array, pa.ChunkedArray):
        return convert_chunks(array, type_, rounded=rounded, is_fitted=is_fitted)
    if is_fitted:
        check_kind(array, type_)
    return convert(array, type_, rounded=rounded)


def convert_chunks(
    column: pa.ChunkedArray, type_: pa.DataType, *, rounded: bool, is_fitted: bool = False
) -> pa.ChunkedArray:
    if is_fitted:
        check_kind(column, type_)
    return pa.chunked_array([convert(chunk, type_, rounded=rounded) for chunk in column.chunks], type_)


def _from_objects(column: "pd.Series[Any]", type_: pa.DataType, lossy: Lossy) -> pa.Array:
    """Convert an object column to an Arrow type. If ``lossy`` is "warn", warn if values are rounded."""
    try:
        return to_arrow(column, type_, rounded=lossy == "allow")
    except RoundedError as error:
        if lossy == "raise":
            raise
        warn_client(
            f"the values of {column.name!r} are rounded to {type_}, in row {error.row:,} {error.problem}"
        )
    return to_arrow(column, type_, rounded=True)


def first_misfit(
    problem: str, convert_first: Callable[[int], object], rows: int, error: Exception
) -> SchemaError:
    """Return an error that names the first row that cannot be converted, and the reason.

    ``convert_first(n)`` converts the first n rows. Converting all rows raised ``error``, which may describe a
    later row than the first misfit.
    """
    messages: dict[int, str] = {}  # stored exceptions would keep all values in memory

    def fails(count: int) -> bool:
        try:
            convert_first(count)
        except CONVERSION_ERRORS as failure:
            messages[count] = first_line(failure)
        return count in messages

    count = bisect_left(range(rows + 1), True, key=fails)
    reason = messages.get(count) or first_line(error)
    return SchemaError(f"{problem}: {reason}", record=count - 1 if count else None)


# -- The index -----------------------------------------------------------------------------------------------


def index_levels(meta: pd.DataFrame, write_index: bool | None) -> tuple[tuple[str, str | None], ...]:
    """Return a pair (column name, level name) for each index level to write.

    If ``write_index`` is None, an integer index without a name is dropped, because it only counts the rows.
    """
    names: list[Any] = list(meta.index.names)
    counts_rows = names == [None] and pd.api.types.is_integer_dtype(meta.index.dtype)
    if write_index is False or (write_index is None and counts_rows):
        return ()
    invalid = [name for name in names if not isinstance(name, str | None)]
    if invalid:
        problem = f"the index is named {invalid[0]!r}, which is not a string"
        raise SchemaError(problem, 'rename it with ddf.rename_axis(index="name")', DROP_INDEX)
    return tuple(zip(_column_names(meta), names, strict=True))


def index_to_columns(frame: pd.DataFrame, names: Sequence[str] | None = None) -> pd.DataFrame:
    """Make the index levels the first columns. By default, each column gets the name of its level."""
    names = _column_names(frame) if names is None else names
    clash = [name for name in names if name in frame.columns]
    if clash:
        problem = f"the index would become the column {clash[0]!r}, which already exists"
        raise SchemaError(problem, "rename the index or the column", DROP_INDEX)
    return frame.reset_index(names=list(names))


def _column_names(frame: pd.DataFrame) -> list[Any]:
    """Return the name of each index level, or the name that `reset_index` gives to an unnamed level."""
    defaults = ["index"] if frame.index.nlevels == 1 else [f"level_{i}" for i in range(frame.index.nlevels)]
    pairs = zip(frame.index.names, defaults, strict=True)
    return [default if name is None else name for name, default in pairs]
