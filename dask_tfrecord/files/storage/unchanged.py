"""Comparison of files with their listing, without opening any."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from dask_tfrecord.files.storage.listing import FileInfo, list_directory, unquoted_path
from dask_tfrecord.files.storage.open_file import ExpectedFile
from dask_tfrecord.files.storage.store import Store

# More files than this are looked up by one listing of the dataset, where every look is a request.
_FEW = 256


# Requests at a time.
_THREADS = 16


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
        found = {unquoted_path(info.path): info for info in list_directory(store)}
        stamped = [file for file in stamped if _stamp(found.get(unquoted_path(file.path))) != file.stamp]
    if store.local or len(stamped) < 2:
        for file in stamped:
            _check(store, file)
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(partial(_check, store), stamped))


def _stamp(file: FileInfo | None) -> str:
    return "" if file is None else file.stamp


def _check(store: Store, file: FileInfo) -> None:
    expected = ExpectedFile(store.public(file.path), file.size, file.stamp, True, dict)
    expected.check(store.look(file.path))
