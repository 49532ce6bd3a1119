"""Delete rows: write the files that contain them again, without these rows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, count
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.dataset.query.predicates import Predicate, file_outcomes
from dask_tfrecord.dataset.read.columns import values_from_snapshot
from dask_tfrecord.dataset.read.task import Partition, wrong_number
from dask_tfrecord.dataset.rewrite.compact import (
    commit,
    compute,
    open_newest,
    plan_run,
    restamped,
    unless_lost,
    write_again,
)
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.stored_files import Identity, identities, positions, to_entries
from dask_tfrecord.dataset.write.operations import Delete, Group, GroupsLostError
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import discard
from dask_tfrecord.errors import ConcurrentWriteError, CorruptRecordError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.find_blocks import ComputeEach
from dask_tfrecord.files.splits import Split
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.redaction import redact_errors
from dask_tfrecord.storage.store import Store

# The search for categories reads this many files in one round.
_BATCH = 64

# Maps each column name to an array with some of the column's categories.
Categories = Mapping[str, pa.Array]


def unused_categories(
    run: WriteRun, compute_each: ComputeEach, snapshot: Snapshot, changes: Mapping[Identity, FileEntry | None]
) -> Categories | None:
    """Return the categories that occur only in deleted rows.

    ``changes`` maps the identity of each replaced file of ``snapshot`` to the new file with the remaining
    rows, or to None if no row remains. Return None if another write has replaced one of the files.
    """
    files = snapshot.file_list
    known = {
        item.name: item.categories
        for item in snapshot.columns.fields
        if item.form is None and item.categories is not None
    }
    is_changed, is_dropped = np.zeros((2, len(files)), bool)
    changed = positions(changes, files).to_numpy()
    is_changed[changed] = True
    is_dropped[changed] = [entry is None for entry in changes.values()]
    unused: dict[str, pa.Array] = {}
    for name, values in values_from_snapshot(files, snapshot.columns).items():
        if name in known:
            gone = _without(values.filter(is_dropped), values.filter(~is_dropped))
            categories = known.pop(name)
            unused[name] = categories.filter(pc.is_in(categories, gone))
    if not known:
        return unused
    entries = to_entries(files, snapshot.schema, snapshot.partitioning)
    before = [(run.store.join(entry.path), entry) for entry in entries]
    replaced, others = [*compress(before, is_changed)], [*compress(before, ~is_changed)]
    written = [(run.path(entry.path), entry) for entry in changes.values() if entry is not None]
    find = partial(_find, run, compute_each, snapshot.schema)
    unfound = find(replaced, known, may_be_damaged=True)
    if unfound is not None:
        found = {name: categories for name, categories in known.items() if name not in unfound}
        deleted = found | {name: _without(known[name], unfound[name]) for name in unfound}
        unfound = find([*written, *others], deleted)
    return None if unfound is None else {**unused, **unfound}


def _find(
    run: WriteRun,
    compute_each: ComputeEach,
    schema: Schema,
    files: Sequence[tuple[str, FileEntry]],
    wanted: Categories,
    may_be_damaged: bool = False,
) -> Categories | None:
    """Return, for each column, the categories in ``wanted`` that no row of the files contains.

    Stop reading files when every category in ``wanted`` has been found. If ``may_be_damaged`` is True, assume
    that a damaged file contains all categories. Return None if another write has replaced one of the files.
    """
    for start in range(0, len(files), _BATCH):
        wanted = {name: categories for name, categories in wanted.items() if len(categories)}
        if not wanted:
            break
        read = partial(_values_of_file, run, schema.select(wanted), may_be_damaged)
        for values in compute(run, compute_each, read, files[start : start + _BATCH]):
            if values is None:
                return None
            wanted = {name: _without(wanted[name], values[name]) for name in wanted}
    return wanted


@redact_errors
def _values_of_file(
    run: WriteRun, columns: Schema, may_be_damaged: bool, file: tuple[str, FileEntry]
) -> Categories | None:
    """Return the distinct values of each dictionary column in a file, or None if another write has replaced
    it.
    """
    path, entry = file
    split = Split(FileInfo(path, entry.bytes, "", entry.crc32c))
    partition = Partition(run.store, (split,), columns, ReadOptions(), {})

    def values() -> Categories:
        found = {item.name: [item.no_rows().dictionary[:0]] for item in columns.fields}
        for table in partition.stream():
            for name in found:
                found[name] += [one.dictionary.take(one.indices.unique()) for one in table[name].chunks]
        return {name: pa.concat_arrays(parts).unique() for name, parts in found.items()}

    try:
        return unless_lost(run.store, [entry], values)
    except CorruptRecordError:
        if not may_be_damaged:
            raise
        return {item.name: item.no_rows().dictionary for item in columns.fields}


def _without(values: pa.Array, others: pa.Array) -> pa.Array:
    return values.filter(pc.invert(pc.is_in(values, others)))


# If other writes keep replacing files, a deletion gives up after this many attempts.
_ATTEMPTS = 20


class _Change(NamedTuple):
    """The effect of a deletion on one file.

    ``rows`` is the number of deleted rows. ``entry`` is the new file with the remaining rows. ``entry`` is
    None in a dry run, or if all rows or no rows of the file are deleted. ``is_dropped`` is True if all rows
    are deleted.
    """

    rows: int
    entry: FileEntry | None
    is_dropped: bool


class _File(NamedTuple):
    """A file from which a task deletes rows.

    The name of the new file contains ``number``. ``columns`` is a `Partition` that reads the columns used by
    the filters.
    """

    number: int
    source: FileEntry
    columns: Partition


def delete_rows(
    store: Store, filters: Any, compute_each: ComputeEach, *, dry_run: bool, keep_versions: bool
) -> tuple[Snapshot, dict[str, int]]:
    """Delete the rows that pass the filters, and commit the result. A dry run returns the result without
    changing the dataset.

    Return the newest snapshot, and the counts that `Dataset.delete` documents.
    """
    snapshot = open_newest(store)
    deletion = _Deletion(plan_run(store, snapshot), filters, compute_each, dry_run, keep_versions)
    for _ in range(_ATTEMPTS):
        columns = deletion.run.schema, deletion.run.partitioning
        if (snapshot.schema, snapshot.partitioning) != columns:  # discard files with outdated columns
            discard(deletion.run)
            deletion = _Deletion(plan_run(store, snapshot), filters, compute_each, dry_run, keep_versions)
        if deletion.treat(snapshot):
            files = snapshot.file_list
            sizes = files["bytes"].take(positions(deletion.changes, files)).to_pylist()
            # The size is None for files that the snapshot does not list.
            size_of = dict(zip(deletion.changes, sizes, strict=True))
            known = deletion.changes.items()
            changes = {one: change for one, change in known if change.rows and size_of[one] is not None}
            with suppress(GroupsLostError):
                newest = deletion.commit(snapshot, changes) or snapshot
                dropped = sum(change.is_dropped for change in changes.values())
                return newest, {
                    "deleted_rows": sum(change.rows for change in changes.values()),
                    "dropped_files": dropped,
                    "rewritten_files": len(changes) - dropped,
                    "replaced_bytes": sum(size_of[one] for one in changes),
                }
        snapshot = open_newest(store)
    discard(deletion.run)
    problem = f"other writes replaced files of the dataset {_ATTEMPTS} times while rows were deleted"
    raise ConcurrentWriteError(problem, "delete the rows again when fewer writes run")


@dataclass
class _Deletion:
    """The state of a deletion before the commit. ``changes`` includes all checked files, even files that lose
    no rows.
    """

    run: WriteRun
    filters: Any
    compute_each: ComputeEach
    dry_run: bool
    keep_versions: bool
    changes: dict[Identity, _Change] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def treat(self, snapshot: Snapshot) -> bool:
        """Find the rows to delete in all files that no earlier call has checked. If a file loses some but not
        all rows, write a new file with the remaining rows.

        Return False if another write has replaced one of the files during the call.
        """
        predicate, files = parse_filters(self.filters, snapshot.columns), snapshot.file_list
        outcomes = file_outcomes(predicate, snapshot.columns, files, files["records"])
        is_restamped = restamped(self.run.store, files)
        matching = np.flatnonzero(outcomes.true | is_restamped)
        opened: list[int] = []
        for at, file in zip(matching.tolist(), identities(files.take(matching)), strict=True):
            if file in self.changes:
                continue
            if outcomes.only_true[at] and not is_restamped[at]:
                self.changes[file] = _Change(files["records"][at].as_py(), None, True)
            else:
                opened.append(at)
        columns = snapshot.columns.select(sorted(predicate.columns()))
        values = values_from_snapshot(files, columns)
        found = files.take(pa.array(opened, pa.int64()))
        sources = to_entries(found, snapshot.schema, snapshot.partitioning)
        tasks = []
        for at, source in zip(opened, sources, strict=True):
            info = FileInfo(self.run.store.join(source.path), source.bytes, "", source.crc32c, source.codec)
            of_file = {name: column.take(pa.array([at])) for name, column in values.items()}
            read = Partition(self.run.store, (Split(info),), columns, ReadOptions(), of_file)
            tasks.append(_File(next(self._numbers), source, read))
        numbered = tasks[-1].number + 1 if tasks else 0
        delete = partial(_delete_in_file, self.run, predicate, numbered, self.dry_run)
        changes = compute(self.run, self.compute_each, delete, tasks) if tasks else []
        for task, change in zip(tasks, changes, strict=True):
            if change is not None:
                self.changes[task.source.path, task.source.crc32c] = change
        return None not in changes

    def commit(self, snapshot: Snapshot, changes: dict[Identity, _Change]) -> Snapshot | None:
        """Commit the changes to files that ``snapshot`` lists. Return None in a dry run, or if no file
        changes.

        The new version stores neither the filters nor categories that only deleted rows have, because both
        could reveal deleted values.
        """
        if self.dry_run:
            return None
        if not changes:
            discard(self.run)
            return None
        groups = tuple(
            Group((one,), (change.entry.path,) if change.entry else ()) for one, change in changes.items()
        )
        entries = [change.entry for change in self.changes.values() if change.entry]
        written = {one: change.entry for one, change in changes.items()}
        unused = unused_categories(self.run, self.compute_each, snapshot, written)
        if unused is None:
            raise GroupsLostError(snapshot, [])
        deleted = sum(change.rows for change in changes.values())
        operation = Delete(groups, self.keep_versions, deleted, snapshot.number, unused)
        return commit(self.run, operation, entries)


@redact_errors
def _delete_in_file(
    run: WriteRun, predicate: Predicate, files: int, dry_run: bool, file: _File
) -> _Change | None:
    """Delete the rows of one file for which ``predicate`` is true. Return None if another write has replaced
    the file.
    """
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
