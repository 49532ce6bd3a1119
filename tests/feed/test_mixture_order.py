"""Mixtures: exact proportions at every prefix, the rows of each source once in a pass, and exact resumes.

Modules: feed.rows.mixtures, feed.rows.mixed_source, feed.rows.resume_position.
"""

import random
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from elastic_oracle import (
    Configuration,
    Elastic,
    check_chain,
    configuration,
    in_order,
    ranges,
    rows_of_mixture,
    worst_distance,
)
from hypothesis import settings
from small_blocks import small_blocks

import dask_tfrecord
from dask_tfrecord.feed import mix
from dask_tfrecord.feed.batches import Batches
from dask_tfrecord.feed.rows.epoch_order import plan_batches

# The rows and the files of each source. The ids of a source begin at its index, times `FAR`.
SOURCES: list[tuple[int, int, dict[str, Any]]] = [
    (210, 3, {}),
    (97, 2, {"compression": "gzip"}),
    (45, 1, {}),
    (60, 6, {}),
]
FAR = 1000


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with small_blocks(1 << 9, group_blocks=4):
        yield


def write(path: Path, number: int) -> str:
    rows, files, options = SOURCES[number]
    frame = pd.DataFrame({"id": np.arange(rows) + number * FAR})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=files), path, **options)
    return str(path)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("mixture")
    return [write(root / f"source-{number}", number) for number in range(len(SOURCES))]


def ids(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["id"].to_pylist()]


def mixture(seed: int, paths: list[str]) -> tuple[Configuration, dict[str, Any], dict[str, Any]]:
    """Return a random configuration, the weights, and the options of the mixture."""
    draw = random.Random(seed)
    config = configuration(seed, ["mixture"], {"mixture": 12})
    count = draw.randint(1, len(paths))
    kinds = [
        lambda: draw.randint(1, 9),
        lambda: round(draw.random() + 0.01, 2),
        lambda: Fraction(1, draw.randint(1, 9)),
    ]
    kind = draw.choice(kinds)
    weights = {path: kind() for path in draw.sample(paths, count)}
    options = {key: value for key, value in config.options.items() if key != "uneven"}
    options["until"] = draw.choice(["first", "all", draw.choice([24, 100, 700])])
    return config, weights, options


def check_sequence(
    rows: list[int], plan: Any, config: Configuration, number: int, weights: list[Fraction]
) -> None:
    """Check which rows of each source a sequence draws, and when."""
    sources = sorted({row // FAR for row in rows})
    assert {*sources} <= {int(name[-1]) for name in plan.source.names}
    index = {int(name[-1]): at for at, name in enumerate(plan.source.names)}
    distance = worst_distance([index[row // FAR] for row in rows], weights)
    assert distance < (1 if config.sequences == 1 else 2)
    for source in sources:
        one = plan.source.plans[index[source]]
        drawn = [row for row in rows if row // FAR == source]
        every = [source * FAR + row for row in range(SOURCES[source][0])]
        place = ranges(len(every), config.sequences, "keep")[number]
        for turn, start in enumerate(range(0, len(drawn), len(place))):
            seed = one.seed if config.options["shuffle"] else None
            order = in_order(every, one.source.counts, seed, config.epoch + (turn << 32))
            expected = order[place.start : place.stop]
            found = drawn[start : start + len(place)]
            if not config.options["shuffle"]:
                assert found == expected[: len(found)]
            assert len(set(found)) == len(found)
            assert set(found) <= set(expected)


def check_mixture(paths: list[str], seed: int) -> None:
    config, weights, options = mixture(seed, paths)
    count = config.sequences

    def plan_of(batch_size: int, **changes: Any) -> Any:
        given = {**options, **changes, "elastic": count}
        return plan_batches(weights, batch_size, surface=mix, **given)

    plan = plan_of(8, batch_mode="keep", prefetch=0)
    shares = [Fraction(str(one)) for one in weights.values()]
    sequences = [ids(Batches(plan, config.epoch, (number, count))) for number in range(count)]
    for number, rows in enumerate(sequences):
        check_sequence(rows, plan, config, number, shares)
    lengths = {len(rows) for rows in sequences}
    assert len(lengths) == 1
    rows = [SOURCES[int(path[-1])][0] for path in weights]
    if count == 1:
        assert lengths == {max(1, rows_of_mixture(options["until"], rows, shares))}
    elif isinstance(options["until"], int):
        assert lengths == {options["until"] // count}
    for path, size in zip(weights, rows, strict=True):
        for of_sequence in sequences:
            drawn = sum(row // FAR == int(path[-1]) for row in of_sequence)
            assert options["until"] != "first" or drawn <= size // count
            assert options["until"] != "all" or drawn >= -(-size // count)
    check_chain(plan_of, config, Elastic(sequences))


EXAMPLES = settings().max_examples


@pytest.mark.parametrize("seed", range(max(16, EXAMPLES // 4) if EXAMPLES < 500 else EXAMPLES))
def test_rows_are_in_proportion_at_every_prefix_and_after_every_chain_of_resumes(
    paths: list[str], seed: int
) -> None:
    check_mixture(paths, seed)


# -- Resumes -------------------------------------------------------------------------------------------------

WEIGHTS = (0.5, 0.3, 0.2)


def sources_of(paths: list[str]) -> dict[str, float]:
    return dict(zip(paths, WEIGHTS, strict=False))


@pytest.mark.parametrize("until", ["all", "first"])
def test_the_rows_that_are_drawn_from_each_source_are_counted(paths: list[str], until: str) -> None:
    batches = mix(sources_of(paths), 3, until=until)
    found = [row // FAR for batch in batches for row in batch["id"].to_pylist()]
    assert list(batches.drawn.values()) == [found.count(at) for at in range(3)]


def changed(path: str, change: str) -> None:
    if change == "append":
        frame = pd.DataFrame({"id": np.arange(500, 560) + int(path[-1]) * FAR})
        dask_tfrecord.to_tfrecord(frame, path, append=True)
    elif change == "compact":
        dask_tfrecord.open_dataset(path).compact()
    else:
        dask_tfrecord.open_dataset(path).delete([("id", "<", 50)])


@pytest.mark.parametrize(
    ("change", "shuffle"), [("append", None), ("compact", "buffer"), ("delete", "blocks")]
)
def test_an_epoch_ends_on_the_versions_of_its_sources(tmp_path: Path, change: str, shuffle: Any) -> None:
    places = [write(tmp_path / f"source-{number}", number) for number in range(3)]
    how: dict[str, Any] = {"until": "all", "shuffle": shuffle, "elastic": 4}

    def begin(ranks: int, start: Any = None, **more: Any) -> list[Batches]:
        return [
            mix(sources_of(places), 12 // ranks, shard=(rank, ranks), start=start, **how, **more)
            for rank in range(ranks)
        ]

    def rest(running: list[Batches]) -> list[list[int]]:
        steps = zip(*([batch["id"].to_pylist() for batch in one] for one in running), strict=True)
        return [sorted(row for one in step for row in one) for step in steps]

    expected = rest(begin(1))
    running = begin(2)
    for one in running:
        for _ in range(9):
            next(one)
    states = [one.state for one in running]
    changed(places[0], change)
    assert rest(begin(4, states)) == expected[9:]
    assert rest(running) == expected[9:]
    changed(places[2], "append")
    assert rest(begin(1, states)) == expected[9:]
    newest = [row for step in rest(begin(1, epoch=1)) for row in step]
    kept = {"append": [*range(210), *range(500, 560)], "compact": range(210), "delete": range(50, 210)}
    assert {row for row in newest if row < FAR} <= set(kept[change])
    assert change != "delete" or set(range(50, 210)) <= set(newest)
