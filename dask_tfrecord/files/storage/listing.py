"""Which files a directory, a glob, a file or a list of these means. Opens none of them."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.core import url_to_fs

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.local_links import Disk, is_hidden, once
from dask_tfrecord.files.storage.not_found import nothing_at, unreachable
from dask_tfrecord.files.storage.open_file import stamp_of
from dask_tfrecord.files.storage.paths import parent_of
from dask_tfrecord.files.storage.redaction import redact_errors, without_credentials
from dask_tfrecord.files.storage.store import Store

PathLike = str | os.PathLike[str]

# Old versions of Hadoop put an empty object of this name beside what they take for a directory.
_FOLDER_SUFFIX = "_$folder$"

# Files of one directory in a list from which on that is listed, rather than each of them asked for.
_MANY = 64

# Requests at a time, for each path of a list.
_THREADS = 16


@dataclass(frozen=True)
class FileInfo:
    """A file as a listing showed it.

    Attributes
    ----------
    path : str
        The path, as the filesystem calls it.
    size : int, optional
        Stored bytes; None if the store does not tell.
    stamp : str
        Differs when the file was rewritten; empty if the store tells nothing of the kind.
    crc32c : int, optional
        Checksum that the stored bytes have by a snapshot.
    """

    path: str
    size: int | None
    stamp: str = ""
    crc32c: int | None = None

    def __repr__(self) -> str:
        path = self.path.partition("?")[0] if _is_url(self.path) else self.path
        return f"FileInfo({without_credentials(path)!r}, {self.size}, {self.stamp!r})"


class Listing(NamedTuple):
    """What paths mean.

    Attributes
    ----------
    store : Store
        Where the files are; its root is the first of the paths.
    files : tuple of FileInfo
        In the order of their rows.
    base : str
        The directory, if one was asked for: what it is called itself says nothing about the rows in it.
        Empty for all else.
    spelled_out : frozenset of str
        The paths of files that were asked for by their full names.
    """

    store: Store
    files: tuple[FileInfo, ...]
    base: str
    spelled_out: frozenset[str]


class _Found(NamedTuple):
    """What one path means."""

    files: list[FileInfo]
    kind: str  # "directory", "file" or "glob"


@redact_errors
def list_files(
    paths: PathLike | Sequence[PathLike], storage_options: dict[str, Any] | None = None
) -> Listing:
    """The visible files that ``paths`` means.

    Those of a directory (at any depth) or glob come sorted by path, those of a list in the list's order.
    A path that exists is taken as it is, whatever signs of a glob it holds. As in Spark, a name is hidden
    that starts with "." or with "_" (and holds no "=", as the partition directory ``_year=2026`` does),
    unless the caller spelled it out.

    Raises
    ------
    FileNotFoundError
        If a path means no file.
    TFRecordError
        If the paths are on different filesystems, or there are none.
    """
    wanted = as_paths(paths)
    store = Store.at(wanted[0], storage_options)
    places = list(_places(store, wanted, storage_options or {}))
    found = _expand_all(store, places)
    for place, one in zip(places, found, strict=True):
        if not one.files:
            start = _first_magic(place)
            root = place if start == len(place) else parent_of(place[:start])
            raise nothing_at(Store(store.fs, root), "no visible files to read here", place)
        for file in one.files:
            if store.local and file.size is None:
                raise FileNotFoundError(f"{file.path}: the link leads to nothing")
    alone = len(found) == 1 and not isinstance(paths, list | tuple) and found[0].kind == "directory"
    return Listing(
        store,
        tuple(file for one in found for file in one.files),
        store.root if alone else "",
        frozenset(file.path for one in found if one.kind == "file" for file in one.files),
    )


def as_paths(paths: PathLike | Sequence[PathLike]) -> list[PathLike]:
    """The paths as a list of at least one.

    Raises
    ------
    TFRecordError
        If there are none, or one is no path; an empty text would be the working directory.
    """
    wanted = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not wanted:
        raise TFRecordError("the list of paths is empty")
    for path in wanted:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise TFRecordError(f"{path!r} is not a path", advice="pass a directory, a glob, or a file")
    return wanted


@redact_errors
def with_trailing_slash(store: Store) -> Store:
    """The store; over HTTP with a slash at the end of its root if that is a page of links."""
    if not _is_url(store.root) or store.root.endswith("/"):
        return store
    try:
        return Store(store.fs, f"{store.root}/") if _is_page(store.fs.info(store.root)) else store
    except FileNotFoundError:
        return store


def list_directory(store: Store) -> list[FileInfo]:
    """The visible files below the store's root, sorted; none if there is no such directory."""
    try:
        return _visible(_find(store, store.root), store.root)
    except FileNotFoundError:
        return []


def unquoted_path(path: str) -> str:
    """The path without what an address over HTTP escapes."""
    return unquote(path) if _is_url(path) else path


def _places(store: Store, paths: Sequence[PathLike], options: dict[str, Any]) -> Iterator[str]:
    """The paths as the store's filesystem calls them."""
    for path in paths:
        text = os.fspath(path)
        if store.local and "://" not in text and "::" not in text:  # many times faster
            yield str(store.fs._strip_protocol(text))
            continue
        fs, here = url_to_fs(text, **options)
        if fs != store.fs:
            raise TFRecordError(
                "the paths of one call must be on one filesystem",
                path=store.public(store.root),
                advice="read each filesystem's files by themselves and use dask.dataframe.concat",
            )
        yield here


def _expand_all(store: Store, places: Sequence[str]) -> list[_Found]:
    """What each path means; where each is a request, many at a time."""
    if store.local or len(places) == 1:
        return [_expand(store, place) for place in places]
    parents = Counter(parent_of(place) for place in places if not _is_url(place))
    for parent, count in parents.items():
        if count >= _MANY and _first_magic(parent) == len(parent):
            with suppress(OSError):  # fsspec remembers it, and answers from it when asked for the files
                store.fs.ls(parent)
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(lambda place: _expand(store, place), places))


def _expand(store: Store, path: str) -> _Found:
    try:
        info = store.fs.info(path)
    except FileNotFoundError as error:
        failure = unreachable(store.public(path), error) if _is_url(path) else None
        if failure is not None:
            raise failure from None
        magic = _first_magic(path) < len(path)
        return _Found(_glob(store, path) if magic else [], "glob")
    if store.local and info["type"] == "other":
        advice = "copy what it gives to a file, and read that"
        raise TFRecordError("is no regular file, but a pipe, a socket or a device", path=path, advice=advice)
    if info["type"] == "directory" or _is_page(info):
        return _Found(list_directory(Store(store.fs, path)), "directory")
    return _Found([_file(info)], "file")


def _is_url(path: str) -> bool:
    return path.startswith(("http://", "https://"))


def _is_page(info: dict[str, Any]) -> bool:
    """Whether it is what a server shows of a directory over HTTP, where nothing else tells."""
    return info.get("mimetype") == "text/html" and urlsplit(info.get("url", "")).path.endswith("/")


def _glob(store: Store, pattern: str) -> list[FileInfo]:
    """The files that match, and those below directories that match."""
    found: dict[str, Any] = {}
    fs = Disk() if store.local else store.fs
    for one in expand_braces(pattern):
        spelled_out = parent_of(one[: _first_magic(one)])
        matches: dict[str, Any] = {}
        for path, info in fs.glob(one, detail=True).items():
            matches |= _find(store, path) if info["type"] == "directory" else {path: info}
        found |= {path: matches[path] for path in _visible_paths(matches, spelled_out)}
    return [_file(info) for _, info in sorted(once(found).items())]


def _find(store: Store, path: str) -> dict[str, Any]:
    """What lies below a directory; on a disk also what is behind links."""
    if store.local:
        return once(Disk().find(path, detail=True))
    kind = type(store.fs)
    walks = AsyncFileSystem._find if store.fs.async_impl else AbstractFileSystem.find
    own = kind._find if store.fs.async_impl else kind.find
    options = {"on_error": _raise_unless_gone} if own is walks else {}
    found: dict[str, Any] = store.fs.find(path, detail=True, **options)
    return found


def _raise_unless_gone(error: OSError) -> None:
    """What to do about a directory that cannot be listed, which fsspec passes over."""
    if not isinstance(error, FileNotFoundError):
        raise error


def expand_braces(pattern: str) -> list[str]:
    """The patterns without braces that one with ``{a,b}`` stands for; braces may hold others."""
    start = depth = 0
    commas: list[int] = []
    for at, sign in enumerate(pattern):
        if sign == "{":
            if not depth:
                start, commas = at, []
            depth += 1
        elif depth and sign == ",":
            commas += [at] if depth == 1 else []
        elif depth and sign == "}":
            depth -= 1
            if not depth:
                edges = [start, *commas, at]
                choices = (pattern[one + 1 : other] for one, other in pairwise(edges))
                whole = (f"{pattern[:start]}{choice}{pattern[at + 1 :]}" for choice in choices)
                return list(dict.fromkeys(each for one in whole for each in expand_braces(one)))
    return [pattern]


def _visible(found: dict[str, Any], base: str) -> list[FileInfo]:
    return [_file(found[path]) for path in _visible_paths(found, base)]


def _visible_paths(found: dict[str, Any], base: str) -> list[str]:
    start = len(base.rstrip("/"))
    hidden: dict[str, bool] = {}  # by directory, of which there are few
    paths = []
    for path in sorted(found):
        info = found[path]
        directory, _, name = path.rpartition("/")
        if not name or info["type"] == "directory" or _is_pipe(info) or _is_hidden(name):
            continue
        if directory not in hidden:
            hidden[directory] = any(map(_is_hidden, directory[start:].split("/")))
        if not hidden[directory]:
            paths.append(path)
    return paths


def _is_pipe(info: dict[str, Any]) -> bool:
    """Whether it is a pipe, a socket or a device behind a cache of the disk; `Disk` shows none."""
    return info["type"] == "other" and not info.get("islink")


def _is_hidden(name: str) -> bool:
    return name.endswith(_FOLDER_SUFFIX) or is_hidden(name)


def _first_magic(path: str) -> int:
    """Where a path starts to be a glob; its length if it is none."""
    return min((at for at in map(path.find, "*?[{") if at >= 0), default=len(path))


def _file(info: dict[str, Any]) -> FileInfo:
    return FileInfo(info["name"], info.get("size"), stamp_of(info))
