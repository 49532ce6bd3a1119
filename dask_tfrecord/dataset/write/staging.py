"""Use the staging directory of a run: list the files that a commit replaces, and remove or move them
afterwards.
"""

import json
import logging
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from dask_tfrecord.dataset.snapshot.model import Snapshot, find_snapshot, listed_files
from dask_tfrecord.dataset.snapshot.names import (
    KEPT,
    MOVED,
    REPLACED,
    STAGING,
    SUCCESS,
    open_runs,
    staged,
    stored_paths,
)
from dask_tfrecord.dataset.snapshot.versions import newest_number
from dask_tfrecord.dataset.snapshot.visibility import has_committed, intact_snapshot, unfinished_commits
from dask_tfrecord.files.storage.paths import parent_of
from dask_tfrecord.files.storage.store import Store

logger = logging.getLogger(__name__)

# The number of concurrent requests if each file needs one request.
_THREADS = 16


def note_replaced(store: Store, run: str, removed: Sequence[str], kept: Sequence[str] = ()) -> None:
    """Store the lists of files to remove, and of files to keep for earlier versions, after the commit.

    A later process can then remove and move these files.
    """
    for name, paths in ((REPLACED, removed), (MOVED, kept)):
        if paths:
            with store.create(store.join(staged(run, name))) as file:
                file.write(json.dumps(paths).encode())


def remove_staging(store: Store, run: str) -> None:
    """Remove the staging directory of a run and the files in it."""
    store.remove_tree(f"{STAGING}/{run}")


def finish_commit(store: Store, run: str, listed: Collection[str] = ()) -> None:
    """Finish a commit: remove the replaced files, or move them to the directory of kept files, create
    ``_SUCCESS``, and remove the staging directory.

    The snapshot of the commit must exist. Files in ``listed`` stay, because the dataset still lists them.
    """
    move_files(store, stored_paths(store, staged(run, MOVED)))
    replaced = stored_paths(store, staged(run, REPLACED))
    store.remove(store.join(path) for path in replaced if path not in listed)
    close_run(store, run)


def close_run(store: Store, run: str) -> None:
    """Create ``_SUCCESS``, and remove the staging directory of a run that replaces no files any more."""
    store.touch(store.join(SUCCESS))
    remove_staging(store, run)


def move_files(store: Store, paths: Sequence[str]) -> None:
    """Move each file to its path if the newest snapshot lists the file, or to the directory of kept files.

    If another commit follows in the meantime, its snapshot decides.
    """
    newest = find_snapshot(store) if paths else None
    while newest is not None:
        store.fs.invalidate_cache()
        move = partial(_move_file, store, listed_files(newest))
        with ThreadPoolExecutor(1 if store.local else _THREADS) as pool:
            list(pool.map(move, paths))
        if newest_number(store) <= newest.number:
            break
        newest = find_snapshot(store)
    kept = (parent_of(f"{KEPT}/{path}") for path in paths)
    store.remove_empty({*map(store.join, kept), *(store.join(parent_of(path)) for path in paths)})


def _move_file(store: Store, listed: Collection[str], path: str) -> None:
    """Move a file to its path if the newest snapshot lists the file, or to the directory of kept files."""
    place, kept = store.join(path), store.join(f"{KEPT}/{path}")
    with suppress(FileNotFoundError):  # the file is there already, or another process has moved the file
        if path not in listed:
            store.place(place, kept)
        elif store.renames:
            store.place(kept, place)
        # A move is a copy here. If a process that moves the file to the other place deleted its source late,
        # the file would be lost. Therefore, the kept file stays until its versions expire.
        elif store.fs.exists(kept) and not store.fs.exists(place):
            store.copy(kept, place)


def finish_newest(store: Store, *, running: str = "", known: Snapshot | None = None) -> None:
    """Finish all commits that were interrupted after their snapshot was created.

    If the newest snapshot is damaged or missing, do nothing.

    Parameters
    ----------
    store : Store
        The root of the dataset.
    running : str
        The id of the caller's run, which is not finished. The id is empty if the caller does not write.
    known : Snapshot, optional
        A version that shows which open runs have committed. If it shows none, nothing is read. By default,
        the newest version is read if there is an open run.
    """
    others = [run for run in open_runs(store) if run != running]
    if not any(known is None or has_committed(known, run) for run in others):
        return  # without this test, a large snapshot would be parsed without need
    newest = intact_snapshot(store)
    if newest is None:
        return
    for run in unfinished_commits(store, newest):
        if run != running:
            logger.info("%s: finish the interrupted cleanup of write %s", store.public(), run[:8])
            finish_commit(store, run, listed_files(newest))
