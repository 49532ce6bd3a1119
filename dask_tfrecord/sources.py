"""Whether a collection reads from a place, by the paths that its expressions, tasks and functions mention."""

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from glob import glob
from types import CodeType, FunctionType, MethodType
from typing import Any

import dask.dataframe as dd
from fsspec import AbstractFileSystem
from fsspec.core import OpenFile

from dask_tfrecord.dataset.plan import Dataset, Partition
from dask_tfrecord.errors import DestinationError
from dask_tfrecord.files.storage.store import Store

# Libraries whose objects are looked into; those of others are data.
_LIBRARIES = frozenset({"dask", "dask_tfrecord", "fsspec", "s3fs", "gcsfs", "adlfs", "pathlib"})


def check_not_read(ddf: dd.DataFrame, store: Store) -> None:
    """Refuse to overwrite what the collection is made of.

    Raises
    ------
    DestinationError
        If a path that the collection mentions lies in the store's root, or the root lies in it.
    """
    root = _real(store.root, store)
    for text in dict.fromkeys(_mentioned(ddf, store)):
        if _overlaps(text, root, store):
            raise DestinationError(
                f"the DataFrame reads from {store.public(text)}, which the overwrite would remove",
                path=store.public(store.root),
                advice="write to another directory, and replace this one when that is done",
            )


def _mentioned(ddf: dd.DataFrame, store: Store) -> Iterator[str]:
    """The texts that may be paths; a mere name only where something is read, and if no column has it."""
    seen: dict[int, Any] = {}  # the objects, too: the id of one that is gone may be another's
    for node in ddf.expr.walk():
        below = node.dependencies()
        seen.update((id(one), one) for one in below)  # they are walked themselves
        columns = set() if below else _column_names(node)
        for operand in node.operands:
            for text in _texts(operand, store, seen):
                is_name = "/" not in text and os.sep not in text
                if not is_name or (not below and text not in columns and _begins_a_name(text, store)):
                    yield text


def _column_names(node: Any) -> set[str]:
    try:
        return {str(name) for name in node.columns}
    except (AttributeError, NotImplementedError):  # Dask's expressions that are no frames have none
        return set()


def _begins_a_name(text: str, store: Store) -> bool:
    """Whether anything in the working directory is, or matches, what a name may be the beginning of."""
    return not store.local or bool(glob(f"{text}*"))


def _texts(value: Any, store: Store, seen: dict[int, Any]) -> Iterator[str]:
    if isinstance(value, str):
        if value not in ("", "."):  # as are separators and decimal points
            yield value
        return
    if id(value) in seen or _is_elsewhere(value, store):
        return
    seen[id(value)] = value
    if isinstance(value, os.PathLike):
        yield os.fsdecode(value)
    for part in _parts(value):
        yield from _texts(part, store, seen)


def _is_elsewhere(value: Any, store: Store) -> bool:
    """Whether an object's paths, which name no protocol, are those of another kind of filesystem."""
    holder = value.store if isinstance(value, Dataset | Partition) else value
    fs: Any = holder.fs if isinstance(holder, OpenFile | Store) else None
    while isinstance(getattr(fs, "fs", None), AbstractFileSystem):  # such as that behind a cache
        fs = fs.fs
    return fs is not None and _protocols(fs).isdisjoint(_protocols(store.fs))


def _protocols(fs: AbstractFileSystem) -> set[str]:
    return {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)


def _parts(value: Any) -> Iterator[Any]:
    """What an object consists of, as far as it may hold paths."""
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, FunctionType):
        yield from (value.__defaults__, value.__kwdefaults__, value.__code__)
        yield from (cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell))
        named = (value.__globals__.get(name) for name in value.__code__.co_names)
        yield from (one for one in named if isinstance(one, str | os.PathLike))
    elif isinstance(value, CodeType):
        yield from value.co_consts
    elif isinstance(value, AbstractFileSystem):  # what it wraps, perhaps, and none of its connections
        yield from (value.storage_args, value.storage_options)
    elif not isinstance(value, type) and type(value).__module__.partition(".")[0] in _LIBRARIES:
        if hasattr(value, "__dask_graph__"):
            yield dict(value.__dask_graph__())
        else:
            yield from _attributes(value)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable that has no value yet
        return False


def _attributes(value: Any) -> Iterator[Any]:
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            yield getattr(value, name, None)


def _real(path: str, store: Store) -> list[str]:
    """The names that lead to a path, or that a glob has; on local disks without links."""
    return (os.path.realpath(path) if store.local else path).strip("/").split("/")


def _overlaps(text: str, root: list[str], store: Store) -> bool:
    """Whether a path or glob means anything at or below the store's root, or a directory that holds it."""
    scheme, found, _ = text.rpartition("::")[2].partition("://")
    if (found and scheme not in _protocols(store.fs)) or "\0" in text or len(text) > 1 << 12:
        return False
    pattern = _real(str(store.fs._strip_protocol(text.rpartition("::")[2])), store)
    for wanted, name in zip(pattern, root, strict=False):
        if "**" in wanted:
            return True
        if wanted != name and not fnmatchcase(name, wanted):
            return False
    return pattern != [""]
