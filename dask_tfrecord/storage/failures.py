"""Recognise what fsspec and the storage libraries raise, and say what to check.

The exceptions are recognised by name, so that no storage library need be imported.
"""

import errno
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from dask_tfrecord.errors import NotFoundError, Remedy, TFRecordError

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
# Names of the exceptions that paramiko raises if the authentication of the user or the server fails.
_REFUSED = frozenset({"AuthenticationException", "BadHostKeyException"})
_NO_REGION = frozenset({"InvalidRegionError", "NoRegionError"})
_LIBRARIES = frozenset({"aiohttp", "azure", "botocore", "fsspec", "google", "paramiko"})

_PASSING_STATUSES = frozenset({408, 429, 500, 502, 503, 504})

# The names of exceptions of botocore (S3), aiohttp (GCS, HTTP) and azure if a connection fails.
_PASSING = frozenset(
    {
        "ClientConnectionError",
        "ClientPayloadError",
        "ConnectTimeoutError",
        "ConnectionClosedError",
        "EndpointConnectionError",
        "IncompleteReadError",
        "ReadTimeoutError",
        "ResponseStreamingError",
        "ServiceRequestError",
        "ServiceResponseError",
    }
)

# S3 returns these error codes if a request was signed for the wrong region.
_WRONG_REGION = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)

_REGION_ADVICE = 'pass the region as storage_options={"client_kwargs": {"region_name": ...}}'
_ERRNO = {PermissionError: errno.EACCES, FileNotFoundError: errno.ENOENT, TimeoutError: errno.ETIMEDOUT}


def store_failure(error: BaseException, path: str | None) -> Exception | None:
    """Return the error to raise for a failure of a remote store, or None for any other ``error``. ``path``
    is a path without credentials.
    """
    classes = {
        kind.__name__ for kind in type(error).__mro__ if kind.__module__.partition(".")[0] in _LIBRARIES
    }
    is_web = path is not None and path.startswith(("http://", "https://"))
    if is_web and (failure := _web_failure(error, path)) is not None:
        return failure
    if classes & _REFUSED:
        text = (
            f"{str(error).rstrip('.')}; check the user, and the password or key_filename in storage_options="
        )
        return PermissionError(errno.EACCES, text, path)
    if classes & _UNREACHABLE:
        text = str(error).removeprefix("[Errno None] ").rstrip(": ")
        reason = text if "SSHException" in classes else type(error).__name__
        return _unreachable(_endpoint(error), reason, path)
    if "HttpResponseError" in classes:
        return _azure_refusal(error, path)
    if classes & _NO_CREDENTIALS:
        problem = f"the credentials are missing or incomplete ({type(error).__name__})"
        advice = "give them in the options of the store, or in its own configuration files"
        remedy = Remedy("storage_options", {"anon": True}, "read public data")
        return TFRecordError(problem, advice, remedy, path=path)
    if classes & _NO_REGION:
        return TFRecordError(f"the region is not valid: {str(error).rstrip('.')}", _REGION_ADVICE, path=path)
    return _refusal(error, path) if isinstance(error, OSError) and error.filename is None else None


def check_missing(error: OSError, path: str) -> None:
    """Raise if the request for a file failed for another reason, which fsspec hides over HTTP."""
    failure = store_failure(error, path)
    if isinstance(failure, TFRecordError):
        raise failure from None


# Answers of a web server that say that a file does not exist, or that it has changed.
_ABSENT_OR_CHANGED = (404, 410, 412, 416)


def _web_failure(error: BaseException, path: str | None) -> TFRecordError | None:
    """Return the error for a request that a web server refused, or that it did not answer.

    fsspec reports every failure as "not found". The text of the failure may contain the URL with secrets, so
    the error message contains only the HTTP status or the failure's class.
    """
    is_hidden = isinstance(error, FileNotFoundError)
    cause = error.__cause__ if is_hidden else error
    status = getattr(cause, "status", None)
    if cause is None or isinstance(cause, FileNotFoundError | TFRecordError) or not (is_hidden or status):
        return None
    if status in _ABSENT_OR_CHANGED:
        return None
    how = f"it answers {status}" if status else type(cause).__name__
    advice = "check the address, that the server is running, and that it grants you access"
    return TFRecordError(f"the request to the server failed ({how})", advice, path=path)


def _unreachable(endpoint: str, reason: str, path: str | None) -> TFRecordError:
    is_in_url = path is not None and path.startswith(("http:", "https:", "sftp:", "ssh:"))
    address = "address" if is_in_url else "endpoint in storage_options= or in the environment"
    problem = f"the store cannot be reached{f' at {endpoint}' if endpoint else ''} ({reason})"
    return TFRecordError(problem, f"check the {address}, and the network", path=path)


def _refusal(error: OSError, path: str | None) -> OSError | None:
    """Return an error that names the path if a store refused a request, or None for any other error."""
    code = _code(error)
    kind = next((kind for kind in _ERRNO if isinstance(error, kind)), OSError)
    is_known = isinstance(error, NotFoundError | TFRecordError)
    if path is None or is_known or (code is None and kind not in (PermissionError, FileNotFoundError)):
        return None
    text = (error.strerror or str(error) or "the store refuses the request").rstrip(".")
    if code in _WRONG_REGION:
        text = f"{text}; {_REGION_ADVICE}"
    elif kind is PermissionError:
        text = f"{text}; check the credentials and what they allow"
    elif kind is FileNotFoundError:
        text = text if code is not None else f"no such file, directory or bucket ({text})"
        return NotFoundError(f"{path}: {text}")
    return kind(error.errno or _ERRNO.get(kind, errno.EIO), text, path)


def _azure_refusal(error: Any, path: str | None) -> OSError | None:
    """Return an error that names the path of a request that Azure refused. If Azure refused the request
    because the file has changed, return None.
    """
    status = getattr(error, "status_code", None)
    if status in (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
        return None
    text = str(error).partition("\n")[0].rstrip(".")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, None):
        return PermissionError(errno.EACCES, f"{text}; check the credentials and what they allow", path)
    if status == HTTPStatus.NOT_FOUND:
        return NotFoundError(f"{path}: {text}")
    return OSError(errno.EIO, text, path)


def s3_answer(error: BaseException) -> dict[str, Any]:
    """Return S3's answer to the failed request, or {} for a different kind of failure."""
    answer = getattr(error.__cause__, "response", None)  # exceptions of s3fs are caused by those of botocore
    return answer if isinstance(answer, dict) else {}


def _code(error: BaseException) -> str | None:
    answer = s3_answer(error).get("Error")
    return str(answer.get("Code")) if isinstance(answer, dict) else None


def _endpoint(error: BaseException) -> str:
    """Return the scheme, host and port of the server that an error names, or "" if they are unknown."""
    arguments = getattr(error, "kwargs", None)  # exceptions of botocore have the attribute `kwargs`
    url = arguments.get("endpoint_url") if isinstance(arguments, dict) else None
    if isinstance(url, str):
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    # Exceptions of aiohttp have the attributes `host` and `port`. Azure's exceptions contain an exception of
    # aiohttp.
    error = getattr(error, "inner_exception", None) or error
    host, port = getattr(error, "host", None), getattr(error, "port", None)
    return f"{host}:{port}" if isinstance(host, str) and port else ""


def is_full(error: BaseException) -> bool:
    """Return True if an error says that a disk or a quota has no space left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_precondition_failure(error: OSError) -> bool:
    """Return True for S3's answer that the object exists. s3fs recognises this answer only if AWS sent it."""
    return _code(error) in ("PreconditionFailed", "412")


def is_passing(error: BaseException) -> bool:
    """Return True if a request that failed with ``error`` may succeed later."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & _PASSING) or status_of(error) in _PASSING_STATUSES


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a failure, or None if it is unknown."""
    if answer := s3_answer(error):
        status: int | None = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status
    # The status is `status` in the exceptions of aiohttp, whose `code` warns, and `code` in those of gcsfs.
    status_text = str(getattr(error, "status", None) or getattr(error, "code", None))
    return int(status_text) if status_text.isdigit() else None
