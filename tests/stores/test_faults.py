"""Any request of a job may fail: then the job raises and the old data is whole, or the job succeeds.

A proxy spoils the first request of a job, in the next run its second, and so on, each in several ways. By
default, a sample is tried. ``DASK_TFRECORD_FAULTS=1`` spoils every request to S3 and to a web server in every
way; 7 in place of 1 tries a seventh of them.

Modules: storage.store, dataset.write.transaction.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from time import sleep
from typing import Any
from unittest.mock import patch

import aiohttp
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from azurite import azurite, needs_azurite, new_container, options_of
from list_rules import rule
from pattern_names import killed_before_the_commit, rows
from servers import s3_server, web_server
from store_link import KINDS, Kind, StoreLink, store_link
from strides import IS_FULL, OTHERS, every
from swift_server import needs_swift, swift_server

from dask_tfrecord import open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.storage.store import Store

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*the data is written, but:UserWarning"),
]

# By default, one of so many pairs of a request and a way to spoil it is tried: for jobs that only read, and
# for others, which take longer. With these numbers, the ways alternate.
STRIDES = {
    "S3 (moto)": (every(22), every(61)),
    "S3 (moto), retries": (every(61), every(61)),
    "S3 (Swift)": (OTHERS, OTHERS + 6),
    "Azure (Azurite)": (OTHERS + 6, OTHERS + 106),
    "HTTP": (every(22), every(22)),
}

# Seconds after which a client gives up if it gets no answer. A busy server may need one second.
_TIMEOUT = 2.0

_places = count()


@dataclass(frozen=True)
class Remote:
    """A store that is reached directly and through a proxy."""

    name: str
    direct: dict[str, Any]  # storage options
    proxied: dict[str, Any]
    proxy: StoreLink
    root: Path | None = None  # the directory that a web server shows
    clock: float = 0  # seconds by which the times of the store's files may be in the future

    def new_place(self) -> str:
        if self.root:
            return f"{self.proxy.server}/{next(_places)}"
        if "connection_string" in self.direct:
            return new_container(self.direct)
        bucket = f"bucket-{next(_places)}"
        s3fs.S3FileSystem(**self.direct).call_s3("create_bucket", Bucket=bucket)
        return f"s3://{bucket}"

    def prepare(self, job: "Job", place: str) -> None:
        """Make what a job finds; a web server shows a directory of the local disk."""
        job.prepare(place.replace(self.proxy.server, str(self.root)), self.direct)

    def behind_proxy(self, place: str) -> str:
        """The path of a place through the proxy."""
        return place.replace(self.proxy.server, self.proxy.url)


@contextmanager
def remote(name: str, options: dict[str, Any], clock: float = 0) -> Iterator[Remote]:
    with store_link(options["endpoint_url"]) as proxy:
        config = {"retries": {"max_attempts": 0}, "read_timeout": _TIMEOUT}
        proxied = {**options, "endpoint_url": proxy.url, "config_kwargs": config}
        yield Remote(name, options, proxied, proxy, clock=clock)


@pytest.fixture(scope="module")
def moto() -> Iterator[Remote]:
    with s3_server() as options, remote("S3 (moto)", options) as found:
        yield found


@pytest.fixture(scope="module")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with (
        swift_server(tmp_path_factory.mktemp("swift")) as options,
        remote("S3 (Swift)", options, clock=1) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def azure() -> Iterator[Remote]:
    adlfs = pytest.importorskip("adlfs.spec")

    def without_retries(connection_string: str) -> Any:
        return adlfs.AIOBlobServiceClient.from_connection_string(
            connection_string, retry_total=0, read_timeout=_TIMEOUT
        )

    connect = "_create_aio_blob_service_client_from_connection_string"
    with azurite() as url, store_link(url) as proxy, patch.object(adlfs, connect, without_retries):
        yield Remote("Azure (Azurite)", options_of(url), options_of(proxy.url), proxy)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    root = tmp_path_factory.mktemp("web")
    with web_server(root) as server, store_link(server.url) as proxy:
        server.pages = True
        # The client gives up after `_TIMEOUT` if it gets no answer.
        proxied = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(sock_read=_TIMEOUT)}}
        yield Remote("HTTP", {}, proxied, proxy, root)


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    """Print no line for each request."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)


def read(place: str, options: dict[str, Any]) -> list[int]:
    """The sorted numbers; none if there is no dataset."""
    try:
        ddf = read_tfrecord(place, storage_options=options)
    except FileNotFoundError:
        return []
    return sorted(ddf["n"].compute().tolist())


def files(place: str, options: dict[str, Any]) -> list[str]:
    store = Store.at(place, options)
    return sorted(map(store.relative, store.fs.find(store.root)))


# Takes a place and storage options.
Call = Callable[[str, dict[str, Any]], Any]


def nothing(place: str, options: dict[str, Any]) -> None:
    """A job that finds nothing, or that leaves nothing besides the state."""


@dataclass(frozen=True)
class Job:
    """A job whose requests are spoiled."""

    run: Call
    prepare: Call = nothing  # makes what the job finds
    state: Call = read  # what a reader of the place sees
    left: Call = nothing  # what the job must leave if it succeeds, besides the state
    changes: bool = (
        True  # False if the job leaves the place as it is, so that all runs can use the same place
    )


def writing(**mode: Any) -> Call:
    def write(place: str, options: dict[str, Any]) -> None:
        to_tfrecord(rows(3, 5), place, storage_options=options, compute_kwargs={"retries": 0}, **mode)

    return write


def write_stream(place: str, options: dict[str, Any]) -> None:
    to_tfrecord(pa.table({"n": [3, 5], "key": [0, 2]}), place, shuffle=True, seed=1, storage_options=options)


def prepare(place: str, options: dict[str, Any]) -> None:
    to_tfrecord(rows(0, 1, 2), place, partition_on="key", storage_options=options)


def with_deltas(work: Call) -> Call:
    """Let appends store only the files that they add to their base."""

    def patched(place: str, options: dict[str, Any]) -> None:
        with rule("delta"):
            work(place, options)

    return patched


def prepare_deltas(place: str, options: dict[str, Any]) -> None:
    """A dataset of the same rows whose newest snapshot has a base."""
    for numbers in ((0, 1), (2,)):
        to_tfrecord(rows(*numbers), place, partition_on="key", append=True, storage_options=options)
    data = Store.at(place, options).fs.cat_file(f"{place}/_tfrecord/00000002.parquet")
    assert pq.read_metadata(pa.BufferReader(data)).metadata[b"dask_tfrecord"].count(b'"lists"') == 1


def prepare_abandoned(place: str, options: dict[str, Any]) -> None:
    prepare(place, options)
    with killed_before_the_commit():
        to_tfrecord(rows(7), place, partition_on="key", append=True, storage_options=options)


def prepare_foreign(place: str, options: dict[str, Any]) -> None:
    to_tfrecord(rows(0, 1, 2), place, storage_options=options)
    store = Store.at(place, options)
    for number, name in enumerate(files(place, options)):
        if name.startswith("part-"):
            store.fs.pipe_file(store.join(f"foreign-{number}.tfrecord"), store.fs.cat_file(store.join(name)))
        store.fs.rm_file(store.join(name))


def clean(place: str, options: dict[str, Any]) -> None:
    open_dataset(place, storage_options=options).cleanup(older_than="0s")


def runs(place: str, options: dict[str, Any]) -> list[str]:
    return [name for name in files(place, options) if "staging" in name]


def version(place: str, options: dict[str, Any]) -> Any:
    """The rows, and how many of them a snapshot counts."""
    try:
        records = Snapshot.open(place, storage_options=options).records
    except FileNotFoundError:
        records = None
    return read(place, options), records


def index_all(place: str, options: dict[str, Any]) -> None:
    open_dataset(place, storage_options=options).add_snapshot()


def checked(place: str, options: dict[str, Any]) -> None:
    report = open_dataset(place, storage_options=options).verify()
    assert report["agrees"].tolist() == [True] * 3
    assert report["rows"].sum() == 3


def read_all(place: str, options: dict[str, Any]) -> None:
    assert sorted(read_tfrecord(place, storage_options=options)["n"].compute().tolist()) == [0, 1, 2]


def read_listed(place: str, options: dict[str, Any]) -> None:
    ddf = read_tfrecord(f"{place}/key=*/part*", storage_options=options)
    assert sorted(ddf["n"].compute().tolist()) == [0, 1, 2]


def take_some(place: str, options: dict[str, Any]) -> None:
    assert open_dataset(place, storage_options=options).take([2, 0])["n"].to_pylist() == [2, 0]


JOBS = {
    "write": Job(writing(), state=version),
    "append": Job(writing(append=True, partition_on="key"), prepare, version),
    "overwrite": Job(writing(overwrite=True), prepare, version),
    "overwrite partitions": Job(writing(overwrite="partitions", partition_on="key"), prepare, version),
    "append to a base": Job(
        with_deltas(writing(append=True, partition_on="key")), with_deltas(prepare_deltas), version
    ),
    "overwrite with a base": Job(writing(overwrite=True), with_deltas(prepare_deltas), version),
    "shuffled write": Job(writing(shuffle=True, seed=1), state=version),
    "write of a stream": Job(write_stream, state=version),
    "cleanup": Job(clean, prepare_abandoned, left=runs),
    "index": Job(index_all, prepare_foreign, version),
    "read": Job(read_all, prepare, changes=False),
    "read with a base": Job(read_all, with_deltas(prepare_deltas), changes=False),
    "read a glob": Job(read_listed, prepare, changes=False),
    "take": Job(take_some, prepare, changes=False),
    "verify": Job(checked, prepare, changes=False),
}

# The jobs that a sample tries, on S3 and on the other stores. The others make requests of the same kinds.
SAMPLE = list(JOBS)
if not IS_FULL:
    for name in ("append", "overwrite partitions", "overwrite with a base", "shuffled write", "read"):
        SAMPLE.remove(name)
DIFFERENT = ["write", "append", "overwrite", "cleanup", "index", "read", "read a glob"]


def pairs(requests: int, stride: int, start: int) -> Iterator[tuple[int, Kind]]:
    """Every ``stride``-th pair of the number of a request and a way to spoil it; at least one."""
    total = requests * len(KINDS)
    for pair in range(start % min(stride, total), total, stride):
        number = pair // len(KINDS)
        yield number, KINDS[(pair + number) % len(KINDS)]


def sweep(found: Remote, operation: str) -> int:
    """Spoil a request of the job in one way, then, in new runs, other requests in other ways.

    Return how many of the runs raised.
    """
    failed = 0
    job = JOBS[operation]
    top = found.new_place()
    original, reference = f"{top}/0", f"{top}/1" if job.changes else f"{top}/0"
    found.prepare(job, original)
    before = job.state(original, found.direct)
    contents: dict[str, bytes] = {}
    if job.changes:
        store = Store.at(original, found.direct)
        contents = {name: store.fs.cat_file(f"{original}/{name}") for name in files(original, found.direct)}
        create(contents, reference, found.direct)
    sleep(found.clock)
    started = found.proxy.requests
    job.run(found.behind_proxy(reference), found.proxied)
    number_of_requests = found.proxy.requests - started
    after = (job.state(reference, found.direct), job.left(reference, found.direct))
    stride = STRIDES[found.name][job.changes]
    for number, kind in pairs(number_of_requests, stride, start=3 * len(operation)):
        place = f"{top}/{kind}-{number}" if job.changes else original
        if job.changes:
            create(contents, place, found.direct)
        if operation == "cleanup":
            sleep(found.clock)
        found.proxy.arm(kind, number)
        raised: Exception | None = None
        try:
            job.run(found.behind_proxy(place), found.proxied)
        except AssertionError:
            raise
        except Exception as error:
            raised = error
        hit = found.proxy.disarm()
        how = f"{operation} on {found.name}, {kind} at request {number}: {raised!r}"
        if raised is not None:
            assert hit, how
            assert job.state(place, found.direct) == before, how
            job.run(place, found.direct)
            failed += 1
        assert (job.state(place, found.direct), job.left(place, found.direct)) == after, how
    return failed


def create(contents: dict[str, bytes], place: str, options: dict[str, Any]) -> None:
    """Create files with these contents. Files of the same content have the same ETag."""
    Store.at(place, options).fs.pipe({f"{place}/{name}": content for name, content in contents.items()})


@pytest.mark.parametrize(
    ("store", "operation"),
    [
        *(("moto", name) for name in SAMPLE),
        *(pytest.param("swift", name, marks=needs_swift) for name in DIFFERENT),
        *(pytest.param("azure", name, marks=needs_azurite) for name in DIFFERENT),
    ],
)
def test_any_request_may_fail(request: pytest.FixtureRequest, store: str, operation: str) -> None:
    """The client does not retry, so the library sees every spoiled request."""
    with patch.object(s3fs.S3FileSystem, "retries", 1):
        sweep(request.getfixturevalue(store), operation)


@pytest.mark.parametrize("operation", [name for name, job in JOBS.items() if not job.changes])
def test_any_request_to_a_web_server_may_fail(web: Remote, operation: str) -> None:
    sweep(web, operation)


@pytest.mark.parametrize("operation", ["append", "index"])
def test_a_client_that_retries_hides_one_failure(moto: Remote, operation: str) -> None:
    """With the retries that s3fs and botocore make by default, even an exclusive creation succeeds."""
    proxied = {**moto.proxied, "config_kwargs": {"read_timeout": _TIMEOUT}}
    retrying = replace(moto, name="S3 (moto), retries", proxied=proxied)
    assert sweep(retrying, operation) == 0
