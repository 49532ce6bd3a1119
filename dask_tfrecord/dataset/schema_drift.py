"""How the features of some records differ from the columns, and what to pass to `read_tfrecord` for them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from dask_tfrecord.codec import Known, quoted, spelled
from dask_tfrecord.dataset.inferred_schema import type_of
from dask_tfrecord.errors import SchemaError, TFRecordError
from dask_tfrecord.files.damage import DamagePolicy
from dask_tfrecord.files.inference import AskedType, FeatureSummary, Sample, sample_split
from dask_tfrecord.files.options import SchemaEvidence, ReadOptions
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.model import Field, Schema


class Misfit(NamedTuple):
    """A feature that its column does not read, or that has no column.

    Attributes
    ----------
    name : str
        Name of the feature.
    problem : str
        How it differs, a sentence that begins with the name.
    type : pyarrow.DataType
        The type that reads what was seen.
    kinds : tuple of str
        The kinds that were seen.
    expected : str, optional
        The kind that the column has, None if it has none or if there is no column.
    elsewhere : bool
        Whether the column reads the context and the feature is a feature list, or the other way round.
    """

    name: str
    problem: str
    type: pa.DataType
    kinds: tuple[str, ...]
    expected: str | None
    elsewhere: bool


def misfits(sample: Sample, schema: Schema, known: Iterable[Known] = ()) -> list[Misfit]:
    """How what was seen differs from the columns. Features that are ``known`` need no column."""
    columns = {item.name: item for item in schema.fields}
    expected = set(known)
    found = []
    for seen in sample.features:
        column = columns.get(seen.name)
        elsewhere = column is not None and seen.feature_list != (column.depth == 2)
        if (column is None or elsewhere) and (seen.name, seen.feature_list) in expected:
            continue
        if problem := _unknown(seen) if column is None else _problem(seen, column):
            kind = None if column is None or pa.types.is_null(column.type) else _kind(column)
            found.append(Misfit(seen.name, problem, type_of(seen), tuple(seen.kinds), kind, elsewhere))
    return found


def explained(
    error: SchemaError,
    store: Store,
    split: Split,
    schema: Schema,
    options: ReadOptions,
    known: Sequence[Known] | None,
) -> SchemaError:
    """The error of a value that does not fit, with all columns of the split that differ.

    The advice reads all of them in one step. The split is read once more, to its end.
    """
    record_type: AskedType = "sequence_example" if options.is_type_inferred else schema.record_type
    look = replace(options, damage=DamagePolicy("skip"))
    try:
        sample = sample_split(store, split, options=look, record_type=record_type)
    except (TFRecordError, OSError):
        return error
    every = [(one.name, one.feature_list) for one in sample.features]
    found = misfits(sample, schema, every if known is None else known)
    this = next((one for one in found if one.name == error.feature), None)
    if this is None:
        return error
    problem = error.problem
    if this.expected is None and error.feature in schema.names:
        problem = f"the record holds {this.kinds[0]}, the column is null"
        if options.evidence is not None and error.feature not in options.evidence.given_kinds:
            problem += " because no record of the sample has a value for it"
    if others := [one.problem for one in found if one.name != this.name]:
        problem = f"{problem}; other columns of this file differ too: {'; '.join(others)}"
    explained = SchemaError(problem, feature=error.feature, advice=_advice(found, schema, options.evidence))
    return explained.located(path=error.path, record=error.record, offset=error.offset)


def _advice(found: Sequence[Misfit], schema: Schema, evidence: SchemaEvidence | None) -> str:
    """What reads the columns: in one step where that is possible."""
    names = Counter(one.name for one in found)
    clashing = [one.name for one in found if names[one.name] > 1 or _clashes(one, evidence)]
    types = {one.name: None if one.name in clashing else one.type for one in found}
    unknown = [name for name in types if name not in schema.names]
    if evidence is None and unknown:
        return 'pass extra="ignore" to leave it out, or use_snapshot=False and infer="all" to read it'
    if evidence is not None and not evidence.all_records:
        given = {
            name: type_ for name, type_ in types.items() if name in evidence.given_kinds or name in clashing
        }
        if len(given) < len(types):
            advice = f'pass infer="all"{f" and {_schema(given)}" if given else ""}'
            advice += f" to infer the columns from all records, or {_schema(types)} for what this file holds"
            return f'{advice}, or extra="ignore" to leave out what is no column' if unknown else advice
    advice = f"pass {_schema(types)}"
    if clashing:
        why = "no type reads values of two kinds, or from both the context and the feature lists"
        return f"{advice}, which leaves out what is None: {why}"
    if any(one.expected not in (None, *one.kinds) for one in found):
        return f"{advice} if all records hold this; leave the column out if they hold two kinds"
    return advice


def _clashes(one: Misfit, evidence: SchemaEvidence | None) -> bool:
    """Whether two kinds or two places were seen, here or in the sample."""
    if one.elsewhere and one.expected is not None:
        return True
    sampled: tuple[str | None, ...] = ()
    if evidence is not None and one.name not in evidence.untyped:
        sampled = evidence.given_kinds.get(one.name, (one.expected,))
    return len({*one.kinds, *sampled} - {None}) > 1


def _schema(types: dict[str, pa.DataType | None]) -> str:
    texts = (f"{quoted(name)}: {None if one is None else spelled(one)}" for name, one in types.items())
    return f"schema={{{', '.join(texts)}}}"


def _kind(column: Field) -> str:
    return "bytes" if column.kind == "string" else column.kind


def _unknown(seen: FeatureSummary) -> str:
    if not seen.kinds and not seen.feature_list:
        return ""
    return f"{seen.name!r} ({', '.join(seen.kinds) or 'no values'}) is not in the schema"


def _problem(seen: FeatureSummary, column: Field) -> str:
    """How a feature differs from its column; empty if it does not."""
    is_null = pa.types.is_null(column.type)
    wrong = [] if not seen.kinds else [kind for kind in seen.kinds if is_null or kind != _kind(column)]
    if wrong and (seen.max_values or wrong != ["bytes"] or not is_null):  # empty bytes lists are null, too
        places = ", ".join(f"{kind} in record {seen.kinds[kind].record:,}" for kind in wrong)
        return f"{seen.name!r} holds {places}, the column is {column.type}"
    if seen.feature_list != (column.depth == 2):
        what = "a feature list" if seen.feature_list else "no feature list"
        return f"{seen.name!r} is {what}, the column is {column.type}" if seen.kinds else ""
    if not column.depth and seen.max_values > 1:
        return f"{seen.name!r} holds up to {seen.max_values:,} values, the column is {column.type}"
    if column.kind == "string" and "bytes" in seen.kinds and not seen.utf8:
        return f"{seen.name!r} is not all UTF-8, the column is {column.type}"
    return ""
