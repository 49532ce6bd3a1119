"""Random access to a remote dataset: all data that a batch needs are requested at once, and only once.

Modules: feed.rows.record_buffers, feed.record_table, collection.numbered_rows.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from servers import LinkedStore

from dask_tfrecord import FileChangedError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.collection import numbered_rows
from dask_tfrecord.dataset.read import task
from dask_tfrecord.feed import RecordTable, record_table
from dask_tfrecord.feed.rows import record_buffers
from dask_tfrecord.files import file_writer

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = 900

# How a dataset is written. If `foreign` is set, the files get names of another tool.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip": {"compression": "gzip"},
    "offsets": {"columnar": []},
    "gzip with offsets": {"compression": "gzip", "columnar": []},
    "many files": {"write_options": {"max_rows_per_file": 40}},
    "foreign": {"foreign": True},
    "foreign gzip": {"foreign": True, "compression": "gzip"},
    "foreign with a snapshot": {"foreign": True, "snapshot": {}},
    "foreign gzip with a snapshot": {"foreign": True, "compression": "gzip", "snapshot": {}},
    "foreign with offsets": {"foreign": True, "snapshot": {"columnar": []}},
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(record_table, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(record_buffers, "_GAP_BYTES", 1000)
    monkeypatch.setattr(record_buffers, "_KEPT_BLOCKS", 1000)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"id": range(ROWS), "noise": [rng.bytes(10 + n % 25).hex() for n in range(ROWS)]})


def write(
    fs: Any,
    place: str,
    frame: pd.DataFrame,
    *,
    foreign: bool = False,
    snapshot: dict[str, Any] | None = None,
    storage_options: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    made = f"{place}-made" if foreign else place
    to_tfrecord(dd.from_pandas(frame, npartitions=3), made, storage_options=storage_options, **options)
    if foreign:
        for number, path in enumerate(sorted(fs.glob(f"{made}/part-*"))):
            fs.pipe_file(f"{place}/{number}.tfrecord", fs.cat_file(path))
    if snapshot is not None:
        open_dataset(place, storage_options=storage_options).add_snapshot(**snapshot)


@pytest.fixture(params=KINDS)
def remote(request: pytest.FixtureRequest, linked: LinkedStore, frame: pd.DataFrame) -> str:
    place = linked.new_place()
    write(linked.fs, place, frame, storage_options=linked.direct, **KINDS[request.param])
    return place


def test_batch_of_random_rows_makes_at_most_three_trips(remote: str, linked: LinkedStore) -> None:
    expected = read_tfrecord(remote, storage_options=linked.direct).compute()
    table = RecordTable(remote, storage_options=linked.options)
    rows = np.random.default_rng(1).integers(0, ROWS, 24)
    with linked.link.recording(rounds=True) as traffic:
        batch = table.batch(rows)
    assert traffic.trips <= 3
    assert traffic.methods.keys() == {"GET"}
    assert traffic.at_once >= len(traffic) / 3
    for found in (batch, table.batch(rows), table.batch(rows)):
        assert found["id"].to_pylist() == expected["id"].iloc[rows].tolist()
        assert found["noise"].to_pylist() == expected["noise"].iloc[rows].tolist()
    with linked.link.recording() as traffic:
        assert table.batch(rows).equals(batch)
        assert table[int(rows[0])]["id"] == rows[0]
    assert not traffic.methods
    every = np.random.default_rng(2).permutation(ROWS)
    assert table.batch(every)["id"].to_pylist() == every.tolist()


def as_items(table: RecordTable, rows: list[int]) -> list[int]:
    return [item["id"] for item in table.__getitems__(rows)]


def through_torch(table: RecordTable, rows: list[int]) -> list[int]:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    from dask_tfrecord.feed.torch import TFRecordTable

    read = TFRecordTable(table._dataset.store.public(), columns=["id"], **_options(table))
    loader = DataLoader(read, len(rows), sampler=rows, collate_fn=read.collate)
    [batch] = loader
    return batch["id"].tolist()


def _options(table: RecordTable) -> dict[str, Any]:
    return {"storage_options": table._dataset.store.fs.storage_options}


@pytest.mark.sampled
@pytest.mark.parametrize("read", [as_items, through_torch])
def test_loaders_request_the_data_of_a_batch_at_once(
    read: Callable[[RecordTable, list[int]], list[int]], linked: LinkedStore, frame: pd.DataFrame
) -> None:
    place = linked.new_place()
    write(linked.fs, place, frame, storage_options=linked.direct)
    table = RecordTable(place, storage_options=linked.options)
    rows = np.random.default_rng(3).integers(0, ROWS, 20).tolist()
    read(table, rows[:1])
    with linked.link.recording(rounds=True) as traffic:
        assert read(table, rows) == rows
    data = traffic.of("GET", "part-")
    assert len(data) > 10
    assert data.trips <= 2
    assert not traffic.of("HEAD", "part-")


def test_batch_in_block_order_requests_its_blocks_at_once(linked: LinkedStore, frame: pd.DataFrame) -> None:
    place = linked.new_place()
    write(linked.fs, place, frame, storage_options=linked.direct, compression="gzip")
    table = RecordTable(place, storage_options=linked.options)
    rows = table.block_order(seed=1)[:100].tolist()
    with linked.link.recording(rounds=True) as traffic:
        assert table.batch(rows)["id"].to_pylist() == rows
    assert len(traffic) > 10
    assert traffic.trips <= 3


def test_threads_read_a_block_once_and_do_not_wait_for_other_blocks(
    linked: LinkedStore, frame: pd.DataFrame
) -> None:
    place = linked.new_place()
    write(linked.fs, place, frame, storage_options=linked.direct, compression="gzip")
    table = RecordTable(place, storage_options=linked.options)
    with (
        ThreadPoolExecutor(4) as pool,
        linked.link.recording() as traffic,
        linked.link.holding(lambda request: "part-" in request.path),
    ):
        found = [pool.submit(table.batch, [row]) for row in (0, 0, 500, 899)]
        linked.link.wait_for(traffic, 3)
    assert [one.result()["id"].to_pylist() for one in found] == [[0], [0], [500], [899]]
    assert len(traffic) == 3


def test_a_thread_reads_the_block_that_another_thread_failed_to_read(frame: pd.DataFrame) -> None:
    MemoryFileSystem.store.clear()
    write(MemoryFileSystem(), "memory://bucket/dataset", frame, compression="gzip")
    table = RecordTable("memory://bucket/dataset")
    reading: dict[int, Future[Any]] = table._buffers._reading
    reading[0] = Future()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(table.batch, [0, ROWS - 1])
        reading.pop(0).cancel()
        assert found.result()["id"].to_pylist() == [0, ROWS - 1]
    assert not reading


@pytest.mark.parametrize("kept_bytes", [0, 3000, 1 << 20])
def test_a_batch_of_many_blocks_keeps_only_some_of_them(
    kept_bytes: int, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_buffers, "_KEPT_BYTES", kept_bytes)
    monkeypatch.setattr(record_buffers, "_KEPT_BLOCKS", 2)
    monkeypatch.setattr(record_buffers, "_REQUESTED_BYTES", 5000)
    MemoryFileSystem.store.clear()
    write(MemoryFileSystem(), "memory://bucket/dataset", frame, compression="gzip")
    table = RecordTable("memory://bucket/dataset")
    rows = np.random.default_rng(4).integers(0, ROWS, 300)
    assert table.batch(rows)["noise"].to_pylist() == frame["noise"].iloc[rows].tolist()
    buffers = table._buffers
    assert len(buffers._kept) <= 2 or buffers._kept_bytes <= kept_bytes
    assert buffers._kept_bytes == sum(len(one.data) for one in buffers._kept.values() if one is not None)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(record_buffers, "monotonic", made)
    return made


@pytest.mark.parametrize("columns", [None, ["id"]], ids=["blocks kept", "columns kept"])
def test_a_remote_file_of_another_tool_is_looked_at_once_a_second(
    columns: list[str] | None, linked: LinkedStore, frame: pd.DataFrame, clock: Clock
) -> None:
    place = linked.new_place()
    write(linked.fs, place, frame, foreign=True, snapshot={"columnar": ["id"]}, storage_options=linked.direct)
    table = RecordTable(place, columns=columns, storage_options=linked.options)
    rows = [0, 1, ROWS - 1]
    for _ in range(2):  # the first batch may read parts of the blocks, and the second one the blocks
        table.batch(rows)
    with linked.link.recording() as traffic:
        for _ in range(3):
            assert table.batch(rows)["id"].to_pylist() == rows
            assert table[ROWS - 1]["id"] == ROWS - 1
            clock.now += 0.3
    assert not traffic
    with linked.link.recording(rounds=True) as traffic:
        clock.now += 0.3
        table.batch(rows)
        table.batch(rows)
    assert (traffic.methods, traffic.trips) == ({"HEAD": 2}, 1)
    path = linked.fs.glob(f"{place}/*.tfrecord")[0]
    data = linked.fs.cat_file(path)
    linked.fs.pipe_file(path, data[:-1] + bytes([data[-1] ^ 1]))
    clock.now += 1
    for _ in range(2):
        with pytest.raises(FileChangedError):
            table.batch(rows)
    assert table.batch([ROWS - 1])["id"].to_pylist() == [ROWS - 1]


def test_the_request_for_data_shows_that_a_file_was_rewritten(
    linked: LinkedStore, frame: pd.DataFrame, clock: Clock
) -> None:
    place = linked.new_place()
    write(linked.fs, place, frame, foreign=True, storage_options=linked.direct)
    table = RecordTable(place, storage_options=linked.options)
    table.batch([0])
    path = linked.fs.glob(f"{place}/*.tfrecord")[0]
    data = linked.fs.cat_file(path)
    linked.fs.pipe_file(path, data[:-1] + bytes([data[-1] ^ 1]))
    with linked.link.recording(), pytest.raises(FileChangedError, match="rewritten"):
        table.batch([200])


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_local_file_of_another_tool_is_looked_at_once_a_second(
    tmp_path: Path,
    frame: pd.DataFrame,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    compression: Any,
) -> None:
    to_tfrecord(frame, tmp_path / "made", compression=compression)
    (tmp_path / "a").mkdir()
    [part] = (tmp_path / "made").glob("part-*")
    path = part.rename(tmp_path / "a" / "0.tfrecord")
    table = RecordTable(tmp_path / "a")
    table.batch([0, ROWS - 1])
    clock.now += 1
    looks: list[str] = []
    check = record_buffers.check_file
    monkeypatch.setattr(
        record_buffers, "check_file", lambda store, file: (looks.append(file.path), check(store, file))
    )
    for _ in range(5):
        assert table.batch([0, ROWS - 1])["id"].to_pylist() == [0, ROWS - 1]
        assert table[0]["id"] == 0
    assert looks == [str(path)]
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    clock.now += 1
    for read in (lambda: table.batch([0]), lambda: table[0]):
        with pytest.raises(FileChangedError):
            read()


def test_a_file_that_was_uploaded_again_with_the_same_content_is_read(
    linked: LinkedStore, frame: pd.DataFrame, clock: Clock
) -> None:
    place = linked.new_place()
    write(linked.fs, place, frame, foreign=True, snapshot={}, storage_options=linked.direct)
    table = RecordTable(place, storage_options=linked.options)
    for path in linked.fs.glob(f"{place}/*.tfrecord"):
        bucket, key = path.split("/", 1)
        data = linked.fs.cat_file(path)
        # An upload in parts gives the file another ETag.
        upload = linked.fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
        of_upload = {"Bucket": bucket, "Key": key, "UploadId": upload["UploadId"]}
        done = linked.fs.call_s3("upload_part", PartNumber=1, Body=data, **of_upload)
        parts = {"Parts": [{"PartNumber": 1, "ETag": done["ETag"]}]}
        linked.fs.call_s3("complete_multipart_upload", MultipartUpload=parts, **of_upload)
    rows = np.random.default_rng(5).integers(0, ROWS, 20)
    assert table.batch(rows)["id"].to_pylist() == rows.tolist()
    with linked.link.recording() as traffic:
        assert table.batch([10, 450, 880])["id"].to_pylist() == [10, 450, 880]
    assert traffic.methods.keys() <= {"GET"}


def test_records_of_a_block_are_copied_without_the_rest_of_it() -> None:
    data, offsets = pa.py_buffer(b"aabbbcdddd"), np.array([0, 2, 5, 6, 10])
    (copied, ends), rows = record_buffers._picked(record_buffers.Records(data, offsets), np.array([1, 3]))
    assert copied.to_pybytes() == b"bbbdddd"
    assert (ends.tolist(), rows.tolist()) == ([0, 3, 7], [0, 1])


@pytest.mark.sampled
@pytest.mark.parametrize(
    "remote", [kind for kind in KINDS if "foreign" not in kind or "with" in kind], indirect=True
)
def test_take_reads_the_blocks_of_random_rows_at_once(
    remote: str, linked: LinkedStore, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbered_rows, "BLOCK_BYTES", 1 << 13)
    dataset = open_dataset(remote, storage_options=linked.options)
    rows = np.random.default_rng(6).integers(0, ROWS, 8)
    dataset.take(rows[:1])  # also reads the snapshot
    with linked.link.recording(rounds=True) as traffic:
        assert dataset.take(rows)["id"].to_pylist() == frame["id"].iloc[rows].tolist()
    data = traffic.of("GET", "tfrecord")
    assert data.trips <= 2 <= data.at_once


@pytest.mark.parametrize("bytes_at_once", [0, 5000, 1 << 25])
def test_rows_of_many_blocks_are_read_in_bounded_parts(
    bytes_at_once: int, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "_BYTES_AT_ONCE", bytes_at_once)
    monkeypatch.setattr(numbered_rows, "BLOCK_BYTES", 1 << 10)
    MemoryFileSystem.store.clear()
    write(MemoryFileSystem(), "memory://bucket/dataset", frame, compression="gzip")
    rows = np.random.default_rng(7).integers(0, ROWS, 200)
    dataset = open_dataset("memory://bucket/dataset")
    assert dataset.take(rows)["noise"].to_pylist() == frame["noise"].iloc[rows].tolist()
    assert dataset.filter(pc.field("id") >= 333).count_rows() == ROWS - 333


def test_the_codecs_of_large_files_are_looked_up_at_once(linked: LinkedStore, frame: pd.DataFrame) -> None:
    place = linked.new_place()
    options = {"write_options": {"max_rows_per_file": 75}, "storage_options": linked.direct}
    write(linked.fs, place, frame, foreign=True, **options)
    schema = {"id": pa.int64()}
    with linked.link.recording(rounds=True) as traffic:
        ddf = read_tfrecord(place, schema=schema, blocksize=2000, storage_options=linked.options)
        assert ddf.npartitions > 12
    heads = [request for request in traffic if request.range == (0, 12)]
    assert (len(heads), type(traffic)(heads).trips) == (12, 1)
