"""All records of a batch, as the kernel encodes them."""

from collections.abc import Iterator

import pyarrow as pa

from dask_tfrecord.codec import Encoder


def encoded_views(
    encoder: Encoder, batch: pa.RecordBatch, buffer_bytes: int = 1 << 20
) -> Iterator[memoryview]:
    """Yield the records of all rows as views of one buffer. A view is valid until the next iteration."""
    row, buffer = 0, bytearray(buffer_bytes)
    encoder.bind(batch)
    while row < batch.num_rows:
        row, size, need = encoder.encode_into(row, buffer)
        if need:
            buffer = bytearray(need)
        else:
            yield memoryview(buffer)[:size]
