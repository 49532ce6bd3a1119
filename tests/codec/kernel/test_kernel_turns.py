"""Turns by weights: the kernel's choices equal Tijdeman's algorithm in exact fractions, at any cut of calls.

Modules: codec.
"""

from fractions import Fraction
from math import floor

import numpy as np
import pytest

from dask_tfrecord.codec import choose_turns

_LARGEST = 1 << 40


def tijdeman(weights: list[int], count: int) -> list[int]:
    """Choose with exact fractions, as in Discrete Mathematics 32 (1980), with ties for the first source."""
    shares = [Fraction(weight, sum(weights)) for weight in weights]
    least = Fraction(1, max(1, 2 * len(weights) - 2))
    chosen: list[int] = []
    counts = [0] * len(weights)
    for turn in range(1, count + 1):
        late = [share * turn - done for share, done in zip(shares, counts, strict=True)]
        allowed = [number for number, one in enumerate(late) if one >= least]
        best = min(allowed, key=lambda number: floor((1 - least - late[number]) / shares[number]))
        counts[best] += 1
        chosen.append(best)
    return chosen


def random_weights(seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    return random.integers(1, 10 ** int(random.integers(1, 10)), random.integers(1, 9)).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_turns_equal_the_algorithm_in_fractions(seed: int) -> None:
    weights = random_weights(seed)
    deficits = np.zeros(len(weights), np.int64)
    assert choose_turns(np.array(weights), deficits, 300).tolist() == tijdeman(weights, 300)


@pytest.mark.parametrize(
    "weights",
    [
        [1],
        [1, 1],
        [7, 3],
        [1, _LARGEST - 1],
        [_LARGEST - 2, 1, 1],
        [1] * 50 + [10_000],
        [3, 5, 7, 11, 13],
        [123_456_789, 987_654, 55],
    ],
    ids=str,
)
def test_each_source_is_within_one_turn_of_its_weight_at_every_prefix(weights: list[int]) -> None:
    deficits = np.zeros(len(weights), np.int64)
    turns = choose_turns(np.array(weights), deficits, 5000)
    counts = np.cumsum(turns[:, None] == np.arange(len(weights)), axis=0)
    total = sum(weights)
    for turn in [*range(1, 200), *range(200, 5000, 97)]:  # Python's integers do not overflow
        late = [
            weight * turn - total * int(done) for weight, done in zip(weights, counts[turn - 1], strict=True)
        ]
        assert max(map(abs, late)) < total
    done = counts[-1].tolist()
    assert deficits.tolist() == [
        weight * 5000 - total * one for weight, one in zip(weights, done, strict=True)
    ]


def test_turns_do_not_depend_on_how_calls_divide_them() -> None:
    weights = np.array([5, 1, 90, 17])
    whole = np.zeros(4, np.int64)
    turns = choose_turns(weights, whole, 1000)
    parts, found = np.zeros(4, np.int64), []
    for count in (0, 1, 2, 97, 400, 500):
        found += choose_turns(weights, parts, count).tolist()
    assert found == turns.tolist()
    assert parts.tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("weights", "deficits", "problem"),
    [
        ([], [], "number of sources"),
        ([1, 0], [0, 0], "not positive"),
        ([_LARGEST, 1], [0, 0], "too large"),
        ([1, 1], [0], "each source"),
        ([1, 1], [2, -2], "a deficit is too large"),
        ([1, 1], [1, 0], "sum to 0"),
        ([10, 10, 10], [29, -29, 0], "earlier call"),
    ],
)
def test_turns_refuse_weights_and_deficits_that_lead_nowhere(
    weights: list[int], deficits: list[int], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        choose_turns(np.array(weights, np.int64), np.array(deficits, np.int64), 100)
