"""Appends and overwrites: the old rows stay, concurrent appends are kept, and a write is committed once.

A run is recognised by its whole id: runs whose ids begin alike never touch each other's files and rows.

Modules: dataset.write.transaction, dataset.write.operations, dataset.write.run, dataset.write.destination,
dataset.snapshot.versions.
"""

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask.dataframe as dd
import pyarrow as pa
import pytest
from small_frames import by_key, collection, failing, files_of, keyed, put, values

import dask_tfrecord
from dask_tfrecord import (
    ConcurrentWriteError,
    SchemaError,
    TFRecordError,
    open_dataset,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.dataset.write.operations import Create, Operation
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import Transaction, commit, note_replaced
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage import store as stores
from dask_tfrecord.storage.store import LocalStore, Store

pytestmark = pytest.mark.usefixtures("one_thread")


def test_appended_columns_may_come_in_another_order(tmp_path: Path) -> None:
    to_tfrecord(collection(1, 2, m=[3, 4]), tmp_path)
    to_tfrecord(collection(5, 6, m=[7, 8])[["m", "n"]], tmp_path, append=True)
    frame = read_tfrecord(tmp_path).compute()
    assert frame.columns.tolist() == ["n", "m"]
    assert frame["m"].tolist() == [3, 4, 7, 8]


@pytest.mark.parametrize(
    ("ddf", "options", "feature", "problem"),
    [
        (collection(1, 2, k=[1, 2], m=[1, 2]), {}, "m", "the dataset does not"),
        (collection(1, 2)[["n"]].rename(columns={"n": "m"}), {}, "m", "the dataset does not"),
        (collection(1, 2), {}, "k", "the dataset has this column"),
        (collection(1, 2, k=[1, 2]).astype("int32"), {}, "n", "is int32, in the dataset it is int64"),
        (collection(1, 2, k=[1, 2]).astype("string"), {}, "n", "in the dataset it is int64"),
        (collection(1, 2, k=[1, 2]).astype({"k": "category"}), {}, "k", "in the dataset it is int64"),
        (collection(1, 2, k=[1, 2]), {"record_type": "sequence_example"}, None, "holds 'example' records"),
        (collection(1, 2, k=[1, 2]), {"partition_on": ["k"]}, "k", "is partitioned on nothing"),
    ],
)
def test_columns_that_do_not_agree_are_named_before_anything_is_written(
    tmp_path: Path, ddf: dd.DataFrame, options: dict[str, Any], feature: str | None, problem: str
) -> None:
    to_tfrecord(collection(1, k=[1]), tmp_path)
    before = files_of(tmp_path)
    with pytest.raises(SchemaError, match=problem) as caught:
        to_tfrecord(ddf, tmp_path, append=True, **options)
    assert (caught.value.feature, caught.value.path) == (feature, str(tmp_path))
    assert files_of(tmp_path) == before


def test_appended_partitions_come_in_the_directories_that_are_there(tmp_path: Path) -> None:
    to_tfrecord(keyed(a=[1], b=[2]), tmp_path, partition_on=["key"])
    to_tfrecord(keyed(b=[3], c=[4]), tmp_path, partition_on=["key"], append=True)
    assert by_key(tmp_path) == {"a": [1], "b": [2, 3], "c": [4]}
    message = r"on \['key'\], but the write partitions on nothing; pass"
    for ddf in (keyed(b=[3])[["n"]], keyed(b=[3])):
        with pytest.raises(SchemaError, match=message) as caught:
            to_tfrecord(ddf, tmp_path, append=True)
        assert caught.value.feature == "key"


def test_many_appends_at_once_are_all_there(place: str, appended_snapshots: str) -> None:
    lazies = [to_tfrecord(collection(n), place, append=True, compute=False) for n in range(8)]
    with ThreadPoolExecutor(len(lazies)) as pool:
        numbers = [done.version for done in pool.map(lambda lazy: lazy.compute(), lazies)]
    assert sorted(numbers) == list(range(1, 9))
    assert sorted(values(place)) == list(range(8))


def test_an_overwrite_does_not_take_a_number_that_is_free_again(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two overwrites commit after a write chose its number; the second removes the snapshot of the first."""
    to_tfrecord(collection(1), place)
    create = Store.create_exclusively

    def overtaken(self: Store, path: str, data: bytes) -> None:
        monkeypatch.setattr(Store, "create_exclusively", create)
        for n in (2, 3):
            to_tfrecord(collection(n), place, overwrite=True)
        create(self, path, data)

    lazy = to_tfrecord(collection(4), place, compute=False, overwrite=True)
    monkeypatch.setattr(Store, "create_exclusively", overtaken)
    with pytest.raises(ConcurrentWriteError):
        lazy.compute()
    assert values(place) == [3]


def planned(ddf: dd.DataFrame, place: str | Path, **options: Any) -> tuple[WriteRun, Operation]:
    lazy = to_tfrecord(ddf, place, compute=False, **options)
    return lazy.expr.run, lazy.expr.operation


TWINS: dict[str, tuple[dict[str, Any], dict[str, list[int]]]] = {
    "create": ({}, {"a": [1]}),
    "overwrite": ({"overwrite": True}, {"a": [1]}),
    "partitions": ({"overwrite": "partitions"}, {"a": [1], "b": [0]}),
}


def meanwhile(monkeypatch: pytest.MonkeyPatch, step: str, work: Callable[[], Any]) -> None:
    """Do something before the first call of a step of a commit."""
    owner: Any = Transaction if hasattr(Transaction, step) else transaction
    original = getattr(owner, step)

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(owner, step, original)
        work()
        return original(*args)

    monkeypatch.setattr(owner, step, overtaken)


@pytest.mark.parametrize("step", ["_try", "_plan", "publish_files", "_store"])
@pytest.mark.parametrize("mode", TWINS)
def test_a_commit_that_runs_twice_at_once_commits_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, step: str
) -> None:
    """A worker that Dask believes dead goes on: one attempt runs completely inside the other."""
    options, expected = TWINS[mode]
    if mode != "create":
        to_tfrecord(keyed(a=[0], b=[0]), tmp_path, partition_on="key")
    run, operation = planned(keyed(a=[1]), tmp_path, partition_on="key", **options)
    files = run.write(pa.table({"key": ["a"], "n": [1]}), 0, 1)
    meanwhile(monkeypatch, step, lambda: transaction.commit(run, operation, files))
    transaction.commit(run, operation, files)
    assert by_key(tmp_path) == expected


@pytest.mark.parametrize(
    ("lost", "later"),
    [(False, {}), (True, {"append": True}), (True, {"overwrite": True}), (False, {"append": True})],
    ids=str,
)
def test_an_append_that_runs_again_after_an_overwrite_is_not_added_again(
    place: str, lost: bool, later: dict[str, bool]
) -> None:
    """A worker dies after its commit. Dask repeats the commit, and the writes if the receipts are lost."""
    to_tfrecord(collection(1), place)
    run, operation = planned(collection(2), place, append=True)
    table = pa.table({"n": [2]})
    files = run.write(table, 0, 1)
    assert transaction.commit(run, operation, files).number == 2
    assert to_tfrecord(collection(3), place, overwrite=True).version == 3
    if later:
        to_tfrecord(collection(4), place, **later)
    before = values(place)
    if lost:
        run.write(table, 0, 1)
    assert transaction.commit(run, operation, files).run != run.run
    assert values(place) == before
    assert not [name for name in files_of(place) if f"part-{run.run}" in name or "staging" in name]


def test_a_snapshot_names_the_last_writes_before_it(tmp_path: Path) -> None:
    modes = [{}, {"append": True}, {"overwrite": True}, {"append": True}]
    snapshots = []
    for mode in modes:
        to_tfrecord(collection(1), tmp_path, **mode)
        snapshots.append(Snapshot.open(tmp_path))
    assert [*Snapshot.open(tmp_path).commits()] == [
        (one.number, one.run, None) for one in reversed(snapshots)
    ]


def test_an_overwrite_touches_nothing_before_it_is_computed_and_if_it_fails(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path)
    before = files_of(tmp_path)
    with pytest.raises(RuntimeError, match="on purpose"):
        to_tfrecord(failing(collection(2)), tmp_path, overwrite=True)
    lazy = to_tfrecord(collection(2), tmp_path, overwrite=True, compute=False)
    assert files_of(tmp_path) == before
    assert values(tmp_path) == [1]
    lazy.compute()
    assert values(tmp_path) == [2]


@pytest.mark.parametrize("mode", [{}, {"append": True}], ids=str)
def test_a_write_that_runs_again_leaves_the_partitions_that_were_kept_of_it(
    place: str, mode: dict[str, bool]
) -> None:
    lazy = to_tfrecord(keyed(a=[1], b=[2]), place, partition_on="key", compute=False, **mode)
    lazy.compute()
    to_tfrecord(keyed(a=[3]), place, partition_on="key", overwrite="partitions")

    assert lazy.compute().version == 2
    assert by_key(place) == {"a": [3], "b": [2]}


def test_no_rows_replace_no_partitions(tmp_path: Path) -> None:
    ddf = keyed(a=[1])
    to_tfrecord(ddf, tmp_path, partition_on="key")
    to_tfrecord(ddf[ddf["n"] > 1], tmp_path, partition_on="key", overwrite="partitions")
    assert by_key(tmp_path) == {"a": [1]}


def a_run(root: Path | str) -> WriteRun:
    return WriteRun(Store.at(root), Schema.from_arrow(pa.schema({"n": pa.int64()})), os.urandom(16).hex())


def written(run: WriteRun, *numbers: int) -> list[Any]:
    """Write a partition for each number, and return the receipts."""
    count = len(numbers)
    return [file for at, n in enumerate(numbers) for file in run.write(pa.table({"n": [n]}), at, count)]


ALIKE = [f"0123abcd{number:024x}" for number in range(3)]


def named(run: str, place: str | Path, **options: bool) -> tuple[WriteRun, Operation]:
    plan, operation = planned(collection(0), place, **options)
    return replace(plan, run=run), operation


def wrote(plan: tuple[WriteRun, Operation], n: int) -> None:
    transaction.commit(*plan, plan[0].write(pa.table({"n": [n]}), 0, 1))


@pytest.mark.parametrize("mode", [{"append": True}, {"overwrite": True}], ids=str)
def test_writes_whose_ids_begin_alike_keep_each_others_rows(place: str, mode: dict[str, bool]) -> None:
    first, second, open_run = (named(run, place, append=True) for run in ALIKE)
    wrote(first, 1)
    if "overwrite" in mode:
        second = named(ALIKE[1], place, overwrite=True)
    open_run[0].write(pa.table({"n": [3]}), 0, 1)
    wrote(second, 2)
    expected = [1, 2] if "append" in mode else [2]
    assert values(place) == expected
    wrote(first, 1)  # the task of the commit ran again
    assert values(place) == values(place, use_snapshot=False) == expected
    assert Store.at(place).names("_tfrecord/staging") == [ALIKE[2]]
    assert len(dask_tfrecord.open_dataset(place).cleanup(older_than="0s")) == 1
    assert values(place) == expected


def killed_after_the_commit(place: str | Path, n: int, **mode: bool) -> None:
    with patch.object(transaction, "remove_replaced"):
        to_tfrecord(collection(n), place, **mode)


@pytest.mark.parametrize(
    ("start", "mode", "expected"),
    [
        ("own", {"append": True}, [1, 2]),
        ("own", {"overwrite": True}, [2]),
        ("foreign", {"overwrite": True}, [2]),
    ],
    ids=str,
)
def test_a_committed_write_is_read_without_the_snapshot_though_it_was_killed(
    place: str, start: str, mode: dict[str, bool], expected: list[int]
) -> None:
    """After an overwrite, the files that it replaces are not read, though they are still there."""
    if start == "own":
        to_tfrecord(collection(1), place)
    else:
        put(place, "a.tfrecord", 1)
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


def test_an_overwrite_that_was_killed_is_finished_after_later_commits(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append has looked for interrupted commits before the overwrite is killed, and commits after it."""
    to_tfrecord(collection(1), place)
    work = transaction.publish_files

    def overtaken(*args: object) -> None:
        monkeypatch.setattr(transaction, "publish_files", work)
        killed_after_the_commit(place, 2, overwrite=True)
        work(*args)

    monkeypatch.setattr(transaction, "publish_files", overtaken)
    to_tfrecord(collection(3), place, append=True)
    assert values(place) == sorted(values(place, use_snapshot=False)) == [2, 3]
    to_tfrecord(collection(4), place, append=True)
    assert Store.at(place).names("_tfrecord/staging") == []
    assert open_dataset(place).history()["version"].min() == 2
    present = [path for path in files_of(place) if path.endswith(".tfrecord")]
    assert len(present) == len(Snapshot.open(place).files)
    assert values(place) == [2, 3, 4]


def test_a_file_that_is_in_the_dataset_again_is_not_removed(tmp_path: Path) -> None:
    """A run noted that it replaces a file, which a later version lists again."""
    to_tfrecord(collection(1, npartitions=1), tmp_path)
    first = Snapshot.open(tmp_path)
    to_tfrecord(collection(2), tmp_path, append=True)
    second = Snapshot.open(tmp_path)
    note_replaced(Store.at(tmp_path), second.run, [first.files[0].path])
    assert sorted(values(tmp_path, use_snapshot=False)) == [1, 2]
    to_tfrecord(collection(3), tmp_path, append=True)
    assert values(tmp_path) == [1, 2, 3]


def test_an_overwrite_that_was_killed_does_not_remove_later_exports(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path)
    dask_tfrecord.open_dataset(tmp_path).export("tfmd")
    killed_after_the_commit(tmp_path, 2, overwrite=True)
    (exported,) = dask_tfrecord.open_dataset(tmp_path).export("tfmd")
    to_tfrecord(collection(3), tmp_path, append=True)
    assert Path(exported).exists()


@pytest.mark.parametrize("rows", ["same", "other", "as many bytes"])
@pytest.mark.parametrize("links", [True, False])
def test_tasks_that_run_again_after_a_killed_commit_replace_no_published_file(
    place: str, monkeypatch: pytest.MonkeyPatch, rows: str, links: bool
) -> None:
    """With the same rows, the second attempt succeeds. Otherwise, the files of the first may be committed."""
    if not links:
        monkeypatch.setattr(LocalStore, "_move_new", lambda *_: False)  # as on a disk without hard links
    schema = Schema.from_arrow(pa.schema({"n": pa.int64()}))
    run = WriteRun(Store.at(place), schema, columnar=("n",))
    first = run.write(pa.table({"n": [1, 2]}), 0, 1)
    with (
        patch.object(Transaction, "_store", side_effect=KeyboardInterrupt),
        patch.object(Store, "remove_file"),  # a killed attempt leaves its mark
        pytest.raises(KeyboardInterrupt),
    ):
        commit(run, Create(), first)
    data = {
        path: run.store.fs.cat_file(run.store.join(path)) for path in (first[0].path, first[0].columns.path)
    }
    again = run.write(
        pa.table({"n": {"same": [1, 2], "other": [1, 1 << 40], "as many bytes": [3, 4]}[rows]}), 0, 1
    )
    if rows == "same":
        assert commit(run, Create(), again).number == 1
        assert values(place) == [1, 2]
    else:
        with pytest.raises(ConcurrentWriteError, match="different rows under the name"):
            commit(run, Create(), again)
    assert data == {path: run.store.fs.cat_file(run.store.join(path)) for path in data}


@pytest.mark.parametrize("rows", [[3, 4], [1, 1 << 40]], ids=["as many bytes", "other bytes"])
def test_a_commit_publishes_the_files_of_the_attempt_whose_result_it_has(place: str, rows: list[int]) -> None:
    """Another attempt at the task has stored other rows meanwhile."""
    run = WriteRun(Store.at(place), Schema.from_arrow(pa.schema({"n": pa.int64()})), columnar=("n",))
    first = run.write(pa.table({"n": [1, 2]}), 0, 1)
    run.write(pa.table({"n": rows}), 0, 1)
    commit(run, Create(), first)
    assert values(place) == [1, 2]
    assert open_dataset(place).verify()["agrees"].all()


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place on a store that uploads files to their final paths."""
    monkeypatch.setattr(stores, "_UPLOADING", {"memory"})
    return f"memory://{tmp_path}/data"


def test_an_attempt_at_a_task_replaces_no_uploaded_file(uploads: str) -> None:
    """Not even after the commit, because a task may run again when its result is lost."""
    run = WriteRun(Store.at(uploads), Schema.from_arrow(pa.schema({"n": pa.int64()})), columnar=("n",))
    first = run.write(pa.table({"n": [1, 2]}), 0, 1)
    run.write(pa.table({"n": [3, 4]}), 0, 1)
    commit(run, Create(), first)
    assert values(uploads) == values(uploads, use_snapshot=False) == [1, 2]
    again = run.write(pa.table({"n": [5, 6]}), 0, 1)
    assert values(uploads) == values(uploads, use_snapshot=False) == [1, 2]
    assert commit(run, Create(), again).number == 1
    assert values(uploads) == values(uploads, use_snapshot=False) == [1, 2]
    assert open_dataset(uploads).verify()["agrees"].all()
    assert not Store.at(uploads).names("_tfrecord/staging")


def test_a_killed_computation_removes_no_upload_of_another(uploads: str) -> None:
    """Two processes compute one plan, and one of them is killed just before it creates the version."""
    run = a_run(uploads)
    first, second = written(run, 1, 2), written(run, 3, 4)
    with patch.object(Transaction, "_store", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        commit(run, Create(), first)
    commit(run, Create(), second)
    assert values(uploads) == values(uploads, use_snapshot=False) == [3, 4]
    assert commit(run, Create(), first).number == 1
    assert values(uploads) == values(uploads, use_snapshot=False) == [3, 4]


def test_a_commit_that_runs_again_keeps_files_that_another_commit_is_moving(uploads: str) -> None:
    """The version of the commit has expired, and a kept version lists its file."""
    to_tfrecord(collection(1), uploads)
    run, operation = planned(collection(2), uploads, append=True)
    files = run.write(pa.table({"n": [2]}), 0, 1)
    commit(run, operation, files)
    to_tfrecord(collection(3), uploads, append=True)
    open_dataset(uploads).expire(versions=1, grace="0s")
    with patch.object(transaction, "remove_replaced"):
        open_dataset(uploads).compact(keep_versions=True)
    again = run.write(pa.table({"n": [4]}), 0, 1)
    for attempt in (files, again):
        assert commit(run, operation, attempt).number == 5
        assert values(uploads, version=3) == values(uploads) == [1, 2, 3]
        assert values(uploads, use_snapshot=False) == [1, 2, 3]


def test_uploads_that_cleanup_has_removed_are_not_committed(uploads: str) -> None:
    to_tfrecord(collection(1), uploads)
    run, operation = planned(collection(2), uploads, append=True)
    files = run.write(pa.table({"n": [2]}), 0, 1)
    assert len(open_dataset(uploads).cleanup(older_than="0s")) == 2
    with pytest.raises(ConcurrentWriteError, match="removed before its write was committed, by `cleanup`"):
        commit(run, operation, files)
    assert values(uploads) == [1]


@pytest.mark.parametrize("is_pickled", [False, True])
@pytest.mark.parametrize("mode", ["append", "overwrite", "partitions"])
def test_a_dataset_that_replaced_the_planned_one_gets_only_appends(
    place: str, mode: str, is_pickled: bool
) -> None:
    """Both datasets have one version, and the directory was replaced before the tasks of the write began."""
    options = {"append": {"append": True}, "overwrite": {"overwrite": True}}
    to_tfrecord(keyed(a=[1]), place, partition_on="key")
    how = options.get(mode, {"overwrite": "partitions"})
    run, operation = planned(keyed(a=[2]), place, partition_on="key", **how)
    Store.at(place).fs.rm(Store.at(place).root, recursive=True)
    to_tfrecord(keyed(a=[3]), place, partition_on="key")
    if is_pickled:
        run, operation = pickle.loads(pickle.dumps((run, operation)))
    files = run.write(pa.table({"key": ["a"], "n": [2]}), 0, 1)
    if mode == "append":
        commit(run, operation, files)
    else:
        with pytest.raises(ConcurrentWriteError):
            commit(run, operation, files)
    assert by_key(place) == {"a": [2, 3] if mode == "append" else [3]}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_plan_that_parent_and_child_compute_is_committed_once(tmp_path: Path) -> None:
    """The rows of each computation are its own, but have equal sizes."""
    ddf = collection(*range(10), npartitions=3).map_partitions(lambda part: part.assign(n=os.getpid()))
    planned = to_tfrecord(ddf, tmp_path, compute=False)
    child = os.fork()
    if not child:
        try:
            planned.compute()
            os._exit(0)
        except BaseException:  # whatever happens, the child must not go on with the tests of its parent
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert planned.compute().version == 1
    assert values(tmp_path) == [child] * 10
    assert open_dataset(tmp_path).verify()["agrees"].all()
