"""The source of `convert`: files of any of the formats -> a Dask DataFrame of selected columns and rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import click
import dask
import dask.dataframe as dd
import pandas as pd

import dask_tfrecord
from dask_tfrecord.cli.formats.names import Format, format_of_files
from dask_tfrecord.cli.formats.text_files import BLOCK_BYTES, TextFormat, read_text
from dask_tfrecord.cli.options import READ_DEFAULTS
from dask_tfrecord.cli.where_option import Filters
from dask_tfrecord.dataset.query.filters import names_in, parse_filters
from dask_tfrecord.dataset.query.predicates import Predicate
from dask_tfrecord.dataset.snapshot.visibility import committed_files, snapshot_of_version
from dask_tfrecord.files.storage.listing import (
    FileInfo,
    Listing,
    list_files,
    table_infos,
    with_trailing_slash,
)
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.frames import pandas_to_arrow
from dask_tfrecord.frames.planning import plan_schema
from dask_tfrecord.schema.model import Schema


@dataclass(frozen=True)
class Selection:
    """What is read of the source.

    Attributes
    ----------
    columns : list of str, optional
        The columns, in this order. All by default.
    filters : list of list of tuple, optional
        The rows, as in `read_tfrecord`. All by default.
    nulls : tuple of str
        Additional spellings of null in CSV files.
    blocksize : int, "none", optional
        Stored bytes of a partition, or "none" to make a partition of each file.
    read : dict
        Other keywords of `read_tfrecord`. CSV and JSON lines have ``schema`` only, and Parquet none.
    """

    columns: list[str] | None = None
    filters: Filters | None = None
    nulls: tuple[str, ...] = ()
    blocksize: int | str | None = None
    read: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes
    ----------
    ddf : dask.dataframe.DataFrame
        The selected columns and rows.
    format : "tfrecord", "parquet", "csv" or "jsonl"
        The format of the files.
    files, bytes : int
        The number of files, before the selection, and their stored bytes.
    places : frozenset of str
        The paths of the files, in the form of their filesystem.
    """

    ddf: dd.DataFrame
    format: Format
    files: int
    bytes: int
    places: frozenset[str]


def open_source(
    path: str | list[str],
    format: Format | None,
    selection: Selection,
    storage_options: dict[str, Any] | None,
    *,
    index: Literal[False] | None = None,
) -> Source:
    """Open files of any format. Only a sample is read.

    Parameters
    ----------
    path, storage_options
        As in `read_tfrecord`.
    format : "tfrecord", "parquet", "csv" or "jsonl", optional
        The format. By default, the names of the files show it.
    selection : Selection
        What is read.
    index : False, optional
        False reads a stored index as columns, for formats without an index.
    """
    listing = list_files(path, storage_options)
    files = listing.files
    place = ", ".join(path) if isinstance(path, list) else path
    format = format or format_of_files(files, place)
    _check_options(selection, format)
    if format == "tfrecord":
        ddf = _read_tfrecord(path, selection, storage_options, index)
        version = selection.read.get("version")
        files = _files_of_version(listing, path, version, storage_options)
    elif format == "parquet":
        ddf = _read_parquet(path, selection, storage_options, index)
    else:
        ddf = _read_text(listing, format, selection)
    if format != "tfrecord":
        ddf = _selected(ddf, selection)
    return Source(
        ddf,
        format,
        len(files),
        sum(file.size or 0 for file in files),
        frozenset(file.path for file in files),
    )


def _check_options(selection: Selection, format: Format) -> None:
    if selection.nulls and format != "csv":
        raise click.UsageError("--null is for CSV files")
    if format == "tfrecord":
        return
    given = {name for name, value in selection.read.items() if value != READ_DEFAULTS.get(name)}
    if isinstance(selection.read.get("schema"), dict) and format != "parquet":
        given.remove("schema")
    if given:
        named = {"use_snapshot": "no-snapshot", "quarantine_path": "quarantine"}
        if isinstance(selection.read.get("schema"), dict):
            named["schema"] = "type"
        keyword = given.pop()
        option = named.get(keyword, keyword.replace("_", "-"))
        raise click.UsageError(f"--{option} is for TFRecord, and SRC is {format}")


def _files_of_version(
    listing: Listing, path: Any, version: int | None, storage_options: dict[str, Any] | None
) -> tuple[FileInfo, ...]:
    if version is None:
        return committed_files(listing, use_snapshot=True)
    _, files = snapshot_of_version(with_trailing_slash(Store.at(path, storage_options)), version)
    return tuple(table_infos(files))


def _read_tfrecord(
    path: str | list[str],
    selection: Selection,
    storage_options: dict[str, Any] | None,
    index: Literal[False] | None,
) -> dd.DataFrame:
    size: dict[str, Any] = {}
    if selection.blocksize is not None:
        size["blocksize"] = _number(selection.blocksize)
    return dask_tfrecord.read_tfrecord(
        path,
        columns=selection.columns,
        filters=selection.filters,
        index=index,
        storage_options=storage_options,
        **selection.read,
        **size,
    )


def _read_parquet(
    path: str | list[str],
    selection: Selection,
    storage_options: dict[str, Any] | None,
    index: Literal[False] | None,
) -> dd.DataFrame:
    """Read Parquet with Dask, with exact types: integers with nulls would become floats otherwise."""
    size = {} if selection.blocksize is None else {"blocksize": _number(selection.blocksize)}
    # With the default of Dask, the result is the same, but Dask converts all strings once more.
    with dask.config.set({"dataframe.convert-string": False}):
        ddf: dd.DataFrame = dd.read_parquet(
            path,
            columns=_needed(selection),
            index=index,
            dtype_backend="pyarrow",
            storage_options=storage_options,
            **size,
        )
    return ddf


def _read_text(listing: Listing, format: Format, selection: Selection) -> dd.DataFrame:
    text = TextFormat(
        "csv" if format == "csv" else "jsonl", selection.read.get("schema") or {}, selection.nulls
    )
    size = BLOCK_BYTES if selection.blocksize is None else _number(selection.blocksize)
    return read_text(listing.store, listing.files, text, _needed(selection), size)


def _number(blocksize: int | str) -> int | None:
    return None if isinstance(blocksize, str) else blocksize


def _needed(selection: Selection) -> list[str] | None:
    """The columns that are read: those of the result and those of the filters."""
    if selection.columns is None:
        return None
    return list(dict.fromkeys([*selection.columns, *sorted(names_in(selection.filters))]))


def _selected(ddf: dd.DataFrame, selection: Selection) -> dd.DataFrame:
    """Select rows and columns of a collection that was read with the needed columns."""
    if selection.filters is not None:
        names = sorted(names_in(selection.filters))
        unknown = [name for name in names if name not in ddf.columns]
        if unknown:
            known = ", ".join(map(repr, ddf.columns))
            raise click.UsageError(f"--where names the column {unknown[0]!r}; there are {known}")
        schema = plan_schema(
            ddf[names]._meta,
            schema=None,
            record_type="example",
            write_index=False,
            sample=partial(computed_partitions, ddf),
        )
        predicate = parse_filters(selection.filters, schema)
        ddf = ddf.map_partitions(_filter, predicate, schema, meta=ddf._meta, enforce_metadata=False)
    return ddf if selection.columns is None else ddf[selection.columns]


def computed_partitions(ddf: dd.DataFrame, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Compute the partitions of some columns, one after the other."""
    for index in range(ddf.npartitions):
        yield ddf[list(columns)].partitions[index].compute()


@redact_errors
def _filter(frame: pd.DataFrame, predicate: Predicate, schema: Schema) -> pd.DataFrame:
    """Task that selects rows, with the semantics of ``filters=``."""
    table = pandas_to_arrow.to_table(frame[schema.names], schema, write_index=False)
    mask = predicate.mask(table).fill_null(False)
    selected: pd.DataFrame = frame[mask.to_numpy()]
    return selected
