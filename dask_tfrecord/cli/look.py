"""`inspect`, `head`, `cat`, `count` and `schema`: what a dataset holds."""

import json
from typing import Any

import click

import dask_tfrecord
from dask_tfrecord.cli import options, output
from dask_tfrecord.cli.compute import Computing
from dask_tfrecord.cli.describe import describe_dataset, print_description
from dask_tfrecord.cli.describe.rows import first_rows, open_rows, stream
from dask_tfrecord.cli.describe.schema_text import FORMS, Form, schema_text
from dask_tfrecord.cli.formats.json_text import json_lines
from dask_tfrecord.cli.where import parse

# Rows of a table on a terminal that are aligned together.
_PAGE = 100


@click.command("head")
@options.paths
@click.option("-n", "--rows", type=click.IntRange(0), default=10, show_default=True, help="Number of rows.")
@options.columns
@options.where
@options.types
@options.version
@options.as_json
@options.storage_options
def head_command(
    path: Any,
    rows: int,
    columns: Any,
    where: str | None,
    types: Any,
    version: int | None,
    as_json: bool,
    storage_options: Any,
) -> None:
    """Print the first rows.

    On a terminal the rows are a table, otherwise JSON lines. Only the start of the first file is read,
    and a sample of other files if the types are not known.
    """
    dataset = open_rows(path, columns, where, types, storage_options, version)
    table = first_rows(dataset, columns, rows)
    if as_json or not output.is_terminal():
        output.print_rows(table)
    else:
        output.print_frame(table)


@click.command("cat")
@options.paths
@options.columns
@options.where
@options.types
@options.version
@options.as_json
@options.storage_options
def cat_command(
    path: Any,
    columns: Any,
    where: str | None,
    types: Any,
    version: int | None,
    as_json: bool,
    storage_options: Any,
) -> None:
    """Print all rows.

    On a terminal the rows are tables, otherwise JSON lines. A few MiB are in memory at a time, whatever
    the size of the dataset.
    """
    for table in stream(open_rows(path, columns, where, types, storage_options, version), columns):
        if as_json or not output.is_terminal():
            output.print_rows(table)
            continue
        for start in range(0, table.num_rows, _PAGE):
            output.print_frame(table.slice(start, _PAGE))


@click.command("count")
@options.paths
@options.where
@options.types
@options.version
@options.as_json
@options.storage_options
@options.computing
def count_command(
    path: Any,
    where: str | None,
    types: Any,
    version: int | None,
    as_json: bool,
    storage_options: Any,
    computing: Computing,
) -> None:
    """Print the number of rows.

    No data file is read if the dataset has a snapshot and there is no --where.
    """
    filters = None if where is None else parse(where)
    with computing.running("Counting"):
        ddf = dask_tfrecord.read_tfrecord(
            path, filters=filters, schema=types, version=version, storage_options=storage_options
        )
        rows = len(ddf)
    if as_json:
        output.print_json({"rows": rows})
    else:
        output.print_lines([str(rows)])


@click.command("schema")
@options.paths
@click.option(
    "--as",
    "form",
    type=click.Choice(FORMS),
    default="arrow",
    show_default=True,
    help="arrow: names and types. python: code for schema=. tensorflow: code of the spec for TensorFlow's "
    "parser. pbtxt: the schema of TensorFlow Metadata.",
)
@options.version
@options.as_json
@options.storage_options
def schema_command(path: Any, form: Form, version: int | None, as_json: bool, storage_options: Any) -> None:
    """Print the columns and their types."""
    text = schema_text(path, form, version, storage_options)
    if as_json:
        output.print_json({"form": form, "schema": text})
    else:
        output.print_lines(text.rstrip("\n").split("\n"))


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
@options.types
@options.version
@options.as_json
@options.storage_options
def inspect_command(
    path: Any,
    rows: int,
    plot: str | None,
    types: Any,
    version: int | None,
    as_json: bool,
    storage_options: Any,
) -> None:
    """Describe a dataset: files, rows, codec, columns, version and first rows.

    The numbers come from the snapshot, so a few MiB are read. Without a snapshot, the number of rows, the
    nulls and the ranges are not known: `count` counts the rows, and `index` stores all of them.
    """
    dataset = open_rows(path, None, None, types, storage_options, version)
    described = describe_dataset(path, dataset, storage_options)
    table = first_rows(dataset, None, rows)
    if plot is not None:
        from dask_tfrecord.cli.describe.plot import draw  # matplotlib is optional, and slow to import

        draw(plot, dataset, described)
    if as_json:
        lines = bytes(json_lines(table)).splitlines()
        output.print_json({**described.to_json(), "first_rows": list(map(json.loads, lines))})
        return
    print_description(described)
    if table.num_rows:
        output.print_lines(["", f"first {table.num_rows} rows"])
        output.print_frame(table)
