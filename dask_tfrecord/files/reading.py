"""TFRecord files -> Arrow batches, in bounded memory. Knows no directories and no datasets."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import (
    FRAME_BYTES,
    NO_EXAMPLE,
    Column,
    Damage,
    Decoded,
    Decoder,
    Found,
    Inference,
    Known,
    RecordType,
    find_record,
    scan,
)
from dask_tfrecord.errors import CorruptRecordError, FileChangedError, SchemaError, TFRecordError
from dask_tfrecord.files.damage import Losses, SplitLosses
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.glob_advice import NO_GLOBS, SuggestedGlobs, exclusion_advice
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.stream import WINDOW_BYTES, Window, open_window
from dask_tfrecord.schema.model import Schema

# The column of the files that records come from.
PATH_TYPE = pa.dictionary(pa.int32(), pa.string())

_ADVICE_AT_START = "check that it is a TFRecord file, uncompressed or in one of the known compressions"
_ADVICE_AS_BYTES = 'pass record_type="bytes" to read the payloads of all records as they are'
_ADVICE_ON_DAMAGE = 'pass on_corrupt="skip" to read_tfrecord to read all other records'


def read_split(
    store: Store,
    split: Split,
    schema: Schema,
    options: ReadOptions,
    *,
    known: Sequence[Known] | None = None,
    losses: Losses | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a split as batches of the schema's columns; its other features are skipped unparsed.

    Parameters
    ----------
    store, split, options
        What is read, and how.
    schema : Schema
        The columns, also those that tell where records come from.
    known : sequence of (str, bool), optional
        All features that there may be, each with whether it is a feature list. By default there may be any.
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
    may_have_lists = options.is_type_inferred and schema.record_type == "example"
    record_type = "sequence_example" if may_have_lists else schema.record_type
    decoder = Decoder(
        stored.columns,
        record_type,
        verify_crc=options.verify_crc,
        max_record_bytes=options.max_record_bytes,
        known=known,
    )
    kernel = decoder.decode
    if options.damage.skips and schema.record_type != "bytes":
        kernel = _thorough(decoder, record_type, options)
    for step in run_kernel(store, split, options, kernel, stored.columns, losses):
        try:
            batch = stored.from_storage(step.result.batch)
        except TFRecordError as error:
            raise locate_error(error, path, step.record) from None
        yield batch if stored == schema else _with_origin(batch, schema, options, path, step)


def read_table(
    store: Store,
    split: Split,
    schema: Schema,
    options: ReadOptions,
    *,
    known: Sequence[Known] | None = None,
    losses: Losses | None = None,
) -> pa.Table:
    """All records of a split; if no columns are wanted and any features allowed, these are only counted."""
    thorough = options.damage.skips and schema.record_type != "bytes"
    if not schema.fields and not thorough and known is None:
        return rows_without_columns(count_records(store, split, options, losses))
    batches = read_split(store, split, schema, options, known=known, losses=losses)
    if not schema.fields:
        return rows_without_columns(sum(batch.num_rows for batch in batches))
    return pa.Table.from_batches(batches, schema.arrow)


def rows_without_columns(rows: int) -> pa.Table:
    """Nothing but a number of rows."""
    return pa.table({"": pa.nulls(rows)}).select([])


def count_records(store: Store, split: Split, options: ReadOptions, losses: Losses | None = None) -> int:
    """How many records a split holds; their checksums are verified, their messages are not looked at."""
    scan_all = partial(scan, verify_crc=options.verify_crc, max_record_bytes=options.max_record_bytes)
    return sum(step.result.records for step in run_kernel(store, split, options, scan_all, losses=losses))


def _thorough(decoder: Decoder, record_type: RecordType, options: ReadOptions) -> Callable[..., Decoded]:
    """Decodes with a look at all features, so that the same records are lost whatever columns are read."""
    inference = Inference(
        record_type, verify_crc=options.verify_crc, max_record_bytes=options.max_record_bytes
    )

    def decode(data: memoryview, *, final: bool) -> Decoded:
        _, consumed, damage = inference.feed(data, final=final)
        decoded = decoder.decode(data[:consumed], final=True)
        if decoded.damage or decoded.consumed < consumed:  # more than 2 GiB, of which the rest comes again
            return decoded
        return decoded._replace(damage=damage)

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


def run_kernel(
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
                        if window.final and count:  # a decoder leaves what is beyond 2 GiB to its next call
                            continue
                        break
                    error = damage.error(columns, -count, window.offset + at)
                    if not lost.skips or isinstance(error, SchemaError):
                        raise error
                    at = search.pass_over(data, end, damage)
                    record += 1
                window.advance(at)
                if window.decompression_error and lost.skips:
                    return lost.add(
                        window.offset, data[at:], window.decompression_error.problem, more=bool(search.reason)
                    )
    except TFRecordError as error:
        raise locate_error(error, path, record, options.globs) from None


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


def locate_error(
    error: TFRecordError, path: str, first: int, globs: SuggestedGlobs = NO_GLOBS
) -> TFRecordError:
    """The error with its file; its record counted from ``first`` on now counts from the file's start.

    ``globs`` may read the other files.
    """
    damaged = isinstance(error, CorruptRecordError) and not isinstance(error, FileChangedError)
    if error.record is not None or damaged:
        error = error.replaced(record=first + (error.record or 0))
    return error.located(path=path, advice=_advice(error, path, globs))


def _advice(error: TFRecordError, path: str, globs: SuggestedGlobs) -> str | None:
    """What to do about damage that is nothing else."""
    if not isinstance(error, CorruptRecordError) or isinstance(error, FileChangedError):
        return None
    if "max_record_bytes" in error.problem:
        return f"pass a larger max_record_bytes=; if it is damaged, {_ADVICE_ON_DAMAGE}"
    if error.problem.startswith(NO_EXAMPLE):
        rest = _ADVICE_ON_DAMAGE if error.record else exclusion_advice(globs, path)
        return f"{_ADVICE_AS_BYTES}, or {rest.removeprefix('pass ')}"
    if error.offset or "record data" in error.problem:
        return _ADVICE_ON_DAMAGE
    rest = exclusion_advice(globs, path)
    return f"{_ADVICE_AT_START}, or {rest}" if "with the glob" in rest else _ADVICE_AT_START
