"""Offsets in column files: a table opens without the data, and never uses offsets of other files.

Modules: feed.rows.record_buffers, feed.record_table.
"""

import gzip
import io
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import dask_tfrecord
from dask_tfrecord import CorruptRecordError, FileChangedError, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.feed import RecordTable, record_table
from dask_tfrecord.feed.rows import record_buffers
from dask_tfrecord.files import column_files, file_writer
from dask_tfrecord.files.column_files import open_column_file
from dask_tfrecord.files.record_file import RecordFile, Records

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = 400


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    MemoryFileSystem.store.clear()
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(record_table, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(column_files, "_GROUP_ROWS", 100)


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "dataset") if request.param == "local" else "memory://bucket/dataset"


def write(path: Any, start: int = 0, **options: Any) -> None:
    numbers = np.arange(start, start + ROWS)
    data = pd.DataFrame({"id": numbers, "key": numbers % 3, "text": ["é" * (n % 50) for n in numbers]})
    to_tfrecord(dd.from_pandas(data, npartitions=3), path, **options)


@pytest.mark.parametrize(
    "options", [{}, {"partition_on": "key"}, {"write_options": {"max_rows_per_file": 7}}]
)
def test_a_table_with_stored_offsets_gives_the_same_rows(
    root: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, **options)
    before = RecordTable(root)
    expected = before[:]
    dask_tfrecord.open_dataset(root).add_snapshot(columnar=[])
    monkeypatch.setattr(record_buffers, "_find_records", None)  # the records are not searched
    table = RecordTable(root)
    assert table[:].equals(expected)
    rows = random.Random(1).choices(range(ROWS), k=60)
    ids = expected["id"].to_pylist()
    assert [table[row]["id"] for row in rows] == [ids[row] for row in rows]
    for count in (1, 5, 40):
        assert table[rows[:count]]["id"].to_pylist() == [ids[row] for row in rows[:count]]
    assert [row["id"] for row in table] == ids
    write(root, ROWS, append=True, **options)
    assert sorted(RecordTable(root)[:]["id"].to_pylist()) == list(range(2 * ROWS))


def test_another_process_opens_a_table_without_the_data(tmp_path: Path) -> None:
    write(tmp_path, columnar=[])
    for path in tmp_path.glob("part-*"):  # no byte of the data is left, only the sizes and the times
        status = path.stat()
        os.truncate(path, 0)
        os.truncate(path, status.st_size)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    code = f"import dask_tfrecord; print(len(dask_tfrecord.feed.RecordTable({str(tmp_path)!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == ROWS
    with pytest.raises(CorruptRecordError, match="part-"):
        _ = RecordTable(tmp_path)[5]
    for path in tmp_path.glob("_tfrecord/columns/*"):
        path.unlink()
    open_column_file.cache_clear()  # the process keeps small column files
    with pytest.raises(CorruptRecordError, match="part-"):
        RecordTable(tmp_path)


@pytest.mark.parametrize(("columnar", "columns"), [("scalars", ["id"]), ("auto", ["text", "key"])])
@pytest.mark.usefixtures("column_files_of_all")
def test_stored_columns_need_no_records(
    tmp_path: Path, columnar: str, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, columnar=columnar, partition_on="key")
    expected = RecordTable(tmp_path)[:]
    rows = [7, 300, -1, 7]
    files = [*tmp_path.rglob("part-*")]
    for path in files:
        path.write_bytes(bytes(path.stat().st_size))
    table = RecordTable(tmp_path, columns=columns)
    for opened in (table, pickle.loads(pickle.dumps(table))):
        assert opened[rows].equals(expected.select(columns).take(pa.array([7, 300, len(expected) - 1, 7])))
        assert opened[-1] == {name: expected[name][-1].as_py() for name in columns}
        assert opened[pc.field("id") < 9]["key" if "key" in columns else "id"].to_pylist()
        assert opened[:0].schema == opened.schema
    monkeypatch.setattr(record_table, "_KEPT_BYTES", 400)
    with pytest.raises(CorruptRecordError):  # the columns take too much memory
        _ = RecordTable(tmp_path, columns=columns)[rows]


def test_remote_records_are_read_by_their_bytes_or_by_whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    root = "memory://bucket/dataset"
    write(root, columnar=[])
    read: list[int] = []
    blocks: list[int] = []
    ranges, records = MemoryFileSystem.cat_ranges, RecordFile.records

    def counted(self: Any, paths: Any, starts: Any, stops: Any, **options: Any) -> Any:
        spans = zip(paths, starts, stops, strict=True)
        read.extend(stop - start for path, start, stop in spans if "_tfrecord" not in path)
        return ranges(self, paths, starts, stops, **options)

    def counted_block(file: RecordFile, **options: Any) -> Records:
        blocks.append(file.split.start.record)
        return records(file, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_ranges", counted)
    monkeypatch.setattr(RecordFile, "records", counted_block)
    table = RecordTable(root)
    assert read == []
    frame = len(max(MemoryFileSystem.store.values(), key=lambda file: file.size).getvalue()) // ROWS * 3
    assert table[[3, 150, 390]]["id"].to_pylist() == [3, 150, 390]
    assert len(read) == 3
    assert max(read) < 2 * frame < 1 << 10
    assert blocks == []
    # Records of one block are read together, and then from memory.
    assert [table[row]["id"] for row in range(60)] == list(range(60))
    assert len(blocks) == len(set(blocks)) > 2


def test_offsets_of_a_rewritten_file_are_not_used(tmp_path: Path) -> None:
    write(tmp_path / "made")
    (tmp_path / "a").mkdir()
    for number, part in enumerate(sorted((tmp_path / "made").glob("part-*"))):
        part.rename(tmp_path / "a" / f"{number}.tfrecord")
    dask_tfrecord.open_dataset(tmp_path / "a").add_snapshot(columnar=[])
    path = tmp_path / "a" / "0.tfrecord"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little") + 16
    path.write_bytes(whole[length:] + whole[:length])  # the same size, with other offsets
    os.utime(path, (1, 1))
    with pytest.raises(FileChangedError, match=r"\.add_snapshot\("):
        _ = RecordTable(tmp_path / "a")[:3]


def test_a_file_that_was_rewritten_after_the_table_was_made_raises(root: str) -> None:
    write(root, columnar=[])
    table = RecordTable(root)
    store = table._dataset.store
    path = store.join(Snapshot.open(root).files[0].path)
    data = store.fs.cat_file(path)
    store.fs.pipe_file(path, data[:20])
    with pytest.raises(FileChangedError):
        table[[0, 1]]
    with pytest.raises(FileChangedError):
        _ = table[1]


def test_offsets_take_about_a_byte_for_each_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_files, "_GROUP_ROWS", 1 << 17)
    numbers = np.random.default_rng(0).integers(0, 1 << 40, 50_000)
    to_tfrecord(pa.table({"n": numbers}), tmp_path, columnar=[], write_options={"max_rows_per_file": 25_000})
    assert sum(path.stat().st_size for path in tmp_path.glob("_tfrecord/columns/*")) < 1.2 * len(numbers)


def test_a_compressed_file_has_the_size_of_its_content(tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(150)
    images = [noise + b"a" * n for n in range(100)]
    to_tfrecord(
        pa.table({"image": images}),
        tmp_path,
        columnar=[],
        compression="gzip",
        write_options={"max_rows_per_file": 1},
    )
    stored = [path.read_bytes() for path in tmp_path.glob("*.gz")]
    assert any(len(gzip.decompress(one)) == len(one) for one in stored)
    assert RecordTable(tmp_path)[:]["image"].to_pylist() == images


def test_no_name_says_that_a_file_is_compressed(root: str) -> None:
    write("memory://bucket/plain")
    plain = [file.getvalue() for path, file in MemoryFileSystem.store.items() if path.endswith(".tfrecord")]
    for number, content in enumerate(plain):
        padded = io.BytesIO()
        name = "x" * (len(content) - len(gzip.compress(content)) - 1)
        with gzip.GzipFile(name, "wb", fileobj=padded) as stream:  # the header has the name
            stream.write(content)
        assert len(padded.getvalue()) == len(content)
        with fsspec.open(f"{root}/{number}.tfrecord", "wb") as file:
            file.write(padded.getvalue())
    dask_tfrecord.open_dataset(root).add_snapshot(columnar=[])
    table = RecordTable(root)
    assert sorted(table[n]["id"] for n in range(len(table))) == list(range(ROWS))


@pytest.mark.parametrize(
    ("damage", "compression"), [("cut", None), ("flip", None), ("removed", "gzip"), (None, "gzip")]
)
def test_without_usable_column_files_the_records_are_searched(
    tmp_path: Path, damage: str | None, compression: Any
) -> None:
    write(tmp_path, columnar=[], compression=compression)
    for path in tmp_path.glob("_tfrecord/columns/*"):
        data = bytearray(path.read_bytes())
        if damage == "flip":  # in the page of the offsets
            column = pq.read_metadata(path).row_group(0).column(0)
            data[column.data_page_offset + column.total_compressed_size - 5] ^= 1
        path.write_bytes(data[:-9] if damage == "cut" else data)
        if damage == "removed":
            path.unlink()
    assert RecordTable(tmp_path)[:]["id"].to_pylist() == list(range(ROWS))
