"""Read and encode the Parquet files of the versions of a dataset. docs/format.md specifies these files.

If a version has a base, its Parquet file lists only the data files that the base does not list.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dask_tfrecord.codec import crc32c
from dask_tfrecord.dataset.snapshot.column_statistics import check, check_unique, from_stored, to_stored
from dask_tfrecord.dataset.snapshot.file_table import Base, Stored, concatenate, invalid_snapshot
from dask_tfrecord.dataset.snapshot.metadata import dump, parse, strict_json
from dask_tfrecord.dataset.snapshot.names import METADATA_DIRECTORY, snapshot_path
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.entry import COLUMN_FILE_NAMES
from dask_tfrecord.files.storage.store import Store

_NAME = re.compile(r"\d{8}\.parquet")

# The only format version that this library reads and writes. A change that this library would misunderstand
# needs another number.
FORMAT_VERSION = 1

METADATA_KEY = b"dask_tfrecord"

# The parsed contents of smaller snapshot files are kept.
_KEPT_BYTES = 1 << 18

# The largest number of versions that an error lists.
_MOST_NUMBERS = 12


@dataclass(frozen=True, eq=False, repr=False)
class Part:
    """The content of a snapshot's Parquet file.

    Attributes
    ----------
    number : int
        The number of the snapshot.
    path : str
        The path of the Parquet file, for error messages.
    crc32c : int
        CRC-32C of the bytes of the Parquet file.
    fields : dict
        The fields of `Snapshot` that the metadata of the Parquet file holds.
    base : Base, optional
        The full snapshot whose files also belong to this snapshot, or None if the Parquet file lists all
        files of the snapshot.
    rows : pyarrow.Table
        The data files that the Parquet file lists.
    """

    number: int
    path: str
    crc32c: int
    fields: dict[str, Any]
    base: Base | None
    rows: pa.Table


class _LostBaseError(FileNotFoundError):
    """The error for a version whose base is missing: an overwrite has just removed it, or the dataset is
    damaged.
    """


def versions(store: Store) -> list[int]:
    """Return the numbers of the snapshots in the root of the store, the newest last."""
    return sorted(int(name[:8]) for name in store.names(METADATA_DIRECTORY) if _NAME.fullmatch(name))


def newest_number(store: Store) -> int:
    """Return the number of the newest snapshot in the root of the store, or 0 if there is no snapshot."""
    return int(max(filter(_NAME.fullmatch, store.names(METADATA_DIRECTORY)), default="0")[:8])


def readable_versions(store: Store) -> list[int]:
    """Return the numbers of the versions that the dataset keeps, the newest last."""
    oldest = oldest_version(store)
    return [number for number in versions(store) if number >= oldest]


def version_names(numbers: Sequence[int]) -> str:
    """Return the numbers of versions as a text. If there are many, the text has the first and the last."""
    few = len(numbers) <= _MOST_NUMBERS
    return ", ".join(map(str, numbers)) if few else f"{numbers[0]} to {numbers[-1]}"


def oldest_version(store: Store) -> int:
    """Return the number of the oldest version that the dataset keeps, or 0 if it keeps all stored versions.

    If the newest snapshot is damaged, the result is 0.
    """
    with suppress(TFRecordError):
        newest = find_newest(store)
        return newest["oldest"] if newest else 0
    return 0


def find_newest(store: Store) -> dict[str, Any] | None:
    """Return the fields of the newest snapshot in the root of the store, or None if there is no snapshot.

    Raises
    ------
    TFRecordError
        If the file of the snapshot or of its base is damaged, or if its base is missing.
    """
    while numbers := versions(store):
        try:
            return read_version(store, numbers[-1])
        # An overwrite may have just replaced this version by a newer version.
        except FileNotFoundError as error:
            if versions(store) != numbers:
                continue
            if isinstance(error, _LostBaseError):
                raise invalid_snapshot(error, store.public(store.join(snapshot_path(numbers[-1])))) from error
            raise
    return None


def read_version(store: Store, number: int) -> dict[str, Any]:
    """Return the fields of the snapshot with this number in the root of the store.

    Raises
    ------
    FileNotFoundError
        If the file of the snapshot or of its base does not exist.
    TFRecordError
        If the file of the snapshot or of its base is damaged.
    """
    part = read_part(store, number)
    return assemble(part, None if part.base is None else _read_base(store, part.base))


def _read_base(store: Store, base: Base) -> Part:
    path = store.public(store.join(snapshot_path(base.version)))
    try:
        part = read_part(store, base.version)
    except FileNotFoundError:
        raise _LostBaseError(f"{path}: later versions add to this version, and its file is missing") from None
    if part.crc32c != base.crc32c:
        raise _LostBaseError(f"{path}: later versions add to this version, and its file is another one")
    return part


def assemble(part: Part, base: Part | None) -> dict[str, Any]:
    """Return the fields of a snapshot, given the contents of its file and of its base's file.

    Raises
    ------
    TFRecordError
        If the snapshot and the base do not belong together.
    """
    rows, added = part.rows, part.rows.slice(0, 0)
    try:
        check((part.base is None) == (base is None), "the files of its base are missing")
        if base is not None:
            check(base.base is None, "its base adds to another version")
            for name in ("schema", "partitioning"):
                check(base.fields[name] == part.fields[name], f"its base has another {name}")
            rows, added = concatenate([base.rows, part.rows]), part.rows
            check_unique(rows["path"])
    except (pa.ArrowException, ValueError) as error:
        raise invalid_snapshot(error, part.path) from error
    stored = Stored(part.path, part.base or Base(part.number, part.crc32c), added)
    custom = {**part.fields["custom_metadata"]}  # the caller may change the dict
    return {
        **part.fields,
        "custom_metadata": custom,
        "number": part.number,
        "file_list": rows,
        "stored": stored,
    }


def read_part(store: Store, number: int) -> Part:
    """Read the file of a snapshot, but not the file of its base.

    Raises
    ------
    FileNotFoundError
        If the file of the snapshot does not exist.
    TFRecordError
        If the file is not a snapshot, or if it has another format version.
    """
    path = store.join(snapshot_path(number))
    try:
        data = store.fs.cat_file(path)
    except IsADirectoryError as error:
        raise invalid_snapshot(error, store.public(path)) from None
    parse = _parse_kept if len(data) < _KEPT_BYTES else parse_part
    return parse(data, store.public(path), number)


def parse_part(data: bytes, path: str, number: int) -> Part:
    """Parse and check the untrusted content of a snapshot's file. Error messages name the file as ``path``.

    Raises
    ------
    TFRecordError
        If the content is not a valid snapshot, or if it has another format version.
    """
    try:
        # This read uses no threads, because a thread of Arrow may free the buffer after the call has
        # returned. If the process ended at that moment, it would abort.
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        stored = file.read(use_threads=False)
        metadata = strict_json((stored.schema.metadata or {})[METADATA_KEY])
        format_version = metadata["format_version"]
        if type(format_version) is not int or format_version != FORMAT_VERSION:
            raise TFRecordError(
                f"the snapshot has format version {format_version!r}, "
                f"this library reads format version {FORMAT_VERSION}",
                "use the version of dask-tfrecord that wrote the dataset, or a newer one",
                path=path,
            )
        fields = parse(metadata)
        base = _base(metadata, number)
        rows = from_stored(stored, fields["schema"], fields["partitioning"], number)
        return Part(number, path, crc32c(data), fields, base, rows)
    except (pa.ArrowException, AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        if isinstance(error, TFRecordError) and error.path:
            raise
        raise invalid_snapshot(error, path) from error


# Programs often open a dataset again, and parsing a small snapshot takes longer than reading its file.
_parse_kept = lru_cache(maxsize=16)(parse_part)


def _base(metadata: Mapping[str, Any], number: int) -> Base | None:
    stored = metadata.get("base")
    if stored is None:
        return None
    base = Base(stored["version"], stored["crc32c"])
    are_integers = all(type(value) is int for value in (base.version, base.crc32c))
    check(are_integers and 0 < base.version < number, "the base is not an earlier version")
    return base


def to_parquet(fields: Mapping[str, Any], *, delta: bool = False) -> pa.Buffer:
    """Return the content of a snapshot's Parquet file.

    Parameters
    ----------
    fields : mapping
        The fields of the snapshot, as `assemble` returns them.
    delta : bool, default False
        If True, store only the files that the base does not list, unless there are too many. The dataset must
        then keep the file of the base.
    """
    rows, stored, base = fields["file_list"], fields["stored"], None
    if delta and stored is not None and stored.is_delta(rows):
        rows, base = stored.added, stored.base
    metadata = {"format_version": FORMAT_VERSION, **dump(fields)}
    if base is not None:
        metadata["base"] = {"version": base.version, "crc32c": base.crc32c}
    text = json.dumps(metadata, allow_nan=False)
    table = to_stored(rows, fields["schema"], fields["partitioning"])
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata({METADATA_KEY: text.encode()})
    # Readers read the whole snapshot file, so Parquet's column statistics would only cost time, as would
    # dictionaries of values that mostly occur once. Many files may have the same column file.
    pq.write_table(
        table,
        sink,
        write_page_checksum=True,
        write_statistics=False,
        use_dictionary=[COLUMN_FILE_NAMES[0]],
    )
    return sink.getvalue()
