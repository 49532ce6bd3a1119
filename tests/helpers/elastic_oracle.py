"""What elastic epochs and mixtures promise, in plain Python, and random configurations of them.

A sequence is the list of its rows, in their order. Ranks, workers, batch sizes and resumes decide only who
returns which of these rows, and `batch_of` computes it.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from dask_tfrecord.feed.batches import Batches


def ranges(rows: int, count: int, uneven: str) -> list[range]:
    """Return the positions of the rows of each sequence in the order of an epoch."""
    found = []
    for number in range(count):
        first, last = rows * number // count, rows * (number + 1) // count
        if uneven == "drop":
            last = first + rows // count
        elif uneven == "pad":
            longest = -(-rows // count)
            first = min(first, rows - longest)
            last = first + longest
        found.append(range(first, last))
    return found


@dataclass(frozen=True)
class Elastic:
    """The sequences of an epoch. ``done`` rows of each sequence were returned before."""

    sequences: list[list[int]]
    done: int = 0

    def sequences_of(self, rank: int, ranks: int) -> list[list[int]]:
        return self.sequences[rank::ranks]

    def steps(self, rank: int, ranks: int, each: int, mode: str) -> int:
        """Return the number of batches of a rank. Each batch takes ``each`` rows of each sequence."""
        every = [max(0, len(one) - self.done) for one in self.sequences]
        if mode == "drop":
            return min(every) // each
        return -(-max(every[rank::ranks]) // each)

    def batch_of(self, rank: int, ranks: int, each: int, step: int) -> list[int]:
        first = self.done + step * each
        return [row for one in self.sequences_of(rank, ranks) for row in one[first : first + each]]

    def batches(
        self, rank: int, ranks: int, worker: int, workers: int, each: int, mode: str
    ) -> list[list[int]]:
        """Return the batches of a worker, which takes turns with the other workers of its rank."""
        steps = range(worker, self.steps(rank, ranks, each, mode), workers)
        return [self.batch_of(rank, ranks, each, step) for step in steps]

    def after(self, steps: int, each: int, mode: str) -> "Elastic":
        """Return what is left after some steps. Rows that were dropped never come back."""
        done = self.done + steps * each
        shortest = min(map(len, self.sequences))
        if mode == "drop" and shortest - done < each:
            done = max(map(len, self.sequences))
        return Elastic(self.sequences, done)

    def rest(self) -> list[int]:
        return [row for one in self.sequences for row in one[self.done :]]


def in_order(rows: list[int], counts: Sequence[int], seed: int | None, epoch: int) -> list[int]:
    """Return rows in the order of the pieces of an epoch, which `numpy.random` shuffles with a seed."""
    if seed is None:
        return rows
    key = np.random.SeedSequence(seed, spawn_key=(0, epoch))
    starts = np.concatenate([[0], np.cumsum(counts)])
    pieces = np.random.default_rng(key).permutation(len(counts))
    return [row for piece in pieces for row in rows[starts[piece] : starts[piece + 1]]]


# -- Random configurations -----------------------------------------------------------------------------------

SEQUENCES = (1, 2, 3, 4, 6, 8, 12, 24)


def divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


@dataclass(frozen=True)
class Part:
    """A part of an epoch between two interruptions: who reads it, and how many steps."""

    ranks: int
    workers: int
    each: int  # rows of each sequence in a batch
    steps: int
    resumes: str = "all"  # from the states of all ranks, of "rank", or of this "worker" alone

    def batch_size(self, sequences: int) -> int:
        return self.each * (sequences // self.ranks)


@dataclass(frozen=True)
class Configuration:
    """An elastic epoch and its interruptions."""

    form: str
    sequences: int
    options: dict[str, Any]
    epoch: int
    parts: list[Part] = field(default_factory=list)


def configuration(
    seed: int, forms: Sequence[str], sizes: dict[str, int], *, most_parts: int = 4
) -> Configuration:
    """Return the configuration with this seed. ``sizes`` has the number of rows of each form."""
    draw = random.Random(seed)
    form = draw.choice(list(forms))
    sequences = draw.choice([one for one in SEQUENCES if one <= sizes[form]])
    shuffle = draw.choice([None, False, True, "buffer", "blocks"])
    options: dict[str, Any] = {
        "shuffle": shuffle,
        "uneven": draw.choice(["keep", "drop", "pad"]),
        "batch_mode": draw.choice(["keep", "drop"]),
        "prefetch": draw.choice([None, 0, 1, 3, "1 KiB"]),
        "columns": draw.choice([None, ["id"]]),
    }
    if shuffle:
        options["seed"] = draw.choice([0, 7])
    if shuffle in (True, "buffer"):
        options["shuffle_buffer"] = draw.choice([1, 5, 40, 1000, 65_536])
    return Configuration(
        form,
        sequences,
        options,
        draw.choice([0, 0, 1, 5]),
        list(_parts(draw, sequences, draw.randint(1, most_parts))),
    )


def _parts(draw: random.Random, sequences: int, count: int) -> Iterator[Part]:
    before = None
    for _ in range(count):
        ranks, workers = draw.choice(divisors(sequences)), draw.choice([1, 1, 2, 3])
        each = draw.choice([1, 2, 3, 7, 20])
        steps = draw.choice([0, 1, 2, 3, 5, 11])
        resumes = draw.choice(["all", "all", "rank", "worker"])
        if before and resumes != "all":
            ranks = before.ranks
        if before and resumes == "worker":
            workers, each = before.workers, before.each
        before = Part(ranks, workers, each, steps, resumes)
        yield before


# -- Runs ---------------------------------------------------------------------------------------------------


def check_chain(plan_of: Callable[[int], Any], config: Configuration, oracle: Elastic) -> None:
    """Compare each batch of each part of an epoch, and the rest of the epoch, with the oracle.

    ``plan_of`` returns the plan for a batch size.
    """
    mode, epoch, count = config.options["batch_mode"], config.epoch, config.sequences
    states: dict[tuple[int, int], Any] = {}
    draw, turned = random.Random(len(config.parts)), 0
    for part in [*config.parts, Part(draw.choice(divisors(count)), draw.choice([1, 2]), 4, 1 << 30)]:
        plan = plan_of(part.batch_size(count))
        turned = turned if part.resumes == "worker" else 0
        taken: dict[tuple[int, int], Any] = {}
        for rank in range(part.ranks):
            for worker in range(part.workers):
                start = None
                if states:
                    shares = [
                        share
                        for share in states
                        if part.resumes == "all"
                        or (share[0] == rank and (part.resumes == "rank" or share[1] == worker))
                    ]
                    draw.shuffle(shares)
                    start = json.loads(json.dumps([states[share] for share in shares]))
                batches = Batches(plan, epoch, (rank, part.ranks), (worker, part.workers), start)
                turn = (worker - turned) % part.workers
                expected = oracle.batches(rank, part.ranks, turn, part.workers, part.each, mode)
                assert len(batches) == len(expected)
                assert batches.rows == sum(map(len, expected))
                steps = range(turn, part.steps, part.workers)
                found = [batch["id"].to_pylist() for _, batch in zip(steps, batches, strict=False)]
                assert found == expected[: len(steps)]
                if len(found) == len(expected):
                    assert next(batches, None) is None
                taken[rank, worker] = batches.state
                batches.close()
        oracle, states = oracle.after(part.steps, part.each, mode), taken
        turned = (turned + part.steps) % part.workers
    assert oracle.rest() == []


# -- Mixtures ------------------------------------------------------------------------------------------------


def worst_distance(chosen: Sequence[int], weights: Sequence[Fraction]) -> Fraction:
    """Return how far the rows of a source are from its share, in any prefix of a mixture."""
    total, counts, worst = sum(weights), [0] * len(weights), Fraction(0)
    for number, source in enumerate(chosen, 1):
        counts[source] += 1
        worst = max(
            worst,
            *(abs(count - weight * number / total) for count, weight in zip(counts, weights, strict=True)),
        )
    return worst


def tijdeman(weights: Sequence[Fraction], count: int) -> list[int]:
    """Return the choices of R. Tijdeman's algorithm, which keeps each source within 1 - 1 / (2k - 2) rows."""
    total, sources = sum(weights), range(len(weights))
    shares = [weight / total for weight in weights]
    if len(shares) == 1:
        return [0] * count
    slack, counts, chosen = 1 - Fraction(1, 2 * len(shares) - 2), [0] * len(shares), []
    for number in range(1, count + 1):
        due = [one for one in sources if shares[one] * number - counts[one] >= 1 - slack]
        # The first row by which the source would be more than `slack` behind if it got nothing.
        nearest = min(due, key=lambda one: ((counts[one] + slack) / shares[one], one))
        counts[nearest] += 1
        chosen.append(nearest)
    return chosen


def rows_of_mixture(until: str | int, rows: Sequence[int], weights: Sequence[Fraction]) -> int:
    """Return the rows of a mixture of one sequence whose sources have these numbers of rows."""
    total = sum(weights)
    if isinstance(until, int):
        return until
    reached = [Fraction(length) * total / weight for length, weight in zip(rows, weights, strict=True)]
    return int(min(reached)) if until == "first" else -int(-max(reached) // 1)
