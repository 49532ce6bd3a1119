"""Find all files below a directory, and the paths that match a glob, on any filesystem.

The module `find_files` also finds hidden files.
"""

import re
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.utils import glob_translate

from dask_tfrecord.files.storage.local_links import LinkFollowingDisk, without_duplicates
from dask_tfrecord.files.storage.paths import glob_start
from dask_tfrecord.files.storage.store import Store


def find_files(store: Store, path: str) -> dict[str, Any]:
    """Find all files below a directory. On a local disk, the search follows symbolic links."""
    if store.local:
        return without_duplicates(LinkFollowingDisk().find(path, detail=True))
    found: dict[str, Any]
    found = _walk(store.fs, path) if _lists_one_by_one(store.fs) else store.fs.find(path, detail=True)
    return {path: info for path, info in found.items() if info["type"] != "directory"}


def _lists_one_by_one(fs: AbstractFileSystem) -> bool:
    """Return True if the filesystem lists directories one by one, and fsspec would omit directories that
    fail.
    """
    kind = type(fs)
    return bool(
        kind._find is AsyncFileSystem._find if fs.async_impl else kind.find is AbstractFileSystem.find
    )


def _walk(fs: AbstractFileSystem, root: str, depth: int | None = None) -> dict[str, Any]:
    """Find all files and directories up to ``depth`` levels below a directory.

    Raise if a directory cannot be listed.
    """
    found: dict[str, Any] = {}
    level, waiting = 0, [root]
    while waiting and level != depth:
        level, below = level + 1, []
        for directory in waiting:
            try:
                infos = fs.ls(directory, detail=True)
            except FileNotFoundError:
                if directory == root:
                    raise
                continue  # the directory was removed, or it is a broken link on a page of links
            for info in infos:
                path = info["name"]
                if path in found or (
                    info["type"] == "directory" and path.rstrip("/") == directory.rstrip("/")
                ):
                    continue
                found[path] = info
                below += [path] if info["type"] == "directory" else []
        waiting = below
    return found


def matching_paths(store: Store, pattern: str) -> dict[str, Any]:
    """List the files and directories that match a glob without braces."""
    if store.local or not _lists_one_by_one(store.fs):
        fs = LinkFollowingDisk() if store.local else store.fs
        matches: dict[str, Any] = fs.glob(pattern, detail=True)
        return matches
    root = pattern[: pattern.rfind("/", 0, glob_start(pattern)) + 1]
    depth = None if "**" in pattern else pattern.count("/", len(root)) + 1
    matching = re.compile(glob_translate(pattern)).match
    try:
        found = _walk(store.fs, root, depth)
    except FileNotFoundError:
        return {}
    end = "/" if pattern.endswith("/") else ""
    return {path: info for path, info in found.items() if matching(path.rstrip("/") + end)}
