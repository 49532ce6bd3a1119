"""Failures of a store name path, endpoint and what to check, and no password, key, token or signed URL.

Modules: storage.redaction, storage.failures, storage.store.
"""

import base64
import socket
import traceback
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import operations
import oracle
import pandas as pd
import pytest
import s3fs
from fsspec import register_implementation
from fsspec.implementations.local import LocalFileSystem
from servers import s3_server, serving, web_server

import dask_tfrecord
from dask_tfrecord import NotFoundError, TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.errors import Call
from dask_tfrecord.storage import failures as storage_failures
from dask_tfrecord.storage.redaction import hide, redact_errors, secrets_of, without_credentials

pytestmark = pytest.mark.usefixtures("one_thread", "no_pauses")

SECRET = "hunter2/+x"
FORMS = ["hunter2", "hunter2%2F%2Bx", base64.b64encode(SECRET.encode()).decode()]


def shown(error: BaseException | None) -> str:
    """All text that an exception, its causes and its notes can print."""
    if error is None:
        return ""
    parts = [str(error), repr(error), repr(error.args), repr(vars(error))]
    parts += [repr(getattr(error, name, None)) for name in ("filename", "path", "problem", "advice")]
    parts += traceback.format_exception(error)
    return "\n".join([*parts, shown(error.__cause__), shown(error.__context__)])


def check_hidden(text: str) -> None:
    assert [form for form in FORMS if form in text] == []


class Leaky(LocalFileSystem):
    """A filesystem whose errors show the options of the filesystem."""

    protocol = "leaky"
    failing: str | None = None
    raising: Callable[[str], BaseException] = OSError

    def __init__(self, **options: Any) -> None:
        super().__init__(**{name: value for name, value in options.items() if name == "auto_mkdir"})


def _leaky(name: str) -> Callable[..., Any]:
    def method(self: Leaky, *args: Any, **kwargs: Any) -> Any:
        if Leaky.failing == name:
            options = f"{self.storage_options} https://host/x?X-Amz-Signature={SECRET}"
            try:
                raise KeyError(options)
            except KeyError as error:
                raise Leaky.raising(f"failed with {options}") from error
        return getattr(LocalFileSystem, name)(self, *args, **kwargs)

    return method


OPERATIONS = ["_open", "ls", "info", "exists", "isfile", "isdir", "cat_file", "makedirs", "mv", "pipe_file"]
OPERATIONS += ["rm_file", "rmdir", "find", "glob", "modified"]
for _name in OPERATIONS:
    setattr(Leaky, _name, _leaky(_name))
register_implementation("leaky", Leaky, clobber=True)


class OddError(Exception):
    """An exception whose text does not come from its arguments, as in aiohttp."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def __str__(self) -> str:
        return self.text


OPTIONS = {
    "key": SECRET,
    "secret": SECRET,
    "token": {"private_key": SECRET, "type": "service_account"},
    "password": SECRET,
    "client_kwargs": {"headers": {"Authorization": f"Bearer {SECRET}"}, "aws_session_token": SECRET},
    "headers": {"X-Api-Key": SECRET, "Cookie": f"session={SECRET}"},
    "endpoint_url": "https://someone:hunter2@host/",
    "connection_string": f"AccountName=x;AccountKey={SECRET}",
    "auth": ("someone", SECRET),
    "sas_token": SECRET,
    "username": "someone",
}


def collection(*values: int) -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"n": list(values)}), npartitions=1)


ACTIONS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "read": lambda place, options: read_tfrecord(place, storage_options=options).compute(),
    "read_glob": lambda place, options: read_tfrecord(f"{place}/*", storage_options=options).compute(),
    "read_all": lambda place, options: read_tfrecord(
        place, use_snapshot=False, read_options={"infer": "all"}, blocksize=100, storage_options=options
    ).compute(),
    "create": lambda place, options: to_tfrecord(collection(1), f"{place}2", storage_options=options),
    "append": lambda place, options: to_tfrecord(collection(1), place, append=True, storage_options=options),
    "overwrite": lambda place, options: to_tfrecord(
        collection(1), place, overwrite=True, storage_options=options
    ),
    "verify": lambda place, options: dask_tfrecord.open_dataset(place, storage_options=options).verify(),
    "index": lambda place, options: dask_tfrecord.open_dataset(
        f"{place}3", storage_options=options
    ).add_snapshot(),
    "take": lambda place, options: dask_tfrecord.open_dataset(place, storage_options=options).take([0]),
    "exists": lambda place, options: dask_tfrecord.exists(place, storage_options=options),
    "cleanup": lambda place, options: dask_tfrecord.open_dataset(place, storage_options=options).cleanup(
        older_than="0s"
    ),
}


@pytest.fixture
def leaky(tmp_path: Path) -> Iterator[str]:
    for name in ("place", "place3"):
        to_tfrecord(collection(1, 2), tmp_path / name)
    for path in (tmp_path / "place3" / "_tfrecord").iterdir():
        path.unlink()
    yield f"leaky://{tmp_path}/place"
    Leaky.failing, Leaky.raising = None, OSError


CLASSES: list[Callable[[str], BaseException]] = [OSError, PermissionError, OddError, ValueError, KeyError]


@pytest.mark.sampled
@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("action", ACTIONS)
def test_no_failure_of_a_store_shows_a_secret(leaky: str, action: str, first: int) -> None:
    """Each operation raises two of the classes within an action; over all actions, it raises all of them."""
    failures = 0
    for at, operation in enumerate(OPERATIONS, list(ACTIONS).index(action) + first):
        Leaky.failing, Leaky.raising = operation, CLASSES[at % len(CLASSES)]
        with warnings.catch_warnings(action="always", record=True) as warned:
            try:
                ACTIONS[action](leaky, OPTIONS)
            except Exception as error:
                failures += 1
                check_hidden(shown(error))
        check_hidden("\n".join(str(one.message) for one in warned))
    assert failures


# A listed snapshot that raises FileNotFoundError is damaged, so the package raises its own exception.
@pytest.mark.parametrize("raising", [OSError, PermissionError, TimeoutError, ValueError])
def test_an_exception_of_pythons_keeps_its_class(leaky: str, raising: Callable[[str], BaseException]) -> None:
    Leaky.failing, Leaky.raising = "_open", raising
    with pytest.raises(raising) as caught:
        read_tfrecord(leaky, storage_options=OPTIONS).compute()
    check_hidden(shown(caught.value))


def test_an_error_for_a_missing_path_keeps_its_class_and_its_calls() -> None:
    @redact_errors
    def fail(options: dict[str, str]) -> None:
        raise NotFoundError(f"nothing at {SECRET}", f"try {SECRET}", [Call("index", f"/a/{SECRET}", {})])

    with pytest.raises(NotFoundError) as caught:
        fail({"secret": SECRET})
    check_hidden(shown(caught.value))
    assert caught.value.calls == (Call("index", "/a/***", {}),)


def test_an_exception_without_secrets_stays_as_it_is() -> None:
    error = OddError("nothing to hide at https://host/a@b?page=2")

    @redact_errors
    def fail(path: str, options: dict[str, str]) -> None:
        raise error from KeyError("cause")

    with pytest.raises(OddError) as caught:
        fail("s3://bucket/key", {"secret": SECRET})
    assert caught.value is error
    assert isinstance(error.__cause__, KeyError)


QUOTED = SECRET.replace("/", "%2F")


@pytest.mark.parametrize(
    "url",
    [
        f"s3://key:{QUOTED}@bucket/a",
        f"s3://key:{SECRET}@bucket/*",
        f"s3://key:/{SECRET}@bucket/a",
        f"gs://key:{SECRET}@bucket/a",
        f"s3a://key:{QUOTED}@bucket",
        "s3://hunter2@bucket/a",
    ],
)
@pytest.mark.parametrize("action", ACTIONS)
def test_credentials_in_the_url_of_a_bucket_are_refused_and_not_shown(action: str, url: str) -> None:
    with pytest.raises(TFRecordError, match="cannot hold credentials") as caught:
        ACTIONS[action](url, {})
    check_hidden(shown(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://someone:hunter2@127.0.0.1:1/a",
        "sftp://someone:hunter2@127.0.0.1:1/a",
        "http://someone:hunter2@127.0.0.1:1/a.tfrecord?X-Amz-Signature=hunter2",
        "http://127.0.0.1:1/a.tfrecord?download=hunter2",
        "simplecache::http://someone:hunter2@127.0.0.1:1/a.tfrecord?sig=hunter2",
        "zip://*.tfrecord::http://someone:hunter2@127.0.0.1:1/a.zip?sig=hunter2",
        "webhdfs://someone:hunter2@127.0.0.1:1/a",
        "nothing://someone:hunter2@host/a?token=hunter2",
        f"http://someone:{SECRET}@127.0.0.1:1/a",
        "ftp://someone:x1/hunter2:@?#x@127.0.0.1:1/a",
        f"simplecache::http://me@host.org:{SECRET}@127.0.0.1:1/a?sig=hunter2",
        f"zip://*.tfrecord::https://someone:{SECRET}@127.0.0.1:1/a.zip",
    ],
)
def test_credentials_in_other_urls_are_not_shown(url: str) -> None:
    for action in ACTIONS.values():
        try:
            action(url, {"password": SECRET} if url.startswith("nothing") else {})
        except Exception as error:
            check_hidden(shown(error))


def test_storage_options_of_s3_are_used_and_do_not_appear_in_errors() -> None:
    with s3_server() as options:
        s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket="bucket")
        to_tfrecord(collection(1), "s3://bucket/a", storage_options=options)
        assert read_tfrecord("s3://bucket/a", storage_options=options)["n"].compute().tolist() == [1]
        options |= {"secret": "hunter2", "key": "hunter2", "token": "hunter2"}
        for action in ACTIONS.values():
            try:
                action("s3://no-such-bucket/hidden", options)
            except Exception as error:
                check_hidden(shown(error))


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[tuple[Any, str]]:
    (tmp_path / "a.tfrecord").write_bytes(oracle.features_file([{"n": ("int64", [1])}]))
    with web_server(tmp_path) as web:
        address = web.url.replace("://", "://someone:hunter2@")
        yield web, f"{address}/a.tfrecord?X-Amz-Signature=hunter2&page=hunter2"


@pytest.mark.parametrize("prefix", ["", "simplecache::"])
def test_a_signed_url_is_in_no_result_and_in_no_graph(signed: tuple[Any, str], prefix: str) -> None:
    _, url = signed
    ddf = read_tfrecord(
        prefix + url, include_path_column="path", read_options={"include_offset_column": "offset"}
    )
    assert ddf.compute()["path"].astype(str).item().endswith("/a.tfrecord")
    parts = [repr(ddf), repr(ddf.expr), str(ddf.expr), ddf.expr.tree_repr(), ddf.compute().to_csv()]
    parts += [repr(ddf.dask), repr(dict(ddf.dask)), repr(list(ddf.dask)), ddf._name, repr(ddf.expr.dataset)]
    parts += [repr(dask.base.tokenize(ddf)), ddf._repr_html_(), ddf.optimize().expr.tree_repr()]
    parts += [dask_tfrecord.open_dataset(prefix + url).verify().to_csv()]
    check_hidden("\n".join(parts))


@pytest.mark.parametrize("cut", [None, 5])
def test_a_signed_url_is_in_no_failure(signed: tuple[Any, str], cut: int | None) -> None:
    web, url = signed
    ddf = read_tfrecord(url)
    if cut is None:
        (web.root / "a.tfrecord").unlink()
    web.cut = cut
    for action in (ddf.compute, lambda: read_tfrecord(url), lambda: dask_tfrecord.open_dataset(url).verify()):
        with pytest.raises(Exception) as caught:  # noqa: PT011  # of any class: only what it shows counts
            check_hidden(str(action()))
        check_hidden(shown(caught.value))


def test_damage_of_a_signed_url_is_reported_and_kept_without_it(
    signed: tuple[Any, str], tmp_path: Path
) -> None:
    web, url = signed
    path = web.root / "a.tfrecord"
    data = oracle.features_file([{"n": ("int64", [n])} for n in range(3)])
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(TFRecordError) as caught:
        read_tfrecord(url).compute()
    check_hidden(shown(caught.value))
    place = tmp_path / "quarantine"
    with warnings.catch_warnings(action="always", record=True) as warned:
        read_tfrecord(url, on_corrupt="quarantine", read_options={"quarantine_path": place}).compute()
    check_hidden("\n".join(str(one.message) for one in warned))
    kept = [file for file in place.rglob("*") if file.is_file()]
    assert kept
    for file in kept:
        check_hidden(pd.read_parquet(file).to_csv() + file.name)
        assert b"hunter2" not in file.read_bytes()


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("see https://u:p@host/a?x=1", "see https://host/a?x=1"),
        ("(https://token@host/a)", "(https://host/a)"),
        ("'https://host/a?v=1&X-Amz-Signature=abc&e=2' failed", "'https://host/a' failed"),
        ("https://host/a@b/c", "https://host/a@b/c"),
        ("https://host/a?mail=a@b", "https://host/a?mail=a@b"),
        ("ftp://u:p@ss@host/a", "ftp://host/a"),
        (
            "abfs://container@account.dfs.core.windows.net/a",
            "abfs://container@account.dfs.core.windows.net/a",
        ),
        ("https://x.blob.core.windows.net/c/a?sv=1&se=2&sig=abc", "https://x.blob.core.windows.net/c/a"),
        ("memory:///u:p@b/k", "memory:///b/k"),
        ("see s3://key:a/b+c/d@bucket/x for", "see s3://bucket/x for"),
        ("see s3://key:/b+c/d@bucket/x for", "see s3://bucket/x for"),
        ("s3a://key:12/c+d@bucket/x", "s3a://bucket/x"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
        ("s3://arn:aws:s3:eu:1:accesspoint/x/a@b", "s3://arn:aws:s3:eu:1:accesspoint/x/a@b"),
        ("memory:///day@home/k", "memory:///day@home/k"),
        # A password whose `/`, `?`, `#`, `@` and `:` are not quoted
        ("see http://u:p/w@host:80/a for", "see http://host:80/a for"),
        ("'http://me@x.org:p2/3?4#5:6@[::1]:80/a'", "'http://[::1]:80/a'"),
        ("zip://*.tfrecord::http://u:p/w@host/a", "zip://*.tfrecord::http://host/a"),
        ("sftp://u:12%2F34@host/a", "sftp://host/a"),
        ("http://u:p/w@host/a,http://other/b@c", "http://host/a,http://other/b@c"),
        # An `@` in the path after a host
        ("http://x.org:80/a@b", "http://x.org:80/a@b"),
        ("http://localhost:80/a@b", "http://localhost:80/a@b"),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("hdfs://node:8020/user/me@x.org/a", "hdfs://node:8020/user/me@x.org/a"),
        ("sftp://me@host:22/home/a@b", "sftp://host:22/home/a@b"),
        ("file://C:/me@home/a", "file://C:/me@home/a"),
    ],
)
def test_urls_are_shown_without_credentials(text: str, public: str) -> None:
    assert without_credentials(text) == public


@pytest.mark.parametrize("action", ["to_tfrecord", "exists"])
def test_a_signed_url_in_a_list_instead_of_a_path_is_not_shown(action: str) -> None:
    urls = ["https://host/a?sig=hunter2", "s3://key:hunter2@bucket/a"]
    call = getattr(dask_tfrecord, action)
    arguments = (dd.from_pandas(pd.DataFrame({"n": [1]}), npartitions=1),) if action == "to_tfrecord" else ()
    with pytest.raises(Exception, match=r"path|Path") as caught:
        call(*arguments, urls)
    check_hidden(shown(caught.value))


@pytest.mark.parametrize(
    ("options", "text", "public"),
    [
        ({"connection_string": "AccountName=me;AccountKey=hunter2=="}, "me: 'hunter2==' no", "me: '***' no"),
        ({"sas_token": "?sv=2026-01-01&sig=hunter2%3D%3D&se=2027"}, "me: 'hunter2==' no", "me: '***' no"),
        # A short secret and the name of a user blot out no words and paths
        ({"password": "cat"}, "the cat concatenates", "the *** concatenates"),
        ({"token": "anon", "key": ""}, "anonymous", "anonymous"),
        ({"username": "deploy", "account_name": "deploy"}, "/home/deploy/data", "/home/deploy/data"),
    ],
)
def test_each_secret_of_an_option_is_hidden_and_nothing_else(
    options: dict[str, str], text: str, public: str
) -> None:
    assert hide(text, secrets_of(options, "sftp://deploy@host/home/deploy")) == public


# --- a store cannot be reached or refuses a request ---

PLACE = "s3://bucket/dataset"
KEYS = {"key": "hunterkey", "secret": "huntersecret"}
ONCE = {"config_kwargs": {"retries": {"max_attempts": 0}}}


def write(path: str, **options: Any) -> Any:
    return to_tfrecord(collection(1), path, **options)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "read": dask_tfrecord.read_tfrecord,
    "glob": lambda path, **options: dask_tfrecord.read_tfrecord(f"{path}/*", **options),
    "write": write,
    "append": lambda path, **options: write(path, append=True, **options),
    "exists": dask_tfrecord.exists,
    "index": operations.add_snapshot,
    "verify": operations.verify,
    "take": lambda path, **options: dask_tfrecord.open_dataset(path, **options).take([0]),
    "export": lambda path, **options: dask_tfrecord.open_dataset(path, **options).export("idx"),
    "table": dask_tfrecord.feed.RecordTable,
    "quarantine": lambda path, **options: dask_tfrecord.read_tfrecord(
        path, on_corrupt="quarantine", read_options={"quarantine_path": f"{path}/q"}, **options
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
        function(PLACE, storage_options={**KEYS, **options})
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
            dask_tfrecord.read_tfrecord("bucket/x", filesystem=s3fs.S3FileSystem(**KEYS, **options, **ONCE))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", closed)
    assert closed in message(dask_tfrecord.read_tfrecord, TFRecordError, **ONCE)


def test_a_task_names_the_file_and_the_endpoint() -> None:
    with s3_server() as options:
        s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket="bucket")
        write(PLACE, storage_options=options)
        ddf = dask_tfrecord.read_tfrecord(PLACE, storage_options={**options, **ONCE})
    with pytest.raises(TFRecordError) as caught:
        ddf.compute()
    text = str(caught.value)
    assert text.startswith(f"{PLACE}/part-")
    assert f"the store cannot be reached at {options['endpoint_url']} (" in text
    assert "hunter" not in text


def test_a_host_without_address_is_named() -> None:
    text = message(
        dask_tfrecord.read_tfrecord, TFRecordError, endpoint_url="http://no-such-host.invalid:9000", **ONCE
    )
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
        dask_tfrecord.read_tfrecord(tmp_path / "missing")
    assert storage_failures.store_failure(PermissionError(13, "no", "/x"), None) is None
    assert storage_failures.store_failure(ValueError("x"), PLACE) is None
