"""Format the description of a dataset that `inspect` prints, as text and as JSON."""

import json
from collections.abc import Iterable
from contextlib import closing
from datetime import datetime
from typing import Any

import pyarrow as pa

from dask_tfrecord import ColumnDescription, Description
from dask_tfrecord.cli import output
from dask_tfrecord.cli.json_text import json_lines, json_values

# The largest number of versions that the text of a description shows.
_VERSIONS = 5


def first_rows(described: Description, count: int, files: Iterable[int] | None = None) -> pa.Table:
    """Read the first ``count`` rows of all files, or of the files with the numbers ``files``.

    Only these first rows are read.
    """
    tables = [described.schema.arrow.empty_table()]
    with closing(described.iter_tables(files)) as rows:
        while count > 0 and (table := next(rows, None)) is not None:
            tables.append(table.slice(0, count))
            count -= table.num_rows
    return pa.concat_tables(tables)


def description_json(described: Description, rows: pa.Table) -> dict[str, Any]:
    """Return a description of a dataset and some of its rows as a dict that can be printed as JSON."""
    columns = [
        {
            "name": column.name,
            "type": str(column.type),
            "feature": column.feature,
            "nulls": column.nulls,
            "min": _bound_json(column, column.min),
            "max": _bound_json(column, column.max),
            "list_lengths": column.lengths,
        }
        for column in described.columns
    ]
    return {
        "path": described.path,
        "files": len(described.files),
        "bytes": sum(described.sizes),
        "rows": described.rows,
        "codecs": described.codecs,
        "record_type": described.schema.record_type,
        "partition_columns": described.partition_columns,
        "partition_directories": described.directories,
        "splits": described.splits,
        "supervised_keys": list(described.supervised_keys),
        "version": described.version,
        "versions": described.versions,
        "columns": columns,
        "first_rows": [json.loads(line) for line in bytes(json_lines(rows)).splitlines()],
    }


def _bound_json(column: ColumnDescription, value: Any) -> Any:
    """Convert a column's smallest or greatest value to the form that the value has in JSON lines."""
    if value is None:
        return None
    type_ = column.type
    # Statistics of a list column describe the single values in its lists.
    while pa.types.is_dictionary(type_) or pa.types.is_nested(type_):
        type_ = type_.value_type
    return json.loads(json_values(pa.array([value], type_))[0].as_py())


def print_description(described: Description, rows: pa.Table) -> None:
    """Print a description of a dataset and some of its rows as text."""
    sizes = described.sizes
    files = f"{len(sizes):,}"
    if len(sizes) > 1:
        files += f", of {' to '.join(f'{size:,}' for size in sorted({min(sizes), max(sizes)}))} bytes"
    pairs = {
        "path": described.path,
        "version": described.version or "none: no snapshot describes the files",
        "rows": "not known" if described.rows is None else f"{described.rows:,}",
        "bytes": f"{sum(sizes):,}",
        "files": files,
        "codec": ", ".join(described.codecs),
        "records": described.schema.record_type,
    }
    if described.partition_columns:
        pairs["directories"] = f"{described.directories:,}, by {', '.join(described.partition_columns)}"
    if described.splits:
        counts = described.splits.items()
        pairs["splits"] = ", ".join(name if rows is None else f"{name} ({rows:,})" for name, rows in counts)
    if described.supervised_keys:
        pairs["supervised keys"] = ", ".join(described.supervised_keys)
    output.print_pairs(pairs)
    output.print_lines([""])
    columns = (
        (
            *(column.name, column.type, column.feature, _number(column.nulls)),
            *(_shown(column.min), _shown(column.max)),
            column.lengths and " to ".join(f"{length:,}" for length in dict.fromkeys(column.lengths)),
        )
        for column in described.columns
    )
    titles = ["column", "type", "feature", "nulls", "min", "max", "list lengths"]
    output.print_table(titles, columns, numbers=["nulls"], cut="type")
    if len(described.versions) > 1:
        output.print_lines([""])
        print_versions(described.versions[-_VERSIONS:])
        if (earlier := len(described.versions) - _VERSIONS) > 0:
            output.print_lines([f"{earlier:,} earlier versions, which history lists"])
    if rows.num_rows:
        output.print_lines(["", f"first {rows.num_rows} rows"])
        output.print_frame(rows)


def print_versions(versions: Iterable[dict[str, Any]]) -> None:
    """Print the versions of a dataset, which are the rows of `Snapshot.history`."""
    rows = (
        (
            *(one["version"], one["created"] and f"{one['created']:%Y-%m-%d %H:%M:%S}", one["mode"]),
            *(_number(one[name]) for name in ("files", "records", "bytes")),
            one["details"],
        )
        for one in versions
    )
    titles = ["version", "created", "mode", "files", "rows", "bytes", "details"]
    output.print_table(titles, rows, numbers=["version", "files", "rows", "bytes"], cut="details")


def _number(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _shown(value: Any) -> str | None:
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return None if value is None else str(value)
