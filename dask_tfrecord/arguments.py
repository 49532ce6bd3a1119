"""What callers pass -> what it means: other libraries' spellings where they are clear, else an error that
names the keyword.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec.codecs import CODECS, Compression
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.files.storage.redaction import without_credentials
from dask_tfrecord.schema.model import Schema


def path(given: Any, name: str = "path") -> PathLike:
    """One path."""
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        said = "" if name == "path" else f"{name}="
        raise TFRecordError(
            f"{said}{without_credentials(repr(given))} is not a path",
            advice=f'pass a directory, such as {name}="train"',
        )
    return given


def paths(given: Any) -> PathLike | list[PathLike]:
    """A path or a list of paths."""
    if isinstance(given, str | os.PathLike):
        return path(given)
    if isinstance(given, bytes | Mapping) or not isinstance(given, Sequence | set | frozenset | np.ndarray):
        raise TFRecordError(
            f"{without_credentials(repr(given))} is not a path",
            advice="pass a directory, a glob, a file, or a list of these",
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
    known: tuple[Compression | str | None, ...] = (*others, None, *CODECS)
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
    if isinstance(given, str) and given == "infer":
        return None
    if not isinstance(given, Mapping | pa.Schema | Schema | Snapshot | None):
        raise TFRecordError(
            f"schema={given!r} gives no Arrow types",
            advice='pass types of columns, such as schema={"age": pa.int64()}',
        )
    return given


def metadata(given: Any) -> dict[str, str]:
    """Custom metadata, which is text."""
    texts = isinstance(given, Mapping) and all(
        isinstance(text, str) for pair in given.items() for text in pair
    )
    if given is not None and not texts:
        raise TFRecordError(
            f"custom_metadata={given!r} must map strings to strings",
            advice="pass a dict, and encode other values, such as with json.dumps",
        )
    return dict(given or {})


def count(name: str, given: Any, least: int = 1) -> None:
    """Refuse what is neither None nor such a number."""
    number = isinstance(given, int | np.integer) and not isinstance(given, bool) and given >= least
    if given is not None and not number:
        kind = "a positive integer" if least else "an integer from 0 on"
        raise TFRecordError(f"{name}={given!r} is not {kind}")


def function(name: str, given: Any) -> None:
    """Refuse what is neither None nor can be called."""
    if given is not None and not callable(given):
        raise TFRecordError(
            f"{name}={given!r} is no function", advice=f"pass such as {name}=lambda number: str(number)"
        )


def arrow_schema(given: Any) -> Any:
    """As `schema`, with the Arrow schema of a Schema or a Snapshot in its place."""
    found = schema(given)
    if isinstance(found, Snapshot):
        found = found.columns
    return found.arrow if isinstance(found, Schema) else found
