"""The statistics in the receipt of a file are true for the rows that a read returns.

Modules: files.entry.
"""

import datetime
import itertools
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_tfrecord.codec import Column, Encoder, RecordType
from dask_tfrecord.files.entry import ColumnStatistics, continue_statistics, empty_statistics, file_statistics
from dask_tfrecord.schema.fields import Schema

DAY = datetime.date(2024, 2, 29)
NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)


def of(array: pa.Array, record_type: RecordType = "example") -> ColumnStatistics:
    """The statistics of one column, gathered from three batches."""
    schema = Schema.from_arrow(pa.schema([("x", array.type)]), record_type)
    encoder = Encoder(schema.columns, record_type)
    known = empty_statistics(schema)
    for begin, end in itertools.pairwise([0, len(array) // 3, len(array) // 2, len(array)]):
        encoder.bind(schema.to_storage(pa.record_batch({"x": array.slice(begin)}), lossy="allow"))
        continue_statistics(known, encoder.statistics([0, end - begin]))
    [[found]] = file_statistics(schema, [known], 1)
    assert found.name == "x"
    return found


TIMES = [datetime.time(hour) for hour in (5, 4, 6)]
SECONDS = [datetime.timedelta(seconds=count) for count in (5, 3, 4)]
LONG_AGO = datetime.date(1066, 10, 14)
DECIMALS = [Decimal("1.25"), Decimal("-3.5"), Decimal(0)]


# The values without the null, and their bounds
@pytest.mark.parametrize(
    ("type_", "values", "low", "high"),
    [
        (pa.bool_(), [True, False, True], False, True),
        (pa.int8(), [3, -4, 5], -4, 5),
        (pa.int64(), [3, -(2**63), 5], -(2**63), 5),
        (pa.uint64(), [3, 2**63 - 1, 5], 3, 2**63 - 1),
        (pa.float16(), [np.float16(1.5), np.float16(-2), np.float16(0)], -2.0, 1.5),
        (pa.float32(), [1.5, math.nan, -0.25], -0.25, 1.5),
        (pa.float32(), [0.0, -0.0, -math.inf], -math.inf, 0.0),
        (pa.float64(), [0.5, 0.1, 0.25], float(np.float32(0.1)), 0.5),
        (pa.decimal128(5, 2), DECIMALS, DECIMALS[1], DECIMALS[0]),
        (pa.date32(), [DAY, LONG_AGO, DAY], LONG_AGO, DAY),
        (pa.time64("us"), TIMES, TIMES[1], TIMES[2]),
        (pa.timestamp("us", "UTC"), [NOON, NOON, NOON], NOON, NOON),
        (pa.timestamp("ns"), [1, 2, 1], pd.Timestamp(1), pd.Timestamp(2)),
        (pa.duration("s"), SECONDS, SECONDS[1], SECONDS[0]),
        (pa.string(), ["b", "ä", ""], "", "ä"),
        (pa.string_view(), ["b", "a", "c"], "a", "c"),
        (pa.binary(), [b"\x80", b"\x7f", b"x"], b"x", b"\x80"),
        (pa.binary(2), [b"bb", b"ba", b"ab"], b"ab", b"bb"),
        (pa.dictionary(pa.int8(), pa.string()), ["b", "a", "c"], "a", "c"),
        (pa.dictionary(pa.int8(), pa.int64()), [2, 1, 2], 1, 2),
    ],
    ids=str,
)
def test_bounds_are_plain_values_of_the_column(
    type_: pa.DataType, values: list[Any], low: Any, high: Any
) -> None:
    found = of(pa.array([values[0], None, *values[1:]], type_))
    assert found == ColumnStatistics("x", low, high, 1)
    assert type(found.min) is type(low)
    if low == 0:
        assert math.copysign(1, low) == 1


INT_LISTS = pa.list_(pa.int8())


@pytest.mark.parametrize(
    ("type_", "lists", "nulls", "shortest", "longest"),
    [
        (INT_LISTS, [[1, 2], [], None, [7]], 1, 0, 2),
        (pa.large_list(pa.float64()), [[1, 2], [], None, [7]], 1, 0, 2),
        (pa.list_(pa.string()), [["1", "2"], [], None, ["7"]], 1, 0, 2),
        (pa.list_(pa.int8(), 2), [[1, 2], None], 1, 2, 2),
        (pa.list_(INT_LISTS), [[[1, 2, 3], []], [[1]], None], 1, 1, 2),
    ],
    ids=str,
)
def test_lists_tell_the_lengths_of_the_outer_ones(
    type_: pa.DataType, lists: list[Any], nulls: int, shortest: int, longest: int
) -> None:
    expected = ColumnStatistics("x", None, None, nulls, shortest, longest)
    assert of(pa.array(lists, type_), "sequence_example") == expected
    if not pa.types.is_list(type_.value_type):
        assert of(pa.array(lists, type_), "example") == expected


@pytest.mark.parametrize(
    "array",
    [
        pa.nulls(3, pa.string()),
        pa.nulls(3, pa.float32()),
        pa.array([1, 2, 3], pa.time64("ns")),  # Python's times end at microseconds
        pa.array([10**12] * 3, pa.timestamp("s")),  # and its years at 9999
        pa.array(["x" * 65] * 3),
        pa.array([b"x" * 65] * 3),
        pa.array([math.nan] * 3, pa.float32()),
    ],
    ids=lambda array: str(array.type),
)
def test_what_has_no_exact_bound_has_none(array: pa.Array) -> None:
    assert of(array) == ColumnStatistics("x", None, None, array.null_count)


def test_a_bound_may_be_there_alone() -> None:
    assert of(pa.array(["a", "b" * 65, "b"])) == ColumnStatistics("x", "a", None, 0)


STARTS = [b"", b"\0", b"a", b"a\0", b"abcdefg", b"abcdefgh", b"abcdefgh\0", b"\x7f", b"\xff" * 9]
BYTES = st.builds(bytes.__add__, st.sampled_from(STARTS), st.binary(max_size=9))
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.float32(): st.floats(width=32),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.string(): st.text(max_size=12),
    pa.binary(): BYTES,
    pa.large_binary(): BYTES,
}


@pytest.mark.parametrize("type_", VALUES, ids=str)
@given(data=st.data(), cut=st.integers(0, 30))
def test_bounds_are_those_of_python(type_: pa.DataType, data: st.DataObject, cut: int) -> None:
    values = data.draw(st.lists(st.none() | VALUES[type_], max_size=50))
    known = [value for value in values[cut:] if value is not None and value == value]
    found = of(pa.array(values, type_).slice(cut))
    assert (found.min, found.max) == ((min(known), max(known)) if known else (None, None))
    assert found.nulls == values[cut:].count(None)


def test_rows_outside_the_batch_are_refused() -> None:
    encoder = Encoder([Column("x", "int64", 0)], "example")
    encoder.bind(pa.record_batch({"x": pa.array([1, 2, 3])}))
    assert encoder.statistics([3, 3]) == [([0], [None], [None])]
    for begin, end in [(-1, 2), (0, 4), (2, 1), (4, 4)]:
        with pytest.raises(IndexError, match="outside the batch"):
            encoder.statistics([begin, end])
        with pytest.raises(IndexError, match="outside the batch"):
            encoder.encode_into(begin, bytearray(100), end)
