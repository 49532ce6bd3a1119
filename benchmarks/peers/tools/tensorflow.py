"""Run TensorFlow's three ways to read and parse records, which the suite `feeds` also measures.

Records are written with one Example, which was 15 to 20 times faster than new Feature objects for each row.
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.peers.tools import Pass, Used, Ways, Work
from benchmarks.peers.tools.protobuf import Serializer

USED = (
    Used(
        "read: batches are parsed inside a parallel interleave, or by one thread without a prefetch, "
        "whichever is faster",
        "https://www.tensorflow.org/guide/data_performance",
    ),
    Used(
        "read, as usual: records are read in parallel, batched, and then parsed",
        "https://www.tensorflow.org/api_docs/python/tf/io/parse_example",
    ),
    Used(
        "write: a TFRecordWriter, with the Examples of the loop with protobuf",
        "https://www.tensorflow.org/tutorials/load_data/tfrecord",
    ),
)

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")


class Source(NamedTuple):
    """Name the files to read. ``shuffle`` is the number of records in the shuffle buffer, or 0."""

    files: Sequence[str]
    codec: str | None
    batch_size: int
    spec: dict[str, Any]
    shuffle: int = 0

    def paths(self) -> Any:
        import tensorflow as tf

        paths = tf.data.Dataset.from_tensor_slices(list(self.files))
        return paths.shuffle(len(self.files)) if self.shuffle else paths

    def parsed(self, files: Any, shuffle: int) -> Any:
        import tensorflow as tf

        records = tf.data.TFRecordDataset(files, self.codec, buffer_size=1 << 22)
        batches = (records.shuffle(shuffle) if shuffle else records).batch(self.batch_size)
        return batches.map(lambda batch: tf.io.parse_example(batch, self.spec))


def in_interleave(source: Source) -> Any:
    """Parse batches of two files at a time inside the interleave. Each file has half of the buffer."""
    return (
        source.paths()
        .interleave(
            lambda file: source.parsed(file, source.shuffle // 2), cycle_length=2, num_parallel_calls=2
        )
        .prefetch(2)
    )


def in_one_thread(source: Source) -> Any:
    """Read all files one after the other with one thread, which has the least overhead."""
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    return source.parsed(source.paths(), source.shuffle).with_options(options)


def usual(source: Source) -> Any:
    """Read records in parallel, then batch and then parse the records, as most users do."""
    import tensorflow as tf

    records = tf.data.TFRecordDataset(source.paths(), source.codec, num_parallel_reads=tf.data.AUTOTUNE)
    batches = (records.shuffle(source.shuffle) if source.shuffle else records).batch(source.batch_size)
    parsed = batches.map(lambda batch: tf.io.parse_example(batch, source.spec), tf.data.AUTOTUNE)
    return parsed.prefetch(tf.data.AUTOTUNE)


def _read(work: Work, make: Any) -> Pass:
    import tensorflow as tf

    types = {"int": tf.int64, "float": tf.float32, "byte": tf.string}
    spec: dict[str, Any] = {}
    for name in work.columns:
        kind, values = work.features[name]
        if values < 0:
            spec[name] = tf.io.RaggedFeature(types[kind])
        else:
            spec[name] = tf.io.FixedLenFeature([values] if values else [], types[kind])
    scalar = next(name for name in work.columns if not work.features[name][1])
    dataset = make(Source(work.paths(), work.codec and work.codec.upper(), work.batch_size, spec))
    return lambda _: sum(int(batch[scalar].shape[0]) for batch in dataset)


def count(work: Work) -> Pass:
    """Count records without parsing them."""
    import tensorflow as tf

    files = tf.data.Dataset.from_tensor_slices(work.paths())
    sizes = files.interleave(
        lambda file: tf.data.TFRecordDataset(file, buffer_size=1 << 22).batch(work.batch_size).map(tf.size),
        cycle_length=2,
        num_parallel_calls=2,
    )
    return lambda _: int(sizes.reduce(0, lambda total, size: total + size))


def write(work: Work) -> Pass:
    import tensorflow as tf

    rows = work.python_rows()
    serialize = Serializer(tf.train.Example, work.features, work.row_bytes())
    options = writer_options(work)

    def write_all(path: str) -> int:
        with tf.io.TFRecordWriter(path, options) as writer:
            for row in rows:
                writer.write(serialize(row))
        return len(rows)

    return write_all


def writer_options(work: Work) -> Any:
    """Return the options of a TFRecordWriter. TensorFlow's default level is that of zlib, which is 6."""
    import tensorflow as tf

    level = {} if work.level is None else {"compression_level": work.level}
    return tf.io.TFRecordOptions(compression_type=work.codec and work.codec.upper(), **level)


def _way(make: Any) -> dict[str, Any]:
    return {"read": lambda work: _read(work, make)}


WAYS: Ways = {
    "parsed in the interleave": {**_way(in_interleave), "write": write, "count": count},
    "one thread": _way(in_one_thread),
    "as usual": _way(usual),
}
