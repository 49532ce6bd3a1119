"""A write of a collection cannot overwrite the files that the collection reads.

Modules: expr.lineage.
"""

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pytest
from dask import delayed
from small_frames import collection, content, values

from dask_tfrecord import (
    DestinationError,
    read_tfrecord,
    to_tfrecord,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def of_csv(path: Path) -> dd.DataFrame:
    return dd.read_csv(f"{path}/data.csv")


def of_parquet_in_a_list(path: Path) -> dd.DataFrame:
    return dd.read_parquet([f"{path}/data.parquet"])[["n"]]


def of_a_glob(path: Path) -> dd.DataFrame:
    return dd.read_parquet(f"{path.parent}/*/data.parquet").rename(columns={"n": "m"})


def of_a_map(path: Path) -> dd.DataFrame:
    return dd.from_map(pd.read_csv, [path / "data.csv"])


def of_delayed(path: Path) -> dd.DataFrame:
    return dd.from_delayed([delayed(pd.read_csv)(f"{path}/data.csv")])


def of_a_closure(path: Path) -> dd.DataFrame:
    return dd.from_map(lambda name: pd.read_csv(f"{path}/{name}"), ["data.csv"])


def of_a_join(path: Path) -> dd.DataFrame:
    return collection(1).merge(dd.read_csv(f"file://{path}/data.csv"), on="n")


def of_a_relative_path(path: Path) -> dd.DataFrame:
    return dd.read_csv(f"{path.name}/data.csv")


def of_the_directory_above(path: Path) -> dd.DataFrame:
    return dd.from_map(lambda path: pd.DataFrame({"n": [1]}), [str(path.parent)])


def of_a_link(path: Path) -> dd.DataFrame:
    link = path.parent / "link"
    link.symlink_to(path)
    return dd.read_csv(f"{link}/data.csv")


def of_a_link_to_a_file(path: Path) -> dd.DataFrame:
    link = path.parent / "link.csv"
    link.symlink_to(path / "data.csv")
    return dd.read_csv(link)


def of_a_detour(path: Path) -> dd.DataFrame:
    aside = path.parent / "aside"
    aside.mkdir()
    return dd.read_parquet(f"{aside}/../{path.name}/data.parquet")


SOURCES = [
    of_csv,
    of_a_link,
    of_a_link_to_a_file,
    of_a_detour,
    of_parquet_in_a_list,
    of_a_glob,
    of_a_map,
    of_delayed,
    of_a_closure,
    of_a_join,
    of_a_relative_path,
    of_the_directory_above,
]


overwrites = pytest.mark.parametrize(
    "mode", [{"overwrite": True}, {"overwrite": "partitions", "partition_on": "n"}]
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in the current directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "place"
    path.mkdir()
    return path


@overwrites
@pytest.mark.parametrize("source", SOURCES)
def test_what_is_read_is_not_overwritten(path: Path, source: Any, mode: dict[str, Any]) -> None:
    pd.DataFrame({"n": [1]}).to_csv(path / "data.csv", index=False)
    pd.DataFrame({"n": [1]}).to_parquet(path / "data.parquet")
    with pytest.raises(DestinationError, match="removes only TFRecord files, and the directory also holds"):
        to_tfrecord(source(path), path, **mode)
    assert sorted(path.iterdir()) == [path / "data.csv", path / "data.parquet"]


def of_tfrecord(path: Path) -> dd.DataFrame:
    return read_tfrecord(path)


def of_tfrecord_in_a_list(path: Path) -> dd.DataFrame:
    return read_tfrecord([str(file) for file in path.glob("part-*")])


def of_a_tfrecord_glob(path: Path) -> dd.DataFrame:
    return read_tfrecord(f"{path.parent}/*/part-*")[["n"]]


def of_a_tfrecord_join(path: Path) -> dd.DataFrame:
    return collection(1).merge(read_tfrecord(f"file://{path}", dtype_backend="numpy"), on="n")


def of_a_relative_tfrecord_path(path: Path) -> dd.DataFrame:
    return read_tfrecord(path.name).map_partitions(lambda part: part)


def of_a_tfrecord_link(path: Path) -> dd.DataFrame:
    link = path.parent / "link"
    link.symlink_to(path)
    return read_tfrecord(link)


def of_a_link_to_a_tfrecord_file(path: Path) -> dd.DataFrame:
    link = path.parent / "link.tfrecord"
    link.symlink_to(next(path.glob("part-*")))
    return read_tfrecord(link)


def of_tfrecord_behind_a_cache(path: Path) -> dd.DataFrame:
    return read_tfrecord(f"simplecache::file://{path}")


TFRECORD_SOURCES = [
    of_tfrecord,
    of_tfrecord_in_a_list,
    of_a_tfrecord_glob,
    of_a_tfrecord_join,
    of_a_relative_tfrecord_path,
    of_a_tfrecord_link,
    of_a_link_to_a_tfrecord_file,
    of_tfrecord_behind_a_cache,
]


@overwrites
@pytest.mark.parametrize("source", TFRECORD_SOURCES)
def test_tfrecord_files_that_are_read_are_not_overwritten(
    path: Path, source: Any, mode: dict[str, Any]
) -> None:
    to_tfrecord(collection(1), path)
    before = content(path)
    with pytest.raises(DestinationError, match="the DataFrame reads from"):
        to_tfrecord(source(path), path, **mode)
    assert content(path) == before


@pytest.mark.parametrize(
    "mention",
    [
        lambda path: collection(1).map_partitions(lambda part: part.assign(n=len(str(path)) * 0 + 1)),
        lambda path: collection(1).assign(n=lambda frame: frame["n"] if str(path) else 0),
        lambda path: collection(1).map_partitions(lambda part, root: part, f"{path}/data.csv"),
    ],
)
def test_rows_in_memory_may_overwrite_a_path_that_their_functions_mention(
    tmp_path: Path, mention: Any
) -> None:
    to_tfrecord(collection(0), tmp_path / "place")
    to_tfrecord(mention(str(tmp_path / "place")), tmp_path / "place", overwrite=True)
    assert values(str(tmp_path / "place")) == [1]


def test_a_task_that_runs_again_after_the_overwrite_of_its_input_cannot_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason for the rejection: an overwrite removes its input after the commit."""
    to_tfrecord(collection(1), tmp_path)
    monkeypatch.setattr("dask_tfrecord.expr.lineage.check_not_read", lambda ddf, store: None)
    lazy = to_tfrecord(read_tfrecord(tmp_path), tmp_path, overwrite=True, compute=False)
    lazy.compute()
    assert values(str(tmp_path)) == [1]
    with pytest.raises(FileNotFoundError, match="was removed after the dataset was listed"):
        lazy.compute()
    assert values(str(tmp_path)) == [1]


def test_a_dataset_is_not_overwritten_with_itself(place: str) -> None:
    to_tfrecord(collection(1), place)
    ddf = read_tfrecord(place)
    ddf["m"] = ddf["n"] + 1
    with pytest.raises(DestinationError, match="the DataFrame reads from"):
        to_tfrecord(ddf, place, overwrite=True)
    to_tfrecord(ddf[["n"]], place, append=True)
    assert values(place) == [1, 1]


@pytest.mark.parametrize("source", [of_csv, of_a_map, of_delayed, of_a_closure, of_a_join])
def test_other_paths_may_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "from").mkdir()
    pd.DataFrame({"n": [1]}).to_csv(tmp_path / "from" / "data.csv", index=False)
    for place in ("place", tmp_path / "place"):
        to_tfrecord(source(tmp_path / "from"), place, overwrite=True)
    assert values("place") == [1]


def test_an_overwrite_does_not_follow_links_out_of_its_directory(tmp_path: Path) -> None:
    other, place = tmp_path / "other", tmp_path / "place"
    to_tfrecord(collection(1), other)
    to_tfrecord(collection(2), place)
    (place / "link").symlink_to(other)
    with pytest.raises(DestinationError, match=r"the link .*/link leads to another directory"):
        to_tfrecord(collection(3), place, overwrite=True)
    assert values(other) == [1]
    (place / "link").unlink()
    linked = tmp_path / "linked"
    linked.symlink_to(place)
    to_tfrecord(collection(3), linked, overwrite=True)
    assert values(place) == [3]


def test_other_paths_may_be_read_and_columns_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"place": [1], "n": [2]}).to_csv("place2.csv", index=False)
    ddf = dd.read_csv("*.csv")
    for found in (ddf, ddf[["place"]].rename(columns={"place": "n"}), ddf.assign(n=ddf["place"] + 2)):
        to_tfrecord(found, "place", overwrite=True)
    assert values("place") == [3]
