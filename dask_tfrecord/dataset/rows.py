"""Rows as values of one binary column, which can be moved about whole, and back. Knows no Dask and no files.

A row is a framed record of all its columns, so that lists travel where only scalars can. With it goes where
it belongs: ``target``, the same for all rows that shall be together, and ``order``, its place among these.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_tfrecord.casts import load
from dask_tfrecord.codec import Decoder, Encoder, scan
from dask_tfrecord.dataset import hive
from dask_tfrecord.dataset.partitioning import group
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema import Field, Lossy, Schema

Numbers = npt.NDArray[np.uint64]

# No partition has more rows, so that each row has a number of its own.
_PARTITION_BITS = 40

# Rows that are converted, and bytes that are decoded, at a time.
_CHUNK_ROWS = 1 << 16
_CHUNK_BYTES = 1 << 22


def number(
    table: pa.Table, index: int, *, together: Sequence[str], seed: int | None
) -> tuple[Numbers, Numbers]:
    """Target and order of the rows of a partition.

    Parameters
    ----------
    table : pyarrow.Table
        The rows.
    index : int
        The number of the partition.
    together : sequence of str
        The columns in which rows agree that get the same target; without any, all targets differ.
    seed : int, optional
        Makes the order another, which looks random; it is the one of the collection without.
    """
    order = np.arange(table.num_rows, dtype=np.uint64) + np.uint64(index << _PARTITION_BITS)
    if seed is not None:
        order = _mixed(order ^ _mixed(np.array([seed & (1 << 64) - 1], np.uint64)))
    return (_targets(table, together) if together and table.num_rows else order), order


def pack(table: pa.Table, schema: Schema, partition_on: Sequence[str], *, lossy: Lossy) -> pa.ChunkedArray:
    """The rows as records.

    Raises
    ------
    SchemaError
        For a value that cannot be stored, naming the row of the table and the column.
    """
    plan = _carrier(schema, partition_on)
    encoder = Encoder(plan.columns, plan.record_type)
    chunks: list[pa.Array] = []
    first = 0
    for batch in table.to_batches(max_chunksize=_CHUNK_ROWS):
        pairs = zip(batch.columns, plan.fields, strict=True)
        exact = [_freeze(array, item.type) if item.name in partition_on else array for array, item in pairs]
        try:
            storage = plan.to_storage(pa.RecordBatch.from_arrays(exact, schema=plan.arrow), lossy=lossy)
            chunks += [_split(bytes(block)) for block in encoder.encode(storage)]
        except SchemaError as error:
            error.record = first + (error.record or 0)
            raise
        first += batch.num_rows
    return pa.chunked_array(chunks, pa.large_binary())


def unpack(records: pa.ChunkedArray, schema: Schema, partition_on: Sequence[str]) -> pa.Table:
    """The table of the rows that `pack` made records of."""
    plan = _carrier(schema, partition_on)
    decoder = Decoder(plan.columns, plan.record_type)
    batches = []
    for chunk in records.chunks:
        data, window = _content(chunk), _CHUNK_BYTES
        while data:
            decoded = decoder.decode(data[:window], final=False)
            if decoded.damage:
                raise decoded.damage.error(plan.columns, 0, 0)
            window = _CHUNK_BYTES if decoded.consumed else 2 * window
            data = data[decoded.consumed :]
            pairs = zip(plan.from_storage(decoded.batch).columns, schema.fields, strict=True)
            thawed = [_thaw(array, item) if item.name in partition_on else array for array, item in pairs]
            batches.append(pa.RecordBatch.from_arrays(thawed, schema=schema.arrow))
    return pa.Table.from_batches(batches, schema.arrow)


def _mixed(numbers: Numbers) -> Numbers:
    """Other numbers, no two of them equal if no two were: the finalizer of SplitMix64."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _targets(table: pa.Table, names: Sequence[str]) -> Numbers:
    keys, order, starts = group(table, names)
    digests = b"".join(
        hashlib.blake2b(name.encode(), digest_size=8).digest() for name in hive.directories(keys)
    )
    sorted_targets = np.repeat(np.frombuffer(digests, np.dtype("<u8")).astype(np.uint64), np.diff(starts))
    if order is None:
        return sorted_targets
    targets = np.empty_like(sorted_targets)
    targets[order] = sorted_targets
    return targets


def _carrier(schema: Schema, partition_on: Sequence[str]) -> Schema:
    """How the rows are stored: partition values exactly, for they need not fit a record."""
    fields = tuple(
        Field(item.name, _exact(item.type)) if item.name in partition_on else item for item in schema.fields
    )
    nested = any(item.depth > 1 for item in fields)
    return Schema(fields, "sequence_example" if nested else "example")


def _exact(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(type_):
        return _exact(type_.value_type)
    if pa.types.is_decimal(type_):
        return pa.string()
    return pa.int64() if pa.types.is_float64(type_) or pa.types.is_uint64(type_) else type_


def _freeze(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        return _freeze(array.dictionary_decode(), type_)
    if array.type == type_:
        return array
    return array.cast(type_) if pa.types.is_decimal(array.type) else array.view(type_)


def _thaw(array: pa.Array, item: Field) -> pa.Array:
    """The inverse of `_freeze`."""
    type_ = item.type.value_type if pa.types.is_dictionary(item.type) else item.type
    if array.type != type_:
        array = array.cast(type_) if pa.types.is_decimal(type_) else array.view(type_)
    return load(array, item.type, item.categories)


def _split(data: bytes) -> pa.Array:
    """The framed records that follow each other in ``data``, each a value; nothing is copied."""
    scanned = scan(data, final=True, offsets=True)
    starts = scanned.offsets.to_numpy() if scanned.offsets is not None else []
    offsets = np.concatenate([starts, [len(data)]]).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), scanned.records, buffers)


def _content(records: pa.Array) -> memoryview:
    """The values one after the other, as they lie in memory."""
    _, offsets, data = records.buffers()
    bounds = np.frombuffer(offsets, np.int64)[records.offset : records.offset + len(records) + 1]
    return memoryview(data)[bounds[0] : bounds[-1]] if len(records) else memoryview(b"")
