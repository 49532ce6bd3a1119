"""Define the write operations: how each kind of write changes the newest version of a dataset.

One rule applies to all operations: at the commit, the newest version must still list the files that the
operation replaces. If an operation replaces all rows, other writes must not have added rows since the
operation was planned. docs/guarantees.md lists the consequences of this rule. This module writes no files.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import compress, pairwise
from typing import ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset import partitioning as hive
from dask_tfrecord.dataset.names import (
    COLUMNS,
    EXPORTS,
    KEPT,
    METADATA_DIRECTORY,
    closed_column_files,
    exported_files,
    snapshot_path,
)
from dask_tfrecord.dataset.snapshot.entry_log import PLACE, EntryLog, between_places, is_in
from dask_tfrecord.dataset.snapshot.head import no_snapshot, open_version
from dask_tfrecord.dataset.snapshot.model import Snapshot, listed_files
from dask_tfrecord.dataset.snapshot.stored_files import (
    Identity,
    listed_paths,
    positions,
    with_known_versions,
    with_schema,
)
from dask_tfrecord.dataset.snapshot.versions import library_version, numbers_of
from dask_tfrecord.dataset.snapshot.visibility import kept_files
from dask_tfrecord.dataset.write.append_schema import merged_schema, with_common_dtype
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import ConcurrentWriteError, FileChangedError, FileRemovedError, counted
from dask_tfrecord.files.entry import COLUMN_FILE, COLUMN_FILE_TYPE
from dask_tfrecord.files.file_list import VERSION, FileList, encoded_paths, statistics_name, value_name
from dask_tfrecord.schema.dtypes import nullable_dtype
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import value_type
from dask_tfrecord.storage.paths import name_of
from dask_tfrecord.storage.store import Store


class Change(NamedTuple):
    """What a commit changes. All paths are relative to the root of the dataset.

    ``removed`` lists data files, snapshots and other files that the commit removes. ``kept`` lists data files
    that the commit moves to the directory of kept files, or back to their original paths.
    """

    snapshot: Snapshot
    removed: Sequence[str] = ()
    kept: Sequence[str] = ()


@dataclass(frozen=True)
class Operation(ABC):
    """How a write changes the newest version of a dataset. Each subclass is one kind of write.

    In all methods, ``newest`` is None if the dataset has no snapshot. If ``replaces_damage`` is True,
    ``newest`` is also None if the newest snapshot is damaged. ``files`` lists the files that the tasks of
    ``run`` have written.
    """

    mode: ClassVar[str]  # the name of the operation in the dataset's history
    replaces_damage: ClassVar[bool] = False
    # If True, the new snapshot may contain values of older versions, so it gets the permissions of the
    # previous snapshot's file.
    keeps_values: ClassVar[bool] = True
    # If False, the commit fails if the directory was replaced by another dataset after the write was planned.
    adds_to_any: ClassVar[bool] = False

    def __dask_tokenize__(self) -> tuple[str, str]:
        # The mode suffices, because the token of a write also contains the unique token of the run.
        return "dask_tfrecord.Operation", self.mode

    @property
    def details(self) -> str:
        """The text that the history of the dataset lists in addition to the mode."""
        return ""

    @abstractmethod
    def rebase(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Self | None:
        """Return the operation to apply to the newest version, or None if nothing is left to do.

        Raise ConcurrentWriteError if other writes have meanwhile added rows that the operation would remove,
        or removed rows that it would bring back. Raise SchemaError if the columns of the data to keep differ
        from those of the run. The transaction calls this method before publishing the files, so a repeated
        attempt raises the same error, even though its files no longer exist.
        """

    @abstractmethod
    def change(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Change:
        """Return the next snapshot, and the files that the commit removes or moves."""

    def used(self, files: FileList) -> FileList:
        """Return the new files that the next snapshot lists. The commit removes all new files that are not
        returned.
        """
        return files


def successor(
    content: Snapshot, newest: Snapshot | None, run: WriteRun, operation: Operation, number: int = 0
) -> Snapshot:
    """Return the snapshot of the next version, with the files and columns of ``content``.

    If ``newest`` is None, the next version is ``number + 1``.
    """
    return replace(
        content,
        run=run.run,
        library=library_version(),
        number=(number if newest is None else newest.number) + 1,
        mode=operation.mode,
        details=operation.details,
        created=datetime.now(UTC).replace(microsecond=0),
        oldest=0 if newest is None else newest.oldest,
        write_id=run.write_id,
        before=() if newest is None else newest.log.lists,
    )


def _content(run: WriteRun, files: FileList) -> Snapshot:
    return Snapshot(
        log=EntryLog(files),
        schema=replace(run.schema, fields=_with_null_dtypes(run.schema.fields, files)),
        compression=run.options.compression,
        run=run.run,
        library="",
        partitioning=_with_null_dtypes(run.partitioning, files),
        custom_metadata=run.custom_metadata,
        order=run.order,
        index=run.index,
        columns_name=run.columns_name,
        columnar=run.columnar,
    )


def _with_null_dtypes(fields: Sequence[Field], files: FileList) -> tuple[Field, ...]:
    """Return the columns. A column in which ``files`` may contain nulls gets a dtype that can store nulls."""
    filled = files.filter(pc.greater(files["records"], 0))

    def may_be_null(item: Field) -> bool:
        values = value_name(item.name)
        if values in filled:
            return bool(filled[values].null_count)
        return not filled.has_no_nulls(item.name)

    nullable = (replace(item, dtype=nullable_dtype(item.dtype)) for item in fields)
    pairs = zip(fields, nullable, strict=True)
    return tuple(more if more.dtype != item.dtype and may_be_null(item) else item for item, more in pairs)


def _with_properties(run: WriteRun, existing: Snapshot, new: Snapshot) -> Snapshot:
    """Return ``new`` with the columns and other properties of ``existing``."""
    return replace(
        new,
        schema=existing.schema,
        partitioning=existing.partitioning,
        custom_metadata={**existing.custom_metadata, **run.custom_metadata},
        order=existing.order,
        partial=existing.partial,
        index=existing.index,
        columns_name=existing.columns_name,
        columnar=existing.columnar,
    )


def overtaken() -> ConcurrentWriteError:
    return ConcurrentWriteError(
        "another write committed a dataset here first",
        "write to another directory, or start the write again to change the new dataset",
    )


@dataclass(frozen=True)
class Create(Operation):
    """Write the first version of a dataset. The directory must contain no data."""

    mode = "create"
    keeps_values = False

    def rebase(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Self:
        if newest is not None:
            raise overtaken()
        return self

    def change(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Change:
        return Change(successor(_content(run, files), newest, run, self))


@dataclass(frozen=True)
class _Addition(Operation):
    """Add rows to existing data.

    Attributes
    ----------
    adds_columns : bool
        True if the rows may add columns to the dataset, or widen the types of existing columns.
    sets_columnar : bool
        True if later writes store the columns of ``run.columnar`` in column files. Otherwise, the setting of
        the newest version at the commit stays in effect.
    """

    adds_columns: bool = False
    sets_columnar: bool = False

    def rebase(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Self:
        if newest is not None:
            self._merged(run, newest, run.schema)
        return self

    def change(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Change:
        new = successor(_content(run, files), newest, run, self)
        if newest is None:
            return Change(new)
        existing = _with_columns(newest, self._merged(run, newest, new.schema), new.partitioning)
        new = replace(new, log=EntryLog(_with_types_of(existing, files, run.schema)))
        columnar = run.columnar if self.sets_columnar else existing.columnar
        return self._added(run, existing, replace(_with_properties(run, existing, new), columnar=columnar))

    def _merged(self, run: WriteRun, newest: Snapshot, schema: Schema) -> Schema:
        rows = schema, run.partitioning, run.index
        return merged_schema(newest, *rows, adds_columns=self.adds_columns, is_overtaken=True)

    @abstractmethod
    def _added(self, run: WriteRun, existing: Snapshot, new: Snapshot) -> Change:
        """Return the `Change` for a write to existing data. ``new`` is a snapshot of the new files."""


@dataclass(frozen=True)
class Append(_Addition):
    """Add rows, and keep all existing rows."""

    mode = "append"
    adds_to_any = True

    def _added(self, run: WriteRun, existing: Snapshot, new: Snapshot) -> Change:
        return Change(replace(new, log=existing.log.changed(new.file_list)))


@dataclass(frozen=True)
class _Replacement(Operation):
    """Replace rows. The commit fails if the rows to replace have changed after the write was planned, because
    other writes have added or removed some.

    Attributes
    ----------
    planned : mapping of str to int
        The number of rows that the write replaces in each partition directory, as returned by `planned_rows`.
    replaceable : frozenset of str
        The paths, relative to the root, of files that the commit may remove although no snapshot lists them.
        Files that appear after the write is planned are not in ``replaceable``, so the commit keeps them.
    keep_versions : bool
        True if older versions stay readable.
    """

    planned: Mapping[str, int] = field(default_factory=dict, hash=False)
    replaceable: frozenset[str] = frozenset()
    keep_versions: bool = False

    def _refuse_lost_rows(
        self, run: WriteRun, newest: Snapshot, written: Collection[str], partitioning: Sequence[Field] = ()
    ) -> None:
        """Raise ConcurrentWriteError if other writes have changed rows in the directories ``written``."""
        if newest.number == run.base:
            return
        files = newest.file_list
        names = partition_directories(files, partitioning)
        affected = np.array([name in written for name in names], bool) & (files["records"].to_numpy() > 0)
        files = files.filter(affected).without(self.replaceable)
        is_new = pc.any(pc.greater(files[VERSION], run.base)).as_py()
        planned = sum(self.planned.get(name, 0) for name in written)
        is_lost = planned != (pc.sum(files["records"]).as_py() or 0)
        # If the dataset had no version when the write was planned (`run.base` is 0), the plan does not count
        # the rows in files that other tools wrote. Therefore also check that the newest version lists all of
        # these files (`self.replaceable`).
        if is_new or is_lost or not (run.base or self.replaceable <= listed_files(newest)):
            raise overtaken()


def planned_rows(newest: Snapshot | None, *, by_partition: bool = False) -> dict[str, int]:
    """Return how many rows a planned write replaces in each partition directory that has rows.

    If ``by_partition`` is False, the only key is "", which stands for all rows.
    """
    if newest is None:
        return {}
    counts: Counter[str] = Counter()
    names = partition_directories(newest.file_list, newest.partitioning if by_partition else ())
    for name, records in zip(names, newest.file_list["records"].to_pylist(), strict=True):
        counts[name] += records
    return dict(+counts)  # the unary plus of the Counter drops directories without records


@dataclass(frozen=True)
class Overwrite(_Replacement):
    """Replace all rows."""

    mode = "overwrite"
    replaces_damage = True
    keeps_values = False

    def rebase(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Self:
        if newest is not None:
            self._refuse_lost_rows(run, newest, {""})
        return self

    def change(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Change:
        # If there is no newest version, the new version follows `run.base`. Do not list the versions again:
        # this write must not follow a version that another write has created after `rebase` checked for
        # conflicts.
        new = successor(_content(run, files), newest, run, self, run.base)
        listed = [] if newest is None else newest.file_list.paths
        replaced = sorted(self.replaceable.union(listed))
        return _replacing(run.store, new, replaced, keep_versions=self.keep_versions)


@dataclass(frozen=True)
class ReplacePartitions(_Addition, _Replacement):
    """Replace all rows of each partition directory that gets new files."""

    mode = "partitions"

    def rebase(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Self:
        super().rebase(run, newest, files)
        if newest is not None:
            written = {*partition_directories(files, run.partitioning)}
            self._refuse_lost_rows(run, newest, written, newest.partitioning)
        return self

    def _added(self, run: WriteRun, existing: Snapshot, new: Snapshot) -> Change:
        old, written = existing.file_list, {*partition_directories(new.file_list, run.partitioning)}
        directories = partition_directories(old, run.partitioning)
        is_replaced = np.array([directory in written for directory in directories], bool)
        gone = old.filter(is_replaced)
        new, replaced = replace(new, log=existing.log.changed(new.file_list, gone)), gone.paths
        if not replaced:
            return Change(new)
        return _replacing(run.store, new, replaced, keep_versions=self.keep_versions)


@dataclass(frozen=True)
class Restore(_Replacement):
    """Replace all files with the files of an older version."""

    mode = "restore"
    version: int = 0

    @property
    def details(self) -> str:
        return f"version {self.version}"

    def rebase(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Self:
        if newest is None:
            raise no_snapshot(run.store)
        self._refuse_lost_rows(run, newest, {""})
        return self

    def change(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Change:
        """Move files listed only by the newest version to the directory of kept files. Move files listed only
        by the older version back to their original paths.

        In the returned change, a restored file counts as new if the newest version does not list it. Raise
        FileRemovedError if the older version no longer exists. Raise FileChangedError if the two versions
        list files with the same path but different contents.
        """
        assert newest is not None  # `rebase` raises an error if `newest` is None
        try:
            older = open_version(run.store, self.version)
        except FileNotFoundError as error:
            problem = f"version {self.version} has expired or was overwritten after the restore was planned"
            raise FileRemovedError(problem, "restore another version") from error
        before, after = newest.file_list, older.file_list
        moved = sorted([*before.minus(after).paths, *after.minus(before).paths])
        if len({*moved}) < len(moved):
            twice = next(path for path, next_path in pairwise(moved) if path == next_path)
            problem = f"the file was replaced after version {older.number}, which cannot be restored"
            raise FileChangedError(problem, path=run.store.public(run.store.join(twice)))
        log = EntryLog(with_known_versions(older.file_list, newest.file_list))
        older = replace(older, log=log)
        new = successor(older, newest, run, self)
        return _replacing(run.store, new, moved, keep_versions=True)


@dataclass(frozen=True)
class Expire(Operation):
    """Expire all versions before the version ``oldest``."""

    mode = "expire"
    oldest: int

    @property
    def details(self) -> str:
        return f"versions before {self.oldest}"

    def rebase(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Self | None:
        if newest is None:
            raise no_snapshot(run.store)
        return None if newest.oldest >= self.oldest else self

    def change(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Change:
        assert newest is not None  # `rebase` raises an error if `newest` is None
        new = successor(newest, newest, run, self)
        # An older list may have entries of files that only expired versions list.
        log = EntryLog(newest.log.files) if any(one.removed for one in newest.log.lists) else newest.log
        return Change(replace(new, oldest=self.oldest, log=log))


class Group(NamedTuple):
    """A group of files of a dataset, and the new files that replace it.

    ``replaced`` contains the path and the CRC-32C of each replaced file, in the order of the dataset. A file
    whose CRC-32C differs from the listed value counts as a different file. ``added`` contains the paths of
    the new files, which store all or some rows of the replaced files. If ``added`` is empty, the commit
    removes the replaced files from the dataset, and adds no files.
    """

    replaced: tuple[Identity, ...]
    added: tuple[str, ...]


@dataclass(frozen=True)
class _Rewrite(Operation):
    """Replace groups of files with new files that contain all or some of the same rows."""

    erases: ClassVar[bool] = False  # True if no later version may store anything about the replaced rows

    groups: tuple[Group, ...] = ()
    keep_versions: bool = True

    def rebase(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Self | None:
        if newest is None:
            raise overtaken()
        replaced = [file for group in self.groups for file in group.replaced]
        is_lost = positions(replaced, newest.file_list).is_null().to_pylist()
        lost = {*compress(replaced, is_lost)}
        return self._without([group for group in self.groups if lost.intersection(group.replaced)], newest)

    def _without(self, lost: list[Group], newest: Snapshot) -> Self | None:
        """Leave out the groups in ``lost``, because another write has replaced some of their files."""
        groups = tuple(group for group in self.groups if group not in lost)
        return replace(self, groups=groups) if groups else None

    def used(self, files: FileList) -> FileList:
        added = {path for group in self.groups for path in group.added}
        return files.filter(np.array([path in added for path in files.paths], bool))

    def change(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Change:
        assert newest is not None  # `rebase` raises an error if `newest` is None
        replaced = [path for group in self.groups for path, _ in group.replaced]
        new = _with_properties(run, newest, successor(_content(run, files), newest, run, self))
        files = _with_known_statistics(files, run.schema, newest.schema)
        log = _with_groups(newest, files, self.groups, self._changed(newest, replaced))
        # The older lists may have statistics with deleted values, so kept versions must not need them.
        log = EntryLog(log.files) if self.erases else log
        new = replace(self._cleaned(new, newest), log=log, compression=newest.compression)
        return _replacing(run.store, new, replaced, keep_versions=self.keep_versions)

    def _cleaned(self, new: Snapshot, newest: Snapshot) -> Snapshot:
        """Return ``new``. `Delete` removes the deleted categories from it."""
        return new

    def _changed(self, newest: Snapshot, replaced: Sequence[str]) -> FileList | None:
        """Return the entries of ``newest`` that change, although their files stay."""
        return None


class Compact(_Rewrite):
    """Replace files with new files that contain the same rows."""

    mode = "compact"


class Repair(_Rewrite):
    """Drop missing files from the file list."""

    mode = "repair"

    @property
    def details(self) -> str:
        return counted(len(self.groups), "missing file")


class GroupsLostError(Exception):
    """Signal that another commit has replaced files of some groups of a write. ``lost`` contains the affected
    groups.
    """

    def __init__(self, newest: Snapshot, lost: list[Group]) -> None:
        super().__init__(f"version {newest.number} does not list all files that are to be replaced")
        self.newest, self.lost = newest, lost

    def __reduce__(self) -> tuple[type["GroupsLostError"], tuple[Snapshot, list[Group]]]:
        return type(self), (self.newest, self.lost)


@dataclass(frozen=True)
class Delete(_Rewrite):
    """Replace files with new files that contain fewer rows.

    Attributes
    ----------
    rows : int
        The number of deleted rows.
    version : int
        The version of the dataset for which the unused categories (``unused``) were found.
    unused : mapping of str to pyarrow.Array
        Maps each column name to the categories that only deleted rows have.
    """

    mode = "delete"
    erases = True
    rows: int = 0
    version: int = 0
    unused: Mapping[str, pa.Array] = field(default_factory=dict, hash=False)

    @property
    def details(self) -> str:
        return f"{self.rows:,} rows"

    def _without(self, lost: list[Group], newest: Snapshot) -> Self:
        if lost:
            raise GroupsLostError(newest, lost)
        return self

    def _cleaned(self, new: Snapshot, newest: Snapshot) -> Snapshot:
        """Leave out the categories that occur only in deleted rows.

        If another write has committed since the unused categories were found, new rows may contain these
        categories. In that case, ordered columns keep all categories. Unordered categorical columns lose the
        unused categories, and their remaining categories are marked as an incomplete list.
        """

        def used(item: Field) -> Field:
            unused, categories = self.unused.get(item.name), item.categories
            is_old = newest.number != self.version
            if unused is None or categories is None or (item.type.ordered and is_old):
                return item
            left = categories.filter(pc.invert(pc.is_in(categories, unused)))
            return replace(item, categories=left, is_closed=item.is_closed and not is_old)

        if not any(map(len, self.unused.values())):
            return new
        schema = Schema(tuple(map(used, new.schema.fields)), new.schema.record_type)
        return replace(new, schema=schema, partitioning=tuple(map(used, new.partitioning)))

    def _changed(self, newest: Snapshot, replaced: Sequence[str]) -> FileList | None:
        return _without_column_files(newest.file_list, replaced)


def _replacing(store: Store, new: Snapshot, replaced: Sequence[str], *, keep_versions: bool) -> Change:
    """Return the `Change` of a write that replaces data files.

    If ``keep_versions`` is False, the new version becomes the oldest version. The commit then removes the
    snapshots, column files and kept data files of all earlier versions.
    """
    names = store.names(METADATA_DIRECTORY)
    exported = exported_files(store) if name_of(EXPORTS) in names else []
    if keep_versions and new.number > 1:
        return Change(new, exported, replaced)
    snapshots = [snapshot_path(number) for number in numbers_of(names) if number < new.number]
    kept = [f"{KEPT}/{name}" for name in kept_files(store).names] if name_of(KEPT) in names else []
    columns = {*closed_column_files(store)} if name_of(COLUMNS) in names else set()
    columns = columns.difference(listed_paths(new.file_list))
    removed = [*replaced, *snapshots, *exported, *kept, *sorted(columns)]
    # The lists of earlier versions are removed, so the version stores all entries itself.
    return Change(replace(new, oldest=new.number, log=EntryLog(new.log.files)), removed)


def partition_directories(rows: FileList, partitioning: Sequence[Field]) -> list[str]:
    """Return the name that this library gives to the partition directory of each file.

    If there are no partition columns, the directory of each file is "". Other tools may write a different
    directory name for the same partition values.
    """
    return hive.directories(rows.partition_columns) if partitioning else [""] * len(rows)


def _with_groups(
    newest: Snapshot, files: FileList, groups: Sequence[Group], changed: FileList | None
) -> EntryLog:
    """Return the log in which new files get the place of the first file that their group replaces.

    Each new file gets the highest version of the files that its group replaces. ``newest`` lists all replaced
    files, and ``files`` lists the new files. A file is in at most one group. ``changed`` contains other
    entries of ``newest`` that replace those of the same files.
    """
    rows = newest.file_list
    replaced = positions([file for group in groups for file in group.replaced], rows).to_numpy()
    group_of_replaced = np.repeat(np.arange(len(groups)), [len(group.replaced) for group in groups])
    firsts, versions = np.full(len(groups), len(rows)), np.zeros(len(groups), np.int64)
    np.minimum.at(firsts, group_of_replaced, replaced)
    np.maximum.at(versions, group_of_replaced, rows[VERSION].to_numpy()[replaced])
    group_of_path = {path: at for at, group in enumerate(groups) for path in group.added}
    group_of_file = np.array([group_of_path[path] for path in files.paths], np.int64)
    added = files.with_columns({VERSION: pa.array(versions[group_of_file])})
    gone = rows.take(replaced)
    # Files of one group must be adjacent, so that they get its places in their order.
    order = np.argsort(group_of_file, kind="stable")
    counts, places = np.bincount(group_of_file, minlength=len(groups)), rows[PLACE].to_numpy()
    found = between_places(places, places[firsts], counts, newest.log.next_place)
    if found is not None:
        added = added.take(order).with_columns({PLACE: pa.array(found)})
        if changed is not None:
            changed = changed.filter(pc.invert(is_in(changed, gone["path"].combine_chunks())))
            added, gone = FileList.joined([added, changed]), FileList.joined([gone, changed])
        return newest.log.changed(added, gone)
    # No places are left between those of two files, so number all files again.
    if changed is not None:
        again = pc.index_in(rows["path"], changed["path"])
        column_files = pc.if_else(again.is_valid(), None, rows[COLUMN_FILE])
        rows = rows.with_columns({COLUMN_FILE: column_files})
    kept = np.delete(np.arange(len(rows)), replaced)
    order = np.argsort(np.concatenate([kept, firsts[group_of_file]]), kind="stable")
    return EntryLog(FileList.joined([rows.take(kept), added]).take(order))


def _with_columns(existing: Snapshot, schema: Schema, keys: Sequence[Field]) -> Snapshot:
    """Return ``existing`` with the columns of ``schema``, and with dtypes that fit the partition columns
    ``keys``. New columns follow the existing columns.

    ``keys`` are the partition columns of the new rows.
    """
    partitioning = tuple(map(with_common_dtype, existing.partitioning, keys))
    if schema == existing.schema:
        return replace(existing, schema=schema, partitioning=partitioning)
    columns = existing.columns.names
    added = [name for name in schema.names if name not in columns]
    return replace(
        existing,
        schema=schema,
        partitioning=partitioning,
        order=(*columns, *added),
        log=EntryLog(with_schema(existing.file_list, existing.schema, schema)),
    )


def _with_types_of(existing: Snapshot, files: FileList, own: Schema) -> FileList:
    """Convert statistics and partition values of new files to the types of the existing columns."""
    files = files if own == existing.schema else with_schema(files, own, existing.schema)
    types = {value_name(item.name): value_type(item.type) for item in existing.partitioning}
    return files.with_columns({name: files[name].cast(type_) for name, type_ in types.items()})


def _with_known_statistics(files: FileList, own: Schema, schema: Schema) -> FileList:
    """Return ``files``, whose schema is ``own``, without the statistics of the columns that differ in
    ``schema``.
    """
    changed = {statistics_name(item.name) for item in {*own.leaves}.difference(schema.leaves)}
    return files.select(name for name in files.rows.column_names if name not in changed)


def _without_column_files(rows: FileList, replaced: Sequence[str]) -> FileList | None:
    """Return the entries whose column files were written for replaced files, without these column files,
    because they contain deleted values.

    If such a column file also contains rows of other data files, readers must decode their records instead.
    """
    if COLUMN_FILE not in rows:
        return None
    paths = pc.struct_field(rows[COLUMN_FILE], "path")
    old = paths.filter(pc.is_in(rows["path"], encoded_paths(replaced))).drop_null()
    changed = rows.filter(pc.is_in(paths, old.combine_chunks()))
    return (
        changed.with_columns({COLUMN_FILE: pa.nulls(len(changed), COLUMN_FILE_TYPE)})
        if len(changed)
        else None
    )
