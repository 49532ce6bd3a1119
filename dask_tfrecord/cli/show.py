"""Implement the commands `inspect`, `head`, `cat`, `count` and `schema`, which show a dataset."""

from contextlib import closing
from typing import Any

import click
import pyarrow as pa

import dask_tfrecord
from dask_tfrecord import Remedy, Schema
from dask_tfrecord.cli import options, output
from dask_tfrecord.cli.describe import description_json, first_rows, print_description
from dask_tfrecord.cli.escapes import printable
from dask_tfrecord.cli.progress import computing

# The number of rows in each aligned table on a terminal.
_PAGE = 100


def _rows(default: int, text: str) -> click.Option:
    return click.Option(
        ["-n", "--rows"], type=click.IntRange(0), default=default, show_default=True, help=text
    )


@options.command("head", options.PATHS, _rows(10, "Number of rows."), *options.READ, options.JSON)
def head_command(path: Any, rows: int, as_json: bool, **read: Any) -> None:
    """On a terminal, the rows are printed as a table, and otherwise as JSON lines. Only the start of the
    first file is read, and a sample of other files if the types are not known.
    """
    _print_rows(first_rows(dask_tfrecord.inspect(path, **read), rows), as_json)


_explain = click.Option(
    ["--explain"],
    is_flag=True,
    help="Do not read the rows. Print which bytes of which files the command would read, and why.",
)


def _print_explanation(ddf: Any, as_json: bool) -> None:
    explanation = dask_tfrecord.explain(ddf)
    output.print_result(explanation.to_dict(), repr(explanation).splitlines(), as_json)


@options.command("cat", options.PATHS, *options.READ, _explain, options.JSON)
def cat_command(path: Any, as_json: bool, explain: bool, **read: Any) -> None:
    """On a terminal, the rows are printed as tables, and otherwise as JSON lines. The command needs only a
    few MiB of memory, whatever the size of the dataset.
    """
    if explain:
        _print_explanation(dask_tfrecord.read_tfrecord(path, index=False, **read), as_json)
        return
    with closing(dask_tfrecord.inspect(path, **read).iter_tables()) as tables:
        for table in tables:
            _print_rows(table, as_json)


def _print_rows(table: pa.Table, as_json: bool) -> None:
    if as_json or not output.is_terminal():
        output.print_rows(table)
        return
    for start in range(0, table.num_rows, _PAGE):
        output.print_frame(table.slice(start, _PAGE))


@options.command("count", options.PATHS, *options.READ, _explain, options.JSON, *options.COMPUTING)
def count_command(path: Any, as_json: bool, explain: bool, **read: Any) -> None:
    """No data file is read if the dataset has a snapshot and there is no --where."""
    if explain:
        read = {**read, "columns": [], "index": False}
        _print_explanation(dask_tfrecord.read_tfrecord(path, **read), as_json)
        return
    with computing("Counting"):
        rows = len(dask_tfrecord.read_tfrecord(path, **read))
    output.print_result({"rows": rows}, [str(rows)], as_json)


_as = click.Option(
    ["--as", "form"],
    type=click.Choice(["arrow", "python", "tensorflow", "pbtxt"]),
    default="arrow",
    show_default=True,
    help="arrow: names and types. python: code for schema=. tensorflow: code of the spec for TensorFlow's "
    "parser. pbtxt: the schema of TensorFlow Metadata.",
)


@options.command("schema", options.PATHS, _as, *options.READ, options.JSON)
def schema_command(path: Any, form: str, as_json: bool, **read: Any) -> None:
    text = _schema_text(path, form, read)
    output.print_result({"form": form, "schema": text}, text.rstrip("\n").split("\n"), as_json)


def _schema_text(path: Any, form: str, read: dict[str, Any]) -> str:
    if form == "pbtxt":
        if isinstance(path, list) or not read.keys() <= {"version", "storage_options"}:
            raise click.UsageError("--as pbtxt needs one directory with a snapshot, and only takes --version")
        return dask_tfrecord.metadata_schema(dask_tfrecord.Snapshot.open(path, **read))
    if form == "tensorflow":
        from dask_tfrecord.feed.tensorflow import feature_spec  # TensorFlow is an optional package

        return feature_spec(path, **read).code()
    schema = dask_tfrecord.inspect(path, **read).schema
    if form == "python":
        return _python(schema)
    return "\n".join(f"{printable(item.name)}: {item.type}" for item in schema.fields)


def _python(schema: Schema) -> str:
    # The text of a remedy shows its value as Python code.
    codes = {item.name: str(Remedy("type", item.type)).removeprefix("type=") for item in schema.fields}
    fields = "".join(f"        ({name!r}, {code}),\n" for name, code in codes.items())
    return f"import pyarrow as pa\n\nschema = pa.schema(\n    [\n{fields}    ]\n)"


_plot = click.Option(
    ["--plot"],
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Draw the sizes of the files, the lengths of lists and the values of a sample to a picture, such "
    "as out.png or out.svg.",
)


@options.command("inspect", options.PATHS, _rows(5, "Rows to show."), _plot, *options.READ, options.JSON)
def inspect_command(path: Any, rows: int, as_json: bool, plot: str | None = None, **read: Any) -> None:
    """The numbers come from the snapshot, so only a few MiB are read. Without a snapshot, the number of rows,
    the nulls and the ranges are not known. The command `count` counts the rows, and `index` stores these
    numbers in a snapshot.
    """
    described = dask_tfrecord.inspect(path, **read)
    table = first_rows(described, rows)
    if plot is not None:
        from dask_tfrecord.cli.plot import draw  # matplotlib is optional and slow to import

        draw(plot, described)
    if as_json:
        output.print_json(description_json(described, table))
    else:
        print_description(described, table)
