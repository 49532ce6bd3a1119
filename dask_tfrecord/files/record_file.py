"""Read splits of TFRecord files in bounded memory, as records or as tables.

A `RecordFile` reads one split, chunk by chunk. A `TableReader` decodes the records of several splits.

Creating a window, a decoder and a batch for each small file would take several times as long as decoding a
hundred records. `TableReader.read_together` therefore joins the bytes of several small files in one buffer.
If that fails, for example because a file is damaged, the caller reads each file alone, which raises the
error. The module knows nothing about datasets.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from typing_extensions import Buffer

from dask_tfrecord.codec import (
    HEADER_BYTES,
    Checked,
    Column,
    Decoded,
    Decoder,
    FeatureKey,
    Fed,
    Inference,
    Ints,
    Scanned,
    crc32c,
    scan,
)
from dask_tfrecord.codec.codecs import decompressor, detect, is_frame
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.damage import Losses, locate_error
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.window import (
    WINDOW_BYTES,
    Allocate,
    Intact,
    Numbers,
    Window,
    must_verify_content,
    open_window,
    read_exactly,
    record_bounds,
)
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.local_disk import open_regular
from dask_tfrecord.storage.store import Store

# The Arrow type of the path column.
PATH_TYPE = pa.dictionary(pa.int32(), pa.string())

# The largest decompressed size, in bytes, of all records in one table: for a partition, and for a stream.
# Tables of a stream are smaller than those of a partition, because a consumer waits for each.
TABLE_BYTES = 1 << 25
STREAM_BYTES = 1 << 22

# The assumed ratio of decompressed to compressed bytes for a file whose decompressed size is unknown.
_EXPANSION = 4

# The buffer for small files is this many times as large as the estimated content of the files. Most of the
# buffer's memory is never used.
_MARGIN = 4

# The types that kernel functions return. A kernel function processes the complete records at the start of a
# buffer.
Result: TypeAlias = Fed | Decoded | Scanned

_R = TypeVar("_R", bound=Result)


@dataclass(frozen=True)
class Chunk(Generic[_R]):
    """Consecutive records of a file, and the result of a kernel function for these records.

    ``data`` contains the bytes of the records, and is valid only until the next chunk. ``intact`` contains
    all intact records of the window to which the chunk belongs. In ``intact``, ``row`` records and ``at``
    bytes precede the chunk.
    """

    result: _R
    data: memoryview
    intact: Intact
    row: int
    at: int

    @property
    def bounds(self) -> Ints:
        """The positions in ``data`` at which records begin, and the end of the last record."""
        if isinstance(self.result, Scanned) and self.result.offsets is not None:
            return np.append(self.result.offsets, len(self.data))
        return record_bounds(self.data)

    def offsets(self, positions: Ints) -> Ints:
        """Convert the positions in ``data`` at which records begin to decompressed offsets in the file."""
        return self.intact.offsets(self.at + positions)

    def number(self, row: int) -> int:
        """Convert the index of a record in this chunk to its index in the file."""
        return self.intact.numbers.of(self.row + row)


class Records(NamedTuple):
    """A buffer of records, with the start of each and the end of the last."""

    data: pa.Buffer
    offsets: Ints


class RecordFile(NamedTuple):
    """The records of a split, and the options with which they are read."""

    store: Store
    split: Split
    options: ReadOptions

    @property
    def path(self) -> str:
        """The path of the file, without secrets, for errors and for the path column."""
        return self.store.public(self.split.file.path)

    def run(
        self,
        kernel: Callable[..., _R],
        columns: Sequence[Column] = (),
        losses: Losses | None = None,
        check: Callable[..., Checked] | None = None,
        *,
        early: bool = False,
    ) -> Iterator[Chunk[_R]]:
        """Call a kernel function on the records of the split, window by window.

        ``kernel`` accepts bytes and ``final``, and processes the complete records at the start of the bytes.
        ``check`` is a bound `Inference.check`. If the options skip damage, ``check`` finds the damaged
        ranges, and ``kernel`` receives only the intact records. The default check does not parse payloads. If
        ``kernel`` finds a damaged value, it reports the index of the value's column in ``columns``.
        With ``early=True``, the first chunks of a remote file are smaller, so that they are there earlier.

        Raise CorruptRecordError for damage that the options do not skip. Raise SchemaError for a value that
        does not fit its column.
        """
        store, split, options = self
        record = split.start.record
        if not options.damage.skips:
            check = None
        elif check is None:
            limit = options.max_record_bytes
            check = Inference("bytes", verify_crc=options.verify_crc, max_record_bytes=limit).check
        try:
            with (
                (losses or Losses(options.damage)).split(self.path, split.start.offset) as lost,
                open_window(store, split, options, WINDOW_BYTES, early=early) as window,
            ):
                for data in window:
                    checked, intact = None, Intact(data, Numbers(record), window.offset)
                    if check is not None:
                        checked = _check(check, window, data)
                        lost.add(window.offset, data, checked)
                        intact = Intact.of(checked, data, window.offset, record)
                    at = rows = 0
                    is_final = window.final or checked is not None
                    while at < len(intact.data):
                        result = kernel(intact.data[at:], final=is_final)
                        end = at + result.consumed
                        damage = result.damage
                        if checked is None:
                            damage = damage or window.overrun(result.records, at, end)
                        yield Chunk(result, intact.data[at:end], intact, rows, at)
                        rows += result.records
                        if damage is not None:
                            record = intact.numbers.of(rows)
                            [offset] = intact.offsets(np.array([at + damage.offset])).tolist()
                            raise damage._replace(record=0, offset=offset).error(columns, 0, 0)
                        at = end
                        if not (is_final and result.records):
                            break  # a decoder stops before a column exceeds 2 GiB; call the decoder again
                    record = intact.numbers.of(rows)
                    if checked is None:
                        window.advance(at, verified=rows if options.verify_crc else 0)
                    else:
                        window.advance(checked.consumed)
                    if checked and (error := window.decompression_error):
                        rest = window.data
                        damaged = Checked.one_range(len(rest), error.problem, continues=checked.is_open)
                        return lost.add(window.offset, rest, damaged)
        except TFRecordError as error:
            raise locate_error(error, self.path, record, options.max_record_bytes) from None

    def chunks(self) -> Iterator[Chunk[Scanned]]:
        """Yield the records chunk by chunk, with the position of each record, but without parsing them."""
        verify_crc, limit = self.options.verify_crc, self.options.max_record_bytes
        return self.run(partial(scan, offsets=True, verify_crc=verify_crc, max_record_bytes=limit))

    def records(self, allocate: Allocate | None = None, stored: Buffer | None = None) -> Records:
        """Read all records of the split into one buffer, and find where each record begins. Payloads are not
        verified.

        ``allocate`` returns memory for the buffer, which is used only if the size of the records is known.
        ``stored`` contains the stored bytes of the split, if the caller has already read them.
        """
        split, data = self.split, None
        is_plain = split.file.compression is None and split.start.offset == split.start.content
        if allocate and is_plain and not self.store.is_remote and self.options.compression in ("infer", None):
            # Reading through a window would take 25% more time.
            data = self.read_stored(allocate(split.stored_bytes))
        if data is None or not is_frame(bytes(data[:HEADER_BYTES])):
            size = max(WINDOW_BYTES, content_bytes(split) + 1)
            try:
                with open_window(self.store, split, self.options, size, allocate, stored=stored) as window:
                    data = window.read_all()
            except TFRecordError as error:
                raise locate_error(error, self.path, split.start.record) from None
        return Records(pa.py_buffer(data), self.find_records(data))

    def find_records(self, data: memoryview) -> Ints:
        """Return where records begin in the content of the split, and where the last record ends."""
        limit = self.options.max_record_bytes
        scanned = scan(data, final=True, offsets=True, verify_crc=False, max_record_bytes=limit)
        if scanned.damage is not None:
            error = scanned.damage.error((), 0, self.split.start.content)
            raise locate_error(error, self.path, self.split.start.record)
        return np.append(pa.array(scanned.offsets), scanned.consumed)

    def read_stored(self, buffer: memoryview) -> memoryview | None:
        """Read the stored bytes of the split into the start of a buffer, and return them.

        Return None if the buffer is too small, or if the file cannot be read or was replaced since it was
        listed. For a local file, `read_stored` takes much less time than `Store.open`.
        """
        store, file, start = self.store, self.split.file, self.split.start.offset
        view = buffer[: self.split.stored_bytes]
        if file.size is None or len(view) < self.split.stored_bytes:
            return None

        def is_read(path: str) -> bool:
            with open(path, "rb", buffering=0, opener=open_regular) as opened:
                status = os.fstat(opened.fileno())
                if status.st_size != file.size or file.stamp not in ("", str(status.st_mtime)):
                    return False
                opened.seek(start)
                return opened.readinto(view) == len(view)

        try:
            if not store.is_remote:
                if not store.with_current_path(file.path, is_read):
                    return None
            else:
                stop = self.split.stop and self.split.stop.offset
                with store.open(file.path, file.size, start, stop, file.stamp) as reader:
                    read_exactly(reader, view)
                    # This read raises an error if the file has more bytes than expected.
                    reader.readinto(memoryview(bytearray(1)))
        except (TFRecordError, OSError):
            return None
        is_other = must_verify_content(self.split, self.options) and crc32c(view) != file.crc32c
        return None if is_other else view

    def count(self, losses: Losses | None = None) -> int:
        """Count the records without parsing them. The options determine whether checksums are verified."""
        # If the options skip damaged records, the check in `run` verifies the checksums.
        verify_crc = self.options.verify_crc and not self.options.damage.skips
        scan_all = partial(scan, verify_crc=verify_crc, max_record_bytes=self.options.max_record_bytes)
        return sum(chunk.result.records for chunk in self.run(scan_all, losses=losses))


def _check(check: Callable[..., Checked], window: Window, data: memoryview) -> Checked:
    limit = None if window.stop is None else window.stop - window.offset
    checked = check(data, final=window.final, limit=limit)
    is_first = window.offset == 0 and len(checked.starts) and not checked.starts[0]
    if is_first and (found := window.other_format()):
        return checked.with_first_reason(found.problem)
    return checked


def rows_without_columns(rows: int) -> pa.Table:
    return pa.table({"": pa.nulls(rows)}).select([])


def content_bytes(split: Split) -> int:
    """Estimate the decompressed size of a split in bytes. If the file's size is unknown, return 0 or less."""
    if split.stop is not None:
        return split.stop.content - split.start.content
    stored = (split.file.size or 0) - split.start.offset
    return stored * _EXPANSION if split.file.compression else stored


def groups_of_small_files(splits: Iterable[Split]) -> Iterator[list[Split]]:
    """Group consecutive splits that are whole files and together fit in a window. Any split that is not a
    whole file, or does not fit in a window, forms a group alone.
    """
    group: list[Split] = []
    left = WINDOW_BYTES
    for split in splits:
        is_whole = not split.start.offset and split.stop is None and split.file.size is not None
        size = content_bytes(split) if is_whole else WINDOW_BYTES + 1
        if group and size > left:
            yield group
            group, left = [], WINDOW_BYTES
        group.append(split)
        left -= size
    if group:
        yield group


@dataclass(frozen=True)
class TableReader:
    """Read records of the files of a store as tables with the columns of a schema.

    ``known`` contains the features that records may have. If ``known`` is None, records may have any
    features. Features without a column are not parsed.
    """

    store: Store
    schema: Schema
    options: ReadOptions
    known: Sequence[FeatureKey] | None = None

    @property
    def only_counts(self) -> bool:
        """True if the records are only counted, and not parsed.

        The records are only counted if the schema has no columns, all features are allowed, and damaged
        payloads need not be skipped.
        """
        must_parse = self.options.damage.skips and self.schema.record_type != "bytes"
        return not self.schema.fields and not must_parse and self.known is None

    @property
    def stored(self) -> Schema:
        """The schema of the columns that are stored in records, without the path and offset columns."""
        schema, others = self.schema, self.options.origin_columns
        return schema.select(name for name in schema.names if name not in others) if others else schema

    def decoder(self) -> Decoder:
        rules = self._rules
        if self.options.damage.skips:  # `check` verifies the checksums
            rules["verify_crc"] = False
        rules |= {"one_map": self.options.expects_one_map, "integers": self.options.integers}
        return Decoder(self.stored.columns, known=self.known, **rules)

    def check(self) -> Callable[..., Checked] | None:
        """Return the function that finds damage to skip, or None if the options do not skip damage.

        It parses all features, so the read skips the same records for any choice of columns.
        """
        return Inference(**self._rules).check if self.options.damage.skips else None

    def read(
        self, split: Split, losses: Losses | None = None, batch_bytes: int = STREAM_BYTES
    ) -> Iterator[pa.Table]:
        """Yield the records of a split as tables.

        ``losses`` collects the damage that is skipped. ``batch_bytes`` is the maximum total decompressed size
        of the records in one table. A record larger than ``batch_bytes`` becomes a table with one row.

        Raise CorruptRecordError for damage that the options do not skip, after yielding the records before
        the damage. Raise SchemaError for a value that does not fit its column.
        """
        file = RecordFile(self.store, split, self.options)
        if self.only_counts:
            yield rows_without_columns(file.count(losses))
            return
        stored, decoder = self.stored, self.decoder()
        wants_offsets = self.options.offset_column in self.schema.names
        gathered = _Batches(decoder, content_bytes(split), batch_bytes, wants_offsets)
        chunks = file.run(gathered.feed, decoder.columns, losses, self.check(), early=True)
        for one in gathered.batches(chunks):
            try:
                batch = stored.from_storage(one.batch)
            except TFRecordError as error:
                row = error.record or 0
                raise locate_error(error, file.path, one.number(row) - row) from None
            yield self._as_table(batch, [(file.path, batch.num_rows)], one.offsets)

    def read_together(self, splits: Sequence[Split]) -> tuple[pa.Table, list[int]] | None:
        """Read a group of small files. Return the rows, and the number of rows of each file.

        Return None if the caller must read each file alone: if a file is damaged or has changed, if a value
        does not fit its column, or if the content is much larger than estimated.
        """
        try:
            joined = self._join(splits)
            if joined is None:
                return None
            data, starts = joined
            verify_crc, longest = self.only_counts and self.options.verify_crc, self.options.max_record_bytes
            found = scan(data, final=True, offsets=True, verify_crc=verify_crc, max_record_bytes=longest)
            offsets = np.append(pa.array(found.offsets), len(data))
            firsts = np.searchsorted(offsets, starts)
            # Reject the joined bytes if a record continues from one file into the next, even if its checksum
            # is correct.
            if found.damage or not np.array_equal(offsets[firsts], starts):
                return None
            counts = np.diff(firsts)
            if self.only_counts:
                return rows_without_columns(found.records), counts.tolist()
            decoder, check = self.decoder(), self.check()
            if check is not None and len(check(data, final=True).starts):
                return None
            if decoder.feed(data, final=True).damage:
                return None
            batch = self.stored.from_storage(decoder.take())
        except (TFRecordError, OSError):  # reading each file alone raises the error of the first bad file
            return None
        paths = [self.store.public(split.file.path) for split in splits]
        files = [(path, count) for path, count in zip(paths, counts, strict=True) if count]
        if not files:
            return pa.Table.from_batches([self.schema.no_rows()]), counts.tolist()
        in_file = pa.array(offsets[:-1] - np.repeat(starts[:-1], counts))
        return self._as_table(batch, files, [in_file]), counts.tolist()

    @property
    def _rules(self) -> dict[str, Any]:
        options = self.options
        return {
            "record_type": options.decoded_type(self.schema.record_type),
            "verify_crc": options.verify_crc,
            "max_record_bytes": options.max_record_bytes,
        }

    def _join(self, splits: Sequence[Split]) -> tuple[memoryview, Ints] | None:
        """Read the content of files into one buffer.

        Return the joined content, and the position at which each file starts, followed by the content's end.
        Return None if a file must be read alone.
        """
        # The buffer has one byte more than the files may fill, so that oversized content is detected.
        size = _MARGIN * sum(map(content_bytes, splits)) + 1
        buffer = memoryview(pa.allocate_buffer(size)).cast("B")
        starts = [0]
        for split in splits:
            at = starts[-1]
            stored = RecordFile(self.store, split, self.options).read_stored(buffer[at:])
            if stored is None:
                return None
            codec = detect(bytes(stored[:HEADER_BYTES]))
            if stored and self.options.compression not in ("infer", codec):
                return None
            at += len(stored)
            if codec:
                at = starts[-1]
                content = decompressor(BytesIO(stored).readinto, codec, inside=False)
                while at < size and (count := content.readinto(buffer[at:])):
                    at += count
            if at >= size:
                return None
            starts.append(at)
        return buffer[: starts[-1]], np.array(starts)

    def _as_table(
        self, batch: pa.RecordBatch, files: Iterable[tuple[str, int]], offsets: Sequence[pa.Array]
    ) -> pa.Table:
        """Convert a batch to a table, with the path and offset columns of the schema.

        ``files`` lists the path and the number of rows of each file in the batch.
        """
        if not self.schema.fields:
            return rows_without_columns(batch.num_rows)
        if not self.options.origin_columns:
            return pa.Table.from_batches([batch])
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if self.options.path_column in self.schema.names:
            paths, counts = zip(*files, strict=True)
            number_of_row = np.repeat(np.arange(len(counts)), counts)
            columns[self.options.path_column] = (
                pa.array(paths, pa.string()).dictionary_encode().take(number_of_row)
            )
        if self.options.offset_column in self.schema.names:
            columns[self.options.offset_column] = pa.concat_arrays(offsets)
        return pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema.arrow)


class _Batch(NamedTuple):
    """A batch of records that were decoded from one or more windows.

    ``parts`` contains one tuple for each group of rows from the same window. The tuple consists of the first
    row of the group, the index of its record among the window's intact records, and the window's `Numbers`.
    ``offsets`` contains the file offsets of the records, if requested.
    """

    batch: pa.RecordBatch
    parts: list[tuple[int, int, Numbers]]
    offsets: list[pa.Array]

    def number(self, row: int) -> int:
        """Return the index in the file of the record from which a row was decoded."""
        first, skipped, numbers = self.parts[bisect_right(self.parts, row, key=itemgetter(0)) - 1]
        return numbers.of(row - first + skipped)


class _Batches:
    """Decode windows of records, and gather the records of several windows in each batch."""

    def __init__(self, decoder: Decoder, content_bytes: int, batch_bytes: int, wants_offsets: bool) -> None:
        self._decoder = decoder
        self._left = content_bytes  # the estimated number of bytes in the split that are not decoded yet
        self._batch_bytes = batch_bytes
        self._wants_offsets = wants_offsets
        self._bytes = self._records = 0  # the number of bytes and of records in the current batch
        self._parts: list[tuple[int, int, Numbers]] = []
        self._offsets: list[pa.Array] = []
        self._done: list[_Batch] = []

    def feed(self, data: memoryview, *, final: bool) -> Fed:
        """Decode the complete records at the start of ``data``. `RecordFile.run` calls this method as the
        kernel function.
        """
        size = len(data)
        # Only a window that a long record has enlarged can make the batch exceed `_batch_bytes`.
        if self._bytes and self._bytes + size > self._batch_bytes:
            self._end()
        more = min(self._left, self._batch_bytes - self._bytes) - size
        fed = self._decoder.feed(data, final=final, more=max(0, more))
        self._count(fed.consumed)
        return fed

    def batches(self, chunks: Iterable[Chunk[Fed]]) -> Iterator[_Batch]:
        """Yield the batches that `feed` decodes in these chunks.

        If reading a chunk raises, first yield the records of the previous chunks.
        """
        try:
            for chunk in chunks:
                self._add(chunk)
                yield from self._ended()
        except TFRecordError:
            self._end()
            yield from self._ended()
            raise
        self._end()
        yield from self._ended()

    def _add(self, chunk: Chunk[Fed]) -> None:
        if chunk.result.records:
            self._parts.append((self._records, chunk.row, chunk.intact.numbers))
        self._records += chunk.result.records
        if self._wants_offsets:
            self._offsets.append(pa.array(chunk.offsets(chunk.bounds[:-1])))
        if not chunk.at:
            self._count(int(chunk.intact.removed[-1]))
        if self._bytes + WINDOW_BYTES > self._batch_bytes:
            self._end()

    def _count(self, size: int) -> None:
        self._bytes += size
        self._left -= size

    def _end(self) -> None:
        if self._records:
            self._done.append(_Batch(self._decoder.take(), self._parts, self._offsets))
        self._bytes = self._records = 0
        self._parts, self._offsets = [], []

    def _ended(self) -> Iterator[_Batch]:
        while self._done:
            yield self._done.pop(0)
