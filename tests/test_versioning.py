"""The versions of a dataset: expire and restore.

Modules: table_operations, dataset.maintenance.metadata_commits.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_frames import by_key, collection, keyed

import dask_tfrecord
from dask_tfrecord import (
    CorruptRecordError,
    DestinationError,
    FileChangedError,
    NotFoundError,
    Snapshot,
    TFRecordError,
    expire,
    read_tfrecord,
    restore,
    to_tfrecord,
)
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.files.storage.listing import list_directory
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def lived_in(place: str) -> None:
    """Write four versions: a create, an append, an overwrite of a partition, and a delete of a partition."""
    to_tfrecord(keyed(a=[1, 2], b=[3]), place, partition_on="key")
    to_tfrecord(keyed(a=[4]), place, partition_on="key", append=True)
    to_tfrecord(keyed(a=[5]), place, partition_on="key", overwrite="partitions", keep_versions=True)
    dask_tfrecord.delete(place, [("key", "==", "b")], keep_versions=True)


def rows(place: str, **options: Any) -> list[int]:
    return sorted(read_tfrecord(place, **options)["n"].compute().tolist())


def history(place: str) -> list[int]:
    numbers: list[int] = Snapshot.history(place)["version"].tolist()
    return numbers


def visible(place: str) -> int:
    return len(list_directory(Store.at(place)))


def test_a_restored_version_is_the_newest(place: str) -> None:
    lived_in(place)
    planned = read_tfrecord(place)["n"]
    assert restore(place, 2).number == 5
    assert rows(place) == rows(place, use_snapshot=False) == [1, 2, 3, 4]
    assert visible(place) == 3
    assert planned.compute().tolist() == [5]  # of a reader that began before
    assert restore(place, 4).records == 1  # a restore is undone by another
    assert rows(place) == rows(place, use_snapshot=False) == [5]
    found = [rows(place, version=number) for number in range(1, 7)]
    assert found == [[1, 2, 3], [1, 2, 3, 4], [3, 5], [5], [1, 2, 3, 4], [5]]
    assert restore(place, 6).number == 6  # nothing to do
    reported = Snapshot.history(place)[["mode", "details"]].iloc[4:]
    assert reported.to_numpy().tolist() == [["restore", "version 2"], ["restore", "version 4"]]
    to_tfrecord(keyed(c=[6]), place, partition_on="key", append=True)
    assert by_key(place) == {"a": [5], "c": [6]}
    assert dask_tfrecord.verify(place)["agrees"].all()
    assert dask_tfrecord.cleanup(place, older_than="0s") == []


def test_an_interrupted_restore_is_finished(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lived_in(place)
    with monkeypatch.context() as patched:
        patched.setattr(transaction, "remove_replaced", lambda *args: None)
        restore(place, 2)
    assert rows(place) == [1, 2, 3, 4]
    for options in [{"use_snapshot": False}, {}]:
        with pytest.raises(TFRecordError, match=r"still in _tfrecord/kept, .* call dask_tfrecord\.cleanup"):
            read_tfrecord(place if options else f"{place}/key=a", **options)
    to_tfrecord(keyed(b=[6]), place, partition_on="key", append=True)
    assert rows(place) == rows(place, use_snapshot=False) == [1, 2, 3, 4, 6]
    assert rows(f"{place}/key=b") == [3, 6]
    assert rows(place, version=4) == [5]


def test_files_are_where_the_newest_of_two_restores_needs_them(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second restore begins and ends while the first moves files."""
    lived_in(place)
    move, others = transaction._move_file, iter([4])

    def move_late(*arguments: Any) -> None:
        for version in others:
            restore(place, version)
        move(*arguments)

    monkeypatch.setattr(transaction, "_move_file", move_late)
    restore(place, 2)
    assert Snapshot.open(place).number == 6
    assert visible(place) == 1
    assert rows(place) == rows(place, use_snapshot=False) == [5]
    assert rows(place, version=5) == [1, 2, 3, 4]


def test_a_restored_version_has_its_columns_and_metadata(tmp_path: Path) -> None:
    first = to_tfrecord(keyed(a=[1]), tmp_path, custom_metadata={"epoch": "1"})
    to_tfrecord(keyed(a=[2]).assign(m=1), tmp_path, append=True, schema_change="add")
    newest = restore(tmp_path, 1)
    assert newest.columns == first.columns
    assert newest.custom_metadata == {"epoch": "1"}
    assert newest.files == first.files


def test_the_files_of_expired_versions_stay_for_the_grace_period(place: str) -> None:
    lived_in(place)
    planned = read_tfrecord(place, version=2)["n"]
    done = expire(place, versions=2)
    assert (done.versions, done.files, done.snapshot.number) == ((1, 2), 0, 5)
    assert history(place) == [3, 4, 5]
    assert Snapshot.history(place)["details"].iloc[-1] == "versions before 3"
    with pytest.raises(FileNotFoundError, match=r"no version 2; it has 3, 4, 5\. .* dask_tfrecord\.expire"):
        read_tfrecord(place, version=2)
    with pytest.raises(FileNotFoundError, match="no version 2; it has 3, 4, 5"):
        restore(place, 2)
    assert sorted(planned.compute().tolist()) == [1, 2, 3, 4]
    assert expire(place, versions=2)[1:] == ((), 0, 0)  # nothing more expires
    assert expire(place, versions=2, grace="0s")[1:3] == ((), 2)  # the files of partition a
    with pytest.raises(FileNotFoundError, match=r"has expired or was overwritten.* has version 3, 4, 5"):
        planned.compute()
    assert [rows(place, version=number) for number in (3, 4, 5)] == [[3, 5], [5], [5]]
    assert expire(place, versions=1, grace="0s")[1:3] == ((3,), 1)
    assert restore(place, 4).number == 7
    assert rows(place) == rows(place, use_snapshot=False) == [5]
    assert sorted(Store.at(place).names("_tfrecord")) == [f"0000000{n}.parquet" for n in (4, 5, 6, 7)]


def test_an_append_to_an_expired_base_keeps_the_base(tmp_path: Path) -> None:
    to_tfrecord(collection(*range(30), npartitions=30), tmp_path)
    for n in (30, 31, 32):
        to_tfrecord(collection(n, npartitions=1), tmp_path, append=True)
    assert expire(tmp_path, versions=1, grace="0s").versions == (1, 2, 3)
    to_tfrecord(collection(33, npartitions=1), tmp_path, append=True)
    assert rows(str(tmp_path)) == [*range(34)]
    assert history(str(tmp_path)) == [4, 5, 6]
    names = sorted(path.name for path in tmp_path.glob("_tfrecord/*.parquet"))
    assert names == [f"0000000{n}.parquet" for n in (1, 4, 5, 6)]


def age(place: Path, version: int, hours: float) -> None:
    """Make a version older by the modification time of its snapshot."""
    path = place / "_tfrecord" / f"{version:08d}.parquet"
    then = path.stat().st_mtime - hours * 3600
    os.utime(path, (then, then))


def test_versions_expire_by_age_also_if_the_clock_was_set_back(tmp_path: Path) -> None:
    lived_in(str(tmp_path))
    for version, hours in [(1, 100), (2, 2), (3, 200), (4, 50)]:  # the clock was wrong before 2 and after
        age(tmp_path, version, hours)
    assert expire(tmp_path, older_than="150 hours").versions == ()
    assert expire(tmp_path, older_than="1 day").versions == (1,)
    assert history(str(tmp_path)) == [2, 3, 4, 5]
    age(tmp_path, 5, -9)  # the clock is set back by nine hours: the files stay
    assert expire(tmp_path, versions=1).files == 0
    age(tmp_path, 6, 200)  # no version is older than the version before
    assert expire(tmp_path, versions=1).files == 0
    assert rows(str(tmp_path), version=4) == [5]


def test_the_grace_period_ends_by_the_time_of_the_commit(tmp_path: Path) -> None:
    lived_in(str(tmp_path))
    expire(tmp_path, versions=1)
    for version in range(1, 6):
        age(tmp_path, version, 2)
    assert expire(tmp_path, versions=1, grace="3 hours").files == 0
    assert expire(tmp_path, versions=1).files == 3


def test_cleanup_removes_what_only_expired_versions_need(place: str) -> None:
    lived_in(place)
    expire(place, versions=2)
    assert dask_tfrecord.cleanup(place) == []
    found = dask_tfrecord.cleanup(place, older_than="0s", dry_run=True)
    assert [rows(place, version=number) for number in (3, 4)] == [[3, 5], [5]]
    assert dask_tfrecord.cleanup(place, older_than="0s") == found
    assert [path.rpartition("/")[0] for path in found] == ["_tfrecord"] * 2 + ["_tfrecord/kept/key=a"] * 2
    assert dask_tfrecord.cleanup(place, older_than="0s") == []
    assert [rows(place, version=number) for number in (3, 4)] == [[3, 5], [5]]


def test_cleanup_moves_files_to_their_paths(place: str) -> None:
    """The lists of moved files are lost: files are where another version needs them."""
    lived_in(place)
    store = Store.at(place)
    newest = {file.path for file in Snapshot.open(place).files}
    for file in {*Snapshot.open(place, 1).files, *Snapshot.open(place).files}:
        places = store.join(file.path), store.join(f"_tfrecord/kept/{file.path}")
        store.place(*(places if file.path in newest else reversed(places)))
    assert [rows(place, version=number) for number in (1, 4)] == [[1, 2, 3], [5]]
    assert visible(place) == 2
    assert dask_tfrecord.cleanup(place, older_than="0s") == []
    assert visible(place) == 1
    assert rows(place) == rows(place, use_snapshot=False) == [5]
    assert [rows(place, version=number) for number in (1, 2)] == [[1, 2, 3], [1, 2, 3, 4]]


def test_a_version_whose_files_are_gone_is_not_restored(tmp_path: Path) -> None:
    lived_in(str(tmp_path))
    gone = [file.path for file in Snapshot.open(tmp_path, version=2).files]
    for path in gone[1:]:
        (tmp_path / "_tfrecord" / "kept" / path).unlink()
    with pytest.raises(CorruptRecordError) as caught:
        restore(tmp_path, 2)
    assert str(caught.value) == (
        f"{tmp_path}/{gone[1]}: the file is missing, but the dataset's snapshot lists it; also missing: "
        f"{gone[2]}, in its version 2; put the file back from a copy"
    )
    assert history(str(tmp_path)) == [1, 2, 3, 4]
    assert rows(str(tmp_path)) == [5]


def test_a_version_whose_file_was_replaced_by_another_tool_is_not_restored(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for n in (1, 2):  # files of the same size
        to_tfrecord(keyed(a=[n]), tmp_path / f"{n}")
        [file] = (tmp_path / f"{n}").glob("part-*")
        shutil.copy(file, place / "data.tfrecord")
        dask_tfrecord.index(place)
    with pytest.raises(FileChangedError, match=r"data\.tfrecord: the file was replaced after version 1"):
        restore(place, 1)
    assert rows(str(place)) == [2]


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(TFRecordError, match="neither versions= nor older_than="):
        expire(tmp_path)
    with pytest.raises(TFRecordError, match="versions=0 is not a positive integer"):
        expire(tmp_path, versions=0)
    with pytest.raises(TFRecordError, match="grace='soon' is not a duration"):
        expire(tmp_path, versions=1, grace="soon")
    with pytest.raises(TFRecordError, match="version=None is not an integer"):
        restore(tmp_path, None)  # type: ignore[arg-type]  # the call is wrong on purpose
    for call in (lambda: expire(tmp_path, versions=1), lambda: restore(tmp_path, 1)):
        with pytest.raises(NotFoundError, match="no snapshot"):
            call()
    lived_in(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no version 9; it has 1, 2, 3, 4$"):
        restore(tmp_path, 9)
    with pytest.raises(DestinationError, match="lies inside the dataset"):
        restore(tmp_path / "key=a", 1)
