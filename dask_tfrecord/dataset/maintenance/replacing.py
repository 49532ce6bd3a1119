"""Commit files that take the place of other files of a dataset.

This module stands in for ``commit(run, entries, groups)`` and ``Group`` of `dataset/write`, with the same
names and the same meaning. Its commit ends the history of the dataset, as an overwrite does.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_tfrecord.dataset.snapshot.column_statistics import from_entries
from dask_tfrecord.dataset.snapshot.file_table import concatenate
from dask_tfrecord.dataset.snapshot.metadata import library_version, next_ancestors
from dask_tfrecord.dataset.snapshot.model import Snapshot, open_version
from dask_tfrecord.dataset.snapshot.names import exported_files, snapshot_path, stored_offsets
from dask_tfrecord.dataset.snapshot.versions import to_parquet, versions
from dask_tfrecord.dataset.write import commit as steps
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.staging import finish_newest, note_replaced, remove_staging
from dask_tfrecord.files.entry import FileEntry


class Group(NamedTuple):
    """Files of a dataset, and the files that take their place.

    Attributes
    ----------
    replaced : tuple of (str, int)
        The path and the CRC-32C of each file that is replaced, in the order of the dataset.
    added : tuple of str
        The paths of the new files, which hold all rows of the replaced files, or some of these rows.
    """

    replaced: tuple[tuple[str, int], ...]
    added: tuple[str, ...]


class GroupsLostError(Exception):
    """Signal that another commit has replaced files that a write would replace."""

    def __init__(self, newest: Snapshot, lost: list[Group]) -> None:
        super().__init__(f"version {newest.number} does not list all files that are to be replaced")
        self.newest, self.lost = newest, lost


def commit(run: WriteRun, entries: Sequence[FileEntry], groups: Sequence[Group]) -> Snapshot:
    """Commit files that take the place of others, and return the newest snapshot."""
    store = run.store
    finish_newest(store, running=run.run)
    files = from_entries(list(entries), run.schema, run.partitioning)
    published = False
    while True:
        newest = open_version(store, None)
        listed = {*_identities(newest)}
        lost = [group for group in groups if not listed.issuperset(group.replaced)]
        if lost and run.mode == "delete":
            raise GroupsLostError(newest, lost)
        kept = [group for group in groups if group not in lost]
        names = {path for group in kept for path in group.added}
        if not kept:
            steps.discard(run)
            return newest
        if not published:
            steps.publish_files(run, files)
            files, published = steps._with_stamps(store, files), True
        mine = files.filter(pa.array([path in names for path in files["path"].to_pylist()], pa.bool_()))
        snapshot = replace(
            newest,
            file_list=_with_groups(newest.file_list, mine, kept),
            stored=None,
            run=run.run,
            mode=run.mode,
            number=newest.number + 1,
            library=library_version(),
            created=datetime.now(UTC).replace(microsecond=0),
            ancestors=next_ancestors(newest.ancestors, newest.run),
        )
        replaced = [path for group in kept for path, _ in group.replaced]
        replaced += [path for path in files["path"].to_pylist() if path not in names]
        replaced += [snapshot_path(number) for number in versions(store) if number <= newest.number]
        replaced += [path for number, path in stored_offsets(store).items() if number <= newest.number]
        note_replaced(store, run.run, replaced + exported_files(store))
        path = store.join(snapshot_path(snapshot.number))
        try:
            store.create_exclusively(path, bytes(to_parquet(vars(snapshot))))
        except FileExistsError:
            continue
        steps.remove_replaced(run)
        return snapshot


def discard(run: WriteRun) -> None:
    """Remove the files of a run that commits nothing."""
    steps.discard(run)
    remove_staging(run.store, run.run)


def _identities(snapshot: Snapshot) -> list[tuple[str, int]]:
    names = ("path", "crc32c")
    return list(zip(*(snapshot.file_list[name].to_pylist() for name in names), strict=True))


def _with_groups(rows: pa.Table, files: pa.Table, groups: Sequence[Group]) -> pa.Table:
    """Return a file list in which the new files of each group stand where the first replaced file stood."""
    at_path = {path: at for at, path in enumerate(rows["path"].to_pylist())}
    place_of: dict[str, int] = {}
    for group in groups:
        first = min([at_path.pop(path) for path, _ in group.replaced])
        place_of |= dict.fromkeys(group.added, first)
    kept = [*at_path.values()]
    places = np.array([*kept, *(place_of[path] for path in files["path"].to_pylist())], np.int64)
    return concatenate([rows.take(pa.array(kept, pa.int64())), files]).take(np.argsort(places, kind="stable"))
