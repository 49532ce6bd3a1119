"""Frames of one column "x", the plan of a frame's schema, and a frame's values as Arrow has them."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_tfrecord.codec import RecordType
from dask_tfrecord.collection.frames.pandas_to_arrow import to_table
from dask_tfrecord.collection.frames.schema_plan import plan_schema
from dask_tfrecord.schema.fields import Schema

NAN = float("nan")

# Returns the partitions with the columns of these names.
Sample = Callable[[list[str]], Iterable[pd.DataFrame]]


def frame_of(values: Any, dtype: Any = None) -> pd.DataFrame:
    return pd.DataFrame({"x": pd.Series(values, dtype=dtype)})


def objects(*values: Any) -> pd.DataFrame:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return frame_of(column, object)


def arrow_backed(array: pa.Array) -> pd.DataFrame:
    return pd.DataFrame({"x": pd.Series(pd.arrays.ArrowExtensionArray(array))})


def never(names: list[str]) -> Iterable[pd.DataFrame]:
    raise AssertionError(f"no sample is needed, but one of {names} was asked for")


def sample_of(*partitions: pd.DataFrame) -> Sample:
    return lambda names: (partition[names] for partition in partitions)


def plan(
    meta: pd.DataFrame,
    schema: Any = None,
    *,
    record_type: RecordType = "sequence_example",
    write_index: bool = False,
    sample: Sample = never,
) -> Schema:
    """Plan the schema of a write; by default the plan may not read any partition."""
    return plan_schema(
        meta.iloc[:0], schema=schema, record_type=record_type, write_index=write_index, sample=sample
    )


def planned(type_: pa.DataType) -> Schema:
    """The schema of a column "x" of this type."""
    return Schema.from_arrow(pa.schema([("x", type_)]), "sequence_example")


def convert(frame: pd.DataFrame, type_: pa.DataType) -> list[Any]:
    """Convert the frame to a table with a column of this type, and return the values of the column."""
    table = to_table(frame, planned(type_), write_index=False)
    table.validate(full=True)
    assert table.schema == planned(type_).arrow
    return list(table.column("x").to_pylist())
