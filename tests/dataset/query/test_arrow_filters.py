"""A pyarrow expression keeps the rows that Arrow keeps, and opens the files that the list form opens.

Modules: dataset.query.filters, row_selection.
"""

import os
import pickle
import random
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dask.dataframe as dd
import engine_queries
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dask_tfrecord import SchemaError, TFRecordDataset, filter_mask, read_tfrecord, take, to_tfrecord
from dask_tfrecord.dataset.query.filters import arrow_predicate, names_in
from dask_tfrecord.dataset.query.predicates import Compare
from dask_tfrecord.schema.fields import Field, Schema

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = int(os.environ.get("DASK_TFRECORD_EXAMPLES", "20"))
TABLE = engine_queries.table()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("expressions") / "data"
    ddf = dd.from_pandas(TABLE.to_pandas(types_mapper=pd.ArrowDtype), npartitions=6)
    to_tfrecord(ddf, root, partition_on=["p", "q"], lossy="allow")
    return root


def test_random_expressions_keep_and_count_the_rows_that_arrow_keeps(root: Path) -> None:
    for seed in range(CASES):
        expression = engine_queries.arrow(engine_queries.condition(random.Random(seed), 3), TABLE.schema)
        expected = sorted(TABLE.filter(expression)["k"].to_pylist())
        found = TFRecordDataset(root, filters=expression)
        assert sorted(found.to_table(columns=["k"])["k"].to_pylist()) == expected, expression
        assert len(read_tfrecord(root, filters=expression)) == len(expected), expression


PAIRS: list[tuple[pc.Expression, Any]] = [
    (pc.field("p") == "x", [("p", "==", "x")]),
    (pc.scalar("x") == pc.field("p"), [("p", "==", "x")]),
    (pc.field("k") < 100, [("k", "<", 100)]),
    (pc.scalar(100) > pc.field("k"), [("k", "<", 100)]),
    (pc.field("p").isin(["x", "y"]), [("p", "in", ["x", "y"])]),
    (pc.field("p").isin(["x", None]), [("p", "in", ["x", None])]),
    (pc.field("p").is_null(), [("p", "is", None)]),
    (pc.field("p").is_valid() & (pc.field("q") == 2), [("p", "is not", None), ("q", "==", 2)]),
    ((pc.field("q") == 2) | (pc.field("k") > 590), [[("q", "==", 2)], [("k", ">", 590)]]),
    (~(pc.field("q") < 3), [("q", ">=", 3)]),
    (pc.field("day") <= TABLE["day"][50], [("day", "<=", TABLE["day"][50].as_py())]),
    (pc.field("zoned") >= TABLE["zoned"][550], [("zoned", ">=", TABLE["zoned"][550].as_py())]),
    (pc.match_like(pc.field("s"), "a%") & (pc.field("q") == 2), [("q", "==", 2)]),
]


@pytest.mark.parametrize("case", range(len(PAIRS)))
def test_an_expression_opens_the_files_that_the_list_opens(case: int, root: Path, opened: list[str]) -> None:
    expression, filters = PAIRS[case]
    read_tfrecord(root, filters=filters).compute()
    expected = {*opened}
    opened.clear()
    read_tfrecord(root, filters=expression).compute()
    assert {*opened} == expected
    assert 0 < len(expected) < 96


@pytest.mark.parametrize(
    "expression",
    [
        pc.match_like(pc.field("s"), "a%"),
        pc.field("k").cast(pa.string()) == "5",
        pc.if_else(pc.field("flag"), pc.field("k") < 5, pc.field("n") == 1),
        pc.coalesce(pc.field("n"), pc.scalar(0)) == 0,
        pc.field("k") == pa.scalar(None, pa.int64()),
        pc.field("f") < float("nan"),
        pc.field("flag"),
    ],
    ids=str,
)
def test_a_part_that_cannot_be_translated_excludes_no_file(expression: pc.Expression, root: Path) -> None:
    ddf = read_tfrecord(root, filters=expression, columns=["k"])
    assert sorted(ddf["k"].compute()) == sorted(TABLE.filter(expression)["k"].to_pylist())


def test_ordered_categories_are_compared_by_value_as_in_arrow(tmp_path: Path) -> None:
    sizes = pd.Categorical(["s", "l", "m", "s"], categories=["s", "m", "l"], ordered=True)
    to_tfrecord(dd.from_pandas(pd.DataFrame({"size": sizes}), npartitions=4, sort=False), tmp_path / "data")
    table = TFRecordDataset(tmp_path / "data").to_table()
    for expression in (pc.field("size") < "m", pc.field("size") == "m", pc.field("size").isin(["s"])):
        found = TFRecordDataset(tmp_path / "data").to_table(filter=expression)
        assert found.to_pylist() == table.filter(expression).to_pylist()


def test_an_expression_of_an_unknown_form_uses_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_tfrecord.dataset.query.filters.read_expression", Mock(side_effect=ValueError))
    schema = Schema.from_arrow(pa.schema({"x": pa.int64(), "y": pa.int64()}))
    predicate = arrow_predicate(pc.field("x") > 1, schema)
    assert predicate.columns() == {"x", "y"}
    mask = predicate.mask(pa.table({"x": [1, 2, None], "y": [0, 0, 0]}))
    assert mask.to_pylist() == [False, True, None]


def test_a_predicate_of_an_expression_pickles() -> None:
    schema = Schema.from_arrow(pa.schema({"x": pa.int64(), "y": pa.int64()}))
    predicate = arrow_predicate(pc.field("x").isin([1, None]), schema)
    again = pickle.loads(pickle.dumps(predicate))
    assert repr(again) == repr(predicate)
    assert again.columns() == {"x"}


def test_an_expression_without_names_is_refused() -> None:
    with pytest.raises(SchemaError, match="refers to a column by its number"):
        arrow_predicate(pc.field(0) > 1, Schema.from_arrow(pa.schema({"x": pa.int64()})))
    with pytest.raises(SchemaError, match="the dataset has no columns"):
        arrow_predicate(pc.scalar(True), Schema((), "example"))


@pytest.mark.parametrize(
    ("symbol", "function"),
    [("<", pc.greater), ("<=", pc.greater_equal), (">", pc.less), (">=", pc.less_equal)],
)
def test_a_value_on_the_left_is_compared_from_the_right(symbol: Any, function: Any) -> None:
    schema = Schema((Field("x", pa.int64()),), "example")
    found = arrow_predicate(function(pc.scalar(5), pc.field("x")), schema)
    assert found.pruning == Compare("x", symbol, 5)


def test_a_constant_keeps_all_rows_or_no_row(root: Path) -> None:
    dataset = TFRecordDataset(root)
    no = pa.scalar(None, pa.bool_())
    for constant, rows in ((True, engine_queries.ROWS), (False, 0), (no, 0)):
        assert dataset.count_rows(filter=pc.scalar(constant)) == rows
        assert dataset.to_table(columns=[], filter=pc.scalar(constant)).num_rows == rows
        assert len(read_tfrecord(root, filters=pc.scalar(constant))) == rows
    with pytest.raises(SchemaError, match="must evaluate to bool"):
        dataset.to_table(filter=pc.scalar(1))


def test_an_expression_that_fails_for_some_values_names_the_column_and_the_file(tmp_path: Path) -> None:
    columns = {"u": pa.array([1, 2**62 + 5], pa.uint64()), "b": pa.array([b"a", b"\xff"])}
    to_tfrecord(pa.table(columns), tmp_path)
    with pytest.raises(SchemaError, match=r"values of 'u': .*; cast the columns") as taken:
        take(tmp_path, [0], filters=pc.field("u") < 1e19)
    with pytest.raises(SchemaError, match=r"values of 'b': .*; cast the columns") as read:
        read_tfrecord(tmp_path, filters=pc.field("b").cast("string") == "a").compute()
    for caught in (taken, read):
        assert str(caught.value.path).startswith(f"{tmp_path}/part-")
    assert len(read_tfrecord(tmp_path, filters=pc.field("u").cast("float64", safe=False) < 1e19)) == 2


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        (pc.field("x") == "y", {"x"}),
        (pc.field("x").isin(["is_in", "y"]), {"x"}),
        (pc.is_valid(pc.field("x")), {"x"}),
        (pc.field("a b") > 5, {"a b"}),
        (pc.field("is_in") == "greater", {"is_in"}),
        (pc.field('"x" == y') > 1, {'"x" == y'}),
        (pc.match_substring(pc.field("x"), "label"), {"x"}),
        (pc.if_else(pc.field("x") > 1, pc.field("y"), pc.field("z.z")), {"x", "y", "z.z"}),
        (pc.field("s", "t") == 1, {"s"}),
        (pc.field("x").cast("int8") == pc.scalar(2), {"x"}),
        (pc.scalar(True), set()),
        (pc.field(0) > 1, None),
    ],
    ids=lambda one: str(one) if isinstance(one, pc.Expression) else None,
)
def test_the_columns_of_an_expression_are_exact(expression: pc.Expression, names: set[str] | None) -> None:
    assert names_in(expression) == names


@pytest.mark.parametrize("filters", [[("x", "==", "y")], pc.field("x") == "y"], ids=str)
def test_a_feature_that_no_filter_reads_may_differ_between_files(tmp_path: Path, filters: Any) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    for number, values in enumerate(([1, 2], ["a", "b"])):
        to_tfrecord(pa.table({"x": ["y", "z"], "y": values}), tmp_path / f"{number}")
        [file] = (tmp_path / f"{number}").glob("part-*")
        file.rename(directory / f"{number}.tfrecord")
    assert len(read_tfrecord(directory, columns=["x"], filters=filters)) == 2


@pytest.mark.parametrize(
    "other",
    [
        pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
        pa.array([[{"k": 1}], []]),
        pa.array([1, 2], pa.decimal256(70)),
    ],
    ids=lambda one: str(one.type),
)
def test_a_mask_needs_only_the_columns_of_its_filters(other: pa.Array) -> None:
    table = pa.table([pa.array([1, 2]), other, other], ["a", "b", "b"])
    for filters in ([("a", "==", 2)], pc.field("a") == 2):
        assert filter_mask(table, filters).to_pylist() == [False, True]
    with pytest.raises(SchemaError, match=r"'c'.*does not have a column that filters= names; .* 'a'"):
        filter_mask(table, [("c", "==", 1)])
