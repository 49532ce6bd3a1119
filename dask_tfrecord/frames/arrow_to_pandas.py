"""Arrow tables -> pandas partitions, in the dtypes of Arrow or of numpy."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from dask.dataframe.utils import clear_known_categories

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.model import Schema
from dask_tfrecord.schema.storage_types import is_list, kind_and_depth

_PANDAS = int(pd.__version__.partition(".")[0])

# Kinds whose values are no numbers; numpy has objects, or pandas a dtype for text.
_OBJECTS = ("bytes", "string")

# NumPy's NaT is this number of any unit. In Arrow it is a moment, or a length of time, like any other.
_NAT = -(2**63)


def to_pandas(
    table: pa.Table,
    schema: Schema,
    rows: Sequence[tuple[int, int]] | None = None,
    numpy: Sequence[str] = (),
) -> pd.DataFrame:
    """A table of the schema as a partition: Arrow-backed columns, and pandas categories for dictionaries.

    Parameters
    ----------
    table : pyarrow.Table
        The rows.
    schema : Schema
        The columns.
    rows : sequence of (int, int), optional
        The index counts the rows; these are the stretches of it, from and up to, that the table is made of.
    numpy : sequence of str
        The columns that get pandas' older dtypes instead, those of `numpy_names`.

    Raises
    ------
    SchemaError
        For a missing value in a NumPy column that cannot hold one, and for a value that NumPy takes for NaT.
    """
    if not table.num_rows:  # and so perhaps no chunk that knows the categories
        table = pa.Table.from_batches([schema.no_rows()])
    table = table.unify_dictionaries()
    older = {name: _complete(table[name], name) for name in schema.names if name in numpy}
    pairs = zip(schema.names, table.columns, strict=True)
    newer = {name: _for_pandas(column) for name, column in pairs if name not in numpy}
    # Of many columns, table.to_pandas() takes more than twice as long as this.
    frame = pd.DataFrame(newer, pd.RangeIndex(table.num_rows), copy=False)
    if older:
        lists = {name: _arrays(older.pop(name)) for name in [*older] if is_list(older[name].type)}
        others = pa.table(older).to_pandas(types_mapper=_older_dtype_of)
        frame = pd.concat([frame, others, pd.DataFrame(lists, frame.index)], axis=1)[schema.names]
    if rows is not None:
        frame.index = pd.Index(np.concatenate([np.arange(*stretch) for stretch in rows]))
    return frame


def with_index(
    frame: pd.DataFrame, levels: Sequence[tuple[str, str | None]], *, is_sorted: bool = False
) -> pd.DataFrame:
    """The frame with columns as its index, named anew; ``is_sorted`` if rows are to be looked up by it."""
    frame = frame.set_index([column for column, _ in levels])
    frame.index.names = [name for _, name in levels]
    if is_sorted and not frame.index.is_monotonic_increasing:
        frame = frame.sort_index(kind="stable")
    return frame


def numpy_names(schema: Schema, complete: Collection[str]) -> list[str]:
    """The columns whose values numpy's dtypes, or objects, can hold; ``complete`` ones have all values."""
    return [item.name for item in schema.fields if _suits_numpy(item.type, item.name in complete)]


def _suits_numpy(type_: pa.DataType, complete: bool) -> bool:
    kinds = pa.types
    if kinds.is_boolean(type_) or kinds.is_integer(type_):
        return complete
    if isinstance(type_, pa.BaseExtensionType):
        return _suits_numpy(type_.storage_type, complete)
    if is_list(type_):
        zoned = kinds.is_timestamp(type_.value_type) and type_.value_type.tz is not None
        return not zoned and _has_objects(type_) and _suits_numpy(type_.value_type, complete=True)
    if kinds.is_timestamp(type_) or kinds.is_duration(type_) or kinds.is_floating(type_):
        return True
    return (
        not kinds.is_dictionary(type_) and not kinds.is_null(type_) and kind_and_depth(type_)[0] in _OBJECTS
    )


def _has_objects(type_: pa.DataType) -> bool:
    """Whether Arrow can make arrays of the lists; it cannot of lists of bytes of one length."""
    try:
        pa.nulls(0, type_).to_pandas()
    except pa.ArrowNotImplementedError:  # which is what this function is to find out
        return False
    return True


def _complete(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """The column, if its dtype can hold it."""
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if column.null_count and (pa.types.is_boolean(column.type) or pa.types.is_integer(column.type)):
        raise SchemaError(
            f"the value is missing, which numpy's {column.type} cannot hold",
            record=column.is_null().index(True).as_py(),
            feature=name,
            advice='leave nullable=False out of schema=, or pass dtype_backend="pyarrow"',
        )
    _refuse_nat(column, name)
    return column


def _refuse_nat(column: pa.ChunkedArray, name: str) -> None:
    """Raise for a moment or a length of time that would turn into a missing one."""
    if is_list(column.type):
        chunks = [chunk.flatten() for chunk in column.chunks]
        _refuse_nat(pa.chunked_array(chunks, column.type.value_type), name)
        return
    in_numpy = pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type)
    if in_numpy and pc.min(column.cast(pa.int64())).as_py() == _NAT:
        raise SchemaError(
            f"a value is -2^63, which is NumPy's NaT, so it would become missing as {column.type}",
            feature=name,
            advice='pass dtype_backend="pyarrow"',
        )


def _arrays(column: pa.ChunkedArray) -> Any:
    """The lists as NumPy arrays, and None for a missing one.

    Arrow converts the values below missing lists of one size too. They are null, and would turn the integers
    of all lists into floats, so only the other lists are converted.
    """
    arrays = np.full(len(column), None, dtype=object)
    present = column.is_valid().to_numpy()
    arrays[present] = column.drop_null().to_pandas().to_numpy()
    return arrays


def empty_meta(schema: Schema, numpy: Sequence[str] = ()) -> pd.DataFrame:
    """The meta of a collection whose partitions `to_pandas` makes.

    Categories are unknown, for partitions may differ in them, unless an order fixes what they are.
    """
    meta = to_pandas(pa.Table.from_batches([schema.no_rows()]), schema, numpy=numpy)
    fixed = {item.name for item in schema.fields if item.categories is not None and item.type.ordered}
    unknown = [name for name in meta.select_dtypes("category").columns if name not in fixed]
    cleared: pd.DataFrame = clear_known_categories(meta, cols=unknown)
    return cleared


def _categorical(column: pa.ChunkedArray) -> Any:
    """Without any, of the dtype that other partitions' categories have; for no text Arrow gives objects."""
    kind = column.type.value_type
    if pa.types.is_timestamp(kind) and kind.tz is not None:  # Arrow would drop the time zone
        codes = [chunk.indices.fill_null(-1).to_numpy() for chunk in column.chunks]
        categories = pd.Index(pa.chunked_array([column.chunk(0).dictionary]).to_pandas())
        return pd.Categorical.from_codes(np.concatenate(codes), categories, ordered=column.type.ordered)
    found: pd.Series[Any] = column.to_pandas()
    dtype = _older_dtype_of(kind)
    if dtype is not None and not len(found.cat.categories):
        found = found.cat.set_categories(pd.Index([], dtype=dtype))
    return found.array


def _older_dtype_of(type_: pa.DataType) -> Any:
    """Text is `str` from pandas 3 on, and objects before."""
    text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
    return pd.StringDtype(na_value=np.nan) if text and _PANDAS >= 3 else None


def _for_pandas(column: pa.ChunkedArray) -> Any:
    """The values backed by Arrow, a tensor's storage where this pandas has no dtype for it, or categories."""
    if pa.types.is_dictionary(column.type):
        return _categorical(column)
    if isinstance(column.type, pa.BaseExtensionType):
        try:
            pd.ArrowDtype(column.type)
        except NotImplementedError:  # of pandas, for extension types that it has no dtype for
            chunks = [chunk.storage for chunk in column.chunks]
            column = pa.chunked_array(chunks, column.type.storage_type)
    return pd.arrays.ArrowExtensionArray(column)
