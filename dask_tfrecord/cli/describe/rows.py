"""The rows of a dataset, streamed without Dask in bounded memory."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from dask_tfrecord.cli.where import parse
from dask_tfrecord.cluster import compute_each
from dask_tfrecord.dataset.discovery import ReadRequest, open_dataset
from dask_tfrecord.dataset.plan import Dataset


def open_rows(
    path: Any,
    columns: list[str] | None,
    condition: str | None,
    types: dict[str, Any] | None,
    storage_options: dict[str, Any] | None,
    version: int | None,
) -> Dataset:
    """Open a dataset to stream it: every partition is a whole file, so no file is searched for records."""
    request = ReadRequest(
        columns,
        types,
        version=version,
        filters=None if condition is None else parse(condition),
        storage_options=storage_options,
    )
    return open_dataset(path, request, compute_each=compute_each)


def stream(dataset: Dataset, columns: list[str] | None) -> Iterator[pa.Table]:
    """Yield the rows of a dataset in their order, a few MiB at a time."""
    schema = dataset.schema if columns is None else dataset.schema.select(columns)
    for index in range(dataset.npartitions):
        for table in dataset.partition(index, schema).stream():
            if table.num_rows:
                yield table


def first_rows(dataset: Dataset, columns: list[str] | None, count: int) -> pa.Table:
    """Read the first rows. Nothing behind them is read, but the rest of their window."""
    schema = dataset.schema if columns is None else dataset.schema.select(columns)
    tables = [pa.Table.from_batches([schema.no_rows()])]
    missing = count
    rows = stream(dataset, columns)
    while missing and (table := next(rows, None)) is not None:
        tables.append(table.slice(0, missing))
        missing -= tables[-1].num_rows
    return pa.concat_tables(tables)


def sample_rows(dataset: Dataset, rows: int, files: int) -> pa.Table:
    """Read some first rows of some files, which are spread over the dataset."""
    count = min(files, dataset.npartitions)
    chosen = [at * dataset.npartitions // count for at in range(count)]
    tables: list[pa.Table] = [pa.Table.from_batches([dataset.schema.no_rows()])]
    for index in chosen:
        missing = -(-rows // count)
        parts = dataset.partition(index, dataset.schema).stream()
        for table in parts:
            tables.append(table.slice(0, missing))
            missing -= tables[-1].num_rows
            if not missing:
                break
    return pa.concat_tables(tables)
