"""Implement `filter_mask`: apply the filters of `read_tfrecord` to any Arrow table."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.query.filters import names_in, parse_filters
from dask_tfrecord.dataset.read.requested_columns import unknown_column
from dask_tfrecord.errors import check_instance
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
    check_instance("table", table, pa.Table)
    table = _needed_columns(table, names_in(filters))
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


def _needed_columns(table: pa.Table, names: set[str] | None) -> pa.Table:
    """Return the columns that filters use. Return all columns if the names are unknown, or if there are none.

    A name such as "a/b" may be the name of a column, or of a field of the struct column "a".
    """
    if not names:
        return table
    needed = set()
    for name in sorted(names):
        found = {at for at, one in enumerate(table.column_names) if name == one or name.startswith(f"{one}/")}
        if not found:
            raise unknown_column("filters", name, table.column_names, "the table does not have a column")
        needed |= found
    return table.select(sorted(needed))


def _fields(item: Field, values: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield the name and the values of each field of a struct column, at all levels."""
    for at, child in enumerate(item.children):
        of_field = pc.struct_field(values, [at])
        yield child.name, of_field
        yield from _fields(child, of_field)
