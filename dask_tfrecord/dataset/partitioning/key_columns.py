"""The partition columns of files, from the names of their directories or from a snapshot."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from dask_tfrecord.dataset.partitioning import hive
from dask_tfrecord.dataset.requested_columns import Wanted, _unknown
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.files.storage.listing import Listing, unquoted_path
from dask_tfrecord.files.storage.paths import parent_of
from dask_tfrecord.schema.conversion import convert
from dask_tfrecord.schema.model import Field, Schema
from dask_tfrecord.schema.storage_types import MisfitError, value_type


def key_columns(listing: Listing, wanted: Wanted) -> dict[str, pa.Array]:
    """The columns that the directories of a listing's files make: for each key the files' values.

    Below a directory that was asked for, its own name and those above are no keys; for all else every level
    of the path counts.

    Raises
    ------
    SchemaError
        For a value that does not fit the type that is given, and for given types of keys that no path has.
    """
    if not wanted.hive:
        return {}
    start = len(unquoted_path(listing.base))
    directories = [parent_of(unquoted_path(file.path)[start:]) for file in listing.files]
    try:
        return _key_values(directories, wanted)
    except SchemaError as error:
        advice = "pass hive=False to ignore what the directories are called"
        if error.feature in wanted.types or error.feature in wanted.keys:
            advice = f'pass hive={{"{error.feature}": pa.string()}}, or hive=False to ignore the directories'
        raise error.located(path=listing.store.public(listing.store.root), advice=advice) from None


def _key_values(directories: Sequence[str], wanted: Wanted) -> dict[str, pa.Array]:
    texts = hive.key_texts(directories)
    unknown = [name for name in wanted.keys if name not in texts]
    if unknown:
        raise _unknown("hive=", unknown[0], list(texts), "no directory has the key")
    types = {
        name: wanted.type_of(name) or hive.infer_type(found)
        for name, found in texts.items()
        if not wanted.whole or name in wanted.types or name in wanted.keys
    }
    return {name: hive.to_values(name, texts[name], type_, directories) for name, type_ in types.items()}


def key_fields(values: Mapping[str, pa.Array], wanted: Wanted) -> tuple[Field, ...]:
    """The fields of keys."""
    types = [(name, wanted.type_of(name) or found.type) for name, found in values.items()]
    return Schema.from_arrow(pa.schema(types)).fields if types else ()


def with_keys(schema: Schema, keys: Sequence[Field], wanted: Wanted) -> Schema:
    """All columns: those of the records, and those of the directories last, unless an order is given."""
    every = Schema((*schema.fields, *keys), schema.record_type)
    if not wanted.whole:
        return every
    more = [item.name for item in keys if item.name not in wanted.types]
    return every.select([*wanted.types, *more])


def key_clash(name: str) -> SchemaError:
    """The error for a key that is a feature as well, where it was not said that the directories decide."""
    return SchemaError(
        f"is in the records and also in the names of the directories, as {name}=...",
        feature=name,
        advice="pass hive=False to take what is in the records, "
        f'or hive={{"{name}": pa.string()}} to take what the directories are called',
    )


def payload_clash(name: str) -> SchemaError:
    """The error for a key that is called as the one column of records that are no messages."""
    return SchemaError(
        f"is what the column of the records is called, and the directories too, as {name}=...",
        feature=name,
        advice='pass schema={"payload": pa.binary()} to call the records otherwise, '
        "or hive=False to ignore the directories",
    )


def snapshot_values(snapshot: Snapshot, schema: Schema) -> dict[str, pa.Array]:
    """The partition columns that the schema has: for each the files' values.

    Raises
    ------
    SchemaError
        If they do not fit the schema's type.
    """
    wanted = {item.name: value_type(item.type) for item in schema.fields}
    found = {}
    for at, item in enumerate(snapshot.partitioning):
        if item.name not in wanted:
            continue
        values = pa.array([file.values[at] for file in snapshot.files], value_type(item.type))
        try:
            found[item.name] = convert(values, wanted[item.name])
        except (MisfitError, pa.ArrowException) as error:
            raise SchemaError(
                f"the partition values are {values.type} and not {wanted[item.name]}: {error}",
                feature=item.name,
                advice="leave the column out of schema= and of hive=",
            ) from None
    return found
