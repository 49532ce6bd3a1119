"""Convert the JSON metadata of a version to Python values and back.

docs/format.md specifies the keys. The metadata is untrusted, and is checked when it is parsed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from dask_tfrecord.codec.codecs import CODECS, Compression
from dask_tfrecord.dataset.snapshot.entry_log import Totals
from dask_tfrecord.dataset.snapshot.stored_files import check, parse_columnar
from dask_tfrecord.schema.fields import Schema

# The columns that form the index of a DataFrame. Each column is a pair of the column name and the level name.
Levels = tuple[tuple[str, str | None], ...]

# The only format version that this library reads and writes. A change of the format that this version of the
# library would misread requires a new format version.
FORMAT_VERSION = 1

# The ids of at least this many commits stay known, whatever expires.
KNOWN_COMMITS = 1000

# A list is named with this many digits of the id of the run that stored it.
_RUN_DIGITS = 8

_RUN_ID = re.compile(r"[0-9a-f]{32}")


class ListName(NamedTuple):
    """How a version names an older list: its version, the first digits of its run id, and its entries."""

    number: int
    run: str
    rows: int

    @classmethod
    def of(cls, number: int, run: str, rows: int) -> "ListName":
        return cls(number, run[:_RUN_DIGITS], rows)


@dataclass(frozen=True)
class VersionMetadata:
    """The metadata of a version.

    Attributes
    ----------
    run, library, mode, details, created, oldest, compression
        The fields of `Snapshot` with these names.
    write_id : str, optional
        The id that the user gave to the write.
    totals : Totals
        The totals of the version.
    lists : tuple of ListName
        The older lists, the oldest first, that are a part of the version.
    next_place : int
        The place of the first file that the next version adds.
    removed : int
        The number of removed paths in the own list.
    merged : tuple of (str, str or None)
        The run ids and write ids of the commits before the version, the newest last, whose changes the own
        list contains.
    columns : mapping, optional
        The fields of `Snapshot` that describe the columns, and the user's metadata. None if they are those of
        the first list.
    """

    run: str
    library: str
    mode: str
    details: str
    created: datetime | None
    oldest: int
    compression: Compression | None
    write_id: str | None
    totals: Totals
    lists: tuple[ListName, ...]
    next_place: int
    removed: int
    merged: tuple[tuple[str, str | None], ...]
    columns: Mapping[str, Any] | None

    def has_columns(self, metadata: Mapping[str, Any]) -> bool:
        """Return True if ``metadata``, a result of `dump_columns`, describes the columns of the version."""
        return self.columns is not None and dump_columns(self.columns) == metadata


def parse_metadata(metadata: Mapping[str, Any], number: int, rows: int) -> VersionMetadata:
    """Parse and check the metadata of version ``number``, whose own list has ``rows`` rows.

    Raise AttributeError, KeyError, TypeError or ValueError if the metadata does not describe a version.
    """
    compression, run, library = (metadata[key] for key in ("compression", "run", "library"))
    check(compression is None or compression in CODECS, f"unknown compression {compression!r}")
    check(isinstance(library, str), "library is not a string")
    mode, details, write_id = (metadata.get(key, "") for key in ("mode", "details", "write_id"))
    check(isinstance(write_id, str), "write_id is not a string")
    merged = tuple(map(_commit, metadata.get("merged", [])))
    check(len(merged) < number, "merged names more commits than there were")
    totals = Totals(*(_count(metadata, name) for name in Totals._fields))
    lists = tuple(_list_name(stored) for stored in metadata.get("lists", []))
    numbers = [*(one.number for one in lists), number]
    check(all(old < new for old, new in pairwise(numbers)), "its lists are not those of earlier versions")
    removed = _count(metadata, "removed") if "removed" in metadata else 0
    check(removed <= rows, "it removes more files than it has rows")
    check(bool(lists) or not removed, "it removes files, but has no older lists")
    return VersionMetadata(
        _run_id(run),
        library,
        mode if isinstance(mode, str) else "",
        details if isinstance(details, str) else "",
        parse_time(metadata.get("created")),
        _count(metadata, "oldest") if "oldest" in metadata else 0,
        compression,
        write_id or None,
        totals,
        lists,
        _count(metadata, "next_place"),
        removed,
        merged,
        None if lists and "schema" not in metadata else _columns(metadata),
    )


def _run_id(value: Any) -> str:
    check(isinstance(value, str) and bool(_RUN_ID.fullmatch(value)), "a run id is not 32 hexadecimal digits")
    run: str = value
    return run


def _commit(stored: Any) -> tuple[str, str | None]:
    run, write_id = (stored, None) if isinstance(stored, str) else stored
    check(write_id is None or isinstance(write_id, str), "write_id is not a string")
    return _run_id(run), write_id


def _list_name(stored: Any) -> ListName:
    name = ListName(*stored)
    are_counts = all(type(value) is int and value >= 0 for value in (name.number, name.rows))
    is_run = isinstance(name.run, str) and len(name.run) == _RUN_DIGITS
    check(are_counts and is_run and name.number > 0, "lists does not name lists")
    return name


def _count(metadata: Mapping[str, Any], name: str) -> int:
    value = metadata[name]
    check(type(value) is int and 0 <= value < 2**63, f"{name} is not a count")
    count: int = value
    return count


def _columns(metadata: Mapping[str, Any]) -> dict[str, Any]:
    schema = Schema.from_json(metadata["schema"])
    stored = metadata.get("partitioning")
    partitioning = Schema.from_json(stored).fields if stored else ()
    custom = metadata.get("custom_metadata", {})
    check(all(isinstance(value, str) for value in custom.values()), "custom_metadata is not all strings")
    order = tuple(metadata.get("order", ()))
    names = sorted(item.name for item in (*schema.fields, *partitioning))
    check(not order or sorted(order) == names, "order does not name each column once")
    columns_name = metadata.get("columns_name")
    return {
        "schema": schema,
        "partitioning": partitioning,
        "custom_metadata": custom,
        "order": order,
        "partial": metadata.get("partial", False) is True,
        "index": _levels(metadata.get("index"), names),
        "columns_name": columns_name if isinstance(columns_name, str) else None,
        "columnar": parse_columnar(metadata.get("columnar")),
    }


def dump_columns(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the fields of a snapshot that describe its columns to metadata."""
    partitioning = fields["partitioning"]
    metadata = {
        "schema": fields["schema"].to_json(),
        "partitioning": Schema(partitioning).to_json() if partitioning else None,
        "order": list(fields["order"]),
        "index": fields["index"],
        "custom_metadata": fields["custom_metadata"],
    }
    others = {name: fields[name] for name in ("partial", "columns_name")}
    if fields["columnar"] != "auto":
        metadata["columnar"] = fields["columnar"]
    return metadata | {name: value for name, value in others.items() if value}


def dump_metadata(
    fields: Mapping[str, Any],
    lists: Sequence[ListName],
    next_place: int,
    removed: int,
    merged: Sequence[tuple[str, str | None]],
) -> dict[str, Any]:
    """Convert the fields of a snapshot to metadata, without those of `dump_columns`.

    The other arguments are the attributes of `VersionMetadata` with these names.
    """
    names = ("run", "library", "compression")
    metadata = {"format_version": FORMAT_VERSION, **{name: fields[name] for name in names}}
    metadata |= fields["log"].totals._asdict()
    created = fields["created"]
    others = {
        "mode": fields["mode"],
        "details": fields["details"],
        "created": created and created.isoformat(),
        "oldest": fields["oldest"],
        "write_id": fields["write_id"],
        "lists": lists,
        "removed": removed,
        "merged": [run if write_id is None else (run, write_id) for run, write_id in merged],
    }
    return metadata | {"next_place": next_place} | {name: value for name, value in others.items() if value}


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
