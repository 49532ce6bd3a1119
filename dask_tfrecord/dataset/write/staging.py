"""The staging directory of a run: what it holds between the commit and the end of the cleanup."""

import json
import logging
from collections.abc import Sequence
from contextlib import suppress

from dask_tfrecord.dataset.snapshot.model import find_snapshot
from dask_tfrecord.dataset.snapshot.names import (
    REPLACED,
    STAGING,
    SUCCESS,
    open_runs,
    replaced_files,
    staged,
)
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.store import Store

logger = logging.getLogger(__name__)


def note_replaced(store: Store, run: str, paths: Sequence[str]) -> None:
    """Store the list of files to remove after the commit, so that any later process can remove them."""
    with store.create(store.join(staged(run, REPLACED))) as file:
        file.write(json.dumps(paths).encode())


def remove_staging(store: Store, run: str) -> None:
    """Remove the staging directory of a run."""
    store.remove_tree(f"{STAGING}/{run}")


def finish_commit(store: Store, run: str) -> None:
    """After the snapshot was created: remove the replaced files, create ``_SUCCESS``, remove staging."""
    store.remove(store.join(path) for path in replaced_files(store, run))
    store.fs.pipe_file(store.join(SUCCESS), b"")
    remove_staging(store, run)


def finish_newest(store: Store, *, running: str = "") -> None:
    """Finish the newest commit, if it was interrupted after its snapshot was created.

    Does nothing if the newest snapshot is damaged. ``running`` is the run of the caller, if it writes.
    """
    runs = {*open_runs(store)} - {running}
    if not runs:  # a snapshot of many files takes long to parse
        return
    newest = None
    with suppress(TFRecordError):
        newest = find_snapshot(store)
    if newest is not None and newest.run in runs:
        root = store.public(store.root)
        logger.info("%s: finish the interrupted cleanup of write %s", root, newest.run[:8])
        finish_commit(store, newest.run)
