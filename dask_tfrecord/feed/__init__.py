"""Feed datasets to training: provide Arrow batches, random access, and loaders for the training frameworks.

Importing this package does not import any training framework.
"""

from dask_tfrecord.feed.batches import Batches, iter_batches
from dask_tfrecord.feed.record_table import RecordTable

__all__ = ["Batches", "RecordTable", "iter_batches"]
