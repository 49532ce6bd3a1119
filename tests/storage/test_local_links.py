"""Links, pipes and unreadable directories: no row is lost or doubled silently, and no read hangs.

Modules: storage.local_disk.
"""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import operations
import oracle
import pandas as pd
import pytest

import dask_tfrecord
from dask_tfrecord import DestinationError, TFRecordError, exists, read_tfrecord, to_tfrecord
from dask_tfrecord.storage.local_disk import LinkFollowingDisk

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with a file and a subdirectory, which holds another file."""
    row(tmp_path / "outside.tfrecord", 9)
    row(tmp_path / "data" / "a.tfrecord", 0)
    row(tmp_path / "data" / "sub" / "deep" / "b.tfrecord", 1)
    return tmp_path / "data"


def row(path: Path, n: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(oracle.features_file([{"n": ("int64", [n])}]))


def numbers(path: Any, **options: Any) -> list[int]:
    return sorted(read_tfrecord(path, hive=False, **options)["n"].compute())


LINKS = {
    "to the parent": {"up": ".."},
    "to above the parent": {"up": "../.."},
    "to the root of the disk": {"up": "/"},
    "to itself": {"self": "."},
    "from below to the root": {"sub/deep/up": "../.."},
    "from below to above": {"sub/up": "../.."},
    "to a directory beside it": {"again": "sub"},
    "to a directory below one beside it": {"again": "sub/deep"},
    "two links to one": {"one": "sub/deep", "two": "sub"},
    "a chain": {"one": "two", "two": "sub"},
    "in a circle": {"sub/to_other": "../other", "other/to_sub": "../sub"},
    "in a circle through a third": {"x/one": "../y", "y/one": "../z", "z/one": "../x", "z/sub": "../sub"},
}


def link(root: Path, links: dict[str, str]) -> None:
    for name, target in links.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).symlink_to(target)


@pytest.mark.parametrize("links", LINKS.values(), ids=LINKS)
def test_links_to_directories_double_no_row(root: Path, links: dict[str, str]) -> None:
    link(root, links)
    new = dd.from_pandas(pd.DataFrame({"n": [5]}), npartitions=1)
    with pytest.raises(DestinationError, match=r"the link .* leads to another directory"):
        to_tfrecord(new, root, overwrite=True)
    assert numbers(root) == numbers([root]) == [0, 1]
    assert numbers(f"{root}/**") == numbers(f"{root}/*") == [0, 1]
    assert len(dask_tfrecord.open_dataset(root).verify()) == 2
    assert exists(root)
    assert dask_tfrecord.open_dataset(root).add_snapshot().rows == 2
    assert numbers(root) == dask_tfrecord.open_dataset(root).take([0, 1])["n"].to_pylist() == [0, 1]
    to_tfrecord(read_tfrecord(root), root, append=True)
    assert numbers(root) == [0, 0, 1, 1]
    dask_tfrecord.open_dataset(root).cleanup(older_than="0s")
    assert numbers(root) == [0, 0, 1, 1]


def test_a_glob_goes_through_a_partition_directory_on_another_disk(tmp_path: Path) -> None:
    row(tmp_path / "data" / "day=1" / "a.tfrecord", 1)
    row(tmp_path / "disk2" / "a.tfrecord", 2)
    link(tmp_path / "data", {"day=2": "../disk2"})
    expected = {"n": [1, 2], "day": [1, 2]}
    for path in ("data", "data/*", "data/day=*", "data/*/*.tfrecord", "data/day=[12]/*", "data/**"):
        assert read_tfrecord(f"{tmp_path}/{path}").compute().to_dict("list") == expected


def test_a_link_that_makes_another_partition_key_makes_rows(tmp_path: Path) -> None:
    row(tmp_path / "country=GB" / "a.tfrecord", 1)
    link(tmp_path, {"country=UK": "country=GB"})
    frame = read_tfrecord(tmp_path).compute()
    assert frame.to_dict("list") == {"n": [1, 1], "country": ["GB", "UK"]}


def test_links_to_one_file_are_files(root: Path) -> None:
    """A second link to a file is a second file, and gives its rows again, as in all other readers."""
    link(root, {"c.tfrecord": "a.tfrecord", "d.tfrecord": "../outside.tfrecord"})
    os.link(root / "a.tfrecord", root / "e.tfrecord")
    assert numbers(root) == [0, 0, 0, 1, 9]


@pytest.mark.parametrize("target", ["nothing", "../nothing/deep", "c.tfrecord", "a.tfrecord/x"])
def test_a_link_that_leads_to_nothing_raises(root: Path, target: str) -> None:
    link(root, {"c.tfrecord": target})
    for path in (root, f"{root}/*"):
        with pytest.raises(
            FileNotFoundError, match=f"{root}/c.tfrecord: the target of the link does not exist"
        ):
            read_tfrecord(path)
    assert exists(root)
    (root / "c.tfrecord").unlink()
    link(root, {"_c.tfrecord": target})
    assert numbers(root) == [0, 1]


def test_a_listed_file_that_became_a_link_to_nothing_is_missing(root: Path) -> None:
    dask_tfrecord.open_dataset(root).add_snapshot()
    (root / "a.tfrecord").unlink()
    link(root, {"a.tfrecord": "nothing"})
    with pytest.raises(TFRecordError, match="the file is missing"):
        read_tfrecord(root)


@contextmanager
def irregular(path: Path, kind: str) -> Iterator[None]:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a pipe":
        os.mkfifo(path.parent / ".pipe")
        path.symlink_to(path.parent / ".pipe")
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as found:
        if kind == "socket":
            here = os.open(path.parent, os.O_RDONLY)
            found.bind(f"/proc/self/fd/{here}/{path.name}")  # its whole path may be too long
            os.close(here)
        yield


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "link to a device", "socket"])
def test_what_is_no_regular_file_is_passed_over_and_refused_by_name(root: Path, kind: str) -> None:
    path = root / "c.tfrecord"
    with irregular(path, kind):
        assert numbers(root) == numbers(f"{root}/*") == numbers(f"{root}/**") == [0, 1]
        assert len(dask_tfrecord.open_dataset(root).verify()) == 2
        assert dask_tfrecord.open_dataset(root).add_snapshot().rows == 2
        assert numbers(root) == [0, 1]
        to_tfrecord(read_tfrecord(root), root, append=True)
        dask_tfrecord.open_dataset(root).cleanup(older_than="0s")
        assert numbers(root) == [0, 0, 1, 1]
        for wanted in (path, [path], [root / "a.tfrecord", path]):
            with pytest.raises(TFRecordError, match=f"{path}: is a pipe, a socket or a device"):
                read_tfrecord(wanted)
        with pytest.raises(FileNotFoundError):
            read_tfrecord(f"{root}/c.*")


def test_a_directory_with_nothing_but_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not exists(tmp_path)
    to_tfrecord(dd.from_pandas(pd.DataFrame({"n": [1]}), npartitions=1), tmp_path)
    assert numbers(tmp_path) == [1]


@pytest.mark.parametrize("name", ["", "/*", "/**", "/*/*/*"])
def test_a_directory_that_cannot_be_listed_raises(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Otherwise its files would be missing silently."""
    listing = LinkFollowingDisk.ls

    def denied(fs: Any, path: str, *args: Any, **options: Any) -> Any:
        if str(path).endswith("/deep"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listing(fs, path, *args, **options)

    monkeypatch.setattr(LinkFollowingDisk, "ls", denied)
    for function in (read_tfrecord, operations.verify):
        with pytest.raises(PermissionError, match="sub/deep"):
            function(f"{root}{name}")
    assert numbers(f"{root}/*.tfrecord") == [0]
