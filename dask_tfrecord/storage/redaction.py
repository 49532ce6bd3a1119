"""Keep secrets out of all errors and logs.

`redact_errors` decorates the public functions, and those that begin to plan a read or a write, or run in
tasks. A function without the decorator may raise exceptions of a store unchanged.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial, wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qsl, quote, unquote

from fsspec import AbstractFileSystem

from dask_tfrecord.errors import Call, NotFoundError, Remedy, TFRecordError, check_instance, drop_frames
from dask_tfrecord.storage.failures import store_failure

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_HIDDEN = "***"

_SECRET = "key|secret|token|passw|pwd|passphrase|credential|sas|sig|auth|cookie|connection"

# Matches the names of storage options, headers and query parameters whose values are secret.
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)

# Filesystems accept these values as keywords. They are not secret, even in an option whose name matches
# `_SECRET_NAME`.
_WORDS = frozenset({"anon", "anonymous", "browser", "cache", "cloud", "google_default", "latin1", "utf-8"})


def _user_pattern(ends: str) -> re.Pattern[str]:
    """Return a pattern that matches the user and the password in a URL. The first group matches the text
    before the user, the second the user and the password.

    A password may contain `/`, `?`, `#`, `@` and `:`, although these characters should be quoted, unless the
    URL also reads as one with a port. URLs of buckets have no port. The characters in ``ends`` end a URL.
    """
    name, rest = f"[^/?#:@{ends}]*", rf"(?:(?![a-z][a-z0-9+.-]{{0,15}}://)[^{ends}])*"
    host_with_port = rf"(?:{name}@)?(?:\[[^]/?#@{ends}]*\]|{name}):\d{{0,5}}[/?#]"
    # AWS keys may begin with a slash.
    host_with_port = rf"(?<!s3://)(?<!s3a://)(?<!gs://)(?<!gcs://){host_with_port}"
    # In Azure URLs, the text before `@` is the container, not a user. Names of buckets contain no colon, but
    # ARNs do.
    scheme = r"\b(?!abfss?:|wasbs?:)([a-z][a-z0-9+.-]{0,15}://"
    with_password = rf"/*)((?!arn:|{host_with_port}){name}(?:@{name})*:{rest})@"
    return re.compile(rf"{scheme}{with_password}|{scheme})([^/?#{ends}]*)@", re.IGNORECASE)


# The patterns for a URL within a text, and for a text that consists of a URL.
_USER_IN_TEXT = _user_pattern(r"\s'\"<>")
_USER_OF_URL = _user_pattern("\n")

# Matches a URL with a query parameter whose name marks a secret.
_QUERY = re.compile(
    rf"([a-z][a-z0-9+.-]{{0,15}}://[^?#\s'\"<>]*)\?(?:[^#\s'\"<>]*[&;])?[^#\s'\"<>=&;]*(?:{_SECRET})[^\s'\"<>=&;]*=[^\s'\"<>]*",
    re.IGNORECASE,
)

# A secret with fewer characters than this is hidden only as a whole word, because harmless words may contain
# the same characters.
_SHORT = 6


def without_credentials(text: str) -> str:
    """Return a text whose URLs have no user, no password and no query with a secret parameter."""
    if "://" not in text:  # most texts contain no URL, and this test is much faster than the patterns
        return text
    return _QUERY.sub(r"\1", _USER_IN_TEXT.sub(r"\1\3", text))


def secrets_of(*places: Any) -> frozenset[str]:
    """Return the secrets in paths, storage options, and objects that contain a store or a filesystem."""
    secrets = set(_secrets(places, set()))
    secrets |= {
        change(text) for text in secrets for change in (unquote, partial(quote, safe="", errors="replace"))
    }
    return frozenset(text for text in secrets if text and text not in _WORDS)


def hide(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a text by "***", and remove the credentials from URLs in the text."""
    text = without_credentials(text)
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) < _SHORT:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", _HIDDEN, text)
        else:
            text = text.replace(secret, _HIDDEN)
    return text


def hide_secrets(text: str, *places: Any) -> str:
    """Replace the secrets of paths and storage options in a text by ``***``.

    Users and passwords are always removed from URLs in the text. The exceptions of this package never show
    secrets; use `hide_secrets` for the texts of other packages.

    Parameters
    ----------
    text : str
        Any text, such as the message of an exception.
    places : object
        Paths and dicts of storage options, whose secrets are replaced in the text.

    Returns
    -------
    str
        The text without the secrets.
    """
    check_instance("text", text, str)
    return hide(text, secrets_of(*places))


def redact_errors(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a function so that its exceptions do not show the secrets in its arguments.

    A failure of a remote store becomes an error that names the path and the endpoint, and says what to check.
    An exception that contains a secret is replaced by one without the secret, cause and context. The
    replacement of an OSError has its built-in class, and all other exceptions of other libraries become
    TFRecordErrors.
    """

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # an exception of any class may contain a secret
            safe = _safe(_explained(error, (*args, *kwargs.values())), secrets_of(args, kwargs))
            if safe is error:
                del safe  # this local reference would otherwise keep the frames of the exception alive
                drop_frames(error)
                raise
        try:
            raise safe  # raise outside the handler: the original exception must not become the context
        finally:
            del safe

    return call


def _explained(error: Exception, arguments: tuple[Any, ...]) -> Exception:
    place = remote_path(arguments)
    explained = store_failure(error, place and without_credentials(place))
    if explained is not None:
        explained.__cause__ = error
    return explained or error


def remote_path(arguments: Iterable[Any]) -> str | None:
    """Find a remote path or a remote store in a function's arguments, and return the path or the store's
    root. Return None if the arguments contain a local path or no path.
    """
    for argument in arguments:
        if isinstance(argument, list | tuple) and argument and isinstance(argument[0], str):
            argument = argument[0]
        if isinstance(argument, str | os.PathLike):
            with suppress(TypeError):  # `os.fspath` may fail for the object
                text = os.fspath(argument)
                return text if isinstance(text, str) and "://" in text else None
        for store in (argument, getattr(argument, "store", argument)):
            if callable(getattr(type(store), "public", None)):
                root: str = store.public()
                return root if "://" in root else None
    return None


def _secrets(place: Any, seen: set[int], name: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the secrets in URLs, storage options and filesystems, even inside objects of this package.

    If the value belongs to an option with a secret name, ``name`` is the name of this option. ``seen``
    contains the ids of the objects that were already searched.
    """
    if depth > 20:
        return
    if isinstance(place, bytes):
        place = place.decode(errors="replace")
    if isinstance(place, str):
        yield from _secrets_of_text(place, name)
    elif isinstance(place, Mapping):
        for key, value in place.items():
            yield from _secrets(value, seen, name or (key if is_secret_name(key) else ""), depth + 1)
    elif isinstance(place, list | tuple | set | frozenset):
        for value in place:
            yield from _secrets(value, seen, name, depth + 1)
    elif isinstance(place, partial):
        yield from _secrets((*place.args, place.keywords), seen, depth=depth + 1)
    elif id(place) in seen:
        return
    elif isinstance(place, AbstractFileSystem):
        seen.add(id(place))
        names = [*signature(type(place).__init__).parameters][1:]
        arguments = dict(zip(names, place.storage_args, strict=False))
        wrapped = vars(place).get("fs")
        yield from _secrets((arguments, place.storage_options, wrapped), seen, depth=depth + 1)
    elif type(place).__module__.startswith("pyarrow.") and hasattr(place, "type_name"):
        # The arguments with which a pyarrow filesystem was created may contain secrets.
        yield from _secrets(place.__reduce__()[1:], seen, depth=depth + 1)
    elif name or type(place).__module__.startswith(("dask_tfrecord.", "pyarrow.")):
        seen.add(id(place))
        for value in [*getattr(place, "__dict__", {}).values()]:
            yield from _secrets(value, seen, name, depth + 1)


def is_secret_name(key: object) -> bool:
    return isinstance(key, str) and bool(_SECRET_NAME.search(key))


def _secrets_of_text(text: str, name: str) -> Iterator[str]:
    if name and not (text.endswith(".json") or name.endswith(("file", "filename", "path"))):
        yield text
        yield text.rpartition(" ")[2]  # The last word of a header value such as "Bearer TOKEN" is a token.
        # A connection string or a SAS token of Azure contains secrets in fields such as "sig=...".
        fields = (field.partition("=") for field in re.split("[;&?]", text))
        yield from (value for key, _, value in fields if is_secret_name(key))
    for url in re.split("::(?=[A-Za-z])", text):
        if "://" not in url:
            continue
        match = _USER_OF_URL.match(url)
        user = (match[2] or match[4] or "") if match else ""
        is_web = url.lower().startswith(("http:", "https:"))
        # A user name without a password is not secret, but in an HTTP URL the user name may be a token.
        if ":" in user or is_web:
            password = user.partition(":")[2] or user
            yield from (user, password)
            # If a library mistakes a part of the password for a port or a path, it may show this part in an
            # error.
            yield from (part for part in re.split("[/?#@:]", password) if len(part) > 2)
        if is_web:
            query = url[match.end() if match else 0 :].partition("?")[2]
            yield query
            yield from (value for key, value in parse_qsl(query) if is_secret_name(key))


def _safe(error: BaseException, secrets: frozenset[str]) -> BaseException:
    """Return the exception, or a replacement if the exception, its cause or its context shows a secret."""
    if not any(_shows(one, secrets) for one in _chain(error)):
        return error
    safe = _rebuilt(error, secrets)
    safe.__suppress_context__ = True
    return safe.with_traceback(error.__traceback__)


def _chain(error: BaseException | None) -> list[BaseException]:
    chain: list[BaseException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and all(one is not other for other in chain):
            chain.append(one)
            waiting += [one.__cause__, one.__context__]
    return chain


def _shows(error: BaseException, secrets: frozenset[str]) -> bool:
    parts = [str(error), repr(error), repr(error.args), repr(vars(error))]
    parts += [str(getattr(error, name, "")) for name in ("filename", "filename2", "strerror")]
    text = "\n".join(parts)
    return hide(text, secrets) != text


def _rebuilt(error: BaseException, secrets: frozenset[str]) -> BaseException:
    def clean(value: Any) -> Any:
        if isinstance(value, Remedy | Call):
            return type(value)(*map(clean, value))
        if isinstance(value, tuple | list):
            return type(value)(map(clean, value))
        if isinstance(value, dict):
            return {clean(key): clean(item) for key, item in value.items()}
        return hide(value, secrets) if isinstance(value, str) else value

    if isinstance(error, TFRecordError):
        return error.replaced(**{name: clean(value) for name, value in error.fields().items()})
    if isinstance(error, NotFoundError):
        return NotFoundError(clean(error.problem), clean(error.advice), clean(error.calls))
    text = clean(str(error))
    if isinstance(error, OSError):
        kind: type[OSError] = next(one for one in type(error).__mro__ if one.__module__ == "builtins")
        named = (error.errno, clean(error.strerror), clean(error.filename))
        return kind(text) if error.errno is None else kind(*named)
    return TFRecordError(f"{type(error).__name__}: {text}")
