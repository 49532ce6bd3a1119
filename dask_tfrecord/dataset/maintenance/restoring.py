"""Make an older version of a dataset the newest version again. No data file is read or written."""

from typing import Any

from dask_tfrecord.dataset.maintenance.rewriting import commit, plan_run
from dask_tfrecord.dataset.snapshot.model import Snapshot, open_version
from dask_tfrecord.dataset.snapshot.visibility import snapshot_of_version
from dask_tfrecord.dataset.write.conflicts import planned_rows
from dask_tfrecord.errors import CorruptRecordError
from dask_tfrecord.files.storage.store import Store


def restore_version(store: Store, version: int) -> Snapshot:
    """Commit the files, columns and all other properties of a version again.

    Returns
    -------
    Snapshot
        The newest snapshot. If the version is the newest version, nothing is committed.

    Raises
    ------
    FileNotFoundError
        If the dataset does not have this version.
    CorruptRecordError
        If a file of the version is missing or has another size than in the snapshot.
    ConcurrentWriteError
        If another write changes the rows of the dataset at the same time.
    """
    newest = open_version(store, None)
    try:
        snapshot_of_version(store, version)
    except CorruptRecordError as error:
        raise error.replaced(advice="put the file back from a copy", remedies=()) from None
    if version == newest.number:
        return newest
    planned = planned_rows(store, "restore", newest.number)
    how: dict[str, Any] = {"details": f"version {version}", "version": version, "planned": planned}
    return commit(plan_run(store, newest, "restore", keep_versions=True, **how), ())
