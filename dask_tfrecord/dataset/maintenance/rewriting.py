"""Plan the rewrite of files of the newest version, and recognise files that other writes have replaced."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.query.predicates import Outcomes, Predicate, possible_outcomes
from dask_tfrecord.dataset.query.ranges import file_ranges
from dask_tfrecord.dataset.read.partition_columns import values_from_snapshot
from dask_tfrecord.dataset.snapshot.file_table import identities
from dask_tfrecord.dataset.snapshot.kept import DatasetStore
from dask_tfrecord.dataset.snapshot.model import Snapshot, find_snapshot, no_snapshot
from dask_tfrecord.dataset.snapshot.visibility import are_proven, newest_snapshot
from dask_tfrecord.dataset.write import commit as commits
from dask_tfrecord.dataset.write.conflicts import Group, GroupsLostError
from dask_tfrecord.dataset.write.destination import refuse_linked_files
from dask_tfrecord.dataset.write.run import Mode, WriteRun, draw_run
from dask_tfrecord.errors import FileChangedError
from dask_tfrecord.files.copied_columns import rows_of_file, with_column_file, without_rows
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.find_blocks import ComputeEach
from dask_tfrecord.files.options import WriteOptions
from dask_tfrecord.files.removing import Mask, remove_records
from dask_tfrecord.files.splicing import splice, stored_codec
from dask_tfrecord.files.storage.paths import parent_of
from dask_tfrecord.files.storage.store import Store

Result = TypeVar("Result")

# The largest number of characters of the details that a snapshot stores about a write.
_LONGEST_DETAILS = 1000


def newest_files(store: Store) -> tuple[Snapshot, pa.Table]:
    """Return the newest snapshot, and its file list with the column ``file_records``.

    ``file_records`` is the number of records of a file. The number is null if the file may have changed since
    the snapshot was written, so that its statistics prove nothing.

    Raises
    ------
    FileNotFoundError
        If the directory has no snapshot.
    CorruptRecordError
        If a file of the snapshot is missing or has another size than in the snapshot.
    """
    newest = newest_snapshot(store)
    if newest is None:
        raise no_snapshot(store)
    snapshot, files = newest
    rows = snapshot.file_list
    records = pc.if_else(are_proven(files, rows), rows["records"], pa.scalar(None, pa.int64()))
    return snapshot, rows.append_column("file_records", records)


def file_outcomes(snapshot: Snapshot, rows: pa.Table, predicate: Predicate) -> Outcomes:
    """Return the possible outcomes of a predicate in each file of a list that `newest_files` returned."""
    names = predicate.columns()
    columns = [one for item in snapshot.columns.fields for one in item.family if one.name in names]
    values = values_from_snapshot(snapshot, snapshot.columns)
    return possible_outcomes(predicate, file_ranges(columns, len(rows), values, rows))


def plan_run(
    store: Store, snapshot: Snapshot, mode: Mode, *, keep_versions: bool, details: str = "", **how: Any
) -> WriteRun:
    """Return the plan of a write that replaces files of a snapshot. ``how`` are other fields of the plan.

    If files of the snapshot are behind a link, raise DestinationError.
    """
    refuse_linked_files(store, snapshot.file_list)
    return WriteRun(
        DatasetStore(store.fs, store.root),  # a restore may not have moved all files back yet
        snapshot.schema,
        draw_run(store, snapshot),
        mode=mode,
        base=snapshot.number,
        partitioning=snapshot.partitioning,
        order=snapshot.order,
        index=snapshot.index or (),
        columnar=snapshot.columnar,
        keep_versions=keep_versions,
        details=details[:_LONGEST_DETAILS],
        **how,
    )


def write_again(
    run: WriteRun, number: int, count: int, sources: Sequence[FileEntry], is_removed: Mask | None = None
) -> FileEntry:
    """Write a data file with the records of other files, and its column file if the run has column files.

    Parameters
    ----------
    run : WriteRun
        The plan of the write.
    number, count : int
        The number of the new file among those of the run, and the number of these files.
    sources : sequence of FileEntry
        The data files whose records the new file has, in this order.
    is_removed : numpy.ndarray of bool, optional
        A mask of the records of the only source that the new file does not have.

    Returns
    -------
    FileEntry
        The entry of the new file.
    """
    codec = stored_codec(run.store, sources)
    named = replace(run, options=WriteOptions(compression=codec))
    place = named.place(parent_of(sources[0].path), number, count)
    if is_removed is None:
        entry = splice(run.store, sources, codec, *place)
    else:
        entry = remove_records(run.store, sources[0], is_removed, run.schema, codec, *place)
    paths = [run.store.join(source.path) for source in sources]
    run.store.copy_permissions(paths, place[0])
    columns = run.column_file(number)
    if columns is None:
        return entry
    record_type = run.schema.record_type
    found = (rows_of_file(run.store, source, columns.features, record_type) for source in sources)
    parts = chain.from_iterable(found)
    kept = parts if is_removed is None else without_rows(parts, is_removed)
    [entry] = with_column_file(run.store, columns, [(entry, kept)])
    run.store.copy_permissions(paths, columns.path)
    return entry


def unless_lost(store: Store, sources: Sequence[FileEntry], rewrite: Callable[[], Result]) -> Result | None:
    """Call a function that reads files of a dataset.

    Return None if the function fails because another write has replaced one of the files.
    """
    try:
        return rewrite()
    except (FileNotFoundError, FileChangedError):
        newest = find_snapshot(store)
        if newest is None:
            raise
        if {*identities(newest.file_list)}.issuperset((source.path, source.crc32c) for source in sources):
            raise
        return None


def compute(
    run: WriteRun, compute_each: ComputeEach, task: Callable[[Any], Any], items: Iterable[Any]
) -> list[Any]:
    """Run a task for each item. If a task fails, remove all files that the tasks have written."""
    try:
        return compute_each(task, items)
    except Exception:
        commits.discard(run)
        raise


def commit(run: WriteRun, entries: Iterable[FileEntry], groups: Sequence[Group] = ()) -> Snapshot:
    """Commit a write that no other process commits. If the commit fails, remove what the write has staged.

    Arguments, result and exceptions are those of `dataset.write.commit.commit`. After a `GroupsLostError`,
    the new files are still staged, because another attempt needs them.
    """
    try:
        return commits.commit(run, entries, groups)
    except GroupsLostError:
        raise
    except Exception:
        commits.abandon(run)
        raise
