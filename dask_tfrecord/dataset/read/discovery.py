"""Open a path for reading: find the files and the columns, then plan which files each partition reads.

The files and columns of a path can be found in two ways. If there is a snapshot, it lists the files and
columns. Otherwise, the files are listed, and the columns are inferred from a sample of the records. With or
without a snapshot, `find` returns a `ReadPlan` in which each file is one partition. Finally, `plan` divides
the files into the partitions that tasks read.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.listing import Listing, as_paths, list_files, nothing_at, with_trailing_slash
from dask_tfrecord.dataset.partitioning import to_values
from dask_tfrecord.dataset.query.predicates import Predicate, file_outcomes
from dask_tfrecord.dataset.read.columns import (
    ReadRequest,
    feature_clash,
    partition_fields,
    snapshot_columns,
    values_from_directories,
    values_from_snapshot,
    with_partition_columns,
)
from dask_tfrecord.dataset.read.inferred_schema import infer_columns
from dask_tfrecord.dataset.read.layouts import SPLIT, choose_files, described_directories
from dask_tfrecord.dataset.read.partitions import LazyPartitions
from dask_tfrecord.dataset.read.plan import ReadPlan, plan
from dask_tfrecord.dataset.read.sample import sample_all, take_sample
from dask_tfrecord.dataset.snapshot.check import open_checked
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.moved_files import with_version
from dask_tfrecord.dataset.snapshot.visibility import committed_files
from dask_tfrecord.errors import CorruptRecordError, Remedy, TFRecordError, located
from dask_tfrecord.files.damage import DamagePolicy
from dask_tfrecord.files.entry import COLUMN_FILE
from dask_tfrecord.files.file_list import INFO_SCHEMA, FileList, encoded_paths, statistics_name
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.find_blocks import ComputeEach
from dask_tfrecord.files.inference import Sample
from dask_tfrecord.files.splits import Partitions
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.schema.tfds import FEATURES, DescribedColumns, described_columns
from dask_tfrecord.storage.paths import PathLike, is_http, parent_of
from dask_tfrecord.storage.redaction import redact_errors
from dask_tfrecord.storage.store import Store

logger = logging.getLogger(__name__)


def one_by_one(function: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
    """Call ``function`` with each argument, one after the other, and return the results."""
    return list(map(function, arguments))


@redact_errors
def open_path(
    paths: PathLike | Sequence[PathLike],
    request: ReadRequest | None = None,
    *,
    compute_each: ComputeEach = one_by_one,
) -> ReadPlan:
    """Find the files and the columns of a path, and plan the read. Raise the errors of `find`."""
    request = request or ReadRequest()
    return plan(find(paths, request, compute_each), request, compute_each)


@redact_errors
def find(
    paths: PathLike | Sequence[PathLike], request: ReadRequest, compute_each: ComputeEach = one_by_one
) -> ReadPlan:
    """Find the files and the columns of a path. In the returned plan, each file is one partition.

    ``compute_each`` runs the tasks that read many files or large files. Raise FileNotFoundError if the path
    contains no files to read. Raise CorruptRecordError if a sampled record is damaged, or if a file of the
    snapshot is missing. Raise SchemaError if the requested columns contradict the columns of the files.
    """
    places = as_paths(paths)
    is_single = isinstance(paths, str | os.PathLike)
    snapshot = None
    if request.use_snapshot and is_single:
        store = with_trailing_slash(Store.at(places[0], request.storage_options, request.filesystem))
        snapshot = open_checked(store, request.version)
    elif request.version is not None:
        raise TFRecordError(
            f"version={request.version} selects a snapshot, which belongs to one directory",
            "pass the directory of the dataset alone",
            remedies=[Remedy("use_snapshot", True, "read this version")] * is_single
            + [Remedy("version", None, "read the files without a snapshot")],
        )
    if snapshot is None:
        return _discover_by_listing(paths if is_single else places, request, compute_each)
    dataset = with_version(store, snapshot.number)
    return _discover_by_snapshot(dataset, snapshot, request, compute_each)


def _discover_by_listing(
    paths: PathLike | Sequence[PathLike], request: ReadRequest, compute_each: ComputeEach
) -> ReadPlan:
    """List the files. Sample the records to infer the types of columns for which no type is requested."""
    requested = request.requested
    listing = list_files(paths, request.storage_options, request.filesystem, may_lack_files=True)
    if len(listing.files):
        listing = committed_files(listing, use_snapshot=request.use_snapshot)
    values = values_from_directories(listing, requested)
    chosen = choose_files(listing, values.get(SPLIT), request.split)
    if not len(listing.files):
        raise nothing_at(listing.store, "no visible files to read here")
    values = {name: column.filter(chosen.mask) for name, column in values.items()}
    values = _with_split(values, chosen.names, request)
    store, files = listing.store, listing.files.filter(chosen.mask)
    if chosen.records is not None:
        files = files.with_columns({"records": chosen.records})
    options = replace(
        request.options, is_type_inferred=request.known_record_type == "infer", integers=requested.floats
    )
    sample = partial(_sample, store, files, options, request, compute_each)
    described = None if chosen.description is None else _described_columns(store, chosen.description, request)
    columns = infer_columns(request, [*values], sample, described)
    return ReadPlan(
        store,
        _whole_files(files, values),
        with_partition_columns(columns.schema, partition_fields(values, requested), requested),
        replace(options, evidence=columns.evidence),
        refused_features=frozenset(values) - requested.hive_types.keys(),
        left_out_features=columns.left_out_features,
    )


def _described_columns(store: Store, directory: str, request: ReadRequest) -> DescribedColumns | None:
    """Return the columns that the TFDS file ``features.json`` in a directory describes."""
    path = store.public(f"{directory}/{FEATURES}")
    with located(path=path):
        described = described_columns(
            lambda name: store.read_file(f"{directory}/{name}"), request.labels, request.is_requested
        )
    if described is not None and described.unknown:
        names = ", ".join(map(repr, described.unknown))
        logger.warning("%s: features of unknown classes or dtypes keep their stored types: %s", path, names)
    return described


def _listed(store: Store, listed: FileList) -> FileList:
    """Return files of a snapshot with paths that the store can open."""
    files = replace(listed.with_columns({"stamp": pc.fill_null(listed["stamp"], "")}), root=store.join(""))
    if is_http(files.root):
        names = map(os.fsencode, listed.names)
        files = files.with_columns({"path": encoded_paths(map(quote, names))})
    return files


def _matching_files(snapshot: Snapshot, schema: Schema, predicate: Predicate) -> FileList:
    """Return the files of a snapshot, without row groups of its lists in which no file passes a predicate."""
    same = {*snapshot.schema.leaves} & {*schema.leaves}
    names = {item.name for item in same} if schema.record_type == snapshot.schema.record_type else set()
    usable = {"records", *map(statistics_name, [*names, *snapshot.partition_on])}

    def may_match(groups: FileList) -> npt.NDArray[np.bool_]:
        groups = groups.select(name for name in groups.rows.column_names if name in usable)
        return file_outcomes(predicate, schema, groups, groups["records"]).true

    return snapshot.files_for(names, may_match)


def _discover_by_snapshot(
    store: Store, snapshot: Snapshot, request: ReadRequest, compute_each: ComputeEach
) -> ReadPlan:
    """Return a read plan with the files and columns of a snapshot. If the requested record type differs from
    that of the snapshot, infer the columns.

    The files are listed when they are needed.
    """
    requested = request.requested
    options = replace(request.options, extra="ignore") if snapshot.partial else request.options
    excluded = (item for item in snapshot.columns.fields if item.name in requested.left_out)
    left_out_features = frozenset(feature.name for item in excluded for feature in item.features)
    if request.known_record_type in ("infer", snapshot.schema.record_type) or not snapshot.log.totals.files:
        schema = snapshot_columns(snapshot, requested)
        if request.labels == "codes":
            schema = replace(schema, fields=tuple(item.without_class_names() for item in schema.fields))
    else:
        fields = [item for item in snapshot.partitioning if requested.hive]
        listed = _listed(store, snapshot.file_list).select(INFO_SCHEMA.names)
        sample = partial(_sample, store, listed, request.options, request, compute_each)
        columns = infer_columns(request, [item.name for item in fields], sample)
        fields = [item for item in fields if item.name not in requested.left_out]
        schema = with_partition_columns(columns.schema, fields, requested)
        left_out_features = columns.left_out_features
        options = replace(options, evidence=columns.evidence)

    def whole_files(predicate: Predicate | None) -> Partitions:
        matching = None if predicate is None else _matching_files(snapshot, schema, predicate)
        known = snapshot.file_list if matching is None else matching
        files = _described(_listed(store, known), snapshot, schema)
        return _whole_files(files, values_from_snapshot(known, schema))

    found = ReadPlan(
        store,
        LazyPartitions(f"{snapshot.number} {snapshot.run}", snapshot.log.totals, whole_files),
        schema,
        options,
        left_out_features=left_out_features,
        index=tuple(level for level in snapshot.index or () if level[0] in schema.names),
        columns_name=snapshot.columns_name,
        version=snapshot.number,
        columnar=snapshot.columnar,
    )
    stored = {item.name: item.type for item in snapshot.partitioning}
    is_other = any(stored.get(item.name, item.type) != item.type for item in schema.fields)
    if requested.hive_types or is_other:  # list the files, because their values may not fit these types
        len(found.files)
    return found if request.split is None else _of_splits(found, snapshot, request)


def _whole_files(files: FileList, values: Mapping[str, pa.Array]) -> Partitions:
    """Make each file one partition. ``values`` maps each partition column to its value in each file."""
    return Partitions(files.with_values(values), np.arange(len(files) + 1))


def _with_split(
    values: dict[str, pa.Array], names: pa.Array | None, request: ReadRequest
) -> dict[str, pa.Array]:
    """Add the partition column ``split``, or remove it if one split is chosen."""
    requested = request.requested
    if names is None:
        return values if request.split is None else {name: values[name] for name in values if name != SPLIT}
    if SPLIT in values or SPLIT in requested.left_out:
        return values
    type_ = requested.partition_type(SPLIT) or pa.string()
    return {**values, SPLIT: to_values(SPLIT, names, type_, names.to_pylist())}


def _of_splits(opened: ReadPlan, snapshot: Snapshot, request: ReadRequest) -> ReadPlan:
    """Restrict the read plan of a snapshot to the files of the requested splits."""
    store, files = opened.store, opened.files
    stored = snapshot.file_list.partition_columns
    known = stored[SPLIT].combine_chunks() if SPLIT in stored.column_names else None
    listing = Listing(store, files, store.root, counts=(len(files),))
    if known is None:
        directories = {parent_of(store.join("x")), *map(parent_of, files.paths)}
        listing = listing._replace(described=described_directories(store, directories))
    mask, names, *_ = choose_files(listing, known, request.split, expects_all=False)
    values = {name: column.filter(mask) for name, column in opened.partition_values.items()}
    if known is None:
        values = _with_split(values, names, request)
        if SPLIT in values and SPLIT in opened.schema.names:
            raise feature_clash(SPLIT)
    elif names is None:
        values.pop(SPLIT, None)
    lost = opened.partition_values.keys() - values.keys()
    schema = opened.schema.select(name for name in opened.schema.names if name not in lost)
    new = {name: values[name] for name in values.keys() - opened.partition_values.keys()}
    schema = Schema((*schema.fields, *partition_fields(new, request.requested)), schema.record_type)
    index = tuple(level for level in opened.index if level[0] in schema.names)
    return replace(opened, partitions=_whole_files(files.filter(mask), values), schema=schema, index=index)


def _sample(
    store: Store, files: FileList, options: ReadOptions, request: ReadRequest, compute_each: ComputeEach
) -> Sample:
    if request.requested.is_whole_schema:  # a task that reads a damaged record raises the error
        options = replace(options, damage=DamagePolicy("skip"))
    take: Callable[..., Sample] = partial(take_sample, store, files, options=options)
    if request.infer != "sample":
        take = partial(sample_all, store, files, options=options, compute_each=compute_each)
    record_type = request.known_record_type
    if record_type == "example":
        # Look for feature lists, which would be ignored. An Example may have other fields in their place.
        with suppress(CorruptRecordError):
            return replace(take(record_type="sequence_example"), record_type="example")
    return take(record_type=record_type)


def _described(files: FileList, snapshot: Snapshot, schema: Schema) -> FileList:
    """From a snapshot's file list, select the columns that a read with ``schema`` can use."""
    names = [*INFO_SCHEMA.names, "blocks", "records"]
    # The statistics of a column are valid only if it is read as the stored type. Statistics are not used if
    # the records are read as another record type, because a payload column may have the name of a stored
    # column.
    if schema.record_type == snapshot.schema.record_type:
        same = {*snapshot.schema.leaves} & {*schema.leaves}
        known = {statistics_name(item.name) for item in same}
        names += [name for name in files.rows.column_names if name in known]
        # Column files are valid only for the stored record type.
        names += [COLUMN_FILE] if COLUMN_FILE in files else []
    return files.select(names)
