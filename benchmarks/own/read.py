"""Time reads of whole datasets, of few columns and of few rows, and random access."""

import time

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord

from .tables import TABLES, InMemory, compute_and_drop, scaled, scaled_table, table_collection

BATCH_ROWS = 256
# The number of rows of each table of random access.
RANDOM_ROWS = {"floats": 60_000, "ints": 30_000, "images": 2_000}


class Read(InMemory):
    """Open and read a dataset of 8 files."""

    params = (list(TABLES), ["plain", "gzip"])
    param_names = ("table", "codec")
    timer = time.process_time

    def setup(self, name: str, codec: str) -> None:
        super().setup()
        table = scaled_table(name)
        self.few = list(table.projection)
        compression = None if codec == "plain" else codec
        table_collection(table.batch).to_tfrecord(f"{self.root}/data", compression=compression)

    def time_all_columns(self, name: str, codec: str) -> None:
        compute_and_drop(dask_tfrecord.read_tfrecord(f"{self.root}/data", blocksize=None))

    def time_few_columns(self, name: str, codec: str) -> None:
        compute_and_drop(dask_tfrecord.read_tfrecord(f"{self.root}/data", columns=self.few, blocksize=None))

    def time_batches(self, name: str, codec: str) -> None:
        for _ in dask_tfrecord.feed.iter_batches(f"{self.root}/data", 8192):
            pass

    def time_shuffled_batches(self, name: str, codec: str) -> None:
        for _ in dask_tfrecord.feed.iter_batches(f"{self.root}/data", 8192, shuffle=True, seed=1):
            pass


class OneFile(InMemory):
    """Read one large file of `tabular`, block by block."""

    params = ("plain", "gzip")
    param_names = ("codec",)
    timer = time.process_time

    def setup(self, codec: str) -> None:
        super().setup()
        ddf = table_collection(scaled_table("tabular").batch, 1)
        ddf.to_tfrecord(f"{self.root}/data", compression=None if codec == "plain" else codec)

    def time_blocks(self, codec: str) -> None:
        compute_and_drop(dask_tfrecord.read_tfrecord(f"{self.root}/data", blocksize="4 MiB"))


class Columns(InMemory):
    """Read few columns and few rows of a dataset with column files, and the same of Parquet."""

    params = (["tabular", "wide", "images"], ["tfrecord", "parquet"])
    param_names = ("table", "format")
    timer = time.process_time

    def setup(self, name: str, form: str) -> None:
        super().setup()
        table = scaled_table(name)
        self.few = list(table.projection)
        ddf = table_collection(table.batch)
        if form == "tfrecord":
            ddf.to_tfrecord(f"{self.root}/data", columnar=self.few)
            self.read = dask_tfrecord.read_tfrecord
        else:
            ddf.to_parquet(f"{self.root}/data")
            self.read = dd.read_parquet
        column = self.few[0]
        limit = float(np.quantile(table.batch[column].to_numpy(), 0.01))
        self.filters = [(column, "<", limit)]

    def time_few_columns(self, name: str, form: str) -> None:
        compute_and_drop(self.read(f"{self.root}/data", columns=self.few))

    def time_few_rows(self, name: str, form: str) -> None:
        compute_and_drop(self.read(f"{self.root}/data", filters=self.filters))


class DefaultDtypes(InMemory):
    """Read integers, floats and text of NumPy dtypes and ``str`` with the dtypes that were written, and the
    same of Parquet.
    """

    params = ("tfrecord", "parquet")
    param_names = ("format",)
    timer = time.process_time

    def setup(self, form: str) -> None:
        super().setup()
        random = np.random.default_rng(0)
        rows = scaled(400_000, 8)
        numbers = {f"i{width}": random.integers(0, 10**width, rows) for width in (1, 3, 6, 18)}
        floats = {f"f{number}": random.random(rows, np.float32) for number in range(3)}
        texts = {"word": random.choice([f"w{number}" for number in range(1000)], rows)}
        texts["user"] = np.array([f"user {number}" for number in range(rows)])
        ddf = dd.from_pandas(pd.DataFrame(numbers | floats | texts), npartitions=8)
        getattr(ddf, f"to_{form}")(f"{self.root}/data")
        self.read = dask_tfrecord.read_tfrecord if form == "tfrecord" else dd.read_parquet

    def time_all_columns(self, form: str) -> None:
        compute_and_drop(self.read(f"{self.root}/data"))


class RandomAccess(InMemory):
    """Read all rows of a `RecordTable` in batches of 256 random rows."""

    params = tuple(RANDOM_ROWS)
    param_names = ("table",)
    timer = time.process_time

    def setup(self, name: str) -> None:
        super().setup()
        rows = scaled(RANDOM_ROWS[name], BATCH_ROWS)
        random = np.random.default_rng(0)
        if name == "images":
            values = pa.array([random.bytes(100_000) for _ in range(rows)], pa.binary())
        elif name == "floats":
            values = pa.FixedSizeListArray.from_arrays(random.random(rows * 512, np.float32), 512)
        else:
            values = pa.FixedSizeListArray.from_arrays(random.integers(0, 50_000, rows * 1000), 1000)
        frame = pd.DataFrame({"x": pd.arrays.ArrowExtensionArray(values)})
        dask_tfrecord.to_tfrecord(frame, f"{self.root}/data")
        self.table = dask_tfrecord.feed.RecordTable(f"{self.root}/data")
        self.order = random.permutation(rows)

    def time_batches(self, name: str) -> None:
        for start in range(0, len(self.order), BATCH_ROWS):
            self.table.batch(self.order[start : start + BATCH_ROWS])
