"""Write the column files of a dataset anew, and compare column files with the records of the data files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain, groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec.columns import Column, RecordType
from dask_tfrecord.dataset.read.map_files import TASK_BYTES
from dask_tfrecord.dataset.snapshot.column_statistics import to_entries
from dask_tfrecord.dataset.snapshot.columnar import Columnar, column_file_columns, columnar_features
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.commit import discard
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.staging import remove_staging
from dask_tfrecord.errors import FileChangedError, TFRecordError
from dask_tfrecord.files.column_files import OFFSET, ColumnFileReader
from dask_tfrecord.files.copied_columns import feature_schema, rows_of_file, with_column_file
from dask_tfrecord.files.entry import COLUMN_FILE_NAMES, FileEntry
from dask_tfrecord.files.find_blocks import ComputeEach
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store


@contextmanager
def with_column_files(
    store: Store,
    snapshot: Snapshot,
    columnar: Columnar | None,
    wanted: Sequence[int],
    compute_each: ComputeEach,
) -> Iterator[Snapshot]:
    """Write the column files of a snapshot that is not stored yet.

    The caller stores the snapshot, which lists the column files, in the ``with`` block. If the block raises,
    the column files are removed.

    Parameters
    ----------
    store : Store
        The root of the dataset.
    snapshot : Snapshot
        The snapshot, whose run is no other run of the dataset.
    columnar : tuple of str or "scalars", optional
        The columns of the column files. If None, no column files are written.
    wanted : sequence of int
        The rows of the file list with the data files that get new column files.
    compute_each : callable
        Function that runs the tasks that read the data files.
    """
    if columnar is None or not wanted:
        yield snapshot
        return
    entries = [*to_entries(snapshot.file_list, snapshot.schema, snapshot.partitioning)]
    run = WriteRun(store, snapshot.schema, snapshot.run, columnar=columnar)
    # As long as the run is open, the column files do not count as files that no snapshot lists.
    run.mark("started")
    try:
        groups = _groups([replace(entries[at], columns=None) for at in wanted])
        found = compute_each(partial(_write, run), enumerate(groups))
        for at, entry in zip(wanted, (entry for of_group in found for entry in of_group), strict=True):
            entries[at] = entry
        rows = snapshot.file_list
        rows = rows.select([name for name in rows.column_names if name not in COLUMN_FILE_NAMES])
        for name, column in column_file_columns(entries).items():
            rows = rows.append_column(name, column)
        yield replace(snapshot, file_list=rows, columnar=columnar)
    except BaseException:  # also on KeyboardInterrupt
        discard(run)
        raise
    with suppress(Exception):  # the snapshot is stored, and the next write removes the staging directory
        remove_staging(store, run.run)


def rows_to_store(
    store: Store, snapshot: Snapshot, columnar: Columnar | None, compute_each: ComputeEach
) -> list[int]:
    """Return the rows of the file list with the data files without a usable column file of these columns."""
    if columnar is None:
        return []
    entries = [*to_entries(snapshot.file_list, snapshot.schema, snapshot.partitioning)]
    is_stored = partial(_are_stored, store, frozenset(columnar_features(snapshot.schema, columnar)))
    found = chain.from_iterable(compute_each(is_stored, _groups(entries)))
    return [at for at, one in enumerate(found) if not one]


@redact_errors
def _are_stored(store: Store, features: frozenset[Column], entries: Sequence[FileEntry]) -> list[bool]:
    """Return, for each data file, if its column file exists and holds these features."""
    reader = cache(partial(ColumnFileReader, store))
    return [
        entry.columns is not None
        and reader(entry.columns).features >= features
        and reader(entry.columns).offsets(entry.path, entry.bytes, entry.crc32c, 0, 0) is not None
        for entry in entries
    ]


def _groups(entries: Sequence[FileEntry]) -> list[list[FileEntry]]:
    """Divide data files among tasks, each of which reads about `TASK_BYTES`."""
    ends = np.cumsum([entry.bytes for entry in entries])
    tasks = ((ends - 1) // TASK_BYTES).tolist()
    pairs = groupby(zip(tasks, entries, strict=True), key=itemgetter(0))
    return [[entry for _, entry in group] for _, group in pairs]


@redact_errors
def _write(run: WriteRun, numbered: tuple[int, Sequence[FileEntry]]) -> list[FileEntry]:
    """Write the column file of some data files. The function `_write` runs in a Dask task."""
    number, sources = numbered
    columns = run.column_file(number)
    assert columns is not None  # because the run has columns
    columns = columns._replace(path=run.store.join(columns.name))
    rows = partial(rows_of_file, run.store, features=columns.features, record_type=run.schema.record_type)
    entries = with_column_file(run.store, columns, ((source, rows(source)) for source in sources))
    run.store.copy_permissions([run.store.join(source.path) for source in sources], columns.path)
    return entries


# -- Comparison with the records -----------------------------------------------------------------------------


@redact_errors
def column_file_difference(store: Store, record_type: RecordType, entry: FileEntry) -> str:
    """Return how the column file of a data file differs from its records, or "" if there is no difference.

    The entry must describe the present content of the data file. The function `column_file_difference` runs
    in a Dask task.
    """
    assert entry.columns is not None  # the caller has checked it
    reader = ColumnFileReader(store, entry.columns)
    features = sorted(reader.features)
    schema = feature_schema(features, record_type)
    unusable = f"the column file {entry.columns.path} is missing, damaged or out of date"
    of_file = entry.path, entry.bytes, entry.crc32c
    start = 0
    try:
        for values, sizes in rows_of_file(store, replace(entry, columns=None), features, record_type):
            stop = start + len(sizes)
            offsets = reader.offsets(*of_file, start, stop)
            table = reader.read(*of_file, schema, start, stop) if features else values
            if offsets is None or table is None:
                return unusable
            names = [name for name in schema.names if not _are_equal(values[name], table[name])]
            if not np.array_equal(np.diff(offsets), sizes):
                names.append(OFFSET)
            if names:
                return f"the column {names[0]!r} of {entry.columns.path} differs from the records"
            start = stop
    except FileChangedError:  # the data file is no longer the file that the caller has verified
        raise
    except TFRecordError:  # the records do not hold the features in this form
        return unusable
    return unusable if reader.offsets(*of_file, start, start) is None else ""


def _are_equal(first: pa.ChunkedArray, second: pa.ChunkedArray) -> bool:
    """Compare two columns of features bit by bit, because NaN differs from itself."""
    one, other = first.combine_chunks(), second.combine_chunks()
    if pa.types.is_list(one.type):
        lengths = pc.list_value_length(one).equals(pc.list_value_length(other))
        return bool(lengths) and _are_equal(
            pa.chunked_array([one.flatten()]), pa.chunked_array([other.flatten()])
        )
    if pa.types.is_floating(one.type):
        one, other = one.view(pa.int32()), other.view(pa.int32())
    return bool(one.equals(other))
