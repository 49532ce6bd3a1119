"""Write column files of data files that exist: copy rows of their column files, or decode their records."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_tfrecord.codec import Decoder, scan
from dask_tfrecord.codec.checked import Ints
from dask_tfrecord.codec.columns import KIND_TYPES, Column, RecordType, nested
from dask_tfrecord.errors import CorruptRecordError
from dask_tfrecord.files.column_file_writer import create_column_file
from dask_tfrecord.files.column_files import open_column_file
from dask_tfrecord.files.entry import ColumnFile, FileEntry
from dask_tfrecord.files.intact import record_offsets
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import run_kernel
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.writing import WrittenColumns
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.model import Schema

# The number of rows of a column file that are copied in one step.
_ROWS = 1 << 17

# The values of the features of consecutive records, and the sizes of the frames of these records.
Rows = tuple[pa.Table, Ints]


def with_column_file(
    store: Store, columns: WrittenColumns, files: Iterable[tuple[FileEntry, Iterable[Rows]]]
) -> list[FileEntry]:
    """Write one column file for data files with these rows. Return the entries of the data files with it."""
    entries = []
    with create_column_file(store, columns.path, columns.features) as writer:
        for entry, parts in files:
            content = 0
            for values, sizes in parts:
                ends = content + np.cumsum(sizes)
                writer.add(values, ends - sizes)
                content += int(sizes.sum())
            writer.end_file(entry.path, entry.bytes, entry.crc32c, content)
            entries.append(entry)
    column_file = ColumnFile(columns.name, *writer.written)
    return [replace(entry, columns=column_file) for entry in entries]


def feature_schema(features: Sequence[Column], record_type: RecordType) -> Schema:
    """Return a schema with a column for each feature, of the type that the kernel decodes."""
    fields = (Field(one.name, nested(KIND_TYPES[one.kind], one.depth)) for one in features)
    return Schema(tuple(fields), record_type)


def rows_of_file(
    store: Store, source: FileEntry, features: Sequence[Column], record_type: RecordType
) -> Iterator[Rows]:
    """Yield the values of features and the sizes of all records of a data file: from its column file, if
    possible.

    Raises
    ------
    CorruptRecordError
        If the data file is read, and is damaged or changed.
    """
    schema = feature_schema(features, record_type)
    known = 0
    if source.columns is not None:
        for rows in _from_column_file(store, source, source.columns, schema):
            yield rows
            known += len(rows[1])
    if known < source.records:
        for values, sizes in _decoded(store, source, schema):
            start = min(known, len(sizes))
            yield values.slice(start), sizes[start:]
            known -= start


def _from_column_file(store: Store, source: FileEntry, file: ColumnFile, schema: Schema) -> Iterator[Rows]:
    """Yield the rows of a data file from its column file, until a row is missing in the column file."""
    reader = open_column_file(store, file)
    for start in range(0, source.records, _ROWS):
        place = source.path, source.bytes, source.crc32c
        stop = min(start + _ROWS, source.records)
        offsets = reader.offsets(*place, start, stop)
        values = reader.read(*place, schema, start, stop) if schema.fields else pa.table({})
        if offsets is None or values is None:
            return
        yield values, np.diff(offsets)


def _decoded(store: Store, source: FileEntry, schema: Schema) -> Iterator[Rows]:
    file = FileInfo(store.join(source.path), source.bytes, "", source.crc32c)
    feed: Any = Decoder(schema.columns, schema.record_type).decode if schema.fields else scan
    count = 0
    for step in run_kernel(store, Split(file), ReadOptions(), feed, schema.columns):
        sizes = np.diff(np.append(record_offsets(step.data), len(step.data)))
        count += len(sizes)
        values = pa.Table.from_batches([step.result.batch]) if schema.fields else pa.table({})
        yield values, sizes
    if count != source.records:
        problem = f"the file has {count:,} records, but {source.records:,} in the snapshot"
        raise CorruptRecordError(problem, path=store.public(store.join(source.path)))


def without_rows(parts: Iterable[Rows], is_removed: npt.NDArray[np.bool_]) -> Iterator[Rows]:
    """Yield the rows that a mask with an element for each row does not select."""
    start = 0
    kept = ~is_removed
    for values, sizes in parts:
        mask = kept[start : start + len(sizes)]
        start += len(sizes)
        yield values.filter(pa.array(mask)) if values.num_columns else values, sizes[mask]
