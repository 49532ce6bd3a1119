"""Objects that Dask converted to text: a write rejects text that is certainly a converted object.

Modules: collection.frames.pandas_to_arrow.
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


def frame_of(values: list[Any]) -> pd.DataFrame:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return pd.DataFrame({"i": range(len(values)), "x": pd.Series(column, dtype=object)})


def two(frame: pd.DataFrame) -> dd.DataFrame:
    return dd.from_pandas(frame, npartitions=2)


CONVERTING: dict[str, Callable[[pd.DataFrame], dd.DataFrame]] = {
    "from_pandas": two,
    "from_dict": lambda f: dd.from_dict({"i": list(f.i), "x": list(f.x)}, npartitions=2),
    "from_map": lambda f: dd.from_map(lambda n: f.iloc[2 * n : 2 * n + 2], [0, 1], meta=f.iloc[:0]),
    "from_delayed": lambda f: dd.from_delayed(
        [dask.delayed(f.iloc[:2]), dask.delayed(f.iloc[2:])], meta=f.iloc[:0]
    ),
    "from_array": lambda f: dd.from_array(np.asarray(f.x, object), columns="x").to_frame(),
    "from_dask_array": lambda f: dd.from_dask_array(
        da.from_array(np.asarray(f.x, object), chunks=2), columns="x"
    ).to_frame(),
    "concat": lambda f: dd.concat([two(f.iloc[:0].assign(x="")), two(f)]),
    "merge": lambda f: two(f).merge(f[["i"]], on="i"),
    "prefix": lambda f: two(f.rename(columns={"x": ""})).add_prefix("x"),
    "assign": lambda f: two(f.rename(columns={"x": "y"})).assign(x=lambda d: d.y)[["x"]],
    "set_index": lambda f: two(f).set_index("i"),
    "map_partitions": lambda f: two(f[lambda d: d.i >= 0]).map_partitions(lambda part: part),
    "shuffle": lambda f: two(f).shuffle("i"),
    "Arrow text": lambda f: two(f).astype({"x": pd.ArrowDtype(pa.string())}),
    "categories": lambda f: two(f).astype({"x": "category"}),
    "renamed series": lambda f: two(f)["i"].to_frame().assign(x=two(f)["x"].rename("y")),
}


PAIRS = [
    (way, kind)
    for number, way in enumerate(CONVERTING)
    for at, kind in enumerate(OBJECTS)
    if way in ("from_pandas", "from_map") or (at - number) % len(OBJECTS) in (0, 6)
]


@pytest.mark.sampled
@pytest.mark.parametrize(("way", "kind"), PAIRS)
def test_objects_that_dask_made_text_of_are_not_written(tmp_path: Path, way: str, kind: str) -> None:
    values = OBJECTS[kind]
    ddf = CONVERTING[way](frame_of(values))
    with pytest.raises(SchemaError, match=r"converts the \w+ objects of this column to text") as caught:
        to_tfrecord(ddf, tmp_path / "out", lossy="allow", shuffle=way == "from_map")
    assert caught.value.feature in ("x", "xx")
    assert 'dask.config.set({"dataframe.convert-string": False})' in str(caught.value)
    is_whole_as_text = isinstance(values[0], Decimal | dt.date | bool) or isinstance(values[1], int)
    assert [remedy.keyword for remedy in caught.value.remedies] == ["schema"] * int(is_whole_as_text)
    assert not list((tmp_path / "out").glob("part-*"))
    # The schema may say that the column is text. A column that is not written does not matter.
    to_tfrecord(ddf, tmp_path / "text", schema={caught.value.feature: pa.string()})
    to_tfrecord(ddf.assign(**{caught.value.feature: 1}), tmp_path / "replaced")
    for name in ("text", "replaced"):
        assert len(read_tfrecord(tmp_path / name)) == 4


KEEPING: dict[str, Callable[[pd.DataFrame], dd.DataFrame]] = {
    "map_partitions": lambda f: two(f[["i"]]).map_partitions(lambda p: f.loc[p.index], meta=f.iloc[:0]),
    "bag": lambda f: db.from_sequence(f.to_dict("records"), npartitions=2).to_dataframe(meta=f.iloc[:0]),
    "map": lambda f: two(f[["i"]]).assign(x=lambda d: d.i.map(lambda i: f.x[i], meta=("x", object))),
}


@pytest.mark.parametrize(
    ("way", "kind"),
    [*zip([*KEEPING] * 2, ["array", "list", "bytes", "decimal", "date", "bool"], strict=True)],
)
def test_objects_that_stay_objects_are_written(tmp_path: Path, way: str, kind: str) -> None:
    frame = frame_of(OBJECTS[kind])
    to_tfrecord(KEEPING[way](frame), tmp_path, lossy="allow")
    found = read_tfrecord(tmp_path)["x"].compute().tolist()
    assert str([None if x is pd.NA else np.asarray(x).tolist() for x in found]) == str(
        [None if x is None else np.asarray(x).tolist() for x in frame.x]
    )


TEXT = {
    "words": ["a", None, "b", "c"],
    "JSON": [json.dumps([1, 2]), json.dumps({"a": [1]}), "[]", "[3]"],
    "brackets": ["[a b]", "[INFO] 1 2", "(x)", "[12:30]"],
    "NaN": ["a", float("nan"), pd.NA, "b"],
    "printed by the caller": ["[1 2]", "b'x'", "[0. 1. ... 9.]", "[" + " " * 100_000 + "x"],
}


@pytest.mark.parametrize(
    ("way", "text"),
    [
        *(("from_pandas", text) for text in TEXT),
        *((way, "NaN") for way in ("from_map", "shuffle")),
        *((way, "printed by the caller") for way in ("from_delayed", "concat")),
    ],
)
def test_text_is_written_whatever_it_looks_like_where_its_origin_is_known(
    tmp_path: Path, way: str, text: str
) -> None:
    ddf = CONVERTING[way](frame_of(TEXT[text]))
    for name, one in (("lazy", ddf), ("computed", ddf.persist())):
        to_tfrecord(one, tmp_path / name)
        found = read_tfrecord(tmp_path / name, index=False).compute().sort_values("i")["x"]
        assert [None if x is pd.NA else x for x in found] == [
            x if isinstance(x, str) else None for x in TEXT[text]
        ]


def test_objects_that_became_the_text_of_an_index_are_not_written(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": [1, 2]}, index=pd.Index([b"a", b"b"], dtype=object, name="key"))
    with pytest.raises(SchemaError, match="the bytes objects of this column to text") as caught:
        to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path)
    assert caught.value.feature == "key"
