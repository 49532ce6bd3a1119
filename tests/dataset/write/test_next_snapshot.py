"""Overwrites, of a dataset or of partitions: the old data stays readable until the commit.

Modules: dataset.write.operations.
"""

from pathlib import Path

import pytest
from small_frames import by_key, collection, failing, keyed, put, values

from dask_tfrecord import (
    ConcurrentWriteError,
    to_tfrecord,
)
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread", "appended_snapshots")


def test_overwrite_replaces_everything(place: str) -> None:
    to_tfrecord(collection(1, 2, 3), place)
    to_tfrecord(collection(4), place, append=True)
    snapshot = to_tfrecord(collection(5, m=["other"]), place, overwrite=True)
    assert snapshot.number == 3
    assert values(place) == [5]
    store = Store.at(place)
    assert len(store.fs.glob(store.join("part-*"))) == 1
    assert store.names("_tfrecord") == ["00000003.parquet"]


def test_overwrite_replaces_files_of_others(place: str) -> None:
    put(place, "key=a/b/y.tfrecord", 7)
    put(place, "_hidden", 8)
    to_tfrecord(collection(1), place, overwrite=True)
    assert values(place) == [1]
    store = Store.at(place)
    assert not store.fs.exists(store.join("key=a"))
    assert store.fs.exists(store.join("_hidden"))


def test_overwrite_of_nothing_is_a_first_write(place: str) -> None:
    assert to_tfrecord(collection(1), place, overwrite=True).number == 1


def test_overwrite_touches_nothing_before_it_is_computed(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path)
    before = sorted(tmp_path.rglob("*"))
    lazy = to_tfrecord(collection(2), tmp_path, overwrite=True, compute=False)
    assert sorted(tmp_path.rglob("*")) == before
    lazy.compute()
    assert values(tmp_path) == [2]


def test_an_overwrite_that_fails_leaves_the_old_data_and_nothing_else(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RuntimeError, match="on purpose"):
        to_tfrecord(failing(collection(2)), tmp_path, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before
    assert values(tmp_path) == [1]


def test_the_old_data_is_readable_until_the_commit(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    to_tfrecord(collection(1), place)
    seen: list[list[int]] = []
    create = Store.create_exclusively

    def look(self: Store, path: str, data: bytes) -> None:
        seen.append(values(place))
        create(self, path, data)
        seen.append(values(place))

    monkeypatch.setattr(Store, "create_exclusively", look)
    to_tfrecord(collection(2, 3), place, overwrite=True)
    assert seen == [[1], [2, 3]]


@pytest.mark.parametrize("mode", [{}, {"overwrite": True}])
def test_of_two_overwrites_one_wins_and_the_other_raises(place: str, mode: dict[str, bool]) -> None:
    first, second = (to_tfrecord(collection(n), place, compute=False, **mode) for n in (1, 2))
    second.compute()
    with pytest.raises(ConcurrentWriteError, match="another write committed"):
        first.compute()
    assert values(place) == [2]
    store = Store.at(place)
    assert len(store.fs.glob(store.join("part-*"))) == 1
    assert store.fs.exists(store.join("_SUCCESS"))


def test_an_overwrite_does_not_drop_an_append_that_it_has_not_seen(place: str) -> None:
    to_tfrecord(collection(1), place)
    lazy = to_tfrecord(collection(2), place, overwrite=True, compute=False)
    to_tfrecord(collection(3), place, append=True)
    with pytest.raises(ConcurrentWriteError):
        lazy.compute()
    assert values(place) == [1, 3]


def test_computing_a_lazy_write_again_changes_nothing(place: str) -> None:
    lazy = to_tfrecord(collection(1, 2), place, overwrite=True, compute=False)
    assert lazy.compute() == lazy.compute()
    to_tfrecord(collection(3), place, append=True)
    assert lazy.compute().number == 1
    assert values(place) == [1, 2, 3]


def test_only_the_partitions_that_are_written_are_replaced(place: str) -> None:
    to_tfrecord(keyed(a=[1], b=[2, 3]), place, partition_on="key")
    to_tfrecord(keyed(c=[4]), place, partition_on="key", append=True)
    snapshot = to_tfrecord(keyed(b=[5], d=[6]), place, partition_on="key", overwrite="partitions")
    assert by_key(place) == {"a": [1], "b": [5], "c": [4], "d": [6]}
    assert snapshot.number == 3
    store = Store.at(place)
    assert len(store.fs.find(store.join("key=b"))) == 1
    assert store.names("_tfrecord") == ["00000003.parquet"]


@pytest.mark.parametrize("mode", [{}, {"append": True}], ids=str)
def test_a_write_that_runs_again_leaves_the_partitions_that_were_kept_of_it(
    place: str, mode: dict[str, bool]
) -> None:
    lazy = to_tfrecord(keyed(a=[1], b=[2]), place, partition_on="key", compute=False, **mode)
    lazy.compute()
    to_tfrecord(keyed(a=[3]), place, partition_on="key", overwrite="partitions")

    assert lazy.compute().number == 2
    assert by_key(place) == {"a": [3], "b": [2]}


def test_no_rows_replace_no_partitions(tmp_path: Path) -> None:
    ddf = keyed(a=[1])
    to_tfrecord(ddf, tmp_path, partition_on="key")
    to_tfrecord(ddf[ddf["n"] > 1], tmp_path, partition_on="key", overwrite="partitions")
    assert by_key(tmp_path) == {"a": [1]}


def test_partitions_of_others_are_replaced(place: str) -> None:
    put(place, "key=a/y.tfrecord", 7)
    put(place, "key=b/y.tfrecord", 8)
    to_tfrecord(keyed(b=[1]), place, partition_on="key", overwrite="partitions")
    assert by_key(place) == {"a": [7], "b": [1]}


def test_concurrent_replacements_of_partitions_raise(tmp_path: Path) -> None:
    to_tfrecord(keyed(a=[1], b=[2]), tmp_path, partition_on="key")
    first, second = (
        to_tfrecord(keyed(b=[n]), tmp_path, partition_on="key", overwrite="partitions", compute=False)
        for n in (3, 4)
    )
    first.compute()
    with pytest.raises(ConcurrentWriteError):
        second.compute()
    assert by_key(tmp_path) == {"a": [1], "b": [3]}
