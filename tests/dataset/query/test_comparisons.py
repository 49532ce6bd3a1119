"""Pruning and filters agree with pandas and with Python for all types of columns, values and operators.

Pruning skips rows only if pandas agrees. A filter selects as plain Python does, or raises an error of ours.

Modules: dataset.query.predicates, dataset.query.comparison_keys, dataset.query.filters.
"""

import datetime
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from comparables import COLUMNS, OPERATORS, VALUES, moment
from possible import as_sets

from dask_tfrecord import SchemaError, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.query.comparison_keys import ColumnRange, FileRanges, range_of_values
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.dataset.query.predicates import (
    Ambiguous,
    Predicate,
    compare_in_pandas,
    is_in_pandas,
    possible_outcomes,
)
from dask_tfrecord.frames import arrow_to_pandas
from dask_tfrecord.schema.fields import Field, Schema


def columns(array: pa.Array) -> Iterator[tuple[Field, ColumnRange, Any]]:
    """Yield the column in pandas, in both backends, as values and as an index, with the range of each row."""
    ordered = pa.types.is_dictionary(array.type) and array.type.ordered
    field = Field("x", array.type, array.dictionary if ordered else None)
    schema = Schema((field,))
    missing = pa.concat_arrays([array, pa.nulls(1, array.type)])
    for values, complete in ((array, {"x"}), (missing, set())):
        plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        range_ = range_of_values(field, plain)
        for numpy in {(), tuple(arrow_to_pandas.numpy_names(schema, complete))}:
            found = arrow_to_pandas.to_pandas(pa.table({"x": values}), schema, numpy=numpy)["x"]
            yield field, range_, found
            if array.type != pa.float16() and not complete:  # pandas has no index of this type
                yield field, range_, pd.Index(found)


def disagreements(
    predicate: Predicate, range_: ColumnRange, ask: Callable[..., Any], *arguments: Any
) -> list[Any]:
    """The rows that the predicate skips although pandas selects them."""
    try:
        with warnings.catch_warnings(action="ignore"):
            found = ask(*arguments)
            answers = [None if answer is pd.NA or answer is None else bool(answer) for answer in found]
    except Exception:  # pandas raises for all rows, and so does the computation
        return []
    rows = FileRanges(np.ones(len(answers), bool), {"x": range_})
    possible = as_sets(possible_outcomes(predicate, rows))
    return [
        (row, answer)
        for row, (answer, of_row) in enumerate(zip(answers, possible, strict=True))
        if answer not in of_row
    ]


def decided(make: Callable[..., Predicate], *arguments: Any) -> Predicate | None:
    """The predicate, or None if it can skip nothing."""
    try:
        found = make(*arguments)
    except (ArithmeticError, TypeError, ValueError):
        return None
    return None if isinstance(found, Ambiguous) and not found.candidates else found


@pytest.mark.parametrize("name", COLUMNS)
def test_a_comparison_that_is_decided_is_pandas_own(name: str) -> None:
    for field, range_, column in columns(COLUMNS[name]):
        # An index compares values as a column does, so two operators are enough.
        symbols = ("==", "<") if isinstance(column, pd.Index) else tuple(OPERATORS)
        for value, symbol in itertools.product(VALUES, symbols):
            compare = OPERATORS[symbol]
            predicate = decided(compare_in_pandas, field, symbol, value)
            if predicate is not None:
                wrong = disagreements(predicate, range_, compare, column, value)
                assert not wrong, f"{column.dtype} {type(column).__name__} {symbol} {value!r}: {wrong}"


@pytest.mark.parametrize("name", COLUMNS)
def test_a_membership_that_is_decided_is_pandas_own(name: str) -> None:
    for field, range_, column in columns(COLUMNS[name]):
        known = [value for value in VALUES if decided(is_in_pandas, field, [value]) is not None]
        # Values of every two classes meet in one list, and so does each value with the next one.
        classes = {type(value): value for value in known}
        two = [*itertools.combinations(classes.values(), 2), *itertools.pairwise(known)]
        lists = [[], known, *([value] for value in VALUES), *map(list, two)]
        for values in lists:
            predicate = decided(is_in_pandas, field, values)
            if predicate is not None:
                wrong = disagreements(predicate, range_, column.isin, values)
                assert not wrong, f"{column.dtype} {type(column).__name__} isin {values!r}: {wrong}"


DECIDED: list[tuple[str, list[Any]]] = [
    ("int8", [0, 300, 1.5, np.int64(1), np.float32(1.5)]),
    ("int64", [0, -1, 2**63 - 1, 1.5, np.int64(1), np.uint8(1)]),
    ("float32", [0, 0.1, math.inf, np.float32(0.1)]),
    ("bool", [True, np.bool_(True)]),
    ("decimal", [1, Decimal("1.5")]),
    ("date32", [date(2020, 1, 2)]),
    ("time64", [time(12, 30)]),
    ("timestamp s", [moment(2020, 1, 2), np.datetime64("2020-01-02")]),
    ("timestamp us", [moment(2020, 1, 2), pd.Timestamp("2020-01-02"), np.datetime64("2020-01-02T01:02")]),
    ("timestamp us UTC", [moment(2020, 1, 2, tzinfo=UTC), pd.Timestamp("2020-01-02", tz="Europe/Warsaw")]),
    ("duration ms", [timedelta(1), pd.Timedelta("1s").as_unit("s"), np.timedelta64(1, "s")]),
    ("string", ["a"]),
    ("binary", [b"a"]),
    ("category of text", ["a"]),
    ("ordered category", ["a"]),
    ("category of int", [1]),
]


@pytest.mark.parametrize(("name", "values"), DECIDED, ids=[name for name, _ in DECIDED])
def test_plain_values_of_the_columns_own_type_are_decided(name: str, values: list[Any]) -> None:
    array = COLUMNS[name]
    field = Field("x", array.type, array.dictionary if pa.types.is_dictionary(array.type) else None)
    for value in values:
        assert decided(compare_in_pandas, field, "==", value) is not None, repr(value)


@pytest.mark.parametrize("name", ["date32", "timestamp s", "timestamp us UTC", "time64", "category of date"])
@pytest.mark.parametrize("value", ["2020-01-02", "12:30", np.str_("2020-01-02"), pa.scalar("2020-01-02")])
def test_text_against_times_is_left_to_pandas(name: str, value: Any) -> None:
    for symbol in OPERATORS:
        assert decided(compare_in_pandas, Field("x", COLUMNS[name].type), symbol, value) is None
    assert decided(is_in_pandas, Field("x", COLUMNS[name].type), [value]) is None


_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = datetime.datetime(1970, 1, 1)


def plain(value: Any, type_: pa.DataType) -> Any:
    """The value to compare in Python: numbers and durations become fractions or floats."""
    type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    if isinstance(value, str) and pa.types.is_temporal(type_):
        kind = date if pa.types.is_date(type_) else time if pa.types.is_time(type_) else datetime.datetime
        value = kind.fromisoformat(str(value))
    if isinstance(value, pd.Timestamp | pd.Timedelta):
        value = value.asm8
    if isinstance(value, np.datetime64 | np.timedelta64):
        unit = np.datetime_data(value.dtype)[0]
        unit = unit if unit in _SECOND else "s"
        name = "datetime64" if isinstance(value, np.datetime64) else "timedelta64"
        return Fraction(int(value.astype(f"{name}[{unit}]").astype(np.int64)), _SECOND[unit])
    if isinstance(value, date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime.combine(value, time())
    if isinstance(value, time):
        value = datetime.datetime.combine(_EPOCH, value)
    if isinstance(value, datetime.datetime):
        value = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo is not None else value
        value = value - _EPOCH
    if isinstance(value, timedelta):
        return Fraction(value // timedelta(microseconds=1), 10**6)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return Fraction(int(value))
    if isinstance(value, float | Decimal | Fraction | np.floating):
        return float(value) if not math.isfinite(value) else Fraction(*value.as_integer_ratio())
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def stored(array: pa.Array) -> list[Any]:
    """The values of the column as Python compares them; times become fractions of seconds."""
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    type_ = array.type
    if pa.types.is_date64(type_):
        return [Fraction(value.value, 1000) for value in array]
    if pa.types.is_date32(type_):
        return [Fraction(value.value * 86_400) for value in array]
    if pa.types.is_temporal(type_):
        return [Fraction(value.value, _SECOND[type_.unit]) for value in array]
    return [plain(value, type_) for value in array]


@pytest.mark.parametrize("name", [name for name in COLUMNS if name not in ("list", "null")])
def test_a_filter_gives_pythons_answer_or_an_error_of_ours(name: str) -> None:
    array = COLUMNS[name]
    order = array.dictionary if pa.types.is_dictionary(array.type) and array.type.ordered else None
    schema = Schema((Field("x", array.type, order),))
    names = [] if order is None else order.to_pylist()
    rows = stored(array) if order is None else list(range(len(array)))  # the order is that of the list
    accepted = 0
    tests = {**OPERATORS, "in": lambda row, other: row == other or (row != row and other != other)}
    for value, (symbol, compare) in itertools.product(VALUES, tests.items()):
        try:
            predicate = parse_filters([("x", symbol, [value] if symbol == "in" else value)], schema)
        except SchemaError:
            continue
        accepted += symbol != "in"
        if value is not None:
            other = plain(value, array.type)
            if order is not None:
                other = names.index(other) if other in names else -1
            expected = [compare(row, other) for row in rows]
            assert predicate.mask(pa.table({"x": array})).to_pylist() == expected, f"{symbol} {value!r}"
    assert accepted


@pytest.mark.parametrize("name", ["list", "null"])
def test_columns_without_an_order_take_no_comparison(name: str) -> None:
    for value in VALUES:
        with pytest.raises(SchemaError):
            parse_filters([("x", "==", value)], Schema((Field("x", COLUMNS[name].type),)))


@pytest.mark.parametrize(
    ("symbol", "value", "rows"),
    [
        (">", np.float32(3.5), [4, 5]),
        ("<=", np.float16(3.5), [0, 1, 2, 3]),
        ("==", np.longdouble(4), [4]),
        ("in", np.array([1.0, 2.5, 5], np.float32), [1, 5]),
        ("in", pd.Series([1, 2]), [1, 2]),
        ("in", pa.array([1, 2]), [1, 2]),
        ("!=", pa.scalar(2, pa.uint8()), [0, 1, 3, 4, 5]),
        ("<", Fraction(5, 2), [0, 1, 2]),
    ],
)
def test_numpys_and_arrows_numbers_are_numbers(tmp_path: Path, symbol: str, value: Any, rows: Any) -> None:
    to_tfrecord(dd.from_dict({"n": range(6)}, npartitions=3), tmp_path / "data")
    found = read_tfrecord(tmp_path / "data", filters=[("n", symbol, value)]).compute()
    assert found["n"].tolist() == rows


@pytest.mark.parametrize(
    "value", [2**53 + 1, -(2**53) - 1, 10**99 + 1, 10**310, -(10**310), Decimal("0.1"), Fraction(1, 3)]
)
def test_numbers_between_two_floats_are_compared_exactly(value: Any) -> None:
    floats = [0.1, 1 / 3, 2.0**53, 2.0**53 + 2, -(2.0**53), math.inf, -math.inf, 1e308]
    for symbol, compare in OPERATORS.items():
        predicate = parse_filters([("x", symbol, value)], Schema((Field("x", pa.float64()),)))
        found = predicate.mask(pa.table({"x": floats})).to_pylist()
        assert found == [compare(one, value) for one in floats], symbol
