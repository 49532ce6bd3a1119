"""Every scalar type with values, and the values that its feature stores."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dask_tfrecord.codec import RecordType
from dask_tfrecord.schema.fields import Schema

INT64, FLOAT, BYTES, STRING = "int64", "float", "bytes", "string"

# Each scalar type, the kind of its feature, values, and what the feature stores (by the format's definition).
SCALARS: list[tuple[pa.DataType, str, list[Any], list[Any]]] = [
    (pa.bool_(), INT64, [True, False], [1, 0]),
    (pa.int8(), INT64, [-128, 127], [-128, 127]),
    (pa.int16(), INT64, [-(2**15), 2**15 - 1], [-(2**15), 2**15 - 1]),
    (pa.int32(), INT64, [-(2**31), 2**31 - 1], [-(2**31), 2**31 - 1]),
    (pa.int64(), INT64, [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
    (pa.uint8(), INT64, [0, 255], [0, 255]),
    (pa.uint16(), INT64, [0, 2**16 - 1], [0, 2**16 - 1]),
    (pa.uint32(), INT64, [0, 2**32 - 1], [0, 2**32 - 1]),
    (pa.uint64(), INT64, [0, 2**63 - 1], [0, 2**63 - 1]),
    (pa.float32(), FLOAT, [1.5, float("-inf")], [1.5, float("-inf")]),
    (pa.float64(), FLOAT, [0.5, float("inf")], [0.5, float("inf")]),
    (pa.decimal128(6, 2), FLOAT, [Decimal("1.25"), Decimal("-9999.50")], [1.25, -9999.5]),
    (pa.decimal256(50, 3), FLOAT, [Decimal("0.125"), Decimal("4.000")], [0.125, 4.0]),
    (pa.date32(), INT64, [dt.date(1969, 12, 31), dt.date(1970, 1, 2)], [-1, 1]),
    (pa.date64(), INT64, [dt.date(1969, 12, 31), dt.date(1970, 1, 2)], [-86_400_000, 86_400_000]),
    (pa.time32("s"), INT64, [dt.time(0, 0, 1), dt.time(23, 59, 59)], [1, 86_399]),
    (pa.time32("ms"), INT64, [dt.time(0, 0, 1), dt.time(0)], [1000, 0]),
    (pa.time64("us"), INT64, [dt.time(0, 0, 0, 7), dt.time(0)], [7, 0]),
    (pa.time64("ns"), INT64, [dt.time(0, 0, 0, 7), dt.time(0)], [7000, 0]),
    (pa.timestamp("s"), INT64, [dt.datetime(1970, 1, 1, 0, 1), dt.datetime(1969, 12, 31)], [60, -86_400]),
    (
        pa.timestamp("us", "UTC"),
        INT64,
        [dt.datetime(1970, 1, 1, 0, 0, 0, 5, dt.UTC), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)],
        [5, 0],
    ),
    (pa.duration("ms"), INT64, [dt.timedelta(seconds=-1), dt.timedelta(milliseconds=3)], [-1000, 3]),
    (pa.string(), STRING, ["é", ""], ["é", ""]),
    (pa.large_string(), STRING, ["é", ""], ["é", ""]),
    (pa.binary(), BYTES, [b"\xff\x00", b""], [b"\xff\x00", b""]),
    (pa.large_binary(), BYTES, [b"\xff\x00", b""], [b"\xff\x00", b""]),
    (pa.binary(2), BYTES, [b"\xff\x00", b"ab"], [b"\xff\x00", b"ab"]),
]
scalars = pytest.mark.parametrize(("type_", "kind", "values", "stored"), SCALARS, ids=lambda v: str(v)[:20])


def batch_of(array: pa.Array) -> pa.RecordBatch:
    """A batch of one column "x"."""
    return pa.RecordBatch.from_arrays([array], names=["x"])


def schema_of(type_: pa.DataType, record_type: RecordType = "sequence_example", **known: pa.Array) -> Schema:
    """The schema of a column "x" of this type; pass ``x=`` for its known categories."""
    return Schema.from_arrow(pa.schema([("x", type_)]), record_type, categories=known)
