"""Snapshots that list only the files that they add to a base: rows, versions, and a base that is gone.

Modules: dataset.snapshot.file_list, dataset.snapshot.versions.
"""

import json
import os
import pickle
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_frames import by_key, collection, keyed, values

from dask_tfrecord import Snapshot, TFRecordError, cleanup, index, read_tfrecord, to_tfrecord, verify
from dask_tfrecord.codec import crc32c
from dask_tfrecord.dataset.snapshot import file_list, model, versions
from dask_tfrecord.dataset.snapshot.file_list import to_entries
from dask_tfrecord.dataset.snapshot.model import read_snapshot
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every append store only the files that it adds."""
    monkeypatch.setattr(file_list, "DELTA_PART", 1e9)


def parquet(place: str, number: int) -> tuple[pa.Table, dict[str, Any]]:
    """The rows and the metadata of the Parquet file of a version."""
    store = Store.at(place)
    table = pq.read_table(pa.BufferReader(store.fs.cat_file(store.join(f"_tfrecord/{number:08d}.parquet"))))
    return table, json.loads(table.schema.metadata[b"dask_tfrecord"])


def change(place: str, number: int, **changes: Any) -> None:
    """Change the metadata of a version."""
    table, metadata = parquet(place, number)
    text = json.dumps({**metadata, **changes})
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({b"dask_tfrecord": text}), sink)
    store = Store.at(place)
    store.fs.pipe_file(store.join(f"_tfrecord/{number:08d}.parquet"), bytes(sink.getvalue()))


def append_three(place: str) -> list[Snapshot]:
    """Write a dataset and append to it twice, so that versions 2 and 3 add to version 1."""
    return [
        to_tfrecord(collection(1, 2), place),
        to_tfrecord(collection(3, npartitions=1), place, append=True, custom_metadata={"who": "me"}),
        to_tfrecord(collection(4, npartitions=1), place, append=True, compression="gzip"),
    ]


# -- What is stored ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("deltas")
def test_an_append_stores_the_files_that_are_not_in_the_base(place: str) -> None:
    written = append_three(place)
    data = Store.at(place).fs.cat_file(Store.at(place).join("_tfrecord/00000001.parquet"))
    base = {"version": 1, "crc32c": crc32c(data)}
    stored = [parquet(place, number) for number in (1, 2, 3)]
    assert [metadata.get("base") for _, metadata in stored] == [None, base, base]
    assert [metadata["format_version"] for _, metadata in stored] == [1, 1, 1]
    paths = [file.path for file in written[2].files]
    assert [table["path"].to_pylist() for table, _ in stored] == [paths[:2], paths[2:3], paths[2:]]
    assert [Snapshot.open(place, version=number) for number in (1, 2, 3)] == written
    assert Snapshot.open(place).custom_metadata == {"who": "me"}
    assert values(place) == [1, 2, 3, 4]


def test_a_full_snapshot_is_stored_when_a_tenth_is_added(tmp_path: Path) -> None:
    place = str(tmp_path)
    to_tfrecord(collection(*range(20), npartitions=20), place)
    for number in range(4):
        to_tfrecord(collection(number, npartitions=1), place, append=True)
    bases = [(parquet(place, number)[1].get("base") or {}).get("version") for number in range(1, 6)]
    assert bases == [None, 1, 1, None, 4]
    assert len(read_tfrecord(place)) == 24
    assert Snapshot.history(place)["files"].tolist() == [20, 21, 22, 23, 24]


@pytest.mark.usefixtures("deltas")
@pytest.mark.parametrize("mode", [True, "partitions"])
def test_an_overwrite_stores_a_full_snapshot_and_removes_the_others(place: str, mode: Any) -> None:
    to_tfrecord(keyed(a=[1], b=[2]), place, partition_on="key")
    to_tfrecord(keyed(a=[3], c=[4]), place, partition_on="key", append=True)
    to_tfrecord(keyed(a=[5]), place, partition_on="key", overwrite=mode)
    assert by_key(place) == ({"a": [5]} if mode is True else {"a": [5], "b": [2], "c": [4]})
    assert Store.at(place).names("_tfrecord") == ["00000003.parquet"]
    assert "base" not in parquet(place, 3)[1]


@pytest.mark.usefixtures("deltas")
def test_the_index_of_a_dataset_with_a_base_is_a_full_snapshot(tmp_path: Path) -> None:
    append_three(str(tmp_path / "a"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for path in (tmp_path / "b").glob("part-*"):
        os.utime(path, (1, 1))
    index(tmp_path / "b")
    table, metadata = parquet(str(tmp_path / "b"), 4)
    assert (len(table), metadata.get("base"), metadata["format_version"]) == (4, None, 1)
    assert values(tmp_path / "b") == [1, 2, 3, 4]


def test_appends_make_no_entries_of_the_files_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_tfrecord(collection(*range(20), npartitions=20), tmp_path)
    made: list[int] = []

    def counting(table: pa.Table, *args: Any) -> Any:
        made.append(len(table))
        return to_entries(table, *args)

    monkeypatch.setattr(model, "to_entries", counting)
    snapshots = [to_tfrecord(collection(1, npartitions=1), tmp_path, append=True) for _ in range(4)]
    assert repr(snapshots[-1]).startswith("Snapshot(24 files, 24 records, ")
    assert made == []


# -- Rows ----------------------------------------------------------------------------------------------------


def steps(seed: int) -> Iterator[dict[str, Any]]:
    """Random writes: appends mostly."""
    choose = random.Random(seed)
    for _ in range(6):
        keys = choose.sample("abcd", choose.randint(1, 3))
        mode = choose.choice([{"append": True}] * 4 + [{"overwrite": "partitions"}, {"overwrite": True}])
        rows = {key: [choose.randint(0, 99) for _ in range(choose.randint(1, 2))] for key in keys}
        yield {"ddf": keyed(**rows), "partition_on": "key", **mode}


@pytest.mark.parametrize("seed", range(8))
def test_any_writes_give_the_same_dataset_with_bases_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    found = []
    for part in (0.0, 0.5, 1e9):
        monkeypatch.setattr(file_list, "DELTA_PART", part)
        place = tmp_path / str(part)
        described = []
        for options in steps(seed):
            written = to_tfrecord(options.pop("ddf"), place, **options)
            assert Snapshot.open(place) == written
            files = [(file.path.partition("-")[0], file.values, file.crc32c) for file in written.files]
            described.append((written.number, written.mode, files, written.partition_values))
        described.append(read_tfrecord(place).compute().to_dict("list"))
        assert verify(place)["agrees"].all()
        found.append(described)
    assert found[0] == found[1] == found[2]


@pytest.mark.usefixtures("deltas")
def test_statistics_and_partial_statistics_survive(tmp_path: Path) -> None:
    """The files of the base and the appended files have different bounds, or none."""
    frame = pd.DataFrame({"n": [1, 2], "text": ["a", "b"]})
    frames = [frame, frame.assign(text="x" * 100), frame.assign(n=[7, 8], text=[None, "c"])]
    snapshots = [to_tfrecord(dd.from_pandas(one, npartitions=1), tmp_path, append=True) for one in frames]
    bounds = [
        [(one.name, one.min, one.max, one.nulls) for one in file.statistics] for file in snapshots[-1].files
    ]
    assert Snapshot.open(tmp_path) == snapshots[-1]
    assert bounds[1] == [("n", 1, 2, 0), ("text", None, None, 0)]
    assert bounds[2] == [("n", 7, 8, 0), ("text", "c", "c", 1)]
    assert read_tfrecord(tmp_path, filters=[("n", ">", 5)])["n"].compute().tolist() == [7, 8]


@pytest.mark.usefixtures("deltas")
def test_an_append_of_no_files_is_a_version(tmp_path: Path) -> None:
    ddf = keyed(a=[1])
    to_tfrecord(ddf, tmp_path, partition_on="key")
    snapshot = to_tfrecord(ddf[ddf["n"] > 1], tmp_path, partition_on="key", append=True)
    assert (snapshot.number, len(snapshot.files)) == (2, 1)
    assert Snapshot.open(tmp_path) == snapshot
    assert by_key(tmp_path) == {"a": [1]}


@pytest.mark.usefixtures("deltas")
def test_a_snapshot_with_a_base_is_pickled(tmp_path: Path) -> None:
    written = append_three(str(tmp_path))[-1]
    for snapshot in (written, Snapshot.open(tmp_path)):
        assert pickle.loads(pickle.dumps(snapshot)) == snapshot == written
    assert len({written, Snapshot.open(tmp_path)}) == 1


# -- A base that is gone -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("deltas")
def test_a_missing_base_raises_and_an_overwrite_repairs(place: str) -> None:
    append_three(place)
    store = Store.at(place)
    store.fs.rm_file(store.join("_tfrecord/00000001.parquet"))
    for work in (read_tfrecord, Snapshot.open, Snapshot.history):
        with pytest.raises(
            TFRecordError, match=r"00000003.parquet: not a valid snapshot .*00000001.parquet: later"
        ):
            work(place)
    with pytest.raises(TFRecordError, match="not a valid snapshot"):
        to_tfrecord(collection(5), place, append=True)
    with pytest.raises(FileNotFoundError, match="its file is missing"):
        read_tfrecord(place, version=2)
    to_tfrecord(collection(5), place, overwrite=True)
    assert values(place) == [5]
    assert store.names("_tfrecord") == ["00000004.parquet"]


@pytest.mark.usefixtures("deltas")
def test_another_file_with_the_number_of_the_base_is_refused(tmp_path: Path) -> None:
    append_three(str(tmp_path / "a"))
    to_tfrecord(collection(8, 9), tmp_path / "b")
    shutil.copy(tmp_path / "b/_tfrecord/00000001.parquet", tmp_path / "a/_tfrecord/00000001.parquet")
    with pytest.raises(TFRecordError, match="add to this version, and its file is another one"):
        read_tfrecord(tmp_path / "a")


@pytest.mark.usefixtures("deltas")
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format_version": 2}, "format version 2.*newer"),
        ({"base": {"version": 3, "crc32c": 1}}, "the base is not an earlier version"),
        ({"base": {"version": 0, "crc32c": 1}}, "the base is not an earlier version"),
        ({"base": {"version": True, "crc32c": 1}}, "the base is not an earlier version"),
        ({"base": {"version": 1}}, "not a valid snapshot"),
        ({"base": [1, 2]}, "not a valid snapshot"),
        ({"base": 1}, "not a valid snapshot"),
    ],
)
def test_an_invalid_base_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    append_three(str(tmp_path))
    change(str(tmp_path), 3, **changes)
    with pytest.raises(TFRecordError, match=problem):
        read_tfrecord(tmp_path)


@pytest.mark.usefixtures("deltas")
def test_a_base_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """The base has a base, other columns, or a file of the version."""
    place = str(tmp_path)
    append_three(place)

    def based_on(number: int) -> None:
        data = (tmp_path / f"_tfrecord/{number:08d}.parquet").read_bytes()
        change(place, 3, base={"version": number, "crc32c": crc32c(data)})

    based_on(2)
    with pytest.raises(TFRecordError, match="its base adds to another version"):
        read_tfrecord(place)
    to_tfrecord(collection(1, m=[1], npartitions=1), tmp_path / "_other")
    schema = parquet(str(tmp_path / "_other"), 1)[1]["schema"]
    for number, changes, problem in (
        (1, {"schema": schema, "order": []}, "its base has another schema"),
        (2, {"base": None}, "several files have the same path"),
    ):
        change(place, number, **changes)
        based_on(number)
        with pytest.raises(TFRecordError, match=problem):
            read_tfrecord(place)


@pytest.mark.usefixtures("deltas")
@pytest.mark.parametrize("after", [1, 2], ids=["own", "base"])
def test_a_reader_that_races_with_an_overwrite_gets_the_new_rows(
    place: str, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The overwrite removes the files after the listing, or after the file of the version was read."""
    append_three(place)
    read = versions.read_part
    calls: list[int] = []

    def overtaken(store: Store, number: int) -> Any:
        calls.append(number)
        if len(calls) == after:
            with monkeypatch.context() as patched:
                patched.setattr(versions, "read_part", read)
                to_tfrecord(collection(9), place, overwrite=True)
        return read(store, number)

    monkeypatch.setattr(versions, "read_part", overtaken)
    assert values(place) == [9]
    assert calls[: after + 1] == ([3, 4] if after == 1 else [3, 1, 4])


@pytest.mark.usefixtures("deltas")
def test_a_version_whose_base_is_removed_just_now_is_gone(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_three(place)
    store = Store.at(place)
    store.fs.rm_file(store.join("_tfrecord/00000001.parquet"))
    with pytest.raises(FileNotFoundError):
        read_snapshot(store, 3)


@pytest.mark.usefixtures("deltas")
def test_cleanup_keeps_bases_and_what_versions_list_without_their_base(tmp_path: Path) -> None:
    runs = [snapshot.run for snapshot in append_three(str(tmp_path))]
    base = tmp_path / "_tfrecord/00000001.parquet"
    for is_base_there in (True, False):
        for run in runs[not is_base_there :]:  # as if the runs had not removed their staging directories
            (tmp_path / "_tfrecord" / "staging" / run).mkdir(parents=True)
        if not is_base_there:
            base.rename(tmp_path / "_base")
        cleanup(tmp_path, older_than="0s")
        if not is_base_there:
            (tmp_path / "_base").rename(base)
        assert values(tmp_path) == [1, 2, 3, 4]
    assert [len(read_tfrecord(tmp_path, version=number)) for number in (1, 2, 3)] == [2, 3, 4]
