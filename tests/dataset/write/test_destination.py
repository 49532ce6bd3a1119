"""Writing where data is: refused, added to, replaced; what is there stays readable until the commit."""

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
import pandas as pd
import pyarrow as pa
import pytest
from dask import delayed

from dask_tfrecord import (
    ConcurrentWriteError,
    DestinationError,
    SchemaError,
    Snapshot,
    TFRecordError,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.dataset.write import commit as commits
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def collection(*values: int, npartitions: int = 2, **columns: Any) -> dd.DataFrame:
    frame = pd.DataFrame({"n": values, **columns})
    return dd.from_pandas(frame, npartitions=npartitions)


def keyed(**values: list[int]) -> dd.DataFrame:
    """Rows with a key, in one partition."""
    rows = [(key, n) for key, found in values.items() for n in found]
    return dd.from_pandas(pd.DataFrame(rows, columns=["key", "n"]), npartitions=1)


def failing(ddf: dd.DataFrame) -> dd.DataFrame:
    def fail(part: pd.DataFrame) -> pd.DataFrame:
        raise RuntimeError("on purpose")

    return ddf.map_partitions(fail, meta=ddf._meta)


def values(place: str | Path, column: str = "n") -> list[Any]:
    return read_tfrecord(place)[column].compute().tolist()


def by_key(place: str | Path) -> dict[str, list[int]]:
    frame = read_tfrecord(place).compute()
    return {str(key): sorted(rows["n"].tolist()) for key, rows in frame.groupby("key", observed=True)}


def content(root: Path) -> list[str]:
    """The files below but for the snapshots and the data files' names."""
    found = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return sorted(name for name in found if "part-" not in name)


def put(place: str | Path, name: str, n: int, /, **features: tuple[str | None, list[Any]]) -> None:
    """A file of one record, which somebody else wrote."""
    store = Store.at(place)
    path = store.join(name)
    store.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    store.fs.pipe_file(path, oracle.features_file([{"n": ("int64", [n]), **features}]))


# --- append ------------------------------------------------------------------------------------------


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
        with pytest.raises(SchemaError, match=r"on \['key'\], the write on nothing; pass") as caught:
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
    monkeypatch.setattr(
        Store, "_open", lambda *args, _open=Store._open: opened.append(args[1]) or _open(*args)
    )
    theirs, _ = write.compute().files
    assert (theirs.path, theirs.records, theirs.bytes) == ("a.records", 1000, len(stored))
    assert theirs.crc32c == oracle.crc32c(stored)
    assert len(opened) == 2  # for its schema, and to its end


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
    with pytest.raises(SchemaError, match="gives 'b', which is no int64") as caught:
        to_tfrecord(ddf, tmp_path, partition_on="key", append=True)
    assert caught.value.feature == "key"
    with pytest.raises(SchemaError, match=r"partitioned on \['key'\], the write on nothing"):
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
    """Two overwrites commit after a write has decided on its number, and the second removes the first's."""
    to_tfrecord(collection(1), place)
    create = Store.create_exclusively
    others = iter([2, 3])

    def overtaken(self: Store, path: str, data: bytes) -> None:
        for n in list(others):  # none are left for the overwrites themselves
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


@pytest.mark.parametrize("step", ["next_snapshot", "create_file", "publish_files"])
@pytest.mark.parametrize("mode", TWINS)
def test_a_commit_that_runs_twice_at_once_commits_once(
    place: str, monkeypatch: pytest.MonkeyPatch, mode: str, step: str
) -> None:
    """As when a worker that was given up for lost goes on: one attempt does it all inside of the other."""
    options, expected = TWINS[mode]
    if mode != "create":
        to_tfrecord(keyed(a=[0], b=[0]), place, partition_on="key")
    lazy = to_tfrecord(keyed(a=[1]), place, partition_on="key", compute=False, **options)
    run = lazy.expr.run
    table = pa.table({"key": ["a"], "n": [1]})
    files = run.write(table, 0, 1)
    work = getattr(commits, step)
    twins = iter([run])

    def overtaken(*args: Any) -> Any:
        for twin in twins:
            commits.commit(twin, files)
        return work(*args)

    monkeypatch.setattr(commits, step, overtaken)
    commits.commit(run, files)
    assert by_key(place) == expected


def test_appends_that_race_for_a_number_are_both_there(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second writes its snapshot when the first has decided on the same number."""
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


# --- overwrite ---------------------------------------------------------------------------------------


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


# --- what is read is not overwritten -----------------------------------------------------------------


def of_csv(path: Path) -> dd.DataFrame:
    return dd.read_csv(f"{path}/data.csv")


def of_parquet_in_a_list(path: Path) -> dd.DataFrame:
    return dd.read_parquet([f"{path}/data.parquet"])[["n"]]


def of_a_glob(path: Path) -> dd.DataFrame:
    return dd.read_parquet(f"{path.parent}/*/data.parquet").rename(columns={"n": "m"})


def of_a_map(path: Path) -> dd.DataFrame:
    return dd.from_map(pd.read_csv, [path / "data.csv"])


def of_delayed(path: Path) -> dd.DataFrame:
    return dd.from_delayed([delayed(pd.read_csv)(f"{path}/data.csv")])


def of_a_closure(path: Path) -> dd.DataFrame:
    return dd.from_map(lambda name: pd.read_csv(f"{path}/{name}"), ["data.csv"])


def of_a_join(path: Path) -> dd.DataFrame:
    return collection(1).merge(dd.read_csv(f"file://{path}/data.csv"), on="n")


def of_a_relative_path(path: Path) -> dd.DataFrame:
    return dd.read_csv(f"{path.name}/data.csv")


def of_the_directory_above(path: Path) -> dd.DataFrame:
    return dd.from_map(lambda path: pd.DataFrame({"n": [1]}), [str(path.parent)])


def of_a_link(path: Path) -> dd.DataFrame:
    link = path.parent / "link"
    link.symlink_to(path)
    return dd.read_csv(f"{link}/data.csv")


def of_a_link_to_a_file(path: Path) -> dd.DataFrame:
    link = path.parent / "link.csv"
    link.symlink_to(path / "data.csv")
    return dd.read_csv(link)


def of_a_detour(path: Path) -> dd.DataFrame:
    aside = path.parent / "aside"
    aside.mkdir()
    return dd.read_parquet(f"{aside}/../{path.name}/data.parquet")


SOURCES = [
    of_csv,
    of_a_link,
    of_a_link_to_a_file,
    of_a_detour,
    of_parquet_in_a_list,
    of_a_glob,
    of_a_map,
    of_delayed,
    of_a_closure,
    of_a_join,
    of_a_relative_path,
    of_the_directory_above,
]


@pytest.mark.parametrize("mode", [{"overwrite": True}, {"overwrite": "partitions", "partition_on": "n"}])
@pytest.mark.parametrize("source", SOURCES)
def test_what_is_read_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any, mode: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "place"
    path.mkdir()
    pd.DataFrame({"n": [1]}).to_csv(path / "data.csv", index=False)
    pd.DataFrame({"n": [1]}).to_parquet(path / "data.parquet")
    with pytest.raises(DestinationError, match="removes only TFRecord files, and the directory also holds"):
        to_tfrecord(source(path), path, **mode)
    assert sorted(path.iterdir()) == [path / "data.csv", path / "data.parquet"]


def of_tfrecord(path: Path) -> dd.DataFrame:
    return read_tfrecord(path)


def of_tfrecord_in_a_list(path: Path) -> dd.DataFrame:
    return read_tfrecord([str(file) for file in path.glob("part-*")])


def of_a_tfrecord_glob(path: Path) -> dd.DataFrame:
    return read_tfrecord(f"{path.parent}/*/part-*")[["n"]]


def of_a_tfrecord_join(path: Path) -> dd.DataFrame:
    return collection(1).merge(read_tfrecord(f"file://{path}", dtype_backend="numpy"), on="n")


def of_a_relative_tfrecord_path(path: Path) -> dd.DataFrame:
    return read_tfrecord(path.name).map_partitions(lambda part: part)


def of_a_tfrecord_link(path: Path) -> dd.DataFrame:
    link = path.parent / "link"
    link.symlink_to(path)
    return read_tfrecord(link)


def of_a_link_to_a_tfrecord_file(path: Path) -> dd.DataFrame:
    link = path.parent / "link.tfrecord"
    link.symlink_to(next(path.glob("part-*")))
    return read_tfrecord(link)


def of_tfrecord_behind_a_cache(path: Path) -> dd.DataFrame:
    return read_tfrecord(f"simplecache::file://{path}")


TFRECORD_SOURCES = [
    of_tfrecord,
    of_tfrecord_in_a_list,
    of_a_tfrecord_glob,
    of_a_tfrecord_join,
    of_a_relative_tfrecord_path,
    of_a_tfrecord_link,
    of_a_link_to_a_tfrecord_file,
    of_tfrecord_behind_a_cache,
]


@pytest.mark.parametrize("mode", [{"overwrite": True}, {"overwrite": "partitions", "partition_on": "n"}])
@pytest.mark.parametrize("source", TFRECORD_SOURCES)
def test_tfrecord_files_that_are_read_are_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any, mode: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "place"
    to_tfrecord(collection(1), path)
    before = content(path)
    with pytest.raises(DestinationError, match="the DataFrame reads from"):
        to_tfrecord(source(path), path, **mode)
    assert content(path) == before


@pytest.mark.parametrize(
    "mention",
    [
        lambda path: collection(1).map_partitions(lambda part: part.assign(n=len(str(path)) * 0 + 1)),
        lambda path: collection(1).assign(n=lambda frame: frame["n"] if str(path) else 0),
        lambda path: collection(1).map_partitions(lambda part, root: part, f"{path}/data.csv"),
    ],
)
def test_rows_in_memory_may_overwrite_a_place_that_their_functions_mention(
    tmp_path: Path, mention: Any
) -> None:
    to_tfrecord(collection(0), tmp_path / "place")
    to_tfrecord(mention(str(tmp_path / "place")), tmp_path / "place", overwrite=True)
    assert values(str(tmp_path / "place")) == [1]


def test_a_task_that_runs_again_after_the_overwrite_of_its_input_cannot_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason why `to_tfrecord` refuses: only until the commit, the input is kept."""
    to_tfrecord(collection(1), tmp_path)
    monkeypatch.setattr("dask_tfrecord.expr.check_not_read", lambda ddf, store: None)
    lazy = to_tfrecord(read_tfrecord(tmp_path), tmp_path, overwrite=True, compute=False)
    lazy.compute()
    assert values(str(tmp_path)) == [1]
    with pytest.raises(FileNotFoundError, match="is gone now"):
        lazy.compute()
    assert values(str(tmp_path)) == [1]


def test_a_dataset_is_not_overwritten_with_itself(place: str) -> None:
    to_tfrecord(collection(1), place)
    ddf = read_tfrecord(place)
    ddf["m"] = ddf["n"] + 1
    with pytest.raises(DestinationError, match="the DataFrame reads from"):
        to_tfrecord(ddf, place, overwrite=True)
    to_tfrecord(ddf[["n"]], place, append=True)
    assert values(place) == [1, 1]


@pytest.mark.parametrize("source", [of_csv, of_a_map, of_delayed, of_a_closure, of_a_join])
def test_other_places_may_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "from").mkdir()
    pd.DataFrame({"n": [1]}).to_csv(tmp_path / "from" / "data.csv", index=False)
    for place in ("place", tmp_path / "place"):
        to_tfrecord(source(tmp_path / "from"), place, overwrite=True)
    assert values("place") == [1]


def test_an_overwrite_does_not_follow_links_out_of_its_directory(tmp_path: Path) -> None:
    other, place = tmp_path / "other", tmp_path / "place"
    to_tfrecord(collection(1), other)
    to_tfrecord(collection(2), place)
    (place / "link").symlink_to(other)
    with pytest.raises(DestinationError, match=r"a link, .*/link, leads out of it"):
        to_tfrecord(collection(3), place, overwrite=True)
    assert values(other) == [1]
    (place / "link").unlink()
    linked = tmp_path / "linked"
    linked.symlink_to(place)
    to_tfrecord(collection(3), linked, overwrite=True)
    assert values(place) == [3]


def test_other_places_may_be_read_and_columns_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"place": [1], "n": [2]}).to_csv("place2.csv", index=False)
    ddf = dd.read_csv("*.csv")
    for found in (ddf, ddf[["place"]].rename(columns={"place": "n"}), ddf.assign(n=ddf["place"] + 2)):
        to_tfrecord(found, "place", overwrite=True)
    assert values("place") == [3]


# --- overwrite="partitions" --------------------------------------------------------------------------


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
    place: str, mode: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy = to_tfrecord(keyed(a=[1], b=[2]), place, partition_on="key", compute=False, **mode)
    lazy.compute()
    to_tfrecord(keyed(a=[3]), place, partition_on="key", overwrite="partitions")

    def fail(*args: object) -> None:
        raise OSError("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "create_exclusively", fail)
        with pytest.raises(OSError if mode else ConcurrentWriteError):
            lazy.compute()
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


# --- arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"append": True, "overwrite": True}, "pass only one of the two keywords"),
        ({"append": "yes"}, "unknown append 'yes'"),
        ({"overwrite": "some"}, "unknown overwrite 'some'"),
        ({"overwrite": "partitions"}, "requires partition columns; pass partition_on="),
    ],
)
def test_modes_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(TFRecordError, match=problem):
        to_tfrecord(collection(1), tmp_path / "a", **options)
    assert not (tmp_path / "a").exists()


def test_the_advice_names_the_modes(place: str) -> None:
    to_tfrecord(collection(1), place)
    with pytest.raises(DestinationError, match="append=True or overwrite=True"):
        to_tfrecord(collection(1), place)


# --- snapshots ---------------------------------------------------------------------------------------


def test_each_version_that_is_kept_can_be_opened(place: str) -> None:
    with pytest.raises(FileNotFoundError, match="the directory has no snapshot"):
        Snapshot.open(place)
    first = to_tfrecord(collection(1), place)
    second = to_tfrecord(collection(2), place, append=True)
    assert Snapshot.open(place) == Snapshot.open(place, 2) == second
    assert Snapshot.open(place, 1) == first
    to_tfrecord(collection(3), place, overwrite=True)
    with pytest.raises(FileNotFoundError, match="the dataset has no version 2; it has 3"):
        Snapshot.open(place, 2)


def test_a_snapshot_is_a_table_in_notebooks(tmp_path: Path) -> None:
    ddf = collection(1, 2, **{"<key>": ["a", "b"]})
    html = to_tfrecord(ddf, tmp_path, partition_on="<key>")._repr_html_()
    assert html.startswith("<table><tr><th>files</th><td>2</td></tr>")
    assert "<td>n, &lt;key&gt;</td>" in html
