"""pandas partitions -> Arrow tables, to one planned schema; the way back is `backends`."""

import warnings
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from dask.dataframe.utils import UNKNOWN_CATEGORIES

from dask_tfrecord.cluster import warn_client
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.frames import object_columns, stringified
from dask_tfrecord.frames.index_levels import index_to_columns
from dask_tfrecord.schema.conversion import RoundedError, convert
from dask_tfrecord.schema.model import Field, Lossy, RecordType, Schema, check_names
from dask_tfrecord.schema.storage_types import canonical_type, innermost, is_list, is_lossy, kind_and_depth
from dask_tfrecord.schema.storage_values import MisfitError
from dask_tfrecord.schema.type_names import arrow_type

Types = Mapping[str, Any]
Sample = Callable[[list[str]], Iterable[pd.DataFrame]]

_CONVERSION_ERRORS = (MisfitError, pa.ArrowException, ValueError, TypeError, OverflowError)


def plan_schema(
    meta: pd.DataFrame,
    *,
    schema: Types | pa.Schema | None,
    record_type: RecordType,
    write_index: bool,
    sample: Sample,
    partition_on: Sequence[str] = (),
    known: Types | None = None,
) -> Schema:
    """The one schema that all partitions of a collection are brought to, of all its columns in their order.

    Parameters
    ----------
    meta : pandas.DataFrame
        The collection's meta.
    schema : mapping of str to types, or pyarrow.Schema, optional
        Types that the user wants, for some or all of the columns.
    record_type : "example", "sequence_example" or "bytes"
        What each record is.
    write_index : bool
        Whether the index levels become the first columns.
    sample : callable
        Given column names, yields computed partitions of these columns. It is called only when there are
        columns whose dtype does not tell the type (object, unknown categories), and read until all did.
    partition_on : sequence of str
        The columns that become directories and no part of the records.
    known : mapping of str to pyarrow.DataType, optional
        Types of columns that their dtype no longer tells.

    Raises
    ------
    SchemaError
        For a name or type that the records cannot hold, or a column that shows no type at all.
    """
    if write_index:
        data = set(meta.columns)
        levels = meta.index.nlevels
        meta = index_to_columns(meta)
        sample = _with_index(sample, data, list(meta.columns[:levels]))
    check_names(list(meta.columns))
    _check_partition_on(partition_on, list(meta.columns))
    wanted = _wanted_types(schema, meta)
    _warn_of_text(meta, wanted)
    wanted = {**(known or {}), **wanted}
    shown = _find_types({name: meta[name] for name in meta.columns if name not in wanted}, sample)
    types = {name: wanted[name] if name in wanted else _type_of(shown[name]) for name in meta.columns}
    categories = _known_categories({**dict(meta.items()), **shown}, types, meta)
    keys = {
        name: _key(Field(name, canonical_type(types[name]), categories.get(name))) for name in partition_on
    }
    stored = pa.schema([item for item in types.items() if item[0] not in keys])
    records = Schema.from_arrow(stored, record_type, categories=categories)
    fields = keys | {item.name: item for item in records.fields}
    return Schema(tuple(fields[name] for name in types), record_type)


def rounded_names(meta: pd.DataFrame, schema: Schema, *, write_index: bool) -> list[str]:
    """The columns whose values may be rounded to other floats, as far as the dtypes of the meta tell.

    Columns of objects that become float32 or float16 are not among them: `to_table` looks at their values.
    """
    if write_index:
        meta = index_to_columns(meta)
    return [item.name for item in schema.fields if item.lossy or _is_shortened(meta[item.name], item.type)]


def _is_shortened(column: "pd.Series[Any]", type_: pa.DataType) -> bool:
    """Whether floats or decimals are to become shorter floats."""
    target = innermost(type_)
    if not pa.types.is_floating(target) or _is_object(column.dtype):
        return False
    source = innermost(_type_of(column))
    return is_lossy(source) or (pa.types.is_floating(source) and source.bit_width > target.bit_width)


def _is_object(dtype: Any) -> bool:
    return not isinstance(dtype, pd.ArrowDtype) and bool(pd.api.types.is_object_dtype(dtype))


def text_names(
    meta: pd.DataFrame, schema: Types | pa.Schema | None, levels: Iterable[tuple[str, str | None]]
) -> dict[Hashable, str]:
    """The columns and index levels that are text although ``schema`` does not say so, and their columns."""
    given = _given_types(schema)
    dtypes: dict[Any, tuple[Any, Any]] = {name: (name, dtype) for name, dtype in meta.dtypes.items()}
    for at, (column, name) in enumerate(levels):
        dtypes[name] = column, meta.index.get_level_values(at).dtype
    return {
        label: column
        for label, (column, dtype) in dtypes.items()
        if stringified.holds_text(dtype) and (column not in given or _is_no_text(given[column]))
    }


def to_table(
    frame: pd.DataFrame, schema: Schema, *, write_index: bool | None, lossy: Lossy = "allow"
) -> pa.Table:
    """A partition as the planned schema wants it.

    Missing is what pandas calls missing; in Arrow-backed columns and inside lists NaN is a value.

    Parameters
    ----------
    frame : pandas.DataFrame
        The partition.
    schema : Schema
        The plan. The index levels, if they are written, are its first columns.
    write_index : bool or None
        If None, the index is left out, and must not have a name.
    lossy : "warn", "allow" or "raise"
        What becomes of numbers that the column's type rounds.

    Raises
    ------
    SchemaError
        For a column too many or too few, and for a value that its column's type cannot hold, with its row.
    """
    if write_index:
        frame = index_to_columns(frame, schema.names[: frame.index.nlevels])
    elif write_index is None and (named := [name for name in frame.index.names if name is not None]):
        raise SchemaError(
            f"a partition has the index {named}, of which the collection's meta knows nothing",
            advice="make the meta of the collection tell what its partitions hold, end what makes them with "
            ".reset_index(), or pass write_index=False to drop the index",
        )
    arrays = _arrays(frame)
    if len(frame.columns) != len(schema.fields) or set(arrays) != set(schema.names):
        raise SchemaError(
            f"a partition has the columns {list(frame.columns)}, the collection's meta {schema.names}",
            advice="make the meta of the collection tell what its partitions hold",
        )
    columns = [_ready(arrays[item.name], frame, item, lossy) for item in schema.fields]
    return pa.Table.from_arrays(columns, schema=schema.arrow)


def _with_index(sample: Sample, data: set[str], levels: list[str]) -> Sample:
    """The sample with the index levels as columns; only ``data`` can be asked for by name."""
    return lambda names: (
        index_to_columns(part, levels if part.index.nlevels == len(levels) else None)
        for part in sample([name for name in names if name in data])
    )


def _given_types(schema: Types | pa.Schema | None) -> dict[str, pa.DataType]:
    """The types that ``schema=`` gives.

    Raises
    ------
    SchemaError
        For anything that is no type of a value.
    """
    if isinstance(schema, pa.Schema):
        schema = {item.name: item.type for item in schema}
    if not isinstance(schema, Mapping | None):
        raise SchemaError(
            f"schema= must map column names to types, not be {schema!r}",
            advice='pass such as {"age": pa.int64()}',
        )
    return {name: _given_type(name, type_) for name, type_ in (schema or {}).items()}


def _given_type(name: str, given: Any) -> pa.DataType:
    try:
        type_ = arrow_type(given)
    except ValueError as error:
        problem = str(error)
    else:
        if not _is_open(type_) or pa.types.is_null(type_):
            return type_
        problem = f"{type_!r} is not the type of any value"
    raise SchemaError(
        f"schema= gives the column no type: {problem}",
        feature=str(name),
        advice=f'pass for example {{"{name}": pa.int64()}}',
    )


def _wanted_types(schema: Types | pa.Schema | None, meta: pd.DataFrame) -> dict[str, pa.DataType]:
    wanted = _given_types(schema)
    unknown = [name for name in wanted if name not in meta.columns]
    if unknown:
        raise SchemaError(
            f"schema= names columns that do not exist: {unknown}; there are {list(meta.columns)}"
        )
    return wanted


def _check_partition_on(partition_on: Sequence[str], columns: list[str]) -> None:
    unknown = [name for name in partition_on if name not in columns]
    if unknown:
        raise SchemaError(f"Partitioning on non-existent column {unknown[0]!r}; there are {columns}")
    if len(set(partition_on)) < len(partition_on):
        raise SchemaError(f"partition_on={list(partition_on)} names a column more than once")
    if len(partition_on) == len(columns):
        raise SchemaError(
            "No data left to save outside partition columns",
            advice="leave a column out of partition_on=, or add one that the records hold",
        )


def _key(item: Field) -> Field:
    """The partition column, if its values can be keys."""
    if not pa.types.is_null(item.type):
        try:
            depth = kind_and_depth(item.type)[1]
        except SchemaError as error:
            raise error.located(feature=item.name) from None
        if depth:
            raise SchemaError(
                f"directories cannot be named after values of the type {item.type}",
                feature=item.name,
                advice="partition on a column of numbers, strings, bytes, dates or times",
            )
    return item


def _warn_of_text(meta: pd.DataFrame, wanted: Types) -> None:
    """Columns that the user knows as bytes or lists, and that Dask already made text when it loaded them."""
    text = [name for name, type_ in wanted.items() if _is_text(meta[name].dtype) and _is_no_text(type_)]
    if text:
        columns = ", ".join(map(repr, text))
        warnings.warn(
            f"schema= wants no text of {columns}, but Dask loaded text, perhaps by its option "
            f"dataframe.convert-string; {stringified.advice(text[0])}.",
            UserWarning,
            stacklevel=4,
        )


def _is_text(dtype: Any) -> bool:
    return isinstance(dtype, pd.StringDtype)


def _is_no_text(type_: pa.DataType) -> bool:
    kind, depth = kind_and_depth(type_)
    return kind == "bytes" or depth > 0


def _find_types(
    columns: dict[str, "pd.Series[Any]"],
    sample: Sample,
) -> dict[str, "pd.Series[Any]"]:
    """The columns themselves, or of those without a type the first partition that shows one.

    A column that holds a value in no partition has the null type.
    """
    shown = dict(columns)
    untyped = [name for name in shown if _is_open(_type_of(shown[name])) and not _is_null(shown[name])]
    if not untyped:
        return shown
    for frame in sample(untyped):
        shown |= {name: frame[name] for name in untyped if not pa.types.is_null(_type_of(frame[name]))}
        untyped = [name for name in untyped if _is_open(_type_of(shown[name]))]
        if not untyped:
            return shown
    untyped = [name for name in untyped if not pa.types.is_null(_type_of(shown[name]))]
    if not untyped:
        return shown
    raise SchemaError(
        "no partition holds a value that shows the column's type",
        feature=untyped[0],
        advice=f'pass schema={{"{untyped[0]}": pa.string()}} or whatever it is, or drop the column',
    )


def _is_null(column: "pd.Series[Any]") -> bool:
    """Whether the dtype itself says that all values are null."""
    return isinstance(column.dtype, pd.ArrowDtype) and bool(pa.types.is_null(column.dtype.pyarrow_dtype))


def _type_of(column: "pd.Series[Any]") -> pa.DataType:
    """The Arrow type of a column, as far as its dtype or its values tell."""
    dtype = column.dtype
    try:
        if isinstance(dtype, pd.ArrowDtype):
            return dtype.pyarrow_dtype
        if isinstance(dtype, pd.CategoricalDtype):
            return pa.dictionary(pa.int32(), _small(_categories(dtype).type), bool(dtype.ordered))
        if pd.api.types.is_object_dtype(dtype):
            return object_columns.to_arrow(column, None, rounded=False).type
        return _small(pa.array(column.iloc[:0], from_pandas=True).type)
    except _CONVERSION_ERRORS as error:
        raise SchemaError(
            f"the dtype {dtype} shows no single type: {_first_line(error)}",
            feature=str(column.name),
            advice=f'convert the column, or pass its type as schema={{"{column.name}": ...}}',
        ) from None


def _small(type_: pa.DataType) -> pa.DataType:
    """The type, but for strings, which are large only in the way pandas keeps them."""
    return pa.string() if pa.types.is_large_string(type_) else type_


def _is_open(type_: pa.DataType) -> bool:
    if is_list(type_) or pa.types.is_dictionary(type_):
        return _is_open(type_.value_type)
    return bool(pa.types.is_null(type_))


def _categories(dtype: pd.CategoricalDtype) -> pa.Array:
    """The categories, of the null type if they are not known."""
    known = dtype.categories is not None and UNKNOWN_CATEGORIES not in dtype.categories
    return _category_values(dtype) if known and len(dtype.categories) else pa.nulls(0)


def _category_values(dtype: pd.CategoricalDtype) -> pa.Array:
    if _is_object(dtype.categories.dtype):
        return object_columns.to_arrow(
            pd.Series(dtype.categories, dtype=dtype.categories.dtype), None, rounded=False
        )
    return pa.array(dtype.categories, from_pandas=True)


def _known_categories(columns: Mapping[Any, "pd.Series[Any]"], types: Types, meta: pd.DataFrame) -> Types:
    """The categories that all partitions share; an ordered column must have them."""
    found = {}
    for name, type_ in types.items():
        if not pa.types.is_dictionary(type_):
            continue
        dtype = columns[name].dtype if type_.ordered else meta[name].dtype
        known = _categories(dtype) if isinstance(dtype, pd.CategoricalDtype) else pa.nulls(0)
        if len(known):
            found[name] = _as_categories(known, type_, name)
        elif type_.ordered:
            raise SchemaError(
                "the categories are ordered, but which they are is not known",
                feature=name,
                advice=f'pass schema={{"{name}": {type_.value_type}}}, or use ddf.categorize(["{name}"])',
            )
    return found


def _as_categories(known: pa.Array, type_: pa.DataType, name: str) -> pa.Array:
    try:
        return convert(known, type_.value_type)
    except (MisfitError, pa.ArrowException) as error:
        raise SchemaError(
            f"the categories are {known.type}, which does not fit {type_.value_type}: {_first_line(error)}",
            feature=name,
            advice=f'pass schema={{"{name}": {known.type}}} or leave it out',
        ) from None


def _arrays(frame: Any) -> dict[str, Any]:
    """The values of all columns, by a private name: frame[name] takes 20 times as long, for its series."""
    return dict(zip(frame.columns, frame._iter_column_arrays(), strict=True))


def _ready(array: Any, frame: pd.DataFrame, item: Field, lossy: Lossy) -> pa.Array | pa.ChunkedArray:
    """What Arrow holds for pandas already, if it is of the type; else the column is converted."""
    if isinstance(array, pd.arrays.ArrowExtensionArray):
        values = array.__arrow_array__()
        if values.type == item.type:
            return values
    return _to_arrow(frame[item.name], item, lossy)


def _to_arrow(column: "pd.Series[Any]", item: Field, lossy: Lossy) -> pa.Array | pa.ChunkedArray:
    try:
        return _convert(column, item.type, lossy)
    except _CONVERSION_ERRORS as error:
        advice = f'pass schema={{"{item.name}": ...}} with a type that holds all values of the column'
        if isinstance(error, MisfitError) and error.advice:
            advice = error.advice
        if _is_text(column.dtype) and _is_no_text(item.type):
            advice = stringified.advice(item.name)
        raise SchemaError(
            f"a value does not fit {item.type}: {_first_line(error)}",
            record=_first_misfit(column, item.type, lossy),
            feature=item.name,
            advice=advice,
        ) from None


def _convert(column: "pd.Series[Any]", type_: pa.DataType, lossy: Lossy) -> pa.Array | pa.ChunkedArray:
    """The values of the type; floats are rounded unless ``lossy`` is "raise"."""
    rounded = lossy != "raise"
    if isinstance(column.dtype, pd.ArrowDtype):
        found = column.array.__arrow_array__()  # 50 times as fast as pa.array()
    elif _is_object(column.dtype):
        return _from_objects(column, type_, lossy)
    elif isinstance(column.dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy()
        found = pa.DictionaryArray.from_arrays(
            pa.array(codes, mask=codes < 0), _category_values(column.dtype), ordered=bool(column.cat.ordered)
        )
    else:
        found = pa.array(column, from_pandas=True)
    if isinstance(found, pa.ChunkedArray):
        return pa.chunked_array([convert(chunk, type_, rounded=rounded) for chunk in found.chunks], type_)
    return convert(found, type_, rounded=rounded)


def _from_objects(column: "pd.Series[Any]", type_: pa.DataType, lossy: Lossy) -> pa.Array:
    """Objects show only here whether rounding changes them."""
    try:
        return object_columns.to_arrow(column, type_, rounded=lossy == "allow")
    except RoundedError as error:
        if lossy == "raise":
            raise
        warn_client(
            f"the values of {column.name!r} are rounded to {type_}, in row {error.row:,} {error.problem}"
        )
    return object_columns.to_arrow(column, type_, rounded=True)


def _first_misfit(column: "pd.Series[Any]", type_: pa.DataType, lossy: Lossy) -> int | None:
    """The row of the value that makes the conversion fail, by bisection over beginnings of the column."""

    def fails(rows: int) -> bool:
        try:
            _convert(column.iloc[:rows], type_, lossy)
        except _CONVERSION_ERRORS:
            return True
        return False

    rows = bisect_left(range(len(column) + 1), True, key=fails)
    return rows - 1 if rows else None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
