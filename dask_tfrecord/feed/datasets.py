"""Datasets that are opened for a feed, and the row counts of their splits."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dask_tfrecord.dataset.discovery import ReadRequest, open_dataset
from dask_tfrecord.dataset.plan import Dataset
from dask_tfrecord.files.reading import count_records
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.filesystem import Filesystem
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.parallel import compute_each
from dask_tfrecord.schema.model import Schema


def open_to_feed(
    path: PathLike | Sequence[PathLike],
    columns: str | Sequence[str] | None,
    *,
    blocksize: int | None = None,
    schema: Any = None,
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> Dataset:
    """Open a dataset with the columns that are read, in their order.

    Parameters
    ----------
    path : str, path-like or list of these
        A path that `read_tfrecord` takes.
    columns : str or list of str, optional
        The columns. All columns by default.
    blocksize : int, optional
        Stored bytes of a partition; None makes a partition of each file.
    schema, storage_options, filesystem
        As in `read_tfrecord`.
    """
    names = [columns] if isinstance(columns, str) else columns
    request = ReadRequest(
        names, schema, blocksize=blocksize, storage_options=storage_options, filesystem=filesystem
    )
    return open_dataset(path, request, compute_each=compute_each)


def selected_schema(dataset: Dataset, columns: str | Sequence[str] | None) -> Schema:
    """The columns that are read, in their order."""
    if columns is None:
        return dataset.schema
    return dataset.schema.select([columns] if isinstance(columns, str) else columns)


def count_rows(dataset: Dataset, splits: Sequence[Split]) -> list[Split]:
    """The splits with their numbers of records. Splits that nothing has counted are scanned, in parallel."""
    unknown = [split for split in splits if split.records is None]
    counted = compute_each(partial(count_records, dataset.store, options=dataset.options), unknown)
    counts = iter(counted)
    return [split if split.records is not None else replace(split, records=next(counts)) for split in splits]
