"""Run dask_tfrecord, and Dask's own Parquet functions on the same partitions."""

import os
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd

import dask_tfrecord
from benchmarks.own.tables import compute_and_drop, table_collection
from benchmarks.peers.files_data import FILES, KEY, with_key
from benchmarks.peers.tools import Pass, Used, Ways, Work

USED = (
    Used("`to_tfrecord` and `read_tfrecord`, on Dask's threads", "docs/reading.md, docs/writing.md"),
    Used(
        'Parquet: `read_parquet` with the filesystem "fsspec" or "arrow", whichever is faster; `to_parquet` '
        "without an index; dtypes are those that both packages give by default",
        "https://docs.dask.org/en/stable/generated/dask.dataframe.read_parquet.html",
    ),
)

dask.config.set(scheduler="threads")


def _collection(work: Work, keyed: bool = False) -> dd.DataFrame:
    table = with_key(work.source()) if keyed else work.source()
    [batch] = table.combine_chunks().to_batches()
    return table_collection(batch, FILES)


def write(work: Work) -> Pass:
    ddf = _collection(work)
    codec: Any = None if work.codec == "default" else work.codec
    return lambda path: (
        dask_tfrecord.to_tfrecord(
            ddf, path, compression=codec, write_options={"compression_level": work.level}
        ).rows
    )


def write_partitioned(work: Work) -> Pass:
    ddf = _collection(work, keyed=True)
    return lambda path: dask_tfrecord.to_tfrecord(ddf, path, partition_on=KEY).rows


def read(work: Work) -> Pass:
    path = f"{work.root}/{work.files}"
    columns = None if len(work.columns) == len(work.features) else work.columns
    # A partition is a file, as in Parquet; the one big file is split, and small files share partitions.
    blocksize = {"big": "16 MiB", "small": "default"}.get(work.files)
    return lambda _: compute_and_drop(dask_tfrecord.read_tfrecord(path, columns=columns, blocksize=blocksize))


def infer(work: Work) -> Pass:
    """Infer the schema from every record."""

    def look(_: str) -> int:
        ddf = dask_tfrecord.read_tfrecord(f"{work.root}/{work.files}", read_options={"infer": "all"})
        return work.rows if set(ddf.columns) == set(work.features) else 0

    return look


def count(work: Work) -> Pass:
    """Count the records of files without a snapshot."""
    return lambda _: len(dask_tfrecord.read_tfrecord(f"{work.root}/{work.files}"))


def write_parquet(work: Work) -> Pass:
    ddf = _collection(work)
    options: dict[str, Any] = {} if work.codec == "default" else {"compression": work.codec}
    if work.level is not None:
        options["compression_level"] = work.level
    return lambda path: _written(ddf, path, work, **options)


def write_parquet_partitioned(work: Work) -> Pass:
    ddf = _collection(work, keyed=True)
    return lambda path: _written(ddf, path, work, compression=None, partition_on=[KEY])


def read_parquet(work: Work, filesystem: str) -> Pass:
    columns = None if len(work.columns) == len(work.features) else work.columns
    path = f"{work.root}/{work.files}-parquet"
    options: dict[str, Any] = {"filesystem": filesystem}
    if work.files == "big" and filesystem != "arrow":  # which cannot split files
        options["split_row_groups"] = True  # a row group is a partition, as a block of the TFRecord file is

    def read_all(_: str) -> int:
        return compute_and_drop(dd.read_parquet(path, columns=columns, **options))

    return read_all


def _written(ddf: dd.DataFrame, path: str, work: Work, **options: object) -> int:
    ddf.to_parquet(path, write_index=False, **options)
    return work.rows


def raw_write(work: Work) -> Pass:
    """Write the bytes of the files that this package wrote."""
    contents = [Path(path).read_bytes() for path in work.paths()]

    def write_one(path: str, content: bytes) -> None:
        with open(path, "wb", buffering=0) as file:
            file.write(content)

    def write_all(path: str) -> int:
        os.mkdir(path)
        _on_threads(write_one, [(f"{path}/{number}", content) for number, content in enumerate(contents)])
        return work.rows

    return write_all


def raw_read(work: Work) -> Pass:
    """Read the bytes of the files into a buffer that is used again."""

    def read_one(path: str) -> None:
        buffer = bytearray(1 << 20)
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    def read_all(_: str) -> int:
        _on_threads(read_one, [(path,) for path in work.paths()])
        return work.rows

    return read_all


def _on_threads(function: Callable[..., None], calls: list[tuple[Any, ...]]) -> None:
    with ThreadPool(os.cpu_count()) as pool:
        pool.starmap(function, calls)


WAYS: Ways = {
    "ours": {"write": write, "partition_on": write_partitioned, "read": read, "infer": infer, "count": count},
    "parquet": {
        "write": write_parquet,
        "partition_on": write_parquet_partitioned,
        "read": lambda work: read_parquet(work, "fsspec"),
    },
    "parquet, arrow": {"read": lambda work: read_parquet(work, "arrow")},
    "raw": {"write": raw_write, "read": raw_read},
}
