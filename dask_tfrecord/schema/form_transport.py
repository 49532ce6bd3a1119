"""Carry the stored forms of columns in Arrow schemas and in pandas DataFrames.

A read puts the forms into the metadata of Arrow fields, or into ``DataFrame.attrs``. Filters and most other
operations keep both, so that a write stores each column in the form in which it was read.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from dask_tfrecord.schema.logical_types import is_list
from dask_tfrecord.schema.stored_form import Size, StoredForm

_KEY = b"dask_tfrecord.form"

# The key in ``DataFrame.attrs``. The value is a str, which pandas copies in no time and writes to JSON.
ATTRIBUTE = "dask_tfrecord.forms"

# The keys that mark list columns which were read from feature lists.
_FEATURE_LIST = b"dask_tfrecord.feature_list"
FEATURE_LISTS = "dask_tfrecord.feature_lists"

Forms = Mapping[str, StoredForm]


def form_metadata(form: StoredForm | None, *, is_feature_list: bool) -> dict[bytes, bytes] | None:
    """Return the metadata of an Arrow field, or None if the column needs none."""
    if is_feature_list:
        return {_FEATURE_LIST: b"1"}
    if form is None or form.is_like_none:
        return None
    return {_KEY: json.dumps(form.to_json()).encode()}


def feature_lists_in_schema(schema: pa.Schema) -> list[str]:
    """Return the names of the columns that an Arrow schema marks as read from feature lists."""
    found: list[str] = []
    with suppress(ValueError, TypeError, AttributeError):  # the metadata of pandas is not valid
        found = feature_lists_in_attrs((schema.pandas_metadata or {}).get("attributes") or {})
    return [*found, *(item.name for item in schema if item.metadata and _FEATURE_LIST in item.metadata)]


def feature_lists_in_attrs(attrs: Mapping[Any, Any]) -> list[str]:
    """Return the names of the columns that ``DataFrame.attrs`` marks as read from feature lists."""
    with suppress(ValueError, TypeError, AttributeError):
        return [name for name in json.loads(attrs.get(FEATURE_LISTS, "[]")) if isinstance(name, str)]
    return []


def forms_in_schema(schema: pa.Schema) -> dict[str, StoredForm]:
    """Return the forms in the metadata of an Arrow schema. A table of `pyarrow.Table.from_pandas` has them in
    the metadata of pandas.
    """
    found = {}
    with suppress(ValueError, TypeError, AttributeError):  # the metadata of pandas is not valid
        found = forms_in_attrs((schema.pandas_metadata or {}).get("attributes") or {})
    for item in schema:
        if item.metadata and _KEY in item.metadata:
            with suppress(ValueError):
                found |= _parsed({item.name: json.loads(item.metadata[_KEY])})
    return found


def forms_text(forms: Mapping[str, StoredForm | None]) -> str:
    """Return the value of `ATTRIBUTE` in ``DataFrame.attrs``, or "" if no form needs it."""
    found = {name: form.to_json() for name, form in forms.items() if form and not form.is_like_none}
    return json.dumps(found) if found else ""


def forms_in_attrs(attrs: Mapping[Any, Any]) -> dict[str, StoredForm]:
    """Return the forms in ``DataFrame.attrs``."""
    with suppress(ValueError, TypeError, AttributeError):
        return _parsed(json.loads(attrs.get(ATTRIBUTE, "{}")))
    return {}


def _parsed(values: Mapping[str, Any]) -> dict[str, StoredForm]:
    """Convert the results of `StoredForm.to_json` back. Skip an invalid one, which another program has
    written.
    """
    found = {}
    for name, value in values.items():
        with suppress(LookupError, ValueError, TypeError, AttributeError):
            found[name] = StoredForm.from_json(value)
    return found


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
