"""Compare the columns of an append with those of the dataset."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from dask_tfrecord.codec import RecordType
from dask_tfrecord.dataset.snapshot.check import open_checked
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.errors import DROP_INDEX, Remedy, SchemaError, literal
from dask_tfrecord.schema.conversion import has_all, may_widen, widened
from dask_tfrecord.schema.dtypes import common_dtype, nullable_dtype
from dask_tfrecord.schema.fields import Field, Schema, check_features
from dask_tfrecord.schema.logical_types import canonical_type
from dask_tfrecord.schema.stored_form import StoredForm
from dask_tfrecord.storage.redaction import redact_errors
from dask_tfrecord.storage.store import Store

# The remedies for a column that only the rows have, and for a column that only the dataset has. They apply to
# appends and to overwrites of partitions alike.
_ADD = (Remedy("schema_change", "add", "add the column, which is null in the existing rows"),)
_FILL = (Remedy("schema_change", "add", "store nulls in the column"),)

# The problem and the advice of errors about a column that is missing from the dataset or from the rows.
_NEW = "the rows have this column, the dataset does not", "leave the column out of the rows"
_MISSING = "the dataset has this column, the rows do not", "add the column to the rows"
_UNKNOWN = "schema= has this column, the dataset does not", "leave the column out of schema="


@redact_errors
def check_existing_data(
    store: Store,
    schema: Schema,
    partitioning: Sequence[Field],
    index: Levels = (),
    *,
    adds_columns: bool = False,
    known: Snapshot | None = None,
) -> Snapshot | None:
    """Check that rows with the columns of ``schema`` and ``partitioning`` can be appended to the existing
    data in a directory.

    ``known`` is the newest snapshot, or None to read it. Return the newest snapshot, or None if the directory
    has none. Raise a SchemaError that names one difference if the columns, types, partition columns or index
    differ from the existing data, and the errors of `open_checked`.
    """
    newest = open_checked(store, known=known)
    if newest is not None:
        merged_schema(newest, schema, partitioning, index, adds_columns=adds_columns)
        # A column that the dataset has but the rows lack may have been renamed. The commit does not check for
        # columns missing from the rows, because a concurrent append may have added columns.
        existing = newest.schema.names
        if not adds_columns:
            _check_names(existing, schema.names, *_MISSING, _FILL)
        elif {*existing}.isdisjoint(schema.names):  # the rows are those of another dataset
            _check_names(existing, schema.names, *_MISSING)
    return newest


def merged_schema(
    snapshot: Snapshot,
    schema: Schema,
    partitioning: Sequence[Field],
    index: Levels,
    *,
    adds_columns: bool,
    is_overtaken: bool = False,
) -> Schema:
    """Return the schema of a dataset after an append of rows with the schema ``schema``.

    Columns that only the dataset has are null in the new rows. If a column of the dataset contains only
    nulls, it gets the type of the new rows. A decimal column gets enough digits for both. If ``adds_columns``
    is True, new columns follow those of the dataset, and columns may get wider types. If ``adds_columns`` is
    False, raise a SchemaError for a column that is new or has a different type. If ``is_overtaken`` is True,
    the rows may have narrower types than the dataset, because another append may have widened a column in the
    meantime. If the rows cannot be appended, raise a SchemaError that names the difference.
    """
    _check_partitioning([item.name for item in partitioning], [*snapshot.partition_on])
    _check_index(index, snapshot.index)
    _check_record_type(schema.record_type, snapshot.schema.record_type)
    for ours, theirs in zip(partitioning, snapshot.partitioning, strict=True):
        _check_type(ours, theirs)
    given = {item.name: item for item in schema.fields}
    fields = [
        _merged(given.pop(item.name, None), item, numbers=adds_columns, may_be_narrower=is_overtaken)
        for item in snapshot.schema.fields
    ]
    if not adds_columns:
        _check_names(given, snapshot.schema.names, *_NEW, _ADD)
    if given and snapshot.partial:
        problem = "the column is new, and records of the dataset may have features that are not columns"
        raise _column_error(problem, next(iter(given)), "leave the column out of the rows")
    fields += map(_with_nulls, given.values())
    check_features(fields)
    return Schema((*fields,), schema.record_type)


def _with_nulls(item: Field) -> Field:
    return replace(item, dtype=nullable_dtype(item.dtype))


def with_common_dtype(theirs: Field, ours: Field) -> Field:
    """Return the dataset's column ``theirs`` with a dtype that also fits ``ours``, the same column of the new
    rows.
    """
    return replace(theirs, dtype=common_dtype(ours.dtype, theirs.dtype, theirs.type))


def _merged(ours: Field | None, theirs: Field, *, numbers: bool, may_be_narrower: bool = False) -> Field:
    """Return the dataset's column ``theirs`` with a type and a dtype that also fit ``ours``, the same column
    of the new rows.

    If ``ours`` is None, the column is null in the new rows.
    """
    if ours is None:
        if theirs.form is not None and not theirs.form.is_optional:
            problem = "every record of the dataset must have the column, and the rows lack it"
            raise _column_error(problem, theirs.name, "add the column to the rows, without nulls")
        return _with_nulls(theirs)
    if pa.types.is_null(theirs.type) and theirs.form is None:
        return _with_nulls(ours)
    if ours.is_feature_list and not theirs.is_feature_list:
        problem = "the rows store the column in a feature list, the dataset stores it in the context"
        raise _column_error(problem, ours.name, "leave the column out of the option feature_lists")
    if theirs.form is not None or ours.form is not None:
        _check_type(ours, theirs)
        return with_common_dtype(theirs, ours)
    wider = widened(theirs.type, ours.type, numbers=numbers)
    if may_be_narrower and widened(theirs.type, ours.type) == theirs.type:
        wider = theirs.type
    _check_type(ours, theirs, fits=wider is not None)
    return with_common_dtype(replace(_with_categories(theirs, ours), type=wider), ours)


def _with_categories(theirs: Field, ours: Field) -> Field:
    """Return ``theirs``. If ``ours`` may have other categories, ``is_closed`` becomes False in the result.

    The categories of ``ours`` are not added, because this might restore a category that a deletion has
    erased.
    """
    if not theirs.is_closed or pa.types.is_null(ours.type):
        return theirs
    known, more = theirs.categories, ours.categories
    is_closed = ours.is_closed and known is not None and more is not None and has_all(known, more)
    return replace(theirs, is_closed=is_closed)


def with_wider_types(schema: Schema, found: Schema) -> Schema:
    """Return a copy of ``schema`` in which columns of nulls and of decimals get types that also fit the same
    columns in ``found``. Other columns keep their types, whatever the types in ``found`` are.
    """
    given = {item.name: item for item in found.fields}

    def wider(item: Field) -> Field:
        ours = given.get(item.name)
        if ours is not None and widened(item.type, ours.type, numbers=False) is None:
            return item
        return _merged(ours, item, numbers=False)

    fields = [wider(item) if may_widen(item.type) else item for item in schema.fields]
    return Schema(tuple(fields), schema.record_type)


@contextmanager
def fixed_columns(schema: Schema, is_append: bool = True) -> Iterator[None]:
    """If rows that the ``with`` block converts to ``schema`` do not fit, suggest only types for ``schema=``
    that a dataset with these columns accepts. If ``is_append`` is False, do nothing.
    """
    try:
        yield
    except SchemaError as error:
        remedies = [accepted for one in error.remedies for accepted in _accepted(one, schema)]
        if not is_append or remedies == [*error.remedies]:
            raise
        advice = error.advice or ("" if remedies else "correct the value, because the dataset has this type")
        raise error.replaced(advice=advice, remedies=tuple(remedies)) from error.__cause__


def _accepted(remedy: Remedy, schema: Schema) -> list[Remedy]:
    """Return the remedies with which a dataset with the columns ``schema`` accepts the type in ``remedy``."""
    if remedy.keyword != "schema" or len(remedy.value) != 1 or not {*remedy.value} <= {*schema.names}:
        return [remedy]
    [(name, type_)] = remedy.value.items()
    known = schema.arrow.field(name).type
    if widened(known, type_, numbers=False) == type_:
        return [remedy]
    if widened(known, type_) == type_:
        return [remedy._replace(effect=""), Remedy("schema_change", "add", "widen the column of the dataset")]
    return []


def check_given_columns(
    snapshot: Snapshot,
    types: Mapping[str, pa.DataType],
    partition_on: Sequence[str] | None,
    record_type: RecordType | None,
) -> None:
    """Check that an append to a dataset with a snapshot is possible, and that the arguments fit it.

    Raise SchemaError if the caller's types, partition columns or record type differ from those of the
    dataset.
    """
    _check_record_type(record_type or snapshot.schema.record_type, snapshot.schema.record_type)
    if partition_on is not None:
        _check_partitioning([*partition_on], [*snapshot.partition_on])
    existing = {item.name: item.type for item in snapshot.columns.fields}
    _check_names(types, existing, *_UNKNOWN)
    for name, type_ in types.items():
        if widened(existing[name], canonical_type(type_), numbers=False) is None:
            problem = f"schema= says {type_}, in the dataset the column is {existing[name]}"
            raise _column_error(problem, name, f"pass schema={literal({name: existing[name]})}")


def check_row_names(
    rows: Sequence[str],
    existing: Sequence[str],
    new: Mapping[str, pa.DataType],
    filled: Collection[str] | None,
) -> None:
    """Raise SchemaError if the dataset lacks a column of the rows, or if the rows lack a column of the
    dataset that is not ``filled`` with nulls.

    ``new`` maps the columns that the dataset lacks to their types. The error suggests to add them. ``filled``
    is None if the caller may pass ``schema_change="add"`` to fill columns.
    """
    _check_names(rows, existing, *_NEW, [Remedy("schema", dict(new)), *_ADD] if new else [])
    needed = [name for name in existing if name not in (filled or ())]
    _check_names(needed, rows, *_MISSING, _FILL if filled is None else ())


def _check_names(
    names: Iterable[str], known: Iterable[str], problem: str, advice: str, remedies: Sequence[Remedy] = ()
) -> None:
    """Raise SchemaError for the first of the ``names`` that is not in ``known``."""
    known = {*known}
    for name in names:
        if name not in known:
            raise _column_error(problem, name, advice, remedies)


def _check_record_type(ours: str, theirs: str) -> None:
    if ours != theirs:
        problem = f"the write makes {ours!r} records, the dataset holds {theirs!r} records"
        raise SchemaError(problem, Remedy("record_type", theirs, "write the same records"))


def _check_partitioning(ours: list[str], theirs: list[str]) -> None:
    if ours != theirs:
        only_one_has = [name for name in [*theirs, *ours] if (name in theirs) != (name in ours)]
        there, here = theirs or "nothing", ours or "nothing"
        problem = f"the dataset is partitioned on {there}, but the write partitions on {here}"
        remedy = Remedy("partition_on", theirs or None, "write the same directories")
        raise SchemaError(problem, remedy, feature=(only_one_has or theirs)[0])


def _check_index(ours: Levels, theirs: Levels | None) -> None:
    """Raise SchemaError if the index of the dataset is known and differs from ``ours``, the index of the new
    rows.
    """
    if theirs is not None and ours != theirs:
        there, here = ([column for column, _ in levels] or "none" for levels in (theirs, ours))
        problem = f"the DataFrame has the index {here}, the dataset was written with {there}"
        advice = "call set_index or reset_index so that the indexes agree"
        raise SchemaError(problem, advice, remedies=[] if theirs else [DROP_INDEX])


def _check_type(ours: Field, theirs: Field, *, fits: bool | None = None) -> None:
    """Raise SchemaError if values of ``ours`` cannot be appended to ``theirs``, the column of the dataset.

    ``fits`` is False if the type of ``ours`` does not fit the column ``theirs``. If ``fits`` is None, this
    function compares the types. They fit if they differ only in memory layout, or if ``ours`` has the null
    type, because neither difference changes the records.
    """
    if not pa.types.is_null(ours.type) and _form_of(ours) != _form_of(theirs):
        fits = False
        if ours.type == theirs.type:
            here, there = ([feature.name for feature in item.features] for item in (ours, theirs))
            problem = f"the write stores the column in {here}, the dataset in {there}, or in another form"
            raise _column_error(problem, ours.name, "write the rows to a new directory")
    if fits is None:
        fits = widened(theirs.type, ours.type, numbers=False) == theirs.type
    if not fits:
        raise _type_error(ours, theirs)
    if not pa.types.is_dictionary(ours.type) or not ours.type.ordered:
        return
    known = [None if item.categories is None else item.categories.to_pylist() for item in (ours, theirs)]
    if known[0] != known[1]:
        problem = "the ordered categories differ from those in the dataset"
        raise _column_error(problem, ours.name, "give the column the categories that it has in the dataset")


def _type_error(ours: Field, theirs: Field) -> SchemaError:
    problem = f"the column is {ours.type}, in the dataset it is {theirs.type}"
    if pa.types.is_decimal(ours.type) and pa.types.is_decimal(theirs.type):
        problem += ", and with more decimal places the stored 32-bit floats would be read as other decimals"
        return _column_error(problem, ours.name, f"round the values to {theirs.type.scale} decimal places")
    if pa.types.is_struct(ours.type) and pa.types.is_struct(theirs.type):
        names = {item.name for item in ours.type}
        advice = "leave out the fields that the dataset does not have"
        if names < {item.name for item in theirs.type}:
            dtype = f"pd.ArrowDtype({literal(theirs.type)})"
            advice = f"add the other fields as nulls, with .astype({{{literal(ours.name)}: {dtype}}})"
        return _column_error(problem, ours.name, advice)
    effect = "convert the values to the type of the dataset, which raises if a value would change"
    remedies = [Remedy("schema", {ours.name: theirs.type}, effect)]
    if widened(theirs.type, ours.type) is not None:
        remedies.append(Remedy("schema_change", "add", "widen the column of the dataset"))
    return _column_error(problem, ours.name, "", remedies)


def _form_of(item: Field) -> StoredForm | None:
    """Return the form of a column, with the properties that do not matter to the stored values left out."""
    if item.form is None or item.form.is_plain:
        return None
    return replace(item.form, is_optional=True)


def _column_error(problem: str, name: str, advice: str, remedies: Sequence[Remedy] = ()) -> SchemaError:
    return SchemaError(problem, advice, feature=name, remedies=remedies)
