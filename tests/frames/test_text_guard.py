"""Objects that Dask converted to text: a write rejects text that is certainly a converted object.

Modules: frames.pandas_to_arrow.
"""

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import SchemaError, read_tfrecord, to_tfrecord

pytestmark = pytest.mark.usefixtures("one_thread")

OBJECTS: dict[str, list[Any]] = {
    "array": [np.arange(2000.0)] * 4,
    "short array": [np.arange(3)] * 4,
    "array of one": [np.ones(1)] * 4,
    "list": [[1, 2]] * 4,
    "bytes": [b"\0a"] * 4,
    "dict": [{"a": 1}] * 4,
    "set": [{1}] * 4,
    "tuple": [(1, 2)] * 4,
    "decimal": [Decimal("1.50")] * 4,
    "date": [dt.date(2020, 1, 1)] * 4,
    "bool": [True, None, False, True],
    "mixed": ["a", 1, None, "b"],
    "late": ["a", None, "b", [1]],
}


def objects(values: list[Any]) -> "pd.Series[Any]":
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return pd.Series(column, dtype=object)


def frame_of(values: list[Any]) -> pd.DataFrame:
    return pd.DataFrame({"i": range(len(values)), "x": objects(values)})


def halves(frame: pd.DataFrame) -> Callable[[int], pd.DataFrame]:
    return lambda n: frame.iloc[2 * n : 2 * n + 2]


def from_delayed(frame: pd.DataFrame) -> dd.DataFrame:
    parts = [dask.delayed(frame.iloc[:2]), dask.delayed(frame.iloc[2:])]
    return dd.from_delayed(parts, meta=frame.iloc[:0])


def two(frame: pd.DataFrame) -> dd.DataFrame:
    return dd.from_pandas(frame, npartitions=2)


CONVERTING: dict[str, Callable[[pd.DataFrame], dd.DataFrame]] = {
    "from_pandas": two,
    "from_dict": lambda f: dd.from_dict({"i": list(f.i), "x": list(f.x)}, npartitions=2),
    "from_map": lambda f: dd.from_map(halves(f), [0, 1], meta=f.iloc[:0]),
    "from_delayed": from_delayed,
    "from_array": lambda f: dd.from_array(np.asarray(f.x, object), columns="x").to_frame(),
    "from_dask_array": lambda f: dd.from_dask_array(
        da.from_array(np.asarray(f.x, object), chunks=2), columns="x"
    ).to_frame(),
    "concat": lambda f: dd.concat([two(f.iloc[:0].assign(x="")), two(f)]),
    "merge": lambda f: two(f).merge(f[["i"]], on="i"),
    "rename": lambda f: two(f.rename(columns={"x": "y"})).rename(columns={"y": "x"}),
    "prefix": lambda f: two(f.rename(columns={"x": ""})).add_prefix("x"),
    "columns": lambda f: two(f).rename(columns={"i": "j"})[["x"]],
    "assign": lambda f: two(f.rename(columns={"x": "y"})).assign(x=lambda d: d.y)[["x"]],
    "set_index": lambda f: two(f).set_index("i"),
    "filter": lambda f: (lambda d: d[d.i >= 0])(two(f)),
    "map_partitions": lambda f: two(f).map_partitions(lambda part: part),
    "shuffle": lambda f: two(f).shuffle("i"),
    "Arrow text": lambda f: two(f).astype({"x": pd.ArrowDtype(pa.string())}),
    "categories": lambda f: two(f).astype({"x": "category"}),
    "series": lambda f: two(f)["x"].to_frame(),
    "from_series": lambda f: dd.from_pandas(f["x"], npartitions=2).to_frame(),
    "renamed series": lambda f: two(f)["i"].to_frame().assign(x=two(f)["x"].rename("y")),
}


# The ways that make a collection of Python objects get all kinds of objects. The other ways change such a
# collection; each of them gets two kinds.
PAIRS = [
    (way, kind)
    for number, way in enumerate(CONVERTING)
    for at, kind in enumerate(OBJECTS)
    if way in ("from_pandas", "from_map", "from_delayed") or (at - number) % len(OBJECTS) in (0, 6)
]


@pytest.mark.parametrize(("way", "kind"), PAIRS)
def test_objects_that_dask_made_text_of_are_not_written(tmp_path: Path, way: str, kind: str) -> None:
    values = OBJECTS[kind]
    with pytest.raises(SchemaError, match=r"converts the \w+ objects of this column to text") as caught:
        to_tfrecord(CONVERTING[way](frame_of(values)), tmp_path / "out", lossy="allow")
    assert caught.value.feature in ("x", "xi", "xx", "xi")
    assert 'dask.config.set({"dataframe.convert-string": False})' in str(caught.value)
    is_whole_as_text = isinstance(values[0], Decimal | dt.date | bool) or isinstance(values[1], int)
    assert [remedy.keyword for remedy in caught.value.remedies] == ["schema"] * int(is_whole_as_text)
    assert not list((tmp_path / "out").glob("part-*"))


KEEPING: dict[str, Callable[[pd.DataFrame], dd.DataFrame]] = {
    "map_partitions": lambda f: two(f[["i"]]).map_partitions(lambda p: f.loc[p.index], meta=f.iloc[:0]),
    "bag": lambda f: db.from_sequence(f.to_dict("records"), npartitions=2).to_dataframe(meta=f.iloc[:0]),
    "map": lambda f: two(f[["i"]]).assign(x=lambda d: d.i.map(lambda i: f.x[i], meta=("x", object))),
}


@pytest.mark.parametrize("kind", ["array", "list", "bytes", "decimal", "date", "bool"])
@pytest.mark.parametrize("way", KEEPING.values(), ids=KEEPING.keys())
def test_objects_that_stay_objects_are_written(
    tmp_path: Path, way: Callable[[pd.DataFrame], dd.DataFrame], kind: str
) -> None:
    frame = frame_of(OBJECTS[kind])
    to_tfrecord(way(frame), tmp_path, lossy="allow")
    found = read_tfrecord(tmp_path)["x"].compute().tolist()
    assert str([None if x is pd.NA else np.asarray(x).tolist() for x in found]) == str(
        [None if x is None else np.asarray(x).tolist() for x in frame.x]
    )


@pytest.mark.parametrize("way", ["from_pandas", "from_map", "from_delayed", "from_array"])
def test_text_of_objects_is_written_if_the_schema_says_that_it_is_text(tmp_path: Path, way: str) -> None:
    ddf = CONVERTING[way](frame_of([[1, 2]] * 4))
    to_tfrecord(ddf, tmp_path, schema={"x": pa.string()})
    assert read_tfrecord(tmp_path)["x"].compute().tolist() == ["[1, 2]"] * 4


def test_text_of_objects_that_is_not_written_does_not_matter(tmp_path: Path) -> None:
    frame = frame_of([[1, 2]] * 4)
    to_tfrecord(two(frame)[["i"]], tmp_path / "a")
    to_tfrecord(two(frame).drop(columns="x"), tmp_path / "b")
    to_tfrecord(two(frame).assign(x=1), tmp_path / "c")
    mask = two(frame)
    to_tfrecord(mask[mask.x.str.len() > 1][["i"]], tmp_path / "d")
    for name in "abcd":
        assert len(read_tfrecord(tmp_path / name)) == 4


TEXT = {
    "words": ["a", None, "b", "c"],
    "JSON": [json.dumps([1, 2]), json.dumps({"a": [1]}), "[]", "[3]"],
    "brackets": ["[a b]", "[INFO] 1 2", "(x)", "[12:30]"],
    "NaN": ["a", float("nan"), pd.NA, "b"],
    "printed by the caller": ["[1 2]", "b'x'", "[0. 1. ... 9.]", "<A object at 0x12>"],
}


@pytest.mark.parametrize("values", TEXT.values(), ids=TEXT.keys())
@pytest.mark.parametrize("way", ["from_pandas", "from_map", "from_delayed", "concat", "shuffle"])
def test_text_is_written_whatever_it_looks_like_where_its_origin_is_known(
    tmp_path: Path, way: str, values: list[Any]
) -> None:
    to_tfrecord(CONVERTING[way](frame_of(values)), tmp_path)
    found = read_tfrecord(tmp_path, index=False).compute().sort_values("i")["x"]
    assert [None if x is pd.NA else x for x in found] == [x if isinstance(x, str) else None for x in values]


@pytest.mark.parametrize("text", ["[1 2]", "b'x'", "[1, 2]", "[" + " " * 100_000 + "x"], ids=len)
def test_text_that_was_computed_before_is_written_whatever_it_looks_like(tmp_path: Path, text: str) -> None:
    ddf = dd.from_pandas(pd.DataFrame({"x": [text] * 3}, dtype="string"), npartitions=1).persist()
    to_tfrecord(ddf, tmp_path)
    assert read_tfrecord(tmp_path)["x"].compute().tolist() == [text] * 3


def test_objects_that_became_the_text_of_an_index_are_not_written(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": [1, 2]}, index=pd.Index([b"a", b"b"], dtype=object, name="key"))
    with pytest.raises(SchemaError, match="the bytes objects of this column to text") as caught:
        to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path)
    assert caught.value.feature == "key"


def test_objects_are_found_when_rows_are_shuffled_into_files(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="the list objects of this column to text"):
        to_tfrecord(CONVERTING["from_map"](frame_of([[1]] * 4)), tmp_path, shuffle=1)


def test_two_writes_load_their_data_once(tmp_path: Path) -> None:
    loaded = []

    def load(n: int) -> pd.DataFrame:
        loaded.append(n)
        return frame_of(["a", "b"])

    ddf = dd.from_map(load, [0, 1], meta=frame_of(["a"]).iloc[:0])
    lazy = [to_tfrecord(ddf, tmp_path / name, compute=False) for name in "ab"]
    dask.compute(*lazy)
    assert sorted(loaded) == [0, 1]
