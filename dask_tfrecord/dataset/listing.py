"""Which files a directory, a glob, a file or a list of these means. Opens none of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fsspec.core import url_to_fs

from dask_tfrecord.dataset.source import stamp_of
from dask_tfrecord.dataset.store import Store
from dask_tfrecord.errors import TFRecordError

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class FileInfo:
    """A file as a listing showed it: the filesystem's own path, bytes (None if the store does not say), and a
    stamp that differs when the file was rewritten.
    """

    path: str
    size: int | None
    stamp: str = ""


def list_files(
    paths: PathLike | Sequence[PathLike], storage_options: dict[str, Any] | None = None
) -> tuple[Store, tuple[FileInfo, ...]]:
    """The visible files that ``paths`` means.

    Those of a directory (at any depth) or glob come sorted by path, those of a list in the list's order.
    As in Spark, a name is hidden that starts with "." or with "_" (and holds no "=", as the partition
    directory ``_year=2026`` does), unless the caller spelled it out.

    Raises
    ------
    FileNotFoundError
        If a path means no file.
    TFRecordError
        If the paths are on different filesystems, or there are none.
    """
    wanted = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not wanted:
        raise TFRecordError("the list of paths is empty")
    store = Store.at(wanted[0], storage_options)
    files: list[FileInfo] = []
    for path in wanted:
        fs, here = url_to_fs(os.fspath(path), **(storage_options or {}))
        if fs != store.fs:
            raise TFRecordError(
                "the paths of one call must be on one filesystem",
                path=store.public(store.root),
                advice="read each filesystem's files by themselves and use dask.dataframe.concat",
            )
        found = _expand(store, here)
        if not found:
            raise FileNotFoundError(f"{store.public(here)}: no visible files to read here")
        files += found
    return store, tuple(files)


def list_directory(store: Store) -> list[FileInfo]:
    """The visible files below the store's root, sorted; none if there is no such directory."""
    try:
        return _visible(store.fs.find(store.root, detail=True), store.root)
    except FileNotFoundError:
        return []


def _expand(store: Store, path: str) -> list[FileInfo]:
    """The files that one path means."""
    fs = store.fs
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return _glob(store, path) if _first_magic(path) < len(path) else []
    if info["type"] == "directory":
        return list_directory(Store(fs, path))
    return [_file(info)]


def _glob(store: Store, pattern: str) -> list[FileInfo]:
    """The files that match, and those below directories that match."""
    spelled_out = pattern[: _first_magic(pattern)].rpartition("/")[0]
    found: dict[str, Any] = {}
    for path, info in store.fs.glob(pattern, detail=True).items():
        found |= store.fs.find(path, detail=True) if info["type"] == "directory" else {path: info}
    return _visible(found, spelled_out)


def _visible(found: dict[str, Any], base: str) -> list[FileInfo]:
    start = len(base.rstrip("/"))
    return [
        _file(info)
        for path, info in sorted(found.items())
        if info["type"] != "directory"
        and not path.endswith("/")
        and not any(_hidden(name) for name in path[start:].split("/"))
    ]


def _hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _first_magic(path: str) -> int:
    """Where a path starts to be a glob; its length if it is none."""
    return min((at for at in map(path.find, "*?[") if at >= 0), default=len(path))


def _file(info: dict[str, Any]) -> FileInfo:
    return FileInfo(info["name"], info.get("size"), stamp_of(info))
