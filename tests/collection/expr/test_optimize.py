"""Graphs: what a task carries, what planning does not do, and keys that name the content of files.

Modules: collection.expr.read_expression, collection.expr.read_tasks, collection.expr.write_expression,
collection.expr.optimizations.
"""

import os
import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from dask.base import tokenize

from dask_tfrecord import TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.collection.expr import read_expression, write_expression
from dask_tfrecord.collection.expr.read_expression import FusedReads
from dask_tfrecord.dataset.read import plan
from dask_tfrecord.dataset.read.plan import ReadPlan, plan_partitions
from dask_tfrecord.dataset.snapshot import model
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.operations import Create
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.files.file_list import FileInfo, FileList
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

FILES = 5


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files of four rows with the columns x, y, z and name."""
    root = tmp_path_factory.mktemp("optimize") / "data"
    frame = pd.DataFrame({name: range(20) for name in "xyz"} | {"name": list("abcdefghijklmnopqrst")})
    to_tfrecord(dd.from_pandas(frame, npartitions=FILES), root)
    return root


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_write_and_a_sum_share_their_reading(
    root: Path, opened: list[str], tmp_path: Path, has_snapshot: bool
) -> None:
    ddf = read_tfrecord(root if has_snapshot else f"{root}/*.tfrecord", blocksize=None)
    opened.clear()
    lazy = to_tfrecord(ddf, tmp_path / "copy", compute=False)
    done, total = dask.compute(lazy, ddf.x.sum())
    assert (done.rows, total) == (20, 190)
    assert len(opened) == len({*opened}) == FILES


def test_the_same_files_have_the_same_keys_until_one_is_rewritten(root: Path, tmp_path: Path) -> None:
    assert tokenize(read_tfrecord(root)) == tokenize(read_tfrecord(root))
    assert tokenize(read_tfrecord(root)) != tokenize(read_tfrecord(root, schema={"x": pa.int32()}))
    path = tmp_path / "a.tfrecord"
    content = next(root.glob("part-*")).read_bytes()
    path.write_bytes(content)
    before = tokenize(read_tfrecord(path))
    path.write_bytes(content)
    os.utime(path, (1, 1))
    assert tokenize(read_tfrecord(path)) != before


def many(count: int) -> ReadPlan:
    """A dataset whose files do not exist."""
    schema = Schema.from_arrow(pa.schema({f"c{n}": pa.int64() for n in range(50)}))
    infos = [FileInfo(f"/nowhere/part-{n:06d}.tfrecord", n) for n in range(count)]
    partitions = plan_partitions(FileList.of(infos), blocksize=None)
    return ReadPlan(Store.at("/nowhere"), partitions, schema, ReadOptions())


@pytest.mark.parametrize(("fused", "count", "size"), [(False, 1000, 3000), (True, 67, 4000)])
def test_a_task_carries_few_files(fused: bool, count: int, size: int) -> None:
    ddf = read_expression.read(many(1000), None if fused else ["c1"])
    graph = (ddf["c1"].sum() if fused else ddf).optimize(fuse=False).__dask_graph__()
    tasks = [task for key, task in graph.items() if key[0].startswith("read_tfrecord")]
    assert len(tasks) == count
    assert max(len(cloudpickle.dumps(task)) for task in tasks) < size


def test_a_pickled_graph_carries_each_file_once() -> None:
    graph = read_expression.read(many(10_000), None).optimize().__dask_graph__()
    assert len(pickle.dumps(graph)) < 80 * len(graph)


def pickled(graph: Any, *, alone: bool) -> Any:
    """A graph after its way to another process, as one object or task by task."""
    if alone:
        return {key: pickle.loads(pickle.dumps(task)) for key, task in graph.items()}
    return pickle.loads(pickle.dumps(graph))


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        {"blocksize": None},
        {"blocksize": 1000},
        {"blocksize": None, "filters": [("x", ">", 40)]},
        {"partition_by": ["k"]},
        {"use_snapshot": False},
    ],
)
def test_pickled_tasks_read_what_the_tasks_read(tmp_path: Path, how: dict[str, Any], alone: bool) -> None:
    data = pd.DataFrame(
        {"x": range(300), "s": [f"v{n}" * 9 for n in range(300)], "k": [n % 3 for n in range(300)]}
    )
    options = {"max_rows_per_file": 20}
    to_tfrecord(data, tmp_path, partition_on="k", columnar=["x"], compression="gzip", write_options=options)
    ddf = read_tfrecord(tmp_path, **how)
    for query in (ddf, ddf.partitions[[0, ddf.npartitions - 1]], ddf[ddf.x < 130], ddf[ddf.k == 1].x):
        optimized = query.optimize()
        graph, keys = optimized.__dask_graph__(), optimized.__dask_keys__()
        expected = dask.get(graph, keys)
        for again in (pickled(graph, alone=alone), pickled(pickled(graph, alone=alone), alone=not alone)):
            assert tokenize(again) == tokenize(graph)
            for one, other in zip(dask.get(again, keys), expected, strict=True):
                pd.testing.assert_frame_equal(*map(pd.DataFrame, (one, other)))


def test_the_graph_of_a_read_makes_no_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    ddf = read_expression.read(many(1000), None)
    monkeypatch.setattr(plan, "Partition", None)
    ddf["c1"].sum().optimize().__dask_graph__()
    ddf.optimize().__dask_graph__()


def test_fused_partitions_are_divided_once() -> None:
    [fused] = (
        read_expression.read(many(1000), None)["c1"].sum().optimize(fuse=False).find_operations(FusedReads)
    )
    assert fused._fusion_buckets is fused._fusion_buckets


def test_a_read_makes_no_entries_of_the_snapshot(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = len(read_tfrecord(root, use_snapshot=False, filters=[("x", ">", 3)]))
    monkeypatch.setattr(model, "to_entries", None)
    ddf = read_tfrecord(root, filters=[("x", ">", 3)])
    assert ddf.expr.dataset.is_described
    assert len(ddf) == len(ddf.compute()) == expected
    with pytest.raises(TFRecordError, match="not a valid snapshot"):
        assert not Snapshot.open(root).files


def test_statistics_travel_only_where_they_are_needed(root: Path) -> None:
    ddf = read_tfrecord(root, blocksize=None)
    assert ddf.expr.dataset.is_described
    assert b"statistics.x" not in cloudpickle.dumps(ddf[["x"]].optimize())
    assert b"statistics.x" in cloudpickle.dumps(ddf[ddf.x > 3].optimize())


def test_a_plan_of_very_many_files_is_one_task_a_file_and_the_commit() -> None:
    ddf = read_expression.read(many(10_000), None)
    schema = Schema.from_arrow(pa.schema({"c1": pa.int64()}))
    run = WriteRun(Store.at("/nowhere/else"), schema, "0" * 32)
    rows = write_expression.CollectionRows(ddf[ddf.c2 > 1][["c1"]])
    lazy = rows.write(
        run, Create(), write_index=False, splits=None, shuffle=None, npartitions=rows.npartitions
    )
    assert len(lazy.optimize().__dask_graph__()) == 10_001
