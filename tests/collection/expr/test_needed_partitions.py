"""A mask leaves out the tasks of partitions without rows, but no partition, no row, and no order.

Modules: collection.expr.needed_partitions, collection.expr.optimizations.
"""

from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_tfrecord import read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.read.plan import ReadPlan

pytestmark = pytest.mark.usefixtures("one_thread")

KEYS = 12

FRAME = pd.DataFrame(
    {
        "key": [f"k{number % KEYS:02}" for number in range(4 * KEYS)],
        "n": range(4 * KEYS),
        "word": [f"w{number % 5}" for number in range(4 * KEYS)],
        "label": pd.Categorical([f"c{number % 3}" for number in range(4 * KEYS)]),
    }
).sort_values("key", kind="stable")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("needed") / "data"
    to_tfrecord(FRAME, root, partition_on="key", write_index=False)
    return root


@pytest.fixture
def complete(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that runs another function while no task is left out."""

    def run(function: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(ReadPlan, "has_task", lambda plan, _: np.ones(plan.npartitions, bool))
            return function(read_tfrecord(root))

    return run


def one(d: Any) -> Any:
    return d[d["key"] == "k07"]


def few(d: Any) -> Any:
    return d[d["key"] < "k03"]


# Queries of Dask and of pandas, and the number of tasks that read. One of them reads an empty partition.
QUERIES: dict[str, tuple[Any, int]] = {
    "one key": (one, 2),
    "the first key": (lambda d: d[d["key"] == "k00"], 2),
    "no key": (lambda d: d[d["key"] == "other"], 1),
    "all keys but one": (lambda d: d[d["key"] != "k07"], KEYS),
    "all keys": (lambda d: d[d["key"] > ""], KEYS),
    "columns": (lambda d: one(d)[["n", "label"]], 2),
    "a category": (lambda d: one(d)["label"], 2),
    "a sum of columns": (lambda d: few(d)["n"] + few(d)["n"], 4),
    "a new column": (lambda d: few(d).assign(m=few(d)["n"] * 2), 4),
    "a mask on a mask": (lambda d: few(d)[few(d)["n"] % 2 == 0], 4),
    "loc": (lambda d: d.loc[d["key"] == "k07", ["n"]], 2),
    "either": (lambda d: d[(d["key"] == "k01") | (d["key"] == "k09")], 3),
    "other names": (lambda d: one(d).rename(columns={"n": "m"}), 2),
    "a running sum": (lambda d: one(d)["n"].cumsum(), KEYS),
    "two filters": (lambda d: one(d)["n"] + few(d)["n"], 5),
    "all rows, too": (lambda d: one(d)["n"] + d["n"], KEYS),
    "the first rows": (lambda d: one(d).head(2, npartitions=-1, compute=False), KEYS),
    "numbers of partitions": (lambda d: one(d).map_partitions(numbered, partition_info=None), KEYS),
    "a new index": (lambda d: one(d).reset_index(drop=True), KEYS),
}


def numbered(part: Any, partition_info: Any = None) -> Any:
    return part.assign(n=-1 if partition_info is None else partition_info["number"])


def reading(lazy: Any) -> int:
    """The number of tasks that read."""
    return sum(str(key[0]).startswith("read_tfrecord") for key in dict(lazy.optimize(fuse=False).dask))


def assert_equal(found: Any, expected: Any) -> None:
    kinds = {pd.DataFrame: pd.testing.assert_frame_equal, pd.Series: pd.testing.assert_series_equal}
    kinds[type(expected)](found, expected)


WAYS: dict[str, Any] = {
    "delayed": lambda d: dask.compute(*d.to_delayed()),
    "persisted": lambda d: dask.compute(*d.persist().to_delayed()),
    "persisted together": lambda d: dask.compute(*dask.persist(d, d.count())[0].to_delayed()),
    "mapped": lambda d: dask.compute(*mapped(d.optimize()).to_delayed()),
    "one by one": lambda d: [d.get_partition(at).compute() for at in some(d)],
    "optimized one by one": lambda d: [d.optimize().partitions[at].compute() for at in some(d)],
    "with itself": lambda d: dask.compute(*(d.optimize() == d.optimize()).to_delayed()),
}


def some(ddf: Any) -> list[int]:
    return [at for at in (0, 7, 9) if at < ddf.npartitions]


def mapped(ddf: Any) -> Any:
    return ddf.map_partitions(lambda part: part, meta=ddf._meta)


@pytest.mark.sampled
@pytest.mark.parametrize("query", QUERIES)
def test_leaving_out_tasks_changes_no_partition_and_no_row(query: str, root: Path, complete: Any) -> None:
    run, _ = QUERIES[query]
    ddf = run(read_tfrecord(root))
    assert ddf.npartitions == ddf.optimize().npartitions == ddf.persist().npartitions
    for way, parts in WAYS.items():
        expected = complete(lambda d, parts=parts: parts(run(d)))
        found = parts(ddf)
        count = len(some(ddf)) if way.endswith("one by one") else ddf.npartitions
        assert len(found) == len(expected) == count, way
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    expected = complete(lambda d: run(d).compute())
    assert_equal(ddf.compute(), expected)
    assert_equal(ddf.optimize().compute(), expected)


@pytest.mark.parametrize("query", QUERIES)
def test_a_mask_leaves_out_tasks_where_rows_are_computed_one_by_one(query: str, root: Path) -> None:
    run, tasks = QUERIES[query]
    assert reading(run(read_tfrecord(root))) == tasks


ROWS = [name for name in QUERIES if name not in ("two filters", "all rows, too", "numbers of partitions")]


@pytest.mark.sampled
@pytest.mark.parametrize("query", ROWS)
def test_the_remaining_tasks_have_the_rows_of_pandas(query: str, root: Path) -> None:
    run, _ = QUERIES[query]
    ddf = run(read_tfrecord(root))
    expected = run(FRAME) if query != "the first rows" else one(FRAME).head(2)
    for found in (ddf.compute(), dd.from_delayed(ddf.to_delayed(), meta=ddf._meta).compute()):
        assert found.astype(str).to_numpy().tolist() == expected.astype(str).to_numpy().tolist()


def test_a_mask_leaves_out_the_tasks_of_a_write(root: Path, tmp_path: Path) -> None:
    ddf = few(read_tfrecord(root))
    lazy = to_tfrecord(ddf, tmp_path / "lazy", write_index=False, compute=False)
    assert reading(lazy) == 4
    to_tfrecord(ddf, tmp_path / "few", write_index=False)
    expected = few(FRAME).astype(str).to_numpy().tolist()
    names = list(FRAME.columns)
    assert read_tfrecord(tmp_path / "few").compute()[names].astype(str).to_numpy().tolist() == expected


@pytest.mark.parametrize(
    "how", [{"partition_by": ["key"]}, {"index": "n", "calculate_divisions": True}, {"blocksize": 64}]
)
def test_other_partitions_keep_their_rows(how: dict[str, Any], root: Path) -> None:
    ddf = read_tfrecord(root, **how)
    masked = one(ddf)
    parts = dask.compute(*masked.to_delayed())
    expected = [one(part) for part in dask.compute(*ddf.to_delayed())]
    assert len(parts) == ddf.npartitions
    for found, other in zip(parts, expected, strict=True):
        assert_equal(found, other)
