"""Commit a write of a dataset. Readers see the old dataset until the new snapshot exists. From then on,
readers see the new dataset.

docs/format.md describes the steps of a commit. Each step of a commit may be repeated, even by another
process. The staging directory of a run contains the new files until the commit publishes them. The staging
directory also lists the files that the commit replaces.
"""

import json
import logging
import unicodedata
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pyarrow.compute as pc

from dask_tfrecord.dataset.names import (
    KEPT,
    MOVED,
    REPLACED,
    SPILLS,
    STAGING,
    SUCCESS,
    open_runs,
    snapshot_path,
    staged,
    stored_paths,
)
from dask_tfrecord.dataset.snapshot.head import Head, kept_versions
from dask_tfrecord.dataset.snapshot.model import Commit, Snapshot, listed_among, listed_files
from dask_tfrecord.dataset.snapshot.stored_files import from_entries, listed_paths, rows_of_run
from dask_tfrecord.dataset.snapshot.versions import (
    LostListError,
    encode,
    has_unlisted_version,
    listed_by,
    versions,
)
from dask_tfrecord.dataset.write.operations import Change, Operation, overtaken
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import ConcurrentWriteError, DestinationError, TFRecordError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.file_list import FileList
from dask_tfrecord.storage.failures import is_full
from dask_tfrecord.storage.paths import name_of, parent_of
from dask_tfrecord.storage.redaction import hide_secrets
from dask_tfrecord.storage.store import Store

logger = logging.getLogger(__name__)

# The number of steps in a commit, as described in docs/format.md.
_STEPS = 7

# Before the first version of a dataset is created, this many versions after it are requested individually,
# because an overwrite removes those before it, and a listing that lags may show none at all.
_UNLISTED = 7

# Two files are compared in chunks of this size.
_COMPARED_BYTES = 1 << 20


class Transaction:
    """The commit of a run, in which an operation changes the newest version.

    Parameters
    ----------
    run : WriteRun
        The plan of the write.
    operation : Operation
        The kind of write, which determines how the commit changes the newest version.
    entries : iterable of FileEntry
        The files that the tasks have written.
    head : Head, optional
        The newest version that this process knows, by default that of the plan. If another process has
        committed since, the transaction reads the newest version.
    is_alone : bool
        True if no other process can commit the run. A refused commit then removes all files of the run.

    Attributes
    ----------
    head : Head
        The newest version. After the commit, this is usually the version that the commit has created.
    """

    def __init__(
        self,
        run: WriteRun,
        operation: Operation,
        entries: Iterable[FileEntry] = (),
        *,
        head: Head | None = None,
        is_alone: bool = False,
    ) -> None:
        entries = list(entries)
        if names := {name for entry in entries for name in entry.open_columns}:
            run = replace(run, schema=run.schema.opened(names))
        self.run, self.operation, self.store = run, operation, run.store
        self.head = run.head if head is None else head
        self.files = from_entries(entries, run.schema, run.partitioning)
        # Maps the paths of the files to `FileEntry.attempt`.
        self._attempts = {one.path: one.attempt for one in entries if one.attempt}
        self._attempts |= {one.columns.path: one.attempt for one in entries if one.attempt and one.columns}
        self._is_alone = is_alone
        self._is_read = False  # True if this commit has just read `head`.
        self._published: set[str] = set()  # The files that this commit has moved to their final paths.
        self._staged: set[str] = set()  # On object stores, the names in the staging directory of the run.
        self._change: Change | None = None  # The change that this commit has made.

    def commit(self) -> Snapshot:
        """Perform all steps of the commit. Return the same snapshot as the function `commit`."""
        run = self.run
        self.head = self.head.loaded(self.store, intact=self.operation.replaces_damage)
        if self.head.has_staging:
            finish_newest(self.store, running=run.run, known=self.head.snapshot)
        while (snapshot := self._try()) is None:
            self._is_read = True
        if is_repeated(run, snapshot):
            log_repeated(self.store, run.write_id, snapshot.number)
        elif run.run != snapshot.run:
            logger.info("%s: has no files in the newest version %d", run.title, snapshot.number)
        else:
            logger.info("%s: committed version %d%s", run.title, snapshot.number, self._fate(snapshot))
        self._log(7, "remove the replaced files and the staging directory")
        self._finish(snapshot)
        return snapshot

    def _fate(self, snapshot: Snapshot) -> str:
        """Return the end of a log message: what the commit does with replaced files and older versions."""
        change = self._change
        if change is not None and change.kept:
            return f", keeps {len(change.kept)} replaced files for the versions before it"
        if change is not None and snapshot.oldest == snapshot.number > 1:
            return f", removes the versions before it and {len(change.removed)} files"
        return ""

    def _finish(self, snapshot: Snapshot) -> None:
        """Perform the last step. If removing files fails, only warn, because the data is committed."""
        store = self.store
        try:
            if self._change is None:
                self._remove_useless(snapshot)
            elif self._staged.difference(self._attempts.values(), (SPILLS, REPLACED, MOVED)):
                _remove_other_uploads(self.run, listed_files(snapshot))
            remove_replaced(store, self.run.run, self._change, self._staged, self.head)
        except Exception as error:  # the snapshot exists, so the write has succeeded despite the error
            reason = hide_secrets(str(error), store)
            warnings.warn(
                f"{store.public()}: the data is written, but not all files that it replaces "
                f"could be removed ({reason}). The next write removes them, and so does Dataset.cleanup.",
                UserWarning,
                stacklevel=2,
            )

    def _remove_useless(self, snapshot: Snapshot) -> None:
        """Remove the files of this attempt after another attempt has committed the version ``snapshot``, or
        another write has committed the ``write_id`` of the run.
        """
        run, store = self.run, self.store
        listed = {*listed_files(snapshot), *listed_files(self.head.snapshot)}
        if snapshot.run != run.run and self.head.commit_of(run.run) is not None:
            # The version of the run has expired, and later ones may list files that a commit is moving.
            listed |= listed_by(store, versions(store), kept_versions)
        if store.can_rename:
            store.remove(map(store.join, sorted(self._published - listed)))
        else:
            _remove_other_uploads(run, listed)

    def _try(self) -> Snapshot | None:
        """Try to create the version after `head`. Return the version that commits the run, or None if `head`
        is now a newer version, with which the write must be compared.
        """
        run, head = self.run, self.head
        self._log(1, "look for newer versions")
        try:
            if (past := head.commit_of(run.run, run.base, run.write_id)) is not None:
                if past.run != run.run:
                    # The version of another write with this ``write_id`` may need the files that an earlier
                    # try would have replaced.
                    notes = (staged(run.run, name) for name in (REPLACED, MOVED))
                    self.store.remove(map(self.store.join, notes))
                return head.version_of(self.store, past)
            # On an object store, the creation of the version and the listing after it suffice for a run that
            # has files: if the directory was replaced, the marks of the run are gone.
            is_cheap = self.store.can_rename or not len(self.files)
            if is_cheap and not self._is_read and not self._is_newest():
                return None
            planned = self._plan()
        except TFRecordError:
            if not self._is_newest():
                return None
            if self._is_alone:
                self._discard()
            else:  # another attempt at the commit may need the published files
                abandon(run)
            raise
        if planned is None:
            assert head.snapshot is not None  # an operation has work to do if there is no version
            # A previous try may have published files, and may have stored which files the commit replaces.
            self._discard()
            return head.snapshot
        return self._store(*planned)

    def _is_newest(self) -> bool:
        """Replace `head` by the newest version. Return True if `head` was the newest version."""
        known = self.head
        self.head = known.advanced(self.store, intact=self.operation.replaces_damage)
        return self.head is known

    def _plan(self) -> tuple[Operation, Change] | None:
        """Publish the files. Return the changes to commit, or None if nothing is left to do."""
        run, files, head = self.run, self.files, self.head
        self._log(2, f"compare the newest version with version {run.base}, for which it was planned")
        if not self.operation.adds_to_any and not head.succeeds(run.head):
            raise overtaken()
        operation = self.operation.rebase(run, head.snapshot, files)
        if operation is None:
            return None
        self._log(3, f"publish {len(files)} files")
        if self.store.can_rename:
            publish_files(run, files, self._attempts, self._published)
        elif len(files):
            self._staged = run.staged_names()
            # `cleanup` removes the marks of attempts last.
            if not self._staged.issuperset(self._attempts.values()):
                raise _removed(run, files.paths[0])
        self._log(4, "make the next snapshot")
        used = operation.used(files)
        change = operation.change(run, head.snapshot, used)
        if change.snapshot.number == 1 and has_unlisted_version(self.store, 1, _UNLISTED):
            raise _lagging()
        moved = [*change.removed, *change.kept, *(f"{KEPT}/{path}" for path in change.kept)]
        self.store.refuse_links(map(self.store.join, moved), files=True)
        unused = {*listed_paths(files)}.difference(listed_paths(used))
        return operation, change._replace(removed=[*change.removed, *sorted(unused)])

    def _store(self, operation: Operation, change: Change) -> Snapshot | None:
        """Create the Parquet file of the next version, which commits the run.

        Return the committed version as a reader would read it, or None if another write has created it, or a
        newer one, first.
        """
        run, store, snapshot = self.run, self.store, change.snapshot
        action = f"create version {snapshot.number}, which lists {snapshot.log.totals.files} files"
        replaced = len(change.removed) + len(change.kept)
        self._log(5, f"{action} and replaces {replaced} files" if replaced else action)
        note_replaced(store, run.run, change.removed, change.kept)
        path = store.join(snapshot_path(snapshot.number))
        try:
            data, log = encode(store, vars(snapshot), kept_versions)  # another write may have removed a list
            store.create_exclusively(path, data)
            if operation.keeps_values:
                store.copy_permissions([store.join(snapshot_path(snapshot.number - 1))], path)
        except Exception as error:  # the snapshot's file may exist in spite of the error
            reason = hide_secrets(repr(error), store)
            logger.info("%s: version %d was not created: %s", run.title, snapshot.number, reason)
            if not self._is_newest():
                return None
            if isinstance(error, FileExistsError):
                raise _lagging() from None
            raise
        self._log(6, f"check that version {snapshot.number} is the newest")
        created = replace(snapshot, log=log, before=())
        newest = self.head.followed_by(store, created)
        if newest is not None:
            self.head, self._change = newest, change
            return created
        store.remove([path])  # no reader needs the version
        self.head = Head.read(store, intact=self.operation.replaces_damage)
        return None

    def _discard(self) -> None:
        discard(self.run, sorted(self._published) if self.store.can_rename else listed_paths(self.files))

    def _log(self, step: int, action: str) -> None:
        logger.info("%s: commit step %d of %d: %s", self.run.title, step, _STEPS, action)


def _lagging() -> ConcurrentWriteError:
    problem = "the store has a version of the dataset that its listings do not show yet"
    return ConcurrentWriteError(problem, "start the write again when the listings show the version")


def commit(
    run: WriteRun, operation: Operation, entries: Iterable[FileEntry] = (), *, is_alone: bool = False
) -> Snapshot:
    """Commit a write as a single `Transaction`.

    Return the new snapshot. If an earlier attempt at the commit has succeeded, return the snapshot that it
    created. Return the unchanged newest snapshot if the dataset no longer keeps the snapshot of the earlier
    attempt, or if other writes have left nothing to do.

    Raise the errors of `Operation.rebase` and `Operation.change`. After a GroupsLostError, the new files
    remain staged.
    """
    return Transaction(run, operation, entries, is_alone=is_alone).commit()


def written(run: WriteRun, snapshot: Snapshot) -> Commit:
    """Return the result of a write: the version that it committed, or that an earlier write with the same
    ``write_id`` committed, and how many files, rows and bytes that write added.
    """
    return _described(snapshot, snapshot.run if is_repeated(run, snapshot) else run.run)


def is_repeated(run: WriteRun, committed: Snapshot) -> bool:
    """Return True if an earlier write with the same ``write_id`` has created the version."""
    return run.write_id is not None and run.write_id == committed.write_id and run.run != committed.run


def _described(snapshot: Snapshot, run: str) -> Commit:
    own = snapshot.log.lists[-1].content.added if snapshot.run == run else snapshot.file_list
    added = rows_of_run(own, run)
    rows, size = (pc.sum(added[name]).as_py() or 0 for name in ("records", "bytes"))
    return Commit.of(snapshot, added_files=len(added), added_rows=rows, added_bytes=size)


def earlier_commit(store: Store, head: Head, write_id: str | None) -> Commit | None:
    """Return the result of the write that has committed with the id ``write_id``, if any.

    If that write was interrupted after its commit, finish it.
    """
    with suppress(LostListError):  # the commit looks again, because another write may have removed lists
        past = None if write_id is None else head.commit_of("", write_id=write_id)
        if past is not None:
            if head.has_staging:
                finish_newest(store, known=head.snapshot)
            log_repeated(store, past.write_id, past.number)
            return _described(head.version_of(store, past), past.run)
    return None


def log_repeated(store: Store, write_id: str | None, number: int) -> None:
    logger.info("%s: version %d has committed write_id %r already", store.public(), number, write_id)


def log_summary(run: WriteRun, done: Commit, seconds: float) -> None:
    """Log how many files, rows and bytes the write added, without the files of earlier writes."""
    files, rows, size = done.details.values()
    rate = rows / max(seconds, 1e-9)
    counts = f"{files} files, {rows} rows, {size} bytes in {seconds:.1f} s ({rate:.0f} rows/s)"
    logger.info("%s: done: version %d, %s", run.title, done.version, counts)


def abandon(run: WriteRun) -> None:
    """Remove the staged files of a failed write. Another attempt at the commit that has not published all
    files can then no longer succeed.

    Files that an attempt has published, or that tasks have uploaded to their final paths, stay hidden and are
    left to `cleanup`, because another attempt may still commit them, or running tasks may upload more files.
    The directories and the lists of replaced files stay, because they hide published files from readers.
    """
    store = run.store
    with suppress(Exception):  # ignore this error, because the caller reports the failure of the write
        logger.info("%s: remove what the failed write staged", run.title)
        directory = staged(run.run, "") if store.can_rename else staged(run.run, SPILLS)
        kept = [store.join(staged(run.run, name)) for name in (REPLACED, MOVED)]
        for path in store.find_everything(directory):
            if path not in kept:
                store.remove_file(path)


def discard(run: WriteRun, published: Iterable[str] | None = None) -> None:
    """Remove all files of a failed write. No process may be committing the write, or commit it later.

    ``published`` contains the paths, relative to the root, of all files outside the staging directory. If
    ``published`` is None, look for these files.
    """
    store = run.store
    with suppress(Exception):  # ignore this error, because the caller reports the failure of the write
        logger.info("%s: remove what the failed write staged", run.title)
        store.fs.invalidate_cache()
        paths = filter(run.owns, store.find_everything()) if published is None else map(store.join, published)
        store.remove(paths)
        remove_staging(store, run.run)


def discard_uncommitted(run: WriteRun) -> None:
    """Remove all files of a failed write, unless its commit has succeeded. No process may be committing the
    write, or commit it later.

    On object stores, leave uploaded files to `cleanup`, as `abandon` does.
    """
    with suppress(Exception):  # ignore this error, because the caller reports the failure of the write
        if run.store.can_rename:
            if Head.read(run.store).commit_of(run.run, run.base) is None:
                discard(run)
        else:
            abandon(run)


def publish_files(run: WriteRun, files: FileList, attempts: Mapping[str, str], published: set[str]) -> None:
    """Move the staged files of the run to their final paths, and add these paths to ``published``. Readers do
    not see the files until the commit. No file is replaced: if another attempt at the commit has published a
    file with the same content, it stays.

    ``attempts`` maps the paths of staged files to `FileEntry.attempt`. Raise ConcurrentWriteError if a file
    of the run no longer exists, for example because another attempt has found a conflict and removed it, or
    if another attempt has published other rows under the same name. Raise DestinationError if the filesystem
    stores a partition directory under a different name.
    """
    store = run.store
    names = listed_paths(files)
    for name in names:
        source, target = run.path(name, attempts.get(name, "")), store.join(name)
        try:
            store.move(source, target, overwrite=False)
            published.add(name)
        except FileNotFoundError:
            if not store.fs.exists(target):  # no attempt of this run has moved the file to `target`
                raise _removed(run, name) from None
        except FileExistsError:
            # An attempt of this run has moved the file, and the task may have run again.
            with suppress(FileNotFoundError):
                if not _have_same_content(store, source, target):
                    raise _written_twice(store, name) from None
    levels = [directory.split("/") for directory in {*map(parent_of, names)}]
    directories = {"/".join(one[:depth]) for one in levels for depth in range(len(one) + 1)}
    for directory in directories:
        store.sync_directory(store.join(directory))
    _check_names(store, directories)


def _remove_other_uploads(run: WriteRun, listed: Collection[str]) -> None:
    """Remove the files that the run has uploaded, except those in ``listed``.

    The run has committed, so no other attempt can commit the files. Later versions may have moved files of
    the run to the directory of kept files.
    """
    store = run.store
    store.fs.invalidate_cache()
    paths = map(store.relative, store.find_everything())
    others = (path for path in paths if path not in listed and not path.startswith(f"{KEPT}/"))
    store.remove(store.join(path) for path in others if run.owns(path))


def _check_names(store: Store, directories: Iterable[str]) -> None:
    """Raise DestinationError if the filesystem has changed a partition directory's name, for example to lower
    case.
    """
    present: dict[str, set[str]] = {}  # maps each parent directory to the names in the directory
    for directory in directories:
        name = name_of(directory)
        # Below the directory of kept files, each partition directory has the same name as in the dataset.
        for path in (directory, f"{KEPT}/{directory}") if "=" in name else ():
            parent = parent_of(path)
            if parent not in present:
                present[parent] = {*store.names(parent)}
            if not present[parent] or name in present[parent]:
                continue
            # The directory may be missing if another process has committed this run and then compacted the
            # dataset. Or another process may have made it after the names were listed, so list them again.
            if store.fs.exists(store.join(path)) and name not in store.names(parent):
                alike = [ascii(other) for other in present[parent] if _folded(other) == _folded(name)]
                stored = alike[0] if alike else "another name"
                is_old = " of an older version" if path != directory else ""
                problem = f"this filesystem does not distinguish the directory {name!a} from {stored}{is_old}"
                advice = "write both partition values in one form, for example in lower case"
                raise DestinationError(problem, advice, path=store.public(store.join(path)))


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _removed(run: WriteRun, name: str) -> ConcurrentWriteError:
    problem = "the file was removed before its write was committed, by `cleanup` or because of a conflict"
    return ConcurrentWriteError(problem, "start the write again", path=run.store.public(run.store.join(name)))


def _have_same_content(store: Store, path: str, other: str) -> bool:
    if store.info(path)["size"] != store.info(other)["size"]:
        return False
    with store.fs.open(path, "rb") as one, store.fs.open(other, "rb") as two:
        while chunk := one.read(_COMPARED_BYTES):
            if chunk != two.read(_COMPARED_BYTES):
                return False
    return True


def _written_twice(store: Store, name: str) -> ConcurrentWriteError:
    problem = "several attempts at this write have stored different rows under the name of this file"
    advice = "start the write again, and let one process compute it"
    return ConcurrentWriteError(problem, advice, path=store.public(store.join(name)))


def note_replaced(store: Store, run: str, removed: Sequence[str], kept: Sequence[str] = ()) -> None:
    """Store two lists for use after the commit: the files to remove, and those to move.

    If this process is interrupted, a later process can use the lists to remove and move the files.
    """
    for name, paths in ((REPLACED, removed), (MOVED, kept)):
        if paths:
            store.write_file(store.join(staged(run, name)), json.dumps(paths).encode())


def remove_replaced(
    store: Store,
    run: str,
    change: Change | None = None,
    names: Collection[str] = (),
    known: Head | None = None,
) -> None:
    """Remove the files that a commit has replaced, or move them to the directory of kept files. Then close
    the run.

    The snapshot of the commit must exist. ``change`` is the change that the commit has made. If ``change`` is
    None, use the lists that `note_replaced` has stored, but keep the files that the newest version lists.
    ``names`` contains the names in the staging directory of the run, if they are known. ``known`` is the
    newest version, if it is known.
    """
    if change is not None:
        move_files(store, change.kept, known)
        store.remove(map(store.join, change.removed))
    else:
        removed, kept = (stored_paths(store, staged(run, name)) for name in (REPLACED, MOVED))
        move_files(store, kept)
        newest = Head.read(store).snapshot if removed else None
        listed = listed_among(newest, removed)
        store.remove(store.join(path) for path in removed if path not in listed)
    close_run(store, run, change, names)


def close_run(store: Store, run: str, change: Change | None = None, names: Collection[str] = ()) -> None:
    """End a run whose replaced files have been removed or moved: create ``_SUCCESS``, and remove the staging
    directory.

    The commit of the first version creates ``_SUCCESS`` for all later versions. `add_snapshot` adds no file
    to a directory of another tool.
    """
    try:
        if change is None or (change.snapshot.number == 1 and change.snapshot.mode != "add_snapshot"):
            store.write_file(store.join(SUCCESS), b"", durable=False)
    except OSError as error:
        if not is_full(error):  # the marker is for other tools, and a full disk needs the space
            raise
    if change is None or not names or SPILLS in names:
        remove_staging(store, run)
        return
    notes = [name for name, paths in ((REPLACED, change.removed), (MOVED, change.kept)) if paths]
    store.remove(store.join(staged(run, name)) for name in (*names, *notes))


def move_files(store: Store, paths: Sequence[str], known: Head | None = None) -> None:
    """Move files in the newest snapshot to their original paths. Move all other files to the directory of
    kept files.

    If another commit succeeds during the call, move the files again, to the paths that its snapshot requires.
    ``known`` is the newest version, or None to read it.
    """
    if not paths:
        return
    newest = Head.read(store) if known is None else known
    while newest.snapshot is not None:
        store.fs.invalidate_cache()
        move = partial(_move_file, store, listed_among(newest.snapshot, paths))
        store.remove(filter(None, store.for_each(move, paths)))
        if (later := newest.advanced(store)) is newest:
            break
        newest = later
    kept = (parent_of(f"{KEPT}/{path}") for path in paths)
    store.remove_empty({*map(store.join, kept), *(store.join(parent_of(path)) for path in paths)})


def _move_file(store: Store, listed: Collection[str], path: str) -> str | None:
    """Move a file as `move_files` describes. If the caller must remove the source, return its path."""
    place, kept = store.join(path), store.join(f"{KEPT}/{path}")
    with suppress(FileNotFoundError):  # the file may have been moved before, perhaps by another process
        if path not in listed:
            return store.move(place, kept)
        # A process that is moving the file to `kept` may still remove `place`. On an object store, the copy
        # at `kept` therefore stays until the versions that list it expire.
        if store.can_rename or not store.has_file(place):
            store.move(kept, place)
    return None


def finish_newest(store: Store, *, running: str = "", known: Snapshot | None = None) -> None:
    """Finish commits that were interrupted after creating a snapshot, except the commit of the run
    ``running``.

    ``known`` is the snapshot of a version. If no open run has committed according to ``known``, return
    without reading the newest version. If ``known`` is None, read the newest version if there is an open run.
    If the newest snapshot is damaged or missing, or if another write removes its lists, do nothing.
    """
    others = {run for run in open_runs(store) if run != running}
    with suppress(LostListError):  # a later write finishes the commits
        if known is not None:
            others.intersection_update(past.run for past in known.commits())
        if not others:
            return  # do not parse a large snapshot without need
        newest = Head.read(store, intact=True).snapshot
        for past in () if newest is None else newest.commits():
            if past.run in others:
                logger.info("%s: finish the interrupted cleanup of write %s", store.public(), past.run[:8])
                remove_replaced(store, past.run)


def remove_staging(store: Store, run: str) -> None:
    store.remove_tree(f"{STAGING}/{run}")
