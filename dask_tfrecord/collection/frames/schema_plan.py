"""Plan the schema with which all partitions of a Dask collection are written."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias

import pandas as pd
import pyarrow as pa

from dask_tfrecord.codec import RecordType
from dask_tfrecord.collection.frames import pandas_to_arrow
from dask_tfrecord.collection.frames.object_arrays import to_arrow
from dask_tfrecord.collection.frames.pandas_to_arrow import (
    CONVERSION_ERRORS,
    category_array,
    first_line,
    index_to_columns,
    is_bytes_or_list,
    is_object,
    is_untyped,
    type_of,
)
from dask_tfrecord.errors import Remedy, SchemaError, did_you_mean, literal, warn_caller
from dask_tfrecord.schema.conversion import convert, fitting, may_widen, widened
from dask_tfrecord.schema.dtypes import dtype_name
from dask_tfrecord.schema.feature_maps import as_read
from dask_tfrecord.schema.fields import Field, Schema, check_features
from dask_tfrecord.schema.form_transport import Forms, carried_by_schema, form_of_nested
from dask_tfrecord.schema.logical_types import arrow_type, canonical_type, is_list, is_lossy, leaf_types
from dask_tfrecord.schema.names import check_names
from dask_tfrecord.schema.storage_values import MisfitError
from dask_tfrecord.schema.stored_form import StoredForm

Types = Mapping[str, Any]
GivenTypes: TypeAlias = Types | pa.Schema | None
Sample = Callable[[list[str]], Iterable[pd.DataFrame]]

_NULL_DTYPE = pd.ArrowDtype(pa.null())


@dataclass(frozen=True)
class Existing:
    """The columns of the dataset to which rows are appended, or no columns for a new dataset.

    If ``adds_columns`` is True, the append may widen the types of the columns.
    """

    fields: Mapping[str, Field] = field(default_factory=dict)
    adds_columns: bool = False

    @classmethod
    def of(cls, schema: Schema | None, *, adds_columns: bool) -> Self:
        fields = () if schema is None else schema.fields
        return cls({item.name: item for item in fields}, adds_columns)

    def fitting(self, name: str, rows: pa.DataType, *, is_inferred: bool) -> pa.DataType | None:
        """Return the type to which rows of the type ``rows`` are converted, or None if they do not fit."""
        if name not in self.fields:
            return rows
        existing, numbers = self.fields[name].type, self.adds_columns and self.fields[name].form is None
        return fitting(existing, rows, numbers=numbers, is_inferred=is_inferred)

    def type_of_objects(self, column: "pd.Series[Any]", *, is_dask: bool) -> pa.DataType:
        """Return the Arrow type of a column, or the type of the dataset's column if only this type holds the
        objects of the column, such as a tensor type for arrays of several dimensions.
        """
        try:
            return type_of(column, is_dask=is_dask)
        except SchemaError:
            item = self.fields.get(str(column.name))
            if item is None or not is_object(column.dtype):
                raise
            with suppress(*CONVERSION_ERRORS):
                return to_arrow(column, item.type, rounded=True).type
            raise


NEW_DATASET = Existing()


def plan_schema(
    meta: pd.DataFrame,
    *,
    schema: GivenTypes,
    record_type: RecordType | None,
    write_index: bool,
    sample: Sample | None,
    partition_on: Sequence[str] = (),
    known: Types | None = None,
    existing: Existing = NEW_DATASET,
    converted: Collection[str] = (),
    forms: Forms | None = None,
) -> Schema:
    """Plan the schema of a Dask collection or of a pandas DataFrame. The columns keep their order.

    If ``sample`` is None, ``meta`` contains all rows. Otherwise, ``sample(names)`` yields computed partitions
    with the named columns. ``sample`` is called only for columns whose dtype does not determine the Arrow
    type, such as columns of objects or of unknown categories, and for columns that may have no values.
    Partitions are computed only until each of these columns has a type and a value, but a column of decimals
    needs all partitions. ``known`` contains the types of columns whose dtype no longer determines the
    type, such as large strings. If ``write_index`` is True, the index levels become the first columns.
    ``forms`` maps columns to the forms in which they are stored if their types fit. If ``record_type`` is
    None, the records are Examples, and a column of nested lists needs a form.

    In an append, ``existing`` describes the dataset. A column whose type ``schema`` does not set gets the
    type of the dataset's column if its rows fit. A column without values fits every column. ``converted``
    names text columns that Dask converts from objects, and that may therefore have no values.

    Raise SchemaError if a record cannot hold the name or the type of a column, or if the type of a column
    stays unknown.
    """
    if write_index:
        data = set(meta.columns)
        levels = meta.index.nlevels
        meta = index_to_columns(meta)
        sample = sample and _with_index(sample, data, list(meta.columns[:levels]))
    given = _given_types_of_columns(schema, list(meta.columns), partition_on)
    if sample is not None:
        _warn_of_converted_text(meta, given)
    forms = forms or {}
    nested = {name: form.type for name, form in forms.items() if form.depth and name in meta.columns}
    objects = {name: type_ for name, type_ in nested.items() if is_object(meta[name].dtype)}
    known = {**_arrow_types(meta), **objects, **(known or {}), **given}
    columns = {name: meta[name] for name in meta.columns if name not in known}
    found, typed = _types_of_values(columns, sample, existing)
    found |= known
    dtypes: dict[Any, Any] = meta.dtypes.to_dict()
    fitted, suspects = _fitted_types(found, dtypes, existing)
    types = fitted | given
    empty = _without_values({*suspects, *converted} - {*given}, meta, sample)
    types |= dict.fromkeys(empty, pa.null())
    categories = _shared_categories(typed, types, meta, is_dask=sample is not None)
    planned = _with_keys(types, categories, record_type, partition_on, forms)
    names = {name: dtype_name(dtypes[name], type_) for name, type_ in types.items()}
    # Rows that are converted to the type of the dataset's column get the dtype of this column, too.
    changed = [name for name in types if types[name] != found[name] and name in existing.fields]
    names |= {name: existing.fields[name].dtype for name in changed if not names[name]}
    fields = (
        replace(
            item,
            dtype=names[item.name],
            is_closed=item.form is None and item.name in categories and item.name not in partition_on,
        )
        for item in planned.fields
    )
    return replace(planned, fields=tuple(fields))


def plan_arrow_schema(
    source: pa.Schema,
    categories: Mapping[str, pa.Array],
    *,
    schema: GivenTypes,
    record_type: RecordType | None,
    partition_on: Sequence[str],
    existing: Existing = NEW_DATASET,
    forms: Forms,
) -> Schema:
    """Plan the schema with which all columns of an Arrow stream are written.

    ``categories`` contains the known categories of dictionary columns. The docstring of `plan_schema`
    describes the other parameters.
    """
    given = _given_types_of_columns(schema, source.names, partition_on)
    types = {}
    for item in source:
        type_ = given.get(item.name)
        if type_ is None:
            fitted = existing.fitting(item.name, item.type, is_inferred=False)
            type_ = item.type if fitted is None else fitted
        # A column of lists of nulls is written if all of its lists are null.
        types[item.name] = canonical_type(pa.null() if is_untyped(type_) else type_)
    coded = {name: type_ for name, type_ in types.items() if pa.types.is_dictionary(type_)}
    known = {
        name: _known_categories(categories.get(name, pa.nulls(0)), type_, name)
        for name, type_ in coded.items()
        if type_.ordered or name in categories
    }
    return _with_keys(types, known, record_type, partition_on, forms)


def chosen_forms(
    of_rows: Forms, schema: GivenTypes, existing: Existing, record_type: RecordType | None
) -> dict[str, StoredForm]:
    """Choose the forms of written columns.

    Columns of an ``existing`` dataset keep their forms. Otherwise, the types and forms in ``schema=``
    override the forms ``of_rows`` in which the rows were read. With ``record_type="sequence_example"``, lists
    of lists become feature lists instead.
    """
    given = carried_by_schema(schema).forms if isinstance(schema, pa.Schema) else {}
    typed = given_types(schema)
    of_rows = {
        name: form
        for name, form in of_rows.items()
        if name not in typed and not (record_type == "sequence_example" and form.depth == 2)
    }
    new = {name: form.of_new_column for name, form in {**of_rows, **given}.items()}
    stored = {name: item.form for name, item in existing.fields.items()}
    return {name: form for name, form in {**new, **stored}.items() if form is not None}


def with_read_feature_lists(
    plan: Callable[[RecordType | None], Schema],
    record_type: RecordType | None,
    names: Collection[str],
    existing: Existing,
) -> Schema:
    """Plan the schema of rows, and store list columns ``names`` in feature lists, from which they were read.

    This does not apply to an append, or to any other ``record_type``.
    """
    if not names or existing.fields or record_type not in (None, "sequence_example"):
        return plan(record_type)
    planned = as_read(plan("sequence_example"), names)
    is_used = any(item.is_feature_list for item in planned.fields)
    return planned if is_used or record_type else plan(record_type)


def _with_keys(
    types: Mapping[str, pa.DataType],
    categories: Mapping[str, pa.Array],
    record_type: RecordType | None,
    partition_on: Sequence[str],
    forms: Forms,
) -> Schema:
    keys = {
        name: _partition_field(Field(name, canonical_type(types[name]), categories.get(name)))
        for name in partition_on
    }
    fields = keys | {
        name: Field.in_form(name, form)
        for name, type_ in types.items()
        if name not in keys and (form := _form(name, type_, record_type, forms)) is not None
    }
    record_type = record_type or "example"
    if others := [item for item in types.items() if item[0] not in fields]:
        records = Schema.from_arrow(pa.schema(others), record_type, categories=categories)
        fields |= {item.name: item for item in records.fields}
    check_features([*fields.values()])
    return Schema(tuple(fields[name] for name in types), record_type)


def _form(name: str, type_: pa.DataType, record_type: RecordType | None, forms: Forms) -> StoredForm | None:
    """Return the form in which a column is stored, or None if its type determines how it is stored."""
    if record_type == "bytes":
        return None
    form, nested = forms.get(name), form_of_nested(type_)
    if form is not None and form.fits(type_):
        return form
    if nested is not None and record_type is None and form is None:
        example = Remedy(
            "record_type", "example", "store values and lengths of inner lists in several features"
        )
        feature_list = Remedy("record_type", "sequence_example", "store feature lists")
        raise SchemaError(
            f"{type_} nests lists deeper than one feature of an Example can hold",
            "to store the column as in another dataset, pass schema=dask_tfrecord.open_dataset(...).schema",
            remedies=[feature_list, example] if nested.depth == 2 else [example],
            feature=name,
        )
    return nested if record_type in ("example", None) else None


def rounded_columns(types: Mapping[str, pa.DataType], schema: Schema) -> list[str]:
    """Return the names of the columns that a write may round. ``types`` maps each column to its type before
    the write.
    """
    return [item.name for item in schema.fields if item.lossy or _is_rounded(types[item.name], item.type)]


def rounded_in_frame(meta: pd.DataFrame, schema: Schema, *, write_index: bool) -> list[str]:
    """Return the names of the columns that a write may round to shorter floats, according to their types.

    For an object column, only the planned type counts, because `to_table` checks the values.
    """
    if write_index:
        meta = index_to_columns(meta)
    known = _arrow_types(meta)
    return [
        item.name
        for item in schema.fields
        if item.lossy or (known.get(item.name) != item.type and _rounds_column(meta[item.name], item.type))
    ]


def _arrow_types(meta: pd.DataFrame) -> dict[str, pa.DataType]:
    """Return the types of the Arrow-backed columns, except columns of nulls and of lists of nulls."""
    dtypes = zip(meta.columns.tolist(), meta.dtypes, strict=True)
    types = {name: dtype.pyarrow_dtype for name, dtype in dtypes if isinstance(dtype, pd.ArrowDtype)}
    return {name: type_ for name, type_ in types.items() if not is_untyped(type_)}


def _rounds_column(column: "pd.Series[Any]", type_: pa.DataType) -> bool:
    if is_object(column.dtype) or not any(map(pa.types.is_floating, leaf_types(type_))):
        return False
    return _is_rounded(type_of(column), type_)


def _is_rounded(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if floats or decimals of one type become shorter floats in another type."""
    return source != target and any(
        pa.types.is_floating(new)
        and (is_lossy(old) or (pa.types.is_floating(old) and old.bit_width > new.bit_width))
        for old, new in zip(leaf_types(source), leaf_types(target), strict=False)
    )


def text_columns(
    meta: pd.DataFrame, schema: GivenTypes, levels: Iterable[tuple[str, str | None]]
) -> dict[Hashable, str]:
    """Return the text columns and text index levels with no type, a bytes type or a list type in ``schema``.

    The result maps each label in the DataFrame to the name of the column in the records.
    """
    given = given_types(schema)
    dtypes: dict[Any, tuple[Any, Any]] = {name: (name, dtype) for name, dtype in meta.dtypes.items()}
    for at, (column, name) in enumerate(levels):
        dtypes[name] = column, meta.index.get_level_values(at).dtype
    return {
        label: column
        for label, (column, dtype) in dtypes.items()
        if pandas_to_arrow.holds_text(dtype) and (column not in given or is_bytes_or_list(given[column]))
    }


def _with_index(sample: Sample, data: set[str], levels: list[str]) -> Sample:
    """Return a function like ``sample`` that adds the index levels. ``data`` names the columns that are not
    index levels.
    """
    return lambda names: (
        index_to_columns(part, levels if part.index.nlevels == len(levels) else None)
        for part in sample([name for name in names if name in data])
    )


def given_types(schema: GivenTypes) -> dict[str, pa.DataType]:
    """Return the Arrow types of all columns that ``schema=`` names."""
    if isinstance(schema, pa.Schema):
        schema = {item.name: item.type for item in schema}
    if not isinstance(schema, Mapping | None):
        raise SchemaError(
            f"schema={schema!r} does not map column names to types", 'give a dict such as {"age": pa.int64()}'
        )
    return {name: _given_type(name, type_) for name, type_ in (schema or {}).items()}


def _given_type(name: str, given: Any) -> pa.DataType:
    try:
        type_ = arrow_type(given)
    except ValueError as error:
        problem = str(error)
    else:
        if not is_untyped(type_) or pa.types.is_null(type_):
            return type_
        problem = f"no value has the type {type_}"
    raise SchemaError(
        f"schema= has no valid type for the column: {problem}",
        f"give a type, such as {literal({name: pa.int64()})}",
        feature=str(name),
    )


def _given_types_of_columns(
    schema: GivenTypes, columns: list[str], partition_on: Sequence[str]
) -> dict[str, pa.DataType]:
    """Return the types in ``schema=``. Raise if ``schema=`` or ``partition_on`` is not valid."""
    check_names(columns)
    unknown = [name for name in partition_on if name not in columns]
    if unknown:
        problem = f"Partitioning on non-existent column {unknown[0]!r}; the columns are {columns}"
        raise SchemaError(problem, did_you_mean(unknown[0], columns), keyword="partition_on")
    if len(set(partition_on)) < len(partition_on):
        raise SchemaError(f"partition_on={list(partition_on)} names a column more than once")
    if len(partition_on) == len(columns):
        problem = "No data left to save outside partition columns"
        raise SchemaError(problem, "partition on fewer columns, or add a column to the DataFrame")
    given = given_types(schema)
    unknown = [name for name in given if name not in columns]
    if unknown:
        raise SchemaError(f"schema= names columns that do not exist: {unknown}; the columns are {columns}")
    return given


def _partition_field(item: Field) -> Field:
    """Return the field of a partition column. Raise if the values of the column cannot be directory names."""
    if not pa.types.is_null(item.type) and item.depth:
        problem = f"values of the type {item.type} cannot be directory names"
        advice = "partition on a column of numbers, strings, bytes, dates or times"
        raise SchemaError(problem, advice, feature=item.name)
    return item


def _warn_of_converted_text(meta: pd.DataFrame, given: Types) -> None:
    """Warn if ``schema=`` sets a bytes or list type for a column that Dask probably converted to text."""
    converted = [name for name, type_ in given.items() if is_bytes_or_list(type_)]
    text = [name for name in converted if isinstance(meta[name].dtype, pd.StringDtype)]
    if text:
        columns = ", ".join(map(repr, text))
        warn_caller(
            f"schema= gives {columns} a bytes or list type, but Dask loaded text, perhaps due to its option "
            f"dataframe.convert-string; {pandas_to_arrow.text_advice(text[0])}, or pass "
            f"{pandas_to_arrow.as_text(text[0])} to write the text itself."
        )


def _types_of_values(
    columns: Mapping[str, "pd.Series[Any]"], sample: Sample | None, existing: Existing
) -> tuple[dict[str, pa.DataType], dict[str, "pd.Series[Any]"]]:
    """Return the types of columns, and for each column the partition that determines its type.

    If the dtype of a column determines no type, the type comes from the first partitions with values, or from
    all partitions if the values are decimals. A column without values in any partition has the null type.
    """
    is_dask = sample is not None
    typed = dict(columns)

    def of_values(column: "pd.Series[Any]") -> pa.DataType:
        return existing.type_of_objects(column, is_dask=is_dask)

    types = {name: of_values(column) for name, column in typed.items()}
    filled = {name for name, column in typed.items() if may_widen(types[name]) and column.notna().any()}
    untyped = [name for name in typed if may_widen(types[name]) and typed[name].dtype != _NULL_DTYPE]
    for frame in sample(untyped) if sample and untyped else ():
        for name in untyped:
            found = of_values(frame[name])
            if not pa.types.is_null(found):
                typed[name], types[name] = frame[name], _joined(types[name], found)
                filled |= {name} if frame[name].notna().any() else set()
        untyped = [name for name in untyped if may_widen(types[name])]
        if not untyped:
            break
    for name in untyped:
        if is_untyped(types[name]) and name not in filled:
            types[name] = pa.null()
        elif is_untyped(existing.fitting(name, types[name], is_inferred=True) or types[name]):
            example = pa.list_(pa.string()) if is_list(types[name]) else pa.string()
            problem = "no partition has a value that shows the type of the column"
            remedy = Remedy("schema", {name: example}, "write this type, or name another")
            raise SchemaError(problem, "drop the column", remedy, feature=name)
    return types, typed


def _fitted_types(
    found: Types, dtypes: Mapping[str, Any], existing: Existing
) -> tuple[dict[str, pa.DataType], list[str]]:
    """Return the type to which each column is converted for the dataset, and the columns that do not fit.

    The columns that do not fit keep the types in ``found``.
    """
    types = {
        name: existing.fitting(name, found[name], is_inferred=is_object(dtype))
        for name, dtype in dtypes.items()
    }
    others = [name for name, type_ in types.items() if type_ is None]
    return types | {name: found[name] for name in others}, others


def _without_values(names: Collection[str], meta: pd.DataFrame, sample: Sample | None) -> Collection[str]:
    """Return the columns among ``names`` that have no value. Partitions are computed only until each of the
    columns has a value.
    """
    empty = [name for name in meta.columns if name in names]
    for frame in sample(empty) if sample and empty else [meta]:
        empty = [name for name in empty if frame[name].isna().all()]
        if not empty:
            break
    return empty


def _joined(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type for the values of two partitions."""
    return other if is_untyped(one) else widened(one, other, is_stored=False) or one


def _shared_categories(
    typed: Mapping[str, "pd.Series[Any]"], types: Types, meta: pd.DataFrame, *, is_dask: bool
) -> Types:
    """Return the known categories of the dictionary columns. Raise if ordered categories are unknown."""
    categories = {}
    for name, type_ in types.items():
        if not pa.types.is_dictionary(type_):
            continue
        column = typed[name] if type_.ordered and name in typed else meta[name]
        dtype = column.dtype
        known = category_array(dtype) if isinstance(dtype, pd.CategoricalDtype) else pa.nulls(0)
        if len(known) or type_.ordered:
            categories[name] = _known_categories(known, type_, name, is_dask=is_dask)
    return categories


def _known_categories(known: pa.Array, type_: pa.DataType, name: str, *, is_dask: bool = False) -> pa.Array:
    """Convert categories to the value type of ``type_``. Raise if an ordered column has no categories."""
    if type_.ordered and not len(known):
        problem = "the categories are ordered, but unknown"
        advice = f"use ddf.categorize({literal([name])})" if is_dask else None
        remedy = Remedy("schema", {name: type_.value_type}, "write a column without categories")
        raise SchemaError(problem, advice, remedy, feature=name)
    try:
        return convert(known, type_.value_type)
    except (MisfitError, pa.ArrowException) as error:
        raise SchemaError(
            f"the categories are {known.type}, which does not fit {type_.value_type}: {first_line(error)}",
            "give the column no type",
            Remedy("schema", {name: known.type}, "write the type of the categories"),
            feature=name,
        ) from None
