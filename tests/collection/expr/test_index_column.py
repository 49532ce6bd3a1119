"""`index=` and `calculate_divisions`: a column as the index, and rows found by it in few files.

Modules: collection.expr.write_expression, dataset.read.plan.
"""

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import SchemaError, read_tfrecord, to_tfrecord

pytestmark = pytest.mark.usefixtures("one_thread")


FRAME = pd.DataFrame(
    {
        "id": [n ^ 1 for n in range(20)],  # sorted from file to file, not within a file
        "x": [n * n for n in range(20)],
        "word": [f"w{n:02}" for n in range(20)],
        "day": pd.date_range("2024-01-01", periods=20),
        "mixed": [n % 5 for n in range(20)],
        "part": [n // 4 for n in range(20)],
        "holes": pd.array([None, *range(1, 20)], pd.ArrowDtype(pa.int64())),
        "share": [n / 2 for n in range(20)],
    }
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files of four rows."""
    root = tmp_path_factory.mktemp("index") / "data"
    to_tfrecord(dd.from_pandas(FRAME, npartitions=5), root, lossy="allow")
    return root


@pytest.mark.parametrize("backend", ["pyarrow", "numpy"])
def test_projections_lengths_and_filters_work_with_an_index(
    root: Path, opened: list[str], backend: Any
) -> None:
    ddf = read_tfrecord(root, index="id", blocksize=None, dtype_backend=backend)
    assert "id" not in ddf.columns
    assert not ddf.known_divisions
    found = ddf.compute()
    assert (found.index.name, found.index.tolist()) == ("id", FRAME["id"].tolist())
    assert found.index.dtype == ddf.index.dtype == ddf._meta.index.dtype
    assert found["x"].tolist() == FRAME["x"].tolist()
    assert ddf["x"].compute().index.tolist() == ddf.index.compute().tolist() == FRAME["id"].tolist()
    opened.clear()
    assert len(ddf) == len(ddf["x"]) == 20
    assert opened == []
    few = ddf[ddf.x < 10].compute()
    assert few.index.tolist() == [1, 0, 3, 2]
    assert len(opened) == 1
    if backend == "pyarrow":  # Dask cannot compare an index backed by NumPy
        assert ddf[ddf.index >= 16]["x"].sum().compute() == FRAME["x"][16:].sum()
        assert len(opened) == 2
    some = read_tfrecord(root, index="id", columns=["x"], filters=[("id", "<", 2)])
    assert some.compute()["x"].to_dict() == {1: 0, 0: 1}
    assert read_tfrecord(root, index="id", columns="x").compute().index.tolist() == FRAME["id"].tolist()
    foreign = read_tfrecord(f"{root}/*.tfrecord", index="id", calculate_divisions=True)
    assert (len(foreign), foreign.known_divisions) == (20, False)
    small = read_tfrecord(root, index="id", calculate_divisions=True)  # small files share a partition
    assert small.divisions == (0, 19)
    assert small.loc[3:4].compute().index.tolist() == [3, 4]


@pytest.mark.parametrize("backend", ["pyarrow", "numpy"])
def test_rows_are_found_by_the_index_in_the_files_that_hold_them(
    root: Path, opened: list[str], backend: Any
) -> None:
    ddf = read_tfrecord(root, index="id", calculate_divisions=True, blocksize=None, dtype_backend=backend)
    assert ddf.divisions == (0, 4, 8, 12, 16, 19)
    whole = FRAME.set_index("id").sort_index()
    assert ddf.loc[5:9].compute()["x"].tolist() == whole.loc[5:9]["x"].tolist()
    assert len(opened) == 2
    assert ddf.loc[6]["x"].compute().tolist() == [whole.loc[6]["x"]]
    assert ddf.loc[17:]["x"].compute().tolist() == whole.loc[17:]["x"].tolist()
    assert len(opened) == 4
    assert ddf.compute()["x"].tolist() == whole["x"].tolist()


@pytest.mark.parametrize("name", ["word", "day"])
def test_divisions_are_of_any_type_that_has_an_order(root: Path, opened: list[str], name: str) -> None:
    ddf = read_tfrecord(root, index=name, calculate_divisions=True, blocksize=None, dtype_backend="numpy")
    values = FRAME[name].tolist()
    assert list(ddf.divisions) == [*values[::4], values[-1]]
    assert ddf.loc[values[5] : values[6]].compute()["x"].tolist() == [25, 36]
    assert len(opened) == 1


@pytest.mark.parametrize("categories", ["abcd", "dcba"])
def test_categories_in_the_order_of_their_values_are_divisions(tmp_path: Path, categories: str) -> None:
    letters = pd.Categorical(list("ababcdcd"), categories=list(categories))
    ddf = dd.from_pandas(pd.DataFrame({"letter": letters, "n": range(8)}), npartitions=2, sort=False)
    to_tfrecord(ddf, tmp_path)
    ddf = read_tfrecord(tmp_path, index="letter", calculate_divisions=True, blocksize=None)
    assert ddf.known_divisions == (categories == "abcd")
    if ddf.known_divisions:
        assert ddf.loc[slice("b", "c")]["n"].compute().tolist() == [1, 3, 4, 6]


HALF_HOURS = pd.date_range("2020-10-25", periods=12, freq="30min", tz="Europe/Paris")  # with an hour twice


DAYS = pd.date_range("2020-01-01", periods=12)


SPANS = pd.timedelta_range("1 D", periods=12)


@pytest.mark.parametrize(
    ("times", "backend"),
    [
        (DAYS.as_unit("s"), "pyarrow"),
        (DAYS.as_unit("us"), "numpy"),
        (DAYS.as_unit("ns") + pd.Timedelta(7, "ns"), "pyarrow"),
        (HALF_HOURS.as_unit("us"), "pyarrow"),
        (HALF_HOURS.as_unit("ns"), "numpy"),
        (SPANS.as_unit("us"), "pyarrow"),
        (SPANS.as_unit("ns") + pd.Timedelta(7, "ns"), "numpy"),
        (pd.CategoricalIndex(DAYS.tz_localize("UTC")), "pyarrow"),
    ],
    ids=str,
)
def test_divisions_of_times_are_those_of_dask(tmp_path: Path, times: "pd.Index[Any]", backend: Any) -> None:
    ours = dd.from_pandas(pd.DataFrame({"x": range(12)}, index=times.rename("time")), npartitions=3)
    to_tfrecord(ours, tmp_path)
    ddf = read_tfrecord(tmp_path, calculate_divisions=True, blocksize=None, dtype_backend=backend)
    assert ddf.divisions == ours.divisions
    assert isinstance(ddf.divisions[0], pd.Timestamp | pd.Timedelta)
    assert [*map(type, ddf.divisions)] == [*map(type, ours.divisions)]
    if isinstance(times, pd.DatetimeIndex):
        weeks = ddf.repartition(freq="7D")
        assert weeks.divisions == ours.repartition(freq="7D").divisions
        assert weeks["x"].compute().tolist() == [*range(12)]


@pytest.mark.parametrize("name", ["mixed", "holes", "share"])
def test_calculate_divisions_gives_none_where_nothing_proves_them(root: Path, name: str) -> None:
    ddf = read_tfrecord(root, index=name, calculate_divisions=True, blocksize=None)
    assert ddf.divisions == (None,) * 6
    assert len(ddf.compute()) == 20


def test_files_are_not_split_for_divisions(tmp_path: Path) -> None:
    table = pa.table({"id": range(40), "raw": [b"x" * 100_000] * 40})
    to_tfrecord(table, tmp_path / "data", write_options={"max_rows_per_file": 20})
    split = read_tfrecord(tmp_path / "data", index="id", blocksize="1 MiB")
    assert split.npartitions > 2
    whole = read_tfrecord(tmp_path / "data", index="id", blocksize="1 MiB", calculate_divisions=True)
    assert whole.divisions == (0, 20, 39)


def test_a_partition_column_may_be_the_index(tmp_path: Path, opened: list[str]) -> None:
    to_tfrecord(dd.from_pandas(FRAME, npartitions=5), tmp_path / "data", partition_on=["part"], lossy="allow")
    ddf = read_tfrecord(tmp_path / "data", index="part", calculate_divisions=True, blocksize=None)
    assert ddf.divisions == (0, 1, 2, 3, 4, 4)
    assert ddf.loc[2:3]["x"].compute().tolist() == FRAME["x"][8:16].tolist()
    assert len(opened) == 2


def test_an_index_that_cannot_be_is_refused(root: Path) -> None:
    with pytest.raises(SchemaError, match="no column is named 'nothing'"):
        read_tfrecord(root, index="nothing")
    with pytest.raises(SchemaError, match="the column is in columns= and in index="):
        read_tfrecord(root, index="id", columns=["id", "x"])
    assert not read_tfrecord(root, calculate_divisions=True).known_divisions
