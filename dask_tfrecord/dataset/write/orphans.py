"""Find and remove the files of interrupted writes, but never files that a snapshot lists."""

import errno
import logging
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from uuid import uuid4

from dask_tfrecord.dataset.listing import list_directory
from dask_tfrecord.dataset.names import (
    COLUMNS,
    KEPT,
    METADATA_DIRECTORY,
    STAGING,
    closed_column_files,
    open_runs,
    run_of_column_file,
    snapshot_path,
)
from dask_tfrecord.dataset.snapshot.head import Head, kept_versions
from dask_tfrecord.dataset.snapshot.model import listed_files
from dask_tfrecord.dataset.snapshot.versions import listed_by, versions
from dask_tfrecord.dataset.write.transaction import move_files, remove_staging
from dask_tfrecord.files.entry import is_part, run_of
from dask_tfrecord.storage.failures import is_full
from dask_tfrecord.storage.found_files import FoundFiles
from dask_tfrecord.storage.paths import name_of, parent_of
from dask_tfrecord.storage.store import Store
from dask_tfrecord.storage.uploading import Upload, abort, unfinished_uploads

logger = logging.getLogger(__name__)

# Matches the temporary name of an unfinished file. Group 1 of the match is the file's final name.
_TEMPORARY_NAME = re.compile(r"\.(.+)\.[0-9a-f]{32}")

# Matches the names of files that commits and `export` write into the directories of data files, or into
# `_idx`.
_NAME_BESIDE_DATA = re.compile(r"_SUCCESS|features\.json|dataset_info\.json|schema\.pbtxt|.+\.idx")


def remove_orphans(
    store: Store, listing: FoundFiles, before: datetime, *, dry_run: bool = False
) -> list[str]:
    """Remove the files of interrupted runs that have been inactive since the time ``before``.

    ``listing`` is a listing of all files of the directory. If one file of a run is newer than ``before``, no
    file of the run is removed. Return the paths of the removed files, relative to the root. For an aborted
    upload, return the path of the file that the upload would have created. If ``dry_run`` is True, return the
    paths without removing or moving any file.
    """
    closed = closed_column_files(store, listing)
    runs = open_runs(store)
    # Read the versions after listing the files, so that files of a new commit do not seem unlisted.
    listed = listed_by(store, versions(store), kept_versions)
    if not dry_run:
        _move_to_their_places(store, listing, listed)
    removed: list[str] = []
    for run, unlisted in _unlisted_files(store, listing, runs, listed).items():
        directory = f"{STAGING}/{run}"
        staged = listing.below(directory)
        if last_modified(store, [*unlisted, *staged] or [store.join(directory)], listing) <= before:
            if not dry_run:
                count, root = len(unlisted) + len(staged), store.public()
                logger.info("%s: remove %d files of the interrupted write %s", root, count, run[:8])
                store.remove(unlisted)
                remove_staging(store, run)
            removed += [*unlisted, *staged]
    stray = [*_stray_files(store, listing), *map(store.join, sorted({*closed} - listed))]
    files = [path for path in stray if last_modified(store, [path], listing) <= before]
    uploads = _uploads(store, before)
    if not dry_run:
        store.remove(files)
        for upload in uploads:
            abort(store, upload)
    removed += [*files, *(upload.path for upload in uploads)]
    return sorted(set(map(store.relative, removed)))


def _move_to_their_places(store: Store, listing: FoundFiles, listed: Collection[str]) -> None:
    """Move files listed only by older versions to the directory of kept files.

    Move files of the newest version back to their original paths. Commits normally move the files. A file is
    at the wrong path only if the list of files that a commit should move was lost. ``listing`` is a listing
    of all files of the directory, and contains the new paths afterwards. ``listed`` contains the files of all
    versions.
    """
    present, kept = ({*list_directory(one).names} for one in (listing, listing.inside(KEPT)))
    newest = Head.read(store, intact=True, reads_files=True).snapshot
    if newest is not None:
        current = listed_files(newest)
        old = sorted(present.intersection(listed).difference(current))
        back = sorted(current.difference(present).intersection(kept))
        move_files(store, [*old, *back])
        for path in old:
            listing.move(path, f"{KEPT}/{path}")
        for path in back:
            listing.move(f"{KEPT}/{path}", path)


def _unlisted_files(
    store: Store, listing: FoundFiles, runs: Sequence[str], listed: Collection[str]
) -> dict[str, list[str]]:
    """Map the id of each run to the full paths of the run's files that no snapshot lists.

    The result does not include files in the staging directory. ``listed`` contains paths relative to the
    root. The result contains the open runs ``runs``, and those that the newest version knows: a task of a
    committed run may have uploaded a file after the commit. If a data file's name contains the id of any
    other run, the file was copied here. A file in a directory that is not a partition directory may belong to
    a copy of the dataset.
    """
    columns = [f"{COLUMNS}/{name}" for name in listing.names(COLUMNS)]
    present = list_directory(listing).names
    parts = [path for path in (*present, *columns) if is_part(path) or run_of_column_file(path)]
    unlisted: dict[str, list[str]] = {run: [] for run in runs}
    newest = Head.read(store, intact=True, reads_files=True).snapshot
    committed: set[str | None] = set()
    if newest is not None:
        committed.update(commit.run for commit in newest.commits())
        committed.update(map(run_of, newest.file_list.names))
    for path in parts:
        made_by = run_of(path) or run_of_column_file(path) or ""
        is_ours = made_by in unlisted or (made_by in committed and _is_in_place(path))
        if is_ours and path not in listed:
            unlisted.setdefault(made_by, []).append(store.join(path))
    return unlisted


def _is_in_place(path: str) -> bool:
    directory = parent_of(path)
    return directory in ("", COLUMNS) or all("=" in name for name in directory.split("/"))


def last_modified(store: Store, paths: Iterable[str], found: FoundFiles | None = None) -> datetime:
    """Return the newest modification time of the files, or the current time if one is unknown. ``found`` is
    an existing listing of the files.
    """
    now = datetime.now(UTC)
    try:
        times = [_modified(store, path, found) for path in paths]
    # A run of unknown age counts as active, so the files of the run are kept. The age of a run is unknown if
    # a file was removed after it was listed, or if a path is a directory on an object store, which has no
    # modification time. On a store without modification times, fsspec's base class of filesystems raises
    # NotImplementedError.
    except (FileNotFoundError, IsADirectoryError, NotImplementedError):
        return now
    except OSError as error:
        if error.errno != errno.ELOOP:  # a link that leads in a loop has no age, either
            raise
        return now
    return max((time if time.tzinfo else time.replace(tzinfo=UTC) for time in times), default=now)


def _modified(store: Store, path: str, found: FoundFiles | None) -> datetime:
    info = {} if found is None else found.infos.get(path, {})
    times = [info[key] for key in ("LastModified", "last_modified", "mtime") if key in info]
    if times and isinstance(times[0], float):
        return datetime.fromtimestamp(times[0], UTC)
    return times[0] if times and isinstance(times[0], datetime) else store.fs.modified(path)


def time_of_store(store: Store) -> datetime:
    """Return the current time by the clock of the store, which sets the modification times of files.

    On a full disk, return the time of the newest snapshot. It is not later than the current time, so files
    are kept too long rather than not long enough.
    """
    path = store.join(f"{METADATA_DIRECTORY}/.clock.{uuid4().hex}")
    try:
        store.write_file(path, b"", durable=False)
        return last_modified(store, [path])
    except OSError as error:
        if not is_full(error) or not (numbers := versions(store)):
            raise
        return last_modified(store, [store.join(snapshot_path(numbers[-1]))])
    finally:
        store.remove([path])


def _stray_files(store: Store, listing: FoundFiles) -> list[str]:
    """Return the paths of incomplete files that interrupted writes of this library have left."""
    metadata, staging = store.join(f"{METADATA_DIRECTORY}/"), store.join(f"{STAGING}/")
    paths = listing.infos if store.can_rename else listing.below(METADATA_DIRECTORY)
    stray = []
    for path in paths:
        if temporary := _TEMPORARY_NAME.fullmatch(name_of(path)):
            is_metadata = path.startswith(metadata) and not path.startswith(staging)
            if is_metadata or is_part(temporary[1]) or _NAME_BESIDE_DATA.fullmatch(temporary[1]):
                stray.append(path)
    return sorted(stray)


def _uploads(store: Store, before: datetime) -> list[Upload]:
    """Return the incomplete multipart uploads of data and metadata files that started at or before the time
    ``before``.
    """
    metadata = store.join(f"{METADATA_DIRECTORY}/")
    old = [upload for upload in unfinished_uploads(store) if upload.started <= before]
    return [upload for upload in old if is_part(upload.path) or upload.path.startswith(metadata)]
