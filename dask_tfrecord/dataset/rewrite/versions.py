"""Commit versions without new data files: restore an older version, drop lost files, or expire old versions.

`expire_versions` also removes the files that only expired versions list.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow.compute as pc

from dask_tfrecord.dataset.names import METADATA_DIRECTORY, closed_column_files, snapshot_path, staged
from dask_tfrecord.dataset.rewrite.compact import commit, plan_run
from dask_tfrecord.dataset.snapshot.check import find_newest_files, find_without_listing, first_lost
from dask_tfrecord.dataset.snapshot.head import Head, kept_versions, open_version
from dask_tfrecord.dataset.snapshot.list_files import open_list
from dask_tfrecord.dataset.snapshot.model import Snapshot, listed_files
from dask_tfrecord.dataset.snapshot.moved_files import of_version
from dask_tfrecord.dataset.snapshot.stored_files import identities
from dask_tfrecord.dataset.snapshot.versions import (
    LostListError,
    listed_by,
    needed_lists,
    open_version_files,
    versions,
)
from dask_tfrecord.dataset.snapshot.visibility import kept_files
from dask_tfrecord.dataset.write.operations import Expire, Group, Repair, Restore, planned_rows
from dask_tfrecord.dataset.write.orphans import last_modified, remove_orphans, time_of_store
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import finish_newest
from dask_tfrecord.files.file_list import FileList
from dask_tfrecord.storage.failures import is_full
from dask_tfrecord.storage.found_files import FoundFiles
from dask_tfrecord.storage.paths import name_of
from dask_tfrecord.storage.store import Store


def restore_version(store: Store, version: int) -> Snapshot:
    """Commit a new version with the files, columns and all other properties of an older version.

    If ``version`` is the newest version, commit nothing. Return the newest snapshot. Raise FileNotFoundError
    if there is no such version. Raise CorruptRecordError if a file that the newest version does not list is
    missing, or has a different size. Raise ConcurrentWriteError if another write changes the rows of the
    dataset at the same time.
    """
    newest, older = (open_version(store, number, reads_files=True) for number in (None, version))
    if version == newest.number:
        return newest
    returned = older.file_list.minus(newest.file_list)
    if (error := first_lost(store, find_without_listing(store, returned.names), returned)) is not None:
        open_version(store, version)  # this call raises an error if the version has expired
        raise of_version(error, version).replaced(advice="put the file back from a copy", remedies=())
    planned = planned_rows(newest)
    return commit(plan_run(store, newest), Restore(planned, version=version))


def drop_missing_files(store: Store, *, dry_run: bool) -> tuple[Snapshot, dict[str, int]]:
    """Commit a version that no longer lists the missing files of the newest version.

    A dry run commits nothing. If no file is missing, commit nothing. List the directory once. Return the
    newest snapshot, and the number of rows of each missing file. The paths are relative to the root.
    """
    compared = find_newest_files(store, open_version(store, None))
    snapshot, files = compared.snapshot, compared.listed.filter(compared.is_missing)
    lost = dict(zip(files.paths, files["records"].to_pylist(), strict=True))
    if lost and not dry_run:
        groups = tuple(Group((file,), ()) for file in identities(files))
        snapshot = commit(plan_run(store, snapshot), Repair(groups))
    return snapshot, lost


# Version metadata is read in batches of this many versions.
_BATCH = 100


class Unneeded(NamedTuple):
    """The files that only expired versions need.

    ``data`` lists data files in the directory of kept files. ``metadata`` contains the full paths of
    snapshots and column files.
    """

    data: FileList
    metadata: list[str]

    @property
    def paths(self) -> list[str]:
        return [*self.data.paths, *self.metadata]


def expire_versions(
    store: Store, versions_to_keep: int | None, older_than: timedelta | None, grace: timedelta
) -> tuple[Snapshot, dict[str, Any]]:
    """Expire versions, and remove the files of versions that expired more than ``grace`` ago.

    Return the newest snapshot, and the details that `Dataset.expire` documents.
    Keep the ``versions_to_keep`` newest versions (1 if None), not counting versions that `expire` created.
    Keep all versions created less than ``older_than`` ago. List the directory of metadata once.
    """
    newest = open_version(store, None, reads_files=True)
    listing = FoundFiles(store, METADATA_DIRECTORY)
    now = time_of_store(store)
    stored = [number for number in versions(store) if newest.oldest <= number <= newest.number]
    kept = _newest_states(store, stored, versions_to_keep or 1)
    if older_than is not None:
        times = creation_times(store, stored, listing)
        kept += [number for number in stored if times[number] >= now - older_than][:1]
    expired = [number for number in stored if number < min(kept)]
    removed: list[FileList] = []
    if expired:
        run = plan_run(store, newest)
        newest = _commit_expiry(run, listing, expired, min(kept), grace, removed)
        expired = expired if newest.run == run.run else []
        now = time_of_store(store)
    removed.append(remove_unneeded(store, listing, now - grace).data)
    size = sum(pc.sum(files["bytes"]).as_py() or 0 for files in removed)
    files = sum(map(len, removed))
    return newest, {"expired_versions": expired, "removed_files": files, "removed_bytes": size}


def _commit_expiry(
    run: WriteRun,
    listing: FoundFiles,
    expired: Sequence[int],
    oldest: int,
    grace: timedelta,
    removed: list[FileList],
) -> Snapshot:
    """Commit that the versions ``expired``, which are those before ``oldest``, are no longer readable.

    On a full disk, first remove what earlier calls of `expire` have left. If that is not enough, and no
    reader needs time to finish, remove the snapshots of the expired versions before the commit: a version
    cannot be read without its snapshot. Add the data files that this function removes to ``removed``.
    """
    store = run.store

    def attempt() -> Snapshot:
        return commit(run, Expire(oldest))

    def free() -> None:
        removed.append(remove_unneeded(store, listing, time_of_store(store) - grace).data)

    try:
        return attempt()
    except OSError as error:
        if not is_full(error):
            raise
    free()
    try:
        return attempt()
    except OSError as error:
        if not is_full(error):
            raise
        if grace:
            error.add_note('expire(grace="0 s") first removes the files of the versions that expire')
            raise
    files = open_version_files(store, [number for number in versions(store) if number >= oldest])
    store.remove(store.join(snapshot_path(one)) for one in {*expired} - needed_lists(files.values()))
    free()
    return attempt()


def creation_times(store: Store, numbers: Iterable[int], listing: FoundFiles) -> Mapping[int, datetime]:
    """Map each version to its creation time: the modification time of the snapshot in the store.

    ``listing`` is a listing that contains the directory of metadata. No version gets an earlier time than the
    previous version, even if the store's clock was set back.
    """
    times: dict[int, datetime] = {}
    newest: datetime | None = None
    for number in numbers:
        time = last_modified(store, [store.join(snapshot_path(number))], listing)
        times[number] = newest = time if newest is None else max(newest, time)
    return times


def _newest_states(store: Store, stored: list[int], count: int) -> list[int]:
    """Return the ``count`` newest versions that `expire` did not create. If there are fewer such versions,
    return only the oldest version.
    """
    states: list[int] = []
    for end in range(len(stored), 0, -_BATCH):
        batch = stored[max(end - _BATCH, 0) : end]
        files = open_version_files(store, batch)  # an overwrite may have removed a version
        states += [one for one in reversed(batch) if one in files and files[one].metadata.mode != "expire"]
        if len(states) >= count:
            return states[:count]
    return stored[:1]


def clean_up(store: Store, before: datetime, *, dry_run: bool) -> list[str]:
    """Remove the files that interrupted writes, interrupted commits and expired versions have left.

    List the directory once. Leave the files of runs and versions that were active after the time ``before``.
    Return the paths of the removed files, relative to the root. A dry run removes nothing.
    """
    if not dry_run:
        finish_newest(store)
    listing = FoundFiles(store)
    removed = remove_orphans(store, listing, before, dry_run=dry_run)
    unneeded = remove_unneeded(store, listing, before, dry_run=dry_run).paths
    return sorted({*removed, *map(store.relative, unneeded)})


def remove_unneeded(
    store: Store, listing: FoundFiles, before: datetime, *, dry_run: bool = False
) -> Unneeded:
    """Remove redundant copies of files, and files needed only by versions that expired before the time
    ``before``.

    ``listing`` is a listing that contains the directory of metadata. It lacks the removed files afterwards.
    Return the removed files. If ``dry_run`` is True, remove nothing.
    """
    unneeded = unneeded_files(store, listing, before)
    newest = None
    if not store.can_rename:
        newest = Head.read(store, intact=True, reads_files=True).snapshot
    copies = None if newest is None else _second_copies(store, listing, newest, before)
    if not dry_run:
        store.remove(unneeded.paths)
        listing.remove(unneeded.paths)
    if newest is None or copies is None:
        return unneeded
    for path in () if dry_run else copies.paths:
        _remove_copy(store, path, newest)
    return unneeded._replace(data=FileList.joined([unneeded.data, copies]))


def _second_copies(store: Store, listing: FoundFiles, newest: Snapshot, before: datetime) -> FileList:
    """Return the kept files that also exist at their original paths in the newest version. Leave out kept
    files that were modified after ``before``.

    On object stores, `restore` leaves the kept file in place when it copies the file back.
    """
    kept = kept_files(store, listing)
    sizes = dict(zip(newest.file_list.paths, newest.file_list["bytes"].to_pylist(), strict=True))
    is_copy = []
    for name, path, size in zip(kept.names, kept.paths, kept["bytes"].to_pylist(), strict=True):
        present = None
        if sizes.get(name) == size and last_modified(store, [path], listing) <= before:
            with suppress(FileNotFoundError):
                present = store.info(store.join(name))["size"]
        is_copy.append(present == size)
    return kept.filter(np.array(is_copy, bool))


def _remove_copy(store: Store, path: str, newest: Snapshot) -> None:
    """Remove a kept file that also exists at its original path in the newest version.

    A commit that replaces the file at the original path first copies the file to ``path``, and then removes
    the original. If a newer version exists after ``path`` is removed, restore ``path`` from a backup, because
    the commit of that version may have relied on the file. If the process is killed, the backup stays in the
    staging directory until `cleanup` runs.
    """
    backup = store.join(staged(uuid4().hex, name_of(path)))
    store.copy(path, backup)
    store.remove_file(path)
    if Head.read(store, intact=True).number != newest.number and not store.has_file(path):
        store.copy(backup, path)
    store.remove_file(backup)


def unneeded_files(store: Store, listing: FoundFiles, before: datetime) -> Unneeded:
    """Return the files needed only by versions that expired before the time ``before``.

    ``listing`` is a listing that contains the directory of metadata.
    """
    kept = kept_files(store, listing)
    closed = closed_column_files(store, listing)
    # Versions are listed last, so that no file is newer than the newest of them.
    numbers = versions(store)
    nothing = Unneeded(kept.slice(0, 0), [])
    if not len(kept) and [*kept_versions(store)] == numbers:
        return nothing
    times = creation_times(store, numbers, listing)
    try:
        first = max((number for number in numbers if times[number] <= before), default=0)
        oldest = open_list(store, first).metadata.oldest if first else 0
        if not len(kept) and oldest <= min(numbers):
            return nothing
        needed = {number for number in numbers if number >= oldest}
        closed_files = {*closed}.difference(listed_files(Head.read(store).snapshot))
        files = open_version_files(store, sorted(needed))
        if len(files) < len(needed):  # a concurrent overwrite has removed a version
            return nothing
        lists = needed_lists(files.values())
        listed = listed_by(store, sorted(needed), kept_versions) if len(kept) or closed_files else set()
    except (FileNotFoundError, LostListError) as error:
        if isinstance(error, LostListError) and max(versions(store), default=0) == numbers[-1]:
            raise
        return nothing  # a concurrent overwrite has removed a version
    is_unneeded = np.array([name not in listed for name in kept.names], bool)
    gone = [number for number in numbers if number not in needed | lists]
    metadata = [*map(snapshot_path, gone)]
    metadata += sorted(closed_files - listed)
    return Unneeded(kept.filter(is_unneeded), [store.join(path) for path in metadata])
