"""What a path means: the files, the columns, and how the reading of them is divided."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from dask_tfrecord.codec import RecordType
from dask_tfrecord.dataset.dataset import Dataset
from dask_tfrecord.dataset.files import ReadOptions
from dask_tfrecord.dataset.inference import infer_schema, take_sample
from dask_tfrecord.dataset.layout import is_part, replaced_by, unfinished, without_open_runs
from dask_tfrecord.dataset.listing import FileInfo, PathLike, list_directory, list_files
from dask_tfrecord.dataset.snapshot import Snapshot, find_snapshot
from dask_tfrecord.dataset.splits import plan_pieces
from dask_tfrecord.dataset.store import Store
from dask_tfrecord.errors import CorruptRecordError, SchemaError, TFRecordError
from dask_tfrecord.schema import Schema

GivenSchema: TypeAlias = Mapping[str, pa.DataType] | pa.Schema

_USUAL = ReadOptions()


def check_choice(name: str, value: object, known: Sequence[object]) -> None:
    """Refuse an argument that is not one of the known values."""
    if value not in known:
        raise TFRecordError(f"unknown {name} {value!r}", advice=f"known are {', '.join(map(repr, known))}")


def open_dataset(
    paths: PathLike | Sequence[PathLike],
    *,
    schema: GivenSchema | None = None,
    record_type: RecordType | Literal["infer"] = "infer",
    options: ReadOptions = _USUAL,
    blocksize: int | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Dataset:
    """Find the files that the paths mean, and the schema to read them with.

    A directory that this library wrote is read by its snapshot, which knows both. All else is listed, and
    what ``schema`` leaves open is inferred from a sample.
    """
    if isinstance(paths, str | os.PathLike):
        store = Store.at(paths, storage_options)
        snapshot = find_snapshot(store)
        while snapshot is not None:
            try:
                return _open_snapshot(store, snapshot, schema, record_type, options, blocksize)
            except CorruptRecordError:
                newest = find_snapshot(store)
                if newest is None or newest.number == snapshot.number:
                    raise
                snapshot = newest  # an overwrite has taken the place of the one before
    listing = list_files(paths, storage_options)
    store, files = listing.store, listing.files
    if listing.base:
        files = _committed(store, files)
    pieces, _ = plan_pieces(files, blocksize=blocksize)
    return Dataset(store, pieces, _plan(store, files, schema, record_type, options), options)


def _open_snapshot(
    store: Store,
    snapshot: Snapshot,
    schema: GivenSchema | None,
    record_type: RecordType | Literal["infer"],
    options: ReadOptions,
    blocksize: int | None,
) -> Dataset:
    files = _listed(store, snapshot)
    if record_type in ("infer", snapshot.schema.record_type) or not files:
        columns = _override(snapshot.columns, schema, snapshot.partition_on)
    else:
        columns = _plan(store, files, schema, record_type, options)
    values = _partition_values(snapshot, columns)
    pieces, values = plan_pieces(files, snapshot.files, values, blocksize=blocksize)
    entries = {store.join(file.path): replace(file, blocks=()) for file in snapshot.files}
    return Dataset(store, pieces, columns, options, values, entries)


def _partition_values(snapshot: Snapshot, schema: Schema) -> dict[str, pa.Array]:
    """The partition columns that the schema has: for each the files' values."""
    wanted = {item.name: _value_type(item.type) for item in schema.fields}
    found = {}
    for at, item in enumerate(snapshot.partitioning):
        if item.name not in wanted:
            continue
        values = pa.array([file.values[at] for file in snapshot.files], _value_type(item.type))
        try:
            found[item.name] = values.cast(wanted[item.name])
        except pa.ArrowException as error:
            raise SchemaError(
                f"the partition values are {values.type} and not {wanted[item.name]}: {error}",
                feature=item.name,
                advice="leave the column out of schema=",
            ) from None
    return found


def _value_type(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _listed(store: Store, snapshot: Snapshot) -> tuple[FileInfo, ...]:
    """The snapshot's files, if they are all there is."""
    found = {info.path: info for info in list_directory(store)}
    files = []
    for file in snapshot.files:
        info = found.pop(store.join(file.path), None)
        public = store.public(store.join(file.path))
        if info is None:
            raise CorruptRecordError("the file is missing, the dataset's snapshot lists it", path=public)
        if info.size not in (None, file.bytes):
            problem = f"the file has {info.size:,} bytes, the dataset's snapshot says {file.bytes:,}"
            raise CorruptRecordError(problem, path=public)
        files.append(info)
    foreign = {path for path in found if not is_part(path)}
    if foreign:  # perhaps an overwrite replaced them and did not come to removing them
        foreign -= {store.join(path) for path in replaced_by(store, snapshot.run)}
    if foreign:
        glob = store.public(store.join("*.tfrecord*"))
        raise TFRecordError(
            f"the dataset's snapshot does not list {len(foreign):,} of the files here",
            path=store.public(min(foreign)),
            advice=f"move them elsewhere, or read by a glob: {glob}",
        )
    return tuple(files)


def _committed(store: Store, files: Sequence[FileInfo]) -> tuple[FileInfo, ...]:
    """The files of a directory but for those of writes that have not committed.

    A part of a dataset is not taken for the whole.
    """
    files = without_open_runs(store, files)
    if not files:
        place = store.public(store.root)
        raise FileNotFoundError(f"{place}: the only files are those of a write that has not finished")
    parts = unfinished([file.path for file in files])
    if parts:
        glob = store.public(store.join("*.tfrecord*"))
        raise TFRecordError(
            "the file belongs to a write that has not finished, others of it are missing",
            path=store.public(parts[0]),
            advice=f"write it again elsewhere, or read what is there by a glob: {glob}",
        )
    return tuple(files)


def _plan(
    store: Store,
    files: Sequence[FileInfo],
    given: GivenSchema | None,
    record_type: RecordType | Literal["infer"],
    options: ReadOptions,
) -> Schema:
    """The schema of files without a snapshot; a whole one that is given with its record type is enough."""
    if isinstance(given, pa.Schema) and record_type != "infer":
        return Schema.from_arrow(given, record_type)
    sample = take_sample(store, files, record_type=record_type, options=options)
    if isinstance(given, pa.Schema):
        return Schema.from_arrow(given, sample.record_type)
    return infer_schema(sample, given or {})


def _override(schema: Schema, given: GivenSchema | None, partition_on: Sequence[str]) -> Schema:
    """The schema with the types that are given; with those columns only, if it is a whole schema."""
    if not given:
        return schema
    whole = isinstance(given, pa.Schema)
    wanted: pa.Schema = given if isinstance(given, pa.Schema) else pa.schema(list(given.items()))
    schema.select(wanted.names)  # refuses unknown names
    keys = [item for item in wanted if item.name in partition_on]
    stored = [item for item in wanted if item.name not in partition_on]
    plans = [(stored, schema.record_type), (keys, "example")]
    found = {
        item.name: item
        for items, record_type in plans
        if items
        for item in Schema.from_arrow(pa.schema(items), record_type).fields
    }
    names = wanted.names if whole else schema.names
    kept = {item.name: item for item in schema.fields}
    return Schema(tuple({**kept, **found}[name] for name in names), schema.record_type)
