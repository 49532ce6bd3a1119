"""`index`: creates a snapshot of a directory of files by any writer.

Modules: dataset.maintenance.full_scan, dataset.read.sample.
"""

import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import fsspec
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from servers import s3_server

import dask_tfrecord
from dask_tfrecord import (
    ConcurrentWriteError,
    CorruptRecordError,
    DestinationError,
    SchemaError,
    Snapshot,
    TFRecordError,
    read_tfrecord,
)
from dask_tfrecord.dataset.maintenance import full_scan
from dask_tfrecord.dataset.read import sample
from dask_tfrecord.files import find_blocks as locate
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def content(first: int, count: int) -> bytes:
    """A file of Examples with the features n, list and name; every third Example has no name."""
    return oracle.features_file(
        [
            {
                "n": ("int64", [n]),
                "list": ("int64", [n] * (n % 4)),
                **({"name": ("bytes", [b"row %d" % n])} if n % 3 else {}),
            }
            for n in range(first, first + count)
        ]
    )


FILES = {
    "country=DE/day=1/a.tfrecord": (0, 50, None),
    "country=DE/day=2/b.tfrecord.gz": (50, 30, "gzip"),
    "country=US/day=1/c": (80, 400, None),
    "country=US/day=3/empty": (480, 0, None),
    "country=US/day=3/z": (480, 20, "zlib"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for name, (first, count, compression) in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(oracle.compress(content(first, count), compression) if count else b"")
    (root / "_SUCCESS").touch()
    return root


@pytest.fixture(params=[1_000, 1 << 27])
def _task_sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks read parts of files, or whole files."""
    monkeypatch.setattr(sample, "TASK_BYTES", request.param)
    monkeypatch.setattr(full_scan, "BLOCK_BYTES", 500)
    monkeypatch.setattr(sample, "BLOCK_BYTES", 500)


@pytest.mark.usefixtures("_task_sizes")
def test_the_snapshot_says_what_is_in_the_files(root: Path) -> None:
    snapshot = dask_tfrecord.index(root)
    assert snapshot.records == 500
    assert [column.name for column in snapshot.partitioning] == ["country", "day"]
    assert {file.path for file in snapshot.files} == set(FILES)
    for file in snapshot.files:
        first, count, compression = FILES[file.path]
        stored = (root / file.path).read_bytes()
        country, day = file.path.split("/")[:2]
        assert (file.bytes, file.records) == (len(stored), count)
        assert file.crc32c == oracle.crc32c(stored)
        assert file.values == (country[8:], int(day[4:]))
        n, lists, name = (
            {column.name: column for column in file.statistics}[c] for c in ("n", "list", "name")
        )
        if not count:
            continue
        assert (n.min, n.max, n.nulls) == (first, first + count - 1, 0)
        assert (lists.min_length, lists.max_length) == (0, 3)
        names = [f"row {i}" for i in range(first, first + count) if i % 3]
        assert (name.min, name.max, name.nulls) == (min(names), max(names), count - len(names))
        if compression:
            assert file.blocks == ()
        else:
            starts = [0]
            for payload in oracle.frames(stored):
                starts.append(starts[-1] + len(payload) + 16)
            assert file.blocks[0] == (0, 0, 0)
            assert all(block == (starts[block.record],) * 2 + (block.record,) for block in file.blocks)
            gaps = [b.offset - a.offset for a, b in zip(file.blocks, file.blocks[1:], strict=False)]
            assert max(gaps, default=0) < 2 * 500 + 100  # and a record


@pytest.mark.usefixtures("_task_sizes")
def test_the_next_reader_reads_the_same_and_opens_nothing_to_know_it(root: Path, opened: list[str]) -> None:
    before = read_tfrecord(root).compute()
    snapshot = dask_tfrecord.index(root)
    assert Snapshot.open(root) == snapshot
    opened.clear()
    ddf = read_tfrecord(root, blocksize=2_000)
    assert len(ddf) == 500
    assert opened == []
    assert ddf.npartitions > len(FILES)
    after = ddf.compute()
    pd.testing.assert_frame_equal(after.reset_index(drop=True), before.reset_index(drop=True))


def test_a_rare_feature_in_the_last_record_is_a_column(tmp_path: Path) -> None:
    for name in "abcdefghij":
        (tmp_path / name).write_bytes(content(0, 3))
    (tmp_path / "f").write_bytes(
        content(0, 3) + oracle.features_file([{"n": ("int64", [1]), "rare": ("int64", [1, 2])}])
    )
    snapshot = dask_tfrecord.index(tmp_path)
    assert snapshot.schema.arrow.field("rare").type == pa.list_(pa.int64())
    frame = read_tfrecord(tmp_path).compute()
    assert frame["rare"].dropna().tolist() == [[1, 2]]


def test_a_feature_with_an_empty_name_is_a_column(tmp_path: Path, data: Path) -> None:
    shutil.copy(data / "writers/tf_plain.tfrecord", tmp_path)
    before = read_tfrecord(tmp_path).compute()
    assert "" in before
    dask_tfrecord.index(tmp_path)
    after = read_tfrecord(tmp_path).compute()
    assert after[""].equals(before[""])
    assert dask_tfrecord.verify(tmp_path)["agrees"].all()


def test_types_and_record_types_may_be_given(root: Path, tmp_path: Path) -> None:
    snapshot = dask_tfrecord.index(root, schema={"n": pa.int16(), "day": pa.string()}, hive=True)
    assert snapshot.schema.arrow.field("n").type == pa.int16()
    assert {file.values[1] for file in snapshot.files} == {"1", "2", "3"}
    other = tmp_path / "other"
    other.mkdir()
    (other / "x").write_bytes(oracle.records_file([b"anything", b""]))
    snapshot = dask_tfrecord.index(other, record_type="bytes")
    assert snapshot.records == 2
    assert read_tfrecord(other)["record"].compute().tolist() == [b"anything", b""]


def test_there_is_never_a_second_one(root: Path) -> None:
    dask_tfrecord.index(root)
    with pytest.raises(DestinationError, match="already has a snapshot"):
        dask_tfrecord.index(root)


def test_two_at_once_store_two_versions_of_the_same_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    creating = Store.create_exclusively

    def overtaken(self: Store, path: str, data: bytes) -> None:
        monkeypatch.setattr(Store, "create_exclusively", creating)
        kept.append(dask_tfrecord.index(root))
        creating(self, path, data)

    monkeypatch.setattr(Store, "create_exclusively", overtaken)
    second = dask_tfrecord.index(root)
    assert Snapshot.open(root) == second
    assert (second.number, second.ancestors, second.files) == (2, (kept[0].run,), kept[0].files)


def test_an_index_whose_answer_is_lost_is_not_taken_for_that_of_another(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    creating = Store.create_exclusively

    def retried(self: Store, path: str, data: bytes) -> None:
        creating(self, path, data)
        creating(self, path, data)

    monkeypatch.setattr(Store, "create_exclusively", retried)
    assert dask_tfrecord.index(root) == Snapshot.open(root)


def test_damage_raises_and_nothing_is_written(root: Path) -> None:
    path = root / "country=US/day=1/c"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptRecordError, match=r"c, record 399"):
        dask_tfrecord.index(root)
    assert not (root / "_tfrecord").exists()


@pytest.mark.parametrize("name", ["country=DE/day=2/b.tfrecord.gz", "country=US/day=3/z"])
def test_a_stream_that_is_cut_off_raises(name: str, root: Path) -> None:
    (root / name).write_bytes((root / name).read_bytes()[:-3])
    with pytest.raises(CorruptRecordError, match=f"{name}.*cut off"):
        dask_tfrecord.index(root)
    with pytest.raises(CorruptRecordError, match=f"{name}.*cut off"):
        dask_tfrecord.index(root, schema=pa.schema({"n": pa.int64()}), record_type="example")


def test_values_that_do_not_fit_raise_and_nothing_is_written(root: Path) -> None:
    with pytest.raises(SchemaError, match="does not fit int8"):
        dask_tfrecord.index(root, schema={"n": pa.int8()})
    assert not (root / "_tfrecord").exists()


def test_what_is_no_directory_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(TFRecordError, match="not a directory"):
        dask_tfrecord.index(root / "country=US/day=1/c")
    (tmp_path / "empty").mkdir()
    for path in ("nothing", "empty", "data/*"):
        with pytest.raises(FileNotFoundError):
            dask_tfrecord.index(tmp_path / path)


@pytest.mark.parametrize("scheme", ["memory", "s3"])
def test_directories_on_other_stores_are_indexed(scheme: str) -> None:
    with s3_server() as options:
        used = options if scheme == "s3" else {}
        fs = fsspec.filesystem(scheme, **used)
        if scheme == "s3":
            fs.call_s3("create_bucket", Bucket="indexed")
        for name, (first, count, compression) in FILES.items():
            if count:
                fs.pipe_file(f"/indexed/data/{name}", oracle.compress(content(first, count), compression))
        url = f"{scheme}://indexed/data"
        snapshot = dask_tfrecord.index(url, storage_options=used)
        assert len(read_tfrecord(url, storage_options=used)) == snapshot.records == 500


def test_other_processes_do_the_work(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "TASK_BYTES", 5_000)
    monkeypatch.setattr(locate, "TASK_BYTES", 5_000)
    with (
        ProcessPoolExecutor(2, get_context("spawn")) as pool,
        dask.config.set(scheduler="processes", pool=pool),
    ):
        found = read_tfrecord(root, blocksize=5_000)
        assert found.npartitions >= len(FILES)
        assert len(found) == 500
        assert dask_tfrecord.index(root).records == 500
        rows = dask_tfrecord.take(root, range(499, -1, -1), columns=["n"])
        assert rows["n"].tolist() == list(range(499, -1, -1))
        assert dask_tfrecord.verify(root)["agrees"].all()


def test_an_append_keeps_what_the_index_left_out(tmp_path: Path) -> None:
    """The records still hold a feature that is no column, and reading all columns must allow it."""
    rows = [{"x": ("int64", [value]), "y": ("int64", [2])} for value in (1, 3)]
    (tmp_path / "a.tfrecord").write_bytes(oracle.features_file(rows))
    dask_tfrecord.index(tmp_path, schema={"y": None})
    dask_tfrecord.to_tfrecord(dd.from_dict({"x": [5]}, npartitions=1), tmp_path, append=True)
    assert sorted(read_tfrecord(tmp_path).compute()["x"]) == [1, 3, 5]


def test_the_number_of_a_removed_version_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two overwrites removes the version of the first before the index is stored."""
    dask_tfrecord.to_tfrecord(pa.table({"n": [1]}), tmp_path)
    for path in tmp_path.glob("part-*"):
        os.utime(path, ns=(1, 1))
    change, others = full_scan._Describe.change, iter([2, 3])

    def late(*args: Any) -> Any:
        planned = change(*args)
        for n in others:
            dask_tfrecord.to_tfrecord(pa.table({"n": [n]}), tmp_path, overwrite=True)
        return planned

    monkeypatch.setattr(full_scan._Describe, "change", late)
    with pytest.raises(ConcurrentWriteError, match="another write replaced the files"):
        dask_tfrecord.index(tmp_path)
    assert [path.name for path in (tmp_path / "_tfrecord").iterdir()] == ["00000003.parquet"]
    assert read_tfrecord(tmp_path)["n"].compute().tolist() == [3]
