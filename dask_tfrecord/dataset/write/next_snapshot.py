"""Compute what a commit changes: the next snapshot, and the files that are replaced.

The module `next_snapshot` does not write files.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.snapshot.file_table import Stored, concatenate, partition_columns, rows_of_run
from dask_tfrecord.dataset.snapshot.metadata import library_version, next_ancestors
from dask_tfrecord.dataset.snapshot.model import Snapshot, find_snapshot, listed_files
from dask_tfrecord.dataset.snapshot.names import exported_files, snapshot_path, stored_offsets
from dask_tfrecord.dataset.snapshot.versions import versions
from dask_tfrecord.dataset.snapshot.visibility import intact_snapshot, visible_files
from dask_tfrecord.dataset.write.existing import adopt_foreign_files, check_agreement
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.files.storage.listing import column_paths
from dask_tfrecord.files.storage.paths import parent_of


def next_snapshot(run: WriteRun, files: pa.Table) -> tuple[Snapshot, list[str]]:
    """Return the snapshot of the dataset after a write of these files, and the paths of the files to remove.

    Returns
    -------
    snapshot : Snapshot
        The next snapshot, which is not stored yet.
    replaced : list of str
        The paths of the data files and old snapshots that the commit removes, relative to the root.

    Raises
    ------
    SchemaError
        If the write keeps existing data, and the existing data has other columns.
    """
    new = Snapshot(
        file_list=files,
        schema=run.schema,
        compression=run.options.compression,
        run=run.run,
        library=library_version(),
        partitioning=run.partitioning,
        number=run.base + 1,
        custom_metadata=run.custom_metadata,
        order=run.order,
        index=run.index,
        mode=run.mode,
        created=datetime.now(UTC).replace(microsecond=0),
    )
    if run.mode == "create":
        return new, []
    if run.mode == "overwrite":
        current = intact_snapshot(run.store)
        new = replace(new, ancestors=_ancestors(current))
        return new, _overwritten_files(run, current) + _descriptions(run)
    existing = _existing_data(run)
    return (new, []) if existing is None else _merged(run, existing, new)


def _existing_data(run: WriteRun) -> Snapshot | None:
    """Return the snapshot to which a write adds files, or None if the directory holds no files.

    For files of other tools, return a snapshot with the number 0 that is not stored.
    """
    existing = find_snapshot(run.store)
    if existing is None:
        return adopt_foreign_files(run.store, run.schema, run.partitioning)
    check_agreement(existing, run.schema, run.partitioning, run.store, run.index)
    return existing


def _merged(run: WriteRun, existing: Snapshot, new: Snapshot) -> tuple[Snapshot, list[str]]:
    """Merge the existing snapshot and the new files of a write. Also return the paths of replaced files.

    In the mode "partitions", the new files of a partition directory replace the old files in this directory.
    """
    old, added, stored = existing.file_list, new.file_list, existing.stored
    mine = rows_of_run(old, run.run)
    if run.mode == "append" and not len(mine):
        if stored is not None:
            stored = stored._replace(added=concatenate([stored.added, added]))
        return _with_files(run, existing, new, concatenate([old, added]), stored), []
    others = old.filter(pc.invert(pc.is_in(old["path"], mine["path"])))
    replaced: list[str] = []
    if run.mode == "partitions":
        directories = {*map(parent_of, added["path"].to_pylist())}
        keys = {*_keys(run, added)}  # other tools may spell the directory of the same key differently
        planned = run.replaceable | (listed_files(existing) if existing.number else frozenset())
        pairs = zip(others["path"].to_pylist(), _keys(run, others), strict=True)
        replaced = [
            path for path, key in pairs if (parent_of(path) in directories or key in keys) and path in planned
        ]
    kept = others.filter(pc.invert(pc.is_in(others["path"], pa.array(replaced, pa.string()))))
    merged = _with_files(run, existing, new, concatenate([kept, added]), None)
    return merged, (replaced + _descriptions(run)) if replaced else []


def _keys(run: WriteRun, rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Return, for each file of a file list, the tuple of its partition values."""
    values = partition_columns(rows, run.partitioning)
    return zip(*(column.to_pylist() for column in values.columns), strict=True)


def _with_files(
    run: WriteRun, existing: Snapshot, new: Snapshot, files: pa.Table, stored: Stored | None
) -> Snapshot:
    """Return a snapshot with these files.

    The snapshot keeps, for example, the schema of the existing snapshot.
    """
    return replace(
        new,
        file_list=files,
        stored=stored,
        schema=existing.schema,
        partitioning=existing.partitioning,
        number=existing.number + 1 if run.mode == "append" else new.number,
        custom_metadata={**existing.custom_metadata, **run.custom_metadata},
        order=existing.order,
        partial=existing.partial,
        index=existing.index if existing.number else run.index,
        ancestors=_ancestors(existing),
    )


def _ancestors(current: Snapshot | None) -> tuple[str, ...]:
    """Return the ancestors of the snapshot that follows ``current``; the tuple is empty if ``current`` is
    not stored.
    """
    return next_ancestors(current.ancestors, current.run) if current and current.number else ()


def _overwritten_files(run: WriteRun, current: Snapshot | None) -> list[str]:
    """Return the paths of the data files that the overwrite was planned to remove, relative to the root."""
    run.store.fs.invalidate_cache()
    present = map(run.store.relative, column_paths(visible_files(run.store, current)["path"]))
    planned = run.replaceable | listed_files(current)
    return [path for path in present if path in planned and not run.owns(path)]


def _descriptions(run: WriteRun) -> list[str]:
    """Return the paths of old snapshots, their offsets files, and exported files, relative to the root."""
    snapshots = [snapshot_path(number) for number in versions(run.store) if number <= run.base]
    offsets = [path for number, path in stored_offsets(run.store).items() if number <= run.base]
    return snapshots + offsets + exported_files(run.store)
