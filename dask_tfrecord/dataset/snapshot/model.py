"""What a committed dataset consists of, where that is written down, and its one file form: Parquet.

Any tool can read it. It holds relative paths only, and nothing in it is ever executed or resolved as a URL.
"""

import html
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dask_tfrecord.codec.codecs import CODECS, Compression
from dask_tfrecord.dataset.snapshot.names import METADATA_DIRECTORY, snapshot_path
from dask_tfrecord.dataset.snapshot.table import check, from_table, to_table
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.entry import Block, ColumnStatistics, FileEntry
from dask_tfrecord.files.storage.not_found import nothing_at
from dask_tfrecord.files.storage.paths import parent_of
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.model import Field, Schema

__all__ = ["Block", "ColumnStatistics", "FileEntry", "Snapshot", "find_snapshot", "library_version"]

# Raised when a reader of this version would misunderstand what is written from now on.
FORMAT_VERSION = 1

# Columns that become the index of a DataFrame, and what its levels are called.
Levels = tuple[tuple[str, str | None], ...]

_METADATA_KEY = b"dask_tfrecord"
_NAME = re.compile(r"\d{8}\.parquet")


def library_version() -> str:
    """The installed version of this package."""
    try:
        return version("dask-tfrecord")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


@dataclass(frozen=True, repr=False)
class Snapshot:
    """A committed dataset: all its files, and what is in them.

    Attributes
    ----------
    files : tuple of FileEntry
        In the order of the partitions; those of a partition directory together, so that readers can pack
        them.
    schema : Schema
        The columns in the records, their Arrow types and the record type.
    compression : "gzip", "zlib", "zstd", "lz4", "bz2", "xz" or None
        Of the files that the write added.
    run : str
        The id of the write that made it.
    library : str
        Version of the package that wrote it.
    partitioning : tuple of Field
        The partition columns, which are in the names of the directories and not in the records.
    number : int
        Its version: 1 is the first, each write adds one.
    custom_metadata : dict of str to str
        What the user wanted to keep with it.
    order : tuple of str
        Names of all columns, as readers give them; empty if the partition columns come last.
    partial : bool
        Whether the records may hold features that are no columns.
    index : tuple of (str, str or None), optional
        The columns that were the index of the DataFrame, and the names of its levels; empty if it was not
        written. None for files of other writers, and if the snapshot is older than this attribute.
    """

    files: tuple[FileEntry, ...]
    schema: Schema
    compression: Compression | None
    run: str
    library: str
    partitioning: tuple[Field, ...] = ()
    number: int = 1
    custom_metadata: dict[str, str] = field(default_factory=dict, hash=False)
    order: tuple[str, ...] = ()
    partial: bool = False
    index: Levels | None = None

    def __post_init__(self) -> None:
        if self.partitioning:
            object.__setattr__(self, "files", _by_directory(self.files))

    @property
    def columns(self) -> Schema:
        """All columns, those of the records and those of the directories, in their order."""
        every = Schema((*self.schema.fields, *self.partitioning), self.schema.record_type)
        return every.select(self.order or every.names)

    @property
    def partition_on(self) -> tuple[str, ...]:
        """Names of the partition columns."""
        return tuple(column.name for column in self.partitioning)

    @property
    def bytes(self) -> int:
        """Stored bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def records(self) -> int:
        """Records of all files."""
        return sum(file.records for file in self.files)

    @property
    def partitions(self) -> int:
        """How many partition directories there are."""
        return len({parent_of(file.path) for file in self.files}) if self.partitioning else 0

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        version: int | None = None,
        *,
        storage_options: dict[str, Any] | None = None,
    ) -> "Snapshot":
        """Read what is known of a dataset, without touching its data.

        Parameters
        ----------
        path : str or path-like
            Its directory.
        version : int, optional
            Which of the versions that are kept; an overwrite keeps none before it. The newest by default.
        storage_options : dict, optional
            Passed to the filesystem, such as credentials.

        Raises
        ------
        FileNotFoundError
            If there is no such version, or no snapshot at all.
        """
        store = Store.at(path, storage_options)
        kept = versions(store)
        number = version if version is not None else max(kept, default=0)
        if not kept:
            raise nothing_at(store, "no snapshot here; kept are none")
        if number not in kept:
            wanted = "snapshot" if version is None else f"version {version}"
            known = ", ".join(map(str, kept)) or "none"
            raise FileNotFoundError(f"{store.public(store.root)}: no {wanted} here; kept are {known}")
        return read_snapshot(store, number)

    def __repr__(self) -> str:
        return f"Snapshot({', '.join(f'{value:,} {name}' for name, value in self._totals().items())})"

    def _repr_html_(self) -> str:
        rows = {name: f"{value:,}" for name, value in self._totals().items()}
        rows["version"] = str(self.number)
        rows["compression"] = str(self.compression)
        rows["columns"] = ", ".join([*self.schema.names, *self.partition_on])
        cells = (f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in rows.items())
        return f"<table>{''.join(cells)}</table>"

    def _totals(self) -> dict[str, int]:
        totals = {"files": len(self.files)}
        if self.partitioning:
            totals["partitions"] = self.partitions
        return {**totals, "records": self.records, "bytes": self.bytes}


def _by_directory(files: Sequence[FileEntry]) -> tuple[FileEntry, ...]:
    """The files of each directory together, which else stay in their order."""
    found: dict[str, list[FileEntry]] = {}
    for file in files:
        found.setdefault(parent_of(file.path), []).append(file)
    return tuple(file for together in found.values() for file in together)


@redact_errors
def versions(store: Store) -> list[int]:
    """The numbers of the snapshots at the store's root, the newest last."""
    return sorted(int(name[:8]) for name in store.names(METADATA_DIRECTORY) if _NAME.fullmatch(name))


@redact_errors
def find_snapshot(store: Store) -> Snapshot | None:
    """The newest snapshot of the dataset at the store's root, if there is any."""
    while numbers := versions(store):
        try:
            return read_snapshot(store, numbers[-1])
        except FileNotFoundError:  # an overwrite took it away since, and there is a newer one
            if versions(store) == numbers:
                raise
    return None


@redact_errors
def read_snapshot(store: Store, number: int) -> Snapshot:
    """One version of the dataset at the store's root."""
    path = store.join(snapshot_path(number))
    return from_parquet(store.fs.cat_file(path), store.public(path), number)


def to_parquet(snapshot: Snapshot) -> pa.Buffer:
    """The snapshot's file."""
    metadata = {
        "format_version": FORMAT_VERSION,
        "run": snapshot.run,
        "compression": snapshot.compression,
        "schema": snapshot.schema.to_json(),
        "partitioning": Schema(snapshot.partitioning).to_json() if snapshot.partitioning else None,
        "library": snapshot.library,
        "custom_metadata": snapshot.custom_metadata,
        "order": list(snapshot.order),
        "index": snapshot.index,
    }
    if snapshot.partial:
        metadata["partial"] = True
    text = json.dumps(metadata, allow_nan=False)
    table = to_table(snapshot.files, snapshot.schema, snapshot.partitioning)
    table = table.replace_schema_metadata({_METADATA_KEY: text.encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    return sink.getvalue()


def from_parquet(data: bytes, path: str, number: int = 1) -> Snapshot:
    """Read a snapshot's file, believing nothing; ``path`` is its name in messages."""
    try:
        table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
        metadata = _strict_json((table.schema.metadata or {})[_METADATA_KEY])
        found = metadata["format_version"]
        if not isinstance(found, int) or found > FORMAT_VERSION:
            raise TFRecordError(
                f"the snapshot has format version {found!r}, this library reads up to {FORMAT_VERSION}",
                path=path,
                advice="upgrade dask-tfrecord",
            )
        return _snapshot(table, metadata, number)
    except (pa.ArrowException, AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        if isinstance(error, TFRecordError) and error.path:
            raise
        advice = "pass use_snapshot=False to read the data files without it"
        raise TFRecordError(f"not a valid snapshot ({error})", path=path, advice=advice) from error


def _snapshot(table: pa.Table, metadata: dict[str, Any], number: int) -> Snapshot:
    compression, run, library = (metadata[key] for key in ("compression", "run", "library"))
    check(compression is None or compression in CODECS, f"unknown compression {compression!r}")
    check(isinstance(run, str) and isinstance(library, str), "run or library is not a string")
    schema = Schema.from_json(metadata["schema"])
    stored = metadata.get("partitioning")
    partitioning = Schema.from_json(stored).fields if stored else ()
    custom = metadata.get("custom_metadata", {})
    check(all(isinstance(value, str) for value in custom.values()), "custom_metadata is not all strings")
    order = tuple(metadata.get("order", ()))
    names = sorted(item.name for item in (*schema.fields, *partitioning))
    check(not order or sorted(order) == names, "the order is not one of its columns")
    index = _levels(metadata.get("index"), names)
    files = from_table(table, schema, partitioning)
    partial = metadata.get("partial", False) is True
    return Snapshot(
        files, schema, compression, run, library, partitioning, number, custom, order, partial, index
    )


def _levels(stored: Any, names: Sequence[str]) -> Levels | None:
    """The index, if its levels are columns."""
    if stored is None:
        return None
    levels = tuple((column, name) for column, name in stored)
    columns = [column for column, _ in levels]
    check(all(isinstance(name, str | None) for _, name in levels), "a name of the index is no string")
    check(
        len(set(columns)) == len(columns) and set(columns) <= set(names), "the index is none of its columns"
    )
    return levels


def _strict_json(text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        check(len(set(names)) == len(names), "a key twice in an object")
        return dict(pairs)

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    value: dict[str, Any] = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    return value
