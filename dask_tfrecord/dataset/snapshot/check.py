"""List a dataset once, and compare its files with those of a snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.listing import find_listed, request_infos
from dask_tfrecord.dataset.names import KEPT, STAGING, open_runs
from dask_tfrecord.dataset.side_files import without_side_files
from dask_tfrecord.dataset.snapshot.head import Head, open_version
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.moved_files import lost_file, of_version, resized_file
from dask_tfrecord.dataset.snapshot.versions import LostListError
from dask_tfrecord.dataset.snapshot.visibility import hidden_by
from dask_tfrecord.errors import WITHOUT_SNAPSHOT, CorruptRecordError, TFRecordError
from dask_tfrecord.files.entry import is_part
from dask_tfrecord.files.file_list import FileList
from dask_tfrecord.schema.dtypes import arrow_backed
from dask_tfrecord.storage.paths import is_http
from dask_tfrecord.storage.store import Store
from dask_tfrecord.storage.uploading import unfinished_uploads

# `open_checked` checks the files of datasets with at most this many files.
_MOST_CHECKED = 1000


@dataclass(frozen=True, eq=False)
class ComparedFiles:
    """The files of a snapshot, compared with a listing of its directory.

    Attributes
    ----------
    snapshot : Snapshot
        The snapshot.
    files : FileList
        The files that the snapshot lists, in the same order, with the paths, sizes and stamps that the store
        states. The row of a missing file is null.
    unlisted : FileList
        The TFRecord files that the snapshot does not list, without the files in ``unfinished``.
    unfinished : FileList
        The data files of open runs that have not committed, and the files that unfinished commits replace.
    """

    snapshot: Snapshot
    files: FileList
    unlisted: FileList
    unfinished: FileList

    @property
    def listed(self) -> FileList:
        """The file list of the snapshot."""
        return self.snapshot.file_list

    @property
    def is_missing(self) -> pa.ChunkedArray:
        return self.files["path"].is_null()

    @property
    def is_resized(self) -> pa.ChunkedArray:
        """A mask that is True for each file whose size differs from the size in the snapshot."""
        return _is_resized(self.files, self.listed)

    @property
    def is_rewritten(self) -> pa.ChunkedArray:
        """A mask that is True for each file of another tool that may have been rewritten."""
        stamps = pc.fill_null(self.listed["stamp"], "")
        differ = pc.and_(pc.not_equal(stamps, ""), pc.not_equal(stamps, self.files["stamp"]))
        is_foreign = pa.chunked_array([[not is_part(name) for name in self.listed.names]], pa.bool_())
        return pc.and_(is_foreign, pc.or_(pc.fill_null(differ, True), self.is_resized))

    @property
    def differ(self) -> bool:
        """True if a file is missing, resized, unlisted or unfinished."""
        lost = pc.or_(self.is_missing, self.is_resized)
        return bool(pc.any(lost).as_py() or len(self.unlisted) or len(self.unfinished))


def _is_resized(files: FileList, listed: FileList) -> pa.ChunkedArray:
    return pc.fill_null(pc.not_equal(files["bytes"], listed["bytes"]), False)


def find_files(store: Store, snapshot: Snapshot) -> ComparedFiles:
    """List the directory of a dataset once, and compare the files with a snapshot.

    A file that the listing does not show is requested individually: a commit may have moved it to the
    directory of kept files, or back, and the listings of some stores do not show new files yet.
    """
    # Read the open runs before the listing, so that no listed file belongs to a run that has ended since.
    hidden_among = hidden_by(store, snapshot, open_runs(store))
    listed = snapshot.file_list
    files, others = find_listed(store, listed.names)
    if not store.is_remote:  # a broken link has a path, but no size
        files = files.with_columns({"path": pc.if_else(files["bytes"].is_valid(), files["path"], None)})
    files = with_unseen(store, files, listed.names)
    names = others.names
    hidden = hidden_among(names)
    is_hidden = np.array([name in hidden for name in names], bool)
    unlisted = others.filter(~is_hidden)
    if not all(map(is_part, unlisted.names)):
        unlisted = without_side_files(store, unlisted, data=listed.paths, is_known=True)
    return ComparedFiles(snapshot, files, unlisted, others.filter(is_hidden))


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
        found = request_infos(Store.of(store.fs, store.join(directory)), unseen)
        found = found.take(pa.array(np.cumsum(is_missing) - 1, mask=~is_missing))
        columns = {name: pc.coalesce(files[name], found[name]) for name in files.rows.column_names}
        files = files.with_columns(columns)
    return files


def find_without_listing(store: Store, names: Sequence[str]) -> FileList:
    """Request each file individually, without a listing. Return a row for each name, as `with_unseen`
    does.
    """
    nothing = FileList.of_infos(store.join(""), ()).take(pa.nulls(len(names), pa.int64()))
    return with_unseen(store, nothing, names)


def open_checked(
    store: Store, number: int | None = None, known: Snapshot | None = None, *, reads_files: bool = False
) -> Snapshot | None:
    """Return the snapshot of a version, or the newest snapshot if ``number`` is None. Return None if the
    directory has no snapshot. ``known`` is the newest snapshot if the caller has read it.
    With ``reads_files=True``, also read the list of files, as `open_version` does.

    On a local disk, check the files of a small dataset, so that a file that was removed, or added without an
    append, is noticed before a plan is made. Raise the errors of `open_version`, `check_files` and
    `check_version`.
    """
    if number is not None:
        snapshot: Snapshot | None = open_version(store, number, reads_files=reads_files)
    else:
        snapshot = known or Head.read(store, reads_files=reads_files).snapshot
    if snapshot is None or store.is_remote or snapshot.log.totals.files > _MOST_CHECKED:
        return snapshot
    if number is None:
        return check_files(store, snapshot)
    check_version(store, snapshot)
    return snapshot


def find_newest_files(store: Store, snapshot: Snapshot) -> ComparedFiles:
    """Compare the files of a dataset with its newest version, in one listing.

    ``snapshot`` is the newest version. If another write commits during the call, and the files differ from
    the version before, compare them with the new one.
    """
    while True:
        try:
            found = find_files(store, snapshot)
        except LostListError:  # an overwrite has just removed a list of the version
            if (newest := _newer(store, snapshot)) is None:
                raise
        else:
            if not found.differ or (newest := _newer(store, snapshot)) is None:
                return found
        snapshot = newest


def _newer(store: Store, snapshot: Snapshot) -> Snapshot | None:
    """Return the newest version, or None if it is ``snapshot``."""
    newest = Head.read(store).snapshot
    return None if newest is None or newest.number == snapshot.number else newest


def check_files(store: Store, snapshot: Snapshot) -> Snapshot:
    """Check that the directory of a dataset contains exactly the files of the newest snapshot.

    ``snapshot`` is the newest snapshot. Return the newest snapshot, which is another one if another write
    commits during the call. Raise like `refuse_differences`.
    """
    compared = find_newest_files(store, snapshot)
    refuse_differences(store, compared)
    return compared.snapshot


def refuse_differences(store: Store, compared: ComparedFiles, *, may_be_rewritten: bool = False) -> None:
    """Raise CorruptRecordError if a file is missing, or if its size differs from the snapshot.

    Raise TFRecordError if the directory contains files of other tools that the snapshot does not list. With
    ``may_be_rewritten=True``, the listed files of other tools may have other sizes.
    """
    is_resized = compared.is_resized
    if may_be_rewritten:
        is_resized = pc.and_(is_resized, pc.invert(compared.is_rewritten))
    if (lost := first_lost(store, compared.files, compared.listed, is_resized)) is not None:
        raise lost
    if foreign := [name for name in compared.unlisted.names if not is_part(name)]:
        problem = f"the dataset's snapshot does not list {len(foreign):,} of the files here"
        path = store.public(store.join(min(foreign)))
        raise TFRecordError(problem, "move the files elsewhere", WITHOUT_SNAPSHOT, path=path)


def check_version(store: Store, snapshot: Snapshot) -> None:
    """Raise CorruptRecordError if a file of an older version is missing, or if its size differs from the
    snapshot.

    Raise FileNotFoundError if the version expires during the call.
    """
    found = find_files(store, snapshot)
    if (error := first_lost(store, found.files, found.listed)) is not None:
        open_version(store, snapshot.number)  # this call raises an error if the version has expired
        raise of_version(error, snapshot.number)


def first_lost(
    store: Store, files: FileList, listed: FileList, is_resized: pa.ChunkedArray | None = None
) -> CorruptRecordError | None:
    """Return the exception for the first file that is missing, or whose size differs from the snapshot.
    Return None if there is no such file.

    ``files`` describes the files of ``listed`` as `ComparedFiles.files` does. ``is_resized`` is a mask of the
    files whose size must not differ, if this is not the case for all files.
    """
    is_resized = _is_resized(files, listed) if is_resized is None else is_resized
    is_missing = files["path"].is_null()
    first = pc.index(pc.or_(is_missing, is_resized), True).as_py()
    if first < 0:
        return None
    [path] = listed.slice(first, first + 1).paths
    size, recorded = files["bytes"][first].as_py(), listed["bytes"][first].as_py()
    if size is None:
        return lost_file(store, path, listed.filter(is_missing).paths)
    return resized_file(store, store.join(path), recorded, f"{size:,}")


_REPORT = pa.schema(
    {
        "path": pa.string(),
        "problem": pa.string(),
        "bytes": pa.int64(),
        "listed_bytes": pa.int64(),
        "rows": pa.int64(),
    }
)


def check(store: Store) -> pd.DataFrame:
    """Return the table that `Dataset.check` documents."""
    compared = find_newest_files(store, open_version(store, None))
    uploads = [upload.path for upload in unfinished_uploads(store)]
    staged = {*compared.unfinished.paths, *store.find_everything(STAGING), *uploads}
    sizes = {one.path: one.size for one in compared.unfinished.infos}
    rows = [
        *_problems(store, "missing", compared, compared.is_missing),
        *_problems(store, "resized", compared, compared.is_resized),
        *((store.public(one.path), "unlisted", one.size, None, None) for one in compared.unlisted.infos),
        *((store.public(path), "unfinished", sizes.get(path), None, None) for path in sorted(staged)),
    ]
    named = (dict(zip(_REPORT.names, row, strict=True)) for row in rows)
    return arrow_backed(pa.Table.from_pylist([*named], _REPORT))


def _problems(
    store: Store, problem: str, compared: ComparedFiles, mask: pa.ChunkedArray
) -> list[tuple[Any, ...]]:
    """Return a row of the report for each file of the snapshot for which ``mask`` is True."""
    listed: FileList = compared.listed.filter(mask)
    columns = compared.files.filter(mask)["bytes"], listed["bytes"], listed["records"]
    numbers = zip(*(column.to_pylist() for column in columns), strict=True)
    paths = (store.public(store.join(name)) for name in listed.names)
    return [(path, problem, *sizes) for path, sizes in zip(paths, numbers, strict=True)]
