"""The formats of `convert`, and how a path shows its format."""

import re
from pathlib import PurePath
from typing import Literal, get_args

import click

from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.paths import name_of

Format = Literal["tfrecord", "parquet", "csv", "jsonl"]
FORMATS = get_args(Format)

_COMPRESSED = r"(\.(gz|gzip|zlib|deflate|zip|zst|zstd|lz4|bz2|xz))?"
_SUFFIXES: dict[Format, re.Pattern[str]] = {
    "parquet": re.compile(r".*\.(parquet|parq|pq)"),
    "csv": re.compile(rf".*\.csv{_COMPRESSED}"),
    "jsonl": re.compile(rf".*\.(jsonl|ndjson|json){_COMPRESSED}"),
    "tfrecord": re.compile(rf".*\.tfrecords?(-\d+-of-\d+)?{_COMPRESSED}"),
}

# The suffix of the files that are written.
SUFFIXES: dict[Format, str] = {"parquet": ".parquet", "csv": ".csv", "jsonl": ".jsonl"}


def format_of_name(path: str) -> Format | None:
    """Return the format that the suffix of a name shows; None if it shows none."""
    name = name_of(path.rstrip("/")).lower()
    return next((format for format, suffix in _SUFFIXES.items() if suffix.fullmatch(name)), None)


def format_of_target(path: str) -> Format:
    """Return the format of a destination by its name, which is TFRecord for a name without a suffix.

    Raises
    ------
    click.UsageError
        If the suffix is not known.
    """
    found = format_of_name(path)
    suffix = PurePath(name_of(path.rstrip("/"))).suffix
    if found is None and suffix:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise click.UsageError(f"the suffix {suffix!r} of DST is none of {known}; pass --to with the format")
    return found or "tfrecord"


def format_of_files(files: tuple[FileInfo, ...], place: str) -> Format:
    """Return the format of files by their names. Names without a known suffix are TFRecord files.

    Raises
    ------
    click.UsageError
        If the names show several formats.
    """
    formats = {format_of_name(file.path) or "tfrecord" for file in files}
    if len(formats) > 1:
        known = ", ".join(sorted(formats))
        raise click.UsageError(f"{place} holds files of several formats ({known}); pass a glob, or --from")
    (found,) = formats
    return found
