"""Write a file again without some of its records. Blocks that keep all records are copied."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_tfrecord.codec import Decoder, Encoder, take_bytes
from dask_tfrecord.codec.checked import Ints
from dask_tfrecord.codec.codecs import Compression
from dask_tfrecord.errors import CorruptRecordError
from dask_tfrecord.files.entry import ColumnStatistics, FileEntry
from dask_tfrecord.files.intact import record_offsets
from dask_tfrecord.files.splicing import SplicedFile
from dask_tfrecord.files.statistics import continue_statistics, empty_statistics, file_statistics
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.model import Schema

# A mask with an element for each record of a file.
Mask = npt.NDArray[np.bool_]


def remove_records(
    store: Store,
    source: FileEntry,
    is_removed: Mask,
    schema: Schema,
    compression: Compression | None,
    path: str,
    name: str,
) -> FileEntry:
    """Write a file with the records of another file, without some records.

    Parameters
    ----------
    store : Store
        The root of the dataset.
    source : FileEntry
        The file to read.
    is_removed : numpy.ndarray of bool
        A mask with an element for each record of the source. At least one record stays.
    schema : Schema
        The columns of the records.
    compression : str, optional
        The codec of both files.
    path, name : str
        The path in the store at which the file is created, and its path relative to the dataset's root.

    Returns
    -------
    FileEntry
        The entry of the new file. Its statistics describe exactly the records that are left, so that no value
        of a removed record stays in the dataset.

    Raises
    ------
    FileChangedError
        If the content of the source differs from its entry.
    CorruptRecordError
        If the compressed data of the source is damaged.
    """
    kept = _KeptRecords(schema)
    with store.create(path) as file:
        spliced = SplicedFile(file, compression)
        record = 0
        for content, records, stored in spliced.read_blocks(store, source):
            bounds = np.append(record_offsets(content), len(content))
            mask = is_removed[record : record + records]
            if len(bounds) - 1 != records or len(mask) != records:
                problem = f"a block has {len(bounds) - 1:,} records, but {records:,} in the snapshot"
                raise CorruptRecordError(problem, path=store.public(store.join(source.path)))
            record += records
            if mask.any():
                content, records, stored = _take(content, bounds, ~mask), int((~mask).sum()), content[:0]
            if records:
                kept.add(content)
                spliced.append_block(content, records, stored)
        spliced.finish()
    return replace(spliced.entry(name, [source]), statistics=kept.statistics())


def _take(content: memoryview, bounds: Ints, mask: Mask) -> memoryview:
    """Return the joined records that a mask selects. ``bounds`` are their offsets, and the last end."""
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(content)]
    records = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)
    return memoryview(take_bytes(records, np.flatnonzero(mask).data).buffers()[2])


class _KeptRecords:
    """Collect the statistics of the records of a file."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._decoder = Decoder(schema.columns, schema.record_type)
        self._encoder = Encoder(schema.columns, schema.record_type)
        self._columns = empty_statistics(schema)
        self._are_known = True

    def add(self, data: memoryview) -> None:
        """Add records. If a record does not fit the schema, the file has no statistics."""
        decoded = self._decoder.decode(data, final=True)
        self._are_known &= decoded.damage is None and decoded.consumed == len(data)
        if self._are_known and decoded.batch.num_rows:
            self._encoder.bind(decoded.batch)
            continue_statistics(self._columns, self._encoder.statistics([0, decoded.batch.num_rows]))

    def statistics(self) -> tuple[ColumnStatistics, ...]:
        """Return the statistics of all records."""
        return file_statistics(self._schema, [self._columns], 1)[0] if self._are_known else ()
