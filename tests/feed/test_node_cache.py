"""A cache on a local disk: later epochs of every feed read no byte from the store, and no rows differ.

Modules: feed.batches, feed.torch, feed.rows.epoch_order, storage.block_cache.
"""

import io
import json
import multiprocessing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from servers import LinkedStore
from store_link import Traffic

import dask_tfrecord
from dask_tfrecord import TFRecordError
from dask_tfrecord.feed import Batches, RecordTable, iter_batches
from dask_tfrecord.feed.rows.epoch_order import plan_batches
from dask_tfrecord.storage.block_cache import BLOCK_BYTES

ROWS = 6_000


@pytest.fixture(scope="module")
def places(linked: LinkedStore) -> dict[str, str]:
    """Datasets of three files with the same rows: own files, compressed, with column files, foreign."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": np.arange(ROWS), "x": [rng.bytes(200).hex() for _ in range(ROWS)]})
    ddf = dd.from_pandas(frame, npartitions=3)
    found = {name: linked.new_place() for name in ("plain", "gzip", "columnar", "foreign")}
    written: dict[str, Any] = {"gzip": {"compression": "gzip"}, "columnar": {"columnar": ["id"]}}
    for name, url in found.items():
        dask_tfrecord.to_tfrecord(ddf, url, storage_options=linked.direct, **written.get(name, {}))
    fs, root = linked.fs, found["foreign"].removeprefix("s3://")
    for number, path in enumerate(sorted(fs.glob(f"{root}/*.tfrecord"))):
        fs.copy(path, f"{root}/rows-{number}.tfrecord")
        fs.rm(path)
    fs.rm(f"{root}/_tfrecord", recursive=True)
    dask_tfrecord.open_dataset(found["foreign"], storage_options=linked.direct).add_snapshot()
    return found


def _ids(batches: Any) -> list[int]:
    return [value for batch in batches for value in pa.table(batch)["id"].to_pylist()]


def _epoch(url: str, linked: LinkedStore, cache: Path, **keywords: Any) -> list[int]:
    options = {"storage_options": linked.options, "cache": cache, **keywords}
    return _ids(iter_batches(url, **{"batch_size": 500, **options}))


def _data(traffic: Traffic) -> int:
    """The number of requests for the content of data files and column files."""
    return len(traffic.of("GET", ".tfrecord")) + len(traffic.of("GET", "_tfrecord/columns"))


_ORDERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shuffled": {"shuffle": True, "seed": 1},
    "blocks": {"shuffle": "blocks", "seed": 1},
    "in the calling thread": {"prefetch": 0},
}


@pytest.mark.sampled
@pytest.mark.parametrize("order", _ORDERS)
@pytest.mark.parametrize("name", ["plain", "gzip", "foreign"])
def test_each_later_epoch_reads_no_byte_from_the_store(
    name: str, order: str, places: dict[str, str], linked: LinkedStore, tmp_path: Path
) -> None:
    keywords = _ORDERS[order]
    expected = [_epoch(places[name], linked, None, epoch=epoch, **keywords) for epoch in range(2)]  # type: ignore[arg-type]
    with linked.link.recording() as traffic:
        assert _epoch(places[name], linked, tmp_path, **keywords) == expected[0]
    assert traffic.bytes_read < 2 * ROWS * 500
    with linked.link.recording() as traffic:
        assert _epoch(places[name], linked, tmp_path, epoch=1, **keywords) == expected[1]
        # Other orders, columns and sizes of batches need the same blocks.
        assert sorted(_epoch(places[name], linked, tmp_path, batch_size=77)) == [*range(ROWS)]
        assert sorted(_epoch(places[name], linked, tmp_path, shuffle=True, columns=["id"])) == [*range(ROWS)]
    assert _data(traffic) == 0


def test_resumed_epoch_reads_only_the_rest(
    places: dict[str, str], linked: LinkedStore, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"storage_options": linked.options, "cache": tmp_path, "shuffle": True}
    batches = iter_batches(places["plain"], 500, prefetch=0, **options)
    first = _ids(next(batches) for _ in range(4))
    state = json.loads(json.dumps(batches.state))
    rest = _ids(iter_batches(places["plain"], 500, start=state, **options))
    assert sorted([*first, *rest]) == [*range(ROWS)]
    with linked.link.recording() as traffic:
        assert _ids(iter_batches(places["plain"], 300, start=state, **options)) == rest
    assert _data(traffic) == 0


@pytest.mark.parametrize("name", ["plain", "gzip", "columnar", "foreign"])
def test_a_second_table_reads_no_byte_of_the_records(
    name: str, places: dict[str, str], linked: LinkedStore, tmp_path: Path
) -> None:
    rows = np.random.default_rng(1).permutation(ROWS)

    def read() -> list[int]:
        table = RecordTable(places[name], cache=tmp_path, storage_options=linked.options)
        return [value for at in range(0, ROWS, 500) for value in table[rows[at : at + 500]]["id"].to_pylist()]

    assert read() == rows.tolist()
    with linked.link.recording() as traffic:
        assert read() == rows.tolist()
    assert _data(traffic) == 0


# The methods "spawn" and "forkserver" pickle the dataset in the same way.
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_share_the_cache(
    method: str, places: dict[str, str], linked: LinkedStore, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    from dask_tfrecord.feed.torch import TFRecordBatches

    def ids(workers: int, **keywords: Any) -> list[int]:
        batches = TFRecordBatches(
            places["plain"], 500, ["id"], cache=tmp_path, storage_options=linked.options, **keywords
        )
        context = method if workers else None
        loader = DataLoader(batches, None, num_workers=workers, multiprocessing_context=context)
        return [value for batch in loader for value in batch["id"].tolist()]

    assert sorted(ids(2 if method == "fork" else 0)) == [*range(ROWS)]
    with linked.link.recording() as traffic:
        assert sorted(ids(1, shuffle=True)) == [*range(ROWS)]
    assert _data(traffic) == 0


def test_epochs_of_one_dataset_without_a_snapshot_read_no_byte_twice(
    linked: LinkedStore, tmp_path: Path
) -> None:
    url = linked.new_place()
    frame = pd.DataFrame({"id": range(ROWS), "x": ["text" * 50] * ROWS})
    dask_tfrecord.to_tfrecord(frame, url, storage_options=linked.direct)
    fs, root = linked.fs, url.removeprefix("s3://")
    [written] = fs.glob(f"{root}/part-*")
    fs.copy(written, f"{root}/rows.tfrecord")
    fs.rm([written, f"{root}/_tfrecord"], recursive=True)
    plan = plan_batches(
        url, 500, surface=iter_batches, shuffle=True, cache=tmp_path, storage_options=linked.options
    )
    for expected in (1, 0, 0):
        with linked.link.recording() as traffic:
            assert sorted(_ids(Batches(plan, 1 - expected))) == [*range(ROWS)]
        assert (traffic.bytes_read > 0) == (expected > 0)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # blockcache never closes its copy
@pytest.mark.parametrize("cache", ["filecache", "simplecache", "blockcache"])
def test_workers_share_a_cache_of_fsspec(
    cache: str, places: dict[str, str], linked: LinkedStore, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    from dask_tfrecord.feed.torch import TFRecordBatches

    options = {"s3": linked.options, cache: {"cache_storage": str(tmp_path)}}
    batches = TFRecordBatches(
        f"{cache}::{places['gzip']}", 500, ["id"], shuffle=True, storage_options=options
    )
    for workers in (1, 2):  # filecache does not write a file at once, so one worker must fill it
        loader = DataLoader(batches, None, num_workers=workers, multiprocessing_context="fork")
        assert sorted(value for batch in loader for value in batch["id"].tolist()) == [*range(ROWS)]


def _keras(url: str, **keywords: Any) -> list[int]:
    pytest.importorskip("keras")
    from dask_tfrecord.feed.keras import TFRecordPyDataset

    batches = TFRecordPyDataset(url, 500, ["id"], **keywords)
    return [value for number in range(len(batches)) for value in batches[number]["id"].tolist()]


def _tensorflow(url: str, **keywords: Any) -> list[int]:
    pytest.importorskip("tensorflow")
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    return [
        value for batch in tensorflow_dataset(url, 500, "id", **keywords) for value in batch["id"].numpy()
    ]


def _torch_table(url: str, **keywords: Any) -> list[int]:
    pytest.importorskip("torch")
    from dask_tfrecord.feed.torch import TFRecordTable

    table = TFRecordTable(url, "id", **keywords)
    return [value for at in range(0, ROWS, 500) for value in table.__getitems__([*range(at, at + 500)])["id"]]


@pytest.mark.parametrize("feed", [_keras, _tensorflow, _torch_table])
def test_each_loader_has_a_cache(
    feed: Callable[..., list[int]], places: dict[str, str], linked: LinkedStore, tmp_path: Path
) -> None:
    read: dict[str, Any] = {"cache": tmp_path, "cache_bytes": "1 GB", "storage_options": linked.options}
    assert feed(places["gzip"], **read) == [*range(ROWS)]
    with linked.link.recording() as traffic:
        assert feed(places["gzip"], **read) == [*range(ROWS)]
    assert _data(traffic) == 0


def _rank(url: str, options: dict[str, Any], cache: Path, rank: int) -> None:
    batches = iter_batches(url, 500, shard=(rank, 2), shuffle=True, cache=cache, storage_options=options)
    assert len(set(_ids(batches))) == ROWS // 2


def test_ranks_of_a_machine_share_the_cache(
    places: dict[str, str], linked: LinkedStore, tmp_path: Path
) -> None:
    fork = multiprocessing.get_context("fork")

    def run() -> list[int | None]:
        ranks = [
            fork.Process(target=_rank, args=(places["plain"], linked.options, tmp_path, rank))
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        return [rank.exitcode for rank in ranks]

    assert run() == [0, 0]
    with linked.link.recording() as traffic:
        assert run() == [0, 0]
    assert _data(traffic) == 0


def _used(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("dask_tfrecord_cache/??/*"))


@pytest.mark.parametrize("order", ["plain", "shuffled"])
def test_epochs_of_a_dataset_that_is_larger_than_the_cache(
    order: str, places: dict[str, str], linked: LinkedStore, tmp_path: Path
) -> None:
    for epoch in range(2):
        batches = iter_batches(
            places["plain"],
            500,
            epoch=epoch,
            cache=tmp_path,
            cache_bytes="1 MiB",
            storage_options=linked.options,
            **_ORDERS[order],
        )
        found = []
        for batch in batches:
            found += _ids([batch])
            assert _used(tmp_path) <= (1 << 20) + 16 * BLOCK_BYTES
        assert sorted(found) == [*range(ROWS)]
    assert _used(tmp_path) > 1 << 19


class Counted(MemoryFileSystem):
    """A filesystem that is not asynchronous, and counts the bytes of data files that are read."""

    protocol = "counted"
    bytes = 0

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super()._open(path, mode, **options)
        return file if "w" in mode or ".tfrecord" not in path else _CountedFile(file.getvalue())

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        data: bytes = super().cat_file(path, start, end, **options)
        Counted.bytes += len(data) if ".tfrecord" in path else 0
        return data


class _CountedFile(io.BytesIO):
    def readinto(self, view: Any) -> int:
        count = super().readinto(view)
        Counted.bytes += count
        return count

    def read(self, count: int | None = -1) -> bytes:
        data = super().read(count)
        Counted.bytes += len(data)
        return data


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_filesystem_that_is_not_asynchronous_has_a_cache(compression: Any, tmp_path: Path) -> None:
    fs, path = Counted(), f"/{tmp_path.name}"
    frame = pd.DataFrame({"id": range(ROWS), "x": [f"{number:0300}" for number in range(ROWS)]})
    written: dict[str, Any] = {"compression": compression, "columnar": ["id"]}
    dask_tfrecord.to_tfrecord(frame, path, filesystem=fs, **written)
    read: dict[str, Any] = {"cache": tmp_path, "filesystem": fs}
    rows = np.random.default_rng(1).permutation(ROWS)[:500]
    seen = []
    for epoch in range(2):
        before = Counted.bytes
        assert sorted(_ids(iter_batches(path, 500, shuffle=True, epoch=epoch, **read))) == [*range(ROWS)]
        assert _ids(iter_batches(path, 500, **read)) == [*range(ROWS)]
        assert RecordTable(path, **read)[rows]["id"].to_pylist() == rows.tolist()
        seen.append(Counted.bytes - before)
    assert seen[0] > 0
    assert seen[1] == 0


def test_rewritten_file_is_not_read_from_the_cache(linked: LinkedStore, tmp_path: Path) -> None:
    url = linked.new_place()
    fs, path = linked.fs, f"{url.removeprefix('s3://')}/rows.tfrecord"
    for start in (1000, 2000):
        frame = pd.DataFrame({"id": range(start, start + 500)})
        dask_tfrecord.to_tfrecord(frame, url, overwrite=True, storage_options=linked.direct)
        [written] = fs.glob(f"{url.removeprefix('s3://')}/part-*")
        fs.copy(written, path)
        fs.rm(written)
        fs.rm(f"{url.removeprefix('s3://')}/_tfrecord", recursive=True)
        for _ in range(2):
            assert _epoch(url, linked, tmp_path) == [*range(start, start + 500)]
        fs.rm(path)


@pytest.mark.parametrize("damage", [0, 100, -1])
def test_damaged_cache_is_read_from_the_store_again(
    damage: int, places: dict[str, str], linked: LinkedStore, tmp_path: Path
) -> None:
    _epoch(places["plain"], linked, tmp_path)
    for path in tmp_path.glob("dask_tfrecord_cache/??/*"):
        data = bytearray(path.read_bytes())
        data[damage] ^= 255
        path.write_bytes(data)
    assert _epoch(places["plain"], linked, tmp_path) == [*range(ROWS)]
    with linked.link.recording() as traffic:
        assert _epoch(places["plain"], linked, tmp_path) == [*range(ROWS)]
    assert _data(traffic) == 0


def test_cache_that_cannot_be_written_is_left_out_with_one_warning(
    places: dict[str, str], linked: LinkedStore, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(2):
            assert _epoch(places["plain"], linked, tmp_path / "file" / "cache") == [*range(ROWS)]
    assert ["cannot be used" in str(one.message) for one in found] == [True]


def _local(tmp_path: Path) -> str:
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": [1, 2]}), str(tmp_path / "local"))
    return str(tmp_path / "local")


@pytest.mark.parametrize("feed", [iter_batches, RecordTable])
def test_cache_of_a_local_dataset_warns_and_makes_no_directory(
    feed: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="cache= has no effect, because the files are on a local disk"):
        feed(_local(tmp_path), cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cache_bytes": "1 GB"}, "cache_bytes='1 GB' has no effect without cache="),
    ({"cache": "s3://bucket/cache"}, "cache='s3://bucket/cache' is a URL"),
    ({"cache": "cache", "cache_bytes": "200"}, "cache_bytes='200' is less than 1 MiB"),
    ({"cache": "cache", "cache_bytes": "much"}, "cache_bytes='much' is not a size"),
    ({"cache": True}, "cache=True is not a path"),
]


@pytest.mark.parametrize("feed", [iter_batches, RecordTable])
@pytest.mark.parametrize(("keywords", "problem"), _WRONG)
def test_wrong_cache_raises(
    feed: Callable[..., Any], keywords: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(TFRecordError, match=problem):
        feed(_local(tmp_path), **keywords)


def test_collection_has_no_cache() -> None:
    ddf = dd.from_dict({"id": [1]}, npartitions=1)
    with pytest.raises(TFRecordError, match="cache= suits a path, not a Dask collection"):
        iter_batches(ddf, cache="cache")
