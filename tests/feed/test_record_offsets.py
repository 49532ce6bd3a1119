"""Stored offsets: a table opens without the data, and never uses offsets of other files."""

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import dask_tfrecord
from dask_tfrecord import (
    ConcurrentWriteError,
    CorruptRecordError,
    DestinationError,
    FileChangedError,
    RecordTable,
    TFRecordError,
    to_tfrecord,
)
from dask_tfrecord.dataset.snapshot import offsets as stored
from dask_tfrecord.feed import record_buffers, record_offsets, record_table
from dask_tfrecord.files import writing

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = 400


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    MemoryFileSystem.store.clear()
    monkeypatch.setattr(writing, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(record_table, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(stored, "_GROUP_RECORDS", 100)


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "dataset") if request.param == "local" else "memory://bucket/dataset"


def write(path: Any, start: int = 0, **options: Any) -> None:
    numbers = np.arange(start, start + ROWS)
    data = pd.DataFrame({"id": numbers, "key": numbers % 3, "text": ["é" * (n % 50) for n in numbers]})
    to_tfrecord(dd.from_pandas(data, npartitions=3), path, **options)


def refuse_to_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*args: Any) -> None:
        raise AssertionError("the records are searched")

    monkeypatch.setattr(record_offsets, "_scan", search)


@pytest.mark.parametrize("options", [{}, {"partition_on": "key"}, {"max_rows_per_file": 7}])
def test_a_table_with_stored_offsets_gives_the_same_rows(
    root: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, **options)
    before = RecordTable(root)
    expected = before[:]
    place = before.store_offsets()
    assert place.endswith("dataset/_tfrecord/00000001.offsets.parquet")
    refuse_to_search(monkeypatch)
    table = RecordTable(root)
    assert table[:].equals(expected)
    rows = random.Random(1).choices(range(ROWS), k=60)
    ids = expected["id"].to_pylist()
    assert [table[row]["id"] for row in rows] == [ids[row] for row in rows]
    for count in (1, 5, 40):
        assert table[rows[:count]]["id"].to_pylist() == [ids[row] for row in rows[:count]]
    assert [row["id"] for row in table] == ids


def test_another_process_opens_a_table_without_the_data(tmp_path: Path) -> None:
    write(tmp_path)
    RecordTable(tmp_path).store_offsets()
    for path in tmp_path.glob("part-*"):  # no byte of the data is left, only the sizes and the times
        status = path.stat()
        os.truncate(path, 0)
        os.truncate(path, status.st_size)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    code = f"import dask_tfrecord; print(len(dask_tfrecord.RecordTable({str(tmp_path)!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == ROWS
    with pytest.raises(CorruptRecordError, match="part-"):
        _ = RecordTable(tmp_path)[5]
    (tmp_path / "_tfrecord" / "00000001.offsets.parquet").unlink()
    with pytest.raises(CorruptRecordError, match="part-"):
        RecordTable(tmp_path)


def test_remote_records_are_read_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    root = "memory://bucket/dataset"
    write(root)
    RecordTable(root).store_offsets()
    read: list[int] = []
    original = MemoryFileSystem.cat_ranges

    def counted(self: Any, paths: Any, starts: Any, stops: Any, **options: Any) -> Any:
        read.extend(stop - start for start, stop in zip(starts, stops, strict=True))
        return original(self, paths, starts, stops, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_ranges", counted)
    table = RecordTable(root)
    assert read == []
    monkeypatch.setattr(record_buffers, "read_block", None)
    frame = len(max(MemoryFileSystem.store.values(), key=lambda file: file.size).getvalue()) // ROWS * 3
    assert table[[3, 150, 390]]["id"].to_pylist() == [3, 150, 390]
    assert len(read) == 3
    assert max(read) < 2 * frame < 1 << 10


def test_records_of_one_block_are_read_together_and_then_from_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = "memory://bucket/dataset"
    write(root)
    RecordTable(root).store_offsets()
    blocks: list[int] = []
    original = record_buffers.read_block

    def counted(store: Any, options: Any, split: Any) -> Any:
        blocks.append(split.start.record)
        return original(store, options, split)

    monkeypatch.setattr(record_buffers, "read_block", counted)
    table = RecordTable(root)
    assert [table[row]["id"] for row in range(60)] == list(range(60))
    assert len(blocks) == len(set(blocks)) > 2


def test_an_append_needs_offsets_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    old = RecordTable(tmp_path)
    first = Path(old.store_offsets())
    data = first.read_bytes()
    write(tmp_path, ROWS, append=True)
    table = RecordTable(tmp_path)
    assert len(table) == 2 * ROWS
    assert Path(table.store_offsets()).name == "00000002.offsets.parquet"
    assert first.read_bytes() == data
    refuse_to_search(monkeypatch)
    assert RecordTable(tmp_path)[:].equals(table[:])
    assert Path(old.store_offsets()) == first


def test_an_overwrite_removes_the_offsets(root: str) -> None:
    write(root)
    table = RecordTable(root)
    table.store_offsets()
    write(root, ROWS, overwrite=True)
    metadata = table._dataset.store.names("_tfrecord")
    assert metadata == ["00000002.parquet"]
    assert RecordTable(root)[0]["id"] == ROWS


def test_offsets_stored_during_an_overwrite_are_removed(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root)
    table = RecordTable(root)
    encode = record_offsets.to_parquet

    def overtaken(files: Any) -> bytes:
        data = encode(files)
        write(root, ROWS, overwrite=True)
        return data

    monkeypatch.setattr(record_offsets, "to_parquet", overtaken)
    with pytest.raises(ConcurrentWriteError, match="dataset"):
        table.store_offsets()
    assert table._dataset.store.names("_tfrecord") == ["00000002.parquet"]


def test_cleanup_removes_offsets_without_a_snapshot(tmp_path: Path) -> None:
    write(tmp_path)
    place = Path(RecordTable(tmp_path).store_offsets())
    orphan = place.with_name("00000007.offsets.parquet")
    orphan.write_bytes(place.read_bytes())
    assert dask_tfrecord.cleanup(tmp_path) == []
    assert dask_tfrecord.cleanup(tmp_path, older_than="0s") == ["_tfrecord/00000007.offsets.parquet"]
    assert place.exists()


def test_offsets_of_other_files_are_not_used(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b", ROWS)
    stale = Path(RecordTable(tmp_path / "a").store_offsets())
    target = tmp_path / "b" / "_tfrecord" / stale.name
    target.write_bytes(stale.read_bytes())
    table = RecordTable(tmp_path / "b")
    assert table[:]["id"].to_pylist() == list(range(ROWS, 2 * ROWS))
    with pytest.raises(DestinationError, match="remove the file"):
        table.store_offsets()
    assert target.read_bytes() == stale.read_bytes()


def test_offsets_of_a_rewritten_file_are_not_used(tmp_path: Path) -> None:
    write(tmp_path / "made")
    (tmp_path / "a").mkdir()
    for number, part in enumerate(sorted((tmp_path / "made").glob("part-*"))):
        part.rename(tmp_path / "a" / f"{number}.tfrecord")
    dask_tfrecord.index(tmp_path / "a")
    RecordTable(tmp_path / "a").store_offsets()
    path = tmp_path / "a" / "0.tfrecord"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little") + 16
    path.write_bytes(whole[length:] + whole[:length])  # the same size, with other offsets
    os.utime(path, (1, 1))
    table = RecordTable(tmp_path / "a")
    assert table[:3]["id"].to_pylist() == [1, 2, 3]
    with pytest.raises(FileChangedError, match=r"dask_tfrecord\.index"):
        table.store_offsets()


def test_a_file_that_was_rewritten_after_the_table_was_made_raises(root: str) -> None:
    write(root)
    RecordTable(root).store_offsets()
    table = RecordTable(root)
    store = table._dataset.store
    path = store.join(dask_tfrecord.Snapshot.open(root).files[0].path)
    data = store.fs.cat_file(path)
    store.fs.pipe_file(path, data[:20])
    with pytest.raises(FileChangedError):
        table[[0, 1]]
    with pytest.raises(FileChangedError):
        _ = table[1]


@pytest.mark.parametrize("damage", ["cut", "flip", "lengths"])
def test_damaged_offsets_raise_and_name_the_file(tmp_path: Path, damage: str) -> None:
    write(tmp_path)
    place = Path(RecordTable(tmp_path).store_offsets())
    if damage == "lengths":
        rows = pq.read_table(place).to_pylist()
        rows[0]["lengths"][3] += 1
        pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(place)), place)
    else:
        data = bytearray(place.read_bytes())
        if damage == "flip":  # in the page of the lengths
            column = pq.read_metadata(place).row_group(0).column(3)
            data[column.data_page_offset + column.total_compressed_size - 5] ^= 1
        place.write_bytes(data[:-9] if damage == "cut" else data)
    with pytest.raises(TFRecordError, match=r"(?s)00000001\.offsets\.parquet.*remove the file"):
        RecordTable(tmp_path)


def test_offsets_are_stored_once(root: str) -> None:
    write(root)
    tables = [RecordTable(root) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        [place] = set(pool.map(RecordTable.store_offsets, tables))
    store = tables[0]._dataset.store
    data = store.fs.cat_file(place)
    assert RecordTable(root).store_offsets() == place
    assert store.fs.cat_file(place) == data
    assert sorted(store.names("_tfrecord")) == ["00000001.offsets.parquet", "00000001.parquet"]


def test_compressed_files_have_no_stored_offsets(root: str) -> None:
    write(root, compression="gzip")
    with pytest.raises(TFRecordError, match="compressed"):
        RecordTable(root).store_offsets()
    write(root, ROWS, append=True)
    place = RecordTable(root).store_offsets()
    files = dask_tfrecord.Snapshot.open(root).files
    table = RecordTable(root)
    assert table[:]["id"].to_pylist() == list(range(2 * ROWS))
    with table._dataset.store.fs.open(place) as file:
        paths = pq.read_table(file)["path"].to_pylist()
    assert paths == [one.path for one in files if one.path.endswith(".tfrecord")]


def test_files_without_a_snapshot_have_no_place_for_offsets(tmp_path: Path) -> None:
    write(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match=r"dask_tfrecord\.index"):
        RecordTable([tmp_path / "a"]).store_offsets()
    with pytest.raises(DestinationError, match=r"call dask_tfrecord.RecordTable\('.*/a'\)"):
        RecordTable(f"{tmp_path}/a/*.tfrecord").store_offsets()
    (tmp_path / "a" / "_tfrecord").rename(tmp_path / "away")
    dask_tfrecord.index(tmp_path / "a")
    assert RecordTable(tmp_path / "a").store_offsets()
    assert RecordTable(tmp_path / "a")[5]["id"] == 5


def test_other_readers_ignore_the_offsets(root: str) -> None:
    write(root)
    RecordTable(root).store_offsets()
    assert len(dask_tfrecord.read_tfrecord(root)) == ROWS
    assert dask_tfrecord.verify(root)["agrees"].all()
    assert dask_tfrecord.take(root, [7])["id"].tolist() == [7]
    assert dask_tfrecord.Snapshot.open(root).number == 1
    write(root, ROWS, append=True)
    assert dask_tfrecord.Snapshot.open(root).number == 2


def test_offsets_take_about_a_byte_for_each_record(tmp_path: Path) -> None:
    data = pd.DataFrame({"n": np.random.default_rng(0).integers(0, 1 << 40, 50_000)})
    to_tfrecord(dd.from_pandas(data, npartitions=2), tmp_path)
    place = Path(RecordTable(tmp_path).store_offsets())
    assert place.stat().st_size < 1.1 * len(data)


def test_a_file_without_records(tmp_path: Path) -> None:
    data = pd.DataFrame({"n": [1, 2]})
    ddf = dd.from_pandas(data, npartitions=2)
    to_tfrecord(ddf[ddf["n"] == 2], tmp_path)
    RecordTable(tmp_path).store_offsets()
    assert RecordTable(tmp_path)[0] == {"n": 2}


@pytest.mark.parametrize("options", [{}, {"partition_on": "key"}, {"max_rows_per_file": 7}])
def test_a_table_takes_the_offsets_of_column_files(
    root: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, columnar=["id"], **options)
    expected = dask_tfrecord.read_tfrecord(root).compute()["id"].tolist()
    refuse_to_search(monkeypatch)
    monkeypatch.setattr(record_buffers, "read_block", None)
    table = RecordTable(root)
    for rows in ([3], [150, 3, 390], random.Random(1).sample(range(ROWS), k=9)):
        assert RecordTable(root)[rows]["id"].to_pylist() == [expected[row] for row in rows]
    if not root.startswith("memory"):
        assert table[:]["id"].to_pylist() == expected


def test_column_files_of_compressed_files_have_the_offsets_of_other_bytes(tmp_path: Path) -> None:
    write(tmp_path, columnar=["id"], compression="gzip")
    assert RecordTable(tmp_path)[:]["id"].to_pylist() == list(range(ROWS))
