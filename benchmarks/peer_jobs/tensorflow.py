"""Run TensorFlow's three ways to read and parse records, which `benchmarks.feeds` also measures."""

import os
from collections.abc import Sequence
from typing import Any

from benchmarks.peer_jobs import Pass, Ways, Work

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")


def in_interleave(files: Sequence[str], codec: str | None, batch_size: int, spec: dict[str, Any]) -> Any:
    """Batch and parse the records inside the interleave, in parallel."""
    import tensorflow as tf

    def batches(file: Any) -> Any:
        return _parsed(file, codec, batch_size, spec)

    found = tf.data.Dataset.from_tensor_slices(list(files))
    return found.interleave(batches, cycle_length=2, num_parallel_calls=2).prefetch(2)


def in_one_thread(files: Sequence[str], codec: str | None, batch_size: int, spec: dict[str, Any]) -> Any:
    """Read all files one after the other with one thread, which has the least overhead."""
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    return _parsed(list(files), codec, batch_size, spec).with_options(options)


def usual(files: Sequence[str], codec: str | None, batch_size: int, spec: dict[str, Any]) -> Any:
    """Read records in parallel, then batch and then parse the records, as most users do."""
    import tensorflow as tf

    records = tf.data.TFRecordDataset(list(files), codec, num_parallel_reads=tf.data.AUTOTUNE)
    batches = records.batch(batch_size)
    parsed = batches.map(lambda batch: tf.io.parse_example(batch, spec), tf.data.AUTOTUNE)
    return parsed.prefetch(tf.data.AUTOTUNE)


def _parsed(files: Any, codec: str | None, batch_size: int, spec: dict[str, Any]) -> Any:
    import tensorflow as tf

    records = tf.data.TFRecordDataset(files, codec, buffer_size=1 << 22)
    return records.batch(batch_size).map(lambda batch: tf.io.parse_example(batch, spec))


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
    dataset = make(work.paths(), work.codec and work.codec.upper(), work.batch_size, spec)
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
    """Write an Example for each row with a TFRecordWriter, as TensorFlow's documentation shows."""
    import tensorflow as tf

    lists = {
        "int": lambda values: tf.train.Feature(int64_list=tf.train.Int64List(value=values)),
        "float": lambda values: tf.train.Feature(float_list=tf.train.FloatList(value=values)),
        "byte": lambda values: tf.train.Feature(bytes_list=tf.train.BytesList(value=values)),
    }
    makers = [(name, lists[kind], bool(values)) for name, (kind, values) in work.features.items()]
    rows = work.python_rows()
    codec = work.codec and work.codec.upper()

    def write_all(path: str) -> int:
        with tf.io.TFRecordWriter(path, codec) as writer:
            for row in rows:
                feature = {
                    name: make(row[name] if is_list else [row[name]]) for name, make, is_list in makers
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
        return len(rows)

    return write_all


def _way(make: Any) -> dict[str, Any]:
    return {"read": lambda work: _read(work, make)}


WAYS: Ways = {
    "parsed in the interleave": {**_way(in_interleave), "write": write, "count": count},
    "one thread": _way(in_one_thread),
    "as usual": _way(usual),
}
