"""TFRecord files -> Arrow batches, in bounded memory. Knows no directories and no datasets."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from dask_tfrecord.codec import MAX_RECORD_BYTES, Decoder, scan
from dask_tfrecord.codec.compression import HEAD_BYTES, SUFFIXES, Compression, decompressor, detect, is_frame
from dask_tfrecord.codec.lookalikes import LOOK_BYTES, looks_like
from dask_tfrecord.dataset.splits import Split
from dask_tfrecord.dataset.store import Store
from dask_tfrecord.errors import CorruptRecordError, TFRecordError
from dask_tfrecord.schema import Schema

# How a file that is read may be compressed; "infer" goes by its first bytes.
ReadCompression = Compression | Literal["infer"] | None

# A file is read through one buffer of this size, which grows only for a record that is longer.
WINDOW_BYTES = 1 << 22

_ADVICE_AT_START = "check that it is a TFRecord file, uncompressed or in one of the known compressions"

# Length, its checksum and the payload's checksum around each payload.
FRAME_BYTES = 16


@dataclass(frozen=True)
class ReadOptions:
    """How files are read, whatever they hold; `read_tfrecord` says what each means."""

    compression: ReadCompression = "infer"
    verify_crc: bool = True
    max_record_bytes: int = MAX_RECORD_BYTES


def read_split(store: Store, split: Split, schema: Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of a split as batches of the schema's columns; its other features are skipped unparsed.

    Raises
    ------
    CorruptRecordError
        For damage anywhere in the split, after the batches before it.
    SchemaError
        For a value that does not fit its column.
    """
    decoder = Decoder(
        schema.columns,
        schema.record_type,
        verify_crc=options.verify_crc,
        max_record_bytes=options.max_record_bytes,
    )
    rows = split.start.record
    try:
        with open_window(store, split, options, WINDOW_BYTES) as window:
            for data in window:
                decoded = decoder.decode(data, final=window.final)
                yield schema.from_storage(decoded.batch)
                if decoded.damage:
                    raise decoded.damage.error(schema.columns, 0, window.offset)
                rows += decoded.batch.num_rows
                window.advance(decoded.consumed)
    except TFRecordError as error:
        raise placed(error, store.public(split.file.path), rows) from None


def read_table(store: Store, split: Split, schema: Schema, options: ReadOptions) -> pa.Table:
    """All records of a split; if no columns are wanted, only their number is found out."""
    if not schema.fields:
        return no_columns(count_records(store, split, options))
    return pa.Table.from_batches(read_split(store, split, schema, options), schema.arrow)


def no_columns(rows: int) -> pa.Table:
    """Nothing but a number of rows."""
    return pa.table({"": pa.nulls(rows)}).select([])


def count_records(store: Store, split: Split, options: ReadOptions) -> int:
    """How many records a split holds; their checksums are verified, their messages are not looked at."""
    records = 0
    try:
        with open_window(store, split, options, WINDOW_BYTES) as window:
            for data in window:
                scanned = scan(
                    data,
                    final=window.final,
                    verify_crc=options.verify_crc,
                    max_record_bytes=options.max_record_bytes,
                )
                if scanned.damage:
                    raise scanned.damage.error((), 0, window.offset)
                records += scanned.records
                window.advance(scanned.consumed)
    except TFRecordError as error:
        raise placed(error, store.public(split.file.path), split.start.record + records) from None
    return records


def placed(error: TFRecordError, path: str, first: int) -> TFRecordError:
    """The error with its file; its record counted from ``first`` on now counts from the file's start."""
    if error.record is not None or isinstance(error, CorruptRecordError):
        error.record = first + (error.record or 0)
    at_start = isinstance(error, CorruptRecordError) and error.offset == 0
    return error.located(path=path, advice=_ADVICE_AT_START if at_start else None)


@contextmanager
def open_window(store: Store, split: Split, options: ReadOptions, size: int) -> Iterator["Window"]:
    """A window over the split's (decompressed) content; its offsets are those in the file's content."""
    file, start, stop = split.file, split.start, split.stop
    end = None if stop is None else stop.offset
    with store.open(file.path, file.size, start.offset, end, file.stamp) as source:
        head = source.peek(HEAD_BYTES if start.offset else LOOK_BYTES)
        if start.offset:
            found = block_compression(split, head[:HEAD_BYTES])
        else:
            found = detect(head[:HEAD_BYTES])
            _check_compression(found, options.compression, source.size)
        content = None if stop is None else stop.content
        if found:
            stream = decompressor(source.readinto, found, inside=start.offset > 0)
            readinto = (
                stream.readinto if content is None else _first(content - start.content, stream.readinto)
            )
            window = Window(readinto, size, start.content, content)
        else:
            window = Window(source.readinto, size, start.content, source.size if stop is None else content)
        try:
            yield window
        except CorruptRecordError as error:
            raise _recognised(error, window.head, head, found) if error.offset == 0 else error from None


def _recognised(
    error: CorruptRecordError, content: bytes, stored: bytes, compression: Compression | None
) -> CorruptRecordError:
    """The error at a file's start with what the file looks like instead, if that is something known."""
    packed = compression is not None and content
    looks = looks_like(content if packed else stored)
    if looks is None or is_frame(content[:HEAD_BYTES]):
        return error
    within = f", compressed with {compression}" if packed else ""
    return CorruptRecordError(
        f"not a TFRecord file: it looks like {looks}{within}",
        record=error.record,
        offset=0,
        advice="move it elsewhere, or pass a glob that leaves it out",
    )


def _first(count: int | None, readinto: Callable[[memoryview], int]) -> Callable[[memoryview], int]:
    """A reader of the first bytes only; of all if there is no count."""
    if count is None:
        return readinto
    left = count

    def read(view: memoryview) -> int:
        nonlocal left
        got = readinto(view[:left]) if left else 0
        left -= got
        return got

    return read


def block_compression(split: Split, head: bytes) -> Compression | None:
    """What a split is compressed with that begins, with ``head``, inside its file.

    Plain files may be named anything. Compressed ones with such splits are ours, and named for it.
    """
    suffix = f".{split.file.path.rpartition('.')[2]}"
    named = next((name for name, known in SUFFIXES.items() if name and known == suffix), None)
    if split.start.offset == split.start.content and (not named or is_frame(head)):
        return None
    if named is None:
        raise TFRecordError(
            f"the file cannot be read from byte {split.start.offset:,} on: it is compressed, its name does "
            "not say how",
            advice="give it its name back, or read it as a whole with blocksize=None",
        )
    return named


def _check_compression(found: Compression | None, wanted: ReadCompression, size: int | None) -> None:
    if wanted not in ("infer", found) and size != 0:
        raise CorruptRecordError(
            f"the file's first bytes are not {wanted or 'uncompressed TFRecord'}",
            offset=0,
            advice='pass compression="infer", which goes by the first bytes of each file',
        )


class Window:
    """Moves over a stream of records: whole ones leave it at the front, more bytes come in at the end.

    Iterating gives the bytes in view, each time starting where `advance` left off. The buffer is the same
    one again and again, so what was given is valid only until the next step.

    Parameters
    ----------
    readinto : callable
        Fills a view with the next bytes and returns how many; 0 at the end.
    size : int
        Bytes of the buffer at first. It doubles when a record is longer, so never by more than is there.
    offset : int
        Where the stream begins in the file's content.
    stop : int, optional
        Where it ends there, if known: a record that claims to go beyond is damage at once.

    Attributes
    ----------
    offset : int
        Where in the file's content the bytes in view begin.
    final : bool
        Whether the bytes in view are the last.
    head : bytes
        The first bytes of all, which tell what it is if it is no TFRecord file.
    """

    def __init__(
        self, readinto: Callable[[memoryview], int], size: int, offset: int = 0, stop: int | None = None
    ) -> None:
        self._readinto = readinto
        self._buffer = _buffer(size if stop is None else min(size, stop - offset + 1))
        self._start = self._end = 0
        self._stop = stop
        self._failure: CorruptRecordError | None = None
        self.offset = offset
        self.final = False
        self.head = b""

    def __iter__(self) -> Iterator[memoryview]:
        while not self.final:
            yield self._fill()
            if self._failure:
                raise self._failure

    def advance(self, count: int) -> None:
        """Let go of bytes at the front."""
        self._start += count
        self.offset += count

    def _fill(self) -> memoryview:
        tail = self._end - self._start
        buffer = self._buffer
        if tail == len(buffer):
            self._check_claim()
            buffer = _buffer(2 * tail)
        buffer[:tail] = self._buffer[self._start : self._end]
        self._buffer, self._start, self._end = buffer, 0, tail
        try:
            while self._end < len(buffer) and not self.final:
                count = self._readinto(buffer[self._end :])
                self._end += count
                self.final = count == 0
        except CorruptRecordError as failure:  # to be told after the damage that may lie before it
            self._failure = failure
        self.head = self.head or bytes(buffer[: min(self._end, LOOK_BYTES)])
        return buffer[: self._end]

    def _check_claim(self) -> None:
        claim = FRAME_BYTES + int.from_bytes(self._buffer[:8], "little")
        if self._stop is not None and self.offset + claim > self._stop:
            raise CorruptRecordError(
                f"the record claims {claim:,} bytes, the file has {self._stop - self.offset:,} more",
                offset=self.offset,
            )


def _buffer(size: int) -> memoryview:
    """Memory that takes up room only when it is written to."""
    return memoryview(pa.allocate_buffer(size)).cast("B")
