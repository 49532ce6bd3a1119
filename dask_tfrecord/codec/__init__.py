"""Encode and decode records with the compiled kernel, and describe damaged records.

The package `codec` works on bytes and Arrow data, and opens no files.
"""

from collections.abc import Collection, Mapping, Sequence
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

# Identifies a feature in a record by a name and a bool, which is True for a feature list. A SequenceExample
# may have a feature and a feature list of the same name.
FeatureKey: TypeAlias = tuple[str, bool]

# Maps each kind of feature to the Arrow type of the values that the kernel encodes and decodes.
KIND_TYPES: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "float": pa.float32(),
    "bytes": pa.binary(),
    "string": pa.string(),
}


class Column(NamedTuple):
    """The name, kind and depth of the feature that stores a column.

    The kind "string" means a bytes feature whose values must be valid UTF-8. The depth is 0 for a scalar, 1
    for a list, and 2 for a list of lists, which is a feature list of a SequenceExample.
    """

    name: str
    kind: Kind
    depth: int

    @property
    def feature(self) -> FeatureKey:
        """The key of the feature that stores the column."""
        return self.name, self.depth == 2


def nested(type_: pa.DataType, depth: int) -> pa.DataType:
    """Return ``type_`` nested in ``depth`` levels of lists."""
    return nested(pa.list_(type_), depth - 1) if depth else type_


# The kernel reports one of these reasons if an undamaged record does not fit the schema. The values are error
# messages.
_SCHEMA_PROBLEMS = {
    "wrong kind": "the column is {kind}, the record holds {found}",
    "not a scalar": "holds {found} values, the column is a scalar",
    "invalid UTF-8 value": "the value is not valid UTF-8, the column is a string",
    "unknown feature": "the record has this feature, the schema does not",
    "inexact integer": "the record holds the integer {found}, which no 32-bit float equals",
}

# The reasons that the kernel reports for a damaged record whose length is intact.
TOO_LONG = "record is longer than max_record_bytes"
DAMAGED_DATA = "checksum of the record data does not match"

# The reasons that the kernel reports for a record with correct checksums whose payload is not an Example.
NOT_AN_EXAMPLE = "the record is a protobuf message, but not an Example"
PAYLOAD_REASONS = frozenset(
    {
        "malformed protobuf message",
        "feature name is not valid UTF-8",
        "map entry holds a field other than key and value",
        NOT_AN_EXAMPLE,
    }
)

# The reason that the kernel reports if a record would raise the number of inferred features above
# ``max_features``.
TOO_MANY_FEATURES = "more features than max_features"

_PAYLOAD_PROBLEM = "the file is a TFRecord file, but this undamaged record is not an Example"


class Damage(NamedTuple):
    """Describe where and why the kernel could not decode a record. See ``_kernel.pyi``."""

    record: int
    offset: int
    size: int
    reason: str
    column: int
    found: str
    unknown: Column | None = None

    def error(self, columns: Sequence[Column], record: int, offset: int) -> TFRecordError:
        """Return the exception that describes the damage. ``record`` and ``offset`` are the position in the
        file at which the decoded data starts.
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
        """Return remedies: keyword arguments with which a read accepts the record."""
        if self.reason == "inexact integer":
            return [Remedy("schema", {column.name: None}, "leave the column out")]
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
    problem = f"the records so far have up to {count:,} features, more than max_features= allows"
    return SchemaError(
        problem, Remedy("read_options", {"max_features": count}, "infer a column for each feature"), **place
    )


def _wrong_map_error(unknown: Column, place: Mapping[str, Any]) -> SchemaError:
    """Return the error for a feature that a record has in the context but that the column reads from the
    feature lists, or vice versa.
    """
    here, there = "the context", "the feature lists"
    if unknown.depth == 2:
        here, there = there, here
    problem = f"the record has the feature in {here}, the column reads it from {there}"
    remedy = Remedy("extra", "ignore", f"read {there} only, because a column reads one of the two")
    return SchemaError(
        problem, remedy, Remedy("read_options", {"infer": "all"}, "find both and choose a type"), **place
    )


Ints = npt.NDArray[np.int64]


class Checked(NamedTuple):
    """Describe the intact records and the damaged ranges in the first ``consumed`` bytes of some data.

    A damaged range is either one record whose length is considered correct, or all bytes up to the next
    record. If ``continues`` is True, the first range continues the last range of the preceding data. If
    ``is_open`` is True, the last range may continue in the following data. ``records_before`` counts the
    intact records before each range. For each range, ``reasons`` contains the index of the reason in
    ``texts``.
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
        arrays = [pa.array(column).to_numpy() for column in fields[4:8]]
        return cls._make((*fields[:4], *arrays, tuple(fields[8])))

    @classmethod
    def one_range(cls, length: int, reason: str, *, continues: bool) -> "Checked":
        """Return the result for data in which every byte is damaged."""
        zero, end = np.zeros(1, np.int64), np.array([length])
        return cls(0, length, continues, False, zero, end, zero, zero, (reason,))

    def with_first_reason(self, reason: str) -> "Checked":
        reasons = self.reasons.copy()
        reasons[0] = len(self.texts)
        return self._replace(reasons=reasons, texts=(*self.texts, reason))

    def intact(self, data: Buffer) -> memoryview:
        """Return the joined bytes of the intact records. The bytes are copied only if a range is damaged."""
        if not len(self.starts):
            return memoryview(data)[: self.consumed]
        return memoryview(self._take(data, 0).buffers()[2] or b"")

    def damaged(self, data: Buffer) -> pa.Array:
        """Return a copy of the bytes of each damaged range."""
        return self._take(data, 1)

    def _take(self, data: Buffer, first: int) -> pa.Array:
        """Copy the intact spans of ``data`` if ``first`` is 0, or the damaged ranges if ``first`` is 1."""
        bounds = np.zeros(2 * len(self.starts) + 2, np.int64)
        bounds[1:-1:2], bounds[2:-1:2], bounds[-1] = self.starts, self.ends, self.consumed
        return take_bytes(spans(data, bounds), np.arange(first, len(bounds) - 1, 2).data)


# Assign the kernel's members to names, because import-linter mistakes a from-import of them for one of the
# package.
adler32_combine = _kernel.adler32_combine
crc32_combine = _kernel.crc32_combine
crc32c = _kernel.crc32c
crc32c_combine = _kernel.crc32c_combine
crc32c_of_records = _kernel.crc32c_of_records
limit_pool = _kernel.limit_pool
pool_array = _kernel.pool_array
raise_pool_limit = _kernel.raise_pool_limit

# The maximum size of a record's payload in bytes, which is protobuf's limit for a message.
MAX_RECORD_BYTES = 2**31 - 1

# A record's frame consists of the payload's length (8 bytes, little-endian), a CRC (4 bytes), the payload,
# and a CRC (4 bytes).
HEADER_BYTES = 12
FRAME_BYTES = HEADER_BYTES + 4

# The number of free bytes that the kernel needs after the last record in a buffer.
SPARE_BYTES = 16


def frame_size(header: Buffer) -> int:
    """Return the size in bytes of a record's frame. The checksum of ``header`` is not verified."""
    return FRAME_BYTES + int.from_bytes(memoryview(header)[:8], "little")


def _damage(fields: "_kernel.Damage | None") -> Damage | None:
    if fields is None:
        return None
    return Damage(*fields[:6], fields[6] and Column(*fields[6]))


class Decoded(NamedTuple):
    """The result of `Decoder.decode`: a batch, the number of consumed bytes, and any damage."""

    batch: pa.RecordBatch
    consumed: int
    damage: Damage | None

    @property
    def records(self) -> int:
        count: int = self.batch.num_rows
        return count


class Fed(NamedTuple):
    records: int
    consumed: int
    damage: Damage | None


class Statistics(NamedTuple):
    """For one column, the null count, the least value and the greatest value of each row range."""

    nulls: list[int]
    least: list[Any]
    greatest: list[Any]


class Encoder:
    """Encode Arrow batches as framed records. ``_kernel.pyi`` lists the supported Arrow types."""

    def __init__(self, columns: Sequence[Column], record_type: RecordType) -> None:
        self._columns = tuple(columns)
        self._kernel = _kernel.Encoder(self._columns, record_type)

    def bind(self, batch: pa.RecordBatch) -> None:
        self._kernel.bind(batch)

    def encode_into(
        self, row: int, out: Buffer, end: int | None = None, starts: Ints | None = None
    ) -> tuple[int, int, int]:
        """Encode rows into ``out``, as the kernel's `Encoder` does. At least the last ``SPARE_BYTES`` bytes
        of ``out`` stay unused.

        If a value cannot be encoded, raise SchemaError with the column and the row.
        """
        try:
            return self._kernel.encode_into(row, out, end, None if starts is None else starts.data)
        except _kernel.EncodeError as error:
            bad_row, column, reason = error.args
            feature = self._columns[column].name if column >= 0 else None
            raise SchemaError(reason, record=bad_row, feature=feature) from None

    def statistics(self, bounds: Sequence[int]) -> list[Statistics]:
        return list(map(Statistics._make, self._kernel.statistics(bounds)))


@lru_cache(maxsize=64)
def decoded_schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([(column.name, nested(KIND_TYPES[column.kind], column.depth)) for column in columns])


class Decoder:
    """Decode framed records to Arrow batches, as the kernel's `Decoder` does. Features without a column are
    skipped.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        record_type: RecordType,
        *,
        verify_crc: bool = True,
        max_record_bytes: int = MAX_RECORD_BYTES,
        known: Sequence[FeatureKey] | None = None,
        one_map: bool = False,
        integers: Collection[str] = (),
    ) -> None:
        self.columns = tuple(columns)
        self._schema = decoded_schema(self.columns)
        self._kernel = _kernel.Decoder(
            self.columns,
            record_type,
            verify_crc=verify_crc,
            max_record_bytes=max_record_bytes,
            known=known,
            one_map=one_map,
            integers=[*integers],
        )

    def decode(self, data: Buffer, *, final: bool) -> Decoded:
        """Decode the complete records at the start of ``data`` into a new batch."""
        fed = self.feed(data, final=final)
        return Decoded(self.take(), fed.consumed, fed.damage)

    def feed(self, data: Buffer, *, final: bool, more: int = 0) -> Fed:
        """Decode the complete records at the start of ``data``, and add them to the batch that `take`
        returns.

        Unless ``final`` is True, pass an incomplete last record again, at the start of the next call's data.
        ``more`` is the estimated number of bytes that later calls will add before `take`. Memory for ``more``
        bytes is reserved. Raise ValueError if the batch already contains records and would exceed 2 GiB: the
        caller must first call `take`.
        """
        records, consumed, damage = self._kernel.feed(data, final=final, more=more)
        return Fed(records, consumed, _damage(damage))

    def feed_records(self, data: Sequence[Buffer], places: Ints, rows: Ints) -> Fed:
        """Decode records at given positions in several buffers, and add them to the batch that `take`
        returns.

        Each row of ``places`` contains the index of a record's buffer, and the start and the end of the
        record's frame in this buffer. ``rows`` contains the indices of the rows of ``places`` to decode, in
        any order. Decoding stops before a record that would make the batch exceed 2 GiB. Raise IndexError for
        an index outside ``places``, and for a record outside its buffer.
        """
        records, consumed, damage = self._kernel.feed_records(data, places.data, rows.data)
        return Fed(records, consumed, _damage(damage))

    def take(self) -> pa.RecordBatch:
        exported = self._kernel.take()
        # pa.record_batch(exported) would build the schema again, which takes longer than importing the
        # columns.
        return pa.RecordBatch._import_from_c(exported.array_address(), self._schema)


class Feature(NamedTuple):
    """Summarise one feature across all undamaged records. ``_kernel.pyi`` describes the fields."""

    name: str
    feature_list: bool
    kinds: dict[str, int]
    max_values: int
    utf8: bool
    text: bool


class Inference:
    """Collect the features of records over several calls, so that a schema can be inferred. Find damaged
    records.

    For the record type "bytes", records are not parsed. `feed` stops after ``max_records`` records; -1 means
    no limit. A record that would raise the number of features above ``max_features`` counts as damaged.
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
        records, consumed, damage = self._kernel.feed(data, final=final)
        return Fed(records, consumed, _damage(damage))

    def check(self, data: Buffer, *, final: bool, limit: int | None = None) -> Checked:
        """Add the intact records of ``data`` to the inference, and find the damage between the records. Call
        either `check` or `feed` on an object, never both.

        The data of each call must begin with the first byte that the previous call did not use. ``limit`` is
        the number of bytes from the start of the data to the end of the file.
        """
        return Checked.from_kernel(self._kernel.check(data, final=final, limit=limit))

    def features(self) -> list[Feature]:
        return [Feature(**feature) for feature in self._kernel.features()]


class Scanned(NamedTuple):
    """The result of `scan`. ``offsets`` and ``numbers`` (record indices) are None unless requested."""

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
    """Count the complete records at the start of ``data`` without decoding them.

    If ``offsets`` is True, the result contains the offsets of all records. If ``every`` is not 0, the result
    contains the offsets and the indices of the records at which blocks can start. A block can start at the
    first record, and at each record that begins at least ``every`` bytes after the previous block start. If
    ``final`` is True, an incomplete last record counts as damage.
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
    """The result of `find_record`.

    If ``proven`` is True, a record of ``size`` bytes starts at ``offset``. If ``proven`` is False, no record
    was found, and no record starts in the searched bytes before ``offset``. If ``proven`` is False and
    ``size`` is not 0, a record may start at ``offset``. To decide whether a record starts at ``offset``, the
    search needs ``size`` + 12 bytes from ``offset`` on.
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
    """Find the first record at or after ``start``, in data that may begin inside a record, as ``_kernel.pyi``
    describes.

    A record counts as proven if both of its checksums are correct, and if the end of the file or a length
    with a correct checksum follows. Pass ``lenient=True`` after damage: a record then counts as proven even
    if either its payload or the bytes after it are damaged.
    """
    return FoundRecord(
        *_kernel.find_record(
            data, start, final=final, lenient=lenient, max_record_bytes=max_record_bytes, limit=limit
        )
    )


def spans(data: Buffer, bounds: Ints) -> pa.Array:
    """Return the spans of ``data`` from each bound to the next bound, without copying the bytes."""
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)


def take_bytes(array: pa.Array, rows: Buffer) -> pa.Array:
    """Return the values of a binary or string array at ``rows`` (int64), much faster than Arrow's
    ``take``.
    """
    return pa.array(_kernel.take_bytes(array, rows))


# The largest sum of the weights that `choose_turns` accepts.
MAX_WEIGHTS = 1 << 40


def choose_turns(weights: Ints, deficits: Ints, count: int) -> npt.NDArray[np.int16]:
    """Return the source that has each of the next ``count`` turns, and update ``deficits``.

    `_kernel.choose_turns` explains the parameters.
    """
    chosen = np.empty(count, np.int16)
    _kernel.choose_turns(weights.data, deficits.data, chosen.data)
    return chosen
