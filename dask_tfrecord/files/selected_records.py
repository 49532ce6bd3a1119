"""Read some records of a split by index, or from ranges of the file.

Records that were not requested are neither verified nor decoded, and often not even fetched.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from typing_extensions import Buffer

from dask_tfrecord.codec import Ints
from dask_tfrecord.errors import CorruptRecordError, TFRecordError
from dask_tfrecord.files.record_file import TABLE_BYTES, RecordFile, TableReader
from dask_tfrecord.files.splits import Split, groups_by_bytes
from dask_tfrecord.files.window import must_verify_content
from dask_tfrecord.storage.range_requests import ByteRange
from dask_tfrecord.storage.store import Store

# Buffers, and an array with a row for each requested record: the index of the buffer, and the record's start
# and end in this buffer.
_Found: TypeAlias = tuple[Sequence[Buffer], Ints]


def read_selected(reader: TableReader, split: Split, rows: Ints, count: int) -> pa.Table | None:
    """Read the records ``rows`` of a split. ``rows`` contains ascending indices, counted from the start of
    the split.

    Return None if the whole split must be read because the options verify the file's checksum, skip damage,
    or add the path or the offset of records. Return None if a record is damaged or does not fit the schema,
    or if the split does not contain ``count`` records.
    """
    options = reader.options
    if options.damage.skips or options.origin_columns or must_verify_content(split, options):
        return None
    return _decoded(reader, _located(reader, split, rows, count))


def _located(reader: TableReader, split: Split, rows: Ints, count: int) -> Iterator[_Found]:
    """Find the requested records among all records of a split, which must contain ``count`` records."""
    first = 0
    file = RecordFile(reader.store, split, replace(reader.options, verify_crc=False))
    for chunk in file.chunks():
        bounds = chunk.bounds
        last = first + len(bounds) - 1
        here = rows[slice(*np.searchsorted(rows, (first, last)))] - first
        if len(here):
            yield [chunk.data], np.column_stack([np.zeros_like(here), bounds[here], bounds[here + 1]])
        first = last
    if first != count:
        raise CorruptRecordError(f"the split has {first:,} records, not {count:,}", path=file.path)


def _decoded(reader: TableReader, found: Iterable[_Found]) -> pa.Table | None:
    """Return a table of the requested records, or None if a record is damaged or does not fit the schema."""
    stored, decoder = reader.stored, reader.decoder()
    batches = []
    waiting = 0  # the total size in bytes of the records that `decoder` holds
    try:
        for data, places in found:
            size = int((places[:, 2] - places[:, 1]).sum())
            if waiting and waiting + size > TABLE_BYTES:
                batches.append(stored.from_storage(decoder.take()))
                waiting = 0
            waiting += size
            while len(places):
                fed = decoder.feed_records(data, places, np.arange(len(places)))
                if fed.damage is not None:
                    return None
                places = places[fed.records :]
                if len(places):  # the decoder has stopped, because a column would exceed 2 GiB
                    batches.append(stored.from_storage(decoder.take()))
        batches.append(stored.from_storage(decoder.take()))
        return pa.Table.from_batches(batches)
    # If the result is None, the caller reads the whole split, which raises an error with the position in the
    # file.
    except (TFRecordError, OSError, IndexError):
        return None


class Fetch(NamedTuple):
    """The ranges of a file that contain some requested records of a split.

    ``rows`` contains the indices of the records within the split, in ascending order. ``records`` contains
    the start and the end of each record in the file. For a compressed file, the ranges are whole blocks, and
    ``records`` is None.
    """

    store: Store
    split: Split
    rows: Ints
    starts: Ints
    stops: Ints
    records: Ints | None

    @property
    def bytes(self) -> int:
        return int((self.stops - self.starts).sum())

    @property
    def is_cheaper(self) -> bool:
        """True if reading the ranges takes less time than reading the split. The times are estimates."""
        return self.bytes + len(self.starts) * self.store.request_cost < self.split.stored_bytes

    @property
    def rule(self) -> str:
        sign, whole = "<" if self.is_cheaper else ">=", self.split.stored_bytes
        return (
            f"{len(self.rows):,} records in {len(self.starts):,} requests: {self.bytes:,} bytes + "
            f"{len(self.starts):,} x {self.store.request_cost:,} {sign} {whole:,} bytes of the whole"
        )

    def read(self, reader: TableReader) -> pa.Table | None:
        """Read the requested records.

        Return None if a record is damaged, is not at the expected position, or does not fit the schema. The
        whole split must then be read.
        """
        found = self._in_blocks(reader) if self.records is None else self._in_ranges(self.records)
        return _decoded(reader, found)

    def _in_ranges(self, records: Ints) -> Iterator[_Found]:
        for group in groups_by_bytes((self.stops - self.starts).tolist(), TABLE_BYTES):
            starts, stops = self.starts[group], self.stops[group]
            path, stamp = self.split.file.path, self.split.file.stamp
            wanted = [
                ByteRange(path, *one, stamp) for one in zip(starts.tolist(), stops.tolist(), strict=True)
            ]
            here = records[slice(*np.searchsorted(records[:, 0], (starts[0], stops[-1])))]
            buffers = np.searchsorted(starts, here[:, 0], side="right") - 1
            places = np.column_stack([buffers, here - starts[buffers][:, None]])
            yield self.store.read_ranges(wanted), places

    def _in_blocks(self, reader: TableReader) -> Iterator[_Found]:
        split = self.split
        at = {block.offset: block for block in split.blocks}
        rows = self.rows + split.start.record
        parts = [
            replace(split, start=at[first], stop=at.get(last, split.stop))
            for first, last in zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        ]
        with self.store.reading_ahead([part.stored_range for part in parts]) as store:
            ahead = replace(reader, store=store)
            for part in parts:
                start, stop = part.start.record, part.stop
                end = split.start.record + (split.records or 0) if stop is None else stop.record
                here = rows[slice(*np.searchsorted(rows, (start, end)))] - start
                yield from _located(ahead, part, here, end - start)


def plan_fetch(store: Store, split: Split, rows: Ints, offsets: Ints | None) -> Fetch | None:
    """Return the file ranges that contain the requested records of a split, or None if they are unknown.

    ``offsets`` contains the position of each record of the split in the decompressed file, followed by the
    end of the last record.
    """
    stop = split.file.size if split.stop is None else split.stop.offset
    if stop is None:
        return None
    if split.file.compression:
        if not split.blocks:
            return None
        bounds = np.array([block.offset for block in split.blocks] + [stop])
        firsts = np.array([block.record for block in split.blocks]) - split.start.record
        blocks = np.unique(np.searchsorted(firsts, rows, side="right") - 1)
        ranges = _joined(bounds[blocks], bounds[blocks + 1], store.request_cost)
        return Fetch(store, split, rows, *ranges, None)
    if offsets is None or len(offsets) != (split.records or 0) + 1:
        return None
    records = np.column_stack([offsets[rows], offsets[rows + 1]])
    ranges = _joined(records[:, 0], records[:, 1], store.request_cost)
    return Fetch(store, split, rows, *ranges, records)


def _joined(starts: Ints, stops: Ints, gap: int) -> tuple[Ints, Ints]:
    """Join ascending ranges with gaps of at most ``gap`` bytes.

    A joined range is read in one step. Two ranges are joined only if ``start // TABLE_BYTES`` is equal for
    both, which limits the size of a joined range.
    """
    is_first, is_last = np.ones((2, len(starts)), bool)
    numbers = starts // TABLE_BYTES
    is_first[1:] = is_last[:-1] = (starts[1:] - stops[:-1] > gap) | (numbers[1:] > numbers[:-1])
    return starts[is_first], stops[is_last]
