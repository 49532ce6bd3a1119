"""Read a dataset as a `tf.data.Dataset`, and provide feature specs for TensorFlow's own parser."""

import atexit
import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack, get_args
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import tensorflow as tf

from dask_tfrecord.errors import SchemaError, check_instance
from dask_tfrecord.feed.batches import Batches
from dask_tfrecord.feed.epochs import Epochs
from dask_tfrecord.feed.feature_specs import FeatureSpec, Tensors, feature_spec, tensor_type
from dask_tfrecord.feed.numpy_columns import (
    Array,
    Ragged,
    checked_fill_nulls,
    column_to_numpy,
    numpy_columns,
)
from dask_tfrecord.feed.rows.epoch_order import Plan, plan_batches
from dask_tfrecord.feed.rows.resume_position import State, epoch_of
from dask_tfrecord.feed.rows.sources import check_label, checked_names
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import LastBatch, LoaderKeywords, PathOrMixture, Uneven
from dask_tfrecord.keywords.public_functions import calling, public_function
from dask_tfrecord.schema.fields import Field
from dask_tfrecord.schema.logical_types import row_shape

# Allocating and freeing a block of this many bytes once makes glibc keep more freed memory instead of
# returning it to the system (see mallopt(3)). For images of 100 KB, keeping freed memory saves a third of the
# CPU time.
_FREED_BYTES = 24 << 20

# The `Batches` objects from which running TensorFlow pipelines read.
_open: WeakSet[Batches] = WeakSet()


@public_function
def tensorflow_dataset(
    path: PathOrMixture,
    batch_size: int,
    columns: str | Sequence[str] | None = None,
    label: str | None = None,
    *,
    shard: tuple[int, int] = (0, 1),
    uneven: Uneven = "drop",
    batch_mode: LastBatch = "keep",
    fill_nulls: Mapping[str, Any] | None = None,
    epoch: int | None = None,
    start: State | Sequence[State] | None = None,
    state_column: str | None = None,
    prefetch: int = 2,
    **keywords: Unpack[LoaderKeywords],
) -> "tf.data.Dataset":
    """Read a dataset as a `tf.data.Dataset` of batches.

    Parameters
    ----------
    path : str, path-like, list of these, or dict
        A path that `read_tfrecord` accepts, or the sources of a mixture, as in `mix`.
    batch_size : int
        The number of rows in each batch.
    columns : str or list of str, optional
        The columns of an element, besides the label. By default, all columns are read.
    label : str, optional
        The column that becomes the second part of an element, ``(features, label)``. Without a label, an
        element is a dict of tensors.
    shuffle : bool, "buffer" or "blocks", optional
        How the rows are shuffled, as in `iter_batches`. Each epoch has a different row order. By default, the
        rows are not shuffled.
    seed : int, default 0
        The seed of the random row order.
    shuffle_buffer : int, default 65536
        The number of rows that are shuffled together.
    shard : tuple of int, default (0, 1)
        The index of the shard to return, counted from 0, and the number of shards.
    elastic : int, optional
        Divide the rows into this number of sequences, as in `iter_batches`. The k-th batches of all shards
        together then contain the same rows for every number of shards that divides ``elastic``.
    until : "first", "all" or int, optional
        Where an epoch of a mixture ends, as in `mix`.
    uneven : "drop", "pad" or "keep", default "drop"
        What to do if the rows cannot be divided equally among the shards, as in `TFRecordBatches`: "drop"
        leaves out rows, and "pad" repeats rows, so that all shards have the same number of batches. "keep"
        returns every row once.
    batch_mode : "keep" or "drop", default "keep"
        What to do with an incomplete last batch: "keep" returns it, and "drop" omits it.
    fill_nulls : mapping of str to value, optional
        The value that replaces the nulls of each column. By default, nulls become NaN in floating-point
        columns, an empty string in string and binary columns, and an empty list in list columns.
    epoch : int, optional
        The epoch of the first iteration, by default that of ``start``, or 0. Each later iteration reads the
        next one.
    start : dict or list of dict, optional
        The state from which the first iteration continues, or a list of the states of all shards, as in
        `iter_batches`. Later iterations cover whole epochs.
    state_column : str, optional
        The name of an additional feature: a scalar string tensor with the state after the batch as JSON. To
        resume, pass ``start=json.loads(state)`` with the state of the last batch that was used. Batches that
        are prepared ahead do not change it.
    prefetch : int, default 2
        The number of batches that are prepared ahead.
    cache, cache_bytes
        A directory on a local disk that keeps blocks of remote files, and its limit, as in `iter_batches`.
    **read
        Keywords of `read_tfrecord` that control what is read, such as ``schema``, ``filters`` and
        ``version``.

    Returns
    -------
    tf.data.Dataset
        A dataset whose elements are batches. Its cardinality is known, unless ``start`` is passed. The
        tensors have the types of the columns, such as bool, int8 and float64. Lists become ragged tensors,
        and dates, times and durations integers in the unit of the column.

    Raises
    ------
    SchemaError
        If no tensor can represent a column.
    TFRecordError
        If an argument has a wrong type or value, or if there are more shards than rows.
    tf.errors.OpError
        While the dataset is iterated, if a file was changed or removed after the call, or if a column of
        integers has nulls and no value in ``fill_nulls``.

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
    arguments.choice("batch_mode", batch_mode, get_args(LastBatch))
    prefetch = arguments.number("prefetch", prefetch, -1)  # -1 is tf.data.AUTOTUNE
    arguments.count("epoch", epoch, 0)
    plan = plan_batches(
        path,
        batch_size,
        surface=tensorflow_dataset,
        columns=checked_names(columns, label),
        batch_mode=batch_mode,
        uneven=uneven,
        **keywords,
    )
    schema = plan.source.schema
    if not schema.fields:
        raise SchemaError("no column is read, and an element has at least one", "give one in schema=")
    check_label(label, schema)
    fill_nulls = checked_fill_nulls(fill_nulls, schema.arrow)
    if state_column is not None:
        check_instance("state_column", state_column, str)
    if state_column in schema.names:
        raise SchemaError("state_column= names a column of the dataset", feature=state_column)
    found = _batches(plan, shard, fill_nulls, epoch, start, state_column)
    if label is not None:
        found = found.map(lambda row: ({name: row[name] for name in row if name != label}, row[label]))
    return found.prefetch(prefetch)


def _batches(
    plan: Plan,
    shard: tuple[int, int],
    fill_nulls: Mapping[str, Any],
    epoch: int | None,
    start: State | Sequence[State] | None,
    state_column: str | None,
) -> "tf.data.Dataset":
    first = epoch_of(start) if epoch is None else epoch
    # This call raises an error if `start` is the state of another dataset.
    opened = Batches(plan, first, shard, start=start)
    states: Sequence[State] = () if start is None else [start] if isinstance(start, dict) else start
    epochs = Epochs(first, states)
    schema = plan.source.schema

    def generate() -> Iterator[tuple[Tensors, Tensors, Tensors]]:
        begun = epochs.begin().start
        with (
            calling(tensorflow_dataset),
            Batches(plan, begun.epoch, shard, start=begun.states or None) as batches,
        ):
            _open.add(batches)
            for table in iter(batches._next_table, None):
                alone = numpy_columns(table.select(singles), fill_nulls)
                yield (
                    {name: _tensor(column, is_eager) for name, column in alone.items()},
                    {dtype: _stacked(table, names, dtype, fill_nulls) for dtype, names in stacks.items()},
                    {name: json.dumps(batches.state) for name in of_state},
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
    of_state = {name: tf.TensorSpec([], tf.string) for name in [state_column] if name is not None}
    found = tf.data.Dataset.from_generator(
        generate, output_signature=({name: signature[name] for name in singles}, stacked, of_state)
    ).map(split)
    # An iteration that continues an epoch is shorter than the following iterations.
    if start is not None or opened.rows is None:
        return found
    return found.apply(tf.data.experimental.assert_cardinality(len(opened)))


@atexit.register
def _drop_iterators() -> None:
    """Clear the TensorFlow iterators that a program has not read to the end.

    The interpreter would otherwise delete them at exit, when no thread can run Python any more, and wait
    forever for the TensorFlow thread that reads batches.
    """
    if _open:
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
    # TensorFlow copies an array unless its memory is aligned like Arrow's buffers.
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
    # `from_generator` accepts NumPy arrays only if no column is ragged, and otherwise needs tensors. A list
    # of strings is converted to a tensor twice as fast as an array of strings.
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


__all__ = ["FeatureSpec", "feature_spec", "tensorflow_dataset"]
