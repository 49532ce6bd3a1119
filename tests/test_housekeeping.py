"""`exists`, and `cleanup`: files of dead writes are removed, files that a snapshot lists are kept.

Modules: table_operations, dataset_scans.
"""

import os
import shutil
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from fsspec.implementations.dirfs import DirFileSystem

import dask_tfrecord
from dask_tfrecord import (
    DestinationError,
    TFRecordError,
    arguments,
    cleanup,
    exists,
    read_tfrecord,
    to_tfrecord,
)

# The steps before which a write is stopped.
COMMIT = "expr.write_expression.commit"
CREATION = "files.storage.store.Store.create_exclusively"
REMOVAL = "dataset.write.transaction.finish_commit"


pytestmark = pytest.mark.usefixtures("one_thread")


def collection(*values: int) -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"n": list(values)}, dtype="int64"), npartitions=1)


def content(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def killed_before(step: str, ddf: dd.DataFrame, place: Path, **options: Any) -> None:
    """Start a write that stops in its commit, as if its process were killed."""

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"dask_tfrecord.{step}", stop)
        patch.setattr("dask_tfrecord.writer.abandon", lambda run: None)
        with pytest.raises(KeyboardInterrupt):
            to_tfrecord(ddf, place, **options)


def test_a_path_exists_when_there_is_data(tmp_path: Path) -> None:
    place = tmp_path / "place"
    assert not exists(place)
    place.mkdir()
    (place / "_hidden").touch()
    assert not exists(place)
    killed_before(CREATION, collection(1), place)
    assert not exists(place)
    to_tfrecord(collection(), place)
    assert exists(place)


def test_files_of_others_exist(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").touch()
    assert exists(tmp_path)
    assert exists(tmp_path / "a.tfrecord")
    assert not exists("memory://nowhere")


@pytest.mark.parametrize("step", [COMMIT, CREATION])
def test_what_a_dead_write_left_goes(tmp_path: Path, step: str) -> None:
    to_tfrecord(collection(1), tmp_path)
    before = content(tmp_path)
    killed_before(step, collection(2), tmp_path, append=True)
    assert cleanup(tmp_path) == []
    assert cleanup(tmp_path, older_than=timedelta(hours=1)) == []
    [name] = cleanup(tmp_path, older_than="0s")
    assert "part-" in name
    assert content(tmp_path) == before
    assert read_tfrecord(tmp_path)["n"].compute().tolist() == [1]


def test_what_a_first_write_left_goes_and_a_write_can_follow(tmp_path: Path) -> None:
    killed_before(CREATION, collection(1), tmp_path)
    with pytest.raises(FileNotFoundError, match="a write that has not finished"):
        read_tfrecord(tmp_path)
    assert len(cleanup(tmp_path, older_than="0s")) == 1
    assert content(tmp_path) == []
    to_tfrecord(collection(2), tmp_path)


def test_a_removal_that_broke_off_is_finished(tmp_path: Path) -> None:
    (tmp_path / "other.tfrecord").touch()
    killed_before(REMOVAL, collection(1), tmp_path, overwrite=True)
    assert (tmp_path / "other.tfrecord").exists()
    assert read_tfrecord(tmp_path)["n"].compute().tolist() == [1]
    cleanup(tmp_path)
    assert not (tmp_path / "other.tfrecord").exists()
    assert read_tfrecord(tmp_path)["n"].compute().tolist() == [1]
    assert [name for name in content(tmp_path) if "part" not in name] == [
        "_SUCCESS",
        "_tfrecord",
        "_tfrecord/00000001.parquet",
    ]


def test_the_next_write_finishes_the_removal(tmp_path: Path) -> None:
    (tmp_path / "other.tfrecord").touch()
    killed_before(REMOVAL, collection(1), tmp_path, overwrite=True)
    to_tfrecord(collection(2), tmp_path, append=True)
    assert not (tmp_path / "other.tfrecord").exists()
    assert read_tfrecord(tmp_path)["n"].compute().tolist() == [1, 2]


def test_a_file_that_comes_after_an_overwrite_is_foreign_again(tmp_path: Path) -> None:
    (tmp_path / "other.tfrecord").touch()
    to_tfrecord(collection(1), tmp_path, overwrite=True)
    (tmp_path / "other.tfrecord").touch()
    with pytest.raises(TFRecordError, match="does not list 1 of the files"):
        read_tfrecord(tmp_path)


def test_data_without_a_snapshot_is_left_alone(tmp_path: Path) -> None:
    """A copy of the data files has no snapshot."""
    to_tfrecord(collection(1), tmp_path)
    (tmp_path / "_tfrecord" / "00000001.parquet").unlink()
    (tmp_path / "foreign.tfrecord").touch()
    before = content(tmp_path)
    assert cleanup(tmp_path, older_than="0s") == []
    assert content(tmp_path) == before


def test_files_of_others_beside_a_dataset_are_left_alone(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path)
    (tmp_path / "foreign.tfrecord").touch()
    (tmp_path / "_tfrecord" / "notes.txt").touch()
    assert cleanup(tmp_path, older_than="0s") == []
    assert (tmp_path / "foreign.tfrecord").exists()
    assert (tmp_path / "_tfrecord" / "notes.txt").exists()


@pytest.mark.parametrize("name", ["train", "deep/test", "day=1"])
def test_a_dataset_below_another_one_is_left_alone(tmp_path: Path, name: str) -> None:
    to_tfrecord(collection(1), tmp_path / "outer")
    to_tfrecord(collection(2), tmp_path / "inner")
    (tmp_path / "outer" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "inner").rename(tmp_path / "outer" / name)  # a write of it there would be refused
    before = content(tmp_path)
    assert cleanup(tmp_path / "outer", older_than="0s") == []
    assert content(tmp_path) == before


def test_files_that_were_copied_into_a_dataset_are_left_alone(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path / "a")
    to_tfrecord(collection(2), tmp_path / "b")
    (copied,) = (tmp_path / "b").glob("part-*")
    shutil.copy(copied, tmp_path / "a")
    assert cleanup(tmp_path / "a", older_than="0s") == []
    assert (tmp_path / "a" / copied.name).exists()


def test_what_others_put_beside_staged_writes_is_left_alone(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path)
    notes = tmp_path / "_tfrecord" / "staging" / "mine" / "notes.docx"
    notes.parent.mkdir(parents=True)
    notes.touch()
    assert cleanup(tmp_path, older_than="0s") == []
    assert notes.exists()


def test_the_age_of_a_run_is_that_of_its_newest_file(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path)
    two = dd.from_pandas(pd.DataFrame({"n": [2, 3]}), npartitions=2)
    killed_before(COMMIT, two, tmp_path, append=True)
    paths = sorted((tmp_path / "_tfrecord/staging").rglob("part-*"))
    day_ago = time.time() - 24 * 3600
    os.utime(paths[0], (day_ago, day_ago))
    assert cleanup(tmp_path, older_than="6 hours") == []
    os.utime(paths[1], (day_ago, day_ago))
    assert len(cleanup(tmp_path, older_than="6 hours")) == 2


def test_half_a_snapshot_goes(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path)
    half = tmp_path / "_tfrecord" / f".00000002.parquet.{'0123abcd' * 4}"
    half.touch()
    assert cleanup(tmp_path) == []
    assert cleanup(tmp_path, older_than="0s") == [f"_tfrecord/{half.name}"]
    assert not half.exists()


def test_there_may_be_nothing_to_clean(tmp_path: Path) -> None:
    assert cleanup(tmp_path / "nowhere") == []
    to_tfrecord(collection(1), tmp_path)
    assert cleanup(tmp_path, older_than="0s") == []


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").touch()
    with pytest.raises(DestinationError, match=r"a\.tfrecord: is a file, not a directory"):
        cleanup(tmp_path / "a.tfrecord")


NUMBERS_WITHOUT_UNIT = ["7", "7.0", " 30 ", "0", "1_000", "1e3", "P7", "PT7", "7 5 days", "7 days 5", 7, 7.0]
NUMBERS_WITHOUT_UNIT += [np.int64(7), np.float64(7), np.timedelta64(7), np.timedelta64(7, "D")]


@pytest.mark.parametrize(
    "duration", [*NUMBERS_WITHOUT_UNIT, "7 M", "soon", "", "NaT", "-1 day", True, None, timedelta(-1)]
)
def test_a_duration_without_a_unit_is_refused_everywhere(tmp_path: Path, duration: Any) -> None:
    expected = 'is not a duration with a unit; pass a number and its unit, such as "7d"'
    with pytest.raises(TFRecordError, match=expected):
        cleanup(tmp_path, older_than=duration)
    with pytest.raises(TFRecordError, match=expected):
        dask_tfrecord.expire(tmp_path, versions=1, grace=duration)
    if duration is not None:  # means that only `versions` counts
        with pytest.raises(TFRecordError, match=expected):
            dask_tfrecord.expire(tmp_path, versions=1, older_than=duration)
    is_rows = isinstance(duration, int | np.integer | None) and not isinstance(duration, np.timedelta64)
    if not is_rows and duration != "7 M":  # 7 MB
        with pytest.raises(TFRecordError, match="or a size or duration with a unit"):
            dask_tfrecord.Writer(tmp_path, commit_every=duration)


@pytest.mark.filterwarnings("error")  # pandas deprecates some of the units
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7d", timedelta(7)),
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
def test_incomplete_files_go_from_every_directory_and_hidden_files_of_others_stay(
    tmp_path: Path, is_listed_by_fsspec: bool
) -> None:
    others = [f".cache.{TEMPORARY}", f"_notes/.draft.{TEMPORARY}", ".part-1"]
    to_tfrecord(collection(1), tmp_path / "d")
    before = content(tmp_path / "d")
    for name in [*INCOMPLETE, *others]:
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_text("SECRET")
    (tmp_path / "elsewhere").mkdir()
    outside = tmp_path / "elsewhere" / f".schema.pbtxt.{TEMPORARY}"
    outside.touch()
    options: dict[str, Any] = {"filesystem": DirFileSystem(str(tmp_path))} if is_listed_by_fsspec else {}
    place = "d" if is_listed_by_fsspec else tmp_path / "d"
    if not is_listed_by_fsspec:
        (tmp_path / "d" / "_link").symlink_to(tmp_path / "elsewhere")
    assert cleanup(place, **options) == []
    assert cleanup(place, older_than="0s", dry_run=True, **options) == sorted(INCOMPLETE)
    assert cleanup(place, older_than="0s", **options) == sorted(INCOMPLETE)
    left = {*content(tmp_path / "d")} - {*before, *others, "_notes", "_link"}
    assert left == set()
    assert outside.exists()


@pytest.mark.parametrize("days", [-3, 3])
def test_the_age_of_files_is_measured_by_the_clock_of_the_store(
    tmp_path: Path, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Skewed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(days=days)

    to_tfrecord(collection(1), tmp_path)
    killed_before(CREATION, collection(2), tmp_path, append=True)
    monkeypatch.setattr("dask_tfrecord.table_operations.datetime", Skewed)
    monkeypatch.setattr("dask_tfrecord.dataset.write.orphans.datetime", Skewed)
    assert cleanup(tmp_path) == []
    assert len(cleanup(tmp_path, older_than="0s")) == 1
