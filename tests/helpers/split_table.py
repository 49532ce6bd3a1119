"""The split of a whole file, and a split as one table."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from dask_tfrecord.dataset.listing import list_files
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.record_file import TableReader
from dask_tfrecord.files.splits import Split
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store


def whole_file(path: Path | str, storage_options: dict[str, Any] | None = None) -> tuple[Store, Split]:
    """List a file, and return its store and the split that has all of its records."""
    store, files, *_ = list_files(path, storage_options)
    [file] = files.infos
    return store, Split(file)


def read_table(
    store: Store, split: Split, schema: Schema, options: ReadOptions, *, known: Any = None, **more: Any
) -> pa.Table:
    tables = [*TableReader(store, schema, options, known).read(split, **more)]
    return pa.concat_tables(tables or [schema.arrow.empty_table()])
