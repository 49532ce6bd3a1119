"""Which columns of a collection have, for certain, the values that were read from TFRecord files."""

from collections.abc import Iterable

import pyarrow as pa
from dask.dataframe.dask_expr._collection import DataFrame
from dask.dataframe.dask_expr._expr import (
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

from dask_tfrecord.expr.reading import ReadTFRecord

# These leave out columns or rows, or move rows, and change no value.
_KEEPING = (Projection, Filter, DropnaFrame, Head, Tail, Sample, Partitions, Repartition, ClearDivisions)


def read_types(ddf: DataFrame, names: Iterable[str]) -> dict[str, pa.DataType]:
    """The types of those columns that come unchanged out of records; partition columns do not."""
    found = {name: _read_type(ddf.expr, name) for name in names}
    return {name: type_ for name, type_ in found.items() if type_ is not None}


def _read_type(expr: Expr, name: str) -> pa.DataType | None:
    while isinstance(expr, (*_KEEPING, Assign)):
        if isinstance(expr, Assign) and name in expr.keys:
            return None
        expr = expr.frame
    if not isinstance(expr, ReadTFRecord) or name not in expr.columns or name in expr.dataset.values:
        return None
    [item] = expr.dataset.schema.select([name]).fields
    return item.type
