"""Draw the rows of a mixture: each row comes from one of several sources, in exact proportions.

A mixture consists of sequences, as an epoch with ``elastic=`` does. Sequence ``c`` draws from the sequences
``c`` of all sources. Each row is the turn of one source, which follows from the weights and from how far each
source is behind its weight (its deficit), so a state contains no generator of random numbers. A source that
has no more rows begins its next pass.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_tfrecord.codec import Ints, choose_turns
from dask_tfrecord.errors import FileChangedError, Remedy, TFRecordError
from dask_tfrecord.feed.batch_statistics import Counters
from dask_tfrecord.feed.rows.epoch_order import (
    Fraction,
    Order,
    Plan,
    Span,
    rows_between,
    rows_of_sequence,
    stream,
    total_size,
)
from dask_tfrecord.feed.rows.mixed_source import MixedSource, first_deficits, sequence_length
from dask_tfrecord.feed.rows.resume_position import (
    State,
    Steps,
    begin_sequences,
    beginning_of_state,
    count_steps,
    describe,
    stored_spans,
)
from dask_tfrecord.feed.rows.sequence_reader import (
    Position,
    SequenceReader,
    beginning_of,
    in_order,
    interleaved,
    joined,
)
from dask_tfrecord.feed.rows.sources import RecordReader, WindowMemory


class Rest(NamedTuple):
    """The remaining rows of a sequence of a mixture.

    ``rows`` is the number of rows, and ``deficits`` are those of `choose_turns`. ``sources`` contains, for
    each source, the number of its pass, and the remaining rows of that pass.
    """

    rows: int
    deficits: list[int]
    sources: list[tuple[int, list[Span]]]

    @classmethod
    def of_state(cls, stored: Sequence[Any]) -> "Rest":
        rows, deficits, sources = stored
        return cls(rows, deficits, [(number, [Span(*one) for one in spans]) for number, spans in sources])

    @property
    def stored(self) -> list[Any]:
        """What a state stores."""
        return [self.rows, self.deficits, [[number, stored_spans(spans)] for number, spans in self.sources]]


class _Passes:
    """The rows of a source in one sequence: the rest of a pass, and then further passes.

    The passes end once they have ``limit`` rows in all, and the last shuffle window is complete.
    """

    def __init__(
        self, rows: Callable[[int], tuple[Order, list[Span]]], number: int, rest: list[Span], limit: int
    ) -> None:
        # A pass that has ended has no rows. The next pass begins after it.
        self.first, self._rest, self._rows, self._limit = number if rest else number + 1, rest, rows, limit

    def __iter__(self) -> Iterator[tuple[Order, list[Span]]]:
        order, spans = self._rows(self.first)
        number, spans, limit = self.first, self._rest or spans, self._limit
        yield order, rows_between(spans, 0, limit + order.most_rows)
        while limit > (size := total_size(spans)):
            number, limit = number + 1, limit - size
            order, spans = self._rows(number)
            yield order, rows_between(spans, 0, limit + order.most_rows)


class _Run(NamedTuple):
    """Steps whose rows are taken together.

    ``chains`` and ``positions`` contain an item for each source. ``left``, ``deficits`` and ``taken`` (for
    each source) describe the sequences before the first step. ``drawn[i, t, c]`` is the number of rows that
    the first ``t`` steps have drawn from source ``i`` in sequence ``c``.
    """

    chains: list[list[_Passes]]
    positions: list[Position]
    left: Ints
    deficits: Ints
    taken: list[Ints]
    drawn: Ints


class MixedAt(NamedTuple):
    """A position of a mixture: after ``step`` steps of a run, and before ``skip`` batches of other parts.

    ``returned`` contains the number of rows of each source in the batches so far. ``is_over`` is True if no
    batch follows in any part.
    """

    run: _Run
    step: int
    skip: int
    is_over: bool
    returned: Ints

    def remaining(self, weights: Ints) -> list[Rest]:
        """Return the rows of each sequence that remain after this position."""
        run, drawn = self.run, self.run.drawn[:, self.step]
        rows = drawn.sum(axis=0)
        deficits = run.deficits + rows[:, None] * weights - drawn.T * weights.sum()
        left = np.zeros_like(rows) if self.is_over else run.left - rows
        passes = [
            [
                (chain.first + link, spans)
                for chain, (link, spans) in zip(chains, position.remaining(taken + count), strict=True)
            ]
            for chains, position, taken, count in zip(
                run.chains, run.positions, run.taken, drawn, strict=True
            )
        ]
        each = zip(left.tolist(), deficits.tolist(), zip(*passes, strict=True), strict=True)
        return [Rest(count, late, list(of_sources)) for count, late, of_sources in each]


class MixedRows:
    """The rows of a mixture that one part of a shard returns in an epoch, after ``states``."""

    def __init__(
        self, plan: Plan, epoch: int, shard: Fraction, part: Fraction, states: Sequence[State] = ()
    ) -> None:
        source = plan.source
        assert isinstance(source, MixedSource)
        self._plan, self._source, self._epoch = plan, source, epoch
        self._weights = np.array(source.weights, np.int64)
        self._count = plan.elastic or shard[1]
        orders = [
            lru_cache(maxsize=8)(partial(self._order, one, weight))
            for one, weight in zip(source.plans, source.weights, strict=True)
        ]
        self._passes = [partial(_rows_of_pass, order_of, self._count) for order_of in orders]
        deficits = first_deficits(source, self._count, stream("mixture", plan.seed, epoch))
        rows = sequence_length(source, deficits)

        def whole(index: int) -> Rest:
            first = [
                (0, order.begin_small(spans)) for order, spans in (one(index, 0) for one in self._passes)
            ]
            return Rest(rows, deficits[index].tolist(), first)

        begun = [beginning_of_state(state, Rest.of_state) for state in states]
        for one in begun:
            _check_sequences(len(one.sequences) * one.shard.total, self._count, shard)
        self._beginning = begin_sequences(
            plan, self._count, shard, part, whole, begun, lambda rest: rest.rows
        )
        rests: list[Rest] = self._beginning.sequences
        self.steps = self._steps_of(rests, self._beginning.skip)
        self.start = MixedAt(
            self._run_at(rests),
            0,
            self._beginning.skip,
            self.steps.count == 0,
            np.zeros(len(self._weights), np.int64),
        )

    def _order(self, plan: Plan, weight: int, number: int) -> Order:
        """Return the order of a pass of a source. The weight divides the limits of its windows."""
        divisor = max(1, round((self._plan.elastic or 1) * sum(self._source.weights) / weight))
        return plan.order(self._epoch + (number << 32), divisor)

    def _steps_of(self, rests: Sequence[Rest], skip: int) -> Steps:
        size, stride = self._beginning.step, self._beginning.part.total
        left = np.array([rest.rows for rest in rests])
        most = int(left.max(initial=0))
        count = count_steps(most, most, size, self._plan.batch_mode)
        return Steps(size, left, count, skip, stride)

    def _run_at(self, rests: Sequence[Rest]) -> _Run:
        """Return a run without steps."""
        own = range(self._beginning.shard.number, self._count, self._beginning.shard.total)
        weights, total = self._source.weights, sum(self._source.weights)
        chains = [
            [
                # No more shuffle windows are read than the sequence needs.
                _Passes(
                    partial(rows, index),
                    *rest.sources[at],
                    (rest.rows * weight + rest.deficits[at]) // total + 1,
                )
                for index, rest in zip(own, rests, strict=True)
            ]
            for at, (rows, weight) in enumerate(zip(self._passes, weights, strict=True))
        ]
        return _Run(
            chains,
            [beginning_of(next(iter(one))[1] for one in of_source) for of_source in chains],
            np.array([rest.rows for rest in rests]),
            np.array([rest.deficits for rest in rests], np.int64),
            [np.zeros(len(rests), np.int64)] * len(chains),
            np.zeros((len(chains), 1, len(rests)), np.int64),
        )

    def state(self, at: MixedAt) -> State:
        remaining = [rest.stored for rest in at.remaining(self._weights)]
        return describe(self._plan, self._epoch, self._beginning, remaining, at.skip)

    def drawn(self, at: MixedAt) -> dict[str, int]:
        """Return how many rows of each source the batches before a position contain."""
        return dict(zip(self._source.names, at.returned.tolist(), strict=True))

    def tables(self, at: MixedAt, counters: Counters) -> Generator[tuple[pa.Table, MixedAt], None, None]:
        """Yield the batches after a position, each with the position after its last row."""
        rests = at.remaining(self._weights)
        run, steps = self._run_at(rests), self._steps_of(rests, at.skip)
        total, memory = sum(self._source.weights), WindowMemory()
        with ExitStack() as stack:
            readers = []
            for plan, weight, chains in zip(
                self._source.plans, self._source.weights, run.chains, strict=True
            ):
                reader = SequenceReader(
                    plan.source, self._plan.prefetch, chains, counters, weight / total, memory
                )
                readers.append(stack.enter_context(reader))
            for reader in readers:
                reader.begin()
            drawer = _Drawer(readers, self._weights, run, self._source)
            yield from drawer.batches(steps, at.returned)


class _Drawer:
    """Draw the rows of runs of steps from the readers of the sources."""

    def __init__(
        self, readers: Sequence[SequenceReader], weights: Ints, run: _Run, source: MixedSource
    ) -> None:
        self._readers, self._weights, self._run = readers, weights, run
        self._schema, self._names = source.schema.arrow, source.names
        self._deficits = run.deficits.copy()
        records = [reader.records for reader in readers if reader.records is not None]
        is_same = len(records) == len(readers) and all(
            one.decoder.equals(records[0].decoder) for one in records
        )
        # If all sources have the same features, their records are decoded together, in the order of the rows.
        self._records = records[0] if is_same else None

    def batches(self, steps: Steps, returned: Ints) -> Iterator[tuple[pa.Table, MixedAt]]:
        assert steps.count is not None
        step, own, together = 0, steps.skip, 1
        while own < steps.count:
            following = range(own, min(steps.count, own + together * steps.stride), steps.stride)
            numbers = np.arange(step, following[-1] + 1)
            is_kept = None if steps.stride == 1 else (numbers - own) % steps.stride == 0
            counts = steps.counts(numbers)
            run, table = self._take(counts, is_kept, self._run.left - steps.taken(step))
            own_steps, start = np.array(following) - step, 0
            of_batches = (run.drawn[:, own_steps + 1] - run.drawn[:, own_steps]).sum(axis=-1)
            totals = returned + of_batches.cumsum(axis=1).T
            sizes = counts[own_steps].sum(axis=1).tolist()
            for number, size, total in zip(following, sizes, totals, strict=True):
                is_over = number + 1 >= steps.count
                end = MixedAt(run, number + 1 - step, steps.stride - 1, is_over, total)
                yield table.slice(start, size), end
                start += size
            returned = totals[-1]
            del table
            step, own = following[-1] + 1, following[-1] + steps.stride
            # The first runs are short, so that the first batch comes early.
            most = self._rows_together() // (steps.size * steps.stride * counts.shape[1])
            together = max(1, min(2 * together, most))

    def _take(self, counts: Ints, is_kept: npt.NDArray[np.bool_] | None, left: Ints) -> tuple[_Run, pa.Table]:
        """Take the rows of some steps. ``counts`` contains the rows of each sequence (columns)."""
        deficits = self._deficits.copy()
        chosen, drawn = self._choose(counts)
        for name, reader, of_source in zip(self._names, self._readers, drawn, strict=True):
            least = of_source.sum(axis=0)
            if (reader.ready(least) < least).any():
                problem = f"a file of the source {name!r} has fewer rows than when the dataset was opened"
                raise FileChangedError(problem)
        before = np.zeros((len(drawn), 1, counts.shape[1]), np.int64)
        run = _Run(
            self._run.chains,
            [reader.position for reader in self._readers],
            left,
            deficits,
            [reader.taken for reader in self._readers],
            np.concatenate([before, drawn.cumsum(axis=1)], axis=1),
        )
        sources = chosen[interleaved(counts, is_kept)]
        places = np.empty(len(sources), np.int64)
        places[np.argsort(sources, kind="stable")] = np.arange(len(sources))
        if self._records is not None:
            return run, self._decode(self._records, drawn, is_kept, places)
        tables = [
            _conformed(reader.take(of_source, is_kept), self._schema)
            for reader, of_source in zip(self._readers, drawn, strict=True)
            if of_source.any()
        ]
        return run, tables[0] if len(tables) == 1 else in_order(joined(tables), places)

    def _decode(
        self, records: RecordReader, drawn: Ints, is_kept: npt.NDArray[np.bool_] | None, places: Ints
    ) -> pa.Table:
        """Decode the rows of all sources together, and order them by ``places``."""
        parts, rows, first = [], [], 0
        for reader, of_source in zip(self._readers, drawn, strict=True):
            parts += reader.take_ranges(of_source)
            rows.append(first + interleaved(of_source, is_kept))
            first += int(of_source.sum())
        return records.decode(parts, np.concatenate(rows)[places])

    def _choose(self, counts: Ints) -> tuple[npt.NDArray[np.int16], Ints]:
        """Choose the sources of some steps.

        Return the source of each row, one sequence after the other, and the number of rows that each step
        (second axis) draws from each source (first axis) in each sequence (third axis).
        """
        steps = np.arange(len(counts))
        drawn = np.empty((len(self._weights), *counts.shape), np.int64)
        chosen = []
        for index, of_sequence in enumerate(counts.T):
            found = choose_turns(self._weights, self._deficits[index], int(of_sequence.sum()))
            cells = found * np.int64(len(steps)) + np.repeat(steps, of_sequence)
            drawn[:, :, index] = np.bincount(cells, minlength=drawn[:, :, index].size).reshape(
                len(self._weights), -1
            )
            chosen.append(found)
        return np.concatenate(chosen), drawn

    def _rows_together(self) -> int:
        """Return the number of rows that are decoded together fastest."""
        shares = (self._weights / self._weights.sum()).tolist()
        sizes = [
            share / reader.rows_together
            for share, reader in zip(shares, self._readers, strict=True)
            if reader.rows_together
        ]
        return int(1 / sum(sizes)) if sizes else 1


def _rows_of_pass(
    order_of: Callable[[int], Order], count: int, index: int, number: int
) -> tuple[Order, list[Span]]:
    order = order_of(number)
    return order, rows_of_sequence(order.every_row.size, (index, count), "keep")


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns in the order of a schema."""
    return pa.Table.from_arrays([table[name] for name in schema.names], schema=schema)


def _check_sequences(found: int, wanted: int, shard: Fraction) -> None:
    """Raise if a state belongs to a mixture with a different number of sequences."""
    if found == wanted:
        return
    problem = f"the state belongs to a mixture of {found} sequences, and this one has {wanted}"
    if found % shard[1] == 0:
        raise TFRecordError(problem, Remedy("elastic", found, "continue the sequences"))
    advice = f"begin the epoch again with elastic={found * shard[1]}, so that the number of shards may change"
    raise TFRecordError(problem, advice)
