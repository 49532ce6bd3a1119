"""A write of a collection cannot overwrite the files that the collection reads.

Modules: collection.expr.lineage.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pytest
from dask import delayed
from small_frames import collection, content, values

from dask_tfrecord import DestinationError, read_tfrecord, to_tfrecord

pytestmark = pytest.mark.usefixtures("one_thread")


def linked(link: Path, target: Path) -> Path:
    link.symlink_to(target)
    return link


# Each way to read the files of a directory.
SOURCES: dict[str, Callable[[Path], dd.DataFrame]] = {
    "csv": lambda path: dd.read_csv(f"{path}/data.csv"),
    "link": lambda path: dd.read_csv(linked(path.parent / "link", path) / "data.csv"),
    "link to a file": lambda path: dd.read_csv(linked(path.parent / "link.csv", path / "data.csv")),
    "detour": lambda path: dd.read_parquet(f"{path}/../{path.name}/data.parquet"),
    "list": lambda path: dd.read_parquet([f"{path}/data.parquet"])[["n"]],
    "glob": lambda path: dd.read_parquet(f"{path.parent}/*/data.parquet").rename(columns={"n": "m"}),
    "map": lambda path: dd.from_map(pd.read_csv, [path / "data.csv"]),
    "delayed": lambda path: dd.from_delayed([delayed(pd.read_csv)(f"{path}/data.csv")]),
    "closure": lambda path: dd.from_map(lambda name: pd.read_csv(f"{path}/{name}"), ["data.csv"]),
    "join": lambda path: collection(1).merge(dd.read_csv(f"file://{path}/data.csv"), on="n"),
    "relative path": lambda path: dd.read_csv(f"{path.name}/data.csv"),
    "directory above": lambda path: dd.from_map(lambda _: pd.DataFrame({"n": [1]}), [str(path.parent)]),
}


# After "partitions", the data files of all partitions that the write does not replace stay.
MODES: list[dict[str, Any]] = [{"overwrite": True}, {"overwrite": "partitions", "partition_on": "n"}]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in the current directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "place"
    path.mkdir()
    return path


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_read_is_not_overwritten(path: Path, source: str) -> None:
    pd.DataFrame({"n": [1]}).to_csv(path / "data.csv", index=False)
    pd.DataFrame({"n": [1]}).to_parquet(path / "data.parquet")
    with pytest.raises(DestinationError, match="removes only TFRecord files, and the directory also holds"):
        to_tfrecord(SOURCES[source](path), path, overwrite=True)
    assert sorted(path.iterdir()) == [path / "data.csv", path / "data.parquet"]


TFRECORD_SOURCES: dict[str, Callable[[Path], dd.DataFrame]] = {
    "path": lambda path: read_tfrecord(path).assign(m=lambda ddf: ddf["n"] + 1),
    "list": lambda path: read_tfrecord([str(file) for file in path.glob("part-*")]),
    "glob": lambda path: read_tfrecord(f"{path.parent}/*/part-*")[["n"]],
    "join": lambda path: collection(1).merge(read_tfrecord(f"file://{path}", dtype_backend="numpy"), on="n"),
    "relative path": lambda path: read_tfrecord(path.name).map_partitions(lambda part: part),
    "link": lambda path: read_tfrecord(linked(path.parent / "link", path)),
    "link to a file": lambda path: read_tfrecord(
        linked(path.parent / "x.tfrecord", next(path.glob("part-*")))
    ),
    "cache": lambda path: read_tfrecord(f"simplecache::file://{path}"),
}


@pytest.mark.parametrize(("source", "mode"), list(zip(TFRECORD_SOURCES, MODES * 4, strict=True)))
def test_tfrecord_files_that_are_read_are_not_overwritten(
    path: Path, source: str, mode: dict[str, Any]
) -> None:
    to_tfrecord(collection(1), path)
    before = content(path)
    ddf = TFRECORD_SOURCES[source](path)
    with pytest.raises(DestinationError, match="the DataFrame reads from"):
        to_tfrecord(ddf, path, **mode)
    assert content(path) == before
    to_tfrecord(ddf[["n"]], path, append=True)
    assert values(str(path)) == [1, 1]


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
    monkeypatch.setattr("dask_tfrecord.collection.expr.lineage.check_not_read", lambda ddf, store: None)
    lazy = to_tfrecord(read_tfrecord(tmp_path), tmp_path, overwrite=True, compute=False)
    lazy.compute()
    assert values(str(tmp_path)) == [1]
    with pytest.raises(FileNotFoundError, match="was removed after it was listed"):
        lazy.compute()
    assert values(str(tmp_path)) == [1]


@pytest.mark.parametrize("source", ["csv", "map", "delayed", "closure", "join"])
def test_other_paths_may_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "from").mkdir()
    pd.DataFrame({"place": [1], "n": [1]}).to_csv(tmp_path / "from" / "data.csv", index=False)
    ddf = SOURCES[source](tmp_path / "from")
    for found in (ddf[["n"]], ddf[["place"]].rename(columns={"place": "n"}), ddf.assign(n=ddf["place"])):
        for place in ("place", tmp_path / "place"):
            to_tfrecord(found, place, overwrite=True)
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
