"""Define which columns of a dataset are also stored in column files, and in which form snapshots list them.

The keyword ``columnar=`` names these columns. `dask_tfrecord.files.column_files` reads these files.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from dask_tfrecord.codec.columns import Column
from dask_tfrecord.dataset.snapshot.names import run_of_column_file
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.files.column_files import OFFSET
from dask_tfrecord.files.entry import COLUMN_FILE_NAMES, FileEntry, is_inside
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.model import Schema

# The names of the columns that are also stored in column files. "scalars" stands for all columns of numbers,
# booleans, dates, times and text that are no lists. Without names, only the offsets of records are stored.
Columnar: TypeAlias = tuple[str, ...] | Literal["scalars"]

_FIELDS = [pa.field("path", pa.string()), pa.field("bytes", pa.int64()), pa.field("crc32c", pa.uint32())]

# The name of the struct of a snapshot's Parquet file that names the column file of each data file.
COLUMN_FILE = "columns"


def columnar_features(schema: Schema, columnar: Columnar) -> tuple[Column, ...]:
    """Return the features to store in column files. Columns that a schema does not have are left out."""
    if columnar == "scalars":
        fields = [item for item in schema.fields if _is_small(item)]
    else:
        fields = [item for item in schema.fields if item.name in columnar]
    return tuple(dict.fromkeys(feature for item in fields for feature in item.features))


def _is_small(item: Field) -> bool:
    """Return True if a column has one number, date or text for each record."""
    return all(not one.depth and one.kind != "bytes" for one in item.features)


def check_columnar(columnar: Columnar, schema: Schema, partition_on: Sequence[str]) -> None:
    """Raise SchemaError if column files cannot hold the columns that ``columnar=`` names."""
    fields = {item.name: item for item in schema.fields}
    names = [name for name in fields if _is_small(fields[name])] if columnar == "scalars" else columnar
    for name in names:
        if name in partition_on:
            problem = "columnar= names a partition column, whose values are in the names of directories"
            raise SchemaError(problem, "leave it out of columnar=", feature=name)
        if name not in fields:
            known = ", ".join(map(repr, fields))
            raise SchemaError(
                f"columnar= names a column that does not exist; there are {known}", feature=name
            )
        features = fields[name].features
        if any(one.depth > 1 for one in features):
            raise SchemaError(
                f"columnar= names a column of {fields[name].type}, and column files hold no lists of lists",
                "leave it out of columnar=",
                feature=name,
            )
        if any(one.name == OFFSET for one in features):
            problem = "column files store the offsets of records under this name"
            advice = "rename the column, or pass a list without it as columnar="
            raise SchemaError(problem, advice, feature=name)


def parse_columnar(stored: Any) -> Columnar | None:
    """Return the value of ``columnar=`` that a snapshot stores. An unknown value counts as none."""
    if isinstance(stored, list) and all(isinstance(name, str) for name in stored):
        return tuple(stored)
    return "scalars" if stored == "scalars" else None


# -- Column files in file lists ------------------------------------------------------------------------------


def column_file_columns(files: Sequence[FileEntry]) -> dict[str, pa.Array]:
    """Return the columns of the file list of these files that name their column files."""
    found = [file.columns for file in files]
    if not any(found):
        return {}
    return {
        name: pa.array([one and getattr(one, item.name) for one in found], item.type)
        for name, item in zip(COLUMN_FILE_NAMES, _FIELDS, strict=True)
    }


def stored_column_files(rows: pa.Table) -> pa.StructArray:
    """Return the struct of a snapshot's Parquet file that names the column files of a file list."""
    arrays = [rows[name].combine_chunks() for name in COLUMN_FILE_NAMES]
    return pa.StructArray.from_arrays(arrays, fields=_FIELDS, mask=arrays[0].is_null())


def checked_column_files(stored: pa.ChunkedArray) -> dict[str, pa.Array]:
    """Check the untrusted struct of a snapshot's Parquet file that names column files."""
    arrays = stored.combine_chunks().cast(pa.struct(_FIELDS)).flatten()
    nulls = [array.is_null() for array in arrays]
    if not all(one.equals(nulls[0]) for one in nulls):
        raise ValueError("the size or the checksum of a column file is missing")
    for path in arrays[0].unique().drop_null().to_pylist():
        if run_of_column_file(path) is None or not is_inside(path):
            raise ValueError(f"the path {path!r} is not that of a column file")
    return dict(zip(COLUMN_FILE_NAMES, arrays, strict=True))


def listed_paths(rows: pa.Table) -> list[str]:
    """Return the paths of the data files of a file list, and of their column files."""
    names = [name for name in ("path", COLUMN_FILE_NAMES[0]) if name in rows.column_names]
    return [path for name in names for path in rows[name].unique().drop_null().to_pylist()]
