"""`filter_mask`: apply the filters of `read_tfrecord` to any Arrow table."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.public_functions import public_function
from dask_tfrecord.schema.model import Schema


@public_function
def filter_mask(table: pa.Table, filters: Sequence[Any] | pc.Expression) -> pa.ChunkedArray:
    """Return for each row of a table if it passes filters, exactly as `read_tfrecord` decides.

    Parameters
    ----------
    table : pyarrow.Table
        The rows.
    filters : list of tuple, list of list of tuple, or pyarrow.compute.Expression
        The filters, as in `read_tfrecord`.

    Returns
    -------
    pyarrow.ChunkedArray
        True or False for each row, without nulls.

    Raises
    ------
    SchemaError
        If the filters name an unknown column, or a value cannot be compared with its column.

    Examples
    --------
    >>> import dask_tfrecord
    >>> import pyarrow as pa
    >>> people = pa.table({"name": ["Ada", None], "born": [1815, 1912]})
    >>> dask_tfrecord.filter_mask(people, [("born", ">", 1900)]).to_pylist()
    [False, True]
    >>> dask_tfrecord.filter_mask(people, [("name", "!=", "Alan")]).to_pylist()
    [True, False]
    """
    mask = parse_filters(filters, Schema.from_arrow(table.schema, "sequence_example")).mask(table)
    chunks = mask.chunks if isinstance(mask, pa.ChunkedArray) else [mask]
    return pa.chunked_array(chunks, pa.bool_()).fill_null(False)
