"""Commit an append to a version that this process already knows, without reading the list of files again.

The steps are the steps of `commit`, which docs/format.md describes. The creation of the next version fails if
another write was faster. The append then reads the newest version and tries again.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import crc32c
from dask_tfrecord.dataset.snapshot.column_statistics import VERSION, from_entries
from dask_tfrecord.dataset.snapshot.file_table import Base, Stored
from dask_tfrecord.dataset.snapshot.model import Snapshot, find_snapshot
from dask_tfrecord.dataset.snapshot.names import SUCCESS, open_runs, snapshot_path
from dask_tfrecord.dataset.snapshot.versions import newest_number, to_parquet
from dask_tfrecord.dataset.snapshot.visibility import has_committed
from dask_tfrecord.dataset.write.commit import commit, publish_files, with_stamps
from dask_tfrecord.dataset.write.next_snapshot import next_snapshot
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.staging import finish_newest, remove_staging
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.storage.listing import with_column
from dask_tfrecord.files.storage.open_file import stamp_of
from dask_tfrecord.files.storage.redaction import hide, secrets_of
from dask_tfrecord.files.storage.store import Store

logger = logging.getLogger(__name__)

# A file list that consists of more Arrow chunks than this is copied into one chunk, because each chunk takes
# time in every later commit.
_MOST_CHUNKS = 64


class Newest(NamedTuple):
    """The newest version of a dataset at the time when this process read or created the version.

    Attributes
    ----------
    snapshot : Snapshot
        The version, with the way in which its file list is stored.
    stamp : str or None
        The `stamp_of` the version's Parquet file. The stamp differs if the directory was removed in the
        meantime and another dataset was written, whose newest version has the same number. If the stamp is
        None, the next append reads the newest version.
    """

    snapshot: Snapshot
    stamp: str | None


def read_newest(store: Store) -> Newest | None:
    """Return the newest version of the dataset in the root of the store, or None if there is no snapshot."""
    snapshot = find_snapshot(store)
    return None if snapshot is None else Newest(snapshot, _stamp(store, snapshot.number))


def append(run: WriteRun, entries: Sequence[FileEntry], newest: Newest | None) -> Newest:
    """Commit the files of an append, and return the newest version.

    No other process may commit the same run. After an exception, the commit may be repeated with the same
    arguments, unless the exception is a `TFRecordError`.

    Parameters
    ----------
    run : WriteRun
        The plan of the append.
    entries : sequence of FileEntry
        All files that the run has written.
    newest : Newest, optional
        The newest version that this process knows. If None, or if a step fails, the files are committed by
        `commit`, which reads the newest version and makes sure that the rows are added only once.

    Raises
    ------
    SchemaError
        If the columns of the dataset have changed since the append was planned.
    """
    if newest is not None:
        files = from_entries(entries, run.schema, run.partitioning)
        try:
            if (found := _append_to(run, files, newest)) is not None:
                return found
        except Exception as error:  # the version may exist in spite of the error, which `commit` finds out
            reason = hide(repr(error), secrets_of(run.store))
            logger.info("%s: the short commit failed: %s", run.title, reason)
    return Newest(commit(run, entries), None)


def _append_to(run: WriteRun, files: pa.Table, newest: Newest) -> Newest | None:
    """Commit the files of an append to the newest version. Return None if there is no snapshot any more."""
    store = run.store
    others = [other for other in open_runs(store) if other != run.run]
    if any(has_committed(newest.snapshot, other) for other in others):
        finish_newest(store, running=run.run)
    if store.renames:
        publish_files(run, files)
    files = with_stamps(store, files)
    known: Newest | None = newest
    while known is not None:
        snapshot = next_snapshot(run, known.snapshot, files).snapshot
        path = store.join(snapshot_path(snapshot.number))
        data = bytes(to_parquet(vars(snapshot), delta=True))
        is_created = _is_unchanged(store, known) and _create(store, path, data)
        if is_created and newest_number(store) == snapshot.number:
            known = Newest(_as_stored(store, snapshot, data), _stamp(store, snapshot.number))
            break
        known = read_newest(store)
        if known is not None and has_committed(known.snapshot, run.run):
            break  # the store said that the version existed, or another write has replaced the version
        if is_created:
            store.remove([path])  # the number was that of a removed version, so readers ignore this version
    if known is not None:
        logger.info("%s: committed version %d", run.title, known.snapshot.number)
        _clean_up(run)
    return known


def _create(store: Store, path: str, data: bytes) -> bool:
    """Create the Parquet file of a version. Return False if the number of the version is taken."""
    try:
        store.create_exclusively(path, data)
    except FileExistsError:
        return False
    return True


def _stamp(store: Store, number: int) -> str:
    return stamp_of(store.look(store.join(snapshot_path(number))))


def _is_unchanged(store: Store, known: Newest) -> bool:
    """Return True if the Parquet file of a version is still the file that this process knows."""
    try:
        return _stamp(store, known.snapshot.number) == known.stamp
    except FileNotFoundError:
        return False


def _as_stored(store: Store, snapshot: Snapshot, data: bytes) -> Snapshot:
    """Return the snapshot that a read of ``data``, the stored form of the snapshot, would give."""
    rows, stored = _with_versions(snapshot.file_list, snapshot.number), snapshot.stored
    if rows["path"].num_chunks > _MOST_CHUNKS:
        rows = rows.combine_chunks()
    if stored is None or not stored.is_delta(rows):
        path = store.public(store.join(snapshot_path(snapshot.number)))
        stored = Stored(path, Base(snapshot.number, crc32c(data)), rows.slice(0, 0))
    added = _with_versions(stored.added, snapshot.number).combine_chunks()
    return replace(snapshot, file_list=rows, stored=stored._replace(added=added))


def _with_versions(rows: pa.Table, number: int) -> pa.Table:
    """Return a file list in which the files without a version have this version."""
    return with_column(rows, VERSION, pc.fill_null(rows[VERSION], number))


def _clean_up(run: WriteRun) -> None:
    """Remove the staging directory of a committed run. If this fails, the next write removes it."""
    store = run.store
    try:
        store.fs.pipe_file(store.join(SUCCESS), b"")
        if store.renames:
            remove_staging(store, run.run)
        else:
            store.remove([run.staged("started")])
    except Exception as error:  # the version exists, so the append has succeeded in any case
        reason = hide(repr(error), secrets_of(store))
        logger.info("%s: the staging directory remains until the next write: %s", run.title, reason)
