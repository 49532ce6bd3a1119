"""Convert the index of a DataFrame to columns, and decide which index levels are written."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dask_tfrecord.errors import Remedy, SchemaError


def index_levels(meta: pd.DataFrame, write_index: bool | None) -> tuple[tuple[str, str | None], ...]:
    """Return the index levels to write, each as a pair of its column name and its level name.

    Parameters
    ----------
    meta : pandas.DataFrame
        The meta of the Dask collection to write.
    write_index : bool or None
        If True, the index is written. If False, the index is dropped. If None, an integer index without a
        name is dropped, because it only counts the rows, and every other index is written.

    Raises
    ------
    SchemaError
        If the name of an index level to write is neither a string nor None.
    """
    names: list[Any] = list(meta.index.names)
    counts_rows = names == [None] and pd.api.types.is_integer_dtype(meta.index.dtype)
    if write_index is False or (write_index is None and counts_rows):
        return ()
    invalid = [name for name in names if not isinstance(name, str | None)]
    if invalid:
        raise SchemaError(
            f"the index is named {invalid[0]!r}, which is not a string",
            advice='rename it with ddf.rename_axis(index="name")',
            remedies=[Remedy("write_index", False, "drop it")],
            function="to_tfrecord",
        )
    return tuple(zip(_column_names(meta), names, strict=True))


def index_to_columns(frame: pd.DataFrame, names: Sequence[str] | None = None) -> pd.DataFrame:
    """Convert the index levels of a DataFrame to its first columns, named ``names``.

    By default, these columns have the names of the levels.
    """
    names = _column_names(frame) if names is None else names
    clash = [name for name in names if name in frame.columns]
    if clash:
        raise SchemaError(
            f"the index would become the column {clash[0]!r}, which already exists",
            advice="rename the index or the column",
            remedies=[Remedy("write_index", False, "drop the index")],
            function="to_tfrecord",
        )
    return frame.reset_index(names=list(names))


def _column_names(frame: pd.DataFrame) -> list[Any]:
    """Return the column names for the index levels of a DataFrame.

    A level without a name gets the name that pandas gives it by default.
    """
    defaults = ["index"] if frame.index.nlevels == 1 else [f"level_{i}" for i in range(frame.index.nlevels)]
    pairs = zip(frame.index.names, defaults, strict=True)
    return [default if name is None else name for name, default in pairs]
