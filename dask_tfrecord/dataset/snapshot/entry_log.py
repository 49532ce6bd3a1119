"""Define the entries of a version: its data files, and their totals."""

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow.compute as pc

from dask_tfrecord.files.storage.file_list import FileList
from dask_tfrecord.lazy import cached_property


class Totals(NamedTuple):
    """The totals of a version: its files, their records, and their stored size in bytes."""

    files: int
    records: int
    bytes: int


@dataclass(frozen=True, eq=False, repr=False)
class EntryLog:
    """The entries of a version, in the order in which its writes added them."""

    files: FileList

    @cached_property
    def totals(self) -> Totals:
        sums = (pc.sum(self.files[name]).as_py() or 0 for name in ("records", "bytes"))
        return Totals(len(self.files), *sums)
