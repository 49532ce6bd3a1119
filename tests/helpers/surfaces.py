"""The public functions that read a path, each with a call that reads all rows."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.feather

import dask_tfrecord
from dask_tfrecord.feed import flight, stream
from dask_tfrecord.feed.batches import Batches

Columns = dict[str, list[Any]]


class Surface(NamedTuple):
    """A public function or class, and what returns the columns by it, given a path and its keywords."""

    function: Callable[..., Any]
    read: Callable[..., Columns]


def _joined(batches: Any) -> Columns:
    found: Columns = {}
    for batch in batches:
        for name in batch if isinstance(batch, dict) else batch.schema.names:
            values = batch[name]
            if isinstance(values, pa.Array | pa.ChunkedArray):
                values = values.to_pylist()
            elif getattr(values, "is_nested", False):
                values = [row.tolist() for row in values.unbind()]
            found.setdefault(name, []).extend(values if isinstance(values, list) else values.tolist())
    return found


def _frame(frame: Any) -> Columns:
    return {str(name): frame[name].tolist() for name in frame.columns}


def _collection(path: Path, **keywords: Any) -> Columns:
    return _frame(dask_tfrecord.read_tfrecord(path, **keywords).compute())


def _length(path: Path, **keywords: Any) -> Columns:
    """Count the rows. Then read their values, which a length does not have."""
    count = len(dask_tfrecord.read_tfrecord(path, **keywords))
    found = _collection(path, **keywords)
    assert {len(values) for values in found.values()} <= {count}
    return found


def _batches(path: Path, **keywords: Any) -> Columns:
    return _joined(dask_tfrecord.feed.iter_batches(path, 2, **keywords))


def _shards(path: Path, **keywords: Any) -> Columns:
    shards = [dask_tfrecord.feed.iter_batches(path, 2, shard=(at, 2), **keywords) for at in range(2)]
    return _joined(batch for shard in shards for batch in shard)


def _taken(path: Path, **keywords: Any) -> Columns:
    dask_tfrecord.open_dataset(path, **keywords).take([])  # raises its own errors
    count = len(dask_tfrecord.read_tfrecord(path, **keywords))
    return _joined([dask_tfrecord.open_dataset(path, **keywords).take(np.ones(count, bool))])


def _table(path: Path, **keywords: Any) -> Columns:
    table = dask_tfrecord.feed.RecordTable(path, **keywords)
    assert all([*table[number]] == table.schema.names for number in range(len(table)))
    return _joined([table[:]])


def _served(path: Path, **keywords: Any) -> Columns:
    read, write = os.pipe()
    with (
        open(read, "rb") as out,
        stream.serve(path, f"fd://{write}", **{"batch_size": 2} | keywords) as server,
    ):
        sent = out.read()
        server.wait(1)
        for error in server.errors:
            raise error
    return _joined(pa.ipc.open_stream(sent))


def _flown(path: Path, **keywords: Any) -> Columns:
    with flight.serve(path, **keywords) as server:
        return _joined(Batches(server._plan))


def _feather(path: Path, **keywords: Any) -> Columns:
    file = stream.write_feather(path, path.with_name(f"{path.name}.feather"), **keywords)
    return _joined([pyarrow.feather.read_table(file.path)])


def _dataset(path: Path, **keywords: Any) -> Columns:
    dataset = dask_tfrecord.open_dataset(path, **keywords)
    found = dataset.to_table()
    assert dataset.count_rows() == found.num_rows
    return _joined([found])


READERS = {
    "compute": Surface(dask_tfrecord.read_tfrecord, _collection),
    "len": Surface(dask_tfrecord.read_tfrecord, _length),
    "take": Surface(dask_tfrecord.open_dataset, _taken),
    "RecordTable": Surface(dask_tfrecord.feed.RecordTable, _table),
    "iter_batches": Surface(dask_tfrecord.feed.iter_batches, _batches),
    "iter_batches of shards": Surface(dask_tfrecord.feed.iter_batches, _shards),
    "open_dataset": Surface(dask_tfrecord.open_dataset, _dataset),
    "stream.serve": Surface(stream.serve, _served),
    "flight.serve": Surface(flight.serve, _flown),
    "write_feather": Surface(stream.write_feather, _feather),
}

if find_spec("torch"):
    from dask_tfrecord.feed.torch import TFRecordBatches, TFRecordTable

    def _torch_table(path: Path, **keywords: Any) -> Columns:
        table = TFRecordTable(path, **keywords)
        return _joined([dict(table.__getitems__(range(len(table))))])

    READERS |= {
        "TFRecordBatches": Surface(
            TFRecordBatches, lambda path, **keywords: _joined(TFRecordBatches(path, 2, **keywords))
        ),
        "TFRecordTable": Surface(TFRecordTable, _torch_table),
    }

if find_spec("polars"):
    from dask_tfrecord.feed.polars import scan_tfrecord

    def _lazy(path: Path, **keywords: Any) -> Columns:
        try:
            return _joined([scan_tfrecord(path, **keywords).collect().to_arrow()])
        except dask_tfrecord.TFRecordError as error:
            error.__cause__ = None  # Polars makes an error its own cause, which tblib cannot pickle
            raise

    READERS["scan_tfrecord"] = Surface(scan_tfrecord, _lazy)

if find_spec("keras"):
    from dask_tfrecord.feed.keras import TFRecordPyDataset

    def _keras(path: Path, **keywords: Any) -> Columns:
        batches = TFRecordPyDataset(path, 2, **keywords)
        return _joined(batches[number] for number in range(len(batches)))

    READERS["TFRecordPyDataset"] = Surface(TFRecordPyDataset, _keras)

if find_spec("tensorflow"):
    import tensorflow as tf

    from dask_tfrecord.feed.tensorflow import feature_spec, tensorflow_dataset

    def _tensors(path: Path, **keywords: Any) -> Columns:
        dataset = tensorflow_dataset(path, 2, **keywords)
        try:
            found = _joined({name: values.numpy() for name, values in batch.items()} for batch in dataset)
        except tf.errors.OpError as error:  # which holds the text of ours
            raise dask_tfrecord.TFRecordError(str(error)) from None
        return {
            name: [value.decode() if isinstance(value, bytes) else value for value in values]
            for name, values in found.items()
        }

    def _spec(path: Path, **keywords: Any) -> Columns:
        spec = feature_spec(path, **keywords)
        return {name: [] for name in (*spec.context, *spec.sequence)}

    READERS |= {
        "tensorflow_dataset": Surface(tensorflow_dataset, _tensors),
        "feature_spec": Surface(feature_spec, _spec),
    }
