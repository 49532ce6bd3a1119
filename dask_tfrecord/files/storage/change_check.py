"""Check that files have not changed since they were listed. The check opens no file."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.files.storage.listing import (
    FileInfo,
    info_table,
    list_directory,
    table_infos,
    unquoted_column,
)
from dask_tfrecord.files.storage.open_file import ExpectedFile
from dask_tfrecord.files.storage.store import Store

# If there are more files than this, they are compared with one new listing instead of one request per file.
_FEW = 256

# The number of concurrent requests.
_THREADS = 16


def check_unchanged(store: Store, files: Sequence[FileInfo] | pa.Table) -> None:
    """Raise if a file changed since it was listed. Files whose stamp is empty are not checked.

    Parameters
    ----------
    store : Store
        The store that holds the files.
    files : sequence of FileInfo or pyarrow.Table
        The files to check, as `FileInfo` objects or as a file list.

    Raises
    ------
    FileChangedError
        If a file was rewritten.
    FileNotFoundError
        If a file no longer exists.
    """
    if len(files) > _FEW:
        files = _without_unchanged(store, files if isinstance(files, pa.Table) else info_table(files))
    infos = table_infos(files) if isinstance(files, pa.Table) else files
    stamped = list({file.path: file for file in infos if file.stamp}.values())
    if store.local or len(stamped) < 2:
        for file in stamped:
            check_file(store, file)
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(partial(check_file, store), stamped))


def _without_unchanged(store: Store, files: pa.Table) -> pa.Table:
    """Return the files that may have changed: those that a new listing does not show to be unchanged."""
    store.fs.invalidate_cache()
    listed = list_directory(store)
    found = listed.take(pc.index_in(unquoted_column(files["path"]), unquoted_column(listed["path"])))
    is_same = pc.and_(
        pc.equal(found["stamp"], files["stamp"]),
        pc.or_kleene(pc.equal(found["size"], files["size"]), files["size"].is_null()),
    )
    return files.filter(pc.invert(pc.fill_null(is_same, False)))


def check_file(store: Store, file: FileInfo) -> None:
    """Raise as `check_unchanged` does if a file changed. A file without a stamp is compared by its size."""
    expected = ExpectedFile(store.public(file.path), file.size, file.stamp, True, dict)
    try:
        now = store.look(file.path)
    except FileNotFoundError:
        raise expected.removed() from None
    expected.check(now)
