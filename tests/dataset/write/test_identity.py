"""A run is recognised by its whole id: runs whose ids begin alike never touch each other's files and rows.

Modules: dataset.write.transaction, dataset.write.run, dataset.snapshot.versions.
"""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from small_frames import collection, put, values

import dask_tfrecord
from dask_tfrecord import Snapshot, TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.dataset.write.operations import Operation
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import note_replaced
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

ALIKE = [f"0123abcd{number:024x}" for number in range(3)]


def planned(place: str | Path, run: str, **options: bool) -> tuple[WriteRun, Operation]:
    lazy = to_tfrecord(collection(0), place, compute=False, **options)
    return replace(lazy.expr.run, run=run), lazy.expr.operation


def wrote(planned: tuple[WriteRun, Operation], n: int) -> None:
    transaction.commit(*planned, planned[0].write(pa.table({"n": [n]}), 0, 1))


@pytest.mark.usefixtures("appended_snapshots")
@pytest.mark.parametrize("mode", [{"append": True}, {"overwrite": True}], ids=str)
def test_writes_whose_ids_begin_alike_keep_each_others_rows(place: str, mode: dict[str, bool]) -> None:
    first, second, open_run = (planned(place, run, append=True) for run in ALIKE)
    wrote(first, 1)
    if "overwrite" in mode:
        second = planned(place, ALIKE[1], overwrite=True)
    open_run[0].write(pa.table({"n": [3]}), 0, 1)
    wrote(second, 2)
    expected = [1, 2] if "append" in mode else [2]
    assert values(place) == expected
    wrote(first, 1)  # the task of the commit ran again
    assert values(place) == read_tfrecord(place, use_snapshot=False)["n"].compute().tolist() == expected
    store = Store.at(place)
    assert store.names("_tfrecord/staging") == [ALIKE[2]]
    assert len(dask_tfrecord.cleanup(place, older_than="0s")) == 1
    assert values(place) == expected


def killed_after_the_commit(place: str | Path, n: int, monkeypatch: pytest.MonkeyPatch, **mode: bool) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(transaction, "remove_replaced", lambda *args: None)
        to_tfrecord(collection(n), place, **mode)


@pytest.mark.parametrize("name", ["", "/*"])
@pytest.mark.parametrize("start", ["own", "foreign"])
@pytest.mark.parametrize("mode", [{"append": True}, {"overwrite": True}], ids=str)
def test_a_committed_write_is_read_without_the_snapshot_though_it_was_killed(
    place: str, monkeypatch: pytest.MonkeyPatch, mode: dict[str, bool], start: str, name: str
) -> None:
    """After an overwrite, the files that it replaces are not read, though they are still there."""
    if start == "own":
        to_tfrecord(collection(1), place)
    else:
        put(place, "a.tfrecord", 1)
    killed_after_the_commit(place, 2, monkeypatch, **mode)
    expected = [1, 2] if "append" in mode else [2]
    for use_snapshot in (True, False):
        found = read_tfrecord(f"{place}{name}", use_snapshot=use_snapshot)["n"].compute().tolist()
        assert sorted(found) == expected


def test_what_is_unknown_without_the_snapshot_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot is damaged, and a write was killed before or after its commit."""
    to_tfrecord(collection(1), tmp_path)
    killed_after_the_commit(tmp_path, 2, monkeypatch, append=True)
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
    if start == "own":
        to_tfrecord(collection(1), place)
    else:
        put(place, "a.tfrecord", 1)
    work = transaction.publish_files

    def overtaken(run: WriteRun, files: object) -> None:
        monkeypatch.setattr(transaction, "publish_files", work)
        killed_after_the_commit(place, 2, monkeypatch, overwrite=True)
        work(run, files)

    monkeypatch.setattr(transaction, "publish_files", overtaken)
    to_tfrecord(collection(3), place, append=True)
    assert values(place) == [2, 3]
    assert sorted(read_tfrecord(place, use_snapshot=False)["n"].compute()) == [2, 3]
    if start == "own":
        to_tfrecord(collection(4), place, append=True)
    else:
        assert dask_tfrecord.cleanup(place, older_than="0s") == []
    store = Store.at(place)
    assert store.names("_tfrecord/staging") == []
    snapshot = Snapshot.open(place)
    assert Snapshot.history(place)["version"].min() == 2 - (start == "foreign")
    present = [path for path in store.fs.find(store.root) if path.endswith(".tfrecord")]
    assert len(present) == len(snapshot.files)
    assert values(place) == ([2, 3, 4] if start == "own" else [2, 3])


def test_a_file_that_is_in_the_dataset_again_is_not_removed(tmp_path: Path) -> None:
    """A run noted that it replaces a file, which a later version lists again."""
    first = to_tfrecord(collection(1, npartitions=1), tmp_path)
    second = to_tfrecord(collection(2), tmp_path, append=True)
    note_replaced(Store.at(tmp_path), second.run, [first.files[0].path])
    to_tfrecord(collection(3), tmp_path, append=True)
    assert values(tmp_path) == [1, 2, 3]


def test_an_overwrite_that_was_killed_does_not_remove_later_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_tfrecord(collection(1), tmp_path)
    dask_tfrecord.export(tmp_path, "tfmd")
    killed_after_the_commit(tmp_path, 2, monkeypatch, overwrite=True)
    (exported,) = dask_tfrecord.export(tmp_path, "tfmd")
    to_tfrecord(collection(3), tmp_path, append=True)
    assert Path(exported).exists()
