"""Convert Arrow columns to NumPy arrays for tensors, without a copy where possible."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.errors import Remedy, SchemaError, TFRecordError, check_instance, short_list
from dask_tfrecord.keywords import arguments
from dask_tfrecord.schema.logical_types import is_binary, is_list, is_text, row_shape

Array: TypeAlias = npt.NDArray[Any]


class Ragged(NamedTuple):
    """A list column. Row i contains ``values[offsets[i]:offsets[i + 1]]``."""

    values: "Array | Ragged"
    offsets: npt.NDArray[np.int64]


def numpy_columns(
    batch: pa.RecordBatch | pa.Table, fill_nulls: Mapping[str, Any] | None = None
) -> dict[str, Array | Ragged]:
    """Convert the columns of a batch to NumPy arrays.

    Parameters
    ----------
    batch : pyarrow.RecordBatch or pyarrow.Table
        The batch to convert.
    fill_nulls : mapping of str to value, optional
        The value that replaces the nulls of each column. By default, nulls become NaN in floating-point
        columns, an empty string in string and binary columns, and an empty list in list columns. A null
        fixed-size list is filled with copies of the replacement value.

    Returns
    -------
    dict of str to numpy.ndarray or Ragged
        An array for each column of the batch. Columns of fixed-size lists or tensors become arrays with
        additional dimensions. All other list columns become `Ragged` objects. Columns of strings and bytes
        become arrays of objects. Columns of dates, times and durations become integers in the unit of the
        column. Columns of decimals become float64.

    Raises
    ------
    SchemaError
        If a column of integers or booleans has nulls and no value in ``fill_nulls``, or if no tensor can
        represent the type of a column.
    """
    return converted_columns(batch, fill_nulls, column_to_numpy)


def converted_columns(batch: Any, fill_nulls: Any, convert: Callable[[str, Any, Any], Any]) -> dict[str, Any]:
    """Validate the arguments of a conversion, and convert each column of a batch."""
    check_instance("batch", batch, pa.RecordBatch, pa.Table)
    arguments.mappings(fill_nulls=fill_nulls)
    fill = fill_nulls or {}
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return {name: convert(name, column, fill.get(name)) for name, column in columns}


def checked_fill_nulls(fill_nulls: Any, schema: pa.Schema, *, fills_lists: bool = False) -> dict[str, Any]:
    """Raise if ``fill_nulls=`` names another column, or unless ``fills_lists``, variable-length lists."""
    arguments.mappings(fill_nulls=fill_nulls)
    for name in fill_nulls or {}:
        if name not in schema.names:
            problem = f"fill_nulls= names the column {name!r}, which is not read"
            raise TFRecordError(problem, f"the columns are {short_list(schema.names)}")
        if not fills_lists and row_shape(schema.field(name).type) is None:
            problem = (
                f"fill_nulls= has no effect on the lists of {name!r}: they hold no nulls, and null becomes []"
            )
            advice = f"leave {name!r} out of fill_nulls="
            raise SchemaError(problem, advice, feature=name, keyword="fill_nulls")
    return dict(fill_nulls or {})


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return the values of a column as one array. A column with a single chunk is not copied."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def column_to_numpy(name: str, column: pa.Array | pa.ChunkedArray, fill: Any = None) -> Array | Ragged:
    """Convert one Arrow column to NumPy, as `numpy_columns` describes."""
    type_ = column.type
    if isinstance(column, pa.ChunkedArray):
        # Each text value becomes a Python object, so the chunks need not be joined in Arrow.
        if column.num_chunks > 1 and is_text_or_binary(type_):
            return np.concatenate([column_to_numpy(name, chunk, fill) for chunk in column.chunks])
        column = one_chunk(column)
    if pa.types.is_dictionary(type_):
        return column_to_numpy(name, column.dictionary_decode(), fill)
    if isinstance(type_, pa.FixedShapeTensorType):
        return _fixed(name, column.storage, type_.shape, fill)
    if pa.types.is_fixed_size_list(type_) and row_shape(type_) is not None:
        return _fixed(name, column, [type_.list_size], fill)
    if is_list(type_):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return Ragged(column_to_numpy(name, column.flatten(), fill), offsets)
    column = _as_plain(name, column)
    if column.null_count:
        column = pc.fill_null(column, fill_value(name, column.type, fill))
    values: Array = column.to_numpy(zero_copy_only=False)
    return values


def _fixed(name: str, column: pa.Array, shape: list[int], fill: Any) -> Array:
    """Convert a column of fixed-size lists or tensors. Treat every value of a null row as null."""
    values = column.flatten()  # Arrow's `flatten` omits lists that are null
    if column.null_count:
        indices = np.full((len(column), column.type.list_size), -1)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        indices[valid] = np.arange(len(values)).reshape(-1, column.type.list_size)
        flat = indices.reshape(-1)
        values = values.take(pa.array(flat, mask=flat < 0))
    found = column_to_numpy(name, values, fill)
    assert isinstance(found, np.ndarray)  # all values have the same shape
    return found.reshape(len(column), *shape, *found.shape[1:])


def _as_plain(name: str, column: pa.Array) -> pa.Array:
    type_ = column.type
    if pa.types.is_temporal(type_):
        width = pa.int32() if type_.bit_width == 32 else pa.int64()
        return column.view(width)
    if pa.types.is_decimal(type_):
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return pa.array(
            np.round(values, type_.scale), from_pandas=True
        )  # Arrow alone would cast 29.99 to 29.990000000000002
    if pa.types.is_fixed_size_binary(type_):
        return column.cast(pa.binary())
    tests = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, is_text_or_binary)
    if not any(test(type_) for test in tests):
        raise no_tensor(name, type_)
    return column


def no_tensor(name: str, type_: pa.DataType) -> SchemaError:
    advice = "leave the column out with columns="
    if pa.types.is_struct(type_) and type_.num_fields:
        advice += f", or name its fields there, such as {f'{name}/{type_.field(0).name}'!r}"
    return SchemaError(f"no tensor can hold {type_}", advice, feature=name)


def is_text_or_binary(type_: pa.DataType) -> bool:
    return is_text(type_) or is_binary(type_)


def fill_value(name: str, type_: pa.DataType, fill: Any) -> pa.Scalar:
    """Return the value that replaces nulls in a column of this type, as `numpy_columns` describes."""
    if fill is None:
        if pa.types.is_floating(type_):
            fill = math.nan
        elif is_text_or_binary(type_):
            fill = "" if is_text(type_) else b""
        else:
            raise null_integers(name, type_, "has null")
    if pa.types.is_integer(type_) and isinstance(fill, float | np.floating) and not float(fill).is_integer():
        problem = f"fill_nulls= gives {fill!r}, which is no {type_}"  # Arrow would cut the fraction
        raise SchemaError(problem, feature=name)
    try:
        return pa.scalar(fill, type_)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise SchemaError(f"fill_nulls= gives {fill!r}, which is no {type_}: {error}", feature=name) from None


def null_integers(name: str, type_: pa.DataType, what: str) -> SchemaError:
    value = False if pa.types.is_boolean(type_) else 0 if pa.types.is_unsigned_integer(type_) else -1
    problem = f"the column {what}, and no tensor of integers or booleans can hold null"
    remedy = Remedy("fill_nulls", {name: value}, "replace null by this value, or another one")
    return SchemaError(problem, remedy, feature=name, function="")
