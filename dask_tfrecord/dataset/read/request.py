"""What a caller asks to read: the keywords of `read_tfrecord` that decide which data is read."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow.compute as pc

from dask_tfrecord.dataset.query.filters import names_in
from dask_tfrecord.dataset.read.layouts import WantedSplits
from dask_tfrecord.dataset.read.requested_columns import (
    GivenHive,
    GivenSchema,
    RequestedColumns,
    parse_columns,
)
from dask_tfrecord.files.inference import AskedType
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.storage.filesystem import Filesystem
from dask_tfrecord.lazy import cached_property

Infer = Literal["sample", "all"]


@dataclass(frozen=True)
class ReadRequest:
    """What the caller requests: the keywords of `read_tfrecord` that decide which data is read.

    Attributes
    ----------
    columns : iterable of str, optional
        The only columns that are read; None reads all. Columns that `filters` names are read too. A column
        that is not read causes no error.
    version : int, optional
        The version of the dataset; None is the newest.
    schema, hive, use_snapshot, record_type, infer, filters, storage_options, filesystem
        The keywords of `read_tfrecord`.
    split : str, tuple of str, optional
        A split, several splits, or "all". None raises if the path holds several splits that no partition
        column tells apart.
    options : ReadOptions
        How files are read.
    blocksize : int, optional
        Stored bytes of a partition; None makes a partition of each file.
    whole_files : bool
        True if files that a snapshot lists are not split.
    partition_by : tuple of str
        The partition columns that make a key. If there are any, a partition is made of each file, and
        `Dataset.keys` has the partitions of each key.
    """

    columns: Iterable[str] | None = None
    schema: GivenSchema | None = None
    hive: GivenHive = True
    use_snapshot: bool = True
    version: int | None = None
    record_type: AskedType = "infer"
    infer: Infer = "sample"
    filters: Any = None
    split: WantedSplits = None
    options: ReadOptions = field(default_factory=ReadOptions)
    blocksize: int | None = None
    whole_files: bool = False
    partition_by: tuple[str, ...] = ()
    storage_options: dict[str, Any] | None = field(default=None, repr=False)
    filesystem: Filesystem = field(default=None, repr=False)

    @cached_property
    def requested(self) -> RequestedColumns:
        """The columns that `schema` and `hive` request. Raises as `parse_columns` does."""
        return parse_columns(self.schema, self.hive)

    def is_requested(self, name: str) -> bool:
        """Return True if a column is read."""
        if name in self.requested.excluded:
            return False
        if self.columns is None or name in {*self.columns, *names_in(self.filters), *self.partition_by}:
            return True
        # A pyarrow expression does not list its columns.
        expression = str(self.filters) if isinstance(self.filters, pc.Expression) else ""
        return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", expression) is not None

    @property
    def known_record_type(self) -> AskedType:
        """The record type that the caller gives, by itself or in a whole schema; else "infer"."""
        stated = self.requested.record_type or "infer"
        return stated if self.record_type == "infer" else self.record_type
