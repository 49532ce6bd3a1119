"""Files of a dataset that were removed from outside: reads and appends raise until the loss is stored.

Modules: dataset.maintenance.metadata_commits, dataset.maintenance.full_scan, files.storage.listing.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import (
    ConcurrentWriteError,
    CorruptRecordError,
    DestinationError,
    RecordTable,
    Snapshot,
    dataset_scans,
    export,
    index,
    read_tfrecord,
    repair,
    restore,
    take,
    to_tfrecord,
    verify,
)
from dask_tfrecord.dataset.maintenance import metadata_commits
from dask_tfrecord.dataset.snapshot import visibility
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def days(*numbers: int) -> dd.DataFrame:
    frame = pd.DataFrame({"day": [n // 10 for n in numbers], "n": list(numbers)})
    return dd.from_pandas(frame, npartitions=2)


def written(place: Path | str) -> None:
    """Write three days in two versions."""
    to_tfrecord(days(1, 2, 11, 12, 21), place, partition_on="day")
    to_tfrecord(days(3, 13), place, partition_on="day", append=True)


def remove(place: Path | str, day: int) -> None:
    store = Store.at(place)
    store.fs.rm(store.join(f"day={day}"), recursive=True)


def numbers(place: Path | str, **keywords: Any) -> list[int]:
    return sorted(read_tfrecord(place, **keywords)["n"].compute().tolist())


USES: dict[str, Callable[[str], Any]] = {
    "len": lambda path: len(read_tfrecord(path)),
    "compute": numbers,
    "filters": lambda path: numbers(path, filters=[("day", "==", 0)]),
    "take": lambda path: take(path, [0]),
    "RecordTable": RecordTable,
    "index": index,
    "export": lambda path: export(path, "tfmd"),
    "append": lambda path: to_tfrecord(days(4), path, partition_on="day", append=True),
    "partitions": lambda path: to_tfrecord(days(4), path, partition_on="day", overwrite="partitions"),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_names_the_call_that_stores_the_loss_and_works_after_it(place: str, use: str) -> None:
    written(place)
    remove(place, 1)
    with pytest.raises(CorruptRecordError, match=r"the file is missing.* dask_tfrecord.repair\(") as caught:
        USES[use](place)
    assert Snapshot.open(place).number == 2
    call = str(caught.value).partition("or call dask_tfrecord.")[2].partition(" if it was")[0]
    snapshot = eval(call, {"repair": repair}).snapshot
    assert (snapshot.number, snapshot.records, snapshot.mode) == (3, 4, "repair")
    assert numbers(place) == [1, 2, 3, 21]
    if use == "index":
        with pytest.raises(DestinationError, match="up to date"):
            index(place)
    else:
        USES[use](place)
    expected = {"append": [1, 2, 3, 4, 21], "partitions": [4, 21]}
    assert numbers(place) == expected.get(use, [1, 2, 3, 21])
    assert len(read_tfrecord(place)) == len(numbers(place))


def test_a_repair_lists_the_lost_files_and_keeps_all_that_is_known_of_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path)
    before = Snapshot.open(tmp_path)
    remove(tmp_path, 1)
    with caplog.at_level(logging.INFO, "dask_tfrecord"):
        assert repair(tmp_path, dry_run=True).lost == repair(tmp_path).lost
    after, lost = repair(tmp_path, dry_run=True)
    assert (after.number, lost) == (3, {})
    assert after.files == tuple(file for file in before.files if "day=1" not in file.path)
    names = ("schema", "partitioning", "order", "index", "custom_metadata", "oldest")
    assert all(getattr(after, name) == getattr(before, name) for name in names)
    assert [one.message.partition(": ")[2] for one in caplog.records if one.levelname == "WARNING"] == [
        "repair would drop 3 missing files with 3 rows",
        "version 3: repair dropped 3 missing files with 3 rows",
    ]
    assert verify(tmp_path)["agrees"].all()
    with pytest.raises(CorruptRecordError, match="its version 2"):
        read_tfrecord(tmp_path, version=2)


def test_a_file_that_is_put_back_is_no_part_of_the_dataset(tmp_path: Path) -> None:
    written(tmp_path)
    copy = shutil.copytree(tmp_path / "day=1", tmp_path.parent / "copy")
    remove(tmp_path, 1)
    assert sorted(repair(tmp_path).lost.values()) == [1, 1, 1]
    shutil.copytree(copy, tmp_path / "day=1")
    assert numbers(tmp_path) == [1, 2, 3, 21]
    assert numbers(tmp_path, version=2) == [1, 2, 3, 11, 12, 13, 21]
    restore(tmp_path, 2)
    assert numbers(tmp_path) == [1, 2, 3, 11, 12, 13, 21]


def test_files_of_other_tools_are_dropped_too(tmp_path: Path) -> None:
    written(tmp_path / "own")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for number, file in enumerate(sorted(tmp_path.glob("own/day=*/part-*"))):
        shutil.copy(file, foreign / f"{number}.tfrecord")
    index(foreign)
    (foreign / "0.tfrecord").unlink()
    lost = repair(foreign).lost
    assert [*lost] == ["0.tfrecord"]
    assert len(numbers(foreign)) == 7 - lost["0.tfrecord"]


def test_a_dataset_whose_files_are_all_gone_becomes_an_empty_one(place: str) -> None:
    written(place)
    for day in range(3):
        remove(place, day)
    assert repair(place).snapshot.records == 0
    assert numbers(place) == []
    to_tfrecord(days(5), place, partition_on="day", append=True)
    assert numbers(place) == [5]


def test_only_missing_files_are_dropped(tmp_path: Path) -> None:
    written(tmp_path)
    file = next((tmp_path / "day=0").iterdir())
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    remove(tmp_path, 2)
    assert repair(tmp_path).snapshot.records == 6
    with pytest.raises(CorruptRecordError, match="bytes, but"):
        numbers(tmp_path)
    file.write_bytes(content)
    assert numbers(tmp_path) == [1, 2, 3, 11, 12, 13]


def test_nothing_is_committed_where_nothing_is_missing(place: str) -> None:
    written(place)
    snapshot, lost = repair(place)
    assert (snapshot.number, lost) == (2, {})
    assert Snapshot.open(place) == snapshot
    with pytest.raises(FileNotFoundError, match="snapshot"):
        repair(f"{place}x")
    with pytest.raises(DestinationError, match="inside"):
        repair(f"{place}/day=0")


@pytest.mark.parametrize("other", ["append", "overwrite", "repair"])
def test_a_commit_before_that_of_the_repair_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    path, removed = tmp_path / "data", tmp_path / "removed"
    written(path)
    (path / "day=1").rename(removed)

    def commit(*arguments: Any) -> Any:
        monkeypatch.undo()
        if other == "repair":
            repair(path)
        elif other == "overwrite":
            to_tfrecord(days(4), path, partition_on="day", overwrite=True)
        else:  # an append raises if a file is missing
            removed.rename(path / "day=1")
            to_tfrecord(days(4), path, partition_on="day", append=True)
            (path / "day=1").rename(removed)
        return metadata_commits.commit(*arguments)

    monkeypatch.setattr(metadata_commits, "commit", commit)
    newest, lost = repair(path)
    assert sum(lost.values()) == 3
    assert newest.mode == {"append": "repair"}.get(other, other)
    assert numbers(path) == {"append": [1, 2, 3, 4, 21], "overwrite": [4]}.get(other, [1, 2, 3, 21])


def test_an_overwrite_that_was_planned_before_a_repair_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    planned = to_tfrecord(days(4), tmp_path, partition_on="day", overwrite=True, compute=False)
    remove(tmp_path, 1)
    repair(tmp_path)
    with pytest.raises(ConcurrentWriteError):
        planned.compute()
    assert numbers(tmp_path) == [1, 2, 3, 21]


def test_a_file_that_moves_back_from_the_kept_files_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    (tmp_path / "day=1").rename(tmp_path / "moving")

    def find_kept(store: Store, paths: Any, files: pa.Table) -> pa.Table:
        if (tmp_path / "moving").exists():
            (tmp_path / "moving").rename(tmp_path / "day=1")
        return with_kept_files(store, paths, files)

    with_kept_files = visibility.with_kept_files
    monkeypatch.setattr(visibility, "with_kept_files", find_kept)
    assert repair(tmp_path).lost == {}


@pytest.mark.parametrize("step", ["snapshot_files", "renew_snapshot", "create_snapshot"])
def test_an_overwrite_while_index_reads_is_named_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "data"
    written(path)
    for number, file in enumerate([*path.glob("day=*/part-*")]):  # other modification times, or foreign names
        if step == "create_snapshot":
            file.rename(file.with_name(f"{number}.tfrecord"))
        else:
            shutil.copy(file, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
    if step == "create_snapshot":
        shutil.rmtree(path / "_tfrecord")
    original = getattr(dataset_scans, step)

    def overtaken(*arguments: Any, **keywords: Any) -> Any:
        monkeypatch.undo()
        to_tfrecord(days(4), path, partition_on="day", overwrite=True)
        return original(*arguments, **keywords)

    monkeypatch.setattr(dataset_scans, step, overtaken)
    with pytest.raises(ConcurrentWriteError, match="another write was committed while index read the files"):
        index(path)
    assert numbers(path) == [4]
