"""Two writes that are planned on the same version: the table in docs/guarantees.md says what happens.

Two attempts at one commit at once, because a scheduler repeats the task of a worker that was only slow: no
version lists a file that one of the attempts removes. The first attempt stops at each of its filesystem
calls.

Modules: dataset.write.operations, dataset.write.transaction, dataset.write.run, dataset.snapshot.model,
dataset.rewrite.verify, dataset.rewrite.add_snapshot, dataset.rewrite.delete, dataset.rewrite.compact.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from zlib import crc32

import dask
import pyarrow as pa
import pytest
from small_frames import files_of, keyed, values
from strides import every

import dask_tfrecord
from dask_tfrecord import (
    ConcurrentWriteError,
    FileChangedError,
    SchemaError,
    open_dataset,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.dataset.listing import with_trailing_slash
from dask_tfrecord.dataset.rewrite import add_snapshot
from dask_tfrecord.dataset.rewrite.compact import plan_run
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.dataset.write.operations import Compact, Delete, Group, GroupsLostError
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.keywords.requests import keeps_versions
from dask_tfrecord.storage import store as stores
from dask_tfrecord.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

Rows = frozenset[tuple[str, int]]
START: Rows = frozenset({("a", 0), ("a", 1), ("a", 2), ("b", 4), ("b", 5), ("b", 6)})
GUIDE = Path(__file__).parents[3] / "docs" / "guarantees.md"


def table() -> dict[tuple[str, str], str]:
    """The cells of the table, by the operation that commits last and the operation that commits first."""
    [text] = [part for part in GUIDE.read_text().split("\n\n") if part.startswith("| planned first")]
    lines = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines()]
    head, _, *rows = lines
    return {(row[0], other): cell for row in rows for other, cell in zip(head[1:], row[1:], strict=True)}


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
    operation = (Delete if mode == "delete" else Compact)(tuple(groups), keeps_versions(None, default=False))
    return lambda: transaction.commit(run, operation, entries)


def held(name: str, commit: Callable[..., Any], operation: Callable[[], Any]) -> Callable[[], Any]:
    """Start an operation whose commit, the function with this name, is held back. Return the commit."""
    arguments: list[Any] = []

    def hold(*given: Any) -> Snapshot:
        arguments.append(given)
        return Snapshot.open(given[0].store.root, filesystem=given[0].store.fs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"dask_tfrecord.{name}", hold)
        operation()
    return lambda: commit(*arguments[0])


def index(place: Path) -> Planned:
    """Describe the files again, as if another tool had rewritten some of them."""
    before, store = Snapshot.open(place), with_trailing_slash(Store.at(place))
    again = replace(before, run=os.urandom(16).hex())
    return Planned(partial(add_snapshot.commit_snapshot, store, again, before), lambda rows: rows)


def restore(place: Path, key: str) -> Planned:
    """Restore a version that lacks only rows with this key."""
    version, gone = {"a": (3, {("a", 1), ("a", 2)}), "b": (5, {("b", 5), ("b", 6)})}[key]
    name = "dataset.rewrite.versions.commit"
    commit = held(name, transaction.commit, lambda: dask_tfrecord.open_dataset(place).restore(version))
    return Planned(commit, lambda rows: START - gone)


def expire(place: Path, versions: int = 4) -> Planned:
    name = "dataset.rewrite.versions.commit"
    commit = held(
        name, transaction.commit, lambda: dask_tfrecord.open_dataset(place).expire(versions=versions)
    )
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
        case "add_snapshot":
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
            dask_tfrecord.open_dataset(place).delete([("n", ">=", low), ("n", "<=", high)])
            dask_tfrecord.open_dataset(place).restore(2)
    assert found(place) == START
    return place


def cells() -> Iterator[tuple[str, str, str]]:
    """The cells of the table, each with the partition on which the first operation works."""
    for (last, first), cell in table().items():
        yield from ((last, first, key) for key in "ab" if " or " in cell or (cell == "both") == (key == "a"))


@pytest.mark.sampled
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
    dask_tfrecord.open_dataset(tmp_path).cleanup(older_than="0s")
    assert len(read_tfrecord(tmp_path)) == len(found(tmp_path))
    assert dask_tfrecord.open_dataset(tmp_path).verify()["agrees"].all()


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
    publish_files = transaction.publish_files

    def late(*args: Any) -> Any:
        for other in others:
            other.compute()
        return publish_files(*args)

    monkeypatch.setattr(transaction, "publish_files", late)
    if "append" in options:
        last.compute()
        assert found(tmp_path) == {("a", 1), ("a", 2)}
    else:
        with pytest.raises(ConcurrentWriteError):
            last.compute()
        assert found(tmp_path) == {("a", 1)}


def planned(place: str, **how: Any) -> tuple[WriteRun, Callable[[], Snapshot]]:
    """Plan a write, and write its files. Return the plan, and an attempt at its commit."""
    arguments: list[Any] = []

    def hold(*given: Any, is_alone: bool) -> Snapshot:
        arguments.append(given)
        return Snapshot.open(place)

    with patch("dask_tfrecord.api.write.commit", hold):
        to_tfrecord(pa.table({"n": [3], "key": ["a"]}), place, **how)
    return arguments[0][0], lambda: transaction.commit(*arguments[0])


def attempts(place: str) -> tuple[WriteRun, Callable[[], bool]]:
    """Plan an overwrite. Return the plan, and an attempt at its commit, which says if it succeeded."""
    run, commit = planned(place, overwrite=True)

    def attempt() -> bool:
        with suppress(ConcurrentWriteError, ConnectionError):
            commit()
            return True
        return False

    return run, attempt


def append(place: str) -> None:
    to_tfrecord(keyed(a=[2]), place, append=True)


def undo(place: str) -> None:
    with suppress(FileNotFoundError):  # the overwrite was committed, so there is no version 1
        dask_tfrecord.open_dataset(place).restore(1)


def stop(fs: Any, work: Callable[[], Any], instant: int, meanwhile: Callable[[], Any]) -> tuple[Any, bool]:
    """Do ``meanwhile`` before the filesystem call of ``work`` with the number ``instant``, or after the work.

    Return the result of the work, and False if there are fewer calls.
    """
    calls, todo = count(), [meanwhile]

    def counting(work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if todo and next(calls) == instant:
                todo.pop()()
            return work(*args, **kwargs)

        return wrapped

    of_store = "move remove remove_file remove_tree create create_exclusively infos info find_everything"
    with pytest.MonkeyPatch.context() as patched:
        for owner, names in [(Store, of_store), (type(fs), "exists find pipe_file cat_file ls")]:
            for name in names.split():
                patched.setattr(owner, name, counting(getattr(owner, name)))
        result = work()
    if todo:
        todo.pop()()
        return result, False
    return result, True


def instants(case: str) -> range:
    """The numbers of the calls at which an attempt stops: a sample that differs between the cases."""
    stride = every(3)
    return range(crc32(case.encode()) % stride, 500, stride)


@pytest.mark.parametrize("renames", [True, False])
@pytest.mark.parametrize("other", ["first refused", "second refused", "failed"])
def test_no_attempt_lists_files_that_another_attempt_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, renames: bool
) -> None:
    """An append is a conflict for one attempt, and a restore undoes the append before the other attempt.

    Or the store fails for one attempt, and the write is given up, although the other attempt goes on.
    """
    monkeypatch.setattr(stores, "_UPLOADING", {"memory"})
    for instant in instants(f"{other} {renames}"):
        place = f"{tmp_path}/{instant}" if renames else f"memory://{tmp_path}/{instant}"
        to_tfrecord(keyed(a=[1]), place)
        run, attempt = attempts(place)
        results: list[bool] = []
        if other == "first refused":
            append(place)

        def meanwhile(
            place: str = place, run: WriteRun = run, attempt: Any = attempt, results: list[bool] = results
        ) -> None:
            if other == "failed":
                with patch.object(Store, "create_exclusively", side_effect=ConnectionError):
                    attempt()
                transaction.abandon(run)
                return
            (undo if other == "first refused" else append)(place)
            results.append(attempt())
            if other == "second refused":
                undo(place)

        result, is_stopped = stop(Store.at(place).fs, attempt, instant, meanwhile)
        check(place, any([result, *results]), instant)
        if not is_stopped:
            assert instant >= 6
            return
    raise AssertionError("the commit does not end")


# What happens while an append of the row 3 stops, and the rows that may be there afterwards.
MEANWHILE: dict[str, tuple[Callable[[str, Callable[[], Any]], Any], list[list[int]]]] = {
    "the same append": (lambda place, twin: twin(), [[1, 3]]),
    "the same append and an overwrite": (lambda place, twin: [twin(), overwrite(place, 9)], [[9]]),
    "two overwrites": (lambda place, twin: [overwrite(place, 8), overwrite(place, 9)], [[3, 9], [9]]),
    "an append and an overwrite that keeps": (
        lambda place, twin: [append(place), overwrite(place, 9, keep_versions=True)],
        [[3, 9], [9]],
    ),
}


def overwrite(place: str, n: int, **options: Any) -> None:
    to_tfrecord(keyed(a=[n]), place, overwrite=True, **options)


@pytest.mark.parametrize("renames", [True, False])
@pytest.mark.parametrize("case", MEANWHILE)
def test_an_append_that_stops_at_any_event_is_added_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, renames: bool
) -> None:
    monkeypatch.setattr(stores, "_UPLOADING", {"memory"})
    work, expected = MEANWHILE[case]
    for instant in instants(f"{case} {renames}"):
        place = f"{tmp_path}/{instant}" if renames else f"memory://{tmp_path}/{instant}"
        to_tfrecord(keyed(a=[1]), place)
        run, commit = planned(place, append=True)
        _, is_stopped = stop(Store.at(place).fs, commit, instant, partial(work, place, commit))
        assert sorted(values(place)) in expected, f"stopped before call {instant}"
        assert sorted(values(place, use_snapshot=False)) == sorted(values(place))
        # The commit has succeeded, so only an overwrite after it may have removed the row.
        [committed] = [past.number for past in Snapshot.open(place).commits() if past.run == run.run]
        history = open_dataset(place).history()
        check(place, not (history["version"][history["mode"] == "overwrite"] > committed).any(), instant)
        if not is_stopped:
            return
    raise AssertionError("the commit does not end")


@pytest.mark.parametrize("renames", [True, False])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_of_two_writes_with_one_id_that_stop_at_any_event_one_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool, renames: bool
) -> None:
    """The second write runs while the first one stops, and its rows may be overwritten at once."""
    monkeypatch.setattr(stores, "_UPLOADING", {"memory"})

    def second(place: str, found: list[Any]) -> None:
        found.append(to_tfrecord(keyed(a=[4]), place, append=True, write_id="day"))
        if is_replaced:
            overwrite(place, 9)

    for instant in instants(f"{is_replaced} {renames}"):
        place = f"{tmp_path}/{instant}" if renames else f"memory://{tmp_path}/{instant}"
        to_tfrecord(keyed(a=[1]), place)
        _, commit = planned(place, append=True, write_id="day")
        found: list[Any] = []
        first, is_stopped = stop(Store.at(place).fs, commit, instant, partial(second, place, found))
        rows = sorted(values(place))
        assert rows in ([[9]] if is_replaced else [[1, 3], [1, 4]]), f"stopped before call {instant}"
        if not is_replaced:
            assert first.number == found[0].version == 2
        assert sorted(values(place, use_snapshot=False)) == rows
        check(place, 3 in rows, instant)
        if not is_stopped:
            return
    raise AssertionError("the commit does not end")


def test_an_attempt_after_other_writes_returns_the_version_of_its_write(tmp_path: Any) -> None:
    place = str(tmp_path)
    to_tfrecord(keyed(a=[1]), place)
    _, commit = planned(place, append=True)
    committed = commit().number
    append(place)
    append(place)
    assert (commit().number, committed) == (2, 2)


def check(place: str, has_committed: bool, instant: int) -> None:
    """Check that an attempt succeeded if the rows of the write are there, and the files after a cleanup."""
    found = {*values(place)}
    assert has_committed == (3 in found), f"stopped before call {instant}"
    dask_tfrecord.open_dataset(place).cleanup(older_than="0s")
    assert {*values(place)} == found
    versions = open_dataset(place).history()["version"].tolist()
    listed = {file.path for one in versions for file in Snapshot.open(place, version=one).files}
    present = {path.removeprefix("_tfrecord/kept/") for path in files_of(place) if "part-" in path}
    assert present == listed


@pytest.mark.parametrize("renames", [True, False])
def test_every_attempt_names_the_cause(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, renames: bool) -> None:
    """Dask repeats failed tasks on remote stores, and shows the error of the last attempt."""
    monkeypatch.setattr(stores, "_UPLOADING", {"memory"})
    place = f"{tmp_path}/data" if renames else f"memory://{tmp_path}/data"
    to_tfrecord(keyed(a=[1]), place)
    _, attempt = planned(place, append=True)
    to_tfrecord(pa.table({"other": [1]}), place, overwrite=True)
    before = files_of(place)
    for _ in range(3):
        with pytest.raises(SchemaError, match="the dataset does not"):
            attempt()
    assert len(files_of(place)) <= len(before)
    assert read_tfrecord(place)["other"].compute().tolist() == [1]
