"""`take`: load rows by their numbers, reading only the blocks that hold them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.cluster import compute_each
from dask_tfrecord.dataset.read.partition_columns import values_from_snapshot
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.stamps import are_proven
from dask_tfrecord.dataset.snapshot.visibility import newest_snapshot
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import count_records
from dask_tfrecord.files.splits import Partitions, Split, split_at_blocks
from dask_tfrecord.files.storage.filesystem import Filesystem
from dask_tfrecord.files.storage.listing import FileInfo, PathLike, table_infos, with_trailing_slash
from dask_tfrecord.files.storage.not_found import nothing_at
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.frames import arrow_to_pandas
from dask_tfrecord.public_functions import public_function
from dask_tfrecord.schema.model import Schema

_Numbers: TypeAlias = npt.NDArray[np.int64]

# Blocks, of about 1 MiB each, that one task reads. Up to this number, all blocks are read without a task.
_BLOCKS_PER_TASK = 16


class _BlockRows(NamedTuple):
    """Rows to read from one block of a file."""

    file: int
    split: Split
    rows: _Numbers


@overload
def take(  # type: ignore[overload-overlap]  # a str is a Sequence[str], too
    path: PathLike,
    indices: Sequence[int] | npt.ArrayLike,
    columns: str,
    *,
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> pd.Series: ...
@overload
def take(
    path: PathLike,
    indices: Sequence[int] | npt.ArrayLike,
    columns: Sequence[str] | None = None,
    *,
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> pd.DataFrame: ...
@public_function
def take(
    path: PathLike,
    indices: Sequence[int] | npt.ArrayLike,
    columns: str | Sequence[str] | None = None,
    *,
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
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
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        Filesystem of the path. Pass either this or ``storage_options``.

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
    store = with_trailing_slash(Store.at(path, storage_options, filesystem))
    root = store.public(store.root)
    newest = newest_snapshot(store)
    if newest is None:
        advice = f"dask_tfrecord.index({root!r}) creates a snapshot of files that another tool wrote"
        raise nothing_at(store, f"the directory has no snapshot, which take() needs to find rows; {advice}")
    snapshot, files = newest
    schema = _selected_columns(snapshot.columns, columns)
    numbers, order = np.unique(_row_numbers(indices, snapshot.records, root), return_inverse=True)
    if not schema.fields:
        return pd.DataFrame(index=pd.RangeIndex(order.size))
    _check_changed_files(store, snapshot, files)
    blocks = list(_locate(table_infos(files), snapshot, numbers))
    table = _read(_dataset(store, snapshot, schema, blocks), blocks)
    rows = arrow_to_pandas.to_pandas(_ordered(table, order.reshape(-1)), schema)
    return rows[columns] if isinstance(columns, str) else rows


def _selected_columns(schema: Schema, columns: str | Sequence[str] | None) -> Schema:
    if columns is None:
        return schema
    names = [columns] if isinstance(columns, str) else list(columns)
    if len(set(names)) < len(names):
        raise SchemaError("columns= names a column more than once")
    return schema.select(names)


def _row_numbers(indices: Any, count: int, root: str) -> _Numbers:
    """The row numbers, counted from 0, that indices or a mask select."""
    array = np.atleast_1d(np.asarray(indices))
    if not array.size and array.dtype != bool:
        array = array.astype(np.int64)
    if array.ndim > 1 or array.dtype.kind not in "biu":
        raise IndexError(
            f"{root}: indices must be a list of integers or a boolean mask, not a {array.ndim}-dimensional "
            f"array of {array.dtype}"
        )
    if array.dtype == bool:
        if len(array) != count:
            raise IndexError(f"{root}: the mask has {len(array):,} elements, but the dataset {count:,} rows")
        return np.flatnonzero(array)
    outside = array[(array >= count) | (array < -count)]
    if outside.size:
        raise IndexError(f"{root}: index {outside[0]} is out of bounds for a dataset of {count:,} rows")
    numbers = array.astype(np.int64)
    return np.where(numbers < 0, numbers + count, numbers)


def _check_changed_files(store: Store, snapshot: Snapshot, files: pa.Table) -> None:
    """Count the records of files that may have changed: they determine the numbers of all later rows."""
    changed = pc.invert(are_proven(files, snapshot.file_list))
    unproven = [Split(file) for file in table_infos(files.filter(changed))]
    if unproven:
        compute_each(partial(count_records, store, options=ReadOptions()), unproven)


def _locate(files: Sequence[FileInfo], snapshot: Snapshot, numbers: _Numbers) -> Iterator[_BlockRows]:
    """The blocks that hold the rows with these ascending numbers, and the rows to take from each block."""
    starts = np.cumsum([0, *(entry.records for entry in snapshot.files)])
    file_of = np.searchsorted(starts, numbers, side="right") - 1
    for file, rows in _runs(file_of, numbers):
        splits = _blocks(files[file], snapshot.files[file])
        firsts = [split.start.record for split in splits]
        rows = rows - starts[file]
        for block, block_rows in _runs(np.searchsorted(firsts, rows, side="right") - 1, rows):
            yield _BlockRows(file, splits[block], block_rows - firsts[block])


def _blocks(file: FileInfo, entry: FileEntry) -> tuple[Split, ...]:
    return split_at_blocks(replace(file, size=entry.bytes), entry, entry.blocks[1:])


def _runs(keys: _Numbers, numbers: _Numbers) -> Iterator[tuple[int, _Numbers]]:
    """Group adjacent numbers with equal keys."""
    if not len(keys):
        return
    cuts = np.flatnonzero(np.diff(keys)) + 1
    for first, group in zip([0, *cuts], np.split(numbers, cuts), strict=True):
        yield int(keys[first]), group


def _dataset(store: Store, snapshot: Snapshot, schema: Schema, blocks: Sequence[_BlockRows]) -> ReadPlan:
    """A dataset with a partition for each block."""
    files = pa.array([block.file for block in blocks], pa.int64())
    values = {name: column.take(files) for name, column in values_from_snapshot(snapshot, schema).items()}
    whole = len(schema.fields) == len(snapshot.columns.fields)
    options = ReadOptions(extra="raise" if whole else "ignore")
    partitions = Partitions.of([block.split] for block in blocks)
    return ReadPlan(store, partitions, schema, options, values)


def _read(dataset: ReadPlan, blocks: Sequence[_BlockRows]) -> pa.Table:
    """Read the selected rows of all blocks, in the order of the dataset."""
    parts = [(dataset.partition(number, dataset.schema), block.rows) for number, block in enumerate(blocks)]
    if len(parts) <= _BLOCKS_PER_TASK:
        return _read_blocks(dataset.schema, parts)
    tasks = [parts[start : start + _BLOCKS_PER_TASK] for start in range(0, len(parts), _BLOCKS_PER_TASK)]
    return pa.concat_tables(compute_each(partial(_read_blocks, dataset.schema), tasks))


def _ordered(table: pa.Table, order: _Numbers) -> pa.Table:
    """Reorder the rows. Rows already in order are returned unchanged, whatever their size."""
    return table if np.array_equal(order, np.arange(table.num_rows)) else table.take(pa.array(order))


@redact_errors
def _read_blocks(schema: Schema, parts: Sequence[tuple[Any, _Numbers]]) -> pa.Table:
    tables = [_selected_rows(partition.read(), rows) for partition, rows in parts]
    return pa.concat_tables([pa.Table.from_batches([schema.no_rows()]), *tables])


def _selected_rows(table: pa.Table, rows: _Numbers) -> pa.Table:
    """Select ascending rows with a mask: Arrow's `take` would join chunks, which may be too large."""
    mask = np.zeros(table.num_rows, bool)
    mask[rows] = True
    return table.filter(pa.array(mask))
