"""The index of a DataFrame as columns, and which indexes are worth that."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dask_tfrecord.errors import SchemaError


def index_levels(meta: pd.DataFrame, write_index: bool | None) -> tuple[tuple[str, str | None], ...]:
    """The columns that the index of a collection becomes, and the names that its levels have.

    Parameters
    ----------
    meta : pandas.DataFrame
        The collection's meta.
    write_index : bool or None
        If None, an index without a name is left out if it is made of integers, which only count the rows.

    Raises
    ------
    SchemaError
        For a name that no column can have.
    """
    names: list[Any] = list(meta.index.names)
    counts = names == [None] and pd.api.types.is_integer_dtype(meta.index.dtype)
    if write_index is False or (write_index is None and counts):
        return ()
    strange = [name for name in names if not isinstance(name, str | None)]
    if strange:
        raise SchemaError(
            f"the index is named {strange[0]!r}, which is no string",
            advice='rename it with ddf.rename_axis(index="name"), or pass write_index=False to drop it',
        )
    return tuple(zip(_level_names(meta), names, strict=True))


def index_to_columns(frame: pd.DataFrame, names: Sequence[str] | None = None) -> pd.DataFrame:
    """The frame with the index levels as its first columns, called so or as they are."""
    names = _level_names(frame) if names is None else names
    clash = [name for name in names if name in frame.columns]
    if clash:
        raise SchemaError(
            f"the index would become the column {clash[0]!r}, which there is already",
            advice="rename one of them, or pass write_index=False to drop the index",
        )
    return frame.reset_index(names=list(names))


def _level_names(frame: pd.DataFrame) -> list[Any]:
    """What the columns are called that the index levels become."""
    defaults = ["index"] if frame.index.nlevels == 1 else [f"level_{i}" for i in range(frame.index.nlevels)]
    pairs = zip(frame.index.names, defaults, strict=True)
    return [default if name is None else name for name, default in pairs]
