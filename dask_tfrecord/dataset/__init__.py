"""Files <-> tables: what a path means and how to read its parts. Knows files and Arrow, no Dask."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from dask_tfrecord.casts import load
from dask_tfrecord.codec import RecordType
from dask_tfrecord.dataset.files import ReadCompression, read_table
from dask_tfrecord.dataset.inference import infer_schema, take_sample
from dask_tfrecord.dataset.layout import is_part, replaced_by, unfinished, without_open_runs
from dask_tfrecord.dataset.listing import FileInfo, PathLike, list_directory, list_files
from dask_tfrecord.dataset.snapshot import Snapshot, find_snapshot
from dask_tfrecord.dataset.store import Store
from dask_tfrecord.errors import CorruptRecordError, SchemaError, TFRecordError
from dask_tfrecord.schema import Field, Schema

GivenSchema: TypeAlias = Mapping[str, pa.DataType] | pa.Schema


@dataclass(frozen=True, repr=False)
class Piece:
    """What one task reads: a file's columns, and those that have one value for all its rows.

    Attributes
    ----------
    file : FileInfo, optional
        None if the dataset has no files.
    schema : Schema
        The columns that are wanted, in their order.
    values : dict of str to pyarrow.Array
        For those that are partition columns, their value.
    records : int, optional
        How many there are, if a snapshot says so.
    """

    store: Store
    file: FileInfo | None
    schema: Schema
    compression: ReadCompression
    values: dict[str, pa.Array]
    records: int | None

    def __repr__(self) -> str:
        return f"Piece({self.store.public(self.file.path) if self.file else 'no file'!r})"

    def read(self) -> pa.Table:
        """The table of all records."""
        if self.file is None:
            return pa.Table.from_batches([self.schema.no_rows()])
        stored = self.schema.select(name for name in self.schema.names if name not in self.values)
        if stored.fields or self.records is None or not self.values:
            table = read_table(self.store, self.file, stored, compression=self.compression)
        else:
            table = pa.table({"": pa.nulls(self.records)}).select([])
        if not self.values:
            return table
        columns = [
            self._repeated(field, table.num_rows) if field.name in self.values else table[field.name]
            for field in self.schema.fields
        ]
        return pa.Table.from_arrays(columns, schema=self.schema.arrow)

    def _repeated(self, field: Field, rows: int) -> pa.Array:
        value = self.values[field.name]
        return load(value.take(pa.repeat(0, rows)), field.type, field.categories)


@dataclass(frozen=True, repr=False)
class Dataset:
    """Files to read, and as what.

    Attributes
    ----------
    records : tuple of int, optional
        How many records each file holds, where a snapshot says so.
    values : dict of str to pyarrow.Array
        The columns that are in no record: a value for each file.
    """

    store: Store
    files: tuple[FileInfo, ...]
    schema: Schema
    compression: ReadCompression
    records: tuple[int, ...] | None = None
    values: dict[str, pa.Array] = field(default_factory=dict, hash=False)

    @property
    def npieces(self) -> int:
        """How many pieces there are to read: one per file, and at least one, for the columns."""
        return max(1, len(self.files))

    def piece(self, index: int, schema: Schema) -> Piece:
        """One of the files, to be read as some of the dataset's columns."""
        if not self.files:
            return Piece(self.store, None, schema, self.compression, {}, 0)
        values = {
            name: self.values[name].slice(index, 1).take(pa.array([0]))
            for name in schema.names
            if name in self.values
        }
        records = self.records[index] if self.records is not None else None
        return Piece(self.store, self.files[index], schema, self.compression, values, records)

    def count(self, index: int) -> int | None:
        """How many records a piece has, if that is known."""
        if not self.files:
            return 0
        return self.records[index] if self.records is not None else None

    def __repr__(self) -> str:
        return f"Dataset({self.store.public(self.store.root)!r}, {len(self.files):,} files)"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tfrecord.Dataset", self._token

    @cached_property
    def _token(self) -> str:
        values = [(name, found.to_pylist()) for name, found in self.values.items()]
        parts = (
            self.store.__dask_tokenize__(),
            self.schema.to_json(),
            self.compression,
            self.records,
            values,
        )
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
        while snapshot is not None:
            try:
                return _open_snapshot(store, snapshot, schema, record_type, compression)
            except CorruptRecordError:
                newest = find_snapshot(store)
                if newest is None or newest.number == snapshot.number:
                    raise
                snapshot = newest  # an overwrite has taken the place of the one before
    store, files = list_files(paths, storage_options)
    if isinstance(paths, str | os.PathLike) and files[0].path.startswith(store.join("")):
        files = _committed(store, files)
    return Dataset(store, files, _plan(store, files, schema, record_type, compression), compression)


def _open_snapshot(
    store: Store,
    snapshot: Snapshot,
    schema: GivenSchema | None,
    record_type: RecordType | Literal["infer"],
    compression: ReadCompression,
) -> Dataset:
    files = _listed(store, snapshot)
    if record_type in ("infer", snapshot.schema.record_type) or not files:
        plan = _override(snapshot.columns, schema, snapshot.partition_on)
    else:
        plan = _plan(store, files, schema, record_type, compression)
    records = tuple(file.records for file in snapshot.files)
    return Dataset(store, files, plan, compression, records, _partition_values(snapshot, plan))


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
    compression: ReadCompression,
) -> Schema:
    """The schema of files without a snapshot; a whole one that is given with its record type is enough."""
    if isinstance(given, pa.Schema) and record_type != "infer":
        return Schema.from_arrow(given, record_type)
    sample = take_sample(store, files, record_type=record_type, compression=compression)
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
