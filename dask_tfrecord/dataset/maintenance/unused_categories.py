"""Find the categories of deleted rows that no remaining row of a dataset has."""

from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.maintenance.rewriting import compute, unless_lost
from dask_tfrecord.dataset.read.partition_columns import values_from_snapshot
from dask_tfrecord.dataset.read.read_task import Partition
from dask_tfrecord.dataset.snapshot.column_statistics import to_entries
from dask_tfrecord.dataset.snapshot.file_table import identities
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import CorruptRecordError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.find_blocks import ComputeEach
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.schema.model import Schema

# The number of files that are read before it is known which categories are still to be found.
_BATCH = 64

# Maps the name of a column to some of its categories.
Categories = Mapping[str, pa.Array]


def unused_categories(
    run: WriteRun,
    compute_each: ComputeEach,
    snapshot: Snapshot,
    rows: pa.Table,
    changes: Mapping[tuple[str, int], FileEntry | None],
) -> Categories | None:
    """Return the categories that rows of replaced files have, but no row of a deletion's result.

    Parameters
    ----------
    run : WriteRun
        The deletion.
    compute_each : callable
        Function that runs the tasks that read the files.
    snapshot : Snapshot
        The version from which rows are deleted.
    rows : pyarrow.Table
        The file list of this version.
    changes : mapping of (str, int) to FileEntry
        Maps the identity of each replaced file to the file with its other rows, or to None.

    Returns
    -------
    mapping of str to pyarrow.Array
        The unused categories of each column. None if another write has replaced a file in the meantime.
    """
    known = {
        item.name: item.categories
        for item in snapshot.columns.fields
        if item.form is None and item.categories is not None
    }
    files = identities(rows)
    is_dropped = pa.array([one in changes and changes[one] is None for one in files], pa.bool_())
    unused: dict[str, pa.Array] = {}
    for name, values in values_from_snapshot(snapshot, snapshot.columns).items():
        if name in known:
            gone = _without(values.filter(is_dropped), values.filter(pc.invert(is_dropped)))
            unused[name] = _among(known.pop(name), gone)
    if not known:
        return unused
    entries = to_entries(rows, snapshot.schema, snapshot.partitioning)
    before = [(run.store.join(entry.path), entry) for entry in entries]
    replaced = [file for file, one in zip(before, files, strict=True) if one in changes]
    written = [(run.path(entry.path), entry) for entry in changes.values() if entry is not None]
    others = [file for file, one in zip(before, files, strict=True) if one not in changes]
    find = partial(_find, run, compute_each, snapshot.schema)
    unfound = find(replaced, known, may_be_damaged=True)
    if unfound is not None:
        deleted = {name: _without(known[name], unfound[name]) for name in known}
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
    """Return those of the wanted categories that no row of the files has.

    The files are read until all categories are found. If ``may_be_damaged``, a damaged file counts as if it
    had all categories. Return None if another write has replaced a file.
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
    """Return the distinct values of dictionary columns of a file. Return None if the file was replaced."""
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


def _among(values: pa.Array, others: pa.Array) -> pa.Array:
    return values.filter(pc.is_in(values, others))
