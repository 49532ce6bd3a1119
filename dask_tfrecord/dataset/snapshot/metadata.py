"""Read and write the JSON object in a snapshot's Parquet file. docs/format.md lists the keys of the object.

The module `metadata` does not trust the JSON object that it reads.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec.codecs import CODECS
from dask_tfrecord.dataset.snapshot.column_statistics import check
from dask_tfrecord.dataset.snapshot.columnar import parse_columnar
from dask_tfrecord.schema.model import Schema

# The columns that become the index of a DataFrame, each as a pair of the column name and the level name.
Levels = tuple[tuple[str, str | None], ...]

# The keys of the object that holds the totals of a version.
TOTALS = ("files", "records", "bytes")

# The number of earlier writes whose ids a snapshot stores. A write that is repeated after more than this
# number of other writes is not recognised as a repetition.
_MOST_ANCESTORS = 100


@cache  # reading the metadata of an installed package takes milliseconds
def library_version() -> str:
    """Return the installed version of this package, or "unknown" if the package is not installed."""
    try:
        return version("dask-tfrecord")
    except PackageNotFoundError:  # the package was imported from its source directory without installation
        return "unknown"


def parse(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Snapshot` that the JSON object holds, such as the schema and the run.

    The JSON object holds neither the file list nor the number of the snapshot, nor how the file list is
    stored.

    Raises
    ------
    AttributeError, KeyError, TypeError, ValueError
        If the JSON object does not describe a valid snapshot.
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
    mode = metadata.get("mode", "")
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
        "columnar": parse_columnar(metadata.get("columnar")),
        "mode": mode if isinstance(mode, str) else "",
        "details": summary(metadata)["details"],
        "created": parse_time(metadata.get("created")),
        "ancestors": tuple(ancestors),
        "oldest": oldest,
    }


def dump(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON object for the fields of a snapshot: the inverse of `parse`."""
    partitioning, created = fields["partitioning"], fields["created"]
    metadata = {name: fields[name] for name in ("run", "compression", "library", "custom_metadata", "index")}
    metadata |= {name: list(fields[name]) for name in ("order", "ancestors")}
    metadata["schema"] = fields["schema"].to_json()
    told = {"run": fields["run"], "details": fields["details"]}
    metadata["summary"] = told | totals(fields["file_list"])
    metadata["partitioning"] = Schema(partitioning).to_json() if partitioning else None
    others = {
        "partial": fields["partial"],
        "mode": fields["mode"],
        "created": created and created.isoformat(),
        "oldest": fields["oldest"],
        "columnar": fields["columnar"],
    }
    return metadata | {name: value for name, value in others.items() if value or value == ()}


def totals(rows: pa.Table) -> dict[str, int]:
    """Return the totals of a file list, for readers that do not read the list."""
    sums = (pc.sum(rows[name]).as_py() or 0 for name in ("records", "bytes"))
    return dict(zip(TOTALS, (len(rows), *sums), strict=True))


def summary(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object that says what a write did: the text ``details``, and the totals of the version.

    If another program has copied the object from the version before, or if a total is invalid, there are no
    totals.
    """
    stored = metadata.get("summary")
    if not isinstance(stored, dict) or stored.get("run") != metadata.get("run"):
        stored = {}
    details = stored.get("details")
    known = {name: stored.get(name) for name in TOTALS}
    is_valid = all(type(count) is int and 0 <= count < 2**63 for count in known.values())
    return {"details": details if isinstance(details, str) else "", **(known if is_valid else {})}


def next_ancestors(ancestors: Sequence[str], run: str) -> tuple[str, ...]:
    """Return the ancestors of the next snapshot, given the ancestors and the run of the current snapshot."""
    return (*ancestors, run)[-_MOST_ANCESTORS:]


def _levels(stored: Any, names: Sequence[str]) -> Levels | None:
    """Return the index levels that the JSON object holds, or None if the index is unknown.

    Raise if a level is not a column of the dataset.
    """
    if stored is None:
        return None
    levels = tuple((column, name) for column, name in stored)
    columns = [column for column, _ in levels]
    check(all(isinstance(name, str | None) for _, name in levels), "an index name is not a string")
    distinct = len(set(columns)) == len(columns)
    check(distinct and set(columns) <= set(names), "index does not name distinct columns")
    return levels


def parse_time(stored: Any) -> datetime | None:
    """Parse the text of a time with a time zone.

    If the text is invalid, return None, because no data depends on this time.
    """
    with suppress(TypeError, ValueError):
        time = datetime.fromisoformat(stored)
        return time if time.tzinfo else None
    return None


def strict_json(text: bytes) -> dict[str, Any]:
    """Parse JSON text.

    Raise a ValueError if an object repeats a key, if the text contains a constant such as NaN, or if the
    text is nested too deeply.
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
