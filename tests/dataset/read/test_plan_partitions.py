"""Partitions: large files are split, small files share a partition, and each row is in one partition.

Modules: dataset.read.read_plan, dataset.read.read_task.
"""

import pickle
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.codec.codecs import CODECS
from dask_tfrecord.dataset.read.read_plan import plan_partitions
from dask_tfrecord.dataset.read.read_task import Partition
from dask_tfrecord.files import file_writer
from dask_tfrecord.files.entry import Block
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.splits import BlockIndex, Split
from dask_tfrecord.files.storage.listing import FileInfo, info_table
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.fields import Schema

pytestmark = pytest.mark.usefixtures("one_thread")


def infos(*sizes: int | None) -> list[FileInfo]:
    return [FileInfo(f"/data/{n:06d}.tfrecord", size) for n, size in enumerate(sizes)]


def files(*sizes: int | None) -> pa.Table:
    return info_table(infos(*sizes))


def sizes(partitions: Any) -> list[list[int | None]]:
    return [[split.file.size for split in partition] for partition in partitions]


@pytest.mark.parametrize(
    ("found", "blocksize", "expected"),
    [
        ([30, 40, 50, 60], 100, [[30, 40], [50], [60]]),
        ([30, 40, 30], 100, [[30, 40, 30]]),
        ([30, 170, 30], 100, [[30], [170], [30]]),
        ([0, 0, 100, 0], 100, [[0, 0], [100], [0]]),
        ([1, None, 1], 100, [[1], [None], [1]]),
        ([30, 40], None, [[30], [40]]),
        ([], 100, [[]]),
    ],
)
def test_neighbouring_files_share_a_partition_up_to_its_size(
    found: list[int | None], blocksize: int | None, expected: list[list[int]]
) -> None:
    partitions, _ = plan_partitions(files(*found), blocksize=blocksize)
    assert sizes(partitions) == expected


def test_files_of_different_partition_values_never_share() -> None:
    nan = float("nan")
    values = {
        "key": pa.array(["a", "a", None, None, "b", "b"]),
        "x": pa.array([1.0, 1.0, 1.0, 1.0, nan, nan]),
    }
    partitions, found = plan_partitions(files(*range(1, 7)), values=values, blocksize=1000)
    assert sizes(partitions) == [[1, 2], [3, 4], [5, 6]]
    assert found["key"].to_pylist() == ["a", None, "b"]
    assert str(found["x"].to_pylist()) == "[1.0, 1.0, nan]"


def test_partition_values_are_those_of_the_partition_where_files_are_split() -> None:
    blocks = tuple(Block(n, n, n) for n in range(0, 100, 10))
    entries = [BlockIndex(100, blocks)] * 2
    values = {"key": pa.array(["a", "b"])}
    partitions, found = plan_partitions(files(100, 100), dict(enumerate(entries)), values, blocksize=50)
    assert found["key"].to_pylist() == ["a", "a", "b", "b"]
    assert [[split.records for split in partition] for partition in partitions] == [[50]] * 4


def test_more_files_than_a_task_should_open_do_not_share_a_partition() -> None:
    partitions, _ = plan_partitions(files(*[0] * 1000), blocksize=1 << 27)
    assert [len(partition) for partition in partitions] == [256, 256, 256, 232]


def test_a_file_is_cut_at_its_blocks_into_splits_of_about_the_same_size() -> None:
    blocks = tuple(Block(n * 10, n * 10, n) for n in range(100))
    entry = BlockIndex(100, blocks)
    partitions, _ = plan_partitions(files(1000), {0: entry}, blocksize=300)
    [info] = infos(1000)
    assert tuple(partitions) == (
        (Split(info, Block(0, 0, 0), Block(250, 250, 25), 25),),
        (Split(info, Block(250, 250, 25), Block(500, 500, 50), 25),),
        (Split(info, Block(500, 500, 50), Block(750, 750, 75), 25),),
        (Split(info, Block(750, 750, 75), None, 25),),
    )


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(7)
    data = [rng.bytes(int(rng.integers(200))) for _ in range(400)]
    return pd.DataFrame({"n": range(400), "data": pd.array(data, pd.ArrowDtype(pa.binary()))})


@pytest.mark.filterwarnings("ignore:.*TensorFlow")
@pytest.mark.parametrize(
    ("compression", "blocksize"),
    [
        *((compression, 3_000) for compression in [None, *CODECS]),
        *((compression, 1) for compression in (None, "gzip", "zstd")),
        *((compression, 1 << 20) for compression in (None, "bz2")),
    ],
)
def test_each_partition_alone_holds_its_rows_and_together_they_are_the_file(
    compression: Any, blocksize: int, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 1000)
    snapshot = to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "d", compression=compression)
    assert len(snapshot.files[0].blocks) > 30
    ddf = read_tfrecord(tmp_path / "d", blocksize=blocksize)
    limit = len(snapshot.files[0].blocks)
    assert min(limit - 1, snapshot.bytes // blocksize) <= ddf.npartitions <= limit
    lengths = [len(part) for part in ddf.partitions]
    numbers = [part["n"].compute().tolist() for part in ddf.partitions]
    assert [len(found) for found in numbers] == lengths
    assert [n for found in numbers for n in found] == frame["n"].tolist()
    assert ddf["data"].compute().tolist() == frame["data"].tolist()


def test_a_partition_reads_its_split_only(
    frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 1000)
    snapshot = to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "d")
    ddf = read_tfrecord(tmp_path / "d", blocksize=snapshot.bytes // 10)
    ranges = []
    opening = Store.open

    def noting(self: Store, path: str, size: int, start: int, stop: int | None, *more: Any) -> Any:
        ranges.append((start, stop))
        return opening(self, path, size, start, stop, *more)

    monkeypatch.setattr(Store, "open", noting)
    ddf.partitions[4].compute()
    [(start, stop)] = ranges
    assert stop is not None
    assert start > 0
    assert stop - start < snapshot.bytes // 5


def test_small_files_of_each_directory_share_partitions(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": range(40), "key": ["a", "b"] * 20})
    to_tfrecord(dd.from_pandas(frame, npartitions=8), tmp_path / "d", partition_on=["key"])
    assert read_tfrecord(tmp_path / "d", blocksize=None).npartitions == 16
    ddf = read_tfrecord(tmp_path / "d")
    assert ddf.npartitions == 2
    parts = [part.compute() for part in ddf.partitions]
    assert [set(part["key"]) for part in parts] == [{"a"}, {"b"}]
    assert [part["n"].tolist() for part in parts] == [list(range(0, 40, 2)), list(range(1, 40, 2))]
    assert len(ddf) == 40


@pytest.mark.parametrize("blocksize", ["64 MiB", "1kB", 1, 10**12, None])
def test_a_size_may_be_a_number_or_a_text(blocksize: Any, tmp_path: Path) -> None:
    to_tfrecord(dd.from_pandas(pd.DataFrame({"n": range(4)}), npartitions=2), tmp_path / "d")
    assert len(read_tfrecord(tmp_path / "d", blocksize=blocksize)) == 4


@pytest.mark.parametrize("blocksize", ["much", "-1", 0, -5, True, "0 MB", 2.5j])
def test_what_is_no_size_is_refused(blocksize: Any, tmp_path: Path) -> None:
    with pytest.raises(TFRecordError, match="blocksize="):
        read_tfrecord(tmp_path, blocksize=blocksize)


def test_a_task_carries_no_splits_but_its_own(frame: pd.DataFrame, tmp_path: Path) -> None:
    blocks = tuple(Block(n * 10, n * 10, n) for n in range(100_000))
    entry = BlockIndex(100_000, blocks)
    partitions, _ = plan_partitions(files(1_000_000), {0: entry}, blocksize=1000)
    assert len(partitions) == 1000
    assert max(len(pickle.dumps(partition)) for partition in partitions) < 500


def test_a_hundred_thousand_files_of_many_values_are_each_planned_once() -> None:
    count = 100_000
    values = {"key": pa.array([n // 100 for n in range(count)])}
    entries = [BlockIndex(1, (Block(0, 0, 0),))] * count
    partitions, found = plan_partitions(
        files(*[10] * count), dict(enumerate(entries)), values, blocksize=1 << 20
    )
    assert found["key"].to_pylist() == list(range(1000))
    assert [split.file.path for partition in partitions for split in partition] == [
        info.path for info in infos(*[10] * count)
    ]


def test_a_task_that_reads_many_files_carries_few_bytes_for_each() -> None:
    options, schema = ReadOptions(), Schema(())
    for count in (1, 9, 1000):
        splits = tuple(Split(file, records=3) for file in infos(*range(count)))
        partition = Partition(Store.at("/data"), splits, schema, options, {})
        data = pickle.dumps(partition)
        assert pickle.loads(data) == partition
        assert len(data) < 2000 + 20 * count
