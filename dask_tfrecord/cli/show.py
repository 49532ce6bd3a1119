"""Implement the commands `describe`, `head`, `cat`, `count` and `schema`, which show a dataset.

`describe` formats the description of a dataset as text and as JSON, and plots file sizes, list lengths and
values.
"""

import json
import os
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import click
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

import dask_tfrecord
from dask_tfrecord import Dataset, SchemaError
from dask_tfrecord.cli import options, output
from dask_tfrecord.cli.compute import computing
from dask_tfrecord.cli.failures import printable
from dask_tfrecord.cli.output import json_lines, json_values
from dask_tfrecord.dataset.export import metadata_schema
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.errors import counted, literal

# The text of a description lists at most this many versions.
_VERSIONS = 5


def description(dataset: Dataset, rows: pa.Table) -> dict[str, Any]:
    """Return what `describe` prints, as values of JSON."""
    keys, files, column_files = dataset.partitioning.schema.names, dataset.files, dataset.column_files
    statistics = dataset.statistics.astype(object)
    statistics = statistics.where(statistics.notna(), None)
    return {
        "path": dataset.path,
        "version": dataset.version,
        "rows": dataset.num_rows,
        "bytes": dataset.nbytes,
        "files": len(files),
        "smallest_file": min(files["bytes"], default=None),
        "largest_file": max(files["bytes"], default=None),
        "column_files": len(column_files),
        "column_bytes": int(column_files["bytes"].sum()),
        "kept_bytes": dataset.kept_bytes,
        "codecs": dataset.codecs,
        "record_type": dataset.record_type,
        "partition_columns": keys,
        "partition_directories": len(files[keys].drop_duplicates()) if keys else 1,
        "splits": dataset.splits,
        "supervised_keys": list(dataset.supervised_keys),
        "versions": [] if dataset.version is None else versions_of(dataset),
        "columns": [
            {
                "name": name,
                "type": str(row["type"]),
                "feature": row["feature"],
                "nulls": row["nulls"],
                "min": _bound(row["type"], row["min"]),
                "max": _bound(row["type"], row["max"]),
                "list_lengths": None if row["min_length"] is None else [row["min_length"], row["max_length"]],
            }
            for name, row in statistics.iterrows()
        ],
        "first_rows": [json.loads(line) for line in bytes(json_lines(rows)).splitlines()],
    }


def versions_of(dataset: Dataset) -> list[dict[str, Any]]:
    versions: list[dict[str, Any]] = pa.Table.from_pandas(dataset.history(), preserve_index=False).to_pylist()
    return versions


def _bound(type_: pa.DataType, value: Any) -> Any:
    if value is None:
        return None
    # The statistics of a list column describe the values inside the lists.
    while pa.types.is_dictionary(type_) or pa.types.is_nested(type_):
        type_ = type_.value_type
    return json.loads(json_values(pa.array([value], type_))[0].as_py())


# The text of a description leaves these out if they are zero or empty.
_OPTIONAL = ("column_files", "column_bytes", "kept_bytes", "partition_columns", "splits", "supervised_keys")
_UNKNOWN = {"version": "none: no snapshot describes the files", "rows": "not known"}


def print_description(found: dict[str, Any], rows: pa.Table) -> None:
    versions, columns = found["versions"], found["columns"]
    hidden = {"versions", "columns", "first_rows", *(name for name in _OPTIONAL if not found[name])}
    if not found["partition_columns"]:
        hidden.add("partition_directories")
    if found["files"] < 2:
        hidden |= {"smallest_file", "largest_file"}
    shown = {name: value for name, value in found.items() if name not in hidden}
    output.print_totals({name: _UNKNOWN[name] if value is None else value for name, value in shown.items()})
    output.print_lines([""])
    cells = (
        (
            *(one["name"], one["type"], one["feature"], _number(one["nulls"])),
            *(_shown(one["min"]), _shown(one["max"])),
            " to ".join(f"{length:,}" for length in dict.fromkeys(one["list_lengths"] or ())),
        )
        for one in columns
    )
    titles = ["column", "type", "feature", "nulls", "min", "max", "list lengths"]
    output.print_table(titles, cells, numbers=["nulls"], cut="type")
    if len(versions) > 1:
        output.print_lines([""])
        print_versions(versions[-_VERSIONS:])
        if (earlier := len(versions) - _VERSIONS) > 0:
            output.print_lines([f"{counted(earlier, 'earlier version')}, which history lists"])
    if rows.num_rows:
        output.print_lines(["", f"first {counted(rows.num_rows, 'row')}"])
        output.print_frame(rows)


def print_versions(versions: Iterable[dict[str, Any]]) -> None:
    rows = (
        (
            *(one["version"], one["created"] and f"{one['created']:%Y-%m-%d %H:%M:%S}", one["mode"]),
            *(_number(one[name]) for name in ("files", "rows", "bytes")),
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
    return None if value is None else str(value)


_ROWS = 10_000
_FILES = 5
_PANELS = 24
_PER_LINE = 4
_BARS = 10
_BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
_COLOUR = "#3b6ea5"


def draw(target: str, dataset: Dataset) -> None:
    """Draw a dataset to a file whose suffix determines the format, such as .png, .svg or .pdf."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # Matplotlib is an optional package.
    from matplotlib.figure import Figure  # Matplotlib's Agg canvas needs no window system.

    known = FigureCanvasAgg.get_supported_filetypes()
    if PurePath(target).suffix[1:] not in known:
        raise click.UsageError(f"--plot needs a name with one of the suffixes {', '.join(sorted(known))}")
    pieces = [*dataset.get_fragments()]
    count = min(_FILES, len(pieces))
    # Select fragments that are spread over the whole dataset.
    spread = [pieces[at * len(pieces) // count] for at in range(count)]
    rows = pa.concat_tables([piece.head(_ROWS // count) for piece in spread])
    while any(pa.types.is_struct(type_) for type_ in rows.schema.types):
        rows = rows.flatten()
    panels: list[tuple[str, pd.Series]] = [("bytes of a file", dataset.files["bytes"])]
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        panels += _panels(name, column.combine_chunks())
    shown = panels[:_PANELS]
    lines = -(-len(shown) // _PER_LINE)
    figure = Figure(figsize=(3.4 * min(_PER_LINE, len(shown)), 0.7 + 2.6 * lines), layout="constrained")
    note = f", {len(panels) - len(shown):,} more panels left out" if len(panels) > len(shown) else ""
    title = printable(f"{PurePath(dataset.path).name}: a sample of {rows.num_rows:,} rows{note}")
    figure.suptitle(title, fontsize=11, parse_math=False)
    grid = figure.subplots(lines, min(_PER_LINE, len(shown)), squeeze=False).flat
    for axes, (title, values) in zip(grid, shown, strict=False):
        axes.set_title(printable(title)[:40], fontsize=9, parse_math=False)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        _draw_panel(axes, values)
    for axes in list(grid)[len(shown) :]:
        axes.set_axis_off()
    figure.savefig(target, dpi=100)


def _panels(name: str, array: Any) -> list[tuple[str, pd.Series]]:
    kinds = pa.types
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if kinds.is_nested(array.type):
        lengths = []
        if not kinds.is_fixed_size_list(array.type):
            lengths = [(f"{name}: list lengths", pc.list_value_length(array).drop_null().to_pandas())]
        while kinds.is_nested(array.type):
            array = array.flatten()
        return lengths + _panels(f"{name}: values", array)
    nulls = f" ({counted(array.null_count, 'null')})" if array.null_count else ""
    if kinds.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = array.drop_null()
    if any(test(array.type) for test in _BINARY):
        return [(f"{name}: bytes of a value{nulls}", pc.binary_length(array).to_pandas())]
    if kinds.is_date(array.type) or kinds.is_timestamp(array.type):
        return [(f"{name}{nulls}", array.cast(pa.timestamp("s"), safe=False).to_pandas())]
    if kinds.is_integer(array.type) or kinds.is_floating(array.type) or kinds.is_decimal(array.type):
        numbers = array.cast(pa.float64(), safe=False).to_pandas()
        return [(f"{name}{nulls}", numbers[np.isfinite(numbers)])]
    return [(f"{name}{nulls}", array.cast(pa.string()).to_pandas().astype(object))]


def _draw_panel(axes: Any, values: pd.Series) -> None:
    if values.empty:
        axes.text(0.5, 0.5, "no values", ha="center", va="center", transform=axes.transAxes, fontsize=8)
        axes.set_axis_off()
    elif values.dtype == object:
        counts = values.value_counts()
        top = counts.head(_BARS)[::-1]
        axes.barh(range(len(top)), top, color=_COLOUR)
        axes.set_yticks(range(len(top)), [printable(text)[:18] for text in top.index], parse_math=False)
        if len(counts) > len(top):
            axes.set_xlabel(f"the {len(top)} most frequent of {len(counts):,} values", fontsize=7)
    else:
        axes.hist(values, bins=min(40, values.nunique()), color=_COLOUR)
        if values.dtype.kind == "M":
            axes.tick_params(axis="x", labelrotation=30)
        else:
            axes.ticklabel_format(axis="x", useOffset=False)


# A terminal shows rows in aligned tables of at most this many rows.
_PAGE = 100


def _rows(default: int, text: str) -> click.Option:
    return click.Option(
        ["-n", "--rows"], type=click.IntRange(0), default=default, show_default=True, help=text
    )


@options.command(
    "head",
    options.PATHS,
    _rows(10, "Number of rows."),
    *options.READ,
    options.JSON,
    examples=["rides -n 3 --columns city,fare", "s3://bucket/rides --storage-options anon=true"],
)
def head_command(path: Any, rows: int, as_json: bool, **read: Any) -> None:
    """The rows are printed as a table on a terminal, and as JSON lines elsewhere. The command reads only the
    start of the first file. If the types are not known, the command also samples other files.
    """
    _print_rows(dask_tfrecord.open_dataset(path, **read).head(rows), as_json)


_explain = click.Option(
    ["--explain"],
    is_flag=True,
    help="Do not read the rows. Print which bytes of which files the command would read, and why.",
)


def _print_explanation(ddf: Any, as_json: bool) -> None:
    explanation = dask_tfrecord.explain(ddf)
    output.print_result(explanation.to_dict(), repr(explanation).splitlines(), as_json)


@options.command(
    "cat",
    options.PATHS,
    *options.READ,
    _explain,
    options.JSON,
    examples=["rides --where \"city == 'Bern' and fare > 10\"", "'train-*.tfrecord' --columns label"],
)
def cat_command(path: Any, as_json: bool, explain: bool, **read: Any) -> None:
    """The rows are printed as tables on a terminal, and as JSON lines elsewhere. The command needs only a few
    MiB of memory, whatever the size of the dataset.
    """
    if explain:
        _print_explanation(dask_tfrecord.read_tfrecord(path, index=False, **read), as_json)
        return
    for batch in dask_tfrecord.open_dataset(path, **read).to_batches():
        _print_rows(pa.Table.from_batches([batch]), as_json)


def _print_rows(table: pa.Table, as_json: bool) -> None:
    if as_json or not output.is_terminal():
        output.print_rows(table)
        return
    for start in range(0, table.num_rows, _PAGE):
        output.print_frame(table.slice(start, _PAGE))


@options.command(
    "count",
    options.PATHS,
    *options.READ,
    _explain,
    options.JSON,
    *options.COMPUTING,
    examples=["rides", 'rides --where "fare is None" --explain', "rides --version 3"],
)
def count_command(path: Any, as_json: bool, explain: bool, **read: Any) -> None:
    """If the dataset has a snapshot and --where is not passed, no data file is read."""
    if explain:
        read = {**read, "columns": [], "index": False}
        _print_explanation(dask_tfrecord.read_tfrecord(path, **read), as_json)
        return
    dataset = dask_tfrecord.open_dataset(path, **read)
    rows = dataset.num_rows
    if rows is None:
        with computing("Counting"):
            rows = len(dataset.to_dask())
    output.print_result({"rows": rows}, [str(rows)], as_json)


_as = click.Option(
    ["--as", "form"],
    type=click.Choice(["arrow", "python", "tensorflow", "pbtxt"]),
    default="arrow",
    show_default=True,
    help="arrow: names and types. python: code for schema=. tensorflow: code of the spec for TensorFlow's "
    "parser. pbtxt: the schema of TensorFlow Metadata.",
)


@options.command(
    "schema", options.PATHS, _as, *options.READ, options.JSON, examples=["rides", "rides --as python"]
)
def schema_command(path: Any, form: str, as_json: bool, **read: Any) -> None:
    if form == "arrow":
        schema = dask_tfrecord.open_dataset(path, **read).schema
        columns = [{"name": item.name, "type": str(item.type)} for item in schema]
        lines = [f"{printable(one['name'])}: {one['type']}" for one in columns]
        output.print_result({"columns": columns}, lines, as_json)
    else:
        code = _schema_code(path, form, read)
        output.print_result({"form": form, "code": code}, code.rstrip("\n").split("\n"), as_json)


def _schema_code(path: Any, form: str, read: dict[str, Any]) -> str:
    if form == "pbtxt":
        if isinstance(path, list) or not read.keys() <= {"version", "storage_options"}:
            raise click.UsageError("--as pbtxt needs one directory with a snapshot, and only takes --version")
        return metadata_schema(Snapshot.open(path, **read))
    if form == "tensorflow":
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Importing TensorFlow would print log lines.
        from dask_tfrecord.feed.tensorflow import feature_spec  # TensorFlow is an optional package.

        return feature_spec(path, **read).code()
    schema = dask_tfrecord.open_dataset(path, **read).schema
    fields = "".join(f"        ({item.name!r}, {literal(item.type)}),\n" for item in schema)
    return f"import pyarrow as pa\n\nschema = pa.schema(\n    [\n{fields}    ]\n)"


_plot = click.Option(
    ["--plot"],
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Draw the sizes of the files, the lengths of lists and the values of a sample to a picture, such "
    "as out.png or out.svg.",
)


_values = click.Option(
    ["--values"],
    metavar="COLUMN",
    help="Instead, print the values of a column, and how many rows have each of them, the most frequent "
    "first. Of lists, each value is counted, and an empty list is counted as null.",
)
# A table of values has at most this many lines.
_MOST_VALUES = 100


def _column(path: Any, name: str, read: dict[str, Any]) -> Any:
    """Read a column, or a field of a struct column, as a Dask Series."""
    try:
        found = dask_tfrecord.read_tfrecord(path, dtype_backend="pyarrow", **{**read, "columns": name})
    except SchemaError as error:
        problem = error.problem.replace("columns=", "values=")
        raise error.replaced(problem=problem, keyword="values") from None
    if found.ndim > 1:
        raise click.UsageError(f"--values {name}: it is a group of the columns {', '.join(found.columns)}")
    return found


def _print_values(path: Any, name: str, read: dict[str, Any], as_json: bool) -> None:
    with computing("Counting values"):
        column = _column(path, name, read)
        while pa.types.is_list(getattr(column.dtype, "pyarrow_dtype", pa.null())):
            column = column.explode()
        if pa.types.is_nested(getattr(column.dtype, "pyarrow_dtype", pa.null())):
            raise click.UsageError(f"--values {name}: it is a column of vectors or structs")
        counts = column.value_counts(dropna=False).compute().sort_index()
        counts = counts.sort_values(ascending=False, kind="stable")
    values = pa.array(counts.index, from_pandas=True)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    pairs = [
        (json.loads(text.as_py()), count) for text, count in zip(json_values(values), counts, strict=True)
    ]
    if as_json:
        found = [{"value": value, "count": int(count)} for value, count in pairs]
        output.print_json({"column": name, "values": found})
        return
    total = max(1, sum(counts))
    lines = [(_shown(value) or "null", f"{count:,}", f"{count / total:.2%}") for value, count in pairs]
    output.print_table([name, "count", "share"], lines[:_MOST_VALUES], numbers=["count", "share"], cut=name)
    if (more := len(lines) - _MOST_VALUES) > 0:
        output.print_lines([f"{counted(more, 'more value')}, which --json shows"])


@options.command(
    "describe",
    options.PATHS,
    _rows(5, "Rows to show."),
    _values,
    _plot,
    *options.READ,
    options.JSON,
    examples=["rides", "rides -n 0 --json", "images --values label", "images --plot images.png"],
)
def describe_command(
    path: Any, rows: int, as_json: bool, plot: str | None = None, values: str | None = None, **read: Any
) -> None:
    """The printed numbers come from the snapshot, so the command reads only a few MiB. Without a snapshot,
    the number of rows, the null counts and the value ranges are not known. To get the number of rows, run the
    command `count`. The command `add-snapshot` stores row counts, null counts and value ranges in a snapshot.
    """
    if values is not None:
        _print_values(path, values, read, as_json)
        return
    dataset = dask_tfrecord.open_dataset(path, **read)
    table = dataset.head(rows)
    if plot is not None:
        draw(plot, dataset)
    found = description(dataset, table)
    if as_json:
        output.print_json(found)
    else:
        print_description(found, table)
