"""The independent judge of all tests: what TFRecord bytes mean, by google.protobuf and plain Python.

Nothing here imports the library under test. The messages live in a private descriptor pool, because a
second registration of ``tensorflow.Example`` in the default pool breaks TensorFlow in the same process.
"""

import gzip
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError as DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

KINDS = {"int64_list": "int64", "float_list": "float", "bytes_list": "bytes"}


class DamagedError(ValueError):
    """Bytes that are not whole TFRecord frames; ``records`` are the payloads before the damage."""

    def __init__(self, problem: str, records: list[bytes]) -> None:
        super().__init__(problem)
        self.records = records


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes, value: int = 0) -> int:
    """CRC-32C by its definition, one byte at a time."""
    value ^= 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def footer_start(parquet: bytes) -> int:
    return len(parquet) - 8 - int.from_bytes(parquet[-8:-4], "little")


def with_footer_checksum(parquet: bytes) -> bytes:
    """Store the checksum of the footer before the footer, as in the Parquet file of a version."""
    start = footer_start(parquet)
    return parquet[:start] + crc32c(parquet[start:]).to_bytes(4, "little") + parquet[start:]


def write_version(table: pa.Table, path: Path) -> None:
    """Write a table with its metadata as the Parquet file of a version."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    path.write_bytes(with_footer_checksum(bytes(sink.getvalue())))


def masked_crc(data: bytes) -> int:
    """The form in which TFRecord stores a CRC: rotated and offset."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return b"".join(
        (length, struct.pack("<I", masked_crc(length)), payload, struct.pack("<I", masked_crc(payload)))
    )


def frames(data: bytes) -> list[bytes]:
    records: list[bytes] = []
    position = 0
    while position < len(data):
        header = data[position : position + 12]
        if len(header) < 12:
            raise DamagedError("truncated header", records)
        if struct.unpack("<I", header[8:])[0] != masked_crc(header[:8]):
            raise DamagedError("length CRC", records)
        end = position + 12 + struct.unpack("<Q", header[:8])[0]
        footer = data[end : end + 4]
        if len(footer) < 4:
            raise DamagedError("truncated record", records)
        payload = data[position + 12 : end]
        if struct.unpack("<I", footer)[0] != masked_crc(payload):
            raise DamagedError("payload CRC", records)
        records.append(payload)
        position = end + 4
    return records


def read_stored(path: Path) -> tuple[bytes, bool]:
    """Decompress a file by its content, not its name: the bytes, and True if the file is complete."""
    stored = path.read_bytes()
    if starts_with_a_frame(stored):
        return stored, True
    if stored[:2] == b"\x1f\x8b":
        return _inflate(stored, wbits=31)
    if stored[:1] == b"\x78" and int.from_bytes(stored[:2], "big") % 31 == 0:
        return _inflate(stored, wbits=15)
    return stored, True


def starts_with_a_frame(data: bytes) -> bool:
    return len(data) >= 12 and struct.unpack("<I", data[8:12])[0] == masked_crc(data[:8])


def _inflate(stored: bytes, wbits: int) -> tuple[bytes, bool]:
    parts = []
    while stored.rstrip(b"\0"):
        stream = zlib.decompressobj(wbits)
        try:
            parts.append(stream.decompress(stored))
        except zlib.error:
            return b"".join(parts), False
        if not stream.eof:
            return b"".join(parts), False
        stored = stream.unused_data
    return b"".join(parts), True


def read_payloads(path: Path) -> list[bytes]:
    """The payloads of a file; :class:`DamagedError` holds the payloads before the damage."""
    data, whole = read_stored(path)
    records = frames(data)
    if not whole:
        raise DamagedError("compressed stream", records)
    return records


def compress(data: bytes, compression: str | None) -> bytes:
    if compression is None:
        return data
    return gzip.compress(data, mtime=0) if compression == "gzip" else zlib.compress(data)


_Field = descriptor_pb2.FieldDescriptorProto


def _add(file: Any, name: str, *fields: tuple[str, int, int, str]) -> Any:
    message = file.message_type.add(name=name)
    for field_name, type_, label, type_name in fields:
        added = message.field.add(
            name=field_name, number=len(message.field) + 1, type=type_, label=label, json_name=field_name
        )
        if type_name:
            added.type_name = f".tensorflow.{type_name}"
    return message


def _add_map(file: Any, name: str, field_name: str, value: str) -> None:
    entry = "".join(part.capitalize() for part in field_name.split("_")) + "Entry"
    outer = _add(file, name, (field_name, _Field.TYPE_MESSAGE, _Field.LABEL_REPEATED, f"{name}.{entry}"))
    nested = outer.nested_type.add(name=entry, options={"map_entry": True})
    nested.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
    nested.field.add(
        name="value",
        number=2,
        type=_Field.TYPE_MESSAGE,
        label=_Field.LABEL_OPTIONAL,
        type_name=f".tensorflow.{value}",
    )


def _message_classes() -> tuple[Any, ...]:
    file = descriptor_pb2.FileDescriptorProto(name="oracle.proto", package="tensorflow", syntax="proto3")
    one, many, message = _Field.LABEL_OPTIONAL, _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
    _add(file, "BytesList", ("value", _Field.TYPE_BYTES, many, ""))
    _add(file, "FloatList", ("value", _Field.TYPE_FLOAT, many, ""))
    _add(file, "Int64List", ("value", _Field.TYPE_INT64, many, ""))
    feature = _add(
        file,
        "Feature",
        ("bytes_list", message, one, "BytesList"),
        ("float_list", message, one, "FloatList"),
        ("int64_list", message, one, "Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for kind in feature.field:
        kind.oneof_index = 0
    _add_map(file, "Features", "feature", "Feature")
    _add(file, "FeatureList", ("feature", message, many, "Feature"))
    _add_map(file, "FeatureLists", "feature_list", "FeatureList")
    _add(file, "Example", ("features", message, one, "Features"))
    _add(
        file,
        "SequenceExample",
        ("context", message, one, "Features"),
        ("feature_lists", message, one, "FeatureLists"),
    )
    # The same bytes as an Example, with every entry of the map and its features as bytes, and as a Feature.
    text, binary = _Field.TYPE_STRING, _Field.TYPE_BYTES
    _add(file, "OpenEntry", ("key", text, many, ""), ("value", binary, many, ""))
    _add(file, "OpenFeatures", ("feature", message, many, "OpenEntry"))
    _add(file, "OpenExample", ("features", message, one, "OpenFeatures"))
    _add(file, "OpenFeature", *((f"list_{number}", binary, many, "") for number in (1, 2, 3)))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return tuple(
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.{name}"))
        for name in ("Example", "SequenceExample", "OpenExample", "Feature", "OpenFeature")
    )


Example, SequenceExample, OpenExample, FeatureMessage, OpenFeature = _message_classes()


def float_bits(value: float) -> int:
    """The 32-bit pattern of a float; NaNs are made quiet, as Python's conversions do."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits | 0x00400000 if value != value else bits


def float_of(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value


@dataclass(frozen=True)
class Feature:
    """A Feature: its kind ("int64", "float", "bytes", or None when unset) and values, floats as bits."""

    kind: str | None = None
    values: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Record:
    """An Example (features only) or a SequenceExample (context features and feature lists)."""

    features: dict[str, Feature] = field(default_factory=dict)
    lists: dict[str, list[Feature]] = field(default_factory=dict)


def read_feature(message: Any) -> Feature:
    which = message.WhichOneof("kind")
    if which is None:
        return Feature()
    values = getattr(message, which).value
    return Feature(KINDS[which], [float_bits(v) for v in values] if which == "float_list" else list(values))


def parse(payload: bytes, record_type: str = "example") -> Record:
    """Parse a payload with google.protobuf, which raises ``DecodeError``."""
    if record_type == "example":
        example = Example.FromString(payload)
        return Record({name: read_feature(f) for name, f in example.features.feature.items()})
    sequence = SequenceExample.FromString(payload)
    return Record(
        {name: read_feature(f) for name, f in sequence.context.feature.items()},
        {
            name: [read_feature(f) for f in fl.feature]
            for name, fl in sequence.feature_lists.feature_list.items()
        },
    )


def drops_map_entries(payload: bytes) -> bool:
    """Return True if protobuf's Python runtime dropped a map entry because of an unknown field in it."""
    unknown = UnknownFieldSet(Example.FromString(payload).features)
    return any(field.field_number == 1 and field.wire_type == 2 for field in unknown)


def is_of_another_type(payload: bytes) -> bool:
    """Return True if a message has unknown fields in place of features, unlike any Example."""
    example = Example.FromString(payload)
    if any(feature.WhichOneof("kind") for feature in example.features.feature.values()):
        return False
    return any(len(UnknownFieldSet(part)) for part in (example, example.features))


def is_disputed(payload: bytes) -> bool:
    """Return True if protobuf's runtimes disagree about a message that the Python runtime reads.

    Only the Python runtime drops map entries with unknown fields, and accepts a field number 0 in an unknown
    group.
    """
    example = Example.FromString(payload)
    features = list(example.features.feature.values())
    lists = [getattr(feature, kind) for feature in features if (kind := feature.WhichOneof("kind"))]
    parts = [example, example.features, *features, *lists]
    return drops_map_entries(payload) or any(holds_number_0(UnknownFieldSet(part)) for part in parts)


def holds_number_0(fields: Any) -> bool:
    """Return True if unknown fields, also in groups, have the number 0, which only some runtimes refuse."""
    return any(
        field.field_number == 0 or (field.wire_type == 3 and holds_number_0(field.data)) for field in fields
    )


def _fill(message: Any, feature: Feature) -> None:
    if feature.kind is None:
        return
    target = getattr(message, f"{feature.kind}_list")
    target.SetInParent()
    target.value.extend(map(float_of, feature.values) if feature.kind == "float" else feature.values)


def message(record: Record, record_type: str = "example") -> Any:
    built = Example() if record_type == "example" else SequenceExample()
    features = built.features if record_type == "example" else built.context
    for name, feature in record.features.items():
        features.feature[name].SetInParent()
        _fill(features.feature[name], feature)
    for name, steps in record.lists.items():
        feature_list = built.feature_lists.feature_list[name]
        feature_list.SetInParent()
        for step in steps:
            _fill(feature_list.feature.add(), step)
    return built


def serialize(record: Record, record_type: str = "example") -> bytes:
    """A record as google.protobuf writes it."""
    payload: bytes = message(record, record_type).SerializeToString()
    return payload


def is_text(value: bytes) -> bool:
    """Return True for UTF-8 without control characters other than tab, newline and carriage return."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return False
    return not any(ord(sign) < 32 or ord(sign) == 127 for sign in text if sign not in "\t\n\r")


# What records show of each feature, by its name and True for a feature list: the first record of each kind,
# the greatest number of values, and whether all values are UTF-8, and text.
Inferred = dict[tuple[str, bool], tuple[dict[str, int], int, bool, bool]]
_CONTROL = bytes([*range(32), 127])


def inferred(records: Sequence[Record]) -> Inferred:
    found: Inferred = {}
    for number, record in enumerate(records):
        features = [((name, False), [feature]) for name, feature in record.features.items()]
        for key, steps in features + [((name, True), steps) for name, steps in record.lists.items()]:
            kinds, most, utf8, text = found.get(key, ({}, 0, True, True))
            for step in steps:
                if step.kind is not None:
                    kinds.setdefault(step.kind, number)
                most = max(most, len(step.values))
                values = step.values if step.kind == "bytes" else []
                utf8 = utf8 and all(is_text(value.translate(None, _CONTROL)) for value in values)
                text = text and all(map(is_text, values))
            found[key] = kinds, most, utf8, text
    return found


def column_values(records: Iterable[Record], name: str, depth: int) -> list[Any]:
    """The values of one column: null for an absent key, an unset kind or, in a scalar, an empty list."""
    if depth == 2:
        return [_nested(record.lists.get(name)) for record in records]
    rows = []
    for record in records:
        feature = record.features.get(name, Feature())
        if depth == 1:
            rows.append(None if feature.kind is None else feature.values)
        else:
            assert len(feature.values) <= 1
            rows.append(feature.values[0] if feature.values else None)
    return rows


def _nested(steps: list[Feature] | None) -> list[Any] | None:
    return None if steps is None else [None if step.kind is None else step.values for step in steps]


def canonical(value: Any) -> Any:
    """A value of ``to_pylist()`` in the form of the oracle: floats as bits, text as UTF-8, also in lists."""
    if isinstance(value, float):
        return float_bits(value)
    if isinstance(value, str):
        return value.encode()
    return [canonical(item) for item in value] if isinstance(value, list) else value


def varint(value: int) -> bytes:
    """An unsigned varint; a negative value is encoded as 64-bit two's complement."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def block(number: int, *parts: bytes) -> bytes:
    """A length-delimited field: a message, a string, bytes, or a packed list."""
    body = b"".join(parts)
    return tag(number, 2) + varint(len(body)) + body


def entry(key: str | bytes, *features: bytes) -> bytes:
    """An entry of Features.feature: the key, then its Feature (several are repeated sub-messages)."""
    key = key.encode() if isinstance(key, str) else key
    return block(1, block(1, key), *(block(2, feature) for feature in features))


def example_of(*entries: bytes) -> bytes:
    return block(1, *entries)


def int64_list(*parts: bytes) -> bytes:
    return block(3, *parts)


def float_list(*parts: bytes) -> bytes:
    return block(2, *parts)


def bytes_list(*parts: bytes) -> bytes:
    return block(1, *parts)


def packed(*values: int) -> bytes:
    return block(1, *(varint(value) for value in values))


def records_file(payloads: Sequence[bytes]) -> bytes:
    return b"".join(frame(payload) for payload in payloads)


def features_file(records: Sequence[Mapping[str, tuple[str, list[Any]]]]) -> bytes:
    """A whole uncompressed file of Examples given as ``{name: (kind, values)}``, written by protobuf."""
    return records_file(
        [serialize(Record({name: Feature(*f) for name, f in record.items()})) for record in records]
    )
