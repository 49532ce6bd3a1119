"""Predicates skip only files without rows that they select, and pyarrow expressions keep the rows of Arrow.

The outcomes of many files at once are those of each file by itself, and include those of all its rows.

Modules: dataset.query.filters, dataset.query.predicates, dataset.query.comparison_keys.
"""

import datetime
import math
import pickle
import random
from collections.abc import Sequence
from datetime import UTC
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dask.dataframe as dd
import engine_queries
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from comparables import OPERATORS
from hypothesis import given
from hypothesis import strategies as st
from possible import as_sets, outcomes_in_file
from strides import EXAMPLES

from dask_tfrecord import SchemaError, TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.codec import Encoder
from dask_tfrecord.dataset.query.filters import arrow_predicate, names_in, parse_filters
from dask_tfrecord.dataset.query.predicates import (
    Ambiguous,
    And,
    Compare,
    IsNull,
    Not,
    Or,
    Predicate,
    compare,
    file_outcomes,
    is_in,
)
from dask_tfrecord.dataset.snapshot.stored_files import from_entries
from dask_tfrecord.files.entry import ColumnStatistics, FileEntry, file_statistics
from dask_tfrecord.files.file_list import FileList
from dask_tfrecord.schema.fields import Field, Schema

WHOLE = st.integers(-5, 5)
FLOATS = st.sampled_from([-math.inf, -1.5, 0.0, -0.0, 0.1, float(np.float32(0.1)), 1.0, 2.5, math.inf])
WORDS = st.text("abż", max_size=2)
DATES = st.dates(datetime.date(2024, 2, 27), datetime.date(2024, 3, 2))
MOMENTS = st.integers(-4, 4).map(lambda n: datetime.datetime(2024, 3, 1) + n * datetime.timedelta(hours=7))
LENGTHS = WHOLE.map(lambda n: datetime.timedelta(milliseconds=n))

DECIMALS = WHOLE.map(lambda n: Decimal(n) / 4)
HOURS = st.sampled_from([datetime.time(n) for n in range(5)])
ZONED = MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC))
ELSEWHERE = MOMENTS.map(lambda moment: pd.Timestamp(moment, tz="Asia/Tokyo"))
HALVES = st.sampled_from([-math.inf, -1.5, 0.0, -0.0, 1.0, 2.5, math.nan]).map(np.float16)
WIDE = WHOLE.map(lambda n: Decimal(n) * 10**30)

# For each type: the values of columns, and the values that filters compare them to.
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), WHOLE, WHOLE | st.sampled_from([-128, 127])),
    "int64": (pa.int64(), WHOLE | st.sampled_from([2**63 - 1, -(2**63)]), WHOLE | st.just(2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 5) | st.just(2**63 - 1), st.integers(0, 5)),
    "float32": (pa.float32(), FLOATS | st.just(math.nan), FLOATS),
    "float64": (pa.float64(), FLOATS | st.just(math.nan), FLOATS),
    "bool": (pa.bool_(), st.booleans(), st.booleans()),
    "string": (pa.string(), WORDS, WORDS),
    "large_string": (pa.large_string(), WORDS | st.just("x" * 100), WORDS),
    "binary": (pa.binary(), st.binary(max_size=2), st.binary(max_size=2)),
    "fixed_size_binary": (pa.binary(1), st.binary(min_size=1, max_size=1), st.binary(max_size=2)),
    "decimal": (pa.decimal128(5, 2), DECIMALS, DECIMALS),
    "date": (pa.date32(), DATES, DATES),
    "time": (pa.time32("s"), HOURS, st.just(datetime.time(2))),
    "timestamp": (pa.timestamp("s"), MOMENTS, MOMENTS),
    "nanoseconds": (pa.timestamp("ns"), MOMENTS, MOMENTS.map(pd.Timestamp)),
    "zoned": (pa.timestamp("us", "Europe/Warsaw"), ZONED, ELSEWHERE),
    "duration": (pa.duration("ms"), LENGTHS, LENGTHS),
    "float16": (pa.float16(), HALVES, st.sampled_from([-1.5, 0.0, -0.0, 0.1, 1.0, 2.5])),
    "wide decimal": (pa.decimal256(60, 1), WIDE, WIDE),
    "category": (pa.dictionary(pa.int32(), pa.string()), WORDS, WORDS),
}


def stored(array: pa.Array) -> tuple[pa.Array, ColumnStatistics]:
    """A column as a read returns it, and its statistics in the receipt of the file."""
    schema = Schema.from_arrow(pa.schema([("x", array.type)]))
    batch = schema.to_storage(pa.record_batch({"x": array}), lossy="allow")
    encoder = Encoder(schema.columns, schema.record_type)
    encoder.bind(batch)
    [[statistics]] = file_statistics(schema, [encoder.statistics([0, len(array)])], 1)
    kernel = {"int64": pa.int64(), "float": pa.float32()}.get(schema.fields[0].kind, batch.column(0).type)
    back = schema.from_storage(pa.record_batch({"x": batch.column(0).cast(kernel)}))
    return back.column(0), statistics


def leaves(field: Field, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Predicate]:
    """Comparisons of a column."""
    members = values | st.just(math.nan) if pa.types.is_floating(field.type) else values
    return (
        st.builds(partial(compare, field), st.sampled_from([*OPERATORS]), values)
        | st.builds(partial(is_in, field), st.lists(members, max_size=3))
        | st.just(IsNull(field.name))
    )


def trees(leaf: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
    """Comparisons, and their combinations by &, | and ~."""
    return st.recursive(
        leaf,
        lambda one: st.builds(And, one, one) | st.builds(Or, one, one) | st.builds(Not, one),
        max_leaves=4,
    )


SIZES = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None], pa.int32()), ["S", "M", "L"], ordered=True)
TABLE = pa.table(
    {
        "n": pa.array([1, 2, None, 4]),
        "share": pa.array([0.1, 0.5, None, math.nan], pa.float32()),
        "word": pa.array(["a", None, "c", "d"]),
        "raw": pa.array([b"a", b"b", None, b"d"]),
        "list": pa.array([[1], [], None, [2, 3]]),
        "when": pa.array([0, 60, None, 180], pa.timestamp("s", "UTC")),
        "day": pa.array([0, 1, 2, 3], pa.date32()),
        "size": SIZES,
    }
)


SCHEMA = Schema.from_arrow(TABLE.schema, categories={"size": pa.array(["S", "M", "L"])})


def rows_of(filters: Any) -> list[int]:
    mask = parse_filters(filters, SCHEMA).mask(TABLE)
    return pc.indices_nonzero(mask).to_pylist()


@pytest.mark.parametrize(
    ("filters", "rows"),
    [
        ([("n", "=", 2)], [1]),
        ([("n", ">", 1), ("word", "!=", "d")], []),
        ([("n", ">", 1), ("raw", "!=", b"d")], [1]),
        ([[("n", "==", 1)], [("word", "==", "d"), ("n", ">", 2)]], [0, 3]),
        ([("n", "in", {1, 4, 9})], [0, 3]),
        ([("n", "not in", [1])], [1, 2, 3]),
        ([("n", "not in", [1, None])], [1, 3]),
        ([("n", "in", [])], []),
        ([("n", "is", None)], [2]),
        ([("list", "is not", None)], [0, 1, 3]),
        ([("n", "!=", 1.5)], [0, 1, 3]),
        ([("n", "<", 10**30)], [0, 1, 3]),
        ([("n", "in", [1, 1.5, 10**30])], [0]),
        ([("share", "==", 0.1)], []),
        ([("share", "!=", 0.5)], [0, 3]),
        ([("when", ">=", "1970-01-01T00:01:00+00:00")], [1, 3]),
        ([("when", "<", datetime.datetime(1970, 1, 1, 0, 1, 0, 1, tzinfo=UTC))], [0, 1]),
        ([("when", "==", datetime.datetime(1970, 1, 1, 0, 1, 0, 1, tzinfo=UTC))], []),
        ([("day", ">", datetime.date(1970, 1, 2))], [2, 3]),
        ([("day", "<=", "1970-01-02")], [0, 1]),
        ([("size", "<", "L")], [0, 1]),
        ([("size", ">=", "M")], [1, 2]),
        ([("size", "!=", "M")], [0, 2]),
    ],
)
def test_filters_mean_what_they_mean_to_read_parquet(filters: Any, rows: list[int]) -> None:
    assert rows_of(filters) == rows


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ([("m", "==", 1)], r"no column is named 'm'; there are 'n', 'share'"),
        ([("n", "~", 1)], r"feature 'n': unknown operator '~' .* known are '=', '=='"),
        ([("n", "==", "1")], r"feature 'n': .*'1' is not a number, the column is int64"),
        ([("n", "==", True)], "True is not a number"),
        ([("n", "<", math.nan)], "nan is not a number"),
        ([("word", "==", b"a")], r"b'a' is not a string, the column is string"),
        ([("raw", "==", "a")], r"'a' is not bytes, the column is binary"),
        ([("raw", "in", ["a"])], "is not bytes"),
        ([("word", "in", "abc")], r"'in' in filters= needs a list of values"),
        ([("list", "==", [1])], "cannot be compared"),
        ([("n", "==", None)], '"is" and "is not"'),
        ([("n", "is", 3)], "'is' needs None"),
        ([("when", "<", datetime.datetime(2024, 1, 1))], "needs a time zone"),
        ([("day", "<", datetime.datetime(2024, 1, 1))], "is not a date"),
        ([("day", "<", pd.NaT)], "is null and cannot be compared"),
        ([("size", "<", "XL")], "not one of the column's ordered categories"),
        (("n", "==", 1), r"filters= is not a list"),
        ([("n", "==")], r"filters= is not a list"),
        ([[]], r"filters= is not a list"),
        ("n > 1", r"filters= is not a list"),
    ],
)
def test_a_filter_that_cannot_be_right_says_why(filters: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        parse_filters(filters, SCHEMA)


@pytest.mark.parametrize(
    "value",
    [
        *(np.datetime64("1970-02"), np.datetime64("1971"), np.datetime64(7, "ms"), pd.Timestamp(1)),
        *(datetime.date(1970, 1, 2), "1970-01-01 00:00:01"),
    ],
    ids=repr,
)
def test_moments_may_be_written_in_many_ways(value: Any) -> None:
    expected = Compare("x", "==", pd.Timestamp(value).as_unit("ns").value)
    assert compare(Field("x", pa.timestamp("ns")), "==", value) == expected


def test_a_length_of_time_is_compared_in_the_columns_unit() -> None:
    field = Field("x", pa.duration("s"))
    assert compare(field, ">", np.timedelta64(2, "m")) == Compare("x", ">", 120)
    assert compare(field, ">=", pd.Timedelta("1500ms")) == Compare("x", ">", 1)


def table_of(entries: Sequence[FileEntry | None], fields: Sequence[Field]) -> FileList:
    """The files as columns. No snapshot lists a file that is None."""
    known = tuple(entry or FileEntry(f"{at}", 0, 9, 0) for at, entry in enumerate(entries))
    return from_entries(known, Schema(tuple(fields)), ())


def at_once(
    predicate: Predicate,
    fields: Sequence[Field],
    entries: Sequence[FileEntry | None],
    values: dict[str, pa.Array],
) -> list[frozenset[bool | None]]:
    """The outcomes of all files, from columns."""
    table = table_of(entries, fields).with_values(values)
    records = None if None in entries else table["records"]
    return as_sets(file_outcomes(predicate, Schema(tuple(fields)), table, records))


@st.composite
def files(draw: st.DrawFn, name: str) -> tuple[Field, list[pa.Array], list[FileEntry | None]]:
    """The rows of some files in one column, and their entries: some without statistics or bounds. If no
    snapshot lists the files, the entries are None.
    """
    type_, values, _ = TYPES[name]
    arrays, entries = [], list[FileEntry | None]()
    is_listed = draw(st.sampled_from([True, True, True, False]))
    for at, part in enumerate(draw(st.lists(st.lists(values | st.none(), max_size=4), max_size=5))):
        array, statistics = stored(pa.array(part, type_))
        arrays.append(array)
        kind = draw(st.sampled_from(["whole", "whole", "min", "max", "no statistics"]))
        if kind in ("min", "max"):
            statistics = statistics._replace(**{kind: None})
        known = () if kind == "no statistics" else (statistics,)
        entries.append(FileEntry(f"{at}", 0, len(part), 0, statistics=known) if is_listed else None)
    return Field("x", type_), arrays, entries


def ambiguous(predicate: Predicate) -> Predicate:
    """A filter of pandas that may be a predicate, or its opposite."""
    return Ambiguous((predicate, Not(predicate)))


@pytest.mark.sampled
@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_statistics_as_columns_give_what_each_file_gives(name: str, data: st.DataObject) -> None:
    field, arrays, entries = data.draw(files(name))
    tree = trees(leaves(field, TYPES[name][2]))
    predicate = data.draw(tree | tree.map(ambiguous))
    found = at_once(predicate, [field], entries, {})
    assert found == [outcomes_in_file(predicate, [field], entry, {}) for entry in entries]
    if not isinstance(predicate, Ambiguous):
        for outcomes, array in zip(found, arrays, strict=True):
            assert outcomes >= set(predicate.mask(pa.table({"x": array})).to_pylist())


@pytest.mark.sampled
@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_partition_values_as_columns_give_what_each_file_gives(name: str, data: st.DataObject) -> None:
    """A column of the records has statistics or none, and a list has the number of its nulls."""
    type_, values, others = TYPES[name]
    field, lists, number = Field("x", type_), Field("l", pa.list_(pa.int64())), Field("n", pa.int64())
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    of_files = pa.array(data.draw(st.lists(values | st.none(), max_size=5)), type_)
    statistics = [ColumnStatistics("n", 1, 2, 1), ColumnStatistics("l", None, None, 3, 0, 2)]
    listed = [FileEntry("f", 0, 3, 0, statistics=tuple(statistics)), FileEntry("f", 0, 0, 0)]
    known = data.draw(st.sampled_from([listed, [None]]))
    entries = [data.draw(st.sampled_from(known)) for _ in of_files]
    predicate = data.draw(trees(leaves(field, others)))
    more = data.draw(st.sampled_from([IsNull("l"), Compare("m", "<", 1), Compare("n", ">", 1)]))
    fields = [number, lists, field]
    for one in (predicate, And(predicate, more), Or(Not(more), predicate)):
        assert at_once(one, fields, entries, {"x": of_files}) == [
            outcomes_in_file(one, fields, entry, {"x": value})
            for entry, value in zip(entries, of_files.to_pylist(), strict=True)
        ]
    found = at_once(predicate, fields, entries, {"x": of_files})
    for outcomes, value, entry in zip(found, of_files, entries, strict=True):
        if entry is None or entry.records:
            column = pa.array([value.as_py()], type_)
            assert outcomes >= set(predicate.mask(pa.table({"x": column})).to_pylist())


@pytest.mark.parametrize("symbol", OPERATORS)
def test_a_bound_that_is_nan_is_unknown(symbol: Any) -> None:
    field = Field("x", pa.float64())
    for bounds in [(math.nan, math.nan), (math.nan, 9.0), (-9.0, math.nan)]:
        entry = FileEntry("f", 0, 3, 0, statistics=(ColumnStatistics("x", *bounds, 0),))
        [found] = at_once(compare(field, symbol, 1.0), [field], [entry], {})
        assert found == {True, False, None}


def test_bounds_of_another_type_are_unknown() -> None:
    entries = [FileEntry("f", 0, 3, 0, statistics=(ColumnStatistics("x", 5, 7, 0),))]
    statistics = table_of(entries, [Field("x", pa.int64())])
    text = Field("x", pa.string())
    for values in ({}, {"x": pa.array([5])}):
        table = statistics.with_values(values)
        found = file_outcomes(compare(text, "==", "a"), Schema((text,)), table, table["records"])
        assert as_sets(found) == [{True, False}]


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(TypeError, match="not valid Unicode"):
        compare(Field("x", pa.string()), "<", "\ud800")


pytestmark = pytest.mark.usefixtures("one_thread")

ENGINE_TABLE = engine_queries.table()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("expressions") / "data"
    ddf = dd.from_pandas(ENGINE_TABLE.to_pandas(types_mapper=pd.ArrowDtype), npartitions=6)
    to_tfrecord(ddf, root, partition_on=["p", "q"], lossy="allow")
    return root


def test_random_expressions_keep_and_count_the_rows_that_arrow_keeps(root: Path) -> None:
    for seed in range(EXAMPLES):
        expression = engine_queries.arrow(
            engine_queries.condition(random.Random(seed), 3), ENGINE_TABLE.schema
        )
        expected = sorted(ENGINE_TABLE.filter(expression)["k"].to_pylist())
        found = open_dataset(root, filters=expression)
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
    (pc.field("day") <= ENGINE_TABLE["day"][50], [("day", "<=", ENGINE_TABLE["day"][50].as_py())]),
    (pc.field("zoned") >= ENGINE_TABLE["zoned"][550], [("zoned", ">=", ENGINE_TABLE["zoned"][550].as_py())]),
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
    assert sorted(ddf["k"].compute()) == sorted(ENGINE_TABLE.filter(expression)["k"].to_pylist())


def test_ordered_categories_are_compared_by_value_as_in_arrow(tmp_path: Path) -> None:
    sizes = pd.Categorical(["s", "l", "m", "s"], categories=["s", "m", "l"], ordered=True)
    to_tfrecord(dd.from_pandas(pd.DataFrame({"size": sizes}), npartitions=4, sort=False), tmp_path / "data")
    table = open_dataset(tmp_path / "data").to_table()
    for expression in (pc.field("size") < "m", pc.field("size") == "m", pc.field("size").isin(["s"])):
        found = open_dataset(tmp_path / "data").to_table(filter=expression)
        assert found.to_pylist() == table.filter(expression).to_pylist()


def test_an_expression_of_an_unknown_form_uses_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_tfrecord.dataset.query.filters.read_expression", Mock(side_effect=ValueError))
    schema = Schema.from_arrow(pa.schema({"x": pa.int64(), "y": pa.int64()}))
    predicate = arrow_predicate(pc.field("x") > 1, schema)
    assert predicate.columns() == {"x", "y"}
    mask = predicate.mask(pa.table({"x": [1, 2, None], "y": [0, 0, 0]}))
    assert mask.to_pylist() == [False, True, None]


def test_predicates_pickle() -> None:
    predicate = parse_filters([[("n", ">", 1), ("word", "in", ["a"])], [("list", "is not", None)]], SCHEMA)
    assert pickle.loads(pickle.dumps(predicate)) == predicate
    assert predicate.columns() == {"n", "word", "list"}
    predicate = arrow_predicate(pc.field("n").isin([1, None]), SCHEMA)
    again = pickle.loads(pickle.dumps(predicate))
    assert repr(again) == repr(predicate)
    assert again.columns() == {"n"}


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
    dataset = open_dataset(root)
    no = pa.scalar(None, pa.bool_())
    for constant, rows in ((True, engine_queries.ROWS), (False, 0), (no, 0)):
        assert dataset.count_rows(filter=pc.scalar(constant)) == rows
        assert dataset.to_table(columns=[], filter=pc.scalar(constant)).num_rows == rows
        assert len(read_tfrecord(root, filters=pc.scalar(constant))) == rows
    with pytest.raises(SchemaError, match="must evaluate to bool"):
        dataset.to_table(filter=pc.scalar(1))


@pytest.mark.parametrize("wrong", ["x > 3", [("x", ">", 3)], 3])
def test_a_filter_of_another_kind_raises_the_same_advice_by_keyword_and_by_position(
    root: Path, wrong: Any
) -> None:
    dataset = open_dataset(root)
    for read in (
        lambda: dataset.count_rows(filter=wrong),
        lambda: dataset.count_rows(wrong),
        lambda: dataset.to_table(["k"], wrong),
        lambda: dataset.to_batches(["k"], wrong),
        lambda: dataset.head(2, ["k"], wrong),
    ):
        with pytest.raises(TFRecordError, match=r"is not a pyarrow expression .*; pass "):
            read()


def test_an_expression_that_fails_for_some_values_names_the_column_and_the_file(tmp_path: Path) -> None:
    columns = {"u": pa.array([1, 2**62 + 5], pa.uint64()), "b": pa.array([b"a", b"\xff"])}
    to_tfrecord(pa.table(columns), tmp_path)
    with pytest.raises(SchemaError, match=r"values of 'u': .*; cast the columns") as taken:
        open_dataset(tmp_path, filters=pc.field("u") < 1e19).take([0])
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
