"""Read and write TFRecord files as Dask DataFrames.

The main functions are `read_tfrecord` and `to_tfrecord`. Importing the package adds both functions to Dask:
as ``dask.dataframe.read_tfrecord``, and as the method ``DataFrame.to_tfrecord``.
"""

import logging
import sys
from typing import TYPE_CHECKING

from dask_tfrecord import feed as feed  # the alias tells type checkers that `feed` is public
from dask_tfrecord.api import add_to_dask
from dask_tfrecord.api.dataset import Dataset, exists, open_dataset
from dask_tfrecord.api.read import read_tfrecord
from dask_tfrecord.api.schemas import from_tfds, from_tfmd
from dask_tfrecord.api.writer import Writer
from dask_tfrecord.dataset.snapshot.model import Commit
from dask_tfrecord.dataset.snapshot.versions import library_version
from dask_tfrecord.errors import (
    ConcurrentWriteError,
    CorruptRecordError,
    CorruptRecordWarning,
    DestinationError,
    FileChangedError,
    KeywordError,
    NotFoundError,
    RemedyWarning,
    SchemaError,
    TFRecordError,
)
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.foreign_names import Delegate, module_attributes
from dask_tfrecord.schema.fields import Field, Schema

if TYPE_CHECKING:
    from dask_tfrecord.api.explain import explain
    from dask_tfrecord.api.write import to_tfrecord

__all__ = [
    "Commit",
    "ConcurrentWriteError",
    "CorruptRecordError",
    "CorruptRecordWarning",
    "Dataset",
    "DestinationError",
    "Field",
    "FileChangedError",
    "KeywordError",
    "NotFoundError",
    "RemedyWarning",
    "Schema",
    "SchemaError",
    "TFRecordError",
    "Writer",
    "exists",
    "explain",
    "open_dataset",
    "read_tfrecord",
    "to_tfrecord",
]
# Without this handler, Python prints logged warnings and errors to stderr unless the program configures
# logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())
__version__ = library_version()

if not TYPE_CHECKING:  # type checkers would accept any attribute of a module with `__getattr__`
    __getattr__, __dir__ = module_attributes(
        "package",
        __name__,
        [*__all__, "feed"],
        [Delegate(Dataset, "dask_tfrecord.open_dataset(path)"), Delegate("dask.dataframe", "dask.dataframe")],
        # These modules import `dask.dataframe`, which most commands of `dask-tfrecord` do not need.
        on_demand={"explain": "dask_tfrecord.api.explain", "to_tfrecord": "dask_tfrecord.api.write"},
    )

if not getattr(sys.modules.get("dask_tfrecord_launcher"), "runs_command", False):
    add_to_dask()
Schema.from_tfds, Schema.from_tfmd = staticmethod(from_tfds), staticmethod(from_tfmd)
arguments.limit_memory_pool()
