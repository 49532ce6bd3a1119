"""Convert pandas partitions to Arrow tables of the planned schema, and decide which indexes are written.

The module `arrow_to_pandas` is the inverse.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from dask_tfrecord.cluster import warn_client
from dask_tfrecord.errors import DROP_INDEX, Remedy, SchemaError
from dask_tfrecord.frames import object_columns, text_guard
from dask_tfrecord.frames.column_types import (
    CONVERSION_ERRORS,
    category_values,
    check_dtype,
    dense,
    first_line,
    is_bytes_or_list,
    is_object,
    is_text,
    type_of,
)
from dask_tfrecord.schema.conversion import convert
from dask_tfrecord.schema.field import Field, Lossy
from dask_tfrecord.schema.model import Schema
from dask_tfrecord.schema.storage_values import ROUND, MisfitError, RoundedError


def to_table(
    frame: pd.DataFrame, schema: Schema, *, write_index: bool | None, lossy: Lossy = "allow"
) -> pa.Table:
    """Convert a pandas partition to an Arrow table of the planned schema.

    Values that pandas considers missing become null. A NaN in an Arrow-backed column or inside a list is a
    value and not a null.

    Parameters
    ----------
    frame : pandas.DataFrame
        The partition to convert.
    schema : Schema
        The planned schema of the write. If the index is written, its levels are the first columns of the
        schema.
    write_index : bool or None
        If True, the index levels become columns of the table. If False, the index is dropped. If None, the
        index is dropped, but an index with a name raises an error.
    lossy : "warn", "allow" or "raise"
        The treatment of numbers that the column's type would round: warn, allow or raise.

    Raises
    ------
    SchemaError
        If the columns of the partition differ from the schema, or if a value does not fit its column. If a
        value does not fit, the error has the number of its row.
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
    columns = [_to_arrow(arrays[item.name], frame, item, lossy) for item in schema.fields]
    for item, column in zip(schema.fields, columns, strict=True):
        item.check_categories(column)
    return pa.Table.from_arrays(columns, schema=schema.arrow)


def _column_arrays(frame: Any) -> dict[str, Any]:
    """Return the arrays of all columns by a private method of pandas, because frame[name] takes 20 times
    as long.
    """
    names = frame.columns.tolist()  # iterating over an Index of strings would take nine times as long
    return dict(zip(names, map(frame._mgr.iget_values, range(len(names))), strict=True))


def _to_arrow(array: Any, frame: pd.DataFrame, item: Field, lossy: Lossy) -> pa.Array | pa.ChunkedArray:
    """Return a pandas column as an Arrow array of the planned type.

    A column of another type is converted to the planned type.
    """
    if isinstance(array, pd.arrays.ArrowExtensionArray):
        values = array.__arrow_array__()
        if values.type == item.type:
            return values
    return _convert_or_raise(frame[item.name], item, lossy)


def _convert_or_raise(column: "pd.Series[Any]", item: Field, lossy: Lossy) -> pa.Array | pa.ChunkedArray:
    try:
        return _convert(column, item.type, lossy)
    except CONVERSION_ERRORS as error:
        advice, remedies = error.advice if isinstance(error, MisfitError) else None, []
        if isinstance(error, RoundedError):
            remedies = [ROUND]
        elif is_text(column.dtype) and is_bytes_or_list(item.type):
            advice, remedies = text_guard.advice(item.name), [text_guard.as_text(item.name)]
        elif not advice:
            try:
                type_ = type_of(column)
                Schema.from_arrow(pa.schema({item.name: type_}), "sequence_example")  # raises unless stored
                remedies = [Remedy("schema", {item.name: type_}, "hold all values of the column")]
            except SchemaError as refusal:
                advice, remedies = refusal.advice, [*refusal.remedies]
        raise SchemaError(
            f"a value does not fit {item.type}: {first_line(error)}",
            advice,
            remedies=remedies,
            record=first_misfit(lambda rows: _convert(column.iloc[:rows], item.type, lossy), len(column)),
            feature=item.name,
        ) from None


def _convert(column: "pd.Series[Any]", type_: pa.DataType, lossy: Lossy) -> pa.Array | pa.ChunkedArray:
    """Convert a pandas column to an Arrow type. Floats are rounded unless ``lossy`` is "raise"."""
    rounded = lossy != "raise"
    if isinstance(column.dtype, pd.SparseDtype):
        return _convert(dense(column), type_, lossy)
    check_dtype(column.dtype)
    if isinstance(column.dtype, pd.ArrowDtype):
        array = column.array.__arrow_array__()  # this method is 50 times as fast as pa.array()
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
        return convert_chunks(array, type_, rounded=rounded)
    return convert(array, type_, rounded=rounded)


def convert_chunks(column: pa.ChunkedArray, type_: pa.DataType, *, rounded: bool) -> pa.ChunkedArray:
    """Convert each chunk of a column to another type, as `convert` does."""
    return pa.chunked_array([convert(chunk, type_, rounded=rounded) for chunk in column.chunks], type_)


def _from_objects(column: "pd.Series[Any]", type_: pa.DataType, lossy: Lossy) -> pa.Array:
    """Convert an object column to an Arrow type.

    If ``lossy`` is "warn" and rounding changes a value, warn.
    """
    try:
        return object_columns.to_arrow(column, type_, rounded=lossy == "allow")
    except RoundedError as error:
        if lossy == "raise":
            raise
        warn_client(
            f"the values of {column.name!r} are rounded to {type_}, in row {error.row:,} {error.problem}"
        )
    return object_columns.to_arrow(column, type_, rounded=True)


def first_misfit(convert_first: Callable[[int], object], rows: int) -> int | None:
    """Return the number of the first of some rows whose value cannot be converted.

    Bisection finds this row. The function ``convert_first`` converts the given number of rows.
    """

    def fails(count: int) -> bool:
        try:
            convert_first(count)
        except CONVERSION_ERRORS:
            return True
        return False

    count = bisect_left(range(rows + 1), True, key=fails)
    return count - 1 if count else None


# -- The index -----------------------------------------------------------------------------------------------


def index_levels(meta: pd.DataFrame, write_index: bool | None) -> tuple[tuple[str, str | None], ...]:
    """Return the index levels to write, each as a pair of its column name and its level name.

    Parameters
    ----------
    meta : pandas.DataFrame
        The meta of the Dask collection to write.
    write_index : bool or None
        If True, the index is written. If False, the index is dropped. If None, an integer index without a
        name is dropped, because it only counts the rows, and every other index is written.

    Raises
    ------
    SchemaError
        If the name of an index level to write is neither a string nor None.
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
    """Convert the index levels of a DataFrame to its first columns, named ``names``.

    By default, these columns have the names of the levels.
    """
    names = _column_names(frame) if names is None else names
    clash = [name for name in names if name in frame.columns]
    if clash:
        problem = f"the index would become the column {clash[0]!r}, which already exists"
        raise SchemaError(problem, "rename the index or the column", DROP_INDEX)
    return frame.reset_index(names=list(names))


def _column_names(frame: pd.DataFrame) -> list[Any]:
    """Return the column names for the index levels of a DataFrame.

    A level without a name gets the name that pandas gives it by default.
    """
    defaults = ["index"] if frame.index.nlevels == 1 else [f"level_{i}" for i in range(frame.index.nlevels)]
    pairs = zip(frame.index.names, defaults, strict=True)
    return [default if name is None else name for name, default in pairs]
