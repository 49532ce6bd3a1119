"""The index of a DataFrame: a meaningful index is written, and a read restores it.

Modules: collection.frames.schema_plan, collection.expr.write_expression.
"""

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_tfrecord import SchemaError, TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot

pytestmark = pytest.mark.usefixtures("one_thread")

FRAME = pd.DataFrame({"x": range(12), "word": [f"w{n:02}" for n in range(12)]})


def two(frame: pd.DataFrame) -> dd.DataFrame:
    return dd.from_pandas(frame, npartitions=2)


NAMED: dict[str, Any] = {
    "range": pd.RangeIndex(12),
    "integers": pd.Index([n * n for n in range(12)]),
    "times": pd.date_range("2024-01-01", periods=12, tz="Europe/Vienna"),
    "text": pd.Index([f"k{n:02}" for n in range(12)]),
    "durations": pd.to_timedelta(range(12), unit="s"),
    "repeated": pd.Index([0] * 12),
    "missing": pd.Index([None, *range(11)], dtype=pd.ArrowDtype(pa.int64())),
    "categories": pd.CategoricalIndex(list("aabbcc") * 2, categories=list("cba")),
}


WAYS: list[dict[str, Any]] = [
    {},
    {"shuffle": True, "seed": 1},
    {"partition_on": "word", "colocate": True},
    {"write_options": {"max_rows_per_file": 1}},
]


@pytest.mark.parametrize(("levels", "way"), list(zip(NAMED, WAYS * 2, strict=True)))
def test_a_named_index_comes_back_as_the_index(tmp_path: Path, levels: str, way: dict[str, Any]) -> None:
    frame = FRAME.set_index(NAMED[levels].rename("key"))
    ddf = dd.from_pandas(frame, npartitions=2, sort=False)
    to_tfrecord(ddf, tmp_path / "a", **way)
    snapshot = Snapshot.open(tmp_path / "a")
    assert snapshot.index == (("key", "key"),)
    ddf = read_tfrecord(tmp_path / "a")
    assert list(ddf.columns) == ["x", "word"]
    found = ddf.compute().sort_values("x")
    assert found.index.name == ddf.index.name == "key"
    assert found.index.dtype == ddf.index.dtype == ddf._meta.index.dtype or levels == "categories"
    assert found.index.isna().tolist() == frame.index.isna().tolist()
    assert found.index.dropna().tolist() == frame.index.dropna().tolist()
    assert found["word"].tolist() == frame["word"].tolist()
    to_tfrecord(ddf, tmp_path / "b", **way)
    again = read_tfrecord(tmp_path / "b").compute().sort_values("x")
    pd.testing.assert_frame_equal(again, found, check_categorical=False)


def test_the_time_of_a_time_series_survives(tmp_path: Path) -> None:
    ddf = dask.datasets.timeseries(end="2000-01-03", freq="1h")
    ddf.to_tfrecord(tmp_path, lossy="allow")
    assert read_tfrecord(tmp_path).index.compute().tolist() == ddf.index.compute().tolist()
    found = read_tfrecord(tmp_path, calculate_divisions=True)
    assert isinstance(found.compute().index, pd.DatetimeIndex)
    assert isinstance(found._meta.index, pd.DatetimeIndex)
    assert len(found.loc["2000-01-01 03:00":"2000-01-01 05:00"]) == 3  # type: ignore[misc]
    assert found["id"].resample("6h").count().compute().tolist() == [6] * 8


def test_the_keys_of_a_groupby_survive(tmp_path: Path) -> None:
    ddf = two(FRAME.assign(a=FRAME.x % 3, b=FRAME.word.str[-1]))
    one = ddf.groupby("a")[["x"]].sum()
    to_tfrecord(one, tmp_path / "one")
    assert read_tfrecord(tmp_path / "one").compute()["x"].to_dict() == one.compute()["x"].to_dict()
    several = ddf.groupby(["a", "b"])[["x"]].sum()
    to_tfrecord(several, tmp_path / "several")
    snapshot = Snapshot.open(tmp_path / "several")
    assert snapshot.index == (("a", "a"), ("b", "b"))
    found = read_tfrecord(tmp_path / "several")
    assert list(found.columns) == ["x"]
    assert found.compute()["x"].to_dict() == several.compute()["x"].to_dict()
    assert found["x"].sum().compute() == FRAME["x"].sum()
    assert len(found) == len(several.compute())
    assert list(read_tfrecord(tmp_path / "several", columns=["a", "x"]).compute().index.names) == ["b"]


def test_keys_that_the_meta_does_not_know_are_not_dropped(tmp_path: Path) -> None:
    ddf = two(FRAME).groupby("word").x.apply(sum, meta=("x", "int64")).to_frame()
    with pytest.raises(SchemaError, match=r"has the index \['word'\], but .*\.reset_index\(\)"):
        to_tfrecord(ddf, tmp_path / "a")
    to_tfrecord(ddf, tmp_path / "b", write_index=False)
    assert sorted(read_tfrecord(tmp_path / "b")["x"].compute()) == list(range(12))


@pytest.mark.parametrize(
    ("frame", "options", "columns", "index"),
    [
        (FRAME, {"write_index": True}, ["index", "x", "word"], None),
        (FRAME.set_index("word"), {"write_index": False}, ["x"], ()),
        (FRAME.set_index(NAMED["text"]), {}, ["index", "x", "word"], None),
        (FRAME.set_index(NAMED["times"]), {}, ["index", "x", "word"], None),
        (FRAME.set_index(NAMED["durations"]), {}, ["index", "x", "word"], None),
    ],
)
def test_an_index_without_a_name_is_written_if_it_does_not_count_rows_or_by_write_index(
    tmp_path: Path, frame: pd.DataFrame, options: dict[str, Any], columns: list[str], index: Any
) -> None:
    to_tfrecord(two(frame), tmp_path, **options)
    snapshot = Snapshot.open(tmp_path)
    assert (snapshot.schema.names, snapshot.index) == (columns, () if index == () else (("index", None),))
    found = read_tfrecord(tmp_path).compute()
    assert found.index.name is None
    assert index == () or found.index.tolist() == frame.index.tolist()


@pytest.fixture
def changed_metadata(tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], dict[str, Any]]], None]:
    """Write a dataset whose index is "word", and return a function that changes the metadata."""
    to_tfrecord(two(FRAME.set_index("word")), tmp_path)
    path = tmp_path / "_tfrecord" / "00000001.parquet"

    def change(of: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        table = pq.read_table(path)
        known = of(json.loads(table.schema.metadata[b"dask_tfrecord"]))
        oracle.write_version(table.replace_schema_metadata({"dask_tfrecord": json.dumps(known)}), path)

    return change


def test_a_snapshot_of_another_writer_may_have_no_index(tmp_path: Path, changed_metadata: Any) -> None:
    changed_metadata(lambda known: {name: one for name, one in known.items() if name != "index"})
    assert Snapshot.open(tmp_path).index is None
    assert list(read_tfrecord(tmp_path).columns) == ["word", "x"]
    to_tfrecord(two(FRAME.set_index("word")), tmp_path, append=True)
    assert list(read_tfrecord(tmp_path).columns) == ["word", "x"]
    (tmp_path / "_tfrecord" / "00000001.parquet").unlink()
    (tmp_path / "_tfrecord" / "00000002.parquet").unlink()
    open_dataset(tmp_path).add_snapshot()
    assert list(read_tfrecord(tmp_path).columns) == ["word", "x"]
    for stored in ([["y", "y"]], [["x", "x"], ["x", "x"]], [["x", 1]], [1], "x"):
        changed_metadata(lambda known, stored=stored: known | {"index": stored})
        with pytest.raises(TFRecordError, match="not a valid snapshot"):
            read_tfrecord(tmp_path)


@pytest.mark.parametrize(
    "made",
    [
        lambda ddf: ddf,
        lambda ddf: ddf[ddf.x > 3],
        lambda ddf: dd.concat([ddf, ddf]),
        lambda ddf: ddf.set_index("word").reset_index(),
        lambda ddf: ddf.sort_values("x", ascending=False),
        lambda ddf: ddf.merge(ddf, on="x"),
    ],
)
def test_an_index_that_only_counts_rows_is_not_written(tmp_path: Path, made: Any) -> None:
    ddf = made(two(FRAME))
    to_tfrecord(ddf, tmp_path)
    snapshot = Snapshot.open(tmp_path)
    assert snapshot.index == ()
    assert sorted(snapshot.schema.names) == sorted(ddf.columns)
    assert read_tfrecord(tmp_path).compute().index.name is None


def test_the_reader_decides_what_the_index_is(tmp_path: Path) -> None:
    to_tfrecord(two(FRAME.set_index("word")), tmp_path)
    plain = read_tfrecord(tmp_path, index=False)
    assert list(plain.columns) == ["word", "x"]
    assert plain.compute().index.tolist() == list(range(12))
    other = read_tfrecord(tmp_path, index="x")
    assert (list(other.columns), other.index.name) == (["word"], "x")
    assert read_tfrecord(tmp_path, index=["word", "x"]).compute().index.names == ["word", "x"]
    assert list(read_tfrecord(tmp_path, columns=["word"]).columns) == ["word"]
    assert read_tfrecord(tmp_path, columns=["word"]).compute().index.name is None
    assert read_tfrecord(tmp_path, columns="x").compute().index.tolist() == FRAME["word"].tolist()
    assert read_tfrecord(tmp_path, columns=[]).compute().index.tolist() == FRAME["word"].tolist()
    whole = read_tfrecord(tmp_path, schema=pa.schema([("x", pa.int32())]))
    assert whole.compute().index.name is None
    assert list(read_tfrecord(tmp_path, use_snapshot=False).columns) == ["word", "x"]
    assert list(read_tfrecord(f"{tmp_path}/*").columns) == ["word", "x"]
    assert open_dataset(tmp_path).take([0, 3]).column_names == ["word", "x"]


def test_queries_work_on_an_index_that_came_back(tmp_path: Path, opened: list[str]) -> None:
    to_tfrecord(dd.from_pandas(FRAME.set_index("x"), npartitions=6), tmp_path)
    ddf = read_tfrecord(tmp_path, blocksize=None, dtype_backend="pyarrow")
    opened.clear()
    assert len(ddf) == len(ddf["word"]) == 12
    assert opened == []
    assert ddf[ddf.index >= 8]["word"].compute().tolist() == FRAME["word"][8:].tolist()
    assert len(opened) == 2
    assert ddf[ddf["word"] == "w03"].compute().index.tolist() == [3]
    assert len(opened) == 3
    assert ddf.index.max().compute() == 11
    assert ddf.loc[4:5].compute()["word"].tolist() == ["w04", "w05"]
    assert ddf.reset_index().compute()["x"].tolist() == FRAME["x"].tolist()
    assert ddf.reset_index()[["x"]].sum().compute()["x"] == FRAME["x"].sum()
    assert read_tfrecord(tmp_path, filters=[("x", "<", 2)]).compute().index.tolist() == [0, 1]
    assert ddf.partitions[1].compute().index.tolist() == [2, 3]
    assert not ddf.known_divisions
    known = read_tfrecord(tmp_path, calculate_divisions=True, blocksize=None)
    assert known.divisions == (0, 2, 4, 6, 8, 10, 11)
    opened.clear()
    assert known.loc[5]["word"].compute().tolist() == ["w05"]
    assert len(opened) == 1


def test_a_partition_column_is_the_index_again(tmp_path: Path) -> None:
    frame = FRAME.assign(part=FRAME.x % 3).set_index("part")
    to_tfrecord(dd.from_pandas(frame, npartitions=2), tmp_path, partition_on="part")
    assert (tmp_path / "part=1").is_dir()
    found = read_tfrecord(tmp_path).compute()
    assert found.index.name == "part"
    assert sorted(zip(found.index, found["x"], strict=True)) == sorted(
        zip(frame.index, frame["x"], strict=True)
    )
    assert read_tfrecord(tmp_path, hive=False).compute().index.name is None


def test_the_index_of_an_append_agrees_with_the_dataset(tmp_path: Path) -> None:
    named, plain = two(FRAME.set_index("word")), two(FRAME)
    for _ in range(2):
        to_tfrecord(named, tmp_path / "named", append=True)
    assert read_tfrecord(tmp_path / "named").compute().index.tolist() == FRAME["word"].tolist() * 2
    with pytest.raises(SchemaError, match=r"has the index none, the dataset .* with \['word'\]; .*set_index"):
        to_tfrecord(plain, tmp_path / "named", append=True)
    to_tfrecord(plain, tmp_path / "plain")
    with pytest.raises(SchemaError, match=r"has the index \['word'\], .* with none; .*write_index=False"):
        to_tfrecord(named, tmp_path / "plain", append=True)
    to_tfrecord(plain, tmp_path / "plain", append=True)
    to_tfrecord(named, tmp_path / "plain", overwrite=True)
    assert Snapshot.open(tmp_path / "plain").index == (("word", "word"),)


@pytest.mark.parametrize("name", ["y", "auto"])
@pytest.mark.parametrize("rows", [two, lambda frame: frame], ids=["dask", "pandas"])
def test_the_name_of_the_columns_comes_back(
    tmp_path: Path, rows: Callable[[pd.DataFrame], Any], name: str
) -> None:
    wide = pd.DataFrame({str(n): range(12) for n in range(3)}, pd.Index(range(12), name="x"))
    wide = wide.rename_axis(columns=name)
    to_tfrecord(rows(wide), tmp_path)
    to_tfrecord(rows(wide), tmp_path, append=True)
    open_dataset(tmp_path).compact()
    open_dataset(tmp_path).delete([("x", ">", 8)])
    for ddf in (read_tfrecord(tmp_path), read_tfrecord(tmp_path, columns=["1", "2"], index=False)):
        assert ddf.columns.name == ddf.compute().columns.name == name
    to_tfrecord(rows(wide.rename_axis(columns=7)), tmp_path, overwrite=True)  # a name that is no text is lost
    assert read_tfrecord(tmp_path).compute().columns.name is None


def test_an_index_that_no_column_can_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"the index would become the column 'word'.*write_index=False"):
        to_tfrecord(two(FRAME.set_index("word", drop=False)), tmp_path)
    with pytest.raises(SchemaError, match="the index is named 7, which is not a string; rename it"):
        to_tfrecord(two(FRAME.rename_axis(index=7)), tmp_path)
    to_tfrecord(two(FRAME), tmp_path / "a")
    with pytest.raises(TFRecordError, match="an index of one column, not of 2 levels; pass index="):
        read_tfrecord(tmp_path / "a", index=["x", "word"], calculate_divisions=True)


def test_an_index_of_objects_is_looked_at_for_its_type(tmp_path: Path) -> None:
    days = pd.Index([dt.date(2024, 1, day) for day in range(1, 13)], dtype=object, name="day")
    with dask.config.set({"dataframe.convert-string": False}):
        ddf = two(FRAME.set_index(days))
    # The index of a partition is called as in the meta.
    nameless = ddf.map_partitions(lambda part: part.rename_axis(index=None), meta=ddf._meta)
    for at, made in enumerate((ddf, nameless)):
        to_tfrecord(made, tmp_path / f"{at}")
        found = read_tfrecord(tmp_path / f"{at}").compute()
        assert (found.index.name, found.index.tolist()) == ("day", days.tolist())


def test_a_rounded_index_warns(tmp_path: Path) -> None:
    frame = FRAME.set_index(pd.Index(np.arange(12) / 3, name="key"))
    with pytest.warns(UserWarning, match="the values of 'key' are rounded"):
        to_tfrecord(two(frame), tmp_path)
