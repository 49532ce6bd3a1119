"""Read and encode the Parquet file of each version of a dataset, including its JSON metadata.

docs/format.md specifies the Parquet files and the keys of the metadata. The content of the Parquet files is
untrusted, and is checked when it is read. If a version has a base, the Parquet file of the version lists only
the data files that the base does not list. `history` reads the metadata of many versions at once, without the
file lists.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dask_tfrecord.codec import crc32c
from dask_tfrecord.codec.codecs import CODECS
from dask_tfrecord.dataset.snapshot.entry_log import EntryLog, Totals
from dask_tfrecord.dataset.snapshot.names import METADATA_DIRECTORY, snapshot_path
from dask_tfrecord.dataset.snapshot.stored_files import (
    Base,
    Stored,
    by_directory,
    check,
    from_stored,
    invalid_snapshot,
    parse_columnar,
    to_stored,
)
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.bounded_parquet import open_parquet, read_bounded
from dask_tfrecord.files.storage.file_list import FileList
from dask_tfrecord.files.storage.found_files import FoundFiles
from dask_tfrecord.files.storage.paths import is_http
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.fields import Schema

# The columns that form the index of a DataFrame. Each column is a pair of the column name and the level name.
Levels = tuple[tuple[str, str | None], ...]

# The keys under which the JSON metadata stores the totals of a version.
TOTALS = Totals._fields

# A snapshot stores the ids of at most this many previous writes. If the id of a write is not stored, a
# repetition of the write is recognised only if the dataset keeps the version or files of the write.
_MOST_ANCESTORS = 100


@cache  # cached, because reading an installed package's metadata takes milliseconds
def library_version() -> str:
    """Return the installed version of this package, or "unknown" if the package is not installed."""
    try:
        return version("dask-tfrecord")
    except PackageNotFoundError:  # the package was imported from its source directory without installation
        return "unknown"


def parse(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the JSON metadata to the fields of `Snapshot`, without the file list and the version.

    Raise AttributeError, KeyError, TypeError or ValueError if the metadata does not describe a valid
    snapshot.
    """
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
    check(not order or sorted(order) == names, "order does not name each column once")
    ancestors = metadata.get("ancestors", [])
    are_strings = isinstance(ancestors, list) and all(isinstance(one, str) for one in ancestors)
    check(are_strings, "ancestors is not a list of strings")
    mode, columns_name = metadata.get("mode", ""), metadata.get("columns_name")
    oldest = metadata.get("oldest", 0)
    check(type(oldest) is int and oldest >= 0, "oldest is not the number of a version")
    return {
        "schema": schema,
        "compression": compression,
        "run": run,
        "library": library,
        "partitioning": partitioning,
        "custom_metadata": custom,
        "order": order,
        "partial": metadata.get("partial", False) is True,
        "index": _levels(metadata.get("index"), names),
        "columns_name": columns_name if isinstance(columns_name, str) else None,
        "columnar": parse_columnar(metadata.get("columnar")),
        "mode": mode if isinstance(mode, str) else "",
        "details": summary(metadata)["details"],
        "created": parse_time(metadata.get("created")),
        "ancestors": tuple(ancestors),
        "oldest": oldest,
    }


def dump(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the fields of a snapshot to JSON metadata. `parse` is the inverse function."""
    partitioning, created = fields["partitioning"], fields["created"]
    metadata = {name: fields[name] for name in ("run", "compression", "library", "custom_metadata", "index")}
    metadata |= {name: list(fields[name]) for name in ("order", "ancestors")}
    metadata["schema"] = fields["schema"].to_json()
    told = {"run": fields["run"], "details": fields["details"]}
    metadata["summary"] = told | fields["log"].totals._asdict()
    metadata["partitioning"] = Schema(partitioning).to_json() if partitioning else None
    others = {
        "partial": fields["partial"],
        "mode": fields["mode"],
        "created": created and created.isoformat(),
        "oldest": fields["oldest"],
        "columnar": fields["columnar"],
        "columns_name": fields["columns_name"],
    }
    return metadata | {name: value for name, value in others.items() if value or value == ()}


def summary(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``details`` of a write, as text, and the totals of its version.

    A summary with the id of another run is ignored, because another program has copied it from an earlier
    version. If a total is invalid, the result contains no totals.
    """
    stored = metadata.get("summary")
    if not isinstance(stored, dict) or stored.get("run") != metadata.get("run"):
        stored = {}
    details = stored.get("details")
    known = {name: stored.get(name) for name in TOTALS}
    is_valid = all(type(count) is int and 0 <= count < 2**63 for count in known.values())
    return {"details": details if isinstance(details, str) else "", **(known if is_valid else {})}


def next_ancestors(ancestors: Sequence[str], run: str) -> tuple[str, ...]:
    return (*ancestors, run)[-_MOST_ANCESTORS:]


def _levels(stored: Any, names: Sequence[str]) -> Levels | None:
    if stored is None:
        return None
    levels = tuple((column, name) for column, name in stored)
    columns = [column for column, _ in levels]
    check(all(isinstance(name, str | None) for _, name in levels), "an index name is not a string")
    distinct = len(set(columns)) == len(columns)
    check(distinct and set(columns) <= set(names), "index does not name distinct columns")
    return levels


def parse_time(stored: Any) -> datetime | None:
    """Parse a time with a time zone. Return None if the text is invalid, because no data depends on the
    time.
    """
    with suppress(TypeError, ValueError):
        time = datetime.fromisoformat(stored)
        return time if time.tzinfo else None
    return None


def strict_json(text: bytes) -> dict[str, Any]:
    """Parse JSON text. Raise ValueError if the text repeats a key, contains a constant such as NaN, or is
    nested too deeply.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        check(len(set(names)) == len(names), "an object has the same key twice")
        return dict(pairs)

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        value: dict[str, Any] = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except RecursionError:
        raise ValueError("the text is nested too deeply") from None
    return value


_NAME = re.compile(r"\d{8}\.parquet")

# The only format version that this library reads and writes. A change of the format that this version of the
# library would misread requires a new format version.
FORMAT_VERSION = 1

METADATA_KEY = b"dask_tfrecord"

# The largest size of the file of a snapshot.
_MOST_BYTES = (1 << 31) - 1

# The parsed content of a snapshot file is cached if the file has fewer bytes than this.
_KEPT_BYTES = 1 << 18

# An error message lists at most this many versions one by one.
_MOST_NUMBERS = 12


@dataclass(frozen=True, eq=False, repr=False)
class Part:
    """The content of a snapshot's Parquet file.

    ``files`` lists the data files that the base does not list. If there is no base, ``files`` lists all data
    files.
    """

    number: int
    path: str
    crc32c: int
    fields: dict[str, Any]
    base: Base | None
    files: FileList


class _LostBaseError(FileNotFoundError):
    """The base of a version is missing or has changed, because of an overwrite or of damage."""


def versions(store: Store, found: FoundFiles | None = None) -> list[int]:
    """Return the versions of the dataset in the root of the store, in ascending order.

    ``found`` is an existing listing, or None. The listing of a remote store may not show a new file yet, so
    the versions after the newest listed one are asked for by themselves.
    """
    numbers = numbers_of((found or store).names(METADATA_DIRECTORY))
    while has_unlisted_version(store, max(numbers, default=0)):
        numbers.append(max(numbers, default=0) + 1)
    return numbers


def has_unlisted_version(store: Store, number: int, count: int = 1) -> bool:
    """Return True if the store has one of the ``count`` versions after version ``number``.

    Return False on stores whose listings are always complete, and on web servers.
    """
    if not store.is_remote or is_http(store.root):
        return False
    paths = [store.join(snapshot_path(number + more)) for more in range(1, count + 1)]
    with suppress(PermissionError):  # the answer of some stores for a file that does not exist
        return any(store.for_each(store.has_file, paths))
    return False


def numbers_of(names: Iterable[str]) -> list[int]:
    """Return the versions whose snapshot files are among ``names``, in ascending order."""
    return sorted(int(name[:8]) for name in names if _NAME.fullmatch(name))


def newest_number(store: Store) -> int:
    """Return the newest version of the dataset in the root of the store, or 0 if there is no snapshot."""
    return max(versions(store), default=0)


def readable_versions(store: Store) -> list[int]:
    oldest = oldest_version(store)
    return [number for number in versions(store) if number >= oldest]


def version_names(numbers: Sequence[int]) -> str:
    """Return a string that lists versions. If there are many versions, name only the first and the last
    version.
    """
    few = len(numbers) <= _MOST_NUMBERS
    return ", ".join(map(str, numbers)) if few else f"{numbers[0]} to {numbers[-1]}"


def oldest_version(store: Store) -> int:
    """Return the oldest version that the dataset keeps.

    Return 0 if the dataset keeps all stored versions, or if the newest snapshot is damaged.
    """
    with suppress(TFRecordError):
        newest = find_newest(store)
        return newest["oldest"] if newest else 0
    return 0


def find_newest(store: Store, found: FoundFiles | None = None) -> dict[str, Any] | None:
    """Return the fields of the newest snapshot in the root of the store, or None if there is no snapshot.

    Raise TFRecordError if the file of the snapshot is damaged, or if the base of the snapshot is damaged or
    missing.
    """
    numbers = versions(store, found)
    while numbers:
        try:
            return read_version(store, numbers[-1])
        # An overwrite may have just replaced this version with a newer one.
        except FileNotFoundError as error:
            if (now := versions(store)) != numbers:
                numbers = now
                continue
            reason = error if isinstance(error, _LostBaseError) else ValueError("is not a regular file")
            raise invalid_snapshot(reason, store.public(store.join(snapshot_path(numbers[-1])))) from error
    return None


def read_version(store: Store, number: int) -> dict[str, Any]:
    """Return the fields of the snapshot with version ``number`` in the root of the store.

    Raise FileNotFoundError if the file of the snapshot or of its base does not exist. Raise TFRecordError if
    the file of the snapshot or of its base is damaged.
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

    Raise TFRecordError if the snapshot's file and the base's file do not belong together.
    """
    files, added = part.files, part.files.slice(0, 0)
    try:
        check((part.base is None) == (base is None), "the files of its base are missing")
        if base is not None:
            check(base.base is None, "its base adds to another version")
            for name in ("schema", "partitioning"):
                check(base.fields[name] == part.fields[name], f"its base has another {name}")
            added = part.files
            is_added = pc.is_in(base.files["path"], added["path"].combine_chunks())
            check(not pc.any(is_added).as_py(), "several files have the same path")
            files = FileList.joined([base.files, added])
    except (pa.ArrowException, ValueError) as error:
        raise invalid_snapshot(error, part.path) from error
    stored = Stored(part.path, part.base or Base(part.number, part.crc32c), added)
    custom = {**part.fields["custom_metadata"]}  # callers may change the dict, so copy it
    return {
        **part.fields,
        "custom_metadata": custom,
        "number": part.number,
        "log": EntryLog(files),
        "stored": stored,
    }


def read_part(store: Store, number: int) -> Part:
    """Read the file of a snapshot without reading the file of the snapshot's base.

    Raise FileNotFoundError if the file does not exist.
    """
    path = store.join(snapshot_path(number))
    try:
        data = store.read_file(path, _MOST_BYTES)
    except ValueError as error:
        raise invalid_snapshot(error, store.public(path)) from None
    parse = _parse_kept if len(data) < _KEPT_BYTES else parse_part
    return parse(data, store.public(path), number)


def parse_part(data: bytes, path: str, number: int) -> Part:
    """Parse and check the untrusted content of a snapshot's file. Raise TFRecordError for invalid content."""
    try:
        # Read without threads, so that no Arrow thread can free the buffer after the call has returned. If
        # the process ended while an Arrow thread was freeing a buffer, it would abort.
        stored = read_bounded(open_parquet(data), len(data))
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
        files = from_stored(stored, fields["schema"], fields["partitioning"], number)
        return Part(number, path, crc32c(data), fields, base, files)
    except (pa.ArrowException, AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        if isinstance(error, TFRecordError) and error.path:
            raise
        raise invalid_snapshot(error, path) from error


# Parsed snapshots are cached, because programs often open a dataset again. Parsing a small snapshot takes
# longer than reading the snapshot's file.
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
    """Encode the fields of a snapshot, as returned by `assemble`, as a Parquet file.

    If ``delta`` is True, store only the data files that the base does not list, unless too many files were
    added. If only the added files are stored, the dataset must keep the Parquet file of the base.
    """
    files, stored, base = fields["log"].files, fields["stored"], None
    files = by_directory(files) if fields["partitioning"] else files
    if delta and stored is not None and stored.is_delta(files):
        files, base = stored.added, stored.base
    metadata = {"format_version": FORMAT_VERSION, **dump(fields)}
    if base is not None:
        metadata["base"] = {"version": base.version, "crc32c": base.crc32c}
    text = json.dumps(metadata, allow_nan=False)
    table = to_stored(files, fields["schema"], fields["partitioning"])
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata({METADATA_KEY: text.encode()})
    # Readers read the complete snapshot file, so Parquet's column statistics would only cost time. Use
    # dictionary encoding only for the paths of column files, because many data files may share a column file.
    pq.write_table(
        table, sink, write_page_checksum=True, write_statistics=False, use_dictionary=["columns.path"]
    )
    return sink.getvalue()


# `read_metadata` reads this many bytes at the end of a snapshot's file. Unless the dataset has hundreds of
# columns, the last 64 KiB contain the whole Parquet footer with the metadata.
_TAIL_BYTES = 1 << 16


def read_metadata(store: Store, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Map each version to the JSON metadata of its Parquet file.

    The result does not include versions that do not exist, are damaged, have another format version, or have
    a Parquet footer longer than `_TAIL_BYTES`. For a version that is not in the result, `read_version`
    returns the content or raises an error.
    """
    paths = [store.join(snapshot_path(number)) for number in numbers]
    tails = store.read_ends(paths, _TAIL_BYTES)
    found = {number: _parse(tail) for number, tail in zip(numbers, tails, strict=True)}
    return {number: metadata for number, metadata in found.items() if metadata is not None}


def _parse(tail: Any) -> dict[str, Any] | None:
    """Return the JSON metadata in the last bytes of a Parquet file, or None if there is no valid metadata."""
    if not isinstance(tail, bytes):  # reading the file failed, and `tail` is the exception
        return None
    try:
        metadata = strict_json(pq.read_metadata(pa.BufferReader(tail)).metadata[METADATA_KEY])
        base = metadata.get("base")
        is_valid = base is None or type(base["version"]) is int
        return metadata if is_valid and metadata["format_version"] == FORMAT_VERSION else None
    except (pa.ArrowException, AttributeError, KeyError, OSError, TypeError, ValueError):
        return None


_HISTORY = pa.schema(
    {
        "version": pa.int64(),
        "created": pa.timestamp("s", "UTC"),
        "mode": pa.string(),
        "details": pa.string(),
        "files": pa.int64(),
        "rows": pa.int64(),
        "bytes": pa.int64(),
        "run": pa.string(),
        "library": pa.string(),
    }
)


def history(store: Store, numbers: Sequence[int]) -> pd.DataFrame:
    """Return the table that `Dataset.history` documents, without versions that no longer exist."""
    stored = read_metadata(store, numbers)
    rows: list[tuple[Any, ...]] = []
    for number in numbers:
        described = _described(stored[number]) if number in stored else None
        with suppress(FileNotFoundError):  # an overwrite has just removed this version
            rows.append((number, *(described or _read(store, number))))
    columns = zip(*rows, strict=True) if rows else [()] * len(_HISTORY)
    table = pa.table(dict(zip(_HISTORY.names, columns, strict=True)), schema=_HISTORY)
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return frame


def _described(metadata: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return a row of `history` without the version, or None if the metadata is incomplete."""
    texts = [metadata.get(name) for name in ("mode", "run", "library")]
    known = summary(metadata)
    if not all(name in known for name in TOTALS) or not all(isinstance(text, str) for text in texts):
        return None
    mode, *others = texts
    counts = (known[name] for name in TOTALS)
    return parse_time(metadata.get("created")), mode or None, known["details"] or None, *counts, *others


def _read(store: Store, number: int) -> tuple[Any, ...]:
    """Return a row of `history` without the version. Compute the totals from the file list of the version."""
    fields = read_version(store, number)
    told = (fields[name] or None for name in ("created", "mode", "details"))
    return *told, *fields["log"].totals, fields["run"], fields["library"]
