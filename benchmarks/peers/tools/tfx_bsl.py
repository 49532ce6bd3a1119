"""Run tfx-bsl, which converts Arrow batches to Examples and back; TensorFlow reads and writes files."""

import os
from typing import Any

import pyarrow as pa

from benchmarks.peers.tools import Pass, Used, Ways, Work
from benchmarks.peers.tools.tensorflow import writer_options

USED = (
    Used(
        "the coders of Arrow batches, with a schema for reads; TensorFlow reads and writes the records",
        "https://github.com/tensorflow/tfx-bsl/blob/master/tfx_bsl/coders/README.md",
    ),
)

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")


def _batches(work: Work) -> Any:
    """Yield batches of serialized records as NumPy arrays of bytes."""
    import tensorflow as tf

    codec = work.codec and work.codec.upper()
    records = tf.data.TFRecordDataset(work.paths(), codec, buffer_size=1 << 22)
    return records.batch(work.batch_size).prefetch(2)


def read(work: Work) -> Pass:
    """Decode with a schema, which names the columns."""
    from tensorflow_metadata.proto.v0 import schema_pb2
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    types = {"int": schema_pb2.INT, "float": schema_pb2.FLOAT, "byte": schema_pb2.BYTES}
    schema = schema_pb2.Schema()
    for name in work.columns:
        schema.feature.add(name=name, type=types[work.features[name][0]])
    decoder = ExamplesToRecordBatchDecoder(schema.SerializeToString())
    batches = _batches(work)
    return lambda _: sum(decoder.DecodeBatch(batch.numpy()).num_rows for batch in batches)


def infer(work: Work) -> Pass:
    """Decode without a schema, so that each batch has the features of its own records."""
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    batches = _batches(work)

    def look(_: str) -> int:
        decoder, names, rows = ExamplesToRecordBatchDecoder(), set(), 0
        for batch in batches:
            found = decoder.DecodeBatch(batch.numpy())
            names.update(found.schema.names)
            rows += found.num_rows
        return rows if names == set(work.features) else 0

    return look


def write(work: Work) -> Pass:
    """Encode batches of list columns, because the encoder accepts only lists. They are created beforehand."""
    import tensorflow as tf
    from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

    encoder = RecordBatchToExamplesEncoder()
    table = work.source()
    columns = [_as_lists(table[name].combine_chunks(), kind) for name, (kind, _) in work.features.items()]
    batches = pa.table(columns, names=list(work.features)).to_batches(work.batch_size)
    options = writer_options(work)

    def write_all(path: str) -> int:
        rows = 0
        with tf.io.TFRecordWriter(path, options) as writer:
            for batch in batches:
                for record in encoder.encode(batch):
                    writer.write(record)
                    rows += 1
        return rows

    return write_all


def _as_lists(column: Any, kind: str) -> Any:
    if pa.types.is_list(column.type):
        return column.cast(pa.large_list(column.type.value_type))
    values = column.cast("large_binary") if kind == "byte" else column
    offsets = pa.array(range(len(column) + 1), pa.int64())
    return pa.LargeListArray.from_arrays(offsets, values)


WAYS: Ways = {"": {"read": read, "infer": infer, "write": write}}
