"""Encode and decode records with the compiled kernel, and describe damaged records.

The package `codec` knows bytes and Arrow, but does not know files.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import Buffer

from dask_tfrecord.codec import _kernel
from dask_tfrecord.errors import IGNORE_FEATURES, CorruptRecordError, Remedy, SchemaError, TFRecordError

Kind = Literal["int64", "float", "bytes", "string"]
RecordType = Literal["example", "sequence_example", "bytes"]

# The key of a feature in a record: the name of the feature, and True if it is a feature list. A
# SequenceExample may have a feature and a feature list of the same name.
FeatureKey: TypeAlias = tuple[str, bool]

# A map from each kind to the Arrow type of the values that the kernel encodes and decodes.
KIND_TYPES: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "float": pa.float32(),
    "bytes": pa.binary(),
    "string": pa.string(),
}


class Column(NamedTuple):
    """The name, kind and depth of the feature that stores a column.

    Parameters
    ----------
    name : str
        Name of the column and of the feature that stores the column.
    kind : "int64", "float", "bytes" or "string"
        Kind of the feature that stores the column. The kind "string" is a bytes feature whose values must be
        valid UTF-8.
    depth : int
        Depth of the lists: 0 for a scalar, 1 for a list, 2 for a list of lists, which is a feature list of a
        SequenceExample.
    """

    name: str
    kind: Kind
    depth: int

    @property
    def feature(self) -> FeatureKey:
        """The key of the feature that stores the column."""
        return self.name, self.depth == 2


def nested(type_: pa.DataType, depth: int) -> pa.DataType:
    """Return the type of lists that are nested ``depth`` levels deep and hold values of the type
    ``type_``.
    """
    return nested(pa.list_(type_), depth - 1) if depth else type_


# The kernel's reasons for a value that does not fit its column in the schema, although the file is not
# damaged.
_SCHEMA_PROBLEMS = {
    "wrong kind": "the column is {kind}, the record holds {found}",
    "not a scalar": "holds {found} values, the column is a scalar",
    "invalid UTF-8 value": "the value is not valid UTF-8, the column is a string",
    "unknown feature": "the record has this feature, the schema does not",
}

# The kernel's reasons for damage to a record whose length is intact.
TOO_LONG = "record is longer than max_record_bytes"
DAMAGED_DATA = "checksum of the record data does not match"

# The kernel's reasons for a record whose checksums are correct but whose payload is not an Example.
NOT_AN_EXAMPLE = "the record is a protobuf message, but not an Example"
PAYLOAD_REASONS = frozenset(
    {
        "malformed protobuf message",
        "feature name is not valid UTF-8",
        "map entry holds a field other than key and value",
        NOT_AN_EXAMPLE,
    }
)

# The kernel's reason for a record with more features than an inference may have.
TOO_MANY_FEATURES = "more features than max_features"

_PAYLOAD_PROBLEM = "the file is a TFRecord file, but this undamaged record is not an Example"


class Damage(NamedTuple):
    """The position of a record that the kernel could not decode, and the reason.

    Parameters
    ----------
    record, offset : int
        The number and the byte offset of the record, counted from the start of the data of one kernel call.
    size : int
        The size of the record's whole frame in bytes; 0 if the length in the frame is not reliable.
    reason : str
        The reason for the damage that the kernel gives.
    column : int
        The index of the column in which the damage is; -1 if the damage is not in a column.
    found : str
        What the record has in place of the expected value: a number of values, the name of a kind, or "".
    unknown : Column, optional
        The column that would read the record's unknown feature, or None if the damage is of another kind.
    """

    record: int
    offset: int
    size: int
    reason: str
    column: int
    found: str
    unknown: Column | None = None

    def error(self, columns: Sequence[Column], record: int, offset: int) -> TFRecordError:
        """Return the exception that describes this damage.

        The arguments ``record`` and ``offset`` say where the decoded data starts in the file.
        """
        column = columns[self.column] if self.column >= 0 else self.unknown
        place: dict[str, Any] = {
            "record": record + self.record,
            "offset": offset + self.offset,
            "feature": column.name if column else None,
        }
        if self.reason == TOO_MANY_FEATURES:
            return too_many_features(int(self.found), **place)
        if self.reason in PAYLOAD_REASONS:
            return CorruptRecordError(f"{_PAYLOAD_PROBLEM}: {self.reason}", reason=self.reason, **place)
        if column is None or self.reason not in _SCHEMA_PROBLEMS:
            return CorruptRecordError(self.reason, reason=self.reason, **place)
        if self.unknown and any(self.unknown.name == one.name for one in columns):
            return _wrong_map_error(self.unknown, place)
        problem = _SCHEMA_PROBLEMS[self.reason].format(kind=column.kind, found=self.found)
        return SchemaError(problem, remedies=self._remedies(column), **place)

    def _remedies(self, column: Column) -> list[Remedy]:
        """Return the remedies for a value that does not fit the schema: arguments that can read the
        record.
        """
        kind = self.found if self.reason == "wrong kind" else column.kind
        if self.reason == "invalid UTF-8 value":
            kind = "bytes"
        depth = max(column.depth, self.reason == "not a scalar")
        schema = {column.name: nested(KIND_TYPES.get(kind, pa.string()), depth)}
        if self.reason == "unknown feature":
            return [Remedy("schema", schema, "read it"), IGNORE_FEATURES]
        found = f"read it if all records hold {self.found}" if self.reason == "wrong kind" else "read it"
        return [Remedy("schema", schema, found)]


def too_many_features(count: int, **place: Any) -> SchemaError:
    """Return the error for records with so many features that no schema is inferred from them."""
    problem = f"the records so far have up to {count:,} features, more than max_features= allows"
    return SchemaError(problem, Remedy("max_features", count, "infer a column for each feature"), **place)


def _wrong_map_error(unknown: Column, place: Mapping[str, Any]) -> SchemaError:
    """Return the error for a feature in the context whose column expects a feature list, or the reverse."""
    here, there = "the context", "the feature lists"
    if unknown.depth == 2:
        here, there = there, here
    problem = f"the record has the feature in {here}, the column reads it from {there}"
    remedy = Remedy("extra", "ignore", f"read {there} only, because a column reads one of the two")
    return SchemaError(problem, remedy, Remedy("infer", "all", "find both and choose a type"), **place)


Ints = npt.NDArray[np.int64]


class Checked(NamedTuple):
    """The intact records and the damaged ranges in the first ``consumed`` bytes of some data.

    A damaged range is either one record whose length is considered correct, or all bytes up to the next
    record.

    Parameters
    ----------
    records, consumed : int
        The number of intact records, and the total number of bytes of these records and of the damaged
        ranges.
    continues : bool
        True if the first damaged range continues the last damaged range of the data before.
    is_open : bool
        True if the last damaged range may continue in the data that follows.
    starts, ends : numpy.ndarray
        The position of each damaged range's first byte, and the position after its last byte.
    records_before : numpy.ndarray
        For each damaged range, the number of intact records before the range.
    reasons : numpy.ndarray
        For each damaged range, the reason for the damage, as an index into `texts`.
    texts : tuple of str
        The texts of the reasons for damage.
    """

    records: int
    consumed: int
    continues: bool
    is_open: bool
    starts: Ints
    ends: Ints
    records_before: Ints
    reasons: Ints
    texts: tuple[str, ...]

    @classmethod
    def from_kernel(cls, fields: tuple[Any, ...]) -> "Checked":
        """Convert the tuple that the kernel's `Inference.check` returns to a `Checked`."""
        arrays = [pa.array(column).to_numpy() for column in fields[4:8]]
        return cls._make((*fields[:4], *arrays, tuple(fields[8])))

    @classmethod
    def one_range(cls, length: int, reason: str, *, continues: bool) -> "Checked":
        """Return the result for data in which every byte is damaged."""
        zero, end = np.zeros(1, np.int64), np.array([length])
        return cls(0, length, continues, False, zero, end, zero, zero, (reason,))

    def with_first_reason(self, reason: str) -> "Checked":
        """Return a copy of the result in which the first damaged range has another reason."""
        reasons = self.reasons.copy()
        reasons[0] = len(self.texts)
        return self._replace(reasons=reasons, texts=(*self.texts, reason))

    def intact(self, data: Buffer) -> memoryview:
        """Return the joined bytes of the intact records of the data.

        The bytes are copied only if there is damage.
        """
        if not len(self.starts):
            return memoryview(data)[: self.consumed]
        return memoryview(self._take(data, 0).buffers()[2] or b"")

    def damaged(self, data: Buffer) -> pa.Array:
        """Return a copy of the bytes of each damaged range, as a large_binary array."""
        return self._take(data, 1)

    def _take(self, data: Buffer, first: int) -> pa.Array:
        """Copy every second span of the data: the intact spans if ``first`` is 0, the damaged ranges if
        ``first`` is 1.
        """
        bounds = np.zeros(2 * len(self.starts) + 2, np.int64)
        bounds[1:-1:2], bounds[2:-1:2], bounds[-1] = self.starts, self.ends, self.consumed
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
        spans = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)
        return pa.array(_kernel.take_bytes(spans, np.arange(first, len(spans), 2).data))


# This is an assignment because import-linter mistakes a from-import of the compiled module for an import of
# the package.
adler32_combine = _kernel.adler32_combine
crc32_combine = _kernel.crc32_combine
crc32c = _kernel.crc32c
crc32c_combine = _kernel.crc32c_combine
crc32c_of_records = _kernel.crc32c_of_records
limit_pool = _kernel.limit_pool
pool_array = _kernel.pool_array
raise_pool_limit = _kernel.raise_pool_limit
SparseReader = _kernel.SparseReader

# The largest size in bytes that protobuf allows for a message. A record therefore has at most this number of
# bytes.
MAX_RECORD_BYTES = 2**31 - 1

# The frame of a record: the payload's length (8 bytes, little-endian), a CRC (4), the payload, and a CRC (4).
HEADER_BYTES = 12
FRAME_BYTES = HEADER_BYTES + 4

# The number of free bytes that the kernel needs after the last record in a buffer.
SPARE_BYTES = 16


def frame_size(header: Buffer) -> int:
    """Return the size in bytes of a record's whole frame, given the record's header.

    The function `frame_size` does not verify the checksum of the header.
    """
    return FRAME_BYTES + int.from_bytes(memoryview(header)[:8], "little")


def _damage(fields: "_kernel.Damage | None") -> Damage | None:
    """Convert the kernel's damage tuple to a `Damage`, and return None unchanged."""
    if fields is None:
        return None
    *_, unknown = fields
    return Damage(*fields[:6], unknown and Column(*unknown))


class Decoded(NamedTuple):
    """The result of `Decoder.decode`: a batch, the number of bytes that were used, and any damage at which
    decoding ended.
    """

    batch: pa.RecordBatch
    consumed: int
    damage: Damage | None

    @property
    def records(self) -> int:
        """Number of records in the batch."""
        count: int = self.batch.num_rows
        return count


class Fed(NamedTuple):
    """The result of feeding data: the number of records, the number of bytes that were used, and any
    damage.
    """

    records: int
    consumed: int
    damage: Damage | None


class Statistics(NamedTuple):
    """The statistics of a column in several ranges of rows, as lists with an element for each range.

    The lists hold the number of null rows, the least value and the greatest value of each range. For a list
    column, the least and the greatest value are lengths of lists. The least and the greatest value ignore
    NaN, and are None if the range has no values.
    """

    nulls: list[int]
    least: list[Any]
    greatest: list[Any]


class Encoder:
    """Encode Arrow batches as framed records.

    Parameters
    ----------
    columns : sequence of Column
        The columns of the batches. Their Arrow types must be the storage types that ``_kernel.pyi``
        describes.
    record_type : "example", "sequence_example" or "bytes"
        The type of message that each row becomes. "bytes" requires exactly one column, whose values are the
        payloads.
    """

    def __init__(self, columns: Sequence[Column], record_type: RecordType) -> None:
        self._columns = tuple(columns)
        self._kernel = _kernel.Encoder(self._columns, record_type)

    def bind(self, batch: pa.RecordBatch) -> None:
        """Set the batch whose rows the next calls of `encode_into` encode."""
        self._kernel.bind(batch)

    def encode_into(
        self, row: int, out: Buffer, end: int | None = None, starts: Ints | None = None
    ) -> tuple[int, int, int]:
        """Fill ``out`` with whole records, encoded from the rows from ``row`` to ``end - 1``.

        By default, ``end`` is the end of the batch. At least ``SPARE_BYTES`` bytes of the buffer after the
        last record stay free. If ``starts`` is passed, its first elements become the positions of the records
        in ``out``.

        Returns
        -------
        next_row : int
            The number of the first row that was not written.
        size : int
            The number of bytes that were written to ``out``.
        need : int
            0 if at least one row was written. If no row fits, the size of the buffer that the next row needs.

        Raises
        ------
        SchemaError
            If a value of the batch cannot be encoded. The error has the column and the row of this value.
        """
        try:
            return self._kernel.encode_into(row, out, end, None if starts is None else starts.data)
        except _kernel.EncodeError as error:
            bad_row, column, reason = error.args
            feature = self._columns[column].name if column >= 0 else None
            raise SchemaError(reason, record=bad_row, feature=feature) from None

    def statistics(self, bounds: Sequence[int]) -> list[Statistics]:
        """Return the statistics of each column of encoded rows, for each range from one bound to the next."""
        return list(map(Statistics._make, self._kernel.statistics(bounds)))


@lru_cache(maxsize=64)
def decoded_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the Arrow schema of the batches into which the kernel decodes these columns."""
    return pa.schema([(column.name, nested(KIND_TYPES[column.kind], column.depth)) for column in columns])


class Decoder:
    """Decode framed records to Arrow batches. Features that are not columns are skipped.

    Parameters
    ----------
    columns : sequence of Column
        The columns to decode.
    record_type : "example", "sequence_example" or "bytes"
        The type of message that each record is.
    verify_crc : bool, default True
        If True, verify the checksums of the payloads. The checksums of the record lengths are always
        verified.
    max_record_bytes : int, default 2**31 - 1
        The largest size of a record in bytes. A record with more bytes is reported as damage.
    known : sequence of FeatureKey, optional
        The features that records may have besides the columns. A record with any other feature is reported as
        damage. By default, records may have any feature.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        record_type: RecordType,
        *,
        verify_crc: bool = True,
        max_record_bytes: int = MAX_RECORD_BYTES,
        known: Sequence[FeatureKey] | None = None,
    ) -> None:
        self.columns = tuple(columns)
        self._schema = decoded_schema(self.columns)
        self._kernel = _kernel.Decoder(
            self.columns,
            record_type,
            verify_crc=verify_crc,
            max_record_bytes=max_record_bytes,
            known=known,
        )

    def decode(self, data: Buffer, *, final: bool) -> Decoded:
        """Decode the whole records at the start of ``data``.

        If ``final`` is False, an incomplete last record of the data is not decoded. The data of the next call
        must then begin at the start of this record.
        """
        fed = self.feed(data, final=final)
        return Decoded(self.take(), fed.consumed, fed.damage)

    def feed(self, data: Buffer, *, final: bool, more: int = 0) -> Fed:
        """Decode the whole records at the start of ``data``, and add them to the batch that `take` returns.

        Parameters
        ----------
        data, final
            These parameters have the same meaning as in `decode`.
        more : int, default 0
            The number of bytes that will probably be fed after this call and before `take` is called. Memory
            for the records in these bytes is reserved in advance.

        Raises
        ------
        ValueError
            If the batch already has records and would exceed 2 GiB. To avoid this error, call `take` first.
        """
        records, consumed, damage = self._kernel.feed(data, final=final, more=more)
        return Fed(records, consumed, _damage(damage))

    def feed_records(self, data: Sequence[Buffer], places: Ints, rows: Ints) -> Fed:
        """Decode some of the records that lie anywhere in several buffers, in any order, and add the records
        to the batch that `take` returns.

        The call stops early if the batch would exceed 2 GiB. To decode the other records, call `take` first.

        Parameters
        ----------
        data : sequence of bytes-like
            The buffers that hold the records.
        places : numpy.ndarray
            A contiguous array with a row for each record, and three columns: the index of the record's buffer
            in ``data``, and the start and the end of the record's whole frame in this buffer.
        rows : numpy.ndarray
            The numbers of the rows of ``places`` whose records are decoded.

        Raises
        ------
        IndexError
            If a number in ``rows`` is not a row of ``places``, or if a record lies outside its buffer.
        """
        records, consumed, damage = self._kernel.feed_records(data, places.data, rows.data)
        return Fed(records, consumed, _damage(damage))

    def take(self) -> pa.RecordBatch:
        """Return a batch of the records that were fed since the last call of `take`."""
        exported = self._kernel.take()
        # pa.record_batch(exported) would build the schema again, which takes longer than importing the
        # columns.
        return pa.RecordBatch._import_from_c(exported.array_address(), self._schema)


class Feature(NamedTuple):
    """A summary of one feature in all undamaged records.

    The dict ``kinds`` maps each kind of the feature to the number of the first record with this kind. The
    number ``max_values`` is the greatest number of values in one feature. The flags ``utf8`` and ``text``
    describe bytes values, as ``_kernel.pyi`` says.
    """

    name: str
    feature_list: bool
    kinds: dict[str, int]
    max_values: int
    utf8: bool
    text: bool


class Inference:
    """Collect the features of records over several calls, so that a schema can be inferred, and find damage.

    Parameters
    ----------
    record_type : "example", "sequence_example" or "bytes"
        The type of message that each record is. Records of the type "bytes" are not parsed and have no
        features.
    max_records : int, default -1
        The number of records after which `feed` stops. If -1, the number of records is not limited.
    verify_crc, max_record_bytes
        These parameters have the same meaning as in `Decoder`.
    max_features : int, optional
        The largest number of features. A record with which there would be more features is reported as
        damage. If None, the number is not limited.
    """

    def __init__(
        self,
        record_type: RecordType,
        *,
        max_records: int = -1,
        verify_crc: bool = True,
        max_record_bytes: int = MAX_RECORD_BYTES,
        max_features: int | None = None,
    ) -> None:
        self._kernel = _kernel.Inference(
            record_type,
            max_features=max_features,
            verify_crc=verify_crc,
            max_record_bytes=max_record_bytes,
            max_records=max_records,
        )

    def feed(self, data: Buffer, *, final: bool) -> Fed:
        """Add the features of the whole records at the start of ``data``."""
        records, consumed, damage = self._kernel.feed(data, final=final)
        return Fed(records, consumed, _damage(damage))

    def check(self, data: Buffer, *, final: bool, limit: int | None = None) -> Checked:
        """Add the intact records of ``data``, and find the damage between them. An object must be used either
        with `check` or with `feed`, not with both.

        Parameters
        ----------
        data : bytes-like
            The framed records to check. The data of the first call begins at the start of the file or after
            an intact record. The data of each later call begins with the first byte that the previous call
            did not use.
        final : bool
            True if the file ends where the data ends.
        limit : int, optional
            The number of bytes from the start of the data to the end of the file, or None if this number is
            unknown.
        """
        return Checked.from_kernel(self._kernel.check(data, final=final, limit=limit))

    def features(self) -> list[Feature]:
        """Return the features of all records that were added, in the order of their first occurrence."""
        return [Feature(**feature) for feature in self._kernel.features()]


class Scanned(NamedTuple):
    """The result of `scan`.

    The arrays ``offsets`` and ``numbers`` (int64) are None if they were not requested.
    """

    records: int
    consumed: int
    damage: Damage | None
    offsets: pa.Array | None
    numbers: pa.Array | None


def scan(
    data: Buffer,
    *,
    final: bool,
    offsets: bool = False,
    every: int = 0,
    verify_crc: bool = True,
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> Scanned:
    """Count the whole records at the start of ``data`` without decoding them.

    Parameters
    ----------
    data : bytes-like
        The framed records to count.
    final : bool
        True if the file ends where the data ends. In this case, an incomplete last record is reported as
        damage.
    offsets : bool, default False
        If True, return the byte offsets of all records.
    every : int, default 0
        If not 0, return the offsets and the numbers of some records, at which blocks can start: the first
        record, and each record that starts at least this many bytes after the last returned one.
    verify_crc : bool, default True
        If True, verify the checksums of the payloads. The checksums of the record lengths are always
        verified.
    max_record_bytes : int, default 2**31 - 1
        The largest size of a record in bytes; a longer record counts as damaged.
    """
    records, consumed, damage, *arrays = _kernel.scan(
        data,
        final=final,
        verify_crc=verify_crc,
        max_record_bytes=max_record_bytes,
        offsets=offsets,
        every=every,
    )
    starts, numbers = (None if array is None else pa.array(array) for array in arrays)
    return Scanned(records, consumed, _damage(damage), starts, numbers)


class FoundRecord(NamedTuple):
    """The result of a search for the first record in some data.

    If ``proven`` is True, a record starts at ``offset``, and ``size`` is the size of its whole frame. If
    ``proven`` is False, no record starts before ``offset``. In this case, a ``size`` other than 0 means that
    a record may start at ``offset``. To decide whether a record starts there, ``size`` + 12 bytes are needed
    from ``offset`` on.
    """

    offset: int
    size: int
    proven: bool


def find_record(
    data: Buffer,
    start: int,
    *,
    final: bool,
    lenient: bool = False,
    max_record_bytes: int = MAX_RECORD_BYTES,
    limit: int | None = None,
) -> FoundRecord:
    """Find the first record at or after ``start``, in data that may begin inside a record.

    A proven record has two correct checksums. A proven record is followed by a length with a correct
    checksum, or the file ends with the record: after ``limit`` bytes of the data, or with data that is
    ``final``. After damage, pass ``lenient=True``: in this case, either the payload of the record or the
    bytes after the record may be damaged. The file ``_kernel.pyi`` describes the search.
    """
    return FoundRecord(
        *_kernel.find_record(
            data, start, final=final, lenient=lenient, max_record_bytes=max_record_bytes, limit=limit
        )
    )


def take_bytes(array: pa.Array, rows: Buffer) -> pa.Array:
    """Return the values of a binary or string array at the positions ``rows`` (int64).

    The function `take_bytes` is much faster than Arrow's ``take``.
    """
    return pa.array(_kernel.take_bytes(array, rows))
