"""The check that files are still those that were listed. Opens no file."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from dask_tfrecord.files.storage.listing import FileInfo, list_directory
from dask_tfrecord.files.storage.open_file import ExpectedFile
from dask_tfrecord.files.storage.paths import unquoted_path
from dask_tfrecord.files.storage.store import Store

# More files than this are compared by one listing of the dataset instead of one request per file.
_FEW = 256

# Concurrent requests.
_THREADS = 16


def check_unchanged(store: Store, files: Iterable[FileInfo]) -> None:
    """Raise if a file changed since it was listed. Files without a stamp are not checked.

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
    try:
        now = store.look(file.path)
    except FileNotFoundError:
        raise expected.removed() from None
    expected.check(now)
