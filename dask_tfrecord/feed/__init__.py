"""Feed datasets to training: provide Arrow batches, random access, and loaders for the training frameworks.

Importing this package does not import any training framework.
"""

from typing import TYPE_CHECKING

from dask_tfrecord.feed.batches import Batches, iter_batches, mix
from dask_tfrecord.feed.record_table import RecordTable
from dask_tfrecord.keywords.foreign_names import module_attributes

__all__ = ["Batches", "RecordTable", "iter_batches", "mix"]

if not TYPE_CHECKING:  # type checkers would accept any attribute of a module with `__getattr__`
    __getattr__, __dir__ = module_attributes("feed", __name__, __all__)
