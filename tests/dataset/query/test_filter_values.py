"""`filters=` on columns and values of every type selects as plain Python does, or raises an error of ours.

Modules: dataset.query.filters.
"""

import datetime
import math
import operator
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
from comparables import COLUMNS, VALUES

from dask_tfrecord import SchemaError, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.schema.fields import Field, Schema

OPERATORS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
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
    ordered = pa.types.is_dictionary(array.type) and array.type.ordered
    schema = Schema((Field("x", array.type, array.dictionary if ordered else None),))
    table = pa.table({"x": array})
    rows = list(range(len(array))) if ordered else stored(array)  # the order is the order of the list
    accepted = 0
    for value in VALUES:
        for symbol, compare in OPERATORS.items():
            try:
                predicate = parse_filters([("x", symbol, value)], schema)
            except SchemaError:
                continue
            accepted += 1
            other = plain(value, array.type)
            if ordered:
                other = (
                    array.dictionary.to_pylist().index(other) if other in array.dictionary.to_pylist() else -1
                )
            expected = [compare(row, other) for row in rows]
            assert predicate.mask(table).to_pylist() == expected, f"{symbol} {value!r}"
        try:
            predicate = parse_filters([("x", "in", [value])], schema)
        except SchemaError:
            continue
        if value is not None:
            other = plain(value, array.type)
            if ordered:
                other = (
                    array.dictionary.to_pylist().index(other) if other in array.dictionary.to_pylist() else -1
                )
            expected = [row == other or (row != row and other != other) for row in rows]
            assert predicate.mask(table).to_pylist() == expected, f"in {value!r}"
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
    column = pa.array(
        [0.1, 1 / 3, 2.0**53, 2.0**53 + 2, -(2.0**53), math.inf, -math.inf, 1e308], pa.float64()
    )
    schema = Schema((Field("x", pa.float64()),))
    for symbol, compare in OPERATORS.items():
        mask = parse_filters([("x", symbol, value)], schema).mask(pa.table({"x": column}))
        assert mask.to_pylist() == [compare(one, value) for one in column.to_pylist()], symbol
