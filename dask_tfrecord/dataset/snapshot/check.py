"""Compare the files of a dataset's directory with a snapshot, with one listing of the directory."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.names import KEPT, open_runs
from dask_tfrecord.dataset.snapshot.visibility import lost_file, of_open_runs, replaced_paths
from dask_tfrecord.errors import CorruptRecordError
from dask_tfrecord.files.entry import is_part
from dask_tfrecord.files.side_files import without_side_files
from dask_tfrecord.files.storage.file_list import FileList
from dask_tfrecord.files.storage.listing import find_listed, look_up
from dask_tfrecord.files.storage.paths import is_http
from dask_tfrecord.files.storage.store import Store


@dataclass(frozen=True, eq=False)
class ComparedFiles:
    """What a listing of a directory shows of the files of a snapshot.

    Attributes
    ----------
    files : FileList
        The files that the snapshot lists, in the same order, with the paths, sizes and stamps that the store
        states. The row of a missing file is null.
    listed : FileList
        The file list of the snapshot.
    unlisted : FileList
        The TFRecord files that the snapshot does not list, without the files in ``unfinished``.
    unfinished : FileList
        The data files of open runs that have not committed, and the files that unfinished commits replace.
    """

    files: FileList
    listed: FileList
    unlisted: FileList
    unfinished: FileList

    @property
    def is_missing(self) -> pa.ChunkedArray:
        return self.files["path"].is_null()

    @property
    def is_resized(self) -> pa.ChunkedArray:
        """A mask that is True for each file whose size differs from the size in the snapshot."""
        return _is_resized(self.files, self.listed)

    @property
    def differ(self) -> bool:
        """True if a file is missing, resized, unlisted or unfinished."""
        lost = pc.or_(self.is_missing, self.is_resized)
        return bool(pc.any(lost).as_py() or len(self.unlisted) or len(self.unfinished))


def _is_resized(files: FileList, listed: FileList) -> pa.ChunkedArray:
    return pc.fill_null(pc.not_equal(files["bytes"], listed["bytes"]), False)


def find_files(store: Store, snapshot: Snapshot) -> ComparedFiles:
    """List the directory of a dataset once, and compare the files with a snapshot.

    A file that the listing does not show is asked for by itself: a commit may have moved it to the directory
    of kept files, or back, and the listings of some stores do not show new files yet.
    """
    # Read the open runs before the listing, so that no listed file belongs to a run that has ended since.
    runs = open_runs(store)
    replaced = replaced_paths(store, snapshot, runs)
    listed = snapshot.file_list
    files, others = find_listed(store, listed.names)
    if not store.is_remote:  # a broken link has a path, but no size
        files = files.with_columns({"path": pc.if_else(files["bytes"].is_valid(), files["path"], None)})
    files = with_unseen(store, files, listed.names)
    names = others.names
    hidden = replaced | of_open_runs(names, snapshot, runs)
    is_hidden = np.array([name in hidden for name in names], bool)
    unlisted = others.filter(~is_hidden)
    if not all(map(is_part, unlisted.names)):
        unlisted = without_side_files(store, unlisted, data=listed.paths, is_known=True)
    return ComparedFiles(files, listed, unlisted, others.filter(is_hidden))


def with_unseen(store: Store, files: FileList, names: Sequence[str]) -> FileList:
    """Return a file list in which the null rows are filled with files that the store finds at their paths, or
    in the directory of kept files.

    ``names`` contains the name of each row, which has the form of `FileList.names`.
    """
    if is_http(store.root):
        return files
    # A restore may move a file back between the first two requests.
    for directory in (f"{KEPT}/", "", f"{KEPT}/"):
        is_missing = files["path"].is_null().to_numpy()
        if not is_missing.any():
            break
        unseen = [names[at] for at in np.flatnonzero(is_missing).tolist()]
        found = look_up(Store.of(store.fs, store.join(directory)), unseen)
        found = found.take(pa.array(np.cumsum(is_missing) - 1, mask=~is_missing))
        columns = {name: pc.coalesce(files[name], found[name]) for name in files.rows.column_names}
        files = files.with_columns(columns)
    return files


def look_for(store: Store, names: Sequence[str]) -> FileList:
    """Ask for each file by itself, without a listing. Return a row for each name, as `with_unseen` does."""
    nothing = FileList.found(store.join(""), ()).take(pa.nulls(len(names), pa.int64()))
    return with_unseen(store, nothing, names)


def first_lost(store: Store, files: FileList, listed: FileList) -> CorruptRecordError | None:
    """Return the exception for the first file that is missing, or whose size differs from the size in the
    snapshot. Return None if there is no such file.

    ``files`` describes the files of ``listed`` as `ComparedFiles.files` does.
    """
    is_missing = files["path"].is_null()
    first = pc.index(pc.or_(is_missing, _is_resized(files, listed)), True).as_py()
    if first < 0:
        return None
    [path] = listed.slice(first, first + 1).paths
    size, recorded = files["bytes"][first].as_py(), listed["bytes"][first].as_py()
    sizes = None if is_missing[first].as_py() else (recorded, size)
    return lost_file(store, path, listed.filter(is_missing).paths, sizes)
