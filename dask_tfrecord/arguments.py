"""What callers pass -> what it means: other libraries' spellings where they are clear, else an error that
names the keyword.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_tfrecord.codec.compression import SUFFIXES, Compression
from dask_tfrecord.dataset.listing import PathLike
from dask_tfrecord.errors import TFRecordError


def path(given: Any) -> PathLike:
    """One path."""
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise TFRecordError(f"{given!r} is not a path", advice="pass a directory, such as path='train'")
    return given


def paths(given: Any) -> PathLike | list[PathLike]:
    """A path or a list of paths."""
    if isinstance(given, str | os.PathLike):
        return path(given)
    if isinstance(given, bytes | Mapping) or not isinstance(given, Sequence | set | frozenset | np.ndarray):
        raise TFRecordError(
            f"{given!r} is not a path", advice="pass a directory, a glob, a file, or a list of these"
        )
    return [path(one) for one in (sorted(given) if isinstance(given, set | frozenset) else given)]


def flags(**given: Any) -> None:
    """Refuse what is not True or False."""
    for name, value in given.items():
        if not isinstance(value, bool | np.bool_):
            raise TFRecordError(f"{name}={value!r} is not True or False", advice="pass one of them")


def mappings(**given: Any) -> None:
    """Refuse what is no dict."""
    for name, value in given.items():
        if not isinstance(value, Mapping | None) or not all(isinstance(key, str) for key in value or ()):
            kind = type(value).__name__
            raise TFRecordError(f"{name}= is a {kind} and no dict of str to values", advice="pass a dict")


def compression(given: Any, *others: str) -> Any:
    """A codec, also as TensorFlow spells it: "GZIP", "ZLIB" and "" for none."""
    known: tuple[Compression | str | None, ...] = (*others, *SUFFIXES)
    found = (given.lower() or None) if isinstance(given, str) else given
    if not isinstance(found, str | None) or found not in known:
        raise TFRecordError(
            f"unknown compression {given!r}", advice=f"known are {', '.join(map(repr, known))}"
        )
    return found


def names(name: str, given: Any) -> list[str]:
    """Names of columns: one, or several."""
    if isinstance(given, str):
        return [given]
    known = isinstance(given, Sequence | np.ndarray) or hasattr(given, "tolist")
    found = list(given) if known and not isinstance(given, bytes) else None
    if found is None or not all(isinstance(one, str) for one in found):
        raise TFRecordError(
            f"{name}={given!r} does not name columns", advice=f'pass a name, or a list such as {name}=["age"]'
        )
    return list(map(str, found))


def schema(given: Any) -> Any:
    """A schema, which "infer" leaves open."""
    return None if isinstance(given, str) and given == "infer" else given
