"""Check if a path holds data (`exists`), remove files of interrupted writes (`cleanup`), and commit the loss
of files that were removed from outside (`repair`).
"""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from dask_tfrecord import arguments
from dask_tfrecord.dataset.maintenance.expiring import remove_unneeded
from dask_tfrecord.dataset.maintenance.repairing import Repaired, drop_missing_files
from dask_tfrecord.dataset.snapshot.names import METADATA_DIRECTORY
from dask_tfrecord.dataset.snapshot.versions import versions
from dask_tfrecord.dataset.snapshot.visibility import visible_files
from dask_tfrecord.dataset.write.destination import destination
from dask_tfrecord.dataset.write.neighbours import parent_dataset, refuse_inside_dataset
from dask_tfrecord.dataset.write.orphans import remove_orphans, time_of_store
from dask_tfrecord.errors import DestinationError
from dask_tfrecord.files.storage.filesystem import Filesystem
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.files.storage.not_found import check_bucket
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.public_functions import public_function

logger = logging.getLogger(__name__)


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
    arguments.flags(dry_run=dry_run)
    refuse_inside_dataset(store, "cleanup")
    age = arguments.duration("older_than", older_than)
    try:
        now = time_of_store(store) if store.names(METADATA_DIRECTORY) else datetime.now(UTC)
    except PermissionError:
        if not dry_run:
            raise
        now = datetime.now(UTC)
    before = now - age
    removed = remove_orphans(store, before, dry_run=bool(dry_run))
    unneeded = remove_unneeded(store, before, dry_run=bool(dry_run)).paths
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
) -> Repaired:
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
    arguments.flags(dry_run=dry_run)
    store = destination(path, storage_options, filesystem)
    refuse_inside_dataset(store, "repair")
    done = drop_missing_files(store, dry_run=bool(dry_run))
    if done.lost:
        action = "repair would drop" if dry_run else f"version {done.snapshot.number}: repair dropped"
        files, rows = len(done.lost), sum(done.lost.values())
        root = store.public()
        logger.warning("%s: %s %d missing files with %d rows", root, action, files, rows)
    return done
