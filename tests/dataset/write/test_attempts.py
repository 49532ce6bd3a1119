"""Two attempts at one commit that run at the same time, because a scheduler repeats the task of a worker that
was only slow: no version lists a file that one of the attempts removes.

By default, the first attempt stops at a sample of its filesystem calls.
``DASK_TFRECORD_FAULTS=1 pytest tests/dataset/write/test_attempts.py`` stops it at every call.

Modules: dataset.write.run, dataset.write.transaction, dataset.snapshot.names.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from small_frames import keyed
from strides import every

import dask_tfrecord
from dask_tfrecord import ConcurrentWriteError, SchemaError, Snapshot, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.names import ATTEMPT
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

STRIDE = every(9)
OF_STORE = ["place", "remove", "remove_file", "remove_tree", "create", "create_exclusively", "names", "look"]
OF_FILESYSTEM = ["exists", "find", "pipe_file", "cat_file", "ls"]


def planned(place: str, **how: Any) -> tuple[WriteRun, Callable[[], Snapshot]]:
    """Plan a write, and write its files. Return the plan, and an attempt at its commit."""
    arguments: list[Any] = []

    def hold(*given: Any) -> Snapshot:
        arguments.append(given)
        return Snapshot.open(place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dask_tfrecord.writer.commit", hold)
        to_tfrecord(pa.table({"n": [3], "key": ["a"]}), place, **how)
    return arguments[0][0], lambda: transaction.commit(*arguments[0])


def attempts(place: str) -> tuple[WriteRun, Callable[[], bool]]:
    """Plan an overwrite, and write its files. Return the plan, and an attempt at its commit, which says if it
    succeeded.
    """
    run, commit = planned(place, overwrite=True)

    def attempt() -> bool:
        with suppress(ConcurrentWriteError, ConnectionError):
            commit()
            return True
        return False

    return run, attempt


def stop(fs: Any, work: Callable[[], bool], instant: int, meanwhile: Callable[[], Any]) -> tuple[bool, bool]:
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

    with pytest.MonkeyPatch.context() as patch:
        for owner, names in [(Store, OF_STORE), (type(fs), OF_FILESYSTEM)]:
            for name in names:
                patch.setattr(owner, name, counting(getattr(owner, name)))
        result = work()
    has_ended = bool(todo)
    if todo:
        todo.pop()()
    return result, not has_ended


def append(place: str) -> None:
    to_tfrecord(keyed(a=[2]), place, append=True)


def restore(place: str) -> None:
    with suppress(FileNotFoundError):  # the overwrite was committed, so there is no version 1
        dask_tfrecord.restore(place, 1)


@pytest.mark.parametrize("renames", [True, False])
@pytest.mark.parametrize("refused", ["first", "second"])
def test_no_attempt_lists_files_that_a_refused_attempt_removes(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, refused: str, renames: bool
) -> None:
    """An append is a conflict for one attempt, and a restore undoes the append before the other attempt."""
    monkeypatch.setattr(Store, "renames", renames)
    for instant in range(0, 500, STRIDE):
        place = f"{tmp_path}/{instant}" if renames else f"memory://{tmp_path}/{instant}"
        to_tfrecord(keyed(a=[1]), place)
        _, attempt = attempts(place)
        results: list[bool] = []

        def meanwhile(place: str = place, attempt: Any = attempt, results: list[bool] = results) -> None:
            if refused == "second":
                append(place)
                results.append(attempt())
                restore(place)
            else:
                restore(place)
                results.append(attempt())

        if refused == "first":
            append(place)
        result, is_stopped = stop(Store.at(place).fs, attempt, instant, meanwhile)
        check(place, any([result, *results]), instant)
        if not is_stopped:
            assert instant > 20
            return
    raise AssertionError("the commit does not end")


@pytest.mark.parametrize("renames", [True, False])
def test_no_attempt_lists_files_that_a_failed_attempt_removes(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, renames: bool
) -> None:
    """The store fails for one attempt, and the write is given up, although the other attempt goes on."""
    monkeypatch.setattr(Store, "renames", renames)
    for instant in range(0, 500, STRIDE):
        place = f"{tmp_path}/{instant}" if renames else f"memory://{tmp_path}/{instant}"
        to_tfrecord(keyed(a=[1]), place)
        run, attempt = attempts(place)

        def meanwhile(run: WriteRun = run, attempt: Any = attempt) -> None:
            with patch.object(Store, "create_exclusively", side_effect=ConnectionError):
                attempt()
            transaction.abandon(run)

        result, is_stopped = stop(Store.at(place).fs, attempt, instant, meanwhile)
        check(place, result, instant)
        if not is_stopped:
            assert instant > 20
            return
    raise AssertionError("the commit does not end")


def test_the_files_of_a_refused_write_stay_hidden_if_an_attempt_was_killed(tmp_path: Any) -> None:
    place = str(tmp_path)
    to_tfrecord(keyed(a=[1]), place)
    run, attempt = attempts(place)
    run.mark(f"{ATTEMPT}of-a-killed-process")
    append(place)
    assert not attempt()
    assert len([*tmp_path.rglob("*.tfrecord")]) == 3
    check(place, False, 0)


def test_an_attempt_that_a_refusal_does_not_see_is_refused(tmp_path: Any) -> None:
    """The other attempt begins after the refused attempt has looked for other attempts."""
    place = str(tmp_path)
    to_tfrecord(keyed(a=[1]), place)
    _, attempt = attempts(place)
    append(place)
    marks, results = WriteRun.marks, []

    def then_begin_another(run: WriteRun) -> list[str]:
        found = marks(run)
        with patch.object(WriteRun, "marks", marks):
            restore(place)
            results.append(attempt())
        return found

    with patch.object(WriteRun, "marks", then_begin_another):
        assert not attempt()
    assert results == [False]
    check(place, False, 0)


def test_an_attempt_after_other_writes_returns_the_version_of_its_write(tmp_path: Any) -> None:
    place = str(tmp_path)
    to_tfrecord(keyed(a=[1]), place)
    _, commit = planned(place, append=True)
    committed = commit().number
    append(place)
    append(place)
    assert (commit().number, committed) == (2, 2)


def check(place: str, has_committed: bool, instant: int) -> None:
    """Check that the rows of the write are there if an attempt succeeded, and that no other file is there
    after a cleanup.
    """
    found = {*read_tfrecord(place)["n"].compute().tolist()}
    assert has_committed == (3 in found), f"stopped before call {instant}"
    dask_tfrecord.cleanup(place, older_than="0s")
    assert {*read_tfrecord(place)["n"].compute().tolist()} == found
    store = Store.at(place)
    present = {store.relative(path) for path in store.fs.find(store.root)}
    versions = Snapshot.history(place)["version"].tolist()
    listed = {file.path for one in versions for file in Snapshot.open(place, version=one).files}
    assert {path.removeprefix("_tfrecord/kept/") for path in present if "part-" in path} == listed


@pytest.mark.parametrize("renames", [True, False])
def test_every_attempt_names_the_cause(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, renames: bool) -> None:
    """Dask repeats failed tasks on remote stores, and shows the error of the last attempt."""
    monkeypatch.setattr(Store, "renames", renames)
    place = f"{tmp_path}/data" if renames else f"memory://{tmp_path}/data"
    to_tfrecord(keyed(a=[1]), place)
    _, attempt = planned(place, append=True)
    to_tfrecord(pa.table({"other": [1]}), place, overwrite=True)
    for _ in range(3):
        with pytest.raises(SchemaError, match="the dataset does not"):
            attempt()
