"""Whether files are still the ones that a snapshot or a listing describes, judged without opening them."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from dask_tfrecord.dataset.snapshot.names import is_part
from dask_tfrecord.errors import FileChangedError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.storage.listing import FileInfo, list_directory, plain
from dask_tfrecord.files.storage.open_file import Expected, stamp_of
from dask_tfrecord.files.storage.store import Store

# More files than this are looked up by one listing of the dataset, where every look is a request.
_FEW = 256

# Requests at a time.
_THREADS = 16

_AS_THEY_ARE = "use_snapshot=False reads the files as they are"


def is_proven(file: FileInfo, entry: FileEntry) -> bool:
    """True if the listed file is the one that the snapshot's entry describes, as far as stamps can tell.

    Entries of earlier versions of the library have no stamp; their size is all there is to compare.
    """
    return not entry.stamp or file.stamp == entry.stamp


def with_stamps(store: Store, files: Sequence[FileEntry]) -> list[FileEntry]:
    """The files that were just written, with their stamps; without them if the store fails to tell."""
    try:
        store.fs.invalidate_cache()
        if store.renames:
            stamps = {file.path: stamp_of(store.look(store.join(file.path))) for file in files}
        else:
            start = len(store.join(""))
            stamps = {info.path[start:]: info.stamp for info in list_directory(store)}
    except Exception:  # the write succeeds without stamps, too
        return list(files)
    return [replace(file, stamp=stamps.get(file.path, "")) for file in files]


def check_unchanged(store: Store, files: Iterable[FileInfo]) -> None:
    """Compare files with their listing, without opening any.

    Raises
    ------
    FileChangedError
        If a file was rewritten.
    FileNotFoundError
        If a file is gone.
    """
    stamped = list({file.path: file for file in files if file.stamp}.values())
    if not store.local and len(stamped) > _FEW:
        store.fs.invalidate_cache()
        found = {plain(info.path): info for info in list_directory(store)}
        stamped = [file for file in stamped if _stamp(found.get(plain(file.path))) != file.stamp]
    if store.local or len(stamped) < 2:
        for file in stamped:
            _check(store, file)
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(partial(_check, store), stamped))


def _stamp(file: FileInfo | None) -> str:
    return "" if file is None else file.stamp


def _check(store: Store, file: FileInfo) -> None:
    expected = Expected(store.public(file.path), file.size, file.stamp, True, dict)
    expected.check(store.look(file.path))


def changed_since_snapshot(store: Store, path: str) -> FileChangedError:
    """The error for a file whose content is not the one that the snapshot describes."""
    root = store.public(store.root)
    mend = f"if it was rewritten on purpose, call dask_tfrecord.index({root!r}) again"
    if is_part(path):
        mend = "bring back the file as to_tfrecord wrote it"
    problem = "the content is not the one that the dataset's snapshot describes (CRC-32C differs)"
    return FileChangedError(problem, path=store.public(path), advice=f"{mend}; {_AS_THEY_ARE}")
