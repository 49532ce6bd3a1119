"""Read the files of a dataset with TensorFlow's own reader and parser."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import tensorflow as tf

from dask_tfrecord.codec import HEADER_BYTES
from dask_tfrecord.codec.codecs import Compression, detect
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.errors import KERNEL, TFRecordError
from dask_tfrecord.feed.feature_specs import Tensors, spec_of, tensor_type, unlike_tensorflow
from dask_tfrecord.feed.numpy_columns import Ragged, numpy_columns
from dask_tfrecord.feed.random_streams import derived_seed
from dask_tfrecord.files.storage.change_check import check_file, check_unchanged
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.model import Schema

# The names that TensorFlow uses for the codecs that it can read.
CODECS = {None: "", "gzip": "GZIP", "zlib": "ZLIB"}

# TensorFlow combines each seed of a pipeline with a seed of the whole program.
_GLOBAL_SEED = 87_654_321

# The functions with which TensorFlow pipelines check that files have not changed.
checks: WeakSet[Callable[[Any], bytes]] = WeakSet()

# The message with which TensorFlow raises if it read another number of records than the snapshot has.
_MISCOUNTED = "FileChangedError: the file has not as many records as when the dataset was listed:"


def read_files(
    dataset: ReadPlan,
    schema: Schema,
    batch_size: int,
    shuffle: int | None,
    shuffle_buffer: int,
    shard: tuple[int, int],
    drop_remainder: bool,
    fill_nulls: Mapping[str, Any],
) -> "tf.data.Dataset":
    """Read a dataset with TensorFlow's own reader.

    Batches are formed and parsed in parallel, inside the interleave.
    """
    with _without_global_seed():
        return _read_files(
            dataset, schema, batch_size, shuffle, shuffle_buffer, shard, drop_remainder, fill_nulls
        )


@contextmanager
def _without_global_seed() -> Iterator[None]:
    """Build a pipeline whose random numbers do not depend on `tf.random.set_seed`.

    The private attribute was checked with TensorFlow 2.21. A call of `set_seed` would also begin the random
    numbers of the program again.
    """
    from tensorflow.python.eager import context

    found = context.context()
    before, found._seed = found._seed, _GLOBAL_SEED
    try:
        yield
    finally:
        found._seed = before


def _read_files(
    dataset: ReadPlan,
    schema: Schema,
    batch_size: int,
    shuffle: int | None,
    shuffle_buffer: int,
    shard: tuple[int, int],
    drop_remainder: bool,
    fill_nulls: Mapping[str, Any],
) -> "tf.data.Dataset":
    if problem := unlike_tensorflow(dataset):
        raise TFRecordError(f"TensorFlow's own reader cannot {problem}", KERNEL)
    check_unchanged(dataset.store, dataset.pruned_files)
    spec = spec_of(dataset, schema, fill_nulls, "ragged")
    splits = [split for splits in dataset.partitions for split in splits]
    if shard[1] > max(1, len(splits)):
        problem = f"{shard[1]:,} shards of {len(splits):,} files: engine='native' shares whole files"
        raise TFRecordError(problem, "take fewer shards", KERNEL)
    numbers = range(*slice(shard[0], None, shard[1]).indices(len(splits)))
    counts = [splits[number].records for number in numbers]
    keys = {
        item.name: tf.gather(_partition_tensor(dataset, item, fill_nulls), np.array(numbers, np.int64))
        for item in schema.fields
        if item.name in dataset.partition_values
    }
    paths = [_current_path(dataset, splits[number].file.path) for number in numbers]
    files = {
        "number": np.array(numbers, np.int64),
        "path": tf.constant([dataset.store.public(path) for path in paths], tf.string),
        "codec": tf.constant([_codec_name(dataset, path) for path in paths], tf.string),
        "rows": np.array([-1 if count is None else count for count in counts], np.int64),
        "keys": keys,
    }
    unchanged = _unchanged_check(dataset, [split.file for split in splits])
    found = tf.data.Dataset.from_tensor_slices(files)
    if shuffle is not None:
        of_files, of_records = (derived_seed(use, shuffle, *shard) for use in ("files", "records"))
        found = found.shuffle(max(1, len(numbers)), seed=of_files, reshuffle_each_iteration=True)
        # The records of each file are shuffled with another seed in each epoch.
        seeds = tf.data.Dataset.random(of_records, rerandomize_each_iteration=True)
        found = tf.data.Dataset.zip((found, seeds)).map(lambda file, seed: {**file, "seed": seed})

    def read(file: Any) -> Any:
        records = tf.data.TFRecordDataset(file["path"], file["codec"], buffer_size=1 << 22)
        if shuffle is not None:
            records = records.shuffle(shuffle_buffer, file["seed"], reshuffle_each_iteration=False)

        def parse(number: Any, batch: Any) -> Tensors:
            rows, listed = tf.shape(batch, tf.int64)[0], file["rows"]
            count = number * batch_size + rows
            is_expected = (
                (listed < 0) | tf.equal(count, listed) | (tf.equal(rows, batch_size) & (count < listed))
            )
            with tf.control_dependencies([tf.debugging.Assert(is_expected, [_MISCOUNTED, file["path"]])]):
                batch = tf.identity(batch)
            constant = {name: tf.repeat(value[None], rows, axis=0) for name, value in file["keys"].items()}
            every = {**spec.parse(batch), **constant}
            return {name: every[name] for name in schema.names}

        check = unchanged(file["number"]).batch(batch_size)
        batches = check.concatenate(records.batch(batch_size)).concatenate(check)
        if None not in counts:
            batches = batches.apply(tf.data.experimental.assert_cardinality(-(-file["rows"] // batch_size)))
        return batches.enumerate().map(parse)

    cycle = 1 if shuffle is None else 2
    found = found.interleave(read, cycle_length=cycle, num_parallel_calls=cycle, deterministic=True)
    if len(numbers) > 1 or drop_remainder:
        found = found.rebatch(batch_size, drop_remainder=drop_remainder)
    if None not in counts:
        rows = sum(filter(None, counts))
        nbatches = rows // batch_size if drop_remainder else -(-rows // batch_size)
        found = found.apply(tf.data.experimental.assert_cardinality(nbatches))
    return found


def _unchanged_check(dataset: ReadPlan, files: Sequence[FileInfo]) -> Callable[[Any], "tf.data.Dataset"]:
    """Return a function that makes an empty dataset that raises if a file changed after it was listed."""

    def look(number: Any) -> bytes:
        try:
            check_file(dataset.store, files[int(number)])
        except Exception as error:  # `ignore_errors` below would hide an error that is raised here
            return f"{type(error).__name__}: {error}".encode()
        return b""

    def no_element(message: Any) -> Any:
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(message, ""), [message])]):
            return tf.constant(False)

    def check(number: Any) -> "tf.data.Dataset":
        # With a stateless function, TensorFlow can still save the state of an iterator. The workers of the
        # tf.data service cannot call Python, so the numbers of records are their only check.
        told = tf.data.Dataset.from_tensors(number).map(
            lambda one: tf.ensure_shape(tf.numpy_function(look, [one], tf.string, stateful=False), [])
        )
        return told.ignore_errors().filter(no_element)

    checks.add(look)
    return check


def codec_of(dataset: ReadPlan, path: str) -> Compression | None:
    """Return the codec of a file, found from its content."""

    def look(at: str) -> Compression | None:
        with dataset.store.fs.open(at, "rb") as file:
            return detect(file.read(HEADER_BYTES))

    return dataset.store.follow(path, look)


def _current_path(dataset: ReadPlan, path: str) -> str:
    """Return the current path of a file, which a write may have moved since it was listed."""

    def look(at: str) -> str:
        dataset.store.fs.info(at)
        return at

    return dataset.store.follow(path, look)


def _codec_name(dataset: ReadPlan, path: str) -> str:
    """Return the name that TensorFlow uses for the codec of a file."""
    codec = codec_of(dataset, path)
    if codec not in CODECS:
        problem = f"TensorFlow cannot decompress {codec}"
        raise TFRecordError(problem, "write the dataset with gzip", KERNEL, path=dataset.store.public(path))
    return CODECS[codec]


def _partition_tensor(dataset: ReadPlan, item: Field, fill_nulls: Mapping[str, Any]) -> Any:
    """Return a tensor that holds the value of a partition column for each file."""
    values = item.load(dataset.partition_values[item.name])
    column = numpy_columns(pa.record_batch({item.name: values}), fill_nulls)[item.name]
    assert not isinstance(column, Ragged)  # the values of partition columns are scalars
    return tf.constant(column.tolist() if column.dtype == object else column, tensor_type(item))
