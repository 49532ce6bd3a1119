"""Time what grows with the number of files, beside Parquet, and changes of large datasets."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask._expr import FinalizeCompute
from dask.base import collections_to_expr
from distributed.protocol import serialize, to_serialize

import dask_tfrecord

from .tables import InMemory, scaled

ROWS = 10  # of a file
WRITE: dict[str, Callable[..., Any]] = {
    "tfrecord": dask_tfrecord.to_tfrecord,
    "parquet": partial(dd.to_parquet, write_index=False),
}
READ: dict[str, Callable[..., Any]] = {"tfrecord": dask_tfrecord.read_tfrecord, "parquet": dd.read_parquet}
APPEND: dict[str, dict[str, Any]] = {"tfrecord": {}, "parquet": {"ignore_divisions": True}}


def partition(index: int) -> pd.DataFrame:
    """Return rows whose ids are in the range of the partition."""
    ids = np.arange(ROWS) + index * ROWS
    return pd.DataFrame({"id": ids, "score": ids.astype(np.float32), "label": ids % 2})


def partitions(numbers: range) -> dd.DataFrame:
    return dd.from_map(partition, numbers, meta=partition(0).iloc[:0])


def optimized(collection: Any) -> Any:
    """Optimize a collection, build its graph, and return the expression that the scheduler gets."""
    expression = FinalizeCompute(collections_to_expr([collection])).optimize()
    expression.__dask_graph__()
    return expression


class ManyFiles(InMemory):
    """Write, open, filter and count a dataset of many files. Each run changes a new dataset."""

    params = ([1_000, 10_000], list(WRITE))
    param_names = ("files", "format")
    timer = time.process_time
    number, repeat, warmup_time = 1, 3, 0.0

    def setup(self, files: int, form: str) -> None:
        super().setup()
        self.files, self.data = scaled(files), f"{self.root}/data"
        dask.config.set(scheduler="sync")
        WRITE[form](partitions(range(self.files)), self.data)

    def time_write(self, files: int, form: str) -> None:
        WRITE[form](partitions(range(self.files)), self.path())

    def time_open(self, files: int, form: str) -> None:
        assert READ[form](self.data).npartitions

    def time_graph_of_a_write(self, files: int, form: str) -> None:
        optimized(WRITE[form](partitions(range(self.files)), self.path(), compute=False))

    def time_graph_of_a_read(self, files: int, form: str) -> None:
        optimized(self.lengths(form))

    def track_bytes_of_a_read(self, files: int, form: str) -> int:
        _, frames = serialize(to_serialize(optimized(self.lengths(form))))
        return sum(memoryview(frame).nbytes for frame in frames)

    def lengths(self, form: str) -> Any:
        each_file = {"blocksize": None} if form == "tfrecord" else {}
        return READ[form](self.data, **each_file).map_partitions(len, meta=(None, "int64"))

    def time_filter_of_one_row(self, files: int, form: str) -> None:
        wanted = [("id", "==", self.files * ROWS // 2)]
        assert len(READ[form](self.data, filters=wanted).compute()) == 1

    def time_len(self, files: int, form: str) -> None:
        assert len(READ[form](self.data)) == self.files * ROWS

    def time_append(self, files: int, form: str) -> None:
        new = partitions(range(self.files, self.files + 1))
        WRITE[form](new, self.data, append=True, **APPEND[form])


class Changes(InMemory):
    """Compact a dataset of 10,000 small files, add rows to it, and delete rows of large files."""

    timer = time.process_time
    number, repeat, warmup_time = 1, 3, 0.0

    def setup(self) -> None:
        super().setup()
        dask.config.set(scheduler="sync")
        self.small, self.large, self.keyed = (f"{self.root}/{name}" for name in ("small", "large", "keyed"))
        dask_tfrecord.to_tfrecord(partitions(range(scaled(10_000))), self.small)
        frame = pd.DataFrame({"id": np.arange(scaled(1_000_000, 1_000))}).assign(
            label=lambda rows: rows["id"] % 100
        )
        dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=20), self.large)
        keys = frame.iloc[: scaled(10_000)].assign(key=lambda rows: rows["id"] // 10)
        dask_tfrecord.to_tfrecord(
            keys, self.keyed, partition_on="key", write_options={"max_files_per_task": None}
        )
        self.end, self.batch = len(frame) // 100, partition(0)

    def time_compact(self) -> None:
        size = dask_tfrecord.open_dataset(self.small).nbytes
        dask_tfrecord.open_dataset(self.small).compact(target_bytes=size // 10 + 1_000)

    def time_20_commits_of_a_writer(self) -> None:
        with dask_tfrecord.Writer(self.small) as writer:
            for _ in range(20):
                writer.write(self.batch)
                writer.commit()

    def time_append_with_a_new_column(self) -> None:
        new = self.batch.assign(new=1)
        dask_tfrecord.to_tfrecord(new, self.small, append=True, schema_change="add")

    def time_delete_a_partition(self) -> None:
        dask_tfrecord.open_dataset(self.keyed).delete([("key", "==", 3)])

    def time_delete_1_percent_at_one_end(self) -> None:
        dask_tfrecord.open_dataset(self.large).delete([("id", "<", self.end)])

    def time_delete_1_percent_everywhere(self) -> None:
        dask_tfrecord.open_dataset(self.large).delete([("label", "==", 0)])
