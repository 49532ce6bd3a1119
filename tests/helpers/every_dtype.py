"""A table to write and read back: a column of every dtype that can be written."""

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

ROWS = 12

_SCALARS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    **{f"int{bits}": (pa.type_for_alias(f"int{bits}"), [-(2 ** (bits - 1)), 7]) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (pa.type_for_alias(f"uint{bits}"), [2**bits - 1, 7]) for bits in (8, 16, 32)},
    "uint64": (pa.uint64(), [2**63 - 1, 7]),
    "float16": (pa.float16(), [np.float16(0.1), np.float16("nan")]),
    "float32": (pa.float32(), [0.5, float("nan")]),
    "float64": (pa.float64(), [0.25, float("-inf")]),
    "decimal": (pa.decimal128(9, 2), [Decimal("1.25"), Decimal("-7.50")]),
    "date32": (pa.date32(), [datetime.date(2026, 2, 28), datetime.date(1, 1, 1)]),
    "date64": (pa.date64(), [datetime.date(2026, 2, 28), datetime.date(1969, 12, 31)]),
    "time32": (pa.time32("ms"), [datetime.time(1, 2, 3, 4000), datetime.time(23, 59)]),
    "time64": (pa.time64("us"), [datetime.time(1, 2, 3, 4), datetime.time(23, 59)]),
    "timestamp": (pa.timestamp("ns"), [pd.Timestamp("2026-02-28 01:02:03.000000004"), pd.Timestamp(0)]),
    "zoned": (pa.timestamp("us", "Europe/Warsaw"), [pd.Timestamp("2026-10-25 02:30", tz="UTC"), None]),
    "duration": (pa.duration("s"), [datetime.timedelta(days=-1), datetime.timedelta(seconds=5)]),
    "string": (pa.string(), ["zażółć", ""]),
    "large_string": (pa.large_string(), ["x" * 1000, "\0"]),
    "binary": (pa.binary(), [b"\xff\0", b""]),
    "large_binary": (pa.large_binary(), [b"\xff", b"1"]),
    "fixed_size_binary": (pa.binary(3), [b"\xff\0a", b"abc"]),
}


def _list_of(type_: pa.DataType, values: list[Any], number: int) -> list[Any]:
    """A list of 0, 1 or 2 values without a null."""
    return [value for value in values if value is not None][: number % 3]


def table() -> pa.Table:
    """Scalars and lists of every type, with nulls in different rows."""
    columns: dict[str, pa.Array] = {}
    for shift, (name, (type_, values)) in enumerate(_SCALARS.items()):
        scalars = [None if (row + shift) % 4 == 0 else values[row % 2] for row in range(ROWS)]
        lists = [None if (row + shift) % 5 == 0 else _list_of(type_, values, row) for row in range(ROWS)]
        columns[name] = pa.array(scalars, type_)
        columns[f"list_{name}"] = pa.array(lists, pa.list_(type_))
    columns["large_list"] = pa.array([[row] * (row % 4) for row in range(ROWS)], pa.large_list(pa.int16()))
    pairs = [None if row % 4 == 0 else [row, row + 1] for row in range(ROWS)]
    columns["fixed_size_list"] = pa.array(pairs, pa.list_(pa.float32(), 2))
    return pa.table(columns)


def frame() -> pd.DataFrame:
    """The table as Arrow-backed columns, and columns of all other dtypes of pandas."""
    arrow = table().to_pandas(types_mapper=pd.ArrowDtype)
    numbers = np.arange(ROWS)
    others = pd.DataFrame(
        {
            "np_bool": numbers % 3 == 0,
            "np_int8": numbers.astype("int8"),
            "np_uint16": numbers.astype("uint16"),
            "np_float32": np.where(numbers % 4, numbers, np.nan).astype("float32"),
            "np_datetime": pd.date_range("2026-01-01", periods=ROWS, freq="h", unit="ms"),
            "np_zoned": pd.date_range("2026-01-01", periods=ROWS, freq="D", tz="Asia/Tokyo", unit="s"),
            "np_timedelta": pd.to_timedelta(numbers, unit="h").as_unit("us"),
            "pd_int": pd.array([None if n % 4 == 0 else n for n in range(ROWS)], "Int32"),
            "pd_bool": pd.array([None if n % 4 == 0 else n % 2 == 0 for n in range(ROWS)], "boolean"),
            "pd_float": pd.array([None if n % 4 == 0 else n / 2 for n in range(ROWS)], "Float32"),
            "pd_string": pd.array([None if n % 4 == 0 else str(n) for n in range(ROWS)], "string"),
            "category": pd.Categorical([None if n % 4 == 0 else "ab"[n % 2] for n in range(ROWS)]),
            "ordered": pd.Categorical([n % 2 for n in range(ROWS)], [1, 0, 2], ordered=True),
        }
    )
    return pd.concat([arrow, others], axis=1)


_READ_BACK_AS = {
    "np_bool": pa.bool_(),
    "np_int8": pa.int8(),
    "np_uint16": pa.uint16(),
    "np_float32": pa.float32(),
    "np_datetime": pa.timestamp("ms"),
    "np_zoned": pa.timestamp("s", "Asia/Tokyo"),
    "np_timedelta": pa.duration("us"),
    "pd_int": pa.int32(),
    "pd_bool": pa.bool_(),
    "pd_float": pa.float32(),
    "pd_string": pa.string(),
}


def read_back() -> pd.DataFrame:
    """The frame that a read returns: Arrow-backed values, and unchanged categories."""
    expected = frame()
    for name, type_ in _READ_BACK_AS.items():
        values = pa.array(expected[name], type=type_, from_pandas=True)
        expected[name] = pd.Series(values, dtype=pd.ArrowDtype(type_))
    return expected


def assert_same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Check that dtypes and values are equal; pandas cannot compare all of these dtypes."""
    assert found.dtypes.to_dict() == expected.dtypes.to_dict()
    for name in expected.columns:
        one, other = (pa.array(frame_[name]).to_pylist() for frame_ in (found, expected))
        assert repr(one) == repr(other), name
