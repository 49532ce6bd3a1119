"""Pruning skips rows only if pandas agrees, for all types of columns, values and operators.

Modules: dataset.query.predicates, dataset.query.comparison_keys.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, date, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from comparables import COLUMNS, OPERATORS, VALUES, moment
from possible import as_sets

from dask_tfrecord.dataset.query.comparison_keys import ColumnRange, FileRanges, range_of_values
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
