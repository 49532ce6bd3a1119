"""Carry the stored forms of columns in Arrow schemas and pandas DataFrames.

A read puts the stored forms of columns, and which lists came from feature lists, into the metadata of Arrow
fields, or into ``DataFrame.attrs``. Filters and most other operations keep both, so that a write stores each
column as it was read.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa

from dask_tfrecord.schema.logical_types import is_list
from dask_tfrecord.schema.stored_form import Size, StoredForm

_KEY = b"dask_tfrecord.form"

# The key in ``DataFrame.attrs``. The value is a str, which pandas copies in no time and writes to JSON.
ATTRIBUTE = "dask_tfrecord.forms"

# Carried for a list column that was read from a feature list, instead of a form.
_FEATURE_LIST = {"feature_list": True}

Forms = Mapping[str, StoredForm]


class Carried(NamedTuple):
    """The forms of columns, and the names of list columns that were read from feature lists."""

    forms: dict[str, StoredForm]
    feature_lists: list[str]


def carried(form: StoredForm | None, *, is_feature_list: bool) -> dict[str, Any] | None:
    """Return the JSON value that carries a column's form, or None if nothing is carried."""
    if is_feature_list:
        return _FEATURE_LIST
    return None if form is None or form.is_like_none else form.to_json()


def as_metadata(value: dict[str, Any] | None) -> dict[bytes, bytes] | None:
    """Return the metadata of an Arrow field that carries a value."""
    return None if value is None else {_KEY: json.dumps(value).encode()}


def as_attribute(values: Iterable[tuple[str, dict[str, Any] | None]]) -> str:
    """Return the text of `ATTRIBUTE` that carries the values of columns, or "" if nothing is carried."""
    of_columns = {name: value for name, value in values if value}
    return json.dumps(of_columns) if of_columns else ""


def carried_by_schema(schema: pa.Schema) -> Carried:
    """Return the forms that an Arrow schema carries: in the metadata of its fields or, for a table of
    `pyarrow.Table.from_pandas`, in pandas' metadata.
    """
    values: dict[str, Any] = {}
    with suppress(ValueError, TypeError, AttributeError):  # the metadata of pandas is not valid
        values |= _values((schema.pandas_metadata or {}).get("attributes") or {})
    for item in schema:
        if item.metadata and _KEY in item.metadata:
            with suppress(ValueError):
                values[item.name] = json.loads(item.metadata[_KEY])
    return _parsed(values)


def carried_by_attrs(attrs: Mapping[Any, Any]) -> Carried:
    """Return what ``DataFrame.attrs`` carries."""
    with suppress(ValueError, TypeError, AttributeError):
        return _parsed(_values(attrs))
    return Carried({}, [])


def _values(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    return dict(json.loads(attrs.get(ATTRIBUTE, "{}")))


def _parsed(values: Mapping[str, Any]) -> Carried:
    """Convert JSON values back. Skip an invalid one, which another program has written."""
    result = Carried({}, [])
    for name, value in values.items():
        if value == _FEATURE_LIST:
            result.feature_lists.append(name)
            continue
        with suppress(LookupError, ValueError, TypeError, AttributeError):
            result.forms[name] = StoredForm.from_json(value)
    return result


def form_of_nested(type_: pa.DataType) -> StoredForm | None:
    """Return the form in which Examples store nested lists, or None if one feature can store the type.

    As in TensorFlow Datasets, values are stored flat. The lengths of inner lists are stored in separate
    features, unless all inner lists have one fixed size.
    """
    sizes: list[Size] = []
    while is_list(type_):
        sizes.append(type_.list_size if pa.types.is_fixed_size_list(type_) else None)
        type_ = type_.value_type
    if len(sizes) < 2 or pa.types.is_struct(type_) or isinstance(type_, pa.BaseExtensionType):
        return None
    categories = None
    if pa.types.is_dictionary(type_):
        type_, categories = type_.value_type, pa.nulls(0, pa.string())
        if not pa.types.is_string(type_):
            return None
    start = len(sizes)
    while start and sizes[start - 1] is not None:
        start -= 1
    return StoredForm(type_, (*sizes[start:],), (*sizes[:start],), is_optional=True, categories=categories)
