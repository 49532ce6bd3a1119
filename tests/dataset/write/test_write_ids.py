"""A write whose id is known commits nothing, and returns the version of the write that has the id.

Modules: dataset.write.transaction, dataset.snapshot.head, api.write, api.writer.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import pyarrow as pa
import pytest
from small_frames import collection, failing, files_of, is_intact, keyed, values

from dask_tfrecord import Commit, DestinationError, TFRecordError, Writer, open_dataset, to_tfrecord
from dask_tfrecord.dataset.snapshot import metadata, versions
from dask_tfrecord.storage import store as stores
from dask_tfrecord.storage.store import LocalStore, Store

pytestmark = pytest.mark.usefixtures("one_thread")


def day(place: Any, n: int, write_id: str | None = "day", **options: Any) -> Any:
    return to_tfrecord(keyed(a=[n]), place, write_id=write_id, partition_on="key", **options)


MODES: dict[str, dict[str, Any]] = {
    "create": {},
    "append": {"append": True},
    "overwrite": {"overwrite": True},
    "partitions": {"overwrite": "partitions"},
}


@pytest.mark.parametrize("mode", MODES)
def test_a_write_that_runs_again_computes_and_changes_nothing(tmp_path: Path, mode: str) -> None:
    options = {"partition_on": "key", "write_id": "day", **MODES[mode]}
    if mode == "partitions":
        to_tfrecord(keyed(b=[0]), tmp_path, partition_on="key")
    first = to_tfrecord(keyed(a=[1]), tmp_path, **options)
    before, rows = files_of(tmp_path), values(tmp_path)
    assert to_tfrecord(failing(keyed(a=[2])), tmp_path, **options) == first
    assert to_tfrecord(failing(keyed(a=[2])), tmp_path, compute=False, **options).compute() == first
    assert to_tfrecord(pd.DataFrame({"another": [2]}), tmp_path, write_id="day") == first
    assert (files_of(tmp_path), values(tmp_path)) == (before, rows)
    assert open_dataset(tmp_path).history()["write_id"].tolist()[-1] == "day"


def test_writes_with_other_ids_or_without_one_are_not_held_back(tmp_path: Path) -> None:
    for n, write_id in enumerate(["day", "Day", "day ", None, None]):
        day(tmp_path, n, write_id, append=True)
    assert values(tmp_path) == [0, 1, 2, 3, 4]
    with pytest.raises(DestinationError, match="already holds a dataset"):
        day(tmp_path, 5, "new")


def commit_rows(place: Any, n: int, write_id: str | None = "day") -> Commit:
    with Writer(place, partition_on="key") as writer:
        writer.write(pa.table({"key": ["a"], "n": [n]}))
        done = writer.commit(write_id=write_id)
    assert done is not None
    return done


# What happens to the version with the id. Afterwards, it is the newest one, kept, or gone.
CHANGES: dict[str, Callable[[Path], Any]] = {
    "append": lambda place: day(place, 5, None, append=True),
    "overwrite": lambda place: day(place, 5, None, overwrite=True),
    "keeping overwrite": lambda place: day(place, 5, None, overwrite=True, keep_versions=True),
    "restore": lambda place: open_dataset(place).restore(1),
    "expire": lambda place: (
        day(place, 5, None, append=True),
        open_dataset(place).expire(versions=1, grace="0s"),
    ),
    "compact": lambda place: open_dataset(place).compact(keep_versions=False),
    "delete": lambda place: open_dataset(place).delete([("n", "==", 1)], keep_versions=False),
    "snapshot": lambda place: open_dataset(place).add_snapshot(columnar=["n"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_id_stays_known_whatever_happens_to_its_version(tmp_path: Path, change: str) -> None:
    day(tmp_path, 0, None)
    done = day(tmp_path, 1, append=True)
    CHANGES[change](tmp_path)
    history, rows = open_dataset(tmp_path).history(), values(tmp_path)
    kept, newest = history["version"].tolist(), history.iloc[-1]
    found = day(tmp_path, 9, append=True)
    if done.version in kept:
        assert found == done
    else:
        assert (found.version, found.rows) == (newest["version"], newest["rows"])
        is_listed = 1 in rows and change != "compact"  # a compaction writes the row to another file
        assert found.details["added_rows"] == int(is_listed)
    assert commit_rows(tmp_path, 9).version == found.version
    assert values(tmp_path) == rows
    assert open_dataset(tmp_path).version == newest["version"]


def test_the_ids_of_the_last_thousand_commits_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert metadata.KNOWN_COMMITS == 1000
    monkeypatch.setattr(versions, "KNOWN_COMMITS", 8)  # so that the test is fast
    with Writer(tmp_path) as writer:
        for n in range(25):
            writer.write([{"n": n}])
            writer.commit(write_id=str(n))
            with Writer(tmp_path) as again:
                again.write([{"n": -1}])
                again.commit(write_id=str(max(0, n - 7)))
    assert values(tmp_path) == [*range(25)]


def test_a_new_dataset_in_the_same_directory_knows_no_id(tmp_path: Path) -> None:
    lazy = day(tmp_path / "place", 2, append=True, compute=False)
    day(tmp_path / "place", 1, append=True)
    shutil.rmtree(tmp_path / "place")
    assert lazy.compute().version == 1
    assert values(tmp_path / "place") == [2]


def test_a_write_that_runs_again_finishes_the_one_that_was_killed_after_its_commit(tmp_path: Path) -> None:
    to_tfrecord(keyed(a=[0], b=[1]), tmp_path, partition_on="key")
    old = files_of(tmp_path)
    with (
        patch("dask_tfrecord.dataset.write.transaction.remove_replaced", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        day(tmp_path, 2, overwrite="partitions")
    assert sorted(path for path in old & files_of(tmp_path) if "key=a" in path)
    assert day(tmp_path, 2, overwrite="partitions").version == 2
    assert not [path for path in old & files_of(tmp_path) if "key=a" in path]
    assert "_tfrecord/staging" not in Store.at(tmp_path).names("_tfrecord")
    assert values(tmp_path) == [2, 1]


@pytest.mark.parametrize("renames", [True, False])
@pytest.mark.parametrize(
    "winner",
    [{"append": True}, {"overwrite": "partitions", "keep_versions": True}],
    ids=["append", "keeping overwrite"],
)
def test_a_write_that_loses_its_id_to_a_write_of_another_kind_removes_nothing_of_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, winner: dict[str, Any], renames: bool
) -> None:
    monkeypatch.setattr(stores, "_UPLOADING", {"memory"})
    place = f"{tmp_path}/place" if renames else f"memory://{tmp_path}/place"
    to_tfrecord(keyed(a=[0], b=[1]), place, partition_on="key")
    to_tfrecord(keyed(b=[2]), place, partition_on="key", append=True)
    create = Store.create_exclusively
    done: list[Commit] = []

    def overtaken(store: Store, path: str, data: bytes) -> None:
        monkeypatch.setattr(Store, "create_exclusively", create)
        done.append(day(place, 5, **winner))
        create(store, path, data)

    monkeypatch.setattr(Store, "create_exclusively", overtaken)
    assert day(place, 6, overwrite="partitions") == done[0]  # without keep_versions=True
    assert values(place, version=1) == [0, 1]
    assert values(place, version=2) == [0, 1, 2]
    assert values(place) == ([0, 5, 1, 2] if "append" in winner else [5, 1, 2])
    assert is_intact(place)
    assert open_dataset(place).cleanup(older_than="0s") == []


WRONG = {
    "write_id has 0 characters; pass a name of the rows with 1 to 256": "",
    "write_id has 257 characters; pass a name": "x" * 257,
    'write_id=17 is not a string; pass a text, such as "2026-05-01"': 17,
    "cannot be encoded as UTF-8; pass a name": "\ud800",
}


@pytest.mark.parametrize("message", WRONG)
def test_ids_that_no_version_can_keep_are_refused_with_a_remedy(tmp_path: Path, message: str) -> None:
    wrong: Any = WRONG[message]
    with pytest.raises(TFRecordError, match=message):
        to_tfrecord(collection(1), tmp_path, append=True, write_id=wrong)
    with Writer(tmp_path) as writer:
        writer.write([{"n": 1}])
        with pytest.raises(TFRecordError, match=message):
            writer.commit(write_id=wrong)
    assert values(tmp_path) == [1]
    longest = "é" * 256
    assert to_tfrecord(collection(2), tmp_path, append=True, write_id=longest).version == 2
    assert to_tfrecord(collection(2), tmp_path, append=True, write_id=longest).version == 2


def test_a_writer_drops_the_rows_of_a_known_id_and_goes_on(tmp_path: Path) -> None:
    commit_rows(tmp_path, 1)
    with Writer(tmp_path, write_options={"max_bytes_per_file": 1}) as writer:
        writer.write([{"n": 2, "key": "a"}], custom_metadata={"at": "2"})  # in a staged file
        again = writer.commit(write_id="day")
        assert again == Commit(1, 1, 1, again.bytes if again else 0)
        assert writer.uncommitted_rows == 0
        writer.write([{"n": 3, "key": "a"}])
        assert writer.commit(write_id="next") is not None
        writer.write([{"n": 4, "key": "a"}])  # these rows have no id
    assert values(tmp_path) == [1, 3, 4]
    assert open_dataset(tmp_path).metadata == {}
    assert open_dataset(tmp_path).history()["write_id"].isna().tolist() == [False, False, True]
    assert open_dataset(tmp_path).cleanup(older_than="0s") == []


def test_a_writer_that_commits_by_itself_takes_no_id(tmp_path: Path) -> None:
    with Writer(tmp_path, commit_every=2) as writer:
        writer.write([{"n": 1}])
        with pytest.raises(TFRecordError, match="make a Writer without commit_every= to pass write_id="):
            writer.commit(write_id="day")
    assert values(tmp_path) == [1]


@pytest.mark.parametrize(
    "retry", [{}, {"write_id": "day"}, {"write_id": "day", "custom_metadata": {"at": "1"}}]
)
@pytest.mark.parametrize("step", ["create", "create_exclusively"])
def test_a_commit_that_failed_keeps_its_id_for_the_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, retry: dict[str, Any]
) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    with Writer(tmp_path) as writer:
        writer.write([{"n": 1}])
        with monkeypatch.context() as patched:
            patched.setattr(LocalStore, step, fail)
            with pytest.raises(OSError, match="No space left"):
                writer.commit(write_id="day", custom_metadata={"at": "1"})
            with pytest.raises(TFRecordError, match="call commit\\(\\) until it succeeds"):
                writer.write([{"n": 2}])
            with pytest.raises(TFRecordError, match="write_id='day' has failed, and its rows wait"):
                writer.commit(write_id="next")
        done = writer.commit(**retry)
        assert done is not None
        assert done.version == 1
        writer.write([{"n": 3}])
        writer.commit(write_id="next")
    assert open_dataset(tmp_path).history()["write_id"].tolist() == ["day", "next"]
    assert values(tmp_path) == [1, 3]
