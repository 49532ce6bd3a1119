"""Make TFRecord a first-class format of Dask DataFrame.

`read_tfrecord` reads TFRecord files, and `to_tfrecord` writes TFRecord files. Importing the package also adds
both functions to Dask, as ``dask.dataframe.read_tfrecord`` and as the method ``DataFrame.to_tfrecord``.
"""

import logging

from dask_tfrecord import accessor, config
from dask_tfrecord.dataset.maintenance.compacting import Compacted
from dask_tfrecord.dataset.maintenance.deleting import Deleted
from dask_tfrecord.dataset.maintenance.expiring import Expired
from dask_tfrecord.dataset.maintenance.repairing import Repaired
from dask_tfrecord.dataset.snapshot.metadata import library_version
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.described_schema import from_tfds, from_tfmd
from dask_tfrecord.description import ColumnDescription, Description, inspect
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
from dask_tfrecord.explaining import Explanation, explain
from dask_tfrecord.exporting import export, metadata_schema
from dask_tfrecord.feed.arrow_dataset import TFRecordDataset
from dask_tfrecord.feed.batches import Batches, iter_batches
from dask_tfrecord.feed.record_table import RecordTable
from dask_tfrecord.files.entry import Block, ColumnStatistics, FileEntry
from dask_tfrecord.files.storage.redaction import hide_secrets
from dask_tfrecord.filtering import filter_mask
from dask_tfrecord.housekeeping import cleanup, exists, find_dataset, repair
from dask_tfrecord.inspection import index, verify
from dask_tfrecord.random_access import take
from dask_tfrecord.reader import read_tfrecord
from dask_tfrecord.rewriting import compact, delete
from dask_tfrecord.row_writer import Writer
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.model import Schema
from dask_tfrecord.schema.type_names import arrow_type
from dask_tfrecord.versioning import expire, restore
from dask_tfrecord.writer import to_tfrecord

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
config.limit_memory_pool()
