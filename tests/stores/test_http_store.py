"""Web servers, with and without support for ranges, with and without pages that list directories.

Modules: storage.cached_files, dataset.listing, storage.paths, storage.uploading, storage.failures,
storage.reader.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, cast

import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pytest
from aiohttp import ClientResponseError
from changed_files import NUMBERS, PLANS, SOME
from pattern_names import rows
from servers import Web, page_server, web_server

from dask_tfrecord import (
    DestinationError,
    FileChangedError,
    TFRecordError,
    exists,
    explain,
    open_dataset,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.dataset.listing import request_infos, with_trailing_slash
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.feed import RecordTable, iter_batches
from dask_tfrecord.storage import range_requests
from dask_tfrecord.storage.range_requests import ByteRange, is_passing
from dask_tfrecord.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = 20_000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets of several files: with partition columns, compressed, and without a snapshot."""
    root = tmp_path_factory.mktemp("web")
    frame = pd.DataFrame({"n": np.arange(ROWS), "key": np.arange(ROWS) % 2, "text": "x" * 60})
    ddf = dd.from_pandas(frame, npartitions=2)
    to_tfrecord(ddf, root / "keys", partition_on="key")
    to_tfrecord(ddf, root / "gzip", compression="gzip")
    to_tfrecord(ddf, root / "with space" / "data")
    to_tfrecord(ddf, root / "foreign")
    for path in (root / "foreign").rglob("*"):
        if path.is_file() and path.suffix != ".tfrecord":
            path.unlink()
    return root


@pytest.fixture(params=["ranges", "no ranges", "no ranges, and says so"])
def web(root: Path, request: pytest.FixtureRequest) -> Iterator[Web]:
    with web_server(root) as web:
        web.pages, web.ranges, web.says_so = True, request.param == "ranges", "says so" in request.param
        yield web


def numbers(path: object, **options: object) -> list[int]:
    return sorted(read_tfrecord(path, **options)["n"].compute().tolist())


@pytest.mark.sampled
@pytest.mark.parametrize("path", ["keys", "gzip/", "foreign/", "with space/data/", "with%20space/data/"])
def test_a_directory_is_read_and_verified(web: Web, path: str) -> None:
    assert numbers(f"{web.url}/{path}") == [*range(ROWS)]
    report = open_dataset(f"{web.url}/{path}").verify()
    assert (report["rows"].sum(), report["damaged"].sum()) == (ROWS, 0)
    assert report["agrees"].fillna(True).all()
    assert exists(f"{web.url}/{path}")
    assert not exists(f"{web.url}/nothing/")


@pytest.mark.parametrize(
    "path", ["f*n/part-*", "keys/key=*/part-*", "{gzip,nothing}/part*", "with space/data/part*"]
)
def test_a_glob_is_read(web: Web, path: str) -> None:
    assert numbers(f"{web.url}/{path}", use_snapshot=False) == [*range(ROWS)]


def test_a_list_of_files_is_read_from_a_server_without_pages(web: Web, root: Path) -> None:
    web.pages = False
    files = [f"{web.url}/gzip/{path.name}" for path in sorted((root / "gzip").glob("part-*"))]
    assert numbers(files) == [*range(ROWS)]
    with pytest.raises(FileNotFoundError):
        read_tfrecord(f"{web.url}/gzip/")


def test_nothing_is_written(web: Web) -> None:
    ddf = dd.from_dict({"n": [1]}, npartitions=1)
    with pytest.raises(DestinationError, match="read-only"):
        to_tfrecord(ddf, f"{web.url}/new", compute_kwargs={"retries": 0})
    with pytest.raises(DestinationError):
        open_dataset(f"{web.url}/foreign/").add_snapshot()


def test_the_number_of_requests_is_bounded(web: Web, root: Path) -> None:
    """A request lists a directory, and few requests read a file."""
    for path, directories, files in [("gzip", 4, 2), ("keys", 6, 4)]:
        web.asked.clear()
        read_tfrecord(f"{web.url}/{path}/").compute()
        assert len(web.asked) <= 2 * directories + 4 * files + 4
        bodies = [name for method, name, _ in web.asked if method == "GET" and "part-" in name]
        assert len(bodies) <= 2 * files
        web.asked.clear()
        Snapshot.open(f"{web.url}/{path}/")
        assert len(web.asked) <= 3


def test_ranges_are_right_or_refused(web: Web) -> None:
    """If a snapshot describes the files, a server without ranges may send whole files instead."""

    def right_or_refused(call: Callable[[], object], expected: object) -> None:
        """Without ranges, the call may raise and say so."""
        with suppress(TFRecordError) if not web.ranges else nullcontext():
            assert call() == expected
            return
        with pytest.raises(TFRecordError, match=r"the server sends only whole files.*blocksize=None"):
            call()

    for path in ("gzip/", "with space/data/"):
        url = f"{web.url}/{path}"
        assert open_dataset(url).take([ROWS - 1, ROWS // 2])["n"].to_pylist() == [ROWS - 1, ROWS // 2]
        assert numbers(url, blocksize="100 kB") == [*range(ROWS)]
        assert RecordTable(url)[ROWS // 2]["n"] == ROWS // 2
    right_or_refused(lambda: numbers(f"{web.url}/foreign/", blocksize="300 kB"), [*range(ROWS)])
    batches = iter_batches(f"{web.url}/gzip/", 1000, shuffle=True, seed=7)
    assert sorted(n for batch in batches for n in batch["n"].to_pylist()) == [*range(ROWS)]


@pytest.mark.parametrize("keep_versions", [True, False])
def test_a_planned_read_follows_files_that_move_behind_a_web_server(
    tmp_path: Path, keep_versions: bool
) -> None:
    to_tfrecord(rows(*NUMBERS, npartitions=3), tmp_path / "data")
    with web_server(tmp_path) as web:
        web.pages = True
        planned = {name: plan(f"{web.url}/data", {}) for name, plan in PLANS.items()}
        open_dataset(tmp_path / "data").compact(keep_versions=keep_versions)
        for name, read in planned.items():
            if keep_versions:
                assert sorted(read()) == SOME.get(name, NUMBERS), name
                continue
            with pytest.raises(FileChangedError) as caught:
                read()
            assert isinstance(caught.value, FileNotFoundError), name


@pytest.mark.parametrize("path", ["keys", "foreign/"])
def test_explain_reports_the_bytes_that_are_read_over_http(root: Path, web: Web, path: str) -> None:
    over_http = explain(read_tfrecord(f"{web.url}/{path}")).totals
    assert over_http["requests"] > 0
    assert over_http | {"requests": 0} == explain(read_tfrecord(root / path)).totals
    assert over_http["data_bytes"] == over_http["stored_bytes"] > 0


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # blockcache never closes its copy
@pytest.mark.parametrize("cache", ["filecache", "simplecache", "blockcache"])
@pytest.mark.parametrize("path", ["keys", "foreign/", "gzip/"])
def test_a_cache_of_fsspec_downloads_each_file_once(web: Web, tmp_path: Path, cache: str, path: str) -> None:
    options = {cache: {"cache_storage": str(tmp_path)}}
    read = {"blocksize": None, "storage_options": options}
    assert numbers(f"{cache}::{web.url}/{path}", **read) == [*range(ROWS)]
    web.asked.clear()
    assert numbers(f"{cache}::{web.url}/{path}", **read) == [*range(ROWS)]
    if cache != "blockcache" or web.ranges:
        assert not [name for method, name, _ in web.asked if method == "GET" and "part-" in name]


def test_a_mirror_of_a_dataset_is_read_like_the_original(web: Web, root: Path) -> None:
    frame = pd.DataFrame({"n": range(90), "key": ["a b"] * 30 + ["50%"] * 30 + ["ü=?#"] * 30, "text": "x"})
    mirror = root / "mirror"
    to_tfrecord(frame, mirror, partition_on="key", columnar=["n"], overwrite=mirror.exists())
    url = f"{web.url}/mirror/"

    def opened() -> int:
        found = len({name for method, name, _ in web.asked if method == "GET" and "/part-" in name})
        web.asked.clear()
        return found

    assert read_tfrecord(url)["text"].count().compute() == 90
    assert opened() == 3
    assert (len(read_tfrecord(url)), open_dataset(url).num_rows) == (90, 90)
    assert numbers(url, columns=["n"]) == [*range(90)]
    assert opened() == 0
    some = read_tfrecord(url, filters=[("n", ">", 70)]).compute()
    assert (some["n"].tolist(), {*some["key"]}) == ([*range(71, 90)], {"ü=?#"})
    assert opened() == 1


def test_a_file_that_is_replaced_while_it_is_read_raises(tmp_path: Path) -> None:
    """The new file has the same size, so only the ETag differs."""
    size = 9 << 20
    (tmp_path / "file").write_bytes(bytes(size))
    with web_server(tmp_path) as web:
        web.stamp = '"old"'
        store = Store.at(f"{web.url}/")
        with store.open(f"{web.url}/file", size) as reader:
            assert reader.peek(1) == b"\0"
            web.stamp = '"new"'
            with pytest.raises(FileChangedError, match="rewritten"):
                reader.peek(size)


def test_a_server_without_ranges_is_asked_twice_for_each_file(tmp_path: Path) -> None:
    """Requests that are sent ahead would each get a whole file."""
    size, names = 3 << 20, ["a", "b", "c"]
    for name in names:
        (tmp_path / name).write_bytes(bytes(size))
    with web_server(tmp_path) as web:
        web.ranges = False
        store, paths = Store.at(f"{web.url}/"), [f"{web.url}/{name}" for name in names]
        with store.reading_ahead([ByteRange(path, 0, size, "", size) for path in paths]) as ahead:
            for path in paths:
                with ahead.open(path, size) as reader:
                    assert reader.peek(size) == bytes(size)
        assert [name for method, name, _ in web.asked if method == "GET"] == ["a", "a", "b", "b", "c", "c"]


@pytest.mark.parametrize(
    "read",
    [
        lambda store, path: store.read_ranges([ByteRange(path, 0, 1)]),
        lambda store, path: store.info(path),
        lambda store, path: request_infos(store, [path[len(store.root) :]]),
        lambda store, path: with_trailing_slash(Store.of(store.fs, path)),
        lambda store, path: read_tfrecord(path),
        lambda store, path: exists(path),
    ],
)
def test_a_refused_request_for_a_file_is_not_a_missing_file(
    tmp_path: Path, read: Callable[[Store, str], Any]
) -> None:
    with page_server(tmp_path, {"/a": 403}) as url:
        store = Store.at(f"{url}/")
        with pytest.raises(TFRecordError, match="the request to the server failed"):
            read(store, f"{url}/a")


@pytest.mark.parametrize(
    ("status", "problem"),
    [(403, "the request to the server failed .it answers 403"), (404, "the file was removed")],
)
def test_a_refused_request_for_a_listed_file_is_not_a_removed_file(
    tmp_path: Path, status: int, problem: str
) -> None:
    (tmp_path / "a.tfrecord").write_bytes(oracle.features_file([{"n": ("int64", [1])}]))
    answers: dict[str, int] = {}
    with page_server(tmp_path, answers) as url:
        ddf = read_tfrecord(f"{url}/", schema={"n": "int64"})
        answers["/a.tfrecord"] = status
        with pytest.raises(TFRecordError, match=problem):
            ddf.compute(scheduler="sync")


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(("seconds", "times"), [(120.0, 5), (0.0, 1)])
def test_a_range_is_not_requested_again_for_longer_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, times: int
) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    monkeypatch.setattr(range_requests, "_REPEATED_SECONDS", seconds)
    with web_server(tmp_path) as web:
        web.cut = 10
        store = Store.at(f"{web.url}/")
        with pytest.raises(TFRecordError, match="/a: "):
            store.read_ranges([ByteRange(f"{web.url}/a", 0, 100)])
        assert [method for method, _, _ in web.asked].count("GET") == times


@pytest.mark.parametrize(("status", "passes"), [(404, False), (429, True), (503, True)])
def test_an_answer_is_judged_without_a_deprecation_warning(status: int, passes: bool) -> None:
    error = ClientResponseError(cast(Any, None), (), status=status)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_passing(error) == passes
