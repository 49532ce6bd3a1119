"""Compute what a commit changes: the next snapshot, and the files that are replaced.

The module `next_snapshot` does not write files.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.snapshot.column_statistics import statistics_name, value_name, with_schema
from dask_tfrecord.dataset.snapshot.columnar import listed_paths
from dask_tfrecord.dataset.snapshot.file_table import concatenate, identities, with_known_versions
from dask_tfrecord.dataset.snapshot.kept import kept_files
from dask_tfrecord.dataset.snapshot.model import Snapshot, listed_files, no_snapshot, open_version
from dask_tfrecord.dataset.snapshot.names import (
    closed_column_files,
    exported_files,
    snapshot_path,
)
from dask_tfrecord.dataset.snapshot.versions import newest_number, versions
from dask_tfrecord.dataset.snapshot.visibility import visible_files
from dask_tfrecord.dataset.write.conflicts import (
    Group,
    GroupsLostError,
    lost_groups,
    overtaken,
    partition_directories,
    refuse_lost_rows,
    with_groups,
)
from dask_tfrecord.dataset.write.existing import adopt_foreign_files, merged_schema
from dask_tfrecord.dataset.write.newest import following
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import FileChangedError, FileRemovedError
from dask_tfrecord.files.entry import COLUMN_FILE_NAMES
from dask_tfrecord.files.storage.listing import column_paths, with_column
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.model import Schema


class Change(NamedTuple):
    """What a commit changes. All paths are relative to the root of the dataset.

    Attributes
    ----------
    snapshot : Snapshot
        The next snapshot, which is not stored yet.
    removed : list of str
        The paths of the data files, snapshots and other files that the commit removes.
    kept : list of str
        The paths of the data files that the commit moves to the directory of kept files.
    """

    snapshot: Snapshot
    removed: Sequence[str] = ()
    kept: Sequence[str] = ()


def next_snapshot(
    run: WriteRun, newest: Snapshot | None, files: pa.Table, groups: Sequence[Group] = ()
) -> Change:
    """Return the snapshot of the dataset after a write of these files, and what happens to replaced files.

    Parameters
    ----------
    run : WriteRun
        The write.
    newest : Snapshot, optional
        The newest snapshot, or None if there is no snapshot, or if an overwrite finds a damaged snapshot.
    files : pyarrow.Table
        The file list of the new files.
    groups : sequence of Group
        In the modes "compact", "delete" and "repair", the files that the new files replace.

    Raises
    ------
    SchemaError
        If the write keeps existing data, and the existing data has other columns.
    """
    # Without a newest version, a new listing gives no number: it may show a version that another write has
    # created since the check for conflicts.
    damaged = run.base if run.mode == "overwrite" else 0
    after = partial(following, newest=newest, run=run.run, mode=run.mode, details=run.details, number=damaged)
    if run.mode in ("restore", "expire"):
        if newest is None:
            raise no_snapshot(run.store)
        if run.mode == "restore":
            older, moved = _restored(run, newest)
            return _replacing(run, after(older), moved)
        return Change(replace(after(newest), stored=newest.stored, oldest=run.version))
    new = after(
        Snapshot(
            file_list=files,
            schema=run.schema,
            compression=run.options.compression,
            run=run.run,
            library="",
            partitioning=run.partitioning,
            custom_metadata=run.custom_metadata,
            order=run.order,
            index=run.index,
            columnar=run.columnar,
        )
    )
    if run.mode == "create":
        return Change(new)
    if run.mode == "overwrite":
        return _replacing(run, new, _overwritten_files(run, newest))
    if newest is not None and run.mode in ("append", "partitions"):
        schema = _schema_after(run, newest)
        if schema != newest.schema:
            newest = _with_schema(newest, schema)
    existing = newest or adopt_foreign_files(run.store, run.schema, run.partitioning)
    if existing is None:
        return Change(new)
    if run.mode in ("append", "partitions"):
        new = replace(new, file_list=_with_types_of(existing, files, run.schema))
    new = _with_properties(run, existing, new)
    if run.mode == "append":
        return Change(_appended(existing, new))
    if run.mode == "partitions":
        return _with_partitions(run, existing, new)
    replaced = [path for group in groups for path, _ in group.replaced]
    listed = existing.file_list
    if run.mode == "delete":
        new, listed = _without_categories(run, existing, new), _without_column_files(listed, replaced)
    files = _with_known_statistics(files, run.schema, existing.schema)
    new = replace(new, file_list=with_groups(listed, files, groups), compression=existing.compression)
    return _replacing(run, new, replaced)


def _schema_after(run: WriteRun, newest: Snapshot) -> Schema:
    """Return the schema of the dataset after a write that keeps existing data."""
    return merged_schema(
        newest,
        run.schema,
        run.partitioning,
        run.index,
        adds_columns=run.adds_columns,
        is_overtaken=True,
    )


def _restored(run: WriteRun, newest: Snapshot) -> tuple[Snapshot, list[str]]:
    """Return the content of the older version that becomes the newest version, and the files to move.

    Files that only one of the two versions lists are moved to the directory of kept files, or back. A file
    that the newest version does not list counts as new.

    Raises
    ------
    FileChangedError
        If the older version was removed, or if the newest version lists another file at the path of a file of
        the older version.
    """
    try:
        older = open_version(run.store, run.version)
    except FileNotFoundError as error:
        problem = f"version {run.version} has expired or was overwritten after the restore was planned"
        raise FileRemovedError(problem, "restore another version") from error
    before, after = {*identities(newest.file_list)}, {*identities(older.file_list)}
    moved = [path for path, _ in sorted(before ^ after)]
    if len({*moved}) < len(moved):
        twice = next(path for path, next_path in pairwise(moved) if path == next_path)
        problem = f"the file was replaced after version {older.number}, which cannot be restored"
        raise FileChangedError(problem, path=run.store.public(run.store.join(twice)))
    rows = with_known_versions(older.file_list, newest.file_list)
    return replace(older, file_list=rows), moved


def _with_schema(existing: Snapshot, schema: Schema) -> Snapshot:
    """Return a snapshot with more columns or wider types. The new columns are the last columns."""
    columns = existing.columns.names
    added = [name for name in schema.names if name not in columns]
    return replace(
        existing,
        schema=schema,
        order=(*columns, *added),
        file_list=with_schema(existing.file_list, existing.schema, schema),
        stored=None,  # the schema of a snapshot must equal the schema of its base
    )


def _with_types_of(existing: Snapshot, files: pa.Table, own: Schema) -> pa.Table:
    """Convert statistics and partition values of new files to the types of the existing columns."""
    rows = files if own == existing.schema else with_schema(files, own, existing.schema)
    for item in existing.partitioning:
        name = value_name(item.name)
        if name in existing.file_list.column_names:
            rows = with_column(rows, name, rows[name].cast(existing.file_list.schema.field(name).type))
    return rows


def _with_known_statistics(files: pa.Table, own: Schema, schema: Schema) -> pa.Table:
    """Return a file list without the statistics of columns that another write has changed in the meantime."""
    known = {*own.leaves}.intersection(schema.leaves)
    changed = {statistics_name(item.name) for item in {*own.leaves}.difference(known)}
    return files.drop_columns([name for name in files.column_names if name in changed])


def check_conflicts(run: WriteRun, newest: Snapshot | None, files: pa.Table, groups: Sequence[Group]) -> None:
    """Raise if the commits that were made since a write was planned prevent the write.

    The arguments are those of `next_snapshot`.

    Raises
    ------
    ConcurrentWriteError
        If the write would remove rows that were added since the write was planned, or would bring back rows
        that were removed since.
    GroupsLostError
        If another write has replaced some of the files that a delete replaces.
    SchemaError
        If the write keeps existing data, and the existing data has other columns. The check comes before the
        files are published, so that a repeated attempt, which finds no files, raises the same error.
    """
    if newest is not None and run.mode in ("append", "partitions"):
        _schema_after(run, newest)
    if run.mode == "create" or newest is None:
        is_rewrite = run.mode in ("compact", "delete", "repair")  # of files that are gone
        if is_rewrite or (newest_number(run.store) > run.base and run.mode != "append"):
            raise overtaken(run)
    elif run.mode in ("overwrite", "partitions", "restore"):
        refuse_lost_rows(run, newest, files)
    elif run.mode == "delete" and (lost := lost_groups(newest, groups)):
        raise GroupsLostError(newest, lost)


def _with_properties(run: WriteRun, existing: Snapshot, new: Snapshot) -> Snapshot:
    """Return the new snapshot with the columns and other properties of the existing data."""
    return replace(
        new,
        schema=existing.schema,
        partitioning=existing.partitioning,
        custom_metadata={**existing.custom_metadata, **run.custom_metadata},
        order=existing.order,
        partial=existing.partial,
        index=existing.index if existing.number else run.index,
        columnar=run.columnar if run.sets_columnar else existing.columnar,
    )


def _without_categories(run: WriteRun, existing: Snapshot, new: Snapshot) -> Snapshot:
    """Return the new snapshot without the categories that only deleted rows have.

    If another write has added rows since the deletion looked for the categories, ordered columns keep all
    categories, because these rows may have them.
    """

    def used(item: Field) -> Field:
        unused, categories = run.unused.get(item.name), item.categories
        if unused is None or categories is None or (item.type.ordered and existing.number != run.version):
            return item
        return replace(item, categories=categories.filter(pc.invert(pc.is_in(categories, unused))))

    if not any(map(len, run.unused.values())):
        return new
    schema = Schema(tuple(map(used, new.schema.fields)), new.schema.record_type)
    return replace(new, schema=schema, partitioning=tuple(map(used, new.partitioning)))


def _without_column_files(rows: pa.Table, replaced: Sequence[str]) -> pa.Table:
    """Return a file list without the column files of replaced files, which may hold rows of other files, too.

    These column files hold deleted values. Reads of the other files decode the records.
    """
    name = COLUMN_FILE_NAMES[0]
    if name not in rows.column_names:
        return rows
    old = rows[name].filter(pc.is_in(rows["path"], pa.array(replaced, pa.string()))).combine_chunks()
    holds = pc.is_in(rows[name], old.drop_null())
    for name in COLUMN_FILE_NAMES:
        rows = with_column(rows, name, pc.if_else(holds, None, rows[name]))
    return rows


def _appended(existing: Snapshot, new: Snapshot) -> Snapshot:
    """Return the new snapshot with the existing files, followed by the new files."""
    stored, added = existing.stored, new.file_list
    if stored is not None:
        stored = stored._replace(added=concatenate([stored.added, added]))
    return replace(new, file_list=concatenate([existing.file_list, added]), stored=stored)


def _with_partitions(run: WriteRun, existing: Snapshot, new: Snapshot) -> Change:
    """Return the change of a write whose new files of a partition directory replace the old files of the
    directory.
    """
    old = existing.file_list
    replaced = _in_partitions(run, new.file_list, old)["path"].to_pylist()
    if not existing.number:  # other tools may have added files after the write was planned
        replaced = [path for path in replaced if path in run.replaceable]
    kept = old.filter(pc.invert(pc.is_in(old["path"], pa.array(replaced, pa.string()))))
    new = replace(new, file_list=concatenate([kept, new.file_list]))
    return _replacing(run, new, replaced) if replaced else Change(new)


def _in_partitions(run: WriteRun, files: pa.Table, rows: pa.Table) -> pa.Table:
    """Return the rows of those files that belong to the same partitions as the new files of a write."""
    written = {*partition_directories(files, run.partitioning)}
    names = partition_directories(rows, run.partitioning)
    return rows.filter(pa.array([name in written for name in names], pa.bool_()))


def _overwritten_files(run: WriteRun, current: Snapshot | None) -> list[str]:
    """Return the paths of the data files that the overwrite was planned to remove, relative to the root."""
    run.store.fs.invalidate_cache()
    present = map(run.store.relative, column_paths(visible_files(run.store, current)["path"]))
    planned = run.replaceable | listed_files(current)
    return [path for path in present if path in planned and not run.owns(path)]


def _replacing(run: WriteRun, new: Snapshot, replaced: list[str]) -> Change:
    """Return the change of a write that replaces data files.

    Unless the write keeps the versions before it, its version is the oldest, so that the old snapshots,
    column files and kept data files are removed, too.
    """
    store, exported = run.store, exported_files(run.store)
    if run.keep_versions and new.number > 1:
        return Change(new, exported, replaced)
    snapshots = [snapshot_path(number) for number in versions(store) if number < new.number]
    kept = map(store.relative, column_paths(kept_files(store)["path"]))
    columns = {*closed_column_files(store)}.difference(listed_paths(new.file_list))
    removed = [*replaced, *snapshots, *exported, *kept, *sorted(columns)]
    return Change(replace(new, oldest=new.number), removed)
