"""Decide if a write may follow the commits that were made since the write was planned.

One rule holds for all writes: the files that a write replaces must still be listed, and where a write
replaces everything, no row may be new. docs/guarantees.md has a table of what follows from this rule.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.partitioning import hive
from dask_tfrecord.dataset.snapshot.column_statistics import VERSION
from dask_tfrecord.dataset.snapshot.file_table import concatenate, identities, partition_columns
from dask_tfrecord.dataset.snapshot.model import Snapshot, listed_files, read_snapshot
from dask_tfrecord.dataset.write.run import Mode, WriteRun
from dask_tfrecord.errors import ConcurrentWriteError, TFRecordError
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.field import Field


class Group(NamedTuple):
    """Files of a dataset, and the files that take their place.

    Attributes
    ----------
    replaced : tuple of (str, int)
        The path and the CRC-32C of each file that is replaced, in the order of the dataset. A file with
        another CRC-32C is another file.
    added : tuple of str
        The paths of the new files, which hold all rows of the replaced files, or some of these rows. If the
        tuple is empty, the replaced files are dropped.
    """

    replaced: tuple[tuple[str, int], ...]
    added: tuple[str, ...]


class GroupsLostError(Exception):
    """Signal that another commit has replaced files that a write would replace.

    Attributes
    ----------
    newest : Snapshot
        The newest snapshot.
    lost : list of Group
        The groups of which at least one replaced file is not in the newest snapshot.
    """

    def __init__(self, newest: Snapshot, lost: list[Group]) -> None:
        super().__init__(f"version {newest.number} does not list all files that are to be replaced")
        self.newest, self.lost = newest, lost

    def __reduce__(self) -> tuple[type["GroupsLostError"], tuple[Snapshot, list[Group]]]:
        return type(self), (self.newest, self.lost)


def partition_directories(rows: pa.Table, partitioning: Sequence[Field]) -> list[str]:
    """Return the partition directory of each file of a file list, as this library names the directory.

    Other tools may spell the directory of the same values differently. Without partition columns, the
    directory is "".
    """
    values = partition_columns(rows, partitioning)
    return hive.directories(values) if values.num_columns else [""] * len(rows)


def count_rows(rows: pa.Table, partitioning: Sequence[Field]) -> dict[str, int]:
    """Return the number of records in each partition directory that has records."""
    counts: dict[str, int] = {}
    for name, records in zip(
        partition_directories(rows, partitioning), rows["records"].to_pylist(), strict=True
    ):
        counts[name] = counts.get(name, 0) + records
    return {name: records for name, records in counts.items() if records}


@redact_errors
def planned_rows(store: Store, mode: Mode, base: int) -> dict[str, int]:
    """Return the number of rows that a write is planned to replace, for each partition directory.

    An overwrite and a restore replace all rows, whose number has the key "". Other modes than these and
    "partitions" replace no rows in this sense.
    """
    with suppress(FileNotFoundError, TFRecordError):  # the commit refuses if another write comes first
        if base and mode in ("overwrite", "partitions", "restore"):
            planned = read_snapshot(store, base)
            return count_rows(planned.file_list, planned.partitioning if mode == "partitions" else ())
    return {}


def refuse_lost_rows(run: WriteRun, newest: Snapshot, files: pa.Table) -> None:
    """Raise if a write would remove rows that did not exist when the write was planned.

    Also raise if some of the rows that the write was planned to replace were removed since.

    Parameters
    ----------
    run : WriteRun
        The write, with the mode "overwrite", "partitions" or "restore".
    newest : Snapshot
        The newest snapshot.
    files : pyarrow.Table
        The file list of the new files, in whose partitions the mode "partitions" replaces all rows.

    Raises
    ------
    ConcurrentWriteError
        If other writes have added or removed affected rows since the write was planned.
    """
    if newest.number == run.base:
        return
    rows, partitioning = newest.file_list, newest.partitioning if run.mode == "partitions" else ()
    written = {*partition_directories(files, run.partitioning)} if partitioning else {""}
    names = partition_directories(rows, partitioning)
    affected = pc.and_(
        pa.array([name in written for name in names], pa.bool_()), pc.greater(rows["records"], 0)
    )
    foreign = pc.is_in(rows["path"], pa.array([*run.replaceable], pa.string()))
    rows = rows.filter(pc.and_(affected, pc.invert(foreign)))
    is_new = pc.any(pc.greater(rows[VERSION], run.base)).as_py()
    planned = sum(run.planned.get(name, 0) for name in written)
    is_lost = planned != (pc.sum(rows["records"]).as_py() or 0)
    # No snapshot had the number of rows in the files of other tools, which a first version must list.
    if is_new or is_lost or not (run.base or run.replaceable <= listed_files(newest)):
        raise overtaken(run)


def overtaken(run: WriteRun) -> ConcurrentWriteError:
    """Return the error for a write that would undo the changes of another write."""
    return ConcurrentWriteError(
        "another write committed a dataset here first",
        "write to another directory, or start the write again to change the new dataset",
    )


def lost_groups(newest: Snapshot, groups: Sequence[Group]) -> list[Group]:
    """Return the groups of which at least one replaced file is not in the newest snapshot."""
    listed = {*identities(newest.file_list)}
    return [group for group in groups if not listed.issuperset(group.replaced)]


def with_groups(rows: pa.Table, files: pa.Table, groups: Sequence[Group]) -> pa.Table:
    """Return a file list in which the new files of each group take the place of the first replaced file.

    Each new file gets the number of the version that added the newest of the replaced files.

    Parameters
    ----------
    rows : pyarrow.Table
        The file list of the newest snapshot, which has all replaced files of all groups.
    files : pyarrow.Table
        The file list of the new files.
    groups : sequence of Group
        The groups. A file is in at most one group.
    """
    at_path = {path: at for at, path in enumerate(rows["path"].to_pylist())}
    versions = rows[VERSION].to_pylist()
    place_of: dict[str, int] = {}
    version_of: dict[str, int] = {}
    for group in groups:
        replaced = [at_path.pop(path) for path, _ in group.replaced]
        for path in group.added:
            place_of[path] = min(replaced)
            version_of[path] = max(versions[at] for at in replaced)
    paths = files["path"].to_pylist()
    added = files.append_column(VERSION, pa.array([version_of[path] for path in paths], pa.int64()))
    kept = [*at_path.values()]
    places = np.array([*kept, *(place_of[path] for path in paths)], np.int64)
    return concatenate([rows.take(pa.array(kept, pa.int64())), added]).take(np.argsort(places, kind="stable"))
