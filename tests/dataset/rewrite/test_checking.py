"""`Dataset.check`: one listing reports missing, resized and unlisted files, and those of unfinished writes.

Modules: dataset.snapshot.check, dataset.snapshot.visibility.
"""

from collections.abc import Callable
from typing import Any

import fsspec
import pandas as pd
import pytest
from small_frames import keyed

from dask_tfrecord import TFRecordError, open_dataset, to_tfrecord
from dask_tfrecord.dataset.snapshot import check
from dask_tfrecord.dataset.snapshot.model import Snapshot

pytestmark = pytest.mark.usefixtures("one_thread")

RUN = "0123abcd" * 4


def written(place: str) -> tuple[Any, str, list[str]]:
    """Write four files of ten rows each. Return the filesystem, the directory, and the paths of the files."""
    for start in range(0, 40, 20):
        numbers = [*range(start, start + 10)]
        to_tfrecord(keyed(a=numbers, b=numbers), place, partition_on="key", append=bool(start))
    fs, root = fsspec.url_to_fs(place)
    return fs, root, [f"{root}/{file.path}" for file in Snapshot.open(place).files]


def found(place: str) -> list[tuple[Any, ...]]:
    """The rows of the report, with paths relative to the directory, and None for a null."""
    report = open_dataset(place).check()
    assert [*report] == ["path", "problem", "bytes", "listed_bytes", "rows"]
    assert all(isinstance(dtype, pd.ArrowDtype) for dtype in report.dtypes)
    report["path"] = [path.partition("place/")[2] for path in report["path"]]
    return [*report.astype(object).where(report.notna(), None).itertuples(index=False, name=None)]


def cut(fs: Any, root: str, file: str) -> None:
    fs.pipe_file(file, fs.cat_file(file)[:-1])


def foreign(fs: Any, root: str, file: str) -> None:
    fs.cp_file(file, f"{root}/key=c.tfrecord")


def copied(fs: Any, root: str, file: str) -> None:
    fs.cp_file(file, f"{root}/part-{RUN}-00000-of-00001.tfrecord")


def staged(fs: Any, root: str, file: str) -> None:
    fs.makedirs(f"{root}/_tfrecord/staging/{RUN}", exist_ok=True)
    fs.cp_file(file, f"{root}/_tfrecord/staging/{RUN}/part-{RUN}-00000-of-00002.tfrecord")


def published(fs: Any, root: str, file: str) -> None:
    """Leave what a write leaves that was killed between the moves of its two files."""
    staged(fs, root, file)
    fs.cp_file(file, f"{root}/key=a/part-{RUN}-00001-of-00002.tfrecord")


def kept(fs: Any, root: str, file: str) -> None:
    """Leave a listed file in the directory of kept files, as an interrupted restore does."""
    target = f"{root}/_tfrecord/kept/{file.removeprefix(f'{root}/')}"
    fs.makedirs(target.rpartition("/")[0], exist_ok=True)
    fs.mv(file, target)


# Each change with the problem and the path of each row of the report. The empty path is that of the file.
CHANGES: dict[str, tuple[Callable[..., None], list[tuple[str, str]]]] = {
    "removed": (lambda fs, root, file: fs.rm_file(file), [("missing", "")]),
    "cut": (cut, [("resized", "")]),
    "foreign": (foreign, [("unlisted", "key=c.tfrecord")]),
    "copied": (copied, [("unlisted", f"part-{RUN}-00000-of-00001.tfrecord")]),
    "staged": (
        staged,
        [("unfinished", f"_tfrecord/staging/{RUN}/part-{RUN}-00000-of-00002.tfrecord")],
    ),
    "published": (
        published,
        [
            ("unfinished", f"_tfrecord/staging/{RUN}/part-{RUN}-00000-of-00002.tfrecord"),
            ("unfinished", f"key=a/part-{RUN}-00001-of-00002.tfrecord"),
        ],
    ),
    "kept": (kept, []),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_difference_from_the_snapshot_is_one_row(place: str, change: str) -> None:
    fs, root, files = written(place)
    assert found(place) == []
    size = fs.size(files[1])
    act, expected = CHANGES[change]
    act(fs, root, files[1])
    rows = found(place)
    assert [(problem, path.removeprefix(files[1][len(root) + 1 :])) for path, problem, *_ in rows] == expected
    for _, problem, now, listed, count in rows:
        if problem in ("missing", "resized"):
            assert (now, listed, count) == (None if problem == "missing" else size - 1, size, 10)
        else:
            assert (listed, count) == (None, None)


def test_the_report_begins_with_what_is_lost_and_verify_agrees(place: str) -> None:
    fs, root, files = written(place)
    for act, file in ((foreign, files[0]), (published, files[0]), (cut, files[1])):
        act(fs, root, file)
    fs.rm_file(files[2])
    rows = found(place)
    assert [row[1] for row in rows] == ["missing", "resized", "unlisted", "unfinished", "unfinished"]
    report = open_dataset(place).verify()
    differ = {path.partition("place/")[2] for path in report["path"][~report["agrees"]]}
    assert differ == {path for path, problem, *_ in rows if problem != "unfinished"}


def test_the_files_of_a_commit_during_the_listing_are_no_problem(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(place)
    listing = check.find_listed

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.undo()
        to_tfrecord(keyed(c=[1]), place, partition_on="key", overwrite=True)
        return listing(*arguments)

    opened = open_dataset(place)
    monkeypatch.setattr(check, "find_listed", overtaken)
    assert len(opened.check()) == 0


def test_only_the_whole_newest_version_of_one_directory_is_checked(tmp_path: Any) -> None:
    written(f"{tmp_path}/place")
    with pytest.raises(FileNotFoundError, match=r"no snapshot.*add_snapshot"):
        open_dataset(f"{tmp_path}/place/key=a").check()
    with pytest.raises(TFRecordError, match="all rows of the newest version"):
        open_dataset(f"{tmp_path}/place", version=1).check()
    with pytest.raises(TFRecordError, match="one dataset, not a list"):
        open_dataset([f"{tmp_path}/place"]).check()
