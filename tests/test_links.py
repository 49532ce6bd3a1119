"""Links inside a dataset: no operation changes a file behind a link.

Modules: storage.store, dataset.write.destination.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path

import dask.dataframe as dd
import operations
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import DestinationError, Writer, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.storage.store import Store

RUN = "ab" * 16
LONG_AGO = 10**9
ROWS = pa.table({"day": [0, 0, 1], "id": [1, 2, 3]})


def _fill(directory: Path) -> None:
    """Fill a directory outside of the dataset with files of all names that a dataset uses."""
    part = f"part-{RUN}-00000-of-00001.tfrecord"
    names = ["thesis.txt", ".ssh/id_rsa", part, f".{part}.{RUN}", f"rows/{part}", "started", "_SUCCESS"]
    names += ["day=0/more.tfrecord", "00000001.parquet", f"{RUN}-00000.parquet"]
    for name in [*names, "replaced.json", "kept.json", "exports.json"]:
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('["thesis.txt"]')
        os.utime(file, (LONG_AGO, LONG_AGO))
        os.utime(file.parent, (LONG_AGO, LONG_AGO))


def _link(name: str, target: str = "", *, hard: bool = False) -> Callable[[Path, Path], None]:
    """Replace a file or a directory of a dataset by a link."""

    def make(root: Path, home: Path) -> None:
        link = root / name
        if link.is_dir():
            shutil.rmtree(link)
        link.unlink(missing_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        (link.hardlink_to if hard else link.symlink_to)(home / target)

    return make


def _note(name: str) -> Callable[[Path, Path], None]:
    """Add a list of files that names a file behind a link."""

    def make(root: Path, home: Path) -> None:
        (root / "_l").symlink_to(home)
        last = "" if name == "exports.json" else f"staging/{Snapshot.open(root).run}"
        note = root / "_tfrecord" / last / name
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(["_l/thesis.txt", "_l/.ssh/id_rsa"]))

    return make


def _move(pattern: str) -> Callable[[Path, Path], None]:
    """Move a data file or a partition directory of the dataset out of it, and leave a link."""

    def make(root: Path, home: Path) -> None:
        moved = min(root.glob(pattern))
        shutil.move(moved, home / "moved.tfrecord")
        moved.symlink_to(home / "moved.tfrecord")

    return make


def _metadata(root: Path, home: Path) -> None:
    shutil.copytree(root / "_tfrecord", home / "metadata")
    _link("_tfrecord", "metadata")(root, home)


def _chain(root: Path, home: Path) -> None:
    """Replace the directory of staged files by a link to a link."""
    (home.parent / "hop").symlink_to(home)
    _link("_tfrecord/staging")(root, home.parent / "hop")


DIRECTORIES = ["kept", "kept/day=0", "staging", f"staging/{RUN}", f"staging/{RUN}/rows", "columns"]
LINKS: dict[str, Callable[[Path, Path], None]] = {
    "the directory of metadata": _metadata,
    **{name: _link(f"_tfrecord/{name}") for name in (*DIRECTORIES, "columns/more")},
    "a partition directory": _move("day=0"),
    "a partition directory that is not listed": _link("day=7"),
    "a data file": _move("day=1/part-*"),
    "the directory of exported indexes": _link("_idx"),
    "a link to nothing": _link("day=7", "new"),
    "a link to a link": _chain,
    "_SUCCESS": _link("_SUCCESS", "thesis.txt"),
    "_SUCCESS as a hard link": _link("_SUCCESS", "thesis.txt", hard=True),
    "exports.json itself": _link("_tfrecord/exports.json", "thesis.txt"),
    **{name: _note(name) for name in ("replaced.json", "kept.json", "exports.json")},
}

NEW = pa.table({"day": [0, 7], "id": [8, 9]})


def _write_rows(root: Path) -> None:
    with Writer(root) as writer:
        writer.write(NEW)


KEYS = {"partition_on": "day"}
OPERATIONS: dict[str, Callable[[Path], object]] = {
    "append": lambda root: to_tfrecord(NEW, root, append=True, **KEYS),
    "overwrite": lambda root: to_tfrecord(NEW, root, overwrite=True, **KEYS),
    "keeping overwrite": lambda root: to_tfrecord(NEW, root, overwrite=True, keep_versions=True, **KEYS),
    "partitions": lambda root: to_tfrecord(NEW, root, overwrite="partitions", **KEYS),
    "shuffle": lambda root: to_tfrecord(NEW, root, append=True, shuffle=True, seed=1, **KEYS),
    "Writer": _write_rows,
    "compact": operations.compact,
    "keeping compact": lambda root: dask_tfrecord.open_dataset(root).compact(keep_versions=True),
    "delete": lambda root: dask_tfrecord.open_dataset(root).delete([("id", "==", 1)]),
    "delete a partition": lambda root: dask_tfrecord.open_dataset(root).delete(
        [("day", "==", 0)], keep_versions=True
    ),
    "restore": lambda root: dask_tfrecord.open_dataset(root).restore(1),
    "index": lambda root: dask_tfrecord.open_dataset(root).add_snapshot(columnar=["id"]),
    "expire": lambda root: dask_tfrecord.open_dataset(root).expire(versions=1, grace="0 s"),
    "cleanup": lambda root: dask_tfrecord.open_dataset(root).cleanup(older_than="0 s"),
    "repair": operations.repair,
    "export": lambda root: dask_tfrecord.open_dataset(root).export("idx"),
}
CHANGES_OF_FILES = list(OPERATIONS)[:11]


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


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("link", "operation"),
    [(link, name) for at, link in enumerate(LINKS) for name in islice(OPERATIONS, at % 2, None, 2)],
)
def test_no_operation_changes_others(tmp_path: Path, template: Path, link: str, operation: str) -> None:
    root, home = tmp_path / "data", tmp_path / "home"
    shutil.copytree(template, root)
    _fill(home)
    LINKS[link](root, home)
    before = _content(home)
    with suppress(dask_tfrecord.TFRecordError):
        OPERATIONS[operation](root)
    assert _content(home) == before


@pytest.mark.parametrize("operation", CHANGES_OF_FILES)
def test_files_in_a_linked_partition_refuse_changes(tmp_path: Path, operation: str) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    to_tfrecord(ROWS, theirs, partition_on="day", write_options={"max_rows_per_file": 1})
    shutil.rmtree(theirs / "_tfrecord")
    mine.mkdir()
    for day in (0, 1):
        (mine / f"day={day}").symlink_to(theirs / f"day={day}")
    dask_tfrecord.open_dataset(mine).add_snapshot()
    dask_tfrecord.open_dataset(mine).add_snapshot(columnar=["id"])
    before = _content(theirs), _content(mine)
    with pytest.raises(DestinationError, match=r"day=\d.*link") as caught:
        OPERATIONS[operation](mine)
    assert caught.value.advice
    assert (_content(theirs), _content(mine)) == before
    assert len(read_tfrecord(mine)) == 3


@pytest.mark.parametrize("place", ["day=0", "day=7", "_tfrecord", "_tfrecord/staging", "_SUCCESS"])
def test_a_link_made_after_the_plan_is_not_followed(tmp_path: Path, template: Path, place: str) -> None:
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
    inside = store.join("b")
    for path in (store.join("../thesis.txt"), str(tmp_path / "thesis.txt"), store.join("a/../../thesis.txt")):
        for change, *arguments in [
            (store.remove, [path]),
            (store.remove_file, path),
            (store.write_file, path, b""),
            (store.move, path, inside),
            (store.move, inside, path),
            (store.copy, path, inside),
            (store.copy, inside, path),
            (store.create_exclusively, path, b""),
            (lambda path: store.create(path).__enter__(), path),
        ]:
            with pytest.raises(DestinationError, match="leads out of the directory"):
                change(*arguments)
    with pytest.raises(DestinationError, match="leads out of the directory"):
        store.remove_tree("..")
    assert (tmp_path / "thesis.txt").read_text() == "x"


def test_the_root_and_files_of_others_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    root = tmp_path / "link" / "data"
    to_tfrecord(ROWS, root)
    to_tfrecord(ROWS, root, append=True)
    dask_tfrecord.open_dataset(root).compact()
    assert dask_tfrecord.open_dataset(root).delete([("id", "==", 1)]).details["deleted_rows"] == 2
    assert dask_tfrecord.open_dataset(root).cleanup(older_than="0 s") == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "more").symlink_to(root)
    for path in (root, tmp_path / "mine"):
        assert read_tfrecord(path).compute()["id"].tolist() == [2, 3] * 2


def test_only_the_storage_modules_change_files() -> None:
    """A change of a file that bypasses `Store` would also bypass its check of links."""
    package = Path(dask_tfrecord.__file__).parent
    methods = r"\bfs\.(rm|rm_file|rmdir|mv|cp_file|pipe|pipe_file|touch|mkdir|makedirs)\("
    changes = re.compile(rf"{methods}|os\.(remove|replace)\(")
    others = [path for path in package.rglob("*.py") if "storage" not in path.parts]
    assert [path for path in others if changes.search(path.read_text())] == []
