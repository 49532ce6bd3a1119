"""Splits of TFRecord files -> Arrow batches, in bounded memory. Knows no directories and no datasets."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import (
    FRAME_BYTES,
    PAYLOAD_PROBLEM,
    Column,
    Damage,
    Decoded,
    Decoder,
    FeatureKey,
    FoundRecord,
    Inference,
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

# The type of the path column.
PATH_TYPE = pa.dictionary(pa.int32(), pa.string())

_ADVICE_AT_START = "check that it is a TFRecord file, uncompressed or compressed with a supported codec"
_ADVICE_AS_BYTES = 'pass record_type="bytes" to read the payload of every record as bytes'
_ADVICE_ON_DAMAGE = 'pass on_corrupt="skip" to read_tfrecord to skip it and read all other records'


def read_split(
    store: Store,
    split: Split,
    schema: Schema,
    options: ReadOptions,
    *,
    known: Sequence[FeatureKey] | None = None,
    losses: Losses | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a split as batches of the schema's columns. Other features are skipped unparsed.

    Parameters
    ----------
    store : Store
        Where the file is.
    split : Split
        The range of the file to read.
    schema : Schema
        The columns to read. The path column and the offset column are included if the options request them.
    options : ReadOptions
        How to read.
    known : sequence of (str, bool), optional
        The features that records may have, each with True if it is a feature list. Any other feature raises.
        None allows every feature.
    losses : Losses, optional
        Collects the damage that is skipped.

    Raises
    ------
    CorruptRecordError
        If the split is damaged and the options do not skip damage. The batches before it are yielded first.
    SchemaError
        If a value does not fit its column.
    """
    stored = schema.select(name for name in schema.names if name not in options.origin_columns)
    path = store.public(split.file.path)
    # An Example is a SequenceExample without feature lists. If the record type was inferred from a sample,
    # a feature list that shows up later is an unknown feature, not damage.
    inferred = options.is_type_inferred and schema.record_type == "example"
    record_type = "sequence_example" if inferred else schema.record_type
    decoder = Decoder(
        stored.columns,
        record_type,
        verify_crc=options.verify_crc,
        max_record_bytes=options.max_record_bytes,
        known=known,
    )
    kernel = decoder.decode
    if options.damage.skips and schema.record_type != "bytes":
        kernel = _decode_after_parsing(decoder, record_type, options)
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
    known: Sequence[FeatureKey] | None = None,
    losses: Losses | None = None,
) -> pa.Table:
    """Read all records of a split into a table. The parameters are those of `read_split`.

    Without columns, and if every feature is allowed, the records are counted and not parsed.
    """
    must_parse = options.damage.skips and schema.record_type != "bytes"
    if not schema.fields and not must_parse and known is None:
        return rows_without_columns(count_records(store, split, options, losses))
    batches = read_split(store, split, schema, options, known=known, losses=losses)
    if not schema.fields:
        return rows_without_columns(sum(batch.num_rows for batch in batches))
    return pa.Table.from_batches(batches, schema.arrow)


def rows_without_columns(rows: int) -> pa.Table:
    """Return a table without columns that has this number of rows."""
    return pa.table({"": pa.nulls(rows)}).select([])


def count_records(store: Store, split: Split, options: ReadOptions, losses: Losses | None = None) -> int:
    """Count the records of a split. Checksums are verified, messages are not parsed."""
    scan_all = partial(scan, verify_crc=options.verify_crc, max_record_bytes=options.max_record_bytes)
    return sum(step.result.records for step in run_kernel(store, split, options, scan_all, losses=losses))


def _decode_after_parsing(
    decoder: Decoder, record_type: RecordType, options: ReadOptions
) -> Callable[..., Decoded]:
    """Return a decoder that parses all features first.

    It skips the same damaged records whichever columns are read.
    """
    inference = Inference(
        record_type, verify_crc=options.verify_crc, max_record_bytes=options.max_record_bytes
    )

    def decode(data: memoryview, *, final: bool) -> Decoded:
        _, consumed, damage = inference.feed(data, final=final)
        decoded = decoder.decode(data[:consumed], final=True)
        if decoded.damage or decoded.consumed < consumed:  # a column exceeded 2 GiB: the rest is decoded next
            return decoded
        return decoded._replace(damage=damage)

    return decode


class Result(Protocol):
    """The return value of a kernel function that was called with bytes that start with whole records."""

    @property
    def records(self) -> int: ...
    @property
    def consumed(self) -> int: ...
    @property
    def damage(self) -> Damage | None: ...


_R = TypeVar("_R", bound=Result)


@dataclass(frozen=True)
class Step(Generic[_R]):
    """The result of one call of a kernel function.

    Attributes
    ----------
    result : Result
        What the function returned.
    data : memoryview
        The bytes it consumed. Valid until the next step.
    offset : int
        Decompressed offset of these bytes in the file.
    record : int
        Number of their first record in the file.
    """

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
    """Call a kernel function on the records of a split, as many at a time as a window holds.

    Parameters
    ----------
    store, split, options, losses
        As in `read_split`.
    kernel : callable
        Takes bytes and the keyword ``final``, handles the whole records at their start, returns a `Result`.
    columns : sequence of Column
        The columns that the kernel's damage refers to by index.

    Raises
    ------
    CorruptRecordError
        If a record is damaged and the options do not skip damage.
    SchemaError
        If the kernel reports a value that does not fit its column.
    """
    path = store.public(split.file.path)
    record = split.start.record
    try:
        with (
            (losses or Losses(options.damage)).split(path, split.start.offset) as lost,
            open_window(store, split, options, WINDOW_BYTES) as window,
        ):
            skipper = _DamageSkipper(window, lost, options.max_record_bytes)
            for data in window:
                at = skipper.resume(data)
                while at < len(data) and not skipper.reason:
                    result = kernel(data[at:], final=window.final)
                    end = at + result.consumed
                    yield Step(result, data[at:end], window.offset + at, record)
                    count = result.records
                    record += count
                    damage = result.damage or window.overrun(count, at, end)
                    if damage is None:
                        at = end
                        if window.final and count:  # a decoder stops before a column exceeds 2 GiB
                            continue
                        break
                    error = damage.error(columns, -count, window.offset + at)
                    if not lost.skips or isinstance(error, SchemaError):
                        raise error
                    if error.offset == 0 and (problem := window.other_format()):
                        damage = damage._replace(reason=problem)
                    at = skipper.skip(data, end, damage)
                    record += 1
                window.advance(at)
                if window.decompression_error and lost.skips:
                    return lost.add(
                        window.offset,
                        data[at:],
                        window.decompression_error.problem,
                        more=bool(skipper.reason),
                    )
    except TFRecordError as error:
        raise locate_error(error, path, record, options.globs) from None


class _DamageSkipper:
    """Skips damage by searching for the next record, in several windows if necessary.

    Attributes
    ----------
    reason : str
        The reason of the damage whose end is being searched for. Empty if no search is under way.
    """

    def __init__(self, window: Window, lost: SplitLosses, max_record_bytes: int) -> None:
        self._window = window
        self._lost = lost
        self._max_record_bytes = max_record_bytes
        self.reason = ""

    def skip(self, data: memoryview, at: int, damage: Damage) -> int:
        """Return where the next record begins in the data.

        If `reason` is set, no record was found: the result is where the next window has to begin.
        """
        if damage.size:
            self._lost.add(self._window.offset + at, data[at : at + damage.size], damage.reason)
            return at + damage.size
        self.reason = damage.reason
        return self._seek(data, at, more=False)

    def resume(self, data: memoryview) -> int:
        """Continue a search in the next window, with the result of `skip`; 0 if no search is under way."""
        return self._seek(data, 0, more=True) if self.reason else 0

    def _seek(self, data: memoryview, start: int, *, more: bool) -> int:
        found = self._find(data, start)
        self._lost.add(self._window.offset + start, data[start : found.offset], self.reason, more=more)
        if found.proven:
            self.reason = ""
        return found.offset

    def _find(self, data: memoryview, start: int) -> FoundRecord:
        """Find the next record that ends within the split."""
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
    """Add the path column and the offset column to a batch."""
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
    """Return the error with its file, its record number in the file, and advice.

    Parameters
    ----------
    error : TFRecordError
        The error. Its record number, if any, counts from ``first``.
    path : str
        The file, without credentials.
    first : int
        Number in the file of the first record that was read.
    globs : SuggestedGlobs
        Globs for the advice, which may match the other files.
    """
    damaged = isinstance(error, CorruptRecordError) and not isinstance(error, FileChangedError)
    if error.record is not None or damaged:
        error = error.replaced(record=first + (error.record or 0))
    return error.located(path=path, advice=_advice(error, path, globs))


def _advice(error: TFRecordError, path: str, globs: SuggestedGlobs) -> str | None:
    """Return the advice for an error about damage; None for other errors."""
    if not isinstance(error, CorruptRecordError) or isinstance(error, FileChangedError):
        return None
    if "max_record_bytes" in error.problem:
        return f"pass a larger max_record_bytes=; if it is damaged, {_ADVICE_ON_DAMAGE}"
    if error.problem.startswith(PAYLOAD_PROBLEM):
        rest = _ADVICE_ON_DAMAGE if error.record else exclusion_advice(globs, path)
        return f"{_ADVICE_AS_BYTES}, or {rest.removeprefix('pass ')}"
    if error.offset or "record data" in error.problem:
        return _ADVICE_ON_DAMAGE
    rest = exclusion_advice(globs, path)
    return f"{_ADVICE_AT_START}, or {rest}" if "with the glob" in rest else _ADVICE_AT_START
