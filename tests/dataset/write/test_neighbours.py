"""A directory belongs to one dataset: writes inside a dataset, and around one, are refused by its name.

Modules: dataset.write.destination.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask.dataframe as dd
import pandas as pd
import pytest
import s3fs
from servers import s3_server

from dask_tfrecord import (
    DestinationError,
    Snapshot,
    cleanup,
    export,
    index,
    read_tfrecord,
    take,
    to_tfrecord,
)
from dask_tfrecord.dataset.write.destination import parent_dataset
from dask_tfrecord.feed.stream import write_feather
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


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
    "index": index,
    "cleanup": lambda path: cleanup(path, older_than="0 s"),
    "export": lambda path: export(path, "idx"),
    "quarantine": lambda path: read_tfrecord(
        path.partition("/sales")[0] + "/files", on_corrupt="quarantine", quarantine_path=path
    ),
    "feather": lambda path: write_feather(sales(1), f"{path}/x.feather"),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_inside_a_dataset_is_refused_by_its_name_and_changes_nothing(
    tmp_path: Path, write: str
) -> None:
    root = f"{tmp_path}/sales"
    to_tfrecord(sales(1, 2), root, partition_on="key")
    to_tfrecord(sales(1), tmp_path / "files")
    for below in ("key=0", "key=0/deep/er"):
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
    cleanup(f"{place}/eval", older_than="0 s")
    to_tfrecord(sales(3)[["n"]], f"{place}/eval", overwrite=True)
    assert (numbers(place), numbers(f"{place}/eval")) == ([1, 2], [3])


def test_a_dataset_whose_files_another_one_lists_may_not_be_changed(tmp_path: Path) -> None:
    to_tfrecord(sales(1, 2), tmp_path, partition_on="key")
    metadata = tmp_path / "key=0" / "_tfrecord"
    (tmp_path / "_tfrecord").rename(tmp_path / "_aside")
    index(tmp_path / "key=0")
    (tmp_path / "_aside").rename(tmp_path / "_tfrecord")
    assert take(tmp_path / "key=0", [0])["n"].tolist() == [2]
    for write in ("append", "overwrite", "index", "cleanup", "export"):
        with pytest.raises(DestinationError, match="inside the dataset"):
            WRITES[write](f"{tmp_path}/key=0")
    assert [path.name for path in metadata.iterdir()] == ["00000001.parquet"]
    assert numbers(tmp_path) == [1, 2]


def test_a_directory_with_a_dataset_below_is_refused_by_the_name_of_that_dataset(place: str) -> None:
    to_tfrecord(sales(1, 2)[["n"]], f"{place}/key=0")
    for write in ("append", "overwrite", "partitions", "index"):
        with pytest.raises(DestinationError, match=r"holds another dataset, 'key=0', .*key=0/_tfrecord"):
            WRITES[write](place)
    assert numbers(f"{place}/key=0") == [1, 2]
    to_tfrecord(sales(1, 2), f"{place}/listed", partition_on="key")
    nested(f"{place}/listed", "key=0/deep")
    for write in ("overwrite", "partitions"):
        with pytest.raises(DestinationError, match="holds another dataset, 'key=0/deep'"):
            WRITES[write](f"{place}/listed")
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
