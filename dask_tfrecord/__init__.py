"""Make TFRecord a first-class format of Dask DataFrame.

`read_tfrecord` reads TFRecord files, and `to_tfrecord` writes TFRecord files. Importing the package also adds
both functions to Dask, as ``dask.dataframe.read_tfrecord`` and as the method ``DataFrame.to_tfrecord``.
"""

import logging

from dask_tfrecord import arguments
from dask_tfrecord.collection import accessor
from dask_tfrecord.collection.reader import read_tfrecord
from dask_tfrecord.collection.writer import to_tfrecord
from dask_tfrecord.dataset.maintenance.metadata_commits import Expired, Repaired
from dask_tfrecord.dataset.maintenance.rewrites import Compacted, Deleted
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.versions import library_version
from dask_tfrecord.dataset_scans import index, verify
from dask_tfrecord.description import ColumnDescription, Description, Explanation, explain, inspect
from dask_tfrecord.errors import (
    Call,
    ConcurrentWriteError,
    CorruptRecordError,
    CorruptRecordWarning,
    DestinationError,
    FileChangedError,
    KeywordError,
    NotFoundError,
    Remedy,
    RemedyWarning,
    SchemaError,
    TFRecordError,
)
from dask_tfrecord.exports import export, from_tfds, from_tfmd, metadata_schema
from dask_tfrecord.feed.arrow_dataset import TFRecordDataset
from dask_tfrecord.feed.batches import Batches, iter_batches
from dask_tfrecord.feed.record_table import RecordTable
from dask_tfrecord.files.entry import Block, ColumnStatistics, FileEntry
from dask_tfrecord.files.storage.store_failures import hide_secrets
from dask_tfrecord.row_selection import filter_mask, take
from dask_tfrecord.row_writer import Writer
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import arrow_type
from dask_tfrecord.table_operations import (
    cleanup,
    compact,
    delete,
    exists,
    expire,
    find_dataset,
    repair,
    restore,
)

__all__ = [
    "Batches",
    "Block",
    "Call",
    "ColumnDescription",
    "ColumnStatistics",
    "Compacted",
    "ConcurrentWriteError",
    "CorruptRecordError",
    "CorruptRecordWarning",
    "Deleted",
    "Description",
    "DestinationError",
    "Expired",
    "Explanation",
    "Field",
    "FileChangedError",
    "FileEntry",
    "KeywordError",
    "NotFoundError",
    "RecordTable",
    "Remedy",
    "RemedyWarning",
    "Repaired",
    "Schema",
    "SchemaError",
    "Snapshot",
    "TFRecordDataset",
    "TFRecordError",
    "Writer",
    "arrow_type",
    "cleanup",
    "compact",
    "delete",
    "exists",
    "expire",
    "explain",
    "export",
    "filter_mask",
    "find_dataset",
    "hide_secrets",
    "index",
    "inspect",
    "iter_batches",
    "metadata_schema",
    "read_tfrecord",
    "repair",
    "restore",
    "take",
    "to_tfrecord",
    "verify",
]
# The application configures where log messages go.
logging.getLogger(__name__).addHandler(logging.NullHandler())
__version__ = library_version()

accessor.install()
Schema.from_tfds, Schema.from_tfmd = staticmethod(from_tfds), staticmethod(from_tfmd)
arguments.limit_memory_pool()
