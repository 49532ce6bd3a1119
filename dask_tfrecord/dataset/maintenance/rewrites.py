"""Rewrite files of the newest version: replace small files with larger files, and delete rows that pass
filters.

Where possible, the module copies the stored bytes of files and blocks that lose no rows. The module
recognises files that other writes replace during a rewrite.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, count
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec.codecs import known_codec
from dask_tfrecord.dataset.query.comparison_keys import Mask
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.dataset.query.predicates import Predicate, file_outcomes
from dask_tfrecord.dataset.read.read_task import Partition, wrong_number
from dask_tfrecord.dataset.read.requested_columns import values_from_snapshot
from dask_tfrecord.dataset.snapshot.check import open_checked
from dask_tfrecord.dataset.snapshot.model import Head, Snapshot, listed_files, no_snapshot
from dask_tfrecord.dataset.snapshot.moved_files import with_version
from dask_tfrecord.dataset.snapshot.stored_files import Identity, identities, positions, to_entries
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.dataset.write.destination import refuse_linked_files
from dask_tfrecord.dataset.write.operations import (
    Compact,
    Delete,
    Group,
    GroupsLostError,
    Operation,
    partition_directories,
)
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import discard
from dask_tfrecord.errors import ConcurrentWriteError, CorruptRecordError, FileChangedError, TFRecordError
from dask_tfrecord.files.column_files import ColumnFileWriter, create_column_file
from dask_tfrecord.files.entry import ColumnFile, FileEntry
from dask_tfrecord.files.file_options import ReadOptions, WriteOptions
from dask_tfrecord.files.file_writer import WrittenColumns
from dask_tfrecord.files.find_blocks import ComputeEach
from dask_tfrecord.files.small_columns import SmallColumns
from dask_tfrecord.files.splice import (
    Beside,
    RecordMask,
    feature_schema,
    remove_records,
    splice,
    stored_codec,
)
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.file_list import FileInfo, FileList
from dask_tfrecord.files.storage.paths import parent_of
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.storage.store_failures import redact_errors
from dask_tfrecord.schema.fields import Schema

Result = TypeVar("Result")


def _open_newest(store: Store) -> Snapshot:
    """Return the newest snapshot. Raise FileNotFoundError if there is none, and the errors of
    `open_checked`.
    """
    newest = open_checked(store, reads_files=True)
    if newest is None:
        raise no_snapshot(store)
    return newest


def restamped(store: Store, files: FileList) -> Mask:
    """Return a mask of the files of other tools that may have been rewritten, so that their statistics may be
    wrong.
    """

    def may_differ(file: FileInfo) -> bool:
        try:
            return store.is_restamped(store.join(file.path), file.size, file.stamp)
        except FileChangedError:  # a task that reads the file raises the error
            return True

    is_restamped: Mask = files["stamp"].is_valid().to_numpy().copy()
    stamped = files.filter(pa.array(is_restamped)).infos
    is_restamped[is_restamped] = store.for_each(may_differ, stamped)
    return is_restamped


def plan_run(store: Store, snapshot: Snapshot) -> WriteRun:
    """Return a `WriteRun` for a write that replaces files of a snapshot.

    Raise DestinationError if files of the snapshot are in a directory that is a link.
    """
    refuse_linked_files(store, snapshot.file_list)
    return WriteRun(
        with_version(store, snapshot.number),  # a restore may not have moved all files back yet
        snapshot.schema,
        head=Head.of(snapshot),
        partitioning=snapshot.partitioning,
        order=snapshot.order,
        index=snapshot.index or (),
        columnar=snapshot.columnar,
    )


def write_again(
    run: WriteRun, number: int, count: int, sources: Sequence[FileEntry], is_removed: RecordMask | None = None
) -> FileEntry:
    """Write the records of ``sources`` to one new file, and write a column file if the run writes column
    files.

    The name of the new file contains ``number`` and ``count``. ``is_removed``, a mask of the records to leave
    out, may be passed only with a single source.
    """
    with run.store.finishing_together() as store:
        return _write_again(replace(run, store=store), number, count, sources, is_removed)


def _write_again(
    run: WriteRun, number: int, count: int, sources: Sequence[FileEntry], is_removed: RecordMask | None
) -> FileEntry:
    codec = stored_codec(run.store, sources)
    named = replace(run, options=WriteOptions(compression=codec))
    attempt = "" if run.store.stages_files else run.begin_attempt()
    place = named.place(parent_of(sources[0].path), number, count, attempt)
    columns = run.column_files(number, attempt, run.path(""))
    with ExitStack() as stack:
        beside: Beside | None = None
        if isinstance(columns, WrittenColumns):
            beside = stack.enter_context(create_column_file(run.store, columns.path, columns.features))
        elif columns is not None:
            # If blocks are compressed again, the new file may be larger than its sources.
            is_decoded = is_removed is not None or any(one.records and not one.blocks for one in sources)
            records, size = sum(one.records for one in sources), sum(one.bytes for one in sources)
            if is_decoded or columns.may_store(records, size):
                beside = SmallColumns(run.store, columns)
        if is_removed is not None:
            entry = remove_records(run.store, sources[0], is_removed, run.schema, codec, *place, beside)
        else:
            features = columns and feature_schema(columns.features, run.schema.record_type)
            entry = splice(run.store, sources, codec, *place, beside, features)
    if isinstance(columns, WrittenColumns) and isinstance(beside, ColumnFileWriter) and beside.files:
        entry = replace(entry, columns=ColumnFile(columns.name, *beside.written))
    for one in (entry, entry.columns):
        if one is not None:
            run.store.copy_permissions(
                [run.store.join(source.path) for source in sources], run.path(one.path)
            )
    return replace(entry, attempt=attempt)


def unless_lost(store: Store, sources: Sequence[FileEntry], rewrite: Callable[[], Result]) -> Result | None:
    """Call ``rewrite``, which reads ``sources``. Return None if another write has replaced one of the
    ``sources``.
    """
    try:
        return rewrite()
    except (FileNotFoundError, FileChangedError):
        newest = Head.read(store).snapshot
        if newest is None:
            raise
        if not positions([(source.path, source.crc32c) for source in sources], newest.file_list).null_count:
            raise
        return None


def compute(
    run: WriteRun, compute_each: ComputeEach, task: Callable[[Any], Any], items: Iterable[Any]
) -> list[Any]:
    """Call ``task`` with each item, and return the results. If a task fails, remove all files that the tasks
    have written.
    """
    try:
        return compute_each(task, items)
    except Exception:
        transaction.discard(run)
        raise


def commit(run: WriteRun, operation: Operation, entries: Iterable[FileEntry] = ()) -> Snapshot:
    """Commit a write. If the commit fails, remove the files of the write, because no other process can commit
    the write.

    After a `GroupsLostError`, keep the new files, because the next attempt needs them.
    """
    try:
        return transaction.commit(run, operation, entries, is_alone=True)
    except (GroupsLostError, TFRecordError):
        raise
    except Exception:
        transaction.discard_uncommitted(run)
        raise


# The search for categories reads this many files in one round.
_BATCH = 64

# Maps each column name to an array with some of the column's categories.
Categories = Mapping[str, pa.Array]


def unused_categories(
    run: WriteRun,
    compute_each: ComputeEach,
    snapshot: Snapshot,
    changes: Mapping[Identity, FileEntry | None],
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
    the file.
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


class Compacted(NamedTuple):
    """What a compaction did.

    Attributes
    ----------
    snapshot : Snapshot
        The newest snapshot after the compaction.
    replaced, written : int
        The number of small files that the compaction replaced, and the number of new files.
    skipped : int
        The number of small files that were skipped because another write replaced a file that was to be
        merged into the same new file.
    """

    snapshot: Snapshot
    replaced: int
    written: int
    skipped: int


def compact_files(
    store: Store, target_bytes: int, filters: Any, compute_each: ComputeEach, *, keep_versions: bool
) -> Compacted:
    """Replace small files of the newest version with files of at most ``target_bytes`` bytes, and commit the
    result.

    If ``filters`` is not None, replace only files that may contain rows that pass the filters.
    """
    snapshot = _open_newest(store)
    files = snapshot.file_list
    may_match = np.ones(len(files), bool)
    if filters is not None:
        predicate = parse_filters(filters, snapshot.columns)
        may_match = file_outcomes(predicate, snapshot.columns, files, files["records"]).true
    directories = partition_directories(files, snapshot.partitioning)
    plan = [files.take(group) for group in plan_groups(files, directories, may_match, target_bytes)]
    if not plan:
        return Compacted(snapshot, 0, 0, 0)
    run = plan_run(store, snapshot)
    sources = [to_entries(group, snapshot.schema, snapshot.partitioning) for group in plan]
    found = compute(run, compute_each, partial(_compact, run, len(sources)), enumerate(sources))
    pairs = [(of_group, entry) for of_group, entry in zip(sources, found, strict=True) if entry]
    groups = tuple(
        Group(tuple((source.path, source.crc32c) for source in of_group), (entry.path,))
        for of_group, entry in pairs
    )
    newest = commit(run, Compact(groups, keep_versions), [entry for _, entry in pairs])
    listed = listed_files(newest)
    committed = [group for group in groups if listed.issuperset(group.added)]
    replaced = sum(len(group.replaced) for group in committed)
    return Compacted(newest, replaced, len(committed), sum(map(len, sources)) - replaced)


def plan_groups(
    files: FileList, partitions: Sequence[str], may_match: Mask, target_bytes: int
) -> list[list[int]]:
    """Return, for each new file, the indices of the files that the new file replaces.

    All files of a group are adjacent in the file list, so that the order of the rows does not change. All
    files of a group are in the same directory, have the same codec and belong to the same partition. Files in
    the same directory may belong to different partitions, because TensorFlow Datasets writes the files of all
    splits to one directory. Files of at least ``target_bytes / 2`` bytes are not replaced, so that another
    compaction does not copy them again.
    """
    groups: list[list[int]] = []
    last: tuple[object, ...] | None = None
    total = 0
    columns = files.names, files["bytes"].to_pylist(), files["codec"].to_pylist()
    for at, (path, size, codec) in enumerate(zip(*columns, strict=True)):
        if not may_match[at] or 2 * size >= target_bytes:
            last = None
            continue
        kind = parent_of(path), partitions[at], known_codec(codec, path)
        if kind != last or total + size > target_bytes:
            groups.append([])
            total, last = 0, kind
        groups[-1].append(at)
        total += size
    return [group for group in groups if len(group) > 1]


@redact_errors
def _compact(run: WriteRun, count: int, numbered: tuple[int, Sequence[FileEntry]]) -> FileEntry | None:
    """Write one new file of a compaction. Return None if another write has replaced one of the sources."""
    index, sources = numbered
    return unless_lost(run.store, sources, partial(write_again, run, index, count, sources))


# If other writes keep replacing files, a deletion gives up after this many attempts.
_ATTEMPTS = 20


class Deleted(NamedTuple):
    """What a deletion did.

    Attributes
    ----------
    snapshot : Snapshot
        The newest snapshot after the deletion.
    dropped, rewritten : int
        The number of files that lost all rows, and the number of files that lost only some rows.
    rows : int
        The number of deleted rows.
    bytes : int
        The stored size of the dropped and rewritten files before the deletion, in bytes.
    """

    snapshot: Snapshot
    dropped: int
    rewritten: int
    rows: int
    bytes: int


class _Change(NamedTuple):
    """What a deletion does to one file.

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
) -> Deleted:
    """Delete the rows that pass the filters, and commit the result. A dry run returns the result without
    changing the dataset.
    """
    snapshot = _open_newest(store)
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
                deleted = sum(change.rows for change in changes.values())
                replaced = sum(size_of[one] for one in changes)
                return Deleted(newest, dropped, len(changes) - dropped, deleted, replaced)
        snapshot = _open_newest(store)
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
