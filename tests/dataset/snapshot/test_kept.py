"""The versions before a write that replaces files, with keep_versions=True.

Modules: dataset.snapshot.visibility, dataset.write.transaction.
"""

from typing import Any

import dask
import pytest
from small_frames import by_key, keyed

import dask_tfrecord
from dask_tfrecord import RecordTable, Snapshot, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.files.storage.listing import list_directory
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def rows(place: str, **options: Any) -> list[int]:
    return sorted(read_tfrecord(place, **options)["n"].compute().tolist())


def visible(place: str) -> int:
    return len(list_directory(Store.at(place)))


@pytest.mark.parametrize("overwrite", [True, "partitions"])
def test_the_versions_before_an_overwrite_stay_readable(place: str, overwrite: Any) -> None:
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
    found = [rows(place, version=number) for number in (1, 2, 3)]
    assert found == [[1, 2, 3], [1, 2, 3, 4], newest]
    assert rows(place) == rows(place, use_snapshot=False) == newest
    assert visible(place) == len(newest)
    assert dask_tfrecord.cleanup(place, older_than="0s") == []
    assert rows(place, version=2, filters=[("n", ">", 3)]) == [4]
    to_tfrecord(keyed(a=[6]), place, partition_on="key", overwrite=True)
    assert Snapshot.history(place)["version"].tolist() == [4]
    assert Store.at(place).names("_tfrecord") == ["00000004.parquet"]
    with pytest.raises(FileNotFoundError, match="no version 2; it has 4"):
        read_tfrecord(place, version=2)


def test_a_killed_overwrite_that_keeps_versions_is_finished(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_tfrecord(keyed(a=[1]), place, partition_on="key")
    with monkeypatch.context() as patched, dask.config.set({"dask-tfrecord.keep-versions": True}):
        patched.setattr(transaction, "remove_replaced", lambda *args: None)
        to_tfrecord(keyed(a=[2]), place, partition_on="key", overwrite=True)
    assert visible(place) == 2
    assert (rows(place), rows(place, version=1), rows(place, use_snapshot=False)) == ([2], [1], [2])
    to_tfrecord(keyed(a=[3]), place, partition_on="key", append=True)
    assert visible(place) == 2
    assert (by_key(place), rows(place, version=1)) == ({"a": [2, 3]}, [1])
