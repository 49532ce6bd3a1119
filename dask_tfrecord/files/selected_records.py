"""Read some records of a split, by number or where their positions are known.

The other records are only located, or not fetched at all. They are neither verified nor decoded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import FeatureKey, Ints, scan, take_bytes
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.record_file import TABLE_BYTES, decoding, run_kernel
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.window import must_verify_content
from dask_tfrecord.schema.fields import Schema


def read_selected(
    store: Store,
    split: Split,
    wanted: Ints,
    schema: Schema,
    options: ReadOptions,
    *,
    known: Sequence[FeatureKey] | None = None,
) -> tuple[pa.Table, int] | None:
    """Read the records of a split whose numbers, counted from its start, are in ``wanted``, in ascending
    order.

    Return their rows, and the number of all records of the split. Return None if the split must be read
    completely: the checksum of the file must be verified, damage is skipped, or a record that was read is
    damaged or does not fit the schema.
    """
    if options.damage.skips or options.origin_columns or must_verify_content(split, options):
        return None
    stored, decoder, _ = decoding(schema, options, known)
    batches = []
    locate = partial(scan, offsets=True, verify_crc=False, max_record_bytes=options.max_record_bytes)
    count = waiting = 0  # `waiting` counts the bytes of the records that the decoder holds
    try:
        for step in run_kernel(store, split, replace(options, verify_crc=False), locate):
            bounds = np.append(pa.array(step.result.offsets), len(step.data))
            first, count = count, count + step.result.records
            here = wanted[slice(*np.searchsorted(wanted, (first, count)))] - first
            buffers = [None, pa.py_buffer(bounds), pa.py_buffer(step.data)]
            records = take_bytes(
                pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers), here.data
            )
            if not len(here):
                continue
            data = records.buffers()[2]
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


# The number of bytes that could be read in the time that a further request takes: from the local disk, and
# from any other store.
_LOCAL_REQUEST = 1 << 16
_REMOTE_REQUEST = 1 << 20


class Fetch(NamedTuple):
    """The ranges of a file that must be read to get some records of a split.

    ``rows`` are the numbers of the records within the split, in ascending order. ``records`` has the start
    and the end of each record in the file, or is None for a compressed file, whose ranges are whole blocks.
    ``whole`` is the stored size of the split, and ``request`` the number of bytes that could be read in the
    time of one request.
    """

    rows: Ints
    starts: Ints
    stops: Ints
    records: Ints | None
    whole: int
    request: int

    @property
    def bytes(self) -> int:
        return int((self.stops - self.starts).sum())

    @property
    def is_cheaper(self) -> bool:
        """True if reading the ranges takes less time than reading the split, by the number of bytes."""
        return self.bytes + len(self.starts) * self.request < self.whole

    @property
    def rule(self) -> str:
        sign = "<" if self.is_cheaper else ">="
        return (
            f"{len(self.rows):,} records in {len(self.starts):,} requests: {self.bytes:,} bytes + "
            f"{len(self.starts):,} x {self.request:,} {sign} {self.whole:,} bytes of the whole"
        )


def plan_fetch(store: Store, split: Split, rows: Ints, offsets: Ints | None) -> Fetch | None:
    """Return the ranges of a file that hold the wanted records of a split, or None if they are unknown.

    ``offsets`` are the positions of the records of the split in the decompressed file, followed by the end of
    the last one.
    """
    stop = split.file.size if split.stop is None else split.stop.offset
    if stop is None:
        return None
    request = _LOCAL_REQUEST if store.local else _REMOTE_REQUEST
    whole = stop - split.start.offset
    if split.file.compression:
        if not split.blocks:
            return None
        bounds = np.array([block.offset for block in split.blocks] + [stop])
        firsts = np.array([block.record for block in split.blocks]) - split.start.record
        blocks = np.unique(np.searchsorted(firsts, rows, side="right") - 1)
        return Fetch(rows, *_joined(bounds[blocks], bounds[blocks + 1], request), None, whole, request)
    if offsets is None or len(offsets) != (split.records or 0) + 1:
        return None
    records = np.column_stack([offsets[rows], offsets[rows + 1]])
    return Fetch(rows, *_joined(records[:, 0], records[:, 1], request), records, whole, request)


def _joined(starts: Ints, stops: Ints, gap: int) -> tuple[Ints, Ints]:
    """Join ascending ranges with gaps of at most ``gap`` bytes.

    A joined range is read at once, so it ends at the latest with the range in which it reaches a multiple of
    `TABLE_BYTES`.
    """
    is_first, is_last = np.ones((2, len(starts)), bool)
    numbers = starts // TABLE_BYTES
    is_first[1:] = is_last[:-1] = (starts[1:] - stops[:-1] > gap) | (numbers[1:] > numbers[:-1])
    return starts[is_first], stops[is_last]


def read_fetch(
    store: Store,
    split: Split,
    fetch: Fetch,
    schema: Schema,
    options: ReadOptions,
    *,
    known: Sequence[FeatureKey] | None = None,
) -> pa.Table | None:
    """Read the records that `plan_fetch` planned.

    Return None if the split must be read completely, because a record is damaged, is not where it should be,
    or does not fit the schema.
    """
    try:
        if fetch.records is None:
            return _read_blocks(store, split, fetch, schema, options, known)
        return _read_ranges(store, split, fetch, fetch.records, schema, options, known)
    except (TFRecordError, OSError, IndexError):  # reading the whole split raises the error with its position
        return None


def _read_ranges(
    store: Store,
    split: Split,
    fetch: Fetch,
    records: Ints,
    schema: Schema,
    options: ReadOptions,
    known: Sequence[FeatureKey] | None,
) -> pa.Table | None:
    stored, decoder, _ = decoding(schema, options, known)
    batches = []
    for first, last in _groups(fetch.stops - fetch.starts):
        starts, stops = fetch.starts[first:last], fetch.stops[first:last]
        wanted = [(split.file.path, *one) for one in zip(starts.tolist(), stops.tolist(), strict=True)]
        data = store.read_ranges(wanted)
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


def _groups(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Divide ranges of the given sizes into groups that are read at once, of about `TABLE_BYTES` bytes."""
    numbers = np.cumsum(sizes) // TABLE_BYTES
    return pairwise([0, *(np.flatnonzero(numbers[1:] > numbers[:-1]) + 1).tolist(), len(sizes)])


def _read_blocks(
    store: Store,
    split: Split,
    fetch: Fetch,
    schema: Schema,
    options: ReadOptions,
    known: Sequence[FeatureKey] | None,
) -> pa.Table | None:
    at = {block.offset: block for block in split.blocks}
    tables = []
    for first, last in zip(fetch.starts.tolist(), fetch.stops.tolist(), strict=True):
        start, stop = at[first], at.get(last, split.stop)
        end = split.start.record + (split.records or 0) if stop is split.stop else at[last].record
        part = replace(split, start=start, stop=stop, records=end - start.record)
        rows = fetch.rows + split.start.record - start.record
        here = rows[slice(*np.searchsorted(rows, (0, end - start.record)))]
        found = read_selected(store, part, here, schema, options, known=known)
        if found is None or found[1] != part.records:
            return None
        tables.append(found[0])
    return pa.concat_tables(tables)
