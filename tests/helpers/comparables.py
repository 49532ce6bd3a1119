"""Columns and values of every type that a filter may compare, and the comparisons of Python."""

import datetime
import itertools
import math
import operator
import warnings
from collections.abc import Callable
from datetime import UTC, date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_tfrecord.dataset.query.predicates import Operator

moment = datetime.datetime

OPERATORS: dict[Operator, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

SMALL = [0, 1, 2, 100]
REAL = [0.0, -0.0, 1.0, 1.5, 0.1, 2.0**11, math.inf, -math.inf, math.nan]
LARGE = [2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1]
DAYS = [date(2020, 1, 1), date(2020, 1, 2), date(2020, 1, 3), date(1, 1, 1)]
MOMENTS = [
    moment(2020, 1, 1),
    moment(2020, 1, 2),
    moment(2020, 1, 2, 12, 30),
    moment(1969, 12, 31, 23, 59, 59),
]
LENGTHS = [timedelta(0), timedelta(seconds=1), timedelta(days=-1), timedelta(days=1)]
WORDS = ["a", "b", "", "1", "2020-01-02", "2020-01-02 00:00:00", "1.0"]
RAW = [b"a", b"ab", b""]
UNITS = ("s", "ms", "us", "ns")
ZONES = ("UTC", "Europe/Warsaw")


def dictionary(values: pa.Array, *, ordered: bool = False) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(range(len(values)), pa.int32()), values, ordered=ordered)


def far(type_: pa.DataType) -> pa.Array:
    """Timestamps or durations that a finer unit cannot hold."""
    return pa.array([10**15, -(10**15), 10**18], pa.int64()).cast(type_)


COLUMNS: dict[str, pa.Array] = {
    **{str(type_): pa.array(SMALL, type_) for type_ in (pa.int8(), pa.int16(), pa.uint8(), pa.uint16())},
    "int32": pa.array([*SMALL, 2**24 + 1, -1], pa.int32()),
    "uint32": pa.array([*SMALL, 2**24 + 1, 2**32 - 1], pa.uint32()),
    "int64": pa.array([*SMALL, *LARGE, -1, -(2**63)], pa.int64()),
    "uint64": pa.array([*SMALL, *LARGE], pa.uint64()),
    "float16": pa.array([np.float16(value) for value in REAL], pa.float16()),
    "float32": pa.array([*REAL, 2.0**24], pa.float32()),
    "float64": pa.array([*REAL, 2.0**24 + 1, 2.0**53, float(np.float32(0.1))], pa.float64()),
    "bool": pa.array([True, False]),
    "decimal": pa.array([Decimal("1.00"), Decimal("1.50"), Decimal("-2.25")], pa.decimal128(9, 2)),
    "date32": pa.array(DAYS, pa.date32()),
    "date64": pa.array(DAYS, pa.date64()),
    "far date32": pa.array([10**7, -(10**7)], pa.int32()).cast(pa.date32()),
    "time32": pa.array([time(0), time(12, 30)], pa.time32("s")),
    "time64": pa.array([time(0), time(12, 30)], pa.time64("us")),
    **{f"timestamp {unit}": pa.array(MOMENTS, pa.timestamp(unit)) for unit in UNITS},
    **{
        f"timestamp {unit} {zone}": pa.array(
            [one.replace(tzinfo=UTC) for one in MOMENTS], pa.timestamp(unit, zone)
        )
        for unit, zone in itertools.product(UNITS, ZONES)
    },
    **{f"far timestamp {unit}": far(pa.timestamp(unit)) for unit in UNITS},
    **{f"far timestamp {unit} UTC": far(pa.timestamp(unit, "UTC")) for unit in UNITS},
    **{f"duration {unit}": pa.array(LENGTHS, pa.duration(unit)) for unit in UNITS},
    **{f"far duration {unit}": far(pa.duration(unit)) for unit in UNITS},
    "string": pa.array(WORDS),
    "large_string": pa.array(WORDS, pa.large_string()),
    "binary": pa.array(RAW),
    "large_binary": pa.array(RAW, pa.large_binary()),
    "fixed binary": pa.array([b"ab", b"cd"], pa.binary(2)),
    "category of text": dictionary(pa.array(["b", "a", "2020-01-02"])),
    "ordered category": dictionary(pa.array(["b", "a", "c"]), ordered=True),
    "category of int": dictionary(pa.array([1, 0, 5])),
    "ordered category of int": dictionary(pa.array([1, 0, 5]), ordered=True),
    "category of float": dictionary(pa.array([0.0, 1.5, 0.1])),
    "category of bool": dictionary(pa.array([True, False])),
    "category of timestamp": dictionary(pa.array(MOMENTS, pa.timestamp("us"))),
    "category of date": dictionary(pa.array(DAYS)),
    "null": pa.nulls(1),
    "list": pa.array([[1], []]),
}

# NumPy 2.5 deprecates values of no unit. Queries still hold them.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    GENERIC: list[Any] = [np.datetime64("NaT"), np.timedelta64("NaT"), np.timedelta64(1)]

VALUES: list[Any] = [
    *(True, False, np.bool_(True)),
    *(0, 1, -1, 2, 100, 300, 2**24, 2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 2**70, -(2**70)),
    *(0.0, -0.0, 1.0, 1.5, 0.1, 2.0**11, math.nan, math.inf, -math.inf, 2.0**24, 2.0**53, 2.0**63, 1e300),
    *(np.int8(1), np.int16(2), np.int32(1), np.int64(1), np.int64(2**53 + 1), np.uint8(1), np.uint32(1)),
    *(np.uint64(1), np.uint64(2**63), np.float16(0.1), np.float16(2**11), np.float32(0.1), np.float32(1.5)),
    *(np.float32(2**24), np.float32("inf"), np.float32("nan"), np.float64(0.1), np.longdouble(1)),
    *(np.complex64(1), 1 + 0j, Fraction(1, 2), Fraction(1)),
    *(Decimal("1"), Decimal("1.5"), Decimal("0.1"), Decimal("1.001"), Decimal("NaN"), Decimal("Infinity")),
    *("a", "b", "", "c", "1", "1.0", "nan", np.str_("a"), np.str_("2020-01-02")),
    *("2020-01-02", "2020-01-02 00:00:00", "2020-01-02T00:00:00", "20200102", "2020-01-02 12:30"),
    *("2020-01-02T00:00:00+00:00", "2020-01-02 01:00:00+01:00", "02/01/2020", "Jan 2 2020", "2020"),
    *("2020-01", "now", "NaT", "12:30", "12:30:00", "1 day", "00:00:01", "P1D"),
    *(b"a", b"ab", b"", bytearray(b"ab"), memoryview(b"ab"), np.bytes_(b"ab")),
    *(date(2020, 1, 2), date(1, 1, 1), moment(2020, 1, 2), moment(2020, 1, 2, 0, 0, 0, 1), moment(1, 1, 1)),
    *(moment(2020, 1, 2, tzinfo=UTC), moment(2020, 1, 2, 1, tzinfo=datetime.timezone(timedelta(hours=1)))),
    *(moment(2020, 1, 2, fold=1), pd.Timestamp("2020-01-02"), pd.Timestamp("2020-01-02 00:00:00.000000001")),
    *(pd.Timestamp("2020-01-02", tz="UTC"), pd.Timestamp("2020-01-02 01:00", tz="Europe/Warsaw")),
    *(pd.Timestamp("2020-01-02").as_unit("s"), pd.Timestamp("5000-01-01").as_unit("s")),
    *(np.datetime64("2020-01-02"), np.datetime64("2020-01-02T00:00:00"), np.datetime64("2020-01-02", "ns")),
    *(np.datetime64("2020-01"), np.datetime64("2020"), np.datetime64("2020-01-02T12:30")),
    *(np.datetime64("2020-01-02T00", "h"), np.datetime64("NaT", "ns"), np.datetime64(10**6, "ps")),
    *(np.datetime64("5000-01-01"), np.datetime64(10**18, "s")),
    *(timedelta(seconds=1), timedelta(microseconds=1), timedelta(0), pd.Timedelta("1s"), pd.Timedelta(1)),
    *(pd.Timedelta("1s").as_unit("s"), timedelta(days=10**6), np.timedelta64(10**18, "s")),
    *(np.timedelta64(1, "s"), np.timedelta64(1, "D"), np.timedelta64(1, "h"), np.timedelta64(1, "ns")),
    *(np.timedelta64(1, "M"), np.timedelta64("NaT", "ns"), np.timedelta64(10**6, "ps")),
    *GENERIC,
    *(time(12, 30), time(12, 30, tzinfo=UTC), time(0, 0, 0, 1)),
    *(None, pd.NaT, pd.NA, np.float64("nan")),
    *(pa.scalar(1), pa.scalar(0.1), pa.scalar("2020-01-02"), pa.scalar(date(2020, 1, 2)), pa.scalar(None)),
    *(pa.scalar(moment(2020, 1, 2)), pa.scalar(True), pa.scalar(Decimal("1.5")), pa.scalar(b"ab")),
    *([1], (1,), {1}, np.array(1), np.array([1]), pd.Series([1]), pd.Index([1])),
    *(pd.Period("2020-01"), pd.Interval(0, 1), object),
]
