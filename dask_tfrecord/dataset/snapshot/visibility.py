"""Find the files that readers see without a snapshot: committed files, but not those of open runs."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from dask_tfrecord.dataset.listing import Listing, list_directory, unfinished_only
from dask_tfrecord.dataset.names import (
    KEPT,
    METADATA_DIRECTORY,
    MOVED,
    REPLACED,
    open_runs,
    staged,
    stored_paths,
)
from dask_tfrecord.dataset.side_files import data_only, report_left_out, side_file_error, without_side_files
from dask_tfrecord.dataset.snapshot.head import Head
from dask_tfrecord.dataset.snapshot.model import Snapshot, listed_files
from dask_tfrecord.errors import Call, TFRecordError
from dask_tfrecord.files.entry import is_part, run_of
from dask_tfrecord.files.file_list import FileInfo, FileList
from dask_tfrecord.storage.found_files import FoundFiles
from dask_tfrecord.storage.paths import parent_of
from dask_tfrecord.storage.store import Store


def kept_files(store: Store, found: FoundFiles | None = None) -> FileList:
    """List the files in the directory of kept files. The name of each file is the file's original path,
    relative to the root of the dataset. ``found`` is an existing listing of the files.
    """
    kept = Store.of(store.fs, store.join(f"{KEPT}/")) if found is None else found.inside(KEPT)
    return list_directory(kept)


def committed_files(listing: Listing, *, use_snapshot: bool) -> Listing:
    """Return a listing without uncommitted files of this library and without files of other formats.

    In a dataset with a snapshot, only the files in the snapshot are committed. In a dataset without a
    snapshot, the files of open runs are uncommitted. The result always includes files that the user passed by
    their full names.

    Raise FileNotFoundError if one of the listed paths contains no committed file. Raise CorruptRecordError if
    one of several paths contains only files of other formats.
    """
    store, files = listing.store, tfrecord_files(listing).files
    is_root = cache(lambda directory: bool(Store.of(store.fs, directory).names(METADATA_DIRECTORY)))
    parts: dict[str, list[str]] = {}  # maps each dataset's root to the data files of the dataset
    for path in files.paths:
        if is_part(path) and path not in listing.spelled_out:
            root = next(filter(is_root, _possible_roots(parent_of(path))), None)
            if root is not None:
                parts.setdefault(root, []).append(path)
    uncommitted: set[str] = set()
    for root, of_root in parts.items():
        dataset = Store.of(store.fs, root)
        names = [*map(dataset.relative, of_root)]
        uncommitted.update(map(dataset.join, _uncommitted_paths(dataset, names, use_snapshot=use_snapshot)))
    committed = listing.keep(files.without(uncommitted - listing.spelled_out))
    if (first := _first_of_emptied_path(listing, committed)) is not None:
        raise unfinished_only(store.public(), store.public(parent_of(first.path)))
    return committed


def tfrecord_files(listing: Listing) -> Listing:
    """Return a listing without files of other formats, and report these files.

    Raise CorruptRecordError if one of several paths contains only files of other formats.
    """
    store = listing.store
    found = listing.keep(data_only(store, listing.files, keep=listing.spelled_out))
    if (first := _first_of_emptied_path(listing, found)) is not None:
        raise side_file_error(store, first)
    report_left_out(store, listing.files, found.files)
    return found


def _first_of_emptied_path(listing: Listing, left: Listing) -> FileInfo | None:
    """Return the first file of a path that has no file left, or None if every path has one."""
    start = 0
    for before, after in zip(listing.counts, left.counts, strict=True):
        if before and not after:
            return listing.files.slice(start, start + 1).infos[0]
        start += before
    return None


def _possible_roots(directory: str) -> Iterator[str]:
    """Yield the directories that may be the root of the dataset of a data file in ``directory``, the highest
    first: the directory above the partition directories, and the directories from there to ``directory``.
    """
    levels = directory.split("/")
    start = len(levels)
    while start and "=" in levels[start - 1]:
        start -= 1
    for end in range(start, len(levels) + 1):
        yield "/".join(levels[:end])


def _uncommitted_paths(store: Store, paths: Sequence[str], *, use_snapshot: bool) -> set[str]:
    """Return the uncommitted files among ``paths``, and the files that unfinished commits replace.

    All paths are relative to the root of the store.
    """
    # Read the open runs before the snapshot, so that no run has committed later than the snapshot and ended.
    runs = open_runs(store)
    if not (use_snapshot or runs):  # the snapshot, which may be hostile, is not needed
        return set()
    try:
        snapshot = Head.read(store, reads_files=True).snapshot
    except TFRecordError as error:
        if use_snapshot:
            raise
        if unfinished := hidden_by(store, None, runs)(paths):
            raise error.replaced(
                problem=f"{error.problem}, so it is unknown if the files of an unfinished write, such as "
                f"{store.public(store.join(min(unfinished)))}, are committed",
                advice="pass a list of the files to read",
                remedies=(),
            ) from None
        return set()
    if snapshot is not None:
        _check_in_place(store, snapshot)
    hidden = hidden_by(store, snapshot, runs)(paths)
    if snapshot is not None and use_snapshot:
        hidden.update({*paths}.difference(listed_files(snapshot)))
    return hidden


def _check_in_place(store: Store, snapshot: Snapshot) -> None:
    """Raise TFRecordError if a restore has not moved all files of the newest version back to their original
    paths.

    Until a restore has moved all files back, a listing of the directory is incomplete.
    """
    kept = listed_files(snapshot).intersection(kept_files(store).names)
    if kept and (missing := kept.difference(list_directory(store).names)):
        raise TFRecordError(
            f"the file is still in {KEPT}, because a restore has not finished",
            "read the directory of the dataset with its snapshot",
            Call("cleanup", store.public(), {}, "if the restore was interrupted"),
            path=store.public(store.join(min(missing))),
        )


def data_files(store: Store) -> FileList:
    """List the visible TFRecord files in the root of the store. Files of other formats are reported as
    `report_left_out` does.
    """
    return without_side_files(store, visible_files(store))


def visible_files(
    store: Store, snapshot: Snapshot | None = None, listed: Store | FoundFiles | None = None
) -> FileList:
    """List the files in the root of the store, except the files of open runs and the files that an unfinished
    commit replaces.

    ``snapshot`` is the newest snapshot, by default read when it is needed. ``listed`` is an existing listing
    of the files, or None to list them.
    """
    files = list_directory(listed or store)
    runs = open_runs(listed or store) if len(files) else []
    if not runs:
        return files
    newest = snapshot or Head.read(store, intact=True, reads_files=True).snapshot
    return files.without([*map(store.join, hidden_by(store, newest, runs)(files.names))])


def hidden_by(
    store: Store, snapshot: Snapshot | None, runs: Sequence[str]
) -> Callable[[Sequence[str]], set[str]]:
    """Return a function for paths relative to the root. It returns the data files among them that belong to
    the open runs ``runs``, and the files that commits are replacing.

    No file of the version ``snapshot`` is hidden. A committed run may still be open, because a repeated task
    has uploaded other files.
    """
    if not runs:
        return lambda paths: set()
    committed = {past.run for past in snapshot.commits()} if snapshot else set()
    notes = [staged(run, name) for run in runs if run in committed for name in (REPLACED, MOVED)]
    replaced = {path for note in notes for path in stored_paths(store, note)}
    listed = listed_files(snapshot)
    return lambda paths: replaced.union(path for path in paths if run_of(path) in runs).difference(listed)
