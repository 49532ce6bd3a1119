"""`exists`, `cleanup`, `expire` and `restore`: what goes, what stays, and which version is the newest.

Modules: api.description, api.maintenance, dataset.rewrite.versions.
"""

import errno
import os
import shutil
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import operations
import pandas as pd
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from list_rules import RULES
from small_frames import by_key, collection, keyed, values

import dask_tfrecord
from dask_tfrecord import (
    CorruptRecordError,
    DestinationError,
    FileChangedError,
    NotFoundError,
    TFRecordError,
    exists,
    open_dataset,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.dataset.listing import list_directory
from dask_tfrecord.dataset.snapshot import entry_log
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.keywords import arguments
from dask_tfrecord.storage.store import LocalStore, Store

# The steps before which a write is stopped.
COMMIT = "collection.expr.write_expression.commit"
CREATION = "storage.store.Store.create_exclusively"
REMOVAL = "dataset.write.transaction.remove_replaced"

pytestmark = pytest.mark.usefixtures("one_thread")


def one(value: int) -> dd.DataFrame:
    return collection(value, npartitions=1)


def content(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def killed_before(step: str, ddf: dd.DataFrame, path: Path, **options: Any) -> None:
    """Start a write that stops in its commit, as if its process were killed."""

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"dask_tfrecord.{step}", stop)
        patch.setattr("dask_tfrecord.api.write.abandon", lambda run: None)
        with pytest.raises(KeyboardInterrupt):
            to_tfrecord(ddf, path, **options)


def test_a_path_exists_when_there_is_data_of_a_write_or_of_others(tmp_path: Path) -> None:
    path = tmp_path / "data"
    assert not exists(path)
    assert not exists("memory://nowhere")
    path.mkdir()
    (path / "_hidden").touch()
    killed_before(CREATION, one(1), path)
    assert not exists(path)
    to_tfrecord(one(1).query("n > 1"), path)  # no rows
    assert exists(path)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "a.tfrecord").touch()
    assert exists(tmp_path / "others")
    assert exists(tmp_path / "others" / "a.tfrecord")


def test_what_a_first_write_left_goes_and_a_write_can_follow(tmp_path: Path) -> None:
    killed_before(CREATION, one(1), tmp_path)
    with pytest.raises(FileNotFoundError, match="a write that has not finished"):
        read_tfrecord(tmp_path)
    assert len(open_dataset(tmp_path).cleanup(older_than="0s")) == 1
    assert content(tmp_path) == []
    to_tfrecord(one(2), tmp_path)


@pytest.mark.parametrize("finishes", ["cleanup", "the next write"])
def test_a_removal_that_broke_off_is_finished(tmp_path: Path, finishes: str) -> None:
    (tmp_path / "other.tfrecord").touch()
    killed_before(REMOVAL, one(1), tmp_path, overwrite=True)
    assert (tmp_path / "other.tfrecord").exists()
    assert values(tmp_path) == [1]
    if finishes == "cleanup":
        open_dataset(tmp_path).cleanup()
        names = [name for name in content(tmp_path) if "part" not in name]
        assert names == ["_SUCCESS", "_tfrecord", "_tfrecord/00000001.parquet"]
    else:
        to_tfrecord(one(2), tmp_path, append=True)
    assert not (tmp_path / "other.tfrecord").exists()
    assert values(tmp_path) == ([1] if finishes == "cleanup" else [1, 2])
    (tmp_path / "other.tfrecord").touch()  # another file of the name, which is foreign again
    with pytest.raises(TFRecordError, match="does not list 1 of the files"):
        read_tfrecord(tmp_path)


def test_files_and_datasets_of_others_are_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "outer"
    to_tfrecord(one(1), root)
    for name in ("more", "deep/other", "day=1"):
        to_tfrecord(one(2), tmp_path / "inner")
        (root / name).parent.mkdir(exist_ok=True)
        (tmp_path / "inner").rename(root / name)  # a write of it there would be refused
    for name in ("foreign.tfrecord", "_tfrecord/notes.txt", "_tfrecord/staging/mine/notes.docx"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    shutil.copy(next((root / "more").glob("part-*")), root)
    for is_listed in (True, False):  # a copy of the data files has no snapshot
        if not is_listed:
            (root / "_tfrecord" / "00000001.parquet").unlink()
        before = content(root)
        assert open_dataset(root).cleanup(older_than="0s") == []
        assert content(root) == before


def test_the_age_of_a_run_is_that_of_its_newest_file(tmp_path: Path) -> None:
    to_tfrecord(one(1), tmp_path)
    killed_before(COMMIT, collection(2, 3), tmp_path, append=True)
    paths = sorted((tmp_path / "_tfrecord/staging").rglob("part-*"))
    day_ago = time.time() - 24 * 3600
    os.utime(paths[0], (day_ago, day_ago))
    assert open_dataset(tmp_path).cleanup(older_than="6 hours") == []
    os.utime(paths[1], (day_ago, day_ago))
    assert len(open_dataset(tmp_path).cleanup(older_than="6 hours")) == 2


def test_a_path_without_data_is_clean_and_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        open_dataset(tmp_path / "nowhere")
    (tmp_path / "a.tfrecord").touch()
    with pytest.raises(DestinationError, match=r"a\.tfrecord: is a file, not a directory"):
        open_dataset(tmp_path / "a.tfrecord").cleanup()


def test_a_restore_needs_only_the_files_that_it_brings_back(tmp_path: Path) -> None:
    to_tfrecord(keyed(a=[1], b=[2]), tmp_path, partition_on="key")
    shared, replaced = sorted(tmp_path.glob("key=*/part-*"))
    open_dataset(tmp_path).delete([("key", "==", "b")])
    (kept,) = tmp_path.glob("_tfrecord/kept/key=b/part-*")
    opened = open_dataset(tmp_path)
    for change in (lambda: kept.write_bytes(b"x"), kept.unlink):
        content_of_kept = kept.read_bytes()
        change()
        with pytest.raises(
            CorruptRecordError, match="in its version 1; put the file back from a copy"
        ) as error:
            opened.restore(1)
        assert error.value.path == str(replaced)
        kept.write_bytes(content_of_kept)
    shared.unlink()
    assert opened.restore(1).rows == 2
    assert opened.check()["path"].tolist() == [str(shared)]


# A number without a unit, and others.
NO_DURATIONS = ["7", " 7.0 ", "1_000", "1e3", "P7", "7 5 days", "7 days 5", 7, 7.0, np.int64(7)]
NO_DURATIONS += [np.timedelta64(7), np.timedelta64(7, "D"), "7 M", "soon", "", "NaT", "-1 day", True, None]


@pytest.mark.parametrize("duration", [*NO_DURATIONS, timedelta(-1)])
def test_a_duration_without_a_unit_is_refused_everywhere(tmp_path: Path, duration: Any) -> None:
    expected = 'is not a duration with a unit.*; pass a number and its unit, such as "7'
    with pytest.raises(TFRecordError, match=expected):
        open_dataset(tmp_path).cleanup(older_than=duration)
    with pytest.raises(TFRecordError, match=expected):
        dask_tfrecord.open_dataset(tmp_path).expire(versions=1, grace=duration)
    if duration is not None:  # means that only `versions` counts
        with pytest.raises(TFRecordError, match=expected):
            dask_tfrecord.open_dataset(tmp_path).expire(versions=1, older_than=duration)
    is_rows = isinstance(duration, int | np.integer | None) and not isinstance(duration, np.timedelta64)
    if not is_rows and duration != "7 M":  # 7 MB
        with pytest.raises(TFRecordError, match="or a size or duration with a unit"):
            dask_tfrecord.Writer(tmp_path, commit_every=duration)


@pytest.mark.filterwarnings("error")  # pandas deprecates some of the units
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" 7 D ", timedelta(7)),
        ("1w", timedelta(7)),
        ("1.5 hours", timedelta(hours=1.5)),
        ("1 day, 2H 3min 4S", timedelta(1, 4, hours=2, minutes=3)),
        ("0s", timedelta(0)),
        (str(timedelta(2, 3)), timedelta(2, 3)),
        (pd.Timedelta("2 D"), timedelta(2)),
    ],
)
def test_numbers_with_units_are_a_duration(text: str, expected: timedelta) -> None:
    assert arguments.duration("older_than", text) == expected


TEMPORARY = "0" * 32
INCOMPLETE = [
    f"_tfrecord/.00000002.parquet.{TEMPORARY}",
    f"_tfrecord/..00000002.parquet.{TEMPORARY}.{TEMPORARY}",
    f"_tfrecord/.exports.json.{TEMPORARY}",
    f"_tfrecord/.clock.{TEMPORARY}",
    f"_tfrecord/columns/.{TEMPORARY}-00000.parquet.{TEMPORARY}",
    f"_tfrecord/kept/k=1/.part-{TEMPORARY}-00000-of-00001.tfrecord.gz.{TEMPORARY}",
    f".part-{TEMPORARY}-00000-of-00001.tfrecord.{TEMPORARY}",
    f"k=1/.part-{TEMPORARY}-00000-of-00001-00002.tfrecord.{TEMPORARY}",
    f".features.json.{TEMPORARY}",
    f".dataset_info.json.{TEMPORARY}",
    f".schema.pbtxt.{TEMPORARY}",
    f"_idx/k=1/.part-{TEMPORARY}-00000-of-00001.tfrecord.idx.{TEMPORARY}",
]


@pytest.mark.parametrize("is_listed_by_fsspec", [False, True])
def test_incomplete_files_go_and_hidden_files_of_others_stay(
    tmp_path: Path, is_listed_by_fsspec: bool
) -> None:
    root, outside = tmp_path / "d", tmp_path / "elsewhere" / f".schema.pbtxt.{TEMPORARY}"
    to_tfrecord(one(1), root)
    others = [f".cache.{TEMPORARY}", f"_notes/.draft.{TEMPORARY}", ".part-1"]
    before = {*content(root), *others, "_notes", "_link"}
    for path in (outside, *(root / name for name in [*INCOMPLETE, *others])):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("SECRET")
    options: dict[str, Any] = {}
    path: Any = root
    if is_listed_by_fsspec:
        path, options = "d", {"filesystem": DirFileSystem(str(tmp_path))}
    else:
        (root / "_link").symlink_to(tmp_path / "elsewhere")
    assert operations.cleanup(path, **options) == []
    assert operations.cleanup(path, older_than="0s", dry_run=True, **options) == sorted(INCOMPLETE)
    assert operations.cleanup(path, older_than="0s", **options) == sorted(INCOMPLETE)
    assert {*content(root)} - before == set()
    assert outside.exists()


@pytest.mark.parametrize("days", [-3, 3])
def test_ages_are_measured_by_the_clock_of_the_store(
    tmp_path: Path, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Skewed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(days=days)

    to_tfrecord(one(1), tmp_path)
    killed_before(CREATION, one(2), tmp_path, append=True)
    monkeypatch.setattr("dask_tfrecord.api.maintenance.datetime", Skewed)
    monkeypatch.setattr("dask_tfrecord.dataset.write.orphans.datetime", Skewed)
    assert open_dataset(tmp_path).cleanup() == []
    assert len(open_dataset(tmp_path).cleanup(older_than="0s")) == 1


def lived_in(place: str | Path) -> None:
    """Write four versions: a create, an append, an overwrite of a partition, and a delete of a partition."""
    to_tfrecord(keyed(a=[1, 2], b=[3]), place, partition_on="key")
    to_tfrecord(keyed(a=[4]), place, partition_on="key", append=True)
    to_tfrecord(keyed(a=[5]), place, partition_on="key", overwrite="partitions", keep_versions=True)
    dask_tfrecord.open_dataset(place).delete([("key", "==", "b")], keep_versions=True)


def rows(place: str | Path, **options: Any) -> list[int]:
    return sorted(values(place, **options))


def history(place: str | Path) -> list[int]:
    return list(open_dataset(place).history()["version"])


def visible(place: str) -> int:
    return len(list_directory(Store.at(place)))


def test_a_restored_version_is_the_newest(place: str) -> None:
    lived_in(place)
    planned = read_tfrecord(place)["n"]
    assert open_dataset(place).restore(2).version == 5
    assert rows(place) == rows(place, use_snapshot=False) == [1, 2, 3, 4]
    assert visible(place) == 3
    assert planned.compute().tolist() == [5]  # of a reader that began before
    assert open_dataset(place).restore(4).rows == 1  # a restore is undone by another
    assert rows(place) == rows(place, use_snapshot=False) == [5]
    found = [rows(place, version=number) for number in range(1, 7)]
    assert found == [[1, 2, 3], [1, 2, 3, 4], [3, 5], [5], [1, 2, 3, 4], [5]]
    assert open_dataset(place).restore(6).version == 6  # nothing to do
    reported = open_dataset(place).history()[["mode", "details"]].iloc[4:]
    assert reported.to_numpy().tolist() == [["restore", "version 2"], ["restore", "version 4"]]
    to_tfrecord(keyed(c=[6]), place, partition_on="key", append=True)
    assert by_key(place) == {"a": [5], "c": [6]}
    assert dask_tfrecord.open_dataset(place).verify()["agrees"].all()
    assert dask_tfrecord.open_dataset(place).cleanup(older_than="0s") == []
    other = f"{place} other"
    to_tfrecord(keyed(a=[1]), other, custom_metadata={"epoch": "1"})
    first = Snapshot.open(other)
    to_tfrecord(keyed(a=[2]).assign(m=1), other, append=True, schema_change="add")
    open_dataset(other).restore(1)
    newest = Snapshot.open(other)
    assert (newest.columns, newest.custom_metadata) == (first.columns, {"epoch": "1"})
    assert newest.files == first.files


def test_an_interrupted_restore_is_finished(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lived_in(place)
    with monkeypatch.context() as patched:
        patched.setattr(transaction, "remove_replaced", lambda *args: None)
        open_dataset(place).restore(2)
    assert rows(place) == [1, 2, 3, 4]
    for options in [{"use_snapshot": False}, {}]:
        with pytest.raises(
            TFRecordError, match=r"still in _tfrecord/kept, .* call dask_tfrecord\.open_dataset\(.*\.cleanup"
        ):
            read_tfrecord(place if options else f"{place}/key=a", **options)
    to_tfrecord(keyed(b=[6]), place, partition_on="key", append=True)
    assert rows(place) == rows(place, use_snapshot=False) == [1, 2, 3, 4, 6]
    assert rows(f"{place}/key=b") == [3, 6]
    assert rows(place, version=4) == [5]


def test_files_are_where_the_newer_restore_needs_them(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second restore begins and ends while the first moves files."""
    lived_in(place)
    move, others = transaction._move_file, iter([4])

    def move_late(*arguments: Any) -> None:
        for version in others:
            open_dataset(place).restore(version)
        move(*arguments)

    monkeypatch.setattr(transaction, "_move_file", move_late)
    open_dataset(place).restore(2)
    assert Snapshot.open(place).number == 6
    assert visible(place) == 1
    assert rows(place) == rows(place, use_snapshot=False) == [5]
    assert rows(place, version=5) == [1, 2, 3, 4]


def test_the_files_of_expired_versions_stay_for_the_grace_period(place: str) -> None:
    lived_in(place)
    planned = read_tfrecord(place, version=2)["n"]
    done = open_dataset(place).expire(versions=2)
    assert (*done.details.values(), done.version) == ([1, 2], 0, 0, 5)
    assert history(place) == [3, 4, 5]
    assert open_dataset(place).history()["details"].iloc[-1] == "versions before 3"
    with pytest.raises(FileNotFoundError, match=r"no version 2; it has 3, 4, 5\. .* Dataset\.expire"):
        read_tfrecord(place, version=2)
    with pytest.raises(FileNotFoundError, match="no version 2; it has 3, 4, 5"):
        open_dataset(place).restore(2)
    assert sorted(planned.compute().tolist()) == [1, 2, 3, 4]
    assert [*open_dataset(place).expire(versions=2).details.values()] == [[], 0, 0]  # nothing more expires
    assert [*open_dataset(place).expire(versions=2, grace="0s").details.values()][:2] == [
        [],
        2,
    ]  # the files of partition a
    with pytest.raises(FileNotFoundError, match=r"has expired or was overwritten.* has versions 3, 4, 5"):
        planned.compute()
    assert [rows(place, version=number) for number in (3, 4, 5)] == [[3, 5], [5], [5]]
    assert [*open_dataset(place).expire(versions=1, grace="0s").details.values()][:2] == [[3], 1]
    assert open_dataset(place).restore(4).version == 7
    assert rows(place) == rows(place, use_snapshot=False) == [5]
    assert sorted(Store.at(place).names("_tfrecord")) == [f"0000000{n}.parquet" for n in (4, 5, 6, 7)]


def test_expired_versions_whose_lists_are_needed_keep_their_files(tmp_path: Path) -> None:
    to_tfrecord(collection(*range(30), npartitions=30), tmp_path)
    for n in (30, 31, 32):
        to_tfrecord(collection(n, npartitions=1), tmp_path, append=True)
    assert open_dataset(tmp_path).expire(versions=1, grace="0s").details["expired_versions"] == [1, 2, 3]
    to_tfrecord(collection(33, npartitions=1), tmp_path, append=True)
    assert rows(tmp_path) == [*range(34)]
    assert history(tmp_path) == [4, 5, 6]
    names = sorted(path.name for path in tmp_path.glob("_tfrecord/*.parquet"))
    assert names == [f"0000000{n}.parquet" for n in range(1, 7)]


def age(place: Path, version: int, hours: float) -> None:
    """Make a version older by the modification time of its snapshot."""
    path = place / "_tfrecord" / f"{version:08d}.parquet"
    then = path.stat().st_mtime - hours * 3600
    os.utime(path, (then, then))


def test_versions_expire_by_age_also_if_the_clock_was_set_back(tmp_path: Path) -> None:
    lived_in(tmp_path)
    for version, hours in [(1, 100), (2, 2), (3, 200), (4, 50)]:  # the clock was wrong before 2 and after
        age(tmp_path, version, hours)
    assert open_dataset(tmp_path).expire(older_than="150 hours").details["expired_versions"] == []
    assert open_dataset(tmp_path).expire(older_than="1 day").details["expired_versions"] == [1]
    assert history(tmp_path) == [2, 3, 4, 5]
    age(tmp_path, 5, -9)  # the clock is set back by nine hours: the files stay
    assert open_dataset(tmp_path).expire(versions=1).details["removed_files"] == 0
    age(tmp_path, 6, 200)  # no version is older than the version before
    assert open_dataset(tmp_path).expire(versions=1).details["removed_files"] == 0
    assert rows(tmp_path, version=4) == [5]
    shutil.rmtree(tmp_path)
    lived_in(tmp_path)
    open_dataset(tmp_path).expire(versions=1)
    for version in range(1, 6):
        age(tmp_path, version, 2)
    assert open_dataset(tmp_path).expire(versions=1, grace="3 hours").details["removed_files"] == 0
    assert open_dataset(tmp_path).expire(versions=1).details["removed_files"] == 3


def test_cleanup_removes_what_only_expired_versions_need(place: str) -> None:
    lived_in(place)
    open_dataset(place).expire(versions=2)
    assert dask_tfrecord.open_dataset(place).cleanup() == []
    found = dask_tfrecord.open_dataset(place).cleanup(older_than="0s", dry_run=True)
    assert [rows(place, version=number) for number in (3, 4)] == [[3, 5], [5]]
    assert dask_tfrecord.open_dataset(place).cleanup(older_than="0s") == found
    assert [path.rpartition("/")[0] for path in found] == ["_tfrecord"] * 2 + ["_tfrecord/kept/key=a"] * 2
    assert dask_tfrecord.open_dataset(place).cleanup(older_than="0s") == []
    assert [rows(place, version=number) for number in (3, 4)] == [[3, 5], [5]]


def test_cleanup_moves_files_to_their_paths(place: str) -> None:
    """The lists of moved files are lost: files are where another version needs them."""
    lived_in(place)
    store = Store.at(place)
    newest = {file.path for file in Snapshot.open(place).files}
    for file in {*Snapshot.open(place, 1).files, *Snapshot.open(place).files}:
        places = store.join(file.path), store.join(f"_tfrecord/kept/{file.path}")
        store.move(*(places if file.path in newest else reversed(places)))
    assert [rows(place, version=number) for number in (1, 4)] == [[1, 2, 3], [5]]
    assert visible(place) == 2
    assert dask_tfrecord.open_dataset(place).cleanup(older_than="0s") == []
    assert visible(place) == 1
    assert rows(place) == rows(place, use_snapshot=False) == [5]
    assert [rows(place, version=number) for number in (1, 2)] == [[1, 2, 3], [1, 2, 3, 4]]


def test_a_version_whose_files_are_gone_is_not_restored(tmp_path: Path) -> None:
    lived_in(tmp_path)
    gone = [file.path for file in Snapshot.open(tmp_path, version=2).files]
    for path in gone[1:]:
        (tmp_path / "_tfrecord" / "kept" / path).unlink()
    with pytest.raises(CorruptRecordError) as caught:
        open_dataset(tmp_path).restore(2)
    assert str(caught.value) == (
        f"{tmp_path}/{gone[1]}: the file is missing, but the dataset's snapshot lists it; also missing: "
        f"{gone[2]}, in its version 2; put the file back from a copy"
    )
    assert history(tmp_path) == [1, 2, 3, 4]
    assert rows(tmp_path) == [5]


def test_a_version_whose_file_was_replaced_by_another_tool_is_not_restored(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for n in (1, 2):  # files of the same size
        to_tfrecord(keyed(a=[n]), tmp_path / f"{n}")
        [file] = (tmp_path / f"{n}").glob("part-*")
        shutil.copy(file, place / "data.tfrecord")
        dask_tfrecord.open_dataset(place).add_snapshot()
    with pytest.raises(FileChangedError, match=r"data\.tfrecord: the file was replaced after version 1"):
        open_dataset(place).restore(1)
    assert rows(place) == [2]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("versions") / "data"
    lived_in(path)
    return path


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda path: open_dataset(path).expire(), TFRecordError, "neither versions= nor older_than="),
        (
            lambda path: open_dataset(path).expire(versions=0),
            TFRecordError,
            "versions=0 is not a positive integer",
        ),
        (lambda path: open_dataset(path).restore(None), TFRecordError, "version=None is not an integer"),
        (lambda path: open_dataset(path.parent).expire(versions=1), NotFoundError, "no snapshot"),
        (lambda path: open_dataset(path.parent).restore(1), NotFoundError, "no snapshot"),
        (lambda path: open_dataset(path).restore(9), FileNotFoundError, r"no version 9; it has 1, 2, 3, 4$"),
        (lambda path: open_dataset(path / "key=a").restore(1), DestinationError, "lies inside the dataset"),
    ],
)
def test_wrong_arguments_are_named(versions: Path, call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(versions)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """Let the creation of every file fail while a condition holds."""

    def fill(is_full: Callable[[], bool]) -> None:
        create = LocalStore._open_new

        def creating(self: LocalStore, path: str) -> Any:
            if is_full():
                raise OSError(errno.ENOSPC, "No space left on device")
            return create(self, path)

        monkeypatch.setattr(LocalStore, "_open_new", creating)

    return fill


def with_versions(root: Path) -> None:
    """Write a dataset with three versions, of which the first needs a kept file."""
    to_tfrecord(keyed(a=[1, 2], b=[3]), root, partition_on="key")
    open_dataset(root).delete([("n", "==", 1)])
    to_tfrecord(keyed(b=[4]), root, partition_on="key", append=True)
    assert (root / "_tfrecord/kept").exists()


@pytest.mark.parametrize("lists", ["full", "delta"])
def test_expire_frees_space_on_a_full_disk(
    tmp_path: Path, full_disk: Any, monkeypatch: pytest.MonkeyPatch, lists: str
) -> None:
    """Nothing can be created until a file of an older version is removed."""
    monkeypatch.setattr(entry_log, "_kept_lists", RULES[lists])
    with_versions(tmp_path)
    before = sorted(values(tmp_path))
    full_disk(lambda: (tmp_path / "_tfrecord/kept").exists())
    with pytest.raises(OSError, match="No space left") as raised:
        open_dataset(tmp_path).expire(versions=1)
    assert 'grace="0 s"' in "".join(raised.value.__notes__)
    assert open_dataset(tmp_path).history()["version"].tolist() == [1, 2, 3]  # readers may need the files
    assert sorted(values(tmp_path, version=1)) == [1, 2, 3]
    done = open_dataset(tmp_path).expire(versions=1, grace="0 s")
    assert (done.version, done.details["removed_files"]) == (4, 1)
    assert sorted(values(tmp_path)) == before
    assert open_dataset(tmp_path).verify()["agrees"].all()
    with pytest.raises(NotFoundError):
        open_dataset(tmp_path, version=1)


def test_expire_on_a_full_disk_first_removes_what_expired_before_the_grace_period(
    tmp_path: Path, full_disk: Any
) -> None:
    with_versions(tmp_path)
    open_dataset(tmp_path).expire(versions=1)
    to_tfrecord(keyed(b=[5]), tmp_path, partition_on="key", append=True)
    day_ago = time.time() - 24 * 3600
    for path in (tmp_path / "_tfrecord").glob("*.parquet"):
        os.utime(path, (day_ago, day_ago))
    to_tfrecord(keyed(b=[6]), tmp_path, partition_on="key", append=True)
    full_disk(lambda: (tmp_path / "_tfrecord/kept").exists())
    assert open_dataset(tmp_path).expire(versions=1).details["removed_files"] == 1
    assert sorted(values(tmp_path)) == [2, 3, 4, 5, 6]


def test_cleanup_removes_a_failed_write_from_a_full_disk(tmp_path: Path, full_disk: Any) -> None:
    to_tfrecord(one(1), tmp_path)
    killed_before(COMMIT, collection(2, 3), tmp_path, append=True)
    day_ago = time.time() - 24 * 3600
    for path in (tmp_path / "_tfrecord/staging").rglob("*"):
        os.utime(path, (day_ago, day_ago))
    full_disk(lambda: True)
    assert len(open_dataset(tmp_path).cleanup(older_than="0 s")) == 2
    assert not (tmp_path / "_tfrecord/staging").exists()
    assert values(tmp_path) == [1]


def test_a_write_succeeds_though_the_disk_has_no_space_for_its_marker(tmp_path: Path, full_disk: Any) -> None:
    full_disk(lambda: (tmp_path / "_tfrecord/00000001.parquet").exists())
    to_tfrecord(one(1), tmp_path)
    assert values(tmp_path) == [1]
    assert not (tmp_path / "_tfrecord/staging").exists()
