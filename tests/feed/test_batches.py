"""`iter_batches`: every row once, in batches of the exact size, whatever the shuffle, shard or state.

Modules: feed.batches, feed.rows.sources, feed.numpy_columns, feed.rows.resume_position.
"""

import os
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import FileChangedError, TFRecordError
from dask_tfrecord.feed import batches as module
from dask_tfrecord.feed.batches import Batches, iter_batches
from dask_tfrecord.feed.rows import epoch_order
from dask_tfrecord.feed.rows.epoch_order import plan_batches
from dask_tfrecord.files import file_writer

ROWS = 1003

FORMS: dict[str, dict[str, Any]] = {"gzip": {"compression": "gzip"}, "partitioned": {"partition_on": ["key"]}}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(epoch_order, "_SHUFFLED_BYTES", 1 << 10)
    monkeypatch.setattr(epoch_order, "_SEQUENTIAL_BYTES", 1 << 12)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    lists = pa.array([[i / 2] * (i % 4) for i in range(ROWS)], pa.list_(pa.float32()))
    table = {"id": range(ROWS), "key": [f"k{i % 3}" for i in range(ROWS)], "x": lists}
    return pa.table(table).to_pandas(types_mapper=pd.ArrowDtype)


@pytest.fixture(scope="module")
def written(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("forms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_writer, "BLOCK_BYTES", 1 << 10)
        for form, options in FORMS.items():
            dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=3), root / form, **options)
    return root


@pytest.fixture(params=FORMS)
def dataset(request: pytest.FixtureRequest, written: Path, tmp_path: Path) -> str:
    """A copy of a dataset, which the test may change."""
    return str(shutil.copytree(written / request.param, tmp_path / "dataset"))


def ids(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["id"].to_pylist()]


def shuffled(shuffle: bool | None, buffer: int) -> dict[str, Any]:
    return {"shuffle": shuffle, "shuffle_buffer": buffer} if shuffle else {"shuffle": shuffle}


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(("shards", "shuffle"), [(1, None), (3, True), (7, False)])
def test_every_row_is_in_one_shard(dataset: str, shards: int, shuffle: bool | None, is_known: bool) -> None:
    if not is_known:
        (Path(dataset) / "_tfrecord").rename(Path(dataset).parent / "away")
    found = [
        ids(iter_batches(dataset, 64, shard=(index, shards), **shuffled(shuffle, 100)))
        for index in range(shards)
    ]
    assert sorted(number for shard in found for number in shard) == list(range(ROWS))
    assert {len(shard) for shard in found} <= {ROWS // shards, -(-ROWS // shards)}


def test_rows_keep_the_order_of_read_tfrecord(dataset: str) -> None:
    expected = dask_tfrecord.read_tfrecord(dataset).compute()
    batches, tables = iter_batches(dataset, 100), iter_batches(dataset, 100)
    found = []
    for batch, table in zip(batches, iter(tables._next_table, None), strict=True):
        assert table.combine_chunks().to_batches() == [batch]
        assert tables.state == batches.state
        found.append(batch)
    assert [batch.num_rows for batch in found] == [100] * 10 + [3]
    frame = pa.Table.from_batches(found).to_pandas(types_mapper=pd.ArrowDtype)
    pd.testing.assert_frame_equal(frame, expected.reset_index(drop=True))


def test_a_batch_that_an_array_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = pa.array([bytes(1 << 26)])  # 33 chunks share its memory
    table = pa.table({"x": pa.chunked_array([chunk] * 33)})
    batches = iter_batches(dd.from_dict({"x": [1]}, npartitions=1))
    state = batches.state
    monkeypatch.setattr(batches, "_advance", lambda: table)
    with pytest.raises(TFRecordError, match="a batch of 33 rows"):
        next(batches)
    assert batches.state == state


@pytest.mark.parametrize("mode", ["keep", "drop", "auto"])
def test_modes_decide_about_the_last_batch(dataset: str, mode: Any) -> None:
    batches = iter_batches(dataset, batch_mode=mode, **({} if mode == "auto" else {"batch_size": 100}))
    sizes = [batch.num_rows for batch in batches]
    assert sum(sizes) == (1000 if mode == "drop" else ROWS)
    if mode == "auto":
        with pytest.raises(TypeError):
            len(batches)
    else:
        assert len(batches) == len(sizes)


def test_collections_of_any_source_are_batched(frame: pd.DataFrame) -> None:
    ddf = dd.from_pandas(frame, npartitions=5)
    shards = [ids(iter_batches(ddf, 64, shuffle=True, seed=1, shard=(index, 2))) for index in range(2)]
    assert Counter(shards[0] + shards[1]) == Counter(range(ROWS))
    with iter_batches(ddf, 64) as batches:
        head = [next(batches) for _ in range(4)]
    assert ids(head) + ids(iter_batches(ddf, 64, start=batches.state)) == list(range(ROWS))


def test_a_cluster_computes_the_partitions(frame: pd.DataFrame, client: Any) -> None:
    def mark(partition: pd.DataFrame) -> pd.DataFrame:
        return partition.assign(process=os.getpid())

    ddf = dd.from_pandas(frame[["id"]], npartitions=6).map_partitions(mark)
    with client.as_current():
        batches = list(iter_batches(ddf, 64))
    assert ids(batches) == list(range(ROWS))
    assert os.getpid() not in {process for batch in batches for process in batch["process"].to_pylist()}


def test_a_dataset_that_was_overwritten_raises(dataset: str, frame: pd.DataFrame) -> None:
    batches = iter_batches(dataset, 10, prefetch=0)
    next(batches)
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), dataset, overwrite=True)
    with pytest.raises((TFRecordError, FileNotFoundError)):
        list(batches)


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_threads_end_for_an_iterator_that_is_gone_which_does_not_wait(dataset: str, how: str) -> None:
    """A wait would never end if Python drops the iterator while the same thread starts another thread."""
    others = {*threading.enumerate()}
    batches = iter_batches(dataset, 10, prefetch=3)
    next(batches)
    with ExitStack() as stack:
        found = {*threading.enumerate()} - others
        threads = [one for one in found if one.name.startswith("dask_tfrecord-read")]
        for thread in threads:
            waits = patch.object(thread, "join", side_effect=AssertionError("the iterator waits"))
            stack.enter_context(waits)
        if how == "closed":
            batches.close()
            assert list(batches) == []
        del batches
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": True}, "batch_size=True"),
        ({"batch_mode": "all"}, "unknown batch_mode 'all'"),
        ({"shard": (2, 2)}, r"shard=\(2, 2\)"),
        ({"shard": (0, ROWS + 1)}, "1,004 shards of a dataset of 1,003 rows"),
        ({"shuffle": 1000}, 'and seed=1000 to .*, or shuffle="buffer" and shuffle_buffer=1000'),
        ({"shuffle": "block"}, "'blocks'"),
        ({"shuffle": "blocks", "seed": -1}, "seed"),
        ({"shuffle": False, "seed": 2}, "seed=2 has no effect with shuffle=False; pass shuffle=True"),
        ({"start": {"row": 3}}, "not a state"),
        ({"columns": ["nothing"]}, "nothing"),
        ({"columns": ["id", "id"]}, "more than once"),
        ({"columns": []}, "names no column"),
        ({"source": pd.DataFrame()}, "is not a path"),
        (
            {"source": dd.from_dict({"x": [1, 2]}, npartitions=1), "shuffle": "blocks"},
            "not a Dask collection",
        ),
    ],
)
def test_wrong_arguments_are_named(written: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TFRecordError, match=message):
        iter_batches(**{"source": written / "gzip", **arguments})


def test_a_dataset_that_was_rewritten_with_the_same_sizes_raises(dataset: str, frame: pd.DataFrame) -> None:
    (Path(dataset) / "_tfrecord").rename(Path(dataset).parent / "away")
    first, *_ = sorted(Path(dataset).rglob("*.tfrecord*"))
    plan = plan_batches(dataset, 10, surface=iter_batches)
    list(Batches(plan, 0))
    first.write_bytes(first.read_bytes())
    with pytest.raises(FileChangedError):
        list(Batches(plan, 1))


def test_rows_after_an_error_are_not_lost(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = iter_batches(dataset, 64, columns=["id"], prefetch=0)
    found = next(batches)["id"].to_pylist() + next(batches)["id"].to_pylist()
    with monkeypatch.context() as patch:

        def interrupt(*arguments: Any) -> Any:
            raise KeyboardInterrupt

        patch.setattr(module, "as_batch", interrupt)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                next(batches)
    assert found + ids(batches) == ids(iter_batches(dataset, 64))


@pytest.mark.parametrize(
    ("parts", "shuffle", "mode"),
    [(1, True, "keep"), (2, None, "drop"), (3, True, "drop"), (40, None, "keep")],
)
def test_parts_have_the_batches_of_their_shard(
    dataset: str, parts: int, shuffle: bool | None, mode: Any
) -> None:
    plan = plan_batches(dataset, 50, surface=iter_batches, columns=["id"], shuffle=shuffle, batch_mode=mode)
    shards = [[Batches(plan, 3, (index, 2), (part, parts)) for part in range(parts)] for index in range(2)]
    assert [sum(map(len, shard)) for shard in shards] == [
        len(Batches(plan, 3, (index, 2))) for index in range(2)
    ]
    found = [number for shard in shards for part in shard for number in ids(part)]
    assert len(found) == len(set(found)) == (ROWS if mode == "keep" else 1000)


def test_large_rows_end_a_window_of_the_shuffle(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_order, "WINDOW_BYTES", 2000)
    batches = iter_batches(dataset, 10, shuffle=True, seed=1)
    found = [number for _ in range(21) for number in next(batches)["id"].to_pylist()]
    assert batches.state["remaining"][0][0][0] > 0  # the shuffle buffer has room for all rows
    assert sorted(found + ids(batches)) == list(range(ROWS))


def test_threads_share_an_iterator(dataset: str) -> None:
    batches = iter_batches(dataset, 7, columns=["id"], shuffle=True, seed=1)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: ids(batches), range(4)))
    assert sorted(number for part in found for number in part) == list(range(ROWS))


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_iterator_is_an_arrow_stream_of_its_remaining_rows_once(written: Path, shuffle: bool) -> None:
    path = written / "gzip"
    expected = pa.Table.from_batches(iter_batches(path, 7, shuffle=shuffle))
    with iter_batches(path, 7, shuffle=shuffle) as batches:
        assert pa.schema(batches) == expected.schema
        assert next(batches)["id"] == expected["id"][:7].combine_chunks()
        reader = pa.RecordBatchReader.from_stream(batches)
        assert reader.read_all() == expected[7:]
    assert reader.read_all().num_rows == 0
    with pytest.raises(TFRecordError, match="can be read only once; call iter_batches again"):
        pa.table(batches)
    with iter_batches(path, 100, filters=[("id", ">", ROWS)]) as batches:
        assert pa.table(batches).schema == expected.schema
    with iter_batches(path, 100) as batches:
        reader = pa.RecordBatchReader.from_stream(batches)
        reader.read_next_batch()
    with pytest.raises(pa.ArrowInvalid, match="closed before all rows of its Arrow stream were read"):
        reader.read_all()


def test_a_stream_shows_the_error_of_a_rewritten_file(tmp_path: Path) -> None:
    dask_tfrecord.to_tfrecord(dd.from_dict({"x": [1, 2]}, npartitions=1), tmp_path / "data")
    (part,) = (tmp_path / "data").glob("part-*")
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    batches = iter_batches(tmp_path / "data", prefetch=0)
    part.write_bytes(content)
    with pytest.raises(pa.ArrowInvalid, match=f"CorruptRecordError: .*{part.name}"):
        pa.table(batches)  # the C interface of Arrow passes on only the text of an error


def test_the_state_of_another_dataset_or_of_other_arguments_is_refused(
    dataset: str, frame: pd.DataFrame, tmp_path: Path
) -> None:
    other = str(tmp_path / "other")
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=2), other)
    batches = iter_batches(dataset, 64, shuffle=True, seed=1, shard=(0, 2))
    next(batches)
    for path, change, message in (
        (other, {}, "another dataset"),
        (dataset, {"shuffle": True, "seed": 2}, "other arguments"),
        (dataset, {"columns": ["id"]}, "other arguments"),
        (dataset, {"shard": (1, 2)}, "belongs to shard 0, and not to shard 1 of 2"),
        (dataset, {"shard": (0, 3)}, "state of shard 1 of 2 is missing"),
    ):
        with pytest.raises(TFRecordError, match=message):
            iter_batches(
                path, 64, start=batches.state, **{"shuffle": True, "seed": 1, "shard": (0, 2), **change}
            )


def test_the_text_of_batches_has_the_path_the_rows_and_the_columns(
    written: Path, frame: pd.DataFrame
) -> None:
    path = str(written / "gzip")
    assert repr(iter_batches(path)) == f"Batches({path!r}, 1,003 rows, columns: id, key, x)"
    of_dask = iter_batches(dd.from_pandas(frame, npartitions=2))
    assert repr(of_dask) == "Batches(rows not counted, columns: id, key, x)"
