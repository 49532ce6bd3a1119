"""Check that files have not changed since they were listed. The check does not open the files."""

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
from dask_tfrecord.files.storage.open_file import ExpectedFile, removed
from dask_tfrecord.files.storage.store import Store

# The largest number of files that are compared with one request per file; more files are compared with one
# new listing.
_FEW = 256

# The number of concurrent requests in a check of many files.
_THREADS = 16


def check_unchanged(store: Store, files: Sequence[FileInfo] | pa.Table) -> None:
    """Raise if a file changed since it was listed. Files with an empty stamp are not checked.

    Parameters
    ----------
    store : Store
        The store that holds the files.
    files : sequence of FileInfo or pyarrow.Table
        The files to check, as `FileInfo` objects or as a file list.

    Raises
    ------
    FileChangedError
        If a file was rewritten or removed after it was listed.
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
    """Return the rows of files that may have changed: those that a new listing does not show to be
    unchanged.
    """
    store.fs.invalidate_cache()
    listed = list_directory(store)
    found = listed.take(pc.index_in(unquoted_column(files["path"]), unquoted_column(listed["path"])))
    is_same = pc.and_(
        pc.equal(found["stamp"], files["stamp"]),
        pc.or_kleene(pc.equal(found["size"], files["size"]), files["size"].is_null()),
    )
    return files.filter(pc.invert(pc.fill_null(is_same, False)))


def check_file(store: Store, file: FileInfo) -> None:
    """Raise if one file changed since it was listed, as `check_unchanged` does for many files.

    If the file has no stamp, only its size is compared.
    """
    expected = ExpectedFile(store.public(file.path), file.size, file.stamp, True, dict)
    try:
        now = store.look(file.path)
    except FileNotFoundError:
        raise removed(expected.path) from None
    expected.check(now)
