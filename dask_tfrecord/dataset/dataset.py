"""A dataset to read, and a partition of it: what travels in the graph and in its tasks."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from dask_tfrecord.casts import load
from dask_tfrecord.dataset.entries import FileEntry
from dask_tfrecord.dataset.files import ReadOptions, no_columns, read_table
from dask_tfrecord.dataset.splits import Split
from dask_tfrecord.dataset.store import Store
from dask_tfrecord.schema import Field, Schema


@dataclass(frozen=True, repr=False)
class Piece:
    """What one task reads: stretches of files, and the columns that have one value for all their rows.

    Attributes
    ----------
    splits : tuple of Split
        In the order of their rows; empty if there is nothing to read.
    schema : Schema
        The columns that are wanted, in their order.
    values : dict of str to pyarrow.Array
        For those that are partition columns, their value.
    """

    store: Store
    splits: tuple[Split, ...]
    schema: Schema
    options: ReadOptions
    values: dict[str, pa.Array]

    def __repr__(self) -> str:
        paths = dict.fromkeys(self.store.public(split.file.path) for split in self.splits)
        return f"Piece({', '.join(map(repr, paths)) or 'no files'})"

    def read(self) -> pa.Table:
        """The table of all records."""
        tables = [self._read(split) for split in self.splits]
        if not self.schema.fields:
            return no_columns(sum(table.num_rows for table in tables))
        return pa.concat_tables([pa.Table.from_batches([self.schema.no_rows()]), *tables])

    def _read(self, split: Split) -> pa.Table:
        stored = self.schema.select(name for name in self.schema.names if name not in self.values)
        if stored.fields or split.records is None or not self.values:
            table = read_table(self.store, split, stored, self.options)
        else:
            table = no_columns(split.records)
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
    """Files to read, as what, and in which portions.

    Attributes
    ----------
    pieces : tuple of tuple of Split
        What each partition reads. There is at least one, which may be empty.
    schema : Schema
        All columns.
    options : ReadOptions
        How files are read.
    values : dict of str to pyarrow.Array
        The columns that are in no record: a value for each piece.
    entries : dict of str to FileEntry
        What a snapshot knows of the files, by their path in the store; no blocks.
    """

    store: Store
    pieces: tuple[tuple[Split, ...], ...]
    schema: Schema
    options: ReadOptions
    values: dict[str, pa.Array] = field(default_factory=dict, hash=False)
    entries: dict[str, FileEntry] = field(default_factory=dict, hash=False)

    @property
    def npieces(self) -> int:
        """How many partitions there are."""
        return len(self.pieces)

    def piece(self, index: int, schema: Schema) -> Piece:
        """A partition, to be read as some of the dataset's columns."""
        splits = self.pieces[index]
        names = [name for name in schema.names if name in self.values and splits]
        values = {name: self.values[name].take(pa.array([index])) for name in names}
        return Piece(self.store, splits, schema, self.options, values)

    def count(self, index: int) -> int | None:
        """How many records a partition has, if that is known."""
        total = 0
        for split in self.pieces[index]:
            if split.records is None:
                return None
            total += split.records
        return total

    def __repr__(self) -> str:
        return f"Dataset({self.store.public(self.store.root)!r}, {self.npieces:,} partitions)"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tfrecord.Dataset", self._token

    @cached_property
    def _token(self) -> str:
        values = [(name, found.to_pylist()) for name, found in self.values.items()]
        parts = (self.store.__dask_tokenize__(), self.schema.to_json(), self.options, values, self.pieces)
        return hashlib.sha256(repr(parts).encode()).hexdigest()
