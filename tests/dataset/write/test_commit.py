"""The commit of a write is atomic if it is interrupted, repeated or concurrent.

Modules: dataset.write.transaction, dataset.write.run, dataset.write.destination.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import DestinationError, TFRecordError, compact, delete, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.write.destination import check_destination
from dask_tfrecord.dataset.write.operations import Create
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import commit
from dask_tfrecord.files.entry import is_part
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.fields import Schema

pytestmark = pytest.mark.usefixtures("one_thread")


def collection() -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"n": range(10)}), npartitions=3)


def content(root: Path) -> list[str]:
    """The names of all files below the root."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def values(root: Path) -> list[int]:
    """The values of n in the order of the files, as protobuf reads them."""
    return [
        value
        for path in sorted(root.glob("part-*"))
        for payload in oracle.read_payloads(path)
        for value in oracle.parse(payload).features["n"].values
    ]


def failing(ddf: dd.DataFrame) -> dd.DataFrame:
    def fail(part: pd.DataFrame) -> pd.DataFrame:
        if 9 in part["n"].tolist():
            raise RuntimeError("on purpose")
        return part

    return ddf.map_partitions(fail, meta=ddf._meta)


def test_a_write_that_fails_leaves_no_dataset_and_can_be_repeated(place: str) -> None:
    with pytest.raises(RuntimeError, match="on purpose"):
        to_tfrecord(failing(collection()), place)
    with pytest.raises(FileNotFoundError):
        read_tfrecord(place)
    assert to_tfrecord(collection(), place).records == 10
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
    commit(run, Create(), receipts)
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
            commit(run, Create(), receipts)
    snapshot = commit(run, Create(), receipts)
    assert commit(run, Create(), receipts) == snapshot
    assert values(tmp_path) == [1, 2]
    assert content(tmp_path)[:2] == ["_SUCCESS", "_tfrecord/00000001.parquet"]
    assert len(content(tmp_path)) == 4


def test_a_write_task_that_runs_again_after_the_commit_changes_nothing(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    snapshot = commit(run, Create(), written(run, 1, 2))
    before = content(tmp_path)
    assert commit(run, Create(), written(run, 1, 2)) == snapshot
    assert content(tmp_path) == before


def test_of_two_writes_to_one_path_the_first_wins_and_the_other_raises(place: str) -> None:
    first, second = a_run(place), a_run(place)
    one, other = written(first, 1), written(second, 2)
    commit(first, Create(), one)
    with pytest.raises(DestinationError, match="another write committed"):
        commit(second, Create(), other)
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
    assert to_tfrecord(collection(), tmp_path).records == 10
    assert len(read_tfrecord(tmp_path).compute()) == 10


def test_writes_that_run_side_by_side_do_not_touch_each_others_files(tmp_path: Path) -> None:
    first, second = a_run(tmp_path), a_run(tmp_path)
    one, _ = written(first, 1), written(second, 2)
    commit(first, Create(), one)
    staged = list((tmp_path / "_tfrecord" / "staging").rglob("part-*"))
    assert [path.parent.name for path in staged] == [second.run]


def test_a_part_of_a_write_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    to_tfrecord(collection(), tmp_path)
    (tmp_path / "_tfrecord" / "00000001.parquet").unlink()
    assert len(read_tfrecord(tmp_path)) == 10
    last = sorted(tmp_path.glob("part-*"))[-1]
    last.rename(tmp_path / "_last")
    with pytest.raises(TFRecordError, match="a write that has not finished"):
        read_tfrecord(tmp_path)
    assert len(read_tfrecord(f"{tmp_path}/*.tfrecord*")) == 7


@pytest.mark.parametrize("change", ["delete rows", "delete a file", "compact", "lose a file"])
def test_a_copy_without_metadata_is_read_with_a_warning_if_files_of_a_write_are_missing(
    tmp_path: Path, change: str
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    to_tfrecord(collection(), source)
    match change:
        case "delete rows":
            delete(source, [("n", "==", 1)])
        case "delete a file":
            delete(source, [("n", "<=", 2)])
        case "compact":
            compact(source, filters=[("n", "<", 6)])
    expected = sorted(read_tfrecord(source)["n"].compute())
    copy.mkdir()
    for path in sorted(source.glob("part-*"))[: -1 if change == "lose a file" else None]:
        shutil.copy(path, copy)
    with pytest.warns(UserWarning, match="other files of the same write are missing.*_tfrecord"):
        found = sorted(read_tfrecord(copy)["n"].compute())
    assert found == (expected[:-3] if change == "lose a file" else expected)
    (copy / "_tfrecord").mkdir()
    with pytest.raises(TFRecordError, match="a write that has not finished"):
        read_tfrecord(copy)


def test_own_names_are_recognised() -> None:
    run = a_run("x")
    assert is_part(run.name(0, 1))
    assert not is_part("part-00000-0123abcd-c000.tfrecord")
