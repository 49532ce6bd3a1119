"""Values as JSON: exact, valid, and the same for every chunk and slice.

Modules: cli.output.
"""

import base64
import datetime
import decimal
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_tfrecord.cli.output import json_lines, json_values

UTC = datetime.UTC


STRUCTS = [{'a"': 1, "b": [{"c": None}, {"c": "d"}]}, None, {'a"': None, "b": None}]


def _lines(table: pa.Table) -> list[Any]:
    return [json.loads(line) for line in bytes(json_lines(table)).splitlines()]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, None, -(2**63)]), [1, None, -(2**63)]),
        (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        (pa.array([True, None, False]), [True, None, False]),
        (pa.array([1.0, 0.1, None, 1e300]), [1.0, 0.1, None, 1e300]),
        (pa.array([math.nan, math.inf, -math.inf]), ["NaN", "Infinity", "-Infinity"]),
        (pa.array([1.5, None], pa.float16()), [1.5, None]),
        (pa.array(['a"b\\c\n\x00\x1f\x7fé🙂', None, ""]), ['a"b\\c\n\x00\x1f\x7fé🙂', None, ""]),
        (pa.array([datetime.date(2024, 1, 31), None]), ["2024-01-31", None]),
        (pa.array([datetime.time(12, 30)], pa.time32("s")), ["12:30:00"]),
        (pa.array([0, None, 1], pa.timestamp("s")), ["1970-01-01T00:00:00", None, "1970-01-01T00:00:01"]),
        (pa.array([1], pa.timestamp("ms", "Europe/Zurich")), ["1970-01-01T00:00:00.001Z"]),
        (pa.array([1_500_000, -1, None], pa.duration("us")), ["1.500000s", "-0.000001s", None]),
        (pa.array([7], pa.duration("s")), ["7s"]),
        (pa.array(["x", None, "y"]).dictionary_encode(), ["x", None, "y"]),
        (pa.nulls(2), [None, None]),
        (pa.array([[1, None], None, []]), [[1, None], None, []]),
        (pa.array([[["a"], []], None, [None]]), [[["a"], []], None, [None]]),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), [[1, 2], None]),
        (pa.array([[1], None], pa.large_list(pa.int8())), [[1], None]),
        (pa.array([{}, None], pa.struct({})), [{}, None]),
        (pa.array(STRUCTS), STRUCTS),
    ],
)
def test_values(array: pa.Array, expected: list[Any]) -> None:
    assert [row["x"] for row in _lines(pa.table({"x": array}))] == expected
    assert [row["x"] for row in _lines(pa.table({"x": array}).slice(1))] == expected[1:]


def test_decimals_keep_their_digits() -> None:
    values = pa.array([decimal.Decimal("1.50"), decimal.Decimal("-0.01")])
    assert json_values(values).to_pylist() == ["1.50", "-0.01"]


def test_whole_floats_stay_floats() -> None:
    assert json_values(pa.array([1.0, -2.0], pa.float32())).to_pylist() == ["1.0", "-2.0"]


def test_a_tensor_is_its_list() -> None:
    type_ = pa.fixed_shape_tensor(pa.int32(), [2])
    storage = pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    array = pa.ExtensionArray.from_storage(type_, storage)
    assert _lines(pa.table({"x": array})) == [{"x": [1, 2]}, {"x": [3, 4]}]


@given(st.lists(st.none() | st.binary(max_size=10)), st.integers(0, 5))
def test_bytes_are_base64(values: list[bytes | None], start: int) -> None:
    table = pa.table({"x": pa.array(values, pa.binary())}).slice(start)
    expected = [None if value is None else base64.b64encode(value).decode() for value in values[start:]]
    assert [row["x"] for row in _lines(table)] == expected


@given(st.lists(st.none() | st.text()))
def test_texts(values: list[str | None]) -> None:
    table = pa.table({"x": pa.array(values, pa.string())})
    assert [row["x"] for row in _lines(pa.concat_tables([table, table]))] == values * 2


def test_names_are_escaped() -> None:
    assert _lines(pa.table({'a"b': [1], "é\n": [2]})) == [{'a"b': 1, "é\n": 2}]


def test_no_rows_are_no_text() -> None:
    assert bytes(json_lines(pa.table({"x": pa.array([], pa.int64())}))) == b""
