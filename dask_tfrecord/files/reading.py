"""Splits of TFRecord files -> Arrow batches, in bounded memory. Knows no directories and no datasets."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import (
    Column,
    Damage,
    Decoder,
    FeatureKey,
    Fed,
    Inference,
    RecordType,
    find_record,
    scan,
)
from dask_tfrecord.codec.codecs import codec_of_suffix
from dask_tfrecord.errors import SchemaError, TFRecordError
from dask_tfrecord.files.damage import Losses, SplitLosses, locate_error
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.stream import WINDOW_BYTES, Window, open_window
from dask_tfrecord.schema.model import Schema

# The type of the path column.
PATH_TYPE = pa.dictionary(pa.int32(), pa.string())

# Decompressed bytes of the records of one batch: of a table, and of a stream, whose reader waits for a batch.
_TABLE_BYTES = 1 << 25
_STREAM_BYTES = 1 << 22

# A compressed file is assumed to hold this many times its size, unless a snapshot says more.
_EXPANSION = 4


def read_split(
    store: Store,
    split: Split,
    schema: Schema,
    options: ReadOptions,
    *,
    known: Sequence[FeatureKey] | None = None,
    losses: Losses | None = None,
    batch_bytes: int = _STREAM_BYTES,
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
    batch_bytes : int, default 4 MiB
        The most decompressed bytes of the records of a batch. A longer record is a batch of its own.

    Raises
    ------
    CorruptRecordError
        If the split is damaged and the options do not skip damage. The records before it are yielded first.
    SchemaError
        If a value does not fit its column.
    """
    stored = schema
    if options.origin_columns:
        stored = schema.select(name for name in schema.names if name not in options.origin_columns)
    path = store.public(split.file.path)
    record_type = options.decoded_type(schema.record_type)
    columns = stored.columns
    decoder = Decoder(
        columns,
        record_type,
        verify_crc=options.verify_crc,
        max_record_bytes=options.max_record_bytes,
        known=known,
    )
    feed = decoder.feed
    if options.damage.skips:
        feed = _feed_after_checking(decoder, record_type, options)
    wants_offsets = options.offset_column in schema.names
    gathered = _Batches(feed, decoder.take, _content_bytes(split), batch_bytes, wants_offsets)

    steps = run_kernel(store, split, options, gathered.feed, columns, losses)
    for one in gathered.batches(steps):
        try:
            batch = stored.from_storage(one.batch)
        except TFRecordError as error:
            raise locate_error(error, path, one.record) from None
        yield batch if stored == schema else _with_origin(batch, schema, options, path, one.offsets)


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
    batches = read_split(store, split, schema, options, known=known, losses=losses, batch_bytes=_TABLE_BYTES)
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


def _feed_after_checking(
    decoder: Decoder, record_type: RecordType, options: ReadOptions
) -> Callable[..., Fed]:
    """Return the `feed` of a decoder that finds the damage first. It parses all features for that.

    It skips the same damaged records whichever columns are read. A batch that ends at damage gets memory for
    its own records only: a file of many damaged records has as many batches.
    """
    rules: dict[str, Any] = {"verify_crc": options.verify_crc, "max_record_bytes": options.max_record_bytes}
    check: Callable[..., Result] = partial(scan, **rules)
    if record_type != "bytes":
        check = Inference(record_type, **rules).feed

    def feed(data: memoryview, *, final: bool, more: int) -> Fed:
        checked = check(data, final=final)
        whole = data[: checked.consumed]
        fed = decoder.feed(whole, final=True, more=0 if checked.damage else more)
        if fed.damage or fed.consumed < len(whole):  # a column exceeded 2 GiB: the rest is decoded next
            return fed
        return fed._replace(damage=checked.damage)

    return feed


def _content_bytes(split: Split) -> int:
    """Return about how many decompressed bytes a split has, 0 if that is unknown."""
    if split.stop is not None:
        return split.stop.content - split.start.content
    stored = (split.file.size or 0) - split.start.offset
    return stored * _EXPANSION if codec_of_suffix(f".{split.file.path.rpartition('.')[2]}") else stored


class _Batch(NamedTuple):
    """A decoded batch, the number of its first record in the file, and the offsets of records if wanted."""

    batch: pa.RecordBatch
    record: int
    offsets: list[pa.Array]


class _Batches:
    """Decodes windows of records, and gathers the records of many windows in a batch.

    The records of a batch follow each other in the file: damage ends a batch.
    """

    def __init__(
        self,
        feed: Callable[..., Fed],
        take: Callable[[], pa.RecordBatch],
        content_bytes: int,
        batch_bytes: int,
        wants_offsets: bool,
    ) -> None:
        self._feed = feed
        self._take = take
        self._left = content_bytes  # about so many bytes of the split were not decoded yet
        self._batch_bytes = batch_bytes
        self._wants_offsets = wants_offsets
        self._bytes = self._records = self._first = 0  # of the batch
        self._offsets: list[pa.Array] = []
        self._done: list[_Batch] = []

    def feed(self, data: memoryview, *, final: bool) -> Fed:
        """Decode the whole records at the start of the data. This is the kernel function of `run_kernel`."""
        size = len(data)
        if self._bytes and self._bytes + size > self._batch_bytes:  # the window has grown for a long record
            self._end()
        more = min(self._left, self._batch_bytes - self._bytes) - size
        fed = self._feed(data, final=final, more=max(0, more))
        self._bytes += fed.consumed
        self._left -= fed.consumed
        return fed

    def batches(self, steps: "Iterable[Step[Fed]]") -> Iterator[_Batch]:
        """Yield batches of what `feed` decodes in the steps. The records before an error come first."""
        try:
            for step in steps:
                self._add(step)
                yield from self._ended()
        except TFRecordError:
            self._end()
            yield from self._ended()
            raise
        self._end()
        yield from self._ended()

    def _add(self, step: "Step[Fed]") -> None:
        if not self._records:
            self._first = step.record
        self._records += step.result.records
        if self._wants_offsets:
            found = scan(step.data, final=True, offsets=True, verify_crc=False).offsets
            self._offsets.append(pc.add(found, step.offset))
        if step.damage or self._bytes + WINDOW_BYTES > self._batch_bytes:
            self._end()

    def _end(self) -> None:
        """End the batch."""
        if self._records:
            self._done.append(_Batch(self._take(), self._first, self._offsets))
        self._bytes = self._records = 0
        self._offsets = []

    def _ended(self) -> Iterator[_Batch]:
        """Yield the batches that have ended, each once."""
        while self._done:
            yield self._done.pop(0)


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
    damage : Damage, optional
        The damage after these bytes.
    """

    result: _R
    data: memoryview
    offset: int
    record: int
    damage: Damage | None


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
                    count = result.records
                    damage = result.damage or window.overrun(count, at, end)
                    yield Step(result, data[at:end], window.offset + at, record, damage)
                    record += count
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
                        more=skipper.is_noted,
                    )
    except TFRecordError as error:
        raise locate_error(error, path, record, options.globs) from None


class _DamageSkipper:
    """Skips damage by searching for the next record, in several windows if necessary.

    The length of a damaged record is believed only if `find_record` proves it. Otherwise bytes may be
    missing, and intact records may begin inside the length that the damaged record claims.

    Attributes
    ----------
    reason : str
        The reason of the damage whose end is being searched for. Empty if no search is under way.
    is_noted : bool
        True if the first bytes of this damage have been noted as lost.
    """

    def __init__(self, window: Window, lost: SplitLosses, max_record_bytes: int) -> None:
        self._window = window
        self._lost = lost
        self._max_record_bytes = max_record_bytes
        self.reason = ""
        self.is_noted = False

    def skip(self, data: memoryview, at: int, damage: Damage) -> int:
        """Return where the next record begins in the data.

        If `reason` is set, no record was found: the result is where the next window has to begin.
        """
        self.reason = damage.reason
        return self._seek(data, at)

    def resume(self, data: memoryview) -> int:
        """Continue a search in the next window, with the result of `skip`; 0 if no search is under way."""
        return self._seek(data, 0) if self.reason else 0

    def _seek(self, data: memoryview, start: int) -> int:
        window = self._window
        found = find_record(
            data,
            start,
            final=window.final,
            lenient=True,
            max_record_bytes=self._max_record_bytes,
            limit=None if window.stop is None else window.stop - window.offset,
        )
        end = found.offset
        if end == start and not self.is_noted:  # the damaged record itself
            if not found.proven:
                return end
            end += found.size
        self._lost.add(window.offset + start, data[start:end], self.reason, more=self.is_noted)
        self.is_noted = not found.proven
        if found.proven:
            self.reason = ""
        return end


def _with_origin(
    batch: pa.RecordBatch, schema: Schema, options: ReadOptions, path: str, offsets: list[pa.Array]
) -> pa.RecordBatch:
    """Add the path column and the offset column to a batch."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if options.path_column in schema.names:
        codes = pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
        columns[options.path_column] = pa.DictionaryArray.from_arrays(codes, pa.array([path], pa.string()))
    if options.offset_column in schema.names:
        columns[options.offset_column] = pa.concat_arrays(offsets)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema.arrow)
