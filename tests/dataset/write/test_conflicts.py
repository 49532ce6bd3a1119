"""Two writes that are planned on the same version: the table in docs/guarantees.md says what happens.

Modules: dataset.write.operations, dataset.write.transaction, dataset.maintenance.full_scan,
dataset.maintenance.rewrites.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask
import pyarrow as pa
import pytest
from small_frames import keyed

import dask_tfrecord
from dask_tfrecord import ConcurrentWriteError, FileChangedError, Snapshot, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.maintenance import full_scan
from dask_tfrecord.dataset.maintenance.rewrites import plan_run
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.dataset.write.operations import Compact, Delete, Group, GroupsLostError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.storage.listing import with_trailing_slash
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.requests import keeps_versions

pytestmark = pytest.mark.usefixtures("one_thread")

Rows = frozenset[tuple[str, int]]
START: Rows = frozenset({("a", 0), ("a", 1), ("a", 2), ("b", 4), ("b", 5), ("b", 6)})
GUIDE = Path(__file__).parents[3] / "docs" / "guarantees.md"


def table() -> dict[tuple[str, str], str]:
    """The cells of the table, by the operation that commits last and the operation that commits first."""
    lines = [line for line in GUIDE.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    start = next(at for at, row in enumerate(rows) if row[0] == "planned first, committed last")
    found = {}
    for row in rows[start + 2 : start + 11]:
        found |= {(row[0], other): cell for other, cell in zip(rows[start][1:], row[1:], strict=True)}
    return found


class Planned(NamedTuple):
    """An operation that was planned: its commit, and the rows after it, from the rows before it."""

    commit: Callable[[], Any]
    applied: Callable[[Rows], Rows]


def rewriting(place: Path, mode: Any, key: str, keeps: Callable[[int], bool]) -> Callable[[], Any]:
    """Replace all files of a partition by one file with some of the rows."""
    snapshot, store = Snapshot.open(place), with_trailing_slash(Store.at(place))
    run = plan_run(store, snapshot)
    groups: list[Group] = []
    entries: list[FileEntry] = []
    old = [file for file in snapshot.files if file.values == (key,)]
    for at, files in enumerate((old[:1], old[1:]) if mode == "delete" else (old,)):
        found = read_tfrecord([f"{place}/{file.path}" for file in files])["n"].compute().tolist()
        kept = [n for n in found if keeps(n)]
        rows = pa.table({"n": kept, "key": pa.array([key] * len(kept), pa.string())})
        new = run.write(rows, at, 2) if kept else ()
        if len(kept) < len(found) or mode == "compact":
            groups.append(
                Group(tuple((file.path, file.crc32c) for file in files), tuple(f.path for f in new))
            )
            entries += new
    operation = (Delete if mode == "delete" else Compact)(tuple(groups), keeps_versions(None))
    return lambda: transaction.commit(run, operation, entries)


def held(name: str, commit: Callable[..., Any], operation: Callable[[], Any]) -> Callable[[], Any]:
    """Start an operation whose commit, the function with this name, is held back. Return the commit."""
    arguments: list[Any] = []

    def hold(*given: Any) -> Snapshot:
        arguments.append(given)
        return (
            Snapshot.open(given[0].store.root, filesystem=given[0].store.fs)
            if commit is transaction.commit
            else given[1]
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"dask_tfrecord.{name}", hold)
        operation()
    return lambda: commit(*arguments[0])


def index(place: Path) -> Planned:
    """Describe files that were touched."""
    for path in place.glob("*/part-*"):
        os.utime(path, ns=(1, 1))
    name = "dataset.maintenance.full_scan.store_snapshot"
    return Planned(
        held(name, full_scan.store_snapshot, lambda: dask_tfrecord.index(place)), lambda rows: rows
    )


def restore(place: Path, key: str) -> Planned:
    """Restore a version that lacks only rows with this key."""
    version, gone = {"a": (3, {("a", 1), ("a", 2)}), "b": (5, {("b", 5), ("b", 6)})}[key]
    name = "dataset.maintenance.metadata_commits.commit"
    commit = held(name, transaction.commit, lambda: dask_tfrecord.restore(place, version))
    return Planned(commit, lambda rows: START - gone)


def expire(place: Path, versions: int = 4) -> Planned:
    name = "dataset.maintenance.metadata_commits.commit"
    commit = held(name, transaction.commit, lambda: dask_tfrecord.expire(place, versions=versions))
    return Planned(commit, lambda rows: rows)


def plan(operation: str, place: Path, key: str, n: int) -> Planned:
    def write(applied: Callable[[Rows], Rows], **options: Any) -> Planned:
        lazy = to_tfrecord(keyed(**{key: [n]}), place, partition_on="key", compute=False, **options)
        return Planned(lazy.compute, applied)

    new = frozenset({(key, n)})
    match operation:
        case "create":
            return write(lambda rows: rows)
        case "append":
            return write(lambda rows: rows | new, append=True)
        case "overwrite":
            return write(lambda rows: new, overwrite=True)
        case "partitions":
            kept = lambda rows: frozenset(row for row in rows if row[0] != key)  # noqa: E731
            return write(lambda rows: kept(rows) | new, overwrite="partitions")
        case "compact":
            return Planned(rewriting(place, "compact", key, lambda n: True), lambda rows: rows)
        case "delete":
            even = rewriting(place, "delete", key, lambda n: n % 2 == 0)
            return Planned(
                even,
                lambda rows: rows - {(k, n) for k, n in START if k == key and n % 2},
            )
        case "restore":
            return restore(place, key)
        case "index":
            return index(place)
        case "expire":
            return expire(place)
    raise ValueError(operation)


def found(place: Path) -> Rows:
    frame = read_tfrecord(place).compute()
    pairs = [*zip(frame["key"].astype(str), frame["n"].tolist(), strict=True)]
    assert len({*pairs}) == len(pairs), "rows are doubled"
    return frozenset(pairs)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of the rows START. Version 3 lacks two rows of partition a, and version 5 two rows of b."""
    place = tmp_path_factory.mktemp("start") / "dataset"
    with dask.config.set({"scheduler": "sync", "dask-tfrecord.keep-versions": True}):
        to_tfrecord(keyed(a=[0], b=[4]), place, partition_on="key")
        to_tfrecord(keyed(a=[1, 2], b=[5, 6]), place, partition_on="key", append=True)
        for low, high in [(1, 2), (5, 6)]:
            dask_tfrecord.delete(place, [("n", ">=", low), ("n", "<=", high)])
            dask_tfrecord.restore(place, 2)
    assert found(place) == START
    return place


def cells() -> Iterator[tuple[str, str, str]]:
    """The cells of the table, each with the partition on which the first operation works."""
    for (last, first), cell in table().items():
        yield from ((last, first, key) for key in "ab" if " or " in cell or (cell == "both") == (key == "a"))


@pytest.mark.parametrize(("last", "first", "other"), [*cells()])
def test_what_the_table_says_happens(tmp_path: Path, start: Path, last: str, first: str, other: str) -> None:
    """The later commit changes partition a, and the earlier commit changes partition a or b."""
    with dask.config.set({"dask-tfrecord.keep-versions": last == "restore"}):
        check_cell(tmp_path / "dataset", start, last, first, other)


def check_cell(tmp_path: Path, start: Path, last: str, first: str, other: str) -> None:
    if last == "create":
        late = plan(last, tmp_path, "a", 20)
    shutil.copytree(start, tmp_path, dirs_exist_ok=True)
    if last != "create":
        late = plan(last, tmp_path, "a", 20)
    early = plan(first, tmp_path, other, 31)
    early.commit()
    between = early.applied(START)
    assert found(tmp_path) == between
    words = table()[last, first].split(" or ")
    verdict = words[0] if other != "a" else words[-1]
    error = {"refused": ConcurrentWriteError, "again": GroupsLostError}.get(verdict.removesuffix(" if same"))
    if error is None:
        late.commit()
        assert found(tmp_path) == late.applied(between)
    else:
        with pytest.raises(error):
            late.commit()
        assert found(tmp_path) == between
    dask_tfrecord.cleanup(tmp_path, older_than="0s")
    assert len(read_tfrecord(tmp_path)) == len(found(tmp_path))
    assert dask_tfrecord.verify(tmp_path)["agrees"].all()


def test_a_restore_of_a_version_that_expired_meanwhile_is_refused(tmp_path: Path, start: Path) -> None:
    shutil.copytree(start, tmp_path, dirs_exist_ok=True)
    late = restore(tmp_path, "a")
    expire(tmp_path, versions=2).commit()
    with pytest.raises(FileChangedError, match="version 3 has expired or was overwritten after") as caught:
        late.commit()
    assert isinstance(caught.value, FileNotFoundError)
    assert found(tmp_path) == START


@pytest.mark.parametrize(
    "options", [{}, {"append": True}, {"overwrite": True}, {"overwrite": "partitions"}], ids=str
)
def test_a_first_version_that_appears_after_the_check_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    first, last = (
        to_tfrecord(keyed(a=[n]), tmp_path, partition_on="key", compute=False, **options) for n in (1, 2)
    )
    others = iter([first])
    with_stamps = transaction.with_stamps

    def late(*args: Any) -> Any:
        for other in others:
            other.compute()
        return with_stamps(*args)

    monkeypatch.setattr(transaction, "with_stamps", late)
    if "append" in options:
        last.compute()
        assert found(tmp_path) == {("a", 1), ("a", 2)}
    else:
        with pytest.raises(ConcurrentWriteError):
            last.compute()
        assert found(tmp_path) == {("a", 1)}


@pytest.mark.parametrize("renames", [True, False])
def test_an_attempt_after_a_refused_attempt_does_not_list_files_that_were_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: bool
) -> None:
    """The cause of the refusal is gone when a scheduler repeats the commit."""
    monkeypatch.setattr(Store, "renames", renames)
    place: Any = tmp_path if renames else f"memory:/{tmp_path}"
    to_tfrecord(keyed(a=[1]), place)
    rows = pa.table({"n": [3], "key": ["a"]})
    commit = held("writer.commit", transaction.commit, lambda: to_tfrecord(rows, place, overwrite=True))
    to_tfrecord(keyed(a=[2]), place, append=True)
    with pytest.raises(ConcurrentWriteError, match="committed a dataset here first"):
        commit()
    dask_tfrecord.restore(place, 1)
    with pytest.raises(ConcurrentWriteError, match="removed before its write was committed"):
        commit()
    assert found(place) == {("a", 1)}
