"""The cost of a query: the opened files and the decoded columns.

Modules: expr.read_expression, expr.write_expression, expr.rewrites.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from dask.base import tokenize

from dask_tfrecord import Snapshot, TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.codec import Decoder
from dask_tfrecord.dataset.read import read_plan
from dask_tfrecord.dataset.read.read_plan import ReadPlan, plan_partitions
from dask_tfrecord.dataset.snapshot import model
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.expr import read_expression, write_expression
from dask_tfrecord.expr.read_expression import FusedReads
from dask_tfrecord.files import record_file
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.storage.listing import FileInfo, info_table
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.fields import Schema

FILES = 5


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files of four rows with the columns x, y, z and name."""
    root = tmp_path_factory.mktemp("optimize") / "data"
    frame = pd.DataFrame({name: range(20) for name in "xyz"} | {"name": list("abcdefghijklmnopqrst")})
    to_tfrecord(dd.from_pandas(frame, npartitions=FILES), root)
    return root


@pytest.fixture(params=["snapshot", "foreign"])
def ddf(request: pytest.FixtureRequest, root: Path) -> Any:
    path = root if request.param == "snapshot" else f"{root}/*.tfrecord"
    return read_tfrecord(path, blocksize=None)


class Cost:
    """The numbers of the opened files and the names of the decoded columns."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.decoded: list[str] = []

    @property
    def files(self) -> int:
        return len(set(self.opened))


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch, ddf: Any) -> Cost:
    """The cost of everything after this fixture; a file that is read twice is listed twice."""
    cost = Cost()
    open_file = Store.open

    @contextmanager
    def opening(self: Store, path: str, *args: Any) -> Iterator[Any]:
        cost.opened.append(path)
        with open_file(self, path, *args) as source:
            yield source

    class Decoding(Decoder):
        def __init__(self, columns: Any, *args: Any, **options: Any) -> None:
            cost.decoded = sorted({*cost.decoded, *(column.name for column in columns)})
            super().__init__(columns, *args, **options)

    monkeypatch.setattr(Store, "open", opening)
    monkeypatch.setattr(record_file, "Decoder", Decoding)
    return cost


QUERIES: dict[str, tuple[Callable[[Any], Any], int, list[str]]] = {
    "all": (lambda d: d.compute(), 5, ["name", "x", "y", "z"]),
    "one column": (lambda d: d["x"].sum().compute(), 5, ["x"]),
    "an attribute": (lambda d: d.x.compute(), 5, ["x"]),
    "a list of one": (lambda d: d[["x"]].compute(), 5, ["x"]),
    "two columns": (lambda d: (d.x + d.y).sum().compute(), 5, ["x", "y"]),
    "two results": (lambda d: dask.compute(d.x.sum(), d.y.max()), 5, ["x", "y"]),
    "a filter": (lambda d: d[d.x * 1 > 3].y.compute(), 5, ["x", "y"]),
    "a new column": (lambda d: d.assign(w=d.x * 2).w.compute(), 5, ["x"]),
    "a group": (lambda d: d.groupby("name").y.sum().compute(), 5, ["name", "y"]),
    "head": (lambda d: d.head(2), 1, ["name", "x", "y", "z"]),
    "head of a column": (lambda d: d.x.head(2), 1, ["x"]),
    "head of a list": (lambda d: d[["x"]].head(2), 1, ["x"]),
    "tail": (lambda d: d.tail(2), 1, ["name", "x", "y", "z"]),
    "some partitions": (lambda d: d.partitions[2:4].compute(), 2, ["name", "x", "y", "z"]),
    "a partition": (lambda d: d.get_partition(3).x.compute(), 1, ["x"]),
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_opens_the_files_and_decodes_the_columns_it_needs(query: str, ddf: Any, cost: Cost) -> None:
    run, opened, decoded = QUERIES[query]
    run(ddf)
    assert (cost.files, cost.decoded) == (opened, decoded)
    assert len(cost.opened) == cost.files


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_what_pandas_gives(query: str, ddf: Any) -> None:
    run, _, _ = QUERIES[query]
    expected = run(dd.from_map(lambda n: ddf.get_partition(n).compute(), range(FILES), meta=ddf._meta))
    found = run(ddf)
    if isinstance(found, pd.DataFrame | pd.Series):
        assert found.astype(object).equals(expected.astype(object))
    else:
        assert str(found) == str(expected)


LENGTHS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "frame": (len, 20),
    "column": (lambda d: len(d.x), 20),
    "columns": (lambda d: len(d[["x", "y"]]), 20),
    "shape": (lambda d: d.shape[0].compute() if hasattr(d.shape[0], "compute") else d.shape[0], 20),
    "a new column": (lambda d: len(d.assign(w=d.x + 1)), 20),
}


@pytest.mark.parametrize("query", LENGTHS)
def test_a_length_decodes_nothing_and_opens_nothing_where_it_is_known(
    query: str, ddf: Any, cost: Cost
) -> None:
    run, expected = LENGTHS[query]
    assert run(ddf) == expected
    known = bool(ddf.expr.dataset.is_described)
    assert cost.decoded == []
    assert cost.files == (0 if known else FILES)


def test_the_length_of_some_partitions_counts_in_their_files_only(ddf: Any, cost: Cost) -> None:
    assert len(ddf.partitions[1:3]) == 8
    assert (cost.files, cost.decoded) == (0 if ddf.expr.dataset.is_described else 2, [])


@pytest.mark.parametrize("query", [lambda d: d.index, lambda d: d[[]]])
def test_rows_without_columns_open_nothing_where_they_are_counted(query: Any, ddf: Any, cost: Cost) -> None:
    assert query(ddf).compute().shape[0] == 20
    assert (cost.files, cost.decoded) == (0 if ddf.expr.dataset.is_described else FILES, [])


def test_the_length_of_a_filter_reads_its_columns_only(ddf: Any, cost: Cost) -> None:
    assert len(ddf[ddf.x > 3]) == 16
    assert cost.decoded == ["x"]
    assert len(cost.opened) == (FILES - 1 if ddf.expr.dataset.is_described else FILES)


def test_a_write_and_a_sum_share_their_reading(ddf: Any, cost: Cost, tmp_path: Path) -> None:
    lazy = to_tfrecord(ddf, tmp_path / "copy", compute=False)
    snapshot, total = dask.compute(lazy, ddf.x.sum())
    assert (snapshot.records, total) == (20, 190)
    assert len(cost.opened) == cost.files == FILES


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
    partitions, values = plan_partitions(info_table(infos), blocksize=None)
    return ReadPlan(Store.at("/nowhere"), partitions, schema, ReadOptions(), values)


@pytest.mark.parametrize(("fused", "count", "size"), [(False, 1000, 2500), (True, 67, 4000)])
def test_a_task_carries_its_own_files_and_not_the_others(fused: bool, count: int, size: int) -> None:
    ddf = read_expression.read(many(1000), None if fused else ["c1"])
    graph = (ddf["c1"].sum() if fused else ddf).optimize(fuse=False).__dask_graph__()
    tasks = [task for key, task in graph.items() if key[0].startswith("read_tfrecord")]
    assert len(tasks) == count
    assert max(len(cloudpickle.dumps(task)) for task in tasks) < size


def test_the_graph_of_a_read_makes_no_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    ddf = read_expression.read(many(1000), None)
    monkeypatch.setattr(read_plan, "Partition", None)
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
    lazy = rows.write(run, write_index=False, splits=None, shuffle=None, npartitions=rows.npartitions)
    assert len(lazy.optimize().__dask_graph__()) == 10_001
