"""`to_tfrecord`: the files of a dataset, the arguments that are rejected, and the files after a failure.

Modules: api.write, keywords.requests.
"""

import json
import warnings
from collections.abc import Callable
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

from dask_tfrecord import DestinationError, SchemaError, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.head import Head
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.files import file_writer
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def collection(rows: int = 10, npartitions: int = 3) -> dd.DataFrame:
    frame = pd.DataFrame({"n": range(rows), "name": [f"row {n}" for n in range(rows)]})
    return dd.from_pandas(frame, npartitions=npartitions)


def content(root: Path) -> list[str]:
    """The names of all files below the root, with RUN in place of the id of the run."""
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return [f"part-RUN-{name[38:]}" if name.startswith("part-") else name for name in found]


def payloads(root: Path) -> list[bytes]:
    return [one for path in sorted(root.rglob("part-*")) for one in oracle.read_payloads(path)]


@pytest.mark.parametrize(("compression", "suffix"), [(None, ""), ("gzip", ".gz"), ("zlib", ".zz")])
def test_a_directory_holds_files_and_a_snapshot(tmp_path: Path, compression: Any, suffix: str) -> None:
    to_tfrecord(collection(), tmp_path, compression=compression)
    snapshot = Snapshot.open(tmp_path)
    names = [f"part-RUN-{number:05d}-of-00003.tfrecord{suffix}" for number in range(3)]
    assert content(tmp_path) == ["_SUCCESS", "_tfrecord/00000001.parquet", *names]
    numbers = [oracle.parse(payload).features["n"].values for payload in payloads(tmp_path)]
    assert numbers == [[n] for n in range(10)]
    assert (tmp_path / "_SUCCESS").stat().st_size == 0
    parts = sorted(tmp_path.glob("part-*"))
    assert [file.path for file in snapshot.files] == [path.name for path in parts]
    assert [file.bytes for file in snapshot.files] == [path.stat().st_size for path in parts]
    assert [file.records for file in snapshot.files] == [4, 3, 3]
    assert [file.crc32c for file in snapshot.files] == [oracle.crc32c(path.read_bytes()) for path in parts]
    assert repr(snapshot).startswith("Snapshot(3 files, 10 records, ")
    assert Head.read(Store.at(tmp_path)).snapshot == snapshot


@pytest.mark.parametrize(
    ("compression", "suffix"), [("zstd", ".zst"), ("lz4", ".lz4"), ("bz2", ".bz2"), ("xz", ".xz")]
)
def test_what_tensorflow_does_not_read_warns(tmp_path: Path, compression: Any, suffix: str) -> None:
    df = every_dtype.frame()
    ddf = dd.from_pandas(df, npartitions=2)
    with pytest.warns(UserWarning, match=f"TensorFlow reads only gzip and zlib, .*{compression}"):
        to_tfrecord(ddf, tmp_path, lossy="allow", compression=compression)
    snapshot = Snapshot.open(tmp_path)
    assert all(file.path.endswith(f".tfrecord{suffix}") for file in snapshot.files)
    assert len(read_tfrecord(tmp_path / f"part-*{suffix}")) == len(df)
    found = read_tfrecord(tmp_path, dtype_backend="pyarrow").compute().reset_index(drop=True)
    every_dtype.assert_same(found, every_dtype.read_back())


def test_a_higher_compression_level_gives_smaller_files(tmp_path: Path) -> None:
    options = [{"compression": "gzip", "write_options": {"compression_level": level}} for level in (0, 9)]
    larger, smaller = (to_tfrecord(collection(), tmp_path, overwrite=True, **one).bytes for one in options)
    assert smaller < larger


def test_partitions_without_rows_have_files_without_records(tmp_path: Path) -> None:
    ddf = collection()
    to_tfrecord(ddf[ddf["n"] > 6], tmp_path / "some")
    snapshot = Snapshot.open(tmp_path / "some")
    assert [file.records for file in snapshot.files] == [0, 0, 3]
    assert read_tfrecord(tmp_path / "some")["n"].compute().tolist() == [7, 8, 9]
    to_tfrecord(ddf[ddf["n"] > 99], tmp_path / "none", compression="gzip")
    frame = read_tfrecord(tmp_path / "none").compute()
    assert frame.dtypes.to_dict() == ddf.dtypes.to_dict()
    assert len(frame) == 0


def test_lazy_writes_create_nothing_before_they_are_computed_together(tmp_path: Path) -> None:
    ddf = collection()
    lazy = [to_tfrecord(ddf, tmp_path / name, compute=False) for name in "ab"]
    assert list(tmp_path.iterdir()) == []
    one, other, total = dask.compute(*lazy, ddf["n"].sum())
    assert (one.rows, other.rows, total) == (10, 10, 45)
    assert (tmp_path / "a" / "_SUCCESS").exists()


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


def test_numbers_keep_names_in_order_whatever_their_count() -> None:
    run = WriteRun(Store.at("x"), Schema(()), "0123456789")
    assert run.name(7, 8) == "part-0123456789-00007-of-00008.tfrecord"
    assert run.name(7, 1_000_000) == "part-0123456789-0000007-of-1000000.tfrecord"


@pytest.mark.parametrize(
    ("path", "keywords", "expected"),
    [
        ("", {"compute_kwargs": {"priority": 7}}, {"priority": 7}),
        ("memory://bucket/retries", {}, {"retries": 5}),
        ("memory://bucket/retries", {"compute_kwargs": {"retries": 1}}, {"retries": 1}),
    ],
)
def test_compute_kwargs_and_retries_reach_compute(
    tmp_path: Path, path: str, keywords: dict[str, Any], expected: dict[str, Any]
) -> None:
    def get(graph: Any, keys: Any, **kwargs: Any) -> Any:
        seen.update({name: kwargs[name] for name in ("priority", "retries") if name in kwargs})
        return dask.get(graph, keys)

    seen: dict[str, Any] = {}
    options = {"scheduler": get, **keywords.get("compute_kwargs", {})}
    to_tfrecord(collection(), path or tmp_path, overwrite=True, **keywords | {"compute_kwargs": options})
    assert seen == expected


def test_rounding_warns_once_at_plan_time_where_the_user_called(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [0.1, 0.2, 0.3], "b": [0.5] * 3, "c": np.float32([0.1] * 3)})
    ddf = dd.from_pandas(frame, npartitions=3)
    problem = r"the values of 'a', 'b' are rounded; pass lossy=\"allow\""
    with pytest.warns(UserWarning, match=problem) as caught:
        lazy = to_tfrecord(ddf, tmp_path / "warned", compute=False)
    assert [one.filename for one in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lazy.compute()
        to_tfrecord(ddf, tmp_path / "allowed", lossy="allow")
        to_tfrecord(ddf[["b", "c"]], tmp_path / "exact", lossy="raise")
        with pytest.raises(SchemaError, match=r"0\.\d would come back as"):
            to_tfrecord(ddf, tmp_path / "raised", lossy="raise")


@pytest.mark.parametrize("key", [None, "key"])
def test_rows_count_from_the_partitions_start_across_chunks_and_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.setattr(file_writer, "_CHUNK_ROWS", 10)
    numbers = pd.array([1] * 57 + [2**63] + [1] * 10, pd.ArrowDtype(pa.uint64()))
    frame = pd.DataFrame({"n": numbers, "key": ["b", "a"] * 34})
    with pytest.raises(SchemaError, match="2\\^63-1") as caught:
        to_tfrecord(dd.from_pandas(frame, npartitions=1, sort=False), tmp_path, partition_on=key)
    assert caught.value.record == 57
    assert ("key=a/" in str(caught.value.path)) == (key is not None)


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_storage_options_show_nowhere(place: str) -> None:
    secret = "hunter2"
    options = {"token": secret}
    lazy = to_tfrecord(collection(), place, compute=False, storage_options=options)
    to_tfrecord(collection(), place, storage_options=options)
    ddf_of = Snapshot.open(place, storage_options=options)
    ddf = read_tfrecord(place, storage_options=options)
    graph = {**lazy.optimize().__dask_graph__(), **ddf.optimize().__dask_graph__()}
    shown = [repr(lazy), repr(lazy.expr), repr(ddf), repr(ddf.expr), repr(ddf_of), *map(repr, graph)]
    shown += [lazy.expr.tree_repr(), ddf.expr.tree_repr(), *map(repr, graph.values())]
    assert not [text for text in shown if secret in text]
    with pytest.raises(DestinationError) as caught:
        to_tfrecord(collection(), place, storage_options=options)
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
    ddf = dd.from_pandas(pd.DataFrame({"a": [1, 2], "b": [3, 4]}), npartitions=1)
    to_tfrecord(ddf, tmp_path / "train", schema={"a": pa.int8(), "b": pa.int16()})
    train = Snapshot.open(tmp_path / "train")
    for at, given in enumerate((train, train.schema)):
        to_tfrecord(ddf, tmp_path / f"{at}", schema=given)
        assert Snapshot.open(tmp_path / f"{at}").schema.arrow == train.schema.arrow


PAYLOADS = [b"\xff", b"", b"not a message", b"\0\1"]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Files of another writer, whose records are not protobuf messages."""
    for at in range(2):
        path = tmp_path / "notes" / f"part={at}" / "0.tfrecord"
        path.parent.mkdir(parents=True)
        path.write_bytes(oracle.records_file(PAYLOADS[at * 2 : at * 2 + 2]))
    return tmp_path / "notes"


@pytest.mark.parametrize(
    ("backend", "made"),
    [
        ("pyarrow", lambda ddf: ddf[ddf["part"] < 2][["record"]]),
        ("numpy", lambda ddf: ddf[["record"]].rename(columns={"record": "note"})),
        ("numpy", lambda ddf: ddf[["record"]].repartition(npartitions=1)),
    ],
)
def test_records_of_bytes_are_written_as_they_were_read(
    notes: Path, tmp_path: Path, backend: Any, made: Callable[[Any], Any]
) -> None:
    ddf = made(read_tfrecord(notes, record_type="bytes", dtype_backend=backend))
    to_tfrecord(ddf, tmp_path / "out")
    assert Snapshot.open(tmp_path / "out").schema.record_type == "bytes"
    assert payloads(tmp_path / "out") == PAYLOADS


def test_records_of_bytes_stay_that_and_others_are_examples(notes: Path, tmp_path: Path) -> None:
    ddf = read_tfrecord(notes)
    to_tfrecord(ddf, tmp_path / "out", partition_on="part")
    assert payloads(tmp_path / "out") == PAYLOADS
    assert read_tfrecord(tmp_path / "out").compute()["record"].tolist() == PAYLOADS
    sizes = ddf.assign(size=ddf["record"].map(len, meta=("size", "int64")))[["size"]]
    to_tfrecord(sizes, tmp_path / "sizes")
    assert Snapshot.open(tmp_path / "sizes").schema.record_type == "example"


@pytest.mark.parametrize("computed", [False, True])
def test_records_that_become_features_warn(notes: Path, tmp_path: Path, computed: bool) -> None:
    ddf = read_tfrecord(notes)
    ddf = ddf[["record"]].persist() if computed else ddf
    with pytest.warns(UserWarning, match="each value of 'record' was read as a whole record") as caught:
        to_tfrecord(ddf, tmp_path / "a")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_tfrecord(ddf, tmp_path / "b", record_type="example")
        to_tfrecord(ddf[["record"]], tmp_path / "c", record_type="bytes")
    assert payloads(tmp_path / "c") == PAYLOADS


def test_sequence_examples_are_written_as_they_were_read(tmp_path: Path) -> None:
    steps = pd.array([[[1, 2], []], None], pd.ArrowDtype(pa.list_(pa.list_(pa.int64()))))
    ddf = dd.from_pandas(pd.DataFrame({"id": [1, 2], "steps": steps}), npartitions=1)
    to_tfrecord(ddf, tmp_path / "a", record_type="sequence_example")
    read = read_tfrecord(tmp_path / "a")
    to_tfrecord(read, tmp_path / "b")
    assert Snapshot.open(tmp_path / "b").schema.record_type == "sequence_example"
    to_tfrecord(read[["id"]], tmp_path / "c")
    assert Snapshot.open(tmp_path / "c").schema.record_type == "example"
    assert read_tfrecord(tmp_path / "b")["steps"].compute().tolist()[0] == [[1, 2], []]
    assert read_tfrecord(tmp_path / "b").dtypes.to_dict() == read.dtypes.to_dict()
