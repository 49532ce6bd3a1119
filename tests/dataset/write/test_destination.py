"""What a write refuses, what an overwrite removes, where it does not run, and where the files of a write lie.

A directory belongs to one dataset, and two partition values to two directories, also if the filesystem does
not distinguish names that differ in case or Unicode form.

Modules: dataset.write.destination, dataset.write.transaction, dataset.partitioning, files.entry, api.write.
"""

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask.dataframe as dd
import numpy as np
import operations
import oracle
import pandas as pd
import pyarrow as pa
import pytest
import s3fs
from folding_names import FoldingNames
from servers import s3_server
from small_frames import countries, part_names

import dask_tfrecord
from dask_tfrecord import DestinationError, TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.codec.codecs import CODECS
from dask_tfrecord.dataset.names import KEPT
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.destination import parent_dataset
from dask_tfrecord.feed.stream import write_feather
from dask_tfrecord.storage.store import Store

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
    ("name", "dataset"),
    [(name, [None, "written", "indexed"][at % 3]) for at, name in enumerate(FOREIGN)],
)
def test_a_file_that_is_no_tfrecord_is_refused_by_name_and_nothing_is_computed(
    tmp_path: Path, name: str, dataset: str | None
) -> None:
    (tmp_path / "key=a").mkdir()
    if dataset == "written":
        to_tfrecord(collection(1), tmp_path, partition_on="key")
    else:
        (tmp_path / "key=a" / "a.tfrecord").write_bytes(tfrecord())
    if dataset == "indexed":
        open_dataset(tmp_path).add_snapshot()
    (tmp_path / "key=a" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "key=a" / name).write_bytes(FOREIGN[name])
    before = tree(tmp_path)
    with pytest.raises(DestinationError, match=f"removes only TFRecord files.*'key=a/{name}'"):
        to_tfrecord(uncomputable(), tmp_path, overwrite=True)
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


@pytest.mark.parametrize("suffix", ["", *(codec.suffix for codec in CODECS.values())])
def test_a_file_without_records_is_known_by_its_name_with_the_suffix_of_every_codec(
    tmp_path: Path, suffix: str
) -> None:
    for name in ("a.tfrecord", "part-r-00000", "train-00000-of-00002"):
        (tmp_path / f"{name}{suffix}").touch()
    to_tfrecord(collection(7), tmp_path, overwrite=True)
    assert numbers(tmp_path) == [7]
    assert len([name for name in tree(tmp_path) if not name.startswith("_")]) == 1


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
    lazy.compute()
    snapshot = Snapshot.open(tmp_path)
    files = {file.path for file in snapshot.files}
    assert {*tree(tmp_path)} == {name, "_SUCCESS", f"_tfrecord/{snapshot.number:08d}.parquet"} | files


def test_the_snapshot_of_another_dataset_behind_a_link_is_not_removed(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path / "other")
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "_tfrecord").symlink_to(tmp_path / "other" / "_tfrecord")
    with pytest.raises(DestinationError, match=r"_tfrecord: the directory is a link"):
        to_tfrecord(uncomputable(), tmp_path / "place", overwrite=True)
    assert numbers(tmp_path / "other") == [1]


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
        ("below/..", CURRENT),
        ("..", ABOVE),
        ("~", HOME),
        ("~/projects/", ABOVE),
        ("~/..", "a directory that contains the .* directory"),
        ("{root}/link", HOME),
        ("file://{root}/link/", HOME),
        ("file://{root}/users", "a directory that contains the .* directory"),
        ("local://{root}/users/me", HOME),
        ("memory://", ROOT),
    ],
)
def test_precious_directories_are_never_overwritten(tmp_path: Path, home: Path, path: str, role: str) -> None:
    with pytest.raises(DestinationError, match=f"{role} is never overwritten"):
        to_tfrecord(uncomputable(), path.format(root=tmp_path), overwrite=True)
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
    with pytest.raises(DestinationError, match=r"add_snapshot\(\) first") as caught:
        to_tfrecord(uncomputable(), ".")
    assert "overwrite" not in str(caught.value)


@pytest.mark.parametrize(
    "mode", [{"append": True}, {"overwrite": "partitions", "partition_on": "key"}, {"writer": True}], ids=str
)
@pytest.mark.filterwarnings("ignore:.*left out what is not a TFRecord file")
def test_rows_are_added_to_files_of_other_tools_after_add_snapshot(place: str, mode: dict[str, Any]) -> None:
    """The error counts the files and gives the call."""
    store = Store.at(place)
    store.fs.makedirs(store.join("key=a"))
    store.fs.pipe_file(store.join("key=a/a.tfrecord"), tfrecord())
    store.fs.pipe_file(store.join("label.labels.txt"), b"cat\n")

    def write(rows: dd.DataFrame) -> None:
        if "writer" in mode:
            with dask_tfrecord.Writer(place) as writer:
                writer.write(rows.compute())
        else:
            to_tfrecord(rows, place, **{"partition_on": "key", **mode})

    with pytest.raises(DestinationError, match=r"a file with 30 bytes.*add_snapshot\(\) first") as caught:
        write(uncomputable())
    [call] = caught.value.calls
    getattr(open_dataset(call.path, **call.keywords), call.function)()
    write(collection(2))
    assert numbers(place) == ([2] if "overwrite" in mode else [1, 2])
    assert store.fs.exists(store.join("label.labels.txt"))


def sales(*numbers: int) -> dd.DataFrame:
    frame = pd.DataFrame({"key": [n % 2 for n in numbers], "n": list(numbers)})
    return dd.from_pandas(frame, npartitions=1)


def numbers(place: Path | str) -> list[int]:
    return sorted(read_tfrecord(place)["n"].compute().tolist())


WRITES: dict[str, Callable[[str], Any]] = {
    "create": lambda path: to_tfrecord(sales(9)[["n"]], path),
    "append": lambda path: to_tfrecord(sales(9)[["n"]], path, append=True),
    "overwrite": lambda path: to_tfrecord(sales(9)[["n"]], path, overwrite=True),
    "partitions": lambda path: to_tfrecord(sales(9), path, overwrite="partitions", partition_on="key"),
    "lazy": lambda path: to_tfrecord(sales(9)[["n"]], path, overwrite=True, compute=False),
    "index": operations.add_snapshot,
    "cleanup": lambda path: open_dataset(path).cleanup(older_than="0 s"),
    "export": lambda path: dask_tfrecord.open_dataset(path).export("idx"),
    "quarantine": lambda path: read_tfrecord(
        path.partition("/sales")[0] + "/files",
        on_corrupt="quarantine",
        read_options={"quarantine_path": path},
    ),
    "feather": lambda path: write_feather(sales(1), f"{path}/x.feather"),
}

OPENING = ("index", "cleanup", "export")  # what needs a directory that exists


@pytest.mark.parametrize("write", WRITES)
def test_a_write_inside_a_dataset_is_refused_by_its_name_and_changes_nothing(
    tmp_path: Path, write: str
) -> None:
    root = f"{tmp_path}/sales"
    to_tfrecord(sales(1, 2), root, partition_on="key")
    to_tfrecord(sales(1), tmp_path / "files")
    for below in ("key=0", "key=0/deep/er"):
        if write in OPENING:
            Path(root, below).mkdir(parents=True, exist_ok=True)
        with pytest.raises(DestinationError, match=r"inside the dataset '.*/sales'.*'.*/sales(/_files)?'"):
            WRITES[write](f"{root}/{below}")
    assert numbers(root) == [1, 2]
    assert Snapshot.open(root).records == 2


@pytest.mark.parametrize(
    ("write", "call", "expected"),
    [
        ("append", {"append": True}, [1, 2, 4, 6]),
        ("overwrite", {"overwrite": "partitions"}, [1, 6]),
        ("create", {"append": True}, [1, 2, 4, 6]),
    ],
)
def test_the_call_that_the_refusal_advises_does_what_was_meant(
    tmp_path: Path, write: str, call: dict[str, Any], expected: list[int]
) -> None:
    to_tfrecord(sales(1, 2, 4), tmp_path, partition_on="key")
    with pytest.raises(DestinationError) as caught:
        WRITES[write](f"{tmp_path}/key=0")
    advised = caught.value.calls[0]
    assert (advised.path, advised.keywords) == (str(tmp_path), {"partition_on": ["key"], **call})
    assert str(advised) in str(caught.value)
    to_tfrecord(sales(6), advised.path, **advised.keywords)
    assert numbers(tmp_path) == expected


def test_a_dataset_is_found_above_relative_paths_and_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    to_tfrecord(sales(1, 2), "sales", partition_on="key")
    (tmp_path / "link").symlink_to("sales")
    (tmp_path / "into").symlink_to("sales/key=0")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sales" / "key=7").symlink_to(tmp_path / "elsewhere")
    for path in ("sales/key=0", "./sales//key=0/", "link/key=0", "into", "sales/key=7"):
        for write in ("create", "overwrite"):
            with pytest.raises(DestinationError, match="inside the dataset"):
                WRITES[write](path)
    assert os.listdir("elsewhere") == []


def test_hidden_directories_of_a_dataset_and_its_neighbours_may_be_written(place: str) -> None:
    to_tfrecord(sales(1, 2), f"{place}/sales")
    for other in ("sales/_quarantine", "sales/.old/deep", "sales2", "sales=/key=0"):
        to_tfrecord(sales(3), f"{place}/{other}")
    with pytest.raises(DestinationError, match="inside the dataset"):
        to_tfrecord(sales(3), f"{place}/sales/_tfrecord")
    assert numbers(f"{place}/sales") == [1, 2]


def nested(place: str, name: str) -> None:
    """Move a dataset into another one, as a file manager can."""
    to_tfrecord(sales(8)[["n"]], f"{place}-other")
    store = Store.at(place)
    store.fs.mv(f"{store.root}-other", store.join(name), recursive=True)


def test_a_dataset_inside_another_that_does_not_list_its_files_may_be_changed(place: str) -> None:
    to_tfrecord(sales(1, 2), place)
    nested(place, "eval")
    to_tfrecord(sales(9)[["n"]], f"{place}/eval", append=True)
    assert (numbers(place), numbers(f"{place}/eval")) == ([1, 2], [8, 9])
    open_dataset(f"{place}/eval").cleanup(older_than="0 s")
    to_tfrecord(sales(3)[["n"]], f"{place}/eval", overwrite=True)
    assert (numbers(place), numbers(f"{place}/eval")) == ([1, 2], [3])


def test_a_directory_with_a_dataset_below_is_refused_by_the_name_of_that_dataset(place: str) -> None:
    to_tfrecord(sales(1, 2)[["n"]], f"{place}/key=0")
    for write in ("append", "overwrite", "partitions", "index"):
        with pytest.raises(DestinationError, match=r"holds another dataset, 'key=0', .*key=0/_tfrecord"):
            WRITES[write](place)
    assert numbers(f"{place}/key=0") == [1, 2]
    to_tfrecord(sales(1, 2), f"{place}/listed", partition_on="key")
    nested(f"{place}/listed", "key=0/deep")
    with pytest.raises(DestinationError, match="holds another dataset, 'key=0/deep'"):
        WRITES["overwrite"](f"{place}/listed")
    assert numbers(f"{place}/listed") == [1, 2]


def test_looking_up_takes_one_request_for_each_directory_above() -> None:
    with s3_server() as options:
        fs = s3fs.S3FileSystem(**options)
        fs.call_s3("create_bucket", Bucket="lake")
        for name in ("a/b/other", "x", "y"):
            fs.pipe_file(f"lake/{name}", b"x")
        store = Store.at("s3://lake/a/b/sales/key=0", options)
        call_s3 = s3fs.S3FileSystem._call_s3
        with patch.object(s3fs.S3FileSystem, "_call_s3", autospec=True, side_effect=call_s3) as calls:
            assert parent_dataset(store) is None
            assert calls.call_count == 4, calls.call_args_list
            fs.pipe_file("lake/a/b/sales/_tfrecord/00000001.parquet", b"damaged")
            fs.invalidate_cache()
            calls.reset_mock()
            found = parent_dataset(store)
            assert found is not None
            assert found.root == "lake/a/b/sales"
            assert calls.call_count <= 7, calls.call_args_list


PAIRS = [("A", "a"), ("é", "e\u0301"), ("ß", "SS")]


@pytest.fixture
def folding() -> Iterator[FoldingNames]:
    yield FoldingNames()
    FoldingNames.store.clear()
    FoldingNames.pseudo_dirs[:] = [""]


def rows(*values: str) -> pa.Table:
    return pa.table({"n": range(len(values)), "key": values})


def write(folding: FoldingNames, table: pa.Table, **kwargs: Any) -> Snapshot:
    to_tfrecord(table, "/set", filesystem=folding, partition_on="key", **kwargs)
    return Snapshot.open("/set", filesystem=folding)


def read(folding: FoldingNames, **kwargs: Any) -> list[dict[str, Any]]:
    found = read_tfrecord("/set", filesystem=folding, **kwargs).compute()
    return sorted(found.astype({"key": str}).to_dict("records"), key=lambda row: row["n"])


@pytest.mark.parametrize("values", PAIRS)
def test_two_values_that_share_a_directory_are_refused_before_anything_changes(
    folding: FoldingNames, values: tuple[str, str]
) -> None:
    with pytest.raises(DestinationError, match="does not distinguish") as caught:
        write(folding, rows(*values))
    for value in values:
        assert ascii(f"key={value}") in str(caught.value)
    assert not [path for path in folding.store if "part-" in path]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_another_form_of_a_stored_value_is_refused_and_the_dataset_stays(
    folding: FoldingNames, first: str, second: str
) -> None:
    write(folding, rows(first))
    before = {path: file.getvalue() for path, file in folding.store.items()}
    for mode in ({"append": True}, {"overwrite": True}, {"overwrite": "partitions"}):
        with pytest.raises(DestinationError, match="does not distinguish"):
            write(folding, rows(second), **mode)
    with (
        pytest.raises(DestinationError, match="does not distinguish"),
        dask_tfrecord.Writer("/set", filesystem=folding) as writer,
    ):
        writer.write(rows(second))
    assert {path: file.getvalue() for path, file in folding.store.items()} == before
    write(folding, rows(first), append=True)
    assert read(folding) == read(folding, use_snapshot=False) == [{"n": 0, "key": first}] * 2


def test_a_directory_that_another_write_makes_after_the_listing_is_not_refused(
    folding: FoldingNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folding, rows("old"))
    names = Store.names

    def names_then_create(store: Store, directory: str) -> list[str]:
        found = names(store, directory)
        if directory == KEPT:
            folding.pipe_file(f"/set/{KEPT}/key=new/part-1", b"")
        return found

    folding.pipe_file(f"/set/{KEPT}/key=old/part-0", b"")
    monkeypatch.setattr(Store, "names", names_then_create)
    write(folding, rows("new"), append=True)
    assert folding.exists(f"/set/{KEPT}/key=new/part-1")
    assert sorted(row["key"] for row in read(folding)) == ["new", "old"]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_another_form_of_a_value_of_an_older_version_is_refused(
    folding: FoldingNames, first: str, second: str
) -> None:
    """The files of both values would otherwise be in one directory of kept files, or after a restore."""
    write(folding, rows(first, "other"))
    dask_tfrecord.open_dataset("/set", filesystem=folding).delete([("key", "==", first)], keep_versions=True)
    with pytest.raises(DestinationError, match="of an older version"):
        write(folding, rows(second), append=True)
    dask_tfrecord.open_dataset("/set", filesystem=folding).restore(1)
    assert open_dataset("/set", filesystem=folding).cleanup(older_than="0 s") == []
    expected = [{"n": 0, "key": first}, {"n": 1, "key": "other"}]
    assert read(folding) == read(folding, version=1) == expected


def test_a_level_of_another_case_is_refused(folding: FoldingNames) -> None:
    table = pa.table({"n": [0, 1], "a": ["x", "x"], "b": ["y", "Y"]})
    with pytest.raises(DestinationError, match=r"the directory 'b=[yY]' from 'b=[yY]'"):
        to_tfrecord(table, "/set", filesystem=folding, partition_on=["a", "b"])


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"write_options": {"max_rows_per_file": 1}},
        {"shuffle": True, "seed": 1},
        {"colocate": True},
        {"columnar": "n"},
    ],
)
def test_no_two_files_of_a_run_have_the_same_name(tmp_path: Path, kwargs: dict[str, Any]) -> None:
    to_tfrecord(rows(*"AaBbAaBb"), tmp_path, partition_on="key", **kwargs)
    snapshot = Snapshot.open(tmp_path)
    names = [file.path.rpartition("/")[2].casefold() for file in snapshot.files]
    assert len({*names}) == len(names) >= 4
    assert len(read_tfrecord(tmp_path).compute()) == 8


def test_files_hold_no_more_than_max_rows_per_file_and_max_bytes_per_file(tmp_path: Path) -> None:
    to_tfrecord(countries(), tmp_path / "a", write_options={"npartitions": 2, "max_rows_per_file": 3})
    snapshot = Snapshot.open(tmp_path / "a")
    assert [file.records for file in snapshot.files] == [3, 1, 3, 3, 2]
    assert read_tfrecord(tmp_path / "a")["n"].compute().tolist() == list(range(12))
    assert sorted(part_names(snapshot)) == part_names(snapshot)
    for limits, expected in (
        ({"write_options": {"max_rows_per_file": np.uint8(9)}}, [9, 3]),
        ({"write_options": {"max_bytes_per_file": 1}}, [1] * 12),
    ):
        to_tfrecord(countries(12, 1), tmp_path / str(len(expected)), **limits)
        snapshot = Snapshot.open(tmp_path / str(len(expected)))
        assert [file.records for file in snapshot.files] == expected


def test_each_directory_rolls_over_by_itself(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "partition_on": "year",
        "write_options": {"max_rows_per_file": 4, "npartitions": 1},
    }
    to_tfrecord(countries(), tmp_path, name_function="file{}".format, **options)
    snapshot = Snapshot.open(tmp_path)
    counts = [(file.values[0], file.records) for file in snapshot.files]
    assert counts == [(2025, 4), (2025, 2), (2026, 4), (2026, 2)]
    assert part_names(snapshot) == [
        f"year={year}/part-00000-of-00001-{number:05d}-file0.tfrecord"
        for number, year in enumerate((2025, 2025, 2026, 2026))
    ]
    assert len(read_tfrecord(tmp_path).compute()) == 12


@pytest.mark.parametrize("ending", ["", ".tfrecord", ".tfrecord.gz"])
def test_npartitions_counts_the_files_and_name_function_gives_the_end_of_names(
    tmp_path: Path, ending: str
) -> None:
    options: dict[str, Any] = {"write_options": {"npartitions": 2}, "compression": "gzip"}
    to_tfrecord(countries(), tmp_path, name_function=lambda n: f"train-{n}{ending}", **options)
    snapshot = Snapshot.open(tmp_path)
    assert part_names(snapshot) == [f"part-{n:05d}-of-00002-train-{n}.tfrecord.gz" for n in range(2)]
    assert len(read_tfrecord(tmp_path).compute()) == 12


@pytest.mark.parametrize(
    ("name_function", "message"),
    [
        (lambda n: "same", "the same name for several partitions"),
        (lambda n: f"../{n}", r"name_function= returned '../0', which .*; return at most"),
        (lambda n: n, "name_function= returned 0"),
        (lambda n: "", "name_function= returned ''"),
        (lambda n: "x" * 100 + str(n), "at most 100 bytes"),
        (lambda n: "ż" * 50 + str(n), "at most 100 bytes"),
    ],
)
def test_names_that_are_none_are_refused(tmp_path: Path, name_function: Any, message: str) -> None:
    with pytest.raises(TFRecordError, match=message):
        to_tfrecord(countries(), tmp_path / "a", name_function=name_function, compute=False)
