"""Find out where the columns of a Dask collection come from, and which files the collection reads.

The module also checks that Dask converts no objects other than strings to text.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
from dask.dataframe.dask_expr import new_collection
from dask.dataframe.dask_expr._collection import DataFrame
from dask.dataframe.dask_expr._expr import (
    AddPrefix,
    ArrowStringConversion,
    Assign,
    ClearDivisions,
    DropnaFrame,
    Expr,
    Filter,
    Head,
    Partitions,
    Projection,
    RenameFrame,
    RenameSeries,
    Sample,
    Tail,
    ToFrame,
)
from dask.dataframe.dask_expr._repartition import Repartition
from dask.dataframe.dask_expr.io.io import FromGraph, FromPandas
from dask.dataframe.dask_expr.io.parquet import ReadParquet

from dask_tfrecord.codec import RecordType
from dask_tfrecord.collection.expr.read_expression import ReadTFRecord
from dask_tfrecord.collection.frames import pandas_to_arrow
from dask_tfrecord.collection.frames.pandas_to_arrow import is_object
from dask_tfrecord.dataset.read.inferred_schema import PAYLOAD
from dask_tfrecord.errors import DestinationError, warn_caller
from dask_tfrecord.schema.feature_maps import as_read
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.schema.form_transport import carried_by_attrs
from dask_tfrecord.schema.logical_types import is_binary, is_list, is_text
from dask_tfrecord.schema.stored_form import StoredForm
from dask_tfrecord.storage.store import Store

# Expressions that select columns or rows, or move rows between partitions, without changing a value.
_VALUE_PRESERVING = (
    Projection,
    Filter,
    DropnaFrame,
    Head,
    Tail,
    Sample,
    Partitions,
    Repartition,
    ClearDivisions,
)

# Maps the label of a column or an index level to the name of the column in the records.
Names = Mapping[Hashable, str]


def read_types(ddf: DataFrame, names: Iterable[str]) -> dict[str, pa.DataType]:
    """Return the stored types of the columns that come unchanged from records. Skip partition columns."""
    types = {}
    for name in names:
        source = _source(ddf.expr, name, _VALUE_PRESERVING)
        if (
            isinstance(source, ReadTFRecord)
            and name in source.columns
            and name not in source.dataset.partition_values
        ):
            types[name] = source.dataset.schema.select([name]).fields[0].type
    return types


def _read_schemas(ddf: DataFrame) -> list[Schema]:
    return [read.dataset.schema for read in ddf.expr.find_operations(ReadTFRecord)]


def nested_record_type(ddf: DataFrame) -> RecordType | None:
    """Return the record type of the read columns of nested lists, or of feature lists, that the collection
    has.

    Return "sequence_example" if columns were read from both record types, and None if there are none.
    """
    record_types = {
        schema.record_type
        for schema in _read_schemas(ddf)
        for item in schema.fields
        if (item.depth > 1 or item.is_feature_list) and item.name in ddf.columns
    }
    if {*carried_by_attrs(ddf._meta.attrs).feature_lists} & {*ddf.columns}:
        record_types.add("sequence_example")
    return max(record_types, default=None)


def read_forms(ddf: DataFrame) -> dict[str, StoredForm]:
    """Return the forms of the read columns whose names the collection has.

    The meta has the forms if a computation, such as persist(), has replaced the read.
    """
    schemas = reversed(_read_schemas(ddf))
    read = {item.name: item.form for schema in schemas for item in schema.fields if item.form is not None}
    forms = {**carried_by_attrs(ddf._meta.attrs).forms, **read}
    return {name: form for name, form in forms.items() if name in ddf.columns}


def with_feature_lists(ddf: DataFrame, planned: Schema) -> Schema:
    """Let the feature lists of sequence examples store the list columns that were read from feature lists."""
    if planned.record_type != "sequence_example":
        return planned
    for schema in _read_schemas(ddf):
        planned = planned.as_in(schema)
    return as_read(planned, carried_by_attrs(ddf._meta.attrs).feature_lists)


def with_bytes_records(ddf: DataFrame, planned: Schema, partition_on: Sequence[str]) -> Schema:
    """Set the record type to "bytes" if the only column besides partition columns contains records that were
    read as bytes.

    Warn if records that were read as bytes would become values of a feature in new records.
    """
    schemas = _read_schemas(ddf)
    fields = [item for item in planned.fields if item.name not in partition_on]
    is_single_binary = len(fields) == 1 and fields[0].type in (pa.binary(), pa.large_binary())
    if is_single_binary and schemas and all(schema.record_type == "bytes" for schema in schemas):
        return replace(planned, record_type="bytes")
    payloads = {name for schema in schemas if schema.record_type == "bytes" for name in schema.names}
    # `persist()`, for example, replaces a read by its computed partitions.
    is_computed = any(isinstance(one, FromGraph) for one in ddf.expr.walk())
    if is_single_binary and not schemas and is_computed:
        payloads = {PAYLOAD.name}
    for item in fields:
        if item.name in payloads and item.kind == "bytes":
            warn_caller(
                f"each value of {item.name!r} was read as a whole record, but is written as a feature of an "
                f'Example; pass record_type="bytes" and ddf[[{item.name!r}]] to write whole records, or '
                'record_type="example" to write features.'
            )
    return planned


def lost_types(ddf: DataFrame) -> dict[str, pa.DataType]:
    """Return the types of unchanged columns whose dtype no longer determines the Arrow type.

    Three kinds of columns are returned: large strings and columns of nulls that Dask converted
    (dataframe.convert-string), and object columns that Dask read from Parquet files. Object columns whose
    Arrow type depends on their values are left out.
    """
    types = {}
    for name, dtype in ddf._meta.dtypes.items():
        if isinstance(dtype, pd.StringDtype):
            source = _source(ddf.expr, name, (*_VALUE_PRESERVING, ArrowStringConversion))
            if source is not None and _dtype(source, name) == pd.ArrowDtype(pa.large_string()):
                types[name] = pa.large_string()
            elif isinstance(source, FromPandas) and is_object(_dtype(source, name)):
                is_empty = source.operand("frame")._data[name].isna().all()
                types[name] = pa.null() if is_empty else None
        elif is_object(dtype) and isinstance(name, str):
            source = _source(ddf.expr, name, _VALUE_PRESERVING)
            if isinstance(source, ReadParquet) and name in source.columns and _has_default_conversion(source):
                item = source._dataset_info["schema"].field(name)
                types[name] = _type_of_objects(item.type, may_be_null=item.nullable)
    return {name: type_ for name, type_ in types.items() if type_ is not None}


def converted_columns(ddf: DataFrame) -> list[str]:
    """Return the names of the text columns that a task of the collection converts from objects."""
    names = []
    for name, dtype in ddf._meta.dtypes.items():
        if isinstance(dtype, pd.StringDtype) and isinstance(name, str):
            source = _source(ddf.expr, name, _VALUE_PRESERVING)
            if isinstance(source, ArrowStringConversion) and is_object(_dtype(source.frame, name)):
                names.append(name)
    return names


def _has_default_conversion(source: ReadParquet) -> bool:
    """Return True if Dask reads Parquet files without conversion options from the user."""
    options = source.operand("kwargs") or {}
    arrow = "arrow_to_pandas"
    return not ((arrow in source._parameters and source.operand(arrow)) or {*options} - {"dtype_backend"})


def _type_of_objects(type_: pa.DataType, *, may_be_null: bool) -> pa.DataType | None:
    """Return the type that Arrow infers after pandas has converted values of ``type_`` to objects.

    Return None if the inferred type depends on the values. For example, pandas converts a list of integers to
    floats if one of the integers is null.
    """
    if is_list(type_):
        item = _type_of_objects(type_.value_type, may_be_null=type_.value_field.nullable)
        return None if item is None else pa.list_(item)
    if is_text(type_):
        return pa.string()
    if is_binary(type_):
        return pa.binary()
    is_fixed = pa.types.is_floating(type_) or (pa.types.is_integer(type_) and not may_be_null)
    return type_ if is_fixed else None


def _source(expr: Any, name: str, preserving: Any) -> Any:
    """Return the first expression, from ``expr`` downwards, that is neither ``preserving`` nor an `Assign`.

    Return None if an `Assign` on the way down sets the column.
    """
    while True:
        if isinstance(expr, Assign):
            if name in expr.keys:
                return None
        elif not isinstance(expr, preserving):
            return expr
        expr = expr.frame


def _dtype(source: Expr, name: str) -> Any:
    frame = source.operand("frame")._data if isinstance(source, FromPandas) else source._meta
    return dict(frame.dtypes).get(name)


def check_not_read(ddf: DataFrame, store: Store) -> None:
    """Raise if an overwrite would remove TFRecord files that the collection reads.

    An overwrite removes the old files after all rows are written, so the new dataset would be correct. But if
    a worker is lost, Dask repeats its tasks, even after the commit. A repeated task would not find its input
    files, and the write would fail although it is committed. Reads of other formats need no check, because an
    overwrite refuses directories that contain anything but TFRecord files.
    """
    root = f"{store.real_path(store.root).rstrip('/')}/"
    for read in ddf.expr.find_operations(ReadTFRecord):
        source = read.dataset.store
        if type(source.fs) is not type(store.fs):
            continue
        for path in map(source.real_path, dict.fromkeys(read.dataset.files.paths)):
            if path.startswith(root):
                raise DestinationError(
                    f"the DataFrame reads from {store.public(path)}, which the overwrite would remove",
                    "write to another directory, then replace this directory, or call persist() first",
                )


# -- Text that Dask makes from objects -----------------------------------------------------------------------


class CheckedStringConversion(ArrowStringConversion):
    """Convert objects to text, but raise if the named columns contain anything but strings."""

    _parameters: ClassVar = ["frame", "names"]

    @staticmethod
    def operation(frame: Any, names: tuple[tuple[Hashable, str], ...]) -> Any:
        _check_objects(frame, dict(names))
        return ArrowStringConversion.operation(frame)


def check_string_conversions(ddf: DataFrame, names: Names) -> DataFrame:
    """Return the collection with a check that raises if Dask converts objects other than strings to text.

    Objects that the graph contains are checked immediately. Objects that a task loads are checked in that
    task. Text that a previous computation, such as persist(), has created is not checked. ``names`` maps the
    labels of text columns and text index levels to column names.
    """
    expr = ddf.expr
    conversions: dict[str, tuple[Expr, dict[Hashable, str]]] = {}
    for source, labels in _loads(expr, names, set()):
        if isinstance(source, FromPandas) and source.pyarrow_strings_enabled:
            _check_objects(source.operand("frame")._data, labels)
        if isinstance(source, ArrowStringConversion):
            other_labels = conversions.get(source._name, (source, {}))[1]
            conversions[source._name] = source, other_labels | dict(labels)
    for source, labels in conversions.values():
        expr = expr.substitute(source, CheckedStringConversion(source.frame, tuple(labels.items())))
    return new_collection(expr)


def _loads(expr: Expr, names: Names, visited: set[Any]) -> Iterator[tuple[Expr, Names]]:
    """Yield each expression that loads any of the given columns, with their labels in that expression."""
    key = expr._name, frozenset(names.items())
    if not names or key in visited:
        return
    visited.add(key)
    if isinstance(expr, ArrowStringConversion | FromPandas):
        yield expr, names
        return
    for child in expr.dependencies():
        yield from _loads(child, _names_in_child(expr, child, names), visited)


def _names_in_child(expr: Expr, child: Expr, names: Names) -> Names:
    """Translate the labels of columns in an expression to their labels in a child of the expression."""
    if isinstance(expr, Filter) and child._name != expr.frame._name:
        return {}  # the column labels of a filter do not apply to the filter's mask
    columns, levels = _labels(child)
    if isinstance(expr, RenameFrame | AddPrefix | RenameSeries | ToFrame):
        pairs = zip(_labels(expr)[0], columns, strict=False)
        return {old: names[new] for new, old in pairs if new in names} | _select(names, levels)
    if isinstance(expr, Assign):
        assigned = dict(zip(expr.keys, expr.vals, strict=True))
        unassigned = {label: name for label, name in names.items() if label not in assigned}
        selected = _select(unassigned, [*columns, *levels]) if child._name == expr.frame._name else {}
        for label, value in assigned.items():
            if label in names and isinstance(value, Expr) and value._name == child._name:
                selected |= dict.fromkeys(columns, names[label])
        return selected
    return _select(names, [*columns, *levels])


def _select(names: Names, labels: list[Hashable]) -> dict[Hashable, str]:
    return {label: names[label] for label in labels if label in names}


def _labels(expr: Expr) -> tuple[list[Hashable], list[Hashable]]:
    """Return the labels of the columns and of the index levels, or two empty lists if there is no meta."""
    try:
        meta = expr._meta
    # Some expressions, such as delayed values, have no meta. Their classes in Dask either lack `_meta`
    # (AttributeError) or leave it abstract (NotImplementedError), and no other test tells them apart.
    except (AttributeError, NotImplementedError):
        return [], []
    if isinstance(meta, pd.DataFrame):
        return list(meta.columns), list(meta.index.names)
    if isinstance(meta, pd.Series):
        return [meta.name], list(meta.index.names)
    return [], list(meta.names) if isinstance(meta, pd.Index) else []


def _check_objects(frame: Any, names: Names) -> None:
    if isinstance(frame, pd.Index):
        frame = frame.to_series()
    columns = dict(frame.items()) if isinstance(frame, pd.DataFrame) else {frame.name: frame}
    for label, name in names.items():
        if label in columns:
            pandas_to_arrow.check_objects(columns[label], name)
        elif label in frame.index.names:
            pandas_to_arrow.check_objects(frame.index.get_level_values(label), name)
