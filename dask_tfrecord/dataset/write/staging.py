"""What a write keeps in staging until its commit is complete, and its removal."""

import json
from collections.abc import Sequence
from contextlib import suppress

from dask_tfrecord.dataset.snapshot.model import find_snapshot
from dask_tfrecord.dataset.snapshot.names import _REPLACED, STAGING, SUCCESS, open_runs, replaced_by, staged
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.store import Store


def note_replaced(store: Store, run: str, paths: Sequence[str]) -> None:
    """Write down what is to be removed after the commit of a run, whoever comes to do it."""
    with store.create(store.join(staged(run, _REPLACED))) as file:
        file.write(json.dumps(paths).encode())


def remove_staging(store: Store, run: str) -> None:
    """Remove all that waits for the commit of a run."""
    store.remove_tree(f"{STAGING}/{run}")


def clear_up(store: Store, run: str) -> None:
    """After the commit of a run: remove what it replaced and whatever of it is left in staging."""
    store.remove(store.join(path) for path in replaced_by(store, run))
    store.fs.pipe_file(store.join(SUCCESS), b"")
    remove_staging(store, run)


def finish_newest(store: Store) -> None:
    """Finish the newest commit's interrupted cleanup, unless its snapshot is damaged."""
    newest = None
    with suppress(TFRecordError):
        newest = find_snapshot(store)
    if newest is not None and newest.run in open_runs(store):
        clear_up(store, newest.run)
