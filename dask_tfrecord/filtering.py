"""Implement `filter_mask`: apply the filters of `read_tfrecord` to any Arrow table."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.public_functions import public_function
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.model import Schema


@public_function
def filter_mask(table: pa.Table, filters: Sequence[Any] | pc.Expression) -> pa.ChunkedArray:
    """Return a mask of the rows of a table that pass filters, which are applied exactly as in
    `read_tfrecord`.

    Parameters
    ----------
    table : pyarrow.Table
        The rows to filter.
    filters : list of tuple, list of list of tuple, or pyarrow.compute.Expression
        The filters to apply, in the form that `read_tfrecord` accepts.

    Returns
    -------
    pyarrow.ChunkedArray
        One element for each row of the table, without nulls. An element is True if the row passes the
        filters.

    Raises
    ------
    SchemaError
        If the filters name an unknown column, or compare a column with a value of an unsuitable type.

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
    schema = Schema.from_arrow(table.schema, "sequence_example")
    predicate = parse_filters(filters, schema)
    needed = predicate.columns() - {*table.column_names}
    if needed:
        found = dict(one for item in schema.fields for one in _fields(item, table[item.name]))
        for name in sorted(needed):
            table = table.append_column(name, found[name])
    mask = predicate.mask(table)
    chunks = mask.chunks if isinstance(mask, pa.ChunkedArray) else [mask]
    return pa.chunked_array(chunks, pa.bool_()).fill_null(False)


def _fields(item: Field, values: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield the name and the values of each field of a struct column, at all levels."""
    for at, child in enumerate(item.children):
        of_field = pc.struct_field(values, [at])
        yield child.name, of_field
        yield from _fields(child, of_field)
