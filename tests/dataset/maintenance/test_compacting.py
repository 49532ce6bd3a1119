"""Compaction: the same rows in fewer files, beside other writes, and nothing changes if it fails.

Modules: dataset.maintenance.rewrites.
"""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pytest

from dask_tfrecord import (
    ConcurrentWriteError,
    CorruptRecordError,
    FileChangedError,
    NotFoundError,
    SchemaError,
    Snapshot,
    TFRecordError,
    cleanup,
    compact,
    delete,
    index,
    read_tfrecord,
    to_tfrecord,
    verify,
)
from dask_tfrecord.dataset.maintenance import rewrites
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.files.splice import splice
from dask_tfrecord.files.storage.store import Store

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:TensorFlow reads only gzip and zlib"),
]

every = pytest.mark.parametrize("codec", [None, "gzip", "zlib", "zstd"])


def rows(*numbers: int) -> dd.DataFrame:
    """Rows of several days, with nulls and lists, in a partition for each three rows."""
    frame = pd.DataFrame({"day": [n // 10 for n in numbers], "n": list(numbers)})
    frame["text"] = pd.array([None if n % 3 else f"row {n}" for n in numbers], dtype="string[pyarrow]")
    return dd.from_pandas(frame, npartitions=(len(numbers) + 2) // 3)


def write(place: Path | str, numbers: range, **keywords: Any) -> Snapshot:
    keywords = {"partition_on": "day", **keywords}
    if "append" not in keywords and "overwrite" not in keywords:
        keywords["append"] = True
    snapshot: Snapshot = to_tfrecord(rows(*numbers), place, **keywords)
    return snapshot


def contents(place: Path | str, **keywords: Any) -> pd.DataFrame:
    frame: pd.DataFrame = read_tfrecord(place, **keywords).compute()
    return frame.reset_index(drop=True)


def is_intact(place: Path | str) -> bool:
    report = verify(place)
    return bool(report["agrees"].all()) and not report["damaged"].any()


def files(place: Path | str) -> set[str]:
    store = Store.at(place)
    return {store.relative(path) for path in store.fs.find(store.root)}


@every
def test_small_files_become_one_file_for_each_directory(place: str, codec: Any) -> None:
    for start in (0, 5, 12, 3):
        write(place, range(start, start + 12), compression=codec)
    before = contents(place)
    done = compact(place)
    assert (done.replaced, done.written, done.skipped) == (20, 3, 0)
    assert done.snapshot == Snapshot.open(place)
    assert (done.snapshot.mode, done.snapshot.number) == ("compact", 5)
    assert is_intact(place)
    pd.testing.assert_frame_equal(contents(place), before)
    # The statistics are those of all rows.
    day = contents(place, filters=[("day", "==", 1)])
    [statistics] = [file.statistics for file in done.snapshot.files if file.values == (1,)]
    assert [(one.name, one.min, one.max, one.nulls) for one in statistics] == [
        ("n", day["n"].min(), day["n"].max(), 0),
        ("text", day["text"].min(), day["text"].max(), day["text"].isna().sum()),
    ]
    assert compact(place)[1:] == (0, 0, 0)
    assert Snapshot.open(place).number == 5
    assert cleanup(place, older_than="0 s") == []


def test_files_of_half_the_target_stay_and_order_is_kept(tmp_path: Path) -> None:
    sizes = [1, 1, 20, 1, 1, 1, 9, 1]
    for at, size in enumerate(sizes):
        frame = pd.DataFrame({"n": [at], "text": ["x" * 10_000 * size]})
        to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "d", append=True)
    before = contents(tmp_path / "d")
    one = Snapshot.open(tmp_path / "d").files[0].bytes
    done = compact(tmp_path / "d", target_bytes=10 * one)
    assert [round(file.bytes / one) for file in done.snapshot.files] == [2, 20, 3, 9, 1]
    pd.testing.assert_frame_equal(contents(tmp_path / "d"), before)
    done = compact(tmp_path / "d", target_bytes=f"{2 * one} B")
    assert done[1:] == (0, 0, 0)
    assert len(compact(tmp_path / "d", target_bytes=None).snapshot.files) == 1


def test_rows_stay_new_in_a_compacted_file(tmp_path: Path) -> None:
    """An overwrite that was planned before the rows must not remove them, also if their number is right."""
    to_tfrecord(rows(1, 2, 3), tmp_path / "d")
    overwrite = to_tfrecord(rows(9), tmp_path / "d", overwrite=True, compute=False)
    delete(tmp_path / "d", [("n", "==", 1)])
    to_tfrecord(rows(4), tmp_path / "d", append=True)
    compact(tmp_path / "d", target_bytes=None)
    with pytest.raises(ConcurrentWriteError):
        overwrite.compute()


def test_filters_choose_the_files(tmp_path: Path) -> None:
    for _ in range(2):
        write(tmp_path, range(40))
    compact(tmp_path, filters=[("day", ">", 2)])
    assert [file.values for file in Snapshot.open(tmp_path).files].count((3,)) == 1
    compact(tmp_path, filters=[("n", "<", 10)])
    counts = [[file.values for file in Snapshot.open(tmp_path).files].count((day,)) for day in range(4)]
    assert counts == [1, 8, 8, 1]
    with pytest.raises(SchemaError):
        compact(tmp_path, filters=[("unknown", "==", 1)])


Other = Callable[[Path], object]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Other], None]:
    """Let another operation run before the compaction writes its second file."""

    def install(path: Path, other: Other) -> None:
        calls: list[int] = []

        def splice_slowly(*args: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                other(path)
            return splice(*args)

        monkeypatch.setattr(rewrites, "splice", splice_slowly)

    return install


def test_an_append_beside_a_compaction_is_kept(
    tmp_path: Path, meanwhile: Callable[[Path, Other], None]
) -> None:
    for _ in range(2):
        write(tmp_path, range(30))
    meanwhile(tmp_path, lambda path: write(path, range(5, 15)))
    done = compact(tmp_path)
    assert done[1:] == (24, 3, 0)
    assert sorted(contents(tmp_path)["n"]) == sorted([*range(30)] * 2 + [*range(5, 15)])
    assert is_intact(tmp_path)


@pytest.mark.parametrize(
    ("other", "skipped", "expected"),
    [
        (
            lambda path: write(path, range(10, 13), overwrite="partitions"),
            8,
            [*range(10)] * 2 + [*range(10, 13)] + [*range(20, 30)] * 2,
        ),
        (lambda path: write(path, range(10, 13), overwrite=True), 24, [*range(10, 13)]),
        (compact, 24, [*range(30)] * 2),
    ],
    ids=["partitions", "overwrite", "compact"],
)
def test_files_that_another_write_replaces_are_left_out(
    tmp_path: Path, meanwhile: Callable[[Path, Other], None], other: Other, skipped: int, expected: list[int]
) -> None:
    for _ in range(2):
        write(tmp_path, range(30))
    meanwhile(tmp_path, other)
    done = compact(tmp_path)
    assert done.skipped == skipped
    assert sorted(contents(tmp_path)["n"]) == sorted(expected)
    assert is_intact(tmp_path)
    listed = {file.path for file in Snapshot.open(tmp_path).files}
    assert {name for name in files(tmp_path) if not name.startswith("_")} == listed
    assert cleanup(tmp_path, older_than="0 s") == []


def test_a_dataset_that_is_removed_meanwhile_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "memory://bucket/removed"
    for number in range(2):
        to_tfrecord(rows(number), place, append=True, write_index=False)
    store, commit = Store.at(place), rewrites.commit

    def remove_before(run: WriteRun, *args: Any) -> Any:
        store.remove(path for path in store.fs.find(store.root) if run.run not in path)
        return commit(run, *args)

    monkeypatch.setattr(rewrites, "commit", remove_before)
    with pytest.raises(ConcurrentWriteError):
        compact(place)
    with pytest.raises(FileNotFoundError):
        read_tfrecord(place)
    store.fs.rm("/bucket", recursive=True)


@every
def test_damage_stops_the_compaction_and_changes_nothing(tmp_path: Path, codec: Any) -> None:
    snapshot = write(tmp_path, range(30), compression=codec)
    path = tmp_path / snapshot.files[-1].path
    stored = bytearray(path.read_bytes())
    stored[-3] ^= 4
    path.write_bytes(stored)
    before = files(tmp_path)
    with pytest.raises((FileChangedError, CorruptRecordError)) as raised:
        compact(tmp_path)
    assert raised.value.path == str(path)
    path.unlink()
    with pytest.raises(CorruptRecordError, match="missing"):
        compact(tmp_path)
    assert files(tmp_path) == before - {snapshot.files[-1].path}
    assert Snapshot.open(tmp_path).number == 1


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_a_full_disk_stops_a_compaction_and_a_deletion_and_changes_nothing(
    tmp_path: Path, codec: Any
) -> None:
    resource = pytest.importorskip("resource")
    for start in (0, 500):
        ddf = dd.from_pandas(pd.DataFrame({"n": range(start, start + 500)}), npartitions=1)
        to_tfrecord(ddf, tmp_path, compression=codec, append=True, write_index=False)
    before = files(tmp_path)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    for change in (compact, lambda path: delete(path, [("n", "in", [3, 600])])):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, unlimited[1]))  # the largest size of a file
        try:
            with pytest.raises(OSError, match=r"too large.*part-"):
                change(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        assert files(tmp_path) == before
        assert Snapshot.open(tmp_path).number == 2
    assert compact(tmp_path).written == 1
    assert delete(tmp_path, [("n", "in", [3, 600])]).rows == 2


def test_files_of_other_tools_become_files_of_their_codec(tmp_path: Path) -> None:
    to_tfrecord(rows(*range(9)), tmp_path / "ours")
    (tmp_path / "theirs").mkdir()
    for at, path in enumerate(sorted((tmp_path / "ours").glob("*.tfrecord"))):
        members = gzip.compress(path.read_bytes()) + gzip.compress(b"")
        (tmp_path / f"theirs/train-{at:05d}-of-00003").write_bytes(members)
    index(tmp_path / "theirs")
    before = contents(tmp_path / "theirs")
    done = compact(tmp_path / "theirs")
    [file] = done.snapshot.files
    assert file.path.endswith(".tfrecord.gz")
    assert file.blocks
    assert files(tmp_path / "theirs") == {file.path, "_SUCCESS", "_tfrecord/00000002.parquet"}
    pd.testing.assert_frame_equal(contents(tmp_path / "theirs"), before)


def test_a_path_without_a_snapshot_and_a_wrong_size_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(NotFoundError, match="no snapshot"):
        compact(tmp_path / "d")
    with pytest.raises(TFRecordError, match="target_bytes='many' is not a size"):
        compact(tmp_path / "d", target_bytes="many")


@pytest.mark.tensorflow
@pytest.mark.parametrize("codec", [None, "gzip", "zlib"])
def test_tensorflow_reads_compacted_files(tmp_path: Path, codec: Any) -> None:
    import tensorflow as tf

    def payloads() -> list[bytes]:
        paths = [str(tmp_path / file.path) for file in Snapshot.open(tmp_path).files]
        found = tf.data.TFRecordDataset(paths, compression_type=(codec or "").upper())
        return [record.numpy() for record in found]

    for start in range(0, 600, 60):
        write(tmp_path, range(start, start + 60), compression=codec, partition_on=None)
    before = payloads()
    assert len(compact(tmp_path).snapshot.files) == 1
    assert payloads() == before


def test_a_file_that_holds_values_of_other_files_has_their_permissions(tmp_path: Path) -> None:
    write(tmp_path, range(20))
    for file in (*tmp_path.rglob("part-*"), *tmp_path.rglob("*.parquet")):
        file.chmod(0o640)
    before = {*tmp_path.rglob("*.*")}
    index(tmp_path, columnar=["n"])
    compact(tmp_path)
    delete(tmp_path, [("n", "==", 3)])
    files = {*tmp_path.rglob("part-*"), *tmp_path.rglob("*.parquet")} - before
    assert {file.parent.name for file in files} >= {"_tfrecord", "columns"}
    assert {file.stat().st_mode & 0o777 for file in files} == {0o640}


def test_a_file_compacted_from_files_of_other_permissions_has_those_that_all_have(tmp_path: Path) -> None:
    write(tmp_path, range(10), partition_on=None)
    write(tmp_path, range(10), partition_on=None)
    first, *_ = sorted(tmp_path.glob("part-*"))
    for file in tmp_path.glob("part-*"):
        file.chmod(0o600 if file == first else 0o644)
    compact(tmp_path)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.glob("part-*")} == {0o600}
