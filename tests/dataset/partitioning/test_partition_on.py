"""`partition_on=`: directories, keys of every type, and what is refused.

Modules: dataset.partitioning.
"""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import every_dtype
import fsspec
import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from dask.base import tokenize
from small_frames import countries, part_names

from dask_tfrecord import SchemaError, TFRecordError, read_tfrecord, to_tfrecord

NULL = "__HIVE_DEFAULT_PARTITION__"
STRANGE = [
    "../x",
    "/",
    ".",
    "..",
    "",
    "%2F",
    "=",
    ":",
    "a::b",
    "\n",
    "🦉",
    NULL,
    None,
    "~",
    " ",
    "x.",
    "*?[a]",
]


pytestmark = pytest.mark.usefixtures("one_thread")


def keyed(values: Any) -> dd.DataFrame:
    key = pd.array(values, pd.ArrowDtype(pa.array(values).type))
    return dd.from_pandas(pd.DataFrame({"key": key, "n": range(len(key))}), npartitions=1)


def directories(root: Path) -> set[str]:
    return {str(path.parent.relative_to(root)) for path in root.rglob("part-*")}


def sorted_rows(ddf: dd.DataFrame) -> pd.DataFrame:
    found: pd.DataFrame = ddf.compute().sort_values("n").reset_index(drop=True)
    return found


# --- directories -------------------------------------------------------------------------------------


def test_rows_lie_in_the_directories_of_their_values_which_no_record_holds(tmp_path: Path) -> None:
    snapshot = to_tfrecord(countries(), tmp_path, partition_on=["country", "year"])
    values = {("PL", 2025), ("US", 2026), (None, 2025), ("", 2026)}
    assert directories(tmp_path) == {
        f"country={NULL if key is None else key}/year={year}" for key, year in values
    }
    for path in tmp_path.rglob("part-*"):
        records = [oracle.parse(payload) for payload in oracle.read_payloads(path)]
        assert {frozenset(record.features) for record in records} == {frozenset({"n", "tags"})}
    assert snapshot.partition_on == ("country", "year")
    assert {file.values for file in snapshot.files} == values


def test_partition_columns_come_back_where_they_were_with_their_types(tmp_path: Path) -> None:
    ddf = countries()
    to_tfrecord(ddf, tmp_path, partition_on=["year", "country"])
    found = read_tfrecord(tmp_path)
    assert list(found.columns) == ["n", "country", "year", "tags"]
    expected = ddf.compute().astype({"n": pd.ArrowDtype(pa.int64())})
    pd.testing.assert_frame_equal(sorted_rows(found), expected)
    assert found.dtypes.to_dict() == expected.dtypes.to_dict()


SCALARS = [
    name
    for name, dtype in every_dtype.read_back().dtypes.items()
    if name != "large_string"  # its values are longer than file names may be
    and not (isinstance(dtype, pd.ArrowDtype) and pa.types.is_nested(dtype.pyarrow_dtype))
]


@pytest.mark.parametrize("name", SCALARS)
def test_every_scalar_type_can_be_a_key(tmp_path: Path, name: str) -> None:
    ddf = dd.from_pandas(every_dtype.frame()[[name]].assign(n=range(every_dtype.ROWS)), npartitions=2)
    for colocate in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter(
                "error"
            )  # a float64 in a directory name is not rounded, so nothing may warn
            to_tfrecord(ddf, tmp_path / str(colocate), partition_on=name, colocate=colocate)
        found = sorted_rows(read_tfrecord(tmp_path / str(colocate)))[[name]]
        every_dtype.assert_same(found, every_dtype.read_back()[[name]])


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_strange_values_come_back_and_stay_inside_the_root(tmp_path: Path, protocol: str) -> None:
    root = f"{protocol}://{tmp_path}/root"
    to_tfrecord(keyed(STRANGE), root, partition_on="key")
    assert sorted_rows(read_tfrecord(root))["key"].tolist() == [
        pd.NA if value is None else value for value in STRANGE
    ]
    fs = fsspec.filesystem(protocol)
    found = [path for path in fs.find(str(tmp_path)) if "part-" in path]
    assert len(found) == len(STRANGE)
    assert {os.path.dirname(os.path.dirname(path)) for path in found} == {f"{tmp_path}/root"}


def test_the_rows_of_sparks_sample_give_its_directories(tmp_path: Path, data: Path) -> None:
    source = json.loads((data / "spark" / "partitioned.source.json").read_text())
    types = {"id": pa.int64(), "country": pa.string(), "day": pa.int32(), "x": pa.float32()}
    table = pa.Table.from_pylist(source["rows"], pa.schema({**types, "tags": pa.list_(pa.string())}.items()))
    country = pc.if_else(pc.equal(table["country"], ""), None, table["country"])  # as Spark does
    table = table.set_column(1, "country", country)
    ddf = dd.from_pandas(table.to_pandas(types_mapper=pd.ArrowDtype), npartitions=2)
    to_tfrecord(ddf, tmp_path, partition_on=source["partition_by"])
    assert directories(tmp_path) == directories(data / "spark" / "partitioned")


def test_an_index_can_be_the_partition_column(tmp_path: Path) -> None:
    ddf = dd.from_pandas(pd.DataFrame({"n": [1, 2]}, index=pd.Index([7, 8], name="key")), npartitions=1)
    to_tfrecord(ddf, tmp_path, partition_on="key", write_index=True)
    assert list(read_tfrecord(tmp_path, index=False).columns) == ["key", "n"]
    assert read_tfrecord(tmp_path).index.compute().tolist() == [7, 8]
    assert directories(tmp_path) == {"key=7", "key=8"}


def test_a_dataset_without_rows_keeps_its_columns(tmp_path: Path) -> None:
    ddf = countries()
    for name, colocate in (("a", False), ("b", True)):
        snapshot = to_tfrecord(ddf[ddf["n"] > 99], tmp_path / name, partition_on="country", colocate=colocate)
        assert (len(snapshot.files), snapshot.partition_on) == (0, ("country",))
        found = read_tfrecord(tmp_path / name)
        assert len(found) == len(found.compute()) == 0
        assert list(found.compute().columns) == ["n", "country", "year", "tags"]


def test_the_same_rows_give_the_same_bytes_in_the_same_directories(tmp_path: Path) -> None:
    found = []
    for name, scheduler in (("a", "sync"), ("b", "threads")):
        kwargs = {"scheduler": scheduler}
        snapshot = to_tfrecord(countries(), tmp_path / name, partition_on="country", compute_kwargs=kwargs)
        found.append((part_names(snapshot), [file.crc32c for file in snapshot.files]))
    assert found[0] == found[1]


# --- reading what is in the directories -------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    to_tfrecord(countries(), tmp_path / "root", partition_on=["country", "year"])
    return tmp_path / "root"


def test_columns_can_be_chosen_of_both_kinds(root: Path) -> None:
    assert read_tfrecord(root, columns=["year", "n"]).compute().shape == (12, 2)
    assert read_tfrecord(root)["country"].compute().value_counts().to_dict() == {"PL": 3, "US": 3, "": 3}
    assert read_tfrecord(root, columns="tags").compute().map(len).sum() == 12
    assert len(read_tfrecord(root)) == 12


def test_partition_columns_alone_open_no_file(root: Path) -> None:
    ddf = read_tfrecord(root, columns=["year", "country"])
    for path in root.rglob("part-*"):
        before = path.stat()
        path.write_bytes(b"\0" * before.st_size)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sorted(ddf["year"].compute()) == [2025] * 6 + [2026] * 6


def test_partition_columns_can_be_read_as_another_type(root: Path) -> None:
    found = read_tfrecord(root, schema={"year": pa.string(), "n": pa.int8()})
    assert set(found["year"].compute()) == {"2025", "2026"}
    assert found.dtypes["n"] == pd.ArrowDtype(pa.int8())
    with pytest.raises(SchemaError, match="values are string and cannot be read as int64") as caught:
        read_tfrecord(root, schema={"country": pa.int64()})
    assert caught.value.feature == "country"


def test_other_partition_values_have_another_token(tmp_path: Path) -> None:
    ddf = countries()
    one, other = (tmp_path / name for name in "ab")
    for path in (one, other):
        to_tfrecord(ddf, path, partition_on="year")
    assert tokenize(read_tfrecord(one)) == tokenize(read_tfrecord(one))
    assert tokenize(read_tfrecord(one)) != tokenize(read_tfrecord(other))


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition_on", "message"),
    [
        (["nope"], "Partitioning on non-existent column 'nope'; the columns are"),
        (["n", "country", "year", "tags"], "No data left to save outside partition columns"),
        (["year", "year"], "more than once"),
        ("tags", "feature 'tags': values of the type list"),
    ],
)
def test_columns_that_cannot_be_partitioned_on_are_refused(
    tmp_path: Path, partition_on: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        to_tfrecord(countries(), tmp_path / "a", partition_on=partition_on, compute=False)
    assert not (tmp_path / "a").exists()


def test_keys_that_no_directory_can_have_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with dask.config.set({"dataframe.convert-string": False}):
        objects = dd.from_pandas(pd.DataFrame({"key": [{"a": 1}, {"a": 2}], "n": [1, 2]}), npartitions=1)
    with pytest.raises(SchemaError, match="feature 'key'"):
        to_tfrecord(objects, tmp_path / "a", partition_on="key")
    with pytest.raises(SchemaError, match=r"/a, partition 0 of 1: feature 'key': .* 255 are allowed"):
        to_tfrecord(keyed(["short", "x" * 300]), tmp_path / "a", partition_on="key")
    assert not list(tmp_path.rglob("part-*"))


def test_keys_beyond_max_files_per_task_are_refused_with_what_to_do(tmp_path: Path) -> None:
    ddf = keyed(range(1025))
    with pytest.raises(
        TFRecordError, match=r"partition 0 of 1: .*1,025 different values of 'key'.*bucket.*colocate=True"
    ):
        to_tfrecord(ddf, tmp_path / "a", partition_on="key")
    assert not list(tmp_path.rglob("part-*"))
    few = ddf[ddf["n"] < 10]
    with pytest.raises(TFRecordError, match="10 different values"):
        to_tfrecord(few, tmp_path / "b", partition_on="key", max_files_per_task=9)
    for name, limit in (("c", 10), ("d", None)):
        snapshot = to_tfrecord(few, tmp_path / name, partition_on="key", max_files_per_task=limit)
        assert len(snapshot.files) == 10
