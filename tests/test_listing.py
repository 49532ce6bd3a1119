"""Which files a path means, on a local disk and in memory."""

import os
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dask_tfrecord.dataset.listing import list_directory, list_files
from dask_tfrecord.dataset.store import Store
from dask_tfrecord.errors import TFRecordError

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
    store, files = list_files(paths)
    start = len(Store.at(root).root) + 1
    assert all(file.size == len(file.path) - start for file in files)
    assert all(store.fs.isfile(file.path) for file in files)
    return [file.path[start:] for file in files]


def test_a_directory_means_its_visible_files_at_any_depth_sorted(root: str) -> None:
    assert names(root, root) == VISIBLE
    assert names(root, root + "/") == VISIBLE


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.tfrecord", ["a.tfrecord", "b.tfrecord"]),
        ("*", VISIBLE),
        ("**/*.tfrecord", [name for name in VISIBLE if name.endswith("d")]),
        ("[bc].tfrecord*", ["b.tfrecord", "c.tfrecord.gz"]),
        ("?.tfrecord", ["a.tfrecord", "b.tfrecord"]),
        ("country=*", ["country=US/e.tfrecord"]),
        ("_temporary/0/*", ["_temporary/0/part-0.tfrecord"]),
    ],
)
def test_a_glob_means_the_visible_files_it_matches(root: str, pattern: str, expected: list[str]) -> None:
    assert names(root, f"{root}/{pattern}") == expected


@pytest.mark.parametrize("name", ["a.tfrecord", "_SUCCESS", "_temporary/0/part-0.tfrecord"])
def test_a_file_that_is_spelled_out_is_never_hidden(root: str, name: str) -> None:
    assert names(root, f"{root}/{name}") == [name]


def test_a_list_keeps_its_order(root: str) -> None:
    paths = [f"{root}/{name}" for name in ("c.tfrecord.gz", "[ab].tfrecord", "country=US")]
    expected = ["c.tfrecord.gz", "a.tfrecord", "b.tfrecord", "country=US/e.tfrecord"]
    assert names(root, paths) == expected


def test_a_path_object_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert list_files(tmp_path / "a")[1] == list_files([tmp_path / "a"])[1] == list_files(tmp_path)[1]


def test_a_name_with_the_signs_of_a_glob_is_found_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a[1].tfrecord").write_bytes(b"")
    (tmp_path / "a1.tfrecord").write_bytes(b"")
    ((file,)) = list_files(f"{tmp_path}/a[1].tfrecord")[1]
    assert file.path == f"{tmp_path}/a[1].tfrecord"


def test_a_link_is_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"123")
    (tmp_path / "data").mkdir()
    os.symlink(tmp_path / "target", tmp_path / "data" / "link.tfrecord")
    ((file,)) = list_files(tmp_path / "data")[1]
    assert file.size == 3


@pytest.mark.parametrize("name", ["nothing", "nothing/*", "*.parquet", "_temporary/*.tfrecord"])
def test_what_matches_nothing_raises_and_says_what_was_asked(root: str, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"_data/{name}: no visible files".replace("*", r"\*")):
        list_files(f"{root}/{name}")


def test_one_path_of_a_list_that_matches_nothing_raises(root: str) -> None:
    with pytest.raises(FileNotFoundError, match="_data/nothing"):
        list_files([f"{root}/a.tfrecord", f"{root}/nothing"])


def test_an_empty_list_raises() -> None:
    with pytest.raises(TFRecordError, match="empty"):
        list_files([])


def test_paths_on_two_filesystems_raise(root: str, tmp_path: Path) -> None:
    other = "memory://bucket/x" if root.startswith("/") else str(tmp_path)
    with pytest.raises(TFRecordError, match="one filesystem"):
        list_files([f"{root}/a.tfrecord", other])


def test_a_directory_that_is_not_there_holds_nothing(root: str) -> None:
    assert list_directory(Store.at(f"{root}/nothing")) == []


def test_a_rewritten_file_has_another_stamp(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"1")
    ((before,)) = list_files(path)[1]
    path.write_bytes(b"2")
    os.utime(path, (1, 1))
    ((after,)) = list_files(path)[1]
    assert before.size == after.size
    assert before != after
