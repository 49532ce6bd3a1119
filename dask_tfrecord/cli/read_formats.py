"""Read the source of `convert`, in any format, as a Dask DataFrame of the selected columns and rows.

Dask reads Parquet files, and the blocks of CSV files and JSON lines. Arrow parses the blocks, because Dask's
`read_csv` reads an empty text as null, dates as text, and a quoted line break at the end of a block wrongly.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import click
import dask
import dask.dataframe as dd
import fsspec
import pandas as pd
import pyarrow as pa
from dask.bytes import read_bytes
from fsspec.utils import infer_compression
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

import dask_tfrecord
from dask_tfrecord import SchemaError
from dask_tfrecord.cli.detect_format import Format
from dask_tfrecord.cli.failures import option_name
from dask_tfrecord.cli.where_option import Filters, names_in

# The default size of a block of text in stored bytes, and the number of bytes of a sampled file from which
# types are inferred.
_BLOCK_BYTES = 1 << 26
_SAMPLE_BYTES = 1 << 20


def open_source(
    paths: str | list[str],
    files: Sequence[str],
    format: Format,
    nulls: tuple[str, ...],
    index: Literal[False] | None,
    read: dict[str, Any],
) -> dd.DataFrame:
    """Open the source files of `convert` as a Dask DataFrame. The function `open_source` reads only a sample
    of the files.

    The argument ``nulls`` has the texts that mean null in CSV files, ``index`` is False if the target format
    has no index, and ``read`` has the given keywords of `read_tfrecord`.
    """
    if nulls and format != "csv":
        raise click.UsageError("--null is for CSV files")
    if read.get("blocksize") == "none":
        read = {**read, "blocksize": None}
    if format == "tfrecord":
        return dask_tfrecord.read_tfrecord(paths, index=index, **read)
    common = {name: read[name] for name in ("blocksize", "storage_options") if name in read}
    others = read.keys() - {*common, "columns", "filters"}
    types = read.get("schema", {})
    if format != "parquet" and isinstance(types, dict):
        others -= {"schema"}
    for name in others:
        option = option_name(name, read[name]) if isinstance(types, dict) or name != "schema" else name
        raise click.UsageError(f"--{option} is for TFRecord, and SRC is {format}")
    columns, filters = read.get("columns"), read.get("filters")
    needed = None if columns is None else list(dict.fromkeys([*columns, *names_in(filters)]))
    if format == "parquet":
        # With Dask's default for this option, the result would be the same, but Dask would convert all
        # strings once more.
        with dask.config.set({"dataframe.convert-string": False}):
            # With another dtype backend, integers with nulls would become floats.
            ddf = dd.read_parquet(paths, columns=needed, index=index, dtype_backend="pyarrow", **common)
    else:
        ddf = read_text(files, format, types, nulls, columns=needed, **common)
    if filters is not None:
        # Raises if a value cannot be compared with its column.
        dask_tfrecord.filter_mask(pa.Table.from_pandas(ddf._meta, preserve_index=False), filters)
        ddf = ddf.map_partitions(_filtered, filters, meta=ddf._meta, enforce_metadata=False)
    return ddf if columns is None else ddf[columns]


def _filtered(frame: pd.DataFrame, filters: Filters) -> pd.DataFrame:
    """Select the rows of a partition that pass filters, as ``filters=`` does.

    The function `_filtered` runs in a Dask task.
    """
    columns = pa.Table.from_pandas(frame[names_in(filters)], preserve_index=False)
    selected: pd.DataFrame = frame[dask_tfrecord.filter_mask(columns, filters).to_numpy()]
    return selected


def read_text(
    files: Sequence[str],
    format: Format,
    types: Mapping[str, pa.DataType],
    nulls: tuple[str, ...] = (),
    *,
    columns: Sequence[str] | None = None,
    blocksize: int | str | None = _BLOCK_BYTES,
    storage_options: dict[str, Any] | None = None,
) -> dd.DataFrame:
    """Create the collection that reads CSV files or JSON lines, with Arrow types.

    Types that are not given are inferred from a sample. If a later value has another type, the value is not
    converted and an error is raised. A block has at most ``blocksize`` stored bytes; if ``blocksize`` is
    None, each file is one block.
    """
    options = storage_options or {}
    schema = _infer(files, Syntax(format, types, nulls), options)
    names = list(schema.names) if columns is None else list(columns)
    if unknown := [name for name in names if name not in schema.names]:
        raise SchemaError(f"no column is named {unknown[0]!r}; there are {', '.join(schema.names)}")
    syntax = Syntax(format, dict(zip(schema.names, schema.types, strict=True)), nulls)
    parts = []
    for file in files:
        size = None if infer_compression(file) else blocksize
        _, (blocks,) = read_bytes(file, b"\n", blocksize=size, sample=False, compression="infer", **options)
        parse = dask.delayed(partial(_parse_block, path=file, columns=names, syntax=syntax))
        parts += [parse(block, is_first=number == 0) for number, block in enumerate(blocks)]
    meta = schema.empty_table().select(names).to_pandas(types_mapper=pd.ArrowDtype)
    return dd.from_delayed(parts, meta=meta, verify_meta=False) if parts else dd.from_pandas(meta, 1)


class Syntax(NamedTuple):
    """Name the format of text, the types of its columns, and the spellings of null."""

    format: Format
    types: Mapping[str, pa.DataType]
    nulls: tuple[str, ...]

    def parse(self, data: bytes, names: Sequence[str], unexpected: Literal["infer", "error"]) -> pa.Table:
        """Parse lines. ``unexpected`` says what happens with JSON fields that have no type."""
        if not data.strip(b"\r\n"):
            return pa.schema([(name, self.types.get(name, pa.null())) for name in names]).empty_table()
        source = pa.BufferReader(data)
        if self.format == "jsonl":
            schema = pa.schema(dict(self.types)) if self.types else None
            return arrow_json.read_json(
                source,
                arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
            )
        return arrow_csv.read_csv(
            source,
            arrow_csv.ReadOptions(column_names=names, block_size=len(data), use_threads=False),
            arrow_csv.ParseOptions(newlines_in_values=b'"' in data),
            arrow_csv.ConvertOptions(
                column_types=dict(self.types),
                null_values=["", *self.nulls],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )


def _parse_block(data: bytes, *, path: str, columns: list[str], syntax: Syntax, is_first: bool) -> Any:
    """Parse a block of lines to a DataFrame in a task.

    The first block of a CSV file begins with the column names.
    """
    names = list(syntax.types)
    try:
        if syntax.format == "csv":
            header, data = _split_header(data) if is_first else (names, data)
            if header and header != names:
                raise SchemaError(f"the columns are {header}, and those of the first file are {names}")
            if data.count(b'"') % 2:
                raise SchemaError("a quoted field with line breaks lies in two blocks; pass --blocksize none")
        return syntax.parse(data, names, "error").select(columns).to_pandas(types_mapper=pd.ArrowDtype)
    except (pa.ArrowException, SchemaError) as error:
        raise SchemaError(
            f"{getattr(error, 'problem', error)}",
            "pass --type COLUMN=TYPE for a column that the sample shows wrongly or not at all"
            + ", or --null TEXT for text that means null" * (syntax.format == "csv"),
            path=path,
        ) from None


def _split_header(data: bytes) -> tuple[list[str], bytes]:
    """Split the data of a CSV file into the column names of its header and the lines after the header."""
    header, _, lines = data.partition(b"\n")
    return next(csv.reader(io.StringIO(header.decode("utf-8-sig").rstrip("\r"))), []), lines


def _infer(files: Sequence[str], syntax: Syntax, options: dict[str, Any]) -> pa.Schema:
    """Infer the column types from the first lines of the first file, the last file and a file in the
    middle.
    """
    types, schemas = syntax.types, []
    for at in sorted({0, len(files) // 2, len(files) - 1}):
        with fsspec.open(files[at], "rb", compression="infer", **options) as file:
            data = file.read(_SAMPLE_BYTES)
            if file.read(1):
                data = data[: data.rfind(b"\n") + 1]
        names, data = _split_header(data) if syntax.format == "csv" else (list(types), data)
        try:
            schema = syntax.parse(data, names, "infer").schema
        except pa.ArrowException as error:
            raise SchemaError(f"not valid {syntax.format}: {error}", path=files[at]) from None
        if syntax.format == "jsonl":  # Arrow would guess that text is a time, and would drop its time zone
            schema = pa.schema([(item.name, types.get(item.name, _as_text(item.type))) for item in schema])
        schemas.append(schema)
    unified = pa.unify_schemas(schemas, promote_options="permissive")
    if unknown := sorted(set(types) - set(unified.names)):
        raise SchemaError(f"--type names the column {unknown[0]!r}; there are {', '.join(unified.names)}")
    return unified


def _as_text(type_: pa.DataType) -> pa.DataType:
    """Replace timestamp types by the string type, also inside list types and structs."""
    if pa.types.is_timestamp(type_):
        return pa.string()
    if pa.types.is_struct(type_):
        return pa.struct([(item.name, _as_text(item.type)) for item in type_])
    return pa.list_(_as_text(type_.value_type)) if pa.types.is_list(type_) else type_
