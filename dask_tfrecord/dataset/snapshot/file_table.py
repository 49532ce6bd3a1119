"""Store the file list of a snapshot in one Parquet file, or as the difference to another snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.snapshot.column_statistics import VERSION, value_name
from dask_tfrecord.errors import WITHOUT_SNAPSHOT, TFRecordError
from dask_tfrecord.files.part_names import run_of
from dask_tfrecord.schema.field import Field

# An append stores only the added files if their number is at most this fraction of the number of files in the
# base.
DELTA_PART = 0.1


@dataclass(frozen=True)
class Base:
    """The Parquet file of a snapshot that lists all of its files, to which later snapshots add files.

    Attributes
    ----------
    version : int
        The number of the base's snapshot.
    crc32c : int
        CRC-32C of the bytes of the base's Parquet file. This checksum distinguishes the base from another
        snapshot with the same number.
    """

    version: int
    crc32c: int


class Stored(NamedTuple):
    """The way in which the file list of a snapshot is stored.

    Attributes
    ----------
    path : str
        The path of the snapshot's Parquet file, for error messages.
    base : Base
        The base to whose file list the next append may add files.
    added : pyarrow.Table
        The file list of those files of the snapshot that the base does not list.
    """

    path: str
    base: Base
    added: pa.Table

    def is_delta(self, files: pa.Table) -> bool:
        """Return True if a snapshot of ``files`` may store only the added files, because there are few."""
        return len(self.added) <= DELTA_PART * (len(files) - len(self.added))


def concatenate(tables: list[pa.Table]) -> pa.Table:
    """Concatenate tables whose columns may differ.

    If a table lacks a column, the column is null in the rows of this table.
    """
    return pa.concat_tables(tables, promote_options="default")


def rows_of_run(rows: pa.Table, run: str) -> pa.Table:
    """Return the rows of a file list whose files were written by the run with the id `run`."""
    candidates = rows.filter(pc.match_substring(rows["path"], f"part-{run}-"))
    return candidates.filter(
        pa.array([run_of(path) == run for path in candidates["path"].to_pylist()], pa.bool_())
    )


def identities(rows: pa.Table) -> list[tuple[str, int]]:
    """Return the path and the CRC-32C of each file of a file list. Together they identify a file."""
    return [*zip(rows["path"].to_pylist(), rows["crc32c"].to_pylist(), strict=True)]


def with_known_versions(rows: pa.Table, known: pa.Table) -> pa.Table:
    """Return a file list in which the files of another file list have the version of the other file list.

    All other files have no version, so they count as added by the snapshot that will list them.
    """
    version_of = dict(zip(identities(known), known[VERSION].to_pylist(), strict=True))
    versions = pa.array([version_of.get(file) for file in identities(rows)], pa.int64())
    return rows.select([name for name in rows.column_names if name != VERSION]).append_column(
        VERSION, versions
    )


def partition_columns(rows: pa.Table, partitioning: Sequence[Field]) -> pa.Table:
    """Return a table of the partition columns, with a row for each file.

    The values of a dictionary column replace its codes.
    """
    return pa.table({item.name: rows[value_name(item.name)] for item in partitioning})


def by_directory(rows: pa.Table) -> pa.Table:
    """Reorder a file list so that the files of each directory are adjacent.

    The files of a directory keep their order.
    """
    paths = rows["path"]
    # A regular expression would take three times as long.
    parents = pc.list_element(pc.split_pattern(paths, "/", max_splits=1, reverse=True), 0)
    directories = pc.if_else(pc.match_substring(paths, "/"), parents, "")
    codes = directories.combine_chunks().dictionary_encode().indices.to_numpy()
    if bool(np.all(codes[1:] >= codes[:-1])):
        return rows
    return rows.take(pa.array(np.argsort(codes, kind="stable")))


def invalid_snapshot(error: Exception, path: str) -> TFRecordError:
    """Return the exception for a file that is not a valid snapshot file."""
    remedy = WITHOUT_SNAPSHOT
    return TFRecordError(f"not a valid snapshot ({error})", remedy, path=path)
