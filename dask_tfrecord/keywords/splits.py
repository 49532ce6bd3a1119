"""Validate ``split=`` of `to_tfrecord`, which divides the rows among splits such as "train"."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dask_tfrecord.dataset.read.layouts import SPLIT
from dask_tfrecord.errors import Remedy, SchemaError, TFRecordError
from dask_tfrecord.keywords import arguments
from dask_tfrecord.schema.fields import Field

# The partition column that contains the split of each row.
SPLIT_FIELD = Field(SPLIT, pa.string())

_EXAMPLE = Remedy("split", {"train": 0.9, "eval": 0.1}, "write two splits, for example")
AT_RANDOM = Remedy("write_options", {"split_by": 0}, "split at random with this seed")


class Splits(NamedTuple):
    """Define the hash range of each split, and the values from which the hash of a row is computed.

    A row belongs to the first split whose bound exceeds its hash, which lies between 0 and 1. Rows with equal
    values in ``columns`` have the same hash. Without columns, it depends on ``seed`` and on the position of
    the row in the collection.
    """

    names: tuple[str, ...]
    bounds: tuple[float, ...]
    columns: tuple[str, ...]
    seed: int


def parse_splits(columns: Collection[str], split: Any, split_by: Any) -> Splits | None:
    """Validate ``split=`` and ``split_by=``. Return None if ``split`` is None."""
    if split is None:
        if split_by is not None:
            raise TFRecordError(
                "split_by= has no effect without split=",
                _EXAMPLE,
                Remedy("write_options", {"split_by": None}, "split no rows"),
            )
        return None
    shares = dict(split) if isinstance(split, Mapping) else {}
    is_valid = bool(shares) and all(
        isinstance(name, str) and name and isinstance(share, int | float) and 0 < share <= 1
        for name, share in shares.items()
    )
    if not is_valid:
        raise TFRecordError(f"split={split!r} is not a dict of shares that sum to 1", _EXAMPLE)
    if abs((total := sum(shares.values())) - 1) > 1e-6:
        raise TFRecordError(f"the shares of split={split!r} sum to {total:g}, not to 1", _EXAMPLE)
    split_by = 0 if split_by is None else split_by
    is_seed = isinstance(split_by, int | np.integer) and not isinstance(split_by, bool)
    deciding = () if is_seed else tuple(arguments.names("split_by", split_by))
    if not is_seed and not deciding:
        raise TFRecordError("split_by= names no column", "name one", AT_RANDOM)
    if SPLIT in columns:
        problem = "split= adds a partition column of this name"
        advice = "rename the column of the DataFrame"
        remedy = Remedy("partition_on", SPLIT, "write a directory for each of its values")
        raise SchemaError(problem, advice, Remedy("split", None), remedy, feature=SPLIT)
    for name in deciding:
        if name not in columns:
            raise SchemaError("split_by= names a column that the DataFrame does not have", feature=name)
    bounds = tuple(np.cumsum(list(shares.values())).tolist())
    return Splits(tuple(shares), (*bounds[:-1], 1.0), deciding, int(split_by) if is_seed else 0)
