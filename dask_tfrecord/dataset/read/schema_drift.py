"""Find features that differ from their columns, and the arguments of `read_tfrecord` that can read these
features.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from dask_tfrecord.codec.columns import FeatureKey
from dask_tfrecord.dataset.read.inferred_schema import type_of
from dask_tfrecord.errors import IGNORE_FEATURES, Remedy, SchemaError, TFRecordError
from dask_tfrecord.files.damage import DamagePolicy
from dask_tfrecord.files.inference import AskedType, FeatureSummary, Sample, sample_split
from dask_tfrecord.files.options import ReadOptions, SchemaEvidence
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.field import Field, stored_fields
from dask_tfrecord.schema.model import Schema


class Drift(NamedTuple):
    """A feature that differs from the schema: either its column cannot read its values, or it has no column.

    Attributes
    ----------
    name : str
        The name of the feature.
    problem : str
        A sentence that begins with the feature's name and says how the feature differs from its column.
    type : pyarrow.DataType
        The type of a column that could read the feature.
    kinds : tuple of str
        The kinds of the feature's values.
    expected : str, optional
        The kind that the column reads, or None if the column has the null type or does not exist.
    is_in_other_map : bool
        True if the column reads the context but the feature is a feature list, or the reverse.
    has_two_maps : bool
        True if some records have the feature in the context, and other records have a feature list of the
        same name.
    """

    name: str
    problem: str
    type: pa.DataType
    kinds: tuple[str, ...]
    expected: str | None
    is_in_other_map: bool
    has_two_maps: bool


def find_drift(sample: Sample, schema: Schema, allowed: Iterable[FeatureKey] = ()) -> list[Drift]:
    """Return the sampled features that differ from their columns.

    Features that are in `allowed` need no column.
    """
    columns = {one.name: one for item in schema.fields for one in stored_fields(item)}
    allowed = set(allowed)
    maps = Counter(feature.name for feature in sample.features if feature.kinds)
    drifts = []
    for feature in sample.features:
        column = columns.get(feature.name)
        in_other_map = column is not None and feature.feature_list != (column.depth == 2)
        if (column is None or in_other_map) and (feature.name, feature.feature_list) in allowed:
            continue
        if problem := _no_column(feature) if column is None else _problem(feature, column):
            kind = None if column is None or pa.types.is_null(column.type) else _kind(column)
            found = (feature.name, problem, type_of(feature), tuple(feature.kinds), kind, in_other_map)
            drifts.append(Drift(*found, has_two_maps=maps[feature.name] > 1))
    return drifts


def explained(
    error: SchemaError,
    store: Store,
    split: Split,
    schema: Schema,
    options: ReadOptions,
    allowed: Sequence[FeatureKey] | None,
) -> SchemaError:
    """Add all other columns of the split whose values do not fit to the error of one value.

    If possible, one remedy of the new error corrects all of these columns. To find these columns, the whole
    split is read again.

    Parameters
    ----------
    error : SchemaError
        The error that one value caused.
    store, split, schema, options
        The arguments of the read that raised this error.
    allowed : sequence of (str, bool), optional
        The features that need no column, each with True for a feature list. If None, every feature is
        allowed.
    """
    record_type: AskedType = "sequence_example" if options.is_type_inferred else schema.record_type
    lenient = replace(options, damage=DamagePolicy("skip"))
    try:
        sample = sample_split(store, split, options=lenient, record_type=record_type)
    except (TFRecordError, OSError):
        return error
    if allowed is None:
        allowed = [(feature.name, feature.feature_list) for feature in sample.features]
    drifts = find_drift(sample, schema, allowed)
    drift = next((one for one in drifts if one.name == error.feature), None)
    if drift is None:
        return error.replaced(remedies=_of_structs(error.remedies, schema))
    problem = error.problem
    if drift.expected is None and error.feature in schema.names:
        problem = f"the record holds {drift.kinds[0]}, the column is null"
        if options.evidence is not None and error.feature not in options.evidence.given_kinds:
            problem += " because no record of the sample has a value for it"
    if others := [one.problem for one in drifts if one.name != drift.name]:
        problem = f"{problem}; other columns of this file differ too: {'; '.join(others)}"
    remedies = _of_structs(_remedies(drifts, schema, options.evidence), schema)
    return error.replaced(problem=problem, remedies=remedies)


def _remedies(drifts: Sequence[Drift], schema: Schema, evidence: SchemaEvidence | None) -> list[Remedy]:
    """Return the remedies: arguments of `read_tfrecord` with which all of these features can be read."""
    counts = Counter(drift.name for drift in drifts)
    unreadable = [drift.name for drift in drifts if counts[drift.name] > 1 or _is_unreadable(drift, evidence)]
    types = {drift.name: None if drift.name in unreadable else drift.type for drift in drifts}
    without_column = [name for name in types if name not in schema.names]
    if evidence is None and without_column:
        ignored = IGNORE_FEATURES
        return [ignored, Remedy("use_snapshot", False), Remedy("infer", "all", "read it")]
    if evidence is not None and not evidence.all_records:
        given = {n: type_ for n, type_ in types.items() if n in evidence.given_kinds or n in unreadable}
        if len(given) < len(types):
            effect = "infer the columns from all records"
            found = [Remedy("infer", "all", "" if given else effect)]
            found += [Remedy("schema", given, effect)] if given else []
            found.append(Remedy("schema", types, "read this file"))
            if without_column:
                found.append(IGNORE_FEATURES)
            return found
    effect = "read them" if len(types) > 1 else "read it"
    if unreadable:
        reason = "no type reads values of two kinds, or from both the context and the feature lists"
        effect = f"leave out the columns that are None: {reason}"
    elif any(drift.expected not in (None, *drift.kinds) for drift in drifts):
        effect += " if all records have this kind; leave the column out if records have both kinds"
    return [Remedy("schema", types, effect)]


def _of_structs(remedies: Iterable[Remedy], schema: Schema) -> list[Remedy]:
    """Replace the types of fields of structs by the types of the structs, which ``schema=`` can give."""
    columns = {one.name: item for item in schema.fields if item.is_struct for one in item.family}
    return [
        remedy._replace(value=_of_columns(remedy.value, columns)) if remedy.keyword == "schema" else remedy
        for remedy in remedies
    ]


def _of_columns(types: dict[str, pa.DataType | None], columns: dict[str, Field]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, type_ in types.items():
        column = columns.get(name)
        if column is None or type_ is None:
            found[name if column is None else column.name] = type_
        elif column.name not in found or found[column.name] is not None:
            known = Field(column.name, found.get(column.name, column.type))
            found[column.name] = known.with_field_types({name: type_}).type
    return found


def _is_unreadable(drift: Drift, evidence: SchemaEvidence | None) -> bool:
    """Return True if no column can read the feature both in this file and in the sampled files.

    This is the case if the feature has two kinds, or occurs in the context and in the feature lists.
    """
    if drift.has_two_maps or (drift.is_in_other_map and drift.expected is not None):
        return True
    sampled: tuple[str | None, ...] = ()
    if evidence is not None and drift.name not in evidence.untyped:
        sampled = evidence.given_kinds.get(drift.name, (drift.expected,))
    return len({*drift.kinds, *sampled} - {None}) > 1


def _kind(column: Field) -> str:
    return "bytes" if column.kind == "string" else column.kind


def _no_column(feature: FeatureSummary) -> str:
    """Describe the problem of a feature without a column.

    The text is empty if the feature has no values, so that any type fits.
    """
    if not feature.kinds and not feature.feature_list:
        return ""
    return f"{feature.name!r} ({', '.join(feature.kinds) or 'no values'}) is not in the schema"


def _problem(feature: FeatureSummary, column: Field) -> str:
    """Describe the way in which a feature differs from its column.

    The text is empty if the column can read the feature.
    """
    is_null = pa.types.is_null(column.type)
    wrong = [kind for kind in feature.kinds if is_null or kind != _kind(column)]
    # Empty lists of bytes are also read as null.
    if wrong and (feature.max_values or wrong != ["bytes"] or not is_null):
        records = ", ".join(f"{kind} in record {feature.kinds[kind].record:,}" for kind in wrong)
        return f"{feature.name!r} holds {records}, the column is {column.type}"
    if feature.feature_list != (column.depth == 2):
        what = "a feature list" if feature.feature_list else "no feature list"
        return f"{feature.name!r} is {what}, the column is {column.type}" if feature.kinds else ""
    if not column.depth and feature.max_values > 1:
        return f"{feature.name!r} holds up to {feature.max_values:,} values, the column is {column.type}"
    if column.kind == "string" and "bytes" in feature.kinds and not feature.utf8:
        return f"{feature.name!r} is not all UTF-8, the column is {column.type}"
    return ""
