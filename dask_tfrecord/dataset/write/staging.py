"""Use the staging directory of a run: list the files that a commit replaces, and remove them afterwards."""

import json
import logging
from collections.abc import Collection, Sequence

from dask_tfrecord.dataset.snapshot.model import listed_files
from dask_tfrecord.dataset.snapshot.names import (
    REPLACED,
    STAGING,
    SUCCESS,
    open_runs,
    replaced_files,
    staged,
)
from dask_tfrecord.dataset.snapshot.visibility import intact_snapshot, unfinished_commits
from dask_tfrecord.files.storage.store import Store

logger = logging.getLogger(__name__)


def note_replaced(store: Store, run: str, paths: Sequence[str]) -> None:
    """Store the list of files to remove after the commit, so that a later process can remove the files."""
    with store.create(store.join(staged(run, REPLACED))) as file:
        file.write(json.dumps(paths).encode())


def remove_staging(store: Store, run: str) -> None:
    """Remove the staging directory of a run and the files in it."""
    store.remove_tree(f"{STAGING}/{run}")


def finish_commit(store: Store, run: str, kept: Collection[str] = ()) -> None:
    """Finish a commit: remove the replaced files, create ``_SUCCESS``, and remove the staging directory.

    The snapshot of the commit must exist. Files in ``kept`` are not removed, because the dataset still lists
    them.
    """
    store.remove(store.join(path) for path in replaced_files(store, run) if path not in kept)
    store.fs.pipe_file(store.join(SUCCESS), b"")
    remove_staging(store, run)


def finish_newest(store: Store, *, running: str = "") -> None:
    """Finish all commits that were interrupted after their snapshot was created.

    If the newest snapshot is damaged or missing, do nothing. ``running`` is the id of the caller's run, which
    is not finished. The id is empty if the caller does not write.
    """
    # Without the test for open runs, a large snapshot would be parsed without need.
    if not {*open_runs(store)} - {running}:
        return
    newest = intact_snapshot(store)
    if newest is None:
        return
    for run in unfinished_commits(store, newest):
        if run != running:
            logger.info("%s: finish the interrupted cleanup of write %s", store.public(store.root), run[:8])
            finish_commit(store, run, listed_files(newest))
