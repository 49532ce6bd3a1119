"""Feed datasets to training: provide Arrow batches, random access, and loaders for the training frameworks.

Only the module with the name of a training framework imports the framework.
"""

from dask_tfrecord.feed.batches import Batches, iter_batches
from dask_tfrecord.feed.record_table import RecordTable

__all__ = ["Batches", "RecordTable", "iter_batches"]
