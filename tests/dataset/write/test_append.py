"""Appends: the old rows stay, concurrent appends are both kept, and other columns are rejected.

Modules: dataset.write.transaction, dataset.write.operations.
"""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pyarrow as pa
import pytest
from small_frames import by_key, collection, content, keyed, put, values

from dask_tfrecord import (
    ConcurrentWriteError,
    SchemaError,
    Snapshot,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.dataset.snapshot.versions import next_ancestors
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.dataset.write.operations import Append
from dask_tfrecord.dataset.write.transaction import Transaction
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread", "appended_snapshots")


def test_append_adds_to_what_is_there(place: str) -> None:
    to_tfrecord(collection(1, 2, 3), place)
    snapshot = to_tfrecord(collection(4, 5), place, append=True, compression="gzip")
    assert values(place) == [1, 2, 3, 4, 5]
    assert (snapshot.records, len(snapshot.files), snapshot.number) == (5, 4, 2)
    assert len(read_tfrecord(place)) == 5


def test_append_to_nothing_is_a_first_write(place: str) -> None:
    assert to_tfrecord(collection(1), place, append=True).number == 1
    assert values(place) == [1]


def test_appended_columns_may_come_in_another_order(tmp_path: Path) -> None:
    to_tfrecord(collection(1, 2, m=[3, 4]), tmp_path)
    to_tfrecord(collection(5, 6, m=[7, 8])[["m", "n"]], tmp_path, append=True)
    frame = read_tfrecord(tmp_path).compute()
    assert frame.columns.tolist() == ["n", "m"]
    assert frame["m"].tolist() == [3, 4, 7, 8]


@pytest.mark.parametrize(
    ("ddf", "options", "feature", "problem"),
    [
        (collection(1, 2, m=[1, 2]), {}, "m", "the dataset does not"),
        (collection(1, 2)[["n"]].rename(columns={"n": "m"}), {}, "m", "the dataset does not"),
        (collection(1, 2).astype("int32"), {}, "n", "is int32, in the dataset it is int64"),
        (collection(1, 2).astype("string"), {}, "n", "in the dataset it is int64"),
        (collection(1, 2), {"record_type": "sequence_example"}, None, "the dataset holds 'example' records"),
        (collection(1, 2, k=[1, 2]), {"partition_on": ["k"]}, "k", "is partitioned on nothing"),
    ],
)
def test_columns_that_do_not_agree_are_named_before_anything_is_written(
    tmp_path: Path, ddf: dd.DataFrame, options: dict[str, Any], feature: str | None, problem: str
) -> None:
    to_tfrecord(collection(1), tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SchemaError, match=problem) as caught:
        to_tfrecord(ddf, tmp_path, append=True, **options)
    assert caught.value.feature == feature
    assert caught.value.path == str(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_append_must_bring_all_columns(tmp_path: Path) -> None:
    to_tfrecord(collection(1, 2, m=[1, 2]), tmp_path)
    with pytest.raises(SchemaError, match="'m': the dataset has this column"):
        to_tfrecord(collection(3), tmp_path, append=True)


def test_appended_partitions_come_in_the_directories_that_are_there(tmp_path: Path) -> None:
    to_tfrecord(keyed(a=[1], b=[2]), tmp_path, partition_on=["key"])
    to_tfrecord(keyed(b=[3], c=[4]), tmp_path, partition_on=["key"], append=True)
    assert by_key(tmp_path) == {"a": [1], "b": [2, 3], "c": [4]}
    for ddf in (keyed(b=[3])[["n"]], keyed(b=[3])):
        with pytest.raises(
            SchemaError, match=r"on \['key'\], but the write partitions on nothing; pass"
        ) as caught:
            to_tfrecord(ddf, tmp_path, append=True)
        assert caught.value.feature == "key"


def test_append_works_on_files_of_others(place: str) -> None:
    put(place, "x/y.tfrecord", 7)
    put(place, "a.records", 8)
    snapshot = to_tfrecord(collection(1, 2), place, append=True)
    assert values(place) == [8, 7, 1, 2]
    assert [file.records for file in snapshot.files] == [1, 1, 1, 1]
    assert snapshot.number == 1


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zlib.compress, bz2.compress, lzma.compress])
def test_the_snapshot_says_what_is_stored_of_others_read_once_more(
    tmp_path: Path, compress: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = compress(oracle.features_file([{"n": ("int64", [n])} for n in range(1000)]))
    (tmp_path / "a.records").write_bytes(stored)
    write = to_tfrecord(collection(1, npartitions=1), tmp_path, append=True, compute=False)
    opened: list[str] = []
    monkeypatch.setattr(Store, "open", lambda *args, _open=Store.open: opened.append(args[1]) or _open(*args))
    theirs, _ = write.compute().files
    assert (theirs.path, theirs.records, theirs.bytes) == ("a.records", 1000, len(stored))
    assert theirs.crc32c == oracle.crc32c(stored)
    assert len(opened) == 2  # one read for the schema, one for the rows


def test_append_to_directories_of_others_takes_their_keys_from_the_names(tmp_path: Path) -> None:
    put(tmp_path, "key=b%2Fc/y.tfrecord", 7)
    put(tmp_path, "key=__HIVE_DEFAULT_PARTITION__/y.tfrecord", 8)
    to_tfrecord(keyed(a=[1]), tmp_path, partition_on="key", append=True)
    frame = read_tfrecord(tmp_path).compute()
    assert dict(
        zip(frame["n"], frame["key"].astype(object).where(frame["key"].notna(), None), strict=True)
    ) == {
        7: "b/c",
        8: None,
        1: "a",
    }


def test_keys_of_others_must_be_of_the_columns_type(tmp_path: Path) -> None:
    put(tmp_path, "key=b/y.tfrecord", 7)
    ddf = collection(1, 2, key=[1, 2])
    with pytest.raises(SchemaError, match="has the value 'b', which is not of type int64") as caught:
        to_tfrecord(ddf, tmp_path, partition_on="key", append=True)
    assert caught.value.feature == "key"
    with pytest.raises(SchemaError, match=r"partitioned on \['key'\], but the write partitions on nothing"):
        to_tfrecord(collection(1), tmp_path, append=True)


@pytest.mark.parametrize(
    ("features", "feature"),
    [({"m": ("int64", [1])}, "m"), ({"n": ("bytes", [b"1"])}, "n"), ({"n": ("int64", [1, 2])}, "n")],
)
def test_features_of_others_must_agree_with_the_columns(
    tmp_path: Path, features: dict[str, Any], feature: str
) -> None:
    put(tmp_path, "a.tfrecord", 7, **features)
    with pytest.raises(SchemaError) as caught:
        to_tfrecord(collection(1), tmp_path, append=True)
    assert caught.value.feature == feature


def test_empty_files_of_others_agree_with_any_columns(place: str) -> None:
    with Store.at(place).create(f"{place}/empty.tfrecord"):
        pass
    to_tfrecord(collection(1), place, append=True)
    assert values(place) == [1]


def test_a_column_that_others_always_left_out_takes_our_type(tmp_path: Path) -> None:
    put(tmp_path, "a.tfrecord", 7, m=(None, []))
    to_tfrecord(collection(1, m=["text"]), tmp_path, append=True)
    assert read_tfrecord(tmp_path)["m"].compute().fillna("-").tolist() == ["-", "text"]


def test_concurrent_appends_are_both_there(place: str) -> None:
    to_tfrecord(collection(1), place)
    first = to_tfrecord(collection(2), place, append=True, compute=False)
    second = to_tfrecord(collection(3), place, append=True, compute=False)
    assert second.compute().number == 2
    assert first.compute().number == 3
    assert sorted(values(place)) == [1, 2, 3]


def test_many_appends_at_once_are_all_there(place: str) -> None:
    lazies = [to_tfrecord(collection(n), place, append=True, compute=False) for n in range(8)]
    with ThreadPoolExecutor(len(lazies)) as pool:
        numbers = [snapshot.number for snapshot in pool.map(lambda lazy: lazy.compute(), lazies)]
    assert sorted(numbers) == list(range(1, 9))
    assert sorted(values(place)) == list(range(8))


def test_of_many_overwrites_at_once_one_wins(place: str) -> None:
    to_tfrecord(collection(-1), place)
    lazies = [to_tfrecord(collection(n), place, overwrite=True, compute=False) for n in range(8)]
    won = []

    def compute(n: int) -> None:
        try:
            lazies[n].compute()
        except ConcurrentWriteError:
            return
        won.append(n)

    with ThreadPoolExecutor(len(lazies)) as pool:
        list(pool.map(compute, range(8)))
    assert len(won) == 1
    assert values(place) == won
    store = Store.at(place)
    assert len(store.fs.glob(store.join("part-*"))) == 1


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_number_that_is_free_again_is_not_taken_for_the_next(
    place: str, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Two overwrites commit after a write chose its number; the second removes the snapshot of the first."""
    to_tfrecord(collection(1), place)
    create = Store.create_exclusively
    others = iter([2, 3])

    def overtaken(self: Store, path: str, data: bytes) -> None:
        for n in list(others):  # the overwrites themselves are not interrupted
            to_tfrecord(collection(n), place, overwrite=True)
        create(self, path, data)

    lazy = to_tfrecord(collection(4), place, compute=False, **{mode: True})
    monkeypatch.setattr(Store, "create_exclusively", overtaken)
    if mode == "append":
        assert lazy.compute().number == 4
        assert sorted(values(place)) == [3, 4]
    else:
        with pytest.raises(ConcurrentWriteError):
            lazy.compute()
        assert values(place) == [3]


TWINS = {
    "create": ({}, {"a": [1]}),
    "append": ({"append": True}, {"a": [0, 1], "b": [0]}),
    "overwrite": ({"overwrite": True}, {"a": [1]}),
    "partitions": ({"overwrite": "partitions"}, {"a": [1], "b": [0]}),
}


@pytest.mark.parametrize(
    ("owner", "step"),
    [(Transaction, "create"), (Transaction, "_store"), (transaction, "publish_files")],
)
@pytest.mark.parametrize("mode", TWINS)
def test_a_commit_that_runs_twice_at_once_commits_once(
    place: str, monkeypatch: pytest.MonkeyPatch, mode: str, owner: Any, step: str
) -> None:
    """A worker that Dask believes dead goes on: one attempt runs completely inside the other."""
    options, expected = TWINS[mode]
    if mode != "create":
        to_tfrecord(keyed(a=[0], b=[0]), place, partition_on="key")
    lazy = to_tfrecord(keyed(a=[1]), place, partition_on="key", compute=False, **options)
    run, operation = lazy.expr.run, lazy.expr.operation
    table = pa.table({"key": ["a"], "n": [1]})
    files = run.write(table, 0, 1)
    work = getattr(owner, step)
    twins = iter([run])

    def overtaken(*args: Any) -> Any:
        for twin in twins:
            transaction.commit(twin, operation, files)
        return work(*args)

    monkeypatch.setattr(owner, step, overtaken)
    transaction.commit(run, operation, files)
    assert by_key(place) == expected


def test_appends_that_race_for_a_number_are_both_there(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second append creates its snapshot after the first append chose the same number."""
    create = Store.create_exclusively
    others = iter([to_tfrecord(collection(2), place, append=True, compute=False)])

    def overtaken(self: Store, path: str, data: bytes) -> None:
        for other in others:
            other.compute()
        create(self, path, data)

    monkeypatch.setattr(Store, "create_exclusively", overtaken)
    assert to_tfrecord(collection(1), place, append=True).number == 2
    assert sorted(values(place)) == [1, 2]


def test_an_append_that_does_not_fit_any_more_leaves_what_is_there(tmp_path: Path) -> None:
    to_tfrecord(collection(1), tmp_path)
    lazy = to_tfrecord(collection(2), tmp_path, append=True, compute=False)
    to_tfrecord(collection(3).astype("string"), tmp_path, overwrite=True)
    with pytest.raises(SchemaError, match="in the dataset it is string"):
        lazy.compute()
    assert values(tmp_path) == ["3"]
    assert content(tmp_path) == ["_SUCCESS", "_tfrecord/00000002.parquet"]
    assert len(list(tmp_path.rglob("part-*"))) == 1


@pytest.mark.parametrize("lost", [False, True], ids=["receipts", "all tasks"])
@pytest.mark.parametrize("later", [{}, {"append": True}, {"overwrite": True}], ids=str)
def test_an_append_that_runs_again_after_an_overwrite_is_not_added_again(
    place: str, lost: bool, later: dict[str, bool]
) -> None:
    """A worker dies after its commit. Dask repeats the commit, and the writes if the receipts are lost."""
    to_tfrecord(collection(1), place)
    run = to_tfrecord(collection(2), place, append=True, compute=False).expr.run
    table = pa.table({"n": [2]})
    files = run.write(table, 0, 1)
    assert transaction.commit(run, Append(), files).number == 2
    assert to_tfrecord(collection(3), place, overwrite=True).number == 3
    if later:
        to_tfrecord(collection(4), place, **later)
    before = values(place)
    if lost:
        run.write(table, 0, 1)
    assert transaction.commit(run, Append(), files).run != run.run
    assert values(place) == before
    store = Store.at(place)
    names = [path.rpartition("/")[2] for path in store.fs.find(store.root)]
    assert not [name for name in names if name.startswith(f"part-{run.run}")]
    assert not store.names("_tfrecord/staging")


def test_an_append_whose_twin_is_overwritten_is_not_added_again(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that Dask believes dead commits during the second attempt, and an overwrite replaces that."""
    to_tfrecord(collection(1), place)
    run = to_tfrecord(collection(2), place, append=True, compute=False).expr.run
    table = pa.table({"n": [2]})
    files = run.write(table, 0, 1)
    work = Transaction.create
    twins = iter([run])

    def overtaken(*args: Any) -> Any:
        for twin in twins:
            transaction.commit(twin, Append(), files)
            to_tfrecord(collection(3), place, overwrite=True)
        return work(*args)

    monkeypatch.setattr(Transaction, "create", overtaken)
    assert transaction.commit(run, Append(), files).number == 3
    assert values(place) == [3]
    store = Store.at(place)
    assert len(store.fs.glob(store.join("part-*"))) == 1


def test_a_snapshot_names_the_last_writes_before_it(tmp_path: Path) -> None:
    modes = [{}, {"append": True}, {"overwrite": True}, {"append": True}]
    snapshots = [to_tfrecord(collection(1), tmp_path, **mode) for mode in modes]
    assert Snapshot.open(tmp_path).ancestors == tuple(one.run for one in snapshots[:-1])
    assert next_ancestors([*map(str, range(200))], "last") == (*map(str, range(101, 200)), "last")
