"""The columns that a sample of records shows: their types, and which of them contradict themselves."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from dask_tfrecord.codec import DECODED, quoted, spelled
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.files.inference import FeatureSummary, Sample
from dask_tfrecord.files.options import Guess
from dask_tfrecord.schema.model import Field, Schema
from dask_tfrecord.schema.storage_types import is_list

# The one column of records that are not messages.
PAYLOAD = pa.field("record", pa.binary())


def infer_schema(sample: Sample, given: Mapping[str, pa.DataType], without: Iterable[str] = ()) -> Schema:
    """The columns that hold what was sampled, except for those whose types are ``given``.

    A feature that never has more than one value becomes a scalar, a feature list a list of lists; bytes
    become strings if all are text. A feature without any value gets the null type.

    Raises
    ------
    SchemaError
        Naming all `conflicts`.
    """
    types = dict(given)
    if sample.record_type == "bytes":
        types = types or {PAYLOAD.name: PAYLOAD.type}
    record_type = sample.known_type
    known = Schema.from_arrow(pa.schema(list(types.items())), record_type).fields if types else ()
    fields = {field.name: field for field in known}
    features = () if sample.record_type == "bytes" else _told(sample.features)
    left_out = set(without)
    clashes = conflicts(replace(sample, features=tuple(features)), skip=left_out | types.keys())
    if clashes:
        raise refuse([*clashes.values()])
    inferred = {
        feature.name: fields.get(feature.name) or Field(feature.name, type_of(feature))
        for feature in features
        if feature.name not in left_out
    }
    return Schema(tuple((inferred | fields).values()), record_type)


def type_of(feature: FeatureSummary) -> pa.DataType:
    """The type that reads what was seen of a feature."""
    if not feature.kinds and not feature.feature_list:
        return pa.null()
    kind = next(iter(feature.kinds), "bytes")
    if kind == "bytes" and feature.text and feature.max_values:
        kind = "string"
    type_ = DECODED[kind]
    for _ in range(2 if feature.feature_list else int(feature.max_values > 1)):
        type_ = pa.list_(type_)
    return type_


def conflicts(sample: Sample, skip: Iterable[str] = ()) -> dict[str, SchemaError]:
    """What is wrong with the features that no column can hold: those of two kinds, or in two places."""
    skipped = set(skip)
    found: dict[str, SchemaError] = {}
    places: dict[str, FeatureSummary] = {}
    for feature in _told(sample.features):
        name = feature.name
        if name in skipped or name in found:
            continue
        if len(feature.kinds) > 1:
            (one, at), (other, elsewhere) = list(feature.kinds.items())[:2]
            problem = f"holds {one} here and {other} in {elsewhere.path}, record {elsewhere.record:,}"
            found[name] = SchemaError(problem, **at._asdict(), feature=name, advice=leave_out([name]))
        elif name in places:
            found[name] = _in_both_places(places[name], feature)
        places[name] = feature
    return found


def refuse(found: Sequence[SchemaError]) -> SchemaError:
    """One error for all conflicts, with the advice that gets past all of them."""
    first, *others = found
    if not others:
        return first
    names = [str(one.feature) for one in found]
    more = "; ".join(f"feature {one.feature!r} {one.problem}" for one in others)
    problem = f"{first.problem}; the same is wrong with others: {more}"
    error = SchemaError(problem, advice=leave_out(names))
    return error.located(path=first.path, record=first.record, offset=first.offset, feature=first.feature)


def guess_of(sample: Sample, given: Iterable[str], *, everything: bool) -> Guess:
    """What a sample says about columns, of which some are given."""
    kinds: dict[str, tuple[str, ...]] = {}
    for feature in sample.features:
        kinds[feature.name] = (*kinds.get(feature.name, ()), *feature.kinds)
    known = {name: kinds.get(name, ()) for name in given}
    return Guess(known, frozenset(name for name in kinds.keys() - known if not kinds[name]), everything)


def leave_out(names: Sequence[str]) -> str:
    """The advice for columns that no type reads."""
    given = ", ".join(f"{quoted(name)}: None" for name in names)
    what = "the column" if len(names) == 1 else "these columns"
    return (
        f"pass schema={{{given}}} to leave {what} out, columns= to read only other ones, "
        "or read files of one kind at a time"
    )


def check_places(sample: Sample, given: Mapping[str, pa.DataType]) -> None:
    """Refuse a type that looks for a feature list in the context, or the other way round: it finds nothing.

    Raises
    ------
    SchemaError
        Naming a record that has the feature, and the type that reads it.
    """
    names = Counter(feature.name for feature in sample.features)
    for feature in sample.features:
        type_ = given.get(feature.name)
        if type_ is None or not feature.kinds or names[feature.name] > 1:
            continue
        if (is_list(type_) and is_list(type_.value_type)) != feature.feature_list:
            _, at = next(iter(feature.kinds.items()))
            raise SchemaError(
                f"is {'a feature list' if feature.feature_list else 'a feature of the context'}, not {type_}",
                **at._asdict(),
                feature=feature.name,
                advice=f"pass schema={{{quoted(feature.name)}: {spelled(type_of(feature))}}}",
            )


def _told(features: Sequence[FeatureSummary]) -> list[FeatureSummary]:
    """The features; without those that have a value only in the other place, context or feature lists."""
    valued = {feature.name for feature in features if feature.kinds}
    lists = {feature.name for feature in features if feature.feature_list}
    return [
        feature
        for feature in features
        if feature.kinds
        or not (feature.name in valued or (feature.name in lists and not feature.feature_list))
    ]


def _in_both_places(one: FeatureSummary, other: FeatureSummary) -> SchemaError:
    context, steps = (other, one) if one.feature_list else (one, other)
    name = quoted(one.name)
    at = next(iter(context.kinds.values()), None) or next(iter(steps.kinds.values()), None)
    place = at._asdict() if at else {"path": one.path}
    return SchemaError(
        "is both a feature of the context and a feature list",
        **place,
        feature=one.name,
        advice=f'pass extra="ignore" and schema={{{name}: {spelled(type_of(context))}}} to read that of the '
        f"context, or schema={{{name}: {spelled(type_of(steps))}}} to read the list; "
        f"schema={{{name}: None}} leaves the column out",
    )
