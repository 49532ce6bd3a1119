"""`split=`: every row is in one split, always in the same split; splits are partition directories.

Modules: row_splits.
"""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import SchemaError, Snapshot, TFRecordError, read_tfrecord, to_tfrecord

ROWS = 4000
SHARES = {"train": 0.7, "eval": 0.2, "test": 0.1}


def frame() -> pd.DataFrame:
    return pd.DataFrame({"user": [f"u{i % 500}" for i in range(ROWS)], "id": np.arange(ROWS)})


def split_of(path: Path, column: str = "id") -> dict[Any, str]:
    rows = read_tfrecord(path).compute()
    return dict(zip(rows[column], rows["split"].astype(str), strict=True))


@pytest.mark.parametrize("split_by", [0, "user", ["user", "id"]])
def test_every_row_is_in_one_split(tmp_path: Path, split_by: Any) -> None:
    ddf = dd.from_pandas(frame(), npartitions=4)
    snapshot = to_tfrecord(ddf, tmp_path / "d", split=SHARES, split_by=split_by)
    rows = read_tfrecord(tmp_path / "d").compute()
    assert sorted(rows["id"]) == list(range(ROWS))
    shares = rows["split"].value_counts(normalize=True)
    assert {name: pytest.approx(share, abs=0.06) for name, share in SHARES.items()} == dict(shares)
    assert snapshot.partition_on == ("split",)
    assert {file.values[0] for file in Snapshot.open(tmp_path / "d").files} == set(SHARES)
    assert len(read_tfrecord(tmp_path / "d" / "split=eval")) == (rows["split"] == "eval").sum()


def test_equal_values_are_in_one_split_whatever_the_partitions_and_types(tmp_path: Path) -> None:
    to_tfrecord(dd.from_pandas(frame(), npartitions=4), tmp_path / "a", split=SHARES, split_by="user")
    other = frame().sample(frac=1, random_state=1).astype({"user": "category"})
    to_tfrecord(
        dd.from_pandas(other, npartitions=3, sort=False), tmp_path / "b", split=SHARES, split_by="user"
    )
    assert split_of(tmp_path / "a") == split_of(tmp_path / "b")
    rows = read_tfrecord(tmp_path / "a").compute()
    assert (rows.groupby("user")["split"].nunique() == 1).all()


def test_a_seed_decides_a_random_split(tmp_path: Path) -> None:
    ddf = dd.from_pandas(frame(), npartitions=4)
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        to_tfrecord(ddf, tmp_path / name, split=SHARES, split_by=seed)
        found.append(split_of(tmp_path / name))
    assert found[0] == found[1] != found[2]


def test_the_splits_of_two_seeds_do_not_depend_on_each_other(tmp_path: Path) -> None:
    """With two equal shares, the rows of a split are any subset, and two seeds share half of them."""
    table, found = pa.table({"id": range(4)}), []
    for seed in range(160):
        to_tfrecord(table, tmp_path / str(seed), split={"train": 0.5, "eval": 0.5}, split_by=seed)
        of_rows = split_of(tmp_path / str(seed))
        found.append(tuple(of_rows[row] == "train" for row in range(4)))
    counts = Counter(found)
    assert len(counts) == 16
    assert max(counts.values()) < 30
    # The rows of the next seed are no permutation of the rows of a seed.
    sizes = [sum(rows) for rows in found]
    assert 0.3 < np.mean([one != other for one, other in pairwise(sizes)]) < 0.95


def test_splits_come_before_other_partition_columns(tmp_path: Path) -> None:
    data = frame().assign(half=lambda rows: rows["id"] % 2)
    ddf = dd.from_pandas(data, npartitions=2)
    to_tfrecord(ddf, tmp_path / "d", split=SHARES, partition_on="half", colocate=True, shuffle=1)
    found = {str(path.relative_to(tmp_path / "d")) for path in (tmp_path / "d").glob("split=*/half=*")}
    assert found == {f"split={name}/half={half}" for name in SHARES for half in (0, 1)}
    assert list(read_tfrecord(tmp_path / "d").columns) == ["user", "id", "half", "split"]


def test_a_dataset_that_was_read_keeps_its_types(tmp_path: Path) -> None:
    types = {"x": pa.int8(), "l": pa.list_(pa.float32())}
    data = pd.DataFrame({"x": [1, None, 3], "l": [[1.5], [], None]})
    data = data.astype({name: pd.ArrowDtype(type_) for name, type_ in types.items()})
    to_tfrecord(dd.from_pandas(data, npartitions=1), tmp_path / "a")
    to_tfrecord(read_tfrecord(tmp_path / "a"), tmp_path / "b", split={"all": 1.0})
    back = read_tfrecord(tmp_path / "b").compute()
    pd.testing.assert_frame_equal(back.drop(columns="split").reset_index(drop=True), data)


@pytest.mark.parametrize("type_", [pa.int64(), pa.binary(), pa.float64(), pa.timestamp("us"), pa.bool_()])
def test_columns_of_any_scalar_type_split(tmp_path: Path, type_: pa.DataType) -> None:
    values = pa.array([i % 7 for i in range(300)]).cast(pa.string() if type_ == pa.binary() else pa.int64())
    column = pd.array(pa.concat_arrays([values.cast(type_), pa.nulls(3, type_)]), pd.ArrowDtype(type_))
    ddf = dd.from_pandas(pd.DataFrame({"k": column, "id": range(303)}), npartitions=3)
    to_tfrecord(ddf, tmp_path / "d", split={"a": 0.5, "b": 0.5}, split_by="k", lossy="allow")
    rows = read_tfrecord(tmp_path / "d").compute()
    assert len(rows) == 303
    assert (rows.groupby("k", dropna=False)["split"].nunique() == 1).all()


@pytest.mark.parametrize("type_", [pa.float64(), pa.float32(), pa.float16()])
def test_equal_floats_are_in_one_split(tmp_path: Path, type_: pa.DataType) -> None:
    values = pa.array(np.tile([0.0, -0.0], 20).astype(type_.to_pandas_dtype()))
    ddf = dd.from_pandas(pd.DataFrame({"k": pd.array(values, pd.ArrowDtype(type_))}), npartitions=2)
    to_tfrecord(ddf, tmp_path / "d", split={"a": 0.5, "b": 0.5}, split_by="k", lossy="allow")
    assert read_tfrecord(tmp_path / "d")["split"].nunique().compute() == 1


@pytest.mark.parametrize(
    "types",
    [[pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns")] for zone in (None, "UTC")]
    + [[pa.time32("s"), pa.time64("us")], [pa.int64(), pa.decimal128(19, 0), pa.decimal128(22, 3)]],
)
def test_equal_values_of_other_units_are_in_one_split(tmp_path: Path, types: list[pa.DataType]) -> None:
    first = pa.array(range(0, 40_000, 100), pa.int32() if pa.types.is_time(types[0]) else pa.int64()).cast(
        types[0]
    )
    found = []
    for type_ in types:
        column = pd.array(first.cast(type_), pd.ArrowDtype(type_))
        ddf = dd.from_pandas(pd.DataFrame({"id": range(400), "k": column}), npartitions=1)
        to_tfrecord(ddf, tmp_path / "d", split=SHARES, split_by="k", overwrite=True, lossy="allow")
        found.append(split_of(tmp_path / "d"))
    assert all(splits == found[0] for splits in found)
    assert len(set(found[0].values())) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": {"a": 0.5}}, "sum to 1"),
        ({"split": {"a": 1.5, "b": -0.5}}, "sum to 1"),
        ({"split": ["train"]}, "sum to 1"),
        ({"split": {}}, "sum to 1"),
        ({"split": SHARES, "split_by": "nothing"}, "nothing"),
        ({"split": SHARES, "split_by": 1.5}, "split_by"),
        ({"split": SHARES, "split_by": []}, "split_by= names no column"),
        ({"split_by": "user"}, "no effect"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TFRecordError, match=message):
        to_tfrecord(dd.from_pandas(frame(), npartitions=1), tmp_path / "d", **arguments)
    assert not (tmp_path / "d").exists()


def test_a_column_named_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="split"):
        to_tfrecord(dd.from_pandas(frame().assign(split=1), npartitions=1), tmp_path / "d", split=SHARES)


def test_lists_do_not_split(tmp_path: Path) -> None:
    column = pd.array([[1], [2]], pd.ArrowDtype(pa.list_(pa.int64())))
    ddf = dd.from_pandas(pd.DataFrame({"l": column}), npartitions=1)
    with pytest.raises(SchemaError, match="split_by="):
        to_tfrecord(ddf, tmp_path / "d", split=SHARES, split_by="l")
