"""Read a dataset as a `tf.data.Dataset`, and provide feature specs for TensorFlow's own parser.

With ``engine="native"``, TensorFlow's own reader and parser read the files.
"""

import atexit
import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Literal, SupportsIndex, Unpack, get_args
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import tensorflow as tf

from dask_tfrecord import arguments
from dask_tfrecord.arguments import LastBatch, ReadKeywords, Shuffle
from dask_tfrecord.codec import HEADER_BYTES
from dask_tfrecord.codec.codecs import Compression, detect
from dask_tfrecord.collection.opened_path import open_columns
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.errors import KERNEL, SchemaError, TFRecordError, check_instance
from dask_tfrecord.feed.batch_sources import check_label, checked_names
from dask_tfrecord.feed.batches import Batches
from dask_tfrecord.feed.epoch_order import (
    Plan,
    check_buffer,
    checked_shard,
    checked_shuffle,
    derived_seed,
    plan_batches,
)
from dask_tfrecord.feed.feature_specs import (
    FeatureSpec,
    Lists,
    Tensors,
    check_padding,
    feature_spec,
    spec_of,
    tensor_type,
    unlike_tensorflow,
)
from dask_tfrecord.feed.numpy_columns import Array, Ragged, checked_fill_nulls, column_to_numpy, numpy_columns
from dask_tfrecord.feed.resume_position import State, epoch_of
from dask_tfrecord.files.storage.file_list import FileInfo
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.files.window import check_file
from dask_tfrecord.public_functions import calling, public_function
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import innermost, row_shape, value_type

# Maps each codec that TensorFlow can read to TensorFlow's name for the codec.
CODECS = {None: "", "gzip": "GZIP", "zlib": "ZLIB"}

# TensorFlow combines each seed of a pipeline with a global seed of the program.
_GLOBAL_SEED = 87_654_321

# The functions with which TensorFlow pipelines check that files have not changed.
checks: WeakSet[Callable[[Any], bytes]] = WeakSet()

# TensorFlow raises an error with this message if the number of records in a file differs from the number in
# the snapshot.
_MISCOUNTED = "FileChangedError: the file has not as many records as when the dataset was listed:"


@contextmanager
def _without_global_seed() -> Iterator[None]:
    """Make pipelines that are built in the ``with`` block independent of `tf.random.set_seed`.

    The function replaces the private attribute `_seed`, because calling `set_seed` would restart the random
    numbers of the whole program. This was checked with TensorFlow 2.21.
    """
    from tensorflow.python.eager import context

    found = context.context()
    before, found._seed = found._seed, _GLOBAL_SEED
    try:
        yield
    finally:
        found._seed = before


@_without_global_seed()
def read_files(
    dataset: ReadPlan,
    schema: Schema,
    batch_size: int,
    seed: int | None,
    shuffle_buffer: int,
    shard: tuple[int, int],
    drop_remainder: bool,
    fill_nulls: Mapping[str, Any],
) -> "tf.data.Dataset":
    """Read a dataset with TensorFlow's own reader. `interleave` parses batches in parallel."""
    if problem := unlike_tensorflow(dataset, schema):
        raise TFRecordError(f"TensorFlow's own reader cannot {problem}", KERNEL)
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
    looks = [_look(dataset, splits[number].file.path) for number in numbers]
    paths = [dataset.store.public(path) for path, _ in looks]
    for path, (_, codec) in zip(paths, looks, strict=True):
        if codec not in CODECS:
            problem = f"TensorFlow cannot decompress {codec}"
            raise TFRecordError(problem, "write the dataset with gzip", KERNEL, path=path)
    files = {
        "number": np.array(numbers, np.int64),
        "path": tf.constant(paths, tf.string),
        "codec": tf.constant([CODECS[codec] for _, codec in looks], tf.string),
        "rows": np.array([-1 if count is None else count for count in counts], np.int64),
        "keys": keys,
    }
    unchanged = _unchanged_check(dataset, [split.file for split in splits])
    found = tf.data.Dataset.from_tensor_slices(files)
    if seed is not None:
        of_files, of_records = (derived_seed(use, seed, *shard) for use in ("files", "records"))
        found = found.shuffle(max(1, len(numbers)), seed=of_files, reshuffle_each_iteration=True)
        # The records of each file are shuffled with a different seed in each epoch.
        seeds = tf.data.Dataset.random(of_records, rerandomize_each_iteration=True)
        found = tf.data.Dataset.zip((found, seeds)).map(lambda file, seed: {**file, "seed": seed})

    def read(file: Any) -> Any:
        records = tf.data.TFRecordDataset(file["path"], file["codec"], buffer_size=1 << 22)
        if seed is not None:
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

    cycle = 1 if seed is None else 2
    found = found.interleave(read, cycle_length=cycle, num_parallel_calls=cycle, deterministic=True)
    if len(numbers) > 1 or drop_remainder:
        found = found.rebatch(batch_size, drop_remainder=drop_remainder)
    if None not in counts:
        rows = sum(filter(None, counts))
        nbatches = rows // batch_size if drop_remainder else -(-rows // batch_size)
        found = found.apply(tf.data.experimental.assert_cardinality(nbatches))
    return found


def _unchanged_check(dataset: ReadPlan, files: Sequence[FileInfo]) -> Callable[[Any], "tf.data.Dataset"]:
    """Return a function that creates an empty dataset for a file.

    Iterating over the dataset raises if the file has changed.
    """

    def look(number: Any) -> bytes:
        try:
            check_file(dataset.store, files[int(number)])
        # Return the error as text, because `ignore_errors` would hide a raised error.
        except Exception as error:
            return f"{type(error).__name__}: {error}".encode()
        return b""

    def no_element(message: Any) -> Any:
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(message, ""), [message])]):
            return tf.constant(False)

    def check(number: Any) -> "tf.data.Dataset":
        # Declare the function as stateless, so that TensorFlow can save the state of an iterator. The workers
        # of the tf.data service cannot call Python, and check only the number of records.
        told = tf.data.Dataset.from_tensors(number).map(
            lambda one: tf.ensure_shape(tf.numpy_function(look, [one], tf.string, stateful=False), [])
        )
        return told.ignore_errors().filter(no_element)

    checks.add(look)
    return check


def _look(dataset: ReadPlan, path: str) -> tuple[str, Compression | None]:
    """Return the current path of a file, which a write may have moved, and the codec of its content."""

    def look(at: str) -> tuple[str, Compression | None]:
        with dataset.store.fs.open(at, "rb") as file:
            return at, detect(file.read(HEADER_BYTES))

    return dataset.store.follow(path, look)


def _partition_tensor(dataset: ReadPlan, item: Field, fill_nulls: Mapping[str, Any]) -> Any:
    values = item.load(dataset.partition_values[item.name])
    column = numpy_columns(pa.record_batch({item.name: values}), fill_nulls)[item.name]
    assert not isinstance(column, Ragged)  # the values of partition columns are scalars
    return tf.constant(column.tolist() if column.dtype == object else column, tensor_type(item))


Engine = Literal["kernel", "native"]

# The smallest average record size in bytes for which "native" is the default engine. The engine "kernel"
# decodes records to an Arrow batch, and then copies the bytes of values twice more. After each batch, the C
# library returns the memory of the two additional copies to the system.
_LARGE_RECORD_BYTES = 1 << 18

# Allocating and freeing a block of this many bytes once makes glibc keep more freed memory instead of
# returning it to the system (see mallopt(3)). For images of 100 KB, keeping freed memory saves a third of the
# CPU time.
_FREED_BYTES = 24 << 20

# The `Batches` objects from which running TensorFlow pipelines read.
_open: WeakSet[Batches] = WeakSet()


@public_function
def tensorflow_dataset(
    path: PathLike | Sequence[PathLike],
    batch_size: int,
    columns: str | Sequence[str] | None = None,
    label: str | None = None,
    *,
    engine: Engine | None = None,
    shuffle: bool | Shuffle | None = None,
    seed: int = 0,
    shuffle_buffer: int = 65_536,
    shard: tuple[int, int] = (0, 1),
    batch_mode: LastBatch = "keep",
    fill_nulls: Mapping[str, Any] | None = None,
    lists: Lists = "ragged",
    epoch: int | None = None,
    start: State | Sequence[State] | None = None,
    state_column: str | None = None,
    prefetch: int = 2,
    cache: PathLike | None = None,
    cache_bytes: SupportsIndex | str | None = None,
    **read: Unpack[ReadKeywords],
) -> "tf.data.Dataset":
    """Read a dataset as a `tf.data.Dataset` of batches.

    Parameters
    ----------
    path : str, path-like or list of these
        A path that `read_tfrecord` accepts.
    batch_size : int
        The number of rows in each batch.
    columns : str or list of str, optional
        The columns of an element, besides the label. By default, all columns are read.
    label : str, optional
        The column that becomes the second part of an element, ``(features, label)``. Without a label, an
        element is a dict of tensors.
    engine : "kernel" or "native", optional
        The engine "kernel" decodes records with this library. For numbers, "kernel" takes less CPU time than
        "native". The engine "native" lets TensorFlow read and parse the files, so the dataset also runs in
        the tf.data service and on TPU hosts. By default, the engine is "native" for local files with a binary
        column and an average record of at least 256 KiB. This requires that the row counts are known, that
        TensorFlow can read the records, and that no argument requires "kernel". In all other cases, the
        default engine is "kernel".
    shuffle : bool, "buffer" or "blocks", optional
        How the rows are shuffled, as in `iter_batches`. Each epoch has a different row order. By default, the
        rows are not shuffled. "blocks" requires the engine "kernel".
    seed : int, default 0
        The seed of the random row order.
    shuffle_buffer : int, default 65536
        The number of rows that are shuffled together.
    shard : tuple of int, default (0, 1)
        The index of the shard to return, counted from 0, and the number of shards. The engine "kernel"
        divides the rows among the shards, and "native" divides the files.
    batch_mode : "keep" or "drop", default "keep"
        What to do if the last batch has fewer rows than ``batch_size``. "keep" returns the incomplete last
        batch, and "drop" omits that batch.
    fill_nulls : mapping of str to value, optional
        The value that replaces the nulls of each column. By default, nulls become NaN in floating-point
        columns, an empty string in string and binary columns, and an empty list in list columns. With
        ``lists="padded"``, the value for a list column is the padding.
    lists : "ragged", "padded" or "sparse", default "ragged"
        The kind of tensor to which a list column is converted. "padded" extends each list with the value in
        ``fill_nulls``, or with 0 or empty strings, to the length of the longest list of the batch.
    epoch : int, optional
        The epoch of the first iteration. Each later iteration reads the next epoch. By default, the first
        iteration reads the epoch of ``start``, or epoch 0 without ``start``. The engine "native" has no
        numbered epochs.
    start : dict or list of dict, optional
        The state from which the first iteration continues, or a list of the states of all shards, as in
        `iter_batches`. Later iterations cover whole epochs. ``start`` requires the engine "kernel".
    state_column : str, optional
        The name of an additional feature: a scalar string tensor that contains the state after the batch as
        JSON. To resume, pass ``start=json.loads(state)``, where ``state`` is the string from the last batch
        that was used. Batches that ``prefetch`` has prepared do not change the state. ``state_column``
        requires the engine "kernel".
    prefetch : int, default 2
        The number of batches that are prepared ahead.
    cache, cache_bytes
        A directory on a local disk that keeps blocks of remote files, and its limit, as in `iter_batches`.
        ``cache`` requires the engine "kernel".
    **read
        Keywords of `read_tfrecord` that control what is read, such as ``schema``, ``filters`` and
        ``version``. The engine "native" reads with TensorFlow's filesystems, which do not accept
        ``storage_options``. The engine "native" raises if ``filters`` leave out some rows of a file, or if
        ``on_corrupt`` skips damage.

    Returns
    -------
    tf.data.Dataset
        A dataset whose elements are batches. The cardinality of the dataset is known, unless the engine
        "native" reads files without a snapshot, or ``start`` is passed. The tensors have the types of the
        columns: bool, small integers, float64 and so on. Columns of dates, times and durations become
        integers in the unit of the column.

    Raises
    ------
    SchemaError
        If no tensor can represent a column, or if a column of integers may have nulls and ``fill_nulls`` has
        no value for the column. With the engine "kernel", a null raises only while the dataset is iterated.
    TFRecordError
        If ``engine="native"`` is passed for files that TensorFlow cannot read, or with ``epoch``, ``start``,
        ``state_column``, ``cache`` or ``shuffle="blocks"``.
    tf.errors.OpError
        While the dataset is iterated, if a file was changed or removed after the call. The engine "native"
        checks each file before and after it reads the rows. In the workers of the tf.data service, "native"
        can only compare record counts, and only if the dataset has a snapshot.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> from dask_tfrecord.feed.tensorflow import tensorflow_dataset
    >>> ddf = dd.from_dict({"x": [1, 2, 3], "y": [0.5, 0.25, 0.0]}, npartitions=1)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "pairs", lossy="allow")
    >>> for features, label in tensorflow_dataset("pairs", 2, label="y"):
    ...     print(features["x"].numpy(), label.numpy())
    [1 2] [0.5  0.25]
    [3] [0.]
    """
    arguments.choice("engine", engine, (None, *get_args(Engine)))
    arguments.choice("lists", lists, get_args(Lists))
    arguments.choice("batch_mode", batch_mode, get_args(LastBatch))
    arguments.number("batch_size", batch_size)
    prefetch = arguments.number("prefetch", prefetch, -1)  # -1 is tf.data.AUTOTUNE
    kind = checked_shuffle(shuffle, seed)
    arguments.count("shuffle_buffer", shuffle_buffer)
    check_buffer(kind, shuffle_buffer)
    arguments.count("epoch", epoch, 0)
    arguments.block_cache(cache, cache_bytes)
    shard = checked_shard(shard)
    names = checked_names(columns, label)
    dataset, schema = open_columns(path, names, None, read)
    if not schema.fields:
        raise SchemaError("no column is read, and an element has at least one", "give one in schema=")
    for item in schema.fields:
        tensor_type(item)
    check_label(label, schema)
    fill_nulls = checked_fill_nulls(fill_nulls, schema.names)
    check_padding(schema, fill_nulls, lists, most=2)
    padding = {item.name: _padding(item, fill_nulls) for item in schema.fields}
    if state_column is not None:
        check_instance("state_column", state_column, str)
    if state_column in schema.names:
        raise SchemaError("state_column= names a column of the dataset", feature=state_column)
    own_keywords = (epoch, start, state_column, cache)
    is_ours = kind == "blocks" or any(value is not None for value in own_keywords)
    if engine == "native" and is_ours:
        problem = "epoch=, start=, state_column=, cache= and shuffle='blocks' need engine='kernel'"
        raise TFRecordError(problem, KERNEL)
    chosen = engine or ("kernel" if is_ours else _best_engine(dataset, schema))
    if chosen == "native":
        order = None if kind is None else seed
        found = read_files(
            dataset, schema, batch_size, order, shuffle_buffer, shard, batch_mode == "drop", fill_nulls
        )
    else:
        plan = plan_batches(
            path,
            batch_size,
            surface=tensorflow_dataset,
            columns=names,
            batch_mode=batch_mode,
            shuffle=shuffle,
            seed=seed,
            shuffle_buffer=shuffle_buffer,
            cache=cache,
            cache_bytes=cache_bytes,
            **read,
        )
        found = _ours(plan, shard, fill_nulls, epoch, start, state_column)
    # Convert only complete batches: the lists of a batch may come from several files, but need one shape.
    if lists != "ragged":
        found = found.map(
            lambda row: {name: _converted(tensor, lists, padding.get(name)) for name, tensor in row.items()}
        )
    if label is not None:
        found = found.map(lambda row: ({name: row[name] for name in row if name != label}, row[label]))
    return found.prefetch(prefetch)


def _best_engine(dataset: ReadPlan, schema: Schema) -> Engine:
    """Choose "native" for large binary records that TensorFlow can read, and otherwise "kernel"."""
    counts = dataset.counts.to_pylist()
    sizes = [split.file.size for splits in dataset.partitions for split in splits]
    if schema.record_type == "bytes" or None in counts or None in sizes or dataset.store.is_remote:
        return "kernel"
    if unlike_tensorflow(dataset, schema):
        return "kernel"
    rows = sum(filter(None, counts))
    if not rows or sum(filter(None, sizes)) / rows < _LARGE_RECORD_BYTES:
        return "kernel"
    is_binary = any(item.kind == "bytes" and not item.depth for item in schema.fields)
    codecs = (_look(dataset, splits[0].file.path)[1] for splits in dataset.partitions if splits)
    return "native" if is_binary and all(codec in CODECS for codec in codecs) else "kernel"


def _ours(
    plan: Plan,
    shard: tuple[int, int],
    fill_nulls: Mapping[str, Any],
    epoch: int | None,
    start: State | Sequence[State] | None,
    state_column: str | None,
) -> "tf.data.Dataset":
    first = epoch_of(start) if epoch is None else epoch
    # This call raises an error if `start` is the state of another dataset.
    batches = len(Batches(plan, first, shard, start=start))
    epochs, starts = count(first), iter([start])
    schema = plan.source.schema

    def generate() -> Iterator[tuple[Tensors, Tensors, Tensors]]:
        position = next(starts, None)
        with calling(tensorflow_dataset), Batches(plan, next(epochs), shard, start=position) as batches:
            _open.add(batches)
            for table in iter(batches.next_table, None):
                alone = numpy_columns(table.select(singles), fill_nulls)
                yield (
                    {name: _tensor(column, is_eager) for name, column in alone.items()},
                    {dtype: _stacked(table, names, dtype, fill_nulls) for dtype, names in stacks.items()},
                    {name: json.dumps(batches.state) for name in states},
                )
            _open.discard(batches)

    def split(alone: Tensors, stacked: Tensors, state: Tensors) -> Tensors:
        found = dict(alone)
        for dtype, names in stacks.items():
            found |= zip(names, tf.unstack(stacked[dtype], num=len(names)), strict=True)
        return {name: found[name] for name in schema.names} | state

    signature = {item.name: _signature(item) for item in schema.fields}
    is_eager = not all(isinstance(spec, tf.TensorSpec) for spec in signature.values())
    stacks = _stacks(signature)
    singles = [name for name in schema.names if not any(name in names for names in stacks.values())]
    stacked = {dtype: tf.TensorSpec([len(names), None], dtype) for dtype, names in stacks.items()}
    if any(tensor_type(item) == tf.string for item in schema.fields):
        bytes(_FREED_BYTES)
    states = {name: tf.TensorSpec([], tf.string) for name in [state_column] if name is not None}
    found = tf.data.Dataset.from_generator(
        generate, output_signature=({name: signature[name] for name in singles}, stacked, states)
    ).map(split)
    # An iteration that continues an epoch is shorter than the following iterations.
    return found if start is not None else found.apply(tf.data.experimental.assert_cardinality(batches))


@atexit.register
def _drop_iterators() -> None:
    """Clear the TensorFlow iterators that a program has not read to the end.

    Otherwise, the interpreter would delete the iterators at exit, when no thread can run Python any more.
    Deleting an iterator at exit would wait forever for the TensorFlow thread that reads batches or checks a
    file.
    """
    if _open or checks:
        for one in gc.get_objects():
            if issubclass(type(one), tf.data.Iterator):
                vars(one).clear()


def _stacks(signature: Mapping[str, Any]) -> dict[str, list[str]]:
    """Group the names of numeric columns by type, except for types that only one column has.

    `tf.data` spends 30 microseconds on each tensor, so the columns of one type are passed as one tensor.
    """
    found: dict[str, list[str]] = {}
    for name, spec in signature.items():
        if isinstance(spec, tf.TensorSpec) and spec.dtype != tf.string and spec.shape.rank == 1:
            found.setdefault(spec.dtype.name, []).append(name)
    return {dtype: names for dtype, names in found.items() if len(names) > 1}


def _stacked(table: pa.Table, names: Sequence[str], dtype: str, fill_nulls: Mapping[str, Any]) -> Array:
    """Copy several columns of one type into the rows of one array."""
    # TensorFlow copies an array unless the array's memory is aligned like Arrow's buffers.
    buffer = pa.allocate_buffer(len(names) * table.num_rows * tf.as_dtype(dtype).size)
    found = np.frombuffer(buffer, tf.as_dtype(dtype).as_numpy_dtype).reshape(len(names), table.num_rows)
    for row, name in zip(found, names, strict=True):
        at = 0
        for chunk in table[name].chunks:
            row[at : at + len(chunk)] = column_to_numpy(name, chunk, fill_nulls.get(name))
            at += len(chunk)
    return found


def _tensor(column: Array | Ragged, is_eager: bool) -> Any:
    if isinstance(column, Ragged):
        return tf.RaggedTensor.from_row_splits(_tensor(column.values, True), column.offsets, validate=False)
    # `from_generator` accepts NumPy arrays if no column is ragged. With ragged columns, `from_generator`
    # requires tensors. Converting a list of strings to a tensor is twice as fast as converting an array of
    # strings.
    return tf.constant(column.tolist(), tf.string) if is_eager and column.dtype == object else column


def _signature(item: Field) -> Any:
    dtype, shape = tensor_type(item), row_shape(item.type)
    if shape is not None:
        return tf.TensorSpec([None, *shape], dtype)
    inner, depth = item.type.value_type, 1
    while (of_value := row_shape(inner)) is None:
        inner, depth = inner.value_type, depth + 1
    dims = [None] * (1 + depth)
    return tf.RaggedTensorSpec([*dims, *of_value], dtype, ragged_rank=depth, row_splits_dtype=tf.int64)


def _padding(item: Field, fill_nulls: Mapping[str, Any]) -> Any:
    """Return the value with which the lists of a column are padded, or None for 0 or empty strings."""
    if item.name not in fill_nulls or row_shape(item.type) is not None:
        return None
    null = pa.nulls(1, value_type(innermost(item.type)))
    return column_to_numpy(item.name, null, fill_nulls[item.name])[0]


def _converted(tensor: Any, lists: Lists, padding: Any) -> Any:
    if not isinstance(tensor, tf.RaggedTensor):
        return tensor
    return tensor.to_tensor(default_value=padding) if lists == "padded" else tensor.to_sparse()


__all__ = ["FeatureSpec", "feature_spec", "tensorflow_dataset"]
