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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.snapshot.model import Commit, Snapshot, find_snapshot, listed_files
from dask_tfrecord.dataset.snapshot.names import (
    ATTEMPT,
    KEPT,
    MOVED,
    REFUSED,
    REPLACED,
    STAGING,
    STARTED,
    SUCCESS,
    open_runs,
    snapshot_path,
    staged,
    stored_paths,
)
from dask_tfrecord.dataset.snapshot.stored_files import (
    from_entries,
    listed_paths,
    rows_of_run,
)
from dask_tfrecord.dataset.snapshot.versions import encode, has_unlisted_version, newest_number
from dask_tfrecord.dataset.snapshot.visibility import has_committed, intact_snapshot
from dask_tfrecord.dataset.write.operations import Change, Operation
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import ConcurrentWriteError, DestinationError, TFRecordError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.storage.expected_files import stamp_of
from dask_tfrecord.files.storage.file_list import FileList
from dask_tfrecord.files.storage.found_files import FoundFiles
from dask_tfrecord.files.storage.paths import name_of, parent_of
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.storage.store_failures import hide, is_full, secrets_of

logger = logging.getLogger(__name__)

# The number of steps in a commit, as described in docs/format.md.
_STEPS = 7

# Before the first version of a dataset is created, this many versions after it are asked for by themselves,
# because an overwrite removes the versions before it, and a listing that lags may show no version at all.
_UNLISTED = 7

# Two files are compared in chunks of this size.
_COMPARED_BYTES = 1 << 20

# If a write has uploaded at most this many files, the commit requests each file's stamp (such as its ETag)
# instead of listing all files.
_FEW_FILES = 4


class Newest(NamedTuple):
    """The newest version of a dataset that this process has read or created.

    ``stamp`` is the result of `stamp_of` for the version's Parquet file. ``stamp`` changes if the directory
    is replaced by another dataset with the same newest version. If ``stamp`` is None, the next commit reads
    the newest version.
    """

    snapshot: Snapshot
    stamp: str | None

    @classmethod
    def of(cls, store: Store, snapshot: Snapshot) -> "Newest":
        """Create a `Newest` for a snapshot that this process has just read from, or created in, the root of
        the store.
        """
        return cls(snapshot, _stamp(store, snapshot.number))

    def is_unchanged(self, store: Store) -> bool:
        """Return True if the Parquet file of the version has not changed since this process read or created
        it.
        """
        return self.stamp is not None and _stamp(store, self.snapshot.number) == self.stamp


def _stamp(store: Store, number: int) -> str | None:
    with suppress(Exception):  # without a stamp, the next commit reads the version again
        return stamp_of(store.look(store.join(snapshot_path(number))))
    return None


class Transaction:
    """The commit of a run, in which an operation changes the newest version.

    The transaction reads the newest version a second time only if another write has committed in the
    meantime.

    Parameters
    ----------
    run : WriteRun
        The plan of the write.
    operation : Operation
        The kind of write, which determines how the commit changes the newest version.
    files : FileList, optional
        The files that the tasks have written.
    known : Newest, optional
        For an append or an expire that only this process may commit: the newest version when the operation
        was planned. While ``known`` is the newest version, the commit reads no version.
    attempts : mapping of str to str, optional
        Maps the paths of staged files to `FileEntry.attempt`.
    """

    def __init__(
        self,
        run: WriteRun,
        operation: Operation,
        files: FileList | None = None,
        known: Newest | None = None,
        attempts: Mapping[str, str] | None = None,
    ) -> None:
        self.run, self.operation, self.store = run, operation, run.store
        self._attempts = attempts or {}
        self.files = from_entries([], run.schema, run.partitioning) if files is None else files
        self.newest: Snapshot | None = None
        self._known = known
        # The name of the file that marks this attempt, or "" if no other process may commit.
        self._attempt = ""
        self._change: Change | None = None  # The change that the transaction has made.
        self._found: FoundFiles | None = None  # The listing of this attempt, until `_plan` uses it.

    def commit(self) -> Snapshot:
        """Perform all steps of the commit. Return the same snapshot as the function `commit`."""
        run = self.run
        with self._marked() if self._known is None else nullcontext():
            self._log(1, "look for an earlier success of this write")
            self._found = self._find()
            snapshot = self.look(self._found if len(self.files) else None)
            if snapshot is None:
                self._log(2, "finish the cleanup of the previous commit")
                if self.newest is not None:
                    finish_newest(self.store, running=run.run, known=self.newest, found=self._found)
                snapshot = self.create()
        if run.run != snapshot.run:
            logger.info("%s: has no files in the newest version %d", run.title, snapshot.number)
        else:
            logger.info("%s: committed version %d%s", run.title, snapshot.number, self._fate(snapshot))
        self._log(7, "remove the replaced files and the staging directory")
        remove_replaced(run, self.files if run.run != snapshot.run else None, self._change)
        return snapshot

    def _fate(self, snapshot: Snapshot) -> str:
        """Return the end of a log message: what the commit does with replaced files and older versions."""
        change = self._change
        if change is not None and change.kept:
            return f", keeps {len(change.kept)} replaced files for the versions before it"
        if change is not None and snapshot.oldest == snapshot.number > 1:
            return f", removes the versions before it and {len(change.removed)} files"
        return ""

    def look(self, found: FoundFiles | None = None) -> Snapshot | None:
        """Read the newest version. Return the snapshot that another attempt of this run has committed, or
        None.

        ``found`` is an existing listing that contains the newest version, or None.
        """
        if self._known is not None:
            self.newest = self._known.snapshot
        else:
            find = intact_snapshot if self.operation.replaces_damage else find_snapshot
            self.newest = find(self.store, found)
        return self.run.committed_in(self.newest)

    def create(self) -> Snapshot:
        """Create the next snapshot, which commits the run. Call `look` first. Return the newest snapshot.

        If another write has created this version first, compare this write with the newest version, and try
        the next version. If this write conflicts with the newest version, remove the files of this write, and
        raise an error.
        """
        while (snapshot := self._try()) is None:
            pass
        return snapshot

    def _try(self) -> Snapshot | None:
        """Try to create the next snapshot. Return None if the write must be compared with a newer version."""
        self._log(3, f"compare the newest version with version {self.run.base}, for which it was planned")
        known, self._known = self._known, None
        try:
            planned = self._plan(publishes=known is None)
        except TFRecordError:
            compared = self.newest
            # Raise the error only if `compared` is still the newest version, and if no other attempt has
            # committed the run.
            if (committed := self.look()) is not None:
                return committed
            if known is None and _number(self.newest) == _number(compared):
                _refuse(self.run, self._attempt)
                raise
            return None
        if known is not None and not known.is_unchanged(self.store):
            return self.look()
        if planned is None:
            _remove_files(self.run)  # this call removes the file list that a previous try may have stored
            return self.newest
        return self._store(*planned)

    def _plan(self, *, publishes: bool) -> tuple[Operation, Change] | None:
        """Publish the files. Return what the commit changes, or None if nothing is left to do.

        ``publishes`` may be False only for an append or an expire that no other process may commit. If
        ``publishes`` is False and the store cannot rename files, publish nothing, because exactly the files
        in `files` are uploaded.
        """
        run, files = self.run, self.files
        operation = self.operation.follow(run, self.newest, files)
        if operation is None:
            return None
        found, self._found = self._found or self._find(), None
        marks = run.marks(found) if self._attempt else []
        if REFUSED in marks:
            problem = "another attempt at this commit has found a conflict, or the write was given up"
            raise ConcurrentWriteError(problem, "start the write again")
        self._log(4, f"publish {len(files)} files")
        present = None
        if (len(files) or STARTED in marks) and (self.store.stages_files or publishes):
            present = publish_files(run, files, found, self._attempts)
        self._log(5, "make the next snapshot")
        used = operation.used(with_stamps(self.store, files, present))
        change = operation.change(run, self.newest, used)
        if change.snapshot.number == 1 and has_unlisted_version(self.store, 1, _UNLISTED):
            raise _lagging()
        moved = [*change.removed, *change.kept, *(f"{KEPT}/{path}" for path in change.kept)]
        self.store.refuse_links(map(self.store.join, moved), files=True)
        unused = {*listed_paths(files)}.difference(listed_paths(used))
        return operation, change._replace(removed=[*change.removed, *sorted(unused)])

    def _store(self, operation: Operation, change: Change) -> Snapshot | None:
        """Create the Parquet file of the next version, which commits the run.

        Return the committed version as a reader would read it, or None if another write created the version
        first.
        """
        run, store, snapshot = self.run, self.store, change.snapshot
        action = f"create version {snapshot.number}, which lists {snapshot.log.totals.files} files"
        replaced = len(change.removed) + len(change.kept)
        self._log(6, f"{action} and replaces {replaced} files" if replaced else action)
        note_replaced(store, run.run, change.removed, change.kept)
        path = store.join(snapshot_path(snapshot.number))
        data, log = encode(store, vars(snapshot))
        failure = None
        try:
            store.create_exclusively(path, data)
            if operation.keeps_values:
                store.copy_permissions([store.join(snapshot_path(snapshot.number - 1))], path)
        except Exception as error:  # the snapshot's file may exist in spite of the error
            reason = hide(repr(error), secrets_of(store))
            logger.info("%s: version %d was not created: %s", run.title, snapshot.number, reason)
            failure = error
        if failure is None and _is_newest(run, snapshot.number):
            self._change = change
            return replace(snapshot, log=log, before=())
        committed = self.look()
        if committed is None:
            # An overwrite has removed this version, so readers ignore the snapshot's file.
            if failure is None:
                store.remove([path])
            elif newest_number(store) < snapshot.number:
                raise _lagging() if isinstance(failure, FileExistsError) else failure
        return committed

    def _find(self) -> FoundFiles | None:
        """On object stores, list open runs, marks of this run, and uploaded files in one listing.

        If the commit has no files, list only the open runs and the marks.
        """
        return self.store.list_at_once("" if len(self.files) else STAGING) if self._attempt else None

    @contextmanager
    def _marked(self) -> Iterator[None]:
        """Mark this attempt at the commit with a file in the staging directory. While the mark exists, no
        other attempt removes the files of the run.
        """
        self._attempt = f"{ATTEMPT}{uuid4().hex}"
        try:
            self.run.mark(self._attempt)
            yield
        except BaseException:  # Handle every exception, including KeyboardInterrupt.
            with suppress(Exception):  # The caller reports the original exception.
                # Keep the staging directory, because the directory hides published files from readers.
                self.store.remove_file(self.run.staged(self._attempt))
            raise

    def _log(self, step: int, action: str) -> None:
        logger.info("%s: commit step %d of %d: %s", self.run.title, step, _STEPS, action)


def _lagging() -> ConcurrentWriteError:
    problem = "the store has a version of the dataset that its listings do not show yet"
    return ConcurrentWriteError(problem, "start the write again when the listings show the version")


def _number(newest: Snapshot | None) -> int:
    return 0 if newest is None else newest.number


def commit(
    run: WriteRun, operation: Operation, entries: Iterable[FileEntry] = (), known: Newest | None = None
) -> Snapshot:
    """Commit a write as a single `Transaction`. ``entries`` describe the files that the tasks have written.

    Return the new snapshot. If an earlier attempt at the commit has succeeded, return the snapshot that the
    earlier attempt created. Return the unchanged newest snapshot if the dataset no longer keeps the snapshot
    of the earlier attempt, or if other writes have left nothing to do.

    Raise the errors of `Operation.follow` and `Operation.change`. After a GroupsLostError, the new files
    remain staged.
    """
    entries = list(entries)
    if names := {name for entry in entries for name in entry.open_columns}:
        run = replace(run, schema=run.schema.opened(names))
    files = from_entries(entries, run.schema, run.partitioning)
    attempts = {one.path: one.attempt for one in entries if one.attempt}
    attempts |= {one.columns.path: one.attempt for one in entries if one.attempt and one.columns}
    return Transaction(run, operation, files, known, attempts).commit()


def written(run: WriteRun, snapshot: Snapshot) -> Commit:
    """Return the result of a write, including how many files, rows and bytes the write added."""
    own = snapshot.log.lists[-1].content.added if snapshot.run == run.run else snapshot.file_list
    added = rows_of_run(own, run.run)
    rows, size = (pc.sum(added[name]).as_py() or 0 for name in ("records", "bytes"))
    return Commit.of(snapshot, added_files=len(added), added_rows=rows, added_bytes=size)


def log_summary(run: WriteRun, done: Commit, seconds: float) -> None:
    """Log how many files, rows and bytes the write added, without the files of earlier writes."""
    files, rows, size = done.details.values()
    rate = rows / max(seconds, 1e-9)
    counts = f"{files} files, {rows} rows, {size} bytes in {seconds:.1f} s ({rate:.0f} rows/s)"
    logger.info("%s: done: version %d, %s", run.title, done.version, counts)


def abandon(run: WriteRun) -> None:
    """Remove the files of a failed write, so that the write can no longer be committed.

    Files that tasks uploaded to their final paths stay hidden and are left to `cleanup`, because running
    tasks may upload more files.
    """
    if run.store.stages_files:
        _refuse(run)
        return
    with suppress(Exception):  # ignore this error, because the caller reports the failure of the write
        if run.committed_snapshot() is None:
            run.store.remove(run.store.files(staged(run.run, "rows")))


def _refuse(run: WriteRun, attempt: str = "") -> None:
    """Forbid the commit of a failed write, and remove the files of the write.

    If the commit has succeeded, the files are kept. The files are also kept if an attempt other than
    ``attempt`` exists, because that attempt may be about to commit them. Every attempt creates its mark
    before looking for the mark `REFUSED`. An attempt that begins too late to be seen by this function finds
    the mark `REFUSED`, because this mark is removed last.
    """
    with suppress(Exception):  # ignore this error, because the caller reports the failure of the write
        run.mark(REFUSED)
        if all(name == attempt or not name.startswith(ATTEMPT) for name in run.marks()):
            if run.committed_snapshot() is None:
                _remove_files(run)
            else:
                run.store.remove([run.staged(REFUSED)])


def discard(run: WriteRun) -> None:
    """Remove all files of a failed write. The commit must not have begun in any process, and must not begin
    later.
    """
    with suppress(Exception):  # ignore this error, because the caller reports the failure of the write
        _remove_files(run)


def _remove_files(run: WriteRun) -> None:
    """Remove all files of a run. The mark that forbids the commit is removed last."""
    logger.info("%s: remove what the failed write staged", run.title)
    run.store.fs.invalidate_cache()
    run.store.remove(filter(run.owns, run.store.files()))
    remove_staging(run.store, run.run)


def publish_files(
    run: WriteRun, files: FileList, found: FoundFiles | None = None, attempts: Mapping[str, str] | None = None
) -> Mapping[str, dict[str, Any]] | None:
    """Move the files of the run to their final paths. Readers do not see the files until the commit. No file
    is replaced: if an earlier attempt of this run has published a file with the same content, it stays.

    If the store cannot rename files, only remove the run's uploaded files that are not in ``files``, and
    return fsspec's info about all files of the dataset. ``found`` is an existing listing. If ``found`` is
    None, the function lists the files when necessary. ``attempts`` maps the paths of staged files to
    `FileEntry.attempt`.

    Raise ConcurrentWriteError if a file of the run no longer exists, for example because an earlier attempt
    has found a conflict and removed it, or if another attempt has published other rows under the same name.
    Raise DestinationError if the filesystem stores a partition directory under another name.
    """
    store = run.store
    names = listed_paths(files)
    if store.stages_files:
        for name in names:
            target, attempt = store.join(name), (attempts or {}).get(name)
            source = run.staged(f"{attempt}/{name}" if attempt else name)
            try:
                store.publish(source, target)
            except FileNotFoundError:
                if not store.fs.exists(target):  # no attempt of this run has moved the file to `target`
                    raise _removed(run, name) from None
            except FileExistsError:
                # An attempt of this run has moved the file, and the task may have run again.
                with suppress(FileNotFoundError):
                    if not _have_same_content(store, source, target):
                        raise _written_twice(store, name) from None
        directories = _with_parents(map(parent_of, names))
        for directory in directories:
            store.sync_directory(store.join(directory))
        _check_names(store, directories)
        return None
    # On a store that stages no files, the tasks have uploaded the files to the final paths. Failed attempts
    # of tasks may have uploaded files that the write does not use.
    listed = {store.join(name): name for name in names}
    present = (FoundFiles(store) if found is None or found.directory else found).infos
    for path in sorted(listed.keys() - present.keys()):  # the listing may not show new files yet
        if not store.has_file(path):
            raise _removed(run, listed[path])
    store.remove(path for path in present if run.owns(path) and path not in listed)
    return present


def _check_names(store: Store, directories: Iterable[str]) -> None:
    """Raise DestinationError if the filesystem has changed a partition directory's name, for example to lower
    case.
    """
    present: dict[str, set[str]] = {}  # maps each parent directory to the names in the directory
    for directory in directories:
        name = name_of(directory)
        # Below the directory of kept files, each partition directory has the same name as in the dataset.
        for place in (directory, f"{KEPT}/{directory}") if "=" in name else ():
            parent = parent_of(place)
            if parent not in present:
                present[parent] = {*store.names(parent)}
            # The directory may be missing if another process has committed this run and then compacted the
            # dataset.
            if present[parent] and name not in present[parent] and store.fs.exists(store.join(place)):
                alike = [ascii(other) for other in present[parent] if _folded(other) == _folded(name)]
                stored = alike[0] if alike else "another name"
                is_old = " of an older version" if place != directory else ""
                problem = f"this filesystem does not distinguish the directory {name!a} from {stored}{is_old}"
                advice = "write both partition values in one form, for example in lower case"
                raise DestinationError(problem, advice, path=store.public(store.join(place)))


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _removed(run: WriteRun, name: str) -> ConcurrentWriteError:
    problem = "the file was removed before its write was committed, by `cleanup` or because of a conflict"
    return ConcurrentWriteError(problem, "start the write again", path=run.store.public(run.store.join(name)))


def _have_same_content(store: Store, path: str, other: str) -> bool:
    if store.look(path)["size"] != store.look(other)["size"]:
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


def with_stamps(store: Store, files: FileList, present: Mapping[str, dict[str, Any]] | None) -> FileList:
    """Add the column ``stamp`` to ``files``, with the result of `stamp_of` for each file. If the store fails,
    do not add the column.

    ``present`` maps each path to fsspec's info about the file, or is None if no info is known. Raise
    ConcurrentWriteError if the size of a file differs from the size that its task returned.
    """
    try:
        paths = [*map(store.join, files.paths)]
        store.fs.invalidate_cache()
        # A listing is cheaper only for many files: one request returns a thousand files, but the names of all
        # files are transferred.
        if present is None and len(paths) > _FEW_FILES and (found := store.list_at_once()) is not None:
            present = found.infos
        infos = [(present or {}).get(path) or store.look(path) for path in paths]
        stamps = pa.array(map(stamp_of, infos), pa.string())
        sizes = [info["size"] for info in infos]
    except Exception:  # a commit must not fail because stamps are missing
        return files
    for name, size, written in zip(files.paths, sizes, files["bytes"].to_pylist(), strict=True):
        if size is not None and size != written:
            raise _written_twice(store, name)
    return files.with_columns({"stamp": pc.if_else(pc.equal(stamps, ""), None, stamps)})


def note_replaced(store: Store, run: str, removed: Sequence[str], kept: Sequence[str] = ()) -> None:
    """Store two lists for use after the commit: the files to remove, and the files to move.

    If this process is interrupted, a later process can use the lists to remove and move the files.
    """
    for name, paths in ((REPLACED, removed), (MOVED, kept)):
        if paths:
            with store.create(store.join(staged(run, name))) as file:
                file.write(json.dumps(paths).encode())


def finish_commit(store: Store, run: str, listed: Collection[str] = (), change: Change | None = None) -> None:
    """Remove the replaced files, or move them to the directory of kept files. Then close the run.

    The snapshot of the commit must exist. Files in ``listed`` are kept, because the newest snapshot lists
    them. If ``change`` is None, use the lists that `note_replaced` has stored.
    """
    if change is not None:
        removed, kept = change.removed, change.kept
    else:
        removed, kept = (stored_paths(store, staged(run, name)) for name in (REPLACED, MOVED))
    move_files(store, kept, None if change is None else change.snapshot)
    store.remove(store.join(path) for path in removed if path not in listed)
    close_run(store, run)


def close_run(store: Store, run: str) -> None:
    """End a run whose replaced files have been removed or moved: create ``_SUCCESS``, and remove the staging
    directory.
    """
    try:
        store.touch(store.join(SUCCESS))
    except OSError as error:
        if not is_full(error):  # the marker is for other tools, and a full disk needs the space
            raise
    remove_staging(store, run)


def move_files(store: Store, paths: Sequence[str], known: Snapshot | None = None) -> None:
    """Move files in the newest snapshot to their original paths. Move all other files to the directory of
    kept files.

    If another commit succeeds during the call, move the files again, to the paths that its snapshot requires.
    ``known`` is the newest snapshot. If ``known`` is None, the function reads the newest snapshot.
    """
    if not paths:
        return
    newest = find_snapshot(store) if known is None else known
    while newest is not None:
        store.fs.invalidate_cache()
        move = partial(_move_file, store, listed_files(newest))
        store.remove(filter(None, store.for_each(move, paths)))
        if newest_number(store) <= newest.number:
            break
        newest = find_snapshot(store)
    kept = (parent_of(f"{KEPT}/{path}") for path in paths)
    store.remove_empty({*map(store.join, kept), *(store.join(parent_of(path)) for path in paths)})


def _move_file(store: Store, listed: Collection[str], path: str) -> str | None:
    """Move a file as `move_files` describes. If the caller must remove the source, return the path of the
    source.
    """
    place, kept = store.join(path), store.join(f"{KEPT}/{path}")
    with suppress(FileNotFoundError):  # the file may have been moved before, perhaps by another process
        if path not in listed:
            return store.set_aside(place, kept)
        store.put_back(kept, place)
    return None


def finish_newest(
    store: Store, *, running: str = "", known: Snapshot | None = None, found: FoundFiles | None = None
) -> None:
    """Finish commits that were interrupted after creating a snapshot, except the commit of the run
    ``running``.

    ``known`` is the snapshot of a version. If no open run has committed according to ``known``, return
    without reading the newest version. If ``known`` is None, read the newest version if there is an open run.
    If the newest snapshot is damaged or missing, do nothing. ``found`` is an existing listing of the open
    runs, or None.
    """
    others = [run for run in open_runs(found or store) if run != running]
    if not any(known is None or has_committed(known, run) for run in others):
        return  # do not parse a large snapshot without need
    newest = intact_snapshot(store)
    if newest is None:
        return
    for run in others:
        if has_committed(newest, run):
            logger.info("%s: finish the interrupted cleanup of write %s", store.public(), run[:8])
            finish_commit(store, run, listed_files(newest))


def remove_staging(store: Store, run: str) -> None:
    store.remove_tree(f"{STAGING}/{run}")


def remove_replaced(run: WriteRun, files: FileList | None = None, change: Change | None = None) -> None:
    """Remove the files that the commit replaced, and the staging directory of the run.

    If removing the files fails, only warn, because the new data is already committed. If the newest snapshot
    may lack files of the run, the caller passes the run's files as ``files``. The function removes the files
    in ``files`` that the newest snapshot does not list. ``change`` is the change that the commit has made, or
    None if another attempt has committed.
    """
    try:
        if files is not None:
            run.store.remove(map(run.store.join, _unlisted(run, files)))
        finish_commit(run.store, run.run, (), change)
    except Exception as error:  # the snapshot exists, so the write has succeeded despite the error
        reason = hide(str(error), secrets_of(run.store))
        warnings.warn(
            f"{run.store.public()}: the data is written, but not all files that it replaces "
            f"could be removed ({reason}). The next write removes them, and so does Dataset.cleanup.",
            UserWarning,
            stacklevel=2,
        )


def _is_newest(run: WriteRun, number: int) -> bool:
    """Return True if the new version ``number`` is the newest version.

    An overwrite removes earlier snapshots, so a slower write can create one of these versions again.
    """
    try:
        return newest_number(run.store) <= number
    except Exception:  # the listing failed, so assume that no newer snapshot exists
        return True


def _unlisted(run: WriteRun, files: FileList) -> list[str]:
    """Return the paths, relative to the root, of a run's files that the newest snapshot does not list.

    The newest snapshot may belong to another run and still list files of this run, because an append keeps
    the files that an earlier attempt of this run has committed.
    """
    listed = listed_files(find_snapshot(run.store))
    return [name for name in listed_paths(files) if name not in listed]


def _with_parents(directories: Iterable[str]) -> set[str]:
    """Return directories and all of their parents, up to the root, which is ""."""
    result: set[str] = set()
    for directory in directories:
        while directory not in result:
            result.add(directory)
            directory = parent_of(directory)
    return result
