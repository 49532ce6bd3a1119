"""Rewrite files, and merge small ones."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec.codecs import known_codec
from dask_tfrecord.dataset.query.comparison_keys import Mask
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.dataset.query.predicates import file_outcomes
from dask_tfrecord.dataset.snapshot.check import open_checked
from dask_tfrecord.dataset.snapshot.head import Head, no_snapshot
from dask_tfrecord.dataset.snapshot.model import Snapshot, listed_files
from dask_tfrecord.dataset.snapshot.moved_files import with_version
from dask_tfrecord.dataset.snapshot.stored_files import positions, to_entries
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.dataset.write.destination import refuse_linked_files
from dask_tfrecord.dataset.write.operations import (
    Compact,
    Group,
    GroupsLostError,
    Operation,
    partition_directories,
)
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import FileChangedError, TFRecordError
from dask_tfrecord.files.column_files import WrittenColumns, create_column_file
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.file_list import FileInfo, FileList
from dask_tfrecord.files.file_options import WriteOptions
from dask_tfrecord.files.find_blocks import ComputeEach
from dask_tfrecord.files.small_columns import SmallColumns
from dask_tfrecord.files.splice import (
    ColumnWriter,
    RecordMask,
    feature_schema,
    remove_records,
    splice,
    stored_codec,
)
from dask_tfrecord.storage.paths import parent_of
from dask_tfrecord.storage.redaction import redact_errors
from dask_tfrecord.storage.store import Store

Result = TypeVar("Result")


def open_newest(store: Store) -> Snapshot:
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
    """Write the records of ``sources`` to one new file, with a column file if the run writes any.

    The name of the new file contains ``number`` and ``count``. ``is_removed``, a mask of the records to leave
    out, may be passed only with a single source.
    """
    codec = stored_codec(run.store, sources)
    named = replace(run, options=WriteOptions(compression=codec))
    attempt = "" if run.store.can_rename else run.begin_attempt()
    new_paths = named.new_paths(parent_of(sources[0].path), number, count, attempt)
    columns = run.column_files(number, attempt, run.path(""))
    column_writer: ColumnWriter | None = None
    with run.store.finishing_together() as store:
        with ExitStack() as stack:
            if isinstance(columns, WrittenColumns):
                column_writer = stack.enter_context(create_column_file(store, columns))
            elif columns is not None:
                # If blocks are compressed again, the new file may be larger than its sources.
                is_decoded = is_removed is not None or any(one.records and not one.blocks for one in sources)
                records, size = sum(one.records for one in sources), sum(one.bytes for one in sources)
                if is_decoded or columns.may_store(records, size):
                    column_writer = SmallColumns(store, columns)
            if is_removed is not None:
                entry = remove_records(
                    store, sources[0], is_removed, run.schema, codec, *new_paths, column_writer
                )
            else:
                features = columns and feature_schema(columns.features, run.schema.record_type)
                entry = splice(store, sources, codec, *new_paths, column_writer, features)
        column_file = entry.columns if column_writer is None else entry.columns or column_writer.written
        paths = [store.join(source.path) for source in sources]
        for path in [entry.path] if column_file is None else [entry.path, column_file.path]:
            store.copy_permissions(paths, run.path(path))
    return replace(entry, columns=column_file, attempt=attempt)


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
    it.

    After a `GroupsLostError`, keep the new files, because the next attempt needs them.
    """
    try:
        return transaction.commit(run, operation, entries, is_alone=True)
    except (GroupsLostError, TFRecordError):
        raise
    except Exception:
        transaction.discard_uncommitted(run)
        raise


def compact_files(
    store: Store, target_bytes: int, filters: Any, compute_each: ComputeEach, *, keep_versions: bool
) -> tuple[Snapshot, dict[str, int]]:
    """Replace small files of the newest version with files of at most ``target_bytes`` bytes, and commit the
    result. Return the newest snapshot, and the counts that `Dataset.compact` documents.

    If ``filters`` is not None, replace only files that may contain rows that pass the filters.
    """
    snapshot = open_newest(store)
    files = snapshot.file_list
    may_match = np.ones(len(files), bool)
    if filters is not None:
        predicate = parse_filters(filters, snapshot.columns)
        may_match = file_outcomes(predicate, snapshot.columns, files, files["records"]).true
    directories = partition_directories(files, snapshot.partitioning)
    plan = [files.take(group) for group in plan_groups(files, directories, may_match, target_bytes)]
    if not plan:
        return snapshot, {"replaced_files": 0, "written_files": 0, "skipped_files": 0}
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
    skipped = sum(map(len, sources)) - replaced
    return newest, {"replaced_files": replaced, "written_files": len(committed), "skipped_files": skipped}


def plan_groups(
    files: FileList, partitions: Sequence[str], may_match: Mask, target_bytes: int
) -> list[list[int]]:
    """Return, for each new file, the indices of the files that it replaces.

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
