"""Files of a dataset that were removed from outside: reads and appends raise until the loss is stored."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pytest

from dask_tfrecord import (
    ConcurrentWriteError,
    CorruptRecordError,
    DestinationError,
    FileChangedError,
    RecordTable,
    Snapshot,
    export,
    index,
    inspection,
    read_tfrecord,
    take,
    to_tfrecord,
    verify,
)
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
    with pytest.raises(CorruptRecordError, match=r"the file is missing.* dask_tfrecord.index\(") as caught:
        USES[use](place)
    assert Snapshot.open(place).number == 2
    call = str(caught.value).partition("or call dask_tfrecord.")[2].partition(" if it was")[0]
    snapshot = eval(call, {"index": index})
    assert (snapshot.number, snapshot.records, snapshot.mode) == (3, 4, "index")
    assert numbers(place) == [1, 2, 3, 21]
    if use == "index":
        with pytest.raises(DestinationError, match="up to date"):
            index(place)
    else:
        USES[use](place)
    expected = {"append": [1, 2, 3, 4, 21], "partitions": [4, 21]}
    assert numbers(place) == expected.get(use, [1, 2, 3, 21])
    assert len(read_tfrecord(place)) == len(numbers(place))


def test_a_loss_is_stored_with_all_that_is_known_of_the_other_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path)
    before = Snapshot.open(tmp_path)
    remove(tmp_path, 1)
    with caplog.at_level(logging.INFO, "dask_tfrecord"):
        after = index(tmp_path, missing="drop")
    assert after.files == tuple(file for file in before.files if "day=1" not in file.path)
    assert (after.schema, after.partitioning, after.order) == (
        before.schema,
        before.partitioning,
        before.order,
    )
    assert [one.message.partition(": ")[2] for one in caplog.records if one.levelname == "WARNING"] == [
        "index drops 3 files with 3 rows, which are missing"
    ]
    assert verify(tmp_path)["agrees"].all()
    with pytest.raises(CorruptRecordError, match="its version 2"):
        read_tfrecord(tmp_path, version=2)


def test_a_dataset_whose_files_are_all_gone_becomes_an_empty_one(place: str) -> None:
    written(place)
    for day in range(3):
        remove(place, day)
    assert index(place, missing="drop").records == 0
    assert numbers(place) == []
    to_tfrecord(days(5), place, partition_on="day", append=True)
    assert numbers(place) == [5]


def test_only_missing_files_are_dropped(tmp_path: Path) -> None:
    written(tmp_path)
    file = next((tmp_path / "day=0").iterdir())
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    remove(tmp_path, 2)
    with pytest.raises(CorruptRecordError, match="bytes, but"):
        index(tmp_path, missing="drop")
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises((FileChangedError, CorruptRecordError)):
        index(tmp_path, missing="drop")
    file.write_bytes(content)
    assert index(tmp_path, missing="drop").records == 6


def test_nothing_is_dropped_where_nothing_is_missing(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(DestinationError, match="up to date"):
        index(tmp_path, missing="drop")
    with pytest.raises(ValueError, match="unknown missing 'ignore'"):
        index(tmp_path, missing="ignore")  # type: ignore[arg-type]  # not a known value
    shutil.copytree(tmp_path, tmp_path.parent / "copy", copy_function=shutil.copy)
    remove(tmp_path.parent / "copy", 1)
    assert index(tmp_path.parent / "copy", missing="drop").records == 4


@pytest.mark.parametrize("step", ["snapshot_files", "renew_snapshot", "create_snapshot"])
def test_an_overwrite_while_index_reads_is_named_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "data"
    written(path)
    for file in [*path.glob("day=*/part-*")]:  # other modification times, or foreign names
        if step == "create_snapshot":
            file.rename(file.with_name(f"x{file.name}"))
        else:
            shutil.copy(file, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
    if step == "create_snapshot":
        shutil.rmtree(path / "_tfrecord")
    original = getattr(inspection, step)

    def overtaken(*arguments: Any, **keywords: Any) -> Any:
        monkeypatch.undo()
        to_tfrecord(days(4), path, partition_on="day", overwrite=True)
        return original(*arguments, **keywords)

    monkeypatch.setattr(inspection, step, overtaken)
    with pytest.raises(ConcurrentWriteError, match="another write was committed while index read the files"):
        index(path)
    assert numbers(path) == [4]
