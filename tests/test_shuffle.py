"""Rows that change their partition before they are written: `colocate` and `shuffle`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import every_dtype
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client, LocalCluster

from dask_tfrecord import SchemaError, Snapshot, frame, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset import rows

ROWS = 400


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0) as cluster:
        yield cluster


def collection(npartitions: int = 4) -> dd.DataFrame:
    numbers = np.arange(ROWS)
    lists = pd.ArrowDtype(pa.list_(pa.binary()))
    frame = pd.DataFrame(
        {
            "n": numbers,
            "key": pd.array([[None, "", "a", "b", "c"][n % 5] for n in numbers], pd.ArrowDtype(pa.string())),
            "blobs": pd.array([[b"\xff" * (n % 4)] * (n % 3) for n in numbers], lists),
        }
    )
    return dd.from_pandas(frame, npartitions=npartitions)


def order(path: Path) -> list[int]:
    found: list[int] = read_tfrecord(path)["n"].compute().tolist()
    return found


def contents(snapshot: Snapshot) -> list[Any]:
    """What the files are, apart from the run in their names."""
    return [(file.path.rpartition("part-")[0], file.records, file.crc32c) for file in snapshot.files]


def check_rows(path: Path) -> None:
    found = read_tfrecord(path).compute().sort_values("n").reset_index(drop=True)
    expected = collection().compute().astype({"n": pd.ArrowDtype(pa.int64())})
    pd.testing.assert_frame_equal(found, expected)


# --- together ----------------------------------------------------------------------------------------


def test_each_key_has_one_file_with_its_rows_in_their_order(tmp_path: Path) -> None:
    snapshot = to_tfrecord(collection(), tmp_path, partition_on="key", colocate=True)
    assert sorted(file.records for file in snapshot.files) == [80] * 5
    assert len({file.values for file in snapshot.files}) == 5
    for path in tmp_path.rglob("part-*"):
        assert order(path) == sorted(order(path))
    check_rows(tmp_path)


def test_a_key_has_as_many_files_as_the_limit_asks_for(tmp_path: Path) -> None:
    snapshot = to_tfrecord(collection(), tmp_path, partition_on="key", colocate=True, max_rows_per_file=30)
    assert sorted(file.records for file in snapshot.files) == [20] * 5 + [30] * 10


def test_equal_categories_with_different_codes_come_together(tmp_path: Path) -> None:
    parts = [pd.DataFrame({"c": pd.Categorical(values), "n": [1, 2]}) for values in (["a", "b"], ["b", "z"])]
    ddf = dd.concat([dd.from_pandas(part, npartitions=1) for part in parts])
    snapshot = to_tfrecord(ddf, tmp_path, partition_on="c", colocate=True, schema={"c": pa.string()})
    assert {file.values[0]: file.records for file in snapshot.files} == {"a": 1, "b": 2, "z": 1}


# --- shuffled ----------------------------------------------------------------------------------------


def test_all_rows_are_there_in_another_order_and_in_other_files(tmp_path: Path) -> None:
    snapshot = to_tfrecord(collection(), tmp_path, shuffle=7)
    check_rows(tmp_path)
    numbers = np.array(order(tmp_path))
    assert abs(np.corrcoef(numbers, np.arange(ROWS))[0, 1]) < 0.2
    for index in range(4):  # every file has rows of every partition
        part = read_tfrecord(tmp_path, blocksize=None).partitions[index]["n"].compute()
        assert set(part // 100) == {0, 1, 2, 3}
    assert min(file.records for file in snapshot.files) > 50


def test_the_seed_decides_the_order(tmp_path: Path) -> None:
    seeds = {"a": 1, "b": 1, "c": 2, "d": -1}
    found = {}
    for name, seed in seeds.items():
        to_tfrecord(collection(), tmp_path / name, shuffle=seed)
        found[name] = order(tmp_path / name)
    assert found["a"] == found["b"]
    assert len({tuple(numbers) for numbers in found.values()}) == 3


def test_shuffled_rows_of_a_key_stay_together(tmp_path: Path) -> None:
    snapshot = to_tfrecord(collection(), tmp_path, partition_on="key", colocate=True, shuffle=3, num_shards=2)
    assert sorted(file.records for file in snapshot.files) == [80] * 5
    (path,) = (tmp_path / "key=a").glob("part-*")
    assert sorted(order(path)) != order(path)
    check_rows(tmp_path)


def test_a_shuffle_makes_as_many_files_as_asked_for(tmp_path: Path) -> None:
    assert len(to_tfrecord(collection(), tmp_path, shuffle=0, npartitions=7).files) == 7
    check_rows(tmp_path)


@pytest.mark.parametrize("method", ["disk", "tasks"])
def test_files_are_the_same_whichever_way_the_rows_went(tmp_path: Path, method: str) -> None:
    plain = to_tfrecord(collection(), tmp_path / "a", partition_on="key", colocate=True, shuffle=5)
    with dask.config.set({"dataframe.shuffle.method": method, "scheduler": "threads"}):
        other = to_tfrecord(collection(), tmp_path / "b", partition_on="key", colocate=True, shuffle=5)
    assert contents(plain) == contents(other)


def test_files_are_the_same_on_a_cluster(tmp_path: Path, cluster: LocalCluster) -> None:
    options: dict[str, Any] = {"partition_on": "key", "colocate": True, "shuffle": 5, "npartitions": 3}
    plain = to_tfrecord(collection(), tmp_path / "a", **options)
    with Client(cluster) as client, dask.config.set(scheduler=client):
        other = to_tfrecord(collection(), tmp_path / "b", **options)
    assert contents(plain) == contents(other)


def test_every_dtype_survives_the_shuffle(tmp_path: Path) -> None:
    table = every_dtype.frame()
    ddf = dd.from_pandas(table.assign(number=range(len(table))), npartitions=3)
    to_tfrecord(ddf, tmp_path, lossy="allow", shuffle=1)
    found = read_tfrecord(tmp_path).compute().sort_values("number").reset_index(drop=True)
    every_dtype.assert_same(found.drop(columns="number"), every_dtype.read_back())


def test_lists_of_lists_survive_the_shuffle(tmp_path: Path) -> None:
    nested = pd.array([[[1, 2], []], None, []], pd.ArrowDtype(pa.list_(pa.list_(pa.int64()))))
    ddf = dd.from_pandas(pd.DataFrame({"steps": nested, "n": [0, 1, 2]}), npartitions=2)
    to_tfrecord(ddf, tmp_path, record_type="sequence_example", shuffle=1)
    found = read_tfrecord(tmp_path).compute().sort_values("n")["steps"]
    assert pa.array(found).to_pylist() == [[[1, 2], []], None, []]


def test_a_value_that_cannot_be_stored_says_which_row(tmp_path: Path) -> None:
    lists = pd.array([[1]] * 5 + [[1, None]], pd.ArrowDtype(pa.list_(pa.int64())))
    ddf = dd.from_pandas(pd.DataFrame({"lists": lists}), npartitions=2)
    with pytest.raises(SchemaError, match=r"partition 1 of 2, record 2: .*holds a null") as caught:
        to_tfrecord(ddf, tmp_path / "a", shuffle=1)
    assert caught.value.feature == "lists"


def test_nothing_is_computed_before_it_is_asked_for(tmp_path: Path) -> None:
    lazy = to_tfrecord(collection(), tmp_path / "a", shuffle=1, compute=False)
    assert not (tmp_path / "a").exists()
    assert lazy.compute().records == ROWS


def test_the_index_can_be_a_column_of_the_shuffled_rows(tmp_path: Path) -> None:
    ddf = dd.from_pandas(collection().compute().set_index("n"), npartitions=3)
    to_tfrecord(ddf, tmp_path, write_index=True, shuffle=1)
    check_rows(tmp_path)


# --- packed rows -------------------------------------------------------------------------------------


def test_rows_longer_than_what_is_decoded_at_a_time_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_CHUNK_BYTES", 64)
    table = pa.table({"x": [b"a" * size for size in (0, 1000, 3, 70, 10_000)], "k": [1.5, None, 2.5, 0.1, 1]})
    schema = frame.Schema.from_arrow(table.schema)
    packed = rows.pack(table, schema, ["k"], lossy="raise")
    assert len(packed) == 5
    assert rows.unpack(packed, schema, ["k"]).equals(table)
    reversed_ = rows.unpack(packed.take(pa.array([4, 3, 1])), schema, ["k"])
    assert reversed_["x"].to_pylist() == [table["x"][at].as_py() for at in (4, 3, 1)]


def test_no_two_rows_have_the_same_number() -> None:
    table = pa.table({"n": range(10_000)})
    numbers = [rows.number(table, index, together=[], seed=3)[1] for index in range(3)]
    assert len(np.unique(np.concatenate(numbers))) == 30_000
