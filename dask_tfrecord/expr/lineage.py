"""Where the columns of a collection come from, as far as its expressions show it for certain."""

from collections.abc import Iterable
from typing import Any

import pandas as pd
import pyarrow as pa
from dask.dataframe.dask_expr._collection import DataFrame
from dask.dataframe.dask_expr._expr import (
    ArrowStringConversion,
    Assign,
    ClearDivisions,
    DropnaFrame,
    Expr,
    Filter,
    Head,
    Partitions,
    Projection,
    Sample,
    Tail,
)
from dask.dataframe.dask_expr._repartition import Repartition
from dask.dataframe.dask_expr.io.io import FromPandas

from dask_tfrecord.expr.reading import ReadTFRecord

# These leave out columns or rows, or move rows, and change no value.
_KEEPING = (Projection, Filter, DropnaFrame, Head, Tail, Sample, Partitions, Repartition, ClearDivisions)


def read_types(ddf: DataFrame, names: Iterable[str]) -> dict[str, pa.DataType]:
    """The types of those columns that come unchanged out of records; partition columns do not."""
    found = {}
    for name in names:
        source = _source(ddf.expr, name, _KEEPING)
        if (
            isinstance(source, ReadTFRecord)
            and name in source.columns
            and name not in source.dataset.partition_values
        ):
            [item] = source.dataset.schema.select([name]).fields
            found[name] = item.type
    return found


def large_strings(ddf: DataFrame) -> dict[str, pa.DataType]:
    """The columns that were large strings before Dask's dataframe.convert-string converted them."""
    found = {}
    for name, dtype in ddf._meta.dtypes.items():
        if not isinstance(dtype, pd.StringDtype):
            continue
        source = _source(ddf.expr, name, (*_KEEPING, ArrowStringConversion))
        if source is not None and _dtype(source, name) == pd.ArrowDtype(pa.large_string()):
            found[name] = pa.large_string()
    return found


def _source(expr: Any, name: str, keeping: Any) -> Any:
    """What a column comes from by way of expressions that keep its values; None if one computes it anew."""
    while True:
        if isinstance(expr, Assign):
            if name in expr.keys:
                return None
        elif not isinstance(expr, keeping):
            return expr
        expr = expr.frame


def _dtype(source: Expr, name: str) -> Any:
    frame = source.operand("frame")._data if isinstance(source, FromPandas) else source._meta
    return dict(frame.dtypes).get(name)
