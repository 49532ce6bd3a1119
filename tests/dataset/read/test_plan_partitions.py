"""Partitions: large files are split, small files share a partition, and each row is in one partition.

Modules: dataset.read.read_plan, dataset.read.read_task.
"""

import pickle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.codec.codecs import CODECS
from dask_tfrecord.dataset.read.read_plan import plan_partitions
from dask_tfrecord.files import file_writer
from dask_tfrecord.files.entry import Block
from dask_tfrecord.files.splits import BlockIndex, Split
from dask_tfrecord.files.storage.listing import FileInfo, info_table
from dask_tfrecord.files.storage.store import Store

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
    assert str([*found["key"].to_pylist(), *found["x"].to_pylist()]) == "['a', None, 'b', 1.0, 1.0, nan]"
    index = BlockIndex(100, tuple(Block(n, n, n) for n in range(0, 100, 10)))
    partitions, found = plan_partitions(files(100, 100), {0: index, 1: index}, values, blocksize=50)
    assert found["key"].to_pylist() == ["a", "a", "a", "a"]
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
        *((codec, [3_000, 1, 1 << 20][at % 3]) for at, codec in enumerate(CODECS)),
        *((None, blocksize) for blocksize in (3_000, 1, 1 << 20)),
    ],
)
def test_each_partition_alone_holds_its_rows_and_together_they_are_the_file(
    compression: Any, blocksize: int, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 1000)
    snapshot = to_tfrecord(frame, tmp_path, compression=compression)
    limit = len(snapshot.files[0].blocks)
    assert limit > 30
    ddf = read_tfrecord(tmp_path, blocksize=blocksize)
    assert min(limit - 1, snapshot.bytes // blocksize) <= ddf.npartitions <= limit
    parts = [part.compute() for part in ddf.partitions]
    assert [len(part) for part in ddf.partitions] == [len(part) for part in parts]
    assert [n for part in parts for n in part["n"]] == frame["n"].tolist()
    assert [value for part in parts for value in part["data"]] == frame["data"].tolist()


def test_a_partition_reads_its_split_only(
    frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 1000)
    snapshot = to_tfrecord(frame, tmp_path)
    ddf = read_tfrecord(tmp_path, blocksize=snapshot.bytes // 10)
    with patch.object(Store, "open", autospec=True, side_effect=Store.open) as opening:
        ddf.partitions[4].compute()
    [call] = opening.call_args_list
    start, stop = call.args[3:5]
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


def test_a_size_is_a_number_or_a_text_and_anything_else_is_refused(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"n": range(4)}), tmp_path)
    for blocksize in ("64 MiB", "1kB", 1, 10**12, None):
        assert len(read_tfrecord(tmp_path, blocksize=blocksize)) == 4
    for wrong in ("much", "-1", 0, -5, True, "0 MB", 2.5j):
        with pytest.raises(TFRecordError, match="blocksize="):
            read_tfrecord(tmp_path, blocksize=wrong)  # type: ignore[arg-type]  # an invalid value


def test_a_task_carries_no_splits_but_its_own() -> None:
    blocks = tuple(Block(n * 10, n * 10, n) for n in range(10_000))
    partitions, _ = plan_partitions(files(100_000), {0: BlockIndex(10_000, blocks)}, blocksize=1000)
    assert len(partitions) == 100
    assert max(len(pickle.dumps(partition)) for partition in partitions) < 500


def test_ten_thousand_files_of_many_values_are_each_planned_once() -> None:
    sizes = [10] * 10_000
    values = {"key": pa.array([n // 100 for n in range(len(sizes))])}
    entries = dict.fromkeys(range(len(sizes)), BlockIndex(1, (Block(0, 0, 0),)))
    partitions, found = plan_partitions(files(*sizes), entries, values, blocksize=1 << 20)
    assert found["key"].to_pylist() == list(range(100))
    paths = [split.file.path for partition in partitions for split in partition]
    assert paths == [info.path for info in infos(*sizes)]
