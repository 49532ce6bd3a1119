"""The versions of a dataset: their list, and reading an older one.

Modules: dataset.snapshot.versions.
"""

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pytest

from dask_tfrecord import (
    CorruptRecordError,
    Snapshot,
    TFRecordError,
    cleanup,
    compact,
    delete,
    expire,
    index,
    read_tfrecord,
    restore,
    to_tfrecord,
)
from dask_tfrecord.dataset.snapshot import versions

pytestmark = pytest.mark.usefixtures("one_thread", "appended_snapshots")


def rows(*numbers: int) -> dd.DataFrame:
    frame = pd.DataFrame({"n": [*numbers], "key": [number % 2 for number in numbers]})
    return dd.from_pandas(frame, npartitions=1)


def read(path: object, **options: object) -> list[int]:
    return sorted(read_tfrecord(path, **options)["n"].compute())  # type: ignore[arg-type]  # any keywords


def test_each_version_reads_the_rows_that_it_had(place: str) -> None:
    to_tfrecord(rows(1, 2), place)
    to_tfrecord(rows(3), place, append=True)
    to_tfrecord(rows(4), place, append=True)
    assert [read(place, version=number) for number in (1, 2, 3)] == [[1, 2], [1, 2, 3], [1, 2, 3, 4]]
    assert read(place) == read(place, version=3)
    assert len(read_tfrecord(place, version=1)) == 2


def test_cleanup_keeps_the_versions(tmp_path: Path) -> None:
    to_tfrecord(rows(1, 2), tmp_path)
    to_tfrecord(rows(3), tmp_path, append=True)
    cleanup(tmp_path, older_than="0 s")
    assert read(tmp_path, version=1) == [1, 2]


@pytest.mark.parametrize("overwrite", [True, "partitions"])
def test_a_version_that_an_overwrite_removed_raises(place: str, overwrite: bool | str) -> None:
    to_tfrecord(rows(1, 2), place, partition_on="key")
    to_tfrecord(rows(3), place, overwrite=overwrite, partition_on="key")  # type: ignore[call-overload]
    with pytest.raises(FileNotFoundError, match=r"no version 1; it has 2\. An overwrite"):
        read_tfrecord(place, version=1)
    assert Snapshot.history(place)["version"].tolist() == [2]


def test_a_missing_file_of_an_older_version_raises(tmp_path: Path) -> None:
    first = to_tfrecord(rows(1, 2), tmp_path)
    to_tfrecord(rows(3), tmp_path, append=True)
    (tmp_path / first.files[0].path).unlink()
    with pytest.raises(
        CorruptRecordError, match=r"in its version 1; put the file back, or pass version=None"
    ):
        read_tfrecord(tmp_path, version=1)


def test_an_older_version_ignores_the_files_of_newer_ones(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    first = to_tfrecord(rows(1, 2), tmp_path / "one")
    second = to_tfrecord(rows(3), tmp_path / "two")
    foreign.mkdir()
    shutil.copy(tmp_path / "one" / first.files[0].path, foreign / "a.tfrecord")
    index(foreign)
    shutil.copy(tmp_path / "two" / second.files[0].path, foreign / "b.tfrecord")
    index(foreign)
    assert read(foreign, version=1) == [1, 2]
    assert read(foreign) == [1, 2, 3]
    assert Snapshot.history(foreign)["mode"].tolist() == ["index", "index"]


@pytest.mark.parametrize("options", [{"use_snapshot": False}, {}])
def test_a_version_needs_one_directory_with_a_snapshot(tmp_path: Path, options: dict[str, bool]) -> None:
    to_tfrecord(rows(1), tmp_path)
    path = tmp_path if options else [tmp_path]
    with pytest.raises(TFRecordError, match="version=1 selects a snapshot, which belongs to one directory"):
        read_tfrecord(path, version=1, **options)  # type: ignore[call-overload]


def test_a_directory_without_a_snapshot_has_no_versions(tmp_path: Path) -> None:
    first = to_tfrecord(rows(1), tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("_*"))
    assert first.files
    for call in (Snapshot.history, lambda path: read_tfrecord(path, version=1)):
        with pytest.raises(FileNotFoundError, match="the directory has no snapshot"):
            call(tmp_path / "b")


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, True])
def test_a_version_that_is_not_a_number_raises(tmp_path: Path, version: object) -> None:
    to_tfrecord(rows(1), tmp_path)
    with pytest.raises(TFRecordError, match="version="):
        read_tfrecord(tmp_path, version=version)  # type: ignore[call-overload]


def test_history_lists_what_created_each_version(place: str) -> None:
    start = datetime.now(UTC) - timedelta(seconds=1)
    to_tfrecord(rows(0, 1, 2), place, partition_on="key")
    snapshots = [
        Snapshot.open(place),
        to_tfrecord(rows(3), place, append=True, partition_on="key"),
        to_tfrecord(rows(5), place, append=True, partition_on="key"),
    ]
    history = Snapshot.history(place)
    assert history["mode"].tolist() == ["create", "append", "append"]
    for name in ("run", "records", "bytes", "library"):
        assert history[name].tolist() == [getattr(one, name) for one in snapshots]
    assert history["files"].tolist() == [2, 3, 4]
    assert history["created"].is_monotonic_increasing
    assert start < history["created"].iloc[0] < datetime.now(UTC) + timedelta(seconds=1)
    to_tfrecord(rows(9), place, overwrite="partitions", partition_on="key")
    assert Snapshot.history(place)[["version", "mode"]].to_numpy().tolist() == [[4, "partitions"]]


def test_history_without_the_file_lists_is_the_same(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions with long metadata, without totals, and with other totals are read with their file lists."""
    to_tfrecord(rows(0, 1, 2), place, partition_on="key")
    to_tfrecord(rows(3), place, append=True, partition_on="key")
    delete(place, [("n", "==", 1)], keep_versions=True)
    with monkeypatch.context() as patch:
        patch.setattr(versions, "totals", lambda rows: {"files": True, "records": 1, "bytes": 1})
        to_tfrecord(rows(5), place, append=True, partition_on="key")
    long = {"text": "x" * 100_000}
    to_tfrecord(rows(7), place, append=True, partition_on="key", custom_metadata=long)
    compact(place, keep_versions=True)
    restore(place, 2)
    expire(place, versions=4)
    found = Snapshot.history(place)
    shown = found[["version", "mode", "details", "files", "records"]].fillna({"details": ""})
    assert shown.to_numpy().tolist() == [
        [4, "append", "", 3, 4],
        [5, "append", "", 4, 5],
        [6, "compact", "", 2, 5],
        [7, "restore", "version 2", 3, 4],
        [8, "expire", "versions before 4", 3, 4],
    ]
    monkeypatch.setattr(versions, "read_metadata", lambda store, numbers: {})
    pd.testing.assert_frame_equal(Snapshot.history(place), found)


def test_history_reads_the_end_of_each_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_tfrecord(rows(0, 1, 2), tmp_path)
    newest = delete(tmp_path, [("n", "==", 1)]).snapshot
    os.utime(tmp_path / newest.files[0].path, (1, 1))
    index(tmp_path)
    monkeypatch.setattr(versions, "_read", None)
    assert Snapshot.history(tmp_path)["details"].fillna("").tolist() == ["1 rows", ""]


def test_a_snapshot_keeps_what_created_it(tmp_path: Path) -> None:
    written = to_tfrecord(rows(1), tmp_path)
    assert (written.mode, Snapshot.open(tmp_path)) == ("create", written)


def test_printed_columns_have_the_order_of_the_frame(tmp_path: Path) -> None:
    frame = pd.DataFrame({"key": ["a"], "n": [1]})
    snapshot = to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path, partition_on="key")
    assert repr(snapshot).endswith(" bytes, columns: key, n)")
    shown = {"files": 1, "records": 1, "bytes": snapshot.bytes, "columns": "key, n"}
    html = snapshot._repr_html_()
    assert [name for name, text in shown.items() if f"<th>{name}</th><td>{text}</td>" not in html] == []
    assert "<th>mode</th><td>create</td>" in snapshot._repr_html_()
    ddf = read_tfrecord(tmp_path)
    totals = f"1 files, 1 rows, {snapshot.bytes} bytes, 1 partitions, version 1, columns: key, n"
    assert f"ReadTFRecord({tmp_path}: {totals})" in repr(ddf)
    assert ddf.columns.tolist() == ["key", "n"]


def test_the_repr_of_many_columns_is_short(tmp_path: Path) -> None:
    frame = pd.DataFrame({f"c{number}": [1] for number in range(100)})
    snapshot = to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path)
    assert repr(snapshot).endswith("c11 and 88 more)")
