"""Filters select the rows that Python selects, for NaN, infinities and both zeros.

Modules: dataset.query.filters, dataset.query.predicates.
"""

import math
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from comparables import OPERATORS

from dask_tfrecord import index, read_tfrecord, to_tfrecord

pytestmark = pytest.mark.usefixtures("one_thread")

FILES: list[list[float | None]] = [
    [-0.0],
    [0.0],
    [-0.0, 0.0],
    [math.nan],
    [math.nan, 1.0],
    [math.inf],
    [-math.inf, 5.0],
    [math.inf, -math.inf],
    [None],
    [None, math.nan],
    [-1.0, 1.0],
]
VALUES = [value for values in FILES for value in values]
COMPARED = [0.0, -0.0, 1.0, math.inf, -math.inf]
LISTS: list[list[float]] = [[0.0], [-0.0], [math.inf], [0.0, 1.0], [math.nan], [math.nan, -0.0], []]


@pytest.fixture(scope="module", params=["float16", "float32", "float64"])
def frame(request: pytest.FixtureRequest) -> pd.DataFrame:
    type_ = pa.type_for_alias(request.param)
    floats = pa.array(VALUES, pa.float64()).cast(type_)
    return pd.DataFrame({"n": range(len(VALUES)), "x": pd.array(floats, pd.ArrowDtype(type_))})


ROOTS = ["statistics", "partitions", "indexed"]


@pytest.fixture(scope="module", params=ROOTS)
def root(request: pytest.FixtureRequest, frame: pd.DataFrame, tmp_path_factory: Any) -> Path:
    """A dataset of the floats, in files with statistics or in a directory for each value."""
    root: Path = tmp_path_factory.mktemp("floats") / "data"
    ends = [sum(map(len, FILES[:at])) for at in range(len(FILES) + 1)]
    ddf = dd.from_map(lambda at: frame.iloc[ends[at] : ends[at + 1]], range(len(FILES)), meta=frame.iloc[:0])
    with dask.config.set(scheduler="sync"):
        keys = ["x"] if request.param == "partitions" else None
        to_tfrecord(ddf, root, partition_on=keys, lossy="allow")
        if request.param == "indexed":
            (root / "_tfrecord").rename(root / "_old")
            index(root, schema={"x": frame["x"].dtype.pyarrow_dtype})
    return root


def numbers(found: Any) -> list[int]:
    return sorted(found.compute()["n"].tolist())


@pytest.mark.parametrize("symbol", OPERATORS)
def test_filters_compare_as_python_does(root: Path, symbol: str) -> None:
    for value in COMPARED:
        expected = [n for n, x in enumerate(VALUES) if x is not None and OPERATORS[symbol](x, value)]
        assert numbers(read_tfrecord(root, filters=[("x", symbol, value)])) == expected, value


@pytest.mark.parametrize("values", LISTS, ids=str)
def test_filters_find_the_values_of_a_list(root: Path, values: list[float]) -> None:
    nan = any(value != value for value in values)
    found = [n for n, x in enumerate(VALUES) if x is not None and (x in values or (nan and x != x))]
    assert numbers(read_tfrecord(root, filters=[("x", "in", values)])) == found
    rest = sorted({*range(len(VALUES))} - {*found})
    assert numbers(read_tfrecord(root, filters=[("x", "not in", values)])) == rest


def test_masks_are_those_of_pandas(request: pytest.FixtureRequest, root: Path, frame: pd.DataFrame) -> None:
    """Each kind of dataset, type, backend and negation is tested with each of the others."""
    is_double = frame["x"].dtype == pd.ArrowDtype(pa.float64())
    kind = ROOTS.index(request.node.callspec.params["root"])
    negated = (kind + is_double) % 2 == 1
    backend: Any = "numpy" if is_double == (kind == 2) else "pyarrow"
    ddf = read_tfrecord(root, dtype_backend=backend, blocksize=None)
    if str(ddf["x"].dtype) in ("halffloat[pyarrow]", "float16"):
        pytest.skip("pandas and Arrow have no isin for halves")
    whole = ddf.compute()
    masks: list[tuple[str, Any]] = [
        (f"{symbol} {value}", lambda d, c=compare, v=value: c(d["x"], v))
        for symbol, compare in OPERATORS.items()
        for value in [*COMPARED, math.nan]
    ]
    masks += [(f"isin {values}", lambda d, v=values: d["x"].isin(v)) for values in LISTS]
    masks += [("isna", lambda d: d["x"].isna()), ("between", lambda d: d["x"].between(-0.0, 0.0))]
    for name, mask in masks:
        wanted = ~mask(whole) if negated else mask(whole)
        expected = sorted(whole["n"][wanted.astype("boolean").fillna(False)])
        found = ddf[~mask(ddf)] if negated else ddf[mask(ddf)]
        assert numbers(found) == expected, name


def test_what_cannot_match_is_not_opened(root: Path, opened: list[str]) -> None:
    ddf = read_tfrecord(root, filters=[("x", ">", 5.0)], blocksize=None)
    assert len(ddf.compute()) == 2
    # Two files hold infinity. A file of NaN only has no bounds, so it may match.
    assert len(opened) <= 5
    opened.clear()
    assert len(read_tfrecord(root, filters=[("x", "==", 0.0)], blocksize=None).compute()) == 4
    assert len(opened) <= 8  # the files with zeros, with values around zero, and with NaN
