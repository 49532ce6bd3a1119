"""Reads of a few columns from many partitions become fewer tasks, and nothing else changes.

Modules: collection.expr.optimizations.
"""

import pickle
import shutil
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from dask.dataframe.dask_expr._expr import FinalizeComputeDF

from dask_tfrecord import FileChangedError, explain, read_tfrecord, to_tfrecord
from dask_tfrecord.collection.expr.optimizations import MIN_FUSED_TASKS
from dask_tfrecord.collection.expr.read_expression import ReadTFRecord
from dask_tfrecord.dataset.read.plan import ReadPlan

FILES = 200


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fusion")
    for number in range(FILES):
        records = [
            {
                "n": ("int64", [n]),
                "m": ("int64", [n % 7]),
                "word": ("bytes", [f"w{n % 5}".encode()]),
                **{f"raw{i}": ("bytes", [b"\xff" * 8]) for i in range(5)},
            }
            for n in range(2 * number, 2 * number + 2)
        ]
        (root / f"{number:03}.tfrecord").write_bytes(oracle.features_file(records))
    return root


CATEGORIES = {"word": pa.dictionary(pa.int32(), pa.string())}


@pytest.fixture
def ddf(root: Path) -> Any:
    return read_tfrecord(root, blocksize=None, schema=CATEGORIES)


def reading(found: Any) -> int:
    """The number of tasks that read."""
    return sum(str(key[0]).startswith("read_tfrecord") for key in dict(found.optimize(fuse=False).dask))


@pytest.fixture
def few(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A quarter of the files, which are fused as all of them are."""
    monkeypatch.setattr("dask_tfrecord.collection.expr.optimizations.MIN_FUSED_TASKS", MIN_FUSED_TASKS // 4)
    ddf = read_tfrecord(sorted(root.iterdir())[: FILES // 4], blocksize=None, schema=CATEGORIES)
    assert reading(ddf["n"].sum()) == 17
    return ddf


QUERIES: dict[str, tuple[Any, int]] = {
    "all columns": (lambda d: d, FILES),
    "a column": (lambda d: d["n"], FILES),
    "a sum": (lambda d: d["n"].sum(), 67),
    "of two": (lambda d: (d["n"] + d["m"]).sum(), 67),
    "the longest": (lambda d: d["raw0"].count(), 67),
    "nearly all columns": (lambda d: d[["raw0", "raw1", "raw2", "raw3", "raw4"]].count(), FILES),
    "a filter": (lambda d: d[d["n"] > 20]["m"].sum(), 67),
    "a group": (lambda d: d.groupby("m", sort=True)["n"].sum(), 67),
    "a group in any order": (lambda d: d.groupby("m")["n"].sum().max(), FILES),
    "categories": (lambda d: d["word"].value_counts(sort=True), 67),
    "parts": (lambda d: d["n"].map_partitions(lambda part: part.iloc[:1], meta=d["n"]._meta).sum(), FILES),
    "an end": (lambda d: d["n"].tail(3, compute=False), 1),
    "a beginning": (lambda d: d[d["n"] > -1].head(1, compute=False), 1),
    "running sums": (lambda d: d["n"].cumsum().max(), FILES),
    "numbered anew": (lambda d: d["n"].reset_index(drop=True).index.max(), FILES),
    "some partitions": (lambda d: d["n"].partitions[:130].sum(), 65),
    "few partitions": (lambda d: d["n"].partitions[:100].sum(), 100),
    "joined": (lambda d: d["n"].sum() + d["n"].partitions[:10].sum(), 67 + 10),
    "partitions of a filter": (lambda d: d[d["n"] > 3].partitions[1:3]["m"].sum(), 2),
    "filtered and not": (lambda d: (d[d["n"] > 20]["n"] + d["m"]).count(), FILES),
    "with a scalar": (lambda d: (d["n"] - d["n"].mean()).max(), None),
    "with others": (lambda d: (d["n"] + dd.from_pandas(pd.Series(range(9)), 1).sum()).sum(), None),
}


@pytest.mark.sampled
@pytest.mark.parametrize("query", QUERIES)
def test_fusion_changes_the_number_of_tasks_and_no_result(
    query: str, ddf: Any, few: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, tasks = QUERIES[query]
    result = run(few).compute()
    monkeypatch.setattr("dask_tfrecord.collection.expr.optimizations.MIN_FUSED_TASKS", MIN_FUSED_TASKS)
    count = reading(run(ddf))
    assert tasks is None or count == tasks
    monkeypatch.setattr("dask_tfrecord.collection.expr.optimizations.MIN_FUSED_TASKS", 10**9)
    assert reading(run(ddf)) >= count
    expected = run(few).compute()
    if isinstance(result, pd.DataFrame | pd.Series):
        assert result.equals(expected)
        assert result.index.equals(expected.index)
    else:
        assert result == expected


COLUMN_FILES: dict[str, tuple[Any, dict[str, Any], int]] = {
    "a sum": (lambda d: d["n"].sum(), {}, 1),
    "a filter": (lambda d: d["n"].sum(), {"filters": [("m", ">", 3)]}, 1),
    "a mask": (lambda d: d[d["m"] > 3]["n"].sum(), {}, 1),
    "another column": (lambda d: d["text"].count(), {}, 6),
    "another filter": (lambda d: d["n"].sum(), {"filters": [("text", ">", "")]}, 6),
    "the order of partitions": (lambda d: d["n"], {}, 6),
    "damage": (lambda d: d["n"].sum(), {"on_corrupt": "skip"}, 6),
}


@pytest.mark.parametrize("query", COLUMN_FILES)
def test_one_task_reads_many_column_files(query: str, tmp_path: Path) -> None:
    run, given, tasks = COLUMN_FILES[query]
    options = {**given, "blocksize": None}
    frame = pd.DataFrame(
        {"n": range(60), "m": [n % 7 for n in range(60)], "text": [f"{n}" for n in range(60)]}
    )
    whole = dd.from_pandas(frame, npartitions=6)
    expected = run(read_tfrecord(to_new(whole, tmp_path / "none", columnar=None), **options))
    found = run(read_tfrecord(to_new(whole, tmp_path / "all", columnar=["n", "m"]), **options))
    assert reading(found) == tasks
    assert np.all(found.compute() == expected.compute())
    to_tfrecord(frame.iloc[4:5], tmp_path / "all", append=True, columnar=None)
    mixed = read_tfrecord(tmp_path / "all", **options)
    assert reading(run(mixed)) == mixed.npartitions == 7


def test_a_column_file_of_many_data_files_is_counted_once(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": range(60), "m": range(60)})
    to_tfrecord(frame, tmp_path, columnar=["n"], write_options={"max_rows_per_file": 10})
    [column_file] = (tmp_path / "_tfrecord" / "columns").iterdir()
    [plan] = [one.dataset for one in read_tfrecord(tmp_path).expr.walk() if isinstance(one, ReadTFRecord)]
    assert len(plan.files) == 6
    assert plan.column_file_bytes(plan.schema.select(["n"])) == column_file.stat().st_size


def to_new(ddf: Any, path: Path, **keywords: Any) -> Path:
    to_tfrecord(ddf, path, **keywords)
    return path


@pytest.mark.parametrize("query", ["all columns", "a sum", "a filter", "a group", "some partitions"])
def test_pickled_tasks_read_the_same_rows(query: str, few: Any) -> None:
    result = QUERIES[query][0](few).optimize()
    graph, keys = result.__dask_graph__(), result.__dask_keys__()
    expected = dask.get(graph, keys)
    for found, part in zip(dask.get(pickle.loads(cloudpickle.dumps(graph)), keys), expected, strict=True):
        assert found.equals(part) if isinstance(part, pd.DataFrame | pd.Series) else found == part


@pytest.mark.parametrize(
    "query",
    [
        lambda d: len(d[d["raw0"].notnull() & d["raw1"].notnull()]),
        lambda d: len(d[d["n"] > 3]),
        lambda d: d[d["n"] > 3].index.max().compute(),
        lambda d: d.loc[d["n"] > 3, ["m"]].index.size.compute(),
    ],
)
def test_all_reads_of_a_query_are_fused_alike(query: Any, root: Path) -> None:
    columns = ["n", "m", "raw0", "raw1", "raw2", "raw3", "raw4"]
    assert query(read_tfrecord(root, blocksize=None, columns=columns)) == query(
        read_tfrecord(root, blocksize=None)[columns].repartition(npartitions=3)
    )


def test_results_that_are_computed_together_agree_on_the_partitions(ddf: Any) -> None:
    total, first, length = dask.compute(ddf["n"].sum(), ddf["m"].head(2, compute=False), ddf["n"].count())
    assert (total, first.tolist(), length) == (sum(range(2 * FILES)), [0, 1], 2 * FILES)


KEYS = [f"k{number:02}" for number in range(70)]

# Queries whose masks need the partitions of few keys, and the number of tasks that read them.
MASKED: dict[str, tuple[Any, int]] = {
    "one key": (lambda ddf: ddf[ddf["key"] == "k07"], 1),
    "no key": (lambda ddf: ddf[ddf["key"] == "other"], 1),
    "two keys": (lambda ddf: ddf[ddf["key"].isin(["k03", "k60"])]["n"].sum(), 2),
    "a key and a value": (lambda ddf: ddf[(ddf["key"] < "k10") & (ddf["n"] % 2 == 0)]["n"].count(), 10),
    "all keys but one": (lambda ddf: ddf[ddf["key"] != "k07"], 69),
    "statistics": (lambda ddf: ddf[ddf["n"] == 3], 4),
    "partitions": (lambda ddf: ddf[ddf["key"] == "k07"].map_partitions(len), 70),
    "cumulative": (lambda ddf: ddf[ddf["key"] == "k07"]["n"].cumsum(), 70),
    "two masks": (
        lambda ddf: ddf[ddf["key"] == "k01"]["n"].sum() + ddf[ddf["key"] == "k02"]["n"].max(),
        2,
    ),
}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("keys") / "data"
    frame = pd.DataFrame({"key": [*KEYS, *KEYS], "n": range(2 * len(KEYS))})
    to_tfrecord(frame, root, partition_on="key")
    return root


@pytest.mark.parametrize("query", MASKED)
def test_partitions_that_a_mask_on_a_partition_column_excludes_run_no_task(
    query: str, keyed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, tasks = MASKED[query]
    lazy = run(read_tfrecord(keyed))
    computed = FinalizeComputeDF(lazy.expr).optimize(fuse=False)
    assert sum(str(key[0]).startswith("read_tfrecord") for key in computed.__dask_graph__()) == tasks
    found = lazy.compute()
    monkeypatch.setattr(ReadPlan, "has_task", lambda plan, _: np.ones(plan.npartitions, bool))
    slow = run(read_tfrecord(keyed))
    assert lazy.npartitions == slow.npartitions
    assert lazy.divisions == slow.divisions
    if isinstance(found, pd.DataFrame | pd.Series):
        assert_equal = pd.testing.assert_frame_equal if found.ndim == 2 else pd.testing.assert_series_equal
        assert_equal(found, slow.compute())
    else:
        assert found == slow.compute()


def test_the_files_of_partitions_that_a_mask_excludes_are_not_touched(keyed: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(keyed, root)
    ddf = read_tfrecord(root)
    of_key, of_value = ddf[ddf["key"] == "k07"], ddf[ddf["n"] == 3]
    shutil.rmtree(root / "key=k00")
    assert of_key["n"].compute().tolist() == [7, 77]
    with pytest.raises(FileChangedError, match="key=k00"):
        of_value.compute()


def test_explain_reports_fused_reads_file_by_file(keyed: Path) -> None:
    ddf = read_tfrecord(keyed)
    for lazy in (ddf[ddf["key"] == "k07"], ddf[ddf["key"] == "k07"]["n"].sum()):
        totals = explain(lazy).totals
        assert (totals["files_opened"], totals["files_left_out"]) == (1, len(KEYS) - 1)
