"""Rewrite files of a dataset: `compact` makes small files larger, and `delete` removes rows."""

import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow.compute as pc

from dask_tfrecord import arguments
from dask_tfrecord.cluster import compute_each
from dask_tfrecord.dataset.maintenance.compacting import Compacted, compact_files
from dask_tfrecord.dataset.maintenance.deleting import Deleted, delete_rows
from dask_tfrecord.dataset.write.destination import destination
from dask_tfrecord.dataset.write.neighbours import refuse_inside_dataset
from dask_tfrecord.files.storage.filesystem import Filesystem
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.public_functions import public_function
from dask_tfrecord.write_request import keeps_versions

logger = logging.getLogger(__name__)


@public_function
def compact(
    path: PathLike,
    *,
    target_bytes: int | str | None = "128 MiB",
    filters: Sequence[Any] | pc.Expression | None = None,
    keep_versions: bool | None = None,
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> Compacted:
    """Replace the small files of a dataset by larger files with the same rows in the same order.

    `compact` copies the stored bytes of the files without decompressing or decoding them, and verifies the
    checksum of each file. Only neighbours in the same directory, with the same partition values and the same
    codec, become one file. Files of at least half of ``target_bytes`` stay as they are. Files of other tools
    are decompressed and compressed again if their stored bytes cannot be joined.

    Rows that other writes append in the meantime are kept. If another write replaces files that `compact` has
    read, `compact` leaves out these files and commits the others.

    The new files are written in parallel on the active scheduler of Dask. If a compaction takes long, it logs
    its progress every ten seconds, at the level INFO of the logger ``dask_tfrecord``.

    Parameters
    ----------
    path : str or path-like
        The directory of the dataset.
    target_bytes : int or str, default "128 MiB"
        The largest stored size of a new file, in bytes or as text with a unit. If None, the files have any
        size.
    filters : list of tuple, list of list of tuple, or pyarrow.compute.Expression, optional
        Filters in the form that `read_tfrecord` accepts. Only files in which some row may pass the filters
        are compacted, as far as partition values and statistics show. By default, all files are compacted.
    keep_versions : bool, optional
        If True, keep the versions before this one, so that they can still be read. If False, remove the
        replaced files and the versions before this one. By default, the value of
        ``dask-tfrecord.keep-versions`` in Dask's configuration is used, which is False unless it was changed.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the path. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Returns
    -------
    Compacted
        A named tuple of the newest snapshot (``snapshot``), the number of files that were replaced
        (``replaced``), the number of new files (``written``), and the number of files that were left out
        because other writes had replaced them (``skipped``).

    Raises
    ------
    FileNotFoundError
        If the directory has no snapshot. `index` makes a snapshot of files of other tools.
    FileChangedError
        If the content of a file differs from the snapshot.
    CorruptRecordError
        If a file of the dataset is damaged or missing.
    SchemaError
        If the filters cannot be applied to the columns.

    See Also
    --------
    delete : Remove the rows that pass filters.
    index : Store a snapshot of files that another tool wrote.

    Examples
    --------
    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan", "Grace"]}, npartitions=3)
    >>> dask_tfrecord.to_tfrecord(ddf, "people")
    Snapshot(3 files, 3 records, 108 bytes, columns: name)
    >>> dask_tfrecord.compact("people").snapshot
    Snapshot(1 files, 3 records, 108 bytes, columns: name)
    """
    size = arguments.byte_count("target_bytes", target_bytes) or sys.maxsize
    store = destination(path, storage_options, filesystem)
    refuse_inside_dataset(store, "compact")
    root = store.public()
    each = partial(compute_each, title=f"{root}: compact")
    done = compact_files(store, size, filters, each, keep_versions=keeps_versions(keep_versions))
    counts = f"{done.replaced} files to {done.written}, skipped {done.skipped} files"
    logger.info("%s: version %d: compacted %s", root, done.snapshot.number, counts)
    return done


@public_function
def delete(
    path: PathLike,
    filters: Sequence[Any] | pc.Expression,
    *,
    dry_run: bool = False,
    keep_versions: bool | None = None,
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> Deleted:
    """Delete the rows of a dataset that pass filters, and no others.

    Files whose partition values or statistics show that all rows pass the filters are dropped without being
    opened. Files in which no row can pass are not opened either. The other files are read. A file with some
    rows to delete is written again: the blocks that keep all of their rows are copied as they are.

    Categories that only deleted rows have are removed from the columns of the dataset. To find them, files
    with categorical columns are read until each category of a deleted row is found in another row.

    The rows are deleted in one commit. If the process is killed before the commit, the dataset stays as it
    was. Rows that other writes append in the meantime are kept, also if they pass the filters, unless another
    write replaces files that `delete` has read. In this case, `delete` also treats the new files.

    The files are read and written in parallel on the active scheduler of Dask. If a deletion takes long, it
    logs its progress every ten seconds, at the level INFO of the logger ``dask_tfrecord``.

    Parameters
    ----------
    path : str or path-like
        The directory of the dataset.
    filters : list of tuple, list of list of tuple, or pyarrow.compute.Expression
        Filters in the form that `read_tfrecord` accepts. Exactly the rows that
        ``read_tfrecord(path, filters=filters)`` returns are deleted. A row with a null in a compared column
        stays, unless the filters select nulls. The snapshot does not store the filters.
    dry_run : bool, default False
        If True, change nothing, and return what the call would delete.
    keep_versions : bool, optional
        If True, keep the versions before this one, so that they can still be read. If False, remove the
        replaced files and the versions before this one. By default, the value of
        ``dask-tfrecord.keep-versions`` in Dask's configuration is used, which is False unless it was changed.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the path. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Returns
    -------
    Deleted
        A named tuple of the newest snapshot (``snapshot``), the number of files of which no row was left
        (``dropped``), the number of files that were written again (``rewritten``), the number of deleted rows
        (``rows``), and the stored size of these files before the deletion (``bytes``). If no row passes the
        filters, nothing is committed.

    Raises
    ------
    FileNotFoundError
        If the directory has no snapshot. `index` makes a snapshot of files of other tools.
    FileChangedError
        If the content of a file differs from the snapshot.
    CorruptRecordError
        If a file of the dataset is damaged or missing.
    SchemaError
        If the filters cannot be applied to the columns.
    ConcurrentWriteError
        If other writes replace files again and again while rows are deleted.

    See Also
    --------
    compact : Replace small files by larger files.
    filter_mask : Apply filters to an Arrow table.

    Examples
    --------
    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan", "Grace"], "born": [1815, 1912, 1906]}, npartitions=2)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "people")
    >>> dask_tfrecord.delete("people", [("born", "<", 1900)]).rows
    1
    >>> dask_tfrecord.read_tfrecord("people")["name"].compute().tolist()
    ['Alan', 'Grace']
    """
    arguments.flags(dry_run=dry_run)
    store = destination(path, storage_options, filesystem)
    refuse_inside_dataset(store, "delete")
    root = store.public()
    each = partial(compute_each, title=f"{root}: delete")
    keeps = keeps_versions(keep_versions)
    done = delete_rows(store, filters, each, dry_run=bool(dry_run), keep_versions=keeps)
    action = "would delete" if dry_run else f"version {done.snapshot.number}: deleted"
    counts = f"{done.rows} rows, dropped {done.dropped} and rewrote {done.rewritten} files"
    logger.info("%s: %s %s", root, action, counts)
    return done
