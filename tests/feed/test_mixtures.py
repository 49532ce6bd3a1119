"""A mixture draws each source in its proportion at every row, and resumes exactly.

Modules: feed.rows.mixtures, feed.rows.mixed_source, feed.batches, feed.rows.resume_position, feed.torch,
feed.tensorflow.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from small_blocks import small_blocks

import dask_tfrecord
from dask_tfrecord import SchemaError, TFRecordError
from dask_tfrecord.errors import Remedy
from dask_tfrecord.feed import iter_batches, mix
from dask_tfrecord.feed.rows import epoch_order

SIZES = {"web": 1000, "books": 300, "code": 77}
SHARES = {"web": Fraction(7, 10), "books": Fraction(2, 10), "code": Fraction(1, 10)}
FIRST = {"web": 0, "books": 10_000, "code": 20_000}
SHUFFLES: list[dict[str, Any]] = [
    {},
    {"shuffle": True, "seed": 3, "shuffle_buffer": 200},
    {"shuffle": "blocks"},
]


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with small_blocks():
        yield


def frame_of(name: str, rows: int) -> pd.DataFrame:
    numbers = np.arange(rows) + FIRST[name]
    return pd.DataFrame({"id": numbers, "text": [f"{name} {number}" for number in numbers]})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("mixtures")
    for name, rows in SIZES.items():
        dask_tfrecord.to_tfrecord(dd.from_pandas(frame_of(name, rows), npartitions=2), str(root / name))
    return str(root)


@pytest.fixture
def sources(root: str) -> dict[Any, Any]:
    return {f"{root}/{name}": float(share) for name, share in SHARES.items()}


def ids(batches: Iterable[Any]) -> list[int]:
    return [number for batch in batches for number in batch["id"].to_pylist()]


@pytest.mark.parametrize(
    ("shard", "elastic", "divided"), [((0, 1), None, 1), ((0, 8), None, 1), ((0, 2), 4, 4)]
)
def test_a_shuffle_buffer_is_divided_among_sources_and_sequences_but_not_among_shards(
    sources: dict[Any, Any], monkeypatch: pytest.MonkeyPatch, shard: Any, elastic: Any, divided: int
) -> None:
    buffers = []
    make_order = epoch_order.make_order

    def recorded(*given: Any) -> Any:
        buffers.append(given[4])
        return make_order(*given)

    monkeypatch.setattr(epoch_order, "make_order", recorded)
    mix(sources, 24, shuffle=True, shuffle_buffer=1000, shard=shard, elastic=elastic)
    shares = [round(divided / share) for share in SHARES.values()]
    assert buffers == [1000 // share for share in shares]


def names_of(numbers: list[int]) -> list[str]:
    return [list(SIZES)[number // 10_000] for number in numbers]


def largest_error(names: list[str], shares: dict[str, Fraction] = SHARES) -> Fraction:
    """Return how far the number of rows of any source is from its share, at the worst prefix."""
    counts, worst = dict.fromkeys(shares, 0), Fraction(0)
    for rows, name in enumerate(names, 1):
        counts[name] += 1
        worst = max(worst, *(abs(counts[one] - share * rows) for one, share in shares.items()))
    return worst


# -- Proportions and lengths ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights",
    [(0.7, 0.2, 0.1), (7, 2, 1), (700_000, 200_000, 100_000), (Fraction(7, 3), np.float64(2 / 3), 1 / 3)],
)
def test_weights_are_shares_or_numbers_of_rows(sources: dict[Any, Any], weights: tuple[Any, ...]) -> None:
    given = dict(zip(sources, weights, strict=True))
    assert ids(mix(given, 100)) == ids(mix(sources, 100))


def test_rare_sources_are_drawn_at_their_turn(root: str) -> None:
    shares = {"web": Fraction(995, 1000), "books": Fraction(4, 1000), "code": Fraction(1, 1000)}
    given = {f"{root}/{name}": float(share) for name, share in shares.items()}
    numbers = ids(mix(given, 128, until=3000, shuffle=True))
    assert largest_error(names_of(numbers), shares) < 1
    assert names_of(numbers).count("code") == 3


@pytest.mark.parametrize("how", SHUFFLES, ids=str)
def test_a_tiny_source_repeats_in_other_orders(root: str, how: dict[str, Any], tmp_path: Any) -> None:
    dask_tfrecord.to_tfrecord(frame_of("code", 3), str(tmp_path / "code"))
    numbers = ids(mix({f"{root}/web": 1, str(tmp_path / "code"): 1}, 50, until=900, **how))
    tiny = [number for number in numbers if number >= 20_000]
    passes = {tuple(tiny[start : start + 3]) for start in range(0, 450, 3)}
    assert all(set(one) == {20_000, 20_001, 20_002} for one in passes)
    assert len(passes) == (6 if how else 1)


@pytest.mark.parametrize("how", SHUFFLES[1:], ids=str)
def test_a_part_of_a_shuffled_source_is_drawn_from_all_its_blocks(root: str, how: dict[str, Any]) -> None:
    """A window is not cut where an epoch ends, or its first rows would always be drawn."""
    drawn = [ids(mix({f"{root}/code": 1}, 10, until=20, epoch=epoch, **how)) for epoch in range(40)]
    assert {number for one in drawn for number in one} == set(range(20_000, 20_077))


def test_epochs_and_seeds_give_other_orders(sources: dict[Any, Any]) -> None:
    def found(seed: int, epoch: int) -> list[int]:
        return ids(mix(sources, 64, shuffle=True, seed=seed, epoch=epoch))

    assert found(1, 0) == found(1, 0)
    assert len({tuple(found(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


# -- States --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elastic", [None, 24])
def test_shards_are_equally_long_and_keep_the_proportions(
    sources: dict[Any, Any], elastic: int | None
) -> None:
    shards = [
        mix(sources, 60, shard=(index, 4), elastic=elastic, until="all", shuffle=True) for index in range(4)
    ]
    numbers = [ids(one) for one in shards]
    assert len({len(one) for one in numbers}) == 1
    assert {number for one in numbers for number in one} == set(ids(mix(sources, 60, until="all")))
    # Each sequence is within two rows of the shares.
    assert all(largest_error(names_of(one)) < 2 * (elastic or 4) // 4 for one in numbers)
    every = [number for one in numbers for number in one]
    assert all(abs(names_of(every).count(name) - share * len(every)) < 4 for name, share in SHARES.items())


def test_shards_without_elastic_resume_with_elastic(sources: dict[Any, Any]) -> None:
    shards = [mix(sources, 20, shard=(index, 4)) for index in range(4)]
    for one in shards:
        next(one)
    states = [one.state for one in shards]
    rest = sorted(number for one in shards for number in ids(one))
    with pytest.raises(TFRecordError, match="elastic=4") as caught:
        mix(sources, 20, shard=(0, 2), start=states)
    assert Remedy("elastic", 4, "continue the sequences") in caught.value.remedies
    again = [mix(sources, 40, shard=(index, 2), elastic=4, start=states) for index in range(2)]
    assert sorted(number for one in again for number in ids(one)) == rest
    with pytest.raises(TFRecordError, match="begin the epoch again with elastic=12"):
        mix(sources, 20, shard=(0, 3), start=states)


def test_states_of_other_mixtures_are_refused(sources: dict[Any, Any], root: str) -> None:
    def error(state: Any, given: Any = None, **how: Any) -> str:
        with pytest.raises(TFRecordError) as caught:
            mix(sources if given is None else given, 30, start=state, **how)
        return str(caught.value)

    state = mix(sources, 30, shuffle=True, seed=1).state
    assert "other weights: [7, 2, 1]" in error(state, dict.fromkeys(sources, 1), shuffle=True, seed=1)
    assert "seed=1" in error(state, shuffle=True, seed=2)
    assert "until='first'" in error(state, shuffle=True, seed=1, until="all")
    assert "other sources: [['buffer'" in error(state, seed=1)
    assert "other sources" in error(state, {f"{root}/web": 1})
    assert "epoch 0" in error(state, shuffle=True, seed=1, epoch=1)
    assert "was changed" in error({**state, "epoch": 1}, shuffle=True, seed=1, epoch=1)
    assert "belongs to one source" in error(iter_batches(f"{root}/web", 30).state, {f"{root}/web": 1})
    with pytest.raises(TFRecordError, match="belongs to a mixture"):
        iter_batches(f"{root}/web", 30, start=mix({f"{root}/web": 1}, 30).state)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_for_pytorch_takes_a_mixture(sources: dict[Any, Any], workers: int) -> None:
    data = pytest.importorskip("torch.utils.data")
    from dask_tfrecord.feed.torch import TFRecordBatches

    def ids_of(batches: Iterable[Any]) -> list[int]:
        return [number for batch in batches for number in batch["id"].tolist()]

    def dataset() -> Any:
        return TFRecordBatches(sources, 64, columns=["id"], shuffle=True, until=800)

    expected = ids(mix(sources, 64, columns=["id"], shuffle=True, until=800))
    assert ids_of(data.DataLoader(dataset(), batch_size=None, num_workers=workers)) == expected
    first, second = dataset(), dataset()
    next(iter(first))
    second.load_state_dict(first.state_dict())
    assert len(first) == 13
    assert ids_of(second) == expected[64:]


def test_the_dataset_for_tensorflow_takes_a_mixture(sources: dict[Any, Any]) -> None:
    pytest.importorskip("tensorflow")
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    dataset = tensorflow_dataset(sources, 64, columns=["id"], shuffle=True, until=800)
    found = [number for batch in dataset for number in batch["id"].numpy().tolist()]
    assert found == ids(mix(sources, 64, columns=["id"], shuffle=True, until=800))


# -- Sources -------------------------------------------------------------------------------------------------


def test_feeds_bring_their_own_columns_filters_and_shuffle(root: str) -> None:
    few = iter_batches(f"{root}/web", filters=[("id", "<", 90)], columns=["id"], shuffle=True, seed=5)
    opened = dask_tfrecord.open_dataset(f"{root}/books", columns="id")
    given = [(few, 1), (opened, 1), ([f"{root}/code"], 1)]
    numbers = ids(mix(given, 40, until=270, columns=["id"]))
    web = [number for number in numbers if number < 10_000]
    assert sorted(web) == list(range(90)) != web
    assert [number for number in numbers if 10_000 <= number < 20_000] == list(range(10_000, 10_090))
    assert few.rows == 90
    again = mix(given, 40, until=270, columns=["id"])
    next(again)
    assert ids(mix(given, 40, until=270, columns=["id"], start=again.state)) == numbers[40:]


def test_a_feed_that_was_begun_is_refused(root: str) -> None:
    begun, part = iter_batches(f"{root}/web"), iter_batches(f"{root}/web", shard=(0, 2))
    next(begun)
    for feed in (begun, part):
        with pytest.raises(
            TFRecordError, match="has epoch=, shard=, elastic= or start=, or was read already"
        ):
            mix({feed: 1}, 10)


def test_sources_with_other_features_have_the_columns_of_the_first(tmp_path: Any) -> None:
    """The records of such sources are not decoded together."""
    numbers = np.arange(60)
    first = pd.DataFrame({"id": numbers, "day": pd.Categorical(["mon", "tue"] * 30)})
    second = pd.DataFrame({"day": pd.Categorical(["wed", "tue", "sun"] * 20), "id": numbers + 10_000})
    dask_tfrecord.to_tfrecord(first, str(tmp_path / "first"))
    dask_tfrecord.to_tfrecord(second, str(tmp_path / "second"), partition_on="day")
    given = {str(tmp_path / "first"): 1, str(tmp_path / "second"): 1}
    batches = mix(given, 25, shuffle=True, schema={"day": pa.dictionary(pa.int32(), pa.string())})
    found = pa.Table.from_batches(batches).to_pandas()
    every = pd.concat([first, second]).set_index("id")["day"].astype(str)
    assert found.columns.tolist() == ["id", "day"]
    assert found.set_index("id")["day"].astype(str).sort_index().equals(every.sort_index())


def test_images_and_text_mix(root: str, tmp_path: Any) -> None:
    images = [bytes([number]) * (number * 300) for number in range(40)]
    for name, first in (("left", 0), ("right", 10_000)):
        frame = pd.DataFrame({"id": np.arange(40) + first, "image": images})
        dask_tfrecord.to_tfrecord(frame, str(tmp_path / name))
    found = pa.Table.from_batches(
        mix({str(tmp_path / "left"): 3, str(tmp_path / "right"): 1}, 7, shuffle=True)
    )
    assert found["image"].to_pylist() == [images[number % 10_000] for number in found["id"].to_pylist()]
    with pytest.raises(SchemaError) as caught:
        mix({str(tmp_path / "left"): 1, f"{root}/web": 1}, 7)
    assert "lacks 'image' and also has 'text'" in str(caught.value)
    assert "web" in str(caught.value)
    assert caught.value.feature == "image"
    [remedy] = caught.value.remedies
    assert remedy == Remedy("columns", ["id"], "read the columns that all have")
    assert len(ids(mix({str(tmp_path / "left"): 1, f"{root}/web": 1}, 7, columns=remedy.value))) == 80


def test_other_types_raise_and_schema_mends_it(root: str, tmp_path: Any) -> None:
    frame = frame_of("books", 50).astype({"id": "int32"})
    dask_tfrecord.to_tfrecord(frame, str(tmp_path / "books"))
    given = {f"{root}/web": 1, str(tmp_path / "books"): 1}
    with pytest.raises(SchemaError, match=r"column 'id': int32 in '.*books', and int64 in '.*web'") as caught:
        mix(given, 10)
    remedy, other = caught.value.remedies
    assert remedy.value == {"id": pa.int64()}
    assert other == Remedy("columns", ["text"], "leave it out")
    assert len(ids(mix(given, 10, schema=remedy.value))) == 100


def test_no_schema_is_advised_that_cannot_be_read(root: str, tmp_path: Any) -> None:
    frame = frame_of("books", 50).astype({"id": "float32"})
    dask_tfrecord.to_tfrecord(frame, str(tmp_path / "books"))
    feed = iter_batches(str(tmp_path / "books"))
    with pytest.raises(SchemaError, match=r"'id': float in '.*books', and int64 in '.*web'") as caught:
        mix({f"{root}/web": 1, feed: 1}, 10)
    assert caught.value.remedies == (Remedy("columns", ["text"], "leave it out"),)


@pytest.mark.parametrize(
    ("weight", "problem"),
    [
        (0, "is 0, so that no row would be drawn; leave the source out"),
        (-1, "is not positive"),
        (float("nan"), "is not positive"),
        (float("inf"), "is not positive"),
        (True, "is not a number"),
        (1e-13, "less than a trillionth"),
    ],
)
def test_wrong_weights_name_the_source(root: str, weight: Any, problem: str) -> None:
    with pytest.raises(TFRecordError, match=problem) as caught:
        mix({f"{root}/web": 1, f"{root}/code": weight}, 10)
    assert "/code'" in str(caught.value)


def test_sources_that_cannot_be_mixed_are_named(root: str, tmp_path: Any) -> None:
    def error(given: Any, **how: Any) -> str:
        with pytest.raises((TFRecordError, FileNotFoundError, TypeError)) as caught:
            mix(given, 12, **how)
        return str(caught.value)

    dask_tfrecord.to_tfrecord(frame_of("code", 3)[:0].astype({"text": "str"}), str(tmp_path / "empty"))
    frame = dd.from_pandas(frame_of("web", 5), npartitions=1)
    assert "has 0 rows; leave it out" in error({str(tmp_path / "empty"): 1, f"{root}/web": 1})
    assert str(tmp_path / "nothing") in error({f"{root}/web": 1, str(tmp_path / "nothing"): 1})
    assert "77 rows, and cannot be divided into 100 sequences" in error({f"{root}/code": 1}, shard=(0, 100))
    assert "the source 'source 1' of the mixture is a Dask collection" in error(
        [(frame, 1), (f"{root}/web", 1)]
    )
    assert "is a mixture" in error({mix({f"{root}/web": 1}, 10): 1})
    assert "at least one source" in error({})
    assert "neither a dict nor a list of pairs" in error([f"{root}/web"])
    assert "batch_mode" in error({f"{root}/web": 1}, batch_mode="auto")
    assert "until=5 is less than one row" in error({f"{root}/web": 1}, until=5, shard=(0, 7))
    assert "unknown until 'last'" in error({f"{root}/web": 1}, until="last")
    with pytest.raises(TFRecordError, match="until='all' has no effect without a mixture"):
        iter_batches(f"{root}/web", until="all")
    with pytest.raises(TFRecordError, match="drawn counts the rows"):
        iter_batches(f"{root}/web").drawn  # noqa: B018
