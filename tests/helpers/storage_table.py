"""Every scalar type with the kind of its feature, and schemas and batches of one column."""

import pyarrow as pa

from dask_tfrecord.codec import Kind, RecordType
from dask_tfrecord.schema.fields import Schema

_OF_KIND: dict[Kind, list[pa.DataType]] = {
    "int64": [
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.date32(), pa.date64()),
        *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.timestamp("s")),
        *(pa.timestamp("us", "UTC"), pa.duration("ms")),
    ],
    "float": [pa.float16(), pa.float32(), pa.float64(), pa.decimal128(6, 2), pa.decimal256(50, 3)],
    "bytes": [pa.binary(), pa.large_binary(), pa.binary(2), pa.binary_view()],
    "string": [pa.string(), pa.large_string(), pa.string_view()],
}
SCALARS: list[tuple[pa.DataType, Kind]] = [
    (type_, kind) for kind, types in _OF_KIND.items() for type_ in types
]


def batch_of(array: pa.Array) -> pa.RecordBatch:
    """A batch of one column "x"."""
    return pa.RecordBatch.from_arrays([array], names=["x"])


def schema_of(type_: pa.DataType, record_type: RecordType = "sequence_example", **known: pa.Array) -> Schema:
    """The schema of a column "x" of this type; pass ``x=`` for its known categories."""
    return Schema.from_arrow(pa.schema([("x", type_)]), record_type, categories=known)
