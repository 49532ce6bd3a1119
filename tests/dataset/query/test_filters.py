"""Predicates select the same rows as pandas, and skip only files without such rows.

Modules: dataset.query.filters, dataset.query.predicates, dataset.query.comparison_keys.
"""

import datetime
import itertools
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from possible import in_one_file, of_statistics, of_value

from dask_tfrecord.codec import Encoder
from dask_tfrecord.dataset.query.comparison_keys import ColumnRange, WrongTypeError
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
)
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.files.entry import ColumnStatistics, file_statistics
from dask_tfrecord.schema.fields import Field, Schema

OPERATORS: list[Operator] = ["==", "!=", "<", "<=", ">", ">="]
UTC = datetime.UTC

WHOLE = st.integers(-5, 5)
FLOATS = st.sampled_from([-math.inf, -1.5, 0.0, -0.0, 0.1, float(np.float32(0.1)), 1.0, 2.5, math.inf])
WORDS = st.text("abż", max_size=2)
DATES = st.dates(datetime.date(2024, 2, 27), datetime.date(2024, 3, 2))
MOMENTS = st.integers(-4, 4).map(lambda n: datetime.datetime(2024, 3, 1) + n * datetime.timedelta(hours=7))
LENGTHS = WHOLE.map(lambda n: datetime.timedelta(milliseconds=n))

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
    "decimal": (
        pa.decimal128(5, 2),
        WHOLE.map(lambda n: Decimal(n) / 4),
        WHOLE.map(lambda n: Decimal(n) / 4),
    ),
    "date": (pa.date32(), DATES, DATES),
    "time": (
        pa.time32("s"),
        st.sampled_from([datetime.time(n) for n in range(5)]),
        st.just(datetime.time(2)),
    ),
    "timestamp": (pa.timestamp("s"), MOMENTS, MOMENTS),
    "nanoseconds": (pa.timestamp("ns"), MOMENTS, MOMENTS.map(pd.Timestamp)),
    "zoned": (
        pa.timestamp("us", "Europe/Warsaw"),
        MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
        MOMENTS.map(lambda moment: pd.Timestamp(moment, tz="Asia/Tokyo")),
    ),
    "duration": (pa.duration("ms"), LENGTHS, LENGTHS),
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
        method = dict(zip(OPERATORS, ["eq", "ne", "lt", "le", "gt", "ge"], strict=True))[symbol]
        return compare(field, symbol, value), lambda column: getattr(column, method)(value)

    def membership(wanted: list[Any]) -> tuple[Predicate, Judge]:
        typed = pd.Series(wanted, dtype=pd.ArrowDtype(field.type)) if wanted else []
        return is_in(field, wanted), lambda column: column.isin(typed)

    exact = values
    if pa.types.is_fixed_size_binary(field.type):
        exact = values.filter(lambda v: len(v) == 1)
    if pa.types.is_floating(field.type):  # isin of pandas rounds the values, and distinguishes the zeros
        exact = values.filter(lambda v: v != 0 and pa.array([v], field.type).to_pylist() == [v])
    return (
        st.builds(comparison, st.sampled_from(OPERATORS), values)
        | st.builds(membership, st.lists(exact, max_size=3))
        | st.just(
            (
                IsNull(field.name),
                lambda column: pd.Series(pa.array(column).is_null().to_numpy(zero_copy_only=False)),
            )
        )
    )


def trees(leaf: st.SearchStrategy[tuple[Predicate, Judge]]) -> st.SearchStrategy[tuple[Predicate, Judge]]:
    """Comparisons, and their combinations by &, | and ~."""

    def both(left: Any, right: Any) -> tuple[Predicate, Judge]:
        return And(left[0], right[0]), lambda column: left[1](column) & right[1](column)

    def either(left: Any, right: Any) -> tuple[Predicate, Judge]:
        return Or(left[0], right[0]), lambda column: left[1](column) | right[1](column)

    def opposite(one: Any) -> tuple[Predicate, Judge]:
        return Not(one[0]), lambda column: ~one[1](column)

    return st.recursive(
        leaf,
        lambda inner: (
            st.builds(both, inner, inner) | st.builds(either, inner, inner) | st.builds(opposite, inner)
        ),
        max_leaves=4,
    )


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_pruning_and_filtering_gives_what_pandas_gives(name: str, data: st.DataObject) -> None:
    type_, values, others = TYPES[name]
    field = Field("x", type_)
    parts = data.draw(st.lists(st.lists(values | st.none(), max_size=4), max_size=4))
    predicate, judge = data.draw(trees(leaves(field, others)))
    found, whole = [], []
    for part in parts:
        array, statistics = stored(pa.array(part, type_))
        whole += [array]
        known = {"x": of_statistics(field, statistics, len(array))}
        outcomes = in_one_file(predicate, known, rows=bool(part))
        table = pa.table({"x": array})
        wanted = table.filter(predicate.mask(table))
        assert outcomes or not part
        if True not in outcomes:
            assert wanted.num_rows == 0
        elif outcomes == {True}:
            assert wanted.num_rows == len(part)
        found += wanted["x"].to_pylist()
    column = pd.Series(pa.chunked_array(whole, type_), dtype=pd.ArrowDtype(type_))
    mask = judge(column).astype("boolean").fillna(False)
    expected = pa.array(column[mask.to_numpy(bool)]).to_pylist()
    assert repr(found) == repr(expected)


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_one_value_for_a_whole_file_leaves_one_outcome(name: str, data: st.DataObject) -> None:
    type_, values, others = TYPES[name]
    value = stored(pa.array([data.draw(values | st.none())], type_))[0].to_pylist()[0]
    predicate, _ = data.draw(trees(leaves(Field("x", type_), others)))
    outcomes = in_one_file(predicate, {"x": of_value(Field("x", type_), value)})
    [answer] = predicate.mask(pa.table({"x": pa.array([value], type_)})).to_pylist()
    assert answer in outcomes
    if value is not None and value == value:
        assert outcomes == {answer}


def test_zeros_are_equal_whatever_their_sign() -> None:
    field, column = Field("x", pa.float32()), pa.table({"x": pa.array([0.0, -0.0], pa.float32())})
    for value in (0.0, -0.0, 0):
        assert is_in(field, [value]).mask(column).to_pylist() == [True, True]
        assert compare(field, "==", value).mask(column).to_pylist() == [True, True]


ANSWERS = [True, False, None]


@pytest.mark.parametrize(("left", "right"), list(itertools.product(ANSWERS, ANSWERS)))
def test_outcomes_combine_as_arrow_combines_rows(left: bool | None, right: bool | None) -> None:
    known = {name: of_value(Field(name, pa.bool_()), answer) for name, answer in (("l", left), ("r", right))}
    for name, answer in (
        ("l", left),
        ("r", right),
    ):  # a value of a row, before numpy can change a null
        assert answer in in_one_file(Compare(name, "==", 1), known)
    for combine, arrow in ((And, pc.and_kleene), (Or, pc.or_kleene)):
        predicate = combine(Compare("l", "==", 1), Compare("r", "==", 1))
        expected = arrow(pa.scalar(left, pa.bool_()), pa.scalar(right, pa.bool_())).as_py()
        assert expected in in_one_file(predicate, known)
        if left is not None and right is not None:
            assert in_one_file(predicate, known) == {expected}


def test_a_file_without_rows_has_no_outcome() -> None:
    known = {"x": of_statistics(Field("x", pa.int64()), ColumnStatistics("x", None, None, 0), 0)}
    assert in_one_file(Compare("x", "!=", 3), known) == frozenset()
    assert in_one_file(Not(IsNull("x")), known) == frozenset()
    assert in_one_file(Ambiguous(), {}, rows=False) == frozenset()


def test_nothing_is_ruled_out_where_nothing_is_known() -> None:
    every = {True, False, None}
    assert in_one_file(Compare("x", "==", 3), {}) == in_one_file(Ambiguous(), {}) == every
    no_bounds = ColumnRange(None, None, np.array([True]), np.array([False]), np.array([False]))
    assert in_one_file(Compare("x", "<", "b"), {"x": no_bounds}) == {True, False}


def test_unsure_has_the_outcomes_of_all_it_may_be() -> None:
    known = {"x": of_value(Field("x", pa.float64()), 0.1)}
    low, high = Compare("x", "==", 0.1), Compare("x", "==", 0.2)
    assert in_one_file(low, known) == {True}
    assert in_one_file(high, known) == {False}
    assert in_one_file(Ambiguous((low, high)), known) == {True, False}


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
