"""Time writes of whole datasets, and shuffles."""

import time
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord

from .tables import TABLES, InMemory, scaled, scaled_table, slices, table_collection, to_pandas

DIRECTORIES = 200


class Write(InMemory):
    """Write a collection of 8 partitions."""

    params = tuple(TABLES)
    param_names = ("table",)
    timer = time.process_time

    def setup(self, name: str) -> None:
        super().setup()
        self.table = scaled_table(name)
        self.ddf = table_collection(self.table.batch)

    def time_plain(self, name: str) -> None:
        dask_tfrecord.to_tfrecord(self.ddf, self.path())

    def time_gzip(self, name: str) -> None:
        dask_tfrecord.to_tfrecord(self.ddf, self.path(), compression="gzip")

    def time_column_files(self, name: str) -> None:
        dask_tfrecord.to_tfrecord(self.ddf, self.path(), columnar=list(self.table.projection))

    def time_to_parquet(self, name: str) -> None:
        self.ddf.to_parquet(self.path(), write_index=False)


class WriteOtherRows(InMemory):
    """Write the rows of `tabular` from other sources, to directories, and in many small partitions."""

    timer = time.process_time

    def setup(self) -> None:
        super().setup()
        batch = scaled_table("tabular").batch
        keys = pa.array(np.random.default_rng(5).integers(0, DIRECTORIES, batch.num_rows))
        keyed = pa.RecordBatch.from_arrays([*batch.columns, keys], names=[*batch.schema.names, "key"])
        self.batches = slices(batch, 8)
        self.frame = pd.concat(map(to_pandas, self.batches), ignore_index=True)
        self.ddf, self.keyed = table_collection(batch), table_collection(keyed, 2)
        self.small = table_collection(batch.slice(0, scaled(10_000)), scaled(1_000))

    def time_stream(self) -> None:
        reader = pa.RecordBatchReader.from_batches(self.batches[0].schema, self.batches)
        dask_tfrecord.to_tfrecord(reader, self.path())

    def time_frame(self) -> None:
        dask_tfrecord.to_tfrecord(self.frame, self.path())

    def time_from_map(self) -> None:
        dask_tfrecord.to_tfrecord(self.ddf, self.path())

    def time_from_pandas(self) -> None:
        dask_tfrecord.to_tfrecord(dd.from_pandas(self.frame, npartitions=8), self.path())

    def time_200_directories(self) -> None:
        dask_tfrecord.to_tfrecord(self.keyed, self.path(), partition_on="key")

    def time_1000_small_partitions(self) -> None:
        dask_tfrecord.to_tfrecord(self.small, self.path())


class Shuffle(InMemory):
    """Write `tabular` with its rows shuffled, or with the rows of a key in one file."""

    params = ("shuffle", "colocate")
    param_names = ("job",)
    timer = time.process_time

    def setup(self, job: str) -> None:
        super().setup()
        batch = scaled_table("tabular").batch
        self.ddf = table_collection(batch, 16)
        options: dict[str, dict[str, Any]] = {
            "shuffle": {"shuffle": True, "seed": 42},
            "colocate": {"partition_on": "clicks", "colocate": True},
        }
        self.options = options[job]

    def time_write(self, job: str) -> None:
        dask_tfrecord.to_tfrecord(self.ddf, self.path(), **self.options)
