"""Numbered sets of files, such as ``a-00001-of-00002``: a directory or a glob that lacks members says so.

Modules: dataset.read.layouts.
"""

import shutil
import warnings
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pytest
from other_writers import fill

from dask_tfrecord import (
    CorruptRecordError,
    index,
    iter_batches,
    read_tfrecord,
    to_tfrecord,
    verify,
)

pytestmark = pytest.mark.usefixtures("one_thread")

ONE = oracle.features_file([{"n": ("int64", [1])}])


def member(number: int, count: int, end: str = ".tfrecord", start: str = "a") -> str:
    return f"{start}-{number:05d}-of-{count:05d}{end}"


SPLITS = ["Split-train/data_tfrecord-00000-of-00002.gz", "Split-eval/data_tfrecord-00000-of-00001.gz"]


@pytest.mark.parametrize(
    ("files", "path", "missing"),
    [
        ([member(0, 3)], ".", "a-00001-of-00003.tfrecord, a-00002-of-00003.tfrecord;"),
        ([member(1, 3, "")], "*", "a-00000-of-00003, a-00002-of-00003;"),
        ([member(0, 2, ".gz", "data_tfrecord")], "*", r"data_tfrecord-00001-of-00002\.gz;"),
        (["a-0-of-3", "a-2-of-3"], ".", "a-1-of-3;"),
        (["00000-of-00002"], ".", "00001-of-00002;"),
        ([member(number, 5) for number in (1, 2, 4, 5)], ".", "a-00003-of-00005.tfrecord;"),
        ([member(0, 2), member(0, 2, start="b"), member(1, 2, start="b")], ".", "a-00001-of-00002.tfrecord;"),
        ([member(0, 20)], ".", "a-00004-of-00020.tfrecord and at least 15 more;"),
        ([member(0, 999_999_999)], ".", "and at least 9,996 more;"),
        ([member(0, 8)], "a-0000[0-2]-of-*", "a-00001-of-00008.tfrecord, a-00002-of-00008.tfrecord;"),
        (
            [member(0, 2), member(0, 3, start="b")],
            "{a,b}-*",
            "a-00001-of-00002.tfrecord, b-00001-of-00003.tfrecord, b-00002-of-00003.tfrecord;",
        ),
        (["x/" + member(0, 2), "y/" + member(1, 2)], "*", r"x/a-00001-of-00002\S*, y/a-00000-of-"),
        (["x/" + member(0, 2)], ["x"], "a-00001-of-00002.tfrecord;"),
        ([member(0, 3), member(1, 3)], [member(0, 3), "*-00001-*", "*.tfrecord"], "a-00002-of-00003"),
        (SPLITS, ".", "data_tfrecord-00001-of-00002.gz;"),
        (["day=1/" + member(0, 2)], ".", "a-00001-of-00002.tfrecord;"),
    ],
)
def test_missing_members_are_named(tmp_path: Path, files: list[str], path: Any, missing: str) -> None:
    fill(tmp_path, dict.fromkeys(files, ONE))
    place = [str(tmp_path / one) for one in path] if isinstance(path, list) else tmp_path / path
    for use in (read_tfrecord, lambda path: iter_batches(path, 2), verify):
        with pytest.warns(UserWarning, match=f"files of numbered sets are missing: .*{missing}"):
            use(place)


@pytest.mark.parametrize(
    ("files", "path", "keywords"),
    [
        ([member(0, 2), member(1, 2)], ".", {}),
        ([member(0, 2, ".tfrecord.gz"), member(1, 2)], ".", {}),
        ([member(number, 3) for number in (1, 2, 3)], ".", {}),
        ([member(0, 3)], [member(0, 3)], {}),
        ([member(0, 3)], member(0, 3), {}),
        ([member(0, 3), member(1, 3)], "*-00001-of-*", {}),
        (["x/" + member(0, 2)], "x/*00000*", {}),
        (["x-of-2", "1-of-y", "a-1-of", "a-1-of-2/z", member(7, 3), "a-1-of-99999999999999999999"], ".", {}),
        (SPLITS, ".", {"split": "eval"}),
    ],
)
def test_complete_sets_and_files_that_were_not_asked_for_cause_no_warning(
    tmp_path: Path, files: list[str], path: Any, keywords: dict[str, Any]
) -> None:
    fill(tmp_path, dict.fromkeys(files, ONE))
    place = [str(tmp_path / one) for one in path] if isinstance(path, list) else tmp_path / path
    assert len(read_tfrecord(place, **keywords).compute()) >= 1


WRITES: list[tuple[dict[str, Any], str]] = [
    ({}, "*.tfrecord"),
    ({"max_rows_per_file": 7}, "*.tfrecord"),
    ({"name_function": lambda number: f"label{number}"}, "*.tfrecord"),
    ({"shuffle": 1, "npartitions": 2, "compression": "gzip"}, "*.gz"),
    ({"partition_on": "key"}, "key=a/*"),
    ({"partition_on": "key", "colocate": True, "max_rows_per_file": 7}, "**/*.tfrecord"),
    ({"split": {"train": 0.9, "eval": 0.1}, "split_by": "key"}, "split=*"),
]


@pytest.mark.parametrize(("write", "glob"), WRITES)
def test_files_of_this_library_never_cause_a_warning(tmp_path: Path, write: Any, glob: str) -> None:
    frame = pd.DataFrame({"x": range(60), "key": ["a", "b", "c"] * 20})
    ddf = dd.from_pandas(frame, npartitions=3)
    to_tfrecord(ddf, tmp_path, **write)
    to_tfrecord(ddf.partitions[0], tmp_path, append=True, **write)
    rows = [("key", "==", "a")]
    keywords: dict[str, Any] = {"split": "all"} if glob.startswith("split") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for use_snapshot in (True, False):
            read_tfrecord(tmp_path, filters=rows, use_snapshot=use_snapshot, **keywords)
        read_tfrecord(tmp_path / glob, **keywords)
        shutil.rmtree(tmp_path / "_tfrecord")
        read_tfrecord(tmp_path, filters=rows, **keywords)


def test_a_lost_part_of_this_library_raises(tmp_path: Path) -> None:
    to_tfrecord(dd.from_pandas(pd.DataFrame({"x": range(9)}), npartitions=3), tmp_path)
    lost = sorted(tmp_path.glob("part-*"))[1]
    lost.unlink()
    with pytest.raises(CorruptRecordError, match=f"{lost.name}: the file is missing"):
        read_tfrecord(tmp_path)
    shutil.rmtree(tmp_path / "_tfrecord")
    with pytest.warns(UserWarning, match="other files of the same write are missing"):
        assert len(read_tfrecord(tmp_path)) == 6


def test_an_index_of_an_incomplete_set_warns(tmp_path: Path) -> None:
    fill(tmp_path, {member(0, 2): ONE})
    with pytest.warns(UserWarning, match="a-00001-of-00002"):
        index(tmp_path)
    assert len(read_tfrecord(tmp_path)) == 1  # the snapshot promises this file only
