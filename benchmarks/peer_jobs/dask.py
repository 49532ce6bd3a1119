"""Run dask_tfrecord, and Dask's own Parquet functions on the same partitions."""

import dask
import dask.dataframe as dd

import dask_tfrecord
from benchmarks.peer_jobs import Pass, Ways, Work
from benchmarks.peer_jobs.data import FILES, KEY, with_key
from benchmarks.read import compute_and_drop
from benchmarks.write import collection, slices, to_pandas

dask.config.set(scheduler="threads")


def _collection(work: Work, keyed: bool = False) -> dd.DataFrame:
    table = with_key(work.source()) if keyed else work.source()
    [batch] = table.combine_chunks().to_batches()
    return collection([to_pandas(part) for part in slices(batch, FILES)])


def write(work: Work) -> Pass:
    ddf = _collection(work)
    return lambda path: dask_tfrecord.to_tfrecord(ddf, path, compression=work.codec).records


def write_partitioned(work: Work) -> Pass:
    ddf = _collection(work, keyed=True)
    return lambda path: dask_tfrecord.to_tfrecord(ddf, path, partition_on=KEY).records


def read(work: Work) -> Pass:
    path = f"{work.root}/{work.files}"
    columns = None if len(work.columns) == len(work.features) else work.columns
    # A partition is a file, as in Parquet; the one big file is split, and small files share partitions.
    blocksize = {"big": "16 MiB", "small": "default"}.get(work.files)
    return lambda _: compute_and_drop(dask_tfrecord.read_tfrecord(path, columns=columns, blocksize=blocksize))


def infer(work: Work) -> Pass:
    """Infer the schema from every record."""

    def look(_: str) -> int:
        ddf = dask_tfrecord.read_tfrecord(f"{work.root}/{work.files}", infer="all")
        return work.rows if set(ddf.columns) == set(work.features) else 0

    return look


def count(work: Work) -> Pass:
    """Count the records of files without a snapshot."""
    return lambda _: len(dask_tfrecord.read_tfrecord(f"{work.root}/{work.files}"))


def write_parquet(work: Work) -> Pass:
    ddf = _collection(work)
    return lambda path: _written(ddf, path, work, compression=work.codec)


def write_parquet_partitioned(work: Work) -> Pass:
    ddf = _collection(work, keyed=True)
    return lambda path: _written(ddf, path, work, compression=None, partition_on=[KEY])


def read_parquet(work: Work) -> Pass:
    columns = None if len(work.columns) == len(work.features) else work.columns
    path = f"{work.root}/{work.files}-parquet"
    # A row group of the one big file is a partition, as a block of the TFRecord file is.
    split = True if work.files == "big" else "infer"

    def read_all(_: str) -> int:
        return compute_and_drop(
            dd.read_parquet(path, columns=columns, split_row_groups=split, dtype_backend="pyarrow")
        )

    return read_all


def _written(ddf: dd.DataFrame, path: str, work: Work, **options: object) -> int:
    ddf.to_parquet(path, write_index=False, **options)
    return work.rows


WAYS: Ways = {
    "ours": {
        "write": write,
        "partition_on": write_partitioned,
        "read": read,
        "infer": infer,
        "count": count,
    },
    "parquet": {"write": write_parquet, "partition_on": write_parquet_partitioned, "read": read_parquet},
}
