"""Find the values of partition columns for each file, from directory names or from a snapshot."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from dask_tfrecord.dataset.partitioning import hive
from dask_tfrecord.dataset.read.requested_columns import RequestedColumns, unknown_column
from dask_tfrecord.dataset.snapshot.file_table import partition_columns
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.errors import IGNORE_DIRECTORIES, Remedy, SchemaError
from dask_tfrecord.files.storage.listing import Listing
from dask_tfrecord.files.storage.paths import parent_of, unquoted_path
from dask_tfrecord.schema.conversion import convert
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.model import Schema
from dask_tfrecord.schema.storage_types import value_type
from dask_tfrecord.schema.storage_values import MisfitError


def values_from_directories(listing: Listing, requested: RequestedColumns) -> dict[str, pa.Array]:
    """Parse the values of partition columns from the directory names of listed files. Return a map from the
    name of each column to its value in each file.

    If the user passed one directory, only the names of directories below this directory are parsed. For
    files, lists and globs, the names of all directories in each path are parsed.

    Raises
    ------
    SchemaError
        If a value does not fit the given type, or if ``hive=`` gives a type for a column that no path has.
    """
    if not requested.hive:
        return {}
    start = len(unquoted_path(listing.base))
    directories = [parent_of(unquoted_path(path)[start:]) for path in listing.paths]
    try:
        texts = hive.value_texts(directories)
        for name in requested.hive_types:
            if name not in texts:
                raise unknown_column("hive", name, list(texts), "no directory has the partition column")
        types = {
            name: requested.partition_type(name) or hive.infer_type(column)
            for name, column in texts.items()
            if not requested.is_whole_schema or name in requested.types or name in requested.hive_types
        }
        values = {name: hive.to_values(name, texts[name], one, directories) for name, one in types.items()}
    except SchemaError as error:
        remedies = [IGNORE_DIRECTORIES]
        if error.feature in requested.types or error.feature in requested.hive_types:
            remedies.insert(0, Remedy("hive", {error.feature: pa.string()}, "read the names as text"))
        raise error.replaced(path=listing.store.public(), remedies=remedies) from None
    return {name: column for name, column in values.items() if name not in requested.excluded}


def values_from_snapshot(snapshot: Snapshot, schema: Schema) -> dict[str, pa.Array]:
    """Return the values of a snapshot's partition columns, as a map from the name of each column to its value
    in each file. Columns that are not in the schema are omitted.


    Raises
    ------
    SchemaError
        If the values of a partition column do not fit the column's type in the schema.
    """
    types = {item.name: value_type(item.type) for item in schema.fields}
    columns = {}
    stored = partition_columns(snapshot.file_list, snapshot.partitioning)
    for name in stored.column_names:
        if name not in types:
            continue
        values = stored[name].combine_chunks()
        try:
            columns[name] = convert(values, types[name])
        except (MisfitError, pa.ArrowException) as error:
            problem = f"the partition values are {values.type} and cannot be read as {types[name]}: {error}"
            raise SchemaError(problem, "give no type for the column", feature=name) from None
    return columns


def partition_fields(values: Mapping[str, pa.Array], requested: RequestedColumns) -> tuple[Field, ...]:
    """Return a `Field` for each partition column, with the requested type or the type of its values."""
    types = [(name, requested.partition_type(name) or column.type) for name, column in values.items()]
    return Schema.from_arrow(pa.schema(types)).fields if types else ()


def with_partition_columns(
    schema: Schema, partitioning: Sequence[Field], requested: RequestedColumns
) -> Schema:
    """Append the partition columns to a schema. If a whole schema was given, use the order of its columns."""
    columns = Schema((*schema.fields, *partitioning), schema.record_type)
    if not requested.is_whole_schema:
        return columns
    others = [item.name for item in partitioning if item.name not in requested.types]
    return columns.select([*requested.types, *others])


def feature_clash(name: str) -> SchemaError:
    """Return the exception for a partition column and a feature of the same name if the user chose neither
    of them.
    """
    one_split = Remedy("split", "train", "read this split, or another one, without a column for it")
    return SchemaError(
        f"both a feature of the records and a partition column ({name}=...) have this name",
        Remedy("hive", False, "read the feature of the records"),
        Remedy("hive", {name: pa.string()}, "read the values in the directory names"),
        *[one_split] * (name == "split"),
        feature=name,
    )


def payload_clash(name: str) -> SchemaError:
    """Return the exception for a partition column that has the same name as the payload column."""
    problem = f"both the payload column and a partition column ({name}=...) have this name"
    remedy = Remedy("schema", {"payload": pa.binary()}, "give the payloads another name")
    return SchemaError(problem, remedy, IGNORE_DIRECTORIES, feature=name)
