"""A store cannot be reached or refuses a request: the error names path, endpoint and what to check.

Modules: files.storage.store_failures, files.storage.store.
"""

import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pytest
import s3fs
from servers import s3_server, serving

import dask_tfrecord as dt
from dask_tfrecord import TFRecordError
from dask_tfrecord.files.storage import store_failures

PLACE = "s3://bucket/dataset"
SECRETS = {"key": "hunterkey", "secret": "huntersecret"}
ONCE = {"config_kwargs": {"retries": {"max_attempts": 0}}}


def write(path: str, **options: Any) -> Any:
    return dt.to_tfrecord(dd.from_pandas(pd.DataFrame({"a": [1]}), npartitions=1), path, **options)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "read": dt.read_tfrecord,
    "glob": lambda path, **options: dt.read_tfrecord(f"{path}/*", **options),
    "write": write,
    "append": lambda path, **options: write(path, append=True, **options),
    "exists": dt.exists,
    "snapshot": dt.Snapshot.open,
    "index": dt.index,
    "verify": dt.verify,
    "take": lambda path, **options: dt.take(path, [0], **options),
    "export": lambda path, **options: dt.export(path, "idx", **options),
    "table": dt.RecordTable,
    "quarantine": lambda path, **options: dt.read_tfrecord(
        path, on_corrupt="quarantine", quarantine_path=f"{path}/q", **options
    ),
}


@pytest.fixture(autouse=True)
def _new_connections() -> Iterator[None]:
    s3fs.S3FileSystem.clear_instance_cache()
    yield
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def closed() -> str:
    """The URL of a port of this machine on which nothing listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{one.getsockname()[1]}"


def message(function: Callable[..., Any], kind: type[Exception], **options: Any) -> str:
    """The message of the function's error, which shows no secret, also in its causes."""
    with pytest.raises(kind) as caught:
        function(PLACE, storage_options={**SECRETS, **options})
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter" not in f"{error} {error!r}"
        error = error.__cause__
    return str(caught.value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_endpoint_that_cannot_be_reached_is_named(closed: str, name: str) -> None:
    text = message(FUNCTIONS[name], TFRecordError, endpoint_url=closed, **ONCE)
    assert text.startswith(PLACE)
    assert f"the store cannot be reached at {closed} (" in text
    assert text.endswith("; check the endpoint in storage_options= or in the environment, and the network")


def test_the_endpoint_of_the_environment_and_of_a_filesystem_is_named(
    closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in ({"endpoint_url": closed}, {"client_kwargs": {"endpoint_url": closed}}):
        with pytest.raises(TFRecordError, match=closed):
            dt.read_tfrecord("bucket/x", filesystem=s3fs.S3FileSystem(**SECRETS, **options, **ONCE))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", closed)
    assert closed in message(dt.read_tfrecord, TFRecordError, **ONCE)


def test_a_task_names_the_file_and_the_endpoint() -> None:
    with s3_server() as options:
        s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket="bucket")
        write(PLACE, storage_options=options)
        ddf = dt.read_tfrecord(PLACE, storage_options={**options, **ONCE})
    with pytest.raises(TFRecordError) as caught:
        ddf.compute()
    text = str(caught.value)
    assert text.startswith(f"{PLACE}/part-")
    assert f"the store cannot be reached at {options['endpoint_url']} (" in text
    assert "hunter" not in text


def test_a_host_without_address_is_named() -> None:
    text = message(dt.read_tfrecord, TFRecordError, endpoint_url="http://no-such-host.invalid:9000", **ONCE)
    assert "the store cannot be reached at http://no-such-host.invalid:9000 (" in text


@pytest.mark.parametrize("name", ["read", "write"])
def test_an_invalid_region_and_missing_credentials_are_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = message(FUNCTIONS[name], TFRecordError, client_kwargs={"region_name": "eu west"})
    assert text.startswith(f"{PLACE}: the region is not valid: ")
    assert text.endswith('; pass the region as storage_options={"client_kwargs": {"region_name": ...}}')
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for variable in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(variable, "/nonexistent")
    with s3_server() as options, pytest.raises(TFRecordError) as caught:
        FUNCTIONS[name](PLACE, storage_options={"endpoint_url": options["endpoint_url"]})
    assert str(caught.value).startswith(f"{PLACE}: the credentials are missing or incomplete")
    assert "storage_options=" in str(caught.value)


def refusing(status: int, code: str) -> ThreadingHTTPServer:
    """A server that answers every request with an error of S3."""

    class Handler(BaseHTTPRequestHandler):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self.answer
            raise AttributeError(name)

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>No, said S3.</Message></Error>"
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.mark.parametrize(
    ("name", "status", "code", "kind", "advice"),
    [
        ("read", 403, "InvalidAccessKeyId", PermissionError, "check the credentials and what they allow"),
        ("write", 403, "AccessDenied", PermissionError, "check the credentials and what they allow"),
        ("exists", 400, "ExpiredToken", PermissionError, "check the credentials and what they allow"),
        ("index", 400, "AuthorizationHeaderMalformed", OSError, "pass the region as storage_options="),
        ("write", 400, "AuthorizationHeaderMalformed", OSError, "pass the region as storage_options="),
    ],
)
def test_what_a_store_refuses_names_the_path_and_what_to_check(
    name: str, status: int, code: str, kind: type[Exception], advice: str
) -> None:
    with serving(refusing(status, code)) as url:
        text = message(FUNCTIONS[name], kind, endpoint_url=url)
    assert PLACE in text
    assert f"No, said S3; {advice}" in text


def test_local_failures_stay_as_they_are(tmp_path: Any) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such file or directory|matches"):
        dt.read_tfrecord(tmp_path / "missing")
    assert store_failures.store_failure(PermissionError(13, "no", "/x"), None) is None
    assert store_failures.store_failure(ValueError("x"), PLACE) is None
