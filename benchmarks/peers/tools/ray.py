"""Run Ray Data on all cores of the machine."""

import os
from typing import Any

import pyarrow as pa

from benchmarks.peers.tools import Pass, Used, Ways, Work

USED = (
    Used(
        "`read_tfrecords` without a schema; only recsys needs a schema, because its lists have one value or "
        "several",
        "https://docs.ray.io/en/latest/data/api/doc/ray.data.read_tfrecords.html",
    ),
    Used(
        "`override_num_blocks` is the number of cores, which made images 2 to 3 times faster",
        "https://docs.ray.io/en/latest/data/performance-tips.html",
    ),
    Used(
        "`write_tfrecords` of blocks that are already in Ray's object store",
        "https://docs.ray.io/en/latest/data/api/doc/ray.data.Dataset.write_tfrecords.html",
    ),
)

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0", RAY_DEDUP_LOGS="1")
BLOCKS = 8


def _ray() -> Any:
    import ray

    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=2 << 30)
        ray.data.DataContext.get_current().enable_progress_bars = False
    return ray


def _dataset(work: Work) -> Any:
    """Read the files, with a schema only if a feature has lists of one value and of several values.

    Without a schema, such a feature fails. With a schema, all features become lists, and a read takes about
    twice as long.
    """
    options: dict[str, Any] = {"override_num_blocks": os.cpu_count()}
    if any(values < 0 for _, values in work.features.values()):
        from tensorflow_metadata.proto.v0 import schema_pb2

        types = {"int": schema_pb2.INT, "float": schema_pb2.FLOAT, "byte": schema_pb2.BYTES}
        options["tf_schema"] = schema_pb2.Schema()
        for name, (kind, _) in work.features.items():
            options["tf_schema"].feature.add(name=name, type=types[kind])
    return _ray().data.read_tfrecords(work.paths(), **options)


def read(work: Work) -> Pass:
    """Read all columns, because Ray cannot select columns, and drop the columns that are not needed."""

    def read_all(_: str) -> int:
        dataset = _dataset(work)
        if len(work.columns) < len(work.features):
            dataset = dataset.select_columns(work.columns)
        batches = dataset.iter_batches(batch_size=work.batch_size, batch_format="pyarrow")
        return sum(batch.num_rows for batch in batches)

    _ray()
    return read_all


def infer(work: Work) -> Pass:
    """Read without a schema, so that Ray inspects each row."""

    def look(_: str) -> int:
        dataset = _ray().data.read_tfrecords(work.paths()).materialize()
        return dataset.count() if set(dataset.schema().names) == set(work.features) else 0

    _ray()
    return look


def count(work: Work) -> Pass:
    _ray()
    return lambda _: _dataset(work).count()


def write(work: Work) -> Pass:
    """Write blocks that are already in Ray's object store."""
    ray = _ray()
    table = work.source()
    step = -(-table.num_rows // BLOCKS)
    blocks = [pa.table(table.slice(at, step)) for at in range(0, table.num_rows, step)]
    dataset = ray.data.from_arrow(blocks).materialize()
    options = {"arrow_open_stream_args": {"compression": "gzip"}} if work.codec else {}

    def write_all(path: str) -> int:
        dataset.write_tfrecords(path, **options)
        return table.num_rows

    return write_all


WAYS: Ways = {"": {"read": read, "infer": infer, "count": count, "write": write}}
