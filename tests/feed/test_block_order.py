"""``shuffle="blocks"``: one order for all doors, every row once, each block read once, and its statistics.

Modules: feed.rows.epoch_order.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest

import dask_tfrecord
from dask_tfrecord import TFRecordError
from dask_tfrecord.feed import RecordTable, iter_batches, record_table
from dask_tfrecord.feed.rows import epoch_order, record_buffers
from dask_tfrecord.files import file_writer
from dask_tfrecord.files.record_file import RecordFile, Records

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = 1003

FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gzip": ({"compression": "gzip"}, {}),
    "partitioned": ({"partition_on": ["key"]}, {}),
    "small files": ({"write_options": {"max_rows_per_file": 7}}, {"on_corrupt": "skip"}),
    "filtered": ({}, {"filters": pc.field("x") < 40}),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 1 << 9)
    for module in (record_table, epoch_order):
        monkeypatch.setattr(module, "BLOCK_BYTES", 1 << 9)
    monkeypatch.setattr(epoch_order, "_GROUP_BLOCKS", 5)


def write(path: Path, rows: int = ROWS, **options: Any) -> str:
    numbers = np.arange(rows)
    frame = pd.DataFrame({"id": numbers, "key": numbers % 2, "x": numbers * 7 % 100})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=4), path, **options)
    return str(path)


def ids(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["id"].to_pylist()]


@pytest.mark.parametrize("form", FORMS)
def test_batches_and_tables_have_one_order_with_every_row_once(tmp_path: Path, form: str) -> None:
    written, read = FORMS[form]
    path = write(tmp_path / "d", **written)
    table = RecordTable(path, **read)
    plain = ids(iter_batches(path, **read))
    seen = set()
    for seed, epoch, count in [(0, 0, 1), (0, 1, 2), (3, 0, 7)]:
        shards = [table.block_order(seed, epoch, (index, count)) for index in range(count)]
        found = [plain[row] for shard in shards for row in shard.tolist()]
        assert sorted(found) == sorted(plain)
        assert {len(shard) for shard in shards} <= {len(plain) // count, -(-len(plain) // count)}
        seen.add(tuple(found))
        for index, shard in enumerate(shards):
            given = {"seed": seed, "epoch": epoch, "shard": (index, count), **read}
            batches = iter_batches(path, 64, shuffle="blocks", **given)
            assert ids(batches) == ids([table.batch(shard)])
    assert len(seen) == 3


def test_a_group_has_rows_of_few_blocks_and_ends_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = RecordTable(write(tmp_path / "d"))
    blocks = len(table.block_starts) - 1

    def groups(size: int) -> list[int]:
        """How many blocks each group has."""
        found: list[set[int]] = [set()]
        for block in np.searchsorted(table.block_starts, table.block_order(1), "right"):
            if len(found[-1] | {block}) > size:
                found.append(set())
            found[-1].add(block)
        return [*map(len, found)]

    assert groups(5) == [5] * (blocks // 5) + [blocks % 5] * (blocks % 5 > 0)
    monkeypatch.setattr(epoch_order, "_GROUP_BYTES", 1)  # each block is a group
    assert groups(1) == [1] * blocks


@pytest.mark.parametrize("threads", [1, 4])
def test_each_block_of_a_compressed_file_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    path = write(tmp_path / "d", compression="gzip")
    monkeypatch.setattr(record_buffers, "_KEPT_BLOCKS", 10 if threads == 1 else 1000)
    monkeypatch.setattr(record_buffers, "_KEPT_BYTES", 0)
    read: Counter[tuple[str, int]] = Counter()
    original = RecordFile.records

    def counted(file: RecordFile, **options: Any) -> Records:
        read[file.split.file.path, file.split.start.record] += 1
        return original(file, **options)

    monkeypatch.setattr(RecordFile, "records", counted)
    table = RecordTable(path)
    order = table.block_order(2)
    with ThreadPoolExecutor(threads) as pool:
        found = ids(pool.map(table.batch, np.split(order, range(30, len(order), 30))))
    assert found == order.tolist()
    assert len(read) == len(table.block_starts) - 1 > 20
    assert set(read.values()) == {1}


def test_more_shards_than_blocks_are_disjoint_and_more_than_rows_are_refused(tmp_path: Path) -> None:
    table = RecordTable(write(tmp_path / "d", 40))
    count = 3 * (len(table.block_starts) - 1)
    assert count < 40
    found = [row for index in range(count) for row in table.block_order(5, 1, (index, count)).tolist()]
    assert sorted(found) == list(range(40))
    for uneven, length in (("drop", 40 // count), ("pad", -(-40 // count))):
        lengths = {len(table.block_order(5, 1, (index, count), uneven)) for index in range(count)}
        assert lengths == {length}
    with pytest.raises(TFRecordError, match="41 shards of a dataset of 40 rows"):
        table.block_order(shard=(0, 41))


def test_grain_resumes_after_every_batch_and_at_ends(tmp_path: Path) -> None:
    grain: Any = pytest.importorskip("grain.python", reason="grain is not installed")
    dataset = write(tmp_path / "d", 103)

    def begin(is_loader: bool) -> Any:
        source = RecordTable(dataset, ["id"])
        if not is_loader:
            elements = grain.MapDataset.source(source).seed(1).shuffle().batch(10).repeat(2)
            return iter(elements.to_iter_dataset())
        sampler = grain.IndexSampler(len(source), grain.NoSharding(), shuffle=True, num_epochs=2, seed=1)
        return iter(grain.DataLoader(data_source=source, sampler=sampler, operations=[grain.Batch(10)]))

    for is_loader in (False, True):
        iterator = begin(is_loader)
        found, states = [], []
        for element in iterator:
            found.append(element["id"].tolist())
            states.append(iterator.get_state())
        assert sorted(number for batch in found for number in batch) == sorted([*range(103)] * 2)
        for count, state in enumerate(states, 1):
            resumed = begin(is_loader)
            resumed.set_state(state)
            assert [element["id"].tolist() for element in resumed] == found[count:]
    order = RecordTable(dataset).block_order(seed=1)
    batches = grain.MapDataset.source(order).batch(10).map(RecordTable(dataset).batch)
    assert ids(batches.to_iter_dataset()) == order.tolist()


def test_the_text_of_a_table_tells_datasets_and_versions_apart(tmp_path: Path) -> None:
    """Grain's DataLoader compares the texts of data sources before it continues from a state."""
    path = tmp_path / "data"
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": [1, 2]}), path)
    first = repr(RecordTable(path))
    assert first == repr(RecordTable(path)) == f"RecordTable({str(path)!r}, 2 records, version 1)"
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": [3]}), path, append=True)
    assert repr(RecordTable(path)) != first == repr(RecordTable(path, version=1))
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": [3, 4]}), path, overwrite=True)
    assert repr(RecordTable(path)) != first
