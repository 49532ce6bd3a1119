"""Shuffle the records of several pieces. The records stay encoded until a batch needs them.

Decoding the records of a batch together, in the order of the batch, takes less time and memory than decoding
whole pieces and copying the rows of each batch from the decoded columns.
"""

from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import Decoder, pool_array, raise_pool_limit
from dask_tfrecord.codec.checked import Ints
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.errors import FileChangedError, TFRecordError
from dask_tfrecord.feed.record_offsets import Records
from dask_tfrecord.schema.model import Schema
from dask_tfrecord.schema.storage_values import load

if TYPE_CHECKING:
    from dask_tfrecord.feed.sources import DatasetSource

# A window ends when it holds this many bytes, even if it holds fewer rows than the shuffle buffer.
WINDOW_BYTES = 1 << 29

# The size of the memory that is allocated for several pieces.
_PART_BYTES = 1 << 24

# The approximate size of the records that are decoded together, unless a batch is larger.
_TABLE_BYTES = 1 << 23


@dataclass(frozen=True)
class EncodedRows:
    """The records of one piece, or of a range of one piece.

    Attributes
    ----------
    piece : int
        The number of the piece.
    blocks : list of Records
        The records of each split of the piece.
    """

    piece: int
    blocks: list[Records]

    @property
    def num_rows(self) -> int:
        """The number of records of the range."""
        return sum(len(block.offsets) - 1 for block in self.blocks)

    @property
    def nbytes(self) -> int:
        """The number of bytes that the blocks take in memory."""
        return sum(block.data.size for block in self.blocks)

    def slice(self, start: int, length: int) -> Self:
        """Return a part of the range, without the blocks that have no record of the part."""
        blocks = []
        for block in self.blocks:
            first, last = max(start, 0), min(start + length, len(block.offsets) - 1)
            if first < last:
                blocks.append(Records(block.data, block.offsets[first : last + 1]))
            start -= len(block.offsets) - 1
        return replace(self, blocks=blocks)


class RecordReader:
    """Reads pieces of a dataset as encoded records. The windows of one iteration share the reader's decoder,
    and its memory, which is allocated in large parts. The kernel uses these parts again for other windows.

    Several threads may call `read`.

    Parameters
    ----------
    source : DatasetSource
        The source of the pieces.
    """

    def __init__(self, source: "DatasetSource") -> None:
        raise_pool_limit(_PART_BYTES + WINDOW_BYTES)
        self._lock = Lock()
        self._left = memoryview(b"")
        self.source = source
        dataset, options = source.dataset, source.dataset.options
        names = [name for name in source.schema.names if name not in dataset.partition_values]
        self.stored = source.schema.select(names)
        self.decoder = Decoder(
            self.stored.columns,
            options.decoded_type(self.stored.record_type),
            verify_crc=options.verify_crc,
            max_record_bytes=options.max_record_bytes,
            known=dataset.partition(0, source.schema).allowed_features,
        )

    def allocate(self, size: int) -> memoryview:
        """Return uninitialised memory of ``size`` bytes."""
        with self._lock:
            if len(self._left) < size:
                self._left = pool_array(max(size, _PART_BYTES)).data
            # Processors copy bytes fastest to addresses that are multiples of 64.
            found, self._left = self._left[:size], self._left[size + -size % 64 :]
        return found

    def read(self, piece: int) -> EncodedRows:
        """Read the records of one piece."""
        return self.source.read_encoded(piece, self.allocate)


class ShuffleWindow:
    """The records of several pieces in a random order, from which `slice` decodes ranges. A window has the
    methods of a `pyarrow.Table` that batches need.

    Parameters
    ----------
    reader : RecordReader
        The reader of the pieces.
    pieces : list of EncodedRows
        The records of the window.
    order : numpy.ndarray
        The number of each row of the window in the sequence of all records of ``pieces``.
    """

    def __init__(self, reader: RecordReader, pieces: list[EncodedRows], order: Ints) -> None:
        self._reader = reader
        self._order = order
        blocks = [block for piece in pieces for block in piece.blocks]
        self._buffers = [block.data for block in blocks]
        self._piece_of_buffer = np.repeat(
            [piece.piece for piece in pieces], [len(piece.blocks) for piece in pieces]
        )
        # A row for each record: the index of its buffer, and the start and the end of its frame.
        self._places = np.frombuffer(reader.allocate(24 * len(order)), np.int64).reshape(-1, 3)
        last = 0
        for number, block in enumerate(blocks):
            first, last = last, last + len(block.offsets) - 1
            places = self._places[first:last]
            places[:, 0], places[:, 1], places[:, 2] = number, block.offsets[:-1], block.offsets[1:]
        size = sum(piece.nbytes for piece in pieces)
        self._rows_per_table = len(order) * _TABLE_BYTES // max(1, size)
        self._start, self._decoded = 0, pa.Table.from_batches([], reader.source.schema.arrow)

    @property
    def num_rows(self) -> int:
        """The number of rows of the window."""
        return len(self._order)

    def slice(self, start: int, length: int | None = None) -> pa.Table:
        """Decode the rows from ``start`` on, at most ``length`` rows.

        Raises
        ------
        CorruptRecordError, SchemaError
            If a record is damaged or does not fit the schema.
        """
        stop = len(self._order) if length is None else start + length
        if not self._start <= start <= stop <= self._start + self._decoded.num_rows:
            # Decoding the rows of several small batches together is faster.
            batches = max(1, self._rows_per_table // max(1, stop - start))
            self._decoded = self._decode(self._order[start : start + batches * (stop - start)])
            self._start = start
        return self._decoded.slice(start - self._start, stop - start)

    def _decode(self, rows: Ints) -> pa.Table:
        decoder, stored, batches = self._reader.decoder, self._reader.stored, []
        while len(rows):
            fed = decoder.feed_records(self._buffers, self._places, rows)
            if fed.damage is not None:
                raise self._error(rows[fed.records], fed.damage.error(stored.columns, 0, 0))
            try:
                batch = stored.from_storage(decoder.take())
            except TFRecordError as error:
                raise self._error(rows[error.record or 0], error) from None
            batches.append(self._with_partition_values(batch, rows[: fed.records]))
            rows = rows[fed.records :]
        return pa.Table.from_batches(batches, self._reader.source.schema.arrow)

    def _with_partition_values(self, batch: pa.RecordBatch, rows: Ints) -> pa.RecordBatch:
        source = self._reader.source
        if batch.num_columns == len(source.schema.fields):
            return batch
        pieces = self._piece_of_buffer[self._places[rows, 0]]
        return with_partition_values(source.dataset, source.schema, batch, pieces)

    def _error(self, row: int, error: TFRecordError) -> TFRecordError:
        """Raise the error that a read of the record's piece raises, which names the file and the record.

        Return an error if the read succeeds, because the file has changed.
        """
        self._reader.source.read(int(self._piece_of_buffer[self._places[row, 0]]))
        return FileChangedError(f"a file changed while its records were shuffled: {error}")


def with_partition_values(
    dataset: ReadPlan, schema: Schema, batch: pa.RecordBatch, partitions: Ints
) -> pa.RecordBatch:
    """Add the partition columns of a schema to the stored columns of a batch.

    ``partitions`` has the number of the partition of each row.
    """
    if batch.num_columns == len(schema.fields):
        return batch
    columns = [
        load(dataset.partition_values[item.name].take(pa.array(partitions)), item.type, item.categories)
        if item.name in dataset.partition_values
        else batch[item.name]
        for item in schema.fields
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
