"""The local disk as readers list it: links are gone through, and only regular files are files."""

import errno
import os
import stat
from collections.abc import Iterator
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from dask_tfrecord.files.storage.paths import name_of

Info = dict[str, Any]

# How a link fails that leads to nothing, or in a circle.
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Disk(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Lists a directory, and expands globs, with what links lead to.

    A link to a directory is a directory, unless the link lies in that directory: that would never end. Pipes,
    sockets and devices are left out. A link that leads to nothing is a file without a size. A directory that
    cannot be listed raises.

    Attributes
    ----------
    links : list of str
        The visible links to directories that were met.
    """

    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.links: list[str] = []

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any
    ) -> Any:
        """What is below a path, as fsspec's own `find`; ``real`` in each info is the path without links."""
        path = self._strip_protocol(path)
        real = os.path.realpath(path)
        found = {info["name"]: info for info in self._below(path, real, maxdepth, (real,), set())}
        if not withdirs:
            found = {name: info for name, info in found.items() if info["type"] != "directory"}
        return {name: found[name] for name in sorted(found)} if detail else sorted(found)

    def _below(
        self, path: str, real: str, depth: int | None, above: tuple[str, ...], seen: set[tuple[str, str]]
    ) -> Iterator[Info]:
        """All that is in a directory, ``above`` which are these, links to directories last."""
        try:
            infos = self.ls(path, detail=True)
        except FileNotFoundError:  # removed since
            return
        linked = []
        for info in infos:
            name = name_of(info["name"])
            if info["islink"]:
                info = _behind(info)
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
        """A link to a directory and what is in it, unless it leads back, or was gone through already."""
        name, real = info["name"], info["real"]
        if is_hidden(name_of(name)):
            return
        self.links.append(name)
        back = any(one == real or one.startswith(f"{real.rstrip('/')}/") for one in above)
        known = (real, _keys(name))
        if back or known in seen:
            return
        seen.add(known)
        yield info
        if depth != 1:
            yield from self._below(name, real, depth and depth - 1, (*above, real), seen)


def linked_directories(path: str) -> list[str]:
    """The visible links to directories at any depth below a path."""
    disk = Disk()
    disk.find(path)
    return disk.links


def once(found: dict[str, Info]) -> dict[str, Info]:
    """The files that are reached by several names through linked directories once each, by their own name.

    A name with partition keys that the file's own path does not have stands for rows of its own.
    """
    if all(info.get("real", path) == path for path, info in found.items()):
        return found
    kept: dict[str, Info] = {}
    seen: set[tuple[str, str]] = set()
    for path in sorted(found, key=lambda one: (found[one].get("real", one) != one, one)):
        real = found[path].get("real", path)
        own = set(real.split("/"))
        keys = "/".join(key for key in _keys(path).split("/") if key not in own)
        if (real, keys) not in seen:
            seen.add((real, keys))
            kept[path] = found[path]
    return kept


def is_hidden(name: str) -> bool:
    """Whether readers pass over a name, as Spark does; partition directories may begin with "_"."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name and "%3D" not in name)


def _keys(path: str) -> str:
    """The partition directories of a path."""
    return "/".join(name for name in path.split("/") if "=" in name)


def _behind(info: Info) -> Info:
    """What a link leads to, under the name of the link."""
    try:
        status = os.stat(info["name"])
    except OSError as error:
        if error.errno not in _NOWHERE:
            raise
        return {**info, "type": "file", "size": None, "islink": False, "mtime": None, "created": None}
    if stat.S_ISDIR(status.st_mode):
        return {**info, "type": "directory", "real": os.path.realpath(info["name"])}
    kind = "file" if stat.S_ISREG(status.st_mode) else "other"
    return {**info, "type": kind, "size": status.st_size, "mtime": status.st_mtime, "islink": False}
