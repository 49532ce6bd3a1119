"""Stamps of files: modification times or ETags, which show that a file was rewritten without opening it."""

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.files.storage.listing import list_directory, path_column
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
        The same files as the rows of `Snapshot.file_list`.
    """
    stamps = pc.fill_null(rows["stamp"], "")
    return pc.or_(pc.equal(stamps, ""), pc.equal(stamps, files["stamp"]))


def with_stamps(store: Store, rows: pa.Table) -> pa.Table:
    """Add the stamps to the list of files that were just written. If the store fails, add no stamps."""
    try:
        store.fs.invalidate_cache()
        paths = [store.join(path) for path in rows["path"].to_pylist()]
        if store.renames:
            stamps = pa.array([stamp_of(store.look(path)) for path in paths], pa.string())
        else:
            listed = list_directory(store)
            stamps = listed["stamp"].take(pc.index_in(path_column(paths), listed["path"]))
    except Exception:  # a commit must not fail because stamps are missing
        return rows
    stamps = pc.if_else(pc.equal(stamps, ""), None, stamps)
    return rows.set_column(rows.column_names.index("stamp"), "stamp", stamps)
