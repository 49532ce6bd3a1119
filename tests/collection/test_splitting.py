"""`split=`: every row is in one split, always in the same split; splits are partition directories.

Modules: collection.row_splits, keywords.splits.
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

from dask_tfrecord import SchemaError, TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.collection.row_splits import split_frame
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.keywords.splits import parse_splits

ROWS = 4000
SHARES = {"train": 0.7, "eval": 0.2, "test": 0.1}
HALVES = {"a": 0.5, "b": 0.5}
FRAME = pd.DataFrame({"user": [f"u{i % 500}" for i in range(ROWS)], "id": np.arange(ROWS)})


def split_of(path: Path) -> dict[Any, str]:
    rows = read_tfrecord(path).compute()
    return dict(zip(rows["id"], rows["split"].astype(str), strict=True))


def splits(column: pa.Array, shares: dict[str, float], split_by: Any = "k") -> list[str]:
    """The splits of rows with these values."""
    frame = pd.DataFrame({"k": pd.array(column, pd.ArrowDtype(column.type))})
    chosen = parse_splits(["k"], shares, split_by)
    assert chosen is not None
    return split_frame(frame, chosen, 0)["split"].tolist()


@pytest.mark.parametrize("split_by", [0, "user", ["user", "id"]])
def test_split_by_puts_every_row_in_one_split(tmp_path: Path, split_by: Any) -> None:
    ddf = dd.from_pandas(FRAME, npartitions=4)
    to_tfrecord(ddf, tmp_path / "d", split=SHARES, write_options={"split_by": split_by})
    snapshot = Snapshot.open(tmp_path / "d")
    rows = read_tfrecord(tmp_path / "d").compute()
    assert sorted(rows["id"]) == list(range(ROWS))
    shares = rows["split"].value_counts(normalize=True)
    assert {name: pytest.approx(share, abs=0.06) for name, share in SHARES.items()} == dict(shares)
    assert snapshot.partition_on == ("split",)
    assert {file.values[0] for file in snapshot.files} == set(SHARES)
    assert len(read_tfrecord(tmp_path / "d" / "split=eval")) == (rows["split"] == "eval").sum()


def test_equal_values_are_in_one_split_whatever_the_partitions_and_types(tmp_path: Path) -> None:
    other = FRAME.sample(frac=1, random_state=1).astype({"user": "category"})
    for name, frame, npartitions in (("a", FRAME, 4), ("b", other, 3)):
        ddf = dd.from_pandas(frame, npartitions=npartitions, sort=False)
        to_tfrecord(ddf, tmp_path / name, split=SHARES, write_options={"split_by": "user"})
    assert split_of(tmp_path / "a") == split_of(tmp_path / "b")
    rows = read_tfrecord(tmp_path / "a").compute()
    assert (rows.groupby("user")["split"].nunique() == 1).all()


def test_the_splits_of_two_seeds_do_not_depend_on_each_other() -> None:
    """With two equal shares, the rows of a split are any subset, and two seeds share half of them."""
    rows = pa.array(range(4))
    found = [tuple(one == "a" for one in splits(rows, HALVES, seed)) for seed in range(160)]
    assert splits(rows, HALVES, 7) == splits(rows, HALVES, 7)
    counts = Counter(found)
    assert len(counts) == 16
    assert max(counts.values()) < 30
    # The rows of the next seed are no permutation of the rows of a seed.
    sizes = [sum(rows) for rows in found]
    assert 0.3 < np.mean([one != other for one, other in pairwise(sizes)]) < 0.95


def test_splits_come_before_other_partition_columns(tmp_path: Path) -> None:
    ddf = dd.from_pandas(FRAME.assign(half=FRAME["id"] % 2), npartitions=2)
    to_tfrecord(ddf, tmp_path / "d", split=SHARES, partition_on="half", colocate=True, shuffle=True, seed=1)
    found = {str(path.relative_to(tmp_path / "d")) for path in (tmp_path / "d").glob("split=*/half=*")}
    assert found == {f"split={name}/half={half}" for name in SHARES for half in (0, 1)}
    assert list(read_tfrecord(tmp_path / "d").columns) == ["user", "id", "half", "split"]


@pytest.mark.parametrize("type_", [pa.int64(), pa.binary(), pa.float64(), pa.timestamp("us"), pa.bool_()])
def test_columns_of_any_scalar_type_split(type_: pa.DataType) -> None:
    values = pa.array([i % 7 for i in range(300)]).cast(pa.string() if type_ == pa.binary() else pa.int64())
    column = pa.concat_arrays([values.cast(type_), pa.nulls(3, type_)])
    pairs = {*zip(column.to_pylist(), splits(column, HALVES), strict=True)}
    assert len(pairs) == len(column.unique())


@pytest.mark.parametrize("type_", [pa.float64(), pa.float32(), pa.float16()])
def test_equal_floats_are_in_one_split(type_: pa.DataType) -> None:
    values = pa.array(np.tile([0.0, -0.0], 20).astype(type_.to_pandas_dtype()))
    assert len({*splits(values, dict.fromkeys("abcdefghij", 0.1))}) == 1


@pytest.mark.parametrize(
    "types",
    [[pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns")] for zone in (None, "UTC")]
    + [[pa.time32("s"), pa.time64("us")], [pa.int64(), pa.decimal128(19, 0), pa.decimal128(22, 3)]],
)
def test_equal_values_of_other_units_are_in_one_split(types: list[pa.DataType]) -> None:
    numbers = pa.array(range(0, 40_000, 100), pa.int32() if pa.types.is_time(types[0]) else pa.int64())
    first = numbers.cast(types[0])
    found = {tuple(splits(first.cast(type_), SHARES)) for type_ in types}
    assert len(found) == 1
    assert {*found.pop()} == {*SHARES}


LISTS = pd.DataFrame({"l": pd.array([[1], [2]], pd.ArrowDtype(pa.list_(pa.int64())))})


@pytest.mark.parametrize(
    ("frame", "arguments", "error", "message"),
    [
        (FRAME, {"split": {"a": 0.5}}, TFRecordError, "sum to 0.5, not to 1"),
        (FRAME, {"split": {"a": 1.5, "b": -0.5}}, TFRecordError, "sum to 1"),
        (FRAME, {"split": ["train"]}, TFRecordError, "sum to 1"),
        (FRAME, {"split": {}}, TFRecordError, "sum to 1"),
        (FRAME, {"split": SHARES, "write_options": {"split_by": "nothing"}}, SchemaError, "nothing"),
        (FRAME, {"split": SHARES, "write_options": {"split_by": 1.5}}, TFRecordError, "split_by"),
        (
            FRAME,
            {"split": SHARES, "write_options": {"split_by": []}},
            TFRecordError,
            "split_by= names no column",
        ),
        (FRAME, {"write_options": {"split_by": "user"}}, TFRecordError, "no effect"),
        (FRAME.assign(split=1), {"split": SHARES}, SchemaError, "split"),
        (LISTS, {"split": SHARES, "write_options": {"split_by": "l"}}, SchemaError, "split_by="),
    ],
)
def test_wrong_arguments_are_named(
    tmp_path: Path, frame: pd.DataFrame, arguments: dict[str, Any], error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "d", **arguments)
    assert not list(tmp_path.rglob("part-*"))
