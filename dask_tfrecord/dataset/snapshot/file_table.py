"""The file list of a snapshot: a table with a row for each file, as `from_entries` makes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.snapshot.column_statistics import value_name
from dask_tfrecord.errors import Remedy, TFRecordError
from dask_tfrecord.files.part_names import run_of
from dask_tfrecord.schema.model import Field

# An append stores only the files that it adds to a base, as long as they are at most this part of the
# files of the base.
DELTA_PART = 0.1


@dataclass(frozen=True)
class Base:
    """The file of a full snapshot that other snapshots add files to.

    Attributes
    ----------
    version : int
        The number of the snapshot.
    crc32c : int
        CRC-32C of the bytes of its file. It distinguishes the file from another one with the same number.
    """

    version: int
    crc32c: int


class Stored(NamedTuple):
    """How the file list of a snapshot is stored.

    Attributes
    ----------
    path : str
        Where the snapshot is stored, for errors.
    base : Base
        The base that the next append may add to.
    added : pyarrow.Table
        The files that are not in the base.
    """

    path: str
    base: Base
    added: pa.Table

    def is_delta(self, files: pa.Table) -> bool:
        """Return True if the added files are few enough among these files to be stored alone."""
        return len(self.added) <= DELTA_PART * (len(files) - len(self.added))


def concatenate(tables: list[pa.Table]) -> pa.Table:
    """Return the rows of several tables. A column that a table does not have is null in its rows."""
    return pa.concat_tables(tables, promote_options="default")


def rows_of_run(rows: pa.Table, run: str) -> pa.Table:
    """Return the rows of the files that a write made."""
    candidates = rows.filter(pc.match_substring(rows["path"], f"part-{run}-"))
    return candidates.filter(
        pa.array([run_of(path) == run for path in candidates["path"].to_pylist()], pa.bool_())
    )


def partition_columns(rows: pa.Table, partitioning: Sequence[Field]) -> pa.Table:
    """Return the partition columns, with a row for each file. Categories are their values."""
    return pa.table({item.name: rows[value_name(item.name)] for item in partitioning})


def by_directory(rows: pa.Table) -> pa.Table:
    """Make the files of each directory adjacent, and keep their order otherwise."""
    directories = pc.replace_substring_regex(rows["path"], r"/?[^/]*\z", "")
    codes = directories.combine_chunks().dictionary_encode().indices.to_numpy()
    if bool(np.all(codes[1:] >= codes[:-1])):
        return rows
    return rows.take(pa.array(np.argsort(codes, kind="stable")))


def invalid_snapshot(error: Exception, path: str) -> TFRecordError:
    """Return the error for a file that is not the file of a snapshot."""
    remedy = Remedy("use_snapshot", False, "read the data files without it")
    return TFRecordError(f"not a valid snapshot ({error})", path=path, remedies=[remedy])
