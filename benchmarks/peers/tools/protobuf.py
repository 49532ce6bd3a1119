"""Run a loop over records with google.protobuf, as many scripts do, and checksums of google-crc32c."""

import gzip
import struct
from collections.abc import Iterator
from typing import Any

from benchmarks.peers.tools import Pass, Used, Ways, Work

USED = (
    Used(
        "write: one Example for all rows, whose values are replaced in place; a new Example for each row of "
        "more than 10 KB, because an Example keeps the memory of replaced values",
        "https://protobuf.dev/reference/python/python-generated/#repeated-fields",
    ),
    Used(
        "read: `FromString` for each record, and checksums of google-crc32c",
        "https://protobuf.dev/getting-started/pythontutorial/#parsing-serialization",
    ),
)

_MESSAGES = """
name: "example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".tensorflow.Int64List" oneof_index: 0 }
}
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE
    type_name: ".tensorflow.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE
      type_name: ".tensorflow.Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.Features" } }
"""

_LISTS = {"int": "int64_list", "float": "float_list", "byte": "bytes_list"}


def example_class() -> Any:
    """Return the class of ``tensorflow.Example`` messages, without importing TensorFlow."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = text_format.Parse(_MESSAGES, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


# A row with more bytes than this gets an Example of its own. If an Example is used again, protobuf keeps the
# memory of the values that were replaced, and an image needs fresh memory.
_LARGE_ROW_BYTES = 10_000


class Serializer:
    """Serialize rows as Examples of the given class. ``features`` is that of `Work`."""

    def __init__(self, example: Any, features: dict[str, list[Any]], row_bytes: float) -> None:
        self._example, self._features = example, features
        self._is_reused = row_bytes < _LARGE_ROW_BYTES
        self._renew()

    def _renew(self) -> None:
        """Create an Example with all features, and keep the containers of the features' values."""
        self._message = self._example()
        self._scalars, self._lists = [], []
        for name, (kind, values) in self._features.items():
            held = getattr(self._message.features.feature[name], _LISTS[kind])
            held.SetInParent()  # a list without values is not a missing list
            if values:
                self._lists.append((name, held.value))
            else:
                held.value.append(b"" if kind == "byte" else 0)
                self._scalars.append((name, held.value))

    def __call__(self, row: dict[str, Any]) -> bytes:
        if not self._is_reused:
            self._renew()
        for name, value in self._scalars:
            value[0] = row[name]
        for name, value in self._lists:
            del value[:]
            value.extend(row[name])
        data: bytes = self._message.SerializeToString()
        return data


def parsed(record: bytes, example: Any, columns: list[str], features: dict[str, list[Any]]) -> dict[str, Any]:
    """Parse a record, and return the values of the columns."""
    found = example.FromString(record).features.feature
    row = {}
    for name in columns:
        kind, values = features[name]
        held = getattr(found[name], _LISTS[kind]).value
        row[name] = list(held) if values else held[0]
    return row


def _masked(data: bytes) -> bytes:
    import google_crc32c

    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _records(path: str, codec: str | None) -> Iterator[bytes]:
    with gzip.open(path) if codec else open(path, "rb") as file:
        while header := file.read(12):
            record = file.read(struct.unpack("<Q", header[:8])[0])
            if _masked(header[:8]) != header[8:] or _masked(record) != file.read(4):
                raise ValueError(f"{path} is damaged")
            yield record


def read(work: Work) -> Pass:
    example = example_class()

    def read_all(_: str) -> int:
        rows = 0
        for path in work.paths():
            found = [
                parsed(record, example, work.columns, work.features) for record in _records(path, work.codec)
            ]
            rows += len(found)
        return rows

    return read_all


def infer(work: Work) -> Pass:
    """Collect the name, the kind and the number of values of each feature of each record."""
    example = example_class()

    def look(_: str) -> int:
        kinds, rows = set(), 0
        for path in work.paths():
            for record in _records(path, work.codec):
                rows += 1
                for name, feature in example.FromString(record).features.feature.items():
                    kind = feature.WhichOneof("kind")
                    kinds.add((name, kind, len(getattr(feature, kind).value) == 1))
        return rows if {name for name, _, _ in kinds} == set(work.features) else 0

    return look


def count(work: Work) -> Pass:
    return lambda _: sum(1 for path in work.paths() for _ in _records(path, work.codec))


def write(work: Work) -> Pass:
    rows = work.python_rows()
    serialize = Serializer(example_class(), work.features, work.row_bytes())
    level = 9 if work.level is None else work.level  # Python's default

    def write_all(path: str) -> int:
        with gzip.open(path, "wb", level) if work.codec else open(path, "wb") as file:
            for row in rows:
                record = serialize(row)
                length = struct.pack("<Q", len(record))
                file.write(b"".join((length, _masked(length), record, _masked(record))))
        return len(rows)

    return write_all


WAYS: Ways = {"": {"read": read, "infer": infer, "count": count, "write": write}}
