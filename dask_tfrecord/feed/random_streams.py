"""Give each use of randomness in feeds a stream of its own, so that no two orders depend on each other."""

from typing import Literal, get_args

import numpy as np

# What the numbers of a stream order. The position in this list is a part of the key of the stream.
Use = Literal["pieces", "window", "rows", "files", "records"]


def stream(use: Use, seed: int, *key: int) -> np.random.Generator:
    """Return the random numbers of a use. ``key`` has the epoch, and what else tells the orders apart."""
    return np.random.default_rng(_sequence(use, seed, key))


def derived_seed(use: Use, seed: int, *key: int) -> int:
    """Return a seed of 63 bits for the random numbers that TensorFlow computes for a use."""
    return int(_sequence(use, seed, key).generate_state(1, np.uint64)[0] >> 1)


def _sequence(use: Use, seed: int, key: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(get_args(Use).index(use), *key))
