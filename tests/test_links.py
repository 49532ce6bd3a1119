"""Links inside a dataset: no operation changes a file behind a link.

Modules: files.storage.store, dataset.write.destination.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import DestinationError, Writer, read_tfrecord, to_tfrecord
from dask_tfrecord.files.storage.store import Store

RUN = "ab" * 16
LONG_AGO = 10**9
ROWS = pa.table({"day": [0, 0, 1], "id": [1, 2, 3]})


def _fill(directory: Path) -> None:
    """Fill a directory outside of the dataset with files of all names that a dataset uses."""
    part = f"part-{RUN}-00000-of-00001.tfrecord"
    names = [
        "thesis.txt",
        ".ssh/id_rsa",
        part,
        f".{part}.{RUN}",
        f"rows/{part}",
        "started",
        "day=0/more.tfrecord",
    ]
    names += [
        "00000001.parquet",
        f"{RUN}-00000.parquet",
        "replaced.json",
        "kept.json",
        "_SUCCESS",
        "exports.json",
    ]
    for name in names:
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('["thesis.txt"]')
        os.utime(file, (LONG_AGO, LONG_AGO))
        os.utime(file.parent, (LONG_AGO, LONG_AGO))


def _link(name: str) -> Callable[[Path, Path], None]:
    """Replace a file or a directory of a dataset by a link."""

    def make(root: Path, home: Path) -> None:
        link = root / name
        if link.is_dir():
            shutil.rmtree(link)
        link.unlink(missing_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(home)

    return make


def _note(name: str) -> Callable[[Path, Path], None]:
    """Add a list of files that names a file behind a link."""

    def make(root: Path, home: Path) -> None:
        (root / "_l").symlink_to(home)
        if name != "exports.json":
            last = dask_tfrecord.Snapshot.open(root).run
            (root / "_tfrecord/staging" / last).mkdir(parents=True)
            name_of_list = f"staging/{last}/{name}"
        else:
            name_of_list = name
        (root / "_tfrecord" / name_of_list).write_text(json.dumps(["_l/thesis.txt", "_l/.ssh/id_rsa"]))

    return make


def _file_link(name: str) -> Callable[[Path, Path], None]:
    def make(root: Path, home: Path) -> None:
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(home / "thesis.txt")

    return make


def _hard_link(place: str) -> Callable[[Path, Path], None]:
    def make(root: Path, home: Path) -> None:
        (root / place).unlink(missing_ok=True)
        (root / place).hardlink_to(home / "thesis.txt")

    return make


def _dangling(root: Path, home: Path) -> None:
    (root / "day=7").symlink_to(home / "new")


def _chain(root: Path, home: Path) -> None:
    """Replace the directory of staged files by a link to a link."""
    (home.parent / "hop").symlink_to(home)
    _link("_tfrecord/staging")(root, home.parent / "hop")


def _part_link(root: Path, home: Path) -> None:
    """Replace a data file by a link to a copy of the file."""
    part = min((root / "day=1").glob("part-*"))
    shutil.move(part, home / "thesis.tfrecord")
    part.symlink_to(home / "thesis.tfrecord")


def _partition(root: Path, home: Path) -> None:
    """Move a partition directory of the dataset, and leave a link."""
    shutil.move(root / "day=0", home / "moved")
    (root / "day=0").symlink_to(home / "moved")


LINKS = {
    "the directory of metadata": lambda root, home: (
        shutil.copytree(root / "_tfrecord", home / "metadata"),
        _link("_tfrecord")(root, home / "metadata"),
    ),
    **{
        link: _link(f"_tfrecord/{link}")
        for link in (
            *("kept", "kept/day=0", "staging", f"staging/{RUN}", f"staging/{RUN}/rows"),
            *("columns", "columns/more"),
        )
    },
    "a partition directory": _partition,
    "a partition directory that is not listed": _link("day=7"),
    "a data file": _part_link,
    "the directory of exported indexes": _link("_idx"),
    "a link to nothing": _dangling,
    "a link to a link": _chain,
    "_SUCCESS": _file_link("_SUCCESS"),
    "_SUCCESS as a hard link": _hard_link("_SUCCESS"),
    "exports.json itself": _file_link("_tfrecord/exports.json"),
    **{name: _note(name) for name in ("replaced.json", "kept.json", "exports.json")},
}

NEW = pa.table({"day": [0, 7], "id": [8, 9]})


def _write_rows(root: Path) -> None:
    with Writer(root) as writer:
        writer.write(NEW)


OPERATIONS: dict[str, Callable[[Path], object]] = {
    "append": lambda root: to_tfrecord(NEW, root, append=True, partition_on="day"),
    "overwrite": lambda root: to_tfrecord(NEW, root, overwrite=True, partition_on="day"),
    "keeping overwrite": lambda root: to_tfrecord(
        NEW, root, overwrite=True, keep_versions=True, partition_on="day"
    ),
    "partitions": lambda root: to_tfrecord(NEW, root, overwrite="partitions", partition_on="day"),
    "shuffle": lambda root: to_tfrecord(NEW, root, append=True, partition_on="day", shuffle=1),
    "Writer": _write_rows,
    "index": lambda root: dask_tfrecord.index(root, columnar=["id"]),
    "compact": dask_tfrecord.compact,
    "keeping compact": lambda root: dask_tfrecord.compact(root, keep_versions=True),
    "delete": lambda root: dask_tfrecord.delete(root, [("id", "==", 1)]),
    "delete a partition": lambda root: dask_tfrecord.delete(root, [("day", "==", 0)], keep_versions=True),
    "restore": lambda root: dask_tfrecord.restore(root, 1),
    "expire": lambda root: dask_tfrecord.expire(root, versions=1, grace="0 s"),
    "cleanup": lambda root: dask_tfrecord.cleanup(root, older_than="0 s"),
    "repair": dask_tfrecord.repair,
    "export": lambda root: dask_tfrecord.export(root, "idx"),
}


def _content(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and the mode of each file and directory."""
    return {
        str(path.relative_to(directory)): (path.read_bytes() if path.is_file() else b"", path.lstat().st_mode)
        for path in directory.rglob("*")
    }


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with two versions, kept files and column files."""
    root = tmp_path_factory.mktemp("template") / "data"
    keep = {"partition_on": "day", "columnar": ["id"], "keep_versions": True}
    to_tfrecord(ROWS, root, **keep)
    to_tfrecord(ROWS, root, append=True, partition_on="day")
    to_tfrecord(ROWS.slice(0, 1), root, overwrite="partitions", partition_on="day", keep_versions=True)
    return root


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("link", LINKS)
def test_no_operation_changes_files_outside(
    tmp_path: Path, template: Path, link: str, operation: str
) -> None:
    root, home = tmp_path / "data", tmp_path / "home"
    shutil.copytree(template, root)
    _fill(home)
    LINKS[link](root, home)
    before = _content(home)
    with suppress(dask_tfrecord.TFRecordError):
        OPERATIONS[operation](root)
    assert _content(home) == before


@pytest.mark.parametrize(
    "operation",
    [name for name in OPERATIONS if name not in ("index", "export", "cleanup", "expire", "repair")],
)
def test_files_in_a_linked_partition_refuse_changes_before_anything_is_written(
    tmp_path: Path, operation: str
) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    to_tfrecord(ROWS, theirs, partition_on="day", max_rows_per_file=1)
    shutil.rmtree(theirs / "_tfrecord")
    mine.mkdir()
    for day in (0, 1):
        (mine / f"day={day}").symlink_to(theirs / f"day={day}")
    dask_tfrecord.index(mine)
    dask_tfrecord.index(mine, columnar=["id"])
    before = _content(theirs), _content(mine)
    with pytest.raises(DestinationError, match=r"day=\d.*link") as caught:
        OPERATIONS[operation](mine)
    assert caught.value.advice
    assert (_content(theirs), _content(mine)) == before
    assert len(read_tfrecord(mine)) == 3


@pytest.mark.parametrize("place", ["day=0", "day=7", "_tfrecord", "_tfrecord/staging", "_SUCCESS"])
def test_a_link_made_between_the_plan_and_the_write_is_not_followed(
    tmp_path: Path, template: Path, place: str
) -> None:
    root, home = tmp_path / "data", tmp_path / "home"
    shutil.copytree(template, root)
    frame = dd.from_pandas(NEW.to_pandas(), npartitions=2)
    lazy = to_tfrecord(frame, root, append=True, partition_on="day", compute=False)
    _fill(home)
    _link(place)(root, home)
    before = _content(home)
    with suppress(dask_tfrecord.TFRecordError):
        lazy.compute()
    assert _content(home) == before


def test_a_path_that_leads_out_of_the_root_is_refused(tmp_path: Path) -> None:
    store = Store.at(tmp_path / "data")
    (tmp_path / "thesis.txt").write_text("x")
    (tmp_path / "data").mkdir()
    for path in (store.join("../thesis.txt"), str(tmp_path / "thesis.txt"), store.join("a/../../thesis.txt")):
        for change in (
            lambda path=path: store.remove([path]),
            lambda path=path: store.remove_file(path),
            lambda path=path: store.touch(path),
            lambda path=path: store.move(path, store.join("b")),
            lambda path=path: store.place(store.join("b"), path),
            lambda path=path: store.copy(path, store.join("b")),
            lambda path=path: store.copy(store.join("b"), path),
            lambda path=path: store.create_exclusively(path, b""),
            lambda path=path: store.create(path).__enter__(),
        ):
            with pytest.raises(DestinationError, match="leads out of the directory"):
                change()
    with pytest.raises(DestinationError, match="leads out of the directory"):
        store.remove_tree("..")
    assert (tmp_path / "thesis.txt").read_text() == "x"


def test_the_root_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    root = tmp_path / "link" / "data"
    to_tfrecord(ROWS, root)
    to_tfrecord(ROWS, root, append=True)
    dask_tfrecord.compact(root)
    assert dask_tfrecord.delete(root, [("id", "==", 1)]).rows == 2
    assert dask_tfrecord.cleanup(root, older_than="0 s") == []
    assert len(read_tfrecord(root)) == 4


def test_only_the_storage_modules_change_files() -> None:
    """A change of a file that bypasses `Store` would also bypass its check of links."""
    package = Path(dask_tfrecord.__file__).parent
    changes = (
        r"\bfs\.(rm|rm_file|rmdir|mv|cp_file|pipe|pipe_file|touch|mkdir|makedirs)\(|os\.(remove|replace)\("
    )
    found = subprocess.run(
        ["grep", "-rnE", changes, package, "--include=*.py"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    assert [line for line in found if "/files/storage/" not in line] == []


def test_a_dataframe_is_read_through_visible_links(tmp_path: Path) -> None:
    to_tfrecord(pd.DataFrame({"id": [1, 2]}), tmp_path / "theirs")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "more").symlink_to(tmp_path / "theirs")
    assert read_tfrecord(tmp_path / "mine").compute()["id"].tolist() == [1, 2]
