"""Convert Arrow tables to pandas partitions, with Arrow-backed or NumPy dtypes."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.collection.frames.object_arrays import Objects, object_array
from dask_tfrecord.errors import Remedy, SchemaError
from dask_tfrecord.schema.dtypes import dtype_of, nullable_dtype_of
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.schema.form_transport import ATTRIBUTE, as_attribute
from dask_tfrecord.schema.logical_types import innermost, is_binary, is_list, is_text

_PANDAS_MAJOR = int(pd.__version__.partition(".")[0])

# The pandas function that creates a DataFrame from arrays without copying the arrays. Only pandas 3 has
# `create_dataframe_from_blocks`, which pandas' type stubs do not declare.
_from_blocks: Any = getattr(getattr(pd.api, "internals", None), "create_dataframe_from_blocks", None)

# The integer that NumPy interprets as NaT in every unit. In Arrow, -(2**63) is a valid time or duration.
_NAT = -(2**63)

# With this dtype name, `to_pandas` converts a column to the NumPy dtype for its Arrow type.
NUMPY = "numpy"

_ARROW_DTYPES = Remedy("dtype_backend", "pyarrow", "read Arrow dtypes, which hold it")


def to_pandas(
    table: pa.Table,
    schema: Schema,
    row_ranges: Sequence[tuple[int, int]] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Convert an Arrow table to a DataFrame of Arrow-backed columns. Dictionary columns become categoricals.

    ``schema`` lists the columns in table order. ``row_ranges`` contains the ranges of integers that form the
    index, as pairs of a start and an exclusive stop. Without ``row_ranges``, the index counts from 0.
    ``dtypes`` maps each column that is not Arrow-backed to a dtype name that `dtype_name` returned. For a
    column in `numpy_names`, the dtype name may be `NUMPY`, which selects the NumPy dtype. The attributes of
    the DataFrame contain the stored forms of columns.

    Raise SchemaError if a column with a NumPy dtype contains a null that the dtype cannot hold, or a value
    that NumPy interprets as NaT.
    """
    if not table.num_rows:  # a table without chunks contains no dictionaries, and so no categories
        table = pa.Table.from_batches([schema.no_rows()])
    table = table.unify_dictionaries()
    arrays: dict[str, Any] = {}  # extension arrays, each of which is a separate block in pandas
    objects: dict[str, Any] = {}
    numbers: dict[str, pa.ChunkedArray] = {}
    for item, column in zip(schema.fields, table.columns, strict=True):
        wanted = (dtypes or {}).get(item.name, "")
        dtype = dtype_of(wanted) if wanted not in ("", NUMPY) else None
        if wanted != NUMPY and dtype is None:
            arrays[item.name] = _extension_array(column, item.type)
            continue
        if isinstance(column.type, pa.BaseExtensionType):
            column = _storage(column)
        _check_no_nat(column, item.name)
        if wanted == "object" or (wanted == NUMPY and is_list(column.type)):
            objects[item.name] = _object_array(column, item.name)
        elif wanted == NUMPY or isinstance(dtype, np.dtype):
            _check_no_null(column, item.name)
            numbers[item.name] = column
        elif dtype is not None:
            arrays[item.name] = dtype.__from_arrow__(column)
    frame = _frame(arrays, pd.RangeIndex(table.num_rows))
    if numbers or objects:
        scalars = pa.table(numbers).to_pandas(types_mapper=_string_dtype)
        others = pd.DataFrame(objects, frame.index, dtype=object)
        frame = pd.concat([frame, scalars, others], axis=1)[schema.names] if arrays or objects else scalars
    if text := as_attribute((item.name, item.carried) for item in schema.fields):
        frame.attrs[ATTRIBUTE] = text
    if row_ranges is not None:
        frame.index = pd.Index(np.concatenate([np.arange(start, stop) for start, stop in row_ranges]))
    return frame


def _frame(columns: dict[str, Any], index: pd.Index) -> pd.DataFrame:
    """Create a DataFrame from extension arrays without copying the arrays.

    With many columns, `_from_blocks` is several times as fast as the constructor of DataFrame. The
    constructor of DataFrame is more than twice as fast as ``table.to_pandas()``.
    """
    if _from_blocks is None or not columns:
        return pd.DataFrame(columns, index, copy=False)
    places = np.arange(len(columns))
    blocks = [(array, places[at : at + 1]) for at, array in enumerate(columns.values())]
    frame: pd.DataFrame = _from_blocks(blocks, index=index, columns=pd.Index(list(columns)))
    return frame


def with_index(
    frame: pd.DataFrame, levels: Sequence[tuple[str, str | None]], *, is_sorted: bool = False
) -> pd.DataFrame:
    """Turn some columns of a DataFrame into the index.

    ``levels`` contains a pair (column name, level name) for each index level. If ``is_sorted`` is True, sort
    the rows by the index.
    """
    if len(levels) == 1:
        [(column, name)] = levels
        values = frame[column]
        frame = frame.drop(columns=column)
        # In pandas 3, `set_index` turns a range of integers of any dtype into a RangeIndex, which is int64.
        frame.index = pd.Index(values.array, dtype=values.dtype, name=name)
    else:
        frame = frame.set_index([column for column, _ in levels])
        frame.index.names = [name for _, name in levels]
    if is_sorted and not frame.index.is_monotonic_increasing:
        frame = frame.sort_index(kind="stable")
    return frame


def empty_meta(schema: Schema, dtypes: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Create the meta of a Dask collection whose partitions `to_pandas` returns.

    The categories of a column are marked as unknown if a partition may have other categories.
    """
    meta = to_pandas(pa.Table.from_batches([schema.no_rows()]), schema, dtypes=dtypes)
    known = {item.name for item in schema.fields if item.categories is not None and item.has_all_categories}
    unknown = [name for name in meta.select_dtypes("category").columns if name not in known]
    if not unknown:  # with many columns, clearing categories takes about as long as all code above
        return meta
    from dask.dataframe.utils import clear_known_categories  # imports all of dask.dataframe

    cleared: pd.DataFrame = clear_known_categories(meta, cols=unknown)
    return cleared


def numpy_names(schema: Schema, non_null: Collection[str]) -> list[str]:
    """Return the names of the columns whose values NumPy dtypes can hold.

    NumPy integers and bools cannot be null, so integer and bool columns are included only if ``non_null``
    contains them.
    """
    columns = (one for item in schema.fields for one in item.family)
    return [one.name for one in columns if _fits_numpy(one.type, one.name in non_null)]


def nullable_dtypes(schema: Schema) -> dict[str, str]:
    """Map each column to the name of its nullable pandas dtype, or to `NUMPY` if only a NumPy dtype exists.

    Columns with neither a nullable pandas dtype nor a NumPy dtype are left out.
    """
    dtypes = {item.name: nullable_dtype_of(item.type) for item in schema.fields}
    dtypes |= {name: NUMPY for name in numpy_names(schema, schema.names) if not dtypes.get(name)}
    return {name: dtype for name, dtype in dtypes.items() if dtype}


def _fits_numpy(type_: pa.DataType, non_null: bool) -> bool:
    kinds = pa.types
    if kinds.is_boolean(type_) or kinds.is_integer(type_):
        return non_null
    if isinstance(type_, pa.BaseExtensionType):
        return _fits_numpy(type_.storage_type, non_null)
    if is_list(type_):
        zoned = kinds.is_timestamp(type_.value_type) and type_.value_type.tz is not None
        return not zoned and _converts_to_objects(type_) and _fits_numpy(type_.value_type, non_null=True)
    if kinds.is_timestamp(type_) or kinds.is_duration(type_) or kinds.is_floating(type_):
        return True
    return is_text(type_) or is_binary(type_)


def _converts_to_objects(type_: pa.DataType) -> bool:
    """Return True if Arrow can convert lists of type ``type_`` to NumPy arrays."""
    # The list types that Arrow can convert depend on Arrow's version. Arrow does not report in advance
    # whether it can convert a type, so try the conversion.
    try:
        pa.nulls(0, type_).to_pandas()
    except pa.ArrowNotImplementedError:  # Arrow cannot convert lists of this type
        return False
    return True


def _check_no_null(column: pa.ChunkedArray, name: str) -> None:
    """Raise if an integer or boolean column contains a null, which NumPy cannot represent."""
    if column.null_count and (pa.types.is_boolean(column.type) or pa.types.is_integer(column.type)):
        raise SchemaError(
            f"the value is null, which NumPy's {column.type} cannot hold",
            "leave nullable=False out of the schema",
            _ARROW_DTYPES,
            record=column.is_null().index(True).as_py(),
            feature=name,
        )


def _check_no_nat(column: pa.ChunkedArray, name: str) -> None:
    """Raise if pandas would interpret a valid timestamp or duration of the column as NaT. The times inside
    lists and structs are checked, too.
    """
    if is_list(column.type):
        chunks = [chunk.flatten() for chunk in column.chunks]
        _check_no_nat(pa.chunked_array(chunks, column.type.value_type), name)
        return
    if pa.types.is_struct(column.type):
        for field in column.flatten():
            _check_no_nat(field, name)
        return
    is_time = pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type)
    if is_time and pc.min(column.cast(pa.int64())).as_py() == _NAT:
        raise SchemaError(
            f"a value of type {column.type} is -2^63, which is NumPy's NaT, so NumPy would read it as null",
            _ARROW_DTYPES,
            feature=name,
        )


def _object_array(column: pa.ChunkedArray, name: str) -> Any:
    """Convert a column to an object array, in which lists are NumPy arrays. Nulls become None.

    Nulls are removed before the conversion, because the null values inside a null fixed-size list would turn
    integers into floats. For the same reason, structs become dicts of Python objects without pandas.
    """
    objects = np.full(len(column), None, dtype=object)
    present, values = column.is_valid().to_numpy(), column.drop_null()
    if pa.types.is_struct(column.type):
        objects[present] = _python_objects(values, name)
    elif is_list(column.type) and _has_time_zone(column.type):  # NumPy would drop the time zone
        objects[present] = object_array([*map(object_array, _python_objects(values, name))])
    else:
        objects[present] = values.to_pandas().to_numpy(object)
    return objects


def _python_objects(column: pa.ChunkedArray, name: str) -> Objects:
    try:
        return object_array(column.to_pylist())
    except (OverflowError, ValueError) as error:  # a date beyond the year 9999, for example
        problem = f"Python cannot represent a value of the column: {error}"
        raise SchemaError(problem, _ARROW_DTYPES, feature=name) from None


def _has_time_zone(type_: pa.DataType) -> bool:
    type_ = innermost(type_)
    return bool(pa.types.is_timestamp(type_) and type_.tz is not None)


def _extension_array(column: pa.ChunkedArray, type_: pa.DataType) -> Any:
    """Convert a column to an Arrow-backed array, or a dictionary column to a categorical.

    If pandas has no dtype for an extension type, the dtype of its storage type is used.
    """
    if pa.types.is_dictionary(type_):
        return _categorical(column)
    if isinstance(type_, pa.BaseExtensionType):
        # The Arrow types for which pandas has a dtype depend on the version of pandas. Try to create the
        # dtype, because pandas cannot list the supported Arrow types.
        try:
            pd.ArrowDtype(type_)
        except NotImplementedError:  # pandas has no dtype for this extension type
            column = _storage(column)
    return pd.arrays.ArrowExtensionArray(column)


def _storage(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def _categorical(column: pa.ChunkedArray) -> Any:
    """Convert a dictionary column to a categorical. The categories get the dtype for their Arrow type, even
    if there are none.
    """
    value_type = column.type.value_type
    # Arrow's own conversion would drop the time zone of the categories.
    if pa.types.is_timestamp(value_type) and value_type.tz is not None:
        codes = [chunk.indices.fill_null(-1).to_numpy() for chunk in column.chunks]
        categories = pd.Index(pa.chunked_array([column.chunk(0).dictionary]).to_pandas())
        return pd.Categorical.from_codes(np.concatenate(codes), categories, ordered=column.type.ordered)
    series: pd.Series[Any] = column.to_pandas()
    dtype = _string_dtype(value_type)
    # If a string column has no categories, Arrow returns categories of the dtype object.
    if dtype is not None and not len(series.cat.categories):
        series = series.cat.set_categories(pd.Index([], dtype=dtype))
    return series.array


def _string_dtype(type_: pa.DataType) -> Any:
    """Return the dtype ``str`` for string types in pandas 3 or later, otherwise None."""
    is_string = pa.types.is_string(type_) or pa.types.is_large_string(type_)
    return pd.StringDtype(na_value=np.nan) if is_string and _PANDAS_MAJOR >= 3 else None
