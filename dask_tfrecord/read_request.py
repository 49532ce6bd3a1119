"""Validate the keywords that say which rows are read, and return a `ReadRequest`.

`read_tfrecord`, `inspect` and other functions that read a path share these keywords. The module `reader`
handles the keywords that only describe the Dask collection of `read_tfrecord`, such as the index.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any, Literal, SupportsIndex, get_args

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord import arguments
from dask_tfrecord.cluster import compute_each
from dask_tfrecord.codec import MAX_RECORD_BYTES
from dask_tfrecord.codec.columns import RecordType
from dask_tfrecord.config import keyword_or_default
from dask_tfrecord.dataset.read.discovery import open_dataset
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.dataset.read.request import Infer, ReadRequest
from dask_tfrecord.dataset.read.schema_sources import known_schema
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.destination import destination
from dask_tfrecord.dataset.write.neighbours import refuse_other_files
from dask_tfrecord.errors import Remedy, SchemaError, TFRecordError
from dask_tfrecord.files.damage import DamagePolicy, OnCorrupt, check_policy, check_quarantine_path
from dask_tfrecord.files.options import MAX_FEATURES, Extra, ReadOptions
from dask_tfrecord.files.storage.filesystem import Filesystem
from dask_tfrecord.files.storage.listing import PathLike, as_paths
from dask_tfrecord.files.storage.redaction import without_credentials
from dask_tfrecord.keywords import AnyCompression, AnyRecordType, ReadKeywords, ReadSchema
from dask_tfrecord.public_functions import SHARED_PARAMETERS
from dask_tfrecord.schema.model import Schema
from dask_tfrecord.schema.tfds import Labels


def read_request(
    columns: str | Sequence[str] | None = None,
    *,
    schema: ReadSchema | None = None,
    hive: bool | Mapping[str, Any] = True,
    use_snapshot: bool = True,
    infer: Infer = "sample",
    filters: Sequence[Any] | pc.Expression | None = None,
    split: str | Sequence[str] | None = None,
    labels: Labels = "names",
    version: int | None = None,
    blocksize: SupportsIndex | str | None = "default",
    partition_by: str | Sequence[str] | None = None,
    record_type: AnyRecordType = "infer",
    compression: AnyCompression | Literal["infer"] | None = "infer",
    extra: Extra = "raise",
    include_path_column: bool | str = False,
    include_offset_column: bool | str = False,
    on_corrupt: OnCorrupt = "raise",
    max_corrupt: int | float | None = None,
    quarantine_path: PathLike | None = None,
    verify_crc: bool = True,
    max_record_bytes: SupportsIndex | str = MAX_RECORD_BYTES,
    max_features: int | None = MAX_FEATURES,
    index: str | Sequence[str] | Literal[False] | None = None,
    calculate_divisions: bool = False,
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> ReadRequest:
    """Validate the keywords of a read, which the docstring of `read_tfrecord` describes.

    Raises
    ------
    TFRecordError
        If the value of a keyword is invalid, or if two keywords contradict each other.
    """
    arguments.choice("record_type", record_type, ("infer", *get_args(RecordType)))
    arguments.choice("infer", infer, get_args(Infer))
    arguments.choice("extra", extra, get_args(Extra))
    arguments.choice("labels", labels, get_args(Labels))
    arguments.flags(use_snapshot=use_snapshot, verify_crc=verify_crc, calculate_divisions=calculate_divisions)
    arguments.mappings(storage_options=storage_options)
    schema = arguments.schema(
        known_schema(schema, labels=labels, storage_options=storage_options, filesystem=filesystem)
    )
    options = ReadOptions(
        compression=arguments.compression(compression, "infer"),
        verify_crc=verify_crc,
        max_record_bytes=arguments.record_limit(max_record_bytes),
        max_features=arguments.count("max_features", max_features),
        extra="ignore" if isinstance(schema, pa.Schema | Schema | Snapshot) else extra,
        damage=_damage_policy(on_corrupt, max_corrupt, quarantine_path, storage_options, filesystem),
        path_column=arguments.origin_column(include_path_column, "path"),
        offset_column=arguments.origin_column(include_offset_column, "offset"),
    )
    return ReadRequest(
        columns=_requested_columns(columns, index),
        schema=schema,
        hive=hive,
        use_snapshot=use_snapshot,
        record_type=record_type,
        infer=infer,
        filters=None if isinstance(filters, list | tuple) and not filters else filters,
        options=options,
        split=_requested_splits(split),
        labels=labels,
        version=arguments.count("version", version),
        blocksize=keyword_or_default("blocksize", blocksize, partial(arguments.byte_count, "blocksize")),
        whole_files=calculate_divisions,
        partition_by=_key_columns(partition_by, calculate_divisions),
        storage_options=storage_options,
        filesystem=filesystem,
    )


SHARED_PARAMETERS.update(signature(read_request).parameters)


def open_request(path: Any, request: ReadRequest) -> ReadPlan:
    """Find the files and the columns of a path, and add the path and offset columns that the request
    names.
    """
    listed = as_paths(path)
    place = without_credentials(str(listed[0]))
    each = partial(compute_each, title=f"{place}: read before planning")
    paths = path if isinstance(path, str | os.PathLike) else listed
    found = open_dataset(paths, request, compute_each=each).with_origin_columns()
    quarantine = request.options.damage.quarantine
    if quarantine is not None:
        check_quarantine_path(quarantine, found.store)
        refuse_other_files(quarantine)
    return found


def open_columns(
    path: Any, columns: str | Sequence[str] | None, blocksize: int | None, read: ReadKeywords
) -> tuple[ReadPlan, Schema]:
    """Open a path, and return the read plan and the columns that the caller names, in the order of the names.

    Parameters
    ----------
    path, columns, read
        These parameters have the same meaning as in `read_tfrecord`.
    blocksize : int, optional
        The target size of a partition in bytes of the stored files. If None, each file is one partition.
    """
    plan = open_request(path, read_request(columns, blocksize=blocksize, **read))
    if columns is None:
        return plan, plan.schema
    return plan, plan.schema.select(existing_names(plan.schema, "columns", columns))


def existing_names(schema: Schema, keyword: str, value: Any) -> list[str]:
    """Return the column names that a caller passed for a keyword. An unknown or repeated name raises.

    For ``columns=``, the name of a group of columns, such as "objects", stands for all columns of the group,
    such as "objects/bbox" and "objects/label".
    """
    names = arguments.names(keyword, value)
    if keyword == "columns":
        names = [one for name in names for one in _of_group(schema, name)]
    try:
        schema.select(names)
    except SchemaError as error:
        raise SchemaError(f"{keyword}={value!r}: {error}") from None
    fields = [] if keyword == "columns" else [name for name in names if name not in schema.names]
    if fields:
        problem = f"{keyword}= needs a column, but only columns= and filters= can name the field of a struct"
        raise SchemaError(problem, feature=fields[0])
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        problem = f"{keyword}= names {', '.join(map(repr, repeated))} more than once"
        raise SchemaError(problem, Remedy(keyword, list(dict.fromkeys(names)), "name each column once"))
    return names


def _of_group(schema: Schema, name: str) -> list[str]:
    """Return the columns of a group. If there is no such group, return the name itself."""
    members = [one for one in schema.names if one.startswith(f"{name}/")]
    return members if members and name not in schema.names else [name]


def _damage_policy(
    on_corrupt: OnCorrupt,
    max_corrupt: int | float | None,
    quarantine_path: PathLike | None,
    storage_options: dict[str, Any] | None,
    filesystem: Filesystem,
) -> DamagePolicy:
    arguments.choice("on_corrupt", on_corrupt, get_args(OnCorrupt))
    quarantine = None
    if quarantine_path is not None:
        arguments.path(quarantine_path, "quarantine_path")
        quarantine = destination(quarantine_path, storage_options, filesystem)
    policy = DamagePolicy(on_corrupt, max_corrupt, quarantine)
    check_policy(policy)
    return policy


def _requested_splits(split: Any) -> str | tuple[str, ...] | None:
    if split is None or isinstance(split, str):
        return split
    names = tuple(arguments.names("split", split))
    if not names:
        raise TFRecordError(f"split={split!r} names no split", Remedy("split", None, "read all splits"))
    return names


def _key_columns(partition_by: Any, calculate_divisions: bool) -> tuple[str, ...]:
    if partition_by is None:
        return ()
    names = arguments.names("partition_by", partition_by)
    if not names or len(set(names)) < len(names):
        problem = f"partition_by={partition_by!r} must name at least one column, and none twice"
        raise TFRecordError(problem, "pass the names of partition columns")
    if calculate_divisions:
        raise TFRecordError(
            "partition_by= and calculate_divisions=True cannot be combined", "pass one of them"
        )
    return tuple(names)


def _requested_columns(columns: Any, index: Any) -> list[str] | None:
    """Return the names of the requested columns and index levels, or None if all columns are read."""
    if columns is None:
        return None
    levels = [] if index is None or index is False else arguments.names("index", index)
    return [*arguments.names("columns", columns), *levels]
