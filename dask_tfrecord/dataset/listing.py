"""List the files that paths, globs and directories specify, without opening them.

A listing leaves out hidden files. If a path specifies no files, the module looks up the reason only for the
error message.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.names import STAGING
from dask_tfrecord.errors import Call, NotFoundError, TFRecordError, did_you_mean
from dask_tfrecord.files.file_list import FileList
from dask_tfrecord.schema.tfds import FEATURES, INFO, LABELS
from dask_tfrecord.storage.failures import check_missing
from dask_tfrecord.storage.filesystem import Filesystem, open_path, source_of
from dask_tfrecord.storage.found_files import FoundFiles
from dask_tfrecord.storage.local_disk import check_loop, without_duplicates
from dask_tfrecord.storage.paths import (
    PathLike,
    expand_braces,
    glob_start,
    is_http,
    name_of,
    parent_of,
    path_text,
    unquoted_path,
)
from dask_tfrecord.storage.store import Store
from dask_tfrecord.storage.uploading import check_bucket

# Matches the names of incomplete files and directories that downloads create, for example downloads by
# TensorFlow Datasets. The name of a partition directory never matches.
_UNFINISHED = re.compile(r"\d+\.\d+\.\d+\.incomplete.*|incomplete\.[0-9a-fA-F]{32}\..+|[^=%]+\.incomplete")

# Maps two kinds of `_Match` to the reason why a path matches no file.
_NOTHING = {"missing": "no such file or directory", "glob": "no visible file matches the glob"}


def nothing_at(
    store: Store,
    otherwise: str,
    pattern: str = "",
    *,
    advice: str | None = None,
    add_snapshot: str | None = None,
) -> FileNotFoundError:
    """Return the error for a directory without files, or for a glob that matches no files.

    The error names the reason, or ``otherwise`` if it is unknown. The error suggests ``advice``. If
    ``add_snapshot`` is not None, the error also suggests this call, whose effect ``add_snapshot`` describes.
    """
    check_bucket(store)
    path, root = store.public(pattern or store.root), store.public()
    with suppress(Exception):  # if the store fails, the reason for the missing files remains unknown
        if store.names(STAGING):
            return unfinished_only(path, root)
    calls = [] if add_snapshot is None else [Call("add_snapshot", root, {}, add_snapshot)]
    return NotFoundError(f"{path}: {otherwise}", advice, calls)


def unfinished_only(path: str, root: str) -> FileNotFoundError:
    return NotFoundError(
        f"{path}: the only files belong to a write that has not finished",
        "wait for the write",
        [Call("cleanup", root, {}, "if the write was interrupted")],
    )


# Old versions of Hadoop mark a directory with an empty object whose name ends in this suffix.
_FOLDER_SUFFIX = "_$folder$"

# Files that describe a TFDS dataset. The files are written by `export` and TensorFlow Datasets, and used by
# reads without a snapshot.
TFDS_FILES = (INFO, FEATURES)

# Files without records that `export` or other libraries write to describe a dataset. TensorFlow Datasets also
# writes files whose names end in `LABELS`.
SIDE_FILES = frozenset({*TFDS_FILES, "schema.pbtxt"})

# If a caller passes at least this many paths in one directory, one listing replaces a request for each path.
_MANY = 64


class Listing(NamedTuple):
    """The files that match the caller's paths, globs and directories.

    The root of ``store`` is the first path that the caller passed. The files in ``files`` are in row order.
    ``base`` is the path of the directory if the caller passed a single directory, and otherwise "". Directory
    names in ``base`` itself are not partition directories. ``spelled_out`` contains the files that the caller
    passed by name, not by a glob or a directory. ``counts`` contains the number of files for each passed
    path. ``described`` contains the directories with a metadata file of TensorFlow Datasets.
    """

    store: Store
    files: FileList
    base: str
    spelled_out: frozenset[str] = frozenset()
    counts: tuple[int, ...] = ()
    described: frozenset[str] = frozenset()

    def keep(self, files: FileList) -> "Listing":
        """Return a listing of only ``files``, all of which must be in this listing."""
        if len(files) == len(self.files):
            return self
        mask = pc.is_in(self.files["path"], files["path"]).to_numpy()
        of_paths = np.split(mask, np.cumsum(self.counts)[:-1])
        counts = tuple(int(one.sum()) for one in of_paths)
        return self._replace(files=self.files.filter(mask), counts=counts)


class _Match(NamedTuple):
    infos: list[dict[str, Any]]
    kind: str  # "directory", "file", "glob", or "missing" (a path that is not a glob and does not exist)
    described: frozenset[str] = frozenset()


def list_files(
    paths: PathLike | Sequence[PathLike],
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
    *,
    may_lack_files: bool = False,
) -> Listing:
    """List the visible files that paths on one filesystem specify.

    The files in a directory (at any depth), and the files that match a glob, are sorted by path. Paths in a
    list keep their order. An existing path is used literally, even if it contains glob characters. As in
    Spark, a file whose name starts with "." or "_" is hidden, unless the caller passed its full name. A name
    that starts with "_" and contains "=", such as the partition directory ``_year=2026``, is not hidden.

    Raise FileNotFoundError if a path specifies no file. If ``may_lack_files`` is True, a directory with a
    metadata file of TensorFlow Datasets needs no other file. Raise TFRecordError for paths on different
    filesystems, and for an empty list.
    """
    wanted = as_paths(paths)
    store = Store.at(wanted[0], storage_options, filesystem)
    stripped = list(_without_protocol(store, wanted, storage_options, filesystem))
    matches = _expand_all(store, stripped)
    for path, match in zip(stripped, matches, strict=True):
        if not match.infos and not (may_lack_files and match.described):
            start = glob_start(path)
            root = path if start == len(path) else parent_of(path[:start])
            reason = _NOTHING.get(match.kind, "no visible files to read here")
            advice = None
            if not store.is_remote:  # on a remote store, the advice would need additional requests
                if match.kind == "glob" and os.path.isdir(root):
                    advice = f"pass {root!r} to read all files there"
                elif match.kind == "missing" and os.path.isdir(parent_of(path)):
                    advice = did_you_mean(name_of(path), os.listdir(parent_of(path)))
            raise nothing_at(Store.of(store.fs, root), reason, path, advice=advice)
        for info in match.infos:
            if info.get("is_broken_link"):
                problem = f"{info['name']}: the target of the link does not exist"
                raise NotFoundError(problem, "restore the target, or remove the link")
    is_directory = (
        len(matches) == 1 and not isinstance(paths, list | tuple) and matches[0].kind == "directory"
    )
    return Listing(
        store,
        FileList.of_infos(
            _start(store) if is_directory else "", (info for match in matches for info in match.infos)
        ),
        store.root if is_directory else "",
        frozenset(info["name"] for match in matches if match.kind == "file" for info in match.infos),
        tuple(len(match.infos) for match in matches),
        frozenset().union(*(match.described for match in matches)),
    )


def listing_of(store: Store) -> Listing:
    match = _directory(store)
    files = FileList.of_infos(_start(store), match.infos)
    return Listing(store, files, store.root, counts=(len(files),), described=match.described)


def as_paths(paths: PathLike | Sequence[PathLike]) -> list[PathLike]:
    """Convert one path, or a collection of paths, to a list of paths. The paths in a set are sorted."""
    given: Any = paths
    advice = "pass a directory, a glob, a file, or a list of these"
    if isinstance(given, np.ndarray):
        given = given.tolist()
    is_listed = isinstance(given, Sequence | set | frozenset)
    if not is_listed or isinstance(given, str | bytes | bytearray):
        path_text(given, advice=advice)
        return [given]
    for path in given:
        path_text(path, advice=advice)
    if not given:
        raise TFRecordError("the list of paths is empty", advice)
    return sorted(given) if isinstance(given, set | frozenset) else [*given]


def with_trailing_slash(store: Store) -> Store:
    """Return the store, with a slash appended to its root if that is an HTML page with links."""
    if not is_http(store.root) or store.root.endswith("/"):
        return store
    try:
        return replace(store, root=f"{store.root}/") if _is_page(store.fs.info(store.root)) else store
    except FileNotFoundError as error:
        check_missing(error, store.public())
        return store


def list_directory(store: Store | FoundFiles) -> FileList:
    """List the visible files below the store's root, sorted by path. A missing root contains no files."""
    return FileList.of_infos(_start(store), _directory(store).infos)


def find_listed(store: Store, names: Sequence[str]) -> tuple[FileList, FileList]:
    """Find files below the store's root by their names, which have the form of `FileList.names`.

    Return two file lists. The first has a row for each name; the row is null if no file has the name. The
    second contains all other visible files.
    """
    start, found = unquoted_path(_start(store)), _find_any(store)
    if is_http(start):
        found = {unquoted_path(path): info for path, info in found.items()}
    files = _rows_of(store, [found.pop(f"{start}{name}", None) for name in names])
    return files, FileList.of_infos(_start(store), (found[path] for path in _visible_paths(found, start)))


def request_infos(store: Store, names: Sequence[str]) -> FileList:
    """Request each file individually, because the listings of some stores do not show new files yet.

    Return a file list that has a row for each name, as `find_listed` does.
    """

    def info(name: str) -> dict[str, Any] | None:
        path = f"{_start(store)}{name}"
        store.fs.invalidate_cache(path)
        try:
            found = store.fs.info(path)
        except FileNotFoundError as error:
            check_missing(error, store.public(path))
            return None
        except OSError as error:
            check_loop(error, path)
            raise
        is_broken = found.get("islink") and not store.fs.exists(path)
        return None if found["type"] == "directory" or is_broken else {**found, "name": path}

    return _rows_of(store, store.for_each(info, names))


def _rows_of(store: Store, infos: Sequence[dict[str, Any] | None]) -> FileList:
    """Return a file list that has a row for each info. The row for None is null."""
    is_found = np.array([info is not None for info in infos], bool)
    files = FileList.of_infos(_start(store), filter(None, infos))
    return files if is_found.all() else files.take(pa.array(np.cumsum(is_found) - 1, mask=~is_found))


def _start(store: Store | FoundFiles) -> str:
    return f"{store.root.rstrip('/')}/"


def _find_any(store: Store | FoundFiles, *, with_hidden: bool = False) -> dict[str, Any]:
    """Find all files below the store's root. Return an empty dict if the root does not exist."""
    if isinstance(store, FoundFiles):
        return store.infos
    try:
        return store.find(store.root, is_hidden, with_hidden=with_hidden)
    except FileNotFoundError:
        return {}


def directories_holding(store: Store, name: str, listed: Store | FoundFiles | None = None) -> list[str]:
    """Return the visible directories below the root that contain a file or directory ``name``.

    The returned paths are relative to the root. ``name`` may be hidden. ``listed`` is an existing listing, or
    None to make one.
    """
    found = _find_any(listed or store, with_hidden=True)
    split = (f"{store.relative(path)}/".partition(f"/{name}/") for path in found)
    directories = {directory for directory, is_found, _ in split if is_found}
    return sorted(one for one in directories if not any(map(is_hidden, one.split("/"))))


def _without_protocol(
    store: Store, paths: Sequence[PathLike], options: dict[str, Any] | None, filesystem: Filesystem
) -> Iterator[str]:
    is_plain = not store.is_remote and filesystem is None
    for path in paths:
        text = os.fspath(path)
        # This check is much faster than fsspec's url_to_fs.
        if is_plain and "://" not in text and "::" not in text:
            yield str(store.fs._strip_protocol(text))
            continue
        fs, here = open_path(text, options, filesystem)
        if source_of(fs) != store.fs:
            problem = "the paths of one call must be on one filesystem"
            advice = "read each filesystem with one call and join the results with dask.dataframe.concat"
            raise TFRecordError(problem, advice, path=store.public())
        yield here


def _expand_all(store: Store, paths: Sequence[str]) -> list[_Match]:
    """List the files of each path, concurrently if the store is remote."""
    parents = Counter(parent_of(path) for path in paths if store.is_remote and not is_http(path))
    for parent, count in parents.items():
        if count >= _MANY and glob_start(parent) == len(parent):
            with suppress(OSError):  # fsspec caches this listing, so `info` needs no further request
                store.fs.ls(parent)
    return store.for_each(partial(_expand, store), paths)


def _expand(store: Store, path: str) -> _Match:
    try:
        info = store.fs.info(path)
    except FileNotFoundError as error:
        check_missing(error, store.public(path))
        magic = glob_start(path) < len(path)
        return _glob(store, path) if magic else _Match([], "missing")
    if info["type"] == "other" and not store.is_remote:
        advice = "copy its output to a regular file and read that file"
        raise TFRecordError("is a pipe, a socket or a device, not a regular file", advice, path=path)
    if info["type"] == "directory" or _is_page(info):
        return _directory(Store.of(store.fs, path))
    if path.endswith(f"/{info['name']}"):  # obstore leaves out the bucket
        info = {**info, "name": path}
    return _Match([info], "file")


def _directory(store: Store | FoundFiles) -> _Match:
    found = _find_any(store)
    infos = [found[path] for path in _visible_paths(found, store.root)]
    return _Match(infos, "directory", _described(found))


def _described(found: dict[str, Any]) -> frozenset[str]:
    ends = tuple(f"/{name}" for name in TFDS_FILES)
    return frozenset(parent_of(path) for path in found if path.endswith(ends))


def _is_page(info: dict[str, Any]) -> bool:
    """Return True for an HTML page whose URL ends with a slash: a web server's view of a directory."""
    return info.get("mimetype") == "text/html" and urlsplit(info.get("url", "")).path.endswith("/")


def _glob(store: Store, pattern: str) -> _Match:
    """List the files that match a glob, and those below directories that match it."""
    found: dict[str, Any] = {}
    described: frozenset[str] = frozenset()
    patterns = expand_braces(pattern)
    if is_http(pattern):  # links on web pages encode some characters, for example "=" as "%3D"
        patterns = list(dict.fromkeys([*patterns, *(quote(one, safe=":/*?[]!%") for one in patterns)]))
    for one in patterns:
        spelled_out = parent_of(one[: glob_start(one)])
        matches: dict[str, Any] = {}
        for path, info in store.glob(one, is_hidden).items():
            matches |= store.find(path, is_hidden) if info["type"] == "directory" else {path: info}
        found |= {unquoted_path(path): matches[path] for path in _visible_paths(matches, spelled_out)}
        described |= _described(matches)
    infos = [info for _, info in sorted(without_duplicates(found).items())]
    return _Match(infos, "glob", described)


def _visible_paths(found: dict[str, Any], base: str) -> list[str]:
    start = len(base.rstrip("/"))
    # Test each directory only once, because there are fewer directories than files.
    hidden: dict[str, bool] = {}
    paths = []
    for path in sorted(found):
        kind = found[path]["type"]
        directory, _, name = path.rpartition("/")
        if not name or kind == "directory" or _is_hidden(name):
            continue
        # A caching filesystem does not omit pipes, sockets and devices from a listing.
        if kind == "other" and not found[path].get("islink"):
            continue
        if directory not in hidden:
            hidden[directory] = any(map(_is_hidden, directory[start:].split("/")))
        if not hidden[directory]:
            paths.append(path)
    return paths


def is_hidden(name: str) -> bool:
    """Return True if readers ignore files and directories with this name, as Spark does.

    The name of a partition directory may begin with "_". The names of unfinished versions and files of
    TensorFlow Datasets are hidden, and so are names that end with ".incomplete".
    """
    if "incomplete" in name and _UNFINISHED.fullmatch(name):
        return True
    return name.startswith(".") or (name.startswith("_") and "=" not in name and "%3D" not in name)


def _is_hidden(name: str) -> bool:
    return name in SIDE_FILES or name.endswith((_FOLDER_SUFFIX, LABELS)) or is_hidden(name)
