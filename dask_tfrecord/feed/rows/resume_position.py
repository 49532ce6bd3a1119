"""Describe the remaining rows of an epoch, and divide them among any number of shards.

A state contains the spans of rows that one part of one shard has not yet returned. The states of all parts of
all shards together cover every remaining row of the epoch, so these rows can be divided again.
"""

import json
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dask_tfrecord.codec import Ints
from dask_tfrecord.errors import Remedy, TFRecordError
from dask_tfrecord.feed.rows.epoch_order import (
    Fraction,
    Order,
    Plan,
    Span,
    merged,
    rows_of_sequence,
    rows_of_shard,
    rows_of_worker,
    total_size,
)
from dask_tfrecord.feed.rows.mixed_source import MixedSource
from dask_tfrecord.feed.rows.sources import digest
from dask_tfrecord.keywords.arguments import BatchMode

State: TypeAlias = dict[str, Any]

logger = logging.getLogger(__name__)

_STATE_VERSION = 4

# The fields of a state, besides the checksum.
_KEYS = ["version", "source", "source_version", "arguments", "epoch", "shard", "part"]
_KEYS += ["step", "skip", "remaining"]

# The key under which a state stores the checksum of its other values.
CHECKSUM = "checksum"


class Share(NamedTuple):
    """One of ``total`` shares into which some rows are divided. ``number`` is its index.

    ``whole`` is a hash of all divided rows and of the way in which they were divided. Shares with different
    hashes must not be mixed, because they may overlap or leave out rows.
    """

    number: int
    total: int
    whole: str


@dataclass(frozen=True)
class Beginning:
    """The start of an iteration: the shard, the part of the shard, and the rows to return.

    ``sequences`` contains the rows of each sequence, in order: its spans or, in a mixture, its remaining
    rows. Without ``elastic=``, there is one sequence, which contains the rows of the part. With ``elastic=``,
    all parts of a shard have the same sequences, and return their batches in turns: ``skip`` batches of other
    parts come before the first one of this part. A batch has up to ``step`` rows of each sequence.
    """

    shard: Share
    part: Share
    sequences: list[Any]
    step: int
    skip: int = 0

    @property
    def spans(self) -> list[Span]:
        return [span for spans in self.sequences for span in spans]


def describe(plan: Plan, epoch: int, begun: Beginning, remaining: list[Any], skip: int = 0) -> State:
    """Return a state. ``remaining`` contains what the state stores of each sequence."""
    return sealed(
        {
            "version": _STATE_VERSION,
            "source": plan.source.fingerprint,
            "source_version": plan.source.version,
            "arguments": _arguments(plan),
            "epoch": epoch,
            "shard": list(begun.shard),
            "part": list(begun.part),
            "step": begun.step,
            "skip": skip,
            "remaining": remaining,
        }
    )


def stored_spans(spans: Sequence[Span]) -> list[list[int]]:
    """Convert spans to the lists that a state stores."""
    return [[one for one in span if one is not None] for span in spans]


def sealed(state: State) -> State:
    """Return a state with a checksum, by which `_is_sealed` detects changes."""
    return {**state, CHECKSUM: _checksum(state)}


def _is_sealed(state: Any, keys: Collection[str]) -> bool:
    return (
        isinstance(state, dict) and state.keys() == {*keys, CHECKSUM} and state[CHECKSUM] == _checksum(state)
    )


def check_sealed(state: Any, keys: Collection[str], owner: str) -> State:
    """Return ``state``, or raise if it is not an unchanged state of the class ``owner``."""
    if not _is_sealed(state, keys):
        problem = f"this is not a state of {owner}, or the state was changed"
        raise TFRecordError(problem, "pass the result of state_dict unchanged")
    found: State = state
    return found


def _checksum(state: State) -> str:
    text = json.dumps({key: value for key, value in state.items() if key != CHECKSUM}, sort_keys=True)
    return digest(text)[:16]


def _arguments(plan: Plan) -> dict[str, Any]:
    """Return the arguments that a resumed iteration must repeat."""
    if isinstance(plan.source, MixedSource):
        return {
            "columns": plan.source.schema.names,
            "seed": plan.seed,
            "until": plan.source.until,
            "weights": list(plan.source.weights),
            "sources": [[one.shuffle, one.seed, one.shuffle_buffer] for one in plan.source.plans],
        }
    found = {
        "columns": plan.source.schema.names,
        "shuffle": plan.shuffle,
        "seed": plan.seed,
        "shuffle_buffer": plan.shuffle_buffer,
        "elastic": plan.elastic,
    }
    return found if plan.elastic is None else {**found, "uneven": plan.uneven}


def checked_states(plan: Plan, start: Any, epoch: int) -> tuple[Plan, list[State]]:
    """Validate ``start=``, and return a plan and a list of states.

    If the states belong to an older version of the dataset, the returned plan reads this version.
    """
    states = list(start) if isinstance(start, list | tuple) else [start]
    if not states:
        raise no_states(plan)
    if not all(isinstance(state, dict) and "version" in state for state in states):
        raise TFRecordError(
            "start= is not a state of iter_batches", "pass the `state` of its result, or a list of these"
        )
    if any(state["version"] != _STATE_VERSION for state in states):
        problem = "the state was taken with another version of the library"
        raise TFRecordError(problem, Remedy("start", None, "begin the epoch again"))
    if not all(_is_sealed(state, _KEYS) for state in states):
        raise TFRecordError(
            "start= is not a state of iter_batches, or the state was changed", "pass its `state` unchanged"
        )
    is_mixture = isinstance(plan.source, MixedSource)
    if any(isinstance(state["source"], list) != is_mixture for state in states):
        kinds = ("one source", "a mixture") if is_mixture else ("a mixture", "one source")
        raise TFRecordError("the state belongs to {}, and not to {}".format(*kinds), "pass the same sources")
    if any(state["source"] != plan.source.fingerprint for state in states):
        plan = (
            _older_mixture(plan, states)
            if is_mixture
            else _older_plan(plan, {(state["source_version"], state["source"]) for state in states})
        )
    for state in states:
        _check_arguments(plan, state)
        if state["epoch"] != epoch:
            problem = f"the state belongs to epoch {state['epoch']}, and this is epoch {epoch}"
            raise TFRecordError(problem, Remedy("epoch", state["epoch"], "continue this epoch"))
    return plan, states


def epoch_of(start: Any) -> int:
    """Return the epoch of a state or of the first of several states, or 0 if ``start`` is None."""
    state = start[0] if isinstance(start, list | tuple) and start else start
    epoch = state.get("epoch") if isinstance(state, dict) else None
    return epoch if isinstance(epoch, int) else 0


def _older_mixture(plan: Plan, states: Sequence[State]) -> Plan:
    """Return a plan that reads each source of a mixture in the version of the states."""
    mixture = plan.source
    assert isinstance(mixture, MixedSource)
    count = len(mixture.plans)
    if any(not isinstance(state["source"], list) or len(state["source"]) != count for state in states):
        raise TFRecordError("the state belongs to other sources", "pass the same mixture of sources")
    plans = []
    for index, one in enumerate(mixture.plans):
        found = {(state["source_version"][index], state["source"][index]) for state in states}
        is_same = found == {(one.source.version, one.source.fingerprint)}
        plans.append(one if is_same else _older_plan(one, found))
    return replace(plan, source=replace(mixture, plans=tuple(plans)))


def _older_plan(plan: Plan, found: set[tuple[Any, Any]]) -> Plan:
    """Return a plan for the version of a source that the states have read."""
    (version, source), *others = found
    problem = "the state belongs to another dataset, or the dataset was rewritten since"
    if others or version is None or version == plan.source.version:
        raise TFRecordError(problem, "pass the same source, or begin the epoch again without start=")
    if plan.open_version is None:
        problem = f"the state belongs to another dataset, or to version {version} of this dataset"
        raise TFRecordError(problem, Remedy("version", version, "continue with the rows of this version"))
    problem = f"the state belongs to another dataset, or to version {version}, which cannot be read"
    advice = "begin the next epoch without start="
    try:
        older = plan.open_version(version)
    except (TFRecordError, FileNotFoundError) as error:
        raise TFRecordError(f"{problem}: {error}", advice) from error
    if older.fingerprint != source:
        raise TFRecordError(problem, advice)
    logger.info(
        "the epoch continues with version %d of the dataset, whose newest version is %s",
        version,
        plan.source.version,
    )
    return replace(plan, source=older)


def _check_arguments(plan: Plan, state: State) -> None:
    given = _arguments(plan)
    for name, value in state["arguments"].items():
        if value == given[name]:
            continue
        if name in ("weights", "sources"):
            problem = f"the state belongs to a mixture with other {name}: {value!r}, and not {given[name]!r}"
            raise TFRecordError(problem, "pass the same sources, with the same weights and shuffles")
        raise TFRecordError(
            f"the state belongs to an iteration with other arguments: {name}={value!r}, "
            f"and not {name}={given[name]!r}",
            Remedy(name, value, "continue the iteration"),
        )


def begin(
    plan: Plan, order: Order, shard: Fraction, part: Fraction, states: Sequence[State] = ()
) -> Beginning:
    """Return the rows of a part of a shard, for a new epoch or for an epoch that continues after ``states``.

    If the numbers of shards and parts are unchanged, the iteration continues exactly where this part of this
    shard stopped. If the numbers of shards or parts have changed, the remaining rows are divided again.
    """
    if plan.elastic is not None:
        return _begin_elastic(
            plan, plan.elastic, order, shard, part, [beginning_of_state(one, _spans) for one in states]
        )
    if not states:
        order.check_shards(shard[1])
        return _divided(plan, order, [order.every_row], shard, part)
    shards, parts = _words(plan)
    begun: dict[tuple[Share, Share], Beginning] = {}
    for state in states:
        one = beginning_of_state(state, _spans)
        if begun.setdefault((one.shard, one.part), one) != one:
            of = f"{shards} {one.shard.number}, {parts} {one.part.number}"
            raise _not_together(plan, f"two different states of {of}")
    if any(one.shard.total != shard[1] for one in begun.values()):
        found = list(begun.values())
        _check_complete(plan, [one.shard for one in found], shards)
        indices = sorted({one.shard.number for one in found})
        spans = [span for index in indices for span in _of_shard(plan, found, index)]
        return _divided(plan, order, spans, shard, part)
    found = [one for one in begun.values() if one.shard.number == shard[0]]
    if not found:
        raise _of_other_shards(plan, [one.shard for one in begun.values()], shard)
    if len({one.shard for one in found}) > 1:
        raise _not_together(plan, f"states of {shards} {shard[0]} of different divisions")
    for one in found:
        if one.part[:2] == part and not _is_cut_elsewhere(plan, found, part):
            return one
    return _divide_parts(plan, order, found[0].shard, _of_shard(plan, found, shard[0]), part)


def _is_cut_elsewhere(plan: Plan, found: Sequence[Beginning], part: Fraction) -> bool:
    """Return True if the states of all parts were taken with a different batch size.

    Each part would then end with an incomplete batch, and not only the last one.
    """
    if plan.source.counts is None or len(found) < part[1]:
        return False
    *sizes, _ = [total_size(one.spans) for one in sorted(found, key=lambda one: one.part)]
    return any(size % plan.batch_size for size in sizes)


def _spans(stored: Sequence[Sequence[int]]) -> list[Span]:
    return [Span(*one) for one in stored]


def beginning_of_state(state: State, sequence_of: Callable[[Any], Any]) -> Beginning:
    """Return the position of a state. ``sequence_of`` converts what the state stores of a sequence."""
    sequences = [sequence_of(one) for one in state["remaining"]]
    return Beginning(Share(*state["shard"]), Share(*state["part"]), sequences, state["step"], state["skip"])


def _words(plan: Plan) -> tuple[str, str]:
    """Return the user's words for a shard and a part of it."""
    return ("rank", "worker") if _is_pytorch(plan) else ("shard", "part")


def _is_pytorch(plan: Plan) -> bool:
    return plan.surface.__qualname__.startswith("TFRecordBatches")


def no_states(plan: Plan) -> TFRecordError:
    return TFRecordError("the list of states is empty", f"pass the states of all {_words(plan)[0]}s")


def _of_shard(plan: Plan, begun: Sequence[Beginning], index: int) -> list[Span]:
    parts = sorted((one.part, one.spans) for one in begun if one.shard.number == index)
    _check_complete(plan, [part for part, _ in parts], "{0} {2}, {1}".format(*_words(plan), index))
    return [span for _, spans in parts for span in spans]


def _check_complete(plan: Plan, shares: Sequence[Share], what: str) -> None:
    """Raise unless ``shares`` contains every share of one division, and no share of another division."""
    found = sorted({share[1::-1] for share in shares})
    if found[0][0] != found[-1][0]:
        each = ", ".join(f"{what} {number} of {total}" for total, number in found)
        raise _not_together(plan, f"states of different numbers of {what}s: {each}")
    if len({share.whole for share in shares}) > 1:
        raise _not_together(plan, f"states of different divisions into {what}s")
    count = shares[0].total
    missing = sorted(set(range(count)) - {share.number for share in shares})
    if missing:
        raise TFRecordError(
            f"the state of {what} {missing[0]} of {count} is missing",
            "pass a list of the states of all {}s and {}s{}, because their numbers have changed".format(
                *_words(plan), " to load_state_dict of the dataset, not of a DataLoader" * _is_pytorch(plan)
            ),
        )


def _of_other_shards(plan: Plan, given: Collection[Share], shard: Fraction) -> TFRecordError:
    what = _words(plan)[0]
    numbers = ", ".join(str(number) for number in sorted({one.number for one in given}))
    return TFRecordError(
        f"the state belongs to {what} {numbers}, and not to {what} {shard[0]} of {shard[1]}",
        f"pass the state of the same {what}, or a list of the states of all {what}s",
    )


def _not_together(plan: Plan, what: str) -> TFRecordError:
    advice = f"pass the states that all {_words(plan)[0]}s returned at the same step of one run"
    return TFRecordError(f"there are {what}", advice)


def _divided(plan: Plan, order: Order, spans: list[Span], shard: Fraction, part: Fraction) -> Beginning:
    of_shard = rows_of_shard(spans, shard, plan.source.counts is not None, plan.uneven)
    return _divide_parts(plan, order, Share(*shard, _whole(spans, plan.uneven)), of_shard, part)


def _divide_parts(plan: Plan, order: Order, shard: Share, spans: list[Span], part: Fraction) -> Beginning:
    """Return the rows of a part of a shard, whose remaining rows are ``spans``."""
    step = 1 if plan.source.counts is None else plan.batch_size
    rows = order.begin_small(rows_of_worker(merged(spans), part, step))
    return Beginning(shard, Share(*part, _whole(spans, step)), [rows], plan.batch_size)


def _whole(spans: list[Span], way: str | int) -> str:
    return digest([tuple(span) for span in spans], way)[:8]


def _begin_elastic(
    plan: Plan, count: int, order: Order, shard: Fraction, part: Fraction, begun: Sequence[Beginning]
) -> Beginning:
    """Return the sequences of a shard, which never depend on the numbers of shards and parts.

    ``begun`` are the states from which the iteration continues.
    """

    def whole(index: int) -> list[Span]:
        return order.begin_small(rows_of_sequence(order.every_row.size, (index, count), plan.uneven))

    return begin_sequences(plan, count, shard, part, whole, begun, total_size)


def begin_sequences(
    plan: Plan,
    count: int,
    shard: Fraction,
    part: Fraction,
    whole: Callable[[int], Any],
    begun: Sequence[Beginning],
    size: Callable[[Any], int],
) -> Beginning:
    """Return the remaining rows of the sequences that a shard reads, of ``count`` in total.

    ``whole`` returns all rows of a sequence, given its index. ``size`` counts the remaining rows of a
    sequence. ``begun`` are the states from which the iteration continues.
    """
    own = range(shard[0], count, shard[1])
    step = rows_of_each(plan.batch_size, count, shard, _words(plan)[0])
    shares = Share(*shard, _whole([], plan.uneven)), Share(*part, _whole([], step))
    if not begun:
        return Beginning(*shares, [whole(index) for index in own], step, part[0])
    if len({(one.shard, one.part) for one in begun}) < len(set(map(repr, begun))):
        raise _not_together(plan, "different states of one {1} of one {0}".format(*_words(plan)))
    shards = {one.shard for one in begun}
    if any(one.total != shard[1] for one in shards):
        _check_complete(plan, list(shards), _words(plan)[0])
    elif shares[0] not in shards:
        raise _of_other_shards(plan, shards, shard)
    same = [one for one in begun if one.shard == shares[0]]
    if len({one.part for one in same}) == 1 < part[1] and same[0].part[:2] == part:
        return _of_worker(same[0], len(own), step)
    newest: dict[int, Any] = {}
    sizes = {index: size(whole(index)) for index in range(count)}
    for one in shards:
        indices = range(one.number, count, one.total)
        longer = [sizes[index] - sizes[0] for index in indices]  # the first sequence is the shortest one
        newest |= zip(indices, _newest(plan, begun, one, size, longer), strict=True)
    _check_steps(plan, sizes, {index: sizes[index] - size(rest) for index, rest in newest.items()})
    return Beginning(*shares, [newest[index] for index in own], step, part[0])


def _of_worker(begun: Beginning, sequences: int, step: int) -> Beginning:
    """Continue with the state of one of several workers, which does not say what the others have returned."""
    if begun.step != step:
        size = begun.step * sequences
        number, total, _ = begun.part
        raise TFRecordError(
            f"the state of worker {number} of {total} was taken with batch_size={size}",
            "pass the states of all workers to load_state_dict of the dataset",
            Remedy("batch_size", size, "continue this worker"),
        )
    return begun


def _newest(
    plan: Plan, begun: Sequence[Beginning], shard: Share, size: Callable[[Any], int], longer: Sequence[int]
) -> list[Any]:
    """Return the sequences of a shard in the state of the part that is furthest on.

    Raise if a part has not returned one of its batches before this position. ``longer`` counts the rows by
    which each sequence is longer than the shortest one. Such rows are not in every step of an epoch.
    """
    parts = [one for one in begun if one.shard == shard]
    _check_complete(plan, [one.part for one in parts], "{0} {2}, {1}".format(*_words(plan), shard.number))
    newest: list[Any] = min(parts, key=lambda one: sum(map(size, one.sequences))).sequences
    for one in parts:
        passed = [
            size(old) - max(size(new), more)
            for old, new, more in zip(one.sequences, newest, longer, strict=True)
        ]
        if any(rows - one.skip * one.step >= one.step for rows in passed):
            raise _not_together(plan, f"states of different steps of {_words(plan)[0]} {shard.number}")
    return newest


@dataclass(frozen=True)
class Steps:
    """The steps of an iteration: a step takes ``size`` rows from each sequence, or what is left of it.

    ``left`` contains the number of rows of each sequence, and ``count`` the number of steps. Both are None if
    the rows are not counted. The iteration returns the rows of each ``stride``-th step, after ``skip`` steps.
    """

    size: int
    left: Ints | None
    count: int | None
    skip: int = 0
    stride: int = 1

    @property
    def batches(self) -> int | None:
        return None if self.count is None else len(range(self.skip, self.count, self.stride))

    @property
    def rows(self) -> int | None:
        """The number of rows that the iteration returns."""
        if self.count is None or self.left is None:
            return None
        full = min(self.count, int(self.left.min(initial=0)) // self.size)
        rows = len(range(self.skip, full, self.stride)) * self.size * len(self.left)
        others = np.arange(self.skip, self.count, self.stride)
        others = others[others >= full]
        return rows + int(self.counts(others).sum())

    def taken(self, step: int) -> Ints:
        """Return the number of rows of each sequence before a step."""
        assert self.left is not None
        return np.minimum(self.left, step * self.size)

    def counts(self, steps: Ints) -> Ints:
        """Return the number of rows of each sequence (columns) at some steps (rows)."""
        assert self.left is not None
        counts: Ints = np.clip(self.left - steps[:, None] * self.size, 0, self.size)
        return counts


def steps_of(plan: Plan, order: Order, begun: Beginning) -> Steps:
    """Return the steps of an iteration whose batches have the size ``plan.batch_size``."""
    if not order.is_counted:
        return Steps(plan.batch_size, None, None)
    left = np.array([total_size(spans) for spans in begun.sequences])
    size, shortest, turns = plan.batch_size, int(left.max(initial=0)), (0, 1)
    if plan.elastic is not None:
        size = begun.step
        turns = begun.skip, begun.part.total
        rows = partial(rows_of_sequence, order.every_row.size, uneven=plan.uneven)
        sizes = [total_size(rows((index, plan.elastic))) for index in (0, begun.shard.number)]
        shortest = max(0, sizes[0] - (sizes[1] - int(left[0])))
    count = count_steps(shortest, int(left.max(initial=0)), size, plan.batch_mode)
    return Steps(size, left, count, *turns)


def count_steps(shortest: int, longest: int, size: int, batch_mode: BatchMode) -> int:
    """Return how often ``size`` rows can be taken from sequences, given the shortest and the longest one."""
    return shortest // size if batch_mode == "drop" else -(-longest // size)


def _check_steps(plan: Plan, sizes: dict[int, int], taken: dict[int, int]) -> None:
    """Raise unless the same number of rows was taken from each sequence, or all rows of a shorter one."""
    newest = max(taken.values())
    if any(one != min(newest, sizes[index]) for index, one in taken.items()):
        raise _not_together(plan, "states of different steps")


def rows_of_each(batch_size: int, count: int, shard: Fraction, what: str = "shard") -> int:
    """Return how many rows of each sequence a batch of one of several shards contains.

    ``what`` is what the user calls a shard.
    """
    if count % shard[1]:
        fitting = [str(one) for one in range(1, count + 1) if count % one == 0]
        problem = f"{shard[1]} {what}s cannot share {count} sequences equally"
        raise TFRecordError(problem, f"read {', '.join(fitting[:-1])} or {fitting[-1]} {what}s")
    own = count // shard[1]
    rows, rest = divmod(batch_size, own)
    if rest:
        each = f"each of {shard[1]} {what}s" if shard[1] > 1 else f"one {what}"
        problem = (
            f"elastic={count} gives {each} {own} sequences, "
            f"and a batch of {batch_size} rows is no multiple of {own}"
        )
        sizes = [size * own for size in (rows, rows + 1) if size]
        together = [f"take {size * shard[1]} rows on all {what}s together" for size in sizes]
        given = zip(sizes, together, strict=True)
        raise TFRecordError(problem, *[Remedy("batch_size", size, effect) for size, effect in given])
    return rows
