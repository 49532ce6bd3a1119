"""Describe why a record cannot be decoded, and create the error that says so."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from dask_tfrecord.codec.columns import KIND_TYPES, Column, nested
from dask_tfrecord.errors import IGNORE_FEATURES, CorruptRecordError, Remedy, SchemaError, TFRecordError

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
