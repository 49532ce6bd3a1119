"""Define the source of a mixture: several datasets, the weight of each, and the columns that they share.

The numbers of rows are exact. The weights are integers, so the choice of the sources never accumulates a
rounding error.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from numbers import Rational, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import MAX_WEIGHTS, Ints, choose_turns
from dask_tfrecord.errors import Remedy, SchemaError, TFRecordError
from dask_tfrecord.feed.rows.sources import DatasetSource
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import Until
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.redaction import without_credentials

if TYPE_CHECKING:
    from dask_tfrecord.feed.rows.epoch_order import Plan

# The sequences of a mixture begin at turns of one choice that are at most this many turns apart in all.
_PHASES = 1 << 20


@dataclass(frozen=True)
class MixedSource:
    """The sources of a mixture. Batches draw ``weights[i] / sum(weights)`` of their rows from source ``i``.

    ``plans`` contains a plan for each source, whose batch size has no meaning. ``until`` says where an epoch
    ends.
    """

    plans: tuple["Plan", ...]
    names: tuple[str, ...]
    weights: tuple[int, ...]
    until: Until
    schema: Schema

    @property
    def fingerprint(self) -> list[Any]:
        return [plan.source.fingerprint for plan in self.plans]

    @property
    def version(self) -> list[Any]:
        return [plan.source.version for plan in self.plans]

    @property
    def counts(self) -> list[int]:
        """The number of rows of each source."""
        return [sum(plan.source.counts or ()) for plan in self.plans]

    @property
    def npieces(self) -> int:
        return len(self.plans)

    def sizes(self, sequences: int) -> tuple[Ints, Ints]:
        """Return the rows of each source in its shortest and in its longest sequence."""
        rows = np.array(self.counts, np.int64)
        for name, count in zip(self.names, rows.tolist(), strict=True):
            if count < sequences:
                problem = f"the source {name!r} of the mixture has {count:,} row{'s' * (count != 1)}"
                if not count:
                    raise TFRecordError(problem, "leave it out")
                raise TFRecordError(
                    f"{problem}, and cannot be divided into {sequences:,} sequences",
                    "take fewer shards or sequences, or leave it out",
                )
        return rows // sequences, -(-rows // sequences)


def is_mixture(source: Any) -> bool:
    """Return True for a mapping, and for a sequence of pairs of a source and a number."""
    if isinstance(source, Mapping):
        return True
    return (
        isinstance(source, list | tuple)
        and bool(source)
        and all(
            isinstance(one, list | tuple) and len(one) == 2 and isinstance(one[1], Real) for one in source
        )
    )


def mixed_source(sources: Any, until: Any, plan_one: Callable[[Any, int], "Plan"]) -> MixedSource:
    """Open the sources of a mixture. ``plan_one`` plans a source, given its index."""
    pairs = list(sources.items() if isinstance(sources, Mapping) else sources)
    if not pairs:
        raise TFRecordError("a mixture needs at least one source", 'pass for example {"train": 1}')
    names = _names([source for source, _ in pairs])
    weights = exact_weights({name: weight for name, (_, weight) in zip(names, pairs, strict=True)})
    end = checked_until(until)
    plans = tuple(
        _planned(name, partial(plan_one, source, index))
        for index, (name, (source, _)) in enumerate(zip(names, pairs, strict=True))
    )
    for name, plan in zip(names, plans, strict=True):
        if isinstance(plan.source, MixedSource):
            problem = f"the source {name!r} of the mixture is a mixture"
            raise TFRecordError(problem, "pass its sources, with their weights multiplied by its weight")
        if not isinstance(plan.source, DatasetSource):
            problem = f"the source {name!r} of the mixture is a Dask collection, whose rows are not counted"
            raise TFRecordError(problem, "write it with to_tfrecord, and pass the path")
    return MixedSource(plans, tuple(names), weights, end, _shared_schema(names, plans))


def _planned(name: str, plan_one: Callable[[], "Plan"]) -> "Plan":
    try:
        return plan_one()
    except TFRecordError as error:
        if repr(name) in str(error):
            raise
        raise error.replaced(problem=f"the source {name!r} of the mixture: {error.problem}") from None


def _names(sources: Sequence[Any]) -> list[str]:
    """Return a name for each source, which errors and `Batches.drawn` use."""
    names: list[str] = []
    for index, source in enumerate(sources, 1):
        place = getattr(source, "_root", source)
        first = place[0] if isinstance(place, list | tuple) and place else place
        if not isinstance(first, str | os.PathLike):
            names.append(f"source {index}")
            continue
        name = without_credentials(str(first)) + (", ..." if first is not place and len(place) > 1 else "")
        same = sum(one == name or one.startswith(f"{name} (") for one in names)
        names.append(f"{name} ({same + 1})" if same else name)
    return names


def exact_weights(given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return integers in the proportions of the weights of some sources.

    If a common denominator exceeds `MAX_WEIGHTS`, the proportions are rounded to multiples of
    1 / `MAX_WEIGHTS`.
    """
    found = []
    for name, weight in given.items():
        problem = f"the weight {weight!r} of the source {name!r}"
        if not isinstance(weight, Real) or isinstance(weight, bool | np.bool_):
            raise TFRecordError(f"{problem} is not a number", "pass a share, or a number of rows")
        if not math.isfinite(weight) or weight < 0:
            raise TFRecordError(f"{problem} is not positive", "pass a share, or a number of rows")
        if not weight:
            raise TFRecordError(f"{problem} is 0, so that no row would be drawn", "leave the source out")
        found.append(_fraction(weight))
    total = sum(found)
    common = math.lcm(*((one / total).denominator for one in found))
    weights = [round(one / total * min(common, MAX_WEIGHTS - len(found))) for one in found]
    if not all(weights):
        name = [*given][weights.index(0)]
        problem = f"the weight {given[name]!r} of the source {name!r} is less than a trillionth of the others"
        raise TFRecordError(problem, "leave the source out")
    return tuple(one // math.gcd(*weights) for one in weights)


def _fraction(weight: Real) -> Fraction:
    """Return the fraction that a program means, such as 7 / 10 for the float 0.7, and 1 / 3 for 1 / 3."""
    if isinstance(weight, Rational):
        return Fraction(weight)
    exact = Fraction(repr(float(weight)))
    simple = exact.limit_denominator(10**6)
    return simple if float(simple) == float(weight) else exact


def checked_until(until: Any) -> Until:
    if until is None:
        return "first"
    if until == "first" or until == "all":
        found: Until = until
        return found
    if isinstance(until, str):
        problem = f"unknown until {until!r}"
        raise TFRecordError(problem, "pass 'first', 'all', or a number of rows", keyword="until")
    return arguments.number("until", until)


def _shared_schema(names: Sequence[str], plans: Sequence["Plan"]) -> Schema:
    """Return the columns of the first source. Raise if the sources have different columns or types."""
    first: Schema = plans[0].source.schema
    for name, plan in zip(names, plans, strict=True):
        schema: Schema = plan.source.schema
        ours, theirs = set(first.names), set(schema.names)
        if ours != theirs:
            missing = [one for one in first.names if one not in theirs]
            more = [one for one in schema.names if one not in ours]
            problem = f"the sources of the mixture have other columns: {name!r} " + " and ".join(
                [f"lacks {', '.join(map(repr, missing))}"] * bool(missing)
                + [f"also has {', '.join(map(repr, more))}"] * bool(more)
            )
            both = [one for one in first.names if one in theirs]
            remedies = [Remedy("columns", both, "read the columns that all have")] if both else []
            raise SchemaError(f"{problem}, unlike {names[0]!r}", *remedies, feature=[*missing, *more][0])
        for field in first.arrow:
            found = schema.arrow.field(field.name).type
            if found != field.type:
                problem = (
                    f"the sources of the mixture have different types of the column {field.name!r}: "
                    f"{found} in {name!r}, and {field.type} in {names[0]!r}"
                )
                raise SchemaError(problem, *_mends(first, field.name, found), feature=field.name)
    return first


def _mends(schema: Schema, name: str, other: pa.DataType) -> list[Remedy]:
    """Suggest remedies if a column has different types in two sources."""
    ours = schema.arrow.field(name).type
    rest = [one for one in schema.names if one != name]
    remedies = [Remedy("columns", rest, "leave it out")] if rest else []
    if pa.types.is_integer(ours) and pa.types.is_integer(other):
        both = np.promote_types(ours.to_pandas_dtype(), other.to_pandas_dtype())
        if both.kind in "iu":  # no integer holds all values of int64 and uint64
            given = {name: pa.from_numpy_dtype(both)}
            remedies = [Remedy("schema", given, "read the same type from all"), *remedies]
    return remedies


def sequence_length(source: MixedSource, deficits: Ints) -> int:
    """Return the number of rows of each sequence of an epoch.

    ``deficits`` contains a row for each sequence: how far each source is behind its weight at the beginning.
    """
    sequences, total = len(deficits), sum(source.weights)
    shortest, longest = source.sizes(sequences)
    if isinstance(source.until, int):
        if source.until < sequences:
            problem = f"until={source.until} is less than one row for each of {sequences} sequences"
            raise TFRecordError(problem, Remedy("until", sequences, "draw one row for each"))
        return source.until // sequences
    # Python's integers do not overflow. The number of rows drawn from a source differs by less than one from
    # its share, given its first deficit.
    if source.until == "first":
        latest: list[int] = deficits.max(axis=0).tolist()
        ends = zip(shortest.tolist(), latest, source.weights, strict=True)
        most: list[int] = [(total * length - late) // weight for length, late, weight in ends]
        return max(1, min(most))
    earliest: list[int] = deficits.min(axis=0).tolist()
    ends = zip(longest.tolist(), earliest, source.weights, strict=True)
    least: list[int] = [-((late - total * length) // weight) for length, late, weight in ends]
    return max(least)


def first_deficits(source: MixedSource, sequences: int, random: np.random.Generator) -> Ints:
    """Return how far each source is behind its weight at the beginning of each sequence.

    The only sequence begins with 0. Several sequences begin at different turns of one choice, so that they do
    not all draw rows of the same source at the same step.
    """
    weights = np.array(source.weights, np.int64)
    found = np.zeros((sequences, len(weights)), np.int64)
    if sequences == 1:
        return found
    turns = int(min(weights.sum(), _PHASES))
    starts = ((np.arange(sequences) + random.random(sequences)) * turns / sequences).astype(np.int64)
    deficits = np.zeros(len(weights), np.int64)
    for index, count in enumerate(np.diff(starts, prepend=0).tolist()):
        choose_turns(weights, deficits, count)
        found[index] = deficits
    shuffled: Ints = random.permutation(found)
    return shuffled
