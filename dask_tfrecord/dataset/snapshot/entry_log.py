"""Define the entries of a version: its data files, which are read when they are first needed."""

from collections.abc import Callable
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

    @classmethod
    def of(cls, files: FileList) -> "Totals":
        return cls(len(files), *(pc.sum(files[name]).as_py() or 0 for name in ("records", "bytes")))


@dataclass(frozen=True, eq=False, repr=False)
class EntryLog:
    """The entries of a version.

    Attributes
    ----------
    source : FileList or callable
        The entries, or a function that reads them.
    known : Totals, optional
        The totals that the version stores, or None to compute them.
    """

    source: FileList | Callable[[], FileList]
    known: Totals | None = None

    @cached_property
    def files(self) -> FileList:
        return self.source if isinstance(self.source, FileList) else self.source()

    @cached_property
    def totals(self) -> Totals:
        return self.known or Totals.of(self.files)
