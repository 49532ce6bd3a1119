"""Parse paths and URLs as text, without access to a filesystem."""

import os
import re
from contextlib import suppress
from inspect import signature
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

from fsspec import available_protocols, get_filesystem_class

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.store_failures import without_credentials

# Credentials before the name of a bucket, which s3fs and gcsfs would treat as a part of the name. A secret
# key of AWS may contain slashes, and an ARN in place of a bucket's name contains colons.
_BUCKET_WITH_USER = re.compile(r"(?:^|::)(?:s3a?|gs|gcs)://(?:[^/]*@|(?!arn:)[^/:]*:.*@)")

# A URL that ends before the name of its bucket or host.
_NO_PLACE = re.compile(r"(?:^|::)(?:https?|s3a?|gs|gcs|ftps?|sftp|ssh|webdavs?)://$")


def path_text(value: Any, keyword: str = "", advice: str = 'pass a directory, such as "train"') -> str:
    """Return a path as text. Raise TFRecordError for the empty text, which fsspec reads as the working
    directory.
    """
    with suppress(TypeError):
        text = os.fspath(value)
        if isinstance(text, str) and text:
            return text
    shown = f"{keyword}=" if keyword else ""
    problem = f"{shown}{without_credentials(repr(value))} is not a path"
    raise TFRecordError(problem, advice, keyword=keyword or "path")


def parent_of(path: str) -> str:
    """Return the text before the last slash of a path, or "".

    Unlike `posixpath.dirname`, it is "" directly below "/", and double slashes, which keys of object stores
    may contain, are kept.
    """
    return path.rpartition("/")[0]


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def is_http(path: str) -> bool:
    return path.startswith(("http://", "https://"))


def unquoted_path(path: str) -> str:
    """Decode the percent-encoding of an HTTP or HTTPS URL. Another path stays unchanged."""
    return unquote(path) if is_http(path) else path


def glob_start(path: str) -> int:
    """Return the index of the first glob character in a path, or the length of the path."""
    return min((at for at in map(path.find, "*?[{") if at >= 0), default=len(path))


def expand_braces(pattern: str) -> list[str]:
    """Expand a glob with braces, also nested ones, such as ``{a,b}`` to globs without braces."""
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


def check_url(text: str) -> None:
    """Raise TFRecordError for a path or URL that fsspec or a store would silently read as another path."""
    # Names of local files that are not valid Unicode have low surrogates, which `os.fsencode` encodes.
    if re.search("[\0\ud800-\udc7f\udd00-\udfff]", text):
        problem = "contains a character that no path can have, and is not a path"
        raise TFRecordError(f"{without_credentials(text)!r} {problem}")
    if _NO_PLACE.search(text):
        raise TFRecordError(f"{text!r} names no bucket or host, and is not a path")
    if _BUCKET_WITH_USER.search(text):
        problem = "the URL of a bucket cannot hold credentials"
        advice = 'pass them in storage_options, such as {"key": ..., "secret": ...} for S3'
        raise TFRecordError(problem, advice, path=without_credentials(text))
    *outer, _ = text.split("::")
    for part in outer:
        protocol, found, _ = part.partition("://")
        if not _wraps(protocol if found or part in available_protocols() else "file"):
            raise TFRecordError(
                "'::' chains filesystems in fsspec, and the part before it does not wrap another filesystem",
                "rename the file or directory so that its name does not contain '::'",
                path=without_credentials(text),
            )


def _wraps(protocol: str) -> bool:
    try:
        kind = get_filesystem_class(protocol)
    except (ValueError, ImportError):  # opening the path will raise fsspec's own error
        return True
    return wraps(kind)


def wraps(kind: Any) -> bool:
    """Return True if a filesystem class reads from another filesystem, as a cache or an archive does."""
    parameters = {name for one in kind.__mro__ for name in signature(one.__init__).parameters}
    return not parameters.isdisjoint({"fo", "target_protocol"})
