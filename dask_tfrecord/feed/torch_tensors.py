"""Convert Arrow batches to PyTorch tensors."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from dask_tfrecord import arguments
from dask_tfrecord.errors import check_instance
from dask_tfrecord.feed.numpy_columns import (
    Array,
    Ragged,
    column_to_numpy,
    fill_value,
    is_text,
    one_chunk,
)

Tensors: TypeAlias = dict[str, Any]


def to_tensors(batch: pa.RecordBatch | pa.Table, fill_nulls: Mapping[str, Any] | None = None) -> Tensors:
    """Convert a batch to PyTorch tensors. Columns of numbers without nulls are not copied.

    Parameters
    ----------
    batch : pyarrow.RecordBatch or pyarrow.Table
        The batch to convert.
    fill_nulls : mapping of str to value, optional
        The value that replaces the nulls of each column, as `dask_tfrecord.feed.numpy_columns.numpy_columns`
        describes.

    Returns
    -------
    dict of str to torch.Tensor or list
        A tensor or a list for each column of the batch. List columns become nested tensors with the jagged
        layout. Columns of strings become a list of str. Columns of bytes become a list of uint8 tensors that
        share the buffers of the batch.

    Raises
    ------
    SchemaError
        If a column of integers has nulls and no value in ``fill_nulls``, or if no tensor can hold the type of
        a column.

    Notes
    -----
    Do not write to a tensor that shares the memory of a batch.
    """
    check_instance("batch", batch, pa.RecordBatch, pa.Table)
    arguments.mappings(fill_nulls=fill_nulls)
    fill = fill_nulls or {}
    return {
        name: _tensor(name, column, fill.get(name))
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }


def _tensor(name: str, column: pa.Array | pa.ChunkedArray, fill: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks > 1 and is_text(column.type):  # a list of values need not be joined
            return [value for chunk in column.chunks for value in _tensor(name, chunk, fill)]
        column = one_chunk(column)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        if column.null_count:
            column = pc.fill_null(column, fill_value(name, column.type, fill))
        return _bytes(column)
    values = column_to_numpy(name, column, fill)
    if isinstance(values, Ragged):
        if isinstance(values.values, Ragged) or values.values.dtype == object:
            return column.to_pylist()  # PyTorch has no tensors of lists of lists, and no tensors of objects
        offsets = _from_numpy(values.offsets)
        return torch.nested.nested_tensor_from_jagged(_from_numpy(values.values), offsets)
    return values.tolist() if values.dtype == object else _from_numpy(values)


def _from_numpy(values: Array) -> torch.Tensor:
    """Return a tensor that shares the memory of an array, without PyTorch's warning about read-only
    arrays.
    """
    if values.flags.writeable:
        return torch.from_numpy(values)
    return torch.from_dlpack(pa.array(values.reshape(-1))).reshape(values.shape)


def _bytes(column: pa.Array) -> list[torch.Tensor]:
    is_large = pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64 if is_large else np.int32)
    bounds = bounds[column.offset : column.offset + len(column) + 1]
    if data is None or not data.size:
        return [torch.empty(0, dtype=torch.uint8) for _ in range(len(column))]
    every = _from_numpy(np.frombuffer(data, np.uint8))
    return [every[start:stop] for start, stop in zip(bounds.tolist(), bounds[1:].tolist(), strict=False)]
