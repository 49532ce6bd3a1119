"""Random queries of random datasets return the rows of pandas, with and without snapshots and statistics.

If Dask and pandas disagree for every source, Dask's rows for the same frames by `dd.from_map` are expected.

Modules: collection.expr.optimizations.
"""

import collections
import math
import random
import warnings
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from comparables import OPERATORS
from dask.dataframe import methods
from random_queries import Data, Queries, make_data, run, variants
from strides import EXAMPLES

from dask_tfrecord.collection.expr import optimizations

QUERIES_PER_DATASET = 30


def computed(found: Any, how: str) -> Any:
    """Compute a collection: optimized, with separate partitions, not fused, or not optimized."""
    if not dask.is_dask_collection(found):
        return found
    if how == "not fused":
        return found.compute(fuse=False)
    if how == "optimised":
        return found.compute()
    if how == "by partition" and isinstance(found, dd.DataFrame | dd.Series):
        return methods.concat(dask.compute(*found.to_delayed()))
    if how == "by partition":
        return found.compute()
    lowered = found.expr.lower_completely()
    parts = dask.get(lowered.__dask_graph__(), lowered.__dask_keys__())
    return methods.concat(parts) if isinstance(parts[0], pd.DataFrame | pd.Series) else parts[0]


def outcome(query: str, d: Any, other: Any, how: str = "optimised") -> Any:
    """The result in a form that can be compared, or the error."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return _plain(computed(run(query, d, other), how), query)
    except Exception as error:
        return error


def _plain(found: Any, query: str) -> Any:
    if isinstance(found, pd.DataFrame | pd.Series):
        frame = found.to_frame("it") if isinstance(found, pd.Series) else found
        columns = [[_cell(value) for value in frame[name]] for name in frame.columns]
        index = (
            [] if "merge" in query or "reset_index" in query else [[_cell(value) for value in frame.index]]
        )
        rows = list(zip(*columns, *index, strict=True)) if columns or index else len(frame)
        loose = ("merge", "groupby", "drop_duplicates", "sort_values", "nlargest")
        if isinstance(rows, list) and any(word in query for word in loose):
            rows = sorted(rows, key=repr)
        return [str(name) for name in frame.columns], rows
    return _cell(found)


def _cell(value: Any) -> Any:
    if isinstance(value, np.ndarray | list):
        return [_cell(one) for one in value]
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, float | np.floating):
        return "nan" if value != value else float(value) + 0.0 if value else math.copysign(0.0, value)
    return repr(value.item() if isinstance(value, np.generic) and not isinstance(value, np.str_) else value)


def keep(frame: pd.DataFrame, filters: list[Any]) -> list[int]:
    """The numbers of the rows that ``filters=`` selects, by plain Python."""
    columns = {name: pa.array(frame[name].array).to_pylist() for name in frame.columns}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [
        row["n"]
        for row in rows
        if any(all(_holds(row[name], symbol, value) for name, symbol, value in group) for group in filters)
    ]


def _holds(cell: Any, symbol: str, value: Any) -> bool:
    if symbol in ("is", "is not"):
        return (cell is None) == (symbol == "is")
    if symbol in ("in", "not in"):
        return any(cell == one for one in value if cell is not None) == (symbol == "in")
    return cell is not None and bool(OPERATORS[symbol](cell, value))


class Case:
    """One query of one variant of a dataset."""

    def __init__(self, data: Data, name: str, number: int) -> None:
        self.rng = random.Random(f"case {data.seed} {name} {number}")
        self.data, self.number = data, number
        self.queries = Queries(data, number)
        self.options: dict[str, Any] = {}
        self.partitions: list[int] | None = None

    def check(self, whole: list[pd.DataFrame]) -> str:
        """Run the case; AssertionError for wrong rows. ``whole`` holds the partitions of a plain read."""
        d, parts = self._source(whole)
        query, how = (
            self.queries.query(),
            self.rng.choice(["optimised", "by partition", "not fused", "plain"]),
        )
        case = f"seed {self.data.seed}, {self.data.root.name}, query {self.number}, {how}, {self.options}, "
        case += f"partitions {self.partitions}: {query}"
        expected = outcome(query, methods.concat(parts), methods.concat(whole))
        found = outcome(query, d, self.data.plain, how)
        if isinstance(expected, Exception):  # the values that raise may be in files that the query skips
            return "refused" if isinstance(found, Exception) else "answered, which pandas refuses"
        if not isinstance(found, Exception) and found == expected:
            return "equal"
        mapped = dd.from_map(lambda at: parts[at], range(len(parts)), meta=d._meta)
        other = dd.from_map(lambda at: whole[at], range(len(whole)), meta=self.data.plain._meta)
        by_dask = outcome(query, mapped, other, how)
        if isinstance(found, Exception):
            assert type(by_dask) is type(found), f"{case}\n{found!r}\ninstead of\n{by_dask!r}"
            return "refused by Dask"
        assert found == by_dask, f"{case}\n{found!r}\ninstead of\n{expected!r}\nby Dask\n{by_dask!r}"
        return "Dask's own"

    def _source(self, whole: list[pd.DataFrame]) -> tuple[Any, list[pd.DataFrame]]:
        """The collection to query, and its partitions."""
        kind = self.rng.random()
        if kind < 0.2:
            filters = self.queries.filters()
            self.options = {"filters": filters}
            d = self.data.read(filters=filters)
            parts = [d.get_partition(at).compute() for at in range(d.npartitions)]
            wanted = keep(self.data.arrow, filters)
            case = f"seed {self.data.seed}, {self.data.root.name}, query {self.number}, {filters}"
            assert sorted(methods.concat(parts)["n"]) == sorted(wanted), case
            return d, parts
        if kind < 0.35 and (name := self.queries.become_index()) is not None:
            columns = list(self.queries.names)
            self.options = {"index": name, "calculate_divisions": self.rng.random() < 0.7, "columns": columns}
            d = self.data.read(**self.options)
            parts = [d.get_partition(at).compute() for at in range(d.npartitions)]
            assert sorted(methods.concat(parts)["n"]) == sorted(methods.concat(whole)["n"]), self.data.seed
            return d, parts
        d, parts = self.data.plain, whole
        if kind < 0.5:
            self.partitions = self.rng.sample(range(len(whole)), self.rng.randint(1, len(whole)))
            parts = [whole[at] for at in self.partitions]
            d = d.get_partition(*self.partitions) if len(parts) == 1 else d.partitions[self.partitions]
        return d, parts


def check_dataset(seed: int, root: Path, queries: int) -> "collections.Counter[str]":
    """Check some queries of one dataset in all its variants."""
    data = make_data(seed, root)
    known = list(variants(data))
    found: collections.Counter[str] = collections.Counter()
    parts = {}
    for name, variant in known:
        ddf = variant.read()
        parts[name] = [ddf.get_partition(at).compute() for at in range(ddf.npartitions)]
        rows = methods.concat(parts[name]).sort_values("n")
        first = methods.concat(parts["snapshot"]).sort_values("n")
        assert _plain(rows, "merge") == _plain(first, "merge"), f"seed {seed}: {name} holds other rows"
    for number in range(queries):
        name, variant = known[0] if number % 2 else known[number // 2 % len(known)]
        found[Case(variant, name, number).check(parts[name])] += 1
    return found


@pytest.mark.filterwarnings("ignore")  # warnings of pandas about odd comparisons
@pytest.mark.parametrize("has_columns", [False, True])
def test_random_queries_give_the_rows_of_pandas(
    has_columns: bool, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without column files by default, and with them and fused partitions."""
    if has_columns:
        request.getfixturevalue("column_files_of_all")
        monkeypatch.setattr(optimizations, "MIN_FUSED_TASKS", 1)
    with dask.config.set({"scheduler": "sync", "dataframe.convert-string": False}):
        for seed in range(max(EXAMPLES // QUERIES_PER_DATASET // 2, 1)):
            root = tmp_path / str(seed)
            root.mkdir()
            check_dataset(2 * seed + has_columns, root, QUERIES_PER_DATASET)
