"""`take`: load rows by their numbers, reading only the blocks that hold them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from dask_tfrecord.dataset.partitioning.partition_columns import values_from_snapshot
from dask_tfrecord.dataset.plan import Dataset
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.stamps import is_proven
from dask_tfrecord.dataset.snapshot.visibility import newest_snapshot
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import count_records
from dask_tfrecord.files.splits import Split, split_at_blocks
from dask_tfrecord.files.storage.listing import FileInfo, PathLike
from dask_tfrecord.files.storage.not_found import nothing_at
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.frames import arrow_to_pandas
from dask_tfrecord.parallel import compute_each
from dask_tfrecord.schema.model import Schema

_Numbers: TypeAlias = npt.NDArray[np.int64]

# Blocks, of about 1 MiB, that one task reads; fewer are read without asking a scheduler.
_BLOCKS_PER_TASK = 16


class _Wanted(NamedTuple):
    """Rows to read from one block of a file."""

    file: int
    split: Split
    rows: _Numbers


@overload  # a str is also a Sequence[str]: the first overload that matches counts
def take(  # type: ignore[overload-overlap]
    path: PathLike,
    indices: Sequence[int] | npt.ArrayLike,
    columns: str,
    *,
    storage_options: dict[str, Any] | None = None,
) -> pd.Series: ...
@overload
def take(
    path: PathLike,
    indices: Sequence[int] | npt.ArrayLike,
    columns: Sequence[str] | None = None,
    *,
    storage_options: dict[str, Any] | None = None,
) -> pd.DataFrame: ...
@redact_errors
def take(
    path: PathLike,
    indices: Sequence[int] | npt.ArrayLike,
    columns: str | Sequence[str] | None = None,
    *,
    storage_options: dict[str, Any] | None = None,
) -> pd.DataFrame | pd.Series:
    """Load rows of a dataset by their numbers.

    Only the blocks that hold these rows, of about 1 MiB each, are read from uncompressed files and from
    compressed files that `to_tfrecord` wrote. Other compressed files are read completely. Many blocks are
    read in parallel.

    Parameters
    ----------
    path : str or path-like
        Directory of a dataset with a snapshot, which `to_tfrecord` or `index` stored.
    indices : sequence of int or bool
        Row numbers, counted from 0 over the files in the order of `read_tfrecord`. Any order and repeated
        numbers are allowed. As in NumPy, negative numbers count from the end, and a boolean mask with an
        element for each row selects rows.
    columns : str or list of str, optional
        Columns to load, in this order. A single name that is not in a list returns a Series. By default all
        columns are loaded. An unknown or repeated name raises.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.

    Returns
    -------
    pandas.DataFrame or pandas.Series
        A row for each index, in the order of ``indices``, with a new range index and the dtypes of
        `read_tfrecord`.

    Raises
    ------
    FileNotFoundError
        If the directory has no snapshot.
    IndexError
        If a row number is out of bounds, or ``indices`` are not integers or a mask.
    FileChangedError
        If a file is not the file that the snapshot describes.

    See Also
    --------
    index : Store a snapshot of files that another tool wrote.

    Examples
    --------
    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan", "Grace"], "born": [1815, 1912, 1906]}, npartitions=2)
    >>> snapshot = dask_tfrecord.to_tfrecord(ddf, "people")
    >>> dask_tfrecord.take("people", [-1, 0])
        name  born
    0  Grace  1906
    1    Ada  1815
    >>> dask_tfrecord.take("people", [1], columns="born").tolist()
    [1912]
    """
    store = Store.at(path, storage_options)
    root = store.public(store.root)
    newest = newest_snapshot(store)
    if newest is None:
        advice = f"dask_tfrecord.index({root!r}) makes one of files that others wrote"
        raise nothing_at(store, f"no snapshot here, which knows where each row is; {advice}")
    snapshot, files = newest
    schema = _selected(snapshot.columns, columns)
    numbers, order = np.unique(_row_numbers(indices, snapshot.records, root), return_inverse=True)
    if not schema.fields:
        return pd.DataFrame(index=pd.RangeIndex(order.size))
    _check_doubted(store, snapshot, files)
    wanted = list(_find(files, snapshot, numbers))
    table = _read(_dataset(store, snapshot, schema, wanted), wanted)
    rows = arrow_to_pandas.to_pandas(_ordered(table, order.reshape(-1)), schema)
    return rows[columns] if isinstance(columns, str) else rows


def _selected(schema: Schema, columns: str | Sequence[str] | None) -> Schema:
    if columns is None:
        return schema
    names = [columns] if isinstance(columns, str) else list(columns)
    if len(set(names)) < len(names):
        raise SchemaError("columns= names a column more than once")
    return schema.select(names)


def _row_numbers(indices: Any, count: int, root: str) -> _Numbers:
    """The row numbers, counted from 0, that indices or a mask select."""
    found = np.atleast_1d(np.asarray(indices))
    if not found.size and found.dtype != bool:
        found = found.astype(np.int64)
    if found.ndim > 1 or found.dtype.kind not in "biu":
        raise IndexError(
            f"{root}: indices are a list of integers, not {found.ndim}-dimensional {found.dtype}"
        )
    if found.dtype == bool:
        if len(found) != count:
            raise IndexError(f"{root}: a mask of {len(found):,} rows for a dataset of {count:,} rows")
        return np.flatnonzero(found)
    outside = found[(found >= count) | (found < -count)]
    if outside.size:
        raise IndexError(f"{root}: index {outside[0]} is out of bounds for a dataset of {count:,} rows")
    numbers = found.astype(np.int64)
    return np.where(numbers < 0, numbers + count, numbers)


def _check_doubted(store: Store, snapshot: Snapshot, files: Sequence[FileInfo]) -> None:
    """Count the records of files that may have changed: a row's number depends on all files before it."""
    pairs = zip(files, snapshot.files, strict=True)
    doubted = [Split(file) for file, entry in pairs if not is_proven(file, entry)]
    if doubted:
        compute_each(partial(count_records, store, options=ReadOptions()), doubted)


def _find(files: Sequence[FileInfo], snapshot: Snapshot, numbers: _Numbers) -> Iterator[_Wanted]:
    """The blocks that hold these ascending row numbers, with the rows to take from each block."""
    starts = np.cumsum([0, *(entry.records for entry in snapshot.files)])
    file_of = np.searchsorted(starts, numbers, side="right") - 1
    for file, rows in _runs(file_of, numbers):
        splits = _blocks(files[file], snapshot.files[file])
        firsts = [split.start.record for split in splits]
        rows = rows - starts[file]
        for block, found in _runs(np.searchsorted(firsts, rows, side="right") - 1, rows):
            yield _Wanted(file, splits[block], found - firsts[block])


def _blocks(file: FileInfo, entry: FileEntry) -> tuple[Split, ...]:
    return split_at_blocks(replace(file, size=entry.bytes), entry, entry.blocks[1:])


def _runs(keys: _Numbers, numbers: _Numbers) -> Iterator[tuple[int, _Numbers]]:
    """Group adjacent numbers with equal keys."""
    if not len(keys):
        return
    cuts = np.flatnonzero(np.diff(keys)) + 1
    for first, found in zip([0, *cuts], np.split(numbers, cuts), strict=True):
        yield int(keys[first]), found


def _dataset(store: Store, snapshot: Snapshot, schema: Schema, wanted: Sequence[_Wanted]) -> Dataset:
    """A dataset with each block as a partition."""
    files = pa.array([one.file for one in wanted], pa.int64())
    values = {name: column.take(files) for name, column in values_from_snapshot(snapshot, schema).items()}
    whole = len(schema.fields) == len(snapshot.columns.fields)
    options = ReadOptions(extra="raise" if whole else "ignore")
    return Dataset(store, tuple((one.split,) for one in wanted), schema, options, values)


def _read(dataset: Dataset, wanted: Sequence[_Wanted]) -> pa.Table:
    """Read the wanted rows of all blocks, in the order of the dataset."""
    blocks = [(dataset.partition(at, dataset.schema), one.rows) for at, one in enumerate(wanted)]
    if len(blocks) <= _BLOCKS_PER_TASK:
        return _read_blocks(dataset.schema, blocks)
    tasks = [blocks[at : at + _BLOCKS_PER_TASK] for at in range(0, len(blocks), _BLOCKS_PER_TASK)]
    return pa.concat_tables(compute_each(partial(_read_blocks, dataset.schema), tasks))


def _ordered(table: pa.Table, order: _Numbers) -> pa.Table:
    """Reorder the rows. Rows already in order are returned unchanged, whatever their size."""
    return table if np.array_equal(order, np.arange(table.num_rows)) else table.take(pa.array(order))


@redact_errors
def _read_blocks(schema: Schema, blocks: Sequence[tuple[Any, _Numbers]]) -> pa.Table:
    tables = [_chosen(partition.read(), rows) for partition, rows in blocks]
    return pa.concat_tables([pa.Table.from_batches([schema.no_rows()]), *tables])


def _chosen(table: pa.Table, rows: _Numbers) -> pa.Table:
    """Select ascending rows with a mask: Arrow's `take` would join chunks, which may be too large."""
    mask = np.zeros(table.num_rows, bool)
    mask[rows] = True
    return table.filter(pa.array(mask))
