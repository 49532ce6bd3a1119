"""Convert the rows of a batch to Python values, for callers that ask for single records."""

from typing import Any

import numpy as np
import pyarrow as pa


def elements(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Convert the rows of a batch to dicts of Python values.

    Lists of numbers and tensors become NumPy arrays.
    """
    names = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    if not columns:
        return [{} for _ in range(batch.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    type_ = column.type
    if isinstance(type_, pa.FixedShapeTensorType):
        rows = _values(column.storage)
        return [None if row is None else np.asarray(row).reshape(type_.shape) for row in rows]
    is_list = pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)
    if is_list and (pa.types.is_integer(type_.value_type) or pa.types.is_floating(type_.value_type)):
        return [value.values.to_numpy() if value.is_valid else None for value in column]
    values: list[Any] = column.to_pylist()
    return values
