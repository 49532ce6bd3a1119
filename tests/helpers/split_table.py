"""Read a split as one table."""

from typing import Any

import pyarrow as pa

from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.record_file import read_split
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.fields import Schema


def read_table(store: Store, split: Split, schema: Schema, options: ReadOptions, **more: Any) -> pa.Table:
    tables = [*read_split(store, split, schema, options, **more)]
    return pa.concat_tables(tables or [schema.arrow.empty_table()])
