"""`RecordTable`: records by number in any order, from any codec, and from several threads.

Modules: feed.record_table, feed.rows.record_buffers.
"""

import os
import pickle
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from oracle import Feature, Record

import dask_tfrecord
from dask_tfrecord import CorruptRecordError, SchemaError, TFRecordError
from dask_tfrecord.feed import record_table as module
from dask_tfrecord.feed.batch_statistics import BatchStatistics
from dask_tfrecord.feed.batches import Batches, iter_batches
from dask_tfrecord.feed.record_table import RecordTable
from dask_tfrecord.feed.rows import record_buffers
from dask_tfrecord.feed.rows.epoch_order import plan_batches
from dask_tfrecord.files import file_writer

ROWS = 503
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip": {"compression": "gzip"},
    "partitioned": {"partition_on": ["key"]},
    "many files": {"write_options": {"max_rows_per_file": 20}, "compression": "zlib"},
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(module, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(record_buffers, "_KEPT_BLOCKS", 3)
    monkeypatch.setattr(record_buffers, "_KEPT_BYTES", 1 << 12)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    columns = {
        "id": range(ROWS),
        "key": [f"k{i % 3}" for i in range(ROWS)],
        "x": pa.array([[i / 2] * (i % 4) for i in range(ROWS)], pa.list_(pa.float32())),
        "small": pa.array([i % 100 or None for i in range(ROWS)], pa.int8()),
    }
    return pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    MemoryFileSystem.store.clear()
    return str(tmp_path / "dataset") if request.param == "local" else "memory://bucket/dataset"


@pytest.fixture(params=FORMS)
def dataset(request: pytest.FixtureRequest, frame: pd.DataFrame, root: str) -> str:
    ddf = dd.from_pandas(frame, npartitions=3)
    dask_tfrecord.to_tfrecord(ddf, root, lossy="allow", **FORMS[request.param])
    return root


def test_any_records_in_any_order(dataset: str) -> None:
    expected = pa.Table.from_pandas(dask_tfrecord.read_tfrecord(dataset).compute(), preserve_index=False)
    table = RecordTable(dataset)
    assert len(table) == ROWS
    rng = random.Random(1)
    for count in (0, 1, 7, 300):
        indices = [rng.randrange(-ROWS, ROWS) for _ in range(count)]
        rows = [index % ROWS for index in indices]
        assert table[indices].to_pylist() == expected.take(pa.array(rows, pa.int64())).to_pylist()
    assert table[10:20].to_pylist() == expected.slice(10, 10).to_pylist()
    names = ["small", "x", "key"]
    some = RecordTable(dataset, columns=names)
    for row in (0, 5, ROWS - 1, -1):
        element = some[row]
        assert list(element) == names
        assert [element["small"], [*element["x"]], element["key"]] == [
            expected[name][row].as_py() for name in names
        ]
    assert [one["key"] for one in some.__getitems__([3, 1])] == expected["key"].take([3, 1]).to_pylist()
    for index in (ROWS, -ROWS - 1):
        for key in (index, [0, index]):
            with pytest.raises(IndexError, match=f"{index:,}"):
                table[key]


def test_threads_share_a_table(dataset: str) -> None:
    table = RecordTable(dataset, columns=["id"])
    ids = table[range(ROWS)]["id"].to_pylist()

    def look(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, ROWS, 50)
        return bool(table[rows]["id"].to_pylist() == [ids[row] for row in rows])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(look, range(40)))


def test_statistics_count_the_batches_of_all_threads(dataset: str) -> None:
    table = RecordTable(dataset)
    assert table.statistics == BatchStatistics()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(table.batch, [range(5)] * 20))
    found = table.statistics
    assert (found.batches, found.rows) == (20, 100)
    assert found.seconds_without_data + found.seconds_decoded > 0
    assert pickle.loads(pickle.dumps(table)).statistics == BatchStatistics()


def test_a_table_pickles_with_its_offsets(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = RecordTable(dataset)
    expected = table[[5, 1]]
    data = pickle.dumps(table)
    monkeypatch.setattr(module, "open_columns", None)
    assert pickle.loads(data)[[5, 1]] == expected


def test_damage_names_the_file_and_the_record(frame: pd.DataFrame, tmp_path: Path) -> None:
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=2), tmp_path / "d", lossy="allow")
    table = RecordTable(tmp_path / "d")
    path = sorted((tmp_path / "d").glob("part-*"))[1]
    stat, data = path.stat(), bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    for key in (ROWS - 1, [3, ROWS - 1]):
        with pytest.raises(CorruptRecordError) as caught:
            table[key]
        assert (caught.value.path, caught.value.record) == (str(path), ROWS - 252 - 1)
    assert table[ROWS - 2]["id"] == ROWS - 2


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_damaged_length_is_skipped_and_a_value_that_does_not_fit_named(tmp_path: Path) -> None:
    records = [oracle.features_file([{"x": ("int64", [number])}]) for number in (0, 1, 300, 3)]
    damaged = bytes([records[1][0] ^ 1]) + records[1][1:]
    (tmp_path / "a").write_bytes(records[0] + damaged + records[2] + records[3])
    table = RecordTable(tmp_path, on_corrupt="skip")
    assert table[:]["x"].to_pylist() == [0, 300, 3]
    assert table[-2] == {"x": 300}
    (tmp_path / "a").write_bytes(b"".join(records))
    table = RecordTable(tmp_path, schema={"x": pa.int8()})
    assert table[1] == {"x": 1}
    with pytest.raises(SchemaError) as caught:
        table[[3, 2]]
    assert (caught.value.record, caught.value.feature) == (2, "x")


def test_a_file_that_was_removed_raises(frame: pd.DataFrame, tmp_path: Path) -> None:
    ddf = dd.from_pandas(frame, npartitions=2)
    dask_tfrecord.to_tfrecord(ddf, tmp_path / "d", lossy="allow")
    table = RecordTable(tmp_path / "d")
    dask_tfrecord.to_tfrecord(ddf, tmp_path / "d", overwrite=True, lossy="allow")
    for key in (0, [0, 1]):
        why = r"removed after it was listed, because .* read the dataset again"
        with pytest.raises(FileNotFoundError, match=why):
            table[key]


@pytest.mark.parametrize(
    ("indices", "error"),
    [
        ([True, False], IndexError),
        (np.arange(ROWS) % 2 == 0, IndexError),
        *((indices, TFRecordError) for indices in ([1.5], 1.5, [[1, 2], [3, 4]], "id")),
    ],
)
def test_indices_that_are_neither_integers_nor_a_mask_are_refused(
    tmp_path: Path, indices: Any, error: type[Exception]
) -> None:
    dask_tfrecord.to_tfrecord(pa.table({"id": [1, 2, 3]}), tmp_path / "d")
    with pytest.raises(error, match=r"indices must be|the mask has"):
        RecordTable(tmp_path / "d")[indices]


def test_a_row_may_have_null_in_every_kind_of_column(tmp_path: Path) -> None:
    columns = {
        "list": pa.array([[1], None]),
        "fixed": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
        "tensor": pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.float32(), [2, 3]),
            pa.array([[0, 1, 2, 3, 4, 5], None], pa.list_(pa.float32(), 6)),
        ),
        "text": pa.array(["a", None]),
    }
    dask_tfrecord.to_tfrecord(pa.table(columns), tmp_path / "d")
    table = RecordTable(tmp_path / "d")
    assert table[1] == dict.fromkeys(columns)
    np.testing.assert_array_equal(table[0]["tensor"], [[0, 1, 2], [3, 4, 5]])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("read", ["table", "batches"])
def test_a_forked_process_opens_the_store_again(
    monkeypatch: pytest.MonkeyPatch, frame: pd.DataFrame, read: str
) -> None:
    path = "memory://bucket/dataset"
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=2), path, compression="gzip", overwrite=True)
    table, plan = (
        RecordTable(path, "id"),
        plan_batches(path, 50, surface=iter_batches, columns="id", prefetch=0),
    )
    parent, process = os.getpid(), os.fork  # s3fs and gcsfs refuse the instances of another process
    original = MemoryFileSystem._open

    def fails_in_child(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if getattr(self, "made_in", parent) != os.getpid():
            raise RuntimeError("This class is not fork-safe")
        return original(self, *arguments, **keywords)

    monkeypatch.setattr(MemoryFileSystem, "_open", fails_in_child)
    monkeypatch.setattr(
        MemoryFileSystem, "__reduce__", lambda self: (_made_here, (self.storage_options,)), raising=False
    )
    child = process()
    if not child:
        try:
            batches = [table[:]] if read == "table" else list(Batches(plan))
            numbers = [number for batch in batches for number in batch["id"].to_pylist()]
            os._exit(0 if sorted(numbers) == list(range(ROWS)) else 1)
        except BaseException:  # whatever happens, the child must not go on with the tests of its parent
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_forked_while_a_thread_reads_can_read(frame: pd.DataFrame, tmp_path: Path) -> None:
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=2), tmp_path / "d", compression="gzip")
    table = RecordTable(tmp_path / "d", "id")
    with table._buffers._lock:  # as another thread would hold the lock
        child = os.fork()
        if not child:
            signal.alarm(60)  # ends a child that waits for the lock forever
            os._exit(0 if table[7] == {"id": 7} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _made_here(options: dict[str, Any]) -> MemoryFileSystem:
    found = MemoryFileSystem(**options, skip_instance_cache=True)
    found.made_in = os.getpid()
    return found


def test_a_feature_list_among_inferred_examples_raises_as_a_read_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sampled files hold Examples only. The list was dropped without a word."""
    monkeypatch.setattr("dask_tfrecord.dataset.read.sample._FILES", 2)
    example = oracle.serialize(Record({"a": Feature("int64", [1])}))
    steps = Record({"a": Feature("int64", [2])}, {"steps": [Feature("int64", [3])]})
    payloads = [example, oracle.serialize(steps, "sequence_example"), example]
    for number, payload in enumerate(payloads):
        (tmp_path / f"{number}.tfrecord").write_bytes(oracle.frame(payload))
    table = RecordTable(tmp_path)
    assert table[[0, 2]]["a"].to_pylist() == [1, 1]
    with pytest.raises(SchemaError, match=r"'steps'.*the schema does not"):
        table[[1]]


FILTERS: dict[str, Any] = {
    "some": pc.field("small") < 40,
    "all": [("id", ">=", 0)],
    "none": [("id", ">", ROWS)],
    "other columns": [[("key", "==", "k1"), ("id", "<", 100)], [("small", "==", 7)]],
    "null": pc.field("small").is_null(),
}


@pytest.mark.parametrize(
    ("form", "columnar"), [("plain", ["id", "small"]), ("gzip", None), ("partitioned", ["id", "small"])]
)
def test_records_that_match_filters_are_those_that_a_read_returns(
    frame: pd.DataFrame, root: str, form: str, columnar: Any
) -> None:
    ddf = dd.from_pandas(frame, npartitions=3)
    dask_tfrecord.to_tfrecord(ddf, root, lossy="allow", columnar=columnar, **FORMS[form])
    every = dask_tfrecord.read_tfrecord(root, columns="id").compute().tolist()
    tables = RecordTable(root, ["id"]), RecordTable(root, ["id"], filters=[("id", "<", 300)])
    for filters in FILTERS.values():
        expected = dask_tfrecord.read_tfrecord(root, columns="id", filters=filters).compute().tolist()
        assert [every[row] for row in tables[0].matching(filters)] == expected
        few = [number for number in expected if number < 300]
        assert tables[1][tables[1].matching(filters)]["id"].to_pylist() == few
        if isinstance(filters, pc.Expression):
            assert tables[0][filters]["id"].to_pylist() == expected
    with pytest.raises(SchemaError, match="'nothing'"):
        tables[0].matching([("nothing", "==", 1)])
    with pytest.raises(TFRecordError, match="damage is skipped"):
        _ = RecordTable(root, on_corrupt="skip")[pc.field("id") == 1]
