"""Detect the formats of `convert` from file names, and list the files of a path."""

import re
from collections.abc import Collection
from glob import has_magic
from pathlib import PurePath
from typing import Any, Literal, get_args

import click
from fsspec.core import url_to_fs

Format = Literal["tfrecord", "parquet", "csv", "jsonl"]
FORMATS = get_args(Format)

_COMPRESSED = r"(\.(gz|gzip|zlib|deflate|zip|zst|zstd|lz4|bz2|xz))?"
_SUFFIXES: dict[Format, re.Pattern[str]] = {
    "parquet": re.compile(r".*\.(parquet|parq|pq)"),
    "csv": re.compile(rf".*\.csv{_COMPRESSED}"),
    "jsonl": re.compile(rf".*\.(jsonl|ndjson|json){_COMPRESSED}"),
    "tfrecord": re.compile(rf".*\.tfrecords?(-\d+-of-\d+)?{_COMPRESSED}"),
}


def format_of_name(path: str) -> Format | None:
    """Return the format that the suffix of a file name shows, or None if the suffix is unknown."""
    name = _name(path).lower()
    return next((format for format, suffix in _SUFFIXES.items() if suffix.fullmatch(name)), None)


def format_of_target(path: str) -> Format:
    """Return the format that the name of a destination shows.

    A destination without a suffix has the format TFRecord.
    """
    found = format_of_name(path)
    suffix = PurePath(_name(path)).suffix
    if found is None and suffix:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise click.UsageError(f"the suffix {suffix!r} of DST is none of {known}; pass --to with the format")
    return found or "tfrecord"


def format_of_files(files: Collection[str]) -> Format:
    """Return the format that the names of several files show.

    A file without a known suffix counts as TFRecord.
    """
    formats = {format_of_name(file) or "tfrecord" for file in files}
    # JSON files beside TFRecord files describe the dataset to TensorFlow Datasets.
    if formats == {"tfrecord", "jsonl"}:
        formats = {format_of_name(file) or "tfrecord" for file in files if not file.endswith(".json")}
    if len(formats) > 1:
        known = ", ".join(sorted(formats))
        raise click.UsageError(f"SRC holds files of several formats ({known}); pass a glob, or --from")
    return formats.pop() if formats else "tfrecord"


def list_files(path: str, storage_options: dict[str, Any] | None) -> dict[str, int]:
    """Map each file of a path, which may be a directory, a glob or a file, to its size.

    Hidden files are not in the result.
    """
    fs, root = url_to_fs(path, **(storage_options or {}))
    fs.invalidate_cache()
    found: dict[str, int] = {}
    for place in [root] if fs.exists(root) or not has_magic(root) else sorted(fs.glob(root)):
        if fs.isdir(place):
            for name, info in sorted(fs.find(place, detail=True).items()):
                if not re.search(r"/[_.]", name.removeprefix(place.rstrip("/"))):
                    found[fs.unstrip_protocol(name)] = info["size"]
        elif fs.exists(place):
            found[fs.unstrip_protocol(place)] = fs.info(place)["size"]
    return found


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
