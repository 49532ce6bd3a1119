"""How many files a write makes, and the sizes and names of the files.

Modules: files.entry, writer.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_frames import countries, part_names

from dask_tfrecord import TFRecordError, read_tfrecord, to_tfrecord

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_there_are_as_many_files_as_asked_for(tmp_path: Path, count: int) -> None:
    snapshot = to_tfrecord(countries(), tmp_path, npartitions=count)
    assert part_names(snapshot) == [f"part-{n:05d}-of-{count:05d}.tfrecord" for n in range(count)]
    assert read_tfrecord(tmp_path)["n"].compute().tolist() == list(range(12))


def test_files_hold_no_more_than_max_rows_per_file(tmp_path: Path) -> None:
    snapshot = to_tfrecord(countries(), tmp_path / "a", npartitions=2, max_rows_per_file=3)
    assert [file.records for file in snapshot.files] == [3, 1, 3, 3, 2]
    assert read_tfrecord(tmp_path / "a")["n"].compute().tolist() == list(range(12))
    assert sorted(part_names(snapshot)) == part_names(snapshot)
    snapshot = to_tfrecord(countries(300, 1), tmp_path / "b", max_rows_per_file=np.uint8(200))
    assert [file.records for file in snapshot.files] == [200, 100]


def test_files_hold_no_more_than_max_bytes_per_file(tmp_path: Path) -> None:
    plain = to_tfrecord(countries(), tmp_path / "a", npartitions=1)
    limit = plain.bytes // 3
    to_tfrecord(countries(), tmp_path / "b", npartitions=1, max_bytes_per_file=limit)
    sizes = [path.stat().st_size for path in (tmp_path / "b").glob("part-*")]
    assert len(sizes) >= 3
    assert max(sizes) <= limit
    assert sum(sizes) == plain.bytes
    alone = to_tfrecord(countries(), tmp_path / "c", max_bytes_per_file=1)
    assert [file.records for file in alone.files] == [1] * 12


def test_each_directory_rolls_over_by_itself(tmp_path: Path) -> None:
    options: dict[str, Any] = {"partition_on": "year", "max_rows_per_file": 4, "npartitions": 1}
    snapshot = to_tfrecord(countries(), tmp_path, name_function="file{}".format, **options)
    counts = [(file.values[0], file.records) for file in snapshot.files]
    assert counts == [(2025, 4), (2025, 2), (2026, 4), (2026, 2)]
    assert part_names(snapshot) == [
        f"year={year}/part-00000-of-00001-{number:05d}-file0.tfrecord"
        for number, year in enumerate((2025, 2025, 2026, 2026))
    ]
    assert len(read_tfrecord(tmp_path).compute()) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_rows_per_file": 0}, "max_rows_per_file=0 is not a positive integer"),
        ({"max_bytes_per_file": 1.5}, "max_bytes_per_file=1.5 is not"),
        ({"npartitions": True}, "npartitions=True is not"),
        ({"colocate": True}, "requires partition columns"),
        ({"shuffle": True}, "shuffle=True is not an integer seed"),
        ({"custom_metadata": {"a": 1}}, "must map strings to strings"),
    ],
)
def test_arguments_without_sense_are_refused(tmp_path: Path, arguments: Any, message: str) -> None:
    with pytest.raises(TFRecordError, match=message):
        to_tfrecord(countries(), tmp_path / "a", **arguments)


@pytest.mark.parametrize("ending", ["", ".tfrecord", ".tfrecord.gz"])
def test_name_function_gives_the_end_of_names(tmp_path: Path, ending: str) -> None:
    snapshot = to_tfrecord(
        countries(), tmp_path, name_function=lambda n: f"train-{n}{ending}", compression="gzip"
    )
    assert part_names(snapshot) == [f"part-{n:05d}-of-00003-train-{n}.tfrecord.gz" for n in range(3)]
    assert len(read_tfrecord(tmp_path).compute()) == 12


@pytest.mark.parametrize(
    ("name_function", "message"),
    [
        (lambda n: "same", "the same name for several partitions"),
        (lambda n: f"../{n}", r"name_function= returned '../0', which .*; return at most"),
        (lambda n: n, "name_function= returned 0"),
        (lambda n: "", "name_function= returned ''"),
        (lambda n: "x" * 100 + str(n), "at most 100 bytes"),
        (lambda n: "ż" * 50 + str(n), "at most 100 bytes"),
    ],
)
def test_names_that_are_none_are_refused(tmp_path: Path, name_function: Any, message: str) -> None:
    with pytest.raises(TFRecordError, match=message):
        to_tfrecord(countries(), tmp_path / "a", name_function=name_function, compute=False)
