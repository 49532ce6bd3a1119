"""List the local disk for readers: follow symbolic links, and list only regular files."""

import errno
import os
import re
import stat
from collections.abc import Iterator
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from dask_tfrecord.files.storage.paths import name_of

Info = dict[str, Any]

# Error codes of a symbolic link whose target does not exist, or that leads back to itself.
_BROKEN_LINK = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

# The names of directories and files that downloads, such as those of TensorFlow Datasets, rename when
# they are complete. Names of partition directories do not match.
_UNFINISHED = re.compile(r"\d+\.\d+\.\d+\.incomplete.*|incomplete\.[0-9a-fA-F]{32}\..+|[^=%]+\.incomplete")


class LinkFollowingDisk(LocalFileSystem):
    """A local filesystem whose methods `find` and `glob` follow symbolic links.

    A symbolic link to a directory is treated as a directory. A link to a directory that contains the link is
    not followed, because following it would never end. Pipes, sockets and devices are not listed. A broken
    link is listed as a file without a size. If a directory cannot be listed, `find` and `glob` raise an
    error.

    Attributes
    ----------
    links : list of str
        The visible symbolic links to directories that `find` has found.
    """

    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.links: list[str] = []

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any
    ) -> Any:
        """Find all files below a path, as the method of fsspec does.

        The info of each file has the key ``real``: its path with all links resolved.
        """
        path = self._strip_protocol(path)
        real = os.path.realpath(path)
        found = {info["name"]: info for info in self._below(path, real, maxdepth, (real,), set())}
        if not withdirs:
            found = {name: info for name, info in found.items() if info["type"] != "directory"}
        return {name: found[name] for name in sorted(found)} if detail else sorted(found)

    def ls(self, path: str, detail: bool = False, **_: Any) -> Any:
        """List one directory.

        The method of fsspec returns more keys for each file, but is several times slower.
        """
        path = self._strip_protocol(path)
        if not detail or not os.path.isdir(path):
            return super().ls(path, detail=detail)
        infos = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # the directory was removed in the meantime
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
        """Yield all entries below a directory; links to directories come last.

        ``above`` holds the parents of the directory.
        """
        try:
            infos = self.ls(path, detail=True)
        except FileNotFoundError:  # the directory was removed in the meantime
            return
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
                if depth != 1 and not is_hidden(name):
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
        """Yield a link to a directory and all entries below the link, unless the link leads back or was
        followed before.
        """
        name, real = info["name"], info["real"]
        if is_hidden(name_of(name)):
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


def linked_directories(path: str) -> list[str]:
    """List all visible symbolic links to directories below a path, at any depth."""
    disk = LinkFollowingDisk()
    disk.find(path)
    return disk.links


def without_duplicates(found: dict[str, Info]) -> dict[str, Info]:
    """Keep only one path for each file that has several paths because of links. If the path without links was
    found, this path is kept.

    Another path of the same file is also kept if it has partition directories that the path without links
    lacks, because the rows then have other values in the partition columns.
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


def is_hidden(name: str) -> bool:
    """Return True if readers ignore files or directories with this name, as in Spark.

    The name of a partition directory may begin with "_". Names that TensorFlow Datasets gives to unfinished
    versions and files, and names that end with ".incomplete", are hidden, too.
    """
    if "incomplete" in name and _UNFINISHED.fullmatch(name):
        return True
    return name.startswith(".") or (name.startswith("_") and "=" not in name and "%3D" not in name)


def _partition_directories(path: str) -> str:
    """Return the parts of a path that contain "=", joined by slashes."""
    return "/".join(name for name in path.split("/") if "=" in name)


def _link_target(info: Info) -> Info:
    """Return the info of a symbolic link's target, with the name of the link."""
    try:
        status = os.stat(info["name"])
    except OSError as error:
        if error.errno not in _BROKEN_LINK:
            raise
        return {**info, "type": "file", "size": None, "islink": False, "mtime": None, "created": None}
    if stat.S_ISDIR(status.st_mode):
        return {**info, "type": "directory", "real": os.path.realpath(info["name"])}
    kind = "file" if stat.S_ISREG(status.st_mode) else "other"
    return {**info, "type": kind, "size": status.st_size, "mtime": status.st_mtime, "islink": False}
