"""Create files from the stored bytes of other files, with all or only some of their records.

If all records of a block remain, its stored bytes are copied. `remove_records` also decodes them, to compute
statistics. Uncompressed files, and the frames of zstd, LZ4, bzip2 and xz files, are copied one after the
other. The blocks of gzip and zlib files become one stream, whose checksum is computed from those of the
sources. If a new file may get a column file, its rows come from the column files of the sources, or from the
copied blocks, so that each source is read once. The module knows nothing about datasets.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import add
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_tfrecord.codec import (
    HEADER_BYTES,
    KIND_TYPES,
    Column,
    Decoder,
    Encoder,
    Ints,
    RecordType,
    crc32c,
    crc32c_combine,
    nested,
    spans,
    take_bytes,
)
from dask_tfrecord.codec.codecs import (
    Compression,
    Compressor,
    FrameCompressor,
    compressor,
    decompress_block,
    detect,
)
from dask_tfrecord.errors import CorruptRecordError, located
from dask_tfrecord.files.column_files import (
    ColumnFileWriter,
    StoredRows,
    WrittenColumns,
    create_column_file,
    open_column_file,
)
from dask_tfrecord.files.entry import (
    BLOCK_BYTES,
    Block,
    FileEntry,
    continue_statistics,
    empty_statistics,
    file_statistics,
    merge_statistics,
)
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.record_file import Chunk, RecordFile
from dask_tfrecord.files.small_columns import SmallColumns
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.window import changed_since_snapshot, read_exactly, record_bounds
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.storage.range_requests import ByteRange
from dask_tfrecord.storage.reader import FileReader
from dask_tfrecord.storage.store import Store

# A block: the decompressed content, the number of records, and the stored bytes. The content is valid until
# the next block is read. The stored bytes are empty if the content must first be compressed.
StoredBlock: TypeAlias = tuple[memoryview, int, memoryview]

# Stores copies of columns for a new file.
ColumnWriter: TypeAlias = ColumnFileWriter | SmallColumns

# The number of bytes that one step copies.
_CHUNK_BYTES = 1 << 20


def stored_codec(store: Store, sources: Sequence[FileEntry]) -> Compression | None:
    first = next((source for source in sources if source.records), sources[0])
    with store.open(store.join(first.path), first.bytes, 0, min(first.bytes, HEADER_BYTES)) as reader:
        return detect(reader.peek(HEADER_BYTES))


def splice(
    store: Store,
    sources: Sequence[FileEntry],
    compression: Compression | None,
    path: str,
    name: str,
    column_writer: ColumnWriter | None = None,
    features: Schema | None = None,
) -> FileEntry:
    """Write a file with the records of several files, in the order of ``sources``.

    The sources must have the same partition values. A source with a codec other than ``compression``, or a
    compressed source without blocks, is decompressed and compressed again. ``path`` is the path of the new
    file in the store, and ``name`` is the same path relative to the dataset's root. ``column_writer``
    receives the columns of ``features``, from the column file of a source if possible. Raise FileChangedError
    if a source differs from its `FileEntry`, and CorruptRecordError if a source is damaged.
    """
    ranges = [ByteRange(store.join(one.path), 0, one.bytes, "", one.bytes) for one in sources]
    fits = True
    with store.create(path) as file, store.reading_ahead(ranges) as ahead:
        spliced = SplicedFile(file, compression)
        for source in sources:
            if column_writer is None or features is None:
                spliced.append_file(ahead, source)
            elif (rows := _stored_rows(store, source, features)) is not None:
                start = spliced.content
                spliced.append_file(ahead, source)
                for values, sizes in rows:
                    ends = start + np.cumsum(sizes)
                    column_writer.add(values, ends - sizes)
                    start = int(ends[-1])
            else:
                decoder = Decoder(features.columns, features.record_type)
                for content, records, stored in spliced.read_blocks(ahead, source):
                    starts = spliced.content + _checked_bounds(store, source, content, records)[:-1]
                    decoded = decoder.decode(content, final=True)
                    fits &= decoded.damage is None and decoded.consumed == len(content)
                    if fits:
                        column_writer.add(decoded.batch, starts)
                    spliced.append_block(content, records, stored)
        spliced.finish()
    return spliced.entry(name, sources, column_writer if fits else None)


class SplicedFile:
    """A new file that consists of stored blocks of other files, and of new blocks.

    In ``blocks``, adjacent short blocks are joined to one block with at most `BLOCK_BYTES` bytes of content.
    ``bytes`` and ``crc32c`` are the size and the checksum of the bytes written so far. ``content`` is the
    size of the written bytes before compression.
    """

    def __init__(self, file: BinaryIO, compression: Compression | None) -> None:
        self._file = file
        self._compression = compression
        self._compressor: Compressor = compressor(compression) if compression else FrameCompressor(bytes)
        self._buffer = memoryview(bytearray(_CHUNK_BYTES))
        self.blocks: list[Block] = []
        self.bytes = self.crc32c = self.content = self.records = 0
        self._write(self._compressor.head)

    def append_file(self, store: Store, source: FileEntry) -> None:
        """Append all records of a file, and compare it with its `FileEntry`."""
        path = store.join(source.path)
        with store.open(path, source.bytes) as reader, located(path=store.public(path)):
            if is_copied := self._has_blocks(source, reader):
                self._copy(store, source, reader)
        if not is_copied:
            for content, records, _ in _compressed_again(store, source):
                self.append_block(content, records)

    def read_blocks(self, store: Store, source: FileEntry) -> Iterator[StoredBlock]:
        """Yield the blocks of a file, and compare it with its `FileEntry`."""
        path = store.join(source.path)
        with store.open(path, source.bytes) as reader, located(path=store.public(path)):
            if is_copied := self._has_blocks(source, reader):
                yield from self._stored_blocks(store, source, reader)
        if not is_copied:
            yield from _compressed_again(store, source)

    def _has_blocks(self, source: FileEntry, reader: FileReader) -> bool:
        """Return True if ``source`` has the codec of the new file, and lists blocks that can be copied."""
        first = Block(len(self._compressor.head), 0, 0)
        stop = source.bytes - self._compressor.tail_bytes
        return (
            detect(reader.peek(HEADER_BYTES)) == self._compression
            and source.blocks[:1] == (first,)
            and source.blocks[-1].offset <= stop
        )

    def append_block(self, content: memoryview, records: int, stored: bytes | memoryview = b"") -> None:
        """Append a block to the new file. ``content`` is the decompressed content. ``stored`` is the
        compressed content, or empty if the content must be compressed.
        """
        block = Block(self.bytes, self.content, self.records)
        self._write(stored or self._compressor.compress(content))
        self._compressor.add(content)
        self._add_blocks([block], len(content), records)

    def finish(self) -> None:
        self._write(self._compressor.tail())

    def entry(
        self, name: str, sources: Sequence[FileEntry], column_writer: ColumnWriter | None = None
    ) -> FileEntry:
        return FileEntry(
            name,
            self.bytes,
            self.records,
            self.crc32c,
            sources[0].values,
            tuple(self.blocks),
            merge_statistics(sources),
            columns=None
            if column_writer is None
            else column_writer.end_file(name, self.bytes, self.crc32c, self.content),
            codec=self._compression or "none",
        )

    def _copy(self, store: Store, source: FileEntry, reader: FileReader) -> None:
        """Copy a file's stored blocks, but not the bytes before the first or after the last."""
        start, last = source.blocks[0].offset, source.blocks[-1].offset
        stop = source.bytes - self._compressor.tail_bytes
        end_start = source.bytes - self._compressor.end_bytes
        must_decompress = self._compression not in (None, "gzip")
        head, end, last_block = b"", b"", bytearray()
        at = crc = 0
        while at < source.bytes:
            chunk = read_exactly(reader, self._buffer[: source.bytes - at])
            body = chunk[max(0, start - at) : max(0, stop - at)]
            self._file.write(body)
            crc = crc32c(body, crc)
            head += chunk[: max(0, start - at)]
            end += chunk[max(0, end_start - at) :]
            if must_decompress:
                last_block += chunk[max(0, last - at) :]
            at += len(chunk)
        size = stop - start
        tail = end[len(end) - self._compressor.tail_bytes :]
        whole = crc32c_combine(crc32c_combine(crc32c(head), crc, size), crc32c(tail), len(tail))
        if whole != source.crc32c:
            raise changed_since_snapshot(store, store.join(source.path))
        content = self._content_size(source, last_block, end)
        self._compressor.add_file(end, content)
        shift = self.bytes - start, self.content, self.records
        moved = [Block(*map(add, block, shift)) for block in source.blocks]
        self.bytes += size
        self.crc32c = crc32c_combine(self.crc32c, crc, size)
        self._add_blocks(moved, content, source.records)

    def _stored_blocks(self, store: Store, source: FileEntry, reader: FileReader) -> Iterator[StoredBlock]:
        """Yield the blocks that a `FileEntry` lists.

        After the last block, raise FileChangedError if the file's checksum is wrong.
        """
        codec, blocks, tail_bytes = self._compression, source.blocks, self._compressor.tail_bytes
        stops = [(block.offset, block.record) for block in blocks[1:]]
        stops.append((source.bytes - tail_bytes, source.records))
        total = crc32c(read_exactly(reader, memoryview(bytearray(blocks[0].offset))))
        for block, (end, last) in zip(blocks, stops, strict=True):
            stored = read_exactly(reader, memoryview(bytearray(end - block.offset)))
            total = crc32c(stored, total)
            content = memoryview(decompress_block(stored, codec)) if codec else stored
            yield content, last - block.record, stored
        tail = read_exactly(reader, memoryview(bytearray(tail_bytes)))
        if crc32c(tail, total) != source.crc32c:
            raise changed_since_snapshot(store, store.join(source.path))

    def _content_size(self, source: FileEntry, last_block: bytearray, end: bytes) -> int:
        """Return the size of a file's content.

        A gzip file stores this size modulo 2**32. For other codecs, the last block is decompressed.
        """
        if self._compression is None:
            return source.bytes
        before = source.blocks[-1].content
        if self._compression == "gzip":
            return before + (int.from_bytes(end[-4:], "little") - before & 0xFFFF_FFFF)
        return before + len(decompress_block(last_block, self._compression))

    def _add_blocks(self, blocks: Sequence[Block], size: int, records: int) -> None:
        self.content += size
        self.records += records
        ends = [*(block.content for block in blocks[1:]), self.content]
        for block, end in zip(blocks, ends, strict=True):
            if not self.blocks or end - self.blocks[-1].content > BLOCK_BYTES:
                self.blocks.append(block)

    def _write(self, data: bytes | memoryview) -> None:
        if data:
            self._file.write(data)
            self.bytes += len(data)
            self.crc32c = crc32c(data, self.crc32c)


def _chunks(store: Store, source: FileEntry, decoder: Decoder | None = None) -> Iterator[Chunk[Any]]:
    """Read all records of a file, and compare their number with the `FileEntry`."""
    split = Split(FileInfo(store.join(source.path), source.bytes, "", source.crc32c))
    file, count = RecordFile(store, split, ReadOptions()), 0
    for chunk in file.chunks() if decoder is None else file.run(decoder.decode, decoder.columns):
        count += chunk.result.records
        yield chunk
    if count != source.records:
        problem = f"the file has {count:,} records, but {source.records:,} in the snapshot"
        raise CorruptRecordError(problem, path=file.path)


def _compressed_again(store: Store, source: FileEntry) -> Iterator[StoredBlock]:
    """Divide the records of a file, whatever its codec, into new blocks that must still be compressed."""
    for chunk in _chunks(store, source):
        bounds = chunk.bounds
        first, count = 0, len(bounds) - 1
        while first < count:
            fits = int(bounds.searchsorted(bounds[first] + BLOCK_BYTES, "right")) - 1
            last = max(first + 1, fits)
            yield chunk.data[bounds[first] : bounds[last]], last - first, chunk.data[:0]
            first = last


def _checked_bounds(store: Store, source: FileEntry, content: memoryview, records: int) -> Ints:
    """Return where the records of a block begin, and where the last record ends."""
    bounds = record_bounds(content)
    if len(bounds) - 1 != records:
        problem = f"a block has {len(bounds) - 1:,} records, but {records:,} in the snapshot"
        raise CorruptRecordError(problem, path=store.public(store.join(source.path)))
    return bounds


# A boolean mask with one element for each record of a file.
RecordMask = npt.NDArray[np.bool_]


def remove_records(
    store: Store,
    source: FileEntry,
    is_removed: RecordMask,
    schema: Schema,
    compression: Compression | None,
    path: str,
    name: str,
    column_writer: ColumnWriter | None = None,
) -> FileEntry:
    """Write a copy of a file without the records that a mask selects. At least one record must remain.

    The returned statistics are computed from the remaining records only, so that they reveal nothing about
    the removed records. ``column_writer`` receives the columns of the remaining records. If a record does not
    fit the schema, the returned entry contains no statistics and no column file. Raise FileChangedError if
    the source differs from its `FileEntry`, and CorruptRecordError if it is damaged.
    """
    decoder = Decoder(schema.columns, schema.record_type)
    encoder = Encoder(schema.columns, schema.record_type)
    columns, fit_schema = empty_statistics(schema), True
    with store.create(path) as file:
        spliced = SplicedFile(file, compression)
        record = 0
        for content, records, stored in spliced.read_blocks(store, source):
            bounds = _checked_bounds(store, source, content, records)
            mask = is_removed[record : record + records]
            record += records
            if mask.any():
                rows, stored = np.flatnonzero(~mask), content[:0]
                records = len(rows)
                content = memoryview(take_bytes(spans(content, bounds), rows.data).buffers()[2])
                bounds = np.append(0, np.cumsum(np.diff(bounds)[rows]))
            if records:
                decoded = decoder.decode(content, final=True)
                fit_schema &= decoded.damage is None and decoded.consumed == len(content)
                if fit_schema:
                    encoder.bind(decoded.batch)
                    continue_statistics(columns, encoder.statistics([0, records]))
                    if column_writer is not None:
                        column_writer.add(decoded.batch, spliced.content + bounds[:-1])
                spliced.append_block(content, records, stored)
        spliced.finish()
    statistics = file_statistics(schema, [columns], 1)[0] if fit_schema else ()
    return replace(
        spliced.entry(name, [source], column_writer if fit_schema else None), statistics=statistics
    )


# The feature values of consecutive records, and the size of each record's frame.
Rows = tuple[pa.Table, Ints]


def with_column_file(
    store: Store, columns: WrittenColumns, files: Iterable[tuple[FileEntry, Iterable[Rows]]]
) -> list[FileEntry]:
    """Write one column file for several data files. Return new entries, which refer to the column file."""
    entries = []
    with create_column_file(store, columns) as writer:
        for entry, parts in files:
            content = 0
            for values, sizes in parts:
                ends = content + np.cumsum(sizes)
                writer.add(values, ends - sizes)
                content += int(sizes.sum())
            writer.end_file(entry.path, entry.bytes, entry.crc32c, content)
            entries.append(entry)
    return [replace(entry, columns=writer.written) for entry in entries]


def feature_schema(features: Sequence[Column], record_type: RecordType) -> Schema:
    fields = (Field(one.name, nested(KIND_TYPES[one.kind], one.depth)) for one in features)
    return Schema(tuple(fields), record_type)


def rows_of_file(
    store: Store, source: FileEntry, features: Sequence[Column], record_type: RecordType
) -> Iterator[Rows]:
    """Yield the feature values and the frame sizes of all records of a file.

    Raise CorruptRecordError if the data file is damaged or changed.
    """
    schema = feature_schema(features, record_type)
    decoder = Decoder(schema.columns, schema.record_type) if schema.fields else None
    for chunk in _chunks(store, source, decoder):
        values = pa.Table.from_batches([chunk.result.batch]) if decoder else pa.table({})
        yield values, np.diff(chunk.bounds)


def _stored_rows(store: Store, source: FileEntry, features: Schema) -> list[Rows] | None:
    """Return all rows of a data file from its column file, or None if the records must be decoded."""
    stored = source.columns and StoredRows.of(open_column_file(store, source.columns), source)
    if not stored:
        return None
    rows = []
    for start, stop, _ in stored.groups:
        offsets, values = stored.offsets(start, stop), stored.read(features, start, stop)
        if offsets is None or values is None:  # a row group is missing or damaged
            return None
        rows.append((values, np.diff(offsets)))
    return rows
