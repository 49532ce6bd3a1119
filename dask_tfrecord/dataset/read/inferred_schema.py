"""Infer the columns of files without a stored schema, and find features that differ from their columns.

The columns are inferred from a sample of the records. If a feature differs from its column, the error
suggests arguments with which `read_tfrecord` can read it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from dask_tfrecord.codec import KIND_TYPES, FeatureKey, nested
from dask_tfrecord.dataset.read.columns import ReadRequest, check_given_names, feature_clash, payload_clash
from dask_tfrecord.dataset.read.layouts import SPLIT
from dask_tfrecord.errors import (
    IGNORE_FEATURES,
    Remedy,
    RemedyWarning,
    SchemaError,
    TFRecordError,
    warn_caller,
)
from dask_tfrecord.files.damage import DamagePolicy
from dask_tfrecord.files.file_options import SchemaEvidence
from dask_tfrecord.files.inference import AskedType, FeatureSummary, Sample, sample_split
from dask_tfrecord.files.record_file import TableReader
from dask_tfrecord.files.splits import Split
from dask_tfrecord.schema.feature_maps import in_map, maps_of, misplaced, stored_fields
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import is_list, list_depth
from dask_tfrecord.schema.struct_types import of_structs
from dask_tfrecord.schema.tfds import DescribedColumns

# The effect of a remedy that a read accepts and a snapshot does not.
INTEGERS_AS_FLOATS = "read integers as floats"

# The kinds of features that a column of floats can read.
_NUMBERS = {"int64", "float"}

# The only column of files with the record type "bytes".
PAYLOAD = pa.field("record", pa.binary())


class InferredColumns(NamedTuple):
    """The inferred or requested columns of the records, without partition columns.

    Records may contain the ``left_out_features``, which no column reads. ``evidence`` summarizes the sampled
    records for error messages. ``evidence`` is None if no schema was inferred.
    """

    schema: Schema
    left_out_features: frozenset[str] = frozenset()
    evidence: SchemaEvidence | None = None


def infer_columns(
    request: ReadRequest,
    partition_names: Sequence[str],
    take_sample: Callable[[], Sample],
    described: DescribedColumns | None = None,
) -> InferredColumns:
    """Combine the requested columns with the columns that are inferred from a sample of the records.

    Partition columns are not read from the records. If the caller gives all columns, the sample only decides
    between Examples and SequenceExamples, and which columns read feature lists. No sample is taken if
    ``described`` describes all columns. Types that the caller gives override the types in ``described``. Warn
    if records that parse as messages are read as bytes, or if ``schema=`` seems to misspell a name. Raise
    SchemaError if a requested column contradicts the sample, or if no type fits all values of a column.
    """
    requested, record_type, certain = request.requested, request.known_record_type, request.infer == "all"
    types = {name: type_ for name, type_ in requested.types.items() if name not in partition_names}
    if requested.is_whole_schema and not types:
        return InferredColumns(Schema((), "example" if record_type == "infer" else record_type))
    if requested.is_whole_schema and record_type == "bytes":
        return InferredColumns(Schema(requested.fields(types, record_type), record_type))
    if described is not None and not requested.is_whole_schema and record_type in ("infer", "example"):
        return _described_columns(request, partition_names, take_sample, described)
    given = _feature_types(types)
    sample = _with_given_types(take_sample(), types, request)
    if record_type == "example":
        sample = _without_feature_lists(sample, request, types)
    if requested.is_whole_schema:
        _warn_of_bytes(sample)
        one_map = request.options.extra == "other names"
        fields = requested.fields(types, sample.known_type)
        fields = placed(fields, sample, request.is_requested, one_map=one_map)
        return InferredColumns(Schema(fields, sample.known_type))
    if sample.record_type == "bytes":
        if PAYLOAD.name in partition_names and not types:
            raise payload_clash(PAYLOAD.name)
        schema = infer_schema(sample, types, partition_names)
        _warn_of_bytes(sample)
        return InferredColumns(schema)
    for feature in sample.features:
        name = feature.name
        if name in partition_names and name not in requested.hive_types and request.is_requested(name):
            raise feature_clash(name).replaced(path=feature.path)
    known = [*(feature.name for feature in sample.features), *partition_names]
    known += [
        name for name, type_ in types.items() if not _feature_types({name: type_}).keys().isdisjoint(known)
    ]
    warning = check_given_names([*types, *sorted(requested.left_out)], known, certain=certain)
    conflicts = _conflicts(sample, {*given, *partition_names, *requested.left_out})
    if errors := [error for name, error in conflicts.items() if request.is_requested(name)]:
        raise _joined(errors)
    ignored = requested.left_out | conflicts.keys()
    schema = infer_schema(sample, types, [*partition_names, *ignored], request.is_requested)
    if warning:
        warn_caller(warning)
    return InferredColumns(schema, ignored, _evidence(sample, given, all_records=certain))


def _described_columns(
    request: ReadRequest,
    partition_names: Sequence[str],
    take_sample: Callable[[], Sample],
    described: DescribedColumns,
) -> InferredColumns:
    """Combine the columns that a file describes with those that the caller requests.

    If the file describes a column without a known type, it is inferred from the sample.
    """
    requested = request.requested
    fields = {name: Field.in_form(name, form) for name, form in described.forms.items()}
    stored = {name: {name, *(feature.name for feature in item.features)} for name, item in fields.items()}
    names, features = [*fields, *described.unknown], set().union(described.unknown, *stored.values())
    given = {name: type_ for name, type_ in requested.types.items() if name not in partition_names}
    known = sorted({*features, *partition_names, SPLIT})
    names_given = [*given, *sorted(requested.left_out)]
    if warning := check_given_names(names_given, known, certain=not described.unknown):
        warn_caller(warning)
    for name in partition_names:
        if name in names and name not in requested.hive_types and request.is_requested(name):
            raise feature_clash(name)
    replaced = {*given, *requested.left_out, *partition_names}
    fields = {name: item for name, item in fields.items() if replaced.isdisjoint(stored[name])}
    if described.unknown:
        sample, others = take_sample(), replaced.union(*stored.values())
        undescribed = tuple(one for one in sample.features if one.name not in others)
        fields |= {item.name: item for item in infer_schema(replace(sample, features=undescribed), {}).fields}
    fields |= {item.name: item for item in requested.fields(given, "example")}
    ordered = {name: fields[name] for name in names if name in fields}
    schema = Schema(tuple((ordered | fields).values()))
    return InferredColumns(schema, frozenset(features - {one.name for one in schema.columns}))


def infer_schema(
    sample: Sample,
    given: Mapping[str, pa.DataType],
    excluded: Iterable[str] = (),
    is_requested: Callable[[str], bool] = lambda _: True,
) -> Schema:
    """Infer columns that can store the sampled values. ``given`` maps column names to the types that the
    caller gave. `placed` describes ``is_requested``.

    A feature becomes a list column if a sampled record has several values of it, and otherwise a scalar
    column. A feature list becomes a list of lists. A bytes feature becomes a string column if all sampled
    values are text. A feature without any value becomes a column of the null type. The columns are sorted by
    name, because protobuf defines no order of the features of a record. If no type fits all sampled values of
    some features, raise a SchemaError that names these features.
    """
    types = dict(given)
    if sample.record_type == "bytes":
        types = types or {PAYLOAD.name: PAYLOAD.type}
    record_type = sample.known_type
    given_fields = Schema.from_arrow(pa.schema(list(types.items())), record_type).fields if types else ()
    given_fields = placed(given_fields, sample, is_requested)
    fields = {feature.name: field for field in given_fields for feature in field.features}
    features = () if sample.record_type == "bytes" else _merged_maps(sample.features)
    names = set(excluded)
    if conflicts := _conflicts(sample, names | fields.keys()):
        raise _joined([*conflicts.values()])
    inferred = (
        fields.get(feature.name) or Field(feature.name, type_of(feature))
        for feature in features
        if feature.name not in names
    )
    found = {item.name: item for item in (*inferred, *given_fields)}
    return Schema(tuple(found[name] for name in sorted(found)), record_type)


def type_of(feature: FeatureSummary) -> pa.DataType:
    """Return the type of a column that can read the sampled values of a feature."""
    if not feature.kinds and not feature.feature_list:
        return pa.null()
    kind = next(iter(feature.kinds), "bytes")
    if kind == "bytes" and feature.text and feature.max_values:
        kind = "string"
    type_ = KIND_TYPES[kind]
    for _ in range(2 if feature.feature_list else int(feature.max_values > 1)):
        type_ = pa.list_(type_)
    return type_


def _structs(fields: Iterable[Field]) -> dict[str, pa.DataType]:
    return {item.name: item.type for item in fields if item.is_struct}


def _feature_types(types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Map each feature of the columns in ``types`` to the type of the feature. A struct column has one
    feature for each field.
    """
    found = (one for item in types.items() for one in Field(*item).family)
    return {one.name: pa.int64() if one.is_struct else one.type for one in found}


def placed(
    fields: Sequence[Field],
    sample: Sample,
    is_requested: Callable[[str], bool] = lambda _: True,
    *,
    one_map: bool = False,
) -> tuple[Field, ...]:
    """Return given columns, changed so that they read the map of the records that has their features: the
    context or the feature lists.

    Raise SchemaError for a column that is requested, but that cannot read this map. Without this error, all
    values of the column would be null. If ``one_map`` is True, also raise if both maps have the feature.
    """
    if sample.record_type == "bytes":
        return (*fields,)
    features = _merged_maps(sample.features)
    maps = maps_of((one.name, one.feature_list) for one in features)
    with_values = maps_of((one.name, one.feature_list) for one in features if one.kinds)
    found = tuple(in_map(item, maps) for item in fields)
    for item in filter(lambda one: is_requested(one.name), found):
        if one_map and len(with_values.get(item.name, ())) == 2:
            raise _in_both_maps(*(one for one in features if one.name == item.name))
        if (name := misplaced(item, with_values)) is not None:
            raise _misplaced(item, next(one for one in features if one.name == name))
    return found


def _misplaced(item: Field, feature: FeatureSummary) -> SchemaError:
    types = {one.name: one.type for one in item.family} | {item.name: item.type}
    return SchemaError(
        f"is {'a feature list' if feature.feature_list else 'a feature of the context'}, "
        f"not {types.get(feature.name, item.type)}",
        *of_structs([Remedy("schema", {feature.name: type_of(feature)}, "read it")], _structs([item])),
        **next(iter(feature.kinds.values()))._asdict(),
        feature=feature.name,
    )


def _without_feature_lists(sample: Sample, request: ReadRequest, types: Mapping[str, pa.DataType]) -> Sample:
    """Leave the feature lists out of a sample, because the caller asks for Examples, which have none.

    Raise SchemaError if the caller asks for all columns or for a column that is a feature list.
    """
    lists = {one.name: one for one in sample.features if one.feature_list and one.kinds}
    others = {one.name for one in sample.features if not one.feature_list}
    named = [*types, *(request.columns or ())]
    reads_all = request.columns is None and request.options.extra == "raise"
    for name, feature in lists.items():
        if reads_all or (name in named and name not in others):
            raise SchemaError(
                'is a feature list, which record_type="example" does not read',
                Remedy("record_type", "sequence_example", "read it"),
                Remedy("extra", "ignore", "read only the context of the records"),
                **next(iter(feature.kinds.values()))._asdict(),
                feature=name,
            )
    return replace(sample, features=tuple(one for one in sample.features if not one.feature_list))


def _with_given_types(sample: Sample, types: Mapping[str, pa.DataType], request: ReadRequest) -> Sample:
    """Correct the inferred record type of a sample if the given types require another."""
    record_type, stated = request.known_record_type, request.requested.record_type
    is_nested = stated == "sequence_example"
    # The form of a column says which features store nested lists in Examples.
    given = request.requested.given
    plain = {name: type_ for name, type_ in types.items() if name not in given or given[name].form is None}
    is_nested |= any(is_list(type_) and is_list(type_.value_type) for type_ in _feature_types(plain).values())
    # A user who passes types knows that the records contain features.
    if sample.reason_for_bytes and sample.features and types:
        sample = replace(sample, record_type="example", reason_for_bytes="")
        is_nested = is_nested or any(feature.feature_list for feature in sample.features)
    is_payload = len(types) == 1 and all(type_ in (pa.binary(), pa.string()) for type_ in types.values())
    if sample.record_type == "bytes" and record_type == "infer" and types and (stated or not is_payload):
        raise SchemaError(
            f"schema= names {', '.join(map(repr, types))}, but the records are no Examples"
            + (f": {sample.reason_for_bytes}" if sample.reason_for_bytes else ""),
            Remedy("schema", None),
            Remedy("record_type", "bytes", "read the payloads unparsed"),
        )
    # The type "example" was inferred, because no sampled record contains a feature list.
    if is_nested and record_type == "infer" and sample.known_type == "example":
        return replace(sample, record_type="sequence_example")
    return sample


def _warn_of_bytes(sample: Sample) -> None:
    if sample.reason_for_bytes:
        problem = f"the records do not look like Examples and are read as bytes: {sample.reason_for_bytes}"
        remedies = [
            Remedy("record_type", "bytes", "read them as bytes without this warning"),
            Remedy("record_type", "example", "parse them"),
            Remedy("record_type", "sequence_example", "parse them as sequence examples"),
        ]
        warn_caller(RemedyWarning(problem, remedies))


def _conflicts(sample: Sample, excluded: Iterable[str]) -> dict[str, SchemaError]:
    """Return an error for each feature that no column can read.

    No column can read a feature with values of two kinds, or a feature that occurs in both the context and
    the feature lists.
    """
    if sample.record_type == "bytes":
        return {}
    names = set(excluded)
    errors: dict[str, SchemaError] = {}
    previous: dict[str, FeatureSummary] = {}
    for feature in _merged_maps(sample.features):
        name = feature.name
        if name in names or name in errors:
            continue
        if len(feature.kinds) > 1:
            (kind, first), (other_kind, other) = list(feature.kinds.items())[:2]
            problem = f"holds {kind} here and {other_kind} in {other.path}, record {other.record:,}"
            found = _exclusion([name])
            if {*feature.kinds} == _NUMBERS:
                as_floats = {name: nested(pa.float64(), list_depth(type_of(feature)))}
                found["remedies"].append(Remedy("schema", as_floats, INTEGERS_AS_FLOATS))
            errors[name] = SchemaError(problem, **first._asdict(), feature=name, **found)
        elif name in previous:
            errors[name] = _in_both_maps(previous[name], feature)
        previous[name] = feature
    return errors


def _joined(errors: Sequence[SchemaError]) -> SchemaError:
    """Merge the errors of several features into one error. The remedy in the merged error leaves out the
    columns of all these features.
    """
    first, *others = errors
    if not others:
        return first
    more = "; ".join(f"feature {error.feature!r} {error.problem}" for error in others)
    return first.replaced(
        problem=f"{first.problem}; other features have the same problem: {more}",
        **_exclusion([str(error.feature) for error in errors]),
    )


def _exclusion(names: Sequence[str]) -> dict[str, Any]:
    effect = "leave the column out" if len(names) == 1 else "leave these columns out"
    remedy = Remedy("schema", dict.fromkeys(names), effect)
    return {"advice": "read files of one kind at a time, or only other columns", "remedies": [remedy]}


def _evidence(sample: Sample, given: Iterable[str], *, all_records: bool) -> SchemaEvidence:
    kinds: dict[str, tuple[str, ...]] = {}
    for feature in sample.features:
        kinds[feature.name] = (*kinds.get(feature.name, ()), *feature.kinds)
    given_kinds = {name: kinds.get(name, ()) for name in given}
    untyped = frozenset(name for name in kinds.keys() - given_kinds if not kinds[name])
    return SchemaEvidence(given_kinds, untyped, all_records)


def _merged_maps(features: Sequence[FeatureSummary]) -> list[FeatureSummary]:
    """Merge features that occur in both the context and the feature lists of SequenceExamples.

    A feature without values is dropped if one of the same name in the other map (context or feature lists)
    has some. A context feature without values is dropped if any feature list has the same name.
    """
    with_values = {feature.name for feature in features if feature.kinds}
    lists = {feature.name for feature in features if feature.feature_list}
    return [
        feature
        for feature in features
        if feature.kinds
        or not (feature.name in with_values or (feature.name in lists and not feature.feature_list))
    ]


def _in_both_maps(one: FeatureSummary, other: FeatureSummary) -> SchemaError:
    context, steps = (other, one) if one.feature_list else (one, other)
    record = next(iter(context.kinds.values()), None) or next(iter(steps.kinds.values()), None)
    position = record._asdict() if record else {"path": one.path}
    return SchemaError(
        "is both a feature of the context and a feature list",
        Remedy("extra", "ignore"),
        Remedy("schema", {one.name: type_of(context)}, "read the feature of the context"),
        Remedy("extra", "ignore"),
        Remedy("schema", {one.name: type_of(steps)}, "read the feature list"),
        Remedy("schema", {one.name: None}, "leave the column out"),
        **position,
        feature=one.name,
    )


class Drift(NamedTuple):
    """A feature that has no column, or whose values the column cannot read."""

    name: str
    problem: str  # An error text that begins with the name of the feature.
    type: pa.DataType  # The type of a column that could read the feature.
    kinds: tuple[str, ...]
    # The kind that the column reads, or None if the feature has no column or one of the null type.
    expected: str | None
    # True if the column reads the context but the feature is a feature list, or vice versa.
    is_in_other_map: bool
    # True if the feature is in the context of some records and in the feature lists of others.
    has_two_maps: bool


def find_drift(sample: Sample, schema: Schema, allowed: Iterable[FeatureKey] = ()) -> list[Drift]:
    """Return the sampled features that have no column or that differ from their columns. Features in
    ``allowed`` need no column.
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


def explained(error: SchemaError, reader: TableReader, split: Split) -> SchemaError:
    """Extend an error about one value: name all features of the split that do not fit their columns.

    If possible, the extended error suggests one remedy for all of the named features. To find the features,
    the function reads all records of the split a second time.
    """
    schema, options, allowed = reader.schema, reader.options, reader.known
    record_type: AskedType = "sequence_example" if options.is_type_inferred else schema.record_type
    lenient = replace(options, damage=DamagePolicy("skip"))
    try:
        sample = sample_split(reader.store, split, options=lenient, record_type=record_type)
    except (TFRecordError, OSError):
        return error
    if allowed is None:  # records may contain features without a column
        allowed = [(feature.name, feature.feature_list) for feature in sample.features]
    drifts = find_drift(sample, schema, allowed)
    drifts = [one for one in drifts if one.name not in options.integers or {*one.kinds} - _NUMBERS]
    drift = next((one for one in drifts if one.name == error.feature), None)
    if drift is None:
        return error.replaced(remedies=of_structs(error.remedies, _structs(schema.fields)))
    problem = error.problem
    if drift.expected is None and error.feature in schema.names:
        problem = f"the record holds {drift.kinds[0]}, the column is null"
        if options.evidence is not None and error.feature not in options.evidence.given_kinds:
            problem += " because no record of the sample has a value for it"
    if others := [one.problem for one in drifts if one.name != drift.name]:
        problem = f"{problem}; other columns of this file differ too: {'; '.join(others)}"
    remedies = of_structs(_remedies(drifts, schema, options.evidence), _structs(schema.fields))
    return error.replaced(problem=problem, remedies=remedies)


def _remedies(drifts: Sequence[Drift], schema: Schema, evidence: SchemaEvidence | None) -> list[Remedy]:
    """Return the arguments with which `read_tfrecord` can read all features in ``drifts``."""
    counts = Counter(drift.name for drift in drifts)
    unreadable = [drift.name for drift in drifts if counts[drift.name] > 1 or _is_unreadable(drift, evidence)]
    types = {drift.name: None if drift.name in unreadable else drift.type for drift in drifts}
    types |= {
        drift.name: nested(pa.float64(), list_depth(drift.type))
        for drift in drifts
        if drift.name not in unreadable and _all_kinds(drift, evidence) == _NUMBERS
    }
    without_column = [name for name in types if name not in schema.names]
    if evidence is None and without_column:
        ignored = IGNORE_FEATURES
        return [ignored, Remedy("use_snapshot", False), Remedy("read_options", {"infer": "all"}, "read it")]
    if evidence is not None and not evidence.all_records:
        given = {n: type_ for n, type_ in types.items() if n in evidence.given_kinds or n in unreadable}
        if len(given) < len(types):
            effect = "infer the columns from all records"
            found = [Remedy("read_options", {"infer": "all"}, "" if given else effect)]
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


def _is_unreadable(drift: Drift, evidence: SchemaEvidence | None) -> bool:
    """Return True if no single column type fits the feature both in this file and in the sampled files.

    No type fits a feature that has two kinds, except integers and floats, or that occurs in both the context
    and the feature lists.
    """
    if drift.has_two_maps or (drift.is_in_other_map and drift.expected is not None):
        return True
    kinds = _all_kinds(drift, evidence)
    return len(kinds) > 1 and kinds != _NUMBERS


def _all_kinds(drift: Drift, evidence: SchemaEvidence | None) -> set[str]:
    """Return the kinds of the feature in this file and in the sampled files."""
    sampled: tuple[str | None, ...] = ()
    if evidence is not None and drift.name not in evidence.untyped:
        sampled = evidence.given_kinds.get(drift.name, (drift.expected,))
    return {kind for kind in (*drift.kinds, *sampled) if kind is not None}


def _kind(column: Field) -> str:
    return "bytes" if column.kind == "string" else column.kind


def _no_column(feature: FeatureSummary) -> str:
    """Describe the problem of a feature without a column, or return "" if it has no values."""
    if not feature.kinds and not feature.feature_list:
        return ""
    return f"{feature.name!r} ({', '.join(feature.kinds) or 'no values'}) is not in the schema"


def _problem(feature: FeatureSummary, column: Field) -> str:
    """Describe how a feature differs from its column, or return "" if the column can read it."""
    is_null = pa.types.is_null(column.type)
    wrong = [kind for kind in feature.kinds if is_null or kind != _kind(column)]
    # A column of the null type can read empty lists of bytes.
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
