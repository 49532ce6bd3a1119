"""Files <-> tables: what a path means and how to read its parts. Knows files and Arrow, no Dask."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from dask_tfrecord.codec import RecordType
from dask_tfrecord.dataset.commit import find_snapshot, is_part, unfinished
from dask_tfrecord.dataset.files import ReadCompression
from dask_tfrecord.dataset.inference import infer_schema, take_sample
from dask_tfrecord.dataset.listing import FileInfo, PathLike, list_directory, list_files
from dask_tfrecord.dataset.snapshot import Snapshot
from dask_tfrecord.dataset.store import Store
from dask_tfrecord.errors import CorruptRecordError, TFRecordError
from dask_tfrecord.schema import Schema

GivenSchema: TypeAlias = Mapping[str, pa.DataType] | pa.Schema


@dataclass(frozen=True, repr=False)
class Dataset:
    """Files to read, and as what.

    Attributes
    ----------
    records : tuple of int, optional
        How many records each file holds, where a snapshot says so.
    """

    store: Store
    files: tuple[FileInfo, ...]
    schema: Schema
    compression: ReadCompression
    records: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"Dataset({self.store.public(self.store.root)!r}, {len(self.files):,} files)"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tfrecord.Dataset", self._token

    @cached_property
    def _token(self) -> str:
        parts = (self.store.__dask_tokenize__(), self.schema.to_json(), self.compression, self.records)
        digest = hashlib.sha256(repr(parts).encode())
        for file in self.files:
            digest.update(f"{file.path}\0{file.size}\0{file.stamp}\0".encode())
        return digest.hexdigest()


def check_choice(name: str, value: object, known: Sequence[object]) -> None:
    """Refuse an argument that is not one of the known values."""
    if value not in known:
        raise TFRecordError(f"unknown {name} {value!r}", advice=f"known are {', '.join(map(repr, known))}")


def open_dataset(
    paths: PathLike | Sequence[PathLike],
    *,
    schema: GivenSchema | None = None,
    record_type: RecordType | Literal["infer"] = "infer",
    compression: ReadCompression = "infer",
    storage_options: dict[str, Any] | None = None,
) -> Dataset:
    """Find the files that the paths mean, and the schema to read them with.

    A directory that this library wrote is read by its snapshot, which knows both. All else is listed, and
    what ``schema`` leaves open is inferred from a sample.
    """
    if isinstance(paths, str | os.PathLike):
        store = Store.at(paths, storage_options)
        snapshot = find_snapshot(store)
        if snapshot is not None:
            return _open_snapshot(store, snapshot, schema, record_type, compression)
    store, files = list_files(paths, storage_options)
    if isinstance(paths, str | os.PathLike) and files[0].path.startswith(store.join("")):
        _refuse_unfinished(store, files)
    return Dataset(store, files, _plan(store, files, schema, record_type, compression), compression)


def _open_snapshot(
    store: Store,
    snapshot: Snapshot,
    schema: GivenSchema | None,
    record_type: RecordType | Literal["infer"],
    compression: ReadCompression,
) -> Dataset:
    files = _listed(store, snapshot)
    if record_type in ("infer", snapshot.schema.record_type):
        plan = _override(snapshot.schema, schema)
    else:
        plan = _plan(store, files, schema, record_type, compression)
    return Dataset(store, files, plan, compression, tuple(file.records for file in snapshot.files))


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
    foreign = [path for path in found if not is_part(path)]
    if foreign:
        glob = store.public(store.join("*.tfrecord*"))
        raise TFRecordError(
            f"the dataset's snapshot does not list {len(foreign):,} of the files here",
            path=store.public(foreign[0]),
            advice=f"move them elsewhere, or read by a glob: {glob}",
        )
    return tuple(files)


def _refuse_unfinished(store: Store, files: Sequence[FileInfo]) -> None:
    """Do not take a part of a dataset for the whole, while it is written or after its writing broke off."""
    parts = unfinished([file.path for file in files])
    if parts:
        glob = store.public(store.join("*.tfrecord*"))
        raise TFRecordError(
            "the file belongs to a write that has not finished, others of it are missing",
            path=store.public(parts[0]),
            advice=f"write it again elsewhere, or read what is there by a glob: {glob}",
        )


def _plan(
    store: Store,
    files: Sequence[FileInfo],
    given: GivenSchema | None,
    record_type: RecordType | Literal["infer"],
    compression: ReadCompression,
) -> Schema:
    """The schema of files without a snapshot; a whole one that is given with its record type is enough."""
    if isinstance(given, pa.Schema) and record_type != "infer":
        return Schema.from_arrow(given, record_type)
    sample = take_sample(store, files, record_type=record_type, compression=compression)
    if isinstance(given, pa.Schema):
        return Schema.from_arrow(given, sample.record_type)
    return infer_schema(sample, given or {})


def _override(schema: Schema, given: GivenSchema | None) -> Schema:
    """The schema with the types that are given; with those columns only, if it is a whole schema."""
    if not given:
        return schema
    whole = isinstance(given, pa.Schema)
    wanted = Schema.from_arrow(given if whole else pa.schema(list(given.items())), schema.record_type)
    schema.select(wanted.names)  # refuses unknown names
    if whole:
        return wanted
    fields = {field.name: field for field in (*schema.fields, *wanted.fields)}
    return Schema(tuple(fields.values()), schema.record_type)
