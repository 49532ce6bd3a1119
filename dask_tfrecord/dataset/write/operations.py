"""Decide what a commit changes: the next snapshot, the files that are replaced, and whether it may follow
others.

One rule holds for all writes: the files that a write replaces must still be listed, and where a write
replaces everything, no row may be new. docs/guarantees.md has a table of what follows from this rule. The
newest version is remembered, so that a process that appends again need not read the file list again. The
module writes no files.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import crc32c
from dask_tfrecord.dataset import partitioning as hive
from dask_tfrecord.dataset.snapshot.file_list import (
    VERSION,
    Base,
    Stored,
    concatenate,
    identities,
    listed_paths,
    partition_columns,
    statistics_name,
    value_name,
    with_known_versions,
    with_schema,
)
from dask_tfrecord.dataset.snapshot.model import (
    Snapshot,
    listed_files,
    no_snapshot,
    open_version,
    read_snapshot,
)
from dask_tfrecord.dataset.snapshot.names import closed_column_files, exported_files, snapshot_path
from dask_tfrecord.dataset.snapshot.versions import library_version, newest_number, next_ancestors, versions
from dask_tfrecord.dataset.snapshot.visibility import kept_files, visible_files
from dask_tfrecord.dataset.write.append_schema import adopt_foreign_files, merged_schema
from dask_tfrecord.dataset.write.run import Mode, WriteRun
from dask_tfrecord.errors import ConcurrentWriteError, FileChangedError, FileRemovedError, TFRecordError
from dask_tfrecord.files.entry import COLUMN_FILE_NAMES
from dask_tfrecord.files.storage.listing import column_paths, with_column
from dask_tfrecord.files.storage.open_file import stamp_of
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.storage.store_failures import redact_errors
from dask_tfrecord.schema.fields import Field, Schema

# A file list that consists of more Arrow chunks than this is copied into one chunk, because each chunk takes
# time in every later commit.
_MOST_CHUNKS = 64


class Newest(NamedTuple):
    """The newest version of a dataset at the time when this process read or created the version.

    ``stamp`` is the `stamp_of` the version's Parquet file. It differs if the directory was removed in the
    meantime and another dataset was written, whose newest version has the same number. If the stamp is None,
    the next commit reads the newest version.
    """

    snapshot: Snapshot
    stamp: str | None

    @classmethod
    def of(cls, store: Store, snapshot: Snapshot) -> "Newest":
        """Remember a snapshot that was just read from the root of the store, or created there."""
        return cls(snapshot, _stamp(store, snapshot.number))

    def is_unchanged(self, store: Store) -> bool:
        """Return True if the Parquet file of the version is still the file that this process knows."""
        return self.stamp is not None and _stamp(store, self.snapshot.number) == self.stamp


def _stamp(store: Store, number: int) -> str | None:
    with suppress(Exception):  # the version is then read again
        return stamp_of(store.look(store.join(snapshot_path(number))))
    return None


def following(
    content: Snapshot, newest: Snapshot | None, run: str, mode: str, details: str = "", number: int = 0
) -> Snapshot:
    """Return the version that follows the newest version, and has the files and columns of ``content``.

    ``number`` is the number of the newest version if this version is damaged or not known.
    """
    return replace(
        content,
        run=run,
        library=library_version(),
        number=(number if newest is None else newest.number) + 1,
        mode=mode,
        details=details,
        created=datetime.now(UTC).replace(microsecond=0),
        ancestors=() if newest is None else next_ancestors(newest.ancestors, newest.run),
        oldest=0 if newest is None else newest.oldest,
        stored=None,
    )


def as_stored(store: Store, snapshot: Snapshot, data: bytes) -> Snapshot:
    """Return the snapshot that a read of ``data``, the stored form of the snapshot, would give."""
    rows, stored = _with_versions(snapshot.file_list, snapshot.number), snapshot.stored
    if rows["path"].num_chunks > _MOST_CHUNKS:
        rows = rows.combine_chunks()
    if stored is None or not stored.is_delta(rows):
        path = store.public(store.join(snapshot_path(snapshot.number)))
        stored = Stored(path, Base(snapshot.number, crc32c(data)), rows.schema.empty_table())
    added = _with_versions(stored.added, snapshot.number).combine_chunks()
    return replace(snapshot, file_list=rows, stored=stored._replace(added=added))


def _with_versions(rows: pa.Table, number: int) -> pa.Table:
    """Return a file list in which the files without a version have this version."""
    if VERSION not in rows.column_names:
        return rows.append_column(VERSION, pa.array([number] * len(rows), pa.int64()))
    return with_column(rows, VERSION, pc.fill_null(rows[VERSION], number))


class Group(NamedTuple):
    """Files of a dataset, and the files that take their place.

    ``replaced`` has the path and the CRC-32C of each replaced file, in the order of the dataset: a file with
    another CRC-32C is another file. ``added`` has the paths of the new files, which hold all or some rows of
    the replaced files. Without new files, the replaced files are dropped.
    """

    replaced: tuple[tuple[str, int], ...]
    added: tuple[str, ...]


class GroupsLostError(Exception):
    """Signal that another commit has replaced files of the groups ``lost``, which a write would replace."""

    def __init__(self, newest: Snapshot, lost: list[Group]) -> None:
        super().__init__(f"version {newest.number} does not list all files that are to be replaced")
        self.newest, self.lost = newest, lost

    def __reduce__(self) -> tuple[type["GroupsLostError"], tuple[Snapshot, list[Group]]]:
        return type(self), (self.newest, self.lost)


def partition_directories(rows: pa.Table, partitioning: Sequence[Field]) -> list[str]:
    """Return the partition directory of each file, as this library names the directory; "" without partition
    columns.

    Other tools may spell the directory of the same values differently.
    """
    values = partition_columns(rows, partitioning)
    return hive.directories(values) if values.num_columns else [""] * len(rows)


def count_rows(rows: pa.Table, partitioning: Sequence[Field]) -> dict[str, int]:
    """Return the number of records in each partition directory that has records."""
    counts: Counter[str] = Counter()
    names = partition_directories(rows, partitioning)
    for name, records in zip(names, rows["records"].to_pylist(), strict=True):
        counts[name] += records
    return dict(+counts)  # without the directories that have no records


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
    """Raise ConcurrentWriteError if other writes have added or removed affected rows since a write was
    planned.

    The write has the mode "overwrite", "partitions" or "restore". ``files`` is the list of the new files, in
    whose partitions the mode "partitions" replaces all rows.
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

    Each new file gets the number of the version that added the newest of the replaced files. ``rows`` has all
    replaced files, and ``files`` are the new files. A file is in at most one group.
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


class Change(NamedTuple):
    """What a commit changes. All paths are relative to the root of the dataset.

    ``removed`` are data files, snapshots and other files. ``kept`` are data files that the commit moves to
    the directory of kept files.
    """

    snapshot: Snapshot
    removed: Sequence[str] = ()
    kept: Sequence[str] = ()


def next_snapshot(
    run: WriteRun, newest: Snapshot | None, files: pa.Table, groups: Sequence[Group] = ()
) -> Change:
    """Return the snapshot of the dataset after a write of ``files``, and what happens to replaced files.

    ``newest`` is None if there is no snapshot, or if an overwrite finds a damaged snapshot. ``groups`` are
    the files that the new files replace in the modes "compact", "delete" and "repair". Raise SchemaError if
    the write keeps existing data that has other columns.
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
    return merged_schema(
        newest, run.schema, run.partitioning, run.index, adds_columns=run.adds_columns, is_overtaken=True
    )


def _restored(run: WriteRun, newest: Snapshot) -> tuple[Snapshot, list[str]]:
    """Return the content of the older version that becomes the newest version, and the files to move.

    Files that only one of the two versions lists are moved to the directory of kept files, or back. A file
    that the newest version does not list counts as new. Raise FileChangedError if the older version was
    removed, or if the newest version lists another file at the path of a file of the older version.
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
    changed = {statistics_name(item.name) for item in {*own.leaves}.difference(schema.leaves)}
    return files.drop_columns([name for name in files.column_names if name in changed])


def check_conflicts(run: WriteRun, newest: Snapshot | None, files: pa.Table, groups: Sequence[Group]) -> None:
    """Raise if the commits that were made since a write was planned prevent the write.

    The arguments are those of `next_snapshot`. Raise ConcurrentWriteError if the write would remove rows that
    were added since, or bring back rows that were removed since, GroupsLostError if another write has
    replaced files that a delete replaces, and SchemaError if the write keeps existing data that has other
    columns. The check comes before the files are published, so that a repeated attempt, which finds no files,
    raises the same error.
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
    stored, added = existing.stored, new.file_list
    if stored is not None:
        stored = stored._replace(added=concatenate([stored.added, added]))
    return replace(new, file_list=concatenate([existing.file_list, added]), stored=stored)


def _with_partitions(run: WriteRun, existing: Snapshot, new: Snapshot) -> Change:
    """Replace the old files of each partition directory for which there are new files."""
    old, written = existing.file_list, {*partition_directories(new.file_list, run.partitioning)}
    directories = partition_directories(old, run.partitioning)
    paths = zip(old["path"].to_pylist(), directories, strict=True)
    replaced = [path for path, directory in paths if directory in written]
    if not existing.number:  # other tools may have added files after the write was planned
        replaced = [path for path in replaced if path in run.replaceable]
    kept = old.filter(pc.invert(pc.is_in(old["path"], pa.array(replaced, pa.string()))))
    new = replace(new, file_list=concatenate([kept, new.file_list]))
    return _replacing(run, new, replaced) if replaced else Change(new)


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
