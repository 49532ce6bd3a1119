"""Change the versions and files of a dataset: compact, delete, expire, restore, repair, clean up, and find
it.
"""

import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow.compute as pc

from dask_tfrecord import arguments
from dask_tfrecord.collection.requests import keeps_versions
from dask_tfrecord.collection.scheduler import compute_each
from dask_tfrecord.dataset.maintenance import metadata_commits
from dask_tfrecord.dataset.maintenance.rewrites import Compacted, Deleted, compact_files, delete_rows
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.names import METADATA_DIRECTORY
from dask_tfrecord.dataset.snapshot.versions import versions
from dask_tfrecord.dataset.snapshot.visibility import visible_files
from dask_tfrecord.dataset.write.destination import destination, parent_dataset, refuse_inside_dataset
from dask_tfrecord.dataset.write.orphans import remove_orphans, time_of_store
from dask_tfrecord.errors import DestinationError, TFRecordError
from dask_tfrecord.files.storage.filesystem import Filesystem
from dask_tfrecord.files.storage.listing import PathLike, check_bucket, with_trailing_slash
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.public_functions import public_function

logger = logging.getLogger(__name__)


def _dataset(
    path: PathLike, storage_options: dict[str, Any] | None, filesystem: Filesystem, function: str
) -> Store:
    """Open the directory of a dataset. Raise if it lies inside another dataset."""
    store = with_trailing_slash(destination(path, storage_options, filesystem))
    refuse_inside_dataset(store, function)
    return store


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
    store = _dataset(path, storage_options, filesystem, "compact")
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
    dry_run = arguments.flag("dry_run", dry_run)
    store = _dataset(path, storage_options, filesystem, "delete")
    root = store.public()
    each = partial(compute_each, title=f"{root}: delete")
    keeps = keeps_versions(keep_versions)
    done = delete_rows(store, filters, each, dry_run=dry_run, keep_versions=keeps)
    action = "would delete" if dry_run else f"version {done.snapshot.number}: deleted"
    counts = f"{done.rows} rows, dropped {done.dropped} and rewrote {done.rewritten} files"
    logger.info("%s: %s %s", root, action, counts)
    return done


@public_function
def expire(
    path: PathLike,
    *,
    versions: int | None = None,
    older_than: str | timedelta | None = None,
    grace: str | timedelta = "1 hour",
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> metadata_commits.Expired:
    """Expire old versions of a dataset, and remove the files that only expired versions need.

    A version expires if it is neither one of the newest ``versions`` versions nor younger than
    ``older_than``. The newest version never expires. An expired version can no longer be opened or restored.

    The files of an expired version are removed later, so that readers that have already planned to read the
    version can finish: the first call of `expire` or `cleanup` after the grace period removes these files.

    Parameters
    ----------
    path : str or path-like
        The directory of the dataset.
    versions : int, optional
        The number of versions to keep. The versions that `expire` itself creates are not counted. By default,
        only the age of a version decides.
    older_than : str or timedelta, optional
        The age at which a version expires, for example ``"7 days"``. The age is the time since the version
        was created, by the clock of the store. By default, only the number of versions decides.
    grace : str or timedelta, default "1 hour"
        The time for which the files of an expired version stay. The grace period must be longer than the
        longest read of the dataset.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the path. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Returns
    -------
    Expired
        A named tuple of the newest snapshot (``snapshot``), the numbers of the versions that the call expired
        (``versions``), the number of data files that the call removed (``files``), and the stored size of
        these files (``bytes``). If no version expires, nothing is committed.

    Raises
    ------
    FileNotFoundError
        If the directory has no snapshot.
    OSError
        If files cannot be removed. The versions may have expired nevertheless, and another call removes the
        files.
    TFRecordError
        If neither ``versions`` nor ``older_than`` is passed, or if a snapshot is damaged.
    DestinationError
        If ``path`` lies inside another dataset.

    See Also
    --------
    restore : Make an older version the newest version.
    cleanup : Remove the files of interrupted writes.

    Examples
    --------
    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan"]}, npartitions=2)
    >>> for _ in range(4):
    ...     _ = dask_tfrecord.to_tfrecord(ddf, "people", append=True)
    >>> dask_tfrecord.expire("people", versions=2).versions
    (1, 2)
    >>> dask_tfrecord.Snapshot.history("people")["version"].tolist()
    [3, 4, 5]
    """
    count = arguments.count("versions", versions)
    age = None if older_than is None else arguments.duration("older_than", older_than)
    wait = arguments.duration("grace", grace)
    if count is None and age is None:
        problem = "neither versions= nor older_than= says which versions expire"
        raise TFRecordError(problem, 'pass versions=10 or older_than="7 days"')
    store = _dataset(path, storage_options, filesystem, "expire")
    done = metadata_commits.expire_versions(store, count, age, wait)
    what = f"expired {len(done.versions)} versions, removed {done.files} files, {done.bytes} bytes"
    logger.info("%s: version %d: %s", store.public(), done.snapshot.number, what)
    return done


@public_function
def restore(
    path: PathLike,
    version: int,
    *,
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> Snapshot:
    """Make an older version of a dataset the newest version.

    The new version has the rows, the columns and the ``custom_metadata`` of the older version. No data file
    is read or written. The versions in between are kept, so a `restore` can be undone by another `restore`.

    Parameters
    ----------
    path : str or path-like
        The directory of the dataset.
    version : int
        The version to restore. `Snapshot.history` lists the versions. If the version is the newest version,
        nothing is committed.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the path. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Returns
    -------
    Snapshot
        The newest snapshot.

    Raises
    ------
    FileNotFoundError
        If the directory has no snapshot, or if the dataset does not have this version. The error lists the
        versions of the dataset.
    CorruptRecordError
        If a file of the version is missing, or has another size than in the snapshot.
    FileChangedError
        If another file has taken the path of a file of the version, or if the version expires during the
        call.
    ConcurrentWriteError
        If another write changes the rows of the dataset at the same time.
    DestinationError
        If ``path`` lies inside another dataset.

    See Also
    --------
    expire : Expire old versions.
    Snapshot.history : List the versions of a dataset.

    Examples
    --------
    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan"]}, npartitions=2)
    >>> first = dask_tfrecord.to_tfrecord(ddf, "people")
    >>> second = dask_tfrecord.to_tfrecord(ddf, "people", append=True)
    >>> dask_tfrecord.restore("people", 1)
    Snapshot(2 files, 2 records, 71 bytes, columns: name)
    >>> dask_tfrecord.Snapshot.history("people")[["version", "mode", "details", "records"]]
       version     mode    details  records
    0        1   create       <NA>        2
    1        2   append       <NA>        4
    2        3  restore  version 1        2
    """
    number = arguments.number("version", version)
    store = _dataset(path, storage_options, filesystem, "restore")
    newest = metadata_commits.restore_version(store, number)
    logger.info("%s: version %d: restored version %d", store.public(), newest.number, number)
    return newest


@public_function
def exists(
    path: PathLike, *, storage_options: dict[str, Any] | None = None, filesystem: Filesystem = None
) -> bool:
    """Return True if a path holds data, so that `to_tfrecord` would refuse to write there.

    Parameters
    ----------
    path : str or path-like
        The directory or file to check.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the path. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Returns
    -------
    bool
        True if the path is a file, a dataset (even without rows), or a directory with visible files of any
        kind. False if the path does not exist, or if the directory holds only files of a write that is not
        committed.

    See Also
    --------
    cleanup : Remove the files of interrupted writes.

    Examples
    --------
    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> dask_tfrecord.exists("people")
    False
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan"]}, npartitions=2)
    >>> dask_tfrecord.to_tfrecord(ddf, "people")
    Snapshot(2 files, 2 records, 71 bytes, columns: name)
    >>> dask_tfrecord.exists("people")
    True
    """
    store = Store.at(path, storage_options, filesystem)
    return bool(versions(store) or visible_files(store) or store.fs.isfile(store.root))


@public_function
def find_dataset(
    path: PathLike, *, storage_options: dict[str, Any] | None = None, filesystem: Filesystem = None
) -> str | None:
    """Return the directory of the dataset that a path belongs to.

    Do not store files of other tools in the returned directory, because reads of the dataset would then
    raise.

    Parameters
    ----------
    path : str or path-like
        The directory or file whose dataset is searched. The path itself need not exist.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the path. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Returns
    -------
    str or None
        The path itself, or the directory above the path, that has a snapshot. The result is None if no such
        directory has a snapshot, or if the path is in a hidden directory of a dataset.

    Examples
    --------
    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan"], "field": ["logic", "logic"]}, npartitions=2)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "people", partition_on="field")
    >>> dask_tfrecord.find_dataset("people/field=logic").rpartition("/")[2]
    'people'
    >>> dask_tfrecord.find_dataset("elsewhere") is None
    True
    """
    store = Store.at(path, storage_options, filesystem)
    found = store if versions(store) else parent_dataset(store)
    return None if found is None else found.public()


@public_function
def cleanup(
    path: PathLike,
    *,
    older_than: str | timedelta = "1 day",
    dry_run: bool = False,
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> list[str]:
    """Remove the files of interrupted writes, for example after the client was killed.

    `cleanup` removes staged files, and data files that this library wrote and that no snapshot lists.
    `cleanup` also removes files that a committed overwrite should have removed, and column files that no
    snapshot lists. Files of versions that are not expired, and files of other tools, are
    kept. The files of versions that `expire` has expired are removed if the versions expired more than
    ``older_than`` ago. On S3, `cleanup` also aborts incomplete multipart uploads.

    Parameters
    ----------
    path : str or path-like
        The directory of the dataset.
    older_than : str or timedelta, default "1 day"
        The minimum age of the newest file of a write, by the clock of the store. If a file of a write is
        newer, all files of the write are kept, because the write may still be running. If writes may be
        running, pass a duration that is longer than their slowest task. If reads of expired versions may be
        running, pass a duration that is longer than the slowest read.
    dry_run : bool, default False
        If True, remove nothing and return the files that would be removed.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the path. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Returns
    -------
    list of str
        The removed files, as paths relative to ``path``. Files that a committed overwrite should have removed
        are not in this list. The list is empty if the directory does not exist.

    Raises
    ------
    DestinationError
        If ``path`` is a file, or if ``path`` lies inside another dataset.

    See Also
    --------
    exists : Find out if a directory holds data.

    Examples
    --------
    After a finished write, `cleanup` finds no file to remove:

    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan"]}, npartitions=2)
    >>> dask_tfrecord.to_tfrecord(ddf, "people")
    Snapshot(2 files, 2 records, 71 bytes, columns: name)
    >>> dask_tfrecord.cleanup("people", older_than="6 hours")
    []
    """
    store = destination(path, storage_options, filesystem)
    check_bucket(store)
    if store.fs.isfile(store.root):
        raise DestinationError("is a file, not a directory", "pass the dataset's directory")
    dry_run = arguments.flag("dry_run", dry_run)
    refuse_inside_dataset(store, "cleanup")
    age = arguments.duration("older_than", older_than)
    try:
        now = time_of_store(store) if store.names(METADATA_DIRECTORY) else datetime.now(UTC)
    except PermissionError:
        if not dry_run:
            raise
        now = datetime.now(UTC)
    before = now - age
    removed = remove_orphans(store, before, dry_run=dry_run)
    unneeded = metadata_commits.remove_unneeded(store, before, dry_run=dry_run).paths
    removed = sorted({*removed, *map(store.relative, unneeded)})
    action = "would remove" if dry_run else "removed"
    logger.info("%s: cleanup %s %d files", store.public(), action, len(removed))
    return removed


@public_function
def repair(
    path: PathLike,
    *,
    dry_run: bool = False,
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> metadata_commits.Repaired:
    """Drop the files that were removed from outside from the list of files of a dataset.

    If files of a dataset were removed by other means than this library, such as `rm` or a lifecycle rule of a
    store, reads and writes of the dataset raise. `repair` accepts the loss: it commits a version without the
    missing files and their rows. If no file is missing, `repair` commits nothing.

    `repair` opens no data file, and neither drops nor changes a file that exists. Rows that other writes
    append in the meantime are kept. The versions before this one are kept, so if the missing files are put
    back, `restore` makes their rows part of the dataset again.

    Parameters
    ----------
    path : str or path-like
        The directory of the dataset.
    dry_run : bool, default False
        If True, change nothing, and return the files that are missing.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the path. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Returns
    -------
    Repaired
        A named tuple of the newest snapshot (``snapshot``), and of a dict that maps the path of each missing
        file to the number of lost rows (``lost``).

    Raises
    ------
    FileNotFoundError
        If the directory has no snapshot.
    ConcurrentWriteError
        If another process removes the dataset in the meantime.

    See Also
    --------
    delete : Delete the rows that pass filters.
    restore : Make an older version the newest version.
    verify : Report missing, damaged and changed files.

    Examples
    --------
    A partition directory is removed by hand:

    >>> import shutil
    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan"], "field": ["logic", "codes"]}, npartitions=1)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "people", partition_on="field")
    >>> shutil.rmtree("people/field=codes")
    >>> sum(dask_tfrecord.repair("people").lost.values())
    1
    >>> dask_tfrecord.read_tfrecord("people")["name"].compute().tolist()
    ['Ada']
    """
    dry_run = arguments.flag("dry_run", dry_run)
    store = _dataset(path, storage_options, filesystem, "repair")
    done = metadata_commits.drop_missing_files(store, dry_run=dry_run)
    if done.lost:
        action = "repair would drop" if dry_run else f"version {done.snapshot.number}: repair dropped"
        files, rows = len(done.lost), sum(done.lost.values())
        root = store.public()
        logger.warning("%s: %s %d missing files with %d rows", root, action, files, rows)
    return done
