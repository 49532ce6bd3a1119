"""What a write refuses, what an overwrite removes and refuses to remove, and where it refuses to run.

Modules: dataset.write.destination.
"""

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pytest

from dask_tfrecord import DestinationError, TFRecordError, index, read_tfrecord, to_tfrecord
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

MODES: list[dict[str, Any]] = [{"overwrite": True}, {"overwrite": "partitions", "partition_on": "key"}]


def collection(*numbers: int) -> dd.DataFrame:
    frame = pd.DataFrame({"key": ["a"] * len(numbers), "n": list(numbers)})
    return dd.from_pandas(frame, npartitions=1)


def uncomputable() -> dd.DataFrame:
    """A collection whose partitions must not be computed."""

    def fail(part: pd.DataFrame) -> pd.DataFrame:
        raise AssertionError("the partition was computed")

    ddf = collection(1)
    return ddf.map_partitions(fail, meta=ddf._meta)


def tfrecord(n: int = 1) -> bytes:
    return oracle.features_file([{"n": ("int64", [n])}])


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def numbers(place: Path | str) -> list[int]:
    return sorted(read_tfrecord(place)["n"].compute().tolist())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"append": True, "overwrite": True}, "pass only one of the two keywords"),
        ({"append": "yes"}, "unknown append 'yes'"),
        ({"overwrite": "some"}, "unknown overwrite 'some'"),
        ({"overwrite": "partitions"}, "requires partition columns; pass partition_on="),
    ],
)
def test_modes_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(TFRecordError, match=problem):
        to_tfrecord(uncomputable(), tmp_path / "a", **options)
    assert not (tmp_path / "a").exists()


FOREIGN: dict[str, bytes] = {
    "thesis.docx": b"PK\x03\x04" + bytes(100),
    "analysis.ipynb": b'{"cells": []}',
    "notes.txt": b"do not lose me",
    "short": b"x",
    "empty.py": b"",
    "model.bin": bytes(1000),
    "archive.gz": gzip.compress(b"a letter to my grandmother"),
    "cut.gz": gzip.compress(tfrecord())[:15],
    "data.parquet": b"PAR1" + bytes(100),
    "named.tfrecord": b"this is no record at all",
    "events.out.tfevents.1700000000.host.1.0": tfrecord(),
    "deep/down/paper.tex": b"\\documentclass{article}",
}


@pytest.mark.parametrize(
    ("name", "dataset", "mode"),
    [(name, [None, "written", "indexed"][at % 3], MODES[at % 2]) for at, name in enumerate(FOREIGN)],
)
def test_a_file_that_is_no_tfrecord_is_refused_by_name_and_nothing_is_computed(
    tmp_path: Path, name: str, dataset: str | None, mode: dict[str, Any]
) -> None:
    (tmp_path / "key=a").mkdir()
    if dataset == "written":
        to_tfrecord(collection(1), tmp_path, partition_on="key")
    else:
        (tmp_path / "key=a" / "a.tfrecord").write_bytes(tfrecord())
    if dataset == "indexed":
        index(tmp_path)
    (tmp_path / "key=a" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "key=a" / name).write_bytes(FOREIGN[name])
    before = tree(tmp_path)
    with pytest.raises(DestinationError, match=f"removes only TFRecord files.*'key=a/{name}'"):
        to_tfrecord(uncomputable(), tmp_path, **mode)
    assert tree(tmp_path) == before


def test_an_empty_file_that_is_not_called_like_tfrecord_is_refused_by_name(tmp_path: Path) -> None:
    names = ["tfrecords.md", "part-list.txt", "train-00-of-01.csv", "model.data-0-00-of-01", "a.tfrecord.txt"]
    for name in names:
        (tmp_path / name).touch()
        with pytest.raises(DestinationError, match=f"removes only TFRecord files.*'{name}'"):
            to_tfrecord(uncomputable(), tmp_path, overwrite=True)
        (tmp_path / name).unlink()
    for number in range(12):
        (tmp_path / f"{number:02d}.txt").write_text("text")
    with pytest.raises(DestinationError, match=r"'00.txt', .*'04.txt' and 7 more; move") as caught:
        to_tfrecord(uncomputable(), tmp_path, overwrite=True)
    assert caught.value.path == str(tmp_path)
    assert len(tree(tmp_path)) == 12


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zlib.compress, bz2.compress, lzma.compress])
def test_tfrecord_files_of_others_are_removed_whatever_their_compression(
    place: str, compress: Callable[[bytes], bytes]
) -> None:
    """The files are whole, cut off, or empty."""
    store = Store.at(place)
    contents = {"train-00000-of-00002": tfrecord(), "deep/a.tfrecords": tfrecord()[:20], "part-r-00000": b""}
    for name, content in contents.items():
        store.fs.makedirs(store.join(name).rpartition("/")[0], exist_ok=True)
        store.fs.pipe_file(store.join(name), compress(content))
    to_tfrecord(collection(7), place, overwrite=True)
    assert numbers(place) == [7]
    assert len(store.fs.find(store.root)) == 3
    assert not store.fs.exists(store.join("deep"))


def test_hidden_files_stay(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path)
    for name in (".git/config", ".hidden", "_notes", "key=a/.part-0.crc", "_checkpoints/model"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    to_tfrecord(collection(2), tmp_path, overwrite=True)
    assert sum(content == b"mine" for content in tree(tmp_path).values()) == 5
    assert numbers(tmp_path) == [2]


@pytest.mark.parametrize(
    ("name", "dataset"),
    [("notes.txt", True), ("late.tfrecord", False), ("key=a/late.tfrecord", True), ("late.gz", False)],
)
def test_a_file_that_appears_after_the_plan_stays(tmp_path: Path, name: str, dataset: bool) -> None:
    """A TFRecord file that is there before the plan is replaced, also beside a dataset."""
    if dataset:
        to_tfrecord(collection(1), tmp_path)
    (tmp_path / "old.tfrecord").write_bytes(tfrecord())
    lazy = to_tfrecord(collection(2), tmp_path, overwrite=True, compute=False)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(tfrecord())
    snapshot = lazy.compute()
    files = {file.path for file in snapshot.files}
    assert {*tree(tmp_path)} == {name, "_SUCCESS", f"_tfrecord/{snapshot.number:08d}.parquet"} | files


def test_a_file_that_appears_in_a_partition_after_the_plan_becomes_a_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "key=a").mkdir()
    (tmp_path / "key=a" / "old.tfrecord").write_bytes(tfrecord(1))
    lazy = to_tfrecord(collection(2), tmp_path, overwrite="partitions", partition_on="key", compute=False)
    (tmp_path / "key=a" / "late.tfrecord").write_bytes(tfrecord(3))
    lazy.compute()
    assert numbers(tmp_path) == [2, 3]
    assert not (tmp_path / "key=a" / "old.tfrecord").exists()


def test_the_snapshot_of_another_dataset_behind_a_link_is_not_removed(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path / "other")
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "_tfrecord").symlink_to(tmp_path / "other" / "_tfrecord")
    with pytest.raises(DestinationError, match=r"_tfrecord: the directory is a link"):
        to_tfrecord(uncomputable(), tmp_path / "place", overwrite=True)
    assert numbers(tmp_path / "other") == [1]


def test_a_damaged_snapshot_does_not_stand_in_the_way(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path)
    (tmp_path / "_tfrecord" / "00000001.parquet").write_bytes(b"damaged")
    to_tfrecord(collection(2), tmp_path, overwrite=True)
    assert numbers(tmp_path) == [2]
    assert len(tree(tmp_path)) == 3


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory that contains the current directory."""
    home = tmp_path / "users" / "me"
    (home / "projects" / "here" / "below").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "projects" / "here")
    (tmp_path / "link").symlink_to(home)
    return home


CURRENT, ABOVE = "the current directory", "a directory that contains the current directory"
HOME, ROOT = "the home directory", "the root of a filesystem"


@pytest.mark.parametrize(
    ("path", "role"),
    [
        (".", CURRENT),
        ("./", CURRENT),
        ("below/..", CURRENT),
        ("../here", CURRENT),
        ("..", ABOVE),
        ("~", HOME),
        ("~/", HOME),
        ("~/projects/", ABOVE),
        ("~/..", "a directory that contains the .* directory"),
        ("{root}/link", HOME),
        ("file://{root}/link/", HOME),
        ("file://{root}/users", "a directory that contains the .* directory"),
        ("local://{root}/users/me", HOME),
        ("memory://", ROOT),
        ("memory:///", ROOT),
    ],
)
def test_precious_directories_are_never_overwritten(tmp_path: Path, home: Path, path: str, role: str) -> None:
    for mode in MODES:
        with pytest.raises(DestinationError, match=f"{role} is never overwritten"):
            to_tfrecord(uncomputable(), path.format(root=tmp_path), **mode)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("path", ["/", "//", "file:///", "/tmp/.."])
def test_nothing_is_written_to_the_root_of_the_disk(path: str) -> None:
    for mode in (*MODES, {}, {"append": True}):
        with pytest.raises(DestinationError, match="the root of a filesystem cannot be a dataset"):
            to_tfrecord(uncomputable(), path, **mode)


def test_directories_beside_and_below_may_be_overwritten(tmp_path: Path, home: Path) -> None:
    for path in ("below", "./below/", "~/data", "~/projects/two", f"{tmp_path}/users2", "../new"):
        for n in (1, 2):
            to_tfrecord(collection(n), path, overwrite=True)
        assert numbers(path) == [2]


def test_the_current_directory_may_be_written_to_and_added_to(home: Path) -> None:
    """The advice never is to overwrite it."""
    to_tfrecord(collection(1), ".")
    with pytest.raises(DestinationError, match="pass append=True") as caught:
        to_tfrecord(uncomputable(), ".")
    assert "overwrite" not in str(caught.value)
    to_tfrecord(collection(2), ".", append=True)
    assert numbers(".") == [1, 2]


def test_a_current_directory_that_is_gone_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    to_tfrecord(collection(1), tmp_path / "place", overwrite=True)
    assert numbers(tmp_path / "place") == [1]
    monkeypatch.chdir(tmp_path)


def test_the_advice_counts_the_files_and_bytes_that_an_overwrite_would_remove(place: str) -> None:
    store = Store.at(place)
    for name in ("a.tfrecord", "deep/b.tfrecord"):
        store.fs.makedirs(store.join(name).rpartition("/")[0], exist_ok=True)
        store.fs.pipe_file(store.join(name), tfrecord())
    size = 2 * len(tfrecord())
    with pytest.raises(DestinationError, match=rf"2 files with {size:,} bytes.*overwrite=True to remove"):
        to_tfrecord(uncomputable(), place)
    to_tfrecord(collection(1), place, overwrite=True)
    with pytest.raises(DestinationError, match="append=True to add to it, or overwrite=True"):
        to_tfrecord(uncomputable(), place)


@pytest.mark.parametrize("name", ["thesis.docx", "named.tfrecord", "cut.gz", "deep/down/paper.tex"])
def test_the_advice_never_is_to_remove_files_that_are_no_tfrecord(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(FOREIGN[name])
    with pytest.raises(DestinationError, match=f"already holds files, such as '{name}'") as caught:
        to_tfrecord(uncomputable(), tmp_path)
    assert "overwrite" not in str(caught.value)


def test_the_advice_never_is_to_overwrite_files_of_others_in_the_current_directory(home: Path) -> None:
    Path("a.tfrecord").write_bytes(tfrecord())
    with pytest.raises(DestinationError, match="pass append=True") as caught:
        to_tfrecord(uncomputable(), ".")
    assert "overwrite" not in str(caught.value)
