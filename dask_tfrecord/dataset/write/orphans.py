"""What writes that died have left behind, and its removal. Never touches what a snapshot lists."""

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

from dask_tfrecord.dataset.snapshot.model import OWN, read_snapshot, versions
from dask_tfrecord.dataset.snapshot.names import STAGING, open_runs
from dask_tfrecord.dataset.write.staging import finish_newest, remove_staging
from dask_tfrecord.files.part_names import is_part, run_of
from dask_tfrecord.files.storage.listing import list_directory
from dask_tfrecord.files.storage.paths import name_of
from dask_tfrecord.files.storage.store import Store

# What a file is called until it is whole.
_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{32}")


def remove_leftovers(store: Store, before: datetime) -> list[str]:
    """Remove what belongs to runs of which nothing is newer than ``before``, and return the paths of it.

    Paths are those below the root. Uploads that were not completed come with the path that they were for.
    """
    finish_newest(store)
    removed: list[str] = []
    for run, paths in _unlisted(store).items():
        directories = [f"{STAGING}/{one}" for one in open_runs(store) if one.startswith(run)]
        waiting = [path for directory in directories for path in _files(store, directory)]
        last = _last_modified(store, [*paths, *waiting] or map(store.join, directories))
        if last < before:
            store.remove(paths)
            for directory in directories:
                remove_staging(store, name_of(directory))
            removed += [*paths, *waiting]
    removed += _remove_temporary(store, before)
    removed += _abort_uploads(store, before)
    return sorted(set(map(store.relative, removed)))


def _unlisted(store: Store) -> dict[str, list[str]]:
    """By the start of the run's id: its data files that are in place and that no snapshot lists.

    Only runs that have left something in staging count: a run removes that last. All other data files were
    copied here, or belong to a dataset below this one.
    """
    parts = [file.path for file in list_directory(store) if is_part(file.path)]
    runs: dict[str, list[str]] = {run[:8]: [] for run in open_runs(store)}
    numbers = versions(store)  # after the files: a commit in the meantime is among them
    listed = _listed(store, numbers)
    for path in parts:
        run = run_of(path) or ""
        if path not in listed and run in runs:
            runs[run].append(path)
    return runs


def _listed(store: Store, numbers: Iterable[int]) -> set[str]:
    found: set[str] = set()
    for number in numbers:
        with suppress(FileNotFoundError):  # removed by an overwrite just now
            found |= {store.join(file.path) for file in read_snapshot(store, number).files}
    return found


def _files(store: Store, directory: str) -> list[str]:
    try:
        return sorted(store.fs.find(store.join(directory)))
    except FileNotFoundError:
        return []


def _last_modified(store: Store, paths: Iterable[str]) -> datetime:
    """When the last of these was written; now, if that is not known."""
    now = datetime.now(UTC)
    try:
        found = [store.fs.modified(path) for path in paths]
    except (FileNotFoundError, NotImplementedError):  # one was just removed, or the store keeps no times
        return now
    return max((time if time.tzinfo else time.replace(tzinfo=UTC) for time in found), default=now)


def _remove_temporary(store: Store, before: datetime) -> list[str]:
    """Of snapshots that were not written to their end."""
    found = [store.join(f"{OWN}/{name}") for name in store.names(OWN) if _TEMPORARY.fullmatch(name)]
    old = [path for path in found if _last_modified(store, [path]) < before]
    store.remove(old)
    return old


def _abort_uploads(store: Store, before: datetime) -> list[str]:
    own = store.join(f"{OWN}/")
    old = [one for one in store.uploads() if one.started < before]
    found = [one for one in old if is_part(one.path) or one.path.startswith(own)]
    for upload in found:
        store.abort(upload)
    return [upload.path for upload in found]
