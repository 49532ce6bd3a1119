"""Assign each row of a write to a split, such as "train", by a hash."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.read.layouts import SPLIT
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.keywords.splits import AT_RANDOM, Splits
from dask_tfrecord.schema.conversion import convert
from dask_tfrecord.schema.logical_types import canonical_type

if TYPE_CHECKING:
    import dask.dataframe as dd

_DTYPE = pd.ArrowDtype(pa.string())

# The id of a row is (index of the partition << _ROW_BITS) + position of the row in the partition.
_ROW_BITS = 40

# With this key, splits and a shuffle with the same seed use different random numbers.
_SPAWN_KEY = (1,)


def assign_splits(ddf: "dd.DataFrame", splits: Splits) -> "dd.DataFrame":
    """Add the column `SPLIT`, which contains the split of each row, to a collection."""
    meta = ddf._meta.assign(**{SPLIT: pd.Series([], index=ddf._meta.index, dtype=_DTYPE)})
    return ddf.map_partitions(_with_split, splits, meta=meta)


def _with_split(
    partition: pd.DataFrame, splits: Splits, partition_info: dict[str, Any] | None = None
) -> pd.DataFrame:
    number = 0 if partition_info is None else partition_info["number"]
    return split_frame(partition, splits, number << _ROW_BITS)


def split_frame(frame: pd.DataFrame, splits: Splits, first: int) -> pd.DataFrame:
    """Add the column `SPLIT` to a DataFrame. ``first`` is the id of the first row."""
    columns = [pa.array(frame[name], from_pandas=True) for name in splits.columns]
    return frame.assign(**{SPLIT: pd.array(_split_of(columns, len(frame), splits, first), _DTYPE)})


def split_table(table: pa.Table, splits: Splits, first: int) -> pa.Table:
    """Add the column `SPLIT` to an Arrow table. ``first`` is the id of the first row."""
    columns = [_canonical(table[name]) for name in splits.columns]
    return table.append_column(SPLIT, _split_of(columns, table.num_rows, splits, first))


def _canonical(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column of a view type, such as string_view, which Arrow cannot hash or cast."""
    type_ = canonical_type(column.type)
    return pa.chunked_array([convert(chunk, type_) for chunk in column.chunks], type_)


def _split_of(columns: list[Any], rows: int, splits: Splits, first: int) -> pa.Array:
    chosen = np.searchsorted(splits.bounds, _hashes(columns, rows, splits, first), side="right")
    return pa.array(splits.names, pa.string()).take(pa.array(chosen))


def _hashes(columns: list[Any], count: int, splits: Splits, first: int) -> npt.NDArray[np.float64]:
    """Return a hash between 0 (included) and 1 (excluded) for each row of a partition.

    The hash depends on the values in the columns, but not on their types. Without columns, the hash depends
    on the seed and on the id of the row.
    """
    if not columns:
        rows = np.arange(count, dtype=np.uint64) + np.uint64(first)
        hashes = pd.util.hash_array(rows ^ _random_number(splits.seed))
    else:
        hashes = np.zeros(count, np.uint64)
        for name, column in zip(splits.columns, columns, strict=True):
            hashes = hashes * np.uint64(31) + pd.util.hash_array(_texts(column, name))
        hashes = pd.util.hash_array(hashes)
    return hashes / 2.0**64


def _random_number(seed: int) -> np.uint64:
    """Return a random number for a seed. If row ids were combined with the seeds themselves, similar seeds
    would only exchange hashes between rows.
    """
    sequence = np.random.SeedSequence(seed & (1 << 64) - 1, spawn_key=_SPAWN_KEY)
    return np.uint64(sequence.generate_state(1, np.uint64)[0])


def _texts(values: pa.Array | pa.ChunkedArray, name: str) -> npt.NDArray[Any]:
    """Convert a column to strings, or to bytes if it is binary. A null becomes an empty string."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_floating(values.type):
        values = values.cast(pa.float32()) if pa.types.is_float16(values.type) else values
        # -0.0 equals 0.0 but is formatted differently. Adding 0 turns -0.0 into 0.0.
        values = pc.add(values, pa.scalar(0, values.type))
    is_binary = pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
    try:
        texts = values.fill_null(b"") if is_binary else values.cast(pa.string()).fill_null("")
        if pa.types.is_temporal(values.type) or pa.types.is_decimal(values.type):
            # Remove trailing zeros of fractions, because the number of decimals depends on the type.
            # The text of a time with a time zone ends in Z.
            texts = pc.replace_substring_regex(texts, r"(\.[0-9]*?)0+(Z?)$", r"\1\2")
            texts = pc.replace_substring_regex(texts, r"\.(Z?)$", r"\1")
    except pa.ArrowException:
        problem = f"split_by= cannot use a column of {values.type}"
        raise SchemaError(
            problem, "name a column of strings, numbers or times", AT_RANDOM, feature=name
        ) from None
    array: npt.NDArray[Any] = texts.to_numpy(zero_copy_only=False)
    return array
