"""Which of the files that were found are committed: those that a snapshot lists, or that nobody writes."""

from collections.abc import Sequence
from dataclasses import replace

from dask_tfrecord.dataset.snapshot.model import Snapshot, find_snapshot
from dask_tfrecord.dataset.snapshot.names import METADATA_DIRECTORY, open_runs, replaced_files
from dask_tfrecord.errors import CorruptRecordError, TFRecordError
from dask_tfrecord.files.part_names import _PART_NAME, is_part, run_of
from dask_tfrecord.files.storage.listing import FileInfo, Listing, list_directory
from dask_tfrecord.files.storage.not_found import unfinished_only
from dask_tfrecord.files.storage.paths import name_of, parent_of, unquoted_path
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store

_ADVICE = "pass use_snapshot=False to read the files that are there, whatever the snapshot says"


@redact_errors
def snapshot_files(store: Store, snapshot: Snapshot) -> tuple[FileInfo, ...]:
    """The snapshot's files with their checksums, if they are all there is.

    Raises
    ------
    CorruptRecordError
        If one is missing, or has another size.
    TFRecordError
        If there are files that no write of ours made.
    """
    found = {unquoted_path(info.path): info for info in list_directory(store)}
    files = []
    for file in snapshot.files:
        info = found.pop(store.join(file.path), None)
        public = store.public(store.join(file.path))
        if info is None or (store.local and info.size is None):
            problem = "the file is missing, the dataset's snapshot lists it"
            raise CorruptRecordError(problem, path=public, advice=_ADVICE)
        if info.size not in (None, file.bytes):
            problem = f"the file has {info.size:,} bytes, the dataset's snapshot says {file.bytes:,}"
            again = "" if is_part(file.path) else "call dask_tfrecord.index again if that is right, or "
            raise CorruptRecordError(problem, path=public, advice=again + _ADVICE)
        files.append(replace(info, crc32c=file.crc32c))
    foreign = {path for path in found if not is_part(path)}
    if foreign:  # perhaps an overwrite replaced them and did not come to removing them
        foreign -= {store.join(path) for path in replaced_files(store, snapshot.run)}
    if foreign:
        raise TFRecordError(
            f"the dataset's snapshot does not list {len(foreign):,} of the files here",
            path=store.public(min(foreign)),
            advice="move them elsewhere, or pass use_snapshot=False to read them as well",
        )
    return tuple(files)


@redact_errors
def newest_snapshot(store: Store) -> tuple[Snapshot, tuple[FileInfo, ...]] | None:
    """Return the newest snapshot with its files; None if the store's root has no snapshot.

    If an overwrite replaces the files in the meantime, its snapshot is used.

    Raises
    ------
    CorruptRecordError, TFRecordError
        As `snapshot_files` does.
    """
    snapshot = find_snapshot(store)
    while snapshot is not None:
        try:
            return snapshot, snapshot_files(store, snapshot)
        except CorruptRecordError:
            newer = find_snapshot(store)
            if newer is None or newer.number == snapshot.number:
                raise
            snapshot = newer
    return None


@redact_errors
def committed_files(listing: Listing, *, use_snapshot: bool) -> tuple[FileInfo, ...]:
    """The files of a listing but for those of ours that are not committed; what was spelled out stays.

    Where a snapshot is, it tells; else the marks of writes that are under way, or broke off. A directory with
    a part of what one write was to leave there is not taken for the whole.

    Raises
    ------
    FileNotFoundError
        If no file is left.
    TFRecordError
        For a directory without a snapshot that lacks some files of a write.
    """
    store, files = listing.store, listing.files
    roots: dict[str, bool] = {}
    ours: dict[str, list[FileInfo]] = {}
    for file in files:
        if is_part(file.path) and file.path not in listing.spelled_out:
            root = _root_of(store, parent_of(file.path), roots)
            if root is not None:
                ours.setdefault(root, []).append(file)
    hidden = {
        file.path
        for root, parts in ours.items()
        for file in _uncommitted(Store(store.fs, root), parts, use_snapshot=use_snapshot)
    }
    left = tuple(file for file in files if file.path not in hidden)
    if not left:
        place = store.public(store.root)
        raise FileNotFoundError(f"{place}: {unfinished_only(store.public(min(ours)))}")
    if use_snapshot and listing.base:
        _check_whole(store, left)
    return left


def _root_of(store: Store, directory: str, known: dict[str, bool]) -> str | None:
    """The dataset whose data file may lie in a directory; ``known`` remembers what was looked at."""
    levels = directory.split("/")
    start = len(levels)
    while start and "=" in levels[start - 1]:
        start -= 1
    for end in range(start, len(levels) + 1):
        root = "/".join(levels[:end])
        if root not in known:
            known[root] = bool(Store(store.fs, root).names(METADATA_DIRECTORY))
        if known[root]:
            return root
    return None


def _uncommitted(store: Store, files: Sequence[FileInfo], *, use_snapshot: bool) -> list[FileInfo]:
    snapshot = find_snapshot(store) if use_snapshot else None
    if snapshot is not None:
        committed = {store.join(file.path) for file in snapshot.files}
        return [file for file in files if file.path not in committed]
    kept = set(without_open_runs(store, files))
    return [file for file in files if file not in kept]


def _check_whole(store: Store, files: Sequence[FileInfo]) -> None:
    parts = unfinished([file.path for file in files])
    if parts:
        raise TFRecordError(
            "the file belongs to a write that has not finished, others of it are missing",
            path=store.public(parts[0]),
            advice="write it again elsewhere, or pass use_snapshot=False to read what is there",
        )


def unfinished(paths: Sequence[str]) -> list[str]:
    """Those of the paths that are data files of writes of which other partitions' are missing.

    In partition directories that cannot be told, for an empty partition has no files there.
    """
    writes: dict[tuple[str, int], dict[str, str]] = {}
    for path in paths:
        part = _PART_NAME.fullmatch(name_of(path))
        if part and "=" not in name_of(parent_of(path)):
            writes.setdefault((part["run"], int(part["count"])), {})[part["index"]] = path
    return [path for (_, count), found in writes.items() if len(found) < count for path in found.values()]


def visible_files(store: Store) -> list[FileInfo]:
    """The visible files at the root, without those that writes which have not committed put there."""
    return without_open_runs(store, list_directory(store))


def without_open_runs(store: Store, files: Sequence[FileInfo]) -> list[FileInfo]:
    """The files but for those of writes that have not committed."""
    if not any(is_part(file.path) for file in files):
        return list(files)
    hidden = {run[:8] for run in open_runs(store)}
    return [file for file in files if run_of(file.path) not in hidden]
