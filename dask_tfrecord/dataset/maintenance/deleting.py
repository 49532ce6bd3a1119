"""Delete the rows of a dataset that pass filters: drop whole files, and write other files again."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.maintenance.rewriting import (
    commit,
    compute,
    file_outcomes,
    newest_files,
    plan_run,
    unless_lost,
    write_again,
)
from dask_tfrecord.dataset.maintenance.unused_categories import unused_categories
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.dataset.query.predicates import Predicate
from dask_tfrecord.dataset.read.partition_columns import values_from_snapshot
from dask_tfrecord.dataset.read.read_task import Partition, wrong_number
from dask_tfrecord.dataset.snapshot.column_statistics import to_entries
from dask_tfrecord.dataset.snapshot.file_table import identities
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.commit import discard
from dask_tfrecord.dataset.write.conflicts import Group, GroupsLostError
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import ConcurrentWriteError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.find_blocks import ComputeEach
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store

# The number of times that a deletion starts again because another write has replaced files.
_ATTEMPTS = 20

# The path and the CRC-32C of a file, which distinguish the file from all others.
_Identity: TypeAlias = tuple[str, int]


class Deleted(NamedTuple):
    """What a deletion did.

    Attributes
    ----------
    snapshot : Snapshot
        The newest snapshot after the deletion.
    dropped, rewritten : int
        The number of files of which no row was left, and the number of files of which some rows were left.
    rows : int
        The number of deleted rows.
    bytes : int
        The stored size of the dropped and of the rewritten files, before the deletion.
    """

    snapshot: Snapshot
    dropped: int
    rewritten: int
    rows: int
    bytes: int


class _Change(NamedTuple):
    """What a deletion does to one file.

    Attributes
    ----------
    rows : int
        The number of deleted rows of the file.
    entry : FileEntry, optional
        The file with the other rows, or None if no row is left, if no row is deleted, or for a dry run.
    is_dropped : bool
        True if no row of the file is left.
    """

    rows: int
    entry: FileEntry | None
    is_dropped: bool


class _File(NamedTuple):
    """A file that a task opens.

    Attributes
    ----------
    number : int
        The number in the name of the new file.
    source : FileEntry
        The file in the snapshot.
    columns : Partition
        All rows of the file, with the columns that the filters need.
    """

    number: int
    source: FileEntry
    columns: Partition


def delete_rows(
    store: Store, filters: Any, compute_each: ComputeEach, *, dry_run: bool, keep_versions: bool
) -> Deleted:
    """Delete the rows that pass the filters, and commit the result.

    Parameters
    ----------
    store : Store
        The root of the dataset.
    filters : list or pyarrow.compute.Expression
        The value of ``filters=``.
    compute_each : callable
        Function that runs the tasks that read and write the files.
    dry_run : bool
        If True, change nothing, and return what the deletion would do.
    keep_versions : bool
        If True, keep the versions before the deletion.
    """
    snapshot, rows = newest_files(store)
    run = plan_run(store, snapshot, "delete", keep_versions=keep_versions)
    deletion = _Deletion(run, filters, compute_each, dry_run)
    for _ in range(_ATTEMPTS):
        columns = deletion.run.schema, deletion.run.partitioning
        if (snapshot.schema, snapshot.partitioning) != columns:  # of which the entries have statistics
            discard(deletion.run)
            run = plan_run(store, snapshot, "delete", keep_versions=keep_versions)
            deletion = _Deletion(run, filters, compute_each, dry_run)
        if deletion.treat(snapshot, rows):
            sizes = dict(zip(identities(rows), rows["bytes"].to_pylist(), strict=True))
            listed = [one for one in sizes if one in deletion.changes]
            changes = {one: change for one in listed if (change := deletion.changes[one]).rows}
            with suppress(GroupsLostError):
                newest = deletion.commit(snapshot, rows, changes) or snapshot
                dropped = sum(change.is_dropped for change in changes.values())
                deleted = sum(change.rows for change in changes.values())
                replaced = sum(sizes[one] for one in changes)
                return Deleted(newest, dropped, len(changes) - dropped, deleted, replaced)
        snapshot, rows = newest_files(store)
    discard(run)
    problem = f"other writes replaced files of the dataset {_ATTEMPTS} times while rows were deleted"
    raise ConcurrentWriteError(problem, "delete the rows again when fewer writes run")


@dataclass
class _Deletion:
    """A deletion that is being prepared.

    Attributes
    ----------
    changes : dict of (str, int) to _Change
        The files that were treated so far, also those that do not change.
    """

    run: WriteRun
    filters: Any
    compute_each: ComputeEach
    dry_run: bool
    changes: dict[_Identity, _Change] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def treat(self, snapshot: Snapshot, rows: pa.Table) -> bool:
        """Find out what happens to the files that were not treated yet, and write their other rows.

        Return False if another write has replaced one of the files in the meantime.
        """
        predicate = parse_filters(self.filters, snapshot.columns)
        outcomes = file_outcomes(snapshot, rows, predicate)
        files = identities(rows)
        may_match = outcomes.true & np.array([one not in self.changes for one in files], bool)
        for at in np.flatnonzero(may_match & outcomes.only_true).tolist():
            self.changes[files[at]] = _Change(rows["records"][at].as_py(), None, True)
        opened = np.flatnonzero(may_match & ~outcomes.only_true)
        columns = snapshot.columns.select(sorted(predicate.columns()))
        values = values_from_snapshot(snapshot, columns)
        sources = to_entries(rows.take(pa.array(opened)), snapshot.schema, snapshot.partitioning)
        tasks = []
        for at, source in zip(opened.tolist(), sources, strict=True):
            file = FileInfo(self.run.store.join(source.path), source.bytes, "", source.crc32c, source.codec)
            of_file = {name: column.take(pa.array([at])) for name, column in values.items()}
            read = Partition(self.run.store, (Split(file),), columns, ReadOptions(), of_file)
            tasks.append(_File(next(self._numbers), source, read))
        numbered = tasks[-1].number + 1 if tasks else 0
        delete = partial(_delete_in_file, self.run, predicate, numbered, self.dry_run)
        found = compute(self.run, self.compute_each, delete, tasks) if tasks else []
        for task, change in zip(tasks, found, strict=True):
            if change is not None:
                self.changes[task.source.path, task.source.crc32c] = change
        return None not in found

    def commit(
        self, snapshot: Snapshot, rows: pa.Table, changes: dict[_Identity, _Change]
    ) -> Snapshot | None:
        """Commit changes of the files that a snapshot lists. Return None if nothing changes.

        The new version names neither the filters nor categories that only deleted rows have, so that no
        deleted value stays in the dataset.
        """
        if self.dry_run:
            return None
        if not changes:
            discard(self.run)
            return None
        groups = [
            Group((one,), (change.entry.path,) if change.entry else ()) for one, change in changes.items()
        ]
        entries = [change.entry for change in self.changes.values() if change.entry]
        written = {one: change.entry for one, change in changes.items()}
        unused = unused_categories(self.run, self.compute_each, snapshot, rows, written)
        if unused is None:
            raise GroupsLostError(snapshot, [])
        details = f"{sum(change.rows for change in changes.values()):,} rows"
        run = replace(self.run, details=details, unused=unused, version=snapshot.number)
        return commit(run, entries, groups)


@redact_errors
def _delete_in_file(
    run: WriteRun, predicate: Predicate, files: int, dry_run: bool, file: _File
) -> _Change | None:
    """Write the other rows of a file in a task. Return None if another write has replaced the file."""
    store, source = run.store, file.source

    def change() -> _Change:
        masks = [np.asarray(pc.fill_null(predicate.mask(table), False)) for table in file.columns.stream()]
        is_removed = np.concatenate([np.zeros(0, bool), *masks])
        rows = int(is_removed.sum())
        if len(is_removed) != source.records:
            raise wrong_number(store.public(store.join(source.path)), len(is_removed), source.records)
        if dry_run or rows in (0, source.records):
            return _Change(rows, None, rows == source.records)
        return _Change(rows, write_again(run, file.number, files, [source], is_removed), False)

    return unless_lost(store, [source], change)
