"""List and open files of the local disk.

Readers follow symbolic links. They see only regular files, so that no pipe or device blocks a read.
"""

import errno
import os
import stat
from collections.abc import Iterator
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.storage.filesystem import Hidden, Info
from dask_tfrecord.storage.paths import name_of

# The largest size of a file that is read as a whole. A JSON list of the paths of a million files has about
# 100 MiB.
METADATA_BYTES = 1 << 28


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor. The function can be passed as ``opener=`` to `open`.

    Raise TFRecordError for a directory, pipe, socket or device, and for links that lead in a loop. Raise
    FileNotFoundError if the file, or a directory above it, does not exist.
    """
    try:
        # Opening a pipe would wait for a writer, and opening a device could have side effects.
        _check_regular(path, os.stat(path))
        descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, "a parent is not a directory", path) from error
    except OSError as error:
        check_loop(error, path)
        raise
    try:
        _check_regular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_loop(error: OSError, path: str) -> None:
    """Raise TFRecordError if an operation has failed because links lead in a loop."""
    if error.errno == errno.ELOOP:
        raise TFRecordError("the links lead in a loop", "remove the links", path=path) from None


def _check_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    what = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe, a socket or a device"
    advice = "remove it, or put a regular file in its place"
    raise TFRecordError(f"is {what}, not a regular file", advice, path=path)


def read_regular(path: str, most_bytes: int) -> bytes:
    """Return the content of a regular file. Raise ValueError if it is larger than ``most_bytes``, and the
    errors of `open_regular` as ValueError without the path.
    """
    try:
        descriptor = open_regular(path)
    except TFRecordError as error:
        raise ValueError(error.problem) from None
    with open(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        if size > most_bytes:
            raise too_large(most_bytes)
        return file.read(size)  # a file that grows meanwhile is read up to its old size


def too_large(most_bytes: int) -> ValueError:
    return ValueError(f"the file is larger than the limit of {most_bytes:,} bytes")


# Error codes for a symbolic link whose target does not exist, or that leads into a loop of links.
_BROKEN_LINK = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class LinkFollowingDisk(LocalFileSystem):
    """A local filesystem whose methods `find` and `glob` follow symbolic links.

    A link to a directory is treated as a directory. A link to one of its own parent directories is not
    followed, because the search would never end. Pipes, sockets and devices are not listed. A broken link is
    listed as a file without a size. If a directory cannot be listed, `find` and `glob` raise. Directories
    for whose names ``is_hidden`` returns True are not searched. ``links`` contains the visible links to
    directories that `find` has found.
    """

    cachable = False

    def __init__(self, is_hidden: Hidden | None = None) -> None:
        super().__init__()
        self._is_hidden = is_hidden or (lambda _: False)
        self.links: list[str] = []

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any
    ) -> Any:
        """Find all files below a path.

        The key ``real`` of a file's info is the path with all links resolved.
        """
        path = self._strip_protocol(path)
        real = os.path.realpath(path)
        infos = {info["name"]: info for info in self._below(path, real, maxdepth, (real,), set())}
        if not withdirs:
            infos = {name: info for name, info in infos.items() if info["type"] != "directory"}
        return {name: infos[name] for name in sorted(infos)} if detail else sorted(infos)

    def ls(self, path: str, detail: bool = False, **_: Any) -> Any:
        """List one directory several times faster than fsspec does. The info of a file contains fewer keys
        than fsspec's.
        """
        path = self._strip_protocol(path)
        if not detail or not os.path.isdir(path):
            return super().ls(path, detail=detail)
        infos = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # another process has just removed the file
                    continue
                mode = status.st_mode
                kind = "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "other"
                infos.append(
                    {
                        "name": f"{path.rstrip('/')}/{entry.name}",
                        "size": status.st_size,
                        "type": kind,
                        "islink": stat.S_ISLNK(mode),
                        "mtime": status.st_mtime,
                    }
                )
        return infos

    def _below(
        self, path: str, real: str, depth: int | None, above: tuple[str, ...], seen: set[tuple[str, str]]
    ) -> Iterator[Info]:
        """Yield all files and directories below a directory. Yield links to directories last.

        ``above`` contains the real paths of this directory and of its parents in the search.
        """
        try:
            infos = self.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):  # removed by another process, or below a file
            return
        except OSError as error:
            check_loop(error, path)
            raise
        linked = []
        for info in infos:
            name = name_of(info["name"])
            if info["islink"]:
                info = _link_target(info)
            info["real"] = info.get("real") or f"{real}/{name}"
            if info["type"] == "directory":
                if info["islink"]:
                    linked.append(info)
                    continue
                yield info
                if depth != 1 and not self._is_hidden(name):
                    yield from self._below(
                        info["name"], info["real"], depth and depth - 1, (*above, info["real"]), seen
                    )
            elif info["type"] == "file":
                yield info
        for info in sorted(linked, key=lambda one: str(one["name"])):
            yield from self._linked(info, depth, above, seen)

    def _linked(
        self, info: Info, depth: int | None, above: tuple[str, ...], seen: set[tuple[str, str]]
    ) -> Iterator[Info]:
        """Yield a link to a directory, and everything below it.

        Yield nothing if the link leads to one of its parents, or if the search has already followed another
        link to the same target with the same partition directories.
        """
        name, real = info["name"], info["real"]
        if self._is_hidden(name_of(name)):
            return
        self.links.append(name)
        leads_back = any(one == real or one.startswith(f"{real.rstrip('/')}/") for one in above)
        target = (real, _partition_directories(name))
        if leads_back or target in seen:
            return
        seen.add(target)
        yield info
        if depth != 1:
            yield from self._below(name, real, depth and depth - 1, (*above, real), seen)


def without_duplicates(found: dict[str, Info]) -> dict[str, Info]:
    """If a file has several paths because of links, keep only one path. Prefer the path without links.

    Also keep a path with partition directories that the path without links lacks, because its rows have
    different values in the partition columns.
    """
    if all(info.get("real", path) == path for path, info in found.items()):
        return found
    kept: dict[str, Info] = {}
    seen: set[tuple[str, str]] = set()
    for path in sorted(found, key=lambda one: (found[one].get("real", one) != one, one)):
        real = found[path].get("real", path)
        own = set(real.split("/"))
        keys = "/".join(key for key in _partition_directories(path).split("/") if key not in own)
        if (real, keys) not in seen:
            seen.add((real, keys))
            kept[path] = found[path]
    return kept


def _partition_directories(path: str) -> str:
    """Return the parts of a path that contain "=", joined by slashes."""
    return "/".join(name for name in path.split("/") if "=" in name)


def _link_target(info: Info) -> Info:
    """Return the info of a symbolic link's target, but with the name of the link."""
    try:
        status = os.stat(info["name"])
    except OSError as error:
        if error.errno not in _BROKEN_LINK:
            raise
        nothing = {"size": None, "mtime": None, "created": None}
        return {**info, **nothing, "type": "file", "islink": False, "is_broken_link": True}
    if stat.S_ISDIR(status.st_mode):
        return {**info, "type": "directory", "real": os.path.realpath(info["name"])}
    kind = "file" if stat.S_ISREG(status.st_mode) else "other"
    return {**info, "type": kind, "size": status.st_size, "mtime": status.st_mtime, "islink": False}
