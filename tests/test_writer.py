"""`to_tfrecord`: the files of a dataset, the arguments that are rejected, and the files after a failure.

Modules: writer, requests.
"""

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import every_dtype
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dask.base import tokenize
from fsspec.implementations.memory import MemoryFileSystem

from dask_tfrecord import DestinationError, SchemaError, Snapshot, TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import find_snapshot
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.files import file_writer
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.fields import Schema

pytestmark = pytest.mark.usefixtures("one_thread")


def collection(rows: int = 10, npartitions: int = 3) -> dd.DataFrame:
    frame = pd.DataFrame({"n": range(rows), "name": [f"row {n}" for n in range(rows)]})
    return dd.from_pandas(frame, npartitions=npartitions)


def content(root: Path) -> list[str]:
    """The names of all files below the root, with RUN in place of the id of the run."""
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return [f"part-RUN-{name[38:]}" if name.startswith("part-") else name for name in found]


def values(root: Path, name: str = "n") -> list[Any]:
    """The values of one feature in all records, in the order of the files, as protobuf reads them."""
    return [
        value
        for path in sorted(root.glob("part-*"))
        for payload in oracle.read_payloads(path)
        for value in oracle.parse(payload).features[name].values
    ]


@pytest.mark.parametrize(("compression", "suffix"), [(None, ""), ("gzip", ".gz"), ("zlib", ".zz")])
def test_a_directory_holds_a_file_per_partition_and_a_snapshot(
    tmp_path: Path, compression: Any, suffix: str
) -> None:
    to_tfrecord(collection(), tmp_path / "a", compression=compression)
    parts = [f"part-RUN-{number:05d}-of-00003.tfrecord{suffix}" for number in range(3)]
    assert content(tmp_path / "a") == ["_SUCCESS", "_tfrecord/00000001.parquet", *parts]
    assert values(tmp_path / "a") == list(range(10))
    assert (tmp_path / "a" / "_SUCCESS").stat().st_size == 0


def test_the_result_says_what_was_written(tmp_path: Path) -> None:
    snapshot = to_tfrecord(collection(), tmp_path)
    parts = sorted(tmp_path.glob("part-*"))
    assert [file.path for file in snapshot.files] == [path.name for path in parts]
    assert [file.bytes for file in snapshot.files] == [path.stat().st_size for path in parts]
    assert [file.records for file in snapshot.files] == [4, 3, 3]
    assert [file.crc32c for file in snapshot.files] == [oracle.crc32c(path.read_bytes()) for path in parts]
    assert repr(snapshot).startswith("Snapshot(3 files, 10 records, ")
    assert find_snapshot(Store.at(tmp_path)) == snapshot


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_what_was_written_is_what_is_read(tmp_path: Path, compression: Any) -> None:
    ddf = dd.from_pandas(every_dtype.frame(), npartitions=5)
    to_tfrecord(ddf, tmp_path, lossy="allow", compression=compression)
    found = read_tfrecord(tmp_path)
    every_dtype.assert_same(found.compute().reset_index(drop=True), every_dtype.read_back())
    assert [str(t) for t in found.dtypes] == [str(t) for t in every_dtype.read_back().dtypes]


@pytest.mark.parametrize(
    ("compression", "suffix"), [("zstd", ".zst"), ("lz4", ".lz4"), ("bz2", ".bz2"), ("xz", ".xz")]
)
def test_what_tensorflow_does_not_read_is_written_with_a_warning(
    tmp_path: Path, compression: Any, suffix: str
) -> None:
    ddf = dd.from_pandas(every_dtype.frame(), npartitions=2)
    with pytest.warns(UserWarning, match=f"TensorFlow reads only gzip and zlib, .*{compression}"):
        snapshot = to_tfrecord(ddf, tmp_path, lossy="allow", compression=compression)
    assert all(file.path.endswith(f".tfrecord{suffix}") for file in snapshot.files)
    for path in (tmp_path, tmp_path / f"part-*{suffix}"):
        assert len(read_tfrecord(path)) == len(ddf)
    every_dtype.assert_same(read_tfrecord(tmp_path).compute().reset_index(drop=True), every_dtype.read_back())


def test_a_higher_compression_level_gives_smaller_files(tmp_path: Path) -> None:
    sizes = [
        to_tfrecord(collection(), tmp_path / f"{level}", compression="gzip", compression_level=level).bytes
        for level in (0, 9)
    ]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize(
    ("compression", "level", "problem"),
    [(None, 1, "without compression="), ("gzip", 10, "level from 0 to 9"), ("zstd", 0, "level from 1 to 22")],
)
def test_unknown_levels_are_refused(tmp_path: Path, compression: Any, level: int, problem: str) -> None:
    with pytest.raises(TFRecordError, match=problem):
        to_tfrecord(collection(), tmp_path / "a", compression=compression, compression_level=level)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_the_same_rows_give_the_same_bytes(tmp_path: Path, compression: Any) -> None:
    one, other = (to_tfrecord(collection(), tmp_path / name, compression=compression) for name in "ab")
    assert [file.crc32c for file in one.files] == [file.crc32c for file in other.files]


def test_partitions_without_rows_have_files_without_records(tmp_path: Path) -> None:
    ddf = collection()
    snapshot = to_tfrecord(ddf[ddf["n"] > 6], tmp_path / "some")
    assert [file.records for file in snapshot.files] == [0, 0, 3]
    assert read_tfrecord(tmp_path / "some")["n"].compute().tolist() == [7, 8, 9]
    to_tfrecord(ddf[ddf["n"] > 99], tmp_path / "none", compression="gzip")
    frame = read_tfrecord(tmp_path / "none").compute()
    assert frame.dtypes.to_dict() == {"n": pd.ArrowDtype(pa.int64()), "name": pd.ArrowDtype(pa.string())}
    assert len(frame) == 0


def test_a_single_partition_is_written(tmp_path: Path) -> None:
    assert to_tfrecord(collection(npartitions=1), tmp_path).records == 10


def test_the_index_is_dropped_or_becomes_the_first_column(tmp_path: Path) -> None:
    ddf = dd.from_pandas(collection().compute().set_index("n"), npartitions=3)
    to_tfrecord(ddf, tmp_path / "dropped", write_index=False)
    assert list(read_tfrecord(tmp_path / "dropped").columns) == ["name"]
    to_tfrecord(ddf, tmp_path / "kept", write_index=True)
    assert list(read_tfrecord(tmp_path / "kept", index=False).columns) == ["n", "name"]
    assert values(tmp_path / "kept") == list(range(10))


def test_sequence_examples_and_bytes_are_written(tmp_path: Path) -> None:
    nested = pd.array([[[1, 2], []], None], pd.ArrowDtype(pa.list_(pa.list_(pa.int64()))))
    ddf = dd.from_pandas(pd.DataFrame({"steps": nested}), npartitions=1)
    to_tfrecord(ddf, tmp_path / "sequences", record_type="sequence_example")
    assert read_tfrecord(tmp_path / "sequences").dtypes.to_dict() == ddf.dtypes.to_dict()
    payloads = pd.array([b"\xff", b"", b"\0"], pd.ArrowDtype(pa.binary()))
    to_tfrecord(
        dd.from_pandas(pd.DataFrame({"x": payloads}), npartitions=1), tmp_path / "b", record_type="bytes"
    )
    (path,) = (tmp_path / "b").glob("part-*")
    assert oracle.read_payloads(path) == [b"\xff", b"", b"\0"]
    assert read_tfrecord(tmp_path / "b")["x"].compute().tolist() == [b"\xff", b"", b"\0"]


def test_objects_are_sampled_for_their_type_or_have_one_in_schema(tmp_path: Path) -> None:
    with dask.config.set({"dataframe.convert-string": False}):
        frame = pd.DataFrame({"x": pd.Series([None, None, b"\xff", b"a"], dtype=object)})
        ddf = dd.from_pandas(frame, npartitions=2)
    to_tfrecord(ddf, tmp_path / "a")
    assert read_tfrecord(tmp_path / "a")["x"].dtype == pd.ArrowDtype(pa.binary())
    to_tfrecord(ddf, tmp_path / "b", schema={"x": pa.large_binary()})
    assert read_tfrecord(tmp_path / "b")["x"].dtype == pd.ArrowDtype(pa.large_binary())


# --- laziness ----------------------------------------------------------------------------------------


def test_nothing_is_created_before_it_is_computed(tmp_path: Path) -> None:
    lazy = to_tfrecord(collection(), tmp_path / "a", compute=False)
    assert not (tmp_path / "a").exists()
    assert lazy.compute().records == 10
    assert (tmp_path / "a" / "_SUCCESS").exists()


def test_two_writes_and_a_sum_are_computed_together(tmp_path: Path) -> None:
    ddf = collection()
    lazy = [to_tfrecord(ddf, tmp_path / name, compute=False) for name in "ab"]
    one, other, total = dask.compute(*lazy, ddf["n"].sum())
    assert (one.records, other.records, total) == (10, 10, 45)


def test_every_call_has_its_own_run_and_its_own_keys(tmp_path: Path) -> None:
    ddf = collection()
    one, other = (to_tfrecord(ddf, tmp_path / "a", compute=False) for _ in range(2))
    shared = set(one.optimize().__dask_graph__()) & set(other.optimize().__dask_graph__())
    assert {key[0].partition("-")[0] for key in shared} == {"frompandas"}
    assert tokenize(one) != tokenize(other)


def test_reading_changing_and_writing_is_one_task_a_partition(tmp_path: Path) -> None:
    to_tfrecord(collection(), tmp_path / "a")
    ddf = read_tfrecord(tmp_path / "a", blocksize=None)
    lazy = to_tfrecord(ddf[ddf["n"] > 3][["name"]], tmp_path / "b", compute=False)
    keys = [key[0].rpartition("-")[0] for key in lazy.optimize().__dask_graph__()]
    assert sorted(keys) == ["committfrecord", *["read_tfrecord-fused-totfrecord"] * 3]


def test_files_count_from_the_partitions_there_are_in_the_end(tmp_path: Path) -> None:
    snapshot = to_tfrecord(collection(100, 10).repartition(npartitions=4), tmp_path)
    assert [file.path[38:] for file in snapshot.files] == [f"{n:05d}-of-00004.tfrecord" for n in range(4)]
    assert snapshot.records == 100


def test_numbers_keep_names_in_order_whatever_their_count() -> None:
    run = WriteRun(Store.at("x"), Schema(()), "0123456789")
    assert run.name(7, 8) == "part-0123456789-00007-of-00008.tfrecord"
    assert run.name(7, 1_000_000) == "part-0123456789-0000007-of-1000000.tfrecord"


def test_compute_kwargs_reach_compute(tmp_path: Path) -> None:
    def get(graph: Any, keys: Any, **kwargs: Any) -> Any:
        seen.update(kwargs)
        return dask.get(graph, keys)

    seen: dict[str, Any] = {}
    to_tfrecord(collection(), tmp_path / "a", compute_kwargs={"scheduler": get, "priority": 7})
    assert seen["priority"] == 7
    assert "retries" not in seen
    to_tfrecord(collection(), "memory://bucket/retries", compute_kwargs={"scheduler": get})
    assert seen["retries"] == 5


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddf", "path", "problem"),
    [
        (dd.from_dict({"x": [1]}, npartitions=1)["x"], "somewhere", "Series is not a Dask DataFrame"),
        (dd.from_dict({"x": [1]}, npartitions=1), None, "None is not a path"),
        (dd.from_dict({"x": [1]}, npartitions=1), "", "'' is not a path"),
    ],
)
def test_what_is_no_collection_or_no_path_is_refused(ddf: Any, path: Any, problem: str) -> None:
    with pytest.raises(TFRecordError, match=problem):
        to_tfrecord(ddf, path)


def test_a_directory_that_holds_a_dataset_is_refused(tmp_path: Path) -> None:
    to_tfrecord(collection(), tmp_path)
    before = content(tmp_path)
    with pytest.raises(DestinationError, match="already holds a dataset; choose another") as caught:
        to_tfrecord(collection(), tmp_path, compute=False)
    assert caught.value.path == str(tmp_path)
    assert content(tmp_path) == before


def test_a_directory_that_holds_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    to_tfrecord(collection(), tmp_path, compute=False)
    (tmp_path / "some.csv").touch()
    with pytest.raises(DestinationError, match="already holds files"):
        to_tfrecord(collection(), tmp_path, compute=False)
    with pytest.raises(DestinationError, match="is a file"):
        to_tfrecord(collection(), tmp_path / "some.csv", compute=False)


@pytest.mark.parametrize(
    ("argument", "value"), [("compression", "lzo"), ("record_type", "all"), ("lossy", "no")]
)
def test_unknown_choices_are_refused_with_the_known_ones(tmp_path: Path, argument: str, value: Any) -> None:
    with pytest.raises(TFRecordError, match=f"unknown {argument} '{value}'; pass one of "):
        to_tfrecord(collection(), tmp_path, **{argument: value})


def test_rounding_warns_once_at_plan_time_where_the_user_called(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [0.1, 0.2, 0.3], "b": [0.5] * 3, "c": np.float32([0.1] * 3)})
    ddf = dd.from_pandas(frame, npartitions=3)
    with pytest.warns(
        UserWarning, match=r"the values of 'a', 'b' are rounded; pass lossy=\"allow\""
    ) as caught:
        lazy = to_tfrecord(ddf, tmp_path / "warned", compute=False)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lazy.compute()
        to_tfrecord(ddf, tmp_path / "allowed", lossy="allow")
        to_tfrecord(ddf[["b", "c"]], tmp_path / "exact", lossy="raise")
        with pytest.raises(SchemaError, match=r"0\.\d would come back as"):
            to_tfrecord(ddf, tmp_path / "raised", lossy="raise")


def test_a_value_that_cannot_be_stored_says_where(tmp_path: Path) -> None:
    lists = pd.array([[1]] * 5 + [[1, None]], pd.ArrowDtype(pa.list_(pa.int64())))
    ddf = dd.from_pandas(pd.DataFrame({"lists": lists}), npartitions=2)
    with pytest.raises(SchemaError, match="the list holds a null") as caught:
        to_tfrecord(ddf, tmp_path)
    error = caught.value
    assert (error.record, error.feature) == (2, "lists")
    assert error.path is not None
    assert error.path.endswith("-00001-of-00002.tfrecord")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_rows_count_from_the_partitions_start_across_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "_CHUNK_ROWS", 10)
    numbers = pd.array([1] * 57 + [2**63] + [1] * 10, pd.ArrowDtype(pa.uint64()))
    with pytest.raises(SchemaError, match="2\\^63-1") as caught:
        to_tfrecord(dd.from_pandas(pd.DataFrame({"n": numbers}), npartitions=1), tmp_path)
    assert caught.value.record == 57


def test_rows_count_in_the_partition_also_when_it_is_split_by_keys(tmp_path: Path) -> None:
    numbers = pd.array([1] * 57 + [2**63] + [1] * 10, pd.ArrowDtype(pa.uint64()))
    frame = pd.DataFrame({"n": numbers, "key": ["b", "a"] * 34})
    with pytest.raises(SchemaError, match="2\\^63-1") as caught:
        to_tfrecord(dd.from_pandas(frame, npartitions=1, sort=False), tmp_path, partition_on="key")
    assert caught.value.record == 57
    assert caught.value.path is not None
    assert "key=a/" in caught.value.path


def test_a_partition_with_other_columns_than_planned_says_where(tmp_path: Path) -> None:
    ddf = collection().map_partitions(
        lambda part: part[["n"]], meta=collection()._meta, enforce_metadata=False
    )
    with pytest.raises(SchemaError, match="a partition has the columns") as caught:
        to_tfrecord(ddf, tmp_path)
    assert caught.value.path is not None


# --- plans -------------------------------------------------------------------------------------------


def test_storage_options_show_nowhere(tmp_path: Path) -> None:
    secret = "hunter2"
    options = {"token": secret}
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    lazy = to_tfrecord(collection(), "memory://bucket/secret", compute=False, storage_options=options)
    ddf_of = to_tfrecord(collection(), "memory://bucket/other", storage_options=options)
    ddf = read_tfrecord("memory://bucket/other", storage_options=options)
    graph = {**lazy.optimize().__dask_graph__(), **ddf.optimize().__dask_graph__()}
    shown = [repr(lazy), repr(lazy.expr), repr(ddf), repr(ddf.expr), repr(ddf_of), *map(repr, graph)]
    shown += [lazy.expr.tree_repr(), ddf.expr.tree_repr(), *map(repr, graph.values())]
    assert not [text for text in shown if secret in text]
    with pytest.raises(DestinationError) as caught:
        to_tfrecord(collection(), "memory://bucket/other", storage_options=options)
    assert secret not in str(caught.value)
    assert b"hunter2" not in b"".join(file.getvalue() for file in MemoryFileSystem.store.values())


def test_the_snapshot_holds_nothing_of_where_it_lies(tmp_path: Path) -> None:
    to_tfrecord(collection(), tmp_path / "somewhere")
    path = tmp_path / "somewhere" / "_tfrecord" / "00000001.parquet"
    assert b"somewhere" not in path.read_bytes()
    assert json.loads(pq.read_metadata(path).metadata[b"dask_tfrecord"])["format_version"] == 1
    (tmp_path / "somewhere").rename(tmp_path / "elsewhere")
    assert len(read_tfrecord(tmp_path / "elsewhere").compute()) == 10


def test_the_schema_of_another_dataset_gives_the_types(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    ddf = dd.from_pandas(frame, npartitions=1)
    train = to_tfrecord(ddf, tmp_path / "train", schema={"a": pa.int8(), "b": pa.int16()})
    for at, given in enumerate((train, train.schema)):
        test = to_tfrecord(ddf, tmp_path / f"test-{at}", schema=given)
        assert test.schema.arrow == train.schema.arrow


def test_custom_metadata_of_the_user_is_kept(tmp_path: Path) -> None:
    to_tfrecord(collection(), tmp_path, custom_metadata={"owner": "łódź"})
    assert Snapshot.open(tmp_path).custom_metadata == {"owner": "łódź"}


def test_retries_reach_compute(tmp_path: Path) -> None:
    def get(graph: Any, keys: Any, **kwargs: Any) -> Any:
        seen.update(kwargs)
        return dask.get(graph, keys)

    seen: dict[str, Any] = {}
    to_tfrecord(collection(), tmp_path, retries=3, compute_kwargs={"scheduler": get, "retries": 1})
    assert seen["retries"] == 3
