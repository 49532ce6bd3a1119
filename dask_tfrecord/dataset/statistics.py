"""What is told of a file's columns: smallest and greatest value, nulls, lengths of lists.

They are those of the values as they are stored, so that they hold for what is read back: a float64 counts as
the 32-bit float that it becomes. NaN is neither small nor great.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import Kind
from dask_tfrecord.dataset.entries import ColumnStatistics
from dask_tfrecord.schema import Field, Schema

# A text or bytes that is longer is no bound worth keeping.
_LONGEST_BOUND = 64

_STORAGE: dict[Kind, pa.DataType] = {
    "int64": pa.int64(),
    "float": pa.float32(),
    "bytes": pa.binary(),
    "string": pa.string(),
}


class Statistics:
    """Gathers them from the batches that the kernel encodes."""

    def __init__(self, schema: Schema) -> None:
        self._columns = [_Column(item) for item in schema.fields]

    def add(self, batch: pa.RecordBatch) -> None:
        """Take note of rows as `Schema.to_storage` makes them."""
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.add(array)

    def result(self) -> tuple[ColumnStatistics, ...]:
        """What is known of each column."""
        return tuple(column.result() for column in self._columns)


class _Column:
    def __init__(self, item: Field) -> None:
        self._field = item
        self._kind, self._depth = item.kind, item.depth
        self._nulls = 0
        self._low: Any = None
        self._high: Any = None

    def add(self, array: pa.Array) -> None:
        nulls = array.null_count
        self._nulls += nulls
        if nulls == len(array):
            return
        if self._depth:
            low, high = _range(pc.list_value_length(array))
        elif self._kind == "float":
            low, high = _float_range(array)
        else:
            low, high = _range(array)
        if low is not None:
            self._low = low if self._low is None else min(self._low, low)
            self._high = high if self._high is None else max(self._high, high)

    def result(self) -> ColumnStatistics:
        name = self._field.name
        if self._depth:
            return ColumnStatistics(name, None, None, self._nulls, self._low, self._high)
        return ColumnStatistics(name, self._bound(self._low), self._bound(self._high), self._nulls)

    def _bound(self, stored: Any) -> Any:
        """The value as users see it; None if Python has no such value, or if it is too long."""
        if stored is None or (isinstance(stored, str | bytes) and len(stored) > _LONGEST_BOUND):
            return None
        if self._field.type == _STORAGE[self._kind]:
            return stored
        [value] = self._field.load(pa.array([stored], _STORAGE[self._kind]))
        if isinstance(value, pa.DictionaryScalar):
            value = value.value
        try:
            plain = value.as_py()
            return plain if pa.scalar(plain, value.type) == value else None
        except (ValueError, OverflowError, pa.ArrowException):  # such as a date in the year 20,000
            return None


def _range(array: pa.Array) -> tuple[Any, Any]:
    bounds = pc.min_max(array).as_py()
    return bounds["min"], bounds["max"]


def _float_range(array: pa.Array) -> tuple[float | None, float | None]:
    """By numpy, which is many times faster than Arrow with floats."""
    values = (array.drop_null() if array.null_count else array).to_numpy()
    with np.errstate(invalid="ignore"):
        low, high = np.fmin.reduce(values), np.fmax.reduce(values)
    if np.isnan(low):
        return None, None
    return float(low) + 0.0, float(high) + 0.0  # no negative zero, which would depend on the order
