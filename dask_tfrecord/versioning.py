"""Manage the versions of a dataset: `expire` forgets old versions, and `restore` brings a version back."""

import logging
from datetime import timedelta
from typing import Any

from dask_tfrecord import arguments
from dask_tfrecord.dataset.maintenance.expiring import Expired, expire_versions
from dask_tfrecord.dataset.maintenance.restoring import restore_version
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.destination import destination
from dask_tfrecord.dataset.write.neighbours import refuse_inside_dataset
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.filesystem import Filesystem
from dask_tfrecord.files.storage.listing import PathLike, with_trailing_slash
from dask_tfrecord.public_functions import public_function

logger = logging.getLogger(__name__)


@public_function
def expire(
    path: PathLike,
    *,
    versions: int | None = None,
    older_than: str | timedelta | None = None,
    grace: str | timedelta = "1 hour",
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> Expired:
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
    store = with_trailing_slash(destination(path, storage_options, filesystem))
    refuse_inside_dataset(store, "expire")
    done = expire_versions(store, count, age, wait)
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
    number = arguments.count("version", version)
    if number is None:
        raise TFRecordError("version=None is not the number of a version", "pass a number")
    store = with_trailing_slash(destination(path, storage_options, filesystem))
    refuse_inside_dataset(store, "restore")
    newest = restore_version(store, number)
    restored = f"version {newest.number}: restored version {number}"
    logger.info("%s: %s", store.public(), restored)
    return newest
