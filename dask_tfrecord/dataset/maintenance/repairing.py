"""Drop files that were removed from outside from the list of files of a dataset."""

from typing import NamedTuple

from dask_tfrecord.dataset.maintenance.rewriting import commit, plan_run
from dask_tfrecord.dataset.snapshot.file_table import identities
from dask_tfrecord.dataset.snapshot.model import Snapshot, open_version
from dask_tfrecord.dataset.snapshot.visibility import missing_files
from dask_tfrecord.dataset.write.conflicts import Group
from dask_tfrecord.files.storage.store import Store


class Repaired(NamedTuple):
    """What a repair did.

    Attributes
    ----------
    snapshot : Snapshot
        The newest snapshot after the repair.
    lost : dict of str to int
        The path of each missing file, relative to the directory of the dataset, and the number of rows that
        the file had.
    """

    snapshot: Snapshot
    lost: dict[str, int]


def drop_missing_files(store: Store, *, dry_run: bool) -> Repaired:
    """Commit a version without the missing files of the newest version. If no file is missing, or for a dry
    run, commit nothing.
    """
    snapshot = open_version(store, None)
    while len(rows := missing_files(store, snapshot)):
        newest = open_version(store, None)
        if newest.number == snapshot.number:
            break
        snapshot = newest  # another write may have replaced the files that seemed to be missing
    lost = dict(zip(rows["path"].to_pylist(), rows["records"].to_pylist(), strict=True))
    if lost and not dry_run:
        run = plan_run(store, snapshot, "repair", keep_versions=True, details=f"{len(lost)} missing files")
        snapshot = commit(run, (), [Group((file,), ()) for file in identities(rows)])
    return Repaired(snapshot, lost)
