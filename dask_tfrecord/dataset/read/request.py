"""Define one object for the keywords of `read_tfrecord` that decide which data is read."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

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
from dask_tfrecord.schema.tfds import Labels

Infer = Literal["sample", "all"]


@dataclass(frozen=True)
class ReadRequest:
    """The data that the caller requests with the keywords of `read_tfrecord`.

    Attributes
    ----------
    columns : iterable of str, optional
        The columns to read. If None, all columns are read. The columns that `filters` names are read in
        addition. Errors that concern only columns that are not read are not raised.
    version : int, optional
        The version of the dataset to read. If None, the newest version is read.
    schema, hive, use_snapshot, record_type, infer, filters, storage_options, filesystem
        The values of the keywords of the same names of `read_tfrecord`.
    split : str, tuple of str, optional
        The name of a split, the names of several splits, or "all". If None, all splits of a directory of
        TFDS or TFX are read, as with "all". For any other path, such as a glob or a list, reading without
        ``split`` raises an error if the path holds several splits that no partition column distinguishes.
    labels : {"names", "codes"}
        What the column of a class label of TFDS has: the name or the number of the class.
    options : ReadOptions
        The options for reading the files, such as the treatment of damaged records.
    blocksize : int, optional
        The largest number of stored bytes of a partition. If None, each file becomes one partition.
    whole_files : bool
        If True, files that a snapshot lists are not split.
    partition_by : tuple of str
        The names of the partition columns that form a key. If the tuple is not empty, each file becomes one
        partition, and `ReadPlan.keys` holds the partitions of each key.
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
    labels: Labels = "names"
    options: ReadOptions = field(default_factory=ReadOptions)
    blocksize: int | None = None
    whole_files: bool = False
    partition_by: tuple[str, ...] = ()
    storage_options: dict[str, Any] | None = field(default=None, repr=False)
    filesystem: Filesystem = field(default=None, repr=False)

    @cached_property
    def requested(self) -> RequestedColumns:
        """The columns that `schema` and `hive` request.

        Invalid values of these keywords raise the same errors as `parse_columns`.
        """
        return parse_columns(self.schema, self.hive)

    def is_requested(self, name: str) -> bool:
        """Return True if the column with this name is read."""
        if name in self.requested.excluded:
            return False
        if self.columns is None or self._names_in_filters is None:
            return True
        wanted = {*self.columns, *self.partition_by, *self._names_in_filters}
        return any(name == one or name.startswith(f"{one}/") for one in wanted)

    @cached_property
    def _names_in_filters(self) -> set[str] | None:
        return names_in(self.filters)

    @property
    def known_record_type(self) -> AskedType:
        """The record type that ``record_type=`` or a whole schema gives, or "infer" if neither gives one."""
        stated = self.requested.record_type or "infer"
        return stated if self.record_type == "infer" else self.record_type
