"""TFRecord as a first-class format of Dask DataFrame: ``ddf.to_tfrecord`` and ``dd.read_tfrecord``."""

from dask_tfrecord import accessor
from dask_tfrecord.dataset.snapshot.model import Snapshot, library_version
from dask_tfrecord.errors import (
    ConcurrentWriteError,
    CorruptRecordError,
    CorruptRecordWarning,
    DestinationError,
    FileChangedError,
    SchemaError,
    TFRecordError,
)
from dask_tfrecord.housekeeping import cleanup, exists
from dask_tfrecord.inspection import index, verify
from dask_tfrecord.random_access import take
from dask_tfrecord.reader import read_tfrecord
from dask_tfrecord.writer import to_tfrecord

__all__ = [
    "ConcurrentWriteError",
    "CorruptRecordError",
    "CorruptRecordWarning",
    "DestinationError",
    "FileChangedError",
    "SchemaError",
    "Snapshot",
    "TFRecordError",
    "cleanup",
    "exists",
    "index",
    "read_tfrecord",
    "take",
    "to_tfrecord",
    "verify",
]
__version__ = library_version()

accessor.install()
