"""Generate the four tables of the benchmarks, and write and read them.

DASK_TFRECORD_SCALE is a factor for the rows of all benchmarks of this directory.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from uuid import uuid4

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

from dask_tfrecord.codec import Column, Encoder


@dataclass(frozen=True)
class Table:
    """Hold a generated batch, its columns as stored, and the names of the columns that a projection reads."""

    batch: pa.RecordBatch
    columns: tuple[Column, ...]
    projection: tuple[str, ...]


def tabular(rows: int = 1_000_000) -> Table:
    """Return ten scalar columns: four integers from one to nine bytes long, three floats, three strings."""
    random = np.random.default_rng(1)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", np.uint8)

    def words(low: int, high: int) -> pa.Array:
        lengths = random.integers(low, high + 1, rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        data = letters[random.integers(0, len(letters), offsets[-1])]
        return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(data.tobytes()))

    arrays = {
        "user_id": pa.array(random.integers(0, 5_000_000, rows)),
        "clicks": pa.array(random.integers(0, 100, rows)),
        "balance": pa.array(random.integers(-(2**40), 2**40, rows)),
        "timestamp": pa.array(random.integers(1_600_000_000, 1_800_000_000, rows) * 1_000_000_000),
        "price": pa.array(random.random(rows, np.float32)),
        "latitude": pa.array(random.random(rows, np.float32)),
        "longitude": pa.array(random.random(rows, np.float32)),
        "country": words(2, 2),
        "category": words(4, 12),
        "session": words(16, 16),
    }
    kinds = ["int64"] * 4 + ["float"] * 3 + ["string"] * 3
    columns = tuple(Column(name, kind, 0) for name, kind in zip(arrays, kinds, strict=True))
    return Table(pa.record_batch(arrays), columns, ("clicks", "price"))


def recsys(rows: int = 200_000) -> Table:
    """Return a table of two scalars, three lists of 0 to 50 item ids, one embedding of 64 floats."""
    random = np.random.default_rng(2)

    def lists() -> pa.Array:
        offsets = np.concatenate([[0], np.cumsum(random.integers(0, 51, rows))]).astype(np.int32)
        return pa.ListArray.from_arrays(offsets, random.integers(0, 1_000_000, offsets[-1]))

    embedding = pa.ListArray.from_arrays(
        np.arange(0, 64 * (rows + 1), 64, dtype=np.int32), random.random(64 * rows, np.float32)
    )
    arrays = {
        "user_id": pa.array(random.integers(0, 5_000_000, rows)),
        "label": pa.array(random.random(rows, np.float32)),
        "viewed": lists(),
        "clicked": lists(),
        "bought": lists(),
        "embedding": embedding,
    }
    shapes = [("int64", 0), ("float", 0), ("int64", 1), ("int64", 1), ("int64", 1), ("float", 1)]
    columns = tuple(Column(name, *shape) for name, shape in zip(arrays, shapes, strict=True))
    return Table(pa.record_batch(arrays), columns, ("user_id", "label"))


def wide(rows: int = 100_000) -> Table:
    """Return a table of two hundred float scalars."""
    random = np.random.default_rng(3)
    arrays = {f"feature_{i:03d}": pa.array(random.random(rows, np.float32)) for i in range(200)}
    columns = tuple(Column(name, "float", 0) for name in arrays)
    return Table(pa.record_batch(arrays), columns, ("feature_010", "feature_150"))


def images(rows: int = 5_000) -> Table:
    """Return a table of one incompressible binary value of about 100 KB, and one label."""
    random = np.random.default_rng(4)
    lengths = random.integers(90_000, 110_000, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = random.bytes(int(offsets[-1]))
    arrays = {
        "image": pa.BinaryArray.from_buffers(
            pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        ),
        "label": pa.array(random.integers(0, 1000, rows)),
    }
    columns = (Column("image", "bytes", 0), Column("label", "int64", 0))
    return Table(pa.record_batch(arrays), columns, ("label",))


TABLES: dict[str, Callable[..., Table]] = {
    "tabular": tabular,
    "recsys": recsys,
    "wide": wide,
    "images": images,
}


def encoded_views(encoder: Encoder, batch: pa.RecordBatch) -> Iterator[memoryview]:
    """Yield the records of all rows as views of one buffer. A view is valid until the next iteration."""
    row, buffer = 0, bytearray(1 << 20)
    encoder.bind(batch)
    while row < batch.num_rows:
        row, size, need = encoder.encode_into(row, buffer)
        if need:
            buffer = bytearray(need)
        else:
            yield memoryview(buffer)[:size]


# -- Collections, and places for files ---------------------------------------------------------------------

SCALE = float(os.environ.get("DASK_TFRECORD_SCALE", "1"))
PARTITIONS = 8


def scaled(number: int, least: int = PARTITIONS) -> int:
    """Return a number of rows or files, multiplied by DASK_TFRECORD_SCALE."""
    return max(least, int(number * SCALE))


def scaled_table(name: str) -> Table:
    make = TABLES[name]
    return make(scaled(make.__defaults__[0]))


def to_pandas(batch: pa.RecordBatch) -> pd.DataFrame:
    return pa.table(batch).to_pandas(types_mapper=pd.ArrowDtype)


def slices(batch: pa.RecordBatch, count: int) -> list[pa.RecordBatch]:
    cuts = [batch.num_rows * n // count for n in range(count + 1)]
    return [batch.slice(a, b - a) for a, b in pairwise(cuts)]


class _Partitions:
    """Look up the partitions of a collection by their numbers, so that Dask need not hash the partitions."""

    def __init__(self, frames: list[pd.DataFrame]) -> None:
        self._frames = frames

    def __call__(self, index: int) -> pd.DataFrame:
        return self._frames[index]

    def __dask_tokenize__(self) -> int:
        return id(self._frames)


def collection(frames: list[pd.DataFrame]) -> dd.DataFrame:
    """Build a collection without Dask's string conversion, which is not part of a write."""
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(_Partitions(frames), range(len(frames)), meta=frames[0].iloc[:0])


def table_collection(batch: pa.RecordBatch, partitions: int = PARTITIONS) -> dd.DataFrame:
    return collection([to_pandas(part) for part in slices(batch, partitions)])


def compute_and_drop(ddf: dd.DataFrame) -> int:
    """Compute all partitions, release each partition as soon as it is computed, and return the row count."""
    return int(ddf.map_partitions(len, meta=(None, "int64")).compute().sum())


def memory_folder() -> str | None:
    """Return a directory in memory, or None if the system has none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class InMemory:
    """Give each run of a benchmark an empty directory, in memory if the system can."""

    def setup(self, *_: object) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=memory_folder())
        self.root = self._folder.name

    def teardown(self, *_: object) -> None:
        self._folder.cleanup()

    def path(self) -> str:
        """Return the path of a directory that does not exist."""
        return f"{self.root}/{uuid4()}"
