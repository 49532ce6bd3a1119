"""Which files a path means, on a local disk, in memory and over HTTP.

Modules: dataset.listing, storage.paths, storage.uploading, storage.failures, files.file_list,
storage.location, storage.found_files.
"""

import os
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import oracle
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from servers import page_server

from dask_tfrecord import read_tfrecord
from dask_tfrecord.dataset.listing import list_directory, list_files
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.storage.store import Store

TREE = [
    "b.tfrecord",
    "a.tfrecord",
    "c.tfrecord.gz",
    "_SUCCESS",
    ".b.tfrecord.crc",
    "_temporary/0/part-0.tfrecord",
    "_tfrecord/00000001.parquet",
    "_year=2026/d.tfrecord",
    "country=US/_partial.tfrecord",
    "country=US/e.tfrecord",
]
VISIBLE = ["_year=2026/d.tfrecord", "a.tfrecord", "b.tfrecord", "c.tfrecord.gz", "country=US/e.tfrecord"]


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    root = f"{tmp_path}/_data" if request.param == "local" else "memory://bucket/_data"
    store = Store.at(root)
    for name in TREE:
        with store.create(store.join(name)) as file:
            file.write(name.encode())
    return root


def names(root: str, paths: str | list[str]) -> list[str]:
    store, files, *_ = list_files(paths)
    start = len(Store.at(root).root) + 1
    found = files.infos
    assert all(file.size == len(file.path) - start for file in found)
    assert all(store.fs.isfile(file.path) for file in found)
    return [file.path[start:] for file in found]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["", "/"], VISIBLE),
        (["/*.tfrecord", "/?.tfrecord", "/{b,a}.tfrecord"], ["a.tfrecord", "b.tfrecord"]),
        (["/*"], VISIBLE),
        (["/**/*.tfrecord"], [name for name in VISIBLE if name.endswith("d")]),
        (["/[bc].tfrecord*"], ["b.tfrecord", "c.tfrecord.gz"]),
        (["/country=*"], ["country=US/e.tfrecord"]),
        (["/_temporary/0/*"], ["_temporary/0/part-0.tfrecord"]),
        (["/{c.tfrecord.gz,country={US,PL}/*}"], ["c.tfrecord.gz", "country=US/e.tfrecord"]),
        (["/{a,nothing}.{tfrecord,x}"], ["a.tfrecord"]),
        (["/**/{d,e}.tf*"], ["_year=2026/d.tfrecord", "country=US/e.tfrecord"]),
        (["/[!ab].*"], ["c.tfrecord.gz"]),
        # A file that is spelled out is never hidden
        (["/a.tfrecord"], ["a.tfrecord"]),
        (["/_SUCCESS"], ["_SUCCESS"]),
        (["/_temporary/0/part-0.tfrecord"], ["_temporary/0/part-0.tfrecord"]),
    ],
)
def test_a_path_means_the_visible_files_it_matches(root: str, paths: list[str], expected: list[str]) -> None:
    """A directory means its files at any depth, sorted."""
    store = Store.at(root)
    with store.create(store.join("country=US_$folder$")):  # what Hadoop puts for a directory
        pass
    for path in paths:
        assert names(root, f"{root}{path}") == expected


def test_a_list_keeps_its_order_and_may_mix_directories_globs_and_files(root: str) -> None:
    found = list_files([f"{root}/country=US", f"{root}/[ab].tfrecord", f"{root}/_SUCCESS"])
    start = len(Store.at(root).root) + 1
    expected = ["country=US/e.tfrecord", "a.tfrecord", "b.tfrecord", "_SUCCESS"]
    assert [path[start:] for path in found.files.paths] == expected
    assert [path[start:] for path in found.spelled_out] == ["_SUCCESS"]
    # Only one directory is a base
    assert list_files(root).base == Store.at(root).root
    assert {list_files(one).base for one in ([root], f"{root}/*", f"{root}/a.tfrecord")} == {""}


def test_a_path_object_and_a_link_are_what_they_point_to(tmp_path: Path) -> None:
    for name in ("data", "links"):
        (tmp_path / name).mkdir()
    path = tmp_path / "data" / "a"
    path.write_bytes(b"123")
    of_path = list_files(path).files.infos
    assert of_path == list_files([path]).files.infos == list_files(path.parent).files.infos
    (tmp_path / "links" / "link.tfrecord").symlink_to(path)
    (file,) = list_files(tmp_path / "links").files.infos
    assert file.size == 3


@pytest.mark.parametrize(
    "name", ["a[1].tfrecord", "a{1,2}.tfrecord", "a*", "a?", "what[0-9]", "{a,b}", "a{", "}a,b{"]
)
def test_a_name_with_any_sign_of_a_glob_is_found_as_it_is(tmp_path: Path, name: str) -> None:
    for other in ("a", "b", "a1.tfrecord", name):
        (tmp_path / other).write_bytes(b"")
    assert list_files(tmp_path / name).files.paths == [f"{tmp_path}/{name}"]
    (tmp_path / "dir" / name).mkdir(parents=True)
    (tmp_path / "dir" / name / "x").write_bytes(b"")
    assert list_files(tmp_path / "dir" / name).files.paths == [f"{tmp_path}/dir/{name}/x"]


# --- over HTTP, where only pages of links tell what is there -----------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    for name in (*TREE, "day=1/f.tfrecord"):
        path = tmp_path / "web" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=f"{tmp_path}/web")) as found:
        thread = Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


def urls(server: str, paths: Any) -> list[str]:
    return [unquote(path.removeprefix(f"{server}/")) for path in list_files(paths).files.paths]


def test_pages_of_links_files_and_globs_over_http(server: str) -> None:
    for end in ("", "/"):
        assert urls(server, f"{server}/country=US{end}") == ["country=US/e.tfrecord"]
        assert list_files(f"{server}/country=US{end}").base
    assert sorted(urls(server, f"{server}/")) == sorted([*VISIBLE, "day=1/f.tfrecord"])
    (file,) = list_files(f"{server}/a.tfrecord").files.infos
    assert (file.path, file.size) == (f"{server}/a.tfrecord", len("a.tfrecord"))
    names = ["c.tfrecord.gz", "a.tfrecord", "country=US/e.tfrecord"]
    assert urls(server, [f"{server}/{name}" for name in names]) == names
    assert urls(server, f"{server}/*.tfrecord") == ["a.tfrecord", "b.tfrecord"]
    # A query is a part of an address, and is not shown
    assert urls(server, f"{server}/a.tfrecord?signature=secret") == ["a.tfrecord?signature=secret"]
    with pytest.raises(FileNotFoundError, match="nothing: no visible") as caught:
        list_files(f"{server}/nothing?signature=secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", ["a b", "x%3Dy%2Fz%25", "日本"])
def test_directories_on_a_server_make_columns(server: str, tmp_path: Path, value: str) -> None:
    directory = tmp_path / "web" / "hive" / f"key={value}"
    directory.mkdir(parents=True)
    (directory / "a.tfrecord").write_bytes(oracle.features_file([{"n": ("int64", [1])}]))
    frame = read_tfrecord(f"{server}/hive/").compute(scheduler="sync")
    assert frame.to_dict("list") == {"n": [1], "key": [unquote(value)]}


@pytest.mark.parametrize("path", ["", "/", "/data", "/data/", "/data/*.tfrecord", "/a.tfrecord?key=hunter2"])
def test_a_refused_connection_is_not_an_empty_directory(path: str) -> None:
    problem = r"the request to the server failed|the store cannot be reached at 127.0.0.1:1"
    with pytest.raises(TFRecordError, match=problem) as caught:
        read_tfrecord(f"http://127.0.0.1:1{path}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_server_that_refuses_is_not_an_empty_directory(tmp_path: Path, status: int) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"")
    with page_server(tmp_path, status={"/a.tfrecord": status, "/sub/": status}) as url:
        with pytest.raises(TFRecordError, match=f"the request to the server failed.*{status}"):
            read_tfrecord(f"{url}/a.tfrecord")
        (tmp_path / "sub").mkdir()
        for path in ("/", "/**"):
            with pytest.raises(Exception, match=str(status)):
                read_tfrecord(f"{url}{path}")
        with pytest.raises(FileNotFoundError, match="no such file"):
            read_tfrecord(f"{url}/b.tfrecord")


@pytest.mark.parametrize("path", ["", [""], ["a", None], [1], [["a"]]])
def test_what_is_no_path_is_refused(path: Any) -> None:
    for function in (list_files, read_tfrecord):
        with pytest.raises(TFRecordError, match="is not a path"):
            function(path)


def test_paths_that_match_nothing_raise_and_say_what_was_asked(root: str, tmp_path: Path) -> None:
    for name in ("nothing", "nothing/*", "*.parquet", "_temporary/*.tfrecord"):
        reason = "no visible file matches" if "*" in name else "no such file"
        with pytest.raises(FileNotFoundError, match=f"_data/{name}: {reason}".replace("*", r"\*")):
            list_files(f"{root}/{name}")
    with pytest.raises(FileNotFoundError, match="_data/nothing"):
        list_files([f"{root}/a.tfrecord", f"{root}/nothing"])
    with pytest.raises(TFRecordError, match="empty"):
        list_files([])
    other = "memory://bucket/x" if root.startswith("/") else str(tmp_path)
    with pytest.raises(TFRecordError, match="one filesystem"):
        list_files([f"{root}/a.tfrecord", other])
    assert not len(list_directory(Store.at(f"{root}/nothing")))


def test_a_rewritten_file_has_another_stamp(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"1")
    (before,) = list_files(path).files.infos
    path.write_bytes(b"2")
    os.utime(path, (1, 1))
    (after,) = list_files(path).files.infos
    assert before.size == after.size
    assert before != after
