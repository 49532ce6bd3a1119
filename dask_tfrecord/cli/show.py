"""Implement the commands `inspect`, `head`, `cat`, `count` and `schema`, which show a dataset."""

from contextlib import closing
from typing import Any, Literal, get_args

import click
import pyarrow as pa

import dask_tfrecord
from dask_tfrecord import Remedy, Schema
from dask_tfrecord.cli import options, output
from dask_tfrecord.cli.describe import description_json, first_rows, print_description
from dask_tfrecord.cli.escapes import printable
from dask_tfrecord.cli.progress import Computing

Form = Literal["arrow", "python", "tensorflow", "pbtxt"]

# Number of rows that form one aligned table on a terminal.
_PAGE = 100


@click.command("head")
@options.paths
@click.option("-n", "--rows", type=click.IntRange(0), default=10, show_default=True, help="Number of rows.")
@options.columns
@options.where
@options.reading
@options.as_json
def head_command(path: Any, rows: int, columns: Any, where: Any, read: dict[str, Any], as_json: bool) -> None:
    """Print the first rows.

    On a terminal the rows are a table, otherwise JSON lines. Only the start of the first file is read,
    and a sample of other files if the types are not known.
    """
    described = dask_tfrecord.inspect(path, columns=columns, filters=where, **read)
    _print_rows(first_rows(described, rows), as_json)


@click.command("cat")
@options.paths
@options.columns
@options.where
@options.reading
@options.as_json
def cat_command(path: Any, columns: Any, where: Any, read: dict[str, Any], as_json: bool) -> None:
    """Print all rows.

    On a terminal the rows are tables, otherwise JSON lines. A few MiB are in memory at a time, whatever
    the size of the dataset.
    """
    described = dask_tfrecord.inspect(path, columns=columns, filters=where, **read)
    with closing(described.iter_tables()) as tables:
        for table in tables:
            _print_rows(table, as_json)


def _print_rows(table: pa.Table, as_json: bool) -> None:
    if as_json or not output.is_terminal():
        output.print_rows(table)
        return
    for start in range(0, table.num_rows, _PAGE):
        output.print_frame(table.slice(start, _PAGE))


@click.command("count")
@options.paths
@options.where
@options.reading
@options.as_json
@options.computing
def count_command(path: Any, where: Any, read: dict[str, Any], as_json: bool, computing: Computing) -> None:
    """Print the number of rows.

    No data file is read if the dataset has a snapshot and there is no --where.
    """
    with computing.running("Counting"):
        rows = len(dask_tfrecord.read_tfrecord(path, filters=where, **read))
    if as_json:
        output.print_json({"rows": rows})
    else:
        output.print_lines([str(rows)])


@click.command("schema")
@options.paths
@click.option(
    "--as",
    "form",
    type=click.Choice(get_args(Form)),
    default="arrow",
    show_default=True,
    help="arrow: names and types. python: code for schema=. tensorflow: code of the spec for TensorFlow's "
    "parser. pbtxt: the schema of TensorFlow Metadata.",
)
@options.reading
@options.as_json
def schema_command(path: Any, form: Form, read: dict[str, Any], as_json: bool) -> None:
    """Print the columns and their types."""
    text = _schema_text(path, form, read)
    if as_json:
        output.print_json({"form": form, "schema": text})
    else:
        output.print_lines(text.rstrip("\n").split("\n"))


def _schema_text(path: Any, form: Form, read: dict[str, Any]) -> str:
    given = {name: value for name, value in read.items() if value != options.READ_DEFAULTS.get(name)}
    if form == "pbtxt":
        if isinstance(path, list) or not given.keys() <= {"version", "storage_options"}:
            raise click.UsageError("--as pbtxt needs one directory with a snapshot, and only takes --version")
        return dask_tfrecord.metadata_schema(dask_tfrecord.Snapshot.open(path, **given))
    if form == "tensorflow":
        if not given.keys() <= {"storage_options"}:
            raise click.UsageError("--as tensorflow describes the newest version, and takes no such option")
        from dask_tfrecord.feed.tensorflow import feature_spec  # TensorFlow is optional

        return feature_spec(path, **given).code()
    schema = dask_tfrecord.inspect(path, **read).schema
    if form == "python":
        return _python(schema)
    return "\n".join(f"{printable(item.name)}: {item.type}" for item in schema.fields)


def _python(schema: Schema) -> str:
    # A remedy shows its value as Python code.
    codes = {item.name: str(Remedy("type", item.type)).removeprefix("type=") for item in schema.fields}
    fields = "".join(f"        ({name!r}, {code}),\n" for name, code in codes.items())
    return f"import pyarrow as pa\n\nschema = pa.schema(\n    [\n{fields}    ]\n)"


@click.command("inspect")
@options.paths
@click.option("-n", "--rows", type=click.IntRange(0), default=5, show_default=True, help="Rows to show.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Draw the sizes of the files, the lengths of lists and the values of a sample to a picture, such "
    "as out.png or out.svg.",
)
@options.reading
@options.as_json
def inspect_command(path: Any, rows: int, plot: str | None, read: dict[str, Any], as_json: bool) -> None:
    """Describe a dataset: files, rows, codec, columns, version and first rows.

    The numbers come from the snapshot, so a few MiB are read. Without a snapshot, the number of rows, the
    nulls and the ranges are not known: `count` counts the rows, and `index` stores all of them.
    """
    described = dask_tfrecord.inspect(path, **read)
    table = first_rows(described, rows)
    if plot is not None:
        from dask_tfrecord.cli.plot import draw  # matplotlib is optional, and slow to import

        draw(plot, described)
    if as_json:
        output.print_json(description_json(described, table))
    else:
        print_description(described, table)
