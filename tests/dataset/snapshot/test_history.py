"""The versions of a dataset: their list, reading an older one, versions that list what they add to a base.

Modules: dataset.snapshot.versions, dataset.snapshot.check, dataset.snapshot.moved_files,
dataset.snapshot.metadata, dataset.write.transaction, dataset.snapshot.stored_files.
"""

import json
import pickle
import random
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import operations
import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from list_rules import RULES
from small_frames import collection, keyed, values

import dask_tfrecord
from dask_tfrecord import TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.listing import list_directory
from dask_tfrecord.dataset.snapshot import check, entry_log, list_files, versions
from dask_tfrecord.dataset.snapshot.head import Head
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.operations import Append
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import commit
from dask_tfrecord.feed import RecordTable
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def rows(*numbers: int) -> dd.DataFrame:
    frame = pd.DataFrame({"n": [*numbers], "key": [number % 2 for number in numbers]})
    return dd.from_pandas(frame, npartitions=1)


def read(path: object, **options: object) -> list[int]:
    return sorted(read_tfrecord(path, **options)["n"].compute())  # type: ignore[arg-type]  # any keywords


@pytest.mark.usefixtures("appended_snapshots")
def test_each_version_reads_the_rows_that_it_had(place: str) -> None:
    to_tfrecord(rows(1, 2), place)
    to_tfrecord(rows(3), place, append=True)
    to_tfrecord(rows(4), place, append=True)
    assert open_dataset(place).cleanup(older_than="0 s") == []
    assert [read(place, version=number) for number in (1, 2, 3)] == [[1, 2], [1, 2, 3], [1, 2, 3, 4]]
    assert read(place) == read(place, version=3)
    assert len(read_tfrecord(place, version=1)) == 2


def test_the_history_of_an_archive_is_read(tmp_path: Path) -> None:
    """An archive can be read but not written."""
    to_tfrecord(rows(1, 2), tmp_path / "place")
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path)
    assert open_dataset(f"zip://place::{archive}").history()["rows"].tolist() == [2]


@pytest.mark.usefixtures("appended_snapshots")
def test_a_version_that_an_overwrite_removed_raises(place: str) -> None:
    to_tfrecord(rows(1, 2), place, partition_on="key")
    for version, overwrite in ((1, True), (2, "partitions")):
        to_tfrecord(rows(3), place, overwrite=overwrite, partition_on="key")
        with pytest.raises(
            FileNotFoundError, match=rf"no version {version}; its only version is \d\. An overwrite"
        ):
            read_tfrecord(place, version=version)
        assert open_dataset(place).history()["version"].tolist() == [version + 1]


def test_an_older_version_ignores_the_files_of_newer_ones(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    for name, numbers in {"a": (1, 2), "b": (3,)}.items():
        to_tfrecord(rows(*numbers), tmp_path / name)
        [file] = Snapshot.open(tmp_path / name).files
        foreign.mkdir(exist_ok=True)
        shutil.copy(tmp_path / name / file.path, foreign / f"{name}.tfrecord")
        open_dataset(foreign).add_snapshot()
    assert read(foreign, version=1) == [1, 2]
    assert read(foreign) == [1, 2, 3]
    assert open_dataset(foreign).history()["mode"].tolist() == ["add_snapshot", "add_snapshot"]


def test_a_version_is_the_number_of_a_snapshot_of_one_directory(tmp_path: Path) -> None:
    to_tfrecord(rows(1), tmp_path)
    for version in (0, -1, "1", 1.0, True):
        with pytest.raises(TFRecordError, match="version="):
            read_tfrecord(tmp_path, version=version)  # type: ignore[arg-type]  # an invalid value
    message = "version=1 selects a snapshot, which belongs to one directory"
    with pytest.raises(TFRecordError, match=message):
        read_tfrecord([tmp_path], version=1)
    with pytest.raises(TFRecordError, match=message):
        read_tfrecord(tmp_path, version=1, use_snapshot=False)
    shutil.rmtree(tmp_path / "_tfrecord")
    for call in (operations.history, lambda path: read_tfrecord(path, version=1)):
        with pytest.raises(FileNotFoundError, match="the directory has no snapshot"):
            call(tmp_path)


@pytest.mark.usefixtures("appended_snapshots")
def test_history_lists_what_created_each_version(place: str) -> None:
    start = datetime.now(UTC) - timedelta(seconds=1)
    for numbers in ((0, 1, 2), (3,), (5,)):
        to_tfrecord(rows(*numbers), place, append=0 not in numbers, partition_on="key")
    snapshots = [Snapshot.open(place, number) for number in (1, 2, 3)]
    history = open_dataset(place).history()
    assert history["mode"].tolist() == ["create", "append", "append"]
    for name in ("run", "records", "bytes", "library", "mode"):
        column = "rows" if name == "records" else name
        assert history[column].tolist() == [getattr(one, name) for one in snapshots]
    assert history["files"].tolist() == [2, 3, 4]
    assert history["created"].is_monotonic_increasing
    assert start < history["created"].iloc[0] < datetime.now(UTC) + timedelta(seconds=1)
    to_tfrecord(rows(9), place, overwrite="partitions", partition_on="key")
    assert open_dataset(place).history()[["version", "mode"]].to_numpy().tolist() == [[4, "partitions"]]


@pytest.mark.usefixtures("appended_snapshots")
def test_history_without_the_file_lists_is_the_same(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions with long metadata are read whole."""
    to_tfrecord(rows(0, 1, 2), place, partition_on="key")
    to_tfrecord(rows(3), place, append=True, partition_on="key")
    dask_tfrecord.open_dataset(place).delete([("n", "==", 1)], keep_versions=True)
    to_tfrecord(rows(5), place, append=True, partition_on="key")
    long = {"text": "x" * 100_000}
    to_tfrecord(rows(7), place, append=True, partition_on="key", custom_metadata=long)
    dask_tfrecord.open_dataset(place).compact(keep_versions=True)
    dask_tfrecord.open_dataset(place).restore(2)
    dask_tfrecord.open_dataset(place).expire(versions=4)
    found = open_dataset(place).history()
    shown = found[["version", "mode", "details", "files", "rows"]].fillna({"details": ""})
    assert shown.to_numpy().tolist() == [
        [4, "append", "", 3, 4],
        [5, "append", "", 4, 5],
        [6, "compact", "", 2, 5],
        [7, "restore", "version 2", 3, 4],
        [8, "expire", "versions before 4", 3, 4],
    ]
    monkeypatch.setattr(list_files, "TAIL_BYTES", 100)
    pd.testing.assert_frame_equal(open_dataset(place).history(), found)


def test_history_reads_the_end_of_each_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_tfrecord(rows(0, 1, 2), tmp_path)
    dask_tfrecord.open_dataset(tmp_path).delete([("n", "==", 1)], keep_versions=False)
    open_dataset(tmp_path).add_snapshot(columnar=["n"])
    dataset = open_dataset(tmp_path)
    monkeypatch.setattr(list_files.ListFile, "read", None)
    assert dataset.history()["details"].fillna("").tolist() == ["1 rows", ""]


def test_printed_columns_have_the_order_of_the_frame(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"<key>": ["a"], "n": [1]}), tmp_path / "few", partition_on="<key>")
    snapshot = Snapshot.open(tmp_path / "few")
    assert repr(snapshot).endswith(" bytes, columns: <key>, n)")
    html = open_dataset(tmp_path / "few")._repr_html_()
    shown = {"files": 1, "rows": 1, "bytes": snapshot.bytes, "partition columns": "&lt;key&gt;", "version": 1}
    assert [name for name, text in shown.items() if f"<th>{name}</th><td>{text}</td>" not in html] == []


def visible(place: str) -> int:
    return len(list_directory(Store.at(place)))


@pytest.mark.parametrize("overwrite", [True, "partitions"])
def test_keep_versions_keeps_the_versions_before_an_overwrite_readable(place: str, overwrite: Any) -> None:
    to_tfrecord(keyed(a=[1, 2], b=[3]), place, partition_on="key")
    to_tfrecord(keyed(a=[4]), place, partition_on="key", append=True)
    planned = read_tfrecord(place)["n"]
    table, looked_up = RecordTable(place, columns=["n"]), RecordTable(place, columns=["n"])
    assert sorted(looked_up[[0, 1, 2, 3]]["n"].to_pylist()) == [1, 2, 3, 4]
    to_tfrecord(keyed(a=[5]), place, partition_on="key", overwrite=overwrite, keep_versions=True)
    newest = [3, 5] if overwrite == "partitions" else [5]
    assert sorted(planned.compute().tolist()) == [1, 2, 3, 4]  # of a reader that began before
    for opened in (table, looked_up, RecordTable(place, version=2)):
        assert sorted(opened[[0, 1, 2, 3]]["n"].to_pylist()) == [1, 2, 3, 4]
    assert [read(place, version=number) for number in (1, 2, 3)] == [[1, 2, 3], [1, 2, 3, 4], newest]
    assert read(place) == read(place, use_snapshot=False) == newest
    assert visible(place) == len(newest)
    assert open_dataset(place).cleanup(older_than="0s") == []
    assert read(place, version=2, filters=[("n", ">", 3)]) == [4]
    to_tfrecord(keyed(a=[6]), place, partition_on="key", overwrite=True)
    assert open_dataset(place).history()["version"].tolist() == [4]
    assert Store.at(place).names("_tfrecord") == ["00000004.parquet"]
    with pytest.raises(FileNotFoundError, match="no version 2; its only version is 4"):
        read_tfrecord(place, version=2)


@pytest.fixture
def deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every append store only the files that it adds."""
    monkeypatch.setattr(entry_log, "_kept_lists", RULES["delta"])


def parquet(place: str | Path, number: int) -> tuple[pa.Table, dict[str, Any]]:
    """The rows and the metadata of the Parquet file of a version."""
    store = Store.at(place)
    table = pq.read_table(pa.BufferReader(store.fs.cat_file(store.join(f"_tfrecord/{number:08d}.parquet"))))
    return table, json.loads(table.schema.metadata[b"dask_tfrecord"])


def change(place: Path, number: int, **changes: Any) -> None:
    """Change the metadata of a version."""
    table, metadata = parquet(place, number)
    text = json.dumps({**metadata, **changes})
    table = table.replace_schema_metadata({b"dask_tfrecord": text})
    oracle.write_version(table, place / f"_tfrecord/{number:08d}.parquet")


def append_three(place: str | Path) -> list[Snapshot]:
    """Write a dataset and append to it twice, so that versions 2 and 3 add to version 1."""
    to_tfrecord(collection(1, 2), place)
    to_tfrecord(collection(3, npartitions=1), place, append=True, custom_metadata={"who": "me"})
    to_tfrecord(collection(4, npartitions=1), place, append=True, compression="gzip")
    return [Snapshot.open(place, number) for number in (1, 2, 3)]


@pytest.mark.usefixtures("deltas")
def test_an_append_stores_the_files_that_it_adds(place: str) -> None:
    written = append_three(place)
    stored = [parquet(place, number) for number in (1, 2, 3)]
    lists = [[1, written[0].run[:8], 2], [2, written[1].run[:8], 1]]
    assert [metadata.get("lists", []) for _, metadata in stored] == [[], lists[:1], lists]
    paths = [file.path for file in written[2].files]
    assert [table["path"].to_pylist() for table, _ in stored] == [paths[:2], paths[2:3], paths[3:]]
    # Version 2 changes the user's metadata. Version 3 has the columns and the metadata of version 1 no more.
    assert ["schema" in metadata for _, metadata in stored] == [True, True, True]
    opened = [Snapshot.open(place, version=number) for number in (1, 2, 3)]
    unread = pickle.loads(pickle.dumps(opened))
    assert opened == written == unread == pickle.loads(pickle.dumps(opened))
    assert len({*written, *opened}) == 3
    assert opened[2].custom_metadata == {"who": "me"}
    assert values(place) == [1, 2, 3, 4]


def test_an_append_reads_no_entries_of_others_and_merges_small_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_tfrecord(collection(*range(40), npartitions=40), tmp_path)
    read, opened = list_files.ListFile.read, []

    def reading(self: list_files.ListFile, *arguments: Any) -> Any:
        opened.append(self.number)
        return read(self, *arguments)

    for number in range(9):
        head = Head.read(Store.at(tmp_path))
        run = WriteRun(Store.at(tmp_path), Snapshot.open(tmp_path).schema, head=head)
        files = run.write(pa.table({"n": [number]}), 0, 1)
        with monkeypatch.context() as patched:
            patched.setattr(list_files.ListFile, "read", reading)
            assert commit(run, Append(), files).number == number + 2
            snapshot = Snapshot.open(tmp_path)
            assert repr(snapshot).startswith(f"Snapshot({41 + number} files, {41 + number} records, ")
    assert 1 not in opened
    lists = [[name[0] for name in parquet(tmp_path, number)[1].get("lists", [])] for number in range(1, 11)]
    assert lists == [[], [1], [1, 2], [1, 2, 3], [1], [1, 5], [1, 5, 6], [1, 5, 6, 7], [1, 5], [1, 5, 9]]
    assert len(read_tfrecord(tmp_path)) == 49
    assert open_dataset(tmp_path).history()["files"].tolist() == [*range(40, 50)]
    assert [commit.number for commit in snapshot.commits()] == [*range(10, 0, -1)]


@pytest.mark.usefixtures("deltas")
@pytest.mark.parametrize(
    "use",
    {
        "check": lambda dataset: dataset.check(),
        "verify": lambda dataset: dataset.verify(),
        "repair": lambda dataset: dataset.repair(),
        "expire": lambda dataset: dataset.expire(versions=1),
        "cleanup": lambda dataset: dataset.cleanup(older_than="0 s"),
        "raw read": lambda dataset: read_tfrecord(dataset.path, use_snapshot=False),
    }.items(),
    ids=lambda item: item[0],
)
def test_an_overwrite_that_removes_the_lists_of_a_version_disturbs_no_other_operation(
    place: str, monkeypatch: pytest.MonkeyPatch, use: Any
) -> None:
    append_three(place)
    dataset, opened = open_dataset(place), versions.open_lists

    def overtaken(store: Any, numbers: Any) -> Any:
        monkeypatch.setattr(versions, "open_lists", opened)
        to_tfrecord(collection(5, npartitions=1), place, overwrite=True)
        return opened(store, numbers)

    monkeypatch.setattr(versions, "open_lists", overtaken)
    use[1](dataset)
    monkeypatch.undo()
    assert values(place) in ([5], [1, 2, 3, 4])  # the operation may have read no older list


@pytest.mark.usefixtures("deltas")
def test_an_append_goes_on_if_an_overwrite_removes_the_lists_that_it_knows(tmp_path: Path) -> None:
    append_three(tmp_path)
    store = Store.at(tmp_path)
    WriteRun(store, Schema.from_arrow(pa.schema({"n": pa.int64()}))).write(pa.table({"n": [5]}), 0, 1)
    run = WriteRun(store, Snapshot.open(tmp_path).schema, head=Head.read(store))
    assert run.head.has_staging
    files = run.write(pa.table({"n": [6]}), 0, 1)
    to_tfrecord(collection(7), tmp_path, overwrite=True)
    assert commit(run, Append(), files).number == 5
    assert sorted(values(tmp_path)) == [6, 7]


def test_a_long_list_that_an_overwrite_removes_before_its_first_use_is_of_an_older_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_files, "TAIL_BYTES", 4_000)
    monkeypatch.setattr(list_files, "_SINGLE_TAILS", 1)
    to_tfrecord(pd.DataFrame({"n": range(600)}), tmp_path, write_options={"max_rows_per_file": 1})
    known = Snapshot.open(tmp_path)
    to_tfrecord(collection(1), tmp_path, overwrite=True)
    assert check.find_newest_files(Store.at(tmp_path), known).snapshot.number == 2
    with pytest.raises(versions.RemovedVersionError, match="version 1 of the dataset has expired or was"):
        len(known.file_list)


@pytest.mark.usefixtures("deltas")
def test_the_index_of_a_dataset_stores_all_entries(tmp_path: Path) -> None:
    append_three(tmp_path)
    open_dataset(tmp_path).add_snapshot(columnar=["n"])
    table, metadata = parquet(tmp_path, 4)
    assert (len(table), metadata.get("lists")) == (4, None)
    assert values(tmp_path) == [1, 2, 3, 4]


def steps(seed: int) -> Iterator[dict[str, Any]]:
    """Random writes: appends mostly."""
    choose = random.Random(seed)
    for _ in range(6):
        keys = choose.sample("abcd", choose.randint(1, 3))
        mode = choose.choice([{"append": True}] * 4 + [{"overwrite": "partitions"}, {"overwrite": True}])
        rows = {key: [choose.randint(0, 99) for _ in range(choose.randint(1, 2))] for key in keys}
        yield {"ddf": keyed(**rows), "partition_on": "key", **mode}


@pytest.mark.parametrize("seed", range(4))
def test_any_writes_give_the_same_dataset_whatever_lists_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    found = []
    for name, rule in {**RULES, "usual": entry_log._kept_lists}.items():
        monkeypatch.setattr(entry_log, "_kept_lists", rule)
        place = tmp_path / name
        described = []
        for options in steps(seed):
            to_tfrecord(options.pop("ddf"), place, **options)
            written = Snapshot.open(place)
            assert Snapshot.open(place) == written
            files = [(file.path.partition("-")[0], file.values, file.crc32c) for file in written.files]
            described.append((written.number, written.mode, files))
        described.append(read_tfrecord(place).compute().to_dict("list"))
        assert dask_tfrecord.open_dataset(place).verify()["agrees"].all()
        found.append(described)
    assert found[0] == found[1] == found[2]


@pytest.mark.usefixtures("deltas")
def test_statistics_and_partial_statistics_survive(tmp_path: Path) -> None:
    """The first files and the appended files have different bounds, or none. The last has no rows."""
    texts = [["a", "b"], ["x" * 100] * 2, [None, "c"], []]
    numbers = [[1, 2], [1, 2], [7, 8], []]
    for text, n in zip(texts, numbers, strict=True):
        table = pa.table({"n": pa.array(n, pa.int64()), "text": pa.array(text, pa.string())})
        to_tfrecord(table, tmp_path, append=True)
        snapshot = Snapshot.open(tmp_path)
    bounds = [[(one.name, one.min, one.max, one.nulls) for one in file.statistics] for file in snapshot.files]
    assert Snapshot.open(tmp_path) == snapshot
    assert bounds[1] == [("n", 1, 2, 0), ("text", None, None, 0)]
    assert bounds[2] == [("n", 7, 8, 0), ("text", "c", "c", 1)]
    assert read_tfrecord(tmp_path, filters=[("n", ">", 5)])["n"].compute().tolist() == [7, 8]


@pytest.mark.usefixtures("deltas")
def test_a_missing_list_raises_and_an_overwrite_repairs(place: str) -> None:
    append_three(place)
    store = Store.at(place)
    store.fs.rm_file(store.join("_tfrecord/00000001.parquet"))
    message = r"00000001.parquet: not a valid snapshot \(later versions add to this version, and its file is"
    for work in (values, lambda place: Snapshot.open(place).files):
        with pytest.raises(TFRecordError, match=message):
            work(place)
    with pytest.raises(TFRecordError, match="not a valid snapshot"):
        to_tfrecord(collection(5), place, append=True)
    with pytest.raises(TFRecordError, match="its file is missing"):
        read_tfrecord(place, version=2).compute()
    to_tfrecord(collection(5), place, overwrite=True)
    assert values(place) == [5]
    assert store.names("_tfrecord") == ["00000004.parquet"]


@pytest.mark.usefixtures("deltas")
@pytest.mark.parametrize(
    "lists",
    [
        *([[number, "0123abcd", 1]] for number in (3, 4, 0, -1, True, "1", None)),
        *([[1, run, 2]] for run in ("0123abc", 7, None)),
        *([[1, "0123abcd", rows]] for rows in (-1, True, 1.0)),
        [[2, "0123abcd", 1], [1, "0123abcd", 2]],
        [[1, "0123abcd", 2], [1, "0123abcd", 2]],
        *(one for one in ([[1, "0123abcd"]], [1, 2], 1, {"version": 1}, "ab")),
    ],
)
def test_invalid_names_of_lists_are_refused(tmp_path: Path, lists: Any) -> None:
    append_three(tmp_path)
    change(tmp_path, 3, lists=lists)
    with pytest.raises(TFRecordError, match=r"00000003.parquet: not a valid snapshot"):
        read_tfrecord(tmp_path)


def name_of_list(root: Path, number: int) -> list[Any]:
    table, metadata = parquet(root, number)
    return [number, metadata["run"][:8], len(table)]


@pytest.mark.usefixtures("deltas")
def test_a_list_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """The first list is another file, has lists itself, or has a file that the version has, too."""
    append_three(tmp_path)
    first, second = (name_of_list(tmp_path, number) for number in (1, 2))
    cases: list[tuple[list[Any], str, str]] = [
        ([second], "2", "the list of another dataset"),
        ([first, [2, "0" * 8, 1]], "2", "its file is another one"),
        ([first, [*second[:2], 7]], "2", "its file is another one"),
        ([[1, "0" * 8, 2], second], "1", "its file is another one"),
    ]
    for lists, number, problem in cases:
        change(tmp_path, 3, lists=lists)
        with pytest.raises(TFRecordError, match=f"0000000{number}.parquet: not a valid snapshot .*{problem}"):
            read_tfrecord(tmp_path)
    change(tmp_path, 3, lists=[first, second])
    assert values(tmp_path) == [1, 2, 3, 4]
    to_tfrecord(collection(8, 9), tmp_path / "_other")
    shutil.copy(tmp_path / "_other/_tfrecord/00000001.parquet", tmp_path / "_tfrecord/00000001.parquet")
    with pytest.raises(TFRecordError, match="add to this version, and its file is another one"):
        read_tfrecord(tmp_path)


def rewrite(root: Path, number: int, paths: list[str], **changes: Any) -> None:
    """Store a list with the rows of others: those of version 1 for paths that it has, and removed paths."""
    rows = pa.concat_tables([parquet(root, at)[0] for at in (1, 2)], promote_options="default")
    at = pc.index_in(pa.array(paths), rows["path"].combine_chunks())
    table = rows.take(pc.fill_null(at, 0)).set_column(0, "path", pa.array(paths))
    metadata = {**parquet(root, number)[1], **changes}
    table = table.replace_schema_metadata({b"dask_tfrecord": json.dumps(metadata)})
    oracle.write_version(table, root / f"_tfrecord/{number:08d}.parquet")


@pytest.mark.usefixtures("deltas")
def test_removed_files_are_checked(tmp_path: Path) -> None:
    append_three(tmp_path)
    listed = Snapshot.open(tmp_path, 2).files
    a, b, c = (file.path for file in listed)
    total = sum(file.bytes for file in listed)
    rewrite(tmp_path, 3, [c, a], removed=1, records=2)
    with pytest.raises(TFRecordError, match=r"00000003.parquet: .*several files have the same path"):
        read_tfrecord(tmp_path)
    for paths, removed, problem in (
        ([a, "unknown"], 1, "several files have the same path|is removed, but not listed"),
        (["unknown"], 1, "the file b?'unknown' is removed, but not listed"),
        ([a, a], 2, "removed twice"),
        ([a], 1, "totals are not those of its files"),
        ([a], 2, "removes more files than it has rows"),
        ([a], -1, "removed is not a count"),
        ([a], True, "removed is not a count"),
    ):
        rewrite(tmp_path, 3, paths, removed=removed)
        with pytest.raises(TFRecordError, match=rf"00000003.parquet: not a valid snapshot .*({problem})"):
            read_tfrecord(tmp_path)
    rewrite(tmp_path, 3, [a, c], removed=2, files=1, records=1, bytes=listed[1].bytes)
    assert [file.path for file in Snapshot.open(tmp_path).files] == [b]
    rewrite(tmp_path, 3, [a, a], removed=1, files=3, records=3, bytes=total)  # an entry is replaced
    assert [file.path for file in Snapshot.open(tmp_path).files] == [b, c, a]
    rewrite(tmp_path, 3, [a], removed=1, lists=[])
    with pytest.raises(TFRecordError, match="it removes files, but has no older lists"):
        read_tfrecord(tmp_path)


@pytest.mark.usefixtures("deltas")
def test_the_order_of_files_is_checked(tmp_path: Path) -> None:
    append_three(tmp_path)
    change(tmp_path, 3, next_place=0)
    with pytest.raises(TFRecordError, match=r"00000003.parquet: .*next_place is too small"):
        read_tfrecord(tmp_path)
    for places in ([-1], [None]):
        table, metadata = parquet(tmp_path, 3)
        table = table.append_column("place", pa.array(places, pa.int64()))
        text = {b"dask_tfrecord": json.dumps({**metadata, "next_place": 9 << 20})}
        oracle.write_version(table.replace_schema_metadata(text), tmp_path / "_tfrecord/00000003.parquet")
        with pytest.raises(TFRecordError, match=r"00000003.parquet: .*place of a file is null or negative"):
            read_tfrecord(tmp_path)
        change(tmp_path, 3, next_place=3 << 20)
        table, metadata = parquet(tmp_path, 3)
        text = {b"dask_tfrecord": json.dumps(metadata)}
        table = table.drop_columns("place").replace_schema_metadata(text)
        oracle.write_version(table, tmp_path / "_tfrecord/00000003.parquet")


@pytest.mark.usefixtures("deltas")
def test_a_reader_that_races_with_an_overwrite_gets_the_new_rows(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The overwrite removes the files after the listing, before the file of the version is read."""
    append_three(place)
    read = versions.open_list
    calls: list[int] = []

    def overtaken(store: Store, number: int) -> Any:
        calls.append(number)
        if len(calls) == 1:
            with monkeypatch.context() as patched:
                patched.setattr(versions, "open_list", read)
                to_tfrecord(collection(9), place, overwrite=True)
        return read(store, number)

    monkeypatch.setattr(versions, "open_list", overtaken)
    assert values(place) == [9]
    assert calls[:2] == [3, 4]


def test_a_reader_of_a_small_dataset_whose_files_an_overwrite_removes_gets_the_new_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "d")
    to_tfrecord(collection(1, 2), place)
    check_files = check.check_files

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.undo()
        to_tfrecord(collection(9), place, overwrite=True)
        return check_files(*arguments)

    monkeypatch.setattr(check, "check_files", overtaken)
    assert values(place) == [9]


@pytest.mark.usefixtures("deltas")
def test_cleanup_keeps_lists_that_newer_versions_need_and_removes_nothing_if_one_is_missing(
    tmp_path: Path,
) -> None:
    runs = [snapshot.run for snapshot in append_three(tmp_path)]
    first = tmp_path / "_tfrecord/00000001.parquet"
    for is_there in (True, False):
        for run in runs:  # as if the runs had not removed their staging directories
            (tmp_path / "_tfrecord" / "staging" / run).mkdir(parents=True)
        if is_there:
            assert open_dataset(tmp_path).cleanup(older_than="0s") == []
        else:
            stored = first.rename(tmp_path / "_first")
            with pytest.raises(TFRecordError, match=r"00000001.parquet: .*its file is missing"):
                open_dataset(tmp_path).cleanup(older_than="0s")
            stored.rename(first)
        assert values(tmp_path) == [1, 2, 3, 4]
    assert [len(read_tfrecord(tmp_path, version=number)) for number in (1, 2, 3)] == [2, 3, 4]
