"""Partitions: large files are split, small files share a partition, and each row is in one partition.

Another operation may remove a file between the plan of a read and the read.

Modules: dataset.read.partitions, dataset.read.plan, dataset.read.task, dataset.read.sample, dataset.listing,
storage.paths, storage.uploading, storage.failures, files.splits.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import FileChangedError, TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.codec.codecs import CODECS
from dask_tfrecord.dataset.read.plan import ReadPlan, plan_partitions
from dask_tfrecord.dataset.read.task import Partition
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.files import file_writer, splits
from dask_tfrecord.files.entry import Block
from dask_tfrecord.files.file_list import FileInfo, FileList
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.splits import BlockIndex, Split, groups_by_bytes
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def infos(*sizes: int | None) -> list[FileInfo]:
    return [FileInfo(f"/data/{n:06d}.tfrecord", size) for n, size in enumerate(sizes)]


def files(*sizes: int | None) -> FileList:
    return FileList.of(infos(*sizes))


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
    partitions = plan_partitions(files(*found), blocksize=blocksize)
    assert sizes(partitions) == expected


def test_files_of_different_partition_values_never_share() -> None:
    nan = float("nan")
    values = {
        "key": pa.array(["a", "a", None, None, "b", "b"]),
        "x": pa.array([1.0, 1.0, 1.0, 1.0, nan, nan]),
    }
    partitions = plan_partitions(files(*range(1, 7)).with_values(values), blocksize=1000)
    assert sizes(partitions) == [[1, 2], [3, 4], [5, 6]]
    index = BlockIndex(100, tuple(Block(n, n, n) for n in range(0, 100, 10)))
    found = files(100, 100).with_values({"key": pa.array(["a", "b"])})
    partitions = plan_partitions(found, {0: index, 1: index}, blocksize=50)
    assert partitions.files["partition.key"].to_pylist() == ["a", "a", "b", "b"]
    assert [[split.records for split in partition] for partition in partitions] == [[50]] * 4


def test_more_files_than_a_task_should_open_do_not_share_a_partition() -> None:
    partitions = plan_partitions(files(*[0] * 1000), blocksize=1 << 27)
    assert [len(partition) for partition in partitions] == [256, 256, 256, 232]


def test_a_file_is_cut_at_its_blocks_into_splits_of_about_the_same_size() -> None:
    blocks = tuple(Block(n * 10, n * 10, n) for n in range(100))
    entry = BlockIndex(100, blocks)
    partitions = plan_partitions(files(1000), {0: entry}, blocksize=300)
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


@pytest.mark.sampled
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
    to_tfrecord(frame, tmp_path, compression=compression)
    snapshot = Snapshot.open(tmp_path)
    limit = len(snapshot.files[0].blocks)
    assert limit > 30
    ddf = read_tfrecord(tmp_path, blocksize=blocksize)
    assert min(limit - 1, snapshot.bytes // blocksize) <= ddf.npartitions <= limit
    parts = [part.compute() for part in ddf.partitions]
    assert [len(part) for part in ddf.partitions] == [len(part) for part in parts]
    assert [n for part in parts for n in part["n"]] == frame["n"].tolist()
    assert [value for part in parts for value in part["data"]] == frame["data"].tolist()


def test_a_size_is_a_number_or_a_text_and_anything_else_is_refused(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"n": range(4)}), tmp_path)
    for blocksize in ("64 MiB", "1kB", 1, 10**12, None):
        assert len(read_tfrecord(tmp_path, blocksize=blocksize)) == 4
    for wrong in ("much", "-1", 0, -5, True, "0 MB", 2.5j):
        with pytest.raises(TFRecordError, match="blocksize="):
            read_tfrecord(tmp_path, blocksize=wrong)  # type: ignore[arg-type]  # an invalid value


def test_a_task_carries_no_splits_but_its_own() -> None:
    blocks = tuple(Block(n * 10, n * 10, n) for n in range(10_000))
    partitions = plan_partitions(files(100_000), {0: BlockIndex(10_000, blocks)}, blocksize=1000)
    assert len(partitions) == 100
    assert max(len(pickle.dumps(partition)) for partition in partitions) < 500


def test_a_plan_of_many_files_is_sent_to_a_cluster_in_few_bytes(tmp_path: Path) -> None:
    numbers = pa.table({"n": range(400)})
    to_tfrecord(numbers, tmp_path, write_options={"max_rows_per_file": 1})
    for filters in (None, [("n", "==", 5)]):  # nothing looks at the other files
        ddf = read_tfrecord(tmp_path, filters=filters, blocksize=1)
        data = pickle.dumps(ddf)
        assert len(data) < 400 * 50  # a path alone has more bytes
        assert pickle.loads(data).compute()["n"].tolist() == ddf.compute()["n"].tolist()
    next(tmp_path.glob("*00007.tfrecord")).unlink()
    assert pickle.loads(data).compute()["n"].tolist() == [5]
    next(tmp_path.glob("*00005.tfrecord")).unlink()
    with pytest.raises(FileChangedError, match=r"the file is missing.*\.repair\("):
        pickle.loads(data).compute()


def test_ten_thousand_files_of_many_values_are_each_planned_once() -> None:
    sizes = [10] * 10_000
    values = {"key": pa.array([n // 100 for n in range(len(sizes))])}
    entries = dict.fromkeys(range(len(sizes)), BlockIndex(1, (Block(0, 0, 0),)))
    partitions = plan_partitions(files(*sizes).with_values(values), entries, blocksize=1 << 20)
    plan = ReadPlan(Store.at("/data"), partitions, Schema(()), ReadOptions())
    assert plan.partition_values["key"].to_pylist() == list(range(100))
    paths = [split.file.path for partition in partitions for split in partition]
    assert paths == [info.path for info in infos(*sizes)]


FRAME = pd.DataFrame({"id": range(60), "text": ["x" * 300] * 60})


def _plan(**options: Any) -> Callable[[Path], Any]:
    return lambda path: dask_tfrecord.read_tfrecord(path, **options)


def _later(plan: Callable[[Path], Any], read: Callable[[Any], Any]) -> Callable[[Path], Callable[[], Any]]:
    """Return a function that plans a read of a path, and returns the call that reads."""

    def planned(path: Path) -> Callable[[], Any]:
        found = plan(path)
        return lambda: read(found)

    return planned


def _polars(path: Path) -> Callable[[], Any]:
    pytest.importorskip("polars")
    from dask_tfrecord.feed.polars import scan_tfrecord

    return scan_tfrecord(path).collect


READS: dict[str, Callable[[Path], Callable[[], Any]]] = {
    "records": _later(_plan(), lambda ddf: ddf.compute()),
    "columns": _later(_plan(columns=["id"]), lambda ddf: ddf.compute()),
    "ranges": _later(_plan(blocksize="4 kB"), lambda ddf: ddf.compute()),
    "skipped damage": _later(_plan(on_corrupt="skip"), lambda ddf: ddf.compute()),
    "filter": _later(_plan(filters=[("id", "<", 3)]), lambda ddf: ddf.compute()),
    "table": _later(open_dataset, lambda found: found.to_table()),
    "batches": _later(lambda path: dask_tfrecord.feed.iter_batches(path, 7), list),
    "shuffled": _later(lambda path: dask_tfrecord.feed.iter_batches(path, 7, shuffle=True, seed=20), list),
    "one record": _later(dask_tfrecord.feed.RecordTable, lambda found: found[3]),
    "many records": _later(dask_tfrecord.feed.RecordTable, lambda found: found[np.arange(50)]),
    "polars": _polars,
}


@pytest.mark.parametrize(
    ("read", "columnar"), [(read, [None, ["id"]][at % 2]) for at, read in enumerate(READS)]
)
def test_a_read_of_files_that_were_overwritten_since_its_plan_raises_one_class(
    tmp_path: Path, read: str, columnar: list[str] | None
) -> None:
    dask_tfrecord.to_tfrecord(FRAME, tmp_path, write_options={"max_rows_per_file": 20}, columnar=columnar)
    names = [path.name for path in tmp_path.glob("part-*")]
    call = READS[read](tmp_path)
    dask_tfrecord.to_tfrecord(
        FRAME, tmp_path, write_options={"max_rows_per_file": 20}, columnar=columnar, overwrite=True
    )
    with pytest.raises(FileChangedError, match="read the dataset again") as caught:
        call()
    assert isinstance(caught.value, FileNotFoundError)
    assert Path(str(caught.value.path)).name in names


@pytest.mark.parametrize("read", READS)
def test_a_read_of_plain_files_that_were_removed_since_its_plan_raises_one_class(
    tmp_path: Path, read: str
) -> None:
    dask_tfrecord.to_tfrecord(FRAME, tmp_path, write_options={"max_rows_per_file": 20})
    (tmp_path / "_tfrecord").rename(tmp_path.parent / f"{tmp_path.name}-metadata")
    files = [path.rename(path.with_name(f"{at}.tfrecord")) for at, path in enumerate(tmp_path.glob("part-*"))]
    call = READS[read](tmp_path)
    for path in files:
        path.unlink()
    with pytest.raises(FileChangedError, match=r"\d\.tfrecord: the file was removed after"):
        call()


def test_counts_and_explanations_describe_the_planned_version_after_an_overwrite(tmp_path: Path) -> None:
    dask_tfrecord.to_tfrecord(FRAME, tmp_path)
    ddf, dataset = read_tfrecord(tmp_path), open_dataset(tmp_path)
    dask_tfrecord.to_tfrecord(FRAME[:3], tmp_path, overwrite=True)
    assert (len(ddf), dataset.count_rows(), dataset.num_rows) == (60, 60, 60)
    assert dask_tfrecord.explain(ddf).totals["files_opened"] == 1


def test_a_task_that_reads_many_files_carries_few_bytes_for_each() -> None:
    for count in (1, 9, 1000):
        splits = tuple(Split(file, records=3) for file in infos(*range(count)))
        partition = Partition(Store.at("/data"), splits, Schema(()), ReadOptions(), {})
        data = pickle.dumps(partition)
        assert pickle.loads(data) == partition
        assert len(data) < 2000 + 20 * count


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([4, 4, 2, 1], [[4, 4, 2], [1]]),
        ([11, 10, 1], [[11], [10], [1]]),
        ([0, 0, 10, 0, 30, 0], [[0, 0, 10, 0], [30], [0]]),
    ],
)
def test_items_are_grouped_up_to_a_number_of_bytes(sizes: list[int], groups: list[list[int]]) -> None:
    assert [sizes[group] for group in groups_by_bytes(sizes, 10)] == groups


def test_partitions_in_a_random_order_make_few_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shuffled read of many blocks would otherwise make all splits of a large range for each block."""
    partitions = plan_partitions(files(*[10] * 3000), blocksize=10)
    expected, made = [*partitions], []
    monkeypatch.setattr(splits, "Split", lambda *values: made.append(values) or Split(*values))
    order = np.random.default_rng(0).permutation(3000)[:100].tolist()
    assert [partitions[number] for number in order] == [expected[number] for number in order]
    assert len(made) <= 16 * len(order)
