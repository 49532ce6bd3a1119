"""Records <-> Arrow: the typed face of the kernel. Knows bytes and Arrow, no files and no Dask."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa
from typing_extensions import Buffer

from dask_tfrecord.codec import _kernel
from dask_tfrecord.errors import CorruptRecordError, SchemaError, TFRecordError

crc32c = _kernel.crc32c
crc32c_combine = _kernel.crc32c_combine

Kind = Literal["int64", "float", "bytes", "string"]
RecordType = Literal["example", "sequence_example", "bytes"]

# A feature of a record: its name, and whether it is a feature list. A SequenceExample may have both.
Known: TypeAlias = tuple[str, bool]

# protobuf's own limit for one message, and so for one record.
MAX_RECORD_BYTES = 2**31 - 1

# The framing of a record: its length (8 bytes, little-endian) with a CRC, then the payload, then a CRC.
HEADER_BYTES = 12
FRAME_BYTES = HEADER_BYTES + 4

# One buffer that every record passes through: fresh memory for the whole partition costs more than
# encoding it (page faults), a buffer of this size stays in the cache.
BUFFER_BYTES = 1 << 20

# Room that the kernel wants after the last record of a buffer.
SPARE_BYTES = 16

# The kernel's leaf types.
DECODED = {"int64": pa.int64(), "float": pa.float32(), "bytes": pa.binary(), "string": pa.string()}

# Damage of these kinds is a value that does not fit the column, not a damaged file.
_SCHEMA_REASONS = {
    "wrong kind": "the column is {kind}, the record holds {found}",
    "not a scalar": "holds {found} values, the column is a scalar",
    "invalid UTF-8 value": "the value is not valid UTF-8, the column is a string",
    "unknown feature": "the record holds it, the schema does not have it",
}


# Damage of these kinds is a whole record with good checksums that holds something else.
NOT_AN_EXAMPLE = "the record is a protobuf message, but not an Example"
_MESSAGE_REASONS = frozenset(
    {
        "malformed protobuf message",
        "feature name is not valid UTF-8",
        "map entry holds a field other than key and value",
        NOT_AN_EXAMPLE,
    }
)
NO_EXAMPLE = "the file is a TFRecord file, but the record is whole and no Example"


def frame_size(header: Buffer) -> int:
    """Return the size of a whole frame by the length in its header; no checksum is verified."""
    return FRAME_BYTES + int.from_bytes(memoryview(header)[:8], "little")


class Column(NamedTuple):
    """What one column is on the wire.

    ``kind`` is the feature's kind, with "string" for a bytes feature that must be UTF-8; ``depth`` is 0
    for a scalar, 1 for a list, 2 for a list of lists (a FeatureList of a SequenceExample).
    """

    name: str
    kind: Kind
    depth: int

    @property
    def feature(self) -> Known:
        """The feature that the column reads."""
        return self.name, self.depth == 2


class Damage(NamedTuple):
    """Where and why decoding stopped, counted from the start of the data of one call.

    ``size`` is the length of the record's whole frame, 0 when that cannot be known; ``column`` is the
    column's index or -1; ``found`` is what was met: a number of values, the name of a kind, or "";
    ``unknown`` is the column that would read a feature which was not known.
    """

    record: int
    offset: int
    size: int
    reason: str
    column: int
    found: str
    unknown: Column | None = None

    def error(self, columns: Sequence[Column], record: int, offset: int) -> TFRecordError:
        """The exception for this damage; ``record`` and ``offset`` are those of the data's start."""
        column = columns[self.column] if self.column >= 0 else self.unknown
        place: dict[str, Any] = {
            "record": record + self.record,
            "offset": offset + self.offset,
            "feature": column.name if column else None,
        }
        if self.reason in _MESSAGE_REASONS:
            return CorruptRecordError(f"{NO_EXAMPLE}: {self.reason}", **place)
        if column is None or self.reason not in _SCHEMA_REASONS:
            return CorruptRecordError(self.reason, **place)
        if self.unknown and any(self.unknown.name == one.name for one in columns):
            return _both_places(self.unknown, place)
        problem = _SCHEMA_REASONS[self.reason].format(kind=column.kind, found=self.found)
        return SchemaError(problem, advice=_advice(self, column), **place)


def _both_places(unknown: Column, place: Mapping[str, Any]) -> SchemaError:
    """The error for a record that holds a column's name in the place where the column does not look."""
    here, there = "the context", "the feature lists"
    if unknown.depth == 2:
        here, there = there, here
    return SchemaError(
        f"the record holds it in {here}, the column reads it from {there}",
        advice=f'a column reads one of the two: pass extra="ignore" to read {there} only, '
        'or infer="all" to find both and choose by schema=',
        **place,
    )


def quoted(name: str) -> str:
    """A name as it is written in Python."""
    return json.dumps(name, ensure_ascii=False)


def spelled(type_: pa.DataType) -> str:
    """A type of decoded columns as it is written in Python."""
    if pa.types.is_list(type_):
        return f"pa.list_({spelled(type_.value_type)})"
    names = {pa.float32(): "float32"}
    return f"pa.{names.get(type_, type_)}()"


def _advice(damage: Damage, column: Column) -> str:
    """The ``schema=`` that would read what the record holds."""
    kind = damage.found if damage.reason == "wrong kind" else column.kind
    if damage.reason == "invalid UTF-8 value":
        kind = "bytes"
    type_ = DECODED.get(kind, pa.string())
    for _ in range(max(column.depth, damage.reason == "not a scalar")):
        type_ = pa.list_(type_)
    schema = f"pass schema={{{quoted(column.name)}: {spelled(type_)}}}"
    if damage.reason == "unknown feature":
        return f'{schema} to read it, or extra="ignore"'
    return f"{schema} if all records hold {damage.found}" if damage.reason == "wrong kind" else schema


def _damage(found: "_kernel.Damage | None") -> Damage | None:
    """What the kernel says, with names."""
    if found is None:
        return None
    *_, unknown = found
    return Damage(*found[:6], unknown and Column(*unknown))


class Decoded(NamedTuple):
    """One call's worth: the batch, how many bytes of the data it used up, and what stopped it."""

    batch: pa.RecordBatch
    consumed: int
    damage: Damage | None

    @property
    def records(self) -> int:
        count: int = self.batch.num_rows
        return count


class Statistics(NamedTuple):
    """How many rows of a column are null, and the least and greatest of its values; None if it has none.

    Of lists it is their lengths; NaN does not count.
    """

    nulls: int
    least: Any
    greatest: Any


class Encoder:
    """Arrow batches -> framed records.

    Parameters
    ----------
    columns : sequence of Column
        What the batches' columns are; their Arrow storage must be exactly that (see ``_kernel.pyi``).
    record_type : "example", "sequence_example" or "bytes"
        The message that each row becomes; "bytes" takes one column of payloads.
    buffer_bytes : int, default 1 MiB
        Size of the one buffer that is filled again and again. It grows if a record needs more.
    """

    def __init__(
        self, columns: Sequence[Column], record_type: RecordType, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self._columns = tuple(columns)
        self._kernel = _kernel.Encoder(self._columns, record_type)
        self._buffer = bytearray(buffer_bytes)

    def bind(self, batch: pa.RecordBatch) -> None:
        """Take the batch whose rows `encode_into` encodes."""
        self._kernel.bind(batch)

    def encode_into(self, row: int, out: Buffer, end: int | None = None) -> tuple[int, int, int]:
        """Fill ``out`` with the whole records from a row of the batch on, up to the one before ``end``.

        Returns the next row, the bytes written, and 0, or, where not even one record fits, how much room is
        enough for it. ``SPARE_BYTES`` behind the last record stay free.

        Raises
        ------
        SchemaError
            For a value that has no encoding, naming the row of the batch and the column.
        """
        try:
            return self._kernel.encode_into(row, out, end)
        except _kernel.EncodeError as error:
            bad_row, column, reason = error.args
            feature = self._columns[column].name if column >= 0 else None
            raise SchemaError(reason, record=bad_row, feature=feature) from None

    def statistics(self, row: int, end: int) -> list[Statistics]:
        """What the encoded rows from ``row`` to before ``end`` hold, for each column."""
        return list(map(Statistics._make, self._kernel.statistics(row, end)))

    def encode(self, batch: pa.RecordBatch) -> Iterator[memoryview]:
        """Yield the bytes of all rows. Each view is valid only until the next one is asked for."""
        row = 0
        self.bind(batch)
        while row < batch.num_rows:
            row, size, need = self.encode_into(row, self._buffer)
            if need:
                self._buffer = bytearray(need)
            else:
                yield memoryview(self._buffer)[:size]


@lru_cache(maxsize=64)
def _decoded_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """What the kernel's batches of these columns are."""
    fields = []
    for column in columns:
        type_ = DECODED[column.kind]
        for _ in range(column.depth):
            type_ = pa.list_(type_)
        fields.append(pa.field(column.name, type_))
    return pa.schema(fields)


class Decoder:
    """Framed records -> Arrow batches of the wanted columns; see ``_kernel.pyi``.

    ``known`` lists the features that are neither wanted nor damage. A record that holds a feature outside
    ``columns`` and ``known`` is damaged. None (the default) allows every feature.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        record_type: RecordType,
        *,
        verify_crc: bool = True,
        max_record_bytes: int = MAX_RECORD_BYTES,
        known: Sequence[Known] | None = None,
    ) -> None:
        self.columns = tuple(columns)
        self._schema = _decoded_schema(self.columns)
        self._kernel = _kernel.Decoder(
            self.columns,
            record_type,
            verify_crc=verify_crc,
            max_record_bytes=max_record_bytes,
            known=known,
        )

    def decode(self, data: Buffer, *, final: bool) -> Decoded:
        """Decode the whole records at the start of ``data``; the caller brings the tail back."""
        exported, consumed, damage = self._kernel.decode(data, final=final)
        # pa.record_batch(exported) would build the schema anew, which takes longer than the columns.
        batch = pa.RecordBatch._import_from_c(exported.array_address(), self._schema)
        return Decoded(batch, consumed, _damage(damage))


class Feature(NamedTuple):
    """What was seen of one feature; the counts are over the records that hold it with a kind."""

    name: str
    feature_list: bool
    records: int
    kinds: dict[str, int]
    min_values: int
    max_values: int
    min_steps: int
    max_steps: int
    utf8: bool
    text: bool


class Inference:
    """Gathers what features records hold, call by call; see ``_kernel.pyi``."""

    def __init__(
        self,
        record_type: RecordType,
        *,
        max_records: int = -1,
        verify_crc: bool = True,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self._kernel = _kernel.Inference(
            record_type,
            verify_crc=verify_crc,
            max_record_bytes=max_record_bytes,
            max_records=max_records,
        )

    def feed(self, data: Buffer, *, final: bool) -> tuple[int, int, Damage | None]:
        """Look at the whole records at the start of ``data``: (records, bytes consumed, damage)."""
        records, consumed, damage = self._kernel.feed(data, final=final)
        return records, consumed, _damage(damage)

    def features(self) -> list[Feature]:
        """All features seen so far, in the order first seen."""
        return [Feature(**feature) for feature in self._kernel.features()]


class Scanned(NamedTuple):
    """Frames walked without decoding; ``offsets`` and ``numbers`` (int64) only when asked for."""

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
    """Count and locate the whole records at the start of ``data``, checking checksums only.

    ``offsets`` gives where each begins. ``every`` gives that of the first, and then of each that begins at
    least so many bytes after the last one given, and the records' ``numbers``: where blocks may begin.
    Without ``verify_crc`` payloads are not looked at, only the lengths and their checksums.
    """
    records, consumed, damage, *arrays = _kernel.scan(
        data,
        final=final,
        verify_crc=verify_crc,
        max_record_bytes=max_record_bytes,
        offsets=offsets,
        every=every,
    )
    found, numbers = (None if array is None else pa.array(array) for array in arrays)
    return Scanned(records, consumed, _damage(damage), found, numbers)


class Found(NamedTuple):
    """Where a record is ``proven`` to begin and the size of its whole frame, or what is in the way.

    Unless ``proven``, nothing before ``offset`` is a record. A ``size`` other than 0 says that a record of
    that size may begin there, and that its end and the 12 bytes after it must be brought to tell.
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
) -> Found:
    """Find the first record from ``start`` on, in bytes that may begin anywhere; see ``_kernel.pyi``.

    Its two checksums hold, and that of the next record's length does, or it ends where the data does, if
    that is ``final``. Behind damage be ``lenient``: then its payload, or what follows it, may be damaged too.
    """
    return Found(
        *_kernel.find_record(data, start, final=final, lenient=lenient, max_record_bytes=max_record_bytes)
    )


def take_bytes(array: pa.Array, rows: Buffer) -> pa.Array:
    """The values of a binary or string array in the order of ``rows`` (int64), much faster than Arrow."""
    return pa.array(_kernel.take_bytes(array, rows))
