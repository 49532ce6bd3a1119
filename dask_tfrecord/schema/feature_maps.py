"""Decide whether a column reads the context or the feature lists of SequenceExamples.

A record has two maps of features: the context and the feature lists. Types that the caller gives, and schemas
of other libraries, do not say in which map a feature is. The records, or a snapshot, say it.
"""

from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from dask_tfrecord.codec import KIND_TYPES, FeatureKey, nested
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import is_list
from dask_tfrecord.schema.stored_form import StoredForm

# The maps that contain a feature, by its name: True stands for the feature lists.
Maps: TypeAlias = Mapping[str, Set[bool]]


def maps_of(features: Iterable[FeatureKey]) -> Maps:
    maps: dict[str, set[bool]] = {}
    for name, is_list_ in features:
        maps.setdefault(name, set()).add(is_list_)
    return maps


def in_map(item: Field, maps: Maps) -> Field:
    """Return the column, changed so that it reads the map that has its features.

    The column is returned unchanged if both maps or none of them have its features, or if it cannot read the
    map that has them. In the last case, `misplaced` returns the name of the feature.
    """
    found = {is_list_ for name in _names(item) for is_list_ in maps.get(name, ())}
    if found == {False} and item.is_feature_list:
        return replace(item, is_feature_list=False)
    return _in_feature_lists(item) if found == {True} else item


def misplaced(item: Field, maps: Maps) -> str | None:
    """Return a feature that is only in the map from which the column does not read it, if any."""
    read = {feature.feature for feature in item.features}
    for name in _names(item):
        found = maps.get(name, ())
        if len(found) == 1 and not {(name, is_list_) for is_list_ in found} & read:
            return name
    return None


def _names(item: Field) -> list[str]:
    names = dict.fromkeys(feature.name for feature in item.features)
    # A struct has a feature with its name only if a struct of nulls must differ from a null.
    return [*names] if item.is_struct else [*(names | {item.name: None})]


def _in_feature_lists(item: Field) -> Field:
    if item.is_struct or not is_list(item.type) or item.features[0].depth == 2:
        return item
    if item.form is None:
        if item.spec == "lists":
            return replace(item, type=pa.list_(item.type))
        return replace(item, is_feature_list=True)
    form = item.form
    if form.lengths == () and form.shape[:1] == (None,) and form.encoding == "none":
        form = replace(form, lengths=(None,), shape=form.shape[1:])
    if len(form.lengths) == 1 and None not in form.shape:
        return replace(item, form=form, is_feature_list=True)
    if form == StoredForm(form.value_type, lengths=(None, None)):
        return Field(item.name, form.type)
    return item


def in_feature_lists(schema: Schema, names: Sequence[str]) -> Schema:
    """Return a schema in which feature lists store the list columns ``names``.

    Raise SchemaError if a column does not exist, or is not a list.
    """
    for item in schema.select(names).fields:
        if item.name not in schema.names or not is_list(item.type):
            problem = f"the option feature_lists names the column, which is {item.type} and no list"
            raise SchemaError(problem, "name only list columns", feature=item.name)
    return as_read(schema, names)


def as_read(schema: Schema, names: Container[str]) -> Schema:
    """Return a schema in which feature lists store those of the columns ``names`` that are lists."""
    fields = (_in_feature_lists(item) if item.name in names else item for item in schema.fields)
    return replace(schema, fields=tuple(fields))


def stored_fields(item: Field) -> list[Field]:
    """Return one column for each feature in which ``item`` is stored.

    The result is ``item`` alone, unless ``item`` is a struct, has a `StoredForm`, or is a list in a feature
    list.
    """
    if item.form is None and not item.is_feature_list:
        return [Field(one.name, pa.int64()) if one.is_struct else one for one in item.family]
    return [Field(one.name, nested(KIND_TYPES[one.kind], one.depth)) for one in item.features]
