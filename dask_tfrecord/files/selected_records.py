"""Read some records of a split by index, or from ranges of the file.

All other records are neither verified nor decoded, and often not even fetched.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import Ints, scan, spans, take_bytes
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.record_file import TABLE_BYTES, Decoding, RecordFile
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.window import must_verify_content


def read_selected(
    store: Store,
    split: Split,
    wanted: Ints,
    decoding: Decoding,
) -> tuple[pa.Table, int] | None:
    """Read the records of a split with the ascending indices ``wanted``, counted from the start of the split.

    Return the rows of these records, and the number of records in the split. Return None if the split must be
    read completely: to verify the checksum of the file, to skip damage, to add the path or the offset of
    records, or because a record is damaged or does not fit the schema.
    """
    options = decoding.options
    if options.damage.skips or options.origin_columns or must_verify_content(split, options):
        return None
    stored, decoder = decoding.stored, decoding.decoder()
    batches = []
    locate = partial(scan, offsets=True, verify_crc=False, max_record_bytes=options.max_record_bytes)
    count = waiting = 0  # `waiting` counts the bytes of the records that the decoder holds
    file = RecordFile(store, split, replace(options, verify_crc=False))
    try:
        for step in file.run(locate):
            bounds = np.append(pa.array(step.result.offsets), len(step.data))
            first, count = count, count + step.result.records
            here = wanted[slice(*np.searchsorted(wanted, (first, count)))] - first
            if not len(here):
                continue
            data = take_bytes(spans(step.data, bounds), here.data).buffers()[2]
            if waiting and waiting + data.size > TABLE_BYTES:
                batches.append(stored.from_storage(decoder.take()))
                waiting = 0
            # The decoder stops before a damaged record, and before a column exceeds 2 GiB.
            if decoder.feed(data, final=True).records < len(here):
                return None
            waiting += data.size
        batches.append(stored.from_storage(decoder.take()))
        return pa.Table.from_batches(batches), count
    except (TFRecordError, OSError):  # reading the whole split raises the error with its position in the file
        return None


class Fetch(NamedTuple):
    """The ranges of a file that must be read to get some records of a split.

    ``rows`` contains the indices of the records within the split, in ascending order. ``records`` contains
    the start and the end of each record in the file. For a compressed file, whose ranges are whole blocks,
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

    def read(self, decoding: Decoding) -> pa.Table | None:
        """Read the requested records.

        Return None if the split must be read completely, because a record is damaged, is not at the expected
        position, or does not fit the schema.
        """
        try:
            if self.records is None:
                return self._read_blocks(decoding)
            return self._read_ranges(self.records, decoding)
        except (TFRecordError, OSError, IndexError):  # reading the whole split locates the error
            return None

    def _read_ranges(self, records: Ints, decoding: Decoding) -> pa.Table | None:
        stored, decoder = decoding.stored, decoding.decoder()
        batches = []
        for first, last in _groups(self.stops - self.starts):
            starts, stops = self.starts[first:last], self.stops[first:last]
            wanted = [
                (self.split.file.path, *one) for one in zip(starts.tolist(), stops.tolist(), strict=True)
            ]
            data = self.store.read_ranges(wanted)
            here = records[slice(*np.searchsorted(records[:, 0], (starts[0], stops[-1])))]
            buffers = np.searchsorted(starts, here[:, 0], side="right") - 1
            places = np.column_stack([buffers, here - starts[buffers][:, None]])
            at = 0
            while at < len(here):
                fed = decoder.feed_records(data, places, np.arange(at, len(here)))
                if fed.damage is not None or not fed.records:
                    return None
                at += fed.records
                batches.append(stored.from_storage(decoder.take()))
        return pa.Table.from_batches(batches or [stored.no_rows()])

    def _read_blocks(self, decoding: Decoding) -> pa.Table | None:
        split = self.split
        at = {block.offset: block for block in split.blocks}
        tables = []
        for first, last in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
            start, stop = at[first], at.get(last, split.stop)
            end = split.start.record + (split.records or 0) if stop is split.stop else at[last].record
            part = replace(split, start=start, stop=stop, records=end - start.record)
            rows = self.rows + split.start.record - start.record
            here = rows[slice(*np.searchsorted(rows, (0, end - start.record)))]
            found = read_selected(self.store, part, here, decoding)
            if found is None or found[1] != part.records:
                return None
            tables.append(found[0])
        return pa.concat_tables(tables)


def plan_fetch(store: Store, split: Split, rows: Ints, offsets: Ints | None) -> Fetch | None:
    """Return the file ranges with the requested records of a split, or None if the ranges are unknown.

    ``offsets`` are the positions of the records of the split in the decompressed file, followed by the end of
    the last record.
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

    A joined range is read at once. To limit the size of joined ranges, only ranges that start between the
    same two multiples of `TABLE_BYTES` are joined.
    """
    is_first, is_last = np.ones((2, len(starts)), bool)
    numbers = starts // TABLE_BYTES
    is_first[1:] = is_last[:-1] = (starts[1:] - stops[:-1] > gap) | (numbers[1:] > numbers[:-1])
    return starts[is_first], stops[is_last]


def _groups(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Divide ranges of the given sizes into groups of about `TABLE_BYTES` bytes. A group is read at once."""
    numbers = np.cumsum(sizes) // TABLE_BYTES
    return pairwise([0, *(np.flatnonzero(numbers[1:] > numbers[:-1]) + 1).tolist(), len(sizes)])
