"""CSV and JSON lines -> a Dask DataFrame of Arrow types. Large files are read in blocks of lines.

The types are inferred from a sample. A later value of another type raises, and is never converted silently.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO, Literal

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
from fsspec.utils import infer_compression
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store

# Default for the stored bytes of a partition.
BLOCK_BYTES = 1 << 26

# Bytes of each sampled file from which the types are inferred, and the number of these files.
_SAMPLE_BYTES = 1 << 20
_SAMPLED_FILES = 3


@dataclass(frozen=True)
class TextFormat:
    """How the text is parsed.

    Attributes
    ----------
    name : "csv" or "jsonl"
        The format.
    types : dict of str to pyarrow.DataType
        The types of some or all columns.
    nulls : tuple of str
        The spellings of null in CSV files, apart from an empty field without quotes.
    """

    name: Literal["csv", "jsonl"]
    types: Mapping[str, pa.DataType]
    nulls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """Some whole lines of a file: all lines that begin in this range of bytes."""

    file: FileInfo
    start: int
    size: int | None


def read_text(
    store: Store,
    files: Sequence[FileInfo],
    text: TextFormat,
    columns: Sequence[str] | None,
    blocksize: int | None = BLOCK_BYTES,
) -> dd.DataFrame:
    """Create the collection that reads CSV files or JSON lines.

    Parameters
    ----------
    store : Store
        Where the files are.
    files : sequence of FileInfo
        The files, in the order of their rows.
    text : TextFormat
        The format, and the types that are given.
    columns : sequence of str, optional
        The columns to read, in this order.
    blocksize : int, optional
        The stored bytes of a partition. None makes a partition of each file.
    """
    schema = _infer(store, files, text)
    names = list(schema.names) if columns is None else list(columns)
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise SchemaError(f"no column is named {unknown[0]!r}; there are {', '.join(schema.names)}")
    whole = replace(text, types=dict(zip(schema.names, schema.types, strict=True)))
    blocks = [block for file in files for block in _blocks(file, blocksize)]
    meta = to_pandas(schema.empty_table().select(names))
    read = partial(_read_frame, store, text=whole, columns=names)
    return dd.from_map(read, blocks, meta=meta, enforce_metadata=False)


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """Convert a table to Arrow-backed columns."""
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return frame


def _blocks(file: FileInfo, blocksize: int | None) -> list[Block]:
    """Split a file. Compressed files are read as a whole."""
    if blocksize is None or file.size is None or infer_compression(file.path) is not None:
        return [Block(file, 0, None)]
    return [Block(file, start, blocksize) for start in range(0, max(file.size, 1), blocksize)]


@redact_errors
def _read_frame(store: Store, block: Block, *, text: TextFormat, columns: Sequence[str]) -> pd.DataFrame:
    """Task that reads a block."""
    return to_pandas(_read(store, block, text).select(list(columns)))


def _read(store: Store, block: Block, text: TextFormat) -> pa.Table:
    with store.fs.open(block.file.path, "rb", compression="infer") as file:
        header = file.readline() if text.name == "csv" else b""
        data = file.read() if block.size is None else _lines(file, block, len(header))
    try:
        return _parse(header, data, text)
    except (pa.ArrowException, SchemaError) as error:
        raise SchemaError(
            f"{getattr(error, 'problem', error)}",
            path=store.public(block.file.path),
            advice="pass --type COLUMN=TYPE for a column that the sample shows wrongly or not at all"
            + ", or --null TEXT for text that means null" * (text.name == "csv"),
        ) from None


def _lines(file: BinaryIO, block: Block, first: int) -> bytes:
    """Return the lines that begin in a block. ``first`` is where the first line behind the header begins."""
    end = block.start + (block.size or 0)
    if block.start <= first:
        file.seek(first)
    else:
        file.seek(block.start - 1)
        file.readline()
    position = file.tell()
    if position >= end:
        return b""
    data = file.read(end - position)
    return data if data.endswith(b"\n") else data + file.readline()


def _parse(header: bytes, data: bytes, text: TextFormat, *, infer: bool = False) -> pa.Table:
    return _parse_csv(header, data, text, infer) if text.name == "csv" else _parse_json(data, text, infer)


def _parse_csv(header: bytes, data: bytes, text: TextFormat, infer: bool) -> pa.Table:
    names = next(csv.reader(io.StringIO(header.decode("utf-8-sig"))), [])
    if not infer and set(names) != set(text.types):
        differ = ", ".join(map(repr, sorted(set(names) ^ set(text.types))))
        raise SchemaError(f"the columns differ from those of the first file: {differ}")
    if data.count(b'"') % 2 and not infer:
        raise SchemaError("a quoted field with line breaks lies in two blocks; pass --blocksize none")
    if not data.strip(b"\r\n"):
        return pa.schema([(name, text.types.get(name, pa.null())) for name in names]).empty_table()
    return arrow_csv.read_csv(
        pa.BufferReader(data),
        arrow_csv.ReadOptions(column_names=names, block_size=max(len(data), 1), use_threads=False),
        arrow_csv.ParseOptions(newlines_in_values=b'"' in data),
        arrow_csv.ConvertOptions(
            column_types=dict(text.types),
            null_values=["", *text.nulls],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _parse_json(data: bytes, text: TextFormat, infer: bool) -> pa.Table:
    schema = pa.schema(dict(text.types)) if text.types else None
    if not data.strip():
        return (schema or pa.schema([])).empty_table()
    return arrow_json.read_json(
        pa.BufferReader(data),
        arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        arrow_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if infer else "error"
        ),
    )


def _infer(store: Store, files: Sequence[FileInfo], text: TextFormat) -> pa.Schema:
    """Infer the types of the first lines of the first, the last and a middle file."""
    chosen = sorted({0, len(files) // 2, len(files) - 1})[:_SAMPLED_FILES]
    schemas = []
    for at in chosen:
        with store.fs.open(files[at].path, "rb", compression="infer") as file:
            header = file.readline() if text.name == "csv" else b""
            data = file.read(_SAMPLE_BYTES)
            if file.read(1):
                data = data[: data.rfind(b"\n") + 1]
        try:
            schema = _parse(header, data, text, infer=True).schema
        except pa.ArrowException as error:
            path = store.public(files[at].path)
            raise SchemaError(f"not valid {text.name}: {error}", path=path) from None
        if text.name == "jsonl":  # Arrow guesses that text is a time, and drops its time zone
            schema = pa.schema(
                [(item.name, text.types.get(item.name, _as_text(item.type))) for item in schema]
            )
        schemas.append(schema)
    unified = pa.unify_schemas(schemas, promote_options="permissive")
    unknown = sorted(set(text.types) - set(unified.names))
    if unknown:
        raise SchemaError(f"--type names the column {unknown[0]!r}; there are {', '.join(unified.names)}")
    return unified


def _as_text(type_: pa.DataType) -> pa.DataType:
    """Replace times by text."""
    if pa.types.is_timestamp(type_):
        return pa.string()
    return pa.list_(_as_text(type_.value_type)) if pa.types.is_list(type_) else type_
