"""`explain` says for each data file why its records are read, also in datasets that mix all kinds of files.

Modules: dataset.read.column_reads, dataset.read.task, api.description, api.explain, files.small_columns.
"""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.files import small_columns

pytestmark = pytest.mark.usefixtures("one_thread")

HAS_IT = "the column file has all columns"
SMALL_FILE = "the file has no column file: it has fewer than 100,000 bytes"
LARGE_COLUMNS = "the file has no column file: its columns are not small enough"


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_columns, "LEAST_FILE_BYTES", 100_000)


def rows(count: int, size: int) -> pa.Table:
    """Rows with a label of 8 bytes, a caption of 100 bytes and an image of ``size`` bytes."""
    images = pa.array([bytes(size)] * count, pa.binary())
    return pa.table({"label": range(count), "caption": ["c" * 100] * count, "image": images})


def large_images(place: Path, **write: Any) -> None:
    to_tfrecord(rows(30, 5_000), place, **write)


def rules(path: Any, column: str = "label", **read: Any) -> list[str]:
    explanation = dask_tfrecord.explain(read_tfrecord(path, columns=[column], **read))
    return [report.rule for of_task in explanation.partitions for report in of_task]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A large file with a small label, a small file, and a large file in which no column is small."""
    large_images(tmp_path)
    to_tfrecord(rows(10, 5_000), tmp_path, append=True)
    to_tfrecord(rows(1_000, 10), tmp_path, append=True)
    return tmp_path


def test_each_file_without_a_column_file_has_its_reason(mixed: Path) -> None:
    assert rules(mixed) == [HAS_IT, SMALL_FILE, LARGE_COLUMNS]


@pytest.mark.parametrize(
    ("columnar", "of_new_file", "of_old_files"),
    [
        (["label"], HAS_IT, "the file has no column file"),
        ("scalars", HAS_IT, "the file has no column file"),
        *[
            (off, *["the file has no column file, and new files get none (columnar=None)"] * 2)
            for off in (None, False)
        ],
    ],
    ids=str,
)
def test_no_reason_is_given_that_may_be_wrong_after_another_setting(
    mixed: Path, columnar: Any, of_new_file: str, of_old_files: str
) -> None:
    large_images(mixed, append=True, columnar=columnar)
    assert rules(mixed) == [HAS_IT, of_old_files, of_old_files, of_new_file]
    assert rules(mixed, version=3) == [HAS_IT, SMALL_FILE, LARGE_COLUMNS]


def test_a_column_that_a_column_file_lacks_is_named(mixed: Path) -> None:
    assert rules(mixed, "image") == ["the column file does not have 'image'", SMALL_FILE, LARGE_COLUMNS]
    assert rules(mixed, "caption") == ["the column file does not have 'caption'", SMALL_FILE, LARGE_COLUMNS]


def test_parts_of_a_large_file_have_the_reason_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_columns, "LEAST_FILE_BYTES", 3_000_000)
    to_tfrecord(rows(25_000, 10), tmp_path)
    found = rules(tmp_path, blocksize="1 MiB")
    assert (len(found) > 2, {*found}) == (True, {LARGE_COLUMNS})


@pytest.mark.parametrize("read", [{"use_snapshot": False}, {"glob": True}], ids=str)
def test_a_read_without_a_snapshot_does_not_say_that_column_files_are_missing(
    mixed: Path, read: dict[str, bool]
) -> None:
    path = mixed / "*.tfrecord" if read.pop("glob", False) else mixed
    assert rules(path, **read) == ["column files are found only with a snapshot"] * 3


def test_files_of_another_tool_have_their_reasons(
    mixed: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("foreign")
    for at, path in enumerate(sorted(mixed.glob("part-*"))):
        (place / f"{at}.tfrecord").write_bytes(path.read_bytes())
    assert rules(place) == ["column files are found only with a snapshot"] * 3
    open_dataset(place).add_snapshot()
    assert sorted(rules(place)) == sorted([HAS_IT, SMALL_FILE, LARGE_COLUMNS])
    for path in place.glob("*.tfrecord"):
        os.utime(path, (0, 0))
    assert sorted(rules(place)) == sorted(
        ["the data file may have been rewritten", SMALL_FILE, LARGE_COLUMNS]
    )
