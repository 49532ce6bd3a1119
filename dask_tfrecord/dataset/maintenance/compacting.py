"""Replace small files of a dataset by files of a wanted size, without decoding records."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec.codecs import known_codec
from dask_tfrecord.dataset.maintenance.rewriting import (
    commit,
    compute,
    file_outcomes,
    newest_files,
    plan_run,
    unless_lost,
    write_again,
)
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.dataset.query.ranges import Mask
from dask_tfrecord.dataset.snapshot.column_statistics import to_entries
from dask_tfrecord.dataset.snapshot.model import Snapshot, listed_files
from dask_tfrecord.dataset.write.conflicts import Group, partition_directories
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.find_blocks import ComputeEach
from dask_tfrecord.files.storage.paths import parent_of
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store


class Compacted(NamedTuple):
    """What a compaction did.

    Attributes
    ----------
    snapshot : Snapshot
        The newest snapshot after the compaction.
    replaced, written : int
        The number of small files that were replaced, and the number of files that took their place.
    skipped : int
        The number of small files that other writes replaced in the meantime, so that the compaction left them
        out.
    """

    snapshot: Snapshot
    replaced: int
    written: int
    skipped: int


def compact_files(
    store: Store, target_bytes: int, filters: Any, compute_each: ComputeEach, *, keep_versions: bool
) -> Compacted:
    """Replace small files of the newest version by larger files, and commit the result.

    Parameters
    ----------
    store : Store
        The root of the dataset.
    target_bytes : int
        The largest stored size of a new file.
    filters : list or pyarrow.compute.Expression, optional
        The value of ``filters=``. Only files in which some row may pass the filters are replaced.
    compute_each : callable
        Function that runs the tasks that write the files.
    keep_versions : bool
        If True, keep the versions before the compaction.
    """
    snapshot, rows = newest_files(store)
    may_match = np.ones(len(rows), bool)
    if filters is not None:
        may_match = file_outcomes(snapshot, rows, parse_filters(filters, snapshot.columns)).true
    directories = partition_directories(rows, snapshot.partitioning)
    plan = [rows.take(pa.array(group)) for group in plan_groups(rows, directories, may_match, target_bytes)]
    if not plan:
        return Compacted(snapshot, 0, 0, 0)
    run = plan_run(store, snapshot, "compact", keep_versions=keep_versions)
    sources = [to_entries(group, snapshot.schema, snapshot.partitioning) for group in plan]
    found = compute(run, compute_each, partial(_compact, run, len(sources)), enumerate(sources))
    pairs = [(of_group, entry) for of_group, entry in zip(sources, found, strict=True) if entry]
    groups = [
        Group(tuple((source.path, source.crc32c) for source in of_group), (entry.path,))
        for of_group, entry in pairs
    ]
    newest = commit(run, [entry for _, entry in pairs], groups)
    listed = listed_files(newest)
    committed = [group for group in groups if listed.issuperset(group.added)]
    replaced = sum(len(group.replaced) for group in committed)
    return Compacted(newest, replaced, len(committed), sum(map(len, sources)) - replaced)


def plan_groups(
    rows: pa.Table, partitions: Sequence[str], may_match: Mask, target_bytes: int
) -> list[list[int]]:
    """Return the positions of the files that become one file, for each new file.

    The files of a group are neighbours in the file list, so that the order of the rows does not change. They
    are in one directory, and have the same partition values and the same codec. Files of at least half of
    ``target_bytes`` are left alone, so that another compaction does not copy them again.

    Parameters
    ----------
    rows : pyarrow.Table
        The file list of the dataset.
    partitions : sequence of str
        The partition of each file. Files of several partitions may be in one directory, because TensorFlow
        Datasets writes the files of all splits there.
    may_match : numpy.ndarray of bool
        A mask of the files that may become part of a group.
    target_bytes : int
        The largest total size of a group.
    """
    groups: list[list[int]] = []
    last: tuple[object, ...] | None = None
    total = 0
    columns = (rows[name].to_pylist() for name in ("path", "bytes", "codec"))
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
    """Write one new file in a task.

    Return None if another write has replaced one of the sources in the meantime.
    """
    index, sources = numbered
    return unless_lost(run.store, sources, partial(write_again, run, index, count, sources))
