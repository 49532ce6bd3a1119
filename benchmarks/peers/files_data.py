"""Write the data of the suite `files`: each table in several sizes, because a slow peer gets fewer rows."""

import os
import warnings
from pathlib import Path
from typing import Any

import dask
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import dask_tfrecord
from benchmarks.own.tables import TABLES, Table, collection, slices, to_pandas
from dask_tfrecord.codec.codecs import Compression

ROWS = {"tabular": 1_000_000, "recsys": 200_000, "wide": 50_000, "images": 2_500}
BATCH_ROWS = {"tabular": 8192, "recsys": 8192, "wide": 8192, "images": 32}

# The sizes, as divisors of the number of rows. A peer gets the largest size that it handles in short time.
DIVISORS = (4096, 1024, 256, 64, 16, 4, 1)

FILES = 8
SMALL_ROWS = 1_000  # of each of the 1,000 small files
KEY, KEYS = "key", 200

_KINDS = {"int64": "int", "float": "float", "string": "byte", "bytes": "byte"}


def features(table: Table) -> dict[str, list[Any]]:
    """Return the kind and the number of values of each feature, as in `Work`."""
    found = {}
    for column in table.columns:
        values = 0
        if column.depth:
            lengths = pc.unique(pc.list_value_length(table.batch[column.name]))
            values = lengths[0].as_py() if len(lengths) == 1 else -1
        found[column.name] = [_KINDS[column.kind], values]
    return found


def with_key(table: pa.Table) -> pa.Table:
    """Add a key column with 200 distinct values, or fewer for a table of few rows."""
    values, keys = table["user_id"], min(KEYS, max(2, table.num_rows // 500))
    key = pc.subtract(values, pc.multiply(pc.divide(values, keys), keys))
    return table.append_column(KEY, key)


def write(root: str, name: str, scale: float) -> tuple[Table, dict[int, str]]:
    """Write a table in all sizes; return the largest, and the directory of each number of rows."""
    rows = max(FILES, int(ROWS[name] * scale))
    table = TABLES[name](rows)
    folders = {}
    with dask.config.set(scheduler="threads"):
        for divisor in DIVISORS:
            if divisor == 1 or rows // divisor >= FILES:
                folder = folders[rows // divisor] = f"{root}/{divisor}"
                os.mkdir(folder)
                batch = table.batch.slice(0, rows // divisor)
                _write_source(folder, batch)
                has_parquet = divisor in DIVISORS[-2:]
                _write_main(folder, batch, "plain", None, has_parquet)
                if name == "tabular":
                    _write_main(folder, batch, "gzip", "gzip", has_parquet)
                    _write_main(folder, batch, "zstd", "zstd", has_parquet)
                    _write_more(folder, batch, has_parquet)
    return table, folders


def _write_source(folder: str, batch: pa.RecordBatch) -> None:
    with pa.OSFile(f"{folder}/source.arrow", "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def _write_main(
    folder: str, batch: pa.RecordBatch, files: str, codec: Compression | None, has_parquet: bool
) -> None:
    """Write the rows in 8 files."""
    parts = slices(batch, FILES)
    ddf = collection([to_pandas(part) for part in parts])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TensorFlow reads only gzip and zlib")
        dask_tfrecord.to_tfrecord(ddf, f"{folder}/{files}", compression=codec)
    if has_parquet:
        os.mkdir(f"{folder}/{files}-parquet")
        for number, part in enumerate(parts):
            path = f"{folder}/{files}-parquet/part.{number}.parquet"
            pq.write_table(pa.table(part), path, compression=codec or "none")


def _write_more(folder: str, batch: pa.RecordBatch, has_parquet: bool) -> None:
    """Write the rows in one file and in many, and in 8 files without a snapshot, as another tool would."""
    dask_tfrecord.to_tfrecord(collection([to_pandas(batch)]), f"{folder}/big")
    os.mkdir(f"{folder}/foreign")
    for path in Path(folder, "plain").glob("part-*"):
        os.link(path, f"{folder}/foreign/{path.name}")
    os.mkdir(f"{folder}/small")
    whole, rest = divmod(batch.num_rows, SMALL_ROWS)
    first = _as_tfrecord(f"{folder}/first", batch.slice(0, SMALL_ROWS))
    last = _as_tfrecord(f"{folder}/last", batch.slice(0, rest))
    for number, data in enumerate([first] * whole + [last] * bool(rest)):
        Path(folder, "small", f"part-{number:05}.tfrecord").write_bytes(data)
    if has_parquet:
        table = pa.table(batch)
        os.mkdir(f"{folder}/big-parquet")
        path = f"{folder}/big-parquet/part.0.parquet"
        pq.write_table(table, path, compression="none", row_group_size=-(-batch.num_rows // FILES))
        os.mkdir(f"{folder}/small-parquet")
        pq.write_table(table.slice(0, SMALL_ROWS), f"{folder}/one.parquet", compression="none")
        data = Path(folder, "one.parquet").read_bytes()
        for number in range(whole):  # the largest size has no rest
            Path(folder, "small-parquet", f"part.{number}.parquet").write_bytes(data)


def _as_tfrecord(path: str, batch: pa.RecordBatch) -> bytes:
    dask_tfrecord.to_tfrecord(collection([to_pandas(batch)]), path)
    [file] = Path(path).glob("part-*")
    return file.read_bytes()
