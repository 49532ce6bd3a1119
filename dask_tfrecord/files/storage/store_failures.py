"""Translate failures of remote stores into errors that name the path, the endpoint and what to check.

The module `store_failures` knows the names of the exceptions of the stores' libraries, but imports none of
these libraries.
"""

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from dask_tfrecord.errors import Remedy, TFRecordError

# Names of the exceptions that botocore (S3), aiohttp (GCS, HTTP), azure, paramiko (SFTP) and fsspec raise if
# a server does not answer.
_UNREACHABLE = frozenset(
    {
        "ClientConnectorError",
        "ConnectTimeoutError",
        "ConnectionClosedError",
        "EndpointConnectionError",
        "FSTimeoutError",
        "ProxyConnectionError",
        "ReadTimeoutError",
        "SSHException",
        "SSLError",
        "ServerTimeoutError",
        "ServiceRequestError",
        "ServiceResponseError",
    }
)
_NO_CREDENTIALS = frozenset(
    {
        "CredentialRetrievalError",
        "DefaultCredentialsError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "RefreshError",
    }
)
# Names of the exceptions that paramiko raises if the user or the server is not who the other expects.
_REFUSED = frozenset({"AuthenticationException", "BadHostKeyException"})
_NO_REGION = frozenset({"InvalidRegionError", "NoRegionError"})
_LIBRARIES = frozenset({"aiohttp", "azure", "botocore", "fsspec", "google", "paramiko"})

# Error codes of S3 for a request that was signed for another region.
_WRONG_REGION = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)

_REGION_ADVICE = 'pass the region as storage_options={"client_kwargs": {"region_name": ...}}'
_ERRNO = {PermissionError: errno.EACCES, FileNotFoundError: errno.ENOENT, TimeoutError: errno.ETIMEDOUT}


def store_failure(error: BaseException, place: str | None) -> Exception | None:
    """Return the error to raise for a failure of a remote store; None for any other exception.

    Parameters
    ----------
    error : BaseException
        The exception that the library of the store raised.
    place : str, optional
        The path to name in the message, without credentials.
    """
    classes = {
        kind.__name__ for kind in type(error).__mro__ if kind.__module__.partition(".")[0] in _LIBRARIES
    }
    if classes & _REFUSED:
        text = (
            f"{str(error).rstrip('.')}; check the user, and the password or key_filename in storage_options="
        )
        return PermissionError(errno.EACCES, text, place)
    if classes & _UNREACHABLE:
        text = str(error).removeprefix("[Errno None] ").rstrip(": ")
        reason = text if "SSHException" in classes else type(error).__name__
        return _unreachable(_endpoint(error), reason, place)
    if "HttpResponseError" in classes:
        return _azure_refusal(error, place)
    if classes & _NO_CREDENTIALS:
        problem = f"the credentials are missing or incomplete ({type(error).__name__})"
        advice = "give them in the options of the store, or in its own configuration files"
        remedy = Remedy("storage_options", {"anon": True}, "read public data")
        return TFRecordError(problem, advice, remedy, path=place)
    if classes & _NO_REGION:
        return TFRecordError(f"the region is not valid: {str(error).rstrip('.')}", _REGION_ADVICE, path=place)
    return _refusal(error, place) if isinstance(error, OSError) and error.filename is None else None


def _unreachable(endpoint: str, reason: str, place: str | None) -> TFRecordError:
    is_in_url = place is not None and place.startswith(("http:", "https:", "sftp:", "ssh:"))
    address = "address" if is_in_url else "endpoint in storage_options= or in the environment"
    problem = f"the store cannot be reached{f' at {endpoint}' if endpoint else ''} ({reason})"
    return TFRecordError(problem, f"check the {address}, and the network", path=place)


def _refusal(error: OSError, place: str | None) -> OSError | None:
    """Return an error that names the path if a store refused a request; None for any other error."""
    code = _code(error)
    kind = next((kind for kind in _ERRNO if isinstance(error, kind)), OSError)
    if place is None or (code is None and kind is not PermissionError):
        return None
    text = (error.strerror or str(error) or "the store refuses the request").rstrip(".")
    if code in _WRONG_REGION:
        text = f"{text}; {_REGION_ADVICE}"
    elif kind is PermissionError:
        text = f"{text}; check the credentials and what they allow"
    return kind(error.errno or _ERRNO.get(kind, errno.EIO), text, place)


def _azure_refusal(error: Any, place: str | None) -> OSError | None:
    """Return an error that names the path if Azure refused a request; None if a file has changed."""
    status = getattr(error, "status_code", None)
    if status == HTTPStatus.PRECONDITION_FAILED:
        return None
    text = str(error).partition("\n")[0].rstrip(".")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) or status is None:
        return PermissionError(errno.EACCES, f"{text}; check the credentials and what they allow", place)
    if status == HTTPStatus.NOT_FOUND:
        return FileNotFoundError(errno.ENOENT, text, place)
    return OSError(errno.EIO, text, place)


def _code(error: BaseException) -> str | None:
    """Return the error code in the answer of S3; None if the exception holds no answer of S3."""
    response = getattr(error.__cause__, "response", None)
    answer = response.get("Error") if isinstance(response, dict) else None
    return str(answer.get("Code")) if isinstance(answer, dict) else None


def _endpoint(error: BaseException) -> str:
    """Return the scheme, host and port of the server that an error names, without user and path; "" if
    unknown.
    """
    arguments = getattr(error, "kwargs", None)  # exceptions of botocore have the attribute kwargs
    url = arguments.get("endpoint_url") if isinstance(arguments, dict) else None
    if isinstance(url, str):
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    # Exceptions of aiohttp have the attributes host and port.
    host, port = getattr(error, "host", None), getattr(error, "port", None)
    return f"{host}:{port}" if isinstance(host, str) and port else ""


def place_of(arguments: Iterable[Any]) -> str | None:
    """Return the remote path among a function's arguments, or the root of its store; None for a local
    path.
    """
    for argument in arguments:
        if isinstance(argument, list | tuple) and argument and isinstance(argument[0], str):
            argument = argument[0]
        if isinstance(argument, str | os.PathLike):
            with suppress(TypeError):  # an object that is not the path that it claims to be
                text = os.fspath(argument)
                return text if isinstance(text, str) and "://" in text else None
        for store in (argument, getattr(argument, "store", argument)):
            if callable(getattr(type(store), "public", None)):
                root: str = store.public()
                return root if "://" in root else None
    return None


def is_precondition_failure(error: OSError) -> bool:
    """Return True if an error is S3's answer that the object exists. s3fs recognises only the answer of
    AWS.
    """
    answer = getattr(error.__cause__, "response", None) or {}
    return answer.get("Error", {}).get("Code") in ("PreconditionFailed", "412")
