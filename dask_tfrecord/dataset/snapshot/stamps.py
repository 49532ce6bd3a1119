"""Stamps of files: modification times or ETags, which show that a file was rewritten without opening it."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.storage.listing import column_paths, list_directory
from dask_tfrecord.files.storage.open_file import stamp_of
from dask_tfrecord.files.storage.store import Store


def are_proven(files: pa.Table, rows: pa.Table) -> pa.ChunkedArray:
    """Return, for each file of a snapshot, True if the listed stamp is equal to the stamp in the snapshot.

    The result is also True for files without a stamp in the snapshot, which early versions of this library
    wrote. For such files, only the size can be compared.

    Parameters
    ----------
    files : pyarrow.Table
        The files as `snapshot_files` returns them.
    rows : pyarrow.Table
        The same files as the rows of a `FileTable`.
    """
    stamps = pc.fill_null(rows["stamp"], "")
    return pc.or_(pc.equal(stamps, ""), pc.equal(stamps, files["stamp"]))


def with_stamps(store: Store, files: Sequence[FileEntry]) -> list[FileEntry]:
    """Add the stamps to the entries of files that were just written. If the store fails, add no stamps."""
    try:
        store.fs.invalidate_cache()
        if store.renames:
            stamps = {file.path: stamp_of(store.look(store.join(file.path))) for file in files}
        else:
            listed = list_directory(store)
            paths = map(store.relative, column_paths(listed["path"]))
            stamps = dict(zip(paths, listed["stamp"].to_pylist(), strict=True))
    except Exception:  # a commit must not fail because stamps are missing
        return list(files)
    return [replace(file, stamp=stamps.get(file.path, "")) for file in files]
