"""Generate the four tables of the benchmarks."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_tfrecord.codec import Encoder
from dask_tfrecord.codec.columns import Column


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


@cache
def frame_of(name: str, rows: int) -> pd.DataFrame:
    """Return a table as a pandas DataFrame. Each process converts a table once."""
    return pa.table(TABLES[name](rows).batch).to_pandas(types_mapper=pd.ArrowDtype)


def encoded_views(
    encoder: Encoder, batch: pa.RecordBatch, buffer_bytes: int = 1 << 20
) -> Iterator[memoryview]:
    """Yield the records of all rows as views of one buffer. A view is valid until the next iteration."""
    row, buffer = 0, bytearray(buffer_bytes)
    encoder.bind(batch)
    while row < batch.num_rows:
        row, size, need = encoder.encode_into(row, buffer)
        if need:
            buffer = bytearray(need)
        else:
            yield memoryview(buffer)[:size]


def table_parser(documentation: str, *, rounds: int) -> argparse.ArgumentParser:
    """Return the parser of a benchmark that runs on tables. The first line of the documentation is shown."""
    parser = argparse.ArgumentParser(description=documentation.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="table", help=f"{', '.join(TABLES)}; default: all")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of rows")
    return parser
