"""TFRecord files -> Arrow batches, in bounded memory. Knows no directories and no datasets."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import (
    MAX_RECORD_BYTES,
    Column,
    Damage,
    Decoded,
    Decoder,
    Found,
    Inference,
    RecordType,
    find_record,
    scan,
)
from dask_tfrecord.codec.compression import HEAD_BYTES, SUFFIXES, Compression, decompressor, detect, is_frame
from dask_tfrecord.codec.lookalikes import LOOK_BYTES, looks_like
from dask_tfrecord.dataset.damage import RAISE, DamagePolicy, Losses, SplitLosses
from dask_tfrecord.dataset.splits import Split
from dask_tfrecord.dataset.store import Store
from dask_tfrecord.dataset.window import FRAME_BYTES, Window
from dask_tfrecord.errors import CorruptRecordError, SchemaError, TFRecordError
from dask_tfrecord.schema import Schema

# How a file that is read may be compressed; "infer" goes by its first bytes.
ReadCompression = Compression | Literal["infer"] | None

# What becomes of features that the schema does not have.
Extra = Literal["raise", "ignore"]

# The column of the files that records come from.
PATH = pa.dictionary(pa.int32(), pa.string())

# A file is read through one buffer of this size, which grows only for a record that is longer.
WINDOW_BYTES = 1 << 22

_ADVICE_AT_START = "check that it is a TFRecord file, uncompressed or in one of the known compressions"


@dataclass(frozen=True)
class ReadOptions:
    """How files are read, whatever they hold; `read_tfrecord` says what each means.

    ``path_column`` and ``offset_column`` are the names of columns that tell where records come from.
    ``guessed`` says that the records were taken for examples because none of a sample had a feature list.
    """

    compression: ReadCompression = "infer"
    verify_crc: bool = True
    max_record_bytes: int = MAX_RECORD_BYTES
    extra: Extra = "raise"
    damage: DamagePolicy = RAISE
    path_column: str | None = None
    offset_column: str | None = None
    guessed: bool = False

    @property
    def origin(self) -> tuple[str, ...]:
        """The columns that are in no record."""
        return tuple(filter(None, (self.path_column, self.offset_column)))


def read_split(
    store: Store,
    split: Split,
    schema: Schema,
    options: ReadOptions,
    *,
    known: Sequence[str] | None = None,
    losses: Losses | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a split as batches of the schema's columns; its other features are skipped unparsed.

    Parameters
    ----------
    store, split, options
        What is read, and how.
    schema : Schema
        The columns, also those that tell where records come from.
    known : sequence of str, optional
        All features that there may be; without it any others may be there, too.
    losses : Losses, optional
        Takes note of what is passed over.

    Raises
    ------
    CorruptRecordError
        For damage anywhere in the split, after the batches before it, unless the options pass over it.
    SchemaError
        For a value that does not fit its column.
    """
    stored = schema.select(name for name in schema.names if name not in options.origin)
    path = store.public(split.file.path)
    # An example is a sequence example without feature lists, which are then something unknown.
    guessed = options.guessed and known is not None and schema.record_type == "example"
    record_type = "sequence_example" if guessed else schema.record_type
    decoder = Decoder(
        stored.columns,
        record_type,
        verify_crc=options.verify_crc,
        max_record_bytes=options.max_record_bytes,
        known=known,
    )
    kernel = decoder.decode
    if options.damage.passes and schema.record_type != "bytes":
        kernel = _thorough(decoder, record_type, options)
    for step in walk(store, split, options, kernel, stored.columns, losses):
        try:
            batch = stored.from_storage(step.result.batch)
        except TFRecordError as error:
            raise placed(error, path, step.record) from None
        yield batch if stored == schema else _with_origin(batch, schema, options, path, step)


def read_table(
    store: Store,
    split: Split,
    schema: Schema,
    options: ReadOptions,
    *,
    known: Sequence[str] | None = None,
    losses: Losses | None = None,
) -> pa.Table:
    """All records of a split; if no columns are wanted, only their number is found out."""
    thorough = options.damage.passes and schema.record_type != "bytes"
    if not schema.fields and not thorough:
        return no_columns(count_records(store, split, options, losses))
    batches = read_split(store, split, schema, options, known=known, losses=losses)
    if not schema.fields:
        return no_columns(sum(batch.num_rows for batch in batches))
    return pa.Table.from_batches(batches, schema.arrow)


def no_columns(rows: int) -> pa.Table:
    """Nothing but a number of rows."""
    return pa.table({"": pa.nulls(rows)}).select([])


def count_records(store: Store, split: Split, options: ReadOptions, losses: Losses | None = None) -> int:
    """How many records a split holds; their checksums are verified, their messages are not looked at."""
    scan_all = partial(scan, verify_crc=options.verify_crc, max_record_bytes=options.max_record_bytes)
    return sum(step.result.records for step in walk(store, split, options, scan_all, losses=losses))


def _thorough(decoder: Decoder, record_type: RecordType, options: ReadOptions) -> Callable[..., Decoded]:
    """Decodes with a look at all features, so that the same records are lost whatever columns are read."""
    inference = Inference(
        record_type, verify_crc=options.verify_crc, max_record_bytes=options.max_record_bytes
    )

    def decode(data: memoryview, *, final: bool) -> Decoded:
        _, consumed, damage = inference.feed(data, final=final)
        decoded = decoder.decode(data[:consumed], final=True)
        return decoded if decoded.damage else decoded._replace(damage=damage)

    return decode


class Result(Protocol):
    """What the kernel made of the records at the start of some bytes."""

    @property
    def records(self) -> int: ...
    @property
    def consumed(self) -> int: ...
    @property
    def damage(self) -> Damage | None: ...


_R = TypeVar("_R", bound=Result)


@dataclass(frozen=True)
class Step(Generic[_R]):
    """What the kernel made of some bytes, where they are, and the number of their first record."""

    result: _R
    data: memoryview
    offset: int
    record: int


def walk(
    store: Store,
    split: Split,
    options: ReadOptions,
    kernel: Callable[..., _R],
    columns: Sequence[Column] = (),
    losses: Losses | None = None,
) -> Iterator[Step[_R]]:
    """Take the records of a split, some at a time; damage ends it, or is passed over if that is allowed."""
    path = store.public(split.file.path)
    record = split.start.record
    try:
        with (
            (losses or Losses(options.damage)).of(path, split.start.offset) as lost,
            open_window(store, split, options, WINDOW_BYTES) as window,
        ):
            search = _Search(window, lost, options.max_record_bytes)
            for data in window:
                at = search.resume(data)
                while at < len(data) and not search.reason:
                    result = kernel(data[at:], final=window.final)
                    end = at + result.consumed
                    yield Step(result, data[at:end], window.offset + at, record)
                    count = result.records
                    record += count
                    damage = result.damage or window.overrun(count, at, end)
                    if damage is None:
                        at = end
                        break
                    error = damage.error(columns, -count, window.offset + at)
                    if not lost.passes or isinstance(error, SchemaError):
                        raise error
                    at = search.pass_over(data, end, damage)
                    record += 1
                window.advance(at)
                if window.broken and lost.passes:
                    return lost.add(window.offset, data[at:], window.broken.problem, more=bool(search.reason))
    except TFRecordError as error:
        raise placed(error, path, record) from None


class _Search:
    """Passes over damage, and looks for the record after it, if need be in all that follows.

    Attributes
    ----------
    reason : str
        What is wrong with the bytes whose end is looked for; empty if none are.
    """

    def __init__(self, window: Window, lost: SplitLosses, max_record_bytes: int) -> None:
        self._window = window
        self._lost = lost
        self._max_record_bytes = max_record_bytes
        self.reason = ""

    def pass_over(self, data: memoryview, at: int, damage: Damage) -> int:
        """Where to go on in the data, or, if there is a `reason`, from where on to bring more."""
        if damage.size:
            self._lost.add(self._window.offset + at, data[at : at + damage.size], damage.reason)
            return at + damage.size
        self.reason = damage.reason
        return self._seek(data, at, more=False)

    def resume(self, data: memoryview) -> int:
        """The same for the next data; its start if nothing is looked for."""
        return self._seek(data, 0, more=True) if self.reason else 0

    def _seek(self, data: memoryview, start: int, *, more: bool) -> int:
        found = self._find(data, start)
        self._lost.add(self._window.offset + start, data[start : found.offset], self.reason, more=more)
        if found.proven:
            self.reason = ""
        return found.offset

    def _find(self, data: memoryview, start: int) -> Found:
        """The next record; not one that would go on past the end of the split."""
        window = self._window
        while True:
            most = self._max_record_bytes
            if window.stop is not None:
                most = min(most, max(0, window.stop - window.offset - start - FRAME_BYTES))
            found = find_record(data, start, final=window.final, lenient=True, max_record_bytes=most)
            end = window.offset + found.offset + found.size
            if found.proven or window.stop is None or end <= window.stop:
                return found
            start = found.offset + 1


def _with_origin(
    batch: pa.RecordBatch, schema: Schema, options: ReadOptions, path: str, step: Step[Decoded]
) -> pa.RecordBatch:
    """The batch with the columns that tell where its records come from."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if options.path_column in schema.names:
        codes = pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
        columns[options.path_column] = pa.DictionaryArray.from_arrays(codes, pa.array([path], pa.string()))
    if options.offset_column in schema.names:
        frames = scan(step.data, final=True, offsets=True, verify_crc=False)
        columns[options.offset_column] = pc.add(frames.offsets, step.offset)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema.arrow)


def placed(error: TFRecordError, path: str, first: int) -> TFRecordError:
    """The error with its file; its record counted from ``first`` on now counts from the file's start."""
    if error.record is not None or isinstance(error, CorruptRecordError):
        error.record = first + (error.record or 0)
    at_start = isinstance(error, CorruptRecordError) and error.offset == 0
    return error.located(path=path, advice=_ADVICE_AT_START if at_start else None)


@contextmanager
def open_window(store: Store, split: Split, options: ReadOptions, size: int) -> Iterator[Window]:
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
