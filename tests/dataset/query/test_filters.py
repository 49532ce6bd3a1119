"""Predicates select the same rows as pandas, and skip only files without such rows.

The outcomes of many files at once are those of each file by itself, and include those of all its rows.

Modules: dataset.query.filters, dataset.query.predicates, dataset.query.comparison_keys,
dataset.snapshot.file_list.
"""

import datetime
import math
import pickle
from collections.abc import Callable, Sequence
from datetime import UTC
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from comparables import OPERATORS
from hypothesis import given
from hypothesis import strategies as st
from possible import as_sets, outcomes_in_file

from dask_tfrecord.codec import Encoder
from dask_tfrecord.dataset.query.comparison_keys import WrongTypeError, file_ranges
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.dataset.query.predicates import (
    Ambiguous,
    And,
    Compare,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
    compare,
    is_in,
    possible_outcomes,
)
from dask_tfrecord.dataset.snapshot.file_list import from_entries
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.files.entry import ColumnStatistics, FileEntry, file_statistics
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
}
# Types that pandas compares in its own way, or not at all.
MORE_TYPES = {
    **TYPES,
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


Judge = Callable[["pd.Series[Any]"], Any]


def leaves(field: Field, values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Predicate, Judge]]:
    """Comparisons of a column, each with the same comparison in pandas."""

    def comparison(symbol: Operator, value: Any) -> tuple[Predicate, Judge]:
        return compare(field, symbol, value), lambda column: OPERATORS[symbol](column, value)

    def membership(wanted: list[Any]) -> tuple[Predicate, Judge]:
        typed = pd.Series(wanted, dtype=pd.ArrowDtype(field.type)) if wanted else []
        return is_in(field, wanted), lambda column: column.isin(typed)

    def is_null(column: "pd.Series[Any]") -> Any:
        return pd.Series(pa.array(column).is_null().to_numpy(zero_copy_only=False))

    exact = values
    if pa.types.is_fixed_size_binary(field.type):
        exact = values.filter(lambda v: len(v) == 1)
    if pa.types.is_floating(field.type):  # isin of pandas rounds the values, and distinguishes the zeros
        exact = values.filter(lambda v: v != 0 and pa.array([v], field.type).to_pylist() == [v])
    return (
        st.builds(comparison, st.sampled_from([*OPERATORS]), values)
        | st.builds(membership, st.lists(exact, max_size=3))
        | st.just((IsNull(field.name), is_null))
    )


def trees(leaf: st.SearchStrategy[tuple[Predicate, Judge]]) -> st.SearchStrategy[tuple[Predicate, Judge]]:
    """Comparisons, and their combinations by &, | and ~."""

    def both(left: Any, right: Any) -> tuple[Predicate, Judge]:
        return And(left[0], right[0]), lambda column: left[1](column) & right[1](column)

    def either(left: Any, right: Any) -> tuple[Predicate, Judge]:
        return Or(left[0], right[0]), lambda column: left[1](column) | right[1](column)

    def opposite(one: Any) -> tuple[Predicate, Judge]:
        return Not(one[0]), lambda column: ~one[1](column)

    def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.builds(both, inner, inner) | st.builds(either, inner, inner) | st.builds(opposite, inner)

    return st.recursive(leaf, combined, max_leaves=4)


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_filtering_gives_what_pandas_gives(name: str, data: st.DataObject) -> None:
    type_, values, others = TYPES[name]
    array, _ = stored(pa.array(data.draw(st.lists(values | st.none(), max_size=12)), type_))
    predicate, judge = data.draw(trees(leaves(Field("x", type_), others)))
    table = pa.table({"x": array})
    mask = judge(pd.Series(array, dtype=pd.ArrowDtype(type_))).astype("boolean").fillna(False)
    expected = array.filter(pa.array(mask.to_numpy(bool))).to_pylist()
    assert repr(table.filter(predicate.mask(table))["x"].to_pylist()) == repr(expected)


SCHEMA = Schema.from_arrow(
    pa.schema(
        {
            "n": pa.int64(),
            "share": pa.float32(),
            "word": pa.string(),
            "raw": pa.binary(),
            "list": pa.list_(pa.int64()),
            "when": pa.timestamp("s", "UTC"),
            "day": pa.date32(),
            "size": pa.dictionary(pa.int32(), pa.string(), ordered=True),
        }
    ),
    categories={"size": pa.array(["S", "M", "L"])},
)
TABLE = pa.table(
    {
        "n": pa.array([1, 2, None, 4]),
        "share": pa.array([0.1, 0.5, None, math.nan], pa.float32()),
        "word": pa.array(["a", None, "c", "d"]),
        "raw": pa.array([b"a", b"b", None, b"d"]),
        "list": pa.array([[1], [], None, [2, 3]]),
        "when": pa.array([0, 60, None, 180], pa.timestamp("s", "UTC")),
        "day": pa.array([0, 1, 2, 3], pa.date32()),
        "size": pa.DictionaryArray.from_arrays(
            pa.array([0, 1, 2, None], pa.int32()), ["S", "M", "L"], ordered=True
        ),
    }
)


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
        ([("n", "<", 1.5)], [0]),
        ([("n", ">=", 1.5)], [1, 3]),
        ([("n", "==", 1.5)], []),
        ([("n", "!=", 1.5)], [0, 1, 3]),
        ([("n", "<", math.inf)], [0, 1, 3]),
        ([("n", ">", 10**30)], []),
        ([("n", "<", 10**30)], [0, 1, 3]),
        ([("n", "in", [1, 1.5, 10**30])], [0]),
        ([("share", "==", 0.1)], []),
        ([("share", "==", float(np.float32(0.1)))], [0]),
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
        ([("word", "in", "abc")], r"'in' needs a list, a tuple or a set"),
        ([("list", "==", [1])], "cannot be compared"),
        ([("n", "==", None)], '"is" and "is not"'),
        ([("n", "is", 3)], "'is' needs None"),
        ([("when", "<", datetime.datetime(2024, 1, 1))], "needs a time zone"),
        ([("when", "<", "yesterday")], "not in ISO format"),
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
    ("value", "seconds"),
    [
        (np.datetime64("1970-02"), 31 * 86400),
        (np.datetime64("1971"), 365 * 86400),
        (np.datetime64(7, "ms"), 0.007),
        (pd.Timestamp("1970-01-01 00:00:00.000000001"), 1e-9),
        (datetime.date(1970, 1, 2), 86400),
        ("1970-01-01 00:00:01", 1),
    ],
)
def test_moments_may_be_written_in_many_ways(value: Any, seconds: float) -> None:
    found = compare(Field("x", pa.timestamp("ns")), "==", value)
    assert found == Compare("x", "==", round(seconds * 10**9))


def test_a_length_of_time_is_compared_in_the_columns_unit() -> None:
    field = Field("x", pa.duration("s"))
    assert compare(field, ">", np.timedelta64(2, "m")) == Compare("x", ">", 120)
    assert compare(field, ">=", pd.Timedelta("1500ms")) == Compare("x", ">", 1)
    with pytest.raises(WrongTypeError, match="timedelta"):
        compare(field, ">", 3)


def test_predicates_travel() -> None:
    predicate = parse_filters([[("n", ">", 1), ("word", "in", ["a"])], [("list", "is not", None)]], SCHEMA)
    assert pickle.loads(pickle.dumps(predicate)) == predicate
    assert predicate.columns() == {"n", "word", "list"}


def table_of(entries: Sequence[FileEntry | None], fields: Sequence[Field]) -> pa.Table:
    """The files as columns. Nothing proves that the statistics of a file that is None are true."""
    known = tuple(entry or FileEntry(f"{at}", 0, 9, 0) for at, entry in enumerate(entries))
    rows = from_entries(known, Schema(tuple(fields)), ())
    records = [entry and entry.records for entry in entries]
    return rows.append_column("file_records", pa.array(records, pa.int64()))


def at_once(
    predicate: Predicate,
    fields: Sequence[Field],
    entries: Sequence[FileEntry | None],
    values: dict[str, pa.Array],
) -> list[frozenset[bool | None]]:
    """The outcomes of all files, from columns."""
    ranges = file_ranges(fields, len(entries), values, table_of(entries, fields))
    return as_sets(possible_outcomes(predicate, ranges))


@st.composite
def files(draw: st.DrawFn, name: str) -> tuple[Field, list[pa.Array], list[FileEntry | None]]:
    """The rows of some files in one column, and their entries: some without statistics, bounds or proof."""
    type_, values, _ = MORE_TYPES[name]
    arrays, entries = [], list[FileEntry | None]()
    for at, part in enumerate(draw(st.lists(st.lists(values | st.none(), max_size=4), max_size=5))):
        array, statistics = stored(pa.array(part, type_))
        arrays.append(array)
        kind = draw(st.sampled_from(["whole", "whole", "min", "max", "no statistics", "no proof"]))
        if kind in ("min", "max"):
            statistics = statistics._replace(**{kind: None})
        known = () if kind == "no statistics" else (statistics,)
        entries.append(None if kind == "no proof" else FileEntry(f"{at}", 0, len(part), 0, statistics=known))
    return Field("x", type_), arrays, entries


def ambiguous(predicate: Any) -> Any:
    """A filter of pandas that may be a predicate, or its opposite."""
    return Ambiguous((predicate[0], Not(predicate[0]))), None


@pytest.mark.parametrize("name", MORE_TYPES)
@given(data=st.data())
def test_statistics_as_columns_give_what_each_file_gives(name: str, data: st.DataObject) -> None:
    field, arrays, entries = data.draw(files(name))
    tree = trees(leaves(field, MORE_TYPES[name][2]))
    predicate, judge = data.draw(tree | tree.map(ambiguous))
    found = at_once(predicate, [field], entries, {})
    assert found == [outcomes_in_file(predicate, [field], entry, {}) for entry in entries]
    if judge is not None:
        for outcomes, array in zip(found, arrays, strict=True):
            assert outcomes >= set(predicate.mask(pa.table({"x": array})).to_pylist())


@pytest.mark.parametrize("name", MORE_TYPES)
@given(data=st.data())
def test_partition_values_as_columns_give_what_each_file_gives(name: str, data: st.DataObject) -> None:
    type_, values, others = MORE_TYPES[name]
    field = Field("x", type_)
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    of_files = pa.array(data.draw(st.lists(values | st.none(), max_size=5)), type_)
    entries = [
        data.draw(st.sampled_from([None, FileEntry("f", 0, 3, 0), FileEntry("f", 0, 0, 0)])) for _ in of_files
    ]
    predicate, _ = data.draw(trees(leaves(field, others)))
    found = at_once(predicate, [field], entries, {"x": of_files})
    assert found == [
        outcomes_in_file(predicate, [field], entry, {"x": value})
        for entry, value in zip(entries, of_files.to_pylist(), strict=True)
    ]
    for outcomes, value, entry in zip(found, of_files, entries, strict=True):
        if entry is None or entry.records:
            column = pa.array([value.as_py()], type_)
            assert outcomes >= set(predicate.mask(pa.table({"x": column})).to_pylist())


@given(data=st.data())
def test_several_columns_as_columns_give_what_each_file_gives(data: st.DataObject) -> None:
    """A scalar column, a list and a partition column together."""
    number, key, lists = Field("n", pa.int64()), Field("k", pa.string()), Field("l", pa.list_(pa.int64()))
    integers = st.integers(-3, 3)
    entries: list[FileEntry | None] = []
    for at in range(data.draw(st.integers(0, 6))):
        low, high = sorted(data.draw(st.tuples(integers, integers)))
        nulls = data.draw(st.integers(0, 3))
        bounds = (None, None) if nulls == 3 else (low, high)
        columns = [
            ColumnStatistics("n", *bounds, nulls),
            ColumnStatistics("l", None, None, data.draw(st.integers(0, 3)), 0, 2),
        ]
        known = data.draw(st.lists(st.sampled_from(columns), unique=True))
        entry = FileEntry(f"{at}", 0, 3, 0, statistics=tuple(known))
        entries.append(data.draw(st.sampled_from([entry, entry, None])))
    texts = st.sampled_from(["a", "b", None])
    values = {"k": pa.array([data.draw(texts) for _ in entries], pa.string())}
    leaf = leaves(number, integers) | leaves(key, st.sampled_from(["a", "b", "c"]))
    predicate, _ = data.draw(
        trees(leaf | st.just((IsNull("l"), None)) | st.just((Compare("m", "<", 1), None)))
    )
    fields = [number, lists, key]
    assert at_once(predicate, fields, entries, values) == [
        outcomes_in_file(predicate, fields, entry, {"k": value})
        for entry, value in zip(entries, values["k"].to_pylist(), strict=True)
    ]


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
        ranges = file_ranges([text], 1, values, statistics)
        assert as_sets(possible_outcomes(compare(text, "==", "a"), ranges)) == [{True, False}]


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(TypeError, match="not valid Unicode"):
        compare(Field("x", pa.string()), "<", "\ud800")
