"""Parse paths and URLs as text, without access to a filesystem."""

import os
import re
from contextlib import suppress
from inspect import signature
from itertools import chain
from typing import Any
from urllib.parse import unquote

from fsspec import available_protocols, get_filesystem_class

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.storage.redaction import without_credentials

# Matches credentials before the name of a bucket. s3fs and gcsfs would treat them as a part of it. An AWS
# secret key may contain slashes. Instead of a bucket's name, a URL may contain an ARN, and ARNs contain
# colons.
_BUCKET_WITH_USER = re.compile(r"(?:^|::)(?:s3a?|gs|gcs)://(?:[^/]*@|(?!arn:)[^/:]*:.*@)")

# Matches a URL that ends before the name of a bucket or host.
_NO_PLACE = re.compile(r"(?:^|::)(?:https?|s3a?|gs|gcs|ftps?|sftp|ssh|webdavs?)://$")


def path_text(value: Any, keyword: str = "", advice: str = 'pass a directory, such as "train"') -> str:
    """Return a path as text. Raise TFRecordError if ``value`` is not a path or is empty.

    fsspec would interpret an empty text as the working directory.
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

    Unlike `posixpath.dirname`, return "" for a path directly below "/". Keep double slashes, which are valid
    in keys of object stores.
    """
    return path.rpartition("/")[0]


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def is_http(path: str) -> bool:
    return path.startswith(("http://", "https://"))


def unquoted_path(path: str) -> str:
    """Decode the percent-encoding of an HTTP or HTTPS URL.

    Return any other path unchanged.
    """
    return unquote(path) if is_http(path) else path


def glob_start(path: str) -> int:
    """Return the index of the first glob character in a path, or its length."""
    return min((at for at in map(path.find, "*?[{") if at >= 0), default=len(path))


def expand_braces(pattern: str) -> list[str]:
    """Expand a glob with braces, such as ``{a,b}``, to globs without braces. Braces may be nested."""
    innermost = re.search(r"\{([^{}]*)\}", pattern)
    if innermost is None:
        return [pattern]
    before, after = pattern[: innermost.start()], pattern[innermost.end() :]
    found = (expand_braces(f"{before}{choice}{after}") for choice in innermost[1].split(","))
    return list(dict.fromkeys(chain.from_iterable(found)))


def check_url(text: str) -> None:
    """Raise TFRecordError for a path or URL that fsspec or a store would silently read as another path."""
    # In the name of a local file, Python represents bytes that are not valid UTF-8 by low surrogates.
    # `os.fsencode` converts the surrogates back to the bytes.
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
    except (ValueError, ImportError):  # fsspec raises an error when the path is opened
        return True
    return wraps(kind)


def wraps(kind: Any) -> bool:
    """Return True if a filesystem class reads from a second filesystem, as a cache or an archive does."""
    parameters = {name for one in kind.__mro__ for name in signature(one.__init__).parameters}
    return not parameters.isdisjoint({"fo", "target_protocol"})


PathLike = str | os.PathLike[str]
