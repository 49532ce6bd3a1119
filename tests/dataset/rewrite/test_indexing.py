"""`index` creates a snapshot of a directory of files by any writer; files that go missing later are repaired.

`verify`: a row for each file with its damage, its drift, and its agreement with the snapshot.

Modules: dataset.rewrite.verify, dataset.rewrite.add_snapshot, dataset.rewrite.versions, dataset.read.sample,
dataset.listing, storage.paths, storage.uploading, storage.failures.
"""

import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from damaged_files import damaged_files
from hypothesis import given
from other_writers import fill

import dask_tfrecord
from dask_tfrecord import CorruptRecordError, FileChangedError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.codec import HEADER_BYTES
from dask_tfrecord.codec.codecs import detect
from dask_tfrecord.dataset.read import sample
from dask_tfrecord.dataset.rewrite import add_snapshot, verify, versions
from dask_tfrecord.dataset.snapshot import check
from dask_tfrecord.dataset.snapshot.model import Commit, Snapshot
from dask_tfrecord.files import find_blocks as locate
from dask_tfrecord.files import window
from dask_tfrecord.storage.store import Store

pytestmark = [
    pytest.mark.filterwarnings("ignore::dask_tfrecord.CorruptRecordWarning"),
    pytest.mark.usefixtures("one_thread"),
]


def content(first: int, count: int) -> bytes:
    """A file of Examples with the features n, list and name; every third Example has no name."""
    numbers = range(first, first + count)
    rows = [{"n": ("int64", [n]), "list": ("int64", [n] * (n % 4))} for n in numbers]
    names = [{"name": ("bytes", [b"row %d" % n])} if n % 3 else {} for n in numbers]
    return oracle.features_file([{**row, **name} for row, name in zip(rows, names, strict=True)])


FILES = {
    "country=DE/day=1/a.tfrecord": (0, 50, None),
    "country=DE/day=2/b.tfrecord.gz": (50, 30, "gzip"),
    "country=US/day=1/c": (80, 400, None),
    "country=US/day=3/empty": (480, 0, None),
    "country=US/day=3/z": (480, 20, "zlib"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {name: content(first, count) for name, (first, count, _) in FILES.items()}
    files = {name: data and oracle.compress(data, FILES[name][2]) for name, data in files.items()}
    return fill(tmp_path / "data", {**files, "_SUCCESS": b""})


@pytest.fixture(params=[1_000, 1 << 27])
def _task_sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks read parts of files, or whole files."""
    monkeypatch.setattr(sample, "TASK_BYTES", request.param)
    monkeypatch.setattr(add_snapshot, "BLOCK_BYTES", 500)
    monkeypatch.setattr(sample, "BLOCK_BYTES", 500)


@pytest.mark.usefixtures("_task_sizes")
def test_the_snapshot_says_what_is_in_the_files(root: Path) -> None:
    dask_tfrecord.open_dataset(root).add_snapshot()
    snapshot = Snapshot.open(root)
    assert snapshot.records == 500
    assert [column.name for column in snapshot.partitioning] == ["country", "day"]
    assert {file.path for file in snapshot.files} == set(FILES)
    for file in snapshot.files:
        first, count, compression = FILES[file.path]
        stored = (root / file.path).read_bytes()
        country, day = file.path.split("/")[:2]
        assert (file.bytes, file.records, file.crc32c) == (len(stored), count, oracle.crc32c(stored))
        assert file.values == (country[8:], int(day[4:]))
        if not count:
            continue
        statistics = {column.name: column for column in file.statistics}
        n, lists, name = (statistics[column] for column in ("n", "list", "name"))
        assert (n.min, n.max, n.nulls) == (first, first + count - 1, 0)
        assert (lists.min_length, lists.max_length) == (0, 3)
        names = [f"row {i}" for i in range(first, first + count) if i % 3]
        assert (name.min, name.max, name.nulls) == (min(names), max(names), count - len(names))
        if compression:
            assert file.blocks == ()
            continue
        starts = [0, *accumulate(len(payload) + 16 for payload in oracle.frames(stored))]
        assert file.blocks[0] == (0, 0, 0)
        assert all(block == (starts[block.record],) * 2 + (block.record,) for block in file.blocks)
        gaps = [after.offset - before.offset for before, after in pairwise(file.blocks)]
        assert max(gaps, default=0) < 2 * 500 + 100  # and a record


@pytest.mark.usefixtures("_task_sizes")
def test_the_next_reader_reads_the_same_and_opens_nothing_to_know_it(root: Path, opened: list[str]) -> None:
    before = read_tfrecord(root).compute()
    dask_tfrecord.open_dataset(root).add_snapshot()
    snapshot = Snapshot.open(root)
    assert Snapshot.open(root) == snapshot
    opened.clear()
    ddf = read_tfrecord(root, blocksize=2_000)
    assert len(ddf) == 500
    assert opened == []
    assert ddf.npartitions > len(FILES)
    after = ddf.compute()
    pd.testing.assert_frame_equal(after.reset_index(drop=True), before.reset_index(drop=True))


def test_a_rare_feature_in_the_last_record_and_one_with_an_empty_name_are_columns(
    tmp_path: Path, data: Path
) -> None:
    files = dict.fromkeys("abcdefghij", content(0, 3))
    files["f"] += oracle.features_file([{"n": ("int64", [1]), "rare": ("int64", [1, 2])}])
    dask_tfrecord.open_dataset(fill(tmp_path / "rare", files)).add_snapshot()
    snapshot = Snapshot.open(fill(tmp_path / "rare", files))
    assert snapshot.schema.arrow.field("rare").type == pa.list_(pa.int64())
    assert read_tfrecord(tmp_path / "rare").compute()["rare"].dropna().tolist() == [[1, 2]]
    (tmp_path / "tf").mkdir()
    shutil.copy(data / "writers/tf_plain.tfrecord", tmp_path / "tf")
    before = read_tfrecord(tmp_path / "tf").compute()[""]
    dask_tfrecord.open_dataset(tmp_path / "tf").add_snapshot()
    assert read_tfrecord(tmp_path / "tf").compute()[""].equals(before)
    assert dask_tfrecord.open_dataset(tmp_path / "tf").verify()["agrees"].all()


def test_types_and_record_types_may_be_given(root: Path, tmp_path: Path) -> None:
    dask_tfrecord.open_dataset(root, schema={"n": pa.int16(), "day": pa.string()}, hive=True).add_snapshot()
    snapshot = Snapshot.open(root)
    assert snapshot.schema.arrow.field("n").type == pa.int16()
    assert {file.values[1] for file in snapshot.files} == {"1", "2", "3"}
    with pytest.raises(dask_tfrecord.DestinationError, match="already has a snapshot"):
        dask_tfrecord.open_dataset(root).add_snapshot()
    other = fill(tmp_path / "other", {"x": oracle.records_file([b"anything", b""])})
    assert dask_tfrecord.open_dataset(other, record_type="bytes").add_snapshot().rows == 2
    assert read_tfrecord(other)["record"].compute().tolist() == [b"anything", b""]


def test_of_two_at_once_one_is_stored_and_the_other_is_to_be_called_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    creating = Store.create_exclusively

    def overtaken(self: Store, path: str, data: bytes) -> None:
        monkeypatch.setattr(Store, "create_exclusively", creating)
        dask_tfrecord.open_dataset(root).add_snapshot()
        creating(self, path, data)

    monkeypatch.setattr(Store, "create_exclusively", overtaken)
    with pytest.raises(dask_tfrecord.ConcurrentWriteError, match=r"add_snapshot\(\) again"):
        dask_tfrecord.open_dataset(root).add_snapshot()
    assert Snapshot.open(root).number == 1


def test_an_index_whose_answer_is_lost_is_not_taken_for_that_of_another(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    creating = Store.create_exclusively

    def retried(self: Store, path: str, data: bytes) -> None:
        creating(self, path, data)
        creating(self, path, data)

    monkeypatch.setattr(Store, "create_exclusively", retried)
    assert dask_tfrecord.open_dataset(root).add_snapshot() == Commit.of(Snapshot.open(root))


def test_damage_and_values_that_do_not_fit_raise_and_nothing_is_written(root: Path) -> None:
    with pytest.raises(dask_tfrecord.SchemaError, match="does not fit int8"):
        dask_tfrecord.open_dataset(root, schema={"n": pa.int8()}).add_snapshot()
    path = root / "country=US/day=1/c"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptRecordError, match=r"c, record 399"):
        dask_tfrecord.open_dataset(root).add_snapshot()
    assert not (root / "_tfrecord").exists()


@pytest.mark.parametrize("name", ["country=DE/day=2/b.tfrecord.gz", "country=US/day=3/z"])
def test_a_stream_that_is_cut_off_raises(name: str, root: Path) -> None:
    (root / name).write_bytes((root / name).read_bytes()[:-3])
    for options in ({}, {"schema": pa.schema({"n": pa.int64()}), "record_type": "example"}):
        with pytest.raises(CorruptRecordError, match=f"{name}.*cut off"):
            dask_tfrecord.open_dataset(root, **options).add_snapshot()


def test_what_is_no_directory_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(dask_tfrecord.TFRecordError, match="not a directory"):
        dask_tfrecord.open_dataset(root / "country=US/day=1/c").add_snapshot()
    (tmp_path / "empty").mkdir()
    for path in ("nothing", "empty", "data/*"):
        with pytest.raises(FileNotFoundError):
            dask_tfrecord.open_dataset(tmp_path / path).add_snapshot()


def test_other_processes_do_the_work(root: Path, monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    monkeypatch.setattr(sample, "TASK_BYTES", 5_000)
    monkeypatch.setattr(locate, "TASK_BYTES", 5_000)
    with dask.config.set(scheduler=client):
        found = read_tfrecord(root, blocksize=5_000)
        assert found.npartitions >= len(FILES)
        assert len(found) == 500
        assert dask_tfrecord.open_dataset(root).add_snapshot().rows == 500
        rows = dask_tfrecord.open_dataset(root).take(range(499, -1, -1), columns=["n"])
        assert rows["n"].to_pylist() == list(range(499, -1, -1))
        assert dask_tfrecord.open_dataset(root).verify()["agrees"].all()


def test_an_append_keeps_what_the_index_left_out(tmp_path: Path) -> None:
    """The records still hold a feature that is no column, and reading all columns must allow it."""
    rows = [{"x": ("int64", [value]), "y": ("int64", [2])} for value in (1, 3)]
    fill(tmp_path, {"a.tfrecord": oracle.features_file(rows)})
    dask_tfrecord.open_dataset(tmp_path, schema={"y": None}).add_snapshot()
    to_tfrecord(pa.table({"x": [5]}), tmp_path, append=True)
    assert sorted(read_tfrecord(tmp_path).compute()["x"]) == [1, 3, 5]


def test_the_number_of_a_removed_version_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two overwrites removes the version of the first before the index is stored."""
    to_tfrecord(pa.table({"n": [1]}), tmp_path)
    adopt(tmp_path)
    change = add_snapshot._AddSnapshot.change

    def late(*args: Any) -> Any:
        planned = change(*args)
        for n in (2, 3):
            to_tfrecord(pa.table({"n": [n]}), tmp_path, overwrite=True)
        return planned

    monkeypatch.setattr(add_snapshot._AddSnapshot, "change", late)
    with pytest.raises(dask_tfrecord.ConcurrentWriteError, match="another write was committed"):
        dask_tfrecord.open_dataset(tmp_path).add_snapshot()
    assert [path.name for path in (tmp_path / "_tfrecord").iterdir()] == ["00000003.parquet"]
    assert read_tfrecord(tmp_path)["n"].compute().tolist() == [3]


def adopt(place: Path) -> None:
    """Make the files those of another tool, which has written them again after `add_snapshot`."""
    shutil.rmtree(place / "_tfrecord")
    for number, file in enumerate(sorted(place.rglob("part-*"))):
        file.rename(file.with_name(f"{number}.tfrecord"))
    open_dataset(place).add_snapshot()
    for file in place.rglob("*.tfrecord"):
        os.utime(file, ns=(1, 1))


def days(*numbers: int) -> dd.DataFrame:
    frame = pd.DataFrame({"day": [n // 10 for n in numbers], "n": list(numbers)})
    return dd.from_pandas(frame, npartitions=2)


def add(place: Path | str, n: int, **options: Any) -> Any:
    return to_tfrecord(days(n), place, partition_on="day", **options)


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
    "take": lambda path: dask_tfrecord.open_dataset(path).take([0]),
    "RecordTable": dask_tfrecord.feed.RecordTable,
    "index": lambda path: open_dataset(path).add_snapshot(),
    "export": lambda path: dask_tfrecord.open_dataset(path).export("tfmd"),
    "append": lambda path: add(path, 4, append=True),
    "partitions": lambda path: add(path, 4, overwrite="partitions"),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_names_the_call_that_stores_the_loss_and_works_after_it(tmp_path: Path, use: str) -> None:
    path = str(tmp_path)
    written(path)
    remove(path, 1)
    with pytest.raises(CorruptRecordError, match=r"the file is missing.*\.repair\(") as caught:
        USES[use](path)
    assert Snapshot.open(path).number == 2
    call = str(caught.value).partition("or call dask_tfrecord.")[2].partition(" if it was")[0]
    eval(call, {"open_dataset": open_dataset})
    snapshot = Snapshot.open(path)
    assert (snapshot.number, snapshot.records, snapshot.mode) == (3, 4, "repair")
    assert numbers(path) == [1, 2, 3, 21]
    if use == "index":
        with pytest.raises(dask_tfrecord.DestinationError, match="up to date"):
            open_dataset(path).add_snapshot()
    else:
        USES[use](path)
    expected = {"append": [1, 2, 3, 4, 21], "partitions": [4, 21]}
    assert numbers(path) == expected.get(use, [1, 2, 3, 21])


def test_a_repair_lists_the_lost_files_and_keeps_all_that_is_known_of_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path)
    before = Snapshot.open(tmp_path)
    remove(tmp_path, 1)
    with caplog.at_level(logging.INFO, "dask_tfrecord"):
        assert open_dataset(tmp_path).repair(dry_run=True).details == open_dataset(tmp_path).repair().details
    planned, after = open_dataset(tmp_path).repair(dry_run=True), Snapshot.open(tmp_path)
    assert (planned.version, planned.details, after.number) == (3, {"lost_files": {}}, 3)
    assert after.files == tuple(file for file in before.files if "day=1" not in file.path)
    names = ("schema", "partitioning", "order", "index", "custom_metadata", "oldest")
    assert all(getattr(after, name) == getattr(before, name) for name in names)
    assert [one.message.partition(": ")[2] for one in caplog.records if one.levelname == "WARNING"] == [
        "repair would drop 3 missing files with 3 rows",
        "version 3: repair dropped 3 missing files with 3 rows",
    ]
    assert dask_tfrecord.open_dataset(tmp_path).verify()["agrees"].all()
    with pytest.raises(CorruptRecordError, match="its version 2"):
        read_tfrecord(tmp_path, version=2)


def test_files_of_other_tools_are_dropped_too(tmp_path: Path) -> None:
    written(tmp_path / "own")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for number, file in enumerate(sorted(tmp_path.glob("own/day=*/part-*"))):
        file.rename(foreign / f"{number}.tfrecord")
    open_dataset(foreign).add_snapshot()
    (foreign / "0.tfrecord").unlink()
    lost = open_dataset(foreign).repair().details["lost_files"]
    assert [*lost] == ["0.tfrecord"]
    assert len(numbers(foreign)) == 7 - lost["0.tfrecord"]


def test_only_missing_files_are_dropped(tmp_path: Path) -> None:
    written(tmp_path)
    file = next((tmp_path / "day=0").iterdir())
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    remove(tmp_path, 2)
    assert open_dataset(tmp_path).repair().rows == 6
    with pytest.raises(CorruptRecordError, match="bytes, but"):
        numbers(tmp_path)
    file.write_bytes(content)
    assert numbers(tmp_path) == [1, 2, 3, 11, 12, 13]


def test_nothing_is_committed_where_nothing_is_missing(place: str) -> None:
    written(place)
    before = Snapshot.open(place)
    assert open_dataset(place).repair() == Commit.of(before, lost_files={})
    assert (before.number, Snapshot.open(place)) == (2, before)
    with pytest.raises(FileNotFoundError, match="no such"):
        open_dataset(f"{place}x").repair()
    with pytest.raises(dask_tfrecord.DestinationError, match="inside"):
        open_dataset(f"{place}/day=0").repair()


@pytest.mark.parametrize(
    ("other", "mode", "expected"),
    [
        ("append", "repair", [1, 2, 3, 4, 21]),
        ("overwrite", "overwrite", [4]),
        ("repair", "repair", [1, 2, 3, 21]),
    ],
)
def test_a_commit_before_that_of_the_repair_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, mode: str, expected: list[int]
) -> None:
    path, removed = tmp_path / "data", tmp_path / "removed"
    written(path)
    (path / "day=1").rename(removed)

    def commit(*arguments: Any) -> Any:
        monkeypatch.undo()
        if other == "repair":
            open_dataset(path).repair()
        elif other == "overwrite":
            add(path, 4, overwrite=True)
        else:  # an append raises if a file is missing
            removed.rename(path / "day=1")
            add(path, 4, append=True)
            (path / "day=1").rename(removed)
        return versions.commit(*arguments)

    monkeypatch.setattr(versions, "commit", commit)
    assert sum(open_dataset(path).repair().details["lost_files"].values()) == 3
    assert Snapshot.open(path).mode == mode
    assert numbers(path) == expected


def test_an_overwrite_that_was_planned_before_a_repair_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    planned = add(tmp_path, 4, overwrite=True, compute=False)
    remove(tmp_path, 1)
    open_dataset(tmp_path).repair()
    with pytest.raises(dask_tfrecord.ConcurrentWriteError):
        planned.compute()
    assert numbers(tmp_path) == [1, 2, 3, 21]


def test_a_file_that_moves_back_from_the_kept_files_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "place")
    opened = open_dataset(tmp_path / "place")
    (tmp_path / "place/day=1").rename(tmp_path / "moving")

    def look(store: Store, names: Any) -> Any:
        found = request_infos(store, names)
        if "kept" in store.root and (tmp_path / "moving").exists():
            (tmp_path / "moving").rename(tmp_path / "place/day=1")
        return found

    request_infos = check.request_infos
    monkeypatch.setattr(check, "request_infos", look)
    assert opened.repair().details["lost_files"] == {}
    assert not (tmp_path / "moving").exists()


@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_longer_file_of_another_tool_is_described_again(tmp_path: Path, is_mixed: bool) -> None:
    written(tmp_path)
    adopt(tmp_path)
    if is_mixed:
        add(tmp_path, 4, append=True)
    file = min(tmp_path.rglob("*.tfrecord"))
    file.write_bytes(file.read_bytes() * 2)
    with pytest.raises(FileChangedError, match=r"\.add_snapshot\(\) again"):
        read_tfrecord(tmp_path)
    before = Snapshot.open(tmp_path).records
    assert open_dataset(tmp_path).add_snapshot().rows > before
    assert len(read_tfrecord(tmp_path).compute()) == Snapshot.open(tmp_path).records


def test_an_overwrite_while_index_reads_is_named_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    adopt(tmp_path)
    opened, original = open_dataset(tmp_path), add_snapshot.describe_files

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.undo()
        add(tmp_path, 4, overwrite=True)
        return original(*arguments)

    monkeypatch.setattr(add_snapshot, "describe_files", overtaken)
    with pytest.raises(
        dask_tfrecord.ConcurrentWriteError,
        match="another write was committed while add_snapshot read the files",
    ):
        opened.add_snapshot()
    assert numbers(tmp_path) == [4]


@pytest.fixture(params=[500, 1 << 26])
def _tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks read parts of files, or whole files."""
    monkeypatch.setattr(sample, "TASK_BYTES", request.param)
    monkeypatch.setattr(sample, "BLOCK_BYTES", 100)


def rows(count: int, **more: tuple[str, list[Any]]) -> list[dict[str, Any]]:
    return [{"n": ("int64", [n]), "name": ("bytes", [b"row %d" % n]), **more} for n in range(count)]


def by_name(report: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The rows of the report, keyed by file name; a null is None."""
    records = report.astype(object).where(report.notna(), None).to_dict("records")
    return {row["path"].rpartition("/")[2]: row for row in records}


@pytest.mark.usefixtures("_tasks")
def test_damage_is_counted_and_the_first_of_it_reported(tmp_path: Path) -> None:
    content = oracle.features_file(rows(60))
    starts = [0, *accumulate(len(payload) + 16 for payload in oracle.frames(content))]
    damaged = {
        "a whole": [],
        "b payload": [starts[20] + 14, starts[50] - 1],
        "c length": [starts[40]],
        "d both": [starts[30] + 9, starts[31] + 20, starts[55] + 15],
    }
    for name, places in damaged.items():
        changed = bytearray(content)
        for at in places:
            changed[at] ^= 0x10
        (tmp_path / name).write_bytes(changed)
    (tmp_path / "e cut").write_bytes(content[: starts[59] + 5])
    (tmp_path / "f empty").write_bytes(b"")
    found = by_name(open_dataset(tmp_path).verify())

    def size(*records: int) -> int:
        return sum(starts[record + 1] - starts[record] for record in records)

    names = ("rows", "damaged_bytes", "offset")
    assert {name: tuple(row[key] for key in names) for name, row in found.items()} == {
        "a whole": (60, 0, None),
        "b payload": (58, size(20, 49), starts[20]),
        "c length": (59, size(40), starts[40]),
        "d both": (57, size(30, 31, 55), starts[30]),
        "e cut": (59, 5, starts[59]),
        "f empty": (0, 0, None),
    }
    assert [row["damaged"] for name, row in found.items() if name != "d both"] == [0, 2, 1, 1, 0]
    assert found["a whole"]["reason"] is None
    assert "checksum of the record data" in found["b payload"]["reason"]
    assert "length" in found["c length"]["reason"]
    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    assert [row["bytes"] for row in found.values()] == sizes
    assert {(row["drift"], row["agrees"], row["differs"]) for row in found.values()} == {("", None, None)}


@given(damaged_files())
def test_it_tells_what_skipping_would_read_and_never_raises(data: bytes) -> None:
    Store.at("memory://verified").fs.pipe_file("/verified/file", data)
    with dask.config.set(scheduler="sync"):
        report = open_dataset("memory://verified", record_type="bytes").verify()
        read = read_tfrecord("memory://verified", record_type="bytes", on_corrupt="skip")
        assert report["rows"].tolist() == [len(read.compute())]
    assert report["bytes"].tolist() == [len(data)]
    kept = sum(len(payload) + 16 for payload in read["record"].compute())
    if detect(data[:HEADER_BYTES]) is None:
        assert report["damaged_bytes"].tolist() == [len(data) - kept]


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_a_damaged_stream_is_reported_and_its_sizes_are_those_of_the_whole_file(
    compression: Any, tmp_path: Path
) -> None:
    to_tfrecord(pa.table({"n": range(5000)}), tmp_path, compression=compression)
    snapshot = Snapshot.open(tmp_path)
    [file] = tmp_path.glob("part-*")
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2] ^= 0x55
    file.write_bytes(stored)
    [row] = by_name(open_dataset(tmp_path).verify()).values()
    assert row["damaged"] >= 1
    assert row["rows"] < 5000
    assert (row["bytes"], row["agrees"]) == (snapshot.bytes, False)
    assert f"crc32c: {oracle.crc32c(bytes(stored)):,} instead of" in row["differs"]


@pytest.mark.usefixtures("_tasks")
def test_drift_from_the_inferred_schema_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema is inferred from the first file only."""
    drifts: dict[str, tuple[list[Any], str]] = {
        "a": (rows(40), ""),
        "b kind": (
            [*rows(30), {"n": ("bytes", [b"x"])}],
            "'n' holds bytes in record 30, the column is int64",
        ),
        "c unseen": (rows(20, more=("int64", [1, 2])), "'more' (int64) is not in the schema"),
        "d list": ([*rows(20), {"n": ("int64", [1, 2, 3])}], "'n' holds up to 3 values, the column is int64"),
        "e text": (
            [*rows(20), {"name": ("bytes", [b"\xff"])}],
            "'name' is not all UTF-8, the column is string",
        ),
        "f lacks": ([{"n": ("int64", [5])}] * 20, ""),
    }
    for name, (records, _) in drifts.items():
        (tmp_path / name).write_bytes(oracle.features_file(records))
    take = verify.take_sample
    monkeypatch.setattr(
        verify, "take_sample", lambda store, files, **options: take(store, files.slice(0, 1), **options)
    )
    found = by_name(open_dataset(tmp_path).verify())
    assert {name: row["drift"] for name, row in found.items()} == {
        n: drift for n, (_, drift) in drifts.items()
    }


def test_two_kinds_in_the_sample_are_drift_and_do_not_raise(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(oracle.features_file([{"n": ("int64", [1])}]))
    (tmp_path / "b").write_bytes(oracle.features_file([{"n": ("bytes", [b"1"])}]))
    found = by_name(open_dataset(tmp_path).verify())
    assert (found["a"]["drift"], bool(found["b"]["drift"])) == ("", True)


@pytest.mark.parametrize(
    ("first", "record_type"),
    [(b"no message", "infer"), (b"no message", "bytes"), (b"\x68\x01", "infer"), (b"", "infer")],
)
def test_it_takes_the_records_for_what_the_reader_takes_them(
    tmp_path: Path, first: bytes, record_type: Any
) -> None:
    (tmp_path / "a").write_bytes(oracle.frame(first) * 2)
    (tmp_path / "b").write_bytes(oracle.features_file(rows(3)))
    found = by_name(open_dataset(tmp_path, record_type=record_type).verify())
    damaged = {name for name, row in found.items() if row["damaged"]}
    count = 0
    with suppress(CorruptRecordError):
        count = len(read_tfrecord(tmp_path, record_type=record_type).compute())
    whole = sum(row["rows"] for row in found.values())
    assert (damaged, whole) == ((set(), count) if count else ({"a"}, 3))


@pytest.mark.usefixtures("_tasks")
@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_a_dataset_agrees_with_its_snapshot_until_something_changes(compression: Any, tmp_path: Path) -> None:
    table = pa.table({"n": range(400), "key": list("abcd") * 100})
    to_tfrecord(table, tmp_path, partition_on="key", compression=compression)
    report = open_dataset(tmp_path).verify()
    assert report["agrees"].tolist() == [True] * 4
    assert report["differs"].tolist() == report["drift"].tolist() == [""] * 4
    assert report["rows"].tolist() == [100] * 4
    a, b, c = (min((tmp_path / f"key={key}").glob("part-*")) for key in "abc")
    a.unlink()
    whole = oracle.features_file([{"n": ("int64", [n])} for n in range(7)])
    b.write_bytes(oracle.compress(whole, compression))
    foreign = c.with_name("foreign")
    foreign.write_bytes(c.read_bytes())
    found = open_dataset(tmp_path).verify().set_index("path")
    assert "missing" in found.loc[str(a), "reason"]
    assert not found.loc[str(a), "agrees"]
    assert found.loc[str(b), "rows"] == 7
    assert "records: 7 instead of 100" in found.loc[str(b), "differs"]
    assert found.loc[str(c), "agrees"]
    assert "does not list" in found.loc[str(foreign), "differs"]
    assert len(found) == 5


def test_a_file_named_twice_is_reported_twice_and_messages_that_cannot_be_parsed_are_damage(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(oracle.features_file(rows(3)) + oracle.frame(b"\x0a\xff\xff"))
    report = open_dataset([tmp_path / "file"] * 2).verify()
    assert report[["rows", "damaged", "damaged_bytes"]].to_numpy().tolist() == [[3, 1, 19]] * 2
    with pytest.raises(FileNotFoundError):
        open_dataset(tmp_path / "nothing").verify()


def test_memory_is_that_of_a_window(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(oracle.frame(b"x" * 1000) * 12_000)
    with patch.object(window, "_allocate", side_effect=window._allocate) as allocate:
        assert open_dataset(tmp_path, record_type="bytes").verify()["rows"].tolist() == [12_000]
    assert 0 < max(call.args[0] for call in allocate.call_args_list) <= 1 << 22


@pytest.mark.filterwarnings("ignore:.*bad.json")  # the oracle's description of the files
def test_files_that_others_damaged_are_distinguished_from_whole_ones(data: Path) -> None:
    report = open_dataset(data / "bad", record_type="bytes").verify()
    assert len(report) > 100
    for path, records, damaged in zip(report["path"], report["rows"], report["damaged"], strict=True):
        try:
            payloads = oracle.read_payloads(Path(path))
        except oracle.DamagedError:
            assert damaged, path
        else:
            assert (records, damaged) == (len(payloads), 0), path
