"""`colocate=` and `shuffle=`: rows that move to another partition before they are written.

Modules: dataset.shuffle.spill, dataset.shuffle.merge, dataset.snapshot.names.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from math import factorial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.callbacks import Callback
from distributed import Client, LocalCluster
from memory import peak_kib

from dask_tfrecord import SchemaError, Snapshot, TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.shuffle import merge, spill
from dask_tfrecord.dataset.shuffle import spill as exchange
from dask_tfrecord.dataset.shuffle.spill import Route, Shuffle
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.fields import Schema

ROWS = 400


pytestmark = pytest.mark.usefixtures("one_thread")


def collection(npartitions: int = 4) -> dd.DataFrame:
    numbers = np.arange(ROWS)
    keys = pd.array([[None, "", "a", "b", "c"][n % 5] for n in numbers], pd.ArrowDtype(pa.string()))
    lists = pd.ArrowDtype(pa.list_(pa.binary()))
    blobs = pd.array([[b"\xff" * (n % 4)] * (n % 3) for n in numbers], lists)
    return dd.from_pandas(pd.DataFrame({"n": numbers, "key": keys, "blobs": blobs}), npartitions=npartitions)


def order(path: Path) -> list[int]:
    found: list[int] = read_tfrecord(path)["n"].compute().tolist()
    return found


def contents(snapshot: Snapshot) -> list[Any]:
    """The directory, records and checksum of each file; the names contain the random id of a run."""
    return [(file.path.rpartition("part-")[0], file.records, file.crc32c) for file in snapshot.files]


def check_rows(path: Path, **options: Any) -> None:
    found = read_tfrecord(path, **options).compute().sort_values("n").reset_index(drop=True)
    expected = collection().compute().astype({"n": pd.ArrowDtype(pa.int64())})
    pd.testing.assert_frame_equal(found, expected)


def test_each_key_has_one_file_with_its_rows_in_their_order(tmp_path: Path) -> None:
    lazy = to_tfrecord(collection(), tmp_path / "one", partition_on="key", colocate=True, compute=False)
    assert not (tmp_path / "one").exists()
    assert [file.records for file in lazy.compute().files] == [80] * 5
    for path in (tmp_path / "one").rglob("part-*"):
        assert order(path) == sorted(order(path))
    check_rows(tmp_path / "one")
    limits: dict[str, Any] = {"partition_on": "key", "colocate": True, "max_rows_per_file": 30}
    snapshot = to_tfrecord(collection(), tmp_path / "several", **limits)
    assert sorted(file.records for file in snapshot.files) == [20] * 5 + [30] * 10


def test_all_rows_are_there_in_another_order_and_in_other_files(tmp_path: Path) -> None:
    snapshot = to_tfrecord(collection(), tmp_path, shuffle=7, npartitions=5)
    check_rows(tmp_path)
    numbers = np.array(order(tmp_path))
    assert abs(np.corrcoef(numbers, np.arange(ROWS))[0, 1]) < 0.2
    assert len(snapshot.files) == 5
    for file in snapshot.files:  # every file has rows of every input partition
        assert {n // 100 for n in order(tmp_path / file.path)} == {0, 1, 2, 3}
        assert file.records > 50


def test_the_seed_decides_the_order(tmp_path: Path) -> None:
    found = []
    for at, seed in enumerate([1, 1, 2, -1]):
        to_tfrecord(collection(), tmp_path / str(at), shuffle=seed)
        found.append(order(tmp_path / str(at)))
    assert found[0] == found[1]
    assert len(set(map(tuple, found))) == 3


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_each_order_of_a_few_shuffled_rows_is_as_likely_as_any_other(rows: int) -> None:
    orders = [
        tuple(np.argsort(exchange.sort_keys(np.arange(rows, dtype=np.uint64), seed))) for seed in range(2400)
    ]
    expected = len(orders) / factorial(rows)
    counts = Counter(orders)
    assert len(counts) == factorial(rows)
    # Chi-square has 1, 5 or 23 degrees of freedom; 60 is beyond one in 30,000 for all of them.
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 60


def test_no_seed_gives_the_first_row_the_smallest_possible_key() -> None:
    first = np.zeros(1, np.uint64)
    assert min(int(exchange.sort_keys(first, seed)[0]) for seed in range(1000)) > 0


def test_files_are_the_same_on_a_cluster(tmp_path: Path, client: Client) -> None:
    options: dict[str, Any] = {"partition_on": "key", "colocate": True, "shuffle": 5, "npartitions": 3}
    plain = to_tfrecord(collection(), tmp_path / "a", **options)
    with dask.config.set(scheduler=client):
        other = to_tfrecord(collection(), tmp_path / "b", **options)
    assert contents(plain) == contents(other)


def test_lists_of_lists_survive_the_shuffle(tmp_path: Path) -> None:
    values = [[[1, 2], []], None, []]
    nested = pd.array(values, pd.ArrowDtype(pa.list_(pa.list_(pa.int64()))))
    ddf = dd.from_pandas(pd.DataFrame({"steps": nested, "n": [0, 1, 2]}), npartitions=2)
    to_tfrecord(ddf, tmp_path, record_type="sequence_example", shuffle=1)
    assert pa.array(read_tfrecord(tmp_path).compute().sort_values("n")["steps"]).to_pylist() == values


def test_a_value_that_cannot_be_stored_says_which_row(tmp_path: Path) -> None:
    lists = pd.array([[1]] * 5 + [[1, None]], pd.ArrowDtype(pa.list_(pa.int64())))
    ddf = dd.from_pandas(pd.DataFrame({"lists": lists}), npartitions=2)
    with pytest.raises(SchemaError, match=r"partition 1 of 2, record 2: .*holds a null") as caught:
        to_tfrecord(ddf, tmp_path / "a", shuffle=1)
    assert caught.value.feature == "lists"


def test_the_index_can_be_a_column_of_the_shuffled_rows(tmp_path: Path) -> None:
    ddf = dd.from_pandas(collection().compute().set_index("n"), npartitions=3)
    to_tfrecord(ddf, tmp_path, write_index=True, shuffle=1)
    assert sorted(read_tfrecord(tmp_path).index.compute()) == sorted(collection().compute()["n"])
    check_rows(tmp_path, index=False)


PARTITION_BYTES = 48_000_000


def large_partition(index: int) -> pd.DataFrame:
    """Rows of 88 bytes: numbers, and a text of 56 letters. In "one", 9 of 10 rows have the same value."""
    count = PARTITION_BYTES // 88
    offsets = pa.py_buffer(np.arange(0, 56 * count + 1, 56, np.int32))
    text = pa.Array.from_buffers(pa.string(), count, [None, offsets, pa.py_buffer(b"x" * 56 * count)])
    numbers = np.arange(count) + count * index
    columns = {
        "n": numbers,
        "key": np.random.default_rng(index).integers(0, 100, count),
        "one": np.where(numbers % 10, 0, numbers // 10 % 100),
        "small": numbers.astype(np.int32),
        "real": numbers.astype(np.float32),
        "text": pd.arrays.ArrowExtensionArray(text),
    }
    return pd.DataFrame(columns)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak memory of a process, in /proc")
def test_a_task_takes_2_2_times_its_partition_and_64_mib(tmp_path: Path) -> None:
    """The rows of the largest key of "one" are 4.5 partitions. Workers that need more than 1 GB die."""
    ddf = dd.from_map(large_partition, range(5), meta=large_partition(0).iloc[:0])
    workers: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": "1GB"}
    with (
        LocalCluster(**workers, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        dask.config.set(scheduler=client),
    ):
        client.run(large_partition, 0)
        before = client.run(peak_kib)
        snapshot = to_tfrecord(ddf, tmp_path, partition_on="one", colocate=True, shuffle=42)
        after = client.run(peak_kib)
    assert snapshot.records == 5 * (PARTITION_BYTES // 88)
    growth = max(after[worker] - before[worker] for worker in after) * 1024
    assert growth < 2.2 * PARTITION_BYTES + (64 << 20)


def test_rows_move_in_several_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = to_tfrecord(collection(), tmp_path / "a", partition_on="key", colocate=True, shuffle=5)
    monkeypatch.setattr(exchange, "_PIECE_ROWS", 7)
    pieces = to_tfrecord(collection(), tmp_path / "b", partition_on="key", colocate=True, shuffle=5)
    assert contents(whole) == contents(pieces)


def test_rows_are_taken_of_more_than_two_gigabytes_of_text() -> None:
    count, size = 1100, 1_000_000
    offsets = np.arange(0, count * size + 1, size, np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.zeros(count * size, np.uint8))]
    batch = pa.record_batch({"s": pa.Array.from_buffers(pa.string(), count, buffers), "n": range(count)})
    found = exchange.Batches(pa.Table.from_batches([batch] * 3)).take(np.array([3000, 0, 1500]))
    assert found["n"].to_pylist() == [800, 0, 400]
    assert found["s"].to_pylist() == ["\0" * size] * 3


def test_the_text_of_a_category_moves_once(tmp_path: Path) -> None:
    values = pd.Categorical(["long" * 1000, "longer" * 1000] * 5000)
    ddf = dd.from_pandas(pd.DataFrame({"c": values, "n": range(10_000)}), npartitions=2)
    moved: list[int] = []

    def look(*_: Any) -> None:
        moved.append(sum(path.stat().st_size for path in tmp_path.glob("_tfrecord/staging/*/rows/*")))

    with Callback(posttask=look):
        to_tfrecord(ddf, tmp_path, shuffle=1)
    assert 0 < max(moved) < 1_000_000
    found = read_tfrecord(tmp_path).compute().sort_values("n")["c"]
    assert found.tolist() == values.tolist()


@pytest.mark.parametrize(("sources", "targets"), [(36, 36), (50, 7), (5, 60)])
def test_two_rounds_write_the_rows_of_one_with_few_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: int, targets: int
) -> None:
    options: dict[str, Any] = {"partition_on": "key", "shuffle": 5, "npartitions": targets}
    one = to_tfrecord(collection(sources), tmp_path / "one", **options)
    monkeypatch.setattr(spill, "_MOST_SECTIONS", 1)
    with patch.object(Store, "read_ranges", autospec=True, side_effect=Store.read_ranges) as read_ranges:
        two = to_tfrecord(collection(sources), tmp_path / "two", **options)
    assert contents(two) == contents(one)
    assert order(tmp_path / "two") == order(tmp_path / "one")
    requests = sum(len(call.args[1]) for call in read_ranges.call_args_list)
    assert 0 < requests <= (sources + targets) * targets**0.5


def test_a_route_leads_every_row_to_one_task() -> None:
    """Groups cover the targets, chunks cover the sources, and no group and no chunk is empty."""
    for sources, targets in [(10_000, 10_000), (1, 10**6), (10**6, 1), (700, 701), (10**6, 2), (600, 5_003)]:
        plan = Route.plan(sources, targets)
        assert (plan.groups - 1) * plan.width < targets <= plan.groups * plan.width
        assert (plan.chunks - 1) * plan.chunk < sources <= plan.chunks * plan.chunk
        sections = sources * plan.groups + targets * plan.chunks
        assert plan.groups == 1 or sections <= 2 * (sources + targets) * targets**0.5


def change_spills(path: Path, change: Callable[[Path], None]) -> Callback:
    """Apply ``change`` to the first spill file after it is written."""
    left = [change]

    def look(*_: Any) -> None:
        found = sorted(path.glob("_tfrecord/staging/*/rows/*"))
        if found and left:
            left.pop()(found[0])

    return Callback(posttask=look)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (flip, r"shuffled rows .* are damaged"),
        (cut, r"shuffled rows .* are damaged"),
        (Path.unlink, r"was removed during the write; .*cleanup"),
    ],
)
def test_damage_to_rows_on_their_way_is_no_damage_to_the_data(
    tmp_path: Path, change: Callable[[Path], None], problem: str
) -> None:
    with change_spills(tmp_path, change), pytest.raises(TFRecordError, match=problem):
        to_tfrecord(collection(), tmp_path, shuffle=1)
    assert not list(tmp_path.iterdir())


def doom(step: str, marker: str) -> None:
    """Have the first worker die that calls a step of the shuffle for the second time."""
    module: Any = exchange if hasattr(exchange, step) else merge
    original, calls = getattr(module, step), []

    def work_or_die(*args: Any) -> Any:
        calls.append(step)
        if len(calls) == 2 and not os.path.exists(marker):
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    setattr(module, step, work_or_die)


@pytest.mark.parametrize("step", ["_to_stream", "_read", "_read_group"])
def test_a_worker_killed_during_a_shuffle_leaves_exactly_the_committed_rows(
    tmp_path: Path, mortals: Client, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A worker is killed in the second round, or while rows move in one round."""
    options: dict[str, Any] = {"partition_on": "key", "colocate": True, "shuffle": 5}
    plain = to_tfrecord(collection(8), tmp_path / "a", **options)
    if step == "_read_group":
        monkeypatch.setattr(spill, "_MOST_SECTIONS", 1)
    killed = tmp_path / "killed"
    mortals.wait_for_workers(2)  # the one killed by the test before may still be starting again
    mortals.run(doom, step, str(killed))
    other = to_tfrecord(collection(8), tmp_path / "b", **options, compute_kwargs={"scheduler": mortals})
    assert killed.exists()
    assert contents(plain) == contents(other)
    assert len(list(tmp_path.glob("b/*/part-*"))) == len(other.files)


def test_only_the_first_file_of_a_source_counts(tmp_path: Path) -> None:
    run = WriteRun(Store.at(tmp_path), Schema.from_arrow(pa.schema([("n", pa.int64())])), "0" * 32)
    tables = [pa.table({"n": pa.array(numbers)}) for numbers in (range(100), range(99, -1, -1))]
    first, again = (exchange.spill(run, table, 0, Shuffle((), 1, 4), Route.plan(1, 4)) for table in tables)
    assert again.path == first.path
    assert again.starts.tolist() == first.starts.tolist()
    assert again.checksums.tolist() == first.checksums.tolist()
    assert len(list(tmp_path.glob("_tfrecord/staging/*/rows/*-*"))) == 1
