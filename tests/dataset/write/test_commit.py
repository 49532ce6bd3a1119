"""The commit of a write is atomic if it is interrupted, repeated or concurrent.

A run is recognised by its whole id: runs whose ids begin alike never touch each other's files and rows.

Modules: dataset.write.transaction, dataset.write.run, dataset.write.destination, dataset.snapshot.versions.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from small_frames import collection, files_of, put, values

import dask_tfrecord
from dask_tfrecord import (
    DestinationError,
    Snapshot,
    TFRecordError,
    compact,
    delete,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.dataset.write.destination import check_destination
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import commit, note_replaced
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.fields import Schema

pytestmark = pytest.mark.usefixtures("one_thread")


TEN = collection(*range(10), npartitions=3)


def failing(ddf: dd.DataFrame) -> dd.DataFrame:
    def fail(part: pd.DataFrame) -> pd.DataFrame:
        if 9 in part["n"].tolist():
            raise RuntimeError("on purpose")
        return part

    return ddf.map_partitions(fail, meta=ddf._meta)


def test_a_write_that_fails_leaves_no_dataset_and_can_be_repeated(place: str) -> None:
    with pytest.raises(RuntimeError, match="on purpose"):
        to_tfrecord(failing(TEN), place)
    with pytest.raises(FileNotFoundError):
        read_tfrecord(place)
    assert to_tfrecord(TEN, place).records == 10
    assert read_tfrecord(place)["n"].compute().tolist() == list(range(10))


def a_run(root: Path | str) -> WriteRun:
    return WriteRun(Store.at(root), Schema.from_arrow(pa.schema({"n": pa.int64()})), os.urandom(16).hex())


def written(run: WriteRun, *numbers: int) -> list[Any]:
    """Write a partition for each number, and return the receipts."""
    count = len(numbers)
    return [file for at, n in enumerate(numbers) for file in run.write(pa.table({"n": [n]}), at, count)]


def test_files_are_hidden_until_the_commit(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    receipts = written(run, 1, 2)
    check_destination(run.store)
    assert not list(tmp_path.glob("part-*"))
    commit(run, receipts)
    assert values(tmp_path) == [1, 2]
    assert not (tmp_path / "_tfrecord" / "staging").exists()


STEPS = ["move", "place", "create_exclusively", "sync_directory", "remove"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("time", [0, 1])
def test_a_commit_that_was_interrupted_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, time: int
) -> None:
    """The interrupt comes before the step, or between its effect and its return."""
    run = a_run(tmp_path)
    receipts = written(run, 1, 2)
    work = getattr(Store, step)

    def interrupted(*args: Any) -> None:
        if time:
            work(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            commit(run, receipts)
    snapshot = commit(run, receipts)
    assert commit(run, receipts) == snapshot
    assert values(tmp_path) == [1, 2]
    parts = {file.path for file in snapshot.files}
    assert files_of(tmp_path) == {"_SUCCESS", "_tfrecord/00000001.parquet", *parts}


def test_of_two_writes_to_one_path_the_first_wins_and_the_other_raises(place: str) -> None:
    first, second = a_run(place), a_run(place)
    one, other = written(first, 1), written(second, 2)
    commit(first, one)
    with pytest.raises(DestinationError, match="another write committed"):
        commit(second, other)
    assert read_tfrecord(place)["n"].compute().tolist() == [1]
    assert len(first.store.fs.glob(first.store.join("part-*"))) == 1


def test_an_error_after_the_snapshot_was_created_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of an object store may be lost after the object was created."""
    create = Store.create_exclusively

    def answer_lost(self: Store, path: str, data: bytes) -> None:
        create(self, path, data)
        raise TimeoutError

    monkeypatch.setattr(Store, "create_exclusively", answer_lost)
    assert to_tfrecord(TEN, tmp_path).records == len(read_tfrecord(tmp_path).compute()) == 10


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (lambda path: delete(path, [("n", "==", 1)]), 0),
        (lambda path: delete(path, [("n", "<=", 2)]), 0),
        (lambda path: compact(path, filters=[("n", "<", 6)]), 0),
        (lambda path: None, 3),
    ],
    ids=["delete rows", "delete a file", "compact", "lose a file"],
)
def test_a_copy_without_metadata_is_read_with_a_warning_if_files_of_a_write_are_missing(
    tmp_path: Path, change: Callable[[Path], Any], lost: int
) -> None:
    to_tfrecord(TEN, tmp_path)
    change(tmp_path)
    expected = sorted(read_tfrecord(tmp_path)["n"].compute())
    shutil.rmtree(tmp_path / "_tfrecord")
    if lost:
        assert len(read_tfrecord(tmp_path)) == 10
        max(tmp_path.glob("part-*")).unlink()
    with pytest.warns(UserWarning, match="other files of the same write are missing.*_tfrecord"):
        found = sorted(read_tfrecord(tmp_path)["n"].compute())
    assert found == expected[: len(expected) - lost]
    (tmp_path / "_tfrecord").mkdir()
    with pytest.raises(TFRecordError, match="a write that has not finished"):
        read_tfrecord(tmp_path)


ALIKE = [f"0123abcd{number:024x}" for number in range(3)]


def planned(place: str | Path, run: str, **options: bool) -> WriteRun:
    lazy = to_tfrecord(collection(0), place, compute=False, **options)
    return replace(lazy.expr.run, run=run)


def wrote(run: WriteRun, n: int) -> None:
    transaction.commit(run, run.write(pa.table({"n": [n]}), 0, 1))


@pytest.mark.parametrize("mode", [{"append": True}, {"overwrite": True}], ids=str)
def test_writes_whose_ids_begin_alike_keep_each_others_rows(place: str, mode: dict[str, bool]) -> None:
    first, second, open_run = (planned(place, run, append=True) for run in ALIKE)
    wrote(first, 1)
    if "overwrite" in mode:
        second = planned(place, second.run, overwrite=True)
    open_run.write(pa.table({"n": [3]}), 0, 1)
    wrote(second, 2)
    expected = [1, 2] if "append" in mode else [2]
    assert values(place) == expected
    wrote(first, 1)  # the task of the commit ran again
    assert values(place) == values(place, use_snapshot=False) == expected
    assert Store.at(place).names("_tfrecord/staging") == [open_run.run]
    assert len(dask_tfrecord.cleanup(place, older_than="0s")) == 1
    assert values(place) == expected


def test_a_new_run_gets_an_id_that_the_dataset_does_not_contain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of a listed file, of two versions and of an open run are drawn first."""
    monkeypatch.setattr("dask_tfrecord.dataset.snapshot.versions._MOST_ANCESTORS", 1)
    runs = [to_tfrecord(collection(n), tmp_path, append=True).run for n in range(3)]
    assert Snapshot.open(tmp_path).ancestors == (runs[1],)
    open_run = planned(tmp_path, ALIKE[0], append=True)
    open_run.write(pa.table({"n": [9]}), 0, 1)
    drawn = iter([*runs, ALIKE[0], ALIKE[1]])
    monkeypatch.setattr("dask_tfrecord.dataset.write.run.uuid4", lambda: SimpleNamespace(hex=next(drawn)))
    assert to_tfrecord(collection(3), tmp_path, append=True).run == ALIKE[1]
    assert values(tmp_path) == [0, 1, 2, 3]


def begin(place: str, start: str) -> None:
    """Make a dataset of one row, or a file of another writer."""
    if start == "own":
        to_tfrecord(collection(1), place)
    else:
        put(place, "a.tfrecord", 1)


def killed_after_the_commit(place: str | Path, n: int, **mode: bool) -> None:
    with patch.object(transaction, "remove_replaced"):
        to_tfrecord(collection(n), place, **mode)


@pytest.mark.parametrize("start", ["own", "foreign"])
@pytest.mark.parametrize(
    ("mode", "expected"), [({"append": True}, [1, 2]), ({"overwrite": True}, [2])], ids=str
)
def test_a_committed_write_is_read_without_the_snapshot_though_it_was_killed(
    place: str, mode: dict[str, bool], start: str, expected: list[int]
) -> None:
    """After an overwrite, the files that it replaces are not read, though they are still there."""
    begin(place, start)
    killed_after_the_commit(place, 2, **mode)
    for name, use_snapshot in product(("", "/*"), (True, False)):
        assert sorted(values(f"{place}{name}", use_snapshot=use_snapshot)) == expected


def test_what_is_unknown_without_the_snapshot_raises(tmp_path: Path) -> None:
    """The snapshot is damaged, and a write was killed before or after its commit."""
    to_tfrecord(collection(1), tmp_path)
    killed_after_the_commit(tmp_path, 2, append=True)
    (tmp_path / "_tfrecord" / "00000002.parquet").write_bytes(b"damaged")
    with pytest.raises(TFRecordError, match=r"unknown if the files .* are committed; pass a list") as caught:
        read_tfrecord(tmp_path, use_snapshot=False)
    assert not caught.value.remedies
    files = sorted(map(str, tmp_path.glob("part-*")))
    assert sorted(read_tfrecord(files, use_snapshot=False)["n"].compute()) == [1, 2]


@pytest.mark.parametrize("start", ["own", "foreign"])
def test_an_overwrite_that_was_killed_is_finished_after_later_commits(
    place: str, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """An append has looked for interrupted commits before the overwrite is killed, and commits after it."""
    begin(place, start)
    work = transaction.publish_files

    def overtaken(run: WriteRun, files: object) -> None:
        monkeypatch.setattr(transaction, "publish_files", work)
        killed_after_the_commit(place, 2, overwrite=True)
        work(run, files)

    monkeypatch.setattr(transaction, "publish_files", overtaken)
    to_tfrecord(collection(3), place, append=True)
    assert values(place) == sorted(values(place, use_snapshot=False)) == [2, 3]
    if start == "own":
        to_tfrecord(collection(4), place, append=True)
    else:
        assert dask_tfrecord.cleanup(place, older_than="0s") == []
    assert Store.at(place).names("_tfrecord/staging") == []
    assert Snapshot.history(place)["version"].min() == 2 - (start == "foreign")
    present = [path for path in files_of(place) if path.endswith(".tfrecord")]
    assert len(present) == len(Snapshot.open(place).files)
    assert values(place) == ([2, 3, 4] if start == "own" else [2, 3])


def test_a_file_that_is_in_the_dataset_again_is_not_removed(tmp_path: Path) -> None:
    """A run noted that it replaces a file, which a later version lists again."""
    first = to_tfrecord(collection(1, npartitions=1), tmp_path)
    second = to_tfrecord(collection(2), tmp_path, append=True)
    note_replaced(Store.at(tmp_path), second.run, [first.files[0].path])
    to_tfrecord(collection(3), tmp_path, append=True)
    assert values(tmp_path) == [1, 2, 3]


def test_an_overwrite_that_was_killed_does_not_remove_later_exports(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path)
    dask_tfrecord.export(tmp_path, "tfmd")
    killed_after_the_commit(tmp_path, 2, overwrite=True)
    (exported,) = dask_tfrecord.export(tmp_path, "tfmd")
    to_tfrecord(collection(3), tmp_path, append=True)
    assert Path(exported).exists()
