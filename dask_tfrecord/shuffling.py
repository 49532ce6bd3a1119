"""Partitions <-> frames of packed rows, which Dask can shuffle whatever the columns are."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_tfrecord.dataset import rows
from dask_tfrecord.schema import Lossy, Schema

# The column that says which rows come together.
TARGET = "target"


class Shuffle(NamedTuple):
    """How rows are moved between partitions before they are written.

    Attributes
    ----------
    together : tuple of str
        The columns in which rows agree that come into the same partition; none to spread them at random.
    seed : int, optional
        Of the order of the rows; None to leave them in the collection's order.
    npartitions : int
        How many partitions there are afterwards.
    """

    together: tuple[str, ...]
    seed: int | None
    npartitions: int


def empty_rows() -> pd.DataFrame:
    """The meta of `pack`."""
    nothing = np.empty(0, np.uint64)
    records = pd.arrays.ArrowExtensionArray(pa.array([], pa.large_binary()))
    return pd.DataFrame({"target": nothing, "order": nothing, "record": records})


def pack(
    table: pa.Table,
    schema: Schema,
    index: int,
    *,
    partition_on: Sequence[str],
    lossy: Lossy,
    shuffle: Shuffle,
) -> pd.DataFrame:
    """The rows of partition ``index``, each with where it belongs."""
    target, order = rows.number(table, index, together=shuffle.together, seed=shuffle.seed)
    records = rows.pack(table, schema, partition_on, lossy=lossy)
    return pd.DataFrame({"target": target, "order": order, "record": pd.arrays.ArrowExtensionArray(records)})


def unpack(partition: pd.DataFrame, schema: Schema, *, partition_on: Sequence[str]) -> pa.Table:
    """The rows of a shuffled partition in their order, in which they did not arrive."""
    records = pa.array(partition["record"])
    order = np.argsort(partition["order"].to_numpy())
    chunked = records if isinstance(records, pa.ChunkedArray) else pa.chunked_array([records])
    return rows.unpack(chunked.take(pa.array(order)), schema, partition_on)
