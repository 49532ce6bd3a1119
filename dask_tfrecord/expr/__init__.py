"""Define the Dask expressions of reads and writes. Only the package `dask_tfrecord.expr` imports private
names of Dask.

The private names of Dask were checked on Dask 2025.5.1 to 2026.8. The packages `dataset` and `frames` do the
work inside the tasks.
"""

from dask_tfrecord.expr.lineage import check_not_read, large_strings, parquet_types, read_types
from dask_tfrecord.expr.reading import read
from dask_tfrecord.expr.string_conversion import check_string_conversions, read_schemas, was_computed
from dask_tfrecord.expr.writing import write

__all__ = [
    "check_not_read",
    "check_string_conversions",
    "large_strings",
    "parquet_types",
    "read",
    "read_schemas",
    "read_types",
    "was_computed",
    "write",
]
