"""`read_tfrecord(partition_by=)`: each key is one Dask partition with all of its rows, from all its files.

The expected keys and rows come from the written frame, which pandas groups.

Modules: api.read, dataset.read.plan.
"""

import datetime
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client
from fsspec.implementations.memory import MemoryFileSystem
from small_frames import flip

from dask_tfrecord import CorruptRecordError, SchemaError, TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot

pytestmark = pytest.mark.filterwarnings("ignore:Sending large graph")

ROWS = 240


def frame(start: int = 0) -> pd.DataFrame:
    """Rows with keys of several types, nulls among them."""
    numbers = np.arange(start, start + ROWS)
    day = datetime.date(2026, 1, 1)
    columns = {
        "entity": pa.array([None if n % 7 == 6 else n % 7 for n in numbers], pa.int16()),
        "name": pa.array([["", "é/x", "__HIVE_DEFAULT_PARTITION__", None][n % 4] for n in numbers]),
        "day": pa.array([day + datetime.timedelta(int(n) % 3) for n in numbers], pa.date32()),
        "share": pa.array([[0.5, float("nan"), -1.0][n % 3] for n in numbers], pa.float32()),
        "kind": pa.array([["low", "high"][n % 2] for n in numbers]).dictionary_encode(),
        "id": pa.array(numbers, pa.int64()),
    }
    return pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)


def write(path: Any, data: pd.DataFrame, on: Any, **options: Any) -> Snapshot:
    ddf = dd.from_pandas(data, npartitions=3)
    kwargs = {"scheduler": "sync"}
    to_tfrecord(ddf, path, partition_on=on, compute_kwargs=kwargs, lossy="allow", **options)
    return Snapshot.open(path)


def plain(value: Any) -> Any:
    """A value that equals itself, also if it is missing."""
    return "nan" if isinstance(value, float) and value != value else None if value is pd.NA else value


def keys_and_ids(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """A row for each key in a partition: the key, the number of its rows and the sum of their ids."""
    distinct = {tuple(map(plain, row)) for row in rows[[*names]].itertuples(index=False)}
    return pd.DataFrame(
        {"key": [repr(key) for key in distinct], "rows": len(rows), "sum": int(rows["id"].sum())}
    )


META = {"key": "object", "rows": "int64", "sum": "int64"}


def found_keys(ddf: dd.DataFrame, names: Sequence[str], scheduler: Any = "sync") -> list[tuple[Any, ...]]:
    found = ddf.map_partitions(keys_and_ids, names, meta=META).compute(scheduler=scheduler)
    return sorted(found.itertuples(index=False, name=None))


def expected_keys(data: pd.DataFrame, names: Sequence[str]) -> list[tuple[Any, ...]]:
    sums: dict[str, list[int]] = {}
    for row in data.to_dict("records"):
        sums.setdefault(repr(tuple(plain(row[name]) for name in names)), []).append(row["id"])
    return sorted((key, len(ids), sum(ids)) for key, ids in sums.items())


MANY_FILES = {"compression": "gzip", "write_options": {"max_rows_per_file": 8}}


@pytest.mark.parametrize(
    ("on", "by", "options"),
    [
        (["name"], ["name"], MANY_FILES),
        (["share"], ["share"], {}),
        (["kind", "day"], ["kind", "day"], MANY_FILES),
        (["day", "entity"], ["entity"], MANY_FILES),
        (["day", "name", "kind"], ["kind", "name"], {}),
    ],
)
def test_each_key_is_one_partition_with_all_its_rows(
    tmp_path: Path, on: list[str], by: list[str], options: dict[str, Any]
) -> None:
    write(tmp_path, frame(), on, **options)
    snapshot = write(tmp_path, frame(ROWS), on, append=True, **options)
    assert len(snapshot.files) > 2 * snapshot.partitions
    everything = pd.concat([frame(), frame(ROWS)])
    ddf = read_tfrecord(tmp_path, partition_by=by)
    expected = expected_keys(everything, by)
    assert ddf.npartitions == len(expected)
    assert found_keys(ddf, by) == expected
    assert len(ddf) == len(everything)
    assert ddf.map_partitions(len).compute().tolist() == [len(part) for part in ddf.partitions]


@pytest.fixture
def by_day_and_entity(tmp_path: Path) -> Path:
    write(tmp_path, frame(), ["day", "entity"])
    return tmp_path


def test_every_scheduler_keeps_the_promise(by_day_and_entity: Path, client: Client) -> None:
    ddf = read_tfrecord(by_day_and_entity, partition_by="entity")
    for scheduler in ("threads", client):
        assert found_keys(ddf, ["entity"], scheduler) == expected_keys(frame(), ["entity"])


def test_directories_of_other_tools(by_day_and_entity: Path) -> None:
    shutil.rmtree(by_day_and_entity / "_tfrecord")
    types = {"entity": pa.int16(), "day": pa.date32()}
    ddf = read_tfrecord(by_day_and_entity, partition_by="entity", hive=types)
    assert found_keys(ddf, ["entity"]) == expected_keys(frame(), ["entity"])


def test_directories_of_the_same_value_are_one_key(tmp_path: Path) -> None:
    for number, name in enumerate(["k=01", "k=2", "k=1"]):
        to_tfrecord(pd.DataFrame({"id": [number, 10 * number]}), tmp_path / "made" / name)
        shutil.rmtree(tmp_path / "made" / name / "_tfrecord")
    ddf = read_tfrecord(tmp_path / "made", partition_by="k", hive={"k": pa.int64()})
    assert found_keys(ddf, ["k"]) == [("(1,)", 4, 22), ("(2,)", 2, 11)]


@pytest.mark.parametrize("names", [["entity"], ["entity", "day"]])
def test_filters_of_keys_and_rows_leave_out_or_empty_partitions(
    by_day_and_entity: Path, names: list[str]
) -> None:
    def read(*filters: Any) -> dd.DataFrame:
        return read_tfrecord(by_day_and_entity, partition_by=names, filters=[*filters])

    some = read(("entity", "in", [1, 4]), ("id", "<", 200))
    selected = frame()[lambda rows: rows["entity"].isin([1, 4]) & (rows["id"] < 200)]
    assert found_keys(some, names) == expected_keys(selected, names)
    counts = read(("id", "in", [0, 239])).map_partitions(len).compute(scheduler="sync")
    assert sorted(counts)[-2:] == [1, 1]
    assert sum(counts) == 2
    nothing = read(("entity", "==", 99))
    assert (nothing.npartitions, len(nothing)) == (1, 0)


@pytest.mark.parametrize("condition", ["entity == 3", "id > 220", "id > 10_000"])
def test_a_filter_of_the_frame_keeps_the_labels_of_the_index(by_day_and_entity: Path, condition: str) -> None:
    ddf = read_tfrecord(by_day_and_entity, partition_by="entity")
    whole = ddf.persist(scheduler="sync")
    found = ddf.query(condition).compute(scheduler="sync")
    pd.testing.assert_frame_equal(found, whole.query(condition).compute(scheduler="sync"))
    for part in whole.partitions:
        assert part.compute().index.equals(pd.RangeIndex(len(part)))


def test_many_keys_stay_apart_and_sums_may_join_them(tmp_path: Path) -> None:
    data = pd.DataFrame({"k": np.arange(180) % 60, "id": np.arange(180), "text": "much more than an id"})
    write(tmp_path, data, "k")
    ddf = read_tfrecord(tmp_path, partition_by="k")
    fused = ddf["id"].sum()
    assert fused.compute(scheduler="sync") == data["id"].sum()
    assert ddf["id"].compute(scheduler="sync").index.tolist() == [0, 1, 2] * 60
    assert found_keys(ddf[["k", "id"]], ["k"]) == expected_keys(data, ["k"])
    assert ddf["id"].map_partitions(len).compute(scheduler="sync").tolist() == [3] * 60


def test_the_key_need_not_be_a_column(by_day_and_entity: Path) -> None:
    ddf = read_tfrecord(by_day_and_entity, columns=["id"], partition_by="entity")
    assert list(ddf.columns) == ["id"]
    sums = ddf["id"].map_partitions(lambda ids: pd.Series([ids.sum()]), meta=(None, "int64")).compute()
    assert sorted(sums) == sorted(frame().groupby("entity", dropna=False)["id"].sum())


def test_categories_of_several_files_are_joined_and_the_index_comes_back(tmp_path: Path) -> None:
    data = pd.DataFrame({"k": [1, 1, 2], "d": [1, 2, 1], "c": pd.Categorical(["x", "y", "z"])})
    write(tmp_path, data.set_index(pd.Index([7, 8, 9], name="id")), ["d", "k"])
    ddf = read_tfrecord(tmp_path, partition_by="k", categories=["c"])
    assert sorted(map(str, ddf.partitions[0].compute()["c"])) == ["x", "y"]
    assert ddf.index.name == "id"
    assert sorted(ddf.index.compute(scheduler="sync")) == [7, 8, 9]


def test_damage_of_one_key_leaves_the_others_readable(tmp_path: Path) -> None:
    snapshot = write(tmp_path, frame(), ["entity"])
    file = next(file for file in snapshot.files if file.values == (2,))
    flip(tmp_path / file.path, 20)
    damaged = []
    for part in read_tfrecord(tmp_path, partition_by="entity").partitions:
        try:
            [key] = {*map(plain, part.compute()["entity"])}
            assert key != 2
        except CorruptRecordError as error:
            damaged.append(str(error))
    [message] = damaged
    assert "entity=2" in message


@pytest.mark.parametrize(
    ("by", "options", "error", "says"),
    [
        (["entity", "nothing"], {}, SchemaError, "'entity'"),
        ("entity", {"hive": False}, SchemaError, "none"),
        ("entity", {"index": "id", "calculate_divisions": True}, TFRecordError, "calculate_divisions"),
        ([], {}, TFRecordError, "at least one"),
        (["entity", "entity"], {}, TFRecordError, "twice"),
        (3, {}, TFRecordError, "list of column names"),
    ],
)
def test_what_cannot_be_a_key(
    tmp_path: Path, by: Any, options: dict[str, Any], error: type[TFRecordError], says: str
) -> None:
    write(tmp_path, frame(), "entity")
    with pytest.raises(error, match=says):
        read_tfrecord(tmp_path, partition_by=by, **options)


def test_more_keys_take_no_more_listings(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def count(name: str) -> Any:
        original = getattr(MemoryFileSystem, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        return counted

    for name in ("ls", "find", "info", "cat_file", "open"):
        monkeypatch.setattr(MemoryFileSystem, name, count(name))
    taken = []
    for keys in (3, 100):
        path = f"memory://bucket/keys{keys}"
        write(path, pd.DataFrame({"k": np.arange(keys), "id": 1}), "k", overwrite=True)
        calls.clear()
        assert read_tfrecord(path, partition_by="k").npartitions == keys
        taken.append(sorted(calls))
    assert taken[0] == taken[1]
    assert "find" not in taken[0]


def test_a_dataset_without_rows_has_no_keys(tmp_path: Path) -> None:
    write(tmp_path, frame().head(0), "entity")
    assert len(read_tfrecord(tmp_path, partition_by="entity")) == 0
