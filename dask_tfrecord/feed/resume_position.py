"""Describe the remaining rows of an epoch, and divide these rows among any number of shards.

A state contains the spans of rows that one part of one shard has not yet returned. The states of all parts of
all shards together cover every remaining row of the epoch, so these rows can be divided anew.
"""

import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from dask_tfrecord.errors import Remedy, TFRecordError
from dask_tfrecord.feed.batch_sources import digest
from dask_tfrecord.feed.epoch_order import (
    Fraction,
    Order,
    Plan,
    Span,
    merged,
    rows_of_part,
    rows_of_shard,
    total_size,
)

State: TypeAlias = dict[str, Any]

logger = logging.getLogger(__name__)

_STATE_VERSION = 3

# Under this key, a state stores the checksum of all other values.
CHECKSUM = "checksum"


class Share(NamedTuple):
    """The share with the index ``number`` of some rows that are divided into ``total`` shares.

    ``whole`` is a hash of all divided rows and of the way in which they were divided. Shares with different
    hashes must not be mixed, because they may overlap or leave out rows.
    """

    number: int
    total: int
    whole: str


@dataclass(frozen=True)
class Beginning:
    """The start of an iteration: the shard, the part of the shard, and the rows to return, in order."""

    shard: Share
    part: Share
    spans: list[Span]


def describe(plan: Plan, epoch: int, begun: Beginning, remaining: Sequence[Span]) -> State:
    is_counted = plan.source.counts is not None
    if is_counted and plan.batch_mode == "drop" and total_size(remaining) < plan.batch_size:
        remaining = ()  # the incomplete last batch is dropped
    return sealed(
        {
            "version": _STATE_VERSION,
            "source": plan.source.fingerprint,
            "source_version": plan.source.version,
            "arguments": _arguments(plan),
            "epoch": epoch,
            "shard": list(begun.shard),
            "part": list(begun.part),
            "remaining": [[one for one in span if one is not None] for span in remaining],
        }
    )


def sealed(state: State) -> State:
    """Return a state with a checksum, by which `_is_sealed` detects that the state was changed."""
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
    return {
        "columns": plan.source.schema.names,
        "shuffle": plan.shuffle,
        "seed": plan.seed,
        "shuffle_buffer": plan.shuffle_buffer,
    }


def checked_states(plan: Plan, start: Any, epoch: int) -> tuple[Plan, list[State]]:
    """Validate ``start=``, and return a plan and a list of states.

    If the states belong to an older version of the dataset, the returned plan reads this version.
    """
    states = list(start) if isinstance(start, list | tuple) else [start]
    keys = {"version", "source", "source_version", "arguments", "epoch", "shard", "part", "remaining"}
    if not states or not all(isinstance(state, dict) and "version" in state for state in states):
        raise TFRecordError(
            "start= is not a state of iter_batches", "pass the `state` of its result, or a list of these"
        )
    if any(state["version"] != _STATE_VERSION for state in states):
        problem = "the state was taken with another version of the library"
        raise TFRecordError(problem, Remedy("start", None, "begin the epoch again"))
    if not all(_is_sealed(state, keys) for state in states):
        raise TFRecordError(
            "start= is not a state of iter_batches, or the state was changed", "pass its `state` unchanged"
        )
    if any(state["source"] != plan.source.fingerprint for state in states):
        plan = _older_plan(plan, states)
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


def _older_plan(plan: Plan, states: Sequence[State]) -> Plan:
    (version, source), *others = {(state["source_version"], state["source"]) for state in states}
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
        if value != given[name]:
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
    shard stopped. If the numbers of shards or parts have changed, the remaining rows are divided anew.
    """
    if not states:
        order.check_shards(shard[1])
        return _divided(plan, order, [order.every_row], shard, part)
    begun: dict[tuple[Share, Share], Beginning] = {}
    for state in states:
        one = _beginning(state)
        if begun.setdefault((one.shard, one.part), one) != one:
            raise _not_together(f"two different states of shard {one.shard.number}, part {one.part.number}")
    if any(one.shard.total != shard[1] for one in begun.values()):
        found = list(begun.values())
        _check_complete([one.shard for one in found], "shard")
        indices = sorted({one.shard.number for one in found})
        spans = [span for index in indices for span in _of_shard(found, index)]
        return _divided(plan, order, spans, shard, part)
    found = [one for one in begun.values() if one.shard.number == shard[0]]
    if not found:
        given = ", ".join(str(index) for index in sorted({one.shard.number for one in begun.values()}))
        raise TFRecordError(
            f"the state belongs to shard {given}, and not to shard {shard[0]} of {shard[1]}",
            "pass the state of the same shard, or a list of the states of all shards",
        )
    if len({one.shard for one in found}) > 1:
        raise _not_together(f"states of shard {shard[0]} of different divisions")
    for one in found:
        if one.part[:2] == part and not _is_cut_elsewhere(plan, found, part):
            return one
    return divide_parts(plan, order, found[0].shard, _of_shard(found, shard[0]), part)


def _is_cut_elsewhere(plan: Plan, found: Sequence[Beginning], part: Fraction) -> bool:
    """Return True if the states of all parts were taken with another batch size.

    Each part would then end with an incomplete batch, and not only the last one.
    """
    if plan.source.counts is None or len(found) < part[1]:
        return False
    *sizes, _ = [total_size(one.spans) for one in sorted(found, key=lambda one: one.part)]
    return any(size % plan.batch_size for size in sizes)


def _beginning(state: State) -> Beginning:
    spans = [Span(*span) for span in state["remaining"]]
    return Beginning(Share(*state["shard"]), Share(*state["part"]), spans)


def _of_shard(begun: Sequence[Beginning], index: int) -> list[Span]:
    parts = sorted((one.part, one.spans) for one in begun if one.shard.number == index)
    _check_complete([part for part, _ in parts], f"shard {index}, part")
    return [span for _, spans in parts for span in spans]


def _check_complete(shares: Sequence[Share], what: str) -> None:
    """Raise unless ``shares`` contains every share of one division, and no share of another division."""
    if len({share[1:] for share in shares}) > 1:
        raise _not_together(f"states of different divisions into {what}s")
    count = shares[0].total
    missing = sorted(set(range(count)) - {share.number for share in shares})
    if missing:
        raise TFRecordError(
            f"the state of {what} {missing[0]} of {count} is missing",
            "pass a list of the states of all shards and parts, because their numbers have changed",
        )


def _not_together(what: str) -> TFRecordError:
    return TFRecordError(
        f"there are {what}", "pass the states that all shards returned at the same step of one run"
    )


def _divided(plan: Plan, order: Order, spans: list[Span], shard: Fraction, part: Fraction) -> Beginning:
    of_shard = rows_of_shard(spans, shard, plan.source.counts is not None, plan.uneven)
    return divide_parts(plan, order, Share(*shard, _whole(spans, plan.uneven)), of_shard, part)


def divide_parts(plan: Plan, order: Order, shard: Share, spans: list[Span], part: Fraction) -> Beginning:
    """Return the rows of a part of a shard, whose remaining rows are ``spans``."""
    step = 1 if plan.source.counts is None else plan.batch_size
    rows = order.begin_small(rows_of_part(merged(spans), part, step))
    return Beginning(shard, Share(*part, _whole(spans, step)), rows)


def _whole(spans: list[Span], way: str | int) -> str:
    return digest([tuple(span) for span in spans], way)[:8]
