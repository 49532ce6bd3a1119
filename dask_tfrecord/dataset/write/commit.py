"""Commit a write of a dataset. Readers see the old dataset until the new snapshot exists, and after that the
new dataset.

docs/format.md describes the steps of a commit. Each step of a commit may be repeated, also by another
process.
"""

import logging
import warnings
from collections.abc import Iterable
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.snapshot.column_statistics import from_entries
from dask_tfrecord.dataset.snapshot.file_table import rows_of_run
from dask_tfrecord.dataset.snapshot.model import Snapshot, find_snapshot, listed_files
from dask_tfrecord.dataset.snapshot.names import snapshot_path
from dask_tfrecord.dataset.snapshot.versions import to_parquet, versions
from dask_tfrecord.dataset.write.next_snapshot import next_snapshot
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.staging import finish_commit, finish_newest, note_replaced, remove_staging
from dask_tfrecord.errors import ConcurrentWriteError, TFRecordError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.storage.listing import list_directory, path_column, with_column
from dask_tfrecord.files.storage.open_file import stamp_of
from dask_tfrecord.files.storage.paths import parent_of
from dask_tfrecord.files.storage.redaction import hide, secrets_of
from dask_tfrecord.files.storage.store import Store

logger = logging.getLogger(__name__)

# The number of steps of a commit that docs/format.md describes.
_STEPS = 7


def commit(run: WriteRun, entries: Iterable[FileEntry]) -> Snapshot:
    """Commit the files that the tasks wrote: create the next snapshot, which lists these files.

    `commit` returns the new snapshot. If an earlier attempt at this commit has succeeded, and another write
    has since replaced the snapshot of that attempt, do not change the dataset and return the newest snapshot.

    Raises
    ------
    ConcurrentWriteError
        If the write does not append, and another write has committed since this write was planned.
    SchemaError
        If the write keeps existing data, and the columns of that data have changed since the write was
        planned.
    """
    files = from_entries(list(entries), run.schema, run.partitioning)
    _log_step(run, 1, "look for an earlier success of this write")
    snapshot = run.committed_snapshot()
    if snapshot is None:
        _log_step(run, 2, f"check that the newest version is {run.base}, unless the write appends")
        refuse_if_overtaken(run, files)
        try:
            _log_step(run, 3, "finish the cleanup of the previous commit")
            finish_newest(run.store, running=run.run)
            _log_step(run, 4, f"publish {len(files)} files")
            publish_files(run, files)
            snapshot = create_snapshot(run, _with_stamps(run.store, files))
        except Exception:  # after any failure, another attempt needs the files in staging
            withdraw_files(run, files)
            raise
    if run.run != snapshot.run:
        logger.info("%s: was committed, and replaced since: version %d", run.title, snapshot.number)
        run.store.remove(map(run.store.join, _unlisted(run, files)))
    else:
        logger.info("%s: committed version %d", run.title, snapshot.number)
    _log_step(run, 7, "remove the replaced files and the staging directory")
    remove_replaced(run)
    return snapshot


def log_summary(run: WriteRun, snapshot: Snapshot, seconds: float) -> None:
    """Log the number of files, rows and bytes that the write added, without those of earlier writes."""
    if logger.isEnabledFor(logging.INFO):
        added = rows_of_run(snapshot.file_list, run.run)
        rows, size = (pc.sum(added[name]).as_py() or 0 for name in ("records", "bytes"))
        rate = rows / max(seconds, 1e-9)
        counts = f"{len(added)} files, {rows} rows, {size} bytes in {seconds:.1f} s ({rate:.0f} rows/s)"
        logger.info("%s: done: version %d, %s", run.title, snapshot.number, counts)


def _log_step(run: WriteRun, step: int, action: str) -> None:
    logger.info("%s: commit step %d of %d: %s", run.title, step, _STEPS, action)


def abandon(run: WriteRun) -> None:
    """Remove the staged files of a failed write, so that the write can no longer be committed.

    Files that were uploaded to their final paths stay hidden until `cleanup` removes them. These files are
    kept because a commit in another process may be about to list them.
    """
    with suppress(Exception):  # the caller reports the failure of the write
        if run.committed_snapshot() is None:
            logger.info("%s: remove what the failed write staged", run.title)
            if run.store.renames:
                remove_staging(run.store, run.run)
            else:
                run.store.remove(run.store.fs.find(run.staged("rows")))


def discard(run: WriteRun) -> None:
    """Remove all files of a failed write whose commit has not begun, and cannot begin in another process."""
    with suppress(Exception):  # the caller reports the failure of the write
        if not run.store.renames:
            run.store.remove(path for path in run.store.fs.find(run.store.root) if run.owns(path))
        remove_staging(run.store, run.run)


def refuse_if_overtaken(run: WriteRun, files: pa.Table) -> None:
    """If another write has committed since this write was planned, remove this run's files and raise.

    The function `refuse_if_overtaken` never raises for an append.
    """
    if run.mode != "append" and _newest_number(run) > run.base:
        _remove_files(run, files)
        raise ConcurrentWriteError(
            "another write committed a dataset here first",
            path=run.store.public(run.store.root),
            advice="write to another directory, or start the write again to change the new dataset",
        )


def publish_files(run: WriteRun, files: pa.Table) -> None:
    """Move the files of the run to their final paths, where readers do not see them until the commit.

    On stores without a rename, remove the run's uploaded files that are not in `files`.
    """
    store = run.store
    names = files["path"].to_pylist()
    if store.renames:
        for name in names:
            target = store.join(name)
            try:
                store.place(run.staged(name), target)
            except FileNotFoundError:
                if not store.fs.exists(target):  # no attempt of this run has moved the file yet
                    raise
        for directory in _with_parents(map(parent_of, names)):
            store.sync_directory(store.join(directory))
    else:  # the tasks uploaded the files; failed attempts of tasks may have uploaded more files
        listed = {*map(store.join, names)}
        present = store.fs.find(store.root)
        store.remove(path for path in present if run.owns(path) and path not in listed)


def _with_stamps(store: Store, rows: pa.Table) -> pa.Table:
    """Add the column ``stamp``, the version of each file in the store, to the list of new files.

    If the store fails, the column has no stamps.
    """
    try:
        store.fs.invalidate_cache()
        paths = [store.join(path) for path in rows["path"].to_pylist()]
        if store.renames:
            stamps = pa.array([stamp_of(store.look(path)) for path in paths], pa.string())
        else:
            listed = list_directory(store)
            stamps = listed["stamp"].take(pc.index_in(path_column(paths), listed["path"]))
    except Exception:  # a commit must not fail because stamps are missing
        return rows
    stamps = pc.if_else(pc.equal(stamps, ""), None, stamps)
    return with_column(rows, "stamp", stamps)


def create_snapshot(run: WriteRun, files: pa.Table) -> Snapshot:
    """Create the file of the next snapshot. The creation of this file commits the write.

    If the number of the snapshot is taken, an append tries the next number, and other modes raise.
    """
    while True:
        _log_step(run, 5, "make the next snapshot")
        try:
            snapshot, replaced = next_snapshot(run, files)
        except TFRecordError:
            _remove_files(run, files)
            raise
        if run.run in snapshot.ancestors and (committed := run.committed_snapshot()):
            return committed  # another attempt at this commit was faster
        action = f"create version {snapshot.number}, which lists {len(snapshot.file_list)} files"
        _log_step(run, 6, f"{action} and replaces {len(replaced)} files" if replaced else action)
        if replaced:
            note_replaced(run.store, run.run, replaced)
        failure = create_file(run, snapshot)
        if failure is None and _is_newest(run, snapshot.number):
            return snapshot
        committed = run.committed_snapshot()  # the store may report a failure although the file was created
        if committed is not None:
            return committed
        refuse_if_overtaken(run, files)
        if failure is not None and _newest_number(run) < snapshot.number:
            raise failure


def create_file(run: WriteRun, snapshot: Snapshot) -> Exception | None:
    """Create the file of a snapshot unless the number of the snapshot is taken.

    Return the exception if the file could not be created.
    """
    path = run.store.join(snapshot_path(snapshot.number))
    try:
        run.store.create_exclusively(path, bytes(to_parquet(vars(snapshot), delta=run.mode == "append")))
    except Exception as error:  # the file may exist in spite of the error, which the caller checks
        reason = hide(repr(error), secrets_of(run.store))
        logger.info("%s: version %d was not created: %s", run.title, snapshot.number, reason)
        return error
    return None


def withdraw_files(run: WriteRun, files: pa.Table) -> None:
    """After a failed commit, move the files that no snapshot lists back to staging for another attempt."""
    store = run.store
    if not store.renames:
        return
    with suppress(Exception):  # the caller reports the first failure
        if run.committed_snapshot() is None:
            for name in _unlisted(run, files):
                with suppress(FileNotFoundError):
                    store.place(store.join(name), run.staged(name))
            store.remove_empty({store.join(parent_of(name)) for name in files["path"].to_pylist()})


def remove_replaced(run: WriteRun) -> None:
    """Remove the files that the commit replaced, and the staging directory of the run.

    If removing the files fails, only warn, because the new data is already committed.
    """
    try:
        finish_commit(run.store, run.run)
    except Exception as error:  # the snapshot exists, so the write has succeeded in any case
        reason = hide(str(error), secrets_of(run.store))
        warnings.warn(
            f"{run.store.public(run.store.root)}: the data is written, but not all files that it replaces "
            f"could be removed ({reason}). The next write removes them, and so does dask_tfrecord.cleanup.",
            UserWarning,
            stacklevel=2,
        )


def _newest_number(run: WriteRun) -> int:
    return max(versions(run.store), default=0)


def _is_newest(run: WriteRun, number: int) -> bool:
    """Return True if the snapshot that was just created is the newest snapshot, which readers use.

    An overwrite removes earlier snapshots, so a number below the number of the newest snapshot may be free.
    """
    try:
        return _newest_number(run) <= number
    except Exception:  # the new snapshot exists, and no newer snapshot is known
        return True


def _remove_files(run: WriteRun, files: pa.Table) -> None:
    run.store.remove(map(run.store.join, _unlisted(run, files)))
    remove_staging(run.store, run.run)


def _unlisted(run: WriteRun, files: pa.Table) -> list[str]:
    """Return the paths, relative to the root, of those files that the newest snapshot does not list.

    The newest snapshot may belong to another run and list some of the files, because an append keeps the
    files that an earlier attempt of this run committed.
    """
    listed = listed_files(find_snapshot(run.store))
    return [name for name in files["path"].to_pylist() if name not in listed]


def _with_parents(directories: Iterable[str]) -> set[str]:
    """Return directories and all of their parents, up to the root, which is ""."""
    result: set[str] = set()
    for directory in directories:
        while directory not in result:
            result.add(directory)
            directory = parent_of(directory)
    return result
