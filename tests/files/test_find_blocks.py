"""The search for record boundaries in large files of other writers, with nested records and damage.

Modules: files.find_blocks, files.window, files.entry, files.file_options.
"""

from bisect import bisect
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import oracle
import pytest
from damaged_files import damaged_files, kept_records
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_tfrecord import CorruptRecordError, read_tfrecord
from dask_tfrecord.codec import MAX_RECORD_BYTES
from dask_tfrecord.dataset.read.discovery import one_by_one
from dask_tfrecord.files import find_blocks as module
from dask_tfrecord.files.damage import DamagePolicy
from dask_tfrecord.files.entry import Block
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.find_blocks import find_blocks
from dask_tfrecord.files.splits import BlockIndex
from dask_tfrecord.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def located(data: bytes, task_bytes: int, every: int = 1, **options: Any) -> BlockIndex | None:
    """The boundaries that are found in a file with this content."""
    store = Store.at("memory://located")
    store.fs.pipe_file("/located/file", data)
    info = FileInfo("/located/file", len(data))
    found = find_blocks(
        store, [info], ReadOptions(**options), one_by_one, task_bytes=task_bytes, block_bytes=every
    )
    return found.get(info.path)


def check(data: bytes, task_bytes: int, limit: int = MAX_RECORD_BYTES) -> None:
    options = {"compression": None, "max_record_bytes": limit, "damage": DamagePolicy("skip")}
    found = located(data, task_bytes, **options)
    kept, lost = kept_records(data, limit)
    starts = [at for at, _ in kept]
    damaged = [at for at, _ in lost]
    assert found is not None
    assert found.records == len(starts) + len(damaged)
    blocks = [Block(at, at, number) for number, at in enumerate(sorted(starts + damaged)) if at in starts]
    assert list(found.blocks) == (blocks if starts[:1] == [0] else [Block(0, 0, 0), *blocks])
    assert set(found.damaged) <= set(damaged)
    assert {bisect(starts, at) for at in found.damaged} == {bisect(starts, at) for at in damaged}


def nested(depth: int) -> bytes:
    """A file in which some records hold whole TFRecord files."""
    payloads = [b"x" * 30, b"", b"first"]
    if depth:
        payloads += [nested(depth - 1), b"between", nested(depth - 1) + b"end"]
    return oracle.records_file([*payloads, bytes(25), b"last"])


@pytest.mark.parametrize(
    ("task_bytes", "window"),
    [(1, 1), (7, 50), (16, 1), (30, 50), (64, 1 << 22), (100, 1), (333, 50), (1000, 1)],
)
def test_records_that_hold_whole_files_are_not_taken_for_theirs(task_bytes: int, window: int) -> None:
    with patch.object(module, "WINDOW_BYTES", window):
        check(nested(2), task_bytes)


@given(
    (damaged_files() | st.binary(max_size=1000)).filter(len),
    st.sampled_from([1, 5, 20, 64, 1000]),
    st.sampled_from([1, 30, 1 << 22]),
    st.sampled_from([MAX_RECORD_BYTES, 20, 100]),
)
def test_what_is_located_is_what_a_walk_from_the_start_meets(
    data: bytes, task_bytes: int, window: int, limit: int
) -> None:
    with patch.object(module, "WINDOW_BYTES", window), patch.object(module, "detect", lambda head: None):
        check(data, task_bytes, limit)


def test_blocks_are_as_far_apart_as_asked_for_and_compressed_files_have_none() -> None:
    data = oracle.records_file([b"x" * (n % 50) for n in range(200)])
    found = located(data, 1000, every=300)
    assert found is not None
    starts = [at for at, _ in kept_records(data)[0]]
    assert all(starts[block.record] == block.offset == block.content for block in found.blocks)
    gaps = [b.offset - a.offset for a, b in zip(found.blocks, found.blocks[1:], strict=False)]
    assert min(gaps) >= 300
    assert max(gaps) < 2 * 300 + 66  # and a record
    assert located(oracle.compress(nested(1), "gzip"), 100) is None
    assert located(nested(1), 100, compression="gzip") is None


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The range of each read of a file."""
    found: list[tuple[int, int]] = []
    opening = Store.open

    def noting(self: Store, path: str, size: int, start: int, stop: int, *more: Any, **options: Any) -> Any:
        found.append((start, stop))
        return opening(self, path, size, start, stop, *more, **options)

    monkeypatch.setattr(Store, "open", noting)
    monkeypatch.setattr(module, "_is_plain", lambda store, file: True)
    return found


def test_a_task_reads_its_split_and_little_more(reads: list[tuple[int, int]]) -> None:
    data = oracle.records_file([bytes([n % 251]) * 900 for n in range(3000)])
    with patch.object(module, "WINDOW_BYTES", 20_000):
        found = located(data, 500_000)
    assert found is not None
    assert found.records == 3000
    assert sum(stop - start for start, stop in reads) < len(data) + 6 * 20_000


def test_a_record_longer_than_the_window_is_passed_over_unread(reads: list[tuple[int, int]]) -> None:
    data = oracle.records_file([b"a", b"x" * 1_000_000, b"b"])
    starts = [at for at, _ in kept_records(data)[0]]
    with patch.object(module, "WINDOW_BYTES", 1000):
        found = located(data, len(data))
    assert found is not None
    assert [(block.offset, block.record) for block in found.blocks] == [*zip(starts, range(3), strict=True)]
    assert [start for start, _ in reads] == [0, starts[2]]


# --- read_tfrecord ------------------------------------------------------------------------------------------


@settings(max_examples=max(10, settings().max_examples * 3 // 10))
@given(
    st.recursive(
        st.binary(max_size=30),
        lambda inner: st.lists(inner, max_size=4).map(oracle.records_file),
        max_leaves=8,
    ).map(lambda payload: oracle.records_file([b"first", payload, payload, b"last"])),
    st.integers(1, 100),
)
def test_together_the_partitions_of_any_blocksize_are_the_file(data: bytes, blocksize: int) -> None:
    Store.at("memory://located").fs.pipe_file("/located/file", data)
    with patch.object(module, "TASK_BYTES", 1), dask.config.set(scheduler="sync"):
        ddf = read_tfrecord("memory://located/file", record_type="bytes", blocksize=blocksize)
        parts = [part["record"].compute().tolist() for part in ddf.partitions]
        lengths = ddf.expr.dataset.counts.to_pylist()
    assert [row for part in parts for row in part] == oracle.frames(data)
    assert lengths == ([len(part) for part in parts] if len(parts) > 1 else [None])


@pytest.mark.parametrize(("byte", "task"), [(0, 1), (9, 1 << 24), (12, 1), (200, 1), (200, 1 << 24), (-1, 1)])
def test_the_partition_with_the_damage_raises_and_the_others_are_right(
    byte: int, task: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TASK_BYTES", task)
    payloads = [b"%04d" % n * 5 for n in range(60)]
    data = bytearray(oracle.records_file(payloads))
    at = byte % len(data)
    data[at] ^= 1
    (tmp_path / "file").write_bytes(data)
    ddf = read_tfrecord(tmp_path / "file", record_type="bytes", blocksize=200, compression=None)
    rows: list[bytes] = []
    places = []
    for part in ddf.partitions:
        try:
            rows += part["record"].compute().tolist()
        except CorruptRecordError as error:
            places.append((error.record, error.offset))
    assert places == [(at // 36, at // 36 * 36)]
    assert len(rows) == len(set(rows)) >= 60 - 10
    assert set(rows) < set(payloads)
    assert payloads[at // 36] not in rows


def test_located_lengths_need_no_reading_but_where_there_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(oracle.records_file([b"x" * 20] * 50))
    data[36 * 25] ^= 1
    (tmp_path / "file").write_bytes(data)
    ddf = read_tfrecord(tmp_path / "file", record_type="bytes", blocksize=300)
    counts = ddf.expr.dataset.counts.to_pylist()
    assert counts.count(None) == 1
    assert len(ddf.partitions[0]) == counts[0] == len(ddf.partitions[0].compute())
    with pytest.raises(CorruptRecordError, match="record 25"):
        len(ddf)
    monkeypatch.setattr(module, "find_blocks", None)  # small files are not looked into
    assert read_tfrecord(tmp_path, record_type="bytes", blocksize=10_000).npartitions == 1
