"""Infer the record type of a write from the datasets that the written collection reads."""

from dataclasses import replace

import dask.dataframe as dd
import pyarrow as pa

from dask_tfrecord.codec.columns import RecordType
from dask_tfrecord.dataset.read.inferred_schema import PAYLOAD
from dask_tfrecord.errors import warn_caller
from dask_tfrecord.expr.string_conversion import read_schemas, was_computed
from dask_tfrecord.schema.model import Schema


def nested_record_type(ddf: dd.DataFrame) -> RecordType:
    """Return "sequence_example" if a column with the same name was read as lists of lists, and otherwise
    "example".
    """
    schemas = read_schemas(ddf)
    nested = {item.name for schema in schemas for item in schema.fields if item.depth > 1}
    return "example" if nested.isdisjoint(ddf.columns) else "sequence_example"


def with_bytes_records(ddf: dd.DataFrame, records: Schema) -> Schema:
    """Set the record type "bytes" if the only column holds records that were read as bytes.

    If records that were read as bytes become features of other records, warn.
    """
    schemas = read_schemas(ddf)
    is_single_binary = len(records.fields) == 1 and records.fields[0].type in (pa.binary(), pa.large_binary())
    if is_single_binary and schemas and all(schema.record_type == "bytes" for schema in schemas):
        return replace(records, record_type="bytes")
    payloads = {name for schema in schemas if schema.record_type == "bytes" for name in schema.names}
    if is_single_binary and not schemas and was_computed(ddf):
        payloads = {PAYLOAD.name}
    for item in records.fields:
        if item.name in payloads and item.kind == "bytes":
            warn_caller(
                f"each value of {item.name!r} was read as a whole record, but is written as a feature of an "
                f'Example; pass record_type="bytes" and ddf[[{item.name!r}]] to write whole records, or '
                'record_type="example" to write features.',
            )
    return records
