"""`inspect`: what is known of a dataset without reading its rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from dask_tfrecord.cli import output
from dask_tfrecord.codec.codecs import detect
from dask_tfrecord.dataset.plan import Dataset
from dask_tfrecord.dataset.query.comparison_keys import comparison_key
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.entry import ColumnStatistics, FileEntry
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.model import Field, feature_text

# The most bytes of a file that show its codec.
_HEAD_BYTES = 16

# Files whose codec is detected.
_DETECTED_FILES = 16


@dataclass(frozen=True)
class ColumnDescription:
    """A column, and what the statistics of all files prove about its values.

    Attributes
    ----------
    name, type, feature : str
        The column, its Arrow type, and the feature that stores it, or "directory" for a partition column.
    nulls : int, optional
        The number of nulls. None if it is not known.
    least, greatest : object
        The smallest and the greatest value. None if there are none, or if they are not known.
    lengths : tuple of int, optional
        The lengths of the shortest and the longest list. None if the column has no lists, or if they are not
        known.
    """

    name: str
    type: str
    feature: str
    nulls: int | None
    least: Any
    greatest: Any
    lengths: tuple[int, int] | None


@dataclass(frozen=True)
class Description:
    """What is known of a dataset without reading its rows.

    Attributes
    ----------
    path : str
        The root, without credentials.
    sizes : tuple of int
        The stored bytes of each file.
    rows : int, optional
        The number of rows. None if it is not known.
    codecs : tuple of str
        The codecs of some files, which are spread over the dataset.
    record_type : str
        The message in each record.
    columns : tuple of ColumnDescription
        The columns.
    partition_columns : tuple of str
        The columns that are in the names of directories.
    directories : int
        The number of partition directories.
    version : int, optional
        The number of the described version. None without a snapshot.
    versions : tuple of dict
        The versions of the dataset that can be read, the newest last, as `Snapshot.history` describes them.
        Empty without a snapshot.
    """

    path: str
    sizes: tuple[int, ...]
    rows: int | None
    codecs: tuple[str, ...]
    record_type: str
    columns: tuple[ColumnDescription, ...]
    partition_columns: tuple[str, ...]
    directories: int
    version: int | None
    versions: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the description for scripts."""
        return {
            "path": self.path,
            "files": len(self.sizes),
            "bytes": sum(self.sizes),
            "rows": self.rows,
            "codecs": list(self.codecs),
            "record_type": self.record_type,
            "partition_columns": list(self.partition_columns),
            "partition_directories": self.directories,
            "version": self.version,
            "versions": list(self.versions),
            "columns": [
                {
                    "name": column.name,
                    "type": column.type,
                    "feature": column.feature,
                    "nulls": column.nulls,
                    "min": column.least,
                    "max": column.greatest,
                    "list_lengths": column.lengths and list(column.lengths),
                }
                for column in self.columns
            ],
        }


def describe_dataset(path: Any, dataset: Dataset, storage_options: dict[str, Any] | None) -> Description:
    """Describe an opened dataset. Only the first bytes of some data files are read."""
    files = list({split.file.path: split.file for splits in dataset.partitions for split in splits}.values())
    entries = [dataset.entries.get(file.path) for file in files]
    known = [entry for entry in entries if entry is not None]
    versions = _versions(path, storage_options)
    is_known = bool(versions) and len(known) == len(files)
    columns = [_describe_column(item, dataset, known if is_known else None) for item in dataset.schema.fields]
    return Description(
        dataset.store.public(dataset.store.root),
        tuple(file.size or 0 for file in files),
        sum(entry.records for entry in known) if is_known else None,
        _codecs(dataset.store, files),
        dataset.schema.record_type,
        tuple(columns),
        tuple(dataset.partition_values),
        len(set(zip(*(column.to_pylist() for column in dataset.partition_values.values()), strict=True))),
        dataset.version,
        versions,
    )


def _versions(path: Any, storage_options: dict[str, Any] | None) -> tuple[dict[str, Any], ...]:
    """The versions of a directory with a snapshot."""
    if isinstance(path, list):
        return ()
    try:
        history = Snapshot.history(path, storage_options=storage_options)
    except FileNotFoundError:  # a directory without a snapshot, a file or a glob
        return ()
    return tuple(pa.Table.from_pandas(history, preserve_index=False).to_pylist())


def print_description(described: Description) -> None:
    """Print a description for people."""
    sizes = described.sizes
    files = f"{len(sizes):,}"
    if sizes and len(sizes) > 1:
        files += f", of {' to '.join(f'{size:,}' for size in sorted({min(sizes), max(sizes)}))} bytes"
    pairs = {
        "path": described.path,
        "version": described.version or "none: no snapshot describes the files",
        "rows": "not known" if described.rows is None else f"{described.rows:,}",
        "bytes": f"{sum(sizes):,}",
        "files": files,
        "codec": ", ".join(described.codecs),
        "records": described.record_type,
    }
    if described.partition_columns:
        pairs["directories"] = f"{described.directories:,}, by {', '.join(described.partition_columns)}"
    output.print_pairs(pairs)
    output.print_lines([""])
    output.print_table(
        ["column", "type", "feature", "nulls", "min", "max", "list lengths"],
        (
            (
                column.name,
                column.type,
                column.feature,
                None if column.nulls is None else f"{column.nulls:,}",
                _shown(column.least),
                _shown(column.greatest),
                column.lengths and " to ".join(f"{length:,}" for length in dict.fromkeys(column.lengths)),
            )
            for column in described.columns
        ),
        numbers=["nulls"],
        cut="type",
    )
    _print_versions(described.versions)


def _print_versions(versions: Sequence[dict[str, Any]]) -> None:
    if len(versions) < 2:
        return
    output.print_lines([""])
    output.print_table(
        ["version", "created", "mode", "files", "rows", "bytes"],
        (
            (
                one["version"],
                one["created"] and f"{one['created']:%Y-%m-%d %H:%M:%S}",
                one["mode"],
                f"{one['files']:,}",
                f"{one['records']:,}",
                f"{one['bytes']:,}",
            )
            for one in versions
        ),
        numbers=["version", "files", "rows", "bytes"],
    )


def _shown(value: Any) -> str | None:
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return None if value is None else str(value)


def _codecs(store: Store, files: Sequence[FileInfo]) -> tuple[str, ...]:
    """The codecs of some files, by their first bytes. A snapshot names only that of the newest files."""
    step = max(1, len(files) // _DETECTED_FILES)
    ranges = [(file.path, 0, _HEAD_BYTES) for file in files[::step] if file.size]
    return tuple(dict.fromkeys(detect(head) or "none" for head in store.read_ranges(ranges)))


def _describe_column(item: Field, dataset: Dataset, entries: Sequence[FileEntry] | None) -> ColumnDescription:
    if item.name in dataset.partition_values:
        values = dataset.partition_values[item.name]
        nulls = None if entries is None else _rows_of_nulls(item, dataset)
        least, greatest = _bounds(item, [value for value in values.to_pylist() if value is not None])
        return ColumnDescription(item.name, str(item.type), "directory", nulls, least, greatest, None)
    unknown = ColumnDescription(item.name, str(item.type), feature_text(item), None, None, None, None)
    found = _statistics(item.name, entries)
    if found is None:
        return unknown
    ends = [length for column, _ in found for length in (column.min_length, column.max_length)]
    lengths = [length for length in ends if length is not None]
    has_bounds = all(column.min is not None or column.nulls == records for column, records in found)
    bounds = [bound for column, _ in found for bound in (column.min, column.max)] if has_bounds else []
    least, greatest = _bounds(item, [bound for bound in bounds if bound is not None])
    return replace(
        unknown,
        nulls=sum(column.nulls for column, _ in found),
        least=least,
        greatest=greatest,
        lengths=(min(lengths), max(lengths)) if lengths else None,
    )


def _statistics(name: str, entries: Sequence[FileEntry] | None) -> list[tuple[ColumnStatistics, int]] | None:
    """The statistics of a column in each file that has rows, and the rows; None if a file has none."""
    if entries is None:
        return None
    found = []
    for entry in entries:
        column = next((one for one in entry.statistics if one.name == name), None)
        if column is None and entry.records:
            return None
        if column is not None and entry.records:
            found.append((column, entry.records))
    return found


def _bounds(item: Field, values: Iterable[Any]) -> tuple[Any, Any]:
    """The smallest and the greatest of some values, in the order in which filters compare them."""
    listed = list(values)
    try:
        listed.sort(key=lambda value: comparison_key(value, item.type))
    except TFRecordError:  # a type without an order
        return None, None
    return (listed[0], listed[-1]) if listed else (None, None)


def _rows_of_nulls(item: Field, dataset: Dataset) -> int:
    """The number of rows whose partition column is null."""
    values = dataset.partition_values[item.name].to_pylist()
    of_null = [index for index, value in enumerate(values) if value is None]
    return sum(dataset.count(index) or 0 for index in of_null)
